#include "comm/mpi/fabric.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <set>
#include <string_view>
#include <vector>

#include "comm/mpi/calls.hpp"

namespace tessera::comm {
namespace {

/// Names of the control variables that can be read now; none from a library that does not say: no
/// run fails for it.
std::vector<std::string> control_variables() {
  int provided = 0, count = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return {};
  if (MPI_T_cvar_get_num(&count) != MPI_SUCCESS) count = 0;
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    std::array<char, 256> name{};
    int length = name.size(), verbosity = 0, no_text = 0, binding = 0, scope = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    // An error is of a variable that has gone with its component.
    if (MPI_T_cvar_get_info(i, name.data(), &length, &verbosity, &type, nullptr, nullptr, &no_text,
                            &binding, &scope) == MPI_SUCCESS)
      names.emplace_back(name.data());
  }
  MPI_T_finalize();
  return names;
}

/// The components of one of Open MPI's frameworks, whose variables begin with both names.
std::set<std::string> components(std::string_view framework,
                                 std::span<const std::string> variables) {
  std::set<std::string> found;
  for (const std::string& variable : variables) {
    if (!variable.starts_with(framework) || variable.size() <= framework.size() ||
        variable[framework.size()] != '_')
      continue;
    const std::string rest = variable.substr(framework.size() + 1);
    if (const auto end = rest.find('_'); end != std::string::npos)
      found.insert(rest.substr(0, end));
  }
  found.erase("base");  // the framework itself
  return found;
}

std::string open_mpi_fabric(std::span<const std::string> variables) {
  const auto messages = components("pml", variables);
  std::string text = fmt::format("{}", fmt::join(messages, ", "));
  auto below = messages.contains("cm")    ? components("mtl", variables)
               : messages.contains("ob1") ? components("btl", variables)
                                          : std::set<std::string>();
  below.erase("self");  // of a rank to itself
  if (!below.empty()) text += fmt::format(" over {}", fmt::join(below, ", "));
  return text;
}

/// What follows `name` in its line.
std::string value_of(std::string_view name, const std::string& text) {
  const std::size_t at = text.find(name);
  if (at == std::string::npos) return "";
  const std::size_t begin = text.find_first_not_of(" \t", at + name.size());
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace

Fabric fabric_of(const std::string& library, std::span<const std::string> variables) {
  Fabric first_line{.library = library.substr(0, library.find('\n')), .way = {}};
  if (first_line.is_open_mpi())
    return {.library = library.substr(0, library.find(',')), .way = open_mpi_fabric(variables)};
  if (const std::string version = value_of("MPICH Version:", library); !version.empty())
    return {.library = "MPICH " + version, .way = value_of("MPICH Device:", library)};
  return first_line;
}

Fabric fabric() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_TRY(MPI_Get_library_version(text.data(), &length));
  const std::string library(text.data(), static_cast<std::size_t>(length));
  Fabric named = fabric_of(library, {});
  // Others are not asked: their variables would say nothing, and MPICH 4.0 crashes after MPI_Init.
  return named.is_open_mpi() ? fabric_of(library, control_variables()) : named;
}

}  // namespace tessera::comm
