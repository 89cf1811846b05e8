#include "kernels/common/contracts.hpp"

#include <algorithm>

#include "core/exact_sum.hpp"
#include "kernels/common/checks.hpp"
#include "kernels/common/optimizer_steps.hpp"

namespace tessera::kernels {
namespace {

constexpr auto kScalars = static_cast<std::int64_t>(StepScalar::count);
constexpr auto kVerdictFields = static_cast<std::int64_t>(VerdictField::count);

void check_vocabulary(const View& tokens, std::int64_t first_token, std::int64_t vocab) {
  TESSERA_CHECK(first_token >= 0 && vocab >= 0 && (vocab > 0 || first_token == 0),
                "tokens from {} on of a vocabulary of {}", first_token, vocab);
  TESSERA_CHECK(tokens.rank == 2 && tokens.dense() && tokens.type == DType::i32,
                "tokens are dense (B, T) i32");
}

template <typename Operation>
void check_positions(const Operation& a, std::int64_t tokens) {
  if (!a.position_table) return;
  TESSERA_CHECK(a.position_table.cols() == a.out.cols() && a.first_position >= 0 &&
                    a.first_position + tokens <= a.position_table.rows(),
                "positions {} to {} of {}", a.first_position, a.first_position + tokens,
                a.position_table.rows());
}

void check_halves(const View& x, const View& y, ActivationKind kind) {
  const std::int64_t parts = kind == ActivationKind::swiglu ? 2 : 1;
  TESSERA_CHECK(x.rows() == y.rows() && x.cols() == parts * y.cols(), "{} of ({}, {}) in ({}, {})",
                enum_word(kind), x.rows(), x.cols(), y.rows(), y.cols());
}

template <typename Operation>
void check_part(const Operation& a) {
  check_floats({a.logits});
  TESSERA_CHECK(a.first_token >= 0 && a.vocab > 0, "tokens from {} on of a vocabulary of {}",
                a.first_token, a.vocab);
  check_flat({a.targets}, DType::i32, a.logits.rows());
}

/// Dense codes of `extents` slots of n elements.
void check_codes(const View& code, std::initializer_list<std::int64_t> extents,
                 const BlockFormat& format, std::int64_t n) {
  TESSERA_CHECK(format.block > 0 && format.block % 2 == 0, "blocks of {} elements", format.block);
  std::int64_t slots = 1;
  for (std::int64_t extent : extents) slots *= extent;
  check_flat({code}, DType::u8, slots * format.bytes(n));
  TESSERA_CHECK(std::equal(extents.begin(), extents.end(), code.shape.begin()) &&
                    code.rank == static_cast<int>(extents.size()) + 1,
                "{} codes of {} elements: slots of other extents", enum_word(format.type), n);
  TESSERA_CHECK(reinterpret_cast<std::uintptr_t>(code.data) % 16 == 0, "codes begin at {}",
                static_cast<const void*>(code.data));
}

/// (parts, S, bytes) codes of n elements a slot.
void check_parts(const View& code, const BlockFormat& format, std::int64_t n) {
  TESSERA_CHECK(code.rank == 3 && code.extent(0) >= 1, "codes are (parts, S, bytes)");
  check_codes(code, {code.extent(0), code.extent(1)}, format, n);
}

}  // namespace

void check(const Embed& a) {
  check_vocabulary(a.tokens, a.first_token, a.vocab);
  check_floats({a.token_table});
  check_same_type({a.token_table, a.position_table});
  TESSERA_CHECK(a.out.type == a.token_table.type || a.out.type == DType::f32,
                "{} from a table of {}", to_string(a.out.type), to_string(a.token_table.type));
  TESSERA_CHECK(a.out.rows() == a.tokens.elements() && a.out.cols() == a.token_table.cols(),
                "embedding of {} tokens and {} columns into ({}, {})", a.tokens.elements(),
                a.token_table.cols(), a.out.rows(), a.out.cols());
  check_positions(a, a.tokens.extent(1));
  check_dropout(a.dropout, a.tokens.extent(0));
}

void check(const EmbedBackward& a) {
  check_vocabulary(a.tokens, a.first_token, a.vocab);
  check_floats({a.d, a.d_token_table, a.d_position_table});
  TESSERA_CHECK(a.d.rows() == a.tokens.elements() && a.d.cols() == a.d_token_table.cols(),
                "gradient ({}, {}) of {} tokens and {} columns", a.d.rows(), a.d.cols(),
                a.tokens.elements(), a.d_token_table.cols());
  check_dropout(a.dropout, a.tokens.extent(0));
  if (!a.d_position_table) return;
  TESSERA_CHECK(
      a.d_position_table.cols() == a.d.cols() && a.d_position_table.rows() >= a.tokens.extent(1),
      "{} positions of {} columns for {} tokens", a.d_position_table.rows(),
      a.d_position_table.cols(), a.tokens.extent(1));
}

void check(const AddPositions& a) {
  check_floats({a.out});
  check_same_type({a.out, a.position_table});
  check_same_matrix({a.out, a.x});
  TESSERA_CHECK(a.x.rank == 3 && a.x.type == DType::f32, "x is (B, T, C) f32");
  check_positions(a, a.x.extent(1));
  check_dropout(a.dropout, a.x.extent(0));
}

void check(const AddNorm& a) {
  check_floats({a.resid});
  check_same_type({a.resid, a.pending, a.weight, a.bias, a.sum, a.out});
  check_same_matrix({a.resid, a.pending, a.sum, a.out});
  check_same_matrix({a.weight, a.bias});
  TESSERA_CHECK(static_cast<bool>(a.sum) == static_cast<bool>(a.pending),
                "a sum is written when there is something pending, and only then");
  check_flat({a.weight}, a.resid.type, a.resid.cols());
  check_flat({a.stats}, DType::f32, 2 * a.resid.rows());
  if (a.pending) check_dropout(a.dropout, a.pending.extent(0));
}

void check_groups(const NormBackward& a) {
  TESSERA_CHECK(a.groups >= 1 && a.sum.rank == 3 && a.sum.extent(1) % a.groups == 0,
                "{} groups of {} positions", a.groups, a.sum.rank == 3 ? a.sum.extent(1) : 0);
}

void check(const NormBackward& a) {
  check_groups(a);
  check_floats({a.sum, a.d_weight, a.d_bias});
  check_same_type({a.sum, a.d_out, a.d_resid, a.weight, a.d_sum});
  check_same_matrix({a.sum, a.d_out, a.d_resid, a.d_sum});
  check_same_matrix({a.d_weight, a.d_bias});
  check_flat({a.weight}, a.sum.type, a.sum.cols());
  check_flat({a.d_weight}, a.d_weight.type, a.groups * a.sum.cols());
  if (a.d_bias) check_flat({a.d_bias}, a.d_bias.type, a.groups * a.sum.cols());
  check_flat({a.stats}, DType::f32, 2 * a.sum.rows());
}

void check(const AddPending& a) {
  check_floats({a.resid});
  check_same_type({a.resid, a.pending, a.sum});
  check_same_matrix({a.resid, a.pending, a.sum});
  check_dropout(a.dropout, a.pending.extent(0));
}

void check(const ApplyDropout& a) {
  check_floats({a.x});
  check_same_type({a.x, a.out});
  check_same_matrix({a.x, a.out});
  check_dropout(a.dropout, a.x.extent(0));
  check_flat({a.dropout.samples}, DType::i64, a.x.extent(0));
}

void check(const Rope& a) {
  check_floats({a.x});
  TESSERA_CHECK(a.x.rank == 3 && a.head_dim > 0 && a.head_dim % 2 == 0 &&
                    a.x.cols() % a.head_dim == 0 && a.first_position >= 0,
                "{} columns of heads of {} from position {}", a.x.cols(), a.head_dim,
                a.first_position);
}

void check(const Activate& a) {
  check_floats({a.x});
  check_same_type({a.x, a.y});
  check_halves(a.x, a.y, a.kind);
}

void check(const ActivateBackward& a) {
  check_floats({a.x});
  check_same_type({a.x, a.d_y, a.d_x});
  check_same_matrix({a.x, a.d_x});
  check_halves(a.x, a.d_y, a.kind);
}

void check(const Classify& a) {
  check_floats({a.logits});
  check_flat({a.losses}, DType::f32, a.logits.rows());
  if (a.scale) check_flat({a.scale}, DType::f32, 1);
  TESSERA_CHECK(a.vocab > 0 && a.vocab <= a.logits.cols(), "vocabulary {} of {} columns", a.vocab,
                a.logits.cols());
  check_flat({a.targets}, DType::i32, a.logits.rows());
}

void check(const ClassifyPart& a) {
  check_part(a);
  check_flat({a.stats}, DType::f32, 3 * a.logits.rows());
}

void check(const ClassifyLoss& a) {
  TESSERA_CHECK(a.stats.rank == 3 && a.stats.extent(0) >= 1 && a.stats.cols() == 3,
                "stats are (parts, rows, 3)");
  const std::int64_t parts = a.stats.extent(0), rows = a.stats.extent(1);
  check_flat({a.stats}, DType::f32, 3 * parts * rows);
  check_flat({a.targets}, DType::i32, rows);
  check_flat({a.losses, a.lse}, DType::f32, rows);
}

void check(const ClassifyGradient& a) {
  check_part(a);
  check_flat({a.lse}, DType::f32, a.logits.rows());
  check_flat({a.scale}, DType::f32, 1);
}

void check(const Verdict& a) {
  check_flat({a.squares}, DType::i64, kExactSumWords);
  check_flat({a.scalars}, DType::f32, kScalars);
  check_flat({a.verdict}, DType::f32, kVerdictFields);
}

void check(const OptimizerUpdate& a) {
  const std::int64_t n = a.gradient.elements();
  check_floats({a.gradient, a.parameter});
  check_flat({a.gradient}, a.gradient.type, n);
  check_flat({a.master}, DType::f32, n);
  const std::size_t states = state_count(a.rule);
  for (std::size_t s = 0; s < kMostStates; ++s) {
    if (s < states) {
      check_flat({a.state[s]}, DType::f32, n);
    } else {
      TESSERA_CHECK(!a.state[s], "{} has state {}, which it does not keep", a.name(), s);
    }
  }
  if (a.parameter) check_flat({a.parameter}, a.parameter.type, n);
  check_flat({a.scalars}, DType::f32, kScalars);
  check_flat({a.verdict}, DType::f32, kVerdictFields);
}

void check(const Fill& a) { TESSERA_CHECK(a.out.dense(), "fill of a strided view"); }

void check(const Convert& a) {
  check_floats({a.x, a.out});
  check_flat({a.x}, a.x.type, a.x.elements());
  check_flat({a.out}, a.out.type, a.x.elements());
}

void check(const TreeSum& a) {
  check_floats({a.bias, a.out});
  const std::int64_t n = a.out.elements(), parts = a.parts.extent(0);
  TESSERA_CHECK(a.parts.rank >= 2 && parts >= 1, "sum of {} parts of {} axes", parts, a.parts.rank);
  check_flat({a.parts}, DType::f32, parts * n);
  check_flat({a.out}, a.out.type, n);
  if (a.bias) check_flat({a.bias}, a.bias.type, a.out.cols());
}

void check(const ExactSum& a) {
  check_floats({a.x});
  check_flat({a.x}, a.x.type, a.x.elements());
  check_flat({a.accumulator}, DType::i64, kExactSumWords);
}

void check(const Quantize& a) {
  check_floats({a.x});
  TESSERA_CHECK(a.x.rank == 3, "x is (A, B, n), not of {} axes", a.x.rank);
  check_flat({a.x}, a.x.type, a.x.elements());
  check_codes(a.code, {a.x.extent(1), a.x.extent(0)}, a.format, a.x.cols());
}

void check(const SumQuantized& a) {
  check_floats({a.out});
  check_parts(a.code, a.format, a.out.cols());
  check_flat({a.out}, a.out.type, a.code.extent(1) * a.out.cols());
}

void check(const RequantizeSum& a) {
  check_parts(a.code, a.format, a.elements);
  check_codes(a.sum, {a.code.extent(1)}, a.format, a.elements);
}

void check_scratch(const KernelCall& call, std::int64_t needed) {
  std::visit(
      [&](const auto& args) {
        TESSERA_CHECK(args.scratch.span_bytes() >= needed, "{}: {} bytes of scratch, needs {}",
                      name_of_args(args), args.scratch.span_bytes(), needed);
      },
      call);
}

}  // namespace tessera::kernels
