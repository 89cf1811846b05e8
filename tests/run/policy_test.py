"""Models that learn from their own answers (GRPO): as PyTorch learns from the same, the same bits on every layout and over
restarts, a reward that is learned, and what programs and prompts may not be."""

import copy
import json
import re
import sys
import unittest

from tessera import SOURCE, RunTest, change, some_of, tiny_deck

sys.path.insert(0, str(SOURCE / "tests" / "data"))
import policy_models as models  # noqa: E402

DECK, DATA, IO = 2, 3, 7
LAYOUTS = ((1, {"batch__micro": 16}), (1, {"batch__micro": 4, "memory__logits": 7}),
           (2, {"zero__stage": 3}), (4, {"zero__stage": 1}),
           (2, {"parallel__tensor": 2, "zero__stage": 0, "recompute__policy": "full"}),
           (2, {"parallel__pipeline": 2, "recompute__policy": "selective"}),
           (4, {"parallel__tensor": 2, "parallel__pipeline": 2, "memory__logits": 20}),
           (2, {"parallel__context": 2, "zero__stage": 2}))
# What nodes keep of parameters as answers are drawn is renewed as these change.
KEPT_BY_NODES = (4, {"zero__stage": 3, "zero__secondary": 2})
ANY_LAYOUT = {"run__reproducible": "layout", "run__reproducible_tensor": 2, "run__threads": 1,
              "checkpoint__every": 2, "checkpoint__keep": 9}


class PolicyTest(RunTest):
    def setUp(self):
        super().setUp()
        (self.dir / "text.txt").write_text("the quick brown fox jumps over the lazy dog. " * 80)
        self.run_code(0, "tokenize", self.dir / "text.txt", "--out", self.dir / "data")
        models.write(self.dir, self.dir / "data.tokenizer.json")

    def run_code(self, code, *arguments, ranks=0):
        """Output of a command that ends with this code on every rank."""
        job = self.run_job(ranks, *arguments, each=ranks > 0)
        self.assertEqual(job.codes or [job.code], [code] * max(ranks, 1), job.output)
        return " ".join(job.output.split())

    def deck_of(self, run, kind, **changes):
        return self.deck(run, change(models.deck(kind, self.dir), **changes))


class Oracle(PolicyTest):
    def compare(self, kind, layouts):
        want = json.loads((models.ORACLE / "policy.json").read_text())[kind]
        # As in oracle_test: 8 times as far from fp64 as PyTorch's own fp32 is, or as one rounding of
        # a number of 8 is.
        bound = {key: 8 * max(2**-24 * 8, *(abs(a[key] - b[key]) for a, b in zip(
            want["float32"], want["float64"]))) for key in ("loss", "grad_norm", "entropy", "kl", "explained", "moved",
                                                            *(k for k in want["float64"][0] if k.startswith("critic")))}
        for number, (ranks, layout) in enumerate(some_of(layouts)):
            with self.subTest(kind=kind, ranks=ranks, **layout):
                name = f"{kind}_{number}"
                self.train(ranks, self.deck_of(name, kind, **layout))
                answers = models.rollouts(self.dir / name)
                self.assertEqual([[a["token_ids"] for a in step] for step in answers], want["token_ids"])
                for step, of_step, true in zip(self.steps_of(name), answers, want["float64"], strict=True):
                    said = {**step, **{key: step["rollout"][key] or 0.0 for key in bound if key in step["rollout"]}}
                    for key in bound:
                        self.assertLess(abs(said[key] - true[key]), bound[key], (key, step["step"]))
                    # No ratio is within a rounding of its bound.
                    of_round = models.KINDS[kind][2] > 1
                    self.assertEqual(step["rollout"]["clipped"] is not None, of_round)
                    self.assertAlmostEqual(step["rollout"]["clipped"] or 0, true["clipped"], places=9)
                    self.assertEqual(step["targets"], sum(len(a["token_ids"]) for a in of_step))
                    if models.KINDS[kind][2] == 1:
                        mean = sum(a["reward"] for a in of_step) / models.GLOBAL
                        self.assertAlmostEqual(step["rollout"]["reward"], mean, places=12)

    def test_mean_of_answers(self):
        self.compare("answers", LAYOUTS)

    def test_mean_of_tokens(self):
        self.compare("tokens", LAYOUTS[1::2])

    def test_reference(self):
        self.compare("reference", LAYOUTS[:7:3])

    def test_rounds(self):
        self.compare("rounds", (*LAYOUTS[1:8:2], KEPT_BY_NODES))

    def test_lora(self):
        self.compare("lora", LAYOUTS[:7:2])

    def test_values(self):
        self.compare("values", (*LAYOUTS, KEPT_BY_NODES))

    def test_values_in_rounds(self):
        self.compare("value_rounds", LAYOUTS[1:8:2])
        want = json.loads((models.ORACLE / "policy.json").read_text())["value_rounds"]["float64"]
        self.assertGreater(max(step["values_clipped"] for step in want), 0.1)

    def test_a_critic_of_its_own(self):
        self.compare("critic", (*LAYOUTS[::2], KEPT_BY_NODES, (4, {"parallel__data": 2, "parallel__context": 2})))

    def test_a_critic_in_rounds(self):
        self.compare("critic_rounds", LAYOUTS[1:8:2])
        want = json.loads((models.ORACLE / "policy.json").read_text())["critic_rounds"]["float64"]
        self.assertGreater(max(step["values_clipped"] for step in want), 0.1)

    def test_values_beside_adapters(self):
        self.compare("value_lora", LAYOUTS[:7:2])


