"""Pairs of answers (DPO, IPO, reward models): as PyTorch trains on them, the same bits on every layout and over restarts,
what a reward model says, and what is refused."""

import json
import pathlib
import shutil
import sys
import unittest

from tessera import SOURCE, RunTest, change, some_of

sys.path.insert(0, str(SOURCE / "tests" / "data"))
import preference_models as models  # noqa: E402

LAYOUTS = ((1, {"batch__micro": 8}), (1, {"batch__micro": 4, "memory__logits": 7}),
           (2, {"zero__stage": 3}), (4, {"zero__stage": 1}),
           (2, {"parallel__tensor": 2, "zero__stage": 0, "recompute__policy": "full"}),
           (2, {"parallel__pipeline": 2, "recompute__policy": "selective"}),
           (4, {"parallel__tensor": 2, "parallel__pipeline": 2, "parallel__schedule": "zero_bubble",
                "memory__logits": 20}),
           (4, {"parallel__tensor": 2, "zero__stage": 2, "zero__reduce": "micro"}))
ANY_LAYOUT = {"run__reproducible": "layout", "run__reproducible_tensor": 2, "run__threads": 1,
              "checkpoint__every": 2, "checkpoint__keep": 9}
SAID = ("loss", "grad_norm", "accuracy", "margin", "reward_chosen", "reward_rejected", "log_ratio")
SCORED = SAID[:-1]  # of a reward model, which is compared with none


def said_of(step):
    return {**step, **step["preferences"]}


class PreferenceTest(RunTest):
    def setUp(self):
        super().setUp()
        self.pairs = self.dir / "pairs"
        models.write(self.pairs)

    def deck_of(self, run, kind, reference="reference", **changes):
        deck = models.deck(kind, self.pairs, self.dir / f"{reference}.json")
        return self.deck(run, change(deck, **changes))

    def refer(self, ranks, deck):
        """What a reward model does without."""
        if 'kind = "reward"' in deck.read_text():
            return
        job = self.run_job(ranks, "evaluate", deck, "--reference")
        self.assertEqual(job.code, 0, job.output)


