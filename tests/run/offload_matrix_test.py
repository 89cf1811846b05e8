"""Every thing that can live elsewhere, alone and with all others, on the host and on disks, at every
ZeRO stage: the bits of a run that has it all in memory, also on a device whose memory the host does
not reach, over restarts, killed ranks and disks that fail."""

import unittest

from offload_runs import TIERS, OffloadTest, tensors_of

IO = 7
LAST = 6  # step


class OffloadMatrix(OffloadTest):
    def each(self, check):
        """check(name, tier, sets, (memory, want)), for every case: the name of a run in memory, and its
        numbers."""
        for stage in range(4):
            for compute in ("f32", "bf16"):
                fixed = {"zero__stage": stage, "precision__compute": compute, "checkpoint__every": 2,
                         "checkpoint__keep": 9}
                deck = self.offload_deck(f"memory{stage}{compute}", "none", **fixed)
                want = self.train(2, deck)
                self.assertEqual(len(want), LAST)
                for tier in ("host", "nvme"):
                    for what in (*TIERS, "all"):
                        where = {f"offload__{other}": tier if what in (other, "all") else "none"
                                 for other in TIERS}
                        name = f"{stage}{compute}_{what}_{tier}"
                        with self.subTest(name):
                            check(name, tier, {**fixed, **where}, (deck.stem, want))
                            self.assertEqual(self.left(), [])

    def saved(self, name, step=LAST):
        tensors = tensors_of(self.dir / name / "checkpoints" / f"step_{step:08}")
        self.assertGreater(len(tensors), 20)
        return tensors

    def test_bits(self):
        def check(name, tier, sets, memory_and_want):
            memory, want = memory_and_want
            for backend in ("cpu", "debug"):
                run = f"{backend}_{name}"
                self.assertEqual(self.train(2, self.offload_deck(run, tier, **sets),
                                            f'run.backend="{backend}"'), want)
                for step in (2, LAST):
                    self.assertEqual(self.saved(run, step), self.saved(memory, step))

        self.each(check)

    def test_restarts_from_there_and_to_there(self):
        stay = [f'offload.{what}="none"' for what in TIERS]

        def check(name, tier, sets, memory_and_want):
            memory, want = memory_and_want
            deck = self.offload_deck(name, tier, **sets)
            backends = ("cpu", "debug") if sets["zero__stage"] % 2 else ("debug", "cpu")
            self.train(2, deck, "run.steps=2", f'run.backend="{backends[0]}"')
            self.train(2, deck, "run.steps=4", *stay)
            self.assertEqual(self.train(2, deck, f'run.backend="{backends[1]}"'), want)
            self.assertEqual(self.resumed(name), [2, 4])
            self.assertEqual(self.saved(name), self.saved(memory))

        self.each(check)

    def test_killed_ranks(self):
        def check(name, tier, sets, memory_and_want):
            memory, want = memory_and_want
            deck = self.offload_deck(name, tier, fault__inject=["kill rank=1 step=5"],
                                     checkpoint__async=False, **sets)
            job = self.run_job(2, "train", deck)
            self.assertNotEqual(job.code, 0)
            self.assertEqual(self.checkpoints(name), [2, 4])
            self.assertEqual(self.train(2, deck), want)
            self.assertEqual(self.resumed(name), [4])
            self.assertEqual(self.saved(name), self.saved(memory))

        self.each(check)

    def test_disks_that_fail(self):
        def check(name, tier, sets, memory_and_want):
            memory, want = memory_and_want
            if tier == "host":
                return
            for call in ("read", "write"):
                run = f"{call}_{name}"
                deck = self.offload_deck(
                    run, tier, checkpoint__async=False,
                    fault__inject=[f"eio rank=1 step=4 call={call} path=state."], **sets)
                job = self.run_job(2, "train", deck, each=True)
                self.assertEqual(job.codes[1], IO, job.output)
                self.assertRegex(job.output, "rank 1 on .*/disk[01]/tessera_.*: .*cannot")
                self.assertEqual(self.checkpoints(run), [2])
                self.assertEqual(self.train(2, deck), want)
                self.assertEqual(self.saved(run), self.saved(memory))

        self.each(check)


if __name__ == "__main__":
    unittest.main()
