// The loops of an optimizer's update, for every rule.
#include "kernels/common/optimizer_steps.hpp"
#include "kernels/cpu/hot/kernels.hpp"

namespace tessera::kernels::TESSERA_ISA {
namespace {

/// `G`: the type of what is read beside weights and state, a gradient or directions.
template <typename Step, typename M, typename G, typename P>
void update(const OptimizerUpdate& a, float trust, Range elements) {
  constexpr int S = Step::kStates, kRoom = S > 0 ? S : 1;
  constexpr UpdatePass kPass = pass_of(Step::kRule);
  constexpr bool kOnly = kPass == UpdatePass::only, kMove = kPass == UpdatePass::move;
  const Step step(a.settings, row_of<float>(a.scalars, 0), trust);
  const Vec coefficient(row_of<float>(a.verdict, 0)[static_cast<int>(VerdictField::coefficient)]);
  const std::uint32_t salt = salt_of(row_of<float>(a.scalars, 0));
  const std::int64_t first = elements.begin;
  const View& beside = kMove ? a.direction : a.gradient;
  const G* along = beside.data == nullptr ? nullptr : row_of<G>(beside, 0) + first;
  float* master = row_of<float>(a.master, 0) + first;
  M* state[kRoom];
  for (int s = 0; s < S; ++s) state[s] = row_of<M>(a.state[static_cast<std::size_t>(s)], 0) + first;
  float* average = a.average.data == nullptr ? nullptr : row_of<float>(a.average, 0) + first;
  P* parameter = a.parameter.data == nullptr ? nullptr : row_of<P>(a.parameter, 0) + first;
  const bool past_caches =
      parameter != nullptr && exceeds_caches(a.master.elements() * std::int64_t{sizeof(P)});
  for_vectors(
      elements.end - first, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        Vec w = load(master + i, count), now[kRoom];
        for (int s = 0; s < S; ++s) now[s] = load(state[s] + i, count);
        if constexpr (kOnly) {
          step(load(along + i, count) * coefficient, w, now);
          round_state<M>(now, w, salt);
          for (int s = 0; s < S; ++s) store(state[s] + i, now[s], count);
        } else if constexpr (kMove) {
          step(along == nullptr ? Vec(0.0F) : load(along + i, count), w);
        } else {
          step(w, w, now);  // without a gradient
        }
        store(master + i, w, count);
        if (average != nullptr)
          store(average + i, averaged(load(average + i, count), w, a.settings.average_decay),
                count);
        if (past_caches) {
          store_past_caches(parameter + i, w, count);
        } else if (parameter != nullptr) {
          store(parameter + i, w, count);
        }
      });
  settle_stores();
}

/// State moves; the squares of master and of the update's direction enter the words, block by
/// block.
template <typename Step, typename M, typename G>
void first_update(const OptimizerUpdate& a, Range elements, std::int64_t* words) {
  constexpr int S = Step::kStates;
  constexpr std::int64_t kBlock = 2048;
  alignas(64) float direction[kBlock];
  View directions = a.master;  // f32 too
  directions.data = reinterpret_cast<std::byte*>(direction);
  const float* scalars = row_of<float>(a.scalars, 0);
  const Step step(a.settings, scalars, 1);
  const Vec coefficient(row_of<float>(a.verdict, 0)[static_cast<int>(VerdictField::coefficient)]);
  const std::uint32_t salt = salt_of(scalars);
  for (std::int64_t begin = elements.begin; begin < elements.end; begin += kBlock) {
    const std::int64_t n = elements.end - begin < kBlock ? elements.end - begin : kBlock;
    const G* gradient = row_of<G>(a.gradient, 0) + begin;
    const float* master = row_of<float>(a.master, 0) + begin;
    M* state[S];
    for (int s = 0; s < S; ++s)
      state[s] = row_of<M>(a.state[static_cast<std::size_t>(s)], 0) + begin;
    for_vectors(
        n, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
          Vec w = load(master + i, count), now[S];
          for (int s = 0; s < S; ++s) now[s] = load(state[s] + i, count);
          step(load(gradient + i, count) * coefficient, w, now);
          round_state<M>(now, w, salt);
          for (int s = 0; s < S; ++s) store(state[s] + i, now[s], count);
          store(direction + i, step.direction(w, now), count);
        });
    if (words == nullptr) continue;
    exact_sum(a.master, ExactSum::Of::squares, {begin, begin + n}, words);
    exact_sum(directions, ExactSum::Of::squares, {0, n}, words + kExactSumWords);
  }
}

