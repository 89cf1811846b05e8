// manifest.json to and from the structs; io/CHECKPOINTS.md has the keys.
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "io/checkpoint_manifest.hpp"
#include "io/file.hpp"
#include "io/json_fields.hpp"

namespace tessera {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "tessera-checkpoint";
constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 30;
constexpr std::int64_t kMaxCount = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 60;
constexpr int kMaxRanks = 1 << 24;
constexpr int kHexDigits = 16;  // of one checksum

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t from_hex(std::string_view text) {
  std::uint64_t value = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f'))
      throw DataError(
          fmt::format("xxh3: {} is not a lower-case hexadecimal digit", shown(std::string(1, c))));
    value = value * 16 + static_cast<std::uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

std::uint64_t checksum_field(const json& object, const char* key) {
  const std::string text = json_text(object, key);
  if (text.size() != kHexDigits)
    throw DataError(fmt::format("{}: {} digits, must be {}", key, text.size(), kHexDigits));
  return from_hex(text);
}

/// One to four integers.
std::vector<std::int64_t> axes_of(const json& value, const char* key, std::int64_t min) {
  if (!value.is_array() || value.empty() || value.size() > static_cast<std::size_t>(kMaxAxes))
    throw DataError(fmt::format("{}: found {}, must be an array of 1 to {} integers", key,
                                shown(value), kMaxAxes));
  std::vector<std::int64_t> axes;
  each_item(value, key,
            [&](const json& item) { axes.push_back(to_integer(item, min, kMaxElements)); });
  return axes;
}

Shape shape_of(const json& value) {
  const auto extents = axes_of(value, "shape", 1);
  std::int64_t elements = 1;
  for (const std::int64_t n : extents) {
    if (n > kMaxElements / elements)
      throw DataError(
          fmt::format("shape {} has more than {} elements", to_string(extents), kMaxElements));
    elements *= n;
  }
  return Shape(extents);
}

/// [[start...], [count...]]
Box box_of(const json& value, const Shape& shape) {
  if (!value.is_array() || value.size() != 2)
    throw DataError(fmt::format("found {}, must be [[start...], [count...]]", shown(value)));
  const auto start = axes_of(value[0], "start", 0), count = axes_of(value[1], "count", 1);
  const auto axes = static_cast<std::size_t>(shape.axes);
  if (start.size() != axes || count.size() != axes)
    throw DataError(
        fmt::format("a box of {} and {} axes in a tensor of {}", start.size(), count.size(), axes));
  const Box box(start, count);
  if (!inside(shape, box))
    throw DataError(fmt::format("start {} count {} is outside shape {}", to_string(start),
                                to_string(count), to_string(shape.extents())));
  return box;
}

DType type_of(const json& object) {
  const std::string word = json_text(object, "dtype");
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    if (word == to_string(type)) return type;
  }
  throw DataError(fmt::format("dtype: found {}, must be f32, bf16 or f16", shown(word)));
}

json json_of(const DatasetRecord& d) {
  json boxes = json::array();
  for (const Box& box : d.boxes) {
    const auto start = d.shape.used(box.start), count = d.shape.used(box.count);
    boxes.push_back({json(std::vector(start.begin(), start.end())),
                     json(std::vector(count.begin(), count.end()))});
  }
  std::string checksums;
  for (const std::uint64_t checksum : d.checksums) checksums += hex(checksum);
  const auto extents = d.shape.extents();
  return {{"tensor", d.tensor},
          {"shape", std::vector(extents.begin(), extents.end())},
          {"state", d.state},
          {"dtype", to_string(d.type)},
          {"offset", d.offset},
          {"boxes", std::move(boxes)},
          {"xxh3", std::move(checksums)}};
}

DatasetRecord dataset_of(const json& value) {
  DatasetRecord d;
  d.tensor = json_text(value, "tensor");
  d.state = json_text(value, "state");
  d.shape = shape_of(json_field(value, "shape"));
  d.type = type_of(value);
  d.offset = json_integer(value, "offset", 0, kMaxFileBytes);
  each_item(json_array(value, "boxes"), "boxes",
            [&](const json& box) { d.boxes.push_back(box_of(box, d.shape)); });
  const std::string checksums = json_text(value, "xxh3");
  if (checksums.size() % kHexDigits != 0)
    throw DataError(
        fmt::format("xxh3: {} digits, must be a multiple of {}", checksums.size(), kHexDigits));
  for (std::size_t i = 0; i < checksums.size(); i += kHexDigits)
    d.checksums.push_back(from_hex(std::string_view(checksums).substr(i, kHexDigits)));
  return d;
}

json json_of(const RankPart& part) {
  json datasets = json::array();
  for (const DatasetRecord& d : part.datasets) datasets.push_back(json_of(d));
  return {{"rank", part.rank},
          {"file", rank_file_name(part.rank)},
          {"bytes", part.file_bytes},
          {"rest_xxh3", hex(part.rest_checksum)},
          {"datasets", std::move(datasets)}};
}

RankPart part_of(const json& value) {
  RankPart part;
  part.rank = static_cast<int>(json_integer(value, "rank", 0, kMaxRanks));
  if (const auto file = json_text(value, "file"); file != rank_file_name(part.rank))
    throw DataError(
        fmt::format("file: found {}, must be {}", shown(file), rank_file_name(part.rank)));
  part.file_bytes = json_integer(value, "bytes", 0, kMaxFileBytes);
  part.rest_checksum = checksum_field(value, "rest_xxh3");
  each_item(json_array(value, "datasets"), "datasets",
            [&](const json& d) { part.datasets.push_back(dataset_of(d)); });
  return part;
}

json json_of(const CheckpointHeader& h) {
  json skipped = json::array(), window = json::array();
  for (const Range& r : h.skipped_samples) skipped.push_back({r.begin, r.end});
  for (const double loss : h.spike_window) window.push_back(number_to_json(loss));
  return {{"step", h.step},
          {"applied_updates", h.applied_updates},
          {"samples", h.samples},
          {"tokens", h.tokens},
          {"skipped_samples", std::move(skipped)},
          {"loss_scale", number_to_json(h.loss_scale)},
          {"scaler_good_steps", h.scaler_good_steps},
          {"scaler_hysteresis_left", h.scaler_hysteresis_left},
          {"spike_window", std::move(window)},
          {"threads", h.threads},
          {"layout",
           {{"world", h.layout.world},
            {"data", h.layout.data},
            {"pipeline", h.layout.pipeline},
            {"tensor", h.layout.tensor},
            {"zero_stage", h.layout.zero_stage}}},
          {"deck", h.deck},
          {"info", h.info}};
}

Range samples_of(const json& value) {
  if (!value.is_array() || value.size() != 2)
    throw DataError(fmt::format("found {}, must be [begin, end]", shown(value)));
  const std::int64_t begin = to_integer(value[0], 0, kMaxCount);
  return {begin, to_integer(value[1], begin, kMaxCount)};
}

CheckpointHeader header_of(const json& value) {
  CheckpointHeader h;
  h.step = json_integer(value, "step", 0, kMaxCount);
  h.applied_updates = json_integer(value, "applied_updates", 0, kMaxCount);
  h.samples = json_integer(value, "samples", 0, kMaxCount);
  h.tokens = json_integer(value, "tokens", 0, kMaxCount);
  each_item(json_array(value, "skipped_samples"), "skipped_samples",
            [&](const json& range) { h.skipped_samples.push_back(samples_of(range)); });
  h.loss_scale = json_number(value, "loss_scale");
  h.scaler_good_steps = json_integer(value, "scaler_good_steps", 0, kMaxCount);
  h.scaler_hysteresis_left = json_integer(value, "scaler_hysteresis_left", 0, kMaxCount);
  each_item(json_array(value, "spike_window"), "spike_window",
            [&](const json& loss) { h.spike_window.push_back(to_number(loss)); });
  h.threads = static_cast<int>(json_integer(value, "threads", 1, kMaxRanks));
  const json& layout = json_field(value, "layout");
  const auto size = [&](const char* key) {
    return static_cast<int>(json_integer(layout, key, 1, kMaxRanks));
  };
  h.layout = {.world = size("world"),
              .data = size("data"),
              .pipeline = size("pipeline"),
              .tensor = size("tensor"),
              .zero_stage = static_cast<int>(json_integer(layout, "zero_stage", 0, 3))};
  h.deck = json_text(value, "deck");
  const json& info = json_field(value, "info");
  if (!info.is_object())
    throw DataError(fmt::format("info: found {}, must be an object", shown(info)));
  for (const auto& item : info.items()) h.info[item.key()] = json_text(info, item.key().c_str());
  return h;
}

/// Text in `info` that is not UTF-8 (host names, paths) gets replacement characters.
std::string dump(const json& value, int indent) {
  return value.dump(indent, ' ', false, json::error_handler_t::replace);
}

/// The first line, which makes the whole a JSON object: {"xxh3":"...",
std::string first_line(std::string_view body) {
  return fmt::format("{{\"xxh3\":\"{}\",\n", hex(hash_text(body)));
}

}  // namespace

