// Which environments are those of a process that was launched beside others.
#include "comm/launcher.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "core/error.hpp"

namespace tessera::comm {
namespace {

using Variables = std::map<std::string, std::string>;

Launch launch(const Variables& variables) {
  return launch_of_process([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::int64_t processes(const Variables& variables) { return launch(variables).processes; }

TEST(Launch, TasksOfAJobStep) {
  EXPECT_EQ(processes({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}}), 4);
  EXPECT_EQ(processes({{"SLURM_STEP_ID", "7"}, {"SLURM_NTASKS", "4"}}), 4);
  // A step of one task in a job of four, as srun --ntasks=1.
  EXPECT_EQ(
      processes({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"SLURM_NTASKS", "4"}}), 1);
}

TEST(Launch, ProcessesOfMpirun) {
  EXPECT_EQ(processes({{"OMPI_COMM_WORLD_SIZE", "4"}}), 4);
  EXPECT_EQ(processes({{"PMI_SIZE", "3"}}), 3);
  EXPECT_EQ(processes({{"OMPI_COMM_WORLD_SIZE", "1"}}), 1);
  // mpirun -n 1 whose daemons srun has started, one on each of four nodes.
  for (const char* size : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    EXPECT_EQ(processes({{size, "1"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4"}}), 1);
  }
}

TEST(Launch, NumbersItsProcesses) {
  EXPECT_EQ(launch({}).number, 0);
  EXPECT_EQ(launch({{"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_RANK", "3"}}).number, 3);
  EXPECT_EQ(launch({{"PMI_SIZE", "4"}, {"PMI_RANK", "2"}}).number, 2);
  EXPECT_EQ(launch({{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "1"}}).number,
            1);
}

TEST(Launch, ShellsAreNone) {
  EXPECT_EQ(processes({}), 1);
  // sbatch: tasks of the job, and no step, or the number that Slurm keeps for the batch shell.
  EXPECT_EQ(processes({{"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "4"}, {"SLURM_TASK_PID", "2"}}), 1);
  for (const char* step : {"4294967291", "4294967290", "4294967292"}) {
    EXPECT_EQ(processes({{"SLURM_STEP_ID", step}, {"SLURM_NTASKS", "4"}}), 1) << step;
  }
  // srun --ntasks=4 --pty bash: the shell is a task, what it starts is not.
  Variables typed{{"SLURM_STEP_ID", "0"},
                  {"SLURM_STEP_NUM_TASKS", "4"},
                  {"SLURM_PTY_PORT", "4711"},
                  {"SLURM_TASK_PID", std::to_string(getppid())}};
  EXPECT_EQ(processes(typed), 1);
  typed["SLURM_TASK_PID"] = std::to_string(getpid());
  EXPECT_EQ(processes(typed), 4);
}

TEST(Launch, WhatIsNoNumberSaysNothing) {
  EXPECT_EQ(processes({{"OMPI_COMM_WORLD_SIZE", "four"}}), 1);
  EXPECT_EQ(processes({{"SLURM_STEP_ID", ""}, {"SLURM_STEP_NUM_TASKS", "4"}}), 1);
  EXPECT_EQ(processes({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "4x"}}), 1);
}

TEST(Launch, OpenMpiKillsAfterTwiceItsDelay) {
  const auto seconds = [](const Variables& variables) {
    return seconds_to_kill([&](const char* name) {
      const auto found = variables.find(name);
      return found == variables.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_EQ(seconds({}), std::nullopt);
  EXPECT_EQ(seconds({{"PMI_SIZE", "2"}}), std::nullopt);
  EXPECT_EQ(seconds({{"OMPI_COMM_WORLD_SIZE", "2"}}), 2);
  EXPECT_EQ(seconds({{"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_MCA_odls_base_sigkill_timeout", "60"}}),
            120);
}

TEST(Launch, CopiesAreRefused) {
  EXPECT_NO_THROW(refuse_copies({}, "because", "instead"));
  try {
    refuse_copies({.launcher = "srun", .processes = 4}, "but why", "do this");
    FAIL() << "four were accepted";
  } catch (const AgreedError& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::deck);
    EXPECT_STREQ(e.what(), "4 separate programs were started by srun, but why: do this");
  }
}

}  // namespace
}  // namespace tessera::comm