/// State moves, and each element's direction is written where this rank counts it.
template <typename Step, typename M, typename G, typename D>
void direct_update(const OptimizerUpdate& a, Range elements) {
  constexpr int S = Step::kStates;
  const float* scalars = row_of<float>(a.scalars, 0);
  const Step step(a.settings, scalars, 1);
  const Vec coefficient(row_of<float>(a.verdict, 0)[static_cast<int>(VerdictField::coefficient)]);
  const std::uint32_t salt = salt_of(scalars);
  const std::int64_t first = elements.begin;
  const G* gradient = row_of<G>(a.gradient, 0) + first;
  const float* master = row_of<float>(a.master, 0) + first;
  M* state[S];
  for (int s = 0; s < S; ++s) state[s] = row_of<M>(a.state[static_cast<std::size_t>(s)], 0) + first;
  D* direction = a.direction.data == nullptr ? nullptr : row_of<D>(a.direction, 0) + first;
  for_vectors(
      elements.end - first, [&](std::int64_t i, std::int64_t count) __attribute__((always_inline)) {
        Vec now[S];
        for (int s = 0; s < S; ++s) now[s] = load(state[s] + i, count);
        const Vec along = step(load(gradient + i, count) * coefficient, now);
        round_state<M>(now, load(master + i, count), salt);
        for (int s = 0; s < S; ++s) store(state[s] + i, now[s], count);
        if (direction != nullptr) store(direction + i, along, count);
      });
}

/// Of a step that is skipped: what forward reads is the rounded master weights all the same.
template <typename P>
void round_master(const OptimizerUpdate& a, Range elements) {
  const float* master = row_of<float>(a.master, 0) + elements.begin;
  P* parameter = row_of<P>(a.parameter, 0) + elements.begin;
  for_vectors(
      elements.end - elements.begin, [&](std::int64_t i, std::int64_t count)
                                         __attribute__((always_inline)) {
                                           store(parameter + i, load(master + i, count), count);
                                         });
}

}  // namespace

void update(const OptimizerUpdate& a, float trust, Range elements) {
  const auto* verdict = reinterpret_cast<const float*>(a.verdict.data);
  if (verdict[static_cast<int>(VerdictField::apply)] == 0.0F) {
    if (!a.parameter) return;
    return with_type(a.parameter.type, [&]<typename P>() { round_master<P>(a, elements); });
  }
  // Absent views count as f32.
  with_step(a.rule, [&]<typename Step>() {
    if constexpr (pass_of(Step::kRule) == UpdatePass::move) {
      with_type(a.direction.type, [&]<typename G>() {
        with_type(a.parameter.type,
                  [&]<typename P>() { update<Step, float, G, P>(a, trust, elements); });
      });
    } else if constexpr (moves_weights(pass_of(Step::kRule))) {
      with_state_type(a.state[0].type, [&]<typename M>() {
        with_gradient_type<Step>(a, [&]<typename G>() {
          with_type(a.parameter.type,
                    [&]<typename P>() { update<Step, M, G, P>(a, trust, elements); });
        });
      });
    }
  });
}

void direct_update(const OptimizerUpdate& a, Range elements) {
  with_step(a.rule, [&]<typename Step>() {
    if constexpr (pass_of(Step::kRule) == UpdatePass::direct) {
      with_state_type(a.state[0].type, [&]<typename M>() {
        with_type(a.gradient.type, [&]<typename G>() {
          with_type(a.direction.type,
                    [&]<typename D>() { direct_update<Step, M, G, D>(a, elements); });
        });
      });
    }
  });
}

void first_update(const OptimizerUpdate& a, Range elements, std::int64_t* words) {
  with_step(a.rule, [&]<typename Step>() {
    if constexpr (pass_of(Step::kRule) == UpdatePass::first) {
      with_state_type(a.state[0].type, [&]<typename M>() {
        with_type(a.gradient.type,
                  [&]<typename G>() { first_update<Step, M, G>(a, elements, words); });
      });
    }
  });
}

}  // namespace tessera::kernels::TESSERA_ISA
