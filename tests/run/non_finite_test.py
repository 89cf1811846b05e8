"""Steps whose gradient is not finite: skipped on all ranks alike, counted, and reported (traps 39,
40, 41), at every ZeRO stage and number of ranks."""

import unittest

from tessera import RunTest, metrics, tiny_deck

# Gradients of the logits reach scale / (8 x 16 tokens), which is infinite in f16 from 2^24 on; the
# scale starts at 2^30 and is halved after every overflow.
F16 = {"precision__compute": "f16", "precision__loss_scale_power": 30,
       "precision__loss_scale_hysteresis": 1, "run__steps": 16, "optimizer__clip_norm": 0.0}

NAN = "nan rank=0 step={} tensor=block.1.mlp.up.weight"


class NonFinite(RunTest):
    def events(self, name, kind):
        return [e for e in metrics.read_events(self.dir / name) if e["event"] == kind]

    def test_39_an_overflow_is_skipped_by_all_ranks_and_counted(self):
        want = None
        for ranks, stage in ((1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (4, 3)):
            with self.subTest(ranks=ranks, stage=stage):
                name = f"f16_{ranks}_{stage}"
                deck = tiny_deck(self.corpus, zero__stage=stage, **F16)
                self.train(ranks, self.deck(name, deck))
                steps = self.events(name, "step")
                skipped = [s["step"] for s in steps if s["skipped"]]
                self.assertGreaterEqual(len(skipped), 3)
                self.assertLessEqual(len(skipped), 12)
                self.assertEqual(skipped, list(range(1, len(skipped) + 1)))
                # Each overflow halves the scale; samples go on, the schedule does not.
                for s in steps:
                    overflows = min(s["step"] - 1, len(skipped))
                    self.assertEqual(s["loss_scale"], 2.0 ** (30 - overflows))
                    self.assertEqual(s["samples"], 8 * s["step"])
                warm_up = [s["lr"] for s in steps if not s["skipped"]][:3]
                self.assertEqual(warm_up, [3e-3 / 3, 3e-3 * 2 / 3, 3e-3])
                self.assertEqual({s["lr"] for s in steps if s["skipped"]}, {warm_up[0]})
                self.assertEqual([e["step"] for e in self.events(name, "skip")], skipped)
                self.assertEqual(self.events(name, "end")[-1]["skipped"], len(skipped))
                self.assertTrue(all(s["grad_norm"] is None for s in steps if s["skipped"]))
                # Nothing was applied yet: another step's samples, the same initial weights.
                self.assertTrue(all(s["loss"] > 4 for s in steps if s["skipped"]))
                want = want or skipped
                self.assertEqual(skipped, want)

    def test_40_all_ranks_leave_with_the_same_code(self):
        changes = {"optimizer__lr": 1e30, "schedule__warmup_steps": 0, "guard__max_skips": 2}
        for compute in ("f32", "bf16"):
            for stage in range(4):
                with self.subTest(compute=compute, stage=stage):
                    deck = tiny_deck(self.corpus, precision__compute=compute, zero__stage=stage,
                                     **changes)
                    path = self.deck(f"{compute}_{stage}", deck)
                    job = self.run_job(2, "train", path, each=True)
                    self.assertIn(6, job.codes, job.output)
                    self.assertLessEqual(set(job.codes), {6, "killed"}, job.output)

    def saved_names(self, name):
        return sorted(p.name for p in (self.dir / name / "checkpoints").iterdir())

    def test_64_a_diverged_run_keeps_the_checkpoint_that_it_can_go_on_from(self):
        for ranks, save in ((1, True), (2, False)):
            name = f"diverged_{ranks}"
            with self.subTest(ranks=ranks, background=save):
                path = self.deck(name, tiny_deck(
                    self.corpus, run__steps=8, zero__stage=1, checkpoint__every=1,
                    checkpoint__keep=2, checkpoint__async=save, guard__max_skips=5))
                self.train(ranks, path)
                good = ["step_00000007", "step_00000008"]
                self.assertEqual(self.saved_names(name), good)
                wild = ("optimizer.lr=1e38", "run.steps=60", "schedule.kind=constant")
                self.train(ranks, path, *wild, expect=6)
                # Step 9 was applied, and its state is one that no step can leave.
                self.assertEqual(self.events(name, "step")[-1]["step"], 15)
                self.assertEqual(self.saved_names(name), ["step_00000008", "step_00000009"])
                self.assertEqual(self.events(name, "checkpoint")[-1]["step"], 9)
                # The next start goes on from 9, meets nothing but skips, and returns to 8.
                before = len(self.events(name, "step"))
                job = self.run_job(ranks, "train", path, "--set", "run.steps=16")
                self.assertEqual(job.code, 0, job.output)  # its learning rate is another one
                steps = self.events(name, "step")[before:]
                self.assertEqual([s["step"] for s in steps], [*range(10, 16), *range(9, 17)])
                self.assertEqual([s["skipped"] for s in steps], [True] * 6 + [False] * 8)
                self.assertEqual([(e["step"], e["to"]) for e in self.events(name, "rollback")],
                                 [(15, 8)])
                self.assertIn("step_00000009.abandoned", self.saved_names(name))
                self.assertEqual(self.saved_names(name)[-2:], ["step_00000015", "step_00000016"])

    def test_a_run_without_one_applied_step_has_failed(self):
        for ranks in (1, 2):
            name = f"none_{ranks}"
            path = self.deck(name, tiny_deck(
                self.corpus, run__steps=3, checkpoint__every=2, guard__max_skips=1000,
                fault__inject=[NAN.format(s) for s in (1, 2, 3)]))
            job = self.run_job(ranks, "train", path, each=True)
            self.assertEqual(set(job.codes), {6}, job.output)
            self.assertIn("no update was made in 3 steps", job.output)
            self.assertEqual(self.events(name, "checkpoint"), [])

    def test_a_save_waits_for_a_step_that_is_applied(self):
        path = self.deck("waits", tiny_deck(
            self.corpus, run__steps=9, checkpoint__every=4, guard__max_skips=3,
            fault__inject=[NAN.format(s) for s in (4, 5)]))
        self.train(1, path)
        self.assertEqual([e["step"] for e in self.events("waits", "checkpoint")], [6, 8, 9])

    def test_a_checkpoint_after_many_overflows_is_good(self):
        changes = {"schedule__kind": "constant", **F16}
        whole = self.train(1, self.deck("whole", tiny_deck(self.corpus, **changes)))
        path = self.deck("overflows", tiny_deck(self.corpus, checkpoint__every=14, **changes))
        self.train(1, path, "run.steps=14")
        self.assertEqual(self.train(1, path), whole)
        self.assertEqual(len(self.events("overflows", "resume")), 1)

    def test_41_the_norm_is_reported_without_clipping(self):
        for ranks, stage in ((1, 0), (2, 3)):
            norms = [self.train(ranks, self.deck(f"clip_{clip}_{ranks}", tiny_deck(
                self.corpus, zero__stage=stage, optimizer__clip_norm=clip)))[1][1]
                for clip in (0.0, 1e-3)]
            with self.subTest(ranks=ranks, stage=stage):
                self.assertGreater(norms[0], 1e-3)
                self.assertEqual(norms[0], norms[1])

    def test_a_fixed_scale_is_taken_out_again(self):
        plain = self.train(1, self.deck("plain", tiny_deck(self.corpus, run__steps=3)))
        scaled = self.train(1, self.deck("scaled", tiny_deck(
            self.corpus, run__steps=3, precision__loss_scale=1024.0)))
        self.assertEqual(plain, scaled)  # a power of two changes no bit in f32


if __name__ == "__main__":
    unittest.main(verbosity=2)
