#include "plan/passes/matrices.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/exact_sum.hpp"
#include "plan/passes/layers.hpp"

namespace tessera::plan {
namespace {

/// A matrix: all columns of some rows of a parameter.
struct Matrix {
  std::string parameter;
  std::string layer;
  std::vector<std::size_t> units;  // that have parts of it: several where it is cut in tiles
  Range rows;
  std::int64_t columns = 0;
  optim::UpdateTerms terms;
  bool whole = false;     // every tensor rank has all of it
  std::int64_t home = 0;  // rank of the stage's group

  std::int64_t elements() const { return rows.count() * columns; }
  double flop(std::int64_t iterations) const {
    const auto small = static_cast<double>(std::min(rows.count(), columns)),
               large = static_cast<double>(std::max(rows.count(), columns));
    return static_cast<double>(iterations) *
           (4 * small * small * large + 2 * small * small * small);
  }
};

/// A part of a matrix that lies densely in a unit's flat buffer.
struct Part {
  std::size_t unit = 0;
  MatrixRange range;  // of the parameter
  Range flat;
};

/// Matrices of as many layers as make a round, in their order, by index of the first and behind the
/// last.
using Rounds = std::vector<std::pair<std::size_t, std::size_t>>;

std::int64_t ranks_of_stage(const PlanInputs& in) {
  return in.layout.mesh.data * in.layout.mesh.tensor;
}

/// The matrices of the units that a stage has, without homes.
std::vector<Matrix> matrices_of(const PlanInputs& in, std::int64_t stage) {
  std::vector<Matrix> all;
  std::map<std::string, std::pair<std::size_t, std::size_t>> known;  // first and count, by name
  const auto held = held_units(in, stage);
  for (std::size_t u = 0; u < in.model.units.size(); ++u) {
    const model::UnitDesc& unit = in.model.units[u];
    if (!held[u] || !unit.traits.trained) continue;
    for (const model::ParamDesc& p : unit.params) {
      optim::UpdateTerms terms = in.optimizer.terms_of(p.name, kind_of(unit, p));
      if (!terms.orthogonal) continue;
      const auto [place, is_new] = known.try_emplace(p.name, all.size(), 0);
      if (!is_new) {
        for (std::size_t i = 0; i < place->second.second; ++i)
          all[place->second.first + i].units.push_back(u);
        continue;
      }
      const bool heads = in.optimizer.matrices->by_heads && p.head_rows > 0;
      const std::int64_t rows = heads ? p.head_rows : p.shape[0];
      terms.scale = optim::orthogonal_scale(rows, p.shape[1]);
      for (std::int64_t first = 0; first < p.shape[0]; first += rows, ++place->second.second)
        all.push_back({p.name,
                       unit.layer,
                       {u},
                       {first, first + rows},
                       p.shape[1],
                       terms,
                       in.layout.mesh.tensor > 1 && p.tensor_axis < 0});
    }
  }
  return all;
}

Rounds rounds_of(const std::vector<Matrix>& matrices, std::int64_t ranks) {
  Rounds rounds;
  std::size_t begin = 0;
  for (std::size_t i = 1; i <= matrices.size(); ++i) {
    const bool last = i == matrices.size();
    if (!last && matrices[i].layer == matrices[i - 1].layer) continue;
    if (!last && std::cmp_less(i - begin, ranks)) continue;
    rounds.emplace_back(begin, i);
    begin = i;
  }
  return rounds;
}

/// Each round's largest matrices first, to the rank that has had least to compute so far.
void deal(std::vector<Matrix>& matrices, const Rounds& rounds, std::int64_t ranks,
          std::int64_t iterations) {
  std::vector<double> load(static_cast<std::size_t>(ranks));
  for (const auto& [begin, end] : rounds) {
    std::vector<Matrix*> order;
    for (std::size_t i = begin; i < end; ++i) order.push_back(&matrices[i]);
    std::ranges::stable_sort(order, std::ranges::greater{},
                             [&](const Matrix* m) { return m->flop(iterations); });
    for (Matrix* m : order) {
      const auto least = std::ranges::min_element(load);
      m->home = least - load.begin();
      *least += m->flop(iterations);
    }
  }
}

/// A view of consecutive parts, one after another.
class Cursor {
 public:
  explicit Cursor(const View& all) : all_(all) {}
  View next(std::int64_t elements) {
    at_ += elements;
    return all_.range(at_ - elements, elements);
  }

