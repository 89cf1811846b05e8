// Mixtures of experts: how many choices each expert is and what balances them, rows in the order of
// experts, and the products of each expert's rows, against double.
#include "kernels/api/experts.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

/// A random choice of K different experts for each token, none of the last one.
Tensor random_choice(std::int64_t tokens, std::int64_t choices, std::int64_t experts,
                     unsigned seed) {
  Tensor all(DType::i32, {tokens, choices});
  std::mt19937 generator(seed);
  std::vector<std::int64_t> order(static_cast<std::size_t>(std::max(choices, experts - 1)));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::int64_t n = 0; n < tokens; ++n) {
    std::ranges::shuffle(order, generator);
    for (std::int64_t k = 0; k < choices; ++k)
      all.set(n * choices + k, static_cast<double>(order[static_cast<std::size_t>(k)]));
  }
  return all;
}

struct Shape {
  std::int64_t tokens, choices, experts;
};
const std::vector<Shape> kShapes = {{1, 1, 1}, {5, 1, 2}, {37, 2, 8}, {700, 3, 300}, {2500, 2, 5}};

// Of the largest shape several blocks of a GPU count. Counts are exact where doubles are not.
TEST(CountChoices, AddsHowManyChoicesEachExpertIs) {
  for_devices([](Device& device) {
    for (const auto& [tokens, choices, experts] : kShapes) {
      SCOPED_TRACE(fmt::format("{} tokens to {} of {}", tokens, choices, experts));
      const Tensor chosen = random_choice(tokens, choices, experts, 3);
      const Tensor counts(DType::i64, {experts});
      auto* count = counts.view().as<std::int64_t>();
      std::vector<std::int64_t> want;
      for (std::int64_t e = 0; e < experts; ++e)
        want.push_back(count[e] = (std::int64_t{1} << 60) + 7 * e);
      for (std::int64_t i = 0; i < chosen.size(); ++i) ++want[static_cast<std::size_t>(chosen[i])];
      run(device, CountChoices{.experts = chosen.view(), .counts = counts.view()});
      EXPECT_EQ(std::vector<std::int64_t>(count, count + experts), want);
    }
  });
}

/// How many choices each expert is.
std::vector<std::int64_t> loads_of(const Tensor& chosen, std::int64_t experts) {
  std::vector<std::int64_t> loads(static_cast<std::size_t>(experts));
  for (std::int64_t i = 0; i < chosen.size(); ++i) ++loads[static_cast<std::size_t>(chosen[i])];
  return loads;
}

// Whatever was counted before: the capacity is that of each call.
TEST(CountChoices, AddsHowManyAreBeyondCapacity) {
  for_devices([](Device& device) {
    for (const auto& [tokens, choices, experts] : kShapes) {
      const Tensor chosen = random_choice(tokens, choices, experts, 3);
      const std::vector<std::int64_t> loads = loads_of(chosen, experts);
      const std::int64_t most = std::ranges::max(loads);
      for (const std::int64_t capacity : {std::int64_t{0}, std::int64_t{1}, most - 1, most}) {
        SCOPED_TRACE(
            fmt::format("{} tokens to {} of {}, {} each", tokens, choices, experts, capacity));
        const Tensor counts(DType::i64, {experts}), dropped(DType::i64, {1});
        auto& all = *dropped.view().as<std::int64_t>();
        std::int64_t want = all = (std::int64_t{1} << 60) + 7;
        for (int call = 0; call < 2; ++call) {
          run(device, CountChoices{.experts = chosen.view(),
                                   .counts = counts.view(),
                                   .dropped = dropped.view(),
                                   .capacity = capacity});
          for (const std::int64_t load : loads)
            want += capacity > 0 ? std::max<std::int64_t>(load - capacity, 0) : 0;
          EXPECT_EQ(all, want);
        }
        for (std::int64_t e = 0; e < experts; ++e)
          EXPECT_EQ(counts[e], 2.0 * static_cast<double>(loads[static_cast<std::size_t>(e)]));
      }
    }
  });
}

TEST(BalanceExperts, KeepsSharesOfTheLastStepThatWasApplied) {
  for_devices([](Device& device) {
    const std::vector<std::int64_t> chosen{0, 3, 1, 12};
    Tensor choices(DType::i64, {4}), shares(DType::f32, {4}), verdict(DType::f32, {kVerdictFields});
    const auto step = [&](double apply) {
      verdict.set(static_cast<std::int64_t>(VerdictField::apply), apply);
      run(device, BalanceExperts{.choices = choices.view(),
                                 .kept = shares.view(),
                                 .verdict = verdict.view(),
                                 .by = BalanceBy::shares});
      return shares.numbers();
    };
    EXPECT_EQ(step(1), Numbers(4, 0.0)) << "nothing was chosen";
    std::ranges::copy(chosen, choices.view().as<std::int64_t>());
    EXPECT_EQ(step(0), Numbers(4, 0.0)) << "a step that is skipped";
    EXPECT_EQ(step(1), (Numbers{0, 0.1875, 0.0625, 0.75}));
    choices.view().as<std::int64_t>()[0] = 16;
    EXPECT_EQ(step(1), (Numbers{0.5, 0.09375, 0.03125, 0.375}));
  });
}

