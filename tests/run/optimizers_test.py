"""Every optimizer on every kind of layout, in every type: the bits of one rank, wherever its state
lives, of steps that are skipped too; a run whose rank is killed goes on with them on other ranks. (AdamW
is all other tests' optimizer; the 1-bit family, whose bits are a layout's, is in onebit_test; formulas
are in oracle_test.)"""

import signal
import unittest

from layout_test import ANY_LAYOUT, LLAMA, LayoutTest, mesh
from tessera import LET_THEM_LEAVE, MPICH, PEER, metrics

RULES = {
    "adam": {"lr": 3e-3},
    "adamw_bf16": {"name": "adamw", "lr": 3e-3, "moments": "bf16"},
    "lamb": {"lr": 0.02},
    "muon": {"lr": 0.02},
    "lion": {"lr": 1e-3},
    "sgd": {"lr": 0.1, "nesterov": True},
}
STEPS = 6
SKIP = "nan rank=0 step=2 tensor=block.0.mlp.up.weight"
IN_LAYOUT_MODE = {key: value for key, value in ANY_LAYOUT.items() if key != "run__steps"}


class Optimizers(LayoutTest):
    def setUp(self):
        super().setUp()
        self.disk = self.dir / "disk"
        self.disk.mkdir()
        disks = {"offload__nvme": [str(self.disk)], "offload__block": 4096}
        everything = ("parameters", "gradients", "optimizer", "activations")
        self.layouts = [
            mesh(tensor=4),
            mesh(data=2, zero__stage=0),
            mesh(data=2, tensor=2, zero__stage=1),
            mesh(data=2, pipeline=2, zero__stage=2, parallel__schedule="zero_bubble"),
            mesh(data=4, zero__stage=3, recompute__policy="full"),
            mesh(data=2, zero__stage=1, offload__optimizer="host", zero__tiles=2),
            mesh(data=2, zero__stage=2, offload__optimizer="nvme", offload__gradients="nvme", **disks),
            mesh(data=2, tensor=2, zero__stage=3, **{f"offload__{x}": "nvme" for x in everything}, **disks),
        ]

    def fixed(self, rule, **changes):
        """A rate that does not depend on when a run ends."""
        rule = {"name": rule, **RULES[rule]}
        return {**LLAMA, "schedule__kind": "constant", "run__steps": STEPS,
                **{f"optimizer__{key}": value for key, value in rule.items()}, **changes}

    def skipped(self, numbers):
        self.assertEqual(len(numbers), STEPS)
        return [step for step, (_, norm) in numbers.items() if norm is None]

    def test_the_bits_of_one_rank(self):
        """Each rule on each layout, in f32 or in bf16."""
        for i, rule in enumerate(RULES):
            for j, compute in enumerate(("f32", "bf16")):
                chosen = [layout for k, layout in enumerate(self.layouts) if (i + j + k) % 2 == 0]
                with self.subTest(rule=rule, compute=compute):
                    numbers = self.assert_same(self.fixed(
                        rule, precision__compute=compute, fault__inject=[SKIP], **IN_LAYOUT_MODE), chosen)
                    self.assertEqual(self.skipped(numbers), [2])
        self.assertEqual(list(self.disk.iterdir()), [])

    def test_f16_whose_loss_scale_falls_and_rises(self):
        """Stages on two ranks, and another place of state."""
        layouts = [{"zero__stage": 0}, {"zero__stage": 1}, {"zero__stage": 3},
                   {"zero__stage": 2, "offload__optimizer": "host"}]
        for rule in RULES:
            fixed = self.fixed(rule, zero__reduce="step", precision__compute="f16", precision__loss_scale_power=24,
                               precision__loss_scale_window=2, precision__loss_scale_hysteresis=1)
            with self.subTest(rule=rule):
                runs = [self.run_on(mesh(data=2, **layout), **fixed) for layout in layouts]
                self.assertEqual(runs, len(runs) * runs[:1])
                steps = self.steps_of(self.deck_on(mesh(data=2, **layouts[0]), **fixed).stem)
                scales = [step["loss_scale"] for step in steps]
                self.assertLess(min(scales), scales[0])
                self.assertGreater(scales[-1], min(scales))

    def test_a_killed_run_goes_on_elsewhere(self):
        for rule in RULES:
            fixed = self.fixed(rule, checkpoint__every=2, checkpoint__async=False, **IN_LAYOUT_MODE)
            with self.subTest(rule=rule):
                want = self.run_on(mesh(), fault__inject=[SKIP], **fixed)
                deck = self.deck_on(mesh(data=2, zero__stage=3),
                                    fault__inject=[SKIP, "kill rank=1 step=4"], **fixed)
                job = self.run_job(2, "train", deck, each=True, env=LET_THEM_LEAVE)
                left = [PEER, 128 + signal.SIGABRT] if MPICH else [PEER]  # UCX may abort it
                self.assert_codes(job.codes, [left, [128 + signal.SIGKILL]], job.output)
                if not MPICH:  # whose launcher, or UCX, may end the others before they can say so
                    self.assertIn("rank 1 is lost", job.output)
                self.assertEqual(self.train(4, deck, "parallel.tensor=2", "zero.stage=1"), want)
                resumed = [e["step"] for e in metrics.read_events(self.dir / deck.stem)
                           if e["event"] == "resume"]
                self.assertEqual(resumed, [3])  # what step 2 leaves undone is saved after step 3


if __name__ == "__main__":
    unittest.main(verbosity=2)
