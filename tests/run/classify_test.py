"""Classifiers of documents and of words: as PyTorch trains them, the same bits on every layout and over
restarts, what evaluation and `classify` say, masked language modelling with an encoder, and what is refused."""

import array
import json
import shutil
import sys
import unittest

from tessera import SOURCE, RunTest, change, some_of

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
        return self.deck(run, change(classes.deck(model, prefix, self.dir), **changes))

    def pretrain(self, name):
        """A directory of classes.PRETRAINED."""
        self.train(1, self.deck(f"{name}_run", classes.pretraining(name, self.prefix("classify"))))
        job = self.run_job(0, "export", self.dir / f"{name}_run", "--to", self.dir / name)
        self.assertEqual(job.code, 0, job.output)
        return self.dir / name


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
        for number, (ranks, layout) in enumerate(some_of(layouts)):
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
                (last,) = self.evaluations_of(name)
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

    def test_fresh_heads(self):
        """On what transformers makes of the directory."""
        for name in classes.PRETRAINED:
            self.pretrain(name)
        self.check("bert_texts", LAYOUTS[:3])
        self.check("bert_words", LAYOUTS[1:4])
        self.check("gpt2_texts", LAYOUTS[1:3])


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
                                    for e in self.evaluations_of(run)] for run in (name, "one")))
        self.go_back("one", 4)
        self.assertEqual(self.train(2, self.deck_of("one", "encoder", **fixed, zero__stage=1)), want)

    def test_words_have_the_same_bits_on_every_layout_and_over_restarts(self):
        """Documents are cut, too."""
        fixed = {**ANY_LAYOUT, "batch__sequence": 16, "task__overlong": "cut"}
        want = self.train(1, self.deck_of("one", "tagger", **fixed))
        self.assertEqual(self.train(4, self.deck_of(
            "four", "tagger", **fixed, parallel__tensor=2, zero__stage=3)), want)
        self.go_back("one", 4)
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


class Packed(ClassifyTest):
    """Documents that share a sequence (batch.token_budget)."""

    def packed(self, kind, sequences=2):
        return {"batch__token_budget": 48, "batch__global": sequences,
                **({"batch__documents": classes.BATCH} if kind == "classify" else {})}

    def test_they_are_as_if_each_had_its_own(self):
        """Steps of all documents that there are, in two sequences or in one each."""
        oracle = json.loads(ORACLE.read_text())
        for model in classes.MODELS:
            kind = classes.kind_of(model)
            lines = self.dir / f"few_{model}.jsonl"
            if kind == "classify":
                classes.write_lines(lines, classes.texts()[:classes.BATCH])
            else:
                classes.write_sentences(lines, classes.sentences()[:classes.BATCH])
            few = self.dir / f"few_{model}"
            job = self.run_job(0, "tokenize", lines, *classes.TOLD[kind], "--out", few)
            self.assertEqual(job.code, 0, job.output)
            data = {"data__train": [str(few)], "data__validation": [str(few)],
                    "evaluate__every": classes.STEPS, "evaluate__batches": 0}
            self.train(2, self.deck_of(f"padded_{model}", model, **data))
            want, (last,) = self.steps_of(f"padded_{model}"), self.evaluations_of(f"padded_{model}")
            # Either is as far from fp64 as is allowed there.
            of_oracle = oracle[model]
            bound = 16 * max(abs(a - b) for x, y in zip(of_oracle["float32"]["steps"],
                                                        of_oracle["float64"]["steps"])
                             for a, b in zip(x, y))
            for number, (ranks, layout) in enumerate(some_of((
                    (1, {}), (2, {"zero__stage": 3}),
                    (2, {"parallel__tensor": 2, "recompute__policy": "full"}),
                    (2, {"parallel__pipeline": 2, "zero__stage": 1})))):
                with self.subTest(model, ranks=ranks, **layout):
                    name = f"{model}_packed_{number}"
                    self.train(ranks, self.deck_of(name, model, **data, **layout, **self.packed(kind)))
                    for ours, theirs in zip(self.steps_of(name), want, strict=True):
                        self.assertEqual(ours["targets"], theirs["targets"])
                        for key in ("loss", "grad_norm"):
                            self.assertLess(abs(ours[key] - theirs[key]), bound)
                    (evaluated,) = self.evaluations_of(name)
                    self.assertEqual([evaluated[key] for key in ("confusion", "sequences")],
                                     [last[key] for key in ("confusion", "sequences")])

    def test_every_layout_and_restart_has_the_same_bits(self):
        """With documents from anywhere in the file."""
        for model in ("encoder", "tagger"):
            fixed = {**ANY_LAYOUT, **self.packed(classes.kind_of(model), 4), "data__shuffle": True,
                     "run__steps": 4}
            want = self.train(1, self.deck_of(f"{model}_one", model, **fixed))
            for ranks, layout in ((2, {"zero__stage": 3}),
                                  (4, {"parallel__tensor": 2, "parallel__pipeline": 2})):
                with self.subTest(model, **layout):
                    name = f"{model}_" + "_".join(k.split("__")[1] for k in layout)
                    self.assertEqual(self.train(ranks, self.deck_of(name, model, **fixed, **layout)),
                                     want)
            self.go_back(f"{model}_one", 2)
            self.assertEqual(self.train(2, self.deck_of(f"{model}_one", model, **fixed, zero__stage=1)),
                             want)

    def test_what_does_not_go(self):
        for name, model, text, changes in (
                ("alone", "encoder", "batch.documents = 4 has no effect but with batch.token_budget",
                 {"batch__documents": 4}),
                ("words", "tagger", 'batch.token_budget and task.kind = "classify" (leave it out)',
                 self.packed("classify")),
                ("room", "encoder", "batch.documents = 40 is more than batch.token_budget = 24",
                 {"batch__token_budget": 24, "batch__documents": 40}),
                ("rate", "encoder", 'batch.lr_scaling = "linear" has no effect with task.kind = "classify"',
                 {**self.packed("classify"), "batch__lr_scaling": "linear"}),
                ("experts", "encoder", "moe.aux_loss = 0.01 is not possible with batch.documents",
                 {**self.packed("classify"), "moe__experts": 4}),
                ("micro", "encoder", "batch.micro = 2 does not go", {"batch__token_budget": 48, "batch__micro": 2})):
            with self.subTest(name):
                job = self.run_job(1, "train", self.deck_of(name, model, **changes))
                self.assertEqual(job.code, 2, job.output)
                self.assertIn(text, " ".join(job.output.split()))
        job = self.run_job(1, "train", self.deck_of("long", "encoder", batch__token_budget=20))
        self.assertEqual(job.code, 3, job.output)
        self.assertIn("has 21 tokens, more than the 20 that batch.token_budget allows",
                      " ".join(job.output.split()))


