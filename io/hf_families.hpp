// What the settings of a Hugging Face config.json mean, as one table for each family: which
// settings are keys of [model] under another name, which have one value that is supported, and what
// the family itself fixes.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::io {

/// A setting that is a key of [model] under another name. What files without it mean is what
/// transformers takes then.
struct HfNumberRow {
  std::string_view key;                // in [model]
  std::string_view setting;            // in config.json
  nlohmann::json otherwise = nullptr;  // what a file without it means; null: it must be there
  nlohmann::json none = nullptr;       // what null means in a file; null: it is refused
  std::int64_t more = 0;               // by which the setting is above the key
  std::string_view alias = "";         // another name of the setting, which is not written
  bool or_zero = false;                // of a number that need not be above 0
  std::string_view times = "";         // a key read before, by which the setting is multiplied
  std::string_view beside = "";        // a key read before, by which the key is above the setting
};

/// A setting that a file may have; without it the key stays unset.
struct HfOptionalRow {
  std::string_view key;
  std::string_view setting;
};

/// A setting of which one value is supported; a file without it means that value. So does one that
/// says null, where transformers takes it so.
struct HfFixedRow {
  std::string_view setting;
  nlohmann::json value;
  bool or_null = false;
  bool of_head = false;  // nothing is asked of it where the file's head is not read
};

/// A key of [model] that the family itself fixes.
struct HfImpliedRow {
  std::string_view key;
  nlohmann::json value;
};

/// A setting whose values are words of a key of [model]; a file without it means the first.
struct HfChoice {
  std::string_view key;
  std::string_view setting;
  std::vector<std::pair<nlohmann::json, std::string_view>> words;
};

struct HfWordRow {
  std::string_view setting;
  std::string_view word;  // of [model]
};

/// A setting of training that is a rate of dropout under another name.
struct HfDropoutRow {
  std::string_view key;      // in [model]
  std::string_view setting;  // in config.json
  double otherwise = 0;      // what a file without it means
};

/// How settings say what rotary positions are. transformers 5 has them in rope_parameters; before
/// it, the names here stood at the top, beside rope_scaling.
struct HfRotary {
  std::string_view theta = "rope_theta";
  double default_theta = 10000;
  std::string_view share = "";  // empty: all of a head's columns turn
  double default_share = 1;
  std::string_view local_theta = "";  // of layers with a window, where they have another
  double default_local_theta = 0;
  bool scores = false;  // whether mscale_all_dim multiplies attention's scores
};

/// A setting that says how routers choose: among all experts, or among those of the best groups.
struct HfGroups {
  std::string_view setting;
  std::string_view all, of_groups;  // its values; a file without it means the first
};

/// A setting that says how many of a head's columns turn, in place of their share.
struct HfRotaryColumns {
  std::string_view setting;
  std::int64_t otherwise = 0;  // what a file without it means
};

/// How settings say which layers' attention has a window.
struct HfWindows {
  std::string_view used = "";   // the setting without which the others have no effect
  std::string_view first = "";  // layers before those with a window, where layer_types do not say
  std::int64_t default_first = 0;
  std::string_view size = "sliding_window";
  std::int64_t default_size = 0;   // what a file without it means; 0, as null in a file: no window
  std::int64_t default_every = 0;  // a layer in so many has none, where a file does not say which
  std::string_view every = "";     // the setting that says so, beside layer_types
  bool layer_types = false;        // whether files may, and exports do, name each layer's kind
};

/// What a model class computes: a family's, with a head.
struct HfFamily {
  std::string_view family;      // of [model]
  std::string_view model_type;  // of config.json
  std::string_view model_class;
  std::vector<HfNumberRow> numbers;
  std::vector<HfFixedRow> fixed;
  std::vector<HfImpliedRow> implied;  // keys that are neither here nor read have their default
  std::vector<HfDropoutRow> dropouts;
  std::vector<HfChoice> choices = {};
  std::vector<HfOptionalRow> optional = {};
  std::string_view activation_setting;
  std::vector<std::string_view> activation_keys = {"activation"};  // that have its word
  std::vector<HfWordRow> activations;  // the first of equal words is the one that is written
  const HfRotary* rotary = nullptr;    // null: no rotary positions
  const HfRotaryColumns* rotary_columns = nullptr;
  const HfWindows* windows = nullptr;  // null: no windows
  const HfGroups* groups = nullptr;    // null: moe.groups say it
  std::string_view dense_layers = "";  // the setting that lists layers without experts
  /// The setting that says how many layers a file has behind the model's last, if there is one.
  HfNumberRow further_layers = {};
  std::vector<std::string_view> unused = {};   // settings that have no effect beside `fixed` ones
  std::vector<HfFixedRow> written = {};        // of those, which an export has
  std::vector<std::string_view> classes = {};  // of which files can be; empty: they need not say
  std::string_view task = "lm";
};

/// All families; some have a row for each of several heads, the usual one first.
std::span<const HfFamily> hf_families();

/// Whether a setting says nothing of the computation: of training, generation, other heads than
/// that of the language model, or where the file comes from.
bool hf_harmless(std::string_view setting);

}  // namespace tessera::io
