"""Makes tokenizers/*.json: small tokenizers of every kind and, for tricky texts, the ids that the
`tokenizers` package gives them: the oracle of tests/unit/io/tokenizer_test.cpp, and of
bpe_training_test.cpp, which learns gpt2.json from gpt2.corpus.jsonl.

    pip install tokenizers && python make_tokenizers.py
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import tokenizer_kinds
from tokenizer_kinds import SENTENCES

HERE = pathlib.Path(__file__).resolve().parent / "tokenizers"

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TRICKY = [
    "",
    " ",
    "  ",
    "\n",
    "a",
    "hello",
    " hello world",
    "It's they'll we've I'd DON'T IT'S ‘quoted’ 'S 'ſ x'y",
    "1 12 123 1234 12345 ½ ² Ⅷ ٣٤٥",
    "   leading and trailing   ",
    "a\n\n\nb\r\n\r\nc\t\td \n e  \n  f",
    "nbsp\u00a0nbsp ideographic\u3000space nel\u0085nel zero\u200bwidth vt\u000bff\u000cend",
    "日本語のテキスト漢字",
    "👩‍👩‍👧‍👦🇩🇪😀 ❤️ \U0001f9d1\U0001f3fd",
    "e\u0301 combining n\u0303 \u0e01\u0e33 \u0915\u094d\u0937",
    "for (int i = 0; i < 10; ++i) { x[i] += \"str\\n\"; } // done",
    "<|endoftext|>",
    "before<|endoftext|>after <|endoftext|> <|endoftext|><|endoftext|>",
    "<|endoftext|x><|end<|endoftext|>",
    "tool_call tool_call_long xtool_cally",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "abababababababababab" * 5,
    "!!!???...---===### $%^&*()",
    "\ufeffbom \ufffd \u0000nul \u007f",
    "the " * 40,
    " " * 300 + "x",
    "mixed日本and한국어текст123abc",
    "unreachable pneumonoultramicroscopic",
    "Ġ Ċ Ã © are letters of the byte alphabet",
]


def random_texts(count):
    rng = random.Random(7)
    alphabet = list("aeiou tnsr'\n\t  .,0123456789TIS<|>_-") + [
        "é", "ß", "日", "本", "😀", "\u0301", "\u00a0", "'s", "'ll", " the",
        "<|endoftext|>", "tool_call"
    ]
    return ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 60))) for _ in range(count)]


def train(tokenizer, vocab):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)


def save(name, tokenizer, edit):
    content = json.loads(tokenizer.to_str())
    edit(content)
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    (HERE / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    oracle = Tokenizer.from_str(text)
    cases = []
    for case in TRICKY + random_texts(60):
        ids = oracle.encode(case, add_special_tokens=False).ids
        cases.append({"text": case, "ids": ids})
    with open(HERE / f"{name}.cases.json", "w", encoding="utf-8") as file:
        lines = (json.dumps(case, separators=(",", ":")) for case in cases)
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


def gpt2():
    """GPT-2: its pattern is built in, merges are written as "a b" strings."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 500)

    def edit(content):
        content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]

    save("gpt2", tokenizer, edit)
    lines = [json.dumps({"text": text}) for text in SENTENCES * 4]  # what it was trained on
    (HERE / "gpt2.corpus.jsonl").write_text("\n".join(lines) + "\n")


def llama3():
    """Llama 3: a Split before ByteLevel, merges as pairs, words of the vocabulary before merges."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 500)
    content = json.loads(tokenizer.to_str())
    content["model"]["vocab"]["Ġpneumonoultramicroscopic"] = 500  # a word that no merges lead to
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_tokens([AddedToken("tool_call"), AddedToken("tool_call_long")])
    save("llama3", tokenizer, lambda _: None)


def prefix_space():
    """A space is put before each text that does not start with one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 320)
    save("prefix_space", tokenizer, lambda _: None)


def save_kind(name, make):
    """One that is made of characters, or has steps before its bytes: with special tokens and the
    text that tokens are made into again."""
    tokenizer = make()
    (HERE / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()),
                                                  ensure_ascii=False, separators=(",", ":")) + "\n",
                                       encoding="utf-8")
    texts = ["", " ", *SENTENCES, *tokenizer_kinds.random_texts(40)]
    with open(HERE / f"{name}.cases.json", "w", encoding="utf-8") as file:
        lines = (json.dumps(tokenizer_kinds.reference(tokenizer, text), separators=(",", ":"))
                 for text in texts)
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


def words():
    """Lists of words, in tokens, and which word each token begins. Each is encoded by itself, between
    special tokens; of byte-level tokenizers that put no space before a text, as running text."""
    lists = [sentence.split() for sentence in SENTENCES] + [
        ["EU", "rejects", "German", "call", "."], ["a"], ["New York", "'s", "50%", "(", "x", ")"],
        ["unreachable", "日本語", "naïve", "😀", "e\u0301"]]
    cases = []
    for name in ("bert", "bert_cased", "word_piece_parts", "t5", "xlm_roberta", "unigram_bytes", "llama2",
                 "mistral", "gemma", "roberta", "prefix_space", "gpt2", "llama3", "qwen2"):
        tokenizer = Tokenizer.from_file(str(HERE / f"{name}.json"))
        running = name in ("gpt2", "llama3", "qwen2")
        for split in lists:
            if running:
                encoded = tokenizer.encode(" ".join(split))
                ends = [len(" ".join(split[:i + 1])) for i in range(len(split))]
                of = [next(i for i, end in enumerate(ends) if begin < end)
                      for begin, _ in encoded.offsets]
            else:
                encoded = tokenizer.encode(split, is_pretokenized=True)
                of = [-1 if i is None else i for i in encoded.word_ids]
            first = [i if t == 0 or of[t - 1] != i else -1 for t, i in enumerate(of)]
            cases.append({"tokenizer": name, "words": split, "ids": encoded.ids, "first": first})
    with open(HERE / "words.cases.json", "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) +
                   "\n]\n")


HERE.mkdir(exist_ok=True)
for kind, make_kind in tokenizer_kinds.KINDS.items():
    save_kind(kind, make_kind)
gpt2()
llama3()
prefix_space()
words()