// An expert that is chosen as often as experts are on average keeps its bias, whatever that is; one
// choice more or less of the most that there can be is seen.
TEST(BalanceExperts, MovesBiasesAgainstChoicesOverTheirMean) {
  for_devices([](Device& device) {
    for (const std::int64_t experts : {1, 3, 8, 300}) {
      for (const float apply : {0.0F, 1.0F}) {
        Tensor choices(DType::i64, {experts}), bias = Tensor::random(DType::f32, {experts}, 4),
                                               verdict(DType::f32, {kVerdictFields});
        verdict.set(static_cast<std::int64_t>(VerdictField::apply), apply);
        auto* chosen = choices.view().as<std::int64_t>();
        for (std::int64_t e = 0; e < experts; ++e) chosen[e] = std::int64_t{1} << 50;
        if (experts > 2) ++chosen[1], --chosen[2];
        const Numbers before = bias.numbers();
        run(device, BalanceExperts{.choices = choices.view(),
                                   .kept = bias.view(),
                                   .verdict = verdict.view(),
                                   .rate = 0.125F});
        for (std::int64_t e = 0; e < experts; ++e) {
          const float was = static_cast<float>(before[static_cast<std::size_t>(e)]),
                      step = experts > 2 && apply > 0 ? (e == 1   ? -0.125F
                                                         : e == 2 ? 0.125F
                                                                  : 0)
                                                      : 0;
          EXPECT_EQ(bias[e], was + step) << e << " of " << experts;
        }
      }
    }
  });
}

// A GPU cannot refuse them, and counts them nowhere.
TEST(CountChoices, RefusesExpertsThatThereAreNot) {
  const std::int64_t experts = 5;
  for (const double other : {-1.0, static_cast<double>(experts)}) {
    Tensor chosen = random_choice(7, 2, experts, 3);
    chosen.set(13, other);
    for_cpu_devices([&](Device& device) {
      const Tensor counts(DType::i64, {experts});
      const CountChoices call{.experts = chosen.view(), .counts = counts.view()};
      EXPECT_THROW(run(device, call), InternalError);
      EXPECT_EQ(counts.numbers(), Numbers(experts)) << "counted before it refused";
    });
    if (gpu() == Gpu::none) continue;
    Tensor counts(DType::i64, {experts + 2});
    const View within = counts.view().range(1, experts);
    run(*tessera::test::make_cuda_test_device(),
        CountChoices{.experts = chosen.view(), .counts = within});
    EXPECT_EQ(counts[0], 0);
    EXPECT_EQ(counts[experts + 1], 0);
    const Numbers all = counts.numbers();
    EXPECT_EQ(std::accumulate(all.begin(), all.end(), 0.0), 13);
  }
}

/// Which experts have rows, `own` neighbours, and how many rows at most; 0: no limit.
struct Part {
  std::int64_t first, own, capacity = 0;
};
std::string name_of(const Part& p) {
  return fmt::format("experts {} to {}, {} rows each", p.first, p.first + p.own - 1, p.capacity);
}

/// All experts and some in the middle, without limit, and with capacities around the largest load
/// and around where padding begins.
std::vector<Part> parts_of(const Tensor& chosen, std::int64_t experts) {
  const std::int64_t most = std::ranges::max(loads_of(chosen, experts)), first = experts / 3,
                     own = (experts + 2) / 3;
  std::vector<Part> parts;
  for (const std::int64_t capacity :
       {std::int64_t{0}, std::int64_t{1}, most - 1, most, most + 1, kExpertRows, kExpertRows + 1}) {
    parts.push_back({0, experts, capacity});
    parts.push_back({first, own, capacity});
  }
  return parts;
}

struct Dispatched {
  Dispatched(Device& device, const Tensor& chosen, std::int64_t experts, const Part& part)
      : place(DType::i32, {chosen.view().rows(), chosen.view().cols()}),
        source(DType::i32, {dispatched_rows(chosen.view().rows(), chosen.view().cols(), part.own,
                                            part.capacity)}),
        begins(DType::i32, {part.own + 1}) {
    run(device, Dispatch{.experts = chosen.view(),
                         .place = place.view(),
                         .source = source.view(),
                         .begins = begins.view(),
                         .first = part.first,
                         .all = experts,
                         .capacity = part.capacity});
  }
  std::int64_t begin(std::int64_t e) const { return static_cast<std::int64_t>(begins[e]); }
  /// -1: none.
  std::int64_t row(std::int64_t copy) const { return static_cast<std::int64_t>(place[copy]); }

  Tensor place, source, begins;
};

