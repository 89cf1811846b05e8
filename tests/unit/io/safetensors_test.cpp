#include "io/safetensors.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.hpp"
#include "support/temporary_directory.hpp"

namespace tessera {
namespace {

using test::message_of;
using test::TemporaryDirectory;

std::string file_bytes(std::string_view header, std::string_view data) {
  const std::uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
  return bytes.append(header).append(data);
}

std::vector<float> read_all(const io::SafetensorsFile& file, std::string_view name) {
  const io::SafetensorsEntry& entry = file.tensors().find(name)->second;
  std::vector<float> values(static_cast<std::size_t>(entry.elements));
  file.read(entry, 0, values);
  return values;
}

TEST(Safetensors, ReadsEveryFloatingType) {
  const TemporaryDirectory dir;
  const float f = 1.5F;
  const double d = -0.25;
  std::string data(reinterpret_cast<const char*>(&f), 4);
  data.append(reinterpret_cast<const char*>(&d), 8);
  data += std::string("\x80\x3f\x00\x3c\x01", 5);  // bf16 1, f16 1, a byte
  test::write_file(
      dir / "t",
      file_bytes(
          R"({"__metadata__":{"format":"pt"},"d":{"dtype":"F64","shape":[1],)"
          R"("data_offsets":[4,12]},"f":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
          R"("b":{"dtype":"BF16","shape":[1,1],"data_offsets":[12,14]},"e":{"dtype":"U8",)"
          R"("shape":[0],"data_offsets":[16,16]},"h":{"dtype":"F16","shape":[1],)"
          R"("data_offsets":[14,16]},"m":{"dtype":"BOOL","shape":[1],"data_offsets":[16,17]}}   )",
          data));
  const io::SafetensorsFile file(dir / "t");
  EXPECT_EQ(file.tensors().size(), 6U);
  EXPECT_EQ(read_all(file, "f"), std::vector<float>{1.5F});
  EXPECT_EQ(read_all(file, "d"), std::vector<float>{-0.25F});
  EXPECT_EQ(read_all(file, "b"), std::vector<float>{1});
  EXPECT_EQ(read_all(file, "h"), std::vector<float>{1});
  EXPECT_FALSE(file.tensors().find("m")->second.type);
}

TEST(Safetensors, WritesWhatItReads) {
  const TemporaryDirectory dir;
  std::vector<float> values;
  for (int i = 0; i < 40000; ++i)
    values.push_back(std::ldexp(1.0F + static_cast<float>(i % 8) / 8, i % 29 - 14));
  const std::vector<io::SafetensorsWriter::Tensor> tensors = {{"a", {100, 300}}, {"b", {10000}}};
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {  // all values fit all types
    io::SafetensorsWriter writer(dir / "t", type, tensors);
    writer.append(std::span(values).first(12345));
    writer.append(std::span(values).subspan(12345));
    writer.publish();
    const io::SafetensorsFile file(dir / "t");
    EXPECT_EQ(file.tensors().at("a").shape, (std::vector<std::int64_t>{100, 300}));
    EXPECT_EQ(read_all(file, "a"), std::vector<float>(values.begin(), values.begin() + 30000));
    EXPECT_EQ(read_all(file, "b"), std::vector<float>(values.begin() + 30000, values.end()));
    std::vector<float> middle(20000);
    file.read(file.tensors().at("a"), 7, middle);
    EXPECT_EQ(middle, std::vector<float>(values.begin() + 7, values.begin() + 20007));
  }
}

TEST(Safetensors, WritesTensorsOfTypesOfTheirOwn) {
  const TemporaryDirectory dir;
  const std::vector<float> values = {1.0F + 0x1p-20F, 2, 3, 4.0F + 0x1p-18F, 5};
  const std::vector<io::SafetensorsWriter::Tensor> tensors = {
      {"f32", {2}, DType::f32}, {"none", {0}, DType::f16}, {"file", {3}}};
  io::SafetensorsWriter writer(dir / "t", DType::bf16, tensors);
  writer.append(std::span(values).first(1));
  writer.append(std::span(values).subspan(1));
  writer.publish();
  const io::SafetensorsFile file(dir / "t");
  EXPECT_EQ(file.tensors().at("f32").type, DType::f32);
  EXPECT_EQ(file.tensors().at("file").type, DType::bf16);
  EXPECT_EQ(read_all(file, "f32"), (std::vector{1.0F + 0x1p-20F, 2.0F}));
  EXPECT_EQ(read_all(file, "file"), (std::vector{3.0F, 4.0F, 5.0F}));
}

TEST(Safetensors, RefusesToPublishAnIncompleteFile) {
  const TemporaryDirectory dir;
  const std::vector<io::SafetensorsWriter::Tensor> tensors = {{"a", {3}}};
  io::SafetensorsWriter writer(dir / "t", DType::f32, tensors);
  writer.append(std::vector<float>{1, 2});
  EXPECT_THROW(writer.publish(), InternalError);
}

TEST(Safetensors, RefusesDamagedHeaders) {
  const TemporaryDirectory dir;
  const auto tensor = [](std::string_view rest) {
    return file_bytes(fmt::format(R"({{"a":{{{}}}}})", rest), "12345678");
  };
  std::string huge = tensor("");
  for (std::size_t i = 0; i < 8; ++i) huge[i] = '\xff';
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "ends at byte 0"},
      {"1234567", "ends at byte 7"},
      {huge, "a header of 18446744073709551615 bytes"},
      {file_bytes("{}", "").substr(0, 9), "a header of 2 bytes, at most 1"},
      {file_bytes("{", ""), "not valid JSON"},
      {file_bytes("[]", ""), "expected an object"},
      {file_bytes("{}", "x"), "0 bytes of tensors, but 1 follow"},
      {file_bytes(R"({"a":1})", ""), "$.a: expected an object, found 1"},
      {tensor(R"("shape":[2],"data_offsets":[0,8])"), "$.a: \"dtype\" is missing"},
      {tensor(R"("dtype":"F31","shape":[2],"data_offsets":[0,8])"), "\"F31\" is not known"},
      {tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), "does not fit the 8 bytes"},
      {tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "an extent of -2"},
      {tensor(R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])"), "expected an integer"},
      {tensor(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,8])"),
       "does not fit"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "not a range"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"), "not a range"},
      {tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), "not a range"},
      {tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"), "not a range within the 8"},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), "overlap or leave a gap"},
      {tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), "4 bytes of tensors, but 8"},
      {tensor(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"),
       "\"dtype\" appears twice"},
      {file_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  "12345678"),
       "overlap"}};
  for (const auto& [bytes, expected] : cases) {
    test::write_file(dir / "t", bytes);
    const auto message = message_of<DataError>([&] { io::SafetensorsFile(dir / "t"); });
    EXPECT_NE(message.find(expected), std::string::npos) << expected << " | " << message;
  }
}

}  // namespace
}  // namespace tessera
