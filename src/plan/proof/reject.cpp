#include "plan/proof/reject.hpp"

namespace tessera::plan {

void reject(const Plan& plan, std::size_t index, const std::string& why) {
  const Op& op = plan.ops[index];
  throw InternalError(fmt::format("broken plan: op {} ({} {}, unit {}, micro-batch {}): {}", index,
                                  enum_word(op.kind), call_name(op.call), op.unit, op.micro_batch,
                                  why));
}

}  // namespace tessera::plan
