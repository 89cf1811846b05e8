#include "kernels/api/device.hpp"

namespace tessera::kernels {

std::set<std::string_view> operation_names() {
  std::set<std::string_view> names;
  for_each_operation([&]<typename Operation>() {
    if constexpr (requires { Operation::kNames; }) {
      for (const auto& [value, name] : Operation::kNames) names.insert(name);
    } else {
      names.insert(Operation::kName);
    }
  });
  return names;
}

double flop_of(const KernelCall& call) {
  return std::visit(
      [](const auto& args) -> double {
        if constexpr (requires { args.flop(); }) return args.flop();
        return 0;
      },
      call);
}

void check_scratch(const KernelCall& call, std::int64_t needed) {
  std::visit(
      [&](const auto& args) {
        TESSERA_CHECK(args.scratch.span_bytes() >= needed, "{}: {} bytes of scratch, needs {}",
                      name_of_args(args), args.scratch.span_bytes(), needed);
      },
      call);
}

}  // namespace tessera::kernels
