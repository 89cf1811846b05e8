#include "verbs/merged.hpp"

#include <map>
#include <memory>
#include <vector>

#include "deck/load.hpp"
#include "io/finite.hpp"
#include "setup/inputs.hpp"

namespace tessera::verbs {
namespace {

struct Adapter {
  model::ParamDesc a, b;
};
using Adapters = std::map<std::string, Adapter, std::less<>>;  // by what they are beside

Adapters adapters_of(const model::ModelConfig& config) {
  Adapters all;
  for (const model::UnitDesc& unit : model::model_units(config)) {
    for (std::size_t i = 0; i < unit.params.size(); ++i) {
      const auto stem = model::adapted_by(unit.params[i].name);
      if (stem) all[*stem + ".weight"] = {unit.params[i], unit.params[i + 1]};
    }
  }
  return all;
}

/// Adds s B A to elements of a matrix.
void add_product(const Adapter& adapter, double scale, const train::ParameterSource& source,
                 Range range, std::span<float> out) {
  const std::int64_t rank = adapter.a.shape[0], columns = adapter.a.shape[1];
  const std::int64_t first = range.begin / columns, end = (range.end - 1) / columns + 1;
  std::vector<float> a(static_cast<std::size_t>(rank * columns)),
      b(static_cast<std::size_t>((end - first) * rank));
  source(adapter.a, {0, rank * columns}, a);
  source(adapter.b, {first * rank, end * rank}, b);
  for (std::int64_t i = range.begin; i < range.end; ++i) {
    double sum = 0;
    for (std::int64_t k = 0; k < rank; ++k) {
      sum += static_cast<double>(b[static_cast<std::size_t>((i / columns - first) * rank + k)]) *
             static_cast<double>(a[static_cast<std::size_t>(k * columns + i % columns)]);
    }
    float& x = out[static_cast<std::size_t>(i - range.begin)];
    x = static_cast<float>(static_cast<double>(x) + scale * sum);
  }
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
    read(p, range, out);
    const auto adapter = adapters->find(p.name);
    if (adapter != adapters->end() && !range.empty())
      add_product(adapter->second, scale, read, range, out);
  };
  all.parameters = checked(sum, finite_as,
                           [name = source.name](const model::ParamDesc& p, std::int64_t element) {
                             return fmt::format("{}: {} with its adapter{}", name, p.name,
                                                io::index_text(p.shape, element));
                           });
  return all;
}

}  // namespace tessera::verbs
