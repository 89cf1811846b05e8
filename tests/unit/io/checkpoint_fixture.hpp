// A small random model, ways to shard it, and saving it as several ranks would.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "io/checkpoint_commit.hpp"
#include "io/checkpoint_directory.hpp"
#include "io/checkpoint_writer.hpp"
#include "support/temporary_directory.hpp"

namespace tessera::test {

/// Of a run in which every checkpoint of a test is proven.
inline constexpr std::int64_t kLaterUpdates = 1'000'000;

struct TestTensor {
  std::string name;
  std::string state;
  io::Shape shape;
  DType type;
  std::vector<std::byte> bytes;

  std::vector<std::byte> part(const io::Box& box) const {
    const auto size = size_of(type);
    std::vector<std::byte> out(static_cast<std::size_t>(box.elements() * size));
    io::for_each_run(box, io::Box(shape), box,
                     [&](std::int64_t from, std::int64_t to, std::int64_t n) {
                       std::memcpy(out.data() + to * size, bytes.data() + from * size,
                                   static_cast<std::size_t>(n * size));
                     });
    return out;
  }
};
using TestModel = std::vector<TestTensor>;

class Random {
 public:
  explicit Random(unsigned seed) : engine(seed) {}
  std::int64_t below(std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(engine);
  }
  std::vector<std::byte> bytes(std::size_t n) {
    std::vector<std::byte> out(n);
    for (auto& b : out) b = static_cast<std::byte>(below(256));
    return out;
  }
  /// Finite, normal numbers, so that sums over them mean something.
  std::vector<std::byte> numbers(DType type, std::int64_t n) {
    std::vector<std::byte> out(static_cast<std::size_t>(n * size_of(type)));
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < n; ++i) {
      const float value = normal(engine);
      std::byte* at = out.data() + i * size_of(type);
      if (type == DType::f32) std::memcpy(at, &value, 4);
      if (const bf16 b(value); type == DType::bf16) std::memcpy(at, &b, 2);
      if (const f16 h(value); type == DType::f16) std::memcpy(at, &h, 2);
    }
    return out;
  }
  std::mt19937 engine;
};

/// Tensors of 1 to 4 axes; the matrix crosses a checksum block where `large`.
inline TestModel random_model(Random& random, bool large, DType parameters = DType::f32) {
  const std::vector<std::pair<std::string, io::Shape>> tensors = {
      {"vocabulary.weight", large ? io::Shape{1201, 1303} : io::Shape{61, 33}},
      {"block.0.attention.q.weight", {17, 19}},
      {"block.0.norm.bias", {1 + random.below(40)}},
      {"block.1.experts", {3, 1 + random.below(5), 7}},
      {"block.1.filters", {2, 3, 1 + random.below(4), 5}}};
  TestModel model;
  const auto add = [&](const std::string& state, DType type) {
    for (const auto& [name, shape] : tensors)
      model.push_back({name, state, shape, type, random.numbers(type, shape.elements())});
  };
  for (const char* state : {"master", "adam_m", "adam_v"}) add(state, DType::f32);
  if (parameters != DType::f32) add("parameters", parameters);
  return model;
}

/// Each element in exactly one box: a grid as of tensor parallelism, each cell of which is cut
/// into flat ranges as by ZeRO where the cell is a whole range of the tensor, or else into rows.
inline std::vector<io::Box> random_partition(Random& random, const io::Shape& shape, int pieces) {
  if (random.below(2) == 0) {  // flat ranges of the whole tensor
    std::vector<std::int64_t> cuts = {0, shape.elements()};
    for (int i = 1; i < pieces; ++i) cuts.push_back(random.below(shape.elements() + 1));
    std::sort(cuts.begin(), cuts.end());
    std::vector<io::Box> boxes;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
      for (const io::Box& box : io::boxes_of_range(shape, {cuts[i], cuts[i + 1]}))
        boxes.push_back(box);
    }
    return boxes;
  }
  std::vector<io::Box> boxes = {io::Box(shape)};
  for (int i = 1; i < pieces; ++i) {  // cut a random box along a random axis
    const auto which = static_cast<std::size_t>(random.below(std::ssize(boxes)));
    const auto axis = static_cast<std::size_t>(random.below(4));
    io::Box& box = boxes[which];
    if (box.count[axis] < 2) continue;
    io::Box upper = box;
    const auto lower = 1 + random.below(box.count[axis] - 1);
    box.count[axis] = lower;
    upper.start[axis] += lower;
    upper.count[axis] -= lower;
    boxes.push_back(upper);
  }
  return boxes;
}

struct Shard {
  std::vector<io::Piece> pieces;
  std::vector<std::vector<std::byte>> bytes;
};

inline std::vector<Shard> random_shards(Random& random, const TestModel& model, int ranks) {
  std::vector<Shard> shards(static_cast<std::size_t>(ranks));
  for (const TestTensor& t : model) {
    auto boxes = random_partition(random, t.shape, ranks + 1);
    std::shuffle(boxes.begin(), boxes.end(), random.engine);
    for (const io::Box& box : boxes) {
      Shard& shard = shards[static_cast<std::size_t>(random.below(ranks))];
      shard.pieces.push_back({t.name, t.shape, t.state, t.type, box});
      shard.bytes.push_back(t.part(box));
    }
  }
  return shards;
}

/// Writes all pieces of a rank in random order, in tiles of random size.
inline io::RankPart write_shard(Random& random, const std::filesystem::path& directory, int rank,
                                const Shard& shard) {
  io::CheckpointWriter writer(directory, rank, shard.pieces);
  struct Tile {
    std::size_t piece;
    std::int64_t offset, count;
  };
  std::vector<Tile> tiles;
  for (std::size_t i = 0; i < shard.pieces.size(); ++i) {
    const auto size = std::ssize(shard.bytes[i]);
    for (std::int64_t begin = 0; begin < size;) {
      const auto n = std::min(size - begin, 1 + random.below(size > 100'000 ? size : 500));
      tiles.push_back({i, begin, n});
      begin += n;
    }
  }
  std::shuffle(tiles.begin(), tiles.end(), random.engine);
  for (const Tile& t : tiles) {
    writer.write(
        t.piece, t.offset,
        std::span(shard.bytes[t.piece])
            .subspan(static_cast<std::size_t>(t.offset), static_cast<std::size_t>(t.count)));
  }
  return io::rank_part_from_text(to_text(writer.finish()));
}

inline std::filesystem::path save(Random& random, const std::filesystem::path& checkpoints,
                                  const TestModel& model, int ranks,
                                  const io::CheckpointHeader& header) {
  const auto directory = io::begin_checkpoint(checkpoints, header.step);
  const auto shards = random_shards(random, model, ranks);
  std::vector<io::RankPart> parts;
  for (int rank = 0; rank < ranks; ++rank)
    parts.push_back(write_shard(random, directory, rank, shards[static_cast<std::size_t>(rank)]));
  return io::commit_checkpoint(directory, header, parts);
}

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void spit(const std::filesystem::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary).write(text.data(), std::ssize(text));
}

inline void flip_byte(const std::filesystem::path& path, std::int64_t at) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(at);
  const char old = static_cast<char>(file.get());
  file.seekp(at);
  file.put(static_cast<char>(old ^ 0x10));
}

}  // namespace tessera::test
