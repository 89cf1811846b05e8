#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

constexpr std::int64_t kSamples = 3, kTokens = 11, kVocabulary = 7, kPositions = 16;

struct Places {
  Tensor tokens{DType::i32, {kSamples, kTokens}}, samples{DType::i64, {kSamples}};
  Places() {
    std::mt19937 random(1);  // token 6 never occurs, others repeat
    for (std::int64_t i = 0; i < tokens.size(); ++i) tokens.set(i, random() % 6);
    for (std::int64_t b = 0; b < kSamples; ++b) samples.set(b, static_cast<double>(b * b + 3));
  }
  Dropout dropout(float p) const {
    return {.p = p, .seed = 8, .site = 1, .samples = samples.view()};
  }
};

TEST(Embed, AddsTokenAndPositionRows) {
  for_devices_and_types([](Device& device, DType type) {
    const Places places;
    for (std::int64_t columns : {1, 17, 600}) {
      for (float p : {0.0F, 0.25F}) {
        for (bool with_positions : {true, false}) {
          const auto table = Tensor::random(type, {kVocabulary, columns}, 1, 1, 2);
          const auto positions = Tensor::random(type, {kPositions, columns}, 2);
          Tensor out(type, {kSamples, kTokens, columns}, 1);
          run(device, Embed{.tokens = places.tokens.view(),
                            .token_table = table.view(),
                            .position_table = with_positions ? positions.view() : View(),
                            .out = out.view(),
                            .first_position = 4,
                            .dropout = places.dropout(p)});
          Numbers want;
          for (std::int64_t i = 0; i < out.size(); ++i) {
            const std::int64_t place = i / columns, t = place % kTokens, c = i % columns;
            const auto token = static_cast<std::int64_t>(places.tokens[place]);
            double x = table[token * columns + c];
            if (with_positions) x += positions[(4 + t) * columns + c];
            want.push_back(x * dropout_factor(places.dropout(p), place / kTokens, t * columns + c));
          }
          expect_within(
              out, want,
              [&](std::int64_t i) {
                const double x = want[static_cast<std::size_t>(i)];
                return 0x1p-22 * std::abs(x) + write_error(type, x);
              },
              "out");
        }
      }
    }
  });
}

// Trap 24: repeated tokens, in a fixed order, without atomics.
TEST(EmbedBackward, AddsUpTheRowsOfEachToken) {
  for_devices_and_types([](Device& device, DType type) {
    const Places places;
    for (std::int64_t columns : {1, 17, 600}) {
      for (float p : {0.0F, 0.25F}) {
        for (Write write : {Write::overwrite, Write::add}) {
          const auto d = Tensor::random(type, {kSamples, kTokens, columns}, 5, 1, 3);
          const auto tokens0 = Tensor::random(DType::f32, {kVocabulary, columns}, 6, 1, 1);
          const auto positions0 = Tensor::random(DType::f32, {kPositions, columns}, 7);
          const Tensor d_tokens = tokens0.copy(), d_positions = positions0.copy();
          run(device, EmbedBackward{.tokens = places.tokens.view(),
                                    .d = d.view(),
                                    .d_token_table = d_tokens.view(),
                                    .d_position_table = d_positions.view(),
                                    .token_write = write,
                                    .position_write = write,
                                    .dropout = places.dropout(p)});
          const bool add = write == Write::add;
          Numbers want_tokens = add ? tokens0.numbers() : Numbers(tokens0.numbers().size());
          Numbers want_positions =
              add ? positions0.numbers() : Numbers(positions0.numbers().size());
          for (std::int64_t i = 0; i < d.size(); ++i) {
            const std::int64_t place = i / columns, t = place % kTokens, c = i % columns;
            const double x =
                d[i] * dropout_factor(places.dropout(p), place / kTokens, t * columns + c);
            const auto token = static_cast<std::int64_t>(places.tokens[place]);
            want_tokens[static_cast<std::size_t>(token * columns + c)] += x;
            want_positions[static_cast<std::size_t>(t * columns + c)] += x;
          }
          const double terms = kSamples * kTokens + 3;  // of at most 6 / (1 - p) each
          const auto bound = [&](std::int64_t) { return terms * terms * 0x1p-24 * 8; };
          expect_within(d_tokens, want_tokens, bound, "d_token_table");
          expect_within(d_positions, want_positions, bound, "d_position_table");
        }
      }
    }
  });
}

