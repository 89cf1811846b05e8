#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "core/bytes.hpp"
#include "deck/curriculum.hpp"
#include "deck/deck_checker.hpp"
#include "deck/schema.hpp"

namespace tessera::deck {

namespace {

class DataChecker : DeckChecker {
 public:
  using DeckChecker::DeckChecker;

  void run() {
    data_and_batch();
    mixture();
    token_budget();
    task();
    documents();
    curriculum();
    lengths();
  }

 private:
  void data_and_batch() {
    if (usable({"data.train"}) && deck_.data.train.empty()) {
      problem("data.train", "data.train = [] names no token file");
    }
    if (usable({"data.validation", "evaluate.every"}) && deck_.evaluate.every > 0 &&
        deck_.data.validation.empty()) {
      problem("evaluate.every",
              fmt::format("evaluate.every = {} needs data.validation", deck_.evaluate.every));
    }
    if (!deck_.batch.token_budget)
      at_most("batch.sequence", deck_.batch.sequence, "model.context", deck_.model.context);
    constexpr std::int64_t kMostTokens = 0x7fffffff;  // libraries count rows in 32 bits
    const BatchSection& batch = deck_.batch;
    if (usable({"batch.micro", "batch.sequence"}) &&
        batch.micro > kMostTokens / std::max<std::int64_t>(1, batch.sequence)) {
      problem("batch.micro",
              fmt::format("batch.micro = {} makes micro-batches of more than {} tokens (give at "
                          "most {})",
                          batch.micro, kMostTokens, kMostTokens / batch.sequence));
    }
    const auto& ramp = deck_.batch.ramp;
    const auto stalled =
        std::adjacent_find(ramp.begin(), ramp.end(),
                           [](const RampEntry& a, const RampEntry& b) { return a.step >= b.step; });
    if (usable({"batch.ramp"}) && stalled != ramp.end()) {
      problem("batch.ramp", fmt::format("batch.ramp has step {} after step {} (steps must grow)",
                                        (stalled + 1)->step, stalled->step));
    }
    if (usable({"batch.ramp", "batch.lr_scaling", "batch.token_budget"}) && ramp.empty() &&
        (!batch.token_budget || batch.documents) && batch.lr_scaling != LrScaling::none) {
      problem("batch.lr_scaling",
              batch.documents
                  ? fmt::format("batch.lr_scaling = \"{}\" has no effect with task.kind = "
                                "\"classify\" without batch.ramp: optimizer.lr is for as many "
                                "documents as there happen to be (leave it out)",
                                enum_word(batch.lr_scaling))
                  : fmt::format("batch.lr_scaling = \"{}\" has no effect without batch.ramp or "
                                "batch.token_budget: all steps have the batch that optimizer.lr is "
                                "for (leave it out, or give batch.ramp)",
                                enum_word(batch.lr_scaling)));
    }
  }

  /// A mixture says of each of its corpora how much there is of it.
  void mixture() {
    const auto& train = deck_.data.train;
    const auto with = [&](auto member) {
      return std::ranges::count_if(train,
                                   [&](const DataEntry& e) { return (e.*member).has_value(); });
    };
    if (!usable({"data.train"})) return;
    const auto weights = with(&DataEntry::weight), epochs = with(&DataEntry::epochs);
    if (weights + epochs == 0) return;
    if (weights != std::ssize(train) && epochs != std::ssize(train)) {
      problem(
          "data.train",
          fmt::format("data.train has {} with a weight and {} with epochs, of {}: a mixture needs "
                      "one of these for all (weights add up to any number)",
                      count_text(weights, "entry", "entries"), epochs, train.size()));
    }
    if (usable({"batch.curriculum"}) && deck_.batch.curriculum.cuts_anew()) {
      problem(
          "data.train",
          "data.train is a mixture, which batch.curriculum with cut = \"anew\" does not cut (give "
          "cut = \"truncate\", or one corpus)");
    }
  }

