"""Small tokenizers of every kind that io/ reads, made with the `tokenizers` package, and texts that are
tricky for them: for make_tokenizers.py, which writes references, and for tests/run/text_test.py,
which compares with the package itself:

    pip install tokenizers && python tokenizer_kinds.py DIRECTORY TEXTS SEED
"""

import json
import pathlib
import random
import struct
import sys
import unicodedata

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers import processors, trainers

SENTENCES = [
    "It's a truth that we'll all've heard: you're right, they'd said, I'm not.",
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind at all.",
    "def add(a, b):\n    return a + b  # twice\n\n\tif x == 0:\n\t\tprint('zero')\n",
    "In 1984 there were 365 days; 2024 has 366, and 1000000 is a million.",
    "Übergrößen façade naïve coöperate Ångström",
    "日本語のテキスト、漢字とかな。中文字符测试，没有空格。",
    "Привет, мир! Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم",
    "emoji 😀😃 👩‍👩‍👧‍👦 🇩🇪 ❤️ done",
]

# What SentencePiece's tables do, in small: compatibility, composition, controls and spaces.
CHARSMAP = {"\u00a0": " ", "\u3000": " ", "\u200b": "", "\u0007": "", "ﬁ": "fi", "①": "1",
            "Ａ": "A", "ｂ": "b", "e\u0301": "é", "n\u0303": "ñ", "½": "1⁄2", "…": "...",
            "ｶﾞ": "ガ", "㌀": "アパート", "\t": " ", "\n": " ", "\r\n": " "}

ALPHABET = list("aeiou tnsr'\n\t  .,0123456789TISabc<|>_-!?#@[]{}()~`") + [
    "é", "ß", "ñ", "Å", "İ", "ẞ", "Ǆ", "ς", "Σ", "日", "本", "語", "中", "文", "の", "テ", "ｶﾞ", "ﾞ", "한국어",
    "각", "ᄀ", "ᅡ", "ᆨ", "Привет", "Κόσμε", "שָׁלוֹם", "مَرْحَبًا", "हिन्दी", "क्ष", "ไทยกำ", "ৱ", "😀", "👩‍👧",
    "🇩🇪", "❤️", "\u0301", "\u0303", "\u0327", "\u20dd", "\u0345", "\u00a0", "\u200b", "\u200d", "\u2028",
    "\u0085", "\u3000", "\u000b", "\u0007", "\u00ad", "\ufeff", "\ufffd", "\ue000", "\U000f0000", "ﬁ", "①",
    "Ａ", "ｂ", "½", "²", "Ⅷ", "٣", "㌀", "…", "—", "«", "»", "。", "、", "¿", "\u2019", "€", "±", "x²",
    "\r\n", "  ", "   ", "▁", "▁▁", "##", "##s", "<s>", "</s>", "<0x41>", "[CLS]", "[UNK]", "[MASK]", "<unk>",
    "<mask>", "\U0001d54f", "Ω", "K", "ǆ", "e\u0301", "n\u0303", "a\u0308\u0301", "\u1e9b\u0323", " the",
    " don't", "'s", "quick", "antidisestablishment", "1984", "tool_call", "<word>",
]


def random_character(rng):
    """Of Unicode 3.2, which all libraries know, or of the blocks of emoji."""
    while True:
        code = rng.choice((rng.randrange(1, 0x3000), rng.randrange(1, 0x10000),
                           rng.randrange(0x1D000, 0x1D800), rng.randrange(0x1F300, 0x1F600),
                           rng.randrange(0x1F600, 0x1F650), rng.randrange(0x20000, 0x2A6D7)))
        category = unicodedata.ucd_3_2_0.category(chr(code))
        if category != "Cs" and (category != "Cn" or code >= 0x1F300):
            return chr(code)


def random_texts(count, seed=7):
    rng = random.Random(seed)
    return ["".join(random_character(rng) if rng.random() < 0.15 else rng.choice(ALPHABET)
                    for _ in range(rng.choice((1, 2, 3, 5, 8, 20, 60)))) for _ in range(count)]


def charsmap():
    """CHARSMAP as SentencePiece compiles it: a double-array trie in the layout of Darts-clone."""
    texts, place = b"", {}
    root = {}
    for key, value in CHARSMAP.items():
        place[key] = len(texts)
        texts += value.encode() + b"\0"
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[None] = place[key]
    units, used = {0: 0}, {0}

    def add(node, at):
        """Puts the children of the unit `at` where none is yet."""
        labels = [byte or 0 for byte in node]
        base = next(b for b in range(1, 1 << 20) if all(b ^ label not in used for label in labels))
        used.update(base ^ label for label in labels)
        units[at] |= (base ^ at) << 10 | (256 if None in node else 0)
        for byte, child in node.items():
            units[base ^ (byte or 0)] = child | 1 << 31 if byte is None else byte
        for byte, child in node.items():
            if byte is not None:
                add(child, base ^ byte)

    add(root, 0)
    size = (max(units) | 255) + 1  # readers look at any byte's unit
    trie = struct.pack(f"<{size}I", *(units.get(i, 0) for i in range(size)))
    return struct.pack("<I", len(trie)) + trie + texts


def edited(tokenizer, edit):
    content = json.loads(tokenizer.to_str())
    edit(content)
    return Tokenizer.from_str(json.dumps(content))


def trained(tokenizer, trainer):
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    return tokenizer


