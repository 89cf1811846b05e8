// Whole jobs of several ranks that train, save, commit and prune in any order of their moves, on a
// disk that loses power: whatever it holds then, a new job goes on from there to the very bits of a
// job that nothing happened to (traps 45, 48).
#include <gtest/gtest.h>

#include <map>

#include "io/checkpoint_commit.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/checkpoint_writer.hpp"
#include "kernels/cpu/device.hpp"
#include "support/crash_disk.hpp"
#include "support/lockstep.hpp"
#include "support/plan_run.hpp"
#include "support/sanitized.hpp"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSteps = 6, kEvery = 2, kKeep = 2;

struct Case {
  const char* name;
  Mesh mesh;
  int stage = 0;
  DType compute = DType::f32;
  friend void PrintTo(const Case& c, std::ostream* to) { *to << c.name; }
};

/// What a job computed: losses and norms by (rank, step), and each rank's slice of the last state.
struct Outcome {
  std::map<std::pair<std::int64_t, std::int64_t>, std::pair<double, double>> steps;
  std::map<std::int64_t, std::vector<float>> state;
};

/// A job that goes on from the newest checkpoint of a directory. Saves go as train/saves/saver has
/// them: every rank writes; when all have, rank 0 commits and prunes, while the others train on.
class Job {
 public:
  Job(const Case& c, fs::path checkpoints)
      : checkpoints_(std::move(checkpoints)),
        ranks_(c.mesh.size()),
        lockstep_(ranks_, comm::Sends::buffered),
        device_(kernels::make_cpu_device({})) {
    auto inputs = plan_inputs_of(gpt2_like(), *device_, c.compute);
    inputs.sharding.stage = c.stage;
    inputs.layout.mesh = c.mesh;
    inputs.layout.tensor_chunks = c.mesh.tensor;
    inputs.model.units = model::model_units(inputs.model.config, c.mesh.tensor);
    inputs.optimizer.clip_norm = 0.5;
    for (std::int64_t r = 0; r < ranks_; ++r) inputs.layout.node_of.push_back(static_cast<int>(r));
    const plan::PlanShape shape{
        .purpose = plan::PlanPurpose::train, .sequence = 6, .micro = 1, .micro_batches = 2};
    for (std::int64_t r = 0; r < ranks_; ++r) {
      runs_.push_back(std::make_unique<PlanRun>(inputs, *device_,
                                                plan::make_plan(inputs, shape, c.mesh.place_of(r)),
                                                lockstep_.groups(inputs, r), lockstep_.streams(r)));
    }
  }

  /// Trains to the end. Returns what went wrong on each rank.
  std::vector<std::string> train(std::uint64_t seed) {
    io::set_io_hook([this](IoCall, const fs::path&, std::size_t) {
      lockstep_.pause();
      return io::IoVerdict{};
    });
    auto wrong = lockstep_.run(seed, [this](std::int64_t rank) { train_rank(rank); });
    io::set_io_hook({});
    return wrong;
  }
  /// Told of each checkpoint once it is committed.
  void on_commit(std::function<void(std::int64_t step)> told) { committed_ = std::move(told); }

  const Outcome& outcome() const { return outcome_; }
  std::int64_t began_after() const { return began_after_; }
  std::vector<std::string> nothing_wrong() const {
    return std::vector<std::string>(static_cast<std::size_t>(ranks_));
  }

 private:
  void train_rank(std::int64_t rank) {
    PlanRun& run = *runs_[static_cast<std::size_t>(rank)];
    if (rank == 0) choose_start();
    lockstep_.wait([this] { return began_after_ >= 0; });
    if (start_.empty()) {
      run.state().set_parameters(test_values(11));
    } else {
      io::Checkpoint checkpoint = io::Checkpoint::open(start_);
      run.state().load(checkpoint);
    }
    for (std::int64_t t = began_after_ + 1; t <= kSteps; ++t) {
      const StepShown step = run.step(100 * t, {.update = t});
      outcome_.steps[{rank, t}] = {step.loss, step.norm};
      if (t % kEvery == 0) save(rank, t, run);
    }
    outcome_.state[rank] = slice_of_state(run);
  }

  void choose_start() {
    io::clean_up_checkpoints(checkpoints_);
    const auto found = io::list_checkpoints(checkpoints_);
    if (!found.empty()) start_ = found.front().path;
    began_after_ = found.empty() ? 0 : found.front().step;
  }

