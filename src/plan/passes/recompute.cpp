// Activation recomputation (Chen et al. 2016; selective: Korthikanti et al. 2022) on recordings.
#include <algorithm>
#include <map>
#include <set>

#include "plan/passes/record.hpp"

namespace tessera::plan {
namespace {

using kernels::Access;

bool keeps(Recompute policy, model::Keep keep) {
  switch (policy) {
    case Recompute::none: return true;
    case Recompute::selective: return keep <= model::Keep::expensive;
    case Recompute::full: return keep <= model::Keep::input;
  }
  return true;
}

/// How to repeat a call. A fused addition and norm whose sum was kept is repeated as the norm of
/// that sum alone.
Call replayed(const Call& call, const std::set<BufferId>& needed) {
  const auto* kernel = std::get_if<kernels::KernelCall>(&call);
  const auto* norm = kernel == nullptr ? nullptr : std::get_if<kernels::AddNorm>(kernel);
  if (norm == nullptr || !norm->sum || needed.contains(buffer_of(norm->sum))) return call;
  kernels::AddNorm again = *norm;
  again.resid = norm->sum;
  again.pending = again.sum = {};
  again.dropout = {};
  return kernels::KernelCall{again};
}

}  // namespace

void recompute(Recording& recording, Recompute policy) {
  if (policy == Recompute::none) return;
  const auto first_made = static_cast<BufferId>(Local::first_made);
  const auto kept = [&](BufferId id) {
    return id < first_made ||
           keeps(policy, recording.made[static_cast<std::size_t>(id - first_made)].keep);
  };
  std::set<BufferId> written;
  for (const auto& call : recording.forward) {
    each_view(call, [&](const View& v, Access a) {
      if (a != Access::read) written.insert(buffer_of(v));
    });
  }
  // Tensors of forward that backward reads and the policy drops...
  std::set<BufferId> needed;
  for (const auto& call : recording.backward) {
    each_view(call, [&](const View& v, Access) {
      if (const BufferId id = buffer_of(v); written.contains(id) && !kept(id)) needed.insert(id);
    });
  }
  // ...and, going back through forward, every operation that leads to them.
  std::vector<Call> replay;
  for (auto call = recording.forward.rbegin(); call != recording.forward.rend(); ++call) {
    bool makes = false;
    each_view(*call, [&](const View& v, Access a) {
      makes = makes || (a != Access::read && needed.contains(buffer_of(v)));
    });
    if (!makes) continue;
    replay.push_back(replayed(*call, needed));
    each_view(replay.back(), [&](const View& v, Access a) {
      if (const BufferId id = buffer_of(v); a != Access::write && written.contains(id) && !kept(id))
        needed.insert(id);
    });
  }
  std::reverse(replay.begin(), replay.end());
  // What the replay writes gets buffers of its own; backward reads those instead of the dropped
  // ones.
  std::map<BufferId, BufferId> fresh;
  for (auto& call : replay) {
    each_view(call, [&](const View& v, Access a) {
      const BufferId id = buffer_of(v);
      if (a == Access::read || fresh.contains(id)) return;
      recording.made.push_back({model::Keep::transient,
                                recording.made[static_cast<std::size_t>(id - first_made)].bytes});
      fresh[id] = first_made + static_cast<BufferId>(recording.made.size()) - 1;
    });
  }
  const auto rename = [&](std::vector<Call>& calls, bool only_dropped) {
    for (auto& call : calls) {
      each_view(call, [&](View& v, Access) {
        const auto it = fresh.find(buffer_of(v));
        if (it != fresh.end() && !(only_dropped && kept(it->first)))
          v.data = symbolic(it->second, offset_of(v));
      });
    }
  };
  rename(replay, false);
  rename(recording.backward, true);
  recording.backward.insert(recording.backward.begin(), replay.begin(), replay.end());
}

}  // namespace tessera::plan
