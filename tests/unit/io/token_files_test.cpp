#include "io/token_files.hpp"

#include <gtest/gtest.h>

#include <list>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "core/error.hpp"
#include "io/megatron.hpp"
#include "support/temporary_directory.hpp"

namespace tessera {
namespace {

using test::message_of;
using test::TemporaryDirectory;
using Tokens = std::vector<std::int32_t>;

template <typename T>
std::string packed(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// An index, spelled out here so that a mistake in the writer cannot hide one in the reader.
std::string index_bytes(std::uint8_t code, const std::vector<std::int32_t>& lengths,
                        const std::vector<std::int64_t>& pointers,
                        const std::vector<std::int64_t>& documents) {
  std::string s("MMIDIDX\0\0", 9);
  s += packed<std::uint64_t>({1});
  s += static_cast<char>(code);
  s += packed<std::uint64_t>({lengths.size(), documents.size()});
  return s + packed(lengths) + packed(pointers) + packed(documents);
}

std::string llmc_bytes(std::int32_t magic, std::int32_t version, std::int32_t count,
                       std::string tokens) {
  std::vector<std::int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = count;
  return packed(header) + tokens;
}

io::TokenCorpus open(std::vector<std::string> entries, std::int64_t vocab = 65536) {
  return io::TokenCorpus(entries, vocab);
}

Tokens all(const io::TokenCorpus& corpus) {
  Tokens out(static_cast<std::size_t>(corpus.tokens()));
  corpus.read(0, out);
  return out;
}

TEST(TokenCorpus, FollowsThePointersOfTheIndex) {
  const TemporaryDirectory dir;
  test::write_file(dir / "a.bin", packed<std::uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  // Out of order, overlapping, with a gap and an empty sequence.
  test::write_file(dir / "a.idx", index_bytes(8, {2, 0, 3, 2}, {10, 0, 0, 2}, {0, 1, 4}));
  const auto corpus = open({(dir / "a").string()});
  EXPECT_EQ(all(corpus), (Tokens{6, 7, 1, 2, 3, 2, 3}));
  EXPECT_EQ(corpus.files()[0].documents, 2);
  for (std::int64_t first = 0; first < corpus.tokens(); ++first)
    for (std::int64_t count = 0; first + count <= corpus.tokens(); ++count) {
      Tokens out(static_cast<std::size_t>(count));
      corpus.read(first, out);
      const Tokens whole = all(corpus);
      EXPECT_EQ(out, Tokens(whole.begin() + first, whole.begin() + first + count));
    }
}

/// By hand: the tokens of a corpus behind which documents end, of all ranges.
void expect_ends(const io::TokenCorpus& corpus, const std::vector<std::int64_t>& ends) {
  for (std::int64_t begin = 0; begin <= corpus.tokens(); ++begin) {
    for (std::int64_t end = begin; end <= corpus.tokens(); ++end) {
      std::vector<std::int64_t> expected;
      for (const std::int64_t e : ends)
        if (e > begin && e <= end) expected.push_back(e);
      EXPECT_EQ(corpus.document_ends({begin, end}), expected) << begin << " to " << end;
    }
  }
}

TEST(TokenCorpus, KnowsWhereDocumentsEnd) {
  const TemporaryDirectory dir;
  test::write_file(dir / "a.bin", packed<std::uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  // Documents of one sequence and of two, one of which is empty and points elsewhere; one with
  // nothing in it.
  test::write_file(dir / "a.idx",
                   index_bytes(8, {2, 3, 0, 0, 2}, {0, 4, 12, 0, 10}, {0, 1, 3, 4, 5}));
  // Out of order, overlapping, the first document of two sequences that are apart.
  test::write_file(dir / "b.bin", packed<std::uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  test::write_file(dir / "b.idx", index_bytes(8, {2, 0, 3, 2}, {10, 0, 0, 2}, {0, 3, 4}));
  const std::string a = (dir / "a").string(), b = (dir / "b").string();
  expect_ends(open({a}), {2, 5, 7});
  expect_ends(open({b}), {5, 7});
  expect_ends(open({a, b}), {2, 5, 7, 12, 14});
  // The last document ends in empty sequences.
  test::write_file(dir / "d.bin", packed<std::uint16_t>({1, 2, 3}));
  test::write_file(dir / "d.idx", index_bytes(8, {1, 2, 0, 0}, {0, 2, 6, 6}, {0, 1, 4}));
  const std::string d = (dir / "d").string();
  expect_ends(open({d}), {1, 3});
  expect_ends(open({d, a}), {1, 3, 5, 8, 10});
  EXPECT_EQ(open({a, b}).file_without_documents(), nullptr);
  test::write_file(dir / "c.bin", llmc_bytes(20240520, 1, 2, packed<std::uint16_t>({3, 4})));
  const auto with = open({a, (dir / "c.bin").string()});
  ASSERT_NE(with.file_without_documents(), nullptr);
  EXPECT_EQ(with.file_without_documents()->path(), dir / "c.bin");
}

TEST(TokenCorpus, SaysWhichTokensCountAsTargets) {
  const TemporaryDirectory dir;
  const std::string a = (dir / "a").string();
  test::write_file(dir / "a.bin", packed<std::uint16_t>({1, 2, 3, 4, 5, 6, 7}));
  test::write_file(dir / "a.idx", index_bytes(8, {2, 3}, {4, 8}, {0, 1, 2}));
  test::write_file(dir / "b.bin", packed<std::uint16_t>({1, 2}));
  test::write_file(dir / "b.idx", index_bytes(8, {2}, {0}, {0, 1}));
  EXPECT_FALSE(open({a}).has_targets());
  const auto write_targets = [&](const std::string& bin, const std::string& idx) {
    test::write_file(dir / "a.targets.bin", bin);
    test::write_file(dir / "a.targets.idx", idx);
  };
  write_targets(packed<std::uint8_t>({9, 9, 1, 0, 0, 1, 1}),
                index_bytes(1, {2, 3}, {2, 4}, {0, 1, 2}));
  const auto corpus = open({(dir / "b").string(), a});
  EXPECT_TRUE(corpus.has_targets());
  const std::vector<std::uint8_t> expected = {1, 1, 1, 0, 0, 1, 1};
  for (std::size_t first = 0; first < expected.size(); ++first) {
    for (std::size_t count = 0; first + count <= expected.size(); ++count) {
      std::vector<std::uint8_t> out(count, 7);
      corpus.read_targets(static_cast<std::int64_t>(first), out);
      EXPECT_TRUE(std::ranges::equal(out, std::span(expected).subspan(first, count)));
    }
  }
  // Of other tokens: other lengths, places, documents, elements.
  const std::string bin = packed<std::uint8_t>({9, 9, 1, 0, 0, 1, 1});
  for (const std::string& idx :
       {index_bytes(1, {3, 2}, {2, 5}, {0, 1, 2}), index_bytes(1, {2, 3}, {1, 4}, {0, 1, 2}),
        index_bytes(1, {2, 3}, {2, 4}, {0, 2})}) {
    write_targets(bin, idx);
    EXPECT_NE(message_of<DataError>([&] { open({a}); }).find("a.targets.idx: "), std::string::npos);
  }
  write_targets(bin + bin, index_bytes(8, {2, 3}, {4, 8}, {0, 1, 2}));
  EXPECT_NE(message_of<DataError>([&] { open({a}); }).find("u8 expected"), std::string::npos);
  write_targets(packed<std::uint8_t>({9, 9, 1, 2, 0, 1, 1}),
                index_bytes(1, {2, 3}, {2, 4}, {0, 1, 2}));
  const auto spoilt = open({a});
  std::vector<std::uint8_t> out(4);
  EXPECT_NE(
      message_of<DataError>([&] { spoilt.read_targets(0, out); }).find("a.targets.bin: byte 3: 2"),
      std::string::npos);
}

TEST(TokenCorpus, ReadsEveryElementTypeAndOptionalModes) {
  const TemporaryDirectory dir;
  const std::vector<std::pair<std::uint8_t, std::string>> cases = {
      {1, packed<std::uint8_t>({9, 200})},
      {4, packed<std::int32_t>({9, 200})},
      {5, packed<std::int64_t>({9, 200})},
      {8, packed<std::uint16_t>({9, 200})}};
  for (const auto& [code, bytes] : cases) {
    test::write_file(dir / "a.bin", bytes);
    test::write_file(dir / "a.idx", index_bytes(code, {2}, {0}, {0, 1}) + '\0');
    EXPECT_EQ(all(open({(dir / "a").string()})), (Tokens{9, 200})) << int{code};
  }
}

TEST(TokenCorpus, ReadsLlmcShardsByGlobInNameOrder) {
  const TemporaryDirectory dir;
  test::write_file(dir / "s_2.bin", llmc_bytes(20240520, 1, 2, packed<std::uint16_t>({3, 4})));
  test::write_file(dir / "s_1.bin", llmc_bytes(20240801, 7, 2, packed<std::int32_t>({1, 70000})));
  const auto corpus = open({(dir / "s_*.bin").string()}, 70001);
  EXPECT_EQ(all(corpus), (Tokens{1, 70000, 3, 4}));
  EXPECT_EQ(corpus.sequences(3), 1);
  EXPECT_EQ(corpus.sequences(4), 0);  // the fourth token has no target
}

TEST(TokenCorpus, MergesAdjacentDocumentsAndFilesOfManyTokens) {
  const TemporaryDirectory dir;
  Tokens expected(100000);
  std::iota(expected.begin(), expected.end(), 0);
  io::MegatronWriter writer(dir / "big", 100000);
  for (std::size_t i = 0; i < expected.size(); i += 10) {
    writer.append(std::span(expected).subspan(i, 10));
    writer.end_document();
  }
  writer.publish();
  const auto corpus = open({(dir / "big").string()}, 100000);
  EXPECT_EQ(corpus.files()[0].type, DType::i32);
  EXPECT_EQ(corpus.files()[0].documents, 10000);
  EXPECT_EQ(all(corpus), expected);

  std::atomic<int> wrong = 0;
  std::vector<std::thread> readers;
  for (std::int32_t t = 0; t < 4; ++t) {
    readers.emplace_back([&, t] {
      for (std::int32_t i = 0; i < 200; ++i) {
        const std::int32_t first = (t * 7919 + i * 311) % 99000;
        Tokens out(1000);
        corpus.read(first, out);
        if (out.front() != first || out.back() != first + 999) ++wrong;
      }
    });
  }
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

TEST(TokenCorpus, NamesFileAndPositionOfATokenOutOfRange) {
  const TemporaryDirectory dir;
  test::write_file(dir / "first.bin", llmc_bytes(20240520, 1, 1, packed<std::uint16_t>({1})));
  test::write_file(dir / "t.bin", packed<std::uint16_t>({1, 2, 300, 4}));
  test::write_file(dir / "t.idx", index_bytes(8, {4}, {0}, {0, 1}));
  const auto corpus = open({(dir / "first.bin").string(), (dir / "t").string()}, 256);
  const auto message = message_of<DataError>([&] { all(corpus); });
  EXPECT_NE(message.find("t.bin: byte 4: token 300 (number 3 of the corpus)"), std::string::npos)
      << message;
}

TEST(TokenCorpus, RefusesDamagedIndexes) {
  const TemporaryDirectory dir;
  const std::string bin = packed<std::uint16_t>({1, 2, 3, 4});
  const std::string good = index_bytes(8, {2, 2}, {0, 4}, {0, 1, 2});
  std::string huge_count = good, huge_documents = good, bad_version = good, bad_magic = good;
  std::memset(huge_count.data() + 18, 0x7f, 8);
  std::memset(huge_documents.data() + 26, 0xff, 8);
  bad_version[9] = 2, bad_magic[0] = 'X';
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "ends at byte 0"},
      {"MMIDIDX", "ends at byte 7"},
      {bad_magic, "does not start with"},
      {bad_version, "version 2"},
      {index_bytes(6, {2, 2}, {0, 4}, {0, 1, 2}), "element code 6"},
      {huge_count, "do not fit"},
      {huge_documents, "do not fit"},
      {good.substr(0, good.size() - 1), "do not fit"},
      {index_bytes(8, {2, 3}, {0, 4}, {0, 1, 2}), "sequence 1 of 3 tokens at byte 4"},
      {index_bytes(8, {2, -2}, {0, 4}, {0, 1, 2}), "sequence 1 of -2 tokens"},
      {index_bytes(8, {2, 2}, {0, -4}, {0, 1, 2}), "at byte -4"},
      {index_bytes(8, {2, 2}, {0, INT64_MAX}, {0, 1, 2}), "does not lie within"},
      {index_bytes(8, {2, 2}, {0, 4}, {0, 2, 1}), "document entry 2 is 1"},
      {index_bytes(8, {2, 2}, {0, 4}, {0, 3, 2}), "document entry 2 is 2"},
      {index_bytes(8, {2, 2}, {0, 4}, {1, 1, 2}), "document entry 0 is 1"},
      {index_bytes(8, {2, 2}, {0, 4}, {}), "no document entries"}};
  for (const auto& [index, expected] : cases) {
    test::write_file(dir / "a.bin", bin);
    test::write_file(dir / "a.idx", index);
    const auto message = message_of<DataError>([&] { open({(dir / "a").string()}); });
    EXPECT_NE(message.find(expected), std::string::npos) << expected << " | " << message;
    EXPECT_NE(message.find("a.idx"), std::string::npos) << message;
  }
}

TEST(TokenCorpus, RefusesDamagedShards) {
  const TemporaryDirectory dir;
  const std::string two = packed<std::uint16_t>({1, 2});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "ends at byte 0"},
      {llmc_bytes(7, 1, 2, two), "magic number 7"},
      {llmc_bytes(20240520, 2, 2, two), "version 2"},
      {llmc_bytes(20240520, 1, 3, two), "do not fit the 3 tokens"},
      {llmc_bytes(20240520, 1, 1, two), "do not fit the 1 token that"},
      {llmc_bytes(20240520, 1, -2, two), "do not fit the -2 tokens"}};
  for (const auto& [bytes, expected] : cases) {
    test::write_file(dir / "a.bin", bytes);
    const auto message = message_of<DataError>([&] { open({(dir / "a.bin").string()}); });
    EXPECT_NE(message.find(expected), std::string::npos) << expected << " | " << message;
  }
  message_of<DataError>([&] { open({(dir / "none_*.bin").string()}); });
  message_of<DataError>([&] { open({(dir / "none").string()}); });
  test::write_file(dir / "a.bin",
                   two + two + two);  // a Megatron dataset named as if it were a shard
  test::write_file(dir / "a.idx", "");
  const auto hint = message_of<DataError>([&] { open({(dir / "a.bin").string()}); });
  EXPECT_NE(hint.find("write \"" + (dir / "a").string() + "\""), std::string::npos) << hint;
}

TEST(MegatronWriter, WritesTheDocumentedBytes) {
  const TemporaryDirectory dir;
  io::MegatronWriter writer(dir / "w", 65536);
  writer.append(Tokens{1, 2});
  writer.append(Tokens{65535});
  writer.end_document();
  writer.end_document();  // an empty document
  writer.append(Tokens{4});
  writer.end_document();
  EXPECT_FALSE(std::filesystem::exists(dir / "w.bin"));
  writer.publish();
  EXPECT_EQ(test::read_file(dir / "w.bin"), packed<std::uint16_t>({1, 2, 65535, 4}));
  EXPECT_EQ(test::read_file(dir / "w.idx"), index_bytes(8, {3, 0, 1}, {0, 6, 6}, {0, 1, 2, 3}));
}

TEST(MegatronShare, SharesOfAnyNumberOfWritersMakeTheSamePair) {
  const TemporaryDirectory dir;
  std::vector<Tokens> documents;
  for (int i = 0; i < 40; ++i) documents.emplace_back(static_cast<std::size_t>(i * 7 % 5), i);
  for (const auto type : {DType::u8, DType::u16, DType::i32}) {
    std::string bin, idx;
    for (const std::int64_t writers : {1, 2, 3, 50}) {
      std::list<io::MegatronShare> shares;
      io::MegatronExtent all;
      for (std::int64_t w = 0; w < writers; ++w) {
        auto& share = shares.emplace_back(dir / "pair", type, w);
        for (std::int64_t i = 40 * w / writers; i < 40 * (w + 1) / writers; ++i) {
          share.append(documents[static_cast<std::size_t>(i)]);
          share.end_document();
        }
        all += share.extent();
      }
      io::MegatronExtent before;
      for (auto& share : shares) {
        share.place(before, all);
        before += share.extent();
      }
      EXPECT_EQ(before, all);
      EXPECT_FALSE(std::filesystem::exists(dir / "pair.bin"));
      shares.front().publish();
      if (writers == 1)
        bin = test::read_file(dir / "pair.bin"), idx = test::read_file(dir / "pair.idx");
      EXPECT_EQ(bin.size(), static_cast<std::size_t>(all.elements * size_of(type)));
      EXPECT_EQ(test::read_file(dir / "pair.bin"), bin) << writers;
      EXPECT_EQ(test::read_file(dir / "pair.idx"), idx) << writers;
      for (const char* name : {"pair.bin", "pair.idx"}) std::filesystem::remove(dir / name);
    }
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 0) << "left-overs";
}

}  // namespace
}  // namespace tessera
