"""Adapters beside a frozen model: as PyTorch trains them, the same bits on every layout and over restarts, what
stays as it is, and what is refused."""

import json
import re
import shutil
import struct
import unittest

import h5py

from small_models import LAYOUTS, SmallModels
from tessera import SOURCE, change, some_of, write_tokens

import adapter_models
import expert_models

ANY_LAYOUT = {"run__reproducible": "layout", "run__reproducible_tensor": 2, "run__threads": 1,
              "adapter__dropout": 0.2, "checkpoint__every": 2, "checkpoint__keep": 9}


# What a deck does not say of a model that begins with a directory.
OF_DIRECTORY = {"model__" + key: None for key in ("layers", "heads", "hidden", "vocab", "family",
                                                  "context", "init_std")}


class AdapterTest(SmallModels):
    models, oracle = adapter_models, "adapters.json"

    def same_bits(self, model, layouts, **fixed):
        """Those of one rank, on every layout, and where step 4 is gone on from on another."""
        want = self.train(1, self.deck_of(f"{model}_one", model, **fixed))
        for ranks, layout in some_of(layouts):
            with self.subTest(model=model, **layout):
                name = "_".join([model, *(k.split("__")[1] for k in layout)])
                deck = self.deck_of(name, model, **{**fixed, **layout})
                self.assertEqual(self.train(ranks, deck), want)
        self.go_back(f"{model}_one", 4)
        deck = self.deck_of(f"{model}_one", model, **fixed, parallel__tensor=2, zero__stage=3)
        self.assertEqual(self.train(4, deck), want)


class Oracle(AdapterTest):
    LENGTHS = ("lengths", "llama_lengths")

    def test_queries_and_values(self):
        self.compare("gpt2", LAYOUTS)

    def test_all_matrices_beside_one_kv_head(self):
        self.compare("llama", LAYOUTS)

    def test_some_matrices_of_some_layers(self):
        self.compare("some", LAYOUTS[1:5])

    def test_lengths_of_rows(self):
        """Beside matrices with biases, of which one product serves some with adapters and one without;
        and beside keys and values that every tensor rank has whole."""
        for model in self.LENGTHS:
            self.compare(model, LAYOUTS[:6], like=self.LENGTHS)

    def test_lengths_begin_as_the_model_has_them(self):
        """B is 0 at the start, so the first step's loss is that without them: but for the rounding of a
        root, a quotient and a product, which a whole model of 14 matrices moves by less than 1e-5."""
        for model in self.LENGTHS:
            for type in ("none", "nf4", "int8"):
                codes = {} if type == "none" else {"frozen__type": type, "frozen__block": 16}
                losses = [self.train(2, self.deck_of(f"{model}_{type}_{kind}", model, adapter__kind=kind,
                                                     run__steps=1, zero__stage=3, **codes))[1][0]
                          for kind in ("dora", "lora")]
                self.assertAlmostEqual(*losses, delta=1e-5)


class Bits(AdapterTest):
    def test_every_layout_and_restart_has_the_same_bits(self):
        for model, compute in (("llama", "f32"), ("gpt2", "bf16")):
            fixed = {**ANY_LAYOUT, "precision__compute": compute, "adapter__targets": ["*"]}
            self.same_bits(model, (
                (2, {"parallel__tensor": 2, "parallel__sequence": False}),
                (4, {"parallel__tensor": 2, "zero__stage": 3}),
                (4, {"parallel__pipeline": 2, "zero__stage": 1,
                     "recompute__policy": "selective"}),
                (2, {"zero__stage": 2, "recompute__policy": "full"}),
                (2, {"zero__stage": 3, "offload__parameters": "host", "zero__tiles": 2})), **fixed)

    def test_lengths_have_the_same_bits_on_every_layout(self):
        for model, compute in (("llama_lengths", "f32"), ("lengths", "bf16")):
            fixed = {**ANY_LAYOUT, "precision__compute": compute, "run__reproducible_context": 2,
                     "model__context": 16}
            self.same_bits(model, (
                (2, {"parallel__tensor": 2, "parallel__sequence": False}),
                (4, {"parallel__tensor": 2, "zero__stage": 3}),
                (2, {"parallel__context": 2, "zero__stage": 3}),
                (4, {"parallel__pipeline": 2, "zero__stage": 1, "recompute__policy": "selective"}),
                (2, {"zero__stage": 3, "offload__parameters": "host",
                     "recompute__policy": "full"})), **fixed)

    def test_masks_do_not_depend_on_the_layout(self):
        """Also where bits are not promised: with other masks losses would differ in the second digit."""
        dropout = {"adapter__dropout": 0.5, "adapter__targets": ["*"], "run__steps": 6}
        want = self.train(1, self.deck_of("one", "llama", **dropout))
        without = self.train(1, self.deck_of("without", "llama", **dropout), "adapter.dropout=0")
        self.assertGreater(abs(want[6][0] - without[6][0]), 1e-3)
        for ranks, layout in ((2, {"parallel__tensor": 2}),
                              (4, {"parallel__tensor": 4, "parallel__sequence": False}),
                              (2, {"parallel__pipeline": 2, "recompute__policy": "full"})):
            with self.subTest(**layout):
                got = self.train(ranks, self.deck_of(f"on_{ranks}_{len(layout)}", "llama",
                                                     **dropout, **layout))
                self.assert_close(got, want, 2e-5, layout)


