#include "plan/passes/schedule.hpp"

#include <map>
#include <optional>

#include "core/exact_sum.hpp"
#include "plan/passes/buffers.hpp"
#include "plan/passes/layers.hpp"
#include "plan/passes/pipeline.hpp"
#include "plan/passes/weave.hpp"

namespace tessera::plan {
namespace {

using kernels::KernelCall;
using kernels::Write;
using Kind = PipelineAction::Kind;

/// Views of a carry in plan buffers.
struct Flow {
  View resid, pending;
};

/// Which ops of a recording's backward to issue: all, those that the input's gradient needs, or
/// those that only make gradients of weights.
enum class Part : std::uint8_t { all, input, weight };

/// What a recorded call is as an op: a kernel, or a collective of one of these groups.
struct CallRow {
  OpKind kind;
  Stream stream;
  MeshGroup group;
};
constexpr std::array kCollectiveRows = {
    CallRow{OpKind::tensor, Stream::tensor, MeshGroup::tensor},
    CallRow{OpKind::experts, Stream::experts, MeshGroup::experts},
    CallRow{OpKind::context, Stream::context, MeshGroup::context}};
CallRow row_of(const Recorded& recorded) {
  if (std::holds_alternative<comm::CollectiveCall>(recorded.call)) {
    for (const CallRow& row : kCollectiveRows)
      if (row.group == recorded.group) return row;
  }
  return {OpKind::kernel, Stream::compute, MeshGroup::tensor};
}

class Scheduler {
 public:
  Scheduler(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states)
      : plan_(plan),
        in_(in),
        states_(states),
        layers_(model_layers(in.model.units)),
        parts_(layer_parts(in)),
        rows_(in.rows(plan.shape)),
        training_(plan.shape.purpose > PlanPurpose::evaluate),
        generates_(plan.shape.purpose == PlanPurpose::generate) {}

  Scheduled run() {
    for (std::size_t u = 0; u < states_.size(); ++u) {
      const DType type = in_.type_of(in_.model.units[u]);
      out_.windows.push_back(states_[u].in_windows(type)
                                 ? add_buffer(plan_, in_.model.units[u].name + " gathered",
                                              BufferPurpose::gather_window,
                                              states_[u].layout.padded * size_of(type))
                                 : -1);
    }
    add_batches();
    if (!generates_)
      add(OpKind::kernel, kernels::Fill{.out = plan_.words.range(0, WordLayout::flags)});
    if (plan_.shape.tallies > 0) add(OpKind::kernel, kernels::Fill{.out = tally_sums(plan_)});
    if (plan_.confusion) add(OpKind::kernel, kernels::Fill{.out = plan_.confusion});
    if (plan_.choices && !generates_) add(OpKind::kernel, kernels::Fill{.out = plan_.choices});
    if (plan_.statistics) add(OpKind::kernel, kernels::Fill{.out = plan_.statistics});
    const bool pairs = goes_in_pairs(in_, plan_.shape);
    std::vector<std::vector<PipelineAction>> of_stages;
    if (pairs) {
      of_stages.push_back(paired_actions(plan_.scheduled));
    } else {
      of_stages = pipeline_actions(in_.layout.pipeline, in_.layout.mesh.pipeline, plan_.scheduled,
                                   training_);
    }
    const auto receives = pipeline_receives(of_stages, plan_.place.pipeline);
    const auto& actions = at(of_stages, plan_.place.pipeline);
    std::vector<std::size_t> begins;  // of the actions' ops
    for (std::size_t i = 0; i < actions.size(); ++i) {
      begins.push_back(plan_.ops.size());
      for (const PipelineAction& a : receives[i]) receive(a);
      act(actions[i]);
      if (i == 0) plan_.ops.reserve(plan_.ops.size() * (actions.size() + 1));
    }
    if (pairs) weave(plan_, begins);
    if (generates_) share_logits();
    return std::move(out_);
  }

 private:
  struct Visit {
    const Recording* recording = nullptr;
    std::map<BufferId, View> bound;  // local buffer -> start of its plan buffer
  };
  /// The state of one virtual stage's layers over one micro-batch, from its forward to the end of
  /// its backward.
  struct Passage {
    std::vector<Visit> visits;
    View incoming, incoming_gradient;  // from other stages
    View gradient;                     // of the carry into the layer that backward has come to
  };

