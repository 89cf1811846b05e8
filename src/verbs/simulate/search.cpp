// Which layout is fastest. Tensor and pipeline ranks, data ranks that divide experts among them,
// micro-batches and recomputation are all tried, each with the lowest ZeRO stage that fits: within
// a choice, less recomputation and a lower stage are never slower. Other schedules than 1F1B are
// tried where a step without its bubble would be among the best. Plans of one micro-batch, which
// cost little, say how long kernels run in a step: what cannot be among the best by that alone is
// not looked at further.
#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <tuple>

#include "core/bytes.hpp"
#include "core/clock.hpp"
#include "core/cores.hpp"
#include "core/progress.hpp"
#include "core/terminal.hpp"
#include "core/thread.hpp"
#include "deck/ranks.hpp"
#include "plan/passes/weave.hpp"
#include "plan/prediction/estimate.hpp"
#include "plan/prediction/ledger.hpp"
#include "setup/architecture.hpp"
#include "setup/inputs.hpp"
#include "setup/traffic.hpp"
#include "verbs/simulate/simulate.hpp"
#include "zero/model_states.hpp"

namespace tessera::verbs {
namespace {

constexpr std::int64_t kShown = 10;
constexpr std::int64_t kVirtualStages[] = {2, 4};
constexpr std::size_t kStagedAtOnce = 2;  // whose other schedules are tried together

/// What the search chooses; everything else is the deck's.
struct Choice {
  std::int64_t tensor = 1, pipeline = 1, experts = 1, micro = 1;
  ExpertExchange exchange = ExpertExchange::direct;
  bool overlap = false;  // of experts' exchanges
  PipelineSchedule schedule = PipelineSchedule::one_f_one_b;
  std::int64_t virtual_stages = 1;
  std::int64_t stage = 0;  // ZeRO
  Recompute recompute = Recompute::none;

  std::vector<std::string> sets() const {
    return {fmt::format("parallel.tensor={}", tensor),
            fmt::format("parallel.pipeline={}", pipeline),
            "parallel.data=0",
            fmt::format("parallel.experts={}", experts),
            fmt::format("parallel.expert_exchange=\"{}\"", enum_word(exchange)),
            fmt::format("parallel.expert_overlap={}", overlap),
            fmt::format("parallel.schedule=\"{}\"", enum_word(schedule)),
            fmt::format("parallel.virtual_stages={}", virtual_stages),
            "parallel.placement=\"balanced\"",
            fmt::format("batch.micro={}", micro),
            fmt::format("zero.stage={}", stage),
            fmt::format("recompute.policy=\"{}\"", enum_word(recompute))};
  }
};

struct Found {
  Choice choice;
  std::int64_t data = 1;
  double step = 0, least = 0;  // s; what it computes without standing still
  Speed speed;
  std::int64_t memory = 0;
  bool exact = false;  // of the whole step, not continued from fewer micro-batches
};
bool faster(const Found& a, const Found& b) {
  const auto order = [](const Found& f) {
    const Choice& c = f.choice;
    return std::tuple(f.step, c.tensor, c.pipeline, c.experts, c.exchange, c.overlap, c.micro,
                      c.schedule, c.virtual_stages, c.recompute);
  };
  return order(a) < order(b);
}

/// A plan takes memory: steps of more visits of a layer by a micro-batch are only estimated.
constexpr std::int64_t kMostVisits = 1 << 13;

/// The first line of an error, without the place that it may begin with.
std::string reason_of(const DeckError& error, const std::string& deck) {
  const std::string text = error.what();
  const std::string line = text.substr(0, text.find('\n'));
  const bool placed = line.starts_with(deck) || line.starts_with("--set");
  const auto at = placed ? line.find(": ") : std::string::npos;
  return at == std::string::npos ? line : line.substr(at + 2);
}

class Search {
 public:
  Search(const LayoutOptions& layout, const deck::Machine& machine, double within)
      : layout_(layout), machine_(machine), within_(within) {
    // What is wrong with the machine file or with all layouts of the deck is said at once.
    (void)plan::op_costs({}, machine);
    std::vector<std::string> sets = layout.deck.sets;
    for (const std::string& set : Choice{}.sets()) sets.push_back(set);
    const deck::Deck deck = deck::load_deck(layout.deck.path, sets, setup::read_architecture).deck;
    machine_ = machine.multiplying(deck.precision.matmul);
    name_ = deck.run.name;
    global_ = deck.batch.global;
    sequence_ = deck.batch.sequence;
    layers_ = deck.model.layers;
    context_ = deck.parallel.context;
    experts_ = deck.model.moe.experts;
    by_node_ = layout.nodes > 1 && deck.run.reproducible != deck::Reproducible::layout;
    const DType compute = setup::dtype_of(deck.precision.compute);
    const double tokens = static_cast<double>(global_) * static_cast<double>(sequence_);
    double rate = 0;
    std::vector<DType> types{compute};
    if (deck.precision.matmul == deck::Matmul::fp8) types.push_back(DType::e4m3);
    for (const DType type : types) rate = std::max(rate, machine_.best_gemm_rate(type));
    if (const auto it = machine_.attention.find(compute); it != machine_.attention.end())
      rate = std::max(rate, std::ranges::max(it->second));
    products_ = model::flop_per_token(setup::model_config(deck.model, deck.task), sequence_) *
                tokens / static_cast<double>(layout.ranks) / rate;
    budget_ = device_memory(deck, machine);
  }

