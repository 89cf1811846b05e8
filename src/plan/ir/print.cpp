#include "plan/ir/print.hpp"

#include <nlohmann/json.hpp>

#include "core/bytes.hpp"
#include "plan/ir/runs.hpp"

namespace tessera::plan {
namespace {

std::string unit_name(const Op& op, const PlanInputs& inputs) {
  return op.unit < 0 ? "" : at(inputs.model.units, op.unit).name;
}

}  // namespace

std::string op_name(const Op& op, const PlanInputs& inputs) {
  return op_name(op, inputs, op.micro_batch);
}

std::string op_name(const Op& op, const PlanInputs& inputs, std::int32_t micro_batch) {
  std::string text = fmt::format("{} {}", enum_word(op.kind), call_name(op.call));
  if (op.unit >= 0) text += " of " + unit_name(op, inputs);
  if (micro_batch >= 0) text += fmt::format(", micro-batch {}", micro_batch);
  return text;
}

comm::WireBytes total_wire_bytes(const Plan& plan) {
  comm::WireBytes total;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const auto bytes = wire_bytes_of(plan, plan.ops[i]);
    const std::int64_t times = times_of(plan, static_cast<OpId>(i));
    total.intra += times * bytes.intra;
    total.inter += times * bytes.inter;
  }
  return total;
}

double total_flop(const Plan& plan) {
  double total = 0;
  for (std::size_t i = 0; i < plan.ops.size(); ++i)
    total += static_cast<double>(times_of(plan, static_cast<OpId>(i))) * flop_of(plan.ops[i]);
  return total;
}

/// "tensor rank 0 of 2, data rank 1 of 4, stage 0 of 1"
static std::string place_text(const MeshPlace& place, const Mesh& mesh) {
  std::vector<std::string> all;
  for (const Axis& a : kAxesInOrder) {
    const std::int64_t within = a.size == &Mesh::data ? mesh.context : 1;
    if (within > 1)
      all.push_back(fmt::format("context rank {} of {}", place.data % within, within));
    all.push_back(
        fmt::format("{} {} of {}", a.member, place.*a.place / within, mesh.*a.size / within));
  }
  if (const std::int64_t n = mesh.experts; n > 1)
    all.push_back(fmt::format("expert rank {} of {}", place.data % n, n));
  return fmt::format("{}", fmt::join(all, ", "));
}

std::string to_text(const Plan& plan, const PlanInputs& inputs) {
  const auto wire = total_wire_bytes(plan);
  std::string text = fmt::format(
      "# plan of {}: sequence {}, "
      "micro-batches {} x {}, {} ops, {:.3g} flop, "
      "sends {} in the node and {} "
      "across\n",
      place_text(plan.place, inputs.layout.mesh), plan.shape.sequence, plan.shape.micro_batches,
      plan.shape.micro, plan.ops.size(), total_flop(plan), human_bytes(wire.intra),
      human_bytes(wire.inter));
  if (const auto& r = plan.repeat) {
    text += fmt::format(
        "# ops {} to {} do for {} micro-batches what those before them do for as many, and run {} "
        "times\n",
        r->second(), r->end() - 1, r->micro_batches, r->times);
  }
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    std::string cost;
    const auto bytes = wire_bytes_of(plan, op);
    if (const double flop = flop_of(op); flop > 0) cost = fmt::format("{:.3g} flop", flop);
    if (bytes.intra + bytes.inter > 0) cost = "sends " + human_bytes(bytes.intra + bytes.inter);
    std::string waits;
    for (OpId id : op.waits) waits += fmt::format(" {}", id);
    text += fmt::format("{:>6}  {:<17}{:<17}{:<21}{:<12}{:<6}{:<18}{}\n", i, enum_word(op.stream),
                        enum_word(op.kind), call_name(op.call), unit_name(op, inputs),
                        op.micro_batch < 0 ? "" : fmt::format("m{}", op.micro_batch), cost,
                        waits.empty() ? "" : "waits" + waits);
  }
  return text;
}

std::string to_json(const Plan& plan, const PlanInputs& inputs) {
  using Json = nlohmann::ordered_json;
  Json buffers = Json::array(), ops = Json::array();
  for (const Buffer& b : plan.buffers) {
    buffers.push_back({{"name", b.name},
                       {"purpose", enum_word(b.purpose)},
                       {"bytes", b.bytes},
                       {"arena", enum_word(arena_of(b))},
                       {"offset", b.offset}});
  }
  for (const Op& op : plan.ops) {
    const auto wire = wire_bytes_of(plan, op);
    Json uses = Json::array();
    for (const BufferUse& use : uses_of(op)) {
      const char* access = use.access == kernels::Access::read    ? "read"
                           : use.access == kernels::Access::write ? "write"
                                                                  : "update";
      uses.push_back({{"buffer", use.buffer},
                      {"begin", use.bytes.begin},
                      {"end", use.bytes.end},
                      {"access", access}});
    }
    ops.push_back({{"kind", enum_word(op.kind)},
                   {"call", call_name(op.call)},
                   {"stream", enum_word(op.stream)},
                   {"unit", unit_name(op, inputs)},
                   {"micro_batch", op.micro_batch},
                   {"waits", op.waits},
                   {"bytes_intra", wire.intra},
                   {"bytes_inter", wire.inter},
                   {"flop", flop_of(op)},
                   {"uses", uses}});
  }
  Json place, mesh, repeat;
  if (const auto& r = plan.repeat)
    repeat = {{"first", r->second()}, {"end", r->end()}, {"times", r->times}};
  for (const Axis& a : kAxesInOrder)
    place[a.name] = plan.place.*a.place, mesh[a.name] = inputs.layout.mesh.*a.size;
  for (const Division& d : kDivisions) mesh[d.name] = inputs.layout.mesh.*d.ranks;
  return Json{{"sequence", plan.shape.sequence},
              {"micro", plan.shape.micro},
              {"micro_batches", plan.shape.micro_batches},
              {"place", std::move(place)},
              {"mesh", std::move(mesh)},
              {"state_bytes", plan.arena(ArenaId::state)},
              {"step_bytes", plan.arena(ArenaId::step)},
              {"host_bytes", plan.arena(ArenaId::host)},
              {"disk_bytes", plan.arena(ArenaId::disk)},
              {"buffers", buffers},
              {"repeat", std::move(repeat)},
              {"ops", ops}}
      .dump(1);
}

}  // namespace tessera::plan
