// tessera doctor: what a run on these nodes would meet, before it is started.
#include "verbs/doctor/doctor.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/mpi/control.hpp"
#include "core/terminal.hpp"
#include "core/version.hpp"
#include "verbs/load.hpp"
#include "verbs/verb.hpp"

namespace tessera::verbs {
namespace {

/// The findings of a rank as text, for rank 0.
std::string to_text(const std::vector<Finding>& findings) {
  auto all = nlohmann::json::array();
  for (const Finding& f : findings) {
    all.push_back({static_cast<int>(f.health), printable(f.what), printable(f.fix),
                   static_cast<int>(f.code), f.name});
  }
  return all.dump();
}
std::vector<Finding> from_text(const std::string& text) {
  std::vector<Finding> findings;
  for (const auto& f : nlohmann::json::parse(text)) {
    findings.push_back({.health = static_cast<Health>(f[0].get<int>()),
                        .what = f[1],
                        .fix = f[2],
                        .code = static_cast<ExitCode>(f[3].get<int>()),
                        .name = f[4]});
  }
  return findings;
}

/// Rank 0's account of all findings.
class Account {
 public:
  void add(const char* check, const Finding& f, const std::string& where) {
    if (f.health == Health::broken && code_ == ExitCode::ok) code_ = f.code;
    ++counts_[f.health];
    fmt::print("{:<7} {:<20}{}{}\n", enum_word(f.health), f.name.empty() ? check : f.name,
               printable(f.what), printable(where));
    if (!f.fix.empty()) fmt::print("{:<28}fix: {}\n", "", printable(f.fix));
  }
  ExitCode end() const {
    const auto count = [&](Health health) {
      const auto it = counts_.find(health);
      return it == counts_.end() ? 0 : it->second;
    };
    fmt::print("{} good, {} poor, {} broken{}\n", count(Health::good), count(Health::poor),
               count(Health::broken),
               code_ == ExitCode::ok
                   ? ""
                   : fmt::format(": a run would end with exit code {}", static_cast<int>(code_)));
    return code_;
  }

 private:
  ExitCode code_ = ExitCode::ok;
  std::map<Health, int> counts_;
};

/// What a node finds, by its first rank; what throws is broken.
std::vector<Finding> look(const NodeCheck& check, const Subject& subject) {
  try {
    return check.look(subject);
  } catch (const Error& e) {
    return {{.health = Health::broken, .what = e.what(), .fix = "", .code = e.exit_code()}};
  }
}

/// What several nodes find alike.
struct Alike {
  Finding finding;
  std::vector<std::string> hosts;
  bool same = true;  // in every word

  bool takes(const Finding& f, Texts texts) const {
    if (f.name != finding.name || f.health != finding.health) return false;
    if (f.fix != finding.fix) return false;
    return f.what == finding.what || (texts == Texts::vary && f.health != Health::broken);
  }
  std::string where(std::size_t nodes) const {
    constexpr std::size_t kMost = 8;
    if (nodes == 1 || (hosts.size() == nodes && same)) return "";
    if (hosts.size() == nodes) return fmt::format(" [{}; the other nodes alike]", hosts.front());
    const auto shown = std::span(hosts).first(std::min(hosts.size(), kMost));
    return fmt::format(
        " [{}{}]", fmt::join(shown, ", "),
        hosts.size() > kMost ? fmt::format(" and {} more", hosts.size() - kMost) : "");
  }
};

void check_nodes(std::span<const NodeCheck> checks, const Subject& subject, Account& account) {
  const train::Job& job = subject.job;
  const bool first = job.mpi.node_of()[static_cast<std::size_t>(job.mpi.rank())] == job.mpi.rank();
  const auto hosts = job.control.gather(first ? comm::host_name() : "");
  for (const NodeCheck& check : checks) {
    const auto found = job.control.gather(first ? to_text(look(check, subject)) : "");
    if (job.control.rank() != 0) continue;
    std::vector<Alike> groups;
    for (std::size_t r = 0; r < found.size(); ++r) {
      if (found[r].empty()) continue;
      for (const Finding& f : from_text(found[r])) {
        auto group =
            std::ranges::find_if(groups, [&](const Alike& g) { return g.takes(f, check.texts); });
        if (group == groups.end()) group = groups.insert(group, Alike{.finding = f, .hosts = {}});
        group->hosts.push_back(hosts[r]);
        group->same = group->same && group->finding.what == f.what;
      }
    }
    const auto nodes = static_cast<std::size_t>(job.mpi.job().nodes);
    for (const Alike& group : groups) account.add(check.name, group.finding, group.where(nodes));
  }
}

ExitCode examine(const DoctorOptions& o, const train::Job& job) {
  Subject subject{.job = job, .options = o, .deck = {}};
  if (!o.deck.empty())
    subject.deck = load_on_all(job.control, {.path = o.deck, .sets = o.sets}).loaded.deck;
  if (job.control.rank() == 0)
    fmt::print("tessera {} ({}) on {}\n", kVersion, kCommit, comm::host_name());
  Account account;
  for (const auto checks : {software_checks(), system_checks(), directory_checks()})
    check_nodes(checks, subject, account);
  for (const JobCheck& check : job_checks()) {
    for (const Finding& f : check.look(subject)) {
      if (job.control.rank() == 0) account.add(check.name, f, "");
    }
  }
  ExitCode code = ExitCode::ok;
  if (job.control.rank() == 0) code = account.end();
  return static_cast<ExitCode>(job.control.max(static_cast<std::int64_t>(code)));
}

}  // namespace

Verb doctor(CLI::App& app) {
  auto* verb = app.add_subcommand(
      "doctor",
      "say what a run would meet here: libraries, limits, file systems, links; also under mpirun "
      "or srun, of all nodes. Exit code 0 unless something is broken");
  auto o = std::make_shared<DoctorOptions>();
  auto* deck =
      verb->add_option("--deck", o->deck, "look at this deck's directories, data and device");
  verb->add_option("--set", o->sets, "as for train")->allow_extra_args(false)->needs(deck);
  verb->add_option("--dir", o->directories, "look at this directory too")->allow_extra_args(false);
  return {.launch = Launch::ranks, .run = {}, .run_on_ranks = [o](const train::Job& job) {
            return examine(*o, job);
          }};
}

}  // namespace tessera::verbs
