"""What the tests of whole runs share: tiny corpora and decks, starting jobs, what they left.

Each test file is started by ctest with TESSERA_BINARY (the program), TESSERA_MPIEXEC (how ranks are
started, up to and including the flag before their number) and TESSERA_SOURCE_DIR."""

import array
import itertools
import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

SOURCE = pathlib.Path(os.environ["TESSERA_SOURCE_DIR"])
BINARY = os.environ["TESSERA_BINARY"]
MPIEXEC = shlex.split(os.environ["TESSERA_MPIEXEC"])
MPICH = "mpich" in MPIEXEC[0]
TIMES_SLOWER = int(os.environ.get("TESSERA_TIMES_SLOWER", 1))  # of programs with sanitizers
TIMEOUT = 120 * TIMES_SLOWER  # seconds; a job that takes longer hangs
ONE_LAYOUT_OF = int(os.environ.get("TESSERA_ONE_LAYOUT_OF", 1))  # as some_of says
# Of tests of benchmarks whose rows are all kernels, or plans of large layouts.
of_rates = unittest.skipIf(TIMES_SLOWER > 1, "rates of what sanitizers watch say nothing, and take long")

sys.path.insert(0, str(SOURCE / "tools"))
import metrics  # noqa: E402

PEER = 5  # the exit code of who is left by another rank
# Open MPI's launcher kills a job as soon as a rank is gone; to see that ranks leave by themselves,
# it must not.
LET_THEM_LEAVE = {"OMPI_MCA_orte_enable_recovery": "1"}

# Runs a rank, notes its exit code, and lets the launcher see success: a launcher that sees a rank
# fail kills the others before they can show their own code.
NOTE_CODE = 'rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; "$@"; echo $? > "$CODES/$rank"'


_turns = itertools.count()


def some_of(layouts):
    """All of them, or one of so many, others at each call: together a file's tests have all kinds of
    layouts, which sanitizers need not see in every model."""
    return layouts[next(_turns) % min(ONE_LAYOUT_OF, len(layouts))::ONE_LAYOUT_OF]


def write_tokens(prefix, count=3000, vocab=97, seed=1):
    """A corpus that can be learned, as one document in Megatron's format."""
    rng = random.Random(seed)
    tokens = array.array("H", [0])
    while len(tokens) < count:
        noise = rng.randrange(vocab)
        tokens.append((5 * tokens[-1] + 3) % vocab if rng.random() < 0.8 else noise)
    write_megatron(prefix, tokens)


def write_megatron(prefix, tokens):
    pathlib.Path(f"{prefix}.bin").write_bytes(tokens.tobytes())
    header = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2)
    pathlib.Path(f"{prefix}.idx").write_bytes(header + struct.pack("<iqqq", len(tokens), 0, 0, 1))


def tiny_deck(data, **changes):
    """Sections of a deck that trains in well under a second; changes are section__key = value,
    None removes a key."""
    deck = {
        "run": {"steps": 12, "seed": 3, "backend": "debug"},
        "model": {"family": "gpt2", "layers": 3, "heads": 3, "hidden": 24, "vocab": 97,
                  "context": 16},
        "data": {"train": [str(data)]},
        "batch": {"micro": 1, "global": 8},
        "optimizer": {"lr": 3e-3, "weight_decay": 0.1},
        "schedule": {"kind": "cosine", "warmup_steps": 3},
        "precision": {"compute": "f32"},
    }
    return change(deck, **changes)


def change(deck, **changes):
    for key, value in changes.items():
        section, name = key.split("__")
        deck.setdefault(section, {})[name] = value
        if value is None:
            del deck[section][name]
    return deck


def to_toml(deck):
    def text(v):
        if isinstance(v, dict):
            return "{" + ", ".join(f"{k} = {text(x)}" for k, x in v.items()) + "}"
        if isinstance(v, list):
            return "[" + ", ".join(map(text, v)) + "]"
        return "true" if v is True else "false" if v is False else json.dumps(v)

    return "".join(f"[{section}]\n" + "".join(f"{k} = {text(v)}\n" for k, v in keys.items())
                   for section, keys in deck.items())


def descendants(pid):
    """A process and all below it; launchers put ranks into groups and sessions of their own."""
    children = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(entry.read_text().rsplit(")", 1)[1].split()[1])
        except OSError:
            continue  # it has just ended
        children.setdefault(parent, []).append(int(entry.parent.name))
    found = [pid]
    for p in found:
        found += children.get(p, [])
    return found


def kill_tree(pid, number=signal.SIGKILL):
    """Signals a process and all its descendants."""
    for p in descendants(pid):
        try:
            os.kill(p, number)
        except ProcessLookupError:
            pass


def ranks_of(launcher):
    """Process ids of the ranks below a launcher."""
    found = []
    for pid in descendants(launcher):
        try:
            command = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        if command[0] == BINARY.encode():
            found.append(pid)
    return found


class Job:
    """A finished job: the launcher's exit code, each rank's own (when asked for), all output."""

    def __init__(self, code, codes, output):
        self.code, self.codes, self.output = code, codes, output


# For sh: no file can grow past LARGEST_FILE bytes, which is an error like a full disk's.
LARGEST_FILE = 64 << 20
NO_LARGER_FILES = f'trap "" XFSZ; ulimit -f {LARGEST_FILE // 512}; exec "$0" "$@"'


def fill(path):
    """A file of empty lines, as large as NO_LARGER_FILES lets any become."""
    path.write_bytes(b"\n" * LARGEST_FILE)


def noted_codes(directory, ranks):
    """The exit codes that NOTE_CODE has noted there; "killed" where the launcher was faster."""
    texts = [f.read_text() if f.exists() else "" for f in (directory / str(r) for r in range(ranks))]
    return [int(text) if text else "killed" for text in texts]


