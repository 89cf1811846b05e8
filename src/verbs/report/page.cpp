#include "verbs/report/page.hpp"

#include <fmt/format.h>

#include "core/svg.hpp"

namespace tessera::verbs {
namespace {

constexpr std::string_view kStyle = R"(
:root { color-scheme: light dark; --paper: #fff; --panel: #f6f7f9; --ink: #1c2024; --faint: #626a73;
  --rule: #d5dae0; --link: #0b62c1; --bad: #c62828; --s0: #2f6db5; --s1: #e07b16; --s2: #2e8b57;
  --s3: #a5479b; --s4: #b8860b; --s5: #c0392b; --s6: #17869b; --s7: #6b5b95; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --panel: #1d2125; --ink: #e4e7ea;
  --faint: #9aa3ad; --rule: #3a4149; --link: #7ab7ff; --bad: #ff7a70; --s0: #7fb2ee; --s1: #f5a54a;
  --s2: #6fcf97; --s3: #d98fd0; --s4: #e0bd50; --s5: #ff8a7a; --s6: #62cfe3; --s7: #b3a3dd; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1400px; padding: 1.2rem 1.6rem 4rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: .2rem 0 .6rem; } h2 { font-size: 1.35rem; margin: 2.4rem 0 .6rem;
  border-bottom: 1px solid var(--rule); } h3 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; }
a { color: var(--link); } p { margin: .4rem 0; max-width: 75rem; overflow-wrap: anywhere; }
nav ul { list-style: none; padding: 0; margin: 0 0 1rem; display: flex; flex-wrap: wrap;
  gap: .2rem 1.2rem; } nav li.sub { font-size: .9em; }
.faint { color: var(--faint); } .bad { color: var(--bad); font-weight: 600; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(165px, 1fr)); gap: .6rem;
  margin: .6rem 0; } .tiles div { background: var(--panel); border: 1px solid var(--rule);
  border-radius: 6px; padding: .4rem .7rem; } .tiles b { display: block; font-size: 1.15rem;
  overflow-wrap: anywhere; } .tiles span { color: var(--faint); font-size: .85rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr));
  gap: .8rem; }
figure { margin: 0; background: var(--panel); border: 1px solid var(--rule); border-radius: 6px;
  padding: .5rem .6rem; position: relative; min-width: 0; overflow-x: auto; }
figure svg { display: block;
  width: 100%; height: auto; } figcaption { font-size: .95rem; min-height: 1.5em; }
.unit { color: var(--faint); font-size: .88em; } .key { white-space: nowrap; font-size: .88em;
  margin-left: .6em; } .key i { display: inline-block; width: 14px; height: 3px;
  vertical-align: middle; margin-right: .3em; background: var(--c); }
.s0 { --c: var(--s0); } .s1 { --c: var(--s1); } .s2 { --c: var(--s2); } .s3 { --c: var(--s3); }
.s4 { --c: var(--s4); } .s5 { --c: var(--s5); } .s6 { --c: var(--s6); } .s7 { --c: var(--s7); }
.plot path { fill: none; stroke: var(--c); stroke-linejoin: round; }
.plot { min-width: 460px; } .plot .line { stroke-width: 1.7; }
.plot .raw { stroke-width: .8; opacity: .4; } .plot circle { fill: var(--c); }
.plot text { font: 11px system-ui, sans-serif; fill: var(--ink); } .plot .y { text-anchor: end; }
.plot .x { text-anchor: middle; } .plot .faint { fill: var(--faint); }
.grid { stroke: var(--rule); stroke-width: .6; } .edge { stroke: var(--faint); }
.mark { stroke-width: 1.4; stroke: var(--faint); }
.restart { stroke-dasharray: 5 3; stroke: var(--link); }
.fault { stroke: var(--bad); } .rollback { stroke: var(--s1); stroke-dasharray: 2 2; }
.skip { stroke: var(--bad); stroke-dasharray: 1 3; }
.warning { stroke: var(--s4); stroke-dasharray: 3 3; }
.stop { stroke: var(--s3); stroke-dasharray: 6 2; }
.checkpoint { stroke: var(--s2); stroke-width: 1; }
.marks span { margin-right: 1.1rem; white-space: nowrap; } .marks svg { width: 22px; height: 14px;
  vertical-align: middle; margin-right: .3em; }
