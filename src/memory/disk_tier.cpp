#include "memory/disk_tier.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#include "core/error.hpp"
#include "core/limits.hpp"

namespace tessera::memory {
namespace {

class TransferTask : public streams::Task {
 public:
  explicit TransferTask(io::Transfer transfer) : transfer_(std::move(transfer)) {}
  streams::Progress advance() override {
    return transfer_.done() ? streams::Progress::done : streams::Progress::idle;
  }

 private:
  io::Transfer transfer_;
};

}  // namespace

DiskTier::DiskTier(const DiskTierOptions& options) : options_(options) {
  for (const auto& parent : options.directories) directories_.emplace_back(parent, options.keep);
}

DiskTier::~DiskTier() {
  while (!allocations_.empty()) {
    auto it = allocations_.begin();
    release(const_cast<std::byte*>(it->first), it->second.bytes);
  }
}

std::byte* DiskTier::allocate(std::int64_t bytes) {
  io::AsyncFileOptions options{
      .files = {}, .bytes = bytes, .block = options_.block, .depth = options_.depth};
  for (const io::ScratchDirectory& directory : directories_)
    options.files.push_back(directory.path() / fmt::format("state.{}", made_));
  ++made_;
  auto file = std::make_unique<io::AsyncFile>(options);
  void* reserved = mmap(nullptr, static_cast<std::size_t>(bytes), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) memory_refused(fmt::format("reserve {} addresses", bytes), errno);
  auto* base = static_cast<std::byte*>(reserved);
  allocations_[base] = {bytes, std::move(file)};
  return base;
}

void DiskTier::release(std::byte* base, std::int64_t bytes) {
  allocations_.erase(base);
  munmap(base, static_cast<std::size_t>(bytes));
}

DiskTier::Place DiskTier::place_of(const std::byte* address) const {
  auto it = allocations_.upper_bound(address);
  if (it == allocations_.begin()) return {};
  const auto& [base, allocation] = *--it;
  if (address - base >= allocation.bytes) return {};
  return {allocation.file.get(), address - base};
}

void DiskTier::write(std::byte* to, std::span<const std::byte> from) {
  const auto [file, offset] = place_of(to);
  TESSERA_CHECK(file != nullptr, "an address that is not on these disks");
  file->write(offset, from).wait();
}

void DiskTier::read(const std::byte* from, std::span<std::byte> to) {
  const auto [file, offset] = place_of(from);
  TESSERA_CHECK(file != nullptr, "an address that is not on these disks");
  file->read(offset, to).wait();
}

std::unique_ptr<streams::Task> DiskTier::start_copy(const std::byte* from, std::byte* to,
                                                    std::int64_t bytes) {
  const auto n = static_cast<std::size_t>(bytes);
  const Place source = place_of(from), target = place_of(to);
  TESSERA_CHECK((source.file == nullptr) != (target.file == nullptr),
                "a copy that is not between disks and memory");
  return std::make_unique<TransferTask>(source.file != nullptr
                                            ? source.file->read(source.offset, {to, n})
                                            : target.file->write(target.offset, {from, n}));
}

std::vector<std::filesystem::path> DiskTier::buffered() const {
  std::vector<std::filesystem::path> all;
  for (const auto& [base, allocation] : allocations_) {
    for (auto& path : allocation.file->buffered()) all.push_back(std::move(path));
  }
  return all;
}

std::vector<std::filesystem::path> DiskTier::removed() const {
  std::vector<std::filesystem::path> all;
  for (const auto& directory : directories_)
    all.insert(all.end(), directory.removed().begin(), directory.removed().end());
  return all;
}

}  // namespace tessera::memory
