// Reads a config.json, setting by setting, as its family's tables say.
#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "io/file.hpp"
#include "io/hf_codes.hpp"
#include "io/hf_config_keys.hpp"
#include "io/json.hpp"

namespace tessera::io {
namespace {

using nlohmann::json;

constexpr std::int64_t kLargestConfig = 1 << 20;
// Bounds that no model reaches and that keep every product of two or three extents in 64 bits.
constexpr std::int64_t kMostLayers = 4096;
constexpr std::int64_t kLargestExtent = std::int64_t{1} << 24;
constexpr std::int64_t kMostExperts = 512;
// Turns between which frequencies of yarn change, where a file does not say.
constexpr double kYarnLow = 1, kYarnHigh = 32;
constexpr std::int64_t kDefaultLabels = 2;  // of classifiers whose file names none

std::int64_t most_of(std::string_view key) {
  return key == "layers" ? kMostLayers : key == "moe.experts" ? kMostExperts : kLargestExtent;
}

class ConfigReader {
 public:
  ConfigReader(const JsonCursor& root, const std::optional<HfWantedHead>& wanted)
      : root_(root), wanted_(wanted) {}

  HfConfig read() {
    const JsonCursor type = root_["model_type"];
    const auto families = find_families(&HfFamily::model_type, type.text());
    if (families.empty()) {
      type.fail(fmt::format("\"{}\" is not supported; allowed: {}", type.text(),
                            allowed_families(&HfFamily::model_type)));
    }
    const HfFamily* family = wanted_ ? choose_head(families) : choose_class(families);
    const bool fresh = config_.head == HeadWeights::fresh;
    set("family", family->family, type.place());
    set("task.kind", fresh ? wanted_->task : family->task, type.place());
    for (const HfFixedRow& row : family->fixed) {
      if (!(fresh && row.of_head)) require(row);
    }
    read_codes();
    for (const HfNumberRow& row : family->numbers) read_number(row);
    for (const HfDropoutRow& row : family->dropouts) read_dropout(row);
    for (const HfOptionalRow& row : family->optional) read_optional(row);
    for (const HfChoice& choice : family->choices) read_choice(choice);
    for (const HfImpliedRow& row : family->implied)
      if (!is_idle(config_.architecture, row.key)) set(row.key, row.value, type.place());
    if (fresh) {
      take_fresh_head(*family, type.place());
    } else {
      read_classes(*family);
    }
    read_activation(*family);
    if (family->windows != nullptr) read_windows(*family->windows);
    if (family->rotary != nullptr) read_rotary(*family->rotary);
    if (family->rotary_columns != nullptr) read_rotary_columns(*family->rotary_columns);
    if (family->groups != nullptr) read_groups(*family->groups);
    if (!family->dense_layers.empty()) read_dense_layers(family->dense_layers);
    if (!family->further_layers.setting.empty()) {
      if (const auto value = find_number(family->further_layers))
        config_.further_layers = value->integer(0, kMostLayers);
    }
    refuse_windows_of_others(*family);
    refuse_unknown(*family);
    fill_defaults(*family, type.place());
    fill_derived();
    for (HfKey& key : config_.keys) key.fixed = !(fresh && of_head(key.key));
    return std::move(config_);
  }

 private:
  static bool of_head(std::string_view key) {
    return key.starts_with("head_") || key == "tied_embeddings" || key == "logit_soft_cap" ||
           key == "task.pooling";
  }

  /// Whether the file has the setting and says null, which is not what a file without it says.
  bool is_null(std::string_view setting) const {
    const auto found = root_.raw().find(setting);
    return found != root_.raw().end() && found->is_null();
  }

  [[noreturn]] void refuse_null(std::string_view setting, std::string_view allowed) const {
    root_.fail(fmt::format("{}: null is not supported; allowed: {}", setting, allowed));
  }

  void read_codes() {
    constexpr std::string_view kSetting = "quantization_config";
    known_.insert(kSetting);
    if (const auto value = root_.find(kSetting)) config_.codes = read_codes_config(*value);
  }

