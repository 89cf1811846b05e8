// Programs and libraries that runs use: which, in what version, and where they are.
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>

#include "backend/gpus.hpp"
#include "comm/launcher.hpp"
#include "comm/mpi/fabric.hpp"
#include "core/bytes.hpp"
#include "core/library.hpp"
#include "io/file.hpp"
#include "io/hdf5.hpp"
#include "verbs/doctor/doctor.hpp"

namespace tessera::verbs {
namespace {

namespace fs = std::filesystem;

/// The file that has this address: a library, or the program.
std::string file_with(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "?";
}

std::vector<Finding> mpi_library(const Subject&) {
  return {{.what = fmt::format("{}, {}", comm::fabric().library,
                               file_with(dlsym(RTLD_DEFAULT, "MPI_Init_thread")))}};
}

/// How ranks learn of each other, by what their launcher has put into the environment.
std::vector<Finding> launcher(const Subject& subject) {
  struct Pmi {
    const char *variable, *name;
  };
  constexpr Pmi kInterfaces[] = {{"PMIX_RANK", "PMIx"}, {"PMI_RANK", "PMI"}};
  const comm::Launch launch = comm::launch_of_process();
  std::string kind = "none: this process is alone";
  for (const Pmi& pmi : kInterfaces) {
    // Open MPI sets such variables in a process that is alone, too.
    if (launch.launcher.empty() || std::getenv(pmi.variable) == nullptr) continue;
    kind = pmi.name;
    break;
  }
  return {{.what = fmt::format("{}; PMI: {}; {} on {}",
                               launch.launcher.empty() ? "started by hand" : launch.launcher, kind,
                               count_text(subject.job.mpi.size(), "rank"),
                               count_text(subject.job.mpi.job().nodes, "node"))}};
}

std::vector<std::string> names_in(const char* directory) {
  std::vector<std::string> names;
  std::error_code ignored;  // not there: none
  for (const auto& entry : fs::directory_iterator(directory, ignored))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

/// Which way messages go, beside the networks that there are.
std::vector<Finding> fabric(const Subject& subject) {
  const std::string way = comm::fabric().way;
  const auto adapters = names_in("/sys/class/infiniband");
  const bool fast =
      std::ranges::any_of(std::array{"ucx", "ofi", "psm2", "openib", "mxm", "usnic"},
                          [&](const char* component) { return way.find(component) != way.npos; });
  Finding finding{.what = fmt::format(
                      "messages by {}; adapters: {}", way.empty() ? "what MPI does not say" : way,
                      adapters.empty() ? "no InfiniBand or RoCE"
                                       : fmt::format("{}", fmt::join(adapters, ", ")))};
  if (!adapters.empty() && !way.empty() && !fast && subject.job.mpi.job().nodes > 1) {
    finding.health = Health::poor;
    finding.fix =
        "MPI leaves the faster network unused: take an MPI library that is built with UCX or "
        "libfabric (the machine's module), or select it: OMPI_MCA_pml=ucx";
  }
  return {finding};
}

/// A program's path as a shell would find it; empty if it is not there.
std::string find_program(std::string_view name) {
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "" : path;
  while (!rest.empty()) {
    const std::string_view directory = rest.substr(0, rest.find(':'));
    rest.remove_prefix(std::min(rest.size(), directory.size() + 1));
    const fs::path candidate = fs::path(directory) / name;
    std::error_code ignored;
    if (fs::is_regular_file(candidate, ignored)) return candidate.string();
  }
  return "";
}

/// The first line that a command prints.
std::string first_line_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "re"), pclose);
  char line[256] = "";
  if (!pipe || std::fgets(line, sizeof line, pipe.get()) == nullptr) return "?";
  const std::string text(line);
  return text.substr(0, text.find('\n'));
}

/// Where Slurm has its plug-ins: what its configuration says, or the usual places.
std::string plugin_directory() {
  const char* own = std::getenv("SLURM_CONF");
  std::ifstream configuration(own != nullptr ? own : "/etc/slurm/slurm.conf");
  for (std::string line; std::getline(configuration, line);) {
    constexpr std::string_view kKey = "PluginDir=";
    if (line.starts_with(kKey)) return line.substr(kKey.size(), line.find(':') - kKey.size());
  }
  for (const char* usual : {"/usr/lib64/slurm", "/usr/lib/x86_64-linux-gnu/slurm-wlm",
                            "/usr/lib/slurm", "/usr/local/lib/slurm", "/opt/slurm/lib/slurm"}) {
    if (!names_in(usual).empty()) return usual;
  }
  return "";
}

