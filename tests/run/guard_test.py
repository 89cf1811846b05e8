"""Peers that die, get stuck or are slow: what the others do and say (trap 45)."""

import os
import pathlib
import re
import resource
import signal
import subprocess
import time
import unittest

from fault_test import FaultRun
from tessera import (BINARY, LET_THEM_LEAVE, MPICH, MPIEXEC, NO_LARGER_FILES, NOTE_CODE, PEER, TIMEOUT,
                     RunTest, fill, kill_tree, metrics, noted_codes, ranks_of, tiny_deck)

ENDLESS = 1_000_000


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


class Injected(FaultRun):
    """Faults that a run injects into itself, and that are told from the time of ranks."""

    def test_45_a_killed_or_stopped_rank(self):
        want = self.train(2, self.fault_deck("whole"))
        for kind in ("kill", "stop"):
            with self.subTest(kind):
                fault = f"{kind} rank=1 step=5"
                deck = self.fault_deck(kind, fault, guard__hang_timeout=2)
                if kind == "kill":
                    job = self.run_job(2, "train", deck, each=True, env=LET_THEM_LEAVE)
                    self.assert_codes(job.codes, [[PEER], [128 + signal.SIGKILL]], job.output)
                else:  # the launcher ends the stopped rank
                    job = self.run_job(2, "train", deck)
                    self.assertEqual(job.code, PEER, job.output)
                self.assertIn("rank 1 is lost", job.output)
                self.assertIn("FAULTS    this run injects faults into itself", job.output)
                self.assertIn(f"FAULT     in step 5: {fault}", job.output)
                self.assertIn(f"FAULT     in step 5: {fault}",
                              (self.dir / kind / "log.txt").read_text())
                self.assertEqual(self.checkpoints(kind), [3])
                self.assertEqual(self.train(2, deck), want)
                self.assertEqual([e["step"] for e in self.events(kind, "resume")], [3])
                self.assertEqual(self.injected(kind), [(1, 5, fault)])
                self.assertEqual([e["what"] for e in self.events(kind, "fault")],
                                 ["armed", "injected", "spent"])

    def test_a_slow_rank_is_named_in_its_steps(self):
        for ranks, rank in ((1, 0), (3, 1)):
            with self.subTest(ranks=ranks):
                name = f"slow{ranks}"
                fault = f"slow rank={rank} step=5 ms=100"
                deck = self.fault_deck(name, fault, run__steps=60, checkpoint__every=0,
                                       batch__global=6)
                self.train(ranks, deck)
                steps = metrics.last_steps(metrics.read_events(self.dir / name))
                for step in range(5, 61):
                    own = steps[step]["own_ms"]
                    self.assertGreaterEqual(own["max"], 100)
                    self.assertEqual(own["slowest_rank"], rank)
                    if rank == 0:  # whose time a step's is; it is spent outside of the timed parts
                        self.assertGreaterEqual(steps[step]["between_ms"], 100)
                # Whoever is slow, from end to end nothing is left out.
                self.assertGreaterEqual(sum(steps[s]["step_ms"] for s in range(5, 61)), 55 * 100)
                log = (self.dir / name / "log.txt").read_text()
                between = float(re.search(r" between steps +([\d.]+) s", log)[1])
                slowest = float(re.search(r" for the slowest rank +([\d.]+) s", log)[1])
                self.assertGreaterEqual(between if rank == 0 else slowest, 5)
                self.assertEqual(self.injected(name), [(rank, 5, fault)])
                self.assertEqual({e["rank"] for e in self.events(name, "straggler")},
                                 {rank} if ranks > 1 else set())


if __name__ == "__main__":
    unittest.main(verbosity=2)
