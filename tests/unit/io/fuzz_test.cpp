// Every parser of a user's file meets damaged files: they may be refused with an Error, or be
// accepted and read, and nothing else. No single allocation may exceed what the small files here
// could justify, so a hostile count is caught before it is believed. Seeded: a failure repeats.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "core/error.hpp"
#include "io/chat_template.hpp"
#include "io/hugging_face.hpp"
#include "io/json.hpp"
#include "io/megatron.hpp"
#include "io/token_files.hpp"
#include "io/token_targets.hpp"
#include "io/tokenize.hpp"
#include "io/tokenizer.hpp"
#include "largest_allocation.hpp"
#include "support/temporary_directory.hpp"
#include "support/tokenizing.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using test::TemporaryDirectory;

constexpr int kRounds = 1500;
constexpr std::size_t kLargestAllocation = std::size_t{16} << 20;

fs::path data_path(std::string_view name) {
  return fs::path(TESSERA_SOURCE_DIR) / "tests/data" / name;
}

class Mutator {
 public:
  explicit Mutator(unsigned seed) : random_(seed) {}

  std::string operator()(std::string bytes) {
    for (std::size_t i = 0, n = 1 + below(4); i < n && !bytes.empty(); ++i) mutate(bytes);
    return bytes;
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }

  void mutate(std::string& bytes) {
    const std::size_t at = below(bytes.size());
    const std::size_t count = std::min(below(16) + 1, bytes.size() - at);
    switch (below(7)) {
      case 0: bytes[at] = static_cast<char>(random_()); break;
      case 1: bytes[at] = static_cast<char>(bytes[at] ^ 1 << below(8)); break;
      case 2: bytes.resize(at); break;
      case 3: bytes.erase(at, count); break;
      case 4: bytes.insert(below(bytes.size()), bytes.substr(at, count)); break;
      case 5: integer(bytes, at); break;
      case 6: number(bytes, at); break;
    }
  }

  /// A binary integer at the border of something.
  void integer(std::string& bytes, std::size_t at) {
    constexpr std::int64_t kValues[] = {0, 1, -1, INT32_MAX, INT64_MAX, INT64_MIN, 1LL << 40, 255};
    const std::int64_t value = kValues[below(std::size(kValues))];
    const std::size_t width = std::min<std::size_t>(below(2) ? 4 : 8, bytes.size() - at);
    bytes.replace(at, width, reinterpret_cast<const char*>(&value), width);
  }

  /// Another number or word where the text has a number or word.
  void number(std::string& text, std::size_t at) {
    constexpr const char* kWords[] = {
        "-1", "0",  "1e400", "9223372036854775807", "18446744073709551615", "1.5", "null", "true",
        "[]", "{}", "\"\"",  "4294967296"};
    const std::size_t begin = text.find_first_of("0123456789tfn\"", at);
    if (begin == std::string::npos) return;
    const std::size_t end = text.find_first_of(",]} \n:", begin);
    text.replace(begin, end == std::string::npos ? end : end - begin,
                 kWords[below(std::size(kWords))]);
  }

  std::mt19937 random_;
};

/// Runs `read` on many damaged forms of `good`; `place` puts one where `read` will find it.
void fuzz(const std::string& good, const std::function<void(const std::string&)>& place,
          const std::function<void()>& read) {
  place(good);
  EXPECT_NO_THROW(read());
  Mutator mutate(12345);
  int refused = 0;
  test::reset_largest_allocation();
  for (int round = 0; round < kRounds; ++round) {
    place(mutate(good));
    try {
      read();
    } catch (const InternalError& error) {
      ADD_FAILURE() << "round " << round << ": " << error.what();
    } catch (const Error&) {
      ++refused;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "round " << round << ": not an Error: " << error.what();
    }
  }
  EXPECT_LT(test::largest_allocation(), kLargestAllocation);
  EXPECT_GT(refused, kRounds / 10);  // the damage is real
}

void fuzz_file(const fs::path& path, const std::function<void()>& read) {
  fuzz(
      test::read_file(path), [&](const std::string& bytes) { test::write_file(path, bytes); },
      read);
}