 private:
  View all_;
  std::int64_t at_ = 0;
};

class MatrixUpdates {
 public:
  MatrixUpdates(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states,
                const std::vector<View>& gradients)
      : plan_(plan),
        in_(in),
        states_(states),
        gradients_(gradients),
        ranks_(ranks_of_stage(in)),
        type_(in.numerics.compute == DType::f32 ? DType::f32 : DType::bf16),
        matrices_(matrices_of(in, plan.place.pipeline)),
        rounds_(rounds_of(matrices_, ranks_)) {
    deal(matrices_, rounds_, ranks_, in.optimizer.matrices->iterations);
  }

  std::vector<MatrixOp> run() {
    std::vector<Messages> messages(rounds_.size());
    for (std::size_t r = 0; r < rounds_.size() + 2; ++r) {
      if (r < rounds_.size()) set_out(r, messages[r]);
      if (r > 0 && r <= rounds_.size()) work_at_home(r - 1, messages[r - 1]);
      if (r > 1) arrive(r - 2, messages[r - 2]);
    }
    return std::move(ops_);
  }

 private:
  /// What a round's exchanges send and receive.
  struct Place {
    View used = {}, idle = {};  // one of them
  };
  struct Messages {
    Place directions, gathered, results, scattered;
  };
  /// The parts of rank r of the stage's group that it counts, or that it updates.
  enum class Which : std::uint8_t { counted, owned };

  std::int64_t own() const {
    return plan_.place.data * in_.layout.mesh.tensor + plan_.place.tensor;
  }
  MeshPlace place_of(std::int64_t rank) const {
    MeshPlace place = plan_.place;
    place.data = rank / in_.layout.mesh.tensor, place.tensor = rank % in_.layout.mesh.tensor;
    return place;
  }
  const zero::UnitLayout& layout_of(std::size_t unit, const MeshPlace& place) {
    const auto [it, is_new] = layouts_.try_emplace({unit, place.tensor});
    if (is_new) it->second = unit_layout(in_, in_.model.units[unit], place);
    return it->second;
  }

  std::vector<Part> parts_of(const Matrix& m, std::int64_t rank, Which which) {
    std::vector<Part> parts;
    const MeshPlace place = place_of(rank);
    for (const std::size_t u : m.units) {
      const model::UnitDesc& unit = in_.model.units[u];
      const zero::UnitLayout& layout = layout_of(u, place);
      const bool shards = which == Which::counted || states_[u].sharding.states;
      const Range range = shards ? slice_of(in_, unit, layout, place) : Range{0, layout.padded};
      for (const zero::ParameterSlice& slice : zero::slices_in(unit, layout, range)) {
        if (unit.params[slice.parameter].name != m.parameter) continue;
        if (which == Which::counted && slice.whole && place.tensor > 0) continue;
        MatrixRange part = slice.part;
        part.rows = intersect(part.rows, m.rows);
        if (part.rows.empty()) continue;
        const std::int64_t first =
            slice.flat + (part.rows.begin - slice.part.rows.begin) * part.columns.count();
        parts.push_back({u, part, {first, first + part.elements()}});
      }
    }
    return parts;
  }

  /// A buffer for as many elements as any rank has there, so that the plans of all ranks have one
  /// size. Where this one has none it holds the place that others need.
  Place buffer(const char* name, std::int64_t elements, std::int64_t most) {
    const View all = buffer_view(
        add_buffer(plan_, name, BufferPurpose::staging, most * size_of(type_)), type_, most);
    const Place place = elements > 0 ? Place{.used = all.range(0, elements)} : Place{.idle = all};
    hold(place);
    return place;
  }
  /// An idle place is taken until here.
  void hold(const Place& place) {
    if (place.idle) compute(kernels::Fill{.out = place.idle.range(0, 1)});
  }
  void add(Op op, Range moved = {}) { ops_.push_back({std::move(op), moved}); }
  void compute(kernels::KernelCall call) {
    add(op_of(OpKind::matrices, Stream::compute, kAllUnits, std::move(call)));
  }

  /// f(matrix) for those of a round that are at home on a rank.
  template <typename F>
  void each_at(std::size_t round, std::int64_t home, F&& f) {
    for (std::size_t i = rounds_[round].first; i < rounds_[round].second; ++i) {
      if (matrices_[i].home == home) f(matrices_[i]);
    }
  }
  /// Elements of a rank's parts of a round's matrices that are at home on another.
  std::int64_t elements_of(std::size_t round, std::int64_t rank, std::int64_t home, Which which) {
    std::int64_t elements = 0;
    each_at(round, home, [&](const Matrix& m) {
      for (const Part& part : parts_of(m, rank, which)) elements += part.range.elements();
    });
    return elements;
  }

