// The table itself; to make a value available, add its word to the row's `built`.
#include "core/sharding.hpp"
#include "deck/codec.hpp"
#include "deck/schema.hpp"

namespace tessera::deck {

namespace {

template <auto kMember, auto... kRest>
auto& member_of(auto& object) {
  if constexpr (sizeof...(kRest) == 0) {
    return object.*kMember;
  } else {
    return member_of<kRest...>(object.*kMember);
  }
}

/// The Field at a path of members: field<&Deck::zero, &ZeroSection::stage>().
template <auto... kPath>
constexpr Field field() {
  using T = std::remove_cvref_t<decltype(member_of<kPath...>(std::declval<Deck&>()))>;
  return {.type = &Codec<T>::type,
          .words = &Words<T>::list,
          .set =
              [](Deck& deck, const Value& value) {
                auto read = Codec<T>::read(value);
                if (!read) return false;
                member_of<kPath...>(deck) = *std::move(read);
                return true;
              },
          .problem = &Problem<T>::of,
          .get = [](const Deck& deck) { return Codec<T>::write(member_of<kPath...>(deck)); }};
}

/// "zero.quantize.block" at &Deck::zero, &ZeroSection::quantize, &QuantizeSection::block.
template <auto... kPath>
constexpr SchemaRow row(std::string_view name, std::string_view meaning, KeyRules rules = {}) {
  const std::size_t dot = name.rfind('.');
  return {name, name.substr(0, dot), name.substr(dot + 1), field<kPath...>(), meaning, rules};
}

constexpr Limits at_least(double low) { return {.low = low}; }
constexpr Limits above(double low) { return {.low = low, .above_low = true}; }
constexpr Limits between(double low, double high) { return {.low = low, .high = high}; }
constexpr Limits fraction() { return {.low = 0, .high = 1, .below_high = true}; }
constexpr Limits as_f32(Limits limits) {
  limits.in_f32 = true;
  return limits;
}

// Far above any real run, and such that bytes of a model (layers x heads x head_dim x hidden x 64)
// and tokens of a step (global x sequence) fit 64 bits whatever a deck says. Defaults that follow
// from other keys (head_dim, ffn_hidden) stay within their own limits.
constexpr Limits kLayers = between(1, 1 << 12);
constexpr Limits kHeads = between(1, 1 << 10);
constexpr Limits kHidden = between(1, 1 << 16);
constexpr Limits kInner = between(1, 1 << 18);
constexpr Limits kVocab = between(1, 1 << 24);
constexpr Limits kLength = between(1, 1 << 30);
constexpr Limits kMicro = between(1, 1 << 20);
constexpr Limits kGlobal = between(1, double{1LL << 32});
constexpr Limits kRanks = between(1, 1 << 20);

constexpr SchemaSection kSections[] = {
    {"run", "What runs, for how long, and where its files go"},
    {"model", "The architecture: a family's defaults < preset < explicit keys"},
    {"moe", "Feed-forward layers of experts, of which a router chooses some for each token"},
    {"adapter",
     "Matrices of low rank beside those of a frozen model (Hu et al. 2021, LoRA), which alone are "
     "trained, with lengths of rows if so wanted (DoRA): y = x W^T + s (drop(x) A^T) B^T"},
    {"frozen",
     "What of a model is not trained, and how its matrices are kept: if need be as codes, which "
     "become the compute type just before each use (Dettmers et al. 2023, QLoRA)"},
    {"data",
     "Token files: prefixes of .bin and .idx pairs, or paths ending in .bin (globs allowed)",
     &token_files_markdown},
    {"task", "What the model learns"},
    {"rollout",
     "With task.kind = \"grpo\" or \"ppo\": the answers that the model draws in each step, to "
     "learn "
     "from them, at temperature 1 from all tokens"},
    {"reward", "With task.kind = \"grpo\" or \"ppo\": what says how good an answer is"},
    {"batch", "How many sequences one step sees, and how they are cut", &curricula_markdown},
    {"optimizer", "The update rule and its numbers"},
    {"schedule", "The learning rate over applied updates", &schedules_markdown},
    {"precision", "Element types of compute, sums and traffic"},
    {"parallel", "The mesh: data x pipeline x tensor"},
    {"recompute", "Activations computed again in backward instead of kept"},
    {"zero",
     "What data ranks share out: 0 nothing, 1 optimizer, 2 and gradients, 3 and parameters"},
    {"zero.quantize", "Compressed ZeRO traffic"},
    {"offload", "Which state lives outside of device memory"},
    {"memory", "Budgets of the memory tiers"},
    {"checkpoint", "What is saved, and how often; one is also written at the end of a run"},
    {"evaluate", "Loss on the validation data"},
    {"log", "The step line and metrics.jsonl"},
    {"fault",
     "Faults that a training run injects into itself, to test recovery. Each happens once in a "
     "run, "
     "also over restarts (the run directory's `faults/` remembers it); `slow` and `slow_disk` "
     "last. "
     "Faults of files hit the nth matching call from the step on (0: from the start on), and "
     "`count` calls in all",
     &fault_markdown},
    {"guard", "What happens when numbers or peers go wrong"},
};

using enum OnResume;

constexpr SchemaRow kRows[] = {
    row<&Deck::run, &RunSection::name>("run.name", "the run's name"),
    row<&Deck::run, &RunSection::dir>("run.dir",
                                      "directory of the run's files; {name} stands for run.name"),
    row<&Deck::run, &RunSection::steps>("run.steps", "steps, skipped ones included",
                                        {.limits = at_least(1), .unset = "no limit of this kind"}),
    row<&Deck::run, &RunSection::epochs>("run.epochs", "passes over the training data",
                                         {.limits = above(0), .unset = "no limit of this kind"}),
    row<&Deck::run, &RunSection::tokens>("run.tokens", "training tokens",
                                         {.limits = at_least(1), .unset = "no limit of this kind"}),
    row<&Deck::run, &RunSection::seed>("run.seed", "of initial weights, dropout and data order",
                                       {.limits = at_least(0), .on_resume = refused}),
    row<&Deck::run, &RunSection::backend>(
        "run.backend",
        "where kernels run; auto: on GPUs where there are any; debug: on the CPU, in memory that "
        "the host cannot touch"),
    row<&Deck::run, &RunSection::reproducible>(
        "run.reproducible",
        "the promise: none, for GPUs' faster attention; same bits on the same layout; or on every "
        "layout",
        {.on_resume = refused}),
    row<&Deck::run, &RunSection::reproducible_tensor>(
        "run.reproducible_tensor", "largest tensor size that layout mode must cover",
        {.limits = kHeads, .on_resume = refused}),
    row<&Deck::run, &RunSection::reproducible_context>(
        "run.reproducible_context", "largest number of context ranks that layout mode must cover",
        {.limits = kRanks, .on_resume = refused}),
    row<&Deck::run, &RunSection::resume>(
        "run.resume",
        "continue from the newest checkpoint if there is one, never, always, or from this one"),
    row<&Deck::run, &RunSection::time_limit>("run.time_limit",
                                             "stop with a checkpoint after this time",
                                             {.limits = at_least(1), .unit = "s", .unset = "none"}),
    row<&Deck::run, &RunSection::deadline>(
        "run.deadline", "stop with a checkpoint before this moment",
        {.limits = at_least(1), .unit = "unix s", .unset = "none"}),
    row<&Deck::run, &RunSection::threads>(
        "run.threads", "of each rank",
        {.limits = between(1, 4096),
         .unset = "OMP_NUM_THREADS, else the node's cores in this job, each divided among the "
                  "ranks that may use it; the least over all ranks"}),
    row<&Deck::model, &ModelSection::family>(
        "model.family", "the kind of transformer; sets the defaults of the keys below",
        {.on_resume = architecture}),
    row<&Deck::model, &ModelSection::preset>("model.preset", "a published architecture",
                                             {.unset = "none"}),
    row<&Deck::model, &ModelSection::layers>(
        "model.layers", "transformer blocks",
        {.limits = kLayers, .required = true, .on_resume = architecture}),
    row<&Deck::model, &ModelSection::heads>(
        "model.heads", "attention heads",
        {.limits = kHeads, .required = true, .on_resume = architecture}),
    row<&Deck::model, &ModelSection::kv_heads>(
        "model.kv_heads", "key and value heads; heads share them in equal groups",
        {.limits = kHeads, .unset = "heads", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::hidden>(
        "model.hidden", "width of the residual stream",
        {.limits = kHidden, .required = true, .on_resume = architecture}),
    row<&Deck::model, &ModelSection::head_dim>(
        "model.head_dim", "width of one head",
        {.limits = kHidden, .unset = "hidden / heads", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::value_dim>(
        "model.value_dim",
        "width of a head's values where these are made of latents; 0: that of the head",
        {.limits = between(0, 1 << 12), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::kv_latent>(
        "model.kv_latent",
        "width of the vector, one for all heads, that keys and values are made of (multi-head "
        "latent attention: DeepSeek-AI 2024, DeepSeek-V2); 0: they are made of the layer's input",
        {.limits = between(0, 1 << 20), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::q_latent>(
        "model.q_latent",
        "width of the vector that queries are made of, beside kv_latent; 0: they are made of the "
        "layer's input",
        {.limits = between(0, 1 << 20), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::ffn_hidden>("model.ffn_hidden",
                                                 "width inside the feed-forward layer",
                                                 {.limits = kInner,
                                                  .unset = "4 hidden; required where it is gated",
                                                  .on_resume = architecture}),
    row<&Deck::model, &ModelSection::vocab>(
        "model.vocab", "tokens of the vocabulary",
        {.limits = kVocab, .required = true, .on_resume = architecture}),
    row<&Deck::model, &ModelSection::context>(
        "model.context", "longest sequence",
        {.limits = kLength, .unit = "tokens", .required = true, .on_resume = architecture}),
    row<&Deck::model, &ModelSection::norm>(
        "model.norm", "normalisation",
        {.unset = "gpt2, gpt_neox, gptj, bert, roberta: layernorm, others: rmsnorm",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::norm_placed>(
        "model.norm_placed",
        "what each sub-layer f normalises: its input, x + f(norm(x)); its output, x + norm(f(x)); "
        "both; or the sum with it, norm(x + f(x)), and then there is no norm before the head",
        {.unset = "olmo2: after, gemma2, gemma3: both, bert, roberta: sum, others: before",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::norm_eps>(
        "model.norm_eps", "added to the variance",
        {.limits = as_f32(above(0)),
         .unset = "deepseek_v2, deepseek_v3: 1e-6, others: 1e-5",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::attention>(
        "model.attention", "what a token sees: those up to it, or all of its sequence or document",
        {.unset = "bert, roberta: bidirectional, others: causal", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::position>(
        "model.position",
        "how positions enter: a table that is learned, or of sinusoids and fixed, is added to "
        "embeddings; or queries and keys are rotated",
        {.unset = "gpt2, bert, roberta: learned, others: rope", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::rope_theta>(
        "model.rope_theta", "base of the rotary frequencies",
        {.limits = above(0),
         .unset = "mixtral, qwen2, qwen3, qwen3_moe, "
                  "glm4_moe, gemma3: 1e6, olmo2: 500000, others: "
                  "10000",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::rope_local_theta>(
        "model.rope_local_theta",
        "that of layers with a window, which rope_scaling then leaves alone; 0: as of the others",
        {.limits = at_least(0), .unset = "gemma3: 10000, others: 0", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::rotary_share>(
        "model.rotary_share", "share of each head's columns that rotary positions turn, the first",
        {.limits = {.low = 0, .high = 1, .above_low = true},
         .unset = "gpt_neox, gptj: 0.25, glm4_moe: 0.5, others: 1",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::rope_dim>(
        "model.rope_dim",
        "beside kv_latent, how many of a head's columns turn, the last ones; keys of all heads "
        "share theirs",
        {.limits = between(0, 1 << 12), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::rope_pairs>(
        "model.rope_pairs",
        "which of these columns turn as pairs: i and i + half of them, or neighbours",
        {.unset = "gptj, deepseek_v2, deepseek_v3: neighbours, others: halves",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::rope_scaling>(
        "model.rope_scaling",
        "how rotary frequencies change for longer contexts: all are divided by rope_factor; or "
        "their base grows with the length L of sequences above rope_original_context, by "
        "(rope_factor L / rope_original_context - rope_factor + 1)^(R / (R - 2)) where R columns "
        "turn (dynamic NTK); or low ones are divided as Llama 3.1 does, or as YaRN does (Peng et "
        "al. 2023), which multiplies cosines and sines too",
        {.on_resume = architecture}),
    row<&Deck::model, &ModelSection::rope_factor>(
        "model.rope_factor",
        "by which rope_scaling divides frequencies, how many times longer contexts are",
        {.limits = at_least(1), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::rope_low_frequency>(
        "model.rope_low_frequency",
        "turns in rope_original_context up to which llama3 and yarn divide a frequency by the "
        "factor",
        {.limits = above(0), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::rope_high_frequency>(
        "model.rope_high_frequency", "turns from which on they leave a frequency as it is",
        {.limits = above(0), .unset = "yarn: 32, others: 4", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::rope_magnitude>(
        "model.rope_magnitude",
        "by which yarn multiplies cosines and sines; 0: 0.1 ln(rope_factor) + 1",
        {.limits = at_least(0), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::rope_mscale_all_dim>(
        "model.rope_mscale_all_dim",
        "beside yarn and kv_latent, attention's scores are multiplied by (0.1 s ln(rope_factor) + "
        "1)^2, where s is this; 0: they are not",
        {.limits = between(0.0, 1e3), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::rope_original_context>(
        "model.rope_original_context",
        "longest sequence before; required for dynamic, llama3 and yarn",
        {.limits = between(0, 1 << 24), .unit = "tokens", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::window>(
        "model.window", "tokens that attention sees, itself included; 0: all before it",
        {.limits = between(0, 1 << 24), .unit = "tokens", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::global_every>(
        "model.global_every",
        "of every so many layers with a window, the last has none; 0: all have it",
        {.limits = between(0, 1 << 12),
         .unset = "gemma2: 2, gemma3: 6, others: 0",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::qk_norm>(
        "model.qk_norm", "norm of q and k before they are compared: of each head, or of the whole",
        {.unset = "qwen3, qwen3_moe, gemma3: head, olmo2: whole, others: none",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::block>(
        "model.block",
        "attention, then the feed-forward layer; or both beside each other, on the same input, "
        "each "
        "with a norm of its own or with one for both",
        {.unset = "gpt_neox: parallel, gptj: parallel_one_norm, others: sequential",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::activation>(
        "model.activation", "of the feed-forward layer; swiglu and geglu are gated",
        {.unset =
             "gpt2, gptj: gelu, gpt_neox, bert, roberta: gelu_erf, gemma2, gemma3: geglu, others: "
             "swiglu",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::bias>(
        "model.bias", "biases in linear layers and norms",
        {.unset = "gpt2, gpt_neox, gptj, bert, roberta: true, others: false",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::attention_bias>(
        "model.attention_bias", "biases in attention's linear layers, where bias is true",
        {.unset = "gptj: false, others: true", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::qkv_bias>(
        "model.qkv_bias", "biases in the products that make q, k and v, where bias is false",
        {.unset = "qwen2: true, others: false", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::scaled_embeddings>(
        "model.scaled_embeddings", "embeddings are multiplied with the root of hidden",
        {.unset = "gemma2, gemma3: true, others: false", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::embedding_norm>(
        "model.embedding_norm", "a norm of the sum of a token's and a position's vectors",
        {.unset = "bert, roberta: true, others: false", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::head_hidden>(
        "model.head_hidden",
        "width of a dense layer with a bias between the last layer and the output matrix; 0: there "
        "is none",
        {.limits = between(0, 1 << 24), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::head_activation>(
        "model.head_activation", "what follows the dense layer", {.on_resume = architecture}),
    row<&Deck::model, &ModelSection::head_norm>("model.head_norm", "a norm that follows this",
                                                {.on_resume = architecture}),
    row<&Deck::model, &ModelSection::head_bias>(
        "model.head_bias", "a bias of outputs",
        {.unset =
             "task.kind classify or tokens: true; reward: false; else gptj: true, others: false",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::query_scalar>(
        "model.query_scalar", "attention's scores are divided by its root; 0: head_dim",
        {.limits = between(0, 1 << 24), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::attention_soft_cap>(
        "model.attention_soft_cap", "scores x become cap tanh(x / cap); 0: they stay",
        {.limits = as_f32(at_least(0)),
         .unset = "gemma2: 50, others: 0",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::logit_soft_cap>(
        "model.logit_soft_cap", "logits x become cap tanh(x / cap); 0: they stay",
        {.limits = as_f32(at_least(0)),
         .unset = "gemma2: 30, others: 0",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::tied_embeddings>(
        "model.tied_embeddings", "the head uses the token matrix",
        {.unset = "gpt2, gemma2, gemma3, bert, roberta: true, others: false",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::dropout>(
        "model.dropout", "probability of dropout wherever the next three keys do not say otherwise",
        {.limits = as_f32(fraction()), .on_resume = refused}),
    row<&Deck::model, &ModelSection::dropout_embedding>(
        "model.dropout_embedding", "that of embeddings, positions added",
        {.limits = as_f32(fraction()),
         .unset = "what init_from says, where model.dropout is not given; else model.dropout",
         .on_resume = refused}),
    row<&Deck::model, &ModelSection::dropout_attention>(
        "model.dropout_attention", "that of attention's probabilities",
        {.limits = as_f32(fraction()), .unset = "likewise", .on_resume = refused}),
    row<&Deck::model, &ModelSection::dropout_residual>(
        "model.dropout_residual", "that of the output of each sub-layer",
        {.limits = as_f32(fraction()), .unset = "likewise", .on_resume = refused}),
    row<&Deck::model, &ModelSection::init_std>(
        "model.init_std", "standard deviation of initial weights",
        {.limits = as_f32(at_least(0)), .on_resume = refused}),
    row<&Deck::model, &ModelSection::init>(
        "model.init",
        "how much smaller that of projections back into the residual stream is; scaled: by the "
        "root of 2 layers (Radford et al. 2019); depth: in the nth layer by that of 2 n (Zhang et "
        "al. 2019, OLMo); plain: not at all",
        {.on_resume = refused}),
    row<&Deck::model, &ModelSection::init_from>("model.init_from",
                                                "Hugging Face directory: its config.json fixes the "
                                                "architecture, its safetensors the weights",
                                                {.unset = "random weights", .on_resume = refused}),
    row<&Deck::model, &ModelSection::init_head>(
        "model.init_head",
        "of a classifier or reward model: whose weights its head begins with: those of init_from, "
        "or fresh ones, "
        "drawn from run.seed; BERT's pooler, where it is as wide, becomes the dense layer of a "
        "fresh head; the log lists what is drawn and what is not read",
        {.unset = "fresh where init_from has no head for task.kind, else directory",
         .on_resume = refused}),
    row<&Deck::model, &ModelSection::accept_non_finite>(
        "model.accept_non_finite",
        "take weights from init_from, and evaluate a checkpoint's, even where some are NaN or "
        "infinite"),
    row<&Deck::model, &ModelSection::moe, &MoeSection::experts>(
        "moe.experts", "experts of a layer; 0: there are none",
        {.limits = between(0, 512), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::top_k>(
        "moe.top_k", "experts that a token goes to",
        {.limits = between(1, 32), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::ffn_hidden>(
        "moe.ffn_hidden", "width inside an expert",
        {.limits = kInner, .unset = "model.ffn_hidden", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::shared_ffn_hidden>(
        "moe.shared_ffn_hidden",
        "width inside an expert that all tokens go to beside the chosen ones; 0: there is none",
        {.limits = between(0, 1 << 18), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::every>(
        "moe.every", "the last of every so many layers has experts",
        {.limits = kLayers, .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::first_dense>(
        "moe.first_dense", "the first so many layers have none",
        {.limits = between(0, 1 << 12), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::scores>(
        "moe.scores", "what a token's scores of experts are of the router's logits",
        {.unset = "glm4_moe, deepseek_v3: sigmoid, others: softmax", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::normalize>(
        "moe.normalize", "the scores of a token's experts are divided by their sum",
        {.unset =
             "true with two_levels, else false where top_k is 1; deepseek_v2: false, others: true",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::scale>(
        "moe.scale", "what they are multiplied with at the end",
        {.limits = as_f32(above(0)), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::groups>(
        "moe.groups",
        "equal groups of neighbouring experts, of which a token's experts are in the best "
        "(DeepSeek-V2, V3)",
        {.limits = between(1, 32), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::group_top>(
        "moe.group_top", "how many groups that is",
        {.limits = between(1, 32), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::group_score>(
        "moe.group_score",
        "what groups are compared by: their best score, or the sum of the best "
        "two",
        {.unset = "glm4_moe, deepseek_v3 with groups of several: two_largest, others: largest",
         .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::gates>(
        "moe.gates",
        "two_levels: a gate over moe.groups keeps the moe.group_top best, and a gate over the "
        "experts of each of these keeps the best moe.top_k / moe.group_top; experts are weighed by "
        "the product of both gates' softmaxes of what they keep (Shazeer et al. 2017, appendix "
        "B). one: a gate over all experts",
        {.on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::capacity>(
        "moe.capacity",
        "in training, how many tokens of a micro-batch an expert takes, over those of an even "
        "spread: of what is more, the later tokens do without it (1.25 in Fedus et al. 2021); "
        "metrics say how many. 0: all, and evaluation takes all",
        {.limits = as_f32(at_least(0)), .on_resume = event}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::jitter>(
        "moe.jitter",
        "e: in training each element of what the router reads, but not of what experts read, is "
        "multiplied with a random number between 1 - e and 1 + e: 1e-2 is common (Fedus et al. "
        "2021)",
        {.limits = as_f32(fraction()), .on_resume = event}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::split>(
        "moe.split",
        "what tensor ranks have of experts: a part of the width of each, or some of them whole, "
        "which keeps products of narrow experts large, but makes one rank wait for another where "
        "tokens are spread unevenly, and needs memory for all of them going to the same ones, or "
        "as many as moe.capacity lets",
        {.on_resume = event}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::dispatch>(
        "moe.dispatch",
        "what experts read in training: tokens as they are, or rounded to int8 in blocks of 128 "
        "with an f32 scale, as which they travel between the ranks of parallel.experts; backward "
        "takes the rounding for none, and what experts make travels as it is. Rounded wherever "
        "they are, so that losses are the same on every layout; evaluation rounds nothing",
        {.on_resume = event}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::aux_loss>(
        "moe.aux_loss",
        "what the balance of experts weighs in the training loss: a in a E sum(f p), the mean over "
        "sequences of each layer's, f the share of choices that are an expert, p the mean share of "
        "scores that it has (Fedus et al. 2021, Switch Transformer). Losses that are shown are "
        "without it. Where only a share s of targets counts it acts as a / s; of mlm s is taken to "
        "be task.masked, and made up for",
        {.limits = as_f32(at_least(0)), .on_resume = event}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::aux_over>(
        "moe.aux_over",
        "what f is the share of: sequence, of a sequence's choices; global_batch, of all choices "
        "of "
        "the last step that was applied, on every layout alike, which lets sequences of one kind "
        "go to few experts (Qiu et al. 2025); the first step has none, and no such loss",
        {.on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::z_loss>(
        "moe.z_loss",
        "z in z log(Z)^2, Z the sum of the exponentials of a token's router logits, which is added "
        "likewise: 1e-3 is common (Zoph et al. 2022, ST-MoE)",
        {.limits = as_f32(at_least(0)), .on_resume = event}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::bias>(
        "moe.bias",
        "a token's experts are those of the largest scores after a bias of each expert is added, "
        "which does not enter their weights (Wang et al. 2024, loss-free balancing; DeepSeek-V3). "
        "moe.aux_loss is 0.0 with it, unless it is given",
        {.unset = "glm4_moe, deepseek_v3: true, others: false", .on_resume = architecture}),
    row<&Deck::model, &ModelSection::moe, &MoeSection::bias_update>(
        "moe.bias_update",
        "by how much each step moves these biases: up for experts that were chosen less often "
        "than experts were on average, down for others, by no learning rate; 0: they stay, as "
        "those of frozen layers do",
        {.limits = as_f32(at_least(0)),
         .unset = "0.001 with moe.bias; 0.0 where they come from model.init_from, beside adapters "
                  "and where samples are padded",
         .on_resume = event}),
    row<&Deck::model, &ModelSection::adapter, &AdapterSection::kind>(
        "adapter.kind",
        "what the sum is multiplied with: lora, alpha / rank; rslora, alpha / sqrt(rank); dora, "
        "alpha / rank, and rows of W + s B A have lengths that are trained too (Liu et al. 2024), "
        "those of W at the start; none: there are no adapters, and all of the model is trained",
        {.on_resume = architecture}),
    row<&Deck::model, &ModelSection::adapter, &AdapterSection::rank>(
        "adapter.rank", "rows of A (drawn from run.seed), columns of B (0 at the start)",
        {.limits = between(1, 1 << 12), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::adapter, &AdapterSection::alpha>(
        "adapter.alpha", "of what the sum is multiplied with",
        {.limits = as_f32(above(0)), .on_resume = architecture}),
    row<&Deck::model, &ModelSection::adapter, &AdapterSection::dropout>(
        "adapter.dropout", "of what A reads, in training",
        {.limits = as_f32(fraction()), .on_resume = event}),
    row<&Deck::model, &ModelSection::adapter, &AdapterSection::targets>(
        "adapter.targets",
        "the matrices that have adapters: patterns of their names, in which * stands for any "
        "number of characters and ? for one. They are block.N.attention.q.weight, .k, .v and .out, "
        "with latents .q_latent, .kv_latent and .k_rope, block.N.mlp.gate.weight, .up and .down, "
        "and those of mlp.shared",
        {.on_resume = architecture}),
    row<&Deck::model, &ModelSection::frozen, &FrozenSection::layers>(
        "frozen.layers",
        "patterns of the layers that keep their parameters as they are, in which * stands for any "
        "number of characters and ? for one: vocabulary, positions, embedding_norm, block.N, "
        "final_norm, head_dense, head, head_bias, value_head. Beside adapters everything else is "
        "frozen, but for value_head",
        {.on_resume = refused}),
    row<&Deck::model, &ModelSection::frozen, &FrozenSection::type>(
        "frozen.type",
        "what the matrices of frozen blocks are kept, gathered and offloaded as, but those of "
        "routers and what all tensor ranks have whole: int8 or int4, integers with an f32 scale "
        "for so many; nf4, of 4 bits too, which stand for quantiles of normal numbers (Dettmers et "
        "al. 2023, QLoRA, whose blocks are of 64); none: the compute type",
        {.on_resume = refused}),
    row<&Deck::model, &ModelSection::frozen, &FrozenSection::block>(
        "frozen.block", "elements that have a scale in common, an even number",
        {.limits = between(16, 1 << 16), .on_resume = refused}),
    row<&Deck::data, &DataSection::train>(
        "data.train",
        "training token files: one corpus, or, with a weight or epochs for each, a mixture of "
        "several, as below; of grpo and ppo .jsonl files, a prompt a line",
        {.required = true, .on_resume = refused}),
    row<&Deck::data, &DataSection::validation>("data.validation",
                                               "validation token files, each evaluated by itself",
                                               {.on_resume = refused}),
    row<&Deck::data, &DataSection::shuffle>(
        "data.shuffle", "a fixed pseudo-random order in each epoch", {.on_resume = refused}),
    row<&Deck::data, &DataSection::documents>(
        "data.documents",
        "what a token's attention sees of its sequence: all tokens before it, or separate: only "
        "those of its own document; then the first token of a document is nobody's target",
        {.on_resume = refused}),
    row<&Deck::data, &DataSection::positions>(
        "data.positions",
        "what positions count from: the begin of the sequence, or that of the token's document, as "
        "far as the sequence has it",
        {.unset = "separate documents: document; joined ones: sequence", .on_resume = refused}),
    row<&Deck::data, &DataSection::separator>(
        "data.separator", "the token that ends a document, where documents are separate",
        {.limits = at_least(0),
         .unset = "documents end where the .idx says so",
         .on_resume = refused}),
    row<&Deck::data, &DataSection::accept_changes>(
        "data.accept_changes",
        "go on from a checkpoint though the training data is not what it was"),
    row<&Deck::data, &DataSection::accept_tokenizer>(
        "data.accept_tokenizer",
        "take training data, validation data and a model that were made with different tokenizers, "
        "and a vocabulary below the tokenizer's; otherwise such are refused"),
    row<&Deck::task, &TaskSection::kind>(
        "task.kind",
        "each token's target is the next one; or mlm: tokens are chosen, by the number of the "
        "sample, "
        "and are their own targets, masked or not (Devlin et al. 2019, BERT); or classify: a "
        "document has one target, its label; or tokens: it has a target for each of "
        "its words, the word's label at its first token; or dpo (Rafailov et al. 2023) or ipo "
        "(Azar "
        "et al. 2023): two documents that follow one another are answers to one prompt, of which "
        "the first is to be preferred, by what task.reference says of them; or reward (Ouyang et "
        "al. 2022): of such answers the first is to have the higher score, which the model's one "
        "output is (Bradley and Terry 1952); or grpo (Shao et al. 2024): the model answers each "
        "prompt several times, and learns to say what had a higher reward than the mean of these; "
        "or ppo (Schulman et al. 2017; Ouyang et al. 2022): it learns to say what had a higher "
        "reward than was expected, which a number beside each token's output says (value_head, 0 "
        "at the start, of the same layers), or task.critic; values is what a critic learns, and "
        "not for decks",
        {.on_resume = architecture}),
    row<&Deck::task, &TaskSection::labels>(
        "task.labels",
        "of classify and tokens: how many classes there are, as PREFIX.labels.json names them",
        {.limits = between(2, 1024),
         .unset = "none; classify and tokens need it",
         .on_resume = architecture}),
    row<&Deck::task, &TaskSection::pooling>(
        "task.pooling",
        "of classify and reward: what the head reads: the mean of the document's vectors, that of "
        "its first token, or that of its last",
        {.unset = "what init_from says; else classify: mean, reward: last",
         .on_resume = architecture}),
    row<&Deck::task, &TaskSection::overlong>(
        "task.overlong",
        "of classify and tokens: documents of more tokens than model.context, or than "
        "batch.sequence, are refused, or their end is cut off, but for the special tokens that "
        "close it",
        {.unset = "classify, tokens: refuse", .on_resume = refused}),
    row<&Deck::task, &TaskSection::label_smoothing>(
        "task.label_smoothing",
        "s in the training loss of a target, (1 - s) (-log p) + s mean(-log p), the mean over the "
        "vocabulary (Szegedy et al. 2016); evaluation has none. Of dpo and reward: the share of "
        "pairs whose preference is wrong, below 1/2 (Mitchell 2023, cDPO)",
        {.limits = as_f32(fraction()), .on_resume = event}),
    row<&Deck::task, &TaskSection::z_loss>(
        "task.z_loss",
        "z in z log(Z)^2, Z the sum of the exponentials of the logits, which is added to the "
        "training loss of a target: it keeps logits small, 1e-4 is common (Chowdhery et al. 2022, "
        "PaLM); evaluation has none",
        {.limits = as_f32(at_least(0)), .on_resume = event}),
    row<&Deck::task, &TaskSection::masked>(
        "task.masked",
        "of mlm: the share of tokens that are chosen; of these "
        "80 % become mask_token, 10 % another "
        "token, and 10 % stay",
        {.limits = above(0), .unset = "mlm: 0.15", .on_resume = refused}),
    row<&Deck::task, &TaskSection::mask_token>(
        "task.mask_token", "of mlm: the token of masked ones",
        {.limits = at_least(0), .unset = "none; mlm needs it", .on_resume = refused}),
    row<&Deck::task, &TaskSection::never_masked>(
        "task.never_masked", "of mlm: tokens that are not chosen, such as those that end documents",
        {.limits = at_least(0), .on_resume = refused}),
    row<&Deck::task, &TaskSection::beta>(
        "task.beta",
        "of dpo and ipo: what log ratios of the model and the reference model are multiplied with; "
        "the larger, the closer the model stays",
        {.limits = as_f32(above(0)), .unset = "dpo, ipo: 0.1", .on_resume = event}),
    row<&Deck::task, &TaskSection::reference>(
        "task.reference",
        "of dpo and ipo: the file of what the reference model, that of init_from, says of all "
        "documents; tessera evaluate DECK --reference makes it",
        {.unset = "none; dpo and ipo need it"}),
    row<&Deck::task, &TaskSection::mean>("task.mean",
                                         "of grpo and ppo: the loss is the mean over answers of "
                                         "the means over their tokens (Shao et "
                                         "al. 2024), or over all tokens (Yu et al. 2025, DAPO)",
                                         {.on_resume = event}),
    row<&Deck::task, &TaskSection::scale_rewards>(
        "task.scale_rewards",
        "of grpo: an answer's advantage is its reward less the mean over the prompt's answers, "
        "divided by their standard deviation, or not (Liu et al. 2025, Dr. GRPO). Of ppo: "
        "advantages "
        "are less their mean over all tokens that are drawn at once, and divided by their standard "
        "deviation, or neither",
        {.on_resume = event}),
    row<&Deck::task, &TaskSection::clip>(
        "task.clip",
        "[low, high] of grpo and ppo with rollout.steps above 1: a token counts no longer once its "
        "probability over that when it was drawn has gone as far below 1, or above, as the "
        "advantage would have it (Schulman et al. 2017, PPO)",
        {.limits = as_f32(fraction()), .on_resume = event}),
    row<&Deck::task, &TaskSection::kl>(
        "task.kl",
        "of grpo: what the estimated divergence from the model of init_from, which is kept in "
        "memory, weighs beside the loss; of ppo: each token's reward is less so many times log p - "
        "log p under that model (Ouyang et al. 2022); 0: nothing",
        {.limits = as_f32(at_least(0)), .on_resume = refused}),
    row<&Deck::task, &TaskSection::gamma>("task.gamma",
                                          "of ppo: what a reward weighs one token before it",
                                          {.limits = between(0, 1), .on_resume = event}),
    row<&Deck::task, &TaskSection::lambda>(
        "task.lambda",
        "of ppo: an advantage is the sum over later tokens of by how much each went better than "
        "expected, times (gamma lambda) to the power of how much later it is (Schulman et al. "
        "2016)",
        {.limits = between(0, 1), .on_resume = event}),
    row<&Deck::task, &TaskSection::value_loss>(
        "task.value_loss",
        "of ppo: what half the squared error of expected rewards weighs beside the loss",
        {.limits = as_f32(above(0)), .on_resume = event}),
    row<&Deck::task, &TaskSection::value_clip>(
        "task.value_clip",
        "of ppo with rollout.steps above 1: an expected reward counts no longer once it has moved "
        "so far from what it was when the answer was drawn, unless it went the wrong way",
        {.limits = as_f32(above(0)), .on_resume = event}),
    row<&Deck::task, &TaskSection::critic>(
        "task.critic",
        "of ppo: a directory in Hugging Face's format, of the tokenizer of model.init_from, of a "
        "model that is trained beside the other to say which rewards are to come: one that "
        "task.kind = \"reward\" has trained, whose head it begins with, or one of language, whose "
        "head is new. It is divided among ranks, offloaded and updated as the model that answers "
        "is, all of it, also beside adapters",
        {.unset = "a number beside each token's output, of the same layers",
         .on_resume = architecture}),
    row<&Deck::task, &TaskSection::critic_lr>("task.critic_lr",
                                              "the critic's in the place of optimizer.lr",
                                              {.limits = as_f32(above(0)),
                                               .unset = "with task.critic: optimizer.lr",
                                               .on_resume = event}),
    row<&Deck::rollout, &RolloutSection::samples>(
        "rollout.samples",
        "answers to each prompt, in one step, of grpo at least 2; batch.global is a multiple",
        {.limits = between(1, 1 << 16), .on_resume = refused}),
    row<&Deck::rollout, &RolloutSection::steps>(
        "rollout.steps",
        "steps that learn, each from its own part, from answers that are drawn at once; "
        "checkpoint.every is a multiple, by itself where it is not given",
        {.limits = between(1, 1 << 16), .on_resume = event}),
    row<&Deck::rollout, &RolloutSection::tokens>(
        "rollout.tokens", "of an answer, at most",
        {.limits = kLength, .unset = "none; grpo and ppo need it", .on_resume = event}),
    row<&Deck::rollout, &RolloutSection::slots>("rollout.slots",
                                                "sequences that a data rank goes on with at once",
                                                {.limits = between(1, 4096), .on_resume = event}),
    row<&Deck::rollout, &RolloutSection::cache_tokens>(
        "rollout.cache_tokens",
        "tokens of all these sequences together that there is room for; those for whose prompt "
        "and answer there is none wait",
        {.limits = kLength, .unset = "rollout.slots x batch.sequence", .on_resume = event}),
    row<&Deck::rollout, &RolloutSection::chat>(
        "rollout.chat",
        "lines are conversations, or prompts that the user says, and this template makes of them "
        "what the model answers, as tokenize --chat does; auto: that of init_from",
        {.unset = "a line's prompt is a text", .on_resume = refused}),
    row<&Deck::rollout, &RolloutSection::field>(
        "rollout.field", "the member of a line that is the prompt, where there is no template",
        {.on_resume = refused}),
    row<&Deck::rollout, &RolloutSection::keep_every>(
        "rollout.keep_every",
        "steps after which the answers of one are written into rollouts/ in the run directory, "
        "with their rewards; 0: none",
        {.limits = at_least(0)}),
    row<&Deck::reward, &RewardSection::kind>(
        "reward.kind",
        "1 for an answer that is the text or whole number that the line says, but for white space "
        "around it, and 0 for others; command: what a program says; model: what a model does that "
        "was trained with task.kind = \"reward\"",
        {.on_resume = event}),
    row<&Deck::reward, &RewardSection::field>(
        "reward.field", "of match: the member of a line that is the right answer",
        {.on_resume = event}),
    row<&Deck::reward, &RewardSection::command>(
        "reward.command",
        "a program and its arguments, which each rank starts once: it reads lines of JSON, a "
        "prompt's with the member \"completion\", and writes for each a line with a number, or an "
        "object with the member \"reward\"",
        {.on_resume = event}),
    row<&Deck::reward, &RewardSection::timeout>(
        "reward.timeout", "how long the program may write nothing while it is asked",
        {.limits = above(0), .unit = "s"}),
    row<&Deck::reward, &RewardSection::model>(
        "reward.model",
        "of model: a directory in Hugging Face's format, of the tokenizer of model.init_from; it "
        "is divided among ranks, and kept on the host or on disks, as the model that learns is",
        {.unset = "none; model needs it", .on_resume = event}),
    row<&Deck::batch, &BatchSection::sequence>(
        "batch.sequence", "tokens of one sequence",
        {.limits = kLength, .unset = "model.context", .on_resume = refused}),
    row<&Deck::batch, &BatchSection::micro>(
        "batch.micro", "sequences of one micro-batch of one data rank", {.limits = kMicro}),
    row<&Deck::batch, &BatchSection::global>(
        "batch.global", "sequences of one step, all ranks",
        {.limits = kGlobal, .required = true, .on_resume = event}),
    row<&Deck::batch, &BatchSection::ramp>("batch.ramp",
                                           "[step, global] pairs: from that step on, this many "
                                           "sequences; before the first, batch.global",
                                           {.limits = kGlobal, .on_resume = event}),
    row<&Deck::batch, &BatchSection::lr_scaling>("batch.lr_scaling",
                                                 "what a step's batch makes of its learning rate, "
                                                 "warm-up and min_lr included; linear: times "
                                                 "its sequences over those of the last entry of "
                                                 "batch.ramp, which optimizer.lr is for, and, "
                                                 "with batch.token_budget, times its targets that "
                                                 "count over its tokens, but of task.kind = "
                                                 "\"classify\"; sqrt: times the root of that"),
    row<&Deck::batch, &BatchSection::token_budget>(
        "batch.token_budget",
        "tokens of a micro-batch of whole documents: it is one sequence, of as many documents, one "
        "after another, as fit, which may be longer than model.context, though no document may; "
        "the rest of it is padding, which is no target. Of documents with labels any of the data "
        "share a sequence, the same ones in all epochs; what weighs or counts sequences, such as "
        "weights of data.train, goes by these",
        {.limits = kLength,
         .unit = "tokens",
         .unset = "sequences of batch.sequence tokens, where documents begin and end anywhere; or "
                  "of a document each, where the task is of such",
         .on_resume = refused}),
    row<&Deck::batch, &BatchSection::documents>(
        "batch.documents",
        "documents of a micro-batch at most, where batch.token_budget fills it with such as have a "
        "class each (task.kind = \"classify\"); what is made of them has room for as many",
        {.limits = kLength,
         .unset = "one for each 16 tokens of batch.token_budget",
         .on_resume = refused}),
    row<&Deck::batch, &BatchSection::curriculum>(
        "batch.curriculum", "sequences that grow over the first steps, as below",
        {.unset = "all steps have batch.sequence", .on_resume = event}),
    row<&Deck::optimizer, &OptimizerSection::name>(
        "optimizer.name",
        "adamw decays weights apart from the gradient, adam through it; lamb scales each tensor's "
        "update by its weights' norm, for large batches; lion moves all by the learning rate, up "
        "or "
        "down; sgd is gradient descent with momentum; muon moves matrices of blocks along the "
        "orthogonal matrix that is nearest to their momentum, as far as adamw would, and all else "
        "as adamw does; onebit_adam is adam without bias correction, decaying as adamw, whose "
        "momentum travels as its signs after some updates (Tang et al. 2021), for slow networks; "
        "onebit_lamb is lamb that goes on so (Li et al. 2021)",
        {.on_resume = refused}),
    row<&Deck::optimizer, &OptimizerSection::lr>("optimizer.lr", "peak learning rate",
                                                 {.limits = as_f32(above(0)), .required = true}),
    row<&Deck::optimizer, &OptimizerSection::betas>(
        "optimizer.betas",
        "decay of the first and second moments; of lion that of the direction and of the moment",
        {.limits = as_f32(fraction()),
         .unset = "adamw, adam, muon: [0.9, 0.95]; lamb, onebit_adam, onebit_lamb: [0.9, 0.999]; "
                  "lion: [0.9, 0.99]"}),
    row<&Deck::optimizer, &OptimizerSection::eps>(
        "optimizer.eps",
        "added to the root of the second moment; by lamb and onebit_lamb under the root",
        {.limits = as_f32(above(0)),
         .unset = "adamw, adam, muon, onebit_adam: 1e-08; lamb, onebit_lamb: 1e-12"}),
    row<&Deck::optimizer, &OptimizerSection::trust>(
        "optimizer.trust",
        "[least, largest]: to what lamb and onebit_lamb clip the factor of a tensor's update, the "
        "norm of its "
        "weights over that of the update",
        {.limits = as_f32(at_least(0)), .unset = "lamb, onebit_lamb: [0.01, 10.0]"}),
    row<&Deck::optimizer, &OptimizerSection::momentum>(
        "optimizer.momentum",
        "of sgd: what is kept of the sum of gradients before; of muon: of their average",
        {.limits = as_f32(fraction()), .unset = "sgd: 0.9; muon: 0.95"}),
    row<&Deck::optimizer, &OptimizerSection::nesterov>("optimizer.nesterov",
                                                       "whether sgd or muon looks ahead along its "
                                                       "momentum",
                                                       {.unset = "sgd: false; muon: true"}),
    row<&Deck::optimizer, &OptimizerSection::newton_schulz>(
        "optimizer.newton_schulz", "iterations in which muon makes matrices orthogonal, nearly",
        {.limits = between(1, 100), .unset = "muon: 5"}),
    row<&Deck::optimizer, &OptimizerSection::attention>(
        "optimizer.attention",
        "what muon takes as one matrix of attention: all rows of q, of k and of v, or those of "
        "each "
        "head",
        {.unset = "muon: \"projections\""}),
    row<&Deck::optimizer, &OptimizerSection::compress_after>(
        "optimizer.compress_after",
        "applied updates after which onebit_adam and onebit_lamb keep their second moments as they "
        "are and compress momentum; when these hardly change any more, after some 15 % of a run. "
        "From then on each rank keeps all of its momentum and of what rounding has lost, 8 bytes a "
        "parameter, and gradients are reduced once a step",
        {.limits = at_least(0),
         .unset = "onebit_adam, onebit_lamb: 0, which is refused: it must be given",
         .on_resume = refused}),
    row<&Deck::optimizer, &OptimizerSection::beta3>(
        "optimizer.beta3",
        "of onebit_lamb: decay of the mean of each tensor's factors, which goes on in their place "
        "once momentum is compressed",
        {.limits = as_f32(fraction()), .unset = "onebit_lamb: 0.9"}),
    row<&Deck::optimizer, &OptimizerSection::r_min>(
        "optimizer.r_min",
        "of onebit_lamb: the least by which that mean is multiplied as second moments change",
        {.limits = as_f32(above(0)), .unset = "onebit_lamb: 0.5"}),
    row<&Deck::optimizer, &OptimizerSection::r_max>(
        "optimizer.r_max", "likewise the most",
        {.limits = as_f32(above(0)), .unset = "onebit_lamb: 4.0"}),
    row<&Deck::optimizer, &OptimizerSection::r_threshold>(
        "optimizer.r_threshold", "likewise the largest relative change from one update to the next",
        {.limits = as_f32(fraction()), .unset = "onebit_lamb: 0.1"}),
    row<&Deck::optimizer, &OptimizerSection::moments>(
        "optimizer.moments",
        "type in which moments are kept: bf16 takes half of the memory and is rounded at random, "
        "up "
        "or down in proportion",
        {.on_resume = event}),
    row<&Deck::optimizer, &OptimizerSection::weight_decay>(
        "optimizer.weight_decay", "of parameters with two or more dimensions",
        {.limits = as_f32(at_least(0))}),
    row<&Deck::optimizer, &OptimizerSection::groups>(
        "optimizer.groups",
        "parameters that are updated otherwise than the rest: match is a pattern of names in which "
        "* "
        "stands for anything, lr_factor is of the learning rate, weight_decay is in place of "
        "optimizer.weight_decay; check prints the table"),
    row<&Deck::optimizer, &OptimizerSection::ema>(
        "optimizer.ema",
        "decay of an exponential moving average of the weights, kept beside them from the start: "
        "evaluate, export, generate and merge take it with --ema",
        {.limits = as_f32(fraction()), .unset = "none is kept"}),
    row<&Deck::optimizer, &OptimizerSection::clip_norm>(
        "optimizer.clip_norm", "largest global gradient norm; 0 = no clipping",
        {.limits = at_least(0), .unset = "1.0; onebit_adam, onebit_lamb: 0.0, and no other"}),
    row<&Deck::schedule, &ScheduleSection::kind>(
        "schedule.kind",
        "shape after the warm-up: wsd stays, then decays linearly at the run's end (Hu et al. "
        "2024); step drops; inverse_sqrt: optimizer.lr x sqrt(warm-up / update) (Vaswani et al. "
        "2017, equation 3)"),
    row<&Deck::schedule, &ScheduleSection::by>(
        "schedule.by",
        "what the curve runs over; tokens: the tokens that were seen, as a share of those of the "
        "whole run, so that steps with short sequences or small batches move it less; lengths in "
        "steps then stand for that share of the run"),
    row<&Deck::schedule, &ScheduleSection::warmup_steps>(
        "schedule.warmup_steps", "length of the warm-up, 0 = none; at most one of the three",
        {.limits = at_least(0), .unset = "none"}),
    row<&Deck::schedule, &ScheduleSection::warmup_tokens>("schedule.warmup_tokens",
                                                          "length of the warm-up",
                                                          {.limits = at_least(0), .unset = "none"}),
    row<&Deck::schedule, &ScheduleSection::warmup_epochs>("schedule.warmup_epochs",
                                                          "length of the warm-up",
                                                          {.limits = at_least(0), .unset = "none"}),
    row<&Deck::schedule, &ScheduleSection::warmup_start_lr>(
        "schedule.warmup_start_lr", "learning rate that the warm-up starts from",
        {.limits = as_f32(at_least(0))}),
    row<&Deck::schedule, &ScheduleSection::warmup>("schedule.warmup", "shape of the warm-up"),
    row<&Deck::schedule, &ScheduleSection::decay_steps>(
        "schedule.decay_steps", "length of the decay; at most one of the three",
        {.limits = at_least(0), .unset = "the run's length less the warm-up"}),
    row<&Deck::schedule, &ScheduleSection::decay_tokens>(
        "schedule.decay_tokens", "length of the decay",
        {.limits = at_least(0), .unset = "see decay_steps"}),
    row<&Deck::schedule, &ScheduleSection::decay_epochs>(
        "schedule.decay_epochs", "length of the decay",
        {.limits = at_least(0), .unset = "see decay_steps"}),
    row<&Deck::schedule, &ScheduleSection::min_lr>(
        "schedule.min_lr", "learning rate at the end of the decay", {.limits = at_least(0)}),
    row<&Deck::schedule, &ScheduleSection::step_size>(
        "schedule.step_size", "updates between drops from the warm-up's end on, for kind step",
        {.limits = at_least(1), .unset = "kind step needs it or step_epochs"}),
    row<&Deck::schedule, &ScheduleSection::step_epochs>(
        "schedule.step_epochs",
        "passes over the training data between drops, instead of step_size: a drop follows the "
        "step that completes them",
        {.limits = above(0), .unset = "see step_size"}),
    row<&Deck::schedule, &ScheduleSection::gamma>(
        "schedule.gamma", "factor of each drop, for kind step",
        {.limits = {.low = 0, .high = 1, .above_low = true}}),
    row<&Deck::precision, &PrecisionSection::compute>(
        "precision.compute", "element type of weights and activations in forward and backward",
        {.on_resume = event}),
    row<&Deck::precision, &PrecisionSection::matmul>(
        "precision.matmul",
        "type of matrix products; tf32: of f32 on GPUs; fp8: of the blocks, one scale a tensor",
        {.on_resume = event}),
    row<&Deck::precision, &PrecisionSection::accumulate>(
        "precision.accumulate", "type in which micro-batches' gradients are summed",
        {.on_resume = event}),
    row<&Deck::precision, &PrecisionSection::gradients>(
        "precision.gradients", "type of gradients on the wire", {.on_resume = event}),
    row<&Deck::precision, &PrecisionSection::loss_scale>(
        "precision.loss_scale", "factor of the loss in f16 compute: found by trial, or fixed",
        {.limits = as_f32(above(0)), .on_resume = event}),
    row<&Deck::precision, &PrecisionSection::loss_scale_power>(
        "precision.loss_scale_power", "a dynamic scale starts at 2 to this power",
        {.limits = between(0, 120), .on_resume = event}),
    row<&Deck::precision, &PrecisionSection::loss_scale_window>(
        "precision.loss_scale_window", "good steps before a dynamic scale doubles",
        {.limits = at_least(1), .on_resume = event}),
    row<&Deck::precision, &PrecisionSection::loss_scale_hysteresis>(
        "precision.loss_scale_hysteresis", "overflows before a dynamic scale halves",
        {.limits = at_least(1), .on_resume = event}),
    row<&Deck::precision, &PrecisionSection::loss_scale_min>(
        "precision.loss_scale_min", "smallest dynamic scale",
        {.limits = as_f32(above(0)), .on_resume = event}),
    row<&Deck::parallel, &ParallelSection::tensor>(
        "parallel.tensor", "ranks that share each matrix", {.limits = kRanks}),
    row<&Deck::parallel, &ParallelSection::pipeline>("parallel.pipeline", "pipeline stages",
                                                     {.limits = kRanks}),
    row<&Deck::parallel, &ParallelSection::data>("parallel.data",
                                                 "ranks that read different samples; 0 = what is "
                                                 "left",
                                                 {.limits = between(0, 1 << 24)}),
    row<&Deck::parallel, &ParallelSection::experts>(
        "parallel.experts", "neighbouring data ranks that divide each layer's experts among them",
        {.limits = kRanks}),
    row<&Deck::parallel, &ParallelSection::expert_exchange>(
        "parallel.expert_exchange",
        "how tokens come to experts of other ranks: direct, a copy for each expert goes to the "
        "rank "
        "that has it; by_node, a token goes once to each node that has experts for it, copies are "
        "made there, and their sum comes back, which sends less between nodes wherever tokens have "
        "several experts on one"),
    row<&Deck::parallel, &ParallelSection::expert_overlap>(
        "parallel.expert_overlap",
        "two micro-batches of a step go through the layers side by side: while tokens of one go to "
        "experts or come back, the other computes; both have their activations in memory"),
    row<&Deck::parallel, &ParallelSection::context>(
        "parallel.context",
        "neighbouring ranks that divide each sequence among them, each with two chunks of it; they "
        "share parameters as data ranks do",
        {.limits = kRanks}),
    row<&Deck::parallel, &ParallelSection::context_kind>(
        "parallel.context_kind",
        "how they compute attention: each gathers the keys and values of all, or has those of one "
        "rank after another, or all tokens of some heads; auto: gather or heads, whichever sends "
        "fewer bytes"),
    row<&Deck::parallel, &ParallelSection::sequence>(
        "parallel.sequence", "norms and residuals are split over the tensor ranks too"),
    row<&Deck::parallel, &ParallelSection::schedule>("parallel.schedule",
                                                     "order of micro-batches in the pipeline"),
    row<&Deck::parallel, &ParallelSection::virtual_stages>(
        "parallel.virtual_stages", "chunks of layers of each pipeline rank, for interleaved",
        {.limits = kLayers}),
    row<&Deck::parallel, &ParallelSection::placement>(
        "parallel.placement",
        "layers of the stages: balanced by cost, or the first block of each chunk of each stage",
        {.limits = between(0, 1 << 24)}),
    row<&Deck::parallel, &ParallelSection::ranks_per_node>("parallel.ranks_per_node",
                                                           "0 = ask MPI, which knows any placement",
                                                           {.limits = between(0, 1 << 24)}),
    row<&Deck::recompute, &RecomputeSection::policy>("recompute.policy",
                                                     "nothing, attention only, or whole blocks"),
    row<&Deck::zero, &ZeroSection::stage>("zero.stage", "see above",
                                          {.limits = between(0, kZeroStages - 1)}),
    row<&Deck::zero, &ZeroSection::reduce>("zero.reduce",
                                           "gradients are reduced once a step or every micro-batch",
                                           {.unset = "step at stages 0-1, micro at 2-3, and where "
                                                     "run.reproducible_context cuts sequences"}),
    row<&Deck::zero, &ZeroSection::prefetch>(
        "zero.prefetch", "units gathered ahead of use",
        {.limits = between(0, 1 << 24),
         .unset = "2 where stage 3 gathers between GPUs across nodes, else 1"}),
    row<&Deck::zero, &ZeroSection::tiles>(
        "zero.tiles",
        "parts in which the matrices of each layer are gathered and used, one after another: the "
        "window of a layer is that much smaller, and results differ as with so many tensor ranks",
        {.limits = between(1, 1 << 16)}),
    row<&Deck::zero, &ZeroSection::secondary>(
        "zero.secondary",
        "what stage 3 gathers again within a step comes from copies within a node, or within so "
        "many neighbouring data ranks; a rank alone among them keeps whole layers; auto: where the "
        "run's start measures that a step is shorter with it",
        {.limits = kRanks}),
    row<&Deck::zero, &ZeroSection::quantize, &QuantizeSection::weights>(
        "zero.quantize.weights",
        "type in which stage 3 gathers parameters to train; auto: int8 where the run's start "
        "measures that a step is shorter with it",
        {.on_resume = event}),
    row<&Deck::zero, &ZeroSection::quantize, &QuantizeSection::gradients>(
        "zero.quantize.gradients",
        "type in which gradients travel to be added, within nodes, then across them; auto: int4 "
        "where the run's start measures that a step is shorter with it",
        {.on_resume = event}),
    row<&Deck::zero, &ZeroSection::quantize, &QuantizeSection::block>(
        "zero.quantize.block", "elements that share a scale, an even number",
        {.limits = between(16, 1 << 20), .on_resume = event}),
    row<&Deck::zero, &ZeroSection::quantize, &QuantizeSection::chunk>(
        "zero.quantize.chunk",
        "what of each rank's shard of a layer's parameters or gradients becomes blocks, and "
        "travels, at once; no result depends on it",
        {.limits = between(4096, 1 << 30), .unit = "bytes"}),
    row<&Deck::zero, &ZeroSection::quantize, &QuantizeSection::error_feedback>(
        "zero.quantize.error_feedback",
        "what the first rounding of a gradient to its blocks loses is added to that of the next "
        "step: 4 bytes for each parameter on each rank, and 4 for each of its shards; zero where a "
        "checkpoint has none",
        {.on_resume = event}),
    row<&Deck::zero, &ZeroSection::quantize, &QuantizeSection::stochastic>(
        "zero.quantize.stochastic",
        "gradients become blocks by rounding up or down at random in proportion, which is right on "
        "average",
        {.on_resume = event}),
    row<&Deck::offload, &OffloadSection::parameters>(
        "offload.parameters", "where parameters live while no layer uses them"),
    row<&Deck::offload, &OffloadSection::gradients>(
        "offload.gradients",
        "where gradients live between visits of layers, and until their update in the next step"),
    row<&Deck::offload, &OffloadSection::optimizer>(
        "offload.optimizer",
        "where optimizer state lives, and master weights where they are not the parameters"),
    row<&Deck::offload, &OffloadSection::activations>(
        "offload.activations", "where activations live between forward and backward"),
    row<&Deck::offload, &OffloadSection::cache>(
        "offload.cache",
        "where keys and values live that generation keeps; from \"host\" a GPU reads them over its "
        "bus, each time that it attends to them"),
    row<&Deck::offload, &OffloadSection::ahead>(
        "offload.ahead", "visits of layers between the begin of a fetch and the use of its bytes",
        {.limits = between(0, 1000), .unset = "2 where something is offloaded"}),
    row<&Deck::offload, &OffloadSection::optimizer_share>(
        "offload.optimizer_share",
        "share of a rank's optimizer state that is offloaded, in whole units (embedding, layer, "
        "...), the last ones first; the others' stays on the device, which updates them",
        {.limits = {.low = 0, .high = 1, .above_low = true}}),
    row<&Deck::offload, &OffloadSection::nvme>(
        "offload.nvme",
        "directories on local disks, for what lives on \"nvme\": a file each, with a thread of its "
        "own that submits requests, so that a disk that is named twice has two"),
    row<&Deck::offload, &OffloadSection::block>(
        "offload.block", "size of one disk request",
        {.limits = between(4096, 1 << 30), .unit = "bytes"}),
    row<&Deck::offload, &OffloadSection::depth>("offload.depth",
                                                "requests to a file that are under way at once",
                                                {.limits = between(1, 4096)}),
    row<&Deck::offload, &OffloadSection::keep>("offload.keep",
                                               "files in offload.nvme stay when the run ends"),
    row<&Deck::memory, &MemorySection::device>(
        "memory.device",
        "budget of the device tier; auto: what the device has free. On a GPU attention's gradients "
        "are cuDNN's where it needs no more than a 32nd of that for a sample's scores; auto: of "
        "80 GB",
        {.limits = at_least(1), .unit = "bytes", .on_resume = event}),
    row<&Deck::memory, &MemorySection::host>(
        "memory.host", "budget of a rank's part of the host tier; auto: what the node has free",
        {.limits = at_least(1), .unit = "bytes"}),
    row<&Deck::memory, &MemorySection::logits>(
        "memory.logits",
        "tokens of a micro-batch whose logits are in memory at once, each token's for the whole "
        "vocabulary: the head takes so many after another, and more than these are never there. "
        "Few "
        "make small products, and add to the token matrix's gradient often",
        {.limits = kLength,
         .unit = "tokens",
         .unset = "4096; with zero.tiles all, for each further group gathers all tiles again, but "
                  "not where run.reproducible is layout"}),
    row<&Deck::memory, &MemorySection::ffn>(
        "memory.ffn",
        "tokens of a micro-batch whose inner columns of dense feed-forward layers, "
        "model.ffn_hidden or as many of a rank, are in memory at once: the layer takes so many "
        "after another, keeps nothing of them, and makes them again in backward; for long "
        "sequences. Few make small products and long plans, and add to the matrices' gradients "
        "often. 0: all",
        {.limits = between(0, 1 << 30), .unit = "tokens", .on_resume = event}),
    row<&Deck::checkpoint, &CheckpointSection::every>(
        "checkpoint.every", "steps between checkpoints; 0 = none, also not at the end",
        {.limits = at_least(0)}),
    row<&Deck::checkpoint, &CheckpointSection::keep>(
        "checkpoint.keep",
        "newest checkpoints kept, beside the newest that a later step was applied to; 0 = all",
        {.limits = at_least(0)}),
    row<&Deck::checkpoint, &CheckpointSection::keep_every>(
        "checkpoint.keep_every", "checkpoints at multiples of this step are never pruned; 0 = none",
        {.limits = at_least(0)}),
    row<&Deck::checkpoint, &CheckpointSection::async>("checkpoint.async",
                                                      "the run goes on while files are written"),
    row<&Deck::checkpoint, &CheckpointSection::verify>(
        "checkpoint.verify", "checksums are compared on loading", {.built = "true"}),
    row<&Deck::evaluate, &EvaluateSection::every>(
        "evaluate.every", "steps between evaluations; 0 = none", {.limits = at_least(0)}),
    row<&Deck::evaluate, &EvaluateSection::batches>(
        "evaluate.batches",
        "global batches of one evaluation, of each of data.validation; 0: all that there are",
        {.limits = at_least(0)}),
    row<&Deck::log, &LogSection::every>("log.every", "steps between step lines on the terminal",
                                        {.limits = at_least(1)}),
    row<&Deck::log, &LogSection::profile>(
        "log.profile",
        "[first, last] steps whose operations are timed, counted as in metrics.jsonl; the times go "
        "to profile/ in the run directory, where plan --profile finds them",
        {.limits = at_least(1), .unset = "none"}),
    row<&Deck::fault, &FaultSection::inject>(
        "fault.inject", "faults, each \"KIND key=value ...\" as in the table below"),
    row<&Deck::guard, &GuardSection::non_finite>(
        "guard.non_finite", "a step whose gradient norm is not finite: skip it, or stop"),
    row<&Deck::guard, &GuardSection::max_skips>(
        "guard.max_skips", "skipped steps in a row before the run stops", {.limits = at_least(0)}),
    row<&Deck::guard, &GuardSection::spike>(
        "guard.spike",
        "a loss far above its recent window: warn of it, or return to a checkpoint and skip the "
        "data that led there"),
    row<&Deck::guard, &GuardSection::spike_window>(
        "guard.spike_window", "recent losses that a loss is judged by", {.limits = at_least(2)}),
    row<&Deck::guard, &GuardSection::spike_threshold>(
        "guard.spike_threshold",
        "a spike lies so many scaled median absolute deviations above the window's median",
        {.limits = {.low = 0, .above_low = true}}),
    row<&Deck::guard, &GuardSection::rollback_steps>(
        "guard.rollback_steps", "a rollback returns to a checkpoint at least so many steps back",
        {.limits = at_least(1)}),
    row<&Deck::guard, &GuardSection::rollback_lr_factor>(
        "guard.rollback_lr_factor", "learning rate factor after a rollback",
        {.limits = {.low = 0, .high = 1, .above_low = true}}),
    row<&Deck::guard, &GuardSection::check_replicas>(
        "guard.check_replicas",
        "steps between comparisons of what several ranks hold copies of; 0 = none",
        {.limits = at_least(0)}),
    row<&Deck::guard, &GuardSection::hang_timeout>(
        "guard.hang_timeout", "a rank silent for so long is stuck; 0 = no watchdog",
        {.limits = at_least(0), .unit = "s"}),
    row<&Deck::guard, &GuardSection::interface>(
        "guard.interface",
        "where the watchdog of each rank waits for its neighbour: an interface, an IPv4 address or "
        "a network (\"ib0\", \"10.1.0.0/16\"); several with commas between",
        {.unset = "loopback between ranks of a node; else OMPI_MCA_btl_tcp_if_include, else the "
                  "addresses from which the neighbour's node is reached"}),
};

}  // namespace

std::span<const SchemaSection> schema_sections() { return kSections; }
std::span<const SchemaRow> schema_rows() { return kRows; }

}  // namespace tessera::deck
