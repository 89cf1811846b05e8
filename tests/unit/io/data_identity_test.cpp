#include "io/data_identity.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "io/megatron.hpp"
#include "support/temporary_directory.hpp"

namespace tessera {
namespace {

using test::TemporaryDirectory;

/// Two documents.
std::string write_pair(const TemporaryDirectory& dir, std::string_view name,
                       std::vector<std::int32_t> tokens, std::size_t first_document) {
  const std::string prefix = (dir / name).string();
  io::MegatronWriter writer(prefix, 1000);
  const std::span all(tokens);
  writer.append(all.first(first_document));
  writer.end_document();
  writer.append(all.subspan(first_document));
  writer.end_document();
  writer.publish();
  return prefix;
}

std::vector<io::DataFile> identity_of(std::vector<std::string> entries) {
  return io::identify(io::TokenCorpus(entries, 1000));
}

TEST(DataIdentity, IsOfBytesNotOfNames) {
  const TemporaryDirectory dir;
  const auto first = identity_of({write_pair(dir, "a", {1, 2, 3, 4}, 2)});
  ASSERT_EQ(first.size(), 2U);
  EXPECT_EQ(first[0].bytes, 8);
  EXPECT_FALSE(io::find_difference(first, identity_of({write_pair(dir, "b", {1, 2, 3, 4}, 2)})));
  const auto difference = [&](std::vector<std::string> entries) {
    return io::find_difference(first, identity_of(std::move(entries))).value_or("none");
  };
  EXPECT_NE(difference({write_pair(dir, "c", {1, 2, 3, 5}, 2)}).find("c.bin holds other bytes"),
            std::string::npos);
  // The same tokens, cut into other documents: only the index tells.
  EXPECT_NE(difference({write_pair(dir, "d", {1, 2, 3, 4}, 3)}).find("d.idx holds other bytes"),
            std::string::npos);
  EXPECT_NE(difference({write_pair(dir, "e", {1, 2, 3, 4, 5}, 2)}).find("e.bin has 10 bytes"),
            std::string::npos);
  EXPECT_EQ(difference({(dir / "a").string(), (dir / "a").string()}),
            "there are 4 files, there were 2");
}

/// Targets and labels are data too: of what a run was trained on.
TEST(DataIdentity, IncludesTargetsAndLabels) {
  const TemporaryDirectory dir;
  const std::string prefix = write_pair(dir, "a", {1, 2, 3, 4}, 2);
  const auto bare = identity_of({prefix});
  const auto add = [&](const std::string& name, DType type, std::vector<std::int32_t> elements) {
    io::MegatronShare share(name, type, 0);
    const std::span all(elements);
    for (const auto document : {all.first(all.size() / 2), all.subspan(all.size() / 2)}) {
      share.append(document);
      share.end_document();
    }
    share.place({}, share.extent());
    share.publish();
  };
  const auto add_both = [&](std::vector<std::int32_t> marks, std::vector<std::int32_t> labels,
                            const std::string& names) {
    add(prefix + ".targets", DType::u8, std::move(marks));
    add(prefix + ".labels", DType::i32, std::move(labels));
    test::write_file(prefix + ".labels.json", names);
    return identity_of({prefix});
  };
  const std::string names = R"({"key": "k", "names": ["a", "b"]})";
  const auto first = add_both({0, 1, 1, 1}, {0, 1}, names);
  ASSERT_EQ(first.size(), 7U);
  EXPECT_EQ(io::find_difference(bare, first), "there are 7 files, there were 2");
  const auto difference = [&](auto... arguments) {
    return io::find_difference(first, add_both(arguments...)).value_or("none");
  };
  using Elements = std::vector<std::int32_t>;
  EXPECT_EQ(difference(Elements{0, 1, 1, 1}, Elements{0, 1}, names), "none");
  EXPECT_NE(difference(Elements{0, 0, 1, 1}, Elements{0, 1}, names).find("a.targets.bin holds"),
            std::string::npos);
  EXPECT_NE(difference(Elements{0, 1, 1, 1}, Elements{1, 1}, names).find("a.labels.bin holds"),
            std::string::npos);
  EXPECT_NE(difference(Elements{0, 1, 1, 1}, Elements{0, 1}, R"({"key": "k", "names": ["a", "c"]})")
                .find("a.labels.json holds"),
            std::string::npos);
}

/// Of large files the first and the last bytes are in the sample, and pieces between them.
TEST(DataIdentity, SamplesLargeFiles) {
  const TemporaryDirectory dir;
  const auto prefix = write_pair(dir, "large", {1, 2}, 1);
  constexpr std::int64_t kBytes = std::int64_t{1} << 30;  // sparse
  const auto identity_with = [&](std::int64_t at) {
    io::File bin(io::megatron_bin(prefix), io::OpenMode::update);
    bin.resize(kBytes);
    const std::byte one{1}, zero{0};
    bin.write(at, {&one, 1});
    const auto identity = identity_of({prefix});
    bin.write(at, {&zero, 1});
    return identity;
  };
  const auto plain = identity_with(kBytes / 512);  // between the first two pieces
  EXPECT_FALSE(io::find_difference(plain, identity_with(kBytes / 512 + 1000)));
  for (const std::int64_t at : {std::int64_t{9}, kBytes - 1, (kBytes - 65536) / 255 + 1}) {
    EXPECT_TRUE(io::find_difference(plain, identity_with(at))) << at;
  }
}

}  // namespace
}  // namespace tessera
