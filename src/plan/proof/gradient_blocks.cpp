#include "plan/proof/gradient_blocks.hpp"

#include "plan/proof/reject.hpp"

namespace tessera::plan {

Range chunk_of(const Plan& plan, std::size_t at, const View& v, std::int64_t size, std::int64_t n) {
  const std::int64_t first = offset_of(v) / size_of(v.type);
  if (v.rows() != size || (size > 1 && v.ld != n) || offset_of(v) % size_of(v.type) != 0 ||
      first + v.cols() > n)
    reject(plan, at, "chunks that are not of shards");
  return {first, first + v.cols()};
}

Range GradientBlocks::set_out(std::size_t at, const kernels::Quantize& call) {
  const std::int64_t outer = call.x.extent(0), inner = call.x.extent(1);
  Slots slots{.format = call.format,
              .elements = call.x.cols(),
              .chunk = chunk_of(plan_, at, call.x, outer * inner,
                                tessera::at(plan_.shares, plan_.ops[at].unit).shard),
              .of = {own(at)}};
  if (outer * inner != group(at).size) reject(plan_, at, "slots that do not divide over the ranks");
  const Range chunk = slots.chunk;
  for (std::int64_t b = 0; b < inner; ++b) {
    for (std::int64_t a = 0; a < outer; ++a) slots.owners.push_back(a * inner + b);
  }
  put(at, call.code, std::move(slots));
  return chunk;
}

void GradientBlocks::exchange(std::size_t at, const comm::AllToAll& call) {
  Slots slots = take(at, call.send);
  const RankGroup& ranks = call.ranks;
  const std::int64_t own = this->own(at), place = ranks.index(own),
                     part = std::ssize(slots.owners) / ranks.count;
  if (slots.parts != 1 || part * ranks.count != std::ssize(slots.owners) ||
      call.send.rows() != ranks.count || call.receive.rows() != ranks.count ||
      call.send.cols() != part * slots.format.bytes(slots.elements) ||
      call.receive.cols() != call.send.cols()) {
    reject(plan_, at, "slots that do not divide over the ranks");
  }
  if (place < 0 || place >= ranks.count || ranks.rank(place) != own)
    reject(plan_, at, "an exchange of others");
  slots.owners = {slots.owners.begin() + place * part, slots.owners.begin() + (place + 1) * part};
  slots.of = shifted(at, slots.of, ranks);
  slots.parts = ranks.count;
  put(at, call.receive, std::move(slots));
}

bool GradientBlocks::reduce(std::size_t at, const comm::ReduceScatter& call, std::int64_t size) {
  const RankGroup ranks = ranks_of(call.among, group(at));
  const std::int64_t own = this->own(at), place = ranks.index(own);
  Slots slots{.of = {own}};
  if (held_.contains(buffer_of(call.full))) {
    slots = take(at, call.full);
    if (call.full.type != DType::f32) reject(plan_, at, "rounds sums of nodes");
  } else {
    slots.elements = call.full.elements() / size;
    for (std::int64_t r = 0; r < size; ++r) slots.owners.push_back(r);
  }
  const std::int64_t count = std::ssize(slots.owners), part = count / call.blocks / ranks.count;
  if (slots.format != kernels::BlockFormat{} || part * call.blocks * ranks.count != count ||
      call.full.elements() != count * slots.elements ||
      call.shard.elements() * ranks.count != call.full.elements())
    reject(plan_, at, "slots that do not divide over the ranks");
  if (place < 0 || place >= ranks.count || ranks.rank(place) != own)
    reject(plan_, at, "a sum of others");
  std::vector<std::int64_t> owners;
  for (std::int64_t b = 0; b < call.blocks; ++b) {
    for (std::int64_t i = 0; i < part; ++i)
      owners.push_back(tessera::at(slots.owners, (b * ranks.count + place) * part + i));
  }
  slots.owners = std::move(owners);
  slots.of = shifted(at, slots.of, ranks);
  if (std::ssize(slots.owners) > 1) {
    if (call.write != kernels::Write::overwrite) reject(plan_, at, "adds sums of nodes twice");
    put(at, call.shard, std::move(slots));
    return false;
  }
  if (slots.owners[0] != own || std::ssize(slots.of) != size || *slots.of.begin() != 0 ||
      *slots.of.rbegin() != size - 1)
    reject(plan_, at, "not all ranks' contributions to the own slice");
  return true;
}

void GradientBlocks::add(std::size_t at, const kernels::RequantizeSum& call) {
  Slots slots = added(at, call.code, call.format);
  if (call.elements != slots.elements) reject(plan_, at, "slots of another size");
  put(at, call.sum, std::move(slots));
}

Range GradientBlocks::arrive(std::size_t at, const kernels::SumQuantized& call) {
  const Slots slots = added(at, call.code, call.format);
  const std::int64_t size = group(at).size;
  if (slots.elements != call.out.elements() || std::ssize(slots.of) != size ||
      *slots.of.begin() != 0 || *slots.of.rbegin() != size - 1 ||
      slots.owners != std::vector{own(at)}) {
    reject(plan_, at, "not all ranks' contributions to the own slice");
  }
  return slots.chunk;
}

void GradientBlocks::end() const {
  if (!held_.empty()) throw InternalError("broken plan: blocks of gradients are never added");
}

/// The contributions that all of these ranks have, which differ by the distances between them.
std::set<std::int64_t> GradientBlocks::shifted(std::size_t at, const std::set<std::int64_t>& of,
                                               const RankGroup& ranks) const {
  std::set<std::int64_t> all;
  for (std::int64_t p = 0; p < ranks.count; ++p) {
    for (const std::int64_t r : of) {
      if (!all.insert(r + ranks.rank(p) - own(at)).second)
        reject(plan_, at, "adds a contribution twice");
    }
  }
  return all;
}

GradientBlocks::Slots GradientBlocks::take(std::size_t at, const View& v) {
  const auto it = held_.find(buffer_of(v));
  if (it == held_.end() || it->second.where != v.data)
    reject(plan_, at, "reads blocks that nobody made");
  Slots slots = std::move(it->second);
  held_.erase(it);
  return slots;
}

void GradientBlocks::put(std::size_t at, const View& v, Slots slots) {
  slots.where = v.data;
  if (!held_.emplace(buffer_of(v), std::move(slots)).second)
    reject(plan_, at, "overwrites blocks that nobody added");
}

GradientBlocks::Slots GradientBlocks::added(std::size_t at, const View& code,
                                            const kernels::BlockFormat& format) {
  Slots slots = take(at, code);
  if (code.extent(0) != slots.parts || code.extent(1) != std::ssize(slots.owners) ||
      format != slots.format) {
    reject(plan_, at, "adds other blocks than arrived");
  }
  slots.parts = 1;
  return slots;
}

}  // namespace tessera::plan
