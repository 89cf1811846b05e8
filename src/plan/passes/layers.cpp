#include "plan/passes/layers.hpp"

#include "plan/passes/pipeline.hpp"

#include <algorithm>
#include <iterator>
#include <map>

namespace tessera::plan {

std::vector<Layer> model_layers(const std::vector<model::UnitDesc>& units) {
  using model::UnitKind;
  const auto find = [&](UnitKind kind) {
    std::vector<std::size_t> found;
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (units[u].kind == kind) found.push_back(u);
    }
    return found;
  };
  const auto add = [&](Layer& layer, UnitKind kind) {
    std::ranges::copy(find(kind), std::back_inserter(layer.units));
  };
  Layer embed{LayerKind::embed, find(UnitKind::vocabulary)};
  add(embed, UnitKind::positions);
  add(embed, UnitKind::embedding_norm);
  std::vector<Layer> layers{embed};
  for (std::size_t u : find(UnitKind::block)) {
    layers.push_back({LayerKind::block, {u}});
    for (std::size_t t = u + 1; t < units.size() && units[t].kind == UnitKind::block_part; ++t)
      layers.back().units.push_back(t);
  }
  Layer head{LayerKind::head, find(UnitKind::final_norm)};
  add(head, UnitKind::head_dense);
  add(head, find(UnitKind::head).empty() ? UnitKind::vocabulary : UnitKind::head);
  add(head, UnitKind::head_bias);
  add(head, UnitKind::value_head);
  layers.push_back(head);
  return layers;
}

std::vector<double> layer_costs(const PlanInputs& in) {
  std::vector<double> costs;
  const model::ModelConfig& config = in.model.config;
  std::int64_t block = 0;
  for (const Layer& layer : model_layers(in.model.units)) {
    double flop = 0;
    if (layer.kind == LayerKind::head) {
      const std::int64_t dense = config.head.hidden * config.hidden,
                         outputs = config.outputs() * config.head_columns();
      flop = 2.0 * static_cast<double>(dense + outputs) * config.targets_per_token();
    }
    if (layer.kind == LayerKind::block) {
      const std::span units(&in.model.units[layer.units[0]], layer.units.size());
      const std::int64_t met = model::parameter_count(units) - config.idle_parameters(block);
      flop = 2.0 * static_cast<double>(met) +
             2.0 * static_cast<double>(config.heads * (config.head_dim + config.values())) *
                 config.keys_seen(block++, config.context);
    }
    costs.push_back(flop);
  }
  return costs;
}

std::vector<Range> layer_parts(const PlanInputs& in) {
  const auto layers = model_layers(in.model.units);
  const std::int64_t parts = in.layout.mesh.pipeline * in.layout.pipeline.virtual_stages;
  const auto& first = in.layout.pipeline.first_layers;
  if (!first.empty()) {
    std::vector<Range> given;
    for (std::size_t i = 0; i < first.size(); ++i) {
      const bool last = i + 1 == first.size();
      given.push_back({i == 0 ? 0 : first[i] + 1, last ? std::ssize(layers) : first[i + 1] + 1});
    }
    return given;
  }
  return balanced_parts(layer_costs(in), parts);
}

std::vector<bool> held_units(const PlanInputs& in, std::int64_t stage) {
  const auto layers = model_layers(in.model.units);
  const auto parts = layer_parts(in);
  std::vector<bool> held(in.model.units.size());
  for (std::int64_t v = 0; v < in.layout.pipeline.virtual_stages; ++v) {
    const Range part = at(parts, v * in.layout.mesh.pipeline + stage);
    for (std::int64_t l = part.begin; l < part.end; ++l) {
      for (std::size_t u : at(layers, l).units) held[u] = true;
    }
  }
  return held;
}

bool tied_uses_separate(const PlanInputs& in) {
  return in.model.config.tied_embeddings &&
         (in.layout.mesh.pipeline > 1 || in.numerics.layout_mode);
}

std::vector<std::int64_t> first_with_same_shares(const PlanInputs& in) {
  std::map<std::vector<std::int64_t>, std::int64_t> first;
  std::vector<std::int64_t> all;
  for (std::int64_t t = 0; t < in.layout.mesh.tensor; ++t) {
    std::vector<std::int64_t> sizes;
    for (const auto& unit : in.model.units)
      sizes.push_back(unit_layout(in, unit, {.tensor = t}).used);
    all.push_back(first.try_emplace(std::move(sizes), t).first->second);
  }
  return all;
}

}  // namespace tessera::plan
