#include "io/unigram.hpp"

#include <algorithm>
#include <bit>

#include "core/error.hpp"
#include "io/unicode.hpp"

namespace tessera::io {
namespace {

constexpr double kUnknownPenalty = 10;  // below the unlikeliest token
constexpr std::uint64_t kNoEdge = UINT64_MAX;

std::uint64_t edge(std::int32_t node, unsigned char byte) {
  return static_cast<std::uint64_t>(node) << 8 | byte;
}

std::size_t slot_of(std::uint64_t key, std::size_t slots) {
  return (key * 0x9E3779B97F4A7C15U >> 20) & (slots - 1);
}

}  // namespace

UnigramEncoder::UnigramEncoder(UnigramModel model) : model_(std::move(model)) {
  std::size_t bytes = 0;
  double least = 0;
  for (std::size_t i = 0; i < model_.tokens.size(); ++i) {
    const auto& [token, score] = model_.tokens[i];
    bytes += token.size();
    least = i == 0 ? score : std::min(least, score);
    ids_[token] = static_cast<std::int32_t>(i);  // of several alike the last
  }
  unknown_score_ = least - kUnknownPenalty;
  const std::size_t slots = std::bit_ceil(2 * bytes + 2);
  edges_.assign(slots, kNoEdge);
  targets_.assign(slots, 0);
  tokens_at_.assign(1, -1);
  for (const auto& [token, id] : ids_) insert(token, id);
  if (!model_.byte_fallback) return;
  for (int byte = 0; byte < 256; ++byte) {
    const auto found = ids_.find(fmt::format("<0x{:02X}>", byte));
    byte_ids_.push_back(found == ids_.end() ? -1 : found->second);
  }
}

void UnigramEncoder::insert(std::string_view token, std::int32_t id) {
  std::int32_t node = 0;
  for (const char c : token) {
    const std::uint64_t key = edge(node, static_cast<unsigned char>(c));
    std::size_t slot = slot_of(key, edges_.size());
    while (edges_[slot] != kNoEdge && edges_[slot] != key) slot = (slot + 1) % edges_.size();
    if (edges_[slot] == kNoEdge) {
      edges_[slot] = key;
      targets_[slot] = static_cast<std::int32_t>(tokens_at_.size());
      tokens_at_.push_back(-1);
    }
    node = targets_[slot];
  }
  if (node > 0) tokens_at_[static_cast<std::size_t>(node)] = id;
}

std::int32_t UnigramEncoder::next(std::int32_t node, unsigned char byte) const {
  const std::uint64_t key = edge(node, byte);
  std::size_t slot = slot_of(key, edges_.size());
  while (edges_[slot] != kNoEdge) {
    if (edges_[slot] == key) return targets_[slot];
    slot = (slot + 1) % edges_.size();
  }
  return -1;
}

void UnigramEncoder::find_best(std::string_view word) {
  nodes_.assign(word.size() + 1, {});
  const auto reach = [&](std::size_t begin, std::size_t end, std::int32_t id, double score) {
    Node& node = nodes_[end];
    if (node.begin >= 0 && score <= node.score) return;
    node = {.score = score, .id = id, .begin = static_cast<std::int32_t>(begin)};
  };
  for (std::size_t begin = 0; begin < word.size();) {
    const auto character = first_utf8_char(word.substr(begin));
    const std::size_t length = character ? character->length : 1;
    const double so_far = nodes_[begin].score;
    bool known = false;  // the character alone is a token
    std::int32_t node = 0;
    for (std::size_t end = begin; end < word.size(); ++end) {
      node = next(node, static_cast<unsigned char>(word[end]));
      if (node < 0) break;
      const std::int32_t id = tokens_at_[static_cast<std::size_t>(node)];
      if (id < 0) continue;
      reach(begin, end + 1, id, model_.tokens[static_cast<std::size_t>(id)].second + so_far);
      known = known || end + 1 - begin == length;
    }
    if (!known) reach(begin, begin + length, -1, unknown_score_ + so_far);
    begin += length;
  }
}

void UnigramEncoder::encode(std::string_view word, std::vector<std::int32_t>& ids) {
  if (word.size() > INT32_MAX / 2) {
    throw DataError(fmt::format("a word of {} bytes, at most {} can be encoded: is it text?",
                                word.size(), INT32_MAX / 2));
  }
  find_best(word);
  std::vector<Part> path;
  for (std::size_t end = word.size(); end > 0;) {
    const Node& node = nodes_[end];
    const auto begin = static_cast<std::size_t>(node.begin);
    const bool unknown = node.id < 0 || node.id == model_.unknown;
    if (unknown && !path.empty() && path.back().unknown) {
      path.back().begin = begin;
    } else {
      path.push_back({begin, end, node.id, unknown});
    }
    end = begin;
  }
  for (auto part = path.rbegin(); part != path.rend(); ++part) {
    if (part->unknown) {
      add_unknown(word.substr(part->begin, part->end - part->begin), ids);
    } else {
      ids.push_back(part->id);
    }
  }
}

// A text of several unknown characters may be a token after all: then it is that.
void UnigramEncoder::add_unknown(std::string_view text, std::vector<std::int32_t>& ids) const {
  if (const auto found = ids_.find(std::string(text)); found != ids_.end()) {
    ids.push_back(found->second);
    return;
  }
  const auto id_of = [&](char c) {
    return byte_ids_.empty() ? -1 : byte_ids_[static_cast<unsigned char>(c)];
  };
  if (std::ranges::none_of(text, [&](char c) { return id_of(c) < 0; })) {
    for (const char c : text) ids.push_back(id_of(c));
  } else if (model_.unknown) {
    ids.push_back(*model_.unknown);
  } else {
    throw DataError(
        "the tokenizer knows no token for a part of the text, nor one for what is "
        "unknown (model.unk_id)");
  }
}

}  // namespace tessera::io
