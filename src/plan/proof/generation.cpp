#include "plan/proof/generation.hpp"

#include <map>
#include <set>

#include "core/range_map.hpp"
#include "plan/proof/reject.hpp"

namespace tessera::plan {
namespace {

class GenerationCheck {
 public:
  explicit GenerationCheck(const Plan& plan) : plan_(plan) {}

  void run() {
    for (at_ = 0; at_ < plan_.ops.size(); ++at_) {
      const Op& op = plan_.ops[at_];
      for (const BufferUse& use : uses_of(op)) note(op, use);
      if (const auto* puts = kernel_of<kernels::Remember>(op)) remember(op, *puts);
      if (const auto* attention = kernel_of<kernels::Attention>(op)) attend(op, *attention);
    }
    std::int64_t there = 0;
    logits_.each({0, plan_.buffer(buffer_of(plan_.logits)).bytes},
                 [&](Range bytes, bool made) { there += made ? bytes.count() : 0; });
    if (there != plan_.logits.span_bytes())
      throw InternalError(fmt::format("broken plan: {} bytes of logits are made, of {}", there,
                                      plan_.logits.span_bytes()));
    for (const auto& [cache, columns] : put_) {
      if (!read_.contains(cache))
        throw InternalError(
            fmt::format("broken plan: what micro-batch {} puts into {} is never read", cache.second,
                        plan_.buffer(cache.first).name));
    }
  }

 private:
  bool is_cache(BufferId id) const { return plan_.buffer(id).purpose == BufferPurpose::cache; }
  bool is_logits(BufferId id) const { return id == buffer_of(plan_.logits); }
  const LoadBatch& batch_of(const Op& op) const {
    for (const Op& other : plan_.ops) {
      const auto* batch = std::get_if<LoadBatch>(&other.call);
      if (batch != nullptr && other.micro_batch == op.micro_batch) return *batch;
    }
    reject(plan_, at_, "goes on with a micro-batch that is not there");
  }
  template <typename Operation>
  void check_tables(const Op& op, const Operation& a) const {
    const LoadBatch& batch = batch_of(op);
    if (!a.cached || a.cached.data != batch.cached.data || a.pages.data != batch.pages.data)
      reject(plan_, at_, "goes on with sequences of another micro-batch");
  }

  void note(const Op& op, const BufferUse& use) {
    const bool knows_caches =
        kernel_of<kernels::Remember>(op) != nullptr || kernel_of<kernels::Attention>(op) != nullptr;
    if (is_cache(use.buffer) && !knows_caches)
      reject(plan_, at_, "uses a cache, and is no attention");
    if (!is_logits(use.buffer) || use.access != kernels::Access::write) return;
    const bool gathers = op.kind == OpKind::tensor;  // its own part among those of others
    logits_.each(use.bytes, [&](bool made) {
      if (made && !gathers) reject(plan_, at_, "makes logits that are there");
    });
    logits_.assign(use.bytes, true);
  }
  void remember(const Op& op, const kernels::Remember& puts) {
    check_tables(op, puts);
    const BufferId cache = buffer_of(puts.cache);
    if (!is_cache(cache)) reject(plan_, at_, "remembers in what is no cache");
    const std::int64_t first = offset_of(puts.cache) / size_of(puts.cache.type);
    const Range columns{first, first + puts.cache.cols()};
    std::int64_t& put = put_[{cache, op.micro_batch}];
    if (columns.begin != put) reject(plan_, at_, "remembers other columns than the next ones");
    put = columns.end;
  }
  void attend(const Op& op, const kernels::Attention& a) {
    check_tables(op, a);
    for (const View& v : {a.k, a.v}) {
      const BufferId cache = buffer_of(v);
      const auto put = put_.find({cache, op.micro_batch});
      if (!is_cache(cache) || put == put_.end() || put->second != v.ld)
        reject(plan_, at_, "reads a cache that these tokens are not in yet");
      read_.insert({cache, op.micro_batch});
    }
  }

  const Plan& plan_;
  std::size_t at_ = 0;
  RangeMap<bool> logits_;                                          // bytes that are made
  std::map<std::pair<BufferId, std::int32_t>, std::int64_t> put_;  // columns, by micro-batch
  std::set<std::pair<BufferId, std::int32_t>> read_;
};

}  // namespace

void check_generation(const Plan& plan) { GenerationCheck(plan).run(); }

}  // namespace tessera::plan
