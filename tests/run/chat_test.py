"""Conversations as documents: the tokens of `transformers`' apply_chat_template and what of them is learned, pairs of
answers, and what is refused."""

import array
import json
import pathlib
import struct
import sys
import unittest

from tessera import SOURCE, RunTest

sys.path.insert(0, str(SOURCE / "tests" / "data"))
DECK, DATA = 2, 3


def elements(prefix, code):
    """By document, what a pair of Megatron's format holds."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    (sequences,) = struct.unpack_from("<Q", index, 18)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    all_ = array.array(code, pathlib.Path(f"{prefix}.bin").read_bytes())
    ends = [sum(lengths[:i + 1]) for i in range(sequences)]
    return [list(all_[end - n:end]) for end, n in zip(ends, lengths)]


class ChatTest(RunTest):
    def tokenize(self, lines, *options, tokenizer="bytes", code=0, ranks=0):
        path = self.dir / "lines.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        job = self.run_job(ranks, "tokenize", path, "--tokenizer", tokenizer, "--out",
                           self.dir / "out", *options)
        self.assertEqual(job.code, code, job.output)
        return job.output


class Templates(ChatTest):
    def test_tokens_and_masks_are_those_of_transformers(self):
        import chat_tokenizers
        want = json.loads((SOURCE / "tests" / "data" / "chats.json").read_text())
        self.assertGreaterEqual(len(want), 6)
        for name, conversations in want.items():
            tokenizer = self.dir / f"{name}.json"
            tokenizer.write_text(json.dumps(chat_tokenizers.tokenizer_json(name)))
            self.tokenize(({"messages": c["messages"]} for c in conversations), "--chat", name,
                          tokenizer=tokenizer)
            tokens, marks = elements(self.dir / "out", "H"), elements(self.dir / "out.targets", "B")
            for c, ids, learned in zip(conversations, tokens, marks, strict=True):
                with self.subTest(name, messages=c["messages"]):
                    self.assertEqual(ids, c["ids"])
                    self.assertEqual(learned, c["learned"])

    def test_templates_that_are_recognised(self):
        import chat_tokenizers
        tokenizer = self.dir / "tokenizer.json"
        tokenizer.write_text(json.dumps(chat_tokenizers.tokenizer_json("chatml")))
        config = self.dir / "tokenizer_config.json"
        lines = [{"messages": [{"role": "user", "content": "Hi"},
                               {"role": "assistant", "content": "Yo"}]}]
        known = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
                 "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt "
                 "%}{{ '<|im_start|>assistant\n' }}{% endif %}")
        for jinja in (known, known.replace("\n", "\\n")):
            config.write_text(json.dumps({"chat_template": jinja}))
            output = self.tokenize(lines, "--chat", "auto", tokenizer=tokenizer)
            self.assertIn("the tokenizer's chat_template is chatml", output)
        for text, why in (({"chat_template": known + " "}, "none of the known ones"),
                          ({}, "has no chat_template")):
            config.write_text(json.dumps(text))
            output = self.tokenize(lines, "--chat", "auto", tokenizer=tokenizer, code=DECK)
            self.assertIn(why, output)
            self.assertIn("name one of chatml, llama3, gemma", output)

    def test_turns_that_a_template_cannot_carry(self):
        import chat_tokenizers
        for name in ("gemma", "mistral"):
            (self.dir / f"{name}.json").write_text(json.dumps(chat_tokenizers.tokenizer_json(name)))
        turns = lambda *roles: [{"messages": [{"role": r, "content": "x"} for r in roles]}]
        for name, lines, text in (
                ("gemma", turns("user", "user", "assistant"),
                 "$.messages[1]: the template gemma allows user and assistant by turns"),
                ("gemma", turns("assistant"), "the user first"),
                ("gemma", turns("user", "assistant", "system", "user"),
                 "$.messages[2]: the template gemma has a system prompt at the begin alone"),
                ("gemma", turns("system"), "ends with a turn that the template gemma puts into"),
                ("gemma", turns("user"), "no turn of it is of a role that the template gemma learns"),
                ("mistral", turns("system", "user", "assistant"),
                 '"system" is no role of the template mistral; allowed: assistant, user')):
            with self.subTest(text):
                output = self.tokenize(lines, "--chat", name, tokenizer=self.dir / f"{name}.json",
                                       code=DATA)
                self.assertIn(text, output)
                self.assertIn("line 1", output)
        output = self.tokenize(turns("user"), "--chat", "chatmal", code=DECK)
        self.assertIn("there are chatml, llama3, gemma, llama2, mistral, phi3, plain", output)


class Pairs(ChatTest):
    def texts(self):
        """Of each document all its text, and what counts."""
        tokens, marks = elements(self.dir / "out", "H"), elements(self.dir / "out.targets", "B")
        text = lambda ids: bytes(t for t in ids if t < 256).decode()
        return [(text(ids), text([t for t, mark in zip(ids, learned) if mark]))
                for ids, learned in zip(tokens, marks, strict=True)]

    def setUp(self):
        super().setUp()
        self.template = self.dir / "t.json"
        self.template.write_text(json.dumps({"roles": {
            "user": {"before": "U:", "after": "\n"},
            "assistant": {"before": "A:", "end": ".", "after": "\n", "learned": True}}}))

    def test_prompts_of_every_form(self):
        user = lambda text: {"role": "user", "content": text}
        said = lambda text: {"role": "assistant", "content": text}
        lines = [{"prompt": "Hi", "chosen": "Yes", "rejected": "No"},
                 {"prompt": [user("Hi"), said("Yo"), user("And")], "chosen": [said("Yes")],
                  "rejected": "No"},
                 {"chosen": [user("Hi"), said("Yes"), user("So"), said("x")],
                  "rejected": [user("Hi"), said("No")]},
                 {"prompt": "Hi", "chosen": [user("Hi"), said("Yes")],  # the answers say it too
                  "rejected": [user("Hi"), said("No")]},
                 {"prompt": [user("Hi")], "chosen": [user("Hi"), said("Yes")], "rejected": "No"}]
        for ranks in (0, 3):
            output = self.tokenize(lines, "--pairs", "--chat", self.template, ranks=ranks)
            self.assertIn("out.pairs.json: 5 pairs of answers", output)
            self.assertEqual(json.loads((self.dir / "out.pairs.json").read_text()), {"pairs": 5})
            self.assertEqual(self.texts(), [
                ("U:Hi\nA:Yes.\n", "Yes."), ("U:Hi\nA:No.\n", "No."),
                ("U:Hi\nA:Yo.\nU:And\nA:Yes.\n", "Yes."), ("U:Hi\nA:Yo.\nU:And\nA:No.\n", "No."),
                ("U:Hi\nA:Yes.\nU:So\nA:x.\n", "Yes.x."), ("U:Hi\nA:No.\n", "No.")]
                + 2 * [("U:Hi\nA:Yes.\n", "Yes."), ("U:Hi\nA:No.\n", "No.")])
        self.tokenize([{"messages": [user("Hi"), said("Yo")]}], "--chat", self.template)
        self.assertFalse((self.dir / "out.pairs.json").exists(), "of another text")

    def test_texts_without_a_template_of_turns(self):
        self.template.write_text(json.dumps({"parts": [
            {"text": "{prompt}"}, {"text": "{completion}!", "learned": True}]}))
        self.tokenize([{"prompt": "Hi ", "chosen": "Yes", "rejected": "No"}], "--pairs", "--chat",
                      self.template)
        self.assertEqual(self.texts(), [("Hi Yes!", "Yes!"), ("Hi No!", "No!")])

    def test_what_is_no_pair(self):
        user = {"role": "user", "content": "Hi"}
        for line, text in (
                ({"prompt": "Hi", "chosen": "Yes"}, '"rejected" is missing'),
                ({"prompt": "Hi", "chosen": "Yes", "rejected": ""},
                 "$.rejected: an answer that says nothing"),
                ({"prompt": "Hi", "chosen": [user], "rejected": "No"},
                 "$.chosen: an answer that says nothing: the assistant has no turn in it"),
                ({"chosen": "Yes", "rejected": "No"}, '"prompt" is missing'),
                ({"chosen": [user], "rejected": [{**user, "content": "Yo"}]},
                 "no message in common"),
                ({"prompt": [], "chosen": "a", "rejected": "b"}, "a text or messages")):
            with self.subTest(text):
                output = self.tokenize([line], "--pairs", "--chat", self.template, code=DATA)
                self.assertIn(text, output)
        line = [{"prompt": "Hi", "chosen": "Yes", "rejected": "No"}]
        for options, text in ((("--field", "x"), "--field has no effect with --pairs"),
                              (("--label", "x"), "--label is of documents, not of --pairs")):
            self.assertIn(text, self.tokenize(line, "--pairs", *options, code=DECK))


if __name__ == "__main__":
    unittest.main(verbosity=2)
