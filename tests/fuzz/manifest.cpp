// A checkpoint's manifest: one with its checksum, or only what follows the first line, which then
// gets the checksum that belongs to it.
#include "core/hash.hpp"
#include "io/checkpoint_manifest.hpp"
#include "target.hpp"

namespace tessera::fuzz {
namespace {

std::string sealed(const std::string& input) {
  if (input.starts_with("{\"xxh3\"")) return input;
  return fmt::format("{{\"xxh3\":\"{:016x}\",\n{}", hash_text(input), input);
}

/// What was accepted is whole, and says the same when it is written and read again.
void read_again(const io::Manifest& manifest) {
  const auto found = io::find_problem(manifest.parts);
  TESSERA_CHECK(!found, "{}", *found);
  const std::string written = to_text(manifest);
  TESSERA_CHECK(to_text(io::manifest_from_text(written, "written")) == written, "{}", written);
  for (const io::RankPart& part : manifest.parts) {
    const std::string sent = to_text(part);
    TESSERA_CHECK(to_text(io::rank_part_from_text(sent)) == sent, "{}", sent);
    for (const io::DatasetRecord& dataset : part.datasets) {
      for (std::int64_t block = 0; block < dataset.blocks(); ++block)
        TESSERA_CHECK(!dataset.block_range(block).empty(), "{}", dataset.name());
    }
  }
}

}  // namespace

const ExitCode kRefusal = ExitCode::data;

void read(const std::string& input) {
  const io::Manifest manifest = io::manifest_from_text(sealed(input), "manifest.json");
  certainly([&] { read_again(manifest); });
}

}  // namespace tessera::fuzz
