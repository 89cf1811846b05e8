"""A file of prompts into a file of completions: the same bytes on any number of ranks and after any
kill, beside what a single prompt gives, and what is refused."""

import json
import shutil
import signal
import unittest

from tessera import SOURCE, RunTest, kill_tree, tiny_deck

DECK, DATA, IO = 2, 3, 7
GPT2 = SOURCE / "tests/data/tokenizers/gpt2.json"
TEXT = "the quick brown fox jumps over the lazy dog. " * 80
WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog")


class Generate(RunTest):
    def setUp(self):
        super().setUp()
        text = self.dir / "text.txt"
        text.write_text(TEXT)
        self.run_code(0, "tokenize", text, "--out", self.dir / "data")
        deck = tiny_deck(self.dir / "data", model__vocab=256, model__context=48, run__steps=60,
                         optimizer__lr=0.01)
        self.train(1, self.deck("run", deck))
        self.prompts = self.dir / "prompts.jsonl"
        self.write_prompts({"id": i, "prompt": " ".join(WORDS[:i % 5 + 1])} for i in range(23))

    def run_code(self, code, *arguments, ranks=0):
        """Output of a command that ends with this code on every rank."""
        job = self.run_job(ranks, *arguments, each=ranks > 0)
        self.assertEqual(job.codes or [job.code], [code] * max(ranks, 1), job.output)
        return job.output

    def write_prompts(self, prompts):
        self.prompts.write_text("".join(json.dumps(p) + "\n" for p in prompts))

    def command(self, out, *options, tokens=12):
        return ("generate", self.dir / "run", "--prompts", self.prompts, "--out", self.dir / out,
                "--tokens", tokens, "--batch", 3, *options)

    def lines(self, out):
        return [json.loads(line) for line in (self.dir / out).read_text().split("\n")[:-1]]


class Files(Generate):
    def test_the_same_bytes_on_any_number_of_ranks(self):
        made = set()
        for ranks in (1, 2, 3):
            output = self.run_code(0, *self.command(f"{ranks}.jsonl"), ranks=ranks)
            self.assertRegex(output, r"23 completions, \d+ tokens in [\d.]+ s \(\d+ tokens/s\)")
            made.add((self.dir / f"{ranks}.jsonl").read_bytes())
            self.assertEqual(list(self.dir.glob("*.partial*")), [])
        self.assertEqual(len(made), 1)
        lines = self.lines("1.jsonl")
        self.assertEqual([line["index"] for line in lines], list(range(23)))
        for i, line in enumerate(lines):
            self.assertEqual(line["prompt"], " ".join(WORDS[:i % 5 + 1]))
            self.assertEqual((line["finish"], line["tokens"]), ("length", 12))
        self.assertGreater(len({line["completion"] for line in lines}), 15)
        # The likeliest tokens are those that a prompt alone gets, for bits hardly ever decide.
        self.run_code(0, *self.command("likeliest.jsonl", "--temperature", 0))
        for line in self.lines("likeliest.jsonl")[:5]:
            text = self.run_code(0, "generate", self.dir / "run", "--prompt", line["prompt"],
                                 "--tokens", 12, "--temperature", 0)
            self.assertEqual(text, line["prompt"] + line["completion"] + "\n")

    def test_samples_stops_and_probabilities(self):
        self.run_code(0, *self.command("one.jsonl", "--log-probabilities"), ranks=2)
        self.run_code(0, *self.command("some.jsonl", "--samples", 3, "--stop", "[o,z]", "--stop", "o",
                                       "--top-k", 20, "--repetition-penalty", 1.2))
        lines = self.lines("some.jsonl")
        self.assertEqual([(line["index"], line["sample"]) for line in lines],
                         [(i, s) for i in range(23) for s in range(3)])
        stopped = [line for line in lines if line["finish"] == "stop"]
        self.assertTrue(0 < len(stopped) < len(lines))
        for line in lines:
            self.assertNotIn("o", line["completion"])
            if line["completion"].isascii():  # a token is a byte
                self.assertEqual(line["tokens"], len(line["completion"]) + (line in stopped))
        for line in self.lines("one.jsonl"):
            if line["completion"].isascii():
                self.assertEqual(bytes(line["token_ids"]).decode(), line["completion"])
            self.assertEqual(len(line["log_probabilities"]), line["tokens"])
            self.assertTrue(all(p < 0 for p in line["log_probabilities"]))
        # In 16 bits likewise, and a slot may be as long as the context.
        self.write_prompts([{"text": "the quick"}] * 2)
        self.run_code(0, *self.command("bf16.jsonl", "--type", "bf16", "--field", "text", tokens=1000))
        for line in self.lines("bf16.jsonl"):
            self.assertEqual((line["text"], line["tokens"]), ("the quick", 48 - 9 + 1))

    def test_goes_on_after_a_kill(self):
        partial, told = (self.dir / f"out.jsonl.partial{end}" for end in ("", ".json"))
        command = self.command("out.jsonl")
        process = self.start(2, *command, "--samples", 400)
        self.wait_for(lambda: partial.exists() and partial.stat().st_size > 3000, process)
        kill_tree(process.pid, signal.SIGKILL)
        process.wait()
        self.assertFalse((self.dir / "out.jsonl").exists())
        left = partial.read_bytes()
        self.assertIn("was begun with samples = 400, not 1", self.run_code(DECK, *command, ranks=2))
        self.assertEqual(partial.read_bytes(), left)
        lines = left.count(b"\n")
        partial.write_bytes(left[:-7])  # torn
        output = self.run_code(0, *command, "--samples", 400, ranks=3)
        self.assertIn(f"going on after {lines - 1} of 9200 completions", output)
        made = (self.dir / "out.jsonl").read_bytes()
        self.assertEqual(made[:len(left)], left)
        self.assertEqual([(line["index"], line["sample"]) for line in self.lines("out.jsonl")],
                         [(i, s) for i in range(23) for s in range(400)])
        self.assertFalse(partial.exists() or told.exists())

    def test_what_is_refused(self):
        self.run_code(0, *self.command("there.jsonl"))
        there = (self.dir / "there.jsonl").read_bytes()
        (self.dir / "lost.jsonl.partial").write_text("{}\n")
        (self.dir / "empty.jsonl").write_text('{"prompt": "a"}\n\n{"prompt": ""}\n')
        (self.dir / "long.jsonl").write_text('{"prompt": "%s"}\n' % ("a" * 49))
        (self.dir / "text.jsonl").write_text('{"text": "a"}\n')
        model, out = self.dir / "run", ("--out", self.dir / "out.jsonl")
        for code, text, *arguments in (
                (DECK, "it is there, and is not overwritten", *self.command("there.jsonl")),
                (DECK, "lost.jsonl.partial.json is missing", *self.command("lost.jsonl")),
                (IO, "there is no directory", *self.command("nowhere/out.jsonl")),
                (DATA, "line 3: the prompt has no tokens", "generate", model, "--prompts",
                 self.dir / "empty.jsonl", *out),
                (DATA, "line 1: the prompt has 49 tokens, more than the model's context of 48",
                 "generate", model, "--prompts", self.dir / "long.jsonl", *out),
                (DATA, 'line 1: $: "prompt" is missing', "generate", model, "--prompts",
                 self.dir / "text.jsonl", *out),
                (DATA, "missing.jsonl", "generate", model, "--prompts", self.dir / "missing.jsonl",
                 *out),
                (DECK, "it is a file of JSON lines", "generate", model, "--prompts",
                 self.dir / "text.txt", *out),
                (DECK, "give the text at which a completion ends", *self.command("o.jsonl", "--stop",
                                                                                "")),
                (DECK, "have a member of that name", *self.command("o.jsonl", "--field", "index")),
                (DECK, "--chat", *self.command("o.jsonl", "--chat", "llama3"))):
            with self.subTest(text):
                self.assertIn(text, self.run_code(code, *arguments, ranks=2))
        for text, *arguments in (
                ("--prompts requires --out", "generate", model, "--prompts", self.prompts),
                ("--samples requires --prompts", "generate", model, "--prompt", "a", "--samples", 2),
                ("excludes", "generate", model, "--prompt", "a", "--prompts", self.prompts, *out)):
            with self.subTest(text):
                self.assertIn(text, self.run_code(DECK, *arguments))
        self.assertIn("give --prompt TEXT, or --prompts FILE", self.run_code(DECK, "generate", model))
        self.assertEqual((self.dir / "there.jsonl").read_bytes(), there)
        self.assertFalse((self.dir / "out.jsonl").exists())


