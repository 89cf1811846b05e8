"""Models of experts: as PyTorch trains them, the same bits on every layout and over restarts, what metrics and
evaluation say of how experts are chosen, and what is refused."""

import array
import itertools
import random
import re
import unittest

import small_models
from tessera import SOURCE, metrics, some_of, write_megatron

import expert_models as models
from small_decks import BATCH, LENGTH, MICRO

LAYOUTS = (*small_models.LAYOUTS[:3],
           (2, {"parallel__tensor": 2, "zero__stage": 1, "moe__split": "experts"}),
           *small_models.LAYOUTS[3:],
           (4, {"parallel__tensor": 2, "zero__stage": 3, "zero__tiles": 2, "moe__split": "experts",
                "recompute__policy": "selective"}))
# Where data ranks divide experts among them.
DIVIDED = ((2, {"parallel__experts": 2}),
           (2, {"parallel__experts": 2, "batch__micro": 1, "zero__reduce": "micro",
                "recompute__policy": "selective"}),
           (4, {"parallel__experts": 2, "zero__stage": 3, "recompute__policy": "full", "batch__micro": 1}),
           (4, {"parallel__experts": 2, "parallel__tensor": 2, "moe__split": "experts", "zero__stage": 1}),
           (4, {"parallel__experts": 2, "parallel__pipeline": 2, "zero__stage": 2, "batch__micro": 1,
                "offload__optimizer": "host", "offload__activations": "host"}),
           (4, {"parallel__experts": 2, "zero__stage": 1, "guard__check_replicas": 1}),
           (4, {"parallel__experts": 2, "zero__stage": 2, "batch__micro": 1, "zero__reduce": "micro"}))
# Where these are on several nodes, and tokens go to each once: of several ranks, or of one.
BY_NODE = ((4, {"parallel__experts": 4, "parallel__ranks_per_node": 2, "batch__micro": 1}),
           (2, {"parallel__experts": 2, "parallel__ranks_per_node": 1, "recompute__policy": "selective"}),
           (4, {"parallel__experts": 4, "parallel__ranks_per_node": 2, "batch__micro": 1, "zero__stage": 3,
                "recompute__policy": "full"}),
           (4, {"parallel__experts": 2, "parallel__ranks_per_node": 1, "zero__stage": 2,
                "zero__reduce": "micro", "batch__micro": 1}),
           (4, {"parallel__experts": 2, "parallel__tensor": 2, "parallel__ranks_per_node": 2,
                "moe__split": "experts", "zero__stage": 1}))
ANY_LAYOUT = {"run__reproducible": "layout", "run__reproducible_tensor": 2, "run__threads": 1,
              "model__dropout": 0.1, "checkpoint__every": 2, "checkpoint__keep": 9}


class ExpertsTest(small_models.SmallModels):
    models, oracle = models, "experts.json"


