#include "io/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "core/error.hpp"

namespace tessera::io {
namespace {

struct CodePoints {
  char32_t first, last;
};

#include "io/unicode_ranges.inc"

/// Whether one of the ranges, which ascend, has the character.
bool within(std::span<const CodePoints> ranges, char32_t c) {
  const auto range = std::ranges::lower_bound(ranges, c, {}, &CodePoints::last);
  return range != ranges.end() && c >= range->first;
}

// CJK ideographs without later extensions; BERT's list.
constexpr std::array kIdeographs = {CodePoints{0x3400, 0x4DBF},   CodePoints{0x4E00, 0x9FFF},
                                    CodePoints{0xF900, 0xFAFF},   CodePoints{0x20000, 0x2A6DF},
                                    CodePoints{0x2A700, 0x2B73F}, CodePoints{0x2B740, 0x2B81F},
                                    CodePoints{0x2B920, 0x2CEAF}, CodePoints{0x2F800, 0x2FA1F}};

// Characters whose decompositions are newer than the package's tables: they stay what they are.
constexpr std::array kNewer = {CodePoints{0x32FF, 0x32FF},   CodePoints{0xA7F2, 0xA7F4},
                               CodePoints{0xAB69, 0xAB69},   CodePoints{0x10781, 0x107BA},
                               CodePoints{0x11938, 0x11938}, CodePoints{0x1E030, 0x1E06D},
                               CodePoints{0x1F16C, 0x1F16C}, CodePoints{0x1FBF0, 0x1FBF9}};

constexpr std::array kWhiteSpace = {CodePoints{0x9, 0xD},       CodePoints{0x20, 0x20},
                                    CodePoints{0x85, 0x85},     CodePoints{0xA0, 0xA0},
                                    CodePoints{0x1680, 0x1680}, CodePoints{0x2000, 0x200A},
                                    CodePoints{0x2028, 0x2029}, CodePoints{0x202F, 0x202F},
                                    CodePoints{0x205F, 0x205F}, CodePoints{0x3000, 0x3000}};

int options_of(NormalForm form) {
  switch (form) {
    case NormalForm::nfc: return UTF8PROC_STABLE | UTF8PROC_COMPOSE;
    case NormalForm::nfd: return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    case NormalForm::nfkc: return UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
    case NormalForm::nfkd: return UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
  }
  return 0;
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// Whether the package's tables do not know it: a mark that is newer than they has no order there.
bool is_newer(char32_t c) {
  if (c < 0x300) return false;
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  const bool mark = category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME;
  return (mark && !within(kMarks, c)) || within(kNewer, c);
}

void append_normal_form(std::string_view text, NormalForm form, std::string& out) {
  if (is_ascii(text)) {
    out += text;
    return;
  }
  utf8proc_uint8_t* made = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &made,
                   static_cast<utf8proc_option_t>(options_of(form)));
  if (length == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
  if (length < 0) {
    throw DataError(fmt::format("a text of {} bytes has no normal form: {}", text.size(),
                                utf8proc_errmsg(length)));
  }
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(made, &std::free);
  out.append(reinterpret_cast<const char*>(made), static_cast<std::size_t>(length));
}

}  // namespace

std::string normal_form(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  std::string out;
  std::size_t begin = 0, at = 0;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    at += bytes.size();
    if (!is_newer(c)) return;
    append_normal_form(text.substr(begin, at - bytes.size() - begin), form, out);
    out += bytes;
    begin = at;
  });
  append_normal_form(text.substr(begin), form, out);
  return out;
}

bool is_white_space(char32_t c) {
  return c < 0x80 ? c == ' ' || (c >= 9 && c <= 13) : within(kWhiteSpace, c);
}
bool is_numeric(char32_t c) { return c < 0x80 ? c >= '0' && c <= '9' : within(kNumerics, c); }
bool is_punctuation(char32_t c) { return within(kPunctuation, c); }
bool is_nonspacing_mark(char32_t c) { return c >= 0x300 && within(kNonspacingMarks, c); }
bool is_mark(char32_t c) { return c >= 0x300 && within(kMarks, c); }
bool is_control(char32_t c) { return c < 0x80 ? c < 0x20 || c == 0x7F : within(kControls, c); }
bool is_word_character(char32_t c) { return within(kWordCharacters, c); }
bool is_ideograph(char32_t c) { return within(kIdeographs, c); }

void append_lower(char32_t c, std::string& out) {
  if (c == 0x130) {  // the only one that becomes two
    out += "i\u0307";
    return;
  }
  append_utf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), out);
}

void for_each_grapheme(std::string_view text, const std::function<void(std::string_view)>& visit) {
  std::size_t begin = 0, at = 0;
  utf8proc_int32_t state = 0, previous = -1;
  for_each_character(text, [&](char32_t c, std::string_view bytes) {
    const auto next = static_cast<utf8proc_int32_t>(c);
    if (previous >= 0 && utf8proc_grapheme_break_stateful(previous, next, &state)) {
      visit(text.substr(begin, at - begin));
      begin = at;
    }
    previous = next;
    at += bytes.size();
  });
  if (begin < text.size()) visit(text.substr(begin));
}

}  // namespace tessera::io
