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

int report(std::string_view who, ExitCode code, std::string_view message,
           const std::source_location& where = {}) {
  std::string text = fmt::format("tessera: {}{}", who, message);
  if (code == ExitCode::internal) {
    text += fmt::format("\n  (a bug of tessera's, at {}:{}; please report it with the deck)",
                        where.file_name(), where.line());
  }
  text += '\n';
  std::fwrite(text.data(), 1, text.size(), stderr);
  return static_cast<int>(code);
}

/// Whatever ends `work` becomes a message and an exit code.
template <typename Work>
int guarded(std::string_view who, Work&& work) {
  try {
    return static_cast<int>(work());
  } catch (const Error& e) {
    return report(who, e.exit_code(), e.what(), e.where());
  } catch (const std::bad_alloc&) {
    return report(who, ExitCode::memory, "out of memory");
  } catch (const std::exception& e) {
    return report(who, ExitCode::internal, e.what());
  }
}

ExitCode run_on_ranks(const verbs::Verb& verb, int* argc, char*** argv) {
  const comm::MpiSession mpi(argc, argv);
  const comm::Control control;
  try {
    return verb.run_on_ranks(mpi, control);
  } catch (const AgreedError& e) {  // every rank has it: one speaks for all, and all leave in order
    if (mpi.rank() == 0) report("", e.exit_code(), e.what(), e.where());
    return e.exit_code();
  } catch (...) {  // this rank alone failed; the others would wait for it for ever
    const std::string who =
        mpi.size() > 1 ? fmt::format("rank {} on {}: ", mpi.rank(), comm::host_name()) : "";
    comm::leave_at_once(guarded(who, []() -> ExitCode { throw; }));
  }
}

int run(const std::vector<std::pair<CLI::App*, verbs::Verb>>& all, int* argc, char*** argv) {
  for (const auto& [app, verb] : all) {
    if (!app->parsed()) continue;
    return guarded("", [&, &chosen = verb] {
      return chosen.launch == verbs::Launch::single ? chosen.run() : run_on_ranks(chosen, argc, argv);
    });
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
