#include "comm/mpi/calls.hpp"

#include <string_view>

#include "core/error.hpp"
#include "core/limits.hpp"

namespace tessera::comm {

void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  const auto message =
      fmt::format("{}: {}", call, std::string_view(text, static_cast<std::size_t>(length)));
  int kind = MPI_ERR_OTHER;
  MPI_Error_class(code, &kind);
  if (kind == MPI_ERR_NO_MEM) throw MemoryError(fmt::format("{}; {}", message, why_no_memory()));
  throw CommError(message);
}

}  // namespace tessera::comm
