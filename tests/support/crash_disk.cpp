#include "support/crash_disk.hpp"

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <iterator>
#include <random>
#include <set>

#include "core/error.hpp"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

/// The choices that a file system has after a crash.
class Choices {
 public:
  virtual ~Choices() = default;
  /// Whether a change of a directory has reached the disk.
  virtual bool name() = 0;
  /// Whether a sector has reached the disk.
  virtual bool sector() = 0;
  /// Which of the sizes that a file has had is found; the durable one is the first.
  virtual std::size_t size(std::size_t sizes) = 0;
  virtual std::int64_t sector_bytes() const { return 4096; }
};

/// Makes one sequence of choices after another, until all have been made.
class EveryChoice : public Choices {
 public:
  bool name() override { return pick(2) == 1; }
  bool sector() override { return pick(2) == 1; }
  std::size_t size(std::size_t sizes) override { return pick(sizes); }
  /// Goes on to the next sequence; false when there are no more.
  bool next() {
    at_ = 0;
    while (!made_.empty() && made_.back().first + 1 == made_.back().second) made_.pop_back();
    if (made_.empty()) return false;
    ++made_.back().first;
    return true;
  }

 private:
  std::size_t pick(std::size_t options) {
    if (at_ == made_.size()) made_.emplace_back(0, options);
    return made_[at_++].first;
  }
  std::vector<std::pair<std::size_t, std::size_t>> made_;  // choice, of so many
  std::size_t at_ = 0;
};

/// Keeps all names or none, and all bytes or none.
class Extreme : public Choices {
 public:
  Extreme(bool names, bool bytes) : names_(names), bytes_(bytes) {}
  bool name() override { return names_; }
  bool sector() override { return bytes_; }
  std::size_t size(std::size_t sizes) override { return names_ ? sizes - 1 : 0; }

 private:
  bool names_, bytes_;
};

class Seeded : public Choices {
 public:
  explicit Seeded(std::uint64_t seed)
      : random_(seed), names_(below(5)), sectors_(below(5)), bytes_(below(2) == 0 ? 512 : 4096) {}
  bool name() override { return below(4) < names_; }
  bool sector() override { return below(4) < sectors_; }
  std::size_t size(std::size_t sizes) override { return below(3) == 0 ? sizes - 1 : below(sizes); }
  std::int64_t sector_bytes() const override { return bytes_; }

 private:
  std::size_t below(std::size_t n) { return random_() % n; }
  std::mt19937_64 random_;
  std::size_t names_, sectors_;  // of 4 that are kept
  std::int64_t bytes_;
};

std::string name_of(const std::string& path) { return path.substr(path.rfind('/') + 1); }
std::string directory_of(const std::string& path) {
  const auto at = path.rfind('/');
  return at == std::string::npos ? "" : path.substr(0, at);
}

}  // namespace

FastDirectory::FastDirectory() {
  const fs::path parent =
      fs::is_directory("/dev/shm") ? fs::path("/dev/shm") : fs::temp_directory_path();
  std::string name = (parent / "tessera_crash_XXXXXX").string();
  TESSERA_CHECK(::mkdtemp(name.data()) != nullptr, "{}", name);
  path_ = name;
}

FastDirectory::~FastDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

FileTree read_tree(const fs::path& root) {
  FileTree tree;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const std::string path = entry.path().lexically_relative(root).string();
    if (entry.is_directory()) {
      tree[path] = std::nullopt;
    } else {
      std::ifstream in(entry.path(), std::ios::binary);
      tree[path] = std::string(std::istreambuf_iterator<char>(in), {});
    }
  }
  return tree;
}

void write_tree(const FileTree& tree, const fs::path& root) {
  fs::create_directories(root);
  for (const auto& [path, bytes] : tree) {  // a directory comes before what it holds
    if (!bytes) {
      fs::create_directory(root / path);
      continue;
    }
    std::ofstream out(root / path, std::ios::binary);
    out.write(bytes->data(), std::ssize(*bytes));
    TESSERA_CHECK(out.good(), "cannot write {}", (root / path).string());
  }
}

