#include "train/report/step_line.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/bytes.hpp"
#include "core/clock.hpp"

namespace tessera::train {
namespace {

constexpr std::size_t kColumns = 100;
constexpr double kLeastShare = 0.01;

std::string milliseconds_text(double seconds) {
  if (seconds < 0.09995) return fmt::format("{:.1f} ms", seconds * 1e3);
  if (seconds < 9.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  return fmt::format("{:.1f} s", seconds);
}

}  // namespace

std::string to_text(const StepLine& line) {
  std::string text =
      fmt::format("step {}/{} | loss {:#.5g} norm {:#.3g} lr {:.1e} | {}", line.step, line.steps,
                  line.loss, line.grad_norm, line.lr, milliseconds_text(line.seconds));
  std::string times = " | " + duration_text(line.elapsed);
  if (line.left) times += ", ETA " + duration_text(*line.left);
  const auto add_if_it_fits = [&](const std::string& more) {
    if (text.size() + more.size() + times.size() <= kColumns) text += more;
  };
  if (line.mfu > 0) {
    add_if_it_fits(fmt::format(" MFU {:.0f}%", 100 * line.mfu));
  } else if (line.gemm_share > 0) {
    add_if_it_fits(fmt::format(" GEMM {:.0f}%", 100 * line.gemm_share));
  }
  add_if_it_fits(fmt::format(" {} tok/s", human_count(line.tokens_per_s)));
  auto shares = line.shares;
  std::ranges::stable_sort(shares, std::greater(), &StepLine::Share::part);
  for (const auto& share : shares) {
    if (share.part >= kLeastShare)
      add_if_it_fits(fmt::format(" {} {:.0f}%", share.what, 100 * share.part));
  }
  return text + times;
}

}  // namespace tessera::train
