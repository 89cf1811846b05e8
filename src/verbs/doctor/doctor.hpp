// The checks of `tessera doctor`: what a run on this machine, or on the nodes of this job, would
// meet. Each check is a function that looks at one thing, in a row of a table.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/enums.hpp"
#include "core/error.hpp"
#include "deck/load.hpp"
#include "train/job.hpp"

namespace tessera::verbs {

/// Poor: runs work, but slower, or not at every size. Broken: they end with `code`.
enum class Health : std::uint8_t { good, poor, broken };

struct Finding {
  Health health = Health::good;
  std::string what;
  std::string fix;               // of what is not good
  ExitCode code = ExitCode::ok;  // of what is broken
  std::string name = {};         // of a check that has several findings
};

struct DoctorOptions {
  std::string deck;
  std::vector<std::string> sets;
  std::vector<std::string> directories;  // looked at beside those of the deck
};

/// What the checks look at: this rank, its node, and the deck of --deck.
struct Subject {
  const train::Job& job;
  const DoctorOptions& options;
  std::optional<deck::Deck> deck;

  std::int64_t ranks_of_node() const { return job.mpi.job().local; }
  /// Where the run's files will be.
  std::string run_directory() const { return deck ? deck::run_directory(*deck) : "runs"; }
  int gpus() const;  // of this node
};

/// Whether nodes that are alike find the same words: not of what is measured or in use.
enum class Texts : std::uint8_t { agree, vary };

/// A check of one node, made by one of its ranks.
struct NodeCheck {
  const char* name;
  std::vector<Finding> (*look)(const Subject& subject);  // none: there is nothing to say
  Texts texts = Texts::agree;
};
/// Programs and libraries: MPI, Slurm, CUDA, HDF5.
std::span<const NodeCheck> software_checks();
/// Limits of the system, and the cores that ranks have.
std::span<const NodeCheck> system_checks();
/// File systems of the run's directories.
std::span<const NodeCheck> directory_checks();

/// The directory, or, before a run has made it, the one in which it would be made.
std::filesystem::path existing_directory(const std::filesystem::path& path);

/// A new, empty file in a directory, removed when this object goes.
class TrialFile {
 public:
  explicit TrialFile(const std::filesystem::path& directory);
  ~TrialFile();
  TrialFile(const TrialFile&) = delete;
  TrialFile& operator=(const TrialFile&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// A check of all ranks together; collective, found on rank 0.
struct JobCheck {
  const char* name;
  std::vector<Finding> (*look)(const Subject& subject);
};
std::span<const JobCheck> job_checks();

}  // namespace tessera::verbs

template <>
struct tessera::EnumWords<tessera::verbs::Health> {
  using H = tessera::verbs::Health;
  static constexpr std::array table = {std::pair{H::good, "good"}, std::pair{H::poor, "poor"},
                                       std::pair{H::broken, "broken"}};
};