/// The files as the program sees them, and what of them is durable.
class CrashDisk::Model {
 public:
  explicit Model(const FileTree& durable) {
    nodes_.push_back({.is_directory = true});
    for (const auto& [path, bytes] : durable) {
      const std::size_t node = add(!bytes);
      nodes_[node].bytes = nodes_[node].durable = bytes.value_or("");
      Node& parent = nodes_[at(directory_of(path))];
      parent.names[name_of(path)] = parent.durable_names[name_of(path)] = node;
    }
  }

  void apply(const Change& change) {
    switch (change.call) {
      case IoCall::open: return open(change);
      case IoCall::write: return edit(nodes_[at(change.path)], change);
      case IoCall::resize: return edit(nodes_[at(change.path)], change);
      case IoCall::sync: return sync(nodes_[at(change.path)]);
      case IoCall::rename: {
        const std::size_t node = at(change.path);
        return name(directory_of(change.path),
                    {{name_of(change.path), kNone}, {name_of(change.to), node}});
      }
      case IoCall::exchange: {
        const std::size_t a = at(change.path), b = at(change.to);
        return name(directory_of(change.path),
                    {{name_of(change.path), b}, {name_of(change.to), a}});
      }
      case IoCall::remove: return remove(change.path);
      case IoCall::create_directory: return create_directories(change.path);
      default: break;
    }
    throw InternalError("a call that changes nothing");
  }

