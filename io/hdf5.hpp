// HDF5's C interface made safe: identifiers that close themselves and calls that throw. HDF5 is not
// thread-safe here: one thread of a process at a time may use it.
#pragma once

#include <hdf5.h>

#include <string_view>
#include <utility>

#include "core/dtype.hpp"

namespace tessera::io {

/// Throws IoError with the failed call's text and HDF5's own explanation.
[[noreturn]] void hdf5_failed(std::string_view call);

template <typename Result>
Result hdf5_checked(Result result, std::string_view call) {
  if (result < 0) hdf5_failed(call);
  return result;
}

/// H5_TRY(H5Fclose(id)): the call's result, or an IoError.
#define H5_TRY(call) ::tessera::io::hdf5_checked((call), #call)

/// Owns an identifier; kClose is the H5?close function of its kind.
template <herr_t (*kClose)(hid_t)>
class H5Id {
 public:
  explicit H5Id(hid_t id) : id_(id) {}
  H5Id(H5Id&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  H5Id& operator=(H5Id&&) = delete;
  ~H5Id() {
    if (id_ >= 0) kClose(id_);
  }

  operator hid_t() const { return id_; }
  /// The destructor cannot report a failure; whoever wrote through this identifier calls close().
  void close() {
    hdf5_checked(kClose(std::exchange(id_, H5I_INVALID_HID)), "closing an identifier");
  }

 private:
  hid_t id_;
};

using H5File = H5Id<H5Fclose>;
using H5Dataset = H5Id<H5Dclose>;
using H5Space = H5Id<H5Sclose>;
using H5Type = H5Id<H5Tclose>;
using H5List = H5Id<H5Pclose>;
using H5Attribute = H5Id<H5Aclose>;

/// Creates a file, or replaces one. Its I/O goes through io/'s File (hdf5_driver.hpp): no lock is
/// taken (a lock fails on many parallel file systems, and a checkpoint being written has one writer
/// a file), and HDF5 prints nothing on errors.
H5File hdf5_create(const char* path);

/// How elements lie in the file, little-endian: f32; f16 as a 2-byte IEEE float; bf16, which HDF5
/// does not know, as 16 unsigned bits.
H5Type hdf5_type(DType type);

/// Says in the attribute "dtype" what the elements are: f32, f16 or bf16.
void hdf5_name_type(hid_t dataset, DType type);

}  // namespace tessera::io
