"""Weights that come from elsewhere, and models that are looked at elsewhere than they were trained:
what is no model's is refused by name, and evaluation fits the ranks at hand."""

import json
import math
import re
import shutil
import struct
import unittest

from tessera import BINARY, SOURCE, RunTest, metrics, tiny_deck, write_tokens

class Safetensors:
    """A file whose numbers can be changed in place."""

    def __init__(self, path):
        self.path = path
        self.bytes = bytearray(path.read_bytes())
        (length,) = struct.unpack_from("<Q", self.bytes)
        self.header = json.loads(self.bytes[8:8 + length])
        self.data = 8 + length

    def put(self, tensor, *place, value):
        entry = self.header[tensor]
        assert entry["dtype"] == "F32"
        index = 0
        for i, extent in zip(place, entry["shape"], strict=True):
            index = index * extent + i
        struct.pack_into("<f", self.bytes, self.data + entry["data_offsets"][0] + 4 * index, value)
        self.path.write_bytes(self.bytes)


class WeightsTest(RunTest):
    def evaluable(self, **changes):
        return tiny_deck(self.corpus, **{"model__vocab": 256, "run__steps": 1,
                                         "data__validation": [str(self.corpus)],
                                         "evaluate__batches": 2, **changes})

    def gpt2(self, name, tensor=None, value=None):
        """A Hugging Face directory, with `value` at [2, 5] of a tensor."""
        if not (self.dir / "trained").exists():
            self.train(1, self.deck("trained", self.evaluable()))
        self.job("export", self.dir / "trained", "--to", self.dir / name)
        if tensor is not None:
            Safetensors(self.dir / name / "model.safetensors").put(tensor, 2, 5, value=value)
        return self.dir / name

    def starting_from(self, name, source, **changes):
        deck = self.evaluable(**changes)
        for key in ("family", "layers", "heads", "hidden", "vocab", "context"):
            del deck["model"][key]
        deck["model"]["init_from"] = str(source)
        return self.deck(name, deck)

    def job(self, *arguments, code=0, ranks=0, says=()):
        """Every rank of it ends with `code`, and each of `says` is said once."""
        job = self.run_job(ranks, *arguments, each=ranks > 0)
        self.assertEqual(job.codes or [job.code], [code] * max(ranks, 1), job.output)
        for text in says:
            self.assertEqual(job.output.count(text), 1, f"{text}\n{job.output}")
        return job.output

    def copy_of(self, name, as_name, **settings):
        """With settings changed; those that are given as None go."""
        copy = self.dir / as_name
        shutil.copytree(SOURCE / "tests/data/hf" / name, copy)
        config = {**json.loads((copy / "config.json").read_text()), **settings}
        (copy / "config.json").write_text(
            json.dumps({k: v for k, v in config.items() if v is not None}))
        return copy

    def add_tensors(self, directory, rename, more):
        """Gives tensors other names, and adds some: f32 of a shape, or the bytes of another."""
        file = Safetensors(directory / "model.safetensors")
        data = bytes(file.bytes[file.data:])
        header = {rename(name): entry for name, entry in file.header.items()}
        for name, of in more.items():
            if isinstance(of, str):
                begin, end = header[of]["data_offsets"]
                shape, content = header[of]["shape"], data[begin:end]
            else:
                shape, content = of, bytes(4 * math.prod(of))
            header[name] = {"dtype": "F32", "shape": shape,
                            "data_offsets": [len(data), len(data) + len(content)]}
            data += content
        text = json.dumps(header).encode()
        file.path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class NonFinite(WeightsTest):
    TENSOR = "transformer.h.1.mlp.c_fc.weight"

    def test_refused_by_name_in_a_model_directory(self):
        for value, text in ((math.nan, "nan"), (-math.inf, "-inf")):
            with self.subTest(value):
                source = self.gpt2(f"hf_{text}", self.TENSOR, value)
                named = f"{source}/model.safetensors: {self.TENSOR}[2, 5] is {text}, no finite"
                run = self.dir / f"imported_{text}"
                self.job("import", source, "--to", run, code=3,
                         says=[named, "--allow-non-finite"])
                self.assertFalse(run.exists(), "nothing is left")
                self.job("generate", source, "--prompt", "a", code=3, says=[named])
                for stage in (0, 3):
                    deck = self.starting_from(f"start_{text}_{stage}", source, zero__stage=stage)
                    for verb in ("train", "evaluate"):
                        self.job(verb, deck, ranks=2, code=3,
                                 says=[named, "model.accept_non_finite = true"])

    def test_refused_by_name_in_a_checkpoint(self):
        run, exported = self.dir / "run", self.dir / "exported"
        self.job("import", self.gpt2("hf", self.TENSOR, math.nan), "--to", run,
                 "--allow-non-finite")
        checkpoint = run / "checkpoints" / "step_00000000"
        named = f"{checkpoint}: block.1.mlp.up.weight[5, 2] is nan, no finite"
        commands = {
            "export": (run, "--to", exported),
            "generate": (run, "--prompt", "a"),
            "evaluate": (run, "--set", f'data.validation=["{self.corpus}"]', "--set",
                         "batch.global=2")}
        for verb, arguments in commands.items():
            ranks = 2 if verb == "evaluate" else 0
            self.job(verb, *arguments, ranks=ranks, code=3, says=[named, "--allow-non-finite"])
        self.assertFalse(exported.exists())
        self.job("export", *commands["export"], "--allow-non-finite")
        for told in (["--allow-non-finite"], ["--set", "model.accept_non_finite=true"]):
            output = self.job("evaluate", *commands["evaluate"], *told, ranks=2)
            self.assertRegex(output, r"loss -?nan")

    def test_sums_of_matrices_and_adapters(self):
        """Each part is finite in f16, but not what --merged makes of them."""
        hf, adapters = SOURCE / "tests/data/hf", self.dir / "adapters"
        shutil.copytree(hf / "peft_llama3", adapters)
        config = json.loads((adapters / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = str(hf / "llama3")
        (adapters / "adapter_config.json").write_text(json.dumps(config))
        module = "base_model.model.model.layers.0.mlp.gate_proj.lora_{}.weight"
        for which in "AB":
            Safetensors(adapters / "adapter_model.safetensors").put(module.format(which), 0, 0,
                                                                    value=3e4)
        run, whole = self.dir / "run", self.dir / "whole"
        self.job("import", adapters, "--to", run)
        self.job("export", run, "--merged", "--type", "f16", "--to", whole, code=3,
                 says=["block.0.mlp.gate.weight with its adapter[0, 0] is ", "--allow-non-finite"])
        self.assertFalse(whole.exists())
        self.job("export", run, "--merged", "--type", "f32", "--to", whole)

    def test_outputs_of_a_reward_model(self):
        """Every weight is finite, but not what it makes of a document."""
        pairs = self.pairs_of_bytes([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 4)
        self.train(1, self.deck("scores", tiny_deck(
            pairs, model__vocab=256, run__steps=1, task__kind="reward", batch__micro=2, batch__global=4)))
        model, text = self.dir / "model", self.dir / "text.txt"
        text.write_text("abc")
        self.job("export", self.dir / "scores", "--to", model)
        self.job("classify", model, text, "--tokenizer", "bytes")
        file = Safetensors(model / "model.safetensors")
        file.put("transformer.ln_f.weight", 0, value=3e38)
        file.put("score.weight", 0, 0, value=3e38)
        self.job("classify", model, text, "--tokenizer", "bytes", code=6,
                 says=["the model's outputs are not finite"])

    def test_no_older_checkpoint_is_evaluated_in_its_place(self):
        """The last step's update is infinite in f32."""
        deck = self.deck("run", self.evaluable(schedule__kind="constant"))
        self.train(2, deck)
        self.job("evaluate", deck, ranks=2)
        self.job("train", deck, "--set", "run.steps=2", "--set", "optimizer.lr=1e38", "--set",
                 "optimizer.weight_decay=1e38", ranks=2)
        for source in (deck, self.dir / "run"):
            output = self.job("evaluate", source, ranks=2, code=3, says=["no finite number"])
            self.assertIn("checkpoints/step_00000002: ", output)

    def test_taken_where_a_deck_says_so(self):
        source = self.gpt2("hf", self.TENSOR, math.nan)
        deck = self.starting_from("told", source, model__accept_non_finite=True)
        output = self.run_job(1, "train", deck).output
        self.assertNotIn("no finite number", output)
        self.assertIn("skipped", output)
        other = self.starting_from("evaluated", source, model__accept_non_finite=True)
        self.assertRegex(self.job("evaluate", other, ranks=1), r"loss -?nan")

    def test_a_loss_that_is_no_number_is_no_success(self):
        """Every weight is finite, but not what the model makes of them."""
        deck = self.starting_from("large", self.gpt2("hf", self.TENSOR, 3e38))
        output = self.job("evaluate", deck, ranks=2, code=6,
                          says=["although every weight is finite"])
        self.assertIn("loss ", output)
        self.job("evaluate", deck, "--allow-non-finite", ranks=2)

    def test_what_a_type_cannot_hold_is_refused(self):
        source = self.gpt2("hf", self.TENSOR, 70000.0)
        run = self.dir / "run"
        self.job("import", source, "--to", run)
        self.job("export", run, "--to", self.dir / "narrow", "--type", "f16", code=3,
                 says=["block.1.mlp.up.weight[5, 2] is 70000, which f16 cannot hold"])
        for name in ("f32", "bf16"):
            self.job("export", run, "--to", self.dir / name, "--type", name)
        self.job("export", run, "--to", self.dir / "told", "--type", "f16", "--allow-non-finite")
        self.job("import", self.dir / "told", "--to", self.dir / "again", code=3,
                 says=[f"{self.TENSOR}[2, 5] is inf"])
        deck = self.starting_from("narrow", source, precision__compute="f16")
        self.job("train", deck, ranks=2, code=3,
                 says=[f"{self.TENSOR}[2, 5] is 70000, which f16 cannot hold"])


class NewRuns(WeightsTest):
    def hugging_face(self, name, tokenizer=None):
        shutil.copytree(SOURCE / "tests/data/hf/gpt2", self.dir / name)
        if tokenizer is not None:
            shutil.copy(SOURCE / f"tests/data/tokenizers/{tokenizer}.json",
                        self.dir / name / "tokenizer.json")
        return self.dir / name

    def test_what_fails_leaves_what_was_there(self):
        """Without room for the checkpoint; and where all but the deck can be written."""
        source = self.hugging_face("hf", "gpt2")
        new, run = self.dir / "a" / "b", self.dir / "run 4"
        job = self.run_job(0, "-c", 'trap "" XFSZ; ulimit -f 8; exec "$0" "$@"', BINARY, "import",
                           source, "--to", new, program="sh")
        self.assertEqual(job.code, 7, job.output)
        self.assertFalse(new.parent.exists())
        link = self.dir / "link"
        link.symlink_to(self.dir / "gone" / "run")
        self.assertNotEqual(self.run_job(0, "import", source, "--to", link).code, 0)
        self.assertTrue(link.is_symlink(), "it is not what import has made")
        (run / "deck.toml.tmp").mkdir(parents=True)
        self.job("import", source, "--to", run, code=7, says=["deck.toml.tmp"])
        self.assertEqual(list(run.iterdir()), [run / "deck.toml.tmp"])
        (run / "deck.toml.tmp").rmdir()
        output = self.job("import", source, "--to", run)
        command = f"tessera train '{run}/deck.toml' --set"
        self.assertIn(command, output)
        deck = (run / "deck.toml").read_text()
        self.assertIn(command, deck)
        self.assertIn(f"--tokenizer '{run}/tokenizer.json'", deck)
        (run / "deck.toml").unlink()
        with open(run / "checkpoints" / "step_00000000" / "model.h5", "r+b") as file:
            file.truncate(9)
        self.job("import", source, "--to", run, code=2, says=["already holds checkpoints"])

    def test_a_mean_has_the_tokenizer_of_its_sources(self):
        source, other, without = (self.hugging_face("hf", "gpt2"),
                                  self.hugging_face("other", "llama3"),
                                  self.hugging_face("without"))
        mean = self.dir / "mean"
        self.job("merge", source, without, without, "--to", mean,
                 says=[f"note: {without} is given 2 times, and counts as often"])
        self.assertEqual((mean / "tokenizer.json").read_bytes(),
                         (source / "tokenizer.json").read_bytes())
        self.job("merge", source, other, "--to", self.dir / "no", code=3,
                 says=[f"{source} and {other} have different tokenizers", ": id "])
        self.assertFalse((self.dir / "no").exists())


class Heads(WeightsTest):
    def test_a_tied_head_that_differs_is_refused(self):
        source = self.dir / "hf"
        shutil.copytree(SOURCE / "tests/data/hf/llama", source)
        config = json.loads((source / "config.json").read_text())
        (source / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
        self.job("import", source, "--to", self.dir / "imported", code=3,
                 says=["lm_head.weight[0, 0] = ", "model.embed_tokens.weight[0, 0] = ",
                       "set tie_word_embeddings = false"])
        write_tokens(self.corpus, vocab=config["vocab_size"])
        for layout in ({"zero__stage": 3}, {"parallel__pipeline": 2}, {"parallel__tensor": 2}):
            deck = self.starting_from(next(iter(layout)), source, **layout)
            self.job("train", deck, ranks=2, code=3, says=["set tie_word_embeddings = false"])
        (source / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        self.job("import", source, "--to", self.dir / "untied")


class Families(WeightsTest):
    NAMES = ("llama3", "mistral", "qwen2", "qwen3", "phi3", "olmo2", "gpt_neox", "gemma2", "gemma3",
             "gptj", "bert", "roberta", "mixtral", "qwen3_moe", "qwen3_moe_sparse",
             "glm4_moe", "glm4_moe_plain", "deepseek_v2", "deepseek_v2_groups", "deepseek_v3",
             "deepseek_v3_plain")

    def test_each_comes_in_trains_and_goes_out(self):
        write_tokens(self.corpus, vocab=13)
        for name in self.NAMES:
            with self.subTest(name):
                source = SOURCE / "tests/data/hf" / name
                run, first, second = (self.dir / f"{name}_{of}" for of in ("run", "out", "again"))
                self.job("import", source, "--to", run)
                self.job("export", run, "--to", first,
                         says=["give the same logits to the bit (0 from those of unrounded"])
                self.job("import", first, "--to", self.dir / f"{name}_second")
                self.job("export", self.dir / f"{name}_second", "--to", second, "--no-proof")
                self.assertEqual((first / "model.safetensors").read_bytes(),
                                 (second / "model.safetensors").read_bytes())
                deck = self.starting_from(f"{name}_trained", source, batch__sequence=8,
                                          run__steps=2, recompute__policy="full")
                self.train(1, deck)
                self.job("train", deck, "--set", "run.steps=4", ranks=1)
                self.job("export", self.dir / f"{name}_trained", "--to",
                         self.dir / f"{name}_narrow", "--type", "bf16", says=["proof     read back"])


class Encoders(WeightsTest):
    """Directories of BERT: what files of old hold too, which token is the mask, and what is refused."""

    def test_files_of_old(self):
        """Norms under their first names, the output matrix and bias again, and other heads."""
        self.job("import", SOURCE / "tests/data/hf/bert", "--to", self.dir / "now")
        old = self.copy_of("bert", "old", architectures=["BertForPreTraining"],
                           position_embedding_type="absolute", gradient_checkpointing=False)
        heads = {"bert.pooler.dense.weight": [8, 8], "cls.seq_relationship.bias": [2]}
        self.add_tensors(
            old, lambda name: name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"),
            {"cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
             "cls.predictions.decoder.bias": "cls.predictions.bias",
             "bert.embeddings.position_ids": [1, 16], **heads})
        left_out = f"note: of {old}, {', '.join(heads)} are left out"
        self.job("import", old, "--to", self.dir / "then", says=[left_out])
        for run in ("then", "now"):
            self.job("export", self.dir / run, "--to", self.dir / f"{run}_out", "--no-proof")
        self.assertEqual(*((self.dir / f"{run}_out" / "model.safetensors").read_bytes()
                           for run in ("then", "now")))
        write_tokens(self.corpus, vocab=13)
        deck = self.starting_from("started", old, batch__sequence=8)
        self.job("train", deck, ranks=1, says=[left_out])
        deck = self.starting_from("other_task", old, batch__sequence=8, task__kind="lm")
        self.job("train", deck, ranks=1, code=2, says=['task.kind = "lm", but', 'says "mlm"'])
        Safetensors(old / "model.safetensors").put("cls.predictions.decoder.bias", 5, value=7.0)
        self.job("import", old, "--to", self.dir / "two", code=3, says=[
            "cls.predictions.decoder.bias[5] = 7 differs from", "the two are one parameter: remove"])

    def test_the_mask_is_what_the_tokenizer_says(self):
        vocab = json.loads((SOURCE / "tests/data/tokenizers/bert.json").read_text())
        mask = vocab["model"]["vocab"]["[MASK]"]
        size = 1 + max(vocab["model"]["vocab"].values())
        source = self.dir / "trained"
        write_tokens(self.corpus, vocab=13)
        deck = tiny_deck(self.corpus, run__steps=1, model__family="bert", model__vocab=size,
                         model__head_hidden=24, model__head_activation="gelu_erf",
                         model__head_norm=True, model__head_bias=True, model__hidden=24,
                         task__kind="mlm", task__mask_token=mask, batch__sequence=8)
        self.train(1, self.deck("trained", deck))
        shutil.copy(SOURCE / "tests/data/tokenizers/bert.json", source / "tokenizer.json")
        (source / "tokenizer_config.json").write_text('{"eos_token": "[SEP]"}')
        out = self.dir / "out"
        self.job("export", source, "--to", out, says=["proof     read back"])
        config = json.loads((out / "config.json").read_text())
        self.assertEqual(config["mask_token_id"], mask)
        said = json.loads((out / "tokenizer_config.json").read_text())
        self.assertEqual(said["mask_token"], "[MASK]")
        del config["mask_token_id"]
        (out / "config.json").write_text(json.dumps(config))
        for name in ("stated", "named"):
            self.job("import", out, "--to", self.dir / name)
            self.assertIn(f"mask_token = {mask}\n", (self.dir / name / "deck.toml").read_text())
            (out / "tokenizer_config.json").unlink(missing_ok=True)
        (out / "tokenizer.json").unlink()
        self.job("import", out, "--to", self.dir / "no", code=2, says=[
            "task.mask_token is missing", "and its config.json no \"mask_token_id\": give one of them"])
        self.train(1, self.starting_from("told", out, batch__sequence=8, task__mask_token=mask))

    def test_what_a_classifier_does_not_read(self):
        pooled = self.copy_of("roberta_classes", "pooled")
        self.add_tensors(pooled, lambda name: name, {"roberta.pooler.dense.weight": [8, 8]})
        for model, run in ((pooled, "then"), (SOURCE / "tests/data/hf/roberta_classes", "now")):
            says = f"note: of {pooled}, roberta.pooler.dense.weight are left out"
            self.job("import", model, "--to", self.dir / run, says=[says] if run == "then" else [])
            self.job("export", self.dir / run, "--to", self.dir / f"{run}_out", "--no-proof")
        self.assertEqual(*((self.dir / f"{run}_out" / "model.safetensors").read_bytes()
                           for run in ("then", "now")))

    def test_weights_without_a_head(self):
        """Which no import makes up."""
        for name, head, of in (("bert", "cls.predictions.", "BertForMaskedLM"),
                               ("bert_tokens", "classifier.", "BertForTokenClassification"),
                               ("roberta_classes", "classifier.", "RobertaForSequenceClassification")):
            prefix = name.split("_")[0]
            for classes in ([of], None, ["BertModel"]):
                if classes != [of] and name != "bert":
                    continue  # which then is a masked language model's
                source = self.copy_of(name, f"{name}_{classes and classes[0]}", architectures=classes)
                self.add_tensors(source, lambda of: of.replace(head, f"{prefix}.pooler."), {})
                output = self.job("import", source, "--to", self.dir / "no", code=3,
                                  says=[f"these are weights without the head of a {of}"])
                self.assertIn(f"{head}", output)
                self.assertFalse((self.dir / "no").exists())

    def test_a_tokenizer_that_is_damaged_or_of_another_kind(self):
        source = self.copy_of("bert", "tokenized", mask_token_id=None)
        for text, code, says in (
                ('{"model": ', 3, "tokenizer.json: "),
                ("[]", 3, "tokenizer.json: $: expected an object"),
                ('{"model": {"type": "WordPiece"}}', 3, "tokenizer.json: $.model"),
                ('{"model": {"type": "WordLevel", "vocab": {}}}', 2, "task.mask_token is missing")):
            with self.subTest(text):
                (source / "tokenizer.json").write_text(text)
                self.job("import", source, "--to", self.dir / "no", code=code, says=[says])

    def test_classes(self):
        """Their names go with the model, and other data does not."""
        source, run = SOURCE / "tests/data/hf/bert_classes", self.dir / "bert_classes"
        for name in ("bert_classes", "roberta_classes", "bert_tokens", "roberta_tokens"):
            self.job("import", SOURCE / "tests/data/hf" / name, "--to", self.dir / name)
            self.job("export", self.dir / name, "--to", self.dir / f"{name}_out",
                     says=["give the same logits to the bit (0 from those of unrounded"])
        names = ["warm", "cold", "hot"]
        self.assertEqual(json.loads((run / "labels.json").read_text())["names"], names)
        config = json.loads((self.dir / "bert_classes_out" / "config.json").read_text())
        self.assertEqual(config["id2label"], {str(i): name for i, name in enumerate(names)})
        text = self.dir / "texts.jsonl"
        text.write_text("".join(json.dumps({"text": word, "t": label}) + "\n"
                                for word, label in (("ab", "hot"), ("ba", "warm"), ("a", "cold"))))
        tokenizer = self.dir / "tokenizer.json"
        vocab = {"[UNK]": 0, "ab": 1, "ba": 2, "a": 3}
        tokenizer.write_text(json.dumps({
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": None, "decoder": None,
            "model": {"type": "WordPiece", "vocab": vocab, "unk_token": "[UNK]",
                      "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}}))
        tokenize = ("tokenize", text, "--label", "t", "--eos", "none", "--tokenizer", tokenizer)
        self.job(*tokenize, "--out", self.dir / "sorted")
        self.job(*tokenize, "--labels", run / "labels.json", "--out", self.dir / "fitting")
        for data, code in (("sorted", 3), ("fitting", 0)):
            for name, deck in (("told", self.starting_from(
                    f"{data}_started", source, data__train=[str(self.dir / data)],
                    data__validation=None, evaluate__batches=None)),
                    ("run", run / "deck.toml")):
                sets = () if name == "told" else (
                    "--set", f'data.train=["{self.dir / data}"]', "--set", "run.steps=1")
                output = self.job("train", deck, *sets, ranks=1, code=code)
                self.assertEqual("the model's classes are warm, cold, hot" in output, code != 0,
                                 output)
        unnamed = self.copy_of("bert_classes", "unnamed", id2label=None, num_labels=3)
        says = (f"note: {unnamed}/config.json has no names for its classes, which are taken for those "
                "of data.train: 0 is cold, 1 is hot, 2 is warm")
        deck = self.starting_from("unnamed_started", unnamed, data__train=[str(self.dir / "sorted")],
                                  data__validation=None, evaluate__batches=None)
        self.job("check", deck, "--ranks", "1", says=[says])
        self.job("train", deck, ranks=1, says=[says])

    def test_what_is_refused(self):
        for name, says, settings in (
                ("relative", '"relative_key" is not supported; allowed: "absolute"',
                 {"position_embedding_type": "relative_key"}),
                ("decoder", "$.is_decoder: true is not supported; allowed: false",
                 {"is_decoder": True}),
                ("classes", "the head of a BertForQuestionAnswering is not supported",
                 {"architectures": ["BertForQuestionAnswering"]}),
                ("headless", "cls.predictions.bias has the shape (13); config.json says (14)",
                 {"vocab_size": 14})):
            with self.subTest(name):
                source = self.copy_of("bert", name, **settings)
                output = self.job("import", source, "--to", self.dir / "no", code=3, says=[says])
                self.assertIn(str(source), output)
                self.assertFalse((self.dir / "no").exists())
        source = self.copy_of("bert", "untyped")
        name = "bert.embeddings.token_type_embeddings.weight"
        self.add_tensors(source, lambda of: "bert.embeddings.other" if of == name else of, {})
        self.job("import", source, "--to", self.dir / "no", code=3, says=[f"{name} is missing"])


class Experts(WeightsTest):
    """Directories of Mixtral and Qwen3-MoE: which tensor does not fit, and how they are trained on."""

    def test_tensors_that_do_not_fit(self):
        mixtral, qwen = "model.layers.1.block_sparse_moe.experts", "model.layers.2.mlp.experts"
        lost = self.copy_of("mixtral", "lost")
        self.add_tensors(lost, lambda of: of.replace(f"{mixtral}.3.", f"{mixtral}.7."), {})
        more = self.copy_of("qwen3_moe", "more")
        self.add_tensors(more, lambda of: of, {f"{qwen}.5.up_proj.weight": [7, 8]})
        together = self.copy_of("qwen3_moe", "together")
        self.add_tensors(together, lambda of: of, {f"{qwen}.gate_up_proj": [5, 14, 8]})
        wide = self.copy_of("qwen3_moe", "wide", moe_intermediate_size=8)
        few = self.copy_of("mixtral", "few", num_local_experts=3)
        for source, says in (
                (lost, [*(f"{mixtral}.3.w{i}.weight is missing" for i in (1, 2, 3)),
                        f"{mixtral}.7.w1.weight is not a tensor of the family"]),
                (more, [f"{qwen}.5.up_proj.weight is not a tensor of the family"]),
                (together, [f"{qwen}.gate_up_proj is not a tensor of the family"]),
                (wide, ["model.layers.1.mlp.experts.4.down_proj.weight has the shape (8, 7); "
                        "config.json says (8, 8)"]),
                (few, [f"{mixtral}.3.w1.weight is not a tensor of the family",
                       "model.layers.0.block_sparse_moe.gate.weight has the shape (4, 8); "
                       "config.json says (3, 8)"])):
            with self.subTest(source.name):
                self.job("import", source, "--to", self.dir / "no", code=3, says=says)
                self.assertFalse((self.dir / "no").exists())

    def test_the_deck_of_an_import_trains_it_on(self):
        write_tokens(self.corpus, vocab=13)
        for name, loss in (("mixtral", 0.02), ("qwen3_moe", 0.001), ("qwen3_moe_sparse", 0.0)):
            run = self.dir / name
            self.job("import", SOURCE / "tests/data/hf" / name, "--to", run)
            self.assertIn(f"\naux_loss = {loss}\n", (run / "deck.toml").read_text())
            self.job("train", run / "deck.toml", "--set", f'data.train=["{self.corpus}"]', "--set",
                     "run.steps=2", ranks=2)

    def test_layouts_read_what_is_theirs(self):
        """The same losses, but for sums of f32 in another order."""
        write_tokens(self.corpus, vocab=13)
        source, losses = SOURCE / "tests/data/hf/qwen3_moe", {}
        for ranks, layout in ((1, {}), (2, {"zero__stage": 3}), (2, {"parallel__tensor": 2}),
                              (2, {"parallel__pipeline": 2})):
            name = f"{ranks}_{''.join(layout)}"
            steps = self.train(ranks, self.starting_from(name, source, batch__sequence=8,
                                                         run__steps=2, **layout))
            losses[name] = [loss for loss, _ in steps.values()]
        for name in losses:
            for one, other in zip(losses["1_"], losses[name], strict=True):
                self.assertLess(abs(one - other), 1e-5, name)

    def test_a_deck_may_weigh_the_balance_otherwise_and_no_more(self):
        write_tokens(self.corpus, vocab=13)
        source = SOURCE / "tests/data/hf/mixtral"
        self.train(1, self.starting_from("balanced", source, batch__sequence=8, moe__aux_loss=0.5))
        deck = self.starting_from("otherwise", source, batch__sequence=8, moe__top_k=1)
        self.job("train", deck, ranks=1, code=2, says=["moe.top_k = 1, but", "says 2"])
        dense = self.starting_from("dense", SOURCE / "tests/data/hf/llama", batch__sequence=8,
                                   moe__experts=4)
        self.job("train", dense, ranks=1, code=2, says=["moe.experts = 4, but", "says 0"])


class Evaluation(WeightsTest):
    def loss(self, output):
        return re.search(r"loss ([0-9.]+) \|", output)[1]

    def test_random_weights_are_no_model(self):
        deck = self.deck("deck", tiny_deck(self.corpus, data__validation=[str(self.corpus)]))
        for sets in ((), ("--set", "run.resume=never")):
            self.job("evaluate", deck, *sets, ranks=2, code=2,
                     says=["nothing to evaluate but random weights", "or model.init_from"])
        self.assertFalse((self.dir / "deck").exists())
        empty = self.dir / "empty"
        empty.mkdir()
        self.job("evaluate", empty, ranks=1, code=3, says=["holds none"])
        start = self.starting_from("start", self.gpt2("hf"))
        self.assertIn("initial weights at step 0", self.job("evaluate", start, ranks=2))

    def test_a_run_is_evaluated_on_any_number_of_ranks(self):
        deck = self.deck("run", tiny_deck(
            self.corpus, run__steps=4, data__validation=[str(self.corpus)], evaluate__batches=2,
            evaluate__every=4, parallel__tensor=2, parallel__pipeline=2,
            parallel__placement=[0, 2], fault__inject=["slow rank=3 step=4 ms=1"]))
        self.train(4, deck)
        run = self.dir / "run"
        want = [e["loss"] for e in metrics.read_events(run) if e["event"] == "evaluate"][-1]
        for ranks, chosen in ((1, "pipeline 1 x tensor 1"), (2, "pipeline 1 x tensor 2"),
                              (3, "pipeline 3 x tensor 1"), (4, None),
                              (6, "pipeline 3 x tensor 2")):
            with self.subTest(ranks=ranks):
                output = self.job("evaluate", run, ranks=ranks)
                self.assertEqual(output.count("layout    "), 0 if chosen is None else 1, output)
                if chosen is not None:
                    self.assertRegex(output, rf"layout    {ranks} ranks? evaluates? as data \d x "
                                             rf"{chosen} .*has pipeline 2 x tensor 2")
                # Sums of f32 in another order; a loss of 4 or so.
                self.assertLess(abs(float(self.loss(output)) - want), 1e-4)
        checkpoint = max((run / "checkpoints").iterdir())
        self.assertIn("tensor 1 with", self.job("evaluate", checkpoint, "--set",
                                                "parallel.tensor=1", ranks=2))
        output = self.job("evaluate", checkpoint, "--set", "parallel.tensor=3", ranks=2, code=2)
        self.assertIn("parallel.tensor", output)
        output = self.job("evaluate", run, ranks=5, code=2)
        works = re.search(r"--set (batch\.global=\d+)", output)[1]
        self.job("evaluate", run, "--set", works, ranks=5)
        self.job("evaluate", deck, ranks=1, code=2)  # a deck says what its layout is

    def test_layout_mode_keeps_its_bits_or_says_so(self):
        deck = self.deck("run", tiny_deck(
            self.corpus, model__heads=4, model__hidden=24, run__steps=4,
            data__validation=[str(self.corpus)], evaluate__batches=2, batch__micro=2,
            run__reproducible="layout", run__reproducible_tensor=4, parallel__tensor=4))
        job = self.run_job(4, "train", deck, env={"OMP_NUM_THREADS": "2"})
        self.assertEqual(job.code, 0, job.output)
        run = self.dir / "run"
        losses = {self.loss(self.job("evaluate", run, ranks=ranks)) for ranks in (1, 2, 3, 4, 8)}
        losses.add(self.loss(self.job("evaluate", run, "--set", "run.threads=3", ranks=1)))
        self.assertEqual(len(losses), 1, losses)
        self.job("evaluate", run, ranks=7, code=2, says=["no layout of 7 ranks fits"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
