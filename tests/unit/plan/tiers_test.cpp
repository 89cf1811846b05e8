// Plans of which parameters, gradients, optimizer state and activations live on the host or on
// disks: they are proved, have what they need on the device for as long as they use it, and are
// rejected when bytes are looked for where they are not.
#include "plan/passes/tiers.hpp"

#include <gtest/gtest.h>

#include <set>

#include "plan/passes/place_buffers.hpp"
#include "plan/passes/place_waits.hpp"
#include "unit/plan/cases.hpp"

namespace tessera::plan {
namespace {

constexpr std::int64_t kTile = 64;

OffloadInputs all_on(Location tier) {
  return {
      .parameters = tier, .gradients = tier, .optimizer = tier, .activations = tier, .tile = kTile};
}

Case offloaded(const OffloadInputs& offload, int stage, std::int64_t ranks) {
  Case c = make_case(stage, ranks, 2, ReduceWhen::micro);
  c.inputs.offload = offload;
  c.inputs.offload.tile = kTile;
  return c;
}

/// One kind of thing elsewhere, or all of them.
std::vector<OffloadInputs> one_or_all_on(Location tier) {
  return {{.parameters = tier},
          {.gradients = tier},
          {.optimizer = tier},
          {.activations = tier},
          all_on(tier)};
}

TEST(Tiers, AreProvedWhateverLivesThere) {
  for (const Location tier : {Location::host, Location::disk}) {
    for (const OffloadInputs& offload : one_or_all_on(tier)) {
      for (int stage = 0; stage <= 3; ++stage) {
        for (const std::int64_t ranks : {1, 4}) {
          for (const std::int64_t ahead : {0, 2}) {
            Case c = offloaded(offload, stage, ranks);
            c.inputs.numerics.compute = ahead == 0 ? DType::f32 : DType::bf16;
            c.inputs.offload.ahead = ahead;
            c.inputs.offload.device_is_host = ahead == 0;
            expect_proved(c);
            c.shape.purpose = PlanPurpose::evaluate;
            expect_proved(c);
            c.shape = flush_after(Compression::none);
            expect_proved(c);
          }
        }
      }
    }
  }
}

TEST(Tiers, AreProvedOnRandomLayouts) {
  std::mt19937 random(7);
  for (int i = 0; i < 150; ++i) {
    Case c = random_case(random);
    const auto pick = [&] { return static_cast<Location>(random() % 3); };
    c.inputs.offload = {.parameters = pick(),
                        .gradients = pick(),
                        .optimizer = pick(),
                        .activations = pick(),
                        .optimizer_share = 1 - 0.3 * static_cast<double>(random() % 3),
                        .ahead = static_cast<std::int64_t>(random() % 4),
                        .tile = kTile,
                        .device_is_host = random() % 2 == 0};
    for (model::UnitDesc& unit : c.inputs.model.units)
      unit.traits.trained = unit.traits.trained && random() % 4 != 0;
    SCOPED_TRACE(i);
    expect_proved(c);
    if (c.inputs.state_for == PlanPurpose::evaluate) continue;
    c.shape = flush_after(Compression::none);
    expect_proved(c);
  }
}

// What the host makes of whole tensors or matrices comes to the device, which sends it on.
TEST(Tiers, BringWhatTheHostMakesToWhereItIsSent) {
  for (const auto& optimizer : {optim::lamb(), optim::muon()}) {
    Case c = make_case(1, 2, 1, ReduceWhen::step);
    c.inputs.optimizer = optimizer;
    c.inputs.offload = {.optimizer = Location::host, .tile = kTile, .device_is_host = false};
    const Plan plan = make_plan(c.inputs, c.shape, {});
    std::map<BufferId, std::int64_t> brought;  // bytes
    std::set<std::int64_t> tensors;            // where sums of some lie
    int sent = 0;
    for (const Op& op : plan.ops) {
      visit_args(op.call, [&](const auto& args) {
        if constexpr (requires { args.sums; }) {
          const View& sums = args.sums;
          if (sums) tensors.insert(plan.buffer(buffer_of(sums)).home_byte + offset_of(sums));
        }
      });
      if (const auto* copy = std::get_if<Copy>(&op.call);
          copy != nullptr && op.kind == OpKind::evict)
        brought[buffer_of(copy->to)] += copy->to.span_bytes();
      const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
      if (call == nullptr) continue;
      if (const auto* words = std::get_if<comm::AllReduceWords>(call);
          words != nullptr && op.kind == OpKind::tensor_sums) {
        EXPECT_GE(brought[buffer_of(words->words)],
                  std::ssize(tensors) * kernels::kTensorWords * size_of(DType::i64));
        ++sent;
      }
      const auto* matrices = std::get_if<comm::AllToAllV>(call);
      if (matrices == nullptr || !matrices->send) continue;
      if (plan.buffer(buffer_of(matrices->send)).name != "directions") continue;
      EXPECT_EQ(brought[buffer_of(matrices->send)], matrices->send.span_bytes());
      ++sent;
    }
    EXPECT_GT(sent, 0);
  }
}

std::int64_t bytes_of(const Plan& plan, Location location, BufferPurpose purpose) {
  std::int64_t bytes = 0;
  for (const Buffer& b : plan.buffers)
    bytes += b.persistent && b.location == location && b.purpose == purpose ? b.bytes : 0;
  return bytes;
}

// What persists moves as it is; the device keeps what the host and a step tell each other.
TEST(Tiers, HaveWhatTheDeviceHadNot) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const std::int64_t ranks : {1, 4}) {
      SCOPED_TRACE(testing::Message() << "stage " << stage << ", " << ranks << " ranks");
      const auto plan_of = [&](const OffloadInputs& offload) {
        const Case c = offloaded(offload, stage, ranks);
        return make_plan(c.inputs, c.shape, {});
      };
      const Plan stay = plan_of({});
      EXPECT_EQ(stay.arena(ArenaId::host), 0);
      EXPECT_EQ(stay.arena(ArenaId::disk), 0);
      for (const Location tier : {Location::host, Location::disk}) {
        const Plan leave = plan_of(all_on(tier));
        std::int64_t control = 0;
        for (const Buffer& b : leave.buffers) {
          if (!b.persistent || b.location != Location::device) continue;
          EXPECT_EQ(b.purpose, BufferPurpose::control) << b.name;
          control += round_up(b.bytes, leave.alignment);
        }
        EXPECT_GT(control, 0);
        EXPECT_EQ(leave.arena(ArenaId::state), control);
        std::int64_t moved = 0;
        for (const BufferPurpose what :
             {BufferPurpose::parameters, BufferPurpose::master, BufferPurpose::optimizer}) {
          EXPECT_EQ(bytes_of(leave, tier, what), bytes_of(stay, Location::device, what));
          moved += bytes_of(leave, tier, what);
        }
        const bool disk = tier == Location::disk;
        EXPECT_GT(leave.arena(row_of(tier).state), moved) << "activations and gradients too";
        EXPECT_EQ(leave.arena(disk ? ArenaId::host : ArenaId::disk), 0);
      }
    }
  }
}

