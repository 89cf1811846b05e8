#include "io/token_targets.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <string>

#include "core/error.hpp"
#include "io/megatron.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMarksAtOnce = std::size_t{1} << 16;

/// The hash of where documents and sequences end, in tokens, so that two indices can be compared
/// without holding either.
std::uint64_t hash_of_shape(const fs::path& prefix) {
  const MegatronIndex index(prefix);
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  const auto add = [&](std::int64_t value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x100000001b3U;
  };
  const std::int64_t bytes = File(megatron_bin(prefix), OpenMode::read).size();
  index.for_each_sequence(bytes, [&](const MegatronIndex::Sequence& s) { add(s.length); });
  index.for_each_document_end(add);
  return hash;
}

std::unique_ptr<TokenCorpus> open_targets(const TokenCorpus::TokenFile& tokens) {
  const auto prefix = targets_of(tokens);
  if (!prefix) return nullptr;
  if (hash_of_shape(*prefix) != hash_of_shape(prefix_of(tokens))) {
    throw DataError(
        fmt::format("{}: its documents are not those of {}: the two were not made together. Make "
                    "both anew with tessera tokenize",
                    megatron_idx(*prefix).string(), tokens.index->string()));
  }
  const std::vector<std::string> entries{prefix->string()};
  auto marked = std::make_unique<TokenCorpus>(entries, 2);
  if (marked->files()[0].type != DType::u8) {
    throw DataError(fmt::format("{}: elements of type {}, u8 expected",
                                megatron_idx(*prefix).string(),
                                to_string(marked->files()[0].type)));
  }
  return marked;
}

}  // namespace

fs::path prefix_of(const TokenCorpus::TokenFile& tokens) {
  return fs::path(*tokens.index).replace_extension();
}

fs::path targets_prefix(const fs::path& prefix) { return prefix.string() + ".targets"; }

std::optional<fs::path> targets_of(const TokenCorpus::TokenFile& tokens) {
  if (!tokens.index) return std::nullopt;
  const fs::path prefix = targets_prefix(prefix_of(tokens));
  if (!path_exists(megatron_idx(prefix)) && !path_exists(megatron_bin(prefix))) return std::nullopt;
  return prefix;  // if one is missing, whoever opens it says so
}

void forget_targets(const fs::path& prefix) {
  remove_durably(megatron_idx(targets_prefix(prefix)));
  remove_durably(megatron_bin(targets_prefix(prefix)));
}

TargetCorpus::TargetCorpus(const TokenCorpus& tokens) {
  std::int64_t first = 0;
  for (const TokenCorpus::TokenFile& file : tokens.files()) {
    extents_.push_back({first, first + file.tokens, open_targets(file)});
    first += file.tokens;
  }
}

bool TargetCorpus::all() const {
  return std::ranges::none_of(extents_, [](const Extent& e) { return e.marked != nullptr; });
}

void TargetCorpus::read(std::int64_t first, std::span<std::uint8_t> out) const {
  auto extent = std::ranges::upper_bound(extents_, first, {}, &Extent::end);
  std::array<std::int32_t, kMarksAtOnce> batch;
  while (!out.empty()) {
    TESSERA_CHECK(first >= 0 && extent != extents_.end(), "token {} of the targets", first);
    const auto left = static_cast<std::size_t>(extent->end - first);
    const auto piece = out.first(std::min({out.size(), left, batch.size()}));
    if (extent->marked) {
      const auto marks = std::span(batch).first(piece.size());
      extent->marked->read(first - extent->first, marks);
      std::ranges::transform(marks, piece.begin(),
                             [](std::int32_t mark) { return static_cast<std::uint8_t>(mark); });
    } else {
      std::ranges::fill(piece, std::uint8_t{1});
    }
    out = out.subspan(piece.size());
    first += static_cast<std::int64_t>(piece.size());
    while (extent != extents_.end() && extent->end == first) ++extent;
  }
}

std::int64_t count_targets(const TargetCorpus& targets, std::int64_t first, std::int64_t count) {
  std::vector<std::uint8_t> marks(kMarksAtOnce);
  std::int64_t counted = 0;
  for (std::int64_t done = 0; done < count; done += std::ssize(marks)) {
    marks.resize(static_cast<std::size_t>(std::min(std::ssize(marks), count - done)));
    targets.read(first + done, marks);
    counted = std::accumulate(marks.begin(), marks.end(), counted);
  }
  return counted;
}

}  // namespace tessera::io