void read_all(const std::string& entry) {
  const std::vector<std::string> entries{entry};
  const io::TokenCorpus corpus(entries, 100);
  std::vector<std::int32_t> tokens(
      static_cast<std::size_t>(std::min<std::int64_t>(corpus.tokens(), 5000)));
  corpus.read(0, tokens);
  if (corpus.tokens() > 0) corpus.read(corpus.tokens() - 1, std::span(tokens).first(1));
}

void read_all(const io::HfModel& model) {
  for (const io::HfTensor& parameter : model.parameters()) {
    std::vector<float> values(static_cast<std::size_t>(parameter.elements()));
    model.read(parameter.parameter, 0, values);
  }
}

TEST(Fuzz, MegatronIndex) {
  const TemporaryDirectory dir;
  io::MegatronWriter writer(dir / "t", 100);
  std::vector<std::int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 99};
  for (int i = 0; i < 20; ++i) {
    writer.append(std::span(tokens).first(static_cast<std::size_t>(i % 8)));
    writer.end_document();
  }
  writer.publish();
  fuzz_file(dir / "t.idx", [&] { read_all((dir / "t").string()); });
}

TEST(Fuzz, LlmcShard) {
  const TemporaryDirectory dir;
  std::vector<std::int32_t> header(256);
  header[0] = 20240520, header[1] = 1, header[2] = 8;
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  bytes += std::string("\1\0\2\0\3\0\4\0\5\0\6\0\7\0\10\0", 16);
  const fs::path path = dir / "t.bin";
  // Most of the header has no meaning: only its beginning and the tokens are worth damaging.
  const std::string middle = bytes.substr(12, 1012);
  fuzz(
      bytes.substr(0, 12) + bytes.substr(1024),
      [&](const std::string& b) {
        const std::size_t head = std::min<std::size_t>(12, b.size());
        test::write_file(path, b.substr(0, head).append(middle).append(b.substr(head)));
      },
      [&] { read_all(path.string()); });
}

TEST(Fuzz, SafetensorsOfAModel) {
  const TemporaryDirectory dir;
  fs::copy(data_path("hf/llama"), dir / "m");
  const std::string file = test::read_file(dir / "m/model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof(length));
  const std::string data = file.substr(8 + length);
  fuzz(
      file.substr(0, 8 + length),  // the header, with its length
      [&](const std::string& header) {
        test::write_file(dir / "m/model.safetensors", header + data);
      },
      [&] { read_all(io::HfModel::open(dir / "m")); });
}

TEST(Fuzz, SafetensorsHeaderOfTheRightLength) {
  const TemporaryDirectory dir;
  const std::string header =
      R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"__metadata__":{"k":"v"},)"
      R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[8,16]}})";
  fuzz(
      header,
      [&](const std::string& h) {
        const std::uint64_t length = h.size();
        std::string bytes(reinterpret_cast<const char*>(&length), sizeof(length));
        test::write_file(dir / "t", bytes.append(h).append(16, 'x'));
      },
      [&] {
        const io::SafetensorsFile file(dir / "t");
        for (const auto& [name, entry] : file.tensors()) {
          std::vector<float> values(static_cast<std::size_t>(entry.elements));
          if (entry.type == DType::f32 || entry.type == DType::bf16) file.read(entry, 0, values);
        }
      });
}

TEST(Fuzz, ConfigOfAModel) {
  for (const char* name : {"gpt2", "llama"}) {
    const TemporaryDirectory dir;
    fs::copy(data_path("hf") / name, dir / "m");
    fuzz_file(dir / "m/config.json", [&] { read_all(io::HfModel::open(dir / "m")); });
  }
}

TEST(Fuzz, IndexOfAShardedModel) {
  const TemporaryDirectory dir;
  fs::copy(data_path("hf/llama_sharded"), dir / "m");
  fuzz_file(dir / "m/model.safetensors.index.json",
            [&] { read_all(io::HfModel::open(dir / "m")); });
}

