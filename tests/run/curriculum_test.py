"""Curricula of sequence lengths: the same bits on every layout in layout mode, over phases, a ramp
beside them and restarts within a phase; what they train on, report, refuse and let change."""

import array
import itertools
import math
import operator
import random
import unittest

from tessera import SOURCE, RunTest, metrics, tiny_deck, write_megatron

GROWS = {"start": 4, "steps": 9, "round": 4}
LENGTHS = [4] * 2 + [8] * 3 + [12] * 3 + [16] * 4  # of steps 1 to 12
GLOBALS = [8] * 6 + [16] * 6
DECK = {"model__heads": 4, "model__hidden": 32, "model__layers": 4, "model__dropout": 0.1,
        "run__reproducible": "layout", "run__reproducible_tensor": 2, "run__threads": 1,
        "batch__ramp": [[7, 16]], "checkpoint__every": 4, "checkpoint__keep": 9,
        "schedule__by": "tokens"}
# Of each cut: ranks and layouts, the first of which goes on from a checkpoint on the last.
LAYOUTS = {
    "truncate": [(2, {"zero__stage": 3}), (4, {"parallel__pipeline": 2, "parallel__tensor": 2,
                                               "recompute__policy": "full"})],
    "anew": [(4, {"parallel__tensor": 2, "zero__stage": 1}), (2, {"parallel__pipeline": 2})]}


