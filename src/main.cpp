// tessera: the verbs, the last catch, the exit code.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/launcher.hpp"
#include "core/clock.hpp"
#include "core/ending.hpp"
#include "core/terminal.hpp"
#include "core/version.hpp"
#include "train/guards/leave.hpp"
#include "verbs/verb.hpp"

namespace tessera {
namespace {

/// Says why, and returns the exit code.
ExitCode report(const Ending& ending) {
  tell(fmt::format("tessera: {}\n", ending.text()));
  return ending.code;
}

/// Output that does not arrive is a failure, if there has been no other.
ExitCode after_output(ExitCode code) {
  try {
    close_stdout();
  } catch (const IoError&) {
    if (code == ExitCode::ok) return report(current_ending());
  }
  return code;
}

/// What --help says below the commands.
std::string exit_codes_text() {
  std::string text = "Exit codes:";
  for (const ExitCodeRow& row : exit_code_rows())
    text += fmt::format("\n  {:<4}{}", static_cast<int>(row.code), row.meaning);
  return text;
}

/// Says what CLI11 has to say: help, or what is wrong with a command line, which may hold anything.
ExitCode answer_usage(CLI::App& app, const CLI::ParseError& error) {
  app.failure_message([](const CLI::App* of, const CLI::Error& e) {
    return CLI::FailureMessage::simple(
        of, CLI::Error(e.get_name(), printable(e.what()), e.get_exit_code()));
  });
  std::ostringstream out, err;
  const bool good = app.exit(error, out, err) == 0;
  std::fputs(out.str().c_str(), stdout);  // close_stdout() sees what becomes of it
  tell(err.str());
  return good ? ExitCode::ok : ExitCode::deck;
}

ExitCode run_on_ranks(const verbs::Verb& verb, int* argc, char*** argv) {
  const auto begin = SteadyClock::now();
  const comm::MpiSession mpi(argc, argv);
  const comm::Control control;
  train::Whereabouts whereabouts;
  guard::Watchdog watchdog(mpi.rank());
  const train::Job job{mpi, control, whereabouts, watchdog, seconds_since(begin)};
  try {
    return verb.run_on_ranks(job);
  } catch (const AgreedError& e) {  // every rank has it: one speaks for all, and all leave in order
    if (mpi.rank() == 0) report(current_ending());
    return e.exit_code();
  } catch (...) {  // this rank alone failed; the others would wait for it for ever
    train::leave_alone(job);
  }
}

/// Of an error that all processes of a launch have: the first one says why. The others leave after
/// it, for a launcher that sees one fail may end all.
ExitCode report_once(const AgreedError& error) {
  if (comm::launch_of_process().number == 0) return report(current_ending());
  std::this_thread::sleep_for(std::chrono::seconds(1));
  return error.exit_code();
}

ExitCode run(const std::vector<std::pair<CLI::App*, verbs::Verb>>& all, int* argc, char*** argv) {
  for (const auto& [app, verb] : all) {
    if (!app->parsed()) continue;
    try {
      return verb.is_single() ? verb.run() : run_on_ranks(verb, argc, argv);
    } catch (const AgreedError& e) {
      return report_once(e);
    } catch (...) {
      return report(current_ending());
    }
  }
  return ExitCode::ok;
}

int parse_and_run(int argc, char** argv) {
  reserve_standard_streams();
  CLI::App app{"Tessera trains large language models on Slurm clusters.", "tessera"};
  app.set_version_flag("--version", std::string("tessera ") + kVersion + " (" + kCommit + ")");
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, verbs::Verb>> all;
  for (auto* add : {verbs::train,    verbs::evaluate,     verbs::check,        verbs::plan,
                    verbs::simulate, verbs::tokenize,     verbs::generate,     verbs::classify,
                    verbs::inspect,  verbs::import_model, verbs::export_model, verbs::quantize,
                    verbs::merge,    verbs::bench,        verbs::report,       verbs::doctor,
                    verbs::explain,  verbs::help,         verbs::completion,   verbs::man}) {
    verbs::Verb verb = add(app);
    all.emplace_back(app.get_subcommands([](CLI::App*) { return true; }).back(), std::move(verb));
  }
  app.footer(exit_codes_text());  // after the verbs, which would inherit it
  if (argc > 1 && argv[1][0] != '-') verbs::find_verb(app, argv[1]);  // or says what is near
  ExitCode code = ExitCode::ok;
  try {
    app.parse(argc, argv);
    code = run(all, &argc, &argv);
  } catch (const CLI::ParseError& e) {
    code = answer_usage(app, e);
  }
  return static_cast<int>(after_output(code));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::end_where_memory_runs_out();
  try {
    return tessera::parse_and_run(argc, argv);
  } catch (...) {  // before a verb could run: there is no such verb, or memory has run out
    return static_cast<int>(tessera::report(tessera::current_ending()));
  }
}
