// tessera bench nvme: how fast disks take and give the bytes of offloaded state, by the size of
// requests and their number under way.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "core/bytes.hpp"
#include "io/async_file.hpp"
#include "memory/tier.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {
namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kMiB = std::int64_t{1} << 20;
constexpr std::int64_t kMostMemory =
    1024 * kMiB;  // that a rank uses unless it is told the requests

/// This rank's files, each in a new directory, which goes with them.
class Files {
 public:
  Files(const BenchOptions& options, const comm::Control& control) : Files() {
    control.together([&] {  // where that throws, the destructor removes what is there
      for (const std::string& parent : bench_directories(options)) {
        std::string name = (fs::path(parent) / "tessera_bench_XXXXXX").string();
        if (mkdtemp(name.data()) == nullptr)
          throw IoError(fmt::format("cannot create {}: {}", name, errno_text(errno)));
        directories_.emplace_back(name);
        paths_.push_back(directories_.back() / "bytes");
      }
    });
  }
  ~Files() {
    std::error_code ignored;  // what cannot be removed is left
    for (const fs::path& directory : directories_) fs::remove_all(directory, ignored);
  }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  const std::vector<fs::path>& paths() const { return paths_; }

 private:
  Files() = default;
  std::vector<fs::path> directories_, paths_;
};

struct Requests {
  std::int64_t block;
  int depth;
};

