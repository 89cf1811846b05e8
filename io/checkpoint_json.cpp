// manifest.json to and from the structs; io/CHECKPOINTS.md has the keys.
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "core/sharding.hpp"
#include "io/checkpoint_manifest.hpp"
#include "io/file.hpp"
#include "io/json.hpp"

namespace tessera::io {
namespace {

using nlohmann::json;

constexpr const char* kFormat = "tessera-checkpoint";
constexpr std::int64_t kMaxManifestBytes = std::int64_t{1} << 30;
constexpr std::int64_t kLeastBlockBytes = 4096;
constexpr std::int64_t kMaxFileBytes = std::int64_t{1} << 60;
constexpr int kMaxRanks = 1 << 24;
// Far above any real run, so that a run that goes on from them can count further.
constexpr std::int64_t kMaxCount = std::int64_t{1} << 53;  // steps, updates, samples
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 62;
constexpr std::size_t kHexDigits = 16;  // of one checksum

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

/// `digits` of the text that `where` holds.
std::uint64_t from_hex(std::string_view digits, const JsonCursor& where) {
  std::uint64_t value = 0;
  for (const char c : digits) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && (c < 'a' || c > 'f')) where.expected("lower-case hexadecimal digits");
    value = value * 16 + static_cast<std::uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return value;
}

std::vector<std::uint64_t> checksums_of(const JsonCursor& value) {
  const std::string_view text = value.text();
  if (text.size() % kHexDigits != 0) {
    value.fail(fmt::format("{} digits, must be a multiple of {}", text.size(), kHexDigits));
  }
  std::vector<std::uint64_t> checksums;
  for (std::size_t i = 0; i < text.size(); i += kHexDigits)
    checksums.push_back(from_hex(text.substr(i, kHexDigits), value));
  return checksums;
}

std::uint64_t checksum_of(const JsonCursor& value) {
  const auto checksums = checksums_of(value);
  if (checksums.size() != 1) value.expected(fmt::format("{} digits", kHexDigits));
  return checksums[0];
}

/// One to four integers.
std::vector<std::int64_t> axes_of(const JsonCursor& value, std::int64_t least) {
  std::vector<std::int64_t> axes;
  for (const JsonCursor& item : value.items(1, kMaxAxes))
    axes.push_back(item.integer(least, kMaxElements));
  return axes;
}

Shape shape_of(const JsonCursor& value) {
  const auto extents = axes_of(value, 1);
  std::int64_t elements = 1;
  for (const std::int64_t n : extents) {
    if (n > kMaxElements / elements)
      value.fail(fmt::format("{} has more than {} elements", to_string(extents), kMaxElements));
    elements *= n;
  }
  return Shape(extents);
}

/// [[start...], [count...]]
Box box_of(const JsonCursor& value, const Shape& shape) {
  const auto parts = value.items(2, 2);
  const auto start = axes_of(parts[0], 0), count = axes_of(parts[1], 1);
  const auto axes = static_cast<std::size_t>(shape.axes);
  if (start.size() != axes || count.size() != axes)
    value.fail(
        fmt::format("a box of {} and {} axes in a tensor of {}", start.size(), count.size(), axes));
  const Box box(start, count);
  if (!inside(shape, box))
    value.fail(fmt::format("start {} count {} is outside shape {}", to_string(start),
                           to_string(count), to_string(shape.extents())));
  return box;
}

DType type_of(const JsonCursor& value) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    if (value.text() == to_string(type)) return type;
  }
  value.expected("f32, bf16 or f16");
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

