#include "emulator.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/fiber.hpp"

constinit thread_local tessera::emulator::Extent threadIdx, blockIdx, blockDim, gridDim;

namespace tessera::emulator {
namespace {

constexpr std::size_t kStackBytes = std::size_t{1} << 20;  // touched only as far as it is used
constexpr int kPattern = 0xff;
constexpr std::size_t kMostThreads = 1024;

struct Thread {
  enum class State : std::uint8_t { ready, at_block_barrier, in_exchange, returned };

  test::Fiber fiber;
  Extent place;
  std::size_t index = 0;  // the same as one number
  State state = State::ready;
  unsigned mask = 0;  // of its exchange
  std::size_t bytes = 0;
  alignas(16) std::byte value[kMostGiven];
  std::byte* all = nullptr;  // where its exchange writes what the lanes give
};

/// xorshift64*: fast, and good enough to shuffle.
struct Draw {
  std::uint64_t state = 0x9e3779b97f4a7c15;
  std::size_t below(std::size_t n) {
    state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
    return static_cast<std::size_t>(((state * 0x2545f4914f6cdd1dU) >> 32) * n >> 32);
  }
};

class Stack {
 public:
  Stack() {
    void* p = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    bytes_ = static_cast<std::byte*>(p);
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  ~Stack() { munmap(bytes_, kStackBytes); }
  std::byte* bytes() const { return bytes_; }

 private:
  std::byte* bytes_;
};

/// One multiprocessor, which runs one block at a time. Fibers stay for the next block.
class Machine {
 public:
  void seed(std::uint64_t value) { draw_.state = value * 2 + 1; }
  void run_grid(const char* name, Extent grid, Extent block, std::size_t shared_bytes,
                const std::function<void()>& kernel);

  int lane() const { return lane_of(*running_); }
  std::byte* shared() { return shared_; }
  void sync_block();
  void exchange(unsigned mask, const void* value, std::size_t bytes, void* all);

