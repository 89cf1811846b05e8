// What is saved under one layout comes back under any other, bit for bit.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <thread>

#include "checkpoint_fixture.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"
#include "io/checkpoint_reader.hpp"
#include "io/checkpoint_verify.hpp"
#include "io/hdf5.hpp"

namespace tessera {
namespace {

using namespace test;

io::CheckpointHeader full_header() {
  io::CheckpointHeader h;
  h.step = 100;
  h.applied_updates = 97;
  h.samples = std::int64_t{1} << 40;
  h.tokens = std::int64_t{1} << 62;
  h.skipped_samples = {{3, 5}, {7, 1'000'000'000'000}};
  h.loss_scale = 65536;
  h.scaler_good_steps = 12;
  h.scaler_hysteresis_left = 2;
  h.spike_window = {0.1,
                    1.0 / 3,
                    -0.0,
                    5e-324,
                    1.7976931348623157e308,
                    std::numeric_limits<double>::infinity(),
                    -std::numeric_limits<double>::infinity(),
                    3.0};
  h.data = {{.path = "a.bin", .bytes = 12, .hash = ~std::uint64_t{0}}, {.path = "a.idx"}};
  h.layout = {.world = 8, .mesh = {.tensor = 2, .data = 2, .pipeline = 2}, .zero_stage = 3};
  h.deck = "[run]\nname = \"\u00fc \\ \t\"\n";
  h.source = "/models/\u00fc";
  h.info = {{"host", "a\"b"}, {"commit", ""}};
  return h;
}

TEST(CheckpointRoundTrip, AnyLayoutReadsAnyOther) {  // trap 46
  Random random(1);
  for (int trial = 0; trial < 12; ++trial) {
    TemporaryDirectory temporary;
    const DType types[] = {DType::f32, DType::bf16, DType::f16};
    const auto model = random_model(random, trial % 4 == 0, types[trial % 3]);
    const int ranks = 1 + static_cast<int>(random.below(5));
    const auto path = save(random, temporary.path(), model, ranks, {.step = trial});
    EXPECT_TRUE(io::verify_checkpoint(path).empty());

    io::Checkpoint checkpoint = io::Checkpoint::open(path);
    for (const TestTensor& t : model) {
      for (const io::Box& box : random_partition(random, t.shape, 4)) {
        const auto expected = t.part(box);
        std::vector<std::byte> got(expected.size());
        checkpoint.read(t.name, t.state, box, t.type, got);
        ASSERT_EQ(got, expected) << t.state << "/" << t.name;
      }
      const auto begin = random.below(t.shape.elements() + 1);
      const Range range{begin, begin + random.below(t.shape.elements() - begin + 1)};
      std::vector<std::byte> got(static_cast<std::size_t>(range.count() * size_of(t.type)));
      checkpoint.read(t.name, t.state, range, t.type, got);
      ASSERT_TRUE(
          std::equal(got.begin(), got.end(), t.bytes.begin() + range.begin * size_of(t.type)));
    }
  }
}

TEST(CheckpointRoundTrip, KeepsEveryFieldOfTheHeader) {  // traps 45, 58
  Random random(2);
  TemporaryDirectory temporary;
  const auto before = full_header();
  const auto path = save(random, temporary.path(), random_model(random, false), 2, before);
  EXPECT_EQ(path.filename(), "step_00000100");
  const auto after = io::Checkpoint::open(path).header();
  EXPECT_EQ(after.step, before.step);
  EXPECT_EQ(after.applied_updates, before.applied_updates);
  EXPECT_EQ(after.samples, before.samples);
  EXPECT_EQ(after.tokens, before.tokens);
  EXPECT_EQ(after.skipped_samples, before.skipped_samples);
  EXPECT_EQ(after.loss_scale, before.loss_scale);
  EXPECT_EQ(after.scaler_good_steps, before.scaler_good_steps);
  EXPECT_EQ(after.scaler_hysteresis_left, before.scaler_hysteresis_left);
  EXPECT_EQ(after.data, before.data);
  EXPECT_EQ(after.layout, before.layout);
  EXPECT_EQ(after.deck, before.deck);
  EXPECT_EQ(after.source, before.source);
  EXPECT_EQ(after.info, before.info);
  ASSERT_EQ(after.spike_window.size(), before.spike_window.size());
  for (std::size_t i = 0; i < before.spike_window.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(after.spike_window[i]),
              std::bit_cast<std::uint64_t>(before.spike_window[i]));
  }
}

/// Numbers that no run writes are refused where they stand, before anything is computed from them.
TEST(CheckpointRoundTrip, RefusesNumbersOutOfRange) {
  io::DatasetRecord d{
      .tensor = "x", .shape = {2}, .state = "master", .boxes = {io::Box(io::Shape{2})}};
  d.checksums = {1};
  const io::CheckpointHeader good = full_header();
  const auto read = [&](const std::function<void(io::CheckpointHeader&)>& change) {
    io::Manifest manifest{.header = good, .parts = {{.rank = 0, .file_bytes = 8, .datasets = {d}}}};
    change(manifest.header);
    return io::manifest_from_text(to_text(manifest), "test").header;
  };
  using H = io::CheckpointHeader;
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const std::pair<const char*, std::function<void(H&)>> refused[] = {
      {"samples", [](H& h) { h.samples = kMost; }},
      {"samples", [](H& h) { h.samples = -1; }},
      {"tokens", [](H& h) { h.tokens = kMost; }},
      {"step", [](H& h) { h.step = kMost; }},
      {"applied_updates", [](H& h) { h.applied_updates = h.step + 1; }},
      {"skipped_samples",
       [](H& h) {
         h.skipped_samples = {{0, kMost}};
       }},
      {"loss_scale", [](H& h) { h.loss_scale = 0; }},
      {"loss_scale", [](H& h) { h.loss_scale = -1; }},
      {"loss_scale", [](H& h) { h.loss_scale = std::nan(""); }},
      {"loss_scale", [](H& h) { h.loss_scale = std::numeric_limits<double>::infinity(); }},
      {"scaler_good_steps", [](H& h) { h.scaler_good_steps = -1; }},
      {"scaler_hysteresis_left", [](H& h) { h.scaler_hysteresis_left = kMost; }},
      {"lr_factor", [](H& h) { h.lr_factor = 0; }},
      {"data", [](H& h) { h.data = {{.path = "a.bin", .bytes = -1}}; }},
  };
  for (const auto& [key, change] : refused) {
    try {
      read(change);
      ADD_FAILURE() << key << " was accepted";
    } catch (const DataError& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find("$.header"), std::string::npos) << text;
      EXPECT_NE(text.find(key), std::string::npos) << text;
    }
  }
  // A run whose scale was halved again and again has used up its hysteresis, and more.
  EXPECT_EQ(read([](H& h) { h.scaler_hysteresis_left = -3; }).scaler_hysteresis_left, -3);
}