TEST(Dispatch, OrdersCopiesByExpertThenByToken) {
  for_devices([](Device& device) {
    for (const auto& [tokens, choices, experts] : kShapes) {
      const Tensor chosen = random_choice(tokens, choices, experts, 1);
      for (const Part& part : parts_of(chosen, experts)) {
        SCOPED_TRACE(
            fmt::format("{} tokens to {} of {}, {}", tokens, choices, experts, name_of(part)));
        const Dispatched d(device, chosen, experts, part);
        Numbers place(static_cast<std::size_t>(chosen.size()), -1);
        std::int64_t row = 0;
        for (std::int64_t e = 0; e < part.own; ++e) {
          ASSERT_EQ(d.begin(e), row);
          for (std::int64_t i = 0; i < chosen.size(); ++i) {
            const bool full = part.capacity > 0 && row - d.begin(e) == part.capacity;
            if (chosen[i] != static_cast<double>(part.first + e) || full) continue;
            place[static_cast<std::size_t>(i)] = static_cast<double>(row);
            ASSERT_EQ(d.source[row], static_cast<double>(i)) << "row " << row;
            ++row;
          }
          for (; row % kExpertRows != 0; ++row) ASSERT_EQ(d.source[row], -1) << "row " << row;
        }
        ASSERT_EQ(d.begin(part.own), row);
        for (; row < d.source.size(); ++row) ASSERT_EQ(d.source[row], -1) << "row " << row;
        ASSERT_EQ(d.place.numbers(), place);
      }
    }
  });
}

/// Slots are what dispatches to each part's experts alone make, one behind another.
TEST(Dispatch, PartsHaveSlotsOfTheirOwn) {
  for_devices([](Device& device) {
    for (const auto& [parts, first, own, experts] :
         {std::array<std::int64_t, 4>{2, 0, 8, 8}, {4, 0, 8, 8}, {3, 2, 6, 11}, {5, 1, 5, 7}}) {
      const Tensor chosen = random_choice(53, 3, experts, 5);
      for (const std::int64_t capacity : {0, 9}) {
        SCOPED_TRACE(fmt::format("{} of {} experts in {} parts, {} rows each", own, experts, parts,
                                 capacity));
        const std::int64_t each = own / parts, slot = dispatched_rows(53, 3, each, capacity);
        const Tensor place(DType::i32, {53, 3}), source(DType::i32, {parts * slot}),
            begins(DType::i32, {parts, each + 1});
        run(device, Dispatch{.experts = chosen.view(),
                             .place = place.view(),
                             .source = source.view(),
                             .begins = begins.view(),
                             .first = first,
                             .all = experts,
                             .capacity = capacity,
                             .parts = parts});
        Numbers places(static_cast<std::size_t>(chosen.size()), -1);
        for (std::int64_t p = 0; p < parts; ++p) {
          const Dispatched alone(device, chosen, experts, {first + p * each, each, capacity});
          for (std::int64_t i = 0; i <= each; ++i)
            ASSERT_EQ(begins[p * (each + 1) + i], alone.begins[i]);
          for (std::int64_t i = 0; i < slot; ++i) ASSERT_EQ(source[p * slot + i], alone.source[i]);
          for (std::int64_t i = 0; i < chosen.size(); ++i) {
            if (alone.row(i) >= 0)
              places[static_cast<std::size_t>(i)] = static_cast<double>(p * slot + alone.row(i));
          }
        }
        ASSERT_EQ(place.numbers(), places);
      }
    }
  });
}

TEST(Dispatch, LeavesWithoutRowsWhatIsCountedAsDropped) {
  for_devices([](Device& device) {
    for (const auto& [tokens, choices, experts] : kShapes) {
      const Tensor chosen = random_choice(tokens, choices, experts, 1);
      for (const Part& part : parts_of(chosen, experts)) {
        if (part.own < experts) continue;
        SCOPED_TRACE(fmt::format("{} tokens, {}", tokens, name_of(part)));
        const Numbers places = Dispatched(device, chosen, experts, part).place.numbers();
        const Tensor counts(DType::i64, {experts}), dropped(DType::i64, {1});
        run(device, CountChoices{.experts = chosen.view(),
                                 .counts = counts.view(),
                                 .dropped = dropped.view(),
                                 .capacity = part.capacity});
        EXPECT_EQ(dropped[0], static_cast<double>(std::ranges::count(places, -1.0)));
      }
    }
  });
}

// Numbers of one, two and many experts in a part, with choices of other experts, and without rows.
TEST(PartsOfChoices, AreThoseOfChoicesThatHaveRows) {
  for_devices([](Device& device) {
    for (const auto& [first, of_part, count, experts] :
         {std::array<std::int64_t, 4>{0, 4, 2, 8}, {0, 1, 8, 8}, {2, 3, 3, 12}, {0, 9, 1, 9}}) {
      const Tensor chosen = random_choice(300, 4, experts, 5);
      const Dispatched limited(device, chosen, experts, {first, of_part * count, 40});
      EXPECT_GT(std::ranges::count(limited.place.numbers(), -1.0), 0);
      for (const Tensor* place : {static_cast<const Tensor*>(nullptr), &limited.place}) {
        SCOPED_TRACE(fmt::format("{} parts of {} from {} on", count, of_part, first));
        const std::int64_t most = std::min<std::int64_t>(4, count);
        const Tensor parts(DType::i32, {300, most}), own(DType::i32, {300, 4});
        run(device, PartsOfChoices{.experts = chosen.view(),
                                   .place = place == nullptr ? View() : place->view(),
                                   .parts = parts.view(),
                                   .own = own.view(),
                                   .first = first,
                                   .of_part = of_part,
                                   .count = count});
        for (std::int64_t n = 0; n < 300; ++n) {
          std::set<std::int64_t> want;
          for (std::int64_t i = 4 * n; i < 4 * n + 4; ++i) {
            const auto e = static_cast<std::int64_t>(chosen[i]) - first;
            const bool here =
                e >= 0 && e < of_part * count && (place == nullptr || (*place)[i] >= 0);
            ASSERT_EQ(own[i], here ? static_cast<double>(e + 1) : 0.0);
            if (here) want.insert(e / of_part + 1);
          }
          for (std::int64_t i = most * n; i < most * (n + 1); ++i) {
            ASSERT_EQ(parts[i], want.empty() ? 0.0 : static_cast<double>(*want.begin()));
            if (!want.empty()) want.erase(want.begin());
          }
        }
      }
    }
  });
}

