#include "train/state/model_state.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "core/at.hpp"
#include "core/hash.hpp"
#include "core/random.hpp"
#include "io/box.hpp"
#include "io/finite.hpp"
#include "kernels/common/slots.hpp"
#include "optim/optimizer.hpp"
#include "plan/passes/layers.hpp"
#include "plan/passes/place_buffers.hpp"

namespace tessera::train {

namespace {

constexpr std::int64_t kPiece = 1 << 20;  // elements that are read before they are converted
constexpr std::int64_t kCoded = 1 << 24;  // and at most before they become codes

template <typename T>
void convert_to(std::span<const float> in, std::byte* out) {
  auto* typed = reinterpret_cast<T*>(out);
  for (std::size_t i = 0; i < in.size(); ++i) typed[i] = T(in[i]);
}

void convert(std::span<const float> in, DType type, std::byte* out) {
  switch (type) {
    case DType::f32: return convert_to<float>(in, out);
    case DType::bf16: return convert_to<bf16>(in, out);
    case DType::f16: return convert_to<f16>(in, out);
    default: throw InternalError(fmt::format("parameters in {}", to_string(type)));
  }
}

void convert(std::span<const std::byte> in, DType from, DType to, std::byte* out) {
  const auto n = static_cast<std::size_t>(std::ssize(in) / size_of(from));
  std::vector<float> values(n);
  const auto widen = [&](auto type) {
    const auto* typed = reinterpret_cast<const decltype(type)*>(in.data());
    for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(typed[i]);
  };
  switch (from) {
    case DType::f32: widen(float{}); break;
    case DType::bf16: widen(bf16{}); break;
    case DType::f16: widen(f16{}); break;
    default: throw InternalError(fmt::format("parameters in {}", to_string(from)));
  }
  convert(values, to, out);
}

}  // namespace

/// Elements of a table of positions with so many columns (model::Init::sinusoids).
static void fill_sinusoids(std::int64_t columns, Range range, std::span<float> out) {
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    const std::int64_t row = i / columns, column = i % columns, even = column - column % 2;
    const double angle =
        static_cast<double>(row) *
        std::pow(10000.0, -static_cast<double>(even) / static_cast<double>(columns));
    out[static_cast<std::size_t>(i - range.begin)] =
        static_cast<float>(column % 2 == 0 ? std::sin(angle) : std::cos(angle));
  }
}

ParameterSource initial_values(std::uint64_t seed) {
  return [seed](const model::ParamDesc& p, Range range, std::span<float> out) {
    if (p.init == model::Init::sinusoids) return fill_sinusoids(p.shape[1], range, out);
    if (p.init != model::Init::normal) {
      std::fill(out.begin(), out.end(), p.init == model::Init::ones ? 1.0F : 0.0F);
      return;
    }
    const RandomKey key = random_key(seed, RandomPurpose::init, hash_text(p.name));
    const auto n = static_cast<std::int64_t>(out.size());
#pragma omp parallel for schedule(static)
    for (std::int64_t i = 0; i < n; ++i) {
      const double x = random_normal(key, 0, static_cast<std::uint64_t>(range.begin + i));
      out[static_cast<std::size_t>(i)] = static_cast<float>(p.init_std * x);
    }
  };
}

void fill_row_lengths(const model::ParamDesc& magnitudes, std::span<const model::UnitDesc> units,
                      const ParameterSource& source, Range range, std::span<float> out) {
  constexpr std::int64_t kMost = std::int64_t{1} << 20;  // elements at a time
  const std::string name = model::measured_by(magnitudes.name).value() + ".weight";
  const model::ParamDesc* matrix = nullptr;
  for (const model::UnitDesc& unit : units) {
    for (const model::ParamDesc& p : unit.params)
      if (p.name == name) matrix = &p;
  }
  TESSERA_CHECK(matrix != nullptr, "{} is of no matrix", magnitudes.name);
  const std::int64_t columns = matrix->shape[1], each = std::max<std::int64_t>(1, kMost / columns);
  std::vector<float> rows(static_cast<std::size_t>(std::min(each, range.count()) * columns));
  for (std::int64_t r = range.begin; r < range.end; r += each) {
    const std::int64_t n = std::min(each, range.end - r);
    source(*matrix, {r * columns, (r + n) * columns},
           std::span(rows).first(static_cast<std::size_t>(n * columns)));
    for (std::int64_t i = 0; i < n; ++i) {
      double squares = 0;
      for (std::int64_t c = 0; c < columns; ++c) {
        const double x = at(rows, i * columns + c);
        squares += x * x;
      }
      at(out, r + i - range.begin) = static_cast<float>(std::sqrt(squares));
    }
  }
}