class Conversations(Generate):
    def test_a_template_makes_what_is_answered(self):
        """Of messages, and of a prompt that the user says; it ends where an answer does."""
        content = json.loads(GPT2.read_text())
        for name in ("<|im_start|>", "<|im_end|>"):
            content["added_tokens"].append({"id": 498 + len(content["added_tokens"]) + 1,
                                            "content": name, "special": True})
        tokenizer = self.dir / "chat.json"
        tokenizer.write_text(json.dumps(content))
        talk = self.dir / "talk.jsonl"
        turns = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "That."}]
        talk.write_text(json.dumps({"messages": turns}) + "\n")
        talk.write_text(talk.read_text() * 40)
        self.run_code(0, "tokenize", talk, "--tokenizer", tokenizer, "--out", self.dir / "chat",
                      "--chat")
        deck = tiny_deck(self.dir / "chat", model__vocab=502, model__context=48, run__steps=150,
                         optimizer__lr=0.01)
        shutil.rmtree(self.dir / "run")
        self.train(1, self.deck("run", deck))
        self.write_prompts([{"id": 1, "messages": turns[:1]}, {"prompt": "What?"},
                            {"messages": turns + turns[:1]}])
        self.run_code(0, *self.command("out.jsonl", "--chat", "chatml", "--temperature", 0), ranks=2)
        first, second, third = self.lines("out.jsonl")
        self.assertEqual((first["messages"], second["prompt"]), (turns[:1], "What?"))
        self.assertEqual(third["messages"], turns + turns[:1])
        for line in (first, second):
            self.assertEqual((line["completion"], line["finish"]), ("That.", "end"))
        self.write_prompts([{"messages": turns}])
        self.assertIn("it ends with an answer",
                      self.run_code(DATA, *self.command("o.jsonl", "--chat", "chatml"), ranks=2))


if __name__ == "__main__":
    unittest.main()