TEST(PartsOfChoices, RefusesWhatThereIsNot) {
  const Tensor chosen(DType::i32, {5, 2}), parts(DType::i32, {5, 2}), own(DType::i32, {5, 2});
  PartsOfChoices call{
      .experts = chosen.view(), .parts = parts.view(), .own = own.view(), .of_part = 3, .count = 2};
  for_devices([&](Device& device) {
    run(device, call);
    for (const auto& change : std::vector<std::function<void(PartsOfChoices&)>>{
             [](PartsOfChoices& c) { c.first = -1; }, [](PartsOfChoices& c) { c.of_part = 0; },
             [](PartsOfChoices& c) { c.count = 1; }, [](PartsOfChoices& c) { c.of_part = 257; }}) {
      PartsOfChoices other = call;
      change(other);
      EXPECT_THROW(run(device, other), InternalError);
    }
  });
}

// Rows of 4, 6 and 16 bytes' multiples, as words of a GPU are; and of any type.
TEST(SpreadRows, CopiesBytesAsTheyAre) {
  for_devices([](Device& device) {
    const Tensor chosen = random_choice(37, 2, 8, 2);
    const Dispatched d(device, chosen, 8, {0, 8});
    for (const auto& [type, columns] : {std::pair{DType::u8, 6},
                                        {DType::u8, 20},
                                        {DType::u8, 96},
                                        {DType::i32, 5},
                                        {DType::i64, 3},
                                        {DType::bf16, 7}}) {
      SCOPED_TRACE(fmt::format("{} of {}", columns, to_string(type)));
      const std::int64_t bytes = columns * size_of(type), rows = d.source.size();
      std::vector<std::uint8_t> from(static_cast<std::size_t>(37 * bytes)),
          to(static_cast<std::size_t>(rows * bytes), 7);
      std::mt19937 random(3);
      for (std::uint8_t& byte : from) byte = static_cast<std::uint8_t>(random());
      run(device,
          SpreadRows{.x = View(reinterpret_cast<std::byte*>(from.data()), type, {37, columns}),
                     .source = d.source.view(),
                     .rows = View(reinterpret_cast<std::byte*>(to.data()), type, {rows, columns}),
                     .choices = 2});
      for (std::int64_t i = 0; i < std::ssize(to); ++i) {
        const auto copy = static_cast<std::int64_t>(d.source[i / bytes]);
        const auto at = static_cast<std::size_t>(copy / 2 * bytes + i % bytes);
        ASSERT_EQ(to[static_cast<std::size_t>(i)], copy < 0 ? 0 : from[at]) << "byte " << i;
      }
    }
  });
}

TEST(Dispatch, HasRowsForWhateverIsChosen) {
  EXPECT_EQ(dispatched_rows(10, 2, 8), 144) << "20 copies, 15 rows of padding for each expert";
  EXPECT_EQ(dispatched_rows(10, 2, 1), 32) << "no token has an expert twice";
  EXPECT_EQ(dispatched_rows(1000, 2, 8, 32), 256);
  EXPECT_EQ(dispatched_rows(1000, 2, 8, 33), 8 * 48);
  EXPECT_EQ(dispatched_rows(10, 2, 8, 1), 128);
  EXPECT_EQ(dispatched_rows(10, 2, 8, 1000), 128) << "ten copies at most of each expert";
  EXPECT_EQ(dispatched_rows(100, 1, 8, 100), dispatched_rows(100, 1, 8));
  // As many rows as there may be: each token has both of the own experts.
  const std::int64_t tokens = 17;
  Tensor chosen(DType::i32, {tokens, 3});
  for (std::int64_t n = 0; n < tokens; ++n)
    chosen.set(3 * n, 4), chosen.set(3 * n + 1, 0), chosen.set(3 * n + 2, 5);
  for_devices([&](Device& device) {
    for (const std::int64_t capacity : {0, 16, 17}) {
      const Dispatched d(device, chosen, 7, {4, 2, capacity});
      EXPECT_EQ(d.begin(2), capacity == 16 ? 32 : 64);
      EXPECT_EQ(d.source.size(), capacity == 16 ? 32 : 64);
    }
  });
}