TEST(Embed, RefusesTokensBeyondTheVocabulary) {
  const auto device = make_cpu_device({.threads = 2});
  Places places;
  const Tensor table(DType::f32, {kVocabulary, 4}), out(DType::f32, {kSamples, kTokens, 4});
  Embed call{.tokens = places.tokens.view(), .token_table = table.view(), .out = out.view()};
  for (double token : {-1.0, static_cast<double>(kVocabulary)}) {
    places.tokens.set(5, token);
    EXPECT_THROW(device->run(call), InternalError);
  }
}

constexpr std::int64_t kColumns = 37;

/// The vocabulary in uneven parts; the last one's table has rows of padding.
struct Part {
  std::int64_t first, rows;
};
const std::vector<Part> kParts = {{0, 2}, {2, 1}, {3, 6}};

Tensor table_part(const Tensor& table, Part part) {
  Tensor rows(table.view().type, {part.rows, table.view().cols()});
  for (std::int64_t i = 0; i < rows.size(); ++i) {
    const std::int64_t from = part.first * table.view().cols() + i;
    rows.set(i, from < table.size() ? table[from] : 1e4);
  }
  return rows;
}

TEST(Embed, PartsOfTheVocabularyAddUpToTheWhole) {
  for_devices_and_types([](Device& device, DType type) {
    const Places places;
    const auto table = Tensor::random(type, {kVocabulary, kColumns}, 1);
    const auto positions = Tensor::random(type, {kPositions, kColumns}, 2);
    const auto parts_count = static_cast<std::int64_t>(kParts.size());
    for (float p : {0.0F, 0.25F}) {
      Tensor whole(type, {kSamples, kTokens, kColumns}), sum(type, {kSamples, kTokens, kColumns});
      run(device, Embed{.tokens = places.tokens.view(),
                        .token_table = table.view(),
                        .position_table = positions.view(),
                        .out = whole.view(),
                        .first_position = 4,
                        .dropout = places.dropout(p)});
      Tensor parts(DType::f32, {parts_count, kSamples, kTokens, kColumns}),
          added(DType::f32, {kSamples, kTokens, kColumns});
      for (std::int64_t i = 0; i < parts_count; ++i) {
        const Part part = kParts[static_cast<std::size_t>(i)];
        const Tensor rows = table_part(table, part);
        run(device, Embed{.tokens = places.tokens.view(),
                          .token_table = rows.view(),
                          .out = parts.view()
                                     .range(i * added.size(), added.size())
                                     .reshaped({kSamples, kTokens, kColumns}),
                          .first_token = part.first,
                          .vocab = kVocabulary});
      }
      run(device, TreeSum{.parts = parts.view(), .out = added.view()});
      run(device, AddPositions{.x = added.view(),
                               .position_table = positions.view(),
                               .out = sum.view(),
                               .first_position = 4,
                               .dropout = places.dropout(p)});
      EXPECT_EQ(sum.numbers(), whole.numbers());  // the bits, but for the sign of 0
    }
  });
}

