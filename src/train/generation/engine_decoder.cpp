#include "train/generation/engine_decoder.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>

#include "train/guards/leave.hpp"

namespace tessera::train {

EngineDecoder::EngineDecoder(Engine& engine, const Job& job, const setup::DecoderSize& size,
                             std::optional<std::filesystem::path> directory)
    : engine_(engine),
      job_(job),
      size_(size),
      directory_(std::move(directory)),
      shapes_(setup::decoder_shapes(size)),
      lengths_(static_cast<std::size_t>(shapes_.front().slots)),
      pages_(lengths_.size()),
      free_(static_cast<std::size_t>(shapes_.front().pages)) {
  std::iota(free_.begin(), free_.end(), 0);
  TESSERA_CHECK(!in_step() || (size.micro_batches == 1 && size.prefill != setup::Prefill::several),
                "{} micro-batches of sequences, or several prompts in a pass, in step",
                size.micro_batches);
  // A GPU's products of a row may have other bits beside others.
  if (engine.inputs().offload.device_is_host) together_ = setup::together_shapes(size);
}

bool EngineDecoder::in_step() const {
  const plan::PlanInputs& in = engine_.inputs();
  return in.layout.mesh.experts > 1 || (in.layout.mesh.data > 1 && in.sharded().parameters);
}

const plan::PlanShape& EngineDecoder::shape_for(std::int64_t tokens) const {
  const auto fits = std::find_if(shapes_.begin() + 1, shapes_.end(),
                                 [&](const auto& shape) { return shape.sequence >= tokens; });
  return fits == shapes_.end() ? shapes_.back() : *fits;
}

std::int64_t EngineDecoder::passes_of(std::span<const std::int64_t> lengths) const {
  const std::int64_t most = shapes_.back().sequence;
  if (lengths.empty()) return 0;
  if (setup::is_side_by_side(size_.prefill)) return ceil_div(std::ranges::max(lengths), most);
  std::int64_t passes = 0;
  for (const std::int64_t length : lengths) passes += ceil_div(length, most);
  return passes;
}

void EngineDecoder::forget(std::int64_t slot) {
  at(lengths_, slot) = 0;
  free_.insert(free_.end(), at(pages_, slot).begin(), at(pages_, slot).end());
  at(pages_, slot).clear();
}

void EngineDecoder::reserve(std::span<const Prompt> prompts) {
  for (const auto& [slot, tokens, most] : prompts) {
    const std::int64_t count = pages_of(most);
    TESSERA_CHECK(at(pages_, slot).empty() && count <= free_pages(),
                  "{} pages for slot {}, which has {}, of {}", count, slot, at(pages_, slot).size(),
                  free_.size());
    at(pages_, slot).assign(free_.end() - count, free_.end());
    free_.resize(free_.size() - static_cast<std::size_t>(count));
  }
}

void EngineDecoder::begin(std::span<const Prompt> prompts, const Begun& begun) {
  reserve(prompts);
  setup::is_side_by_side(size_.prefill) ? begin_all(prompts, begun) : begin_each(prompts, begun);
}

EngineDecoder::Next EngineDecoder::all_but_last(const Prompt& prompt) {
  const auto most = static_cast<std::size_t>(shapes_.back().sequence);
  std::span<const std::int32_t> left = prompt.tokens;
  for (; left.size() > most; left = left.subspan(most)) {
    const Next next{.slot = prompt.slot, .tokens = left.first(most), .all = std::ssize(left)};
    pass(shapes_.back(), std::span(&next, 1));
  }
  return {.slot = prompt.slot, .tokens = left, .all = std::ssize(left)};
}

void EngineDecoder::begin_each(std::span<const Prompt> prompts, const Begun& begun) {
  std::map<std::int64_t, std::vector<std::size_t>> of_length;  // prompts whose last passes have one
  std::vector<Next> last;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    last.push_back(all_but_last(prompts[i]));
    of_length[shape_for(std::ssize(last.back().tokens)).sequence].push_back(i);
  }
  for (const auto& [length, which] : of_length) {
    std::span<const std::size_t> left = which;
    const auto pass_of_next = [&](const plan::PlanShape& shape) {
      const auto these = left.first(static_cast<std::size_t>(shape.micro));
      std::vector<Next> next;
      for (const std::size_t i : these) next.push_back(last[i]);
      const std::span<const float> logits = pass(shape, next);
      const std::size_t outputs = logits.size() / these.size();
      for (std::size_t i = 0; i < these.size(); ++i)
        begun(these[i], logits.subspan(i * outputs, outputs));
      left = left.subspan(these.size());
    };
    for (const plan::PlanShape& shape : together_) {
      while (shape.sequence == length && std::ssize(left) >= shape.micro) pass_of_next(shape);
    }
    while (!left.empty()) pass_of_next(shape_for(length));
  }
}

void EngineDecoder::begin_all(std::span<const Prompt> prompts, const Begun& begun) {
  std::size_t longest = 0;
  for (const Prompt& prompt : prompts) longest = std::max(longest, prompt.tokens.size());
  for (std::size_t first = 0; first < longest;) {
    const plan::PlanShape& shape = shape_for(static_cast<std::int64_t>(longest - first));
    const auto most = static_cast<std::size_t>(shape.sequence);
    std::vector<Next> next = no_tokens();
    std::vector<std::size_t> ended;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      const std::span<const std::int32_t> tokens = prompts[i].tokens;
      if (tokens.size() <= first) continue;
      Next& own = at(next, prompts[i].slot);
      own.tokens = tokens.subspan(first, std::min(most, tokens.size() - first));
      own.all = static_cast<std::int64_t>(tokens.size() - first);
      if (tokens.size() <= first + most) ended.push_back(i);
    }
    const std::span<const float> logits = pass(shape, next);
    const std::size_t outputs = logits.size() / next.size();
    for (const std::size_t i : ended)
      begun(i, logits.subspan(static_cast<std::size_t>(prompts[i].slot) * outputs, outputs));
    first += most;
  }
}