TEST(CheckpointRoundTrip, KeepsRandomDoublesExactly) {
  Random random(3);
  io::Manifest manifest;
  io::DatasetRecord d{
      .tensor = "x", .shape = {2}, .state = "master", .boxes = {io::Box(io::Shape{2})}};
  d.checksums = {1};
  manifest.parts = {{.rank = 0, .file_bytes = 8, .datasets = {d}}};
  for (int i = 0; i < 20000; ++i) {
    const std::uint64_t bits =
        (static_cast<std::uint64_t>(random.engine()) << 32) | random.engine();
    manifest.header.spike_window.push_back(std::bit_cast<double>(bits));
  }
  const auto again = io::manifest_from_text(to_text(manifest), "test").header.spike_window;
  ASSERT_EQ(again.size(), manifest.header.spike_window.size());
  for (std::size_t i = 0; i < again.size(); ++i) {
    const double was = manifest.header.spike_window[i];
    if (std::isnan(was)) {
      EXPECT_TRUE(std::isnan(again[i]));
    } else {
      EXPECT_EQ(std::bit_cast<std::uint64_t>(again[i]), std::bit_cast<std::uint64_t>(was));
    }
  }
}

TEST(CheckpointRoundTrip, ABackgroundThreadMayWriteAndARankMayHoldNothing) {
  Random random(8);
  TemporaryDirectory temporary;
  const TestTensor t{"w", "master", {3, 5}, DType::f32, random.numbers(DType::f32, 15)};
  const auto directory = io::begin_checkpoint(temporary.path(), 1);
  io::CheckpointWriter idle(directory, 0, {});
  io::CheckpointWriter busy(
      directory, 1, std::vector<io::Piece>{{"w", t.shape, "master", DType::f32, io::Box(t.shape)}});
  std::vector<io::RankPart> parts(2);
  std::thread([&] {
    parts[0] = idle.finish();
    busy.write(0, t.bytes);
    parts[1] = busy.finish();
  }).join();
  auto checkpoint = io::Checkpoint::open(io::commit_checkpoint(directory, {.step = 1}, parts));
  std::vector<std::byte> got(t.bytes.size());
  checkpoint.read("w", "master", io::Box(t.shape), DType::f32, got);
  EXPECT_EQ(got, t.bytes);
}

