"""What a new user meets: commands and their help, what messages name, paths, token files of other
programs."""

import array
import pathlib
import re
import struct
import subprocess
import textwrap
import unittest

from tessera import SOURCE, RunTest, tiny_deck

VERBS = ("train", "evaluate", "check", "plan", "simulate", "tokenize", "generate", "inspect",
         "import", "export", "bench", "help")


class Usage(RunTest):
    def run_ok(self, *arguments, ranks=0):
        job = self.run_job(ranks, *arguments)
        self.assertEqual(job.code, 0, job.output)
        return job.output

    def refused(self, code, *arguments):
        """What a command that leaves with this exit code says."""
        job = self.run_job(0, *arguments)
        self.assertEqual(job.code, code, job.output)
        return job.output

    def byte_model(self, **changes):
        """A run of one step on bytes, with its checkpoint; returns its directory."""
        text = self.dir / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 20)
        self.run_ok("tokenize", text, "--out", self.dir / "text")
        deck = tiny_deck(self.dir / "text", model__vocab=256, run__steps=1, checkpoint__every=1,
                         **changes)
        self.train(1, self.deck("model", deck))
        return self.dir / "model"

    def test_commands_are_suggested_and_explained(self):
        self.assertIn("did you mean train?", self.refused(2, "trian", "deck.toml"))
        self.assertIn("did you mean tokenize?", self.refused(2, "tokenise"))
        nothing_near = self.refused(2, "frobnicate")
        listed = self.run_ok("help")
        for verb in VERBS:
            self.assertIn(verb, nothing_near)
            self.assertRegex(listed, rf"(?m)^  {verb} ")
            text = self.run_ok("help", verb)
            self.assertEqual(text, self.run_ok(verb, "--help"))
            self.assertRegex(text, rf"(?m)^Usage: tessera {verb} ")
        self.assertEqual(listed, self.run_ok("--help"))
        self.assertIn("did you mean check?", self.refused(2, "help", "chek"))

    def test_bounds_of_options_are_words(self):
        for option, value, words in (
                ("--tokens", "0", "an integer, at least 1"),
                ("--top-k", "-1", "an integer, at least 0"),
                ("--temperature", "-0.5", "a number, at least 0"),
                ("--top-p", "1.5", "a number, 0 to 1")):
            text = self.refused(2, "generate", "model", "--prompt", "a", option, value)
            self.assertIn(f"{option}: {value} must be {words}\n", text)
        for verb in VERBS:  # no limit of a type, written out
            self.assertNotRegex(self.run_ok("help", verb), r"\d{17}")

    def test_an_option_without_a_value(self):
        deck = self.deck("deck", tiny_deck(self.corpus))
        text = self.refused(2, "check", deck, "--ranks", 1, "--set", "run.name=")
        self.assertIn("--set #1: run.name= gives no value: it must be a string", text)
        text = self.refused(2, "check", deck, "--ranks", 1, "--set", 'run.name=""')
        self.assertIn('--set #1: run.name = "" must be a string: it is empty', text)

    def test_generate_says_where_it_ends(self):
        model = self.byte_model()
        sample = ("generate", model, "--prompt", "the ", "--tokenizer", "bytes")
        text = self.run_ok(*sample, "--tokens", 50)
        self.assertIn("stopped after 13 of --tokens 50: with the prompt they fill the model's "
                      "context of 16 tokens", text)
        self.assertNotIn("stopped", self.run_ok(*sample, "--tokens", 13))
        text = self.refused(2, "generate", model, "--prompt", "a" * 17)
        self.assertIn("17 tokens, more than the model's context of 16", text)
        # Once, whoever started it how often.
        job = self.run_job(2, *sample, each=True)
        self.assertEqual(job.codes, [2, 2], job.output)
        self.assertEqual(job.output.count("2 separate programs were started"), 1, job.output)
        for verb in ("export", "import"):
            job = self.run_job(2, verb, model, "--to", self.dir / "to", each=True)
            self.assertEqual(job.codes, [2, 2], job.output)

    def test_generate_with_another_models_tokenizer(self):
        """A model that does not say which it was trained with."""
        deck = tiny_deck(self.corpus, model__vocab=20_000, run__steps=1, checkpoint__every=1)
        self.train(1, self.deck("model", deck))
        sample = ("generate", self.dir / "model", "--prompt", "the ", "--tokenizer", "bytes")
        self.assertRegex(self.refused(3, *sample),
                         r"chose token \d+ of its 20000, which --tokenizer bytes does not have "
                         r"\(256 tokens\)")
        self.run_ok(*sample, "--accept-tokenizer")

    def test_tokens_of_other_programs(self):
        """llm.c's files as inputs/README.md describes them, and nanoGPT's by its recipe."""
        tokens = array.array("H", range(90)) * 40
        bare = self.dir / "train.bin"
        bare.write_bytes(tokens.tobytes())
        text = self.refused(3, "inspect", bare)
        self.assertIn("as nanoGPT's prepare.py writes them, give it an index", text)
        self.assertIn(f'write "{self.dir}/train"', text)
        readme = (SOURCE / "inputs" / "README.md").read_text()
        [recipe] = re.findall(r"(?ms)^    python3 - train <<'END'\n.*?^    END$", readme)
        subprocess.run(["bash", "-c", textwrap.dedent(recipe)], cwd=self.dir, check=True)
        self.assertIn(f"{len(tokens)} tokens of u16, 1 documents",
                      self.run_ok("inspect", self.dir / "train"))
        shard = self.dir / "shard.bin"
        shard.write_bytes(struct.pack("<3i1012x", 20240520, 1, len(tokens)) + tokens.tobytes())
        numbers = [self.train(1, self.deck(name, tiny_deck(entry, run__steps=4)))
                   for name, entry in (("nanogpt", self.dir / "train"), ("llmc", shard))]
        self.assertEqual(*numbers)

    def test_paths_say_where_they_lead(self):
        """include is relative to its file, all else to the current directory."""
        decks = self.dir / "decks"
        decks.mkdir()
        (self.dir / "base.toml").write_text("[zero]\nstage = 1\n")
        deck = decks / "deck.toml"
        deck.write_text('include = ["base.toml"]\n')
        text = self.refused(2, "check", "decks/deck.toml", "--ranks", 1)
        self.assertIn(f"deck.toml:1:11: cannot read decks/base.toml: No such file or directory "
                      f"({decks}/base.toml); include is relative to the including file, and there "
                      "is base.toml in the current directory", text)
        deck.write_bytes(self.deck("plain", tiny_deck("moved")).read_bytes())
        for suffix in (".bin", ".idx"):
            pathlib.Path(f"{self.corpus}{suffix}").rename(decks / f"moved{suffix}")
        text = self.refused(3, "check", "decks/deck.toml", "--ranks", 1)
        self.assertRegex(text, r"deck\.toml:\d+:\d+: data\.train \(paths in decks are relative "
                               r"to the current directory, and there is decks/moved: write that\)"
                               rf": moved\.idx: cannot open: .* \({self.dir}/moved\.idx\)")
        text = self.run_ok("check", "decks/deck.toml", "--ranks", 1, "--set",
                           'data.train=["elsewhere/moved"]')
        self.assertIn(f"no directory elsewhere ({self.dir}/elsewhere): not checked (paths in decks "
                      "are relative to the current directory)", text)
        found = ("--set", 'data.train=["decks/moved"]')
        self.run_ok("check", "decks/deck.toml", "--ranks", 1, *found)
        for key, code in (("model.init_from", 3), ("run.resume", 3)):
            text = self.refused(code, "train", "decks/deck.toml", *found, "--set",
                                f'{key}="gone"')
            self.assertRegex(text, rf"{key} \(paths in decks are relative to the current "
                                   rf"directory\): .*\({self.dir}/gone")
        self.assertIn(f"({self.dir}/no.toml)", self.refused(2, "check", "no.toml", "--ranks", 1))
        self.assertIn(f"({self.dir}/gone)", self.refused(3, "generate", "gone", "--prompt", "a"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
