// The run directory: its lock, and the files other programs read.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace tessera::train {

/// A file or directory that a run directory may hold.
struct RunFile {
  std::string_view name, meaning;
};

/// All that users meet there, for the manual.
std::span<const RunFile> run_files();

/// Exclusive use of a run directory by one job; rank 0 holds it. Creates the directory if need be.
class RunLock {
 public:
  /// Waits for a previous job to let go, at most as long as `patience`; then throws DeckError
  /// naming the holder.
  explicit RunLock(const std::filesystem::path& directory,
                   std::chrono::milliseconds patience = std::chrono::seconds(15));
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  /// Throws IoError where the directory, or the lock in it, is no longer the one that was taken:
  /// what is written there now would be lost, or another job's.
  void check() const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
};

/// Writes into the run directory's `ended`, in one line, the exit code and why starting again would
/// not help or is not wanted. A batch job that finds it is not requeued; the next start removes it.
/// Throws IoError.
void write_ended(const std::filesystem::path& directory, ExitCode code, std::string_view why);
void remove_ended(const std::filesystem::path& directory);

/// A file that grows by whole lines, each with one write(). After a crash of the run or of the
/// system it begins with all lines that were synced; from the first one on that did not come to the
/// disk whole, the rest is cut when the file is opened again.
class LineFile {
 public:
  explicit LineFile(const std::filesystem::path& path);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  /// Throws IoError.
  void write(std::string_view line);
  /// Returns when the lines are on the disk. Throws IoError.
  void sync();

 private:
  std::string path_;
  int fd_ = -1;
};

/// "- 2026-03-01 04:05:06Z: ", how an entry of logbook.md begins.
std::string logbook_bullet();

/// The text as log.txt has it: "2026-03-01 04:05:06Z " before each line.
std::string stamped(std::string_view text);

/// What rank 0 tells people and programs: stdout; log.txt, the same with the time of each line;
/// metrics.jsonl, with the time of each event; and logbook.md, the record of a long run that a team
/// would keep. Silent on other ranks. A terminal that cannot be written any more is noted in
/// log.txt, and no error.
class Reporter {
 public:
  Reporter() = default;  // silent
  explicit Reporter(const std::filesystem::path& directory);

  void say(std::string_view line);
  /// One that METRICS.md describes, without its time.
  void event(nlohmann::ordered_json object);
  /// An entry of the logbook alone.
  void note(std::string_view sentence);
  /// Tells all three: the sentence to people, the event to metrics.jsonl.
  void record(std::string_view sentence, const nlohmann::ordered_json& object);
  /// Returns when everything reported so far is on the disk. May be called while another thread
  /// reports more.
  void sync();
  /// The last step that metrics.jsonl held before this start; 0 if none.
  std::int64_t last_step() const { return last_step_; }
  explicit operator bool() const { return log_ != nullptr; }

 private:
  std::unique_ptr<LineFile> log_, metrics_, logbook_;
  std::int64_t last_step_ = 0;
  bool terminal_ = true;  // could be written the last time
};

}  // namespace tessera::train
