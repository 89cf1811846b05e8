#include "deck/machine.hpp"

#include <cmath>
#include <filesystem>
#include <functional>

#include "core/regular_file.hpp"
#include "core/terminal.hpp"
#include "deck/codec.hpp"
#include "deck/names.hpp"
#include "deck/problems.hpp"
#include "deck/toml_text.hpp"

namespace tessera::deck {
namespace {

/// A key of the file: where its value goes, and what it must be.
struct Row {
  std::string name;
  bool required = false;
  std::string type;
  std::function<bool(Machine&, const Value&)> set;  // false: not of this type
};

// What a number of the file may be: reckoning with it neither overflows nor gives infinities.
bool possible(double x) { return x >= 1e-12 && x <= 1e18; }
bool possible(std::int64_t x) { return x >= 1 && x <= 1 << 24; }
bool possible(Bytes x) { return x.count > 0; }
template <typename T>
bool possible(const std::vector<T>& all) {
  return !all.empty() && std::ranges::all_of(all, [](const T& x) { return possible(x); });
}
std::string_view limits(double) { return "1e-12 to 1e18"; }
std::string_view limits(std::int64_t) { return "1 to 16777216"; }
std::string_view limits(Bytes) { return "above 0"; }
template <typename T>
std::string_view limits(const std::vector<T>&) {
  return limits(T{});
}
template <typename T>
std::string type_of() {
  return fmt::format("{}, {}", Codec<T>::type(), limits(T{}));
}

/// `member(machine)` is where the value goes.
template <typename Member>
Row row(std::string name, bool required, Member member) {
  using T = std::decay_t<decltype(member(std::declval<Machine&>()))>;
  return {std::move(name), required, type_of<T>(), [member](Machine& machine, const Value& value) {
            auto held = Codec<T>::read(value);
            if (!held || !possible(*held)) return false;
            member(machine) = *std::move(held);
            return true;
          }};
}

/// Of a list of rates, or of one rate for all.
template <typename Member>
Row rates_row(std::string name, Member member) {
  Row of_list = row(std::move(name), false, member);
  of_list.set = [member, list = of_list.set](Machine& machine, const Value& value) {
    const auto one = Codec<double>::read(value);
    if (!one || !possible(*one)) return list(machine, value);
    member(machine) = {*one};
    return true;
  };
  return of_list;
}

template <typename E>
Row word_row(std::string name, E Machine::*member) {
  return {std::move(name), false, Codec<E>::type(), [member](Machine& machine, const Value& value) {
            const auto word = Codec<E>::read(value);
            if (word) machine.*member = *word;
            return word.has_value();
          }};
}

Link& made(std::optional<Link>& link) { return link ? *link : link.emplace(); }

/// Rates in a type of numbers.
void add_rates(DType type, std::vector<Row>& r) {
  const auto key = [&](std::string_view table) {
    return fmt::format("{}.{}", table, to_string(type));
  };
  r.push_back(row(
      key("gemm"), false, [type](Machine & m) -> auto& { return m.gemm[type]; }));
  r.push_back(rates_row(
      key("attention"), [type](Machine & m) -> auto& { return m.attention[type]; }));
  r.push_back(rates_row(
      key("attention_backward"), [type](Machine & m) -> auto& {
        return m.attention_backward[type];
      }));
  r.push_back(row(
      key("peak"), false, [type](Machine & m) -> auto& { return m.peak[type]; }));
}

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> r{
        row(
            "ranks_per_node", true, [](Machine & m) -> auto& { return m.ranks_per_node; }),
        row(
            "threads", false, [](Machine & m) -> auto& { return m.threads; }),
        row(
            "memory", false, [](Machine & m) -> auto& { return m.memory; }),
        row(
            "memory_rate", true, [](Machine & m) -> auto& { return m.memory_rate; }),
        row(
            "kernel_start", false, [](Machine & m) -> auto& { return m.kernel_start; }),
        row(
            "gemm.n", true, [](Machine & m) -> auto& { return m.gemm_sizes; }),
        word_row("collectives", &Machine::collectives),
        word_row("activations", &Machine::activations),
        row(
            "link.intra.latency", false,
            [](Machine & m) -> auto& { return made(m.intra).latency; }),
        row(
            "link.intra.rate", false, [](Machine & m) -> auto& { return made(m.intra).rate; }),
        row(
            "link.inter.latency", false,
            [](Machine & m) -> auto& { return made(m.inter).latency; }),
        row(
            "link.inter.rate", false, [](Machine & m) -> auto& { return made(m.inter).rate; }),
        row(
            "link.host.latency", false, [](Machine & m) -> auto& { return made(m.host).latency; }),
        row(
            "link.host.rate", false, [](Machine & m) -> auto& { return made(m.host).rate; }),
        row(
            "host_memory_rate", false, [](Machine & m) -> auto& { return m.host_memory_rate; }),
        row(
            "disk.write", false, [](Machine & m) -> auto& { return m.disk_write; }),
        row(
            "disk.read", false, [](Machine & m) -> auto& { return m.disk_read; }),
    };
    r.push_back(row(
        "attention.head_dim", false, [](Machine & m) -> auto& { return m.attention_heads; }));
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) add_rates(type, r);
    r.push_back(row(
        "gemm.fp8", false, [](Machine & m) -> auto& { return m.gemm[DType::e4m3]; }));
    r.push_back(row(
        "fp8_conversion", false, [](Machine & m) -> auto& { return m.fp8_conversion; }));
    r.push_back(row(
        "gemm.tf32", false, [](Machine & m) -> auto& { return m.gemm_tf32; }));
    r.push_back(row(
        "peak.tf32", false, [](Machine & m) -> auto& { return m.peak_tf32; }));
    return r;
  }();
  return all;
}

