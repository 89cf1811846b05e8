// xxh3 hashes of bytes and of plain data, for checksums and plan comparison.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace tessera {

std::uint64_t hash_bytes(std::span<const std::byte> bytes, std::uint64_t seed = 0);
inline std::uint64_t hash_text(std::string_view text, std::uint64_t seed = 0) {
  return hash_bytes(std::as_bytes(std::span(text.data(), text.size())), seed);
}

/// Folds values one after another into one hash.
class Hasher {
 public:
  template <typename T>
  Hasher& add(const T& value) {
    static_assert(std::has_unique_object_representations_v<T>,
                  "padding or NaN bits must not enter a hash");
    state_ = hash_bytes(std::as_bytes(std::span(&value, 1)), state_);
    return *this;
  }
  Hasher& add(std::string_view text) {
    state_ = hash_text(text, state_);
    return *this;
  }
  std::uint64_t value() const { return state_; }

 private:
  std::uint64_t state_ = 0x7e55e2a;
};

}  // namespace tessera