  /// What is learned, and what attention must see for it.
  void task() {
    const TaskSection& task = deck_.task;
    if (!usable({"task.kind", "model.attention"})) return;
    const bool masked = task.kind == TaskKind::mlm, classes = has_classes(task.kind);
    const auto wanted = masked ? AttentionMask::bidirectional : AttentionMask::causal;
    if (!has_own_head(task.kind) && deck_.model.attention != wanted) {
      problem("model.attention",
              fmt::format(
                  "model.attention = \"{}\" does not go with task.kind = \"{}\": {} (give \"{}\")",
                  enum_word(deck_.model.attention), enum_word(task.kind),
                  masked ? "a masked token would not see what follows it"
                         : "each token would see its target",
                  enum_word(wanted)));
    }
    idle_with_kind(masked, "task.masked", task.masked.has_value());
    idle_with_kind(masked, "task.mask_token", task.mask_token.has_value());
    idle_with_kind(masked, "task.never_masked", !task.never_masked.empty());
    idle_with_kind(classes, "task.labels", task.labels.has_value());
    idle_with_kind(pools(task.kind), "task.pooling", task.pooling.has_value());
    idle_with_kind(classes, "task.overlong", task.overlong.has_value());
    initial_head();
    if (masked) masked_tokens();
    if (classes) classification();
    if (has_own_head(task.kind)) own_head();
    pairs();
    answers();
    const ModelSection& m = deck_.model;
    const bool dense = usable({"model.head_hidden"}) && m.head_hidden > 0;
    needs("model.head_norm", m.head_norm, dense, "model.head_hidden");
    needs("model.head_activation", m.head_activation != ModelSection{}.head_activation, dense,
          "model.head_hidden");
    if (usable({"model.head_activation"}) && gated(m.head_activation)) {
      problem(
          "model.head_activation",
          fmt::format("model.head_activation = \"{}\" is gated, which the head's dense layer is "
                      "not (give gelu, gelu_erf, relu or tanh)",
                      enum_word(m.head_activation)));
    }
    if (dense && m.tied_embeddings && m.head_hidden != m.hidden &&
        usable({"model.hidden", "model.tied_embeddings"})) {
      problem("model.head_hidden",
              fmt::format("model.head_hidden = {} is not model.hidden = {}, of which the token "
                          "matrix has columns that is the head's too (give {}, or "
                          "model.tied_embeddings = false)",
                          m.head_hidden, m.hidden, m.hidden));
    }
    if (usable({"model.norm_placed", "model.block"}) && m.norm_placed == NormPlacement::sum &&
        m.block != BlockForm::sequential) {
      problem(
          "model.norm_placed",
          fmt::format("model.norm_placed = \"sum\" does not go with model.block = \"{}\", where "
                      "both sub-layers are added to the same sum (give block = \"sequential\")",
                      enum_word(m.block)));
    }
  }

  void initial_head() {
    if (deck_.model.init_head != HeadWeights::fresh) return;
    const bool directory = deck_.model.init_from.has_value();
    needs("model.init_head", true, directory, "model.init_from");
    needs("model.init_head", directory, has_own_head(deck_.task.kind),
          "task.kind = \"classify\", \"tokens\" or \"reward\"");
  }

  /// What a model directory would have had to say.
  std::string unknown_mask() const {
    const auto& directory = deck_.model.init_from;
    if (!directory) return "";
    return fmt::format(
        " ({} has no tokenizer.json that says so, and its config.json no \"mask_token_id\": give "
        "one of them)",
        *directory);
  }

  void masked_tokens() {
    const TaskSection& task = deck_.task;
    if (!usable({"task.masked", "task.mask_token", "task.never_masked", "model.vocab"})) return;
    if (task.masked.value_or(0) >= 1)
      problem("task.masked", fmt::format("task.masked = {} must be below 1", *task.masked));
    if (!task.mask_token) {
      problem("task.mask_token",
              fmt::format("task.mask_token is missing: task.kind = \"mlm\" needs the token that "
                          "stands for masked ones{}",
                          unknown_mask()));
    }
    const auto below = [&](const char* key, std::int64_t token) {
      if (token < deck_.model.vocab) return;
      problem(key, fmt::format("{}: token {} is not below model.vocab = {}", key, token,
                               deck_.model.vocab));
    };
    if (task.mask_token) below("task.mask_token", *task.mask_token);
    for (const std::int64_t token : task.never_masked) below("task.never_masked", token);
    count_targets_first();
  }

