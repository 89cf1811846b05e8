#include "deck/ranks.hpp"

#include <fmt/format.h>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "core/sharding.hpp"
#include "deck/problems.hpp"

namespace tessera::deck {

namespace {

/// Ascending.
std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> small;
  std::vector<std::int64_t> large;
  for (std::int64_t d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    small.push_back(d);
    if (d != n / d) large.push_back(n / d);
  }
  small.insert(small.end(), large.rbegin(), large.rend());
  return small;
}

/// "1, 2, 4, 8": the first ones if there are many.
std::string listed(std::vector<std::int64_t> all) {
  constexpr std::size_t kMost = 12;
  const bool many = all.size() > kMost;
  if (many) all.resize(kMost);
  return fmt::format("{}{}", fmt::join(all, ", "), many ? ", ..." : "");
}

/// A global batch that does not divide is refused, never rounded.
void check_global(const LoadedDeck& loaded, std::string_view key, std::int64_t global,
                  std::int64_t data, Problems& problems) {
  const std::int64_t micro = loaded.deck.batch.micro;
  const std::int64_t step = micro * data;
  if (global % step == 0) return;
  const std::int64_t below = global / step * step;
  const std::string nearest =
      below > 0 ? fmt::format("{} or {}", below, below + step) : std::to_string(step);
  const std::string micros =
      global % data == 0
          ? fmt::format("with {}, batch.micro may be {}", global, listed(divisors(global / data)))
          : fmt::format("no batch.micro makes {} legal on {}", global,
                        count_text(data, "data rank"));
  problems.add(loaded.place(key), key,
               fmt::format("{} = {} is not a multiple of batch.micro x data ranks = {} x {} = {} "
                           "(nearest: {}; {})",
                           key, global, micro, data, step, nearest, micros));
}

/// Sums over micro-batches are whole trees in layout mode.
void check_powers(const LoadedDeck& loaded, const char* key, std::int64_t global, std::int64_t data,
                  Problems& problems) {
  const auto power = [](std::int64_t n) { return (n & (n - 1)) == 0; };
  const std::int64_t count = global / (loaded.deck.batch.micro * data);
  if (loaded.deck.run.reproducible != Reproducible::layout || (power(data) && power(count))) return;
  problems.add(loaded.place(key), key,
               fmt::format("run.reproducible = \"layout\" needs powers of two: {} with {} each "
                           "({} = {})",
                           count_text(data, "data rank"),
                           count_text(count, "micro-batch", "micro-batches"), key, global));
}

void check_batches(const LoadedDeck& loaded, std::int64_t data, Problems& problems) {
  const auto check = [&](const char* key, std::int64_t global) {
    check_global(loaded, key, global, data, problems);
    check_powers(loaded, key, global, data, problems);
  };
  check("batch.global", loaded.deck.batch.global);
  for (const RampEntry& entry : loaded.deck.batch.ramp) check("batch.ramp", entry.global);
}

}  // namespace

std::int64_t tensor_chunks(const Deck& deck) {
  return deck.run.reproducible == Reproducible::layout ? deck.run.reproducible_tensor
                                                       : deck.parallel.tensor * deck.zero.tiles;
}

std::int64_t context_shares(const Deck& deck) {
  return deck.run.reproducible == Reproducible::layout ? deck.run.reproducible_context
                                                       : deck.parallel.context;
}

std::int64_t context_chunks(const Deck& deck) {
  const std::int64_t shares = context_shares(deck);
  return shares > 1 ? 2 * shares : 1;
}

bool heads_divide(const Deck& deck) {
  return deck.model.kv_heads % (tensor_chunks(deck) * deck.parallel.context) == 0;
}

ContextKind context_kind(const Deck& deck) {
  if (deck.parallel.context_kind != ContextKind::automatic) return deck.parallel.context_kind;
  const std::int64_t kv = deck.model.kv_heads,
                     bytes = deck.precision.compute == Precision::f32 ? 4 : 2;
  const bool fewer =
      6 * (deck.model.heads + kv) * bytes < deck.parallel.context * kv * (4 * bytes + 2 * 4);
  // In layout mode products have the same shapes on every layout.
  const bool layout = deck.run.reproducible == Reproducible::layout;
  return fewer && !layout && heads_divide(deck) ? ContextKind::heads : ContextKind::gather;
}