  /// The most elements that a rank sends or updates of a round, and that are at home at one: as
  /// many times as there are ranks that update them.
  std::int64_t most_of_rank(std::size_t round, Which which) const {
    std::set<std::size_t> units;
    for (std::size_t i = rounds_[round].first; i < rounds_[round].second; ++i)
      units.insert(matrices_[i].units.begin(), matrices_[i].units.end());
    std::int64_t most = 0;
    for (const std::size_t u : units)
      most += which == Which::counted ? states_[u].layout.shard : states_[u].owned.count();
    return most;
  }
  std::int64_t most_at_home(std::size_t round, Which which) const {
    std::vector<std::int64_t> of_rank(static_cast<std::size_t>(ranks_));
    const Mesh& mesh = in_.layout.mesh;
    for (std::size_t i = rounds_[round].first; i < rounds_[round].second; ++i) {
      const Matrix& m = matrices_[i];
      const bool everywhere = !states_[m.units.front()].sharding.states;
      const std::int64_t copies =
          which == Which::counted ? 1 : (everywhere ? mesh.data : 1) * (m.whole ? mesh.tensor : 1);
      at(of_rank, m.home) += copies * m.elements();
    }
    return *std::ranges::max_element(of_rank);
  }

  /// Exchanges a round's parts of one kind between those that have them and their homes.
  Place exchange(std::size_t round, const Place& from, std::vector<std::int64_t> send_counts,
                 std::vector<std::int64_t> receive_counts, const char* name, std::int64_t most) {
    if (ranks_ == 1) return from;
    const std::int64_t arriving = sum(receive_counts);
    const Place received = buffer(name, arriving, most);
    comm::AllToAllV call{.send = from.used,
                         .receive = received.used,
                         .send_counts = std::move(send_counts),
                         .receive_counts = std::move(receive_counts),
                         .elements = elements_of(round)};
    const auto node = [&](std::int64_t rank) {
      return in_.layout.node_of.empty()
                 ? 0
                 : at(in_.layout.node_of, in_.layout.mesh.rank_of(place_of(rank)));
    };
    for (std::int64_t rank = 0; rank < ranks_; ++rank) {
      if (rank == own()) continue;
      (node(rank) == node(own()) ? call.within : call.across) +=
          call.send_counts[static_cast<std::size_t>(rank)];
    }
    Op op =
        op_of(OpKind::matrices, Stream::matrices, kAllUnits, comm::CollectiveCall{std::move(call)});
    op.group = MeshGroup::stage;
    add(std::move(op));
    return received;
  }
  /// What a rank has of matrices that are at home elsewhere, by home; and of its own by who has it.
  std::vector<std::int64_t> by_home(std::size_t round, Which which) {
    std::vector<std::int64_t> counts;
    for (std::int64_t r = 0; r < ranks_; ++r) counts.push_back(elements_of(round, own(), r, which));
    return counts;
  }
  std::vector<std::int64_t> by_rank(std::size_t round, Which which) {
    std::vector<std::int64_t> counts;
    for (std::int64_t r = 0; r < ranks_; ++r) counts.push_back(elements_of(round, r, own(), which));
    return counts;
  }
  static std::int64_t sum(const std::vector<std::int64_t>& counts) {
    std::int64_t all = 0;
    for (const std::int64_t count : counts) all += count;
    return all;
  }
  std::int64_t elements_of(std::size_t round) const {
    std::int64_t elements = 0;
    for (std::size_t i = rounds_[round].first; i < rounds_[round].second; ++i)
      elements += matrices_[i].elements();
    return elements;
  }

