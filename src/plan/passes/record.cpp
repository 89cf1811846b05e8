#include "plan/passes/record.hpp"

#include <set>

namespace tessera::plan {
namespace {

/// Appends calls to a list; asks the real device for scratch sizes only.
class RecordingDevice : public kernels::Device {
 public:
  explicit RecordingDevice(const kernels::Device& target) : target_(target) {}
  std::int64_t scratch_bytes(const kernels::KernelCall& call) const override {
    return target_.scratch_bytes(call);
  }
  void run(const kernels::KernelCall& call) override { list->push_back(call); }

  std::vector<Call>* list = nullptr;

 private:
  const kernels::Device& target_;
};

View local(Local id, DType type, std::initializer_list<std::int64_t> extents) {
  return View(symbolic(static_cast<BufferId>(id)), type, extents);
}

model::ParameterViews unit_views(const RecordInputs& in, std::size_t index, Local id, DType type) {
  const View flat(symbolic(static_cast<BufferId>(id)), type, {in.layouts[index]->padded});
  return zero::parameter_views(*in.units[index], *in.layouts[index], flat);
}

model::HeadWeights head_weights(const RecordInputs& in, Local norm_id, Local matrix_id,
                                DType type) {
  const auto norm = unit_views(in, 0, norm_id, type);
  return {.norm_w = norm[0][0],
          .norm_b = norm.size() > 1 ? norm[1][0] : View{},
          .matrix = unit_views(in, 1, matrix_id, type)[0]};
}

/// Marks the products that make gradients of weights, and operations that use nothing but their
/// results.
std::vector<bool> only_weights(const std::vector<Call>& backward) {
  std::vector<bool> marks;
  std::set<BufferId> results;
  for (const Call& call : backward) {
    const auto* kernel = std::get_if<kernels::KernelCall>(&call);
    bool mark = kernel != nullptr && std::holds_alternative<kernels::LinearBackwardWeight>(*kernel);
    each_view(call, [&](const View& v, kernels::Access access) {
      mark = mark || (access != kernels::Access::write && results.contains(buffer_of(v)));
    });
    each_view(call, [&](const View& v, kernels::Access access) {
      // The flat gradient buffers do not count: all operations write into them.
      if (mark && access != kernels::Access::read &&
          buffer_of(v) >= static_cast<BufferId>(Local::first_made))
        results.insert(buffer_of(v));
    });
    marks.push_back(mark);
  }
  return marks;
}

}  // namespace

Recording record(const RecordKey& key, const RecordInputs& in) {
  Recording recording;
  RecordingDevice device(in.device);
  device.list = &recording.forward;
  const auto allocate = [&](model::Keep keep, std::int64_t bytes) {
    recording.made.push_back({keep, bytes});
    return symbolic(static_cast<BufferId>(Local::first_made) +
                    static_cast<BufferId>(recording.made.size()) - 1);
  };
  const std::int64_t b = in.micro, t = in.sequence, c = in.config.hidden;
  model::TensorRegion tensor = in.tensor;
  tensor.run = [&](const comm::CollectiveCall& call) { device.list->push_back(call); };
  model::UnitContext u(device, allocate, in.compute,
                       {.batch = b,
                        .sequence = t,
                        .tokens = local(Local::tokens, DType::i32, {b, t}),
                        .targets = local(Local::targets, DType::i32, {b * t}),
                        .samples = local(Local::samples, DType::i64, {b})},
                       tensor);
  u.activations = in.activations;
  u.operands = in.operands;
  u.order = in.order;
  u.training = key.training;
  u.seed = in.seed;
  const std::int64_t own = u.positions().count();
  model::Carry carry{.resid = local(Local::resid, in.compute, {b, own, c}), .pending = {}};
  if (key.pending_in) carry.pending = local(Local::pending, in.compute, {b, own, c});
  const View d = local(Local::d, in.compute, {b, own, c});

  switch (key.layer) {
    case LayerKind::embed: {
      const bool positions = in.units.size() > 1;
      const auto tokens = unit_views(in, 0, Local::weights0, in.compute)[0];
      const View table = positions ? unit_views(in, 1, Local::weights1, in.compute)[0][0] : View{};
      model::embed_forward(u, in.config, tokens, table, 0, recording.out);
      if (!key.training) break;
      device.list = &recording.backward;
      model::embed_backward(
          u, in.config, d, unit_views(in, 0, Local::grads0, in.accumulate)[0],
          positions ? unit_views(in, 1, Local::grads1, in.accumulate)[0][0] : View{},
          key.token_write, key.write);
      break;
    }
    case LayerKind::block: {
      const auto weights =
          model::block_weights(*in.units[0], unit_views(in, 0, Local::weights0, in.compute));
      const auto grads =
          model::block_weights(*in.units[0], unit_views(in, 0, Local::grads0, in.accumulate));
      model::BlockSaved saved;
      model::block_forward(u, in.config, weights, carry, saved, recording.out);
      if (!key.training) break;
      device.list = &recording.backward;
      recording.d_out = model::block_backward(u, in.config, weights, saved, d, grads, key.write);
      recompute(recording, in.recompute);
      break;
    }
    case LayerKind::handover:
      recording.out = {.resid = model::carry_sum(u, in.config, carry), .pending = {}};
      break;
    case LayerKind::head: {
      const auto weights = head_weights(in, Local::weights0, Local::weights1, in.compute);
      const View losses = local(Local::losses, DType::f32, {b * t});
      if (key.training) {
        const View scale = local(Local::scalars, DType::f32, {std::int64_t{1}});
        recording.d_out = model::head_loss_backward(
            u, in.config, weights, carry, losses, scale,
            head_weights(in, Local::grads0, Local::grads1, in.accumulate), key.write);
      } else {
        model::head_loss(u, in.config, weights, carry, losses);
      }
      break;
    }
  }
  recording.only_weights = only_weights(recording.backward);
  return recording;
}

}  // namespace tessera::plan
