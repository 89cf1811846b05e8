#include "comm/route.hpp"

#include <set>

namespace tessera::comm {
namespace {

Hop hop(std::span<const int> node_of, std::int64_t rank, const RankGroup& ranks) {
  const auto node = [&](std::int64_t r) { return node_of[static_cast<std::size_t>(r)]; };
  Hop h{.ranks = ranks};
  for (std::int64_t i = 0; i < ranks.count; ++i)
    h.remote += node(ranks.rank(i)) == node(rank) ? 0 : 1;
  return h;
}

}  // namespace

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
  const auto node = [&](std::int64_t r) { return node_of[static_cast<std::size_t>(r)]; };
  const auto all = [&](auto&& holds) {
    for (std::int64_t r = 0; r < size; ++r) {
      if (!holds(r)) return false;
    }
    return true;
  };
  if (nodes > 1 && local > 1 && local * nodes == size) {
    if (all([&](std::int64_t r) { return node(r) == node(r / local * local); })) {
      return route_over(local, node_of, rank);
    }
    if (all([&](std::int64_t r) { return node(r) == node(r % nodes); })) {
      return {.hops = {hop(node_of, rank, {.first = rank % nodes, .count = local, .stride = nodes}),
                       hop(node_of, rank, {.first = rank / nodes * nodes, .count = nodes})},
              .outer = 1,
              .inner = size};
    }
  }
  return {.hops = {hop(node_of, rank, {.count = size})}, .outer = 1, .inner = size};
}

}  // namespace tessera::comm
