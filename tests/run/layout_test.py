"""Tensor, pipeline and data parallelism, alone and together, with every ZeRO stage: in layout mode
the same bits as one rank, otherwise the same numbers but for the order of sums (traps 10, 14 to 25,
27 to 34, 36)."""

import unittest
import zlib

import h5py
import numpy as np

from tessera import RunTest, metrics, some_of, tiny_deck

# As in equivalence_test: the order of sums of single precision, carried through 12 updates.
TOLERANCE = 1e-5
# bf16 rounds to 2^-9 at every activation; runs that round elsewhere part by some of that.
TOLERANCE_BF16 = 2e-2

GPT2 = {"model__heads": 4, "model__hidden": 32, "model__layers": 4}
LLAMA = {"model__family": "llama", "model__heads": 4, "model__kv_heads": 2, "model__hidden": 32,
         "model__ffn_hidden": 44, "model__layers": 4}
LATENT = {**LLAMA, "model__kv_heads": 4, "model__head_dim": 12, "model__value_dim": 10,
          "model__kv_latent": 16, "model__q_latent": 24, "model__rope_dim": 8,
          "model__rope_pairs": "neighbours"}
ANY_LAYOUT = {"run__reproducible": "layout", "run__reproducible_tensor": 4, "run__steps": 4}


def mesh(data=1, pipeline=1, tensor=1, **more):
    return data * pipeline * tensor, {"parallel__pipeline": pipeline, "parallel__tensor": tensor,
                                      **more}


class LayoutTest(RunTest):
    def deck_on(self, on, **changes):
        ranks, layout = on
        changes = {**changes, **layout}
        name = "_".join([str(ranks), *(f"{k.split('__')[1]}_{v}" for k, v in changes.items())])
        whole = zlib.crc32(name.encode())
        name = "".join(c if c.isalnum() else "_" for c in name)[:150] + f"_{whole:08x}"
        return self.deck(name, tiny_deck(self.corpus, **changes))

    def run_on(self, on, **changes):
        return self.train(on[0], self.deck_on(on, **changes))

    def assert_same(self, fixed, meshes):
        """Returns the numbers of one rank."""
        want = self.run_on(mesh(), **fixed)
        for on in some_of(meshes):
            with self.subTest(ranks=on[0], **on[1]):
                self.assertEqual(self.run_on(on, **fixed), want)
        return want

    def assert_near(self, fixed, meshes, tolerance=TOLERANCE, base=mesh()):
        want = self.run_on(base, **fixed)
        for on in some_of(meshes):
            with self.subTest(ranks=on[0], **on[1]):
                self.assert_close(self.run_on(on, **fixed), want, tolerance, "another layout")


