"""Makes oracle/experts.json: what PyTorch computes when it trains the models of expert_models.py from the
initial weights that Tessera gives them, in fp64 and fp32: of each step the loss, the gradient's norm, and
of each layer's router how many choices are each expert, and how many are dropped. tests/run/experts_test.py compares.

    pip install torch h5py && python make_experts.py TESSERA
"""

import math
import sys
from fractions import Fraction

import numpy as np
import torch
from torch.nn import functional as F

import expert_models as models
import torch_runs
from philox import JITTER, random_bits
from small_decks import BATCH, MICRO, SEED
from torch_runs import rotated

MARGIN = 1e-5  # between the scores of what is chosen and what is not, that no rounding moves


def rms(x, w):
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w


class Model:
    def __init__(self, name, weights):
        self.m, self.moe = models.MODELS[name]
        self.w = weights
        self.bias = self.take(".router.bias")  # by layer of experts, by which they are chosen
        self.shares = self.take(".router.shares")  # of the last step's choices, by which balance is weighed

    def take(self, suffix):
        """What of each layer of experts is no weight, by layer, and 0 at first."""
        return {key.removesuffix(suffix): torch.zeros_like(self.w.pop(key))
                for key in list(self.w) if key.endswith(suffix)}

    def feed_forward(self, x, at):
        linear = lambda y, p: y @ self.w[f"{at}.{p}.weight"].T
        if self.m.get("activation") == "relu":
            return linear(F.relu(linear(x, "up")), "down")
        return linear(F.silu(linear(x, "gate")) * linear(x, "up"), "down")

    def allowed(self, keys):
        """Which experts a token may choose: those of its best groups."""
        groups = self.moe.get("groups", 1)
        of_groups = keys.unflatten(-1, (groups, -1))
        if self.moe.get("group_score") == "two_largest":
            value = of_groups.topk(2, -1).values.sum(-1)
        else:
            value = of_groups.max(-1).values
        top = self.moe.get("group_top", 1)
        ordered = value.sort(-1, descending=True).values
        if top < groups:
            self.margin = min(self.margin, (ordered[..., top - 1] - ordered[..., top]).min().item())
        open_groups = torch.zeros_like(value, dtype=torch.bool).scatter(
            -1, value.topk(top, -1).indices, True)
        return open_groups.repeat_interleave(of_groups.shape[-1], -1)

    def two_levels(self, logits):
        """The product of the softmaxes of what a gate over groups keeps, and of what one in each group does."""
        experts, groups, top = (self.moe[key] for key in ("experts", "groups", "group_top"))

        def gate(x, keep):
            ordered = x.sort(-1, descending=True).values
            self.margin = min(self.margin, (ordered[..., keep - 1] - ordered[..., keep]).min().item())
            return x.masked_fill(x < ordered[..., keep - 1:keep], -torch.inf).softmax(-1)
        within = gate(logits[..., :experts].unflatten(-1, (groups, -1)), self.moe["top_k"] // top)
        return (gate(logits[..., experts:], top)[..., None] * within).flatten(-2)

    def jittered(self, x, layer):
        """What a layer's router reads of x (B, T, C), whose samples are the step's. Layer 0 is the
        embedding."""
        if "jitter" not in self.moe:
            return x
        e, (batch, *shape) = np.float32(self.moe["jitter"]), x.shape
        bits = np.stack([random_bits(SEED, JITTER, 3 * layer, self.step * BATCH + i,
                                     np.arange(math.prod(shape))) for i in range(batch)])
        factors = 1 - e + 2 * e * ((bits >> 8).astype(np.float32) * np.float32(2.0 ** -24))
        return x * torch.from_numpy(factors).reshape(x.shape).to(x.dtype)

    def experts(self, x, at, layer):
        """x: (B, T, C). Adds this layer's terms to those of the pass, of each sequence's tokens."""
        k, experts = self.moe["top_k"], self.moe["experts"]
        logits = self.jittered(x, layer) @ self.w[f"{at}.router.weight"].T
        sigmoid = self.moe.get("scores") == "sigmoid"
        if "gates" in self.moe:
            scores = self.two_levels(logits)
        else:
            scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
        keys = scores + self.bias[at] if at in self.bias else scores
        may = keys.masked_fill(~self.allowed(keys), -torch.inf)
        ordered = may.sort(-1, descending=True).values
        if k < experts:
            self.margin = min(self.margin, (ordered[..., k - 1] - ordered[..., k]).min().item())
        chosen = may.topk(k, -1).indices
        weights = scores.gather(-1, chosen)
        if self.moe.get("normalize", k > 1):
            weights = weights / weights.sum(-1, keepdim=True)
        weights = weights * self.moe.get("scale", 1.0)
        kept = self.kept(chosen)
        weights = weights * kept
        out = torch.zeros_like(x)
        for e in range(experts):
            weight = (weights * (chosen == e)).sum(-1, keepdim=True)
            out = out + weight * self.feed_forward(x, f"{at}.expert.{e}")
        if "shared_ffn_hidden" in self.moe:
            out = out + self.feed_forward(x, f"{at}.shared")
        hot = F.one_hot(chosen, experts).sum(-2).to(x.dtype)
        share = self.shares[at] if at in self.shares else hot.mean(1) / k
        probability = (scores / scores.sum(-1, keepdim=True)).mean(1)
        balance = experts * (share.detach() * probability).sum(-1)  # of each sequence
        weight = self.moe.get("aux_loss", 0 if self.bias else 0.01)
        self.terms = (self.terms + weight * balance.mean()
                      + self.moe.get("z_loss", 0) * logits.logsumexp(-1).pow(2).mean())
        self.choices.append(hot.sum((0, 1)).long().tolist())
        self.dropped.append((~kept).sum().item())
        return out

    def balance(self):
        """Moves each bias against how much more often than on average its expert was chosen, and keeps
        each expert's share of choices."""
        for bias, counts in zip(self.bias.values(), self.choices):
            excess = torch.tensor(counts, dtype=bias.dtype) - sum(counts) / len(counts)
            bias -= self.moe["bias_update"] * excess.sign()
        for shares, counts in zip(self.shares.values(), self.choices):
            shares.copy_(torch.tensor(counts, dtype=shares.dtype) / sum(counts))

    def kept(self, chosen):
        """Which choices find room: of each micro-batch the first, by token and then by choice."""
        if "capacity" not in self.moe:
            return torch.ones_like(chosen, dtype=torch.bool)
        hot = F.one_hot(chosen, self.moe["experts"])
        rows = hot.reshape(len(chosen) // MICRO, -1, self.moe["experts"])
        room = math.ceil(Fraction(str(self.moe["capacity"])) * rows.shape[1] / self.moe["experts"])
        return ((rows.cumsum(1) * rows).sum(-1) <= room).reshape(chosen.shape)

    def attention(self, x, at):
        heads, kv_heads = self.m["heads"], self.m["kv_heads"]
        b, t, c = x.shape
        of = lambda p, n: (x @ self.w[f"{at}.{p}.weight"].T).reshape(b, t, n, c // heads).transpose(1, 2)
        q, k, v = of("q", heads), of("k", kv_heads), of("v", kv_heads)
        if "qk_norm" in self.m:
            q, k = rms(q, self.w[f"{at}.q_norm.weight"]), rms(k, self.w[f"{at}.k_norm.weight"])
        q, k = rotated(q), rotated(k).repeat_interleave(heads // kv_heads, 1)
        scores = q @ k.transpose(2, 3) / (c // heads) ** 0.5
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        out = scores.softmax(-1) @ v.repeat_interleave(heads // kv_heads, 1)
        return out.transpose(1, 2).reshape(b, t, c) @ self.w[f"{at}.out.weight"].T

    def latent_attention(self, x, at):
        """Of DeepSeek-V2 (section 2.1): the last columns of a head turn, and of keys all heads have
        the same."""
        heads, rope = self.m["heads"], self.m["rope_dim"]
        b, t, _ = x.shape
        linear = lambda y, p: y @ self.w[f"{at}.{p}.weight"].T
        of = lambda y, p: linear(y, p).reshape(b, t, heads, -1).transpose(1, 2)
        normed = lambda p: rms(linear(x, p), self.w[f"{at}.{p}_norm.weight"])
        q = of(normed("q_latent") if "q_latent" in self.m else x, "q")
        latent = normed("kv_latent")
        own, shared = of(latent, "k"), rotated(linear(x, "k_rope")[:, None])
        q = torch.cat([q[..., :-rope], rotated(q[..., -rope:])], -1)
        k = torch.cat([own, shared.expand(-1, heads, -1, -1)], -1)
        scores = q @ k.transpose(2, 3) / self.m["head_dim"] ** 0.5
        scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), -torch.inf)
        out = scores.softmax(-1) @ of(latent, "v")
        return linear(out.transpose(1, 2).reshape(b, t, -1), "out")

    def losses(self, step, inputs, targets):
        """The mean loss, and what is minimised beside it."""
        self.step, self.terms, self.choices, self.dropped, self.margin = step, 0.0, [], [], torch.inf
        x = self.w["vocabulary.weight"][inputs]
        for i in range(self.m["layers"]):
            attention = self.latent_attention if "kv_latent" in self.m else self.attention
            x = x + attention(rms(x, self.w[f"block.{i}.norm1.weight"]), f"block.{i}.attention")
            h = rms(x, self.w[f"block.{i}.norm2.weight"])
            dense = (i + 1) % self.moe.get("every", 1) != 0 or i < self.moe.get("first_dense", 0)
            at = f"block.{i}.mlp"
            x = x + (self.feed_forward(h, at) if dense else self.experts(h, at, i + 1))
        x = rms(x, self.w["final_norm.weight"])
        matrix = self.w["vocabulary.weight" if self.m.get("tied_embeddings") else "head.weight"]
        return F.cross_entropy((x @ matrix.T).flatten(0, 1), targets.flatten()), self.terms


def train(initial, tokens, name, dtype):
    weights = {key: value.to(dtype).requires_grad_() for key, value in initial.items()}
    model = Model(name, weights)

    def backward(step, inputs, targets):
        loss, terms = model.losses(step, inputs, targets)
        (loss + terms).backward()
        if model.margin < MARGIN:
            sys.exit(f"{name}, step {step}: a choice by a margin of {model.margin:.1e}: another seed")
        model.balance()
        return {"loss": loss.item(), "choices": model.choices, "dropped": model.dropped}
    return torch_runs.train(list(weights.values()), tokens, models.LR, backward)


torch_runs.write_oracle("experts", models, train)
