// Which way the MPI library has chosen for its messages, as far as it says so: fast networks are
// left unused when the library, or its plugin for them, is not the right one.
#pragma once

#include <span>
#include <string>

namespace tessera::comm {

/// As "Open MPI v4.1.4: ob1 over tcp, vader", after MPI_Init. Open MPI has control variables
/// (MPI-3, chapter 14) of those components alone that are in use; MPICH names its device; of other
/// libraries only the name is known.
std::string fabric();

/// The same of what a library calls itself, and of the names of its control variables.
std::string fabric_of(const std::string& library, std::span<const std::string> variables);

}  // namespace tessera::comm