class SameBits(LayoutTest):
    """reproducible = "layout"."""

    def test_everything_with_everything(self):
        for family in (GPT2, LLAMA):
            self.assert_same({**family, **ANY_LAYOUT}, [
                mesh(tensor=2), mesh(tensor=4), mesh(pipeline=4),
                mesh(data=2, zero__stage=2), mesh(data=4, zero__stage=3, recompute__policy="full"),
                mesh(data=2, tensor=2, zero__stage=1, recompute__policy="selective"),
                mesh(data=2, pipeline=2, zero__stage=3, parallel__schedule="zero_bubble"),
                mesh(data=2, pipeline=2, tensor=2, zero__stage=2, recompute__policy="full"),
                mesh(pipeline=2, tensor=2, parallel__schedule="interleaved",
                     parallel__virtual_stages=2),
                mesh(data=2, pipeline=2, tensor=2, zero__stage=0, parallel__schedule="gpipe")])

    def test_lamb(self):
        """Norms of tensors are exact, whichever ranks have their parts."""
        lamb = {**LLAMA, **ANY_LAYOUT, "optimizer__name": "lamb", "optimizer__lr": 0.02,
                "optimizer__weight_decay": 0.1}
        self.assert_same({**lamb, "model__tied_embeddings": True}, [
            mesh(tensor=4), mesh(data=2, pipeline=2, zero__stage=3),
            mesh(data=2, tensor=2, zero__stage=1)])
        self.assert_same({**lamb, "precision__compute": "bf16"}, [
            mesh(data=2, tensor=2, zero__stage=0), mesh(data=2, pipeline=2, zero__stage=2)])

    def test_muon(self):
        """A matrix is made orthogonal at one rank, whichever ranks have its parts."""
        muon = {**LLAMA, **ANY_LAYOUT, "optimizer__name": "muon", "optimizer__lr": 0.02,
                "optimizer__weight_decay": 0.1, "optimizer__ema": 0.9}
        self.assert_same(muon, [
            mesh(tensor=4), mesh(data=2, pipeline=2, zero__stage=3),
            mesh(data=4, tensor=2, zero__stage=1), mesh(data=2, tensor=2, zero__stage=0)])
        self.assert_same({**muon, "precision__compute": "bf16", "optimizer__attention": "heads"}, [
            mesh(data=2, tensor=2, zero__stage=2)])

    def test_groups(self):
        """A factor of 0 leaves exactly those tensors where they are."""
        self.assert_same({
            **LLAMA, **ANY_LAYOUT, "optimizer__name": "lion", "optimizer__lr": 0.002,
            "optimizer__weight_decay": 0.1, "optimizer__groups": [
                {"match": "*.attention.*", "lr_factor": 0.5},
                {"match": "*.mlp.up.*", "lr_factor": 0},
                {"match": "*norm*", "lr_factor": 2.0, "weight_decay": 0.01}],
            "checkpoint__every": 2}, [
                    mesh(data=2, tensor=2, zero__stage=1), mesh(pipeline=2, data=2, zero__stage=3)])
        runs = [path for path in self.dir.iterdir() if path.is_dir()]
        self.assertEqual(len(runs), 1 + len(some_of([1, 2])))
        for run in runs:
            before, after = (self.weights_of(run / "checkpoints" / f"step_{step:08}")
                             for step in (2, 4))
            still = {name for name in before if np.array_equal(before[name], after[name])}
            self.assertEqual(still, {f"block.{i}.mlp.up.weight" for i in range(4)}, run.name)

    def weights_of(self, checkpoint):
        with h5py.File(checkpoint / "model.h5") as file:
            return {name: np.asarray(data) for name, data in file["master"].items()}

    def test_27_dropout(self):
        self.assert_same({**GPT2, **ANY_LAYOUT, "model__dropout": 0.2}, [
            mesh(tensor=2), mesh(tensor=4, parallel__sequence=False), mesh(pipeline=2),
            mesh(data=2, tensor=2, pipeline=2, zero__stage=3, recompute__policy="full")])

    def test_bf16(self):
        self.assert_same({**LLAMA, **ANY_LAYOUT, "precision__compute": "bf16"}, [
            mesh(tensor=2), mesh(tensor=4, parallel__sequence=False), mesh(pipeline=2),
            mesh(data=2, tensor=2, pipeline=2, zero__stage=3)])

    def test_feed_forward_in_groups_of_rows(self):
        """Which divide no sequence evenly, and are the same rows on every layout."""
        for family, rows in ((GPT2, 5), (LLAMA, 7)):
            self.assert_same({**family, **ANY_LAYOUT, "memory__ffn": rows}, [
                mesh(tensor=2), mesh(tensor=4, parallel__sequence=False),
                mesh(data=2, tensor=2, zero__stage=3, recompute__policy="full"),
                mesh(data=2, pipeline=2, zero__stage=1, recompute__policy="selective")])

    def test_latents(self):
        """Chunks of latents are put together, and gradients of all latents are sums over chunks."""
        self.assert_same({**LATENT, **ANY_LAYOUT, "model__dropout": 0.1}, [
            mesh(tensor=2), mesh(tensor=4), mesh(tensor=2, parallel__sequence=False),
            mesh(data=2, tensor=2, zero__stage=3, recompute__policy="selective"),
            mesh(data=2, pipeline=2, zero__stage=1, parallel__schedule="zero_bubble",
                 recompute__policy="full")])
        self.assert_same({**LATENT, **ANY_LAYOUT, "model__q_latent": 0, "precision__compute": "bf16",
                          "optimizer__name": "muon", "optimizer__attention": "heads"}, [
            mesh(tensor=4), mesh(data=2, tensor=2, zero__stage=1, offload__optimizer="host")])
        self.assert_same({**LATENT, **ANY_LAYOUT, "adapter__kind": "lora", "adapter__rank": 2,
                          "adapter__targets": ["*"], "moe__experts": 4, "moe__ffn_hidden": 16,
                          "moe__shared_ffn_hidden": 12, "moe__jitter": 0.1}, [
            mesh(tensor=4), mesh(data=2, tensor=2, zero__stage=3)])

    def test_fp8(self):
        """A scale is that of a chunk in a micro-batch, which every layout has."""
        for compute in ("f32", "bf16"):
            self.assert_same({**LLAMA, **ANY_LAYOUT, "model__hidden": 64, "model__ffn_hidden": 192,
                              "precision__matmul": "fp8", "precision__compute": compute}, [
                mesh(tensor=2), mesh(tensor=4, parallel__sequence=False), mesh(pipeline=2),
                mesh(data=2, recompute__policy="selective"),
                mesh(data=2, tensor=2, pipeline=2, zero__stage=3, recompute__policy="full")])

    def test_21_a_kv_head_that_several_ranks_read(self):
        self.assert_same({**LLAMA, **ANY_LAYOUT, "model__kv_heads": 1}, [
            mesh(tensor=2), mesh(tensor=4), mesh(tensor=2, parallel__sequence=False),
            mesh(data=2, tensor=4, zero__stage=3)])

    def test_reduction_and_accumulation(self):
        fixed = {**GPT2, **ANY_LAYOUT}
        self.assert_same(fixed, [
            mesh(data=2, zero__stage=stage, zero__reduce=reduce)
            for stage in range(4) for reduce in ("step", "micro")])

    def test_tiles(self):
        """What is gathered in parts is summed in the order of chunks, as over tensor ranks."""
        for family in (GPT2, {**LLAMA, "model__kv_heads": 1, "model__tied_embeddings": False}):
            self.assert_same({**family, **ANY_LAYOUT}, [
                mesh(zero__tiles=4), mesh(tensor=2, zero__tiles=2, recompute__policy="full"),
                mesh(data=2, zero__stage=3, zero__tiles=2, offload__parameters="host"),
                mesh(data=2, pipeline=2, zero__stage=3, zero__tiles=4,
                     parallel__schedule="zero_bubble")])

    def test_uneven_chunks(self):
        """Heads, ffn columns and vocabulary rows that four chunks do not divide."""
        self.assert_same({**GPT2, **ANY_LAYOUT, "model__heads": 6, "model__hidden": 36,
                          "model__ffn_hidden": 50, "model__vocab": 101},
                         [mesh(tensor=2), mesh(tensor=4), mesh(data=2, tensor=4, zero__stage=3)])

    def test_51_needs(self):
        """What cannot hold is an error of the deck that names the key."""
        for key, changes in {
            "run.reproducible_tensor": {"run__reproducible_tensor": 3},
            "parallel.tensor": {"run__reproducible_tensor": 2, "parallel__tensor": 4},
            "zero.tiles": {"zero__tiles": 3},
            "batch.sequence": {"batch__sequence": 14},
            "precision.compute": {"precision__compute": "f16"},
            "precision.gradients": {"precision__gradients": "bf16"},
            "batch.global": {"batch__global": 6},
        }.items():
            with self.subTest(key=key):
                deck = tiny_deck(self.corpus, **{**GPT2, **ANY_LAYOUT, **changes})
                job = self.run_job(4, "train", self.deck("wrong", deck), each=True)
                self.assertEqual(job.codes, [2] * 4, job.output)
                self.assertIn(key, job.output)

    def test_56_threads(self):
        """A product's bits do not depend on them."""
        for precision in ("f32", "bf16"):
            self.assert_same({**LLAMA, **ANY_LAYOUT, "run__threads": 1,
                              "precision__compute": precision}, [
                mesh(run__threads=3), mesh(data=2, run__threads=2, zero__stage=3),
                mesh(tensor=2, run__threads=4)])