/// A call of two tokens to two of five experts, of which two are own from `first` on.
struct SmallDispatch {
  explicit SmallDispatch(const std::array<double, 4>& chosen)
      : experts(DType::i32, {2, 2}),
        place(DType::i32, {2, 2}),
        source(DType::i32, {64}),
        begins(DType::i32, {3}) {
    for (std::int64_t i = 0; i < 4; ++i) experts.set(i, chosen[static_cast<std::size_t>(i)]);
  }
  Dispatch call(std::int64_t first = 1) const {
    return {.experts = experts.view(),
            .place = place.view(),
            .source = source.view().range(0, 48),
            .begins = begins.view(),
            .first = first,
            .all = 5};
  }

  Tensor experts, place, source, begins;
};

// Numbers from 1 on, of which 0 is none, however many choices of a token are none.
TEST(Dispatch, TokensMayHaveMoreChoicesThanThereAreExperts) {
  const Tensor chosen(DType::i32, {3, 6}), place(DType::i32, {3, 6}), begins(DType::i32, {3}),
      source(DType::i32, {dispatched_rows(3, 6, 2)});
  chosen.view().as<std::int32_t>()[1] = 2;
  chosen.view().as<std::int32_t>()[16] = 1;
  for_devices([&](Device& device) {
    run(device, Dispatch{.experts = chosen.view(),
                         .place = place.view(),
                         .source = source.view(),
                         .begins = begins.view(),
                         .first = 1,
                         .all = 3});
    Numbers want(18, -1);
    want[1] = 16, want[16] = 0;
    EXPECT_EQ(place.numbers(), want);
  });
}

TEST(Dispatch, RefusesExpertsThatThereAreNot) {
  for (const double other : {-1.0, 5.0}) {
    const SmallDispatch d({1, 2, 4, other});
    for_cpu_devices([&](Device& device) { EXPECT_THROW(run(device, d.call()), InternalError); });
    if (gpu() == Gpu::none) continue;
    run(*tessera::test::make_cuda_test_device(), d.call());  // cannot refuse: they have no row
    EXPECT_EQ(d.place.numbers(), (Numbers{0, 16, -1, -1}));
  }
  const SmallDispatch d({1, 2, 4, 0});
  for_devices([&](Device& device) {
    run(device, d.call());
    EXPECT_EQ(d.place.numbers(), (Numbers{0, 16, -1, -1}));
    EXPECT_THROW(run(device, d.call(4)), InternalError) << "experts 4 and 5 of 5";
    EXPECT_THROW(run(device, d.call(-1)), InternalError) << "experts -1 and 0";
    Dispatch limited = d.call();
    limited.capacity = -1;
    EXPECT_THROW(run(device, limited), InternalError) << "a capacity of -1";
    limited.capacity = 16;
    EXPECT_THROW(run(device, limited), InternalError) << "16 more rows than there may be";
  });
}

// Rows are too few for an expert that is chosen twice by all tokens.
TEST(Dispatch, WritesNoRowsThatThereAreNot) {
  const std::int64_t tokens = 40, rows = dispatched_rows(tokens, 2, 1);
  const Tensor chosen(DType::i32, {tokens, 2}), place(DType::i32, {tokens, 2}),
      begins(DType::i32, {2});
  ASSERT_LT(rows, 2 * tokens);
  const auto dispatch = [&](Device& device) {
    const Tensor source(DType::i32, {rows + 64});
    run(device, Dispatch{.experts = chosen.view(),
                         .place = place.view(),
                         .source = source.view().range(0, rows),
                         .begins = begins.view(),
                         .all = 2});
    for (std::int64_t r = 0; r < source.size(); ++r)
      EXPECT_EQ(source[r], r < rows ? static_cast<double>(r) : 0.0);
    EXPECT_EQ(begins[1], static_cast<double>(rows));
    for (std::int64_t i = 0; i < place.size(); ++i)
      EXPECT_EQ(place[i], i < rows ? static_cast<double>(i) : -1.0);
  };
  for_cpu_devices([&](Device& device) { EXPECT_THROW(dispatch(device), InternalError); });
  if (gpu() != Gpu::none) dispatch(*tessera::test::make_cuda_test_device());
}

/// Rows of copies behind one that nobody may read, which a place of -1 would name; they are not a
/// number where there is no copy.
class CopyRows {
 public:
  CopyRows(DType type, std::int64_t rows, std::int64_t columns, std::int64_t gap)
      : all_(type, {rows + 1, columns}, gap) {
    for (std::int64_t c = 0; c < columns; ++c) all_.set(c, kNan);
  }
  void spoil_padding(const Tensor& source) {
    for (std::int64_t i = 0; i < source.size() * columns(); ++i)
      if (source[i / columns()] < 0) all_.set(columns() + i, kNan);
  }
  View view() const { return all_.view().row_range(1, all_.view().rows() - 1); }
  std::int64_t size() const { return all_.size() - columns(); }
  double operator[](std::int64_t i) const { return all_[columns() + i]; }
  bool gaps_intact() const { return all_.gaps_intact(); }

