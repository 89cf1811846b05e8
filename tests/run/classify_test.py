"""Classifiers of documents and of words: as PyTorch trains them, the same bits on every layout and over
restarts, what evaluation and `classify` say, masked language modelling with an encoder, and what is refused."""

import json
import shutil
import sys
import unittest

from tessera import SOURCE, RunTest, change, metrics

sys.path.insert(0, str(SOURCE / "tests" / "data"))
import classes  # noqa: E402

ORACLE = SOURCE / "tests" / "data" / "oracle" / "classifiers.json"
LAYOUTS = ((1, {"batch__micro": 8}), (2, {"zero__stage": 3, "batch__micro": 2}),
           (2, {"parallel__tensor": 2, "zero__stage": 0, "recompute__policy": "full"}),
           (2, {"parallel__pipeline": 2, "zero__stage": 1}),
           (4, {"parallel__tensor": 2, "parallel__sequence": False, "zero__stage": 2,
                "offload__optimizer": "host"}))
ANY_LAYOUT = {"run__reproducible": "layout", "run__reproducible_tensor": 2, "run__threads": 1,
              "model__dropout": 0.1, "checkpoint__every": 2, "checkpoint__keep": 9}


class ClassifyTest(RunTest):
    def setUp(self):
        super().setUp()
        for kind, told in classes.TOLD.items():
            classes.write_samples(self.lines(kind), kind)
            job = self.run_job(0, "tokenize", self.lines(kind), *told, "--out", self.prefix(kind))
            self.assertEqual(job.code, 0, job.output)

    def prefix(self, kind):
        return self.dir / f"all_{kind}"

    def lines(self, kind):
        return self.dir / f"all_{kind}.jsonl"

    def deck_of(self, run, model, **changes):
        prefix = self.prefix(classes.kind_of(model))
        return self.deck(run, change(classes.deck(model, prefix), **changes))

    def steps_of(self, name):
        return list(metrics.last_steps(metrics.read_events(self.dir / name)).values())

    def evaluations(self, name):
        return [e for e in metrics.read_events(self.dir / name) if e["event"] == "evaluate"]


class Oracle(ClassifyTest):
    def check(self, model, layouts):
        want = json.loads(ORACLE.read_text())[model]
        truth = want["float64"]
        # As in oracle_test: 8 times as far from fp64 as PyTorch's own fp32 is.
        bound = 8 * max(abs(a - b) for x, y in zip(want["float32"]["steps"], truth["steps"])
                        for a, b in zip(x, y))
        samples = classes.samples(classes.kind_of(model))
        counts = [sum(len(samples[(step * classes.BATCH + i) % len(samples)][1])
                      for i in range(classes.BATCH)) for step in range(classes.STEPS)]
        for number, (ranks, layout) in enumerate(layouts):
            with self.subTest(ranks=ranks, **layout):
                name = f"{model}_{number}"
                self.train(ranks, self.deck_of(name, model, **layout,
                                               data__validation=[
                                                   str(self.prefix(classes.kind_of(model)))],
                                               evaluate__every=classes.STEPS, evaluate__batches=0))
                steps = self.steps_of(name)
                self.assertEqual([s["targets"] for s in steps], counts)
                worst = max(abs(s[key] - w[i]) for s, w in zip(steps, truth["steps"])
                            for i, key in enumerate(("loss", "grad_norm")))
                self.assertLess(worst, bound)
                (last,) = self.evaluations(name)
                self.assertEqual(last["confusion"], truth["confusion"])
                self.assertEqual(last["sequences"], len(samples))

    def test_encoder(self):
        self.check("encoder", LAYOUTS)

    def test_bert(self):
        self.check("bert", LAYOUTS[1:4])

    def test_causal(self):
        self.check("causal", LAYOUTS[2:3])

    def test_words(self):
        self.check("tagger", LAYOUTS)


