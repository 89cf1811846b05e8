// tessera bench step: a few steps of a deck, as a share of the rate of a large product.
#include <limits>

#include "core/bytes.hpp"
#include "io/megatron.hpp"
#include "setup/inputs.hpp"
#include "setup/threads.hpp"
#include "setup/traffic.hpp"
#include "train/trainer.hpp"
#include "verbs/bench/bench.hpp"

namespace tessera::verbs {
namespace {

/// A large square product on every rank at once, with what the rank has: the limit for this job.
class Product {
 public:
  Product(const comm::Control& control, backend::Backend backend, DType type)
      : control_(control), backend_(std::move(backend)), memory_(*backend_.device_tier) {
    const auto usual = backend::usual_bench(backend_, 1, 1);
    const std::int64_t n = usual.square;
    name_ = fmt::format("product n = {}", n);
    if (usual.at_least > 0) calls_ = 20;  // one after another, so that queueing them costs nothing
    call_ = {.x = memory_.floats(type, {n, n}),
             .weight = memory_.floats(type, {n, n}),
             .y = memory_.zeros(type, {n, n})};
    if (const std::int64_t bytes = backend_.device->scratch_bytes(call_); bytes > 0)
      call_.scratch = memory_.zeros(DType::u8, {bytes});
  }

  /// Repeats it for two seconds after a warm-up: on a machine that others use too, or whose clock
  /// changes, fewer would say little.
  void measure() {
    run(1);
    for (double spent = 0; spent < 2;) {
      const double s = seconds_together(control_, [&] { run(calls_); });
      spent += s;
      best_ = std::min(best_, s / calls_);
    }
  }
  const std::string& name() const { return name_; }
  double seconds() const { return best_; }
  double gflops() const {
    return call_.flop() * static_cast<double>(control_.size()) / best_ / 1e9;
  }

 private:
  void run(int calls) {
    for (int i = 0; i < calls; ++i) backend_.device->run(call_);
    backend_.device_tier->wait();
  }

  const comm::Control& control_;
  backend::Backend backend_;
  backend::BenchMemory memory_;
  kernels::Linear call_;
  std::string name_;
  int calls_ = 1;
  double best_ = std::numeric_limits<double>::max();
};

constexpr const char* kTokenFiles = "tokens";  // in the benchmark's directory

/// The deck for a few steps on the tokens of `directory`, where a run of this name has its own one.
deck::LoadedDeck short_run(const BenchOptions& o, const comm::Control& control,
                           const std::filesystem::path& directory, const char* name,
                           std::vector<std::string> sets = {}) {
  sets.insert(
      sets.end(),
      {fmt::format("run.dir=\"{}\"", (directory / name).string()),
       fmt::format("run.steps={}", o.repeats + 1), "run.resume=\"never\"", "checkpoint.every=0",
       fmt::format("data.train=[\"{}\"]", (directory / kTokenFiles).string()), "data.validation=[]",
       "evaluate.every=0", "batch.ramp=[]", "batch.curriculum={}", "guard.hang_timeout=0"});
  deck::LoadedDeck loaded = bench_deck(o, control, sets);
  loaded.deck.log.profile.reset();
  return loaded;
}

/// Tokens for `steps` steps; any do, for their values cost the same.
void write_tokens(const std::filesystem::path& prefix, const deck::Deck& deck, std::int64_t steps) {
  io::MegatronWriter writer(prefix, deck.model.vocab);
  std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(steps * deck.batch.sequence * deck.batch.global + 1));
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i * 7919) % deck.model.vocab);
  }
  writer.append(tokens);
  writer.end_document();
  writer.publish();
}

/// The rate of a run's fastest step.
train::StepRates rates_of(const deck::LoadedDeck& loaded, const train::Job& job) {
  train::Trainer trainer(loaded, job);
  trainer.train();
  return trainer.rates();
}

}  // namespace

/// Trains the deck for a few steps and compares its flop rate with a product's, measured before and
/// after. In layout mode also without it, and says what it costs.
void bench_step(const BenchOptions& o, const train::Job& job) {
  const comm::Control& control = job.control;
  const BenchDirectory directory(o, control);
  const deck::LoadedDeck loaded = short_run(o, control, directory.path(), "run");
  control.together([&] {
    if (!deck::draws_answers(loaded.deck.task.kind)) return;
    throw DeckError(fmt::format(
        "bench step: task.kind = \"{}\" learns from what it draws, which is not measured "
        "(give a deck of the same model with another kind)",
        enum_word(loaded.deck.task.kind)));
  });
  control.together([&] {
    if (control.rank() == 0)
      write_tokens(directory.path() / kTokenFiles, loaded.deck, *loaded.deck.run.steps);
  });
  const int threads = setup::thread_count(loaded.deck.run, job.mpi.cores());
  const DType type = setup::dtype_of(loaded.deck.precision.compute);
  const backend::Ranks ranks{job.mpi, control};
  Product product(control,
                  backend::make_backend({.kind = loaded.deck.run.backend,
                                         .threads = threads,
                                         .matmul = loaded.deck.precision.matmul,
                                         .memory = loaded.deck.memory.device},
                                        &ranks),
                  type);
  product.measure();
  const train::StepRates rates = rates_of(loaded, job);
  std::optional<train::StepRates> other;
  if (loaded.deck.run.reproducible == deck::Reproducible::layout) {
    deck::LoadedDeck plain = short_run(o, control, directory.path(), "other",
                                       {"run.reproducible=\"run\"", "run.reproducible_tensor=1"});
    // In layout mode nothing is rounded to blocks, also where the deck leaves that open.
    setup::set_traffic(plain.deck, {.secondary = plain.deck.zero.secondary});
    other = rates_of(plain, job);
  }
  product.measure();
  control.barrier();  // nobody uses the directory any more
  if (control.rank() != 0) return;
  fmt::print("# {} x {}; fastest of {}; flop counted as 6 N + 6 L C T a token\n",
             count_text(job.mpi.size(), "rank"), count_text(threads, "thread"),
             count_text(*loaded.deck.run.steps, "step"));
  print_row(product.name(), to_string(type), product.seconds(), product.gflops(), "GFLOP/s", 1);
  print_row("training step", loaded.deck.run.name, rates.best_step_s, rates.best_gflops, "GFLOP/s",
            rates.best_gflops / product.gflops());
  if (other) {
    print_row("training step", "reproducible = \"run\"", other->best_step_s, other->best_gflops,
              "GFLOP/s", other->best_gflops / product.gflops());
    fmt::print("the same bits on every layout cost {:.1f}% of the time of a step\n",
               100 * (1 - other->best_step_s / rates.best_step_s));
  }
  fmt::print("{:.0f} tokens/s\n", rates.best_tokens_per_s);
}

}  // namespace tessera::verbs
