// Writes a config.json from an architecture, by the tables that read it.
#include <fmt/ranges.h>
#include <algorithm>
#include <set>

#include "core/error.hpp"
#include "io/hf_codes.hpp"
#include "io/hf_config_keys.hpp"

namespace tessera::io {
namespace {

using nlohmann::json;

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
      fmt::format("the model cannot be written as a Hugging Face {}: {} = {}, needed: {}", a.family,
                  deck_key(key), value.dump(), needed.dump()));
}

/// The settings that say what rotary positions are, as all versions of transformers read them.
void write_rotary(json& config, const HfArchitecture& a, const HfRotary& names) {
  config[std::string(names.theta)] = a.rope_theta;
  if (!names.share.empty()) config[std::string(names.share)] = a.rotary_share;
  if (!names.local_theta.empty()) {
    config[std::string(names.local_theta)] =
        a.window > 0 ? a.rope_local_theta : names.default_local_theta;
  }
  if (a.rope_scaling == "none") return;
  json& scaling = config["rope_scaling"];
  scaling = {{"rope_type", a.rope_scaling}, {"factor", a.rope_factor}};
  if (a.rope_scaling == "linear" || a.rope_scaling == "dynamic") return;
  const bool yarn = a.rope_scaling == "yarn";
  scaling[yarn ? "beta_slow" : "low_freq_factor"] = a.rope_low_frequency;
  scaling[yarn ? "beta_fast" : "high_freq_factor"] = a.rope_high_frequency;
  if (a.rope_magnitude > 0) scaling["attention_factor"] = a.rope_magnitude;
  if (a.rope_mscale_all_dim > 0) scaling["mscale_all_dim"] = a.rope_mscale_all_dim;
  scaling["original_max_position_embeddings"] = a.rope_original_context;
}

void write_windows(json& config, const HfArchitecture& a, const HfWindows& names) {
  config[std::string(names.size)] = a.window > 0 ? json(a.window) : json(nullptr);
  if (!names.used.empty()) config[std::string(names.used)] = a.window > 0;
  if (!names.first.empty()) config[std::string(names.first)] = a.window > 0 ? 0 : a.layers;
  if (!names.layer_types) return;
  if (!names.every.empty() && a.window > 0 && a.global_every > 0)
    config[std::string(names.every)] = a.global_every;
  json types = json::array();
  for (std::int64_t i = 0; i < a.layers; ++i) {
    const bool global = a.window == 0 || (a.global_every > 0 && (i + 1) % a.global_every == 0);
    types.push_back(global ? "full_attention" : "sliding_attention");
  }
  config["layer_types"] = types;
}

void write_dense_layers(json& config, const HfArchitecture& a, std::string_view setting) {
  json layers = json::array();
  for (std::int64_t i = 0; i < a.moe_first_dense; ++i) layers.push_back(i);
  config[std::string(setting)] = layers;
}

/// Classes by their names, or by what transformers calls those without.
void write_classes(json& config, const HfArchitecture& a, std::span<const std::string> classes) {
  for (std::int64_t i = 0; i < a.labels; ++i) {
    const auto at = static_cast<std::size_t>(i);
    const std::string name = at < classes.size() ? classes[at] : unnamed_class(i);
    config["id2label"][fmt::format("{}", i)] = name;
    config["label2id"][name] = i;
  }
}

/// Says `value` of a key; refused where another key has said otherwise of the same setting.
void write_setting(json& config, const HfArchitecture& a, std::string_view key,
                   std::string_view name, const json& value) {
  const std::string setting(name);
  if (config.contains(setting) && config[setting] != value)
    cannot_export(a, key, value, config[setting]);
  config[setting] = value;
}

void write_number(json& config, const HfArchitecture& a, const HfNumberRow& row) {
  json value = value_of(a, row.key);
  if (row.key == "context" && a.rope_scaling == "dynamic") {
    if (a.context > dynamic_context(a)) cannot_export(a, row.key, value, dynamic_context(a));
    value = a.rope_original_context;
  }
  if (row.none == json(0.0) && value == json(0.0)) value = nullptr;  // no cap
  if ((row.key == "moe.experts" || row.key == "kv_latent") && value == 0)
    cannot_export(a, row.key, value, "1 or more");
  if (row.key == "value_dim" && value == 0) value = a.head_dim;
  if (row.more > 0) value = value.get<std::int64_t>() + row.more;
  if (!row.beside.empty()) value = value.get<std::int64_t>() - beside_of(row, a);
  if (!row.times.empty()) {
    const auto all = value.get<std::int64_t>(), times = times_of(row, a);
    if (all == 0 || all % times != 0)
      cannot_export(a, row.key, value, fmt::format("1 or more times {}", deck_key(row.times)));
    value = all / times;
  }
  write_setting(config, a, row.key, row.setting, value);
}