class Bits(ClassifyTest):
    def test_every_layout_and_restart_has_the_same_bits(self):
        fixed = {**ANY_LAYOUT, "data__validation": [str(self.prefix("classify"))],
                 "evaluate__every": 5, "evaluate__batches": 2}
        want = self.train(1, self.deck_of("one", "encoder", **fixed))
        for ranks, layout in ((4, {"parallel__tensor": 2, "zero__stage": 3}),
                              (4, {"parallel__pipeline": 2, "zero__stage": 1,
                                   "recompute__policy": "selective"})):
            with self.subTest(**layout):
                name = "_".join(k.split("__")[1] for k in layout)
                self.assertEqual(self.train(ranks, self.deck_of(name, "encoder", **fixed, **layout)),
                                 want)
                self.assertEqual(*([{k: e[k] for k in ("loss", "accuracy", "f1", "confusion")}
                                    for e in self.evaluations(run)] for run in (name, "one")))
        for path in (self.dir / "one" / "checkpoints").glob("step_*"):
            if path.name != "step_00000004":
                shutil.rmtree(path)
        self.assertEqual(self.train(2, self.deck_of("one", "encoder", **fixed, zero__stage=1)), want)

    def test_words_have_the_same_bits_on_every_layout_and_over_restarts(self):
        """Documents are cut, too."""
        fixed = {**ANY_LAYOUT, "batch__sequence": 16, "task__overlong": "cut"}
        want = self.train(1, self.deck_of("one", "tagger", **fixed))
        self.assertEqual(self.train(4, self.deck_of(
            "four", "tagger", **fixed, parallel__tensor=2, zero__stage=3)), want)
        for path in (self.dir / "one" / "checkpoints").glob("step_*"):
            if path.name != "step_00000004":
                shutil.rmtree(path)
        self.assertEqual(self.train(2, self.deck_of("one", "tagger", **fixed, parallel__pipeline=2)),
                         want)

    def test_masked_tokens_have_the_same_bits_and_are_learned(self):
        """BERT's model and task, on text in which each letter follows from the one before it."""
        text = "".join(chr(97 + (3 * i) % 26) for i in range(6000))
        (self.dir / "letters.txt").write_text(text)
        self.run_job(0, "tokenize", self.dir / "letters.txt", "--out", self.dir / "letters")
        model = {**classes.MODELS["bert"][0], "head_norm": True, "head_bias": True, "dropout": 0.1}
        deck = {"run": {"steps": 40, "backend": "debug", "reproducible": "layout",
                        "reproducible_tensor": 2, "threads": 1}, "model": model,
                "data": {"train": [str(self.dir / "letters")]},
                "task": {"kind": "mlm", "mask_token": 255}, "batch": {"micro": 2, "global": 16},
                "optimizer": {"lr": 1e-2}, "schedule": {"kind": "constant", "warmup_steps": 5}}
        want = self.train(1, self.deck("one", deck))
        steps = self.steps_of("one")
        self.assertLess(steps[-1]["loss"], 0.7 * steps[0]["loss"])
        places = 16 * classes.CONTEXT  # of which 15 % are targets, six deviations being 42 of them
        for step in steps:
            self.assertLess(abs(step["targets"] - 0.15 * places), 6 * (places * 0.15 * 0.85) ** 0.5)
        deck["run"].pop("dir")
        for ranks, layout in ((2, {"parallel__tensor": 2}),
                              (4, {"parallel__pipeline": 2, "zero__stage": 2})):
            with self.subTest(**layout):
                name = "_".join(k.split("__")[1] for k in layout)
                self.assertEqual(
                    self.train(ranks, self.deck(name, change(json.loads(json.dumps(deck)), **layout))),
                    want)


