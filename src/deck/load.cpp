#include "deck/load.hpp"

#include <fmt/format.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <initializer_list>

#include "core/error.hpp"
#include "core/math.hpp"
#include "core/sharding.hpp"
#include "deck/checks.hpp"
#include "deck/names.hpp"
#include "deck/presets.hpp"
#include "deck/problems.hpp"
#include "deck/schema.hpp"
#include "deck/sources.hpp"

namespace tessera::deck {

namespace {

/// How to correct a value that does not fit, where that is known or can be guessed.
std::string remedy(const SchemaRow& row, const Value& value) {
  if (const auto problem = row.field.problem(value); !problem.empty()) return ": " + problem;
  if (const auto* word = value.as<std::string>()) {
    if (word->empty()) return ": it is empty";
    const std::string_view nearest = nearest_name(*word, row.field.words());
    return nearest.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", nearest);
  }
  const auto* number = value.as<double>();
  if (number && std::trunc(*number) == *number && std::abs(*number) < 0x1p62 &&
      row.field.type() == "an integer") {
    return fmt::format(" (write {})", static_cast<std::int64_t>(*number));
  }
  return "";
}

/// What a model directory says, as decks would.
struct AsInDecks {
  using Data = decltype(Value::data);
  template <typename T>
  Data operator()(const T& held) const {
    return held;
  }
  Data operator()(const std::vector<std::string>& texts) const {
    List list;
    for (const std::string& text : texts) list.push_back({.data = text, .place = {}});
    return list;
  }
};

/// Fills a Deck from the strongest source of each key to the weakest.
class Resolver {
 public:
  Resolver(LoadedDeck& loaded, Problems& problems) : loaded_(loaded), problems_(problems) {}

  void take_user_keys(const Sources& sources) {
    for (const auto& [name, value] : sources.keys) assign(name, value, true);
  }

  /// One rate for all is meant for each of them.
  void take_dropout() {
    if (open("model.dropout") || problems_.about("model.dropout")) return;
    Value rate = find_row("model.dropout")->field.get(loaded_.deck);
    rate.place = loaded_.place("model.dropout");
    for (const char* key : kDropouts) assign(key, rate, false);
  }

  void take_preset() {
    const auto preset = loaded_.deck.model.preset;
    if (!preset) return;
    for (ImpliedKey& key : preset_keys(*preset)) {
      key.value.place = loaded_.place("model.preset");
      assign(key.name, key.value, false);
    }
  }

  void take_model_directory(const ArchitectureReader& reader) {
    const auto& dir = loaded_.deck.model.init_from;
    if (!dir || !reader) return;
    if (loaded_.deck.model.preset) {
      problems_.add(loaded_.place("model.preset"), "model.preset",
                    fmt::format("model.preset and model.init_from ({}) both fix the architecture: "
                                "keep one",
                                loaded_.where("model.init_from")));
      return;
    }
    std::vector<std::pair<std::string, Value>> of_positions, of_scaling, others;
    for (const ArchitectureKey& key : read_architecture(*dir, reader)) {
      const std::string& name = key.key;
      TESSERA_CHECK(find_row(name), "{} gives unknown key {}", key.place, name);
      Value value;
      value.data = std::visit(AsInDecks{}, key.value);
      value.place = SourceLocation{key.place, 0, 0};
      if (loaded_.origins.contains(name)) {
        if (key.fixed && find_row(name)->rules.on_resume == OnResume::architecture)
          (is_of(kPositions, name) || is_of(kScaling, name) ? of_positions : others)
              .emplace_back(name, value);
      } else if (is_of(kScaling, name)) {
        of_scaling.emplace_back(name, value);
      } else {
        assign(name, value, false);
      }
    }
    for (const auto& [name, value] : others) check_agreement(name, value);
    for (const auto& [name, value] : of_positions)
      rotary() ? restate(name, value) : check_agreement(name, value);
    // Another scaling has parameters of its own.
    const bool rescaled = std::ranges::any_of(loaded_.restated, [](const auto& restated) {
      return restated.key == "model.rope_scaling";
    });
    for (const auto& [name, value] : of_scaling)
      if (!rescaled) assign(name, value, false);
  }

