// What groups of GPUs ask of NCCL, carried out over MPI on the host's memory: their sums have the
// bits of MPI's groups. And what they make of its errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <thread>

#include "comm/nccl/nccl_group.hpp"
#include "core/random.hpp"
#include "kernels/cpu/device.hpp"
#include "plan/ir/channels.hpp"
#include "support/nccl_over_mpi.hpp"
#include "support/plan_run.hpp"
#include "world.hpp"

namespace tessera::test {
namespace {

using namespace comm;

class NcclGroups : public testing::Test {
 protected:
  void SetUp() override {
    const auto nccl = make_nccl_over_mpi();
    if (!nccl) GTEST_SKIP() << "no libnccl.so.2";
    session_.emplace(nccl, kDriver);
  }

  static constexpr int kDriver = 13000;

  static GroupShape shape(Carrier carrier) {
    const std::int64_t size = session().size();
    return {.size = size, .local = 1, .nodes = size, .carrier = carrier};
  }
  std::unique_ptr<Group> make(Traffic traffic, Carrier carrier = Carrier::nccl) {
    return make_nccl_group(*session_, all_ranks(), shape(carrier), traffic, queue_, *device_);
  }
  /// Of data ranks, all of them on one node or each on its own.
  std::unique_ptr<Group> make_replicas(std::int64_t nodes) {
    const std::int64_t size = session().size();
    const GroupShape on_nodes{
        .size = size, .local = size / nodes, .nodes = nodes, .carrier = Carrier::nccl};
    return make_nccl_group(*session_, all_ranks(), on_nodes, Traffic::replicas, queue_, *device_);
  }
  static void finish_queued(std::unique_ptr<streams::Task> task) {
    EXPECT_EQ(task, nullptr) << "it is queued";
  }

