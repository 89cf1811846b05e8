// PREFIX.idx beside a fixed PREFIX.bin of kBytes.
#include "io/megatron.hpp"

#include "read_corpus.hpp"
#include "support/temporary_directory.hpp"
#include "target.hpp"

namespace tessera::fuzz {
namespace {

constexpr std::size_t kBytes = 5000;  // as large as the .bin of the seeds in tests/data

/// The directory, with a .bin whose tokens are in the vocabulary whatever their type.
const test::TemporaryDirectory& directory() {
  static const test::TemporaryDirectory made;
  static const bool written = (test::write_file(made / "t.bin", std::string(kBytes, '\0')), true);
  (void)written;
  return made;
}

}  // namespace

const ExitCode kRefusal = ExitCode::data;

void read(const std::string& input) {
  const auto prefix = directory() / "t";
  test::write_file(io::megatron_idx(prefix), input);
  read_corpus(prefix.string());
}

}  // namespace tessera::fuzz
