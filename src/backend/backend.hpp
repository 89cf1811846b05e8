// What a rank computes on: kernels, memory, streams and groups that belong together.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "comm/mpi/control.hpp"
#include "comm/mpi/session.hpp"
#include "deck/deck.hpp"
#include "kernels/api/device.hpp"
#include "memory/tier.hpp"
#include "streams/streams.hpp"

namespace tessera::backend {

/// How algorithms of matrix products are chosen. One rank chooses for all, and the choice is kept
/// for restarts, because another algorithm may round otherwise.
struct Tuning {
  /// What an earlier start has chosen is read from here.
  std::filesystem::path file;
  /// The fastest of the library's proposals, which is written to the file; else its first.
  bool timed = false;
  View memory;  // device memory that may be overwritten
  std::function<void(const std::string& line)>
      say;  // to people: what is chosen, and what takes long
};

struct Backend {
  deck::Backend kind = deck::Backend::cpu;    // never automatic
  std::string name;                           // "4 CPU threads", "an NVIDIA H200", for people
  double peak_rate = 0;                       // of 16-bit matrix products, flop/s; 0: not known
  bool multiplies_fp8 = false;                // at a rate of its own; others compute the same
  std::unique_ptr<memory::Tier> device_tier;  // where kernels compute
  std::unique_ptr<memory::Tier> host_tier;    // what the host reads beside steps
  bool device_is_host = false;      // its memory is the host's: disks and updates reach it
  std::shared_ptr<void> libraries;  // that the device uses
  std::unique_ptr<kernels::Device> device;
  /// Begins a kernel of a stream beside compute: a GPU queues it; on a CPU so many threads compute
  /// it as the rank has, one kernel at a time, and the system divides the cores between them and
  /// compute's.
  std::function<std::unique_ptr<streams::Task>(const kernels::KernelCall& call)> start_beside;
  /// Begins a kernel that the host computes in its own memory, with all threads of the rank.
  std::function<std::unique_ptr<streams::Task>(const kernels::KernelCall& call)> start_on_host;
  /// Chooses how the matrix products and attention of `calls` are computed, where there is a
  /// choice; see Tuning. Collective. Throws DataError for a file that is damaged, DeviceError where
  /// ranks would compute differently.
  std::function<void(std::span<const kernels::KernelCall> calls, const Tuning& tuning)> tune;
  std::function<std::unique_ptr<streams::Streams>()> make_streams;
  /// Makes a group, as comm::make_mpi_group does.
  std::function<std::unique_ptr<comm::Group>(std::span<const int> members,
                                             const comm::GroupShape& shape, comm::Traffic traffic)>
      make_group;
  /// Waits until groups that have been made are connected, where they connect at the same time; may
  /// be absent. Throws CommError.
  std::function<void()> connect;
  /// What people should know of how groups are carried, a line each; may be absent.
  std::function<std::vector<std::string>()> notes;
};

struct Settings {
  deck::Backend kind = deck::Backend::automatic;
  int threads = 1;  // of a CPU
  deck::Matmul matmul = deck::Matmul::same;
  bool few_rows = false;  // of a CPU: kernels::CpuOptions, for generation
  std::variant<deck::MemoryBudget, deck::Bytes> memory = deck::MemoryBudget::automatic;  // a GPU's
};

/// Bytes that attention's backward on a GPU may have for the gradients of one sample's scores: a
/// 32nd of memory.device, or of 80 GB where the deck leaves that open. It does not follow from what
/// is free on a GPU, nor from what GPU it is, so that all ranks have the same limit, and `check`
/// has that of the run wherever it is made.
std::int64_t most_scores(const Settings& settings);

/// The ranks of a job that choose together.
struct Ranks {
  const comm::MpiSession& mpi;
  const comm::Control& control;
};

/// Makes a back end. cpu: kernels of the CPU. debug: the same, in memory that the host cannot
/// reach. cuda: each rank of a node has a GPU of its own, in their order. auto: cuda where there
/// are NVIDIA GPUs, cpu where there are none; never cpu because a GPU cannot be used. Collective
/// over the ranks, if there are any: all get the same kind, or throw. Throws DeckError where a GPU
/// is asked for and there is none to use, and for a setting that the device does not have;
/// DeviceError for a GPU that is there and does not serve. Both say what to do.
Backend make_backend(const Settings& settings, const Ranks* ranks);

/// Columns of the widest heads that attention of such a back end takes.
std::int64_t most_head_dim(deck::Backend kind);

/// Begins kernels on threads of the host, each with a team of `threads`.
std::function<std::unique_ptr<streams::Task>(const kernels::KernelCall& call)> on_host_threads(
    int threads);

/// What a run with this backend would compute on, as far as plans must know it: without a GPU.
struct PlanningDevice {
  std::string name;                         // for people, and why where `auto` chose it
  std::unique_ptr<kernels::Device> device;  // for sizes of scratch
  bool nccl = false;                        // carries between ranks
  bool device_is_host = false;              // as in Backend
};
PlanningDevice make_planning_device(const Settings& settings);

}  // namespace tessera::backend
