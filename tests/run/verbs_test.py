"""A user's way through all commands: text to tokens, training, evaluation, a sample, the checkpoint
in h5py and as a Hugging Face directory; and metrics.jsonl as its readers expect it."""

import itertools
import json
import math
import re
import shutil
import time
import tomllib
import unittest
import xml.etree.ElementTree

import h5py

from tessera import SOURCE, RunTest, kill_tree, metrics, of_rates, some_of, tiny_deck, write_tokens

STEP_KEYS = {"event", "step", "loss", "grad_norm", "lr", "tokens", "samples", "sequence", "step_ms",
             "targets", "corpora", "experts", "preferences", "rollout", "tokens_per_s", "mfu",
             "tflops_per_rank", "comm_exposed_ms", "pipeline_exposed_ms", "io_exposed_ms", "data_exposed_ms",
             "wire_bytes", "io_bytes", "between_ms", "compute_ms", "own_ms", "gemm_share", "skipped",
             "loss_scale", "time"}


def elements(group):
    """Numbers in all datasets below a group, soft links followed."""
    return sum(o.size if isinstance(o, h5py.Dataset) else elements(o) for o in group.values())


def state_of(directory):
    """{path: what any change to it would change}"""
    return {str(p): (p.stat().st_mtime_ns, p.stat().st_ino, p.stat().st_size)
            for p in (directory, *directory.rglob("*"))}


def tensors(path):
    """{name: (shape, bytes)} of a safetensors file."""
    content = path.read_bytes()
    begin = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:begin])
    header.pop("__metadata__", None)
    return {name: (t["shape"], content[begin + t["data_offsets"][0]:begin + t["data_offsets"][1]])
            for name, t in header.items()}