/// Of the tables kernel.f32, kernel.bf16 and kernel.f16, whose keys are operations.
std::optional<DType> kernel_type(std::string_view prefix) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    if (prefix == fmt::format("kernel.{}.", to_string(type))) return type;
  }
  return std::nullopt;
}

void read_table(const Table& table, const std::string& prefix, Machine& machine, Problems& problems,
                std::vector<std::string>& given) {
  std::vector<std::string_view> names;
  for (const Row& r : rows()) names.push_back(r.name);
  for (const TableMember& member : table) {
    const std::string name = prefix + member.key;
    if (const Table* inner = member.value.as<Table>()) {
      read_table(*inner, name + ".", machine, problems, given);
      continue;
    }
    const auto at = std::ranges::find(rows(), name, &Row::name);
    if (const auto type = kernel_type(prefix)) {
      const auto rate = Codec<double>::read(member.value);
      if (rate && possible(*rate)) {
        machine.kernel[*type][member.key] = *rate;
      } else {
        problems.add(member.value.place, name,
                     fmt::format("{} = {} must be {}", name, value_excerpt(member.value),
                                 type_of<double>()));
      }
    } else if (at == rows().end()) {
      const auto near = nearest_name(name, names);
      problems.add(member.key_place, name,
                   fmt::format("unknown key {}{}", name,
                               near.empty() ? "" : fmt::format(" (did you mean {}?)", near)));
    } else if (at->set(machine, member.value)) {
      given.push_back(name);
    } else {
      problems.add(member.value.place, name,
                   fmt::format("{} = {} must be {}", name, value_excerpt(member.value), at->type));
    }
  }
}

