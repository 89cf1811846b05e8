// Which tensor of a Hugging Face model holds which parameter of Tessera's: one table for import and
// export.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/hf_config.hpp"

namespace tessera::io {

/// A parameter and its place in a tensor. GPT-2 stores (in, out) matrices, the transpose of ours,
/// and q, k and v side by side in one tensor: ours is then the columns [first, first + rows).
struct HfTensor {
  std::string parameter;
  std::vector<std::int64_t> shape;  // of the parameter, row-major
  std::string tensor;               // in the file
  bool transposed = false;
  std::int64_t part = 0;  // of `parts` equal ones along our first axis
  std::int64_t parts = 1;

  std::int64_t elements() const;
  /// The shape of the whole tensor in the file.
  std::vector<std::int64_t> stored_shape() const;
};

/// Every parameter, in the order of the model; parts of one tensor are adjacent. The rotate-half
/// order of q and k within a head is kept as Hugging Face has it.
std::vector<HfTensor> hf_tensors(const HfArchitecture& architecture);

/// What transformers puts before the names of the model without its head; files made from that
/// model alone leave it out.
std::string_view hf_prefix(const HfArchitecture& architecture);

/// The output matrix: a parameter of untied models alone, but files of tied ones may hold it too.
HfTensor hf_head(const HfArchitecture& architecture);

/// Tensors that files may hold and that are no parameters: masks and tables that are computed.
bool hf_ignored(std::string_view tensor);

}  // namespace tessera::io
