#include "support/eager_model.hpp"

#include <cstring>
#include <deque>
#include <memory>
#include <new>

#include "model/adapters.hpp"
#include "model/block.hpp"
#include "model/ends.hpp"

namespace tessera::test {

using kernels::Write;
using model::UnitKind;

namespace {

/// Memory for one pass; all bits set, so that reading what nobody wrote gives NaN.
class Poisoned {
 public:
  std::byte* allocate(std::int64_t bytes) {
    const auto n = static_cast<std::size_t>(bytes);
    auto* p = static_cast<std::byte*>(::operator new[](n, std::align_val_t{64}));
    std::memset(p, 0xff, n);
    owned_.emplace_back(p);
    return p;
  }
  View make(DType type, std::int64_t elements) {
    return View(allocate(elements * size_of(type)), type, {elements});
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::deque<std::unique_ptr<std::byte, Free>> owned_;
};

void set_rounded(const View& out, const float* values) {
  for (std::int64_t i = 0; i < out.elements(); ++i) {
    switch (out.type) {
      case DType::bf16: out.as<bf16>()[i] = bf16(values[i]); break;
      case DType::f16: out.as<f16>()[i] = f16(values[i]); break;
      default: out.as<float>()[i] = values[i];
    }
  }
}

}  // namespace

/// One forward or forward and backward: the units' weights and gradients as views, and the visits.
struct EagerModel::Pass {
  Pass(EagerModel& m, const TokenBatch& b) : model(m), tokens(b) {
    std::int64_t begin = 0;
    for (std::size_t i = 0; i < m.units_.size(); ++i) {
      const auto& layout = m.layouts_[i];
      const View flat = memory.make(m.units_[i].traits.type.value_or(m.compute_), layout.padded);
      set_rounded(flat, m.parameters.data() + begin);
      begin += layout.padded;
      weights.push_back(zero::parameter_views(m.units_[i], layout, flat));
    }
    losses = memory.make(DType::f32, std::ssize(b.targets));
    gradients = memory.make(DType::f32, begin);
    std::memset(gradients.data, 0, static_cast<std::size_t>(gradients.span_bytes()));
    begin = 0;
    for (std::size_t i = 0; i < m.units_.size(); ++i) {
      const auto& layout = m.layouts_[i];
      grads.push_back(
          zero::parameter_views(m.units_[i], layout, gradients.range(begin, layout.padded)));
      begin += layout.padded;
    }
  }

  model::UnitContext context(std::size_t layer) {
    const auto bytes = [](auto& v) { return reinterpret_cast<std::byte*>(v.data()); };
    model::UnitContext u(
        model.device_, [this](model::Keep, std::int64_t n) { return memory.allocate(n); },
        model.compute_,
        {.batch = tokens.batch,
         .sequence = tokens.sequence,
         .tokens = View(bytes(tokens.tokens), DType::i32, {tokens.batch, tokens.sequence}),
         .targets = View(bytes(tokens.targets), DType::i32, {std::ssize(tokens.targets)}),
         .samples = View(bytes(tokens.samples), DType::i64, {tokens.batch}),
         .documents = documents(),
         .positions = documents()});
    u.training = true;
    u.seed = model.seed_;
    u.layer = layer;
    u.scale = factor;
    u.router_terms = model.router_terms;
    u.inner_rows = model.inner_rows_;
    u.reach = model.config_.reach_of(static_cast<std::int64_t>(layer) - 1);
    return u;
  }

  /// Documents that the batch has are separate, and positions count from their begins.
  View documents() {
    if (tokens.documents.empty()) return {};
    return View(reinterpret_cast<std::byte*>(tokens.documents.data()), DType::i32,
                {tokens.batch, tokens.sequence, std::int64_t{2}});
  }

  /// Parameters, or gradients, of all units.
  std::vector<model::UnitViews> all(const std::vector<model::ParameterViews>& views) const {
    std::vector<model::UnitViews> units;
    for (std::size_t i = 0; i < views.size(); ++i) units.push_back({&model.units_[i], views[i]});
    return units;
  }

  /// Parameters, or gradients, of the block that is unit `i`, with what is a unit of its own.
  std::vector<model::UnitViews> units_of(const std::vector<model::ParameterViews>& views,
                                         std::size_t i) const {
    std::vector<model::UnitViews> units{{&model.units_[i], views[i]}};
    for (std::size_t j = i + 1; j < views.size() && model.units_[j].layer == model.units_[i].layer;
         ++j)
      units.push_back({&model.units_[j], views[j]});
    return units;
  }
  model::BlockWeights block(const std::vector<model::ParameterViews>& views, std::size_t i) const {
    return model::block_weights(units_of(views, i));
  }

