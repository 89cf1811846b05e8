"""Standard output that is full, closed or read by nobody: a failure of every verb but train, which
goes on into log.txt; and terminals that go away."""

import os
import signal
import subprocess
import unittest

from tessera import BINARY, SOURCE, TIMEOUT, RunTest, tiny_deck

DECK, IO = 2, 7
MODEL = SOURCE / "tests" / "data" / "hf" / "gpt2"
MACHINE = SOURCE / "slurm" / "machines" / "epyc-2core.toml"


class Streams(RunTest):
    def run_with(self, *arguments, redirect="", **options):
        """The exit code and stderr of the program, started by a shell that redirects its streams."""
        result = subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirect}', BINARY,
                                 *map(str, arguments)], stderr=subprocess.PIPE, text=True,
                                cwd=self.dir, timeout=TIMEOUT, **options)
        return result.returncode, result.stderr

    def verbs(self):
        """A command line of every verb that prints; NEW stands for a directory yet to be made."""
        deck = self.deck("run", tiny_deck(self.corpus, model__vocab=256, evaluate__batches=1,
                                          data__validation=[str(self.corpus)]))
        self.train(1, deck)
        run, text = self.dir / "run", self.dir / "text.txt"
        text.write_text("the quick brown fox")
        questions = self.dir / "questions.jsonl"
        questions.write_text('{"context": "a", "choices": ["b", "c"], "answer": 0}\n')
        pairs = self.pairs_of_bytes([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4)
        self.assertEqual(self.run_job(0, "export", run, "--to", self.dir / "hf").code, 0)
        scores = self.deck("scores", tiny_deck(pairs, model__vocab=256, model__context=32, task__kind="reward",
                                               batch__micro=2, batch__global=4))
        self.train(1, scores)
        reference = tiny_deck(pairs, task__kind="dpo", batch__micro=2, batch__global=4,
                              task__reference=str(self.dir / "reference.json"))
        reference["model"] = {"init_from": str(self.dir / "hf")}
        reference = self.deck("reference", reference)
        return (["--help"], ["--version"], ["plan", "--help"],
                ["check", deck, "--ranks", 2], ["check", deck, "--ranks", 2, "--options"],
                ["check", deck, "--schedule"], ["check", deck, "--schedule", "--format", "svg"],
                ["plan", deck, "--ranks", 2], ["plan", deck, "--ranks", 2, "--format", "json"],
                ["plan", deck, "--ranks", 2, "--machine", MACHINE, "--format", "svg"],
                ["simulate", deck, "--ranks", 2, "--machine", MACHINE],
                ["simulate", deck, "--ranks", 2, "--machine", MACHINE, "--search"],
                ["evaluate", deck], ["evaluate", run, "--choices", questions, "--tokenizer", "bytes"],
                ["evaluate", reference, "--reference"], ["classify", self.dir / "scores", text],
                ["help"], ["completion", "bash"], ["man"], ["explain", "zero.stage"],
                ["inspect", run], ["inspect", run, "--verify"],
                ["inspect", self.corpus], ["tokenize", text, "--out", self.dir / "text"],
                ["generate", run, "--prompt", "the", "--tokens", 2],
                ["export", run, "--to", "NEW"], ["import", MODEL, "--to", "NEW"],
                ["merge", run, run, "--to", "NEW"],
                ["bench", "step", "--deck", deck, "--repeats", 1],
                ["report", run, "--out", "NEW"], ["doctor"])

    def test_output_that_is_lost_is_a_failure(self):
        for number, arguments in enumerate(self.verbs()):
            for redirect, code, said in (
                    (">/dev/full", IO, "cannot write to stdout: No space left on device"),
                    (">&-", IO, "cannot write to stdout: Bad file descriptor"),
                    (">/dev/null", 0, "")):
                with self.subTest(arguments, redirect=redirect):
                    new = self.dir / f"new{number}_{code}_{len(redirect)}"
                    line = [new if a == "NEW" else a for a in arguments]
                    got, error = self.run_with(*line, redirect=redirect)
                    self.assertEqual(got, code, error)
                    self.assertIn(said, error)

    def with_no_reader(self, arguments, handler):
        """The exit code and stderr of a program whose stdout is a pipe that nobody reads."""
        reader, writer = os.pipe()
        os.close(reader)
        try:
            result = subprocess.run([BINARY, *map(str, arguments)], stdout=writer,
                                    stderr=subprocess.PIPE, text=True, cwd=self.dir,
                                    timeout=TIMEOUT, restore_signals=False,
                                    preexec_fn=lambda: signal.signal(signal.SIGPIPE, handler))
        finally:
            os.close(writer)
        return result.returncode, result.stderr

    def test_a_reader_that_has_gone_ends_a_verb_quietly(self):
        """As other programs before `| head`; or with an error, where their signal is ignored."""
        deck = self.deck("run", tiny_deck(self.corpus))
        for line in (["check", deck, "--ranks", 2], ["plan", deck, "--ranks", 2, "--format", "json"]):
            with self.subTest(line):
                self.assertEqual(self.with_no_reader(line, signal.SIG_DFL), (-signal.SIGPIPE, ""))
                code, error = self.with_no_reader(line, signal.SIG_IGN)
                self.assertEqual(code, IO, error)
                self.assertIn("cannot write to stdout: Broken pipe", error)

    def test_a_pipe_without_room_is_no_want_of_memory(self):
        """Its other end has made it non-blocking: what does not fit is refused with EAGAIN."""
        deck = self.deck("run", tiny_deck(self.corpus))
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        with self.assertRaises(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        try:
            result = subprocess.run([BINARY, "plan", deck, "--ranks", "2", "--format", "json"],
                                    stdout=writer, stderr=subprocess.PIPE, text=True,
                                    timeout=TIMEOUT)
        finally:
            os.close(reader)
            os.close(writer)
        self.assertEqual(result.returncode, IO, result.stderr)
        self.assertIn("cannot write to stdout: Resource temporarily unavailable", result.stderr)

    def test_a_failure_is_told_by_its_code_where_nobody_can_read_it(self):
        for redirect in ("2>/dev/full", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"):
            with self.subTest(redirect):
                self.assertEqual(self.run_with("check", "none.toml", "--ranks", 2,
                                               redirect=redirect)[0], DECK)
                self.assertEqual(self.run_with("train", "none.toml", redirect=redirect)[0], DECK)

    def assert_trained(self, name, want, why=None):
        """All of a run, and in its log where the terminal went."""
        self.assertEqual(self.numbers(name), want)
        log = (self.dir / name / "log.txt").read_text()
        for step in range(1, len(want) + 1):
            self.assertIn(f"step {step}/{len(want)} |", log)
        self.assertEqual(log.count("cannot write stdout"), 1 if why else 0, log)
        if why:
            self.assertIn(f"cannot write stdout: {why}", log)

    def test_training_goes_on_into_its_log(self):
        want = self.train(1, self.deck("whole", tiny_deck(self.corpus)))
        self.assert_trained("whole", want)
        for name, redirect, why in (("full", ">/dev/full", "No space left on device"),
                                    ("closed", "<&- >&-", "Bad file descriptor"),
                                    ("none", "<&- >&- 2>&-", "Bad file descriptor")):
            with self.subTest(name):
                deck = self.deck(name, tiny_deck(self.corpus))
                code, error = self.run_with("train", deck, redirect=redirect)
                self.assertEqual(code, 0, error)
                self.assert_trained(name, want, why)
        with self.subTest("pipe"):
            deck = self.deck("pipe", tiny_deck(self.corpus))
            code, error = self.with_no_reader(["train", deck], signal.SIG_DFL)
            self.assertEqual(code, 0, error)
            self.assert_trained("pipe", want, "Broken pipe")

    def test_training_survives_a_reader_that_leaves(self):
        """`tessera train DECK | head -n 3`"""
        deck = self.deck("head", tiny_deck(self.corpus, run__steps=300))
        process = subprocess.Popen([BINARY, "train", str(deck)], stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, cwd=self.dir)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        for _ in range(3):
            process.stdout.readline()
        process.stdout.close()
        self.assertEqual(process.wait(timeout=TIMEOUT), 0)
        self.assertIn("step 300/300 |", (self.dir / "head" / "log.txt").read_text())


if __name__ == "__main__":
    unittest.main(verbosity=2)
