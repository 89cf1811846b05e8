// The verbs of the command line, one file each. A verb parses nothing: CLI11 fills its options,
// then `run` is called.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deck/words.hpp"
#include "io/document_reader.hpp"
#include "train/job.hpp"

namespace CLI {
class App;
}

namespace tessera::verbs {

/// Whether a verb is started by mpirun or srun on many ranks (MPI is initialised) or is a single
/// process.
enum class Launch { single, ranks };

struct Verb {
  Launch launch = Launch::single;
  std::function<ExitCode()> run;                            // Launch::single
  std::function<ExitCode(const train::Job&)> run_on_ranks;  // Launch::ranks
  /// Of Launch::ranks: whether its options ask for what a single process does, by run().
  std::function<bool()> alone = {};
  bool is_single() const { return launch == Launch::single || (alone && alone()); }
};

// Each adds its subcommand and options to `app` and returns what to run.
Verb train(CLI::App& app);
Verb evaluate(CLI::App& app);
Verb check(CLI::App& app);
Verb plan(CLI::App& app);
Verb simulate(CLI::App& app);
Verb tokenize(CLI::App& app);
Verb generate(CLI::App& app);
Verb classify(CLI::App& app);
Verb inspect(CLI::App& app);
Verb export_model(CLI::App& app);
Verb bench(CLI::App& app);
Verb import_model(CLI::App& app);
Verb quantize(CLI::App& app);
Verb merge(CLI::App& app);
Verb report(CLI::App& app);
Verb doctor(CLI::App& app);
Verb help(CLI::App& app);
Verb explain(CLI::App& app);
Verb completion(CLI::App& app);
Verb man(CLI::App& app);

/// The verbs of the program, in the order in which its help lists them.
std::vector<const CLI::App*> all_verbs(const CLI::App& program);

/// The verb of this name. DeckError, with the nearest name, where there is none.
const CLI::App& find_verb(const CLI::App& program, const std::string& name);

/// What --help prints: of the program, or of a verb.
std::string help_text(const CLI::App& app);

/// DECK and repeatable --set section.key=value, shared by several verbs.
struct DeckOptions {
  std::string path;
  std::vector<std::string> sets;
  void add_to(CLI::App& app, const std::string& what = "input deck (TOML)");
};

/// --allow-non-finite, of verbs that read weights: calls `allow` where it is given.
void add_allow_non_finite(CLI::App& app, const std::function<void()>& allow);

/// --ema: averaged weights in place of those that were trained; `weights` is the state to read.
void add_ema(CLI::App& app, std::string& weights);

/// --separator, what lies between the documents of text files, as it is written; and the text that
/// it means by C's escapes for white space and the backslash, DeckError for others.
void add_separator(CLI::App& app, std::string& separator);
std::string separator_of(const std::string& written);

/// DeckError for a separator or field that none of these files has.
void check_document_rules(std::span<const std::filesystem::path> inputs,
                          const io::DocumentRules& rules);

/// --type, f32, bf16 or f16, for `take`; help says what it is unless it is given.
void add_type(CLI::App& app, const std::function<void(DType)>& take,
              const std::string& unless_given, const std::string& what);
/// Likewise, of one that has its default.
void add_type(CLI::App& app, DType& type, const std::string& what);

/// Finds a template's tokens; `name` is what --chat has called it. DeckError for a --field that it
/// does not heed.
void bind_template(io::ChatTemplate& chat, const std::string& name, const std::string& field,
                   const io::Tokenizer& tokenizer);

/// --backend, a word of run.backend, of what runs without a deck; nothing: it was not given.
void add_backend(CLI::App& app, std::optional<deck::Backend>& backend, const std::string& what);

}  // namespace tessera::verbs
