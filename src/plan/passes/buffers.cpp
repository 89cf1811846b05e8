#include "plan/passes/buffers.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace tessera::plan {

DeckError too_long(const PlanShape& shape) {
  return DeckError(
      fmt::format("a step of {} micro-batches is too long for one plan: raise batch.micro or use "
                  "more ranks",
                  shape.micro_batches));
}

BufferId add_buffer(Plan& plan, Buffer buffer) {
  if (std::ssize(plan.buffers) >= kMostBuffers) throw too_long(plan.shape);
  const std::int64_t bytes = buffer.bytes;
  plan.buffers.push_back(std::move(buffer));
  const auto id = static_cast<BufferId>(plan.buffers.size()) - 1;
  enlarge_buffer(plan, id, bytes);
  return id;
}

BufferId add_buffer(Plan& plan, std::string name, BufferPurpose purpose, std::int64_t bytes) {
  return add_buffer(plan, {.name = std::move(name), .purpose = purpose, .bytes = bytes});
}

void enlarge_buffer(Plan& plan, BufferId id, std::int64_t bytes) {
  Buffer& b = plan.buffer(id);
  b.bytes = std::max(b.bytes, bytes);
  if (bytes >> kOffsetBits == 0) return;
  throw DeckError(fmt::format(
      "{} has {} bytes, but one buffer at most {}: lower batch.micro or use more tensor ranks",
      b.name, bytes, std::int64_t{1} << kOffsetBits));
}

View Staging::view(Plan& plan, std::int64_t bytes) {
  if (id_ < 0) id_ = add_buffer(plan, name_, purpose_, 0);
  enlarge_buffer(plan, id_, bytes);
  return buffer_view(id_, DType::u8, bytes);
}

View buffer_view(BufferId id, DType type, std::int64_t elements) {
  return View(symbolic(id), type, {elements});
}

Op copy_op(const Plan& plan, Op about, const Copy& copy) {
  const Buffer &from = plan.buffer(buffer_of(copy.from)), &to = plan.buffer(buffer_of(copy.to));
  about.kind = to.location < from.location ? OpKind::fetch : OpKind::evict;
  about.stream = from.location == Location::disk   ? Stream::disk_read
                 : to.location == Location::disk   ? Stream::disk_write
                 : to.location == Location::device ? Stream::read
                                                   : Stream::write;
  about.call = copy;
  return about;
}

void Insertions::apply(std::vector<Op>& ops) {
  std::vector<At*> order;  // an op is hundreds of bytes: sort where they are
  for (At& at : inserted_) order.push_back(&at);
  std::stable_sort(order.begin(), order.end(),
                   [](const At* a, const At* b) { return a->position < b->position; });
  auto from = ops.size();
  ops.resize(from + order.size());
  auto to = ops.size();
  for (auto next = order.rbegin(); next != order.rend(); ++next) {
    while (from > (*next)->position) ops[--to] = std::move(ops[--from]);
    ops[--to] = std::move((*next)->op);
  }
  inserted_.clear();
}

}  // namespace tessera::plan
