// What ranks send and hold.
#include <algorithm>
#include <array>

#include "core/bytes.hpp"
#include "plan/passes/blocks.hpp"
#include "setup/inputs.hpp"
#include "setup/judges.hpp"
#include "setup/shapes.hpp"
#include "train/policy/actor.hpp"
#include "verbs/check/check.hpp"

namespace tessera::verbs {
namespace {

using plan::OpKind;
using plan::RankFigures;

struct TrafficRow {
  const char* name;
  std::vector<OpKind> kinds;
};
const std::vector<TrafficRow>& traffic_rows() {
  static const std::vector<TrafficRow> rows = {
      {"between tensor ranks", {OpKind::tensor}},
      {"between expert ranks", {OpKind::experts}},
      {"between context ranks", {OpKind::context}},
      {"between stages", {OpKind::send}},
      {"parameters", {OpKind::gather, OpKind::publish}},
      {"gradients", {OpKind::reduce_gradients, OpKind::gather_gradients, OpKind::errors}},
      {"momentum", {OpKind::momentum}},
      {"tied embeddings", {OpKind::tie_gradients}},
      {"matrices", {OpKind::matrices}},
  };
  return rows;
}

comm::WireBytes most_of(const std::vector<RankFigures>& figures, const std::vector<OpKind>& kinds) {
  comm::WireBytes most;
  for (const RankFigures& f : figures) {
    comm::WireBytes sum;
    for (const OpKind kind : kinds) {
      const auto it = f.wire.find(kind);
      if (it != f.wire.end()) sum.intra += it->second.intra, sum.inter += it->second.inter;
    }
    most = {std::max(most.intra, sum.intra), std::max(most.inter, sum.inter)};
  }
  return most;
}

/// All stages, or the first, the largest and the last of many.
std::vector<const RankFigures*> columns_of(const Checked& checked) {
  constexpr std::size_t kColumns = 6;
  auto all = plan::largest_of_stages(checked.figures);
  if (all.size() <= kColumns) return all;
  std::vector<const RankFigures*> shown{all.front()};
  const auto largest = std::max_element(all.begin(), all.end(), [](const auto* a, const auto* b) {
    return a->ledger.device() < b->ledger.device();
  });
  if (*largest != all.front() && *largest != all.back()) shown.push_back(*largest);
  shown.push_back(all.back());
  return shown;
}

/// Where training has steps of several shapes, what each of them needs.
std::string shapes_text(const Checked& checked) {
  const auto& shapes = checked.planner.shapes;
  const auto is_step = [](const plan::PlanShape& s) {
    return s.purpose == plan::PlanPurpose::train;
  };
  if (std::ranges::count_if(shapes, is_step) < 2) return "";
  struct Row {
    plan::PlanShape shape;
    std::int64_t bytes = 0;
  };
  std::vector<Row> rows;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    if (!is_step(shapes[i])) continue;
    Row row{.shape = shapes[i]};
    for (const RankFigures& f : checked.figures)
      row.bytes = std::max(row.bytes, plan::device_bytes(f.arenas[i]));
    rows.push_back(row);
  }
  std::ranges::sort(rows, {}, &Row::shape);
  const std::int64_t most = std::ranges::max(rows, {}, &Row::bytes).bytes;
  std::string text = "memory of a step by its shape, on the rank that holds most:\n";
  for (const auto& [shape, bytes] : rows) {
    text += fmt::format("  {:>7} tokens x {} x {:<21}{:>14}{}{}\n", shape.sequence, shape.micro,
                        count_text(shape.micro_batches, "micro-batch", "micro-batches"),
                        human_bytes(bytes), phase_text(checked.planner, shape),
                        bytes == most ? "  the most" : "");
  }
  return text;
}

/// The most that a rank has of a model beside the one that answers, whose plans have these shapes.
std::int64_t bytes_beside(const Checked& checked, const deck::LoadedDeck& model,
                          std::span<const plan::PlanShape> shapes) {
  const Planner& p = checked.planner;
  const plan::PlanInputs inputs = p.inputs_of(model.deck, shapes);
  std::int64_t most = 0;
  for (const RankFigures& f :
       plan::survey(inputs, shapes, plan::largest_places(inputs), p.devices).ranks)
    most = std::max(most, plan::device_bytes(f.ledger.arenas) + plan::host_bytes(f.ledger.arenas));
  return most;
}

std::string beside_text(const Checked& checked) {
  const deck::LoadedDeck& loaded = checked.planner.loaded;
  std::string text;
  const auto add = [&](const char* what, const deck::LoadedDeck& model, plan::Scores scores) {
    const std::int64_t ranks = setup::mesh_of(model.deck, checked.mesh().size()).batch_ranks();
    std::vector<plan::PlanShape> shapes;
    if (model.deck.task.kind == deck::TaskKind::values)
      shapes = setup::training_shapes(model.deck, ranks);
    shapes.push_back(setup::score_shape(loaded.deck, scores, ranks));
    text += fmt::format("  and {} for {} (no part of the above)\n",
                        human_bytes(bytes_beside(checked, model, shapes)), what);
  };
  if (train::has_own_reference(loaded.deck))
    add("the reference model of task.kl", setup::reference_deck(loaded), plan::Scores::losses);
  if (deck::draws_answers(loaded.deck.task.kind) &&
      loaded.deck.reward.kind == deck::RewardKind::model)
    add("the reward model", setup::reward_deck(loaded, checked.mesh().size()),
        plan::Scores::outputs);
  if (loaded.deck.task.critic)
    add("the critic, which is trained too", setup::critic_deck(loaded, checked.mesh().size()),
        plan::Scores::values);
  return text;
}

}  // namespace

