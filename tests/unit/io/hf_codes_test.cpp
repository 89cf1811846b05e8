#include "io/hf_codes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "io/hugging_face.hpp"
#include "support/hf_data.hpp"
#include "support/temporary_directory.hpp"

namespace tessera {
namespace {

using kernels::BlockFormat, kernels::BlockType;
using nlohmann::json;
using test::data_path;
using test::message_of;
using test::TemporaryDirectory;
namespace fs = std::filesystem;

std::vector<float> values_of(const io::HfModel& model, std::string_view parameter,
                             std::int64_t begin, std::int64_t elements) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  model.read(parameter, begin, values);
  return values;
}

bool is_matrix_of_layer(std::string_view parameter) {
  return parameter.starts_with("block.") && parameter.ends_with(".weight") &&
         parameter.find("norm") == std::string_view::npos &&
         parameter.find("router") == std::string_view::npos;
}

struct Squares {
  double all = 0, lost = 0;
};

/// A committed model whose matrices are codes.
struct Coded {
  explicit Coded(std::string_view name, const BlockFormat& format,
                 std::int64_t shard_bytes = std::int64_t{1} << 30)
      : model(io::HfModel::open(data_path(name))), path(directory / "codes") {
    io::export_hugging_face(
        {.directory = path,
         .architecture = model.architecture(),
         .type = model.stored_dtype(),
         .codes = io::HfCodes{.format = format,
                              .has = is_matrix_of_layer,
                              .tell =
                                  [&](std::string_view parameter, double all, double lost) {
                                    auto& sums = squares[std::string(parameter)];
                                    sums.all += all, sums.lost += lost;
                                  }},
         .shard_bytes = shard_bytes},
        [&](std::string_view parameter, std::int64_t begin, std::span<float> out) {
          model.read(parameter, begin, out);
        });
  }
  void edit(const char* file, const std::function<void(json&)>& change) const {
    test::edit_json(path / file, change);
  }

  TemporaryDirectory directory;
  io::HfModel model;
  fs::path path;
  std::map<std::string, Squares> squares;
};

/// Rows of several blocks, of which the last is a part, from any column on.
TEST(RowCodes, HaveAScaleForEachBlock) {
  constexpr std::int64_t kColumns = 90, kBlock = 20;
  for (const BlockType type : {BlockType::int8, BlockType::int4, BlockType::nf4}) {
    SCOPED_TRACE(enum_word(type));
    const io::RowCodes row({.type = type, .block = kBlock}, kColumns);
    EXPECT_EQ(row.blocks(), 5);
    EXPECT_EQ(row.bytes(), type == BlockType::int8 ? 92 : 48);
    std::vector<float> values(kColumns);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float size = std::exp2(static_cast<float>(i / kBlock) * 4);  // blocks differ by 16
      values[i] = size * std::sin(static_cast<float>(i + 1));
    }
    std::vector<std::byte> codes(static_cast<std::size_t>(row.bytes()));
    std::vector<std::byte> scales(static_cast<std::size_t>(row.scale_bytes()));
    row.encode(values, codes, scales);
    std::vector<float> all(kColumns);
    row.decode(codes, scales, 0, all);
    for (std::size_t i = 0; i < all.size(); ++i) {
      // The widest step between neighbours is that of nf4's lowest two, 0.304 of a block's largest.
      const float largest = std::exp2(static_cast<float>(i / kBlock) * 4);
      EXPECT_NEAR(all[i], values[i], largest * (type == BlockType::int8 ? 0.004 : 0.153)) << i;
    }
    for (std::int64_t first = 0; first <= kColumns; ++first) {
      for (const std::int64_t count : {std::int64_t{1}, std::int64_t{21}, kColumns}) {
        std::vector<float> some(static_cast<std::size_t>(std::min(count, kColumns - first)));
        row.decode(codes, scales, first, some);
        EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin() + first)) << first;
      }
    }
  }
}

