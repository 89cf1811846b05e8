// A deck: everything that defines a run, as plain typed values, one struct per section of the TOML
// file. A member's initialiser is the key's default; what each key means is in schema_table.cpp
// (and in inputs/README.md, which is generated from it). What components take of it is in
// setup/inputs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "deck/fault.hpp"
#include "deck/words.hpp"

namespace tessera::deck {

/// Written in a deck as an integer or as "12GiB".
struct Bytes {
  std::int64_t count = 0;
  bool operator==(const Bytes&) const = default;
};

/// Written in a deck as an integer or as "hh:mm:ss".
struct Seconds {
  std::int64_t count = 0;
  bool operator==(const Seconds&) const = default;
};

/// From step `step` on, `global` sequences a step.
struct RampEntry {
  std::int64_t step = 0;
  std::int64_t global = 0;
  bool operator==(const RampEntry&) const = default;
};

/// From step `step` on, sequences of `length` tokens.
struct LengthEntry {
  std::int64_t step = 0;
  std::int64_t length = 0;
  bool operator==(const LengthEntry&) const = default;
};

/// How long the sequences of a step are (Li et al. 2021): they grow from `start` in step 0 to `end`
/// in step `steps`, or are as long as `table` says. deck/curriculum.hpp has the lengths.
struct Curriculum {
  std::int64_t start = 0;  // 0: there is no curriculum, or it is a table
  std::int64_t end = 0;    // loading replaces an unset one by batch.sequence
  std::int64_t steps = 0;
  std::int64_t round = 8;  // lengths between start and end are multiples of it
  Growth kind = Growth::linear;
  std::int64_t degree = 2;  // of the root
  std::vector<LengthEntry> table;
  Cut cut = Cut::truncate;
  bool empty() const { return start == 0 && table.empty(); }
  /// Whether each phase has the corpus cut into sequences of its own length.
  bool cuts_anew() const { return !empty() && cut == Cut::anew; }
  bool operator==(const Curriculum&) const = default;
};

/// The run ends at whichever of steps, tokens and epochs is reached first.
struct RunSection {
  std::string name = "tessera";
  std::string dir = "runs/{name}";  // see run_directory()
  std::optional<std::int64_t> steps;
  std::optional<double> epochs;
  std::optional<std::int64_t> tokens;
  std::int64_t seed = 1;
  Backend backend = Backend::automatic;
  Reproducible reproducible = Reproducible::run;
  std::int64_t reproducible_tensor = 1;
  std::int64_t reproducible_context = 1;
  std::variant<Resume, std::string> resume = Resume::automatic;  // or a checkpoint's path
  std::optional<Seconds> time_limit;
  std::optional<std::int64_t> deadline;
  std::optional<std::int64_t> threads;
  bool operator==(const RunSection&) const = default;
};

/// [moe]: feed-forward layers of experts.
struct MoeSection {
  std::int64_t experts = 0;  // 0: there are none
  std::int64_t top_k = 2;
  std::int64_t ffn_hidden = 0;
  std::int64_t shared_ffn_hidden = 0;
  std::int64_t every = 1;
  std::int64_t first_dense = 0;
  RouterScores scores = RouterScores::softmax;
  bool normalize = true;
  double scale = 1;
  std::int64_t groups = 1;
  std::int64_t group_top = 1;
  GroupScore group_score = GroupScore::largest;
  RouterGates gates = RouterGates::one;
  double capacity = 0;
  double jitter = 0;
  ExpertSplit split = ExpertSplit::width;
  ExpertDispatch dispatch = ExpertDispatch::exact;
  double aux_loss = 0.01;
  AuxOver aux_over = AuxOver::sequence;
  double z_loss = 0;
  bool bias = false;
  double bias_update = 0;
  bool operator==(const MoeSection&) const = default;
};

/// [adapter]: matrices of low rank, which alone are trained.
struct AdapterSection {
  AdapterKind kind = AdapterKind::none;
  std::int64_t rank = 8;
  double alpha = 16;
  double dropout = 0;
  std::vector<std::string> targets = {"*.attention.q.weight", "*.attention.v.weight"};
  bool operator==(const AdapterSection&) const = default;
};

/// [frozen]: what is not trained, and how its matrices are kept.
struct FrozenSection {
  std::vector<std::string> layers;     // patterns of their names
  FrozenType type = FrozenType::none;  // none: in the compute type
  std::int64_t block = 64;
  bool operator==(const FrozenSection&) const = default;
};

/// Loading replaces defaults that depend on other keys (family, preset, init_from, hidden) by
/// definite values: every number here is final, kv_heads, head_dim and ffn_hidden included.
struct ModelSection {
  Family family = Family::gpt2;
  std::optional<Preset> preset;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t hidden = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;
  std::int64_t kv_latent = 0;
  std::int64_t q_latent = 0;
  std::int64_t ffn_hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t context = 0;
  NormKind norm = NormKind::layernorm;
  NormPlacement norm_placed = NormPlacement::before;
  double norm_eps = 1e-5;
  AttentionMask attention = AttentionMask::causal;
  PositionKind position = PositionKind::learned;
  double rope_theta = 10000;
  double rope_local_theta = 0;
  double rotary_share = 1;
  std::int64_t rope_dim = 0;
  RopePairs rope_pairs = RopePairs::halves;
  RopeScalingKind rope_scaling = RopeScalingKind::none;
  double rope_factor = 1;
  double rope_low_frequency = 1;
  double rope_high_frequency = 4;
  double rope_magnitude = 0;
  double rope_mscale_all_dim = 0;
  std::int64_t rope_original_context = 0;
  std::int64_t window = 0;
  std::int64_t global_every = 0;
  QkNorm qk_norm = QkNorm::none;
  BlockForm block = BlockForm::sequential;
  ActivationKind activation = ActivationKind::gelu;
  bool bias = true;
  bool attention_bias = true;
  bool qkv_bias = false;
  bool scaled_embeddings = false;
  bool embedding_norm = false;
  std::int64_t head_hidden = 0;
  ActivationKind head_activation = ActivationKind::gelu;
  bool head_norm = false;
  bool head_bias = false;
  std::int64_t query_scalar = 0;
  double attention_soft_cap = 0;
  double logit_soft_cap = 0;
  bool tied_embeddings = true;
  MoeSection moe;
  AdapterSection adapter;
  FrozenSection frozen;
  double dropout = 0;
  double dropout_embedding = 0;
  double dropout_attention = 0;
  double dropout_residual = 0;
  double init_std = 0.02;
  InitScale init = InitScale::scaled;
  std::optional<std::string> init_from;
  HeadWeights init_head = HeadWeights::directory;
  bool accept_non_finite = false;
  bool operator==(const ModelSection&) const = default;
};

/// Token files, written in a deck as their path alone where neither a weight nor epochs are given.
struct DataEntry {
  std::string path;
  std::optional<double> weight;  // its share of the samples over that of all entries
  std::optional<double> epochs;  // passes over it in one epoch of the run
  bool operator==(const DataEntry&) const = default;
};
std::vector<std::string> paths_of(const std::vector<DataEntry>& entries);

struct DataSection {
  std::vector<DataEntry> train;
  std::vector<std::string> validation;
  bool shuffle = true;
  Documents documents = Documents::joined;
  std::optional<Positions> positions;     // loading replaces an unset one
  std::optional<std::int64_t> separator;  // token
  bool accept_changes = false;
  bool accept_tokenizer = false;
  bool operator==(const DataSection&) const = default;
};
/// Whether samples are dealt to the entries of data.train by weights or epochs.
bool is_mixture(const DataSection& section);

/// What the model learns. Loading sets unset keys that the kind uses.
struct TaskSection {
  TaskKind kind = TaskKind::lm;
  double label_smoothing = 0;
  double z_loss = 0;
  std::optional<std::int64_t> labels;  // classes
  std::optional<Pooling> pooling;
  std::optional<Overlong> overlong;
  std::optional<double> masked;  // of masked tokens
  std::optional<std::int64_t> mask_token;
  std::vector<std::int64_t> never_masked;  // tokens
  std::optional<double> beta;              // of pairs
  std::optional<std::string> reference;    // a file of what the reference model says of them
  AnswerMean mean = AnswerMean::answers;
  bool scale_rewards = true;
  std::array<double, 2> clip = {0.2, 0.2};
  double kl = 0;
  double gamma = 1, lambda = 0.95;            // of advantages
  double value_loss = 0.1, value_clip = 0.2;  // of estimated values
  std::optional<std::string> critic;          // a directory of a model that estimates them
  std::optional<double> critic_lr;            // with a critic; loading makes it optimizer.lr
  bool operator==(const TaskSection&) const = default;
};

/// The answers that the model draws in each step, to learn from them.
struct RolloutSection {
  std::int64_t samples = 8;                  // of each prompt
  std::int64_t steps = 1;                    // of training that learn from what is drawn at once
  std::optional<std::int64_t> tokens;        // of an answer
  std::int64_t slots = 16;                   // sequences that a rank goes on with at once
  std::optional<std::int64_t> cache_tokens;  // of all of them; not given: as many as they can have
  std::optional<std::string> chat;           // a template
  std::string field = "prompt";              // of a line
  std::int64_t keep_every = 0;               // steps
  bool operator==(const RolloutSection&) const = default;
};

/// What rewards answers.
struct RewardSection {
  RewardKind kind = RewardKind::match;
  std::string field = "answer";      // of a line
  std::vector<std::string> command;  // a program and its arguments
  double timeout = 60;               // seconds
  std::optional<std::string> model;  // a directory
  bool operator==(const RewardSection&) const = default;
};

struct BatchSection {
  std::int64_t sequence = 0;  // loading replaces an unset one by model.context
  std::int64_t micro = 1;
  std::int64_t global = 0;
  std::vector<RampEntry> ramp;
  LrScaling lr_scaling = LrScaling::none;
  std::optional<std::int64_t> token_budget;  // loading makes it batch.sequence
  std::optional<std::int64_t> documents;     // set where micro-batches of them have a class each
  Curriculum curriculum;
  bool operator==(const BatchSection&) const = default;
};

/// How the parameters whose names match are updated otherwise than the rest.
struct ParameterGroup {
  std::string match;  // see optim::matches
  std::string name;   // for people; `match` where none is given
  double lr_factor = 1;
  std::optional<double> weight_decay;
  bool operator==(const ParameterGroup&) const = default;
};

struct OptimizerSection {
  OptimizerName name = OptimizerName::adamw;
  double lr = 0;
  /// Set by the loader where the optimizer uses them (deck/presets).
  std::optional<std::array<double, 2>> betas;
  std::optional<double> eps;
  std::optional<std::array<double, 2>> trust;  // least and largest factor of a tensor's update
  std::optional<double> momentum;
  std::optional<bool> nesterov;
  std::optional<std::int64_t> newton_schulz;   // iterations
  std::optional<WholeAttention> attention;     // what of q, k and v is a whole matrix
  std::optional<std::int64_t> compress_after;  // applied updates before momentum is compressed
  // Of onebit_lamb: kernels::AverageTrust and kernels::FollowRatio.
  std::optional<double> beta3, r_min, r_max, r_threshold;
  SumPrecision moments = SumPrecision::f32;
  double weight_decay = 0;
  std::vector<ParameterGroup> groups;
  std::optional<double> ema;
  double clip_norm = 1;
  bool operator==(const OptimizerSection&) const = default;
};

/// At most one of each of the lengths of warm-up, decay and step is set.
struct ScheduleSection {
  ScheduleKind kind = ScheduleKind::cosine;
  ScheduleBy by = ScheduleBy::steps;
  std::optional<std::int64_t> warmup_steps;
  std::optional<std::int64_t> warmup_tokens;
  std::optional<double> warmup_epochs;
  double warmup_start_lr = 0;
  Warmup warmup = Warmup::linear;
  std::optional<std::int64_t> decay_steps;
  std::optional<std::int64_t> decay_tokens;
  std::optional<double> decay_epochs;
  double min_lr = 0;
  std::optional<std::int64_t> step_size;
  std::optional<double> step_epochs;
  double gamma = 0.1;
  bool operator==(const ScheduleSection&) const = default;
};

struct PrecisionSection {
  Precision compute = Precision::f32;
  Matmul matmul = Matmul::same;
  SumPrecision accumulate = SumPrecision::f32;
  SumPrecision gradients = SumPrecision::f32;
  std::variant<LossScale, double> loss_scale = LossScale::dynamic;
  std::int64_t loss_scale_power = 16;
  std::int64_t loss_scale_window = 1000;
  std::int64_t loss_scale_hysteresis = 2;
  double loss_scale_min = 1;
  bool operator==(const PrecisionSection&) const = default;
};

struct ParallelSection {
  std::int64_t tensor = 1;
  std::int64_t pipeline = 1;
  std::int64_t data = 0;  // 0: the rest of the ranks
  std::int64_t experts = 1;
  ExpertExchange expert_exchange = ExpertExchange::direct;
  bool expert_overlap = false;
  std::int64_t context = 1;
  ContextKind context_kind = ContextKind::automatic;
  bool sequence = true;
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::int64_t virtual_stages = 1;
  std::variant<Placement, std::vector<std::int64_t>> placement = Placement::balanced;
  std::int64_t ranks_per_node = 0;  // 0: ask MPI
  bool operator==(const ParallelSection&) const = default;
};

struct RecomputeSection {
  Recompute policy = Recompute::none;
  bool operator==(const RecomputeSection&) const = default;
};

struct QuantizeSection {
  QuantizedWeights weights = QuantizedWeights::none;
  QuantizedGradients gradients = QuantizedGradients::none;
  std::int64_t block = 256;
  Bytes chunk = {std::int64_t{1} << 20};
  bool error_feedback = false;
  bool stochastic = false;
  bool operator==(const QuantizeSection&) const = default;
};

struct ZeroSection {
  std::int64_t stage = 0;
  ReduceWhen reduce = ReduceWhen::step;  // loading replaces an unset one by the stage's default
  std::optional<std::int64_t> prefetch;  // a run's start replaces an unset one
  std::int64_t tiles = 1;
  std::variant<Secondary, std::int64_t> secondary = Secondary::none;
  QuantizeSection quantize;
  bool operator==(const ZeroSection&) const = default;
};

struct OffloadSection {
  OffloadTier parameters = OffloadTier::none;
  OffloadTier gradients = OffloadTier::none;
  OffloadTier optimizer = OffloadTier::none;
  OffloadTier activations = OffloadTier::none;
  CacheTier cache = CacheTier::none;  // of generation
  std::optional<std::int64_t> ahead;  // set by the loader where something is offloaded
  double optimizer_share = 1;
  std::vector<std::string> nvme;
  Bytes block = {std::int64_t{8} << 20};
  std::int64_t depth = 16;
  bool keep = false;
  bool uses(OffloadTier tier) const {
    return parameters == tier || gradients == tier || optimizer == tier || activations == tier;
  }
  bool anything() const { return uses(OffloadTier::host) || uses(OffloadTier::nvme); }
  bool operator==(const OffloadSection&) const = default;
};

struct MemorySection {
  std::variant<MemoryBudget, Bytes> device = MemoryBudget::automatic;
  std::variant<MemoryBudget, Bytes> host = MemoryBudget::automatic;
  std::optional<std::int64_t> logits;  // tokens; loading replaces an unset one, nothing: all
  std::int64_t ffn = 0;                // tokens; 0: all
  bool operator==(const MemorySection&) const = default;
};

struct CheckpointSection {
  std::int64_t every = 1000;
  std::int64_t keep = 3;
  std::int64_t keep_every = 0;
  bool async = true;
  bool verify = true;
  bool operator==(const CheckpointSection&) const = default;
};

struct EvaluateSection {
  std::int64_t every = 0;
  std::int64_t batches = 16;
  bool operator==(const EvaluateSection&) const = default;
};

struct LogSection {
  std::int64_t every = 1;
  std::optional<std::array<std::int64_t, 2>> profile;  // first and last step
  bool operator==(const LogSection&) const = default;
};

/// Injected faults, for tests of recovery.
struct FaultSection {
  std::vector<Fault> inject;
  bool operator==(const FaultSection&) const = default;
};

struct GuardSection {
  NonFinite non_finite = NonFinite::skip;
  std::int64_t max_skips = 16;
  Spike spike = Spike::off;
  std::int64_t spike_window = 100;
  double spike_threshold = 10;
  std::int64_t rollback_steps = 100;
  double rollback_lr_factor = 0.5;
  std::int64_t check_replicas = 0;
  Seconds hang_timeout{600};
  std::optional<std::string> interface;
  bool operator==(const GuardSection&) const = default;
};

struct Deck {
  RunSection run;
  ModelSection model;
  DataSection data;
  TaskSection task;
  RolloutSection rollout;
  RewardSection reward;
  BatchSection batch;
  OptimizerSection optimizer;
  ScheduleSection schedule;
  PrecisionSection precision;
  ParallelSection parallel;
  RecomputeSection recompute;
  ZeroSection zero;
  OffloadSection offload;
  MemorySection memory;
  CheckpointSection checkpoint;
  EvaluateSection evaluate;
  LogSection log;
  FaultSection fault;
  GuardSection guard;
  bool operator==(const Deck&) const = default;
};

/// run.dir with every "{name}" replaced by run.name.
std::string run_directory(const Deck& deck);

/// The whole deck as TOML, every default filled in; it parses back to an identical Deck. Keys that
/// are unset appear as comments that say what unset means.
std::string to_toml(const Deck& deck);

}  // namespace tessera::deck
