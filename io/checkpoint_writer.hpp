// Writes one rank's part of a checkpoint. The pieces are known before their data exist, so the file
// is laid out first; then bytes go straight to their place, in any order, and each block's checksum
// is taken on the way.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "io/checkpoint_manifest.hpp"
#include "io/file.hpp"

namespace tessera::io {

/// A box of one state of one tensor that this rank saves. Pieces with the same tensor and state
/// form one dataset, in the order given.
struct Piece {
  std::string tensor;
  Shape shape;  // of the whole tensor
  std::string state;
  DType type = DType::f32;
  Box box;
};

/// The constructor uses HDF5 and belongs on the thread that owns it; write() and finish() do not,
/// and may be called from one other thread. All throw IoError when the system refuses (no space,
/// ...): the partial directory is then left for the next save to remove. Memory held: kBlockBytes
/// for each block that is partly written, so writers go through a piece front to back if they can.
class CheckpointWriter {
 public:
  /// Creates rank_NNNNN.h5 in `directory` (that of begin_checkpoint) at its final size.
  CheckpointWriter(const std::filesystem::path& directory, int rank, std::span<const Piece> pieces);

  /// Bytes [offset, offset + bytes.size()) of a piece, in the box's row-major order. Each byte of
  /// each piece is written exactly once.
  void write(std::size_t piece, std::int64_t offset, std::span<const std::byte> bytes);
  void write(std::size_t piece, std::span<const std::byte> bytes) { write(piece, 0, bytes); }

  /// Makes everything durable and says what was written; nothing may follow.
  RankPart finish();

 private:
  struct Slot {  // where a piece lies
    std::size_t dataset;
    Range bytes;  // within the dataset
  };
  struct PartialBlock {
    std::vector<std::byte> bytes;
    std::vector<Range> filled;  // disjoint
    std::int64_t missing;
  };

  void lay_out(std::span<const Piece> pieces);
  File create_file(std::span<const Piece> pieces);
  void write_within_block(std::size_t dataset, std::int64_t begin,
                          std::span<const std::byte> bytes);
  void store_block(std::size_t dataset, std::int64_t block, std::span<const std::byte> bytes);

  std::filesystem::path path_;
  RankPart part_;
  std::vector<Slot> slots_;                                               // by piece
  std::vector<std::vector<bool>> stored_;                                 // [dataset][block]
  std::map<std::pair<std::size_t, std::int64_t>, PartialBlock> partial_;  // dataset, block
  File file_;  // last: create_file fills in the others
};

}  // namespace tessera::io