bool has_state(const io::Checkpoint& checkpoint, std::span<const model::UnitDesc> units,
               std::string_view state) {
  return std::ranges::all_of(units, [&](const model::UnitDesc& unit) {
    return !unit.traits.trained || std::ranges::all_of(unit.params, [&](const model::ParamDesc& p) {
      return checkpoint.find(p.name, state).has_value();
    });
  });
}

std::string weights_in(const io::Checkpoint& checkpoint, std::string_view parameter,
                       std::string_view state) {
  return std::string(checkpoint.find(parameter, state) ? state : "master");
}

DataError no_averaged_weights(const std::filesystem::path& checkpoint) {
  return DataError(fmt::format(
      "{} has no averaged weights, which a run with optimizer.ema keeps: leave out --ema, or name "
      "a checkpoint that has them",
      checkpoint.string()));
}

/// A plan of the persistent buffers only, and the views of them.
static std::pair<plan::Plan, std::vector<plan::UnitState>> state_layout(
    const plan::PlanInputs& inputs, const MeshPlace& place) {
  plan::Plan layout;
  plan::set_place(layout, inputs, place);
  auto states = plan::add_state(layout, inputs);
  plan::place_buffers(layout);
  return {std::move(layout), std::move(states)};
}

plan::ArenaBytes ModelState::arena_bytes(const plan::PlanInputs& inputs, const MeshPlace& place) {
  return state_layout(inputs, place).first.arena_bytes;
}

ModelState::ModelState(const plan::PlanInputs& inputs, const MeshPlace& place, const Arenas& arenas)
    : inputs_(inputs), arenas_(arenas), rows_(plan::kept_tensors(inputs)) {
  std::tie(layout_, states_) = state_layout(inputs, place);
  saved_ = saved_pieces();
  for (const model::UnitDesc& unit : inputs.model.units) {
    if (!inputs.stored(unit).codes || unit.tile.index > 0) continue;
    for (const model::ParamDesc& p : unit.params) code_errors_.push_back({p.name});
  }
}

ModelState::RealView ModelState::real(const View& symbolic) const {
  const plan::Buffer& buffer = layout_.buffer(plan::buffer_of(symbolic));
  const memory::Arena& arena = *arenas_[plan::arena_of(buffer)];
  View v = symbolic;
  v.data = arena.base() + buffer.offset + plan::offset_of(symbolic);
  return {v, &arena.tier()};
}

namespace {

/// f(piece, first) for pieces of `part` that are converted at once; `first` is where the piece
/// begins in the part.
template <typename F>
void for_pieces(const MatrixRange& part, F&& f) {
  const std::int64_t width = part.columns.count();
  const std::int64_t rows = std::max<std::int64_t>(1, kPiece / width);
  for (std::int64_t r = part.rows.begin; r < part.rows.end; r += rows) {
    const Range of_rows{r, std::min(r + rows, part.rows.end)};
    for (std::int64_t c = part.columns.begin; c < part.columns.end; c += kPiece) {
      const Range of_columns{c, std::min(c + kPiece, part.columns.end)};
      f(MatrixRange{of_rows, of_columns}, (r - part.rows.begin) * width + c - part.columns.begin);
    }
  }
}

std::int64_t columns_of(const model::ParamDesc& p) { return p.elements() / p.shape[0]; }

View f32_view(std::span<float> values) {
  return {reinterpret_cast<std::byte*>(values.data()), DType::f32, {std::ssize(values)}};
}

}  // namespace

void ModelState::each_of_codes(std::size_t unit, const HeldPart& f,
                               const std::function<void()>& filled) {
  const auto& s = states_[unit];
  const Range elements = s.kept[plan::kMasterRow].elements;
  const std::int64_t run = kCoded / s.codes->block * s.codes->block;
  std::vector<float> values;
  for (std::int64_t slot = elements.begin; slot < elements.end; slot += s.slot) {
    for (std::int64_t at = slot, end = slot + s.slot; at < end; at += run) {
      const Range some{at, std::min(at + run, end)};
      values.assign(static_cast<std::size_t>(some.count()), 0);
      const RealView all{f32_view(values), &host_};
      for (const auto& slice : zero::slices_in(inputs_.model.units[unit], s.layout, some)) {
        f(inputs_.model.units[unit].params[slice.parameter], slice.part,
          {all.range(slice.flat - some.begin, slice.part.elements())});
      }
      filled();
      encode(unit, at, values);
    }
  }
}

/// Where elements from `first` on of a unit are in codes of all from element `begin` on: the slot,
/// and the first of the elements in it.
struct InSlot {
  std::int64_t slot, first;
};
static InSlot in_slot(const plan::UnitState& s, std::int64_t begin, std::int64_t first) {
  const std::int64_t number = (first - begin) / s.slot;
  return {number * s.codes->bytes(s.slot), first - begin - number * s.slot};
}