class HfCodes : public ::testing::TestWithParam<const char*> {};

/// Each row by itself, as what it is rounded to; other parameters are as they were.
TEST_P(HfCodes, AreReadAsWhatTheyStandForInAnyRange) {
  for (const BlockFormat format : {BlockFormat{.type = BlockType::int8, .block = 16},
                                   BlockFormat{.type = BlockType::int4, .block = 64},
                                   BlockFormat{.type = BlockType::nf4, .block = 16}}) {
    SCOPED_TRACE(io::to_string(format));
    const Coded coded(GetParam(), format, format.block == 16 ? 1000 : std::int64_t{1} << 30);
    const auto again = io::HfModel::open(coded.path);
    EXPECT_EQ(again.architecture(), coded.model.architecture());
    EXPECT_EQ(again.stored_dtype(), coded.model.stored_dtype());
    EXPECT_EQ(again.codes(), format);
    for (const io::HfTensor& p : coded.model.parameters()) {
      SCOPED_TRACE(p.parameter);
      auto want = values_of(coded.model, p.parameter, 0, p.elements());
      if (is_matrix_of_layer(p.parameter)) {
        const io::RowCodes row(format, p.cols());
        std::vector<std::byte> codes(static_cast<std::size_t>(row.bytes()));
        std::vector<std::byte> scales(static_cast<std::size_t>(row.scale_bytes()));
        Squares squares;
        for (std::int64_t r = 0; r < p.rows(); ++r) {
          const auto ours = std::span(want).subspan(static_cast<std::size_t>(r * p.cols()),
                                                    static_cast<std::size_t>(p.cols()));
          const std::vector<float> before(ours.begin(), ours.end());
          row.encode(ours, codes, scales);
          row.decode(codes, scales, 0, ours);
          for (std::size_t i = 0; i < before.size(); ++i) {
            const double x = before[i], left = x - ours[i];
            squares.all += x * x, squares.lost += left * left;
          }
        }
        const Squares& told = coded.squares.at(p.parameter);
        EXPECT_NEAR(told.all, squares.all, 1e-12 * squares.all);  // sums in another order
        EXPECT_NEAR(told.lost, squares.lost, 1e-12 * squares.all);
        EXPECT_GT(told.lost, 0);
        EXPECT_LT(std::sqrt(told.lost / told.all), format.type == BlockType::int8 ? 0.02 : 0.2);
      }
      EXPECT_EQ(values_of(again, p.parameter, 0, p.elements()), want);
      for (std::int64_t begin = 0; begin < p.elements(); begin += 7) {
        const std::int64_t n = std::min<std::int64_t>(p.elements() - begin, 1 + begin % 50);
        const auto first = want.begin() + begin;
        EXPECT_EQ(values_of(again, p.parameter, begin, n), std::vector<float>(first, first + n));
      }
    }
  }
}

/// Transposed and fused, fused by heads, with experts, in several files, with tensors in bf16.
INSTANTIATE_TEST_SUITE_P(Models, HfCodes,
                         ::testing::Values("gpt2", "gpt_neox", "llama_sharded", "deepseek_v2",
                                           "glm4_moe", "bert"));

