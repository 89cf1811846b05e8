#include "comm/loopback.hpp"

#include <cstring>

#include "core/error.hpp"

namespace tessera::comm {

class Loopback::End : public Transport {
 public:
  End(Loopback& of, int rank) : of_(of), rank_(rank) {}

  Request send(int peer, const std::byte* from, std::int64_t bytes) override {
    const std::lock_guard lock(of_.mutex_);
    const Message message{rank_, peer, of_.sent_[{rank_, peer}]++};
    return add(of_.slots_[message].send, {.message = message, .from = from, .bytes = bytes});
  }
  Request receive(int peer, std::byte* to, std::int64_t bytes) override {
    const std::lock_guard lock(of_.mutex_);
    const Message message{peer, rank_, of_.awaited_[{peer, rank_}]++};
    return add(of_.slots_[message].receive, {.message = message, .to = to, .bytes = bytes});
  }
  bool test(Request& request) override {
    const std::lock_guard lock(of_.mutex_);
    const Half half = of_.halves_.at(request.handle);
    if (!half.complete) return false;
    of_.halves_.erase(request.handle);
    if (half.to != nullptr && half.came != half.bytes) {
      throw CommError(fmt::format("message {} from rank {} has {} bytes, {} were expected",
                                  half.message.number, half.message.sender, half.came, half.bytes));
    }
    return true;
  }
  void cancel(Request& request) override {
    const std::lock_guard lock(of_.mutex_);
    const auto half = of_.halves_.find(request.handle);
    if (half == of_.halves_.end()) return;
    if (const auto slot = of_.slots_.find(half->second.message); slot != of_.slots_.end()) {
      auto& [send, receive, taken, bytes] = slot->second;
      (send == &half->second ? send : receive) = nullptr;
      if (send == nullptr && receive == nullptr && !taken) of_.slots_.erase(slot);
    }
    of_.halves_.erase(half);
  }

 private:
  Request add(Half*& place, const Half& half) {
    place = &(of_.halves_[++of_.last_handle_] = half);
    return {of_.last_handle_};
  }

  Loopback& of_;
  int rank_;
};

std::unique_ptr<Transport> Loopback::transport(int rank) {
  return std::make_unique<End>(*this, rank);
}

bool Loopback::may_be_taken(const Slot& slot) const {
  return slot.send != nullptr && !slot.taken &&
         (sends_ == Sends::buffered || slot.receive != nullptr);
}

std::vector<Loopback::UnderWay> Loopback::under_way() const {
  const std::lock_guard lock(mutex_);
  std::vector<UnderWay> all;
  for (const auto& [message, slot] : slots_) {
    all.push_back({.message = message,
                   .sent = slot.send != nullptr || slot.taken,
                   .taken = slot.taken,
                   .awaited = slot.receive != nullptr,
                   .may_be_taken = may_be_taken(slot),
                   .may_be_delivered = may_be_delivered(slot)});
  }
  return all;
}

void Loopback::take(const Message& message) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_.at(message);
  TESSERA_CHECK(may_be_taken(slot), "message {} of {} to {} cannot be taken", message.number,
                message.sender, message.receiver);
  slot.bytes.assign(slot.send->from, slot.send->from + slot.send->bytes);
  slot.taken = slot.send->complete = true;
  slot.send = nullptr;
}

void Loopback::deliver(const Message& message) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_.at(message);
  TESSERA_CHECK(may_be_delivered(slot), "message {} of {} to {} cannot be delivered",
                message.number, message.sender, message.receiver);
  Half& to = *slot.receive;
  to.came = static_cast<std::int64_t>(slot.bytes.size());
  if (to.came == to.bytes) std::memcpy(to.to, slot.bytes.data(), slot.bytes.size());
  to.complete = true;
  slots_.erase(message);
}

}  // namespace tessera::comm