class Verbs(ClassifyTest):
    def test_classify_says_what_evaluation_counts(self):
        self.train(2, self.deck_of("run", "encoder", data__validation=[str(self.prefix("classify"))],
                                   evaluate__every=classes.STEPS, evaluate__batches=0))
        (last,) = self.evaluations_of("run")
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
        (last,) = self.evaluations_of("run")
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
        (last,) = self.evaluations_of("run")
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
                 self.labelled_line("fish"), "--label", "animal"),
                ("--label animal is a member of JSON lines", 2, "classify", self.dir / "run",
                 SOURCE / "README.md", "--label", "animal"),
                ("--field is of .jsonl files, but no input is one", 2, "classify", self.dir / "run",
                 SOURCE / "README.md", "--field", "x"),
                ("--separator is of text files, but all inputs are .jsonl files", 2, "classify",
                 self.dir / "run", self.dir / "line.jsonl", "--separator", "x"),
                ("has no tokens, so no class", 3, "classify", self.dir / "run",
                 self.labelled_line("cat", text="", name="empty"), "--label", "animal")):
            with self.subTest(text):
                job = self.run_job(0, *arguments)
                self.assertEqual(job.code, code, job.output)
                self.assertIn(text, job.output)
        for options, line in (((), "\t\t\n"), (("--json",), '{"label":null}\n')):
            job = self.run_job(0, "classify", self.dir / "run", self.dir / "empty.jsonl", *options)
            self.assertEqual(job.output, line, "a line for each document")
        names = json.loads((self.dir / "run" / "labels.json").read_text())
        (self.dir / "run" / "labels.json").write_text(
            json.dumps({**names, "names": [*names["names"], "fish"]}))
        job = self.run_job(0, "classify", self.dir / "run", self.dir / "line.jsonl")
        self.assertEqual(job.code, 3, job.output)
        self.assertIn("its labels.json names 4 classes, but it has 3", " ".join(job.output.split()))

    def labelled_line(self, label, text="abc", name="line"):
        path = self.dir / f"{name}.jsonl"
        classes.write_lines(path, [(text, label)])
        return path


