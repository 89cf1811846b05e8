// Bytes on disks, read and written beside the caller: one range of bytes, striped over files in one
// or several directories. Each file has a thread, and a queue of requests that its disk works on at
// once, past the page cache (O_DIRECT) where the file system can do that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera::io {

struct AsyncFileOptions {
  /// A file each, new or replaced. They get equal shares: a disk that is twice as fast as another
  /// gets two files.
  std::vector<std::filesystem::path> files;
  std::int64_t bytes = 0;                      // of all of them together
  std::int64_t block = std::int64_t{8} << 20;  // of one request and of a stripe; whole sectors
  int depth = 16;                              // requests of each file under way at once
};

/// A read or write under way. Its bytes are the caller's again once it is complete. The destructor
/// gives up what of it has not begun, and waits for the rest.
class Transfer {
 public:
  struct State;
  explicit Transfer(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~Transfer();
  Transfer(Transfer&&) = default;
  Transfer& operator=(Transfer&&) = delete;

  /// Whether it is complete. Throws IoError, which names file, bytes and disk, if it has failed.
  bool done() const;
  /// Returns once it is complete; throws as done() does.
  void wait() const;

 private:
  std::shared_ptr<State> state_;
};

class AsyncFile {
 public:
  /// Makes the files and reserves their room on the disk. Throws IoError where there is too little
  /// of it, and where the system has no asynchronous requests to give.
  explicit AsyncFile(const AsyncFileOptions& options);
  ~AsyncFile();
  AsyncFile(const AsyncFile&) = delete;
  AsyncFile& operator=(const AsyncFile&) = delete;

  /// Begin to move bytes from or to [offset, offset + size), of any alignment and length. What is
  /// not in whole sectors (kSector bytes), in memory as in the file, goes through the page cache, a
  /// request at a time. Transfers that have bytes of the same sector, of which one writes, are the
  /// caller's to put in order. The file must outlive them. Nothing is made durable.
  [[nodiscard]] Transfer read(std::int64_t offset, std::span<std::byte> out);
  [[nodiscard]] Transfer write(std::int64_t offset, std::span<const std::byte> bytes);

  std::int64_t bytes() const { return bytes_; }
  /// The files whose file system has no access past the page cache.
  std::vector<std::filesystem::path> buffered() const;

 private:
  class Stripe;
  Transfer begin(std::int64_t offset, std::span<std::byte> memory, bool write);

  std::int64_t bytes_;
  std::vector<std::unique_ptr<Stripe>> stripes_;
};

}  // namespace tessera::io
