// Which ranks work together, and where they are.
#include <array>

#include "core/bytes.hpp"
#include "plan/passes/layers.hpp"
#include "plan/prediction/bubble.hpp"
#include "plan/prediction/spread.hpp"
#include "verbs/check/check.hpp"

namespace tessera::verbs {
namespace {

struct GroupKind {
  const char* name;
  MeshGroup group;
};
constexpr std::array kKinds = {
    GroupKind{"tensor groups", MeshGroup::tensor}, GroupKind{"data groups", MeshGroup::data},
    GroupKind{"context groups", MeshGroup::context}, GroupKind{"expert groups", MeshGroup::experts},
    GroupKind{"pipelines", MeshGroup::pipeline}};

/// "0-7" of neighbours, "0, 8, .. 56" of many others.
std::string ranks_text(const RankGroup& g) {
  const std::int64_t last = g.rank(g.count - 1);
  if (g.count == 1) return std::to_string(g.first);
  if (g.stride == 1) return fmt::format("{}-{}", g.first, last);
  if (g.count == 2) return fmt::format("{}, {}", g.first, last);
  return fmt::format("{}, {}, {}{}", g.first, g.rank(1), g.count > 3 ? ".. " : "", last);
}

/// The first texts and the last of many.
std::string shortened(std::size_t count, const std::function<std::string(std::size_t)>& text) {
  constexpr std::size_t kShown = 4;
  std::string all;
  for (std::size_t i = 0; i < count; ++i) {
    if (count > kShown + 1 && i == kShown - 1) {
      all += " | .. | " + text(count - 1);
      break;
    }
    all += (i == 0 ? "" : " | ") + text(i);
  }
  return all;
}

std::string row(std::string_view name, const std::string& text) {
  return fmt::format("  {:<16}{}\n", name, text);
}

std::string nodes_row(const std::vector<int>& node_of) {
  std::vector<Range> nodes;  // runs of ranks on one node
  for (std::size_t r = 0; r < node_of.size(); ++r) {
    if (r == 0 || node_of[r] != node_of[r - 1])
      nodes.push_back({static_cast<std::int64_t>(r), static_cast<std::int64_t>(r)});
    ++nodes.back().end;
  }
  return row("nodes", fmt::format("{}: {}", nodes.size(), shortened(nodes.size(), [&](auto i) {
                                    return ranks_text({nodes[i].begin, nodes[i].count(), 1});
                                  })));
}

/// "embedding, blocks 0-3"
std::string layers_text(Range layers, std::int64_t blocks) {
  std::vector<std::string> parts;
  const Range b = intersect({layers.begin - 1, layers.end - 1}, {0, blocks});
  if (layers.begin == 0) parts.emplace_back("embedding");
  if (!b.empty()) {
    parts.push_back(b.count() == 1 ? fmt::format("block {}", b.begin)
                                   : fmt::format("blocks {}-{}", b.begin, b.end - 1));
  }
  if (layers.end == blocks + 2) parts.emplace_back("head");
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::vector<double> part_costs(const plan::PlanInputs& in) {
  const auto layers = plan::layer_costs(in);
  std::vector<double> costs;
  for (const Range& part : plan::layer_parts(in)) {
    double cost = 0;
    for (std::int64_t l = part.begin; l < part.end; ++l)
      cost += layers[static_cast<std::size_t>(l)];
    costs.push_back(cost);
  }
  return costs;
}

}  // namespace

Bubble bubble_of(const Planner& planner) {
  const plan::PlanInputs& in = planner.inputs;
  const auto costs = part_costs(in);
  const std::vector<double> equal(costs.size(), 1);
  const double backward = in.recompute == Recompute::full ? 3 : 2;
  const auto of = [&](const std::vector<double>& c) {
    return plan::pipeline_bubble(in.layout.pipeline, in.layout.mesh.pipeline,
                                 planner.shapes.front().micro_batches, c, backward);
  };
  return {.given = of(costs), .equal = of(equal)};
}

std::string rank_map(const plan::PlanInputs& in) {
  const Mesh& m = in.layout.mesh;
  std::string text =
      fmt::format("ranks: {} = {}, ZeRO-{}\n", to_string(m), m.size(), in.sharding.stage);
  for (const auto& [name, kind] : kKinds) {
    const auto groups = plan::groups_of(m, kind);
    if (groups.front().count == 1) continue;
    const plan::Spread spread = plan::widest(kind, in);
    text += row(
        name, fmt::format("{} of {}, {}: {}", groups.size(), groups.front().count,
                          spread.nodes == 1 ? "each in a node"
                                            : fmt::format("over up to {} nodes", spread.nodes),
                          shortened(groups.size(), [&](auto i) { return ranks_text(groups[i]); })));
  }
  return text + nodes_row(in.layout.node_of);
}

std::string pipeline_text(const Checked& checked) {
  const plan::PlanInputs& in = checked.planner.inputs;
  if (in.layout.mesh.pipeline == 1) return "";
  const Bubble& bubble = checked.bubble;
  std::string text = fmt::format(
      "pipeline: {} of {} over {} stages: {:.1f} % of the stages' time is bubble ({:.1f} % if they "
      "cost the same)\n",
      enum_word(in.layout.pipeline.schedule),
      count_text(checked.micro_batches(), "micro-batch", "micro-batches"), in.layout.mesh.pipeline,
      100 * bubble.given, 100 * bubble.equal);
  text += row("stages fit", fmt::format("{} messages and collectives of a step find each other",
                                        checked.meetings));
  const auto parts = plan::layer_parts(in);
  const auto costs = part_costs(in);
  double all = 0;
  for (const double cost : costs) all += cost;
  const auto stages = static_cast<std::size_t>(in.layout.mesh.pipeline);
  constexpr std::size_t kShown = 8;
  for (std::size_t s = 0; s < stages; ++s) {
    if (stages > kShown && s == kShown - 1) {
      text += row("..", "");
      s = stages - 1;
    }
    std::vector<std::string> chunks;
    double own = 0;
    for (std::size_t part = s; part < parts.size(); part += stages) {
      chunks.push_back(layers_text(parts[part], in.model.config.layers));
      own += costs[part];
    }
    text += row(fmt::format("stage {}", s),
                fmt::format("{}: {:.1f} % of the work", fmt::join(chunks, "; "), 100 * own / all));
  }
  return text;
}

}  // namespace tessera::verbs