  std::string text() {
    // Few stages first: what they reach rules out many stages whose bubble is too long.
    for (std::int64_t p = 1; p <= std::min(layout_.ranks, layers_); ++p) {
      std::vector<Choice> grids;
      for (std::int64_t t = local(); t >= 1;
           --t) {  // few data ranks have most micro-batches to try
        if (local() % t != 0 || layout_.ranks % (t * p * context_) != 0) continue;
        const std::int64_t shared = layout_.ranks / (t * p);  // data and context ranks
        for (std::int64_t e = 1; e <= std::max<std::int64_t>(experts_, 1); ++e) {
          if (shared % e != 0 || (e > 1 && experts_ % e != 0)) continue;
          std::vector<ExpertExchange> exchanges{ExpertExchange::direct};
          if (go_by_node(e, local() / t)) exchanges.push_back(ExpertExchange::by_node);
          for (const ExpertExchange exchange : exchanges) {
            for (const bool overlap : {false, true}) {
              if (overlap && (e == 1 || p > 1)) continue;
              grids.push_back({.tensor = t,
                               .pipeline = p,
                               .experts = e,
                               .exchange = exchange,
                               .overlap = overlap});
            }
          }
        }
      }
      in_parallel(grids, [this](const Choice& grid) { try_grid(grid); });
      note_best();
    }
    try_schedules();
    const std::span<const Found> shown = best();
    const std::string why = rejections();
    return table(shown) + (why.empty() ? "" : "not among them:\n" + why);
  }

 private:
  /// The best, of whole steps: of these some may need more memory than fewer micro-batches did, and
  /// are tried again with what saves some.
  std::span<const Found> best() {
    while (!found_.empty()) {
      const auto shown = std::span(found_).first(std::min(found_.size(), std::size_t{kShown}));
      in_parallel(shown, [this](Found& f) { simulate(f); });
      std::ranges::sort(shown, faster);
      std::vector<Choice> again;
      for (const Found& f : shown)
        if (!fits(f.choice, f.memory)) again.push_back(f.choice);
      if (again.empty()) return shown;
      std::erase_if(found_, [this](const Found& f) { return !fits(f.memory); });
      worst_shown_ = std::numeric_limits<double>::max();
      in_parallel(again, [this](const Choice& choice) { try_saving(choice); });
      note_best();
    }
    throw DeckError(
        Lines{fmt::format("{}: no layout of {} will do:\n{}", printable(layout_.deck.path),
                          count_text(layout_.ranks, "rank"), rejections())});
  }

