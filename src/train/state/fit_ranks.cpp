#include "train/state/fit_ranks.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <tuple>

#include "core/bytes.hpp"
#include "core/error.hpp"
#include "optim/timeline.hpp"
#include "setup/products.hpp"

namespace tessera::train {

bool sets_key(std::string_view set, std::string_view key) {
  const auto begin = set.find_first_not_of(" \t");
  if (begin == std::string_view::npos || !set.substr(begin).starts_with(key)) return false;
  const auto next = set.find_first_not_of(" \t", begin + key.size());
  return next != std::string_view::npos && set[next] == '=';
}

namespace {

struct Grid {
  std::int64_t tensor = 1, pipeline = 1, experts = 1, context = 1;
  std::int64_t replica() const { return tensor * pipeline * context; }
};

class Fitter {
 public:
  Fitter(const SavedDeck& saved, std::span<const std::string> sets)
      : saved_(saved),
        own_(deck::parse_deck(saved.text, saved.name, {}).deck),
        sets_(sets.begin(), sets.end()) {
    add("fault.inject", "[]");  // of training, and of ranks that may not be there
    add("parallel.data", "0");
    if (!own_.batch.curriculum.empty()) add("batch.curriculum", "{}");
    if (own_.batch.ramp.empty()) return;
    add("batch.global", std::to_string(optim::Timeline(own_.batch, 0).global(1)));
    add("batch.ramp", "[]");
  }

  /// The deck with the first layout that fits; nothing where none does.
  std::optional<deck::LoadedDeck> fit(std::int64_t ranks) const {
    for (const Grid& grid : grids(ranks)) {
      if (auto loaded = fit(ranks, grid)) return loaded;
    }
    return std::nullopt;
  }

  /// The deck with its own layout, or the user's.
  deck::LoadedDeck parse() const { return deck::parse_deck(saved_.text, saved_.name, sets_); }

  /// Says which layout was chosen in place of the deck's own; empty where that is kept.
  std::string note(const deck::Deck& chosen, std::int64_t ranks) const {
    const auto text = [](const deck::Deck& d) {
      const auto divided = [](std::int64_t neighbours, const char* member) {
        return neighbours > 1 ? fmt::format(" ({} {})", neighbours, member) : "";
      };
      return fmt::format("pipeline {} x tensor {}{}{} with batch.micro = {}", d.parallel.pipeline,
                         d.parallel.tensor, divided(d.parallel.experts, "expert"),
                         divided(d.parallel.context, "context"), d.batch.micro);
    };
    if (text(chosen) == text(own_)) return "";
    const auto& p = chosen.parallel;
    return fmt::format("layout    {} as data {} x {}; the checkpoint's deck has {}",
                       count_text(ranks, "rank evaluates", "ranks evaluate"),
                       ranks / (p.tensor * p.pipeline * p.context), text(chosen), text(own_));
  }

  /// What a user can do to make it fit.
  std::string remedy(std::int64_t ranks) const {
    std::vector<std::string> all;
    if (const auto global = fitting_global(ranks)) {
      all.push_back(fmt::format(
          "--set batch.global={} (which evaluates other sequences: another loss)", *global));
    }
    for (auto fewer = std::bit_floor(static_cast<std::uint64_t>(ranks - 1)); fewer > 0;
         fewer /= 2) {
      if (!fit(static_cast<std::int64_t>(fewer))) continue;
      all.push_back(count_text(static_cast<std::int64_t>(fewer), "rank"));
      break;
    }
    if (all.empty()) return "other values of --set";
    return fmt::format("{}", fmt::join(all, ", or "));
  }

 private:
  bool layout_mode() const { return own_.run.reproducible == deck::Reproducible::layout; }

  bool users(std::string_view key) const {
    return std::ranges::any_of(sets_, [&](const auto& set) { return sets_key(set, key); });
  }
  /// Sets a key unless the user does.
  void add(std::string_view key, std::string_view value) {
    if (!users(key)) sets_.push_back(fmt::format("{}={}", key, value));
  }

