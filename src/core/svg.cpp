#include "core/svg.hpp"

#include <fmt/format.h>

#include <cmath>

#include "core/terminal.hpp"

namespace tessera::svg {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : printable(text, LineEnds::kept)) {
    switch (c) {
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '&': out += "&amp;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string rectangle(const Box& box, std::string_view colour, std::string_view more,
                      std::string_view tip) {
  const std::string begin = fmt::format(
      "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"{}{}", box.x,
      box.y, box.width, box.height, colour, more.empty() ? "" : " ", more);
  if (tip.empty()) return begin + "/>\n";
  return fmt::format("{}><title>{}</title></rect>\n", begin, escaped(tip));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view more) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, more);
}

std::string words(double x, double y, std::string_view text, std::string_view more) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}{}>{}</text>\n", x, y,
                     more.empty() ? "" : " ", more, escaped(text));
}

double tick_of(double length, int count) {
  const double power = std::pow(10, std::floor(std::log10(length / count)));
  for (const double times : {1.0, 2.0, 5.0}) {
    if (length / (times * power) <= count) return times * power;
  }
  return 10 * power;
}

}  // namespace tessera::svg
