#include "plan/proof/losses.hpp"

#include <array>
#include <map>

#include "core/range_map.hpp"
#include "plan/proof/reject.hpp"

namespace tessera::plan {
namespace {

class LossCheck {
 public:
  LossCheck(const Plan& plan, const Homes& homes) : plan_(plan), homes_(homes) {}

  void run() {
    for (at_ = 0; at_ < plan_.ops.size(); ++at_) {
      const plan::Call& call = plan_.ops[at_].call;
      if (const auto* batch = std::get_if<LoadBatch>(&call)) {
        batches_[buffer_of(batch->targets)] = *batch;
        loaded_.push_back(*batch);
      }
      if (const auto* collective = std::get_if<comm::CollectiveCall>(&call))
        sums_words(*collective);
      if (const auto* kernel = std::get_if<kernels::KernelCall>(&call)) {
        std::visit([&](const auto& args) { follow(args); }, *kernel);
        if (plan_.scores) note_writers();
      }
    }
    check_scores();
    const bool adds = plan_.place.tensor == 0, tallies = adds && plan_.shape.tallies > 0;
    for (const auto& [buffer, losses] : made_) {
      if (losses.added != (adds ? 1 : 0) || losses.tallied != (tallies ? 1 : 0))
        reject(plan_, losses.made, "makes losses that are not in the step's sums once");
      if (!summed_) reject(plan_, losses.made, "makes losses that ranks never add up");
      if (losses.valued != static_cast<bool>(batches_[losses.targets].returns))
        reject(plan_, losses.made, "makes losses without those of values");
    }
    for (const auto& [buffer, routed] : routed_) {
      if (routed.counted != (adds ? 1 : 0))
        reject(plan_, routed.made, "chooses experts that are not in the step's counts once");
    }
    for (std::size_t u = 0; u < plan_.shares.size(); ++u) {
      if ((plan_.shares[u].balance >= 0) != balanced_.contains(static_cast<std::int32_t>(u)))
        throw InternalError(fmt::format("broken plan: unit {} is not balanced as it should be", u));
    }
    for (auto& [buffer, slopes] : slopes_) {
      slopes.used.each({0, plan_.buffer(buffer).bytes}, [&, made = slopes.made](bool used) {
        if (!used) reject(plan_, made, "makes slopes of losses that make no gradient");
      });
    }
    for (const auto& [buffer, compared] : compared_) {
      for (const int added : compared.added) {
        if (added != (adds ? 1 : 0))
          reject(plan_, compared.made, "says what is not in the step's sums once");
      }
    }
  }

 private:
  /// A buffer of losses, each element with the target at the same place of `targets`.
  struct Losses {
    std::size_t made = 0;  // the last op that has made some
    RangeMap<bool> there;
    BufferId targets = -1;
    int added = 0, tallied = 0;
    bool valued = false;  // with losses of values
  };

  /// What is said of pairs, or of targets that were drawn, beside their losses.
  struct Compared {
    std::size_t made = 0;
    std::vector<int> added;  // by statistic, how often
  };

  /// What the gradients of pairs' targets, or of their scores, are multiplied with.
  struct Slopes {
    std::size_t made = 0;
    RangeMap<bool> used;
  };

  /// Choices of experts.
  struct Routed {
    std::size_t made = 0;
    int counted = 0;
  };

  /// Most operations make no losses and add none up.
  template <typename Args>
  void follow(const Args& args) {
    if constexpr (requires { args.losses, args.targets; }) makes(args.losses, args.targets);
  }
  /// Rows that are loaded together are taken in their order, into places of their own.
  void follow(const kernels::TakeRow& take) {
    if (taken_ == loaded_.size()) reject(plan_, at_, "takes a micro-batch that is not loaded");
    LoadBatch batch = loaded_[taken_];
    const View row = take.x.row_range(static_cast<std::int64_t>(taken_), 1);
    if (row.data != batch.row.data || row.cols() != batch.row.cols() ||
        (taken_ > 0 && take.next.data != next_))
      reject(plan_, at_, "takes another micro-batch than the next one");
    ++taken_;
    next_ = take.next.data;
    batch.visit(batch, [&](View& v, kernels::Access) {
      if (v) v.data = take.out.data + (v.data - row.data);
    });
    batches_[buffer_of(take.out)] = batch;
  }
  void follow(const kernels::Fill& fill) {
    const BufferUse words = homes_.home_of(fill.out);
    if (words.buffer == buffer_of(plan_.words)) cleared_.assign(words.bytes, true);
  }
  void follow(const kernels::ExactSum& sum) {
    const View of_losses = plan_.words.range(WordLayout::loss, kExactSumWords);
    for (std::int64_t s = 0; plan_.statistics && s < plan_.statistics.rows(); ++s) {
      if (homes_.is_at(sum.accumulator, statistic_words(plan_, s))) adds_statistic(sum, s);
    }
    if (sum.of != kernels::ExactSum::Of::values || !homes_.is_at(sum.accumulator, of_losses))
      return;
    ++whole(sum.x, of_losses).added;
  }
  void follow(const kernels::ExactSums& sums) {
    if (plan_.shape.tallies == 0 || !homes_.is_at(sums.accumulators, tally_sums(plan_)))
      reject(plan_, at_, "adds to tallies that the step does not have");
    Losses& losses = whole(sums.x, tally_sums(plan_));
    if (sums.x.rows() != plan_.rows_of_micro_batch ||
        !homes_.is_at(sums.into, batches_[losses.targets].tallies))
      reject(plan_, at_, "counts samples in tallies of others");
    ++losses.tallied;
  }

