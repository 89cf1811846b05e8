#include "verbs/export_proof.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/backend.hpp"
#include "core/bytes.hpp"
#include "core/cores.hpp"
#include "core/terminal.hpp"
#include "setup/inputs.hpp"
#include "setup/threads.hpp"
#include "train/generation/generator.hpp"

namespace tessera::verbs {
namespace {

constexpr std::int64_t kTokens = 16;

/// Tokens all over the vocabulary.
std::vector<std::int32_t> tokens_of(const deck::ModelSection& model) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < std::min(kTokens, model.context); ++i)
    tokens.push_back(static_cast<std::int32_t>((i * 7919 + 1) % model.vocab));
  return tokens;
}

/// The logits of the tokens: after each, or of all at once where each sees all.
std::vector<float> logits_of(const ModelSource& of, const train::ParameterSource& parameters) {
  const int threads = setup::thread_count({}, cores_each(std::array{own_cores()}));
  setup::use_threads(threads);
  const auto backend =
      backend::make_backend({.kind = deck::Backend::cpu, .threads = threads}, nullptr);
  train::Generator generator(setup::model_config(of.model, of.task), *backend.device,
                             *backend.device_tier, parameters, {.most = kTokens});
  if (of.model.attention == AttentionMask::bidirectional) {
    const auto logits = generator.whole(tokens_of(of.model));
    return {logits.begin(), logits.end()};
  }
  std::vector<float> all;
  for (const std::int32_t token : tokens_of(of.model)) {
    const auto logits = generator.advance(std::span(&token, 1));
    all.insert(all.end(), logits.begin(), logits.end());
  }
  return all;
}

/// The source's weights as they are on the way back from a file of `type`; what files do not have
/// is as it is.
train::ParameterSource as_stored(const train::ParameterSource& source,
                                 const io::HfArchitecture& architecture, DType type) {
  std::map<std::string, io::HfTensor, std::less<>> tensors;
  for (const io::HfTensor& tensor : io::hf_tensors(architecture))
    tensors.emplace(tensor.parameter, tensor);
  return [=](const model::ParamDesc& p, Range range, std::span<float> out) {
    source(p, range, out);
    const auto tensor = tensors.find(p.name);
    if (tensor == tensors.end()) return;
    for (float& x : out) x = tensor->second.as_stored(x, type);
  };
}

double largest_difference(std::span<const float> a, std::span<const float> b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return most;
}

}  // namespace

std::string prove_export(const ModelSource& source, const std::filesystem::path& exported,
                         DType type) {
  const io::HfArchitecture architecture = hf_architecture(source);
  const ModelSource back = open_model(exported, std::nullopt);
  const auto read = logits_of(back, back.parameters);
  const auto expected = logits_of(source, as_stored(source.parameters, architecture, type));
  if (read.size() != expected.size() ||
      std::memcmp(read.data(), expected.data(), read.size() * sizeof(float)) != 0) {
    throw DataError(fmt::format(
        "{}: read back, it has other logits than {} (by up to {:.3g}): it is not the same model, "
        "and is not to be used",
        exported.string(), source.name,
        read.size() == expected.size() ? largest_difference(read, expected) : 0.0));
  }
  const auto as_they_are = logits_of(source, source.parameters);
  return fmt::format(
      "proof     read back, {} give the same logits to the bit ({:.3g} from those of "
      "unrounded weights)",
      count_text(std::ssize(tokens_of(source.model)), "token"),
      largest_difference(read, as_they_are));
}

}  // namespace tessera::verbs
