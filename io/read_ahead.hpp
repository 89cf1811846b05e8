// A thread that makes items a little ahead of the thread that uses them: the disk works while
// earlier items are checked and put in their place.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "core/thread.hpp"

namespace tessera::io {

/// Items are used again, with the buffers they hold: at most kItems exist.
template <typename Item>
class ReadAhead {
 public:
  /// `make` fills in the next item, or says that there is none by false. It runs on the thread.
  explicit ReadAhead(std::function<bool(Item&)> make) : make_(std::move(make)) {
    thread_ = start_thread("read", [this] { run(); });
  }
  ~ReadAhead() {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    changed_.notify_all();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The next item, good until the next call; nullptr after the last. What `make` threw comes here,
  /// in its turn.
  Item* next() {
    std::unique_lock lock(mutex_);
    used_ = given_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return made_ > given_ || ended_; });
    if (made_ > given_) return &items_[given_++ % kItems];
    if (error_) std::rethrow_exception(error_);
    return nullptr;
  }

 private:
  // So many that neither thread waits for the other's next turn on a busy core.
  static constexpr std::uint64_t kItems = 12;

  bool make_next() {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return made_ - used_ < kItems || given_up_; });
      if (given_up_) return false;
    }
    const bool more = make_(items_[made_ % kItems]);  // made_ changes on this thread alone
    if (!more) return false;
    const std::lock_guard lock(mutex_);
    ++made_;
    changed_.notify_all();
    return true;
  }

  void run() {
    std::exception_ptr error;
    try {
      while (make_next()) continue;
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    error_ = error;
    ended_ = true;
    changed_.notify_all();
  }

  std::function<bool(Item&)> make_;
  std::array<Item, kItems> items_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t made_ = 0, given_ = 0, used_ = 0;
  bool ended_ = false, given_up_ = false;
  std::exception_ptr error_;
  std::jthread thread_;  // last: it uses the others
};

}  // namespace tessera::io
