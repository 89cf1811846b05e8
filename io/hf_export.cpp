// Writing a Hugging Face directory.
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/hf_codes.hpp"
#include "io/hugging_face.hpp"
#include "io/partial_directory.hpp"
#include "io/tokenizer_json.hpp"
#include "io/utf8.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kElementsAtOnce = std::int64_t{1} << 20;  // elements asked for at a time

/// A tensor of the file and the parameters that make it up, adjacent in the table; zeros where
/// there are none. Codes have their scales behind them.
struct Stored {
  SafetensorsWriter::Tensor tensor;
  std::span<const HfTensor> parts;
  std::optional<SafetensorsWriter::Tensor> scales = {};

  std::int64_t bytes(DType file_type) const {
    return tensor.elements() * size_of(tensor.type.value_or(file_type)) +
           (scales ? scales->elements() * size_of(*scales->type) : 0);
  }
  /// What it begins on multiples of, and its bytes are one of.
  std::int64_t alignment(DType file_type) const {
    return size_of((scales ? *scales : tensor).type.value_or(file_type));
  }
};

Stored as_codes(std::span<const HfTensor> parts, const kernels::BlockFormat& format) {
  const HfTensor& first = parts[0];
  const RowCodes row(format, first.cols());
  return {{codes_of(first.tensor), {first.stored_rows, row.bytes()}, DType::u8},
          parts,
          {{scales_of(first.tensor), {first.stored_rows, row.blocks()}, DType::f32}}};
}

std::vector<Stored> stored_tensors(std::span<const HfTensor> parameters,
                                   const std::optional<HfCodes>& codes) {
  std::vector<Stored> all;
  for (std::size_t i = 0; i < parameters.size();) {
    const HfTensor& first = parameters[i];
    std::size_t end = i + 1;
    while (end < parameters.size() && parameters[end].tensor == first.tensor) ++end;
    const auto parts = parameters.subspan(i, end - i);
    if (codes && codes->has(first.parameter)) {
      all.push_back(as_codes(parts, codes->format));
    } else {
      all.push_back({{first.tensor, first.stored_shape(), first.type}, parts});
    }
    if (!first.added.empty()) all.push_back({{first.added, {first.added_rows, first.cols()}}, {}});
    i = end;
  }
  return all;
}

/// Greedy: a shard is full when the next tensor does not fit.
std::vector<std::span<const Stored>> shards_of(std::span<const Stored> tensors, DType type,
                                               std::int64_t shard_bytes) {
  std::vector<std::span<const Stored>> shards;
  std::size_t first = 0;
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t size = tensors[i].bytes(type);
    if (i > first && bytes + size > shard_bytes) {
      shards.push_back(tensors.subspan(first, i - first));
      first = i;
      bytes = 0;
    }
    bytes += size;
  }
  shards.push_back(tensors.subspan(first));
  return shards;
}

/// Parts side by side and transposed: the largest such tensor is one matrix of a block.
void write_transposed(SafetensorsWriter& file, const Stored& stored,
                      const ParameterSource& source) {
  const std::int64_t rows = stored.parts[0].shape[0], cols = stored.parts[0].shape[1];
  const std::int64_t width = stored.parts[0].stored_rows;
  std::vector<float> ours(static_cast<std::size_t>(rows * cols));
  std::vector<float> theirs(static_cast<std::size_t>(width * cols));
  for (const HfTensor& part : stored.parts) {
    source(part.parameter, 0, ours);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < cols; ++c) {
        theirs[static_cast<std::size_t>(c * width + part.first + r)] =
            ours[static_cast<std::size_t>(r * cols + c)];
      }
    }
  }
  file.append(theirs);
}

void write_zeros(SafetensorsWriter& file, std::int64_t elements) {
  const std::vector<float> zeros(static_cast<std::size_t>(elements));
  file.append(zeros);
}

