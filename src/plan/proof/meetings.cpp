#include "plan/proof/meetings.hpp"

#include <cstring>

#include "plan/ir/runs.hpp"

namespace tessera::plan {
namespace {

const View& data_of(const comm::CollectiveCall& call) {
  struct Data {
    const View& operator()(const comm::AllGather& c) const { return c.full; }
    const View& operator()(const comm::ReduceScatter& c) const { return c.full; }
    const View& operator()(const comm::AllReduceWords& c) const { return c.words; }
    const View& operator()(const comm::Send& c) const { return c.data; }
    const View& operator()(const comm::Receive& c) const { return c.data; }
    const View& operator()(const comm::AllToAll& c) const { return c.send; }
    const View& operator()(const comm::AllToAllV& c) const { return c.send; }
    const View& operator()(const comm::ExchangeRows& c) const { return c.send; }
  };
  return std::visit(Data{}, call);
}

/// The op's call if ranks of several stages take part in it.
const comm::CollectiveCall* meeting_call(const Plan& plan, const Op& op) {
  const auto* call = std::get_if<comm::CollectiveCall>(&op.call);
  const bool meets = call != nullptr && differ_along(op.group, &MeshPlace::pipeline) &&
                     plan.group(MeshGroup::pipeline).size > 1;
  return meets ? call : nullptr;
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
  const std::int64_t runs = runs_of(plan);
  for (std::int64_t i = 0; i < runs; ++i) {
    const Op& op = plan.op(run_at(plan, i).op);
    const auto* call = meeting_call(plan, op);
    if (call == nullptr) continue;
    const View& data = data_of(*call);
    const auto* send = std::get_if<comm::Send>(call);
    const auto* receive = std::get_if<comm::Receive>(call);
    const std::int64_t peer = send != nullptr      ? send->peer
                              : receive != nullptr ? receive->peer
                                                   : -1;
    meetings.push_back({.elements = data.elements(),
                        .peer = static_cast<std::int32_t>(peer),
                        .stream = op.stream,
                        .group = op.group,
                        .type = data.type,
                        .call = static_cast<std::uint8_t>(call->index())});
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
  explicit PipelinePlay(std::span<const Meetings> stages) {
    for (const Meetings& stage : stages) ahead_.emplace_back(stage);
  }

  std::int64_t run() {
    while (advance()) {
    }
    for (std::size_t s = 0; s < ahead_.size(); ++s) {
      if (ahead_[s].empty()) continue;
      throw InternalError(
          fmt::format("broken plans: stage {} waits for ever: {}", s, text_of(ahead_[s].front())));
    }
    return met_;
  }

 private:
  const Meeting* next(std::size_t s) const {
    return ahead_[s].empty() ? nullptr : ahead_[s].data();
  }
  void finish(std::size_t s) { ahead_[s] = ahead_[s].subspan(1); }

  bool advance() {
    bool moved = false;
    for (std::size_t s = 0; s < ahead_.size(); ++s) {
      const Meeting* m = next(s);
      if (m != nullptr && meet(s, *m)) moved = true;
    }
    return moved;
  }

  /// The other stages that take part in stage s's meeting.
  std::vector<std::size_t> others(std::size_t s, const Meeting& m) const {
    if (is_send(m)) {
      check_stage(s, m);
      return {static_cast<std::size_t>(m.peer)};
    }
    if (m.group == MeshGroup::ends) return {s == 0 ? ahead_.size() - 1 : 0};
    std::vector<std::size_t> all;
    for (std::size_t o = 0; o < ahead_.size(); ++o) {
      if (o != s) all.push_back(o);
    }
    return all;
  }

  /// Completes the meeting on all stages that take part, if all have come to it. It is the send,
  /// not the receive, that completes a message.
  bool meet(std::size_t s, const Meeting& m) {
    if (is_receive(m)) return false;
    const auto with = others(s, m);
    for (const std::size_t o : with) {
      const Meeting* other = next(o);
      if (other == nullptr || !is_counterpart(m, *other)) return false;  // it may still come to it
      check_fit(s, m, o, *other);
    }
    for (const std::size_t o : with) finish(o);
    finish(s);
    ++met_;
    return true;
  }

  /// Whether the other stage has come to what `m` waits for there.
  static bool is_counterpart(const Meeting& m, const Meeting& other) {
    if (!is_send(m)) return other.group == m.group && other.call == m.call;
    return is_receive(other) && row_of(other.stream).direction == row_of(m.stream).direction;
  }

  void check_stage(std::size_t s, const Meeting& m) const {
    if (m.peer < 0 || m.peer >= std::ssize(ahead_)) {
      throw InternalError(
          fmt::format("broken plans: stage {} sends to stage {} of {}", s, m.peer, ahead_.size()));
    }
  }
  static void check_fit(std::size_t s, const Meeting& m, std::size_t o, const Meeting& other) {
    const bool expected =
        !is_send(m) || (is_receive(other) && other.peer == static_cast<std::int64_t>(s));
    if (expected && m.elements == other.elements && m.type == other.type) return;
    throw InternalError(fmt::format("broken plans: stage {} has {} where stage {} has {}", s,
                                    text_of(m), o, text_of(other)));
  }

  std::vector<std::span<const Meeting>> ahead_;  // of each stage, those that are not over
  std::int64_t met_ = 0;
};

}  // namespace

std::int64_t check_pipeline(std::span<const Meetings> stages) { return PipelinePlay(stages).run(); }

}  // namespace tessera::plan
