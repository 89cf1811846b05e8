"""Makes oracle/adapters.json: what PyTorch computes when it trains the adapters of adapter_models.py beside
frozen weights, both as Tessera begins with them, in fp64 and fp32: of each step the loss and the gradient's norm.
tests/run/adapter_test.py compares.

    pip install torch h5py && python make_adapters.py TESSERA
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy as np
import torch
from torch.nn import functional as F

import adapter_models as models

TESTS = pathlib.Path(__file__).resolve().parents[1]
os.environ.update(TESSERA_SOURCE_DIR=str(TESTS.parent), TESSERA_BINARY=sys.argv[1],
                  TESSERA_MPIEXEC="none")
sys.path.insert(0, str(TESTS / "run"))
from tessera import to_toml, write_tokens  # noqa: E402


def tokens_and_weights(name):
    """The tokens, and the weights of a run whose only step moves nothing."""
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        write_tokens(directory / "tokens")
        deck = models.deck(name, directory / "tokens")
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


class Model:
    def __init__(self, name, weights):
        self.m, adapter = models.MODELS[name]
        self.w = weights
        rank = adapter["rank"]
        self.scale = adapter["alpha"] / (math.sqrt(rank) if adapter["kind"] == "rslora" else rank)
        self.llama = self.m["family"] == "llama"

    def linear(self, x, at):
        y = F.linear(x, self.w[f"{at}.weight"], self.w.get(f"{at}.bias"))
        if f"{at}.lora_a" not in self.w:
            return y
        return y + self.scale * (x @ self.w[f"{at}.lora_a"].T @ self.w[f"{at}.lora_b"].T)

    def norm(self, x, at):
        if self.llama:
            return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * self.w[f"{at}.weight"]
        return F.layer_norm(x, x.shape[-1:], self.w[f"{at}.weight"], self.w[f"{at}.bias"], 1e-5)

    def feed_forward(self, x, at):
        if self.llama:
            gate = F.silu(self.linear(x, f"{at}.gate"))
            return self.linear(gate * self.linear(x, f"{at}.up"), f"{at}.down")
        return self.linear(F.gelu(self.linear(x, f"{at}.up"), approximate="tanh"), f"{at}.down")

    def attention(self, x, at):
        heads = self.m["heads"]
        kv_heads = self.m.get("kv_heads", heads)
        b, t, c = x.shape
        of = lambda p, n: self.linear(x, f"{at}.{p}").reshape(b, t, n, c // heads).transpose(1, 2)
        q, k, v = of("q", heads), of("k", kv_heads), of("v", kv_heads)
        if self.llama:
            q, k = rotated(q), rotated(k)
        k, v = (y.repeat_interleave(heads // kv_heads, 1) for y in (k, v))
        scores = q @ k.transpose(2, 3) / (c // heads) ** 0.5
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        out = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, c)
        return self.linear(out, f"{at}.out")

    def loss(self, inputs, targets):
        x = self.w["vocabulary.weight"][inputs]
        if not self.llama:
            x = x + self.w["positions.weight"][: inputs.shape[1]]
        for i in range(self.m["layers"]):
            x = x + self.attention(self.norm(x, f"block.{i}.norm1"), f"block.{i}.attention")
            x = x + self.feed_forward(self.norm(x, f"block.{i}.norm2"), f"block.{i}.mlp")
        x = self.norm(x, "final_norm")
        matrix = self.w.get("head.weight", self.w["vocabulary.weight"])
        return F.cross_entropy((x @ matrix.T).flatten(0, 1), targets.flatten())


def train(initial, tokens, name, dtype):
    weights = {key: value.to(dtype) for key, value in initial.items()}
    trained = [w.requires_grad_() for key, w in weights.items() if ".lora_" in key]
    model = Model(name, weights)
    optimizer = torch.optim.Adam(trained, lr=models.LR, betas=(0.9, 0.99), eps=models.EPS)
    steps = []
    for step in range(models.STEPS):
        at = [(step * models.BATCH + i) * models.LENGTH for i in range(models.BATCH)]
        inputs = torch.stack([tokens[a : a + models.LENGTH] for a in at])
        targets = torch.stack([tokens[a + 1 : a + models.LENGTH + 1] for a in at])
        optimizer.zero_grad()
        loss = model.loss(inputs, targets)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, models.CLIP)
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm": norm.item()})
    return steps


result = {}
for model in models.MODELS:
    tokens, weights = tokens_and_weights(model)
    result[model] = {kind: train(weights, tokens, model, getattr(torch, kind))
                     for kind in ("float64", "float32")}
    print(model, [(round(s["loss"], 4), round(s["grad_norm"], 4)) for s in result[model]["float64"]])
(TESTS / "data" / "oracle" / "adapters.json").write_text(json.dumps(result, indent=1) + "\n")
