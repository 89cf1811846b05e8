// replay SEED... [--found FILE...]: reads files as the fuzzer would. Seeds must be accepted: of a
// refused one the fuzzer learns little. What a fuzzer once found may be refused or accepted, but
// costs no large allocation.
#include <cstdio>
#include <span>

#include "support/temporary_directory.hpp"
#include "target.hpp"
#include "unit/io/largest_allocation.hpp"

namespace {

constexpr std::size_t kLargestAllocation = std::size_t{16} << 20;  // tools/fuzz allows as much

/// What is wrong with how the file was read; empty if nothing is.
std::string problem(const std::string& file, bool seed) {
  const std::string bytes = tessera::test::read_file(file);
  tessera::test::reset_largest_allocation();
  try {
    if (!tessera::fuzz::accepts(bytes) && seed) return "refused";
  } catch (const std::exception& error) {
    return error.what();
  }
  const std::size_t largest = tessera::test::largest_allocation();
  return largest > kLargestAllocation ? fmt::format("{} bytes at once", largest) : "";
}

}  // namespace

int main(int count, char** arguments) {
  bool seed = true;
  int wrong = 0;
  for (const std::string file : std::span(arguments, static_cast<std::size_t>(count)).subspan(1)) {
    if (file == "--found") {
      seed = false;
    } else if (const std::string what = problem(file, seed); !what.empty()) {
      fmt::print("{}: {}\n", file, what);
      ++wrong;
    }
  }
  return wrong == 0 ? 0 : 1;
}