/// One tensor, saved by as many ranks as there are boxes.
std::filesystem::path save_boxes(const std::filesystem::path& checkpoints, const TestTensor& t,
                                 std::span<const io::Box> boxes) {
  const auto directory = io::begin_checkpoint(checkpoints, 1);
  std::vector<io::RankPart> parts;
  for (const io::Box& box : boxes) {
    io::CheckpointWriter writer(directory, static_cast<int>(parts.size()),
                                std::vector<io::Piece>{{t.name, t.shape, t.state, t.type, box}});
    writer.write(0, t.part(box));
    parts.push_back(writer.finish());
  }
  return io::commit_checkpoint(directory, {.step = 1}, parts);
}

/// 12 MiB: 12 blocks of 85 and 1/3 rows.
TestTensor matrix_of_12_blocks(unsigned seed) {
  Random random(seed);
  const io::Shape shape{1024, 3072};
  return {"w", "master", shape, DType::f32, random.numbers(DType::f32, shape.elements())};
}

TEST(CheckpointRead, TouchesOnlyTheBlocksItNeeds) {
  const TemporaryDirectory temporary;
  const TestTensor t = matrix_of_12_blocks(4);
  auto checkpoint =
      io::Checkpoint::open(save_boxes(temporary.path(), t, std::array{io::Box(t.shape)}));

  std::vector<std::byte> row(3072 * 4), column(1024 * 4);
  checkpoint.read("w", "master", io::Box({400, 0}, {1, 3072}), DType::f32, row);
  EXPECT_EQ(checkpoint.bytes_read(), io::kBlockBytes);  // the fifth block alone
  checkpoint.read("w", "master", io::Box({401, 0}, {1, 3072}), DType::f32, row);
  EXPECT_EQ(checkpoint.bytes_read(), io::kBlockBytes);  // still there
  EXPECT_EQ(row, t.part(io::Box({401, 0}, {1, 3072})));
  checkpoint.read("w", "master", io::Box({0, 5}, {1024, 1}), DType::f32, column);
  EXPECT_EQ(checkpoint.bytes_read(), 13 * io::kBlockBytes);  // each block once, not once a row
  EXPECT_EQ(column, t.part(io::Box({0, 5}, {1024, 1})));
}

/// Wants boxes, and puts them together.
struct Wants {
  std::vector<io::Wanted> wanted;
  std::vector<std::vector<std::byte>> got;

  Wants(const TestTensor& t, std::span<const io::Box> boxes) : got(boxes.size()) {
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      got[i].resize(static_cast<std::size_t>(boxes[i].elements() * size_of(t.type)));
      wanted.push_back(
          {t.name, t.state, boxes[i], t.type,
           [&out = got[i], type = t.type](std::int64_t first, std::span<const std::byte> bytes) {
             std::copy(bytes.begin(), bytes.end(), out.begin() + first * size_of(type));
           }});
    }
  }
};

