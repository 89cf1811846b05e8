"""tools/follow with the real tensorboard and wandb (offline): what they read of its files is what
metrics.jsonl says, also over restarts and while a line is being written. The packages are installed
once, into an environment of their own; without PyPI the tests that want them are skipped."""

import importlib.machinery
import importlib.util
import json
import os
import signal
import subprocess
import sys
import unittest

from packages import python_with
from tessera import SOURCE, RunTest, metrics, tiny_deck

TOOL = SOURCE / "tools" / "follow"
PACKAGES = ("tensorboard==2.21.0", "wandb==0.31.0")
# {"step/loss": [[step, value], ...]} as TensorBoard shows it, and the same of Weights & Biases'
# files: records of LevelDB's log format after a header of 7 bytes.
READ = r"""
import collections, json, pathlib, struct, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from wandb.proto.wandb_internal_pb2 import Record

def records(data):
    place, parts = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", data[place + 4:place + 7])
        parts += data[place + 7:place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""

def board(directory):
    shown = EventAccumulator(directory)
    shown.Reload()
    return {tag: [[e.step, e.value] for e in shown.Scalars(tag)] for tag in shown.Tags()["scalars"]}

def wandb(directory):
    found, config, names = collections.defaultdict(list), {}, []
    [file] = pathlib.Path(directory).glob("wandb/offline-run-*/*.wandb")
    for data in records(file.read_bytes()):
        record = Record()
        record.ParseFromString(data)
        if record.HasField("run"):
            names = [record.run.project, record.run.display_name]
            config = {c.key: json.loads(c.value_json) for c in record.run.config.update}
        if record.HasField("history"):
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json)
                   for i in record.history.item}
            for key, value in row.items():
                found[key].append([row["step"], value])
    return {"values": found, "config": config, "names": names}

print(json.dumps({"board": board(sys.argv[1]), "wandb": wandb(sys.argv[2])}))
"""


def load_tool():
    loader = importlib.machinery.SourceFileLoader("follow", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("follow", loader))
    loader.exec_module(module)
    return module


def step(number, loss):
    return json.dumps({"event": "step", "step": number, "loss": loss, "grad_norm": 1.0,
                       "mfu": None, "skipped": False}) + "\n"


