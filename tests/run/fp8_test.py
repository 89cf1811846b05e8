"""precision.matmul = "fp8", computed for real on a CPU: what may not change a bit does not, losses
stay near those of bf16, and decks that cannot have it are refused. memory_test and layout_test have it
too."""

import re
import unittest

from tessera import RunTest, metrics, tiny_deck

GPT2 = {"model__heads": 4, "model__hidden": 64, "precision__matmul": "fp8"}
LLAMA = {**GPT2, "model__family": "llama", "model__kv_heads": 2, "model__ffn_hidden": 192}


class SameBits(RunTest):
    def run_layout(self, ranks, **changes):
        name = "_".join([str(ranks), *(f"{k.split('__')[1]}_{v}" for k, v in changes.items())])
        return self.train(ranks, self.deck(name, tiny_deck(self.corpus, run__steps=6, **changes)))

    def test_35_stages(self):
        for family in (GPT2, LLAMA):
            want = self.run_layout(2, **family, zero__stage=0, zero__reduce="step")
            for stage in (1, 2, 3):
                with self.subTest(stage=stage):
                    self.assertEqual(want, self.run_layout(2, **family, zero__stage=stage,
                                                           zero__reduce="step"))

    def test_28_recomputation(self):
        for compute in ("f32", "bf16"):
            fixed = {**GPT2, "model__dropout": 0.2, "precision__compute": compute}
            want = self.run_layout(1, **fixed)
            for policy in ("selective", "full"):
                with self.subTest(policy=policy, compute=compute):
                    self.assertEqual(self.run_layout(1, **fixed, recompute__policy=policy), want)

    def test_10_schedules(self):
        """Gradients of weights that are put off convert the same operands again."""
        for family in (GPT2, LLAMA):
            want = self.run_layout(1, **family, model__tied_embeddings=False)
            for schedule in ("1f1b", "zero_bubble"):
                with self.subTest(schedule=schedule):
                    self.assertEqual(want, self.run_layout(
                        2, **family, model__tied_embeddings=False, parallel__pipeline=2,
                        parallel__schedule=schedule))

    def test_50_the_same_run_twice_and_elsewhere(self):
        want = self.run_layout(2, **GPT2, run__backend="debug", parallel__tensor=2)
        self.assertEqual(want, self.run_layout(2, **GPT2, run__backend="cpu", parallel__tensor=2))

    def test_45_stop_and_resume(self):
        for compute in ("f32", "bf16"):
            with self.subTest(compute=compute):
                fixed = {**LLAMA, "precision__compute": compute, "schedule__kind": "constant",
                         "zero__stage": 3}
                want = self.train(2, self.deck(f"whole_{compute}",
                                               tiny_deck(self.corpus, **fixed)))
                deck = self.deck(f"halves_{compute}",
                                 tiny_deck(self.corpus, checkpoint__every=5, **fixed))
                self.assertEqual(len(self.train(2, deck, "run.steps=5")), 5)
                self.assertEqual(self.train(2, deck), want)

    def test_it_is_another_run(self):
        """Of which the numbers are not those of bf16."""
        self.assertNotEqual(self.run_layout(1, **GPT2),
                            self.run_layout(1, **{**GPT2, "precision__matmul": "same"}))


# A number errs by at most 2^-4 of itself, in either direction; so a sum of 64 products or more, the
# fewest here, by some 2^-4 / sqrt(64) of its size, and losses, which logits are sums for, by less.
NEAR = 2 ** -7


class NearBf16(RunTest):
    def test_losses(self):
        fixed = {**GPT2, "run__steps": 60, "batch__global": 16, "batch__micro": 4,
                 "precision__compute": "bf16", "data__validation": [str(self.corpus)],
                 "evaluate__every": 60}
        losses = {}
        for matmul in ("same", "fp8"):
            deck = tiny_deck(self.corpus, **{**fixed, "precision__matmul": matmul})
            losses[matmul] = [loss for loss, _ in self.train(1, self.deck(matmul, deck)).values()]
            losses[matmul] += [e["loss"] for e in metrics.read_events(self.dir / matmul)
                               if e["event"] == "evaluate"]
        self.assertEqual(len(losses["fp8"]), 61)
        self.assertLess(losses["fp8"][-1], losses["fp8"][0] / 2, "it learns")
        for step, (got, want) in enumerate(zip(losses["fp8"], losses["same"]), 1):
            self.assertLess(abs(got - want), NEAR * want, f"step {step}")


class Refused(RunTest):
    def test_extents(self):
        """By check, for any back end, and by every rank of a job, before there is a run directory."""
        for key, ranks, changes in (
            ("batch.sequence", 1, {"batch__sequence": 12}),
            ("model.hidden", 1, {"model__hidden": 72, "model__head_dim": 16}),
            ("model.head_dim", 1, {"model__hidden": 32, "model__heads": 1, "model__head_dim": 24}),
            ("model.ffn_hidden", 2, {"model__ffn_hidden": 80, "parallel__tensor": 2}),
        ):
            with self.subTest(key):
                deck = self.deck(f"wrong_{key}", tiny_deck(self.corpus, **{**GPT2, **changes}))
                for backend in ("cpu", "cuda"):
                    job = self.run_job(0, "check", deck, "--ranks", ranks, "--set",
                                       f"run.backend={backend}")
                    self.assertEqual(job.code, 2, job.output)
                    self.assertIn(key, job.output)
                    self.assertIn("multiple of", job.output)
                job = self.run_job(ranks, "train", deck, each=True)
                self.assertEqual(job.codes, [2] * ranks, job.output)
                self.assertFalse((self.dir / f"wrong_{key}").exists())

    def test_half_precision(self):
        deck = self.deck("half", tiny_deck(self.corpus, **GPT2, precision__compute="f16"))
        job = self.run_job(1, "train", deck, each=True)
        self.assertEqual(job.codes, [2], job.output)
        self.assertIn("precision.matmul", job.output)

    def test_a_gpu_run_is_planned_without_one(self):
        deck = self.deck("planned", tiny_deck(self.corpus, **GPT2, precision__compute="bf16"))
        job = self.run_job(0, "check", deck, "--ranks", 1, "--set", "run.backend=cuda")
        self.assertEqual(job.code, 0, job.output)

    def test_fit_passes_over_micro_batches_that_may_not_be(self):
        """Of 8 tokens, an odd number of sequences is not a multiple of 16."""
        deck = self.deck("fit", tiny_deck(self.corpus, **GPT2, batch__sequence=8, batch__micro=2,
                                          batch__global=12))
        fit = lambda memory: self.run_job(0, "check", deck, "--ranks", 1, "--fit",
                                          "--device-memory", memory)
        self.assertEqual(fit("1GB").code, 0)
        none = fit("100KB")
        self.assertEqual(none.code, 4, none.output)
        kilobytes, last = 4096, ""
        while (job := fit(f"{kilobytes}KB")).code == 0:
            last, kilobytes = job.output, kilobytes * 63 // 64
        micros = re.findall(r"^batch.micro = (\d+) \(", last, re.MULTILINE)
        self.assertEqual(micros, ["12", "6", "4", "2"], last)
        self.assertEqual(len(last.splitlines()), 4, "nothing is said of others")


if __name__ == "__main__":
    unittest.main(verbosity=2)
