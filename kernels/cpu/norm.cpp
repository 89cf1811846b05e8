// Norms on the CPU: checks arguments, divides rows over the team; weights' gradients in fixed
// chunks of rows.
#include <algorithm>

#include "kernels/cpu/operations.hpp"
#include "kernels/cpu/team.hpp"

namespace tessera::kernels::cpu {
namespace {

// A group's rows whose weight gradients are added up together: a function of their number alone, so
// that neither threads nor other groups change the order of the sum.
constexpr std::int64_t kMaxChunks = 64, kMinChunkRows = 16;
std::int64_t chunk_count(std::int64_t rows) {
  return std::min(kMaxChunks, ceil_div(rows, kMinChunkRows));
}

/// Positions t of every sample b, in the order of (b, t): row `t.count() b + i` of the group is row
/// `tokens b + t.begin + i` of the tensor.
struct Group {
  Range t;
  std::int64_t tokens;

  /// f(rows of the tensor) for each sample that rows `part` of the group touch, in order.
  template <typename F>
  void for_rows(Range part, F&& f) const {
    for (std::int64_t i = part.begin; i < part.end;) {
      const std::int64_t sample = i / t.count();
      const std::int64_t end = std::min(part.end, (sample + 1) * t.count());
      const std::int64_t shift = sample * (tokens - t.count()) + t.begin;
      f(Range{i + shift, end + shift});
      i = end;
    }
  }
};

/// Partial sums of weights and biases, (2, groups, chunks, C / heads), in scratch. A chunk is of so
/// many rows, with all their heads.
struct PartialSums {
  std::int64_t groups, group_rows, chunks, columns;
  std::byte* data = nullptr;

  explicit PartialSums(const NormBackward& a)
      : groups(a.groups),
        group_rows(a.sum.rows() / groups),
        chunks(chunk_count(group_rows)),
        columns(a.sum.cols() / a.heads),
        data(a.scratch.data) {}

  std::int64_t bytes() const { return 2 * groups * chunks * columns * size_of(DType::f32); }
  View weights(std::int64_t group) const { return of(group); }
  View biases(std::int64_t group) const { return of(groups + group); }

 private:
  View of(std::int64_t i) const {
    return View(data + i * chunks * columns * size_of(DType::f32), DType::f32, {chunks, columns});
  }
};

}  // namespace

void run(const AddNorm& a, const Context& context) {
  const DropoutRule rule = dropout_rule(a.dropout);
  AddNorm b = a;
  b.stats = a.stats.reshaped({a.resid.rows(), 2 * a.heads});
  parallel_ranges(context.threads, a.resid.rows(), 1,
                  [&](Range rows) { context.hot.add_norm(b, rule, rows); });
}

std::int64_t scratch_bytes(const NormBackward& a, const Context&) {
  check_groups(a);
  return PartialSums(a).bytes();
}

void run(const NormBackward& a, const Context& context) {
  NormBackward b = a;
  b.stats = a.stats.reshaped({a.sum.rows(), 2 * a.heads});
  const PartialSums sums(a);
  const std::int64_t tokens = a.sum.extent(1), chunks = sums.chunks, columns = sums.columns;
  parallel_ranges(context.threads, a.groups * chunks, 1, [&](Range part) {
    for (std::int64_t i = part.begin; i < part.end; ++i) {
      const std::int64_t g = i / chunks, chunk = i % chunks;
      float* d_weight = sums.weights(g).as<float>() + chunk * columns;
      float* d_bias = a.d_bias ? sums.biases(g).as<float>() + chunk * columns : nullptr;
      std::fill_n(d_weight, columns, 0.0F);
      if (a.d_bias) std::fill_n(d_bias, columns, 0.0F);
      const Group group{even_part(tokens, g, a.groups), tokens};
      group.for_rows(even_part(sums.group_rows, chunk, chunks),
                     [&](Range rows) { context.hot.norm_backward(b, rows, d_weight, d_bias); });
    }
  });
  const auto add_up = [&](const View& partial, const View& out, std::int64_t g, Range part) {
    context.hot.sum_rows(partial, out.reshaped({a.groups, columns}).row_range(g, 1), a.write, part);
  };
  parallel_ranges(context.threads, columns, 64, [&](Range part) {
    for (std::int64_t g = 0; g < a.groups; ++g) {
      add_up(sums.weights(g), a.d_weight, g, part);
      if (a.d_bias) add_up(sums.biases(g), a.d_bias, g, part);
    }
  });
}

void run(const AddPending& a, const Context& context) {
  const DropoutRule rule = dropout_rule(a.dropout);
  parallel_ranges(context.threads, a.resid.rows(), 1,
                  [&](Range rows) { context.hot.add_pending(a, rule, rows); });
}

void run(const ApplyDropout& a, const Context& context) {
  const DropoutRule rule = dropout_rule(a.dropout);
  parallel_ranges(context.threads, a.x.rows(), 1,
                  [&](Range rows) { context.hot.apply_dropout(a, rule, rows); });
}

}  // namespace tessera::kernels::cpu