/// Page-aligned memory of random numbers: some disks are faster with zeros. A piece has a request
/// for each file; there are twice as many as are under way, so that no queue runs empty.
class Memory {
 public:
  static std::int64_t bytes_of(const Requests& r, std::size_t files) {
    return 2 * r.depth * r.block * static_cast<std::int64_t>(files);
  }
  Memory(const Requests& r, std::size_t files, std::int64_t ranks_of_node)
      : piece_(r.block * static_cast<std::int64_t>(files)), pieces_(2 * std::int64_t{r.depth}) {
    memory::check_available(piece_ * pieces_, ranks_of_node);
    base_ = tier_.allocate(piece_ * pieces_);
    std::minstd_rand numbers;
    for (std::int64_t i = 0; i < piece_ * pieces_; i += 4) {
      const auto number = static_cast<std::uint32_t>(numbers());
      std::memcpy(base_ + i, &number, 4);
    }
  }
  ~Memory() { tier_.release(base_, piece_ * pieces_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::int64_t piece() const { return piece_; }
  std::int64_t pieces() const { return pieces_; }
  std::span<std::byte> piece(std::int64_t i) {
    return {base_ + i % pieces_ * piece_, static_cast<std::size_t>(piece_)};
  }

 private:
  std::int64_t piece_, pieces_;
  memory::HostTier tier_;
  std::byte* base_ = nullptr;
};

enum class Pattern : std::uint8_t { write, read, mixed };
constexpr std::array kPatterns = {Pattern::write, Pattern::read, Pattern::mixed};
constexpr std::array kPatternNames = {"write", "read", "half of each"};
using Rates = std::array<double, kPatterns.size()>;  // bytes a second of all ranks

/// Moves as many bytes as the file has; mixed: every second piece is written, the others are read.
void move(io::AsyncFile& file, Memory& memory, Pattern pattern) {
  std::deque<io::Transfer> under_way;
  for (std::int64_t i = 0; i * memory.piece() < file.bytes(); ++i) {
    if (std::ssize(under_way) == memory.pieces()) {  // the oldest, whose memory is next
      under_way.front().wait();
      under_way.pop_front();
    }
    const std::int64_t at = i * memory.piece(), n = std::min(memory.piece(), file.bytes() - at);
    const auto part = memory.piece(i).first(static_cast<std::size_t>(n));
    const bool write = pattern == Pattern::write || (pattern == Pattern::mixed && i % 2 == 0);
    under_way.push_back(write ? file.write(at, part) : file.read(at, part));
  }
  for (const io::Transfer& transfer : under_way) transfer.wait();
}

class DiskBenchmark {
 public:
  DiskBenchmark(const BenchOptions& o, const train::Job& job)
      : o_(o), job_(job), files_(o, job.control) {}

  /// The rates of one kind of requests, each the best of several: printed and returned.
  Rates measure(Requests requests) {
    std::optional<Memory> memory;
    std::optional<io::AsyncFile> file;
    job_.control.together([&] {
      memory.emplace(requests, files_.paths().size(), job_.mpi.job().local);
      file.emplace(io::AsyncFileOptions{.files = files_.paths(),
                                        .bytes = o_.bytes,
                                        .block = requests.block,
                                        .depth = requests.depth});
      move(*file, *memory, Pattern::write);  // room that is only reserved may be read faster
    });
    tell_of_page_cache(*file);
    Rates rates{};
    for (std::size_t p = 0; p < kPatterns.size(); ++p) {
      double seconds = std::numeric_limits<double>::infinity();
      for (std::int64_t i = 0; i < o_.repeats; ++i)
        keep_fastest(seconds, job_.control, [&] { move(*file, *memory, kPatterns[p]); });
      rates[p] = static_cast<double>(o_.bytes * job_.mpi.size()) / seconds;
      if (job_.control.rank() != 0) continue;
      print_row(kPatternNames[p],
                fmt::format("{} KiB, {} under way", requests.block / 1024, requests.depth), seconds,
                rates[p] / 1e9, "GB/s", rates[p] / fastest(p, rates[p]));
    }
    job_.control.barrier();
    return rates;
  }

 private:
  /// The best rate of a pattern up to now.
  double fastest(std::size_t pattern, double rate) {
    return fastest_[pattern] = std::max(fastest_[pattern], rate);
  }
  void tell_of_page_cache(const io::AsyncFile& file) {
    if (job_.control.rank() != 0 || told_) return;
    for (const fs::path& path : file.buffered())
      fmt::print("# through the page cache, for its file system has no O_DIRECT: {}\n",
                 path.parent_path().parent_path().string());
    told_ = true;
  }

  const BenchOptions& o_;
  const train::Job& job_;
  Files files_;
  Rates fastest_{};
  bool told_ = false;
};

/// The first of `candidates`, which grow, that is nearly as fast as the fastest when half is read
/// and half is written, as an update of offloaded state does: smaller requests, and fewer, need
/// less memory.
template <typename T, typename Make>
T best_of(DiskBenchmark& benchmark, const std::vector<T>& candidates, Make&& make) {
  constexpr double kNearly = 0.97;  // what differs less is noise on most disks
  std::vector<double> rates;
  for (const T candidate : candidates) rates.push_back(benchmark.measure(make(candidate)).back());
  const double enough = kNearly * *std::ranges::max_element(rates);
  const auto first = std::ranges::find_if(rates, [&](double rate) { return rate >= enough; });
  return candidates[static_cast<std::size_t>(first - rates.begin())];
}

}  // namespace

/// Each rank writes and reads files of its own in every directory of --dir, past the page cache.
/// First the size of requests is varied, then, with the best, their number under way.
void bench_nvme(const BenchOptions& o, const train::Job& job) {
  std::vector<std::int64_t> blocks = {kMiB / 4, kMiB, 4 * kMiB, 8 * kMiB, 16 * kMiB};
  std::vector<int> depths = {1, 4, 8, 16, 32};
  if (o.block) blocks = {*o.block};
  if (o.depth) depths = {*o.depth};
  if (job.control.rank() == 0)
    fmt::print("# {}; {} of each in {}; the fastest of {}; shares of the best so far\n",
               count_text(job.mpi.size(), "rank"), human_bytes(o.bytes),
               fmt::join(bench_directories(o), " and "), o.repeats);
  DiskBenchmark benchmark(o, job);
  Requests best{.block = blocks.front(), .depth = depths[depths.size() / 2]};
  if (blocks.size() > 1)
    best.block = best_of(benchmark, blocks, [&](std::int64_t block) {
      return Requests{.block = block, .depth = best.depth};
    });
  if (!o.depth) {
    std::erase_if(depths, [&](int depth) {
      return Memory::bytes_of({best.block, depth}, bench_directories(o).size()) > kMostMemory;
    });
  }
  best.depth = best_of(benchmark, depths,
                       [&](int depth) { return Requests{.block = best.block, .depth = depth}; });
  if (job.control.rank() == 0)
    fmt::print("[offload]\nblock = {}\ndepth = {}\n", best.block, best.depth);
}

}  // namespace tessera::verbs