/// How many fetches of a plan are of the experts alone that have rows. They go as soon as these are
/// known, of all ranks.
int fetches_on_demand(const Plan& plan) {
  int all = 0;
  std::map<BufferId, std::size_t> writer, since;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    const auto* copy = std::get_if<Copy>(&op.call);
    if (copy != nullptr && copy->begins) {
      const BufferId begins = buffer_of(copy->begins);
      EXPECT_EQ(i, writer[begins] + ++since[begins]);
      EXPECT_EQ(copy->begins.rows(), plan.mesh.experts);
      ++all;
    }
    for (const BufferUse& use : uses_of(op))
      if (use.access != kernels::Access::read) writer[use.buffer] = i, since[use.buffer] = 0;
  }
  return all;
}

/// Eight experts on disks, of which a token has two.
Plan with_experts_on_disks(PlanPurpose purpose, std::int64_t ranks, bool device_is_host,
                           std::int64_t tokens, std::int64_t micro_batches = 1,
                           bool codes = false) {
  Case c = make_case(0, ranks, micro_batches, ReduceWhen::step);
  give_experts(c.inputs, {.count = 8, .hidden = 8, .routing = {.choices = 2}}, ranks,
               std::vector<int>(static_cast<std::size_t>(ranks), 0));
  c.inputs.offload = {.parameters = Location::disk, .ahead = 8, .device_is_host = device_is_host};
  c.shape.purpose = purpose, c.shape.micro = 1, c.shape.sequence = tokens;
  if (purpose < PlanPurpose::train) c.inputs.state_for = purpose;
  if (purpose == PlanPurpose::generate) {
    c.inputs.cache = {.slots = 1, .room = 12, .pages = 1};
    c.shape.slots = 1, c.shape.room = 12, c.shape.pages = 1;
  }
  if (codes) {
    c.inputs.model.config.frozen = {"block.*"};
    c.inputs.model.units =
        model::model_units(c.inputs.model.config, 1,
                           {.codes = kernels::BlockFormat{.block = 16}, .expert_ranks = true});
  }
  expect_proved(c);
  return make_plan(c.inputs, c.shape, {});
}