  CudaQueue queue_;
  std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device({});
  std::optional<NcclSession> session_;
};

/// Numbers of any size, as the type holds them.
std::vector<std::byte> numbers(DType type, std::int64_t count, std::uint64_t seed) {
  std::vector<std::byte> all(static_cast<std::size_t>(count * size_of(type)));
  const RandomKey key =
      random_key(seed, RandomPurpose::sampling, static_cast<std::uint64_t>(session().rank()));
  for (std::int64_t i = 0; i < count; ++i) {
    const float x =
        std::ldexp(to_uniform(random_bits(key, 0, static_cast<std::uint64_t>(i))) - 0.5F,
                   static_cast<int>(i % 13));
    if (type == DType::f32) {
      reinterpret_cast<float*>(all.data())[i] = x;
    } else {
      reinterpret_cast<bf16*>(all.data())[i] = bf16(x);
    }
  }
  return all;
}

View view(std::vector<std::byte>& bytes, DType type) {
  return View(bytes.data(), type, {static_cast<std::int64_t>(bytes.size()) / size_of(type)});
}

/// A rank's shard after a sum over the group, of what numbers() gives.
std::vector<std::byte> summed(Group& group, DType full_type, DType wire, std::int64_t shard,
                              std::int64_t blocks, Write write) {
  auto full = numbers(full_type, shard * session().size(), 3), to = numbers(full_type, shard, 4);
  std::vector<std::byte> staging(
      static_cast<std::size_t>(reduce_scatter_staging(group.shape(), wire, full_type)));
  const auto task = group.start(ReduceScatter{.full = view(full, full_type),
                                              .shard = view(to, full_type),
                                              .staging = view(staging, DType::u8),
                                              .wire = wire,
                                              .write = write,
                                              .blocks = blocks});
  if (task) finish(*task);
  return to;
}

TEST_F(NcclGroups, SumInTheTreesOrder) {
  const auto group = make(Traffic::collectives);
  const auto other = make_mpi_group(all_ranks(), shape(Carrier::exchange));
  struct Way {
    std::int64_t shard, blocks;
    Write write;
  };
  // Each of two blocks is more than one piece, or two of three make a piece.
  const std::int64_t piece = nccl_piece(group->shape()), two_pieces = 2 * (piece + 3),
                     three_blocks = 3 * (piece / 2 - 1);
  for (const auto& [shard, blocks, write] :
       {Way{1, 1, Write::overwrite}, Way{17, 1, Write::add}, Way{34, 2, Write::overwrite},
        Way{51, 17, Write::add}, Way{two_pieces, 2, Write::add},
        Way{three_blocks, 3, Write::add}}) {
    for (const DType full : {DType::f32, DType::bf16}) {
      for (const DType wire : {DType::f32, DType::bf16}) {
        // Of that much, the way with most staging will do.
        if (shard > piece && (full != DType::f32 || wire != DType::bf16)) continue;
        if (shard == three_blocks && session().size() == 1) continue;  // its pieces are largest
        EXPECT_TRUE(summed(*group, full, wire, shard, blocks, write) ==
                    summed(*other, full, wire, shard, blocks, write))
            << to_string(full) << " as " << to_string(wire) << ", " << shard << " in " << blocks;
      }
    }
  }
}

// Each group call is a kernel of NCCL's, which waits for all ranks.
TEST_F(NcclGroups, ReduceManyBlocksInOneGroupCall) {
  for (const Carrier carrier : {Carrier::nccl, Carrier::nccl_sums}) {
    const auto group = make(Traffic::collectives, carrier);
    const auto calls = [&](std::int64_t shard, std::int64_t blocks) {
      const int before = nccl_said().groups;
      summed(*group, DType::f32, DType::f32, shard, blocks, Write::add);
      return nccl_said().groups - before;
    };
    EXPECT_EQ(calls(24, 1), 1);
    EXPECT_EQ(calls(24, 12), 1);
    if (carrier == Carrier::nccl_sums) continue;  // without staging
    if (session().size() == 1) continue;          // its pieces are largest
    const std::int64_t piece = nccl_piece(group->shape());
    EXPECT_EQ(calls(3 * (piece / 2), 3), 2) << "two blocks have room at a time";
  }
}

// Whole numbers, whose sum does not depend on the order.
TEST_F(NcclGroups, LeaveSumsToNccl) {
  const auto group = make(Traffic::collectives, Carrier::nccl_sums);
  const std::int64_t size = session().size(), rank = session().rank();
  struct Way {
    Write write;
    bool in_place;
    std::int64_t blocks;
  };
  for (const auto& [write, in_place, blocks] :
       {Way{Write::overwrite, false, 1}, Way{Write::overwrite, true, 1}, Way{Write::add, false, 1},
        Way{Write::overwrite, false, 5}, Way{Write::add, false, 5}}) {
    std::vector<float> full(static_cast<std::size_t>(5 * size)), shard(5, 2);
    for (std::size_t i = 0; i < full.size(); ++i)
      full[i] = static_cast<float>(static_cast<std::int64_t>(i) + rank);
    std::byte staging[16];
    const View all(reinterpret_cast<std::byte*>(full.data()), DType::f32, {5 * size});
    const View own(reinterpret_cast<std::byte*>(shard.data()), DType::f32, {5});
    finish_queued(group->start(ReduceScatter{.full = all,
                                             .shard = in_place ? all.range(5 * rank, 5) : own,
                                             .staging = View(staging, DType::u8, {16}),
                                             .write = write,
                                             .blocks = blocks}));
    for (std::int64_t i = 0; i < 5; ++i) {
      const std::int64_t slot = blocks == 1 ? 5 * rank + i : size * i + rank;
      const std::int64_t sum = size * slot + size * (size - 1) / 2;
      EXPECT_EQ(in_place ? full[static_cast<std::size_t>(5 * rank + i)]
                         : shard[static_cast<std::size_t>(i)],
                static_cast<float>(sum + (write == Write::add ? 2 : 0)))
          << i << " of " << blocks << " blocks";
    }
  }
}

TEST_F(NcclGroups, GatherBlockByBlock) {
  const auto group = make(Traffic::collectives);
  const std::int64_t size = session().size();
  for (const std::int64_t blocks : {1, 3}) {
    std::vector<std::byte> own(6, static_cast<std::byte>(session().rank())), all(6 * own.size());
    all.resize(own.size() * static_cast<std::size_t>(size));
    finish_queued(group->start(
        AllGather{.shard = view(own, DType::u8), .full = view(all, DType::u8), .blocks = blocks}));
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::int64_t length = 6 / blocks;
      EXPECT_EQ(static_cast<std::int64_t>(all[i]), static_cast<std::int64_t>(i) / length % size);
    }
  }
}

TEST_F(NcclGroups, SumWords) {
  const auto group = make(Traffic::words);
  std::vector<std::int64_t> words = {session().rank(), -1, std::int64_t{1} << 40};
  finish_queued(group->start(
      AllReduceWords{.words = View(reinterpret_cast<std::byte*>(words.data()), DType::i64, {3})}));
  const std::int64_t size = session().size();
  EXPECT_EQ(words, (std::vector<std::int64_t>{size * (size - 1) / 2, -size, size << 40}));
  words = {session().rank(), -session().rank() - 1, 7};
  finish_queued(group->start(
      AllReduceWords{.words = View(reinterpret_cast<std::byte*>(words.data()), DType::i64, {3}),
                     .of = AllReduceWords::Of::largest}));
  EXPECT_EQ(words, (std::vector<std::int64_t>{size - 1, -1, 7}));
}

// Both directions of a pipeline of stages, each over a group of its own, and the ring closed.
TEST_F(NcclGroups, PassMessagesBothWays) {
  const std::int64_t size = session().size(), rank = session().rank();
  if (size == 1) return;
  for (const std::int64_t step : {std::int64_t{1}, size - 1}) {
    const auto group = make(Traffic::messages);
    auto mine = numbers(DType::bf16, 33, 7);
    std::vector<std::byte> got(mine.size());
    const std::int64_t to = (rank + step) % size, from = (rank + size - step) % size;
    const Send out{.data = view(mine, DType::bf16), .peer = to};
    const Receive in{.data = view(got, DType::bf16), .peer = from};
    // One call ends before the next begins here: a message's receiver must be there.
    if (rank % 2 == 0) {
      finish_queued(group->start(out));
      finish_queued(group->start(in));
    } else {
      finish_queued(group->start(in));
      finish_queued(group->start(out));
    }
    EXPECT_EQ(mine == got, false);
    std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(size));
    finish_queued(
        make(Traffic::collectives)
            ->start(AllGather{.shard = view(mine, DType::u8), .full = view(all, DType::u8)}));
    EXPECT_TRUE(std::equal(got.begin(), got.end(),
                           all.begin() + from * static_cast<std::ptrdiff_t>(mine.size())));
  }
}

