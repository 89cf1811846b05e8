#include "train/policy/beside.hpp"

#include "setup/budget.hpp"
#include "setup/inputs.hpp"
#include "setup/judges.hpp"

namespace tessera::train {

void take_memory_beside(Run& run, const plan::ArenaBytes& arenas) {
  plan::ArenaBytes all = run.engine->ledger().arenas;
  for (std::size_t i = 0; i < plan::kArenas; ++i) {
    run.beside[i] += arenas[i];
    all[i] += run.beside[i];
  }
  run.control.together(
      [&] { setup::check_budget(run.loaded, run.engine->inputs().layout.mesh, all); });
}

void open_beside(std::optional<TrainedEngine>& model, Run& run, const deck::LoadedDeck& loaded,
                 plan::Scores scores, const std::string& what) {
  const Mesh mesh = setup::mesh_of(loaded.deck, run.control.size());
  try {
    model.emplace(loaded, run.job, setup::score_shape(run.deck, scores, mesh.batch_ranks()),
                  "master");
    take_memory_beside(run, model->engine().ledger().arenas);
  } catch (Error& e) {
    e.add_context(what);
    throw;
  }
}

}  // namespace tessera::train
