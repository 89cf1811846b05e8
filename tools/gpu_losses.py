"""GPT-2 124M over 50 steps of 256 tokens, whose losses on a GPU tools/gpu_report and
tests/run/gpu_test.py compare with those of the same deck and tokens on the CPU: about a minute on
two cores."""

import pathlib
import random
import struct

STEPS = 50
SEQUENCE, MICRO, GLOBAL = 64, 2, 4
VOCAB = 50257
RECIPE = {"lr": 6e-4, "weight_decay": 0.1, "clip_norm": 1.0}
WARM_UP = 10
# Of the relative differences of 50 losses from those in f32 on the CPU the largest and the mean, by
# what is computed in. Measured on the CPU, from the same weights and on the same tokens: Tessera in
# f32 is MEASURED["f32"] from PyTorch 2.15 in f32, and in bf16 MEASURED["bf16"] from itself in f32.
# Rounding grows from step to step, so that where it happens in other places it comes out about as
# large; four times as much is allowed, which in f32 is less than what bf16 does.
MEASURED = {"f32": (7.6e-4, 1.7e-4), "bf16": (1.8e-2, 3.5e-3)}
ROOM = 4


def write_tokens(prefix, count=20000, vocab=97, seed=1):
    """Tokens that can be learned, as one document in Megatron's format: most follow from the one
    before."""
    rng = random.Random(seed)
    tokens = [0]
    while len(tokens) < count:
        noise = rng.randrange(vocab)
        tokens.append((5 * tokens[-1] + 3) % vocab if rng.random() < 0.8 else noise)
    pathlib.Path(f"{prefix}.bin").write_bytes(struct.pack(f"<{count}H", *tokens))
    pathlib.Path(f"{prefix}.idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 1, 2) + struct.pack("<iqqq", count, 0, 0, 1))


def deck(tokens, backend, compute, threads, model=None):
    """Sections of a deck; `model` is the preset, or a directory of initial weights."""
    return {
        "run": {"steps": STEPS, "seed": 1, "backend": backend, "threads": threads},
        "model": model or {"preset": "gpt2_124m"},
        "data": {"train": [str(tokens)], "shuffle": False},
        "batch": {"sequence": SEQUENCE, "micro": MICRO, "global": GLOBAL},
        "optimizer": RECIPE,
        "schedule": {"kind": "constant", "warmup_steps": WARM_UP},
        "precision": {"compute": compute}, "checkpoint": {"every": 0}}


def pytorch_settings(tokens, threads, layers=12, hidden=768, heads=12, vocab=VOCAB):
    """The same for tools/pytorch_models.py."""
    return {"layers": layers, "hidden": hidden, "heads": heads, "vocab": vocab,
            "sequence": SEQUENCE, "micro": MICRO, "global": GLOBAL, "steps": STEPS, "seed": 1,
            "warmup": WARM_UP, "compute": "f32", "data": str(tokens), "threads": threads, **RECIPE}


def apart(got, want):
    """(the largest, the mean) relative difference of losses, those of `want` being the measure."""
    if len(got) != STEPS or len(want) != STEPS:
        raise ValueError(f"losses of {len(got)} and of {len(want)} steps, of {STEPS}")
    differences = [abs(a - b) / b for a, b in zip(got, want)]
    return max(differences), sum(differences) / STEPS


def allowed(compute):
    return tuple(ROOM * x for x in MEASURED[compute])
