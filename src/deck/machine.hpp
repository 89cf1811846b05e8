// A machine file: how fast a cluster is, for those who reckon with it where it is not at hand. Its
// keys and units are in slurm/machines/README.md.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.hpp"
#include "deck/deck.hpp"

namespace tessera::deck {

/// How collectives go: every rank to every other of its group, as over MPI here; or in rings, one
/// for each rank of a node, which share its links to other nodes, as NCCL's.
enum class Collectives : std::uint8_t { direct, ring };

/// Whether a product of 16-bit types applies the gelu that it brings along as it is written, as on
/// GPUs, or an operation of its own does behind it.
enum class MachineActivations : std::uint8_t { apart, in_products };

enum class AttentionPass : std::uint8_t { forward, backward };

/// A message takes latency + bytes / rate seconds.
struct Link {
  double latency = 0;  // s
  double rate = 0;     // bytes/s of one rank, all ranks of its node sending
};

/// Rates are those of one rank with all ranks of its node at work, in flop/s and bytes/s.
struct Machine {
  std::string name;  // the file's, without directory and extension
  std::string file;
  std::int64_t ranks_per_node = 0;
  std::int64_t threads = 1;
  Bytes memory;                          // of a rank's device; 0: not given
  double memory_rate = 0;                // of a STREAM triad
  double kernel_start = 0;               // s that an operation takes beyond its work
  std::vector<std::int64_t> gemm_sizes;  // ascending
  /// At each size; of e4m3 for products of fp8 operands, which it takes to convert included.
  std::map<DType, std::vector<double>> gemm;
  double fp8_conversion = 0;                  // bytes/s at which operands become fp8; 0: as memory
  std::vector<double> gemm_tf32;              // of f32 products whose operands are rounded to TF32
  std::vector<std::int64_t> attention_heads;  // columns of a head, ascending
  /// At each width of heads, or one for all; backward where it is given, else as forward.
  std::map<DType, std::vector<double>> attention, attention_backward;
  std::map<DType, std::map<std::string, double>> kernel;  // bytes/s of operations, by name
  std::map<DType, double> peak;                           // by the data sheet, for MFU
  double peak_tf32 = 0;                                   // 0: not given
  Collectives collectives = Collectives::direct;
  MachineActivations activations = MachineActivations::apart;
  std::optional<Link> intra, inter;      // within a node, between nodes
  std::optional<Link> host;              // between a rank's device and its host's memory
  double host_memory_rate = 0;           // of a node's host, of a STREAM triad; 0: not given
  double disk_write = 0, disk_read = 0;  // of a node; 0: not given

  /// flop/s of a matrix product of `flop`: that of the cube with as much work, linear between the
  /// sizes in their logarithm, constant beyond them. Throws DeckError for a type without rates.
  double gemm_rate(DType type, double flop) const;
  /// Of all sizes.
  double best_gemm_rate(DType type) const;
  /// flop/s of attention: where the file does not say, that of products as small as a head.
  double attention_rate(DType type, std::int64_t head_dim, AttentionPass pass) const;
  /// bytes/s of another operation: where the file does not say, of memory.
  double kernel_rate(DType type, const std::string& operation) const;
  /// This machine with `precision.matmul`: TF32 gives products of f32, and MFU, rates of their own;
  /// attention in f32 is computed without it, at attention.f32, or where that is not given at the
  /// same rate as products. Throws DeckError where the file does not have them.
  Machine multiplying(Matmul matmul) const;

 private:
  /// Throws as gemm_rate does.
  const std::vector<double>& gemm_rates(DType type) const;
};

/// Throws DeckError that names file and line of everything that is wrong.
Machine load_machine(const std::string& path);
Machine parse_machine(std::string_view text, const std::string& path);
/// A machine as a machine file, numbers with four digits.
std::string to_text(const Machine& machine);

/// The key of a type's rates in [gemm].
std::string_view gemm_word(DType type);

}  // namespace tessera::deck

template <>
struct tessera::EnumWords<tessera::deck::Collectives> {
  using C = tessera::deck::Collectives;
  static constexpr std::array table = {std::pair{C::direct, "direct"}, std::pair{C::ring, "ring"}};
};
template <>
struct tessera::EnumWords<tessera::deck::MachineActivations> {
  using A = tessera::deck::MachineActivations;
  static constexpr std::array table = {std::pair{A::apart, "apart"},
                                       std::pair{A::in_products, "in_products"}};
};