  /// What the family and the optimizer imply; nothing of experts where there are none.
  void take_implied() {
    const Deck& deck = loaded_.deck;
    const bool dense = deck.model.moe.experts == 0;
    for (const auto& keys : {family_keys(deck.model.family), optimizer_keys(deck.optimizer.name)}) {
      for (const ImpliedKey& key : keys) {
        if (dense && key.name.starts_with("moe.")) continue;
        if (open(key.name)) find_row(key.name)->field.set(loaded_.deck, key.value);
      }
    }
  }

  /// What a family implies is nothing where other keys leave no use for it.
  void drop_unused(ModelSection& model) const {
    const bool local = model.window > 0 && model.position == PositionKind::rope;
    if (open("model.global_every") && model.window == 0) model.global_every = 0;
    if (open("model.rope_local_theta") && !local) model.rope_local_theta = 0;
    if (open("model.attention_bias") && !model.bias) model.attention_bias = true;
    if (open("model.qkv_bias") && model.bias) model.qkv_bias = false;
    const bool levels = model.moe.gates == RouterGates::two_levels;
    if (open("moe.normalize") && (levels || model.moe.top_k == 1)) model.moe.normalize = levels;
    if (open("moe.scores") && levels) model.moe.scores = RouterScores::softmax;
    if (open("moe.bias") && levels) model.moe.bias = false;
    const bool alone = levels || model.moe.groups == 1 || model.moe.groups == model.moe.experts;
    if (open("moe.group_score") && alone) model.moe.group_score = GroupScore::largest;
  }

  /// Defaults that follow from other keys.
  void derive() {
    ModelSection& model = loaded_.deck.model;
    drop_unused(model);
    if (open("model.kv_heads")) model.kv_heads = model.heads;
    if (open("model.rope_high_frequency") && model.rope_scaling == RopeScalingKind::yarn)
      model.rope_high_frequency = 32;
    if (open("model.head_dim") && model.heads > 0) model.head_dim = model.hidden / model.heads;
    if (open("model.ffn_hidden") && !gated(model.activation)) {
      model.ffn_hidden = 4 * model.hidden;
    }
    if (open("moe.ffn_hidden")) model.moe.ffn_hidden = model.ffn_hidden;
    BatchSection& batch = loaded_.deck.batch;
    DataSection& data = loaded_.deck.data;
    const bool padded = batch.token_budget || one_document_each(loaded_.deck.task.kind);
    if (open("data.documents") && padded) data.documents = Documents::separate;
    const bool new_bias =
        model.moe.bias && !model.init_from && model.adapter.kind == AdapterKind::none && !padded;
    if (open("moe.bias_update") && new_bias) model.moe.bias_update = 0.001;
    derive_task();
    // Where frequencies follow the length of a sequence, that of a document's sample is its own.
    const bool own_length = model.rope_scaling == RopeScalingKind::dynamic &&
                            one_document_each(loaded_.deck.task.kind) && !batch.token_budget;
    if (open("data.positions")) {
      data.positions = data.documents == Documents::separate && !own_length ? Positions::document
                                                                            : Positions::sequence;
    }
    const std::int64_t longest = own_length ? model.rope_original_context : model.context;
    if (open("batch.sequence")) batch.sequence = batch.token_budget.value_or(longest);
    constexpr std::int64_t kTokens = 16;  // of a short document
    if (open("batch.documents") && classes_share_sequences())
      batch.documents = ceil_div(*batch.token_budget, kTokens);
    if (batch.curriculum.start > 0 && batch.curriculum.end == 0)
      batch.curriculum.end = batch.sequence;
    ZeroSection& zero = loaded_.deck.zero;
    const bool layout = loaded_.deck.run.reproducible == Reproducible::layout;
    if (open("zero.reduce")) {
      const bool sharded = zero.stage >= first_stage(&Sharding::gradients);
      // In layout mode sums over chunks of a sequence come before those over sequences.
      const bool chunks = layout && loaded_.deck.run.reproducible_context > 1;
      zero.reduce = sharded || chunks ? ReduceWhen::micro : ReduceWhen::step;
    }
    if (open("memory.logits") && (zero.tiles == 1 || layout)) loaded_.deck.memory.logits = 4096;
    OffloadSection& offload = loaded_.deck.offload;
    if (open("offload.ahead") && offload.anything()) offload.ahead = 2;
  }

