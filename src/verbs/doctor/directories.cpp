// File systems of the directories that runs write to and read from.
#include <fcntl.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "core/bytes.hpp"
#include "core/clock.hpp"
#include "io/file.hpp"
#include "io/token_files.hpp"
#include "verbs/doctor/doctor.hpp"

namespace tessera::verbs {
namespace {

namespace fs = std::filesystem;

struct FileSystem {
  std::uint32_t magic;  // statfs(2)
  const char* name;
  bool memory;  // what it holds is lost with the node
};
constexpr FileSystem kFileSystems[] = {
    {0xEF53, "ext4", false},       {0x58465342, "xfs", false},    {0x9123683E, "btrfs", false},
    {0x2FC12FC1, "zfs", false},    {0xF2F52010, "f2fs", false},   {0x794C7630, "overlay", false},
    {0x6969, "nfs", false},        {0x0BD00BD0, "lustre", false}, {0x47504653, "gpfs", false},
    {0x19830326, "beegfs", false}, {0x00C36400, "ceph", false},   {0x65735546, "fuse", false},
    {0xFE534D42, "smb", false},    {0x01021997, "9p", false},     {0x01021994, "tmpfs", true},
    {0x858458F6, "ramfs", true}};

const FileSystem& file_system_of(const fs::path& path) {
  static constexpr FileSystem kOther{0, "of a kind that is not known here", false};
  struct statfs found = {};
  if (statfs(path.c_str(), &found) != 0)
    throw IoError(fmt::format("cannot examine {}: {}", path.string(), errno_text(errno)));
  for (const FileSystem& row : kFileSystems) {
    if (row.magic == static_cast<std::uint32_t>(found.f_type)) return row;
  }
  return kOther;
}

constexpr std::int64_t kTrialBlock = std::int64_t{4} << 20, kMostTrialBlocks = 256;
constexpr double kLongest = 0.4;  // s, of writing and of reading

struct Aligned {
  void operator()(std::byte* p) const { std::free(p); }
};
using TrialBlock = std::unique_ptr<std::byte, Aligned>;
TrialBlock new_block() {
  TrialBlock block(static_cast<std::byte*>(std::aligned_alloc(io::kSector, kTrialBlock)));
  if (!block) throw MemoryError("cannot allocate 4 MiB");
  std::fill_n(block.get(), kTrialBlock, std::byte{0x5a});
  return block;
}

/// Bytes a second of blocks one after another, until time or blocks are over.
template <typename Move>
double rate_of(std::int64_t blocks, Move&& move, std::int64_t& done) {
  const auto begin = SteadyClock::now();
  for (done = 0; done < blocks && seconds_since(begin) < kLongest; ++done) move(done * kTrialBlock);
  return static_cast<double>(done * kTrialBlock) / std::max(seconds_since(begin), 1e-9);
}

const char* direct_text(bool there) { return there ? "O_DIRECT" : "no O_DIRECT"; }
std::string rate_text(double rate) { return fmt::format("{:.2f} GB/s", rate / 1e9); }

/// What state and checkpoints are written to.
Finding writable(const fs::path& named) {
  constexpr double kSlow = 50e6;  // bytes a second: a checkpoint of 10 GB takes minutes
  constexpr std::int64_t kLittle = std::int64_t{8} << 30;
  const fs::path directory = existing_directory(named);
  const FileSystem& kind = file_system_of(directory);
  const TrialFile trial(directory);
  io::File file(trial.path(), io::OpenMode::update);
  std::optional<io::File> direct = file.past_page_cache();
  io::File& used = direct ? *direct : file;
  const TrialBlock block = new_block();
  const std::span<std::byte> bytes(block.get(), kTrialBlock);
  std::int64_t written = 0, ignored = 0;
  const double write = rate_of(
      kMostTrialBlocks,
      [&](std::int64_t at) {
        used.write(at, bytes);
        if (!direct) file.sync();
      },
      written);
  posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);  // advice: may be ignored
  const double read = rate_of(
      written, [&](std::int64_t at) { used.read(at, bytes); }, ignored);
  std::error_code unknown;
  const auto free = static_cast<std::int64_t>(fs::space(directory, unknown).available);
  const std::string to_come =
      io::path_exists(named) ? "" : fmt::format(" (where {} will be made)", named.string());
  Finding finding{.what = fmt::format("{}{}: {}, {} free, {}, writes {}, reads {}",
                                      directory.string(), to_come, kind.name, human_bytes(free),
                                      direct_text(direct.has_value()), rate_text(write),
                                      rate_text(read))};
  if (kind.memory) finding.fix = "it is memory, and lost with the node: name a directory on a disk";
  if (!unknown && free < kLittle)
    finding.fix = "little room for checkpoints: free some, or name another disk";
  if (write < kSlow) finding.fix = "it is slow: name a directory on a faster file system";
  if (!finding.fix.empty()) finding.health = Health::poor;
  return finding;
}

/// What token files are read from: those of an entry of the deck, of which the largest is read.
Finding readable(const std::string& entry, std::int64_t vocab) {
  const io::TokenCorpus corpus(std::span(&entry, 1), vocab);
  const auto files = corpus.files();
  const auto size = [](const io::TokenCorpus::TokenFile& f) { return f.file.size(); };
  const io::File& file = std::ranges::max_element(files, {}, size)->file;
  posix_fadvise(file.descriptor(), 0, 0, POSIX_FADV_DONTNEED);  // advice: may be ignored
  const TrialBlock block = new_block();
  const std::span<std::byte> bytes(block.get(), kTrialBlock);
  std::int64_t done = 0;
  double rate = 0;
  if (const std::int64_t blocks = file.size() / kTrialBlock; blocks > 0)
    rate = rate_of(
        blocks, [&](std::int64_t at) { file.read(at, bytes); }, done);
  const int direct = ::open(file.path().c_str(), O_RDONLY | O_DIRECT);
  if (direct >= 0) ::close(direct);
  return {.what = fmt::format(
              "{}{}: {}, {}, {}{}", file.path().string(),
              files.size() > 1 ? fmt::format(", the largest of {} files", files.size()) : "",
              file_system_of(file.path()).name, human_bytes(file.size()), direct_text(direct >= 0),
              rate > 0 ? ", reads " + rate_text(rate) : "")};
}

/// What a look throws, as what is broken: a run would end so.
template <typename Look>
Finding found(const char* name, const std::string& path, const char* fix, Look&& look) {
  Finding finding;
  try {
    finding = look(path);
  } catch (const Error& e) {
    finding = {.health = Health::broken, .what = e.what(), .fix = fix, .code = e.exit_code()};
  }
  finding.name = name;
  return finding;
}

std::vector<Finding> directories(const Subject& subject) {
  constexpr const char* kWritable = "name a directory that this user may write to, with room on it";
  std::vector<Finding> findings;
  findings.push_back(found("run directory", subject.run_directory(), kWritable, writable));
  for (const std::string& path : subject.options.directories)
    findings.push_back(found("directory", path, kWritable, writable));
  if (!subject.deck) return findings;
  const deck::Deck& deck = *subject.deck;
  for (const std::string& path : deck.offload.nvme)
    findings.push_back(found("offload.nvme", path, kWritable, writable));
  const auto tokens = [&](const std::string& entry) { return readable(entry, deck.model.vocab); };
  for (const auto& entries : {deck::paths_of(deck.data.train), deck.data.validation}) {
    for (const std::string& entry : entries) {
      findings.push_back(found("data", entry,
                               "name token files that every node can read; see data.train in "
                               "inputs/README.md",
                               tokens));
    }
  }
  return findings;
}

constexpr NodeCheck kDirectoryChecks[] = {{"directories", directories, Texts::vary}};

}  // namespace

fs::path existing_directory(const fs::path& path) {
  std::error_code unknown;
  fs::path directory = fs::absolute(path, unknown);
  if (unknown) {
    throw IoError(fmt::format("cannot tell where \"{}\" is: {}", path.string(), unknown.message()));
  }
  while (!io::path_exists(directory) && directory.has_relative_path())
    directory = directory.parent_path();
  return directory;
}

TrialFile::TrialFile(const fs::path& directory) {
  std::string name = (directory / "tessera_doctor_XXXXXX").string();
  const int descriptor = mkstemp(name.data());
  if (descriptor < 0)
    throw IoError(
        fmt::format("cannot create a file in {}: {}", directory.string(), errno_text(errno)));
  ::close(descriptor);
  path_ = name;
}
TrialFile::~TrialFile() { ::unlink(path_.c_str()); }

std::span<const NodeCheck> directory_checks() { return kDirectoryChecks; }

}  // namespace tessera::verbs
