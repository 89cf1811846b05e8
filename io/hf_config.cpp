#include "io/hf_config.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "core/error.hpp"
#include "io/file.hpp"
#include "io/json.hpp"

namespace tessera::io {
namespace {

using nlohmann::json;

constexpr std::int64_t kLargestConfig = 1 << 20;
// Bounds that no model reaches and that keep every product of two or three extents in 64 bits.
constexpr std::int64_t kMostLayers = 4096;
constexpr std::int64_t kLargestExtent = std::int64_t{1} << 24;

/// A setting that is a key of [model] under another name.
struct NumberRow {
  std::string_view key;      // in [model]
  std::string_view setting;  // in config.json
  json otherwise = nullptr;  // what a file without the setting means; null: it must be there
};

/// A setting of which one value is supported; a file without it means that value.
struct FixedRow {
  std::string_view setting;
  json value;
};

/// A key of [model] that the family itself fixes.
struct ImpliedRow {
  std::string_view key;
  json value;
};

struct WordRow {
  std::string_view setting;
  std::string_view word;  // of [model]
};

struct FamilyTable {
  std::string_view family;  // also Hugging Face's model_type
  std::string_view model_class;
  std::vector<NumberRow> numbers;
  std::vector<FixedRow> fixed;
  std::vector<ImpliedRow> implied;
  std::string_view activation_setting;
  std::vector<WordRow> activations;  // the first of equal words is the one that is written
};

const FamilyTable& gpt2_table() {
  static const FamilyTable table{
      .family = "gpt2",
      .model_class = "GPT2LMHeadModel",
      .numbers = {{"layers", "n_layer"},
                  {"heads", "n_head"},
                  {"hidden", "n_embd"},
                  {"ffn_hidden", "n_inner", 0},  // 0: four times hidden
                  {"vocab", "vocab_size"},
                  {"context", "n_positions"},
                  {"norm_eps", "layer_norm_epsilon", 1e-5},
                  {"tied_embeddings", "tie_word_embeddings", true}},
      .fixed = {{"scale_attn_weights", true},
                {"scale_attn_by_inverse_layer_idx", false},
                {"add_cross_attention", false},
                {"quantization_config", nullptr}},
      .implied = {{"norm", "layernorm"}, {"position", "learned"}, {"bias", true}},
      .activation_setting = "activation_function",
      .activations = {{"gelu_new", "gelu"}, {"gelu_pytorch_tanh", "gelu"}, {"relu", "relu"}}};
  return table;
}

const FamilyTable& llama_table() {
  static const FamilyTable table{
      .family = "llama",
      .model_class = "LlamaForCausalLM",
      .numbers = {{"layers", "num_hidden_layers"},
                  {"heads", "num_attention_heads"},
                  {"kv_heads", "num_key_value_heads", 0},  // 0: as many as heads
                  {"head_dim", "head_dim", 0},             // 0: hidden / heads
                  {"hidden", "hidden_size"},
                  {"ffn_hidden", "intermediate_size"},
                  {"vocab", "vocab_size"},
                  {"context", "max_position_embeddings"},
                  {"norm_eps", "rms_norm_eps", 1e-6},
                  {"tied_embeddings", "tie_word_embeddings", false}},
      .fixed = {{"attention_bias", false},
                {"mlp_bias", false},
                {"sliding_window", nullptr},
                {"partial_rotary_factor", 1.0},
                {"quantization_config", nullptr}},
      .implied = {{"norm", "rmsnorm"}, {"position", "rope"}, {"bias", false}},
      .activation_setting = "hidden_act",
      .activations = {{"silu", "swiglu"}}};
  return table;
}

const FamilyTable* find_table(std::string_view family) {
  for (const FamilyTable* table : {&gpt2_table(), &llama_table()}) {
    if (table->family == family) return table;
  }
  return nullptr;
}

const HfField& field_of(std::string_view key) {
  const auto* field = std::ranges::find(kHfFields, key, &HfField::key);
  TESSERA_CHECK(field != kHfFields.end(), "{}", key);
  return *field;
}

/// The value of a field, as JSON.
json value_of(const HfArchitecture& architecture, std::string_view key) {
  return std::visit([&](auto member) { return json(architecture.*member); }, field_of(key).member);
}

class ConfigReader {
 public:
  explicit ConfigReader(const JsonCursor& root) : root_(root) {}

  HfConfig read() {
    const JsonCursor type = root_["model_type"];
    const FamilyTable* table = find_table(type.text());
    if (table == nullptr) {
      type.fail(fmt::format("\"{}\" is not supported; allowed: gpt2, llama", type.text()));
    }
    set("family", type.text(), type.place());
    for (const FixedRow& row : table->fixed) require(row);
    for (const NumberRow& row : table->numbers) read_number(row);
    for (const ImpliedRow& row : table->implied) {
      set(row.key, row.value, type.place());
    }
    read_activation(*table);
    if (table == &llama_table()) read_rope();
    fill_derived();
    return std::move(config_);
  }

 private:
  void require(const FixedRow& row) {
    const auto value = root_.find(row.setting);
    if (value && value->raw() != row.value) {
      value->fail(
          fmt::format("{} is not supported; allowed: {}", value->shown(), row.value.dump()));
    }
  }

  void read_number(const NumberRow& row) {
    const auto value = root_.find(row.setting);
    if (!value) {
      if (row.otherwise.is_null()) (void)root_[row.setting];  // says that it is missing
      return set(row.key, row.otherwise, root_.place());
    }
    const auto& member = field_of(row.key).member;
    if (std::holds_alternative<std::int64_t HfArchitecture::*>(member)) {
      const std::int64_t n = value->integer();
      const std::int64_t most = row.key == "layers" ? kMostLayers : kLargestExtent;
      if (n < 1 || n > most) value->fail(fmt::format("{}; allowed: 1 to {}", n, most));
    } else if (std::holds_alternative<double HfArchitecture::*>(member)) {
      check_positive(*value);
    } else {
      (void)value->boolean();
    }
    set(row.key, value->raw(), value->place());
  }