class FreshHead(ClassifyTest):
    """Classifiers that begin with a directory of another model, but for their head."""

    HEAD = ("head_dense.weight", "head_dense.bias", "head.weight", "head_bias.bias")

    def job(self, code, *arguments, ranks=0, says=()):
        job = self.run_job(ranks, *arguments)
        self.assertEqual(job.code, code, job.output)
        for text in says:
            self.assertEqual(job.output.count(text), 1, f"{text}\n{job.output}")
        return job.output

    def tensors(self, name, of):
        """Those of a directory; of a run, of its export: what a step moves that moves next to nothing is 0."""
        path = self.dir / name
        if not (path / "config.json").exists():
            path = self.dir / f"{name}_{of}"
            self.job(0, "export", self.dir / name, "--to", path, "--no-proof")
        data = (path / "model.safetensors").read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + size])
        header.pop("__metadata__", None)
        values = {key: array.array("f", data[8 + size:][slice(*entry["data_offsets"])])
                  for key, entry in header.items()}
        return {key: [x if abs(x) > 1e-20 else 0 for x in of] for key, of in values.items()}

    def begin(self, name, model="bert_texts", **changes):
        """A run whose only step moves nothing."""
        deck = self.deck_of(name, model, run__steps=1, optimizer__lr=1e-30, **changes)
        return deck, self.job(0, "train", deck, ranks=1)

    def test_what_is_read_and_what_is_drawn(self):
        bert = self.pretrain("bert")
        deck, output = self.begin("texts")
        drawn = f"note: {', '.join(self.HEAD)} are not of {bert}, but drawn anew from run.seed = 3"
        left = (f"note: of {bert}, cls.predictions.bias, cls.predictions.transform.LayerNorm.bias, "
                "cls.predictions.transform.LayerNorm.weight, cls.predictions.transform.dense.bias, "
                "cls.predictions.transform.dense.weight are left out")
        for text in (drawn, left):
            self.assertEqual(output.count(text), 1, output)
        self.job(0, "check", deck, "--ranks", "2", says=[drawn, left])
        resolved = (self.dir / "texts" / "resolved.toml").read_text()
        for line in ('init_head = "fresh"', "head_hidden = 32", 'head_activation = "tanh"',
                     'pooling = "first"', "tied_embeddings = false"):
            self.assertIn(line, resolved)
        theirs, ours = self.tensors("bert", ""), self.tensors("texts", "out")
        encoder = {key for key in theirs if key.startswith("bert.")}
        self.assertEqual(set(ours) - encoder, {"bert.pooler.dense.weight", "bert.pooler.dense.bias",
                                               "classifier.weight", "classifier.bias"})
        for key in encoder:
            self.assertEqual(ours[key], theirs[key], key)
        # The head is that of a model from scratch with the seed.
        scratch = classes.deck("bert", self.prefix("classify"))
        scratch["model"].update(family="bert")
        self.job(0, "train", self.deck("scratch", change(scratch, run__steps=1, optimizer__lr=1e-30)),
                 ranks=1)
        drawn = self.tensors("scratch", "out")
        for key in set(ours) - encoder:
            self.assertEqual(ours[key], drawn[key], key)
        self.assertNotEqual(drawn["bert.pooler.dense.weight"], theirs["cls.predictions.transform.dense.weight"])

    def test_a_pooler_becomes_the_dense_layer(self):
        """That of a classifier whose classes are others, too."""
        self.pretrain("bert")
        self.begin("texts")
        theirs = self.tensors("texts", "classifier")
        directory = str(self.dir / "texts_classifier")
        self.begin("pooled", model__init_from=directory, model__init_head="fresh", run__seed=8)
        self.job(2, "train", self.dir / "pooled.toml", "--set", 'model.init_head="directory"', ranks=1,
                 says=['model.init_head = "directory" differs from the checkpoint\'s "fresh"'])
        ours = self.tensors("pooled", "out")
        self.assertEqual({key for key in theirs if ours[key] != theirs[key]}, {"classifier.weight"})
        for name, changes in (("narrow", {"model__head_hidden": 16}),
                              ("words", {"model": "bert_words"}),
                              ("none", {"model__head_hidden": 0, "task__pooling": "mean"})):
            with self.subTest(name):
                _, output = self.begin(name, **{"model__init_from": directory,
                                                "model__init_head": "fresh", **changes})
                for tensor in ("bert.pooler.dense.weight", "classifier.weight"):
                    self.assertRegex(output, f"note: of .*{tensor}.* are left out")

    def test_every_layout_and_restart_has_the_same_bits(self):
        self.pretrain("bert")
        fixed = {**ANY_LAYOUT, "run__steps": 4}
        want = self.train(1, self.deck_of("one", "bert_texts", **fixed))
        for ranks, layout in ((2, {"zero__stage": 3}), (2, {"parallel__tensor": 2}),
                              (2, {"parallel__pipeline": 2, "zero__stage": 1})):
            with self.subTest(**layout):
                name = "_".join(k.split("__")[1] for k in layout)
                self.assertEqual(self.train(ranks, self.deck_of(name, "bert_texts", **fixed, **layout)),
                                 want)
        shutil.rmtree(self.dir / "one" / "checkpoints" / "step_00000004")
        self.assertEqual(self.train(2, self.deck_of("one", "bert_texts", **fixed)), want)

    def test_a_head_that_is_there_is_taken_or_refused(self):
        self.pretrain("bert")
        self.begin("texts")
        self.tensors("texts", "classifier")
        directory = {"model__init_from": str(self.dir / "texts_classifier")}
        _, output = self.begin("same", **directory)
        self.assertNotIn("drawn anew", output)
        self.assertEqual(self.tensors("same", "out"), self.tensors("texts_classifier", ""))
        for name, code, text, changes in (
                ("more", 2, "task.labels = 4, but", {"task__labels": 4}),
                ("wide", 2, 'or give model.init_head = "fresh"', {"model__head_hidden": 16}),
                ("mean", 2, 'task.pooling = "mean", but', {"task__pooling": "mean"}),
                ("none", 3, 'a head for task.kind = "tokens" is not there (model.init_head = "fresh" '
                 "draws one)", {"model": "bert_words", "model__init_head": "directory"})):
            with self.subTest(name):
                model = changes.pop("model", "bert_texts")
                deck = self.deck_of(name, model, **directory, **changes)
                self.job(code, "train", deck, ranks=2, says=[text])
        config = json.loads((self.dir / "texts_classifier" / "config.json").read_text())
        config["id2label"] = {str(i): name for i, name in enumerate(("x", "y", "z"))}
        (self.dir / "texts_classifier" / "config.json").write_text(json.dumps(config))
        deck = self.deck_of("names", "bert_texts", **directory)
        self.job(3, "train", deck, ranks=2, says=['or begin with a fresh head, by model.init_head'])
        self.begin("told", **directory, model__init_head="fresh", task__labels=5)

    def test_bad_input(self):
        bert = self.pretrain("bert")
        for name, code, text, changes in (
                ("labels", 2, "task.labels is missing", {"task__labels": None}),
                ("kind", 2, 'model.init_head has no effect without task.kind = "classify", "tokens" or "reward"',
                 {"task__kind": "mlm", "task__labels": None, "model__init_head": "fresh"}),
                ("wide", 2, "model.hidden = 64, but", {"model__hidden": 64}),
                ("absent", 3, "config.json", {"model__init_from": str(self.dir / "nowhere")})):
            with self.subTest(name):
                self.job(code, "train", self.deck_of(name, "bert_texts", **changes), ranks=2,
                         says=[text])
        model = classes.deck("encoder", self.prefix("classify"))
        model["model"]["init_head"] = "fresh"
        self.job(2, "train", self.deck("alone", model), ranks=1,
                 says=["model.init_head has no effect without model.init_from"])
        deck = self.deck_of("evaluated", "bert_texts", data__validation=[str(self.prefix("classify"))])
        self.job(2, "evaluate", deck, ranks=2, says=["the head of model.init_from is a fresh one"])
        weights = bert / "model.safetensors"
        whole = weights.read_bytes()
        for name, text, wrong in (
                ("missing", "bert.encoder.layer.1.output.dense.bias is missing",
                 whole.replace(b"bert.encoder.layer.1.output.dense.bias",
                               b"lost.encoder.layer.1.output.dense.bias")),
                ("unknown", "bert.encoder.layer.9.output.dense.bias is not a tensor of the family",
                 whole.replace(b"bert.encoder.layer.1.output.dense.bias",
                               b"bert.encoder.layer.9.output.dense.bias")),
                ("cut", "model.safetensors", whole[:-4])):
            with self.subTest(name):
                weights.write_bytes(wrong)
                output = self.job(3, "train", self.deck_of(name, "bert_texts"), ranks=2, says=[])
                self.assertIn(text, output)


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
        self.assert_refused(2, "outputs are not tokens", model__tied_embeddings=True)
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
