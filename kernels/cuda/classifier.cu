// Softmax and cross-entropy on a GPU: checks arguments, launches the kernels.
#include "kernels/common/types.hpp"
#include "kernels/cuda/classify.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

/// For a row of so many tokens: small ones leave no thread idle, and where a row alone fills a
/// multiprocessor's shared memory its threads fill the rest.
template <typename T>
Team team_of(std::int64_t tokens) {
  constexpr std::int64_t kHalfOfShared = 112 * 1024;  // of the largest, an H100's
  const bool alone = tokens * static_cast<std::int64_t>(sizeof(T)) > kHalfOfShared;
  return {tokens <= 4096 ? 128 : alone ? kRowThreadsAtMost : kRowThreadsAtMost / 2};
}

/// How many of a row's columns fit into shared memory: whole runs.
template <typename T>
int held_columns(std::int64_t tokens, const Context& context) {
  constexpr std::int64_t kRunBytes = kRun<T> * sizeof(T), kOtherBytes = 1024;
  const std::int64_t fitting = std::max<std::int64_t>(0, context.shared_bytes - kOtherBytes);
  return static_cast<int>(kRun<T> * std::min(ceil_div(tokens, kRun<T>), fitting / kRunBytes));
}

/// Columns of a row, which kernels count in 32 bits, a little beyond its end too.
int narrow(std::int64_t columns) {
  TESSERA_CHECK(columns <= 1 << 30, "a row of {} logits", columns);
  return static_cast<int>(columns);
}

/// How many of a part's columns are tokens; the others are padding.
template <typename Operation>
std::int64_t tokens_here(const Operation& a) {
  return std::clamp<std::int64_t>(a.vocab - a.first_token, 0, a.logits.cols());
}

}  // namespace

void run(const Classify& a, const Context& context) {
  with_type(a.logits.type, [&]<typename T>() {
    const int held = a.scale ? held_columns<T>(a.vocab, context) : 0;
    const ClassifyRows<T> rows{.logits = rows_of<T>(a.logits),
                               .targets = a.targets.as<std::int32_t>(),
                               .losses = a.losses.as<float>(),
                               .scale = a.scale.as<float>(),
                               .team = team_of<T>(a.vocab),
                               .columns = narrow(a.logits.cols()),
                               .vocab = narrow(a.vocab),
                               .held = held,
                               .soft_cap = a.soft_cap,
                               .terms = a.terms,
                               .wide = wide<kRun<T>>({a.logits})};
    with_cap(a.soft_cap, [&]<bool kCapped>() {
      launch_large(
          on(context, a.kName, a.logits.rows(), rows.team.block(), held * size_of(a.logits.type)),
          classify_kernel<T, kCapped>, rows);
    });
  });
}

void run(const ClassifyPart& a, const Context& context) {
  const std::int64_t tokens = tokens_here(a);
  with_type(a.logits.type, [&]<typename T>() {
    const ClassifyPartRows<T> rows{.logits = rows_of<T>(a.logits),
                                   .targets = a.targets.as<std::int32_t>(),
                                   .stats = a.stats.as<float>(),
                                   .team = team_of<T>(tokens),
                                   .first_token = a.first_token,
                                   .vocab = a.vocab,
                                   .tokens = narrow(tokens),
                                   .soft_cap = a.soft_cap,
                                   .wide = wide<kRun<T>>({a.logits})};
    with_cap(a.soft_cap, [&]<bool kCapped>() {
      launch(on(context, a.kName, a.logits.rows(), rows.team.block()),
             classify_part_kernel<T, kCapped>, rows);
    });
  });
}

void run(const ClassifyLoss& a, const Context& context) {
  const std::int64_t parts = a.stats.extent(0), rows = a.stats.extent(1);
  TESSERA_CHECK(parts <= kMostParts, "{} of {} parts, at most {}", a.kName, parts, kMostParts);
  launch(on(context, a.kName, ceil_div(rows, kLossThreads), kLossThreads), classify_loss_kernel,
         a.stats.as<float>(), a.targets.as<std::int32_t>(), parts, rows, a.vocab, a.terms,
         a.losses.as<float>(), a.lse.as<float>());
}

void run(const ClassifyGradient& a, const Context& context) {
  with_type(a.logits.type, [&]<typename T>() {
    with_cap(a.soft_cap, [&]<bool kCapped>() {
      using Run = ClassifyGradientRun<T, kCapped>;
      const Run body{.logits = rows_of<T>(a.logits),
                     .targets = a.targets.as<std::int32_t>(),
                     .lse = a.lse.as<float>(),
                     .scale = a.scale.as<float>(),
                     .one_scale = a.scale.elements() == 1,
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
  with_type(a.x.type, [&]<typename T>() {
    using Run = SoftCapRun<T>;
    const Run body{rows_of<T>(a.x), rows_of<T>(a.out), a.cap, wide<Run::V>({a.x, a.out})};
    map<Run::V>(context, a.kName, body, a.x.rows(), a.x.cols());
  });
}

void run(const Confusion& a, const Context& context) {
  const std::int64_t rows = a.logits.rows();
  with_type(a.logits.type, [&]<typename T>() {
    launch(on(context, a.kName, ceil_div(rows, kLossThreads), kLossThreads), confusion_kernel<T>,
           rows_of<T>(a.logits), a.targets.as<std::int32_t>(), rows, a.counts.cols(),
           a.counts.as<std::int64_t>());
  });
}

}  // namespace tessera::kernels::cuda
