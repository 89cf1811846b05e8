#include "plan/passes/record.hpp"

#include <set>

#include "model/adapters.hpp"
#include "model/cached.hpp"

namespace tessera::plan {
namespace {

/// Appends calls to a list; asks the real device for scratch sizes only.
class RecordingDevice : public kernels::Device {
 public:
  explicit RecordingDevice(const kernels::Device& target) : target_(target) {}
  std::int64_t scratch_bytes(const kernels::KernelCall& call) const override {
    return target_.scratch_bytes(call);
  }
  void run(const kernels::KernelCall& call) override { list->push_back({.call = call}); }

  std::vector<Recorded>* list = nullptr;

 private:
  const kernels::Device& target_;
};

View local(Local id, DType type, std::initializer_list<std::int64_t> extents) {
  return View(symbolic(static_cast<BufferId>(id)), type, extents);
}

/// Marks the products that make gradients of weights, and operations that use nothing but their
/// results.
std::vector<bool> only_weights(const Recording& recording) {
  std::vector<bool> marks;
  std::set<BufferId> results;
  for (const auto& [call, group] : recording.backward) {
    const auto* kernel = std::get_if<kernels::KernelCall>(&call);
    bool mark =
        kernel != nullptr && (std::holds_alternative<kernels::LinearBackwardWeight>(*kernel) ||
                              std::holds_alternative<kernels::ExpertLinearBackwardWeight>(*kernel));
    each_view(call, [&](const View& v, kernels::Access access) {
      mark = mark || (access != kernels::Access::write && results.contains(buffer_of(v)));
    });
    each_view(call, [&](const View& v, kernels::Access access) {
      // The flat gradient buffers do not count: all operations write into them.
      if (mark && access != kernels::Access::read && buffer_of(v) >= recording.first_made)
        results.insert(buffer_of(v));
    });
    marks.push_back(mark);
  }
  return marks;
}

/// One recording in the making: a layer's unit functions, run against a device that writes their
/// calls down, over local buffers.
class Recorder {
 public:
  Recorder(const RecordKey& key, const RecordInputs& in);
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  Recording run();

 private:
  void embed();
  void block();
  void handover();
  void head();
  /// What runs from now on is backward.
  void turn() { device_.list = &recording_.backward; }

  std::byte* allocate(model::Keep keep, std::int64_t bytes);
  model::MicroBatch micro_batch() const;
  model::TensorRegion tensor_region();
  /// Writes collectives of a group down.
  std::function<void(const comm::CollectiveCall&)> among(MeshGroup group) {
    return [this, group](const comm::CollectiveCall& call) {
      device_.list->push_back({.call = call, .group = group});
    };
  }
  /// Which flat buffer of each unit, and its type.
  struct Flat {
    BufferId (*of)(std::size_t unit);
    std::function<DType(const model::UnitDesc&)> type;
  };
  Flat weights() const {
    return {local_weights,
            [this](const model::UnitDesc& unit) { return unit.traits.type.value_or(in_.compute); }};
  }
  Flat gradients() const {
    return {local_gradients, [this](const model::UnitDesc&) { return in_.accumulate; }};
  }
  /// Of the layer's units.
  std::vector<model::UnitViews> parameters(const Flat& flat) const;
  /// Of a block, by own chunk.
  std::vector<model::KvCache> caches() const;

