// Reading a Hugging Face directory.
#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "core/error.hpp"
#include "core/terminal.hpp"
#include "io/finite.hpp"
#include "io/hugging_face.hpp"
#include "io/json.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kLargestIndex = std::int64_t{64} << 20;
constexpr std::size_t kShownProblems = 20;
constexpr std::string_view kEmbedding = "vocabulary.weight";
constexpr std::size_t kCompared = 1 << 16;  // elements of the head that are compared at a time

/// The files that an index lists; DataError for names that lead out of the directory.
std::vector<std::string> shards_of(const JsonDocument& index) {
  std::set<std::string> files;
  index.root()["weight_map"].for_each_member([&](const std::string&, const JsonCursor& file) {
    const std::string& name = file.text();
    if (name.empty() || name != fs::path(name).filename() || name.find('\0') != std::string::npos) {
      file.fail(fmt::format("{} is not the name of a file in the same directory", file.shown()));
    }
    files.insert(name);
  });
  return {files.begin(), files.end()};
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

bool is_floating(const SafetensorsEntry& entry) {
  return entry.type == DType::f32 || entry.type == DType::bf16 || entry.type == DType::f16 ||
         entry.type == DType::f64;
}

/// Why the stored tensor cannot be what the model wants there; empty if it can.
std::string misfit(const SafetensorsEntry& entry, const HfTensor& wanted) {
  if (entry.shape != wanted.stored_shape()) {
    return fmt::format("{} has the shape {}; config.json says {}", wanted.tensor,
                       shape_text(entry.shape), shape_text(wanted.stored_shape()));
  }
  if (!is_floating(entry)) {
    return fmt::format("{} has the element type {}; allowed: F32, BF16, F16, F64", wanted.tensor,
                       entry.dtype);
  }
  return "";
}

}  // namespace

HfModel HfModel::open(const fs::path& directory) {
  HfModel model;
  model.config_ = read_hf_config(directory / "config.json");
  const fs::path index = directory / "model.safetensors.index.json";
  std::vector<std::string> names{"model.safetensors"};
  if (fs::exists(index)) {
    const std::string single = std::exchange(
        names, shards_of(JsonDocument(read_text(index, kLargestIndex), index.string())))[0];
    if (fs::exists(directory / single) && std::ranges::find(names, single) == names.end()) {
      throw DataError(fmt::format("{}: {} and the files that {} lists are two models: remove one",
                                  directory.string(), single, index.filename().string()));
    }
  }
  for (const std::string& name : names) model.shards_.emplace_back(directory / name);
  model.parameters_ = hf_tensors(model.architecture());
  model.match(directory);
  return model;
}

void HfModel::match(const fs::path& directory) {
  struct Found {
    std::size_t shard;
    const SafetensorsEntry* entry;
    bool used = false;
  };
  std::vector<std::string> problems;
  std::map<std::string, Found, std::less<>> found;  // by the name with the prefix
  const std::string_view prefix = hf_prefix(architecture());
  const std::string head = hf_head(architecture()).tensor;
  for (std::size_t shard = 0; shard < shards_.size(); ++shard) {
    for (const auto& [name, entry] : shards_[shard].tensors()) {
      if (hf_ignored(name)) continue;
      const bool complete = name.starts_with(prefix) || name == head;
      const auto key = complete ? name : fmt::format("{}{}", prefix, name);
      if (!found.emplace(key, Found{shard, &entry}).second) {
        problems.push_back(fmt::format("{} is there twice", name));
      }
    }
  }
  const auto take = [&](const HfTensor& tensor) -> std::optional<Source> {
    const auto stored = found.find(tensor.tensor);
    if (stored == found.end()) return std::nullopt;
    stored->second.used = true;
    const SafetensorsEntry& entry = *stored->second.entry;
    if (auto problem = misfit(entry, tensor); !problem.empty())
      problems.push_back(std::move(problem));
    return Source{tensor, stored->second.shard, &entry};
  };
  for (const HfTensor& tensor : parameters_) {
    if (const auto source = take(tensor)) {
      sources_.emplace(tensor.parameter, *source);
    } else {
      problems.push_back(fmt::format("{} is missing", tensor.tensor));
    }
  }
  if (architecture().tied_embeddings) tied_head_ = take(hf_head(architecture()));
  for (const auto& [name, tensor] : found) {
    if (!tensor.used) problems.push_back(fmt::format("{} is not a tensor of the family", name));
  }
  if (problems.empty()) return;
  std::string message =
      printable(fmt::format("{}: the weights do not fit config.json:", directory.string()));
  for (std::size_t i = 0; i < std::min(problems.size(), kShownProblems); ++i) {
    message += "\n  " + printable(problems[i]);
  }
  if (problems.size() > kShownProblems) {
    message += fmt::format("\n  and {} more", problems.size() - kShownProblems);
  }
  throw DataError(Lines{message});
}

