#include "io/token_files.hpp"

#include <glob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <new>
#include <utility>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"
#include "core/regular_file.hpp"
#include "io/megatron.hpp"
#include "io/token_targets.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::int64_t kLlmcHeaderBytes = 256 * 4;

struct LlmcFormat {
  std::int32_t magic;
  std::int32_t version;
  DType type;
};
constexpr std::array kLlmcFormats = {
    LlmcFormat{20240520, 1, DType::u16},  // GPT-2's vocabulary
    LlmcFormat{20240801, 7, DType::i32},  // Llama 3's
};

/// The files that a pattern names, in byte order (glob's own order depends on the locale).
std::vector<std::string> expand(const std::string& pattern) {
  glob_t found{};
  const int result = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (result == GLOB_NOSPACE) throw std::bad_alloc();
  if (result != 0)
    throw DataError(fmt::format("{}: no such file{}", pattern, full_path_text(pattern)));
  std::sort(paths.begin(), paths.end());
  return paths;
}

template <typename T>
void widen(std::span<const std::byte> bytes, std::span<std::int32_t> out, std::int64_t vocab) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T token;
    std::memcpy(&token, bytes.data() + i * sizeof(T), sizeof(T));
    // -1 marks a token out of range; the caller knows where it is.
    out[i] = token >= 0 && static_cast<std::int64_t>(token) < vocab
                 ? static_cast<std::int32_t>(token)
                 : -1;
  }
}

void widen(DType type, std::span<const std::byte> bytes, std::span<std::int32_t> out,
           std::int64_t vocab) {
  switch (type) {
    case DType::u8: return widen<std::uint8_t>(bytes, out, vocab);
    case DType::u16: return widen<std::uint16_t>(bytes, out, vocab);
    case DType::i32: return widen<std::int32_t>(bytes, out, vocab);
    case DType::i64: return widen<std::int64_t>(bytes, out, vocab);
    default: check_failed("widen", std::string(to_string(type)));
  }
}

std::int64_t token_at(const File& file, DType type, std::int64_t offset) {
  std::int64_t value = 0;  // little-endian: the low bytes are the token
  file.read(
      offset,
      std::as_writable_bytes(std::span(&value, 1)).first(static_cast<std::size_t>(size_of(type))));
  return value;
}

/// What two pairs have in common whose documents are alike and lie in their files alike.
std::uint64_t shape_of(const MegatronIndex& index, const File& bin) {
  Hasher hash;
  index.for_each_sequence(bin.size(), [&](const MegatronIndex::Sequence& s) {
    hash.add(s.length).add(s.length > 0 ? s.pointer / size_of(index.type()) : 0);
  });
  index.for_each_document_end([&](std::int64_t end) { hash.add(end); });
  return hash.value();
}

}  // namespace

TokenCorpus::TokenCorpus(std::span<const std::string> entries, std::int64_t vocab) : vocab_(vocab) {
  for (const std::string& entry : entries) {
    const std::int64_t first = tokens_;
    if (!entry.ends_with(".bin")) {
      add_megatron(entry);
    } else {
      for (const std::string& path : expand(entry)) add_llmc(path);
    }
    entries_.push_back({first, tokens_});
  }
}

std::size_t TokenCorpus::entry_of(std::int64_t token) const {
  const auto behind = std::ranges::upper_bound(entries_, token, {}, &Range::begin);
  TESSERA_CHECK(behind != entries_.begin(), "token {} of a corpus", token);
  return static_cast<std::size_t>(behind - entries_.begin()) - 1;
}

void TokenCorpus::add_run(std::int64_t offset, std::int64_t count, std::int64_t sequence) {
  TokenFile& file = files_.back();
  if (count == 0) return;
  const std::size_t index = files_.size() - 1;
  const bool adjacent =
      !runs_.empty() && runs_.back().file == index &&
      runs_.back().offset + (tokens_ - runs_.back().first) * size_of(file.type) == offset;
  if (!adjacent) {
    runs_.push_back(
        {.first = tokens_, .offset = offset, .file = index, .sequences = {sequence, sequence}});
  }
  runs_.back().sequences.end = sequence + 1;
  file.tokens += count;
  if (__builtin_add_overflow(tokens_, count, &tokens_)) {
    throw DataError(fmt::format("{}: more than 2^63 tokens", file.file.path().string()));
  }
}

