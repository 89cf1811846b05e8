"""Reads the metrics.jsonl of a run directory.

Steps that were done again after a restart appear again: the last occurrence counts. A run that is
killed may leave an incomplete last line, which is no event."""

import json
import pathlib


class MetricsError(Exception):
    """A run directory without usable metrics; the message names the file."""


def event_of(line, path, number):
    """The event of one line."""
    try:
        event = json.loads(line)
        event["event"].strip()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise MetricsError(f"{path}:{number}: not an event of a run: {line[:60]!r}") from e
    return event


def read_events(run_dir):
    """All events of a run, oldest first."""
    path = pathlib.Path(run_dir) / "metrics.jsonl"
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as e:
        raise MetricsError(f"{path}: {e.strerror}: a run directory holds metrics.jsonl") from e
    return [event_of(line, path, number) for number, line in enumerate(lines[:-1], 1)]


def last_steps(events, kind="step"):
    """{step: event} of one kind, in step order, the last occurrence of each step."""
    found = {e["step"]: e for e in events if e["event"] == kind}
    return dict(sorted(found.items()))


def repeated_steps(events):
    """(steps done again after a restart, those of them whose loss or norm changed)."""
    first, again, changed = {}, set(), set()
    for e in events:
        if e["event"] != "step":
            continue
        numbers = (e["loss"], e["grad_norm"])
        if e["step"] in first:
            again.add(e["step"])
            if numbers != first[e["step"]]:
                changed.add(e["step"])
        first.setdefault(e["step"], numbers)
    return sorted(again), sorted(changed)