std::vector<Finding> slurm(const Subject&) {
  const std::string srun = find_program("srun");
  if (srun.empty()) return {};
  const std::string directory = plugin_directory();
  std::vector<std::string> plugins;
  for (const std::string& name : names_in(directory.c_str())) {
    if (name.starts_with("mpi_") && name.ends_with(".so"))
      plugins.push_back(name.substr(4, name.size() - 7));
  }
  const std::string version = first_line_of("'" + srun + "' --version 2>&1");
  Finding finding{
      .what = fmt::format("{}, {}; MPI plug-ins in {}: {}", version, srun,
                          directory.empty() ? "no place that is known" : directory,
                          plugins.empty() ? "none" : fmt::format("{}", fmt::join(plugins, ", ")))};
  if (!version.starts_with("slurm")) {
    finding.health = Health::poor;
    finding.fix =
        "have slurm.conf on this node, or SLURM_CONF name it; without a cluster mpirun "
        "is enough";
    return {finding};
  }
  const std::string wanted = comm::fabric().is_open_mpi() ? "pmix" : "pmi2";
  const bool there = std::ranges::any_of(
      plugins, [&](const std::string& name) { return name.starts_with(wanted); });
  if (!directory.empty() && !there) {
    finding.health = Health::poor;
    finding.fix = fmt::format(
        "srun --mpi={0} is what this MPI library understands: have Slurm's "
        "plug-in mpi_{0} installed on all nodes, or start with mpirun "
        "within the job",
        wanted);
  }
  return {finding};
}

std::vector<Finding> hdf5_library(const Subject&) {
  unsigned major = 0, minor = 0, release = 0;
  H5_TRY(H5get_libversion(&major, &minor, &release));
  return {{.what = fmt::format("{}.{}.{}, in {}", major, minor, release,
                               file_with(reinterpret_cast<const void*>(&H5get_libversion)))}};
}

// --- What GPUs need ----------------------------------------------------------------------------

std::string in_tens(std::size_t v) { return fmt::format("{}.{}", v / 1000, v % 1000 / 10); }
std::string in_hundreds(std::size_t v) {
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

struct GpuLibrary {
  const char *name, *file, *version_of;
  bool by_argument;  // int f(int*), else size_t f()
  std::string (*text)(std::size_t version);
  bool of_one_rank = true;  // else only several ranks need it
};
constexpr GpuLibrary kGpuLibraries[] = {
    {"CUDA driver", "libcuda.so.1", "cuDriverGetVersion", true, in_tens},
    {"CUDA runtime", "libcudart.so.13", "cudaRuntimeGetVersion", true, in_tens},
    {"cuBLASLt", "libcublasLt.so.13", "cublasLtGetVersion", false, in_hundreds},
    {"cuDNN", "libcudnn.so.9", "cudnnGetVersion", false, in_hundreds},
    {"NCCL", "libnccl.so.2", "ncclGetVersion", true, in_hundreds, false}};

Finding look_at(const GpuLibrary& row, bool one_rank) {
  try {
    const Library library(row.file);
    std::size_t version = 0;
    const void* address = nullptr;
    if (row.by_argument) {
      auto* f = library.symbol<int (*)(int*)>(row.version_of);
      int number = 0;
      f(&number);
      version = static_cast<std::size_t>(number), address = reinterpret_cast<const void*>(f);
    } else {
      auto* f = library.symbol<std::size_t (*)()>(row.version_of);
      version = f(), address = reinterpret_cast<const void*>(f);
    }
    return {.what = fmt::format("{}, {}", row.text(version), file_with(address)), .name = row.name};
  } catch (const DeviceError& e) {
    const bool needed = row.of_one_rank || !one_rank;
    return {.health = needed ? Health::broken : Health::poor,
            .what = fmt::format("{}{}", e.what(), needed ? "" : "; runs on several GPUs need it"),
            .fix =
                "set LD_LIBRARY_PATH to the library's directory or load the machine's module; "
                "run.backend = \"cpu\" needs none",
            .code = needed ? e.exit_code() : ExitCode::ok,
            .name = row.name};
  }
}

std::vector<Finding> gpu_software(const Subject& subject) {
  const int gpus = subject.gpus();
  if (gpus == 0) return {{.what = "no NVIDIA GPU on this node: runs compute on its cores"}};
  const auto backend = subject.deck ? subject.deck->run.backend : deck::Backend::automatic;
  if (backend != deck::Backend::automatic && backend != deck::Backend::cuda) {
    return {{.what = fmt::format("{}; the deck's run.backend = \"{}\" uses none",
                                 count_text(gpus, "NVIDIA GPU"), enum_word(backend))}};
  }
  std::vector<Finding> findings{{.what = count_text(gpus, "NVIDIA GPU")}};
  for (const GpuLibrary& row : kGpuLibraries)
    findings.push_back(look_at(row, subject.job.mpi.size() == 1));
  return findings;
}

constexpr NodeCheck kSoftwareChecks[] = {{"MPI", mpi_library},   {"launcher", launcher},
                                         {"fabric", fabric},     {"Slurm", slurm},
                                         {"GPUs", gpu_software}, {"HDF5", hdf5_library}};

}  // namespace

int Subject::gpus() const { return backend::nvidia_gpus(); }

std::span<const NodeCheck> software_checks() { return kSoftwareChecks; }

}  // namespace tessera::verbs
