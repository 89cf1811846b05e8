// What reading and writing a config.json have in common: families by their names, and keys of an
// architecture by theirs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/hf_config.hpp"
#include "io/hf_families.hpp"

namespace tessera::io {

/// The rows of a name, in the order of the table.
std::vector<const HfFamily*> find_families(std::string_view HfFamily::*name,
                                           std::string_view value);
/// All names, for people.
std::string allowed_families(std::string_view HfFamily::*name);

const HfField& field_of(std::string_view key);
/// The value of a field, as JSON.
nlohmann::json value_of(const HfArchitecture& architecture, std::string_view key);

/// By how much a key is above a row's setting, and what the setting is multiplied with.
std::int64_t beside_of(const HfNumberRow& row, const HfArchitecture& a);
std::int64_t times_of(const HfNumberRow& row, const HfArchitecture& a);

/// Whether a key says something of experts beside how many there are, and so nothing where there
/// are none.
bool only_of_experts(std::string_view key);
/// Whether a key says nothing of a model: of experts or groups of them that there are not.
bool is_idle(const HfArchitecture& a, std::string_view key);

/// The longest sequences that dynamic frequencies are meant for.
std::int64_t dynamic_context(const HfArchitecture& a);

}  // namespace tessera::io
