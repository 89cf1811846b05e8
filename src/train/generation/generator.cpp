#include "train/generation/generator.hpp"

#include <algorithm>
#include <numeric>

#include "model/adapters.hpp"
#include "model/cached.hpp"
#include "train/generation/sampling.hpp"

namespace tessera::train {

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

bool Generator::Scratch::has(const std::byte* at) const {
  return std::ranges::any_of(blocks_, [&](const auto& block) {
    return at >= block->base() && at < block->base() + block->bytes();
  });
}

void Generator::next_turn() {
  turn_ = 1 - turn_;
  scratch_[turn_].reset();
}

View Generator::own(model::UnitContext& u, const View& left) const {
  if (!left || scratch_[turn_].has(left.data)) return left;
  const View copy =
      u.tensor(model::Keep::transient, left.type, {left.extent(0), left.extent(1), left.extent(2)});
  u.run(kernels::Convert{.x = left, .out = copy});
  return copy;
}

View Generator::make(DType type, std::initializer_list<std::int64_t> extents) {
  View v(nullptr, type, extents);
  owned_.push_back(std::make_unique<memory::Arena>("model", tier_, v.elements() * size_of(type)));
  v.data = owned_.back()->base();
  return v;
}

void Generator::load(const View& part, const std::function<void(std::span<float>)>& read) {
  scratch_[turn_].reset();
  View elements = part;
  if (part.type != DType::f32) {
    elements = View(nullptr, DType::f32, {part.elements()});
    elements.data = scratch_[turn_].take(elements.span_bytes());
  }
  tier_.fill(elements.data, elements.span_bytes(), [&](std::span<std::byte> bytes) {
    read({reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)});
  });
  if (part.type != DType::f32) device_.run(kernels::Convert{.x = elements, .out = part});
}

/// Tokens that a slot can see.
static std::int64_t capacity_of(const model::ModelConfig& config, const GeneratorOptions& options) {
  return std::min(config.context, options.most.value_or(config.context));
}

static model::CachedColumns cached_columns(const model::ModelConfig& config,
                                           std::span<const model::UnitDesc> units,
                                           const GeneratorOptions& options) {
  return model::cached_columns(config, {}, 0,
                               model::keeps_latents(config, units, options.most_head_dim));
}

GeneratorBytes generator_bytes(const model::ModelConfig& config, const GeneratorOptions& options) {
  std::int64_t bytes = 0;
  const std::vector<model::UnitDesc> units = model::model_units(config);
  for (const auto& desc : units) {
    const DType type = desc.traits.type.value_or(options.type);
    bytes += zero::unit_layout(desc, 1).padded * size_of(type);
  }
  const auto [k, v] = cached_columns(config, units, options);
  const std::int64_t cached =
      options.slots * capacity_of(config, options) * config.layers * (k + v);
  return {.model = bytes, .cache = cached * size_of(options.type)};
}

Generator::Generator(const model::ModelConfig& config, kernels::Device& device, memory::Tier& tier,
                     const ParameterSource& parameters, GeneratorOptions options)
    : config_(config),
      type_(options.type),
      context_(capacity_of(config, options)),
      device_(device),
      tier_(tier),
      descs_(model::model_units(config)),
      lengths_(static_cast<std::size_t>(options.slots)),
      scratch_{Scratch(tier), Scratch(tier)} {
  for (const auto& desc : descs_) {
    const zero::UnitLayout layout = zero::unit_layout(desc, 1);
    flats_.push_back(make(desc.traits.type.value_or(type_), {layout.padded}));
    units_.push_back({&desc, zero::parameter_views(desc, layout, flats_.back())});
  }
  set_parameters(parameters);
  const auto [k, v] = cached_columns(config, descs_, options);
  const auto cache = [&](std::int64_t columns) {
    return columns > 0 ? make(type_, {options.slots, context_, columns}) : View{};
  };
  cached_ = make(DType::i32, {options.slots, kernels::kCachedColumns});
  pages_ = make(DType::i32, {options.slots, 1});
  std::vector<std::int32_t> slots(lengths_.size());
  std::iota(slots.begin(), slots.end(), 0);
  tier_.write(pages_.data, std::as_bytes(std::span(slots)));
  for (std::int64_t l = 0; l < config.layers; ++l)
    caches_.push_back({.k = cache(k), .v = cache(v)});
}

void Generator::set_parameters(const ParameterSource& parameters) {
  for (std::size_t u = 0; u < descs_.size(); ++u) {
    const zero::UnitLayout layout = zero::unit_layout(descs_[u], 1);
    for (const auto& slice : zero::slices_in(descs_[u], layout, {0, layout.padded})) {
      const model::ParamDesc& parameter = descs_[u].params[slice.parameter];
      const std::int64_t n = slice.part.elements();  // whole rows: nothing is cut
      const std::int64_t first = slice.part.rows.begin * slice.part.columns.count();
      load(flats_[u].range(slice.flat, n), [&](std::span<float> out) {
        parameters(parameter, {first, first + n}, out);
      });
    }
  }
}

model::UnitContext Generator::context_of(const model::MicroBatch& batch) {
  return {device_, [this](model::Keep, std::int64_t bytes) { return scratch_[turn_].take(bytes); },
          type_, batch};
}

