#include "io/hf_config.hpp"

#include <fmt/ranges.h>
#include <algorithm>

#include "core/error.hpp"
#include "io/hf_config_keys.hpp"

namespace tessera::io {

std::string deck_key(std::string_view key) {
  const bool of_model = key.find('.') == std::string_view::npos;
  return fmt::format("{}{}", of_model ? "model." : "", key);
}

std::string unnamed_class(std::int64_t i) { return fmt::format("LABEL_{}", i); }

std::vector<const HfFamily*> find_families(std::string_view HfFamily::*name,
                                           std::string_view value) {
  std::vector<const HfFamily*> found;
  for (const HfFamily& family : hf_families()) {
    if (family.*name == value) found.push_back(&family);
  }
  return found;
}

std::string allowed_families(std::string_view HfFamily::*name) {
  std::vector<std::string_view> names;
  for (const HfFamily& family : hf_families()) {
    if (std::ranges::find(names, family.*name) == names.end()) names.push_back(family.*name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

const HfField& field_of(std::string_view key) {
  const auto* field = std::ranges::find(kHfFields, key, &HfField::key);
  TESSERA_CHECK(field != kHfFields.end(), "{}", key);
  return *field;
}

nlohmann::json value_of(const HfArchitecture& architecture, std::string_view key) {
  return std::visit([&](auto member) { return nlohmann::json(architecture.*member); },
                    field_of(key).member);
}

std::int64_t beside_of(const HfNumberRow& row, const HfArchitecture& a) {
  return row.beside.empty() ? 0 : value_of(a, row.beside).get<std::int64_t>();
}

std::int64_t times_of(const HfNumberRow& row, const HfArchitecture& a) {
  return row.times.empty() ? 1 : value_of(a, row.times).get<std::int64_t>();
}

bool only_of_experts(std::string_view key) {
  return key.starts_with("moe.") && key != "moe.experts";
}

bool is_idle(const HfArchitecture& a, std::string_view key) {
  return (a.moe_experts == 0 && only_of_experts(key)) ||
         (a.moe_groups == 1 && key == "moe.group_score");
}

std::int64_t dynamic_context(const HfArchitecture& a) {
  return static_cast<std::int64_t>(a.rope_factor * static_cast<double>(a.rope_original_context));
}

}  // namespace tessera::io
