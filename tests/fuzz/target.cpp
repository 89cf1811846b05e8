#include "target.hpp"

#include <cstddef>
#include <cstdint>

namespace tessera::fuzz {

bool accepts(std::string_view input) {
  try {
    read(std::string(input));
    return true;
  } catch (const Error& error) {
    if (error.exit_code() != kRefusal) throw;
    return false;
  }
}

}  // namespace tessera::fuzz

/// What libFuzzer calls; an exception that leaves it ends the program, which is a finding.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  tessera::fuzz::accepts({reinterpret_cast<const char*>(data), size});
  return 0;
}