TEST(CheckpointRead, ReadsEveryBlockOnceHoweverTheTensorWasCut) {
  const TemporaryDirectory temporary;
  const TestTensor t = matrix_of_12_blocks(9);
  std::vector<io::Box> columns, rows;
  for (std::int64_t i = 0; i < 8; ++i) {
    columns.push_back(
        io::Box({0, 384 * i}, {1024, 384}));  // 1.5 MiB: a whole block and half of one
    rows.push_back(io::Box({128 * i, 0}, {128, 3072}));
  }
  const auto by_columns = save_boxes(temporary.path() / "columns", t, columns);
  const auto by_rows = save_boxes(temporary.path() / "rows", t, rows);
  // What two boxes share is read once too.
  const std::vector<io::Box> overlapping = {io::Box({100, 0}, {200, 3072}),
                                            io::Box({0, 7}, {1024, 9}), io::Box({299, 5}, {2, 5})};
  const auto expect = [&](const std::filesystem::path& path, std::span<const io::Box> boxes,
                          std::int64_t bytes) {
    auto checkpoint = io::Checkpoint::open(path);
    Wants wants(t, boxes);
    checkpoint.read(wants.wanted);
    EXPECT_EQ(checkpoint.bytes_read(), bytes);
    for (std::size_t i = 0; i < boxes.size(); ++i) EXPECT_EQ(wants.got[i], t.part(boxes[i])) << i;
  };
  const auto all = std::ssize(t.bytes);
  expect(by_columns, rows, all);
  expect(by_rows, columns, all);
  expect(by_columns, std::span(columns).subspan(3, 1), all / 8);
  expect(by_rows, std::span(rows).subspan(3, 2), all / 4);
  expect(by_rows, overlapping, all);
  // The first half of each rank's rows are in its first block, of two.
  expect(by_rows, std::span(overlapping).last(1), io::kBlockBytes);
}

/// As versions before this one wrote them.
TEST(CheckpointRead, KnowsBlocksOfAnotherSize) {
  const TemporaryDirectory temporary;
  const TestTensor t = matrix_of_12_blocks(10);
  const auto path = save_boxes(temporary.path(), t, std::array{io::Box(t.shape)});
  io::Manifest manifest = io::read_manifest(path);
  manifest.block_bytes = 4 * io::kBlockBytes;
  io::DatasetRecord& d = manifest.parts[0].datasets[0];
  ASSERT_NE(d.block_bytes, manifest.block_bytes);
  d.block_bytes = manifest.block_bytes;
  d.checksums.clear();
  for (std::int64_t i = 0; i < d.blocks(); ++i) {
    const Range block = d.block_range(i);
    d.checksums.push_back(hash_bytes(std::span(t.bytes).subspan(
        static_cast<std::size_t>(block.begin), static_cast<std::size_t>(block.count()))));
  }
  spit(path / io::kManifestFile, to_text(manifest));
  EXPECT_TRUE(io::verify_checkpoint(path).empty());
  auto checkpoint = io::Checkpoint::open(path);
  std::vector<std::byte> got(t.bytes.size());
  checkpoint.read("w", "master", io::Box({400, 0}, {1, 3072}), DType::f32,
                  std::span(got).first(3072 * 4));
  EXPECT_EQ(checkpoint.bytes_read(), 4 * io::kBlockBytes);
  checkpoint.read("w", "master", io::Box(t.shape), DType::f32, got);
  EXPECT_EQ(got, t.bytes);
}

TEST(CheckpointRead, RefusesWhatIsNotThere) {
  Random random(5);
  TemporaryDirectory temporary;
  const auto model = random_model(random, false);
  auto checkpoint = io::Checkpoint::open(save(random, temporary.path(), model, 3, {.step = 1}));
  std::vector<std::byte> out(17 * 19 * 4);
  const io::Box all({0, 0}, {17, 19});
  const std::string name = "block.0.attention.q.weight";
  checkpoint.read(name, "master", all, DType::f32, out);
  EXPECT_THROW(checkpoint.read(name, "parameters", all, DType::f32, out), DataError);
  EXPECT_THROW(checkpoint.read("block.7", "master", all, DType::f32, out), DataError);
  EXPECT_THROW(checkpoint.read(name, "master", all, DType::bf16, out), DataError);
  EXPECT_THROW(checkpoint.read(name, "master", io::Box({0, 0}, {18, 19}), DType::f32, out),
               DataError);
  EXPECT_THROW(checkpoint.read(name, "master", Range{0, 324}, DType::f32, out), DataError);
  EXPECT_FALSE(checkpoint.find(name, "adam_w"));
  ASSERT_TRUE(checkpoint.find(name, "adam_v"));
  EXPECT_EQ(checkpoint.find(name, "adam_v")->shape, (io::Shape{17, 19}));
}

