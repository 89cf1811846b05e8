#include "io/checkpoint_manifest.hpp"

#include <algorithm>
#include <set>

#include "core/error.hpp"

namespace tessera::io {
namespace {

/// What is wrong with one dataset taken alone.
std::optional<std::string> dataset_problem(const DatasetRecord& d) {
  if (!is_checkpoint_name(d.tensor) || !is_checkpoint_name(d.state))
    return "names may have letters, digits, '_', '-' and '.' only";
  if (!is_checkpoint_type(d.type)) return fmt::format("elements of type {}", to_string(d.type));
  if (d.state == "master" && d.type != DType::f32)
    return fmt::format("master is {}, must be f32", to_string(d.type));
  if (d.boxes.empty()) return "no boxes";
  std::int64_t elements = 0;
  for (const Box& box : d.boxes) {
    if (!inside(d.shape, box)) {
      return fmt::format("box at {} of {} is outside shape {}", to_string(d.shape.used(box.start)),
                         to_string(d.shape.used(box.count)), to_string(d.shape.extents()));
    }
    elements += box.elements();  // each is at most 2^48: checked before the next is added
    if (elements > d.shape.elements()) return "more elements than the tensor has";
  }
  if (static_cast<std::int64_t>(d.checksums.size()) != d.blocks())
    return fmt::format("{} checksums for {} blocks", d.checksums.size(), d.blocks());
  return std::nullopt;
}

/// What is wrong with one rank's file.
std::optional<std::string> part_problem(const RankPart& part) {
  std::int64_t end = 0;
  std::set<std::string> names;
  for (const DatasetRecord& d : part.datasets) {
    auto problem = dataset_problem(d);
    if (!problem && !names.insert(d.name()).second) problem = "appears twice";
    if (!problem && (d.offset < end || d.offset > part.file_bytes - d.bytes())) {
      problem = fmt::format("bytes {}+{} overlap the dataset before or pass the file's end at {}",
                            d.offset, d.bytes(), part.file_bytes);
    }
    if (problem)
      return fmt::format("{}: dataset {}: {}", rank_file_name(part.rank), d.name(), *problem);
    end = d.offset + d.bytes();
  }
  return std::nullopt;
}

}  // namespace

std::int64_t DatasetRecord::elements() const {
  std::int64_t sum = 0;
  for (const Box& box : boxes) sum += box.elements();
  return sum;
}

Range DatasetRecord::block_range(std::int64_t block) const {
  return {block * block_bytes, std::min((block + 1) * block_bytes, bytes())};
}

std::optional<std::string> find_problem(std::span<const RankPart> parts) {
  struct Holders {
    const DatasetRecord* first;
    std::vector<Box> boxes;
  };
  std::map<std::string, Holders> holders;            // by state/tensor
  std::map<std::string, const DatasetRecord*> seen;  // by tensor
  std::map<std::string, bool> of_tensors;            // by state: whether a tensor has one value
  const Shape one({1});
  int rank = 0;
  for (const RankPart& part : parts) {
    if (part.rank != rank++)
      return fmt::format("rank {}'s part where rank {}'s should be", part.rank, rank - 1);
    if (auto problem = part_problem(part)) return problem;
    for (const DatasetRecord& d : part.datasets) {
      auto& all = holders.try_emplace(d.name(), Holders{&d, {}}).first->second;
      all.boxes.insert(all.boxes.end(), d.boxes.begin(), d.boxes.end());
      const bool of_tensor =
          of_tensors.try_emplace(d.state, d.shape == one).first->second && d.shape == one;
      const DatasetRecord& other =
          of_tensor ? *all.first : *seen.try_emplace(d.tensor, &d).first->second;
      if (d.type != all.first->type || d.shape != other.shape || d.shape != all.first->shape) {
        return fmt::format("{}: {} is {} {} here, but {} {} elsewhere", rank_file_name(part.rank),
                           d.name(), to_string(d.type), to_string(d.shape.extents()),
                           to_string(all.first->type), to_string(other.shape.extents()));
      }
    }
  }
  if (holders.empty()) return "no tensors";
  for (const auto& [name, all] : holders) {
    const Shape& shape = all.first->shape;
    if (const auto bad = find_miscount(shape, all.boxes)) {
      return fmt::format("{}: element {} is held {} times by the rank files, must be once", name,
                         to_string(shape.used(bad->point)), bad->times);
    }
  }
  return std::nullopt;
}

bool is_checkpoint_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  };
  return !name.empty() && name.size() <= 255 && name.front() != '.' &&
         std::all_of(name.begin(), name.end(), allowed);
}

bool is_checkpoint_type(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16;
}

std::string rank_file_name(int rank) { return fmt::format("rank_{:05}.h5", rank); }

}  // namespace tessera::io
