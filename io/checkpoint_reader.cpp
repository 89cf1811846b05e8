#include "io/checkpoint_reader.hpp"

#include <algorithm>
#include <cstring>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "io/read_ahead.hpp"

namespace tessera::io {
namespace {

std::string name_of(std::string_view tensor, std::string_view state) {
  return fmt::format("{}/{}", state, tensor);
}

/// A box that goes to `out`.
Wanted wanted_in(std::string_view tensor, std::string_view state, const Box& box, DType type,
                 std::span<std::byte> out) {
  return {std::string(tensor), std::string(state), box, type,
          [=](std::int64_t first, std::span<const std::byte> elements) {
            const auto at = static_cast<std::size_t>(first * size_of(type));
            TESSERA_CHECK(at + elements.size() <= out.size(), "no room in {} bytes for {} at {}",
                          out.size(), elements.size(), at);
            std::memcpy(out.data() + at, elements.data(), elements.size());
          }};
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
  return Checkpoint(directory);
}

void Checkpoint::check_files() const {
  check_file_size(directory_ / kModelFile, manifest_.model_bytes);
  for (const RankPart& part : manifest_.parts)
    check_file_size(directory_ / rank_file_name(part.rank), part.file_bytes);
}

Checkpoint::Checkpoint(const std::filesystem::path& directory)
    : directory_(directory), hold_(directory), manifest_(read_manifest(directory)) {
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
  read_serially({{wanted_in(tensor, state, box, type, out)}});
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
  TESSERA_CHECK(static_cast<std::int64_t>(out.size()) == elements.count() * size_of(type),
                "{} bytes for elements [{}, {})", out.size(), elements.begin, elements.end);
  std::vector<Wanted> wanted;
  for (const Box& box : boxes_of_range(entry->shape, elements)) {
    const auto bytes = static_cast<std::size_t>(box.elements() * size_of(type));
    wanted.push_back(wanted_in(tensor, state, box, type, out.first(bytes)));
    out = out.subspan(bytes);
  }
  read_serially(wanted);
}

struct Checkpoint::Run {
  Range bytes;         // of the dataset
  std::size_t wanted;  // which
  std::int64_t first;  // byte of the wanted box
};

struct Checkpoint::Overlap {
  std::size_t wanted;  // which
  Box box;             // of it
  const Segment* segment;
  Box part;  // of both
};

struct Checkpoint::Block {
  const Segment* segment = nullptr;  // of the dataset
  std::int64_t index = -1;           // within the dataset
  std::vector<Run> runs;             // within the block
  std::vector<std::byte> data;

  Range bytes() const { return segment->dataset->block_range(index); }
  void give(std::span<const Wanted> wanted) const {
    for (const Run& run : runs) {
      const Wanted& w = wanted[run.wanted];
      w.take(run.first / size_of(w.type),
             std::span(data).subspan(static_cast<std::size_t>(run.bytes.begin - bytes().begin),
                                     static_cast<std::size_t>(run.bytes.count())));
    }
  }
};

/// Sorted by rank and offset, which is the order of the bytes on the disk. The manifest was checked
/// to hold each element once, so these make up everything that is wanted.
Checkpoint::Overlaps Checkpoint::overlaps_with(std::span<const Wanted> wanted) const {
  Overlaps overlaps;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const Wanted& w = wanted[i];
    const auto* segments = segments_of(w.tensor, w.state);
    const auto fail = [&](std::string_view what) {
      throw DataError(
          fmt::format("{}: {} {}", directory_.string(), name_of(w.tensor, w.state), what));
    };
    if (segments == nullptr) fail("is not in this checkpoint");
    const DatasetRecord& any = *segments->front().dataset;
    if (any.type != w.type)
      fail(fmt::format("is stored as {}, but {} is asked for", to_string(any.type),
                       to_string(w.type)));
    if (!inside(any.shape, w.box))
      fail(fmt::format("has shape {}: elements from {} are asked for, {} of them",
                       to_string(any.shape.extents()), to_string(w.box.start),
                       to_string(w.box.count)));
    for (const Segment& segment : *segments) {
      if (const auto part = intersect(segment.box, w.box))
        overlaps[{segment.rank, segment.dataset->offset}].push_back({i, w.box, &segment, *part});
    }
  }
  return overlaps;
}

class Checkpoint::Walk {
 public:
  explicit Walk(Overlaps overlaps) : overlaps_(std::move(overlaps)), here_(overlaps_.begin()) {}