  void note_writers() {
    for (const BufferUse& use : uses_of(plan_.ops[at_]))
      if (use.access != kernels::Access::read) made_by_[use.buffer] = plan_.ops[at_].micro_batch;
  }
  /// What is copied to where the host reads it.
  void follow(const kernels::Convert& convert) {
    if (!plan_.scores) return;
    const BufferUse to = homes_.home_of(convert.out), from = homes_.home_of(convert.x);
    if (to.buffer != buffer_of(plan_.scores)) return;
    const std::int64_t each = plan_.scores.row_range(0, 1).span_bytes(),
                       first = offset_of(plan_.scores) + plan_.ops[at_].micro_batch * each;
    if (to.bytes != Range{first, first + each})
      reject(plan_, at_, "scores other targets than its micro-batch's");
    const auto made = made_by_.find(from.buffer);
    const bool own = made != made_by_.end() && made->second == plan_.ops[at_].micro_batch,
               losses = made_.contains(from.buffer) || plan_.shape.scores == Scores::values;
    if (!own || !losses || from.bytes != Range{0, plan_.buffer(from.buffer).bytes} ||
        from.bytes.count() != each)
      reject(plan_, at_, "takes what its micro-batch has not made for scores");
    scores_.each(to.bytes, [&](bool there) {
      if (there) reject(plan_, at_, "scores targets again");
    });
    scores_.assign(to.bytes, true);
  }
  /// The last stage has the head.
  void check_scores() {
    if (!plan_.scores || plan_.place.pipeline + 1 != plan_.mesh.pipeline) return;
    std::int64_t bytes = 0;
    scores_.each({0, plan_.buffer(buffer_of(plan_.scores)).bytes},
                 [&](Range range, bool there) { bytes += there ? range.count() : 0; });
    if (bytes != plan_.scores.span_bytes())
      throw InternalError(fmt::format("broken plan: {} bytes of scores are made, of {}", bytes,
                                      plan_.scores.span_bytes()));
  }