class Oracle(PreferenceTest):
    def truth(self):
        return json.loads((models.ORACLE / "preferences.json").read_text())

    def compare(self, kind, layouts):
        want = self.truth()
        said = SCORED if models.scores(kind) else SAID
        # As in oracle_test: 8 times as far from fp64 as PyTorch's own fp32 is, or as one rounding of
        # a reference's sum of 50 is, for how far the former is in few steps is chance.
        bound = {key: 8 * max(2**-24 * 50, *(abs(a[key] - b[key]) for a, b in zip(
            want[kind]["float32"]["steps"], want[kind]["float64"]["steps"]))) for key in said}
        bound["accuracy"] = 1e-9
        worst_reference = 8 * max(abs(a - b) for of in want.values() if "reference" in of["float64"]
                                  for a, b in zip(of["float32"]["reference"], of["float64"]["reference"]))
        for number, (ranks, layout) in enumerate(some_of(layouts)):
            with self.subTest(kind=kind, ranks=ranks, **layout):
                name = f"{kind}_{number}"
                deck = self.deck_of(name, kind, reference=name, **layout)
                self.refer(ranks, deck)
                if not models.scores(kind):
                    (of_train,) = json.loads((self.dir / f"{name}.json").read_text())["corpora"]
                    for got, log_p in zip(of_train["log_probabilities"],
                                          want[kind]["float64"]["reference"], strict=True):
                        self.assertLess(abs(got - log_p), worst_reference)
                self.train(ranks, deck)
                for at, (step, true) in enumerate(zip(self.steps_of(name),
                                                      want[kind]["float64"]["steps"], strict=True)):
                    self.assertEqual(step["targets"], models.GLOBAL // 2, "pairs")
                    for key in said:
                        if at == 0 and key == "accuracy" and not models.scores(kind):
                            continue  # all ratios are 0, but for rounding
                        self.assertLess(abs(said_of(step)[key] - true[key]), bound[key], (key, at))

    def test_dpo(self):
        self.compare("dpo", LAYOUTS)

    def test_cdpo(self):
        self.compare("cdpo", LAYOUTS[1:6:2])

    def test_ipo(self):
        self.compare("ipo", LAYOUTS[2:7:2])

    def test_lora(self):
        self.compare("lora", LAYOUTS[1::2])

    def test_reward(self):
        self.compare("reward", (LAYOUTS[0], *LAYOUTS[2:7:2], LAYOUTS[7]))

    def test_reward_of_noisy_pairs(self):
        self.compare("noisy", LAYOUTS[3:6:2])


class Bits(PreferenceTest):
    def test_every_layout_and_restart_has_the_same_bits(self):
        for kind, compute in (("dpo", "f32"), ("lora", "bf16"), ("reward", "f32")):
            fixed = {**ANY_LAYOUT, "precision__compute": compute, "data__shuffle": True,
                     "data__validation": [str(self.pairs)], "evaluate__every": 2,
                     "evaluate__batches": 0, "model__dropout": 0.1, "reference": kind,
                     "run__steps": 6}
            one = self.deck_of(f"{kind}_one", kind, **fixed)
            self.refer(1, one)
            reference = (self.dir / f"{kind}.json").read_bytes() if kind != "reward" else None
            want = self.train(1, one)
            said = [s["preferences"] for s in self.steps_of(f"{kind}_one")]
            evaluated = self.evaluated(f"{kind}_one")
            self.assertEqual(evaluated[0][2], 22, "all pairs, of which a step has 4")
            for ranks, layout in some_of((
                    (2, {"parallel__tensor": 2}),
                    (4, {"parallel__tensor": 2, "zero__stage": 3}),
                    (4, {"parallel__pipeline": 2, "zero__stage": 1, "recompute__policy": "selective"}),
                    (2, {"zero__stage": 2, "recompute__policy": "full", "memory__logits": 4096}))):
                with self.subTest(kind=kind, **layout):
                    name = "_".join([kind, *(k.split("__")[1] for k in layout)])
                    deck = self.deck_of(name, kind, **{**fixed, **layout})
                    self.refer(ranks, deck)
                    if reference:
                        self.assertEqual((self.dir / f"{kind}.json").read_bytes(), reference)
                    self.assertEqual(self.train(ranks, deck), want)
                    self.assertEqual([s["preferences"] for s in self.steps_of(name)], said)
                    self.assertEqual(self.evaluated(name), evaluated)
            self.go_back(f"{kind}_one", 2)
            again = self.deck_of(f"{kind}_one", kind, **fixed, parallel__tensor=2, zero__stage=3)
            self.assertEqual(self.train(4, again), want)
            if not reference:
                continue
            (self.dir / f"{kind}.json").write_bytes(reference + b"\n")
            job = self.run_job(4, "train", again)
            self.assertEqual(job.code, 2, job.output)
            self.assertIn(f"{kind}.json has {len(reference) + 1} bytes", " ".join(job.output.split()))

    def evaluated(self, name):
        return [(e["loss"], e["preferences"], e["targets"]) for e in self.evaluations_of(name)]

    def test_evaluate_by_itself(self):
        fixed = {"data__validation": [str(self.pairs)], "evaluate__every": 5, "evaluate__batches": 0}
        deck = self.deck_of("run", "dpo", **fixed)
        self.refer(1, deck)
        self.train(2, deck)
        (last,) = self.evaluations_of("run")
        self.assertIsNone(last["perplexity"])
        self.assertGreater(last["preferences"]["accuracy"], 0.5)
        job = self.run_job(2, "evaluate", self.dir / "run")
        self.assertEqual(job.code, 0, job.output)
        self.assertIn(f"loss {last['loss']:.6f} | accuracy {last['preferences']['accuracy']:.4f} | "
                      "margin ", job.output)
        self.assertIn("| 44 documents |", job.output)
        job = self.run_job(0, "export", self.dir / "run", "--to", self.dir / "exported")
        self.assertEqual(job.code, 0, job.output)
        # It is a language model, with which another deck may begin; not that of these references.
        job = self.run_job(1, "train", self.deck_of("next", "dpo",
                                                    model__init_from=str(self.dir / "exported")))
        self.assertEqual(job.code, 3, job.output)
        self.assertIn("is of another model than model.init_from", " ".join(job.output.split()))

    def test_f16_scales_losses_once(self):
        deck = self.deck_of("half", "dpo", precision__compute="f16")
        self.refer(1, deck)
        self.train(2, deck)
        want = json.loads((models.ORACLE / "preferences.json").read_text())["dpo"]["float64"]["steps"]
        for step, true in zip(self.steps_of("half"), want, strict=True):
            # Log p of some ten tokens, each to 2^-11 of a loss of 5; norms are sums of these.
            self.assertLess(abs(step["loss"] - true["loss"]), 0.05)
            self.assertLess(abs(step["grad_norm"] / true["grad_norm"] - 1), 0.05)


class Scores(RunTest):
    """A reward model of bytes, which learns that yes is better than no."""

    def setUp(self):
        super().setUp()
        said = [{"prompt": f"{i} ", "chosen": "yes" * (1 + i % 3), "rejected": "no" * (1 + i % 4)}
                for i in range(12)]
        self.pairs_of_bytes(said)
        # The same documents as texts, and as prompts with an answer.
        (self.dir / "texts.jsonl").write_text("".join(
            json.dumps({"text": one["prompt"] + one[which], "prompt": one["prompt"],
                        "completion": one[which]}) + "\n"
            for one in said for which in ("chosen", "rejected")))

    def reward_deck(self, name, init_from=None, **changes):
        model = {"family": "gpt2", "layers": 1, "heads": 2, "hidden": 16, "vocab": 256, "context": 24}
        deck = {"run": {"steps": 30, "seed": 3, "backend": "debug"}, "task": {"kind": "reward"},
                "model": {"init_from": str(init_from)} if init_from else model,
                "data": {"train": [str(self.dir / "pairs")], "validation": [str(self.dir / "pairs")]},
                "batch": {"micro": 4, "global": 8}, "schedule": {"kind": "constant"},
                "optimizer": {"name": "adamw", "lr": 1e-2}, "evaluate": {"every": 30, "batches": 0}}
        return self.deck(name, change(deck, **changes))

    def rewards(self, model, *options):
        job = self.run_job(0, "classify", model, self.dir / "texts.jsonl", "--json", *options)
        self.assertEqual(job.code, 0, job.output)
        return [json.loads(line)["reward"] for line in job.output.splitlines() if line.startswith("{")]

    def test_of_a_run_and_its_export(self):
        deck = self.reward_deck("run")
        self.train(2, deck)
        (last,) = self.evaluations_of("run")
        self.assertEqual(last["targets"], 12, "pairs")
        self.assertEqual(last["preferences"]["accuracy"], 1)
        self.assertIsNone(last["preferences"]["log_ratio"])
        self.assertIsNone(last["accuracy"], "no class is said")
        rewards = self.rewards(self.dir / "run")
        self.assertEqual(len(rewards), 24)
        self.assertEqual(self.rewards(self.dir / "run", "--chat", self.dir / "pairs_template.json"), rewards)
        for which, first in (("reward_chosen", 0), ("reward_rejected", 1)):
            mean = sum(rewards[first::2]) / 12
            # Documents alone and beside padding: a few roundings of numbers of the size of rewards.
            self.assertLess(abs(mean - last["preferences"][which]), 2**-20 * max(map(abs, rewards)))
        job = self.run_job(0, "export", self.dir / "run", "--to", self.dir / "exported")
        self.assertEqual(job.code, 0, job.output)
        config = json.loads((self.dir / "exported" / "config.json").read_text())
        self.assertEqual(config["architectures"], ["GPT2ForSequenceClassification"])
        self.assertEqual(config["id2label"], {"0": "LABEL_0"})
        self.assertEqual(self.rewards(self.dir / "exported"), rewards)
        # And so is what a run imports, whose deck trains once it has data.
        job = self.run_job(0, "import", self.dir / "exported", "--to", self.dir / "imported")
        self.assertEqual(job.code, 0, job.output)
        self.assertEqual(self.rewards(self.dir / "imported"), rewards)
        self.assertIn("--pairs", (self.dir / "imported" / "deck.toml").read_text())
        job = self.run_job(2, "train", self.dir / "imported" / "deck.toml", "--set",
                           f'data.train=["{self.dir / "pairs"}"]', "--set", "run.steps=2")
        self.assertEqual(job.code, 0, job.output)
        job = self.run_job(2, "evaluate", self.reward_deck("again", init_from=self.dir / "exported"))
        self.assertEqual(job.code, 0, job.output)
        self.assertIn(f"loss {last['loss']:.6f} | accuracy 1.0000 | margin ", job.output)
        self.assertNotIn("log ratio", job.output)

    def test_refused(self):
        self.train(1, self.reward_deck("run", run__steps=1, evaluate__every=0))
        for code, text, *arguments in (
                (2, "says how good an answer is: tessera classify asks it", "generate", self.dir / "run",
                 "--prompt", "x"),
                (2, "--label x: ", "classify", self.dir / "run", self.dir / "texts.jsonl", "--label", "x"),
                (2, "--words x: ", "classify", self.dir / "run", self.dir / "texts.jsonl", "--words", "x")):
            job = self.run_job(0, *arguments)
            self.assertEqual(job.code, code, job.output)
            self.assertIn(text, " ".join(job.output.split()))
        for text, changes in (
                ("task.beta has no effect with task.kind = \"reward\"", {"task__beta": 0.1}),
                ("task.reference has no effect", {"task__reference": "x.json"}),
                ("task.labels has no effect", {"task__labels": 2}),
                ("task.pooling does not go with task.kind = \"reward\"", {"task__pooling": "none"}),
                ("is the same in both answers", {"task__pooling": "first"}),
                ("model.tied_embeddings does not go with", {"model__tied_embeddings": True}),
                ("batch.micro = 3 is odd", {"batch__micro": 3, "batch__global": 6}),
                ("a whole sequence", {"parallel__context": 2}),
                ("would stay as it is", {"adapter__kind": "lora"}),
                ("compares nothing with a reference model", {"flag": "--reference"})):
            flags = [changes.pop("flag")] if "flag" in changes else []
            job = self.run_job(2, *(["evaluate"] if flags else ["train"]), self.reward_deck("bad", **changes), *flags)
            self.assertEqual(job.code, 2, job.output)
            self.assertIn(text, " ".join(job.output.split()))


class Refused(PreferenceTest):
    def expect(self, code, text, *arguments, **changes):
        job = self.run_job(1, *(arguments or ("train",)), self.deck_of("bad", "dpo", **changes))
        self.assertEqual(job.code, code, job.output)
        self.assertIn(text, " ".join(job.output.split()))

    def test_decks(self):
        self.expect(2, "batch.micro = 1 is odd", batch__micro=1)
        self.expect(2, "task.reference is missing: task.kind = \"dpo\" needs the file",
                    task__reference=None)
        self.expect(2, "model.init_from is missing", model__init_from=None, model__family="gpt2",
                    model__layers=1, model__heads=2, model__hidden=16, model__vocab=211,
                    model__context=24)
        self.expect(2, "task.z_loss does not go with task.kind = \"dpo\"", task__z_loss=1e-4)
        self.expect(2, "give less than 0.5", task__label_smoothing=0.5)
        self.expect(2, "task.label_smoothing does not go with task.kind = \"ipo\"",
                    task__kind="ipo", task__label_smoothing=0.1)
        self.expect(2, "task.beta has no effect with task.kind = \"lm\"", task__kind="lm")
        self.expect(2, "a sample is a document", data__documents="joined")
        self.expect(2, "data.separator does not go with", data__separator=3)
        self.expect(2, "does not go with optimizer.name = \"onebit_adam\"",
                    optimizer__name="onebit_adam", optimizer__compress_after=4,
                    optimizer__clip_norm=0)
        self.expect(2, "task.kind = \"lm\" compares nothing", "evaluate", "--reference",
                    task__kind="lm", task__beta=None, task__reference=None)

    def test_data(self):
        self.expect(3, "more than the 10 that batch.sequence allows", batch__sequence=10)
        pathlib.Path(f"{self.pairs}.pairs.json").write_text('{"pairs": 7}')
        self.expect(3, "its documents are no pairs of answers")
        pathlib.Path(f"{self.pairs}.pairs.json").write_text(json.dumps({"pairs": 2**62}))
        self.expect(3, "$.pairs: expected")
        pathlib.Path(f"{self.pairs}.pairs.json").unlink()
        self.expect(3, "make it with tessera tokenize --pairs")

    def test_references_of_an_earlier_format(self):
        """Whose hash is of the model's directory alone, and which is taken as it was."""
        deck = self.deck_of("good", "dpo")
        self.refer(1, deck)
        path = self.dir / "reference.json"
        made = json.loads(path.read_text())
        self.assertEqual(made["format"], 2)
        path.write_text(json.dumps({**made, "format": 1}))
        self.expect(3, "is of another model than model.init_from")
        path.write_text(json.dumps({**made, "format": 3}))
        self.expect(3, "$.format: expected")

    def test_references_of_other_positions(self):
        """The same weights say something else of a text whose positions turn otherwise."""
        deck = self.deck_of("good", "cdpo")
        self.refer(1, deck)
        told = ("--set", "model.rope_theta=20000.0")
        job = self.run_job(1, "train", deck, *told)
        self.assertEqual(job.code, 3, job.output)
        self.assertIn("or of other positions (model.context, rope_*) in it", " ".join(job.output.split()))
        job = self.run_job(1, "evaluate", deck, "--reference", *told)
        self.assertEqual(job.code, 0, job.output)
        self.train(1, deck, told[1])
        # Nor is it that of what its matrices become as codes.
        job = self.run_job(1, "train", deck, *told, "--set", 'frozen.layers=["block.0"]', "--set",
                           "frozen.type=int4")
        self.assertEqual(job.code, 3, job.output)
        self.assertIn("or codes of it (frozen.type, block)", " ".join(job.output.split()))

    def test_references_without_the_validation_data(self):
        """Are refused at the start, not at the first evaluation."""
        self.refer(1, self.deck_of("good", "dpo"))
        other = self.dir / "other"
        models.write(other)
        bytes_of = pathlib.Path(f"{other}.bin").read_bytes()
        pathlib.Path(f"{other}.bin").write_bytes(bytes_of[2:] + bytes_of[:2])
        job = self.run_job(2, "train", self.deck_of("later", "dpo", data__validation=[str(other)],
                                                    evaluate__every=5), each=True)
        self.assertEqual(job.codes, [3, 3], job.output)
        self.assertIn("is of other data than", " ".join(job.output.split()))
        self.assertFalse((self.dir / "later" / "metrics.jsonl").exists()
                         and self.steps_of("later"), "no step was done")

    def test_references_of_something_else(self):
        self.expect(3, "reference.json is not there: make it with tessera evaluate DECK --reference")
        deck = self.deck_of("good", "dpo")
        self.refer(1, deck)
        bytes_of = pathlib.Path(f"{self.pairs}.bin").read_bytes()
        pathlib.Path(f"{self.pairs}.bin").write_bytes(bytes_of[2:] + bytes_of[:2])
        self.expect(3, "is of other data than")
        pathlib.Path(f"{self.pairs}.bin").write_bytes(bytes_of)
        other = self.dir / "model"
        shutil.copytree(models.ORACLE / "gpt2", other)
        weights = bytearray((other / "model.safetensors").read_bytes())
        weights[-3] ^= 1
        (other / "model.safetensors").write_bytes(weights)
        self.expect(3, "is of another model than model.init_from", model__init_from=str(other))
        self.expect(3, "is of another model than", "check", "--ranks", "2",
                    model__init_from=str(other))
        self.expect(0, "reference.json is of this model and data", "check", "--ranks", "2")
        self.expect(0, "note: task.reference: ", "check", "--ranks", "2",
                    task__reference=str(self.dir / "later.json"))
        (self.dir / "reference.json").write_text('{"format": 1, "model": "0x"}')
        self.expect(3, 'reference.json: $.model: expected 16 hexadecimal digits, found "0x"')
        job = self.run_job(2, "train", self.deck_of("none", "dpo", reference="none"), each=True)
        self.assertEqual(job.codes, [3, 3], job.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
