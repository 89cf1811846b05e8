#include "io/checkpoint_writer.hpp"

#include <algorithm>
#include <cstring>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "io/checkpoint_blocks.hpp"
#include "io/hdf5.hpp"

namespace tessera::io {
namespace {

/// A contiguous dataset whose place in the file is fixed now and whose bytes HDF5 never touches.
H5Dataset create_dataset(hid_t file, const DatasetRecord& record) {
  const H5List creation(H5_TRY(H5Pcreate(H5P_DATASET_CREATE)));
  H5_TRY(H5Pset_layout(creation, H5D_CONTIGUOUS));
  H5_TRY(H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY));
  H5_TRY(H5Pset_fill_time(creation, H5D_FILL_TIME_NEVER));
  const H5List links(H5_TRY(H5Pcreate(H5P_LINK_CREATE)));
  H5_TRY(H5Pset_create_intermediate_group(links, 1));
  const auto extent = static_cast<hsize_t>(record.elements());
  const H5Space space(H5_TRY(H5Screate_simple(1, &extent, nullptr)));
  const H5Type type = hdf5_type(record.type);
  H5Dataset dataset(
      H5_TRY(H5Dcreate2(file, record.name().c_str(), type, space, links, creation, H5P_DEFAULT)));
  hdf5_name_type(dataset, record.type);
  return dataset;
}

}  // namespace

CheckpointWriter::CheckpointWriter(const std::filesystem::path& directory, int rank,
                                   std::span<const Piece> pieces)
    : path_(directory / rank_file_name(rank)), part_{.rank = rank}, file_(create_file(pieces)) {
  part_.file_bytes = file_.size();
}

void CheckpointWriter::lay_out(std::span<const Piece> pieces) {
  std::map<std::string, std::size_t> index;  // of a dataset, by name
  for (const Piece& piece : pieces) {
    DatasetRecord fresh{
        .tensor = piece.tensor, .shape = piece.shape, .state = piece.state, .type = piece.type};
    TESSERA_CHECK(is_checkpoint_name(piece.tensor) && is_checkpoint_name(piece.state) &&
                      is_checkpoint_type(piece.type) && inside(piece.shape, piece.box),
                  "piece of {} ({})", fresh.name(), to_string(piece.type));
    const auto [found, added] = index.try_emplace(fresh.name(), part_.datasets.size());
    if (added) part_.datasets.push_back(std::move(fresh));
    DatasetRecord& d = part_.datasets[found->second];
    TESSERA_CHECK(d.shape == piece.shape && d.type == piece.type, "pieces of {} differ", d.name());
    const std::int64_t begin = d.bytes();
    d.boxes.push_back(piece.box);
    slots_.push_back({found->second, {begin, d.bytes()}});
  }
  for (DatasetRecord& d : part_.datasets) {
    d.checksums.resize(static_cast<std::size_t>(d.blocks()));
    stored_.emplace_back(d.checksums.size(), false);
  }
}

File CheckpointWriter::create_file(std::span<const Piece> pieces) {
  lay_out(pieces);
  H5File file = hdf5_create(path_.c_str());
  for (DatasetRecord& d : part_.datasets) {
    const haddr_t offset = H5Dget_offset(create_dataset(file, d));
    if (offset == HADDR_UNDEF) hdf5_failed("H5Dget_offset(" + d.name() + ")");
    d.offset = static_cast<std::int64_t>(offset);
  }
  file.close();
  return File(path_, OpenMode::update);
}

void CheckpointWriter::write(std::size_t piece, std::int64_t offset,
                             std::span<const std::byte> bytes) {
  TESSERA_CHECK(piece < slots_.size(), "piece {} of {}", piece, slots_.size());
  const Slot& slot = slots_[piece];
  const auto count = static_cast<std::int64_t>(bytes.size());
  TESSERA_CHECK(offset >= 0 && count <= slot.bytes.count() - offset, "bytes {}+{} of {}", offset,
                count, slot.bytes.count());
  std::int64_t begin = slot.bytes.begin + offset;
  while (!bytes.empty()) {
    const auto here =
        std::min(bytes.size(), static_cast<std::size_t>(kBlockBytes - begin % kBlockBytes));
    write_within_block(slot.dataset, begin, bytes.first(here));
    begin += static_cast<std::int64_t>(here);
    bytes = bytes.subspan(here);
  }
}

void CheckpointWriter::write_within_block(std::size_t dataset, std::int64_t begin,
                                          std::span<const std::byte> bytes) {
  const DatasetRecord& d = part_.datasets[dataset];
  const std::int64_t block = begin / kBlockBytes, size = d.block_range(block).count();
  const auto count = static_cast<std::int64_t>(bytes.size());
  TESSERA_CHECK(!stored_[dataset][static_cast<std::size_t>(block)],
                "bytes {}+{} of {} written twice", begin, count, d.name());
  if (count == size) return store_block(dataset, block, bytes);

  PartialBlock& partial = partial_[{dataset, block}];
  if (partial.bytes.empty()) {
    partial.bytes.resize(static_cast<std::size_t>(size));
    partial.missing = size;
  }
  const Range here{begin % kBlockBytes, begin % kBlockBytes + count};
  for (const Range& other : partial.filled) {
    TESSERA_CHECK(intersect(here, other).empty(), "bytes {}+{} of {} written twice", begin, count,
                  d.name());
  }
  if (!partial.filled.empty() && partial.filled.back().end == here.begin) {
    partial.filled.back().end = here.end;
  } else {
    partial.filled.push_back(here);
  }
  std::memcpy(partial.bytes.data() + here.begin, bytes.data(), bytes.size());
  partial.missing -= count;
  if (partial.missing == 0) {
    store_block(dataset, block, partial.bytes);
    partial_.erase({dataset, block});
  }
}

void CheckpointWriter::store_block(std::size_t dataset, std::int64_t block,
                                   std::span<const std::byte> bytes) {
  DatasetRecord& d = part_.datasets[dataset];
  const std::int64_t at = d.offset + d.block_range(block).begin;
  try {
    file_.write(at, bytes);
  } catch (Error& error) {
    error.add_context(fmt::format("saving {}, {} bytes at byte {}", d.name(), bytes.size(), at));
    throw;
  }
  d.checksums[static_cast<std::size_t>(block)] = hash_bytes(bytes);
  stored_[dataset][static_cast<std::size_t>(block)] = true;
}

RankPart CheckpointWriter::finish() {
  for (std::size_t i = 0; i < stored_.size(); ++i) {
    const auto hole = std::find(stored_[i].begin(), stored_[i].end(), false);
    TESSERA_CHECK(hole == stored_[i].end(), "block {} of {} was not written",
                  hole - stored_[i].begin(), part_.datasets[i].name());
  }
  // HDF5 places small datasets in any order.
  std::sort(part_.datasets.begin(), part_.datasets.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  part_.rest_checksum = hash_rest(file_, part_);
  file_.sync();
  file_.close();
  sync_directory(path_.parent_path());
  return std::move(part_);
}

}  // namespace tessera::io