TEST(Tiers, BringOfManyExpertsThoseThatHaveRows) {
  // Both matrices of three layers. Of 8 experts 4 tokens are expected to choose 1 - (3/4)^4.
  const Plan few = with_experts_on_disks(PlanPurpose::evaluate, 1, true, 4);
  EXPECT_EQ(fetches_on_demand(few), 6);
  for (const Op& op : few.ops) {
    const auto* copy = std::get_if<Copy>(&op.call);
    if (copy != nullptr && copy->begins) {
      EXPECT_NEAR(copy->share, 1 - 0.75 * 0.75 * 0.75 * 0.75, 1e-12);
    }
  }
  EXPECT_EQ(fetches_on_demand(with_experts_on_disks(PlanPurpose::evaluate, 1, true, 8)),
            6);  // 0.8999
  EXPECT_EQ(fetches_on_demand(with_experts_on_disks(PlanPurpose::evaluate, 1, true, 9)),
            0);  // 0.925
  EXPECT_EQ(fetches_on_demand(with_experts_on_disks(PlanPurpose::evaluate, 1, false, 4)),
            0);  // a GPU
  // Tokens of two ranks: 4 are as 8 of one.
  EXPECT_EQ(fetches_on_demand(with_experts_on_disks(PlanPurpose::evaluate, 2, true, 4)), 6);
  EXPECT_EQ(fetches_on_demand(with_experts_on_disks(PlanPurpose::evaluate, 2, true, 5)), 0);
  EXPECT_EQ(fetches_on_demand(with_experts_on_disks(PlanPurpose::train, 1, true, 4)), 0);
  // Two micro-batches find the same bytes in the same place, and want some of their own.
  EXPECT_EQ(fetches_on_demand(with_experts_on_disks(PlanPurpose::evaluate, 1, true, 4, 2)), 0);
}

// Codes and scales, each of both matrices of three layers.
TEST(Tiers, BringCodesOfThoseThatHaveRows) {
  const auto fetches = [](std::int64_t tokens, bool codes) {
    return fetches_on_demand(
        with_experts_on_disks(PlanPurpose::generate, 1, true, tokens, 1, codes));
  };
  EXPECT_EQ(fetches(4, true), 12);
  EXPECT_EQ(fetches(4, false), 6);
  // More rows than meet codes: all are turned into elements.
  EXPECT_EQ(fetches(5, true), 0);
  EXPECT_EQ(fetches(5, false), 6);
}

// Disks move whole sectors: of all arenas, as what is on disks is copied from and to them.
TEST(Tiers, AlignBuffersAsDisksWantThem) {
  for (const bool reaches : {true, false}) {
    Case c = offloaded(all_on(Location::disk), 3, 4);
    c.inputs.offload.device_is_host = reaches;
    const Plan plan = make_plan(c.inputs, c.shape, {.data = 3});
    std::set<Location> locations;
    for (const Buffer& b : plan.buffers) {
      if (b.offset < 0) continue;  // nobody uses it
      EXPECT_EQ(b.offset % 4096, 0) << b.name;
      locations.insert(b.location);
    }
    EXPECT_EQ(locations.size(), reaches ? 2U : 3U);
    // Memory and disk are aligned alike, so that all but the ends needs no other way.
    int copies = 0;
    for (const Op& op : plan.ops) {
      const auto* copy = std::get_if<Copy>(&op.call);
      if (copy == nullptr) continue;
      EXPECT_EQ(offset_of(copy->from) % 4096, offset_of(copy->to) % 4096);
      ++copies;
    }
    EXPECT_GT(copies, 100);
  }
  for (const Buffer& b : make_plan(offloaded(all_on(Location::host), 3, 4).inputs,
                                   offloaded(all_on(Location::host), 3, 4).shape, {})
                             .buffers)
    EXPECT_EQ(b.offset < 0 ? 0 : b.offset % kBufferAlignment, 0) << b.name;
}

// The device needs no more of the optimizer's state than tiles of it.
TEST(Tiers, UpdateInTiles) {
  const Case c = offloaded({.optimizer = Location::disk}, 1, 4);
  const Plan plan = make_plan(c.inputs, c.shape, {});
  std::vector<std::int64_t> updates(plan.shares.size());
  for (const Op& op : plan.ops) {
    if (op.kind != OpKind::update) continue;
    ++updates[static_cast<std::size_t>(op.unit)];
    for (const BufferUse& use : uses_of(op)) {
      const Buffer& b = plan.buffer(use.buffer);
      if (b.purpose != BufferPurpose::optimizer && b.purpose != BufferPurpose::master) continue;
      EXPECT_FALSE(b.persistent) << b.name;
      EXPECT_LE(b.bytes, 4 * kTile + plan.alignment) << b.name;
    }
  }
  for (std::size_t u = 0; u < updates.size(); ++u) {
    // Matrices and vectors each end in a tile that is not full.
    const std::int64_t tiles = ceil_div(plan.shares[u].shard, kTile);
    EXPECT_GE(updates[u], tiles);
    EXPECT_LE(updates[u], tiles + 1);
  }
}