void ModelState::encode(std::size_t unit, std::int64_t first, std::span<const float> values) {
  const auto& s = states_[unit];
  const auto& kept = s.kept[plan::kMasterRow];
  const InSlot at = in_slot(s, kept.elements.begin, first);
  const auto bytes =
      kernels::slot_bytes(*s.codes, s.slot, {at.first, at.first + std::ssize(values)});
  std::vector<std::byte> codes(static_cast<std::size_t>(bytes.codes.count())),
      scales(static_cast<std::size_t>(bytes.scales.count()));
  kernels::encode_blocks(*s.codes, values, codes, scales);
  const RealView all = real(kept.live);
  put(codes, all, at.slot + bytes.codes.begin);
  put(scales, all, at.slot + bytes.scales.begin);
  std::vector<float> decoded(values.size());
  kernels::decode_blocks(*s.codes, codes.data(), scales.data(), 0, decoded);
  add_errors(unit, first, values, decoded);
}

ParameterSource ModelState::as_kept(const ParameterSource& source) const {
  return [this, source](const model::ParamDesc& p, Range range, std::span<float> out) {
    const auto has = [&](const model::UnitDesc& unit) {
      return std::ranges::find(unit.params, p.name, &model::ParamDesc::name) != unit.params.end();
    };
    const auto unit = std::ranges::find_if(inputs_.model.units, has);
    TESSERA_CHECK(unit != inputs_.model.units.end(), "{} is of no unit", p.name);
    const auto& stored = unit->traits.stored;
    if (!stored || !stored->codes) {
      source(p, range, out);
      const DType type = stored ? stored->type : inputs_.type_of(*unit);
      for (float& x : out) {
        if (type == DType::bf16) x = static_cast<float>(bf16(x));
        if (type == DType::f16) x = static_cast<float>(f16(x));
      }
      return;
    }
    const kernels::BlockFormat& format = *stored->codes;
    const Range all{range.begin / format.block * format.block,
                    std::min(round_up(range.end, format.block), p.elements())};
    std::vector<float> values(static_cast<std::size_t>(all.count()));
    source(p, all, values);
    const auto bytes =
        kernels::slot_bytes(format, round_up(all.count(), format.block), {0, all.count()});
    std::vector<std::byte> codes(static_cast<std::size_t>(bytes.codes.count())),
        scales(static_cast<std::size_t>(bytes.scales.count()));
    kernels::encode_blocks(format, values, codes, scales);
    kernels::decode_blocks(format, codes.data(), scales.data(), 0, values);
    std::copy_n(values.begin() + (range.begin - all.begin), range.count(), out.begin());
  };
}

void ModelState::add_errors(std::size_t unit, std::int64_t first, std::span<const float> values,
                            std::span<const float> decoded) {
  const model::UnitDesc& desc = inputs_.model.units[unit];
  const auto of_unit =
      std::ranges::find(code_errors_, desc.params.front().name, &CodeError::parameter);
  const Range some{first, first + std::ssize(values)};
  for (const auto& slice : zero::slices_in(desc, states_[unit].layout, some)) {
    CodeError& error = of_unit[static_cast<std::ptrdiff_t>(slice.parameter)];
    const auto begin = static_cast<std::size_t>(slice.flat - first),
               end = begin + static_cast<std::size_t>(slice.part.elements());
    for (std::size_t i = begin; i < end; ++i) {
      const double x = values[i];
      error.lost += (x - decoded[i]) * (x - decoded[i]);
      error.all += x * x;
    }
  }
}

template <typename Take>
void ModelState::decode(const plan::UnitState& s, const RealView& codes, std::int64_t first,
                        Range flat, Take&& take) {
  std::vector<std::byte> copy_of_codes, copy_of_scales;
  std::vector<float> values;
  for (std::int64_t at = flat.begin; at < flat.end; at += std::ssize(values)) {
    const InSlot in = in_slot(s, first, at);
    const std::int64_t n = std::min({kPiece, flat.end - at, s.slot - in.first});
    const auto bytes = kernels::slot_bytes(*s.codes, s.slot, {in.first, in.first + n});
    const auto read = [&](Range of, std::vector<std::byte>& copy) {
      const RealView part = codes.range(in.slot + of.begin, of.count());
      return part.tier->host_bytes(part.view.data, of.count(), copy).data();
    };
    values.resize(static_cast<std::size_t>(n));
    kernels::decode_blocks(*s.codes, read(bytes.codes, copy_of_codes),
                           read(bytes.scales, copy_of_scales), in.first % s.codes->block, values);
    take(at, std::span(values));
  }
}

