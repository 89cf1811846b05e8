// tessera man: the manual page, of the text that --help prints.
#include <CLI/CLI.hpp>

#include "core/ending.hpp"
#include "core/version.hpp"
#include "train/report/run_directory.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

/// Text as roff reads it: nothing in it is a request or an escape.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (out.empty() && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\n') {
      out += ' ';
    } else if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

/// An entry of a list: what it is about, and its text.
std::string entry(std::string_view of, std::string_view text) {
  return fmt::format(".TP\n.B {}\n{}\n", roff(of), roff(text));
}

/// One option or argument: its name, what it takes, what it means.
std::string option_text(const CLI::Option& option) {
  const std::string name = option.get_name(option.get_positional(), true);
  std::string takes = option.get_type_size() == 0 ? "" : option.get_type_name();
  if (!option.get_default_str().empty()) takes += "=" + option.get_default_str();
  if (option.get_required()) takes += " (required)";
  return entry(name, takes + (takes.empty() ? "" : ". ") + option.get_description());
}

std::string verb_text(const CLI::App& verb) {
  std::string arguments, text;
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_positional()) arguments += ' ' + option->get_name(true);
    text += option_text(*option);
  }
  std::string footer = roff(verb.get_footer());
  if (!footer.empty()) footer = ".PP\n" + footer + '\n';
  return fmt::format(".SS tessera {} [OPTIONS]{}\n{}.\n{}{}", roff(verb.get_name()),
                     roff(arguments), roff(verb.get_description()), text, footer);
}

std::string exit_codes() {
  std::string text = ".SH EXIT STATUS\n";
  for (const ExitCodeRow& row : exit_code_rows())
    text += entry(fmt::format("{}", static_cast<int>(row.code)), row.meaning);
  return text;
}

std::string files() {
  std::string text = ".SH FILES\n" +
                     roff("A run's directory is runs/NAME, or what run.dir says. It holds:") + "\n";
  for (const train::RunFile& file : train::run_files()) text += entry(file.name, file.meaning);
  return text;
}

std::string man_page(const CLI::App& program) {
  std::string text = fmt::format(
      ".TH TESSERA 1 \"\" \"tessera {}\"\n.SH NAME\ntessera \\- trains large language models on "
      "Slurm clusters\n.SH SYNOPSIS\n.B tessera\nCOMMAND [OPTIONS] ...\n.SH DESCRIPTION\n{}\n"
      "What runs is said by a deck, a TOML file; tessera explain says what its keys mean.\n"
      ".SH COMMANDS\n",
      kVersion, roff(program.get_description()));
  for (const CLI::App* verb : all_verbs(program)) text += verb_text(*verb);
  return text + exit_codes() + files();
}

}  // namespace

Verb man(CLI::App& app) {
  app.add_subcommand("man", "print the manual page: tessera man | man -l -");
  return {.launch = Launch::single,
          .run =
              [&app] {
                fmt::print("{}", man_page(app));
                return ExitCode::ok;
              },
          .run_on_ranks = {}};
}

}  // namespace tessera::verbs
