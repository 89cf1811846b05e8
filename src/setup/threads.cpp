#include "setup/threads.hpp"

#include <omp.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "core/error.hpp"
#include "core/thread.hpp"

namespace tessera::setup {

int thread_count(const deck::RunSection& run, int cores) {
  if (run.threads) return static_cast<int>(*run.threads);
  const char* text = std::getenv("OMP_NUM_THREADS");
  if (text == nullptr || *text == '\0') return cores;
  constexpr std::string_view kBlank = " \t";
  constexpr int kMost = 4096;
  const std::string_view all(text);
  std::string_view first = all.substr(0, all.find(','));  // of a list for nested levels
  first.remove_prefix(std::min(first.find_first_not_of(kBlank), first.size()));
  first = first.substr(0, first.find_last_not_of(kBlank) + 1);
  int threads = 0;
  const char* const begin = first.data();
  const char* const end = begin + first.size();
  const auto [stop, error] = std::from_chars(begin, end, threads);
  if (error == std::errc() && stop == end && threads >= 1 && threads <= kMost) return threads;
  throw DeckError(fmt::format(
      "OMP_NUM_THREADS = \"{}\" in the environment is no number of threads: give 1 to {}, or "
      "unset it, or set run.threads",
      all, kMost));
}

void use_threads(int threads) {
  omp_set_num_threads(threads);
  check_threads(threads - 1);
  int started = 0;
#pragma omp parallel reduction(+ : started)
  ++started;
  TESSERA_CHECK(started > 0, "OpenMP has no threads");
}

}  // namespace tessera::setup
