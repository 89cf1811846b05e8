// Reading a Hugging Face directory.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <set>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "core/terminal.hpp"
#include "io/finite.hpp"
#include "io/hf_codes.hpp"
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

std::string wrong_type(std::string_view tensor, const SafetensorsEntry& entry) {
  return fmt::format("{} has the element type {}; allowed: F32, BF16, F16, F64", tensor,
                     entry.dtype);
}

/// Why the stored tensor cannot be what the model wants there; empty if it can.
std::string misfit(const SafetensorsEntry& entry, const HfTensor& wanted) {
  if (entry.shape != wanted.stored_shape()) {
    return fmt::format("{} has the shape {}; config.json says {}", wanted.tensor,
                       shape_text(entry.shape), shape_text(wanted.stored_shape()));
  }
  return is_floating(entry) ? "" : wrong_type(wanted.tensor, entry);
}

}  // namespace

bool is_model_directory(const fs::path& directory) {
  return fs::exists(directory / "config.json") || fs::exists(directory / kPeftConfigFile);
}

fs::path base_directory(const fs::path& directory) {
  return fs::exists(directory / kPeftConfigFile) ? read_peft_config(directory).base : directory;
}

HfModel HfModel::open(const fs::path& directory, const std::optional<HfFreshHead>& fresh) {
  if (fs::exists(directory / kPeftConfigFile)) {
    HfModel beside = open(read_peft_config(directory).base, fresh);
    const auto adapters = std::make_shared<const PeftAdapters>(directory, beside.architecture());
    adapters->check_base([&] { return beside.value_hash(); });
    beside.adapters_ = adapters;
    return beside;
  }
  HfModel model;
  std::optional<HfWantedHead> wanted;
  if (fresh) wanted = {.task = fresh->task, .head = HeadWeights::fresh};
  model.config_ = read_hf_config(directory / "config.json", wanted);
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
  model.match(directory, fresh);
  return model;
}

std::uint64_t HfModel::value_hash() const {
  constexpr std::int64_t kSome = 64;
  Hasher hash;
  std::array<float, kSome> values{};
  for (const HfTensor& p : parameters_) {
    if (!p.parameter.starts_with("block.") || p.parameter.find(".mlp.expert.") != p.parameter.npos)
      continue;
    hash.add(std::string_view(p.parameter));
    const auto some =
        std::span(values).first(static_cast<std::size_t>(std::min(kSome, p.elements())));
    for (const std::int64_t begin : {std::int64_t{0}, p.elements() - std::ssize(some)}) {
      read(p.parameter, begin, some);
      for (const float x : some) hash.add(bf16(x).bits);
    }
  }
  return hash.value();
}

/// Finds the tensors of a model among those of its files, and what is wrong with them.
class HfModel::Matching {
 public:
  Matching(HfModel& model, const std::optional<HfFreshHead>& fresh) : model_(model) {
    if (fresh) leave_head(*fresh);
    for (const HfTensor& tensor : model.parameters_) add_known(tensor);
    for (const HfTensor& tensor : hf_copies(model.architecture())) add_known(tensor);
    for (std::size_t shard = 0; shard < model.shards_.size(); ++shard) {
      for (const auto& [name, entry] : model.shards_[shard].tensors())
        add_found(name, entry, shard);
    }
    if (fresh) leave_absent_pooler();
  }

  void take_parameters() {
    for (const HfTensor& tensor : model_.parameters_) {
      const bool of_head = !tensor.tensor.starts_with(hf_prefix(model_.architecture()));
      tensors_of_head_ += of_head ? 1 : 0;
      if (auto source = take(tensor)) {
        take_added(*source);
        model_.sources_.emplace(tensor.parameter, *source);
      } else {
        add_missing(tensor.tensor);
        missing_of_head_ += of_head ? 1 : 0;
      }
    }
    for (const HfTensor& tensor : hf_copies(model_.architecture())) {
      if (const auto copy = take(tensor)) model_.copies_.emplace(tensor.parameter, *copy);
    }
  }

  /// Whether none of the tensors behind the model's layers is there, and none else is missing.
  bool headless() const {
    return !problems_.empty() && std::ssize(problems_) == missing_of_head_ &&
           missing_of_head_ == tensors_of_head_;
  }

