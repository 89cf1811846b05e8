#include "train/generator.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/random.hpp"
#include "model/adapters.hpp"

namespace tessera::train {

std::int32_t sample_token(std::span<const float> logits, const SamplingRule& rule,
                          std::int64_t position) {
  if (std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); })) {
    throw NonFiniteError("the model's logits are not numbers: its weights have diverged");
  }
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  if (rule.temperature <= 0) return *std::min_element(order.begin(), order.end(), likelier);
  std::sort(order.begin(), order.end(), likelier);
  if (rule.top_k > 0 && static_cast<std::size_t>(rule.top_k) < order.size())
    order.resize(static_cast<std::size_t>(rule.top_k));
  const double top = logits[static_cast<std::size_t>(order[0])];
  std::vector<double> weights(order.size());
  std::ranges::transform(order, weights.begin(), [&](std::int32_t id) {
    return std::exp((logits[static_cast<std::size_t>(id)] - top) / rule.temperature);
  });
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && kept < rule.top_p * all) kept += weights[count++];
  const RandomKey key = random_key(rule.seed, RandomPurpose::sampling, 0);
  double draw = to_uniform(random_bits(key, 0, static_cast<std::uint64_t>(position))) * kept;
  for (std::size_t i = 0; i < count; ++i) {
    draw -= weights[i];
    if (draw < 0) return order[i];
  }
  return order[count == 0 ? 0 : count - 1];
}

std::byte* Generator::Scratch::take(std::int64_t bytes) {
  constexpr std::int64_t kAlignment = 256, kLeast = 1 << 20;
  bytes = round_up(bytes, kAlignment);
  while (block_ < blocks_.size() && used_ + bytes > blocks_[block_]->bytes()) ++block_, used_ = 0;
  if (block_ == blocks_.size()) {
    const std::int64_t twice = blocks_.empty() ? kLeast : 2 * blocks_.back()->bytes();
    blocks_.push_back(std::make_unique<memory::Arena>("scratch", tier_, std::max(bytes, twice)));
  }
  used_ += bytes;
  return blocks_[block_]->base() + used_ - bytes;
}

View Generator::make(DType type, std::initializer_list<std::int64_t> extents) {
  View v(nullptr, type, extents);
  owned_.push_back(std::make_unique<memory::Arena>("model", tier_, v.elements() * size_of(type)));
  v.data = owned_.back()->base();
  return v;
}

Generator::Generator(const model::ModelConfig& config, kernels::Device& device, memory::Tier& tier,
                     const ParameterSource& parameters, std::optional<std::int64_t> most)
    : config_(config),
      context_(std::min(config.context, most.value_or(config.context))),
      device_(device),
      tier_(tier),
      descs_(model::model_units(config)),
      scratch_(tier) {
  for (const auto& desc : descs_) {
    const zero::UnitLayout layout = zero::unit_layout(desc, 1);
    const View flat = make(DType::f32, {layout.padded});
    for (const auto& slice : zero::slices_in(desc, layout, {0, layout.padded})) {
      const std::int64_t n = slice.part.elements();  // whole rows: nothing is cut
      const std::int64_t first = slice.part.rows.begin * slice.part.columns.count();
      const View part = flat.range(slice.flat, n);
      tier_.fill(part.data, part.span_bytes(), [&](std::span<std::byte> bytes) {
        parameters(desc.params[slice.parameter], {first, first + n},
                   {reinterpret_cast<float*>(bytes.data()), static_cast<std::size_t>(n)});
      });
    }
    units_.push_back({&desc, zero::parameter_views(desc, layout, flat)});
  }
  for (std::int64_t l = 0; l < config.layers; ++l) {
    const std::int64_t columns = config.kv_heads * config.head_dim;
    caches_.push_back({.k = make(DType::f32, {1, context_, columns}),
                       .v = make(DType::f32, {1, context_, columns})});
  }
}

model::UnitContext Generator::context_of(std::int64_t tokens, std::byte* first) {
  return {device_,
          [this](model::Keep, std::int64_t bytes) { return scratch_.take(bytes); },
          DType::f32,
          {.batch = 1,
           .sequence = tokens,
           .tokens = View(first, DType::i32, {1, tokens}),
           .targets = {},
           .samples = {}}};
}

model::Carry Generator::through_layers(model::UnitContext& u,
                                       std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  TESSERA_CHECK(count > 0 && length_ + count <= context_, "{} tokens after {} of {}", count,
                length_, context_);
  tier_.write(u.micro_batch().tokens.data, std::as_bytes(tokens));
  model::Carry carry;
  model::EmbedSaved saved;
  model::embed_forward(u, config_, model::embed_weights(units_), length_, saved, carry);
  std::size_t layer = 0;
  for (auto unit = units_.begin(); unit != units_.end(); ++unit) {
    if (unit->unit->kind != model::UnitKind::block) continue;
    const auto end = std::find_if(unit + 1, units_.end(), [](const model::UnitViews& other) {
      return other.unit->kind != model::UnitKind::block_part;
    });
    const std::span<const model::UnitViews> block(unit, end);
    model::Adapters adapters(u, config_.adapter, block);
    u.adapters = &adapters;
    u.reach = config_.reach_of(static_cast<std::int64_t>(layer));
    model::KvCache& cache = caches_[layer++];
    model::Carry next;
    model::block_generate(u, config_, model::block_weights(block), carry, cache, next);
    cache.length += count;
    carry = next;
  }
  u.adapters = nullptr;
  length_ += count;
  return carry;
}

std::span<const float> Generator::read(const View& logits) {
  const View rows = logits.matrix();
  const auto outputs = static_cast<std::size_t>(config_.outputs());
  logits_.resize(static_cast<std::size_t>(rows.rows()) * outputs);
  for (std::int64_t r = 0; r < rows.rows(); ++r) {  // without their padding
    const auto row = std::span(logits_).subspan(static_cast<std::size_t>(r) * outputs, outputs);
    tier_.read(rows.row_range(r, 1).data, std::as_writable_bytes(row));
  }
  return logits_;
}

std::span<const float> Generator::advance(std::span<const std::int32_t> tokens) {
  const auto count = static_cast<std::int64_t>(tokens.size());
  scratch_.reset();
  std::byte* ids = scratch_.take(static_cast<std::int64_t>(tokens.size_bytes()));
  model::UnitContext u = context_of(count, ids);
  const model::Carry carry = through_layers(u, tokens);
  // Only the last token's logits are asked for.
  model::UnitContext last = context_of(1, ids + (count - 1) * size_of(DType::i32));
  const auto last_row = [&](const View& v) {
    return v ? v.row_range(count - 1, 1).reshaped({1, 1, config_.hidden}) : View{};
  };
  return read(
      model::head_logits(last, config_, model::head_weights(units_),
                         {.resid = last_row(carry.resid), .pending = last_row(carry.pending)}));
}

std::span<const float> Generator::whole(std::span<const std::int32_t> tokens) {
  length_ = 0;
  for (model::KvCache& cache : caches_) cache.length = 0;
  scratch_.reset();
  model::UnitContext u =
      context_of(std::ssize(tokens), scratch_.take(static_cast<std::int64_t>(tokens.size_bytes())));
  const model::Carry carry = through_layers(u, tokens);
  return read(model::head_logits(u, config_, model::head_weights(units_), carry));
}

}  // namespace tessera::train
