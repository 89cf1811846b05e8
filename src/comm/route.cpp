#include "comm/route.hpp"

#include <set>

#include "core/at.hpp"

namespace tessera::comm {
namespace {

Hop hop(std::span<const int> node_of, std::int64_t rank, const RankGroup& ranks) {
  const auto node = [&](std::int64_t r) { return at(node_of, r); };
  Hop h{.ranks = ranks};
  for (std::int64_t i = 0; i < ranks.count; ++i)
    h.remote += node(ranks.rank(i)) == node(rank) ? 0 : 1;
  return h;
}

}  // namespace

std::int64_t neighbours_of_nodes(std::span<const int> node_of) {
  const auto size = std::ssize(node_of);
  const auto nodes = std::ssize(std::set<int>(node_of.begin(), node_of.end()));
  if (size % nodes != 0) return 0;
  const std::int64_t local = size / nodes;
  for (std::int64_t r = 0; r < size; ++r)
    if (at(node_of, r) != at(node_of, r / local * local)) return 0;
  return local;
}

Route route_over(std::int64_t size, std::span<const int> node_of, std::int64_t rank) {
  const std::int64_t parts = std::ssize(node_of) / size;
  return {.hops = {hop(node_of, rank, {.first = rank / size * size, .count = size}),
                   hop(node_of, rank, {.first = rank % size, .count = parts, .stride = size})},
          .outer = parts,
          .inner = size};
}

Route route_of(std::span<const int> node_of, std::int64_t rank) {
  const auto size = std::ssize(node_of);
  const auto nodes =
      static_cast<std::int64_t>(std::set<int>(node_of.begin(), node_of.end()).size());
  const std::int64_t local = size / nodes;
  const auto dealt_round = [&] {
    for (std::int64_t r = 0; r < size; ++r)
      if (at(node_of, r) != at(node_of, r % nodes)) return false;
    return true;
  };
  if (nodes > 1 && local > 1 && local * nodes == size) {
    if (neighbours_of_nodes(node_of) == local) return route_over(local, node_of, rank);
    if (dealt_round()) {
      return {.hops = {hop(node_of, rank, {.first = rank % nodes, .count = local, .stride = nodes}),
                       hop(node_of, rank, {.first = rank / nodes * nodes, .count = nodes})},
              .outer = 1,
              .inner = size};
    }
  }
  return {.hops = {hop(node_of, rank, {.count = size})}, .outer = 1, .inner = size};
}

}  // namespace tessera::comm
