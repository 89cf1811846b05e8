#include "model/adapters.hpp"

#include <algorithm>

#include "core/at.hpp"

namespace tessera::model {

using namespace kernels;

void UnitContext::multiply(Linear product) {
  product.operands = operands;
  adapters == nullptr ? run(product) : adapters->multiply(product);
}

void UnitContext::multiply(LinearBackwardInput product) {
  product.operands = operands;
  adapters == nullptr ? run(product) : adapters->multiply(product);
}

void UnitContext::multiply(LinearBackwardWeight product) {
  product.operands = operands;
  run(product);
}

void UnitContext::adapter_gradients(Write write) {
  if (adapters != nullptr) adapters->gradients(write);
}

void UnitContext::finish_adapters() {
  if (adapters != nullptr) adapters->finish();
}

namespace {

/// By own chunk, from the units' tiles one after another, or the one view of what is whole.
std::vector<View> views_of(std::span<const UnitViews> units, const std::string& name) {
  std::vector<View> all;
  for (const UnitViews& unit : units) {
    for (std::size_t i = 0; i < unit.params.size(); ++i) {
      if (unit.unit->params[i].name == name)
        all.insert(all.end(), unit.params[i].begin(), unit.params[i].end());
    }
  }
  return all;
}

const View& of_chunk(const std::vector<View>& views, std::int64_t chunk) {
  return views.size() == 1 ? views.front() : at(views, chunk);
}

/// Which rows of `base`, a matrix that is dense in its flat buffer, are rows of `weight`; and the
/// row of `weight` that they begin at.
std::pair<Range, std::int64_t> rows_in(const View& base, const View& weight) {
  if (base.cols() != weight.cols() || !base.dense()) return {};
  const std::int64_t bytes = base.cols() * size_of(base.type);
  const auto place = [](const View& v) { return reinterpret_cast<std::intptr_t>(v.data); };
  const std::int64_t offset = place(base) - place(weight);
  if (offset >= weight.span_bytes() || -offset >= base.span_bytes()) return {};
  const std::int64_t first = offset / bytes;  // row of weight that is base's first
  const Range common = intersect({first, first + base.rows()}, {0, weight.rows()});
  return {{common.begin - first, common.end - first}, common.begin};
}

}  // namespace

Adapters::Adapters(UnitContext& u, const AdapterConfig& config, std::span<const UnitViews> weights,
                   std::span<const UnitViews> gradients)
    : u_(u), config_(config) {
  for (const UnitViews& unit : weights) {
    const Range own = own_chunks(*unit.unit, u.tensor_region().cut);
    for (std::size_t i = 0; i < unit.unit->params.size(); ++i) {
      const ParamDesc& a = unit.unit->params[i];
      const auto stem = adapted_by(a.name);
      if (!stem) continue;
      const std::string w_name = *stem + ".weight", b_name = *stem + std::string(kAdapterB),
                        m_name = *stem + std::string(kAdapterMagnitude);
      Adapter adapter{.site = adapter_target(unit.unit->layer, w_name).value(),
                      .columns = a.shape[1],
                      .rows_a = a.shape[0],
                      .whole_a = a.tensor_axis < 0,
                      .whole_b = unit.unit->params[i + 1].tensor_axis < 0,
                      .w = views_of(weights, w_name),
                      .a = views_of(weights, a.name),
                      .b = views_of(weights, b_name),
                      .m = views_of(weights, m_name),
                      .d_a = views_of(gradients, a.name),
                      .d_b = views_of(gradients, b_name),
                      .d_m = views_of(gradients, m_name),
                      .squares = {},
                      .first_column = {},
                      .a_parts = {},
                      .b_parts = {},
                      .m_parts = {}};
      for (std::int64_t chunk = own.begin; chunk < own.end; ++chunk)
        adapter.first_column.push_back(a.part(chunk, u.tensor_region().cut).columns.begin);
      adapters_.push_back(std::move(adapter));
    }
  }
}

std::vector<Adapters::Passage> Adapters::passages_beside(const Linear& product) {
  std::vector<Passage> found;
  for (Adapter& adapter : adapters_) {
    for (const View& w : adapter.w) {
      const auto [rows, column] = rows_in(w, product.weight);
      if (rows.empty()) continue;
      found.push_back({.adapter = &adapter,
                       .chunk = adapter.passages++,
                       .weight = product.weight.data,
                       .rows = rows,
                       .column = column,
                       .x = product.x,
                       .t = {},
                       .y = {},
                       .d_out = {},
                       .d_y = {},
                       .d_t = {}});
    }
  }
  return found;
}

/// Where a result is added up in f32: itself, or a tensor that is rounded into it.
View Adapters::in_f32(const View& result) {
  if (result.type == DType::f32) return result;
  return u_.tensor(Keep::transient, DType::f32,
                   {u_.micro_batch().batch, u_.micro_batch().sequence, result.cols()});
}

/// For a product with `rank` columns that scaled() makes a tensor kept so of.
View Adapters::product_of_rank(Keep keep) {
  const bool last = config_.scale == 1 && u_.compute() == DType::f32;
  return u_.tensor(last ? keep : Keep::transient, DType::f32,
                   {u_.micro_batch().batch, u_.micro_batch().sequence, config_.rank});
}

/// scale times it, in the compute type.
View Adapters::scaled(const View& product, Keep keep) {
  const auto make = [&](Keep how, DType type) {
    return u_.tensor(how, type, {product.extent(0), product.extent(1), product.extent(2)});
  };
  View all = product;
  if (config_.scale != 1) {
    all = make(u_.compute() == DType::f32 ? keep : Keep::transient, DType::f32);
    u_.run(Scale{.x = product, .out = all, .factor = config_.scale});
  }
  if (u_.compute() == DType::f32) return all;
  const View rounded = make(keep, u_.compute());
  u_.run(Convert{.x = all, .out = rounded});
  return rounded;
}

/// Dropout of what the adapter reads, without x and out. The mask is that of the columns of all
/// chunks, so that it does not depend on how they are cut.
ApplyDropout Adapters::dropout_of(const Passage& p) const {
  ApplyDropout call{.x = {}, .out = {}, .dropout = {}, .columns = p.adapter->columns};
  if (!u_.training || config_.dropout == 0) return call;
  call.dropout = {
      .p = config_.dropout,
      .seed = u_.seed,
      .site = ((std::uint64_t{p.adapter->site} + 1) << 32) + u_.layer * UnitContext::kDropoutSites,
      .first = at(p.adapter->first_column, p.chunk),
      .samples = u_.micro_batch().samples};
  return call;
}

View Adapters::dropped_out(const Passage& p) {
  ApplyDropout call = dropout_of(p);
  if (!call.dropout) return p.x;
  call.x = p.x, call.out = u_.activation(Keep::transient, p.x.cols());
  u_.run(call);
  return call.out;
}

/// What A is whole makes the same of x for every chunk.
void Adapters::make_t(Passage& p) {
  const View& a = of_chunk(p.adapter->a, p.chunk);
  for (const Passage& other : passages_) {
    if (other.adapter == p.adapter && other.x.data == p.x.data && p.adapter->whole_a)
      return void(p.t = other.t);
  }
  const View product = product_of_rank(Keep::expensive);
  u_.run(Linear{.x = dropped_out(p), .weight = a, .y = product});
  p.t = scaled(product, Keep::expensive);
}

/// y += t B^T.
void Adapters::add_update(const Passage& p, const View& y) {
  const View b = of_chunk(p.adapter->b, p.chunk).row_range(p.rows.begin, p.rows.count());
  const View update =
      u_.tensor(Keep::transient, DType::f32, {p.x.extent(0), p.x.extent(1), p.rows.count()});
  u_.run(Linear{.x = p.t, .weight = b, .y = update});
  u_.run(Convert{.x = update, .out = y.col_range(p.column, p.rows.count()), .write = Write::add});
}

/// out[n] = |w_n + scale b_n A|^2. The sum is only there for some rows at once.
void Adapters::square_rows(const View& w, const View& a, const View& b, const View& out) {
  constexpr std::int64_t kMost = std::int64_t{1} << 22;  // elements
  const std::int64_t each = std::max<std::int64_t>(1, kMost / w.cols());
  const View room = u_.tensor(Keep::transient, DType::f32, {std::min(each, w.rows()), w.cols()});
  for (std::int64_t r = 0; r < w.rows(); r += each) {
    const std::int64_t n = std::min(each, w.rows() - r);
    const View update = room.row_range(0, n);
    u_.run_once(LinearBackwardInput{.d_y = b.row_range(r, n), .weight = a, .d_x = update});
    u_.run_once(RowSquares{.weight = w.row_range(r, n),
                           .update = update,
                           .scale = config_.scale,
                           .out = out.range(r, n)});
  }
}

/// Once for all chunks that this rank has: where each has columns of all rows, they are summed.
void Adapters::make_squares(Adapter& adapter) {
  if (!adapter.squares.empty()) return;
  const auto own = static_cast<std::int64_t>(adapter.w.size());
  const std::int64_t rows = adapter.w.front().rows();
  const bool summed = !adapter.whole_a && !u_.tensor_region().whole();
  View parts;
  if (summed) parts = u_.tensor(Keep::transient, DType::f32, {own, rows});
  for (std::int64_t i = 0; i < own; ++i) {
    const View& w = at(adapter.w, i);
    const View out =
        summed ? parts.range(i * rows, rows) : u_.tensor(Keep::expensive, DType::f32, {w.rows()});
    square_rows(w, of_chunk(adapter.a, i), of_chunk(adapter.b, i), out);
    if (!summed) adapter.squares.push_back(out);
  }
  if (summed) adapter.squares = {sum_over_chunks(u_, parts, Keep::expensive)};
}

View Adapters::squares_of(const Passage& p) {
  return of_chunk(p.adapter->squares, p.chunk).range(p.rows.begin, p.rows.count());
}

/// What backward wants of y, in the compute type.
void Adapters::keep_unscaled(std::vector<Passage>& beside, const View& y) {
  View kept = y;
  if (u_.compute() != DType::f32) {
    kept = u_.activation(Keep::expensive, y.cols());
    u_.run(Convert{.x = y, .out = kept});
  }
  for (Passage& p : beside) p.y = kept.col_range(p.column, p.rows.count());
}

/// Multiplies columns that adapters have rows for with these rows' magnitudes over their lengths,
/// and adds the bias, if there is one, to all.
void Adapters::scale(const std::vector<const Passage*>& beside, const View& x, const View& bias,
                     const View& out) {
  const auto run = [&](Range columns, const View& magnitude, const View& squares) {
    if (columns.empty()) return;
    const auto of = [&](const View& v) { return v.col_range(columns.begin, columns.count()); };
    if (!magnitude && !bias) return u_.run(Convert{.x = of(x), .out = of(out)});
    u_.run(ScaleColumns{.x = of(x),
                        .magnitude = magnitude,
                        .squares = squares,
                        .bias = bias ? bias.range(columns.begin, columns.count()) : View{},
                        .out = of(out)});
  };
  std::int64_t done = 0;
  for (const Passage* p : beside) {
    TESSERA_CHECK(p->column >= done, "columns from {} behind those before {}", p->column, done);
    make_squares(*p->adapter);
    run({done, p->column}, {}, {});
    done = p->column + p->rows.count();
    run({p->column, done}, of_chunk(p->adapter->m, p->chunk).range(p->rows.begin, p->rows.count()),
        squares_of(*p));
  }
  run({done, x.cols()}, {}, {});
}

void Adapters::multiply(const Linear& product) {
  auto beside = passages_beside(product);
  if (beside.empty()) return u_.run(product);
  Linear own = product_of(product);
  const View y = own.y, bias = own.bias;
  if (config_.magnitudes) {
    own.bias = {};
    own.y = u_.tensor(u_.compute() == DType::f32 ? Keep::expensive : Keep::transient, DType::f32,
                      {u_.micro_batch().batch, u_.micro_batch().sequence, y.cols()});
  } else {
    own.y = in_f32(y);
  }
  u_.run(own);
  for (Passage& p : beside) {
    make_t(p);
    add_update(p, own.y);
  }
  if (config_.magnitudes) {
    if (u_.training) keep_unscaled(beside, own.y);
    std::vector<const Passage*> all;
    for (const Passage& p : beside) all.push_back(&p);
    scale(all, own.y, bias, y);
  } else if (own.y.data != y.data) {
    u_.run(Convert{.x = own.y, .out = y});
  }
  passages_.insert(passages_.end(), beside.begin(), beside.end());
  if (product.preactivation) u_.run(activation_of(product));
}

/// d_x += drop(d_t A), d_t = scale d_y B.
void Adapters::add_input_gradient(Passage& p, const View& d_y, const View& d_x) {
  const View b = of_chunk(p.adapter->b, p.chunk).row_range(p.rows.begin, p.rows.count());
  p.d_y = d_y.col_range(p.column, p.rows.count());
  const View product = product_of_rank(Keep::transient);
  u_.run(LinearBackwardInput{.d_y = p.d_y, .weight = b, .d_x = product});
  p.d_t = scaled(product, Keep::transient);
  p.back = true;
  const auto make = [&] {
    return u_.tensor(Keep::transient, DType::f32, {d_x.extent(0), d_x.extent(1), d_x.cols()});
  };
  View update = make();
  u_.run(
      LinearBackwardInput{.d_y = p.d_t, .weight = of_chunk(p.adapter->a, p.chunk), .d_x = update});
  if (ApplyDropout call = dropout_of(p); call.dropout) {
    call.x = update, call.out = make();
    u_.run(call);
    update = call.out;
  }
  u_.run(Convert{.x = update, .out = d_x, .write = Write::add});
}

void Adapters::multiply(const LinearBackwardInput& product) {
  // The first of what has not come back: chunks may share a weight.
  std::vector<Passage*> beside;
  for (Passage& p : passages_) {
    const bool again = std::ranges::any_of(
        beside, [&](const Passage* other) { return other->adapter == p.adapter; });
    if (!p.back && !again && p.weight == product.weight.data) beside.push_back(&p);
  }
  if (beside.empty()) return u_.run(product);
  LinearBackwardInput own = product_of(product);
  const View d_x = own.d_x;
  own.d_x = in_f32(d_x);
  if (config_.magnitudes) {
    for (Passage* p : beside) p->d_out = product.d_y.col_range(p->column, p->rows.count());
    own.d_y = u_.activation(Keep::transient, product.d_y.cols());
    scale({beside.begin(), beside.end()}, product.d_y, {}, own.d_y);
  }
  u_.run(own);
  for (Passage* p : beside) add_input_gradient(*p, own.d_y, own.d_x);
  if (own.d_x.data != d_x.data) u_.run(Convert{.x = own.d_x, .out = d_x});
  if (product.preactivation) u_.run(activation_of(product));
}

/// Where a chunk's part of a gradient goes that every tensor rank has the whole of.
View Adapters::part_of(View& parts, const View& gradient, const Passage& p, bool cleared) {
  const TensorCut& cut = u_.tensor_region().cut;
  if (!parts) {
    parts = partial_->parts(gradient, cut.own(), cut.ranks > 1);
    if (cleared && parts.data != gradient.data) u_.run(Fill{.out = parts});
  }
  if (parts.data == gradient.data) return gradient;
  View part = gradient;
  part.type = DType::f32, part.data = parts.row_range(p.chunk, 1).data;
  return part;
}

void Adapters::gradients_of(Passage& p, Write write) {
  Adapter& adapter = *p.adapter;
  // Beside keys and values that are whole, a chunk has rows of the heads that it reads.
  const bool some = adapter.whole_a && adapter.whole_b && !u_.tensor_region().whole();
  const Write into_part = some ? Write::add : Write::overwrite;
  const auto add = [&](const View& gradient, View* parts, const View& d_y, const View& x,
                       Range rows) {
    const View place = parts != nullptr ? part_of(*parts, gradient, p, some) : gradient;
    u_.run(LinearBackwardWeight{.d_y = d_y,
                                .x = x,
                                .d_weight = place.row_range(rows.begin, rows.count()),
                                .d_bias = {},
                                .write = place.data == gradient.data ? write : into_part});
  };
  add(of_chunk(adapter.d_b, p.chunk), adapter.whole_b ? &adapter.b_parts : nullptr, p.d_y, p.t,
      p.rows);
  if (config_.magnitudes) {
    const View& gradient = of_chunk(adapter.d_m, p.chunk);
    const View place = adapter.whole_b ? part_of(adapter.m_parts, gradient, p, some) : gradient;
    u_.run(MagnitudeBackward{.d_y = p.d_out,
                             .x = p.y,
                             .squares = squares_of(p),
                             .out = place.range(p.rows.begin, p.rows.count()),
                             .write = place.data == gradient.data ? write : into_part});
  }
  add(of_chunk(adapter.d_a, p.chunk), adapter.whole_a ? &adapter.a_parts : nullptr, p.d_t,
      dropped_out(p), {0, adapter.rows_a});
}

void Adapters::gradients(Write write) {
  if (!partial_) partial_.emplace(u_, write);
  for (Passage& p : passages_) {
    if (!p.back || p.done) continue;
    gradients_of(p, write);
    p.done = true;
  }
}

void Adapters::finish() {
  if (partial_) partial_->finish();
}

}  // namespace tessera::model
