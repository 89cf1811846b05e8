#include "train/traffic.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <set>

#include "backend/machine.hpp"
#include "io/file.hpp"
#include "io/json.hpp"
#include "setup/inputs.hpp"
#include "setup/shapes.hpp"
#include "setup/traffic.hpp"

namespace tessera::train {
namespace {

using Json = nlohmann::ordered_json;
using setup::Traffic;

constexpr std::size_t kNodes = 2;  // whose link is measured
constexpr std::int64_t kRepeats = 2;
constexpr const char* kFile = "traffic.json";

/// What the choice depends on beyond the deck, as it stands in the file.
std::string layout_text(const deck::Deck& deck, const comm::MpiSession& mpi) {
  const std::vector<int> node_of = setup::nodes_of(deck, mpi.node_of());
  return fmt::format("{}, nodes {}", to_string(setup::mesh_of(deck, mpi.size())),
                     std::set(node_of.begin(), node_of.end()).size());
}

std::vector<DType> measured_types(const deck::Deck& deck) {
  const DType compute = setup::dtype_of(deck.precision.compute);
  if (compute == DType::f32) return {DType::f32};
  return {DType::f32, compute};  // the optimizer's, and sums
}

/// Simulates a step in each form, on the machine that all ranks measure together. Rank 0's result
/// is the choice.
std::pair<Traffic, Json> measure_and_choose(const deck::Deck& deck, const Job& job,
                                            const Hardware& hardware,
                                            std::span<const Traffic> forms) {
  const backend::Backend& backend = hardware.backend;
  deck::Machine machine;
  if (forms.size() > 1) {
    machine = backend::measure_machine(backend, {job.mpi, job.control},
                                       {.threads = hardware.threads,
                                        .repeats = kRepeats,
                                        .types = measured_types(deck),
                                        .node_of = setup::nodes_of(deck, job.mpi.node_of()),
                                        .nodes = kNodes,
                                        .brief = true});
  }
  std::pair<Traffic, Json> found{forms.front(), {}};
  job.control.together([&] {
    if (job.control.rank() != 0) return;
    const auto* budget = std::get_if<deck::Bytes>(&deck.memory.device);
    const auto gpu = backend.device_tier->device_memory();
    setup::TrafficChoice choice{.tried = {{.traffic = forms.front()}}, .chosen = forms.front()};
    if (forms.size() > 1) {
      const auto inputs_of = [&](const deck::Deck& settled) {
        const auto shapes =
            setup::training_shapes(settled, setup::mesh_of(settled, job.control.size()).data);
        plan::PlanInputs inputs =
            setup::plan_inputs(settled, shapes, job.mpi.node_of(), *backend.device);
        inputs.layout.nccl = backend.kind == deck::Backend::cuda;
        inputs.offload.device_is_host = backend.device_is_host;
        return inputs;
      };
      choice = setup::choose_traffic(deck, forms, inputs_of, machine,
                                     budget != nullptr ? budget->count : gpu.total - gpu.in_use);
    }
    found.first = choice.chosen;
    found.second = {{"layout", layout_text(deck, job.mpi)},
                    {"chosen", setup::open_keys(deck, choice.chosen)},
                    {"why", setup::explain(deck, choice, machine)}};
    if (machine.inter) found.second["link_bytes_per_s"] = machine.inter->rate;
    for (const auto& t : choice.tried) {
      found.second["tried"].push_back({{"keys", setup::open_keys(deck, t.traffic)},
                                       {"step_ms", t.step * 1e3},
                                       {"fits", t.fits}});
    }
  });
  return found;
}

/// The form that an earlier start with this layout has kept, as its place among `forms`; nothing
/// where there is none, or it is none of them.
std::optional<std::size_t> kept(const std::filesystem::path& file, const deck::Deck& deck,
                                const comm::MpiSession& mpi, std::span<const Traffic> forms) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  constexpr std::int64_t kMost = 1 << 20;
  const io::JsonDocument document(io::read_text(file, kMost), file.string());
  const std::string layout = document.root()["layout"].text(),
                    chosen = document.root()["chosen"].text();
  if (layout != layout_text(deck, mpi)) return std::nullopt;
  const auto at = std::ranges::find_if(
      forms, [&](const Traffic& form) { return setup::open_keys(deck, form) == chosen; });
  if (at == forms.end()) return std::nullopt;
  return static_cast<std::size_t>(at - forms.begin());
}

}  // namespace

std::string settle_traffic(deck::LoadedDeck& loaded, const Job& job, const Hardware& hardware,
                           const std::filesystem::path& directory) {
  if (!setup::leaves_traffic_open(loaded.deck)) return "";
  const comm::Control& control = job.control;
  const std::vector<Traffic> forms = setup::open_traffic(loaded, job.mpi.node_of());
  const std::filesystem::path file = directory / kFile;
  constexpr std::int64_t kNone = -1;
  std::int64_t which = kNone;
  control.together([&] {
    if (control.rank() != 0) return;
    if (const auto found = kept(file, loaded.deck, job.mpi, forms))
      which = static_cast<std::int64_t>(*found);
  });
  which = control.max(which);
  std::string told;
  if (which != kNone) {
    told = fmt::format(
        "\"auto\" makes {}, as when the run began (remove {} to have it chosen again)",
        setup::open_keys(loaded.deck, forms[static_cast<std::size_t>(which)]), file.string());
  } else {
    const auto [traffic, json] = measure_and_choose(loaded.deck, job, hardware, forms);
    control.together([&] {
      if (control.rank() != 0) return;
      io::write_text(file, json.dump(1) + "\n");
      told = json["why"].get<std::string>();
      which = std::ranges::find(forms, traffic) - forms.begin();
    });
    which = control.max(which);
  }
  setup::set_traffic(loaded.deck, forms[static_cast<std::size_t>(which)]);
  return control.rank() == 0 ? told : "";
}

}  // namespace tessera::train
