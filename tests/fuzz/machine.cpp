// A machine file, and the rates that follow from it.
#include "deck/machine.hpp"

#include "core/enums.hpp"
#include "target.hpp"

namespace tessera::fuzz {

const ExitCode kRefusal = ExitCode::deck;

void read(const std::string& input) {
  const deck::Machine machine = deck::parse_machine(input, "machine.toml");
  const auto check = [](double rate) { TESSERA_CHECK(rate > 0, "a rate of {}", rate); };
  for (const auto& [type, rates] : machine.gemm) {
    for (const double flop : {1.0, 1e6, 1e12, 1e18}) check(machine.gemm_rate(type, flop));
    for (const std::int64_t head : {1, 64, 256}) {
      check(machine.attention_rate(type, head, deck::AttentionPass::forward));
      check(machine.attention_rate(type, head, deck::AttentionPass::backward));
    }
    for (const char* operation : {"add_norm", "none"}) check(machine.kernel_rate(type, operation));
  }
  if (machine.gemm.contains(DType::bf16)) check(machine.gemm_rate(DType::bf16, 1e9));
}

}  // namespace tessera::fuzz
