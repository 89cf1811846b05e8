#include "comm/nccl_resources.hpp"

namespace tessera::comm {

std::optional<int> most_blocks(Traffic traffic) {
  switch (traffic) {
    case Traffic::collectives:
    case Traffic::replicas: break;
    case Traffic::messages: return 4;
    case Traffic::words: return 1;
  }
  return std::nullopt;
}

bool is_sparing(Traffic traffic) { return traffic == Traffic::replicas; }

}  // namespace tessera::comm