.cursor { stroke: var(--ink); stroke-width: .7; } .tip { position: absolute; pointer-events: none;
  background: var(--paper); color: var(--ink); border: 1px solid var(--rule); border-radius: 4px;
  padding: .15rem .5rem; font-size: .82rem; white-space: pre; z-index: 2; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .92rem; margin: .4rem 0; }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--rule);
  vertical-align: top; overflow-wrap: break-word; max-width: 34rem; } th { color: var(--faint);
  font-weight: 600; } td.n, th.n { text-align: right; white-space: nowrap; }
pre { background: var(--panel); border: 1px solid var(--rule); border-radius: 6px;
  padding: .6rem .8rem; overflow-x: auto; font: 12.5px/1.45 ui-monospace, monospace;
  max-height: 36rem; margin: .4rem 0; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--link); }
.step svg { min-width: 900px; } .step .paper { fill: var(--panel); }
.step .idle { fill: var(--rule); }
.step text:not(.on) { fill: var(--ink); } .step text.stream { fill: var(--faint); }
.log { max-height: 30rem; overflow-y: auto; } .log ul { margin: 0; padding-left: 1.2rem; }
.bar { background: var(--s0); height: .8rem; display: inline-block; min-width: 1px; }
@media print { body { max-width: none; } pre { max-height: none; } }
)";

/// What a chart says of the step under the pointer, from the points that it draws.
constexpr std::string_view kScript = R"(
"use strict";
const near = (points, x) => { let low = 0, high = points.length - 1;
  while (high - low > 1) { const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle; else high = middle; }
  const left = Math.abs(points[low][0] - x) < Math.abs(points[high][0] - x);
  return points[left ? low : high]; };
const short = v => { for (const [from, unit, text] of [[1e12, 1e12, "T"], [1e9, 1e9, "G"],
    [1e6, 1e6, "M"], [1e4, 1e3, "k"]])
    if (Math.abs(v) >= from) return +(v / unit).toPrecision(4) + text;
  return String(+v.toPrecision(4)); };
for (const svg of document.querySelectorAll("svg.plot")) {
  const [left, top, width, height] = svg.dataset.plot.split(" ").map(Number);
  const [x0, x1] = svg.dataset.x.split(" ").map(Number);
  const [y0, y1] = svg.dataset.y.split(" ").map(Number);
  const value = y => { const part = 1 - (y - top) / height;
    return svg.dataset.log === "1" ? y0 * Math.pow(y1 / y0, part) : y0 + part * (y1 - y0); };
  let lines = null;
  const tip = document.createElement("div"); tip.className = "tip"; tip.hidden = true;
  svg.parentNode.append(tip);
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor"); cursor.setAttribute("y1", top);
  cursor.setAttribute("y2", top + height);
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cursor.remove(); });
  svg.addEventListener("pointermove", event => {
    lines = lines || [...svg.querySelectorAll("path")].map(path => ({ name: path.dataset.name,
      points: path.getAttribute("d").split(/[ML]/).slice(1).map(p => p.split(" ").map(Number)) }));
    const box = svg.getBoundingClientRect(), scale = 640 / box.width;
    const at = (event.clientX - box.left) * scale;
    if (at < left - 5 || at > left + width + 5) { tip.hidden = true; cursor.remove(); return; }
    const found = lines.filter(l => l.points.length)
      .map(l => ({ name: l.name, point: near(l.points, at) }));
    if (!found.length) return;
    const x = found.reduce((a, b) => Math.abs(b.point[0] - at) < Math.abs(a - at) ? b.point[0] : a,
      found[0].point[0]);
    let step = x0 + (x - left) / width * (x1 - x0);
    if (svg.dataset.name === "step") step = Math.round(step);
    tip.textContent = svg.dataset.name + " " + (Number.isInteger(step) ? step : short(step)) +
      found.filter(f => Math.abs(f.point[0] - x) < 12)
        .map(f => "\n" + f.name + ": " + short(value(f.point[1]))).join("");
    cursor.setAttribute("x1", x); cursor.setAttribute("x2", x); svg.append(cursor);
    tip.hidden = false;
    const right = x / scale > box.width / 2;
    tip.style.top = svg.parentNode.firstElementChild.offsetHeight + 12 + "px";
    tip.style.left = right ? "" : x / scale + 24 + "px";
    tip.style.right = right ? box.width - x / scale + 24 + "px" : "";
  });
}
)";

