"""Documents that share sequences, targets that do not count, and mixtures of corpora: as PyTorch
trains them, the same bits on every layout in layout mode and over restarts, and what is refused
(traps 8, 11 to 16)."""

import array
import json
import shutil
import struct
import unittest

from tessera import SOURCE, RunTest, change, metrics, some_of, tiny_deck, write_tokens

ORACLE = SOURCE / "tests" / "data" / "oracle"
LAYOUTS = ((1, {"batch__micro": 8}), (2, {"zero__stage": 3}),
           (2, {"parallel__tensor": 2, "zero__stage": 0, "recompute__policy": "full"}),
           (4, {"parallel__pipeline": 2, "zero__stage": 2, "batch__micro": 2}),
           (4, {"parallel__tensor": 2, "parallel__sequence": False, "zero__stage": 1,
                "memory__logits": 5}))
# Micro-batches of which some have no target that counts.
ANY_LAYOUT = {"run__reproducible": "layout", "run__reproducible_tensor": 2, "run__threads": 1,
              "model__heads": 4, "model__hidden": 32, "model__layers": 4, "run__steps": 6,
              "model__dropout": 0.1, "checkpoint__every": 2, "checkpoint__keep": 9}


def counts(place):
    """As in tests/data/make_documents.py."""
    of_stretch = (place // 40) % 4
    return (of_stretch == 0 or (of_stretch == 1 and place % 5 == 0)
            or (of_stretch == 2 and place % 40 == 7))


def write_pair(prefix, code, values, lengths):
    """A Megatron pair of documents of these lengths."""
    size = values.itemsize
    begins = [sum(lengths[:i]) * size for i in range(len(lengths))]
    prefix.with_name(prefix.name + ".bin").write_bytes(values.tobytes())
    prefix.with_name(prefix.name + ".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
        + array.array("i", lengths).tobytes() + array.array("q", begins).tobytes()
        + array.array("q", range(len(lengths) + 1)).tobytes())


def lengths_of(index):
    (sequences,) = struct.unpack_from("<Q", index, 18)
    return list(struct.unpack_from(f"<{sequences}i", index, 34))


class DocumentsTest(RunTest):
    def copy_corpus(self, source, name="documents"):
        """The corpus of the oracle with the targets of its documents.json."""
        prefix = self.dir / name
        for end in (".bin", ".idx"):
            shutil.copy(source.with_name(source.name + end), self.dir / (name + end))
        lengths = lengths_of((self.dir / f"{name}.idx").read_bytes())
        targets = array.array("B", (counts(i) for i in range(sum(lengths))))
        write_pair(self.dir / f"{name}.targets", 1, targets, lengths)
        return prefix


class Oracle(DocumentsTest):
    def check(self, family, layouts):
        truth = json.loads((ORACLE / family / "losses.json").read_text())
        want = json.loads((ORACLE / family / "documents.json").read_text())
        # As in oracle_test: 8 times as far from fp64 as PyTorch's own fp32 is.
        bound = 8 * max(abs(a - b) for x, y in zip(want["float32"], want["float64"])
                        for a, b in zip(x, y))
        recipe = truth["recipe"]
        corpus = self.copy_corpus(ORACLE / family / "tokens", family)
        for number, (ranks, layout) in enumerate(some_of(layouts)):
            with self.subTest(family=family, ranks=ranks, **layout):
                if family == "llama" and layout.get("parallel__sequence", True) \
                        and "parallel__tensor" in layout:
                    layout = {**layout, "parallel__sequence": False}  # 17 tokens
                name = f"{family}_{number}"
                deck = self.deck(name, change({
                    "run": {"steps": len(want["float64"]), "backend": "debug"},
                    "model": {"init_from": str(ORACLE / family)},
                    "data": {"train": [str(corpus)], "shuffle": False, "documents": "separate"},
                    "batch": {"sequence": truth["sequence"], "micro": 1, "global": 8},
                    "optimizer": {k: recipe[k] for k in ("lr", "betas", "eps", "weight_decay",
                                                         "clip_norm")},
                    "schedule": {"kind": "constant", "warmup_steps": recipe["warmup_steps"]},
                }, **layout))
                self.train(ranks, deck)
                steps = self.steps_of(name)
                self.assertEqual([s["targets"] for s in steps], [w[2] for w in want["float64"]])
                worst = max(abs(s[key] - w[i]) for s, w in zip(steps, want["float64"])
                            for i, key in enumerate(("loss", "grad_norm")))
                self.assertLess(worst, bound)

    def test_gpt2(self):
        self.check("gpt2", LAYOUTS)

    def test_llama(self):
        self.check("llama", LAYOUTS[2:4])


class Bits(DocumentsTest):
    def test_every_layout_and_restart_has_the_same_bits(self):
        """Documents of 1 to 30 tokens; of targets whole micro-batches do not count."""
        lengths = [1 + 7 * i % 30 for i in range(190)]
        tokens = array.array("H", ((5 * i * i + i // 7) % 97 for i in range(sum(lengths))))
        prefix = self.dir / "corpus"
        write_pair(prefix, 8, tokens, lengths)
        write_pair(self.dir / "corpus.targets", 1,
                   array.array("B", (counts(i) for i in range(len(tokens)))), lengths)
        for positions in ("document", "sequence"):
            fixed = {**ANY_LAYOUT, "data__documents": "separate", "data__positions": positions,
                     "data__validation": [str(prefix)], "evaluate__every": 3,
                     "model__position": "rope" if positions == "sequence" else "learned"}
            want = self.train(1, self.deck(f"one_{positions}", tiny_deck(prefix, **fixed)))
            targets = [s["targets"] for s in self.steps_of(f"one_{positions}")]
            self.assertLess(max(targets), 8 * 15, "not all count")
            self.assertGreater(len(set(targets)), 3, "and in each step others")
            for ranks, layout in ((4, {"parallel__tensor": 2, "zero__stage": 3}),
                                  (4, {"parallel__pipeline": 2, "zero__stage": 1,
                                       "recompute__policy": "selective",
                                       "offload__activations": "host"})):
                with self.subTest(positions=positions, **layout):
                    name = f"{positions}_{'_'.join(k.split('__')[1] for k in layout)}"
                    deck = self.deck(name, tiny_deck(prefix, **fixed, **layout))
                    self.assertEqual(self.train(ranks, deck), want)
                    self.assertEqual(self.evaluations(name), self.evaluations(f"one_{positions}"))
            # Steps that are done again must have the same bits.
            self.go_back(f"one_{positions}", 2)
            again = self.deck(f"one_{positions}", tiny_deck(prefix, **fixed, zero__stage=1))
            self.assertEqual(self.train(2, again), want)

    def evaluations(self, name):
        return [(e["loss"], e["targets"], e["sets"]) for e in metrics.read_events(self.dir / name)
                if e["event"] == "evaluate"]

    def test_a_separator_in_place_of_an_index(self):
        lengths = [9, 3, 20, 1, 17] * 40
        tokens = array.array("H", (j for n in lengths for j in [*range(n - 1), 96]))
        write_pair(self.dir / "indexed", 8, tokens, lengths)
        write_pair(self.dir / "whole", 8, tokens, [len(tokens)])
        fixed = {"run__steps": 3, "data__documents": "separate"}
        numbers = [self.train(1, self.deck(name, tiny_deck(self.dir / name, **fixed, **more)))
                   for name, more in (("indexed", {}), ("whole", {"data__separator": 96}))]
        self.assertEqual(*numbers)
        joined = self.train(1, self.deck("joined", tiny_deck(self.dir / "whole", run__steps=3)))
        self.assertNotEqual(numbers[0], joined)


class TokenBudgets(DocumentsTest):
    def test_the_rate_follows_the_targets(self):
        """Steps of whole documents have not all as many targets: the rate is for full ones."""
        lengths = [1 + 7 * i % 16 for i in range(190)]
        tokens = array.array("H", ((5 * i * i + i // 7) % 97 for i in range(sum(lengths))))
        write_pair(self.dir / "corpus", 8, tokens, lengths)
        fixed = {**ANY_LAYOUT, "batch__token_budget": 16, "model__context": 16,
                 "schedule__kind": "constant", "schedule__warmup_steps": 0, "model__dropout": 0.0,
                 "optimizer__lr": 3e-3}
        for scaling, power in (("linear", 1), ("sqrt", 0.5)):
            of_kind = {**fixed, "batch__lr_scaling": scaling}
            want = None
            for number, (ranks, layout) in enumerate((
                    (1, {}), (2, {"zero__stage": 3}),
                    (4, {"parallel__tensor": 2, "parallel__pipeline": 2}))):
                name = f"{scaling}_{number}"
                deck = self.deck(name, tiny_deck(self.dir / "corpus", **of_kind, **layout))
                numbers = self.train(ranks, deck)
                steps = [(s["lr"], s["targets"]) for s in self.steps_of(name)]
                want = want or (numbers, steps)
                self.assertEqual((numbers, steps), want)
            # Steps that are done again, on another layout, have the same rates and bits.
            self.go_back(f"{scaling}_0", 2)
            again = self.deck(f"{scaling}_0", tiny_deck(self.dir / "corpus", **of_kind,
                                                        zero__stage=1))
            numbers = self.train(2, again)
            steps = [(s["lr"], s["targets"]) for s in self.steps_of(f"{scaling}_0")]
            self.assertEqual((numbers, steps), want)
            rates, targets = zip(*want[1])
            self.assertGreater(len(set(targets)), 1)
            for rate, count in zip(rates, targets):
                self.assertAlmostEqual(rate, 3e-3 * (count / 128) ** power, delta=1e-15)
            alone = self.deck(f"{scaling}_alone", tiny_deck(
                self.dir / "corpus", **{**fixed, "optimizer__lr": rates[0], "run__steps": 2}))
            self.assertEqual(self.train(1, alone)[2], want[0][2], "updates are by that rate")


class Mixtures(DocumentsTest):
    def test_weights_decide_what_is_seen(self):
        """Corpora of one token each: in a sequence of such, the loss says which they are."""
        entries = []
        for i, weight in enumerate((0.5, 0.3, 0.2)):
            tokens = array.array("H", [i + 1] * 400)
            write_pair(self.dir / f"corpus_{i}", 8, tokens, [400])
            entries.append({"path": str(self.dir / f"corpus_{i}"), "weight": weight})
        fixed = {"batch__global": 10, "run__steps": 4, "optimizer__lr": 1e-30,
                 "optimizer__weight_decay": 0.0}
        alone = [self.train(1, self.deck(f"alone_{i}", tiny_deck(entry["path"], **fixed)))[1][0]
                 for i, entry in enumerate(entries)]
        deck = tiny_deck("", **fixed, data__train=entries, zero__stage=1)
        mixed = self.train(2, self.deck("mixed", deck))
        for loss, _ in mixed.values():  # each step has 5, 3 and 2 of them
            expected = 0.5 * alone[0] + 0.3 * alone[1] + 0.2 * alone[2]
            self.assertAlmostEqual(loss, expected, delta=1e-6)
        for step in self.steps_of("mixed"):
            self.assertEqual([c["data"] for c in step["corpora"]], [e["path"] for e in entries])
            self.assertEqual([c["targets"] for c in step["corpora"]], [5 * 16, 3 * 16, 2 * 16])
            for corpus, loss in zip(step["corpora"], alone):
                self.assertAlmostEqual(corpus["loss"], loss, delta=1e-6)
        self.assertIn("corpus_2 loss", (self.dir / "mixed" / "log.txt").read_text())
        self.assertIsNone(self.steps_of("alone_0")[0]["corpora"], "of no mixture")

    def test_losses_by_corpus_are_those_of_their_samples(self):
        """Steps of one sample tell which corpus each sample is of, and its loss; a step of eight
        has the means over them, to the bit on every layout and however it is cut."""
        entries = []
        for i, epochs in enumerate((1.0, 2.0)):
            prefix = self.copy_corpus(self.corpus, f"corpus_{i}") if i else self.dir / "corpus_0"
            write_tokens(self.dir / "corpus_0", 900, seed=7)
            entries.append({"path": str(prefix), "epochs": epochs})
        fixed = {**ANY_LAYOUT, "run__steps": 8, "optimizer__lr": 1e-30, "model__dropout": 0.0,
                 "optimizer__weight_decay": 0.0, "data__train": entries, "checkpoint__every": 0,
                 "guard__max_skips": 100, "data__validation": [e["path"] for e in entries],
                 "evaluate__every": 2, "evaluate__batches": 1}
        self.train(1, self.deck("one", tiny_deck("", **fixed, batch__global=1)))
        sums, targets, seen = [0.0, 0.0], [0, 0], set()
        for step in self.steps_of("one"):
            of = [i for i, c in enumerate(step["corpora"]) if c["targets"] > 0]
            self.assertLessEqual(len(of), 1, "a sample is of one corpus")
            seen.update(of)
            for i, c in enumerate(step["corpora"]):
                self.assertEqual(c["loss"], step["loss"] if i in of else None)
                sums[i] += (c["loss"] or 0) * c["targets"]
                targets[i] += c["targets"]
        self.assertEqual(seen, {0, 1})
        fixed["run__steps"] = 2
        want = None
        for number, (ranks, layout) in enumerate((
                (1, {"batch__micro": 8}), (2, {"zero__stage": 3, "batch__micro": 2}),
                (4, {"parallel__tensor": 2, "zero__stage": 1}),
                (4, {"parallel__pipeline": 2, "zero__stage": 2, "zero__reduce": "micro"}))):
            with self.subTest(ranks=ranks, **layout):
                self.train(ranks, self.deck(f"all_{number}", tiny_deck("", **fixed, **layout)))
                steps = [s["corpora"] for s in self.steps_of(f"all_{number}")]
                want = want or steps
                self.assertEqual(steps, want)
                for c, total, count in zip(steps[0], sums, targets):
                    self.assertEqual(c["targets"], count)
                    self.assertAlmostEqual(c["loss"], total / count, delta=1e-12)


class Refused(DocumentsTest):
    def expect(self, code, text, **changes):
        job = self.run_job(1, "train", self.deck("bad", tiny_deck(self.corpus, **changes)))
        self.assertEqual(job.code, code, job.output)
        self.assertIn(text, " ".join(job.output.split()))

    def test_decks(self):
        self.expect(2, "data.positions = \"document\" needs data.documents = \"separate\"",
                    data__positions="document")
        self.expect(2, "data.separator has no effect where data.documents = \"joined\"",
                    data__separator=3)
        self.expect(2, "data.separator = 97 is not below model.vocab = 97",
                    data__documents="separate", data__separator=97)
        self.expect(2, "\"separate\" does not go with optimizer.name = \"onebit_adam\"",
                    data__documents="separate", optimizer__name="onebit_adam",
                    optimizer__compress_after=4, optimizer__clip_norm=0)
        one = {"path": str(self.corpus), "weight": 1.0}
        self.expect(2, "1 entry with a weight and 0 with epochs, of 2",
                    data__train=[one, str(self.corpus)])
        self.expect(2, "weight = -1.0 must be a number > 0", data__train=[{**one, "weight": -1.0}])
        self.expect(2, "weigth is no key of an entry (did you mean weight?)",
                    data__train=[{"path": str(self.corpus), "weigth": 1.0}])

    def test_files(self):
        lengths = lengths_of((self.dir / "tokens.idx").read_bytes())
        ones = array.array("B", [1] * sum(lengths))
        write_pair(self.dir / "tokens.targets", 1, ones[1:], [lengths[0] - 1])
        self.expect(3, "tokens.targets.idx: its documents are not those of")
        ones[1] = 7
        write_pair(self.dir / "tokens.targets", 1, ones, lengths)
        self.expect(3, "tokens.targets.bin: byte 1: 7, where a token counts as a target (1) or not",
                    data__shuffle=False)
        ones[1] = 0
        write_pair(self.dir / "tokens.targets", 1, ones, lengths)
        self.expect(2, "optimizer.name = \"onebit_adam\" does not go with data.train",
                    optimizer__name="onebit_adam", optimizer__compress_after=4,
                    optimizer__clip_norm=0)
        header = array.array("i", [20240520, 1, 600] + [0] * 253)
        (self.dir / "shard.bin").write_bytes(header.tobytes() + bytes(1200))
        self.expect(3, "shard.bin does not say where its documents end",
                    data__documents="separate", data__train=[str(self.dir / "shard.bin")])

    def test_other_targets_at_a_restart(self):
        deck = self.deck("run", tiny_deck(self.corpus, run__steps=2, checkpoint__every=2))
        self.train(1, deck)
        lengths = lengths_of((self.dir / "tokens.idx").read_bytes())
        write_pair(self.dir / "tokens.targets", 1, array.array("B", [1] * sum(lengths)), lengths)
        job = self.run_job(1, "train", deck, "--set", "run.steps=4")
        self.assertEqual(job.code, 2, job.output)
        self.assertIn("the training data is not what it was", job.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
