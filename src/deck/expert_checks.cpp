#include <algorithm>
#include <vector>

#include "core/bytes.hpp"
#include "deck/deck_checker.hpp"
#include "deck/ranks.hpp"

namespace tessera::deck {

namespace {

class ExpertsChecker : DeckChecker {
 public:
  using DeckChecker::DeckChecker;

  void run() {
    if (!usable({"moe.experts"})) return;
    if (moe_.experts == 0) return unused();
    if (usable({"parallel.experts"}) && deck_.parallel.experts > 1) divided();
    by_node();
    overlap();
    layers();
    choices();
    groups();
    two_levels();
    documents();
    others();
  }

 private:
  /// Keys that say something of experts that there are not. Those whose defaults follow from other
  /// keys say nothing.
  void unused() {
    needs("parallel.experts", deck_.parallel.experts > 1, false, "moe.experts");
    needs("parallel.expert_exchange", deck_.parallel.expert_exchange != ExpertExchange::direct,
          false, "moe.experts");
    needs("parallel.expert_overlap", deck_.parallel.expert_overlap, false, "moe.experts");
    section_needs("moe", "moe.experts", {"moe.ffn_hidden", "moe.normalize"});
  }

  void layers() {
    if (!usable({"model.layers", "moe.every", "moe.first_dense"})) return;
    const std::int64_t layers = deck_.model.layers;
    if (layers / moe_.every * moe_.every > moe_.first_dense) return;
    problem(moe_.every > layers ? "moe.every" : "moe.first_dense",
            fmt::format("moe.every = {} and moe.first_dense = {} leave no layer of "
                        "model.layers = {} with experts (give less)",
                        moe_.every, moe_.first_dense, layers));
  }

  void choices() {
    if (!usable({"moe.top_k", "moe.groups", "moe.group_top"})) return;
    at_most("moe.top_k", moe_.top_k, "moe.experts", moe_.experts);
    if (!usable({"moe.top_k"}) || moe_.experts % moe_.groups != 0) return;
    const std::int64_t open = moe_.group_top * (moe_.experts / moe_.groups);
    if (moe_.top_k <= open) return;
    problem("moe.top_k",
            fmt::format("moe.top_k = {} is more than the {} of moe.group_top = {} (give at most "
                        "that, or more as moe.group_top)",
                        moe_.top_k, count_text(open, "expert"), moe_.group_top));
  }

  void groups() {
    if (!usable({"moe.groups", "moe.group_top", "moe.group_score"})) return;
    if (moe_.experts % moe_.groups != 0) {
      return problem(
          "moe.groups",
          fmt::format("moe.groups = {} does not divide moe.experts = {} (give one of {})",
                      moe_.groups, moe_.experts, fmt::join(divisors(), ", ")));
    }
    at_most("moe.group_top", moe_.group_top, "moe.groups", moe_.groups);
    needs("moe.group_score", moe_.group_score != GroupScore::largest, moe_.groups > 1,
          "moe.groups");
    if (moe_.group_score == GroupScore::two_largest && moe_.groups == moe_.experts) {
      problem("moe.group_score",
              fmt::format("moe.group_score = \"two_largest\" needs two experts in a group, but "
                          "moe.groups = {} of moe.experts = {} have one (give fewer groups)",
                          moe_.groups, moe_.experts));
    }
  }

  /// A gate over groups and one within each, which are softmaxes over what they keep.
  void two_levels() {
    if (!usable({"moe.gates", "moe.groups", "moe.group_top", "moe.top_k", "moe.normalize"})) return;
    if (moe_.gates == RouterGates::one || moe_.experts % moe_.groups != 0) return;
    needs("moe.gates", true, moe_.groups > 1, "moe.groups");
    const std::string levels = "moe.gates = \"two_levels\"";
    const std::int64_t of_group = moe_.experts / moe_.groups;
    not_with(levels, "moe.group_top", moe_.groups > 1 && moe_.group_top == 1,
             "a gate that keeps one weighs it with 1, and learns nothing of it", "give 2 or more");
    std::vector<std::int64_t> legal;
    for (std::int64_t each = 2; each <= of_group && each * moe_.group_top <= 32; ++each)
      legal.push_back(each * moe_.group_top);
    if (usable({"moe.gates", "moe.group_top", "moe.top_k"}) &&
        std::ranges::find(legal, moe_.top_k) == legal.end()) {
      problem("moe.top_k",
              fmt::format("moe.top_k = {} is not two or more experts of each of moe.group_top = {} "
                          "groups of {} ({})",
                          moe_.top_k, moe_.group_top, of_group,
                          legal.empty() ? "give fewer groups"
                                        : fmt::format("give one of {}", fmt::join(legal, ", "))));
    }
    not_with(levels, "moe.normalize", !moe_.normalize,
             "its gates are softmaxes over what they keep", "leave it out");
    not_with(levels, "moe.scores", moe_.scores != RouterScores::softmax, "its gates are softmaxes",
             "use \"softmax\"");
    not_with(levels, "moe.group_score", moe_.group_score != GroupScore::largest,
             "groups have logits of their own", "leave it out");
    not_with(levels, "moe.bias", moe_.bias, "experts are chosen by each level's logits",
             "use false, and moe.aux_loss");
    not_with(levels, "moe.z_loss", moe_.z_loss > 0,
             "the exponentials of what its gates make add up to those of groups alone",
             "leave it out");
  }

