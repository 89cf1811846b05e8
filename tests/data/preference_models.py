"""Pairs of answers and the decks of runs that compare them, for make_preferences.py and the test that compares with
what it has made."""

import pathlib

ORACLE = pathlib.Path(__file__).resolve().parent / "oracle"
STEPS, GLOBAL = 5, 8
# By name: the model directory, [task] without its reference, and [adapter]. Those of kind reward have a fresh head.
KINDS = {
    "dpo": ("gpt2", {"kind": "dpo", "beta": 0.5}, None),
    "cdpo": ("llama", {"kind": "dpo", "beta": 0.4, "label_smoothing": 0.2}, None),
    "ipo": ("gpt2", {"kind": "ipo", "beta": 0.25}, None),
    "lora": ("llama", {"kind": "dpo", "beta": 0.5},
             {"kind": "lora", "rank": 3, "alpha": 6.0, "targets": ["*.attention.?.weight", "*.mlp.*"]}),
    "reward": ("gpt2", {"kind": "reward"}, None),
    "noisy": ("llama", {"kind": "reward", "label_smoothing": 0.1}, None),
}
LENGTH, VOCAB = 16, 190  # of a sample, and tokens below it are used
LR, EPS, CLIP = 4e-3, 1e-6, 2.0


def pairs():
    """Documents of tokens, two answers to each of the prompts, and of each how many tokens are its prompt's."""
    made = []
    for i in range(22):
        prompt = [(7 * i * i + 5 * j + i) % VOCAB for j in range(2 + i % 5)]
        for answer in (0, 1):
            length = 1 + (3 * i + 5 * answer) % 9
            said = [(11 * i + 3 * j * j + 29 * answer + (i * j) % 7) % VOCAB for j in range(length)]
            made.append((prompt + said, len(prompt)))
    return made


def scores(name):
    return KINDS[name][1]["kind"] == "reward"


def deck(name, prefix, reference):
    model, task, adapter = KINDS[name]
    if not scores(name):
        task = {**task, "reference": str(reference)}
    made = {"run": {"steps": STEPS, "seed": 8, "backend": "debug"},
            "model": {"init_from": str(ORACLE / model), "dropout": 0.0},
            "task": dict(task),
            "data": {"train": [str(prefix)], "shuffle": False},
            "batch": {"sequence": LENGTH, "micro": 2, "global": GLOBAL},
            "optimizer": {"name": "adam", "lr": LR, "betas": [0.9, 0.99], "eps": EPS,
                          "clip_norm": CLIP},
            "schedule": {"kind": "constant"},
            "precision": {"compute": "f32"}}
    return {**made, "adapter": dict(adapter)} if adapter else made


def write(prefix):
    """The token files of the pairs."""
    import array
    import json
    import struct

    def pair(path, code, values, lengths):
        size = values.itemsize
        begins = [sum(lengths[:i]) * size for i in range(len(lengths))]
        pathlib.Path(f"{path}.bin").write_bytes(values.tobytes())
        pathlib.Path(f"{path}.idx").write_bytes(
            b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1)
            + array.array("i", lengths).tobytes() + array.array("q", begins).tobytes()
            + array.array("q", range(len(lengths) + 1)).tobytes())

    documents = pairs()
    lengths = [len(tokens) for tokens, _ in documents]
    pair(prefix, 8, array.array("H", [t for tokens, _ in documents for t in tokens]), lengths)
    pair(f"{prefix}.targets", 1, array.array("B", [int(at >= of_prompt) for tokens, of_prompt in documents
                                                  for at in range(len(tokens))]), lengths)
    pathlib.Path(f"{prefix}.pairs.json").write_text(json.dumps({"pairs": len(documents) // 2}))
