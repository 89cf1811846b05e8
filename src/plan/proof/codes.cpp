#include "plan/proof/codes.hpp"

#include <algorithm>

#include "plan/proof/reject.hpp"

namespace tessera::plan {
namespace {

/// Whether the parameters of some unit are a single slot of this format that fills the buffer; of
/// how many elements.
std::int64_t elements_of_slot(const Plan& plan, const Buffer& buffer,
                              const kernels::BlockFormat& format) {
  const auto share = std::ranges::find_if(plan.shares, [&](const UnitShare& s) {
    return s.codes == format && s.slot > 0 && format.bytes(s.slot) == buffer.bytes;
  });
  const bool parameters = buffer.persistent && buffer.purpose == BufferPurpose::parameters;
  return parameters && share != plan.shares.end() ? share->slot : 0;
}

template <typename Product>
void follow(const Plan& plan, const Homes& homes, std::size_t at, const Product* product) {
  if (product == nullptr || !product->codes) return;
  const kernels::BlockFormat& format = product->codes.format;
  const BufferUse weight = homes.home_of(product->weight),
                  scales = homes.home_of(product->codes.scales);
  const std::int64_t n = elements_of_slot(plan, plan.buffer(weight.buffer), format),
                     first = weight.bytes.begin * 8 / format.bits();
  if (n == 0 || scales.buffer != weight.buffer || first % format.block != 0 ||
      weight.bytes.end * 8 / format.bits() > n ||
      scales.bytes.begin != format.scales_at(n) + first / format.block * format.scale_bytes())
    reject(plan, at, "multiplies codes with the scales of others");
}

}  // namespace

void check_codes(const Plan& plan, const Homes& homes) {
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    follow(plan, homes, i, kernel_of<kernels::Linear>(plan.ops[i]));
    follow(plan, homes, i, kernel_of<kernels::ExpertLinear>(plan.ops[i]));
  }
}

}  // namespace tessera::plan
