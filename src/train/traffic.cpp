#include "train/traffic.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>

#include "backend/machine.hpp"
#include "core/terminal.hpp"
#include "io/file.hpp"
#include "io/json.hpp"
#include "setup/budget.hpp"
#include "setup/shapes.hpp"
#include "setup/traffic.hpp"

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;
using setup::Traffic;

constexpr std::size_t kNodes = 2;  // whose link is measured
constexpr std::int64_t kRepeats = 2;
constexpr const char* kFile = "traffic.json";
constexpr const char* kGemmRate = "gemm_flop_per_s";
/// Of a node, in bytes/s: what goes to disks is the same in all forms, and nothing is measured of
/// it.
constexpr double kDiskRate = 2e9;

/// What a choice hangs on, for which it is kept.
std::string situation(const deck::Deck& deck, const comm::MpiSession& mpi) {
  std::map<int, int> ranks;  // by node, which is its lowest rank
  for (const int node : setup::nodes_of(deck, mpi.node_of())) ++ranks[node];
  std::vector<int> counts;
  for (const auto& [node, count] : ranks) counts.push_back(count);
  return fmt::format("{}, {} ranks a node, ZeRO-{}, {} sequences of {} in micro-batches of {}, {}",
                     to_string(setup::mesh_of(deck, mpi.size())), fmt::join(counts, "+"),
                     deck.zero.stage, deck.batch.global, deck.batch.sequence, deck.batch.micro,
                     enum_word(deck.precision.compute));
}

deck::Machine measure(const deck::Deck& deck, const Job& job, const Hardware& hardware) {
  std::vector<DType> types = {DType::f32};  // the optimizer's, and of sums
  const DType compute = setup::dtype_of(deck.precision.compute);
  if (compute != DType::f32) types.push_back(compute);
  deck::Machine machine =
      backend::measure_machine(hardware.backend, {job.mpi, job.control},
                               {.threads = hardware.threads,
                                .repeats = kRepeats,
                                .types = types,
                                .fp8 = deck.precision.matmul == deck::Matmul::fp8,
                                .node_of = setup::nodes_of(deck, job.mpi.node_of()),
                                .nodes = kNodes,
                                .brief = true});
  machine.disk_read = machine.disk_write = kDiskRate;
  return machine;
}

/// Of a GPU, that communicators take, which are made after this.
constexpr std::int64_t kCommunicators = std::int64_t{1} << 30;

/// What is free, the least of all ranks'.
struct Free {
  Free(const Job& job, const backend::Backend& backend)
      : device_is_host(backend.device_tier->of_host()),
        device(backend.device_tier->device_memory()),
        host(job.control.min(memory::available_bytes()) / job.mpi.job().local) {
    device.in_use = device.total - job.control.min(device.total - device.in_use);
    if (device.total > 0) device.in_use += kCommunicators;
  }
  /// Whether the engine would find room for a rank of the run.
  bool has_room_for(const deck::LoadedDeck& loaded, const Mesh& mesh,
                    const plan::ArenaBytes& bytes) const {
    try {
      setup::check_budget(loaded, mesh, bytes);
      setup::check_gpu(loaded.deck, mesh, bytes, device);
    } catch (const MemoryError&) {
      return false;
    }
    return plan::host_bytes(bytes) + (device_is_host ? plan::device_bytes(bytes) : 0) <= host;
  }
  bool device_is_host;
  memory::Tier::DeviceMemory device;
  std::int64_t host;
};

struct Chosen {
  Traffic traffic;
  Json json;  // what is kept
};