void check_ranks(const LoadedDeck& loaded, std::int64_t ranks) {
  TESSERA_CHECK(ranks > 0, "ranks = {}", ranks);
  const ParallelSection& parallel = loaded.deck.parallel;
  const std::int64_t replica = parallel.tensor * parallel.pipeline * parallel.context;
  Problems problems;
  if (ranks % replica != 0) {
    const char* key = parallel.tensor > 1     ? "parallel.tensor"
                      : parallel.pipeline > 1 ? "parallel.pipeline"
                                              : "parallel.context";
    const bool context = parallel.context > 1;
    problems.add(
        loaded.place(key), key,
        fmt::format("parallel.tensor x parallel.pipeline{} = {} x {}{} = {} does not "
                    "divide {}",
                    context ? " x parallel.context" : "", parallel.tensor, parallel.pipeline,
                    context ? fmt::format(" x {}", parallel.context) : "", replica,
                    count_text(ranks, "rank")));
    problems.throw_if_any();
  }
  const std::int64_t data = ranks / replica, sharing = data * parallel.context;
  if (parallel.data != 0 && parallel.data != data) {
    problems.add(
        loaded.place("parallel.data"), "parallel.data",
        fmt::format("parallel.data = {}, but {} / (tensor {} x pipeline {}{}) leave {} "
                    "(give {}, or 0 for what is left)",
                    parallel.data, count_text(ranks, "rank"), parallel.tensor, parallel.pipeline,
                    parallel.context > 1 ? fmt::format(" x context {}", parallel.context) : "",
                    data, data));
  }
  if (sharing % parallel.experts != 0) {
    problems.add(
        loaded.place("parallel.experts"), "parallel.experts",
        fmt::format(
            "parallel.experts = {} does not divide the {} of this layout (give one "
            "of {})",
            parallel.experts,
            count_text(sharing, parallel.context > 1 ? "data and context rank" : "data rank"),
            listed(divisors(sharing))));
  }
  check_batches(loaded, data, problems);
  for (const Fault& fault : loaded.deck.fault.inject) {
    if (fault.rank < ranks) continue;
    problems.add(loaded.place("fault.inject"), "fault.inject",
                 fmt::format("fault.inject has \"{}\", but there are only ranks 0 to {}",
                             to_text(fault), ranks - 1));
  }
  problems.throw_if_any();
}

void check_quantized(const LoadedDeck& loaded, std::int64_t ranks) {
  const ParallelSection& parallel = loaded.deck.parallel;
  const QuantizeSection& q = loaded.deck.zero.quantize;
  const bool alone = ranks == parallel.tensor * parallel.pipeline;
  Problems problems;
  const auto refuse = [&](std::string_view key, std::string_view word, const std::string& why) {
    problems.add(
        loaded.place(key), key,
        fmt::format("{} = \"{}\" has no effect: {}, or leave it at \"none\")", key, word, why));
  };
  const std::string one_rank = fmt::format(
      "{} / (tensor {} x pipeline {}) leave one data rank, which has nobody to send to (use more "
      "ranks",
      count_text(ranks, "rank"), parallel.tensor, parallel.pipeline);
  constexpr std::int64_t kGathers = first_stage(&Sharding::parameters);
  if (q.weights == QuantizedWeights::int8 && (alone || loaded.deck.zero.stage < kGathers)) {
    refuse("zero.quantize.weights", enum_word(q.weights),
           alone ? one_rank
                 : fmt::format("parameters are gathered at stage {} only, not at zero.stage = {} "
                               "(set zero.stage = {}",
                               kGathers, loaded.deck.zero.stage, kGathers));
  }
  const bool open = q.gradients == QuantizedGradients::automatic;
  if (q.gradients != QuantizedGradients::none && !open && alone)
    refuse("zero.quantize.gradients", enum_word(q.gradients), one_rank);
  const auto& secondary = loaded.deck.zero.secondary;
  const auto* neighbours = std::get_if<std::int64_t>(&secondary);
  const bool none = neighbours == nullptr && std::get<Secondary>(secondary) != Secondary::node;
  const std::int64_t data = ranks / (parallel.tensor * parallel.pipeline);
  if (!none && (alone || loaded.deck.zero.stage < kGathers)) {
    refuse("zero.secondary",
           neighbours != nullptr ? std::to_string(*neighbours)
                                 : enum_word(std::get<Secondary>(secondary)),
           alone ? one_rank
                 : fmt::format("parameters are gathered at stage {} only, not at zero.stage = {} "
                               "(set zero.stage = {}",
                               kGathers, loaded.deck.zero.stage, kGathers));
  } else if (neighbours != nullptr && (*neighbours >= data || data % *neighbours != 0)) {
    std::vector<std::int64_t> legal = divisors(data);
    legal.pop_back();  // all of them: what is gathered once comes from as far
    problems.add(loaded.place("zero.secondary"), "zero.secondary",
                 fmt::format("zero.secondary = {} must divide the {} data ranks into several parts "
                             "(give {})",
                             *neighbours, data, listed(std::move(legal))));
  }
  problems.throw_if_any();
}

std::vector<std::int64_t> legal_micros(const LoadedDeck& loaded, std::int64_t ranks) {
  const ParallelSection& p = loaded.deck.parallel;
  const std::int64_t data = ranks / (p.tensor * p.pipeline * p.context);
  LoadedDeck tried = loaded;
  std::vector<std::int64_t> legal;
  for (const std::int64_t micro : divisors(loaded.deck.batch.global / data)) {
    tried.deck.batch.micro = micro;
    Problems problems;
    check_batches(tried, data, problems);
    if (!problems.about("batch.global") && !problems.about("batch.ramp")) legal.push_back(micro);
  }
  return legal;
}

}  // namespace tessera::deck
