// Operations that are timed one after another on a back end, and the row that each of them gets.
#pragma once

#include <chrono>
#include <cmath>

#include "backend/bench.hpp"

namespace tessera::backend {

/// Seconds of one call of `f`, which queues work on the tier's device or does it.
template <typename F>
double best_seconds(memory::Tier& tier, const BenchOptions& options, F&& f) {
  const auto seconds_of = [&](int calls) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) f();
    tier.wait();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    return time.count() / calls;
  };
  f();  // compiles, touches memory
  tier.wait();
  int calls = 1;
  if (options.at_least > 0)
    calls = static_cast<int>(std::clamp(std::ceil(options.at_least / seconds_of(1)), 1.0, 1000.0));
  double best = seconds_of(calls);
  for (int i = 1; i < options.repeats; ++i) best = std::min(best, seconds_of(calls));
  return best;
}

/// A tensor's shape, for people.
inline std::string shape_text(const View& v) {
  std::string s;
  for (int i = 0; i < v.rank; ++i) s += fmt::format("{}{}", i == 0 ? "" : " x ", v.extent(i));
  return s;
}

/// Times operations and keeps their rows, in order.
class BenchRows {
 public:
  BenchRows(const Backend& backend, const BenchOptions& options, DType type = DType::f32)
      : device_(*backend.device), tier_(*backend.device_tier), options_(options), type_(type) {}

  /// A test of memory that has moved so many bytes, at `rate` bytes a second: the limit of what is
  /// no matrix work.
  void memory(std::string name, double bytes, double rate) {
    memory_ = rate * 1e-9;
    rows_.push_back({std::move(name), std::to_string(options_.elements), bytes / memory_ * 1e-6,
                     memory_, RateUnit::gbytes, 1});
  }

  /// What follows is in this type, as a share of its square product; e4m3: in bf16, but for the
  /// operands of products.
  void type(DType type) {
    square_ = 1;
    BenchRow& limit = square(type, options_.square);
    square_ = limit.rate, limit.share = 1;
  }

  BenchRow& square(DType type, std::int64_t n) {
    operands_ = type == DType::e4m3 ? kernels::Operands::fp8 : kernels::Operands::stored;
    type_ = operands_ == kernels::Operands::fp8 ? DType::bf16 : type;
    BenchMemory memory(tier_);
    return row(kernels::Linear{.x = memory.floats(type_, {n, n}),
                               .weight = memory.floats(type_, {n, n}),
                               .y = memory.floats(type_, {n, n})},
               fmt::format("{0} x {0} x {0}", n));
  }

  /// Times an operation, which is given scratch.
  template <typename Operation>
  BenchRow& row(Operation call, std::string shape) {
    BenchMemory memory(tier_);
    if constexpr (requires { call.operands; }) call.operands = operands_;
    call.scratch = memory.zeros(DType::u8, {device_.scratch_bytes(call)});
    const kernels::KernelCall any = call;
    const double seconds = best_seconds(tier_, options_, [&] { device_.run(any); });
    const double flop = kernels::flop_of(any);
    call.scratch = View();
    const double work = flop > 0 ? flop : kernels::bytes_of(call);
    const double rate = work / seconds * 1e-9;
    const auto type = operands_ == kernels::Operands::fp8 ? "fp8" : to_string(type_);
    rows_.push_back({fmt::format("{} {}", kernels::name_of_args(call), type), std::move(shape),
                     seconds * 1e3, rate, flop > 0 ? RateUnit::gflops : RateUnit::gbytes,
                     rate / (flop > 0 ? square_ : memory_)});
    return rows_.back();
  }

  /// Of several operations that take so long together; `rate` in GB/s.
  void add(std::string name, std::string shape, double seconds, double rate) {
    rows_.push_back(
        {std::move(name), std::move(shape), seconds * 1e3, rate, RateUnit::gbytes, rate / memory_});
  }

  std::vector<BenchRow> take() { return std::move(rows_); }

  kernels::Device& device() const { return device_; }
  memory::Tier& tier() const { return tier_; }
  const BenchOptions& options() const { return options_; }
  DType type() const { return type_; }
  kernels::Operands operands() const { return operands_; }  // of products

 private:
  kernels::Device& device_;
  memory::Tier& tier_;
  BenchOptions options_;
  DType type_;
  kernels::Operands operands_ = kernels::Operands::stored;
  double memory_ = 1, square_ = 1;  // limits: 1 until they are measured
  std::vector<BenchRow> rows_;
};

/// Operations that are no matrix work, one by one.
void bench_others(BenchRows& rows);

/// What a rank computes for sums in blocks, of each format.
void bench_sums_in_blocks(BenchRows& rows);

}  // namespace tessera::backend
