#include "train/confusion.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.hpp"
#include "core/terminal.hpp"

namespace tessera::train {
namespace {

/// a / b, or 0 of nothing.
double share(double a, double b) { return b > 0 ? a / b : 0; }

}  // namespace

void Confusion::add(std::span<const std::int64_t> counts) {
  if (counts.empty()) return;
  if (counts_.empty()) {
    counts_.resize(counts.size());
    classes_ = std::llround(std::sqrt(static_cast<double>(counts.size())));
  }
  TESSERA_CHECK(counts.size() == counts_.size(), "counts of {} and {} pairs of classes",
                counts_.size(), counts.size());
  std::ranges::transform(counts_, counts, counts_.begin(), std::plus());
}

std::int64_t Confusion::count(std::int64_t label, std::int64_t predicted) const {
  return counts_.at(static_cast<std::size_t>(label * classes_ + predicted));
}

std::int64_t Confusion::total() const {
  return std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
}

std::int64_t Confusion::of_label(std::int64_t label) const {
  std::int64_t n = 0;
  for (std::int64_t p = 0; p < classes_; ++p) n += count(label, p);
  return n;
}
std::int64_t Confusion::taken_for(std::int64_t label) const {
  std::int64_t n = 0;
  for (std::int64_t l = 0; l < classes_; ++l) n += count(l, label);
  return n;
}

double Confusion::accuracy() const {
  std::int64_t right = 0;
  for (std::int64_t l = 0; l < classes_; ++l) right += count(l, l);
  return share(static_cast<double>(right), static_cast<double>(total()));
}
double Confusion::precision(std::int64_t label) const {
  return share(static_cast<double>(count(label, label)), static_cast<double>(taken_for(label)));
}
double Confusion::recall(std::int64_t label) const {
  return share(static_cast<double>(count(label, label)), static_cast<double>(of_label(label)));
}
double Confusion::f1(std::int64_t label) const {
  return share(2 * static_cast<double>(count(label, label)),
               static_cast<double>(of_label(label) + taken_for(label)));
}
double Confusion::f1() const {
  double sum = 0, there = 0;
  for (std::int64_t l = 0; l < classes_; ++l) {
    if (of_label(l) + taken_for(l) == 0) continue;
    sum += f1(l);
    ++there;
  }
  return share(sum, there);
}

std::vector<std::string> to_lines(const Confusion& confusion, std::span<const std::string> names) {
  constexpr std::int64_t kMostShown = 10;
  const std::int64_t classes = confusion.classes();
  const bool counts = classes <= kMostShown;
  const auto name = [&](std::int64_t label) {
    const auto i = static_cast<std::size_t>(label);
    return i < names.size() ? printable(names[i]) : fmt::format("{}", label);
  };
  std::size_t widest = 5;
  for (std::int64_t l = 0; l < classes; ++l) widest = std::max(widest, name(l).size());
  const std::size_t column = std::max<std::size_t>(widest, 7);
  std::string title = fmt::format("{:<{}}", "label", widest);
  for (std::int64_t p = 0; counts && p < classes; ++p)
    title += fmt::format("  {:>{}}", name(p), column);
  std::vector<std::string> lines{title + "  precision  recall     F1" +
                                 (counts ? "  (columns: taken for)" : "")};
  for (std::int64_t l = 0; l < classes; ++l) {
    std::string line = fmt::format("{:<{}}", name(l), widest);
    for (std::int64_t p = 0; counts && p < classes; ++p)
      line += fmt::format("  {:>{}}", confusion.count(l, p), column);
    lines.push_back(line + fmt::format("  {:>9.4f}  {:>6.4f}  {:.4f}", confusion.precision(l),
                                       confusion.recall(l), confusion.f1(l)));
  }
  return lines;
}

}  // namespace tessera::train
