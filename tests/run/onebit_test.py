"""1-bit Adam (Tang et al. 2021, algorithm 1) and 1-bit LAMB (Li et al. 2021, algorithm 1): momentum that
travels as signs, against NumPy in fp64, over ZeRO stages, offloading, nodes, types, and over
restarts."""

import re
import shutil
import unittest

import h5py
import numpy as np

from tessera import RunTest, metrics, tiny_deck, write_tokens

B1, B2, DECAY, LR = 0.8, 0.95, 0.05, 2e-3
EPS = {"onebit_adam": 1e-4, "onebit_lamb": 1e-8}
BOTH = ("onebit_adam", "onebit_lamb")
B3, TRUST, R_MIN, R_MAX, R_THRESHOLD = 0.7, (0.02, 3.0), 0.8, 1.5, 0.125
ROWS = ("master", "onebit_m", "onebit_v", "gradient_error", "onebit_v_running", "onebit_c", "onebit_r", "ema")
EMA = 0.75


def onebit(corpus, after, rule="onebit_adam", **changes):
    """A deck whose steps all take the same batch: the corpus has no more."""
    if rule == "onebit_lamb":
        changes = {"optimizer__beta3": B3, "optimizer__trust": list(TRUST),
                   "optimizer__r_min": R_MIN, "optimizer__r_max": R_MAX,
                   "optimizer__r_threshold": R_THRESHOLD, **changes}
    deck = tiny_deck(corpus, optimizer__name=rule, optimizer__compress_after=after,
                     optimizer__betas=[B1, B2], optimizer__eps=EPS[rule],
                     optimizer__weight_decay=DECAY,
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

    def check_step(self, name, step, g, after_update, norm, still, rule):
        """Step `step` + 1 from the state before it, by the gradient there."""
        before, after = self.state(name, step), self.state(name, step + 1)
        compressed = step >= after_update
        squares, travelled, ratios = 0, 0, set()
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
            decay = DECAY * x if x.ndim > 1 else 0
            if rule == "onebit_adam":
                of_step = new_m / (np.sqrt(new_v) + EPS[rule]) + decay
            else:
                u = new_m / np.sqrt(new_v + EPS[rule]) + decay
                c, r = (after[row][key].item() for row in ("onebit_c", "onebit_r"))
                last_c, last_r = (before[row][key].item() for row in ("onebit_c", "onebit_r"))
                if compressed:
                    self.assertEqual(c, last_c, of_tensor)
                    last_r = last_r or 1
                    moved = (new_m - B1 * m) / (1 - B1)
                    running = v if step == after_update else before["onebit_v_running"][key]
                    wanted = B2 * running + (1 - B2) * moved**2
                    got = after["onebit_v_running"][key]
                    # The gradient is made of two momenta: 1 / (1 - beta1) of their rounding.
                    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=2e-6 * size**2,
                                               err_msg=of_tensor)
                    largest = (v[v > 0] / got[v > 0]).max()
                    wanted = np.clip(np.clip(largest, (1 - R_THRESHOLD) * last_r,
                                             (1 + R_THRESHOLD) * last_r), R_MIN, R_MAX)
                    self.assertAlmostEqual(r / wanted, 1, delta=1e-5, msg=of_tensor)
                    ratios.add(r)
                    of_step = c * r * u
                else:
                    norms = np.linalg.norm(x), np.linalg.norm(u)
                    trust = np.clip(norms[0] / norms[1], *TRUST) if min(norms) > 0 else 1
                    self.assertAlmostEqual(c, B3 * last_c + (1 - B3) * trust, delta=2e-6 * (1 + c),
                                           msg=of_tensor)
                    self.assertEqual(r, 0, of_tensor)
                    of_step = trust * u
            size = 1 + np.abs(LR * of_step).max()
            np.testing.assert_allclose(new, x - LR * of_step, rtol=0, atol=4e-7 * size,
                                       err_msg=of_tensor)
            if "ema" in after:
                wanted = EMA * before["ema"][key] + (1 - EMA) * new
                np.testing.assert_allclose(after["ema"][key], wanted, rtol=0, atol=4e-7 * size,
                                           err_msg=of_tensor)
        if compressed:
            self.assertAlmostEqual(norm / squares**0.5, 1, delta=1e-4)
            self.assertGreater(travelled, 0.6 * sum(x.size for x in before["master"].values()))

    def check_run(self, name, ranks, steps, after, rule="onebit_adam", at=None, still=(), **changes):
        """`still`: matrices whose gradients are summed all the same."""
        deck = onebit(self.corpus, after, rule, run__steps=steps, checkpoint__every=1, checkpoint__keep=99,
                      **changes)
        path = self.deck(name, deck)
        self.train(ranks, path, *((f"run.steps={at}",) if at else ()))
        if at:  # goes on with other ranks and another stage
            ranks = 2 * ranks
            self.train(ranks, path, "zero.stage=1")
            events = metrics.read_events(self.dir / name)
            self.assertTrue(any(e["event"] == "resume" and e["step"] == at for e in events), events)
            self.assertIn("roundings have lost goes on as the sum of all ranks'",
                          (self.dir / name / "log.txt").read_text())
        numbers = self.numbers(name)
        same = {key: value for key, value in changes.items()
                if key.split("__")[0] in ("precision", "parallel")}
        for step in range(1, steps):
            if "precision__loss_scale_window" in same:  # what f16 rounds to 0 depends on the scale
                same["precision__loss_scale"] = self.steps_of(name)[step]["loss_scale"]
            g = self.gradient(name, step, ranks, **same)
            self.check_step(name, step, g, after, numbers[step + 1][1], still, rule)

    def test_each_step_is_the_formulas(self):
        for rule in BOTH:
            self.check_run(rule, 4, 6, 3, rule, parallel__ranks_per_node=2, zero__stage=2)

    def test_lamb_on_several_stages_with_its_state_on_disks(self):
        self.check_run("lamb", 4, 6, 2, "onebit_lamb", parallel__pipeline=2, zero__stage=1,
                       optimizer__ema=EMA, offload__optimizer="nvme", offload__nvme=[str(self.dir)],
                       still={"vocabulary.weight"})

    def test_f16_and_state_on_the_host(self):
        self.check_run("f16", 2, 5, 2, precision__compute="f16", precision__loss_scale=1024.0,
                       optimizer__ema=EMA, offload__optimizer="host", run__backend="cpu", checkpoint__async=False)

    def test_a_loss_scale_that_doubles_over_the_switch(self):
        self.check_run("scaled", 2, 5, 2, precision__compute="f16", precision__loss_scale_power=12,
                       precision__loss_scale_window=1, zero__stage=2)
        scales = [step["loss_scale"] for step in self.steps_of("scaled")]
        self.assertEqual(scales, [2.0 ** (12 + step) for step in range(5)])

    def test_46_errors_go_on_in_another_layout(self):
        for rule in BOTH:
            self.check_run(rule, 2, 6, 2, rule, at=4)

    def test_35_stages_and_places_of_state_give_the_same_bits(self):
        """In blocks of whole shards, which are the same at all stages."""
        places = ({"zero__stage": 1}, {"zero__stage": 2, "zero__reduce": "step"},
                  {"zero__stage": 1, "offload__optimizer": "host"},
                  {"zero__stage": 2, "zero__reduce": "step", "offload__optimizer": "nvme",
                   "offload__gradients": "host", "offload__parameters": "host",
                   "offload__nvme": [str(self.dir)]})
        for rule in BOTH:
            for per_node in (0, 2):
                def run(name, **changes):
                    name = f"{rule}_{per_node}_{name}"
                    deck = onebit(self.corpus, 3, rule, run__steps=8,
                                  parallel__ranks_per_node=per_node, **changes)
                    return self.train(4, self.deck(name, deck))
                want = run("want", zero__stage=0)
                for k, changes in enumerate(places):
                    with self.subTest(rule=rule, per_node=per_node, changes=changes):
                        self.assertEqual(run(k, **changes), want)

    def test_33_a_tied_matrix_on_two_stages_stays_as_it_is(self):
        self.check_run("pipeline", 4, 5, 2, parallel__pipeline=2, zero__stage=1,
                       guard__check_replicas=1, still={"vocabulary.weight"})

    def test_19_beside_tensor_ranks(self):
        self.check_run("tensor", 6, 5, 2, parallel__tensor=3, parallel__sequence=False,
                       zero__stage=2, guard__check_replicas=1, still={"positions.weight"})

    def test_45_a_restart_before_the_switch_changes_nothing(self):
        """Nor one where momentum is gathered: the steps done again give the numbers they gave."""
        for rule in BOTH:
            path = self.deck(rule, onebit(self.corpus, 4, rule, run__steps=9, zero__stage=1,
                                          checkpoint__every=2, checkpoint__keep=99))
            self.train(2, path)
            for at in (4, 2):
                for checkpoint in (self.dir / rule / "checkpoints").glob("step_*"):
                    if int(checkpoint.name[5:]) > at:
                        shutil.rmtree(checkpoint)
                self.train(2, path)
            resumed = [e["step"] for e in metrics.read_events(self.dir / rule)
                       if e["event"] == "resume"]
            self.assertEqual(resumed, [4, 2])

    def test_40_skipped_steps_leave_no_trace(self):
        """Of a gradient that is not finite on one rank, in warm-up, at the switch and behind it."""
        for rule, offload in (("onebit_adam", "none"), ("onebit_adam", "host"),
                              ("onebit_lamb", "none"), ("onebit_lamb", "host")):
            base = onebit(self.corpus, 3, rule, run__steps=10, zero__stage=1, checkpoint__every=10,
                          offload__optimizer=offload)
            offload = f"{rule}_{offload}"
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
                ({"optimizer__r_min": 3.0, "optimizer__name": "onebit_lamb",
                  "optimizer__r_max": 2.0}, r"r_min = 3.* is more than optimizer\.r_max = 2"),
                ({"optimizer__beta3": 0.5}, r"beta3 has no effect"),
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
        deck = onebit(self.corpus, 5, run__steps=None, run__epochs=5)
        job = self.run_job(2, "train", self.deck("short", deck), each=True)
        self.assertEqual(job.codes, [2, 2], job.output)
        self.assertIn("compress_after = 5 is not before the end of the run, which has 5 steps",
                      job.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