  void derive_task() {
    TaskSection& task = loaded_.deck.task;
    if (open("task.masked") && task.kind == TaskKind::mlm) task.masked = 0.15;
    if (open("task.beta") && has_reference(task.kind)) task.beta = 0.1;
    // What a model directory says of it is of targets, which pairs do not have; models with biases
    // are balanced by these, and are not meant to be by it.
    MoeSection& moe = loaded_.deck.model.moe;
    const bool without = has_pairs(task.kind) || moe.bias;
    if (without && moe.experts > 0 && !loaded_.explicitly_set("moe.aux_loss")) moe.aux_loss = 0;
    if (draws_answers(task.kind)) derive_answers();
    if (open("task.critic_lr") && task.critic) task.critic_lr = loaded_.deck.optimizer.lr;
    if (!has_own_head(task.kind)) return;
    const bool classes = has_classes(task.kind);
    if (open("task.pooling") && pools(task.kind))
      task.pooling = classes ? Pooling::mean : Pooling::last;
    if (open("task.overlong") && classes) task.overlong = Overlong::refuse;
    ModelSection& model = loaded_.deck.model;
    if (!loaded_.explicitly_set("model.tied_embeddings")) model.tied_embeddings = false;
    if (open("model.head_bias")) model.head_bias = classes;
  }

  /// Answers are drawn without dropout, and those that several steps learn from are in no
  /// checkpoint.
  void derive_answers() {
    ModelSection& model = loaded_.deck.model;
    for (const auto& [key, rate] : {std::pair{"model.dropout", &model.dropout},
                                    {"model.dropout_embedding", &model.dropout_embedding},
                                    {"model.dropout_attention", &model.dropout_attention},
                                    {"model.dropout_residual", &model.dropout_residual}}) {
      if (!loaded_.explicitly_set(key)) *rate = 0;
    }
    std::int64_t& every = loaded_.deck.checkpoint.every;
    const std::int64_t steps = std::max<std::int64_t>(1, loaded_.deck.rollout.steps);
    if (open("checkpoint.every")) every = ceil_div(every, steps) * steps;
  }

  /// A warm-up of 0 is none: so a deck can drop the one it includes, and give it in another unit.
  void drop_empty_warmups() {
    ScheduleSection& schedule = loaded_.deck.schedule;
    if (schedule.warmup_steps == 0) schedule.warmup_steps.reset();
    if (schedule.warmup_tokens == 0) schedule.warmup_tokens.reset();
    if (schedule.warmup_epochs == 0.0) schedule.warmup_epochs.reset();
  }

  void require_keys(const Sources& sources) {
    for (const SchemaRow& row : schema_rows()) {
      if (!row.rules.required || !open(row.name)) continue;
      const auto section = sources.sections.find(row.section);
      const SourceLocation place =
          section == sources.sections.end() ? loaded_.place(row.name) : section->second;
      problems_.add(place, row.name,
                    fmt::format("{} is missing ({}: {})", row.name, row.meaning, row.allowed()));
    }
  }