  std::int64_t stages() const { return in_.layout.mesh.pipeline; }
  std::int64_t part_of(const PipelineAction& a) const {
    return a.virtual_stage * stages() + plan_.place.pipeline;
  }
  bool first(const PipelineAction& a) const { return part_of(a) == 0; }
  bool last(const PipelineAction& a) const { return part_of(a) + 1 == std::ssize(parts_); }
  Range layers_of(const PipelineAction& a) const { return at(parts_, part_of(a)); }
  MeshGroup shared_by(std::size_t unit) const { return in_.model.units[unit].traits.shared_by; }
  bool trained(std::size_t unit) const { return in_.model.units[unit].traits.trained; }
  /// Whether somebody needs the gradient of the carry into a layer: a unit before it is trained.
  bool carry_gradient_wanted(std::int64_t layer) const {
    for (std::int64_t l = 0; l < layer; ++l) {
      for (const std::size_t u : at(layers_, l).units) {
        if (trained(u)) return true;
      }
    }
    return false;
  }
  Passage& passage(const PipelineAction& a) { return passages_[{a.virtual_stage, a.micro_batch}]; }

  /// A carry, or its gradient, on its way between stages.
  View message(const char* what) {
    const std::int64_t t = rows_.sequence / (split_sequence() ? in_.layout.mesh.tensor : 1);
    const std::int64_t n = rows_.batch * t * in_.model.config.hidden;
    const BufferId id = add_buffer(plan_, fmt::format("{} of micro-batch {}", what, micro_batch_),
                                   BufferPurpose::messages, n * size_of(in_.numerics.compute));
    return View(symbolic(id), in_.numerics.compute, {rows_.batch, t, in_.model.config.hidden});
  }
  /// Of a single token there is nothing to split.
  bool split_sequence() const {
    return in_.layout.split_sequence && in_.layout.mesh.tensor > 1 && !generates_;
  }

  void receive(const PipelineAction& a) {
    micro_batch_ = static_cast<std::int32_t>(a.micro_batch);
    if (a.kind == Kind::forward && !first(a)) {
      View& to = passage(a).incoming = message("activations");
      travel(OpKind::receive, Stream::receive_forward,
             comm::Receive{.data = to, .peer = stage(-1)});
    }
    if ((a.kind == Kind::backward || a.kind == Kind::backward_input) && !last(a) &&
        carry_gradient_wanted(layers_of(a).end)) {
      View& to = passage(a).incoming_gradient = message("activations' gradient");
      travel(OpKind::receive, Stream::receive_backward,
             comm::Receive{.data = to, .peer = stage(1)});
    }
  }
  std::int64_t stage(std::int64_t steps) const {
    return (plan_.place.pipeline + steps + stages()) % stages();
  }
  bool crosses(std::int64_t peer) const {
    if (in_.layout.node_of.empty()) return false;
    const auto node = [&](std::int64_t pipeline) {
      MeshPlace p = plan_.place;
      p.pipeline = pipeline;
      return at(in_.layout.node_of, in_.layout.mesh.rank_of(p));
    };
    return node(peer) != node(plan_.place.pipeline);
  }
  void send(Stream stream, const View& data, std::int64_t steps) {
    send_to(stream, data, stage(steps));
  }
  void send_to(Stream stream, const View& data, std::int64_t peer) {
    travel(OpKind::send, stream, comm::Send{.data = data, .peer = peer, .crosses = crosses(peer)});
  }
  void travel(OpKind kind, Stream stream, const comm::CollectiveCall& call) {
    plan_.ops.push_back({.kind = kind,
                         .stream = stream,
                         .group = MeshGroup::pipeline,
                         .micro_batch = micro_batch_,
                         .visit = visit_,
                         .call = call,
                         .waits = {}});
  }

  /// All stages get what the last one has made.
  void share_logits() {
    const std::int64_t last = stages() - 1, rows = plan_.logits.extent(1);
    for (std::int64_t k = 0; k < plan_.shape.micro_batches; ++k) {
      micro_batch_ = static_cast<std::int32_t>(k);
      const View logits = plan_.logits.row_range(k * rows, rows);
      if (plan_.place.pipeline != last) {
        travel(OpKind::receive, Stream::receive_backward,
               comm::Receive{.data = logits, .peer = last});
        continue;
      }
      for (std::int64_t s = 0; s < last; ++s) send_to(Stream::send_backward, logits, s);
    }
  }

