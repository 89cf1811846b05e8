// Gradients that nobody wants: dead code of a recording, as compilers call it.
#include <algorithm>
#include <functional>
#include <set>

#include "plan/passes/record.hpp"

namespace tessera::plan {
namespace {

using kernels::Access;

/// Which buffers of a recording somebody reads, as seen going back through it.
class Wanted {
 public:
  explicit Wanted(const Recording& recording) {
    add(recording.out.resid), add(recording.out.pending), add(recording.d_out);
  }
  /// Whether an operation writes something that is wanted.
  bool needs(const Call& call) const {
    bool any = false;
    each_view(call, [&](const View& v, Access access) {
      any = any || (access != Access::read && buffers_.contains(buffer_of(v)));
    });
    return any;
  }
  void add_reads(const Call& call) {
    each_view(call, [&](const View& v, Access access) {
      if (access != Access::write) add(v);
    });
  }
  void add(const View& v) {
    if (v) buffers_.insert(buffer_of(v));
  }
  void add(BufferId id) { buffers_.insert(id); }

 private:
  std::set<BufferId> buffers_;
};

template <typename Operation>
bool is(const Recorded& recorded) {
  const auto* kernel = std::get_if<kernels::KernelCall>(&recorded.call);
  return kernel != nullptr && std::holds_alternative<Operation>(*kernel);
}

/// Keeps what is wanted, or is a RouteBackward and `routes`.
void keep_wanted(std::vector<Recorded>& calls, Wanted& wanted, bool routes) {
  std::vector<Recorded> kept;
  for (auto call = calls.rbegin(); call != calls.rend(); ++call) {
    if (!wanted.needs(call->call) && !(routes && is<kernels::RouteBackward>(*call))) continue;
    wanted.add_reads(call->call);
    kept.push_back(std::move(*call));
  }
  std::reverse(kept.begin(), kept.end());
  calls = std::move(kept);
}

/// Whether the gradient of what experts have read is wanted. To that the first tensor rank adds
/// what the router makes of the gradient of its logits; and what leads to this is exchanged among
/// all tensor ranks, of which none may leave it out.
bool first_rank_routes(std::vector<Recorded> backward, Wanted wanted) {
  keep_wanted(backward, wanted, false);
  return std::ranges::any_of(backward, is<kernels::CombineRows>);
}

/// What is still written into these gradients goes into buffers of its own, which are cleared first
/// where it is added.
void forget(Recording& recording, std::vector<Recorded>& calls,
            const std::set<BufferId>& gradients) {
  std::vector<Recorded> all;
  for (Recorded& recorded : calls) {
    each_view(recorded.call, [&](View& v, Access access) {
      if (access == Access::read || !gradients.contains(buffer_of(v))) return;
      v.data = symbolic(recording.make({model::Keep::transient, v.span_bytes()}));
      if (access == Access::write) return;
      const View bytes(v.data, DType::u8, {v.span_bytes()});
      all.push_back({.call = kernels::KernelCall{kernels::Fill{.out = bytes}}});
    });
    all.push_back(std::move(recorded));
  }
  calls = std::move(all);
}

}  // namespace

void drop_unwanted(Recording& recording, const RecordKey& key) {
  const bool all_trained = std::ranges::none_of(key.frozen, std::identity());
  if (!key.training || (all_trained && key.carry_gradient)) return;
  if (!key.carry_gradient) recording.d_out = {};
  Wanted wanted(recording);
  for (const Local shown : {Local::losses, Local::choices, Local::statistics})
    wanted.add(static_cast<BufferId>(shown));
  std::set<BufferId> gradients;  // of frozen units
  for (std::size_t i = 0; i < key.frozen.size(); ++i) {
    if (key.frozen[i])
      gradients.insert(local_gradients(i));
    else
      wanted.add(local_gradients(i));
  }
  keep_wanted(recording.backward, wanted, first_rank_routes(recording.backward, wanted));
  keep_wanted(recording.forward, wanted, false);
  forget(recording, recording.backward, gradients);
  forget(recording, recording.forward, gradients);
}

}  // namespace tessera::plan