  std::int64_t local() const { return layout_.ranks / layout_.nodes; }  // ranks of a node
  /// Whether tokens can go by node to so many neighbours that divide experts.
  bool go_by_node(std::int64_t experts, std::int64_t neighbours) const {
    return by_node_ && experts > neighbours && experts % neighbours == 0;
  }

  template <typename Items, typename Work>
  static void in_parallel(Items&& items, Work work) {
    const std::array alone{own_cores()};
    in_turns(static_cast<std::size_t>(cores_each(alone)), items.size(),
             [&](std::size_t, std::size_t k) { work(items[k]); });
  }

  Planner planner(const Choice& choice) const {
    LayoutOptions layout = layout_;
    for (const std::string& set : choice.sets()) layout.deck.sets.push_back(set);
    return make_planner(layout);
  }

  /// All micro-batches and ways to save memory on one grid.
  void try_grid(Choice choice) {
    const std::int64_t data = layout_.ranks / (choice.tensor * choice.pipeline * context_);
    if (global_ % data != 0) {
      return reject(choice,
                    fmt::format("batch.global = {} is not a multiple of the data ranks", global_));
    }
    // The stages from which on a smaller micro-batch fitted: a larger one needs no less.
    std::map<Recompute, std::int64_t> from;
    for (choice.micro = 1; choice.micro <= global_ / data; ++choice.micro) {
      if (global_ / data % choice.micro != 0) continue;
      if (choice.overlap && global_ / data == choice.micro) continue;  // there is only one
      if (shortest(choice, global_ / data / choice.micro) > worst_shown_) {
        ++hopeless_;
        continue;
      }
      Tried tried;
      for (const auto& [recompute, word] : EnumWords<Recompute>::table) {
        choice.recompute = recompute;
        tried = try_stages(choice, from[recompute]);
        if (tried.left_out) break;  // with other recomputation too
        from[recompute] = tried.stage.value_or(kZeroStages);
        if (tried.stage && *tried.stage <= 1) break;
      }
      if (!tried.stage && !tried.left_out) return;  // larger ones need more
    }
  }

  enum class Outcome : std::uint8_t { fits, fails, left_out };
  struct Tried {
    std::optional<std::int64_t> stage;  // the lowest that fits
    bool left_out = false;  // too long for one plan, or time was over: this says nothing of others
  };
  /// ZeRO stages from a given one on, until one fits.
  Tried try_stages(Choice choice, std::int64_t from = 0) {
    const bool several = layout_.ranks > choice.tensor * choice.pipeline;
    const std::int64_t begin = several ? 1 : 0, end = several ? kZeroStages : 1;
    choice.stage = std::max(begin, from);
    note_too_large(std::min(choice.stage, end) - begin);
    for (; choice.stage < end; ++choice.stage) {
      const Outcome outcome = try_choice(choice);
      if (outcome == Outcome::fits) return {.stage = choice.stage};
      if (outcome == Outcome::left_out) return {.left_out = true};
    }
    return {};
  }

  /// Behind a choice that does not fit: the next stage that does, or the next recomputation.
  void try_saving(const Choice& choice) {
    std::int64_t from = choice.stage + 1;
    for (const auto& [recompute, word] : EnumWords<Recompute>::table) {
      if (recompute < choice.recompute) continue;
      Choice next = choice;
      next.recompute = recompute;
      if (try_stages(next, from).stage) return;
      from = 0;
    }
  }

