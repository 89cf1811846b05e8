// Bytes on disks, as a tier: allocations have addresses, at which there is nothing.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "io/async_file.hpp"
#include "io/scratch_directory.hpp"
#include "memory/tier.hpp"

namespace tessera::memory {

struct DiskTierOptions {
  /// Each with a file of an allocation: on one disk, or each on its own.
  std::vector<std::filesystem::path> directories;
  std::int64_t block = std::int64_t{8} << 20;  // of one request to a disk
  int depth = 16;                              // requests of each file under way at once
  bool keep = false;                           // the files stay when the tier ends
};

/// Addresses are reserved, and fault when used. Copies go between them and the host's memory.
class DiskTier : public Tier {
 public:
  /// Makes a directory for itself in each of those given. Throws IoError where it cannot.
  explicit DiskTier(const DiskTierOptions& options);
  ~DiskTier() override;

  /// Throws IoError where the disks have less room.
  std::byte* allocate(std::int64_t bytes) override;
  void release(std::byte* base, std::int64_t bytes) override;
  void write(std::byte* to, std::span<const std::byte> from) override;
  void read(const std::byte* from, std::span<std::byte> to) override;
  std::unique_ptr<streams::Task> start_copy(const std::byte* from, std::byte* to,
                                            std::int64_t bytes) override;
  bool of_host() const override { return false; }
  std::byte* in_place(std::byte*) override { return nullptr; }

  /// The files whose file system has no access past the page cache.
  std::vector<std::filesystem::path> buffered() const;
  /// What jobs that were killed had left in the directories, and was removed.
  std::vector<std::filesystem::path> removed() const;

 private:
  struct Place {
    io::AsyncFile* file = nullptr;  // nullptr: it is no address of this tier
    std::int64_t offset = 0;
  };
  Place place_of(const std::byte* address) const;

  DiskTierOptions options_;
  std::vector<io::ScratchDirectory> directories_;
  struct Allocation {
    std::int64_t bytes = 0;
    std::unique_ptr<io::AsyncFile> file;
  };
  std::map<const std::byte*, Allocation> allocations_;
  int made_ = 0;  // allocations so far, for names of files
};

}  // namespace tessera::memory