  /// Where it is not the same in each step.
  void count_targets_first() {
    if (!deck_.optimizer.compress_after || !usable({"optimizer.name"})) return;
    problem(
        "task.kind",
        fmt::format("task.kind = \"{}\" does not go with optimizer.name = \"{}\", whose gradients "
                    "join momentum before the number of targets that count is known (use adamw "
                    "or lamb)",
                    enum_word(deck_.task.kind), enum_word(deck_.optimizer.name)));
  }

  /// Documents, or their words, have classes.
  void classification() {
    const TaskKind kind = deck_.task.kind;
    if (usable({"task.labels"}) && !deck_.task.labels) {
      problem("task.labels",
              fmt::format("task.labels is missing: task.kind = \"{}\" needs the number of classes, "
                          "which PREFIX.labels.json names",
                          enum_word(kind)));
    }
    if (kind == TaskKind::tokens) count_targets_first();
    one_document();
  }

  /// Outputs are no tokens.
  void own_head() {
    refuse_with_kind("task.pooling", pools(deck_.task.kind) && deck_.task.pooling == Pooling::none,
                     "a document has one output (give mean, first or last)");
    refuse_with_kind("task.pooling",
                     deck_.task.kind == TaskKind::reward && deck_.task.pooling == Pooling::first &&
                         deck_.model.attention == AttentionMask::causal,
                     "the first token, which sees nothing behind it, is the same in both answers "
                     "(give last or mean)");
    refuse_with_kind("model.tied_embeddings", deck_.model.tied_embeddings,
                     "outputs are not tokens (leave it out)");
    refuse_with_kind("model.logit_soft_cap", deck_.model.logit_soft_cap > 0,
                     "it is of tokens' logits (leave it out)");
  }

  void idle_with_kind(bool used, const char* key, bool given) {
    if (used || !given) return;
    problem(key, fmt::format("{} has no effect with task.kind = \"{}\" (leave it out)", key,
                             enum_word(deck_.task.kind)));
  }

  void refuse_with_kind(const char* key, bool given, const char* why) {
    if (usable({key}) && given) {
      problem(key, fmt::format("{} does not go with task.kind = \"{}\": {}", key,
                               enum_word(deck_.task.kind), why));
    }
  }

  /// Two documents that follow one another are compared.
  void pairs() {
    const TaskSection& task = deck_.task;
    const bool relative = has_reference(task.kind);
    idle_with_kind(relative, "task.beta", task.beta.has_value());
    idle_with_kind(relative, "task.reference", task.reference.has_value());
    if (!has_pairs(task.kind)) return;
    const auto missing = [&](const char* key, bool given, const char* why) {
      if (usable({key}) && relative && !given) {
        problem(key, fmt::format("{} is missing: task.kind = \"{}\" {}", key, enum_word(task.kind),
                                 why));
      }
    };
    missing("task.reference", task.reference.has_value(),
            "needs the file that tessera evaluate DECK --reference makes, or its name for that");
    missing("model.init_from", deck_.model.init_from.has_value(),
            "begins with a trained model, which is the reference model too");
    if (usable({"batch.micro"}) && deck_.batch.micro % 2 != 0) {
      problem("batch.micro",
              fmt::format("batch.micro = {} is odd, but task.kind = \"{}\" compares samples in "
                          "pairs, which stay in one micro-batch (give an even one)",
                          deck_.batch.micro, enum_word(task.kind)));
    }
    count_targets_first();
    refuse_with_kind("task.z_loss", task.z_loss > 0, "losses are of pairs, not of targets");
    refuse_with_kind("task.label_smoothing",
                     task.kind == TaskKind::ipo ? task.label_smoothing > 0
                                                : static_cast<float>(task.label_smoothing) >= 0.5F,
                     task.kind == TaskKind::ipo ? "it is of dpo and reward (leave it out)"
                                                : "with half of the preferences wrong there is "
                                                  "nothing to learn (give less than 0.5)");
    one_document();
    refuse_with_kind("moe.aux_loss", deck_.model.moe.experts > 0 && deck_.model.moe.aux_loss > 0,
                     "losses of routers are beside those of targets, and pairs have none (give 0)");
    refuse_with_kind("moe.z_loss", deck_.model.moe.experts > 0 && deck_.model.moe.z_loss > 0,
                     "losses of routers are beside those of targets, and pairs have none (give 0)");
  }

