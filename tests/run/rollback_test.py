"""Losses that leap: warnings, and a run's way back to an earlier checkpoint and past the data."""

import array
import json
import random
import re
import unittest

from tessera import RunTest, metrics, tiny_deck, write_megatron


class Rollback(RunTest):
    """A corpus whose last part is noise after a part that is easy: the loss leaps where it begins."""

    def setUp(self):
        super().setUp()
        rng = random.Random(7)
        easy = [(3 * i) % 7 for i in range(40 * 8 * 16)]
        noise = [rng.randrange(97) for _ in range(20 * 8 * 16)]
        write_megatron(self.corpus, array.array("H", easy + noise + 6 * easy + [0]))

    def spike_deck(self, name, policy, **changes):
        changes = {"run__steps": 75, "data__shuffle": False, "schedule__kind": "constant",
                   "schedule__warmup_steps": 0, "optimizer__lr": 1e-2, "checkpoint__every": 10,
                   "checkpoint__keep": 0, "guard__spike": policy, "guard__spike_window": 20,
                   "guard__rollback_steps": 5, "log__every": 1000, **changes}
        return self.deck(name, tiny_deck(self.corpus, **changes))

    def go(self, ranks, deck, *sets):
        """As train(), but steps that a rollback repeats have other data and so other numbers."""
        job = self.run_job(ranks, "train", deck, *(x for s in sets for x in ("--set", s)))
        self.assertEqual(job.code, 0, job.output)

    def events(self, name, kind):
        return [e for e in metrics.read_events(self.dir / name) if e["event"] == kind]

    def test_spike_is_warned_of(self):
        self.go(1, self.spike_deck("warn", "warn"))
        spikes = self.events("warn", "spike")
        self.assertEqual([e["step"] for e in spikes][:3], [41, 42, 43])
        self.assertTrue(all(e["z"] > 10 for e in spikes))
        self.assertIn("step 41: the loss leaps", (self.dir / "warn" / "logbook.md").read_text())
        self.go(1, self.spike_deck("off", "off"))
        self.assertEqual(self.events("off", "spike"), [])

    def test_rollback_skips_the_data_and_lowers_the_rate(self):
        """The noise of steps 41 to 60 is passed over, and nothing is used twice."""
        want = None
        for ranks, stage in ((1, 0), (2, 3)):
            name = f"back_{ranks}"
            self.go(ranks, self.spike_deck(name, "rollback", zero__stage=stage))
            rollbacks = self.events(name, "rollback")
            self.assertEqual([(e["step"], e["to"]) for e in rollbacks][:1], [(41, 30)])
            seen = self.events(name, "step")
            factor, samples, skipped = 1.0, 0, []
            for e in metrics.read_events(self.dir / name):
                if e["event"] == "rollback":
                    factor *= 0.5
                    self.assertEqual(e["lr_factor"], factor)
                    begin, end = e["skipped_samples"]
                    self.assertEqual(begin, 8 * e["to"] if not skipped else begin)
                    self.assertEqual(end, samples + (samples - begin))
                    skipped = [s for s in skipped if s[1] <= begin] + [[begin, end]]
                    samples = end
                elif e["event"] == "step":
                    self.assertEqual(e["samples"], samples + 8, "no sample is used twice")
                    samples = e["samples"]
                    self.assertEqual(e["lr"], 1e-2 * factor)
            self.assertEqual(seen[-1]["step"], 75)
            self.assertLess(seen[-1]["loss"], 1, "the easy part is back")
            header = json.loads((self.dir / name / "checkpoints" / "step_00000075" /
                                 "manifest.json").read_text())["header"]
            self.assertEqual(header["skipped_samples"], skipped)
            self.assertEqual(header["lr_factor"], factor)
            numbers = [(e["step"], e["to"], e["skipped_samples"]) for e in rollbacks]
            want = want or numbers
            self.assertEqual(numbers, want, "every layout rolls back alike")

    def test_a_rollback_sets_the_checkpoints_of_its_branch_aside(self):
        """Or else a start after a crash would go on from them."""
        self.go(1, self.spike_deck("aside", "rollback", checkpoint__async=False), "run.steps=42")
        first = self.events("aside", "rollback")[0]
        self.assertEqual((first["step"], first["to"]), (41, 30))
        saved = {p.name for p in (self.dir / "aside" / "checkpoints").iterdir()}
        self.assertLessEqual({"step_00000030", "step_00000040.abandoned"}, saved)

    def test_restart_after_a_rollback_changes_nothing(self):
        self.go(2, self.spike_deck("whole", "rollback", zero__stage=2))
        deck = self.spike_deck("halves", "rollback", zero__stage=2)
        self.go(2, deck, "run.steps=50")
        self.go(2, deck)
        last = [metrics.last_steps(metrics.read_events(self.dir / name))[75]
                for name in ("whole", "halves")]
        keys = ("loss", "grad_norm", "lr", "samples")
        self.assertEqual(*[{k: e[k] for k in keys} for e in last])

    def test_a_rollback_to_before_momentum_was_compressed(self):
        """Steps done again are those of a run that has never compressed, up to where it begins anew."""
        onebit = {"optimizer__name": "onebit_adam", "optimizer__betas": [0.9, 0.95], "optimizer__eps": 1e-6,
                  "optimizer__clip_norm": 0.0, "zero__stage": 1}
        runs = {}
        for after in (33, 74):
            name = f"onebit_{after}"
            self.go(2, self.spike_deck(name, "rollback", optimizer__compress_after=after, **onebit))
            events = metrics.read_events(self.dir / name)
            rollbacks = [(e["step"], e["to"]) for e in events if e["event"] == "rollback"]
            self.assertEqual(rollbacks[0], (41, 30), rollbacks)
            last = max(i for i, e in enumerate(events) if e["event"] == "rollback")
            runs[after] = rollbacks, {e["step"]: (e["samples"], e["lr"], e["loss"], e["grad_norm"])
                                      for e in events[last:] if e["event"] == "step"}
        (rollbacks, compressed), (others, never) = runs.values()
        self.assertEqual(rollbacks, others)
        again = range(rollbacks[-1][1] + 1, 34)
        self.assertGreater(len(again), 2)
        for step in again:
            self.assertEqual(compressed[step], never[step], step)
        self.assertEqual(compressed[34][:3], never[34][:3])  # its norm is of momentum
        self.assertNotEqual(compressed[35][2], never[35][2])

    def test_logbook_reads_as_a_record(self):
        deck = self.spike_deck("book", "rollback")
        self.go(1, deck, "run.steps=35")
        self.go(2, deck)
        text = (self.dir / "book" / "logbook.md").read_text()
        for part in ("# Logbook", "started", "checkpoint", "resumed from",
                     "the layout was 1 data x 1 pipeline x 1 tensor", "back to step_00000030", "done after step 75"):
            self.assertIn(part, text)
        entries = text.split("\n\n", 2)[2].strip().split("\n")
        stamped = re.compile(r"- \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ: \S")
        self.assertTrue(all(stamped.match(e) for e in entries), text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
