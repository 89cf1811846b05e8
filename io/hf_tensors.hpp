// Which tensor of a Hugging Face model holds which parameter of Tessera's: one table for import and
// export.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "io/hf_config.hpp"

namespace tessera::io {

/// A parameter and its place in a tensor, of which it may be a part. Our row r is the stored row
/// first + (r / block) stride + r % block; where the matrix is stored as its transpose (GPT-2), the
/// column.
struct HfTensor {
  std::string parameter;
  std::vector<std::int64_t> shape;  // of the parameter, row-major
  std::string tensor;               // in the file
  bool transposed = false;
  std::int64_t first = 0;
  std::int64_t block = 0;        // rows that stay together; all of them where the part is one piece
  std::int64_t stride = 0;       // from one block to the next
  std::int64_t stored_rows = 0;  // of the whole tensor
  /// The file has the parameter less one (norms of Gemma, whose factor is 1 + weight in f32, which
  /// is what a parameter is). Going back loses what the difference cannot hold: nothing where the
  /// parameter is 1/2 or more, else half a unit in the last place of a number below 1, 2^-25.
  bool less_one = false;
  std::int64_t zeros = 0;  // rows of zeros before its first, which reading leaves out
  /// A tensor of `added_rows` rows of which the first is added to each row here; going back it is
  /// zeros.
  std::string added;
  std::int64_t added_rows = 0;  // as written; files may have another number of them
  std::optional<DType> type;    // of the tensor, whatever the file's is

  std::int64_t elements() const;
  std::int64_t rows() const { return shape[0]; }
  std::int64_t cols() const { return elements() / shape[0]; }
  std::int64_t stored_row(std::int64_t row) const {
    return first + row / block * stride + row % block;
  }
  /// The shape of the whole tensor in the file.
  std::vector<std::int64_t> stored_shape() const;
  /// An element on the way back from a file of `file_type`.
  float as_stored(float value, DType file_type) const;
};

/// Every parameter, in the order of the model; parts of one tensor are adjacent. The rotate-half
/// order of q and k within a head is kept as Hugging Face has it.
std::vector<HfTensor> hf_tensors(const HfArchitecture& architecture);

/// What transformers puts before the names of the model without its head; files made from that
/// model alone leave it out.
std::string_view hf_prefix(const HfArchitecture& architecture);

/// Parameters that files may hold a second time under the names here: the embedding of tied models
/// as an output matrix.
std::vector<HfTensor> hf_copies(const HfArchitecture& architecture);

/// Tensors that files may hold and that are no parameters: masks and tables that are computed.
bool hf_ignored(std::string_view tensor);

/// Whether a tensor is of a head that the model does without, or of so many layers behind its last.
bool hf_other_head(const HfArchitecture& architecture, std::string_view tensor,
                   std::int64_t further_layers);

/// The name that transformers now gives a tensor of this name.
std::string hf_current_name(std::string_view tensor);

}  // namespace tessera::io