  static void check_positive(const JsonCursor& value) {
    if (!(value.number() > 0)) value.fail(fmt::format("{}; must be above 0", value.number()));
  }

  void read_activation(const FamilyTable& table) {
    const auto value = root_.find(table.activation_setting);
    const std::string word = value ? value->text() : std::string(table.activations[0].setting);
    for (const WordRow& row : table.activations) {
      if (row.setting == word) {
        return set("activation", row.word, value ? value->place() : root_.place());
      }
    }
    std::string allowed;
    for (const WordRow& row : table.activations) {
      allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", row.setting);
    }
    value->fail(fmt::format("\"{}\" is not supported; allowed: {}", word, allowed));
  }

  /// transformers 5 writes rope_parameters {rope_type, rope_theta}; before it, rope_theta and
  /// rope_scaling stood at the top.
  void read_rope() {
    auto theta = root_.find("rope_theta");
    for (const auto* key : {"rope_scaling", "rope_parameters"}) {
      const auto rope = root_.find(key);
      if (!rope) continue;
      for (const auto* type_key : {"rope_type", "type"}) {
        const auto type = rope->find(type_key);
        if (type && type->text() != "default") {
          type->fail(fmt::format("\"{}\" is not supported; allowed: \"default\"", type->text()));
        }
      }
      if (const auto partial = rope->find("partial_rotary_factor");
          partial && partial->number() != 1.0) {
        partial->fail("partial rotation is not supported; allowed: 1.0");
      }
      if (const auto inner = rope->find("rope_theta")) theta = inner;
    }
    if (theta) check_positive(*theta);
    set("rope_theta", theta ? theta->number() : 10000.0, theta ? theta->place() : root_.place());
  }

  /// What the file leaves to a rule, and what must hold between settings.
  void fill_derived() {
    HfArchitecture& a = config_.architecture;
    const auto derive = [&](std::string_view key, std::int64_t value) {
      if (value_of(a, key) != 0) return;
      std::erase_if(config_.keys, [&](const HfKey& k) { return k.key == key; });
      set(key, value, root_.place());
    };
    if (a.head_dim == 0 && a.hidden % a.heads != 0) {
      root_.fail(fmt::format("{} heads do not divide the width of {}", a.heads, a.hidden));
    }
    derive("head_dim", a.hidden / a.heads);
    derive("kv_heads", a.heads);
    derive("ffn_hidden", 4 * a.hidden);
    if (a.heads % a.kv_heads != 0) {
      root_.fail(fmt::format("{} kv heads do not divide {} heads", a.kv_heads, a.heads));
    }
    if (a.heads * a.head_dim > kLargestExtent) {
      root_.fail(fmt::format("{} heads of {}; at most {} in all are possible", a.heads, a.head_dim,
                             kLargestExtent));
    }
  }

  void set(std::string_view key, const json& value, std::string place) {
    std::visit(
        [&](auto member) {
          auto& target = config_.architecture.*member;
          value.get_to(target);
          config_.keys.push_back({std::string(key), target, std::move(place)});
        },
        field_of(key).member);
  }

  JsonCursor root_;
  HfConfig config_;
};

std::string_view torch_name(DType type) {
  switch (type) {
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    default: check_failed("f32, bf16 or f16", std::string(to_string(type)));
  }
}

[[noreturn]] void cannot_export(const HfArchitecture& a, std::string_view key, const json& value,
                                const json& needed) {
  throw DataError(
      fmt::format("the model cannot be written as a Hugging Face {}: model.{} = {}, needed: {}",
                  a.family, key, value.dump(), needed.dump()));
}

}  // namespace

HfConfig read_hf_config(const std::filesystem::path& path) {
  const JsonDocument document(read_text(path, kLargestConfig), path.string());
  return ConfigReader(document.root()).read();
}

std::string write_hf_config(const HfArchitecture& a, DType type,
                            std::optional<std::int32_t> end_of_text) {
  const FamilyTable* table = find_table(a.family);
  if (table == nullptr) cannot_export(a, "family", a.family, "gpt2 or llama");
  for (const ImpliedRow& row : table->implied) {
    if (const json value = value_of(a, row.key); value != row.value) {
      cannot_export(a, row.key, value, row.value);
    }
  }
  if (table == &gpt2_table()) {
    if (a.kv_heads != a.heads) cannot_export(a, "kv_heads", a.kv_heads, a.heads);
    if (a.head_dim * a.heads != a.hidden) {
      cannot_export(a, "head_dim", a.head_dim, "hidden / heads");
    }
  }
  json config = {{"model_type", a.family},
                 {"architectures", {table->model_class}},
                 {"torch_dtype", torch_name(type)},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr}};
  if (end_of_text) config["bos_token_id"] = config["eos_token_id"] = *end_of_text;
  for (const NumberRow& row : table->numbers) {
    config[std::string(row.setting)] = value_of(a, row.key);
  }
  for (const FixedRow& row : table->fixed) {
    if (!row.value.is_null()) config[std::string(row.setting)] = row.value;
  }
  if (table == &llama_table()) config["rope_theta"] = a.rope_theta;
  for (auto row = table->activations.rbegin(); row != table->activations.rend(); ++row) {
    if (row->word == a.activation) config[std::string(table->activation_setting)] = row->setting;
  }
  if (!config.contains(table->activation_setting)) {
    cannot_export(a, "activation", a.activation, table->activations[0].word);
  }
  return config.dump(2) + "\n";
}

}  // namespace tessera::io
