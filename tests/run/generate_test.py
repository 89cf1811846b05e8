"""A file of prompts into a file of completions: the same bytes on any number of ranks, on any layout where
that is asked for, and after any kill, beside what a single prompt gives, and what is refused."""

import json
import os
import resource
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


NVME = ('offload.parameters="nvme"', 'offload.nvme=["disks"]')
LAYOUTS = ((2, ("zero.stage=3",)),
           (2, ("parallel.tensor=2",)),
           (3, ("parallel.pipeline=3",)),
           (4, ("parallel.pipeline=2", "zero.stage=3", "zero.prefetch=2")),
           (4, ("parallel.tensor=2", "zero.stage=3", *NVME)),
           (4, ("zero.stage=3", "zero.secondary=2")),
           (1, NVME))
UNEVEN = ((3, ("parallel.tensor=3",)),)
OF_EXPERTS = ((2, ("parallel.experts=2",)),
              (4, ("parallel.experts=4", "zero.stage=3")),
              (4, ("parallel.experts=2", "parallel.tensor=2")),
              (4, ("parallel.experts=2", "parallel.pipeline=2", "zero.stage=3", *NVME)))
LAYOUT_MODE = ('run.reproducible="layout"', "run.threads=1", "run.reproducible_tensor=2")
LLAMA = {"model__family": "llama", "model__hidden": 32, "model__heads": 4, "model__ffn_hidden": 40}
MODELS = {
    "gpt2": {"model__heads": 4, "model__hidden": 32},
    # More tensor chunks than kv heads: they have these whole. A window in which the prompts are too long. A
    # vocabulary that has padding.
    "llama": {**LLAMA, "model__kv_heads": 1, "model__window": 7, "model__logit_soft_cap": 5.0,
              "model__vocab": 257},
    "latents": {**LLAMA, "model__kv_heads": 4, "model__head_dim": 12, "model__value_dim": 8,
                "model__kv_latent": 16, "model__q_latent": 24, "model__rope_dim": 4},
    "experts": {**LLAMA, "moe__experts": 4, "moe__top_k": 2, "moe__ffn_hidden": 24}}


def as_options(sets):
    return [word for one in sets for word in ("--set", one)]


