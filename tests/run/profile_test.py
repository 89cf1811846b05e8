"""Profiled runs: every op of the plan has its times, in the order that the plan asks for; the numbers
are those of a run without; `plan --profile` draws and compares them, and refuses what does not fit."""

import json
import unittest
import xml.etree.ElementTree

from tessera import SOURCE, RunTest, tiny_deck

MACHINE = SOURCE / "slurm/machines/epyc-2core.toml"
LAYOUTS = {  # name: ranks, changes of the deck
    "one": (1, {}),
    "data": (2, {"zero__stage": 3, "checkpoint__every": 3}),
    "pipeline": (2, {"parallel__pipeline": 2}),
    "tensor": (2, {"parallel__tensor": 2, "model__heads": 4}),
    "mixed": (4, {"parallel__pipeline": 2, "zero__stage": 2}),
}


class Profile(RunTest):
    def profiled(self, name, steps=(2, 5), **more):
        """A finished run with a profile: number of ranks, deck."""
        ranks, changes = LAYOUTS[name]
        changes = {"run__steps": 6, "log__profile": list(steps), **changes, **more}
        deck = self.deck(name, tiny_deck(self.corpus, **changes))
        self.train(ranks, deck)
        return ranks, deck

    def lines(self, name, rank):
        path = self.dir / name / "profile" / f"rank_{rank:05}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def plan(self, *arguments, code=0):
        job = self.run_job(0, "plan", *arguments)
        self.assertEqual(job.code, code, job.output)
        return job.output

    def check_times(self, line, ops):
        """Every op once; no two of a stream at once; none before what it waits for is over."""
        begin, end = line["begin_us"], line["end_us"]
        self.assertEqual(line["stream"], [op["stream"] for op in ops])
        self.assertEqual((len(begin), len(end)), (len(ops), len(ops)))
        last = {}
        for i, op in enumerate(ops):
            self.assertGreater(begin[i], 0)
            self.assertGreaterEqual(begin[i], last.get(op["stream"], 0), f"op {i}")
            self.assertGreaterEqual(end[i], begin[i], f"op {i}")
            for w in op["waits"]:
                self.assertGreaterEqual(begin[i], end[w], f"op {i} waits for {w}")
            last[op["stream"]] = end[i]
        self.assertGreaterEqual(line["us"], max(end))

    def test_every_op_has_its_times(self):
        for name in LAYOUTS:
            with self.subTest(name):
                ranks, deck = self.profiled(name)
                for rank in range(ranks):
                    plan = json.loads(self.plan(deck, "--ranks", ranks, "--rank", rank,
                                                "--format", "json"))
                    lines = self.lines(name, rank)
                    self.assertEqual([line["step"] for line in lines], [2, 3, 4, 5])
                    for line in lines:
                        # With a checkpoint every third step, step 4 copies the state of step 3.
                        if name == "data" and line["step"] == 4:
                            self.assertIn("copy", line["stream"])
                        else:
                            self.check_times(line, plan["ops"])

    def test_it_changes_no_bit(self):
        for name in ("data", "mixed"):
            with self.subTest(name):
                ranks, deck = self.profiled(name)
                plain = self.dir / f"{name}_plain.toml"
                text = deck.read_text().replace("profile = [2, 5]", "")
                plain.write_text(text.replace(str(self.dir / name), str(self.dir / plain.stem)))
                self.assertEqual(self.train(ranks, plain), self.numbers(name))
                self.assertFalse((self.dir / plain.stem / "profile").exists())

    def test_pictures_and_tables(self):
        ranks, deck = self.profiled("mixed")
        fixed = (deck, "--ranks", ranks, "--profile", self.dir / "mixed", "--format")
        events = json.loads(self.plan(*fixed, "trace"))["traceEvents"]
        self.assertEqual({e["pid"] for e in events}, set(range(4)), "a process a rank")
        both = json.loads(self.plan(*fixed, "trace", "--machine", MACHINE))["traceEvents"]
        titles = {e["args"]["name"] for e in both if e["name"] == "process_name"}
        self.assertEqual(len(titles), 6, "2 stages predicted, 4 ranks measured")
        svg = xml.etree.ElementTree.fromstring(self.plan(*fixed, "svg", "--machine", MACHINE))
        words = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}text")]
        self.assertEqual(len([w for w in words if "predicted for" in w]), 1)
        self.assertEqual(len([w for w in words if "measured: " in w]), 1)

        alone = json.loads(self.plan(*fixed, "json"))
        table = json.loads(self.plan(*fixed, "json", "--machine", MACHINE))
        self.assertEqual(table["profiled_steps"], [2, 3, 4, 5])
        self.assertIn(table["step"], table["profiled_steps"])
        self.assertIsNone(alone["predicted_ms"])
        for column in ("predicted_ms", "measured_ms"):
            *parts, total = [row[column] for row in table["compute"]]
            self.assertEqual(table["compute"][-1]["name"], "in all")
            self.assertAlmostEqual(sum(parts), total, delta=1e-6 * total)
            self.assertLessEqual(total, table[column] * (1 + 1e-9))
        self.assertEqual([row["measured_ms"] for row in alone["compute"]],
                         [row["measured_ms"] for row in table["compute"] if row["measured_ms"]])
        # All ops of all four ranks are there.
        ops = sum(len(self.lines("mixed", rank)[0]["stream"]) for rank in range(4))
        self.assertAlmostEqual(4 * sum(row["ops"] for row in table["operations"]), ops)
        text = self.plan(*fixed, "text", "--machine", MACHINE)
        for words in ("predicted for", "linear", "in all", "means of 4 ranks"):
            self.assertIn(words, text)

    def test_restarts_add_to_it(self):
        """Steps done again have lines again; after a change of the layout each has its own."""
        ranks, deck = self.profiled("data", steps=(2, 4), run__steps=3)
        self.assertEqual([line["step"] for line in self.lines("data", 0)], [2, 3])
        self.train(1, deck, "run.steps=5")
        first = self.lines("data", 0)
        self.assertEqual([line["step"] for line in first], [2, 3, 4])
        for count, steps in ((2, [2, 3]), (1, [4])):
            table = json.loads(self.plan(deck, "--ranks", count, "--profile", self.dir / "data",
                                         "--format", "json"))
            self.assertEqual(table["profiled_steps"], steps)
        (self.dir / "data" / "profile" / "rank_00000.jsonl").open("a").write('{"format"')
        self.train(ranks, deck, "run.steps=6", "log.profile=[6, 9]")
        self.assertEqual(self.lines("data", 0)[:-1], first, "and the incomplete line is gone")
        self.assertEqual([len(self.lines("data", r)) for r in (0, 1)], [4, 3])

    def test_what_does_not_fit_is_refused(self):
        ranks, deck = self.profiled("data")
        run = self.dir / "data"
        good = ("--ranks", ranks, "--profile", run)
        for arguments, words in (
                ((*good, "--set", "model.hidden=48"), "another plan"),
                ((*good, "--set", "precision.compute=bf16"), "another plan"),
                ((*good, "--set", "parallel.tensor=2"), "2 data x 1 pipeline x 1 tensor"),
                ((*good, "--nodes", 2), "--nodes"),
                (("--ranks", 4, "--profile", run), "2 ranks"),
                (("--ranks", 2, "--profile", self.dir / "none"), "log.profile"),
                ((*good, "--rank", 1), "--rank"),
                (("--ranks", 2, "--machine", MACHINE), "--profile"),
                (("--ranks", 2, "--format", "svg"), "--profile")):
            with self.subTest(arguments):
                self.assertIn(words, self.plan(deck, *arguments, code=2))
        path = run / "profile" / "rank_00001.jsonl"
        text = path.read_text()
        path.write_text(text.replace('"end_us":[', '"end_us":["', 1))
        self.assertIn("rank_00001.jsonl:1: ", self.plan(deck, *good, code=3))

        job = self.run_job(2, "train", deck, "--set", "log.profile=[3, 2]", each=True)
        self.assertEqual(job.codes, [2, 2], job.output)
        self.assertIn("log.profile", job.output)

    def test_a_profile_that_cannot_be_written_ends_the_run(self):
        blocked = self.dir / "blocked" / "profile" / "rank_00001.jsonl"
        blocked.mkdir(parents=True)
        deck = self.deck("blocked", tiny_deck(self.corpus, log__profile=[2, 2]))
        job = self.run_job(2, "train", deck, each=True)
        self.assertEqual(job.codes, [7, 7], job.output)
        self.assertIn(str(blocked), job.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
