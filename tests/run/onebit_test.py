"""1-bit Adam (Tang et al. 2021, algorithm 1): momentum that travels as signs, against NumPy in fp64, over
ZeRO stages, offloading, nodes, types, and over restarts."""

import re
import shutil
import unittest

import h5py
import numpy as np

from tessera import RunTest, metrics, tiny_deck, write_tokens

B1, B2, EPS, DECAY, LR = 0.8, 0.95, 1e-4, 0.05, 2e-3
ROWS = ("master", "onebit_m", "onebit_v", "gradient_error")


def onebit(corpus, after, **changes):
    """A deck whose steps all take the same batch: the corpus has no more."""
    deck = tiny_deck(corpus, optimizer__name="onebit_adam", optimizer__compress_after=after,
                     optimizer__betas=[B1, B2], optimizer__eps=EPS, optimizer__weight_decay=DECAY,
                     optimizer__lr=LR, schedule__kind="constant", schedule__warmup_steps=None,
                     data__shuffle=False, **changes)
    return deck


class OneBit(RunTest):
    def setUp(self):
        super().setUp()
        write_tokens(self.corpus, 8 * 16 + 1)

    def state(self, name, step):
        path = self.dir / name / "checkpoints" / f"step_{step:08}" / "model.h5"
        with h5py.File(path) as file:
            return {row: {key: np.asarray(data, np.float64) for key, data in file[row].items()}
                    for row in ROWS if row in file}

    def gradient(self, name, step, ranks, **changes):
        """By tensor, that of all ranks together at a checkpoint's weights: what SGD without momentum
        keeps."""
        of = f"{name}_{step}"
        checkpoint = self.dir / name / "checkpoints" / f"step_{step:08}"
        job = self.run_job(0, "export", checkpoint, "--to", self.dir / f"{of}_hf")
        self.assertEqual(job.code, 0, job.output)
        deck = tiny_deck(self.corpus, run__steps=1, optimizer__name="sgd", optimizer__momentum=0.0,
                         optimizer__weight_decay=0.0, optimizer__clip_norm=0.0,
                         schedule__kind="constant", schedule__warmup_steps=None,
                         data__shuffle=False, checkpoint__every=1, **changes)
        deck["model"] = {"init_from": str(self.dir / f"{of}_hf")}
        self.train(ranks, self.deck(of, deck))
        path = self.dir / of / "checkpoints" / "step_00000001" / "model.h5"
        with h5py.File(path) as file:
            return {key: np.asarray(data, np.float64) for key, data in file["sgd_m"].items()}

    def check_step(self, name, step, g, compressed, norm, still):
        """Step `step` + 1 from the state before it, by the gradient there."""
        before, after = self.state(name, step), self.state(name, step + 1)
        squares, travelled = 0, 0
        for key, x in before["master"].items():
            m, v = before["onebit_m"][key], before["onebit_v"][key]
            new, new_m, new_v = (after[row][key] for row in ROWS[:3])
            travels = key in after["gradient_error"]
            e, new_e = (s["gradient_error"].get(key, np.zeros(1)) for s in (before, after))
            of_tensor = f"{key} in step {step + 1}"
            size = np.abs(m).max() + np.abs(g[key]).max()
            wanted = B1 * m + (1 - B1) * g[key]
            if not compressed:
                np.testing.assert_allclose(new_m, wanted, rtol=0, atol=1e-5 * size, err_msg=of_tensor)
                np.testing.assert_allclose(new_v, B2 * v + (1 - B2) * g[key]**2, rtol=0,
                                           atol=3e-5 * size**2, err_msg=of_tensor)
                self.assertFalse(new_e.any(), of_tensor)
            else:
                np.testing.assert_array_equal(new_v, v, of_tensor)
                self.assertEqual(travels, x.ndim > 1 and key not in still, of_tensor)
                if travels:
                    travelled += x.size
                    # What roundings lose now is what they lost before and what came new, less what
                    # all ranks got; but for the errors' own, 2^-9 of each in bf16, of which every rank
                    # has about as much as all together, up to the largest element.
                    error = 2**-8 * (size + np.abs(e).max() + np.abs(new_e).max())
                    np.testing.assert_allclose(new_m + new_e, wanted + e, rtol=0, atol=4 * error,
                                               err_msg=of_tensor)
                    self.assertLessEqual(len(np.unique(np.abs(new_m))), x.size // 256 + 9, of_tensor)
                else:
                    np.testing.assert_allclose(new_m, wanted, rtol=0, atol=1e-5 * size,
                                               err_msg=of_tensor)
                squares += (((new_m - B1 * m) / (1 - B1))**2).sum()
            step_of = new_m / (np.sqrt(new_v) + EPS) + (DECAY * x if x.ndim > 1 else 0)
            np.testing.assert_allclose(new, x - LR * step_of, rtol=0, atol=4e-7, err_msg=of_tensor)
        if compressed:
            self.assertAlmostEqual(norm / squares**0.5, 1, delta=1e-4)
            self.assertGreater(travelled, 0.6 * sum(x.size for x in before["master"].values()))

    def check_run(self, name, ranks, steps, after, at=None, still=(), **changes):
        """`still`: matrices whose gradients are summed all the same."""
        deck = onebit(self.corpus, after, run__steps=steps, checkpoint__every=1, checkpoint__keep=99,
                      **changes)
        path = self.deck(name, deck)
        self.train(ranks, path, *((f"run.steps={at}",) if at else ()))
        if at:  # goes on with other ranks and another stage
            ranks = 2 * ranks
            self.train(ranks, path, "zero.stage=1")
            events = metrics.read_events(self.dir / name)
            self.assertTrue(any(e["event"] == "resume" and e["step"] == at for e in events), events)
        numbers = self.numbers(name)
        same = {key: value for key, value in changes.items()
                if key.split("__")[0] in ("precision", "parallel")}
        for step in range(1, steps):
            g = self.gradient(name, step, ranks, **same)
            self.check_step(name, step, g, step >= after, numbers[step + 1][1], still)

    def test_each_step_is_the_formulas(self):
        self.check_run("nodes", 4, 6, 3, parallel__ranks_per_node=2, zero__stage=2)

    def test_f16_and_state_on_the_host(self):
        self.check_run("f16", 2, 5, 2, precision__compute="f16", precision__loss_scale=1024.0,
                       offload__optimizer="host", run__backend="cpu", checkpoint__async=False)

    def test_46_errors_go_on_in_another_layout(self):
        self.check_run("restart", 2, 6, 2, at=4)

    def test_35_stages_and_places_of_state_give_the_same_bits(self):
        """In blocks of whole shards, which are the same at all stages."""
        def run(name, **changes):
            deck = onebit(self.corpus, 3, run__steps=8, **changes)
            return self.train(4, self.deck(name, deck))
        for nodes in (0, 2):
            nodes = {"parallel__ranks_per_node": nodes}
            want = run(f"want{nodes['parallel__ranks_per_node']}", zero__stage=0, **nodes)
            name = f"got{nodes['parallel__ranks_per_node']}"
            for k, changes in enumerate((
                    {"zero__stage": 1}, {"zero__stage": 2, "zero__reduce": "step"},
                    {"zero__stage": 1, "offload__optimizer": "host"},
                    {"zero__stage": 2, "zero__reduce": "step", "offload__optimizer": "nvme", "offload__gradients": "host",
                     "offload__parameters": "host", "offload__nvme": [str(self.dir)]})):
                with self.subTest(nodes=nodes, changes=changes):
                    self.assertEqual(run(f"{name}_{k}", **changes, **nodes), want)

    def test_33_a_tied_matrix_on_two_stages_stays_as_it_is(self):
        self.check_run("pipeline", 4, 5, 2, parallel__pipeline=2, zero__stage=1,
                       guard__check_replicas=1, still={"vocabulary.weight"})

    def test_19_beside_tensor_ranks(self):
        self.check_run("tensor", 6, 5, 2, parallel__tensor=3, parallel__sequence=False,
                       zero__stage=2, guard__check_replicas=1, still={"positions.weight"})

    def test_45_a_restart_before_the_switch_changes_nothing(self):
        """Nor one where momentum is gathered: the steps done again give the numbers they gave."""
        path = self.deck("again", onebit(self.corpus, 4, run__steps=9, zero__stage=1,
                                         checkpoint__every=2, checkpoint__keep=99))
        self.train(2, path)
        for at in (4, 2):
            for checkpoint in (self.dir / "again" / "checkpoints").glob("step_*"):
                if int(checkpoint.name[5:]) > at:
                    shutil.rmtree(checkpoint)
            self.train(2, path)
        resumed = [e["step"] for e in metrics.read_events(self.dir / "again")
                   if e["event"] == "resume"]
        self.assertEqual(resumed, [4, 2])

    def test_40_skipped_steps_leave_no_trace(self):
        """Of a gradient that is not finite on one rank, in warm-up, at the switch and behind it."""
        base = onebit(self.corpus, 3, run__steps=10, zero__stage=1, checkpoint__every=10)
        for offload in ("none", "host"):
            base["offload"] = {"optimizer": offload}
            base["run"]["dir"] = str(self.dir / f"want_{offload}")
            want = self.train(2, self.deck(f"want_{offload}", base))
            for skipped in (2, 4, 6):
                name = f"{offload}_{skipped}"
                deck = {**base, "run": {**base["run"], "steps": 11, "dir": str(self.dir / name)},
                        "fault": {"inject": [
                            f"nan rank=1 step={skipped} tensor=block.1.mlp.up.weight"]}}
                with self.subTest(name):
                    got = self.train(2, self.deck(name, deck))
                    kept = [got[step] for step in sorted(got) if step != skipped]
                    self.assertEqual(kept, [want[step] for step in sorted(want)])

    def test_decks_that_cannot_have_it(self):
        for changes, message in (
                ({"zero__stage": 3}, r"zero\.stage is not possible with .*onebit_adam.*0, 1 or 2"),
                ({"optimizer__clip_norm": 1.0}, r"optimizer\.clip_norm is not possible"),
                ({"run__steps": 3}, r"compress_after = 3 is not before the end of the run"),
                ({"optimizer__compress_after": None}, r"compress_after is missing"),
                ({"optimizer__moments": "bf16"}, r"optimizer\.moments is not possible"),
                ({"run__reproducible": "layout", "run__threads": 1},
                 r"run\.reproducible is not possible"),
                ({"precision__accumulate": "bf16"}, r"precision\.accumulate is not possible")):
            with self.subTest(changes):
                deck = onebit(self.corpus, 3)
                for key, value in changes.items():
                    section, name = key.split("__")
                    deck.setdefault(section, {})[name] = value
                    if value is None:
                        del deck[section][name]
                job = self.run_job(0, "check", self.deck("refused", deck), "--ranks", 2)
                self.assertEqual(job.code, 2, job.output)
                self.assertRegex(job.output, re.compile(message))


if __name__ == "__main__":
    unittest.main(verbosity=2)