class Bits(PolicyTest):
    def test_every_layout_and_restart_has_the_same_bits(self):
        for kind, compute in (("answers", "f32"), ("rounds", "f32"), ("lora", "bf16"),
                              ("values", "bf16"), ("value_lora", "f32"), ("critic_rounds", "bf16")):
            fixed = {**ANY_LAYOUT, "precision__compute": compute, "run__steps": 6,
                     "rollout__keep_every": 1}
            want = self.train(1, self.deck_of(f"{kind}_one", kind, **fixed))
            answers = models.rollouts(self.dir / f"{kind}_one")
            self.assertEqual(len(answers), 6)
            for ranks, layout in some_of((
                    (2, {"parallel__tensor": 2}),
                    (4, {"parallel__tensor": 2, "zero__stage": 3}),
                    (4, {"parallel__pipeline": 2, "zero__stage": 1}),
                    (3, {"batch__global": 48, "run__steps": 2, "batch__micro": 2,
                         "run__reproducible": "run", "run__reproducible_tensor": 1}),
                    (2, {"zero__stage": 2, "offload__optimizer": "host"}))):
                with self.subTest(kind=kind, **layout):
                    name = "_".join([kind, *(k.split("__")[1] for k in layout)])
                    made = self.train(ranks, self.deck_of(name, kind, **{**fixed, **layout}))
                    if ranks == 3:  # whatever the batches, an answer of a number is drawn alike
                        first = models.rollouts(self.dir / name)[0][:models.GLOBAL]
                        self.assertEqual([a["token_ids"] for a in first],
                                         [a["token_ids"] for a in answers[0]])
                        continue
                    self.assertEqual(made, want)
                    self.assertEqual(models.rollouts(self.dir / name), answers)
            self.go_back(f"{kind}_one", 2)
            again = self.deck_of(f"{kind}_one", kind, **fixed, parallel__tensor=2, zero__stage=3)
            self.assertEqual(self.train(4, again), want)
            self.assertEqual(models.rollouts(self.dir / f"{kind}_one"), answers)

    def test_a_stop_waits_for_the_round(self):
        """And what goes on is as if nothing had happened."""
        fixed = {"run__steps": 6, "rollout__steps": 3, "run__threads": 1}
        want = self.train(2, self.deck_of("whole", "rounds", **fixed))
        # Asked for as the answers of the first round are judged, which step 2 sees.
        (self.dir / "judge.py").write_text(models.JUDGE.replace(
            "    text =", f"    open({str(self.dir / 'parts' / 'stop')!r}, 'w').close()\n    text ="))
        deck = self.deck_of("parts", "rounds", **fixed)
        self.train(2, deck, expect=85)
        self.assertEqual(self.newest_step("parts"), 3)
        (self.dir / "judge.py").write_text(models.JUDGE)
        self.assertEqual(self.train(2, deck), want)

    def test_other_prompts_are_another_run(self):
        deck = self.deck_of("run", "answers", run__steps=2, checkpoint__every=1)
        self.train(1, deck)
        prompts = self.dir / "prompts.jsonl"
        prompts.write_text(prompts.read_text().replace("abc", "abd"))
        self.assertIn("prompts.jsonl", self.run_code(DECK, "train", deck, "--set", "run.steps=4"))


