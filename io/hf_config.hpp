// The architecture of a model as files describe it, between a Hugging Face config.json and the keys
// of a deck's [model] section.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/dtype.hpp"

namespace tessera::io {

/// Named as the keys of [model], with the words that decks use.
struct HfArchitecture {
  std::string family;  // gpt2 | llama
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t hidden = 0;
  std::int64_t ffn_hidden = 0;
  std::int64_t vocab = 0;
  std::int64_t context = 0;
  double norm_eps = 0;
  double rope_theta = 0;   // of rotary positions
  std::string norm;        // layernorm | rmsnorm
  std::string position;    // learned | rope
  std::string activation;  // gelu (its tanh form) | relu | swiglu
  bool tied_embeddings = false;
  bool bias = false;

  bool operator==(const HfArchitecture&) const = default;
};

/// A key of [model] and the member that holds its value.
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
    HfField{"hidden", &HfArchitecture::hidden},
    HfField{"ffn_hidden", &HfArchitecture::ffn_hidden},
    HfField{"vocab", &HfArchitecture::vocab},
    HfField{"context", &HfArchitecture::context},
    HfField{"norm_eps", &HfArchitecture::norm_eps},
    HfField{"rope_theta", &HfArchitecture::rope_theta},
    HfField{"norm", &HfArchitecture::norm},
    HfField{"position", &HfArchitecture::position},
    HfField{"activation", &HfArchitecture::activation},
    HfField{"tied_embeddings", &HfArchitecture::tied_embeddings},
    HfField{"bias", &HfArchitecture::bias},
};

/// One key of [model] and the place in config.json that fixes it.
struct HfKey {
  std::string key;
  std::variant<std::int64_t, double, bool, std::string> value;
  std::string place;
};

struct HfConfig {
  HfArchitecture architecture;
  std::vector<HfKey> keys;
};

/// Reads a config.json of model type gpt2 or llama. DataError for a setting that changes the
/// computation and that is not supported, naming file and key.
HfConfig read_hf_config(const std::filesystem::path& path);

/// The text of a config.json that describes the model; DataError if its family, as Hugging Face
/// defines it, cannot be set up so.
std::string write_hf_config(const HfArchitecture& architecture, DType type,
                            std::optional<std::int32_t> end_of_text);

}  // namespace tessera::io
