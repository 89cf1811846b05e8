// Matrices of low rank beside frozen ones (Hu et al. 2021, LoRA): where a layer multiplies with W,
// it adds scale (drop(x) A^T) B^T, A (rank, in) and B (out, rank). Which matrices have them is a
// table that products are looked up in: unit functions know nothing of it.
//
// Both additions are linear, so tensor ranks need no sum of their own for x's gradient and for y.
// Beside a W that is cut by rows, B is cut too and A whole; by columns, A is cut and B whole. Of
// what is whole each chunk makes a part of the gradient.
//
// With magnitudes m (Liu et al. 2024, DoRA) what is made of row j, but for its bias, is multiplied
// with m_j / |W_j + scale B_j A|, whose denominator counts as a constant on the way back (section
// 4.3). Beside a W that is cut by columns the squares of these lengths are summed over chunks. What
// is dropped out is read by A alone.
#pragma once

#include <vector>

#include "model/tensor_parallel.hpp"

namespace tessera::model {

class Adapters {
 public:
  /// Of a layer whose units have these parameters and, where it trains, gradients. `u` runs the
  /// layer's forward, and then its backward; both outlive this.
  Adapters(UnitContext& u, const AdapterConfig& config, std::span<const UnitViews> weights,
           std::span<const UnitViews> gradients = {});
  Adapters(const Adapters&) = delete;
  Adapters& operator=(const Adapters&) = delete;

  /// The product, and what is added to it.
  void multiply(const kernels::Linear& product);
  /// The same on the way back; of each forward product once, chunks in order.
  void multiply(const kernels::LinearBackwardInput& product);
  /// Gradients of A and B of the products that have come back since.
  void gradients(kernels::Write write);
  /// Sums what is a sum over chunks. Last.
  void finish();

 private:
  /// By own chunk, or one view where every tensor rank has the whole.
  using Chunks = std::vector<View>;
  struct Adapter {
    std::size_t site = 0;                   // its row of kAdapterTargets, which keys its masks
    std::int64_t columns = 0;               // of W, all chunks together
    std::int64_t rows_a = 0;                // the rank
    bool whole_a = false, whole_b = false;  // on every tensor rank
    Chunks w, a, b, m, d_a, d_b, d_m;
    Chunks squares;                          // of lengths of rows, as m, once a product wants them
    std::vector<std::int64_t> first_column;  // of each of `a`
    std::int64_t passages = 0;               // through it
    View a_parts, b_parts, m_parts;          // of gradients of what is whole, by chunk
  };
  /// One product beside which an adapter has rows.
  struct Passage {
    Adapter* adapter = nullptr;
    std::int64_t chunk = 0;             // the rank's
    const std::byte* weight = nullptr;  // of the product
    Range rows;                         // of the adapter's B
    std::int64_t column = 0;            // where these begin in y
    View x, t;                          // t = scale drop(x) A^T
    View y;                             // before it is multiplied with magnitudes
    View d_out, d_y, d_t;               // once it has come back; d_out: of the product as it is
                                        // handed on, d_y: of y, d_t = scale d_y B
    bool back = false, done = false;
  };

  std::vector<Passage> passages_beside(const kernels::Linear& product);
  void make_t(Passage& p);
  void add_update(const Passage& p, const View& y);
  void add_input_gradient(Passage& p, const View& d_y, const View& d_x);
  void gradients_of(Passage& p, kernels::Write write);
  View in_f32(const View& result);
  void make_squares(Adapter& adapter);
  void square_rows(const View& w, const View& a, const View& b, const View& out);
  void keep_unscaled(std::vector<Passage>& beside, const View& y);
  void scale(const std::vector<const Passage*>& beside, const View& x, const View& bias,
             const View& out);
  static View squares_of(const Passage& p);
  View scaled(const View& product, Keep keep);
  View product_of_rank(Keep keep);
  kernels::ApplyDropout dropout_of(const Passage& p) const;
  View dropped_out(const Passage& p);
  View part_of(View& parts, const View& gradient, const Passage& p, bool cleared);

  UnitContext& u_;
  const AdapterConfig& config_;
  std::vector<Adapter> adapters_;
  std::vector<Passage> passages_;
  std::optional<PartialGradients> partial_;
};

}  // namespace tessera::model
