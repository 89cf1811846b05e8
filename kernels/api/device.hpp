// All operations as one variant, and the device that runs them. A model calls
// `device.run(Linear{...})`: on a real device the work happens, on a recording one it becomes an op
// of a plan.
#pragma once

#include <set>
#include <string_view>
#include <variant>

#include "kernels/api/activation.hpp"
#include "kernels/api/attention.hpp"
#include "kernels/api/cached.hpp"
#include "kernels/api/classifier.hpp"
#include "kernels/api/elementwise.hpp"
#include "kernels/api/embed.hpp"
#include "kernels/api/experts.hpp"
#include "kernels/api/heads.hpp"
#include "kernels/api/linear.hpp"
#include "kernels/api/magnitude.hpp"
#include "kernels/api/norm.hpp"
#include "kernels/api/optimizer.hpp"
#include "kernels/api/orthogonal.hpp"
#include "kernels/api/policy.hpp"
#include "kernels/api/pool.hpp"
#include "kernels/api/preference.hpp"
#include "kernels/api/quantize.hpp"
#include "kernels/api/rope.hpp"

namespace tessera::kernels {

/// The list of operations: what every back end declares of each, and the variant of them all, come
/// from it.
// clang-format off
#define TESSERA_EACH_OPERATION(F) \
  F(Embed) \
  F(EmbedBackward) \
  F(AddPositions) \
  F(AddNorm) \
  F(NormBackward) \
  F(AddPending) \
  F(ApplyDropout) \
  F(Linear) \
  F(LinearBackwardInput) \
  F(LinearBackwardWeight) \
  F(RowSquares) \
  F(ScaleColumns) \
  F(MagnitudeBackward) \
  F(Attention) \
  F(AttentionBackward) \
  F(MergeAttention) \
  F(Remember) \
  F(Rope) \
  F(JoinHeads) \
  F(SplitHeads) \
  F(Activate) \
  F(ActivateBackward) \
  F(Classify) \
  F(ClassifyPart) \
  F(ClassifyLoss) \
  F(ClassifyGradient) \
  F(PolicyLoss) \
  F(ValueLoss) \
  F(PreferenceLoss) \
  F(Score) \
  F(ScoreGradient) \
  F(SoftCap) \
  F(Confusion) \
  F(Pool) \
  F(PoolBackward) \
  F(JoinGates) \
  F(JoinGatesBackward) \
  F(Route) \
  F(RouteBackward) \
  F(ExpertLoad) \
  F(CountChoices) \
  F(BalanceExperts) \
  F(Dispatch) \
  F(PartsOfChoices) \
  F(SpreadRows) \
  F(CombineRows) \
  F(RowDots) \
  F(ExpertLinear) \
  F(ExpertLinearBackwardInput) \
  F(ExpertLinearBackwardWeight) \
  F(Verdict) \
  F(OptimizerUpdate) \
  F(AverageTrust) \
  F(MomentRatio) \
  F(FollowRatio) \
  F(Fill) \
  F(TakeRow) \
  F(Convert) \
  F(OrderChunks) \
  F(Scale) \
  F(Blend) \
  F(DivideByNorm) \
  F(SquarePolynomial) \
  F(TreeSum) \
  F(ExactSum) \
  F(ExactSums) \
  F(Quantize) \
  F(SumQuantized) \
  F(RequantizeSum)
// clang-format on

/// A variant of all but the first.
template <typename First, typename... Rest>
struct VariantAfter {
  using type = std::variant<Rest...>;
};
#define TESSERA_COMMA_AND(Operation) , Operation
using KernelCall = VariantAfter<void TESSERA_EACH_OPERATION(TESSERA_COMMA_AND)>::type;
#undef TESSERA_COMMA_AND

/// What every back end checks of an operation's arguments before it runs: types, shapes and ranges
/// of settings, not what memory holds. Throws InternalError. Each stands with its operation's
/// family.
#define TESSERA_DECLARE_CHECK(Operation) void check(const Operation& args);
TESSERA_EACH_OPERATION(TESSERA_DECLARE_CHECK)
#undef TESSERA_DECLARE_CHECK

/// f.template operator()<Operation>() for each operation, in the order of the list.
template <typename F>
void for_each_operation(F&& f) {
#define TESSERA_APPLY(Operation) f.template operator()<Operation>();
  TESSERA_EACH_OPERATION(TESSERA_APPLY)
#undef TESSERA_APPLY
}

/// f(call) for the example of each operation that has one: a call whose views are all made by
/// `tensor()`, of one shape and one type. A pointwise operation has an example, and with it a row
/// of `tessera bench` and its place in the tests that are alike for all such operations.
template <typename Tensor, typename F>
void for_each_example(Tensor&& tensor, F&& f) {
  for_each_operation([&]<typename Operation>() {
    if constexpr (requires { Operation::example(tensor); }) f(Operation::example(tensor));
  });
}

/// The names of all operations: what a machine file may give rates for.
std::set<std::string_view> operation_names();

/// Floating-point operations of the matrix work; elementwise work counts 0, as in published MFU
/// figures.
double flop_of(const KernelCall& call);

/// Bytes that `args` moves: those of every view but scratch, counted twice where it is updated; or
/// what the operation itself says.
template <typename Args>
double bytes_of(const Args& args) {
  if constexpr (requires { args.bytes(); }) {
    return args.bytes();
  } else {
    double bytes = 0;
    const View* scratch = nullptr;
    if constexpr (requires { args.scratch; }) scratch = &args.scratch;
    args.visit(args, [&](const View& view, Access access) {
      if (!view || &view == scratch) return;
      const auto once = static_cast<double>(view.elements() * size_of(view.type));
      bytes += access == Access::update ? 2 * once : once;
    });
    return bytes;
  }
}

/// The narrowest floating-point type among the operation's views, on which its rate depends; f32
/// without any.
template <typename Args>
DType element_type(const Args& args) {
  DType narrowest = DType::f32;
  args.visit(args, [&](const View& view, Access) {
    if (view && (view.type == DType::bf16 || view.type == DType::f16)) narrowest = view.type;
  });
  return narrowest;
}

class Device {
 public:
  virtual ~Device() = default;
  /// Bytes of scratch that `call` needs; a function of its shapes, types and settings only.
  virtual std::int64_t scratch_bytes(const KernelCall& call) const = 0;
  /// Runs `call` (its `scratch` must have scratch_bytes). On the CPU it has happened on return; on
  /// a GPU it is queued on the current stream.
  virtual void run(const KernelCall& call) = 0;
  /// Whether products of x and a weight (Linear, ExpertLinear) of so many rows of x are made of the
  /// weight's codes as they lie, with the bits of those that are turned into elements first.
  virtual bool multiplies_codes(std::int64_t /*rows*/) const { return false; }
};

/// Whether the call has as many bytes of scratch as it needs.
void check_scratch(const KernelCall& call, std::int64_t needed);

}  // namespace tessera::kernels
