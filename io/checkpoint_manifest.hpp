// What a checkpoint is, as plain data: where in the run it was taken (CheckpointHeader), what each
// rank's file holds (RankPart), and both together (Manifest), which is what manifest.json says.
// io/CHECKPOINTS.md specifies the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "core/math.hpp"
#include "core/mesh.hpp"
#include "io/box.hpp"
#include "io/data_identity.hpp"

namespace tessera::io {

inline constexpr int kCheckpointVersion = 1;
/// Checksums are taken over blocks of this size, counted from the start of each dataset. A block is
/// written and read at once. With 1 MiB a rank reads little that is not its own, and a block is
/// still in the cache when it is verified and placed; smaller blocks would mean more checksums,
/// which every rank reads. The manifest says the size; other sizes can be read.
inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;
/// Of checkpoints that can be read.
inline constexpr std::int64_t kMostBlockBytes = std::int64_t{4} << 20;

/// The layout that wrote the checkpoint; for people only, since loading needs no layout.
struct CheckpointLayout {
  std::int64_t world = 1;  // ranks
  Mesh mesh;
  int zero_stage = 0;
  bool operator==(const CheckpointLayout&) const = default;
};

/// Everything but tensors that a run needs to go on as if it had never stopped.
struct CheckpointHeader {
  std::int64_t step = 0;  // attempts; applied_updates drives the schedule and Adam's t
  std::int64_t applied_updates = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;
  std::vector<Range> skipped_samples;  // by a rollback: global sample indices not to be used
  double loss_scale = 1;
  std::int64_t scaler_good_steps = 0;       // since the last overflow or doubling
  std::int64_t scaler_hysteresis_left = 0;  // overflows until the scale halves
  std::vector<double> spike_window;         // recent losses, oldest first
  double lr_factor = 1;                     // what rollbacks have made of the learning rate
  std::int64_t critic_updates = 0;          // of a critic whose state is beside the model's
  std::vector<DataFile> data;               // training data; empty if not known
  CheckpointLayout layout;
  std::string deck;                         // resolved TOML
  std::string source;                       // the model directory that the weights began as, if any
  std::map<std::string, std::string> info;  // for people: host, commit, time, ...
};

/// One 1-D dataset of a rank file: its boxes of one state of one tensor, one after another.
struct DatasetRecord {
  std::string tensor;
  Shape shape;        // of the whole tensor
  std::string state;  // parameters, master, adam_m, adam_v, ...
  DType type = DType::f32;
  std::int64_t offset = 0;  // of the first element in the file
  std::vector<Box> boxes;
  std::int64_t block_bytes = kBlockBytes;
  std::vector<std::uint64_t> checksums;  // xxh3 of each block; the last may be short

  std::string name() const { return state + '/' + tensor; }
  std::int64_t elements() const;
  std::int64_t bytes() const { return elements() * size_of(type); }
  std::int64_t blocks() const { return ceil_div(bytes(), block_bytes); }
  /// Bytes [begin, end) of block `block` within the dataset.
  Range block_range(std::int64_t block) const;
};

/// What one rank wrote. Sent as text to the rank that commits.
struct RankPart {
  int rank = 0;
  std::int64_t file_bytes = 0;
  std::uint64_t rest_checksum = 0;  // of all that lies outside the datasets: HDF5's own structures
  std::vector<DatasetRecord> datasets;  // by offset
};

std::string to_text(const RankPart& part);
/// Throws DataError.
RankPart rank_part_from_text(std::string_view text);

struct Manifest {
  CheckpointHeader header;
  std::int64_t block_bytes = kBlockBytes;  // of all datasets
  std::vector<RankPart> parts;             // by rank
  std::int64_t model_bytes = 0;
  std::uint64_t model_checksum = 0;
};

/// The manifest as written to disk: JSON whose first line is the checksum of all that follows it.
std::string to_text(const Manifest& manifest);
/// Checks everything that can be checked without the other files; `name` is shown in errors.
/// Throws DataError.
Manifest manifest_from_text(std::string_view text, std::string_view name);
Manifest read_manifest(const std::filesystem::path& checkpoint);

/// Why these parts are not a checkpoint: an element held twice or not at all, ranks that disagree
/// about a tensor, a dataset outside its file, and so on. Nothing if they are one.
std::optional<std::string> find_problem(std::span<const RankPart> parts);

/// Letters, digits, '_', '-' and '.', so that a name is one link in HDF5, a part of a path on every
/// system, and free of '%', which virtual datasets would expand.
bool is_checkpoint_name(std::string_view name);
bool is_checkpoint_type(DType type);

std::string rank_file_name(int rank);  // "rank_00012.h5"
inline constexpr const char* kModelFile = "model.h5";
inline constexpr const char* kManifestFile = "manifest.json";

}  // namespace tessera::io