std::string traffic_text(const Checked& checked) {
  const auto sent = checked.sent();
  const bool compresses = checked.planner.inputs.optimizer.momentum.has_value();
  std::string text = fmt::format("a rank sends {} in its node and {} across nodes a step{}\n",
                                 human_bytes(sent.intra), human_bytes(sent.inter),
                                 compresses ? " once momentum is compressed" : "");
  for (const TrafficRow& row : traffic_rows()) {
    const auto most = most_of(checked.figures, row.kinds);
    if (most.intra + most.inter == 0) continue;
    text += fmt::format("  {:<24}{:>14} in its node {:>14} across\n", row.name,
                        human_bytes(most.intra), human_bytes(most.inter));
  }
  const auto blocks = plan::blocks_text(checked.planner.inputs, checked.largest_rank().place);
  if (!blocks.empty()) text += fmt::format("  travel as               {}\n", blocks);
  return text;
}

std::string memory_text(const Checked& checked) {
  const auto columns = columns_of(checked);
  std::string text = fmt::format("memory a rank, on {}:\n", checked.planner.device_name);
  const auto row = [&](std::string_view name, auto&& cell) {
    text += fmt::format("  {:<24}", name);
    for (const RankFigures* f : columns) text += fmt::format("{:>14}", cell(*f));
    text += '\n';
  };
  row("stage", [](const RankFigures& f) { return f.place.pipeline; });
  row("rank that holds most",
      [&](const RankFigures& f) { return checked.mesh().rank_of(f.place); });
  std::vector<const plan::Ledger*> ledgers;
  for (const RankFigures* f : columns) ledgers.push_back(&f->ledger);
  text += plan::to_text(ledgers);
  for (const auto& [id, word] : EnumWords<plan::ArenaId>::table) {
    row(fmt::format("arena {}, bytes", word),
        [&](const RankFigures& f) { return f.ledger.arena(id); });
  }
  text += beside_text(checked);
  if (checked.planner.inputs.layout.nccl) {
    text +=
        "  and what the driver, NCCL, cuDNN and CUDA graphs take of the GPU, which a run "
        "measures\n";
  }
  return text + shapes_text(checked);
}

}  // namespace tessera::verbs
