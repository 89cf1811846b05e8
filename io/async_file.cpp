#include "io/async_file.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <list>
#include <mutex>
#include <optional>
#include <thread>

#include "core/ending.hpp"
#include "core/error.hpp"
#include "core/math.hpp"
#include "core/thread.hpp"
#include "io/async_queue.hpp"
#include "io/system_calls.hpp"

namespace tessera::io {

namespace fs = std::filesystem;

struct Transfer::State {
  explicit State(std::int64_t bytes) : left(bytes) {}

  /// The first error stays.
  void fail(const std::string& message, ExitCode code) noexcept {
    const std::lock_guard lock(mutex);
    if (failed.exchange(true)) return;
    exit_code = code;
    try {
      error = message;
    } catch (const std::bad_alloc&) {
      error = "out of memory", exit_code = ExitCode::memory;  // short enough to need none
    }
  }
  void finished(std::int64_t bytes) {
    if (left.fetch_sub(bytes) == bytes) left.notify_all();
  }
  void wait() const {
    for (std::int64_t n = left; n > 0; n = left) left.wait(n);
  }

  std::atomic<std::int64_t> left;   // bytes that are neither moved nor given up
  std::atomic<bool> failed{false};  // what has not begun yet is given up
  std::mutex mutex;
  std::string error;  // guarded by mutex, as exit_code
  ExitCode exit_code = ExitCode::io;
};

namespace {

/// How often a request is begun again that the system did not take, or that moved nothing.
constexpr int kMostAttempts = 2000;
constexpr std::chrono::milliseconds kPause{1};

/// "nvme0n1", as far as the system tells, for a file on it.
std::string disk_of(const File& file) {
  struct stat status {};
  if (::fstat(file.descriptor(), &status) != 0) return "unknown";
  const std::string numbers = fmt::format("{}:{}", ::major(status.st_dev), ::minor(status.st_dev));
  std::error_code error;
  const fs::path device = fs::read_symlink("/sys/dev/block/" + numbers, error);
  return error ? numbers : device.filename().string();
}

std::int64_t length_of(const File& file) {
  struct stat status {};
  return ::fstat(file.descriptor(), &status) == 0 ? status.st_size : 0;
}

bool in_sectors(const std::byte* memory, std::int64_t offset) {
  return offset % kSector == 0 && reinterpret_cast<std::uintptr_t>(memory) % kSector == 0;
}

/// What one file has of a transfer: every stripes-th block.
struct Portion {
  std::shared_ptr<Transfer::State> transfer;
  bool write = false;
  std::byte* memory = nullptr;      // of `begin`
  std::int64_t begin = 0, end = 0;  // of the transfer
  std::int64_t block = 0;           // the next one to begin
};

/// A part of a block that is to be moved by one request.
struct Part {
  std::shared_ptr<Transfer::State> transfer;
  bool write = false;
  std::byte* memory = nullptr;
  std::int64_t offset = 0, bytes = 0;  // in the file
  int attempts = 0;                    // since the last that moved something
};

}  // namespace

Transfer::~Transfer() {
  if (!state_) return;
  state_->failed = true;  // nobody wants the rest
  state_->wait();
}

bool Transfer::done() const {
  if (state_->left > 0) return false;
  if (!state_->failed) return true;
  const std::lock_guard lock(state_->mutex);
  if (state_->exit_code == ExitCode::memory) throw MemoryError(state_->error);
  throw IoError(state_->error);
}

void Transfer::wait() const {
  state_->wait();
  done();
}

/// One file, with the thread that begins its requests and takes in what is complete.
class AsyncFile::Stripe {
 public:
  Stripe(const fs::path& path, std::int64_t bytes, const AsyncFileOptions& options,
         std::size_t index)
      : file_(path, OpenMode::create),
        index_(static_cast<std::int64_t>(index)),
        stripes_(std::ssize(options.files)),
        block_(options.block),
        queue_(options.depth, path),
        slots_(static_cast<std::size_t>(options.depth)) {
    file_.allocate(bytes);
    length_ = length_of(file_);
    direct_ = file_.past_page_cache();
    for (std::size_t i = 0; i < slots_.size(); ++i) free_.push_back(i);
    again_.reserve(slots_.size() + 2);
    thread_ = start_thread("disk", [this] { serve(); });
  }
  ~Stripe() {
    stop_ = true;
    queue_.wake();
  }
  Stripe(const Stripe&) = delete;
  Stripe& operator=(const Stripe&) = delete;

  /// Begins what this file has of the transfer of the first of `portions`, which it takes.
  void take_first(std::list<Portion>& portions) noexcept {
    {
      const std::lock_guard lock(mutex_);
      Portion& portion = portions.front();
      portion.block = portion.begin / block_;
      portion.block += (index_ - portion.block % stripes_ + stripes_) % stripes_;
      std::list<Portion>& lane = lanes_[portion.write ? 1 : 0];
      lane.splice(lane.end(), portions, portions.begin());
      drop_if_done(lane, std::prev(lane.end()));
      if (broken_) give_up_lanes();
    }
    queue_.wake();
  }