  void require(const HfFixedRow& row) {
    known_.insert(row.setting);
    const auto value = root_.find(row.setting);
    if (value && value->raw() != row.value) {
      value->fail(
          fmt::format("{} is not supported; allowed: {}", value->shown(), row.value.dump()));
    }
    const bool none = row.value.is_null() || row.value == false || row.or_null;
    if (!none && is_null(row.setting)) refuse_null(row.setting, row.value.dump());
  }

  /// The row whose head the file names; classes that no row has have other heads.
  const HfFamily* choose_class(const std::vector<const HfFamily*>& families) const {
    const auto named = root_.find("architectures");
    const HfFamily* chosen = families[0];
    if (!named) return chosen;
    named->for_each_item([&](const JsonCursor& item) {
      std::vector<std::string_view> allowed;
      for (const HfFamily* family : families) {
        allowed.insert(allowed.end(), family->classes.begin(), family->classes.end());
        if (std::ranges::find(family->classes, item.text()) == family->classes.end()) continue;
        chosen = family;
        return;
      }
      if (families[0]->classes.empty()) return;  // they need not say
      item.fail(fmt::format("the head of a {} is not supported; allowed: {}", item.text(),
                            fmt::join(allowed, ", ")));
    });
    return chosen;
  }

  /// The row of the head that is wanted, with the file's own weights or fresh ones; of a fresh head
  /// that no row has, the family's usual one. Which other head the file has does not matter then.
  const HfFamily* choose_head(const std::vector<const HfFamily*>& families) {
    const auto row = std::ranges::find(families, wanted_->task, &HfFamily::task);
    const bool known = row != families.end();
    const auto named = root_.find("architectures");
    bool there = false;
    const auto look = [&](const JsonCursor& item) {
      there =
          there || item.text().ends_with(wanted_->task == "tokens" ? "ForTokenClassification"
                                                                   : "ForSequenceClassification");
    };
    if (named) named->for_each_item(look);
    const bool own = there && wanted_->head != HeadWeights::fresh;
    if (own ? !known : wanted_->head == HeadWeights::directory) {
      named.value_or(root_).fail(fmt::format(
          "{}a head for task.kind = \"{}\" is not {} (model.init_head = \"fresh\" draws one)",
          named ? named->raw().dump() + ": " : "", wanted_->task, own ? "supported" : "there"));
    }
    config_.head = own ? HeadWeights::directory : HeadWeights::fresh;
    return known ? *row : families[0];
  }

  /// What a row of another head says otherwise: as classifiers of transformers, which take no cap
  /// of logits and read what has seen all of the text.
  void take_fresh_head(const HfFamily& family, const std::string& place) {
    if (family.task == wanted_->task) return;
    std::erase_if(config_.keys, [](const HfKey& key) { return of_head(key.key); });
    set("tied_embeddings", false, place);
    set("head_bias", wanted_->task != "reward", place);
    set("logit_soft_cap", 0.0, place);
    if (wanted_->task != "tokens") set("task.pooling", "last", place);
  }

  /// Classes and their names: {"0": "negative", "1": "positive"}; a score has one, without meaning.
  void read_classes(const HfFamily& family) {
    const bool scores = family.task == "reward";
    if (family.task != "classify" && family.task != "tokens" && !scores) return;
    const auto names = root_.find("id2label"), number = root_.find("num_labels");
    const std::int64_t labels = names    ? names->size()
                                : number ? number->integer(1, kLargestExtent)
                                         : kDefaultLabels;
    if (scores) {
      if (labels == 1) return;
      (names ? names : number)
          .value_or(root_)
          .fail(fmt::format(
              "a head of {} is not supported for {}; allowed: one output, of a reward model",
              count_text(labels, "output"), family.family));
    }
    if (number && number->integer() != labels) {
      number->fail(fmt::format("{}, but id2label names {}: remove the one that is wrong",
                               number->shown(), count_text(labels, "class", "classes")));
    }
    set("task.labels", labels, names ? names->place() : number.value_or(root_).place());
    for (std::int64_t i = 0; names && i < labels; ++i)
      config_.classes.push_back((*names)[fmt::format("{}", i)].text());
    if (std::set(config_.classes.begin(), config_.classes.end()).size() != config_.classes.size())
      names->fail("two classes have the same name");
    for (std::int64_t i = 0; i < std::ssize(config_.classes); ++i) {
      if (config_.classes[static_cast<std::size_t>(i)] != unnamed_class(i)) return;
    }
    config_.classes.clear();
  }