  /// Up to the head's input.
  void forward() {
    const auto& c = model.config_;
    auto u = context(0);
    model::embed_forward(u, c, model::embed_weights(all(weights)), embedded, carry);
    for (std::size_t i = 0; i < model.units_.size(); ++i) {
      if (model.units_[i].kind != UnitKind::block) continue;
      auto b = context(saved.size() + 1);
      const auto units = units_of(weights, i);
      model::Adapters adapters(b, c.adapter, units);
      b.adapters = &adapters;
      model::Carry out;
      saved.emplace_back();
      model::block_forward(b, c, model::block_weights(units), carry, saved.back(), out);
      carry = out;
    }
  }

  void backward(float scale) {
    const auto& c = model.config_;
    factor = memory.make(DType::f32, 1);
    *factor.as<float>() = scale;
    auto h = context(saved.size() + 1);
    View d = model::head_loss_backward(h, c, model::head_weights(all(weights)), carry, losses,
                                       model::head_weights(all(grads)), Write::overwrite);
    std::size_t layer = saved.size();
    for (std::size_t i = model.units_.size(); i-- > 0;) {
      if (model.units_[i].kind != UnitKind::block) continue;
      auto b = context(layer);
      d = model::block_backward(b, c, block(weights, i), saved[--layer], d, block(grads, i),
                                Write::overwrite);
    }
    auto u = context(0);
    model::embed_backward(u, c, model::embed_weights(all(weights)), embedded, d,
                          model::embed_gradients(all(grads)),
                          c.tied_embeddings ? Write::add : Write::overwrite, Write::overwrite);
  }

  std::vector<float> loss_values() const {
    return {losses.as<float>(), losses.as<float>() + losses.elements()};
  }

  EagerModel& model;
  TokenBatch tokens;
  Poisoned memory;
  std::vector<model::ParameterViews> weights, grads;  // of each unit
  View losses, gradients;
  View factor;  // of losses, in backward
  model::EmbedSaved embedded;
  std::vector<model::BlockSaved> saved;
  model::Carry carry;
};

EagerModel::EagerModel(const model::ModelConfig& config, DType compute, std::uint64_t dropout_seed,
                       kernels::Device& device, const train::ParameterSource& source,
                       std::int64_t inner_rows)
    : config_(config),
      compute_(compute),
      seed_(dropout_seed),
      inner_rows_(inner_rows),
      device_(device),
      units_(model::model_units(config)) {
  for (const auto& unit : units_) {
    layouts_.push_back(zero::unit_layout(unit, 1));
    const std::size_t begin = parameters.size();
    parameters.resize(begin + static_cast<std::size_t>(layouts_.back().padded));
    for (const auto& slice : zero::slices_in(unit, layouts_.back(), {0, layouts_.back().padded})) {
      const std::int64_t n = slice.part.elements();  // whole rows: nothing is cut
      const std::int64_t at = slice.part.rows.begin * slice.part.columns.count();
      source(
          unit.params[slice.parameter], {at, at + n},
          std::span(parameters)
              .subspan(begin + static_cast<std::size_t>(slice.flat), static_cast<std::size_t>(n)));
    }
  }
}

std::vector<EagerModel::Tensor> EagerModel::tensors() const {
  std::vector<Tensor> all;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    for (std::size_t p = 0; p < units_[i].params.size(); ++p) {
      const std::int64_t first = begin + layouts_[i].offset_of(p);
      all.push_back({units_[i].params[p].name, {first, first + units_[i].params[p].elements()}});
    }
    begin += layouts_[i].padded;
  }
  return all;
}

std::vector<float> EagerModel::losses(const TokenBatch& batch) {
  Pass pass(*this, batch);
  pass.forward();
  auto u = pass.context(pass.saved.size() + 1);
  model::head_loss(u, config_, model::head_weights(pass.all(pass.weights)), pass.carry,
                   pass.losses);
  return pass.loss_values();
}

EagerModel::Gradients EagerModel::backward(const TokenBatch& batch, float scale) {
  Pass pass(*this, batch);
  pass.forward();
  pass.backward(scale);
  const float* g = pass.gradients.as<float>();
  Gradients all{.losses = pass.loss_values(), .flat = {g, g + pass.gradients.elements()}};
  for (std::size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].traits.trained) all.trained.insert(all.trained.end(), g, g + layouts_[i].padded);
    g += layouts_[i].padded;
  }
  return all;
}

}  // namespace tessera::test