  Outcome try_choice(const Choice& choice) {
    {
      const std::lock_guard lock(mutex_);
      progress_.at(++tried_, 0);
    }
    if (seconds_since(begin_) > within_) {
      ++unseen_;
      return Outcome::left_out;
    }
    try {
      Planner p = planner(choice);
      if (!p.open.empty()) p.set(p.open.front());
      setup::check_traffic(p.loaded, p.inputs.layout.node_of);
      if (!fits(choice, states(p))) return Outcome::fails;
      if (plan::is_too_long(p.inputs, p.shapes.front())) {
        ++too_long_;
        return Outcome::left_out;
      }
      settle_traffic(p, machine_);
      const auto found = estimate(p, choice);
      if (found) add(*found);
      return found ? Outcome::fits : Outcome::fails;
    } catch (const DeckError& error) {
      reject(choice, reason_of(error, layout_.deck.path));
      return Outcome::fails;
    }
  }

  /// What steps of fewer micro-batches say of the whole one; nothing where one does not fit.
  /// Without a step where it cannot be among the best.
  std::optional<Found> estimate(const Planner& p, const Choice& choice) {
    Found found{.choice = choice, .data = p.inputs.layout.mesh.batch_ranks()};
    const auto of = [&](std::int64_t n) {
      plan::FewMicroBatches few(p.inputs, p.shapes.front(), n, machine_, budget_);
      found.memory = std::max(found.memory, few.device_bytes());
      return few;
    };
    const auto fit = [&] { return fits(choice, found.memory); };
    const std::int64_t all = p.shapes.front().micro_batches, round = plan::schedule_round(p.inputs);
    plan::FewMicroBatches one = of(1);
    if (!fit()) return std::nullopt;
    const auto least = one.computing(all);
    found.least = least.mean;
    if (least.most > worst_shown_) return found;
    if (all <= 2 * round) {
      plan::FewMicroBatches whole = all == 1 ? std::move(one) : of(all);
      if (!fit()) return std::nullopt;
      return with_step(p, found, std::move(whole).play());
    }
    const double more = least.most - one.computing(round).most;
    plan::FewMicroBatches first = round == 1 ? std::move(one) : of(round);
    if (!fit()) return std::nullopt;
    const plan::Estimate at_first = std::move(first).play();
    if (at_first.step + more > worst_shown_) return found;
    plan::FewMicroBatches second = of(2 * round);
    if (!fit()) return std::nullopt;
    return with_step(p, found, plan::continued(p.inputs, at_first, std::move(second).play(), all));
  }
  Found with_step(const Planner& p, Found found, const plan::Estimate& estimate) const {
    found.step = estimate.step;
    found.least = estimate.computes;
    found.speed = speed_of(p, p.shapes.front(), found.step, machine_);
    return found;
  }

  /// The whole step, of plans that are proved, unless it is too long.
  void simulate(Found& f) const {
    if (f.exact || global_ / f.data / f.choice.micro * layers_ > kMostVisits) return;
    Planner p = planner(f.choice);
    settle_traffic(p, machine_);
    const plan::Prediction whole =
        plan::predict(plan::simulated_plans(p.inputs, p.shapes.front()), p.inputs, machine_);
    const plan::Simulation& s = whole.simulation;
    f = with_step(p, f, {.step = s.step, .computes = s.step * (1 - plan::idle_share(s))});
    f.memory = whole.device_memory();
    f.exact = true;
  }
  bool fits(std::int64_t bytes) const { return budget_ == 0 || bytes <= budget_; }
  /// The same, of what is counted among the layouts that are too large where it does not.
  bool fits(const Choice& choice, std::int64_t bytes) {
    if (!fits(bytes)) note_too_large(choice, bytes);
    return fits(bytes);
  }

  /// No step is much shorter: nine tenths of what fewer stages compute, or, before that is known,
  /// of all products at the machine's best rate; and the least of all bubbles, that of interleaved
  /// stages (Narayanan et al. 2021, section 2.2).
  double shortest(const Choice& c, std::int64_t micro_batches) const {
    const auto computes = computes_.find({c.tensor, c.experts, c.micro});
    return 0.9 * (computes == computes_.end() ? products_ : computes->second) *
           least_bubble(c, micro_batches);
  }
  /// How many times longer than its kernels a step is at the least.
  static double least_bubble(const Choice& c, std::int64_t micro_batches) {
    return 1 + static_cast<double>(c.pipeline - 1) /
                   static_cast<double>(kVirtualStages[1] * micro_batches);
  }

