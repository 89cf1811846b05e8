#include "train/policy/rollout_summary.hpp"

#include <fmt/format.h>

namespace tessera::train {

std::string to_text(const RolloutSummary& s) {
  const std::string explained =
      s.explained ? fmt::format(", {:.0f} % foreseen", 100 * *s.explained) : "";
  const std::string critic =
      s.critic_loss ? fmt::format(", critic's loss {:.3g}", *s.critic_loss) : "";
  const std::string clipped =
      s.clipped ? fmt::format(", {:.1f} % of them clipped", 100 * *s.clipped) : "";
  return fmt::format(
      "reward {:.4f} +- {:.3f}{}{} | {:.1f} tokens an answer{}, {:.0f} % cut, entropy {:.3f} | "
      "drawn "
      "in "
      "{:.2f} s ({:.0f} tok/s), judged in {:.2f} s",
      s.reward, s.deviation, explained, critic, s.tokens, clipped, 100 * s.cut, s.entropy,
      s.drawing_s, s.tokens * static_cast<double>(s.answers) / s.drawing_s, s.judging_s);
}

}  // namespace tessera::train
