"""Labelled texts and words, and small classifiers of them, for make_classifiers.py and the test that compares
with what it has made."""

import json

LAYERS, HEADS, HIDDEN, CONTEXT, LABELS = 2, 4, 32, 24, ["bird", "cat", "dog"]
COMMON = {"family": "gpt2", "layers": LAYERS, "heads": HEADS, "hidden": HIDDEN, "ffn_hidden": 48,
          "vocab": 256, "context": CONTEXT, "attention": "bidirectional", "norm_placed": "sum",
          "init_std": 0.1}
# By name: [model], and what [task] says beside the number of labels.
MODELS = {
    "encoder": ({**COMMON, "position": "sinusoidal", "activation": "relu", "head_hidden": 40,
                 "head_activation": "relu"}, {"kind": "classify", "pooling": "mean"}),
    "bert": ({**COMMON, "embedding_norm": True, "activation": "gelu_erf", "head_hidden": HIDDEN,
              "head_activation": "tanh"}, {"kind": "classify", "pooling": "first"}),
    "causal": ({**COMMON, "attention": "causal", "norm_placed": "before", "activation": "gelu"},
               {"kind": "classify", "pooling": "last"}),
    "tagger": ({**COMMON, "embedding_norm": True, "activation": "gelu_erf"}, {"kind": "tokens"}),
}
SIZES = {"layers": LAYERS, "heads": HEADS, "hidden": HIDDEN, "ffn_hidden": 48, "vocab": 256,
         "context": CONTEXT, "init_std": 0.1}
# Directories that classifiers begin with, by name: [model] and [task] of the run whose weights they have.
PRETRAINED = {
    "bert": ({**SIZES, "family": "bert", "head_hidden": HIDDEN, "head_activation": "gelu_erf",
              "head_norm": True, "head_bias": True}, {"kind": "mlm", "mask_token": 255}),
    "gpt2": ({**SIZES, "family": "gpt2"}, {"kind": "lm"}),
}
# Classifiers that begin with one of these and a fresh head, by name: which, and what [model] and [task]
# say. A head of transformers has no bias behind GPT-2.
FRESH = {
    "bert_texts": ("bert", {}, {"kind": "classify"}),
    "bert_words": ("bert", {}, {"kind": "tokens"}),
    "gpt2_texts": ("gpt2", {"head_bias": False}, {"kind": "classify"}),
}
# What `tokenize` is told of each task's lines.
TOLD = {"classify": ["--label", "animal"], "tokens": ["--words", "words", "--label", "animals"]}
# Gradients that are rounding alone, as those of keys' biases, are far below eps.
STEPS, BATCH, LR, EPS, CLIP = 10, 8, 3e-3, 1e-4, 1.0


def kind_of(name):
    return (MODELS.get(name) or FRESH[name])[-1]["kind"]


def texts(count=80):
    """(text, label) of each: 1 to CONTEXT letters, of which every third says its label."""
    found = []
    for d in range(count):
        label, length = (d * d + d // 3) % len(LABELS), 1 + 5 * d % CONTEXT
        codes = [(label + len(LABELS) * (i + d)) % 26 if i % 3 == 0 else (7 * i * i + 3 * d) % 26
                 for i in range(length)]
        found.append(("".join(chr(97 + c) for c in codes), LABELS[label]))
    return found


def sentences(count=60):
    """(words, labels) of each: 1 to 5 words of 1 to 4 letters, whose label is a sum over the first
    letters of the word and of the next one."""
    found = []
    for d in range(count):
        words = ["".join(chr(97 + (5 * d + 7 * i * i + 3 * j * (d + 1)) % 26)
                         for j in range(1 + (d + i) % 4)) for i in range(1 + d % 5)]
        firsts = [ord(word[0]) - 97 for word in words] + [0]
        found.append((words, [LABELS[(a // 9 + b // 13) % len(LABELS)]
                              for a, b in zip(firsts, firsts[1:])]))
    return found


def samples(kind):
    """(text, labels) of each, the labels by the token, which is a byte; of a text the token is None.
    A word begins with the space before it."""
    if kind == "classify":
        return [(text, {None: label}) for text, label in texts()]
    found = []
    for words, labels in sentences():
        starts = [len(" ".join(words[:i])) for i in range(len(words))]
        found.append((" ".join(words), dict(zip(starts, labels))))
    return found


def write_lines(path, found):
    path.write_text("".join(json.dumps({"text": t, "animal": label}) + "\n" for t, label in found))


def write_sentences(path, found):
    path.write_text("".join(json.dumps({"words": w, "animals": labels}) + "\n" for w, labels in found))


def write_samples(path, kind):
    if kind == "classify":
        write_lines(path, texts())
    else:
        write_sentences(path, sentences())


def pretraining(name, prefix):
    """Sections of a deck whose only step moves nothing."""
    model, task = PRETRAINED[name]
    return {"run": {"steps": 1, "seed": 5, "backend": "debug"}, "model": dict(model),
            "data": {"train": [str(prefix)]}, "task": dict(task), "batch": {"global": 1},
            "optimizer": {"lr": 1e-30}}


def deck(name, prefix, directories=None):
    """Sections of a deck that trains the classifier on the token files of its samples; `directories` is
    where those of PRETRAINED are."""
    model, task = MODELS.get(name) or FRESH[name][1:]
    if name in FRESH:
        model = {"init_from": str(directories / FRESH[name][0]), "init_std": 0.1, **model}
    return {"run": {"steps": STEPS, "seed": 3, "backend": "debug"}, "model": dict(model),
            "data": {"train": [str(prefix)], "shuffle": False},
            "task": {**task, "labels": len(LABELS)},
            "batch": {"micro": 1, "global": BATCH},
            "optimizer": {"name": "adam", "lr": LR, "betas": [0.9, 0.999], "eps": EPS,
                          "clip_norm": CLIP},
            "schedule": {"kind": "constant"}}