def word_piece(normalizer, pre_tokenizer, special=("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.decoder = decoders.WordPiece()
    return trained(tokenizer, trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=list(special), show_progress=False))


def bert():
    tokenizer = word_piece(normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def bert_cased():
    tokenizer = word_piece(normalizers.BertNormalizer(lowercase=False),
                           pre_tokenizers.BertPreTokenizer())
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def word_piece_parts():
    return word_piece(
        normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(),
                              normalizers.Lowercase(), normalizers.Strip()]),
        pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation(),
                                 pre_tokenizers.Digits(individual_digits=False)]))


def unigram(normalizer, pre_tokenizer, special=("<pad>", "</s>", "<unk>"), size=400):
    tokenizer = Tokenizer(models.Unigram())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    return trained(tokenizer, trainers.UnigramTrainer(
        vocab_size=size, special_tokens=list(special), unk_token="<unk>", show_progress=False))


def t5():
    tokenizer = unigram(
        normalizers.Sequence([normalizers.Precompiled(charsmap()),
                              normalizers.Replace(Regex(" {2,}"), " ")]),
        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                 pre_tokenizers.Metaspace(prepend_scheme="always")]))
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return tokenizer


def xlm_roberta():
    tokenizer = unigram(normalizers.Precompiled(charsmap()), pre_tokenizers.Metaspace(),
                        special=("<s>", "<pad>", "</s>", "<unk>"))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=True)])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def unigram_bytes():
    """Unknown characters become bytes."""
    tokenizer = unigram(normalizers.NFKC(),
                        pre_tokenizers.Metaspace(prepend_scheme="first"))

    def edit(content):
        content["model"]["byte_fallback"] = True
        content["model"]["vocab"] += [[byte, -20.0] for byte in BYTES]

    tokenizer = edited(tokenizer, edit)
    tokenizer.decoder = llama_decoder()
    return tokenizer


def llama_decoder():
    return decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                              decoders.Strip(" ", 1, 0)])


def sentence_piece_bpe(normalizer, pre_tokenizer):
    """BPE of characters whose spaces are visible, with bytes for what is unknown."""
    trainee = Tokenizer(models.BPE())
    trainee.normalizer = normalizers.Replace(" ", "▁")
    trainee.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained(trainee, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>", "<s>", "</s>"],
                                         show_progress=False, limit_alphabet=70))

    def edit(content):
        vocab = content["model"]["vocab"]
        for byte in BYTES:
            vocab[byte] = len(vocab)
        content["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
        content["normalizer"] = json.loads(normalizer.__getstate__()) if normalizer else None
        content["pre_tokenizer"] = None

    tokenizer = edited(trainee, edit)
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = llama_decoder()
    return tokenizer


def llama2():
    tokenizer = sentence_piece_bpe(
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]), None)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    return tokenizer


def mistral():
    """As newer conversions of Llama 2 and Mistral are."""
    return sentence_piece_bpe(
        None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False))


def gemma():
    tokenizer = sentence_piece_bpe(normalizers.Replace(" ", "▁"),
                                   pre_tokenizers.Split(" ", "merged_with_previous"))
    tokenizer.add_special_tokens([AddedToken("<mask>", rstrip=True, normalized=False)])
    return tokenizer


def bpe_unknown():
    """BPE of characters with an unknown token for each unknown character."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous"),
        pre_tokenizers.Split(Regex(r"[aeiou]+"), "contiguous"),
        pre_tokenizers.Split("1", "removed")])
    trained(tokenizer, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"],
                                           show_progress=False, limit_alphabet=60))
    tokenizer.add_tokens([AddedToken("<word>", single_word=True, normalized=False),
                          AddedToken("E\u0301tool_call", normalized=True)])
    return tokenizer


def byte_level(normalizer, pre_tokenizer):
    tokenizer = Tokenizer(models.BPE())
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return trained(tokenizer, trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>", "<unk>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))


def roberta():
    tokenizer = byte_level(None, pre_tokenizers.ByteLevel(add_prefix_space=True))
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return tokenizer


def qwen2():
    return byte_level(normalizers.NFC(), pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}|[^\s\p{L}\p{N}]+|\s+"), "removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


def starcoder():
    return byte_level(None, pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]))


KINDS = {make.__name__: make for make in (
    bert, bert_cased, word_piece_parts, t5, xlm_roberta, unigram_bytes, llama2, mistral, gemma,
    bpe_unknown, roberta, qwen2, starcoder)}


def reference(tokenizer, text):
    """What the package makes of a text: its tokens, those with special ones around it, and the text
    that is made of the former again."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return {"text": text, "ids": ids,
            "framed": tokenizer.encode(text, add_special_tokens=True).ids,
            "decoded": tokenizer.decode(ids, skip_special_tokens=False)}


def write_all(directory, count, seed):
    """Into a directory: texts.jsonl, and of each kind its tokenizer.json and what it makes of them."""
    texts = random_texts(count, seed)
    with open(directory / "texts.jsonl", "w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    for name, make in KINDS.items():
        tokenizer = make()
        (directory / f"{name}.json").write_text(tokenizer.to_str())
        encoded = [[tokenizer.encode(text, add_special_tokens=framed).ids for text in texts]
                   for framed in (False, True)]
        (directory / f"{name}.ids.json").write_text(json.dumps(encoded))


if __name__ == "__main__":
    write_all(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
