#include "plan/proof/gathers.hpp"

#include "plan/proof/gradient_blocks.hpp"

namespace tessera::plan {

using kernels::Access;

void GatherCheck::run() {
  for (at_ = 0; at_ < plan_.ops.size(); ++at_) {
    const Op& op = plan_.ops[at_];
    check_arrived(op);
    check_kept(op);
    const bool momentum = op.kind == OpKind::momentum,
               gathers = op.kind == OpKind::gather || op.kind == OpKind::publish ||
                         op.kind == OpKind::gather_gradients || momentum;
    const auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
    const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
    const auto* own = gathers && kernel ? std::get_if<kernels::Quantize>(kernel) : nullptr;
    const auto* all = gathers && kernel ? std::get_if<kernels::SumQuantized>(kernel) : nullptr;
    const auto* gather = gathers && call ? std::get_if<comm::AllGather>(call) : nullptr;
    if (own != nullptr) {
      put(op, own->code,
          {.format = own->format,
           .chunk = momentum ? Range{0, own->x.elements()} : chunk_of_own_shard(op, own->x),
           .owners = {plan_.rank_in(op.group)}});
    } else if (gather != nullptr) {
      follow(op, *gather);
    } else {
      if (all != nullptr) arrive(op, *all);
      forget_written(op);
    }
  }
  arriving_.end();
  for (std::size_t u = 0; u < plan_.shares.size(); ++u) check_left(static_cast<std::int32_t>(u));
  for (const auto& [buffer, all] : held_) {
    for (const Shards& shards : all) {
      if (!shards.used) throw InternalError("broken plan: gathered shards are never used");
    }
  }
}

/// A pass leaves what the next one finds of a unit.
void GatherCheck::check_left(std::int32_t unit) const {
  const BufferId of_node = at(plan_.shares, unit).of_node;
  if (of_node < 0 || plan_.shape.purpose != PlanPurpose::generate) return;
  const auto held = held_.find(of_node);
  if (held != held_.end() && held->second.size() == 1) {
    const Shards& left = held->second.front();
    const auto kept = kept_of_node(unit, left.where);
    if (kept && kept->owners == left.owners) return;
  }
  throw InternalError(
      fmt::format("broken plan: {} is not what nodes keep of it", plan_.buffer(of_node).name));
}

/// What passes find from those before is changed by those alone that renew it.
void GatherCheck::check_kept(const Op& op) const {
  if (plan_.shape.renews || op.unit < 0) return;
  const BufferId of_node = at(plan_.shares, op.unit).of_node;
  if (of_node < 0) return;
  for (const BufferUse& use : uses_of(op)) {
    if (use.access != Access::read && use.buffer == of_node)
      reject(plan_, at_, "changes what nodes keep of parameters");
  }
}

/// Nothing reads what has come in part only.
void GatherCheck::check_arrived(const Op& op) const {
  for (const BufferUse& use : uses_of(op)) {
    if (use.access != Access::write && arriving_.partly(use.buffer))
      reject(plan_, at_, "reads parameters of which not all have come");
  }
}

/// What other ops have written is no shards any more.
void GatherCheck::forget_written(const Op& op) {
  for (const BufferUse& use : uses_of(op)) {
    if (use.access == Access::read) continue;
    const auto it = held_.find(use.buffer);
    if (it == held_.end()) continue;
    std::erase_if(it->second, [&](const Shards& shards) {
      if (intersect(shards.bytes(), use.bytes).empty()) return false;
      if (!shards.used) reject(plan_, at_, "overwrites shards that nobody took");
      return true;
    });
  }
}

/// Which elements these are of the parameters that this rank has for all, where they live.
Range GatherCheck::chunk_of_own_shard(const Op& op, const View& v) const {
  const BufferUse home = homes_.home_of(v);
  const Buffer& buffer = plan_.buffer(home.buffer);
  const std::int64_t size = size_of(v.type), n = at(plan_.shares, op.unit).shard,
                     first = buffer.bytes > n * size ? plan_.rank_in(op.group) * n * size : 0;
  const Range bytes{home.bytes.begin - first, home.bytes.end - first};
  const BufferPurpose purpose =
      op.kind == OpKind::momentum ? BufferPurpose::optimizer : BufferPurpose::parameters;
  if (buffer.purpose != purpose || !buffer.persistent || bytes.begin < 0 ||
      bytes.begin % size != 0 || bytes.end > n * size || bytes.count() != v.elements() * size)
    reject(plan_, at_, "gathers what is not the own shard");
  return {bytes.begin / size, bytes.end / size};
}

/// The shards of a unit that is kept as codes, where these are codes of some and lie where they
/// live.
std::optional<GatherCheck::Shards> GatherCheck::kept_codes(const Op& op, const View& v) const {
  const UnitShare& share = at(plan_.shares, op.unit);
  if (!share.codes) return std::nullopt;
  const BufferUse home = homes_.home_of(v);
  const Buffer& buffer = plan_.buffer(home.buffer);
  const std::int64_t slot = share.codes->bytes(share.slot), shards = share.slot / share.shard,
                     first = buffer.bytes > slot || shards > 1 ? 0 : plan_.rank_in(op.group);
  if (buffer.purpose != BufferPurpose::parameters || !buffer.persistent ||
      home.bytes.begin % slot != 0 || home.bytes.end % slot != 0)
    return std::nullopt;
  Shards kept{.format = share.codes, .chunk = {0, share.slot}, .owners = {}};
  for (std::int64_t shard = home.bytes.begin / slot * shards;
       shard < home.bytes.end / slot * shards; ++shard)
    kept.owners.push_back(first + shard);
  return kept;
}

void GatherCheck::follow(const Op& op, const comm::AllGather& gather) {
  const RankGroup ranks = ranks_of(gather.among, plan_.group(op.group));
  const std::int64_t own = plan_.rank_in(op.group), place = ranks.index(own);
  if (place < 0 || place >= ranks.count || ranks.rank(place) != own)
    reject(plan_, at_, "a gather of others");
  Shards shards{.owners = {own}};
  const bool codes = gather.full.type == DType::u8;
  if (const Shards* held = taken(op, gather.shard); held != nullptr) {
    shards = *held;
  } else if (codes) {
    const auto kept = kept_codes(op, gather.shard);
    if (!kept || kept->owners != shards.owners)
      reject(plan_, at_, "takes blocks of parameters that are not there");
    shards = *kept;
  } else if (op.kind != OpKind::gather_gradients) {
    shards.chunk = chunk_of_own_shard(op, gather.shard);
    if (shards.chunk != Range{0, at(plan_.shares, op.unit).shard})
      reject(plan_, at_, "gathers what is not the own shard");
  }
  if (codes != shards.format.has_value()) reject(plan_, at_, "gathers in another format");
  const std::int64_t part = std::ssize(shards.owners) / gather.blocks;
  if (part * gather.blocks != std::ssize(shards.owners) ||
      gather.full.elements() != gather.shard.elements() * ranks.count)
    reject(plan_, at_, "shards do not make up the whole");
  std::vector<std::int64_t> all;
  for (std::int64_t b = 0; b < gather.blocks; ++b) {
    for (std::int64_t p = 0; p < ranks.count; ++p) {
      for (std::int64_t i = 0; i < part; ++i)
        all.push_back(at(shards.owners, b * part + i) + ranks.rank(p) - own);
    }
  }
  shards.owners = std::move(all);
  const bool done = !codes && whole(op, shards);  // though it may be on its way still
  if (codes || gather.among) {
    put(op, gather.full, std::move(shards), done);
  } else if (!done) {
    reject(plan_, at_, "shards do not make up the whole");
  }
}

/// The chunk's codes of all ranks become elements of the whole. What this rank sends of momentum it
/// decodes too.
void GatherCheck::arrive(const Op& op, const kernels::SumQuantized& all) {
  const Shards* shards = taken(op, all.code);
  const auto kept = shards == nullptr ? kept_codes(op, all.code) : std::nullopt;
  if (kept) shards = &*kept;
  if (op.kind == OpKind::momentum && shards != nullptr && shards->format == all.format &&
      shards->owners == std::vector{plan_.rank_in(op.group)})
    return;
  if (shards == nullptr || shards->format != all.format || !whole(op, *shards))
    reject(plan_, at_, "takes blocks of parameters that are not there");
  const UnitShare& share = at(plan_.shares, op.unit);
  const std::int64_t n = kept ? share.slot : share.shard,
                     count = std::ssize(shards->owners) * share.shard / n;
  if (all.write != kernels::Write::overwrite ||
      chunk_of(plan_, at_, all.out, count, n) != shards->chunk)
    reject(plan_, at_, "puts parameters where others belong");
  arriving_.take(at_, buffer_of(all.out), shards->chunk, n);
}

bool GatherCheck::whole(const Op& op, const Shards& shards) const {
  if (std::ssize(shards.owners) != plan_.group(op.group).size) return false;
  for (std::int64_t r = 0; r < std::ssize(shards.owners); ++r) {
    if (at(shards.owners, r) != r) return false;
  }
  return true;
}

/// What passes of generation keep for a node of a unit's parameters, where these are all bytes of
/// it. The pass that renews them is proved to leave those of these owners.
std::optional<GatherCheck::Shards> GatherCheck::kept_of_node(std::int32_t unit,
                                                             const View& v) const {
  if (plan_.shape.purpose != PlanPurpose::generate || unit < 0) return std::nullopt;
  const UnitShare& share = at(plan_.shares, unit);
  if (share.of_node < 0 || buffer_of(v) != share.of_node || offset_of(v) != 0 ||
      v.span_bytes() != plan_.buffer(share.of_node).bytes)
    return std::nullopt;
  return Shards{.unit = unit,
                .format = share.codes,
                .chunk = {0, share.shard},
                .owners = share.of_node_owners};
}

/// What is held there of this op's unit; nullptr if nothing is held in that buffer. A pass that
/// does not renew what is kept for the node has it of one that did.
const GatherCheck::Shards* GatherCheck::taken(const Op& op, const View& v) {
  if (!plan_.shape.renews && !held_.contains(buffer_of(v))) {
    if (auto kept = kept_of_node(op.unit, v)) put(op, v, std::move(*kept));
  }
  const auto it = held_.find(buffer_of(v));
  if (it == held_.end() || it->second.empty()) return nullptr;
  for (Shards& shards : it->second) {
    if (shards.where.data != v.data || shards.where.span_bytes() != v.span_bytes()) continue;
    if (shards.unit != op.unit) reject(plan_, at_, "gathers shards of another unit");
    shards.used = true;
    return &shards;
  }
  reject(plan_, at_, "gathers other bytes than the shards'");
}

/// The own blocks may lie among those of all ranks, which take their place.
void GatherCheck::put(const Op& op, const View& v, Shards shards, bool used) {
  forget_written(op);
  shards.unit = op.unit;
  shards.used = used;
  shards.where = v;
  held_[buffer_of(v)].push_back(std::move(shards));
}

}  // namespace tessera::plan