// What goes between disks and a device that they do not reach goes through the host.
TEST(Tiers, GoThroughTheHostWhereDisksReachNoFurther) {
  Case c = offloaded(all_on(Location::disk), 3, 4);
  for (const bool reaches : {true, false}) {
    c.inputs.offload.device_is_host = reaches;
    const Plan plan = make_plan(c.inputs, c.shape, {});
    EXPECT_EQ(plan.arena(ArenaId::host) > 0, !reaches);
    int across = 0;
    for (const Op& op : plan.ops) {
      const auto* copy = std::get_if<Copy>(&op.call);
      if (copy == nullptr) continue;
      const std::set<Location> ends = {plan.buffer(buffer_of(copy->from)).location,
                                       plan.buffer(buffer_of(copy->to)).location};
      across += ends == std::set{Location::device, Location::disk} ? 1 : 0;
    }
    EXPECT_EQ(across > 0, reaches);
  }
}

// Where the host has memory of its own it updates what lives there: gradients come once, parameters
// go once, and of the optimizer's state nothing moves, or only between disks and the host.
TEST(Tiers, AreUpdatedByTheHostThatHasThem) {
  for (const Location tier : {Location::host, Location::disk}) {
    for (const bool same : {false, true}) {
      Case c = offloaded({.optimizer = tier}, 1, 4);
      c.inputs.numerics.compute = DType::bf16;
      c.inputs.offload.device_is_host = same;
      const Plan plan = make_plan(c.inputs, c.shape, {});
      const Location updates_at = same ? Location::device : Location::host;
      std::int64_t elements = 0, gradients = 0, parameters = 0;
      for (const UnitShare& share : plan.shares) elements += share.shard;
      for (const Op& op : plan.ops) {
        if (op.kind == OpKind::update) {
          EXPECT_EQ(op.location, updates_at);
          EXPECT_EQ(op.stream, same ? Stream::compute : Stream::host);
        }
        const auto* copy = std::get_if<Copy>(&op.call);
        if (copy == nullptr || same) continue;
        const Buffer &from = plan.buffer(buffer_of(copy->from)),
                     &to = plan.buffer(buffer_of(copy->to));
        const std::int64_t bytes = copy->from.span_bytes();
        gradients += from.purpose == BufferPurpose::gradients ? bytes : 0;
        parameters += from.purpose == BufferPurpose::parameters ? bytes : 0;
        if (from.purpose == BufferPurpose::master || from.purpose == BufferPurpose::optimizer) {
          EXPECT_EQ(tier, Location::disk) << from.name;
          EXPECT_NE(from.location, Location::device) << from.name;
          EXPECT_NE(to.location, Location::device) << from.name;
        }
      }
      if (same) continue;
      EXPECT_EQ(gradients, elements * size_of(c.inputs.numerics.accumulate));
      EXPECT_EQ(parameters, elements * size_of(DType::bf16));
    }
  }
}

TEST(Tiers, HaveAShareOfTheOptimizerState) {
  const auto on_host = [](double share) {
    Case c = offloaded({.optimizer = Location::host, .optimizer_share = share}, 2, 4);
    c.inputs.numerics.compute = DType::bf16;
    c.inputs.offload.device_is_host = false;
    expect_proved(c);
    const Plan plan = make_plan(c.inputs, c.shape, {});
    std::set<std::int32_t> units;
    std::int64_t there = 0, all = 0, largest = 0;
    for (const Op& op : plan.ops) {
      if (op.kind != OpKind::update) continue;
      const std::int64_t shard = at(plan.shares, op.unit).shard;
      if (!units.insert(op.unit).second) continue;
      there += op.location == Location::host ? shard : 0;
      all += shard;
      largest = std::max(largest, shard);
    }
    const double exact = share * static_cast<double>(all);
    EXPECT_GE(static_cast<double>(there), exact);
    EXPECT_LT(static_cast<double>(there), exact + static_cast<double>(largest));
    EXPECT_EQ(bytes_of(plan, Location::host, BufferPurpose::master), 4 * there);
    EXPECT_EQ(bytes_of(plan, Location::device, BufferPurpose::master), 4 * (all - there));
    return there;
  };
  EXPECT_GT(on_host(1), on_host(0.6));
  EXPECT_GT(on_host(0.6), on_host(0.01));
}

// --- Plans that look for bytes where they are not ------------------------------------------------