  /// A pass over all that this rank updates of a round's matrices: over the parts of one kind with
  /// their places in `views`, in the order of homes, and without any over the rest, which is
  /// padding or counted by other ranks.
  void pass_over(std::size_t round, Which which, const View& views, const optim::Pass& pass,
                 bool moves) {
    Cursor cursor(views);
    std::map<std::size_t, std::vector<std::pair<Range, View>>> of_unit;
    for (std::int64_t home = 0; home < ranks_; ++home) {
      each_at(round, home, [&](const Matrix& m) {
        for (const Part& part : parts_of(m, own(), which))
          of_unit[part.unit].emplace_back(part.flat, cursor.next(part.flat.count()));
      });
    }
    std::map<std::string, optim::UpdateTerms> terms;
    std::vector<std::size_t> units;
    for (std::size_t i = rounds_[round].first; i < rounds_[round].second; ++i) {
      terms.try_emplace(matrices_[i].parameter, matrices_[i].terms);
      units.insert(units.end(), matrices_[i].units.begin(), matrices_[i].units.end());
    }
    std::ranges::sort(units);
    units.erase(std::ranges::unique(units).begin(), units.end());
    for (const std::size_t u : units) {
      auto& parts = of_unit[u];
      std::ranges::sort(parts, {}, [](const auto& p) { return p.first.begin; });
      std::vector<Range> flat;
      for (const auto& [elements, view] : parts) flat.push_back(elements);
      const auto& pieces = states_[u].layout.pieces;
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const auto it = terms.find(in_.model.units[u].params[pieces[i].parameter].name);
        if (it == terms.end()) continue;
        const Range owned = intersect(with_padding(states_[u].layout, i), states_[u].owned);
        for (const auto& [elements, of] : split_by(owned, flat)) {
          const View direction = of ? parts[*of].second : View{};
          passes(u, {elements, it->second, {}, direction}, pass, moves);
        }
      }
    }
  }
  /// A pass over a piece, in tiles.
  void passes(std::size_t unit, const Piece& piece, const optim::Pass& pass, bool moves) {
    for (const Range& tile : tiles_of(in_, states_[unit], piece.elements)) {
      const std::int64_t first = tile.begin - piece.elements.begin;
      Piece part{.elements = tile, .terms = piece.terms};
      if (piece.direction) part.direction = piece.direction.range(first, tile.count());
      add(update_op(plan_, in_, unit, states_[unit], gradients_[unit], part, pass),
          moves ? tile : Range{});
    }
  }

  void set_out(std::size_t round, Messages& messages) {
    auto counts = by_home(round, Which::counted);
    messages.directions = buffer("directions", sum(counts), most_of_rank(round, Which::counted));
    pass_over(round, Which::counted, messages.directions.used, in_.optimizer.matrices->direct,
              false);
    messages.gathered =
        exchange(round, messages.directions, std::move(counts), by_rank(round, Which::counted),
                 "gathered directions", most_at_home(round, Which::counted));
  }

  /// Each matrix that is at home here, one after another.
  void work_at_home(std::size_t round, Messages& messages) {
    auto counts = by_rank(round, Which::owned);
    messages.results =
        buffer("orthogonal matrices", sum(counts), most_at_home(round, Which::owned));
    std::map<std::pair<std::string, std::int64_t>, std::vector<std::pair<Part, View>>> came, goes;
    const auto places = [&](const View& all, Which which, auto& of) {
      Cursor cursor(all);
      for (std::int64_t rank = 0; rank < ranks_; ++rank) {
        each_at(round, own(), [&](const Matrix& m) {
          for (const Part& part : parts_of(m, rank, which))
            of[{m.parameter, m.rows.begin}].emplace_back(part, cursor.next(part.flat.count()));
        });
      }
    };
    places(messages.gathered.used, Which::counted, came);
    places(messages.results.used, Which::owned, goes);
    if (messages.results.idle) hold_rooms();
    each_at(round, own(), [&](const Matrix& m) {
      const std::pair key{m.parameter, m.rows.begin};
      const View x = gather(m, came[key]);
      const View orthogonal = iterate(m, x);
      for (const auto& [part, view] : goes[key])
        compute(kernels::Convert{.x = of_matrix(m, orthogonal, part), .out = as_part(view, part)});
    });
    hold(messages.gathered), hold(messages.results);
    messages.scattered =
        exchange(round, messages.results, std::move(counts), by_home(round, Which::owned),
                 "scattered matrices", most_of_rank(round, Which::owned));
  }

  static View as_part(const View& view, const Part& part) {
    return view.reshaped({part.range.rows.count(), part.range.columns.count()});
  }
  static View of_matrix(const Matrix& m, const View& x, const Part& part) {
    return x.row_range(part.range.rows.begin - m.rows.begin, part.range.rows.count())
        .col_range(part.range.columns.begin, part.range.columns.count());
  }
  void hold_rooms() {
    for (Staging* staging : {&matrix_[0], &matrix_[1], &product_[0], &product_[1]}) {
      const bool square = staging == &product_[0] || staging == &product_[1];
      hold({.idle = room(*staging, 1, 1, square).range(0, 1)});
    }
  }
  /// As large as the largest that any rank has.
  View room(Staging& staging, std::int64_t rows, std::int64_t columns, bool square = false) {
    std::int64_t most = 0;
    for (const Matrix& m : matrices_) {
      const std::int64_t n = std::min(m.rows.count(), m.columns);
      most = std::max(most, square ? n * n : m.elements());
    }
    return View(staging.view(plan_, most * size_of(type_)).data, type_, {rows, columns});
  }

