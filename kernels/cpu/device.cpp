#include "kernels/cpu/device.hpp"

#include "kernels/cpu/operations.hpp"

namespace tessera::kernels {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuOptions& options)
      : matmul_(options.threads, hot_kernels(options.isa)),
        context_{options.threads, hot_kernels(options.isa), matmul_, options.few_rows} {}

  std::int64_t scratch_bytes(const KernelCall& call) const override {
    return std::visit([&](const auto& args) { return cpu::scratch_bytes(args, context_); }, call);
  }

  void run(const KernelCall& call) override {
    check_scratch(call, scratch_bytes(call));
    std::visit([&](const auto& args) { check(args), cpu::run(args, context_); }, call);
  }

  bool multiplies_codes(std::int64_t rows) const override {
    return context_.few_rows && rows <= kMostFewRows;
  }

 private:
  cpu::Matmul matmul_;
  cpu::Context context_;
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuOptions& options) {
  TESSERA_CHECK(options.threads >= 1, "{} threads", options.threads);
  return std::make_unique<CpuDevice>(options);
}

}  // namespace tessera::kernels
