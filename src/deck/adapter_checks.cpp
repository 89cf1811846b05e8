#include "deck/deck_checker.hpp"

namespace tessera::deck {

namespace {

class AdapterChecker : DeckChecker {
 public:
  using DeckChecker::DeckChecker;

  void run() {
    if (!usable({"adapter.kind"})) return;
    frozen();
    if (adapter_.kind == AdapterKind::none) return section_needs("adapter", "adapter.kind");
    at_most("adapter.rank", adapter_.rank, "model.hidden", deck_.model.hidden);
    if (usable({"adapter.targets"}) && adapter_.targets.empty()) {
      problem("adapter.targets",
              "adapter.targets is empty: nothing would be trained (leave it out for q and v of all "
              "layers, or give \"*\" for all matrices of layers)");
    }
    others();
  }

 private:
  /// How what is not trained is kept.
  void frozen() {
    const FrozenSection& frozen = deck_.model.frozen;
    if (!usable({"frozen.type"})) return;
    some_layers();
    if (frozen.type == FrozenType::none)
      return section_needs("frozen", "frozen.type", {"frozen.layers"});
    const std::string type = fmt::format("frozen.type = \"{}\"", enum_word(frozen.type));
    if (adapter_.kind == AdapterKind::none && frozen.layers.empty()) {
      problem("frozen.type", type +
                                 " is of what is frozen, but all of this model is trained: set "
                                 "adapter.kind = \"lora\" or frozen.layers, or leave it out");
    }
    if (usable({"frozen.block"}) && frozen.block % 2 != 0)
      problem("frozen.block", fmt::format("frozen.block = {} is odd: use {} or {}", frozen.block,
                                          frozen.block - 1, frozen.block + 1));
  }

  void some_layers() {
    if (!usable({"frozen.layers"}) || deck_.model.frozen.layers.empty()) return;
    not_with(fmt::format("adapter.kind = \"{}\"", enum_word(adapter_.kind)), "frozen.layers",
             adapter_.kind != AdapterKind::none, "beside adapters everything else is frozen",
             "leave it out");
    not_with("frozen.layers", "optimizer.ema", deck_.optimizer.ema.has_value(),
             "of what is frozen there is no average", "leave it out");
  }

  /// What does not go with adapters.
  void others() {
    const std::string kind = fmt::format("adapter.kind = \"{}\"", enum_word(adapter_.kind));
    not_with(kind, "task.kind", has_own_head(deck_.task.kind),
             "the head that makes its outputs would stay as it is", "use lm, mlm, dpo or ipo");
    not_with(kind, "optimizer.name", deck_.optimizer.compress_after.has_value(),
             "adapters are small, and their momentum travels as it is", "use adamw or lamb");
    not_with(kind, "optimizer.ema", deck_.optimizer.ema.has_value(),
             "the average of A and the average of B do not make that of their product",
             "leave it out");
    not_with(kind, "memory.ffn", deck_.memory.ffn > 0, "adapters keep all that their layers read",
             "use 0");
    not_with(kind, "zero.tiles", adapter_.kind == AdapterKind::dora && deck_.zero.tiles > 1,
             "lengths of rows are of whole matrices", "use 1");
    const bool blocks = deck_.zero.quantize.gradients != QuantizedGradients::none &&
                        deck_.zero.quantize.gradients != QuantizedGradients::automatic;
    not_with(kind, "zero.quantize.gradients", blocks,
             "adapters are small, and their gradients travel as they are", "leave it out");
  }

  const AdapterSection& adapter_ = deck_.model.adapter;
};

}  // namespace

void check_adapter(const LoadedDeck& loaded, Problems& problems) {
  AdapterChecker(loaded, problems).run();
}

}  // namespace tessera::deck