Chosen choose(const deck::LoadedDeck& loaded, const Job& job, const Hardware& hardware,
              std::span<const Traffic> forms, const deck::Machine& machine, const Free& free) {
  const deck::Deck& deck = loaded.deck;
  const auto on = computes_on(hardware.backend);
  const Mesh mesh = setup::mesh_of(deck, job.mpi.size());
  setup::TrafficChoice choice{.tried = {{.traffic = forms.front()}}, .chosen = forms.front()};
  std::string why;
  try {
    if (forms.size() > 1) {
      choice = setup::choose_traffic(
          deck, forms,
          [&](const deck::Deck& settled) {
            return setup::plan_inputs(settled, setup::training_shapes(settled, mesh.batch_ranks()),
                                      job.mpi.node_of(), on);
          },
          [&](const plan::ArenaBytes& bytes) { return free.has_room_for(loaded, mesh, bytes); },
          machine);
    }
    why = setup::explain(deck, choice, machine);
  } catch (const DeckError& e) {
    why = fmt::format("\"auto\" makes {}: its step cannot be simulated ({})",
                      setup::open_keys(deck, choice.chosen), e.what());
  }
  Json json{{"for", situation(deck, job.mpi)},
            {"chosen", setup::open_keys(deck, choice.chosen)},
            {"why", why},
            {"tried", Json::array()}};
  for (const auto& t : choice.tried) {
    json["tried"].push_back(
        {{"keys", setup::open_keys(deck, t.traffic)}, {"step_ms", t.step * 1e3}, {"fits", t.fits}});
  }
  if (machine.inter) json["bytes_per_s_between_nodes"] = machine.inter->rate;
  if (const auto rates = machine.gemm.find(setup::dtype_of(deck.precision.compute));
      rates != machine.gemm.end()) {
    json[kGemmRate] = rates->second.back();
  }
  return {choice.chosen, json};
}

/// What an earlier start has kept.
struct Kept {
  std::int64_t form = 0;  // its place among all
  double gemm_rate = 0;
};

/// Nothing where there is none or what the choice hung on has changed.
std::optional<Kept> kept(const std::filesystem::path& file, const deck::Deck& deck,
                         const comm::MpiSession& mpi, std::span<const Traffic> forms) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  constexpr std::int64_t kMost = 1 << 20;
  try {
    const io::JsonDocument document(io::read_text(file, kMost), file.string());
    if (document.root()["for"].text() != situation(deck, mpi)) return std::nullopt;
    const std::string& chosen = document.root()["chosen"].text();
    const auto at = std::ranges::find_if(
        forms, [&](const Traffic& form) { return setup::open_keys(deck, form) == chosen; });
    if (at == forms.end()) return std::nullopt;
    const auto rate = document.root().find(kGemmRate);
    return Kept{at - forms.begin(), rate ? rate->number() : 0.0};
  } catch (const DataError& e) {
    throw DataError(fmt::format("{} (remove the file to have \"auto\" choose again)", e.what()));
  }
}

}  // namespace

SettledTraffic settle_traffic(deck::LoadedDeck& loaded, const Job& job, const Hardware& hardware,
                              const std::filesystem::path& directory) {
  if (!setup::leaves_traffic_open(loaded.deck)) return {};
  const comm::Control& control = job.control;
  const bool first = control.rank() == 0;
  const std::vector<Traffic> forms = setup::open_traffic(loaded, job.mpi.node_of());
  const std::filesystem::path file = directory / kFile;
  constexpr std::int64_t kNone = -1;
  std::int64_t which = kNone;
  SettledTraffic settled;
  control.together([&] {
    if (!first) return;
    const auto found = kept(file, loaded.deck, job.mpi, forms);
    if (found) which = found->form, settled.gemm_rate = found->gemm_rate;
  });
  which = control.max(which);
  if (which != kNone) {
    settled.what = fmt::format(
        "\"auto\" makes {}, as when the run began (remove {} to have it chosen again)",
        setup::open_keys(loaded.deck, forms[static_cast<std::size_t>(which)]), file.string());
  } else {
    deck::Machine machine;
    if (forms.size() > 1) {
      if (first) tell("measuring kernels and links, for what the deck leaves \"auto\"\n");
      machine = measure(loaded.deck, job, hardware);
    }
    const Free free(job, hardware.backend);
    control.together([&] {
      if (!first) return;
      const Chosen chosen = choose(loaded, job, hardware, forms, machine, free);
      which = std::ranges::find(forms, chosen.traffic) - forms.begin();
      settled = {.what = chosen.json["why"].get<std::string>(),
                 .file = chosen.json.dump(1) + "\n",
                 .gemm_rate = chosen.json.value(kGemmRate, 0.0)};
    });
    which = control.max(which);
    settled.what = control.broadcast(settled.what);
    settled.file = control.broadcast(settled.file);
  }
  setup::set_traffic(loaded.deck, forms[static_cast<std::size_t>(which)]);
  return settled;
}

void keep_traffic(const SettledTraffic& settled, const std::filesystem::path& directory) {
  if (!settled.file.empty()) io::write_text(directory / kFile, settled.file);
}

}  // namespace tessera::train