  /// Losses of pairs take the place of those of all their targets, or of scores.
  void follow(const kernels::PreferenceLoss& pairs) {
    const BufferId targets = takes_losses(pairs.target_losses);
    const View& reference = batches_[targets].reference;
    if (homes_.home_of(pairs.targets).buffer != targets ||
        static_cast<bool>(pairs.reference) != static_cast<bool>(reference) ||
        (reference && !homes_.is_at(pairs.reference, reference)))
      reject(plan_, at_, "compares pairs with those of another micro-batch");
    const BufferUse use = homes_.home_of(pairs.losses);
    Losses& losses = made_[use.buffer];
    if (losses.targets >= 0) reject(plan_, at_, "makes losses again");
    losses.there.assign(use.bytes, true);
    losses.targets = targets;
    losses.made = at_;
    says(pairs.statistics);
    if (pairs.slopes) slopes_[homes_.home_of(pairs.slopes).buffer] = {.made = at_, .used = {}};
  }
  /// Losses of targets that were drawn do so too.
  void follow(const kernels::PolicyLoss& drawn) {
    const BufferId targets = takes_losses(drawn.target_losses);
    const LoadBatch& batch = batches_[targets];
    if (homes_.home_of(drawn.targets).buffer != targets ||
        !is_own(drawn.advantages, batch.advantages) || !is_own(drawn.weights, batch.weights) ||
        !is_own(drawn.drawn, batch.drawn_losses) ||
        !is_own(drawn.reference, batch.reference_losses))
      reject(plan_, at_, "judges targets by what is known of others");
    makes(drawn.losses, drawn.targets);
    if (static_cast<bool>(drawn.statistics) != static_cast<bool>(batch.drawn_losses))
      reject(plan_, at_, "does not say how far the model has moved since it drew");
    if (drawn.statistics) says(drawn.statistics);
    slopes_[homes_.home_of(drawn.slopes).buffer] = {.made = at_, .used = {}};
  }
  /// Losses of values are added to those of the targets that were drawn, or are all that there is.
  void follow(const kernels::ValueLoss& value) {
    if (value.write == kernels::Write::overwrite) makes(value.losses, value.targets);
    const BufferUse use = homes_.home_of(value.losses);
    const auto found = made_.find(use.buffer);
    if (found == made_.end() || found->second.added + found->second.tallied > 0 ||
        found->second.valued || use.bytes != Range{0, plan_.buffer(use.buffer).bytes})
      reject(plan_, at_, "adds losses of values where there are no losses of targets alone");
    const LoadBatch& batch = batches_[found->second.targets];
    if (homes_.home_of(value.targets).buffer != found->second.targets ||
        !is_own(value.returns, batch.returns) || !is_own(value.weights, batch.weights) ||
        !is_own(value.drawn, batch.drawn_values))
      reject(plan_, at_, "judges values by what is known of others");
    found->second.valued = true;
  }
  /// Whether what is used is what a micro-batch has loaded, or neither is there.
  bool is_own(const View& used, const View& loaded) const {
    return static_cast<bool>(used) == static_cast<bool>(loaded) &&
           (!used || homes_.is_at(used, loaded));
  }
  /// The losses of all targets of a micro-batch, which others take the place of; returns the
  /// targets' buffer.
  BufferId takes_losses(const View& of_targets) {
    const BufferId buffer = homes_.home_of(of_targets).buffer;
    const auto found = made_.find(buffer);
    if (found == made_.end()) reject(plan_, at_, "judges by losses that nobody has made");
    found->second.there.each({0, plan_.buffer(buffer).bytes}, [&](bool there) {
      if (!there) reject(plan_, at_, "judges by losses that are not all of a micro-batch");
    });
    const BufferId targets = found->second.targets;
    made_.erase(found);
    return targets;
  }
  void says(const View& statistics) {
    if (!plan_.statistics || statistics.rows() != plan_.statistics.rows())
      reject(plan_, at_, "says what the step has no sums of");
    compared_[homes_.home_of(statistics).buffer] = {
        .made = at_, .added = std::vector<int>(static_cast<std::size_t>(statistics.rows()))};
  }
  void follow(const kernels::ClassifyGradient& gradient) { uses_slopes(gradient.scale); }
  void follow(const kernels::ScoreGradient& gradient) { uses_slopes(gradient.slopes); }
  void uses_slopes(const View& slopes) {
    const BufferUse use = homes_.home_of(slopes);
    if (const auto found = slopes_.find(use.buffer); found != slopes_.end())
      found->second.used.assign(use.bytes, true);
  }
  /// Each statistic has words of its own.
  void adds_statistic(const kernels::ExactSum& sum, std::int64_t statistic) {
    const BufferUse use = homes_.home_of(sum.x);
    const auto compared = compared_.find(use.buffer);
    const std::int64_t bytes = plan_.buffer(use.buffer).bytes / plan_.statistics.rows();
    const Range own{statistic * bytes, (statistic + 1) * bytes};
    if (compared == compared_.end() || sum.of != kernels::ExactSum::Of::values || use.bytes != own)
      reject(plan_, at_, "adds up what is not this statistic");
    ++at(compared->second.added, statistic);
    adds_to(sum.accumulator);
  }

  void follow(const kernels::Route& route) {
    if (!plan_.ops[at_].again) routed_[homes_.home_of(route.experts).buffer] = {.made = at_};
  }
  /// Each layer's experts have a row of their own.
  void follow(const kernels::CountChoices& count) {
    const auto routed = routed_.find(homes_.home_of(count.experts).buffer);
    if (plan_.ops[at_].again || routed == routed_.end())
      reject(plan_, at_, "counts choices of experts that no router has just made");
    ++routed->second.counted;
    const std::int64_t row = row_of(count.counts), experts = plan_.choices.cols() - 1;
    if (row < 0 || !homes_.is_at(count.dropped, choices_of(row).range(experts, 1)) ||
        !in_order(rows_, plan_.ops[at_].unit, row))
      reject(plan_, at_, "counts choices where those of other layers are counted");
    adds_to(count.counts);
  }
  /// Once for each layer, whose unit that balances its experts follows the one that counts them.
  void follow(const kernels::BalanceExperts& balance) {
    const std::int32_t unit = plan_.ops[at_].unit;
    const std::int64_t row = row_of(balance.choices);
    const auto behind = rows_.upper_bound(unit);
    const bool of_layer =
        rows_.empty() || (behind != rows_.begin() && std::prev(behind)->second == row);
    if (!decided_ || row < 0 || !of_layer || balanced_.contains(unit) ||
        !in_order(balanced_, unit, row) || !homes_.is_at(balance.verdict, plan_.verdict))
      reject(plan_, at_, "balances experts by other choices than all of the step's of their layer");
    if (homes_.home_of(balance.kept).buffer != at(plan_.shares, unit).balance)
      reject(plan_, at_, "balances other experts than its unit's");
  }
  void follow(const kernels::Verdict&) { decided_ = summed_; }