  /// Model states of an even share: known without a plan.
  static std::int64_t states(const Planner& p) {
    const Mesh& mesh = p.inputs.layout.mesh;
    zero::SharedElements share;
    for (const model::UnitDesc& unit : p.inputs.model.units) {
      const std::int64_t ranks = mesh.group_of(0, unit.traits.shared_by).count;
      share[ranks].add(unit.traits.trained, p.inputs.stored(unit),
                       model::parameter_count(std::span(&unit, 1)));
    }
    for (auto& [ranks, elements] : share) {
      const std::int64_t parts = mesh.size() / ranks;
      elements.trained /= parts;
      for (auto& [type, n] : elements.frozen) n /= parts;
    }
    return zero::model_states(share, p.inputs.sharding.stage, p.inputs.state_types()).total();
  }

  /// No other schedule of these stages and micro-batches makes a step shorter than that.
  double least_of_schedules(const Found& f) const {
    return f.least * least_bubble(f.choice, global_ / f.data / f.choice.micro);
  }
  /// The most promising ones first, a few at a time: what they reach rules out others.
  void try_schedules() {
    std::ranges::sort(staged_, [this](const Found& a, const Found& b) {
      const double of_a = least_of_schedules(a), of_b = least_of_schedules(b);
      return of_a != of_b ? of_a < of_b : faster(a, b);
    });
    const std::vector<Found> staged = std::move(staged_);
    for (std::size_t done = 0; done < staged.size(); done += kStagedAtOnce) {
      std::vector<Choice> schedules;
      for (const Found& f :
           std::span(staged).subspan(done).first(std::min(kStagedAtOnce, staged.size() - done))) {
        if (least_of_schedules(f) >= worst_shown_) continue;
        for (const Choice& other : other_schedules(f.choice)) schedules.push_back(other);
      }
      if (schedules.empty()) return;
      in_parallel(schedules, [this](const Choice& choice) { try_stages(choice); });
      note_best();
    }
  }
  std::vector<Choice> other_schedules(Choice choice) const {
    std::vector<Choice> all;
    choice.schedule = PipelineSchedule::zero_bubble;
    all.push_back(choice);
    choice.schedule = PipelineSchedule::interleaved;
    for (const std::int64_t v : kVirtualStages) {
      choice.virtual_stages = v;
      if (choice.pipeline * v <= layers_) all.push_back(choice);
    }
    return all;
  }

  /// What later grids are measured by.
  void note_best() {
    std::ranges::sort(found_, faster);
    for (const Found& f : found_) {
      if (f.choice.recompute != Recompute::none) continue;
      double& least =
          computes_.try_emplace({f.choice.tensor, f.choice.experts, f.choice.micro}, f.least)
              .first->second;
      least = std::min(least, f.least);
    }
    if (std::ssize(found_) >= kShown) worst_shown_ = found_[kShown - 1].step;
  }
  void add(const Found& f) {
    const std::lock_guard lock(mutex_);
    if (f.step == 0) {
      ++slower_;
    } else {
      found_.push_back(f);
    }
    if (f.choice.pipeline > 1 && f.choice.schedule == PipelineSchedule::one_f_one_b)
      staged_.push_back(f);
  }
  void reject(const Choice& choice, const std::string& reason) {
    const std::lock_guard lock(mutex_);
    rejected_[reason].push_back(choice);
  }
  void note_too_large(std::int64_t more) {
    const std::lock_guard lock(mutex_);
    too_large_ += more;
  }
  void note_too_large(const Choice& choice, std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    ++too_large_;
    const auto order = [](std::int64_t need, const Choice& c) {
      return std::tuple(need, c.tensor, c.pipeline, c.experts, c.micro, c.recompute, c.stage,
                        c.schedule, c.virtual_stages);
    };
    if (least_too_large_ == 0 || order(bytes, choice) < order(least_too_large_, smallest_)) {
      least_too_large_ = bytes;
      smallest_ = choice;
    }
  }