std::span<const float> EngineDecoder::advance_each(std::span<const std::int32_t> tokens) {
  TESSERA_CHECK(std::ssize(tokens) == slots(), "{} tokens for {} slots", tokens.size(), slots());
  std::vector<Next> next;
  for (std::size_t slot = 0; slot < tokens.size(); ++slot) {
    const std::size_t count = tokens[slot] >= 0 ? 1 : 0;
    next.push_back({.slot = static_cast<std::int64_t>(slot),
                    .tokens = tokens.subspan(slot, count),
                    .all = static_cast<std::int64_t>(count)});
  }
  return pass(shapes_.front(), next);
}

void EngineDecoder::renew() {
  const plan::PlanInputs& in = engine_.inputs();
  if (!in.sharding.secondary && !in.sharded().publishes()) return;
  pass(setup::renewing_shape(size_), no_tokens());
}

void EngineDecoder::idle_prompts(std::int64_t passes) {
  // Of several shapes those of single tokens take less time than any.
  const plan::PlanShape& shape =
      size_.prefill == setup::Prefill::all_alike ? shapes_.back() : shapes_.front();
  while (passed_ < passes) pass(shape, no_tokens());
}

void EngineDecoder::idle_tokens(std::int64_t passes) {
  while (passed_ < passes) pass(shapes_.front(), no_tokens());
}

std::vector<EngineDecoder::Next> EngineDecoder::no_tokens() const {
  std::vector<Next> none(lengths_.size());
  for (std::size_t slot = 0; slot < none.size(); ++slot)
    none[slot].slot = static_cast<std::int64_t>(slot);
  return none;
}

void EngineDecoder::tell(const Next& next, kernels::CachedSample& cached,
                         std::span<std::int32_t> pages) const {
  const auto count = static_cast<std::int32_t>(next.tokens.size());
  const std::int64_t before = length(next.slot);
  const std::vector<std::int32_t>& own = at(pages_, next.slot);
  TESSERA_CHECK(before + count <= std::min(size_.room, std::ssize(own) * kernels::kPageTokens),
                "{} tokens after {} of {}, in {} pages", count, before, size_.room, own.size());
  cached = {.before = static_cast<std::int32_t>(count > 0 ? before : 0),
            .count = count,
            .tokens = static_cast<std::int32_t>(before + next.all)};
  std::ranges::fill(pages, 0);
  std::ranges::copy(own, pages.begin());
}

std::span<const float> EngineDecoder::pass(const plan::PlanShape& shape,
                                           std::span<const Next> next) {
  TESSERA_CHECK(std::ssize(next) == shape.micro * shape.micro_batches, "{} sequences of {} x {}",
                next.size(), shape.micro_batches, shape.micro);
  const auto load = [&](std::int64_t k, const plan::LoadBatch& views) {
    auto* ids = views.tokens.as<std::int32_t>();
    auto* cached = reinterpret_cast<kernels::CachedSample*>(views.cached.data);
    const auto most = static_cast<std::size_t>(views.pages.extent(1));
    const std::span pages(views.pages.as<std::int32_t>(),
                          static_cast<std::size_t>(views.pages.elements()));
    auto* counted = views.counted ? views.counted.as<std::int32_t>() : nullptr;
    std::fill_n(ids, views.tokens.elements(), 0);
    for (std::int64_t b = 0; b < shape.micro; ++b) {
      const Next& own = at(next, k * shape.micro + b);
      std::ranges::copy(own.tokens, ids + b * shape.sequence);
      const auto count = static_cast<std::int32_t>(own.tokens.size());
      tell(own, cached[b], pages.subspan(static_cast<std::size_t>(b) * most, most));
      for (std::int64_t t = 0; counted != nullptr && t < shape.sequence; ++t, counted += 2) {
        // Of a sequence without tokens all is padding.
        const bool there = t < count || count == 0;
        counted[0] = there ? 0 : count;
        counted[1] = t < count ? count : static_cast<std::int32_t>(shape.sequence);
      }
    }
  };
  const auto run = [&] { engine_.generate(engine_.prepared(shape), load, logits_); };
  job_.control.size() > 1 ? or_leave_alone(job_, directory_, run) : run();
  ++passed_;
  for (const auto& [slot, tokens, all] : next) at(lengths_, slot) += std::ssize(tokens);
  return logits_;
}

void go_on(EngineDecoder& decoder, Completions& completions,
           std::span<const Completions::Prompt> begun, std::int64_t most_passes) {
  const std::int64_t of_prompts = decoder.passed() + most_passes;
  std::exception_ptr failed;
  const auto attempt = [&](auto&& work) {
    try {
      if (!failed) work();
    } catch (...) {
      failed = std::current_exception();
    }
  };
  attempt([&] { completions.add(begun); });
  if (decoder.in_step()) decoder.idle_prompts(of_prompts);
  attempt([&] {
    for (int i = 0; i < kTokensAtOnce && !completions.idle(); ++i) completions.step();
  });
  if (decoder.in_step()) decoder.idle_tokens(of_prompts + kTokensAtOnce);
  if (failed) std::rethrow_exception(failed);
}

}  // namespace tessera::train
