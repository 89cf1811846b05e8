"""What scripts share in which PyTorch trains a small model from the weights that Tessera gives it. The first
argument of such a script is the program."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import torch

from small_decks import BATCH, CLIP, EPS, LENGTH, STEPS

TESTS = pathlib.Path(__file__).resolve().parents[1]
os.environ.update(TESSERA_SOURCE_DIR=str(TESTS.parent), TESSERA_BINARY=sys.argv[1],
                  TESSERA_MPIEXEC="none")
sys.path.insert(0, str(TESTS / "run"))
from tessera import to_toml, write_tokens  # noqa: E402


def tokens_and_weights(deck_of):
    """The tokens, and the weights of a run whose only step moves nothing. deck_of(tokens): its deck."""
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        write_tokens(directory / "tokens")
        deck = deck_of(directory / "tokens")
        deck["run"].update(steps=1, dir=str(directory / "run"))
        deck["optimizer"]["lr"] = 1e-30
        (directory / "deck.toml").write_text(to_toml(deck))
        subprocess.run([sys.argv[1], "train", directory / "deck.toml"], check=True,
                       stdout=subprocess.DEVNULL)
        (path,) = (directory / "run").glob("checkpoints/*/model.h5")
        with h5py.File(path) as file:
            weights = {key: torch.tensor(item[()]) for key, item in file["master"].items()}
        tokens = np.fromfile(directory / "tokens.bin", np.uint16).astype(np.int64)
        return torch.from_numpy(tokens), weights


def rotated(x):
    """(B, H, T, D): columns i and i + D / 2 of position t turn by t / 10000^(2 i / D)."""
    t, half = x.shape[2], x.shape[3] // 2
    angles = torch.outer(torch.arange(t, dtype=torch.float64),
                         10000.0 ** (-torch.arange(half, dtype=torch.float64) / half))
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def train(trained, tokens, lr, backward):
    """Steps of Adam. backward(step, inputs, targets) makes the gradients of a step, and returns what is known
    of it, to which the gradient's norm is added."""
    optimizer = torch.optim.Adam(trained, lr=lr, betas=(0.9, 0.99), eps=EPS)
    steps = []
    for step in range(STEPS):
        at = [(step * BATCH + i) * LENGTH for i in range(BATCH)]
        inputs = torch.stack([tokens[a : a + LENGTH] for a in at])
        targets = torch.stack([tokens[a + 1 : a + LENGTH + 1] for a in at])
        optimizer.zero_grad()
        known = backward(step, inputs, targets)
        known["grad_norm"] = torch.nn.utils.clip_grad_norm_(trained, CLIP).item()
        optimizer.step()
        steps.append(known)
    return steps


def write_oracle(name, models, train_model):
    """Makes oracle/NAME.json. train_model(weights, tokens, model, dtype): the steps of one of `models`."""
    result = {}
    for model in models.MODELS:
        tokens, weights = tokens_and_weights(lambda prefix: models.deck(model, prefix))
        result[model] = {kind: train_model(weights, tokens, model, getattr(torch, kind))
                         for kind in ("float64", "float32")}
        print(model, [(round(s["loss"], 4), round(s["grad_norm"], 4)) for s in result[model]["float64"]])
    (TESTS / "data" / "oracle" / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
