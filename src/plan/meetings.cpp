#include "plan/meetings.hpp"

#include <algorithm>
#include <cstring>
#include <deque>

namespace tessera::plan {
namespace {

/// Of each stream, how many meetings are over.
using Counts = std::array<std::int32_t, kStreams>;

void include(Counts& counts, const Counts& others) {
  for (std::size_t s = 0; s < kStreams; ++s) counts[s] = std::max(counts[s], others[s]);
}

const View& data_of(const comm::CollectiveCall& call) {
  struct Data {
    const View& operator()(const comm::AllGather& c) const { return c.full; }
    const View& operator()(const comm::ReduceScatter& c) const { return c.full; }
    const View& operator()(const comm::AllReduceWords& c) const { return c.words; }
    const View& operator()(const comm::Send& c) const { return c.data; }
    const View& operator()(const comm::Receive& c) const { return c.data; }
    const View& operator()(const comm::AllToAll& c) const { return c.send; }
  };
  return std::visit(Data{}, call);
}

/// The op's call if ranks of several stages take part in it.
const comm::CollectiveCall* meeting_call(const Plan& plan, const Op& op) {
  const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
  if (call == nullptr || op.group == MeshGroup::data || op.group == MeshGroup::tensor ||
      plan.group(MeshGroup::pipeline).size == 1) {
    return nullptr;
  }
  return call;
}

bool is_send(const Meeting& m) { return m.call == comm::CollectiveCall(comm::Send{}).index(); }
bool is_receive(const Meeting& m) {
  return m.call == comm::CollectiveCall(comm::Receive{}).index();
}

std::string text_of(const Meeting& m) {
  const std::string size = fmt::format("{} elements of {}", m.elements, to_string(m.type));
  if (is_send(m)) return fmt::format("a message of {} to stage {}", size, m.peer);
  if (is_receive(m)) return fmt::format("a message of {} from stage {}", size, m.peer);
  return fmt::format("a collective of {} with group {}", size, enum_word(m.group));
}

}  // namespace

Meetings meetings_of(const Plan& plan) {
  Meetings meetings;
  std::vector<Counts> over(plan.ops.size());  // once the op is
  std::array<OpId, kStreams> last;            // op of each stream
  last.fill(-1);
  Counts met{};
  for (std::size_t i = 0; i < plan.ops.size(); ++i) {
    const Op& op = plan.ops[i];
    const auto stream = static_cast<std::size_t>(op.stream);
    Counts needs{};
    const auto wait_for = [&](OpId id) {
      if (id >= 0) include(needs, over[static_cast<std::size_t>(id)]);
    };
    for (const OpId w : op.waits) wait_for(w);
    wait_for(last[stream]);                                     // streams are queues, and
    wait_for(last[static_cast<std::size_t>(Stream::compute)]);  // the host says ops in order
    if (const auto* call = meeting_call(plan, op)) {
      const View& data = data_of(*call);
      const auto* send = std::get_if<comm::Send>(call);
      const auto* receive = std::get_if<comm::Receive>(call);
      meetings.push_back({.elements = data.elements(),
                          .peer = send != nullptr      ? send->peer
                                  : receive != nullptr ? receive->peer
                                                       : -1,
                          .needs = needs,
                          .stream = op.stream,
                          .group = op.group,
                          .type = data.type,
                          .call = static_cast<std::uint8_t>(call->index())});
      needs[stream] = ++met[stream];
    }
    over[i] = needs;
    last[stream] = static_cast<OpId>(i);
  }
  return meetings;
}

std::string to_bytes(const Meetings& meetings) {
  return {reinterpret_cast<const char*>(meetings.data()), meetings.size() * sizeof(Meeting)};
}

Meetings from_bytes(std::string_view bytes) {
  TESSERA_CHECK(bytes.size() % sizeof(Meeting) == 0, "{} bytes of meetings", bytes.size());
  Meetings meetings(bytes.size() / sizeof(Meeting));
  if (!bytes.empty()) std::memcpy(meetings.data(), bytes.data(), bytes.size());
  return meetings;
}

namespace {

class PipelinePlay {
 public:
  explicit PipelinePlay(std::span<const Meetings> stages) : stages_(stages.size()) {
    for (std::size_t s = 0; s < stages.size(); ++s) {
      for (const Meeting& m : stages[s])
        stages_[s].queues[static_cast<std::size_t>(m.stream)].push_back(&m);
    }
  }

