#include "kernels/cuda/algorithm_table.hpp"

#include <charconv>

template <>
struct tessera::EnumWords<tessera::kernels::Write> {
  using enum kernels::Write;
  static constexpr std::array table = {std::pair{overwrite, "overwrite"}, std::pair{add, "add"}};
};

namespace tessera::kernels::cuda {
namespace {

constexpr std::string_view kTitle = "tessera matrix products ";
constexpr std::int64_t kVersion = 5;
constexpr std::string_view kApart = "apart";  // in place of an algorithm

std::string hex(const Algorithm& algorithm) {
  std::string text;
  for (std::uint8_t byte : algorithm) text += fmt::format("{:02x}", byte);
  return text;
}

/// Takes a table's text apart, line by line and word by word.
class Reader {
 public:
  Reader(std::string_view text, std::string_view file) : rest_(text), file_(file) {}

  bool next_line() {
    if (rest_.empty()) return false;
    ++number_;
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) fail("the line does not end");
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(end + 1);
    return true;
  }
  /// The line's remainder after `prefix`, which must be there.
  std::string_view after(std::string_view prefix) {
    if (!line_.starts_with(prefix)) fail(fmt::format("'{}' is expected", prefix));
    return line_.substr(prefix.size());
  }
  /// The next word; the words of a line are one space apart.
  std::string_view word() {
    const std::size_t end = std::min(line_.find(' '), line_.size());
    const std::string_view found = line_.substr(0, end);
    if (found.empty()) fail("a word is missing");
    line_.remove_prefix(std::min(end + 1, line_.size()));
    return found;
  }
  std::int64_t number(std::string_view text, std::int64_t least) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < least) {
      fail(fmt::format("'{}' is not an integer of at least {}", text, least));
    }
    return value;
  }
  std::int64_t number(std::int64_t least) { return number(word(), least); }
  template <typename E>
  E word_of() {
    const std::string_view text = word();
    const auto value = enum_from_word<E>(text);
    if (!value) fail(fmt::format("'{}' is none of {}", text, enum_choices<E>()));
    return *value;
  }
  DType type() {
    const std::string_view text = word();
    for (DType type : {DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::e5m2}) {
      if (text == to_string(type)) return type;
    }
    fail(fmt::format("'{}' is none of f32|bf16|f16|e4m3|e5m2", text));
  }
  bool one_of(std::string_view no, std::string_view yes) {
    const std::string_view text = word();
    if (text != no && text != yes) fail(fmt::format("'{}' is none of {}|{}", text, no, yes));
    return text == yes;
  }
  /// None where the product is computed in parts.
  std::optional<Algorithm> algorithm() {
    const std::string_view text = word();
    if (text == kApart) return std::nullopt;
    Algorithm bytes{};
    if (text.size() != 2 * bytes.size()) fail("an algorithm has 128 hexadecimal digits");
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const char* digits = text.data() + 2 * i;
      if (std::from_chars(digits, digits + 2, bytes[i], 16).ptr != digits + 2) {
        fail("an algorithm has 128 hexadecimal digits");
      }
    }
    return bytes;
  }
  void end_of_line() {
    if (!line_.empty()) fail(fmt::format("'{}' is too much", line_));
  }
  [[noreturn]] void fail(std::string_view what) const {
    throw DataError(
        fmt::format("{}:{}: {}; remove the file to choose again", file_, number_, what));
  }

 private:
  std::string_view rest_, file_, line_;
  int number_ = 0;
};

std::int64_t alignment(Reader& reader) {
  const std::int64_t bytes = reader.number(1);
  if (bytes > kOperandAlignment || (bytes & (bytes - 1)) != 0) {
    reader.fail(fmt::format("{} is no power of two up to {}", bytes, kOperandAlignment));
  }
  return bytes;
}

GemmKey read_key(Reader& reader) {
  GemmKey key;
  key.type_a = reader.type(), key.type_b = reader.type(), key.result = reader.type();
  key.a = reader.word_of<Turn>(), key.b = reader.word_of<Turn>();
  for (std::int64_t* size : {&key.m, &key.n, &key.k, &key.lda, &key.ldb, &key.ldd}) {
    *size = reader.number(1);
  }
  for (std::int64_t* bytes : {&key.align_a, &key.align_b, &key.align_d}) *bytes = alignment(reader);
  key.bias = reader.one_of("plain", "bias");
  key.write = reader.word_of<Write>();
  key.math = reader.word_of<MatmulMath>();
  key.epilogue = reader.word_of<Epilogue>();
  if (key.epilogue == Epilogue::none) return key;
  key.ld_aux = reader.number(1);
  key.align_aux = alignment(reader);
  return key;
}

std::string key_text(const GemmKey& key) {
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", to_string(key.type_a),
                  to_string(key.type_b), to_string(key.result), enum_word(key.a), enum_word(key.b),
                  key.m, key.n, key.k, key.lda, key.ldb, key.ldd, key.align_a, key.align_b,
                  key.align_d, key.bias ? "bias" : "plain", enum_word(key.write),
                  enum_word(key.math), enum_word(key.epilogue));
  if (key.epilogue != Epilogue::none) text += fmt::format(" {} {}", key.ld_aux, key.align_aux);
  return text;
}

std::string header(const GemmMachine& machine) {
  return fmt::format("{}{}\nlibrary {}\ngpu {}\ncapability {}.{}\ndriver {}\n", kTitle, kVersion,
                     machine.library, machine.gpu, machine.major, machine.minor, machine.driver);
}

GemmMachine read_machine(Reader& reader) {
  const auto line_after = [&](std::string_view prefix) {
    if (!reader.next_line()) reader.fail("the file ends within its header");
    return reader.after(prefix);
  };
  GemmMachine machine;
  machine.library = reader.number(line_after("library "), 0);
  machine.gpu = line_after("gpu ");
  const std::string_view capability = line_after("capability ");
  const std::size_t dot = std::min(capability.find('.'), capability.size() - 1);
  machine.major = static_cast<int>(reader.number(capability.substr(0, dot), 0));
  machine.minor = static_cast<int>(reader.number(capability.substr(dot + 1), 0));
  machine.driver = static_cast<int>(reader.number(line_after("driver "), 0));
  return machine;
}

}  // namespace

std::string to_text(const AlgorithmTable& table) {
  std::string text = header(table.machine);
  for (const auto& [key, algorithm] : table.chosen)
    text += fmt::format("{} {}\n", key_text(key), hex(algorithm));
  for (const GemmKey& key : table.apart) text += fmt::format("{} {}\n", key_text(key), kApart);
  return text;
}

std::optional<AlgorithmTable> parse_algorithms(std::string_view text, std::string_view file,
                                               const GemmMachine& machine) {
  Reader reader(text, file);
  if (!reader.next_line()) reader.fail("the file is empty");
  if (reader.number(reader.after(kTitle), 1) != kVersion) return std::nullopt;
  AlgorithmTable table{.machine = read_machine(reader), .chosen = {}, .apart = {}};
  if (table.machine != machine) return std::nullopt;
  while (reader.next_line()) {
    const GemmKey key = read_key(reader);
    const auto algorithm = reader.algorithm();
    reader.end_of_line();
    if (table.chosen.contains(key) || table.apart.contains(key))
      reader.fail("a product that is there twice");
    if (algorithm) {
      table.chosen.emplace(key, *algorithm);
    } else if (is_plain(key)) {
      reader.fail("a product that has no parts");
    } else {
      table.apart.insert(key);
    }
  }
  return table;
}

}  // namespace tessera::kernels::cuda