  const fs::path& path() const { return file_.path(); }
  bool direct() const { return direct_.has_value(); }

 private:
  struct Slot {
    AsyncRequest request;
    Part part;
  };

  void serve() {
    try {
      while (!stop_ || in_flight() > 0) {
        begin_more();
        if (in_flight() == 0 && !again_.empty()) continue;  // nothing would wake it
        for (const AsyncRequest* request : queue_.wait()) finish(*request);
      }
    } catch (...) {
      give_up(current_ending());
    }
  }

  std::size_t in_flight() const { return slots_.size() - free_.size(); }

  /// Fills the queue with requests, as far as the system takes them.
  void begin_more() {
    std::size_t old = again_.size();
    while (!free_.empty()) {
      std::optional<Part> part = old > 0 ? take_again(old) : next();
      if (!part) return;
      bool more = true;
      settle(*std::move(part), [&](Part& p) { more = go_on(p); });
      if (!more) return;
    }
  }

  /// work(part), which may leave something of it. Where it throws, what is left is among those that
  /// give_up() ends.
  template <typename Work>
  void settle(Part part, Work&& work) {
    try {
      work(part);
    } catch (...) {
      again_.push_back(std::move(part));
      throw;
    }
  }

  std::optional<Part> take_again(std::size_t& old) {
    --old;
    if (again_.front().attempts > 0) std::this_thread::sleep_for(kPause);
    Part part = std::move(again_.front());
    again_.erase(again_.begin());
    return part;
  }

  /// The next block of reads and of writes, in turns: neither waits for all of the other.
  std::optional<Part> next() {
    const std::lock_guard lock(mutex_);
    turn_ = 1 - turn_;
    auto& lane = lanes_[lanes_[turn_].empty() ? 1 - turn_ : turn_];
    if (lane.empty()) return std::nullopt;
    return take_part(lane);
  }

  void drop_if_done(std::list<Portion>& lane, std::list<Portion>::iterator portion) const {
    if (portion->block * block_ >= portion->end) lane.erase(portion);
  }

  Part take_part(std::list<Portion>& lane) const {
    Portion& p = lane.front();
    const std::int64_t begin = std::max(p.begin, p.block * block_);
    const std::int64_t end = std::min(p.end, (p.block + 1) * block_);
    Part part{.transfer = p.transfer,
              .write = p.write,
              .memory = p.memory + (begin - p.begin),
              .offset = p.block / stripes_ * block_ + (begin - p.block * block_),
              .bytes = end - begin};
    p.block += stripes_;
    drop_if_done(lane, lane.begin());
    return part;
  }

  /// Moves what is left of a part, or begins to. False where the system takes no more just now. A
  /// write would make a file that was cut as long as before, with zeros where the bytes have been.
  bool go_on(Part& part) {
    if (part.write && part.bytes > 0 && length_of(file_) < length_) fail(part, 0);
    while (part.bytes > 0 && !part.transfer->failed) {
      if (direct_ && in_sectors(part.memory, part.offset) && part.bytes >= kSector)
        return begin(part);
      if (const int error = move_now(part); error != 0) {
        try_again(part, error);
        return error != EAGAIN;
      }
    }
    if (part.bytes > 0) part.transfer->finished(std::exchange(part.bytes, 0));
    return true;
  }

  /// Begins to move as many whole sectors as there are.
  bool begin(Part& part) {
    const std::size_t i = free_.back();
    Slot& slot = slots_[i];
    slot.request = {.call = part.write ? IoCall::write : IoCall::read,
                    .file = &*direct_,
                    .memory = part.memory,
                    .offset = part.offset,
                    .bytes = part.bytes / kSector * kSector,
                    .slot = i};
    const int error = queue_.begin(slot.request);
    if (error != 0) {
      try_again(part, error);
      return error != EAGAIN;
    }
    slot.part = std::move(part);
    free_.pop_back();
    return true;
  }

  void finish(const AsyncRequest& request) {
    free_.push_back(request.slot);
    settle(std::move(slots_[request.slot].part), [&](Part& part) {
      if (request.moved == 0) return try_again(part, request.error);
      advance(part, request.moved);
      if (part.bytes > 0) again_.push_back(std::move(part));
    });
  }

  /// What is less than a sector, or not aligned to one, through the page cache by one call. Returns
  /// its errno, or 0.
  int move_now(Part& part) {
    const auto address = reinterpret_cast<std::uintptr_t>(part.memory);
    const auto into_sector = part.offset % kSector;
    const bool alike = static_cast<std::int64_t>(address % kSector) == into_sector;
    std::int64_t bytes = part.bytes;
    if (direct_ && alike && into_sector > 0) bytes = std::min(bytes, kSector - into_sector);
    const auto n = static_cast<std::size_t>(bytes);
    const int file = file_.descriptor();
    const ssize_t moved = part.write
                              ? system_calls::write(file, path(), part.memory, n, part.offset)
                              : system_calls::read(file, path(), part.memory, n, part.offset);
    if (moved < 0) return errno;
    if (moved > 0) {
      advance(part, moved);
    } else {
      fail(part, 0);
    }
    return 0;
  }

