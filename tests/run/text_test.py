"""From text to what a model may be trained on: how documents are found and end, and that training
data, validation data and a model made with different tokenizers never meet unnoticed, neither in
`check` nor at the start of a run."""

import array
import gzip
import json
import math
import pathlib
import random
import re
import shutil
import struct
import subprocess
import unittest

from packages import python_with
from tessera import SOURCE, RunTest, metrics, tiny_deck, write_tokens

DECK, DATA, IO = 2, 3, 7
GPT2, LLAMA = (SOURCE / f"tests/data/tokenizers/{name}.json" for name in ("gpt2", "llama3"))
TEXT = "the quick brown fox jumps over the lazy dog. " * 80


class TextTest(RunTest):
    def setUp(self):
        super().setUp()
        self.text = self.dir / "text.txt"
        self.text.write_text(TEXT)

    def run_code(self, code, *arguments, ranks=0):
        """Output of a command that ends with this code on every rank."""
        job = self.run_job(ranks, *arguments, each=ranks > 0)
        self.assertEqual(job.codes or [job.code], [code] * max(ranks, 1), job.output)
        return job.output

    def tokenize(self, name, tokenizer="bytes", *options):
        self.run_code(0, "tokenize", self.text, "--tokenizer", tokenizer, "--out", self.dir / name,
                      *options)
        return self.dir / name