/// What check() says of a plan; "" if nothing.
std::string verdict(const Plan& plan) {
  try {
    check(plan);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

/// The waits that its order needs, and no more races than there were.
void order_again(Plan& plan) {
  for (Op& op : plan.ops) op.waits.clear();
  place_waits(plan);
}

std::vector<Plan> plans_to_break() {
  struct Broken {
    Location tier;
    int stage;
    DType compute;
    bool device_is_host = true;
  };
  std::vector<Plan> plans;
  for (const Broken& b :
       {Broken{Location::disk, 0, DType::bf16}, Broken{Location::disk, 1, DType::f32},
        Broken{Location::host, 2, DType::bf16}, Broken{Location::disk, 3, DType::bf16},
        Broken{Location::disk, 2, DType::bf16, false}}) {
    Case c = offloaded(all_on(b.tier), b.stage, 4);
    c.inputs.model.config.layers = 2;
    c.inputs.model.units = model::model_units(c.inputs.model.config);
    c.inputs.numerics.compute = b.compute;
    c.inputs.offload.device_is_host = b.device_is_host;
    c.inputs.offload.tile = b.stage == 0 ? 512 : 128;
    plans.push_back(make_plan(c.inputs, c.shape, {.data = 1}));
  }
  return plans;
}

/// Of a copy between two places: the buffer at the place that is not the device.
const Buffer& home_of(const Plan& plan, const Op& op) {
  const Copy& copy = std::get<Copy>(op.call);
  return plan.buffer(buffer_of(op.kind == OpKind::evict ? copy.to : copy.from));
}

TEST(Check, RejectsStateThatIsUpdatedButNeverWhereItLives) {
  int broken = 0;
  for (const Plan& plan : plans_to_break()) {
    std::vector<const Buffer*> homes;
    for (const Op& op : plan.ops) {
      if (op.kind == OpKind::evict) homes.push_back(&home_of(plan, op));
    }
    std::vector<Plan> without = without_each(plan, OpKind::evict);
    ASSERT_EQ(without.size(), homes.size());
    for (std::size_t i = 0; i < homes.size(); ++i) {
      order_again(without[i]);
      const std::string said = verdict(without[i]);
      EXPECT_NE(said, "") << homes[i]->name << " " << i;
      if (!homes[i]->persistent || homes[i]->purpose == BufferPurpose::gradients) continue;
      EXPECT_TRUE(said.find("changed, but never where it lives") != std::string::npos ||
                  said.find("newer version") != std::string::npos)
          << homes[i]->name << ": " << said;
      ++broken;
    }
  }
  EXPECT_GT(broken, 100);
}

// Each is given the waits that it needs, so that it is a proper plan but for what updates are by.
TEST(Check, RejectsDeferredUpdatesThatAreNotThoseOfTheStepBefore) {
  for (const Plan& plan : plans_to_break()) {
    const auto said_of = [&](auto&& change) {
      Plan broken = plan;
      change(broken);
      place_buffers(broken);
      order_again(broken);
      return verdict(broken);
    };
    const auto says = [&](const std::string& said, const char* what) {
      EXPECT_NE(said.find(what), std::string::npos) << said;
    };
    const auto remove = [](Plan& p, auto&& is) { EXPECT_EQ(std::erase_if(p.ops, is), 1u); };
    // The first update finds `other` where it looks for one of its arguments, or what it looks at
    // is brought from there.
    const auto replace = [](Plan& p, View kernels::OptimizerUpdate::*argument, const View& other) {
      const auto op = std::ranges::find(p.ops, OpKind::update, &Op::kind);
      View& v =
          std::get<kernels::OptimizerUpdate>(std::get<kernels::KernelCall>(op->call)).*argument;
      for (Op& fetch : p.ops) {
        auto* copy = std::get_if<Copy>(&fetch.call);
        if (copy == nullptr || buffer_of(copy->to) != buffer_of(v)) continue;
        copy->from = View(other.data, DType::u8, {copy->from.span_bytes()});
        return;
      }
      v = other;
    };
    says(said_of([&](Plan& p) {
           remove(p, [](const Op& op) {
             return op.kind == OpKind::norm && kernel_of<kernels::Convert>(op) != nullptr;
           });
         }),
         "the next step cannot do the update of this one");
    using Update = kernels::OptimizerUpdate;
    says(said_of([&](Plan& p) { replace(p, &Update::scalars, p.scalars); }),
         "by what is no step's");
    says(said_of([&](Plan& p) { replace(p, &Update::verdict, p.words); }), "by what is no step's");
    says(said_of([&](Plan& p) {
           const auto op = std::ranges::find(p.ops, OpKind::update, &Op::kind);
           p.ops.erase(op);
         }),
         "broken plan");
    // The scalars are already those of this step when updates come.
    says(said_of([&](Plan& p) {
           const auto kept = std::ranges::find_if(p.ops, [](const Op& op) {
             return op.kind == OpKind::norm && kernel_of<kernels::Convert>(op) != nullptr;
           });
           const auto first = std::ranges::find_if(p.ops, [&](const Op& op) {  // that uses them
             return std::ranges::any_of(uses_of(op), [&](const BufferUse& use) {
               return use.buffer == buffer_of(p.update_scalars);
             });
           });
           std::rotate(first, kept, kept + 1);
         }),
         "updates by what is the next step's");
  }
}

// An update behind what reads its parameters would be by a step too late.
TEST(Check, RejectsParametersThatAreUsedBeforeTheirUpdate) {
  Case c = offloaded({.optimizer = Location::host}, 3, 4);
  const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
  int broken = 0;
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    if (plan.ops[i].kind != OpKind::gather) continue;
    // Before the update of what it gathers, which was somewhere before it.
    std::size_t u = i;
    while (u > 0 && !(plan.ops[u].kind == OpKind::update && plan.ops[u].unit == plan.ops[i].unit))
      --u;
    if (plan.ops[u].kind != OpKind::update) continue;
    Plan early = plan;
    const auto ops = early.ops.begin();
    std::rotate(ops + static_cast<std::ptrdiff_t>(u), ops + static_cast<std::ptrdiff_t>(i),
                ops + static_cast<std::ptrdiff_t>(i) + 1);
    place_buffers(early);
    order_again(early);
    const std::string said = verdict(early);
    EXPECT_TRUE(said.find("updates what the step has used") != std::string::npos ||
                said.find("newer version") != std::string::npos)
        << said;
    ++broken;
  }
  EXPECT_GT(broken, 0);
}

/// A plan that saves everything in tiles, of which some units are frozen.
Plan saving_plan(int stage, DType compute) {
  Case c = offloaded(all_on(Location::disk), stage, 4);
  c.inputs.numerics.compute = compute;
  c.inputs.state_for = c.shape.purpose = PlanPurpose::train_snapshot;
  c.inputs.model.units[1].traits.trained = false;
  return make_plan(c.inputs, c.shape, {.data = 1});
}

TEST(Tiers, AreSavedAsTheirUpdatesLeaveThem) {
  for (int stage = 0; stage <= 3; ++stage) {
    for (const DType compute : {DType::f32, DType::bf16}) {
      const Plan plan = saving_plan(stage, compute);
      std::map<std::pair<std::int32_t, std::size_t>, std::int64_t> saved;
      for (const Op& op : plan.ops) {
        if (const auto* tile = std::get_if<SaveTile>(&op.call))
          saved[{op.unit, tile->row}] += tile->from.elements();
        EXPECT_FALSE(op.kind == OpKind::snapshot && std::holds_alternative<Copy>(op.call));
      }
      for (const Buffer& b : plan.buffers) EXPECT_NE(b.purpose, BufferPurpose::snapshot) << b.name;
      for (std::size_t u = 0; u < plan.shares.size(); ++u) {
        const UnitShare& share = plan.shares[u];
        for (std::size_t row = 0; row < (share.trained ? 3U : 1U); ++row)
          EXPECT_EQ((saved[{static_cast<std::int32_t>(u), row}]), share.shard) << u << " " << row;
      }
      EXPECT_EQ(std::ssize(saved), 3 * (std::ssize(plan.shares) - 1) + 1);
    }
  }
}

TEST(Check, RejectsTilesThatAreNotWhatACheckpointWants) {
  const auto is_tile = [](const Op& op) { return std::holds_alternative<SaveTile>(op.call); };
  for (int stage = 0; stage <= 3; ++stage) {
    const Plan plan = saving_plan(stage, DType::bf16);
    const auto tile_at = [&](Plan& p) {
      return std::ranges::find_if(p.ops, [&](const Op& op) { return is_tile(op) && op.unit == 0; });
    };
    Plan lacks = plan;
    lacks.ops.erase(tile_at(lacks));
    order_again(lacks);
    EXPECT_NE(verdict(lacks).find("are saved, of"), std::string::npos);
    Plan twice = plan;
    twice.ops.insert(tile_at(twice), *tile_at(twice));
    order_again(twice);
    EXPECT_NE(verdict(twice).find("saves an element again"), std::string::npos);
    Plan other = plan;
    auto& tile = std::get<SaveTile>(tile_at(other)->call);
    tile.row = 1;
    EXPECT_NE(verdict(other), "");
    // As the step before that has left it: behind the fetch, before the update.
    for (std::size_t row = 0; row < 3; ++row) {
      Plan early = plan;
      const auto saved = std::ranges::find_if(early.ops, [&](const Op& op) {
        return is_tile(op) && op.unit == 0 && std::get<SaveTile>(op.call).row == row;
      });
      auto update = saved;
      while (update->kind != OpKind::update) --update;
      std::rotate(update, saved, saved + 1);
      order_again(early);
      EXPECT_NE(verdict(early).find("updates what the step has used"), std::string::npos)
          << row << ": " << verdict(early);
    }
  }
}

TEST(Check, RejectsTilesOfAnotherRow) {
  Plan plan = saving_plan(2, DType::bf16);
  for (Op& op : plan.ops) {
    if (auto* tile = std::get_if<SaveTile>(&op.call); tile != nullptr && tile->row > 0)
      tile->row = 3 - tile->row;
  }
  EXPECT_NE(verdict(plan).find("is saved as another"), std::string::npos) << verdict(plan);
}

TEST(Check, RejectsShardsThatAreNotPublishedBeforeTheirUse) {
  int broken = 0;
  for (int stage = 1; stage <= 2; ++stage) {
    for (const Location optimizer : {Location::device, Location::host}) {
      const Case c = offloaded({.optimizer = optimizer}, stage, 4);
      const Plan plan = make_plan(c.inputs, c.shape, {.data = 1});
      for (Plan& without : without_each(plan, OpKind::publish)) {
        order_again(without);
        EXPECT_NE(verdict(without).find("that other ranks have updated"), std::string::npos)
            << verdict(without);
        ++broken;
      }
      for (std::size_t i = 0; i < plan.ops.size(); ++i) {
        if (plan.ops[i].kind != OpKind::publish) continue;
        Plan late = plan;
        const auto ops = late.ops.begin() + static_cast<std::ptrdiff_t>(i);
        std::rotate(ops, ops + 1, late.ops.end());
        order_again(late);
        EXPECT_NE(verdict(late).find("that other ranks have updated"), std::string::npos)
            << verdict(late);
      }
    }
  }
  EXPECT_GT(broken, 10);
}

TEST(Check, RejectsAFlushThatLeavesAnUpdateForTheNextStep) {
  Case c = offloaded(all_on(Location::disk), 2, 4);
  Plan plan = make_plan(c.inputs, flush_after(Compression::none), {.data = 1});
  EXPECT_EQ(verdict(plan), "");
  plan.ops.pop_back();
  EXPECT_NE(verdict(plan).find("leaves something to do"), std::string::npos);
}

// What the host computes has a stream of its own, and only kernels are computed; saved tiles are
// where the host or the device reaches them.
TEST(Check, RejectsWhatIsAtAPlaceWhereNothingCanDoIt) {
  int broken = 0;
  for (const Plan& plan : plans_to_break()) {
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      Plan wrong = plan;
      Op& op = wrong.ops[i];
      if (op.kind == OpKind::fetch) {
        op.stream = Stream::host, op.location = Location::host;
      } else if (std::holds_alternative<SaveTile>(op.call)) {
        op.location = Location::disk;
      } else {
        continue;
      }
      EXPECT_NE(verdict(wrong), "") << i;
      ++broken;
    }
  }
  EXPECT_GT(broken, 100);
}