  /// The setting under the name or the other name that it has, which must not differ.
  std::optional<JsonCursor> find_number(const HfNumberRow& row) {
    known_.insert(row.setting);
    auto value = root_.find(row.setting);
    if (row.alias.empty()) return value;
    known_.insert(row.alias);
    auto other = root_.find(row.alias);
    if (value && other && value->raw() != other->raw()) {
      other->fail(fmt::format("{}, but {} = {}, which is the same setting: remove one of the two",
                              other->shown(), row.setting, value->shown()));
    }
    return value ? value : other;
  }

  void read_number(const HfNumberRow& row) {
    const auto value = find_number(row);
    if (!value) {
      if (row.otherwise.is_null()) (void)root_[row.setting];  // says that it is missing
      const bool null = is_null(row.setting);
      if (null && row.none.is_null())
        refuse_null(row.setting, fmt::format("a value, or no such setting, which means {}",
                                             row.otherwise.dump()));
      json meant = null ? row.none : row.otherwise;
      if (!row.times.empty())
        meant = meant.get<std::int64_t>() * times_of(row, config_.architecture);
      if (!row.beside.empty())
        meant = meant.get<std::int64_t>() + beside_of(row, config_.architecture);
      return set(row.key, meant, root_.place());
    }
    const auto& member = field_of(row.key).member;
    if (std::holds_alternative<std::int64_t HfArchitecture::*>(member)) {
      const std::int64_t times = times_of(row, config_.architecture), n = value->integer(),
                         least = (row.or_zero ? 0 : 1) + row.more, most = most_of(row.key) / times;
      if (n < least || n > most) value->fail(fmt::format("{}; allowed: {} to {}", n, least, most));
      return set(row.key, (n - row.more) * times + beside_of(row, config_.architecture),
                 value->place());
    }
    if (std::holds_alternative<double HfArchitecture::*>(member)) {
      if (!row.or_zero || value->number() != 0) check_positive(*value, row.or_zero);
    } else {
      (void)value->boolean();
    }
    set(row.key, value->raw(), value->place());
  }

  static void check_positive(const JsonCursor& value, bool or_zero = false) {
    if (!(value.number() > 0)) {
      value.fail(fmt::format("{}; must be {}", value.number(), or_zero ? "0 or more" : "above 0"));
    }
  }

  void read_dropout(const HfDropoutRow& row) {
    known_.insert(row.setting);
    const auto value = root_.find(row.setting);
    if (value && !(value->number() >= 0 && value->number() < 1))
      value->fail(fmt::format("{}; allowed: 0 to below 1", value->number()));
    set(row.key, value ? value->number() : row.otherwise, value ? value->place() : root_.place());
  }

  void read_optional(const HfOptionalRow& row) {
    known_.insert(row.setting);
    if (const auto value = root_.find(row.setting))
      set(row.key, value->integer(0, kLargestExtent), value->place());
  }

  void read_choice(const HfChoice& choice) {
    known_.insert(choice.setting);
    const auto value = root_.find(choice.setting);
    if (!value && !is_null(choice.setting))
      return set(choice.key, choice.words[0].second, root_.place());
    std::vector<std::string> allowed;
    for (const auto& [setting, word] : choice.words) {
      if (value && value->raw() == setting) return set(choice.key, word, value->place());
      allowed.push_back(setting.dump());
    }
    if (!value) refuse_null(choice.setting, fmt::format("{}", fmt::join(allowed, ", ")));
    value->fail(
        fmt::format("{} is not supported; allowed: {}", value->shown(), fmt::join(allowed, ", ")));
  }