  void act(const PipelineAction& a) {
    micro_batch_ = static_cast<std::int32_t>(a.micro_batch);
    const Range layers = layers_of(a);
    Passage& p = passage(a);
    switch (a.kind) {
      case Kind::forward: return forward(a, layers, p);
      case Kind::backward: return backward(a, layers, p, Part::all);
      case Kind::backward_input: return backward(a, layers, p, Part::input);
      case Kind::backward_weight:
        for (std::int64_t l = layers.end; l-- > layers.begin;) {
          Visit& v = at(p.visits, l - layers.begin);
          issue(v, v.recording->backward, static_cast<std::size_t>(l), Part::weight);
        }
        passages_.erase({a.virtual_stage, a.micro_batch});
    }
  }

  void forward(const PipelineAction& a, Range layers, Passage& p) {
    take_batch(a);
    batch_ = at(out_.batches, a.micro_batch);
    losses_ = at(all_losses_, a.micro_batch);
    statistics_ = at(all_statistics_, a.micro_batch);
    Flow flow{.resid = p.incoming, .pending = {}};
    for (std::int64_t l = layers.begin; l < layers.end; ++l)
      p.visits.push_back(forward(static_cast<std::size_t>(l), flow));
    if (!last(a)) {
      const auto next = static_cast<std::size_t>(layers.end);
      const Recording& sum =
          recording_of(LayerKind::handover, {}, static_cast<bool>(flow.pending), {}, false, {});
      Visit v{.recording = &sum, .bound = {}};
      bind_carry(v, flow);
      issue(v, sum.forward, next);
      send(Stream::send_forward, resolve(v, sum.out.resid), 1);
    }
    if (!training_) passages_.erase({a.virtual_stage, a.micro_batch});
  }

  void backward(const PipelineAction& a, Range layers, Passage& p, Part part) {
    View d = p.incoming_gradient;
    for (std::int64_t l = layers.end; l-- > layers.begin;) {
      Visit& v = at(p.visits, l - layers.begin);
      // The head's backward ran in its forward: the scale of the loss is known then, so the logits
      // become their gradient in place, and nothing of the head is saved.
      if (at(layers_, l).kind == LayerKind::head) {
        d = gradient_out(v);
      } else {
        d = backward(static_cast<std::size_t>(l), v, d, part);
      }
    }
    if (!first(a) && carry_gradient_wanted(layers.begin)) send(Stream::send_backward, d, -1);
    if (part == Part::all) passages_.erase({a.virtual_stage, a.micro_batch});
  }

  /// The gradient buffer of a use of a unit in the current micro-batch, and how it is written.
  /// Gradients live within a step, also at ZeRO stage 0: before the first backward their bytes
  /// serve activations.
  View gradient_of(std::size_t unit, bool head_use, Write& write) {
    const bool own = in_.numerics.layout_mode || per_micro_batch(unit);
    const std::int64_t elements = sources(unit) * states_[unit].layout.padded;
    const auto key = std::tuple{unit, head_use, own ? micro_batch_ : 0};
    auto it = gradients_.find(key);
    write = micro_batch_ == 0 || own ? Write::overwrite : Write::add;
    if (it == gradients_.end()) {
      const BufferId id =
          add_buffer(plan_, in_.model.units[unit].name + " gradient", BufferPurpose::gradients,
                     elements * size_of(in_.numerics.accumulate));
      it = gradients_.emplace(key, id).first;
      out_.gradients.push_back({.buffer = id, .unit = unit, .head_use = head_use});
    }
    return buffer_view(it->second, in_.numerics.accumulate, elements);
  }

  /// In how many parts a gradient is made, one behind another. In layout mode what is made of the
  /// tokens of each of the ranks that divide experts is apart, as if these ranks had made it.
  std::int64_t sources(std::size_t unit) const {
    const bool apart = in_.numerics.layout_mode && shared_by(unit) == MeshGroup::replicas;
    return apart ? in_.layout.mesh.experts : 1;
  }

