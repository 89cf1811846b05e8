// tessera: the verbs, the only catch, the only exit code.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/version.hpp"
#include "verbs/verb.hpp"

namespace tessera {
namespace {

/// How a piece of work ended, with the message of what ended it early.
struct Ending {
  ExitCode code = ExitCode::ok;
  std::string message;
};

Ending ending_of(const Error& e) {
  if (e.exit_code() != ExitCode::internal) return {e.exit_code(), e.what()};
  return {e.exit_code(),
          fmt::format("{}\n  (a bug of tessera's, at {}:{}; please report it with the deck)",
                      e.what(), e.where().file_name(), e.where().line())};
}

template <typename Work>
Ending ending_of_work(Work&& work) {
  try {
    return {work(), ""};
  } catch (const Error& e) {
    return ending_of(e);
  } catch (const std::bad_alloc&) {
    return {ExitCode::memory, "out of memory"};
  } catch (const std::exception& e) {
    return {ExitCode::internal, e.what()};
  }
}

int report(std::string_view who, const Ending& ending) {
  if (!ending.message.empty()) {
    const std::string text = fmt::format("tessera: {}{}\n", who, ending.message);
    std::fwrite(text.data(), 1, text.size(), stderr);
  }
  return static_cast<int>(ending.code);
}

ExitCode run_on_ranks(const verbs::Verb& verb, int* argc, char*** argv) {
  const comm::MpiSession mpi(argc, argv);
  const comm::Control control;
  train::Whereabouts whereabouts;
  guard::Watchdog watchdog(mpi.rank());
  try {
    return verb.run_on_ranks({mpi, control, whereabouts, watchdog});
  } catch (const AgreedError& e) {  // every rank has it: one speaks for all, and all leave in order
    if (mpi.rank() == 0) report("", ending_of(e));
    return e.exit_code();
  } catch (...) {  // this rank alone failed; the others would wait for it for ever
    const std::string who =
        mpi.size() > 1 ? fmt::format("rank {} on {}: ", mpi.rank(), comm::host_name()) : "";
    const Ending ending = ending_of_work([]() -> ExitCode { throw; });
    report(who, ending);
    if (watchdog.watching()) watchdog.leave(ending.code, ending.message);
    comm::leave_at_once(static_cast<int>(ending.code));
  }
}

int run(const std::vector<std::pair<CLI::App*, verbs::Verb>>& all, int* argc, char*** argv) {
  for (const auto& [app, verb] : all) {
    if (!app->parsed()) continue;
    return report("", ending_of_work([&, &chosen = verb] {
                    return chosen.launch == verbs::Launch::single
                               ? chosen.run()
                               : run_on_ranks(chosen, argc, argv);
                  }));
  }
  return 0;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using namespace tessera;
  CLI::App app{"Tessera trains large language models on Slurm clusters."};
  app.set_version_flag("--version", std::string("tessera ") + kVersion + " (" + kCommit + ")");
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, verbs::Verb>> all;
  for (auto* add :
       {verbs::train, verbs::evaluate, verbs::check, verbs::plan, verbs::tokenize, verbs::generate,
        verbs::inspect, verbs::import_model, verbs::export_model, verbs::bench}) {
    verbs::Verb verb = add(app);
    all.emplace_back(app.get_subcommands([](CLI::App*) { return true; }).back(), std::move(verb));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : static_cast<int>(ExitCode::deck);
  }
  return run(all, &argc, &argv);
}