  FileTree seen() const {
    FileTree tree;
    walk(
        tree, 0, "", [](const Node& n) { return n.names; }, [](const Node& n) { return n.bytes; });
    return tree;
  }
  FileTree after_crash(Choices& choices) const {
    FileTree tree;
    walk(
        tree, 0, "", [&](const Node& n) { return names_left(n, choices); },
        [&](const Node& n) { return bytes_left(n, choices); });
    return tree;
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  /// Names that change at once: to the node that each has from then on.
  using Naming = std::map<std::string, std::size_t>;
  struct PendingNames {
    Naming now;
    std::set<std::size_t> nodes;  // that have or had one of them
  };
  struct PendingBytes {
    std::int64_t at;
    std::string bytes;
    std::int64_t size;  // of the file after it
  };
  struct Node {
    bool is_directory = false;
    Naming names, durable_names;
    std::vector<PendingNames> renamed;  // since the directory was synced
    std::string bytes, durable;
    std::vector<PendingBytes> written;  // since the file was synced
  };

  std::size_t add(bool is_directory) {
    nodes_.push_back({.is_directory = is_directory});
    return nodes_.size() - 1;
  }
  std::size_t find(const std::string& path) const {
    std::size_t node = 0;
    for (std::size_t begin = 0; begin < path.size() && node != kNone;) {
      const std::size_t end = std::min(path.find('/', begin), path.size());
      const auto& names = nodes_[node].names;
      const auto found = names.find(path.substr(begin, end - begin));
      node = found == names.end() ? kNone : found->second;
      begin = end + 1;
    }
    return node;
  }
  std::size_t at(const std::string& path) const {
    const std::size_t node = find(path);
    TESSERA_CHECK(node != kNone, "{}: changed, but never seen to be made", path);
    return node;
  }

  void name(const std::string& directory, const Naming& now) {
    Node& parent = nodes_[at(directory)];
    PendingNames pending{.now = now, .nodes = {}};
    for (const auto& [name, node] : now) {
      if (const auto old = parent.names.find(name); old != parent.names.end())
        pending.nodes.insert(old->second);
      if (node != kNone) pending.nodes.insert(node);
      parent.names.erase(name);
    }
    for (const auto& [name, node] : now) {
      if (node != kNone) parent.names[name] = node;
    }
    parent.renamed.push_back(std::move(pending));
  }
  void open(const Change& change) {
    if (find(change.path) == kNone)
      name(directory_of(change.path), {{name_of(change.path), add(false)}});
    Node& file = nodes_[at(change.path)];
    if (change.emptied && !file.bytes.empty()) edit(file, {.call = IoCall::resize});
  }
  static void edit(Node& file, const Change& change) {
    const auto at = static_cast<std::size_t>(change.at);
    if (change.call == IoCall::resize) {
      file.bytes.resize(at, '\0');
    } else {
      file.bytes.resize(std::max(file.bytes.size(), at + change.written.size()), '\0');
      file.bytes.replace(at, change.written.size(), change.written);
    }
    file.written.push_back({change.at, change.written, std::ssize(file.bytes)});
  }
  static void sync(Node& node) {
    node.durable = node.bytes, node.written.clear();
    node.durable_names = node.names, node.renamed.clear();
  }
  void remove(const std::string& path) {
    const std::size_t node = find(path);
    if (node == kNone) return;
    const Naming inside = nodes_[node].names;
    for (const auto& [name, child] : inside) remove(path + "/" + name);
    name(directory_of(path), {{name_of(path), kNone}});
  }
  void create_directories(const std::string& path) {
    if (find(path) != kNone) return;
    create_directories(directory_of(path));
    name(directory_of(path), {{name_of(path), add(true)}});
  }

  /// A change builds on each earlier one of the same name or node.
  static bool builds_on(const PendingNames& later, const PendingNames& earlier) {
    return std::any_of(later.now.begin(), later.now.end(),
                       [&](const auto& n) { return earlier.now.contains(n.first); }) ||
           std::any_of(later.nodes.begin(), later.nodes.end(),
                       [&](std::size_t n) { return earlier.nodes.contains(n); });
  }
  static Naming names_left(const Node& directory, Choices& choices) {
    Naming names = directory.durable_names;
    std::vector<const PendingNames*> lost;
    for (const PendingNames& pending : directory.renamed) {
      const bool possible = std::none_of(lost.begin(), lost.end(), [&](const auto* earlier) {
        return builds_on(pending, *earlier);
      });
      if (!possible || !choices.name()) {
        lost.push_back(&pending);
        continue;
      }
      for (const auto& [name, node] : pending.now) names.erase(name);
      for (const auto& [name, node] : pending.now) {
        if (node != kNone) names[name] = node;
      }
    }
    return names;
  }
  static std::string bytes_left(const Node& file, Choices& choices) {
    if (file.written.empty()) return file.durable;
    std::string bytes = file.durable;
    for (const PendingBytes& pending : file.written) {
      const auto end = pending.at + std::ssize(pending.bytes);
      for (std::int64_t begin = pending.at; begin < end;) {
        const std::int64_t next =
            std::min(end, (begin / choices.sector_bytes() + 1) * choices.sector_bytes());
        if (choices.sector()) {
          bytes.resize(std::max(bytes.size(), static_cast<std::size_t>(next)), '\0');
          bytes.replace(static_cast<std::size_t>(begin), static_cast<std::size_t>(next - begin),
                        pending.bytes, static_cast<std::size_t>(begin - pending.at),
                        static_cast<std::size_t>(next - begin));
        }
        begin = next;
      }
    }
    const std::size_t which = choices.size(file.written.size() + 1);
    bytes.resize(
        which == 0 ? file.durable.size() : static_cast<std::size_t>(file.written[which - 1].size),
        '\0');
    return bytes;
  }

  template <typename Names, typename Bytes>
  void walk(FileTree& tree, std::size_t node, const std::string& path, Names&& names,
            Bytes&& bytes) const {
    for (const auto& [name, child] : names(nodes_[node])) {
      const std::string below = path.empty() ? name : path + "/" + name;
      const bool is_directory = nodes_[child].is_directory;
      tree[below] = is_directory ? std::nullopt : std::optional(bytes(nodes_[child]));
      if (is_directory) walk(tree, child, below, names, bytes);
    }
  }

  std::deque<Node> nodes_;  // the root first
};

CrashDisk::CrashDisk(fs::path root) : root_(std::move(root)), before_(read_tree(root_)) {
  io::set_io_witness([this](const io::IoChange& change) { record(change); });
}

CrashDisk::~CrashDisk() {
  if (recording_) io::set_io_witness({});
}

void CrashDisk::stop() {
  io::set_io_witness({});
  recording_ = false;
  Model model(before_);
  for (const Change& change : changes_) model.apply(change);
  const FileTree expected = model.seen(), found = read_tree(root_);
  for (const FileTree* tree : {&expected, &found}) {
    for (const auto& [path, bytes] : *tree) {
      const auto a = expected.find(path), b = found.find(path);
      TESSERA_CHECK(a != expected.end() && b != found.end() && a->second == b->second,
                    "{} was changed, but not by io/system_calls", path);
    }
  }
}

std::size_t CrashDisk::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_.size();
}

