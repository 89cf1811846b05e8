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

bool may_be_non_finite(DType type) {
  return type == DType::f32 || type == DType::bf16 || type == DType::f16;
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
    // A buffer of the unit's whole gradient, once or for each source of tokens, or of the shard
    // that this rank sums.
    const std::int64_t bytes = buffer.home_bytes > 0 ? buffer.home_bytes : buffer.bytes,
                       held = bytes / size_of(symbolic.type);
    const std::int64_t first =
        held >= layout.padded ? 0 : slice_of(inputs, unit, layout, plan.place).begin;
    const std::int64_t offset = buffer.home_byte + plan::offset_of(symbolic),
                       at = (first + offset / size_of(symbolic.type) + element) % layout.padded;
    for (const auto& slice : zero::slices_in(unit, layout, {at, layout.padded})) {
      return "gradient of " + unit.params[slice.parameter].name;
    }
  }
  return buffer.name;
}

/// Before a gradient is summed over ranks: this rank's part, which is the last chance to see whose
/// it was.
std::vector<View> about_to_be_summed(const plan::Op& op, const plan::Call& call) {
  // Momentum joins it first, on another stream.
  if (const kernels::Blend* blend = plan::joins_momentum(op, call)) return {blend->out};
  if (op.kind != plan::OpKind::reduce_gradients) return {};
  if (const auto* collective = std::get_if<comm::CollectiveCall>(&call)) {
    if (const auto* reduce = std::get_if<comm::ReduceScatter>(collective)) return {reduce->full};
  } else if (const auto* kernel = std::get_if<kernels::KernelCall>(&call)) {
    const auto* quantize = std::get_if<kernels::Quantize>(kernel);
    const bool signs =
        quantize != nullptr && quantize->format.type == kernels::BlockType::sign;  // seen before
    if (quantize != nullptr && !signs) return {quantize->x};
  }
  return {};
}

/// After an op of the compute stream: what it has written or, of gradients that ranks have summed,
/// what it has read.
std::vector<View> made_or_met(const plan::Op& op, const plan::Call& call) {
  const auto* kernel = std::get_if<kernels::KernelCall>(&call);
  const auto* squares = kernel != nullptr ? std::get_if<kernels::ExactSum>(kernel) : nullptr;
  if (op.kind == plan::OpKind::norm && squares != nullptr) return {squares->x};
  std::vector<View> written;
  plan::each_view(call, [&](const View& v, kernels::Access access) {
    if (access != kernels::Access::read) written.push_back(v);
  });
  return written;
}

/// Where rows of the experts that an op multiplies begin; nothing of others.
std::optional<View> begins_of(const plan::Call& call) {
  const auto* kernel = std::get_if<kernels::KernelCall>(&call);
  if (kernel == nullptr) return std::nullopt;
  return std::visit(
      [](const auto& args) -> std::optional<View> {
        using Args = std::decay_t<decltype(args)>;
        if constexpr (std::is_same_v<Args, kernels::ExpertLinear> ||
                      std::is_same_v<Args, kernels::ExpertLinearBackwardInput>)
          return args.begins;
        return std::nullopt;
      },
      *kernel);
}

/// Whether an op reads of rows of copies only those that there are.
bool knows_rows(const plan::Call& call) {
  const auto* kernel = std::get_if<kernels::KernelCall>(&call);
  if (kernel == nullptr) return false;
  return std::visit(
      [](const auto& args) {
        return requires { args.begins; }
        || requires { args.place; }
        || requires { args.source; };
      },
      *kernel);
}

}  // namespace

NonFiniteFinder::NonFiniteFinder(const plan::Plan& plan, const plan::PlanInputs& inputs,
                                 memory::Tier& tier)
    : plan_(plan), inputs_(inputs), tier_(tier), partly_(plan.buffers.size()) {
  const auto buffer = [](const View& v) { return static_cast<std::size_t>(plan::buffer_of(v)); };
  for (const plan::Op& op : plan.ops) {
    const auto* collective = std::get_if<comm::CollectiveCall>(&op.call);
    const auto* rows =
        collective == nullptr ? nullptr : std::get_if<comm::ExchangeRows>(collective);
    if (rows != nullptr) partly_[buffer(rows->receive)] = true;
    if (!std::holds_alternative<kernels::KernelCall>(op.call)) continue;
    bool partly = begins_of(op.call).has_value();
    plan::each_view(op.call, [&](const View& v, kernels::Access access) {
      if (v && access == kernels::Access::read && !knows_rows(op.call))
        partly = partly || partly_[buffer(v)];
    });
    plan::each_view(op.call, [&](const View& v, kernels::Access access) {
      if (v && partly && access != kernels::Access::read) partly_[buffer(v)] = true;
    });
  }
}

Executor::Hooks NonFiniteFinder::hooks() {
  return {
      .before = [this](const auto& op,
                       const plan::OpRun& run) { examine(op, run, about_to_be_summed); },
      .after = [this](const auto& op, const plan::OpRun& run) { examine(op, run, made_or_met); }};
}

/// Whether these are sums of a node: whose gradient is not finite was seen when it was made.
bool NonFiniteFinder::of_a_node(const plan::Op& op, const View& symbolic) const {
  return op.kind == plan::OpKind::reduce_gradients &&
         plan_.buffer(plan::buffer_of(symbolic)).purpose != plan::BufferPurpose::gradients;
}

View NonFiniteFinder::defined(const plan::Call& real, const View& symbolic,
                              const View& written) const {
  if (!partly_[static_cast<std::size_t>(plan::buffer_of(symbolic))]) return written;
  const std::optional<View> begins = begins_of(real);
  if (!begins) return {};
  std::vector<std::byte> copy;
  const auto bytes = tier_.host_bytes(begins->data, begins->span_bytes(), copy);
  const auto* begin = reinterpret_cast<const std::int32_t*>(bytes.data());
  return written.row_range(0, begin[begins->elements() - 1]);
}

bool NonFiniteFinder::found_before(std::int64_t run) const {
  const std::lock_guard lock(mutex_);
  return found_ && found_->run <= run;
}

void NonFiniteFinder::note(Found found) {
  const std::lock_guard lock(mutex_);
  if (!found_ || found.run < found_->run) found_ = std::move(found);
}

// Nothing is locked while bytes come from a device, for that may wait for the other thread's work.
void NonFiniteFinder::examine(const BoundPlan::BoundOp& bound, const plan::OpRun& run,
                              Looks looks) {
  const plan::Op& op = *bound.op;
  const std::int64_t number = number_of(plan_, run);
  const std::vector<View> symbolic = looks(op, op.call), real = looks(op, bound.call);
  for (std::size_t i = 0; i < real.size() && !found_before(number); ++i) {
    if (!may_be_non_finite(real[i].type) || of_a_node(op, symbolic[i])) continue;
    View seen = defined(bound.call, symbolic[i], real[i]);
    if (!seen || seen.rows() == 0) continue;
    std::vector<std::byte> copy;
    seen.data = const_cast<std::byte*>(tier_.host_bytes(seen.data, seen.span_bytes(), copy).data());
    if (const auto at = first_non_finite(seen)) {
      note({.run = number, .tensor = tensor_name(plan_, inputs_, op, symbolic[i], *at)});
      return;
    }
  }
}

}  // namespace tessera::train