  /// A matrix of the directions that have come; of a frozen tile none do, and they are 0.
  View gather(const Matrix& m, const std::vector<std::pair<Part, View>>& parts) {
    if (parts.size() == 1 && parts[0].second.elements() == m.elements())
      return parts[0].second.reshaped({m.rows.count(), m.columns});
    const View x = room(matrix_[0], m.rows.count(), m.columns);
    std::int64_t came = 0;
    for (const auto& [part, view] : parts) came += view.elements();
    if (came < m.elements()) compute(kernels::Fill{.out = x});
    for (const auto& [part, view] : parts)
      compute(kernels::Convert{.x = as_part(view, part), .out = of_matrix(m, x, part)});
    return x;
  }

  /// The orthogonal matrix that is nearest to x, nearly.
  View iterate(const Matrix& m, const View& x) {
    using namespace kernels;
    const std::int64_t rows = m.rows.count(), columns = m.columns, n = std::min(rows, columns);
    const View squares(norm_.view(plan_, kExactSumWords * size_of(DType::i64)).data, DType::i64,
                       {kExactSumWords});
    const auto flat = [](const View& v) { return v.range(0, v.elements()); };
    compute(Fill{.out = squares});
    compute(ExactSum{.x = flat(x), .accumulator = squares});
    View now = room(matrix_[0], rows, columns), next = room(matrix_[1], rows, columns);
    compute(DivideByNorm{.x = flat(x), .squares = squares, .out = flat(now)});
    const View product = room(product_[0], n, n, true), square = room(product_[1], n, n, true);
    for (std::int64_t i = 0; i < in_.optimizer.matrices->iterations; ++i) {
      // The smaller of x x^T and x^T x.
      if (rows <= columns) {
        compute(Linear{.x = now, .weight = now, .y = product});
      } else {
        compute(LinearBackwardWeight{.d_y = now, .x = now, .d_weight = product});
      }
      compute(Linear{.x = product, .weight = product, .y = square});
      compute(SquarePolynomial{
          .x = product, .square = square, .out = product, .coefficients = optim::kNewtonSchulz});
      const bool wide = rows <= columns;
      compute(LinearBackwardInput{
          .d_y = wide ? product : now, .weight = wide ? now : product, .d_x = next});
      std::swap(now, next);
    }
    return now;
  }

  void arrive(std::size_t round, const Messages& messages) {
    pass_over(round, Which::owned, messages.scattered.used, in_.optimizer.matrices->move, true);
    hold(messages.scattered);
  }

  Plan& plan_;
  const PlanInputs& in_;
  const std::vector<UnitState>& states_;
  const std::vector<View>& gradients_;
  std::int64_t ranks_;
  DType type_;  // of directions and matrices
  std::vector<Matrix> matrices_;
  Rounds rounds_;
  std::map<std::pair<std::size_t, std::int64_t>, zero::UnitLayout> layouts_;
  Staging matrix_[2] = {Staging("matrix"), Staging("next matrix")},
          product_[2] = {Staging("matrix times its transpose"), Staging("square of that")},
          norm_{"norm of a matrix"};
  std::vector<MatrixOp> ops_;
};

}  // namespace

std::vector<MatrixOp> matrix_updates(Plan& plan, const PlanInputs& in,
                                     const std::vector<UnitState>& states,
                                     const std::vector<View>& gradients) {
  if (!in.optimizer.matrices) return {};
  return MatrixUpdates(plan, in, states, gradients).run();
}

std::vector<MatrixHome> matrix_homes(const PlanInputs& in, std::int64_t stage) {
  auto matrices = matrices_of(in, stage);
  const std::int64_t ranks = ranks_of_stage(in), iterations = in.optimizer.matrices->iterations;
  deal(matrices, rounds_of(matrices, ranks), ranks, iterations);
  std::vector<MatrixHome> homes;
  for (const Matrix& m : matrices)
    homes.push_back({m.parameter, m.rows.begin, m.home, m.flop(iterations)});
  return homes;
}

}  // namespace tessera::plan