class Documents(TextTest):
    def tokenize_on(self, ranks, *arguments, code=0):
        return self.run_code(code, "tokenize", *arguments, ranks=ranks)

    def test_documents_of_all_kinds_on_any_number_of_ranks(self):
        """What was found, and how documents end, is printed; the directory is made."""
        lines = "".join(json.dumps({"id": i, "body": f"line {i} " * i}) + "\n" for i in range(60))
        (self.dir / "lines.jsonl").write_text(lines)
        (self.dir / "packed.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
        (self.dir / "packed.txt.gz").write_bytes(gzip.compress(TEXT.replace(".", "<|>").encode()))
        self.text.write_text(TEXT.replace(".", "<|>"))
        made = set()
        for ranks in (1, 3):
            out = self.dir / "new" / str(ranks) / "out"
            output = self.tokenize_on(
                ranks, *(self.dir / name for name in ("lines.jsonl", "packed.jsonl.gz", "text.txt",
                                                      "packed.txt.gz")),
                "--field", "body", "--separator", "<|>", "--tokenizer", GPT2, "--out", out)
            # The text of line 0 is empty, and what follows the last separator is a space.
            self.assertIn("in 280 documents, each ended by id 0 <|endoftext|>; vocabulary 500",
                          output)
            files = sorted(out.parent.iterdir())
            self.assertEqual([f.name for f in files], ["out.bin", "out.idx", "out.tokenizer.json",
                                                       "out.tokenizer_config.json"])
            made.add(tuple(f.read_bytes() for f in files))
        self.assertEqual(len(made), 1)
        self.assertIn("documents each ended by id 0 <|endoftext|>",
                      self.run_code(0, "inspect", out))

    def test_escapes_in_separators(self):
        self.text.write_text("one\n\ntwo\n\nthree")
        out = self.dir / "out"
        for separator, documents in (("\\n\\n", "3 documents"), ("\n\n", "3 documents"),
                                     ("e\\n", "2 documents"), ("\\t", "1 document")):
            output = self.tokenize_on(0, self.text, "--out", out, "--separator", separator)
            self.assertIn(f"in {documents}, ended in .idx only", output)
        self.assertIn("backslash", self.tokenize_on(0, self.text, "--out", out, "--separator",
                                                    "\\q", code=DECK))

    def test_the_end_of_documents_is_chosen_and_kept(self):
        """An end that a tokenizer does not name is asked for, and goes with the model."""
        content = json.loads(GPT2.read_text())
        content["added_tokens"][0]["content"] = "<|im_end|>"
        content["model"]["vocab"] = {t.replace("<|endoftext|>", "<|im_end|>"): i
                                     for t, i in content["model"]["vocab"].items()}
        unknown = self.dir / "unknown.json"
        unknown.write_text(json.dumps(content))
        given = (self.text, "--tokenizer", unknown, "--out", self.dir / "out")
        output = self.tokenize_on(2, *given, code=DECK)
        for text in ("unknown.json", "<|im_end|>", "--eos TOKEN", "--eos none"):
            self.assertIn(text, output)
        self.assertIn("--eos <|end|>", self.tokenize_on(2, *given, "--eos", "<|end|>", code=DECK))
        self.assertIn("ended in .idx only", self.tokenize_on(2, *given, "--eos", "none"))
        self.assertIn("each ended by id 0 <|im_end|>",
                      self.tokenize_on(2, *given, "--eos", "<|im_end|>"))
        deck = tiny_deck(self.dir / "out", model__vocab=500, run__steps=2)
        self.train(2, self.deck("run", deck))
        self.run_code(0, "export", self.dir / "run", "--to", self.dir / "hf")
        settings = json.loads((self.dir / "hf" / "tokenizer_config.json").read_text())
        self.assertEqual(settings["eos_token"], "<|im_end|>")
        config = json.loads((self.dir / "hf" / "config.json").read_text())
        self.assertEqual(config["eos_token_id"], 0)
        self.run_code(0, "import", self.dir / "hf", "--to", self.dir / "imported")
        settings = json.loads((self.dir / "imported" / "tokenizer_config.json").read_text())
        self.assertEqual(settings["eos_token"], "<|im_end|>")

    def test_what_cannot_be_used_is_refused(self):
        empty, lines = self.dir / "empty.txt", self.dir / "lines.jsonl"
        empty.write_text("")
        lines.write_text('{"text": "a"}\n\n{"text": a}\n')
        packed = self.dir / "packed.txt.gz"
        packed.write_bytes(gzip.compress(TEXT.encode())[:-9])
        out = ("--out", self.dir / "new" / "out")
        for code, text, *arguments in (
                (DATA, "empty.txt: empty", self.text, empty, *out),
                (DATA, "lines.jsonl: line 3: not valid JSON: column 10", lines, *out),
                (DATA, "packed.txt.gz: ends in the middle", packed, *out),
                (DATA, 'line 1: $: "body" is missing', lines, "--field", "body", *out),
                (DECK, "--separator is of text files", lines, "--separator", "x", *out),
                (DECK, "--field is of .jsonl files", self.text, "--field", "x", *out),
                (DECK, "is a directory", self.text, "--out", f"{self.dir}/new/"),
                (DECK, "give the files' name without .bin", self.text, "--out",
                 self.dir / "new" / "out.bin"),
                # Who may do everything may still not make directories there.
                (IO, "cannot create directory /sys/tessera_test", self.text, "--out",
                 "/sys/tessera_test/out")):
            with self.subTest(text):
                self.assertIn(text, self.tokenize_on(2, *arguments, code=code))
                self.assertFalse((self.dir / "new" / "out.bin").exists())


def elements(prefix, code):
    """Of a pair of files: the elements of each document, by an array's type code."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    sequences, = struct.unpack_from("<Q", index, 18)
    data = array.array(code, pathlib.Path(f"{prefix}.bin").read_bytes())
    documents, at = [], 0
    for length in struct.unpack_from(f"<{sequences}i", index, 34):
        documents.append(list(data[at:at + length]))
        at += length
    return documents


class Labels(TextTest):
    def test_of_json_lines_and_of_folders_on_any_number_of_ranks(self):
        reviews = [("good " * n, ("neg", "pos", "mixed")[n % 3]) for n in range(1, 50)]
        lines = self.dir / "reviews.jsonl"
        lines.write_text("".join(json.dumps({"text": t, "stars": l}) + "\n" for t, l in reviews))
        for n, (text, label) in enumerate(reviews):
            (self.dir / "reviews" / label).mkdir(parents=True, exist_ok=True)
            (self.dir / "reviews" / label / f"{n:03}.txt").write_text(text)
        (self.dir / "reviews" / "urls.txt").write_text("left out")
        for given, key, order in (((lines, "--label", "stars"), "stars", reviews),
                                  ((self.dir / "reviews", "--label", "folder"), "folder",
                                   sorted(reviews, key=lambda review: review[1]))):
            made = set()
            for ranks in (1, 3):
                out = self.dir / key / str(ranks) / "out"
                output = self.run_code(0, "tokenize", *given, "--out", out, ranks=ranks)
                self.assertIn(f'3 labels of documents by "{key}": mixed, neg, pos', output)
                if key == "folder":
                    self.assertIn("reviews: 1 file beside its folders left out", output)
                made.add(tuple(f.read_bytes() for f in sorted(out.parent.iterdir())))
            self.assertEqual(len(made), 1)
            names = ["mixed", "neg", "pos"]
            self.assertEqual(json.loads(out.with_name("out.labels.json").read_text()),
                             {"key": key, "names": names})
            self.assertEqual(elements(f"{out}.labels", "i"), [[names.index(l)] for _, l in order])
            self.assertIn(f'documents by "{key}": mixed 16, neg 16, pos 17',
                          self.run_code(0, "inspect", out))
        # Another set is numbered as this one is, and has no other labels.
        lines.write_text('{"text": "a", "stars": "pos"}\n{"text": "b", "stars": "odd"}\n')
        given = (lines, "--label", "stars", "--labels", f"{out}.labels.json", "--out",
                 self.dir / "other")
        self.assertIn("reviews.jsonl: line 2: the label odd is not among those of --labels: mixed",
                      self.run_code(DATA, "tokenize", *given, ranks=2))
        lines.write_text('{"text": "a", "stars": "pos"}\n')
        self.run_code(0, "tokenize", *given, ranks=2)
        self.assertEqual(elements(self.dir / "other.labels", "i"), [[2]])

    def test_of_words_on_any_number_of_ranks(self):
        lines = self.dir / "words.jsonl"
        lines.write_text("".join(json.dumps({"w": ["ab"] * (n % 4 + 1), "t": ["x", "y", "z", "x"][:n % 4 + 1]})
                                 + "\n" for n in range(40)))
        made = set()
        for ranks in (1, 3):
            out = self.dir / str(ranks) / "out"
            output = self.run_code(0, "tokenize", lines, "--words", "w", "--label", "t", "--out", out,
                                   ranks=ranks)
            self.assertIn('3 labels of words by "t": x, y, z', output)
            made.add(tuple(f.read_bytes() for f in sorted(out.parent.iterdir())))
        self.assertEqual(len(made), 1)
        self.assertEqual(json.loads(out.with_name("out.labels.json").read_text()),
                         {"key": "t", "names": ["x", "y", "z"], "of": "words"})
        self.assertEqual(elements(f"{out}.labels", "i")[:4],
                         [[1, 0], [1, 0, 2, 0, 0], [1, 0, 2, 0, 0, 3, 0, 0],
                          [1, 0, 2, 0, 0, 3, 0, 0, 1, 0, 0]])
        self.assertIn('words by "t": x 50, y 30, z 20', self.run_code(0, "inspect", out))
        self.run_code(0, "tokenize", lines, "--words", "w", "--label", "t", "--train-tokenizer", "258",
                      "--out", self.dir / "learned", ranks=2)
        self.assertIn('"closing":1', (self.dir / "learned.labels.json").read_text())

    def test_what_cannot_be_labels(self):
        lines = self.dir / "l.jsonl"
        lines.write_text('{"text": "a", "n": 1}\n{"text": "b", "n": "1"}\n{"text": "c"}\n')
        out = ("--out", self.dir / "out")
        for code, text, *given in (
                (DATA, 'line 3: $: "n" is missing', lines, "--label", "n"),
                (DECK, "--labels is of --label", lines, "--labels", lines),
                (DECK, "--label n is a member of JSON lines", lines, self.text, "--label", "n"),
                (DECK, "--words w is of --label", lines, "--words", "w"),
                (DECK, "--words w is a member of JSON lines", lines, self.text, "--words", "w",
                 "--label", "n"),
                (DATA, 'line 1: $: "w" is missing', lines, "--words", "w", "--label", "n"),
                (DECK, "all inputs must be directories", lines, self.dir, "--label", "folder"),
                (DECK, "names that end in .targets", lines, "--out", self.dir / "a.targets")):
            with self.subTest(text):
                given = given if "--out" in given else [*given, *out]
                self.assertIn(text, self.run_code(code, "tokenize", *given, ranks=2))
        lines.write_text('{"text": "a", "n": 1}\n{"text": "b", "n": "1"}\n')
        output = self.run_code(DATA, "tokenize", lines, "--label", "n", *out, ranks=2)
        self.assertIn("line 2: n is a string, 1, but in", output)
        self.assertIn("line 1 it is an integer, 1: labels must be of one kind", output)


class Chat(TextTest):
    def setUp(self):
        super().setUp()
        content = json.loads(GPT2.read_text())
        for name in ("<|im_start|>", "<|im_end|>"):
            content["added_tokens"].append({"id": 498 + len(content["added_tokens"]) + 1,
                                            "content": name, "special": True})
        self.tokenizer = self.dir / "chat.json"
        self.tokenizer.write_text(json.dumps(content))
        self.lines = self.dir / "talk.jsonl"
        talk = [{"messages": [{"role": "user", "content": f"What is {n}?"},
                              {"role": "assistant", "content": "a number " * (n % 3 + 1)}]}
                for n in range(40)]
        self.lines.write_text("".join(json.dumps(line) + "\n" for line in talk))

    def test_only_answers_are_targets_on_any_number_of_ranks(self):
        made = set()
        for ranks in (1, 3):
            out = self.dir / str(ranks) / "out"
            output = self.run_code(0, "tokenize", self.lines, "--tokenizer", self.tokenizer, "--out",
                                   out, "--chat", ranks=ranks)
            self.assertIn("in 40 documents, each ended by its template", output)
            self.assertIn("of them count as targets of the loss", output)
            made.add(tuple(f.read_bytes() for f in sorted(out.parent.iterdir())))
        self.assertEqual(len(made), 1)
        tokens, marks = elements(out, "H"), elements(f"{out}.targets", "B")
        self.assertEqual([len(t) for t in tokens], [len(m) for m in marks])
        for ids, learned in zip(tokens, marks):
            answer = [i for i, mark in zip(ids, learned) if mark]
            self.assertEqual(answer[-1], 501)
            self.assertEqual(answer.count(501), 1)
            self.assertEqual(ids.count(500), 2)
        settings = json.loads(out.with_name("out.tokenizer_config.json").read_text())
        self.assertEqual(settings["eos_token"], "<|im_end|>", "so that generate stops there")
        total, targets = sum(map(len, tokens)), sum(map(sum, marks))
        self.assertIn(f"{targets} of {total} tokens count as targets",
                      self.run_code(0, "inspect", out))
        self.run_code(0, "tokenize", self.text, "--tokenizer", self.tokenizer, "--out", out)
        self.assertFalse(out.with_name("out.targets.bin").exists(), "of another text")

    def test_what_cannot_be_rendered(self):
        given = (self.lines, "--tokenizer", self.tokenizer, "--out", self.dir / "out")
        for code, text, *options in (
                (DECK, "no special token <|start_header_id|>", *given, "--chat", "llama3"),
                (DECK, "there are chatml, llama3, gemma, llama2", *given, "--chat", "chatmal"),
                (DECK, "put the template last", "--out", self.dir / "out", self.text, "--chat"),
                (DATA, 'line 1: $: "talk" is missing', *given, "--field", "talk", "--chat"),
                (DATA, 'line 1: $: "prompt" is missing', *given, "--chat", "completion"),
                (DECK, "--field talk has no effect with --chat completion", *given, "--field",
                 "talk", "--chat", "completion")):
            with self.subTest(text):
                self.assertIn(text, self.run_code(code, "tokenize", *options, ranks=2))
                self.assertFalse((self.dir / "out.bin").exists())


class Kinds(TextTest):
    def test_every_kind_of_tokenizer_gives_the_packages_ids(self):
        """Of thousands of texts of every script, with broken clusters, controls and spaces."""
        python, why = python_with("tokenizers==0.23.3", dependencies=False)
        if python is None:
            self.skipTest(why)
        job = subprocess.run([python, SOURCE / "tests/data/tokenizer_kinds.py", self.dir, "3000",
                              "11"], capture_output=True, text=True)
        self.assertEqual(job.returncode, 0, job.stderr)
        kinds = sorted(file.name.removesuffix(".ids.json") for file in self.dir.glob("*.ids.json"))
        self.assertGreaterEqual(len(kinds), 13)
        for kind in kinds:
            bare, framed = json.loads((self.dir / f"{kind}.ids.json").read_text())
            for options, ids in (([], bare), (["--special-tokens"], framed)):
                if options and bare == framed:  # there are none
                    continue
                with self.subTest(kind, options=options):
                    self.run_code(0, "tokenize", self.dir / "texts.jsonl", "--tokenizer",
                                  self.dir / f"{kind}.json", "--eos", "none", "--out",
                                  self.dir / kind, *options)
                    # A text of which nothing is left makes no document.
                    self.assertEqual(elements(self.dir / kind, "H"), [i for i in ids if i])

    def test_special_tokens_around_documents(self):
        """One that ends by what ends documents does not get it twice."""
        t5, bert = (SOURCE / f"tests/data/tokenizers/{name}.json" for name in ("t5", "bert"))
        given = (self.text, "--out", self.dir / "out", "--tokenizer")
        ends = []
        for tokenizer, *options in ((t5,), (t5, "--special-tokens"), (bert, "--special-tokens",
                                    "--eos", "[SEP]"), (bert, "--special-tokens", "--eos", "[PAD]")):
            self.run_code(0, "tokenize", *given, tokenizer, *options)
            document, = elements(self.dir / "out", "H")
            ends.append(document[-2:])
        self.assertEqual([end[-1] for end in ends], [1, 1, 3, 0])
        self.assertTrue(all(first != last for first, last in ends), ends)
        self.assertIn("puts none around a text",
                      self.run_code(DECK, "tokenize", *given, GPT2, "--special-tokens", ranks=2))

    def test_an_end_is_kept_by_its_name(self):
        """Behind others the text of WordPiece's tokens begins with a space."""
        bert = SOURCE / "tests/data/tokenizers/bert.json"
        self.run_code(0, "tokenize", self.text, "--out", self.dir / "out", "--tokenizer", bert, "--eos",
                      "[SEP]")
        self.assertEqual(json.loads((self.dir / "out.tokenizer_config.json").read_text()),
                         {"eos_token": "[SEP]"})
        self.assertIn("[SEP]", self.run_code(0, "inspect", self.dir / "out"))


class Prompts(TextTest):
    def test_special_tokens_before_a_prompt(self):
        """A prompt begins with what the post-processor puts before a text, but not twice: so many
        tokens are left of the context."""
        llama2 = SOURCE / "tests/data/tokenizers/llama2.json"
        data = self.tokenize("data", llama2, "--eos", "none")
        vocab = 1 + max(json.loads(llama2.read_text())["model"]["vocab"].values())
        self.train(1, self.deck("run", tiny_deck(data, model__vocab=vocab, run__steps=1)))
        for prompt, options, added in (("the", (), 15), ("<s>the", (), 15), ("", (), 16),
                                       ("the", ("--no-special-tokens",), 16)):
            with self.subTest(prompt=prompt, options=options):
                output = self.run_code(0, "generate", self.dir / "run", "--tokens", 99,
                                       "--prompt", prompt, *options)
                self.assertIn(f"stopped after {added} of --tokens 99", output)
        self.run_code(DECK, "generate", self.dir / "run", "--prompt", "", "--no-special-tokens")
        # What reads an export begins texts so too.
        self.run_code(0, "export", self.dir / "run", "--to", self.dir / "hf")
        said = json.loads((self.dir / "hf" / "tokenizer_config.json").read_text())
        self.assertEqual((said["bos_token"], said["eos_token"]), ("<s>", None))
        config = json.loads((self.dir / "hf" / "config.json").read_text())
        self.assertEqual((config["bos_token_id"], config["eos_token_id"]), (1, None))


WRITE_PARQUET = """
import sys, pyarrow, pyarrow.parquet
rows = [{"text": f"é {n}", "kind": n % 2 == 0, "n": n} for n in range(2500)]
pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), sys.argv[1], row_group_size=700)
pyarrow.parquet.write_table(pyarrow.table({"x": [1.0, float("nan")]}), sys.argv[2])
"""


class Parquet(TextTest):
    TOOL = SOURCE / "tools" / "parquet_to_jsonl"

    def setUp(self):
        super().setUp()
        self.python, why = python_with("pyarrow==26.0.1")
        if self.python is None:
            self.skipTest(why)
        self.good, self.bad = self.dir / "good.parquet", self.dir / "bad.parquet"
        subprocess.run([self.python, "-c", WRITE_PARQUET, self.good, self.bad], check=True)

    def lines(self, *arguments):
        job = subprocess.run([self.python, self.TOOL, *map(str, arguments)], capture_output=True,
                             text=True)
        return job.returncode, job.stdout, job.stderr

    def test_rows_become_lines_that_tokenize_reads(self):
        code, lines, errors = self.lines(self.good, self.good, "--rows", 300)
        self.assertEqual((code, errors), (0, ""))
        self.assertEqual([json.loads(line) for line in lines.splitlines()],
                         2 * [{"text": f"é {n}", "kind": n % 2 == 0, "n": n} for n in range(2500)])
        (self.dir / "l.jsonl").write_text(lines)
        self.assertIn("5000 documents", self.run_code(
            0, "tokenize", self.dir / "l.jsonl", "--label", "kind", "--out", self.dir / "out"))
        code, lines, _ = self.lines("--columns", "n", "--", self.good)
        self.assertEqual([json.loads(line) for line in lines.splitlines()],
                         [{"n": n} for n in range(2500)])

    def test_errors_name_file_and_place(self):
        for text, *arguments in (("bad.parquet: row 2: ", self.bad),
                                 ("no column m; there are text, kind, n", "--columns", "m", "--",
                                  self.good),
                                 ("text.txt: ", self.text), ("nosuch", self.dir / "nosuch")):
            code, _, errors = self.lines(*arguments)
            self.assertEqual(code, 1)
            self.assertIn("parquet_to_jsonl: ", errors)
            self.assertIn(text, errors)
            self.assertEqual(errors.count("\n"), 1, errors)


READ_TOKENIZER = """
import json, sys, tokenizers
tokenizer = tokenizers.Tokenizer.from_file(sys.argv[1])
print(json.dumps([tokenizer.get_vocab_size(), tokenizer.encode(sys.argv[2]).ids]))
"""


class Learning(TextTest):
    def learn(self, out, *options, ranks=0, code=0):
        return self.run_code(code, "tokenize", self.text, "--out", self.dir / out,
                             "--train-tokenizer", *options, ranks=ranks)

    def test_a_tokenizer_is_learned_alike_on_any_number_of_ranks(self):
        """And it is one of Hugging Face's, for what comes later too."""
        self.text.write_text("|".join(f"{TEXT[:n]} {'vary' * (n % 5)} número {n}"
                                      for n in range(20, 400, 3)))
        made = set()
        for ranks in (1, 3):
            output = self.learn(f"on_{ranks}", 300, "--separator", "|", ranks=ranks)
            self.assertIn("each ended by id 299 <|endoftext|>; vocabulary 300", output)
            made.add(tuple((self.dir / f"on_{ranks}.{end}").read_bytes()
                           for end in ("bin", "idx", "tokenizer.json")))
        self.assertEqual(len(made), 1)
        output = self.learn("refused", 9999, "--eos", "none such", code=2)
        self.assertNotIn("no more pairs", output, "before anything is learned")
        learned = self.dir / "on_1.tokenizer.json"
        self.tokenize("again", learned, "--separator", "|")
        self.assertEqual((self.dir / "again.bin").read_bytes(),
                         (self.dir / "on_1.bin").read_bytes())
        self.read_by_hugging_face(learned)

    def read_by_hugging_face(self, learned):
        python, why = python_with("tokenizers==0.23.3", dependencies=False)
        if python is None:
            self.skipTest(why)
        text = "the quick brown número 17<|endoftext|>the"
        (self.dir / "one.txt").write_text(text)
        self.run_code(0, "tokenize", self.dir / "one.txt", "--tokenizer", learned, "--eos", "none",
                      "--out", self.dir / "one")
        job = subprocess.run([python, "-c", READ_TOKENIZER, learned, text], capture_output=True,
                             text=True)
        self.assertEqual(job.returncode, 0, job.stderr)
        ids = array.array("H", (self.dir / "one.bin").read_bytes())
        self.assertEqual(json.loads(job.stdout), [300, list(ids)])

    def test_the_readmes_commands_make_the_data_of_its_example(self):
        """Verbatim, and then `check` of the deck that it trains, with all the data it wants."""
        readme = (SOURCE / "README.md").read_text()
        commands = re.findall(r"^    (tessera tokenize .*(?:TRAIN|VALIDATION)\.txt.*)$", readme,
                              re.MULTILINE)
        self.assertEqual(len(commands), 2)
        words = ["".join(chr(97 + (n // 7 ** k + k) % 26) for k in range(6)) for n in range(9000)]
        rng = random.Random(1)
        for name, count in (("TRAIN", 50_000), ("VALIDATION", 540_000)):
            (self.dir / f"{name}.txt").write_text(" ".join(rng.choices(words, k=count)))
        for command in commands:
            self.run_code(0, *command.split()[1:])
        self.run_code(0, "check", SOURCE / "inputs" / "gpt2_124m.toml", "--ranks", 8)

    def test_what_cannot_be_learned(self):
        self.assertIn("no more pairs occur twice", self.learn("few", 5000))
        self.assertIn("257", self.learn("small", 256, code=DECK))
        self.assertIn("--tokenizer", self.learn("both", 300, "--tokenizer", GPT2, code=DECK))
        self.assertIn("--eos <|end|>", self.learn("end", 300, "--eos", "<|end|>", code=DECK))
        self.text.write_text("")
        self.assertIn("text.txt: empty", self.learn("empty", 300, code=DATA))


class Tokenizers(TextTest):
    def refuse(self, deck, *texts, verb="train", or_accept=True):
        """Refused at the start on both ranks, by `check` too, unless the deck accepts it."""
        ranks = 0 if verb == "check" else 2
        options = ("--ranks", 2) if verb == "check" else ()
        output = self.run_code(DATA, verb, deck, *options, ranks=ranks)
        for text in (*texts, "data.accept_tokenizer"):
            self.assertIn(text, output)
        if or_accept:
            accept = ("--set", "data.accept_tokenizer=true")
            self.run_code(0, verb, deck, *options, *accept, ranks=ranks)

    def test_of_training_and_validation_data(self):
        train, same = self.tokenize("train", GPT2), self.tokenize("same", GPT2)
        bytes_, other = self.tokenize("bytes"), self.tokenize("other", LLAMA)
        # Neither the form of a file nor the end of documents makes it another tokenizer.
        beside = self.dir / "same.tokenizer.json"
        content = json.loads(beside.read_text())
        beside.write_text(json.dumps(dict(reversed(content.items())), indent=1))
        ended = self.tokenize("ended", GPT2, "--eos", "none")
        write_tokens(self.dir / "unknown")

        def deck(name, *trained, validation):
            return self.deck(name, tiny_deck(train, model__vocab=503, run__steps=1,
                                             evaluate__every=1, evaluate__batches=1,
                                             data__train=[str(train), *map(str, trained)],
                                             data__validation=[str(validation)]))

        fine = deck("fine", same, self.dir / "unknown", validation=ended)
        self.train(2, fine)
        self.assertIn("good for 2 ranks", self.run_code(0, "check", fine, "--ranks", 2))
        for name, trained, validation in (("a", (), bytes_), ("b", (same,), other),
                                          ("c", (bytes_,), same)):
            wrong = deck(name, *trained, validation=validation)
            first = trained[0] if name == "c" else validation
            for verb in ("check", "train"):
                with self.subTest(name=name, verb=verb):
                    self.refuse(wrong, f"{train}.tokenizer.json (500 tokens)",
                                f"{first}.tokenizer.json", verb=verb)
        # Evaluation compares with the model, of which the run knows.
        for changed in (fine, self.dir / "fine"):
            other_data = ("--set", f'data.validation=["{bytes_}"]')
            output = self.run_code(DATA, "evaluate", changed, *other_data, ranks=1)
            self.assertIn(f"{self.dir}/fine/tokenizer.json (500 tokens)", output)
            self.assertIn(f"{bytes_}.tokenizer.json (256 tokens)", output)
            self.run_code(0, "evaluate", changed, *other_data, "--set",
                          "data.accept_tokenizer=true", ranks=1)
            self.run_code(0, "evaluate", changed, ranks=1)

    def test_of_a_model_and_its_data(self):
        """A model that a run starts from, or goes on from, and what it is trained on."""
        first = self.tokenize("first", GPT2)
        self.train(2, self.deck("run", tiny_deck(first, model__vocab=500, run__steps=2)))
        self.run_code(0, "export", self.dir / "run", "--to", self.dir / "hf")
        other = self.tokenize("other")

        def continued(name, data):
            return self.deck(name, {"run": {"steps": 1, "backend": "debug"},
                                    "model": {"init_from": str(self.dir / "hf")},
                                    "data": {"train": [str(data)]}, "batch": {"global": 8},
                                    "optimizer": {"lr": 1e-3}})

        self.train(2, continued("same", first))
        for verb in ("check", "train"):
            self.refuse(continued("wrong", other), f"{other}.tokenizer.json (256 tokens)",
                        f"{self.dir}/hf/tokenizer.json (500 tokens)", verb=verb)
        shutil.move(self.dir / "hf" / "tokenizer.json", self.dir / "away.json")
        self.train(2, continued("unknown", other))

        # The run goes on with data of the same names.
        self.tokenize("first")
        again = self.deck("run", tiny_deck(first, model__vocab=500, run__steps=4,
                                           run__dir=str(self.dir / "run")))
        for verb in ("check", "train"):
            self.refuse(again, f"{first}.tokenizer.json (256 tokens)",
                        f"{self.dir}/run/tokenizer.json (500 tokens)", verb=verb,
                        or_accept=verb == "check")

    def test_bytes_are_known(self):
        """Of a run over bytes, generate knows it; another tokenizer is refused unless told."""
        data = self.tokenize("data")
        self.train(2, self.deck("run", tiny_deck(data, model__vocab=600, run__steps=2)))
        sample = ("generate", self.dir / "run", "--prompt", "the", "--tokens", 2)
        self.assertEqual(self.run_code(0, *sample),
                         self.run_code(0, *sample, "--tokenizer", "bytes"))
        output = self.run_code(DATA, *sample, "--tokenizer", GPT2)
        for text in (f"{self.dir}/run/tokenizer.json (256 tokens)", f"{GPT2} (500 tokens)"):
            self.assertIn(text, output)
        self.run_code(0, *sample, "--tokenizer", GPT2, "--accept-tokenizer")

    def test_a_vocabulary_below_the_tokenizers(self):
        deck = self.deck("small", tiny_deck(self.tokenize("data", GPT2), model__vocab=499))
        for verb in ("check", "train"):
            output = self.run_code(DATA, verb, deck, *(("--ranks", 2) if verb == "check" else ()),
                                   ranks=0 if verb == "check" else 2)
            for text in ("model.vocab = 499", "data.tokenizer.json", "500 tokens",
                         "set model.vocab = 500"):
                self.assertIn(text, output)
        self.assertIn("small.toml:", output)


class Evaluations(TextTest):
    def text_bytes(self, prefix, sequences, length=16):
        """Of the targets of the first sequences, by the tokenizer beside the tokens."""
        content = json.loads(prefix.with_name(prefix.name + ".tokenizer.json").read_text())
        bytes_of = {i: len(token) for token, i in content["model"]["vocab"].items()}
        bytes_of.update({t["id"]: 0 for t in content["added_tokens"] if t["special"]})
        tokens = array.array("H", prefix.with_name(prefix.name + ".bin").read_bytes())
        return sum(bytes_of[t] for t in tokens[1:sequences * length + 1])

    def evaluations(self, name):
        return metrics.last_steps(metrics.read_events(self.dir / name), "evaluate")[1]

    def test_perplexity_and_bits_a_byte(self):
        """As the text's own bytes have it, on any layout; and by `tessera evaluate` again."""
        sets = []
        for name, words in (("train", "a few words"), ("other", "another corpus")):
            self.text.write_text("\n\n".join(f"document {i} of {words}" for i in range(400)))
            sets.append(self.tokenize(name, GPT2, "--separator", r"\n\n"))
        fixed = {"model__vocab": 503, "run__steps": 1, "evaluate__every": 1, "model__heads": 4,
                 "evaluate__batches": 3, "data__validation": [str(s) for s in sets]}
        seen = []
        for ranks, layout in ((1, {}), (2, {"zero__stage": 3}), (2, {"parallel__tensor": 2}),
                              (2, {"parallel__pipeline": 2})):
            name = f"run_{len(seen)}"
            self.train(ranks, self.deck(name, tiny_deck(sets[0], **fixed, **layout)))
            event = self.evaluations(name)
            for of, path in ((event["sets"][0], sets[0]), (event["sets"][1], sets[1])):
                nats = of["loss"] * of["targets"]
                self.assertEqual(of["targets"], 3 * 8 * 16)
                self.assertAlmostEqual(of["perplexity"], math.exp(of["loss"]), delta=1e-9)
                self.assertAlmostEqual(of["bits_per_byte"],
                                       nats / math.log(2) / self.text_bytes(path, 3 * 8),
                                       delta=1e-9)
            seen.append(event)
            self.assertAlmostEqual(event["bits_per_byte"], seen[0]["bits_per_byte"], delta=1e-4)
        output = self.run_code(0, "evaluate", self.dir / "run_0", ranks=1)
        self.assertIn(f"| {seen[0]['bits_per_byte']:.6f} bits a byte | 48 sequences |", output)
        for of in seen[0]["sets"]:
            self.assertIn(f"{of['data']} | loss {of['loss']:.6f} | perplexity "
                          f"{of['perplexity']:.6g} | {of['bits_per_byte']:.6f} bits a byte", output)

    def test_bytes_and_no_tokenizer(self):
        data = self.tokenize("data")
        write_tokens(self.dir / "unknown")
        fixed = {"run__steps": 1, "evaluate__every": 1, "evaluate__batches": 1}
        for name, path, vocab in (("bytes", data, 256), ("none", self.dir / "unknown", 97)):
            self.train(1, self.deck(name, tiny_deck(path, **fixed, model__vocab=vocab,
                                                    data__validation=[str(path)])))
        event = self.evaluations("bytes")
        self.assertAlmostEqual(event["bits_per_byte"], event["loss"] / math.log(2), delta=1e-12)
        self.assertIsNone(self.evaluations("none")["bits_per_byte"])
        log = (self.dir / "none" / "log.txt").read_text()
        self.assertEqual(log.count("bits a byte are not known"), 1)
        self.assertNotIn("not known", (self.dir / "bytes" / "log.txt").read_text())


class Check(TextTest):
    def check(self, code, **changes):
        deck = self.deck("deck", tiny_deck(self.corpus, **changes))
        return self.run_code(code, "check", deck, "--ranks", 2)

    def test_opens_what_is_here(self):
        self.assertIn("data.train: 3000 tokens in 1 file", self.check(0))
        for changes, texts in (
                ({"data__train": ["nosuch"]}, ("data.train", "nosuch.idx")),
                ({"data__train": [str(self.corpus), str(self.dir / "nosuch")]}, ("nosuch.idx",)),
                ({"data__train": [str(self.dir / "no*.bin")]}, ("no*.bin: no such file",)),
                ({"data__validation": ["nosuch"]}, ("data.validation", "nosuch.idx")),
                ({"data__validation": [str(self.corpus)], "batch__global": 200},
                 ("data.validation holds 3000 tokens", "at least 200"))):
            with self.subTest(changes=changes):
                output = self.check(DATA, **changes)
                for text in ("deck.toml:", *texts):
                    self.assertIn(text, output)

    def test_notes_what_is_elsewhere(self):
        """A cluster's directories are not on a laptop; that is said, and is no error."""
        output = self.check(0, data__train=["/nowhere/data/train", str(self.corpus)],
                            data__validation=["data/*/validation.bin"])
        for text in ("note: data.train: /nowhere/data/train is not here, as there is no directory "
                     "/nowhere/data: not checked",
                     "note: data.validation: data/*/validation.bin is not here", "good for 2 ranks"):
            self.assertIn(text, output)

    def test_opens_the_model(self):
        model = self.dir / "model"
        shutil.copytree(SOURCE / "tests/data/oracle/gpt2", model)
        deck = self.deck("deck", {"run": {"steps": 1}, "model": {"init_from": str(model)},
                                  "data": {"train": ["/nowhere/train"]}, "batch": {"global": 8},
                                  "optimizer": {"lr": 1e-3}})
        self.run_code(0, "check", deck, "--ranks", 2)
        weights = model / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-8])
        self.assertIn("model.safetensors", self.run_code(DATA, "check", deck, "--ranks", 2))
        weights.unlink()
        self.assertIn("model.safetensors", self.run_code(DATA, "check", deck, "--ranks", 2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