/// The values of keys that the family fixes: what it says, and defaults of what it does not have.
/// What is of training alone may be anything.
json implied_values(const HfFamily& family) {
  std::set<std::string_view> written{"family",
                                     "head_dim",
                                     "kv_heads",
                                     "dropout_embedding",
                                     "dropout_attention",
                                     "dropout_residual",
                                     "task.mask_token",
                                     "task.labels",
                                     "moe.aux_loss"};
  written.insert(family.activation_keys.begin(), family.activation_keys.end());
  for (const HfNumberRow& row : family.numbers) written.insert(row.key);
  for (const HfChoice& choice : family.choices) written.insert(choice.key);
  if (family.rotary != nullptr) {
    written.insert({"rope_theta", "rope_scaling", "rope_factor", "rope_low_frequency",
                    "rope_high_frequency", "rope_magnitude", "rope_original_context"});
    if (!family.rotary->share.empty()) written.insert("rotary_share");
    if (family.rotary->scores) written.insert("rope_mscale_all_dim");
    if (!family.rotary->local_theta.empty()) written.insert("rope_local_theta");
  } else {
    written.insert("rope_theta");  // of no effect
  }
  if (family.rotary_columns != nullptr) written.insert("rotary_share");
  if (family.windows != nullptr) {
    written.insert("window");
    if (family.windows->layer_types) written.insert("global_every");
  }
  json values;
  const bool of_experts = written.contains("moe.experts");
  if (!family.dense_layers.empty()) written.insert("moe.first_dense");
  for (const HfField& field : kHfFields) {
    if (!of_experts && only_of_experts(field.key)) continue;
    if (!written.contains(field.key))
      values[std::string(field.key)] = value_of(HfArchitecture{}, field.key);
  }
  for (const HfImpliedRow& row : family.implied) values[std::string(row.key)] = row.value;
  values["task.kind"] = family.task;
  return values;
}

/// The row of a model's family and task; of a task that the family has no head for, its usual one.
const HfFamily& family_of(const HfArchitecture& a) {
  const auto families = find_families(&HfFamily::family, a.family);
  if (families.empty()) cannot_export(a, "family", a.family, allowed_families(&HfFamily::family));
  const auto row_of_task =
      std::ranges::find_if(families, [&](const HfFamily* row) { return row->task == a.task; });
  return row_of_task == families.end() ? *families[0] : **row_of_task;
}

/// What configurations of all families begin with.
json settings_of_all(const HfFamily& family, DType type, const TextEnds& ends) {
  json config = {{"model_type", family.model_type},
                 {"architectures", {family.model_class}},
                 {"torch_dtype", torch_name(type)},
                 {"bos_token_id", nullptr},
                 {"eos_token_id", nullptr},
                 {"pad_token_id", nullptr}};  // a family's default may be beyond the vocabulary
  if (ends.begin) config["bos_token_id"] = *ends.begin;
  if (ends.end) config["eos_token_id"] = *ends.end;
  return config;
}

}  // namespace

std::string_view hf_model_class(const HfArchitecture& a) { return family_of(a).model_class; }

std::string write_hf_config(const HfArchitecture& a, DType type, const TextEnds& ends,
                            std::span<const std::string> classes,
                            const std::optional<kernels::BlockFormat>& codes) {
  const HfFamily* family = &family_of(a);
  const json implied = implied_values(*family);
  for (const auto& [key, needed] : implied.items()) {
    if (is_idle(a, key)) continue;
    if (const json value = value_of(a, key); value != needed) cannot_export(a, key, value, needed);
  }
  const auto has = [&](std::string_view key) {
    return std::ranges::find(family->numbers, key, &HfNumberRow::key) != family->numbers.end();
  };
  if (!has("kv_heads") && a.kv_heads != a.heads) cannot_export(a, "kv_heads", a.kv_heads, a.heads);
  if (!has("head_dim") && a.head_dim * a.heads != a.hidden)
    cannot_export(a, "head_dim", a.head_dim, "hidden / heads");
  json config = settings_of_all(*family, type, ends);
  for (const HfNumberRow& row : family->numbers) write_number(config, a, row);
  for (const HfDropoutRow& row : family->dropouts)
    write_setting(config, a, row.key, row.setting, value_of(a, row.key));
  for (const HfOptionalRow& row : family->optional) {
    if (const json value = value_of(a, row.key); value >= 0)
      config[std::string(row.setting)] = value;
  }
  for (const HfChoice& choice : family->choices) {
    for (const auto& [setting, word] : choice.words) {
      if (value_of(a, choice.key) == word) config[std::string(choice.setting)] = setting;
    }
  }
  for (const HfFixedRow& row : family->fixed) {
    if (!row.value.is_null()) config[std::string(row.setting)] = row.value;
  }
  for (const HfFixedRow& row : family->written) config[std::string(row.setting)] = row.value;
  if (a.labels > 0) write_classes(config, a, classes);
  if (codes) config["quantization_config"] = codes_config(*codes);
  if (family->rotary != nullptr) write_rotary(config, a, *family->rotary);
  if (family->rotary_columns != nullptr) {
    config[std::string(family->rotary_columns->setting)] =
        static_cast<std::int64_t>(static_cast<double>(a.head_dim) * a.rotary_share);
  }
  if (family->windows != nullptr) write_windows(config, a, *family->windows);
  if (family->groups != nullptr) {
    config[std::string(family->groups->setting)] =
        a.moe_groups > 1 ? family->groups->of_groups : family->groups->all;
  }
  if (!family->dense_layers.empty()) write_dense_layers(config, a, family->dense_layers);
  for (auto row = family->activations.rbegin(); row != family->activations.rend(); ++row) {
    if (row->word == a.activation) config[std::string(family->activation_setting)] = row->setting;
  }
  if (!config.contains(family->activation_setting)) {
    cannot_export(a, "activation", a.activation, family->activations[0].word);
  }
  for (const std::string_view key : family->activation_keys) {
    if (const json word = value_of(a, key); word != a.activation)
      cannot_export(a, key, word, a.activation);
  }
  return config.dump(2) + "\n";
}

}  // namespace tessera::io
