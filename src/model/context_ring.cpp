// Attention where keys and values of ranks that divide sequences go round among them.
#include <array>
#include <utility>
#include <vector>

#include "model/context_kinds.hpp"
#include "model/shares.hpp"

namespace tessera::model {

using namespace kernels;

namespace {

/// What travels from each rank to the next of a ring (Liu et al. 2023, Ring Attention). After s
/// steps a rank has what was of the rank s before it.
class Ring {
 public:
  explicit Ring(UnitContext& u) : u_(u), r_(u.context) {
    TESSERA_CHECK(r_.own() == 1, "a ring of {} ranks with {} shares each", r_.ranks, r_.own());
  }
  /// Whose it is that has come after a step.
  std::int64_t source(std::int64_t step) const { return (r_.rank - step + r_.ranks) % r_.ranks; }
  /// What the rank before sends, while x goes to the next one.
  View pass_on(const View& x) const {
    const View come = u_.tensor(Keep::transient, x.type, {x.extent(0), x.extent(1), x.extent(2)});
    std::vector<std::int64_t> there(static_cast<std::size_t>(r_.ranks)), back = there;
    there[static_cast<std::size_t>((r_.rank + 1) % r_.ranks)] = x.elements();
    back[static_cast<std::size_t>(source(1))] = x.elements();
    r_.run(comm::AllToAllV{.send = x.range(0, x.elements()),
                           .receive = come.range(0, come.elements()),
                           .send_counts = there,
                           .receive_counts = back,
                           .within = r_.next_is_remote ? 0 : x.elements(),
                           .across = r_.next_is_remote ? x.elements() : 0,
                           .elements = r_.ranks * x.elements()});
    return come;
  }

  /// A chunk of queries of this rank, and one of keys of another, of which some pairs see each
  /// other.
  struct Pair {
    OwnChunk queries;
    std::int64_t half, key_half;  // of their ranks' two
    std::int64_t first_key;       // token
  };
  /// The pairs of a step. Those of the first one are of the rank's own keys, of which each query
  /// sees some.
  std::vector<Pair> pairs(std::int64_t step, const AttentionShape& shape) const {
    const std::int64_t t = u_.micro_batch().sequence;
    std::vector<Pair> all;
    for (const std::int64_t half : {0, 1}) {
      const OwnChunk own = own_chunk(u_, 0, half);
      for (const std::int64_t key_half : {0, 1}) {
        const std::int64_t first_key = r_.chunks.chunk_of(source(step), key_half) * t;
        if (shape.most_pairs(own.first_token - first_key, t, t) > 0)
          all.push_back({own, half, key_half, first_key});
      }
    }
    return all;
  }
  /// What both of an Attention and its backward know of a pair.
  template <typename Operation>
  Operation of(const Pair& pair, const Operation& a, const View& keys) const {
    const auto of_keys = [&](const View& v) {
      return sequences(v, pair.key_half * r_.samples, r_.samples);
    };
    Operation own = a;
    own.q = pair.queries.of(a.q, r_.samples), own.lse = pair.queries.of(a.lse, r_.samples);
    own.k = of_keys(keys.col_range(0, a.k.cols()));
    own.v = of_keys(keys.col_range(a.k.cols(), a.v.cols()));
    own.first = pair.queries.first_token, own.first_key = pair.first_key;
    own.tokens = r_.sequence;
    own.dropout = pair.queries.of(a.dropout, r_.samples);
    return own;
  }
  std::int64_t steps() const { return r_.ranks; }

