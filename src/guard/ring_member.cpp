#include "guard/ring_member.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace tessera::guard {

using namespace std::chrono_literals;

namespace {

constexpr std::size_t kLongestText = 4096;

}  // namespace

RingMember::RingMember(int rank, int size, Milliseconds hang_timeout,
                       std::function<Activity()> look, Time now)
    : rank_(rank),
      size_(size),
      hang_timeout_(hang_timeout),
      look_(std::move(look)),
      progress_at_(now),
      looked_at_(now),
      next_look_(now) {
  link(Side::before).peer = (rank + size - 1) % size;
  link(Side::after).peer = (rank + 1) % size;
  for (Link& l : links_) l.last_heard = now;
}

Milliseconds RingMember::heartbeat() const {
  return std::min<Milliseconds>(250ms, hang_timeout_ / 4);
}

Milliseconds RingMember::rest() const {
  if (is_draining()) return 2ms;
  return leaving_at_ ? 20ms : heartbeat();
}

void RingMember::send(Link& link, Kind kind, int about, std::string_view text) {
  if (!link.open) return;
  const auto cut = text.substr(0, kLongestText);
  const FrameHeader header{
      .text_bytes = static_cast<std::uint32_t>(cut.size()), .rank = about, .kind = kind};
  link.unsent.append(reinterpret_cast<const char*>(&header), sizeof header).append(cut);
}

void RingMember::pass_on(const Link* from, Kind kind, int about, std::string_view text) {
  if (is_draining()) return;  // this rank has said its last
  for (Link& l : links_) {
    if (&l != from) send(l, kind, about, text);
  }
}

void RingMember::receive(Side from, std::string_view bytes, Time now) {
  Link& l = link(from);
  l.last_heard = now;
  l.received.append(bytes);
  FrameHeader header;
  while (l.open && l.received.size() >= sizeof header) {
    std::memcpy(&header, l.received.data(), sizeof header);
    if (header.text_bytes > kLongestText) return close(l, now);
    if (l.received.size() < sizeof header + header.text_bytes) break;
    std::string text = l.received.substr(sizeof header, header.text_bytes);
    l.received.erase(0, sizeof header + header.text_bytes);
    handle(l, header, std::move(text), now);
  }
}

void RingMember::handle(Link& from, const FrameHeader& header, std::string text, Time now) {
  switch (header.kind) {
    case Kind::heartbeat: from.doing = std::move(text); return;
    case Kind::goodbye: from.said_goodbye = true; return;
    case Kind::casualty: learn_of(header.rank, std::move(text), &from, now); return;
    case Kind::bystander:
      if (report_.bystanders.emplace(header.rank, text).second)
        pass_on(&from, Kind::bystander, header.rank, text);
      return;
  }
}

void RingMember::closed(Side from, Time now) { close(link(from), now); }

void RingMember::close(Link& link, Time now) {
  link.open = false;
  link.unsent.clear();
  // A neighbour that leaves because of a casualty has said so before it closed; one that has said
  // goodbye is done.
  if (link.said_goodbye || leaving_at_ || phase_ == Phase::parting) return;
  learn_of(
      link.peer,
      "its connection closed: the process was killed, or crashed; last heard of in " + link.doing,
      &link, now);
}

void RingMember::learn_of(int casualty, std::string text, const Link* from, Time now) {
  const auto [entry, news] = report_.casualties.emplace(casualty, std::move(text));
  if (!news) return;
  pass_on(from, Kind::casualty, casualty, entry->second);
  if (leaving_at_) return;
  leaving_at_ = now + 300ms + size_ * 100us;  // time for the news to go round and all to answer
  if (casualty == rank_) return;
  const std::string doing = look_().doing;
  report_.bystanders.emplace(rank_, doing);
  pass_on(nullptr, Kind::bystander, rank_, doing);
}

/// Sends heartbeats, and notices silent neighbours and a lack of progress.
void RingMember::look_around(Time now) {
  const Activity activity = look_();
  // If this process itself was stopped for a while, it cannot tell how long the others were silent.
  const bool slept = now - looked_at_ > heartbeat() + hang_timeout_ / 2;
  looked_at_ = now;
  if (slept || activity.progress != progress_ || !activity.must_advance) {
    progress_ = activity.progress;
    progress_at_ = now;
  }
  const auto patience = fmt::format("{:.0f} s", static_cast<double>(hang_timeout_.count()) / 1e3);
  for (Link& l : links_) {
    send(l, Kind::heartbeat, rank_, activity.doing);
    if (slept) l.last_heard = now;
    if (l.open && !l.said_goodbye && now - l.last_heard > hang_timeout_) {
      learn_of(l.peer,
               fmt::format("silent for {} (guard.hang_timeout): stopped, or its node is out of "
                           "reach; last heard of in {}",
                           patience, l.doing),
               &l, now);
    }
  }
  if (now - progress_at_ > hang_timeout_) {
    learn_of(rank_,
             fmt::format("no progress for {} (guard.hang_timeout) in {}", patience, activity.doing),
             nullptr, now);
  }
}

void RingMember::fail(ExitCode code, std::string_view why) {
  if (failure_) return;
  failure_ = Failure{.code = code, .why = std::string(why)};
}

void RingMember::part() {
  if (phase_ != Phase::watching) return;
  phase_ = Phase::parting;
  for (Link& l : links_) send(l, Kind::goodbye, rank_, "");
}

void RingMember::leave(ExitCode code) {
  phase_ = Phase::leaving;
  exit_code_ = code;
  drain_until_.reset();
}

void RingMember::advance(Time now) {
  if (phase_ == Phase::watching) {
    if (now >= next_look_ && !leaving_at_) {
      look_around(now);
      next_look_ = now + heartbeat();
    }
    if (failure_ && !leaving_at_) {
      if (!echo_until_) echo_until_ = now + (failure_->code == ExitCode::comm ? 2000ms : 0ms);
      if (now >= *echo_until_) {
        learn_of(rank_,
                 fmt::format("left with exit code {}: {}", static_cast<int>(failure_->code),
                             failure_->why),
                 nullptr, now);
      }
    }
    const auto heard = report_.casualties.size() + report_.bystanders.size();
    if (leaving_at_ && (now >= *leaving_at_ || heard >= static_cast<std::size_t>(size_))) {
      const bool alone = failure_ && report_.casualties.contains(rank_);
      leave(alone ? failure_->code : ExitCode::comm);
    }
    return;
  }
  // The time limit begins only now: a rank that leaves has written the report in between, which may
  // take long.
  if (!drain_until_) drain_until_ = now + (phase_ == Phase::parting ? 5s : Milliseconds(500));
  const bool heard_out = !is_open(Side::before) && !is_open(Side::after);
  if (!heard_out && now < *drain_until_) return;
  // A rank failed alone while the others were finishing: it will not be there when MPI ends.
  if (phase_ == Phase::parting && !report_.casualties.empty()) return leave(ExitCode::comm);
  phase_ = Phase::gone;
}

bool RingMember::reports() const {
  const bool speaks = !report_.casualties.contains(rank_) || report_.casualties.size() > 1 ||
                      exit_code_ == ExitCode::comm;
  return speaks && (report_.bystanders.empty() || report_.bystanders.begin()->first >= rank_);
}

}  // namespace tessera::guard