  /// --set may take away what a key of a file is about; then the key goes too. Who tries a deck in
  /// another way need not change what it says of the first.
  void drop_what_sets_made_idle() {
    const Deck& deck = loaded_.deck;
    if (!deck.offload.anything()) {
      drop_if_set_aside("offload.ahead", {"offload.parameters", "offload.gradients",
                                          "offload.optimizer", "offload.activations"});
    }
    if (deck.offload.optimizer == OffloadTier::none)
      drop_if_set_aside("offload.optimizer_share", {"offload.optimizer"});
    for (const std::string& key : unused_optimizer_keys(deck.optimizer.name))
      drop_if_set_aside(key, {"optimizer.name"});
    const bool by_targets = deck.batch.token_budget && !classes_share_sequences();
    if (deck.batch.ramp.empty() && !by_targets)
      drop_if_set_aside("batch.lr_scaling", {"batch.ramp", "batch.token_budget", "task.kind"});
    if (!classes_share_sequences())
      drop_if_set_aside("batch.documents", {"batch.token_budget", "task.kind"});
  }

 private:
  static constexpr std::array kDropouts = {"model.dropout_embedding", "model.dropout_attention",
                                           "model.dropout_residual"};

  /// Whether a micro-batch is documents that have a class each.
  bool classes_share_sequences() const {
    return loaded_.deck.batch.token_budget && loaded_.deck.task.kind == TaskKind::classify;
  }
  bool open(std::string_view name) const { return !loaded_.origins.contains(name); }
  bool by_set(std::string_view name) const {
    return !open(name) && loaded_.place(name).column == 0;
  }

  /// A key of a file gets its default where a --set gives one of those that it is about.
  void drop_if_set_aside(std::string_view name, std::initializer_list<std::string_view> about) {
    const bool set_aside = std::ranges::any_of(about, [this](auto key) { return by_set(key); });
    if (open(name) || by_set(name) || !set_aside) return;
    loaded_.origins.erase(loaded_.origins.find(name));
    const Field& field = find_row(name)->field;
    field.set(loaded_.deck, field.get(Deck{}));
  }

  /// Sets a key unless a stronger source has done so. A bad value never enters the deck.
  void assign(const std::string& name, const Value& value, bool explicitly_set) {
    if (!loaded_.origins.emplace(name, LoadedDeck::Origin{value.place, explicitly_set}).second) {
      return;
    }
    const SchemaRow& row = *find_row(name);
    Deck next = loaded_.deck;
    if (row.field.set(next, value) && row.within_limits(next)) {
      loaded_.deck = std::move(next);
      return;
    }
    problems_.add(value.place, name,
                  fmt::format("{} = {} must be {}{}", name, value_excerpt(value), row.allowed(),
                              remedy(row, value)));
  }

  std::vector<ArchitectureKey> read_architecture(const std::string& dir,
                                                 const ArchitectureReader& reader) const {
    try {
      return reader(dir, loaded_);
    } catch (Error& error) {
      error.add_context(loaded_.where("model.init_from") + ": model.init_from" +
                        loaded_.path_hint("model.init_from", dir));
      throw;
    }
  }

  /// Whether a model may have another value of the key than the directory, with another head.
  bool of_head(std::string_view name) const {
    return has_own_head(loaded_.deck.task.kind) &&
           (name.starts_with("task.") || name.starts_with("model.head_"));
  }

  /// Keys that say where tokens are, for which a model has no weights if its positions are rotary:
  /// a user may extend the context that it was trained with. Scaling has parameters.
  static constexpr std::array kScaling = {"model.rope_factor",        "model.rope_original_context",
                                          "model.rope_low_frequency", "model.rope_high_frequency",
                                          "model.rope_magnitude",     "model.rope_mscale_all_dim"};
  static constexpr std::array kPositions = {"model.context", "model.rope_theta",
                                            "model.rope_local_theta", "model.rope_scaling"};
  template <std::size_t N>
  static bool is_of(const std::array<const char*, N>& keys, std::string_view name) {
    return std::ranges::find(keys, name) != keys.end();
  }
  bool rotary() const {
    Deck deck = loaded_.deck;
    if (open("model.position")) {
      for (const ImpliedKey& key : family_keys(deck.model.family))
        if (key.name == "model.position") find_row(key.name)->field.set(deck, key.value);
    }
    return deck.model.position == PositionKind::rope;
  }

