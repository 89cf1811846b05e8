#include "optim/optimizer.hpp"

#include <cmath>

#include "core/error.hpp"

namespace tessera::optim {
namespace {

void set(StepScalars& scalars, kernels::StepScalar which, double value) {
  scalars[static_cast<std::size_t>(which)] = static_cast<float>(value);
}

/// The scalar of which an update's roundings at random depend.
void set_chance(StepScalars& scalars, std::int64_t update) {
  set(scalars, kernels::StepScalar::chance, static_cast<double>(update % (1 << 24)));
}

}  // namespace

Optimizer adam(const AdamRule& rule) {
  return {
      .state = {{.name = "adam_m", .type = rule.moments}, {.name = "adam_v", .type = rule.moments}},
      .update =
          [rule](const UpdateViews& x, UpdatePart part) {
            TESSERA_CHECK(x.state.size() == 2, "{} states for adam", x.state.size());
            return kernels::OptimizerUpdate{
                .rule = kernels::UpdateRule::adam,
                .gradient = x.gradient,
                .master = x.master,
                .state = {x.state[0], x.state[1]},
                .parameter = x.parameter,
                .scalars = x.scalars,
                .verdict = x.verdict,
                .settings = {.beta1 = static_cast<float>(rule.beta1),
                             .beta2 = static_cast<float>(rule.beta2),
                             .eps = static_cast<float>(rule.eps),
                             .decay = part == UpdatePart::matrices
                                          ? static_cast<float>(rule.weight_decay)
                                          : 0.0F,
                             .decay_kind = rule.decay}};
          },
      .set_scalars =
          [rule](StepScalars& scalars, std::int64_t update) {
            const auto t = static_cast<double>(update);
            set(scalars, kernels::StepScalar::bias_correction1, 1.0 - std::pow(rule.beta1, t));
            set(scalars, kernels::StepScalar::bias_correction2, 1.0 - std::pow(rule.beta2, t));
            set_chance(scalars, update);
          }};
}

Optimizer lamb(const LambRule& rule) {
  const auto call = [rule](const UpdateViews& x, UpdatePart part, kernels::UpdateRule pass) {
    TESSERA_CHECK(x.state.size() == 2, "{} states for lamb", x.state.size());
    const bool decays = part == UpdatePart::matrices;
    const bool first = pass == kernels::UpdateRule::lamb_moments;
    return kernels::OptimizerUpdate{
        .rule = pass,
        .gradient = first ? x.gradient : View(),
        .master = x.master,
        .state = {x.state[0], x.state[1]},
        .parameter = first ? View() : x.parameter,
        .sums = x.sums,
        .scalars = x.scalars,
        .verdict = x.verdict,
        .settings = {.beta1 = static_cast<float>(rule.beta1),
                     .beta2 = static_cast<float>(rule.beta2),
                     .eps = static_cast<float>(rule.eps),
                     .decay = decays ? static_cast<float>(rule.weight_decay) : 0.0F,
                     .trust_min = static_cast<float>(rule.trust[0]),
                     .trust_max = static_cast<float>(rule.trust[1])}};
  };
  return {
      .state = {{.name = "lamb_m", .type = rule.moments}, {.name = "lamb_v", .type = rule.moments}},
      .words_per_tensor = kernels::kTensorWords,
      .first_pass =
          [call](const UpdateViews& x, UpdatePart part) {
            return call(x, part, kernels::UpdateRule::lamb_moments);
          },
      .update = [call](const UpdateViews& x,
                       UpdatePart part) { return call(x, part, kernels::UpdateRule::lamb); },
      .set_scalars = set_chance};
}

Optimizer make_optimizer(const deck::OptimizerSection& section) {
  const auto& betas = section.betas.value();
  const DType moments = section.moments == deck::SumPrecision::bf16 ? DType::bf16 : DType::f32;
  AdamRule rule{.beta1 = betas[0],
                .beta2 = betas[1],
                .eps = section.eps.value(),
                .weight_decay = section.weight_decay,
                .moments = moments};
  Optimizer optimizer;
  switch (section.name) {
    case deck::OptimizerName::adamw: optimizer = adam(rule); break;
    case deck::OptimizerName::adam:
      rule.decay = kernels::Decay::l2;
      optimizer = adam(rule);
      break;
    case deck::OptimizerName::lamb:
      optimizer = lamb({.beta1 = betas[0],
                        .beta2 = betas[1],
                        .eps = section.eps.value(),
                        .weight_decay = section.weight_decay,
                        .trust = section.trust.value(),
                        .moments = moments});
      break;
  }
  TESSERA_CHECK(optimizer.update, "optimizer {} is not built", enum_word(section.name));
  optimizer.clip_norm = section.clip_norm;
  return optimizer;
}

namespace {

/// Whether a rank keeps as many as it has elements.
bool of_elements(const StateTensor& row) {
  return row.extent == Extent::owned || row.extent == Extent::shard;
}

}  // namespace

std::int64_t bytes_per_element(const Optimizer& optimizer) {
  std::int64_t bytes = 0;
  for (const StateTensor& s : optimizer.state) bytes += of_elements(s) ? size_of(s.type) : 0;
  return bytes;
}

std::int64_t saved_bytes_per_element(const Optimizer& optimizer) {
  std::int64_t bytes = 0;
  for (const StateTensor& s : optimizer.state) bytes += s.saved ? size_of(s.type) : 0;
  return bytes;
}

}  // namespace tessera::optim
