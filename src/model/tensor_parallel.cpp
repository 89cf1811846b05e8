#include "model/tensor_parallel.hpp"

#include <algorithm>

namespace tessera::model {

using kernels::Fill;
using kernels::TreeSum;
using kernels::Write;

namespace {

View staging(UnitContext& u, DType wire) {
  return u.tensor(Keep::transient, DType::u8,
                  {comm::reduce_scatter_staging(u.tensor_region().group, wire)});
}

/// The number of elements, padded so that it divides over the ranks of the region.
std::int64_t padded(const TensorRegion& tensor, std::int64_t n) {
  return round_up(n, tensor.cut.ranks * 16);
}

/// Sums a dense f32 buffer of padded() elements over the ranks, in place; `used` of them matter.
void sum_over_ranks(UnitContext& u, const View& all, std::int64_t used, DType wire) {
  const TensorRegion& tensor = u.tensor_region();
  const std::int64_t shard = all.elements() / tensor.cut.ranks;
  if (used < all.elements()) u.run(Fill{.out = all.range(used, all.elements() - used)});
  const View own = all.range(tensor.cut.rank * shard, shard);
  tensor.run(
      comm::ReduceScatter{.full = all, .shard = own, .staging = staging(u, wire), .wire = wire});
  tensor.run(comm::AllGather{.shard = own, .full = all});
}

}  // namespace

View gather_positions(UnitContext& u, const View& local, Keep keep) {
  const TensorRegion& tensor = u.tensor_region();
  if (!tensor.split_sequence()) return local;
  const View full =
      u.tensor(keep, local.type, {u.micro_batch().batch, u.micro_batch().sequence, local.cols()});
  tensor.run(comm::AllGather{.shard = local, .full = full, .blocks = u.micro_batch().batch});
  return full;
}

ChunkSum::ChunkSum(UnitContext& u, std::int64_t columns, const View& bias, DType result, Keep keep)
    : u_(u),
      columns_(columns),
      bias_(bias),
      result_(result == DType::u8 ? u.compute() : result),
      keep_(keep) {
  const TensorRegion& tensor = u.tensor_region();
  const std::int64_t n = u.micro_batch().batch * u.micro_batch().sequence * columns;
  if (tensor.whole()) {
    parts_ = u.tensor(keep_, result_, {std::int64_t{1}, n});
    bias_of_part_ = bias;
    return;
  }
  // The last part's end is padded, so that it can be summed over ranks in place.
  const std::int64_t own = tensor.cut.own();
  const std::int64_t all = tensor.cut.ranks == 1 || own > 1 ? own * n : padded(tensor, n);
  parts_ = u.tensor(Keep::transient, DType::f32, {all}).range(0, own * n).reshaped({own, n});
}

View ChunkSum::part(std::size_t i) const {
  return parts_.row_range(static_cast<std::int64_t>(i), 1)
      .reshaped({u_.micro_batch().batch, u_.micro_batch().sequence, columns_});
}

void ChunkSum::start() {
  const TensorRegion& tensor = u_.tensor_region();
  if (tensor.whole() || tensor.cut.ranks == 1) return;
  const std::int64_t batch = u_.micro_batch().batch, n = parts_.cols();
  View full(parts_.data, DType::f32, {padded(tensor, n)});
  if (tensor.cut.own() > 1) {
    full = u_.tensor(Keep::transient, DType::f32, {padded(tensor, n)});
    u_.run(TreeSum{.parts = parts_, .out = full.range(0, n)});
  }
  if (!tensor.split_sequence()) {
    sum_over_ranks(u_, full, n, tensor.wire);
    sum_ = full.range(0, n);
    return;
  }
  sum_ = u_.tensor(Keep::transient, DType::f32, {n / tensor.cut.ranks});
  tensor.run(comm::ReduceScatter{.full = full.range(0, n),
                                 .shard = sum_,
                                 .staging = staging(u_, tensor.wire),
                                 .wire = tensor.wire,
                                 .blocks = batch});
}

View ChunkSum::finish() {
  const std::int64_t batch = u_.micro_batch().batch, positions = u_.positions().count();
  if (u_.tensor_region().whole()) return part(0);
  const View parts = sum_ ? sum_.reshaped({std::int64_t{1}, batch, positions, columns_})
                          : parts_.reshaped({parts_.rows(), batch, positions, columns_});
  const View out = u_.tensor(keep_, result_, {batch, positions, columns_});
  u_.run(TreeSum{.parts = parts, .bias = bias_, .out = out});
  return out;
}

View sum_over_chunks(UnitContext& u, const View& parts, Keep keep) {
  const TensorRegion& tensor = u.tensor_region();
  const std::int64_t n = parts.cols();
  const View all = u.tensor(keep, DType::f32, {tensor.cut.ranks > 1 ? padded(tensor, n) : n});
  u.run_once(TreeSum{.parts = parts, .out = all.range(0, n)});
  if (tensor.cut.ranks > 1) sum_over_ranks(u, all, n, DType::f32);
  return all.range(0, n);
}

Summands::Summands(UnitContext& u, const View& out, std::int64_t count) : u_(u), out_(out) {
  if (count > 1) parts_ = u.tensor(Keep::transient, DType::f32, {count, out.elements()});
}

View Summands::next() {
  if (!parts_) return out_;
  View part = out_;
  part.type = DType::f32;
  part.data = parts_.row_range(given_++, 1).data;
  return part;
}

void Summands::finish() {
  if (parts_) u_.run(TreeSum{.parts = parts_, .out = out_.range(0, out_.elements())});
}

View PartialGradients::parts(const View& gradient, std::int64_t count, bool over_ranks) {
  if (!gradient || (count == 1 && !over_ranks)) return gradient;
  const std::int64_t shares = u_.context.own(), step = count * gradient.elements();
  const View all = u_.tensor(Keep::transient, DType::f32, {shares, count, gradient.elements()});
  entries_.push_back({gradient, all, over_ranks});
  const View first = all.row_range(0, count);
  if (shares > 1) u_.share_parts.emplace_back(first, step);
  return first;
}

/// sums (shares, elements) = those of each share's parts.
void PartialGradients::sum_shares(const Entry& e, const View& sums) {
  const std::int64_t count = e.parts.extent(1), elements = e.parts.cols();
  for (std::int64_t share = 0; share < e.parts.extent(0); ++share)
    u_.run(TreeSum{.parts = e.parts.row_range(share * count, count),
                   .out = sums.range(share * elements, elements)});
}

void PartialGradients::finish() {
  const std::int64_t shares = u_.context.own();
  std::erase_if(u_.share_parts, [&](const auto& part) {
    return std::ranges::any_of(entries_,
                               [&](const Entry& e) { return e.parts.data == part.first.data; });
  });
  std::int64_t n = 0;
  for (const Entry& e : entries_) n += e.over_ranks ? shares * e.gradient.elements() : 0;
  View all;
  if (n > 0) all = u_.tensor(Keep::transient, DType::f32, {padded(u_.tensor_region(), n)});
  const auto each_over_ranks = [&](auto&& f) {
    std::int64_t at = 0;
    for (const Entry& e : entries_) {
      if (!e.over_ranks) continue;
      f(e, all.range(at, shares * e.gradient.elements()));
      at += shares * e.gradient.elements();
    }
  };
  each_over_ranks([&](const Entry& e, const View& slot) { sum_shares(e, slot); });
  if (n > 0) sum_over_ranks(u_, all, n, DType::f32);
  const auto add = [&](const View& gradient, const View& parts) {
    u_.run(TreeSum{.parts = parts, .out = gradient.range(0, gradient.elements()), .write = write_});
  };
  each_over_ranks([&](const Entry& e, const View& slot) {
    add(e.gradient, slot.reshaped({shares, e.gradient.elements()}));
  });
  for (const Entry& e : entries_) {
    if (e.over_ranks) continue;
    View parts = e.parts.matrix();
    if (shares > 1) {
      parts = u_.tensor(Keep::transient, DType::f32, {shares, e.gradient.elements()});
      sum_shares(e, parts);
    }
    add(e.gradient, parts);
  }
  entries_.clear();
}

View norm_backward(UnitContext& u, const ModelConfig& c, PartialGradients& partial,
                   kernels::NormBackward norm) {
  const TensorRegion& tensor = u.tensor_region();
  const bool split = tensor.split_sequence();
  norm.kind = c.norm;
  norm.groups = tensor.position_groups / (split ? tensor.cut.ranks : 1);
  norm.d_sum = u.residual(Keep::transient, c.hidden);
  const View gradient = norm.d_weight;
  norm.d_weight = partial.parts(gradient, norm.groups, split);
  norm.write = partial.write_to(norm.d_weight, gradient);
  norm.d_bias = partial.parts(norm.d_bias, norm.groups, split);
  u.run(norm);
  return norm.d_sum;
}

}  // namespace tessera::model
