// Which way the MPI library has chosen for its messages, as far as it says so: fast networks are
// left unused when the library, or its plugin for them, is not the right one.
#pragma once

#include <span>
#include <string>

namespace tessera::comm {

struct Fabric {
  std::string library;  // "Open MPI v4.1.4"
  std::string way;      // "ob1 over tcp, vader"; empty where the library does not say

  bool is_open_mpi() const { return library.starts_with("Open MPI"); }
  /// "Open MPI v4.1.4: ob1 over tcp, vader"
  std::string text() const { return way.empty() ? library : library + ": " + way; }
};

/// That of this process, after MPI_Init. Open MPI has control variables (MPI-3, chapter 14) of
/// those components alone that are in use; MPICH names its device; of other libraries only the name
/// is known.
Fabric fabric();

/// The same of what a library calls itself, and of the names of its control variables.
Fabric fabric_of(const std::string& library, std::span<const std::string> variables);

}  // namespace tessera::comm