/// The parts' blocks of rows in turn.
void write_straight(SafetensorsWriter& file, const Stored& stored, const ParameterSource& source) {
  const HfTensor& first = stored.parts[0];
  write_zeros(file, first.zeros * first.cols());
  const std::int64_t turns = first.rows() / first.block;
  for (std::int64_t turn = 0; turn < turns; ++turn) {
    for (const HfTensor& part : stored.parts) {
      const std::int64_t block = part.block * part.cols(), end = (turn + 1) * block;
      for (std::int64_t begin = turn * block; begin < end; begin += kElementsAtOnce) {
        std::vector<float> piece(static_cast<std::size_t>(std::min(kElementsAtOnce, end - begin)));
        source(part.parameter, begin, piece);
        if (part.less_one) {
          for (float& x : piece) x -= 1.0F;
        }
        file.append(piece);
      }
    }
  }
}

/// Writes a matrix's rows, in the order of the file, as codes and, behind them, their scales.
class CodesWriter {
 public:
  CodesWriter(SafetensorsWriter& file, const kernels::BlockFormat& format, std::int64_t columns)
      : file_(file), row_(format, columns), decoded_(static_cast<std::size_t>(columns)) {}

  struct Squares {
    double all = 0, lost = 0;
  };
  /// The next whole rows; adds theirs to `squares`.
  void append(std::span<const float> rows, Squares& squares) {
    const auto columns = static_cast<std::size_t>(row_.columns());
    const auto bytes = static_cast<std::size_t>(row_.bytes());
    const auto scale_bytes = static_cast<std::size_t>(row_.scale_bytes());
    std::vector<std::byte> codes(rows.size() / columns * bytes);
    scales_.resize(scales_.size() + rows.size() / columns * scale_bytes);
    const auto scales = std::span(scales_).last(rows.size() / columns * scale_bytes);
    for (std::size_t r = 0; r * columns < rows.size(); ++r) {
      const auto row = rows.subspan(r * columns, columns);
      const auto of_row = std::span(codes).subspan(r * bytes, bytes);
      const auto its_scales = scales.subspan(r * scale_bytes, scale_bytes);
      row_.encode(row, of_row, its_scales);
      row_.decode(of_row, its_scales, 0, decoded_);
      for (std::size_t i = 0; i < columns; ++i) {
        const double x = row[i], left = x - decoded_[i];
        squares.all += x * x, squares.lost += left * left;
      }
    }
    file_.append_bytes(codes);
  }
  void finish() { file_.append_bytes(scales_); }

 private:
  SafetensorsWriter& file_;
  RowCodes row_;
  std::vector<float> decoded_;  // a row
  std::vector<std::byte> scales_;
};

/// The parts' blocks of rows in turn.
void write_codes(SafetensorsWriter& file, const Stored& stored, const HfCodes& codes,
                 const ParameterSource& source) {
  const HfTensor& first = stored.parts[0];
  const std::int64_t cols = first.cols(),
                     at_once = std::max<std::int64_t>(1, kElementsAtOnce / cols);
  CodesWriter writer(file, codes.format, cols);
  std::vector<CodesWriter::Squares> squares(stored.parts.size());
  for (std::int64_t turn = 0; turn < first.rows() / first.block; ++turn) {
    for (std::size_t i = 0; i < stored.parts.size(); ++i) {
      const HfTensor& part = stored.parts[i];
      const std::int64_t end = (turn + 1) * part.block;
      for (std::int64_t row = turn * part.block; row < end; row += at_once) {
        std::vector<float> rows(static_cast<std::size_t>(std::min(at_once, end - row) * cols));
        source(part.parameter, row * cols, rows);
        writer.append(rows, squares[i]);
      }
    }
  }
  writer.finish();
  for (std::size_t i = 0; i < stored.parts.size(); ++i)
    codes.tell(stored.parts[i].parameter, squares[i].all, squares[i].lost);
}