void TokenCorpus::add_megatron(const std::string& prefix) {
  MegatronIndex index(prefix);
  const DType type = index.type();
  const std::int64_t documents = index.documents();
  const auto& added =
      files_.emplace_back(TokenFile{.file = File(megatron_bin(prefix), OpenMode::read),
                                    .type = type,
                                    .documents = documents,
                                    .index = megatron_idx(prefix),
                                    .table = std::move(index)});
  added.table->for_each_document_end([](std::int64_t) {});  // read only to be checked
  std::int64_t number = 0;
  added.table->for_each_sequence(added.file.size(), [&](const MegatronIndex::Sequence& sequence) {
    add_run(sequence.pointer, sequence.length, number++);
  });
  add_targets();
}

void TokenCorpus::add_targets() {
  TokenFile& file = files_.back();
  if (const auto beside = targets_of(file)) file.targets = open_alongside(file, *beside, DType::u8);
}

File open_alongside(const TokenCorpus::TokenFile& tokens, const fs::path& prefix, DType type) {
  const MegatronIndex index(prefix);
  File elements(megatron_bin(prefix), OpenMode::read);
  const std::string name = megatron_idx(prefix).string();
  if (index.type() != type) {
    throw DataError(fmt::format("{}: elements of type {}, {} expected", name,
                                to_string(index.type()), to_string(type)));
  }
  if (shape_of(index, elements) == shape_of(*tokens.table, tokens.file)) return elements;
  throw DataError(fmt::format(
      "{}: its documents are not those of {}: the two were not made together. Make both "
      "anew with tessera tokenize",
      name, tokens.index->string()));
}

void TokenCorpus::add_llmc(const std::string& path) {
  File file(path, OpenMode::read);
  std::array<std::int32_t, 3> header;
  file.read(0, std::as_writable_bytes(std::span(header)));
  const auto [magic, version, count] = header;
  const auto format = std::find_if(kLlmcFormats.begin(), kLlmcFormats.end(),
                                   [&](const LlmcFormat& f) { return f.magic == header[0]; });
  if (format == kLlmcFormats.end()) {
    const fs::path prefix = fs::path(path).replace_extension();
    throw DataError(fmt::format(
        "{}: byte 0: magic number {}; llm.c's are 20240520 and 20240801. {}\"{}\"", path, magic,
        fs::exists(megatron_idx(prefix))
            ? "For the Megatron dataset beside it, write "
            : "If it has nothing but 16-bit tokens, as nanoGPT's prepare.py writes them, give it "
              "an "
              "index, as inputs/README.md shows under [data], and write ",
        prefix.string()));
  }
  if (version != format->version) {
    throw DataError(fmt::format("{}: byte 4: version {}, expected {} with magic number {}", path,
                                version, format->version, magic));
  }
  if (count < 0 || file.size() != kLlmcHeaderBytes + count * size_of(format->type)) {
    throw DataError(
        fmt::format("{}: {} bytes do not fit the {} that byte 8 states: "
                    "truncated or damaged",
                    path, file.size(), count_text(count, "token")));
  }
  files_.push_back({.file = std::move(file), .type = format->type});
  add_run(kLlmcHeaderBytes, count);
}

template <typename F>
void TokenCorpus::for_each_run(Range tokens, F&& f) const {
  TESSERA_CHECK(tokens.begin >= 0 && tokens.begin <= tokens.end && tokens.end <= tokens_,
                "tokens {} to {} of a corpus of {}", tokens.begin, tokens.end, tokens_);
  if (tokens.empty()) return;
  auto run =
      std::prev(std::upper_bound(runs_.begin(), runs_.end(), tokens.begin,
                                 [](std::int64_t token, const Run& r) { return token < r.first; }));
  while (!tokens.empty()) {
    const auto next = std::next(run);
    const std::int64_t end = std::min(tokens.end, next == runs_.end() ? tokens_ : next->first);
    f(*run, tokens.begin - run->first, end - tokens.begin);
    tokens.begin = end;
    run = next;
  }
}

