// Reading a checkpoint under any layout: what is asked for in global coordinates is put together
// from whichever rank files hold it, and every block is verified as it is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint_manifest.hpp"
#include "io/file.hpp"

namespace tessera {

/// Not for use by two threads at once. Holds the last few blocks that it read (kCachedBlocks of
/// kBlockBytes).
class Checkpoint {
 public:
  /// Validates the manifest; files are opened when something of them is read. Throws DataError.
  static Checkpoint open(const std::filesystem::path& directory);
  /// Throws DataError unless every file is there at its size. It looks at all of them: of many
  /// ranks, one does this for all.
  void check_files() const;

  const CheckpointHeader& header() const { return manifest_.header; }
  const Manifest& manifest() const { return manifest_; }

  struct Entry {
    Shape shape;
    DType type;
  };
  /// Shape and element type, if the checkpoint holds this state of this tensor.
  std::optional<Entry> find(std::string_view tensor, std::string_view state) const;

  /// Fills `out` with a box of a tensor, in the box's row-major order. DataError if the checkpoint
  /// does not hold it with this element type, or if a block is damaged.
  void read(std::string_view tensor, std::string_view state, const Box& box, DType type,
            std::span<std::byte> out);
  /// The same for a range of the tensor's elements in row-major order.
  void read(std::string_view tensor, std::string_view state, Range elements, DType type,
            std::span<std::byte> out);

  /// From the files, so far.
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Segment {  // one box of a rank file
    int rank;
    const DatasetRecord* dataset;  // in manifest_
    Box box;
    std::int64_t first_byte;  // within the dataset
  };
  struct CachedBlock {
    const DatasetRecord* dataset;
    std::int64_t block;
    std::vector<std::byte> bytes;
  };

  Checkpoint(std::filesystem::path directory, Manifest manifest);
  const std::vector<Segment>* segments_of(std::string_view tensor, std::string_view state) const;
  void read_box(const std::vector<Segment>& segments, const Box& box, std::span<std::byte> out);
  void read_bytes(const Segment& segment, std::int64_t begin, std::span<std::byte> out);
  std::span<const std::byte> block(const Segment& segment, std::int64_t block);

  std::filesystem::path directory_;
  Manifest manifest_;
  std::map<std::string, std::vector<Segment>> segments_;  // by state/tensor
  std::vector<CachedBlock> cache_;                        // most recent first
  std::optional<File> file_;                              // the one read last
  std::int64_t bytes_read_ = 0;
};

/// Throws DataError unless the file has this many bytes.
void check_file_size(const std::filesystem::path& path, std::int64_t bytes);

}  // namespace tessera
