"""Runs on a GPU: PyTorch's losses, ZeRO on several ranks that share it, the same bits again and
on every layout, restarts, memory, and what is said where GPUs are too few. Exit code 77, with the
reason, where there is no GPU."""

import ctypes
import json
import os
import shutil
import sys
import unittest

from tessera import BINARY, SOURCE, RunTest, metrics, tiny_deck
import gpu_losses  # of tools, where tessera looks

ORACLE = SOURCE / "tests" / "data" / "oracle"
SKIPPED = 77
ALGORITHMS = "matmul_algorithms.txt"  # of a run's products
# Each rank calls itself a node of its own, for NCCL does not let ranks of a node share a GPU.
SHARE = 'NCCL_HOSTID=rank${OMPI_COMM_WORLD_RANK:-$PMI_RANK} exec "$@"'
SECOND_WITHOUT = """[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ] && export CUDA_VISIBLE_DEVICES=
exec "$@" """
# As in layout_test.
TOLERANCE, TOLERANCE_BF16 = 1e-5, 2e-2
# fp8_test has losses within 2^-7 of those of bf16.
FP8, NEAR_FP8 = (8, 9), 2 ** -6
# What CUDA's libraries take beside the arenas, more than a run's other memory.
BESIDE = 1 << 30


def gpus():
    """(how many the driver serves, why none)"""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as e:
        return 0, f"no NVIDIA driver: {e}"
    count = ctypes.c_int(0)
    code = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    return count.value, f"the driver's answer is {code}, of GPUs {count.value}"


def capability():
    """(major, minor) of the first GPU, which the driver serves"""
    cuda = ctypes.CDLL("libcuda.so.1")
    numbers = ctypes.c_int(0), ctypes.c_int(0)
    for number, attribute in zip(numbers, (75, 76)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
        code = cuda.cuInit(0) or cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, 0)
        assert code == 0, f"the driver's answer is {code}"
    return tuple(n.value for n in numbers)


def gpu_deck(data, **changes):
    changes = {"run__backend": "cuda", **changes}
    return tiny_deck(data, **changes)


