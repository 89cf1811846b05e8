"""A job that is killed again and again, in every way and at random moments, ends with the very
numbers of one that was not (traps 45, 48, 52). Prints the seed, steps lost and recovery times."""

import os
import pathlib
import random
import signal
import statistics
import subprocess
import time
import unittest

from tessera import RunTest, TIMEOUT, kill_tree, metrics, ranks_of, tiny_deck

KILLS = 50
BUDGET = 100  # seconds after which no more kills follow: a loaded machine must come to an end too
LAUNCHER = 20  # seconds for a job that is ended before its first step
STOPPED = 85
ENDLESS = 1_000_000


def kill_one(process, ranks, rng):
    os.kill(rng.choice(ranks), signal.SIGKILL)


def kill_all(process, ranks, rng):
    kill_tree(process.pid)


def stop_one_and_kill_launcher(process, ranks, rng):
    os.kill(rng.choice(ranks), signal.SIGSTOP)
    process.kill()


def terminate(process, ranks, rng):
    os.kill(rng.choice(ranks), signal.SIGTERM)


def warn(process, ranks, rng):
    os.kill(rng.choice(ranks), signal.SIGUSR1)


WAYS = {  # how often each, of 10
    "rank killed": (kill_one, 2), "all killed": (kill_all, 4),
    "rank stopped, launcher killed": (stop_one_and_kill_launcher, 2),
    "SIGTERM": (terminate, 1), "SIGUSR1": (warn, 1)}
POLITE = (terminate, warn)


def where(pid):
    """What the threads of a process are doing, as the kernel knows it."""
    words = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*"):
        try:
            state = (task / "stat").read_text().rsplit(")", 1)[1].split()[0]
            words.append(f"{(task / 'comm').read_text().strip()} {state} "
                         f"{(task / 'wchan').read_text()}")
        except OSError:
            words.append("gone")
    return words


