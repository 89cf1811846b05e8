// Softmax and cross-entropy on a GPU: checks arguments, launches the kernels.
#include "kernels/common/types.hpp"
#include "kernels/cuda/classify.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

/// For a row of so many tokens: small ones leave no thread idle.
Team team_of(std::int64_t tokens) { return {tokens <= 4096 ? 128 : Team::kMostThreads}; }

/// How many of a part's columns are tokens; the others are padding.
template <typename Operation>
std::int64_t tokens_here(const Operation& a) {
  return std::clamp<std::int64_t>(a.vocab - a.first_token, 0, a.logits.cols());
}

}  // namespace

void run(const Classify& a, const Context& context) {
  check(a);
  with_type(a.logits.type, [&]<typename T>() {
    const ClassifyRows<T> rows{.logits = rows_of<T>(a.logits),
                               .targets = a.targets.as<std::int32_t>(),
                               .losses = a.losses.as<float>(),
                               .scale = a.scale.as<float>(),
                               .team = team_of(a.vocab),
                               .columns = a.logits.cols(),
                               .vocab = a.vocab,
                               .soft_cap = a.soft_cap,
                               .terms = a.terms,
                               .wide = wide<kRun<T>>({a.logits})};
    with_cap(a.soft_cap, [&]<bool kCapped>() {
      launch(on(context, a.kName, a.logits.rows(), rows.team.block()), classify_kernel<T, kCapped>,
             rows);
    });
  });
}

void run(const ClassifyPart& a, const Context& context) {
  check(a);
  const std::int64_t tokens = tokens_here(a);
  with_type(a.logits.type, [&]<typename T>() {
    const ClassifyPartRows<T> rows{.logits = rows_of<T>(a.logits),
                                   .targets = a.targets.as<std::int32_t>(),
                                   .stats = a.stats.as<float>(),
                                   .team = team_of(tokens),
                                   .first_token = a.first_token,
                                   .tokens = tokens,
                                   .vocab = a.vocab,
                                   .soft_cap = a.soft_cap,
                                   .wide = wide<kRun<T>>({a.logits})};
    with_cap(a.soft_cap, [&]<bool kCapped>() {
      launch(on(context, a.kName, a.logits.rows(), rows.team.block()),
             classify_part_kernel<T, kCapped>, rows);
    });
  });
}

void run(const ClassifyLoss& a, const Context& context) {
  check(a);
  const std::int64_t parts = a.stats.extent(0), rows = a.stats.extent(1);
  TESSERA_CHECK(parts <= kMostParts, "{} of {} parts, at most {}", a.kName, parts, kMostParts);
  launch(on(context, a.kName, ceil_div(rows, kLossThreads), kLossThreads), classify_loss_kernel,
         a.stats.as<float>(), a.targets.as<std::int32_t>(), parts, rows, a.vocab, a.terms,
         a.losses.as<float>(), a.lse.as<float>());
}

void run(const ClassifyGradient& a, const Context& context) {
  check(a);
  with_type(a.logits.type, [&]<typename T>() {
    with_cap(a.soft_cap, [&]<bool kCapped>() {
      using Run = ClassifyGradientRun<T, kCapped>;
      const Run body{.logits = rows_of<T>(a.logits),
                     .targets = a.targets.as<std::int32_t>(),
                     .lse = a.lse.as<float>(),
                     .scale = a.scale.as<float>(),
                     .first_token = a.first_token,
                     .tokens = tokens_here(a),
                     .soft_cap = a.soft_cap,
                     .slope = {a.terms, a.vocab},
                     .wide = wide<Run::V>({a.logits})};
      map<Run::V>(context, a.kName, body, a.logits.rows(), a.logits.cols());
    });
  });
}

void run(const SoftCap& a, const Context& context) {
  check(a);
  with_type(a.x.type, [&]<typename T>() {
    using Run = SoftCapRun<T>;
    const Run body{rows_of<T>(a.x), rows_of<T>(a.out), a.cap, wide<Run::V>({a.x, a.out})};
    map<Run::V>(context, a.kName, body, a.x.rows(), a.x.cols());
  });
}

void run(const Confusion& a, const Context& context) {
  check(a);
  const std::int64_t rows = a.logits.rows();
  with_type(a.logits.type, [&]<typename T>() {
    launch(on(context, a.kName, ceil_div(rows, kLossThreads), kLossThreads), confusion_kernel<T>,
           rows_of<T>(a.logits), a.targets.as<std::int32_t>(), rows, a.counts.cols(),
           a.counts.as<std::int64_t>());
  });
}

}  // namespace tessera::kernels::cuda