class Oracle(ExpertsTest):
    def compare_others(self, step, at):
        self.assertEqual([(of["most"], of["unused"], of["dropped"]) for of in step["experts"]],
                         [(max(n) * len(n) / sum(n), n.count(0), dropped)
                          for n, dropped in zip(at["choices"], at["dropped"])])

    def test_one_expert_a_token_in_every_other_layer(self):
        self.compare("switch", LAYOUTS[:5])

    def test_softmax_over_two_experts(self):
        self.compare("mixtral", LAYOUTS)

    def test_routers_that_read_with_jitter(self):
        """By the numbers of each sample and layer, in forward and backward, made again or kept."""
        self.compare("jittered", (*LAYOUTS, *DIVIDED[:2]))

    def test_gates_of_two_levels(self):
        self.compare("levels", (*LAYOUTS[:4], *DIVIDED[:2]))

    def test_balance_of_whole_steps(self):
        """By the shares of the step before, which are exact on every layout."""
        self.compare("global", (*LAYOUTS, *DIVIDED[:3]))

    def test_experts_that_have_no_room(self):
        self.compare("dropping", [layout for layout in LAYOUTS if "batch__micro" not in layout[1]])

    def test_experts_that_data_ranks_divide(self):
        self.compare("mixtral", DIVIDED)
        self.compare("deepseek", DIVIDED[:3])
        self.compare("dropping", DIVIDED[:1])
        self.compare("switch", [(4, {"parallel__experts": 4, "batch__micro": 1})])

    def test_micro_batches_side_by_side(self):
        overlap = {"parallel__expert_overlap": True, "batch__micro": 1}
        self.compare("mixtral", [(ranks, layout | overlap) for ranks, layout in DIVIDED
                                 if layout.get("parallel__pipeline", 1) == 1])
        self.compare("deepseek", [(ranks, layout | overlap | {"parallel__expert_exchange": "by_node"})
                                  for ranks, layout in BY_NODE[1:4:2]])

    def test_tokens_that_go_once_to_each_node(self):
        layouts = [(ranks, layout | {"parallel__expert_exchange": "by_node"}) for ranks, layout in BY_NODE]
        self.compare("mixtral", layouts)
        self.compare("deepseek", layouts[1:2] + layouts[3:4])  # a shared expert; experts in groups
        self.compare("dropping", layouts[1:2])
        self.compare("jittered", layouts[2:3])

    def test_scores_that_do_not_add_up_and_groups(self):
        self.compare("qwen", LAYOUTS[1:4])

    def test_sigmoid_groups_and_a_shared_expert(self):
        self.compare("deepseek", LAYOUTS)

    def test_biases_that_balance(self):
        """Moved by each step's choices alone, which are exact on every layout."""
        self.compare("balanced", (*LAYOUTS, *DIVIDED[:3]))

    def test_keys_and_values_of_latents(self):
        """Every chunk makes a part of all latents, whichever ranks have them, and reads all of them."""
        self.compare("latent", (*LAYOUTS, *DIVIDED[4:5]))
        self.compare("latent_keys", (*LAYOUTS[1:4], *LAYOUTS[-1:]))

    def test_terms_of_the_router_are_seen(self):
        """With other weights the gradient is another from the first step on, and the loss is not."""
        first = self.truth()["mixtral"]["float64"][0]
        for key, value in (("aux_loss", 0), ("aux_loss", 0.4), ("z_loss", 0)):
            self.train(1, self.deck_of(f"{key}_{value}", "mixtral", run__steps=1,
                                       **{f"moe__{key}": value}))
            (step,) = self.steps_of(f"{key}_{value}")
            self.assertAlmostEqual(step["loss"], first["loss"], places=4)
            self.assertGreater(abs(step["grad_norm"] - first["grad_norm"]), 1e-3)


class Bits(ExpertsTest):
    def test_every_layout_and_restart_has_the_same_bits(self):
        for model, split, dispatch in (
                ("jittered", "experts", "exact"), ("deepseek", "width", "exact"),
                ("deepseek", "width", "int8"),
                ("balanced", "width", "exact"), ("latent", "width", "exact"),
                ("levels", "experts", "int8"), ("global", "width", "exact")):
            fixed = {**ANY_LAYOUT, "moe__split": split, "moe__dispatch": dispatch}
            one = f"{model}_{dispatch}"
            want = self.train(1, self.deck_of(one, model, **fixed))
            choices = [s["experts"] for s in self.steps_of(one)]
            for ranks, layout in some_of((
                    (2, {"parallel__tensor": 2, "parallel__sequence": False}),
                    (4, {"parallel__tensor": 2, "zero__stage": 3}),
                    (4, {"parallel__pipeline": 2, "zero__stage": 1,
                         "recompute__policy": "selective"}),
                    (2, {"zero__stage": 2, "recompute__policy": "full"}),
                    (2, {"parallel__experts": 2}),
                    (2, {"parallel__experts": 2, "parallel__expert_overlap": True}),
                    (4, {"parallel__experts": 2, "parallel__tensor": 2, "zero__stage": 2}),
                    (4, {"parallel__experts": 2, "zero__stage": 3, "recompute__policy": "full"}),
                    (2, {"parallel__experts": 2, "offload__optimizer": "host",
                         "guard__check_replicas": 1}),
                    (4, {"parallel__experts": 2, "parallel__pipeline": 2, "zero__stage": 1,
                         "recompute__policy": "selective"}))):
                with self.subTest(model=one, **layout):
                    name = "_".join([one, *(k.split("__")[1] for k in layout)])
                    deck = self.deck_of(name, model, **{**fixed, **layout})
                    self.assertEqual(self.train(ranks, deck), want)
                    self.assertEqual([s["experts"] for s in self.steps_of(name)], choices)
            self.go_back(one, 4)
            deck = self.deck_of(one, model, **fixed, zero__stage=3)
            self.assertEqual(self.train(2, deck), want)
            self.go_back(one, 4)
            deck = self.deck_of(one, model, **fixed, parallel__experts=2, zero__stage=1)
            self.assertEqual(self.train(2, deck), want)


