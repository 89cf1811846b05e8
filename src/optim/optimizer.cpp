#include "optim/optimizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "core/pattern.hpp"

namespace tessera::optim {
namespace {

void set(StepScalars& scalars, kernels::StepScalar which, double value) {
  scalars[static_cast<std::size_t>(which)] = static_cast<float>(value);
}

/// The scalar of which an update's roundings at random depend.
void set_chance(StepScalars& scalars, std::int64_t update) {
  set(scalars, kernels::StepScalar::chance, static_cast<double>(update % (1 << 24)));
}

/// A pass over elements that have these terms; states, sums and settings are the rule's.
kernels::OptimizerUpdate call_of(kernels::UpdateRule rule, const UpdateViews& x,
                                 const UpdateTerms& terms, kernels::UpdateSettings settings) {
  const kernels::UpdatePass pass = kernels::pass_of(rule);
  const bool moves = kernels::moves_weights(pass);
  // What an orthogonal matrix is multiplied with is not of decay.
  settings.decay = static_cast<float>(terms.weight_decay / terms.scale);
  settings.lr_factor = static_cast<float>(terms.lr_factor * terms.scale);
  kernels::OptimizerUpdate call{.rule = rule,
                                .gradient = kernels::reads_gradient(pass) ? x.gradient : View(),
                                .master = x.master,
                                .state = {},
                                .direction = kernels::has_direction(pass) ? x.direction : View(),
                                .average = {},
                                .parameter = moves ? x.parameter : View(),
                                .sums = kernels::has_sums(pass) ? x.sums : View(),
                                .factors = {},
                                .scalars = x.scalars,
                                .verdict = x.verdict,
                                .settings = settings};
  TESSERA_CHECK(x.state.size() <= call.state.size(), "{} states for {}", x.state.size(),
                enum_word(rule));
  if (pass != kernels::UpdatePass::move) std::ranges::copy(x.state, call.state.begin());
  return call;
}

Pass pass(kernels::UpdateRule rule, const kernels::UpdateSettings& settings) {
  return [=](const UpdateViews& x, const UpdateTerms& terms) {
    return call_of(rule, x, terms, settings);
  };
}

}  // namespace

bool matches(const deck::ParameterGroup& group, const std::string& name) {
  return matches_pattern(group.match, name);
}

const deck::ParameterGroup* Optimizer::group_of(const std::string& name) const {
  const auto group =
      std::ranges::find_if(groups, [&](const deck::ParameterGroup& g) { return matches(g, name); });
  return group == groups.end() ? nullptr : &*group;
}

UpdateTerms Optimizer::terms_of(const std::string& name, ParameterKind kind) const {
  UpdateTerms terms{.weight_decay = kind == ParameterKind::vector ? 0 : weight_decay,
                    .orthogonal = matrices && kind == ParameterKind::hidden_matrix};
  const deck::ParameterGroup* group = group_of(name);
  if (group == nullptr) return terms;
  terms.lr_factor = group->lr_factor;
  terms.weight_decay = group->weight_decay.value_or(terms.weight_decay);
  return terms;
}

double orthogonal_scale(std::int64_t rows, std::int64_t columns) {
  return 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
}

/// 1 - beta^t with the beta that kernels have: 1 - 0.999 in f32 is off by 1e-5 of itself, and a
/// moment divided by a correction that is not would be so too.
static double bias_correction(double beta, std::int64_t update) {
  return 1.0 - std::pow(static_cast<double>(static_cast<float>(beta)), static_cast<double>(update));
}

Optimizer adam(const AdamRule& rule) {
  return {
      .state = {{.name = "adam_m", .type = rule.moments}, {.name = "adam_v", .type = rule.moments}},
      .update = pass(kernels::UpdateRule::adam, {.beta1 = static_cast<float>(rule.beta1),
                                                 .beta2 = static_cast<float>(rule.beta2),
                                                 .eps = static_cast<float>(rule.eps),
                                                 .decay_kind = rule.decay}),
      .set_scalars = [rule](StepScalars& scalars, std::int64_t update) {
        set(scalars, kernels::StepScalar::bias_correction1, bias_correction(rule.beta1, update));
        set(scalars, kernels::StepScalar::bias_correction2, bias_correction(rule.beta2, update));
        set_chance(scalars, update);
      }};
}

Optimizer lamb(const LambRule& rule) {
  const kernels::UpdateSettings settings{.beta1 = static_cast<float>(rule.beta1),
                                         .beta2 = static_cast<float>(rule.beta2),
                                         .eps = static_cast<float>(rule.eps),
                                         .trust_min = static_cast<float>(rule.trust[0]),
                                         .trust_max = static_cast<float>(rule.trust[1])};
  return {
      .state = {{.name = "lamb_m", .type = rule.moments}, {.name = "lamb_v", .type = rule.moments}},
      .words_per_tensor = kernels::kTensorWords,
      .first_pass = pass(kernels::UpdateRule::lamb_moments, settings),
      .update = pass(kernels::UpdateRule::lamb, settings),
      .set_scalars = set_chance};
}

Optimizer lion(const LionRule& rule) {
  return {.state = {{.name = "lion_m", .type = rule.moments}},
          .update = pass(kernels::UpdateRule::lion, {.beta1 = static_cast<float>(rule.beta1),
                                                     .beta2 = static_cast<float>(rule.beta2)}),
          .set_scalars = set_chance};
}

Optimizer sgd(const SgdRule& rule) {
  return {.state = {{.name = "sgd_m", .type = rule.moments}},
          .update = pass(kernels::UpdateRule::sgd,
                         {.beta1 = static_cast<float>(rule.momentum), .nesterov = rule.nesterov}),
          .set_scalars = set_chance};
}

Optimizer muon(const MuonRule& rule) {
  Optimizer optimizer = adam(rule.others);
  optimizer.state[0].name = "muon_m", optimizer.state[1].name = "muon_v";
  optimizer.state[1].of_matrices = false;
  const kernels::UpdateSettings settings{.beta1 = static_cast<float>(rule.momentum),
                                         .nesterov = rule.nesterov};
  optimizer.matrices = {.iterations = rule.iterations,
                        .by_heads = rule.by_heads,
                        .direct = pass(kernels::UpdateRule::muon_moment, settings),
                        .move = pass(kernels::UpdateRule::muon, settings)};
  return optimizer;
}

Optimizer onebit_adam(const OneBitAdamRule& rule) {
  const kernels::UpdateSettings settings{.beta1 = static_cast<float>(rule.beta1),
                                         .beta2 = static_cast<float>(rule.beta2),
                                         .eps = static_cast<float>(rule.eps)};
  return {
      .state = {{.name = "onebit_m", .extent = Extent::whole}, {.name = "onebit_v"}},
      .update = pass(kernels::UpdateRule::adam, settings),
      .momentum = CompressedMomentum{.after = rule.after,
                                     .block = rule.block,
                                     .beta = settings.beta1,
                                     .update = pass(kernels::UpdateRule::frozen_adam, settings)},
      .set_scalars = [](StepScalars& scalars, std::int64_t update) {
        set(scalars, kernels::StepScalar::bias_correction1, 1);
        set(scalars, kernels::StepScalar::bias_correction2, 1);
        set_chance(scalars, update);
      }};
}

Optimizer onebit_lamb(const OneBitLambRule& rule) {
  const kernels::UpdateSettings settings{.beta1 = static_cast<float>(rule.beta1),
                                         .beta2 = static_cast<float>(rule.beta2),
                                         .eps = static_cast<float>(rule.eps),
                                         .trust_min = static_cast<float>(rule.trust[0]),
                                         .trust_max = static_cast<float>(rule.trust[1])};
  constexpr std::size_t kMoments = 2;  // m and v, which kernels know; the rest is of the plan
  const TensorFactors factors{.beta3 = static_cast<float>(rule.beta3),
                              .r_min = static_cast<float>(rule.r_min),
                              .r_max = static_cast<float>(rule.r_max),
                              .r_threshold = static_cast<float>(rule.r_threshold),
                              .trust = rule.trust,
                              .frozen = 1,
                              .running = 2,
                              .average = 3,
                              .ratio = 4};
  const auto by_moments = [=](kernels::UpdateRule of) -> Pass {
    return [=, pass = pass(of, settings)](UpdateViews x, const UpdateTerms& terms) {
      const View average = x.state[factors.average], ratio = x.state[factors.ratio];
      x.state = x.state.first(kMoments);
      auto call = std::get<kernels::OptimizerUpdate>(pass(x, terms));
      if (of == kernels::UpdateRule::frozen_lamb) call.factors = {average, ratio};
      return call;
    };
  };
  return {.state = {{.name = "onebit_m", .extent = Extent::whole},
                    {.name = "onebit_v"},
                    {.name = "onebit_v_running", .extent = Extent::shard},
                    {.name = "onebit_c", .extent = Extent::tensor},
                    {.name = "onebit_r", .extent = Extent::tensor}},
          .words_per_tensor = kernels::kTensorWords,
          .first_pass = by_moments(kernels::UpdateRule::lamb_moments),
          .update = by_moments(kernels::UpdateRule::lamb),
          .momentum = CompressedMomentum{.after = rule.after,
                                         .block = rule.block,
                                         .beta = settings.beta1,
                                         .update = by_moments(kernels::UpdateRule::frozen_lamb),
                                         .beta2 = rule.beta2,
                                         .factors = factors},
          .set_scalars = set_chance};
}

Optimizer with_ema(Optimizer optimizer, double decay) {
  optimizer.state.push_back(
      {.name = std::string(kEma), .required = false, .begins_as_weights = true});
  const auto without = [](const Pass& pass) -> Pass {
    if (!pass) return {};
    return [pass](UpdateViews x, const UpdateTerms& terms) {
      x.state = x.state.first(x.state.size() - 1);
      return pass(x, terms);
    };
  };
  const auto averaging = [&](const Pass& pass) -> Pass {
    return [pass = without(pass), decay](const UpdateViews& x, const UpdateTerms& terms) {
      auto call = std::get<kernels::OptimizerUpdate>(pass(x, terms));
      call.average = x.state.back();
      call.settings.average_decay = static_cast<float>(decay);
      return call;
    };
  };
  optimizer.first_pass = without(optimizer.first_pass);
  optimizer.update = averaging(optimizer.update);
  if (auto& matrices = optimizer.matrices) {
    matrices->direct = without(matrices->direct);
    matrices->move = averaging(matrices->move);
  }
  if (auto& momentum = optimizer.momentum) momentum->update = averaging(momentum->update);
  return optimizer;
}

namespace {

/// Without what is the same for all optimizers.
Optimizer rule_of(const deck::OptimizerSection& s) {
  const DType moments = s.moments == deck::SumPrecision::bf16 ? DType::bf16 : DType::f32;
  const auto adam_rule = [&](kernels::Decay decay) {
    return AdamRule{.beta1 = s.betas.value()[0],
                    .beta2 = s.betas.value()[1],
                    .eps = s.eps.value(),
                    .decay = decay,
                    .moments = moments};
  };
  switch (s.name) {
    case deck::OptimizerName::adamw: return adam(adam_rule(kernels::Decay::decoupled));
    case deck::OptimizerName::adam: return adam(adam_rule(kernels::Decay::l2));
    case deck::OptimizerName::lamb:
      return lamb({.beta1 = s.betas.value()[0],
                   .beta2 = s.betas.value()[1],
                   .eps = s.eps.value(),
                   .trust = s.trust.value(),
                   .moments = moments});
    case deck::OptimizerName::lion:
      return lion({.beta1 = s.betas.value()[0], .beta2 = s.betas.value()[1], .moments = moments});
    case deck::OptimizerName::muon:
      return muon({.momentum = s.momentum.value(),
                   .nesterov = s.nesterov.value(),
                   .iterations = s.newton_schulz.value(),
                   .by_heads = s.attention.value() == deck::WholeAttention::heads,
                   .others = adam_rule(kernels::Decay::decoupled)});
    case deck::OptimizerName::onebit_adam:
      return onebit_adam({.beta1 = s.betas.value()[0],
                          .beta2 = s.betas.value()[1],
                          .eps = s.eps.value(),
                          .after = s.compress_after.value()});
    case deck::OptimizerName::onebit_lamb:
      return onebit_lamb({.beta1 = s.betas.value()[0],
                          .beta2 = s.betas.value()[1],
                          .beta3 = s.beta3.value(),
                          .eps = s.eps.value(),
                          .trust = s.trust.value(),
                          .r_min = s.r_min.value(),
                          .r_max = s.r_max.value(),
                          .r_threshold = s.r_threshold.value(),
                          .after = s.compress_after.value()});
    case deck::OptimizerName::sgd:
      return sgd(
          {.momentum = s.momentum.value(), .nesterov = s.nesterov.value(), .moments = moments});
  }
  throw InternalError(fmt::format("optimizer {} is not built", enum_word(s.name)));
}

}  // namespace

Optimizer make_optimizer(const deck::OptimizerSection& section) {
  Optimizer optimizer = rule_of(section);
  optimizer.clip_norm = section.clip_norm;
  optimizer.weight_decay = section.weight_decay;
  optimizer.groups = section.groups;
  return section.ema ? with_ema(std::move(optimizer), *section.ema) : optimizer;
}

namespace {

bool of_elements(const StateTensor& row) { return row.of_matrices && row.extent != Extent::tensor; }

/// The bytes for an element of the rows that are chosen.
template <typename Chosen>
std::int64_t bytes_of(const Optimizer& optimizer, Chosen chosen) {
  std::int64_t bytes = 0;
  for (const StateTensor& s : optimizer.state)
    bytes += of_elements(s) && chosen(s) ? size_of(s.type) : 0;
  return bytes;
}

}  // namespace

std::int64_t bytes_per_element(const Optimizer& optimizer) {
  return bytes_of(optimizer, [](const StateTensor&) { return true; });
}

std::int64_t whole_bytes_per_element(const Optimizer& optimizer) {
  return bytes_of(optimizer, [](const StateTensor& s) { return s.extent == Extent::whole; });
}

std::int64_t saved_bytes_per_element(const Optimizer& optimizer) {
  return bytes_of(optimizer, [](const StateTensor& s) { return s.saved; });
}

}  // namespace tessera::optim
