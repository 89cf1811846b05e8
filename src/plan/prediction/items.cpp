#include "plan/prediction/items.hpp"

#include <algorithm>
#include <map>
#include <tuple>

#include "plan/prediction/kernel_cost.hpp"

namespace tessera::plan {
namespace {

using namespace kernels;  // operations

/// Rows and columns of a product's result, and along how many elements it adds up.
std::string extents(std::int64_t m, std::int64_t n, std::int64_t k) {
  return fmt::format(" {} x {} x {}", m, n, k);
}
std::string extents(const Linear& a) { return extents(a.y.rows(), a.y.cols(), a.x.cols()); }
std::string extents(const LinearBackwardInput& a) {
  return extents(a.d_x.rows(), a.d_x.cols(), a.d_y.cols());
}
std::string extents(const LinearBackwardWeight& a) {
  return extents(a.d_weight.rows(), a.d_weight.cols(), a.d_y.rows());
}

template <typename Args>
std::string shape_of(const Args& args) {
  std::string type(to_string(element_type(args)));
  if constexpr (requires { extents(args); }) {
    if (args.operands == Operands::fp8) type = "fp8";
    type += extents(args);
  } else if constexpr (requires { args.shape.head_dim; }) {
    type += fmt::format(" {} x {}, {} of {}", args.q.extent(0), args.q.extent(1), args.shape.heads,
                        args.shape.head_dim);
  }
  if constexpr (requires { args.preactivation; }) type += args.preactivation ? " gelu" : "";
  return type;
}

/// What an op does, without how often and how long.
Item item_of(const Plan& plan, const Op& op, const deck::Machine& machine) {
  Item item{.name = std::string(call_name(op.call)), .beside = op.stream != Stream::compute};
  if (op.kind != OpKind::kernel && !std::holds_alternative<KernelCall>(op.call))
    item.shape = std::exchange(item.name, enum_word(op.kind));
  if (const auto* kernel = std::get_if<KernelCall>(&op.call)) {
    item.shape = std::visit([](const auto& args) { return shape_of(args); }, *kernel);
    item.bytes = bytes_of(*kernel), item.flop = flop_of(*kernel);
    if (op.location == Location::host)
      item.shape += " on the host";
    else
      item.at_best = kernel_cost(*kernel, machine).at_best;
  } else if (const auto* copy = std::get_if<Copy>(&op.call)) {
    item.bytes = copy->share * static_cast<double>(copy->from.span_bytes());
  } else if (std::holds_alternative<comm::CollectiveCall>(op.call)) {
    const comm::WireBytes sent = wire_bytes_of(plan, op);
    item.bytes = static_cast<double>(sent.intra + sent.inter);
  }
  return item;
}

/// At most seven characters; nothing for 0.
std::string number(double x) {
  if (x == 0) return "";
  return x >= 1000 ? fmt::format("{:.0f}", x) : x < 0.005 ? "0.00" : fmt::format("{:.3g}", x);
}

/// "597 T/s" of flop, "2377 G/s" of bytes.
std::string rate_text(const Item& i) {
  const double work = i.flop > 0 ? i.flop * 1e-12 : i.bytes * 1e-9;
  if (i.seconds == 0 || work == 0) return "";
  return fmt::format("{:.0f} {}/s", work / i.seconds, i.flop > 0 ? "T" : "G");
}

std::string row_text(const Item& i, double step) {
  const auto reached = i.reached();
  return fmt::format("{:<20}{:<29}{:>6.6g}{:>7}{:>8}{:>9.2f}{:>6.1f}%{:>9}{:>5}\n", i.name, i.shape,
                     i.calls, number(i.bytes * 1e-9), number(i.flop * 1e-12), i.seconds * 1e3,
                     100 * i.seconds / step, rate_text(i),
                     reached ? fmt::format("{:.0f}%", 100 * *reached) : "");
}

}  // namespace

std::optional<double> Item::reached() const {
  if (at_best == 0 || seconds == 0) return std::nullopt;
  return at_best / seconds;
}

std::vector<Item> items_of(const Prediction& prediction, const deck::Machine& machine) {
  std::map<std::tuple<bool, std::string, std::string>, Item> found;
  const auto ranks = static_cast<double>(prediction.plans.size());
  for (std::size_t r = 0; r < prediction.plans.size(); ++r) {
    const Plan& plan = prediction.plans[r];
    const auto& times = prediction.simulation.ranks[r].ops;
    for (std::size_t i = 0; i < plan.ops.size(); ++i) {
      if (std::holds_alternative<LoadBatch>(plan.ops[i].call)) continue;
      const Item one = item_of(plan, plan.ops[i], machine);
      Item& all = found.try_emplace({one.beside, one.name, one.shape}, one).first->second;
      if (all.calls == 0) all.bytes = all.flop = all.at_best = 0;
      all.calls += 1 / ranks, all.bytes += one.bytes / ranks, all.flop += one.flop / ranks;
      all.at_best += one.at_best / ranks, all.seconds += (times[i].end - times[i].begin) / ranks;
    }
  }
  std::vector<Item> items;
  for (auto& [key, item] : found) items.push_back(std::move(item));
  std::ranges::stable_sort(items, [](const Item& a, const Item& b) {
    return std::tuple(a.beside, -a.seconds) < std::tuple(b.beside, -b.seconds);
  });
  return items;
}

std::string to_text(std::span<const Item> items, double step) {
  std::string text;
  for (const bool beside : {false, true}) {
    Item all{.name = "in all"};
    std::string rows;
    for (const Item& i : items) {
      if (i.beside != beside) continue;
      rows += row_text(i, step);
      all.calls += i.calls, all.bytes += i.bytes, all.flop += i.flop, all.seconds += i.seconds;
    }
    if (rows.empty()) continue;
    text += fmt::format("{:<49}{:>6}{:>7}{:>8}{:>9}{:>7}{:>9}{:>5}\n",
                        beside ? "on other streams, beside it" : "on the compute stream", "calls",
                        "GB", "Tflop", "ms", "step", "rate", "of");
    text += rows + row_text(all, step);
  }
  return text +
         "rates: Tflop/s where there is matrix work, else GB/s; \"of\" is their share of the "
         "machine's best\nrate of products of the type, or of its memory's\n";
}

}  // namespace tessera::plan