  void save(std::int64_t rank, std::int64_t step, PlanRun& run) {
    if (rank == 0) {
      parts_.clear();
      temporary_ = io::begin_checkpoint(checkpoints_, step);
      saving_ = step;
    }
    lockstep_.wait([this, step] { return saving_ == step; });
    std::optional<io::CheckpointWriter> writer;
    lockstep_.undisturbed(
        [&] { writer.emplace(temporary_, static_cast<int>(rank), run.state().pieces()); });
    run.state().save(*writer, train::ModelState::From::live);
    const io::RankPart part = writer->finish();
    parts_[rank] = part;
    if (rank != 0) return;
    lockstep_.wait([this] { return std::ssize(parts_) == ranks_; });
    std::vector<io::RankPart> parts;
    for (const auto& [r, p] : parts_) parts.push_back(p);
    lockstep_.undisturbed([&] { io::commit_checkpoint(temporary_, {.step = step}, parts); });
    if (committed_) committed_(step);
    io::prune_checkpoints(checkpoints_, kKeep, 0, step);
  }

  fs::path checkpoints_;
  std::int64_t ranks_;
  Lockstep lockstep_;
  std::unique_ptr<kernels::Device> device_;
  std::vector<std::unique_ptr<PlanRun>> runs_;
  std::function<void(std::int64_t)> committed_;
  Outcome outcome_;
  fs::path start_, temporary_;
  std::int64_t began_after_ = -1, saving_ = 0;
  std::map<std::int64_t, io::RankPart> parts_;
};

class Restart : public testing::TestWithParam<Case> {};

TEST_P(Restart, AfterAnyCrashGoesOnToTheSameBits) {
  const FastDirectory temporary;
  Job undisturbed(GetParam(), temporary / "undisturbed");
  ASSERT_EQ(undisturbed.train(1), undisturbed.nothing_wrong());
  const Outcome& want = undisturbed.outcome();
  std::mt19937_64 random(2);
  std::map<std::int64_t, int> starts;                 // by the step that a restart began after
  const std::size_t between = kSanitized ? 120 : 40;  // crashes, at most
  for (const std::uint64_t seed : {3, 4}) {
    const fs::path root = temporary / fmt::format("run{}", seed);
    fs::create_directory(root);
    std::map<std::int64_t, std::size_t> committed;  // step, and how many calls there were by then
    CrashDisk disk(root);
    Job job(GetParam(), root / "checkpoints");
    job.on_commit([&](std::int64_t step) { committed[step] = disk.changes(); });
    ASSERT_EQ(job.train(seed), job.nothing_wrong());
    disk.stop();
    EXPECT_EQ(job.outcome().steps, want.steps);
    const std::size_t last = disk.changes();
    for (std::size_t changes = 0, next = 0; next <= last; changes = next) {
      next = changes == last ? last + 1
                             : std::min<std::size_t>(last, changes + 1 + random() % between);
      const auto trees = disk.after_crash(changes, 4, random());
      const fs::path place = temporary / "crashed";
      fs::remove_all(place);
      write_tree(trees[random() % trees.size()], place);
      SCOPED_TRACE(fmt::format("seed {}, {}", seed, disk.describe(changes)));
      Job again(GetParam(), place / "checkpoints");
      ASSERT_EQ(again.train(random()), again.nothing_wrong());
      std::int64_t newest = 0;
      for (const auto& [step, by] : committed) newest = by <= changes ? step : newest;
      EXPECT_GE(again.began_after(), newest) << "a committed checkpoint is lost";
      ++starts[again.began_after()];
      for (const auto& [at, numbers] : again.outcome().steps) {
        ASSERT_EQ(numbers, want.steps.at(at)) << "rank " << at.first << ", step " << at.second;
      }
      ASSERT_EQ(again.outcome().state, want.state);
    }
  }
  EXPECT_GE(starts.size(), 3U) << "crashes come before and after saves";
}

INSTANTIATE_TEST_SUITE_P(
    Of, Restart,
    testing::Values(Case{"Data2", {.data = 2}, 0}, Case{"Data3Stage1", {.data = 3}, 1},
                    Case{"Data2Stage2Bf16", {.data = 2}, 2, DType::bf16},
                    Case{"Data3Stage3", {.data = 3}, 3}, Case{"Tensor2", {.tensor = 2}, 0},
                    Case{"Pipeline2Data2Stage1", {.data = 2, .pipeline = 2}, 1}),
    [](const auto& run_case) { return std::string(run_case.param.name); });

}  // namespace
}  // namespace tessera::test
