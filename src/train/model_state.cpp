#include "train/model_state.hpp"

#include <algorithm>
#include <array>

#include "core/hash.hpp"
#include "core/random.hpp"
#include "io/box.hpp"

namespace tessera::train {
namespace {

template <typename H>
void round_to(std::span<const float> in, H* out) {
  for (std::size_t i = 0; i < in.size(); ++i) out[i] = H(in[i]);
}

void convert(std::span<const float> in, DType type, std::byte* out) {
  if (type == DType::bf16) {
    round_to(in, reinterpret_cast<bf16*>(out));
  } else {
    TESSERA_CHECK(type == DType::f16, "parameters in {}", to_string(type));
    round_to(in, reinterpret_cast<f16*>(out));
  }
}

struct SavedState {
  const char* name;
  View plan::UnitState::*live;
  View plan::UnitState::*snapshot;
};
constexpr std::array kSavedStates = {
    SavedState{"master", &plan::UnitState::master, &plan::UnitState::snapshot_master},
    SavedState{"adam_m", &plan::UnitState::m, &plan::UnitState::snapshot_m},
    SavedState{"adam_v", &plan::UnitState::v, &plan::UnitState::snapshot_v},
};

}  // namespace

ParameterSource initial_values(std::uint64_t seed) {
  return [seed](const model::ParamDesc& p, Range range, std::span<float> out) {
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

/// A plan of the persistent buffers only, and the views of them.
static std::pair<plan::Plan, std::vector<plan::UnitState>> state_layout(
    const plan::PlanInputs& inputs, std::int64_t data_rank) {
  plan::Plan layout;
  layout.data_group = inputs.data_group;
  layout.data_rank = data_rank;
  auto states = plan::add_state(layout, inputs);
  plan::place_buffers(layout);
  return {std::move(layout), std::move(states)};
}

std::int64_t ModelState::arena_bytes(const plan::PlanInputs& inputs, std::int64_t data_rank) {
  return state_layout(inputs, data_rank).first.arena_bytes[0];
}

ModelState::ModelState(const plan::PlanInputs& inputs, std::int64_t data_rank,
                       const memory::Arena& arena)
    : inputs_(inputs), data_rank_(data_rank), arena_(arena) {
  std::tie(layout_, states_) = state_layout(inputs, data_rank);
}

View ModelState::real(const View& symbolic) const {
  View v = symbolic;
  v.data = arena_.base() +
           layout_.buffers[static_cast<std::size_t>(plan::buffer_of(symbolic))].offset +
           plan::offset_of(symbolic);
  return v;
}

void ModelState::fill(const char* state, const View plan::UnitState::*view,
                      const ParameterSource& source) {
  for (std::size_t u = 0; u < states_.size(); ++u) {
    const auto& s = states_[u];
    float* base = real(s.*view).as<float>();
    for (const auto& slice : zero::slices_in(inputs_.units[u], s.layout, s.owned)) {
      const auto& parameter = inputs_.units[u].params[slice.parameter];
      try {
        source(parameter, slice.elements,
               {base + (slice.flat - s.owned.begin),
                static_cast<std::size_t>(slice.elements.count())});
      } catch (Error& e) {
        e.add_context(fmt::format("{} of {}", state, parameter.name));
        throw;
      }
    }
  }
}

void ModelState::round_parameters() {
  for (const auto& s : states_) {
    if (!s.copy) continue;
    const View master = real(s.master);
    convert({master.as<float>(), static_cast<std::size_t>(master.elements())}, s.copy.type,
            real(s.copy).data);
  }
}

void ModelState::set_parameters(const ParameterSource& source) {
  fill("parameters", &plan::UnitState::master, source);
  const ParameterSource zeros = [](const model::ParamDesc&, Range, std::span<float> out) {
    std::fill(out.begin(), out.end(), 0.0F);
  };
  fill("adam_m", &plan::UnitState::m, zeros);
  fill("adam_v", &plan::UnitState::v, zeros);
  round_parameters();
}

void ModelState::load(Checkpoint& checkpoint) {
  for (const auto& state : kSavedStates) {
    fill(state.name, state.live, [&](const model::ParamDesc& p, Range range, std::span<float> out) {
      const auto entry = checkpoint.find(p.name, state.name);
      if (!entry || entry->shape != Shape(p.shape)) {
        throw DataError(fmt::format("the checkpoint's tensor {} is {}, the deck's model wants {}",
                                    p.name, entry ? to_string(entry->shape.extents()) : "missing",
                                    to_string(p.shape)));
      }
      checkpoint.read(p.name, state.name, range, DType::f32, std::as_writable_bytes(out));
    });
  }
  round_parameters();
}

struct ModelState::SavedPiece {
  Piece piece;
  std::size_t unit = 0;
  const SavedState* state = nullptr;  // nullptr: parameters, rounded from master
  std::int64_t flat = 0;              // first element in the unit's flat buffer
};

std::vector<ModelState::SavedPiece> ModelState::saved_pieces() const {
  std::vector<SavedPiece> all;
  for (std::size_t u = 0; u < states_.size(); ++u) {
    const auto& s = states_[u];
    for (const auto& slice :
         zero::slices_in(inputs_.units[u], s.layout, s.layout.shard_of(data_rank_))) {
      const auto& p = inputs_.units[u].params[slice.parameter];
      const Shape shape(p.shape);
      std::int64_t flat = slice.flat;
      for (const Box& box : boxes_of_range(shape, slice.elements)) {
        for (const auto& state : kSavedStates)
          all.push_back({{p.name, shape, state.name, DType::f32, box}, u, &state, flat});
        if (s.copy)
          all.push_back({{p.name, shape, "parameters", s.copy.type, box}, u, nullptr, flat});
        flat += box.elements();
      }
    }
  }
  return all;
}

std::vector<Piece> ModelState::pieces() const {
  std::vector<Piece> all;
  for (auto& saved : saved_pieces()) all.push_back(std::move(saved.piece));
  return all;
}

void ModelState::save(CheckpointWriter& writer, From from) const {
  const auto pieces = saved_pieces();
  std::vector<std::byte> rounded;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto& [piece, unit, state, flat] = pieces[i];
    const auto& s = states_[unit];
    const auto& source = state != nullptr ? *state : kSavedStates[0];
    const bool live = from == From::live;
    // A snapshot holds this rank's shard, the live state what it owns, which at stage 0 is
    // everything.
    const std::int64_t first = live ? s.owned.begin : s.layout.shard_of(data_rank_).begin;
    const float* data =
        real(s.*(live ? source.live : source.snapshot)).as<float>() + (flat - first);
    const std::span values(data, static_cast<std::size_t>(piece.box.elements()));
    if (state != nullptr) {
      writer.write(i, std::as_bytes(values));
      continue;
    }
    rounded.resize(values.size() * static_cast<std::size_t>(size_of(piece.type)));
    convert(values, piece.type, rounded.data());
    writer.write(i, rounded);
  }
}

}  // namespace tessera::train
