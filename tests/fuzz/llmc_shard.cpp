// A shard as llm.c writes them.
#include "read_corpus.hpp"
#include "support/temporary_directory.hpp"
#include "target.hpp"

namespace tessera::fuzz {

const ExitCode kRefusal = ExitCode::data;

void read(const std::string& input) {
  static const test::TemporaryDirectory directory;
  const auto shard = directory / "t.bin";
  test::write_file(shard, input);
  read_corpus(shard.string());
}

}  // namespace tessera::fuzz