  /// What is wrong, beginning with what nothing has taken: there may be too much that is missing to
  /// list it.
  std::vector<std::string> problems() && {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : found_) {
      if (!tensor.used) all.push_back(fmt::format("{} is not a tensor of the family", name));
    }
    std::ranges::move(problems_, std::back_inserter(all));
    return all;
  }

 private:
  struct Found {
    std::size_t shard;
    const SafetensorsEntry* entry;
    bool used = false;
  };

  /// A pooler has the names of what is before the head, and is a dense layer of the head.
  static bool of_pooler(const HfTensor& tensor) { return tensor.parameter.starts_with("head_"); }
  bool has_prefix(std::string_view name) const {
    return name.starts_with(hf_prefix(model_.architecture()));
  }

  /// Parameters of a fresh head are none of the directory's, but for a pooler that fits it.
  void leave_head(const HfFreshHead& fresh) {
    const bool pooled = fresh.hidden == model_.architecture().hidden;
    std::erase_if(model_.parameters_, [&](const HfTensor& tensor) {
      const bool leave = !has_prefix(tensor.tensor) || (of_pooler(tensor) && !pooled);
      if (leave) left_.insert(tensor.tensor);
      return leave;
    });
    for (const SafetensorsFile& shard : model_.shards_) {
      headed_ = headed_ || std::ranges::any_of(shard.tensors(), [&](const auto& tensor) {
                  return has_prefix(tensor.first);
                });
    }
  }

  void leave_absent_pooler() {
    const auto there = [&](const HfTensor& tensor) {
      return of_pooler(tensor) && found_.contains(tensor.tensor);
    };
    if (std::ranges::none_of(model_.parameters_, there))
      std::erase_if(model_.parameters_, of_pooler);
  }

  /// Embeddings and heads may not.
  bool may_be_codes(const HfTensor& tensor) const {
    return model_.config_.codes && tensor.shape.size() == 2 &&
           tensor.parameter.starts_with("block.");
  }

  void add_known(const HfTensor& tensor) {
    known_.insert(tensor.tensor);
    if (!may_be_codes(tensor)) return;
    known_.insert(codes_of(tensor.tensor));
    known_.insert(scales_of(tensor.tensor));
  }

  bool of_other_head(std::string_view name) const {
    if (known_.contains(name)) return false;
    return left_.contains(name) ||
           hf_other_head(model_.architecture(), name, model_.config_.further_layers) ||
           (headed_ && !has_prefix(name));
  }

  /// Files of the model without its head have names without the prefix.
  void add_found(std::string_view name, const SafetensorsEntry& entry, std::size_t shard) {
    if (hf_ignored(name)) return;
    std::string key = hf_current_name(name);
    if (!known_.contains(key) && !has_prefix(key) && !of_other_head(key))
      key = fmt::format("{}{}", hf_prefix(model_.architecture()), key);
    if (of_other_head(key)) {
      model_.other_heads_.emplace_back(name);
      return;
    }
    if (!found_.emplace(key, Found{shard, &entry}).second)
      problems_.push_back(fmt::format("{} is there twice", name));
  }

  /// What is wrong with a tensor that several parameters share is told once.
  std::optional<Source> take(const HfTensor& tensor) {
    if (const auto stored = found_.find(tensor.tensor); stored != found_.end()) {
      const bool again = std::exchange(stored->second.used, true);
      const SafetensorsEntry& entry = *stored->second.entry;
      if (auto problem = misfit(entry, tensor); !again && !problem.empty())
        problems_.push_back(std::move(problem));
      return Source{.tensor = tensor, .shard = stored->second.shard, .entry = &entry};
    }
    const auto codes = may_be_codes(tensor) ? found_.find(codes_of(tensor.tensor)) : found_.end();
    if (codes == found_.end()) return std::nullopt;
    const auto scales = found_.find(scales_of(tensor.tensor));
    Source source{.tensor = tensor, .shard = codes->second.shard, .entry = codes->second.entry};
    if (scales != found_.end())
      source.scales_shard = scales->second.shard, source.scales = scales->second.entry;
    if (std::exchange(codes->second.used, true)) return source;
    if (scales == found_.end()) {
      add_missing(scales_of(tensor.tensor));
    } else {
      scales->second.used = true;
      check_codes(source);
    }
    return source;
  }

  void check_codes(const Source& source) {
    const HfTensor& tensor = source.tensor;
    const RowCodes row(*model_.config_.codes, tensor.cols());
    const auto check = [&](std::string_view name, const SafetensorsEntry& entry, DType type,
                           std::int64_t columns) {
      const std::vector<std::int64_t> shape = {tensor.stored_rows, columns};
      if (entry.type == type && entry.shape == shape) return;
      problems_.push_back(fmt::format("{} is {} {}; config.json, which says {}, wants {} {}", name,
                                      entry.dtype, shape_text(entry.shape),
                                      to_string(*model_.config_.codes), to_string(type),
                                      shape_text(shape)));
    };
    check(codes_of(tensor.tensor), *source.entry, DType::u8, row.bytes());
    check(scales_of(tensor.tensor), *source.scales, DType::f32, row.blocks());
  }

  void take_added(Source& source) {
    const HfTensor& tensor = source.tensor;
    if (tensor.added.empty()) return;
    const auto stored = found_.find(tensor.added);
    if (stored == found_.end()) return add_missing(tensor.added);
    stored->second.used = true;
    const SafetensorsEntry& entry = *stored->second.entry;
    if (entry.shape.size() != 2 || entry.shape[0] < 1 || entry.shape[1] != tensor.cols()) {
      problems_.push_back(fmt::format("{} has the shape {}; needed: one or more rows of {}",
                                      tensor.added, shape_text(entry.shape), tensor.cols()));
    } else if (!is_floating(entry)) {
      problems_.push_back(wrong_type(tensor.added, entry));
    }
    source.added_shard = stored->second.shard, source.added_entry = &entry;
  }

  void add_missing(std::string_view tensor) {
    problems_.push_back(fmt::format("{} is missing", tensor));
  }

  HfModel& model_;
  std::set<std::string, std::less<>> known_;
  std::set<std::string, std::less<>> left_;          // of the head, where that is a fresh one
  bool headed_ = false;                              // what has no prefix is of a head, likewise
  std::map<std::string, Found, std::less<>> found_;  // by the current name, with the prefix
  std::vector<std::string> problems_;
  std::ptrdiff_t tensors_of_head_ = 0, missing_of_head_ = 0;
};

