"""The encoder of inputs/imdb_classifier.toml in PyTorch, compiled: started by classifier with a Python that has
PyTorch. Takes a JSON object of settings and the file that its steps go to, as lines like those of a run's
metrics.jsonl."""

import json
import pathlib
import resource
import struct
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F


class Layer(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        hidden = s["hidden"]
        self.heads, self.rate = s["heads"], s["dropout"]
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.up, self.down = torch.nn.Linear(hidden, s["ffn"]), torch.nn.Linear(s["ffn"], hidden)
        self.after_attention, self.after = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)

    def forward(self, x, seen):
        batch, length, _ = x.shape
        rate = self.rate if self.training else 0.0
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2)
                   for t in self.qkv(x).chunk(3, dim=-1))
        # Written out: with dropout, F.scaled_dot_product_attention does the same on a CPU, uncompiled.
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        mixed = F.dropout(weights, rate) @ v
        mixed = self.out(mixed.transpose(1, 2).reshape(x.shape))
        x = self.after_attention(x + F.dropout(mixed, rate))
        return self.after(x + F.dropout(self.down(F.relu(self.up(x))), rate))


class Classifier(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.rate = s["dropout"]
        self.tokens = torch.nn.Embedding(s["vocab"], s["hidden"])
        torch.nn.init.normal_(self.tokens.weight, std=0.02)
        angle = torch.arange(s["context"])[:, None] / 10000 ** (
            torch.arange(0, s["hidden"], 2) / s["hidden"])
        self.register_buffer("positions", torch.stack((angle.sin(), angle.cos()), -1).flatten(1))
        self.layers = torch.nn.ModuleList(Layer(s) for _ in range(s["layers"]))
        self.inner = torch.nn.Linear(s["hidden"], s["head_hidden"])
        self.last = torch.nn.Linear(s["head_hidden"], s["labels"])

    def forward(self, tokens, is_text):
        rate = self.rate if self.training else 0.0
        x = F.dropout(self.tokens(tokens) + self.positions[: tokens.shape[1]], rate)
        for layer in self.layers:
            x = layer(x, is_text[:, None, None, :])
        mean = (x * is_text[..., None]).sum(1) / is_text.sum(1, keepdim=True)
        return self.last(F.dropout(F.relu(self.inner(mean)), rate)).float()


def documents(prefix, element):
    """The documents of an indexed dataset, of one sequence each."""
    index = pathlib.Path(f"{prefix}.idx").read_bytes()
    count = struct.unpack_from("<Q", index, 18)[0]
    lengths = np.frombuffer(index, np.int32, count, 34)
    return np.split(np.fromfile(f"{prefix}.bin", element), np.cumsum(lengths)[:-1])


class Texts:
    def __init__(self, prefix, context):
        texts = [d[:context] for d in documents(prefix, np.uint16)]
        self.tokens = torch.zeros(len(texts), context, dtype=torch.long)
        self.is_text = torch.zeros(len(texts), context, dtype=torch.bool)
        for row, text in enumerate(texts):
            self.tokens[row, : len(text)] = torch.from_numpy(text.astype(np.int64))
            self.is_text[row, : len(text)] = True
        self.labels = torch.from_numpy(np.fromfile(f"{prefix}.labels.bin", np.int32).astype(np.int64))

    def batches(self, size, order):
        """As many columns as the longest text of a batch has."""
        for rows in order.split(size):
            length = self.is_text[rows].sum(1).max()
            yield self.tokens[rows, :length], self.is_text[rows, :length], self.labels[rows]


def main(s, out):
    torch.set_num_threads(s["threads"])
    torch.manual_seed(s["seed"])
    train, test = (Texts(s[which], s["context"]) for which in ("train", "test"))
    model = Classifier(s)
    fast = torch.compile(model, dynamic=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=s["lr"], betas=(0.9, 0.999), fused=True)
    cast = lambda: torch.autocast("cpu", torch.bfloat16, enabled=s["compute"] == "bf16")
    step = 0
    with open(out, "w", buffering=1) as metrics:
        for epoch in range(s["epochs"]):
            for group in optimizer.param_groups:
                group["lr"] = s["lr"] * s["gamma"] ** epoch
            model.train()
            for rows in torch.randperm(len(train.tokens)).split(s["global"]):
                if step == s["steps"] or len(rows) < s["global"]:
                    break
                begin, loss = time.monotonic(), 0.0
                for tokens, is_text, labels in train.batches(s["micro"], rows):
                    with cast():
                        z = fast(tokens, is_text)
                    error = F.cross_entropy(z, labels) * len(z) / s["global"]
                    error.backward()
                    loss += error.item()
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                ms = (time.monotonic() - begin) * 1e3
                metrics.write(json.dumps({"event": "step", "step": step, "loss": loss, "step_ms": ms}) + "\n")
            if s["accuracy"]:
                model.eval()
                right = 0
                with torch.no_grad(), cast():
                    for tokens, is_text, labels in test.batches(s["micro"], torch.arange(len(test.tokens))):
                        right += (model(tokens, is_text).argmax(-1) == labels).sum().item()
                metrics.write(json.dumps({"event": "evaluate", "step": step,
                                          "accuracy": right / len(test.tokens)}) + "\n")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        metrics.write(json.dumps({"event": "end", "peak_resident_bytes": peak}) + "\n")


main(json.loads(sys.argv[1]), sys.argv[2])
