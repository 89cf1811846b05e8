// What the argument structs of all operations share. Each struct lists its views with how they are
// used (`visit`), so that a recorder, a plan checker and an executor can handle all operations
// alike.
#pragma once

#include <string_view>
#include <variant>

#include "core/random.hpp"
#include "core/view.hpp"

namespace tessera::kernels {

enum class Access : std::uint8_t { read, write, update };  // update: reads and writes

/// Whether an output is replaced or added to (gradients over micro-batches and uses).
enum class Write : std::uint8_t { overwrite, add };
constexpr Access access_of(Write w) { return w == Write::add ? Access::update : Access::write; }

/// Inverted dropout: element e of sample g is kept when random_half(key, g, e) >= p 2^16, then
/// scaled by 1 / (1 - p), with p rounded to a multiple of 2^-16 above 0. `samples` holds the global
/// index g of each of the B samples (i64), so the mask does not depend on layout or micro-batch; e
/// is the element's position within its sample, `first` that of the view's first element, not 0
/// where a rank has only some of the positions or heads. p = 0: none. In place of that, `jitter` e
/// multiplies each element with 1 - e + 2 e u of random_bits (Fedus et al. 2021, input jitter).
struct Dropout {
  float p = 0;
  float jitter = 0;
  std::uint64_t seed = 0;
  std::uint64_t site = 0;  // which of the model's dropouts
  std::int64_t first = 0;
  View samples;  // (B) i64

  explicit operator bool() const { return p > 0 || jitter > 0; }
  RandomKey key() const {
    return random_key(seed, jitter > 0 ? RandomPurpose::jitter : RandomPurpose::dropout, site);
  }
  bool operator==(const Dropout&) const = default;
};

/// f(view, access) for every view of the call that is present; a call is a variant of argument
/// structs.
template <typename Call, typename F>
void visit_views(Call& call, F&& f) {
  std::visit(
      [&](auto& args) {
        args.visit(args, [&](auto& view, Access access) {
          if (view) f(view, access);
        });
      },
      call);
}

/// An operation's name in messages, machine files and profiles: its struct's kName, or its name()
/// where one struct serves several operations.
template <typename Args>
std::string_view name_of_args(const Args& args) {
  if constexpr (requires { args.name(); }) {
    return args.name();
  } else {
    return args.kName;
  }
}
template <typename Call>
std::string_view name_of(const Call& call) {
  return std::visit([](const auto& args) { return name_of_args(args); }, call);
}

}  // namespace tessera::kernels
