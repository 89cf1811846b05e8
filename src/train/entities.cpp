#include "train/entities.hpp"

#include <algorithm>
#include <tuple>
#include <vector>

#include "core/error.hpp"

namespace tessera::train {
namespace {

constexpr std::string_view kOutside = "O";

bool of_entity(std::string_view label) {
  return label.size() > 2 && (label.starts_with("B-") || label.starts_with("I-"));
}

/// An entity's first word, the one behind its last, and its type.
using Entity = std::tuple<std::size_t, std::size_t, std::string_view>;

/// In the order of the text.
std::vector<Entity> entities_of(std::span<const std::string_view> labels) {
  std::vector<Entity> found;
  std::string_view before = kOutside;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    const std::string_view label = labels[i];
    if (of_entity(label)) {
      const std::string_view type = label.substr(2);
      const bool goes_on = label[0] == 'I' && of_entity(before) && before.substr(2) == type;
      if (!goes_on) found.emplace_back(i, i, type);
      std::get<1>(found.back()) = i + 1;
    }
    before = label;
  }
  return found;
}

double share(std::int64_t a, std::int64_t b) {
  return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0;
}

}  // namespace

bool name_entities(std::span<const std::string> classes) {
  return std::ranges::any_of(classes, of_entity) &&
         std::ranges::all_of(
             classes, [](std::string_view name) { return name == kOutside || of_entity(name); });
}

void EntityCounts::add(std::span<const std::string_view> labels,
                       std::span<const std::string_view> taken_for) {
  TESSERA_CHECK(labels.size() == taken_for.size(), "{} labels, {} classes", labels.size(),
                taken_for.size());
  const auto right = entities_of(labels), taken = entities_of(taken_for);
  labelled_ += std::ssize(right);
  taken_ += std::ssize(taken);
  found_ += std::ranges::count_if(
      right, [&](const Entity& entity) { return std::ranges::binary_search(taken, entity); });
}

double EntityCounts::precision() const { return share(found_, taken_); }
double EntityCounts::recall() const { return share(found_, labelled_); }
double EntityCounts::f1() const { return share(2 * found_, labelled_ + taken_); }

}  // namespace tessera::train