TEST(Check, RejectsExpertsThatCameForOthers) {
  Plan plan = with_experts_on_disks(PlanPurpose::evaluate, 1, true, 4);
  EXPECT_EQ(verdict(plan), "");
  const auto product = std::ranges::find_if(
      plan.ops, [](const Op& op) { return kernel_of<kernels::ExpertLinear>(op) != nullptr; });
  // As if the matrices were those of half as many experts.
  std::get<kernels::ExpertLinear>(std::get<kernels::KernelCall>(product->call)).weight.shape[0] /=
      2;
  const std::string said = verdict(plan);
  EXPECT_NE(said.find("of which some is not there"), std::string::npos) << said;
}

TEST(Check, RejectsAPlanWithoutAnyOneOfItsFetches) {
  int broken = 0;
  for (const Plan& plan : plans_to_break()) {
    for (Plan& without : without_each(plan, OpKind::fetch)) {
      order_again(without);
      EXPECT_NE(verdict(without), "") << broken;
      ++broken;
    }
  }
  EXPECT_GT(broken, 100);
}

/// Whether two copies have bytes of the same buffer elsewhere.
bool meet(const Op& evict, const Op& fetch) {
  const View &to = std::get<Copy>(evict.call).to, &from = std::get<Copy>(fetch.call).from;
  return buffer_of(to) == buffer_of(from) && offset_of(to) < offset_of(from) + from.span_bytes() &&
         offset_of(from) < offset_of(to) + to.span_bytes();
}

