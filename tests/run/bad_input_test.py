"""Wrong decks, damaged or hostile files and full disks: every rank leaves by itself with the right
exit code and a message that names the place and the remedy; nothing hangs or is overwritten."""

import array
import json
import os
import pathlib
import re
import resource
import shutil
import struct
import subprocess
import unittest

from tessera import (BINARY, MPIEXEC, SOURCE, RunTest, kill_tree, ranks_of, tiny_deck, to_toml,
                     write_megatron)

DECK, DATA, MEMORY, NON_FINITE, IO = 2, 3, 4, 6, 7


class BadInput(RunTest):
    def assert_refused(self, code, texts, job):
        self.assertEqual(set(job.codes), {code}, job.output)
        for text in texts:
            self.assertIn(text, job.output)

    def refuse(self, code, *texts, ranks=2, name="bad", **changes):
        """A tiny deck with these changes is refused on all ranks, in a message with these texts."""
        path = self.deck(name, tiny_deck(self.corpus, **changes))
        self.assert_refused(code, texts, self.run_job(ranks, "train", path, each=True))

    def test_decks(self):
        cases = [
            ("optimizer__learning_rate", 1e-3, "lr"), ("optimizer__lr", "fast", "optimizer.lr"),
            ("optimizer__lr", -1.0, "optimizer.lr"), ("optimizer__betas", [0.9], "optimizer.betas"),
            ("optimizer__trust", [0.1, 1.0], 'optimizer.trust has no effect: optimizer.name = "'),
            ("optimizer__groups", [{"match": "*.bais"}],
             'optimizer.groups: "*.bais" matches no parameter (names are like '),
            ("zero__stage", 4, "zero.stage"), ("zero__stge", 3, "stage"),
            ("zero_stage__x", 1, "zero"), ("batch__global", 7, "batch.global"),
            ("batch__micro", 0, "batch.micro"), ("batch__sequence", 100000, "sequence"),
            ("model__heads", 5, "heads"), ("model__layers", 10**9, "layers"),
            ("model__hidden", 2**40, "hidden"), ("model__preset", "gpt5", "preset"),
            ("precision__compute", "fp8", "bf16"), ("offload__optimizer", "ssd", "nvme"),
            ("schedule__kind", "cosin", "cosine"), ("run__steps", None, "steps"),
            ("schedule__step_epochs", -1.0, "> 0"), ("schedule__gamma", -0.6, "> 0 and <= 1"),
            ("batch__lr_scaling", "cubic", "none|linear|sqrt"),
            ("batch__lr_scaling", "linear", "no effect without batch.ramp"),
            ("parallel__tensor", 50, "tensor"), ("parallel__pipeline", 50, "pipeline"),
        ]
        for key, value, text in cases:
            with self.subTest(key=key, value=value):
                self.refuse(DECK, "bad.toml", text, **{key: value})
                self.assertFalse((self.dir / "bad").exists(), "it leaves nothing behind")

    def test_every_problem_is_listed_with_its_place(self):
        deck = tiny_deck(self.corpus, zero__stge=1, optimizer__rate=1, run__seed=-1)
        path = self.deck("bad", deck)
        line = 1 + path.read_text().splitlines().index("stge = 1")
        job = self.run_job(2, "train", path, each=True)
        self.assert_refused(DECK, [f"bad.toml:{line}:", "rate", "seed"], job)
        self.assertEqual(job.output.count(f"bad.toml:{line}:"), 1, "one rank speaks, not all")

    def test_no_gpu(self):
        if any(pathlib.Path("/dev").glob("nvidia[0-9]*")):
            self.skipTest("this machine has NVIDIA GPUs")
        # Also where it is built without CUDA; batch scripts would start it again after 5.
        self.refuse(DECK, "run.backend = \"cpu\"", run__backend="cuda")
        self.assertEqual(self.run_job(2, "bench", "gemm", "--backend", "cuda", each=True).codes,
                         [DECK, DECK])

    def test_set_and_usage(self):
        path = self.deck("good", tiny_deck(self.corpus))
        for option in ("zero.stage=9", "nonsense", "a.b=1", "run.steps=[", "optimizer.lr=1e999"):
            with self.subTest(option):
                job = self.run_job(2, "train", path, "--set", option, each=True)
                self.assert_refused(DECK, ["--set"], job)
        for arguments in (["train"], ["trian", path], ["train", path, "--nonsense"],
                          ["train", self.dir / "missing.toml"]):
            with self.subTest(arguments):
                self.assertEqual(self.run_job(0, *arguments).code, DECK)
        self.assertEqual(self.run_job(0, "train", self.dir).code, DATA, "it holds no checkpoint")
        for ranks in ("0", "-4", "1e3", "99999999999999999999"):
            with self.subTest(ranks=ranks):
                job = self.run_job(0, "check", path, "--ranks", ranks)
                self.assertEqual(job.code, DECK, job.output)
                self.assertIn("--ranks", job.output)
                self.assertLess(len(job.output), 200, "limits that people can read")

    def test_singletons(self):
        """A launcher that MPI does not understand makes each process a run of its own."""
        path = self.deck("good", tiny_deck(self.corpus))
        step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
        verbs = {"train": [path], "evaluate": [path], "bench": ["gemm"],
                 "tokenize": [path, "--out", self.dir / "text"],
                 "generate": [self.dir, "--prompt", "a"], "classify": [self.dir, self.dir],
                 "import": [self.dir, "--to", self.dir / "to"],
                 "merge": [self.dir, self.dir, "--to", self.dir / "to"],
                 "export": [self.dir, "--to", self.dir / "to"],
                 "quantize": [self.dir, "--to", self.dir / "to"]}
        for verb, arguments in verbs.items():
            for launch in (step, {"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, {"PMI_SIZE": "4"}):
                with self.subTest(verb=verb, **launch):
                    # The wrapper is the task of srun, and the program its child.
                    job = self.run_job(0, "-c", '"$@"; exit $?', "sh", BINARY, verb, *arguments,
                                       program="sh", env=launch)
                    self.assertEqual(job.code, DECK, job.output)
                    self.assertIn("4 separate programs were started", job.output)
                    self.assertIn("srun --", job.output)
        self.assertFalse((self.dir / "good").exists(), "a run was begun")
        self.assertEqual(self.run_job(0, "check", path, "--ranks", "1", env=step).code, 0)

    def test_the_launcher_of_another_mpi(self):
        """mpiexec of MPICH starts programs of Open MPI that never hear of each other, and the other
        way round."""
        path = self.deck("other", tiny_deck(self.corpus))
        version = self.run_job(0, "--version", program=MPIEXEC[0]).output
        other = shutil.which("mpiexec.mpich" if re.search("Open MPI|OpenRTE", version)
                             else "mpirun.openmpi")
        if not other:
            self.skipTest("only one MPI is installed")
        job = self.run_job(0, "-n", "2", BINARY, "train", path, program=other)
        self.assertIn("2 separate programs were started by", job.output)
        self.assertFalse((self.dir / "other").exists(), "a run was begun")

    def test_one_process_of_a_large_job_is_no_singleton(self):
        batch = {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "4", "SLURM_NPROCS": "4",
                 "SLURM_TASK_PID": "1"}
        shells = {"sbatch": batch, "salloc": batch | {"SLURM_STEP_ID": "4294967290"},
                  "one_task": batch | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"}}
        for name, variables in shells.items():
            with self.subTest(name):
                path = self.deck(name, tiny_deck(self.corpus, run__steps=1))
                job = self.run_job(0, "train", path, env=variables)
                self.assertEqual(job.code, 0, job.output)
        # mpirun whose daemons are a step of one task on each of four nodes.
        path = self.deck("mpirun", tiny_deck(self.corpus, run__steps=1))
        job = self.run_job(1, "train", path,
                           env={"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"})
        self.assertEqual(job.code, 0, job.output)

    def test_deck_files(self):
        loop = self.dir / "loop.toml"
        loop.write_text('include = ["loop.toml"]\n')
        cases = {"syntax": b"[run\nsteps = 1\n", "binary": bytes(range(256)), "empty": b"",
                 "absent": b'include = ["nowhere.toml"]\n', "deep": b"a = " + b"[" * 100000,
                 "loop": loop.read_bytes()}
        for name, content in cases.items():
            with self.subTest(name):
                path = self.dir / f"{name}.toml"
                path.write_bytes(content)
                job = self.run_job(2, "train", path, each=True)
                self.assert_refused(DECK, [f"{name}.toml"], job)

    def something_else(self, path):
        """Makes the path something that is no regular file, one after the other; yields what."""
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        yield "it is a FIFO, not a regular file"
        path.unlink()
        path.symlink_to("/dev/zero")
        yield "it is a character device, not a regular file"
        path.unlink()

    def assert_refused_alone(self, code, path, *arguments, ranks=0):
        for said in self.something_else(path):
            with self.subTest(" ".join(map(str, arguments)), said=said):
                job = self.run_job(ranks, *arguments, each=ranks > 0)
                self.assertEqual(set(job.codes) if ranks else {job.code}, {code}, job.output)
                self.assertIn(said, job.output)
                self.assertIn(path.name, job.output)

    def test_decks_and_machines_that_are_no_regular_files(self):
        good = self.deck("good", tiny_deck(self.corpus))
        odd, including = self.dir / "odd", self.dir / "including.toml"
        including.write_text('include = ["odd"]\n' + good.read_text())
        machine = SOURCE / "slurm" / "machines" / "epyc-2core.toml"
        for deck in (odd, including):
            self.assert_refused_alone(DECK, odd, "train", deck, ranks=2)
            for line in (["evaluate", deck], ["check", deck, "--ranks", 2],
                         ["plan", deck, "--ranks", 2], ["bench", "step", "--deck", deck],
                         ["simulate", deck, "--ranks", 2, "--machine", machine]):
                self.assert_refused_alone(DECK, odd, *line)
        for line in (["simulate", good, "--ranks", 2],
                     ["plan", good, "--ranks", 2, "--format", "svg"]):
            self.assert_refused_alone(DECK, odd, *line, "--machine", odd)

    def test_corpora_that_are_no_regular_files(self):
        for suffix in ("idx", "bin"):
            prefix = self.dir / f"corpus_{suffix}"
            write_megatron(prefix, array.array("H", [1] * 3000))
            deck = self.deck(f"bad_{suffix}", tiny_deck(prefix))
            file = pathlib.Path(f"{prefix}.{suffix}")
            self.assert_refused_alone(DATA, file, "train", deck, ranks=2)
            self.assert_refused_alone(DATA, file, "inspect", prefix)
        shard = self.dir / "shard.bin"
        self.assert_refused_alone(DATA, shard, "inspect", shard)
        for odd in (self.dir / "odd.txt", self.dir / "odd.jsonl"):
            self.assert_refused_alone(DATA, odd, "tokenize", odd, "--out", self.dir / "out", ranks=2)
        text = self.dir / "text.txt"
        text.write_text("text")
        odd = self.dir / "tokenizer"
        self.assert_refused_alone(DATA, odd, "tokenize", text, "--out", self.dir / "out",
                                  "--tokenizer", odd)

    def test_models_that_are_no_regular_files(self):
        model = self.dir / "model"
        for name in ("config.json", "model.safetensors", "tokenizer.json"):
            shutil.rmtree(model, ignore_errors=True)
            shutil.copytree(SOURCE / "tests" / "data" / "hf" / "gpt2", model)
            lines = [["generate", model, "--prompt", "a"],
                     ["import", model, "--to", self.dir / "imported"]]
            if name != "tokenizer.json":
                deck = {**tiny_deck(self.corpus), "model": {"init_from": str(model)}}
                lines.append(["train", self.deck("from", deck)])
            for line in lines:
                self.assert_refused_alone(DATA, model / name, *line)

    def test_checkpoints_that_are_no_regular_files(self):
        deck = self.deck("run", tiny_deck(self.corpus, model__vocab=256, zero__stage=3,
                                          data__validation=[str(self.corpus)]))
        self.train(2, deck)
        run = self.dir / "run"
        step = run / "checkpoints" / "step_00000012"
        readers = [["inspect", step, "--verify"], ["generate", step, "--prompt", "a"],
                   ["export", step, "--to", self.dir / "exported"], ["inspect", step]]
        for name, lines in (("model.h5", readers[:1]), ("rank_00001.h5", readers[:3]),
                            ("manifest.json", readers)):
            file, content = step / name, (step / name).read_bytes()
            for line in lines:
                self.assert_refused_alone(DATA, file, *line)
            self.assert_refused_alone(DATA, file, "train", deck, "--set", f"run.resume={step}",
                                      ranks=2)
            file.write_bytes(content)
        for name in ("lock", "log.txt", "metrics.jsonl", "logbook.md"):
            content = (run / name).read_bytes()
            self.assert_refused_alone(IO, run / name, "train", deck)
            (run / name).write_bytes(content)
        self.assertEqual(self.run_job(2, "train", deck).code, 0)

    def test_what_lies_beside_tokens_that_is_no_regular_file(self):
        prefix = self.pairs_of_bytes([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4)
        lines = self.dir / "pairs.jsonl"
        scores = self.deck("scores", tiny_deck(prefix, model__vocab=256, task__kind="reward",
                                               batch__micro=2, batch__global=4))
        for name in ("pairs.json", "targets.bin", "targets.idx"):
            file = pathlib.Path(f"{prefix}.{name}")
            content = file.read_bytes()
            self.assert_refused_alone(DATA, file, "train", scores, ranks=2)
            file.write_bytes(content)
        self.train(1, scores)
        odd = self.dir / "odd.jsonl"
        self.assert_refused_alone(DATA, odd, "classify", self.dir / "scores", odd)
        for name, line in (("labels.json", ["tokenize", lines, "--label", "prompt", "--labels"]),
                           ("template.json", ["tokenize", lines, "--pairs", "--chat"])):
            file = self.dir / name
            self.assert_refused_alone(DATA, file, *line, file, "--out", self.dir / "out")

    def test_other_inputs_that_are_no_regular_files(self):
        hf, adapters = SOURCE / "tests" / "data" / "hf", self.dir / "adapters"
        shutil.copytree(hf / "peft_llama3", adapters)
        config = json.loads((adapters / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = str(hf / "llama3")
        (adapters / "adapter_config.json").write_text(json.dumps(config))
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            content = (adapters / name).read_bytes()
            self.assert_refused_alone(DATA, adapters / name, "import", adapters, "--to", self.dir / "run")
            (adapters / name).write_bytes(content)
        self.train(1, self.deck("run", tiny_deck(self.corpus, model__vocab=256)))
        odd = self.dir / "odd.jsonl"
        self.assert_refused_alone(DATA, odd, "evaluate", self.dir / "run", "--choices", odd,
                                  "--tokenizer", "bytes", ranks=2)
        metrics = self.dir / "run" / "metrics.jsonl"
        self.assert_refused_alone(DATA, metrics, "report", self.dir / "run", "--out", self.dir / "page.html")

    def test_paths_that_are_no_text(self):
        """A deck, which is UTF-8, cannot name them."""
        model = os.fsencode(self.dir) + b"/m\xff"
        shutil.copytree(SOURCE / "tests" / "data" / "hf" / "gpt2", os.fsdecode(model))
        job = self.run_job(0, "generate", os.fsdecode(model), "--prompt", "a")
        self.assertEqual(job.code, DATA, job.output)
        self.assertIn("cannot name this path", " ".join(job.output.split()))

    def test_names_cannot_forge_lines_or_steer_a_terminal(self):
        """Whatever files are called and hold, each message has its lines, without commands."""
        evil = "a\ntessera: done\x1b]0;title\x07\x9b"
        shown = r"a\ntessera: done\x1b]0;title\x07\xc2\x9b"
        directory = self.dir / evil
        directory.mkdir()
        deck, empty = directory / "deck.toml", directory / "empty.toml"
        for path, corpus in ((deck, self.corpus), (empty, directory / "tokens")):
            path.write_text(to_toml(tiny_deck(corpus, run__dir=str(self.dir / "out"))))
        model = directory / "model"
        shutil.copytree(SOURCE / "tests" / "data" / "hf" / "gpt2", model)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "model_type": evil}))
        text = directory / "text.txt"
        text.write_text("text")
        for code, line in ((DATA, ["train", empty]),
                           (DECK, ["check", directory / "none.toml", "--ranks", 1]),
                           (DATA, ["generate", model, "--prompt", "a"]),
                           (DATA, ["inspect", directory / "none"]),
                           (DECK, ["check", deck, "--ranks", 1, f"--{evil}"]),
                           (0, ["check", deck, "--ranks", 1]),
                           (0, ["tokenize", text, "--out", directory / "out"]),
                           (0, ["inspect", directory / "out"])):
            with self.subTest(line):
                job = self.run_job(0, *line)
                self.assertEqual(job.code, code, job.output)
                self.assertIn(shown, job.output)
                self.assertNotRegex(job.output, r"[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f]")
                self.assertNotIn("\ntessera: done", job.output)

    def test_a_run_whose_directory_vanishes(self):
        def remove(directory):
            while directory.exists():  # the run may write a file after the others were removed
                shutil.rmtree(directory, ignore_errors=True)

        for name, vanish in (("removed", remove),
                             ("renamed", lambda path: path.rename(self.dir / "elsewhere"))):
            with self.subTest(name), open(self.dir / f"{name}.out", "w") as output:
                path = self.deck(name, tiny_deck(self.corpus, run__steps=1_000_000))
                process = self.start(1, "train", path, stdout=output)
                self.assertTrue(self.wait_for(lambda: self.newest_step(name) >= 3, process))
                vanish(self.dir / name)
                self.assertEqual(process.wait(timeout=60), IO)
                self.assertRegex((self.dir / f"{name}.out").read_text(),
                                 rf"step \d+: the run directory {self.dir / name} is gone")

    def test_numbers_of_threads_that_are_none(self):
        path = self.deck("threads", tiny_deck(self.corpus))
        job = self.run_job(2, "train", path, each=True, env={"OMP_NUM_THREADS": "all"})
        self.assert_refused(DECK, ['OMP_NUM_THREADS = "all"', "run.threads"], job)
        job = self.run_job(1, "train", path, "--set", "run.threads=1",
                           env={"OMP_NUM_THREADS": "all"})
        self.assertEqual(job.code, 0, job.output)

    def test_token_files(self):
        index = pathlib.Path(f"{self.corpus}.idx")
        header = bytearray(index.read_bytes())
        tokens = array.array("H", [1] * 3000)

        def damaged(name, idx=None, tokens=tokens):
            prefix = self.dir / name
            write_megatron(prefix, tokens)
            if idx is not None:
                pathlib.Path(f"{prefix}.idx").write_bytes(idx)
            return prefix

        def with_count(at, value):
            changed = bytearray(header)
            struct.pack_into("<Q", changed, at, value)
            return bytes(changed)

        beyond = array.array("H", tokens)
        beyond[77] = 97
        cases = {
            "magic": damaged("magic", b"X" + header[1:]), "cut": damaged("cut", header[:20]),
            "empty": damaged("empty", b""), "many": damaged("many", with_count(18, 2**62)),
            "documents": damaged("documents", with_count(26, 2**61)),
            "short": damaged("short", tokens=tokens[:10]),
            "beyond": damaged("beyond", tokens=beyond), "missing": self.dir / "missing",
        }
        pathlib.Path(f"{cases['short']}.idx").write_bytes(header)
        for name, prefix in cases.items():
            with self.subTest(name):
                self.refuse(DATA, str(prefix), name=f"bad_{name}", data__train=[str(prefix)])
        self.refuse(DATA, "97", "77", name="position", data__train=[str(cases["beyond"])])

    def test_too_small_a_corpus(self):
        for count in (0, 1, 16):  # one sequence needs 17
            prefix = self.dir / f"few{count}"
            write_megatron(prefix, array.array("H", [1] * count))
            self.refuse(DATA, "data.train", f"holds {count} token", data__train=[str(prefix)])

    def test_run_directories(self):
        blocked = self.dir / "file"
        blocked.write_text("not a directory")
        for directory in (blocked, blocked / "below", pathlib.Path("/proc/nowhere")):
            with self.subTest(str(directory)):
                self.refuse(IO, str(directory), run__dir=str(directory))
        self.assertEqual(blocked.read_text(), "not a directory")

    def test_a_run_is_not_overwritten(self):
        path = self.deck("first", tiny_deck(self.corpus, run__resume="never"))
        self.train(2, path)
        before = (self.dir / "first" / "metrics.jsonl").read_bytes()
        job = self.run_job(2, "train", path, each=True)
        self.assert_refused(DECK, ["run.resume", "never", str(self.dir / "first")], job)
        self.assertEqual((self.dir / "first" / "metrics.jsonl").read_bytes(), before)

    def test_one_job_a_run_directory(self):
        path = self.deck("busy", tiny_deck(self.corpus, run__steps=1_000_000))
        process = self.start(2, "train", path)
        self.assertTrue(self.wait_for(lambda: self.newest_step("busy") >= 1, process))
        job = self.run_job(2, "train", path, each=True)
        self.assert_refused(DECK, ["in use", "process"], job)
        self.assertIsNone(process.poll(), "the first job goes on")
        kill_tree(process.pid)
        process.wait()

    def test_memory_budget(self):
        self.refuse(MEMORY, "memory.device", memory__device="64 KiB")

    def test_non_finite(self):
        changes = {"optimizer__lr": 1e30, "optimizer__clip_norm": 0.0, "schedule__warmup_steps": 0}
        self.refuse(NON_FINITE, "guard", name="stop", guard__non_finite="stop", **changes)
        self.refuse(NON_FINITE, "guard", name="skip", guard__max_skips=2, **changes)

    def test_a_rank_that_fails_alone_says_where(self):
        """Rank 0 may not write any more: it ends the job, and names itself and the step."""
        path = self.deck("alone", tiny_deck(self.corpus, run__steps=1_000_000))
        output = self.dir / "output"
        with open(output, "w") as f:  # the signal of a file that would grow too large kills
            process = self.start(2, "train", path, stdout=f, program=(
                "sh", "-c", 'trap "" XFSZ; exec "$@"', "sh", BINARY))
        self.assertTrue(self.wait_for(lambda: self.newest_step("alone") >= 3, process))
        for rank in ranks_of(process.pid):
            if re.search(rb"\0(OMPI_COMM_WORLD_RANK|PMI_RANK)=0\0",
                         pathlib.Path(f"/proc/{rank}/environ").read_bytes()):
                resource.prlimit(rank, resource.RLIMIT_FSIZE, (1, 1))
        self.assertNotEqual(process.wait(timeout=60), 0)
        self.assertRegex(output.read_text(), rf"rank 0 on \S+: step \d+: cannot write {self.dir}"
                         r"/alone/\S+: File too large")

    @unittest.skipUnless(os.getuid() == 0, "mounting needs root")
    def test_full_disk(self):
        """The run fails with the disk's error; the checkpoint before stays whole."""
        disk = self.dir / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(disk)]
        if subprocess.run(mount, capture_output=True).returncode != 0:
            self.skipTest("this machine allows no mounts")
        self.addCleanup(subprocess.run, ["umount", "-l", str(disk)])
        run = disk / "run"
        deck = tiny_deck(self.corpus, run__dir=str(run), checkpoint__every=1, checkpoint__keep=100,
                         run__steps=100)
        job = self.run_job(2, "train", self.deck("full", deck), each=True)
        self.assert_refused(IO, [str(run), "No space left"], job)
        whole = sorted((run / "checkpoints").glob("step_*[0-9]"))
        self.assertTrue(whole)
        for path in whole:
            verdict = self.run_job(0, "inspect", path, "--verify")
            self.assertEqual(verdict.code, 0, verdict.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
