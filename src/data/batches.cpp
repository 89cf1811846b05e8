#include "data/batches.hpp"

#include <algorithm>

#include "core/at.hpp"
#include "core/error.hpp"
#include "core/random.hpp"
#include "core/thread.hpp"

namespace tessera::data {

void DocumentRule::add_padding(std::vector<std::int64_t>& ends, std::int64_t count,
                               std::int64_t length) const {
  for (std::int64_t end = count; longest > 0 && length - end > longest;)
    ends.push_back(end += longest);
}

DocumentRule document_rule(const deck::Deck& deck) {
  constexpr std::int64_t kPadding = 64;  // tokens that see each other for nothing
  DocumentRule rule{.separate = deck.data.documents == deck::Documents::separate,
                    .positions = deck.data.positions == deck::Positions::document,
                    .whole = deck.batch.token_budget || deck::has_pairs(deck.task.kind) ||
                             deck::draws_answers(deck.task.kind),
                    .longest = std::min(deck.model.context, kPadding),
                    .separator = {}};
  if (deck.data.separator) rule.separator = static_cast<std::int32_t>(*deck.data.separator);
  return rule;
}

BatchRules batch_rules(const deck::Deck& deck, const io::TokenCorpus& corpus) {
  BatchRules rules{.documents = document_rule(deck),
                   .masking = {},
                   .labels = {},
                   .references = {},
                   .scored = deck.task.kind == deck::TaskKind::reward,
                   .most_documents = deck.batch.documents.value_or(1)};
  if (deck.task.labels) rules.labels = std::make_shared<LabelledDocuments>(corpus, deck.task);
  if (deck::has_reference(deck.task.kind))
    rules.references = std::make_shared<References>(open_references(deck, corpus));
  if (deck.task.kind == deck::TaskKind::mlm) {
    rules.masking =
        MaskRule{.share = deck.task.masked.value_or(0),
                 .mask = static_cast<std::int32_t>(deck.task.mask_token.value_or(0)),
                 .never = {deck.task.never_masked.begin(), deck.task.never_masked.end()},
                 .vocab = deck.model.vocab,
                 .seed = static_cast<std::uint64_t>(deck.run.seed)};
  }
  return rules;
}

/// How many of these targets count.
static std::int64_t counted_of(std::span<const std::int32_t> targets) {
  return std::ranges::count_if(targets, [](std::int32_t target) { return target >= 0; });
}

StepTokens Batches::read(std::int64_t first, const BatchShare& share) const {
  StepTokens step{.first = first, .share = share};
  const std::int64_t sequences = share.micro_batches * share.micro, length = share.sequence;
  step.tokens.reserve(static_cast<std::size_t>(sequences * length));
  step.targets.reserve(static_cast<std::size_t>(sequences * length));
  for (std::int64_t k = 0; k < share.micro_batches; ++k) {
    for (std::int64_t b = 0; b < share.micro; ++b) {
      const std::int64_t sample = first + share.first_sample(k) + b;
      const std::size_t before = step.targets.size();
      step.samples.push_back(sample);
      const Stretches all = tokens_of_(sample);
      const Range tokens = all.empty() ? Range{} : all.front();
      labels_ || scored_ ? read_documents(all, length, step)
                         : read_sequence(sample, tokens, length, step);
      step.counted.push_back(counted_of(std::span(step.targets).subspan(before)));
      step.tallies.push_back(static_cast<std::int32_t>(corpus_.entry_of(tokens.begin)));
      if (references_) step.reference.push_back(all.empty() ? 0 : references_->at(tokens.begin));
      if (paired_ && sample % 2 == 1) count_pair(step);
    }
  }
  step.keep_chunks(documents_.positions);
  return step;
}

/// The last two samples are a pair.
void Batches::count_pair(StepTokens& step) const {
  std::int64_t &rejected = step.counted.back(), &chosen = *(step.counted.end() - 2);
  chosen = chosen + rejected > 0 ? 1 : 0;
  rejected = 0;
}

/// Adds a sample as a sequence of `length` tokens, and as targets those that follow them, or those
/// that are masked. What is left of it is padding: documents of their own, without targets.
void Batches::read_sequence(std::int64_t sample, Range tokens, std::int64_t length,
                            StepTokens& step) const {
  if (tokens.count() >= length) {
    // After a rollback a step may have samples that were cut for a later phase, of other lengths.
    if (!documents_.whole) tokens.begin = std::min(tokens.begin, corpus_.tokens() - (length + 1));
    tokens.end = tokens.begin + length;
  }
  const std::int64_t count = tokens.count(), shift = masking_ ? 0 : 1,
                     followed = std::min(tokens.end + shift, corpus_.tokens());
  std::vector<std::int32_t> row(static_cast<std::size_t>(followed - tokens.begin));
  corpus_.read(tokens.begin, row);
  const std::size_t first = step.tokens.size();
  step.tokens.insert(step.tokens.end(), row.begin(), row.begin() + count);
  step.tokens.resize(first + static_cast<std::size_t>(length));
  step.targets.insert(step.targets.end(), row.begin() + shift, row.end());
  step.targets.resize(first + static_cast<std::size_t>(length), -1);
  const std::span targets = std::span(step.targets).subspan(first);
  if (corpus_.has_targets()) {
    std::vector<std::uint8_t> counts(row.size() - static_cast<std::size_t>(shift));
    corpus_.read_targets(tokens.begin + shift, counts);
    for (std::size_t t = 0; t < counts.size(); ++t) {
      if (counts[t] == 0) targets[t] = -1;
    }
  }
  if (masking_) mask(sample, std::span(step.tokens).subspan(first), targets);
  if (!documents_.separate) return;
  auto ends = document_ends(tokens, row);
  if (!masking_) {
    for (const std::int64_t end : ends) targets[static_cast<std::size_t>(end - 1)] = -1;
  }
  if (count < length && (ends.empty() || ends.back() < count)) ends.push_back(count);
  documents_.add_padding(ends, count, length);
  step.add_documents(ends, length);
}

/// Adds a sample as documents one behind another, and as targets their labels or those of their
/// tokens, or that they have scores. What is left of it is padding, which has no target that
/// counts.
void Batches::read_documents(const Stretches& documents, std::int64_t length,
                             StepTokens& step) const {
  const std::size_t tokens = step.tokens.size(), targets = step.targets.size();
  std::vector<std::int64_t> ends;
  std::int64_t end = 0;
  for (const Range document : documents) {
    read_document(document, step);
    ends.push_back(end += document.count());
  }
  TESSERA_CHECK(end <= length, "documents of {} tokens in a sequence of {}", end, length);
  const auto whole = static_cast<std::size_t>(length);
  step.tokens.resize(tokens + whole);
  step.targets.resize(
      targets + (one_target_each() ? static_cast<std::size_t>(most_documents_) : whole), -1);
  documents_.add_padding(ends, end, length);
  step.add_documents(ends, length);
}

void Batches::read_document(Range tokens, StepTokens& step) const {
  const auto document = labels_ ? labels_->at(tokens.begin)
                                : LabelledDocuments::Document{.end = tokens.end, .label = 0};
  // One that is cut keeps what closes it.
  const std::int64_t closing =
      document.end > tokens.end ? std::min(document.closing, tokens.count()) : 0;
  const Range text{tokens.begin, tokens.end - closing}, end{document.end - closing, document.end};
  const auto read = [&](std::vector<std::int32_t>& into, const auto& source) {
    const std::size_t first = into.size();
    into.resize(first + static_cast<std::size_t>(tokens.count()));
    const std::span row = std::span(into).subspan(first);
    source.read(text.begin, row.first(static_cast<std::size_t>(text.count())));
    if (closing > 0) source.read(end.begin, row.subspan(static_cast<std::size_t>(text.count())));
  };
  read(step.tokens, corpus_);
  if (one_target_each()) {
    step.targets.push_back(document.label);
  } else {
    read(step.targets, *labels_->words());
  }
}

/// Chooses among the targets that count, and masks tokens.
void Batches::mask(std::int64_t sample, std::span<std::int32_t> tokens,
                   std::span<std::int32_t> targets) const {
  const MaskRule& rule = *masking_;
  const RandomKey key = random_key(rule.seed, RandomPurpose::masking, 0);
  const auto uniform = [&](std::size_t place, std::uint64_t which) {
    return to_uniform(random_bits(key, static_cast<std::uint64_t>(sample), 4 * place + which));
  };
  for (std::size_t t = 0; t < targets.size(); ++t) {
    const bool may =
        targets[t] >= 0 && std::ranges::find(rule.never, targets[t]) == rule.never.end();
    if (!may || uniform(t, 0) >= rule.share) {
      targets[t] = -1;
      continue;
    }
    const double what = uniform(t, 1);
    if (what < 0.8) {
      tokens[t] = rule.mask;
    } else if (what < 0.9) {
      tokens[t] = static_cast<std::int32_t>(uniform(t, 2) * static_cast<double>(rule.vocab));
    }
  }
}

/// The tokens of a sequence behind which a document ends. The next one's first token is nobody's
/// target.
std::vector<std::int64_t> Batches::document_ends(Range tokens,
                                                 std::span<const std::int32_t> row) const {
  std::vector<std::int64_t> ends;
  if (documents_.separator) {
    for (std::int64_t t = 0; t < tokens.count(); ++t) {
      if (row[static_cast<std::size_t>(t)] == *documents_.separator) ends.push_back(t + 1);
    }
  } else {
    for (const std::int64_t end : corpus_.document_ends(tokens)) ends.push_back(end - tokens.begin);
  }
  return ends;
}

void Batches::prefetch(std::int64_t first, const BatchShare& share) {
  std::packaged_task<StepTokens()> reading([this, first, share] { return read(first, share); });
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

std::exception_ptr Batches::begin_or_blank(std::int64_t first, const BatchShare& share) {
  try {
    begin(first, share);
    return nullptr;
  } catch (const Error&) {
    begin_blank(share);
    return std::current_exception();
  }
}

void Batches::begin_blank(const BatchShare& share) {
  const std::int64_t sequences = share.micro_batches * share.micro;
  current_ = {.first = -1, .share = share};
  current_.tokens.resize(static_cast<std::size_t>(sequences * share.sequence));
  current_.targets.assign(one_target_each() ? static_cast<std::size_t>(sequences * most_documents_)
                                            : current_.tokens.size(),
                          -1);
  current_.samples.resize(static_cast<std::size_t>(sequences));
  current_.counted.resize(current_.samples.size());
  current_.tallies.resize(current_.samples.size());
  if (references_) current_.reference.resize(current_.samples.size());
  for (std::int64_t i = 0; documents_.separate && i < sequences; ++i) {
    std::vector<std::int64_t> ends;
    documents_.add_padding(ends, 0, share.sequence);
    current_.add_documents(ends, share.sequence);
  }
  current_.keep_chunks(documents_.positions);
}

void StepTokens::keep_chunks(bool by_document) {
  if (share.context_shares == 1) return;
  const StepTokens whole = std::exchange(*this, {.first = first, .share = share});
  documents = whole.documents;
  share.each_row([&](std::int64_t sample, std::int64_t start, std::int64_t length) {
    const auto begin = static_cast<std::ptrdiff_t>(sample * share.sequence + start);
    const auto of = [&](const auto& all) {
      return std::span(all).subspan(static_cast<std::size_t>(begin),
                                    static_cast<std::size_t>(length));
    };
    std::ranges::copy(of(whole.tokens), std::back_inserter(tokens));
    std::ranges::copy(of(whole.targets), std::back_inserter(targets));
    for (const auto drawn :
         {&StepTokens::advantages, &StepTokens::weights, &StepTokens::drawn_losses,
          &StepTokens::reference_losses, &StepTokens::returns, &StepTokens::drawn_values}) {
      if (!(whole.*drawn).empty())
        std::ranges::copy(of(whole.*drawn), std::back_inserter(this->*drawn));
    }
    samples.push_back(at(whole.samples, sample));
    tallies.push_back(at(whole.tallies, sample));
    counted.push_back(counted_of(of(whole.targets)));
    for (std::int64_t t = begin; t < begin + length; ++t) {
      const bool of_document = by_document && !documents.empty();
      const std::int64_t from = of_document ? at(documents, 2 * t) : 0,
                         to = of_document ? at(documents, 2 * t + 1) : share.sequence;
      positions.push_back(static_cast<std::int32_t>(from - start));
      positions.push_back(static_cast<std::int32_t>(to - start));
    }
  });
}

std::vector<std::int64_t> StepTokens::count_by_tally(std::int64_t tallies_of_step) const {
  std::vector<std::int64_t> all(static_cast<std::size_t>(tallies_of_step));
  for (std::size_t i = 0; i < tallies.size() && !all.empty(); ++i)
    all.at(static_cast<std::size_t>(tallies[i])) += counted[i];
  return all;
}

void StepTokens::add_documents(std::span<const std::int64_t> ends, std::int64_t length) {
  std::int64_t begin = 0;
  const auto add = [&](std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      documents.push_back(static_cast<std::int32_t>(begin));
      documents.push_back(static_cast<std::int32_t>(end));
    }
    begin = end;
  };
  for (const std::int64_t end : ends) add(end);
  add(length);  // nothing where the last one ends there
}

void StepTokens::load(std::int64_t k, const plan::LoadBatch& views) const {
  const auto copy = [k](const auto& from, const View& to) {
    using T = typename std::decay_t<decltype(from)>::value_type;
    if (to) std::copy_n(from.begin() + k * to.elements(), to.elements(), to.as<T>());
  };
  copy(tokens, views.tokens);
  // Shifted before the sequence is split; of documents' labels one a sequence.
  copy(targets, views.targets);
  copy(samples, views.samples);
  copy(documents, views.documents);
  copy(tallies, views.tallies);
  copy(positions, views.positions);
  copy(reference, views.reference);
  copy(advantages, views.advantages);
  copy(weights, views.weights);
  copy(drawn_losses, views.drawn_losses);
  copy(reference_losses, views.reference_losses);
  copy(returns, views.returns);
  copy(drawn_values, views.drawn_values);
}

}  // namespace tessera::data