 private:
  static constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  std::int64_t columns() const { return all_.view().cols(); }
  Tensor all_;
};

/// Weights of copies; not a number of those without a row.
Tensor copy_weights(const Dispatched& d) {
  auto weights = Tensor::random(DType::f32, {d.place.view().rows(), d.place.view().cols()}, 4);
  for (std::int64_t i = 0; i < weights.size(); ++i)
    if (d.row(i) < 0) weights.set(i, std::numeric_limits<double>::quiet_NaN());
  return weights;
}

/// Tokens and their copies, as what is made of them is checked against double. `weights`: or null.
struct Copies {
  const Tensor& x;  // (N, C)
  const Tensor* weights;
  const Dispatched& to;

  std::int64_t columns() const { return x.view().cols(); }
  std::int64_t choices() const { return to.place.view().cols(); }
  View by() const { return weights == nullptr ? View() : weights->view(); }
  double weight(std::int64_t copy) const { return weights == nullptr ? 1 : (*weights)[copy]; }
};

CopyRows expect_spread(Device& device, const Copies& c) {
  const DType type = c.x.view().type;
  CopyRows rows(type, c.to.source.size(), c.columns(), 5);
  run(device, SpreadRows{.x = c.x.view(),
                         .weights = c.by(),
                         .source = c.to.source.view(),
                         .rows = rows.view(),
                         .choices = c.choices()});
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const auto copy = static_cast<std::int64_t>(c.to.source[i / c.columns()]);
    const double w =
        copy < 0 ? 0 : c.x[copy / c.choices() * c.columns() + i % c.columns()] * c.weight(copy);
    EXPECT_NEAR(rows[i], w, 0x1p-24 * std::abs(w) + write_error(type, w)) << "rows[" << i << "]";
  }
  EXPECT_TRUE(rows.gaps_intact()) << "wrote between rows";
  return rows;
}

// Of rows as they are: K terms, each rounded once with the sum so far.
void expect_combined(Device& device, const Copies& c, const CopyRows& rows) {
  const DType type = c.x.view().type;
  for (const DType out_type : std::set{type, DType::f32}) {
    const Tensor out(out_type, {c.x.view().rows(), c.columns()}, 1);
    run(device,
        CombineRows{
            .rows = rows.view(), .weights = c.by(), .place = c.to.place.view(), .out = out.view()});
    Numbers sums(static_cast<std::size_t>(out.size())), sizes = sums;
    for (std::int64_t i = 0; i < out.size(); ++i) {
      for (std::int64_t k = 0; k < c.choices(); ++k) {
        const std::int64_t copy = i / c.columns() * c.choices() + k;
        if (c.to.row(copy) < 0) continue;
        const double term = rows[c.to.row(copy) * c.columns() + i % c.columns()] * c.weight(copy);
        sums[static_cast<std::size_t>(i)] += term;
        sizes[static_cast<std::size_t>(i)] += std::abs(term);
      }
    }
    expect_within(
        out, sums,
        [&](std::int64_t i) {
          const auto at = static_cast<std::size_t>(i);
          const double error = 0x1p-24 * static_cast<double>(c.choices() + 1) * sizes[at];
          return error + write_error(out_type, std::abs(sums[at]) + error);
        },
        "out");
  }
}

void expect_dots(Device& device, const Copies& c, const CopyRows& rows) {
  const Tensor dots(DType::f32, {c.x.view().rows(), c.choices()});
  run(device,
      RowDots{
          .x = c.x.view(), .rows = rows.view(), .place = c.to.place.view(), .dots = dots.view()});
  Numbers products, sizes;
  for (std::int64_t copy = 0; copy < dots.size(); ++copy) {
    double sum = 0, size = 0;
    for (std::int64_t i = 0; i < c.columns() && c.to.row(copy) >= 0; ++i) {
      const double term =
          c.x[copy / c.choices() * c.columns() + i] * rows[c.to.row(copy) * c.columns() + i];
      sum += term, size += std::abs(term);
    }
    products.push_back(sum), sizes.push_back(size);
  }
  expect_within(
      dots, products,
      [&](std::int64_t i) {
        return 0x1p-24 * (sum_depth(c.columns()) + 1) * sizes[static_cast<std::size_t>(i)];
      },
      "dots");
}

TEST(Dispatch, RowsAreSpreadCombinedAndMultiplied) {
  for_devices_and_types([](Device& device, DType type) {
    for (const auto& [tokens, choices, experts] :
         {Shape{1, 1, 1}, Shape{37, 2, 8}, Shape{70, 5, 9}}) {
      const Tensor chosen = random_choice(tokens, choices, experts, 2);
      for (const Part& part : {Part{0, experts}, Part{experts / 3, (experts + 2) / 3},
                               Part{0, experts, 5}, Part{experts / 3, (experts + 2) / 3, 5}}) {
        const Dispatched d(device, chosen, experts, part);
        const Tensor weights = copy_weights(d);
        for (const std::int64_t columns : {1, 17, 96}) {
          SCOPED_TRACE(fmt::format("{} tokens of {}, {}", tokens, columns, name_of(part)));
          const auto x = Tensor::random(type, {tokens, columns}, 3, 1, 3);
          for (const Tensor* by : {static_cast<const Tensor*>(nullptr), &weights}) {
            const Copies copies{x, by, d};
            CopyRows rows = expect_spread(device, copies);
            rows.spoil_padding(d.source);
            expect_combined(device, copies, rows);
            expect_dots(device, copies, rows);
          }
        }
      }
    }
  });
}