DType HfModel::stored_dtype() const { return *source_of(kEmbedding).entry->type; }

const HfModel::Source& HfModel::source_of(std::string_view parameter) const {
  const auto found = sources_.find(parameter);
  TESSERA_CHECK(found != sources_.end(), "no parameter {}", parameter);
  return found->second;
}

std::string HfModel::place(const Source& source, std::int64_t element) const {
  const HfTensor& t = source.tensor;
  const std::int64_t row = t.stored_row(element / t.cols()), col = element % t.cols();
  const auto stored = t.stored_shape();
  const std::int64_t there = t.transposed ? col * stored[1] + row : row * t.cols() + col;
  return fmt::format("{}: {}{}", shards_[source.shard].path().string(), t.tensor,
                     index_text(stored, there));
}

std::string HfModel::place(std::string_view parameter, std::int64_t element) const {
  return place(source_of(parameter), element);
}

/// The embedding is read, so no more is read of the head than the same elements.
void HfModel::check_tied_head(std::int64_t begin, std::span<const float> embedding) const {
  std::vector<float> head(std::min(kCompared, embedding.size()));
  for (; !embedding.empty();
       begin += std::ssize(head), embedding = embedding.subspan(head.size())) {
    head.resize(std::min(kCompared, embedding.size()));
    shards_[tied_head_->shard].read(*tied_head_->entry, begin, head);
    if (std::memcmp(head.data(), embedding.data(), head.size() * sizeof(float)) == 0) continue;
    const auto bits = [](float number) { return std::bit_cast<std::uint32_t>(number); };
    std::size_t i = 0;  // of the first whose bits differ
    while (bits(head[i]) == bits(embedding[i])) ++i;
    const std::int64_t element = begin + static_cast<std::int64_t>(i);
    throw DataError(fmt::format(
        "{} = {} differs from {} = {}, but config.json ties the two: set tie_word_embeddings = "
        "false there if the model has an output matrix of its own, or remove {} from the file",
        place(*tied_head_, element), head[i], place(kEmbedding, element), embedding[i],
        tied_head_->tensor.tensor));
  }
}

void HfModel::read(std::string_view parameter, std::int64_t begin, std::span<float> out) const {
  const Source& source = source_of(parameter);
  const HfTensor& tensor = source.tensor;
  const std::int64_t end = begin + std::ssize(out);
  TESSERA_CHECK(begin >= 0 && end <= tensor.elements(), "{}: elements {} to {}", parameter, begin,
                end);
  if (out.empty()) return;
  if (tensor.transposed) {
    read_transposed(source, begin, out);
  } else {
    read_straight(source, begin, out);
  }
  if (tensor.less_one) {
    for (float& x : out) x = 1.0F + x;
  }
  if (tied_head_ && parameter == kEmbedding) check_tied_head(begin, out);
}

/// A block of rows at a time: within one, elements follow one another in the file too.
void HfModel::read_straight(const Source& source, std::int64_t begin, std::span<float> out) const {
  const HfTensor& tensor = source.tensor;
  const std::int64_t cols = tensor.cols(), block = tensor.block * cols;
  while (!out.empty()) {
    const std::int64_t count = std::min(std::ssize(out), block - begin % block);
    const auto piece = out.first(static_cast<std::size_t>(count));
    shards_[source.shard].read(*source.entry, tensor.stored_row(begin / cols) * cols + begin % cols,
                               piece);
    begin += count;
    out = out.subspan(piece.size());
  }
}

/// Ours (r, c) is theirs (c, first + r): each of their rows gives one column of the rows that the
/// range touches.
void HfModel::read_transposed(const Source& source, std::int64_t begin,
                              std::span<float> out) const {
  const HfTensor& tensor = source.tensor;
  const std::int64_t cols = tensor.cols(), end = begin + std::ssize(out);
  const std::int64_t row_begin = begin / cols, row_end = (end - 1) / cols + 1;
  const std::int64_t first = tensor.stored_row(row_begin), width = tensor.stored_rows;
  std::vector<float> column(static_cast<std::size_t>(row_end - row_begin));
  for (std::int64_t c = 0; c < cols; ++c) {
    shards_[source.shard].read(*source.entry, c * width + first, column);
    for (std::int64_t r = row_begin; r < row_end; ++r) {
      const std::int64_t element = r * cols + c;
      if (element >= begin && element < end) {
        out[static_cast<std::size_t>(element - begin)] =
            column[static_cast<std::size_t>(r - row_begin)];
      }
    }
  }
}

}  // namespace tessera::io