TEST(CheckpointDescribe, CountsWhatIsThere) {
  Random random(6);
  TemporaryDirectory temporary;
  const auto model = random_model(random, false, DType::bf16);
  const auto summary =
      io::describe_checkpoint(save(random, temporary.path(), model, 3, {.step = 9}));
  EXPECT_EQ(summary.header.step, 9);
  EXPECT_EQ(summary.files, 3);
  std::int64_t elements = 0;
  for (const auto& t : model) elements += t.state == "parameters" ? t.shape.elements() : 0;
  ASSERT_EQ(summary.states.size(), 4U);
  for (const auto& state : summary.states) {
    const DType type = state.state == "parameters" ? DType::bf16 : DType::f32;
    EXPECT_EQ(state.tensors, 5);
    EXPECT_EQ(state.elements, elements);
    EXPECT_EQ(state.type, type);
    EXPECT_EQ(state.bytes, elements * size_of(type));
  }
}

TEST(CheckpointLargeFile, ReadsAndWritesBeyond4GiB) {  // trap 55
  TemporaryDirectory temporary;
  const io::Shape shape{5, 1 << 28};  // 5 GiB of f32; the file is sparse, only the end is written
  const auto directory = io::begin_checkpoint(temporary.path(), 1);
  const std::vector<io::Piece> pieces = {{"w", shape, "master", DType::f32, io::Box(shape)}};
  {
    io::CheckpointWriter writer(directory, 0, pieces);
    EXPECT_THROW(writer.finish(), InternalError);  // nothing written yet
  }
  Random random(7);
  const auto tail = random.bytes(2 * io::kBlockBytes);
  const std::int64_t bytes = shape.elements() * 4, begin = bytes - 2 * io::kBlockBytes;
  io::DatasetRecord d{.tensor = "w", .shape = shape, .state = "master", .boxes = {io::Box(shape)}};
  const std::vector<std::byte> zeros(io::kBlockBytes);
  d.checksums.assign(static_cast<std::size_t>(d.blocks()), hash_bytes(zeros));
  const std::span<const std::byte> written(tail);
  d.checksums[d.checksums.size() - 2] = hash_bytes(written.first(io::kBlockBytes));
  d.checksums[d.checksums.size() - 1] = hash_bytes(written.last(io::kBlockBytes));
  {
    io::CheckpointWriter writer(directory, 0, pieces);
    writer.write(0, begin, tail);
    EXPECT_THROW(writer.write(0, begin, tail), InternalError);  // twice
    EXPECT_THROW(writer.write(0, bytes - 1, written.first(2)), InternalError);
  }
  const auto file = directory / io::rank_file_name(0);
  io::RankPart part{.rank = 0,
                    .file_bytes = static_cast<std::int64_t>(std::filesystem::file_size(file))};
  ASSERT_GT(part.file_bytes, bytes);
  {
    const io::H5File opened(H5_TRY(H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT)));
    const io::H5Dataset dataset(H5_TRY(H5Dopen2(opened, "/master/w", H5P_DEFAULT)));
    d.offset = static_cast<std::int64_t>(H5Dget_offset(dataset));
  }
  part.datasets = {d};
  auto checkpoint = io::Checkpoint::open(
      io::commit_checkpoint(directory, {.step = 1}, std::vector<io::RankPart>{part}));
  std::vector<std::byte> got(static_cast<std::size_t>(io::kBlockBytes));
  checkpoint.read("w", "master", Range{begin / 4 + 1000, begin / 4 + 1000 + io::kBlockBytes / 4},
                  DType::f32, got);
  EXPECT_TRUE(std::equal(got.begin(), got.end(), tail.begin() + 4000));
  EXPECT_EQ(checkpoint.bytes_read(), 2 * io::kBlockBytes);
}

}  // namespace
}  // namespace tessera