  std::string grid(std::int64_t data, const Choice& c) const {
    const std::string context = context_ > 1 ? fmt::format(" x {}", context_) : "";
    return fmt::format("{}{} x {} x {}", data, context, c.pipeline, c.tensor);
  }
  /// Who has them, and how tokens come to them.
  std::string experts(const Choice& c) const {
    if (experts_ == 0) return "";
    std::string ranks = fmt::format("{:<9}", c.experts);
    if (by_node_) ranks += fmt::format("{:<10}", c.experts == 1 ? "-" : enum_word(c.exchange));
    return ranks + fmt::format("{:<9}", c.experts == 1 ? "-" : c.overlap ? "yes" : "no");
  }
  int grid_width() const { return context_ > 1 ? 36 : 26; }
  static std::string schedule(const Choice& c) {
    if (c.pipeline == 1) return "-";
    return c.virtual_stages == 1 ? std::string(enum_word(c.schedule))
                                 : fmt::format("{} {}", enum_word(c.schedule), c.virtual_stages);
  }

  /// Behind the other numbers of ranks, where experts are divided.
  static std::string divided(const Choice& c) {
    if (c.experts == 1) return "";
    return fmt::format(", experts {}{}", c.experts,
                       c.exchange == ExpertExchange::by_node ? " by node" : "") +
           (c.overlap ? " overlapped" : "");
  }

  std::string table(std::span<const Found> shown) const {
    std::string text = fmt::format(
        "{} on {} of {}, {}: {} of {} a step; {} compared\n"
        "{:>2}{:>11}{:>12}{:>7}  {:<{}}{}{:<15}{:>5}{:>6}  {:<10}{:>10}{:>7}\n",
        name_, count_text(layout_.ranks, "rank"), machine_.name, count_text(layout_.nodes, "node"),
        count_text(global_, "sequence"), sequence_,
        count_text(std::ssize(found_) + slower_, "layout"), "", "step", "tokens/s", "MFU",
        context_ > 1 ? "data x context x pipeline x tensor" : "data x pipeline x tensor",
        grid_width(),
        experts_ == 0 ? ""
        : by_node_    ? "experts  exchange  overlap  "
                      : "experts  overlap  ",
        "schedule", "micro", "ZeRO", "recompute", "memory", "idle");
    for (std::size_t i = 0; i < shown.size(); ++i) {
      const Found& f = shown[i];
      text += fmt::format(
          "{:>2}{:>8} ms{:>12.5g}{:>7}  {:<{}}{}{:<15}{:>5}{:>6}  {:<10}{:>10}{:>6.1f}%\n", i + 1,
          fmt::format("{}{:.1f}", f.exact ? "" : "~", f.step * 1e3), f.speed.tokens_per_s,
          f.speed.mfu ? fmt::format("{:.1f}%", 100 * *f.speed.mfu) : "n/a", grid(f.data, f.choice),
          grid_width(), experts(f.choice), schedule(f.choice), f.choice.micro, f.choice.stage,
          enum_word(f.choice.recompute), human_bytes(f.memory), 100 * (1 - f.least / f.step));
    }
    text += "the first:";
    for (const std::string& set : shown.front().choice.sets())
      text += fmt::format(" --set {}", set);
    return text + "\n";
  }

