#include "plan/passes/from_codes.hpp"

#include <map>

#include "plan/passes/buffers.hpp"

namespace tessera::plan {
namespace {

/// By windows, what makes their elements of all codes of a unit.
using Windows = std::map<BufferId, kernels::SumQuantized>;

Windows windows_of(const Plan& plan) {
  Windows windows;
  for (const Op& op : plan.ops) {
    const auto* made = kernel_of<kernels::SumQuantized>(op);
    if (made == nullptr || op.kind != OpKind::gather) continue;
    const BufferId window = buffer_of(made->out);
    const bool whole = made->code.extent(0) == 1 && made->code.extent(1) == 1 &&
                       offset_of(made->out) == 0 &&
                       made->out.span_bytes() == plan.buffer(window).bytes;
    if (whole) windows.emplace(window, *made);
  }
  return windows;
}

/// f(product) where the op is one of x and a weight of elements.
template <typename F>
bool with_product(Op& op, F&& f) {
  auto* kernel = std::get_if<kernels::KernelCall>(&op.call);
  if (kernel == nullptr) return false;
  if (auto* linear = std::get_if<kernels::Linear>(kernel))
    return linear->operands == kernels::Operands::stored && f(*linear, 1);
  if (auto* experts = std::get_if<kernels::ExpertLinear>(kernel))
    return f(*experts, experts->begins.elements() - 1);
  return false;
}

/// A device takes some rows of an expert after others.
constexpr bool is_of_experts(const kernels::ExpertLinear&) { return true; }
constexpr bool is_of_experts(const kernels::Linear&) { return false; }

/// Whether the codes of a weight in this window are those of whole blocks, `matrices` times.
bool lies_in_blocks(const View& weight, const kernels::SumQuantized& window,
                    std::int64_t matrices) {
  const std::int64_t first = offset_of(weight) / size_of(weight.type),
                     each = weight.elements() / matrices;
  return weight.dense() && first % window.format.block == 0 && weight.cols() % 2 == 0 &&
         (matrices == 1 || each % window.format.block == 0);
}

/// Takes out windows that something else reads, or a product of more rows.
void leave_products(Plan& plan, const kernels::Device& device, Windows& windows) {
  for (Op& op : plan.ops) {
    View multiplied;
    with_product(op, [&](const auto& product, std::int64_t matrices) {
      const auto window = windows.find(buffer_of(product.weight));
      const bool takes = window != windows.end() &&
                         lies_in_blocks(product.weight, window->second, matrices) &&
                         (is_of_experts(product) || device.multiplies_codes(product.x.rows()));
      if (takes) multiplied = product.weight;
      return takes;
    });
    each_view(op.call, [&](const View& v, kernels::Access access) {
      if (v && access == kernels::Access::read &&
          (v.data != multiplied.data || v.span_bytes() != multiplied.span_bytes()))
        windows.erase(buffer_of(v));
    });
  }
}

template <typename Product>
bool take_codes(Product& product, const Windows& windows) {
  const auto window = windows.find(buffer_of(product.weight));
  if (window == windows.end()) return false;
  const kernels::SumQuantized& made = window->second;
  const kernels::BlockFormat& format = made.format;
  const std::int64_t first = offset_of(product.weight) / size_of(product.weight.type),
                     count = product.weight.elements(), bits = format.bits();
  product.codes = {.scales = View(made.code.data + format.scales_at(made.out.cols()) +
                                      first / format.block * format.scale_bytes(),
                                  DType::f32, {ceil_div(count, format.block)}),
                   .format = format};
  product.weight = View(made.code.data + first * bits / 8, DType::u8,
                        {product.weight.rows(), product.weight.cols() * bits / 8});
  product.scratch = {};  // that of another product
  return true;
}

}  // namespace

void multiply_from_codes(Plan& plan, const PlanInputs& in) {
  const MicroBatchRows rows = in.rows(plan.shape);
  if (plan.shape.purpose != PlanPurpose::generate ||
      !in.device->multiplies_codes(rows.batch * rows.sequence))
    return;
  Windows windows = windows_of(plan);
  leave_products(plan, *in.device, windows);
  for (Op& op : plan.ops)
    with_product(op, [&](auto& product, std::int64_t) { return take_codes(product, windows); });
  std::erase_if(plan.ops, [&](const Op& op) {
    const auto* made = kernel_of<kernels::SumQuantized>(op);
    return made != nullptr && windows.contains(buffer_of(made->out));
  });
  for (const auto& [window, made] : windows) plan.buffer(window).bytes = 0;
}

}  // namespace tessera::plan