  void read_activation(const HfFamily& table) {
    known_.insert(table.activation_setting);
    const auto value = root_.find(table.activation_setting);
    const std::string word = value ? value->text() : std::string(table.activations[0].setting);
    for (const HfWordRow& row : table.activations) {
      if (row.setting != word) continue;
      for (const std::string_view key : table.activation_keys)
        set(key, row.word, value ? value->place() : root_.place());
      return;
    }
    std::string allowed;
    for (const HfWordRow& row : table.activations) {
      allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", row.setting);
    }
    value->fail(fmt::format("\"{}\" is not supported; allowed: {}", word, allowed));
  }

  /// The setting of such a name within `rope`, or else at the top.
  std::optional<JsonCursor> rotary_setting(const std::optional<JsonCursor>& rope,
                                           std::string_view inner, std::string_view outer) {
    if (rope) {
      if (auto value = rope->find(inner)) return value;
    }
    return outer.empty() ? std::nullopt : root_.find(outer);
  }

  void set_number(std::string_view key, const std::optional<JsonCursor>& value, double otherwise) {
    if (value) check_positive(*value);
    set(key, value ? value->number() : otherwise, value ? value->place() : root_.place());
  }

  /// transformers 5 writes rope_parameters {rope_type, rope_theta, ...}, or one of these for each
  /// kind of layer; before it, rope_theta and rope_scaling stood at the top.
  void read_rotary(const HfRotary& names) {
    known_.insert({"rope_theta", "rope_scaling", "rope_parameters", names.theta, names.share,
                   names.local_theta});
    auto rope = root_.find("rope_scaling");
    std::optional<JsonCursor> local;
    if (const auto current = root_.find("rope_parameters")) {
      if (rope) rope->fail("is said in rope_parameters too: remove one of the two");
      rope = current;
      local = current->find("sliding_attention");
      if (const auto full = current->find("full_attention")) rope = full;
    }
    set_number("rope_theta", rotary_setting(rope, "rope_theta", names.theta), names.default_theta);
    const auto share = rotary_setting(rope, "partial_rotary_factor", names.share);
    if (share && (names.share.empty() ? share->number() != 1.0 : share->number() > 1.0)) {
      share->fail(fmt::format("{} is not supported; allowed: {}", share->number(),
                              names.share.empty() ? "1.0" : "above 0, to 1.0"));
    }
    set_number("rotary_share", share, names.default_share);
    if (local && names.local_theta.empty()) {
      local->fail("rotary positions of its own are not supported for layers of this kind");
    }
    if (!names.local_theta.empty()) {
      require_plain_rotary(local);
      const auto theta = rotary_setting(local, "rope_theta", names.local_theta);
      if (config_.architecture.window > 0)
        set_number("rope_local_theta", theta, names.default_local_theta);
    }
    read_rope_scaling(rope);
    if (!names.scores || config_.architecture.rope_scaling == "none") return;
    const auto scale = rope->find("mscale_all_dim");
    if (!scale) return;
    if (scale->number() < 0) check_positive(*scale, true);
    if (scale->number() > 0 && config_.architecture.rope_scaling != "yarn") {
      scale->fail(fmt::format("{} is not supported beside \"{}\"; allowed: beside \"yarn\", or 0",
                              scale->number(), config_.architecture.rope_scaling));
    }
    set("rope_mscale_all_dim", scale->number(), scale->place());
  }

  void read_rotary_columns(const HfRotaryColumns& names) {
    known_.insert(names.setting);
    const HfArchitecture& a = config_.architecture;
    if (is_null(names.setting)) refuse_null(names.setting, "a number of columns");
    const auto value = root_.find(names.setting);
    const std::int64_t head = a.hidden / a.heads, n = value ? value->integer() : names.otherwise;
    if (n < 2 || n > head || n % 2 != 0) {
      value.value_or(root_).fail(
          fmt::format("{} = {}; allowed: even numbers from 2 to {}, the columns of a head",
                      names.setting, n, head));
    }
    const auto columns = static_cast<double>(head);
    double share = static_cast<double>(n) / columns;
    while (static_cast<std::int64_t>(columns * share) < n) share = std::nextafter(share, 2.0);
    set("rotary_share", share, value ? value->place() : root_.place());
  }