class Learns(PolicyTest):
    def test_a_reward_from_near_nothing(self):
        """Answers without an o, of a model of text, a fifth of which have none when it begins."""
        deck = tiny_deck(self.dir / "data", model__vocab=256, model__context=32, run__steps=60,
                         optimizer__lr=0.01)
        self.train(1, self.deck("base", deck))
        self.run_code(0, "export", self.dir / "base", "--to", self.dir / "model")
        (self.dir / "no_o.py").write_text(
            "import json, sys\n"
            "for line in sys.stdin: print(int('o' not in json.loads(line)['completion']))\n")
        (self.dir / "begin.jsonl").write_text(
            "".join(json.dumps({"prompt": p}) + "\n" for p in ("the quick", "fox", "lazy dog. t")))
        learn = change(models.deck("answers", self.dir), model__init_from=str(self.dir / "model"),
                       run__steps=60, data__train=[str(self.dir / "begin.jsonl")],
                       rollout__samples=8, rollout__tokens=16, rollout__slots=16,
                       batch__sequence=32, batch__global=48, batch__micro=8,
                       reward__command=[sys.executable, str(self.dir / "no_o.py")])
        del learn["model"]["dropout"]
        self.train(2, self.deck("learn", learn))
        rewards = [s["rollout"]["reward"] for s in self.steps_of("learn")]
        self.assertLess(rewards[0], 0.4, rewards)
        self.assertGreater(sum(rewards[-10:]) / 10, 0.9, rewards)
        plot = self.run_job(0, self.dir / "learn", "-o", self.dir / "learn.png", "--terminal",
                            program=SOURCE / "tools" / "plot_metrics")
        self.assertEqual(plot.code, 0, plot.output)
        self.assertIn("learn: mean reward of answers", plot.output)
        # What it learned is a model like any other.
        text = self.run_code(0, "generate", self.dir / "learn", "--prompt", "fox", "--tokens", 12)
        self.assertEqual(text[:3], "fox")


    def test_values_foresee_rewards(self):
        """By the share of letters: with one answer a prompt there is nothing else to compare it with."""
        (self.dir / "share.py").write_text(
            "import json, sys\n"
            "for line in sys.stdin:\n"
            "    asked = json.loads(line)\n"
            "    print(sum(map(str.isalpha, asked['completion'])) / 8 + (asked['prompt'] == 'fox'))\n")
        (self.dir / "begin.jsonl").write_text(
            "".join(json.dumps({"prompt": p}) + "\n" for p in ("the quick", "fox", "lazy dog. t")))
        deck = self.deck_of("learn", "values", run__steps=60, data__train=[str(self.dir / "begin.jsonl")],
                            rollout__samples=1, rollout__tokens=8, rollout__slots=16, batch__global=32,
                            batch__micro=8, batch__sequence=24, task__kl=0.0, task__value_loss=1.0,
                            reward__command=[sys.executable, str(self.dir / "share.py")])
        self.train(2, deck)
        said = [s["rollout"] for s in self.steps_of("learn")]
        rewards, foreseen = ([s[key] for s in said] for key in ("reward", "explained"))
        self.assertEqual(foreseen[0], 0)
        self.assertGreater(sum(foreseen[-10:]) / 10, 0.4, foreseen)
        self.assertGreater(sum(rewards[-10:]) / 10, sum(rewards[:5]) / 5 + 0.3, rewards)


    def test_what_it_expects_is_not_exported(self):
        base = tiny_deck(self.dir / "data", model__vocab=256, model__context=32, run__steps=2)
        self.train(1, self.deck("base", base))
        self.run_code(0, "export", self.dir / "base", "--to", self.dir / "model")
        learn = change(models.deck("values", self.dir), model__init_from=str(self.dir / "model"))
        del learn["model"]["dropout"]
        self.train(2, self.deck("learn", learn))
        self.run_code(0, "export", self.dir / "learn", "--to", self.dir / "learned")
        said = [self.run_code(0, "generate", self.dir / of, "--prompt", "fox", "--tokens", 6)
                for of in ("learn", "learned")]
        self.assertEqual(*said)