// What passes beside kernels should not take multiprocessors from them.
TEST_F(NcclGroups, TakeFewBlocks) {
  std::vector<std::unique_ptr<Group>> groups;
  for (const auto traffic :
       {Traffic::replicas, Traffic::collectives, Traffic::words, Traffic::messages})
    groups.push_back(make(traffic));
  std::vector<int> most;
  for (const ncclConfig_t& config : nccl_said().configs) {
    EXPECT_EQ(config.blocking, 0);
    EXPECT_EQ(config.minCTAs, NCCL_CONFIG_UNDEF_INT);
    most.push_back(config.maxCTAs);
  }
#ifdef NCCL_CTA_POLICY_EFFICIENCY
  for (std::size_t i = 0; i < groups.size(); ++i) {
    EXPECT_EQ(nccl_said().configs[i].CTAPolicy,
              i == 0 ? NCCL_CTA_POLICY_EFFICIENCY : NCCL_CONFIG_UNDEF_INT);
  }
#endif
  constexpr int kAny = NCCL_CONFIG_UNDEF_INT;
  std::vector<int> want = {kAny, kAny, 1, 4, 4};
  if (session().size() > 2) want.push_back(4);  // an edge each
  EXPECT_EQ(most, want);
}

// Connecting takes seconds each.
TEST_F(NcclGroups, ConnectAtTheSameTime) {
  const auto one = make(Traffic::replicas), other = make(Traffic::words);
  EXPECT_EQ(nccl_said().communicators, 2);
  EXPECT_EQ(nccl_said().connecting, 2);
  session_->connect();
  EXPECT_EQ(nccl_said().connecting, 0);
  session_->connect();
  // A call waits for its own group.
  const auto third = make(Traffic::collectives), fourth = make(Traffic::words);
  std::int64_t word = 1;
  finish_queued(third->start(
      AllReduceWords{.words = View(reinterpret_cast<std::byte*>(&word), DType::i64, {1})}));
  EXPECT_EQ(word, session().size());
  EXPECT_EQ(nccl_said().connecting, 1);
}

TEST_F(NcclGroups, FindThatWhatIsQueuedWillNeverEnd) {
  const auto group = make(Traffic::collectives);
  session_->connect();
  session_->throw_if_peer_is_gone();
  nccl_said().state = ncclRemoteError;
  nccl_said().why = "connection closed by peer 10.0.0.7";
  try {
    session_->throw_if_peer_is_gone();
    ADD_FAILURE() << "went on";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::comm);
    EXPECT_NE(std::string(e.what()).find("closed by peer 10.0.0.7"), std::string::npos);
  }
  nccl_said().state = ncclSuccess;
}