  /// Numbers of groups that are possible.
  std::vector<std::int64_t> divisors() const {
    std::vector<std::int64_t> all;
    for (std::int64_t n = 1; n <= 32; ++n)
      if (moe_.experts % n == 0) all.push_back(n);
    return all;
  }

  /// Experts that data ranks divide among them: each an equal part of what a chunk has.
  void divided() {
    if (!usable({"moe.split", "zero.tiles", "parallel.tensor", "run.reproducible_tensor"})) return;
    const std::int64_t ranks = deck_.parallel.experts,
                       chunks = moe_.split == ExpertSplit::experts ? tensor_chunks(deck_) : 1;
    if (moe_.experts % (chunks * ranks) != 0) {
      std::vector<std::int64_t> legal;
      for (std::int64_t n = 1; n * chunks <= moe_.experts; ++n)
        if (moe_.experts % (n * chunks) == 0) legal.push_back(n);
      problem("parallel.experts",
              fmt::format(
                  "parallel.experts = {} cannot divide the moe.experts = {}{} equally "
                  "(give one of {})",
                  ranks, moe_.experts,
                  chunks > 1 ? fmt::format(" in {} parts of moe.split = \"experts\"", chunks) : "",
                  fmt::join(legal, ", ")));
    }
    const std::string divided = fmt::format("parallel.experts = {}", ranks);
    not_with(divided, "zero.tiles", deck_.zero.tiles > 1,
             "experts of other ranks are no part of a tile", "use 1");
    const OptimizerName optimizer = deck_.optimizer.name;
    not_with(divided, "optimizer.name",
             optimizer == OptimizerName::muon || optimizer == OptimizerName::onebit_adam ||
                 optimizer == OptimizerName::onebit_lamb,
             "its exchanges are among all data ranks, which have different experts",
             "use another, or parallel.experts = 1");
    not_with(divided, "run.reproducible",
             deck_.run.reproducible == Reproducible::layout && (ranks & (ranks - 1)) != 0,
             "its sums are of powers of two", "give parallel.experts = 2, 4, ..");
  }

  /// Sums of what experts of a node have made of a token, which have an order of their own.
  void by_node() {
    const bool asked = deck_.parallel.expert_exchange == ExpertExchange::by_node;
    if (!usable({"parallel.expert_exchange"}) || !asked) return;
    if (usable({"parallel.experts"}))
      needs("parallel.expert_exchange", true, deck_.parallel.experts > 1, "parallel.experts");
    not_with("parallel.expert_exchange = \"by_node\"", "run.reproducible",
             deck_.run.reproducible == Reproducible::layout,
             "what experts make of a token is added up by node",
             "use parallel.expert_exchange = \"direct\"");
  }

  /// Micro-batches side by side.
  void overlap() {
    if (!usable({"parallel.expert_overlap"}) || !deck_.parallel.expert_overlap) return;
    if (usable({"parallel.experts"}))
      needs("parallel.expert_overlap", true, deck_.parallel.experts > 1, "parallel.experts");
    if (usable({"parallel.pipeline"})) {
      not_with("parallel.expert_overlap", "parallel.pipeline", deck_.parallel.pipeline > 1,
               "a stage's micro-batches come one after another", "use 1");
    }
  }