class Codes(AdapterTest):
    """A frozen model whose matrices are kept as codes with a scale a block."""

    def test_they_train_as_the_numbers_that_they_stand_for(self):
        """To the bit: a model that is exported as what its codes are worth is the same beside the same
        adapters, without any codes. Losses of int8, whose steps are 18 times finer, are nearer to those
        of the model itself."""
        distance = {}
        exact = self.train(1, self.deck_of("exact", "gpt2", adapter__targets=["*"]))
        for type in ("int8", "int4", "nf4"):
            with self.subTest(type=type):
                codes = {"frozen__type": type, "frozen__block": 32, "adapter__targets": ["*"]}
                # Nothing is added by B, which is 0 in the beginning and stays so.
                self.train(1, self.deck_of(f"{type}_still", "gpt2", **codes, run__steps=1,
                                           optimizer__lr=1e-30, optimizer__eps=1))
                job = self.run_job(0, "export", self.dir / f"{type}_still", "--merged", "--to",
                                   self.dir / f"{type}_base")
                self.assertEqual(job.code, 0, job.output)
                want = self.train(1, self.deck_of(type, "gpt2", **codes))
                deck = self.deck_of(f"{type}_beside", "gpt2", adapter__targets=["*"],
                                    model__init_from=str(self.dir / f"{type}_base"), **OF_DIRECTORY)
                self.assertEqual(self.train(1, deck), want)
                distance[type] = sum(abs(want[s][0] - exact[s][0]) for s in want)
        self.assertGreater(distance["int8"], 0)
        self.assertLess(distance["int8"], distance["int4"] / 4)

    def test_every_layout_and_restart_has_the_same_bits(self):
        for model, compute, type in (("llama", "bf16", "nf4"), ("gpt2", "f32", "int8")):
            fixed = {**ANY_LAYOUT, "precision__compute": compute, "adapter__targets": ["*"],
                     "frozen__type": type, "frozen__block": 16}
            self.same_bits(model, (
                (2, {"parallel__tensor": 2, "parallel__sequence": False}),
                (4, {"parallel__tensor": 2, "zero__stage": 3, "offload__parameters": "host"}),
                (4, {"parallel__pipeline": 2, "zero__stage": 1, "guard__check_replicas": 1,
                     "recompute__policy": "selective"}),
                (2, {"zero__stage": 3, "zero__secondary": 1, "zero__tiles": 2}),
                (2, {"zero__stage": 3, "offload__parameters": "nvme", "offload__optimizer": "nvme",
                     "offload__gradients": "nvme", "offload__nvme": [str(self.dir)]}),
                (1, {"offload__parameters": "nvme", "offload__nvme": [str(self.dir)]}),
                (2, {"zero__stage": 2, "offload__parameters": "host",
                     "offload__optimizer": "nvme", "offload__nvme": [str(self.dir)]})), **fixed)

    def test_what_disks_have_is_saved(self):
        """At every stage, beside steps and not; another layout goes on from it."""
        fixed = {**ANY_LAYOUT, "adapter__targets": ["*"], "frozen__type": "nf4", "frozen__block": 16,
                 "run__steps": 4, "checkpoint__every": 2, "checkpoint__keep": 2}
        want = self.train(1, self.deck_of("kept", "llama", **fixed))
        for name, ranks, layout in (("whole", 2, {"zero__stage": 1}), ("shards", 2, {"zero__stage": 3}),
                                    ("late", 1, {"checkpoint__async": False})):
            with self.subTest(**layout):
                disks = {"offload__parameters": "nvme", "offload__nvme": [str(self.dir)], **layout}
                deck = self.deck_of(name, "llama", **{**fixed, **disks})
                self.assertEqual(self.train(ranks, deck), want)
                self.go_back(name, 2)
                self.assertEqual(self.train(1, self.deck_of(name, "llama", **fixed)), want)

    def test_options_plan_codes_on_disks(self):
        deck = self.deck_of("run", "gpt2", frozen__type="int4", frozen__block=32)
        job = self.run_job(0, "check", deck, "--ranks", 2, "--options")
        self.assertEqual(job.code, 0, job.output)
        rows = re.findall(r"^[0-3] +\S+ +\S+ +(\S+) ", job.output, re.M)
        self.assertEqual((len(rows), rows.count("nvme")), (24, 4), job.output)

    def test_evaluation_is_that_of_the_numbers_that_they_stand_for(self):
        deck = self.deck_of("run", "llama", frozen__type="int4", run__steps=5, checkpoint__every=5,
                            data__validation=[str(self.corpus)])
        self.train(2, deck, "zero.stage=3")
        losses = []
        for sets in ((), ("--set", "frozen.type=none")):
            job = self.run_job(1, "evaluate", self.dir / "run", *sets)
            self.assertEqual(job.code, 0, job.output)
            losses.append(re.search(r"loss (\d+\.\d+)", job.output)[1])
        self.assertEqual(losses[0], losses[1])

    def base(self, model):
        """The directory of the model that a deck of that name begins with."""
        self.train(1, self.deck_of(f"{model}_still", model, run__steps=1, adapter__kind="none",
                                   adapter__rank=None, adapter__alpha=None, adapter__targets=None,
                                   optimizer__lr=1e-30, optimizer__eps=1))
        self.ran_well("export", self.dir / f"{model}_still", "--to", self.dir / f"{model}_base")
        return self.dir / f"{model}_base"

    def ran_well(self, *arguments):
        job = self.run_job(0, *arguments)
        self.assertEqual(job.code, 0, job.output)
        return job.output

    def from_directory(self, name, model, directory, **changes):
        return self.deck_of(name, model, adapter__targets=["*"], model__init_from=str(directory),
                            **OF_DIRECTORY, **changes)

    def test_a_directory_of_codes(self):
        """Has the codes that a run makes of the model, and their values without them."""
        for model, type in (("gpt2", "nf4"), ("some", "int8")):
            with self.subTest(model=model):
                base, coded = self.base(model), self.dir / f"{model}_codes"
                said = self.ran_well("quantize", base, "--to", coded, "--codes", type, "--block", 16)
                codes = {"frozen__type": type, "frozen__block": 16}
                deck = self.from_directory(f"{model}_run", model, base, **codes)
                job = self.run_job(1, "train", deck)
                note = re.search(r"note: .* loses.*", job.output)[0]
                self.assertIn(note, said)
                want = self.numbers(f"{model}_run")
                for name, ranks, changes in (("same", 1, codes), ("values", 1, {}),
                                             ("divided", 2, {**codes, "zero__stage": 3})):
                    deck = self.from_directory(f"{model}_{name}", model, coded, **changes)
                    job = self.run_job(ranks, "train", deck)
                    self.assertEqual(job.code, 0, job.output)
                    self.assertNotIn("loses", job.output)
                    got = self.numbers(f"{model}_{name}")
                    if ranks == 1:
                        self.assertEqual(got, want)
                    else:
                        self.assert_close(got, want, 2e-5, name)
                deck = self.deck_of(f"{model}_part", model, **OF_DIRECTORY, **codes,
                                    model__init_from=str(coded), frozen__layers=["block.0"],
                                    **{f"adapter__{key}": None for key in ("rank", "alpha", "targets")},
                                    adapter__kind="none")
                job = self.run_job(1, "train", deck)
                self.assertEqual(job.code, 0, job.output)
                self.assertRegex(job.output, r"note: .* has block\.1\.[^\n]*; this run keeps them whole")
                self.assertIn(f"matrices   {type} in blocks of 16\n", self.ran_well("inspect", coded))
                self.assertLess((coded / "model.safetensors").stat().st_size,
                                (base / "model.safetensors").stat().st_size)

    def test_what_is_no_code_has_the_type_that_it_had(self):
        half, coded = self.dir / "half", self.dir / "half_codes"
        self.ran_well("import", self.base("gpt2"), "--to", self.dir / "imported")
        self.ran_well("export", self.dir / "imported", "--to", half, "--type", "bf16")
        self.ran_well("quantize", half, "--to", coded, "--codes", "int4", "--block", 16)
        data = (coded / "model.safetensors").read_bytes()
        header = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
        header.pop("__metadata__", None)
        types = {"codes": set(), "scales": set(), "": set()}
        for name, entry in header.items():
            kind = name.rpartition(".")[2]
            types[kind if kind in types else ""].add(entry["dtype"])
        self.assertEqual(types, {"codes": {"U8"}, "scales": {"F32"}, "": {"BF16"}})

    def test_a_directory_of_other_codes(self):
        coded = self.dir / "codes"
        self.ran_well("quantize", self.base("gpt2"), "--to", coded, "--codes", "int4", "--block", 32)
        for verb, ranks, changes, text in (
                ("check", 0, {"frozen__type": "int4", "frozen__block": 16}, "has its matrices as int4 in blocks "
                 'of 32, which would be rounded once more as int4 in blocks of 16: set frozen.type = "int4" '
                 "and frozen.block = 32"),
                ("train", 1, {"frozen__type": "nf4", "frozen__block": 32}, "as nf4 in blocks of 32"),
                # Each rank has 16 of 32 columns.
                ("train", 2, {"frozen__type": "int4", "frozen__block": 32, "parallel__tensor": 2},
                 "frozen.block: on this layout blocks of 32 are of other elements than in")):
            with self.subTest(verb=verb, ranks=ranks, **changes):
                deck = self.from_directory("run", "gpt2", coded, **changes)
                job = self.run_job(ranks, verb, deck, *(() if ranks else ("--ranks", 1)))
                self.assertEqual(job.code, 2, job.output)
                self.assertIn(text, " ".join(job.output.split()))
        self.train(1, self.deck_of("adapted", "gpt2", run__steps=1))
        self.assertIn("has its matrices as int4 in blocks of 32, whose values are taken",
                      self.ran_well("import", coded, "--to", self.dir / "imported"))
        for source, block, text in ((coded, 32, "has its matrices as int4 in blocks of 32 already"),
                                    (self.dir / "adapted", 32, "export --merged"),
                                    (self.dir / "gpt2_base", 64, "legal here: 16, 32"),
                                    (self.dir / "nowhere", 32, "nowhere")):
            job = self.run_job(0, "quantize", source, "--to", self.dir / "again", "--block", block)
            self.assertIn(job.code, (2, 3), job.output)
            self.assertIn(text, " ".join(job.output.split()))
            self.assertFalse((self.dir / "again").exists())

    def test_a_flipped_bit_is_found(self):
        deck = self.deck_of("run", "llama", frozen__type="int8", guard__check_replicas=1,
                            fault__inject=["flip rank=1 step=3 tensor=block.1.mlp.up.weight"])
        job = self.run_job(2, "train", deck)
        self.assertEqual(job.code, 5, job.output)
        self.assertIn("block.1.matrices differs", job.output)

    def test_what_is_shown_and_what_it_takes(self):
        deck = self.deck_of("run", "gpt2", frozen__type="int4", frozen__block=32)
        job = self.run_job(0, "check", deck, "--ranks", 2)
        self.assertEqual(job.code, 0, job.output)
        self.assertIn("frozen, the matrices of blocks as int4 in blocks of 32", job.output)
        job = self.run_job(1, "train", deck)
        lost = dict((name, (float(share), int(layer))) for name, share, layer in
                    re.findall(r" ([a-z.]+\.weight) (0\.\d+) \(block (\d+)\)", job.output))
        self.assertEqual(set(lost), {f"{name}.weight" for name in (
            "attention.q", "attention.k", "attention.v", "attention.out", "mlp.up", "mlp.down")})
        # Normal numbers in 15 steps: of blocks of 32 the largest is about 2 deviations off, and an
        # even error within a step of 2 / 7 has a mean square of a twelfth of its square.
        for share, layer in lost.values():
            self.assertTrue(0.06 < share < 0.12 and layer < 2, lost)


    def test_blocks_that_another_layout_has_of_other_elements(self):
        """Keys and values are whole beside more tensor ranks than kv heads, and 40 columns are no
        two blocks of 32."""
        coded = {"frozen__type": "int4", "frozen__block": 32, "checkpoint__every": 2,
                 "run__steps": 2, "data__validation": [str(self.corpus)]}
        deck = self.deck_of("run", "llama", **coded, parallel__tensor=2)
        self.train(2, deck)
        for verb in ("train", "evaluate"):
            job = self.run_job(1, verb, deck, "--set", "parallel.tensor=1", "--set", "run.steps=4")
            self.assertEqual(job.code, 2, job.output)
            text = " ".join(job.output.split())
            self.assertIn("was made on another layout, where blocks of 32 were of other elements", text)
            self.assertIn("(parallel.tensor = 2, parallel.experts = 1, zero.tiles = 1)", text)
        job = self.run_job(1, "evaluate", self.dir / "run", "--set", "parallel.tensor=1", "--set",
                           "frozen.type=none", "--set", "frozen.block=64")
        self.assertEqual(job.code, 0, job.output)
        self.train(2, deck, "run.steps=4")
        # A model that was imported has no codes yet.
        run = self.dir / "imported"
        job = self.run_job(0, "import", SOURCE / "tests/data/hf/gpt2", "--to", run)
        self.assertEqual(job.code, 0, job.output)
        write_tokens(self.dir / "few", vocab=11)
        text = (run / "deck.toml").read_text().replace('# train = ["PREFIX"]',
                                                       f'train = ["{self.dir / "few"}"]')
        (run / "deck.toml").write_text(text + '[frozen]\ntype = "int8"\nlayers = ["block.0"]\n')
        job = self.run_job(1, "train", run / "deck.toml", "--set", "run.steps=1")
        self.assertEqual(job.code, 0, job.output)
        self.assertIn("note: int8 in blocks of 64 loses", job.output)

    def test_numbers_that_the_compute_type_does_not_have(self):
        """Are found in what becomes codes too."""
        base = self.dir / "base"
        self.train(1, self.deck_of("plain", "gpt2", run__steps=1, adapter__kind="none",
                                   adapter__rank=None, adapter__alpha=None))
        self.run_job(0, "export", self.dir / "plain", "--to", base)
        path = base / "model.safetensors"
        data = bytearray(path.read_bytes())
        begin = 8 + int.from_bytes(data[:8], "little")
        at = begin + json.loads(data[8:begin])["transformer.h.1.mlp.c_fc.weight"]["data_offsets"][0]
        data[at:at + 4] = struct.pack("<f", 1e5)
        path.write_bytes(data)
        deck = self.deck_of("run", "gpt2", frozen__type="int8", precision__compute="f16",
                            model__init_from=str(base), **OF_DIRECTORY)
        job = self.run_job(2, "train", deck)
        self.assertEqual(job.code, 3, job.output)
        self.assertIn("transformer.h.1.mlp.c_fc.weight", job.output)