/// What wants larger multiples comes first, so that all lie on those that they want.
void write_shard(const fs::path& path, const HfExport& options,
                 std::span<const Stored> tensors_of_shard, const ParameterSource& source) {
  std::vector<Stored> shard(tensors_of_shard.begin(), tensors_of_shard.end());
  std::ranges::stable_sort(shard, std::greater(),
                           [&](const Stored& stored) { return stored.alignment(options.type); });
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const Stored& stored : shard) {
    tensors.push_back(stored.tensor);
    if (stored.scales) tensors.push_back(*stored.scales);
  }
  SafetensorsWriter file(path, options.type, tensors);
  for (const Stored& stored : shard) {
    if (stored.scales) {
      write_codes(file, stored, *options.codes, source);
    } else if (stored.parts.empty()) {
      write_zeros(file, stored.tensor.elements());
    } else if (stored.parts[0].transposed) {
      write_transposed(file, stored, source);
    } else {
      write_straight(file, stored, source);
    }
  }
  file.publish();
}

/// A text begins with the token that the post-processor puts before it, or else, as documents
/// follow one another, with the one that ends the document before.
TextEnds ends_of(const Tokenizer& tokenizer) {
  const auto& before = tokenizer.frame().before;
  const auto end = tokenizer.end_of_text();
  return {.begin = before.size() == 1 ? std::optional(before[0]) : end, .end = end};
}

/// tokenizer.json, and the least that tells transformers to use it as it is.
void write_tokenizer(const PartialDirectory& directory, const Tokenizer& tokenizer,
                     const HfArchitecture& architecture) {
  nlohmann::json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                           {"clean_up_tokenization_spaces", false},
                           {"model_max_length", architecture.context}};
  config["bos_token"] = config["eos_token"] = nullptr;
  const TextEnds ends = ends_of(tokenizer);
  if (ends.begin) config["bos_token"] = tokenizer.name_of(*ends.begin);
  if (ends.end) config["eos_token"] = tokenizer.name_of(*ends.end);
  if (architecture.mask_token >= 0) {
    const auto name = tokenizer.name_of(static_cast<std::int32_t>(architecture.mask_token));
    const bool text = valid_utf8_prefix(name) == name.size();  // else a part of a character
    if (!name.empty() && text) config["mask_token"] = name;
  }
  write_text(directory / "tokenizer.json", tokenizer.json());
  write_text(directory / "tokenizer_config.json", config.dump(2) + "\n");
}

}  // namespace

void export_hugging_face(const HfExport& options, const ParameterSource& source) {
  const fs::path directory = empty_directory(options.directory);
  const std::string config = write_hf_config(
      options.architecture, options.type,
      options.tokenizer == nullptr ? TextEnds{} : ends_of(*options.tokenizer), options.classes,
      options.codes ? std::optional(options.codes->format) : std::nullopt);
  const auto parameters = hf_tensors(options.architecture);
  const auto tensors = stored_tensors(parameters, options.codes);
  const auto shards = shards_of(tensors, options.type, options.shard_bytes);

  PartialDirectory partial(directory.string() + ".partial");
  write_text(partial / "config.json", config);
  if (options.tokenizer != nullptr) {
    write_tokenizer(partial, *options.tokenizer, options.architecture);
  }
  nlohmann::json weight_map;
  std::int64_t total_bytes = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        shards.size() == 1 ? "model.safetensors"
                           : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_shard(partial / name, options, shards[i], source);
    for (const Stored& stored : shards[i]) {
      weight_map[stored.tensor.name] = name;
      if (stored.scales) weight_map[stored.scales->name] = name;
      total_bytes += stored.bytes(options.type);
    }
  }
  if (shards.size() > 1) {
    const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}},
                                  {"weight_map", weight_map}};
    write_text(partial / "model.safetensors.index.json", index.dump(2) + "\n");
  }
  partial.publish(directory);
}

}  // namespace tessera::io