class Verbs(RunTest):
    def text_run(self, **changes):
        """A finished run over the bytes of a short text, with checkpoints and evaluations."""
        text = self.dir / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 80)
        job = self.run_job(2, "tokenize", text, "--out", self.dir / "text")
        self.assertEqual(job.code, 0, job.output)
        deck = tiny_deck(self.dir / "text", model__vocab=256, run__steps=30, checkpoint__every=10,
                         zero__stage=3, data__validation=[str(self.dir / "text")],
                         evaluate__every=10, evaluate__batches=2, **changes)
        path = self.deck("run", deck)
        self.train(2, path)
        return path

    def run_ok(self, *arguments, ranks=0):
        job = self.run_job(ranks, *arguments)
        self.assertEqual(job.code, 0, job.output)
        return job.output

    def test_from_text_to_text(self):
        deck = self.text_run()
        run = self.dir / "run"
        numbers = self.numbers("run")
        self.assertLess(numbers[30][0], numbers[1][0] - 1, "the loss falls")

        text = self.run_ok("generate", run, "--prompt", "the ", "--tokens", 8, "--temperature", 0)
        self.assertTrue(text.startswith("the "))
        again = self.run_ok("generate", run, "--prompt", "the ", "--tokens", 8, "--temperature", 0)
        self.assertEqual(text, again)

        evaluations = metrics.last_steps(metrics.read_events(run), "evaluate")
        self.assertEqual(list(evaluations), [10, 20, 30])
        checkpoint = max((run / "checkpoints").iterdir())
        for source in (deck, run, checkpoint):
            output = self.run_ok("evaluate", source, ranks=2)
            self.assertIn(f"{evaluations[30]['loss']:.6f}", output, "the last figure again")

        self.run_ok("inspect", run, "--verify")
        self.run_ok("inspect", self.dir / "text")

    def test_evaluation_changes_nothing(self):
        """Other validation data, seeds and layouts are free; the model is not."""
        deck = self.text_run(precision__compute="bf16")
        run = self.dir / "run"
        evaluations = metrics.last_steps(metrics.read_events(run), "evaluate")
        figure = f"{evaluations[30]['loss']:.6f}"
        before = state_of(run)
        for stage in (0, 3):
            output = self.run_ok("evaluate", deck, "--set", f"zero.stage={stage}", "--set",
                                 "run.seed=99", "--set", "model.dropout=0.5", "--set",
                                 "data.train=[\"nowhere\"]", ranks=2)
            self.assertIn(figure, output)
            self.assertIn("step_00000030 at step 30", output)
        write_tokens(self.dir / "other", vocab=256)
        other = f'data.validation=["{self.dir / "other"}"]'
        output = self.run_ok("evaluate", deck, "--set", other, ranks=2)
        self.assertNotIn(figure, output)
        for change in ("model.norm_eps=0.5", "model.hidden=48", "model.activation=relu"):
            job = self.run_job(2, "evaluate", deck, "--set", change, each=True)
            self.assertEqual(job.codes, [2, 2], job.output)
            self.assertIn(change.split("=")[0], job.output)
        after = state_of(run)
        self.assertEqual([p for p in before | after if before.get(p) != after.get(p)], [])

        moved = self.dir / "moved"
        shutil.copytree(run / "checkpoints" / "step_00000030", moved)
        shutil.rmtree(run)
        self.assertIn(figure, self.run_ok("evaluate", moved, ranks=1))
        self.assertFalse(run.exists())
        self.assertEqual(self.run_job(1, "evaluate", deck).code, 2, "there is no model any more")

    def test_evaluation_beside_training(self):
        changes = {"run__steps": 1_000_000, "checkpoint__every": 5, "checkpoint__keep": 2}
        deck = self.deck("busy", tiny_deck(self.corpus, zero__stage=3, **changes,
                                           data__validation=[str(self.corpus)]))
        process = self.start(2, "train", deck)
        checkpoints = self.dir / "busy" / "checkpoints"
        self.assertTrue(self.wait_for(
            lambda: any(checkpoints.glob("step_*[0-9]/manifest.json")), process))
        self.assertRegex(self.run_ok("evaluate", deck, ranks=1), r"at step \d*[05] \| loss")
        seen = self.newest_step("busy")
        self.assertTrue(self.wait_for(lambda: self.newest_step("busy") > seen, process))
        kill_tree(process.pid)
        process.wait()
        kinds = [e["event"] for e in metrics.read_events(self.dir / "busy")]
        self.assertEqual(kinds.count("start"), 1)

    def test_whole_tensors_in_h5py(self):
        self.text_run()
        events = metrics.read_events(self.dir / "run")
        parameters = next(e["parameters"] for e in events if e["event"] == "start")
        newest = sorted((self.dir / "run" / "checkpoints").glob("step_*"))[-1]
        with h5py.File(newest / "model.h5") as f:
            states = ("parameters", "master", "adam_m", "adam_v")
            sizes = {state: elements(f[state]) for state in states}
            self.assertEqual(set(sizes.values()), {parameters}, sizes)
            self.assertTrue(all(math.isfinite(x) for x in f["parameters/final_norm.weight"][:]))

    def test_export_import_and_start_again_from_it(self):
        self.text_run()
        exported, imported = self.dir / "hf", self.dir / "imported"
        self.run_ok("export", self.dir / "run", "--to", exported)
        self.run_ok("import", exported, "--to", imported)
        sample = ("--prompt", "the quick", "--tokens", 6, "--temperature", 0,
                  "--tokenizer", "bytes")
        forms = (self.dir / "run", exported, imported)
        texts = {self.run_ok("generate", d, *sample) for d in forms}
        self.assertEqual(len(texts), 1, "one model, three forms")
        self.assertEqual(json.loads((exported / "config.json").read_text())["model_type"], "gpt2")
        deck = {"run": {"steps": 1, "backend": "cpu"}, "model": {"init_from": str(exported)},
                "data": {"train": [str(self.dir / "text")]}, "batch": {"global": 8},
                "optimizer": {"lr": 1e-3}}
        self.assertLess(self.train(1, self.deck("again", deck))[1][0], 4, "it starts trained")
        # An imported model may be trained in other ways, but not be another model.
        changes = {"model__vocab": 256, "model__dropout": 0.1, "model__init_std": 0.5,
                   "run__steps": 2, "run__resume": "must", "run__dir": str(imported)}
        path = self.deck("imported", tiny_deck(self.dir / "text", **changes))
        self.assertLess(self.train(1, path)[1][0], 4, "it starts trained")
        job = self.run_job(2, "train", path, "--set", "model.norm_eps=0.5", each=True)
        self.assertEqual(job.codes, [2, 2], job.output)
        self.assertIn("model.norm_eps", job.output)

    def test_models_of_hugging_face_train_and_come_back(self):
        for name in ("llama_yarn", "llama_dynamic", "gpt_neox_sequential", "qwen2_windows",
                     "qwen3_windows"):
            source = SOURCE / "tests/data/hf" / name
            imported, exported = self.dir / f"{name}_run", self.dir / f"{name}_hf"
            self.run_ok("import", source, "--to", imported)
            self.run_ok("export", imported, "--to", exported)
            self.assertEqual(*(tensors(d / "model.safetensors") for d in (source, exported)))
            write_tokens(self.dir / name, vocab=13)
            one, two = (self.train(ranks, self.deck(f"{name}_{ranks}", {
                "run": {"steps": 2, "backend": "debug"}, "model": {"init_from": str(exported)},
                "data": {"train": [str(self.dir / name)]}, "optimizer": {"lr": 1e-2},
                "batch": {"global": 8}, "parallel": {"tensor": ranks}})) for ranks in (1, 2))
            self.assert_close(two, one, 1e-5, name)
            self.assertNotEqual(one[1], one[2], "it has learned something")

    def test_a_tokenizer_goes_with_its_model(self):
        tokenizer = SOURCE / "tests/data/tokenizers/gpt2.json"
        text = self.dir / "text.txt"
        text.write_text("the quick brown fox jumps over the lazy dog. " * 80)
        for name in ("one", "other"):
            self.run_ok("tokenize", text, "--tokenizer", tokenizer, "--out", self.dir / name)
        vocab = 1 + max(json.loads(tokenizer.read_text())["model"]["vocab"].values())
        deck = tiny_deck(self.dir / "one", model__vocab=vocab, run__steps=4, checkpoint__every=4,
                         data__train=[str(self.dir / "one"), str(self.dir / "other")])
        self.train(2, self.deck("run", deck))
        run, exported, imported = self.dir / "run", self.dir / "hf", self.dir / "imported"
        newest = run / "checkpoints" / "step_00000004"
        self.run_ok("export", newest, "--to", exported)
        self.assertEqual((exported / "tokenizer.json").read_bytes(), tokenizer.read_bytes())
        settings = json.loads((exported / "tokenizer_config.json").read_text())
        self.assertEqual(settings["eos_token"], "<|endoftext|>")
        self.assertEqual(json.loads((exported / "config.json").read_text())["eos_token_id"], 0)
        self.run_ok("import", exported, "--to", imported)
        texts = {self.run_ok("generate", d, "--prompt", "the quick", "--temperature", 0)
                 for d in (run, newest, exported, imported)}
        self.assertEqual(len(texts), 1, "one model, found with its tokenizer in four places")

        # Nor is it claimed for token files that are made anew, or mixed with another's.
        beside = self.dir / "other.tokenizer.json"
        llama = SOURCE / "tests/data/tokenizers/llama3.json"
        self.run_ok("tokenize", text, "--tokenizer", llama, "--out", self.dir / "other")
        job = self.run_job(2, "train", self.deck("mixed", deck), each=True)
        self.assertEqual(job.codes, [3, 3], job.output)
        self.assertIn(str(beside), job.output)
        self.run_ok("tokenize", text, "--out", self.dir / "other")
        self.assertEqual(len(json.loads(beside.read_text())["model"]["vocab"]), 256)

    def test_metrics_are_well_formed(self):
        begin = time.time()
        self.text_run()
        path = self.dir / "run" / "metrics.jsonl"
        events = [json.loads(line) for line in path.read_text().splitlines()]
        kinds = [e["event"] for e in events]
        self.assertEqual((kinds[0], kinds[-1]), ("start", "end"))
        self.assertEqual(kinds.count("checkpoint"), 3)
        steps = [e for e in events if e["event"] == "step"]
        self.assertEqual([e["step"] for e in steps], list(range(1, 31)))
        for e in steps:
            self.assertEqual(set(e), STEP_KEYS)
            self.assertEqual(e["samples"], 8 * e["step"])
            self.assertEqual(e["tokens"], 16 * e["samples"])
            self.assertEqual(e["targets"], 16 * 8)
            self.assertGreater(e["tokens_per_s"], 0)
        times = [begin, *(e["time"] for e in events), time.time() + 1]
        self.assertEqual(times, sorted(times))
        log = (self.dir / "run" / "log.txt").read_text().splitlines()
        stamp = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ ")
        self.assertTrue(all(stamp.match(line) for line in log))
        lines = [line[len("2026-03-01 04:05:06Z "):] for line in log if "Z step " in line]
        for number, line in enumerate(lines, 1):
            self.assertRegex(line, rf"^step {number}/30 \| loss .* \| .* tok/s.* \| [\dms]+(, ETA |$)")
            self.assertLessEqual(len(line), 100, line)
            self.assertNotRegex(line, "n/a|GiB|MFU|GEMM")
        self.assertEqual(len(lines), 30)
        for e in events:
            if e["event"] == "checkpoint" and e["step"] < 30:  # the next step copied its state
                self.assertGreaterEqual(e["stall_ms"], steps[e["step"]]["io_exposed_ms"])
            elif e["event"] == "checkpoint":  # nothing to train meanwhile
                self.assertGreaterEqual(e["stall_ms"], e["ms"])
        self.assertAlmostEqual(steps[0]["lr"], 1e-3, delta=1e-12)  # first of three warm-up steps
        for name in ("resolved.toml", "plan.txt", "log.txt", "lock"):
            self.assertTrue((self.dir / "run" / name).is_file(), name)

    def test_a_start_says_what_its_stages_took(self):
        deck = self.deck("timed", tiny_deck(self.corpus, run__steps=2))
        output = self.run_ok("train", deck, ranks=2)
        stages = ("MPI", "data", "device", "traffic", "groups", "plans", "memory", "tuning",
                  "parameters", "other")
        line = re.search(r"start     ([\d.]+) s: " +
                         ", ".join(rf"{stage} ([\d.]+)" for stage in stages), output)
        self.assertIsNotNone(line, output)
        seconds = [float(x) for x in line.groups()]
        self.assertAlmostEqual(seconds[0], sum(seconds[1:]), delta=0.06, msg="each is rounded")
        self.assertLess(output.index(line[0]), output.index("step 1/2"))
        event, = (e for e in metrics.read_events(self.dir / "timed") if e["event"] == "started")
        self.assertEqual(tuple(event["stages"]), stages)
        self.assertAlmostEqual(event["seconds"], sum(event["stages"].values()), places=9)
        self.assertGreater(event["stages"]["MPI"], 0)
        self.assertGreater(event["stages"]["plans"], 0)

    def test_the_resolved_deck_is_the_same_run(self):
        want = self.train(2, self.deck("first", tiny_deck(self.corpus)))
        resolved = self.dir / "second.toml"
        resolved.write_bytes((self.dir / "first" / "resolved.toml").read_bytes())
        self.assertEqual(self.train(2, resolved, f'run.dir="{self.dir / "second"}"'), want)

    def test_check_predicts_what_a_run_reports(self):
        deck = self.deck("first", tiny_deck(self.corpus, zero__stage=3, optimizer__eps=1e-8))
        other = ("--set", "optimizer.name=lamb")
        remark = "optimizer.eps = 1e-08 stays with --set optimizer.name=lamb"
        self.assertEqual(self.run_ok("train", deck, *other, ranks=2).count(remark), 1)
        start = metrics.read_events(self.dir / "first")[0]
        prediction = self.run_ok("check", deck, "--ranks", 2, *other)
        self.assertIn(remark, prediction)
        self.assertIn(f"parameters {start['parameters']};", prediction)
        self.assertTrue(self.run_ok("plan", deck, "--ranks", 2, "--rank", 1))
        json.loads(self.run_ok("plan", deck, "--ranks", 2, "--rank", 1, "--format", "json"))

    def test_check_draws_the_schedule(self):
        """In the terminal and as SVG, whose points are the rates that a run has."""
        changes = {"run__steps": 40, "batch__ramp": [[11, 16], [21, 32]],
                   "batch__lr_scaling": "linear", "schedule__kind": "wsd",
                   "schedule__decay_steps": 10, "schedule__min_lr": 3e-4}
        deck = self.deck("drawn", tiny_deck(self.corpus, **changes))
        text = self.run_ok("check", deck, "--schedule")
        self.assertEqual(text, self.run_ok("check", deck, "--schedule", "--ranks", 2))
        self.assertTrue(text.isascii())
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        table = [line.split(None, 4) for line in text.splitlines()[-6:]]
        self.assertEqual(table, [
            ["1", "0.00025", "8", "128", "the run begins"],
            ["3", "0.00075", "8", "384", "the warm-up ends"],
            ["11", "0.0015", "16", "1.5k", "the batch changes"],
            ["21", "0.003", "32", "4.4k", "the batch changes"],
            ["30", "0.003", "32", "9.0k", "the decay follows"],
            ["40", "0.0003", "32", "14.1k", "the decay ends; the run ends"]])
        plots = text.split("\n\n")[1:3]
        # The highest row has the highest rate, which steps 21 to 30 have, and where its fall begins.
        highest = [c for c, mark in enumerate(plots[0].splitlines()[1][11:]) if mark != " "]
        self.assertEqual(highest, list(range(round(20 * 88 / 39), round(29 * 88 / 39) + 2)))
        columns = [{c for line in plot.splitlines()[1:-2] for c, mark in enumerate(line[11:])
                    if mark not in " "} for plot in plots]
        for found in columns:
            self.assertEqual(found, set(range(89)), "the line has no gap")
        picture = xml.etree.ElementTree.fromstring(
            self.run_ok("check", deck, "--schedule", "--format", "svg"))
        paths = [path.get("d") for path in picture.iter("{http://www.w3.org/2000/svg}path")]
        self.assertEqual(len(paths), 2)
        points = [tuple(map(float, p.split())) for p in re.split("[ML]", paths[0])[1:]]
        self.assertEqual(len(points), 40)
        # Heights over the axis, which begins at 0, are as the rates.
        bottom, top = 196, min(y for _, y in points)
        rates = [(s / 3 if s < 3 else 1) * (0.25 if s < 11 else 0.5 if s < 21 else 1)
                 - max(0, s - 30) / 10 * 0.9 for s in range(1, 41)]
        for (_, y), rate in zip(points, rates, strict=True):
            self.assertAlmostEqual((bottom - y) / (bottom - top), rate, delta=0.001)

    def test_a_schedule_that_cannot_be_drawn(self):
        missing = tiny_deck(self.dir / "nowhere" / "tokens", schedule__kind="step",
                            schedule__step_epochs=1)
        deck = self.deck("missing", missing)
        for sets, said in (((), "schedule.step_epochs counts passes over the training data"),
                           (("--set", "run.steps=9000000000"), "schedule.step_epochs")):
            job = self.run_job(0, "check", deck, "--schedule", *sets)
            self.assertEqual(job.code, 3, job.output)
            for text in (f"{deck}:", said, "give the length in steps or tokens", "nowhere"):
                self.assertIn(text, job.output)
        sized = ("--set", "schedule.kind=constant")  # which needs no data
        self.run_ok("check", deck, "--schedule", *sized)
        job = self.run_job(0, "check", deck, "--schedule", *sized, "--set", "run.steps=9000000000")
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("a run of 9000000000 steps is too long to draw", job.output)
        job = self.run_job(0, "check", deck, "--schedule", *sized, "--ranks", 3)
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("batch.global", job.output)
        for options, said in (((), "--ranks is required"), (("--format", "svg"), "--schedule"),
                              (("--schedule", "--fit"), "excludes"),
                              (("--schedule", "--nodes", 2), "excludes")):
            job = self.run_job(0, "check", deck, *options)
            self.assertEqual(job.code, 2, job.output)
            self.assertIn(said, job.output)

    def stated_ranks(self, deck):
        """The number of ranks that the deck's first comment names."""
        comment = re.match(r"(?:#.*\n)*", deck.read_text())[0].replace("\n# ", " ")
        stated = re.search(r"\b(?:for|on) (\d+) ranks", comment)
        return int(stated[1]) if stated else 2

    def bench(self, *arguments, ranks=2):
        """{row: share in %}; and that nothing is left of its temporary files."""
        place = self.dir / "bench"
        place.mkdir(exist_ok=True)
        text = self.run_ok("bench", *arguments, "--repeats", 2, "--dir", place, ranks=ranks)
        self.assertEqual(list(place.iterdir()), [])
        return {line[:28].strip(): float(line.split()[-2]) for line in text.splitlines()
                if line.endswith(" %") and "GB/s" in line or "GFLOP/s" in line}

    def test_benchmarks_report_shares_of_limits(self):
        """A deck's ramp, its length in epochs and what it resumes from do not disturb its step."""
        deck = self.deck("deck", tiny_deck(self.corpus, run__steps=None, run__epochs=1,
                                           run__resume="must", batch__ramp=[[1, 2], [2, 4]],
                                           batch__lr_scaling="linear"))
        for rows, arguments in (
                ({"memcpy", "all_gather", "MPI_Allgather", "reduce_scatter", "MPI_Reduce_scatter",
                  "all_to_all", "MPI_Alltoall"}, ["collectives"]),
                ({"memcpy", "all_gather"}, ["collectives", "--backend", "debug"]),
                ({"sequential write", "save", "sequential read", "load"},
                 ["checkpoint", "--deck", deck]),
                ({"product n = 2048", "training step"}, ["step", "--deck", deck]),
                ({"write", "read", "half of each"},
                 ["nvme", "--bytes", 10 << 20, "--block", 1 << 20, "--depth", 4])):
            with self.subTest(arguments):
                shares = self.bench(*arguments)
                self.assertLessEqual(rows, set(shares))
                self.assertTrue(all(share > 0 for share in shares.values()), shares)

    @of_rates
    def test_the_benchmark_of_plans(self):
        """Reads the decks of a checkout; that they are small here changes no row."""
        job = self.run_job(0, "bench", "plan")
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("inputs/gpt2_124m.toml, which is not in the current directory", job.output)
        for name in ("inputs", "slurm"):
            (self.dir / name).symlink_to(SOURCE / name)
        text = self.run_ok("bench", "plan", "--repeats", 1, "--set", "model.layers=2", "--set",
                           "batch.global=256", ranks=2)
        rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
        small, large = ["gpt2_124m.toml", "--ranks", "1"], ["gpt2_1.5b.toml", "--ranks", "64"]
        self.assertEqual([row[:-4] if row[-1] == "plans/s" else row[:-2] for row in rows],
                         [["plan", *small], ["plan", *large], ["check", *large],
                          ["simulate", "--search", *large]])
        for *_, ms, _, rate, _ in rows[:2]:
            self.assertAlmostEqual(float(ms) * float(rate), 1000, delta=20)

    def test_a_benchmark_takes_its_backend_from_one_place(self):
        deck = self.deck("deck", tiny_deck(self.corpus))
        for word in ("--deck", "--set"):
            job = self.run_job(0, "bench", "gemm", word, "run.steps=1")
            self.assertEqual(job.code, 2, job.output)
            self.assertIn(f"{word} is of bench", job.output)
        job = self.run_job(1, "bench", "step", "--deck", deck, "--backend", "cpu")
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("deck says run.backend", job.output)
        job = self.run_job(1, "bench", "gemm", "--backend", "gpu")
        self.assertEqual(job.code, 2, job.output)

    @of_rates
    def test_a_machine_file_has_the_rates_of_everything(self):
        place = self.dir / "bench"
        place.mkdir()
        job = self.run_job(2, "bench", "machine", "--repeats", 1, "--dir", place, "--backend",
                           "debug")
        self.assertEqual(job.code, 0, job.output)
        machine = tomllib.loads(job.output)
        self.assertEqual(machine["ranks_per_node"], 2)
        gemm = machine["gemm"]
        self.assertEqual({len(rates) for rates in gemm.values()}, {len(gemm["n"])})
        self.assertLess(gemm["n"][0], gemm["n"][-1])
        numbers = [machine["threads"], machine["memory_rate"], *gemm["f32"], *gemm["bf16"],
                   *itertools.chain(*machine["attention"].values()),
                   *itertools.chain(*machine["attention_backward"].values()),
                   *machine["kernel"]["f32"].values(),
                   machine["link"]["intra"]["rate"], machine["disk"]["write"],
                   machine["disk"]["read"]]
        self.assertTrue(all(1 <= x < 1e18 for x in numbers), numbers)
        self.assertTrue(0 < machine["link"]["intra"]["latency"] < 10)
        self.assertNotIn("inter", machine["link"], "one node has no links to others")
        self.assertEqual(list(place.iterdir()), [])
        file = self.dir / "measured.toml"
        file.write_text(job.output)
        deck = self.deck("tiny", tiny_deck(self.corpus))
        simulate = "simulate", deck, "--ranks", 2, "--machine", file
        self.run_ok(*simulate)
        file.write_text(job.output.replace("exact_sum =", "exakt_sum ="))
        job = self.run_job(0, *simulate)
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("kernel.f32.exakt_sum is no operation", job.output)

    def test_simulates_every_shipped_machine(self):
        """More micro-batches take longer, and what is wrong with a machine file is said."""
        deck = self.deck("tiny", tiny_deck(self.corpus, parallel__tensor=1, parallel__pipeline=1))
        machines = sorted((SOURCE / "slurm/machines").glob("*.toml"))
        self.assertGreater(len(machines), 4)

        def step_ms(machine, *sets):
            options = [x for s in sets for x in ("--set", s)]
            job = self.run_job(0, "simulate", deck, "--ranks", 4, "--machine", machine, *options)
            self.assertEqual(job.code, 0, job.output)
            return float(re.search(r"^step +([0-9.]+) ms$", job.output, re.M)[1])

        for machine in machines:
            with self.subTest(machine=machine.name):
                self.assertGreater(step_ms(machine), 0)
                self.assertLess(step_ms(machine, "parallel.pipeline=2"),
                                step_ms(machine, "parallel.pipeline=2", "batch.global=64"))
        pictures = {}
        for form in ("svg", "trace"):
            job = self.run_job(0, "plan", deck, "--ranks", 4, "--format", form, "--machine",
                               machines[0], "--set", "parallel.pipeline=2", "--set",
                               "recompute.policy=full")
            self.assertEqual(job.code, 0, job.output)
            pictures[form] = job.output
        svg = xml.etree.ElementTree.fromstring(pictures["svg"])
        space = "{http://www.w3.org/2000/svg}"
        boxes = list(svg.iter(f"{space}rect"))
        self.assertGreater(len(boxes), 20)
        self.assertGreaterEqual(min(float(b.get("width").rstrip("%")) for b in boxes), 1)
        words = [t.text for t in svg.iter(f"{space}text")]
        for word in ("compute", "send_forward", "receive_backward", "0", "1", "recomputation"):
            self.assertIn(word, words)
        events = json.loads(pictures["trace"])["traceEvents"]
        self.assertEqual({e["pid"] for e in events}, {0, 1}, "a process a stage")
        self.assertTrue(all(e["dur"] >= 0 for e in events if e["ph"] == "X"))
        self.assertIn("recomputation", {e.get("cat") for e in events})
        wrong = self.dir / "wrong.toml"
        wrong.write_text(machines[0].read_text().replace("memory_rate", "memory_speed"))
        job = self.run_job(0, "simulate", deck, "--ranks", 4, "--machine", wrong)
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("wrong.toml", job.output)
        self.assertIn("memory_rate", job.output)

    def test_simulate_itemises_a_step(self):
        """The times of operations on the compute stream are the step; the table is as wide as
        promised, and not said with a search."""
        deck = SOURCE / "inputs/gpt2_124m.toml"
        machine = SOURCE / "slurm/machines/h100-dgx.toml"
        simulate = ("simulate", deck, "--ranks", 1, "--machine", machine, "--set",
                    "run.backend=cuda", "--set", "batch.global=16")
        plain = self.run_ok(*simulate)
        output = self.run_ok(*simulate, "--items")
        self.assertTrue(output.startswith(plain))
        table = output[len(plain):]
        self.assertLessEqual(max(map(len, table.splitlines())), 100)
        rows = re.findall(r"^(\S.{48}) *(\S+) .* (\d+\.\d+) +(\d+\.\d)%.*$", table, re.M)
        begin, end = table.index("on the compute stream"), table.index("in all")
        times = [float(r[2]) for r in rows if begin < table.index(r[0]) < end and r[0][:6] != "in all"]
        step = float(re.search(r"^step +([\d.]+) ms", plain, re.M)[1])
        self.assertGreater(len(times), 15)
        self.assertAlmostEqual(sum(times), step, delta=0.005 * step)
        self.assertRegex(table, r"(?m)^attention_backward  bf16 \d+ x 1024, 12 of 64 .* T/s +\d+%$")
        self.assertRegex(table, r"(?m)^norm_backward .* G/s +\d+%$")
        self.assertEqual(self.run_job(0, *simulate, "--items", "--search").code, 2)

    def test_tf32_has_rates_of_its_own(self):
        deck = SOURCE / "inputs/gpt2_124m.toml"
        machines = SOURCE / "slurm/machines"

        def simulate(machine, matmul):
            return self.run_job(0, "simulate", deck, "--ranks", 8, "--machine", machines / machine,
                                "--set", "precision.compute=f32", "--set", "run.backend=cuda",
                                "--set", f"precision.matmul={matmul}")

        same, tf32 = simulate("h100-dgx.toml", "same"), simulate("h100-dgx.toml", "tf32")
        self.assertEqual((same.code, tf32.code), (0, 0), same.output + tf32.output)
        self.assertIn(", f32\n", same.output)
        self.assertIn(", f32 with tf32 products\n", tf32.output)
        steps = [float(re.search(r"^step +([\d.]+) ms", job.output, re.M)[1]) for job in (same, tf32)]
        self.assertLess(steps[1], 0.6 * steps[0], "attention stays f32's")
        job = simulate("epyc-2core.toml", "tf32")
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("gemm.tf32 is not given", job.output)
        self.assertIn("flop a rank in f32 with tf32 products\n",
                      self.run_ok("check", deck, "--ranks", 8, "--set", "precision.compute=f32",
                                  "--set", "run.backend=cuda", "--set", "precision.matmul=tf32"))

    def test_check_says_what_a_long_plan_costs(self):
        deck = self.deck("tiny", tiny_deck(self.corpus, parallel__tensor=1, parallel__pipeline=1))
        said = r"(?m)^the plan of a step of (\d+) micro-batches: (\d+) visits of units, (\S+) operations, " \
               r"(\S+ .iB) of the host's memory a rank, about (\S+) s to make and prove"

        def check(micro_batches, *options):
            return self.run_ok("check", deck, "--ranks", 1, "--set",
                               f"batch.global={micro_batches}", "--set", "batch.micro=1", *options)

        self.assertNotRegex(check(64), said)
        # Micro-batches repeat: of each more there is one operation, which loads it.
        short, long = (re.search(said, check(n)) for n in (128, 512))
        self.assertEqual((short[1], long[1]), ("128", "512"))
        self.assertEqual(int(long[2]), 4 * int(short[2]))
        self.assertEqual(float(long[3]) - float(short[3]), 512 - 128)
        # In layout mode all of them are there.
        options = "--set", "run.reproducible=layout"
        short, long = (re.search(said, check(n, *options)) for n in (128, 512))
        self.assertAlmostEqual(float(long[3]) / float(short[3]), 4, delta=0.2)

    def test_a_search_finds_the_fastest_layout(self):
        """None of those that can be written down for four ranks is faster, what is printed is what
        simulate says of it, and a budget that nothing fits is said."""
        deck = self.deck("tiny", tiny_deck(self.corpus, parallel__tensor=1, parallel__pipeline=1))
        machine = SOURCE / "slurm/machines/h100-dgx.toml"

        def simulate(*options):
            return self.run_job(0, "simulate", deck, "--ranks", 4, "--machine", machine, "--set",
                                "batch.global=64", *options)

        def step_ms(job):
            self.assertEqual(job.code, 0, job.output)
            return float(re.search(r"^step +([0-9.]+) ms$", job.output, re.M)[1])

        found = simulate("--search")
        self.assertEqual(found.code, 0, found.output)
        best = float(re.search(r"^ 1 +([0-9.]+) ms", found.output, re.M)[1])
        sets = re.search(r"^the first: (.*)$", found.output, re.M)[1].split()
        self.assertEqual(step_ms(simulate(*sets)), best)
        tried, layouts = 0, some_of([*itertools.product(
            (1, 2), (1, 2), (1, 2, 4, 8, 16, 32, 64), ("1f1b", "zero_bubble"))])
        for tensor, pipeline, micro, schedule in layouts:
            words = (f"parallel.tensor={tensor}", f"parallel.pipeline={pipeline}",
                     f"batch.micro={micro}", f"parallel.schedule={schedule}", "zero.stage=1")
            job = simulate(*(x for word in words for x in ("--set", word)))
            if job.code == 2:
                continue
            tried += 1
            self.assertGreaterEqual(step_ms(job), best, words)
        self.assertGreater(tried, 25 * len(layouts) // 56)  # more than 25 of all
        self.assertEqual(simulate("--search").output, found.output)
        job = simulate("--search", "--set", "memory.device=1000")
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("no layout of 4 ranks", job.output)
        self.assertIn("need more than the 1.0 KiB", job.output)

        job = simulate("--search", "--within", "0")
        self.assertEqual(job.code, 2, job.output)
        self.assertRegex(job.output, r"\n  \d+ or more were not looked at, for 0 s were over")
        job = simulate("--within", "5")
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("--search", job.output)

        # Of a step that is too long for one plan, larger micro-batches may make one.
        many = ("--set", "batch.global=1048576")
        job = simulate("--search", *many)
        self.assertEqual(job.code, 0, job.output)
        self.assertRegex(job.output, r"\n  \d+ layouts? ha(?:ve|s) more micro-batches a step than one plan holds\n")
        job = self.run_job(0, "check", deck, "--ranks", 4, *many)
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("too long for one plan: raise batch.micro", job.output)
        self.assertEqual(job.output.count("\n"), 1, "no wait for it is announced")

    def test_snapshots_are_no_memory_of_the_device(self):
        """simulate needs of a device what check does, and a layout fits where that fits."""
        deck = self.deck("tiny", tiny_deck(self.corpus, zero__stage=1, checkpoint__every=5,
                                           parallel__tensor=1, parallel__pipeline=1,
                                           batch__global=2))
        arenas = {arena: int(size) for arena, size in re.findall(
            r"arena (\w+), bytes +(\d+)", self.run_ok("check", deck, "--ranks", 2, ranks=0))}
        self.assertGreater(arenas["host"], 0)
        device = arenas["state"] + arenas["step"]

        def human(count):
            mib = count / 2**20
            return f"{mib:.2f} MiB" if mib >= 1 else f"{count / 2**10:.1f} KiB"

        simulate = ("simulate", deck, "--ranks", 2, "--machine",
                    SOURCE / "slurm/machines/h100-dgx.toml", "--set")
        for spare, fits in (0, True), (-1, False):
            output = self.run_ok(*simulate, f"memory.device={device + spare}", ranks=0)
            self.assertIn(f"memory a rank          {human(device)}", output)
            self.assertIn(f"{human(arenas['host'])} of the host's", output)
            self.assertEqual("does not fit" in output, not fits)
        found = self.run_ok(*simulate, f"memory.device={device}", "--search", ranks=0)
        self.assertRegex(found, rf"(?m) 1 +1 +none +{human(device)}")

    def test_the_benchmark_of_disks(self):
        """Prints a deck's two lines; uses every disk; refuses what it cannot do, and leaves nothing."""
        disks = [self.dir / name for name in ("one", "two")]
        for disk in disks:
            disk.mkdir()
        where = [word for disk in disks for word in ("--dir", disk)]
        text = self.run_ok("bench", "nvme", *where, "--bytes", 1 << 20, "--repeats", 1, ranks=1)
        lines = text[text.index("[offload]"):]
        self.assertRegex(lines, r"\A\[offload\]\nblock = \d+\ndepth = \d+\n\Z")
        for code, words, arguments in (
                (2, "not a multiple of 4096", ["nvme", "--block", 5000]),
                (2, "is of bench nvme", ["gemm", "--depth", 3]),
                (2, "several --dir", ["machine", *where]),
                (7, "cannot create", ["nvme", *where, "--dir", self.dir / "none"]),
                (7, "cannot reserve", ["nvme", *where, "--bytes", 1 << 50])):
            with self.subTest(words):
                job = self.run_job(2, "bench", *arguments)
                self.assertEqual(job.code, code, job.output)
                self.assertIn(words, job.output)
        self.assertEqual([list(disk.iterdir()) for disk in disks], [[], []])

    def test_a_benchmark_that_fails_leaves_nothing(self):
        place = self.dir / "bench"
        place.mkdir()
        job = self.run_job(2, "bench", "step", "--deck", self.dir / "none.toml", "--dir", place)
        self.assertEqual(job.code, 2)
        self.assertEqual(list(place.iterdir()), [])

    def test_every_deck_of_inputs_passes_check(self):
        """At its number of ranks; its run is named after its file."""
        decks = [d for d in sorted((SOURCE / "inputs").glob("*.toml")) if not d.name.startswith("base_")]
        self.assertGreater(len(decks), 20)
        for deck in some_of(decks):
            with self.subTest(deck.name):
                output = self.run_ok("check", deck, "--ranks", self.stated_ranks(deck))
                self.assertIn(f"\nrun directory runs/{deck.stem}\n", output)

    def test_every_batch_script_starts_the_ranks_of_its_deck(self):
        for script in sorted((SOURCE / "slurm").glob("*.sbatch")):
            with self.subTest(script.name):
                options = dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", script.read_text(), re.M))
                self.assertEqual(options["job-name"], script.stem)
                ranks = int(options["nodes"]) * int(options["ntasks-per-node"])
                self.assertEqual(ranks, self.stated_ranks(SOURCE / "inputs" / f"{script.stem}.toml"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