class Soak(RunTest):
    def soak_deck(self, name, **changes):
        changes = {"schedule__kind": "constant", "zero__stage": 3, "checkpoint__every": 4,
                   "checkpoint__keep": 2, "log__every": 1000, "guard__hang_timeout": 5, **changes}
        return self.deck(name, tiny_deck(self.corpus, **changes))

    def seen(self, what, since):
        """Whether the killed run's metrics have an event of this kind from this byte on."""
        return f'"event":"{what}"'.encode() in self.metrics_now()[since:]

    def metrics_now(self):
        path = self.dir / "killed" / "metrics.jsonl"
        return path.read_bytes() if path.exists() else b""

    def wait_until_gone(self, ranks):
        end = time.monotonic() + TIMEOUT
        while any(pathlib.Path(f"/proc/{r}/exe").exists() for r in ranks):
            self.assertLess(time.monotonic(), end, "ranks outlive their launcher")
            time.sleep(0.005)

    def one_life(self, deck, way, rng, killed_at):
        """Starts the job, ends it; returns when, and how long it took from `killed_at` to the first
        step (None if it did not get there)."""
        since = len(self.metrics_now())
        process = self.start(2, "train", deck)
        recovery = None
        starting = rng.random() < 0.15
        # A rank that is stopped before it has begun cannot see to it that it dies with its launcher.
        if starting and way is not stop_one_and_kill_launcher:
            time.sleep(rng.random() * 0.4)
            self.wait_for(lambda: len(ranks_of(process.pid)) == 2, process)
        else:
            self.assertTrue(self.wait_for(lambda: self.seen("step", since), process), "ended early")
            if killed_at is not None:
                recovery = time.monotonic() - killed_at
            time.sleep(rng.random() * 0.3)
        ranks = ranks_of(process.pid)
        stepped = self.seen("step", since)
        at = time.monotonic()
        way(process, ranks, rng)
        try:
            code = process.wait(timeout=TIMEOUT if stepped else LAUNCHER)
        except subprocess.TimeoutExpired:
            left = ranks_of(process.pid)
            # mpirun of Open MPI 4.1 with PMIx 4.2 sometimes waits for a lock of its own for ever
            # when a rank dies while it connects. That no rank of ours is left is what counts.
            if stepped or left:
                self.fail(f"hangs after {way.__name__}: {[where(p) for p in left]}")
            print(f"soak: the launcher hangs after {way.__name__} at the start, without ranks")
            process.kill()
            code = process.wait()
        self.wait_until_gone(ranks)
        if way in POLITE and stepped:
            self.assertEqual(code, STOPPED, way.__name__)
        return at, recovery

    def verify_newest(self):
        newest = max((self.dir / "killed" / "checkpoints").glob("step_*[0-9]"), default=None)
        if newest is not None:
            job = self.run_job(0, "inspect", newest, "--verify")
            self.assertEqual(job.code, 0, job.output)

    def test_45_48_52_a_run_that_is_killed_again_and_again(self):
        seed = int(os.environ.get("TESSERA_SOAK_SEED", random.randrange(1 << 32)))
        print(f"soak: seed {seed} (TESSERA_SOAK_SEED repeats its choices)", flush=True)
        rng = random.Random(seed)
        names = [n for n, (_, often) in WAYS.items() for _ in range(often * KILLS // 10)]
        rng.shuffle(names)
        deck = self.soak_deck("killed", run__steps=ENDLESS)
        begin, killed_at = time.monotonic(), None
        recoveries, done, ends = [], [], []
        for name in names:
            if time.monotonic() - begin > BUDGET:
                break
            at, recovery = self.one_life(deck, WAYS[name][0], rng, killed_at)
            if recovery is not None:
                recoveries.append((done[-1], recovery))
            # Killed again before its first step, it has not recovered yet.
            killed_at = at if recovery is not None or killed_at is None else killed_at
            done.append(name)
            ends.append(self.metrics_now().count(b"\n"))
            if len(done) % 5 == 0:
                self.verify_newest()
        last = self.newest_step("killed") + 2
        got = self.train(2, deck, f"run.steps={last}")
        want = self.train(2, self.soak_deck("whole", checkpoint__every=0, run__steps=last))
        self.assertEqual(got, want, f"seed {seed}")

        lost = self.lost_steps(ends)
        self.assertGreaterEqual(len(done), 10, "too slow a machine to say anything")
        self.print_summary("all", done, lost, recoveries)
        for way in WAYS:
            self.print_summary(way, [n for n in done if n == way],
                               [n for n, name in zip(lost, done) if name == way],
                               [r for r in recoveries if r[0] == way])
        print(f"soak: {len(done)} kills in a run of {last} steps, all numbers bitwise those of the "
              "uninterrupted run", flush=True)

    def print_summary(self, name, done, lost, recoveries):
        """Kills in this way; steps done again after each; seconds from the kill to the next step."""
        seconds = [r for _, r in recoveries] or [0]
        print(f"soak: {name}: {len(done)} times, {sum(lost)} steps lost (mean "
              f"{statistics.mean(lost or [0]):.1f}, most {max(lost, default=0)}), recovery "
              f"{statistics.median(seconds):.1f} s (median), {max(seconds):.1f} s (longest)")

    def lost_steps(self, ends):
        """Steps that were reported and done again, per kill; ends: lines of metrics before each."""
        events = metrics.read_events(self.dir / "killed")
        self.assertEqual([e for e in events if e["event"] == "fault"], [])  # every checkpoint good
        resumed = [e["step"] for e in events if e["event"] == "resume"]
        self.assertEqual(resumed, sorted(resumed), "an older checkpoint than before")
        lives = [[e["step"] for e in events[begin:end] if e["event"] == "step"]
                 for begin, end in zip([0, *ends], [*ends, len(events)])]
        lost = []
        for i, steps in enumerate(lives[:-1]):
            after = next(later[0] for later in lives[i + 1:] if later)
            lost.append(steps[-1] - (after - 1) if steps else 0)
        self.assertTrue(all(n >= 0 for n in lost), lost)
        return lost


if __name__ == "__main__":
    unittest.main(verbosity=2)