  static std::optional<JsonCursor> rotary_kind(const std::optional<JsonCursor>& rope) {
    if (!rope) return std::nullopt;
    const auto kind = rope->find("rope_type");
    return kind ? kind : rope->find("type");
  }

  void require_plain_rotary(const std::optional<JsonCursor>& local) {
    const auto kind = rotary_kind(local);
    if (kind && kind->text() != "default") {
      kind->fail(fmt::format(
          "\"{}\" is not supported of layers with a window; allowed: \"default\"", kind->text()));
    }
  }

  void read_rope_scaling(const std::optional<JsonCursor>& rope) {
    const auto kind = rotary_kind(rope);
    if (!kind || kind->text() == "default") return;
    const auto* row = std::ranges::find(kScalings, kind->text(), &ScalingRow::kind);
    if (row == kScalings.end()) {
      std::string allowed = "\"default\"";
      for (const ScalingRow& scaling : kScalings) allowed += fmt::format(", \"{}\"", scaling.kind);
      kind->fail(fmt::format("\"{}\" is not supported; allowed: {}", kind->text(), allowed));
    }
    set("rope_scaling", kind->text(), kind->place());
    const JsonCursor factor = (*rope)["factor"];
    if (!(factor.number() >= 1)) factor.fail(fmt::format("{}; must be 1 or more", factor.number()));
    set("rope_factor", factor.number(), factor.place());
    if (row->read != nullptr) (this->*row->read)(*rope);
  }

  void read_llama3(const JsonCursor& by) {
    set_frequencies(by["low_freq_factor"], by["high_freq_factor"], "high_freq_factor");
    const JsonCursor context = by["original_max_position_embeddings"];
    set("rope_original_context", context.integer(1, kLargestExtent), context.place());
  }

  /// max_position_embeddings is the context of the training before; sequences may be `factor` times
  /// as long.
  void read_dynamic(const JsonCursor& by) {
    const std::int64_t before = config_.architecture.context;
    const auto said = by.find("original_max_position_embeddings");
    if (said && said->integer() != before) {
      said->fail(fmt::format(
          "{} is not supported beside \"dynamic\"; allowed: {}, which is max_position_embeddings",
          said->shown(), before));
    }
    const JsonCursor factor = by["factor"];
    if (factor.number() * static_cast<double>(before) > static_cast<double>(kLargestExtent)) {
      factor.fail(
          fmt::format("{} times max_position_embeddings = {}; at most {} in all are possible",
                      factor.number(), before, kLargestExtent));
    }
    set("rope_original_context", before, root_.place());
    std::erase_if(config_.keys, [](const HfKey& k) { return k.key == "context"; });
    set("context", dynamic_context(config_.architecture), factor.place());
  }

  /// The turns between which frequencies change; yarn's have defaults.
  void set_frequencies(const std::optional<JsonCursor>& low, const std::optional<JsonCursor>& high,
                       std::string_view high_name) {
    set_number("rope_low_frequency", low, kYarnLow);
    set_number("rope_high_frequency", high, kYarnHigh);
    const HfArchitecture& a = config_.architecture;
    if (a.rope_low_frequency < a.rope_high_frequency) return;
    low.value_or(root_).fail(fmt::format("{} is not below {} = {}", a.rope_low_frequency, high_name,
                                         a.rope_high_frequency));
  }

  /// As modeling_rope_utils of transformers reads them: beta_slow and beta_fast turns in the
  /// context before; the magnitude is attention_factor, or a quotient of what two mscales make of
  /// the factor.
  void read_yarn(const JsonCursor& by) {
    set_frequencies(by.find("beta_slow"), by.find("beta_fast"), "beta_fast");
    if (const auto truncate = by.find("truncate"); truncate && !truncate->boolean())
      truncate->fail("false is not supported; allowed: true");
    const auto context = by.find("original_max_position_embeddings");
    set("rope_original_context",
        context ? context->integer(1, kLargestExtent) : config_.architecture.context,
        context ? context->place() : root_.place());
    const auto given = by.find("attention_factor"), scale = by.find("mscale"),
               over = by.find("mscale_all_dim");
    if (given) return set_number("rope_magnitude", given, 0);
    const double log = std::log(config_.architecture.rope_factor);
    const double up = scale ? scale->number() : 0, down = over ? over->number() : 0;
    if (up != 0 && down != 0)
      set("rope_magnitude", (0.1 * up * log + 1) / (0.1 * down * log + 1), scale->place());
  }

