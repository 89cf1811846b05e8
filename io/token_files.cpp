#include "io/token_files.hpp"

#include <glob.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "core/regular_file.hpp"
#include "io/megatron.hpp"

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

}  // namespace

TokenCorpus::TokenCorpus(std::span<const std::string> entries, std::int64_t vocab) : vocab_(vocab) {
  for (const std::string& entry : entries) {
    if (!entry.ends_with(".bin")) {
      add_megatron(entry);
    } else {
      for (const std::string& path : expand(entry)) add_llmc(path);
    }
  }
}

void TokenCorpus::add_run(std::int64_t offset, std::int64_t count) {
  TokenFile& file = files_.back();
  if (count == 0) return;
  const std::size_t index = files_.size() - 1;
  const bool adjacent =
      !runs_.empty() && runs_.back().file == index &&
      runs_.back().offset + (tokens_ - runs_.back().first) * size_of(file.type) == offset;
  if (!adjacent) runs_.push_back({.first = tokens_, .offset = offset, .file = index});
  file.tokens += count;
  if (__builtin_add_overflow(tokens_, count, &tokens_)) {
    throw DataError(fmt::format("{}: more than 2^63 tokens", file.file.path().string()));
  }
}

void TokenCorpus::add_megatron(const std::string& prefix) {
  const MegatronIndex index(prefix);
  const auto& added =
      files_.emplace_back(TokenFile{.file = File(megatron_bin(prefix), OpenMode::read),
                                    .type = index.type(),
                                    .documents = index.documents(),
                                    .index = megatron_idx(prefix)});
  index.for_each_document_end([](std::int64_t) {});  // read only to be checked
  index.for_each_sequence(added.file.size(), [&](const MegatronIndex::Sequence& sequence) {
    add_run(sequence.pointer, sequence.length);
  });
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

void TokenCorpus::read(std::int64_t first, std::span<std::int32_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  TESSERA_CHECK(first >= 0 && count <= tokens_ && first <= tokens_ - count,
                "tokens {}+{} of a corpus of {}", first, count, tokens_);
  if (out.empty()) return;
  auto run =
      std::prev(std::upper_bound(runs_.begin(), runs_.end(), first,
                                 [](std::int64_t token, const Run& r) { return token < r.first; }));
  while (!out.empty()) {
    const auto next = std::next(run);
    const std::int64_t end = next == runs_.end() ? tokens_ : next->first;
    const std::size_t piece = std::min(out.size(), static_cast<std::size_t>(end - first));
    read_run(*run, first - run->first, out.first(piece));
    out = out.subspan(piece);
    first += static_cast<std::int64_t>(piece);
    run = next;
  }
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