  /// Why others are not among them.
  std::string rejections() const {
    std::string text;
    if (const auto more = slower_ + std::max<std::int64_t>(std::ssize(found_) - kShown, 0);
        more > 0)
      text += fmt::format("  {} slower\n", count_text(more, "layout is", "layouts are"));
    if (hopeless_ > 0) {
      text += fmt::format(
          "  {} so few micro-batches for the stages, or such small ones, that no schedule makes up "
          "for it\n",
          count_text(hopeless_, "layout has", "layouts have"));
    }
    if (unseen_ > 0) {
      text += fmt::format("  {} or more were not looked at, for {} s were over (--within)\n",
                          unseen_.load(), within_);
    }
    if (too_long_ > 0) {
      text += fmt::format("  {} more micro-batches a step than one plan holds\n",
                          count_text(too_long_, "layout has", "layouts have"));
    }
    if (too_large_ > 0) {
      text += fmt::format(
          "  {} more than the {} of a rank's device; the nearest needs {}: tensor {}, "
          "pipeline {}{}, batch.micro {}, ZeRO-{}, recompute {}\n",
          count_text(too_large_, "layout needs", "layouts need"), human_bytes(budget_),
          human_bytes(least_too_large_), smallest_.tensor, smallest_.pipeline, divided(smallest_),
          smallest_.micro, smallest_.stage, enum_word(smallest_.recompute));
    }
    for (const auto& [reason, choices] : rejected_) {
      const Choice& first = *std::ranges::min_element(choices, {}, [](const Choice& c) {
        return std::tuple(c.tensor, c.pipeline, c.experts, c.micro, c.schedule, c.virtual_stages);
      });
      std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> grids;
      for (const Choice& c : choices) grids.insert({c.tensor, c.pipeline, c.experts});
      text += fmt::format(
          "  tensor {}, pipeline {}{}{}: {}\n", first.tensor, first.pipeline, divided(first),
          grids.size() > 1 ? " and " + count_text(std::ssize(grids) - 1, "other") : "", reason);
    }
    if (layout_.ranks > layers_)
      text += fmt::format("  more stages, or chunks of them, than the model's {}\n",
                          count_text(layers_, "layer"));
    if (layout_.nodes > 1)
      text += fmt::format("  tensor ranks beyond the {} of a node: they talk most\n", local());
    if (budget_ == 0) {
      text += fmt::format(
          "  none for its memory: neither memory.device nor {} says how much a "
          "rank has\n",
          machine_.file);
    }
    return text;
  }

  LayoutOptions layout_;
  deck::Machine machine_;  // as the deck multiplies on it
  double within_;          // s
  SteadyClock::time_point begin_ = SteadyClock::now();
  std::string name_;
  std::int64_t global_ = 0, sequence_ = 0, layers_ = 0, context_ = 1;
  std::int64_t experts_ = 0;  // of a layer; 0: there are none
  bool by_node_ = false;      // whether tokens may go to experts by node
  std::int64_t budget_ = 0;   // bytes of a rank's device; 0: not known

  std::mutex mutex_;
  ProgressLine progress_{"comparing layouts", ProgressLine::Unit::things};
  std::int64_t tried_ = 0;
  std::vector<Found> found_;
  std::vector<Found> staged_;  // of several stages by 1F1B, also those that are slower
  std::int64_t slower_ = 0;    // than the best, as is known without a simulation
  double products_ = 0;        // s of a step, were there nothing but products at their best rate
  // s, by tensor ranks, ranks that divide experts, and samples of a micro-batch.
  std::map<std::tuple<std::int64_t, std::int64_t, std::int64_t>, double> computes_;
  std::atomic<std::int64_t> hopeless_ = 0, too_long_ = 0, unseen_ = 0;
  double worst_shown_ = std::numeric_limits<double>::max();  // s
  std::map<std::string, std::vector<Choice>> rejected_;
  std::int64_t too_large_ = 0, least_too_large_ = 0;
  Choice smallest_;
};

}  // namespace

std::string search_text(const LayoutOptions& layout, const deck::Machine& machine, double within) {
  return Search(layout, machine, within).text();
}

}  // namespace tessera::verbs