// Of tensor ranks and of the pipeline's ends a buffer may lie elsewhere on each rank.
TEST_F(NcclGroups, KnowMemoryWhereRanksHaveTheSame) {
  const auto before = session_->allocate(100);
  const auto same = make_replicas(1), other = make(Traffic::collectives);
  auto more = make_replicas(1);
  auto& calls = nccl_said().calls;
  calls.clear();
  std::byte* const memory = session_->allocate(1000);
  EXPECT_EQ(calls, (std::vector<std::string>{"allocate", "register", "register"}));
  more.reset();
  calls.clear();
  session_->release(memory);
  EXPECT_EQ(calls, (std::vector<std::string>{"deregister", "release"}));
  calls.clear();
  session_->release(before);
  EXPECT_EQ(calls, std::vector<std::string>{"release"});
}

// What travels over a network is registered only with versions that do not wait for ever then.
TEST_F(NcclGroups, RegisterOverNetworksFromAVersionOn) {
  const std::int64_t size = session().size();
  if (size == 1) return;
  const auto calls_of = [&](int version, std::int64_t nodes) {
    const auto nccl = make_nccl_over_mpi();
    nccl_said().version = version;
    nccl_said().node = nodes == 1 ? 0 : session().rank();
    session_.emplace(nccl, kDriver);
    const auto group = make_replicas(nodes);
    session_->release(session_->allocate(100));
    return nccl_said().calls;
  };
  using Calls = std::vector<std::string>;
  const Calls copied = {"allocate", "release"},
              registered = {"allocate", "register", "deregister", "release"};
  EXPECT_EQ(calls_of(NCCL_VERSION(2, 28, 9), 1), registered);
  EXPECT_TRUE(session_->notes().empty());
  EXPECT_EQ(calls_of(NCCL_VERSION(2, 28, 9), size), copied);
  ASSERT_EQ(session_->notes().size(), 1U);
  EXPECT_NE(session_->notes()[0].find("NCCL 2.28.9 copies what data ranks exchange between nodes"),
            std::string::npos)
      << session_->notes()[0];
  EXPECT_EQ(calls_of(NCCL_VERSION(2, 32, 6), size), copied);
  EXPECT_EQ(calls_of(NCCL_VERSION(2, 33, 0), size), registered);
  EXPECT_TRUE(session_->notes().empty());
  // Ranks that call themselves nodes of their own, to share a GPU.
  setenv("NCCL_HOSTID", "somebody", 1);
  EXPECT_EQ(calls_of(NCCL_VERSION(2, 28, 9), 1), copied);
  unsetenv("NCCL_HOSTID");
}