TEST(Fuzz, TokenizerJson) {
  for (const char* name : {"tokenizers/gpt2.json", "tokenizers/llama3.json", "tokenizers/bert.json",
                           "tokenizers/t5.json", "tokenizers/llama2.json"}) {
    // Few merges and words, so that the settings, not the tables, get most of the damage.
    nlohmann::json content = nlohmann::json::parse(test::read_file(data_path(name)));
    if (content["model"].contains("merges")) {
      auto& merges = content["model"]["merges"];
      merges.erase(merges.begin() + 10, merges.end());
    }
    std::string text;
    fuzz(
        content.dump(), [&](const std::string& bytes) { text = bytes; },
        [&] {
          auto tokenizer = io::Tokenizer::parse(text, "t.json");
          for (const char* sample :
               {"It's 12345 \xf0\x9f\x98\x80<|endoftext|> \xff", "", "   \n"}) {
            tokenizer.decode(tokenizer.encode(sample));
          }
        });
  }
}

TEST(Fuzz, JsonLines) {
  const TemporaryDirectory dir;
  test::write_file(dir / "l.jsonl",
                   "{\"text\": \"one\\u00e9\", \"n\": 1}\n{\"text\":\"two\",\"n\":2}\n\n");
  auto tokenizer = io::Tokenizer::open(data_path("tokenizers/gpt2.json"));
  const std::vector<fs::path> inputs{dir / "l.jsonl"};
  fuzz_file(dir / "l.jsonl", [&] {
    test::tokenize_in_parts(inputs, dir / "out", tokenizer, 2,
                            {.labels = io::LabelSource::member, .label_key = "n"});
  });
}

TEST(Fuzz, ChatTemplates) {
  const TemporaryDirectory dir;
  test::write_file(dir / "t.json", R"({"special_tokens": ["<|endoftext|>"], "begin": "{{", "roles":
    {"user": {"before": "a"}, "assistant": {"end": "<|endoftext|>{eos}", "learned": true}}})");
  test::write_file(dir / "l.jsonl", R"({"messages": [{"role": "user", "content": "hi"},
 {"from": "gpt", "value": "yo"}]})");
  const auto tokenizer = io::Tokenizer::open(data_path("tokenizers/gpt2.json"));
  const auto render = [&] {
    io::ChatTemplate chat = io::ChatTemplate::open((dir / "t.json").string());
    chat.bind(tokenizer);
    const io::JsonDocument line(test::read_file(dir / "l.jsonl"), "l.jsonl");
    chat.render(line.root(), "");
  };
  render();
  fuzz_file(dir / "l.jsonl", render);
  fuzz_file(dir / "t.json", [&] { io::ChatTemplate::open((dir / "t.json").string()); });
}

TEST(Fuzz, TargetsAndLabels) {
  const TemporaryDirectory dir;
  const auto write = [&](const std::string& prefix, DType type) {
    io::MegatronShare share(prefix, type, 0);
    for (int i = 0; i < 3; ++i) {
      share.append(std::vector<std::int32_t>{i % 2});
      share.end_document();
    }
    share.place({}, share.extent());
    share.publish();
  };
  const std::string prefix = (dir / "t").string();
  const auto write_all = [&] {
    write(prefix, DType::u16);
    write(prefix + ".targets", DType::u8);
    write(prefix + ".labels", DType::i32);
    test::write_file(prefix + ".labels.json", R"({"key": "k", "names": ["a", "b"]})");
  };
  const std::vector<std::string> entries{prefix};
  for (const char* end :
       {".targets.bin", ".targets.idx", ".labels.bin", ".labels.idx", ".labels.json"}) {
    write_all();
    fuzz_file(prefix + end, [&] {
      const io::TokenCorpus corpus(entries, 100);
      io::count_targets(corpus, 0, corpus.tokens());
      const auto names = *io::label_names_of(corpus.files()[0]);
      for (const std::int32_t label : io::read_document_labels(corpus.files()[0], names))
        TESSERA_CHECK(label == 0 || label == 1, "label {}", label);
    });
  }
}

TEST(Fuzz, DeepNestingIsNoProblem) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 200000; ++i) text += open;
    EXPECT_THROW(io::Tokenizer::parse(text, "deep.json"), DataError);
  }
  const std::string closed = std::string(200000, '[') + std::string(200000, ']');
  EXPECT_THROW(io::Tokenizer::parse(closed, "deep.json"), DataError);
}

}  // namespace
}  // namespace tessera
