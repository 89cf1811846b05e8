// The exchanges of ZeRO++ as plans have them, on gradients and parameters from files, for
// tests/run/exchange_test.py:
//
//   exchange_ranks DIRECTORY NODES int8|int4|sign BLOCK ELEMENTS MICRO_BATCHES SEED
//
// NODES is "0,0,1,1", each rank's node; a shard has ELEMENTS. Of each micro-batch k rank r reads
// gradient.r.k, f32 of all shards, and adds them up in sum.r, f32 of its own. With error feedback,
// if there is error.r (bf16, of all shards), it writes lost.r; and if there is node_error.r, of the
// shards that it adds up for its node, node_lost.r. SEED 0 rounds to the nearest code,
// else at random by sample number 1000 r + k. weights.r, f32 of its shard, become gathered.r.
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "comm/mpi/mpi_group.hpp"
#include "comm/mpi/session.hpp"
#include "kernels/cpu/device.hpp"
#include "plan/passes/blocks.hpp"

namespace tessera {
namespace {

using Bytes = std::vector<char>;

class Exchange {
 public:
  Exchange(const comm::MpiSession& session, char** arguments)
      : rank_(session.rank()),
        directory_(arguments[1]),
        format_{.type = enum_of<kernels::BlockType>(arguments[3]), .block = number(arguments[4])},
        n_(number(arguments[5])),
        micro_batches_(number(arguments[6])),
        seed_(static_cast<std::uint64_t>(number(arguments[7]))) {
    for (const char* p = arguments[2]; *p != '\0'; p += *p == ',' ? 1 : 0) {
      node_of_.push_back(0);
      p = std::from_chars(p, p + std::string_view(p).size(), node_of_.back()).ptr;
    }
    TESSERA_CHECK(std::ssize(node_of_) == session.size(), "nodes of {} ranks", node_of_.size());
    std::vector<int> members;
    for (int r = 0; r < session.size(); ++r) members.push_back(r);
    group_ = comm::make_mpi_group(members, comm::group_shape(members, node_of_, session.rank()));
  }

  void gradients() {
    const std::int64_t all = size() * n_;
    Bytes sum(static_cast<std::size_t>(4 * n_)), lost(static_cast<std::size_t>(2 * all)),
        scalars(4 * kernels::kScalars), sample(8);
    const View scales = view(scalars, DType::f32, kernels::kScalars);
    scales.as<float>()[static_cast<int>(kernels::StepScalar::unscale)] = 1;
    plan::BlockRounding rounding{.rank = rank_};
    Bytes error;
    if (std::filesystem::exists(file("error"))) {
      error = read("error");
      rounding.error = view(error, DType::bf16, all);
      rounding.lost = view(lost, DType::bf16, all);
      rounding.scalars = scales;
    }
    Bytes node_error, node_lost;
    if (std::filesystem::exists(file("node_error"))) {
      node_error = read("node_error");
      node_lost.resize(node_error.size());
      const std::int64_t sums = std::ssize(node_error) / 2;
      rounding.node_error = view(node_error, DType::bf16, sums);
      rounding.node_lost = view(node_lost, DType::bf16, sums);
    }
    if (seed_ != 0) {
      rounding.chance = {.seed = seed_, .site = 5, .samples = view(sample, DType::i64, 1)};
    }
    const auto route = comm::route_of(node_of_, rank_);
    for (std::int64_t k = 0; k < micro_batches_; ++k) {
      *view(sample, DType::i64, 1).as<std::int64_t>() = 1000 * rank_ + k;
      Bytes gradient = read("gradient", k);
      for (const Range& chunk : chunks()) {
        std::vector<Bytes> bytes;
        for (const std::int64_t of_hop : plan::hop_staging(route, format_, chunk.count()))
          bytes.insert(bytes.end(), 2, Bytes(static_cast<std::size_t>(of_hop)));
        std::vector<plan::HopStaging> staging;
        for (std::size_t i = 0; i < bytes.size(); i += 2)
          staging.push_back({.leaving = view(bytes[i], DType::u8, std::ssize(bytes[i])),
                             .arriving = view(bytes[i + 1], DType::u8, std::ssize(bytes[i + 1]))});
        run(plan::reduce_in_blocks(
            {.full = view(gradient, DType::f32, all),
             .shard = view(sum, DType::f32, n_),
             .write = k == 0 ? kernels::Write::overwrite : kernels::Write::add},
            route, format_, chunk, staging, rounding));
      }
      rounding.error = rounding.node_error = {};  // what earlier micro-batches have lost is there
    }
    write("sum", sum);
    if (rounding.lost) write("lost", lost);
    if (rounding.node_lost) write("node_lost", node_lost);
  }

