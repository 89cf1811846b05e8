// Speed, as ratios to what this machine can do, measured in one run.
#include "kernels/cpu/bench.hpp"

#include <omp.h>
#include <CLI/CLI.hpp>

#include <filesystem>

#include "io/megatron.hpp"
#include "kernels/cpu/device.hpp"
#include "train/setup.hpp"
#include "train/trainer.hpp"
#include "verbs/load.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

struct Options {
  std::string what = "kernels", deck;
  std::vector<std::string> sets;
  std::int64_t repeats = 5;
};

void print_row(std::string_view name, std::string_view shape, double ms, double rate,
               std::string_view unit, double share) {
  fmt::print("{:<28}{:<30}{:>12.3f} ms{:>12.1f} {:<9}{:>7.1f} %\n", name, shape, ms, rate, unit,
             100 * share);
}

ExitCode bench_kernels(const Options& o) {
  const int threads = train::thread_count({}, 1);
  omp_set_num_threads(threads);
  const auto device = kernels::make_cpu_device({.threads = threads});
  fmt::print(
      "# {} threads; matrix work as a share of a square product, the rest of the STREAM triad\n",
      threads);
  for (const auto& row : kernels::bench_kernels(
           *device, {.threads = threads, .repeats = static_cast<int>(o.repeats)})) {
    print_row(row.name, row.shape, row.ms, row.rate, enum_word(row.unit), row.share);
  }
  return ExitCode::ok;
}

/// A product of n = 2048 on every rank at once, with the rank's threads: the machine's limit for
/// this job.
double gemm_gflops(kernels::Device& device, DType type, const comm::Control& control) {
  constexpr std::int64_t n = 2048;
  std::vector<std::vector<std::byte>> memory;
  const auto make = [&](DType t, std::initializer_list<std::int64_t> extents) {
    View v(nullptr, t, extents);
    memory.emplace_back(static_cast<std::size_t>(v.span_bytes() + 64));
    auto* p = memory.back().data();
    v.data = p + (64 - reinterpret_cast<std::uintptr_t>(p) % 64) % 64;
    return v;
  };
  kernels::Linear call{
      .x = make(type, {n, n}), .weight = make(type, {n, n}), .y = make(type, {n, n})};
  if (const std::int64_t bytes = device.scratch_bytes(call); bytes > 0)
    call.scratch = make(DType::u8, {bytes});
  double best = 0;
  for (int i = 0; i < 8; ++i) {
    control.barrier();
    const auto begin = std::chrono::steady_clock::now();
    device.run(call);
    const double s =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    best = std::max(best, call.flop() / s / 1e9);
  }
  return control.sum(best);
}

/// Trains the deck for a few steps in a temporary directory and compares its flop rate with the
/// machine's limit.
ExitCode bench_step(const Options& o, const train::Job& job) {
  const comm::Control& control = job.control;
  std::string folder;
  control.together([&] {
    if (control.rank() != 0) return;
    std::string name = (std::filesystem::temp_directory_path() / "tessera_bench_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw IoError(fmt::format("cannot create {}: {}", name, errno_text(errno)));
    folder = name;
  });
  folder = control.broadcast(folder);
  DeckOptions options{.path = o.deck, .sets = o.sets};
  const std::int64_t steps = o.repeats + 1;
  for (const std::string& set :
       {fmt::format("run.dir=\"{}/run\"", folder), fmt::format("run.steps={}", steps),
        std::string("checkpoint.every=0"), fmt::format("data.train=[\"{}/tokens\"]", folder),
        std::string("data.validation=[]"), std::string("guard.hang_timeout=0"),
        std::string("evaluate.every=0")}) {
    options.sets.push_back(set);
  }
  const deck::LoadedDeck loaded = load_on_all(control, options);
  control.together([&] {
    if (control.rank() != 0) return;
    MegatronWriter writer(folder + "/tokens",
                          loaded.deck.model.vocab);  // any tokens do: their values cost the same
    std::vector<std::int32_t> tokens(
        static_cast<std::size_t>(loaded.deck.batch.sequence * loaded.deck.batch.global + 1));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] =
          static_cast<std::int32_t>(static_cast<std::int64_t>(i * 7919) % loaded.deck.model.vocab);
    }
    writer.append(tokens);
    writer.end_document();
    writer.publish();
  });
  train::StepRates rates;
  {
    train::Trainer trainer(loaded, job);
    trainer.train();
    rates = trainer.rates();
  }
  const int threads = train::thread_count(loaded.deck.run, job.mpi.cores());
  const auto device = kernels::make_cpu_device({.threads = threads});
  const double limit =
      gemm_gflops(*device, train::dtype_of(loaded.deck.precision.compute), control);
  control.barrier();
  if (control.rank() == 0) {
    std::filesystem::remove_all(folder);
    fmt::print(
        "# {} ranks x {} threads; fastest of {} steps; flop counted as 6 N + 6 L C T a token\n",
        control.size(), threads, o.repeats);
    print_row("product n = 2048",
              std::string(to_string(train::dtype_of(loaded.deck.precision.compute))), 0, limit,
              "GFLOP/s", 1);
    print_row("training step", loaded.deck.run.name, rates.best_step_s * 1e3, rates.best_gflops,
              "GFLOP/s", rates.best_gflops / limit);
    fmt::print("{:.0f} tokens/s\n", rates.best_tokens_per_s);
  }
  return ExitCode::ok;
}

}  // namespace

Verb bench(CLI::App& app) {
  auto* verb = app.add_subcommand("bench", "measure speed as a share of this machine's limits");
  auto o = std::make_shared<Options>();
  verb->add_option("WHAT", o->what, "kernels, or step: a deck's training step")
      ->required()
      ->check(CLI::IsMember({"kernels", "step"}));
  verb->add_option("--deck", o->deck, "the deck whose step is measured");
  verb->add_option("--set", o->sets, "as for train")->allow_extra_args(false);
  verb->add_option("--repeats", o->repeats, "the fastest counts")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  return {.launch = Launch::ranks, .run = {}, .run_on_ranks = [o](const train::Job& job) {
            if (o->what == "step") {
              if (o->deck.empty())
                throw AgreedError(ExitCode::deck, "bench step needs --deck",
                                  std::source_location::current());
              return bench_step(*o, job);
            }
            return job.control.rank() == 0 ? bench_kernels(*o) : ExitCode::ok;
          }};
}

}  // namespace tessera::verbs