/// Where tensors of bf16 have an odd number of elements, and rows of codes an odd number of bytes.
TEST(HfCodes, LieOnMultiplesOfTheirElements) {
  auto architecture = io::HfModel::open(data_path("llama")).architecture();
  architecture.layers = 1;
  architecture.heads = architecture.kv_heads = 1;
  architecture.head_dim = 2;
  architecture.hidden = architecture.vocab = 9;
  architecture.ffn_hidden = 7;
  const TemporaryDirectory directory;
  const fs::path path = directory / "codes";
  io::export_hugging_face({.directory = path,
                           .architecture = architecture,
                           .type = DType::bf16,
                           .codes = io::HfCodes{.format = {.type = BlockType::int4, .block = 16},
                                                .has = is_matrix_of_layer,
                                                .tell = [](std::string_view, double, double) {}}},
                          [](std::string_view, std::int64_t begin, std::span<float> out) {
                            for (float& x : out) x = static_cast<float>(begin++ % 5);
                          });
  const io::SafetensorsFile file(path / "model.safetensors");
  std::int64_t scales = 0, odd = 0;
  for (const auto& [name, entry] : file.tensors()) {
    EXPECT_EQ(entry.offset % size_of(*entry.type), 0) << name;
    scales += name.ends_with(".scales") ? 1 : 0;
    odd += *entry.type == DType::bf16 && entry.elements % 2 == 1 ? 1 : 0;
  }
  EXPECT_EQ(scales, 7);  // q, k, v, o, gate, up, down
  EXPECT_GT(odd, 0);
  const auto model = io::HfModel::open(path);
  EXPECT_EQ(values_of(model, "block.0.mlp.up.weight", 9, 3).size(), 3U);
}

TEST(HfCodes, RefuseWhatDoesNotFit) {
  const auto message = [](const Coded& coded) {
    return message_of<DataError>([&] { io::HfModel::open(coded.path); });
  };
  const BlockFormat format{.type = BlockType::int4, .block = 16};
  struct Case {
    json value;
    std::string_view says;
  };
  for (const auto& [value, says] :
       {Case{{{"quant_method", "tessera"}, {"type", "int4"}, {"block", 32}},
             "config.json, which says int4 in blocks of 32, wants f32 ("},
        Case{{{"quant_method", "tessera"}, {"type", "int8"}, {"block", 16}},
             "config.json, which says int8 in blocks of 16, wants u8 ("},
        Case{{{"quant_method", "tessera"}, {"type", "sign"}, {"block", 64}},
             "$.quantization_config.type: \"sign\" is not supported; allowed: int8, int4, nf4"},
        Case{{{"quant_method", "tessera"}, {"type", "int4"}, {"block", 17}},
             "$.quantization_config.block: 17 is odd"},
        Case{{{"quant_method", "tessera"}, {"type", "int4"}, {"block", 8}},
             "$.quantization_config.block: "},
        Case{{{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}},
             "allowed: null, or what tessera quantize writes"},
        Case{nullptr, ".weight.codes is not a tensor of the family"}}) {
    SCOPED_TRACE(value.dump());
    const Coded coded("llama", format);
    coded.edit("config.json", [&](json& config) { config["quantization_config"] = value; });
    const std::string text = message(coded);
    EXPECT_NE(text.find(says), std::string::npos) << text;
  }
}

/// What three parameters share is told once.
TEST(HfCodes, AreFusedAndDoNotFit) {
  const Coded coded("gpt2", {.type = BlockType::int4, .block = 16});
  coded.edit("config.json", [](json& config) { config["quantization_config"]["type"] = "int8"; });
  const std::string text = message_of<DataError>([&] { io::HfModel::open(coded.path); });
  const std::string_view of = "h.0.attn.c_attn.weight.codes is U8";
  const std::size_t first = text.find(of);
  ASSERT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find(of, first + 1), std::string::npos) << text;
}

/// A place is where what is wrong can be: a scale, which no sign fits.
TEST(HfCodes, NameAScaleThatCannotBe) {
  const Coded coded("gpt2", {.type = BlockType::int8, .block = 16});
  const fs::path path = coded.path / "model.safetensors";
  const std::string name = "transformer.h.1.mlp.c_proj.weight.scales";
  constexpr std::string_view kDown = "block.1.mlp.down.weight";
  {
    const io::SafetensorsFile file(path);
    const auto entry = file.tensors().find(name);
    ASSERT_NE(entry, file.tensors().end());
    ASSERT_EQ(entry->second.shape[1], 1);  // its rows have 12 columns
    std::fstream raw(path, std::ios::in | std::ios::out | std::ios::binary);
    const float negative = -1;
    raw.seekp(entry->second.offset + 2 * std::int64_t{sizeof(negative)});
    raw.write(reinterpret_cast<const char*>(&negative), sizeof(negative));
  }
  const auto model = io::HfModel::open(coded.path);
  const std::string text = message_of<DataError>([&] { values_of(model, kDown, 29, 1); });
  EXPECT_NE(text.find(name + "[2, 0] = -1: a scale is 0 or more"), std::string::npos) << text;
  EXPECT_NE(model.place(kDown, 29).find(name + "[2, 0]"), std::string::npos);
}