void TokenCorpus::read(std::int64_t first, std::span<std::int32_t> out) const {
  for_each_run({first, first + std::ssize(out)},
               [&](const Run& run, std::int64_t skip, std::int64_t count) {
                 read_run(run, skip, out.first(static_cast<std::size_t>(count)));
                 out = out.subspan(static_cast<std::size_t>(count));
               });
}

bool TokenCorpus::has_targets() const {
  return std::ranges::any_of(files_, [](const TokenFile& f) { return f.targets.has_value(); });
}

void TokenCorpus::read_targets(std::int64_t first, std::span<std::uint8_t> out) const {
  for_each_run({first, first + std::ssize(out)},
               [&](const Run& run, std::int64_t skip, std::int64_t count) {
                 const auto piece = out.first(static_cast<std::size_t>(count));
                 out = out.subspan(static_cast<std::size_t>(count));
                 const TokenFile& source = files_[run.file];
                 if (!source.targets) {
                   std::ranges::fill(piece, std::uint8_t{1});
                   return;
                 }
                 const std::int64_t offset = run.offset / size_of(source.type) + skip;
                 source.targets->read(offset, std::as_writable_bytes(piece));
                 const auto bad = std::ranges::find_if(piece, [](std::uint8_t x) { return x > 1; });
                 if (bad == piece.end()) return;
                 throw DataError(fmt::format(
                     "{}: byte {}: {}, where a token counts as a target (1) or not (0)",
                     source.targets->path().string(), offset + (bad - piece.begin()), int{*bad}));
               });
}

const File* TokenCorpus::file_without_documents() const {
  const auto found = std::ranges::find_if(files_, [](const TokenFile& f) { return !f.table; });
  return found == files_.end() ? nullptr : &found->file;
}

std::vector<std::int64_t> TokenCorpus::document_ends(Range range) const {
  std::vector<std::int64_t> ends;
  for_each_run(range, [&](const Run& run, std::int64_t skip, std::int64_t count) {
    const TokenFile& source = files_[run.file];
    if (!source.table) return;
    const std::int64_t size = size_of(source.type), begin = run.offset + skip * size;
    for (const std::int64_t end :
         source.table->document_ends(run.sequences, {begin, begin + count * size}))
      ends.push_back(run.first + (end - run.offset) / size);
  });
  return ends;
}

void TokenCorpus::read_run(const Run& run, std::int64_t skip, std::span<std::int32_t> out) const {
  const TokenFile& source = files_[run.file];
  const std::int64_t size = size_of(source.type);
  std::array<std::byte, 1 << 15> buffer;
  const std::size_t batch = buffer.size() / static_cast<std::size_t>(size);
  while (!out.empty()) {
    const auto piece = out.first(std::min(batch, out.size()));
    const auto bytes = std::span(buffer).first(piece.size() * static_cast<std::size_t>(size));
    const std::int64_t offset = run.offset + skip * size;
    source.file.read(offset, bytes);
    widen(source.type, bytes, piece, vocab_);
    if (const auto bad = std::find(piece.begin(), piece.end(), -1); bad != piece.end()) {
      const std::int64_t index = bad - piece.begin();
      throw DataError(fmt::format(
          "{}: byte {}: token {} (number {} of the corpus) is not below the vocabulary size {}: "
          "were the tokens made with another tokenizer?",
          source.file.path().string(), offset + index * size,
          token_at(source.file, source.type, offset + index * size), run.first + skip + index,
          vocab_));
    }
    skip += static_cast<std::int64_t>(piece.size());
    out = out.subspan(piece.size());
  }
}

}  // namespace tessera::io
