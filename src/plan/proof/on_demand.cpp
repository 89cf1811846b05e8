#include "plan/proof/on_demand.hpp"

#include "core/range_map.hpp"
#include "plan/proof/reject.hpp"

namespace tessera::plan {
namespace {

using kernels::Access;

/// Where bytes come from: the copy that has brought some of them, if it was one on demand.
struct Origin {
  const Copy* copy = nullptr;
  bool operator==(const Origin&) const = default;
};

/// Whether v is one of the rows of a dense matrix.
bool is_row(const View& v, const View& of) {
  const std::int64_t from = v.data - of.data, bytes = v.span_bytes();
  return v.elements() == of.cols() && from >= 0 && from + bytes <= of.span_bytes() &&
         from % bytes == 0;
}

/// Whether the op multiplies with what was copied, for the rows that it was copied for.
bool multiplies(const Op& op, const Copy& copy) {
  const auto* product = kernel_of<kernels::ExpertLinear>(op);
  if (product == nullptr) return false;
  const auto is_copied = [&](const View& v) { return v && same_bytes(use_of(v), use_of(copy.to)); };
  return (is_copied(product->weight) || is_copied(product->codes.scales)) &&
         is_row(product->begins, copy.begins);
}

}  // namespace

void check_on_demand(const Plan& plan) {
  std::vector<RangeMap<Origin>> origins(plan.buffers.size());
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    const auto* copy = std::get_if<Copy>(&op.call);
    if (copy != nullptr && !copy->begins) copy = nullptr;
    if (copy != nullptr && copy->to.span_bytes() % (copy->begins.cols() - 1) != 0)
      reject(plan, i, "copies parts that are not equal");
    for (const BufferUse& use : uses_of(op)) {
      if (use.access == Access::write) continue;
      at(origins, use.buffer).each(use.bytes, [&](Range, Origin& origin) {
        if (origin.copy != nullptr && !multiplies(op, *origin.copy))
          reject(plan, i,
                 fmt::format("reads {}, of which some is not there", plan.buffer(use.buffer).name));
      });
    }
    for (const BufferUse& use : uses_of(op)) {
      if (use.access == Access::read) continue;
      at(origins, use.buffer).assign(use.bytes, {copy});
      if (copy != nullptr && plan.buffer(use.buffer).persistent)
        reject(plan, i, "leaves a part of what persists");
    }
  }
}

}  // namespace tessera::plan
