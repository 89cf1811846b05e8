#include "verbs/merged.hpp"

#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "core/at.hpp"
#include "deck/load.hpp"
#include "io/finite.hpp"
#include "setup/inputs.hpp"

namespace tessera::verbs {
namespace {

struct Adapter {
  model::ParamDesc a, b;
  std::optional<model::ParamDesc> magnitude;
};
using Adapters = std::map<std::string, Adapter, std::less<>>;  // by what they are beside

Adapters adapters_of(const model::ModelConfig& config) {
  Adapters all;
  for (const model::UnitDesc& unit : model::model_units(config)) {
    for (std::size_t i = 0; i < unit.params.size(); ++i) {
      const auto stem = model::adapted_by(unit.params[i].name);
      if (stem) all[*stem + ".weight"] = {unit.params[i], unit.params[i + 1], {}};
      // Their unit is behind.
      const auto measured = model::measured_by(unit.params[i].name);
      if (measured) all[*measured + ".weight"].magnitude = unit.params[i];
    }
  }
  return all;
}

/// Rows [range) of W + s B A, with their magnitudes if there are some.
std::vector<double> merged_rows(const model::ParamDesc& matrix, const Adapter& adapter,
                                double scale, const train::ParameterSource& source, Range range) {
  const std::int64_t rank = adapter.a.shape[0], columns = adapter.a.shape[1], rows = range.count();
  std::vector<float> w(static_cast<std::size_t>(rows * columns)),
      a(static_cast<std::size_t>(rank * columns)), b(static_cast<std::size_t>(rows * rank)),
      magnitudes(static_cast<std::size_t>(rows));
  source(matrix, {range.begin * columns, range.end * columns}, w);
  source(adapter.a, {0, rank * columns}, a);
  source(adapter.b, {range.begin * rank, range.end * rank}, b);
  if (adapter.magnitude) source(*adapter.magnitude, range, magnitudes);
  std::vector<double> all(w.begin(), w.end());
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto row = std::span(all).subspan(static_cast<std::size_t>(r * columns),
                                            static_cast<std::size_t>(columns));
    for (std::int64_t k = 0; k < rank; ++k) {
      const double factor = scale * static_cast<double>(at(b, r * rank + k));
      for (std::int64_t c = 0; c < columns; ++c)
        at(row, c) += factor * static_cast<double>(at(a, k * columns + c));
    }
    if (!adapter.magnitude) continue;
    double squares = 0;
    for (const double x : row) squares += x * x;
    if (squares == 0) continue;
    for (double& x : row) x *= static_cast<double>(at(magnitudes, r)) / std::sqrt(squares);
  }
  return all;
}

}  // namespace

ModelSource merged(const ModelSource& source, std::optional<DType> finite_as) {
  const model::ModelConfig config = setup::model_config(source.model, source.task);
  ModelSource all = source;
  all.model.adapter = {}, all.model.frozen = {};
  deck::Deck deck = deck::parse_deck(source.deck, source.name).deck;
  deck.model.adapter = {}, deck.model.frozen = {};
  all.deck = to_toml(deck);
  const auto adapters = std::make_shared<const Adapters>(adapters_of(config));
  const auto sum = [adapters, scale = static_cast<double>(config.adapter.scale),
                    read = source.parameters](const model::ParamDesc& p, Range range,
                                              std::span<float> out) {
    const auto adapter = adapters->find(p.name);
    if (adapter == adapters->end() || range.empty()) return read(p, range, out);
    const std::int64_t columns = p.shape[1];
    const Range rows = {range.begin / columns, (range.end - 1) / columns + 1};
    const auto values = merged_rows(p, adapter->second, scale, read, rows);
    for (std::int64_t i = range.begin; i < range.end; ++i)
      at(out, i - range.begin) = static_cast<float>(at(values, i - rows.begin * columns));
  };
  all.parameters = checked(sum, finite_as,
                           [name = source.name](const model::ParamDesc& p, std::int64_t element) {
                             return fmt::format("{}: {} with its adapter{}", name, p.name,
                                                io::index_text(p.shape, element));
                           });
  return all;
}

}  // namespace tessera::verbs
