"""Labelled texts and small classifiers of them, for make_classifiers.py and the test that compares with
what it has made."""

import json

LAYERS, HEADS, HIDDEN, CONTEXT, LABELS = 2, 4, 32, 24, ["bird", "cat", "dog"]
COMMON = {"family": "gpt2", "layers": LAYERS, "heads": HEADS, "hidden": HIDDEN, "ffn_hidden": 48,
          "vocab": 256, "context": CONTEXT, "attention": "bidirectional", "norm_placed": "sum",
          "init_std": 0.1}
# By name: [model], and the pooling of [task].
MODELS = {
    "encoder": ({**COMMON, "position": "sinusoidal", "activation": "relu", "head_hidden": 40,
                 "head_activation": "relu"}, "mean"),
    "bert": ({**COMMON, "embedding_norm": True, "activation": "gelu_erf", "head_hidden": HIDDEN,
              "head_activation": "tanh"}, "first"),
    "causal": ({**COMMON, "attention": "causal", "norm_placed": "before", "activation": "gelu"},
               "last"),
}
# Gradients that are rounding alone, as those of keys' biases, are far below eps.
STEPS, BATCH, LR, EPS, CLIP = 10, 8, 3e-3, 1e-4, 1.0


def texts(count=80):
    """(text, label) of each: 1 to CONTEXT letters, of which every third says its label."""
    found = []
    for d in range(count):
        label, length = (d * d + d // 3) % len(LABELS), 1 + 5 * d % CONTEXT
        codes = [(label + len(LABELS) * (i + d)) % 26 if i % 3 == 0 else (7 * i * i + 3 * d) % 26
                 for i in range(length)]
        found.append(("".join(chr(97 + c) for c in codes), LABELS[label]))
    return found


def write_lines(path, found):
    path.write_text("".join(json.dumps({"text": t, "animal": label}) + "\n" for t, label in found))


def deck(name, prefix):
    """Sections of a deck that trains the classifier on the token files of texts()."""
    model, pooling = MODELS[name]
    return {"run": {"steps": STEPS, "seed": 3, "backend": "debug"}, "model": dict(model),
            "data": {"train": [str(prefix)], "shuffle": False},
            "task": {"kind": "classify", "labels": len(LABELS), "pooling": pooling},
            "batch": {"micro": 1, "global": BATCH},
            "optimizer": {"name": "adam", "lr": LR, "betas": [0.9, 0.999], "eps": EPS,
                          "clip_norm": CLIP},
            "schedule": {"kind": "constant"}}