TEST(EmbedBackward, PartsOfTheVocabularyAreRowsOfTheWhole) {
  for_devices_and_types([](Device& device, DType type) {
    const Places places;
    const auto d = Tensor::random(type, {kSamples, kTokens, kColumns}, 5);
    const auto before = Tensor::random(DType::f32, {kVocabulary, kColumns}, 6);
    for (Write write : {Write::overwrite, Write::add}) {
      const Tensor whole = before.copy();
      run(device, EmbedBackward{.tokens = places.tokens.view(),
                                .d = d.view(),
                                .d_token_table = whole.view(),
                                .token_write = write,
                                .dropout = places.dropout(0.25F)});
      for (Part part : kParts) {
        const Tensor rows = table_part(before, part), want = table_part(whole, part);
        run(device, EmbedBackward{.tokens = places.tokens.view(),
                                  .d = d.view(),
                                  .d_token_table = rows.view(),
                                  .token_write = write,
                                  .first_token = part.first,
                                  .vocab = kVocabulary,
                                  .dropout = places.dropout(0.25F)});
        for (std::int64_t i = 0; i < rows.size(); ++i) {
          const bool padding = part.first + i / kColumns >= kVocabulary;
          ASSERT_EQ(rows[i], padding && write == Write::overwrite ? 0 : want[i]) << part.first;
        }
      }
    }
  });
}

// A rank with positions 3 .. 8 of each sample.
TEST(Embed, DropoutOfPartOfThePositionsIsThatOfTheWhole) {
  for_devices_and_types([](Device& device, DType type) {
    const Places places;
    const std::int64_t first = 3, count = 5;
    Tensor part_tokens(DType::i32, {kSamples, count});
    for (std::int64_t i = 0; i < part_tokens.size(); ++i) {
      part_tokens.set(i, places.tokens[i / count * kTokens + first + i % count]);
    }
    const auto table = Tensor::random(type, {kVocabulary, kColumns}, 1);
    const auto x = Tensor::random(DType::f32, {kSamples, kTokens, kColumns}, 2);
    const auto d = Tensor::random(type, {kSamples, kTokens, kColumns}, 3);
    const Tensor part_x = positions_of(x, first, count), part_d = positions_of(d, first, count);
    Dropout dropout = places.dropout(0.25F);
    Tensor embedded(type, {kSamples, kTokens, kColumns}), added = embedded.copy();
    Tensor d_table(DType::f32, {kVocabulary, kColumns}),
        d_positions(DType::f32, {kTokens, kColumns});
    run(device, Embed{.tokens = places.tokens.view(),
                      .token_table = table.view(),
                      .out = embedded.view(),
                      .dropout = dropout});
    run(device, AddPositions{.x = x.view(), .out = added.view(), .dropout = dropout});
    run(device, EmbedBackward{.tokens = places.tokens.view(),
                              .d = d.view(),
                              .d_token_table = d_table.view(),
                              .d_position_table = d_positions.view(),
                              .dropout = dropout});
    dropout.first = first * kColumns;
    Tensor part(type, {kSamples, count, kColumns}), part_d_positions(DType::f32, {count, kColumns});
    run(device, Embed{.tokens = part_tokens.view(),
                      .token_table = table.view(),
                      .out = part.view(),
                      .dropout = dropout});
    EXPECT_TRUE(part.same_bits(positions_of(embedded, first, count)));
    run(device, AddPositions{.x = part_x.view(), .out = part.view(), .dropout = dropout});
    EXPECT_TRUE(part.same_bits(positions_of(added, first, count)));
    run(device, EmbedBackward{.tokens = part_tokens.view(),
                              .d = part_d.view(),
                              .d_token_table = d_table.view(),
                              .d_position_table = part_d_positions.view(),
                              .dropout = dropout});
    for (std::int64_t i = 0; i < part_d_positions.size(); ++i) {
      ASSERT_EQ(part_d_positions[i], d_positions[first * kColumns + i]);
    }
  });
}