/// Whether it is a number with its unit at most: columns of these are to the right.
bool is_number(std::string_view cell) {
  constexpr std::size_t kLongest = 12;
  const std::string_view digits = cell.substr(cell.starts_with('-') ? 1 : 0);
  return !digits.empty() && digits.front() >= '0' && digits.front() <= '9' &&
         cell.size() <= kLongest;
}

}  // namespace

Page::Page(std::string_view title) : title_(title) {}

Page& Page::markup(std::string_view html) {
  body_ += html;
  return *this;
}

Page& Page::text(std::string_view anything) { return markup(svg::escaped(anything)); }

void Page::heading(int level, std::string_view id, std::string_view title) {
  const std::string shown = svg::escaped(title);
  contents_ += fmt::format("<li{}><a href=\"#{}\">{}</a></li>\n", level > 1 ? " class=\"sub\"" : "",
                           id, shown);
  markup(fmt::format("<h{0} id=\"{1}\">{2}</h{0}>\n", level + 1, id, shown));
}

void Page::paragraph(std::string_view words, std::string_view css_class) {
  markup(css_class.empty() ? "<p>" : fmt::format("<p class=\"{}\">", css_class));
  text(words).markup("</p>\n");
}

void Page::table(std::span<const std::string> header,
                 std::span<const std::vector<std::string>> rows) {
  std::vector<bool> numbers(header.size(), true);
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      numbers[i] = numbers[i] && (row[i].empty() || is_number(row[i]));
  }
  const auto cell = [&](std::string_view tag, std::size_t column, std::string_view of) {
    markup(fmt::format("<{}{}>", tag, numbers[column] ? " class=\"n\"" : ""));
    text(of).markup(fmt::format("</{}>", tag));
  };
  markup("<div class=\"wide\"><table><thead><tr>");
  for (std::size_t i = 0; i < header.size(); ++i) cell("th", i, header[i]);
  markup("</tr></thead><tbody>\n");
  for (const auto& row : rows) {
    markup("<tr>");
    for (std::size_t i = 0; i < row.size(); ++i) cell("td", i, row[i]);
    markup("</tr>\n");
  }
  markup("</tbody></table></div>\n");
}

void Page::preformatted(std::string_view all) { markup("<pre>").text(all).markup("</pre>\n"); }

void Page::begin_folded(std::string_view summary, bool open) {
  markup(open ? "<details open><summary>" : "<details><summary>");
  text(summary).markup("</summary>\n");
}
void Page::end_folded() { markup("</details>\n"); }

std::string Page::finish() const {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'\">\n"
      "<title>{0}</title>\n<style>{1}</style></head>\n<body>\n<h1>{0}</h1>\n"
      "<nav><ul>\n{2}</ul></nav>\n{3}<script>{4}</script>\n</body></html>\n",
      svg::escaped(title_), kStyle, contents_, body_, kScript);
}

}  // namespace tessera::verbs
