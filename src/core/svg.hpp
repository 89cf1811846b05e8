// Parts of pictures, as the text of an SVG, and text that is safe within HTML and XML.
#pragma once

#include <string>
#include <string_view>

namespace tessera::svg {

/// The text as content, or as the value of an attribute, of HTML and XML. What is not printable()
/// is escaped too, but for line ends.
std::string escaped(std::string_view text);

struct Box {
  double x = 0, y = 0, width = 0, height = 0;
};
/// `more`: further attributes, as they are. `tip`: what a browser shows where the pointer rests.
std::string rectangle(const Box& box, std::string_view colour, std::string_view more = "",
                      std::string_view tip = "");
std::string line(double x1, double y1, double x2, double y2, std::string_view more);
std::string words(double x, double y, std::string_view text, std::string_view more = "");

/// 1, 2 or 5 times a power of ten: the distance of at most `count` ticks over a length.
double tick_of(double length, int count = 10);

}  // namespace tessera::svg
