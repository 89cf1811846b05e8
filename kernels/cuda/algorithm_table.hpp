// Which of the library's algorithms each product uses, and which products are computed in parts, as
// text: one rank chooses, all ranks and all restarts of a run use what it chose, because anything
// else may mean other bits.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/cuda/apart.hpp"

namespace tessera::kernels::cuda {

/// A choice holds for one version of the library, one kind of GPU and one driver, which may run the
/// same algorithm at another speed.
struct GemmMachine {
  std::int64_t library = 0;  // cublasLtGetVersion()
  std::string gpu;
  int major = 0, minor = 0;  // compute capability
  int driver = 0;            // the CUDA version that the oldest driver of all ranks serves

  bool operator==(const GemmMachine&) const = default;
};

using Algorithm = std::array<std::uint8_t, 64>;  // cublasLtMatmulAlgo_t

struct AlgorithmTable {
  GemmMachine machine;
  std::map<GemmKey, Algorithm> chosen;
  Apart apart;  // what is faster in parts; the product that is left of each is one of its own

  bool operator==(const AlgorithmTable&) const = default;
};

/// A header of five lines, then one line a product.
std::string to_text(const AlgorithmTable& table);

/// What to_text wrote; nothing when it is of another format version or another machine, so that the
/// choice is to be made again. Throws DataError, naming `file` and line, for anything else.
std::optional<AlgorithmTable> parse_algorithms(std::string_view text, std::string_view file,
                                               const GemmMachine& machine);

}  // namespace tessera::kernels::cuda
