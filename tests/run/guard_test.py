"""Peers that die or get stuck, numbers that go wrong: what the survivors do and say."""

import array
import json
import os
import pathlib
import random
import re
import resource
import signal
import subprocess
import time
import unittest

from tessera import (BINARY, MPICH, MPIEXEC, NO_LARGER_FILES, NOTE_CODE, TIMEOUT, RunTest,
                     fill, kill_tree, metrics, noted_codes, ranks_of, tiny_deck, write_megatron)

ENDLESS = 1_000_000
PEER = 5
# Open MPI's launcher kills a job as soon as a rank is gone; to see that ranks leave by themselves,
# it must not.
LET_THEM_LEAVE = {"OMPI_MCA_orte_enable_recovery": "1"}


def rank_of(pid):
    """A process's rank, as its launcher told it."""
    environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return int(re.search(r"(?:OMPI_COMM_WORLD_RANK|PMI_RANK)=(\d+)", environment).group(1))


class Guard(RunTest):
    def lose_a_rank(self, name, lose, ranks=3, **changes):
        """Trains without end, calls lose(pid of rank 1) in the midst, waits until the others have
        left, wakes and collects rank 1. Returns each rank's exit code, how long the others took,
        and all output."""
        changes = {"run__steps": ENDLESS, "schedule__kind": "constant", "batch__global": 6,
                   "log__every": 1000, **changes}
        deck = self.deck(name, tiny_deck(self.corpus, **changes))
        codes = self.dir / f"codes_{name}"
        codes.mkdir()
        command = [*MPIEXEC, str(ranks), "sh", "-c", NOTE_CODE, "sh", BINARY, "train", str(deck)]
        output = open(self.dir / f"{name}.out", "w")
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=self.dir,
                                   env=dict(os.environ, CODES=str(codes), **LET_THEM_LEAVE))
        self.addCleanup(lambda: process.poll() is None and kill_tree(process.pid))
        self.assertTrue(self.wait_for(lambda: self.newest_step(name) >= 200, process))
        victim = next(p for p in ranks_of(process.pid) if rank_of(p) == 1)
        begin = time.monotonic()
        lose(victim)
        others = [codes / str(r) for r in range(ranks) if r != 1]

        def left():
            return all(f.exists() and f.read_text() for f in others)

        self.wait_for(left, process)
        took = time.monotonic() - begin
        try:
            os.kill(victim, signal.SIGCONT)
        except ProcessLookupError:
            pass
        process.wait(timeout=TIMEOUT)
        output.close()
        return noted_codes(codes, ranks), took, (self.dir / f"{name}.out").read_text(errors="replace")

    def test_killed_rank(self):
        codes, took, output = self.lose_a_rank("killed", lambda pid: os.kill(pid, signal.SIGKILL))
        # UCX aborts a rank that reads a dead one's memory before the watchdog has ended it.
        aborted = MPICH and re.search(r"process_vm_readv\(.* No such process", output)
        left = [PEER, 128 + signal.SIGABRT] if aborted else [PEER]
        self.assert_codes(codes, [left, [128 + signal.SIGKILL], left], output)
        self.assertLess(took, 10, output)
        if aborted:
            return
        self.assertIn("rank 1 is lost: its connection closed", output)
        self.assertRegex(output, r"ranks? 0.* leaves? \(exit code 5\) from training step \d+")
        self.assertIn("rank 1 is lost", (self.dir / "killed" / "log.txt").read_text())

    def test_stopped_rank(self):
        codes, took, output = self.lose_a_rank(
            "stopped", lambda pid: os.kill(pid, signal.SIGSTOP), guard__hang_timeout=2)
        self.assert_codes(codes, [[PEER]] * 3, output)
        self.assertLess(took, 2 + 10, output)
        self.assertRegex(output, r"rank 1 is lost: silent for 2 s .* last heard of in training")

    def threads(self, name, wanted=(), **changes):
        """{name: blocked signals, a set of masks} of the threads of a job's ranks, looked at until
        all that are wanted have been seen."""
        deck = self.deck(name, tiny_deck(self.corpus, run__steps=ENDLESS, log__every=1000, **changes))
        process = self.start(2, "train", deck)
        self.assertTrue(self.wait_for(lambda: self.newest_step(name) >= 3, process))
        found = {}

        def seen_all():
            for task in [t for pid in ranks_of(process.pid)
                         for t in pathlib.Path(f"/proc/{pid}/task").iterdir()]:
                try:
                    status = (task / "status").read_text()
                except OSError:
                    continue  # it has just ended
                key = "main" if task.name == task.parent.parent.name else (
                    re.search(r"Name:\t(.*)", status).group(1))
                found.setdefault(key, set()).add(int(
                    re.search(r"SigBlk:\t(.*)", status).group(1), 16))
            return found.keys() >= set(wanted)

        self.assertTrue(self.wait_for(seen_all, process))
        kill_tree(process.pid, signal.SIGTERM)
        process.wait(timeout=TIMEOUT)
        return found

    def test_timeout_of_zero_means_no_watchdog(self):
        self.assertIn("watchdog", self.threads("watched"))
        unwatched = self.threads("unwatched", guard__hang_timeout=0)
        self.assertIn("progress", unwatched)
        self.assertNotIn("watchdog", unwatched)

    def listens(self, name, *shell, **changes):
        """Where the watchdogs of two ranks listen, of a short run started by a shell command."""
        if "TESSERA_FAILING_CALLS" not in os.environ:
            self.skipTest("a sanitizer wants to be loaded before what would tell")
        deck = self.deck(name, tiny_deck(self.corpus, run__steps=1, **changes))
        preloaded = {"LD_PRELOAD": os.environ["TESSERA_FAILING_CALLS"], "TESSERA_SAY_LISTEN": "1"}
        ranks = [*MPIEXEC, "2", "env", *(f"{k}={v}" for k, v in preloaded.items()), BINARY,
                 "train", str(deck)]
        job = self.run_job(0, *shell, *ranks, program="env")
        self.assertEqual(job.code, 0, job.output)
        return sorted(re.findall(r"listens on (\S+)", job.output))

    def test_ranks_of_one_node_listen_on_loopback_alone(self):
        self.assertEqual(self.listens("default"), ["127.0.0.1"] * 2)
        self.assertEqual(self.listens("unwatched", guard__hang_timeout=0), [])

    def test_a_network_can_be_chosen(self):
        self.assertEqual(self.listens("name", guard__interface="lo"), ["127.0.0.1"] * 2)
        other = ["unshare", "--net", "sh", "-c",
                 'ip link set lo up && ip link add br7 type bridge && ip link set br7 up && '
                 'ip address add 10.9.8.7/24 dev br7 && exec "$@"', "sh"]
        if subprocess.run([*other, "true"], capture_output=True).returncode != 0:
            self.skipTest("no network namespaces here")
        self.assertEqual(self.listens("several", *other), ["127.0.0.1"] * 2)
        self.assertEqual(self.listens("both", *other, guard__interface="br7,lo"),
                         ["10.9.8.7"] * 2 + ["127.0.0.1"] * 2)
        for network in ("10.9.8.7", "10.9.8.0/24", "nowhere0,10.0.0.0/8"):
            self.assertEqual(self.listens(network.translate(str.maketrans("/,.", "___")), *other,
                                          guard__interface=network), ["10.9.8.7"] * 2, network)

    def test_a_network_that_the_host_has_not(self):
        for network in ("nowhere0", "240.0.0.0/24", "10.0.0.0/99"):
            deck = self.deck("lost", tiny_deck(self.corpus, guard__interface=network))
            job = self.run_job(2, "train", deck, each=True)
            self.assertEqual(job.codes, [2, 2], job.output)
            for word in ("lost.toml", f'guard.interface = "{network}"', "lo 127.0.0.1/8"):
                self.assertIn(word, job.output)

    def test_61_signals_are_the_main_threads(self):
        """A slow disk keeps the threads of saves and tokens there long enough to be seen."""
        ours = {"progress", "watchdog", "save", "tokens"}
        slow = [f"slow_disk rank=0 step=1 ms=20 path={path}" for path in ("tokens", "checkpoints")]
        found = self.threads("threads", ours, checkpoint__every=2, fault__inject=slow)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            bit = 1 << (number - 1)
            self.assertTrue(all(not mask & bit for mask in found["main"]), number)
            for name in ours:
                self.assertTrue(all(mask & bit for mask in found[name]), (name, number))

    def test_a_rank_that_fails_alone_at_the_start_says_so_to_all(self):
        deck = self.deck("start", tiny_deck(self.corpus, run__steps=ENDLESS))
        (self.dir / "start").mkdir()
        fill(self.dir / "start" / "log.txt")
        job = self.run_job(2, "-c", NO_LARGER_FILES, BINARY, "train", deck, each=True,
                           program="sh", env=LET_THEM_LEAVE)
        self.assert_codes(job.codes, [[7], [PEER]], job.output)
        self.assertRegex(job.output, "rank 0 is lost: left with exit code 7: .*File too large")
        ended = self.dir / "start" / "ended"
        self.assertRegex(ended.read_text(), "^7 rank 0 on .*log.txt: File too large\n$")
        (self.dir / "start" / "log.txt").unlink()
        self.train(2, deck, "run.steps=2")
        self.assertFalse(ended.exists(), "a later start forgets it")

    def test_a_rank_that_fails_alone_beside_a_save_waits_for_nothing(self):
        """Its save, on a disk that takes a minute for each write, is not waited for."""
        fault = "slow_disk rank=0 step=100 ms=60000 call=write path=checkpoints"
        deck = self.deck("beside", tiny_deck(
            self.corpus, run__steps=ENDLESS, log__every=1000, checkpoint__every=100,
            fault__inject=[fault]))
        ignore = 'trap "" XFSZ; exec "$@"'  # a file that may not grow is an error like a full disk
        command = ["sh", "-c", NOTE_CODE, "sh", "sh", "-c", ignore, "sh", BINARY, "train", str(deck)]
        codes = self.dir / "codes"
        codes.mkdir()
        output = open(self.dir / "beside.out", "w+")
        self.addCleanup(output.close)
        process = subprocess.Popen([*MPIEXEC, "2", *command], stdout=output,
                                   stderr=subprocess.STDOUT, cwd=self.dir,
                                   env=dict(os.environ, CODES=str(codes), **LET_THEM_LEAVE))
        self.addCleanup(lambda: process.poll() is None and kill_tree(process.pid))
        book = self.dir / "beside" / "log.txt"
        self.assertTrue(self.wait_for(lambda: book.exists() and "FAULT  " in book.read_text(),
                                      process))
        rank = next(p for p in ranks_of(process.pid) if rank_of(p) == 0)
        grown = (self.dir / "beside" / "metrics.jsonl").stat().st_size
        begin = time.monotonic()
        resource.prlimit(rank, resource.RLIMIT_FSIZE, (grown, resource.RLIM_INFINITY))
        process.wait(timeout=TIMEOUT)
        took = time.monotonic() - begin
        output.seek(0)
        text = output.read()
        self.assert_codes(noted_codes(codes, 2), [[7], [PEER]], text)
        self.assertLess(took, 10, text)
        self.assertRegex(text, "rank 0 is lost: left with exit code 7: .*metrics.jsonl: File too")
        self.assertRegex((self.dir / "beside" / "ended").read_text(), "^7 rank 0 on .*: step ")