  /// What the host loads of a micro-batch, in memory that `make(type, elements)` gives.
  template <typename Make>
  LoadBatch batch_in(Make&& make) const {
    const kernels::PreferenceTerms compared = in_.compared(plan_.shape);
    const auto [b, t] = rows_;
    const std::int64_t targets = b * in_.model.config.targets_of(t),
                       tokens = plan_.shape.micro * plan_.shape.sequence;
    const bool cut = in_.layout.context.shares > 1,
               with_documents = in_.documents.separate || (in_.documents.positions && !cut);
    const auto where = [&](bool wanted, DType type, std::int64_t n) {
      return wanted ? make(type, n) : View{};
    };
    if (generates_) {
      const std::int64_t pages = kernels::pages_of(in_.cache->room);
      return {.tokens = make(DType::i32, b * t),
              .cached = make(DType::i32, b * kernels::kCachedColumns),
              .pages = make(DType::i32, b * pages).reshaped({b, pages}),
              .counted = where(t > 1, DType::i32, 2 * b * t)};
    }
    const auto policy = this->policy();
    const bool terms = policy && policy->terms, before = policy && policy->drawn_before,
               values = policy && policy->value;
    return {.tokens = make(DType::i32, b * t),
            .targets = make(DType::i32, targets),
            .samples = make(DType::i64, b),
            .documents = where(with_documents, DType::i32, 2 * tokens),
            .tallies = where(plan_.shape.tallies > 0, DType::i32, b),
            .reference = where(compared.relative(), DType::f64, b),
            .advantages = where(terms, DType::f32, targets),
            .weights = where(policy && policy->weighted, DType::f32, targets),
            .drawn_losses = where(terms && before, DType::f32, targets),
            .reference_losses = where(terms && policy->terms->kl > 0, DType::f32, targets),
            .returns = where(values, DType::f32, targets),
            .drawn_values = where(values && before, DType::f32, targets),
            .positions = where(cut, DType::i32, 2 * b * t)};
  }
  /// All of it in one row, which begins with byte `at` of the buffer.
  LoadBatch place_batch(BufferId id, std::int64_t at = 0) const {
    const std::int64_t first = at;
    LoadBatch batch = batch_in([&](DType type, std::int64_t n) {
      const View v(symbolic(id, at), type, {n});
      at += round_up(v.span_bytes(), kBufferAlignment);
      return v;
    });
    batch.row = View(symbolic(id, first), DType::u8, {at - first});
    return batch;
  }

  /// Each scheduled micro-batch has a row of its own. Where they stand for more, the host loads the
  /// rows of all into one buffer, out of which each is taken when its turn comes.
  void add_batches() {
    const std::int64_t all = plan_.shape.micro_batches;
    const std::int64_t bytes = place_batch(0).row.cols();
    const auto add_rows = [&](std::string name, std::int64_t rows) {
      return add_buffer(plan_, std::move(name), BufferPurpose::batch, rows * bytes);
    };
    for (std::int64_t k = 0; k < plan_.scheduled; ++k) {
      out_.batches.push_back(place_batch(add_rows(fmt::format("micro-batch {}", k), 1)));
      add_results(k);
    }
    if (plan_.scheduled == all) {
      out_.loaded = out_.batches;
      return;
    }
    const BufferId rows = add_rows("micro-batches", all);
    for (std::int64_t k = 0; k < all; ++k) out_.loaded.push_back(place_batch(rows, k * bytes));
    loaded_rows_ = buffer_view(rows, DType::u8, all * bytes).reshaped({all, bytes});
    next_row_ = buffer_view(
        add_buffer(plan_, "next micro-batch", BufferPurpose::batch, size_of(DType::i64)),
        DType::i64, 1);
    add(OpKind::kernel, kernels::Fill{.out = next_row_});
  }
  void add_results(std::int64_t k) {
    const auto make = [&](const char* name, std::int64_t n) {
      if (n == 0) return View{};
      const BufferId id = add_buffer(plan_, fmt::format("{} of micro-batch {}", name, k),
                                     BufferPurpose::activations, n * size_of(DType::f32));
      return buffer_view(id, DType::f32, n);
    };
    const PlanInputs::Statistics statistics = in_.statistics(plan_.shape);
    all_losses_.push_back(make("losses", generates_ ? 0 : in_.losses(plan_.shape)));
    all_statistics_.push_back(
        make("statistics", generates_ ? 0 : statistics.count * statistics.of));
  }
  /// Before a micro-batch's first op on this stage.
  void take_batch(const PipelineAction& a) {
    if (!loaded_rows_ || a.virtual_stage > 0) return;
    add(OpKind::kernel,
        kernels::TakeRow{
            .x = loaded_rows_, .next = next_row_, .out = at(out_.batches, a.micro_batch).row});
  }

