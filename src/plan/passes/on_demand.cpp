#include "plan/passes/on_demand.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "plan/passes/buffers.hpp"

namespace tessera::plan {
namespace {

/// Where more of the experts are expected to have rows, all come ahead of their use.
constexpr double kMostOnDemand = 0.9;

/// How many of the experts have rows if tokens choose them evenly.
double share_with_rows(const kernels::Dispatch& d) {
  const double chosen =
      static_cast<double>(d.experts.cols()) / static_cast<double>(d.experts_of_all());
  return 1 - std::pow(1 - chosen, static_cast<double>(d.experts.rows()));
}

/// Matrices, of which an op wants those of the experts that have rows.
struct Demand {
  BufferUse matrices;
  std::size_t op = 0;
  std::size_t dispatch = 0;  // the op that writes the rows
  View begins;
  double share = 1;  // of the experts that are expected to have rows
};

bool overlap(const BufferUse& a, const BufferUse& b) {
  return a.buffer == b.buffer && !intersect(a.bytes, b.bytes).empty();
}

/// By buffer of the matrices.
using Demands = std::multimap<BufferId, Demand>;
Demands demands_of(const Plan& plan) {
  Demands demands;
  std::map<const std::byte*, std::size_t> dispatched;  // by what they write, the last
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    if (const auto* dispatch = kernel_of<kernels::Dispatch>(op))
      dispatched[dispatch->begins.data] = i;
    const auto* product = kernel_of<kernels::ExpertLinear>(op);
    if (product == nullptr) continue;
    const auto made = dispatched.find(product->begins.data);
    if (made == dispatched.end()) continue;
    const auto& dispatch = *kernel_of<kernels::Dispatch>(plan.ops[made->second]);
    const double share = share_with_rows(dispatch);
    if (dispatch.parts > 1 || share > kMostOnDemand) continue;
    const BufferId buffer = buffer_of(product->weight);
    const std::int64_t begin = offset_of(product->weight);
    demands.emplace(buffer, Demand{.matrices = {buffer,
                                                {begin, begin + product->weight.span_bytes()},
                                                kernels::Access::read},
                                   .op = i,
                                   .dispatch = made->second,
                                   .begins = product->begins,
                                   .share = share});
  }
  return demands;
}

/// Those whose matrices no other op reads.
void leave_single(const Plan& plan, Demands& demands) {
  for (std::size_t i = 0; i < plan.ops.size() && !demands.empty(); ++i) {
    for (const BufferUse& use : uses_of(plan.ops[i])) {
      if (use.access != kernels::Access::read) continue;
      const auto [begin, end] = demands.equal_range(use.buffer);
      for (auto d = begin; d != end;)
        d = d->second.op != i && overlap(d->second.matrices, use) ? demands.erase(d) : std::next(d);
    }
  }
}

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
    const auto [begin, end] = demands_.equal_range(buffer_of(copy.to));
    std::vector<Demand> wanted;  // in the order of their bytes
    const std::int64_t first = offset_of(copy.to), bytes = copy.to.span_bytes();
    for (auto d = begin; d != end; ++d) {
      const Range& r = d->second.matrices.bytes;
      if (first <= r.begin && r.end <= first + bytes && at < d->second.dispatch)
        wanted.push_back(d->second);
    }
    if (wanted.empty()) return;
    std::ranges::sort(wanted, {}, [](const Demand& d) { return d.matrices.bytes.begin; });
    std::int64_t done = 0;
    const auto rest_until = [&](std::int64_t until) {
      if (done < until) insert(at, at, copy, done, until - done, nullptr);
    };
    for (const Demand& d : wanted) {
      const std::int64_t from = d.matrices.bytes.begin - first;
      rest_until(from);
      done = d.matrices.bytes.end - first;
      insert(at, d.dispatch + 1, copy, from, done - from, &d);
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
      op.visit = plan_.ops[demand->dispatch].visit;
      op.micro_batch = plan_.ops[demand->dispatch].micro_batch;
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
  Demands demands = demands_of(plan);
  leave_single(plan, demands);
  if (!demands.empty()) OnDemand(plan, demands).run();
}

}  // namespace tessera::plan