  /// Which of the layers that layer_types names have no window: every so many one of them; nothing
  /// where it says otherwise.
  static bool agrees(const std::vector<JsonCursor>& types, std::int64_t every) {
    for (std::size_t i = 0; i < types.size(); ++i) {
      const bool global = every > 0 && (static_cast<std::int64_t>(i) + 1) % every == 0;
      if (types[i].text() != (global ? "full_attention" : "sliding_attention")) return false;
    }
    return true;
  }

  std::vector<JsonCursor> layer_types() {
    const auto types = root_.find("layer_types");
    if (!types) return {};
    const std::int64_t layers = config_.architecture.layers;
    auto items = types->items(layers, layers);
    for (const JsonCursor& item : items) {
      if (item.text() != "full_attention" && item.text() != "sliding_attention") {
        item.fail(fmt::format("\"{}\" is not supported; allowed: full_attention, sliding_attention",
                              item.text()));
      }
    }
    return items;
  }

  void read_windows(const HfWindows& names) {
    known_.insert({names.used, names.first, names.size, names.every, "layer_types"});
    const auto used = names.used.empty() ? std::nullopt : root_.find(names.used);
    const bool off = !names.used.empty() && !(used && used->boolean());
    const auto given = root_.find(names.size);
    const std::int64_t size = off                   ? 0
                              : given               ? given->integer(1, kLargestExtent)
                              : is_null(names.size) ? 0
                                                    : names.default_size;
    const auto types = layer_types();
    const auto full = [](const JsonCursor& type) { return type.text() == "full_attention"; };
    const auto first = std::ranges::find_if(types, full);
    if (size == 0 || (!types.empty() && std::ranges::all_of(types, full))) {
      if (size == 0 && !types.empty() && !std::ranges::all_of(types, full)) {
        root_.fail(fmt::format("layer_types names layers with a window, but {}",
                               off ? fmt::format("{} is not true", names.used)
                                   : fmt::format("{} says of none", names.size)));
      }
      return;
    }
    if (types.empty() && !names.first.empty() && !windows_in_all_layers(names)) return;
    const std::string place = given ? given->place() : root_.place();
    set("window", size, place);
    const auto said = names.every.empty() ? std::nullopt : root_.find(names.every);
    std::int64_t every = said ? said->integer(1, kMostLayers) : names.default_every;
    if (!types.empty() && !agrees(types, every)) {
      every = first == types.end() ? 0 : std::distance(types.begin(), first) + 1;
      if (said || !agrees(types, every)) {
        root_["layer_types"].fail(
            said ? fmt::format("does not agree with {} = {}", names.every, said->shown())
                 : std::string("is not supported; allowed: every layer of one kind, or a "
                               "full_attention after each so many of sliding_attention"));
      }
    }
    set("global_every", every, said ? said->place() : place);
  }

  /// Whether all layers have a window, where files say before how many there is none; false: none
  /// has.
  bool windows_in_all_layers(const HfWindows& names) {
    const auto value = root_.find(names.first);
    const std::int64_t layers = config_.architecture.layers;
    const std::int64_t before = value ? value->integer(0, kLargestExtent) : names.default_first;
    if (before > 0 && before < layers) {
      value.value_or(root_).fail(
          fmt::format("{} of {} layers without a window before the others is not supported; "
                      "allowed: 0, or {} or more",
                      before, layers, layers));
    }
    return before == 0;
  }

