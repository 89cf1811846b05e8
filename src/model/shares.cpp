// Running one operation: with scratch, and of sequences that ranks divide among them by chunks or
// by shares, where its masks or its bits depend on which rows it has.
#include "model/shares.hpp"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <vector>

namespace tessera::model {

using namespace kernels;

View sequences(View v, std::int64_t first, std::int64_t count) {
  v.data += first * (v.rows() / v.extent(0)) * v.ld * size_of(v.type);
  v.shape[0] = count;
  return v;
}

std::vector<RowGroup> row_groups(const UnitContext& u, std::int64_t all, std::int64_t most) {
  const std::int64_t shares = u.context.own(), rows = all / shares;
  const std::int64_t each = most > 0 ? most : rows;
  std::vector<RowGroup> groups;
  for (std::int64_t share = 0; share < shares; ++share) {
    const std::int64_t begin = share * rows, end = begin + rows;
    for (std::int64_t r = begin; r < end; r += each)
      groups.push_back({share, {r, std::min(end, r + each)}, r == begin});
  }
  return groups;
}

OwnChunk own_chunk(const UnitContext& u, std::int64_t share, std::int64_t half) {
  const ContextRegion& r = u.context;
  return {.first_sequence = (share * 2 + half) * r.samples,
          .first_token = r.chunks.chunk_of(r.first() + share, half) * u.micro_batch().sequence};
}

namespace {

// --- Dropout ------------------------------------------------------------------------------------

/// Operations with masks, which are drawn by places in whole sequences, chunk by chunk.
class ByChunks {
 public:
  ByChunks(UnitContext& u, std::function<void(const KernelCall&)> whole)
      : u_(u), whole_(std::move(whole)) {}

  /// False where an operation has no mask, or takes care of it itself.
  template <typename Operation>
  bool operator()(const Operation&) const {
    return false;
  }
  bool operator()(const Embed& a) const {
    return of_sequences(a, a.out.cols(), {&Embed::tokens, &Embed::documents, &Embed::out});
  }
  bool operator()(const AddPositions& a) const {
    return of_sequences(a, a.out.cols(),
                        {&AddPositions::x, &AddPositions::documents, &AddPositions::out});
  }
  bool operator()(const AddPending& a) const {
    return of_sequences(a, a.sum.cols(),
                        {&AddPending::resid, &AddPending::pending, &AddPending::sum});
  }
  bool operator()(const AddNorm& a) const {
    return of_sequences(
        a, a.out.cols(),
        {&AddNorm::resid, &AddNorm::pending, &AddNorm::sum, &AddNorm::out, &AddNorm::stats});
  }
  bool operator()(const ApplyDropout& a) const {
    return of_sequences(a, a.columns > 0 ? a.columns : a.x.cols(),
                        {&ApplyDropout::x, &ApplyDropout::out});
  }
  /// Of the gradient that has gone back through the mask.
  bool operator()(const EmbedBackward& a) const {
    if (!a.dropout) return false;
    EmbedBackward behind = a;
    behind.dropout = {};
    behind.d = u_.tensor(Keep::transient, a.d.type, {a.d.extent(0), a.d.extent(1), a.d.cols()});
    u_.run(ApplyDropout{.x = a.d, .out = behind.d, .dropout = a.dropout});
    u_.run(behind);
    return true;
  }

 private:
  template <typename Operation>
  bool of_sequences(const Operation& a, std::int64_t columns,
                    std::initializer_list<View Operation::*> operands) const {
    if (!a.dropout) return false;
    const std::int64_t samples = u_.context.samples, all = u_.micro_batch().batch;
    for_each_own_chunk(u_, [&](const OwnChunk& chunk) {
      Operation own = a;
      for (View Operation::*of : operands) {
        const View& v = a.*of;
        if (!v) continue;
        // Of rows that are not by sequence, such as statistics, as many for each.
        const std::int64_t rows = v.rows() / all;
        own.*of = v.extent(0) == all ? chunk.of(v, samples)
                                     : v.row_range(chunk.first_sequence * rows, samples * rows);
      }
      own.dropout = chunk.of(a.dropout, samples);
      own.dropout.first += chunk.first_token * columns;
      whole_(own);
    });
    return true;
  }