  /// What the model draws itself.
  void answers() {
    const TaskSection& task = deck_.task;
    const RolloutSection& rollout = deck_.rollout;
    if (task.kind == TaskKind::values) {
      problem(
          "task.kind",
          "task.kind = \"values\" is of the critic that a run of \"ppo\" trains beside its model "
          "(use that, with task.critic)");
      return;
    }
    idle_without_answers();
    if (!draws_answers(task.kind)) return;
    if (!rollout.tokens && usable({"rollout.tokens"})) {
      problem(
          "rollout.tokens",
          fmt::format("rollout.tokens is missing: task.kind = \"{}\" needs the most tokens that "
                      "an answer may have",
                      enum_word(task.kind)));
    }
    if (!deck_.model.init_from && usable({"model.init_from"})) {
      problem("model.init_from",
              fmt::format("model.init_from is missing: task.kind = \"{}\" begins with a trained "
                          "model, and with its tokenizer",
                          enum_word(task.kind)));
    }
    if (task.kind == TaskKind::grpo && rollout.samples < 2 && usable({"rollout.samples"})) {
      problem("rollout.samples",
              "rollout.samples = 1: task.kind = \"grpo\" compares answers to one prompt (give at "
              "least 2, or use \"ppo\")");
    }
    if (rollout.cache_tokens && usable({"rollout.cache_tokens", "batch.sequence"}) &&
        *rollout.cache_tokens < deck_.batch.sequence) {
      problem("rollout.cache_tokens",
              fmt::format("rollout.cache_tokens = {}: a single sequence may have batch.sequence = "
                          "{} tokens",
                          *rollout.cache_tokens, deck_.batch.sequence));
    }
    rounds();
    whole_groups("batch.global", deck_.batch.global);
    for (const RampEntry& entry : deck_.batch.ramp) whole_groups("batch.ramp", entry.global);
    count_targets_first();
    one_document();
    refuse_with_kind("task.z_loss", task.z_loss > 0, "losses are of answers (leave it out)");
    refuse_with_kind("task.label_smoothing", task.label_smoothing > 0,
                     "losses are of answers (leave it out)");
    unlike_the_one_that_draws();
    refuse_with_kind("data.validation", !deck_.data.validation.empty(),
                     "it evaluates losses of text that is there (leave it out)");
    refuse_with_kind("data.train", is_mixture(deck_.data),
                     "prompts are taken by turns (give files without weights and epochs)");
    if (rollout.chat && rollout.field != RolloutSection{}.field)
      problem("rollout.field",
              "rollout.field has no effect with rollout.chat, which finds the prompt (leave it "
              "out)");
    rewards();
    critic();
  }

  /// What says which rewards are expected, if that is a model of its own.
  void critic() {
    const TaskSection& task = deck_.task;
    if (!has_values(task.kind)) return;
    if (!task.critic) {
      if (task.critic_lr)
        problem("task.critic_lr",
                "task.critic_lr has no effect without task.critic (leave it out)");
      return;
    }
    if (task.value_loss != TaskSection{}.value_loss) {
      problem("task.value_loss",
              "task.value_loss has no effect with task.critic, whose loss is nothing else (give "
              "task.critic_lr)");
    }
    if (deck_.precision.compute == Precision::f16 && usable({"precision.compute"})) {
      problem("precision.compute",
              "precision.compute = \"f16\" does not go with task.critic, whose losses would need a "
              "scale of their own (use \"bf16\" or \"f32\")");
    }
  }

