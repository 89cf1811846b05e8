// The architecture of a model as files describe it, between a Hugging Face config.json and the keys
// of a deck's [model] section.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/choices.hpp"
#include "core/dtype.hpp"
#include "kernels/api/quantize.hpp"

namespace tessera::io {

/// Named as the keys of [model], with the words that decks use; and what [moe] and [task] must say
/// of it.
struct HfArchitecture {
  std::string family;
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;  // 0: head_dim
  std::int64_t kv_latent = 0;  // 0: keys and values are made of a layer's input
  std::int64_t q_latent = 0;   // 0: queries are
  std::int64_t hidden = 0;
  std::int64_t ffn_hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t context = 0;
  double norm_eps = 0;
  double rope_theta = 0;              // of rotary positions
  double rope_local_theta = 0;        // of layers with a window; 0: as of the others
  double rotary_share = 1;            // of a head's columns
  std::int64_t rope_dim = 0;          // of a head's columns, beside kv_latent
  std::string rope_pairs = "halves";  // halves | neighbours
  std::string rope_scaling = "none";  // none | linear | dynamic | llama3 | yarn
  double rope_factor = 1;
  double rope_low_frequency = 1, rope_high_frequency = 4;
  double rope_magnitude = 0;  // of yarn's cosines and sines; 0: 0.1 ln(rope_factor) + 1
  double rope_mscale_all_dim = 0;
  std::int64_t rope_original_context = 0;
  std::int64_t window = 0;             // of attention, in tokens; 0: none
  std::int64_t global_every = 0;       // every so many layers, one has no window; 0: all have it
  std::string norm;                    // layernorm | rmsnorm
  std::string norm_placed = "before";  // before | after | both | sum
  std::string qk_norm = "none";        // none | head | whole
  std::string block = "sequential";    // sequential | parallel | parallel_one_norm
  std::string attention = "causal";    // causal | bidirectional
  std::string position;                // learned | rope
  std::string activation;  // gelu (its tanh form) | gelu_erf | relu | tanh | swiglu | geglu
  bool tied_embeddings = false;
  bool bias = false;
  bool attention_bias = true;
  bool qkv_bias = false;
  bool scaled_embeddings = false;
  bool embedding_norm = false;
  std::int64_t head_hidden = 0;          // columns of the head's dense layer; 0: there is none
  std::string head_activation = "gelu";  // as `activation`
  bool head_norm = false;
  bool head_bias = false;
  std::int64_t query_scalar = 0;  // 0: head_dim
  double attention_soft_cap = 0, logit_soft_cap = 0;
  std::int64_t moe_experts = 0;  // of a layer that has them; 0: none has, and the others are idle
  std::int64_t moe_top_k = 2;
  std::int64_t moe_ffn_hidden = 0;
  std::int64_t moe_shared_ffn_hidden = 0;
  std::int64_t moe_every = 1;
  std::int64_t moe_first_dense = 0;
  std::string moe_scores = "softmax";  // softmax | sigmoid
  bool moe_normalize = true;
  double moe_scale = 1;
  std::int64_t moe_groups = 1, moe_group_top = 1;
  std::string moe_group_score = "largest";  // largest | two_largest
  std::string moe_gates = "one";            // one | two_levels
  bool moe_bias = false;
  double moe_aux_loss = 0;
  // Of training: a family without a setting for one does not keep it.
  double dropout_embedding = 0, dropout_attention = 0, dropout_residual = 0;
  std::string task = "lm";       // lm | mlm | classify | tokens | reward
  std::int64_t mask_token = -1;  // of mlm; -1: not known
  std::int64_t labels = 0;       // of classify and tokens; 0: no classes
  std::string pooling = "none";  // of classify and reward

