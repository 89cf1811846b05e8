#include "backend/cuda/tune_products.hpp"

#include <algorithm>
#include <optional>
#include <set>

#include "io/file.hpp"
#include "memory/arena.hpp"

namespace tessera::backend {
namespace {

using kernels::cuda::AlgorithmTable;
using kernels::cuda::GemmKey;
using kernels::cuda::Matmul;

constexpr std::int64_t kMostText = std::int64_t{64} << 20;  // of a table

/// The keys of all ranks' products, on every rank.
std::vector<GemmKey> of_all_ranks(const Matmul& matmul, std::span<const GemmKey> own,
                                  const comm::Control& control) {
  // Keys travel as tables without algorithms.
  const auto text_of = [&](const auto& keys) {
    AlgorithmTable table{.machine = matmul.machine(), .chosen = {}};
    for (const GemmKey& key : keys) table.chosen[key] = {};
    return to_text(table);
  };
  const auto parse = [&](const std::string& text, std::set<GemmKey>& into) {
    const auto table = parse_algorithms(text, "a rank's products", matmul.machine());
    TESSERA_CHECK(table, "ranks with other GPUs or libraries");
    for (const auto& [key, none] : table->chosen) into.insert(key);
  };
  const auto texts = control.gather(text_of(own));
  std::string merged;
  control.together([&] {
    std::set<GemmKey> all;
    for (const std::string& text : texts) parse(text, all);
    merged = text_of(all);
  });
  merged = control.broadcast(merged);
  std::set<GemmKey> all;
  control.together([&] { parse(merged, all); });
  return {all.begin(), all.end()};
}

/// The choices for all keys that the library does not refuse: those of the file, and new ones for
/// the others.
std::string choose(Matmul& matmul, memory::Tier& tier, std::span<const GemmKey> all,
                   const Tuning& tuning) {
  std::vector<GemmKey> missing(all.begin(), all.end());
  if (std::filesystem::exists(tuning.file)) {
    const auto kept = parse_algorithms(io::read_text(tuning.file, kMostText), tuning.file.string(),
                                       matmul.machine());
    if (kept) missing = matmul.adopt(*kept, missing);
  }
  std::erase_if(missing, [&](const GemmKey& key) { return !matmul.takes(key); });
  if (missing.empty()) return to_text(matmul.table());
  using kernels::cuda::AlgorithmChoice;
  View memory = tuning.memory;
  std::optional<memory::Arena> own;
  if (const auto needed = Matmul::timing_bytes(missing);
      tuning.timed && memory.span_bytes() < needed) {
    own.emplace("timing of products", tier, needed);
    memory = View(own->base(), DType::u8, {needed});
  }
  if (tuning.timed) {
    tuning.say(fmt::format("{} of {} matrix products are timed now, once for all starts of the run",
                           missing.size(), all.size()));
  }
  matmul.choose(missing, tuning.timed ? AlgorithmChoice::timed : AlgorithmChoice::first, memory);
  const std::string text = to_text(matmul.table());
  if (tuning.timed) io::write_text(tuning.file, text);
  return text;
}

/// The keys that this rank's library refuses, after all ranks have adopted what rank 0 has chosen.
std::vector<GemmKey> adopt_choice(Matmul& matmul, std::span<const GemmKey> keys, memory::Tier& tier,
                                  const comm::Control& control, const Tuning& tuning) {
  const auto all = of_all_ranks(matmul, keys, control);
  std::string chosen;
  control.together([&] {
    if (control.rank() == 0) chosen = choose(matmul, tier, all, tuning);
  });
  chosen = control.broadcast(chosen);
  std::vector<GemmKey> refused;
  control.together([&] {
    const auto table = parse_algorithms(chosen, "rank 0's choice", matmul.machine());
    TESSERA_CHECK(table, "rank 0 has another GPU or library");
    refused = matmul.adopt(*table, keys);
  });
  return refused;
}

}  // namespace

void tune_products(Matmul& matmul, std::span<const kernels::KernelCall> calls,
                   const kernels::cuda::ProductRules& rules, memory::Tier& tier,
                   const comm::Control& control, const Tuning& tuning) {
  while (true) {
    const auto keys = gemm_keys(calls, rules, matmul.refused());
    const auto refused =
        of_all_ranks(matmul, adopt_choice(matmul, keys, tier, control, tuning), control);
    if (refused.empty()) return;
    control.together([&] { matmul.refuse(refused); });
    if (control.rank() != 0) continue;
    const auto activated = std::ranges::count_if(
        refused, [](const GemmKey& key) { return key.epilogue != kernels::cuda::Epilogue::none; });
    const auto say = [&](std::int64_t count, const char* what) {
      if (count == 0) return;
      tuning.say(fmt::format("cuBLASLt refuses {} within {} matrix products: own kernels do it",
                             what, count));
    };
    say(activated, "gelu");
    say(std::ssize(refused) - activated, "the bias");
  }
}

}  // namespace tessera::backend
