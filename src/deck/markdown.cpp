// The tables of inputs/README.md, from the schema.
#include <fmt/format.h>

#include "deck/schema.hpp"

namespace tessera::deck {

namespace {

constexpr std::string_view kIntroduction = R"(# Decks

A deck is a TOML file that defines a run. `base_gpt2.toml` and `base_llama.toml` hold what the
decks of a family share; each of the others includes one of them and says in one screen what is
its own.

    tessera check inputs/gpt2_124m.toml --ranks 8
    tessera train inputs/gpt2_124m.toml --set run.steps=100 --set zero.stage=3

`include = ["base_gpt2.toml"]` at the top builds on other decks. Later files override earlier
ones, a file overrides what it includes, and `--set section.key=value` overrides all, in order;
its value is TOML, and a bare word is a string.

A path in `include` is relative to the file that includes. All other paths, in decks as on the
command line, are relative to the current directory, the one in which `tessera` is started.

The tables below are generated from the schema in `src/deck`. *Resume* says what a change means
when a run continues from a checkpoint: free, logged as an event, or refused; a change of the
architecture is refused also when the checkpoint is an imported model or is only evaluated.
)";

constexpr std::string_view kCurricula = R"(
A curriculum has the length of sequences grow over the first steps (Li et al. 2021, "Curriculum
learning: a regularization method for efficient and stable billion-scale GPT model pre-training").
Large models then start without leaps of the loss at larger batches and learning rates, and the
first steps are cheaper:

    [batch]
    sequence = 1024
    curriculum = {start = 64, end = 1024, steps = 20000, round = 64}
    # or
    curriculum = {table = [[0, 64], [4000, 256], [12000, 1024]], cut = "anew"}

- `start`: tokens of a sequence in step 0. In step t a sequence has `start` + (`end` - `start`)
  t / `steps` tokens, rounded down to a multiple of `round` (8), but no fewer than `start`.
- `end`: tokens of a sequence in step `steps` and later; `batch.sequence` unless given, and no more.
- `kind`: `"linear"`, or `"root"`, with which the root of t / `steps` is in place of t / `steps`;
  `degree` (2) is that of the root, 16 at most.
- `table`, in place of all these: [step, length] pairs, from that step on that length; the first
  step is 0. There may be 64 lengths at most, as each has plans of its own, which `check` lists with
  their memory.
- `cut`: `"truncate"` or `"anew"`, which says where in the corpus a step's sequences are.

With `cut = "truncate"` a sequence is the beginning of the one that the step would have at
`batch.sequence` tokens, and the rest of that is not trained on; an epoch is over when each sequence
of full length has been used. With `cut = "anew"` each phase, the steps of one length, has the
corpus cut into sequences of its own length. Phases share an epoch out among them: each has its part
of every stretch of the corpus, in an order that the seed shuffles, and each token is trained on
once. Which tokens these are follows from the batches and lengths of all steps: within a run neither
the curriculum nor `batch.global` and `batch.ramp` may change then. A rollback (`guard.spike`) has
later samples in an earlier phase, where their ends are left out.

A length must suit what `batch.sequence` must suit: `parallel.tensor`, `run.reproducible_tensor` and
`precision.matmul`. The loss is a mean over the step's tokens, so it compares between lengths;
evaluation always has `batch.sequence` tokens. `schedule.by = "tokens"` has the learning rate follow
the tokens that were seen, which short sequences move less. `{}` is no curriculum, as for --set.
)";

constexpr std::string_view kSchedules = R"(
`tessera check DECK --schedule` draws the learning rate, the batch and the length of sequences over
the run, and lists the steps at which something begins or ends; `--format svg` makes a picture for a
browser of it.

A run of kind wsd keeps its rate until the last `decay_steps` of its length, so any checkpoint of
its stable phase can be cooled down, by a run whose length is the checkpoint's step and the decay.
From step 50000 over 10000 steps, beside the run that it comes from:

    tessera train DECK --set run.name=cooled --set run.resume=runs/NAME/checkpoints/step_00050000 \
        --set run.steps=60000 --set schedule.decay_steps=10000

The rate falls from where it is at step 50000 to `min_lr`, in a straight line. The kind stays wsd:
linear would decay from the end of the warm-up on, and be far below that rate by then. To start
the cooling run again, leave `run.resume` out: it goes on from its own newest checkpoint. Without
`run.name` and `run.resume` the same cools a run down where it is.
)";