  static void advance(Part& part, std::int64_t moved) {
    part.memory += moved, part.offset += moved, part.bytes -= moved;
    part.attempts = 0;
    part.transfer->finished(moved);
  }

  /// Later, where the system had too much to do (EAGAIN); any other error is final.
  void try_again(Part& part, int error) {
    if (error == EAGAIN && ++part.attempts < kMostAttempts) {
      again_.push_back(std::move(part));
    } else {
      fail(part, error);
    }
  }

  /// `error`: an errno, or 0 where the file has been cut.
  void fail(Part& part, int error) {
    const std::string why = error != 0
                                ? errno_text(error)
                                : "the file is shorter than it was: did another program cut it?";
    part.transfer->fail(fmt::format("{}: cannot {} bytes {} to {} (disk {}): {}", path().string(),
                                    part.write ? "write" : "read", part.offset,
                                    part.offset + part.bytes, disk_of(file_), why),
                        ExitCode::io);
    part.transfer->finished(std::exchange(part.bytes, 0));
  }

  /// After an error of this thread's own, such as too little memory: all that is there fails, and
  /// all that comes.
  void give_up(Ending why) {
    queue_.close();
    const std::lock_guard lock(mutex_);
    broken_ = std::move(why);
    for (Slot& slot : slots_) give_up(slot.part);
    for (Part& part : again_) give_up(part);
    give_up_lanes();
  }
  void give_up(Part& part) const {
    if (!part.transfer || part.bytes == 0) return;  // moved elsewhere, or done
    part.transfer->fail(broken_->message, broken_->code);
    part.transfer->finished(std::exchange(part.bytes, 0));
  }
  void give_up_lanes() {
    for (std::list<Portion>& lane : lanes_) {
      while (!lane.empty()) {
        Part part = take_part(lane);
        give_up(part);
      }
    }
  }

  File file_;
  std::optional<File> direct_;  // the same, past the page cache
  std::int64_t index_, stripes_, block_;
  std::int64_t length_ = 0;  // that it has been made with
  AsyncQueue queue_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> free_;  // of slots_; the thread's, like all up to here
  std::vector<Part> again_;        // begun before, and to be begun again
  std::size_t turn_ = 0;
  std::mutex mutex_;
  std::array<std::list<Portion>, 2> lanes_;  // reads and writes; guarded by mutex_
  std::optional<Ending> broken_;             // guarded by mutex_
  std::atomic<bool> stop_{false};
  std::jthread thread_;  // last: it uses the others
};

namespace {

/// Bytes of the file `index` of several.
std::int64_t bytes_of_stripe(const AsyncFileOptions& o, std::size_t index) {
  const std::int64_t stripes = std::ssize(o.files), at = static_cast<std::int64_t>(index);
  const std::int64_t blocks = ceil_div(o.bytes, o.block);
  const std::int64_t mine = (blocks - at + stripes - 1) / stripes;
  const bool has_last = blocks > 0 && (blocks - 1) % stripes == at;
  const std::int64_t missing = has_last ? blocks * o.block - round_up(o.bytes, kSector) : 0;
  return mine * o.block - missing;
}

}  // namespace

AsyncFile::AsyncFile(const AsyncFileOptions& options) : bytes_(options.bytes) {
  TESSERA_CHECK(!options.files.empty() && options.block > 0 && options.block % kSector == 0 &&
                    options.depth > 0 && options.bytes >= 0,
                "{} files, blocks of {}, depth {}", options.files.size(), options.block,
                options.depth);
  for (std::size_t i = 0; i < options.files.size(); ++i)
    stripes_.push_back(
        std::make_unique<Stripe>(options.files[i], bytes_of_stripe(options, i), options, i));
}

AsyncFile::~AsyncFile() = default;

Transfer AsyncFile::begin(std::int64_t offset, std::span<std::byte> memory, bool write) {
  const std::int64_t size = std::ssize(memory);
  TESSERA_CHECK(offset >= 0 && size <= bytes_ - offset, "bytes {} to {} of {}", offset,
                offset + size, bytes_);
  auto state = std::make_shared<Transfer::State>(size);
  std::list<Portion> portions(stripes_.size(), Portion{.transfer = state,
                                                       .write = write,
                                                       .memory = memory.data(),
                                                       .begin = offset,
                                                       .end = offset + size});
  for (const auto& stripe : stripes_) stripe->take_first(portions);
  return Transfer(std::move(state));
}

Transfer AsyncFile::read(std::int64_t offset, std::span<std::byte> out) {
  return begin(offset, out, false);
}

Transfer AsyncFile::write(std::int64_t offset, std::span<const std::byte> bytes) {
  return begin(offset, {const_cast<std::byte*>(bytes.data()), bytes.size()}, true);
}

std::vector<fs::path> AsyncFile::buffered() const {
  std::vector<fs::path> all;
  for (const auto& stripe : stripes_) {
    if (!stripe->direct()) all.push_back(stripe->path());
  }
  return all;
}

}  // namespace tessera::io
