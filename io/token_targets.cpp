#include "io/token_targets.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

#include "io/megatron.hpp"

namespace tessera::io {
namespace fs = std::filesystem;
fs::path prefix_of(const TokenCorpus::TokenFile& tokens) {
  return fs::path(*tokens.index).replace_extension();
}

fs::path targets_prefix(const fs::path& prefix) { return prefix.string() + ".targets"; }

std::optional<fs::path> targets_of(const TokenCorpus::TokenFile& tokens) {
  if (!tokens.index) return std::nullopt;
  fs::path prefix = targets_prefix(prefix_of(tokens));
  if (!path_exists(megatron_idx(prefix)) && !path_exists(megatron_bin(prefix))) return std::nullopt;
  return prefix;  // if one is missing, whoever opens it says so
}

void forget_targets(const fs::path& prefix) {
  remove_durably(megatron_idx(targets_prefix(prefix)));
  remove_durably(megatron_bin(targets_prefix(prefix)));
}

std::int64_t count_targets(const TokenCorpus& corpus, std::int64_t first, std::int64_t count) {
  std::vector<std::uint8_t> marks(std::size_t{1} << 16);
  std::int64_t counted = 0;
  for (std::int64_t done = 0; done < count; done += std::ssize(marks)) {
    marks.resize(static_cast<std::size_t>(std::min(std::ssize(marks), count - done)));
    corpus.read_targets(first + done, marks);
    counted = std::accumulate(marks.begin(), marks.end(), counted);
  }
  return counted;
}

}  // namespace tessera::io