TEST_F(NcclGroups, HaveTheSettingsThatPlansRelyOn) {
  const auto value = [](const char* name) { return std::string(std::getenv(name)); };
  EXPECT_EQ(value("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
  EXPECT_EQ(value("NCCL_GRAPH_REGISTER"), "0");
  const auto mixing_with = [&](int version, const char* of_user) {
    of_user == nullptr ? unsetenv("NCCL_GRAPH_MIXING_SUPPORT")
                       : setenv("NCCL_GRAPH_MIXING_SUPPORT", of_user, 1);
    const auto nccl = make_nccl_over_mpi();
    nccl_said().version = version;
    session_.emplace(nccl, kDriver);
    const char* set = std::getenv("NCCL_GRAPH_MIXING_SUPPORT");
    return std::string(set == nullptr ? "" : set);
  };
  EXPECT_EQ(mixing_with(NCCL_VERSION(2, 28, 9), nullptr), "0");
  EXPECT_EQ(mixing_with(NCCL_VERSION(2, 28, 9), "1"), "1") << "it is the user's own";
  EXPECT_EQ(mixing_with(NCCL_VERSION(2, 29, 2), nullptr), "") << "it has another meaning";
}

TEST_F(NcclGroups, LookAtTheVersionsOfNcclAndOfTheDriver) {
  const auto nccl = make_nccl_over_mpi();
  EXPECT_TRUE(NcclSession(nccl, 12090).notes().empty());
  const auto notes = NcclSession(nccl, 12080).notes();
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_NE(notes[0].find("the driver serves CUDA 12.8"), std::string::npos) << notes[0];
  nccl_said().version = NCCL_VERSION(2, 26, 5);
  EXPECT_THROW(NcclSession(nccl, kDriver), DeviceError);
}

/// A GPU whose operations follow one another: all work is done at once, in the order in which the
/// host says it.
class InTurn : public streams::Streams {
 public:
  bool begin(const Step&) override { return true; }
  void enqueue(streams::Work, streams::Start start) override {
    if (const auto task = start()) test::finish(*task);  // of a group of one
  }
  void run(const streams::Work&, const std::function<void()>& f) override { f(); }
  streams::Times finish() override { return {}; }
};

class NcclPipelines : public NcclGroups {
 protected:
  train::Groups groups_of(const plan::PlanInputs& in) {
    return train::make_groups(
        in, session().rank(), [&](auto members, const GroupShape& shape, Traffic traffic) {
          return make_nccl_group(*session_, members, shape, traffic, queue_, *device_);
        });
  }

  /// Losses of two steps on a mesh.
  std::vector<double> losses(
      const Mesh& mesh, const plan::PipelineRule& rule, bool nccl, std::int64_t micro_batches = 6,
      const std::function<void(plan::PlanInputs&)>& change = [](plan::PlanInputs&) {}) {
    model::ModelConfig config = gpt2_like();
    config.layers = 8;
    plan::PlanInputs in = plan_inputs_of(config, *device_, DType::f32);
    in.layout.mesh = mesh;
    in.layout.tensor_chunks = mesh.tensor;
    in.model.units = model::model_units(config, mesh.tensor);
    in.sharding.stage = mesh.data > 1 ? 3 : 0;
    in.layout.nccl = nccl;
    in.layout.pipeline = rule;
    change(in);
    const plan::PlanShape shape{
        .sequence = 8, .micro = 1, .micro_batches = micro_batches / mesh.data};
    const MeshPlace place = nccl ? mesh.place_of(session().rank()) : MeshPlace{};
    PlanRun run(in, *device_, plan::make_plan(in, shape, place),
                nccl ? groups_of(in) : train::self_groups(), std::make_unique<memory::HostTier>(),
                std::make_unique<memory::HostTier>(), std::make_unique<InTurn>());
    run.state().set_parameters(test_values(11));
    std::vector<double> all;
    for (int step = 0; step < 2; ++step)
      all.push_back(run.step(100 * step, {.lr = 1e-3, .update = 1 + step}).loss);
    return all;
  }
};

// Operations follow one another on every GPU, each begins when its other ends are there: so the
// stages' orders of messages and collectives must fit together.
TEST_F(NcclPipelines, ComeToTheirEndInOneOrder) {
  const std::int64_t size = session().size();
  if (size == 1) return;
  std::vector<Mesh> meshes = {{1, 1, size}};
  if (size == 4) meshes.insert(meshes.end(), {{1, 2, 2}, {2, 1, 2}});
  const auto want = losses({}, {}, false);
  for (const Mesh& mesh : meshes) {
    for (const auto& [schedule, word] : EnumWords<PipelineSchedule>::table) {
      SCOPED_TRACE(fmt::format("{}, {} stages of {} ranks", word, mesh.pipeline, size));
      const bool parts = schedule == PipelineSchedule::interleaved;
      const auto got = losses(mesh, {.schedule = schedule, .virtual_stages = parts ? 2 : 1}, true);
      // Sums of some 60 terms, over ranks in another order.
      for (std::size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(got[i], want[i], 200 * 0x1p-24 * want[i]);
    }
  }
}

// Two nodes of two: gathers come from secondary shards, and sums in layout mode are added within
// nodes first.
TEST_F(NcclPipelines, GoOverNodesInHops) {
  if (session().size() != 4) return;
  const auto layout_mode = [](plan::PlanInputs& in) { in.numerics.layout_mode = true; };
  const auto want = losses({}, {}, false, 4, layout_mode);
  for (const std::int64_t neighbours : {0, 1, 2}) {
    const auto got = losses({.data = 4}, {}, true, 4, [&](plan::PlanInputs& in) {
      layout_mode(in);
      in.layout.node_of = {0, 0, 1, 1};
      in.sharding.prefetch = 0;
      in.sharding.secondary = {.ranks = neighbours};
    });
    EXPECT_EQ(got, want) << neighbours;
  }
}

// Muon's matrices go home over NCCL, and come back.
TEST_F(NcclPipelines, SendMatricesHome) {
  if (session().size() != 4) return;
  const auto muon = [](plan::PlanInputs& in) {
    in.numerics.layout_mode = true;
    in.optimizer = optim::muon();
  };
  const auto want = losses({}, {}, false, 4, muon);
  EXPECT_NE(want, losses({}, {}, false, 4, [&](plan::PlanInputs& in) {
              muon(in);
              in.optimizer = optim::adam();
            }));
  EXPECT_EQ(losses({.data = 4}, {}, true, 4, muon), want);
}

TEST_F(NcclGroups, SayThatTheGpuIsFull) {
  nccl_said().state = ncclUnhandledCudaError;
  nccl_said().why = "Cuda failure 2 'out of memory'";
  try {
    session_->allocate(std::int64_t{3} << 30);
    ADD_FAILURE() << "went on";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::memory);
    EXPECT_NE(std::string(e.what()).find(
                  "ncclMemAlloc of 3.00 GiB (Cuda failure 2 'out of memory'): the GPU has"),
              std::string::npos)
        << e.what();
  }
  nccl_said().state = ncclRemoteError;  // the warning is an old one
  try {
    session_->allocate(100);
    ADD_FAILURE() << "went on";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), ExitCode::comm);
  }
  nccl_said().state = ncclSuccess;
}