class Verbs(ClassifyTest):
    def test_classify_says_what_evaluation_counts(self):
        self.train(2, self.deck_of("run", "encoder", data__validation=[str(self.prefix("classify"))],
                                   evaluate__every=classes.STEPS, evaluate__batches=0))
        (last,) = self.evaluations("run")
        job = self.run_job(0, "classify", self.dir / "run", self.lines("classify"), "--json")
        said = [json.loads(line) for line in job.output.splitlines() if line.startswith("{")]
        confusion = [[0] * 3 for _ in range(3)]
        for (_, label), line in zip(classes.texts(), said, strict=True):
            self.assertAlmostEqual(sum(line["probabilities"].values()), 1, places=6)
            self.assertEqual(line["probability"], max(line["probabilities"].values()))
            confusion[classes.LABELS.index(label)][classes.LABELS.index(line["label"])] += 1
        self.assertEqual(confusion, last["confusion"])
        right = sum(confusion[i][i] for i in range(3))
        self.assertEqual(last["accuracy"], right / len(said))
        labelled = self.run_job(0, "classify", self.dir / "run", self.lines("classify"), "--label",
                                "animal")
        self.assertIn(f"accuracy {right / len(said):.4f}", labelled.output)
        evaluated = self.run_job(2, "evaluate", self.dir / "run.toml", "--set", "evaluate.batches=0")
        self.assertIn(f"accuracy {right / len(said):.4f}", evaluated.output)
        self.assertIn(f"F1 {last['f1']:.4f}", evaluated.output)

    def test_words(self):
        """Each of a list; or as white space divides a text, which is cut where the deck says so."""
        self.train(2, self.deck_of("run", "tagger", task__overlong="cut",
                                   data__validation=[str(self.prefix("tokens"))],
                                   evaluate__every=classes.STEPS, evaluate__batches=0))
        (last,) = self.evaluations("run")
        classify = ("classify", self.dir / "run")
        told = (self.lines("tokens"), *classes.TOLD["tokens"])
        job = self.run_job(0, *classify, *told, "--json")
        said = [json.loads(line)["words"] for line in job.output.splitlines()
                if line.startswith("{")]
        confusion = [[0] * 3 for _ in range(3)]
        for (words, labels), line in zip(classes.sentences(), said, strict=True):
            self.assertEqual([one["word"] for one in line], words)
            for one, label in zip(line, labels):
                self.assertAlmostEqual(sum(one["probabilities"].values()), 1, places=6)
                confusion[classes.LABELS.index(label)][classes.LABELS.index(one["label"])] += 1
        self.assertEqual(confusion, last["confusion"])
        count, right = sum(map(sum, confusion)), sum(confusion[i][i] for i in range(3))
        self.assertEqual((last["accuracy"], last["targets"]), (right / count, count))
        self.assertIn(f"{count} words | accuracy {right / count:.4f} | F1 {last['f1']:.4f}",
                      job.output)
        text = self.dir / "text.txt"
        text.write_text("\n".join(" ".join(words) for words, _ in classes.sentences()) + "\n")
        job = self.run_job(0, *classify, text, "--separator", r"\n")
        self.assertEqual([line.split("\t")[::2] for line in job.output.splitlines() if "\t" in line],
                         [[one["label"], one["word"]] for line in said for one in line])
        text.write_text("a b  c\td " + 9 * "efg ")  # of which the first 24 bytes are read
        job = self.run_job(0, *classify, text)
        self.assertEqual([bool(line.split("\t")[0]) for line in job.output.splitlines()
                          if "\t" in line], [True] * 9 + [False] * 4)

    def test_entities(self):
        """As seqeval counts them, where classes are parts of such."""
        names = dict(zip(classes.LABELS, ("B-X", "I-X", "O")))
        lines = self.dir / "entities.jsonl"
        classes.write_sentences(lines, [(words, [names[label] for label in labels])
                                        for words, labels in classes.sentences()])
        told = classes.TOLD["tokens"]
        self.run_job(0, "tokenize", lines, *told, "--out", self.dir / "entities")
        self.train(1, self.deck_of("run", "tagger", data__train=[str(self.dir / "entities")]))
        job = self.run_job(0, "classify", self.dir / "run", lines, *told, "--json")

        def entities(labels):
            starts = [i for i, (before, label) in enumerate(zip(["O", *labels], labels))
                      if label == "B-X" or (label == "I-X" and before == "O")]
            return {(i, next((j for j in range(i + 1, len(labels)) if labels[j] != "I-X"),
                             len(labels))) for i in starts}
        right, taken = [], []
        for line, (_, labels) in zip((json.loads(line) for line in job.output.splitlines()
                                      if line.startswith("{")), classes.sentences(), strict=True):
            right.append(entities([names[label] for label in labels]))
            taken.append(entities([word["label"] for word in line["words"]]))
        found = sum(len(a & b) for a, b in zip(right, taken))
        count, of = (sum(map(len, sets)) for sets in (right, taken))
        self.assertGreater(found, 0)
        self.assertIn(f"{count} entities | precision {found / of:.4f} | recall {found / count:.4f} | "
                      f"F1 {2 * found / (of + count):.4f}\n", job.output)

    def test_classes_beyond_those_of_the_data(self):
        self.train(1, self.deck_of("run", "tagger", task__labels=5, task__overlong="cut",
                                   data__validation=[str(self.prefix("tokens"))],
                                   evaluate__every=classes.STEPS, evaluate__batches=0))
        (last,) = self.evaluations("run")
        told = classes.TOLD["tokens"]
        job = self.run_job(0, "classify", self.dir / "run", self.lines("tokens"), *told, "--json")
        self.assertIn(f"accuracy {last['accuracy']:.4f} | F1 {last['f1']:.4f}", job.output)
        for line in job.output.splitlines():
            for word in json.loads(line)["words"] if line.startswith("{") else []:
                self.assertEqual(list(word["probabilities"]),
                                 [*classes.LABELS, "LABEL_3", "LABEL_4"])
                self.assertAlmostEqual(sum(word["probabilities"].values()), 1, places=6)
        empty = self.dir / "empty.jsonl"
        empty.write_text(json.dumps({told[told.index("--words") + 1]: []}) + "\n")
        job = self.run_job(0, "classify", self.dir / "run", empty, "--words",
                           told[told.index("--words") + 1], "--json")
        self.assertEqual(job.output.strip(), '{"words":[]}')

    def test_wrong_uses_of_words(self):
        self.train(1, self.deck_of("words", "tagger", run__steps=1))
        self.train(1, self.deck_of("texts", "encoder", run__steps=1))
        fish = self.dir / "fish.jsonl"
        classes.write_sentences(fish, [(["a", "b"], ["dog", "fish"])])
        for text, code, *arguments in (
                ("says classes of documents, not of their words", 2, "texts", fish, "--words", "words"),
                ("--words names the list of them", 2, "words", fish, "--label", "animals"),
                (r"--separator \d: a backslash is followed by one of n, r, t, f and", 2, "texts",
                 SOURCE / "README.md", "--separator", r"\d"),
                ("all files must be .jsonl files", 2, "words", SOURCE / "README.md", "--words", "w"),
                ('fish.jsonl: line 1: the label "fish" is none of the model\'s: bird, cat, dog', 3,
                 "words", fish, *classes.TOLD["tokens"])):
            with self.subTest(text):
                job = self.run_job(0, "classify", self.dir / arguments[0], *arguments[1:])
                self.assertEqual(job.code, code, job.output)
                self.assertIn(text, job.output)

    def test_wrong_uses(self):
        self.train(1, self.deck_of("run", "encoder", run__steps=1))
        for text, code, *arguments in (
                ("tessera classify asks it", 2, "generate", self.dir / "run", "--prompt", "x"),
                ('model.attention = "bidirectional", needed: "causal"', 3, "export", self.dir / "run", "--to", self.dir / "hf"),
                ("more than the model's context of 24", 3, "classify", self.dir / "run",
                 SOURCE / "README.md"),
                ("is none of the model's: bird, cat, dog", 3, "classify", self.dir / "run",
                 self.labelled_line("fish"), "--label", "animal")):
            with self.subTest(text):
                job = self.run_job(0, *arguments)
                self.assertEqual(job.code, code, job.output)
                self.assertIn(text, job.output)

    def labelled_line(self, label):
        path = self.dir / "line.jsonl"
        classes.write_lines(path, [("abc", label)])
        return path


