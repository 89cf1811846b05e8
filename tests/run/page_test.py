"""tessera report: the page of real and of made-up runs, its structure, what it says, what it
refuses, and how a browser shows it."""

import html.parser
import json
import re
import shutil
import subprocess
import unittest

from tessera import SOURCE, TIMES_SLOWER, RunTest, tiny_deck

import terminal_plot  # of tools/, which tessera.py makes known

MACHINE = SOURCE / "slurm/machines/epyc-2core.toml"
VOID = {"meta", "br", "hr", "img", "input", "link"}
CHROMIUM = shutil.which("chromium")
HOSTILE = '</ul></p><script>alert(1)</script> & "quoted" \x1b[2J'


class Structure(html.parser.HTMLParser):
    """The elements of a page: that they are nested as they should be, and what they hold."""

    def __init__(self, text):
        super().__init__()
        self.open, self.all, self.words, self.errors = [], [], [], []
        self.feed(text)
        self.close()
        self.errors += [f"{tag} is not closed" for tag in self.open]

    def handle_starttag(self, tag, attributes):
        self.all.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.all.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.errors.append(f"</{tag}> closes another element, line {self.getpos()[0]}")

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def text(self):
        return " ".join(self.words)

    def of(self, tag, css_class=None):
        return [a for t, a in self.all
                if t == tag and (css_class is None or css_class in (a.get("class") or "").split())]


def events_of(steps, start=1, run="made up", loss=lambda s: 10 / s ** 0.2, **changes):
    """A start, then steps, an evaluation every tenth of them and a checkpoint every fifth."""
    mesh = {"data": 2, "pipeline": 1, "tensor": 1, "nodes": 1}
    yield {"event": "start", "version": "0.1.0", "commit": "abc", "command": "tessera train",
           "deck": run, "mesh": mesh, "zero_stage": 1, "parameters": 1000,
           "predicted_bytes": 1 << 30}
    if start > 1:
        yield {"event": "resume", "step": start - 1, "from": "checkpoints/step", "done_again": 100,
               "changed": [{"key": "batch.global", "saved": "8", "now": "16"}]}
    for s in range(start, steps + 1):
        yield {"event": "step", "step": s, "loss": loss(s), "grad_norm": 1 + s % 7, "lr": 3e-4,
               "tokens": s * 1000, "samples": s * 8, "step_ms": 100 + s % 13,
               "tokens_per_s": 1e7 / (100 + s % 13), "mfu": None, "tflops_per_rank": 0.1,
               "comm_exposed_ms": 5.0, "pipeline_exposed_ms": 0.0, "io_exposed_ms": 0.0,
               "data_exposed_ms": 0.1, "wire_bytes": {"intra": 1 << 20, "inter": 0},
               "io_bytes": {"read": 4096, "write": 0},
               "compute_ms": {"min": 80, "median": 90, "max": 95, "slowest_rank": 1},
               "skipped": False, "loss_scale": 1.0, **changes}
        if s % 2000 == 0:
            yield {"event": "evaluate", "step": s, "loss": loss(s) + 0.1, "sequences": 8, "ms": 1.0}
        if s % 4000 == 0:
            yield {"event": "checkpoint", "step": s, "path": f"step_{s}", "bytes": 1, "ms": 1.0,
                   "stall_ms": 0.0}


