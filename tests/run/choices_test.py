"""Questions of multiple choice: log likelihoods as fp64 has them and the same on every layout, and
what is refused."""

import json
import math
import random
import unittest

import h5py
import numpy as np

from tessera import RunTest, some_of, tiny_deck, write_tokens

DECK, DATA, IO = 2, 3, 7
MODEL = {"model__vocab": 256, "model__heads": 4, "model__hidden": 32, "model__layers": 4,
         "model__context": 48, "batch__sequence": 16, "run__steps": 4, "optimizer__lr": 3e-2,
         "checkpoint__every": 4, "run__reproducible": "layout", "run__reproducible_tensor": 2,
         "run__threads": 1}
LAYOUTS = ((1, {"batch.micro": 8}), (2, {"zero.stage": 3}), (2, {"parallel.tensor": 2}),
           (2, {"parallel.pipeline": 2}), (4, {"parallel.tensor": 2, "parallel.pipeline": 2}),
           (4, {"zero.stage": 3, "batch.micro": 2, "memory.logits": 5}))


def norm(x, w, b):
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w + b


class Gpt2:
    """Radford et al. (2019) in fp64, of a checkpoint."""

    def __init__(self, checkpoint, heads):
        with h5py.File(checkpoint / "model.h5") as file:
            self.w = {name: np.asarray(data, np.float64) for name, data in file["master"].items()}
        self.heads = heads

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T + self.w[name + ".bias"]

    def log_probabilities(self, tokens):
        w, t = self.w, len(tokens)
        x = w["vocabulary.weight"][tokens] + w["positions.weight"][:t]
        hidden = x.shape[1]
        for layer in range(sum(name.endswith("norm1.weight") for name in w)):
            of = f"block.{layer}."
            h = norm(x, w[of + "norm1.weight"], w[of + "norm1.bias"])
            q, k, v = (self.linear(h, f"{of}attention.{which}").reshape(t, self.heads, -1).swapaxes(0, 1)
                       for which in ("q", "k", "v"))
            scores = q @ k.swapaxes(1, 2) / math.sqrt(hidden / self.heads)
            scores = np.where(np.tri(t, dtype=bool), scores, -np.inf)
            p = np.exp(scores - scores.max(-1, keepdims=True))
            heads = (p / p.sum(-1, keepdims=True)) @ v
            x = x + self.linear(heads.swapaxes(0, 1).reshape(t, hidden), of + "attention.out")
            h = self.linear(norm(x, w[of + "norm2.weight"], w[of + "norm2.bias"]), of + "mlp.up")
            h = 0.5 * h * (1 + np.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h ** 3)))
            x = x + self.linear(h, of + "mlp.down")
        logits = norm(x, w["final_norm.weight"], w["final_norm.bias"]) @ w["vocabulary.weight"].T
        top = logits.max(-1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))

    def log_likelihood(self, context, choice):
        tokens = list((context + choice).encode())
        scores = self.log_probabilities(tokens[:-1])
        return sum(scores[i - 1, tokens[i]] for i in range(len(context.encode()), len(tokens)))


