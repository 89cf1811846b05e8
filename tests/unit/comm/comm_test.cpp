// What communication is made of, without ranks: bytes on the wire, staging.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "comm/collective.hpp"
#include "comm/self_group.hpp"
#include "core/math.hpp"

namespace tessera::comm {
namespace {

// Against an enumeration of all pairs of ranks and the nodes they live on, full or not, in any
// order.
TEST(WireBytes, CountEveryPeerOnce) {
  std::mt19937 random(8);
  for (int round = 0; round < 100; ++round) {
    std::vector<unsigned> node(1 + random() % 9);
    for (unsigned& n : node) n = random() % 4;
    const auto size = static_cast<std::int64_t>(node.size());
    for (std::size_t rank = 0; rank < node.size(); ++rank) {
      const GroupShape group{.size = size,
                             .local = std::count(node.begin(), node.end(), node[rank])};
      WireBytes expected;
      for (std::size_t peer = 0; peer < node.size(); ++peer) {
        if (peer == rank) continue;
        (node[peer] == node[rank] ? expected.intra : expected.inter) += 48 * 2;
      }
      const View shard(nullptr, DType::bf16, {48}), full(nullptr, DType::bf16, {48 * size});
      const View sum(nullptr, DType::f32, {48}), sums(nullptr, DType::f32, {48 * size});
      const auto gather = wire_bytes(AllGather{.shard = shard, .full = full}, group);
      const auto reduce = wire_bytes(
          ReduceScatter{.full = sums, .shard = sum, .staging = {}, .wire = DType::bf16}, group);
      EXPECT_EQ(gather.intra, expected.intra);
      EXPECT_EQ(gather.inter, expected.inter);
      EXPECT_EQ(reduce.intra, expected.intra);
      EXPECT_EQ(reduce.inter, expected.inter);
    }
  }
}

TEST(WireBytes, OfSlotsByNode) {
  const View slots(nullptr, DType::u8, {4, 100});
  const AllToAll call{
      .send = slots, .receive = slots, .ranks = {.first = 1, .count = 4, .stride = 2}, .remote = 2};
  const WireBytes sent = wire_bytes(call, {.size = 8, .local = 2, .nodes = 4});
  EXPECT_EQ(sent.intra, 100);
  EXPECT_EQ(sent.inter, 200);
}

// Over NCCL: rings, of which a node's ranks each close one to the next node; what is exchanged and
// added by our kernel goes to every peer.
TEST(WireBytes, OfNccl) {
  const GroupShape near{.size = 8, .local = 8, .nodes = 1, .carrier = Carrier::nccl},
      far{.size = 16, .local = 8, .nodes = 2, .carrier = Carrier::nccl_sums};
  const auto floats = [](std::int64_t n) {
    return View(reinterpret_cast<std::byte*>(256), DType::f32, {n});
  };
  const auto expect = [](const WireBytes& got, std::int64_t intra, std::int64_t inter) {
    EXPECT_EQ(got.intra, intra);
    EXPECT_EQ(got.inter, inter);
  };
  expect(wire_bytes(AllGather{.shard = floats(100), .full = floats(800)}, near), 7 * 400, 0);
  expect(wire_bytes(AllGather{.shard = floats(80), .full = floats(1280)}, far),
         15 * 320 - 15 * 320 / 8, 15 * 320 / 8);
  ReduceScatter sum{.full = floats(1280), .shard = floats(80)};
  expect(wire_bytes(sum, far), 15 * 320 - 15 * 320 / 8, 15 * 320 / 8);
  sum.wire = DType::bf16;
  expect(wire_bytes(sum, far), 7 * 160, 8 * 160);
}

TEST(Staging, OfNccl) {
  GroupShape group{.size = 3, .local = 3, .carrier = Carrier::nccl};
  const std::int64_t whole = 3 * nccl_piece(group);
  EXPECT_EQ(nccl_piece(group) % 256, 0);
  EXPECT_LE(whole, kNcclPiece);
  EXPECT_EQ(reduce_scatter_staging(group, DType::f32, DType::f32), 4 * whole);
  EXPECT_EQ(reduce_scatter_staging(group, DType::bf16, DType::bf16), 2 * whole);
  EXPECT_EQ(reduce_scatter_staging(group, DType::bf16, DType::f32), 4 * whole);
  EXPECT_EQ(reduce_scatter_staging(group, DType::f32, DType::bf16), 8 * whole);
  group.carrier = Carrier::nccl_sums;
  EXPECT_GT(reduce_scatter_staging(group, DType::f32, DType::f32), 0);
  EXPECT_LT(reduce_scatter_staging(group, DType::f32, DType::f32), 16);
  EXPECT_EQ(reduce_scatter_staging(group, DType::bf16, DType::f32), 4 * whole);
}

TEST(SelfGroup, SumsWordsToThemselvesAndRefusesBulk) {
  const auto group = make_self_group();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->shape().size, 1);
  std::int64_t words[2] = {5, -3};
  const View view(reinterpret_cast<std::byte*>(words), DType::i64, {2});
  EXPECT_EQ(group->start(AllReduceWords{.words = view}), nullptr) << "done already";
  EXPECT_EQ(words[0], 5);
  EXPECT_EQ(words[1], -3);
  EXPECT_THROW(group->start(AllGather{.shard = view, .full = view}), InternalError);
}

}  // namespace
}  // namespace tessera::comm
