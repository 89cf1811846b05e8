#include "plan/passes/on_demand.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "plan/passes/buffers.hpp"

namespace tessera::plan {
namespace {

/// Where more of the experts are expected to have rows, all come ahead of their use.
constexpr double kMostOnDemand = 0.9;

/// How many of the experts have rows if the tokens of so many ranks choose them evenly.
double share_with_rows(const kernels::Dispatch& d, std::int64_t ranks) {
  const double chosen =
      static_cast<double>(d.experts.cols()) / static_cast<double>(d.experts_of_all());
  return 1 - std::pow(1 - chosen, static_cast<double>(ranks * d.experts.rows()));
}

/// Matrices, or the codes or scales of some, of which ops want those of the experts that have rows.
struct Demand {
  BufferUse matrices;
  std::vector<std::size_t> ops;
  std::size_t known = 0;  // the op that writes the rows' begins
  View begins;            // (ranks whose rows an op each multiplies, E + 1)
  double share = 1;       // of the experts that are expected to have rows
};

bool overlap(const BufferUse& a, const BufferUse& b) {
  return a.buffer == b.buffer && !intersect(a.bytes, b.bytes).empty();
}

bool writes(const Op& op, const BufferUse& what) {
  return std::ranges::any_of(uses_of(op), [&](const BufferUse& use) {
    return use.access != kernels::Access::read && overlap(use, what);
  });
}

/// Who wants matrices: those whose rows become known at once, in order.
class Demands {
 public:
  explicit Demands(const Plan& plan) : plan_(plan) {
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      const auto* product = kernel_of<kernels::ExpertLinear>(plan.ops[i]);
      if (product == nullptr) continue;
      for (const View& matrices : {product->weight, product->codes.scales})
        if (matrices) add(i, matrices, product->begins);
    }
    leave_others();
    std::erase_if(demands_, [&](Demand& d) { return !is_rare(d); });
  }

  bool empty() const { return demands_.empty(); }

  /// Of matrices in these bytes, of ops behind this one, in the order of their bytes.
  std::vector<const Demand*> of(const BufferUse& bytes, std::size_t op) const {
    std::vector<const Demand*> found;
    for (const Demand& d : demands_) {
      const Range& r = d.matrices.bytes;
      if (d.matrices.buffer == bytes.buffer && bytes.bytes.begin <= r.begin &&
          r.end <= bytes.bytes.end && op < d.known)
        found.push_back(&d);
    }
    std::ranges::sort(found, {}, [](const Demand* d) { return d->matrices.bytes.begin; });
    return found;
  }

 private:
  /// The last op before this one that writes these bytes.
  std::optional<std::size_t> writer_of(const BufferUse& bytes, std::size_t before) const {
    for (std::size_t i = before; i-- > 0;)
      if (writes(plan_.ops[i], bytes)) return i;
    return std::nullopt;
  }

  void add(std::size_t op, const View& matrices, const View& begins) {
    const auto known = writer_of(use_of(begins), op);
    if (!known) return;
    const BufferUse use = use_of(matrices);
    for (Demand& d : demands_) {
      const std::int64_t ranks = d.begins.rows();
      const bool next = d.known == *known && same_bytes(d.matrices, use) &&
                        begins.data == d.begins.data + d.begins.span_bytes();
      if (!next) continue;
      d.ops.push_back(op);
      d.begins = View(d.begins.data, DType::i32, {ranks + 1, begins.elements()});
      return;
    }
    demands_.push_back({.matrices = use,
                        .ops = {op},
                        .known = *known,
                        .begins = View(begins.data, DType::i32, {1, begins.elements()})});
  }

  /// Takes out what other ops read too.
  void leave_others() {
    for (std::size_t i = 0; i < plan_.ops.size() && !demands_.empty(); ++i) {
      for (const BufferUse& use : uses_of(plan_.ops[i])) {
        if (use.access != kernels::Access::read) continue;
        std::erase_if(demands_, [&](const Demand& d) {
          return overlap(d.matrices, use) && std::ranges::find(d.ops, i) == d.ops.end();
        });
      }
    }
  }

  /// Whether few enough of the experts are expected to have rows.
  bool is_rare(Demand& d) const {
    for (std::size_t i = d.known + 1; i-- > 0;) {
      const auto* dispatch = kernel_of<kernels::Dispatch>(plan_.ops[i]);
      if (dispatch == nullptr) continue;
      d.share = share_with_rows(*dispatch, d.begins.rows());
      return d.share <= kMostOnDemand;
    }
    return false;
  }

  const Plan& plan_;
  std::vector<Demand> demands_;
};

View bytes_at(const View& v, std::int64_t first, std::int64_t count) {
  return View(v.data + first, DType::u8, {count});
}

class OnDemand {
 public:
  OnDemand(Plan& plan, const Demands& demands) : plan_(plan), demands_(demands) {}

  void run() {
    for (std::size_t i = 0; i < plan_.ops.size(); ++i) {
      const auto* copy = std::get_if<Copy>(&plan_.ops[i].call);
      if (copy != nullptr && plan_.ops[i].kind == OpKind::fetch) cut(i, *copy);
    }
    insertions_.apply(plan_.ops);
    std::erase_if(plan_.ops, [](const Op& op) {
      const auto* copy = std::get_if<Copy>(&op.call);
      return copy != nullptr && !copy->from;
    });
  }

 private:
  /// Of a fetch what nobody demands stays where it is in the plan.
  void cut(std::size_t at, Copy copy) {
    const std::int64_t first = offset_of(copy.to), bytes = copy.to.span_bytes();
    const auto wanted = demands_.of(use_of(copy.to), at);
    if (wanted.empty()) return;
    std::int64_t done = 0;
    const auto rest_until = [&](std::int64_t until) {
      if (done < until) insert(at, at, copy, done, until - done, nullptr);
    };
    for (const Demand* d : wanted) {
      const std::int64_t from = d->matrices.bytes.begin - first;
      rest_until(from);
      done = d->matrices.bytes.end - first;
      insert(at, d->known + 1, copy, from, done - from, d);
    }
    rest_until(bytes);
    std::get<Copy>(plan_.ops[at].call) = {};  // to be taken out
  }

  void insert(std::size_t of, std::size_t position, const Copy& whole, std::int64_t first,
              std::int64_t count, const Demand* demand) {
    Op op = plan_.ops[of];
    Copy copy{bytes_at(whole.from, first, count), bytes_at(whole.to, first, count)};
    if (demand != nullptr) {
      copy.begins = demand->begins, copy.share = demand->share;
      op.visit = plan_.ops[demand->known].visit;
      op.micro_batch = plan_.ops[demand->known].micro_batch;
    }
    op.call = copy;
    insertions_.before(position, std::move(op));
  }

  Plan& plan_;
  const Demands& demands_;
  Insertions insertions_;
};

}  // namespace

void fetch_on_demand(Plan& plan, const PlanInputs& in) {
  const PlanPurpose purpose = plan.shape.purpose;
  const bool trains = purpose != PlanPurpose::generate && purpose != PlanPurpose::evaluate;
  if (trains || !in.offload.anything() || !in.offload.device_is_host) return;
  const Demands demands(plan);
  if (!demands.empty()) OnDemand(plan, demands).run();
}

}  // namespace tessera::plan