class Shown(ExpertsTest):
    def test_a_model_that_was_balanced_by_whole_steps_goes_out_and_in(self):
        """Files of models know nothing of steps, so what is kept of them stays, and begins anew."""
        self.train(1, self.deck_of("out", "global", model__family="mixtral"))
        job = self.run_job(0, "export", self.dir / "out", "--to", self.dir / "hf")
        self.assertEqual(job.code, 0, job.output)
        self.train(1, self.deck_of("in", "global", model__family=None, model__init_from=str(self.dir / "hf")))
        self.assertGreater(len(self.steps_of("in")), 1)

    def test_choices_of_an_evaluation(self):
        """Each token makes as many choices as the router has; the same on two layouts."""
        found = []
        for ranks, layout in ((1, {}), (4, {"parallel__tensor": 2, "parallel__pipeline": 2})):
            name = f"on_{ranks}"
            self.train(ranks, self.deck_of(name, "deepseek", data__validation=[str(self.corpus)],
                                           evaluate__every=5, evaluate__batches=3, **layout))
            found.append([e["experts"] for e in self.evaluations_of(name)])
        self.assertEqual(*found)
        tokens = 3 * BATCH * LENGTH
        for layers in found[0]:
            self.assertEqual([of["layer"] for of in layers], [1, 2])
            for of in layers:
                self.assertEqual(len(of["choices"]), 6)
                self.assertEqual(sum(of["choices"]), 2 * tokens)
        self.assertIsNone(self.dense()["experts"])

    def test_a_search_divides_experts(self):
        """No layout of four ranks is faster than the first, whoever has the experts."""
        deck = self.deck_of("searched", "mixtral", batch__global=64, model__hidden=512, model__context=512,
                            moe__ffn_hidden=2048, moe__aux_loss=0)
        machine = SOURCE / "slurm/machines/h100-dgx.toml"

        def simulate(*options):
            return self.run_job(0, "simulate", deck, "--ranks", 4, "--machine", machine, *options)

        def step_ms(job):
            self.assertEqual(job.code, 0, job.output)
            return float(re.search(r"^step +([0-9.]+) ms$", job.output, re.M)[1])

        found = simulate("--search")
        self.assertEqual(found.code, 0, found.output)
        self.assertRegex(found.output, r"(?m)data x pipeline x tensor +experts  overlap  schedule")
        best = float(re.search(r"^ 1 +([0-9.]+) ms", found.output, re.M)[1])
        sets = re.search(r"^the first: (.*)$", found.output, re.M)[1].split()
        self.assertEqual(step_ms(simulate(*sets)), best)
        shown = {int(n) for n in re.findall(r"^ *\d+ +~?[0-9.]+ ms.* x \d+ +(\d+) +\S", found.output, re.M)}
        self.assertGreater(len(shown), 1, found.output)
        for experts, tensor, micro in itertools.product((1, 2, 4), (1, 2), (4, 16)):
            words = (f"parallel.experts={experts}", f"parallel.tensor={tensor}", f"batch.micro={micro}",
                     "zero.stage=1")
            if experts * tensor <= 4:
                job = simulate(*(x for word in words for x in ("--set", word)))
                self.assertGreaterEqual(step_ms(job), best, words)
        # Context ranks share what data ranks share. Nothing that is shown needs more than there is.
        found = simulate("--search", "--set", "parallel.context=2", "--set", "memory.device=700MiB")
        self.assertEqual(found.code, 0, found.output)
        self.assertTrue(any(int(n) > 1 for n in re.findall(
            r"(?m)^ *\d+ +~?[0-9.]+ ms.* x \d+ +(\d+) +\S", found.output)), found.output)
        for memory in re.findall(r"(?m)^ *\d+ +~?[0-9.]+ ms.* ([0-9.]+) MiB", found.output):
            self.assertLessEqual(float(memory), 700)

    def test_traffic_of_divided_experts(self):
        """Half of a token's copies go to the other rank and come back, forward and backward; of what is
        not experts the gradient is summed, of experts that one rank has there is nothing to sum."""
        self.train(2, self.deck_of("divided", "mixtral", parallel__experts=2, run__steps=2,
                                   model__vocab=128))
        events = metrics.read_events(self.dir / "divided")
        wire = metrics.last_steps(events)[2]["wire_bytes"]
        model, moe = models.MODELS["mixtral"]
        layers, width, micro_batches = model["layers"], model["hidden"], BATCH // 2 // MICRO
        rows = MICRO * LENGTH * moe["top_k"] / 2
        exchanges = layers * micro_batches * (4 * rows * width * 4 + (moe["experts"] / 2 + 1) * 4)
        experts = layers * moe["experts"] * 3 * width * model["ffn_hidden"]
        others = next(e["parameters"] for e in events if e["event"] == "start") - experts
        self.assertGreaterEqual(wire["intra"], exchanges + 4 * others)
        self.assertLessEqual(wire["intra"], exchanges + 4 * others * 1.03)  # and padding

    def test_tokens_travel_rounded(self):
        """Forward they are codes with a scale, each on a multiple of 16 bytes."""
        sent, losses, norms = {}, {}, {}
        for dispatch in ("exact", "int8"):
            self.train(2, self.deck_of(dispatch, "mixtral", parallel__experts=2, run__steps=2,
                                       moe__dispatch=dispatch))
            events = metrics.read_events(self.dir / dispatch)
            sent[dispatch] = metrics.last_steps(events)[2]["wire_bytes"]["intra"]
            losses[dispatch] = metrics.last_steps(events)[1]["loss"]
            norms[dispatch] = metrics.last_steps(events)[1]["grad_norm"]
        model, moe = models.MODELS["mixtral"]
        rows = MICRO * LENGTH * moe["top_k"] / 2
        width, sixteen = model["hidden"], 16
        self.assertLess(width, 128, "a scale for a row")
        saved = 4 * width - (-(-width // sixteen) * sixteen + sixteen)
        self.assertEqual(sent["exact"] - sent["int8"],
                         model["layers"] * (BATCH // 2 // MICRO) * rows * saved)
        # An element is moved by half a step of 1 / 127 of its row's largest.
        self.assertNotEqual(*losses.values())
        for of in (losses, norms):
            self.assertLess(abs(of["exact"] - of["int8"]), 0.01 * of["exact"])
        nodes = {"parallel__experts": 2, "parallel__ranks_per_node": 1, "run__steps": 2,
                 "parallel__expert_exchange": "by_node"}
        # Sums by node are rounded otherwise, which is far less than what rounding tokens does.
        moved = abs(losses["exact"] - losses["int8"])
        for ranks, per_node in ((2, 1), (4, 2)):
            over = nodes | {"parallel__experts": ranks, "parallel__ranks_per_node": per_node}
            for dispatch in ("exact", "int8"):
                name = f"over_{ranks}_{dispatch}"
                self.train(ranks, self.deck_of(name, "mixtral", moe__dispatch=dispatch, **over))
                (first, _) = self.steps_of(name)
                self.assertLess(abs(first["loss"] - losses[dispatch]), 0.1 * moved)
        said = set()
        for dispatch in ("exact", "int8"):
            job = self.run_job(1, "evaluate", self.dir / "int8.toml", "--set", f"moe.dispatch={dispatch}",
                               "--set", "parallel.experts=1", "--set",
                               f'data.validation=["{self.corpus}"]')
            self.assertEqual(job.code, 0, job.output)
            said.add(re.search(r"loss (\d+\.\d+)", job.output)[1])
        self.assertEqual(len(said), 1, "evaluation rounds nothing")

    def test_averages_of_weights_go_with_the_newest_biases(self):
        self.train(2, self.deck_of("averaged", "balanced", optimizer__ema=0.5, zero__stage=3,
                                   guard__check_replicas=2, data__validation=[str(self.corpus)],
                                   evaluate__batches=2))
        self.assertTrue(all(e["equal"] and e["elements"] > 0 for e in metrics.read_events(
            self.dir / "averaged") if e["event"] == "replicas"))
        shown = []
        for options in ((), ("--ema",)):
            job = self.run_job(1, "evaluate", self.dir / "averaged", *options)
            self.assertEqual(job.code, 0, job.output)
            shown.append(re.search(r"loss ([\d.]+)", job.output)[1])
        self.assertNotEqual(*shown)

    def test_evaluation_drops_nothing(self):
        """A run that drops evaluates as one with the same weights that does not."""
        deck = self.deck_of("dropping", "dropping", moe__capacity=1.0)
        self.train(1, deck)
        self.assertGreater(sum(of["dropped"] for s in self.steps_of("dropping") for of in s["experts"]), 0)
        said = []
        for capacity in ("1.0", "0"):
            job = self.run_job(1, "evaluate", deck, "--set", f"moe.capacity={capacity}", "--set",
                               f'data.validation=["{self.corpus}"]')
            self.assertEqual(job.code, 0, job.output)
            said.append(re.search(r"loss (\d+\.\d+)", job.output)[1])
        self.assertEqual(*said)

    def dense(self):
        deck = models.deck("mixtral", self.corpus)
        del deck["moe"]
        self.train(1, self.deck("dense", deck), "run.steps=1")
        return self.steps_of("dense")[0]

    def test_the_balance_is_minimised(self):
        """On text of which three fifths are one token, whose experts are chosen most."""
        draw = random.Random(3)
        write_megatron(self.corpus, array.array("H", [0 if draw.random() < 0.6 else draw.randrange(97)
                                                      for _ in range(3000)]))
        worst = {}
        for weight in (0, 0.3):
            name = f"balance_{weight}"
            self.train(1, self.deck_of(name, "mixtral", run__steps=80, batch__global=16,
                                       moe__z_loss=0, moe__aux_loss=weight))
            last = self.steps_of(name)[-20:]
            worst[weight] = sum(max(of["most"] for of in s["experts"]) for s in last) / len(last)
        self.assertLess(worst[0.3], 0.9 * worst[0])

    def test_what_has_no_room_is_the_same_by_node(self):
        """Of two nodes with two ranks each, to which tokens of both come. A few roundings of f32 are far less
        than what a copy more or less does."""
        losses = {}
        for name, changes in (("direct", {}), ("by_node", {"parallel__expert_exchange": "by_node"}),
                              ("all", {"moe__capacity": 0.0})):
            self.train(4, self.deck_of(name, "dropping", **{**BY_NODE[0][1], "run__steps": 3, **changes}))
            losses[name] = [step["loss"] for step in self.steps_of(name)]
            if name != "all":
                self.assertGreater(sum(of["dropped"] for of in self.steps_of(name)[0]["experts"]), 0)
        for direct, by_node, everything in zip(*losses.values(), strict=True):
            self.assertLess(abs(direct - by_node), 1e-5)
            self.assertGreater(abs(direct - everything), 1e-3)

    def test_what_was_trained_by_node_goes_elsewhere(self):
        """Evaluation, generation and another run know nothing of nodes that there are not."""
        run = self.deck_of("nodes", "mixtral", parallel__experts=2, parallel__ranks_per_node=1, run__steps=2,
                           parallel__expert_exchange="by_node", model__vocab=256,
                           data__validation=[str(self.corpus)], evaluate__batches=2)
        self.train(2, run)
        directory = self.dir / "nodes"
        prompts = self.dir / "prompts.jsonl"
        prompts.write_text('{"prompt": "abc"}\n')
        for words in (("evaluate", directory),
                      ("generate", directory, "--prompts", prompts, "--out", self.dir / "said.jsonl",
                       "--tokens", 2, "--tokenizer", "bytes"),
                      ("simulate", run, "--ranks", 8, "--nodes", 2, "--search", "--machine",
                       SOURCE / "slurm/machines/h100-dgx.toml")):
            job = self.run_job(0 if words[0] == "simulate" else 1, *words)
            self.assertEqual(job.code, 0, f"{words}: {job.output}")
        self.assertIn("exchange", job.output)


class Refused(ExpertsTest):
    def expect(self, model, *texts, ranks=1, **changes):
        job = self.run_job(ranks, "train", self.deck_of("bad", model, **changes))
        self.assertEqual(job.code, 2, job.output)
        for text in texts:
            self.assertIn(text, " ".join(job.output.split()))

    def test_jitter(self):
        self.expect("mixtral", "moe.jitter = 1.0 must be", ">= 0 and < 1", moe__jitter=1.0)
        self.expect("mixtral", "moe.jitter has no effect without moe.experts", moe__experts=0,
                    moe__jitter=0.1)
        self.expect("mixtral", "moe.router_jitter_noise", "moe.jitter", moe__router_jitter_noise=0.1)

    def test_gates_of_two_levels(self):
        self.expect("mixtral", "moe.gates has no effect without moe.groups", moe__gates="two_levels")
        self.expect("levels", "moe.top_k = 3 is not two or more experts of each of moe.group_top = 2 "
                    "groups of 4 (give one of 4, 6, 8)", moe__top_k=3)
        self.expect("levels", "moe.top_k = 2 is not two or more", moe__top_k=2)
        self.expect("levels", "moe.group_top = 1 is not possible with", moe__group_top=1, moe__top_k=2)
        self.expect("levels", "moe.normalize = false is not possible with", moe__normalize=False)
        self.expect("levels", 'moe.scores = "sigmoid" is not possible with', moe__scores="sigmoid")
        self.expect("levels", "moe.z_loss = 0.1 is not possible with", moe__z_loss=0.1)
        self.expect("levels", "moe.bias = true is not possible with", moe__bias=True)
        self.expect("levels", "memory.ffn has no effect without dense feed-forward layers", memory__ffn=5)

    def test_balance_of_whole_steps(self):
        self.expect("global", "moe.aux_over has no effect without moe.aux_loss", moe__aux_loss=0)
        self.expect("global", "moe.bias = true is not possible with moe.aux_over", moe__bias=True)
        self.expect("global", 'moe.aux_over = "global_batch" does not go with batch.token_budget',
                    batch__token_budget=24)
        self.expect("mixtral", 'use 0, or moe.aux_over = "global_batch"', ranks=2,
                    parallel__context=2)

    def test_decks(self):
        self.expect("mixtral", "moe.top_k = 5 is more than moe.experts = 4 (at most 4)", moe__top_k=5)
        self.expect("qwen", "moe.groups = 3 does not divide moe.experts = 8 (give one of 1, 2, 4, 8)",
                    moe__groups=3)
        self.expect("qwen", "moe.top_k = 3 is more than the 2 experts of moe.group_top = 1 (give at "
                    "most that, or more as moe.group_top)", moe__group_top=1)
        self.expect("qwen", "moe.group_top = 5 is more than moe.groups = 4 (at most 4)",
                    moe__group_top=5)
        self.expect("deepseek", '"two_largest" needs two experts in a group, but moe.groups = 6',
                    moe__groups=6)
        self.expect("mixtral", "moe.group_score has no effect without moe.groups",
                    moe__group_score="two_largest")
        self.expect("mixtral", "moe.aux_loss has no effect without moe.experts",
                    "moe.z_loss has no effect without moe.experts", moe__experts=0)
        self.expect("switch", "moe.every = 3 and moe.first_dense = 0 leave no layer of "
                    "model.layers = 2 with experts", moe__every=3)
        self.expect("mixtral", "moe.capacity = 0.5 is below 1", moe__capacity=0.5)
        self.expect("mixtral", "moe.capacity = 1.5 does not go with batch.token_budget",
                    moe__capacity=1.5, batch__token_budget=24)
        self.expect("mixtral", "moe.experts = 4 cannot be divided over parallel.tensor x zero.tiles = 8 "
                    '(use moe.split = "width", or fewer parts)', moe__split="experts", zero__tiles=8,
                    model__heads=8)
        self.expect("deepseek", "moe.shared_ffn_hidden = 2 cannot be divided over "
                    "run.reproducible_tensor = 4", moe__shared_ffn_hidden=2, moe__split="experts",
                    run__reproducible="layout", run__reproducible_tensor=4)
        self.expect("mixtral", "model.bias = true is not possible with moe.experts", model__bias=True)
        self.expect("mixtral", 'precision.matmul = "fp8" is not possible with moe.experts',
                    precision__matmul="fp8", precision__compute="bf16")
        self.expect("mixtral", "moe.bias_update has no effect without moe.bias (leave it out)",
                    moe__bias_update=0.001)
        self.expect("balanced", "moe.bias has no effect without moe.experts (leave it out)",
                    moe__experts=0)
        self.expect("balanced", "moe.bias_update = 0.02 does not go with batch.token_budget: padding "
                    "would count as tokens (leave it out)", batch__token_budget=24)
        self.expect("balanced", 'moe.bias_update = 0.02 is not possible with adapter.kind = "lora"',
                    adapter__kind="lora")
        self.expect("mixtral", "moe.num_local_experts", "moe.experts", moe__num_local_experts=8)
        self.expect("mixtral", "parallel.experts has no effect without moe.experts", moe__experts=0,
                    parallel__experts=2)
        self.expect("mixtral", "parallel.experts = 3 cannot divide the moe.experts = 4 equally (give "
                    "one of 1, 2, 4)", parallel__experts=3)
        self.expect("mixtral", "parallel.experts = 2 does not divide the 1 data rank of this layout "
                    "(give one of 1)", parallel__experts=2)
        self.expect("mixtral", "zero.tiles = 2 is not possible with parallel.experts = 2",
                    parallel__experts=2, zero__tiles=2)
        self.expect("mixtral", "parallel.expert_exchange has no effect without moe.experts",
                    moe__experts=0, parallel__expert_exchange="by_node")
        self.expect("mixtral", "parallel.expert_overlap has no effect without moe.experts",
                    moe__experts=0, parallel__expert_overlap=True)
        self.expect("mixtral", "parallel.expert_overlap has no effect without parallel.experts",
                    parallel__expert_overlap=True)
        self.expect("mixtral", "parallel.pipeline = 2 is not possible with parallel.expert_overlap",
                    parallel__expert_overlap=True, parallel__experts=2, parallel__pipeline=2)
        self.expect("mixtral", "parallel.expert_exchange has no effect without parallel.experts",
                    parallel__expert_exchange="by_node")
        self.expect("mixtral", 'parallel.expert_exchange = "by_node"', "what experts make of a token is added up by node",
                    parallel__expert_exchange="by_node", parallel__experts=2, run__reproducible="layout")

    def test_a_micro_batch_alone(self):
        """It has none beside it, whoever runs or looks."""
        deck = self.deck_of("alone", "mixtral", parallel__experts=2, parallel__expert_overlap=True,
                            batch__micro=BATCH // 2)
        ramp = self.run_job(0, "check", deck, "--ranks", 2, "--set", f"batch.ramp=[[1, {2 * BATCH}]]")
        self.assertEqual(ramp.code, 0, ramp.output)
        for job in (self.run_job(2, "train", deck), self.run_job(0, "check", deck, "--ranks", 2)):
            self.assertEqual(job.code, 2, job.output)
            self.assertIn(f"parallel.expert_overlap = true has no effect: the {BATCH} samples of a step are a "
                          f"single micro-batch of batch.micro = {BATCH // 2} on each of 2 data ranks", job.output)

    def test_nodes_that_tokens_go_to(self):
        """Refused where there is one node, or where nodes have different numbers of these ranks."""
        for name, ranks, changes, said in (
                ("one", 2, {}, "has no effect: all ranks that divide experts are on one node"),
                ("unlike", 0, {"parallel__ranks_per_node": 6, "parallel__experts": 4, "batch__micro": 1,
                               "batch__global": 12},
                 "needs all groups of ranks that divide experts to lie on nodes alike, but some are on nodes "
                 "0, 0, 1, 1, others on 0, 0, 0, 0"),
                ("uneven", 4, {"parallel__ranks_per_node": 3, "parallel__experts": 4, "batch__micro": 1},
                 "needs as many neighbours on every node, but ranks that divide experts are on nodes "
                 "0, 0, 0, 1")):
            deck = self.deck_of(name, "mixtral", **{"parallel__experts": 2, "parallel__expert_exchange": "by_node"}
                                | changes)
            job = self.run_job(ranks, "train", deck) if ranks else self.run_job(0, "check", deck, "--ranks", 12)
            self.assertEqual(job.code, 2, job.output)
            self.assertIn(said, job.output)


if __name__ == "__main__":
    unittest.main()
