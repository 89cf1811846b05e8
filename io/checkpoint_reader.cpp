#include "io/checkpoint_reader.hpp"

#include <algorithm>
#include <cstring>

#include "core/error.hpp"
#include "core/hash.hpp"

namespace tessera {
namespace {

constexpr std::size_t kCachedBlocks = 4;

std::string name_of(std::string_view tensor, std::string_view state) {
  return fmt::format("{}/{}", state, tensor);
}

}  // namespace

void check_file_size(const std::filesystem::path& path, std::int64_t bytes) {
  const std::int64_t found = File(path, OpenMode::read).size();
  if (found != bytes) {
    throw DataError(fmt::format("{}: {} bytes, the manifest says {}: truncated or replaced",
                                path.string(), found, bytes));
  }
}

Checkpoint Checkpoint::open(const std::filesystem::path& directory) {
  return Checkpoint(directory, read_manifest(directory));
}

void Checkpoint::check_files() const {
  check_file_size(directory_ / kModelFile, manifest_.model_bytes);
  for (const RankPart& part : manifest_.parts)
    check_file_size(directory_ / rank_file_name(part.rank), part.file_bytes);
}

Checkpoint::Checkpoint(std::filesystem::path directory, Manifest manifest)
    : directory_(std::move(directory)), manifest_(std::move(manifest)) {
  for (const RankPart& part : manifest_.parts) {
    for (const DatasetRecord& d : part.datasets) {
      auto& segments = segments_[d.name()];
      std::int64_t first_byte = 0;
      for (const Box& box : d.boxes) {
        segments.push_back({part.rank, &d, box, first_byte});
        first_byte += box.elements() * size_of(d.type);
      }
    }
  }
}

const std::vector<Checkpoint::Segment>* Checkpoint::segments_of(std::string_view tensor,
                                                                std::string_view state) const {
  const auto found = segments_.find(name_of(tensor, state));
  return found == segments_.end() ? nullptr : &found->second;
}

std::optional<Checkpoint::Entry> Checkpoint::find(std::string_view tensor,
                                                  std::string_view state) const {
  const auto* segments = segments_of(tensor, state);
  if (segments == nullptr) return std::nullopt;
  const DatasetRecord& any = *segments->front().dataset;
  return Entry{any.shape, any.type};
}

void Checkpoint::read(std::string_view tensor, std::string_view state, const Box& box, DType type,
                      std::span<std::byte> out) {
  const auto* segments = segments_of(tensor, state);
  const auto fail = [&](std::string_view what) {
    throw DataError(fmt::format("{}: {} {}", directory_.string(), name_of(tensor, state), what));
  };
  if (segments == nullptr) return fail("is not in this checkpoint");
  const DatasetRecord& any = *segments->front().dataset;
  if (any.type != type)
    fail(fmt::format("is stored as {}, but {} is asked for", to_string(any.type), to_string(type)));
  if (!inside(any.shape, box))
    fail(fmt::format("has shape {}: elements from {} are asked for, {} of them",
                     to_string(any.shape.extents()), to_string(box.start), to_string(box.count)));
  TESSERA_CHECK(static_cast<std::int64_t>(out.size()) == box.elements() * size_of(type),
                "{} bytes for {} elements", out.size(), box.elements());
  read_box(*segments, box, out);
}

void Checkpoint::read(std::string_view tensor, std::string_view state, Range elements, DType type,
                      std::span<std::byte> out) {
  const auto entry = find(tensor, state);
  if (!entry || elements.begin < 0 || elements.begin > elements.end ||
      elements.end > entry->shape.elements()) {
    throw DataError(fmt::format("{}: elements [{}, {}) of {} are not in this checkpoint",
                                directory_.string(), elements.begin, elements.end,
                                name_of(tensor, state)));
  }
  for (const Box& box : boxes_of_range(entry->shape, elements)) {
    const auto bytes = static_cast<std::size_t>(box.elements() * size_of(type));
    TESSERA_CHECK(bytes <= out.size(), "{} bytes left for {}", out.size(), bytes);
    read(tensor, state, box, type, out.first(bytes));
    out = out.subspan(bytes);
  }
  TESSERA_CHECK(out.empty(), "{} bytes too many for elements [{}, {})", out.size(), elements.begin,
                elements.end);
}

// The manifest was checked to hold each element once, so the overlaps fill the whole box.
void Checkpoint::read_box(const std::vector<Segment>& segments, const Box& box,
                          std::span<std::byte> out) {
  for (const Segment& segment : segments) {
    const auto part = intersect(segment.box, box);
    if (!part) continue;
    const std::int64_t size = size_of(segment.dataset->type);
    for_each_run(*part, segment.box, box,
                 [&](std::int64_t from, std::int64_t to, std::int64_t elements) {
                   read_bytes(segment, segment.first_byte + from * size,
                              out.subspan(static_cast<std::size_t>(to * size),
                                          static_cast<std::size_t>(elements * size)));
                 });
  }
}

void Checkpoint::read_bytes(const Segment& segment, std::int64_t begin, std::span<std::byte> out) {
  while (!out.empty()) {
    const auto rest =
        block(segment, begin / kBlockBytes).subspan(static_cast<std::size_t>(begin % kBlockBytes));
    const std::size_t here = std::min(rest.size(), out.size());
    std::memcpy(out.data(), rest.data(), here);
    out = out.subspan(here);
    begin += static_cast<std::int64_t>(here);
  }
}

std::span<const std::byte> Checkpoint::block(const Segment& segment, std::int64_t block) {
  const DatasetRecord& d = *segment.dataset;
  const auto cached = std::find_if(cache_.begin(), cache_.end(), [&](const CachedBlock& c) {
    return c.dataset == &d && c.block == block;
  });
  if (cached != cache_.end()) {
    std::rotate(cache_.begin(), cached, cached + 1);
    return cache_.front().bytes;
  }

  std::vector<std::byte> bytes;  // the buffer of the block that was not used for longest
  if (cache_.size() == kCachedBlocks) {
    bytes = std::move(cache_.back().bytes);
    cache_.pop_back();
  }
  const Range range = d.block_range(block);
  bytes.resize(static_cast<std::size_t>(range.count()));
  const auto path = directory_ / rank_file_name(segment.rank);
  if (!file_ || file_->path() != path) file_.emplace(path, OpenMode::read);
  file_->read(d.offset + range.begin, bytes);
  bytes_read_ += range.count();
  if (hash_bytes(bytes) != d.checksums[static_cast<std::size_t>(block)]) {
    throw DataError(
        fmt::format("{}: {} is damaged: the checksum of bytes {}+{} differs from the manifest's",
                    path.string(), d.name(), d.offset + range.begin, range.count()));
  }
  cache_.insert(cache_.begin(), {&d, block, std::move(bytes)});
  return cache_.front().bytes;
}

}  // namespace tessera
