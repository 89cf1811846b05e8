// The learning rate of a step: the schedule's, scaled with the batch, after rollbacks; and when a
// length that has changed moves it.
#include "train/course.hpp"

#include <gtest/gtest.h>

namespace tessera::train {
namespace {

constexpr double kLr = 1e-3;

/// Warm-up of 4 updates, stable, and a linear decay over the last 5 of 20; the batch doubles twice.
deck::Deck deck_of_course() {
  deck::Deck deck;
  deck.run.steps = 20;
  deck.batch = {.sequence = 16,
                .micro = 1,
                .global = 2,
                .ramp = {{.step = 3, .global = 4}, {.step = 9, .global = 8}},
                .lr_scaling = deck::LrScaling::linear};
  deck.optimizer.lr = kLr;
  deck.schedule.kind = deck::ScheduleKind::wsd;
  deck.schedule.warmup_steps = 4;
  deck.schedule.decay_steps = 5;
  return deck;
}

TEST(Course, TheRateIsTheSchedulesScaledWithTheBatch) {
  const deck::Deck deck = deck_of_course();
  Course course(deck);
  course.set_data(100);
  course.progress.lr_factor = 0.5;  // of a rollback
  for (int step = 1; step <= 20; ++step) {
    const double schedule = step < 4 ? kLr * step / 4 : step <= 15 ? kLr : kLr * (20 - step) / 5;
    const double batch = step < 3 ? 0.25 : step < 9 ? 0.5 : 1;
    EXPECT_NEAR(course.lr(step, step), 0.5 * batch * schedule, 1e-18) << step;
  }
  // After two skipped steps an update comes later, with the batch of its own step.
  EXPECT_NEAR(course.lr(2, 4), 0.5 * 0.5 * kLr * 2 / 4, 1e-18);
}

/// What a run that has done 10 steps by `before` finds when it goes on by `now`.
std::optional<Course::MovedRate> moved(const deck::Deck& before, const deck::Deck& now) {
  Course course(now);
  course.set_data(100);
  course.progress.step = course.progress.applied = 10;
  course.progress.samples = 2 * 2 + 6 * 4 + 2 * 8;
  course.set_length();
  return course.rate_moved_by_length(before);
}

TEST(Course, ALengthThatMakesTheRateJumpIsTold) {
  const deck::Deck before = deck_of_course();
  deck::Deck now = before;
  EXPECT_FALSE(moved(before, now));
  now.run.steps = 13;  // the decay is under way
  const auto rates = moved(before, now);
  ASSERT_TRUE(rates);
  EXPECT_EQ(rates->steps_before, 20);
  EXPECT_NEAR(rates->before, kLr, 1e-18);
  EXPECT_NEAR(rates->now, kLr * 2 / 5, 1e-18);
}

TEST(Course, ACooldownIsNoJump) {
  const deck::Deck before = deck_of_course();
  for (const auto& [steps, decay] : {std::pair{15, 5}, {13, 3}, {40, 30}}) {
    deck::Deck now = before;
    now.run.steps = steps;
    now.schedule.decay_steps = decay;
    EXPECT_FALSE(moved(before, now)) << steps;
  }
  deck::Deck linear = before;  // falls from the warm-up's end on
  linear.schedule.kind = deck::ScheduleKind::linear;
  linear.schedule.decay_steps.reset();
  EXPECT_FALSE(moved(before, linear)) << "by the deck's kind, which the log names";
  linear.run.steps = 13;
  EXPECT_TRUE(moved(before, linear));
}

// A run that goes on counts the tokens of the steps that it had, whatever the deck says now.
TEST(Course, CountsTheTokensOfEachStepsLength) {
  deck::Deck deck = deck_of_course();
  deck.batch.curriculum.table = {{.step = 0, .length = 4}, {.step = 5, .length = 16}};
  deck.run.steps.reset();
  deck.run.tokens = 2 * 2 * 4 + 2 * 4 * 4 + 4 * 4 * 16 + 8 * 8 * 16;  // steps 1 to 16
  Course course(deck);
  course.set_data(100);
  EXPECT_EQ(course.steps(), 16);
  for (int step = 1; step <= 6; ++step) course.count_step(true);
  EXPECT_EQ(course.progress.tokens, 2 * 2 * 4 + 2 * 4 * 4 + 2 * 4 * 16);
  EXPECT_EQ(course.tokens(6), 4 * 16);
  io::CheckpointHeader header;
  course.save_to(header);
  EXPECT_EQ(header.tokens, course.progress.tokens);
  // A rollback passes over samples, which count as if they were of the next step.
  course.skip_to(course.progress.samples + 10);
  EXPECT_EQ(course.progress.tokens, header.tokens + 10 * 16);
  course.restore(header, deck);
  EXPECT_EQ(course.progress.tokens, header.tokens);
  deck.batch.curriculum = {};
  deck.batch.ramp = {};  // 2 sequences of 16
  Course other(deck);
  other.progress = course.progress;
  other.set_data(100);
  EXPECT_EQ(other.steps(), 6 + (*deck.run.tokens - header.tokens) / 32);
}

}  // namespace
}  // namespace tessera::train
