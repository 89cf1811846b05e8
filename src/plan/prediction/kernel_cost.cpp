#include "plan/prediction/kernel_cost.hpp"

#include <algorithm>
#include <cmath>

namespace tessera::plan {
namespace {

using kernels::Operands;

template <typename Args>
DType stored_type(const Args& args) {
  if constexpr (requires { args.weight; })
    return args.weight.type;
  else
    return args.x.type;
}

/// The type whose rates an operation's products have.
template <typename Args>
DType product_type(const Args& args) {
  if constexpr (requires { args.operands; })
    return args.operands == Operands::fp8 ? DType::e4m3 : stored_type(args);
  else if constexpr (requires { args.copies; })
    return stored_type(args);
  else
    return kernels::element_type(args);
}

struct CostOfKernel {
  const deck::Machine& machine;

  template <typename Args>
  KernelCost operator()(const Args& args) const {
    KernelCost cost{.seconds = seconds(args), .bytes = kernels::bytes_of(args)};
    if constexpr (requires { args.flop(); }) cost.flop = args.flop();
    cost.at_best = cost.flop > 0 ? cost.flop / machine.best_gemm_rate(product_type(args))
                                 : cost.bytes / machine.memory_rate;
    return cost;
  }

 private:
  template <typename Args>
  double seconds(const Args& args) const {
    if constexpr (requires { args.operands; }) {
      return product_seconds(args);
    } else {
      const double rate = machine.kernel_rate(kernels::element_type(args),
                                              std::string(kernels::name_of_args(args)));
      return machine.kernel_start + std::max(flop_seconds(args), kernels::bytes_of(args) / rate);
    }
  }
  template <typename Args>
  double flop_seconds(const Args& args) const {
    if constexpr (requires { args.shape.head_dim; }) {
      const bool backward = requires { args.d_out; };
      return args.flop() / machine.attention_rate(args.q.type, args.shape.head_dim,
                                                  backward ? deck::AttentionPass::backward
                                                           : deck::AttentionPass::forward);
    } else if constexpr (requires { args.copies; }) {  // a product for each expert
      const double experts = static_cast<double>(args.begins.elements() - 1);
      return args.flop() / machine.gemm_rate(product_type(args), args.flop() / experts);
    } else {
      return 0;
    }
  }

  /// A product with what goes with it: gelu within it or behind it, the sum of a bias's gradient
  /// behind it, the conversion of fp8 operands before it.
  template <typename Args>
  double product_seconds(const Args& args) const {
    double more = 0;
    if constexpr (requires { args.preactivation; }) {
      const bool together = machine.activations == deck::MachineActivations::in_products &&
                            args.preactivation.type != DType::f32 &&
                            args.operands == Operands::stored;
      if (args.preactivation && !together)
        return product_seconds(product_of(args)) + seconds(activation_of(args));
    }
    if constexpr (requires { args.d_bias; }) {
      if (args.d_bias) more += machine.kernel_start + bytes(args.d_y) / machine.memory_rate;
    }
    if (args.operands == Operands::fp8) more += conversion_beyond_cube(args);
    const double product = args.flop() / machine.gemm_rate(product_type(args), args.flop()) +
                           written_beyond_result(args) / machine.memory_rate + more;
    return machine.kernel_start + std::max(product, kernels::bytes_of(args) / machine.memory_rate);
  }
  /// Bytes that a product moves while it writes its result, beyond those of a result of its
  /// operands' type: the preactivation, a wider result, what that is added to. Rates of products do
  /// not have them, and they are not hidden behind the product (kernels/README.md has what gelu
  /// adds to a product of an H100).
  template <typename Args>
  static double written_beyond_result(const Args& args) {
    const auto wider = [](const View& result, const View& operand) {
      return bytes(result) - static_cast<double>(result.elements() * size_of(operand.type));
    };
    if constexpr (requires { args.d_weight; }) {
      const double read = args.write == kernels::Write::add ? bytes(args.d_weight) : 0;
      return wider(args.d_weight, args.x) + read;
    } else if constexpr (requires { args.y; }) {
      return wider(args.y, args.x) + bytes(args.preactivation);
    } else {
      return wider(args.d_x, args.d_y) + bytes(args.preactivation);
    }
  }
  /// Rates of fp8 products have the conversion of a cube's two operands in them. Seconds that
  /// the operands of this one, which are of other sizes, take more, or less where they are
  /// fewer: each is read for its largest magnitude, then read again and written as codes.
  template <typename Args>
  double conversion_beyond_cube(const Args& args) const {
    const auto [left, right] = operands_of(args);
    const double side = std::cbrt(args.flop() / 2);
    const double elements = static_cast<double>(left.elements() + right.elements());
    const double each = 2 * static_cast<double>(size_of(left.type)) + 1;
    const double rate = machine.fp8_conversion > 0 ? machine.fp8_conversion : machine.memory_rate;
    return each * (elements - 2 * side * side) / rate;
  }
  static std::pair<View, View> operands_of(const kernels::Linear& a) { return {a.x, a.weight}; }
  static std::pair<View, View> operands_of(const kernels::LinearBackwardInput& a) {
    return {a.d_y, a.weight};
  }
  static std::pair<View, View> operands_of(const kernels::LinearBackwardWeight& a) {
    return {a.d_y, a.x};
  }
  static double bytes(const View& view) {
    return view ? static_cast<double>(view.elements() * size_of(view.type)) : 0;
  }
};

}  // namespace

KernelCost kernel_cost(const kernels::KernelCall& call, const deck::Machine& machine) {
  return std::visit(CostOfKernel{machine}, call);
}

double bytes_of(const kernels::KernelCall& call) {
  return std::visit([](const auto& args) { return kernels::bytes_of(args); }, call);
}

}  // namespace tessera::plan