  /// Where the step learns from tokens that the model drew, what.
  std::optional<PolicyInputs> policy() const { return training_ ? in_.policy : std::nullopt; }

  /// Whether every micro-batch has gradient buffers of its own for a unit, which are summed over
  /// ranks at once.
  bool per_micro_batch(std::size_t unit) const {
    const bool wanted = in_.sharding.reduce == ReduceWhen::micro &&
                        plan_.shape.compression == Compression::none;  // momentum travels once
    return wanted && plan_.group(shared_by(unit)).size > 1;
  }

  /// In what blocks differ.
  struct LayerForm {
    model::Reach reach = model::Reach::global;
    bool experts = false;
  };
  struct Writes {
    Write gradients = Write::overwrite, tokens = Write::overwrite, experts = Write::overwrite;
  };
  const Recording& recording_of(LayerKind kind, const std::vector<std::size_t>& units, bool pending,
                                Writes writes, bool carry_gradient, LayerForm form) {
    RecordKey key{.layer = kind,
                  .pending_in = pending,
                  .training = training_,
                  .write = writes.gradients,
                  .token_write = writes.tokens,
                  .expert_write = writes.experts,
                  .carry_gradient = carry_gradient,
                  .reach = form.reach,
                  .experts = form.experts,
                  .adapters = {}};
    for (const std::size_t u : units) {
      key.frozen.push_back(!trained(u));
      const model::UnitDesc& unit = in_.model.units[u];
      if (!unit.has_adapters()) continue;
      for (const model::ParamDesc& p : unit.params)
        key.adapters.push_back(p.name.substr(unit.layer.size()));
    }
    auto it = recordings_.find(key);
    if (it == recordings_.end()) {
      RecordInputs inputs{.config = in_.model.config,
                          .device = *in_.device,
                          .compute = in_.numerics.compute,
                          .accumulate = in_.numerics.accumulate,
                          .recompute = in_.recompute,
                          .activations = activations(),
                          .operands = in_.numerics.operands,
                          .order = in_.numerics.order,
                          .seed = in_.seed,
                          .micro = rows_.batch,
                          .sequence = rows_.sequence,
                          .documents = in_.documents,
                          .logit_rows = in_.logit_rows,
                          .inner_rows = in_.inner_rows,
                          .loss_terms = in_.loss_terms,
                          .preference = in_.compared(plan_.shape),
                          .policy = policy(),
                          .statistics = in_.statistics(plan_.shape),
                          .router_terms = in_.router_terms,
                          .confusion = static_cast<bool>(plan_.confusion),
                          .tensor = tensor_region(),
                          .experts = expert_region(units),
                          .context = context_region(),
                          .cache = generates_ ? in_.cache : std::nullopt,
                          .scores = plan_.shape.scores,
                          .adapted = plan_.shape.adapted,
                          .units = {},
                          .layouts = {}};
      for (std::size_t u : units) {
        inputs.units.push_back(&in_.model.units[u]);
        inputs.layouts.push_back(&states_[u].layout);
      }
      it = recordings_.emplace(key, record(key, inputs)).first;
    }
    return it->second;
  }
  /// Whether gelu is fused into the product before it. It is not where selective recomputation
  /// repeats it from what the product has written, nor in layout mode, which has the same bits with
  /// every recomputation policy.
  model::Activations activations() const {
    using enum model::Activations;
    return in_.numerics.layout_mode || in_.recompute == Recompute::selective ? separate
                                                                             : in_products;
  }
  model::TensorRegion tensor_region() const {
    model::TensorRegion tensor{
        .cut = tensor_cut(in_, plan_.place),
        .sequence = split_sequence(),
        .wire = !in_.numerics.layout_mode && in_.numerics.compute == DType::bf16 ? DType::bf16
                                                                                 : DType::f32,
        .group = plan_.group(MeshGroup::tensor),
        .run = {}};
    if (in_.numerics.layout_mode) tensor.position_groups = tensor.cut.chunks;
    if (!in_.numerics.layout_mode && tensor.sequence) tensor.position_groups = tensor.cut.ranks;
    return tensor;
  }