  /// Keys that have an effect only where the model draws answers.
  void idle_without_answers() {
    constexpr std::array<std::string_view, 4> kOfTask = {"task.mean", "task.scale_rewards",
                                                         "task.clip", "task.kl"};
    constexpr std::array<std::string_view, 6> kOfValues = {"task.gamma",      "task.lambda",
                                                           "task.value_loss", "task.value_clip",
                                                           "task.critic",     "task.critic_lr"};
    const TaskKind kind = deck_.task.kind;
    const Deck unset;
    for (const SchemaRow& row : schema_rows()) {
      const bool of_values = std::ranges::count(kOfValues, row.name) > 0,
                 of_task = std::ranges::count(kOfTask, row.name) > 0;
      if (!of_values && !of_task && row.section != "rollout" && row.section != "reward") continue;
      idle_with_kind(of_values ? has_values(kind) : draws_answers(kind),
                     std::string(row.name).c_str(), row.field.get(deck_) != row.field.get(unset));
    }
  }

  void rewards() {
    const RewardSection& reward = deck_.reward;
    const RewardSection unset;
    if (!usable({"reward.kind", "reward.command"})) return;
    const bool program = reward.kind == RewardKind::command,
               model = reward.kind == RewardKind::model;
    const auto idle = [&](const char* key, bool given) {
      if (!given) return;
      problem(key, fmt::format("{} has no effect with reward.kind = \"{}\" (leave it out)", key,
                               enum_word(reward.kind)));
    };
    idle("reward.field", (program || model) && reward.field != unset.field);
    idle("reward.model", !model && reward.model);
    idle("reward.command", !program && !reward.command.empty());
    idle("reward.timeout", !program && reward.timeout != unset.timeout);
    if (program && (reward.command.empty() || reward.command.front().empty())) {
      problem("reward.command",
              "reward.command is missing: reward.kind = \"command\" needs a program, as "
              "[\"python3\", \"reward.py\"]");
    }
    if (model && !reward.model) {
      problem("reward.model",
              "reward.model is missing: reward.kind = \"model\" needs the directory of one that "
              "was trained with task.kind = \"reward\", as tessera export writes it");
    }
  }

  /// What would make the model that learns another than the one that draws, or is compared with.
  void unlike_the_one_that_draws() {
    const ModelSection& model = deck_.model;
    const double dropout = model.dropout + model.dropout_embedding + model.dropout_attention +
                           model.dropout_residual + model.adapter.dropout;
    refuse_with_kind("model.dropout", dropout > 0,
                     "answers are drawn without, as by another model (leave dropout out)");
    refuse_with_kind("moe.jitter", model.moe.jitter > 0,
                     "answers are drawn without, as by another model (leave it out)");
    refuse_with_kind("moe.dispatch",
                     model.moe.experts > 0 && model.moe.dispatch != ExpertDispatch::exact,
                     "answers are drawn of tokens as they are (use \"exact\")");
    refuse_with_kind("precision.matmul", deck_.precision.matmul == Matmul::fp8,
                     "answers are drawn by products of precision.compute (use \"same\")");
    refuse_with_kind("guard.spike", deck_.guard.spike != Spike::off,
                     "the loss of answers is about 0 whatever the model does (use \"off\")");
    refuse_with_kind(
        "frozen.type",
        deck_.task.kl > 0 && model.frozen.type != FrozenType::none &&
            model.adapter.kind == AdapterKind::none,
        "the model that task.kl compares with has no codes (use \"none\", or adapters)");
    refuse_with_kind(
        "run.reproducible", model.moe.experts > 0 && deck_.run.reproducible == Reproducible::layout,
        "what experts draw depends on what is drawn beside it, and so on the number of "
        "ranks (use \"run\")");
  }

  /// Answers that several steps learn from are in no checkpoint.
  void rounds() {
    const std::int64_t steps = deck_.rollout.steps, every = deck_.checkpoint.every;
    if (!usable({"rollout.steps", "task.clip", "checkpoint.every"})) return;
    const auto idle = [&](const char* key, bool given) {
      if (steps > 1 || !given) return;
      problem(key, fmt::format("{} has no effect with rollout.steps = 1, where the model that "
                               "learns is the one that drew (leave it out)",
                               key));
    };
    idle("task.clip", deck_.task.clip != TaskSection{}.clip);
    idle("task.value_clip",
         has_values(deck_.task.kind) && deck_.task.value_clip != TaskSection{}.value_clip);
    if (every % steps != 0) {
      problem("checkpoint.every",
              fmt::format("checkpoint.every = {} does not go with rollout.steps = {}: answers that "
                          "several steps learn from are in no checkpoint (give a multiple)",
                          every, steps));
    }
  }