class Gpu(RunTest):
    def deck(self, name, deck):
        """Runs of a test compute products by the algorithms that the first of them has timed: other
        times may choose others, which round otherwise."""
        chosen = self.dir / ALGORITHMS
        if chosen.exists():
            (self.dir / name).mkdir(exist_ok=True)
            shutil.copy(chosen, self.dir / name)
        return super().deck(name, deck)

    def numbers(self, name):
        chosen = self.dir / name / ALGORITHMS
        if chosen.exists():  # not of the CPU's runs
            shutil.copy(chosen, self.dir)
        return super().numbers(name)

    def share(self, ranks, deck_path, *sets):
        """As train(), with ranks that share GPUs."""
        options = [x for s in sets for x in ("--set", s)]
        job = self.run_job(ranks, "-c", SHARE, "sh", BINARY, "train", deck_path, *options,
                           program="sh")
        self.assertEqual(job.code, 0, f"{deck_path.name} on {ranks} ranks:\n{job.output}")
        return self.numbers(deck_path.stem)

    def oracle(self, family, compute, ranks=1, **changes):
        """(losses and norms, those of fp64, those of PyTorch's fp32)"""
        truth = json.loads((ORACLE / family / "losses.json").read_text())
        recipe = truth["recipe"]
        deck = {
            "run": {"steps": truth["steps"], "backend": "cuda"},
            "model": {"init_from": str(ORACLE / family)},
            "data": {"train": [str(ORACLE / family / "tokens")], "shuffle": False},
            "batch": {"sequence": truth["sequence"], "micro": 2, "global": 8},
            "optimizer": {k: recipe[k] for k in ("lr", "betas", "eps", "weight_decay",
                                                 "clip_norm")},
            "schedule": {"kind": "constant", "warmup_steps": recipe["warmup_steps"]},
            "precision": {"compute": compute}, "zero": changes}
        got = self.share(ranks, self.deck(f"{family}_{compute}_{ranks}", deck))
        expected = truth["batches"]["8"]
        self.assertEqual(len(got), len(expected["float64"]))
        return list(got.values()), expected["float64"], expected["float32"]

    def test_pytorch_in_fp64(self):
        """As far as PyTorch's own fp32 strays from fp64, with room for other orders of sums."""
        for family in ("gpt2", "llama"):
            for ranks, changes in ((1, {}), (2, {"stage": 3})):
                with self.subTest(family=family, ranks=ranks):
                    got, want, single = self.oracle(family, "f32", ranks, **changes)
                    stray = max(abs(a - b) for x, y in zip(single, want) for a, b in zip(x, y))
                    worst = max(abs(a - b) for x, y in zip(got, want) for a, b in zip(x, y))
                    self.assertLess(worst, 8 * stray)

    def test_pytorch_in_bf16(self):
        for family in ("gpt2", "llama"):
            with self.subTest(family):
                got, want, _ = self.oracle(family, "bf16")
                worst = max(abs(a - b) / b for (a, _), (b, _) in zip(got, want))
                self.assertLess(worst, TOLERANCE_BF16)

    def test_gpt2_124m_has_the_cpus_losses(self):
        """50 steps at the model's real width, in bf16 and f32, against the CPU's in f32, which this
        machine's cores compute. The bounds are measured between the CPU and PyTorch."""
        tokens = self.dir / "learnable"
        gpu_losses.write_tokens(tokens)
        threads = len(os.sched_getaffinity(0))

        def losses(backend, compute):
            run = self.train(1, self.deck(f"{backend}_{compute}", gpu_losses.deck(
                tokens, backend, compute, threads)))
            return [loss for loss, _ in run.values()]

        want = losses("cpu", "f32")
        self.assertLess(want[-1], want[0] / 2, "it learns")
        for compute in ("bf16", "f32"):
            with self.subTest(compute):
                found = gpu_losses.apart(losses("cuda", compute), want)
                print(f"GPT-2 124M in {compute}: losses {found[0]:.1e} from the CPU's, "
                      f"{found[1]:.1e} in the mean", flush=True)
                for is_apart, may_be in zip(found, gpu_losses.allowed(compute)):
                    self.assertLess(is_apart, may_be)

    def test_attention_in_any_order(self):
        """Where no bits are promised cuDNN's gradients of queries are added as they come."""
        fixed = {"precision__compute": "bf16", "model__context": 128, "batch__sequence": 128}
        want, got = (self.train(1, self.deck(word, gpu_deck(
            self.corpus, run__reproducible=word, **fixed))) for word in ("run", "off"))
        self.assert_close(got, want, TOLERANCE_BF16, "in any order")
        ran = {word: (self.dir / word / "log.txt").read_text() for word in ("run", "off")}
        self.assertRegex(ran["off"], r"attention_backward in any order of .*: cuDNN\n")
        self.assertRegex(ran["run"], r"attention_backward of .*: cuDNN\n")

    def test_35_36_stages_and_ranks(self):
        """Four ranks as two nodes of two: the same bits at every stage, and one rank's numbers."""
        for compute, tolerance in (("bf16", TOLERANCE_BF16), ("f32", TOLERANCE)):
            want = self.train(1, self.deck(f"one_{compute}", gpu_deck(
                self.corpus, precision__compute=compute)))
            stages = [self.share(4, self.deck(f"{compute}_{stage}", gpu_deck(
                self.corpus, zero__stage=stage, zero__reduce="step",
                parallel__ranks_per_node=2, precision__compute=compute))) for stage in range(4)]
            for stage, got in enumerate(stages):
                with self.subTest(stage=stage, compute=compute):
                    self.assertEqual(got, stages[0])
                    self.assert_close(got, want, tolerance, "4 ranks")

    def test_traffic_in_blocks_over_nodes(self):
        """ZeRO++ on two nodes of two: the same bits at every stage, and the CPU's numbers, which
        round what lies between two steps of a block to another one now and then."""
        for kind in ("int8", "int4"):
            fixed = {"zero__reduce": "step", "parallel__ranks_per_node": 2,
                     "zero.quantize__gradients": kind}
            want = self.train(4, self.deck(f"cpu_{kind}", tiny_deck(self.corpus, **fixed)))
            got = [self.share(4, self.deck(f"{kind}_{stage}", gpu_deck(
                self.corpus, zero__stage=stage, **fixed))) for stage in range(4)]
            with self.subTest(kind):
                self.assertEqual(got, 4 * got[:1])
                self.assert_close(got[0], want, TOLERANCE_BF16, "gradients in blocks")
        both = self.share(4, self.deck("both", gpu_deck(
            self.corpus, zero__stage=3, **{**fixed, "zero.quantize__weights": "int8"})))
        self.assert_close(both, want, TOLERANCE_BF16, "parameters in blocks too")

    def test_what_lives_elsewhere(self):
        """The host updates beside the GPU, and disks read and write: the same bits."""
        fixed = {"zero__stage": 3, "schedule__kind": "constant", "offload__nvme": [str(self.dir)],
                 "offload__block": 4096}
        tiers = {word: {f"offload__{what}": word for what in (
            "parameters", "gradients", "optimizer", "activations")} for word in ("host", "nvme")}
        choices = {**tiers, "share": {"offload__optimizer": "host",
                                      "offload__optimizer_share": 0.5}}
        for compute in ("bf16", "f32"):
            fixed["precision__compute"] = compute
            for ranks in (1, 2):
                want = self.share(ranks, self.deck(f"{compute}_{ranks}", gpu_deck(
                    self.corpus, **fixed)))
                for name, choice in choices.items():
                    with self.subTest(name, compute=compute, ranks=ranks):
                        deck = self.deck(f"{compute}_{ranks}_{name}", gpu_deck(
                            self.corpus, **fixed, **choice))
                        self.assertEqual(self.share(ranks, deck), want)

    def test_the_same_bits_again(self):
        for compute in ("bf16", "f32", "f16"):
            with self.subTest(compute):
                fixed = {"precision__compute": compute, "model__dropout": 0.1}
                first, again = (self.train(1, self.deck(f"{compute}_{n}", gpu_deck(
                    self.corpus, **fixed))) for n in range(2))
                self.assertEqual(first, again)

    def test_layouts_have_the_same_bits(self):
        fixed = {"run__reproducible": "layout", "run__reproducible_tensor": 2, "run__threads": 1,
                 "run__steps": 4, "model__heads": 4, "model__hidden": 32, "model__layers": 4}
        for compute in ("bf16", "f32"):
            changes = {**fixed, "precision__compute": compute}
            want = self.train(1, self.deck(f"one_{compute}", gpu_deck(self.corpus, **changes)))
            for name, ranks, layout in (
                    ("tensor", 2, {"parallel__tensor": 2}),
                    ("pipeline", 2, {"parallel__pipeline": 2}),
                    ("data", 4, {"zero__stage": 3}),
                    ("mixed", 4, {"parallel__tensor": 2, "zero__stage": 2,
                                  "recompute__policy": "full"})):
                with self.subTest(name, compute=compute):
                    got = self.share(ranks, self.deck(f"{name}_{compute}", gpu_deck(
                        self.corpus, **changes, **layout)))
                    self.assertEqual(got, want)

    def test_a_restart_changes_no_bit(self):
        fixed = {"schedule__decay_steps": 9}  # not what is left of run.steps
        want = self.train(1, self.deck("whole", gpu_deck(self.corpus, **fixed)))
        deck = self.deck("stopped", gpu_deck(self.corpus, checkpoint__every=5, **fixed))
        self.train(1, deck, "run.steps=5")
        self.assertEqual(self.train(1, deck), want)

    def test_fp8(self):
        """The same bits again, after a restart and with recomputation; losses near the CPU's."""
        if (found := capability()) < FP8:
            self.skipTest(f"compute capability {found}: fp8 products need {FP8}")
        fixed = {"model__heads": 4, "model__hidden": 64, "precision__compute": "bf16",
                 "schedule__kind": "constant"}
        in_fp8 = {**fixed, "precision__matmul": "fp8"}
        want = self.train(1, self.deck("whole", gpu_deck(self.corpus, **in_fp8)))
        again = self.deck("full", gpu_deck(self.corpus, recompute__policy="full", **in_fp8))
        self.assertEqual(self.train(1, again), want)
        stopped = self.deck("stopped", gpu_deck(self.corpus, checkpoint__every=5, **in_fp8))
        self.train(1, stopped, "run.steps=5")
        self.assertEqual(self.train(1, stopped), want)
        cpu = self.train(1, self.deck("cpu", tiny_deck(self.corpus, **in_fp8)))
        worst = max(abs(want[s][0] - cpu[s][0]) / cpu[s][0] for s in cpu)
        self.assertLess(worst, NEAR_FP8)
        self.assertNotEqual(want, self.train(1, self.deck("bf16", gpu_deck(self.corpus, **fixed))))

    def test_memory_grows_by_what_was_predicted(self):
        """Of a model whose arenas are larger than what CUDA's libraries take."""
        deck = self.deck("large", gpu_deck(
            self.corpus, run__steps=4, model__layers=24, model__heads=16, model__hidden=1024,
            model__vocab=50257, model__context=512, batch__sequence=512, batch__micro=2,
            batch__global=4, precision__compute="bf16", checkpoint__every=0))
        self.train(1, deck)
        end = {e["event"]: e for e in metrics.read_events(self.dir / "large")}["end"]
        predicted, grown = end["predicted_bytes"], end["resident_growth_bytes"]
        self.assertGreater(predicted, 4 * BESIDE)
        self.assertGreater(grown, 0.9 * predicted)
        self.assertLess(grown, predicted + BESIDE)
        self.assertIn(end["library_bytes"], range(1, BESIDE))

    def test_more_ranks_than_gpus_are_refused(self):
        deck = self.deck("many", gpu_deck(self.corpus, batch__global=64))
        ranks = gpus()[0] + 1
        job = self.run_job(ranks, "train", deck, each=True)
        self.assertNotIn(0, job.codes, job.output)
        self.assertEqual(len(set(job.codes)), 1, job.codes)
        self.assertRegex(job.output, r"ranks \d+ and \d+ have the same GPU")

    def test_no_visible_gpu_is_said(self):
        deck = self.deck("none", gpu_deck(self.corpus))
        job = self.run_job(1, "train", deck, each=True, env={"CUDA_VISIBLE_DEVICES": ""})
        self.assertEqual(job.codes, [2], job.output)
        self.assertIn('may use no GPU', job.output)
        self.assertIn('CUDA_VISIBLE_DEVICES is ""', job.output)
        # Of one node alone it is no fault of the deck: a batch job is started again.
        job = self.run_job(2, "-c", SECOND_WITHOUT, "sh", BINARY, "train", deck, each=True,
                           program="sh")
        self.assertEqual(job.codes, [5, 5], job.output)
        self.assertIn("while 1 of 2 ranks have one", job.output)


if __name__ == "__main__":
    found, why_none = gpus()
    if found == 0:
        print(f"skipped: no GPU ({why_none})")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