/// Nor is a code one that no number becomes: it would not be the same again.
TEST(HfCodes, NameACodeThatCannotBe) {
  for (const auto& [type, byte, value] :
       {std::tuple{BlockType::int8, '\x80', "-128"}, std::tuple{BlockType::int4, '\x81', "-8"}}) {
    SCOPED_TRACE(value);
    const Coded coded("gpt2", {.type = type, .block = 16});
    const fs::path path = coded.path / "model.safetensors";
    const std::string name = "transformer.h.1.mlp.c_proj.weight.codes";
    constexpr std::string_view kDown = "block.1.mlp.down.weight";
    std::int64_t row_bytes = 0;
    {
      const io::SafetensorsFile file(path);
      const auto entry = file.tensors().find(name);
      ASSERT_NE(entry, file.tensors().end());
      row_bytes = entry->second.shape[1];
      std::fstream raw(path, std::ios::in | std::ios::out | std::ios::binary);
      raw.seekp(entry->second.offset + 2 * row_bytes + 1);
      raw.put(byte);
    }
    const std::int64_t columns = coded.model.architecture().ffn_hidden,
                       column = type == BlockType::int8 ? 1 : 3;  // the second byte's upper half
    const auto model = io::HfModel::open(coded.path);
    EXPECT_NO_THROW(values_of(model, kDown, 2 * columns, column)) << "which is before it";
    const std::string text =
        message_of<DataError>([&] { values_of(model, kDown, 2 * columns + column, 1); });
    EXPECT_NE(
        text.find(fmt::format("{}, row 2, column {} = {}: no code is that", name, column, value)),
        std::string::npos)
        << text;
  }
}

/// Nor may an output matrix that must be the embedding be codes, of which it would differ.
TEST(HfCodes, RefuseCodesOfACopy) {
  const Coded coded("gpt2", {.type = BlockType::int8, .block = 16});
  const fs::path path = coded.path / "model.safetensors";
  std::vector<io::SafetensorsWriter::Tensor> tensors;
  const std::int64_t rows = coded.model.architecture().vocab,
                     columns = coded.model.architecture().hidden;
  tensors.push_back({"lm_head.weight", {rows, columns}, DType::u8});
  tensors.push_back({"lm_head.weight.scales", {rows, 1}, DType::f32});
  const std::vector<std::byte> nothing(static_cast<std::size_t>(rows * (columns + 4)));
  io::SafetensorsWriter writer(coded.path / "head.safetensors", DType::f32, tensors);
  writer.append_bytes(std::span(nothing).first(static_cast<std::size_t>(rows * columns)));
  writer.append_bytes(std::span(nothing).last(static_cast<std::size_t>(rows * 4)));
  writer.publish();
  json index;
  const io::SafetensorsFile file(path);
  for (const auto& [name, entry] : file.tensors()) index["weight_map"][name] = "model.safetensors";
  for (const auto& tensor : tensors) index["weight_map"][tensor.name] = "head.safetensors";
  test::write_file(coded.path / "model.safetensors.index.json", index.dump());
  const std::string text = message_of<DataError>([&] { io::HfModel::open(coded.path); });
  EXPECT_NE(text.find("lm_head.weight has the element type U8"), std::string::npos) << text;
}

}  // namespace
}  // namespace tessera