TEST(Embed, RefusesPartsThatDoNotFit) {
  const auto device = make_cpu_device({.threads = 2});
  Places places;
  const Tensor table(DType::bf16, {2, 4}), out(DType::bf16, {kSamples, kTokens, 4}),
      f16_out(DType::f16, {kSamples, kTokens, 4});
  Embed call{.tokens = places.tokens.view(),
             .token_table = table.view(),
             .out = out.view(),
             .first_token = 3,
             .vocab = kVocabulary};
  EXPECT_NO_THROW(device->run(call));
  call.out = f16_out.view();
  EXPECT_THROW(device->run(call), InternalError) << "f16 from bf16";
  call.out = out.view();
  call.vocab = 0;
  EXPECT_THROW(device->run(call), InternalError) << "a part of an unknown whole";
  call.vocab = kVocabulary;
  places.tokens.set(5, kVocabulary);
  EXPECT_THROW(device->run(call), InternalError) << "a token beyond the whole vocabulary";
}

/// Documents of the three samples of 11 tokens, with one of a single token, and what they make the
/// positions of.
struct PlaceDocuments {
  Tensor table{DType::i32, {kSamples, kTokens, 2}};
  std::vector<std::int64_t> positions;

  PlaceDocuments() {
    const std::vector<std::int64_t> cuts[kSamples] = {{0, 4, 5, 11}, {0, 11}, {0, 1, 2, 9, 11}};
    for (const auto& cut : cuts) {
      for (std::size_t i = 0; i + 1 < cut.size(); ++i) {
        for (std::int64_t t = cut[i]; t < cut[i + 1]; ++t) {
          const auto place = 2 * static_cast<std::int64_t>(positions.size());
          table.set(place, static_cast<double>(cut[i]));
          table.set(place + 1, static_cast<double>(cut[i + 1]));
          positions.push_back(t - cut[i]);
        }
      }
    }
  }
};

TEST(Embed, PositionsRestartWithDocuments) {
  for_devices_and_types([](Device& device, DType type) {
    const Places places;
    const PlaceDocuments documents;
    for (const std::int64_t columns : {1, 17, 600}) {
      const auto table = Tensor::random(type, {kVocabulary, columns}, 1, 1, 2);
      const auto positions = Tensor::random(type, {kPositions, columns}, 2);
      const auto dropout = places.dropout(0.25F);
      Tensor out(type, {kSamples, kTokens, columns}, 1);
      run(device, Embed{.tokens = places.tokens.view(),
                        .token_table = table.view(),
                        .position_table = positions.view(),
                        .documents = documents.table.view(),
                        .out = out.view(),
                        .dropout = dropout});
      Numbers want;
      for (std::int64_t i = 0; i < out.size(); ++i) {
        const std::int64_t place = i / columns, c = i % columns;
        const auto token = static_cast<std::int64_t>(places.tokens[place]);
        const double x =
            table[token * columns + c] +
            positions[documents.positions[static_cast<std::size_t>(place)] * columns + c];
        want.push_back(x * dropout_factor(dropout, place / kTokens, place % kTokens * columns + c));
      }
      expect_within(
          out, want,
          [&](std::int64_t i) {
            const double x = want[static_cast<std::size_t>(i)];
            return 0x1p-22 * std::abs(x) + write_error(type, x);
          },
          "out");
    }
  });
}

// Of all positions, and of a rank's: tokens 3 .. 7 of each sample.
TEST(AddPositions, PositionsRestartWithDocuments) {
  for_devices_and_types([](Device& device, DType type) {
    const PlaceDocuments documents;
    const auto positions = Tensor::random(type, {kPositions, kColumns}, 2);
    const auto x = Tensor::random(DType::f32, {kSamples, kTokens, kColumns}, 3);
    for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, kTokens}, {3, 5}}) {
      const Tensor part = positions_of(x, first, count);
      Tensor out(type, {kSamples, count, kColumns});
      run(device, AddPositions{.x = part.view(),
                               .position_table = positions.view(),
                               .documents = documents.table.view(),
                               .out = out.view(),
                               .first_position = first});
      Numbers want;
      for (std::int64_t i = 0; i < out.size(); ++i) {
        const std::int64_t row = i / kColumns;
        const std::int64_t place = row / count * kTokens + first + row % count;
        const std::int64_t position = documents.positions[static_cast<std::size_t>(place)];
        want.push_back(part[i] + positions[position * kColumns + i % kColumns]);
      }
      expect_within(
          out, want,
          [&](std::int64_t i) {
            const double sum = want[static_cast<std::size_t>(i)];
            return 0x1p-24 * std::abs(sum) + 1.01 * write_error(type, sum);
          },
          "out");
    }
  });
}

