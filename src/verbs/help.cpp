// tessera help, and the names of verbs.
#include <CLI/CLI.hpp>

#include <algorithm>

#include "core/error.hpp"
#include "deck/names.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {

std::string help_text(const CLI::App& app) {
  const CLI::App* program = app.get_parent();
  return app.get_formatter()->make_help(
      &app, program == nullptr ? app.get_name() : program->get_name() + ' ' + app.get_name(),
      CLI::AppFormatMode::Normal);
}

std::vector<const CLI::App*> all_verbs(const CLI::App& program) {
  return program.get_subcommands([](const CLI::App*) { return true; });
}

const CLI::App& find_verb(const CLI::App& program, const std::string& name) {
  const auto verbs = all_verbs(program);
  std::vector<std::string> names;
  for (const CLI::App* verb : verbs) names.push_back(verb->get_name());
  const auto found = std::ranges::find(names, name);
  if (found != names.end()) return *verbs[static_cast<std::size_t>(found - names.begin())];
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  const std::string_view nearest = deck::nearest_name(name, candidates);
  throw DeckError(fmt::format("{} is no command of tessera ({})", name,
                              nearest.empty() ? fmt::format("commands: {}", fmt::join(names, ", "))
                                              : fmt::format("did you mean {}?", nearest)));
}

Verb help(CLI::App& app) {
  auto* verb = app.add_subcommand("help", "explain a command, as COMMAND --help does");
  auto name = std::make_shared<std::string>();
  verb->add_option("COMMAND", *name, "the command; without one all are listed");
  return {.launch = Launch::single,
          .run =
              [&app, name] {
                fmt::print("{}", help_text(name->empty() ? app : find_verb(app, *name)));
                return ExitCode::ok;
              },
          .run_on_ranks = {}};
}

}  // namespace tessera::verbs