std::string CrashDisk::describe(std::size_t change) const {
  if (change == 0) return "before the first call";
  const Change& c = changes_[change - 1];
  return fmt::format("after call {} of {}, {} of {}{}", change, changes_.size(), enum_word(c.call),
                     c.path, c.to.empty() ? "" : " to " + c.to);
}

std::optional<std::string> CrashDisk::below_root(const fs::path& path) const {
  std::string below = path.lexically_normal().lexically_relative(root_).string();
  if (below.empty() || below.starts_with("..")) return std::nullopt;
  if (below.ends_with('/')) below.pop_back();
  return below == "." ? "" : below;
}

void CrashDisk::record(const io::IoChange& change) {
  const auto path = below_root(change.path), to = below_root(change.to);
  if (!path || !to) return;
  TESSERA_CHECK(change.call != IoCall::rename || directory_of(*path) == directory_of(*to),
                "{}: renamed into another directory, which is not modelled", *path);
  const std::lock_guard lock(mutex_);
  changes_.push_back(
      {.call = change.call,
       .path = *path,
       .to = *to == *path ? "" : *to,
       .written = {reinterpret_cast<const char*>(change.written.data()), change.written.size()},
       .at = change.at,
       .emptied = change.emptied});
}

std::vector<FileTree> CrashDisk::after_crash(std::size_t changes, int samples,
                                             std::uint64_t seed) const {
  Model model(before_);
  for (std::size_t i = 0; i < changes; ++i) model.apply(changes_[i]);
  std::set<FileTree> trees;
  EveryChoice every;
  bool more = true;
  for (int tried = 0; more && tried < samples; ++tried) {
    trees.insert(model.after_crash(every));
    more = every.next();
  }
  if (more) {
    trees.clear();
    for (const bool names : {false, true}) {
      for (const bool bytes : {false, true}) {
        Extreme extreme(names, bytes);
        trees.insert(model.after_crash(extreme));
      }
    }
    for (int i = 0; i < samples; ++i) {
      Seeded seeded(seed * 1'000'003 + changes * 1'009 + static_cast<std::uint64_t>(i));
      trees.insert(model.after_crash(seeded));
    }
  }
  return {trees.begin(), trees.end()};
}

void CrashDisk::each_crash(int samples, std::uint64_t seed,
                           const std::function<void(std::size_t, const fs::path&)>& check,
                           std::size_t first) const {
  TESSERA_CHECK(!recording_, "stop() comes first");
  const FastDirectory fresh;
  const fs::path place = fresh / "left";
  for (std::size_t changes = first; changes <= changes_.size(); ++changes) {
    for (const FileTree& tree : after_crash(changes, samples, seed)) {
      fs::remove_all(place);
      write_tree(tree, place);
      check(changes, place);
    }
  }
}

}  // namespace tessera::test
