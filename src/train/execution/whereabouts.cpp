#include "train/execution/whereabouts.hpp"

#include "plan/ir/print.hpp"

namespace tessera::train {

void Whereabouts::begin(const char* phase, std::int64_t step) {
  phase_.store(phase, std::memory_order_relaxed);
  step_.store(step, std::memory_order_relaxed);
}

Whereabouts::Running::Running(Whereabouts& of, const plan::PlanInputs& inputs) : of_(of) {
  const std::lock_guard lock(of_.mutex_);
  of_.inputs_ = &inputs;
  of_.done_.fetch_add(1, std::memory_order_relaxed);
}

Whereabouts::Running::~Running() {
  const std::lock_guard lock(of_.mutex_);
  of_.inputs_ = nullptr;
  of_.op_.store(nullptr, std::memory_order_relaxed);
}

guard::Activity Whereabouts::activity() const {
  const std::lock_guard lock(mutex_);
  const auto step = step_.load(std::memory_order_relaxed);
  guard::Activity activity{.must_advance = inputs_ != nullptr,
                           .progress = done_.load(std::memory_order_relaxed),
                           .doing = phase_.load(std::memory_order_relaxed)};
  if (step > 0) activity.doing += fmt::format(" step {}", step);
  if (const plan::Op* op = op_.load(std::memory_order_relaxed))
    activity.doing +=
        ": " + plan::op_name(*op, *inputs_, micro_batch_.load(std::memory_order_relaxed));
  return activity;
}

}  // namespace tessera::train
