#include "plan/passes/offload.hpp"

#include <algorithm>
#include <limits>
#include <map>

#include "plan/passes/buffers.hpp"

namespace tessera::plan {
namespace {

using kernels::Access;

/// A run of uses of a buffer between which it stays on the device.
struct Stay {
  std::size_t first_op = 0, last_op = 0;
  std::int32_t first_visit = 0, last_visit = 0;
  std::int32_t unit = -1, micro_batch = -1;  // of the first use
  bool writes = false;
  BufferId buffer = -1;  // on the device, meanwhile
};

/// A buffer of saved activations.
struct Saved {
  std::vector<Stay> stays;
  Range read{std::numeric_limits<std::int64_t>::max(), 0};  // bytes that later stays read
};

/// Messages too: what a stage has received is what its first layer saves.
bool may_leave(const Buffer& b) {
  const bool saved =
      b.purpose == BufferPurpose::activations || b.purpose == BufferPurpose::messages;
  return saved && !b.persistent && b.location == Location::device;
}

std::vector<Saved> stays_of(const Plan& plan, std::int64_t ahead) {
  std::vector<Saved> all(plan.buffers.size());
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    for (const BufferUse& use : uses_of(op)) {
      if (!may_leave(plan.buffer(use.buffer))) continue;
      auto& [stays, read] = at(all, use.buffer);
      // It would come back before, or as soon as, it has left.
      if (stays.empty() || op.visit - stays.back().last_visit > ahead + 1) {
        stays.push_back({.first_op = i,
                         .first_visit = op.visit,
                         .unit = op.unit,
                         .micro_batch = op.micro_batch,
                         .buffer = use.buffer});
      }
      Stay& stay = stays.back();
      stay.last_op = i;
      stay.last_visit = op.visit;
      stay.writes = stay.writes || use.access != Access::read;
      if (stays.size() > 1 && use.access != Access::write) {
        read.begin = std::min(read.begin, use.bytes.begin);
        read.end = std::max(read.end, use.bytes.end);
      }
    }
  }
  return all;
}

/// Lets ops use the buffer of the stay that they are in.
void use_buffers_of_stays(Plan& plan, const std::vector<Saved>& all) {
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    each_view(plan.ops[i].call, [&](View& view, Access) {
      const auto id = static_cast<std::size_t>(buffer_of(view));
      if (id >= all.size() || all[id].stays.size() < 2) return;
      const auto stay =
          std::ranges::find_if(all[id].stays, [&](const Stay& s) { return i <= s.last_op; });
      view.data = symbolic(stay->buffer, offset_of(view));
    });
  }
}

Op copy_op(OpKind kind, Stream stream, const Stay& stay, std::int32_t visit, const View& from,
           const View& to) {
  return {.kind = kind,
          .stream = stream,
          .unit = stay.unit,
          .micro_batch = stay.micro_batch,
          .visit = visit,
          .call = Copy{from, to},
          .waits = {}};
}

}  // namespace

void offload_activations(Plan& plan, const PlanInputs& in) {
  if (in.offload.activations == Location::device) return;
  std::vector<Saved> all = stays_of(plan, in.offload.ahead);
  std::map<std::int32_t, std::size_t> visit_start;  // the first op of each visit
  for (std::size_t i = 0; i < plan.ops.size(); ++i) visit_start.try_emplace(plan.ops[i].visit, i);
  Insertions insertions;
  std::vector<std::pair<std::size_t, Op>> fetches;  // by the op that first reads what comes back
  for (Saved& saved : all) {
    if (saved.stays.size() < 2 || saved.read.empty()) continue;
    const Buffer on_device = plan.buffer(saved.stays[0].buffer);
    const auto bytes = [&](BufferId id) {
      return buffer_view(id, DType::u8, on_device.bytes)
          .range(saved.read.begin, saved.read.count());
    };
    Buffer elsewhere = on_device;
    elsewhere.location = in.offload.activations;
    const BufferId home = add_buffer(plan, elsewhere);
    for (std::size_t s = 0; s < saved.stays.size(); ++s) {
      Stay& stay = saved.stays[s];
      if (s > 0) {
        stay.buffer = add_buffer(plan, on_device);
        const auto visit = static_cast<std::int32_t>(stay.first_visit - in.offload.ahead);
        fetches.emplace_back(stay.first_op, copy_op(OpKind::fetch, Stream::read, stay, visit,
                                                    bytes(home), bytes(stay.buffer)));
      }
      if (s + 1 < saved.stays.size() && (s == 0 || stay.writes)) {
        insertions.before(stay.last_op + 1,
                          copy_op(OpKind::evict, Stream::write, stay, stay.last_visit,
                                  bytes(stay.buffer), bytes(home)));
      }
    }
  }
  std::ranges::stable_sort(fetches, {}, [](const auto& f) { return f.first; });
  for (auto& [first_op, fetch] : fetches) {
    const std::size_t at = visit_start.lower_bound(fetch.visit)->second;
    insertions.before(at, std::move(fetch));
  }
  use_buffers_of_stays(plan, all);
  insertions.apply(plan.ops);
}

}  // namespace tessera::plan