std::string to_text(const RankPart& part) { return dump(json_of(part), -1); }

RankPart rank_part_from_text(std::string_view text) {
  return part_of(parse_json(text, "part of a checkpoint"));
}

std::string to_text(const Manifest& manifest) {
  json parts = json::array();
  for (const RankPart& part : manifest.parts) parts.push_back(json_of(part));
  std::string body = fmt::format("\"format\":\"{}\",\n\"version\":{},\n\"block_bytes\":{},\n",
                                 kFormat, kCheckpointVersion, kBlockBytes);
  body += fmt::format("\"header\":{},\n", dump(json_of(manifest.header), 1));
  body += fmt::format("\"model\":{{\"bytes\":{},\"xxh3\":\"{}\"}},\n", manifest.model_bytes,
                      hex(manifest.model_checksum));
  body += fmt::format("\"files\":{}}}\n", dump(parts, -1));
  return first_line(body) + body;
}

Manifest manifest_from_text(std::string_view text, std::string_view name) {
  try {
    const std::size_t line = std::min(text.find('\n'), text.size() - 1) + 1;
    if (text.empty() || text.substr(0, line) != first_line(text.substr(line)))
      throw DataError("its checksum does not fit its content: damaged, or not a manifest");
    const json root = parse_json(text, "manifest");
    if (const auto format = json_text(root, "format"); format != kFormat)
      throw DataError(fmt::format("format: found {}, must be {}", shown(format), kFormat));
    json_integer(root, "version", kCheckpointVersion, kCheckpointVersion);
    json_integer(root, "block_bytes", kBlockBytes, kBlockBytes);
    Manifest manifest;
    manifest.header = header_of(json_field(root, "header"));
    const json& model = json_field(root, "model");
    manifest.model_bytes = json_integer(model, "bytes", 0, kMaxFileBytes);
    manifest.model_checksum = checksum_field(model, "xxh3");
    each_item(json_array(root, "files"), "files",
              [&](const json& part) { manifest.parts.push_back(part_of(part)); });
    if (const auto problem = find_problem(manifest.parts)) throw DataError(*problem);
    return manifest;
  } catch (Error& error) {
    error.add_context(name);
    throw;
  }
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const auto path = checkpoint / kManifestFile;
  return manifest_from_text(read_text(path, kMaxManifestBytes), path.string());
}

}  // namespace tessera
