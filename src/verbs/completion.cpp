// tessera completion: a script that completes commands, options and keys of decks in a shell.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>

#include "deck/schema.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

/// The words that an option takes, where it takes only some: CLI11 names them "TEXT:{cpu,cuda}".
std::string words_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t open = type.find('{'), close = type.find('}');
  if (open == std::string::npos || close == std::string::npos) return "";
  std::string words = type.substr(open + 1, close - open - 1);
  std::replace(words.begin(), words.end(), ',', ' ');
  return words;
}

/// What follows "VERB" (its options), "VERB --option" and, as "VERB +", its first argument; "+":
/// the verbs.
std::map<std::string, std::string> words_after(const CLI::App& program) {
  std::map<std::string, std::string> after;
  std::string names;
  for (const CLI::App* verb : all_verbs(program)) {
    const std::string& name = verb->get_name();
    names += (names.empty() ? "" : " ") + name;
    for (const CLI::Option* option : verb->get_options()) {
      const std::string words = words_of(*option);
      for (const std::string& longer : option->get_lnames()) {
        after[name] += (after[name].empty() ? "--" : " --") + longer;
        if (!words.empty()) after[name + " --" + longer] = words;
      }
      if (option->get_positional() && !words.empty()) after.try_emplace(name + " +", words);
    }
  }
  after["help +"] = names;
  after["+"] = names + " --help --version";
  return after;
}

/// "section.key=" of every key, and the words that those take which take only some.
std::pair<std::string, std::map<std::string, std::string>> keys_and_words() {
  std::string keys;
  std::map<std::string, std::string> words;
  for (const deck::SchemaRow& row : deck::schema_rows()) {
    keys += fmt::format("{}{}=", keys.empty() ? "" : " ", row.name);
    auto choices = row.field.words();
    if (std::holds_alternative<bool>(row.field.get(deck::Deck{}).data)) choices = {"true", "false"};
    if (!choices.empty()) words[std::string(row.name)] = fmt::format("{}", fmt::join(choices, " "));
  }
  return {keys, words};
}

std::string array_text(std::string_view name, const std::map<std::string, std::string>& rows) {
  std::string text = fmt::format("declare -gA {}=(\n", name);
  for (const auto& [key, words] : rows) text += fmt::format("  ['{}']='{}'\n", key, words);
  return text + ")\n";
}

// Bash takes "=" for a word of its own: "--set zero.stage=3" has four words, and so has
// "bench gemm --backend=cpu".
constexpr std::string_view kFunction = R"(
_tessera() {
  local word=${COMP_WORDS[COMP_CWORD]} at=$((COMP_CWORD - 1)) verb=${COMP_WORDS[1]} words= key=
  [[ $word == = ]] && word= && at=$COMP_CWORD
  local before=${COMP_WORDS[at]}
  if [[ $before == = ]]; then
    key=${COMP_WORDS[at - 1]} before=${COMP_WORDS[at - 1]}
    [[ $key == -* ]] || before=--set
  fi
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    words=${_tessera_after[+]}
  elif [[ $before == --set && $key && $key != --set ]]; then
    words=${_tessera_words[$key]-}
  elif [[ $before == --set ]]; then
    words=$_tessera_keys
    compopt -o nospace 2>/dev/null
  elif [[ $before == -* && ${_tessera_after["$verb $before"]-} ]]; then
    words=${_tessera_after["$verb $before"]}
  elif [[ $word == -* ]]; then
    words=${_tessera_after[$verb]-}
  elif ((COMP_CWORD == 2)); then
    words=${_tessera_after["$verb +"]-}
  fi
  [[ $words ]] && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _tessera tessera
)";

std::string bash_script(const CLI::App& program) {
  auto after = words_after(program);
  const auto [keys, words] = keys_and_words();
  std::string names;
  for (const deck::SchemaSection& section : deck::schema_sections())
    names += fmt::format("{} ", section.name);
  for (const deck::SchemaRow& row : deck::schema_rows()) names += fmt::format("{} ", row.name);
  after["explain +"] = names;
  return "# Completion of tessera's commands, options and keys of decks in bash, made by\n"
         "# `tessera completion bash`: source <(tessera completion bash)\n" +
         array_text("_tessera_after", after) + fmt::format("_tessera_keys='{}'\n", keys) +
         array_text("_tessera_words", words) + std::string(kFunction);
}

}  // namespace

Verb completion(CLI::App& app) {
  auto* verb =
      app.add_subcommand("completion", "print a script that completes commands in a shell");
  verb->add_option("SHELL", "the shell: source <(tessera completion bash)")
      ->required()
      ->check(CLI::IsMember({"bash"}));
  return {.launch = Launch::single,
          .run =
              [&app] {
                fmt::print("{}", bash_script(app));
                return ExitCode::ok;
              },
          .run_on_ranks = {}};
}

}  // namespace tessera::verbs
