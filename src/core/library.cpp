#include "core/library.hpp"

#include <dlfcn.h>

#include "core/error.hpp"

namespace tessera {

Library::Library(std::string file)
    : file_(std::move(file)),
      handle_(dlopen(file_.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
  if (handle_ == nullptr) {
    throw DeviceError(
        fmt::format("{} cannot be opened: {}; set LD_LIBRARY_PATH to its directory, or load the "
                    "machine's CUDA module",
                    file_, dlerror()));
  }
}

Library::~Library() { dlclose(handle_); }

void* Library::address_of(const char* name) const {
  void* address = dlsym(handle_, name);
  if (address == nullptr) {
    throw DeviceError(
        fmt::format("{} has no function {}: {}; a newer version of the library is needed", file_,
                    name, dlerror()));
  }
  return address;
}

}  // namespace tessera
