"""What a new user meets: commands and their help, what messages name, paths, token files of other
programs, models from elsewhere, an installed program, completion in a shell."""

import array
import json
import os
import pathlib
import re
import struct
import subprocess
import textwrap
import unittest

from tessera import BINARY, SOURCE, RunTest, metrics, tiny_deck

VERBS = ("train", "evaluate", "check", "plan", "simulate", "tokenize", "generate", "classify",
         "inspect", "import", "export", "quantize", "merge", "bench", "report", "doctor", "explain", "help",
         "completion", "man")


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

    def test_short_jobs_on_a_busy_machine(self):
        """Open MPI 4 unloads code that its own threads have yet to call, where they had no core so far."""
        if "TESSERA_LATE_THREADS" not in os.environ:
            self.skipTest("sanitizers want to be loaded first")
        text = self.dir / "text.txt"
        text.write_text("the quick brown fox")
        for ranks in (0, 1, 2):
            job = self.run_job(ranks, "tokenize", text, "--out", self.dir / f"of_{ranks}",
                               env={"LD_PRELOAD": os.environ["TESSERA_LATE_THREADS"]})
            self.assertEqual(job.code, 0, f"{ranks} ranks: {job.output}")

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
                ("--tokens", "0", "an integer, 1 to 1000000000"),
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

    def test_inspect_says_what_else_a_file_is(self):
        deck = self.deck("deck", tiny_deck(self.corpus))
        self.assertIn(f"{deck} is a deck: tessera check", self.refused(2, "inspect", deck))
        other = self.dir / "other"
        other.write_text("text\n")
        self.assertIn(f"{other} is no checkpoint", self.refused(3, "inspect", other))
        self.assertIn(f"not here ({self.dir}/nowhere)", self.refused(3, "inspect", "nowhere"))

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
        self.assertIn(f"{len(tokens)} tokens of u16, 1 document",
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

    def test_models_from_elsewhere_are_named(self):
        """Runs from init_from or an import say where their weights come from, also later on."""
        run = self.byte_model()
        exported, imported = self.dir / "hf", self.dir / "imported"
        self.run_ok("export", run, "--to", exported)
        self.assertNotIn("weights ", self.run_ok("inspect", run))
        text = self.run_ok("import", f"{exported}/", "--to", imported)
        deck = imported / "deck.toml"
        self.assertIn(f"tessera train {deck}", text)
        # The deck that it has made is complete but for the data.
        text = self.refused(2, "check", deck, "--ranks", 1)
        self.assertIn("data.train is missing", text)
        self.assertEqual(text.count("\n"), 1, text)
        data = ("--set", f'data.train=["{self.dir / "text"}"]')
        self.run_ok("train", deck, *data, "--set", "run.steps=1", ranks=1)
        kinds = [e["event"] for e in metrics.read_events(imported)]
        self.assertIn("resume", kinds)
        self.assertIn(f"began as those of {exported}", (imported / "logbook.md").read_text())
        self.assertIn(f"weights    from {exported}\n", self.run_ok("inspect", imported))
        (self.dir / "taken").mkdir()
        (self.dir / "taken" / "deck.toml").write_text("mine")
        self.assertIn("is there already",
                      self.refused(2, "import", exported, "--to", self.dir / "taken"))

        begun = {"run": {"steps": 1, "backend": "cpu", "dir": "be gun"},
                 "model": {"init_from": "hf"},
                 "data": {"train": [str(self.dir / "text")]}, "batch": {"global": 8},
                 "optimizer": {"lr": 1e-3}, "checkpoint": {"every": 1}}
        path = self.deck("begun", begun)
        text = self.run_ok("train", path, ranks=1)
        self.assertIn(f"weights   begin as those of {exported}\n", text)
        # What is to be pasted into another terminal is good in any directory.
        self.assertIn(f", or touch '{self.dir}/be gun/stop': after the step", text)
        text = self.run_ok("train", path, "--set", "run.steps=2", ranks=1)
        self.assertIn(f"weights   began as those of {exported}\n", text)
        newest = self.dir / "be gun" / "checkpoints" / "step_00000002"
        manifest = json.loads((newest / "manifest.json").read_text())
        self.assertEqual(manifest["header"]["source"], str(exported))
        logbook = (self.dir / "be gun" / "logbook.md").read_text()
        self.assertIn(f"the weights begin as those of {exported}", logbook)

        text = self.run_ok("inspect", newest)
        self.assertIn(f"weights    from {exported}\n", text)
        self.assertRegex(text, r"(?m)^written    \d{4}-\d\d-\d\d [\d:]{8}Z by tessera \d")
        self.assertRegex(text, r"(?m)^model      gpt2: 3 layers, hidden 24, 3 heads, vocabulary "
                               r"256, context 16; \d+ parameters$")
        self.assertRegex(text, r"(?m)^deck       \w+: 8 sequences of 16 a step, adamw, lr 0.001")
        self.assertIn(f"tokenizer  {self.dir}/be gun/tokenizer.json: 256 tokens", text)
        text = self.run_ok("inspect", exported)
        self.assertIn(f"{exported}: a Hugging Face directory\nmodel      gpt2: 3 layers", text)
        self.assertIn(f"tokenizer  {exported}/tokenizer.json: 256 tokens", text)

    def test_keys_are_explained(self):
        text = self.run_ok("explain", "schedule.min_lr")
        for part in ("[schedule] The learning rate", "schedule.min_lr\n", "allowed   a number, >= 0\n", "default   0.0\n",
                     "resuming  it may change\n"):
            self.assertIn(part, text)
        self.assertIn("allowed   one of none|", self.run_ok("explain", "offload.optimizer"))
        self.assertIn("default   none: it must be given", self.run_ok("explain", "optimizer.lr"))
        self.assertIn("unit      s\n", self.run_ok("explain", "run.time_limit"))
        both = self.run_ok("explain", "every")  # of several sections
        self.assertTrue("checkpoint.every\n" in both and "log.every\n" in both, both)
        text = self.run_ok("explain", "stage")  # what its meaning refers to is above it
        self.assertRegex(text, r"^\[zero\] What data ranks share out: 0 nothing.*\n\nzero\.stage\n")
        self.assertIn("tessera explain fault\n", self.run_ok("explain", "fault.inject"))
        for section in re.findall(r"^(\S+)", self.run_ok("explain"), re.MULTILINE):
            text = self.run_ok("explain", section)
            self.assertTrue(text.startswith(f"[{section}] "), text)
            self.assertIn(f"\n{section}.", text)
        for name, meant in (("zero.stge", "zero.stage"), ("learning_rate", "optimizer.lr"),
                            ("optimiser", "[optimizer]"), ("scheduel.kind", "[schedule]")):
            self.assertIn(f"did you mean {meant}?", self.refused(2, "explain", name))

    def complete(self, *words):
        """What bash offers for the last word."""
        script = f"""source <("$1" completion bash) || exit
            COMP_WORDS=("${{@:2}}") COMP_CWORD=$(($# - 2))
            _tessera
            printf '%s\\n' "${{COMPREPLY[@]}}" """
        job = subprocess.run(["bash", "-c", script, "bash", BINARY, *words], capture_output=True,
                             text=True, check=True)
        self.assertEqual(job.stderr, "")
        return job.stdout.split()

    def test_completion_in_bash(self):
        self.assertEqual(set(self.complete("tessera", "")), {*VERBS, "--help", "--version"})
        self.assertEqual(self.complete("tessera", "ex"), ["export", "explain"])
        self.assertEqual(self.complete("tessera", "generate", "--to"),
                         ["--tokens", "--tokenizer", "--top-k", "--top-p"])
        self.assertEqual(self.complete("tessera", "bench", "ge"), ["gemm"])
        self.assertEqual(self.complete("tessera", "help", "sim"), ["simulate"])
        self.assertEqual(self.complete("tessera", "bench", "gemm", "--backend", "c"),
                         ["cpu", "cuda"])
        self.assertEqual(self.complete("tessera", "bench", "gemm", "--backend", "=", "de"),
                         ["debug"])
        check = ("tessera", "check", "deck.toml")
        self.assertEqual(self.complete(*check, "--sc"), ["--schedule"])
        self.assertEqual(self.complete(*check, "--schedule", "--format", ""), ["text", "svg"])
        train = ("tessera", "train", "deck.toml", "--set")
        self.assertEqual(self.complete(*train, "zero.st"), ["zero.stage="])
        self.assertEqual(self.complete(*train, "=", "zero.st"), ["zero.stage="])
        self.assertEqual(len(self.complete(*train, "")),
                         len(re.findall(r"(?m)^  meaning ", "".join(
                             self.run_ok("explain", s.split()[0])
                             for s in self.run_ok("explain").splitlines()))))
        self.assertEqual(self.complete(*train, "offload.optimizer", "="), ["none", "host", "nvme"])
        self.assertEqual(self.complete(*train, "data.shuffle", "=", "t"), ["true"])
        self.assertEqual(self.complete("tessera", "train", "de"), [], "files are bash's own affair")
        self.assertEqual(self.complete("tessera", "explain", "zero.quantize.b"),
                         ["zero.quantize.block"])

    def test_the_manual_page(self):
        page = self.run_ok("man")
        for line in page.splitlines():
            self.assertRegex(line, r"^(\.(TH|SH|SS|TP|B|PP)( |$)|[^.'])", "a request of roff")
        for verb in VERBS:
            self.assertRegex(page, rf"(?m)^\.SS tessera {verb} ")
            options = re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+)", self.run_ok("help", verb))
            self.assertTrue(options)
            for option in options:
                self.assertIn(option.replace("-", "\\-"), page)

        # Its lists of exit codes and files are those of the README, and --help has the codes too.
        def listed(heading):
            section = page.split(f".SH {heading}\n")[1].split("\n.SH ")[0].replace("\\-", "-")
            return dict(re.findall(r"(?m)^\.TP\n\.B (.*)\n(.*)$", section))

        readme = (SOURCE / "README.md").read_text()
        codes = listed("EXIT STATUS")
        self.assertEqual(codes, {code: text.replace("`", "") for code, text in re.findall(
            r"(?m)^\| (\d+) \| (.*) \|$", readme.split("| exit code | |")[1].split("\n\n")[0])})
        text = self.run_ok("help")
        for code, meaning in codes.items():
            self.assertRegex(text, rf"(?m)^  {code} +{re.escape(meaning)}$")
        files = readme.split("    runs/NAME/\n")[1].split("\n\n")[0]
        files = re.sub(r"\n {26,}", " ", files)  # lines that go on
        self.assertEqual(listed("FILES"), dict(re.findall(r"(?m)^ {8}(\S+) +(.*)$", files)))

    def test_what_is_installed_finds_itself(self):
        """Decks, batch scripts and tools of an installation, from another directory."""
        prefix = self.dir / "prefix"
        subprocess.run(["cmake", "--install", pathlib.Path(BINARY).parent, "--prefix", prefix],
                       check=True, stdout=subprocess.DEVNULL)
        share, program = prefix / "share" / "tessera", prefix / "bin" / "tessera"
        man = (prefix / "share" / "man" / "man1" / "tessera.1").read_text()
        self.assertEqual(man, self.run_ok("man"))
        completion = prefix / "share" / "bash-completion" / "completions" / "tessera"
        self.assertEqual(completion.read_text(), self.run_ok("completion", "bash"))
        self.assertTrue((share / "inputs" / "README.md").is_file())
        for name in ("run_tests", "pack", "__pycache__"):
            self.assertFalse((share / "tools" / name).exists(), name)

        job = self.run_job(0, "check", share / "inputs" / "gpt2_124m.toml", "--ranks", 8,
                           program=program)
        self.assertEqual(job.code, 0, job.output)
        self.train(1, self.deck("run", tiny_deck(self.corpus, run__steps=2)))
        job = self.run_job(0, self.dir / "run", "-o", "loss.png",
                           program=share / "tools" / "plot_metrics")
        self.assertEqual(job.code, 0, job.output)
        self.assertTrue((self.dir / "loss.png").is_file())
        job = self.run_job(0, "-c", "import program; print(program.find())", program="python3",
                           env={"PYTHONPATH": str(share / "tools")})
        self.assertEqual(job.output, f"{program}\n")

        # The batch script, with a srun that says what it is asked to start.
        slurm = self.dir / "slurm_programs"
        slurm.mkdir()
        for name, does in (("srun", 'echo "srun $*"'), ("squeue", "echo N/A"),
                           ("scontrol", "true")):
            (slurm / name).write_text(f"#!/bin/sh\n{does}\n")
            (slurm / name).chmod(0o755)
        environment = {"PATH": f"{slurm}:{prefix}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "1",
                       "SLURM_NTASKS": "8", "SLURM_JOB_NODELIST": "here", "TESSERA": ""}
        job = self.run_job(0, share / "slurm" / "gpt2_124m.sbatch", program="bash",
                           env=environment)
        self.assertEqual(job.code, 0, job.output)
        self.assertIn(f"{program} train {share}/inputs/gpt2_124m.toml", job.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