class RunTest(unittest.TestCase):
    """A temporary directory with a corpus, and jobs in it."""

    maxDiff = None

    def setUp(self):
        holder = tempfile.TemporaryDirectory(prefix="tessera_test_")
        self.addCleanup(holder.cleanup)
        self.dir = pathlib.Path(holder.name)
        self.corpus = self.dir / "tokens"
        write_tokens(self.corpus)

    def pairs_of_bytes(self, pairs):
        """Token files of pairs of answers, {"prompt", "chosen", "rejected"} each, a byte a token; their prefix."""
        lines, template = self.dir / "pairs.jsonl", self.dir / "pairs_template.json"
        lines.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
        template.write_text(json.dumps({"parts": [{"text": "{prompt}"},
                                                  {"text": "{completion}", "learned": True}]}))
        job = self.run_job(0, "tokenize", lines, "--pairs", "--chat", template, "--out", self.dir / "pairs")
        self.assertEqual(job.code, 0, job.output)
        return self.dir / "pairs"

    def deck(self, name, deck):
        """Writes a deck whose run directory is self.dir / name; returns the file."""
        path = self.dir / f"{name}.toml"
        deck["run"].setdefault("dir", str(self.dir / name))
        path.write_text(to_toml(deck))
        return path

    def start(self, ranks, *arguments, stdout=subprocess.DEVNULL, program=(BINARY,)):
        command = [*MPIEXEC, str(ranks), *program, *map(str, arguments)]
        process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.STDOUT, cwd=self.dir)
        self.addCleanup(lambda: process.poll() is None and kill_tree(process.pid))
        return process

    def run_job(self, ranks, *arguments, each=False, program=BINARY, env=None):
        """Runs to the end; fails the test when it hangs. each: also note every rank's exit code."""
        command = [program, *map(str, arguments)]
        environment = dict(os.environ, **(env or {}))
        codes_dir = self.dir / "codes"
        if not each:  # Open MPI's launcher takes no second to end the ranks beside one that failed
            environment.setdefault("OMPI_MCA_odls_base_sigkill_timeout", "0")
        if each:
            shutil.rmtree(codes_dir, ignore_errors=True)
            codes_dir.mkdir()
            environment["CODES"] = str(codes_dir)
            command = ["sh", "-c", NOTE_CODE, "sh", *command]
        if ranks > 0:
            command = [*MPIEXEC, str(ranks), *command]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, errors="replace", env=environment, cwd=self.dir)
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            self.fail(f"hangs: {shlex.join(command)}\n{process.communicate()[0][-2000:]}")
        codes = None
        if each:
            codes = noted_codes(codes_dir, ranks)
        return Job(process.returncode, codes, output)

    def assert_codes(self, codes, allowed, output):
        """Each rank's exit code is one of those allowed to it. MPICH's launcher kills all ranks as
        soon as one is gone without MPI_Finalize, whatever the code: then one at least is known."""
        known = [(c, a) for c, a in zip(codes, allowed, strict=True)
                 if not (MPICH and c == "killed")]
        self.assertTrue(known, output)
        for code, of_rank in known:
            self.assertIn(code, of_rank, f"{codes}: {output}")

    def train(self, ranks, deck_path, *sets, expect=0):
        """Trains, checks the exit code, and returns {step: (loss, grad_norm)}."""
        options = [x for s in sets for x in ("--set", s)]
        job = self.run_job(ranks, "train", deck_path, *options)
        self.assertEqual(job.code, expect, f"{deck_path.name} on {ranks} ranks:\n{job.output}")
        return self.numbers(deck_path.stem)

    def numbers(self, name):
        """{step: (loss, grad_norm)} of a run directory. Steps that were done again after a restart
        must have given the very same numbers."""
        events = metrics.read_events(self.dir / name)
        again, changed = metrics.repeated_steps(events)
        self.assertEqual(changed, [], f"{name}: of the steps done again ({again}) these changed")
        steps = metrics.last_steps(events)
        return {s: (e["loss"], e["grad_norm"]) for s, e in steps.items()}

    def steps_of(self, name):
        """What a run says of its steps, in order."""
        return list(metrics.last_steps(metrics.read_events(self.dir / name)).values())

    def evaluations_of(self, name):
        return [e for e in metrics.read_events(self.dir / name) if e["event"] == "evaluate"]

    def go_back(self, name, step):
        """Leaves a run nothing but its checkpoint of that step."""
        for path in (self.dir / name / "checkpoints").glob("step_*"):
            if path.name != f"step_{step:08}":
                shutil.rmtree(path)

    def newest_step(self, name):
        """The last step that a running job has reported; 0 before the first."""
        try:
            return max(metrics.last_steps(metrics.read_events(self.dir / name)), default=0)
        except metrics.MetricsError:
            return 0

    def checkpoints(self, name):
        """The steps of a run's checkpoints, each of them verified."""
        paths = sorted((self.dir / name / "checkpoints").glob("step_*[0-9]"))
        for path in paths:
            job = self.run_job(0, "inspect", path, "--verify")
            self.assertEqual(job.code, 0, job.output)
        return [int(path.name[5:]) for path in paths]

    def wait_for(self, condition, process):
        """Waits until condition() holds; False when the job ended first."""
        end = time.monotonic() + TIMEOUT
        while not condition():
            if process.poll() is not None:
                return False
            self.assertLess(time.monotonic(), end, "nothing happens")
            time.sleep(0.002)
        return True

    def assert_close(self, got, want, tolerance, what):
        """Losses and norms of all steps agree; tolerance is relative."""
        self.assertEqual(list(got), list(want), what)
        worst = max(abs(a - b) / abs(b) for s in want for a, b in zip(got[s], want[s]))
        self.assertLessEqual(worst, tolerance, what)