  UnitContext& u_;
  std::function<void(const KernelCall&)> whole_;
};

// --- Share by share -----------------------------------------------------------------------------

/// Operations whose bits depend on which rows they have, made of each share's rows alone.
class ByShares {
 public:
  explicit ByShares(UnitContext& u, std::function<void(const KernelCall&)> whole)
      : u_(u),
        whole_(std::move(whole)),
        shares_(u.context.own()),
        rows_(u.micro_batch().batch * u.micro_batch().sequence) {}

  /// False where an operation is none of these.
  template <typename Operation>
  bool operator()(const Operation&) const {
    return false;
  }
  bool operator()(const Linear& a) const {
    return of_rows(a, a.x, {&Linear::x, &Linear::y, &Linear::preactivation});
  }
  bool operator()(const LinearBackwardInput& a) const {
    return of_rows(a, a.d_y,
                   {&LinearBackwardInput::d_y, &LinearBackwardInput::d_x,
                    &LinearBackwardInput::preactivation});
  }
  bool operator()(const LinearBackwardWeight& a) const {
    if (a.x.rows() != rows_) {
      TESSERA_CHECK(a.x.rows() <= rows_ / shares_, "{} rows, of several shares of {}", a.x.rows(),
                    rows_ / shares_);
      return false;
    }
    each_share(a, {&LinearBackwardWeight::d_weight, &LinearBackwardWeight::d_bias},
               &LinearBackwardWeight::write, [&](LinearBackwardWeight& own, std::int64_t share) {
                 own.d_y = rows_of(a.d_y, share), own.x = rows_of(a.x, share);
               });
    return true;
  }
  bool operator()(const MagnitudeBackward& a) const {
    TESSERA_CHECK(a.x.rows() == rows_, "{} rows, not {}", a.x.rows(), rows_);
    each_share(a, {&MagnitudeBackward::out}, &MagnitudeBackward::write,
               [&](MagnitudeBackward& own, std::int64_t share) {
                 own.d_y = rows_of(a.d_y, share), own.x = rows_of(a.x, share);
               });
    return true;
  }
  bool operator()(const NormBackward& a) const {
    TESSERA_CHECK(a.sum.extent(0) % shares_ == 0, "{} sequences in {} shares", a.sum.extent(0),
                  shares_);
    each_share(a, {&NormBackward::d_weight, &NormBackward::d_bias}, &NormBackward::write,
               [&](NormBackward& own, std::int64_t share) {
                 for (View NormBackward::*of : {&NormBackward::d_out, &NormBackward::d_resid,
                                                &NormBackward::sum, &NormBackward::d_sum})
                   own.*of = sequences_of(a.*of, share);
                 own.stats = rows_of(a.stats, share);
               });
    return true;
  }
  bool operator()(const EmbedBackward& a) const {
    TESSERA_CHECK(a.token_write == a.position_write || !a.d_position_table,
                  "tokens' gradients are added, positions' not");
    each_share(a, {&EmbedBackward::d_token_table, &EmbedBackward::d_position_table},
               &EmbedBackward::token_write, [&](EmbedBackward& own, std::int64_t share) {
                 own.position_write = own.token_write;
                 own.tokens = rows_of(a.tokens, share), own.d = sequences_of(a.d, share);
                 own.documents = sequences_of(a.documents, share);
               });
    return true;
  }
  /// Of parts that every share has.
  bool operator()(const Fill& a) const {
    const std::int64_t step = step_of(a.out);
    for (std::int64_t share = 0; step > 0 && share < shares_; ++share)
      whole_(Fill{.out = moved(a.out, share * step)});
    return step > 0;
  }

