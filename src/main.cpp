// tessera: the verbs, the last catch, the exit code.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "core/ending.hpp"
#include "core/version.hpp"
#include "train/leave.hpp"
#include "verbs/verb.hpp"

namespace tessera {
namespace {

/// Says why, and returns the exit code.
ExitCode report(const Ending& ending) {
  fmt::print(stderr, "tessera: {}\n", ending.message);
  return ending.code;
}

ExitCode run_on_ranks(const verbs::Verb& verb, int* argc, char*** argv) {
  const comm::MpiSession mpi(argc, argv);
  const comm::Control control;
  train::Whereabouts whereabouts;
  guard::Watchdog watchdog(mpi.rank());
  const train::Job job{mpi, control, whereabouts, watchdog};
  try {
    return verb.run_on_ranks(job);
  } catch (const AgreedError& e) {  // every rank has it: one speaks for all, and all leave in order
    if (mpi.rank() == 0) report(current_ending());
    return e.exit_code();
  } catch (...) {  // this rank alone failed; the others would wait for it for ever
    train::leave_alone(job);
  }
}

ExitCode run(const std::vector<std::pair<CLI::App*, verbs::Verb>>& all, int* argc, char*** argv) {
  for (const auto& [app, verb] : all) {
    if (!app->parsed()) continue;
    try {
      return verb.launch == verbs::Launch::single ? verb.run() : run_on_ranks(verb, argc, argv);
    } catch (...) {
      return report(current_ending());
    }
  }
  return ExitCode::ok;
}

int parse_and_run(int argc, char** argv) {
  CLI::App app{"Tessera trains large language models on Slurm clusters."};
  app.set_version_flag("--version", std::string("tessera ") + kVersion + " (" + kCommit + ")");
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, verbs::Verb>> all;
  for (auto* add :
       {verbs::train, verbs::evaluate, verbs::check, verbs::plan, verbs::simulate, verbs::tokenize,
        verbs::generate, verbs::inspect, verbs::import_model, verbs::export_model, verbs::bench}) {
    verbs::Verb verb = add(app);
    all.emplace_back(app.get_subcommands([](CLI::App*) { return true; }).back(), std::move(verb));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : static_cast<int>(ExitCode::deck);
  }
  return static_cast<int>(run(all, &argc, &argv));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  try {
    return tessera::parse_and_run(argc, argv);
  } catch (...) {  // before there was a verb to run: for want of memory
    return static_cast<int>(tessera::report(tessera::current_ending()));
  }
}