  /// Which layers have no experts, beside those that the step leaves out: the first so many.
  void read_dense_layers(std::string_view setting) {
    known_.insert(setting);
    std::set<std::int64_t> listed;
    const auto list = root_.find(setting);
    if (list) list->for_each_item([&](const JsonCursor& item) { listed.insert(item.integer()); });
    const HfArchitecture& a = config_.architecture;
    std::int64_t first = 0;
    bool dense = true;  // all layers so far
    for (std::int64_t i = 0; i < a.layers; ++i) {
      const bool stepped = (i + 1) % a.moe_every == 0;
      if (!listed.contains(i)) {
        dense = dense && !stepped;
      } else if (dense) {
        first = i + 1;
      } else if (stepped) {
        list->fail(
            fmt::format("layer {} without experts behind a layer with them is not "
                        "supported; allowed: the first so many layers",
                        i));
      }
    }
    set("moe.first_dense", first, list.value_or(root_).place());
  }

  /// Groups are of no effect where routers choose among all experts.
  void read_groups(const HfGroups& names) {
    known_.insert(names.setting);
    const auto value = root_.find(names.setting);
    const std::string word = value ? value->text() : std::string(names.all);
    if (word != names.all && word != names.of_groups)
      value->fail(fmt::format("\"{}\" is not supported; allowed: {}, {}", word, names.all,
                              names.of_groups));
    if (word == names.of_groups) return;
    for (const std::string_view key : {"moe.groups", "moe.group_top"}) {
      std::erase_if(config_.keys, [&](const HfKey& k) { return k.key == key; });
      set(key, 1, value.value_or(root_).place());
    }
  }

  void refuse_windows_of_others(const HfFamily& family) {
    if (family.windows != nullptr) return;
    known_.insert("layer_types");
    for (const JsonCursor& type : layer_types()) {
      if (type.text() != "full_attention")
        type.fail(fmt::format("\"{}\" is not supported; allowed: full_attention", type.text()));
    }
  }

  /// A setting that nobody has thought about may change what the model computes.
  void refuse_unknown(const HfFamily& family) {
    known_.insert(family.unused.begin(), family.unused.end());
    root_.for_each_member([&](const std::string& setting, const JsonCursor& value) {
      if (value.raw().is_null() || known_.contains(setting) || hf_harmless(setting)) return;
      value.fail(
          fmt::format("{} is not known of a {}: it may change what the model computes "
                      "(remove it from the file if it does not)",
                      setting, family.model_type));
    });
  }

  /// What neither the file nor the family speaks of.
  void fill_defaults(const HfFamily& family, const std::string& place) {
    const HfArchitecture defaults;
    std::set<std::string, std::less<>> said;  // a copy: keys are added below
    for (const HfKey& key : config_.keys) said.insert(key.key);
    if (family.rotary == nullptr) said.insert("rope_theta");
    for (const HfField& field : kHfFields) {
      if (config_.architecture.moe_experts == 0 && only_of_experts(field.key)) continue;
      if (!said.contains(field.key) && !stays_open(field.key))
        set(field.key, value_of(defaults, field.key), place);
    }
  }

  /// Whether fill_derived() has a value where there is none, or the deck needs none.
  static bool stays_open(std::string_view key) {
    return key == "head_dim" || key == "kv_heads" || key == "ffn_hidden" ||
           key == "task.mask_token" || key == "task.labels" || key == "task.pooling";
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

  /// How frequencies change for longer contexts: transformers' word, which [model] has too, and
  /// what it needs beside a factor.
  struct ScalingRow {
    std::string_view kind;
    void (ConfigReader::*read)(const JsonCursor&);
  };
  static constexpr std::array<ScalingRow, 4> kScalings = {{{"linear", nullptr},
                                                           {"dynamic", &ConfigReader::read_dynamic},
                                                           {"llama3", &ConfigReader::read_llama3},
                                                           {"yarn", &ConfigReader::read_yarn}}};

  JsonCursor root_;
  std::optional<HfWantedHead> wanted_;
  HfConfig config_;
  std::set<std::string_view> known_;  // settings that something here reads
};

}  // namespace

HfConfig read_hf_config(const std::filesystem::path& path,
                        const std::optional<HfWantedHead>& wanted) {
  const JsonDocument document(read_text(path, kLargestConfig), path.string());
  return ConfigReader(document.root(), wanted).read();
}

}  // namespace tessera::io
