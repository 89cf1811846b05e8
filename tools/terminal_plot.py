"""Curves in a terminal, drawn with braille dots: each character cell is 2 dots wide and 4 high."""

import math
import sys

DOT_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # [column][row] of a cell


def _ticks(low, high, count):
    """Round numbers between low and high, about count of them."""
    raw = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(m * unit for m in (1, 2, 2.5, 5, 10) if m * unit >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


class _Canvas:
    def __init__(self, columns, rows, x_range, y_range):
        self.columns, self.rows = columns, rows
        self.x_range, self.y_range = x_range, y_range
        self.cells = [[0] * columns for _ in range(rows)]

    def dot_x(self, x):
        low, high = self.x_range
        return round((x - low) / (high - low) * (2 * self.columns - 1))

    def dot_y(self, y):
        low, high = self.y_range
        return round((high - y) / (high - low) * (4 * self.rows - 1))

    def dot(self, x, y):
        self.cells[y // 4][x // 2] |= DOT_BITS[x % 2][y % 4]

    def curve(self, xs, ys):
        points = [(self.dot_x(x), self.dot_y(y)) for x, y in zip(xs, ys)]
        for (x0, y0), (x1, y1) in zip(points, points[1:] or points):
            n = max(abs(x1 - x0), abs(y1 - y0), 1)
            for i in range(n + 1):
                self.dot(round(x0 + (x1 - x0) * i / n), round(y0 + (y1 - y0) * i / n))


def _thin(xs, ys, count):
    """Means of at most count equal runs of points, so that noise does not fill the chart."""
    size = max(1, math.ceil(len(xs) / count))
    groups = [range(i, min(i + size, len(xs))) for i in range(0, len(xs), size)]
    mean = lambda values, group: sum(values[i] / len(group) for i in group)
    return [mean(xs, g) for g in groups], [mean(ys, g) for g in groups]


def render(xs, ys, title, x_label, columns=80, rows=16):
    """The lines of a chart of finite points (xs ascending) that is columns characters wide."""
    left = 8
    width = columns - left - 2
    x_range = xs[0], max(xs[-1], xs[0] + 1)
    # The distance of two doubles may be none any more: what is so large is drawn as a part of it.
    part = 1.0 if max(map(abs, ys)) < 1e300 else 1e-3
    xs, ys = _thin(xs, [y * part for y in ys], 2 * width)
    pad = (max(ys) - min(ys)) * 0.04 or max(1e-9, abs(ys[0]) * 0.05)
    most = sys.float_info.max * part
    canvas = _Canvas(width, rows, x_range, (max(-most, min(ys) - pad), min(most, max(ys) + pad)))
    canvas.curve(xs, ys)

    labels = {canvas.dot_y(t) // 4: f"{t / part:.4g}" for t in _ticks(*canvas.y_range, 5)}
    lines = [title.center(columns).rstrip()]
    for row, cells in enumerate(canvas.cells):
        mark = "┤" if row in labels else "│"
        text = "".join(chr(0x2800 + c) if c else " " for c in cells)
        lines.append(f"{labels.get(row, ''):>{left - 1}} {mark}{text}".rstrip())
    axis, names = ["─"] * width, [" "] * (columns - left)
    for t in _ticks(*canvas.x_range, 6):
        at, name = canvas.dot_x(t) // 2, f"{t:g}"
        axis[at] = "┬"
        start = min(max(0, at - len(name) // 2), width - len(name))
        names[start : start + len(name)] = name
    lines.append(" " * left + "└" + "".join(axis))
    lines.append(" " * (left + 1) + "".join(names).rstrip())
    lines.append(x_label.center(columns).rstrip())
    return lines