  std::int64_t run() {
    while (advance()) {
    }
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (const auto& queue : stages_[s].queues) {
        if (queue.empty()) continue;
        throw InternalError(
            fmt::format("broken plans: stage {} waits for ever, here or on another stream: {}", s,
                        text_of(*queue.front())));
      }
    }
    return met_;
  }

 private:
  struct Stage {
    std::array<std::deque<const Meeting*>, kStreams> queues;  // not over yet, by stream
    Counts over{};
  };

  /// What is at the head of a stream, if it may begin.
  const Meeting* head(std::size_t s, Stream stream) const {
    const Stage& stage = stages_[s];
    const auto& queue = stage.queues[static_cast<std::size_t>(stream)];
    if (queue.empty()) return nullptr;
    for (std::size_t i = 0; i < kStreams; ++i) {
      if (stage.over[i] < queue.front()->needs[i]) return nullptr;
    }
    return queue.front();
  }
  void finish(std::size_t s, Stream stream) {
    stages_[s].queues[static_cast<std::size_t>(stream)].pop_front();
    ++stages_[s].over[static_cast<std::size_t>(stream)];
  }

  bool advance() {
    bool moved = false;
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (std::size_t q = 0; q < kStreams; ++q) {
        const auto stream = static_cast<Stream>(q);
        const Meeting* m = head(s, stream);
        if (m != nullptr && meet(s, stream, *m)) moved = true;
      }
    }
    return moved;
  }

  /// The other stages that take part.
  std::vector<std::size_t> others(std::size_t s, const Meeting& m) const {
    if (is_send(m)) {
      check_stage(s, m);
      return {static_cast<std::size_t>(m.peer)};
    }
    if (m.group == MeshGroup::ends) return {s == 0 ? stages_.size() - 1 : 0};
    std::vector<std::size_t> all;
    for (std::size_t o = 0; o < stages_.size(); ++o) {
      if (o != s) all.push_back(o);
    }
    return all;
  }

  /// Completes it on all stages that take part, if they all are there. A receive waits for its
  /// send.
  bool meet(std::size_t s, Stream stream, const Meeting& m) {
    if (is_receive(m)) return false;
    Stream theirs = stream;
    if (is_send(m))
      theirs = stream == Stream::send_forward ? Stream::receive_forward : Stream::receive_backward;
    const auto with = others(s, m);
    for (const std::size_t o : with) {
      const Meeting* other = head(o, theirs);
      if (other == nullptr) return false;
      if (!is_send(m) && (other->group != m.group || other->call != m.call))
        return false;  // it may come to that
      check_fit(s, m, o, *other);
    }
    for (const std::size_t o : with) finish(o, theirs);
    finish(s, stream);
    ++met_;
    return true;
  }

  void check_stage(std::size_t s, const Meeting& m) const {
    if (m.peer < 0 || m.peer >= std::ssize(stages_)) {
      throw InternalError(
          fmt::format("broken plans: stage {} sends to stage {} of {}", s, m.peer, stages_.size()));
    }
  }
  static void check_fit(std::size_t s, const Meeting& m, std::size_t o, const Meeting& other) {
    const bool expected =
        !is_send(m) || (is_receive(other) && other.peer == static_cast<std::int64_t>(s));
    if (expected && m.elements == other.elements && m.type == other.type) return;
    throw InternalError(fmt::format("broken plans: stage {} has {} where stage {} has {}", s,
                                    text_of(m), o, text_of(other)));
  }

  std::vector<Stage> stages_;
  std::int64_t met_ = 0;
};

}  // namespace

std::int64_t check_pipeline(std::span<const Meetings> stages) { return PipelinePlay(stages).run(); }

}  // namespace tessera::plan
