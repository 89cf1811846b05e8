#include "data/batches.hpp"

#include <algorithm>

#include "core/thread.hpp"

namespace tessera::data {

Batches::Step Batches::read(std::int64_t first, const BatchShare& share) const {
  Step step{.first = first, .share = share, .tokens = {}, .samples = {}};
  const std::int64_t sequences = share.micro_batches * share.micro;
  const auto length = static_cast<std::size_t>(share.sequence + 1);
  step.tokens.resize(static_cast<std::size_t>(sequences) * length);
  // After a rollback a step may have samples that were cut for a later phase, of other lengths.
  const std::int64_t last = corpus_.tokens() - (share.sequence + 1);
  std::span<std::int32_t> out(step.tokens);
  for (std::int64_t k = 0; k < share.micro_batches; ++k) {
    for (std::int64_t b = 0; b < share.micro; ++b) {
      const std::int64_t sample = first + share.first_sample(k) + b;
      step.samples.push_back(sample);
      corpus_.read(std::min(begin_of_(sample), last), out.first(length));
      out = out.subspan(length);
    }
  }
  return step;
}

void Batches::prefetch(std::int64_t first, const BatchShare& share) {
  std::packaged_task<Step()> reading([this, first, share] { return read(first, share); });
  pending_ = reading.get_future();
  reader_ = start_thread("tokens", std::move(reading));
}

void Batches::begin(std::int64_t first, const BatchShare& share) {
  if (pending_.valid()) {
    current_ = pending_.get();
    if (current_.first == first && current_.share == share) return;
  }
  current_ = read(first, share);
}

void Batches::begin_blank(const BatchShare& share) {
  const auto sequences = static_cast<std::size_t>(share.micro_batches * share.micro);
  current_ = {.first = -1, .share = share, .tokens = {}, .samples = {}};
  current_.tokens.resize(sequences * static_cast<std::size_t>(share.sequence + 1));
  current_.samples.resize(sequences);
}

void Batches::load(std::int64_t k, const plan::LoadBatch& views) const {
  const std::int64_t micro = current_.share.micro, sequence = current_.share.sequence;
  auto* tokens = views.tokens.as<std::int32_t>();
  auto* targets = views.targets.as<std::int32_t>();
  for (std::int64_t b = 0; b < micro; ++b) {
    const std::int32_t* row = current_.tokens.data() + (k * micro + b) * (sequence + 1);
    std::copy_n(row, sequence, tokens + b * sequence);
    std::copy_n(row + 1, sequence,
                targets + b * sequence);  // targets are shifted before the sequence is split
    views.samples.as<std::int64_t>()[b] = current_.samples[static_cast<std::size_t>(k * micro + b)];
  }
}

}  // namespace tessera::data
