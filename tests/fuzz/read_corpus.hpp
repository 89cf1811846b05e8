// Reading a corpus of one entry of data.train whole.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "io/token_files.hpp"

namespace tessera::fuzz {

inline void read_corpus(const std::string& entry) {
  constexpr std::int64_t kAtOnce = 1000;
  constexpr std::int64_t kMost = 100'000;  // sequences may overlap: a small file can have many
  const io::TokenCorpus corpus(std::span(&entry, 1), 100);
  std::vector<std::int32_t> tokens(kAtOnce);
  for (std::int64_t at = 0; at < std::min(corpus.tokens(), kMost); at += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, corpus.tokens() - at);
    corpus.read(at, std::span(tokens).first(static_cast<std::size_t>(count)));
  }
  if (corpus.tokens() > 0) corpus.read(corpus.tokens() - 1, std::span(tokens).first(1));
}

}  // namespace tessera::fuzz
