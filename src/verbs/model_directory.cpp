#include "verbs/model_directory.hpp"

#include "io/tokenizer_files.hpp"
#include "setup/inputs.hpp"

namespace tessera::verbs {

ParametersByName by_name_of(std::span<const model::UnitDesc> units) {
  ParametersByName by_name;
  for (const auto& unit : units) {
    for (const auto& p : unit.params) by_name[p.name] = &p;
  }
  return by_name;
}

void write_model_directory(const std::filesystem::path& to, const ModelSource& source, DType type,
                           const std::string& verb, const std::optional<io::HfCodes>& codes) {
  const auto units = model::model_units(setup::model_config(source.model, source.task));
  const auto by_name = by_name_of(units);
  std::optional<io::Tokenizer> tokenizer;
  if (source.tokenizer) {
    tokenizer = io::open_kept_tokenizer(*source.tokenizer);
    check_tokenizer(*tokenizer, source);
  }
  ProgressLine progress(verb, ProgressLine::Unit::bytes);
  const auto parameters = tell_progress(source, progress);
  io::export_hugging_face(
      {.directory = to,
       .architecture = hf_architecture(source),
       .type = type,
       .tokenizer = tokenizer ? &*tokenizer : nullptr,
       .classes = source.labels ? source.labels->names : std::vector<std::string>(),
       .codes = codes},
      [&](std::string_view name, std::int64_t begin, std::span<float> out) {
        const auto& p = *by_name.find(name)->second;
        parameters(p, {begin, begin + static_cast<std::int64_t>(out.size())}, out);
      });
}

}  // namespace tessera::verbs
