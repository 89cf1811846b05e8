#include "setup/budget.hpp"

#include "core/bytes.hpp"
#include "deck/presets.hpp"
#include "plan/prediction/ledger.hpp"
#include "setup/shapes.hpp"

namespace tessera::setup {
namespace {

/// What makes a rank need less, in the order in which it costs least: arithmetic, then messages,
/// then disks.
std::string remedies(const deck::Deck& deck, const Mesh& mesh, bool state_alone) {
  std::vector<std::string> all;
  if (!state_alone) {  // what lives within a step may be made smaller
    if (deck.recompute.policy != Recompute::full) all.emplace_back("recompute.policy = \"full\"");
    if (deck.batch.micro > 1) all.push_back(fmt::format("batch.micro below {}", deck.batch.micro));
  }
  const std::int64_t last = deck::zero_stages(deck.optimizer.name) - 1;
  if (deck.zero.stage < last && mesh.data > 1)
    all.push_back(fmt::format("zero.stage = {} to {}", deck.zero.stage + 1, last));
  if (mesh.data == 1 || deck.zero.stage > 0)
    all.push_back(fmt::format("more data ranks with zero.stage 1 to {}", last));
  if (!state_alone && deck.offload.activations == deck::OffloadTier::none)
    all.emplace_back("offload.activations = \"host\"");
  if (deck.offload.optimizer == deck::OffloadTier::none)
    all.emplace_back(
        "offload.optimizer, then gradients and parameters, to \"nvme\" or, of a GPU, to "
        "the \"host\"");
  else if (deck.offload.optimizer_share < 1)
    all.emplace_back("a larger offload.optimizer_share");
  if (deck::draws_answers(deck.task.kind)) {
    all.emplace_back("fewer rollout.cache_tokens or rollout.slots");
    if (deck.offload.cache == deck::CacheTier::none)
      all.emplace_back("offload.cache = \"host\" of a GPU");
  }
  all.emplace_back("a larger parallel.tensor or parallel.pipeline");
  return fmt::format("{} (check --options shows what each stage needs)", fmt::join(all, ", or "));
}

/// Throws MemoryError where a rank needs more than `most`; `limit` names that limit.
void check_device(const deck::Deck& deck, const Mesh& mesh, const plan::ArenaBytes& bytes,
                  std::int64_t most, const std::string& limit) {
  if (plan::device_bytes(bytes) <= most) return;
  const std::int64_t state = bytes[static_cast<std::size_t>(plan::ArenaId::state)],
                     step = bytes[static_cast<std::size_t>(plan::ArenaId::step)];
  const bool state_alone = state > most;
  throw MemoryError(fmt::format(
      "a rank needs {}, {} more than {}: {} in arena state (parameters and optimizer){} and {} in "
      "arena step (activations, gradients, messages); try {}",
      human_bytes(state + step), human_bytes(state + step - most), limit, human_bytes(state),
      state_alone ? ", too much by itself," : "", human_bytes(step),
      remedies(deck, mesh, state_alone)));
}

}  // namespace

/// Throws MemoryError where a rank needs more of the host's memory than memory.host.
static void check_host(const deck::LoadedDeck& loaded, const plan::ArenaBytes& bytes) {
  const auto* budget = std::get_if<deck::Bytes>(&loaded.deck.memory.host);
  const std::int64_t host = plan::host_bytes(bytes);
  if (budget == nullptr || host <= budget->count) return;
  std::vector<std::string> remedies;
  if (loaded.deck.checkpoint.every > 0 && saves_beside_steps(loaded.deck))
    remedies.emplace_back("checkpoint.async = false");
  if (loaded.deck.offload.uses(deck::OffloadTier::host))
    remedies.emplace_back("\"nvme\" in place of \"host\" in [offload]");
  if (loaded.deck.offload.cache == deck::CacheTier::host)
    remedies.emplace_back("fewer rollout.cache_tokens or rollout.slots");
  remedies.emplace_back("more data ranks with zero.stage 1 to 3");
  throw MemoryError(fmt::format(
      "a rank needs {} in arena host (snapshots for checkpoints, what is offloaded), {} more than "
      "memory.host = {} ({}): try {}",
      human_bytes(host), human_bytes(host - budget->count), human_bytes(budget->count),
      loaded.where("memory.host"), fmt::join(remedies, ", or ")));
}

void check_budget(const deck::LoadedDeck& loaded, const Mesh& mesh, const plan::ArenaBytes& bytes) {
  check_host(loaded, bytes);
  const auto* budget = std::get_if<deck::Bytes>(&loaded.deck.memory.device);
  if (budget == nullptr) return;
  check_device(loaded.deck, mesh, bytes, budget->count,
               fmt::format("memory.device = {} ({})", human_bytes(budget->count),
                           loaded.where("memory.device")));
}

void check_gpu(const deck::Deck& deck, const Mesh& mesh, const plan::ArenaBytes& bytes,
               const memory::Tier::DeviceMemory& gpu) {
  if (gpu.total == 0) return;
  const std::int64_t free = gpu.total - gpu.in_use;
  check_device(
      deck, mesh, bytes, free,
      fmt::format("the {} that are free of its GPU's {} (nvidia-smi lists what runs there)",
                  human_bytes(free), human_bytes(gpu.total)));
}

}  // namespace tessera::setup
