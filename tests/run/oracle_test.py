"""Models train as PyTorch trains them: losses and gradient norms against fp64, of GPT-2 and Llama over
ZeRO stages and numbers of ranks, of Gemma 2 and 3, OLMo 2 and GPT-NeoX on three layouts (traps 10, 15,
35, 36, 42)."""

import json
import shutil
import unittest

import h5py
import numpy as np

from tessera import SOURCE, RunTest, change

ORACLE = SOURCE / "tests" / "data" / "oracle"
# (ranks, stage, when gradients are reduced, sequences a micro-batch); 3 ranks take 12 sequences
LAYOUTS = ((1, 0, "step", 1), (1, 0, "step", 4), (2, 0, "step", 2), (2, 1, "step", 1),
           (2, 2, "micro", 2), (2, 2, "step", 1), (2, 3, "micro", 1), (3, 1, "step", 2),
           (3, 3, "micro", 2), (4, 3, "step", 1))
# Of the other families: (ranks, changes of the deck).
FEW_LAYOUTS = ((1, {"batch__micro": 4}), (2, {"zero__stage": 3, "zero__reduce": "micro"}),
               (4, {"zero__stage": 1, "parallel__tensor": 2, "parallel__pipeline": 2}))
# What config.json says of a family's own features, and what else it might say.
FEATURES = {
    "gemma2": ({"sliding_window": 6}, {"attn_logit_softcapping": None},
               {"final_logit_softcapping": None}, {"query_pre_attn_scalar": 8}),
    "gemma3": ({"sliding_window": 7}, {"query_pre_attn_scalar": 8},
               {"layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
               {"rope_parameters": {
                   "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
                   "full_attention": {"rope_type": "default", "rope_theta": 5000.0}}},
               {"rope_parameters": {
                   "sliding_attention": {"rope_type": "default", "rope_theta": 60.0},
                   "full_attention": {"rope_type": "linear", "factor": 2.0,
                                      "rope_theta": 5000.0}}}),
    "olmo2": ({"rms_norm_eps": 1e-2}, {"rope_parameters": {"rope_type": "default",
                                                           "rope_theta": 9000.0}}),
    "gpt_neox": ({"use_parallel_residual": False},
                 {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                      "partial_rotary_factor": 0.25}}),
}


def stray_of(expected):
    """How far PyTorch's own fp32 is from fp64, at the worst."""
    return max(abs(a - b) for x, y in zip(expected["float32"], expected["float64"])
               for a, b in zip(x, y))


def oracle_deck(family, truth, batch, micro, stage, reduce):
    recipe = truth["recipe"]
    return {
        "run": {"steps": truth["steps"], "backend": "cpu"},
        "model": {"init_from": str(ORACLE / family)},
        "data": {"train": [str(ORACLE / family / "tokens")], "shuffle": False},
        "batch": {"sequence": truth["sequence"], "micro": micro, "global": batch},
        "optimizer": {k: recipe[k] for k in ("lr", "betas", "eps", "weight_decay", "clip_norm")},
        "schedule": {"kind": "constant", "warmup_steps": recipe["warmup_steps"]},
        "zero": {"stage": stage, "reduce": reduce},
    }


def state_of(checkpoint):
    """(state, tensor) -> numbers of a checkpoint, in fp64."""
    with h5py.File(checkpoint / "model.h5") as file:
        return {(state, name): np.asarray(data, np.float64)
                for state in file.keys() & {"master", "lamb_m", "lamb_v", "muon_m", "muon_v", "lion_m", "sgd_m",
                                         "ema"}
                for name, data in file[state].items()}