/// Conditions over several keys.
void check(const Machine& m, const std::vector<std::string>& given, Problems& problems) {
  const SourceLocation whole{m.file, 0, 0};
  const auto has = [&](std::string_view name) {
    return std::ranges::find(given, name) != given.end() || problems.about(name);
  };
  for (const Row& r : rows()) {
    if (r.required && !has(r.name))
      problems.add(whole, r.name, fmt::format("{} is missing ({})", r.name, r.type));
  }
  for (const std::string link : {"link.intra", "link.inter", "link.host"}) {
    if (has(link + ".latency") != has(link + ".rate"))
      problems.add(whole, link, fmt::format("{} needs both latency and rate", link));
  }
  if (std::ranges::adjacent_find(m.gemm_sizes, std::greater_equal{}) != m.gemm_sizes.end())
    problems.add(whole, "gemm.n", "gemm.n must ascend");
  if (has("disk.write") != has("disk.read"))
    problems.add(whole, "disk", "disk needs both write and read");
  if (!has("gemm.f32") && !has("gemm.bf16") && !has("gemm.f16"))
    problems.add(whole, "gemm", "one of gemm.f32, gemm.bf16 and gemm.f16 is needed");
  const auto lengths = [&](std::string_view table, std::string_view word, std::size_t rates,
                           std::string_view key, std::size_t sizes) {
    if (rates == 0 || sizes == 0 || rates == sizes) return;
    problems.add(
        whole, table,
        fmt::format("{}.{} has {} rates for the {} sizes of {}", table, word, rates, sizes, key));
  };
  const std::size_t sizes = m.gemm_sizes.size();
  for (const auto& [type, rates] : m.gemm)
    lengths("gemm", gemm_word(type), rates.size(), "gemm.n", sizes);
  lengths("gemm", "tf32", m.gemm_tf32.size(), "gemm.n", sizes);
  if (std::ranges::adjacent_find(m.attention_heads, std::greater_equal{}) !=
      m.attention_heads.end())
    problems.add(whole, "attention", "attention.head_dim must ascend");
  const std::size_t widths = std::max<std::size_t>(m.attention_heads.size(), 1);
  for (const auto& [type, rates] : m.attention)
    lengths("attention", to_string(type), rates.size(), "attention.head_dim", widths);
  for (const auto& [type, rates] : m.attention_backward)
    lengths("attention_backward", to_string(type), rates.size(), "attention.head_dim", widths);
}

/// The rate at a size: linear between the given ones in their logarithm, constant beyond them.
double rate_at(double size, const std::vector<std::int64_t>& sizes,
               const std::vector<double>& rates) {
  if (rates.size() == 1) return rates.front();
  const auto above =
      std::ranges::find_if(sizes, [&](std::int64_t n) { return static_cast<double>(n) >= size; });
  if (above == sizes.begin()) return rates.front();
  if (above == sizes.end()) return rates.back();
  const auto i = static_cast<std::size_t>(above - sizes.begin());
  const auto low = static_cast<double>(sizes[i - 1]), high = static_cast<double>(*above);
  const double share = std::log(size / low) / std::log(high / low);
  return rates[i - 1] + share * (rates[i] - rates[i - 1]);
}

}  // namespace

std::string_view gemm_word(DType type) { return type == DType::e4m3 ? "fp8" : to_string(type); }

const std::vector<double>& Machine::gemm_rates(DType type) const {
  const auto it = gemm.find(type);
  if (it == gemm.end()) {
    throw DeckError(
        fmt::format("{}: gemm.{} is not given: measure it, or set precision.{} to "
                    "a type that has rates there",
                    file, gemm_word(type), type == DType::e4m3 ? "matmul" : "compute"));
  }
  return it->second;
}

double Machine::best_gemm_rate(DType type) const { return std::ranges::max(gemm_rates(type)); }

double Machine::gemm_rate(DType type, double flop) const {
  return rate_at(std::cbrt(flop / 2), gemm_sizes, gemm_rates(type));
}

double Machine::attention_rate(DType type, std::int64_t head_dim, AttentionPass pass) const {
  const auto d = static_cast<double>(head_dim);
  for (const auto* rates : {&attention_backward, &attention}) {
    if (rates == &attention_backward && pass == AttentionPass::forward) continue;
    if (const auto it = rates->find(type); it != rates->end())
      return rate_at(d, attention_heads, it->second);
  }
  return gemm_rate(type, 2 * d * d * d);
}

double Machine::kernel_rate(DType type, const std::string& operation) const {
  const auto rates = kernel.find(type);
  if (rates == kernel.end()) return memory_rate;
  const auto rate = rates->second.find(operation);
  return rate == rates->second.end() ? memory_rate : rate->second;
}

Machine Machine::multiplying(Matmul matmul) const {
  if (matmul != Matmul::tf32) return *this;
  if (gemm_tf32.empty()) {
    throw DeckError(fmt::format(
        "{}: gemm.tf32 is not given, which bench machine does not measure: give the rates that the "
        "GPU's maker tells, or set precision.matmul = \"same\"",
        file));
  }
  Machine with = *this;
  with.gemm[DType::f32] = gemm_tf32;
  with.peak.erase(DType::f32);
  if (peak_tf32 > 0) with.peak[DType::f32] = peak_tf32;
  return with;
}

