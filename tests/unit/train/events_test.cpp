// METRICS.md, the table that it is made from, and the code that writes events say the same.
#include "train/report/events.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>

#include "support/temporary_directory.hpp"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

using FieldsOfEvents = std::map<std::string, std::set<std::string>>;

const fs::path kSource = fs::path(TESSERA_SOURCE_DIR) / "src" / "train";

/// Adds what an object of JSON in C++ holds, which begins at `at`: {{"event", "NAME"}, {"FIELD",
/// ... Fields are its pairs, not what is within them.
void add_object(const std::string& text, std::size_t at, const std::string& name,
                FieldsOfEvents& found) {
  static const std::regex field("^\\{\"(\\w+)\",");
  int depth = 0;
  do {
    if (text[at] == '}') --depth;
    if (text[at] == '{' && ++depth == 2) {
      std::smatch match;
      const std::string rest = text.substr(at, 80);
      if (std::regex_search(rest, match, field) && match[1] != "event")
        found[name].insert(match[1]);
    }
    ++at;
  } while (depth > 0 && at < text.size());
}

FieldsOfEvents written_by_the_code() {
  static const std::regex begin("\\{\\{\"event\", \"(\\w+)\"\\}");
  FieldsOfEvents found;
  for (const auto& entry : fs::recursive_directory_iterator(kSource)) {
    if (entry.path().extension() != ".cpp") continue;
    const std::string text = test::read_file(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), begin), end; it != end; ++it)
      add_object(text, static_cast<std::size_t>(it->position()), (*it)[1], found);
  }
  return found;
}

TEST(Events, AreThoseThatTheCodeWrites) {
  FieldsOfEvents listed;
  for (const EventKind& kind : event_kinds()) {
    auto& fields = listed[std::string(kind.name)];
    for (const EventField& field : kind.fields) fields.emplace(field.name);
  }
  EXPECT_EQ(listed, written_by_the_code());
}

TEST(Events, AreInMetricsMd) {
  const fs::path path = kSource / "METRICS.md";
  if (std::getenv("TESSERA_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << events_markdown();
  EXPECT_EQ(test::read_file(path), events_markdown())
      << "run this test with TESSERA_UPDATE_GOLDEN=1 to write src/train/METRICS.md anew";
}

}  // namespace
}  // namespace tessera::train
