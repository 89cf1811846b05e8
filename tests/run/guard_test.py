"""Peers that die or get stuck, numbers that go wrong: what the survivors do and say."""

import os
import pathlib
import re
import signal
import subprocess
import time
import unittest

from tessera import NOTE_CODE, RunTest, TIMEOUT, BINARY, MPIEXEC, kill_tree, ranks_of, tiny_deck

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
        files = [codes / str(r) for r in range(ranks)]
        found = [int(f.read_text()) if f.exists() else "none" for f in files]
        return found, took, (self.dir / f"{name}.out").read_text(errors="replace")

    def test_killed_rank(self):
        codes, took, output = self.lose_a_rank("killed", lambda pid: os.kill(pid, signal.SIGKILL))
        self.assertEqual(codes, [PEER, 128 + signal.SIGKILL, PEER], output)
        self.assertLess(took, 10, output)
        self.assertIn("rank 1 is lost: its connection closed", output)
        self.assertRegex(output, r"ranks? 0.* leaves? \(exit code 5\) from training step \d+")
        self.assertIn("rank 1 is lost", (self.dir / "killed" / "log.txt").read_text())

    def test_stopped_rank(self):
        codes, took, output = self.lose_a_rank(
            "stopped", lambda pid: os.kill(pid, signal.SIGSTOP), guard__hang_timeout=2)
        self.assertEqual(codes, [PEER, PEER, PEER], output)
        self.assertLess(took, 2 + 10, output)
        self.assertRegex(output, r"rank 1 is lost: silent for 2 s .* last heard of in training")

    def thread_names(self, name, **changes):
        """Of all ranks of a job at work."""
        deck = self.deck(name, tiny_deck(self.corpus, run__steps=ENDLESS, log__every=1000, **changes))
        process = self.start(2, "train", deck)
        self.assertTrue(self.wait_for(lambda: self.newest_step(name) >= 3, process))
        names = [(task / "comm").read_text().strip() for pid in ranks_of(process.pid)
                 for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]
        kill_tree(process.pid, signal.SIGTERM)
        process.wait(timeout=TIMEOUT)
        return names

    def test_timeout_of_zero_means_no_watchdog(self):
        self.assertEqual(self.thread_names("watched").count("watchdog"), 2)
        unwatched = self.thread_names("unwatched", guard__hang_timeout=0)
        self.assertIn("progress", unwatched)
        self.assertNotIn("watchdog", unwatched)


if __name__ == "__main__":
    unittest.main(verbosity=2)