def newton_schulz(x):
    """Five iterations of Jordan et al. (2024)."""
    x = x / max(np.linalg.norm(x), 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


class Oracle(RunTest):
    def check(self, family):
        truth = json.loads((ORACLE / family / "losses.json").read_text())
        for ranks, stage, reduce, micro in LAYOUTS:
            batch = 12 if ranks == 3 else 8
            expected = truth["batches"][str(batch)]
            want = dict(enumerate(map(tuple, expected["float64"]), 1))
            # Tessera may stray from fp64 as far as PyTorch's own fp32 does, with room for other
            # orders of summation: each rounding error is below its share, their sum is not fixed.
            stray = stray_of(expected)
            name = f"{family}_{ranks}_{stage}_{reduce}_{micro}"
            with self.subTest(name):
                got = self.train(ranks, self.deck(name, oracle_deck(
                    family, truth, batch, micro, stage, reduce)))
                self.assertEqual(list(got), list(want))
                worst = max(abs(a - b) for s in want for a, b in zip(got[s], want[s]))
                self.assertLess(worst, 8 * stray)

    def test_gpt2(self):
        self.check("gpt2")

    def test_llama(self):
        self.check("llama")

    def test_families(self):
        for family in FEATURES:
            truth = json.loads((ORACLE / family / "losses.json").read_text())
            expected = truth["batches"]["8"]
            want = dict(enumerate(map(tuple, expected["float64"]), 1))
            for number, (ranks, layout) in enumerate(FEW_LAYOUTS):
                if family == "olmo2" and "parallel__tensor" in layout:
                    layout = {**layout, "parallel__tensor": 1}  # its norms need all heads at once
                with self.subTest(family=family, ranks=ranks, **layout):
                    deck = change(oracle_deck(family, truth, 8, 1, 0, "step"), **layout)
                    got = self.train(ranks, self.deck(f"{family}_{number}", deck))
                    self.assertEqual(list(got), list(want))
                    worst = max(abs(a - b) for s in want for a, b in zip(got[s], want[s]))
                    self.assertLess(worst, 8 * stray_of(expected))

    def test_what_is_special_of_a_family_is_seen(self):
        """With any other value of its features a model has another loss, far beyond the bound."""
        for family, edits in FEATURES.items():
            truth = json.loads((ORACLE / family / "losses.json").read_text())
            expected = truth["batches"]["8"]
            for number, edit in enumerate(edits):
                with self.subTest(family=family, **edit):
                    model = self.dir / f"{family}_{number}_model"
                    shutil.copytree(ORACLE / family, model)
                    config = json.loads((model / "config.json").read_text())
                    (model / "config.json").write_text(json.dumps({**config, **edit}))
                    deck = oracle_deck(family, truth, 8, 4, 0, "step")
                    deck["model"]["init_from"], deck["run"]["steps"] = str(model), 1
                    loss, _ = self.train(1, self.deck(f"{family}_{number}", deck))[1]
                    self.assertGreater(abs(loss - expected["float64"][0][0]),
                                       100 * stray_of(expected))

    def test_lamb(self):
        """Each step from the run's own state before it, by the formula: one ratio a tensor, whose
        parts two tensor ranks and two data ranks have. The averaged weights are what is asked for."""
        b1, b2, eta, decay, lr, trust = 0.9, 0.98, 1e-6, 0.05, 0.01, (0.02, 1.5)
        truth = json.loads((ORACLE / "llama" / "losses.json").read_text())
        deck = oracle_deck("llama", truth, 8, 1, 1, "step")
        deck["run"]["steps"] = 5
        deck["optimizer"] = {"name": "lamb", "lr": lr, "betas": [b1, b2], "eps": eta,
                             "weight_decay": decay, "trust": list(trust), "ema": 0.75}
        deck["schedule"] = {"kind": "constant"}
        deck["parallel"] = {"tensor": 2, "sequence": False}
        deck["checkpoint"] = {"every": 1, "keep": 9}
        self.train(4, self.deck("lamb", deck))
        states = [state_of(self.dir / "lamb" / "checkpoints" / f"step_{step:08}")
                  for step in range(1, 6)]
        ratios = set()
        for before, after in zip(states, states[1:]):
            for name in (name for state, name in before if state == "master"):
                x, m, v = (before[state, name] for state in ("master", "lamb_m", "lamb_v"))
                average = 0.75 * before["ema", name] + 0.25 * after["master", name]
                np.testing.assert_allclose(after["ema", name], average, rtol=0,
                                           atol=2e-7 * max(1, np.abs(x).max()))
                new_m, new_v = after["lamb_m", name], after["lamb_v", name]
                g = (new_m - b1 * m) / (1 - b1)
                np.testing.assert_allclose(new_v, b2 * v + (1 - b2) * g * g, rtol=1e-4,
                                           atol=1e-6 * new_v.max())
                u = new_m / np.sqrt(new_v + eta) + (decay * x if x.ndim > 1 else 0)
                c = np.clip(np.linalg.norm(x) / np.linalg.norm(u), *trust)
                ratios.add(float(c))
                np.testing.assert_allclose(after["master", name], x - lr * c * u, rtol=0,
                                           atol=2e-7 * max(1, np.abs(x).max()))
        self.assertIn(trust[1], ratios, "some are clipped")
        self.assertGreater(len(ratios), 40, "and most are not")
        self.check_averaged(states[-1], deck)

    def test_muon(self):
        """Each step from the run's own state before it: momentum, an iteration of Newton-Schulz over
        whole matrices, whose parts four ranks have, or over those of each head; all else by AdamW."""
        lr, momentum, decay, b1, b2, eps = 0.01, 0.9, 0.05, 0.9, 0.98, 1e-8
        truth = json.loads((ORACLE / "llama" / "losses.json").read_text())
        for attention, tensor, stage in (("projections", 2, 1), ("heads", 1, 3)):
            deck = oracle_deck("llama", truth, 8, 1, stage, "step")
            deck["run"]["steps"] = 4
            deck["optimizer"] = {"name": "muon", "lr": lr, "momentum": momentum, "eps": eps,
                                 "betas": [b1, b2], "weight_decay": decay, "attention": attention}
            deck["schedule"] = {"kind": "constant"}
            deck["parallel"] = {"tensor": tensor, "sequence": False}
            deck["checkpoint"] = {"every": 1, "keep": 9}
            self.train(4, self.deck(attention, deck))
            states = [state_of(self.dir / attention / "checkpoints" / f"step_{step:08}")
                      for step in range(1, 5)]
            worst, seen = 0, set()
            for t, (before, after) in enumerate(zip(states, states[1:]), 2):
                for name in (name for state, name in before if state == "master"):
                    x, m, new_m = before["master", name], before["muon_m", name], after["muon_m", name]
                    got, keep = after["master", name], 1 - lr * decay * (x.ndim > 1)
                    if x.ndim == 1 or not name.startswith("block"):
                        v = after["muon_v", name]
                        step = new_m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + eps)
                        np.testing.assert_allclose(got, keep * x - lr * step, rtol=0,
                                                   atol=4e-7 * max(1, np.abs(x).max()))
                        continue
                    self.assertNotIn(("muon_v", name), after, "no second moment of matrices")
                    g = (new_m - momentum * m) / (1 - momentum)
                    u = g + momentum * (new_m - g)
                    heads = attention == "heads" and name.split(".")[-2] in "qkv"
                    rows = 8 if heads else x.shape[0]  # of the model's config
                    scale = 0.2 * np.sqrt(max(rows, x.shape[1]))
                    made = np.concatenate([newton_schulz(part) for part in
                                           np.split(u, x.shape[0] // rows)])
                    error = np.abs(got - keep * x + lr * scale * made).max() / (lr * scale)
                    worst = max(worst, error)
                    seen.add((x.shape[0] > x.shape[1], heads))
            self.assertEqual(len(seen), 3 if attention == "heads" else 2)
            # The polynomial grows small singular values by 3.4445 an iteration, and with them what
            # rounding left there: 3.4445^5 = 485 times some 2^-24 of a matrix whose norm is 1; the
            # gradient that is made of two moments here has lost 1 / (1 - momentum) of its digits.
            self.assertLess(worst, 485 * 2**-24 * 10)

    def states_by(self, run, steps, **optimizer):
        """Of the steps of a run on two tensor and two data ranks, from the first on."""
        truth = json.loads((ORACLE / "llama" / "losses.json").read_text())
        deck = oracle_deck("llama", truth, 8, 1, 2, "step")
        deck["run"]["steps"] = steps
        deck["optimizer"] = optimizer
        deck["schedule"] = {"kind": "constant"}
        deck["parallel"] = {"tensor": 2, "sequence": False}
        deck["checkpoint"] = {"every": 1, "keep": 9}
        self.train(4, self.deck(run, deck))
        return [state_of(self.dir / run / "checkpoints" / f"step_{step:08}")
                for step in range(1, steps + 1)]

    def test_sgd(self):
        """Each step from the run's own state before it, as torch.optim.SGD has it: the decay of matrices
        goes through the buffer."""
        lr, momentum, decay = 0.05, 0.9, 0.05
        plain, decayed = ({"name": "sgd", "lr": lr, "momentum": momentum, "weight_decay": d, "clip_norm": 0}
                          for d in (0.0, decay))
        for nesterov in (False, True):
            states = self.states_by(f"sgd_{nesterov}", 4, **decayed, nesterov=nesterov)
            for before, after in zip(states, states[1:]):
                for name in (name for state, name in before if state == "master"):
                    x, m, new_m = before["master", name], before["sgd_m", name], after["sgd_m", name]
                    d = new_m - momentum * m + momentum * new_m if nesterov else new_m
                    np.testing.assert_allclose(after["master", name], x - lr * d, rtol=0,
                                               atol=2e-7 * max(1, np.abs(x).max()))
        # The buffer after the first step is the gradient, of the same weights, and the decay's part.
        (first,) = self.states_by("plain", 1, **plain)
        (with_decay,) = self.states_by("decayed", 1, **decayed)
        for name in (name for state, name in first if state == "master"):
            g = first["sgd_m", name]
            x = first["master", name] + lr * g
            np.testing.assert_allclose(with_decay["sgd_m", name], g + (decay * x if x.ndim > 1 else 0),
                                       rtol=0, atol=2e-7 * max(1, np.abs(x).max()))

    def test_lion(self):
        """Each step from the run's own state before it, by the formula of Chen et al. (2023): the sign of
        one average moves the weights, another is kept."""
        b1, b2, lr, decay = 0.9, 0.97, 1e-3, 0.05
        states = self.states_by("lion", 5, name="lion", lr=lr, betas=[b1, b2], weight_decay=decay)
        moved = all_ = 0
        for before, after in zip(states, states[1:]):
            for name in (name for state, name in before if state == "master"):
                x, m = before["master", name], before["lion_m", name]
                g = (after["lion_m", name] - b2 * m) / (1 - b2)
                c = b1 * m + (1 - b1) * g
                still = x - lr * decay * x if x.ndim > 1 else x
                off = (still - after["master", name]) / lr
                # Of what is next to nothing the sign is a matter of rounding; all else moves by lr.
                sure = np.abs(c) > 1e-4 * np.abs(c).max()
                tolerance = 2e-7 * max(1, np.abs(x).max()) / lr
                np.testing.assert_allclose(off[sure], np.sign(c[sure]), rtol=0, atol=tolerance)
                self.assertLessEqual(np.abs(off).max(), 1 + tolerance)
                moved, all_ = moved + sure.sum(), all_ + sure.size
        self.assertGreater(moved, 0.8 * all_, "all but rows of tokens that no sample has")

    def check_averaged(self, state, deck):
        """What export and evaluate take with --ema, and merge makes of several checkpoints."""
        job = self.run_job(0, "export", self.dir / "lamb", "--to", self.dir / "hf", "--ema")
        self.assertEqual(job.code, 0, job.output)
        job = self.run_job(0, "import", self.dir / "hf", "--to", self.dir / "averaged")
        self.assertEqual(job.code, 0, job.output)
        with h5py.File(self.dir / "averaged" / "checkpoints" / "step_00000000" / "model.h5") as file:
            for name, data in file["master"].items():
                np.testing.assert_array_equal(np.float64(data), state["ema", name])
        steps = [self.dir / "lamb" / "checkpoints" / f"step_{step:08}" for step in (3, 4, 5)]
        job = self.run_job(0, "merge", *steps, "--to", self.dir / "merged")
        self.assertEqual(job.code, 0, job.output)
        three = [state_of(step) for step in steps]
        with h5py.File(self.dir / "merged" / "checkpoints" / "step_00000000" / "model.h5") as file:
            for name, data in file["master"].items():
                mean = sum(of["master", name] for of in three) / 3
                np.testing.assert_array_equal(np.float32(data), np.float32(mean))
        job = self.run_job(0, "merge", steps[0], ORACLE / "gpt2", "--to", self.dir / "no")
        self.assertEqual(job.code, 3, job.output)
        self.assertRegex(job.output, r"are different models:(\n.*)*model.family = \"llama\" and")
        self.assertFalse((self.dir / "no").exists(), "it leaves nothing behind")
        data = ("--set", f'data.validation=["{ORACLE / "llama" / "tokens"}"]')
        losses = []
        for model, *options in (("averaged",), ("lamb", "--ema"), ("lamb",)):
            job = self.run_job(2, "evaluate", self.dir / model, *options, *data, "--set",
                               "parallel.tensor=1", "--set", "batch.sequence=17", "--set",
                               "batch.global=8")
            self.assertEqual(job.code, 0, job.output)
            losses.append(job.output.split("loss ")[1].split()[0])
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], losses[2])
        # Of a mean, and of a run that has stopped keeping them, whose newest step is meant.
        merged = self.dir / "merged"
        newest = merged / "checkpoints" / "step_00000000"
        self.assertIn("# ema is unset", json.loads((newest / "manifest.json").read_text())
                      ["header"]["deck"])
        del deck["optimizer"]["ema"]
        deck["run"]["steps"] = 6
        path = self.deck("lamb", deck)
        self.train(4, path)
        last = self.dir / "lamb" / "checkpoints" / "step_00000006"
        for refused, of in ((("export", merged, "--to", self.dir / "no"), newest),
                            (("merge", merged, merged, "--to", self.dir / "no"), newest),
                            (("evaluate", self.dir / "averaged", *data),
                             self.dir / "averaged" / "checkpoints" / "step_00000000"),
                            (("evaluate", path, "--set", "parallel.tensor=1", *data), last)):
            job = self.run_job(0, refused[0], "--ema", *refused[1:])
            self.assertEqual(job.code, 3, job.output)
            self.assertIn(f"{of} has no averaged weights", job.output)
            self.assertNotIn("cannot be used", job.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