constexpr std::string_view kTokenFiles = R"(
An entry without `.bin` at its end is the prefix of an indexed dataset of Megatron-LM, which is
what `tessera tokenize` writes: PREFIX.bin has the tokens, PREFIX.idx says of what type they are
and where documents end. Two more such pairs may lie beside it, with as many documents:

- PREFIX.targets.bin and PREFIX.targets.idx, of bytes, one a token: 1 where the token counts as a
  target of the loss, 0 where it does not. Without them every token counts.
- PREFIX.labels.bin and PREFIX.labels.idx, of integers of 32 bits, one a document, its label; and
  PREFIX.labels.json, `{"key": "sentiment", "names": ["neg", "pos"]}`: label i is names[i]. Where
  that says `"of": "words"`, there is an integer for each token: 1 + its label at the first token
  of a word, 0 at others. `"closing": 1` says how many tokens at the end of each document are no
  text, so that a document that is cut keeps them.

Several entries are one corpus, their documents one after another. Where all have a weight, as
`{path = "PREFIX", weight = 0.5}`, or epochs, they are a mixture: each is cut and shuffled by
itself, and samples are dealt to them by their weights, which add up to any number, or so that
each is passed over so often in an epoch of the run. Which sample is whose follows from its number.
Without epochs an epoch has as many samples as all entries have sequences.

An entry that ends in `.bin` is a file of llm.c, or a pattern for several, which are taken in the
order of their names. It begins with 256 integers of 32 bits: 20240520, 1, the number of tokens,
and 253 that are not looked at. The tokens follow, of 16 bits without a sign (GPT-2's). Where the
first integers are 20240801 and 7, tokens have 32 bits (Llama 3's). All numbers are little-endian.

What nanoGPT's `prepare.py` writes (`train.bin`, tokens of 16 bits and nothing else) needs an
index beside it, which is made by the following; the entry is then its name without `.bin`. In a
shell, with that name in place of `train`:

    python3 - train <<'END'
    import os, struct, sys
    prefix, most = sys.argv[1], 2**30  # tokens in a row
    tokens = os.path.getsize(prefix + ".bin") // 2
    rows = range(0, tokens, most)
    with open(prefix + ".idx", "wb") as index:
        index.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(rows), 2))
        index.write(struct.pack(f"<{len(rows)}i", *(min(most, tokens - row) for row in rows)))
        index.write(struct.pack(f"<{len(rows)}q", *(2 * row for row in rows)))
        index.write(struct.pack("<2q", 0, len(rows)))
    END
)";

/// Markdown tables take no bare '|'.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string default_cell(const SchemaRow& row) {
  if (row.rules.required) return "*required*";
  if (!row.rules.unset.empty()) return cell(row.rules.unset);
  return fmt::format("`{}`", value_text(row.field.get(Deck{})));
}

std::string meaning_cell(const SchemaRow& row) {
  std::string text = cell(row.meaning);
  if (!row.rules.unit.empty()) text += fmt::format(" ({})", row.rules.unit);
  if (!row.rules.built.empty()) text += fmt::format("; in this version: {}", row.available());
  return text;
}

}  // namespace

std::string token_files_markdown() { return std::string(kTokenFiles); }

std::string curricula_markdown() { return std::string(kCurricula); }

std::string schedules_markdown() { return std::string(kSchedules); }

std::string schema_markdown() {
  std::string out(kIntroduction);
  for (const SchemaSection& section : schema_sections()) {
    out += fmt::format("\n## [{}]\n\n{}.\n", section.name, section.meaning);
    bool header = false;
    for (const SchemaRow& row : schema_rows()) {
      if (row.section != section.name) continue;
      if (!header)
        out += "\n| key | allowed | default | meaning | resume |\n|---|---|---|---|---|\n";
      header = true;
      out += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.key, cell(row.allowed()),
                         default_cell(row), meaning_cell(row), enum_word(row.rules.on_resume));
    }
    if (section.details != nullptr) out += section.details();
  }
  return out;
}

}  // namespace tessera::deck