  /// The next block, without its data; false after the last.
  bool next(Block& block) {
    while (run_ == runs_.size()) {
      if (here_ == overlaps_.end()) return false;
      enter((here_++)->second);
    }
    block.segment = segment_;
    block.index = std::max(runs_[run_].bytes.begin / segment_->dataset->block_bytes, next_block_);
    next_block_ = block.index + 1;
    const Range bytes = block.bytes();
    block.runs.clear();
    for (std::size_t i = run_; i < runs_.size() && runs_[i].bytes.begin < bytes.end; ++i) {
      const Run& run = runs_[i];
      const Range part = intersect(run.bytes, bytes);
      if (!part.empty())
        block.runs.push_back({part, run.wanted, run.first + part.begin - run.bytes.begin});
    }
    while (run_ < runs_.size() && runs_[run_].bytes.end <= bytes.end) ++run_;
    return true;
  }

 private:
  /// A dataset.
  void enter(std::span<const Overlap> overlaps) {
    segment_ = overlaps.front().segment;
    runs_.clear();
    run_ = 0;
    next_block_ = 0;
    for (const Overlap& o : overlaps) {
      const std::int64_t size = size_of(o.segment->dataset->type);
      for_each_run(o.part, o.segment->box, o.box,
                   [&](std::int64_t from, std::int64_t to, std::int64_t elements) {
                     const std::int64_t begin = o.segment->first_byte + from * size;
                     runs_.push_back({{begin, begin + elements * size}, o.wanted, to * size});
                   });
    }
    std::sort(runs_.begin(), runs_.end(),
              [](const Run& a, const Run& b) { return a.bytes.begin < b.bytes.begin; });
  }

  Overlaps overlaps_;
  Overlaps::const_iterator here_;  // the dataset after this one
  const Segment* segment_ = nullptr;
  std::vector<Run> runs_;  // of this dataset, by where they begin
  std::size_t run_ = 0;    // the first that is not read to its end
  std::int64_t next_block_ = 0;
};

Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

void Checkpoint::read(std::span<const Wanted> wanted, const ReadProgress& progress) {
  std::int64_t done = 0, total = 0;
  for (const Wanted& w : wanted) total += w.box.elements() * size_of(w.type);
  Walk walk(overlaps_with(wanted));
  ReadAhead<Block> blocks([&](Block& block) {
    const bool more = walk.next(block);
    if (more) fetch(block);
    return more;
  });
  while (const Block* block = blocks.next()) {
    verify(*block);
    block->give(wanted);
    for (const Run& run : block->runs) done += run.bytes.count();
    if (progress) progress(done, total);
  }
}

/// A caller that reads row by row comes to the same block again and again, so the last one is kept.
void Checkpoint::read_serially(std::span<const Wanted> wanted) {
  Walk walk(overlaps_with(wanted));
  Block block;
  while (walk.next(block)) {
    if (last_ && last_->segment->dataset == block.segment->dataset && last_->index == block.index) {
      std::swap(block.data, last_->data);
      last_->index = -1;
    } else {
      fetch(block);
      verify(block);
    }
    block.give(wanted);
    if (!last_) last_ = std::make_unique<Block>();
    std::swap(block, *last_);
  }
}

void Checkpoint::fetch(Block& block) {
  const Range bytes = block.bytes();
  block.data.resize(static_cast<std::size_t>(bytes.count()));
  const auto path = directory_ / rank_file_name(block.segment->rank);
  if (!file_ || file_->path() != path) file_.emplace(path, OpenMode::read);
  file_->read(block.segment->dataset->offset + bytes.begin, block.data);
  bytes_read_ += bytes.count();
}

void Checkpoint::verify(const Block& block) const {
  const auto& [rank, dataset, box, first] = *block.segment;
  if (hash_bytes(block.data) == dataset->checksums[static_cast<std::size_t>(block.index)]) return;
  throw DataError(
      fmt::format("{}: {} is damaged: the checksum of bytes {}+{} differs from the manifest's",
                  (directory_ / rank_file_name(rank)).string(), dataset->name(),
                  dataset->offset + block.bytes().begin, block.data.size()));
}

}  // namespace tessera::io
