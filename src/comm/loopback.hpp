// A transport between ranks of one process: a message moves only when a test says so, one at a
// time, in any order that a network might choose. So tests can try orders, and lose messages.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/transport.hpp"

namespace tessera::comm {

/// When a send is complete. With MPI both happen, depending on size and chance.
enum class Sends : std::uint8_t {
  buffered,    // once its bytes are taken, whether or not the receiver is there
  synchronous  // not before the receiver is there
};

/// The messages under way in one group. Any thread may call; must outlive its transports.
class Loopback {
 public:
  explicit Loopback(Sends sends = Sends::buffered) : sends_(sends) {}
  Loopback(const Loopback&) = delete;
  Loopback& operator=(const Loopback&) = delete;

  std::unique_ptr<Transport> transport(int rank);

  /// The `number`-th message (from 0) that `sender` sends to `receiver`.
  struct Message {
    int sender = 0, receiver = 0;
    std::int64_t number = 0;
    auto operator<=>(const Message&) const = default;
  };
  /// What is under way, in the order of Message.
  struct UnderWay {
    Message message;
    bool sent = false, taken = false, awaited = false;
    bool may_be_taken = false, may_be_delivered = false;
  };
  std::vector<UnderWay> under_way() const;
  /// Copies a message's bytes out of the sender's memory, which completes the send.
  void take(const Message& message);
  /// Copies a message that was taken into the receiver's memory, which completes the receive, with
  /// a CommError if it expects another number of bytes.
  void deliver(const Message& message);

 private:
  class End;
  struct Half {  // a request: one end of a message
    Message message;
    const std::byte* from = nullptr;  // of a send
    std::byte* to = nullptr;          // of a receive
    std::int64_t bytes = 0;
    bool complete = false;
    std::int64_t came = 0;  // bytes of the message, for a complete receive
  };
  struct Slot {
    Half* send = nullptr;
    Half* receive = nullptr;
    bool taken = false;
    std::vector<std::byte> bytes;  // once taken
  };
  bool may_be_taken(const Slot& slot) const;
  static bool may_be_delivered(const Slot& slot) { return slot.taken && slot.receive != nullptr; }

  Sends sends_;
  mutable std::mutex mutex_;
  std::map<Message, Slot> slots_;
  std::map<std::uintptr_t, Half> halves_;  // by a request's handle
  std::uintptr_t last_handle_ = 0;
  std::map<std::pair<int, int>, std::int64_t> sent_, awaited_;  // by sender and receiver
};

}  // namespace tessera::comm
