#include "io/checkpoint_verify.hpp"

#include <set>

#include "core/error.hpp"
#include "core/hash.hpp"
#include "io/checkpoint_blocks.hpp"
#include "io/checkpoint_hold.hpp"
#include "io/checkpoint_reader.hpp"

namespace tessera::io {
namespace {

constexpr const char* kDiffers = "checksum differs from the manifest's";

/// Collects what is bad, so that one damaged block does not hide the next.
class Verifier {
 public:
  Verifier(std::int64_t bytes_total, const VerifyProgress& progress)
      : total_(bytes_total), progress_(progress) {}

  /// Runs `right` over bytes of a file; a failure to read them is an entry of the list too.
  template <typename Right>
  bool check(const std::string& file, const std::string& dataset, Range bytes, Right&& right) {
    std::string problem;
    try {
      if (!right()) problem = kDiffers;
    } catch (const DataError& error) {
      problem = error.what();
    } catch (const IoError& error) {
      problem = error.what();
    }
    if (!problem.empty()) bad_.push_back({file, dataset, bytes.begin, bytes.count(), problem});
    return problem.empty();
  }

  void advance(std::int64_t bytes) {
    done_ += bytes;
    if (progress_) progress_(done_, total_);
  }

  std::vector<BadBlock> take() { return std::move(bad_); }

 private:
  std::int64_t done_ = 0, total_;
  const VerifyProgress& progress_;
  std::vector<BadBlock> bad_;
};

void verify_part(Verifier& verifier, const std::filesystem::path& path, const RankPart& part) {
  const std::string name = path.filename().string();
  const Range all{0, part.file_bytes};
  const bool whole = verifier.check(name, "", all, [&] {
    check_file_size(path, part.file_bytes);
    return true;
  });
  if (!whole) return verifier.advance(part.file_bytes);

  const File file(path, OpenMode::read);
  std::int64_t rest = part.file_bytes;
  std::vector<std::byte> block;
  for (const DatasetRecord& d : part.datasets) {
    for (std::int64_t i = 0; i < d.blocks(); ++i) {
      const Range range = d.block_range(i);
      const Range in_file{d.offset + range.begin, d.offset + range.end};
      block.resize(static_cast<std::size_t>(range.count()));
      verifier.check(name, d.name(), in_file, [&] {
        file.read(in_file.begin, block);
        return hash_bytes(block) == d.checksums[static_cast<std::size_t>(i)];
      });
      verifier.advance(range.count());
      rest -= range.count();
    }
  }
  verifier.check(name, "", all, [&] { return hash_rest(file, part) == part.rest_checksum; });
  verifier.advance(rest);
}

}  // namespace

std::vector<BadBlock> verify_checkpoint(const std::filesystem::path& checkpoint,
                                        const VerifyProgress& progress) {
  const CheckpointHold hold(checkpoint);
  const Manifest manifest = read_manifest(checkpoint);
  std::int64_t total = manifest.model_bytes;
  for (const RankPart& part : manifest.parts) total += part.file_bytes;

  Verifier verifier(total, progress);
  for (const RankPart& part : manifest.parts)
    verify_part(verifier, checkpoint / rank_file_name(part.rank), part);
  const Range all{0, manifest.model_bytes};
  verifier.check(kModelFile, "", all, [&] {
    check_file_size(checkpoint / kModelFile, manifest.model_bytes);
    return hash_range(File(checkpoint / kModelFile, OpenMode::read), all) ==
           manifest.model_checksum;
  });
  verifier.advance(manifest.model_bytes);
  return verifier.take();
}

CheckpointSummary describe_checkpoint(const std::filesystem::path& checkpoint) {
  const Manifest manifest = read_manifest(checkpoint);
  CheckpointSummary summary{.header = manifest.header,
                            .states = {},
                            .files = static_cast<std::int64_t>(manifest.parts.size()),
                            .bytes = 0};
  std::map<std::string, StateSummary> states;
  std::set<std::string> tensors;  // state/tensor: held by several ranks, counted once
  for (const RankPart& part : manifest.parts) {
    summary.bytes += part.file_bytes;
    for (const DatasetRecord& d : part.datasets) {
      StateSummary& s =
          states.try_emplace(d.state, StateSummary{d.state, d.type, 0, 0, 0}).first->second;
      s.tensors += tensors.insert(d.name()).second ? 1 : 0;
      s.elements += d.elements();
      s.bytes += d.bytes();
    }
  }
  for (auto& [name, s] : states) summary.states.push_back(std::move(s));
  return summary;
}

}  // namespace tessera::io
