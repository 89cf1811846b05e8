// The order of forward and backward over micro-batches and layers, and the binding of recordings to
// buffers.
#include <map>

#include "core/exact_sum.hpp"
#include "plan/make_plan.hpp"

namespace tessera::plan {
namespace {

using kernels::KernelCall;
using kernels::Write;

/// One place in the model where units are used together: the embedding, a block, or the head.
struct Layer {
  LayerKind kind = LayerKind::block;
  std::vector<std::size_t> units;  // as RecordInputs::units
};

std::vector<Layer> model_layers(const std::vector<model::UnitDesc>& units) {
  using model::UnitKind;
  const auto find = [&](UnitKind kind) {
    std::vector<std::size_t> found;
    for (std::size_t u = 0; u < units.size(); ++u) {
      if (units[u].kind == kind) found.push_back(u);
    }
    return found;
  };
  Layer embed{LayerKind::embed, find(UnitKind::vocabulary)};
  for (std::size_t u : find(UnitKind::positions)) embed.units.push_back(u);
  std::vector<Layer> layers{embed};
  for (std::size_t u : find(UnitKind::block)) layers.push_back({LayerKind::block, {u}});
  Layer head{LayerKind::head, find(UnitKind::final_norm)};
  const auto untied = find(UnitKind::head);
  head.units.push_back(untied.empty() ? embed.units[0] : untied[0]);
  layers.push_back(head);
  return layers;
}

/// Views of a carry in plan buffers.
struct Flow {
  View resid, pending;
};

class Scheduler {
 public:
  Scheduler(Plan& plan, const PlanInputs& in, const std::vector<UnitState>& states)
      : plan_(plan),
        in_(in),
        states_(states),
        layers_(model_layers(in.units)),
        training_(plan.shape.purpose != PlanPurpose::evaluate) {}

  Scheduled run() {
    for (const auto& state : states_) {
      const bool window = !state.parameters;
      const auto unit = static_cast<std::size_t>(&state - states_.data());
      out_.windows.push_back(window ? add_buffer(plan_, in_.units[unit].name + " gathered",
                                                 Purpose::gather_window,
                                                 state.layout.padded * size_of(in_.compute))
                                    : -1);
    }
    const View sums = plan_.words.range(0, WordLayout::flags);
    add(OpKind::kernel, kernels::Fill{.out = sums});
    for (std::int64_t k = 0; k < plan_.shape.micro_batches; ++k) {
      micro_batch(k);  // all alike; and room for what passes insert
      if (k == 0) plan_.ops.reserve(plan_.ops.size() * (plan_.shape.micro_batches + 1));
    }
    return std::move(out_);
  }

 private:
  struct Visit {
    const Recording* recording = nullptr;
    std::map<BufferId, View> bound;  // local buffer -> start of its plan buffer
  };

  void micro_batch(std::int64_t k) {
    micro_batch_ = static_cast<std::int32_t>(k);
    const bool fresh_gradients = training_ && (k == 0 || per_micro_batch());
    for (std::size_t u = 0; training_ && u < states_.size(); ++u) {
      out_.gradients.push_back(
          fresh_gradients ? add_buffer(plan_, in_.units[u].name + " gradient", Purpose::gradients,
                                       states_[u].layout.padded * size_of(in_.accumulate))
                          : out_.gradients[out_.gradients.size() - states_.size()]);
    }
    const Write write = fresh_gradients ? Write::overwrite : Write::add;
    load(k);
    std::vector<Visit> visits(layers_.size());
    Flow flow;
    for (std::size_t l = 0; l < layers_.size(); ++l) visits[l] = forward(l, write, flow);
    if (!training_) return;
    View d = resolve(visits.back(), visits.back().recording->d_out);
    for (std::size_t l = layers_.size() - 1; l-- > 0;) d = backward(l, visits[l], d);
  }

  void load(std::int64_t k) {
    const std::int64_t b = plan_.shape.micro, t = plan_.shape.sequence;
    const auto make = [&](const char* name, DType type, std::int64_t n) {
      return buffer_view(add_buffer(plan_, fmt::format("{} of micro-batch {}", name, k),
                                    Purpose::batch, n * size_of(type)),
                         type, n);
    };
    batch_ = {.tokens = make("tokens", DType::i32, b * t),
              .targets = make("targets", DType::i32, b * t),
              .samples = make("samples", DType::i64, b)};
    losses_ = buffer_view(add_buffer(plan_, fmt::format("losses of micro-batch {}", k),
                                     Purpose::activations, b * t * 4),
                          DType::f32, b * t);
    plan_.ops.push_back({.kind = OpKind::load_batch,
                         .micro_batch = micro_batch_,
                         .visit = visit_,
                         .call = batch_,
                         .waits = {}});
  }

  /// Whether each micro-batch has a gradient of its own that is reduced at once.
  bool per_micro_batch() const {
    return in_.reduce == ReduceWhen::micro && in_.data_group.size > 1;
  }