class Report(RunTest):
    def made_up(self, name, *parts, tail="", logbook="", deck=""):
        """A run directory of these events."""
        directory = self.dir / name
        directory.mkdir()
        lines = [json.dumps(e) + "\n" for part in parts for e in part]
        (directory / "metrics.jsonl").write_text("".join(lines) + tail)
        (directory / "logbook.md").write_text(logbook or "# Logbook\n\n- 2026-01-01: began\n")
        (directory / "resolved.toml").write_text(deck)
        return directory

    def long_run(self):
        """20,000 steps in three starts; the first had other losses where the second went back."""
        return self.made_up(
            "long", events_of(9000, loss=lambda s: 1e9 if s > 8900 else 10 / s ** 0.2),
            [{"event": "fault", "what": "checkpoint", "why": "broken", "path": "x"}],
            events_of(15000, start=8901), events_of(20000, start=14001),
            [{"event": "end", "reason": "done", "step": 20000, "peak_resident_bytes": 1 << 31,
              "predicted_bytes": 1 << 30}])

    def report(self, *arguments, code=0):
        job = self.run_job(0, "report", *arguments)
        self.assertEqual(job.code, code, job.output)
        return job.output

    def page(self, *arguments):
        """(text, structure) of a page, which needs nothing but itself."""
        out = self.dir / "page.html"
        self.report(*arguments, "--out", out)
        text = out.read_text()
        page = Structure(text)
        self.assertEqual(page.errors, [])
        self.assertEqual(len(page.of("script")), 1, "the page's own")
        for tag, attributes in page.all:
            self.assertNotIn(tag, ("link", "img", "iframe", "object", "base"))
            for name, value in attributes.items():
                self.assertFalse(name.startswith("on"), name)
                if name in ("src", "href"):
                    self.assertTrue(value.startswith("#"), value)
        self.assertNotIn("@import", text)
        self.assertNotIn("url(", text)
        return text, page

    def test_a_real_run_that_was_restarted(self):
        deck = self.deck("real", tiny_deck(self.corpus, run__steps=12, checkpoint__every=4,
                                           evaluate__every=4, data__validation=[str(self.corpus)],
                                           parallel__pipeline=2, recompute__policy="full",
                                           log__profile=[9, 12]))
        self.train(2, deck, "run.steps=8")
        numbers = self.train(2, deck, "run.steps=20")
        text, page = self.page(self.dir / "real", "--machine", MACHINE)
        words = page.text()
        for title in ("Loss", "Norm of the gradient", "Learning rate", "Speed", "Time of a step",
                      "Memory of a rank", "Bytes that a rank sends"):
            self.assertIn(title, words)
        self.assertEqual(len(page.of("line", "restart")), len(page.of("svg", "plot")) + 1,
                         "the restart, in every chart and in the legend")
        self.assertIn("step 8: start 2 goes on from step 8", words)
        self.assertGreaterEqual(len(page.of("circle")), 5, "evaluations")
        self.assertIn(f"{numbers[20][0]:.4g}", words, "the last loss")
        self.assertLess(words.index("predicted for"), words.index("measured: "))
        for part in ("recomputation", "receive_forward", "on the device", "gradients",
                     "started by tessera", 'name = "', "steps = 20"):
            self.assertIn(part, words)
        self.assertNotIn("The run itself counted", words)
        self.assertNotIn('class="bad"', text)

        # The second run's deck differs in one key; both have their lines in the charts.
        other = self.deck("other", tiny_deck(self.corpus, optimizer__lr=1e-3))
        self.train(1, other)
        _, both = self.page(self.dir / "real", self.dir / "other")
        rows = re.findall(r"optimizer\.lr\s+0\.003\s+0\.001", both.text())
        self.assertEqual(len(rows), 1)
        names = {f"tessera in {self.dir / name}" for name in ("real", "other")}
        self.assertEqual({a["data-name"] for a in both.of("path")} & names, names)

    def test_twenty_thousand_steps_stay_small(self):
        text, page = self.page(self.long_run())
        self.assertLess(len(text), 5 << 20)
        plots = page.of("svg", "plot")
        self.assertGreaterEqual(len(plots), 7)
        for path in page.of("path"):
            points = len(re.findall("[ML]", path["d"]))
            self.assertLessEqual(points, 4 * 640, path["data-name"])
        low, high = map(float, plots[0]["data-y"].split())
        self.assertLess(high, 12, "of steps that were done again the last counts")
        self.assertGreater(low, 0)
        self.assertEqual(len(page.of("line", "restart")), 2 * len(plots) + 1)
        self.assertGreaterEqual(len(page.of("line", "fault")), len(plots) + 1)
        self.assertIn("batch.global", page.text())
        self.assertIn("no end was written", page.text())

    def test_spikes_and_gaps(self):
        """A loss that is no number is a gap; what would press the rest flat is cut off."""
        def loss(s):
            return None if 100 < s <= 200 else 999960 if s == 50 else 3 + s / 1000

        _, page = self.page(self.made_up("gaps", events_of(1000, loss=loss)))
        self.assertIn("cut off: up to 1M", page.text())
        self.assertLess(float(page.of("svg", "plot")[0]["data-y"].split()[1]), 10)
        self.assertEqual(page.of("path")[0]["d"].count("M"), 2)

    def test_each_corpus_of_a_mixture_has_its_line(self):
        """Also one that comes in at a restart; where a step saw nothing of one there is a gap."""
        def corpora(*losses):
            return [{"data": f"data/{name}", "loss": loss, "targets": 0 if loss is None else 9}
                    for name, loss in zip(("web", "code & <b>", "books"), losses)]

        _, page = self.page(self.made_up(
            "mixture", events_of(30, corpora=corpora(3.0, 2.5)),
            events_of(40, start=31, corpora=corpora(3.0, None, 4.5)),
            events_of(60, start=41, corpora=corpora(2.9, 2.4, 4.4))))
        self.assertIn("Loss by corpus", page.text())
        lines = {a["data-name"]: a["d"] for a in page.of("path")}
        self.assertEqual(lines["data/web"].count("M"), 1)
        self.assertEqual(lines["data/code & <b>"].count("M"), 2)
        self.assertEqual(len(re.findall("[ML]", lines["data/books"])), 30)
        _, page = self.page(self.made_up("alone", events_of(20, corpora=None)))
        self.assertNotIn("Loss by corpus", page.text())

    def test_numbers_at_the_ends_of_their_ranges(self):
        """Steps that a double counts no further, and the least and greatest numbers beside usual
        ones."""
        far = [e for e in events_of(3, grad_norm=5e-324)]
        for e in far[2:]:
            e.update(grad_norm=1.0)
        _, page = self.page(self.made_up("least", far))
        self.assertLess(len(page.of("text")), 200, "ticks")
        for e in far[1:]:
            e["step"] += 2 ** 53 - 3
        self.page(self.made_up("far", far))
        self.page(self.made_up("far_alone", far[:1] + far[-1:]))
        losses = [1.7e308, 3.0, 1.7e308, 2.0]
        for n, most in enumerate((losses, [-x if x > 9 else x for x in losses],
                                  [1.7e308, -1.7e308] * 2)):
            text, page = self.page(self.made_up(f"greatest{n}", events_of(
                1000, loss=lambda s: most[s % 4], grad_norm=1.7e308)))
            self.assertNotRegex(text, r"[^\w](inf|nan)[^\w]")
            self.assertGreater(len(page.of("text")), 20, "ticks")
            drawn = "\n".join(terminal_plot.render(range(4), most, "loss", "step"))
            self.assertGreater(drawn.count("┤"), 1, "ticks")
            self.assertNotIn("inf", drawn)

    def test_nothing_in_a_run_becomes_markup(self):
        run = self.made_up("hostile & <b>", events_of(3, run=HOSTILE),
                           [{"event": "fault", "what": HOSTILE, "step": 2},
                            {"event": "end", "reason": HOSTILE, "step": 3}],
                           logbook=f"# Logbook\n\n- 2026: {HOSTILE}\n", deck=f"# {HOSTILE}\n")
        (run / "resolved.1.toml").write_text(f"# the deck before: {HOSTILE}\n")
        text, page = self.page(run, run)
        self.assertEqual(page.text().count("# the deck before: </ul>"), 2)
        self.assertNotIn("\x1b", text)
        self.assertGreater(page.text().count("<script>alert(1)</script>"), 4)

    def test_a_run_that_is_not_finished(self):
        _, page = self.page(self.made_up("begun", events_of(0)))
        self.assertIn("No step was done yet", page.text())
        _, page = self.page(self.made_up("cut", events_of(3), tail='{"event":"st'))
        self.assertIn("still at work", page.text())

    def test_what_is_wrong_is_refused(self):
        good = self.made_up("good", events_of(3))
        (self.dir / "nothing").mkdir()
        lines = (good / "metrics.jsonl").read_text().splitlines(keepends=True)
        damaged = {"empty": ("", ":1: "), "cut": (lines[0] + "{]\n" + lines[1], ":2: "),
                   "other": (lines[0] + "[]\n", ":2: "),
                   "words": (lines[0] + lines[1].replace('"lr": 0.0003', '"lr": "high"'),
                             ":2: $.lr: "),
                   "deep": (lines[0] + '{"event":"fault","what":' + "[" * 99999 + "]" * 99999
                            + "}\n", ":2: more than 256 values within each other"),
                   "ranks": (lines[0].replace('"data": 2', '"data": -1'), ":1: $.mesh.data: ")}
        out = self.dir / "never.html"
        for name, (text, place) in damaged.items():
            with self.subTest(name):
                run = self.made_up(f"damaged_{name}")
                (run / "metrics.jsonl").write_text(text)
                self.assertIn(f"metrics.jsonl{place}", self.report(run, "--out", out, code=3))
        self.assertIn("no run directory", self.report(self.dir / "nothing", "--out", out, code=3))
        self.assertFalse(out.exists())
        self.report(good, "--out", self.dir / "none" / "page.html", code=7)
        self.assertIn("add the file's name", self.report(good, "--out", self.dir, code=7))
        self.assertIn("add the file's name", self.report(good, "--out", "", code=7))
        self.report(good, "--out", "/dev/null", code=7)
        self.report(good, "--machine", self.dir / "none.toml", code=2)
        self.report(code=2)

    def chromium(self, *options):
        """What a headless Chromium prints, which must have nothing to complain of."""
        job = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             "--disable-dev-shm-usage", f"--user-data-dir={self.dir / 'browser'}",
             "--enable-logging=stderr", *options, f"file://{self.dir / 'page.html'}"],
            capture_output=True, text=True, timeout=60 * TIMES_SLOWER, cwd=self.dir)
        self.assertEqual(job.returncode, 0, job.stderr)
        complaints = [line for line in job.stderr.splitlines() if "CONSOLE" in line]
        self.assertEqual(complaints, [], "of the script, or of what the page may not load")
        return job.stdout

    @unittest.skipUnless(CHROMIUM, "chromium is not installed (apt-get install chromium)")
    def test_a_browser_shows_it(self):
        import matplotlib.image  # reads PNG
        for run, width in ((self.made_up("short", events_of(20)), 500), (self.long_run(), 1280)):
            _, page = self.page(run)
            picture = self.dir / "page.png"
            self.chromium(f"--screenshot={picture}", f"--window-size={width},2400")
            pixels = matplotlib.image.imread(picture)[:, :, :3]
            self.assertEqual(pixels.shape[:2], (2400, width))
            line = abs(pixels - [0x2f / 255, 0x6d / 255, 0xb5 / 255]).sum(axis=2) < 0.1
            self.assertGreater(line.sum(), 200, "points of the charts' lines")
            self.assertGreater(line.any(axis=1).sum(), 60, "in charts below one another")
        # A pointer that rests on the middle of the first chart, the loss.
        text = (self.dir / "page.html").read_text()
        (self.dir / "page.html").write_text(text + """<script>{
            const chart = document.querySelector("svg.plot"), box = chart.getBoundingClientRect();
            chart.dispatchEvent(new PointerEvent("pointermove", {
              clientX: box.left + box.width / 2, clientY: box.top + 20 })); }</script>""")
        shown = Structure(self.chromium("--dump-dom"))
        self.assertEqual(len(shown.of("div", "tip")), len(page.of("svg", "plot")),
                         "the script has prepared every chart")
        tip = re.search(r"step ([0-9]+)\s+training: ([0-9.]+)\s+training, mean: ([0-9.]+)",
                        shown.text())
        step, loss, mean = (float(number) for number in tip.groups())
        self.assertAlmostEqual(step, 10000, delta=800)
        self.assertAlmostEqual(loss, 10 / step ** 0.2, delta=0.1)
        self.assertAlmostEqual(mean, loss, delta=0.1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