void ModelState::each_held(std::span<const std::size_t> rows, const HeldPart& f,
                           const std::function<void()>& filled, Units units) {
  for (std::size_t u = 0; u < states_.size(); ++u) {
    const auto& s = states_[u];
    if (!s.held || (units == Units::trained && !s.trained)) continue;
    if (s.codes) {
      if (rows.front() == plan::kMasterRow) each_of_codes(u, f, filled);
      continue;
    }
    std::vector<RealView> views;
    for (const std::size_t row : rows) {
      if (s.kept[row].live) views.push_back(real(s.kept[row].live));
      if (row == plan::kMasterRow && s.copy) views.push_back(real(s.copy));
    }
    if (views.empty()) continue;
    const Range elements = s.kept[rows.front()].elements;
    for (const auto& slice : zero::slices_in(inputs_.model.units[u], s.layout, elements)) {
      std::vector<RealView> targets;
      for (const RealView& view : views)
        targets.push_back(view.range(slice.flat - elements.begin, slice.part.elements()));
      f(inputs_.model.units[u].params[slice.parameter], slice.part, std::move(targets));
    }
  }
}

/// Writes values into each target, from its element `first` on, in the target's type.
void ModelState::put(std::span<const float> values, const std::vector<RealView>& targets,
                     std::int64_t first) {
  for (const RealView& target : targets) {
    const View to = target.view.range(first, std::ssize(values));
    target.tier->fill(to.data, to.span_bytes(),
                      [&](std::span<std::byte> bytes) { convert(values, to.type, bytes.data()); });
  }
}

void ModelState::put(std::span<const std::byte> bytes, const RealView& target, std::int64_t first) {
  const std::int64_t count = std::ssize(bytes) / size_of(target.view.type);
  target.tier->write(target.view.range(first, count).data, bytes);
}

void ModelState::put_converted(std::span<const std::byte> bytes, DType type, const RealView& target,
                               std::int64_t first) {
  const DType to = target.view.type;
  if (type == to) return put(bytes, target, first);
  std::vector<std::byte> converted(bytes.size() / static_cast<std::size_t>(size_of(type)) *
                                   static_cast<std::size_t>(size_of(to)));
  convert(bytes, type, to, converted.data());
  put(converted, target, first);
}

/// The first of these weights, which follow element `first` of a part, that is not finite in the
/// type that is computed in, wherever it is rounded to that.
std::optional<NonFiniteElement> ModelState::find_non_finite(std::span<const float> values,
                                                            const model::ParamDesc& p,
                                                            const MatrixRange& part,
                                                            std::int64_t first) const {
  const DType type = inputs_.numerics.compute;
  const auto at = io::find_non_finite(values, type);
  if (!at) return std::nullopt;
  const std::int64_t width = part.columns.count(), in_part = first + *at;
  const std::int64_t element =
      (part.rows.begin + in_part / width) * columns_of(p) + part.columns.begin + in_part % width;
  return NonFiniteElement{.parameter = p.name,
                          .element = element,
                          .index = io::index_text(p.shape, element),
                          .value = values[static_cast<std::size_t>(*at)],
                          .type = type};
}

std::optional<NonFiniteElement> ModelState::set_weights(std::span<const std::size_t> rows,
                                                        const BlockSource& source, Units units) {
  std::optional<NonFiniteElement> bad;
  std::vector<float> values;
  const auto fill = [&](const model::ParamDesc& p, const MatrixRange& part,
                        const std::vector<RealView>& targets) {
    for_pieces(part, [&](const MatrixRange& piece, std::int64_t at) {
      values.resize(static_cast<std::size_t>(piece.elements()));
      try {
        source(p, piece, values);
      } catch (Error& e) {
        e.add_context(fmt::format("{} of {}", rows_[rows.front()].name, p.name));
        throw;
      }
      if (!bad) bad = find_non_finite(values, p, part, at);
      put(values, targets, at);
    });
  };
  for (CodeError& error : code_errors_) error.lost = error.all = 0;
  each_held(
      rows, fill, [] {}, units);
  return bad;
}

bool ModelState::lacks_averaged_weights(const io::Checkpoint& checkpoint) const {
  return weights_ == optim::kEma && !has_state(checkpoint, inputs_.model.units, weights_);
}

void ModelState::forget_update() {
  const RealView verdict = real(layout_.verdict);
  verdict.tier->fill(verdict.view.data, verdict.view.span_bytes(),
                     [](std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0}); });
}

void ModelState::set_zero(std::size_t row) {
  for (const auto& s : states_) {
    if (!s.held || !s.kept[row].live) continue;
    const RealView all = real(s.kept[row].live);
    const std::int64_t n = all.view.elements();
    for (std::int64_t at = 0; at < n; at += kPiece) {
      const View piece = all.view.range(at, std::min(kPiece, n - at));
      all.tier->fill(piece.data, piece.span_bytes(),
                     [](std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0}); });
    }
  }
}

/// The source's elements of a part of a parameter, row by row.
static auto by_rows(const ParameterSource& source) {
  return [&source](const model::ParamDesc& p, const MatrixRange& part, std::span<float> out) {
    const std::int64_t width = columns_of(p), own = part.columns.count();
    if (own == width) return source(p, {part.rows.begin * width, part.rows.end * width}, out);
    for (std::int64_t r = part.rows.begin; r < part.rows.end;
         ++r, out = out.subspan(static_cast<std::size_t>(own))) {
      source(p, {r * width + part.columns.begin, r * width + part.columns.end},
             out.first(static_cast<std::size_t>(own)));
    }
  };
}