void HfModel::match(const fs::path& directory, const std::optional<HfFreshHead>& fresh) {
  Matching matching(*this, fresh);
  matching.take_parameters();
  const bool headless = matching.headless();
  const std::vector<std::string> problems = std::move(matching).problems();
  if (problems.empty()) return;
  std::string message =
      printable(fmt::format("{}: the weights do not fit config.json:", directory.string()));
  if (headless) {
    message = printable(fmt::format(
        "{}: these are weights without the head of a {}, and none is made up: give the directory "
        "of a model that has it, or, to train a classifier or reward model, task.kind and "
        "model.init_head = "
        "\"fresh\" in a deck:",
        directory.string(), hf_model_class(architecture())));
  }
  for (std::size_t i = 0; i < std::min(problems.size(), kShownProblems); ++i) {
    message += "\n  " + printable(problems[i]);
  }
  if (problems.size() > kShownProblems) {
    message += fmt::format("\n  and {} more", problems.size() - kShownProblems);
  }
  throw DataError(Lines{message});
}

std::string HfModel::left_out(std::string_view directory) const {
  if (other_heads_.empty()) return "";
  const std::size_t shown = std::min(other_heads_.size(), kShownProblems);
  const std::string more =
      other_heads_.size() > shown ? fmt::format(" and {} more", other_heads_.size() - shown) : "";
  return printable(fmt::format(
      "note: of {}, {}{} are left out: what is read of a {} has no use for them", directory,
      fmt::join(std::span(other_heads_).first(shown), ", "), more, architecture().family));
}

DType HfModel::stored_dtype() const { return *source_of(kEmbedding).entry->type; }

const HfModel::Source& HfModel::source_of(std::string_view parameter) const {
  const auto found = sources_.find(parameter);
  TESSERA_CHECK(found != sources_.end(), "no parameter {}", parameter);
  return found->second;
}

std::string HfModel::place_of_scale(const Source& source, std::int64_t row,
                                    std::int64_t block) const {
  return fmt::format("{}: {}[{}, {}]", shards_[source.scales_shard].path().string(),
                     scales_of(source.tensor.tensor), row, block);
}

std::string HfModel::place(const Source& source, std::int64_t element) const {
  const HfTensor& t = source.tensor;
  const std::int64_t row = t.stored_row(element / t.cols()), col = element % t.cols();
  if (source.scales != nullptr) return place_of_scale(source, row, col / config_.codes->block);
  const auto stored = t.stored_shape();
  const std::int64_t there = t.transposed ? col * stored[1] + row : row * t.cols() + col;
  return fmt::format("{}: {}{}", shards_[source.shard].path().string(), t.tensor,
                     index_text(stored, there));
}