Machine parse_machine(std::string_view text, const std::string& path) {
  Problems problems;
  Machine machine{
      .name = printable(std::filesystem::path(path).stem().string()), .file = path, .memory = {}};
  std::vector<std::string> given;
  const Table table = parse_toml(text, path, problems);
  read_table(table, "", machine, problems, given);
  problems.throw_if_any();
  check(machine, given, problems);
  problems.throw_if_any();
  return machine;
}

std::string to_text(const Machine& m) {
  std::string text;
  const auto number = [](double x) { return fmt::format("{:.4g}", x); };
  const auto line = [&](std::string_view key, const auto& value) {
    text += fmt::format("{} = {}\n", key, value);
  };
  const auto table = [&](std::string_view name) { text += fmt::format("\n[{}]\n", name); };
  line("ranks_per_node", m.ranks_per_node);
  line("threads", m.threads);
  if (m.memory.count > 0) line("memory", m.memory.count);
  line("memory_rate", number(m.memory_rate));
  if (m.host_memory_rate > 0) line("host_memory_rate", number(m.host_memory_rate));
  if (m.kernel_start > 0) line("kernel_start", number(m.kernel_start));
  if (m.fp8_conversion > 0) line("fp8_conversion", number(m.fp8_conversion));
  const auto word = [&](std::string_view key, auto value, auto usual) {
    if (value != usual) line(key, fmt::format("\"{}\"", enum_word(value)));
  };
  word("collectives", m.collectives, Machine{}.collectives);
  word("activations", m.activations, Machine{}.activations);
  table("gemm");
  line("n", fmt::format("[{}]", fmt::join(m.gemm_sizes, ", ")));
  const auto list = [&](std::string_view key, const std::vector<double>& rates) {
    std::vector<std::string> numbers;
    for (const double rate : rates) numbers.push_back(number(rate));
    line(key, fmt::format("[{}]", fmt::join(numbers, ", ")));
  };
  for (const auto& [type, rates] : m.gemm) list(gemm_word(type), rates);
  if (!m.gemm_tf32.empty()) list("tf32", m.gemm_tf32);
  if (!m.attention.empty() || !m.attention_heads.empty()) table("attention");
  if (!m.attention_heads.empty())
    line("head_dim", fmt::format("[{}]", fmt::join(m.attention_heads, ", ")));
  for (const auto& [type, rates] : m.attention) list(to_string(type), rates);
  if (!m.attention_backward.empty()) table("attention_backward");
  for (const auto& [type, rates] : m.attention_backward) list(to_string(type), rates);
  for (const auto& [type, rates] : m.kernel) {
    table(fmt::format("kernel.{}", to_string(type)));
    for (const auto& [operation, rate] : rates) line(operation, number(rate));
  }
  if (!m.peak.empty() || m.peak_tf32 > 0) table("peak");
  for (const auto& [type, rate] : m.peak) line(to_string(type), number(rate));
  if (m.peak_tf32 > 0) line("tf32", number(m.peak_tf32));
  const auto link = [&](std::string_view name, const std::optional<Link>& of) {
    if (!of) return;
    table(fmt::format("link.{}", name));
    line("latency", number(of->latency));
    line("rate", number(of->rate));
  };
  link("intra", m.intra);
  link("inter", m.inter);
  link("host", m.host);
  if (m.disk_write > 0) {
    table("disk");
    line("write", number(m.disk_write));
    line("read", number(m.disk_read));
  }
  return text;
}

Machine load_machine(const std::string& path) {
  constexpr std::size_t kLargest = std::size_t{1} << 20;
  const FileText file = read_regular(path, kLargest);
  if (!file.problem.empty()) {
    throw DeckError(fmt::format(
        "cannot read the machine file {}{}: {} (slurm/machines/ has some, bench machine makes one)",
        path, full_path_text(path), file.problem));
  }
  return parse_machine(file.text, path);
}

}  // namespace tessera::deck
