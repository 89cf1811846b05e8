// The file of completions while it is made: OUT.partial, beside which OUT.partial.json says of what
// it is, so that a job that was killed goes on where it was. It gets its name when it is whole.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string_view>

#include "io/file.hpp"

namespace tessera::verbs {

class Results {
 public:
  /// Before long work: DeckError where OUT is there, IoError where it cannot be.
  static void check_new(const std::filesystem::path& out);
  /// `told` says all that the lines, `most` of them, depend on. Where a file was begun, its whole
  /// lines count, and what is behind them is cut off. As check_new(); DeckError also where what was
  /// begun is of something else, naming what, or has more lines; IoError where another process has
  /// it.
  Results(std::filesystem::path out, const nlohmann::ordered_json& told, std::int64_t most);

  /// Lines that are there.
  std::int64_t lines() const { return lines_; }
  /// Adds lines, each with its newline.
  void append(std::string_view lines, std::int64_t count);
  /// Makes them durable and gives the file its name.
  void finish();

 private:
  void count_lines();

  std::filesystem::path out_, partial_, told_;
  std::optional<io::File> file_;
  std::int64_t lines_ = 0, bytes_ = 0;
};

}  // namespace tessera::verbs