class Choices(RunTest):
    def setUp(self):
        super().setUp()
        write_tokens(self.corpus, vocab=256)
        self.train(1, self.deck("run", tiny_deck(self.corpus, **MODEL)))
        self.model = self.dir / "run"

    def write(self, name, questions):
        path = self.dir / name
        path.write_text("".join(q if isinstance(q, str) else json.dumps(q) + "\n"
                                for q in questions))
        return path

    def evaluate(self, ranks, path, *options, sets=None, code=0):
        out = self.dir / "out.jsonl"
        options += tuple(x for k, v in (sets or {}).items() for x in ("--set", f"{k}={v}"))
        job = self.run_job(ranks, "evaluate", self.model, "--choices", path, "--tokenizer", "bytes",
                           "--out", out, *options, each=True)
        self.assertEqual(job.codes, [code] * ranks, job.output)
        return job.output, [json.loads(line) for line in out.read_text().splitlines()] \
            if code == 0 else None

    def test_log_likelihoods_are_those_of_fp64_on_every_layout(self):
        rng = random.Random(4)

        def words(least, most):
            return "".join(rng.choice("abcdefgh éü\n") for _ in range(rng.randint(least, most)))

        questions = [{"context": "Q" + words(0, 15) + "x", "answer": rng.randrange(n),
                      "choices": ["a" + words(0, 9) for _ in range(n)]}
                     for n in [2, 3, 5, 4] * 6]
        path = self.write("questions.jsonl", questions)
        gpt2 = Gpt2(next((self.model / "checkpoints").iterdir()), MODEL["model__heads"])
        truth = [[gpt2.log_likelihood(q["context"], c) for c in q["choices"]] for q in questions]
        norms = [[x / len(c.encode()) for x, c in zip(scores, q["choices"])]
                 for scores, q in zip(truth, questions)]
        accuracies = [np.mean([int(np.argmax(s)) == q["answer"] for s, q in zip(of, questions)])
                      for of in (truth, norms)]
        errors = [math.sqrt(p * (1 - p) / (len(questions) - 1)) for p in accuracies]
        first = None
        for ranks, sets in some_of(LAYOUTS):
            with self.subTest(ranks=ranks, **sets):
                output, answers = self.evaluate(ranks, path, sets=sets)
                for answer, scores, of_bytes, q in zip(answers, truth, norms, questions):
                    # Up to 10 losses of about 6, each of logits that are right to some 30 units of
                    # f32: 10 x 6 x 30 x 6e-8.
                    np.testing.assert_allclose(answer["log_likelihoods"], scores, atol=1.1e-4)
                    self.assertEqual(answer["chosen"], int(np.argmax(scores)))
                    self.assertEqual(answer["chosen_norm"], int(np.argmax(of_bytes)))
                    self.assertEqual(answer["bytes"], [len(c.encode()) for c in q["choices"]])
                self.assertEqual([a["line"] for a in answers], list(range(1, 25)))
                first = first or answers
                self.assertEqual(answers, first, "the same bits in layout mode")
                self.assertIn(
                    f"| 24 questions of {path} | acc {accuracies[0]:.4f} +- {errors[0]:.4f} | "
                    f"acc_norm {accuracies[1]:.4f} +- {errors[1]:.4f} |", output)

    def test_white_space_between(self):
        """It is the choice's, wherever it is written; only acc_norm knows the difference."""
        questions = [{"context": "ab ", "choices": ["c", "d"], "answer": "A"},
                     {"context": "ab", "choices": [" c", " d"], "answer": "B"}]
        _, (one, other) = self.evaluate(1, self.write("two.jsonl", questions))
        self.assertEqual(one["log_likelihoods"], other["log_likelihoods"])
        self.assertEqual((one["bytes"], other["bytes"]), ([1, 1], [2, 2]))
        self.assertEqual((one["answer"], other["answer"]), (0, 1))

    def test_what_is_refused(self):
        good = {"context": "ab", "choices": ["c", "d"], "answer": 0}
        for line, *texts in (
                ('{"context"\n', "questions.jsonl:2"),
                ({**good, "answer": 2}, "questions.jsonl:2: $.answer: expected 0 to 1 or",
                 "found 2", "a line is {\"context\": "),
                ({**good, "choices": ["c"]}, "questions.jsonl:2: $.choices: expected an array of 2"),
                ({**good, "context": "x" * 40, "choices": ["y" * 8, "y" * 10]},
                 "questions.jsonl:2: $.choices[1]:", "49 tokens", "more than the 48 of "
                 "model.context")):
            output, _ = self.evaluate(2, self.write("questions.jsonl", [good, line]), code=DATA)
            for text in texts:
                self.assertIn(text, output)
        self.evaluate(2, self.write("questions.jsonl", ["\n"]), code=DATA)
        path = self.write("questions.jsonl", [good])
        output, _ = self.evaluate(1, path)
        self.assertIn("| 1 question of", output)
        self.assertNotIn("+-", output, "of one question there is no deviation")
        job = self.run_job(2, "evaluate", self.model, "--choices", path, each=True)
        self.assertEqual(job.codes, [DECK] * 2, job.output)
        self.assertIn("says nothing of its tokenizer: give --tokenizer", job.output)
        for out, text in (("/dev/null", "is a device or a pipe"), (self.dir, "names a directory"),
                          (self.dir / "none" / "out.jsonl", "there is no directory")):
            job = self.run_job(2, "evaluate", self.model, "--choices", path, "--tokenizer", "bytes",
                               "--out", out, each=True)
            self.assertEqual(job.codes, [IO] * 2, job.output)
            self.assertIn(text, " ".join(job.output.split()))

    def test_outputs_that_are_no_tokens(self):
        good = {"context": "ab", "choices": ["c", "d"], "answer": 0}
        pairs = self.pairs_of_bytes([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4)
        self.train(1, self.deck("scores", tiny_deck(pairs, **{
            **MODEL, "task__kind": "reward", "batch__micro": 2, "batch__global": 4})))
        self.model = self.dir / "scores"
        output, _ = self.evaluate(2, self.write("questions.jsonl", [good]), code=DECK)
        self.assertIn('task.kind = "reward": the model\'s outputs are no tokens', " ".join(output.split()))

    def test_another_tokenizer(self):
        """Than that of the model's data: as generate, refused unless it is accepted."""
        text = self.dir / "text.txt"
        text.write_text("the cat and the dog and the bird " * 400)
        job = self.run_job(0, "tokenize", text, "--train-tokenizer", "280", "--out", self.dir / "words")
        self.assertEqual(job.code, 0, job.output)
        self.train(1, self.deck("words", tiny_deck(self.dir / "words", **{**MODEL, "model__vocab": 280})))
        self.model = self.dir / "words"
        path = self.write("questions.jsonl", [{"context": "the", "choices": [" cat", " x"], "answer": 0}])
        output, _ = self.evaluate(1, path, code=DATA)
        self.assertIn("not with --tokenizer bytes (256 tokens)", " ".join(output.split()))
        self.evaluate(1, path, sets={"data.accept_tokenizer": "true"})

    def test_frequencies_that_follow_the_length(self):
        """Steps are as long as the longest choice, which must change nothing for the others."""
        model = {**MODEL, "model__position": "rope", "model__rope_scaling": "dynamic",
                 "model__rope_factor": 3.0, "model__rope_original_context": 16, "run__steps": 1,
                 "checkpoint__every": 1}
        self.train(1, self.deck("dynamic", tiny_deck(self.corpus, **model)))
        self.model = self.dir / "dynamic"
        short = {"context": "a" * 12, "choices": ["bcd", "efgh"], "answer": 0}
        self.evaluate(1, self.write("short.jsonl", [short]))
        output, _ = self.evaluate(1, self.write("long.jsonl", [
            short, {**short, "context": "a" * 17}]), code=DATA)
        self.assertIn("long.jsonl:2: $.choices[0]: with its context it is 19 tokens for the model to "
                      "read, more than the 16 of model.rope_original_context: shorten", output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