  /// All answers to a prompt are of one step.
  void whole_groups(const char* key, std::int64_t global) {
    const std::int64_t samples = deck_.rollout.samples;
    if (!usable({key, "rollout.samples"}) || global % samples == 0) return;
    problem(key,
            fmt::format("{}: {} answers are not {} to each of some prompts (give a multiple of "
                        "rollout.samples = {})",
                        key, global, samples, samples));
  }

  /// What does not go with samples of one document each.
  void one_document() {
    refuse_with_kind("data.documents", deck_.data.documents != Documents::separate,
                     "a sample is a document (leave it out)");
    refuse_with_kind("data.separator", deck_.data.separator.has_value(),
                     "where documents end, the .idx says (leave it out)");
    refuse_with_kind("batch.token_budget",
                     deck_.batch.token_budget.has_value() && !has_classes(deck_.task.kind),
                     "a sample is one document (leave it out, and give batch.micro)");
    refuse_with_kind("batch.curriculum", !deck_.batch.curriculum.empty(),
                     "a document is taken whole (leave it out)");
  }

  /// A micro-batch of whole documents.
  void token_budget() {
    const auto& budget = deck_.batch.token_budget;
    if (usable({"batch.documents", "batch.token_budget", "task.kind"}) && deck_.batch.documents &&
        !(budget && deck_.task.kind == TaskKind::classify)) {
      problem("batch.documents",
              fmt::format("batch.documents = {} has no effect but with batch.token_budget and "
                          "task.kind = \"classify\" (leave it out)",
                          *deck_.batch.documents));
    }
    if (!budget || !usable({"batch.token_budget", "batch.sequence", "batch.micro"})) return;
    if (deck_.batch.documents)
      at_most("batch.documents", *deck_.batch.documents, "batch.token_budget", *budget);
    const auto refuse = [&](const char* key, const std::string& what) {
      problem(key, fmt::format("{} with batch.token_budget = {}", what, *budget));
    };
    if (deck_.batch.sequence != *budget) {
      refuse("batch.sequence",
             fmt::format("batch.sequence = {} does not go (leave it out)", deck_.batch.sequence));
    }
    if (deck_.batch.micro != 1) {
      refuse("batch.micro", fmt::format("batch.micro = {} does not go, for a micro-batch is one "
                                        "sequence (leave it out)",
                                        deck_.batch.micro));
    }
    if (!usable({"data.documents", "data.positions", "data.separator", "batch.curriculum"})) return;
    if (deck_.data.documents != Documents::separate)
      refuse("data.documents", "data.documents = \"joined\" does not go (leave it out)");
    if (deck_.data.positions != Positions::document)
      refuse("data.positions", "data.positions = \"sequence\" does not go (leave it out)");
    if (deck_.data.separator) {
      refuse("data.separator",
             "data.separator does not go: where documents end is read from the .idx "
             "before the run begins (leave it out)");
    }
    if (!deck_.batch.curriculum.empty())
      refuse("batch.curriculum",
             "batch.curriculum does not go, which cuts sequences (leave one out)");
  }

  /// What documents that share a sequence are to each other.
  void documents() {
    const DataSection& data = deck_.data;
    if (!usable({"data.documents", "data.positions", "data.separator"})) return;
    if (data.separator && *data.separator >= deck_.model.vocab && usable({"model.vocab"})) {
      problem("data.separator", fmt::format("data.separator = {} is not below model.vocab = {}",
                                            *data.separator, deck_.model.vocab));
    }
    if (data.documents == Documents::joined) {
      if (data.positions == Positions::document) {
        problem(
            "data.positions",
            "data.positions = \"document\" needs data.documents = \"separate\": tokens that see "
            "other documents need positions that tell them apart");
      }
      if (data.separator) {
        problem("data.separator",
                "data.separator has no effect where data.documents = \"joined\" "
                "(leave it out, or give \"separate\")");
      }
      return;
    }
    if (deck_.optimizer.compress_after && usable({"optimizer.name"})) {
      problem(
          "data.documents",
          fmt::format("data.documents = \"separate\" does not go with optimizer.name = \"{}\", "
                      "whose gradients join momentum before the number of targets that count is "
                      "known (give \"joined\", or adamw or lamb)",
                      enum_word(deck_.optimizer.name)));
    }
  }