class FrozenLayers(AdapterTest):
    def layers(self, name, model, **changes):
        deck = adapter_models.deck(model, self.corpus)
        del deck["adapter"]
        return self.deck(name, change(deck, optimizer__clip_norm=0.0, **changes))

    def test_they_stay_and_the_others_learn_as_beside_a_rate_of_0(self):
        for model, layers in (("gpt2", ["vocabulary", "positions", "block.0"]),
                              ("llama", ["block.1", "final_norm"])):
            groups = [{"match": f"{layer}.*", "lr_factor": 0.0, "weight_decay": 0.0}
                      for layer in layers]
            want = self.train(1, self.layers(f"{model}_slow", model, optimizer__groups=groups))
            for number, (ranks, layout) in enumerate(((1, {}), (2, {"zero__stage": 3}), (
                    2, {"parallel__pipeline": 2, "zero__stage": 1, "recompute__policy": "full"}))):
                with self.subTest(model=model, **layout):
                    name = f"{model}_{number}"
                    got = self.train(ranks, self.layers(name, model, frozen__layers=layers, **layout))
                    if ranks == 1:
                        self.assertEqual([loss for loss, norm in got.values()],
                                         [loss for loss, norm in want.values()])
                    self.assert_close({s: (loss, 1) for s, (loss, _) in got.items()},
                                      {s: (loss, 1) for s, (loss, _) in want.items()}, 2e-5, layout)
                    self.assertLess(got[1][1], 0.99 * want[1][1])
            file = h5py.File(next((self.dir / f"{model}_0").glob("checkpoints/step_*/model.h5")))
            moments = set(file["adam_m"])
            for key in file["master"]:
                frozen = any(key.startswith(layer + ".") for layer in layers)
                self.assertEqual(key not in moments, frozen, key)

    def test_they_may_be_codes(self):
        frozen = {"frozen__layers": ["vocabulary", "block.0"], "run__steps": 6}
        coded = {**frozen, "frozen__type": "int4", "frozen__block": 32}
        want = self.train(1, self.layers("codes", "llama", **coded))
        for layout in ({"zero__stage": 3}, {"parallel__pipeline": 2, "zero__stage": 1}):
            with self.subTest(**layout):
                name = f"codes_{len(layout)}"
                got = self.train(2, self.layers(name, "llama", **coded, **layout))
                self.assert_close(got, want, 2e-5, layout)
        whole = self.train(1, self.layers("whole", "llama", **frozen))
        self.assertGreater(abs(whole[6][0] - want[6][0]), 1e-4)

    def test_what_is_refused(self):
        for text, layers in (('"block.9" matches no layer, which are vocabulary, positions, block.N, '
                              "final_norm, of N below model.layers = 2", ["block.9"]),
                             ("leaves nothing that is trained", ["*"])):
            job = self.run_job(0, "check", self.layers("refused", "gpt2", frozen__layers=layers),
                               "--ranks", 1)
            self.assertEqual(job.code, 2, job.output)
            self.assertIn(text, job.output)
            # Whatever else there is.
            job = self.run_job(0, "check", self.dir / "refused.toml", "--ranks", 1, "--set",
                               'optimizer.groups=[{match="block.*", lr_factor=0.5}]')
            self.assertEqual(job.code, 2, job.output)
            self.assertIn(text, job.output)
        job = self.run_job(0, "check", self.deck_of("both", "gpt2", frozen__layers=["block.0"]),
                           "--ranks", 1)
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("frozen.layers = ", job.output)


