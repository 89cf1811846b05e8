// Reads a checkpoint under any layout. What is asked for in global coordinates is put together from
// whichever rank files hold it, and every block is verified as it is read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/checkpoint_hold.hpp"
#include "io/checkpoint_manifest.hpp"
#include "io/file.hpp"

namespace tessera::io {

/// A part of a tensor to be read, and what becomes of its elements.
struct Wanted {
  std::string tensor, state;
  Box box;
  DType type = DType::f32;
  /// Called with elements of the box, from element `first` in its row-major order. By the end every
  /// element was passed once, in no particular order.
  std::function<void(std::int64_t first, std::span<const std::byte> elements)> take;
};

/// Told after each block how many of the wanted bytes were taken.
using ReadProgress = std::function<void(std::int64_t bytes_done, std::int64_t bytes_total)>;

/// A checkpoint that is open for reading, and held against pruning. Not for use by two threads at
/// once. Keeps the last block of a small read in memory, and during a large read a few blocks.
class Checkpoint {
 public:
  /// Validates the manifest; files are opened when something of them is read. Throws DataError.
  static Checkpoint open(const std::filesystem::path& directory);
  Checkpoint(Checkpoint&& other) noexcept;
  ~Checkpoint();
  /// Throws DataError unless every file is there at its size. It looks at all files, so with many
  /// ranks one does this for all.
  void check_files() const;

  const CheckpointHeader& header() const { return manifest_.header; }
  const Manifest& manifest() const { return manifest_; }

  struct Entry {
    Shape shape;
    DType type;
  };
  /// Shape and element type, if the checkpoint holds this state of this tensor.
  std::optional<Entry> find(std::string_view tensor, std::string_view state) const;

  /// Reads all that is wanted, going once through each file front to back: every block that holds a
  /// part of it is read once, and no other. A thread reads while this one verifies and calls take.
  /// DataError if the checkpoint does not hold it with this element type, or if a block is damaged.
  void read(std::span<const Wanted> wanted, const ReadProgress& progress = {});
  /// Fills `out` with a box of a tensor, in the box's row-major order: for small reads.
  void read(std::string_view tensor, std::string_view state, const Box& box, DType type,
            std::span<std::byte> out);
  /// The same for a range of the tensor's elements in row-major order.
  void read(std::string_view tensor, std::string_view state, Range elements, DType type,
            std::span<std::byte> out);

  /// Bytes read from the files so far.
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Segment {  // one box of a rank file
    int rank;
    const DatasetRecord* dataset;  // in manifest_
    Box box;
    std::int64_t first_byte;  // within the dataset
  };
  struct Run;      // bytes that are contiguous in a dataset and in a wanted box
  struct Overlap;  // what a segment holds of a wanted box
  struct Block;    // of a dataset, and what is wanted of it
  class Walk;      // all blocks that hold something wanted
  using Overlaps = std::map<std::pair<int, std::int64_t>, std::vector<Overlap>>;

  explicit Checkpoint(const std::filesystem::path& directory);
  const std::vector<Segment>* segments_of(std::string_view tensor, std::string_view state) const;
  Overlaps overlaps_with(std::span<const Wanted> wanted) const;
  void read_serially(std::span<const Wanted> wanted);
  void fetch(Block& block);
  void verify(const Block& block) const;

  std::filesystem::path directory_;
  CheckpointHold hold_;
  Manifest manifest_;
  std::map<std::string, std::vector<Segment>> segments_;  // by state/tensor
  std::unique_ptr<Block> last_;                           // of a small read
  std::optional<File> file_;                              // the one read last
  std::int64_t bytes_read_ = 0;
};

/// Throws DataError unless the file has this many bytes.
void check_file_size(const std::filesystem::path& path, std::int64_t bytes);

}  // namespace tessera::io