  void lengths() {
    if (!set("run.steps") && !set("run.epochs") && !set("run.tokens")) {
      problem("run.steps", "the run has no end: give run.steps, run.epochs or run.tokens");
    }
    at_most_one({"schedule.warmup_steps", "schedule.warmup_tokens", "schedule.warmup_epochs"});
    at_most_one({"schedule.decay_steps", "schedule.decay_tokens", "schedule.decay_epochs"});
    at_most_one({"schedule.step_size", "schedule.step_epochs"});
    const ScheduleSection& s = deck_.schedule;
    if (usable({"schedule.kind"}) && s.kind == ScheduleKind::step && !set("schedule.step_size") &&
        !set("schedule.step_epochs")) {
      problem("schedule.kind",
              "schedule.kind = \"step\" needs schedule.step_size, or schedule.step_epochs");
    }
    if (usable({"schedule.kind", "schedule.warmup_steps", "schedule.warmup_tokens",
                "schedule.warmup_epochs"}) &&
        s.kind == ScheduleKind::inverse_sqrt && !s.warmup_steps && !s.warmup_tokens &&
        !s.warmup_epochs) {
      problem("schedule.kind",
              "schedule.kind = \"inverse_sqrt\" needs a warm-up, from whose length the rate falls: "
              "give schedule.warmup_steps, warmup_tokens or warmup_epochs");
    }
    if (usable({"schedule.min_lr", "optimizer.lr"}) && s.min_lr > deck_.optimizer.lr) {
      problem("schedule.min_lr", fmt::format("schedule.min_lr = {} is more than optimizer.lr = {}",
                                             s.min_lr, deck_.optimizer.lr));
    }
  }

  /// What batch.sequence must be a multiple of, its phases' lengths must.
  void curriculum() {
    const char* key = "batch.curriculum";
    const BatchSection& batch = deck_.batch;
    if (batch.curriculum.empty() || !usable({key, "batch.sequence"})) return;
    if (const auto what = curriculum_problem(batch.curriculum, batch.sequence))
      return problem(key, *what);
    const auto& after = deck_.optimizer.compress_after;
    const bool rows = usable({"optimizer.compress_after", "model.position"}) &&
                      deck_.model.position == PositionKind::learned;
    if (const auto last = phases(batch).back().step; after && rows && last > *after) {
      problem(key,
              fmt::format("{} goes on until step {}, but optimizer.compress_after = {}: learned "
                          "positions that come into use later would have no second moments "
                          "(let it end before, or compress later)",
                          key, last, *after));
    }
    const std::int64_t tensor = deck_.parallel.tensor, most = deck_.run.reproducible_tensor;
    const bool split = deck_.parallel.sequence && usable({"parallel.tensor", "parallel.sequence"});
    const bool layout = deck_.run.reproducible == Reproducible::layout &&
                        usable({"run.reproducible", "run.reproducible_tensor"});
    const char* given =
        batch.curriculum.table.empty() ? "start, end and round" : "the lengths of table";
    for (const LengthEntry& phase : phases(batch)) {
      const auto refuse = [&](const char* of, std::int64_t divisor, const char* other) {
        problem(key,
                fmt::format("{}: the {} tokens of sequences from step {} on do not divide "
                            "over {} = {} (give multiples of {} as {}{})",
                            key, phase.length, phase.step, of, divisor, divisor, given, other));
      };
      if (layout && phase.length % most != 0) return refuse("run.reproducible_tensor", most, "");
      if (split && phase.length % tensor != 0)
        return refuse("parallel.tensor", tensor, ", or parallel.sequence = false");
    }
  }
};

}  // namespace

void check_data(const LoadedDeck& loaded, Problems& problems) {
  DataChecker(loaded, problems).run();
}

}  // namespace tessera::deck