  const RecordKey& key_;
  const RecordInputs& in_;
  Recording recording_;
  RecordingDevice device_;
  model::UnitContext u_;
  model::Carry carry_;  // in
  View d_;              // gradient of the carry on the way out
};

Recorder::Recorder(const RecordKey& key, const RecordInputs& in)
    : key_(key),
      in_(in),
      device_(in.device),
      u_(
          device_, [this](model::Keep keep, std::int64_t bytes) { return allocate(keep, bytes); },
          in.compute, micro_batch(), tensor_region()) {
  device_.list = &recording_.forward;
  recording_.first_made =
      local_cache(in.units.size(), static_cast<std::size_t>(in.tensor.cut.own()));
  u_.reach = key.reach;
  u_.activations = in.activations;
  u_.operands = in.operands;
  u_.order = in.order;
  u_.logit_rows = in.logit_rows;
  u_.inner_rows = in.inner_rows;
  u_.loss_terms = in.loss_terms;
  u_.router_terms = in.router_terms;
  u_.preference = in.preference;
  if (in.policy) u_.policy = in.policy->terms, u_.value = in.policy->value;
  if (const auto [count, of] = in.statistics; count > 0)
    u_.statistics = local(Local::statistics, DType::f32, {count, of});
  if (key.training) u_.scale = local(Local::scalars, DType::f32, {std::int64_t{1}});
  if (key.experts && !in.cache && in.tensor.cut.rank == 0)  // every tensor rank chooses alike
    u_.choices = local(Local::choices, DType::i64, {in.config.experts.count + 1});
  u_.training = key.training;
  u_.experts = in.experts;
  if (in.experts.ranks > 1) u_.experts.write = key.expert_write;
  u_.experts.run = among(MeshGroup::experts);
  u_.context = in.context;
  u_.context.run = among(MeshGroup::context);
  u_.seed = in.seed;
  const std::int64_t b = in.micro, own = u_.positions().count(), c = in.config.hidden;
  carry_.resid = local(Local::resid, in.compute, {b, own, c});
  if (key.pending_in) carry_.pending = local(Local::pending, in.compute, {b, own, c});
  d_ = local(Local::d, in.compute, {b, own, c});
}

std::byte* Recorder::allocate(model::Keep keep, std::int64_t bytes) {
  return symbolic(recording_.make({keep, bytes}));
}

model::MicroBatch Recorder::micro_batch() const {
  const std::int64_t b = in_.micro, t = in_.sequence, classes = in_.config.head.labels, two = 2;
  const model::ContextRegion& context = in_.context;
  const View documents =
      context.cut() ? local(Local::documents, DType::i32, {context.samples, context.sequence, two})
                    : local(Local::documents, DType::i32, {b, t, two});
  const View positions =
      context.cut() ? local(Local::positions, DType::i32, {b, t, two}) : documents;
  const auto of_drawn = [&](bool wanted, Local id) {
    return wanted ? local(id, DType::f32, {b * t}) : View{};
  };
  if (in_.cache) {
    return {.batch = b,
            .sequence = t,
            .tokens = local(Local::tokens, DType::i32, {b, t}),
            .cached = local(Local::cached, DType::i32, {b, kernels::kCachedColumns}),
            .pages = local(Local::pages, DType::i32, {b, kernels::pages_of(in_.cache->room)}),
            .counted = t > 1 ? local(Local::counted, DType::i32, {b, t, two}) : View{}};
  }
  return {
      .batch = b,
      .sequence = t,
      .tokens = local(Local::tokens, DType::i32, {b, t}),
      .targets = local(Local::targets, DType::i32, {b * in_.config.targets_of(t)}),
      .samples = local(Local::samples, DType::i64, {b}),
      .documents = in_.documents.separate ? documents : View{},
      .positions = in_.documents.positions || context.cut() ? positions : View{},
      .reference = in_.preference.relative() ? local(Local::reference, DType::f64, {b}) : View{},
      .advantages = of_drawn(in_.policy && in_.policy->terms, Local::advantages),
      .weights = of_drawn(in_.policy && in_.policy->weighted, Local::target_weights),
      .drawn_losses = of_drawn(in_.policy && in_.policy->terms && in_.policy->drawn_before,
                               Local::drawn_losses),
      .reference_losses = of_drawn(in_.policy && in_.policy->terms && in_.policy->terms->kl > 0,
                                   Local::reference_losses),
      .returns = of_drawn(in_.policy && in_.policy->value, Local::returns),
      .drawn_values = of_drawn(in_.policy && in_.policy->value && in_.policy->drawn_before,
                               Local::drawn_values),
      .confusion =
          in_.confusion ? local(Local::confusion, DType::i64, {classes, classes}) : View{}};
}

model::TensorRegion Recorder::tensor_region() {
  model::TensorRegion region = in_.tensor;
  region.run = among(MeshGroup::tensor);
  return region;
}

std::vector<model::UnitViews> Recorder::parameters(const Flat& flat) const {
  std::vector<model::UnitViews> views;
  for (std::size_t i = 0; i < in_.units.size(); ++i) {
    const View all(symbolic(flat.of(i)), flat.type(*in_.units[i]), {in_.layouts[i]->padded});
    views.push_back({in_.units[i], zero::parameter_views(*in_.units[i], *in_.layouts[i], all)});
  }
  return views;
}

std::vector<model::KvCache> Recorder::caches() const {
  std::vector<model::KvCache> all;
  for (std::int64_t i = 0; i < in_.tensor.cut.own(); ++i) {
    const auto [k, v] = model::cached_columns(in_.config, in_.tensor.cut, i, in_.cache->latents);
    const BufferId first = local_cache(in_.units.size(), static_cast<std::size_t>(i));
    const auto view = [&](BufferId id, std::int64_t columns) {
      if (columns == 0) return View{};
      return View(symbolic(id), in_.compute, {in_.cache->pages, kernels::kPageTokens, columns});
    };
    all.push_back({.k = view(first, k), .v = view(first + 1, v)});
  }
  return all;
}

void Recorder::embed() {
  const auto weights = model::embed_weights(parameters(this->weights()));
  model::EmbedSaved saved;
  model::embed_forward(u_, in_.config, weights, saved, recording_.out);
  if (!key_.training) return;
  turn();
  model::embed_backward(u_, in_.config, weights, saved, d_,
                        model::embed_gradients(parameters(gradients())), key_.token_write,
                        key_.write);
}

void Recorder::block() {
  const auto units = parameters(this->weights()), unit_gradients = parameters(gradients());
  const auto weights = model::block_weights(units), grads = model::block_weights(unit_gradients);
  model::Adapters adapters(u_, in_.config.adapter, units, unit_gradients);
  u_.adapters = in_.adapted ? &adapters : nullptr;
  if (in_.cache) u_.caches = caches();
  model::BlockSaved saved;
  model::block_forward(u_, in_.config, weights, carry_, saved, recording_.out);
  if (key_.training) {
    turn();
    recording_.d_out = model::block_backward(u_, in_.config, weights, saved, d_, grads, key_.write);
  }
  u_.adapters = nullptr;
}

void Recorder::handover() {
  recording_.out = {.resid = model::carry_sum(u_, in_.config, carry_), .pending = {}};
}

/// The loss's backward runs in the head's forward.
void Recorder::head() {
  const auto weights = model::head_weights(parameters(this->weights()));
  const model::MicroBatch& batch = u_.micro_batch();
  if (in_.cache) {
    const std::int64_t chunks = in_.tensor.cut.chunks,
                       columns = ceil_div(in_.config.padded_outputs(), chunks);
    return model::head_next_logits(
        u_, in_.config, weights, carry_,
        local(Local::logits, DType::f32, {chunks, batch.batch, columns}));
  }
  const View losses =
      local(Local::losses, DType::f32, {in_.preference ? batch.batch : batch.targets.elements()});
  if (in_.scores == Scores::outputs)
    return model::head_scores(u_, in_.config, weights, carry_, losses);
  if (in_.scores == Scores::values)
    return model::head_values(u_, in_.config, weights, carry_, losses);
  if (!key_.training) return model::head_loss(u_, in_.config, weights, carry_, losses);
  recording_.d_out =
      model::head_loss_backward(u_, in_.config, weights, carry_, losses,
                                model::head_weights(parameters(gradients())), key_.write);
}

Recording Recorder::run() {
  switch (key_.layer) {
    case LayerKind::embed: embed(); break;
    case LayerKind::block: block(); break;
    case LayerKind::handover: handover(); break;
    case LayerKind::head: head(); break;
  }
  drop_unwanted(recording_, key_);
  if (key_.layer == LayerKind::block && key_.training) recompute(recording_, in_.recompute);
  recording_.only_weights = only_weights(recording_);
  return std::move(recording_);
}

}  // namespace

Recording record(const RecordKey& key, const RecordInputs& in) { return Recorder(key, in).run(); }

}  // namespace tessera::plan
