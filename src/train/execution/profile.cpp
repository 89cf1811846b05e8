#include "train/execution/profile.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/bytes.hpp"
#include "core/hash.hpp"
#include "io/file.hpp"
#include "io/json.hpp"
#include "plan/ir/runs.hpp"

namespace tessera::train {
namespace {

constexpr std::int64_t kFormat = 1;
/// Ranks that a picture shows all of.
constexpr std::int64_t kFewRanks = 8;

std::filesystem::path file_of(const std::filesystem::path& run_directory, std::int64_t rank) {
  return run_directory / "profile" / fmt::format("rank_{:05}.jsonl", rank);
}

/// A hash of what times belong to: every op with the shapes of its operands. Scratch does not
/// count, as its size depends on threads.
std::string plan_key(const plan::Plan& plan) {
  Hasher hash;
  hash.add(plan_hash(plan));
  for (const plan::Op& op : plan.ops) {
    hash.add(op.kind).add(op.stream).add(op.unit).add(op.micro_batch).add(call_name(op.call));
    for (const plan::OpId id : op.waits) hash.add(id);
    plan::each_view(op.call, [&](const View& v, kernels::Access access) {
      if (v.type != DType::u8) hash.add(v.elements()).add(v.type).add(access);
    });
  }
  return fmt::format("{:016x}", hash.value());
}

/// Where a profile was made, as its lines say it.
std::string layout_text(const Mesh& mesh, std::int64_t nodes) {
  return fmt::format("{} on {}, {}", count_text(mesh.size(), "rank"), count_text(nodes, "node"),
                     to_string(mesh));
}

std::int64_t nodes_of(const plan::PlanInputs& inputs) {
  return group_shape(inputs, {}, MeshGroup::world).nodes;
}

/// Nanoseconds are all that a clock tells.
double microseconds(double seconds) { return std::round(seconds * 1e9) / 1e3; }

}  // namespace

Profiler::Profiler(const deck::LogSection& log, const Job& job, const plan::PlanInputs& inputs,
                   const std::filesystem::path& directory)
    : steps_(log.profile), job_(job), inputs_(inputs), directory_(directory) {}

comm::ClockOffset Profiler::clock_offset() const {
  const auto& nodes = job_.mpi.node_of();
  if (std::ranges::all_of(nodes, [&](int node) { return node == nodes.front(); })) return {};
  const auto offset = job_.control.clock_offset([] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  });
  // One node has one monotonic clock.
  return nodes[static_cast<std::size_t>(job_.mpi.rank())] == nodes.front() ? comm::ClockOffset{}
                                                                           : offset;
}

StepProfile* Profiler::begin(std::int64_t step) {
  if (!steps_ || step < steps_->front() || step > steps_->back()) return nullptr;
  if (!file_) {
    job_.control.together([&] {
      if (job_.control.rank() == 0) io::create_directories(directory_ / "profile");
    });
    job_.control.together([&] { file_.emplace(file_of(directory_, job_.control.rank())); });
  }
  const auto unix_time = std::chrono::system_clock::now().time_since_epoch().count();
  now_ = {.step = step,
          .id = job_.control.broadcast(std::to_string(unix_time)),
          .clock = clock_offset(),
          .times = {}};
  return &now_.times;
}

void Profiler::write(const plan::Plan& plan) {
  job_.control.together([&] { file_->write(profile_line(now_, plan, inputs_)); });
}

std::string profile_line(const ProfiledStep& p, const plan::Plan& plan,
                         const plan::PlanInputs& inputs) {
  using Json = nlohmann::ordered_json;
  const double at = std::chrono::duration<double>(p.times.begin.time_since_epoch()).count();
  Json streams = Json::array(), begins = Json::array(), ends = Json::array();
  for (std::size_t i = 0; i < p.times.ops.size(); ++i) {
    const plan::OpRun run = plan::run_at(plan, static_cast<std::int64_t>(i));
    streams.push_back(enum_word(plan.op(run.op).stream));
    begins.push_back(microseconds(p.times.ops[i].begin));
    ends.push_back(microseconds(p.times.ops[i].end));
  }
  const Mesh& mesh = inputs.layout.mesh;
  Json sizes;
  for (const Axis& a : kAxes) sizes[a.name] = mesh.*a.size;
  for (const Division& d : kDivisions) sizes[d.name] = mesh.*d.ranks;
  return Json{{"format", kFormat},
              {"step", p.step},
              {"id", p.id},
              {"rank", mesh.rank_of(plan.place)},
              {"nodes", nodes_of(inputs)},
              {"mesh", std::move(sizes)},
              {"plan", plan_key(plan)},
              {"at_us", microseconds(at - p.clock.ahead)},
              {"us", microseconds(p.times.seconds)},
              {"clock_error_us", microseconds(p.clock.error)},
              {"stream", std::move(streams)},
              {"begin_us", std::move(begins)},
              {"end_us", std::move(ends)}}
      .dump();
}

