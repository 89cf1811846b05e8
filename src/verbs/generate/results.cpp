#include "verbs/generate/results.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/terminal.hpp"
#include "io/json.hpp"

namespace tessera::verbs {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostTold = 1 << 20;

fs::path with_ending(fs::path path, std::string_view ending) { return path += ending; }

/// DeckError that names the first member in which what was begun differs.
void check_told(const fs::path& file, const fs::path& partial, const nlohmann::ordered_json& told) {
  const io::JsonDocument before(io::read_text(file, kMostTold), file.string());
  for (const auto& [key, value] : told.items()) {
    const auto was = before.root().find(key);
    const auto known = was ? nlohmann::ordered_json::parse(was->raw().dump()) : nullptr;
    if (known == value) continue;
    throw DeckError(fmt::format(
        "{}: was begun with {} = {}, not {}: give what it was begun with to go on, another --out, "
        "or remove it",
        printable(partial.string()), key, printable(known.dump()), printable(value.dump())));
  }
}

}  // namespace

void Results::check_new(const fs::path& out) {
  io::check_out(out, "completions.jsonl");
  if (!io::path_exists(out)) return;
  throw DeckError(
      fmt::format("--out {}: it is there, and is not overwritten: give another name, or "
                  "remove it",
                  printable(out.string())));
}

Results::Results(fs::path out, const nlohmann::ordered_json& told, std::int64_t most)
    : out_(std::move(out)),
      partial_(with_ending(out_, ".partial")),
      told_(with_ending(partial_, ".json")) {
  check_new(out_);
  const bool begun = io::path_exists(partial_);
  if (begun && !io::path_exists(told_)) {
    throw DeckError(fmt::format(
        "{}: of what it was begun with nothing is known, for {} is missing: remove it, or give "
        "another --out",
        printable(partial_.string()), printable(told_.string())));
  }
  if (!begun) {
    io::write_text(told_,
                   told.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
  file_.emplace(partial_, begun ? io::OpenMode::update : io::OpenMode::create);
  if (!file_->try_lock(io::FileLock::exclusive)) {
    throw IoError(fmt::format("{}: another process writes it: wait for that, or give another --out",
                              printable(partial_.string())));
  }
  if (!begun) return;
  check_told(told_, partial_, told);
  count_lines();
  if (lines_ <= most) return;
  throw DeckError(
      fmt::format("{}: has {} lines, and there are {} completions: something else wrote "
                  "into it; remove it, or give another --out",
                  printable(partial_.string()), lines_, most));
}

void Results::count_lines() {
  std::vector<std::byte> part(1 << 20);
  for (std::int64_t at = 0, size = file_->size(); at < size;) {
    const std::int64_t n = std::min(size - at, std::ssize(part));
    file_->read(at, std::span(part).first(static_cast<std::size_t>(n)));
    for (std::int64_t i = 0; i < n; ++i) {
      if (part[static_cast<std::size_t>(i)] != std::byte{'\n'}) continue;
      ++lines_;
      bytes_ = at + i + 1;
    }
    at += n;
  }
  file_->resize(bytes_);
}

void Results::append(std::string_view lines, std::int64_t count) {
  file_->write(bytes_, std::as_bytes(std::span(lines)));
  bytes_ += static_cast<std::int64_t>(lines.size());
  lines_ += count;
}

void Results::finish() {
  file_->sync();
  check_new(out_);
  io::rename_path(partial_, out_);
  file_->close();
  io::remove_tree(told_);
  io::sync_directory(out_.has_parent_path() ? out_.parent_path() : fs::path("."));
}

}  // namespace tessera::verbs