/// What is combined of rows that are tokens times `values`, with the sizes of what is added up, and
/// the rows' products with tokens.
struct Combined {
  Combined(Device& device, const Tensor& chosen, std::int64_t experts, const Part& part,
           const Tensor& x, const Tensor& values)
      : out(DType::f32, {x.view().rows(), x.view().cols()}),
        dots(DType::f32, {chosen.view().rows(), chosen.view().cols()}) {
    const Dispatched d(device, chosen, experts, part);
    const Tensor weights = copy_weights(d);
    CopyRows rows(x.view().type, d.source.size(), x.view().cols(), 0);
    run(device, SpreadRows{.x = x.view(),
                           .weights = values.view(),
                           .source = d.source.view(),
                           .rows = rows.view(),
                           .choices = chosen.view().cols()});
    rows.spoil_padding(d.source);
    run(device, CombineRows{.rows = rows.view(),
                            .weights = weights.view(),
                            .place = d.place.view(),
                            .out = out.view()});
    run(device,
        RowDots{.x = x.view(), .rows = rows.view(), .place = d.place.view(), .dots = dots.view()});
    const std::int64_t columns = x.view().cols(), choices = chosen.view().cols();
    for (std::int64_t i = 0; i < out.size(); ++i) {
      double& size = sizes.emplace_back(0);
      for (std::int64_t k = i / columns * choices; k < (i / columns + 1) * choices; ++k)
        if (d.row(k) >= 0) size += std::abs(rows[d.row(k) * columns + i % columns] * weights[k]);
    }
  }

  Tensor out, dots;
  Numbers sizes;
};

// A copy has a row in one part, so its product is there and 0 elsewhere. Of each part's sum K
// terms, as of the whole's, are rounded with the sum so far; one term is the same number in both.
TEST(Dispatch, PartsAddUpToTheWhole) {
  const std::int64_t tokens = 53, experts = 11, columns = 37;
  for_devices_and_types([&](Device& device, DType type) {
    const auto x = Tensor::random(type, {tokens, columns}, 3);
    for (const std::int64_t choices : {1, 4}) {
      const Tensor chosen = random_choice(tokens, choices, experts, 6);
      const auto values = Tensor::random(DType::f32, {tokens, choices}, 7);
      for (const std::int64_t capacity : {0, 3}) {
        SCOPED_TRACE(fmt::format("{} choices, {} rows each", choices, capacity));
        const Combined whole(device, chosen, experts, {0, experts, capacity}, x, values);
        Numbers out(static_cast<std::size_t>(whole.out.size())),
            dots(static_cast<std::size_t>(whole.dots.size()));
        for (const auto& [first, own] : {std::pair{0, 2}, {2, 5}, {7, 3}, {10, 1}}) {
          const Combined part(device, chosen, experts, {first, own, capacity}, x, values);
          for (std::size_t i = 0; i < out.size(); ++i)
            out[i] += part.out[static_cast<std::int64_t>(i)];
          for (std::size_t i = 0; i < dots.size(); ++i)
            dots[i] += part.dots[static_cast<std::int64_t>(i)];
        }
        EXPECT_EQ(whole.dots.numbers(), dots);
        const double roundings = choices == 1 ? 0 : 2.02 * static_cast<double>(choices);
        expect_within(
            whole.out, out,
            [&](std::int64_t i) {
              return roundings * 0x1p-24 * whole.sizes[static_cast<std::size_t>(i)];
            },
            "out");
      }
    }
  });
}

/// Sums of products in double with the sum of their sizes.
struct Sums {
  Numbers value, magnitude;
  explicit Sums(std::int64_t n)
      : value(static_cast<std::size_t>(n)), magnitude(static_cast<std::size_t>(n)) {}
  void add(std::int64_t i, double x) {
    value[static_cast<std::size_t>(i)] += x, magnitude[static_cast<std::size_t>(i)] += std::abs(x);
  }
};

/// As linear_test's bound: f32 accumulation of `terms` exact products in any order (Higham 2002,
/// section 3.1), then one rounding when written, or one for each of `writes` pieces.
void expect_sums(const Tensor& got, const Sums& want, std::int64_t terms, int writes,
                 const char* what) {
  expect_within(
      got, want.value,
      [&](std::int64_t i) {
        const auto at = static_cast<std::size_t>(i);
        const double error = 1.01 * static_cast<double>(terms + 1) * 0x1p-24 * want.magnitude[at];
        return error + writes * write_error(got.view().type, want.magnitude[at] + error);
      },
      what);
}