// --- Reading -------------------------------------------------------------------------------------

namespace {

/// A line of a rank's file.
struct Record {
  std::string place;  // "file:line"
  std::int64_t step = 0;
  std::string id, layout, plan;
  double at = 0, seconds = 0, clock_error = 0;
  std::vector<Stream> streams;
  std::vector<plan::OpTime> ops;  // since `at`
};

/// Seconds, of microseconds that are not negative and that a clock may show.
double seconds_of(const io::JsonCursor& value) {
  const double us = value.number();
  if (!(us >= 0 && us < 1e16)) value.expected("microseconds, at least 0");
  return us / 1e6;
}

Record record_of(std::string_view line, const std::string& place, std::int64_t rank) {
  const io::JsonDocument document(line, place);
  const io::JsonCursor root = document.root();
  constexpr std::int64_t kMost = 1 << 20;
  if (root["format"].integer() != kFormat)
    root["format"].expected(fmt::format("format {}, which this version knows", kFormat));
  root["rank"].integer(rank, rank);
  Mesh mesh;
  for (const Axis& a : kAxes) mesh.*a.size = root["mesh"][a.name].integer(1, kMost);
  for (const Division& d : kDivisions)
    if (const auto given = root["mesh"].find(d.name)) {
      mesh.*d.ranks = given->integer(1, kMost);
      if (mesh.data % mesh.*d.ranks != 0) given->expected("a divisor of the data ranks");
    }
  Record r{.place = place,
           .step = root["step"].integer(1),
           .id = root["id"].text(),
           .layout = layout_text(mesh, root["nodes"].integer(1, kMost)),
           .plan = root["plan"].text(),
           .at = seconds_of(root["at_us"]),
           .seconds = seconds_of(root["us"]),
           .clock_error = seconds_of(root["clock_error_us"]),
           .streams = {},
           .ops = {}};
  root["stream"].for_each_item([&](const io::JsonCursor& item) {
    const auto stream = enum_from_word<Stream>(item.text());
    if (!stream) item.expected(enum_choices<Stream>());
    r.streams.push_back(*stream);
  });
  const auto count = static_cast<std::int64_t>(r.streams.size());
  const auto begins = root["begin_us"].items(count, count),
             ends = root["end_us"].items(count, count);
  for (std::size_t i = 0; i < r.streams.size(); ++i) {
    r.ops.push_back({seconds_of(begins[i]), seconds_of(ends[i])});
    if (r.ops[i].end < r.ops[i].begin) ends[i].expected("an end that is not before the begin");
    if (r.ops[i].end > r.seconds) ends[i].expected("an end within the step's us");
  }
  return r;
}

/// A last line without its end is one that a killed run did not finish, and no part of the file.
std::vector<Record> read_records(const std::filesystem::path& path, std::int64_t rank) {
  if (!io::path_exists(path)) {
    throw DeckError(fmt::format(
        "{} is not there: a run writes it where the deck says log.profile = [first, last]",
        path.string()));
  }
  constexpr std::int64_t kLargest = std::int64_t{1} << 31;
  std::istringstream in(io::read_text(path, kLargest));
  std::vector<Record> records;
  std::int64_t number = 0;
  for (std::string line; std::getline(in, line) && !in.eof();)
    records.push_back(record_of(line, fmt::format("{}:{}", path.string(), ++number), rank));
  return records;
}

/// The records of one step, by rank.
using Step = std::vector<const Record*>;

double length_of(const Step& step) {
  double begin = step.front()->at, end = begin;
  for (const Record* r : step) {
    begin = std::min(begin, r->at);
    end = std::max(end, r->at + r->seconds);
  }
  return end - begin;
}

/// By number, those that all ranks have done with these plans; the last one where it was done
/// again.
std::map<std::int64_t, Step> steps_of(const std::vector<std::vector<Record>>& records,
                                      const std::vector<std::string>& keys) {
  std::vector<std::map<std::string, const Record*>> by_id(records.size());
  for (std::size_t i = 0; i < records.size(); ++i) {
    for (const Record& r : records[i]) {
      if (r.plan == keys[i]) by_id[i][r.id] = &r;
    }
  }
  std::map<std::int64_t, Step> steps;
  for (const Record& first : records.front()) {
    Step step;
    for (const auto& ids : by_id) {
      const auto it = ids.find(first.id);
      if (it != ids.end() && it->second->step == first.step) step.push_back(it->second);
    }
    if (step.size() == records.size()) steps[first.step] = std::move(step);
  }
  return steps;
}

plan::TimedStep timed(const Step& step, std::vector<plan::Plan> plans) {
  double zero = step.front()->at;
  for (const Record* r : step) zero = std::min(zero, r->at);
  plan::TimedStep result;
  for (std::size_t i = 0; i < step.size(); ++i) {
    const Record& r = *step[i];
    const bool same = std::ranges::equal(plans[i].ops, r.streams, {}, &plan::Op::stream);
    if (!same) throw DataError(fmt::format("{}: $.stream: not those of the plan's ops", r.place));
    plan::TimedRank rank{.plan = std::move(plans[i]),
                         .ops = r.ops,
                         .begin = r.at - zero,
                         .end = r.at - zero + r.seconds};
    for (plan::OpTime& t : rank.ops) t.begin += rank.begin, t.end += rank.begin;
    result.push_back(std::move(rank));
  }
  return result;
}

[[noreturn]] void refuse(const std::vector<Record>& records, const std::filesystem::path& path,
                         const plan::PlanInputs& inputs) {
  const std::string here = layout_text(inputs.layout.mesh, nodes_of(inputs));
  if (records.empty()) throw DeckError(fmt::format("{}: has no finished step", path.string()));
  const Record& last = records.back();
  if (last.layout != here) {
    throw DeckError(
        fmt::format("{}: profile of {}, but this plan is for {}: give the --ranks, "
                    "--nodes and parallel keys that the run had",
                    last.place, last.layout, here));
  }
  throw DeckError(fmt::format(
      "{}: step {} ran another plan than this deck's, or other ranks did not finish it: "
      "give the deck that the run had, its resolved.toml",
      last.place, last.step));
}

}  // namespace

