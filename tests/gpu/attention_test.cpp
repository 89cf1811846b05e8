// Attention by cuDNN at the sizes of real models: in graphs, of more samples than fit its workspace
// at once, and beside the own kernels.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/gpu/device.hpp"
#include "tests/unit/kernels/support.hpp"

namespace tessera::kernels::test {
namespace {

struct Sizes {
  std::int64_t samples, tokens, heads, kv_heads, dim;

  std::int64_t columns() const { return heads * dim; }
  std::int64_t all_columns() const { return (heads + 2 * kv_heads) * dim; }
};
/// Heads of GPT-2, and heads of Llama that share keys and values.
const std::vector<Sizes> kSizes = {
    {2, 1024, 4, 4, 64}, {2, 1024, 4, 2, 128}, {2, 4096, 4, 4, 64}, {2, 4096, 4, 2, 128}};

std::string name_of(const Sizes& s) {
  return fmt::format("{} samples of {} tokens, {} heads of {}, {} kv heads", s.samples, s.tokens,
                     s.heads, s.dim, s.kv_heads);
}

enum class By : std::uint8_t { cudnn, own_kernels };

struct Results {
  std::vector<std::byte> out, lse, d_qkv;
};

/// A call, its gradients and their operands; queries, keys and values are columns of one matrix, as
/// in a model.
class Problem {
 public:
  explicit Problem(const Sizes& sizes) : s(sizes) {}

  void write(unsigned seed) {
    qkv.write(normal_numbers(qkv.view().elements(), seed));
    d_out.write(normal_numbers(d_out.view().elements(), seed + 100));
  }
  void forget() { out.forget(), lse.forget(), d_qkv.forget(); }
  void run(GpuRank& gpu, By by = By::cudnn) {
    gpu.run(forward(by));
    gpu.run(backward(by));
  }
  Results results() const { return {out.bytes(), lse.bytes(), d_qkv.bytes()}; }

  Attention forward(By by = By::cudnn) const {
    return {.q = q_of(qkv),
            .k = k_of(qkv),
            .v = v_of(qkv),
            .out = out.view(),
            .lse = lse.view(),
            .shape = shape(by)};
  }
  AttentionBackward backward(By by = By::cudnn) const {
    return {.q = q_of(qkv),
            .k = k_of(qkv),
            .v = v_of(qkv),
            .out = out.view(),
            .lse = lse.view(),
            .d_out = d_out.view(),
            .d_q = q_of(d_qkv),
            .d_k = k_of(d_qkv),
            .d_v = v_of(d_qkv),
            .shape = shape(by)};
  }

  Sizes s;
  DeviceTensor qkv{DType::bf16, {s.samples, s.tokens, s.all_columns()}},
      d_qkv{DType::bf16, {s.samples, s.tokens, s.all_columns()}},
      out{DType::bf16, {s.samples, s.tokens, s.columns()}},
      d_out{DType::bf16, {s.samples, s.tokens, s.columns()}},
      lse{DType::f32, {s.samples, s.heads, s.tokens}};

 private:
  /// cuDNN is not asked for windows; one that is wider than the sequence hides nothing.
  AttentionShape shape(By by) const {
    return {.heads = s.heads,
            .kv_heads = s.kv_heads,
            .head_dim = s.dim,
            .scale = 1 / std::sqrt(static_cast<float>(s.dim)),
            .window = by == By::cudnn ? 0 : s.tokens + 1};
  }
  View q_of(const DeviceTensor& x) const { return x.view().col_range(0, s.columns()); }
  View k_of(const DeviceTensor& x) const {
    return x.view().col_range(s.columns(), s.kv_heads * s.dim);
  }
  View v_of(const DeviceTensor& x) const {
    return x.view().col_range(s.columns() + s.kv_heads * s.dim, s.kv_heads * s.dim);
  }
};

/// A rank that has computed a problem of these numbers by cuDNN.
struct Computed {
  Computed(const Sizes& sizes, unsigned seed) : problem(sizes) {
    problem.write(seed), problem.forget();
    problem.run(gpu);
  }