 private:
  struct Worker {
    Thread thread;
    Stack stack;
  };
  static void work(void* thread);
  void run_block(const char* name);
  void wait(Thread::State state);
  void choose();
  void leave();
  void make_ready(Thread& thread);
  [[noreturn]] void fail(const char* what);
  static int lane_of(const Thread& t) { return static_cast<int>(t.index % kWarp); }
  Thread& lane(const Thread& of, int i) {
    return workers_[of.index / kWarp * kWarp + static_cast<std::size_t>(i)]->thread;
  }
  std::string waits() const;

  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::uint16_t> ready_;  // indices of threads
  std::size_t threads_ = 0, at_barrier_ = 0, returned_ = 0;
  Thread* running_ = nullptr;
  test::Fiber outside_;
  const std::function<void()>* kernel_ = nullptr;
  std::string wrong_;
  Draw draw_;
  int candidates_ = 1;
  std::array<std::size_t, kMostThreads / kWarp> speed_{};
  alignas(128) std::byte shared_[kSharedBytes];
};

void Machine::work(void* machine) {
  auto& self = *static_cast<Machine*>(machine);
  for (;;) {
    (*self.kernel_)();
    ++self.returned_;
    self.running_->state = Thread::State::returned;
    self.leave();
  }
}

/// Which thread runs next. In half of the blocks any may, which mixes all; in the others one of the
/// fastest warps among several candidates, so that some get far ahead of others.
void Machine::choose() {
  std::size_t best = draw_.below(ready_.size());
  for (int i = 1; i < candidates_; ++i) {
    const std::size_t other = draw_.below(ready_.size());
    if (speed_[ready_[other] / kWarp] > speed_[ready_[best] / kWarp]) best = other;
  }
  std::swap(ready_[best], ready_.back());
  running_ = &workers_[ready_.back()]->thread;
  ready_.pop_back();
  threadIdx = running_->place;
}

/// Switches to any thread that may run, or, if all have returned or none may, out of the block.
void Machine::leave() {
  Thread& from = *running_;
  if (ready_.empty() || !wrong_.empty()) {
    from.fiber.switch_to(outside_);
    return;
  }
  choose();
  if (running_ != &from) from.fiber.switch_to(running_->fiber);
}

void Machine::wait(Thread::State state) {
  running_->state = state;
  leave();
}

void Machine::make_ready(Thread& thread) {
  thread.state = Thread::State::ready;
  ready_.push_back(static_cast<std::uint16_t>(thread.index));
}

/// Reports an error of the running thread; the block is given up. This fiber is never resumed, so
/// nothing on its stack may own memory when it is left.
void Machine::fail(const char* what) {
  const Extent& t = running_->place;
  wrong_ = "thread (" + std::to_string(t.x) + ", " + std::to_string(t.y) + ", " +
           std::to_string(t.z) + "): " + what;
  running_->fiber.switch_to(outside_);
  std::abort();  // nobody comes back
}

void Machine::sync_block() {
  if (++at_barrier_ < threads_) {
    wait(Thread::State::at_block_barrier);
    return;
  }
  at_barrier_ = 0;
  for (std::size_t i = 0; i < threads_; ++i) make_ready(workers_[i]->thread);
  leave();
}

void Machine::exchange(unsigned mask, const void* value, std::size_t bytes, void* all) {
  Thread& self = *running_;
  if ((mask >> lane_of(self) & 1U) == 0) fail("a warp operation without its own lane");
  std::memcpy(self.value, value, bytes);
  self.mask = mask, self.bytes = bytes, self.all = static_cast<std::byte*>(all);
  bool complete = true;
  for (int i = 0; i < kWarp && complete; ++i) {
    if ((mask >> i & 1U) == 0 || i == lane_of(self)) continue;
    if (self.index / kWarp * kWarp + static_cast<std::size_t>(i) >= threads_)
      fail("a warp operation with lanes that the block does not have");
    const Thread& other = lane(self, i);
    complete = other.state == Thread::State::in_exchange && other.mask == mask;
    if (complete && other.bytes != bytes) fail("lanes of a warp meet in different operations");
  }
  if (complete) {
    for (std::size_t i = 0; i < kWarp; ++i) {
      if ((mask >> i & 1U) != 0) {
        std::memcpy(self.all + i * bytes, lane(self, static_cast<int>(i)).value, bytes);
      } else {
        std::memset(self.all + i * bytes, kPattern, bytes);
      }
    }
    for (int i = 0; i < kWarp; ++i) {
      if ((mask >> i & 1U) == 0) continue;
      Thread& other = lane(self, i);
      if (&other != &self) std::memcpy(other.all, self.all, kWarp * bytes);
      make_ready(other);
    }
    leave();
  } else {
    wait(Thread::State::in_exchange);
  }
}

std::string Machine::waits() const {
  std::size_t exchanging = 0;
  for (std::size_t i = 0; i < threads_; ++i) {
    exchanging += workers_[i]->thread.state == Thread::State::in_exchange ? 1 : 0;
  }
  return "of " + std::to_string(threads_) + " threads " + std::to_string(returned_) +
         " have returned, " + std::to_string(at_barrier_) + " wait at a barrier of the block, " +
         std::to_string(exchanging) + " for lanes of their warp";
}

void Machine::run_block(const char* name) {
  at_barrier_ = returned_ = 0;
  ready_.clear();
  candidates_ = draw_.below(2) == 0 ? 1 : 16;
  for (auto& speed : speed_) speed = draw_.below(1000);
  for (std::size_t i = 0; i < threads_; ++i) {
    Thread& t = workers_[i]->thread;
    t.index = i;
    const auto n = static_cast<unsigned>(i);
    t.place = {n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y};
    make_ready(t);
  }
  choose();
  outside_.switch_to(running_->fiber);
  if (wrong_.empty() && returned_ == threads_) return;
  const std::string what = wrong_.empty() ? "can never go on: " + waits() : wrong_;
  wrong_.clear();
  workers_.clear();  // they stand in the middle of the kernel
  throw std::runtime_error(std::string(name) + ", block (" + std::to_string(blockIdx.x) + ", " +
                           std::to_string(blockIdx.y) + ", " + std::to_string(blockIdx.z) +
                           "): " + what);
}

void Machine::run_grid(const char* name, Extent grid, Extent block, std::size_t shared_bytes,
                       const std::function<void()>& kernel) {
  kernel_ = &kernel;
  threads_ = block.count();
  gridDim = grid, blockDim = block;
  while (workers_.size() < threads_) {
    workers_.push_back(std::make_unique<Worker>());
    Worker& w = *workers_.back();
    w.thread.fiber.prepare(&Machine::work, this, w.stack.bytes(), kStackBytes);
  }
  std::vector<std::size_t> order(grid.count());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw_.below(i)]);
  for (std::size_t i : order) {
    std::memset(shared_, kPattern, shared_bytes);
    blockIdx = {static_cast<unsigned>(i % grid.x), static_cast<unsigned>(i / grid.x % grid.y),
                static_cast<unsigned>(i / grid.x / grid.y)};
    run_block(name);
  }
}

Machine& machine() {
  thread_local const auto one = std::make_unique<Machine>();
  return *one;
}

}  // namespace

int lane() { return machine().lane(); }
void set_seed(std::uint64_t seed) { machine().seed(seed); }
void sync_block() { machine().sync_block(); }
std::byte* dynamic_shared() { return machine().shared(); }

void exchange_bytes(unsigned mask, const void* value, std::size_t bytes, void* all) {
  machine().exchange(mask, value, bytes, all);
}

void run_grid(const char* name, Extent grid, Extent block, std::size_t shared_bytes,
              const std::function<void()>& kernel) {
  if (grid.count() == 0 || grid.y > 65535 || grid.z > 65535 || block.count() == 0 ||
      block.count() > kMostThreads || shared_bytes > kSharedBytes) {
    throw std::runtime_error(std::string(name) + ": no GPU could launch this grid");
  }
  machine().run_grid(name, grid, block, shared_bytes, kernel);
}

}  // namespace tessera::emulator