class Refused(AdapterTest):
    def refuses(self, *texts, sets=(), **changes):
        job = self.run_job(0, "check", self.deck_of("refused", "gpt2", **changes), "--ranks", 1,
                           *(x for s in sets for x in ("--set", s)))
        self.assertEqual(job.code, 2, job.output)
        for text in texts:
            self.assertIn(text, job.output)

    def test_patterns_that_match_nothing(self):
        self.refuses('"*.attention.w.weight" matches no matrix', "block.N.attention.q.weight",
                     "block.N.mlp.down.weight of N below model.layers = 2",
                     adapter__targets=["*.q.weight", "*.attention.w.weight"])
        self.refuses('"vocabulary.weight" matches no matrix', adapter__targets=["vocabulary.weight"])
        self.refuses("adapter.targets is empty", adapter__targets=[])

    def test_keys_without_a_kind(self):
        self.refuses("adapter.rank has no effect without adapter.kind", adapter__kind="none",
                     adapter__alpha=None, adapter__rank=4)

    def test_what_adapters_do_not_go_with(self):
        self.refuses("is not possible with adapter.kind", optimizer__name="onebit_adam",
                     optimizer__compress_after=3, optimizer__clip_norm=0)
        self.refuses("optimizer.ema = 0.9 is not possible", optimizer__ema=0.9)
        self.refuses("zero.quantize.gradients", sets=["zero.quantize.gradients=int8"])
        self.refuses("task.kind", task__kind="classify", task__labels=3)
        self.refuses("zero.tiles = 2 is not possible with adapter.kind = \"dora\"",
                     adapter__kind="dora", zero__tiles=2)
        self.refuses("adapter.rank = 99 is more than model.hidden = 32", adapter__rank=99)

    def test_codes_that_nothing_is_kept_as(self):
        self.refuses("all of this model is trained", frozen__type="int4", adapter__kind="none",
                     adapter__rank=None, adapter__alpha=None)
        self.refuses("frozen.block has no effect without frozen.type", frozen__block=32)
        self.refuses("frozen.block = 33 is odd: use 32 or 34", frozen__type="int8", frozen__block=33)
        self.refuses("frozen.block", "16", frozen__type="int8", frozen__block=8)

    def test_other_codes_on_resume(self):
        self.train(1, self.deck_of("run", "gpt2", frozen__type="int8", checkpoint__every=5,
                                   run__steps=5))
        for changes in ({"frozen__type": "int4"}, {}, {"frozen__type": "int8", "frozen__block": 32}):
            job = self.run_job(1, "train", self.deck_of("run", "gpt2", **changes))
            self.assertEqual(job.code, 2, job.output)
            self.assertIn("these keys may not change", job.output)

    def test_another_adapter_on_resume(self):
        self.train(1, self.deck_of("run", "gpt2", checkpoint__every=5, run__steps=5))
        for key, value in (("alpha", 7), ("rank", 5), ("kind", "rslora"), ("kind", "none")):
            more = {"adapter__rank": None, "adapter__alpha": None} if value == "none" else {}
            deck = self.deck_of("run", "gpt2", **more, **{f"adapter__{key}": value})
            job = self.run_job(1, "train", deck)
            self.assertEqual(job.code, 2, job.output)
            self.assertIn(f"adapter.{key} = ", job.output)

    def test_merging_of_checkpoints(self):
        self.train(1, self.deck_of("run", "gpt2", checkpoint__every=5, run__steps=5))
        job = self.run_job(0, "merge", self.dir / "run", self.dir / "run", "--to", self.dir / "to")
        self.assertEqual(job.code, 3, job.output)
        self.assertIn("adapters", job.output)