std::string HfModel::place(std::string_view parameter, std::int64_t element) const {
  if (of_adapters(parameter)) return adapters_->place(parameter, element);
  return place(source_of(parameter), element);
}

/// The parameter is read, so no more is read of what must be the same than the same elements.
void HfModel::check_copy(const Source& copy, std::int64_t begin,
                         std::span<const float> parameter) const {
  std::vector<float> again(std::min(kCompared, parameter.size()));
  for (; !parameter.empty();
       begin += std::ssize(again), parameter = parameter.subspan(again.size())) {
    again.resize(std::min(kCompared, parameter.size()));
    shards_[copy.shard].read(*copy.entry, begin, again);
    if (std::memcmp(again.data(), parameter.data(), again.size() * sizeof(float)) == 0) continue;
    const auto bits = [](float number) { return std::bit_cast<std::uint32_t>(number); };
    std::size_t i = 0;  // of the first whose bits differ
    while (bits(again[i]) == bits(parameter[i])) ++i;
    const std::int64_t element = begin + static_cast<std::int64_t>(i);
    const std::string_view name = copy.tensor.parameter;
    throw DataError(fmt::format(
        "{} = {} differs from {} = {}, but {} remove {} from the file", place(copy, element),
        again[i], place(name, element), parameter[i],
        name == kEmbedding
            ? "config.json ties the two: set tie_word_embeddings = false there if the model has an "
              "output matrix of its own, or"
            : "the two are one parameter:",
        copy.tensor.tensor));
  }
}

void HfModel::read(std::string_view parameter, std::int64_t begin, std::span<float> out) const {
  if (of_adapters(parameter)) return adapters_->read(parameter, begin, out);
  const Source& source = source_of(parameter);
  const HfTensor& tensor = source.tensor;
  const std::int64_t end = begin + std::ssize(out);
  TESSERA_CHECK(begin >= 0 && end <= tensor.elements(), "{}: elements {} to {}", parameter, begin,
                end);
  if (out.empty()) return;
  if (source.scales != nullptr) {
    read_codes(source, begin, out);
  } else if (tensor.transposed) {
    read_transposed(source, begin, out);
  } else {
    read_straight(source, begin, out);
  }
  if (tensor.less_one) {
    for (float& x : out) x = 1.0F + x;
  }
  if (source.added_entry != nullptr) add_row(source, begin, out);
  if (const auto copy = copies_.find(parameter); copy != copies_.end())
    check_copy(copy->second, begin, out);
}

void HfModel::add_row(const Source& source, std::int64_t begin, std::span<float> out) const {
  const std::int64_t cols = source.tensor.cols();
  std::vector<float> row(static_cast<std::size_t>(cols));
  shards_[source.added_shard].read(*source.added_entry, 0, row);
  for (std::size_t i = 0; i < out.size(); ++i)
    out[i] += row[static_cast<std::size_t>((begin + static_cast<std::int64_t>(i)) % cols)];
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

/// The rows that the range touches, one at a time.
void HfModel::read_codes(const Source& source, std::int64_t begin, std::span<float> out) const {
  const HfTensor& tensor = source.tensor;
  const RowCodes row(*config_.codes, tensor.cols());
  std::vector<std::byte> codes(static_cast<std::size_t>(row.bytes()));
  std::vector<std::byte> scales(static_cast<std::size_t>(row.scale_bytes()));
  while (!out.empty()) {
    const std::int64_t stored = tensor.stored_row(begin / row.columns());
    const std::int64_t column = begin % row.columns();
    const auto piece =
        out.first(std::min(out.size(), static_cast<std::size_t>(row.columns() - column)));
    shards_[source.shard].read_bytes(*source.entry, stored * row.bytes(), codes);
    shards_[source.scales_shard].read_bytes(*source.scales, stored * row.scale_bytes(), scales);
    if (const auto found = row.damage(codes, scales, {column, column + std::ssize(piece)})) {
      const bool scale = found->of == RowCodes::Damage::Of::scale;
      throw DataError(fmt::format(
          "{} = {}: {}: the file is damaged",
          scale ? place_of_scale(source, stored, found->index)
                : fmt::format("{}: {}, row {}, column {}", shards_[source.shard].path().string(),
                              codes_of(source.tensor.tensor), stored, found->index),
          found->value,
          scale ? "a scale is 0 or more"
                : "no code is that, for they are as many below 0 as above"));
    }
    row.decode(codes, scales, column, piece);
    begin += std::ssize(piece);
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