  /// What does not go with experts.
  void others() {
    if (usable({"model.bias"}) && deck_.model.bias) {
      problem("model.bias",
              "model.bias = true is not possible with moe.experts: experts have no biases (give "
              "model.bias = false; model.qkv_bias may be true)");
    }
    if (usable({"precision.matmul"}) && deck_.precision.matmul == Matmul::fp8) {
      problem("precision.matmul",
              "precision.matmul = \"fp8\" is not possible with moe.experts: products of experts "
              "have the operands that are stored (use \"same\")");
    }
    const bool dense = moe_.every > 1 || moe_.first_dense > 0 || moe_.shared_ffn_hidden > 0;
    if (usable({"moe.every", "moe.first_dense", "moe.shared_ffn_hidden"}))
      needs("memory.ffn", deck_.memory.ffn > 0, dense, "dense feed-forward layers");
    if (usable({"moe.capacity"}) && moe_.capacity > 0) capacity();
    balance();
    widths();
  }

  void capacity() {
    if (moe_.capacity < 1) {
      problem("moe.capacity",
              fmt::format("moe.capacity = {} is below 1, so that experts would drop tokens however "
                          "these are spread (give 1 or more, or 0 to drop none)",
                          moe_.capacity));
    }
    without_padding("moe.capacity", "padding would take the room of tokens");
  }

  void balance() {
    const bool global = usable({"moe.aux_over"}) && moe_.aux_over == AuxOver::global_batch;
    if (global) {
      needs("moe.aux_over", true, moe_.aux_loss > 0, "moe.aux_loss");
      without_padding("moe.aux_over", "padding would count as tokens");
      not_with("moe.aux_over = \"global_batch\"", "moe.bias", moe_.bias,
               "both balance what whole steps choose", "use one of them");
    }
    needs("moe.bias_update", moe_.bias_update > 0, moe_.bias, "moe.bias");
    if (!usable({"moe.bias_update"}) || moe_.bias_update == 0) return;
    without_padding("moe.bias_update", "padding would count as tokens");
    not_with(fmt::format("adapter.kind = \"{}\"", enum_word(deck_.model.adapter.kind)),
             "moe.bias_update", deck_.model.adapter.kind != AdapterKind::none,
             "what they are beside is frozen", "leave it out");
  }

  /// Terms of routers weigh as much as a sample's targets: of documents as if there were as many as
  /// there is room for.
  void documents() {
    if (!usable({"batch.documents"}) || !deck_.batch.documents || !deck_.batch.token_budget) return;
    const std::string_view why = "it would weigh the more the fewer documents share a sequence";
    not_with("batch.documents", "moe.aux_loss", moe_.aux_loss > 0, why, "use 0");
    not_with("batch.documents", "moe.z_loss", moe_.z_loss > 0, why, "leave it out");
  }

  /// Refuses a key where samples may be padded, and says why.
  void without_padding(std::string_view key, std::string_view why) {
    const bool padded = one_document_each(deck_.task.kind) || deck_.batch.token_budget;
    if (!usable({"task.kind", "batch.token_budget"}) || !padded) return;
    problem(key, fmt::format("{} = {} does not go with {}: {} (leave it out)", key,
                             value_text(find_row(key)->field.get(deck_)),
                             deck_.batch.token_budget ? "batch.token_budget"
                                                      : "samples of one document each",
                             why));
  }

  /// Each chunk has a column at least of what is cut by width, and an expert of what is not.
  void widths() {
    if (!usable({"moe.split", "zero.tiles", "parallel.tensor", "run.reproducible_tensor",
                 "run.reproducible"}))
      return;
    const bool layout = deck_.run.reproducible == Reproducible::layout;
    const std::int64_t chunks = tensor_chunks(deck_);
    const auto at_least = [&](std::string_view key, std::int64_t value, std::string_view remedy) {
      if (!usable({key}) || value >= chunks) return;
      problem(key, fmt::format("{} = {} cannot be divided over {} = {} ({})", key, value,
                               layout ? "run.reproducible_tensor" : "parallel.tensor x zero.tiles",
                               chunks, remedy));
    };
    if (moe_.split == ExpertSplit::experts) {
      at_least("moe.experts", moe_.experts, "use moe.split = \"width\", or fewer parts");
    } else {
      at_least("moe.ffn_hidden", moe_.ffn_hidden, "give more, or fewer parts");
    }
    if (moe_.shared_ffn_hidden > 0)
      at_least("moe.shared_ffn_hidden", moe_.shared_ffn_hidden, "give more, or fewer parts");
  }

  const MoeSection& moe_ = deck_.model.moe;
};

}  // namespace

void check_experts(const LoadedDeck& loaded, Problems& problems) {
  ExpertsChecker(loaded, problems).run();
}

}  // namespace tessera::deck