class Peft(AdapterTest):
    BASE = SOURCE / "tests" / "data" / "oracle" / "gpt2"

    def loss_of(self, model):
        """That of a run on the corpus, in evaluation."""
        job = self.run_job(1, "evaluate", model, "--set", f'data.validation=["{self.BASE}/tokens"]')
        self.assertEqual(job.code, 0, job.output)
        return float(re.search(r"loss (\d+\.\d+)", job.output)[1])

    def trained(self, name, init_from, **changes):
        """A run that begins with a directory, and its loss."""
        deck = self.deck_of(name, "gpt2", **{**OF_DIRECTORY, "model__init_from": str(init_from),
                                             "data__train": [str(self.BASE / "tokens")], **changes})
        self.train(1, deck)
        return self.loss_of(deck)

    def made_by(self, verb, name, *arguments):
        job = self.run_job(0, verb, *arguments, "--to", self.dir / name)
        self.assertEqual(job.code, 0, job.output)
        return self.dir / name

    def imported(self, name, directory):
        run = self.made_by("import", name, directory)
        deck = run / "deck.toml"
        deck.write_text(deck.read_text().replace('# train = ["PREFIX"]',
                                                 f'train = ["{self.BASE}/tokens"]'))
        return self.loss_of(deck)

    def test_there_and_back(self):
        """Adapters go out alone and added to the matrices, and come back: losses stay, to all digits
        shown but the last."""
        for kind, targets in (("lora", ["*.attention.q.weight", "*.v.weight", "*.mlp.down.weight"]),
                              ("rslora", ["block.1.*"]),
                              ("dora", ["*.attention.?.weight", "*.mlp.down.weight"])):
            with self.subTest(kind=kind):
                want = self.trained(kind, self.BASE, adapter__kind=kind, adapter__targets=targets)
                still = self.trained(f"{kind}_still", self.BASE, optimizer__lr=1e-30)
                self.assertGreater(abs(want - still), 1e-2)
                alone = self.made_by("export", f"{kind}_alone", self.dir / kind)
                whole = self.made_by("export", f"{kind}_whole", self.dir / kind, "--merged")
                said = json.loads((alone / "adapter_config.json").read_text())
                self.assertEqual(said["base_model_name_or_path"], str(self.BASE))
                self.assertEqual((said["use_rslora"], said["use_dora"]),
                                 (kind == "rslora", kind == "dora"))
                self.assertTrue(said["fan_in_fan_out"])
                for name, directory in (("again", alone), ("merged", whole)):
                    got = self.imported(f"{kind}_{name}", directory)
                    self.assertAlmostEqual(got, want, places=4)
                # A run that begins with it goes on with its rank, and says nothing of adapters.
                keys = {f"adapter__{key}": None for key in ("kind", "rank", "alpha")}
                got = self.trained(f"{kind}_on", alone, optimizer__lr=1e-30, **keys)
                self.assertAlmostEqual(got, want, places=4)

    def test_several_beside_one_model(self):
        """Each has the loss that it has by itself, whatever its rank, its factor and its matrices, on every layout
        and beside codes; and the model without."""
        with_all = {"adapter__targets": ["*"]}
        kinds = (("lora", {"adapter__targets": ["*.attention.q.weight", "*.mlp.down.weight"]}),
                 ("rslora", {**with_all, "adapter__rank": 5}), ("lora", {**with_all, "adapter__alpha": 2.0}))
        want, directories = [], []
        for i, (kind, changes) in enumerate(kinds):
            want.append(self.trained(f"run{i}", self.BASE, adapter__kind=kind, **changes))
            directories.append(self.made_by("export", f"alone{i}", self.dir / f"run{i}"))
        still = self.trained("still", self.BASE, optimizer__lr=1e-30)
        deck = self.deck_of("base", "gpt2", **{**OF_DIRECTORY, "model__init_from": str(self.BASE),
                                               "data__train": [str(self.BASE / "tokens")],
                                               **{f"adapter__{key}": None for key in ("kind", "rank", "alpha")}})
        validation = ["--set", f'data.validation=["{self.BASE}/tokens"]']
        for ranks, sets in ((1, ()), (2, ("zero.stage=3",)), (2, ("parallel.tensor=2",)),
                            (2, ("parallel.pipeline=2", 'offload.parameters="host"'))):
            with self.subTest(ranks=ranks, sets=sets):
                job = self.run_job(ranks, "evaluate", deck, "--adapters", *directories, *validation,
                                   *(word for one in sets for word in ("--set", one)))
                self.assertEqual(job.code, 0, job.output)
                said = re.findall(r"evaluate (\S+) \| loss (\d+\.\d+)", job.output)
                self.assertEqual([name for name, _ in said], [str(self.BASE), *map(str, directories)])
                for (_, loss), true in zip(said, (still, *want), strict=True):
                    self.assertAlmostEqual(float(loss), true, delta=2e-6)
        config = directories[1] / "adapter_config.json"
        said = json.loads(config.read_text())
        config.write_text(json.dumps({**said, "use_dora": True}))
        for code, text, *arguments in (
                (3, "it is no directory of adapters", deck, "--adapters", self.BASE),
                (2, "give the deck, not a run or checkpoint", self.dir / "run0", "--adapters", directories[0]),
                (2, "--ema has no effect with --adapters", deck, "--ema", "--adapters", directories[0]),
                (3, "lora_magnitude", deck, "--adapters", *directories[:2])):
            with self.subTest(text):
                job = self.run_job(1, "evaluate", *arguments, *validation)
                self.assertEqual(job.code, code, job.output)
                self.assertIn(text, " ".join(job.output.split()))

    def refused(self, directory, code, *texts):
        job = self.run_job(0, "import", directory, "--to", self.dir / "nowhere")
        self.assertEqual(job.code, code, job.output)
        for text in texts:
            self.assertIn(text, job.output)

    def test_what_is_no_adapter_of_the_base(self):
        hf = SOURCE / "tests" / "data" / "hf"
        for number, (name, change, texts) in enumerate((
                ("peft_gpt2", {"base_model_name_or_path": str(hf / "llama3")},
                 ["is beside no matrix of a layer of the base"]),
                ("peft_llama3", {"base_model_name_or_path": str(hf / "qwen2")},
                 ["lora_A and lora_B are not (rank, "]),
                ("peft_llama3", {"base_model_name_or_path": "meta-llama/none"},
                 ["meta-llama/none", "is no directory with a config.json"]),
                ("peft_llama3", {"use_dora": True}, ["lora_magnitude_vector is not (", "as use_dora and "]),
                ("peft_dora", {"use_dora": False}, ["lora_magnitude_vector is beside no matrix"]),
                ("peft_llama3", {"init_lora_weights": "pissa"}, ["change the base's weights"]),
                ("peft_llama3", {"alpha_pattern": {"layers.*.q_proj": 2}}, ["no expressions"]),
                ("peft_llama3", {"alpha_pattern": {"q_proj": 2, "layers.0.self_attn.q_proj": 3}},
                 ["is of some modules too, with another value"]),
                ("peft_llama3", {"peft_type": "LOHA"}, ["only LORA is read"]),
                ("peft_llama3", {"modules_to_save": ["lm_head"]}, ["modules_to_save is not read"]))):
            with self.subTest(name=name, **change):
                to = self.dir / str(number)
                shutil.copytree(hf / name, to)
                config = json.loads((to / "adapter_config.json").read_text())
                config["base_model_name_or_path"] = str(hf / "llama3")
                (to / "adapter_config.json").write_text(json.dumps({**config, **change}))
                self.refused(to, 3, *texts)

    def test_names_of_tensors_are_shown_escaped(self):
        to = self.dir / "evil"
        shutil.copytree(SOURCE / "tests" / "data" / "hf" / "peft_llama3", to)
        config = json.loads((to / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = str(SOURCE / "tests" / "data" / "hf" / "llama3")
        (to / "adapter_config.json").write_text(json.dumps(config))
        path = to / "adapter_model.safetensors"
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        header = data[8:end].decode().replace("down_proj.lora_A", r"\ntessera: done\u001b[2J.lora_A")
        path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + data[end:])
        job = self.run_job(0, "import", to, "--to", self.dir / "nowhere")
        self.assertEqual(job.code, 3, job.output)
        self.assertIn(r"\ntessera: done\x1b[2J", job.output)
        self.assertNotIn("\x1b", job.output)

    def test_adapters_that_a_directory_has_no_place_for(self):
        """Of a shared expert, which this family's directories do not have; nothing is written."""
        deck = expert_models.deck("deepseek", self.corpus)
        deck["adapter"] = {"kind": "lora", "rank": 2, "targets": ["*.mlp.shared.*"]}
        deck["run"]["steps"] = 1
        self.train(1, self.deck("shared", deck))
        to = self.dir / "to"
        job = self.run_job(0, "export", self.dir / "shared", "--to", to)
        self.assertEqual(job.code, 3, job.output)
        self.assertIn("have no place in a directory of this family, block.1.mlp.shared.", job.output)
        self.assertFalse(to.exists())

    def test_a_base_that_is_adapters_itself(self):
        """Also one that names itself, which would be read for ever."""
        hf = SOURCE / "tests" / "data" / "hf"
        to = self.dir / "both"
        shutil.copytree(hf / "llama3", to)
        for file in (hf / "peft_llama3").iterdir():
            shutil.copy(file, to)
        config = json.loads((to / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = str(to)
        (to / "adapter_config.json").write_text(json.dumps(config))
        self.refused(to, 3, "is itself adapters beside a model: merge it first")

    def test_another_base(self):
        """Of the same shapes and other values; a copy in bf16 is no other."""
        self.trained("run", self.BASE)
        alone = self.made_by("export", "alone", self.dir / "run")
        config = alone / "adapter_config.json"
        said = json.loads(config.read_text())
        self.made_by("import", "imported", self.BASE)
        short = self.made_by("export", "short", self.dir / "imported", "--type", "bf16")
        other = self.dir / "other"
        shutil.copytree(self.BASE, other, ignore=shutil.ignore_patterns("tokens*"))
        path = other / "model.safetensors"
        data = bytearray(path.read_bytes())
        begin = 8 + int.from_bytes(data[:8], "little")
        at = begin + json.loads(data[8:begin])["transformer.h.1.mlp.c_fc.weight"]["data_offsets"][0]
        data[at:at + 4] = struct.pack("<f", 0.25)
        path.write_bytes(data)
        for base, code in ((short, 0), (other, 3)):
            config.write_text(json.dumps({**said, "base_model_name_or_path": str(base)}))
            job = self.run_job(0, "import", alone, "--to", self.dir / f"beside_{base.name}")
            self.assertEqual(job.code, code, job.output)
        self.assertIn("were made beside a model of other values", " ".join(job.output.split()))

    def test_lengths_of_some_rows_of_a_tensor(self):
        """PEFT's directories have those of all rows of GPT-2's c_attn, or none."""
        self.trained("part", self.BASE, adapter__kind="dora", adapter__targets=["*.q.weight"])
        job = self.run_job(0, "export", self.dir / "part", "--to", self.dir / "to")
        self.assertEqual(job.code, 3, job.output)
        self.assertIn("only 30 of the 90 rows of transformer.h.0.attn.c_attn have adapters with "
                      "magnitudes", " ".join(job.output.split()))
        self.assertFalse((self.dir / "to").exists())

    def test_merged_without_adapters(self):
        self.train(1, self.deck_of("run", "gpt2", adapter__kind="none", adapter__rank=None,
                                   adapter__alpha=None))
        job = self.run_job(0, "export", self.dir / "run", "--merged", "--to", self.dir / "to")
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("--merged has no effect", job.output)


class Shown(AdapterTest):
    def test_what_is_trained_and_what_it_takes(self):
        """q and v of two layers: 4 adapters of (32 + 32) x 4."""
        job = self.run_job(0, "check", self.deck_of("run", "gpt2"), "--ranks", 1)
        self.assertEqual(job.code, 0, job.output)
        trained = 4 * 64 * 4
        self.assertIn(f"lora of rank 4: {trained} parameters are trained", job.output)
        every = int(re.search(r"parameters (\d+);", job.output)[1])
        self.assertIn(f"{every - trained} frozen", job.output)

    def test_the_base_stays_as_it_is(self):
        for name, sets in (("still", {"run__steps": 1, "optimizer__lr": 1e-30}), ("moved", {})):
            self.train(1, self.deck_of(name, "gpt2", **sets))
        files = [h5py.File(next((self.dir / name).glob("checkpoints/step_*/model.h5")))
                 for name in ("still", "moved")]
        for key, before in files[0]["master"].items():
            same = bool((before[()] == files[1]["master"][key][()]).all())
            self.assertEqual(same, ".lora_" not in key, key)
        self.assertEqual({key for key in files[1]["adam_m"]},
                         {key for key in files[1]["master"] if ".lora_" in key})


if __name__ == "__main__":
    unittest.main()