class Corruption(RunTest):
    def test_a_flipped_bit_in_one_copy_is_found_and_its_rank_named(self):
        """Three copies name the rank; two only that they differ. Checkpoints since the last
        comparison are set aside, and a restart gives the numbers of a run without the fault."""
        steps = {"run__steps": 12, "checkpoint__every": 1, "checkpoint__keep": 0,
                 "schedule__kind": "constant", "batch__global": 6}
        for ranks, names in ((2, "differs between ranks 0 and 1"), (3, "differs on rank 1")):
            with self.subTest(ranks=ranks):
                want = self.train(ranks, self.deck(f"whole{ranks}", tiny_deck(
                    self.corpus, **steps)))
                deck = self.deck(f"flip{ranks}", tiny_deck(
                    self.corpus, guard__check_replicas=4,
                    fault__inject=["flip rank=1 step=6 tensor=block.1.attention.q.weight"], **steps))
                job = self.run_job(ranks, "train", deck, each=True)
                self.assertEqual(set(job.codes), {PEER}, job.output)
                self.assertIn(f"block.1 {names}", job.output)
                saved = sorted(p.name for p in (self.dir / f"flip{ranks}" / "checkpoints").iterdir())
                self.assertEqual([n for n in saved if not n.endswith(("abandoned", ".tmp"))],
                                 [f"step_0000000{s}" for s in (1, 2, 3, 4)])
                job = self.run_job(ranks, "train", deck)
                self.assertEqual(job.code, 0, job.output)
                last = metrics.last_steps(metrics.read_events(self.dir / f"flip{ranks}"))
                self.assertEqual({k: (e["loss"], e["grad_norm"]) for k, e in last.items()}, want)

    def test_a_flipped_bit_in_any_unit_is_found(self):
        for unit, tensor in (("vocabulary", "vocabulary.weight"), ("positions", "positions.weight"),
                             ("block.0", "block.0.norm1.bias"), ("block.2", "block.2.mlp.up.weight"),
                             ("final_norm", "final_norm.weight")):
            with self.subTest(unit=unit):
                deck = self.deck(unit, tiny_deck(
                    self.corpus, run__steps=3, zero__stage=0, guard__check_replicas=1,
                    fault__inject=[f"flip rank=1 step=2 tensor={tensor}"]))
                job = self.run_job(2, "train", deck, each=True)
                self.assertEqual(set(job.codes), {PEER}, job.output)
                self.assertIn(f"{unit} differs between ranks 0 and 1", job.output)
    def test_a_flipped_bit_of_a_frozen_matrix_is_found(self):
        deck = self.deck("frozen", tiny_deck(
            self.corpus, run__steps=3, zero__stage=1, guard__check_replicas=1, adapter__kind="lora",
            adapter__rank=2, adapter__targets=["*.attention.q.weight"],
            fault__inject=["flip rank=1 step=2 tensor=block.1.mlp.up.weight"]))
        job = self.run_job(2, "train", deck, each=True)
        self.assertEqual(set(job.codes), {PEER}, job.output)
        self.assertIn("block.1 differs between ranks 0 and 1", job.output)

    def compared(self, name):
        """How many elements each comparison of a run compared."""
        return [e["elements"] for e in metrics.read_events(self.dir / name)
                if e["event"] == "replicas"]

    def test_healthy_copies_are_equal_at_every_stage(self):
        """Where nothing has a copy the start says so, and nothing is compared."""
        tied = 128 * 24  # the vocabulary's matrix, rows padded
        for ranks, stage, changes, elements in (
                (3, 0, {}, None), (3, 1, {}, None), (3, 2, {}, None), (3, 3, {}, 0),
                (2, 0, {}, None), (2, 2, {}, 0), (1, 0, {}, 0),
                (2, 2, {"adapter__kind": "lora", "adapter__rank": 2,
                        "adapter__targets": ["*.attention.q.weight"]}, None),
                (4, 1, {"parallel__pipeline": 2}, 3 * tied),
                (4, 3, {"parallel__pipeline": 2}, 3 * tied),
                (4, 3, {"parallel__pipeline": 2, "model__tied_embeddings": False}, 0),
                (4, 3, {"parallel__tensor": 2}, None)):
            with self.subTest(ranks=ranks, stage=stage, **changes):
                name = f"equal_{ranks}_{stage}_{len(changes)}_{'_'.join(changes)}"
                deck = self.deck(name, tiny_deck(self.corpus, zero__stage=stage, run__steps=3,
                                                 guard__check_replicas=1, batch__global=12,
                                                 **changes))
                job = self.run_job(ranks, "train", deck)
                self.assertEqual(job.code, 0, job.output)
                self.assertEqual("keeps no copies" in job.output, elements == 0)
                compared = self.compared(name)
                self.assertEqual(len(compared), 3)
                self.assertEqual(len(set(compared)), 1)
                if elements is None:
                    self.assertGreater(compared[0], 0)
                else:
                    self.assertEqual(compared[0], elements)

    def test_33_44_copies_within_the_mesh_are_compared(self):
        """What tensor ranks hold whole, and tied matrices at both ends of the pipeline, also where
        data ranks share out the state."""
        ends, tensor = {"parallel__pipeline": 2}, {"parallel__tensor": 2}
        vocabulary, norm = "vocabulary.weight", "block.1.norm1.weight"
        for ranks, stage, parameter, flipped, other, changes in (
                (2, 0, norm, 1, 0, tensor), (2, 0, vocabulary, 1, 0, ends),
                (4, 1, vocabulary, 3, 1, ends), (4, 2, vocabulary, 0, 2, ends),
                (4, 3, vocabulary, 2, 0, ends),
                (4, 1, norm, 3, 2, tensor), (4, 3, norm, 2, 3, tensor)):
            with self.subTest(tensor=parameter, ranks=ranks, stage=stage):
                name = f"{ranks}_{stage}_{parameter}"
                healthy = {"guard__check_replicas": 1, "run__steps": 3, "zero__stage": stage,
                           **changes}
                self.train(ranks, self.deck(f"healthy_{name}", tiny_deck(self.corpus, **healthy)))
                self.assertGreater(min(self.compared(f"healthy_{name}")), 0)
                deck = self.deck(f"flipped_{name}", tiny_deck(
                    self.corpus, fault__inject=[f"flip rank={flipped} step=2 tensor={parameter}"],
                    **healthy))
                job = self.run_job(ranks, "train", deck, each=True)
                self.assertEqual(set(job.codes), {PEER}, job.output)
                unit = parameter.rsplit(".", 2)[0] if parameter == norm else "vocabulary"
                low, high = sorted((flipped, other))
                self.assertIn(f"{unit} differs between ranks {low} and {high}", job.output)
                self.assertIn("equal after step 1", job.output)

    def test_the_first_tensor_that_is_not_finite_is_named(self):
        for ranks, stage in ((1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (4, 2)):
            with self.subTest(ranks=ranks, stage=stage):
                name = f"nan_{ranks}_{stage}"
                nodes = {"parallel__ranks_per_node": 2} if ranks == 4 else {}  # sums in two hops
                deck = self.deck(name, tiny_deck(
                    self.corpus, zero__stage=stage, **nodes,
                    fault__inject=[f"nan rank={ranks - 1} step=4 tensor=block.1.attention.k.weight"]))
                self.train(ranks, deck)
                skip, = [e for e in metrics.read_events(self.dir / name) if e["event"] == "skip"]
                self.assertEqual(skip["step"], 4)
                self.assertIn("gradient of block.1.attention.k.weight", skip["where"])
                self.assertIn(f"on rank {ranks - 1} of", skip["where"])


class Numbers(RunTest):
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