// Waits that fit the new order make it a proper plan, but for what it reads.
TEST(Check, RejectsAFetchBeforeTheEvictionThatItIsToFollow) {
  int broken = 0;
  for (const Plan& plan : plans_to_break()) {
    for (std::size_t f = 0; f < plan.ops.size(); ++f) {
      if (plan.ops[f].kind != OpKind::fetch) continue;
      std::size_t e = f;
      while (e > 0 && !(plan.ops[e].kind == OpKind::evict && meet(plan.ops[e], plan.ops[f]))) --e;
      if (plan.ops[e].kind != OpKind::evict || !meet(plan.ops[e], plan.ops[f])) continue;
      Plan early = plan;
      const auto ops = early.ops.begin();
      std::rotate(ops + static_cast<std::ptrdiff_t>(e), ops + static_cast<std::ptrdiff_t>(f),
                  ops + static_cast<std::ptrdiff_t>(f) + 1);
      order_again(early);
      EXPECT_NE(verdict(early), "") << home_of(plan, plan.ops[f]).name;
      place_buffers(early);  // where it disturbs nothing else
      order_again(early);
      const std::string said = verdict(early);
      const auto says = [&](const char* what) { return said.find(what) != std::string::npos; };
      EXPECT_TRUE(says("newer version") || says("before it is written") || says("bytes hold"))
          << home_of(plan, plan.ops[f]).name << ": " << said;
      ++broken;
    }
  }
  EXPECT_GT(broken, 100);
}