std::optional<NonFiniteElement> ModelState::set_trained(const ParameterSource& source) {
  forget_update();
  return set_weights(std::array{plan::kMasterRow}, by_rows(source), Units::trained);
}

std::optional<NonFiniteElement> ModelState::set_parameters(const ParameterSource& source) {
  forget_update();
  std::vector<std::size_t> weights{plan::kMasterRow};
  for (std::size_t row = plan::kMasterRow + 1; row < rows_.size(); ++row) {
    set_zero(row);
    if (rows_[row].begins_as_weights) weights.push_back(row);
  }
  return set_weights(weights, by_rows(source));
}

/// In the parameter's global coordinates.
static io::Box box_of(const model::ParamDesc& p, const MatrixRange& part) {
  if (p.shape.size() == 1) return io::Box({part.rows.begin}, {part.rows.count()});
  return io::Box({part.rows.begin, part.columns.begin}, {part.rows.count(), part.columns.count()});
}

/// In a checkpoint, what there is one of for each tensor.
static const io::Shape kOne({1});
static const io::Box kOneBox({0}, {1});

namespace {

/// Reads what is wanted, and forgets it. How much it will be in all is known only where it is
/// wanted at once.
struct WantedReader {
  io::Checkpoint& checkpoint;
  const io::ReadProgress& progress;
  bool at_once;
  std::int64_t before = 0;

  void operator()(std::vector<io::Wanted>& wanted) {
    std::int64_t bytes = 0;
    checkpoint.read(wanted, [&](std::int64_t done, std::int64_t total) {
      bytes = done;
      if (progress) progress(before + done, at_once ? total : 0);
    });
    before += bytes;
    wanted.clear();
  }
};

}  // namespace

std::optional<ModelState::SavedTensor> ModelState::find_saved(const io::Checkpoint& checkpoint,
                                                              const model::ParamDesc& p,
                                                              std::size_t row,
                                                              bool may_miss) const {
  const optim::StateTensor& kept = rows_[row];
  std::string state =
      row == plan::kMasterRow ? weights_in(checkpoint, name_of(p), weights_) : kept.name;
  auto entry = checkpoint.find(name_of(p), state);
  if (!entry && kept.begins_as_weights) {
    state = weights_;
    entry = checkpoint.find(name_of(p), state);
  }
  if (!entry && may_miss) return std::nullopt;
  if (!entry || entry->shape != io::Shape(p.shape)) {
    throw DataError(fmt::format(
        "{} of {}: the checkpoint's tensor is {}, the deck's model wants {}", state, name_of(p),
        entry ? io::to_string(entry->shape.extents()) : "missing", io::to_string(p.shape)));
  }
  return SavedTensor{std::move(state), entry->type};
}

std::optional<NonFiniteElement> ModelState::load(io::Checkpoint& checkpoint,
                                                 const io::ReadProgress& progress) {
  forget_update();
  for (CodeError& error : code_errors_) error.lost = error.all = 0;
  std::optional<NonFiniteElement> bad;
  std::vector<io::Wanted> wanted;
  WantedReader read_wanted{checkpoint, progress, code_errors_.empty()};
  const auto read = [&] { read_wanted(wanted); };
  // A model that no step was applied to may have its weights alone; and what is kept may change.
  const bool untrained = checkpoint.header().applied_updates == 0;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    const optim::StateTensor& kept = rows_[row];
    const bool may_miss = row != plan::kMasterRow && (untrained || !kept.required);
    if (!kept.saved || may_miss) set_zero(row);
    if (!kept.saved) continue;
    if (kept.extent == optim::Extent::tensor) {
      want_of_tensors(checkpoint, row, may_miss, wanted);
      continue;
    }
    const auto want = [&](const model::ParamDesc& p, const MatrixRange& part,
                          std::vector<RealView> targets) {
      const auto saved = find_saved(checkpoint, p, row, may_miss);
      if (!saved) return;
      if (row != plan::kMasterRow) {
        // Whether the optimizer keeps it in 16 bits may change at a restart.
        const bool known = saved->type == DType::f32 || saved->type == DType::bf16;
        const DType type = known ? saved->type : kept.type;
        wanted.push_back({name_of(p), saved->state, box_of(p, part), type,
                          [type, target = targets.front()](std::int64_t first,
                                                           std::span<const std::byte> bytes) {
                            put_converted(bytes, type, target, first);
                          }});
        return;
      }
      wanted.push_back({name_of(p), saved->state, box_of(p, part), kept.type,
                        [this, &bad, &p, part, targets = std::move(targets)](
                            std::int64_t first, std::span<const std::byte> bytes) {
                          const std::span values(reinterpret_cast<const float*>(bytes.data()),
                                                 bytes.size() / sizeof(float));
                          if (!bad) bad = find_non_finite(values, p, part, first);
                          put(values, targets, first);
                        }});
    };
    each_held({&row, 1}, want, read);
  }
  read();
  divide_errors();
  if (beside_ != nullptr) {
    auto bad_beside = beside_->load(checkpoint, progress);
    if (bad_beside) bad_beside->parameter.insert(0, beside_->prefix_);
    if (!bad) bad = std::move(bad_beside);
  }
  return bad;
}