MeasuredStep read_profile(const std::filesystem::path& run_directory,
                          const plan::PlanInputs& inputs, std::span<const plan::PlanShape> shapes) {
  const auto place_of = [&](std::int64_t rank) { return inputs.layout.mesh.place_of(rank); };
  std::vector<MeshPlace> places;
  if (inputs.layout.mesh.size() > kFewRanks) {
    places = simulated_places(inputs);
  } else {
    for (std::int64_t r = 0; r < inputs.layout.mesh.size(); ++r) places.push_back(place_of(r));
  }
  const std::string here = layout_text(inputs.layout.mesh, nodes_of(inputs));
  std::vector<std::vector<Record>> records;
  for (const MeshPlace& place : places) {
    const std::int64_t rank = inputs.layout.mesh.rank_of(place);
    const auto path = file_of(run_directory, rank);
    records.push_back(read_records(path, rank));
    const auto elsewhere = [&](const Record& r) { return r.layout != here; };
    if (std::ranges::all_of(records.back(), elsewhere)) refuse(records.back(), path, inputs);
    std::erase_if(records.back(), elsewhere);
  }
  for (const plan::PlanShape& shape : shapes) {
    std::vector<plan::Plan> plans;
    std::vector<std::string> keys;
    for (const MeshPlace& place : places) {
      plan::Plan plan = make_plan(inputs, shape, place);
      keys.push_back(plan_key(plan));
      plans.push_back(unrolled(std::move(plan)));
    }
    const auto steps = steps_of(records, keys);
    if (steps.empty()) continue;
    MeasuredStep result{.shape = shape};
    std::vector<std::pair<double, const Step*>> lengths;
    for (const auto& [number, step] : steps) {
      result.of.push_back(number);
      lengths.emplace_back(length_of(step), &step);
    }
    std::ranges::sort(lengths, {}, &std::pair<double, const Step*>::first);
    const Step& median = *lengths[(lengths.size() - 1) / 2].second;
    result.step = median.front()->step;
    for (const Record* r : median)
      result.clock_error = std::max(result.clock_error, r->clock_error);
    result.ranks = timed(median, std::move(plans));
    return result;
  }
  refuse(records.front(), file_of(run_directory, inputs.layout.mesh.rank_of(places.front())),
         inputs);
}

}  // namespace tessera::train