 private:
  UnitContext& u_;
  const ContextRegion& r_;
};

/// f(step, keys and values of the rank that they have come from) for each step, while those of the
/// next one travel.
template <typename F>
void round_the_ring(UnitContext& u, const Ring& ring, const View& k, const View& v, F&& f) {
  View keys = beside(u, k, v);
  for (std::int64_t step = 0; step < ring.steps(); ++step) {
    const View next = step + 1 < ring.steps() ? ring.pass_on(keys) : View{};
    f(step, keys);
    keys = next;
  }
}

}  // namespace

void attend_by_ring(UnitContext& u, const Attention& a) {
  const Ring ring(u);
  const std::int64_t samples = u.context.samples, t = u.micro_batch().sequence;
  const View all = u.tensor(Keep::transient, DType::f32, {2 * samples, t, a.out.cols()}),
             part = u.temporary({samples, t, a.out.cols()}),
             part_lse = u.tensor(Keep::transient, DType::f32, {samples, a.shape.heads, t});
  std::array<bool, 2> begun{};
  round_the_ring(u, ring, a.k, a.v, [&](std::int64_t step, const View& keys) {
    for (const Ring::Pair& pair : ring.pairs(step, a.shape)) {
      Attention own = ring.of(pair, a, keys);
      const View sum = pair.queries.of(all, samples), lse = own.lse;
      own.out = part;
      if (bool& later = begun[static_cast<std::size_t>(pair.half)]; later) {
        own.lse = part_lse;
        u.run(own);
        u.run(MergeAttention{
            .x = part, .x_lse = part_lse, .out = sum, .lse = lse, .heads = a.shape.heads});
      } else {
        later = true;
        u.run(own);
        u.run(Convert{.x = part, .out = sum});
      }
    }
  });
  u.run(Convert{.x = all, .out = a.out});
}

/// Gradients of keys and values follow these round the ring, one step behind: the next rank begins
/// with what its queries give, in f32, each adds and passes on, and their own rank adds the last.
void attend_by_ring_backward(UnitContext& u, const AttentionBackward& a) {
  const Ring ring(u);
  const std::int64_t samples = u.context.samples, t = u.micro_batch().sequence,
                     columns = a.k.cols() + a.v.cols();
  const View d_q = u.tensor(Keep::transient, DType::f32, {2 * samples, t, a.q.cols()}),
             part_d_q = u.temporary({samples, t, a.q.cols()});
  std::array<bool, 2> begun{};
  View own_keys, come;
  round_the_ring(u, ring, a.k, a.v, [&](std::int64_t step, const View& keys) {
    const View d = u.tensor(Keep::transient, DType::f32, {2 * samples, t, columns});
    std::array<bool, 2> keys_begun{};
    for (const Ring::Pair& pair : ring.pairs(step, a.shape)) {
      AttentionBackward own = ring.of(pair, a, keys);
      own.out = pair.queries.of(a.out, samples), own.d_out = pair.queries.of(a.d_out, samples);
      own.d_q = part_d_q;
      const View of_keys = sequences(d, pair.key_half * samples, samples);
      own.d_k = of_keys.col_range(0, a.k.cols());
      own.d_v = of_keys.col_range(a.k.cols(), a.v.cols());
      const auto write = [](bool& later) {
        return std::exchange(later, true) ? Write::add : Write::overwrite;
      };
      own.write = write(keys_begun[static_cast<std::size_t>(pair.key_half)]);
      u.run(own);
      u.run(Convert{.x = part_d_q,
                    .out = pair.queries.of(d_q, samples),
                    .write = write(begun[static_cast<std::size_t>(pair.half)])});
    }
    for (const std::size_t half : {0, 1}) {
      if (!keys_begun[half])
        u.run(Fill{.out = sequences(d, static_cast<std::int64_t>(half) * samples, samples)});
    }
    if (step == 0) {
      own_keys = d;
      return;
    }
    if (come) u.run(Convert{.x = come, .out = d, .write = Write::add});
    come = ring.pass_on(d);
  });
  u.run(Convert{.x = come, .out = own_keys, .write = Write::add});
  u.run(Convert{.x = d_q, .out = a.d_q});
  u.run(Convert{.x = own_keys.col_range(0, a.k.cols()), .out = a.d_k});
  u.run(Convert{.x = own_keys.col_range(a.k.cols(), a.v.cols()), .out = a.d_v});
}

}  // namespace tessera::model
