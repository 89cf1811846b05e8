// Activation recomputation (Chen et al. 2016; selective: Korthikanti et al. 2022) on recordings.
#include <algorithm>
#include <map>
#include <set>

#include "plan/passes/record.hpp"

namespace tessera::plan {
namespace {

using kernels::Access;

const LocalBuffer& made(const Recording& recording, BufferId id) {
  return at(recording.made, id - recording.first_made);
}

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

/// What forward makes and the policy does not keep.
std::set<BufferId> dropped_tensors(const Recording& recording, Recompute policy) {
  std::set<BufferId> dropped;
  for (const auto& [call, group] : recording.forward) {
    each_view(call, [&](const View& v, Access a) {
      const BufferId id = buffer_of(v);
      if (a == Access::read || id < recording.first_made) return;
      if (!keeps(policy, made(recording, id).keep)) dropped.insert(id);
    });
  }
  return dropped;
}

/// The operations of forward, in their order, that make again those of `dropped` that backward
/// reads.
std::vector<Recorded> replay_of(const Recording& recording, const std::set<BufferId>& dropped) {
  std::set<BufferId> needed;
  const auto need = [&](const View& v) {
    if (const BufferId id = buffer_of(v); dropped.contains(id)) needed.insert(id);
  };
  for (const auto& [call, group] : recording.backward)
    each_view(call, [&](const View& v, Access) { need(v); });
  // Going back through forward, every operation that leads to them.
  std::vector<Recorded> replay;
  for (auto made = recording.forward.rbegin(); made != recording.forward.rend(); ++made) {
    bool makes = false;
    each_view(made->call, [&](const View& v, Access a) {
      makes = makes || (a != Access::read && needed.contains(buffer_of(v)));
    });
    if (!makes) continue;
    replay.push_back({.call = replayed(made->call, needed), .group = made->group});
    each_view(replay.back().call, [&](const View& v, Access a) {
      if (a != Access::write) need(v);
    });
  }
  std::reverse(replay.begin(), replay.end());
  return replay;
}

/// What a buffer is called instead.
using Names = std::map<BufferId, BufferId>;

/// Buffers of its own for what the replay writes.
Names fresh_buffers(Recording& recording, const std::vector<Recorded>& replay) {
  Names fresh;
  for (const auto& [call, group] : replay) {
    each_view(call, [&](const View& v, Access a) {
      const BufferId id = buffer_of(v);
      if (a == Access::read || fresh.contains(id)) return;
      fresh[id] = recording.make({model::Keep::transient, made(recording, id).bytes});
    });
  }
  return fresh;
}

void rename(std::vector<Recorded>& calls, const Names& names) {
  for (auto& [call, group] : calls) {
    each_view(call, [&](View& v, Access) {
      if (const auto it = names.find(buffer_of(v)); it != names.end())
        v.data = symbolic(it->second, offset_of(v));
    });
  }
}

}  // namespace

void recompute(Recording& recording, Recompute policy) {
  if (policy == Recompute::none) return;
  const std::set<BufferId> dropped = dropped_tensors(recording, policy);
  std::vector<Recorded> replay = replay_of(recording, dropped);
  Names fresh = fresh_buffers(recording, replay);
  rename(replay, fresh);
  // Backward reads from the replay what was dropped, and what was kept from where it is.
  std::erase_if(fresh, [&](const auto& names) { return !dropped.contains(names.first); });
  rename(recording.backward, fresh);
  recording.backward.insert(recording.backward.begin(), replay.begin(), replay.end());
  recording.replayed = replay.size();
}

}  // namespace tessera::plan
