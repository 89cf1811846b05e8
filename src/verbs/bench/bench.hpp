// What benchmarks share. Each measures a rate in the same run as the machine's limit for it, and
// prints it as a share of that limit: only ratios mean anything on machines of different speed.
#pragma once

#include <filesystem>

#include "backend/bench.hpp"
#include "deck/load.hpp"
#include "train/job.hpp"

namespace tessera::verbs {

struct BenchOptions {
  std::string deck;
  std::vector<std::string> sets;
  std::int64_t repeats = 5;
  std::vector<std::string> directories;        // for temporary files; several of nvme alone
  std::optional<deck::Backend> backend;        // of benchmarks without a deck
  std::int64_t bytes = std::int64_t{1} << 30;  // of nvme, as what follows: a rank's files together
  std::optional<std::int64_t> block;           // unset: all that are usual
  std::optional<int> depth;
};

/// The back end of a benchmark without a deck, on all ranks together.
backend::Backend bench_backend(const BenchOptions& options, const train::Job& job, int threads);

using backend::finish_alone, backend::keep_fastest, backend::seconds_together;

/// The deck of --deck on all ranks; `more` comes after --set. DeckError without --deck.
deck::LoadedDeck bench_deck(const BenchOptions& options, const comm::Control& control,
                            const std::vector<std::string>& more = {});

/// Those of --dir, or the system's for temporary files.
std::vector<std::string> bench_directories(const BenchOptions& options);

/// A new directory that all ranks see; rank 0 removes it, also when something failed.
class BenchDirectory {
 public:
  BenchDirectory(const BenchOptions& options, const comm::Control& control);
  ~BenchDirectory();
  BenchDirectory(const BenchDirectory&) = delete;
  BenchDirectory& operator=(const BenchDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  bool owner_;
  std::filesystem::path path_;
};

// What checkpoints are compared with: one file, sequential blocks of 4 MiB, fsync included. Throw
// IoError.
void write_raw(const std::filesystem::path& path, std::int64_t bytes);
void read_raw(const std::filesystem::path& path, std::int64_t bytes);

/// Lets reads come from the disk: drops what the page cache holds of the files below `path`.
void forget(const std::filesystem::path& path);

void print_row(std::string_view name, std::string_view shape, double seconds, double rate,
               std::string_view unit, double share);

// Collective over all ranks; rank 0 prints.
void bench_machine(const BenchOptions&, const train::Job&);
void bench_kernels(const BenchOptions&, const train::Job&);
void bench_gemm(const BenchOptions&, const train::Job&);
void bench_attention(const BenchOptions&, const train::Job&);
void bench_step(const BenchOptions&, const train::Job&);
void bench_collectives(const BenchOptions&, const train::Job&);
void bench_checkpoint(const BenchOptions&, const train::Job&);
void bench_nvme(const BenchOptions&, const train::Job&);
void bench_plan(const BenchOptions&, const train::Job&);

}  // namespace tessera::verbs