// Also of experts without any rows, and of rows behind the last expert's, which stay as they are.
TEST(ExpertProducts, AgreeWithDouble) {
  struct Products {
    std::int64_t tokens, choices, of_all;
    Part part;
  };
  const std::vector<Products> products = {
      {1, 1, 1, {0, 1}}, {37, 2, 8, {0, 8}}, {200, 2, 3, {0, 3}}, {60, 3, 9, {6, 3, 20}}};
  for_devices_and_types([&](Device& device, DType type) {
    for (const auto& [tokens, choices, of_all, part] : products) {
      const std::int64_t experts = part.own;
      struct Matrix {
        std::int64_t in, out, gap;
        bool wide;  // results in f32
      };
      for (const auto& [in, out, gap, wide] :
           {Matrix{7, 5, 1, false}, Matrix{64, 80, 0, false}, Matrix{136, 24, 0, true},
            Matrix{136, 24, 1, true}}) {
        SCOPED_TRACE(
            fmt::format("{} tokens to {} of {}, {} to {}", tokens, choices, of_all, in, out));
        const Dispatched d(device, random_choice(tokens, choices, of_all, 7), of_all, part);
        const std::int64_t rows = d.source.size(), used = d.begin(experts);
        const DType result = wide ? DType::f32 : type;
        const auto x = Tensor::random(type, {rows, in}, 1, 1, 2 * gap),
                   d_y = Tensor::random(type, {rows, out}, 2, 1, 3 * gap),
                   w = Tensor::random(type, {experts * out, in}, 3, 1, gap);
        Sums y(rows * out), d_x(rows * in), d_w(experts * out * in);
        Tensor got_y = Tensor::random(result, {rows, out}, 4, 1, gap),
               got_d_x = Tensor::random(result, {rows, in}, 5, 1, gap);
        for (std::int64_t r = used; r < rows; ++r) {
          for (std::int64_t o = 0; o < out; ++o)
            y.value[static_cast<std::size_t>(r * out + o)] = got_y[r * out + o];
          for (std::int64_t i = 0; i < in; ++i)
            d_x.value[static_cast<std::size_t>(r * in + i)] = got_d_x[r * in + i];
        }
        for (std::int64_t e = 0; e < experts; ++e) {
          for (std::int64_t r = d.begin(e); r < d.begin(e + 1); ++r) {
            for (std::int64_t o = 0; o < out; ++o) {
              for (std::int64_t i = 0; i < in; ++i) {
                const std::int64_t at = (e * out + o) * in + i;
                y.add(r * out + o, x[r * in + i] * w[at]);
                d_x.add(r * in + i, d_y[r * out + o] * w[at]);
                d_w.add(at, d_y[r * out + o] * x[r * in + i]);
              }
            }
          }
        }
        const std::int64_t copies = tokens * choices;
        run(device, ExpertLinear{.x = x.view(),
                                 .weight = w.view(),
                                 .begins = d.begins.view(),
                                 .y = got_y.view(),
                                 .copies = copies});
        expect_sums(got_y, y, in, 1, "y");
        run(device, ExpertLinearBackwardInput{.d_y = d_y.view(),
                                              .weight = w.view(),
                                              .begins = d.begins.view(),
                                              .d_x = got_d_x.view(),
                                              .copies = copies});
        expect_sums(got_d_x, d_x, out, 1, "d_x");
        const Tensor got_d_w(DType::f32, {experts * out, in}, 2 * gap);
        for (const Write write : {Write::overwrite, Write::add}) {
          run(device, ExpertLinearBackwardWeight{.d_y = d_y.view(),
                                                 .x = x.view(),
                                                 .begins = d.begins.view(),
                                                 .d_weight = got_d_w.view(),
                                                 .write = write,
                                                 .copies = copies});
          expect_sums(got_d_w, d_w, used, 0, "d_weight");
          for (std::size_t i = 0; i < d_w.value.size(); ++i)
            d_w.value[i] *= 2, d_w.magnitude[i] *= 2;
        }
      }
    }
  });
}

// Which are widened in scratch, as those of more rows are not.
TEST(ExpertProducts, OfFewRowsHaveTheirScratch) {
  const std::int64_t in = 8192, out = 40, rows = 32;
  const auto device = make_cpu_device({.few_rows = true});
  for (const DType type : {DType::bf16, DType::f16}) {
    const auto x = Tensor::random(type, {2 * rows, in}, 1),
               w = Tensor::random(type, {2 * out, in}, 2);
    const Tensor begins(DType::i32, {3}), y(type, {2 * rows, out}), of_expert(type, {rows, out});
    begins.view().as<std::int32_t>()[1] = rows, begins.view().as<std::int32_t>()[2] = 2 * rows;
    run(*device,
        ExpertLinear{.x = x.view(), .weight = w.view(), .begins = begins.view(), .y = y.view()});
    run(*device, Linear{.x = x.view().row_range(rows, rows),
                        .weight = w.view().row_range(out, out),
                        .y = of_expert.view()});
    for (std::int64_t i = 0; i < rows * out; ++i) ASSERT_EQ(y[rows * out + i], of_expert[i]) << i;
  }
}

}  // namespace
}  // namespace tessera::kernels::test
