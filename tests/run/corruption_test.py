"""Bits that flip in one rank's copy of what several ranks hold: found, and the rank named."""

import unittest

from tessera import PEER, RunTest, metrics, tiny_deck


class Corruption(RunTest):
    def test_a_flipped_bit_in_one_copy_is_found_and_its_rank_named(self):
        """Three copies name the rank; two only that they differ. Checkpoints since the last
        comparison are set aside, and a restart gives the numbers of a run without the fault."""
        steps = {"run__steps": 12, "checkpoint__every": 1, "checkpoint__keep": 0,
                 "schedule__kind": "constant", "batch__global": 6}
        for ranks, names in ((2, "differs between ranks 0 and 1"), (3, "differs on rank 1")):
            with self.subTest(ranks=ranks):
                want = self.train(ranks, self.deck(f"whole{ranks}", tiny_deck(
                    self.corpus, **steps)))
                deck = self.deck(f"flip{ranks}", tiny_deck(
                    self.corpus, guard__check_replicas=4,
                    fault__inject=["flip rank=1 step=6 tensor=block.1.attention.q.weight"], **steps))
                job = self.run_job(ranks, "train", deck, each=True)
                self.assertEqual(set(job.codes), {PEER}, job.output)
                self.assertIn(f"block.1 {names}", job.output)
                saved = sorted(p.name for p in (self.dir / f"flip{ranks}" / "checkpoints").iterdir())
                self.assertEqual([n for n in saved if not n.endswith(("abandoned", ".tmp"))],
                                 [f"step_0000000{s}" for s in (1, 2, 3, 4)])
                job = self.run_job(ranks, "train", deck)
                self.assertEqual(job.code, 0, job.output)
                last = metrics.last_steps(metrics.read_events(self.dir / f"flip{ranks}"))
                self.assertEqual({k: (e["loss"], e["grad_norm"]) for k, e in last.items()}, want)

    def test_a_flipped_bit_in_any_unit_is_found(self):
        for unit, tensor in (("vocabulary", "vocabulary.weight"), ("positions", "positions.weight"),
                             ("block.0", "block.0.norm1.bias"), ("block.2", "block.2.mlp.up.weight"),
                             ("final_norm", "final_norm.weight")):
            with self.subTest(unit=unit):
                deck = self.deck(unit, tiny_deck(
                    self.corpus, run__steps=3, zero__stage=0, guard__check_replicas=1,
                    fault__inject=[f"flip rank=1 step=2 tensor={tensor}"]))
                job = self.run_job(2, "train", deck, each=True)
                self.assertEqual(set(job.codes), {PEER}, job.output)
                self.assertIn(f"{unit} differs between ranks 0 and 1", job.output)
    def test_a_flipped_bit_of_a_frozen_matrix_is_found(self):
        deck = self.deck("frozen", tiny_deck(
            self.corpus, run__steps=3, zero__stage=1, guard__check_replicas=1, adapter__kind="lora",
            adapter__rank=2, adapter__targets=["*.attention.q.weight"],
            fault__inject=["flip rank=1 step=2 tensor=block.1.mlp.up.weight"]))
        job = self.run_job(2, "train", deck, each=True)
        self.assertEqual(set(job.codes), {PEER}, job.output)
        self.assertIn("block.1 differs between ranks 0 and 1", job.output)

    def compared(self, name):
        """How many elements each comparison of a run compared."""
        return [e["elements"] for e in metrics.read_events(self.dir / name)
                if e["event"] == "replicas"]

    def test_healthy_copies_are_equal_at_every_stage(self):
        """Where nothing has a copy the start says so, and nothing is compared."""
        tied = 128 * 24  # the vocabulary's matrix, rows padded
        for ranks, stage, changes, elements in (
                (3, 0, {}, None), (3, 1, {}, None), (3, 2, {}, None), (3, 3, {}, 0),
                (2, 0, {}, None), (2, 2, {}, 0), (1, 0, {}, 0),
                (2, 2, {"adapter__kind": "lora", "adapter__rank": 2,
                        "adapter__targets": ["*.attention.q.weight"]}, None),
                (4, 1, {"parallel__pipeline": 2}, 3 * tied),
                (4, 3, {"parallel__pipeline": 2}, 3 * tied),
                (4, 3, {"parallel__pipeline": 2, "model__tied_embeddings": False}, 0),
                (4, 3, {"parallel__tensor": 2}, None)):
            with self.subTest(ranks=ranks, stage=stage, **changes):
                name = f"equal_{ranks}_{stage}_{len(changes)}_{'_'.join(changes)}"
                deck = self.deck(name, tiny_deck(self.corpus, zero__stage=stage, run__steps=3,
                                                 guard__check_replicas=1, batch__global=12,
                                                 **changes))
                job = self.run_job(ranks, "train", deck)
                self.assertEqual(job.code, 0, job.output)
                self.assertEqual("keeps no copies" in job.output, elements == 0)
                compared = self.compared(name)
                self.assertEqual(len(compared), 3)
                self.assertEqual(len(set(compared)), 1)
                if elements is None:
                    self.assertGreater(compared[0], 0)
                else:
                    self.assertEqual(compared[0], elements)

    def test_33_44_copies_within_the_mesh_are_compared(self):
        """What tensor ranks hold whole, and tied matrices at both ends of the pipeline, also where
        data ranks share out the state."""
        ends, tensor = {"parallel__pipeline": 2}, {"parallel__tensor": 2}
        vocabulary, norm = "vocabulary.weight", "block.1.norm1.weight"
        for ranks, stage, parameter, flipped, other, changes in (
                (2, 0, norm, 1, 0, tensor), (2, 0, vocabulary, 1, 0, ends),
                (4, 1, vocabulary, 3, 1, ends), (4, 2, vocabulary, 0, 2, ends),
                (4, 3, vocabulary, 2, 0, ends),
                (4, 1, norm, 3, 2, tensor), (4, 3, norm, 2, 3, tensor)):
            with self.subTest(tensor=parameter, ranks=ranks, stage=stage):
                name = f"{ranks}_{stage}_{parameter}"
                healthy = {"guard__check_replicas": 1, "run__steps": 3, "zero__stage": stage,
                           **changes}
                self.train(ranks, self.deck(f"healthy_{name}", tiny_deck(self.corpus, **healthy)))
                self.assertGreater(min(self.compared(f"healthy_{name}")), 0)
                deck = self.deck(f"flipped_{name}", tiny_deck(
                    self.corpus, fault__inject=[f"flip rank={flipped} step=2 tensor={parameter}"],
                    **healthy))
                job = self.run_job(ranks, "train", deck, each=True)
                self.assertEqual(set(job.codes), {PEER}, job.output)
                unit = parameter.rsplit(".", 2)[0] if parameter == norm else "vocabulary"
                low, high = sorted((flipped, other))
                self.assertIn(f"{unit} differs between ranks {low} and {high}", job.output)
                self.assertIn("equal after step 1", job.output)

    def test_the_first_tensor_that_is_not_finite_is_named(self):
        for ranks, stage in ((1, 0), (2, 0), (2, 1), (2, 2), (2, 3), (4, 2)):
            with self.subTest(ranks=ranks, stage=stage):
                name = f"nan_{ranks}_{stage}"
                nodes = {"parallel__ranks_per_node": 2} if ranks == 4 else {}  # sums in two hops
                deck = self.deck(name, tiny_deck(
                    self.corpus, zero__stage=stage, **nodes,
                    fault__inject=[f"nan rank={ranks - 1} step=4 tensor=block.1.attention.k.weight"]))
                self.train(ranks, deck)
                skip, = [e for e in metrics.read_events(self.dir / name) if e["event"] == "skip"]
                self.assertEqual(skip["step"], 4)
                self.assertIn("gradient of block.1.attention.k.weight", skip["where"])
                self.assertIn(f"on rank {ranks - 1} of", skip["where"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