  /// The ranks that divide sequences.
  model::ContextRegion context_region() const {
    if (generates_) return {};
    return {.ranks = in_.layout.mesh.context,
            .rank = plan_.rank_in(MeshGroup::context),
            .kind = in_.layout.context.kind,
            .groups = in_.layout.context.groups,
            .chunks = {in_.layout.context.shares},
            .samples = plan_.shape.micro,
            .sequence = plan_.shape.sequence,
            .by_document = in_.documents.positions,
            .group = plan_.group(MeshGroup::context),
            .next_is_remote = next_is_remote(MeshGroup::context),
            .run = {}};
  }
  /// Whether the rank after this one in a group, behind the last the first, is on another node.
  bool next_is_remote(MeshGroup group) const {
    if (in_.layout.node_of.empty()) return false;
    const std::int64_t rank = in_.layout.mesh.rank_of(plan_.place);
    const RankGroup all = in_.layout.mesh.group_of(rank, group);
    const std::int64_t next = all.rank((all.index(rank) + 1) % all.count);
    return at(in_.layout.node_of, next) != at(in_.layout.node_of, rank);
  }

  /// The ranks that divide experts, as the layer of these units sees them.
  model::ExpertRegion expert_region(const std::vector<std::size_t>& units) const {
    const std::vector<comm::Hop> hops = expert_route(in_, plan_.place).hops;
    model::ExpertRegion region{.ranks = plan_.group(MeshGroup::experts).size,
                               .within = hops.front(),
                               .across = hops.size() > 1 ? hops.back() : comm::Hop{}};
    for (const std::size_t u : units)
      if (sources(u) > 1) region.gradient_step = states_[u].layout.padded;
    return region;
  }

  /// The block's number of a layer: blocks come behind the embedding. Nothing elsewhere.
  std::optional<std::int64_t> block_of(std::size_t layer) const {
    if (layers_[layer].kind != LayerKind::block) return {};
    return static_cast<std::int64_t>(layer) - 1;
  }
  LayerForm form_of(std::size_t layer) const {
    const auto block = block_of(layer);
    if (!block) return {};
    const model::ModelConfig& config = in_.model.config;
    return {.reach = config.reach_of(*block), .experts = config.experts.in(*block)};
  }
  /// Where a layer counts its experts' choices; absent if it has none.
  View choices_of(std::size_t layer) const {
    if (!form_of(layer).experts) return {};
    return plan_.choices.row_range(in_.model.config.experts_before(*block_of(layer)), 1);
  }

