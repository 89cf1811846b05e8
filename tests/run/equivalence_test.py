"""What may not change the answer does not: ZeRO stages, recomputation and the moment of reduction
change no bit on the same ranks; other numbers of ranks and other cuts of the batch change the order
of sums only (traps 6, 10, 11, 28, 35, 36)."""

import re
import unittest

from tessera import RunTest, metrics, tiny_deck, write_tokens

# Of losses and norms over 12 steps of a model whose largest sum has 128 x 24 terms: single
# precision's 6e-8 a term in random order, carried through 12 updates. A wrong scale or a lost
# gradient is off by 1e-2 and more.
TOLERANCE = 1e-5
# Of gradients in blocks: on each of two hops rounding is noise of 1/sqrt(12) of a step, a step 1/127 or
# 1/7 of a block's largest element, and that about 4 times the block's root mean square (3.8 of trained
# gradients, by tools/quantization_error: 0.87 % = 3.8 / 127 / sqrt(12)). Parameters in blocks are off by
# as much again.
INT8, INT4 = (4 * (2 / 12) ** 0.5 / steps for steps in (127, 7))


class Equivalence(RunTest):
    def run_layout(self, ranks, **changes):
        """The numbers of one layout, named after what makes it different."""
        name = "_".join([str(ranks), *(f"{k.split('__')[1]}_{v}" for k, v in changes.items())])
        return self.train(ranks, self.deck(name, tiny_deck(self.corpus, **changes)))

    def test_35_stages_give_the_same_bits(self):
        for ranks in (2, 4):
            for reduce in ("step", "micro"):
                layouts = {s: self.run_layout(ranks, zero__stage=s, zero__reduce=reduce)
                           for s in range(4)}
                for stage in (1, 2, 3):
                    with self.subTest(ranks=ranks, stage=stage, reduce=reduce):
                        self.assertEqual(layouts[stage], layouts[0])

    def test_35_stages_of_lamb(self):
        lamb = {"optimizer__name": "lamb", "optimizer__lr": 0.02, "zero__reduce": "step"}
        layouts = [self.run_layout(3, zero__stage=s, batch__global=24, **lamb) for s in range(4)]
        self.assertNotEqual(layouts[0], self.run_layout(3, batch__global=24, **{
            **lamb, "optimizer__trust": [1.0, 1.0]}))
        for stage in (1, 2, 3):
            self.assertEqual(layouts[stage], layouts[0], stage)

    def test_35_stages_of_muon(self):
        muon = {"optimizer__name": "muon", "optimizer__lr": 0.02, "zero__reduce": "step"}
        layouts = [self.run_layout(3, zero__stage=s, batch__global=24, **muon) for s in range(4)]
        for stage in (1, 2, 3):
            self.assertEqual(layouts[stage], layouts[0], stage)

    def test_36_every_number_of_ranks(self):
        want = self.run_layout(1, batch__global=24)
        for ranks in (2, 3, 4, 6, 8):
            for stage in (0, 3):
                with self.subTest(ranks=ranks, stage=stage):
                    self.assert_close(self.run_layout(ranks, batch__global=24, zero__stage=stage),
                                      want, TOLERANCE, "another number of ranks")

    def test_11_accumulation_is_one_large_batch(self):
        want = self.run_layout(1, batch__micro=8)
        for ranks, micro in ((1, 1), (1, 2), (2, 1), (2, 4), (4, 2)):
            for reduce in ("step", "micro"):
                with self.subTest(ranks=ranks, micro=micro, reduce=reduce):
                    got = self.run_layout(ranks, batch__micro=micro, zero__stage=2,
                                          zero__reduce=reduce)
                    self.assert_close(got, want, TOLERANCE, "another cut of the batch")

    def test_activations_on_the_host_change_no_bit(self):
        for compute, stage, schedule in (("f32", 0, "1f1b"), ("bf16", 3, "1f1b"),
                                         ("bf16", 1, "zero_bubble"), ("f32", 0, "interleaved")):
            fixed = {"model__dropout": 0.2, "model__layers": 4, "precision__compute": compute,
                     "zero__stage": stage, "parallel__schedule": schedule,
                     "parallel__pipeline": 1 if schedule == "1f1b" else 2,
                     "parallel__virtual_stages": 2 if schedule == "interleaved" else 1}
            want = self.run_layout(2, **fixed)
            for policy in ("none", "full"):
                with self.subTest(compute=compute, policy=policy, schedule=schedule):
                    got = self.run_layout(2, offload__activations="host", offload__ahead=0,
                                          recompute__policy=policy, **fixed)
                    self.assertEqual(got, want)

    def test_28_recomputation_changes_no_bit(self):
        """Dropout masks are drawn again exactly."""
        for compute in ("f32", "bf16"):
            fixed = {"model__dropout": 0.2, "precision__compute": compute, "zero__stage": 3}
            want = self.run_layout(2, **fixed)
            for policy in ("selective", "full"):
                with self.subTest(policy=policy, compute=compute):
                    self.assertEqual(self.run_layout(2, recompute__policy=policy, **fixed), want)

    def test_27_dropout_masks_do_not_depend_on_the_layout(self):
        want = self.run_layout(1, model__dropout=0.2)
        for ranks, micro in ((2, 1), (4, 2)):
            with self.subTest(ranks=ranks, micro=micro):
                got = self.run_layout(ranks, model__dropout=0.2, batch__micro=micro)
                self.assert_close(got, want, TOLERANCE, "dropout on another layout")

    def test_50_the_same_run_twice(self):
        deck = lambda: tiny_deck(self.corpus, zero__stage=3)
        self.assertEqual(self.train(2, self.deck("one", deck())),
                         self.train(2, self.deck("two", deck())))

    def test_25_another_seed_is_another_run(self):
        self.assertNotEqual(self.run_layout(1), self.run_layout(1, run__seed=4))

    def test_memory_that_the_host_cannot_reach_changes_no_bit(self):
        for changes in ({}, {"parallel__tensor": 2}, {"zero__stage": 3, "parallel__pipeline": 2}):
            ranks = 4 if changes else 1
            with self.subTest(changes):
                self.assertEqual(self.run_layout(ranks, run__backend="cpu", **changes),
                                 self.run_layout(ranks, run__backend="debug", **changes))

    def test_traffic_in_blocks(self):
        """ZeRO++: the same bits at every stage; near what is not rounded."""
        want = self.run_layout(4)
        for kind, tolerance in (("int8", INT8), ("int4", INT4)):
            for per_node in (1, 2, 4):
                got = [self.run_layout(4, zero__stage=stage, zero__reduce="step",
                                       parallel__ranks_per_node=per_node,
                                       **{"zero.quantize__gradients": kind}) for stage in range(4)]
                with self.subTest(gradients=kind, per_node=per_node):
                    self.assertEqual(got, 4 * got[:1])
                    self.assertNotEqual(got[0], want)
                    self.assert_close(got[0], want, tolerance, "gradients in blocks")
        both = self.run_layout(4, zero__stage=3, **{"zero.quantize__gradients": "int8",
                                                    "zero.quantize__weights": "int8",
                                                    "zero.quantize__block": 64})
        self.assert_close(both, want, 2 * INT8, "parameters and gradients in blocks")

    def test_16_evaluation_sees_parameters_as_they_are(self):
        """Whatever blocks they travel in while training: the same loss on every layout."""
        deck = self.deck("blocks", tiny_deck(
            self.corpus, run__steps=4, zero__stage=3, checkpoint__every=4,
            data__validation=[str(self.corpus)], **{"zero.quantize__weights": "int8"}))
        self.train(2, deck)
        losses = []
        for ranks in (1, 2, 4):
            job = self.run_job(ranks, "evaluate", deck)
            self.assertEqual(job.code, 0, job.output)
            losses.append(float(re.search(r"loss ([0-9.]+)", job.output)[1]))
        for loss in losses[1:]:
            self.assertLessEqual(abs(loss - losses[0]) / losses[0], TOLERANCE)

    def test_16_evaluation_is_over_the_first_batches(self):
        """What follows them in the file, or does not, changes nothing."""
        losses = {}
        for name, sequences, batches in (("one", 8, 9), ("two", 16, 9), ("first", 16, 1)):
            write_tokens(self.dir / "held_out", 16 * sequences + 1, seed=5)
            deck = self.deck(name, tiny_deck(
                self.corpus, run__steps=1, data__validation=[str(self.dir / "held_out")],
                evaluate__every=1, evaluate__batches=batches))
            self.train(2, deck)
            event = metrics.last_steps(metrics.read_events(self.dir / name), "evaluate")[1]
            self.assertEqual(event["sequences"], 8 if batches == 1 else sequences)
            losses[name] = event["loss"]
        self.assertEqual(losses["first"], losses["one"])
        self.assertNotEqual(losses["first"], losses["two"])

    def test_44_replicas_stay_equal_beside_blocks(self):
        """A tied matrix at both ends of a pipeline, on two data ranks each, compared every step."""
        want = self.run_layout(4, parallel__pipeline=2, zero__stage=3)
        name = "blocks"
        got = self.train(4, self.deck(name, tiny_deck(
            self.corpus, parallel__pipeline=2, zero__stage=3, guard__check_replicas=1,
            **{"zero.quantize__gradients": "int8", "zero.quantize__weights": "int8"})))
        self.assert_close(got, want, 2 * INT8, "blocks beside a pipeline")
        compared = [e["elements"] for e in metrics.read_events(self.dir / name)
                    if e["event"] == "replicas"]
        tied = 128 * 24  # the matrix, rows padded
        self.assertEqual(compared, 12 * [3 * tied], "weights and both moments, in every step")

    def test_families(self):
        llama = {"model__family": "llama", "model__heads": 4, "model__kv_heads": 2,
                 "model__hidden": 32, "model__ffn_hidden": 44}
        want = self.run_layout(1, **llama)
        self.assertNotEqual(want, self.run_layout(1))
        for ranks, stage in ((2, 1), (2, 3), (4, 2)):
            with self.subTest(ranks=ranks, stage=stage):
                got = self.run_layout(ranks, zero__stage=stage, **llama)
                self.assert_close(got, want, TOLERANCE, "llama on another layout")


if __name__ == "__main__":
    unittest.main(verbosity=2)
