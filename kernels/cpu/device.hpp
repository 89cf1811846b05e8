// The CPU back end: every operation on host memory, with one team of OpenMP threads.
#pragma once

#include <memory>

#include "kernels/api/device.hpp"
#include "kernels/cpu/isa.hpp"

namespace tessera::kernels {

struct CpuOptions {
  int threads = 1;  // of the team that every operation uses
  Isa isa = best_isa();
  /// Products of x and a weight of up to 32 rows, such as the next tokens of sequences that are
  /// generated, take the time of reading the weight once, where others pack it first; a row's bits
  /// are those that it has by itself. But for bf16 with AMX they are not those of the same row
  /// among more.
  bool few_rows = false;
};

/// One thread at a time may use the device; which one may change. The bits of a result do not
/// depend on the number of threads or on addresses.
/// Throws InternalError for arguments that break an operation's contract.
std::unique_ptr<Device> make_cpu_device(const CpuOptions& options);

}  // namespace tessera::kernels