  Visit forward(std::size_t layer, Flow& flow) {
    const Layer& l = layers_[layer];
    const bool separate = tied_uses_separate(in_), is_head = l.kind == LayerKind::head;
    Writes writes;
    Visit v{.recording = nullptr, .bound = {}};
    for (std::size_t i = 0; i < l.units.size(); ++i) {
      const UnitState& state = states_[l.units[i]];
      v.bound[local_weights(i)] =
          out_.windows[l.units[i]] < 0
              ? state.parameters
              : buffer_view(out_.windows[l.units[i]], in_.type_of(in_.model.units[l.units[i]]),
                            state.layout.padded);
      if (training_ && state.trained) {
        const bool apart = shared_by(l.units[i]) == MeshGroup::replicas;
        v.bound[local_gradients(i)] =
            gradient_of(l.units[i], separate && is_head && is_tied(l.units[i]),
                        apart ? writes.experts : writes.gradients);
      }
    }
    writes.tokens = writes.gradients;
    if (in_.model.config.tied_embeddings && !separate)
      writes.tokens = Write::add;  // the head's part came first
    v.recording =
        &recording_of(l.kind, l.units, static_cast<bool>(flow.pending), writes,
                      carry_gradient_wanted(static_cast<std::int64_t>(layer)), form_of(layer));
    bind_carry(v, flow);
    bind(v, Local::choices, choices_of(layer));
    bind_generation(v, l);
    issue(v, v.recording->forward, layer);
    if (!is_head) {
      flow.resid = resolve(v, v.recording->out.resid);
      flow.pending = v.recording->out.pending ? resolve(v, v.recording->out.pending) : View{};
    } else if (!generates_) {
      finish_losses();
    }
    return v;
  }
  /// Every tensor rank has all of them.
  void finish_losses() {
    if (plan_.scores) {
      const std::int64_t n = losses_.elements();
      add(OpKind::kernel,
          kernels::Convert{.x = losses_,
                           .out = plan_.scores.row_range(micro_batch_, 1).reshaped({n})});
    }
    if (plan_.place.tensor == 0 && plan_.shape.scores != Scores::values) add_up_losses();
  }
  void add_up_losses() {
    add(OpKind::kernel,
        kernels::ExactSum{.x = losses_,
                          .accumulator = plan_.words.range(WordLayout::loss, kExactSumWords),
                          .of = kernels::ExactSum::Of::values});
    for (std::int64_t s = 0; plan_.statistics && s < plan_.statistics.rows(); ++s) {
      const std::int64_t each = statistics_.elements() / plan_.statistics.rows();
      add(OpKind::kernel, kernels::ExactSum{.x = statistics_.range(s * each, each),
                                            .accumulator = statistic_words(plan_, s),
                                            .of = kernels::ExactSum::Of::values});
    }
    if (plan_.shape.tallies == 0) return;
    const std::int64_t samples = rows_.batch;
    add(OpKind::kernel,
        kernels::ExactSums{.x = losses_.reshaped({samples, losses_.elements() / samples}),
                           .into = batch_.tallies,
                           .accumulators = tally_sums(plan_)});
  }

  /// Whether the embedding and the head use the unit, if matrices are tied.
  bool is_tied(std::size_t unit) const {
    return in_.model.units[unit].kind == model::UnitKind::vocabulary;
  }

  View backward(std::size_t layer, Visit& v, const View& d, Part part) {
    bind(v, Local::d, d);
    issue(v, v.recording->backward, layer, part, v.recording->replayed);
    return gradient_out(v);
  }
  View gradient_out(Visit& v) {
    return v.recording->d_out ? resolve(v, v.recording->d_out) : View{};
  }

  void bind_carry(Visit& v, const Flow& flow) {
    bind(v, Local::resid, flow.resid);
    bind(v, Local::pending, flow.pending);
    bind(v, Local::tokens, batch_.tokens);
    bind(v, Local::targets, batch_.targets);
    bind(v, Local::samples, batch_.samples);
    bind(v, Local::documents, batch_.documents);
    bind(v, Local::positions, batch_.positions);
    bind(v, Local::reference, batch_.reference);
    bind(v, Local::advantages, batch_.advantages);
    bind(v, Local::target_weights, batch_.weights);
    bind(v, Local::drawn_losses, batch_.drawn_losses);
    bind(v, Local::reference_losses, batch_.reference_losses);
    bind(v, Local::returns, batch_.returns);
    bind(v, Local::drawn_values, batch_.drawn_values);
    bind(v, Local::losses, losses_);
    bind(v, Local::statistics, statistics_);
    bind(v, Local::scalars, plan_.scalars);
    bind(v, Local::confusion, plan_.confusion);
  }
  void bind_generation(Visit& v, const Layer& layer) {
    if (!generates_) return;
    bind(v, Local::cached, batch_.cached);
    bind(v, Local::pages, batch_.pages);
    bind(v, Local::counted, batch_.counted);
    const std::int64_t rows = plan_.logits.extent(1);
    bind(v, Local::logits, plan_.logits.row_range(micro_batch_ * rows, rows));
    const auto& caches = states_[layer.units.front()].caches;
    for (std::size_t i = 0; i < caches.size(); ++i) {
      const BufferId k = local_cache(layer.units.size(), i);
      if (caches[i].k) v.bound[k] = caches[i].k;
      if (caches[i].v) v.bound[k + 1] = caches[i].v;
    }
  }
  static void bind(Visit& v, Local id, const View& view) {
    if (view) v.bound[static_cast<BufferId>(id)] = view;
  }

