#include "io/hdf5.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <string>

#include "core/error.hpp"
#include "core/limits.hpp"
#include "io/hdf5_driver.hpp"

namespace tessera::io {

static_assert(std::endian::native == std::endian::little, "elements are written as they lie");

void hdf5_failed(std::string_view call) {
  struct Cause {  // as the innermost function saw it
    std::array<char, 8192> text{};
    bool memory = false;
  } cause;
  const auto note_first = [](unsigned depth, const H5E_error2_t* error, void* out) -> herr_t {
    if (depth > 0) return 0;
    auto& first = *static_cast<Cause*>(out);
    first.memory = error->maj_num == H5E_RESOURCE && error->min_num == H5E_NOSPACE;
    if (error->desc != nullptr)
      std::snprintf(first.text.data(), first.text.size(), "%s", error->desc);
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, note_first, &cause);
  std::string reason = cause.text.data();
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  if (cause.memory)
    throw MemoryError(fmt::format("HDF5: {} failed: {}; {}", call, reason, why_no_memory()));
  throw IoError(fmt::format("HDF5: {} failed: {}", call, reason));
}

H5File hdf5_create(const char* path) {
  // Everything is closed by its owner. The library's own clean-up at exit would close a file again
  // whose closing failed on a full disk, and crash.
  [[maybe_unused]] static const herr_t no_clean_up = H5dont_atexit();
  H5_TRY(H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr));
  const H5List access(H5_TRY(H5Pcreate(H5P_FILE_ACCESS)));
  hdf5_use_file_driver(access);
  H5_TRY(H5Pset_fclose_degree(access, H5F_CLOSE_SEMI));  // closing with open objects fails
  H5_TRY(H5Pset_alignment(access, 4096, 4096));
  const hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
  if (file < 0) hdf5_failed(fmt::format("H5Fcreate({})", path));
  return H5File(file);
}

H5Type hdf5_type(DType type) {
  switch (type) {
    case DType::f32: return H5Type(H5_TRY(H5Tcopy(H5T_IEEE_F32LE)));
    case DType::bf16: return H5Type(H5_TRY(H5Tcopy(H5T_STD_U16LE)));
    case DType::f16: {
      H5Type half(H5_TRY(H5Tcopy(H5T_IEEE_F32LE)));
      H5_TRY(H5Tset_fields(half, /*sign=*/15, /*exponent=*/10, 5, /*mantissa=*/0, 10));
      H5_TRY(H5Tset_size(half, 2));
      H5_TRY(H5Tset_ebias(half, 15));
      return half;
    }
    default: break;
  }
  throw InternalError(fmt::format("no HDF5 type for {}", to_string(type)));
}

void hdf5_name_type(hid_t dataset, DType type) {
  const std::string word(to_string(type));
  const H5Type text(H5_TRY(H5Tcopy(H5T_C_S1)));
  H5_TRY(H5Tset_size(text, word.size()));
  const H5Space scalar(H5_TRY(H5Screate(H5S_SCALAR)));
  const H5Attribute attribute(
      H5_TRY(H5Acreate2(dataset, "dtype", text, scalar, H5P_DEFAULT, H5P_DEFAULT)));
  H5_TRY(H5Awrite(attribute, text, word.data()));
}

}  // namespace tessera::io