void ModelState::take_along(ModelState& other, std::string prefix) {
  other.prefix_ = std::move(prefix);
  other.saved_ = other.saved_pieces();
  other.first_piece_ = saved_.size();
  beside_ = &other;
}

void ModelState::want_of_tensors(const io::Checkpoint& checkpoint, std::size_t row, bool may_miss,
                                 std::vector<io::Wanted>& wanted) {
  const optim::StateTensor& kept = rows_[row];
  for (std::size_t u = 0; u < states_.size(); ++u) {
    if (!states_[u].held || !states_[u].kept[row].live) continue;
    const auto& params = inputs_.model.units[u].params;
    for (std::size_t i = 0; i < params.size(); ++i) {
      const auto entry = checkpoint.find(name_of(params[i]), kept.name);
      if (!entry && may_miss) continue;
      if (!entry || entry->shape != kOne || entry->type != kept.type)
        throw DataError(fmt::format(
            "{} of {}: the checkpoint's tensor is {}, not of one {}", kept.name, name_of(params[i]),
            entry ? io::to_string(entry->shape.extents()) : "missing", to_string(kept.type)));
      wanted.push_back({name_of(params[i]), kept.name, kOneBox, kept.type,
                        [target = real(states_[u].kept[row].live), i](
                            std::int64_t, std::span<const std::byte> bytes) {
                          put(bytes, target, static_cast<std::int64_t>(i));
                        }});
    }
  }
}

void ModelState::divide_errors() {
  std::vector<std::byte> copy;
  for (std::size_t u = 0; u < states_.size(); ++u) {
    const auto& s = states_[u];
    // Of what both ends of a pipeline have, the first stage takes them: gradients are added up.
    const bool of_first =
        plan::on_both_ends(inputs_, inputs_.model.units[u]) && layout_.place.pipeline > 0;
    if (!s.held || !s.errors || of_first) continue;
    const RealView sum = real(s.error_sum),
                   own = real(s.errors.range(s.slice.begin, s.slice.count()));
    const std::int64_t n = s.slice.count();
    for (std::int64_t at = 0; at < n; at += kPiece) {
      const View from = sum.view.range(at, std::min(kPiece, n - at)),
                 to = own.view.range(at, from.elements());
      const auto bytes = sum.tier->host_bytes(from.data, from.span_bytes(), copy);
      own.tier->fill(to.data, to.span_bytes(), [&](std::span<std::byte> out) {
        convert(bytes, from.type, to.type, out.data());
      });
    }
  }
}

void ModelState::add_to(Copy& copy, const View& symbolic) const {
  std::vector<std::byte> bytes;
  const RealView part = real(symbolic);
  const std::int64_t n = part.view.elements();
  for (std::int64_t at = 0; at < n; at += kPiece) {
    const View piece = part.view.range(at, std::min(kPiece, n - at));
    copy.hash = hash_bytes(part.tier->host_bytes(piece.data, piece.span_bytes(), bytes), copy.hash);
  }
  copy.elements += n;
}

namespace {

bool owns_all(const plan::UnitState& s) { return s.owned.count() == s.layout.padded; }

}  // namespace

void ModelState::add_owned(Copy& copy, const plan::UnitState& s, const Range& elements) const {
  if (s.copy) add_to(copy, s.copy.range(elements.begin - s.owned.begin, elements.count()));
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    const Range part = intersect(elements, s.kept[row].elements);
    if (!optim::is_flat(rows_[row].extent) || !s.kept[row].live || part.empty()) continue;
    const Range kept = s.kept_in(s.kept[row], part);
    add_to(copy, s.kept[row].live.range(kept.begin, kept.count()));
  }
}

ModelState::Copy ModelState::slice_copy(std::size_t unit, std::int64_t owner) const {
  const auto& s = states_[unit];
  Copy copy;
  if (!s.held) return copy;
  const Range slice = s.layout.shard_of(owner);
  if (owns_all(s)) {
    add_owned(copy, s, slice);
  } else if (s.parameters && owner != s.index()) {
    add_to(copy, s.parameters.range(slice.begin, slice.count()));
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      const auto& [live, snapshot, kept] = s.kept[row];
      if (rows_[row].extent == optim::Extent::whole && live && intersect(slice, kept) == slice)
        add_to(copy, live.range(slice.begin - kept.begin, slice.count()));
    }
  }
  return copy;
}

