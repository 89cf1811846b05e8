#include "verbs/bench/bench.hpp"

#include <CLI/CLI.hpp>

#include "io/file.hpp"
#include "setup/threads.hpp"
#include "verbs/bounds.hpp"
#include "verbs/load.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

enum class Needs { backend, deck, disks, plans };

struct Benchmark {
  const char *name, *what;
  Needs needs;
  void (*run)(const BenchOptions&, const train::Job&);
};
constexpr Benchmark kBenchmarks[] = {
    {"machine", "a machine file: products, memory, links, disk", Needs::backend, bench_machine},
    {"kernels", "every operation of a model, on one rank", Needs::backend, bench_kernels},
    {"gemm", "matrix products by size, on one rank", Needs::backend, bench_gemm},
    {"attention", "attention by length, on one rank", Needs::backend, bench_attention},
    {"step", "a deck's training step", Needs::deck, bench_step},
    {"collectives", "gathers and reductions between the ranks", Needs::backend, bench_collectives},
    {"checkpoint", "saving and loading a deck's state", Needs::deck, bench_checkpoint},
    {"nvme", "disks for offloaded state", Needs::disks, bench_nvme},
    {"plan", "plans of decks in inputs/, check, and simulate --search", Needs::plans, bench_plan}};

/// Options that only some benchmarks have.
void check_options(const Benchmark& benchmark, const BenchOptions& o, const CLI::App& verb) {
  const bool decks = benchmark.needs == Needs::deck || benchmark.needs == Needs::plans;
  if (decks && o.backend) throw DeckError("this benchmark's deck says run.backend, not --backend");
  if (!decks && verb.count("--set") > 0)
    throw DeckError("--set is of bench step, checkpoint and plan");
  if (benchmark.needs != Needs::deck && verb.count("--deck") > 0)
    throw DeckError("--deck is of bench step and checkpoint");
  if (o.block && *o.block % io::kSector != 0)
    throw DeckError(fmt::format("--block {}: not a multiple of {}", *o.block, io::kSector));
  if (benchmark.needs == Needs::disks) return;
  for (const char* option : {"--bytes", "--block", "--depth"}) {
    if (verb.count(option) > 0) throw DeckError(fmt::format("{} is of bench nvme", option));
  }
  if (o.directories.size() > 1) throw DeckError("several --dir are of bench nvme");
}

}  // namespace

deck::LoadedDeck bench_deck(const BenchOptions& options, const comm::Control& control,
                            const std::vector<std::string>& more) {
  control.together([&] {
    if (options.deck.empty()) throw DeckError("this benchmark needs --deck DECK");
  });
  DeckOptions deck{.path = options.deck, .sets = options.sets};
  deck.sets.insert(deck.sets.end(), more.begin(), more.end());
  return load_on_all(control, deck).loaded;
}

backend::Backend bench_backend(const BenchOptions& options, const train::Job& job, int threads) {
  job.control.together([&] { setup::use_threads(threads); });
  const backend::Ranks ranks{job.mpi, job.control};
  return backend::make_backend({.kind = options.backend.value_or(deck::Backend::automatic),
                                .threads = threads,
                                .few_rows = true},
                               &ranks);
}

std::vector<std::string> bench_directories(const BenchOptions& options) {
  if (!options.directories.empty()) return options.directories;
  return {std::filesystem::temp_directory_path().string()};
}

BenchDirectory::BenchDirectory(const BenchOptions& options, const comm::Control& control)
    : owner_(control.rank() == 0) {
  std::string name;
  control.together([&] {
    if (!owner_) return;
    const std::filesystem::path parent = bench_directories(options).front();
    name = (parent / "tessera_bench_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw IoError(fmt::format("cannot create {}: {}", name, errno_text(errno)));
  });
  path_ = control.broadcast(name);
}

BenchDirectory::~BenchDirectory() {
  std::error_code ignored;  // what cannot be removed is left
  if (owner_) std::filesystem::remove_all(path_, ignored);
}

void print_row(std::string_view name, std::string_view shape, double seconds, double rate,
               std::string_view unit, double share) {
  fmt::print("{:<28}{:<30}{:>12.3f} ms{:>12.1f} {:<9}{:>7.1f} %\n", name, shape, seconds * 1e3,
             rate, unit, 100 * share);
}

Verb bench(CLI::App& app) {
  auto* verb = app.add_subcommand("bench", "measure speed as a share of this machine's limits");
  auto which = std::make_shared<std::string>();
  auto o = std::make_shared<BenchOptions>();
  std::vector<std::string> names;
  std::string help;
  for (const auto& b : kBenchmarks) {
    names.emplace_back(b.name);
    help += fmt::format("{}{}: {}", help.empty() ? "" : "; ", b.name, b.what);
  }
  verb->add_option("WHAT", *which, help)->required()->check(CLI::IsMember(names));
  verb->add_option("--deck", o->deck, "the deck whose step or state is measured");
  verb->add_option("--set", o->sets, "as for train")->allow_extra_args(false);
  verb->add_option("--repeats", o->repeats,
                   "the fastest counts; of checkpoint, the median; plan searches once")
      ->capture_default_str()
      ->check(bounds(std::int64_t{1}));
  verb->add_option(
          "--dir", o->directories,
          "where temporary files go, seen by all ranks, but for nvme, whose ranks may each have "
          "disks of their own: a --dir for each, two for one that is twice as fast (default: the "
          "system's directory for them)")
      ->allow_extra_args(false);
  verb->add_option("--bytes", o->bytes, "nvme: of each rank, written and read")
      ->capture_default_str()
      ->check(bounds(std::int64_t{1}, std::optional(std::int64_t{1} << 50)));
  verb->add_option("--block", o->block, "nvme: of one request (default: what is usual)")
      ->check(bounds(std::int64_t{4096}, std::optional(std::int64_t{1} << 30)));
  verb->add_option("--depth", o->depth, "nvme: requests under way (default: what is usual)")
      ->check(bounds(1, std::optional(4096)));
  add_backend(*verb, o->backend, "of benchmarks without a deck, as run.backend (auto)");
  return {
      .launch = Launch::ranks, .run = {}, .run_on_ranks = [which, o, verb](const train::Job& job) {
        for (const auto& b : kBenchmarks) {
          if (*which != b.name) continue;
          job.control.together([&] { check_options(b, *o, *verb); });
          b.run(*o, job);
        }
        return ExitCode::ok;
      }};
}

}  // namespace tessera::verbs
