// Which ranks work together, and where they are.
#include <algorithm>
#include <set>

#include "plan/bubble.hpp"
#include "plan/layers.hpp"
#include "verbs/check/check.hpp"

namespace tessera::verbs {
namespace {

/// Groups of `size` ranks that are `stride` apart.
struct Axis {
  const char* name;
  std::int64_t size, stride;
};
std::array<Axis, 3> axes_of(const Mesh& m) {
  return {Axis{"tensor groups", m.tensor, 1}, Axis{"data groups", m.data, m.tensor},
          Axis{"pipelines", m.pipeline, m.tensor * m.data}};
}

/// The first rank of each group.
std::vector<std::int64_t> first_ranks(const Axis& axis, std::int64_t ranks) {
  std::vector<std::int64_t> all;
  for (std::int64_t r = 0; r < ranks; ++r) {
    if (r / axis.stride % axis.size == 0) all.push_back(r);
  }
  return all;
}

std::int64_t nodes_of(const Axis& axis, std::int64_t first, const std::vector<int>& node_of) {
  std::set<int> nodes;
  for (std::int64_t i = 0; i < axis.size; ++i)
    nodes.insert(node_of[static_cast<std::size_t>(first + i * axis.stride)]);
  return static_cast<std::int64_t>(nodes.size());
}

Spread widest(const Axis& axis, const plan::PlanInputs& in) {
  Spread most;
  for (const std::int64_t first : first_ranks(axis, in.mesh.size())) {
    const std::int64_t nodes = nodes_of(axis, first, in.node_of);
    if (nodes > most.nodes) most = {first, nodes};
  }
  return most;
}

/// "0-7" of neighbours, "0, 8, .. 56" of many others.
std::string ranks_text(const Axis& axis, std::int64_t first) {
  const std::int64_t last = first + (axis.size - 1) * axis.stride;
  if (axis.size == 1) return std::to_string(first);
  if (axis.stride == 1) return fmt::format("{}-{}", first, last);
  if (axis.size == 2) return fmt::format("{}, {}", first, last);
  return fmt::format("{}, {}, {}{}", first, first + axis.stride, axis.size > 3 ? ".. " : "", last);
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
                                    return ranks_text({"", nodes[i].count(), 1}, nodes[i].begin);
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

Spread tensor_spread(const plan::PlanInputs& in) { return widest(axes_of(in.mesh)[0], in); }

Bubble bubble_of(const Planner& planner) {
  const plan::PlanInputs& in = planner.inputs;
  const auto costs = part_costs(in);
  const std::vector<double> equal(costs.size(), 1);
  const double backward = in.recompute == plan::Recompute::full ? 3 : 2;
  const auto of = [&](const std::vector<double>& c) {
    return plan::pipeline_bubble(in.pipeline, in.mesh.pipeline,
                                 planner.shapes.front().micro_batches, c, backward);
  };
  return {.given = of(costs), .equal = of(equal)};
}

std::string rank_map(const plan::PlanInputs& in) {
  const Mesh& m = in.mesh;
  std::string text = fmt::format("ranks: {} data x {} pipeline x {} tensor = {}, ZeRO-{}\n", m.data,
                                 m.pipeline, m.tensor, m.size(), in.stage);
  for (const Axis& axis : axes_of(m)) {
    if (axis.size == 1) continue;
    const auto first = first_ranks(axis, m.size());
    const Spread spread = widest(axis, in);
    text += row(
        axis.name,
        fmt::format(
            "{} of {}, {}: {}", first.size(), axis.size,
            spread.nodes == 1 ? "each in a node" : fmt::format("over up to {} nodes", spread.nodes),
            shortened(first.size(), [&](auto i) { return ranks_text(axis, first[i]); })));
  }
  return text + nodes_row(in.node_of);
}

std::string pipeline_text(const Checked& checked) {
  const plan::PlanInputs& in = checked.planner.inputs;
  if (in.mesh.pipeline == 1) return "";
  const Bubble bubble = bubble_of(checked.planner);
  std::string text = fmt::format(
      "pipeline: {} of {} micro-batches over {} stages: {:.1f} % of the stages' time is bubble "
      "({:.1f} % if they cost the same)\n",
      enum_word(in.pipeline.schedule), checked.micro_batches(), in.mesh.pipeline,
      100 * bubble.given, 100 * bubble.equal);
  const auto parts = plan::layer_parts(in);
  const auto costs = part_costs(in);
  double all = 0;
  for (const double cost : costs) all += cost;
  const auto stages = static_cast<std::size_t>(in.mesh.pipeline);
  constexpr std::size_t kShown = 8;
  for (std::size_t s = 0; s < stages; ++s) {
    if (stages > kShown && s == kShown - 1) {
      text += row("..", "");
      s = stages - 1;
    }
    std::vector<std::string> chunks;
    double own = 0;
    for (std::size_t part = s; part < parts.size(); part += stages) {
      chunks.push_back(layers_text(parts[part], in.config.layers));
      own += costs[part];
    }
    text += row(fmt::format("stage {}", s),
                fmt::format("{}: {:.1f} % of the work", fmt::join(chunks, "; "), 100 * own / all));
  }
  return text;
}

}  // namespace tessera::verbs