class Layouts(Generate):
    """Ranks that divide the model, or have it on disks, say what one that has it whole says."""

    def models(self):
        for name, changes in MODELS.items():
            deck = tiny_deck(self.dir / "data", **{"model__vocab": 256, "model__context": 64,
                                                   "run__steps": 30, "optimizer__lr": 0.01, **changes})
            self.train(1, self.deck(name, deck))
            yield name

    def generate(self, model, name, ranks, sets, *options, batch=3):
        """The bytes of 23 completions of prompts of which some are longer than what goes through the
        model at once; `batch` of them go on at once on each data rank."""
        out = self.dir / f"{model}_{name}.jsonl"
        self.run_code(0, "generate", self.dir / model, "--prompts", self.prompts, "--out", out,
                      "--tokens", 12, "--batch", batch, *as_options(sets), *options, ranks=ranks)
        self.assertEqual(list((self.dir / "disks").glob("*")), [])
        return out.read_bytes()

    def test_the_same_bytes_on_every_layout(self):
        (self.dir / "disks").mkdir()
        self.write_prompts({"prompt": " ".join(WORDS[:i % 8 + 1])} for i in range(11))
        for model in self.models():
            # Products of experts have as many rows as tokens were routed to each.
            batch = 1 if model == "experts" else 3
            one = self.generate(model, "one", 1, LAYOUT_MODE, "--log-probabilities", batch=batch)
            for i, (ranks, sets) in enumerate(LAYOUTS):
                with self.subTest(model=model, ranks=ranks, sets=sets):
                    self.assertEqual(one, self.generate(model, i, ranks, (*LAYOUT_MODE, *sets),
                                                        "--log-probabilities", batch=batch))

    def test_the_likeliest_tokens_on_every_layout(self):
        """Bits hardly ever decide which these are. A prompt alone gets them from a model that one process
        has whole."""
        (self.dir / "disks").mkdir()
        self.write_prompts({"prompt": " ".join(WORDS[:i % 8 + 1])} for i in range(11))
        for model in self.models():
            one = self.generate(model, "one", 1, (), "--temperature", 0)
            for line in [json.loads(text) for text in one.splitlines()][3:8:4]:
                text = self.run_code(0, "generate", self.dir / model, "--prompt", line["prompt"],
                                     "--tokens", 12, "--temperature", 0)
                self.assertEqual(text, line["prompt"] + line["completion"] + "\n")
            # Three ranks have vocabularies of two sizes; and heads, where these can be divided so.
            more = {"gpt2": UNEVEN, "llama": UNEVEN, "experts": OF_EXPERTS}.get(model, ())
            for i, (ranks, sets) in enumerate((*LAYOUTS[::2], LAYOUTS[-1], *more)):
                with self.subTest(model=model, ranks=ranks, sets=sets):
                    self.assertEqual(one, self.generate(model, i, ranks, sets, "--temperature", 0))

    def test_prompts_in_parts(self):
        """What is kept of a part is what is kept of it as a part of the whole, where frequencies of positions
        depend on how long a sequence is. Of 1,024 sequences four tokens each go through the model at once."""
        deck = tiny_deck(self.dir / "data", **{**LLAMA, "model__vocab": 256, "model__context": 64,
                                               "run__steps": 30, "optimizer__lr": 0.01,
                                               "model__rope_scaling": "dynamic", "model__rope_factor": 4,
                                               "model__rope_original_context": 8})
        self.train(1, self.deck("dynamic", deck))
        self.write_prompts({"prompt": " ".join(WORDS[:i % 8 + 1])} for i in range(11))
        said = [[json.loads(line)["log_probabilities"] for line in self.generate(
            "dynamic", name, 1, sets, "--log-probabilities", "--temperature", 0, batch=batch).splitlines()]
            for name, sets, batch in (("whole", (), 16), ("parts", ('offload.parameters="host"',), 1024))]
        # Differences of rounding alone are some 4e-7, of keys with other frequencies 4e-5.
        for whole, parts in zip(*said, strict=True):
            self.assertEqual(len(whole), len(parts))
            for p, q in zip(whole, parts, strict=True):
                self.assertAlmostEqual(p, q, delta=5e-6)

    def test_prompts_that_go_together(self):
        """Each gets what it gets alone, to the bit. Of the first eight prompts six have passes of 64 tokens: four
        of them together, then two; those that follow alone, or with another. Latents are cached likewise."""
        lengths = (40, 64, 33, 100, 50, 9, 45, 60, 64, 12, 38, 61, 90)
        self.write_prompts({"prompt": (" ".join(WORDS) * 20)[i:i + length]}
                           for i, length in enumerate(lengths))
        for name in ("llama", "latents"):
            deck = tiny_deck(self.dir / "data", **{**MODELS[name], "model__vocab": 256, "model__context": 128,
                                                   "run__steps": 30, "optimizer__lr": 0.01})
            self.train(1, self.deck(name, deck))
            for i, (ranks, sets) in enumerate(((1, ()), (2, ("parallel.tensor=2",)), (2, ("parallel.pipeline=2",)))):
                for kind in ("f32", "bf16"):
                    with self.subTest(name=name, sets=sets, kind=kind):
                        alone, together = (
                            self.generate(name, f"{i}_{kind}_{batch}", ranks, sets, "--log-probabilities",
                                          "--backend", "cpu", "--type", kind, batch=batch) for batch in (1, 8))
                        self.assertEqual(alone, together)

    def test_prompts_wait_for_pages(self):
        """Sequences of one to three pages say the same when there are pages for one of them at a time, for some
        or for all. Ranks that make their passes in step, of which one has nothing that fits, go on as well."""
        lengths = (40, 64, 130, 100, 5, 152, 60, 63, 64, 65, 128)
        self.write_prompts({"prompt": (" ".join(WORDS) * 20)[i:i + length]}
                           for i, length in enumerate(lengths))
        for name in ("llama", "latents"):
            deck = tiny_deck(self.dir / "data", **{**MODELS[name], "model__vocab": 256, "model__context": 192,
                                                   "run__steps": 30, "optimizer__lr": 0.01})
            self.train(1, self.deck(name, deck))
            # The debug back end has memory of its own beside the host's.
            for i, (ranks, sets, backend) in enumerate((
                    (1, (), "cpu"), (2, (), "cpu"), (2, ("parallel.pipeline=2",), "cpu"),
                    (2, ("zero.stage=3",), "cpu"), (1, (), "debug"), (1, ('offload.cache="host"',), "debug"))):
                all_of = self.generate(name, f"{i}_all", ranks, sets, "--log-probabilities", "--backend",
                                       backend, batch=6)
                for room in (192, 320, 10**6):
                    with self.subTest(name=name, sets=sets, backend=backend, room=room):
                        self.assertEqual(all_of, self.generate(
                            name, f"{i}_{room}", ranks, sets, "--log-probabilities", "--backend", backend,
                            "--cache-tokens", room, batch=6))
        self.assertIn("--cache-tokens 100: one sequence alone may come to 164 tokens",
                      self.run_code(DECK, "generate", self.dir / "latents", "--prompts", self.prompts, "--out",
                                    self.dir / "o.jsonl", "--tokens", 12, "--cache-tokens", 100, ranks=2))

    def test_experts_without_tokens_stay_on_the_disk(self):
        """Of 32 experts a token is given to one, so that of those that are read a pass has 1/32, as elements or
        as codes; a prompt of many tokens has nearly all. Of experts of two ranks those are read to which either
        one's token is given."""
        (self.dir / "disks").mkdir()
        deck = tiny_deck(self.dir / "data", **{**LLAMA, "model__vocab": 256, "model__context": 64, "model__layers": 2, "moe__experts": 32,
                                               "moe__top_k": 1, "moe__ffn_hidden": 1024, "run__steps": 2})
        self.train(1, self.deck("many", deck))
        matrices = 3 * 2 * 32 * 32 * 1024 * 4  # gate with up and down of 2 layers, f32
        self.write_prompts([{"prompt": "a"}])

        def read(name, tokens, ranks, sets):
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock
            self.run_code(0, "generate", self.dir / "many", "--prompts", self.prompts, "--out",
                          self.dir / f"{name}{tokens}.jsonl", "--tokens", tokens, "--batch", 1,
                          *as_options((*NVME, *sets)), ranks=ranks)
            return 512 * (resource.getrusage(resource.RUSAGE_CHILDREN).ru_inblock - before)

        passes = 32  # whole rounds, in which a rank without a sequence computes beside the other
        for name, ranks, sets, share in (("elements", 1, (), 1),
                                         ("codes", 1, ('frozen.type="int8"', "frozen.block=64"), (1 + 4 / 64) / 4),
                                         ("ranks", 2, ("parallel.experts=2",), 1)):
            with self.subTest(name):
                more = read(name, 18 + passes, ranks, sets) - read(name, 18, ranks, sets)
                self.assertGreater(more, passes * matrices * share / 32)
                # Beside them attention, 48 KiB, and the table of 256 tokens, 32 KiB, twice; and, where there
                # is room for more tokens, all experts for more tokens of a prompt at once.
                self.assertLess(more, (ranks * passes * (matrices / 32 + 256 * 1024) + matrices) * share)
                self.assertLess(more, passes * matrices * share / 6)

    def test_a_rank_whose_disk_fails_ends_all(self):
        (self.dir / "disks").mkdir()
        process = self.start(2, *self.command("o.jsonl", "--samples", 4000, *as_options(NVME),
                                              "--set", "parallel.tensor=2"))
        partial = self.dir / "o.jsonl.partial"
        self.wait_for(lambda: partial.exists() and partial.stat().st_size > 3000, process)
        files = list((self.dir / "disks").rglob("state.*"))
        self.assertEqual(len(files), 2)
        os.truncate(files[0], 0)
        self.assertEqual(process.wait(timeout=60), IO)
        self.assertFalse((self.dir / "o.jsonl").exists())

    def test_codes_in_the_place_of_matrices(self):
        """Wherever they are, and as matrices of a directory that has these codes."""
        (self.dir / "disks").mkdir()
        codes = ('frozen.type="int8"', "frozen.block=24")
        for type in ("f32", "bf16"):
            one, two = (self.generate("run", f"{type}{ranks}", ranks, codes, "--temperature", 0, "--type", type)
                        for ranks in (1, 2))
            self.assertEqual(one, two)
        one = self.generate("run", "one", 1, codes, "--temperature", 0)
        self.assertEqual(one, self.generate("run", "two", 2, (*codes, "zero.stage=3", *NVME),
                                            "--temperature", 0))
        self.run_code(0, "export", self.dir / "run", "--to", self.dir / "model")
        self.run_code(0, "quantize", self.dir / "model", "--to", self.dir / "coded", "--codes", "int8",
                      "--block", 24)
        self.assertEqual(one, self.generate("coded", "three", 2, (), "--temperature", 0, "--tokenizer",
                                            "bytes"))

    def test_what_is_refused(self):
        for text, *sets in (
                ("generation has no use for it", "optimizer.lr=1"),
                ("generation has no use for it", "zero.stages=3"),
                ("a rank has whole parameters (0) or shards (3)", "zero.stage=2"),
                ("parallel.tensor", "parallel.tensor=3"),
                ("generation measures no links", "zero.stage=3", 'zero.secondary="auto"'),
                ("zero.secondary", "zero.stage=3", 'zero.secondary="node"'),
                ("zero.secondary", "zero.secondary=1"),
                ("offload.nvme", 'offload.parameters="nvme"'),
                ("zero.stage", "zero.stage=7")):
            with self.subTest(sets):
                self.assertIn(text, self.run_code(DECK, *self.command("o.jsonl", *as_options(sets)),
                                                  ranks=2))
        self.assertFalse((self.dir / "o.jsonl").exists())
        self.assertIn("was begun with set = ", self.begun_with_others())

    def begun_with_others(self):
        """What a file says that was begun on another layout."""
        process = self.start(1, *self.command("o.jsonl", "--samples", 3000))
        self.wait_for((self.dir / "o.jsonl.partial").exists, process)  # made after what it was begun with
        kill_tree(process.pid, signal.SIGKILL)
        process.wait()
        return self.run_code(DECK, *self.command("o.jsonl", "--samples", 3000, "--set", "zero.stage=3"),
                             ranks=2)


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