// Any op that uses what is elsewhere than it runs, and any buffer of its.
TEST(Check, RejectsAnOpThatRunsElsewhereThanItsBuffersAre) {
  for (const Plan& plan : plans_to_break()) {
    int broken = 0;
    for (std::size_t o = 0; o < plan.ops.size(); o += 7) {
      const Op& op = plan.ops[o];
      if (op.location == Location::host || std::holds_alternative<Copy>(op.call)) continue;
      for (const BufferUse& use : uses_of(op)) {
        for (const Location other : {Location::host, Location::disk}) {
          Plan moved = plan;
          const ArenaId from = arena_of(moved.buffer(use.buffer));
          moved.buffer(use.buffer).location = other;
          const ArenaId to = arena_of(moved.buffer(use.buffer));
          moved.arena_bytes[to] = std::max(moved.arena_bytes[to], plan.arena_bytes[from]);
          EXPECT_NE(verdict(moved).find(std::string("on the ") + std::string(enum_word(other))),
                    std::string::npos)
              << verdict(moved);
          ++broken;
        }
      }
    }
    EXPECT_GT(broken, 100);
  }
}

// An op that reaches for the home of its operand.
TEST(Check, RejectsAnUpdateOfStateWhereItLives) {
  int broken = 0;
  for (const Plan& plan : plans_to_break()) {
    for (std::size_t o = 0; o < plan.ops.size(); ++o) {
      if (plan.ops[o].kind != OpKind::fetch || !home_of(plan, plan.ops[o]).persistent) continue;
      const Copy& copy = std::get<Copy>(plan.ops[o].call);
      Plan direct = plan;
      int uses = 0;
      for (Op& op : direct.ops) {
        if (std::holds_alternative<Copy>(op.call)) continue;
        each_view(op.call, [&](View& v, kernels::Access) {
          if (buffer_of(v) != buffer_of(copy.to)) return;
          v.data = copy.from.data + (offset_of(v) - offset_of(copy.to));
          ++uses;
        });
      }
      if (uses == 0) continue;
      EXPECT_NE(verdict(direct).find("on the "), std::string::npos) << verdict(direct);
      ++broken;
    }
  }
  EXPECT_GT(broken, 100);
}

// Bytes of a stand-in that go home, or came from there, to or from other bytes.
TEST(Check, RejectsBytesThatGoHomeToAnotherPlace) {
  int broken = 0;
  for (const Plan& plan : plans_to_break()) {
    for (std::size_t o = 0; o < plan.ops.size(); ++o) {
      if (plan.ops[o].kind != OpKind::evict) continue;
      Plan astray = plan;
      View& to = std::get<Copy>(astray.ops[o].call).to;
      to.data += offset_of(to) > 0 ? -1 : 1;
      if (offset_of(to) + to.span_bytes() > plan.buffer(buffer_of(to)).bytes) continue;
      order_again(astray);
      EXPECT_NE(verdict(astray), "") << home_of(plan, plan.ops[o]).name;
      ++broken;
    }
  }
  EXPECT_GT(broken, 100);
}

}  // namespace
}  // namespace tessera::plan
