// The model directories of tests/data/hf, for tests that are built with TESSERA_SOURCE_DIR.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

#include "support/temporary_directory.hpp"

namespace tessera::test {

inline std::filesystem::path data_path(std::string_view name) {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "tests/data/hf" / name;
}

/// Puts a file of JSON through `change`.
inline void edit_json(const std::filesystem::path& file,
                      const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json content = nlohmann::json::parse(read_file(file));
  change(content);
  write_file(file, content.dump());
}

}  // namespace tessera::test
