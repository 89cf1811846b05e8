#include "backend/cuda/tune_products.hpp"

#include <algorithm>
#include <iterator>
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
    AlgorithmTable table{.machine = matmul.machine(), .chosen = {}, .apart = {}};
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
std::string choose(const Products& products, memory::Tier& tier, std::span<const GemmKey> all,
                   const Tuning& tuning) {
  Matmul& matmul = products.matmul;
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
  matmul.choose(missing, tuning.timed ? AlgorithmChoice::timed : AlgorithmChoice::first, memory,
                products.own);
  const std::string text = to_text(matmul.table());
  if (tuning.timed) io::write_text(tuning.file, text);
  return text;
}

/// What is to be computed in parts, the same on all ranks.
struct InParts {
  std::vector<GemmKey> refused, faster;
};

/// After all ranks have adopted what rank 0 has chosen for `keys`, this rank's.
InParts adopt_choice(const Products& products, std::span<const GemmKey> keys, memory::Tier& tier,
                     const comm::Control& control, const Tuning& tuning) {
  Matmul& matmul = products.matmul;
  const auto all = of_all_ranks(matmul, keys, control);
  std::string chosen;
  control.together([&] {
    if (control.rank() == 0) chosen = choose(products, tier, all, tuning);
  });
  chosen = control.broadcast(chosen);
  std::vector<GemmKey> refused;
  InParts found;
  control.together([&] {
    const auto table = parse_algorithms(chosen, "rank 0's choice", matmul.machine());
    TESSERA_CHECK(table, "rank 0 has another GPU or library");
    refused = matmul.adopt(*table, keys);
    std::ranges::copy_if(all, std::back_inserter(found.faster),
                         [&](const GemmKey& key) { return table->apart.contains(key); });
  });
  found.refused = of_all_ranks(matmul, refused, control);
  return found;
}

/// Says what is left out of these products, and why.
void say(std::span<const GemmKey> keys, std::string_view why, const Tuning& tuning) {
  const auto activated = std::ranges::count_if(
      keys, [](const GemmKey& key) { return key.epilogue != kernels::cuda::Epilogue::none; });
  const auto line = [&](std::int64_t count, const char* what) {
    if (count != 0) tuning.say(fmt::format(fmt::runtime(why), what, count));
  };
  line(activated, "gelu");
  line(std::ssize(keys) - activated, "the bias");
}

}  // namespace

void tune_products(const Products& products, std::span<const kernels::KernelCall> calls,
                   memory::Tier& tier, const comm::Control& control, const Tuning& tuning) {
  Matmul& matmul = products.matmul;
  while (true) {
    const auto keys = gemm_keys(calls, products.rules, matmul.apart());
    const InParts found = adopt_choice(products, keys, tier, control, tuning);
    if (found.refused.empty() && found.faster.empty()) return;
    control.together([&] { matmul.refuse(found.refused); });
    if (control.rank() != 0) continue;
    say(found.refused, "cuBLASLt refuses {} within {} matrix products: own kernels do it", tuning);
    say(found.faster, "own kernels do {0} behind {1} matrix products, which is faster", tuning);
  }
}

}  // namespace tessera::backend
