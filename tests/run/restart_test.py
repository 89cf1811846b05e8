"""A run that was stopped, killed or damaged goes on with the very numbers of one that was not
(traps 45, 46, 48, 49, 52)."""

import json
import math
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time
import tomllib
import unittest

import h5py

from tessera import (BINARY, MPICH, MPIEXEC, SOURCE, TIMEOUT, RunTest, kill_tree, metrics, ranks_of,
                     tiny_deck, write_tokens)

STOPPED = 85
ENDLESS = 1_000_000


def a_dataset(group):
    """The last dataset below a group."""
    found = list(group.values())[-1]
    return found if isinstance(found, h5py.Dataset) else a_dataset(found)


class Restart(RunTest):
    def restart_deck(self, name, **changes):
        """Numbers must not depend on when a run ends, so the learning rate is constant."""
        changes = {"schedule__kind": "constant", "zero__stage": 3, **changes}
        return self.deck(name, tiny_deck(self.corpus, **changes))

    def assert_checkpoints_whole(self, name):
        """Whatever died when: a directory that has a checkpoint's name is a whole checkpoint."""
        for path in (self.dir / name / "checkpoints").glob("step_*[0-9]"):
            job = self.run_job(0, "inspect", path, "--verify")
            self.assertEqual(job.code, 0, job.output)

    def rates(self, name):
        """The learning rate of each step of a run."""
        steps = metrics.last_steps(metrics.read_events(self.dir / name))
        return [e["lr"] for e in steps.values()]

    def test_45_stop_and_resume(self):
        """At each stage another course: stopped in the warm-up, on the way, and at its end."""
        ramp = {"batch__ramp": [[4, 16], [9, 32]]}
        fifth = math.ceil(0.2 * self.sequences())  # of an epoch
        drops = [max(0, 8 * max(0, s - 1 - 3)) // fifth for s in range(1, 13)]
        warm = [min(1, s / 3) for s in range(1, 13)]
        share = [0.25] * 3 + [0.5] * 5 + [1] * 4
        courses = (
            ({"schedule__kind": "step", "schedule__step_epochs": 0.2, "schedule__gamma": 0.6},
             [w * 0.6 ** d for w, d in zip(warm, drops)]),
            ({"schedule__kind": "inverse_sqrt", "batch__lr_scaling": "linear", **ramp},
             [f * min(s / 3, math.sqrt(3 / s)) for s, f in zip(range(1, 13), share)]),
            ({"batch__lr_scaling": "sqrt", **ramp},
             [f ** 0.5 * w for w, f in zip(warm, share)]),
            ({}, warm))
        self.assertEqual(drops[-1], 1, "there is one")
        for stage, (course, factors) in enumerate(courses):
            with self.subTest(stage=stage):
                course["zero__stage"] = stage
                want = self.train(2, self.restart_deck(f"whole{stage}", **course))
                for rate, factor in zip(self.rates(f"whole{stage}"), factors, strict=True):
                    self.assertAlmostEqual(rate / 3e-3, factor, delta=1e-14)
                deck = self.restart_deck(f"parts{stage}", checkpoint__every=100, **course)
                for steps in (2, 7, 12):
                    self.assertEqual(len(self.train(2, deck, f"run.steps={steps}")), steps)
                self.assertEqual(self.numbers(f"parts{stage}"), want)
                self.assertEqual(self.rates(f"parts{stage}"), self.rates(f"whole{stage}"))
                log = (self.dir / f"whole{stage}" / "log.txt").read_text()
                for step, rate in enumerate(self.rates(f"whole{stage}"), 1):
                    self.assertRegex(log, rf"step {step}/12 \|.* lr {rate:.1e} \|")

    def sequences(self):
        """Of one pass over the corpus: 16 tokens and a target each."""
        return (3000 - 1) // 16

    def test_the_rate_that_follows_the_batch_is_the_one_applied(self):
        """The bits of a run that is given both by hand."""
        flat = {"schedule__warmup_steps": 0, "run__steps": 6, "evaluate__batches": 1,
                "data__validation": [str(self.corpus)]}
        want = self.train(1, self.restart_deck("scaled", batch__ramp=[[4, 16]],
                                               batch__lr_scaling="linear", **flat))
        deck = self.restart_deck("by_hand", **flat)
        self.train(1, deck, "run.steps=3", "optimizer.lr=0.0015")
        self.assertEqual(self.train(1, deck, "batch.global=16"), want)
        self.assertEqual(self.rates("scaled"), [0.0015] * 3 + [0.003] * 3)
        self.assertEqual(self.rates("by_hand"), self.rates("scaled"))
        job = self.run_job(0, "evaluate", self.dir / "scaled")  # which has no use for the ramp
        self.assertEqual(job.code, 0, job.output)

    def test_45_cooling_down_from_the_stable_phase(self):
        """As inputs/README.md says: another length and decay, the kind stays."""
        deck = self.restart_deck("whole", schedule__kind="wsd", schedule__decay_steps=4,
                                 schedule__min_lr=1e-4, checkpoint__every=2, checkpoint__keep=9)
        want = self.train(2, deck)
        warm = [s / 3 * 3e-3 for s in (1, 2, 3)]
        decay = [3e-3 - 2.9e-3 * k / 4 for k in (1, 2, 3, 4)]

        def go_on(ranks, name, *sets):
            job = self.run_job(ranks, "train", deck, *(x for s in (
                f"run.dir={self.dir / name}", *sets) for x in ("--set", s)))
            self.assertEqual(job.code, 0, job.output)
            self.assertNotIn("warning", job.output)
            return self.numbers(name)

        def checkpoint(name, step):
            return self.dir / name / "checkpoints" / f"step_{step:08}"

        def assert_rates(name, rates):
            for got, rate in zip(self.rates(name), rates, strict=True):
                self.assertAlmostEqual(got, rate, delta=1e-16)

        assert_rates("whole", warm + [3e-3] * 5 + decay)
        for step in 2, 6, 10:  # in the warm-up, the stable phase and the decay
            got = go_on(2, f"again{step}", f"run.resume={checkpoint('whole', step)}")
            self.assertEqual(got, {s: want[s] for s in range(step + 1, 13)})
        cooled = ["run.steps=8", "schedule.decay_steps=4"]
        want = go_on(1, "cooled", f"run.resume={checkpoint('whole', 4)}", *cooled)
        assert_rates("cooled", decay)  # from the rate of step 4, on fewer ranks
        shutil.rmtree(checkpoint("cooled", 8))
        self.assertEqual(go_on(1, "cooled", *cooled), want, "from step 6")
        assert_rates("cooled", decay)

    def test_45_resume_with_dropout_accumulation_and_bf16(self):
        changes = {"model__dropout": 0.1, "precision__compute": "bf16", "recompute__policy": "full"}
        want = self.train(2, self.restart_deck("whole", **changes))
        deck = self.restart_deck("halves", checkpoint__every=7, **changes)
        self.train(2, deck, "run.steps=7")
        self.assertEqual(self.train(2, deck), want)

    def test_45_resume_after_skipped_steps(self):
        """The learning rate and Adam's t count updates, not steps; and of three overflows in a row
        that the loss scale bears, those before a restart count."""
        nans = [f"nan rank=0 step={s} tensor=block.1.mlp.up.weight" for s in (2, 4, 7)]
        changes = {"precision__compute": "f16", "precision__loss_scale_power": 10,
                   "precision__loss_scale_hysteresis": 3, "schedule__warmup_steps": 8,
                   "fault__inject": nans, "checkpoint__every": 5}

        def steps(name):
            last = metrics.last_steps(metrics.read_events(self.dir / name))
            return [[e[k] for k in ("step", "skipped", "lr", "loss_scale", "loss", "grad_norm")]
                    for e in last.values()]

        self.train(2, self.restart_deck("whole", **changes))
        deck = self.restart_deck("halves", **changes)
        self.train(2, deck, "run.steps=5")
        self.train(2, deck)
        want = steps("whole")
        self.assertEqual([s[0] for s in want if s[1]], [2, 4, 7])
        self.assertEqual([s[3] for s in want], [1024.0] * 7 + [512.0] * 5)
        self.assertEqual(steps("halves"), want)

    def test_46_resume_on_other_layouts(self):
        """The same numbers but for the order of sums, on every layout that follows."""
        want = self.train(1, self.restart_deck("whole", zero__stage=0))
        deck = self.restart_deck("moving", checkpoint__every=3)
        for steps, ranks, stage in ((3, 2, 3), (6, 4, 1), (9, 1, 0), (12, 2, 2)):
            got = self.train(ranks, deck, f"run.steps={steps}", f"zero.stage={stage}")
        self.assert_close(got, want, 1e-5, "moving between layouts")

    def test_34_46_resume_on_other_meshes(self):
        """With reproducible = "layout" the bits of a run that one layout did alone."""
        fixed = {"run__reproducible": "layout", "run__reproducible_tensor": 2, "run__threads": 1,
                 "model__layers": 3, "model__heads": 4, "model__hidden": 32}
        want = self.train(1, self.restart_deck("whole", zero__stage=0, **fixed))
        deck = self.restart_deck("moving", checkpoint__every=3, **fixed)
        for steps, ranks, stage, tensor, pipeline in ((3, 2, 0, 2, 1), (6, 4, 3, 1, 2),
                                                      (9, 3, 0, 1, 3), (12, 4, 1, 2, 1)):
            got = self.train(ranks, deck, f"run.steps={steps}", f"zero.stage={stage}",
                             f"parallel.tensor={tensor}", f"parallel.pipeline={pipeline}")
        self.assertEqual(got, want)

    def test_46_a_rank_reads_what_it_needs(self):
        """On the layout of the checkpoint: the manifest, and of the tensors its own part alone.
        (model_state_test has the other layouts: there, the blocks that hold something of it.)"""
        for ranks, stage in ((1, 0), (2, 1), (2, 2), (4, 3)):
            with self.subTest(ranks=ranks, stage=stage):
                name = f"reads{ranks}{stage}"
                deck = self.restart_deck(name, zero__stage=stage, checkpoint__every=6)
                self.train(ranks, deck, "run.steps=6")
                path = self.dir / name / "checkpoints" / "step_00000006" / "manifest.json"
                manifest = json.loads(path.read_text())
                own = [4 * sum(math.prod(count) for d in file["datasets"]
                               for _, count in d["boxes"]) for file in manifest["files"]]
                self.train(ranks, deck)
                read = [e["bytes_read"] for e in metrics.read_events(self.dir / name)
                        if e["event"] == "resume"]
                self.assertEqual(read, [path.stat().st_size + max(own)])

    def test_48_kill_nine_at_random_moments(self):
        """A save follows every step, so that kills hit saves too; seeds differ from run to run and
        are printed."""
        steps, seed = 150, random.randrange(1 << 32)
        want = self.train(2, self.restart_deck("whole", run__steps=steps))
        deck = self.restart_deck("killed", run__steps=steps, checkpoint__every=1)
        rng, kills = random.Random(seed), 0
        for _ in range(5):
            process = self.start(2, "train", deck)
            target = self.newest_step("killed") + rng.randrange(1, 25)
            if self.wait_for(lambda: self.newest_step("killed") >= target, process):
                time.sleep(rng.random() * 0.02)
                kill_tree(process.pid)
                kills += 1
            process.wait()
            self.assert_checkpoints_whole("killed")
        self.assertEqual(self.train(2, deck), want, f"seed {seed}, {kills} kills")
        self.assertGreaterEqual(kills, 2, "the run was over before it could be killed")

    def stop_while_running(self, name, stop):
        """Starts an endless run, calls stop(launcher, its ranks), and returns the exit code."""
        deck = self.restart_deck(name, run__steps=ENDLESS)
        process = self.start(2, "train", deck, program=("env", "--default-signal=HUP", BINARY))
        self.assertTrue(self.wait_for(lambda: self.newest_step(name) >= 3, process), "ended early")
        stop(ranks_of(process.pid))
        code = process.wait(timeout=60)
        last = self.newest_step(name)
        want = self.train(2, self.restart_deck(f"{name}_whole", run__steps=last + 3))
        self.assertEqual(self.train(2, deck, f"run.steps={last + 3}"), want)
        return code

    def test_52_a_signal_to_one_rank_stops_all_with_a_checkpoint(self):
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            with self.subTest(number.name):
                code = self.stop_while_running(
                    number.name, lambda ranks: os.kill(max(ranks), number))
                self.assertEqual(code, STOPPED)

    def test_52_ctrl_c_under_mpirun_waits_for_a_long_step(self):
        """As tools/quickstart runs it. By itself mpirun kills its ranks after two seconds."""
        if MPICH:
            self.skipTest("about Open MPI's mpirun")
        whole = self.train(2, self.restart_deck("whole", run__steps=5))
        deck = self.restart_deck("long", fault__inject=["slow rank=1 step=3 ms=10000"])
        line = 'source "$0/tools/mpi_environment"; stoppable "$@"'
        process = subprocess.Popen(
            ["bash", "-c", line, SOURCE, *MPIEXEC, "2", BINARY, "train", deck], cwd=self.dir,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
        self.addCleanup(lambda: process.poll() is None and kill_tree(process.pid))
        self.assertTrue(self.wait_for(lambda: self.newest_step("long") == 2, process))
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        output, _ = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, STOPPED, output)
        self.assertIn("stopping after the step under way", output)
        log = (self.dir / "long" / "log.txt").read_text()
        self.assertRegex(log, rf"stop +kill -USR1 \d+ on .*, or touch {self.dir}/long/stop")
        self.assertIn("stopped on request: signal SIGUSR1 after step 3 ", log)
        self.assertEqual(self.checkpoints("long"), [3])
        self.assertEqual(self.train(2, deck, "run.steps=5", "fault.inject=[]"), whole)

    def test_what_is_stoppable_leaves_the_shell_as_it_was(self):
        for option in "-m", "+m":
            line = (f'set {option}; trap "echo mine" INT; source "$0/tools/mpi_environment"; '
                    'before="$- $(trap -p)"; stoppable false; echo "code $?"; '
                    '[[ $before == "$- $(trap -p)" ]] && kill -INT $$')
            job = subprocess.run(["bash", "-c", line, SOURCE], capture_output=True, text=True,
                                 check=False)
            self.assertEqual((job.stdout, job.stderr), ("code 1\nmine\n", ""))

    def test_what_has_changed_is_told_when_a_run_goes_on(self):
        run = self.dir / "told"
        deck = self.deck("told", tiny_deck(self.corpus, run__steps=8, checkpoint__every=4))
        self.train(2, deck)
        longer = ["run.steps=12", "optimizer.lr=0.002", "log.every=2"]
        self.train(2, deck, *longer)
        self.train(2, deck, *longer)  # is over already
        events = metrics.read_events(run)
        first, second = [e for e in events if e["event"] == "resume"]
        self.assertEqual(first["changed"], [
            {"key": "run.steps", "saved": "8", "now": "12"},
            {"key": "optimizer.lr", "saved": "0.003", "now": "0.002"},
            {"key": "log.every", "saved": "1", "now": "2"}])
        self.assertEqual(second["changed"], [])
        log, book = [(run / name).read_text() for name in ("log.txt", "logbook.md")]
        for text in (log, book):
            self.assertRegex(text, "resumed from .*; run.steps = 12, was 8; optimizer.lr = 0.002, "
                                   "was 0.003; log.every = 2, was 1\n")
            self.assertRegex(text, r"warning: the run is now 12 steps long, was 8; optimizer\.lr = "
                                   r"0\.002, was 0\.003: together they move the learning rate: "
                                   r"\S+ in step 9, 0.000e\+00 on the curve of before\n")
        [moved] = [e for e in events if e["event"] == "lr_moved"]
        self.assertEqual((moved["step"], moved["steps"], moved["steps_before"], moved["lr_before"]),
                         (8, 12, 8, 0))
        self.assertEqual(moved["lr"], metrics.last_steps(events)[9]["lr"])
        decks = {p.name: tomllib.loads(p.read_text())["run"]["steps"]
                 for p in run.glob("resolved*.toml")}
        self.assertEqual(decks, {"resolved.1.toml": 8, "resolved.toml": 12})

    def test_52_a_stop_file_and_a_time_limit_stop_with_a_checkpoint(self):
        stop_file = self.dir / "file" / "stop"
        self.assertEqual(self.stop_while_running("file", lambda _: stop_file.touch()), STOPPED)
        deck = self.restart_deck("limit", run__steps=ENDLESS, run__time_limit=1)
        self.assertLess(len(self.train(2, deck, expect=STOPPED)), ENDLESS)

    def test_52_a_request_during_an_evaluation_ends_it(self):
        """An evaluation that would take minutes, before a step that would follow."""
        write_tokens(self.dir / "validation", count=400_000)
        deck = self.restart_deck("evaluating", run__steps=ENDLESS,
                                 data__validation=[str(self.dir / "validation")],
                                 evaluate__every=3, evaluate__batches=1_000_000)
        process = self.start(2, "train", deck)
        self.assertTrue(self.wait_for(lambda: self.newest_step("evaluating") == 3, process))
        time.sleep(0.3)  # the evaluation has begun
        os.kill(ranks_of(process.pid)[-1], signal.SIGUSR1)
        self.assertEqual(process.wait(timeout=60), STOPPED)
        events = metrics.read_events(self.dir / "evaluating")
        self.assertEqual([e["event"] for e in events if e["event"] == "evaluate"], [])
        self.assertIn("evaluation given up", (self.dir / "evaluating" / "log.txt").read_text())
        self.assertEqual([e["step"] for e in events if e["event"] == "checkpoint"],
                         [self.newest_step("evaluating")])

    def test_52_a_request_before_the_first_step_costs_no_step(self):
        deck = self.restart_deck("early", checkpoint__every=4)
        self.train(2, deck, "run.steps=4")
        kept = self.dir / "early" / "checkpoints" / "step_00000004"
        before = kept.stat().st_mtime_ns
        for _ in range(2):
            (self.dir / "early" / "stop").touch()
            self.assertEqual(len(self.train(2, deck, expect=STOPPED)), 4)
            self.assertFalse((self.dir / "early" / "stop").exists())
        self.assertEqual(kept.stat().st_mtime_ns, before, "what is saved is not saved again")
        self.assertEqual(len(self.train(2, deck)), 12)

    def test_a_dead_rank_ends_the_job(self):
        deck = self.restart_deck("orphan", run__steps=ENDLESS, checkpoint__every=2)
        process = self.start(2, "train", deck)
        self.assertTrue(self.wait_for(lambda: self.newest_step("orphan") >= 3, process))
        os.kill(ranks_of(process.pid)[0], signal.SIGKILL)
        self.assertNotEqual(process.wait(timeout=60), 0)
        self.assert_checkpoints_whole("orphan")

    def test_a_killed_launcher_takes_its_ranks_along(self):
        process = self.start(2, "train", self.restart_deck("launcher", run__steps=ENDLESS))
        self.assertTrue(self.wait_for(lambda: self.newest_step("launcher") >= 3, process))
        ranks = ranks_of(process.pid)
        self.assertEqual(len(ranks), 2)
        process.kill()
        process.wait()
        end = time.monotonic() + 20
        while any(pathlib.Path(f"/proc/{r}/exe").exists() for r in ranks):
            self.assertLess(time.monotonic(), end, "ranks outlive their launcher")
            time.sleep(0.05)

    def test_a_damaged_checkpoint_is_passed_over(self):
        want = self.train(2, self.restart_deck("whole"))
        deck = self.restart_deck("damaged", checkpoint__every=3, checkpoint__keep=9)
        self.train(2, deck, "run.steps=6")
        checkpoints = sorted((self.dir / "damaged" / "checkpoints").glob("step_*"))
        self.assertEqual(len(checkpoints), 2)

        def damage(checkpoint):
            """Turns one bit of what the second rank saved."""
            path = checkpoint / "rank_00001.h5"
            content = bytearray(path.read_bytes())
            with h5py.File(path) as f:
                content[a_dataset(f).id.get_offset()] ^= 1
            path.write_bytes(content)

        damage(checkpoints[1])
        self.assertEqual(self.train(2, deck, "checkpoint.every=0"), want)
        events = metrics.read_events(self.dir / "damaged")
        self.assertEqual([e["step"] for e in events if e["event"] == "resume"], [3])
        self.assertTrue(any(e["event"] == "fault" for e in events))

        damage(checkpoints[0])
        job = self.run_job(2, "train", deck, each=True)
        self.assertEqual(job.codes, [3, 3], job.output)
        self.assertIn("rank_00001.h5", job.output)

    def test_a_save_that_is_due_survives_tokens_that_cannot_be_read(self):
        """A save follows every step, carried by the next one: also by one that fails, and when an
        evaluation fails before it."""
        validation = self.dir / "validation"
        write_tokens(validation)
        for name, tokens, failing in (("cut", self.corpus, 1), ("validation", validation, 0)):
            with self.subTest(name):
                write_tokens(self.corpus)
                deck = self.restart_deck(name, run__steps=ENDLESS, checkpoint__every=1,
                                         data__validation=[str(validation)], evaluate__every=1)
                process = self.start(2, "train", deck)
                self.assertTrue(self.wait_for(lambda: self.newest_step(name) >= 3, process))
                os.truncate(f"{tokens}.bin", 0)
                self.assertEqual(process.wait(timeout=60), 3)
                last = self.newest_step(name)
                newest = max((self.dir / name / "checkpoints").glob("step_*[0-9]"))
                self.assertEqual(newest.name, f"step_{last:08}")
                self.assert_checkpoints_whole(name)
                end = metrics.read_events(self.dir / name)[-1]
                self.assertEqual((end["event"], end["step"]), ("end", last))
                self.assertIn(f"step {last + failing}: ", end["reason"])

    def test_what_may_not_change_is_refused(self):
        deck = self.restart_deck("refused", checkpoint__every=6)
        self.train(2, deck, "run.steps=6")
        for change, shown in (("run.seed=4", "run.seed"), ("model.layers=4", "model.layers"),
                              ("batch.sequence=8", "batch.sequence"),
                              ("optimizer.name=adam", "optimizer.name")):
            job = self.run_job(2, "train", deck, "--set", change, each=True)
            self.assertEqual(job.codes, [2, 2], f"{change}: {job.output}")
            self.assertIn(shown, job.output)
        job = self.run_job(2, "train", deck, "--set", "run.resume=never", each=True)
        self.assertEqual(job.codes, [2, 2], job.output)
        self.assertIn("run.resume", job.output)

    def test_an_incomplete_last_line_of_the_metrics_is_cut(self):
        deck = self.restart_deck("line", checkpoint__every=6)
        self.train(1, deck, "run.steps=6")
        with open(self.dir / "line" / "metrics.jsonl", "a") as f:
            f.write('{"event":"step","st')
        self.assertEqual(len(self.train(1, deck)), 12)  # every line is an event again


class Readers(RunTest):
    """Whoever reads beside a run that prunes finds its checkpoint whole (trap 70)."""

    def test_70_reading_beside_a_run_that_prunes(self):
        write_tokens(self.dir / "held_out", seed=2)
        path = self.deck("run", tiny_deck(
            self.corpus, run__steps=ENDLESS, schedule__kind="constant", checkpoint__every=1,
            checkpoint__keep=1, evaluate__every=ENDLESS,
            data__validation=[str(self.dir / "held_out")]))
        process = self.start(1, "train", path)
        self.assertTrue(self.wait_for(lambda: self.newest_step("run") > 3, process))
        for _ in range(6):
            for arguments in (("evaluate", self.dir / "run"), ("evaluate", path),
                              ("inspect", self.dir / "run", "--verify")):
                job = self.run_job(0, *arguments)
                self.assertEqual(job.code, 0, job.output)
                self.assertNotIn("cannot be used", job.output)
        self.assertIsNone(process.poll())


class Data(RunTest):
    """The same names must hold the bytes that a run was trained on."""

    def test_65_other_data_under_the_same_name_is_refused(self):
        deck = self.deck("run", tiny_deck(self.corpus, checkpoint__every=6, run__steps=6))
        self.train(2, deck)
        tokens, index = (pathlib.Path(f"{self.corpus}.{end}") for end in ("bin", "idx"))
        good = tokens.read_bytes(), index.read_bytes()

        def refused(*what):
            job = self.run_job(2, "train", deck, "--set", "run.steps=8", each=True)
            self.assertEqual(set(job.codes), {2}, job.output)
            for text in (*what, "data.accept_changes"):
                self.assertIn(text, job.output)

        tokens.write_bytes(good[0][:-2] + b"\0\0")  # the last token
        refused(f"{tokens} holds other bytes")
        write_tokens(self.corpus, count=3001)
        refused(f"{tokens} has 6002 bytes", "had 6000")
        # Longer by what no document uses, which only the index shows.
        tokens.write_bytes(good[0])
        index.write_bytes(good[1] + b"\0")  # a table of modes, that nobody reads
        refused(f"{index} has")
        self.train(2, deck, "run.steps=7", "data.accept_changes=true")
        events = metrics.read_events(self.dir / "run")
        self.assertEqual([e["step"] for e in events if e["event"] == "data_changed"], [6])
        # What it was trained on last is what counts from now on.
        self.train(2, deck, "run.steps=8")


if __name__ == "__main__":
    unittest.main(verbosity=2)
