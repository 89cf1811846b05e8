// Shared libraries opened when they are needed: the program starts, and starts quickly, on machines
// that have no GPU and none of its libraries.
#pragma once

#include <string>

namespace tessera {

/// An open shared library. It is opened where it is found by the loader's rules (LD_LIBRARY_PATH,
/// ld.so.conf) and stays in memory until the process ends, since functions of it may be kept by
/// others. Throws DeviceError, which says what to do.
class Library {
 public:
  /// `file` as the loader knows it, such as "libcublasLt.so.13".
  explicit Library(std::string file);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  /// The function of that name; `F` is decltype(&function).
  template <typename F>
  F symbol(const char* name) const {
    return reinterpret_cast<F>(address_of(name));
  }
  void* handle() const { return handle_; }

 private:
  void* address_of(const char* name) const;

  std::string file_;
  void* handle_;
};

}  // namespace tessera

/// A member that holds function `name` of the member `library`, for the table of a library:
///     struct Nccl {
///       Library library{"libnccl.so.2"};
///       TESSERA_SYMBOL(ncclAllGather)
///     };
// NOLINTNEXTLINE(bugprone-macro-parentheses): the name of a member has none
#define TESSERA_SYMBOL(name) decltype(&::name) name = library.symbol<decltype(&::name)>(#name);