  /// Turns a view of the recording into one of plan buffers. Buffers that the recording makes are
  /// added to the plan when they are first met.
  View resolve(Visit& v, View view) {
    const BufferId id = buffer_of(view);
    auto it = v.bound.find(id);
    if (it == v.bound.end()) {
      TESSERA_CHECK(id >= v.recording->first_made, "local buffer {} is unbound", id);
      const auto index = static_cast<std::size_t>(id - v.recording->first_made);
      const LocalBuffer& made = v.recording->made[index];
      const BufferPurpose purpose =
          made.keep == model::Keep::transient ? BufferPurpose::scratch : BufferPurpose::activations;
      const BufferId buffer =
          add_buffer(plan_, fmt::format("visit {} tensor {}", visit_, index), purpose, made.bytes);
      it = v.bound.emplace(id, buffer_view(buffer, DType::u8, made.bytes)).first;
    }
    view.data = it->second.data + offset_of(view);
    return view;
  }

  /// The tile of the layer whose parameters the call reads, by its place among the layer's units;
  /// nothing if it reads none.
  std::optional<std::size_t> tile_of(const Call& call, const Layer& layer) const {
    std::optional<std::size_t> tile;
    each_view(call, [&](const View& view, kernels::Access) {
      for (std::size_t i = 0; i < layer.units.size(); ++i) {
        if (in_.model.units[layer.units[i]].tile.count > 1 && buffer_of(view) == local_weights(i))
          tile = i;
      }
    });
    return tile;
  }

  /// A visit ends where the calls have come to another tile, so that its parameters need to be
  /// there only then. The first `replayed` calls are recomputation.
  void issue(Visit& v, const std::vector<Recorded>& calls, std::size_t layer, Part part = Part::all,
             std::size_t replayed = 0) {
    const Layer& units_of = layers_[std::min(layer, layers_.size() - 1)];
    std::optional<std::size_t> tile;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (part != Part::all && v.recording->only_weights[i] != (part == Part::weight)) continue;
      Call call = calls[i].call;
      if (const auto reads = tile_of(call, units_of)) {
        if (tile && tile != reads) ++visit_;
        tile = reads;
      }
      visit_args(call, [&](auto& args) {
        if constexpr (requires { args.dropout; })
          args.dropout.site += layer * model::UnitContext::kDropoutSites;
      });
      each_view(call, [&](View& view, kernels::Access) { view = resolve(v, view); });
      const CallRow row = row_of(calls[i]);
      const std::size_t unit = units_of.units[0];
      plan_.ops.push_back({.kind = row.kind,
                           .stream = row.stream,
                           .group = row.group,
                           .unit = static_cast<std::int32_t>(unit),
                           .micro_batch = micro_batch_,
                           .visit = visit_,
                           .again = i < replayed,
                           .call = std::move(call),
                           .waits = {}});
    }
    ++visit_;
  }

  void add(OpKind kind, const KernelCall& call) {
    plan_.ops.push_back(
        {.kind = kind, .micro_batch = micro_batch_, .visit = visit_, .call = call, .waits = {}});
  }

  Plan& plan_;
  const PlanInputs& in_;
  const std::vector<UnitState>& states_;
  std::vector<Layer> layers_;
  std::vector<Range> parts_;
  MicroBatchRows rows_;
  bool training_, generates_;
  Scheduled out_;
  std::map<RecordKey, Recording> recordings_;
  std::map<std::pair<std::int64_t, std::int64_t>, Passage>
      passages_;  // by virtual stage and micro-batch
  std::map<std::tuple<std::size_t, bool, std::int32_t>, BufferId> gradients_;
  std::vector<View> all_losses_, all_statistics_;  // by micro-batch
  View loaded_rows_, next_row_;                    // where rows are taken in turn
  LoadBatch batch_;                                // of the micro-batch under way
  View losses_, statistics_;
  std::int32_t micro_batch_ = -1;
  std::int32_t visit_ = 0;
};

}  // namespace

Scheduled schedule(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states) {
  return Scheduler(plan, inputs, states).run();
}

}  // namespace tessera::plan