  const Recording& recording_of(std::size_t layer, bool pending, Write write) {
    const Layer& l = layers_[layer];
    RecordKey key{.layer = l.kind,
                  .pending_in = pending,
                  .training = training_,
                  .write = write,
                  .token_write = write};
    if (in_.config.tied_embeddings) key.token_write = Write::add;  // the head's part came first
    auto it = recordings_.find(key);
    if (it == recordings_.end()) {
      RecordInputs inputs{.config = in_.config,
                          .device = *in_.device,
                          .compute = in_.compute,
                          .accumulate = in_.accumulate,
                          .recompute = in_.recompute,
                          .seed = in_.seed,
                          .micro = plan_.shape.micro,
                          .sequence = plan_.shape.sequence,
                          .units = {},
                          .layouts = {}};
      for (std::size_t u : l.units) {
        inputs.units.push_back(&in_.units[u]);
        inputs.layouts.push_back(&states_[u].layout);
      }
      it = recordings_.emplace(key, record(key, inputs)).first;
    }
    return it->second;
  }

  Visit forward(std::size_t layer, Write write, Flow& flow) {
    const bool has_pending = static_cast<bool>(flow.pending);
    Visit v{.recording = &recording_of(layer, has_pending, write), .bound = {}};
    const auto& units = layers_[layer].units;
    for (std::size_t i = 0; i < units.size(); ++i) {
      const UnitState& state = states_[units[i]];
      const auto n = static_cast<BufferId>(i);
      v.bound[static_cast<BufferId>(Local::weights0) + n] =
          state.parameters ? state.parameters
                           : buffer_view(out_.windows[units[i]], in_.compute, state.layout.padded);
      if (training_) {
        const BufferId gradient = out_.gradients[out_.gradients.size() - states_.size() + units[i]];
        v.bound[static_cast<BufferId>(Local::grads0) + n] =
            buffer_view(gradient, in_.accumulate, state.layout.padded);
      }
    }
    bind(v, Local::resid, flow.resid);
    bind(v, Local::pending, flow.pending);
    bind(v, Local::tokens, batch_.tokens);
    bind(v, Local::targets, batch_.targets);
    bind(v, Local::samples, batch_.samples);
    bind(v, Local::losses, losses_);
    bind(v, Local::scalars, plan_.scalars);
    issue(v, v.recording->forward, layer);
    if (layers_[layer].kind == LayerKind::head) {
      add(OpKind::kernel,
          kernels::ExactSum{.x = losses_,
                            .accumulator = plan_.words.range(WordLayout::loss, kExactSumWords),
                            .of = kernels::ExactSum::Of::values});
    } else {
      flow.resid = resolve(v, v.recording->out.resid);
      flow.pending = v.recording->out.pending ? resolve(v, v.recording->out.pending) : View{};
    }
    return v;
  }

  View backward(std::size_t layer, Visit& v, const View& d) {
    bind(v, Local::d, d);
    issue(v, v.recording->backward, layer);
    return v.recording->d_out ? resolve(v, v.recording->d_out) : View{};
  }

  static void bind(Visit& v, Local id, const View& view) {
    if (view) v.bound[static_cast<BufferId>(id)] = view;
  }

  /// A recording's view as one into plan buffers; buffers that the recording made get theirs at
  /// first sight.
  View resolve(Visit& v, View view) {
    const BufferId id = buffer_of(view);
    auto it = v.bound.find(id);
    if (it == v.bound.end()) {
      const auto index = static_cast<std::size_t>(id - static_cast<BufferId>(Local::first_made));
      TESSERA_CHECK(id >= static_cast<BufferId>(Local::first_made), "local buffer {} is unbound",
                    id);
      const LocalBuffer& made = v.recording->made[index];
      const Purpose purpose =
          made.keep == model::Keep::transient ? Purpose::scratch : Purpose::activations;
      const BufferId buffer =
          add_buffer(plan_, fmt::format("visit {} tensor {}", visit_, index), purpose, made.bytes);
      it = v.bound.emplace(id, buffer_view(buffer, DType::u8, made.bytes)).first;
    }
    view.data = it->second.data + offset_of(view);
    return view;
  }

  void issue(Visit& v, const std::vector<KernelCall>& calls, std::size_t layer) {
    for (KernelCall call : calls) {
      std::visit(
          [&](auto& args) {
            if constexpr (requires { args.dropout; })
              args.dropout.site += layer * model::UnitContext::kDropoutSites;
          },
          call);
      kernels::visit_views(call, [&](View& view, kernels::Access) { view = resolve(v, view); });
      plan_.ops.push_back({.kind = OpKind::kernel,
                           .unit = static_cast<std::int32_t>(layers_[layer].units[0]),
                           .micro_batch = micro_batch_,
                           .visit = visit_,
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
  bool training_;
  Scheduled out_;
  std::map<RecordKey, Recording> recordings_;
  LoadBatch batch_;
  View losses_;
  std::int32_t micro_batch_ = 0;
  std::int32_t visit_ = 0;
};

}  // namespace

Scheduled schedule(Plan& plan, const PlanInputs& inputs, const std::vector<UnitState>& states) {
  return Scheduler(plan, inputs, states).run();
}

}  // namespace tessera::plan
