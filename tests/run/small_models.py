"""What tests of small models share that PyTorch has trained too (tests/data/torch_runs.py): their decks, and how
losses and norms are compared."""

import json
import sys

from tessera import SOURCE, RunTest, change, some_of

sys.path.insert(0, str(SOURCE / "tests" / "data"))

# On which a model of any kind trains.
LAYOUTS = ((1, {"batch__micro": 8}), (2, {"zero__stage": 3}),
           (2, {"parallel__tensor": 2, "zero__stage": 1, "recompute__policy": "full"}),
           (2, {"parallel__pipeline": 2, "zero__stage": 2, "recompute__policy": "selective"}),
           (4, {"parallel__tensor": 2, "parallel__sequence": False, "zero__stage": 2,
                "offload__optimizer": "host"}),
           (4, {"parallel__pipeline": 2, "parallel__schedule": "zero_bubble", "batch__micro": 1,
                "zero__stage": 3, "zero__reduce": "step", "offload__activations": "host"}),
           (2, {"zero__stage": 3, "offload__parameters": "host", "offload__optimizer": "host",
                "zero__tiles": 2, "batch__micro": 1}))


class SmallModels(RunTest):
    models = None  # the module that makes their decks
    oracle = None  # its file in tests/data/oracle

    def deck_of(self, run, model, **changes):
        return self.deck(run, change(self.models.deck(model, self.corpus), **changes))

    def truth(self):
        """By model and type: what PyTorch knows of each step."""
        return json.loads((SOURCE / "tests" / "data" / "oracle" / self.oracle).read_text())

    def compare(self, model, layouts, like=None):
        """Trains a model on layouts, and compares each step with PyTorch's. `like`: which models are as
        near to fp64 as this one, if not all are."""
        want = self.truth()
        # As in oracle_test: 8 times as far from fp64 as PyTorch's own fp32 is; of all models, which
        # are of one size, the farthest, for how far one of them is in ten steps is chance.
        bound = 8 * max(abs(a[key] - b[key]) for of in (want[m] for m in like or want)
                        for a, b in zip(of["float32"], of["float64"]) for key in ("loss", "grad_norm"))
        for number, (ranks, layout) in enumerate(some_of(layouts)):
            with self.subTest(ranks=ranks, **layout):
                name = f"{model}_{number}"
                self.train(ranks, self.deck_of(name, model, **layout))
                for step, at in zip(self.steps_of(name), want[model]["float64"], strict=True):
                    for key in ("loss", "grad_norm"):
                        self.assertLess(abs(step[key] - at[key]), bound)
                    self.compare_others(step, at)

    def compare_others(self, step, at):
        """What else is known of a step."""