model::Carry Generator::through_layers(std::span<const std::int32_t> tokens, std::int64_t first,
                                       std::span<const std::int32_t> counts) {
  const std::int64_t batch = std::ssize(counts), each = std::ssize(tokens) / batch;
  bool begins = true;
  std::vector<kernels::CachedSample> cached;
  for (const std::int32_t count : counts) {
    const std::int64_t before = count > 0 ? length(first + std::ssize(cached)) : 0;
    TESSERA_CHECK(each > 0 && before + count <= context_, "{} tokens after {} of {}", count, before,
                  context_);
    cached.push_back({.before = static_cast<std::int32_t>(before), .count = count});
    begins = begins && before == 0;
  }
  tier_.write(cached_.data, std::as_bytes(std::span(cached)));
  next_turn();
  View ids(nullptr, DType::i32, {batch, each});
  ids.data = scratch_[turn_].take(ids.span_bytes());
  tier_.write(ids.data, std::as_bytes(tokens));
  model::UnitContext u = context_of({.batch = batch,
                                     .sequence = each,
                                     .tokens = ids,
                                     .targets = {},
                                     .samples = {},
                                     .cached = cached_.row_range(0, batch),
                                     .pages = pages_.row_range(first, batch),
                                     .begins = begins});
  model::Carry carry;
  model::EmbedSaved saved;
  model::embed_forward(u, config_, model::embed_weights(units_), saved, carry);
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
    u.caches = {caches_[layer++]};
    next_turn();
    model::BlockSaved unused;
    model::Carry next;
    model::block_forward(u, config_, model::block_weights(block), carry, unused, next);
    carry = {.resid = own(u, next.resid), .pending = own(u, next.pending)};
  }
  return carry;
}

std::span<const float> Generator::logits_of(std::int64_t sequences, const model::Carry& carry) {
  model::UnitContext u = context_of({.batch = sequences,
                                     .sequence = carry.resid.rows() / sequences,
                                     .tokens = {},
                                     .targets = {},
                                     .samples = {}});
  View rows = model::head_logits(u, config_, model::head_weights(units_), carry).matrix();
  if (type_ != DType::f32) {
    const View exact = u.tensor(model::Keep::transient, DType::f32, {rows.rows(), rows.cols()});
    u.run(kernels::Convert{.x = rows, .out = exact});
    rows = exact;
  }
  const auto outputs = static_cast<std::size_t>(config_.outputs());
  logits_.resize(static_cast<std::size_t>(rows.rows()) * outputs);
  for (std::int64_t r = 0; r < rows.rows(); ++r) {
    const auto row = std::span(logits_).subspan(static_cast<std::size_t>(r) * outputs, outputs);
    tier_.read(rows.row_range(r, 1).data, std::as_writable_bytes(row));
  }
  return logits_;
}

std::span<const float> Generator::advance(std::span<const std::int32_t> tokens, std::int64_t slot) {
  const auto count = static_cast<std::int32_t>(tokens.size());
  const model::Carry carry = through_layers(tokens, slot, std::span(&count, 1));
  lengths_[static_cast<std::size_t>(slot)] += count;
  return logits_of(1, rows_of(carry, {count - 1, count}));  // only the last token's are asked for
}

void Generator::begin(std::span<const Prompt> prompts, const Begun& begun) {
  for (std::size_t i = 0; i < prompts.size(); ++i)
    begun(i, advance(prompts[i].tokens, prompts[i].slot));
}

model::Carry Generator::carry_of(std::span<const std::int32_t> tokens) {
  forget();
  const auto count = static_cast<std::int32_t>(tokens.size());
  return through_layers(tokens, 0, std::span(&count, 1));
}

model::Carry Generator::rows_of(const model::Carry& carry, Range rows) const {
  const auto some = [&](const View& v) {
    return v ? v.row_range(rows.begin, rows.count()).reshaped({1, rows.count(), config_.hidden})
             : View{};
  };
  return {.resid = some(carry.resid), .pending = some(carry.pending)};
}

std::span<const float> Generator::advance_each(std::span<const std::int32_t> tokens) {
  TESSERA_CHECK(std::ssize(tokens) == slots(), "{} tokens for {} slots", tokens.size(), slots());
  std::vector<std::int32_t> ids(tokens.begin(), tokens.end());
  std::vector<std::int32_t> counts;
  for (std::int64_t slot = 0; slot < slots(); ++slot) {
    std::int32_t& id = ids[static_cast<std::size_t>(slot)];
    TESSERA_CHECK(id >= 0 || length(slot) == 0, "slot {} has {} tokens", slot, length(slot));
    counts.push_back(id >= 0 ? 1 : 0);
    id = std::max(id, 0);
  }
  const model::Carry carry = through_layers(ids, 0, counts);
  for (std::size_t i = 0; i < lengths_.size(); ++i) lengths_[i] += tokens[i] >= 0 ? 1 : 0;
  return logits_of(slots(), carry);
}

std::span<const float> Generator::whole(std::span<const std::int32_t> tokens) {
  return logits_of(1, carry_of(tokens));
}

}  // namespace tessera::train