class Layouts(PolicyTest):
    def test_answers_of_experts_and_of_what_is_elsewhere(self):
        """One model draws them, is compared with a reference of its own and says values, whatever its layout:
        ranks that divide experts answer in step, as do those that divide parameters."""
        base = tiny_deck(self.dir / "data", model__family="mixtral", model__vocab=256, model__context=32,
                         model__hidden=32, model__heads=4, model__ffn_hidden=40, moe__experts=4,
                         moe__top_k=2, moe__ffn_hidden=40, run__steps=10)
        self.train(1, self.deck("base", base))
        self.run_code(0, "export", self.dir / "base", "--to", self.dir / "model")
        (self.dir / "nvme").mkdir()
        made = {}
        for name, ranks, changes in (
                ("one", 1, {}),
                ("experts", 2, {"parallel__experts": 2}),
                ("published", 3, {"zero__stage": 1}),
                ("published_beside", 2, {"zero__stage": 2, "offload__optimizer": "host"}),
                # One answer at a time: for another one there are no pages.
                ("both", 4, {"parallel__experts": 2, "parallel__tensor": 2, "zero__stage": 3,
                             "rollout__cache_tokens": 64}),
                ("stages", 4, {"parallel__pipeline": 2, "zero__stage": 3, "offload__parameters": "host"}),
                ("disks", 2, {"zero__stage": 3, "offload__parameters": "nvme",
                              "offload__nvme": [str(self.dir / "nvme")], "offload__optimizer": "nvme"})):
            with self.subTest(name):
                deck = self.deck_of(name, "values", model__init_from=str(self.dir / "model"),
                                    moe__aux_loss=0.0, moe__z_loss=0.0, run__steps=3, rollout__slots=3,
                                    # Answers end where the sequence does, after as many tokens as it has room for.
                                    rollout__tokens=30, batch__sequence=32, batch__micro=1,
                                    batch__global=12, **changes)
                self.train(ranks, deck)
                made[name] = self.steps_of(name), models.rollouts(self.dir / name)
                steps, answers = made["one"]
                self.assertEqual([a["token_ids"] for a in made[name][1][0]],
                                 [a["token_ids"] for a in answers[0]])
                for a, b in zip(made[name][1][0], answers[0]):
                    # Some 200 roundings of numbers of about 1 along the longest path.
                    self.assertLess(max(abs(x - y) for x, y in zip(a["values"], b["values"])), 200 * 2**-24)
                for key in ("entropy", "kl", "explained"):
                    self.assertAlmostEqual(made[name][0][0]["rollout"][key] or 0, steps[0]["rollout"][key] or 0,
                                           delta=2e-5)
                self.assertAlmostEqual(made[name][0][0]["loss"], steps[0]["loss"], delta=2e-5)
                self.assertGreater(made[name][0][2]["rollout"]["kl"], 0)
        self.assertEqual(list((self.dir / "nvme").glob("*")), [])

    def test_a_model_judges(self):
        """As tessera classify has it judge the same texts, on every layout, also where it is itself in shards or
        on disks; and what it likes is learned."""
        base = tiny_deck(self.dir / "data", model__vocab=256, model__context=32, run__steps=60,
                         optimizer__lr=0.01)
        self.train(1, self.deck("base", base))
        self.run_code(0, "export", self.dir / "base", "--to", self.dir / "model")
        self.pairs_of_bytes([{"prompt": f"{i} ", "chosen": "fox lazy dog"[i % 5:], "rejected": "the over hoot"[i % 4:]}
                             for i in range(20)])
        judge = {"run": {"steps": 20, "seed": 3, "backend": "debug"}, "task": {"kind": "reward"},
                 "model": {"family": "gpt2", "layers": 2, "heads": 2, "hidden": 16, "vocab": 256, "context": 28},
                 "data": {"train": [str(self.dir / "pairs")]}, "batch": {"micro": 4, "global": 8},
                 "schedule": {"kind": "constant"}, "optimizer": {"name": "adamw", "lr": 1e-2}}
        self.train(1, self.deck("judged", judge))
        self.run_code(0, "export", self.dir / "judged", "--to", self.dir / "judge")
        (self.dir / "nvme").mkdir()
        deck = change(models.deck("answers", self.dir), model__init_from=str(self.dir / "model"),
                      reward__kind="model", reward__command=None, reward__model=str(self.dir / "judge"),
                      run__steps=2, batch__sequence=24)
        del deck["model"]["dropout"]
        want = None
        for name, ranks, changes in (
                ("one", 1, {}), ("tensor", 2, {"parallel__tensor": 2}),
                ("both", 4, {"parallel__pipeline": 2, "zero__stage": 3, "offload__parameters": "nvme",
                             "offload__nvme": [str(self.dir / "nvme")]}),
                ("beside", 2, {"zero__stage": 1, "offload__optimizer": "host", "offload__ahead": 3}),
                ("context", 2, {"parallel__context": 2, "zero__stage": 3, "offload__parameters": "host",
                                "batch__micro": 16})):
            with self.subTest(name):
                self.train(ranks, self.deck(name, change(copy.deepcopy(deck), **changes)))
                answers = models.rollouts(self.dir / name)[0]
                want = want or answers
                self.assertEqual([a["token_ids"] for a in answers], [a["token_ids"] for a in want])
                for a, b in zip(answers, want, strict=True):
                    # Some 100 roundings of numbers of about 1.
                    self.assertAlmostEqual(a["reward"], b["reward"], delta=100 * 2**-24)
        (self.dir / "said.jsonl").write_text("".join(json.dumps({
            "text": bytes([*a["line"]["prompt"].encode(), *a["token_ids"]]).decode()}) + "\n" for a in want
            if max(a["token_ids"]) < 128))
        said = [json.loads(line)["reward"] for line in self.run_job(
            0, "classify", self.dir / "judge", self.dir / "said.jsonl", "--json").output.splitlines()
            if line.startswith("{")]
        rewards = [a["reward"] for a in want if max(a["token_ids"]) < 128]
        self.assertGreater(len(rewards), 8)
        self.assertGreater(max(rewards) - min(rewards), 0.01)
        for a, b in zip(rewards, said, strict=True):
            self.assertAlmostEqual(a, b, delta=100 * 2**-24)
        text = self.run_code(0, "check", self.deck("checked", copy.deepcopy(deck)), "--ranks", 2)
        self.assertIn("for the reward model (no part of the above)", text)
        self.refuses_judges(deck)

    def refuses_judges(self, deck):
        def refused(code, text, **changes):
            with self.subTest(text):
                self.assertIn(text, self.run_code(code, "train", self.deck(
                    "refused", change(copy.deepcopy(deck), **changes)), ranks=2))

        refused(DECK, "reward.model is missing", reward__model=None)
        refused(DECK, 'reward.model has no effect with reward.kind = "match"', reward__kind="match")
        refused(DECK, "it has no head that scores", reward__model=str(self.dir / "model"))
        refused(DECK, "but batch.sequence = 32", batch__sequence=32)
        (self.dir / "judge" / "tokenizer.json").write_text(json.dumps({
            "version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}}))
        refused(DATA, "that of reward.model, ")
        (self.dir / "judge" / "tokenizer.json").unlink()
        refused(DATA, "has no tokenizer.json, by which it is known that it reads the tokens")

    def test_what_check_says(self):
        """One set of the actor's parameters; keys and values; and a reference where it is another model."""
        said = {name: self.run_code(0, "check", self.deck_of(name, kind, **rollout), "--ranks", 2)
                for name, kind, rollout in (
                    ("plain", "answers", {"rollout__slots": 5}), ("more", "answers", {"rollout__slots": 10}),
                    ("shared", "answers", {"rollout__slots": 10, "rollout__cache_tokens": 3 * 64}),
                    ("reference", "reference", {"rollout__slots": 5}), ("lora", "lora", {"rollout__slots": 5}))}
        self.assertEqual({name: "for the reference model of task.kl" in text for name, text in said.items()},
                         {"plain": False, "more": False, "shared": False, "reference": True, "lora": False})
        cached = [float(re.search(r"keys and values +([0-9.]+) KiB", said[name])[1])
                  for name in ("plain", "more", "shared")]
        self.assertAlmostEqual(cached[1], 2 * cached[0], delta=0.2)
        self.assertAlmostEqual(cached[2], 3 / 5 * cached[0], delta=0.2)  # three pages in place of five


class ThreeDecks(RunTest):
    """From a base model and files of conversations to one that answers as people like it."""

    def ran(self, *arguments, ranks=0):
        job = self.run_job(ranks, *arguments)
        self.assertEqual(job.code, 0, job.output)
        return job.output

    def made(self, name, **deck):
        """A directory of what a deck trains on two ranks."""
        common = {"run": {"seed": 3}, "schedule": {"kind": "constant"}, "precision": {"compute": "f32"}}
        self.train(2, self.deck(name, {**deck, **{k: {**v, **deck.get(k, {})} for k, v in common.items()}}))
        self.ran("export", self.dir / name, "--to", self.dir / f"{name}_model",
                 *(["--merged"] if "adapter" in deck else []))
        return str(self.dir / f"{name}_model")

    def tokens(self, name, lines, *options):
        (self.dir / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.ran("tokenize", self.dir / f"{name}.jsonl", "--tokenizer", self.dir / "tokenizer.json", "--out",
                 self.dir / name, *options)
        return {"train": [str(self.dir / name)]}

    def test_tuned_on_talks_judged_by_pairs_and_learning_from_its_own_answers(self):
        import chat_tokenizers
        tokenizer = chat_tokenizers.tokenizer_json("chatml")
        (self.dir / "tokenizer.json").write_text(json.dumps(tokenizer))
        vocab = 1 + max(*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"]))
        def adam(rate):
            return {"optimizer": {"name": "adamw", "lr": rate, "weight_decay": 0.0}}

        animals = ("cat", "dog", "owl", "bee", "fox", "elk")
        base = self.made("base", **adam(1e-2), data=self.tokens("text", [{"text": f"the {a} is here. " * 9} for a in animals]),
                         model={"family": "qwen3", "layers": 2, "heads": 2, "hidden": 32, "ffn_hidden": 48,
                                "vocab": vocab, "context": 48},
                         run={"steps": 20}, batch={"micro": 2, "global": 8})
        # What it says of an animal is one of two words.
        talks = [{"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": said}]}
                 for a in animals for said in ("nice", "poor")]
        tuned = self.made("tuned", **adam(3e-3), data={**self.tokens("talks", talks, "--chat", "chatml"),
                                                 "documents": "separate"},
                          model={"init_from": base}, run={"steps": 120}, batch={"micro": 2, "global": 8})
        pairs = [{"prompt": a, "chosen": "nice", "rejected": "poor"} for a in animals]
        judge = self.made("judge", **adam(1e-2), task={"kind": "reward"}, model={"init_from": tuned}, run={"steps": 20},
                          data=self.tokens("pairs", pairs, "--chat", "chatml", "--pairs"),
                          batch={"micro": 2, "global": 4})
        (self.dir / "prompts.jsonl").write_text("".join(json.dumps({"prompt": a}) + "\n" for a in animals))
        aligned = self.made("aligned", **adam(1e-3), model={"init_from": tuned},
                            task={"kind": "ppo", "kl": 0.05, "critic": judge, "critic_lr": 3e-3},
                            adapter={"kind": "lora", "rank": 4, "targets": ["*"]}, zero={"stage": 3},
                            data={"train": [str(self.dir / "prompts.jsonl")]},
                            reward={"kind": "model", "model": judge}, run={"steps": 40},
                            rollout={"tokens": 8, "chat": "chatml", "slots": 16}, batch={"micro": 4, "global": 32})
        said = [step["rollout"]["reward"] for step in self.steps_of("aligned")]
        self.assertGreater(sum(said[-5:]) / 5, sum(said[:2]) / 2 + 1, said)
        # It answers as pairs preferred, where before it gave both answers.
        nice = {}
        for name, model in (("tuned", tuned), ("aligned", aligned)):
            out = self.dir / f"{name}.answers.jsonl"
            self.ran("generate", model, "--prompts", self.dir / "prompts.jsonl", "--chat", "chatml", "--out", out,
                     "--samples", 8, "--tokens", 8, ranks=2)
            answers = [json.loads(line)["completion"].strip() for line in out.read_text().splitlines()]
            self.assertEqual(len(answers), 48)
            nice[name] = sum(a == "nice" for a in answers) / 48
        self.assertGreater(nice["aligned"], nice["tuned"] + 0.4, nice)


class Refused(PolicyTest):
    def test_keys_of_critics(self):
        for text, kind, changes in (
                ('task.kind = "values" is of the critic', "values", {"task__kind": "values"}),
                ('task.critic has no effect with task.kind = "grpo"', "answers", {"task__critic": "gpt2"}),
                ("task.critic_lr has no effect without task.critic", "values", {"task__critic_lr": 0.1}),
                ("task.value_loss has no effect with task.critic", "critic", {"task__value_loss": 0.2}),
                ('precision.compute = "f16" does not go with task.critic', "critic", {"precision__compute": "f16"}),
                ("it sees 24 tokens, but batch.sequence = 32", "critic_rounds", {"batch__sequence": 32})):
            with self.subTest(text):
                self.assertIn(text, self.run_code(DECK, "train", self.deck_of("refused", kind, **changes), ranks=2))
        text = self.run_code(0, "check", self.deck_of("checked", "critic"), "--ranks", 2)
        self.assertIn("for the critic, which is trained too (no part of the above)", text)
        text = self.run_code(DATA, "train", self.deck_of("few", "critic", task__critic=str(self.dir / "llama")), ranks=2)
        self.assertRegex(text, r"the model has said token \d+, but one that judges .* knows 197 tokens")
        (self.dir / "gpt2" / "tokenizer.json").unlink()
        text = self.run_code(DATA, "train", self.deck_of("other", "critic_rounds"), ranks=2)
        self.assertIn("task.critic: ", text)
        self.assertIn("has no tokenizer.json, by which it is known", text)

    def test_keys_of_values(self):
        deck = self.deck_of("idle", "answers", task__gamma=0.5)
        self.assertIn('task.gamma has no effect with task.kind = "grpo"',
                      self.run_code(DECK, "check", deck, "--ranks", 1))
        deck = self.deck_of("alone", "answers", rollout__samples=1)
        self.assertIn('compares answers to one prompt (give at least 2, or use "ppo")',
                      self.run_code(DECK, "check", deck, "--ranks", 1))
        deck = self.deck_of("still", "values", frozen__layers=["vocabulary", "positions", "block.?", "final_norm"])
        self.assertIn("leaves nothing that is trained but value_head",
                      self.run_code(DECK, "check", deck, "--ranks", 1))
        deck = self.deck_of("once", "values", task__value_clip=0.1)
        self.assertIn("task.value_clip has no effect with rollout.steps = 1",
                      self.run_code(DECK, "check", deck, "--ranks", 1))

    def test_programs_that_do_not_judge(self):
        """The run ends alike on all ranks, and keeps what it had."""
        for name, code, judge, message in (
                ("ends", IO, "import sys\nsys.stdin.readline()\nsys.exit(3)\n",
                 "it has ended, with exit code 3"),
                ("hangs", IO, "import time\ntime.sleep(600)\n", "it has written nothing for 0.5 s"),
                ("babbles", DATA, "import sys\nfor line in sys.stdin: print('good')\n",
                 'has answered "good"'),
                ("diverges", DATA, "import sys\nfor line in sys.stdin: print('1e999')\n",
                 'has answered "1e999"')):
            with self.subTest(name):
                run = {"checkpoint__every": 1, "checkpoint__keep": 9}
                deck = self.deck_of(name, "answers", run__steps=2, **run)
                self.train(2, deck)
                before = self.saved(name)
                (self.dir / "judge.py").write_text(judge)
                output = self.run_code(code, "train", deck, "--set", "run.steps=4", "--set",
                                       f"reward.timeout={0.5 if name == 'hangs' else 60}", ranks=2)
                self.assertIn(message, output)
                self.assertIn("judge.py", output)
                self.assertEqual(self.saved(name), before)
                (self.dir / "judge.py").write_text(models.JUDGE)
                self.train(2, self.deck_of(name, "answers", run__steps=4, **run))
        # In the third step, of which the second one's state is to be saved beside.
        (self.dir / "judge.py").write_text(
            "import sys\n" + models.JUDGE.replace("for line in sys.stdin:\n",
                                                  "for number, line in enumerate(sys.stdin):\n"
                                                  "    if number == 20: sys.exit(1)\n"))
        deck = self.deck_of("later", "answers", checkpoint__every=1)
        self.assertIn("with exit code 1", self.run_code(IO, "train", deck, ranks=2))
        self.assertTrue((self.dir / "later" / "checkpoints" / "step_00000002").is_dir())
        deck = self.deck_of("nowhere", "answers", reward__command=["/nowhere/judge"])
        self.assertIn("/nowhere/judge: No such file", self.run_code(IO, "train", deck, ranks=2))

    def saved(self, name):
        return {p.relative_to(self.dir): p.read_bytes() for p in
                (self.dir / name / "checkpoints").rglob("*") if p.is_file()}

    def test_prompts(self):
        for name, text, message in (
                ("own", '{"prompt": "a", "completion": "b"}\n', 'line 1: the line has a member "completion"'),
                ("blank", "\n \n", "data.train has no prompts"),
                ("none", '{"text": "a"}\n', 'line 1: $: "prompt" is missing'),
                ("empty", '{"prompt": "a"}\n{"prompt": ""}\n', "line 2: the prompt has no tokens"),
                ("long", '{"prompt": "%s"}\n' % ("a" * 16),
                 "the prompt has 16 tokens, more than batch.sequence leaves room for before an answer, of 15"),
                ("other", '{"prompt": "\xe9\\u00ff\\ud83d\\ude00"}\n', "is not below model.vocab = 211")):
            with self.subTest(name):
                (self.dir / f"{name}.jsonl").write_text(text, encoding="utf-8")
                deck = self.deck_of(name, "answers", data__train=[str(self.dir / f"{name}.jsonl")])
                for verb, ranks, of_verb in (("check", 0, ("--ranks", 1)), ("train", 2, ())):
                    self.assertIn(message, self.run_code(DATA, verb, deck, *of_verb, ranks=ranks))
        deck = self.deck_of("match", "answers", reward__command=None, reward__kind="match")
        self.assertIn('the line has no text or whole number "answer"', self.run_code(DATA, "train", deck))
        deck = self.deck_of("tokens", "answers", data__train=[str(self.corpus)])
        self.assertIn("it is a file of prompts, .jsonl", self.run_code(DATA, "check", deck, "--ranks", 1))
        (self.dir / "gpt2" / "tokenizer.json").unlink()
        deck = self.deck_of("mute", "answers")
        self.assertIn("has no tokenizer.json", self.run_code(DATA, "train", deck))

    def test_right_answers_are_matched(self):
        """Whatever white space is around them."""
        (self.dir / "sums.jsonl").write_text(
            "".join(json.dumps({"prompt": p, "answer": a}) + "\n" for p, a in (("a", "~"), ("b", 7))))
        deck = self.deck_of("run", "answers", reward__command=None, reward__kind="match",
                            data__train=[str(self.dir / "sums.jsonl")], rollout__tokens=1, batch__global=256,
                            rollout__samples=128, run__steps=1)
        self.train(2, deck)
        right = {"a": "~", "b": "7"}
        (answers,) = models.rollouts(self.dir / "run")
        for a in answers:
            self.assertEqual(a["reward"], float(a["completion"].strip() == right[a["line"]["prompt"]]), a)
        self.assertGreater(sum(a["reward"] for a in answers), 0)
        self.assertIn("2 prompts in 1 file", self.run_code(0, "check", deck, "--ranks", 2))


if __name__ == "__main__":
    unittest.main()