  /// Notes where the user's value is not what the model directory says.
  void restate(const std::string& name, const Value& theirs) {
    const Field& field = find_row(name)->field;
    Deck other;
    if (problems_.about(name) || !field.set(other, theirs)) return;
    if (field.get(loaded_.deck) != field.get(other))
      loaded_.restated.push_back({name, value_text(field.get(other)), theirs.place.text()});
  }

  /// The user's value of a key must be what the model directory says.
  void check_agreement(const std::string& name, const Value& theirs) {
    const Field& field = find_row(name)->field;
    Deck other;
    if (problems_.about(name) || !field.set(other, theirs)) return;
    const Value ours = field.get(loaded_.deck);
    if (ours == field.get(other)) return;
    problems_.add(loaded_.place(name), name,
                  fmt::format("{} = {}, but {} says {} (remove the key, or model.init_from{})",
                              name, value_excerpt(ours), theirs.place.text(), value_excerpt(theirs),
                              of_head(name) ? ", or give model.init_head = \"fresh\"" : ""));
  }

  LoadedDeck& loaded_;
  Problems& problems_;
};

LoadedDeck resolve(const Sources& sources, const std::string& name,
                   const ArchitectureReader& reader, Problems& problems) {
  LoadedDeck loaded;
  loaded.name = name;
  Resolver resolver(loaded, problems);
  resolver.take_user_keys(sources);
  resolver.take_dropout();
  resolver.take_preset();
  resolver.take_model_directory(reader);
  resolver.take_implied();
  resolver.derive();
  resolver.drop_empty_warmups();
  resolver.drop_what_sets_made_idle();
  resolver.require_keys(sources);
  check_deck(loaded, problems);
  problems.throw_if_any();
  return loaded;
}

/// A file that cannot be read or parsed leaves holes; complaining about them would only confuse.
LoadedDeck finish(Sources& sources, const std::string& name, std::span<const std::string> sets,
                  const ArchitectureReader& reader, Problems& problems) {
  add_sets(sets, sources, problems);
  if (problems.about(kUnreadable)) problems.throw_if_any();
  return resolve(sources, name, reader, problems);
}

/// A file or directory of this name, a pair of token files, or what a pattern stands for.
bool is_there(const std::string& path) {
  const auto matches = [](const std::string& pattern) {
    glob_t found{};
    const bool any = ::glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0;
    ::globfree(&found);
    return any;
  };
  return matches(path) || matches(path + ".idx");
}

}  // namespace

bool LoadedDeck::explicitly_set(std::string_view key) const {
  const auto found = origins.find(key);
  return found != origins.end() && found->second.explicitly_set;
}

SourceLocation LoadedDeck::place(std::string_view key) const {
  const auto found = origins.find(key);
  return found == origins.end() ? SourceLocation{name, 1, 1} : found->second.place;
}

std::string LoadedDeck::path_hint(std::string_view key, const std::string& path) const {
  namespace fs = std::filesystem;
  if (fs::path(path).is_absolute() || is_there(path)) return "";
  std::string hint = " (paths in decks are relative to the current directory";
  const SourceLocation written = place(key);
  const fs::path beside = fs::path(written.file).parent_path() / path;
  if (written.column > 0 && is_there(beside.string()))
    hint += fmt::format(", and there is {}: write that", beside.string());
  return hint + ')';
}

LoadedDeck load_deck(const std::string& path, std::span<const std::string> sets,
                     const ArchitectureReader& reader) {
  Sources sources;
  Problems problems;
  add_file(path, sources, problems);
  return finish(sources, path, sets, reader, problems);
}

LoadedDeck parse_deck(std::string_view text, const std::string& name,
                      std::span<const std::string> sets, const ArchitectureReader& reader) {
  Sources sources;
  Problems problems;
  add_text(text, name, sources, problems);
  return finish(sources, name, sets, reader, problems);
}

}  // namespace tessera::deck
