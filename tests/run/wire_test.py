"""The bytes a rank sends in a step, as a run reports them, against ZeRO's formulas."""

import json
import shutil
import tomllib
import unittest

from offload_runs import tensors_of
from tessera import SOURCE, RunTest, metrics, tiny_deck

# One block dominates its padding (to 16 elements a rank) and the scalars of the norm and the loss.
PADDING = 0.03


class Wire(RunTest):
    def sent(self, ranks, **changes):
        """(bytes a rank sent in the second step, bytes of the parameters)"""
        deck = tiny_deck(self.corpus, run__steps=2, model__hidden=96, model__layers=2, **changes)
        name = "_".join([str(ranks), *map(str, changes.values())])
        self.train(ranks, self.deck(name, deck))
        events = metrics.read_events(self.dir / name)
        parameters = next(e["parameters"] for e in events if e["event"] == "start")
        wire = metrics.last_steps(events)[2]["wire_bytes"]
        return wire["intra"] + wire["inter"], 4 * parameters

    def check(self, want, sent, size, slack=PADDING):
        self.assertGreaterEqual(sent / size, want)
        self.assertLessEqual(sent / size, want * (1 + slack))

    def test_one_rank_sends_nothing(self):
        for stage in (0, 3):
            self.assertEqual(self.sent(1, zero__stage=stage)[0], 0)

    def test_all_reduce_or_reduce_scatter_and_publish(self):
        """2 (D-1)/D times the parameters, whatever the number of micro-batches."""
        for ranks in (2, 4):
            for stage in (0, 1, 2):
                with self.subTest(ranks=ranks, stage=stage):
                    self.check(2 * (ranks - 1) / ranks,
                               *self.sent(ranks, zero__stage=stage, zero__reduce="step"))

    def test_reduction_of_every_micro_batch(self):
        for ranks, micro in ((2, 1), (2, 4), (4, 1)):
            count = 8 // ranks // micro
            with self.subTest(ranks=ranks, micro_batches=count):
                sent, size = self.sent(ranks, zero__stage=2, zero__reduce="micro",
                                       batch__micro=micro)
                self.check((count + 1) * (ranks - 1) / ranks, sent, size)

    def test_gathers_of_stage_three(self):
        """At most two gathers and one reduction; a unit that is still resident is not gathered."""
        for ranks in (2, 4):
            with self.subTest(ranks=ranks):
                sent, size = self.sent(ranks, zero__stage=3, zero__reduce="step",
                                       batch__micro=8 // ranks)
                self.assertLessEqual(sent / size, 3 * (ranks - 1) / ranks * (1 + PADDING))
                self.assertGreaterEqual(sent / size, 2 * (ranks - 1) / ranks)

    def test_bf16_parameters_are_half_as_long(self):
        f32, _ = self.sent(2, zero__stage=1, zero__reduce="step")
        bf16, _ = self.sent(2, zero__stage=1, zero__reduce="step", precision__compute="bf16")
        self.assertAlmostEqual(bf16 / f32, 0.75, delta=PADDING)  # gradients stay f32 on the wire

    def test_gradients_in_blocks_within_nodes_then_across(self):
        """Of two nodes of two ranks each sends its neighbour what is for that and for its
        counterpart, and one sum across: int4 and a scale for each 256 elements."""
        for kind, width in (("int4", 0.5), ("int8", 1)):
            with self.subTest(kind):
                deck = tiny_deck(self.corpus, run__steps=2, model__hidden=96, zero__stage=2,
                                 zero__reduce="step", parallel__ranks_per_node=2,
                                 **{"zero.quantize__gradients": kind})
                self.train(4, self.deck(kind, deck))
                events = metrics.read_events(self.dir / kind)
                shard = next(e["parameters"] for e in events if e["event"] == "start") / 4
                wire = metrics.last_steps(events)[2]["wire_bytes"]
                slot = shard * (width + 4 / 256)
                self.check(1, wire["intra"], 2 * slot + 2 * 4 * shard)  # and the publish in f32
                self.check(1, wire["inter"], slot + 4 * shard)

    def test_secondary_shards_spare_the_backward_gather_between_nodes(self):
        """hpZ: of two nodes of two ranks only the first gather of a step crosses, as it is or in
        blocks, and the numbers stay."""
        def sent(name, **changes):
            deck = tiny_deck(self.corpus, run__steps=2, model__hidden=96, model__layers=4,
                             zero__stage=3, zero__reduce="step", zero__prefetch=0,
                             parallel__ranks_per_node=2, batch__micro=2, batch__global=8,
                             **changes)
            numbers = self.train(4, self.deck(name, deck))
            events = metrics.read_events(self.dir / name)
            shard = next(e["parameters"] for e in events if e["event"] == "start") / 4
            return numbers, metrics.last_steps(events)[2]["wire_bytes"], shard

        # Of each layer gains and biases, 13 x hidden numbers, travel as they are.
        vectors = 4 * 13 * 96 / 4
        for blocks, width in ((False, 4), (True, 1 + 4 / 256)):
            more = {"zero.quantize__weights": "int8"} if blocks else {}
            want, plain, shard = sent(f"plain_{blocks}", **more)
            for secondary in ("node", 2, 1):
                with self.subTest(secondary=secondary, blocks=blocks):
                    got, wire, _ = sent(f"{secondary}_{blocks}", zero__secondary=secondary, **more)
                    self.assertEqual(got, want)
                    gather = width * (shard - vectors) + 4 * vectors
                    # The embedding is gathered again too; the final norm is not.
                    if secondary != 1:
                        self.check(1, plain["inter"] - wire["inter"], gather)
                        self.assertEqual(wire["intra"], plain["intra"])
                    else:
                        self.check(1, wire["inter"], 2 * gather + 4 * shard)

    def test_errors_go_on_in_another_layout(self):
        """Error feedback and rounding at random, with gradients on the host or not: two runs are
        the same to the bit, checkpoints have the errors in the tensors' own coordinates, and
        other layouts go on from there, also without them."""
        quantize = {"zero.quantize__gradients": "int4", "zero.quantize__error_feedback": True,
                    "zero.quantize__stochastic": True}
        def deck(name, **changes):
            return self.deck(name, tiny_deck(
                self.corpus, run__steps=8, checkpoint__every=4, parallel__ranks_per_node=2,
                zero__stage=2, zero__reduce="micro", **changes))
        plain = self.train(4, deck("plain"))
        first = self.train(4, deck("first", **quantize))
        self.assertEqual(self.train(4, deck("second", **quantize)), first)
        self.assertEqual(self.train(4, deck("host", offload__gradients="host", **quantize)), first)
        self.assertNotEqual(first, plain)
        self.assertAlmostEqual(first[8][0], plain[8][0], delta=0.02 * plain[8][0])
        saved = tensors_of(sorted((self.dir / "first").glob("**/step_*"))[-1])
        errors = [name for name in saved if "gradient_error" in name]
        self.assertTrue(any(any(saved[name]) for name in errors), "no errors in the checkpoint")
        self.assertFalse([name for name in errors if "of_rank" in name])
        for ranks, changes in ((2, quantize), (4, {}), (4, {**quantize, "parallel__tensor": 2})):
            with self.subTest(ranks=ranks, **changes):
                name = f"on_{ranks}_{len(changes)}"
                shutil.copytree(self.dir / "first", self.dir / name)
                more = self.train(ranks, deck(name, **changes), "run.steps=10")
                self.assertEqual(sorted(more)[-1], 10)
                self.assertLess(more[10][0], first[1][0])

    def test_auto_is_chosen_once(self):
        """A run keeps what its first start has chosen, for its layout."""
        keys = {"zero.quantize__weights": "auto", "zero.quantize__gradients": "auto",
                "zero__secondary": "auto"}
        deck = self.deck("auto", tiny_deck(self.corpus, run__steps=4, zero__stage=3,
                                           checkpoint__every=1, parallel__ranks_per_node=2, **keys))
        directory = self.dir / "auto"

        def start(ranks, step):
            self.train(ranks, deck, f"run.steps={step}", "schedule.decay_steps=4")
            resolved = tomllib.loads((directory / "resolved.toml").read_text())["zero"]
            told = [e["what"] for e in metrics.read_events(directory) if e["event"] == "traffic"]
            quantize = resolved.get("quantize", {})
            return told[-1], (resolved.get("secondary", "none"), quantize.get("weights", "none"),
                              quantize.get("gradients", "none"))

        told, first = start(4, 1)
        self.assertIn("a step is predicted to take", told)
        self.assertNotIn("auto", first)
        told, again = start(4, 2)
        self.assertIn("as when the run began", told)
        self.assertEqual(again, first)
        kept = directory / "traffic.json"
        choice = json.loads(kept.read_text())
        self.assertEqual(len(choice["tried"]), 8)
        kept.write_text(json.dumps(choice | {"chosen": choice["tried"][-1]["keys"]}))
        told, last = start(4, 3)
        self.assertEqual(last, ("node", "int8", "int4"))
        told, _ = start(2, 4)  # one node: the links are others
        self.assertNotIn("as when the run began", told)
        kept.write_text("{}")
        job = self.run_job(2, "train", deck, "--set", "run.steps=5")
        self.assertEqual(job.code, 3, job.output)
        self.assertRegex(job.output, r'traffic.json: \$.*\(remove the file to have "auto" choose')

    def test_auto_on_any_nodes(self):
        """Ranks with nobody to measure a link with wait for the others; what the machine's rates
        do not say is no error."""
        auto = {"zero.quantize__weights": "auto", "zero.quantize__gradients": "auto",
                "zero__secondary": "auto", "zero__stage": 3}
        for ranks, per_node, changes in (
                (3, 1, {}), (3, 2, {}), (4, 1, {"parallel__tensor": 2}),
                (4, 3, {"parallel__pipeline": 2}), (2, 1, {"precision__matmul": "fp8", "model__hidden": 48}),
                (2, 1, {"precision__compute": "f16"}), (2, 1, {"recompute__policy": "full"}),
                (2, 1, {"offload__optimizer": "nvme", "offload__nvme": [str(self.dir)]})):
            with self.subTest(ranks=ranks, per_node=per_node, **changes):
                name = f"auto_{ranks}_{per_node}_" + "_".join(map(str, changes))
                deck = tiny_deck(self.corpus, run__steps=1, parallel__ranks_per_node=per_node,
                                 **{"batch__global": 12, **auto, **changes})
                self.train(ranks, self.deck(name, deck))
                log = (self.dir / name / "log.txt").read_text()
                self.assertIn("a step is predicted to take", log)
                self.assertRegex(log, r"step 1/1 \|.* GEMM \d+% ", "of the rate that was measured")
                step = metrics.last_steps(metrics.read_events(self.dir / name))[1]
                self.assertGreater(step["gemm_share"], 0)

    def test_auto_of_what_is_not_there(self):
        """check and simulate plan decks that leave traffic open."""
        deck = self.deck("open", tiny_deck(
            self.corpus, zero__stage=3, zero__secondary="auto",
            **{"zero.quantize__gradients": "auto"}))
        check = self.run_job(0, "check", deck, "--ranks", 4, "--nodes", 2)
        self.assertEqual(check.code, 0, check.output)
        self.assertIn('planned with zero.secondary = "', check.output)
        machine = SOURCE / "slurm/machines/v100-infiniband-100g.toml"
        for options in ([], ["--search"]):
            told = self.run_job(0, "simulate", deck, "--ranks", 4, "--nodes", 2, "--machine", machine,
                                *options)
            self.assertEqual(told.code, 0, told.output)
            if not options:
                self.assertIn('"auto" makes zero.secondary = "', told.output)

    def test_auto_with_one_rank(self):
        deck = self.deck("alone", tiny_deck(self.corpus, run__steps=1, zero__secondary="auto"))
        self.train(1, deck)
        self.assertIn("nothing else can be used with this deck", (self.dir / "alone/log.txt").read_text())

    def test_ranks_per_node_splits_the_bytes_and_changes_no_number(self):
        want = self.train(4, self.deck("asked", tiny_deck(self.corpus, zero__stage=3)))
        for per_node in (1, 2, 4):
            with self.subTest(ranks_per_node=per_node):
                name = f"per_node_{per_node}"
                got = self.train(4, self.deck(name, tiny_deck(
                    self.corpus, zero__stage=3, parallel__ranks_per_node=per_node)))
                self.assertEqual(got, want)
                wire = metrics.last_steps(metrics.read_events(self.dir / name))[1]["wire_bytes"]
                total = wire["intra"] + wire["inter"]
                nodes = 4 // per_node  # to each other one each byte goes once
                self.assertEqual(wire["inter"] * 3, total * (nodes - 1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
