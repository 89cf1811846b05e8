"""Faults that a run injects into itself (the deck's [fault] section): each is found and reported,
and what follows has the bits of a run without it (traps 40, 48, 59). What is told from the time of
ranks is in guard_test."""

import unittest

from tessera import RunTest, metrics, tiny_deck

TENSOR = "block.1.mlp.up.weight"


class FaultRun(RunTest):
    def fault_deck(self, name, *faults, **changes):
        """A checkpoint is written every third step, before the next step begins; the learning rate
        is constant, so that numbers do not depend on when a run ends."""
        changes = {"schedule__kind": "constant", "zero__stage": 3, "checkpoint__every": 3,
                   "checkpoint__async": False, "checkpoint__keep": 9, "fault__inject": list(faults),
                   **changes}
        return self.deck(name, tiny_deck(self.corpus, **changes))

    def events(self, name, kind):
        return [e for e in metrics.read_events(self.dir / name) if e["event"] == kind]

    def injected(self, name):
        """(rank, step, fault) of what has happened."""
        return [(e["rank"], e["step"], e["fault"]) for e in self.events(name, "fault")
                if e["what"] == "injected"]


class Fault(FaultRun):
    def test_what_is_wrong_with_a_fault_is_said(self):
        for fault, said in (("kil rank=0 step=1", "did you mean kill?"),
                            ("kill rank=2 step=1", "there are only ranks 0 to 1"),
                            ("nan rank=0 step=1 tensor=block.1.mlp.up.weihgt",
                             f"did you mean {TENSOR}?"),
                            ("flip rank=1 step=1 tensor=final_norm.weight",
                             "the rank updates nothing of that tensor")):
            job = self.run_job(2, "train", self.fault_deck("wrong", fault), each=True)
            self.assertEqual(job.codes, [2, 2], job.output)
            self.assertIn(said, job.output)

    def test_40_a_nan_is_skipped_at_every_stage(self):
        for compute in ("f32", "bf16"):
            policies = []
            for ranks, stage in ((1, 0), (2, 0), (2, 1), (2, 2), (2, 3)):
                with self.subTest(compute=compute, ranks=ranks, stage=stage):
                    changes = {"zero__stage": stage, "precision__compute": compute,
                               "run__steps": 7, "checkpoint__every": 0}
                    name = f"{compute}_{ranks}_{stage}"
                    clean = self.train(ranks, self.fault_deck(name, **changes))
                    runs = []
                    for rank in range(ranks):
                        name += "_nan"
                        deck = self.fault_deck(name, f"nan rank={rank} step=4 tensor={TENSOR}",
                                               **changes)
                        runs.append(self.train(ranks, deck))
                        steps = self.events(name, "step")
                        self.assertEqual([s["step"] for s in steps if s["skipped"]], [4])
                        self.assertIsNone(steps[3]["grad_norm"])
                        self.assertEqual([s["loss"] for s in steps[:4]],
                                         [clean[s][0] for s in range(1, 5)])
                        self.assertNotEqual(runs[-1][5], clean[5])
                        policies.append([[s[k] for k in ("skipped", "lr", "samples", "tokens")]
                                         for s in steps])
                    self.assertEqual(runs[0], runs[-1], "whose gradient it was shows")
            self.assertTrue(all(p == policies[0] for p in policies))

    def test_a_nan_stops_the_run_where_the_deck_says_so(self):
        deck = self.fault_deck("stop", f"nan rank=1 step=4 tensor={TENSOR}",
                               guard__non_finite="stop")
        job = self.run_job(2, "train", deck, each=True)
        self.assertEqual(job.codes, [6, 6], job.output)
        want = self.train(2, self.fault_deck("whole"))
        self.assertEqual(self.run_job(2, "train", deck).code, 0)
        last = metrics.last_steps(metrics.read_events(self.dir / "stop"))  # step 4 without the NaN
        self.assertEqual({s: (e["loss"], e["grad_norm"]) for s, e in last.items()}, want)

    def test_as_many_skips_in_a_row_as_the_deck_bears_and_no_more(self):
        nans = [f"nan rank=0 step={s} tensor={TENSOR}" for s in (4, 5, 6)]
        for most, codes in ((3, [0, 0]), (2, [6, 6])):
            with self.subTest(max_skips=most):
                name = f"bears{most}"
                deck = self.fault_deck(name, *nans, guard__max_skips=most)
                job = self.run_job(2, "train", deck, each=True)
                self.assertEqual(job.codes, codes, job.output)
                self.assertEqual([e["in_a_row"] for e in self.events(name, "skip")], [1, 2, 3])
        self.assertIn("3 steps in a row", job.output)

    def test_48_59_a_disk_that_fails_during_a_save(self):
        want = self.train(2, self.fault_deck("whole"))
        failures = (("eio rank=1 step=6 call=write path=step_00000006.tmp/rank", "Input/output error"),
                    ("enospc rank=0 step=6 call=write path=step_00000006 nth=3", "No space left"),
                    ("enospc rank=1 step=6 call=sync path=step_00000006", "No space left"),
                    ("eio rank=1 step=6 call=close path=step_00000006", "Input/output error"),
                    ("eio rank=1 step=6 call=open path=step_00000006.tmp/rank", "Input/output error"),
                    ("eio rank=0 step=6 call=open path=step_00000006.tmp/model", "Input/output error"),
                    ("eio rank=0 step=6 call=open path=manifest.json.tmp", "Input/output error"),
                    ("eio rank=0 step=6 call=rename path=step_00000006", "Input/output error"))
        for i, (fault, reason) in enumerate(failures):
            with self.subTest(fault):
                name = f"disk{i}"
                # Beside the next step, every other time.
                deck = self.fault_deck(name, fault, checkpoint__async=i % 2 == 1)
                job = self.run_job(2, "train", deck, each=True)
                self.assertEqual(job.codes, [7, 7], job.output)
                self.assertIn("step_00000006", job.output)
                self.assertIn(reason, job.output)
                self.assertEqual(self.checkpoints(name), [3])
                self.assertEqual(self.train(2, deck), want)
                self.assertEqual(self.checkpoints(name), [3, 6, 9, 12])
                self.assertEqual(len(self.injected(name)), 1)

    def test_48_no_checkpoint_is_committed_before_the_metrics_of_its_steps_are_durable(self):
        fault = "eio rank=0 step=6 call=sync path=metrics.jsonl"
        job = self.run_job(2, "train", self.fault_deck("metrics", fault), each=True)
        self.assertEqual(job.codes, [7, 7], job.output)
        self.assertRegex(job.output, "cannot sync .*metrics.jsonl: Input/output error")
        self.assertEqual(self.checkpoints("metrics"), [3])

    def test_48_a_disk_that_fails_during_a_restart_costs_no_checkpoint(self):
        """A checkpoint that cannot be read now may be good: the run ends, and goes on from that one
        when the disk works again."""
        want = self.train(2, self.fault_deck("whole"))
        for i, fault in enumerate(("eio rank=1 step=0 call=read path=step_00000006/rank",
                                   "eio rank=1 step=0 call=open path=step_00000006",
                                   "eio rank=0 step=0 call=size path=step_00000006")):
            with self.subTest(fault):
                name = f"restart{i}"
                self.train(2, self.fault_deck(name), "run.steps=6")
                deck = self.fault_deck(name, fault)
                job = self.run_job(2, "train", deck, each=True)
                self.assertEqual(job.codes, [7, 7], job.output)
                self.assertRegex(job.output, "step_00000006/.*Input/output error")
                self.assertEqual(self.checkpoints(name), [3, 6])
                self.assertEqual(self.train(2, deck), want)
                self.assertEqual([e["step"] for e in self.events(name, "resume")], [6])

    def test_48_old_checkpoints_that_cannot_go_end_no_run(self):
        deck = self.fault_deck("prune", "eio rank=0 step=6 call=remove path=step_00000003",
                               checkpoint__keep=1)
        job = self.run_job(2, "train", deck)
        self.assertEqual(job.code, 0, job.output)
        warning = "warning: older checkpoints are still there: "
        self.assertRegex(job.output, f"{warning}.*step_00000003.tmp: cannot remove: Input/output")
        self.assertIn(warning, (self.dir / "prune" / "logbook.md").read_text())
        # The last, and one that a later step was applied to.
        self.assertEqual(self.checkpoints("prune"), [9, 12])

    def test_tokens_that_cannot_be_read(self):
        want = self.train(2, self.fault_deck("whole"))
        deck = self.fault_deck("tokens", "eio rank=1 step=5 call=read path=tokens.bin")
        job = self.run_job(2, "train", deck, each=True)
        self.assertEqual(job.codes, [7, 7], job.output)
        self.assertIn("tokens.bin: cannot read: Input/output error", job.output)
        self.assertEqual(self.train(2, deck), want)

    def test_slow_and_short_calls_change_nothing(self):
        want = self.train(2, self.fault_deck("whole"))
        for name, *faults in (("short_write", "short_transfer rank=0 step=1 call=write count=1000",
                               "short_transfer rank=1 step=3 call=write path=step_ nth=2 count=7"),
                              ("short_read", "short_transfer rank=1 step=1 call=read count=1000"),
                              ("slow_disk", "slow_disk rank=0 step=2 ms=5 path=checkpoints"),
                              ("slow", "slow rank=1 step=9 ms=40")):
            with self.subTest(name):
                self.assertEqual(self.train(2, self.fault_deck(name, *faults)), want)
                self.assertEqual(self.checkpoints(name), [3, 6, 9, 12])
                self.assertEqual(len(self.injected(name)), len(faults))

    def test_48_a_file_that_rots_is_found_and_passed_over(self):
        want = self.train(2, self.fault_deck("whole"))
        deck = self.fault_deck("rot", "flip_file rank=1 step=5")
        self.train(2, deck, "run.steps=6")
        path = self.dir / "rot" / "checkpoints" / "step_00000006"
        job = self.run_job(0, "inspect", path, "--verify")
        self.assertEqual(job.code, 3, job.output)
        self.assertIn("rank_00001.h5", job.output)
        job = self.run_job(2, "train", deck)
        self.assertEqual(job.code, 0, job.output)
        self.assertRegex(job.output, f"checkpoint {path} cannot be used: .*{path}/rank_00001.h5: "
                         "master/vocabulary.weight is damaged")
        self.assertEqual(self.numbers("rot"), want)
        self.assertEqual([e["step"] for e in self.events("rot", "resume")], [3])
        self.assertIn(str(path), [e.get("path") for e in self.events("rot", "fault")])

    def test_a_flipped_bit_changes_the_numbers_from_its_step_on(self):
        feedback = {"zero.quantize__gradients": "int4", "zero.quantize__error_feedback": True}
        for name, more in (*((stage, {"zero__stage": stage}) for stage in range(4)),
                           ("feedback", {"zero__stage": 2, **feedback})):
            with self.subTest(name):
                changes = {"checkpoint__every": 0, "run__steps": 5, **more}
                want = self.train(2, self.fault_deck(f"whole{name}", **changes))
                fault = f"flip rank=1 step=4 tensor={TENSOR}"
                got = self.train(2, self.fault_deck(f"flip{name}", fault, **changes))
                self.assertEqual([s for s in want if got[s] != want[s]], [4, 5])


if __name__ == "__main__":
    unittest.main(verbosity=2)