  /// All layouts of that many ranks, the nearest to the deck's own first.
  std::vector<Grid> grids(std::int64_t ranks) const {
    const auto far = [this](const Grid& grid) {
      const auto ratio = [](std::int64_t a, std::int64_t b) {
        return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
      };
      return std::tuple(
          ratio(grid.tensor, own_.parallel.tensor) + ratio(grid.pipeline, own_.parallel.pipeline),
          grid.pipeline, -grid.context, -grid.experts);
    };
    std::vector<Grid> all;
    for (std::int64_t t = 1; t <= std::min(ranks, own_.model.heads); ++t) {
      for (std::int64_t p = 1; p <= std::min(ranks / t, own_.model.layers); ++p) {
        if (ranks % (t * p) != 0) continue;
        const std::int64_t data = ranks / (t * p);
        const auto ways = [data](std::int64_t own) {
          std::vector<std::int64_t> divisors{1};
          if (own > 1 && data % own == 0) divisors.push_back(own);
          return divisors;
        };
        for (const std::int64_t context : ways(own_.parallel.context)) {
          for (const std::int64_t experts : ways(own_.parallel.experts))
            all.push_back({.tensor = t, .pipeline = p, .experts = experts, .context = context});
        }
      }
    }
    std::ranges::sort(all, {}, far);
    return all;
  }

  std::optional<deck::LoadedDeck> fit(std::int64_t ranks, const Grid& grid) const {
    Fitter with(*this);
    with.add("parallel.tensor", std::to_string(grid.tensor));
    with.add("parallel.pipeline", std::to_string(grid.pipeline));
    with.add("parallel.experts", std::to_string(grid.experts));
    with.add("parallel.context", std::to_string(grid.context));
    if (grid.experts == 1) with.add("parallel.expert_exchange", "\"direct\"");
    with.add("parallel.expert_overlap", "false");  // of training
    if (grid.context == 1) with.add("parallel.context_kind", "\"auto\"");
    if (grid.pipeline != own_.parallel.pipeline) {  // the order of backward steps plays no role
      with.add("parallel.schedule", "\"1f1b\"");
      with.add("parallel.virtual_stages", "1");
      with.add("parallel.placement", "\"balanced\"");
    }
    try {
      auto loaded = with.parse();
      const auto& p = loaded.deck.parallel;
      if (p.tensor != grid.tensor || p.pipeline != grid.pipeline)
        return std::nullopt;  // the user's
      if (!layout_mode() && !users("batch.micro")) {
        for (const std::int64_t legal : setup::runnable_micros(loaded, ranks)) {
          if (legal <= own_.batch.micro) loaded.deck.batch.micro = legal;
        }
      }
      setup::check_on_ranks(loaded, ranks);
      return loaded;
    } catch (const DeckError&) {
      return std::nullopt;
    }
  }

  /// A batch.global near the deck's for which there is a layout.
  std::optional<std::int64_t> fitting_global(std::int64_t ranks) const {
    const std::int64_t global = optim::Timeline(own_.batch, 0).global(1);
    for (const Grid& grid : grids(ranks)) {
      const std::int64_t step = own_.batch.micro * ranks / grid.replica();
      const auto most = std::max<std::int64_t>(1, global / step);
      const auto power = std::bit_floor(static_cast<std::uint64_t>(most));
      for (const std::int64_t count : {most, static_cast<std::int64_t>(power)}) {
        Fitter other(*this);
        other.sets_.push_back(fmt::format("batch.global={}", count * step));
        if (other.fit(ranks, grid)) return count * step;
      }
    }
    return std::nullopt;
  }

  const SavedDeck& saved_;
  deck::Deck own_;
  std::vector<std::string> sets_;  // the user's first: messages number them
};

}  // namespace

FittedDeck fit_to_ranks(const SavedDeck& saved, std::span<const std::string> sets,
                        std::int64_t ranks) {
  const Fitter fitter(saved, sets);
  if (auto loaded = fitter.fit(ranks)) {
    std::string note = fitter.note(loaded->deck, ranks);
    return {*std::move(loaded), std::move(note)};
  }
  try {
    setup::check_on_ranks(fitter.parse(), ranks);
  } catch (const DeckError& e) {
    throw DeckError(Lines{fmt::format("{}\nno layout of {} fits; what would: {}", e.what(),
                                      count_text(ranks, "rank"), fitter.remedy(ranks))});
  }
  throw InternalError(
      fmt::format("{}: the deck fits {} ranks, but was refused", saved.name, ranks));
}

}  // namespace tessera::train
