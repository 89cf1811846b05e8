// Where a model's state comes from: the checkpoint that run.resume chooses, or initial weights.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/control.hpp"
#include "deck/load.hpp"
#include "deck/resume.hpp"
#include "io/hugging_face.hpp"
#include "train/state/model_state.hpp"

namespace tessera::train {

/// A checkpoint that was loaded.
struct LoadedCheckpoint {
  std::filesystem::path path;
  io::CheckpointHeader header;
  deck::Deck deck;                                  // that it was made with
  std::vector<deck::ResumeDifference> differences;  // of the deck now: all of them allowed
  std::optional<NonFiniteElement> non_finite;       // among this rank's weights
  bool lacks_averaged_weights = false;              // which are wanted: nothing was loaded
};

/// Called for every checkpoint that is passed over.
using UnusableCheckpoint =
    std::function<void(const std::filesystem::path& path, std::string_view why)>;

/// Loads the newest usable of the checkpoints that run.resume allows into `state`; nothing if there
/// are none. Keys whose rule is `fixed` or stricter must be as in the checkpoint; an imported model
/// (step 0) has no past to be faithful to but its architecture. Collective; throws on every rank:
/// DeckError for a key that may not differ, DataError when no checkpoint can be used or
/// run.resume = "must" finds none.
std::optional<LoadedCheckpoint> load_checkpoint(const deck::LoadedDeck& loaded,
                                                deck::OnResume fixed, const comm::Control& control,
                                                ModelState& state,
                                                const UnusableCheckpoint& unusable);

/// Loads the newest usable checkpoint of the run at or before `step`, or else the oldest there is;
/// nothing if there are none. Collective. Throws DataError on every rank if there are some but none
/// can be used.
std::optional<LoadedCheckpoint> load_checkpoint_before(std::int64_t step,
                                                       const deck::LoadedDeck& loaded,
                                                       const comm::Control& control,
                                                       ModelState& state,
                                                       const UnusableCheckpoint& unusable);

/// Loads the newest usable checkpoint of the run with fewer updates than `applied_updates`; nothing
/// if there are none. Collective; throws as load_checkpoint_before().
std::optional<LoadedCheckpoint> load_proven_checkpoint(std::int64_t applied_updates,
                                                       const deck::LoadedDeck& loaded,
                                                       const comm::Control& control,
                                                       ModelState& state,
                                                       const UnusableCheckpoint& unusable);

/// Where the weights of a run begin: the directory of model.init_from, in full; empty where they
/// begin at random.
std::string source_of(const deck::Deck& deck);
/// Where those of a checkpoint began. One that does not say it in full is given as its deck has it:
/// nothing says which directory that was relative to.
std::string source_of(const LoadedCheckpoint& checkpoint);

/// The directory of model.init_from, as far as its weights are taken. DeckError where it has codes
/// and the deck wants others.
io::HfModel open_init_from(const deck::Deck& deck);
/// What the user should know of it: what is left out, which parameters are drawn anew, and what its
/// type may do.
std::vector<std::string> init_from_notes(const deck::Deck& deck, const io::HfModel& source);

/// What matrices have lost as they became codes, each of its root mean square: of each kind the
/// layer's that lost most. Nothing where none lost anything.
std::optional<std::string> losses_note(const kernels::BlockFormat& format,
                                       std::span<const std::pair<std::string, double>> losses);
/// The same of frozen matrices as they became codes in `state`; nothing at a restart. Collective.
std::optional<std::string> code_errors_note(const deck::FrozenSection& frozen,
                                            const comm::Control& control, const ModelState& state);

/// DeckError on every rank where frozen matrices of a checkpoint, which are values of codes, have
/// become others in `state`, as blocks may be of other elements on another layout. Collective.
void check_same_codes(const deck::LoadedDeck& loaded, const LoadedCheckpoint& from,
                      const comm::Control& control, const ModelState& state);

/// model.init_from's weights, else random ones, as those of a fresh head are. Collective. Returns
/// what the user should know of them, or nothing. Throws DataError on every rank for weights of
/// init_from that are not finite, unless model.accept_non_finite.
std::vector<std::string> set_initial_state(const deck::Deck& deck, const comm::Control& control,
                                           ModelState& state);

}  // namespace tessera::train
