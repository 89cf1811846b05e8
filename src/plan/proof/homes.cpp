#include "plan/proof/homes.hpp"

#include "core/range_map.hpp"
#include "plan/proof/reject.hpp"

namespace tessera::plan {

using kernels::Access;

Homes::Homes(const Plan& plan) : plan_(plan) {
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Copy* copy = copy_of(i, OpKind::fetch);
    if (copy != nullptr) set_home(i, copy->to, copy->from);
  }
  for (std::size_t i = plan.ops.size(); i-- > 0;) {
    const Copy* copy = copy_of(i, OpKind::evict);
    if (copy != nullptr) set_home(i, copy->from, copy->to);
  }
}

BufferUse Homes::home_of(BufferUse use) const {
  const auto it = homes_.find(use.buffer);
  if (it == homes_.end()) return use;
  const auto [home, distance] = it->second;
  return {home, {use.bytes.begin + distance, use.bytes.end + distance}, use.access};
}

void Homes::check_versions() const {
  if (homes_.empty()) return;
  using Versions = RangeMap<std::int64_t>;
  std::vector<Versions> newest(plan_.buffers.size()), held(plan_.buffers.size());
  const auto is_newest = [&](const BufferUse& use) {
    const BufferUse home = home_of(use);
    const std::int64_t distance = home.bytes.begin - use.bytes.begin;
    bool all = true;
    at(newest, home.buffer).each(home.bytes, [&](Range range, std::int64_t version) {
      at(held, use.buffer)
          .each({range.begin - distance, range.end - distance},
                [&](std::int64_t v) { all = all && v == version; });
    });
    return all;
  };
  for (std::size_t i = 0; i < plan_.ops.size(); ++i) {
    const Op& op = plan_.ops[i];
    const bool moves = op.kind == OpKind::fetch || op.kind == OpKind::evict;
    for (const BufferUse& use : uses_of(op)) {
      if (use.access != Access::write && !is_newest(use)) {
        reject(plan_, i,
               fmt::format("reads {}, of which there is a newer version",
                           plan_.buffer(use.buffer).name));
      }
    }
    for (const BufferUse& use : uses_of(op)) {
      if (use.access == Access::read) continue;
      const BufferUse home = home_of(use);
      const std::int64_t distance = home.bytes.begin - use.bytes.begin;
      if (!moves) at(newest, home.buffer).assign(home.bytes, static_cast<std::int64_t>(i) + 1);
      at(newest, home.buffer).each(home.bytes, [&](Range range, std::int64_t version) {
        at(held, use.buffer).assign({range.begin - distance, range.end - distance}, version);
      });
    }
  }
  for (std::size_t b = 0; b < plan_.buffers.size(); ++b) {
    const Buffer& buffer = plan_.buffers[b];
    if (buffer.persistent &&
        !is_newest({static_cast<BufferId>(b), {0, buffer.bytes}, Access::read})) {
      throw InternalError(
          fmt::format("broken plan: {} is changed, but never where it lives", buffer.name));
    }
  }
}

const Copy* Homes::copy_of(std::size_t at, OpKind kind) const {
  const Op& op = plan_.ops[at];
  if (op.kind != kind) return nullptr;
  const auto* copy = std::get_if<Copy>(&op.call);
  if (copy == nullptr || copy->from.span_bytes() != copy->to.span_bytes())
    reject(plan_, at, "is no copy of bytes");
  return copy;
}

void Homes::set_home(std::size_t at, const View& stand_in, const View& towards) {
  const BufferUse home = home_of(towards);
  const Home found{home.buffer, home.bytes.begin - offset_of(stand_in)};
  const BufferId id = buffer_of(stand_in);
  if (id == home.buffer || homes_.try_emplace(id, found).first->second != found)
    reject(plan_, at, fmt::format("{} belongs elsewhere", plan_.buffer(id).name));
}

}  // namespace tessera::plan