TEST(EmbedBackward, AddsUpTheRowsOfEachPositionOfDocuments) {
  for_devices_and_types([](Device& device, DType type) {
    const Places places;
    const PlaceDocuments documents;
    for (const std::int64_t columns : {1, 17, 600}) {
      for (const Write write : {Write::overwrite, Write::add}) {
        const auto d = Tensor::random(type, {kSamples, kTokens, columns}, 5, 1, 3);
        const auto before = Tensor::random(DType::f32, {kPositions, columns}, 7, 1, 1);
        const Tensor d_positions = before.copy(), d_tokens(DType::f32, {kVocabulary, columns}),
                     d_tokens_without = d_tokens.copy();
        EmbedBackward call{.tokens = places.tokens.view(),
                           .d = d.view(),
                           .d_token_table = d_tokens.view(),
                           .d_position_table = d_positions.view(),
                           .documents = documents.table.view(),
                           .position_write = write,
                           .dropout = places.dropout(0.25F)};
        run(device, call);
        Numbers want = write == Write::add ? before.numbers() : Numbers(before.numbers().size());
        for (std::int64_t i = 0; i < d.size(); ++i) {
          const std::int64_t place = i / columns, c = i % columns;
          const std::int64_t position = documents.positions[static_cast<std::size_t>(place)];
          want[static_cast<std::size_t>(position * columns + c)] +=
              d[i] * dropout_factor(call.dropout, place / kTokens, place % kTokens * columns + c);
        }
        const double terms = kSamples * kTokens + 3;  // of at most 6 / (1 - p) each
        expect_within(
            d_positions, want, [&](std::int64_t) { return terms * terms * 0x1p-24 * 8; },
            "d_position_table");
        for (std::int64_t i = kTokens * columns; i < d_positions.size(); ++i) {  // nobody's
          ASSERT_EQ(d_positions[i], write == Write::add ? before[i] : 0) << i;
        }
        call.d_token_table = d_tokens_without.view();
        call.d_position_table = {}, call.documents = {};
        run(device, call);
        EXPECT_TRUE(d_tokens.same_bits(d_tokens_without));
      }
    }
  });
}

TEST(EmbedBackward, OneDocumentASampleHasTheBitsOfNone) {
  for_devices_and_types([](Device& device, DType type) {
    const Places places;
    Tensor documents(DType::i32, {kSamples, kTokens, 2});
    for (std::int64_t i = 0; i < documents.size(); ++i) documents.set(i, i % 2 == 0 ? 0 : kTokens);
    const auto d = Tensor::random(type, {kSamples, kTokens, kColumns}, 5);
    for (const Write write : {Write::overwrite, Write::add}) {
      const auto run_with = [&](const View& view) {
        const Tensor d_tokens(DType::f32, {kVocabulary, kColumns});
        Tensor d_positions = Tensor::random(DType::f32, {kPositions, kColumns}, 7);
        run(device, EmbedBackward{.tokens = places.tokens.view(),
                                  .d = d.view(),
                                  .d_token_table = d_tokens.view(),
                                  .d_position_table = d_positions.view(),
                                  .documents = view,
                                  .position_write = write,
                                  .dropout = places.dropout(0.25F)});
        return d_positions;
      };
      EXPECT_TRUE(run_with(documents.view()).same_bits(run_with({})));
    }
  });
}

}  // namespace
}  // namespace tessera::kernels::test