  GpuRank gpu;
  Problem problem;
};

/// That cuDNN was asked for `shapes`, and took them all: else the own kernels are compared with
/// themselves.
void expect_taken(GpuRank& gpu, std::size_t shapes) {
  const auto choices = gpu.libraries().sdpa.choices();
  EXPECT_EQ(choices.size(), shapes);
  for (const auto& [shape, refusal] : choices) EXPECT_EQ(refusal, "") << "cuDNN refuses " << shape;
}

void expect_same_bits(const Results& got, const Results& want, const std::string& what) {
  EXPECT_TRUE(got.out == want.out) << what << ": out";
  EXPECT_TRUE(got.lse == want.lse) << what << ": lse";
  EXPECT_TRUE(got.d_qkv == want.d_qkv) << what << ": gradients";
}

// A step is recorded once and launched with other numbers at the same addresses, over what the
// launch before has left in the workspace.
TEST(CudnnAttention, AGraphsSecondLaunchHasTheBitsOfACall) {
  for (const Sizes& s : kSizes) {
    SCOPED_TRACE(name_of(s));
    Computed computed(s, 2);
    GpuRank& gpu = computed.gpu;
    Problem& problem = computed.problem;
    const Results want = problem.results();
    expect_taken(gpu, 2);
    const auto graph = gpu.record([&] { problem.run(gpu); });
    problem.write(1), problem.forget();
    gpu.launch(graph);
    EXPECT_FALSE(problem.results().out == want.out) << "the graph has not read its operands";
    problem.write(2), problem.forget();
    gpu.launch(graph);
    expect_same_bits(problem.results(), want, "the second launch");
  }
}

/// Norms of (tokens, columns) of a tensor of rows of `width`, and of their difference from another.
struct Apart {
  double difference = 0, norm = 0;
};
Apart apart(const Floats& got, const Floats& want, std::int64_t row, std::int64_t rows,
            std::int64_t column, std::int64_t columns, std::int64_t width) {
  Apart sum;
  for (std::int64_t r = row; r < row + rows; ++r) {
    for (std::int64_t c = column; c < column + columns; ++c) {
      const auto i = static_cast<std::size_t>(r * width + c);
      sum.difference += std::pow(static_cast<double>(got[i]) - want[i], 2);
      sum.norm += std::pow(static_cast<double>(want[i]), 2);
    }
  }
  return {std::sqrt(sum.difference), std::sqrt(sum.norm)};
}

// On either way a number goes through at most four roundings to bf16, of probabilities, of
// gradients of scores or of each head, of `out`, and as it is written. Each is off by up to 2^-8 of
// the number, evenly, so by 2^-8 / sqrt(3) in the mean of squares, and their signs are independent:
// the norms of two ways part by sqrt(8 / 3) 2^-8. The f32 sums add 2^-10. Four times that is
// allowed, 2^-5; a tile of keys left out or seen twice among 4096 makes sqrt(128 / 4096) > 2^-3.
// (Two such ways in PyTorch, of tokens and heads as here, part by a tenth of what is allowed.)
constexpr double kPart = 0x1p-5;

/// Of each head, 128 tokens at a time: a kernel's tile.
void expect_near(const Floats& got, const Floats& want, const Sizes& s, std::int64_t width,
                 const std::string& what) {
  constexpr std::int64_t kTile = 128;
  for (std::int64_t row = 0; row < s.samples * s.tokens; row += kTile) {
    for (std::int64_t column = 0; column < width; column += s.dim) {
      const Apart a = apart(got, want, row, kTile, column, s.dim, width);
      note_error(a.difference / (kPart * a.norm));
      ASSERT_LE(a.difference, kPart * a.norm)
          << what << ", rows from " << row << ", columns from " << column;
      ASSERT_GT(a.norm, 0) << what;
    }
  }
}

/// The largest norm of a head of queries or keys.
double largest_norm(const Floats& qkv, const Sizes& s) {
  double largest = 0;
  for (std::int64_t row = 0; row < s.samples * s.tokens; ++row) {
    for (std::int64_t column = 0; column < (s.heads + s.kv_heads) * s.dim; column += s.dim)
      largest = std::max(largest, apart(qkv, qkv, row, 1, column, s.dim, s.all_columns()).norm);
  }
  return largest;
}

/// The bound of tests/unit/kernels/attention_reference.hpp, on both ways: (D + 4) u of a score's
/// sum of magnitudes, which is at most a product of norms, and sums over all keys.
double lse_bound(double norm, const Sizes& s, double lse) {
  const double u = 0x1p-24, keys = static_cast<double>(s.tokens),
               score = static_cast<double>(s.dim + 4) * u * norm * norm /
                       std::sqrt(static_cast<double>(s.dim)),
               relative = 2 * (2 * score + (keys + 8 + keys / 16) * u);
  return 2 * (relative + 4 * u * std::abs(lse));
}

TEST(CudnnAttention, AgreesWithTheOwnKernels) {
  for (const Sizes& s : kSizes) {
    SCOPED_TRACE(name_of(s));
    Computed computed(s, 3);
    GpuRank& gpu = computed.gpu;
    Problem& problem = computed.problem;
    const Floats out = problem.out.numbers(), lse = problem.lse.numbers(),
                 d_qkv = problem.d_qkv.numbers();
    problem.forget();
    problem.run(gpu, By::own_kernels);
    expect_taken(gpu, 2);
    const Floats want_lse = problem.lse.numbers();
    const double norm = largest_norm(problem.qkv.numbers(), s);
    for (std::size_t i = 0; i < lse.size(); ++i)
      ASSERT_NEAR(lse[i], want_lse[i], lse_bound(norm, s, want_lse[i])) << "lse " << i;
    expect_near(out, problem.out.numbers(), s, s.columns(), "out");
    expect_near(d_qkv, problem.d_qkv.numbers(), s, s.all_columns(), "gradients");
  }
}

/// The backward of a call's samples first, .., of which it has `count`.
AttentionBackward of_samples(const AttentionBackward& all, std::int64_t first, std::int64_t count) {
  AttentionBackward part = all;
  const std::int64_t tokens = all.q.extent(1);
  for (View* v :
       {&part.q, &part.k, &part.v, &part.out, &part.d_out, &part.d_q, &part.d_k, &part.d_v}) {
    v->data += first * tokens * v->ld * size_of(v->type);
    v->shape[0] = count;
  }
  part.lse = View(all.lse.data + first * all.shape.heads * tokens * size_of(DType::f32), DType::f32,
                  {count, all.shape.heads, tokens});
  return part;
}

// A piece has addresses of its own and the workspace of the one before. Pieces of one sample are
// the same shape for the library as a call of one; where a piece has several, heads are computed by
// themselves all the same.
TEST(CudnnAttention, PiecesHaveTheBitsOfSamplesOneAtATime) {
  for (const auto& [s, at_once] :
       {std::pair{Sizes{3, 4096, 8, 8, 64}, 1}, std::pair{Sizes{6, 2048, 8, 2, 128}, 3}}) {
    SCOPED_TRACE(name_of(s));
    Computed computed(s, 4);
    GpuRank& gpu = computed.gpu;
    Problem& problem = computed.problem;
    const AttentionBackward all = problem.backward();
    ASSERT_EQ(cuda::sdpa_plan(all, cuda::kAtOnce)->samples, at_once);
    expect_taken(gpu, 2);
    const std::vector<std::byte> together = problem.d_qkv.bytes();
    for (const std::int64_t samples : {std::int64_t{at_once}, std::int64_t{1}}) {
      problem.d_qkv.forget();
      for (std::int64_t first = 0; first < s.samples; first += samples)
        gpu.run(of_samples(all, first, samples));
      EXPECT_TRUE(problem.d_qkv.bytes() == together) << samples << " at a time";
    }
    expect_taken(gpu, at_once == 1 ? 2 : 3);
  }
}

}  // namespace
}  // namespace tessera::kernels::test
