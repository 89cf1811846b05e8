// The groups of ranks that a plan's operations communicate in. A channel is a group together with
// the streams whose operations it carries.
#pragma once

#include <array>

#include "comm/group.hpp"
#include "core/at.hpp"
#include "core/enum_array.hpp"
#include "core/mesh.hpp"
#include "core/streams.hpp"

namespace tessera::plan {

enum class Channel : std::uint8_t {
  gather,
  gather_across,
  reduce,
  reduce_across,
  expert_gather,
  expert_gather_across,
  expert_reduce,
  expert_reduce_across,
  tensor,
  experts,
  context,
  matrices,
  forward,
  backward,
  ends,
  world
};

/// Operations of one channel follow one another on each rank. Operations of different channels may
/// be under way at the same time, also when the ranks are the same: so each channel has messages of
/// its own.
struct ChannelRow {
  Channel channel;
  const char* name;
  MeshGroup ranks;
  comm::Traffic traffic;
  std::uint32_t streams;  // a bit each
  bool across = false;    // of hops across nodes: unused where collectives go in one hop

  constexpr bool carries(MeshGroup group, Stream stream) const {
    return group == ranks && (streams >> index_of(stream) & 1) != 0;
  }
};

template <typename... S>
constexpr std::uint32_t bits_of(S... streams) {
  return ((std::uint32_t{1} << index_of(streams)) | ...);
}

/// In the order in which every rank of the job makes their communicators: another order on one rank
/// would be a deadlock.
inline constexpr std::array kChannelRows = {
    ChannelRow{Channel::gather, "gather", MeshGroup::data, comm::Traffic::replicas,
               bits_of(Stream::gather)},
    ChannelRow{Channel::gather_across, "gather_across", MeshGroup::data, comm::Traffic::replicas,
               bits_of(Stream::gather_across), true},
    ChannelRow{Channel::reduce, "reduce", MeshGroup::data, comm::Traffic::replicas,
               bits_of(Stream::reduce)},
    ChannelRow{Channel::reduce_across, "reduce_across", MeshGroup::data, comm::Traffic::replicas,
               bits_of(Stream::reduce_across), true},
    ChannelRow{Channel::expert_gather, "expert_gather", MeshGroup::replicas,
               comm::Traffic::replicas, bits_of(Stream::gather)},
    ChannelRow{Channel::expert_gather_across, "expert_gather_across", MeshGroup::replicas,
               comm::Traffic::replicas, bits_of(Stream::gather_across), true},
    ChannelRow{Channel::expert_reduce, "expert_reduce", MeshGroup::replicas,
               comm::Traffic::replicas, bits_of(Stream::reduce)},
    ChannelRow{Channel::expert_reduce_across, "expert_reduce_across", MeshGroup::replicas,
               comm::Traffic::replicas, bits_of(Stream::reduce_across), true},
    ChannelRow{Channel::tensor, "tensor", MeshGroup::tensor, comm::Traffic::collectives,
               bits_of(Stream::tensor)},
    ChannelRow{Channel::experts, "experts", MeshGroup::experts, comm::Traffic::collectives,
               bits_of(Stream::experts)},
    ChannelRow{Channel::context, "context", MeshGroup::context, comm::Traffic::collectives,
               bits_of(Stream::context)},
    ChannelRow{Channel::matrices, "matrices", MeshGroup::stage, comm::Traffic::collectives,
               bits_of(Stream::matrices)},
    ChannelRow{Channel::forward, "forward", MeshGroup::pipeline, comm::Traffic::messages,
               bits_of(Stream::send_forward, Stream::receive_forward)},
    ChannelRow{Channel::backward, "backward", MeshGroup::pipeline, comm::Traffic::messages,
               bits_of(Stream::send_backward, Stream::receive_backward)},
    ChannelRow{Channel::ends, "ends", MeshGroup::ends, comm::Traffic::collectives,
               bits_of(Stream::reduce)},
    // Last: words may travel as bulk data does, but not the other way round.
    ChannelRow{Channel::world, "world", MeshGroup::world, comm::Traffic::words,
               bits_of(Stream::reduce)}};
inline constexpr std::size_t kChannels = kChannelRows.size();
static_assert(indexed_by(&ChannelRow::channel, kChannelRows));

constexpr const ChannelRow& row_of(Channel channel) { return at(kChannelRows, channel); }

/// Whether a channel has several ranks on this mesh; the others need no communicator.
inline bool has_several(const Mesh& mesh, const ChannelRow& row) {
  return mesh.group_of(0, row.ranks).count > 1;
}

/// A channel whose group this one can use: an earlier one of the same ranks and the same streams,
/// whose operations are therefore never under way at the same time. The channel itself where there
/// is none.
inline const ChannelRow& shared_with(const Mesh& mesh, const ChannelRow& row) {
  for (const ChannelRow& other : kChannelRows) {
    const bool same = mesh.group_of(0, other.ranks) == mesh.group_of(0, row.ranks);
    if (same && other.streams == row.streams) return other;
  }
  return row;
}

}  // namespace tessera::plan

template <>
struct tessera::EnumWords<tessera::plan::Channel> {
  static constexpr auto table = [] {
    std::array<std::pair<tessera::plan::Channel, const char*>, tessera::plan::kChannels> words{};
    for (std::size_t i = 0; i < words.size(); ++i)
      words[i] = {tessera::plan::kChannelRows[i].channel, tessera::plan::kChannelRows[i].name};
    return words;
  }();
};
