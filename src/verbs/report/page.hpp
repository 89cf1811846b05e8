// The page that `tessera report` writes: text of HTML that grows part by part, with its own style
// and script, so that it needs no other file and no network.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::verbs {

/// Whatever a run's files hold goes through text(), never through markup().
class Page {
 public:
  explicit Page(std::string_view title);

  Page& markup(std::string_view html);
  Page& text(std::string_view anything);

  /// Begins a part that the list at the page's head leads to; `level` 1 or 2.
  void heading(int level, std::string_view id, std::string_view title);
  void paragraph(std::string_view words, std::string_view css_class = "");
  /// Columns that have numbers alone are to the right. A row has a cell for each of the header's.
  void table(std::span<const std::string> header, std::span<const std::vector<std::string>> rows);
  void preformatted(std::string_view text);
  /// What is opened by a click; end with end_folded().
  void begin_folded(std::string_view summary, bool open);
  void end_folded();

  /// The whole page.
  std::string finish() const;

 private:
  std::string title_, contents_, body_;
};

}  // namespace tessera::verbs
