"""What lives on disks between its uses: the bits of a run that has it all in memory, nothing left
when the run ends, and an error that names the file where a disk fails."""

import os
import subprocess
import unittest

from offload_runs import TIERS, OffloadTest, tensors_of
from tessera import BINARY, NOTE_CODE, TIMEOUT, kill_tree, metrics, noted_codes

ENDLESS = 1_000_000
DECK, PEER, IO, STOPPED = 2, 5, 7, 85


class Offload(OffloadTest):
    def test_everything_on_disks_changes_no_bit_and_leaves_nothing(self):
        for stage, compute in ((1, "f32"), (3, "bf16")):
            with self.subTest(stage=stage, compute=compute):
                fixed = {"zero__stage": stage, "precision__compute": compute,
                         "checkpoint__every": 6}
                name = f"{stage}_{compute}"
                want = self.train(2, self.offload_deck(f"memory_{name}", tier="none", **fixed))
                self.assertEqual(len(want), 6)
                got = self.train(2, self.offload_deck(f"disks_{name}", **fixed))
                self.assertEqual(got, want)
                self.assertEqual(self.left(), [])
                steps = [f"{run}_{name}/checkpoints/step_00000006" for run in ("memory", "disks")]
                memory, disks = (tensors_of(self.dir / step) for step in steps)
                self.assertGreater(len(memory), 20)
                self.assertEqual(disks, memory)

    def test_40_a_skipped_step_evaluations_and_saves_between_updates(self):
        """A step leaves its update to the next one. What looks at the state in between finds it
        done, also where the step is skipped."""
        fixed = {"precision__compute": "bf16", "checkpoint__every": 2, "checkpoint__keep": 9,
                 "data__validation": [str(self.corpus)], "evaluate__every": 3,
                 "evaluate__batches": 1, "guard__check_replicas": 2,
                 "fault__inject": ["nan rank=0 step=4 tensor=final_norm.weight"]}
        for stage in (0, 2, 3):
            runs = {}
            for tier in ("none", "host", "nvme"):
                name = f"{tier}{stage}"
                numbers = self.train(2, self.offload_deck(name, tier, zero__stage=stage, **fixed))
                events = metrics.read_events(self.dir / name)
                steps = metrics.last_steps(events)
                self.assertEqual([s for s, e in steps.items() if e["skipped"]], [4])
                self.assertTrue(all(e["equal"] for e in events if e["event"] == "replicas"))
                losses = [e["loss"] for e in events if e["event"] == "evaluate"]
                self.assertEqual(len(losses), 2)
                saved = [tensors_of(self.dir / name / "checkpoints" / f"step_{step:08}")
                         for step in self.checkpoints(name)]
                self.assertEqual(len(saved), 3)
                self.assertNotEqual(saved[1], saved[2])
                runs[tier] = (str(numbers), losses, saved)
            for tier in ("host", "nvme"):
                with self.subTest(stage=stage, tier=tier):
                    self.assertEqual(runs[tier], runs["none"])

    def test_muon(self):
        """Directions, and what became of them, go between where state lives and where matrices are
        whole; averages of weights are there too; a checkpoint is written beside a step."""
        fixed = {"optimizer__name": "muon", "optimizer__lr": 0.02, "optimizer__ema": 0.9,
                 "checkpoint__every": 3, "precision__compute": "bf16",
                 "fault__inject": ["nan rank=0 step=2 tensor=final_norm.weight"]}
        runs = {}
        for tier in ("none", "host", "nvme"):
            numbers = self.train(2, self.offload_deck(tier, tier, **fixed))
            runs[tier] = str(numbers), tensors_of(self.dir / tier / "checkpoints/step_00000006")
        names = {name for name in runs["none"][1] if "muon_v" in name}
        self.assertTrue(names)
        self.assertFalse([name for name in names if "mlp.up.weight" in name])
        self.assertEqual(runs["host"], runs["none"])
        self.assertEqual(runs["nvme"], runs["none"])
        job = self.run_job(1, "train", self.dir / "nvme.toml", "--set", "run.steps=8", "--set",
                           "zero.tiles=2")
        self.assertEqual(job.code, 0, job.output)
        self.assertEqual(self.resumed("nvme"), [6])

    def test_lamb(self):
        """Both of its passes find what they need, also of a skipped step; and a checkpoint that is
        written between them and the next step is one that a run in memory goes on from."""
        fixed = {"optimizer__name": "lamb", "optimizer__lr": 0.02, "checkpoint__every": 3,
                 "precision__compute": "bf16", "zero__tiles": 2,
                 "fault__inject": ["nan rank=0 step=2 tensor=final_norm.weight"]}
        runs = {}
        for tier in ("none", "host", "nvme"):
            numbers = self.train(2, self.offload_deck(tier, tier, **fixed))
            runs[tier] = str(numbers), tensors_of(self.dir / tier / "checkpoints/step_00000006")
        self.assertTrue(any("lamb_v" in name for name in runs["none"][1]))
        self.assertEqual(runs["host"], runs["none"])
        self.assertEqual(runs["nvme"], runs["none"])
        more = ["--set", "run.steps=9", "--set", "zero.tiles=1"]
        for ranks, tier in ((2, "none"), (1, "nvme")):
            job = self.run_job(ranks, "train", self.dir / f"{tier}.toml", *more)
            self.assertEqual(job.code, 0, job.output)
        self.assertEqual(self.resumed("nvme"), [6])
        got, want = ({s: n for s, n in self.numbers(tier).items() if s > 6}
                     for tier in ("nvme", "none"))
        # Sums over one rank round otherwise than over two; what they make is in bf16 all the same.
        self.assert_close(got, want, 2 ** -8, "fewer ranks")

    def test_tiles_and_moments_of_16_bits(self):
        """The same bits in memory and on disks; a run may go on with other tiles and moments."""
        fixed = {"zero__tiles": 3, "optimizer__moments": "bf16", "checkpoint__every": 3,
                 "checkpoint__keep": 9}
        runs = {}
        for tier in ("none", "nvme"):
            numbers = self.train(2, self.offload_deck(tier, tier, **fixed))
            saved = [tensors_of(self.dir / tier / "checkpoints" / f"step_{step:08}")
                     for step in self.checkpoints(tier)]
            self.assertEqual(len(saved), 2)
            moments = [v for k, v in saved[0].items() if "adam_m" in k]
            master = [v for k, v in saved[0].items() if "master" in k]
            self.assertEqual(2 * sum(map(len, moments)), sum(map(len, master)))
            runs[tier] = str(numbers), saved
        self.assertEqual(runs["nvme"], runs["none"])
        deck = self.dir / "nvme.toml"
        job = self.run_job(1, "train", deck, "--set", "run.steps=9", "--set", "zero.tiles=1",
                           "--set", "optimizer.moments=f32")
        self.assertEqual(job.code, 0, job.output)
        self.assertIn("optimizer.moments", job.output)
        self.assertEqual(len(self.numbers("nvme")), 9)

    def test_a_share_of_the_optimizer_state(self):
        """Half of it elsewhere takes about half of the memory there, and changes no bit; all of
        the choices of a deck that has a share can be compared."""
        def held(deck, *sets):
            options = [x for s in sets for x in ("--set", s)]
            job = self.run_job(0, "check", deck, "--ranks", 2, *options)
            self.assertEqual(job.code, 0, job.output)
            return job.output

        deck = self.offload_deck("share", "none", offload__optimizer="nvme",
                                 offload__optimizer_share=0.5)
        self.assertNotEqual(held(deck), held(deck, "offload.optimizer_share=1"))
        self.assertEqual(self.train(2, deck), self.train(2, self.offload_deck("none", "none")))
        held(deck, "offload.optimizer=none")
        job = self.run_job(0, "check", deck, "--ranks", 2, "--options")
        self.assertEqual(job.code, 0, job.output)
        self.assertIn("nvme", job.output)

    def test_memory_that_the_host_cannot_reach(self):
        """What goes between it and the disks goes through the host's."""
        for stage in (1, 3):
            with self.subTest(stage=stage):
                want = self.train(2, self.offload_deck(f"memory{stage}", tier="none",
                                                       zero__stage=stage))
                deck = self.offload_deck(f"hidden{stage}", zero__stage=stage)
                self.assertEqual(self.train(2, deck, 'run.backend="debug"'), want)
                self.assertEqual(self.left(), [])

    def test_one_thing_alone(self):
        want = self.train(2, self.offload_deck("memory", tier="none"))
        for what in TIERS:
            with self.subTest(what):
                others = {f"offload__{other}": "none" for other in TIERS if other != what}
                self.assertEqual(self.train(2, self.offload_deck(what, **others)), want)
                self.assertEqual(self.left(), [])

    def test_45_a_restart_from_disks_to_memory_and_back(self):
        saves = {"checkpoint__every": 2, "checkpoint__keep": 9, "run__steps": 8}
        want = self.train(2, self.offload_deck("whole", tier="none", **saves))
        deck = self.offload_deck("moving", **saves)
        memory = [f'offload.{what}="none"' for what in TIERS]
        for steps, sets in ((2, []), (4, []), (6, memory), (8, [])):
            got = self.train(2, deck, f"run.steps={steps}", *sets)
        self.assertEqual(got, want)
        self.assertEqual(self.resumed("moving"), [2, 4, 6])
        self.assertEqual(self.checkpoints("moving"), [2, 4, 6, 8])
        for step in (4, 8):
            moved, stayed = (tensors_of(self.dir / name / "checkpoints" / f"step_{step:08}")
                             for name in ("moving", "whole"))
            self.assertEqual(moved, stayed)
        self.assertEqual(self.left(), [])

    def test_48_killed_ranks_leave_files_that_the_next_start_removes(self):
        deck = self.offload_deck("killed", run__steps=ENDLESS, checkpoint__every=2,
                                 checkpoint__async=False)
        process = self.start_and_wait(deck, 3)
        kill_tree(process.pid)
        process.wait()
        left = self.left()
        self.assertEqual(len(left), 4, "a directory of each rank on each disk")
        self.assertEqual(len(self.state_files()), 4)
        steps = self.newest_step("killed") + 2
        got = self.train(2, deck, f"run.steps={steps}")
        self.assertEqual(got, self.train(2, self.offload_deck("whole", tier="none",
                                                              run__steps=steps)))
        self.assertEqual(self.left(), [])
        self.assertEqual(self.resumed("killed"), [max(self.resumed("killed"))])

    def test_two_runs_on_one_disk_at_once(self):
        want = self.train(2, self.offload_deck("memory", tier="none"))
        endless = self.start_and_wait(self.offload_deck("one", run__steps=ENDLESS), 2)
        files = self.state_files()
        self.assertEqual(self.train(2, self.offload_deck("other")), want)
        self.assertEqual(self.state_files(), files, "another run's files are its own")
        (self.dir / "one" / "stop").touch()
        self.assertEqual(endless.wait(timeout=TIMEOUT), STOPPED)
        got = self.numbers("one")
        self.assertEqual({step: got[step] for step in list(want)[:2]},
                         {step: want[step] for step in list(want)[:2]})
        self.assertEqual(self.left(), [])

    def test_what_is_wrong_with_a_deck_is_said(self):
        none = {f"offload__{what}": "none" for what in TIERS}
        for name, changes, code, said in (
                ("nowhere", {"offload__nvme": None}, DECK, "offload.nvme"),
                ("one", {**none, "offload__optimizer": "nvme", "offload__nvme": []}, DECK,
                 "offload.nvme"),
                ("block", {"offload__block": 5000}, DECK,
                 "offload.block = 5000 must be a multiple of 4096"),
                ("missing", {"offload__nvme": [str(self.dir / "no_disk")]}, IO,
                 f"{self.dir / 'no_disk'}: no directory can be made there: No such file"),
                ("file", {"offload__nvme": [f"{self.corpus}.bin"]}, IO, f"{self.corpus}.bin: ")):
            with self.subTest(name):
                job = self.run_job(2, "train", self.offload_deck(name, **changes), each=True)
                self.assertEqual(job.codes, [code, code], job.output)
                self.assertIn(said, job.output)
                self.assertEqual(self.left(), [])
        # Directories that nothing lives in are no error, not even missing ones.
        unused = self.offload_deck("unused", tier="none", offload__nvme=[str(self.dir / "no_disk")])
        self.assertEqual(len(self.train(2, unused)), 6)

    def test_a_disk_without_room(self):
        """Before the first step, on all ranks; what a start before it had saved stays."""
        small = self.dir / "small"
        small.mkdir()
        mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small],
                               capture_output=True, text=True)
        if mount.returncode != 0:
            self.skipTest(f"no small disk can be had: {mount.stderr.strip()}")
        self.addCleanup(lambda: subprocess.run(["umount", small], check=True))
        want = self.train(2, self.offload_deck("whole", tier="none"))
        deck = self.offload_deck("room", checkpoint__every=3)
        self.train(2, deck, "run.steps=3")
        full = f'offload.nvme=["{self.disks[0]}", "{small}"]'
        job = self.run_job(2, "train", deck, "--set", full, each=True)
        self.assertEqual(job.codes, [IO, IO], job.output)
        self.assertIn(f"{small}/tessera_", job.output)
        self.assertEqual(self.newest_step("room"), 3)
        self.assertEqual(self.checkpoints("room"), [3])
        self.assertEqual(self.left() + list(small.iterdir()), [])
        self.assertEqual(self.train(2, deck), want)

    def test_a_disk_that_fails_in_a_step(self):
        """The rank leaves at once, and so do the others; what has been saved is good."""
        want = self.train(2, self.offload_deck("whole", tier="none"))
        for rank, fault, said in (
                (1, "eio rank=1 step=5 call=read path=state. nth=20", "cannot read bytes"),
                (0, "eio rank=0 step=5 call=write path=disk1 nth=7", "cannot write bytes"),
                (1, "enospc rank=1 step=4 call=write path=state.", "No space left on device")):
            with self.subTest(fault):
                name = fault.replace(" ", "_")
                deck = self.offload_deck(name, fault__inject=[fault], checkpoint__every=3,
                                         checkpoint__async=False)
                job = self.run_job(2, "train", deck, each=True)
                allowed = [[IO] if r == rank else [IO, PEER] for r in range(2)]
                self.assert_codes(job.codes, allowed, job.output)
                self.assertRegex(job.output,
                                 f"rank {rank} on .*/disk[01]/tessera_.*/state.0: .*{said}")
                self.assertEqual(self.checkpoints(name), [3])
                self.assertEqual(self.train(2, deck), want)
                self.assertEqual(self.resumed(name), [3])
                self.assertEqual(self.left(), [])

    def test_59_a_save_beside_updates_that_fails(self):
        """The step goes on, and all ranks leave together; the checkpoint before is good."""
        want = self.train(2, self.offload_deck("whole", tier="none"))
        # While HDF5 makes the file, and in the middle of the tiles.
        for nth, doing in ((1, "HDF5"), (40, "saving adam_m/block")):
            with self.subTest(nth=nth):
                name = f"full{nth}"
                deck = self.offload_deck(
                    name, checkpoint__every=2,
                    fault__inject=[f"enospc rank=1 step=5 call=write path=rank_00001 nth={nth}"])
                job = self.run_job(2, "train", deck, each=True)
                self.assertEqual(job.codes, [IO, IO], job.output)
                self.assertRegex(job.output, f"{doing}.*rank_00001.h5.*No space left on device")
                self.assertEqual(self.checkpoints(name), [2])
                self.assertEqual(self.train(2, deck), want)
                self.assertEqual(self.resumed(name), [2])
                self.assertEqual(self.left(), [])

    def test_short_and_slow_transfers_change_nothing(self):
        want = self.train(2, self.offload_deck("whole", tier="none"))
        faults = ["short_transfer rank=0 step=2 call=read path=state. count=500",
                  "short_transfer rank=1 step=1 call=write path=state. count=500",
                  "slow_disk rank=1 step=5 ms=1 path=disk0"]
        deck = self.offload_deck("short", fault__inject=faults, offload__block=65536)
        self.assertEqual(self.train(2, deck), want)
        injected = [e["fault"] for e in metrics.read_events(self.dir / "short")
                    if e["event"] == "fault" and e["what"] == "injected"]
        self.assertEqual(len(injected), 3)

    def test_a_file_that_is_cut_under_a_run(self):
        deck = self.offload_deck("cut", run__steps=ENDLESS, checkpoint__every=3, checkpoint__keep=1,
                                 checkpoint__async=False)
        codes = self.dir / "codes"
        codes.mkdir()
        with open(self.dir / "out", "w") as out:
            process = self.start_and_wait(
                deck, 4, stdout=out,
                program=("env", f"CODES={codes}", "sh", "-c", NOTE_CODE, "sh", BINARY))
            cut = self.state_files()[0]
            os.truncate(cut, 0)
            process.wait(timeout=TIMEOUT)
        output = (self.dir / "out").read_text()
        self.assertRegex(output, f"{cut}: cannot (read|write) bytes")
        self.assertIn("did another program cut it?", output)
        of_ranks = noted_codes(codes, 2)
        self.assert_codes(of_ranks, [[PEER, IO]] * 2, output)
        self.assertNotEqual(of_ranks, [PEER, PEER], output)
        saved = max(self.checkpoints("cut"))
        steps = saved + 3
        got = self.train(2, deck, f"run.steps={steps}")
        self.assertEqual(got, self.train(2, self.offload_deck("whole", tier="none",
                                                              run__steps=steps)))
        self.assertEqual(self.resumed("cut"), [saved])
        self.assertEqual(self.left(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