std::vector<Range> ModelState::owned_by_all_tensor_ranks(std::size_t unit) const {
  const auto& s = states_[unit];
  std::vector<zero::UnitLayout> layouts;
  for (std::int64_t t = 0; t < inputs_.layout.mesh.tensor; ++t) {
    MeshPlace place = layout_.place;
    place.tensor = t;
    layouts.push_back(plan::unit_layout(inputs_, inputs_.model.units[unit], place));
  }
  std::vector<Range> ranges;
  for (const zero::LayoutPiece& piece : s.layout.pieces) {
    if (!piece.whole) continue;
    Range common{0, piece.part.elements()};
    for (const zero::UnitLayout& layout : layouts) {
      const Range owned = owns_all(s) ? Range{0, layout.padded} : layout.shard_of(s.index());
      const std::int64_t at = layout.offset_of(piece.parameter);
      common = intersect(common, {owned.begin - at, owned.end - at});
    }
    if (!common.empty()) ranges.push_back({piece.offset + common.begin, piece.offset + common.end});
  }
  return ranges;
}

ModelState::Copy ModelState::owned_copy(std::size_t unit, Part part) const {
  const auto& s = states_[unit];
  Copy copy;
  if (!s.held) return copy;
  const auto ranges =
      part == Part::everything ? std::vector{s.owned} : owned_by_all_tensor_ranks(unit);
  for (const Range& range : ranges) add_owned(copy, s, range);
  return copy;
}

std::vector<ModelState::SavedPiece> ModelState::saved_pieces() const {
  std::vector<SavedPiece> all;
  for (std::size_t u = 0; u < states_.size(); ++u) {
    const auto& s = states_[u];
    if (!s.held) continue;
    for (const Range& part : plan::counted_ranges(inputs_, layout_, u, s.layout)) {
      for (const auto& slice : zero::slices_in(inputs_.model.units[u], s.layout, part)) {
        const auto& p = inputs_.model.units[u].params[slice.parameter];
        const io::Shape shape(p.shape);
        const io::Box box = box_of(p, slice.part);
        const bool first = slice.part.rows.begin == 0 && slice.part.columns.begin == 0;
        for (std::size_t row = 0; row < rows_.size(); ++row) {
          const optim::StateTensor& kept = rows_[row];
          if (kept.extent == optim::Extent::tensor) {  // saved by who has its first element
            if (kept.saved && first && s.kept[row].live)
              all.push_back({{name_of(p), kOne, kept.name, kept.type, kOneBox},
                             u,
                             row,
                             static_cast<std::int64_t>(slice.parameter)});
            continue;
          }
          const Range has = intersect(s.kept[row].elements, {slice.flat, slice.flat + 1});
          if (kept.saved && s.kept[row].live && !has.empty())
            all.push_back({{name_of(p), shape, kept.name, kept.type, box}, u, row, slice.flat});
        }
        if (inputs_.numerics.compute != DType::f32) {  // as forward reads it
          const DType type = inputs_.type_of(inputs_.model.units[u]);
          all.push_back(
              {{name_of(p), shape, "parameters", type, box}, u, plan::kMasterRow, slice.flat});
        }
      }
    }
  }
  return all;
}

std::vector<io::Piece> ModelState::pieces() const {
  std::vector<io::Piece> all;
  for (const SavedPiece& saved : saved_) all.push_back(saved.piece);
  if (beside_ != nullptr) {
    for (io::Piece& piece : beside_->pieces()) all.push_back(std::move(piece));
  }
  return all;
}

ModelState::RealView ModelState::owned_part(std::size_t unit, std::size_t parameter) const {
  const auto& s = states_[unit];
  if (!s.held) return {};
  for (const auto& slice : zero::slices_in(inputs_.model.units[unit], s.layout, s.owned)) {
    if (slice.parameter != parameter) continue;
    const RealView all = real(s.parameters ? s.parameters : s.own_shard);
    const std::int64_t first = s.parameters ? 0 : s.owned.begin, flat = slice.flat - first;
    if (!s.codes) return all.range(flat, slice.part.elements());
    // Codes of its first slot.
    const std::int64_t slot = flat / s.slot, in_slot = flat % s.slot,
                       n = std::min(slice.part.elements(), s.slot - in_slot);
    return all.range(slot * s.codes->bytes(s.slot) + in_slot * s.codes->bits() / 8,
                     ceil_div(n * s.codes->bits(), 8));
  }
  return {};
}