DatasetRecord dataset_of(const JsonCursor& value, std::int64_t block_bytes) {
  DatasetRecord d;
  d.block_bytes = block_bytes;
  d.tensor = value["tensor"].text();
  d.state = value["state"].text();
  d.shape = shape_of(value["shape"]);
  d.type = type_of(value["dtype"]);
  d.offset = value["offset"].integer(0, kMaxFileBytes);
  value["boxes"].for_each_item(
      [&](const JsonCursor& box) { d.boxes.push_back(box_of(box, d.shape)); });
  d.checksums = checksums_of(value["xxh3"]);
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

RankPart part_of(const JsonCursor& value, std::int64_t block_bytes) {
  RankPart part;
  part.rank = static_cast<int>(value["rank"].integer(0, kMaxRanks));
  const JsonCursor file = value["file"];
  if (file.text() != rank_file_name(part.rank)) file.expected(rank_file_name(part.rank));
  part.file_bytes = value["bytes"].integer(0, kMaxFileBytes);
  part.rest_checksum = checksum_of(value["rest_xxh3"]);
  value["datasets"].for_each_item(
      [&](const JsonCursor& d) { part.datasets.push_back(dataset_of(d, block_bytes)); });
  return part;
}

/// JSON has no NaN and no infinity: words stand for them, and NaN's payload is lost.
json number_to_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double number_of(const JsonCursor& value) {
  if (!value.is_text()) return value.number();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value.text() == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (value.text() == "inf") return kInfinity;
  if (value.text() == "-inf") return -kInfinity;
  value.expected("a number, nan, inf or -inf");
}

json json_of(const CheckpointLayout& layout) {
  json all = {{"world", layout.world}};
  for (const Axis& a : kAxes) all[a.name] = layout.mesh.*a.size;
  for (const Division& d : kDivisions)
    if (layout.mesh.*d.ranks > 1) all[d.name] = layout.mesh.*d.ranks;
  all["zero_stage"] = layout.zero_stage;
  return all;
}

CheckpointLayout layout_of(const JsonCursor& value) {
  CheckpointLayout layout{.world = value["world"].integer(1, kMaxRanks)};
  for (const Axis& a : kAxes) layout.mesh.*a.size = value[a.name].integer(1, kMaxRanks);
  for (const Division& d : kDivisions) {
    if (const auto given = value.find(d.name))
      layout.mesh.*d.ranks = given->integer(1, layout.mesh.data);
    if (layout.mesh.data % layout.mesh.*d.ranks != 0)
      value[d.name].expected("a divisor of the data ranks");
  }
  layout.zero_stage = static_cast<int>(value["zero_stage"].integer(0, kZeroStages - 1));
  return layout;
}

json json_of(const CheckpointHeader& h) {
  json skipped = json::array(), window = json::array(), data = json::array();
  for (const Range& r : h.skipped_samples) skipped.push_back({r.begin, r.end});
  for (const double loss : h.spike_window) window.push_back(number_to_json(loss));
  for (const DataFile& file : h.data)
    data.push_back({{"file", file.path}, {"bytes", file.bytes}, {"xxh3", hex(file.hash)}});
  json all = {{"step", h.step},
              {"applied_updates", h.applied_updates},
              {"samples", h.samples},
              {"tokens", h.tokens},
              {"skipped_samples", std::move(skipped)},
              {"loss_scale", h.loss_scale},
              {"scaler_good_steps", h.scaler_good_steps},
              {"scaler_hysteresis_left", h.scaler_hysteresis_left},
              {"spike_window", std::move(window)},
              {"lr_factor", h.lr_factor},
              {"critic_updates", h.critic_updates},
              {"data", std::move(data)},
              {"layout", json_of(h.layout)},
              {"deck", h.deck},
              {"info", h.info}};
  if (!h.source.empty()) all["source"] = h.source;
  return all;
}

Range samples_of(const JsonCursor& value) {
  const auto ends = value.items(2, 2);
  const std::int64_t begin = ends[0].integer(0, kMaxCount);
  return {begin, ends[1].integer(begin, kMaxCount)};
}

CheckpointHeader header_of(const JsonCursor& value) {
  CheckpointHeader h;
  h.step = value["step"].integer(0, kMaxCount);
  h.applied_updates = value["applied_updates"].integer(0, h.step);
  h.samples = value["samples"].integer(0, kMaxCount);
  h.tokens = value["tokens"].integer(0, kMaxTokens);
  value["skipped_samples"].for_each_item(
      [&](const JsonCursor& range) { h.skipped_samples.push_back(samples_of(range)); });
  h.loss_scale = value["loss_scale"].number();
  if (h.loss_scale <= 0) value["loss_scale"].expected("a number above 0");
  h.scaler_good_steps = value["scaler_good_steps"].integer(0, kMaxCount);
  // Below 0 after overflows that each halved the scale.
  h.scaler_hysteresis_left = value["scaler_hysteresis_left"].integer(-kMaxCount, kMaxCount);
  value["spike_window"].for_each_item(
      [&](const JsonCursor& loss) { h.spike_window.push_back(number_of(loss)); });
  if (const auto updates = value.find("critic_updates"))
    h.critic_updates = updates->integer(0, kMaxCount);
  if (const auto factor = value.find("lr_factor")) {
    h.lr_factor = factor->number();
    if (h.lr_factor <= 0 || h.lr_factor > 1) factor->expected("a number, > 0 and <= 1");
  }
  if (const auto data = value.find("data")) {
    data->for_each_item([&](const JsonCursor& file) {
      h.data.push_back({.path = file["file"].text(),
                        .bytes = file["bytes"].integer(0),
                        .hash = checksum_of(file["xxh3"])});
    });
  }
  h.layout = layout_of(value["layout"]);
  h.deck = value["deck"].text();
  if (const auto source = value.find("source")) h.source = source->text();
  value["info"].for_each_member(
      [&](const std::string& key, const JsonCursor& text) { h.info[key] = text.text(); });
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
  return part_of(JsonDocument(text, "part of a checkpoint").root(), kBlockBytes);
}

std::string to_text(const Manifest& manifest) {
  json parts = json::array();
  for (const RankPart& part : manifest.parts) parts.push_back(json_of(part));
  std::string body = fmt::format("\"format\":\"{}\",\n\"version\":{},\n\"block_bytes\":{},\n",
                                 kFormat, kCheckpointVersion, manifest.block_bytes);
  body += fmt::format("\"header\":{},\n", dump(json_of(manifest.header), 1));
  body += fmt::format("\"model\":{{\"bytes\":{},\"xxh3\":\"{}\"}},\n", manifest.model_bytes,
                      hex(manifest.model_checksum));
  body += fmt::format("\"files\":{}}}\n", dump(parts, -1));
  return first_line(body) + body;
}

Manifest manifest_from_text(std::string_view text, std::string_view name) {
  const std::size_t line = std::min(text.find('\n'), text.size() - 1) + 1;
  if (text.empty() || text.substr(0, line) != first_line(text.substr(line))) {
    throw DataError(
        fmt::format("{}: its checksum does not fit its content: damaged, or not a manifest", name));
  }
  const JsonDocument document(text, std::string(name));
  const JsonCursor root = document.root();
  if (root["format"].text() != kFormat) root["format"].expected(kFormat);
  (void)root["version"].integer(kCheckpointVersion, kCheckpointVersion);
  Manifest manifest;
  manifest.block_bytes = root["block_bytes"].integer(kLeastBlockBytes, kMostBlockBytes);
  if (kMostBlockBytes % manifest.block_bytes != 0) root["block_bytes"].expected("a power of two");
  manifest.header = header_of(root["header"]);
  manifest.model_bytes = root["model"]["bytes"].integer(0, kMaxFileBytes);
  manifest.model_checksum = checksum_of(root["model"]["xxh3"]);
  root["files"].for_each_item([&](const JsonCursor& part) {
    manifest.parts.push_back(part_of(part, manifest.block_bytes));
  });
  if (const auto problem = find_problem(manifest.parts))
    throw DataError(fmt::format("{}: {}", name, *problem));
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& checkpoint) {
  const auto path = checkpoint / kManifestFile;
  return manifest_from_text(read_text(path, kMaxManifestBytes), path.string());
}

}  // namespace tessera::io
