"""tools/evaluate_with_harness: what it asks of lm-evaluation-harness, what it refuses, and, where
TESSERA_HARNESS names a Python that has the harness, that its numbers are those of `evaluate`."""

import json
import os
import pathlib
import random
import re
import subprocess
import sys
import unittest

from tessera import BINARY, SOURCE, RunTest, tiny_deck

TOOL = SOURCE / "tools" / "evaluate_with_harness"
LLAMA2 = SOURCE / "tests/data/tokenizers/llama2.json"
HARNESS = os.environ.get("TESSERA_HARNESS")
WORDS = "the quick brown fox jumps over the lazy dog and a small bird sings".split()
# A Python that has all packages, and notes what its lm_eval is asked.
STAND_IN = """#!/bin/sh
[ "$1" = -c ] && exit 0
for last in "$@"; do case "$before" in --include_path) cp "$last"/* "$NOTES";; --model_args)
  model=${last#pretrained=}; cp "${model%%,*}/config.json" "$NOTES";; esac; before=$last; done
printf '%s\\n' "$@" > "$NOTES/arguments"
echo "$HF_HUB_OFFLINE" > "$NOTES/offline"
"""


class Harness(RunTest):
    def setUp(self):
        super().setUp()
        self.notes = self.dir / "notes"
        self.notes.mkdir()
        self.stand_in = self.dir / "python"
        self.stand_in.write_text(STAND_IN)
        self.stand_in.chmod(0o755)

    def tool(self, *arguments, code=0, python=None):
        job = subprocess.run([sys.executable, TOOL, "--tessera", BINARY,
                              *(["--python", python] if python else []),
                              *map(str, arguments)], capture_output=True,
                             text=True, cwd=self.dir, env=dict(os.environ, NOTES=str(self.notes)))
        self.assertEqual(job.returncode, code, job.stdout + job.stderr)
        return job.stdout + job.stderr

    def train_on_text(self, steps):
        rng = random.Random(2)
        text = self.dir / "text.txt"
        text.write_text(" ".join(rng.choice(WORDS) for _ in range(4000)))
        job = self.run_job(0, "tokenize", text, "--tokenizer", LLAMA2, "--eos", "none", "--out",
                           self.dir / "text")
        self.assertEqual(job.code, 0, job.output)
        vocab = 1 + max(json.loads(LLAMA2.read_text())["model"]["vocab"].values())
        self.train(1, self.deck("run", tiny_deck(self.dir / "text", model__vocab=vocab,
                                                 model__context=64, batch__sequence=16,
                                                 optimizer__lr=1e-2, run__steps=steps)))

    def questions(self):
        rng = random.Random(3)
        path = self.dir / "questions.jsonl"
        lines = []
        for i in range(40):
            choices = [" " + " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 3)))
                       + " é" * (i % 3 == 0) for _ in range(rng.randint(2, 4))]
            context = " ".join(rng.choice(WORDS) for _ in range(5)) + " " * (i % 5 == 0)
            answer = rng.randrange(len(choices))
            lines.append({"context": context if i else "", "choices": choices,
                          "answer": answer if i % 2 else "ABCD"[answer]})
        path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
        return path, lines

    def asked(self):
        return (self.notes / "arguments").read_text().splitlines()

    def test_what_the_harness_is_asked(self):
        self.train_on_text(1)
        path, lines = self.questions()
        self.tool(self.dir / "run", "--choices", path, python=self.stand_in)
        asked = self.asked()
        self.assertEqual(asked[:4], ["-m", "lm_eval", "--model", "hf"])
        model = re.fullmatch(r"pretrained=(.*),dtype=float32", asked[5])[1]
        self.assertFalse(pathlib.Path(model).exists(), "it is removed afterwards")
        self.assertEqual(asked[6:10], ["--tasks", "tessera_choices", "--batch_size", "8"])
        self.assertEqual((self.notes / "offline").read_text(), "1\n")
        self.assertEqual(json.loads((self.notes / "config.json").read_text())["model_type"], "gpt2")
        task = json.loads((self.notes / "tessera_choices.yaml").read_text())
        self.assertEqual((task["output_type"], task["target_delimiter"]), ("multiple_choice", ""))
        given = [json.loads(line) for line in
                 (self.notes / "questions.jsonl").read_text().splitlines()]
        want = [{**q, "answer": q["answer"] if isinstance(q["answer"], int)
                 else "ABCD".index(q["answer"])} for q in lines]
        self.assertEqual(given, want)
        # A directory is kept where it is asked for, and then taken as it is.
        kept = self.dir / "kept"
        self.tool(self.dir / "run", "--to", kept, "--tasks", "one,two", "--type", "bf16",
                  python=self.stand_in)
        self.tool(kept, "--tasks", "one,two", "--include", self.dir, "--batch", "auto", "--out", "there",
                  "--", "--num_fewshot", "5", python=self.stand_in)
        self.assertEqual(self.asked()[4:], [
            "--model_args", f"pretrained={kept},dtype=float32", "--tasks", "one,two", "--batch_size",
            "auto", "--include_path", str(self.dir), "--output_path", "there", "--num_fewshot", "5"])
        self.assertEqual((self.notes / "offline").read_text(), "\n")

    def test_what_is_refused(self):
        model = SOURCE / "tests/data/hf/llama"
        output = self.tool(model, "--tasks", "x", python="/bin/false", code=1)
        self.assertIn("pip install 'lm-eval[hf]'", output)
        self.assertIn("/no/python: No such file", self.tool(model, "--tasks", "x", code=1,
                                                            python="/no/python"))
        self.assertIn("llama has no tokenizer.json",
                      self.tool(model, "--tasks", "x", python=self.stand_in, code=1))
        self.assertIn("nothing is no directory",
                      self.tool("nothing", "--tasks", "x", python=self.stand_in, code=2))
        self.assertIn("directory already: leave out --ema",
                      self.tool(model, "--tasks", "x", "--ema", python=self.stand_in, code=1))
        questions = self.dir / "bad.jsonl"
        good = '{"context": "a", "choices": ["b", "c"], "answer": 0}\n'
        for line, says in (('{"context"', "bad.jsonl:2: no JSON"),
                           ('[1]', "bad.jsonl:2: expected an object, found [1]"),
                           ('{"context": "a", "choices": ["b"]}', "bad.jsonl:2: a line is"),
                           ('{"context": "a", "choices": ["b", "c"], "answer": "C"}',
                            'bad.jsonl:2: answer: expected 0 to 1 or a letter, found "C"')):
            questions.write_text(good + line + "\n")
            self.assertIn(says, self.tool(model, "--choices", questions, python=self.stand_in, code=1))
        questions.write_text("\n")
        self.assertIn("bad.jsonl: no questions",
                      self.tool(model, "--choices", questions, python=self.stand_in, code=1))

    @unittest.skipUnless(HARNESS, "TESSERA_HARNESS names no Python that has lm-evaluation-harness")
    def test_both_have_the_same_numbers(self):
        self.train_on_text(30)
        path, lines = self.questions()
        out = self.dir / "ours.jsonl"
        job = self.run_job(2, "evaluate", self.dir / "run", "--choices", path, "--special-tokens",
                           "--out", out)
        self.assertEqual(job.code, 0, job.output)
        acc, acc_norm = re.search(r"acc (\S+) .*acc_norm (\S+) ", job.output).groups()
        self.tool(self.dir / "run", "--choices", path, "--out", self.dir / "results", "--",
                  "--log_samples", python=HARNESS)
        result = json.loads(next(self.dir.glob("results/*/results_*")).read_text())
        result = result["results"]["tessera_choices"]
        self.assertEqual((f"{result['acc,none']:.4f}", f"{result['acc_bytes,none']:.4f}"),
                         (acc, acc_norm))
        theirs = [json.loads(line) for line in
                  next(self.dir.glob("results/*/samples_*")).read_text().splitlines()]
        ours = [json.loads(line) for line in out.read_text().splitlines()]
        self.assertEqual(len(theirs), len(lines))
        for mine, sample in zip(ours, sorted(theirs, key=lambda s: s["doc_id"])):
            for a, (b, _) in zip(mine["log_likelihoods"], sample["filtered_resps"], strict=True):
                # Up to 20 losses of about 6, each of logits that are right to some 30 units of f32,
                # on both sides: 2 x 20 x 6 x 30 x 6e-8.
                self.assertAlmostEqual(a, float(b), delta=4.4e-4)


if __name__ == "__main__":
    unittest.main(verbosity=2)