 private:
  static View moved(View v, std::int64_t elements) {
    v.data += elements * size_of(v.type);
    return v;
  }
  View rows_of(const View& v, std::int64_t share) const {
    return v ? v.row_range(share * v.rows() / shares_, v.rows() / shares_) : v;
  }
  View sequences_of(const View& v, std::int64_t share) const {
    return v ? sequences(v, share * v.extent(0) / shares_, v.extent(0) / shares_) : v;
  }
  /// Elements from a part of a gradient to that of the next share; 0: it is none.
  std::int64_t step_of(const View& gradient) const {
    for (const auto& [first, step] : u_.share_parts)
      if (gradient.data >= first.data && gradient.data < first.data + first.span_bytes())
        return step;
    return 0;
  }

  template <typename Operation>
  bool of_rows(const Operation& a, const View& rows,
               std::initializer_list<View Operation::*> operands) const {
    if (rows.rows() != rows_) return false;
    for (std::int64_t share = 0; share < shares_; ++share) {
      Operation own = a;
      for (View Operation::*of : operands) own.*of = rows_of(a.*of, share);
      whole_(own);
    }
    return true;
  }

  /// A call for each share, whose gradients are parts.
  template <typename Operation, typename F>
  void each_share(const Operation& a, std::initializer_list<View Operation::*> gradients,
                  Write Operation::*write, F&& take_rows) const {
    struct Gradient {
      View Operation::*of;
      std::int64_t step;  // where it is a part already; 0: it is the sum
      ShareSum sum;
    };
    std::vector<Gradient> all;
    for (View Operation::*of : gradients) {
      const std::int64_t step = step_of(a.*of);
      if (a.*of) all.push_back({of, step, ShareSum(u_, step > 0 ? View{} : a.*of)});
    }
    const bool parts = !all.empty() && all.front().step > 0;
    for (const Gradient& g : all)
      TESSERA_CHECK((g.step > 0) == parts, "some gradients are parts, and others are not");
    for (std::int64_t share = 0; share < shares_; ++share) {
      Operation own = a;
      take_rows(own, share);
      for (const Gradient& g : all)
        own.*g.of = parts ? moved(a.*g.of, share * g.step) : g.sum.part(share);
      if (!parts) own.*write = Write::overwrite;
      whole_(own);
    }
    for (Gradient& g : all) g.sum.finish(a.*write);
  }

  UnitContext& u_;
  std::function<void(const KernelCall&)> whole_;
  std::int64_t shares_, rows_;
};

}  // namespace

void UnitContext::run(const KernelCall& call) {
  const auto whole = [this](const KernelCall& own) { run_once(own); };
  if (context.cut() && std::visit(ByChunks(*this, whole), call)) return;
  if (context.own() > 1 && std::visit(ByShares(*this, whole), call)) return;
  run_once(call);
}

void UnitContext::run_once(KernelCall call) {
  const std::int64_t bytes = device_.scratch_bytes(call);
  if (bytes > 0) {
    std::visit([&](auto& args) { args.scratch = tensor(Keep::transient, DType::u8, {bytes}); },
               call);
  }
  device_.run(call);
}

ShareSum::ShareSum(UnitContext& u, const View& gradient) : u_(u), gradient_(gradient) {
  const std::int64_t shares = u.context.own();
  if (gradient && shares > 1)
    parts_ = u.tensor(Keep::transient, DType::f32, {shares, gradient.elements()});
}

View ShareSum::part(std::int64_t share) const {
  if (!parts_) return gradient_;
  View part = gradient_;
  part.type = DType::f32, part.data = parts_.row_range(share, 1).data;
  return part;
}

void ShareSum::finish(Write write) {
  if (!parts_) return;
  u_.run(TreeSum{.parts = parts_, .out = gradient_.range(0, gradient_.elements()), .write = write});
}

}  // namespace tessera::model
