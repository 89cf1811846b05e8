#include "io/split_pattern.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>

#include "core/error.hpp"
#include "io/json.hpp"
#include "io/utf8.hpp"

namespace tessera::io {
namespace {

constexpr std::size_t kLongestPattern = 10000;
constexpr std::uint32_t kMatchSteps = 10'000'000;
constexpr std::uint32_t kMatchKibibytes = 64 << 10;  // heap of the interpreter
constexpr std::size_t kJitStackStart = 32 << 10;
constexpr std::size_t kJitStackMost = 16 << 20;

template <auto kFree>
struct FreeWith {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};

std::string message_of(int error) {
  std::array<unsigned char, 200> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

struct SplitPattern::Compiled {
  std::string text, place;
  std::unique_ptr<pcre2_code, FreeWith<pcre2_code_free>> code;
  std::unique_ptr<pcre2_match_data, FreeWith<pcre2_match_data_free>> data;
  std::unique_ptr<pcre2_match_context, FreeWith<pcre2_match_context_free>> context;
  std::unique_ptr<pcre2_jit_stack, FreeWith<pcre2_jit_stack_free>> jit_stack;
};

SplitPattern::SplitPattern(std::string_view pattern, std::string place)
    : compiled_(std::make_unique<Compiled>()) {
  if (pattern.size() > kLongestPattern) {
    throw UnsupportedError(fmt::format("{}: a pattern of {} bytes, at most {} allowed", place,
                                       pattern.size(), kLongestPattern));
  }
  int error = 0;
  std::size_t offset = 0;
  compiled_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error,
                                      &offset, nullptr));
  if (error == PCRE2_ERROR_HEAP_FAILED) throw std::bad_alloc();
  if (!compiled_->code) {
    throw UnsupportedError(
        fmt::format("{}: pattern, character {}: {}", place, offset, message_of(error)));
  }
  compiled_->text = pattern;
  compiled_->place = std::move(place);
  // Without JIT (not on every machine) the interpreter gives the same matches, slower.
  pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE);
  compiled_->data.reset(pcre2_match_data_create_from_pattern(compiled_->code.get(), nullptr));
  compiled_->context.reset(pcre2_match_context_create(nullptr));
  compiled_->jit_stack.reset(pcre2_jit_stack_create(kJitStackStart, kJitStackMost, nullptr));
  if (!compiled_->data || !compiled_->context || !compiled_->jit_stack) throw std::bad_alloc();
  pcre2_set_match_limit(compiled_->context.get(), kMatchSteps);
  pcre2_set_heap_limit(compiled_->context.get(), kMatchKibibytes);
  pcre2_jit_stack_assign(compiled_->context.get(), nullptr, compiled_->jit_stack.get());
}

SplitPattern::SplitPattern(SplitPattern&&) noexcept = default;
SplitPattern& SplitPattern::operator=(SplitPattern&&) noexcept = default;
SplitPattern::~SplitPattern() = default;

const std::string& SplitPattern::text() const { return compiled_->text; }

void SplitPattern::cut(std::string_view text, const Piece& piece) {
  while (!text.empty()) {
    const std::size_t valid = valid_utf8_prefix(text);
    if (valid > 0) {
      cut_valid(text.substr(0, valid), piece);
    } else {
      piece(text.substr(0, 1), false);
    }
    text.remove_prefix(std::max<std::size_t>(valid, 1));
  }
}

// The text has been checked once, in cut(): checking it at each match would be quadratic.
void SplitPattern::cut_valid(std::string_view text, const Piece& piece) {
  std::size_t done = 0;   // text before it has been handed out
  std::size_t start = 0;  // where to look for the next match
  while (start < text.size()) {
    const int result =
        pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    start, PCRE2_NO_UTF_CHECK, compiled_->data.get(), compiled_->context.get());
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (result < 0) {
      throw DataError(fmt::format("{}: the pattern fails on a text of {} bytes: {}",
                                  compiled_->place, text.size(), message_of(result)));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(compiled_->data.get());
    // \K can set the start of a match behind its end, and a lookbehind's before `done`.
    const std::size_t begin = std::max(range[0], done);
    const std::size_t end = std::max(range[1], begin);
    if (end == begin) {  // an empty match cuts nothing
      const std::size_t at = std::max(start, end);
      const auto character = first_utf8_char(text.substr(at));
      start = at + (character ? character->length : 1);
      continue;
    }
    if (begin > done) piece(text.substr(done, begin - done), false);
    piece(text.substr(begin, end - begin), true);
    done = start = end;
  }
  if (done < text.size()) piece(text.substr(done), false);
}

}  // namespace tessera::io