class Refused(ClassifyTest):
    def assert_refused(self, code, text, **changes):
        with self.subTest(text):
            model = changes.pop("of", "encoder")
            deck = self.deck_of(f"refused_{abs(hash(text))}", model, **changes)
            job = self.run_job(2, "train", deck, each=True)
            self.assertEqual(set(job.codes), {code}, job.output)
            self.assertIn(text, job.output)

    def test_decks(self):
        self.assert_refused(2, "task.labels is missing", task__labels=None)
        self.assert_refused(2, "outputs are classes, not tokens", model__tied_embeddings=True)
        self.assert_refused(2, "a sample is a document", data__documents="joined")
        self.assert_refused(2, "does not go with model.block", model__block="parallel")
        self.assert_refused(2, 'task.pooling has no effect with task.kind = "lm"', task__kind="lm",
                            task__labels=None, model__attention="causal")
        self.assert_refused(2, "is gated", model__head_activation="swiglu")
        self.assert_refused(2, "task.labels is missing", of="tagger", task__labels=None)
        self.assert_refused(2, 'task.pooling has no effect with task.kind = "tokens"', of="tagger",
                            task__pooling="mean")
        self.assert_refused(2, 'task.kind = "tokens" does not go with optimizer.name', of="tagger",
                            optimizer__name="onebit_adam", optimizer__compress_after=2)

    def test_data(self):
        self.assert_refused(3, "3 labels (bird, cat, dog), more than task.labels = 2",
                            task__labels=2)
        self.assert_refused(3, "have no labels", data__train=[str(self.corpus)],
                            task__overlong="cut")
        self.assert_refused(3, "has 21 tokens, more than the 20 that batch.sequence allows",
                            batch__sequence=20)
        self.run_job(0, "tokenize", self.labelled("dog", "eel"), "--label", "animal", "--out",
                     self.dir / "others")
        self.assert_refused(3, "tessera tokenize --labels", data__validation=[str(self.dir / "others")])
        self.assert_refused(3, "those beside it are of words",
                            data__train=[str(self.prefix("tokens"))])
        self.assert_refused(3, "those beside it are of documents: make it anew with tessera tokenize "
                            "--words", of="tagger", data__train=[str(self.prefix("classify"))])
        labels = self.prefix("tokens").with_suffix(".labels.bin")
        labels.write_bytes(b"\7" + labels.read_bytes()[1:])
        self.assert_refused(3, "all_tokens.labels.bin: element 0 is 7, of the label 6, but",
                            of="tagger")
        (self.dir / "all_classify.labels.bin").write_bytes(b"\1\0\0\0" * 80)
        (self.dir / "all_classify.labels.json").unlink()
        self.assert_refused(3, "all_classify.labels.json")

    def labelled(self, *labels):
        path = self.dir / "few.jsonl"
        classes.write_lines(path, [("abc", label) for label in labels])
        return path


if __name__ == "__main__":
    unittest.main()