void ModelState::save(io::CheckpointWriter& writer, std::size_t index, const RealView& elements,
                      std::int64_t first) const {
  std::vector<std::byte> copy, converted;
  const DType type = saved_[index].piece.type;
  for (std::int64_t at = 0; at < elements.view.elements(); at += kPiece) {
    const View part = elements.view.range(at, std::min(kPiece, elements.view.elements() - at));
    auto bytes = elements.tier->host_bytes(part.data, part.span_bytes(), copy);
    if (part.type != type) {
      converted.resize(static_cast<std::size_t>(part.elements() * size_of(type)));
      convert(bytes, part.type, type, converted.data());
      bytes = converted;
    }
    writer.write(first_piece_ + index, (first + at) * size_of(type), bytes);
  }
}

void ModelState::save(io::CheckpointWriter& writer, const plan::Op& op,
                      const plan::SaveTile& tile) const {
  memory::Tier& tier = arenas_[plan::row_of(op.location).step]->tier();
  const auto unit = static_cast<std::size_t>(op.unit);
  const Range elements{tile.first, tile.first + tile.count};
  for (std::size_t i = 0; i < saved_.size(); ++i) {
    const SavedPiece& saved = saved_[i];
    if (saved.unit != unit || saved.row != tile.row) continue;
    const Range part = intersect(elements, {saved.flat, saved.flat + saved.piece.box.elements()});
    if (part.empty()) continue;
    if (states_[unit].codes) {
      save_codes(writer, i, {tile.from, &tier}, tile.first, part);
    } else {
      save(writer, i, {tile.from.range(part.begin - tile.first, part.count()), &tier},
           part.begin - saved.flat);
    }
  }
}

void ModelState::save_codes(io::CheckpointWriter& writer, std::size_t index, const RealView& codes,
                            std::int64_t first, Range elements) const {
  decode(states_[saved_[index].unit], codes, first, elements,
         [&](std::int64_t at, std::span<float> values) {
           save(writer, index, {f32_view(values), &host_}, at - saved_[index].flat);
         });
}

std::vector<float> ModelState::weights_of(const SavedPiece& saved) const {
  const auto& s = states_[saved.unit];
  const auto& kept = s.kept[saved.row];
  const std::int64_t n = saved.piece.box.elements();
  std::vector<float> all(static_cast<std::size_t>(n));
  if (s.codes) {
    decode(s, real(kept.live), kept.elements.begin, {saved.flat, saved.flat + n},
           [&](std::int64_t at, std::span<float> values) {
             std::ranges::copy(values, all.begin() + (at - saved.flat));
           });
    return all;
  }
  const RealView from = real(kept.live).range(saved.flat - kept.elements.begin, n);
  std::vector<std::byte> copy;
  for (std::int64_t at = 0; at < n; at += kPiece) {
    const View part = from.view.range(at, std::min(kPiece, n - at));
    convert(from.tier->host_bytes(part.data, part.span_bytes(), copy), part.type, DType::f32,
            reinterpret_cast<std::byte*>(all.data() + at));
  }
  return all;
}

void ModelState::own_weights(const model::ParamDesc& parameter, Range range,
                             std::span<float> out) const {
  std::ranges::fill(out, 0.0F);
  const std::vector<io::Box> wanted = io::boxes_of_range(io::Shape(parameter.shape), range);
  for (const SavedPiece& saved : saved_) {
    const io::Piece& piece = saved.piece;
    if (saved.row != plan::kMasterRow || piece.state != rows_[plan::kMasterRow].name ||
        piece.tensor != name_of(parameter))
      continue;
    const std::vector<float> values = weights_of(saved);
    auto box_out = out.begin();
    for (const io::Box& box : wanted) {
      if (const auto part = io::intersect(box, piece.box)) {
        io::for_each_run(*part, piece.box, box,
                         [&](std::int64_t from, std::int64_t to, std::int64_t count) {
                           std::copy_n(values.begin() + from, count, box_out + to);
                         });
      }
      box_out += box.elements();
    }
  }
}

void ModelState::save(io::CheckpointWriter& writer, From from) const {
  for (std::size_t i = 0; i < saved_.size(); ++i) {
    const auto& [piece, unit, row, flat] = saved_[i];
    const auto& s = states_[unit];
    const bool live = from == From::live;
    if (!live && plan::saved_in_tiles(layout_, s.kept[row])) continue;
    if (s.codes) {
      save_codes(writer, i, real(live ? s.kept[row].live : s.kept[row].snapshot),
                 live ? s.kept[row].elements.begin : s.slice.begin,
                 {flat, flat + piece.box.elements()});
      continue;
    }
    // A snapshot holds this rank's shard, the live state what it owns, which at stage 0 is
    // everything.
    const Range kept = live ? s.kept[row].elements : plan::saved_of(rows_[row], s, row);
    const RealView all = real(live ? s.kept[row].live : s.kept[row].snapshot)
                             .range(flat - kept.begin, piece.box.elements());
    save(writer, i, all, 0);
  }
  if (beside_ != nullptr) beside_->save(writer, from);
}

}  // namespace tessera::train