  /// Whether the layer's feed-forward is one of experts.
  bool has_experts(std::int64_t layer) const {
    return moe_experts > 0 && layer >= moe_first_dense && (layer + 1) % moe_every == 0;
  }
  bool operator==(const HfArchitecture&) const = default;
};

/// A key of [model], or one of another section with the section's name, and the member that holds
/// its value.
struct HfField {
  std::string_view key;
  std::variant<std::int64_t HfArchitecture::*, double HfArchitecture::*, bool HfArchitecture::*,
               std::string HfArchitecture::*>
      member;
};
inline constexpr std::array kHfFields = {
    HfField{"family", &HfArchitecture::family},
    HfField{"layers", &HfArchitecture::layers},
    HfField{"heads", &HfArchitecture::heads},
    HfField{"kv_heads", &HfArchitecture::kv_heads},
    HfField{"head_dim", &HfArchitecture::head_dim},
    HfField{"value_dim", &HfArchitecture::value_dim},
    HfField{"kv_latent", &HfArchitecture::kv_latent},
    HfField{"q_latent", &HfArchitecture::q_latent},
    HfField{"hidden", &HfArchitecture::hidden},
    HfField{"ffn_hidden", &HfArchitecture::ffn_hidden},
    HfField{"vocab", &HfArchitecture::vocab},
    HfField{"context", &HfArchitecture::context},
    HfField{"norm_eps", &HfArchitecture::norm_eps},
    HfField{"rope_theta", &HfArchitecture::rope_theta},
    HfField{"rope_local_theta", &HfArchitecture::rope_local_theta},
    HfField{"rotary_share", &HfArchitecture::rotary_share},
    HfField{"rope_dim", &HfArchitecture::rope_dim},
    HfField{"rope_pairs", &HfArchitecture::rope_pairs},
    HfField{"rope_scaling", &HfArchitecture::rope_scaling},
    HfField{"rope_factor", &HfArchitecture::rope_factor},
    HfField{"rope_low_frequency", &HfArchitecture::rope_low_frequency},
    HfField{"rope_high_frequency", &HfArchitecture::rope_high_frequency},
    HfField{"rope_magnitude", &HfArchitecture::rope_magnitude},
    HfField{"rope_mscale_all_dim", &HfArchitecture::rope_mscale_all_dim},
    HfField{"rope_original_context", &HfArchitecture::rope_original_context},
    HfField{"window", &HfArchitecture::window},
    HfField{"global_every", &HfArchitecture::global_every},
    HfField{"norm", &HfArchitecture::norm},
    HfField{"norm_placed", &HfArchitecture::norm_placed},
    HfField{"qk_norm", &HfArchitecture::qk_norm},
    HfField{"block", &HfArchitecture::block},
    HfField{"attention", &HfArchitecture::attention},
    HfField{"position", &HfArchitecture::position},
    HfField{"activation", &HfArchitecture::activation},
    HfField{"tied_embeddings", &HfArchitecture::tied_embeddings},
    HfField{"bias", &HfArchitecture::bias},
    HfField{"attention_bias", &HfArchitecture::attention_bias},
    HfField{"qkv_bias", &HfArchitecture::qkv_bias},
    HfField{"scaled_embeddings", &HfArchitecture::scaled_embeddings},
    HfField{"embedding_norm", &HfArchitecture::embedding_norm},
    HfField{"head_hidden", &HfArchitecture::head_hidden},
    HfField{"head_activation", &HfArchitecture::head_activation},
    HfField{"head_norm", &HfArchitecture::head_norm},
    HfField{"head_bias", &HfArchitecture::head_bias},
    HfField{"query_scalar", &HfArchitecture::query_scalar},
    HfField{"attention_soft_cap", &HfArchitecture::attention_soft_cap},
    HfField{"logit_soft_cap", &HfArchitecture::logit_soft_cap},
    HfField{"dropout_embedding", &HfArchitecture::dropout_embedding},
    HfField{"dropout_attention", &HfArchitecture::dropout_attention},
    HfField{"dropout_residual", &HfArchitecture::dropout_residual},
    HfField{"moe.experts", &HfArchitecture::moe_experts},
    HfField{"moe.top_k", &HfArchitecture::moe_top_k},
    HfField{"moe.ffn_hidden", &HfArchitecture::moe_ffn_hidden},
    HfField{"moe.shared_ffn_hidden", &HfArchitecture::moe_shared_ffn_hidden},
    HfField{"moe.every", &HfArchitecture::moe_every},
    HfField{"moe.first_dense", &HfArchitecture::moe_first_dense},
    HfField{"moe.scores", &HfArchitecture::moe_scores},
    HfField{"moe.normalize", &HfArchitecture::moe_normalize},
    HfField{"moe.scale", &HfArchitecture::moe_scale},
    HfField{"moe.groups", &HfArchitecture::moe_groups},
    HfField{"moe.group_top", &HfArchitecture::moe_group_top},
    HfField{"moe.group_score", &HfArchitecture::moe_group_score},
    HfField{"moe.gates", &HfArchitecture::moe_gates},
    HfField{"moe.bias", &HfArchitecture::moe_bias},
    HfField{"moe.aux_loss", &HfArchitecture::moe_aux_loss},
    HfField{"task.kind", &HfArchitecture::task},
    HfField{"task.mask_token", &HfArchitecture::mask_token},
    HfField{"task.labels", &HfArchitecture::labels},
    HfField{"task.pooling", &HfArchitecture::pooling},
};

/// The name of such a key in decks: "model.layers".
std::string deck_key(std::string_view key);

/// One such key and the place in config.json that fixes it.
struct HfKey {
  std::string key;
  std::variant<std::int64_t, double, bool, std::string> value;
  std::string place;
  bool fixed = true;  // false: of a fresh head, which may as well be another
};

/// A head that says classes, which whoever reads a directory wants for what is before its head.
struct HfWantedHead {
  std::string task;  // classify | tokens | reward
  std::optional<HeadWeights>
      head;  // absent: its own where it has one for the task, else a fresh one
};

struct HfConfig {
  HfArchitecture architecture;
  std::vector<HfKey> keys;
  std::vector<std::string> classes;  // their names, where the model has classes and says them
  HeadWeights head = HeadWeights::directory;
  std::int64_t further_layers =
      0;  // behind the last, which predict further tokens and are not read
  std::optional<kernels::BlockFormat> codes;  // of matrices that are kept so (io/hf_codes)
};

/// What transformers calls a class that has no name.
std::string unnamed_class(std::int64_t i);

/// The class of transformers that the model is.
std::string_view hf_model_class(const HfArchitecture& architecture);

/// Reads a config.json of a family that hf_families has a table of. DataError, naming file and key,
/// for a setting whose value is not supported, and for one of which it is not known whether it
/// changes the computation, and where a wanted head shall be the directory's own, which has none.
/// With a fresh head the architecture is that of the family's classifier in transformers, and says
/// nothing of the number of classes.
HfConfig read_hf_config(const std::filesystem::path& path,
                        const std::optional<HfWantedHead>& wanted = std::nullopt);

/// The tokens that begin and end a text, where there are such.
struct TextEnds {
  std::optional<std::int32_t> begin, end;
};

/// The text of a config.json that describes the model, names its classes, and says which codes
/// matrices are; DataError if its family, as Hugging Face defines it, cannot be set up so.
std::string write_hf_config(const HfArchitecture& architecture, DType type, const TextEnds& ends,
                            std::span<const std::string> classes = {},
                            const std::optional<kernels::BlockFormat>& codes = std::nullopt);

}  // namespace tessera::io