  void weights() {
    Bytes shard = read("weights"), whole(static_cast<std::size_t>(4 * size() * n_));
    for (const Range& chunk : chunks()) {
      Bytes codes(static_cast<std::size_t>(plan::block_staging(format_, size(), chunk.count())));
      const auto gather = plan::gather_in_blocks(
          {.shard = view(shard, DType::f32, n_), .full = view(whole, DType::f32, size() * n_)},
          rank_, format_, chunk, view(codes, DType::u8, std::ssize(codes)));
      run({{plan::Leg::pack, gather.quantize},
           {plan::Leg::within, comm::CollectiveCall{gather.codes}},
           {plan::Leg::unpack, gather.dequantize}});
    }
    write("gathered", whole);
  }

 private:
  static std::int64_t number(std::string_view text) {
    std::int64_t value = 0;
    std::from_chars(text.data(), text.data() + text.size(), value);
    return value;
  }
  template <typename Enum>
  static Enum enum_of(std::string_view word) {
    for (const auto& [value, name] : EnumWords<Enum>::table) {
      if (name == word) return value;
    }
    throw InternalError(fmt::format("no word: {}", word));
  }
  static View view(Bytes& bytes, DType type, std::int64_t elements) {
    return View(reinterpret_cast<std::byte*>(bytes.data()), type, {elements});
  }
  std::int64_t size() const { return std::ssize(node_of_); }
  /// Two or more.
  std::vector<Range> chunks() const { return plan::chunks_of(n_, DType::f32, format_, 2 * n_); }
  std::filesystem::path file(const std::string& name) const {
    return directory_ / fmt::format("{}.{}", name, rank_);
  }
  Bytes read(const std::string& name, std::int64_t k = -1) const {
    const std::string path = file(name).string() + (k < 0 ? "" : fmt::format(".{}", k));
    std::ifstream in(path, std::ios::binary);
    TESSERA_CHECK(in.good(), "no {}", path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& name, const Bytes& bytes) const {
    std::ofstream(file(name), std::ios::binary).write(bytes.data(), std::ssize(bytes));
  }
  void run(plan::Calls calls) {
    for (auto& [leg, call] : calls) {
      if (auto* kernel = std::get_if<kernels::KernelCall>(&call)) {
        const std::int64_t bytes = device_->scratch_bytes(*kernel);
        Bytes scratch(static_cast<std::size_t>(bytes));
        if (bytes > 0)
          std::visit([&](auto& args) { args.scratch = view(scratch, DType::u8, bytes); }, *kernel);
        device_->run(*kernel);
      } else if (const auto task = group_->start(std::get<comm::CollectiveCall>(call))) {
        while (task->advance() != streams::Progress::done) std::this_thread::yield();
      }
    }
  }

  std::int64_t rank_;
  std::filesystem::path directory_;
  kernels::BlockFormat format_;
  std::int64_t n_, micro_batches_;
  std::uint64_t seed_;
  std::vector<int> node_of_;
  std::unique_ptr<comm::Group> group_;
  std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device({});
};

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const tessera::comm::MpiSession session(&argc, &argv);
  tessera::Exchange exchange(session, argv);
  exchange.gradients();
  exchange.weights();
}
