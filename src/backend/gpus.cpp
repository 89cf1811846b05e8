#include "backend/gpus.hpp"

#include "core/error.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <fstream>

namespace tessera::backend {
namespace {

namespace fs = std::filesystem;

std::string first_word(const fs::path& file) {
  std::ifstream in(file);
  in.exceptions(std::ios::badbit);  // throws if memory runs out
  std::string word;
  in >> word;
  return word;
}

}  // namespace

int nvidia_gpus(const fs::path& root) {
  int count = 0;
  std::error_code ignored;  // no PCI bus, no GPUs
  for (const auto& device : fs::directory_iterator(root / "sys/bus/pci/devices", ignored)) {
    const bool nvidia = first_word(device.path() / "vendor") == "0x10de";
    // Class 3 is display controllers; data-centre GPUs call themselves 3D controllers.
    count += nvidia && first_word(device.path() / "class").starts_with("0x03") ? 1 : 0;
  }
  return count;
}

std::vector<int> cores_near(const std::string& bus_id, const fs::path& root) {
  std::vector<int> cores;
  const std::string list = first_word(root / "sys/bus/pci/devices" / bus_id / "local_cpulist");
  for (const char *at = list.data(), *end = at + list.size(); at < end;) {
    int first = 0, last = 0;
    auto read = std::from_chars(at, end, first);
    if (read.ec != std::errc{}) return {};
    last = first;
    if (read.ptr < end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
      if (read.ec != std::errc{} || last - first > 1 << 16) return {};
    }
    for (int core = first; core <= last; ++core) cores.push_back(core);
    at = read.ptr + 1;  // past the comma
  }
  return cores;
}

void check_presence(std::span<const std::string> absences) {
  const auto lacks = [](const std::string& absence) { return !absence.empty(); };
  const auto first = std::ranges::find_if(absences, lacks);
  if (first == absences.end()) return;
  const auto count = std::ranges::count_if(absences, lacks), all = std::ssize(absences);
  if (count == all) {
    throw DeckError(fmt::format(
        "{}: run on nodes with GPUs and ask Slurm for them (srun --gpus-per-node=N), or set "
        "run.backend = \"cpu\"",
        *first));
  }
  throw DeviceError(fmt::format(
      "rank {}: {}, while {} of {} ranks have one: leave this node out (sbatch --exclude), or ask "
      "Slurm for GPUs on every node (--gpus-per-node=N)",
      first - absences.begin(), *first, all - count, all));
}

std::string GpuOfRank::text() const { return host + '|' + bus_id + '|' + name; }

GpuOfRank GpuOfRank::parse(const std::string& text) {
  const auto first = text.find('|'), second = text.find('|', first + 1);
  return {.host = text.substr(0, first),
          .bus_id = text.substr(first + 1, second - first - 1),
          .name = text.substr(second + 1)};
}

std::optional<std::string> objection(std::span<const GpuOfRank> ranks, bool shared) {
  std::map<std::pair<std::string, std::string>, std::size_t> rank_of;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    if (ranks[r].name != ranks[0].name) {
      return fmt::format(
          "rank 0 has a {} on {}, rank {} a {} on {}: a job needs GPUs of one type; ask Slurm for "
          "them by --constraint or --gpus-per-node=TYPE:N",
          ranks[0].name, ranks[0].host, r, ranks[r].name, ranks[r].host);
    }
    const auto [other, first] = rank_of.try_emplace({ranks[r].host, ranks[r].bus_id}, r);
    if (first || shared) continue;
    return fmt::format(
        "ranks {} and {} have the same GPU of {}, or slices of it: start as many ranks on a node "
        "as it has GPUs (--ntasks-per-node with --gpus-per-node)",
        other->second, r, ranks[r].host);
  }
  return std::nullopt;
}

std::vector<std::string> attention_text(std::span<const AttentionAnswers> ranks) {
  struct Answer {
    std::size_t rank = 0;
    std::string refusal;
    std::string text() const { return refusal.empty() ? "cuDNN" : "own kernel: " + refusal; }
  };
  std::map<std::string, Answer> all;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (const auto& [shape, refusal] : ranks[r]) {
      const auto& first = all.try_emplace(shape, Answer{r, refusal}).first->second;
      if (first.refusal.empty() == refusal.empty()) continue;
      throw DeviceError(
          fmt::format("{}: rank {} uses {}, rank {} {}; nodes need the same cuDNN and driver",
                      shape, first.rank, first.text(), r, Answer{r, refusal}.text()));
    }
  }
  std::vector<std::string> lines;
  for (const auto& [shape, answer] : all)
    lines.push_back(fmt::format("{}: {}", shape, answer.text()));
  return lines;
}

bool multiplies_fp8(int major, int minor) { return major > 8 || (major == 8 && minor >= 9); }

std::optional<std::string> fp8_objection(const std::string& host, const std::string& name,
                                         int major, int minor) {
  if (multiplies_fp8(major, minor)) return std::nullopt;
  return fmt::format(
      "{} has a {} of compute capability {}.{}: precision.matmul = \"fp8\" needs 8.9 (L40S, H100) "
      "or newer; ask Slurm for such GPUs (--constraint, --gpus-per-node=TYPE:N), or set "
      "precision.matmul = \"same\"",
      host, name, major, minor);
}

double peak_rate(const std::string& name) {
  // NVIDIA's data sheets, without sparsity. A name that begins another's comes after it.
  constexpr std::array<std::pair<std::string_view, double>, 14> kRates = {{{"A100", 312e12},
                                                                           {"A800", 312e12},
                                                                           {"A30", 165e12},
                                                                           {"A40", 149.7e12},
                                                                           {"L40S", 362e12},
                                                                           {"L40", 181e12},
                                                                           {"L4", 121e12},
                                                                           {"H100 PCIe", 756e12},
                                                                           {"H100 NVL", 835.5e12},
                                                                           {"H100", 989.4e12},
                                                                           {"H800", 989.4e12},
                                                                           {"H200", 989.4e12},
                                                                           {"B200", 2250e12},
                                                                           {"B100", 1750e12}}};
  const auto in_word = [&](std::size_t at) {
    return at < name.size() && std::isalnum(static_cast<unsigned char>(name[at])) != 0;
  };
  for (const auto& [part, rate] : kRates) {
    const auto at = name.find(part);
    if (at != name.npos && (at == 0 || !in_word(at - 1)) && !in_word(at + part.size())) return rate;
  }
  return 0;
}

}  // namespace tessera::backend