class CurriculumTest(RunTest):
    def deck_of(self, name, cut, **changes):
        return self.deck(name, tiny_deck(self.corpus, **{
            **DECK, "batch__curriculum": {**GROWS, "cut": cut}, **changes}))

    def test_every_layout_and_restart_has_the_same_bits(self):
        losses = {}
        for cut, layouts in LAYOUTS.items():
            want = losses[cut] = self.train(1, self.deck_of(cut, cut, evaluate__every=6,
                                                            data__validation=[str(self.corpus)]))
            self.assertEqual(len(want), 12)
            self.expect_events(cut)
            runs = layouts if cut == "truncate" else layouts[:1]
            for n, (ranks, changes) in enumerate(runs):
                with self.subTest(cut=cut, ranks=ranks, **changes):
                    name = f"{cut}_{n}"
                    deck = self.deck_of(name, cut, **changes)
                    self.assertEqual(self.train(ranks, deck), want)
            # Step 4 is within a phase. Steps that are done again must have the same bits.
            ranks, changes = layouts[-1]
            deck = self.deck_of(f"{cut}_0", cut, **changes)
            self.go_back(f"{cut}_0", 4)
            self.assertEqual(self.train(ranks, deck), want)
        self.assertNotEqual(losses["truncate"], losses["anew"], "they read other tokens")
        self.what_may_change()

    def expect_events(self, name):
        """Steps are reported at their length, evaluations at the full one; the rate follows the
        tokens: a warm-up of 3 of 12 steps is over after a quarter of them."""
        seen = list(itertools.accumulate(map(operator.mul, LENGTHS, GLOBALS)))
        warm = next(tokens for tokens in seen if 4 * tokens >= seen[-1])
        for e, length, tokens, samples in zip(self.steps_of(name), LENGTHS, seen,
                                              itertools.accumulate(GLOBALS), strict=True):
            self.assertEqual((e["sequence"], e["tokens"], e["samples"]), (length, tokens, samples))
            done = tokens - ([0] + seen)[e["step"] - 1]
            self.assertAlmostEqual(e["tokens_per_s"] * e["step_ms"] / 1e3, done, 6)
            decayed = (tokens - warm) / (seen[-1] - warm)
            rate = tokens / warm if tokens < warm else (1 + math.cos(math.pi * decayed)) / 2
            self.assertAlmostEqual(e["lr"], 3e-3 * rate, 15)
        found = [e for e in metrics.read_events(self.dir / name) if e["event"] == "evaluate"]
        self.assertEqual([e["sequences"] for e in found], [128] * 2)

    def what_may_change(self):
        """The deck of a curriculum that truncates; one that cuts anew fixes what a sample is."""
        deck = self.deck_of("anew", "anew")
        job = self.run_job(
            1, "train", deck, "--set", "run.steps=13", "--set", "batch.ramp=[]", "--set",
            'batch.curriculum={start=4, steps=10, round=4, cut="anew"}')
        self.assertEqual(job.code, 2, job.output)
        for text in ("may not change", "batch.ramp = [] differs", "batch.curriculum = {"):
            self.assertIn(text, job.output)
        deck = self.deck_of("truncate", "truncate", data__validation=[str(self.corpus)])
        self.train(1, deck, "run.steps=13", "batch.curriculum={table=[[0, 4]]}")
        self.assertEqual(self.steps_of("truncate")[-1]["sequence"], 4)
        for steps in (14, 15):  # a deck without a curriculum goes on from tokens of one
            self.train(1, deck, f"run.steps={steps}", "batch.curriculum={}")
        resumed = [e for e in metrics.read_events(self.dir / "truncate") if e["event"] == "resume"]
        changed = [[c["key"] for c in e["changed"]] for e in resumed]
        self.assertEqual([e["step"] for e in resumed[-3:]], [12, 13, 14])
        self.assertEqual(["batch.curriculum" in keys for keys in changed[-3:]], [True, True, False])
        last = self.steps_of("truncate")[-1]
        self.assertEqual((last["step"], last["sequence"]), (15, 16))
        job = self.run_job(0, "evaluate", self.dir / "truncate")  # which has no use for it
        self.assertEqual(job.code, 0, job.output)

    def test_a_phase_is_a_run_of_its_length(self):
        """To the bit, over the same tokens: sequences of 16 whose fifth token is as the first of
        all others, and their first four as a corpus of their own."""
        rng = random.Random(5)
        whole, short = array.array("H"), array.array("H")
        for _ in range(60):
            row = [rng.randrange(97) for _ in range(16)]
            row[0] = row[4] = 7
            whole.extend(row)
            short.extend(row[:4])
        for name, tokens in (("whole", whole), ("short", short)):
            write_megatron(self.dir / name, array.array("H", [*tokens, 7]))
        fixed = {"run__steps": 5, "schedule__kind": "constant"}
        want = self.train(1, self.deck("b", tiny_deck(self.dir / "short", batch__sequence=4,
                                                      **fixed)))
        got = self.train(1, self.deck("a", tiny_deck(
            self.dir / "whole", batch__curriculum={"table": [[0, 4], [4, 16]]}, **fixed)))
        self.assertEqual([got[s] for s in (1, 2, 3)], [want[s] for s in (1, 2, 3)])
        self.assertNotEqual(got[4], want[4])

    def test_what_check_and_simulate_say(self):
        deck = self.deck_of("checked", "truncate")
        job = self.run_job(0, "check", deck, "--ranks", 2)
        self.assertEqual(job.code, 0, job.output)
        self.assertIn("a step: 16 sequences of 16, 8 micro-batches a rank", job.output)
        lines = job.output.splitlines()
        first = lines.index("memory of a step by its shape, on the rank that holds most:") + 1
        rows = [line.split() for line in lines[first:first + 5]]
        self.assertEqual([(r[0], r[5]) for r in rows],
                         [("4", "4"), ("8", "4"), ("12", "4"), ("12", "8"), ("16", "8")])
        self.assertEqual([" ".join(r[-2:]) == "the most" for r in rows], [False] * 4 + [True])
        job = self.run_job(0, "check", deck, "--schedule")
        self.assertEqual(job.code, 0, job.output)
        for text in ("12 steps of 4 to 16 tokens a sequence, 1.8k tokens in all",
                     "\ntokens a sequence\n", "  sequences of 12\n", "  sequences of 16\n"):
            self.assertIn(text, job.output)
        machine = sorted((SOURCE / "slurm" / "machines").glob("*.toml"))[0]
        job = self.run_job(0, "simulate", deck, "--ranks", 2, "--machine", machine)
        self.assertEqual(job.code, 0, job.output)
        for text in ("12 tokens x 16", "12 tokens x 8", "8 tokens x 8", "4 tokens x 8"):
            self.assertIn(text, job.output)

    def test_lengths_that_do_not_fit(self):
        for sets, key, text in (
                (("parallel.tensor=2", "run.reproducible=run", "run.reproducible_tensor=1",
                  "batch.curriculum={start=3, steps=9, round=4}"), "batch.curriculum",
                 "the 3 tokens of sequences from step 0 on do not divide over parallel.tensor = 2"),
                (("precision.matmul=fp8", "model.ffn_hidden=128", "model.dropout=0",
                  "batch.micro=1"), "batch.curriculum",
                 "batch.micro x the length from step 0 on = 1 x 4 is 4")):
            deck = self.deck_of("bad", "truncate")
            options = [x for s in sets for x in ("--set", s)]
            for job in (self.run_job(0, "check", deck, "--ranks", 2, *options),
                        self.run_job(2, "train", deck, *options)):
                self.assertEqual(job.code, 2, job.output)
                for part in (key, text):
                    self.assertIn(part, job.output)


if __name__ == "__main__":
    unittest.main()
