// What a fuzzed format gives, and what the fuzzer and its replay make of it. A target is one small
// file that defines kRefusal and read().
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

#include "core/error.hpp"

namespace tessera::fuzz {

/// What a file of the format may be refused with: nothing else may leave the parser.
extern const ExitCode kRefusal;

/// Reads `input` as a file of the format, and all that it promises; throws what the product throws.
void read(const std::string& input);

/// Reads; false if it was refused with kRefusal. Whatever else is thrown passes.
bool accepts(std::string_view input);

/// Does what may not fail once the input was accepted: an Error becomes an InternalError.
template <typename Action>
auto certainly(const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    throw InternalError(fmt::format("of an accepted input: {}", error.what()));
  }
}

}  // namespace tessera::fuzz
