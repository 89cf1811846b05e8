// tessera: the verbs, the only catch, the only exit code.
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/version.hpp"
#include "verbs/verb.hpp"

namespace tessera {
namespace {

int report(const comm::MpiSession* mpi, ExitCode code, std::string_view message,
           const std::source_location* where) {
  char host[128] = "?";
  gethostname(host, sizeof host - 1);
  std::string text = "tessera: ";
  if (mpi != nullptr && mpi->size() > 1) text += fmt::format("rank {} on {}: ", mpi->rank(), host);
  text += message;
  if (code == ExitCode::internal && where != nullptr) {
    text += fmt::format("\n  (a bug of tessera's, at {}:{}; please report it with the deck)",
                        where->file_name(), where->line());
  }
  text += '\n';
  std::fwrite(text.data(), 1, text.size(), stderr);
  return static_cast<int>(code);
}

int run(const std::vector<std::pair<CLI::App*, verbs::Verb>>& all, int* argc, char*** argv) {
  for (const auto& [app, verb] : all) {
    if (!app->parsed()) continue;
    if (verb.launch == verbs::Launch::single) return static_cast<int>(verb.run());
    comm::MpiSession mpi(argc, argv);
    try {
      const comm::Control control;
      return static_cast<int>(verb.run_on_ranks(mpi, control));
    } catch (const AgreedError&
                 e) {  // every rank has it: the lowest one that does speaks, and all leave in order
      if (mpi.rank() == 0) report(&mpi, e.exit_code(), e.what(), &e.where());
      return static_cast<int>(e.exit_code());
    }
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
  try {
    return run(all, &argc, &argv);
  } catch (const Error& e) {
    // This rank alone failed; the others would wait for it for ever.
    const int code = report(nullptr, e.exit_code(), e.what(), &e.where());
    comm::leave_at_once(code);
  } catch (const std::bad_alloc&) {
    comm::leave_at_once(report(nullptr, ExitCode::memory, "out of memory", nullptr));
  } catch (const std::exception& e) {
    comm::leave_at_once(report(nullptr, ExitCode::internal, e.what(), nullptr));
  }
}