  /// A layer's row, its counts and what was dropped.
  View choices_of(std::int64_t row) const {
    return plan_.choices.row_range(row, 1).range(0, plan_.choices.cols());
  }
  /// The row whose counts these are; -1: they are of none.
  std::int64_t row_of(const View& counts) const {
    for (std::int64_t row = 0; row < plan_.choices.rows(); ++row)
      if (homes_.is_at(counts, choices_of(row).range(0, plan_.choices.cols() - 1))) return row;
    return -1;
  }

  /// Whether the unit's row is behind those of all layers before it.
  static bool in_order(std::map<std::int32_t, std::int64_t>& rows, std::int32_t unit,
                       std::int64_t row) {
    rows.try_emplace(unit, row);
    std::int64_t before = -1;
    for (const auto& [of, its] : rows) {
      if (its <= before || (of == unit && its != row)) return false;
      before = its;
    }
    return true;
  }

  void makes(const View& view, const View& targets) {
    const BufferUse use = homes_.home_of(view), of = homes_.home_of(targets);
    Losses& losses = made_[use.buffer];
    if (losses.added + losses.tallied > 0)
      reject(plan_, at_, "makes losses where some are that were added up");
    losses.there.each(use.bytes, [&](bool& there) {
      if (std::exchange(there, true)) reject(plan_, at_, "makes a loss again");
    });
    if (losses.targets >= 0 && losses.targets != of.buffer)
      reject(plan_, at_, "makes losses of two micro-batches in one place");
    const auto batch = batches_.find(of.buffer);
    if (batch == batches_.end()) reject(plan_, at_, "makes losses of what is no micro-batch");
    const std::int64_t first = offset_of(batch->second.targets);
    if (Range{first + use.bytes.begin, first + use.bytes.end} != of.bytes)
      reject(plan_, at_, "makes losses of other targets");
    losses.targets = of.buffer;
    losses.made = at_;
  }

  /// All losses of a buffer, which are added to some words.
  Losses& whole(const View& x, const View& words) {
    adds_to(words);
    const BufferUse use = homes_.home_of(x);
    Losses& losses = made_[use.buffer];
    losses.there.each({0, plan_.buffer(use.buffer).bytes}, [&](Range range, bool there) {
      if (!there || intersect(range, use.bytes) != range)
        reject(plan_, at_, "adds up losses that are not all of a micro-batch");
    });
    return losses;
  }

  void adds_to(const View& words) {
    if (summed_) reject(plan_, at_, "adds to words after the ranks have added them up");
    cleared_.each(homes_.home_of(words).bytes, [&](bool cleared) {
      if (!cleared) reject(plan_, at_, "adds to what the step before has left");
    });
  }

  void sums_words(const comm::CollectiveCall& call) {
    const auto* words = std::get_if<comm::AllReduceWords>(&call);
    if (words == nullptr || !homes_.is_at(words->words, plan_.words)) return;
    const Op& op = plan_.ops[at_];
    if (op.group != MeshGroup::world || words->of != comm::AllReduceWords::Of::sum || summed_)
      reject(plan_, at_, "does not sum the step's words over all ranks once");
    summed_ = true;
  }

  const Plan& plan_;
  const Homes& homes_;
  std::size_t at_ = 0;
  std::map<BufferId, Losses> made_;
  std::map<BufferId, LoadBatch> batches_;  // by the targets' buffer of a micro-batch
  std::vector<LoadBatch> loaded_;          // in their order
  std::size_t taken_ = 0;                  // of those
  const std::byte* next_ = nullptr;        // by which they are
  std::map<BufferId, Compared> compared_;
  std::map<BufferId, Slopes> slopes_;
  RangeMap<bool> cleared_;                    // bytes of words
  std::map<BufferId, std::int32_t> made_by_;  // the micro-batch whose op has written it last
  RangeMap<bool> scores_;                     // bytes of scores that are made
  std::map<BufferId, Routed> routed_;
  std::map<std::int32_t, std::int64_t> rows_, balanced_;  // of choices, by unit
  bool summed_ = false, decided_ = false;
};

}  // namespace

void check_losses(const Plan& plan, const Homes& homes) { LossCheck(plan, homes).run(); }

}  // namespace tessera::plan
