// Meetings: the messages and collectives that need ranks of several pipeline stages at once. They
// are all that one stage must know of another's plan to prove that both fit, and small enough to be
// sent.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "plan/ir/plan.hpp"

namespace tessera::plan {

struct Meeting {
  std::int64_t elements = 0;
  std::int32_t peer = -1;  // stage of a message's other end
  Stream stream = Stream::compute;
  MeshGroup group = MeshGroup::world;
  DType type = DType::f32;
  std::uint8_t call = 0;  // which of comm::CollectiveCall
};
static_assert(std::has_unique_object_representations_v<Meeting>);  // its bytes are sent and hashed

/// In the plan's order, which is the order in which the stage comes to them.
using Meetings = std::vector<Meeting>;
Meetings meetings_of(const Plan& plan);

/// The bytes of meetings as text that can be sent to another rank.
std::string to_bytes(const Meetings& meetings);
Meetings from_bytes(std::string_view bytes);

/// Plays the meetings of all stages of one pipeline, first to last. Proves that every message has a
/// receiver that expects as many elements of its type, that collectives have the same members and
/// elements on each stage, and that nobody waits for ever, even if no message leaves before its
/// receiver is there and a stage begins a meeting only when those before it are over, whatever
/// their streams. (NCCL does so in CUDA graphs with drivers below 12.9.) It follows that all stages
/// have their meetings in one order, and that nothing else that a plan's ops wait for can hold one
/// up. Returns the number of meetings. Throws InternalError naming the stages, because plans that
/// do not fit are a bug.
std::int64_t check_pipeline(std::span<const Meetings> stages);

}  // namespace tessera::plan
