// The streams of a step: FIFO queues of work. Work on different streams overlaps unless one waits
// for the other. All that differs from stream to stream is in the rows of this table.
#pragma once

#include <array>
#include <cstdint>

#include "core/enum_array.hpp"
#include "core/enums.hpp"

namespace tessera {

enum class Stream : std::uint8_t {
  compute,
  gather,
  gather_pack,
  gather_across,
  gather_unpack,
  reduce,
  reduce_pack,
  reduce_sum,
  reduce_across,
  reduce_unpack,
  copy,
  read,
  write,
  disk_read,
  disk_write,
  host,
  tensor,
  experts,
  context,
  matrices,
  send_forward,
  receive_forward,
  send_backward,
  receive_backward
};

/// How the time that compute spends waiting for a stream is reported.
enum class StreamCounts : std::uint8_t {
  compute,        // none: the others are waited for
  communication,  // exposed communication
  pipeline,       // likewise, with other stages: the bubble and the messages
  transfer,       // memory that is not the device's: copies, and updates there
};

/// Which way messages of a pipeline go: down with activations, up with their gradients.
enum class Direction : std::uint8_t { none, down, up };

/// How long the bytes of what an op uses are kept from others, which else would have to wait for it
/// at once: until it is issued; of one that brings something, until compute uses that; of one that
/// carries away what compute has made, until the next visit is over.
enum class Holds : std::uint8_t { issued, used, next_visit };

struct StreamRow {
  Stream stream;
  const char* name;
  StreamCounts counts;
  Holds holds = Holds::issued;
  Direction direction = Direction::none;
};

/// In the order of the enumeration, compute first.
inline constexpr std::array kStreamRows = {
    StreamRow{Stream::compute, "compute", StreamCounts::compute},
    // Of collectives: among all ranks or those of a node (gather, reduce), across nodes, and
    // kernels of blocks before, between and after these. Chunks follow one another through them.
    StreamRow{Stream::gather, "gather", StreamCounts::communication, Holds::used},
    StreamRow{Stream::gather_pack, "gather_pack", StreamCounts::communication, Holds::used},
    StreamRow{Stream::gather_across, "gather_across", StreamCounts::communication, Holds::used},
    StreamRow{Stream::gather_unpack, "gather_unpack", StreamCounts::communication, Holds::used},
    StreamRow{Stream::reduce, "reduce", StreamCounts::communication, Holds::next_visit},
    StreamRow{Stream::reduce_pack, "reduce_pack", StreamCounts::communication, Holds::next_visit},
    StreamRow{Stream::reduce_sum, "reduce_sum", StreamCounts::communication, Holds::next_visit},
    StreamRow{Stream::reduce_across, "reduce_across", StreamCounts::communication,
              Holds::next_visit},
    StreamRow{Stream::reduce_unpack, "reduce_unpack", StreamCounts::communication,
              Holds::next_visit},
    StreamRow{Stream::copy, "copy", StreamCounts::transfer, Holds::next_visit},
    StreamRow{Stream::read, "read", StreamCounts::transfer},
    StreamRow{Stream::write, "write", StreamCounts::transfer, Holds::next_visit},
    StreamRow{Stream::disk_read, "disk_read", StreamCounts::transfer},
    StreamRow{Stream::disk_write, "disk_write", StreamCounts::transfer, Holds::next_visit},
    StreamRow{Stream::host, "host", StreamCounts::transfer, Holds::next_visit},
    StreamRow{Stream::tensor, "tensor", StreamCounts::communication, Holds::used},
    StreamRow{Stream::experts, "experts", StreamCounts::communication, Holds::used},
    StreamRow{Stream::context, "context", StreamCounts::communication, Holds::used},
    StreamRow{Stream::matrices, "matrices", StreamCounts::communication},
    StreamRow{Stream::send_forward, "send_forward", StreamCounts::pipeline, Holds::next_visit,
              Direction::down},
    StreamRow{Stream::receive_forward, "receive_forward", StreamCounts::pipeline, Holds::issued,
              Direction::down},
    StreamRow{Stream::send_backward, "send_backward", StreamCounts::pipeline, Holds::next_visit,
              Direction::up},
    StreamRow{Stream::receive_backward, "receive_backward", StreamCounts::pipeline, Holds::issued,
              Direction::up}};
inline constexpr std::size_t kStreams = kStreamRows.size();

constexpr std::size_t index_of(Stream stream) { return static_cast<std::size_t>(stream); }
constexpr const StreamRow& row_of(Stream stream) { return kStreamRows[index_of(stream)]; }
inline constexpr std::size_t kCompute = index_of(Stream::compute);

static_assert(indexed_by(&StreamRow::stream, kStreamRows));

}  // namespace tessera

template <>
struct tessera::EnumWords<tessera::Stream> {
  static constexpr auto table = [] {
    std::array<std::pair<Stream, const char*>, kStreams> words{};
    for (std::size_t i = 0; i < kStreams; ++i)
      words[i] = {kStreamRows[i].stream, kStreamRows[i].name};
    return words;
  }();
};