class Follow(RunTest):
    def follow(self, name, *options, python=None):
        """Starts the tool on self.dir / name; its output goes to a file, wandb's to a folder."""
        self.said = self.dir / "said.txt"
        self.wandb = self.dir / f"wandb_{len(list(self.dir.glob('wandb_*')))}"
        self.wandb.mkdir()
        with open(self.said, "w") as out:
            process = subprocess.Popen(
                [*(python or self.python), TOOL, self.dir / name, *options], stdout=out,
                stderr=subprocess.STDOUT, cwd=self.dir,
                env=dict(os.environ, WANDB_MODE="offline", WANDB_DIR=str(self.wandb)))
        self.addCleanup(lambda: process.poll() is None and process.kill())
        return process

    def finish(self, process):
        code = process.wait(60)
        self.assertEqual(code, 0, self.said.read_text())

    def read(self, name):
        job = subprocess.run([*self.python, "-c", READ, self.dir / "board" / name, self.wandb],
                             capture_output=True, text=True)
        self.assertEqual(job.returncode, 0, job.stderr)
        found = json.loads(job.stdout)
        return found["board"], found["wandb"]

    def wait_until_said(self, text, process):
        self.assertTrue(self.wait_for(lambda: text in self.said.read_text(), process),
                        self.said.read_text())

    def need_packages(self):
        python, why = python_with(*PACKAGES)
        if python is None:
            self.skipTest(why)
        self.python = [python]

    def test_what_a_run_writes_is_what_both_show(self):
        """Started before the run, to its end; then over restarts."""
        self.need_packages()
        both = ("--tensorboard", self.dir / "board", "--wandb", "project")
        process = self.follow("run", *both)
        self.wait_until_said("waiting for", process)
        losses = {s: loss for s, (loss, _) in self.train(1, self.deck(
            "run", tiny_deck(self.corpus, run__steps=6))).items()}
        self.finish(process)
        self.assertIn("6 steps; the run has ended", self.said.read_text())
        board, wandb = self.read("run")
        self.same(board["step/loss"], losses.items())
        self.assertEqual(wandb["values"]["step/loss"], [[s, v] for s, v in losses.items()])
        self.assertEqual(wandb["names"], ["project", "run"])
        self.assertEqual(wandb["config"]["batch"]["global"], 8)
        steps = metrics.last_steps(metrics.read_events(self.dir / "run"))
        self.same(board["step/wire_bytes/intra"],
                  [(s, e["wire_bytes"]["intra"]) for s, e in steps.items()])
        self.assertNotIn("step/mfu", board)  # null on a CPU
        self.goes_on(both, losses)

    def goes_on(self, both, losses):
        """Steps that are done again before the tool reads them, and after."""
        path = self.dir / "run" / "metrics.jsonl"

        def append(text):
            with open(path, "a") as file:
                file.write(text)

        append('{"event":"resume","step":4}\n' + step(5, 2.5))
        process = self.follow("run", *both)
        self.assertTrue(self.wait_for(lambda: any(self.wandb.glob("wandb/offline*/*.wandb")),
                                      process), self.said.read_text())
        append('{"event":"resume","step":3}\n' + step(4, losses[4]) + step(5, 2.25))
        self.wait_until_said("step of step 5 was done again with other numbers", process)
        append('{"event":"rollback","step":5,"to":4}\n' + step(5, 2.25) + step(6, 1.5)
               + '{"event":"end","reason":"done"}\n')
        self.finish(process)
        board, wandb = self.read("run")
        losses = {**losses, 5: 2.25, 6: 1.5}
        self.same(board["step/loss"], losses.items())
        kept = [row for row in wandb["values"]["step/loss"] if row[0] > 4]
        self.assertEqual(kept, [[5, 2.5], [5, 2.25], [6, 1.5]])

    def test_only_finite_numbers_are_written(self):
        event = {"event": "step", "loss": float("nan"), "grad_norm": 2, "mfu": None}
        self.assertEqual(load_tool().numbers(event), {"step/grad_norm": 2.0})

    def test_a_line_is_read_when_it_is_complete(self):
        path = self.dir / "metrics.jsonl"
        lines = load_tool().Lines(path)
        self.assertIsNone(lines.new_events())
        with open(path, "w") as file:
            for text, steps in ((step(1, 1) + step(2, 1)[:9], [1]), (step(2, 1)[9:-1], []),
                                ("\n", [2]), ("", [])):
                file.write(text)
                file.flush()
                self.assertEqual([e["step"] for e in lines.new_events()], steps)
            file.write('{"event":')
            file.flush()
            self.assertEqual(lines.new_events(), [])
            file.truncate(file.tell() - 9)  # as the next start of a run does
            file.seek(0, 2)
            file.write(step(3, 1))
        self.assertEqual([e["step"] for e in lines.new_events()], [3])

    def same(self, shown, values):
        """TensorBoard keeps f32."""
        self.assertEqual([s for s, _ in shown], [s for s, _ in values])
        for (_, got), (_, want) in zip(shown, values):
            self.assertAlmostEqual(got, want, delta=abs(want) * 2 ** -23)

    def test_what_is_absent_or_cannot_be_followed_is_said(self):
        bare = [sys.executable, "-I", "-S"]  # a Python without packages
        run = self.dir / "run"
        run.mkdir()
        (run / "metrics.jsonl").write_text(step(1, 2.0) + '{"event":' + "[" * 99999 + "\n")
        for options, text in ((("--tensorboard", "x"), "pip install tensorboard"),
                              (("--wandb", "x"), "pip install wandb"),
                              ((), "nothing to write")):
            process = self.follow("run", *options, python=bare)
            self.assertNotEqual(process.wait(60), 0)
            self.assertIn(text, self.said.read_text())
            self.assertNotIn("Traceback", self.said.read_text())
        self.need_packages()
        process = self.follow("run", "--tensorboard", self.dir / "board")
        self.assertEqual(process.wait(60), 1)
        self.assertIn("metrics.jsonl:2: not an event of a run", self.said.read_text())
        process = self.follow("none", "--tensorboard", self.dir / "board")
        self.wait_until_said("waiting for", process)
        process.send_signal(signal.SIGINT)
        self.finish(process)
        self.assertIn("stopped", self.said.read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
