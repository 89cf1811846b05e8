"""Makes oracle/adapters.json: what PyTorch computes when it trains the adapters of adapter_models.py beside
frozen weights, both as Tessera begins with them, in fp64 and fp32: of each step the loss and the gradient's norm.
tests/run/adapter_test.py compares.

    pip install torch h5py && python make_adapters.py TESSERA
"""

import math

import torch
from torch.nn import functional as F

import adapter_models as models
import torch_runs
from torch_runs import rotated


class Model:
    def __init__(self, name, weights):
        self.m, adapter = models.MODELS[name]
        self.w = weights
        rank = adapter["rank"]
        self.scale = adapter["alpha"] / (math.sqrt(rank) if adapter["kind"] == "rslora" else rank)
        self.llama = self.m["family"] == "llama"

    def linear(self, x, at):
        weight, bias = self.w[f"{at}.weight"], self.w.get(f"{at}.bias")
        if f"{at}.lora_a" not in self.w:
            return F.linear(x, weight, bias)
        a, b = self.w[f"{at}.lora_a"], self.w[f"{at}.lora_b"]
        y = F.linear(x, weight) + self.scale * (x @ a.T @ b.T)
        if f"{at}.lora_magnitude" in self.w:
            y = y * self.w[f"{at}.lora_magnitude"] / (weight + self.scale * b @ a).norm(dim=1).detach()
        return y if bias is None else y + bias

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

    def backward(step, inputs, targets):
        loss = model.loss(inputs, targets)
        loss.backward()
        return {"loss": loss.item()}
    return torch_runs.train(trained, tokens, models.LR, backward)


torch_runs.write_oracle("adapters", models, train)