TEST_F(NcclGroups, LookAtNoGroupThatHasEnded) {
  make(Traffic::collectives);
  EXPECT_EQ(nccl_said().calls, std::vector<std::string>{"abort"}) << "it may never connect";
  nccl_said().calls.clear();
  {
    const auto group = make(Traffic::collectives);
    session_->connect();
  }
  EXPECT_EQ(nccl_said().calls, std::vector<std::string>{"destroy"});
  nccl_said().state = ncclRemoteError;
  session_->throw_if_peer_is_gone();
}

// Destroying a communicator waits for what is queued, which may never end.
TEST_F(NcclGroups, AreAbortedWhereAnErrorIsOnItsWay) {
  try {
    const auto group = make(Traffic::collectives);
    session_->connect();
    throw CommError("a peer is gone");
  } catch (const CommError&) {
  }
  EXPECT_EQ(nccl_said().calls, std::vector<std::string>{"abort"});
}

TEST_F(NcclGroups, AbortCommunicatorsThatDoNotConnect) {
  for (const ncclResult_t state : {ncclRemoteError, ncclInProgress}) {
    nccl_said().state = state;
    nccl_said().calls.clear();
    {
      const auto group = make_nccl_group(*session_, all_ranks(), shape(Carrier::nccl),
                                         Traffic::collectives, queue_, *device_, 0.1);
      EXPECT_THROW(session_->connect(), CommError);
    }
    EXPECT_EQ(nccl_said().calls, std::vector<std::string>{"abort"});
    EXPECT_EQ(nccl_said().communicators, 0);
  }
}

// Others may be waited for between the begin of a communicator and the first look at it.
TEST_F(NcclGroups, MayHaveConnectedBeforeTheyAreAsked) {
  const auto group = make_nccl_group(*session_, all_ranks(), shape(Carrier::nccl),
                                     Traffic::collectives, queue_, *device_, 0.01);
  while (nccl_said().connecting > 0) session_->throw_if_peer_is_gone();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_NO_THROW(session_->connect());
}

TEST_F(NcclGroups, CloseNcclsGroupAfterARefusedCall) {
  const auto group = make(Traffic::words);
  session_->connect();
  std::int64_t word = 1;
  const AllReduceWords sum{.words = View(reinterpret_cast<std::byte*>(&word), DType::i64, {1})};
  nccl_said().state = ncclInvalidArgument;
  EXPECT_THROW(group->start(sum), CommError);
  EXPECT_EQ(nccl_said().open_groups, 0);
  EXPECT_EQ(word, 1);
  nccl_said().state = ncclSuccess;
  finish_queued(group->start(sum));
  EXPECT_EQ(word, session().size()) << "it is in a group that never ends";
  EXPECT_EQ(nccl_said().open_groups, 0);
  EXPECT_EQ(nccl_said().communicators, 1);
}

}  // namespace
}  // namespace tessera::test
