"""Smoothed labels and the z-loss: as PyTorch trains with them, the same bits on every layout in
layout mode, without effect on evaluation (traps 15, 17 and 23)."""

import json
import unittest

from tessera import SOURCE, RunTest, change, metrics, some_of, tiny_deck

ORACLE = SOURCE / "tests" / "data" / "oracle"
LAYOUTS = ((1, {"batch__micro": 8}), (2, {"zero__stage": 3}),
           (2, {"parallel__tensor": 2, "parallel__sequence": False, "memory__logits": 5}),
           (4, {"parallel__tensor": 2, "parallel__pipeline": 2, "parallel__sequence": False,
                "zero__stage": 1, "batch__micro": 2}))
TERMS = {"task__label_smoothing": 0.1, "task__z_loss": 0.01}
ANY_LAYOUT = {"run__reproducible": "layout", "run__reproducible_tensor": 4, "run__threads": 1,
              "model__heads": 4, "model__hidden": 32, "model__layers": 4, "run__steps": 4,
              "batch__sequence": 16, "model__context": 16, **TERMS}


class LossTest(RunTest):
    def evaluations(self, name):
        return [e["loss"] for e in metrics.read_events(self.dir / name)
                if e["event"] == "evaluate"]


class Oracle(LossTest):
    def check(self, family, layouts):
        truth = json.loads((ORACLE / family / "losses.json").read_text())
        terms = json.loads((ORACLE / family / "loss_terms.json").read_text())
        want, single = terms["float64"], terms["float32"]
        # As in oracle_test: 8 times as far from fp64 as PyTorch's own fp32 is.
        bound = 8 * max(abs(a - b) for x, y in zip(single["steps"], want["steps"])
                        for a, b in zip(x, y))
        recipe, corpus = truth["recipe"], str(ORACLE / family / "tokens")
        for number, (ranks, layout) in enumerate(some_of(layouts)):
            with self.subTest(family=family, ranks=ranks, **layout):
                name = f"{family}_{number}"
                self.train(ranks, self.deck(name, change({
                    "run": {"steps": len(want["steps"]), "backend": "debug"},
                    "model": {"init_from": str(ORACLE / family)},
                    "data": {"train": [corpus], "validation": [corpus], "shuffle": False},
                    "task": {k: terms[k] for k in ("label_smoothing", "z_loss")},
                    "batch": {"sequence": truth["sequence"], "micro": 1, "global": 8},
                    "optimizer": {k: recipe[k] for k in ("lr", "betas", "eps", "weight_decay",
                                                         "clip_norm")},
                    "schedule": {"kind": "constant", "warmup_steps": recipe["warmup_steps"]},
                    "evaluate": {"every": len(want["steps"]), "batches": 1},
                }, **layout)))
                got = self.numbers(name)
                worst = max(abs(a - b) for g, w in zip(got.values(), want["steps"])
                            for a, b in zip(g, w))
                self.assertLess(worst, bound)
                evaluated = self.evaluations(name)
                self.assertEqual(len(evaluated), 1)
                self.assertLess(abs(evaluated[0] - want["evaluation"]), bound)

    def test_gpt2(self):
        self.check("gpt2", LAYOUTS)

    def test_llama(self):
        self.check("llama", LAYOUTS[2:])


class Bits(LossTest):
    def test_every_layout_has_the_same_bits(self):
        want = self.train(1, self.deck("one", tiny_deck(self.corpus, **ANY_LAYOUT)))
        for ranks, layout in ((2, {"parallel__tensor": 2, "zero__stage": 1}),
                              (4, {"parallel__tensor": 4}),
                              (4, {"parallel__tensor": 2, "zero__stage": 3}),
                              (4, {"parallel__pipeline": 2, "recompute__policy": "full"})):
            with self.subTest(**layout):
                name = "_".join(k.split("__")[1] for k in layout)
                deck = self.deck(name, tiny_deck(self.corpus, **ANY_LAYOUT, **layout))
                self.assertEqual(self.train(ranks, deck), want)

    def test_each_term_counts_and_a_resumed_run_may_change_it(self):
        """The loss of step 1 is of the same weights and tokens."""
        fixed = {"run__steps": 2, "checkpoint__every": 1, "model__init_std": 0.2}
        plain = self.train(1, self.deck("plain", tiny_deck(self.corpus, **fixed)))
        for key, value in TERMS.items():
            name = key.replace("task__", "")
            deck = self.deck(name, tiny_deck(self.corpus, **fixed, **{key: value}))
            self.assertNotEqual(self.train(1, deck)[1][0], plain[1][0], name)
        job = self.run_job(1, "train", deck, "--set", "run.steps=3", "--set", "task.z_loss=0.02")
        self.assertEqual(job.code, 0, job.output)
        changed = [e for e in metrics.read_events(self.dir / "z_loss")
                   if "task.z_loss" in json.dumps(e)]
        self.assertTrue(changed, "the change is reported")


class Refused(LossTest):
    def test_values(self):
        for key, value in (("label_smoothing", 1.0), ("label_smoothing", -0.1), ("z_loss", -1.0)):
            deck = self.deck("bad", tiny_deck(self.corpus, **{f"task__{key}": value}))
            job = self.run_job(1, "train", deck)
            self.assertEqual(job.code, 2, job.output)
            self.assertIn(f"task.{key} = {value}", job.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
