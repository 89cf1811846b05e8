// How well entities, which are several words, were found by the classes of their words.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera::train {

/// Whether classes say of words which entity they are of: B-TYPE of its first word, I-TYPE of the
/// others, O of those that are of none (Ramshaw and Marcus 1995).
bool name_entities(std::span<const std::string> classes);

/// Counts over texts, as conlleval and seqeval count: an entity is found where one of its type
/// begins and ends at the same words. An I-TYPE that goes on no entity of its type begins one.
class EntityCounts {
 public:
  /// Of one text, the classes of its words: the right ones, and what they were taken for.
  void add(std::span<const std::string_view> labels, std::span<const std::string_view> taken_for);

  std::int64_t labelled() const { return labelled_; }
  /// 0 where they are undefined, as those of classes (Confusion).
  double precision() const;
  double recall() const;
  double f1() const;

 private:
  std::int64_t labelled_ = 0, taken_ = 0, found_ = 0;
};

}  // namespace tessera::train
