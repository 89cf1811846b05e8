// A hostile manifest, its checksum made right: nothing but a DataError comes of it, at little cost.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <nlohmann/json.hpp>

#include "checkpoint_fixture.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"
#include "io/checkpoint_reader.hpp"
#include "support/sanitized.hpp"

namespace tessera {
namespace {

using namespace test;

/// The body with the first line that belongs to it.
std::string sealed(std::string_view body) {
  return fmt::format("{{\"xxh3\":\"{:016x}\",\n{}", hash_text(body), body);
}

class CheckpointFuzz : public ::testing::Test {
 protected:
  CheckpointFuzz() {
    checkpoint = save(random, temporary.path(), random_model(random, false, DType::bf16), 2,
                      {.step = 3, .skipped_samples = {{1, 2}}, .spike_window = {1.5, 2}});
    const auto text = slurp(checkpoint / io::kManifestFile);
    body = text.substr(text.find('\n') + 1);
  }

  /// Whether the manifest was accepted; then everything it promises must be readable.
  bool accepts(const std::string& text) {
    try {
      const auto manifest = io::manifest_from_text(text, "fuzz");
      EXPECT_FALSE(io::find_problem(manifest.parts));
      return true;
    } catch (const DataError& error) {
      EXPECT_EQ(std::string_view(error.what()).substr(0, 6), "fuzz: ");
      return false;
    }
  }

  Random random{41};
  TemporaryDirectory temporary;
  std::filesystem::path checkpoint;
  std::string body;
};

TEST_F(CheckpointFuzz, BytesOfTheManifest) {
  ASSERT_TRUE(accepts(sealed(body)));
  const std::string_view digits = "0123456789-+.eE\"[]{},:nulltrue\\ \x80";
  for (int trial = 0; trial < 4000; ++trial) {
    std::string mutated = body;
    for (auto edits = 1 + random.below(3); edits > 0; --edits) {
      const auto at = static_cast<std::size_t>(random.below(std::ssize(mutated)));
      const char c = digits[static_cast<std::size_t>(random.below(std::ssize(digits)))];
      switch (random.below(4)) {
        case 0: mutated[at] = c; break;
        case 1: mutated.insert(at, 1, c); break;
        case 2: mutated.erase(at, static_cast<std::size_t>(1 + random.below(40))); break;
        default: mutated.insert(at, mutated.substr(at, static_cast<std::size_t>(random.below(60))));
      }
      if (mutated.empty()) mutated.push_back('x');
    }
    accepts(sealed(mutated));
  }
}

/// Every value of the document, as a pointer to it.
void collect(const nlohmann::json& value, const nlohmann::json::json_pointer& here,
             std::vector<nlohmann::json::json_pointer>& all) {
  all.push_back(here);
  if (value.is_object()) {
    for (const auto& item : value.items()) collect(item.value(), here / item.key(), all);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) collect(value[i], here / i, all);
  }
}

TEST_F(CheckpointFuzz, ValuesOfTheManifest) {
  const auto document = nlohmann::json::parse(fmt::format("{{{}", body));
  std::vector<nlohmann::json::json_pointer> places;
  collect(document, nlohmann::json::json_pointer(), places);
  const auto huge = std::numeric_limits<std::int64_t>::max();
  const std::vector<nlohmann::json> hostile = {0,
                                               -1,
                                               1,
                                               3,
                                               huge,
                                               std::numeric_limits<std::uint64_t>::max(),
                                               std::uint64_t{1} << 63,
                                               std::numeric_limits<std::int64_t>::min(),
                                               1e300,
                                               0.5,
                                               nullptr,
                                               true,
                                               "",
                                               "..",
                                               "a/b",
                                               "../../etc/passwd",
                                               "/",
                                               "rank_00001.h5",
                                               "f64",
                                               "0123456789abcdef",
                                               std::string(300, 'x'),
                                               nlohmann::json::array(),
                                               nlohmann::json::object(),
                                               {huge, huge, huge, huge},
                                               {1, 1, 1, 1, 1},
                                               {{0, 0}, {huge, huge}},
                                               {std::int64_t{1} << 47, 2}};
  int accepted = 0, refused = 0;
  const int trials = test::kSanitized ? 2 : 6;
  for (const auto& place : places) {
    for (int trial = 0; trial < trials; ++trial) {
      auto mutated = document;
      const auto& value = hostile[static_cast<std::size_t>(random.below(std::ssize(hostile)))];
      mutated[place] = value;
      const auto text = mutated.dump();
      (accepts(sealed(text.size() > 1 ? text.substr(1) : text)) ? accepted : refused) += 1;
    }
  }
  EXPECT_GT(refused, trials * 500 / 3);
  EXPECT_GT(accepted, 0);  // free numbers: tokens, offsets inside a gap, ...
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  EXPECT_LT(usage.ru_maxrss, 1 << 20);  // KiB: far from what hostile sizes would ask for
}

TEST_F(CheckpointFuzz, DeepNestingAndForeignText) {
  for (const char* unit : {"[", "{\"a\":", "\"xxh3\":[["}) {
    std::string deep;
    for (int i = 0; i < 300'000; ++i) deep += unit;
    EXPECT_FALSE(accepts(sealed(deep)));
    EXPECT_FALSE(accepts(sealed(deep + body)));
  }
  for (const char* text : {"", "\n", "{}", "{\"xxh3\":\"", "null\n"}) EXPECT_FALSE(accepts(text));
  EXPECT_FALSE(accepts(sealed("")));
}

TEST_F(CheckpointFuzz, SaysWhereAndWhat) {
  const auto document = nlohmann::json::parse(fmt::format("{{{}", body));
  const auto message = [&](const char* place, const nlohmann::json& value) -> std::string {
    auto mutated = document;
    mutated[nlohmann::json::json_pointer(place)] = value;
    try {
      io::manifest_from_text(sealed(mutated.dump().substr(1)), "m");
    } catch (const DataError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message("/version", 2), "m: $.version: expected an integer from 1 to 1, found 2");
  EXPECT_EQ(message("/header/tokens", -5),
            "m: $.header.tokens: expected an integer from 0 to 4611686018427387904, found -5");
  EXPECT_EQ(message("/files/1/datasets/2/dtype", "f64"),
            "m: $.files[1].datasets[2].dtype: expected f32, bf16 or f16, found \"f64\"");
  EXPECT_EQ(message("/files/0/file", "../x"),
            "m: $.files[0].file: expected rank_00000.h5, found \"../x\"");
  EXPECT_NE(message("/files/0/datasets/0/tensor", "..").find("names may have letters"),
            std::string::npos);
  EXPECT_EQ(message("/header/spike_window/1", "much"),
            "m: $.header.spike_window[1]: expected a number, nan, inf or -inf, found \"much\"");
}

}  // namespace
}  // namespace tessera
