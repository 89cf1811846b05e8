// How well documents or words were classified.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::train {

/// Counts of documents or words by their label and by the class that the model took them for.
class Confusion {
 public:
  /// `counts`: (classes, classes), label by label.
  void add(std::span<const std::int64_t> counts);
  void add(const Confusion& other) { add(other.counts_); }

  std::int64_t classes() const { return classes_; }
  std::int64_t count(std::int64_t label, std::int64_t predicted) const;
  std::int64_t total() const;
  /// The share of those that were taken for what they are.
  double accuracy() const;
  /// Of a class, 0 where it is undefined. Precision is the share of those taken for it that are of
  /// it, recall the share of its own that were found, and F1 their harmonic mean.
  double precision(std::int64_t label) const;
  double recall(std::int64_t label) const;
  double f1(std::int64_t label) const;
  /// The mean F1 of the classes that there are, or that something was taken for.
  double f1() const;

 private:
  std::int64_t of_label(std::int64_t label) const;
  std::int64_t taken_for(std::int64_t label) const;

  std::int64_t classes_ = 0;
  std::vector<std::int64_t> counts_;
};

/// A line for each class, below a title; of up to ten classes with the counts.
std::vector<std::string> to_lines(const Confusion& confusion, std::span<const std::string> names);

}  // namespace tessera::train