class NearlySame(LayoutTest):
    def test_tiles(self):
        self.assert_near({**GPT2, "model__dropout": 0.1}, [
            mesh(zero__tiles=4), mesh(data=2, zero__tiles=3, zero__stage=3),
            mesh(tensor=2, zero__tiles=2, zero__stage=2)])

    def test_tensor(self):
        """Three heads on two ranks, five ranks' worth of nothing even, with and without splitting
        the sequence."""
        self.assert_near({}, [
            mesh(tensor=2), mesh(tensor=2, parallel__sequence=False),
            mesh(tensor=3, parallel__sequence=False), mesh(data=2, tensor=2, zero__stage=3)])
        self.assert_near({**LLAMA, "model__kv_heads": 1}, [mesh(tensor=2), mesh(tensor=4)])

    def test_10_29_pipeline(self):
        """Micro-batches fewer than, as many as and not a multiple of the stages."""
        for count in (1, 2, 3, 5, 8):
            fixed = {**LLAMA, "batch__global": count, "run__steps": 4}
            want = self.run_on(mesh(), **fixed)
            for schedule in ("1f1b", "gpipe", "zero_bubble"):
                for stages in (2, 4):
                    with self.subTest(count=count, schedule=schedule, stages=stages):
                        got = self.run_on(mesh(pipeline=stages, parallel__schedule=schedule),
                                          **fixed)
                        self.assertEqual(got, want, "untied: not even the order of sums differs")
            with self.subTest(count=count, schedule="interleaved"):
                got = self.run_on(mesh(pipeline=2, parallel__schedule="interleaved",
                                       parallel__virtual_stages=2), **fixed)
                self.assertEqual(got, want)

    def test_30_messages_beyond_the_eager_limit(self):
        """Messages of 2 MiB, more than is in flight at once, so that a send ends only once its
        receiver is there: both ways at once between two, three and four stages."""
        fixed = {**LLAMA, "model__hidden": 256, "model__ffn_hidden": 64, "model__context": 256,
                 "batch__sequence": 256, "batch__micro": 8, "batch__global": 64, "run__steps": 1}
        want = self.run_on(mesh(), **fixed)
        for stages, schedule, chunks in ((2, "interleaved", 2), (3, "1f1b", 1), (4, "1f1b", 1)):
            with self.subTest(stages=stages, schedule=schedule):
                self.assertEqual(want, self.run_on(
                    mesh(pipeline=stages, parallel__schedule=schedule,
                         parallel__virtual_stages=chunks), **fixed))

    def test_classic(self):
        """Two data ranks, two stages, eight micro-batches each."""
        self.assert_near({**GPT2, "batch__global": 16}, [
            mesh(data=2, pipeline=2, zero__stage=stage) for stage in range(4)])

    def test_33_tied_ends(self):
        """Both copies have the same bits after every step."""
        self.assert_near({**GPT2, "model__tied_embeddings": True, "guard__check_replicas": 1}, [
            mesh(pipeline=2), mesh(pipeline=4, data=2, zero__stage=1), mesh(pipeline=3)])

    def test_stages_are_proved_to_fit(self):
        """Before anything runs, by check and by train: messages down and up of 8 micro-batches, a
        tied matrix's gradient added up and gathered, and the words of all ranks."""
        for tied, meetings in (True, 8 + 8 + 3), (False, 8 + 8 + 1):
            deck = self.deck(f"proved_{tied}", tiny_deck(
                self.corpus, run__steps=1, model__tied_embeddings=tied, parallel__pipeline=2,
                batch__global=16, checkpoint__every=0))
            job = self.run_job(0, "check", deck, "--ranks", 4)
            self.assertEqual(job.code, 0, job.output)
            self.assertRegex(job.output, f"stages fit +{meetings} messages and collectives")
            self.train(4, deck)
            start = metrics.read_events(self.dir / f"proved_{tied}")[0]
            self.assertEqual(start["meetings_of_stages"], meetings)

    def test_placement(self):
        self.assert_near(GPT2, [mesh(pipeline=2, parallel__placement=[0, 3]),
                                mesh(pipeline=3, parallel__placement=[0, 1, 2])])

    def test_bf16_and_f16(self):
        for compute in ("bf16", "f16"):
            self.assert_near({**GPT2, "precision__compute": compute},
                             [mesh(tensor=2), mesh(pipeline=2), mesh(data=2, tensor=2,
                                                                      zero__stage=3)],
                             TOLERANCE_BF16)

    def test_16_evaluation(self):
        """Rank 0 prints the loss of the last stage."""
        fixed = {**GPT2, "data__validation": [str(self.corpus)], "evaluate__every": 6,
                 "evaluate__batches": 2}
        losses = []
        for on in (mesh(), mesh(tensor=2), mesh(pipeline=2), mesh(2, 2, 2)):
            self.run_on(on, **fixed)
            newest = max((p for p in self.dir.iterdir() if p.is_dir()),
                         key=lambda p: p.stat().st_mtime_ns)
            losses.append([e["loss"] for e in metrics.read_events(newest)
                           if e["event"] == "evaluate"])
        for other in losses[1:]:
            self.assertEqual(len(other), len(losses[0]))
            for a, b in zip(other, losses[0]):
                self.assertLessEqual(abs(a - b) / b, TOLERANCE)

    def test_wrong_grids(self):
        for key, ranks, changes in (
            ("parallel.tensor", 3, {"parallel__tensor": 2}),
            ("parallel.tensor", 8, {"parallel__tensor": 8}),
            ("parallel.pipeline", 8, {"parallel__pipeline": 8}),
            ("batch.sequence", 2, {"parallel__tensor": 2, "batch__sequence": 15}),
            ("parallel.virtual_stages", 2, {"parallel__pipeline": 2,
                                            "parallel__schedule": "interleaved"}),
            ("parallel.placement", 2, {"parallel__pipeline": 2, "parallel__placement": [0, 9]}),
        ):
            with self.subTest(key=key, **changes):
                deck = tiny_deck(self.corpus, **{**GPT2, **changes})
                job = self.run_job(ranks, "train", self.deck("wrong", deck), each=True)
                self.assertEqual(job.codes, [2] * ranks, job.output)
                self.assertIn(key, job.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
