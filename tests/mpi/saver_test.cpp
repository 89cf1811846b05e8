// A save as the trainer makes it, on a disk that loses power after every single call.
#include "train/saves/saver.hpp"

#include <gtest/gtest.h>

#include "kernels/cpu/device.hpp"
#include "support/crash_disk.hpp"
#include "support/plan_run.hpp"
#include "train/report/run_directory.hpp"
#include "world.hpp"

namespace tessera::test {
namespace {

// Steps are not done again, so nothing would ever fill the gap.
TEST(Saver, NoCheckpointOutlivesACrashWithoutTheMetricsOfItsSteps) {
  const auto device = kernels::make_cpu_device({});
  PlanRun run(plan_inputs_of(gpt2_like(), *device, DType::f32), *device,
              {.purpose = plan::PlanPurpose::train, .sequence = 6, .micro = 1, .micro_batches = 1});
  run.state().set_parameters(test_values(11));
  const FastDirectory directory;
  CrashDisk disk(directory.path());
  train::Reporter report(directory.path());
  train::Saver saver(control(), directory / "checkpoints", 1, 0, [&] { report.sync(); });
  std::map<std::int64_t, std::size_t> committed;
  for (std::int64_t step = 1; step <= 2; ++step) {
    report.event({{"event", "step"}, {"step", step}});
    saver.begin(run.state(), train::ModelState::From::live, {.step = step});
    while (!saver.advance(step)) {
    }
    committed[step] = disk.changes();
  }
  disk.stop();
  disk.each_crash(6, 1, [&](std::size_t changes, const std::filesystem::path& root) {
    SCOPED_TRACE(disk.describe(changes));
    const auto found = io::list_checkpoints(root / "checkpoints");
    const std::int64_t newest = found.empty() ? 0 : found.front().step;
    EXPECT_GE(train::Reporter(root).last_step(), newest);
    for (const auto& [step, by] : committed) EXPECT_TRUE(changes < by || newest >= step);
  });
}

}  // namespace
}  // namespace tessera::test
