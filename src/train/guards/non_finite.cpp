#include "train/guards/non_finite.hpp"

#include <cmath>

#include "zero/unit_layout.hpp"

namespace tessera::train {
namespace {

/// Elements from the view's first to the first that is not finite.
template <typename T>
std::optional<std::int64_t> first_non_finite(const View& view) {
  const View m = view.matrix();
  const T* row = m.as<T>();
  for (std::int64_t r = 0; r < m.extent(0); ++r, row += m.ld) {
    for (std::int64_t c = 0; c < m.extent(1); ++c) {
      if (!std::isfinite(static_cast<float>(row[c]))) return r * m.ld + c;
    }
  }
  return std::nullopt;
}

std::optional<std::int64_t> first_non_finite(const View& view) {
  switch (view.type) {
    case DType::f32: return first_non_finite<float>(view);
    case DType::bf16: return first_non_finite<bf16>(view);
    case DType::f16: return first_non_finite<f16>(view);
    default: return std::nullopt;
  }
}

/// Which tensor an element of a symbolic view belongs to.
std::string tensor_name(const plan::Plan& plan, const plan::PlanInputs& inputs, const plan::Op& op,
                        const View& symbolic, std::int64_t element) {
  const auto& buffer = plan.buffers[static_cast<std::size_t>(plan::buffer_of(symbolic))];
  if (buffer.purpose == plan::BufferPurpose::gradients && op.unit >= 0) {
    const auto& unit = inputs.model.units[static_cast<std::size_t>(op.unit)];
    const auto layout = plan::unit_layout(inputs, unit, plan.place);
    // A buffer of the unit's whole gradient, or of the shard that this rank sums.
    const std::int64_t held = buffer.bytes / size_of(symbolic.type);
    const std::int64_t first =
        held == layout.padded ? 0 : slice_of(inputs, unit, layout, plan.place).begin;
    const std::int64_t at = first + plan::offset_of(symbolic) / size_of(symbolic.type) + element;
    for (const auto& slice : zero::slices_in(unit, layout, {at, layout.padded})) {
      return "gradient of " + unit.params[slice.parameter].name;
    }
  }
  return buffer.name;
}

}  // namespace

Executor::Hooks NonFiniteFinder::hooks() {
  return {.before = [this](const auto& op) { examine(op, false); },
          .after = [this](const auto& op) { examine(op, true); }};
}

/// What an op of the calling thread has written; or, before ops that sum gradients over ranks, what
/// they are about to read: the last chance to see whose it was.
void NonFiniteFinder::examine(const BoundPlan::BoundOp& bound, bool written) {
  const plan::Op& op = *bound.op;
  const bool consumes_gradients =
      op.kind == plan::OpKind::reduce_gradients || op.kind == plan::OpKind::norm;
  if (found_ || (!written && !consumes_gradients)) return;
  std::vector<View> symbolic;
  plan::Call names = op.call;
  plan::each_view(names, [&](View& v, kernels::Access) { symbolic.push_back(v); });
  std::size_t i = 0;
  plan::Call real = bound.call;
  plan::each_view(real, [&](View& v, kernels::Access access) {
    const View& name = symbolic[i++];
    const bool wanted =
        written ? access != kernels::Access::read : access != kernels::Access::write;
    if (found_ || !v || !wanted) return;
    View seen = v;
    seen.data = const_cast<std::byte*>(tier_.host_bytes(v.data, v.span_bytes(), copy_).data());
    const auto at = first_non_finite(seen);
    if (!at) return;
    found_ = {.op = &op - plan_.ops.data(), .tensor = tensor_name(plan_, inputs_, op, name, *at)};
  });
}

}  // namespace tessera::train
