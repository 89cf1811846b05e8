// Targets as one row beside the tokens, and what is refused: of them and of labels.
#include "io/token_targets.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "io/megatron.hpp"
#include "io/token_labels.hpp"
#include "support/temporary_directory.hpp"

namespace tessera {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using Documents = std::vector<std::vector<std::int32_t>>;

void write_pair(const std::string& prefix, DType type, const Documents& documents) {
  io::MegatronShare share(prefix, type, 0);
  for (const auto& document : documents) {
    share.append(document);
    share.end_document();
  }
  share.place({}, share.extent());
  share.publish();
}

TEST(Targets, IsARowLikeTheTokensAndOnesWhereThereIsNone) {
  const TemporaryDirectory dir;
  std::vector<std::string> entries;
  for (const char* name : {"a", "b", "c"}) entries.push_back((dir / name).string());
  write_pair(entries[0], DType::u16, {{1, 2}, {3}});
  write_pair(entries[1], DType::u16, {{}, {4, 5, 6}});
  write_pair(entries[2], DType::u16, {{7}});
  EXPECT_FALSE(io::TokenCorpus(entries, 10).has_targets());
  write_pair(entries[1] + ".targets", DType::u8, {{}, {0, 1, 0}});
  write_pair(entries[2] + ".targets", DType::u8, {{0}});
  const io::TokenCorpus targets(entries, 10);
  EXPECT_TRUE(targets.has_targets());
  const std::vector<std::uint8_t> expected = {1, 1, 1, 0, 1, 0, 0};
  for (std::size_t first = 0; first <= expected.size(); ++first) {
    for (std::size_t count = 0; first + count <= expected.size(); ++count) {
      std::vector<std::uint8_t> marks(count, 9);
      targets.read_targets(static_cast<std::int64_t>(first), marks);
      EXPECT_TRUE(std::ranges::equal(marks, std::span(expected).subspan(first, count)));
    }
  }
  EXPECT_EQ(io::count_targets(targets, 0, 7), 4);
  EXPECT_EQ(io::count_targets(targets, 3, 3), 1);
}

TEST(Targets, RefusesWhatDoesNotFit) {
  const TemporaryDirectory dir;
  const std::string prefix = (dir / "a").string();
  write_pair(prefix, DType::u16, {{1, 2}, {3}});
  const std::vector<std::string> entries{prefix};
  const auto refusal = [&](DType type, const Documents& documents) {
    write_pair(prefix + ".targets", type, documents);
    return message_of<DataError>([&] { io::count_targets(io::TokenCorpus(entries, 10), 0, 3); });
  };
  for (const Documents& others : {Documents{{1}, {1, 1}}, Documents{{1, 1, 1}}, Documents{{1, 1}}})
    EXPECT_NE(refusal(DType::u8, others).find("a.targets.idx: its documents are not those of"),
              std::string::npos);
  EXPECT_NE(refusal(DType::u16, {{1, 1}, {1}}).find("u8 expected"), std::string::npos);
  EXPECT_NE(refusal(DType::u8, {{1, 2}, {1}}).find("a.targets.bin: byte 1"), std::string::npos);
  std::filesystem::remove(prefix + ".targets.idx");
  EXPECT_NE(message_of<DataError>([&] { io::TokenCorpus(entries, 10); }).find("a.targets.idx"),
            std::string::npos);
}

TEST(Labels, RefuseWhatDoesNotFit) {
  const TemporaryDirectory dir;
  const std::string prefix = (dir / "a").string();
  write_pair(prefix, DType::u16, {{1, 2}, {3}});
  const std::vector<std::string> entries{prefix};
  const auto read = [&] {
    const io::TokenCorpus corpus(entries, 10);
    io::read_document_labels(corpus.files()[0], *io::label_names_of(corpus.files()[0]));
  };
  EXPECT_FALSE(io::label_names_of(io::TokenCorpus(entries, 10).files()[0]));
  const auto refusal = [&](DType type, const Documents& labels, const std::string& names) {
    write_pair(prefix + ".labels", type, labels);
    test::write_file(prefix + ".labels.json", names);
    return message_of<DataError>(read);
  };
  const std::string names = R"({"key": "k", "names": ["x", "y"]})";
  const Documents good = {{0}, {1}};
  EXPECT_NE(refusal(DType::i32, {{0}}, names).find("1 label, but"), std::string::npos);
  EXPECT_NE(refusal(DType::i32, {{0, 1}}, names).find("one element of type i32"),
            std::string::npos);
  EXPECT_NE(refusal(DType::u16, good, names).find("one element of type i32"), std::string::npos);
  EXPECT_NE(refusal(DType::i32, {{0}, {2}}, names).find("a.labels.bin: byte 4"), std::string::npos);
  EXPECT_NE(refusal(DType::i32, good, R"({"names": ["x", "y"]})").find("\"key\" is missing"),
            std::string::npos);
  EXPECT_NE(refusal(DType::i32, good, R"({"key": "k", "names": ["x", "x"]})").find("there twice"),
            std::string::npos);
  EXPECT_NE(refusal(DType::i32, good, R"({"key": "k", "names": [1]})").find("$.names[0]: expected"),
            std::string::npos);
  EXPECT_NE(refusal(DType::i32, good, R"({"key": "k", "names": ["x"], "of": "all"})")
                .find("$.of: expected documents|words"),
            std::string::npos);
  std::filesystem::remove(prefix + ".labels.json");
  EXPECT_NE(message_of<DataError>(read).find("a.labels.json"), std::string::npos);
}

TEST(Labels, OfWordsRefuseWhatDoesNotFit) {
  const TemporaryDirectory dir;
  const std::string prefix = (dir / "a").string();
  write_pair(prefix, DType::u16, {{1, 2}, {3}});
  const std::vector<std::string> entries{prefix};
  const auto read = [&](const Documents& labels) {
    write_pair(prefix + ".labels", DType::i32, labels);
    const io::TokenCorpus corpus(entries, 10);
    const io::WordLabels words(corpus.files(), {.key = "k", .names = {"x", "y"}});
    std::vector<std::int32_t> found(3);
    words.read(0, found);
    return found;
  };
  EXPECT_EQ(read({{1, 0}, {2}}), (std::vector<std::int32_t>{0, -1, 1}));
  EXPECT_NE(message_of<DataError>([&] {
              read({{1}, {2}});
            }).find("are not those of"),
            std::string::npos);
  EXPECT_NE(message_of<DataError>([&] {
              read({{1, 0}, {3}});
            }).find("a.labels.bin: element 2 is 3, of the label 2, but"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera
