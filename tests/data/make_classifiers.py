"""Makes oracle/classifiers.json: what PyTorch computes when it trains the classifiers of classes.py from
the initial weights that Tessera gives them, in fp64 and fp32: the loss and the gradient's norm of each
step, and then how many of each label it takes for each. tests/run/classify_test.py compares.

    pip install torch h5py && python make_classifiers.py TESSERA
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import h5py
import torch
from torch.nn import functional as F

import classes

TESTS = pathlib.Path(__file__).resolve().parents[1]
os.environ.update(TESSERA_SOURCE_DIR=str(TESTS.parent), TESSERA_BINARY=sys.argv[1],
                  TESSERA_MPIEXEC="none")
sys.path.insert(0, str(TESTS / "run"))
from tessera import to_toml  # noqa: E402

ACTIVATIONS = {"relu": F.relu, "tanh": torch.tanh, "gelu_erf": F.gelu,
               "gelu": lambda x: F.gelu(x, approximate="tanh")}


def initial_weights(name):
    """Those of a run whose only step moves nothing."""
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        kind = classes.kind_of(name)
        classes.write_samples(directory / "all.jsonl", kind)
        subprocess.run([sys.argv[1], "tokenize", directory / "all.jsonl", *classes.TOLD[kind],
                        "--out", directory / "all"], check=True, stdout=subprocess.DEVNULL)
        deck = classes.deck(name, directory / "all")
        deck["run"].update(steps=1, dir=str(directory / "run"))
        deck["optimizer"]["lr"] = 1e-30
        (directory / "deck.toml").write_text(to_toml(deck))
        subprocess.run([sys.argv[1], "train", directory / "deck.toml"], check=True,
                       stdout=subprocess.DEVNULL)
        (path,) = (directory / "run").glob("checkpoints/*/model.h5")
        with h5py.File(path) as file:
            return {key: torch.tensor(item[()]) for key, item in file["master"].items()}


def logits(w, name, text, labels):
    """Of one document, a row for each label, as what is padding beside others must not count."""
    m, task = classes.MODELS[name]
    tokens = torch.tensor(list(text.encode()))
    length, head = len(tokens), m["hidden"] // m["heads"]
    norm = lambda x, at: F.layer_norm(x, (m["hidden"],), w[f"{at}.weight"], w[f"{at}.bias"], 1e-5)
    linear = lambda x, at: F.linear(x, w[f"{at}.weight"], w[f"{at}.bias"])
    after = m["norm_placed"] == "sum"
    x = w["vocabulary.weight"][tokens] + w["positions.weight"][:length]
    if m.get("embedding_norm"):
        x = norm(x, "embedding_norm")
    for i in range(m["layers"]):
        block = f"block.{i}"
        h = x if after else norm(x, f"{block}.norm1")
        q, k, v = (linear(h, f"{block}.attention.{p}").reshape(length, m["heads"], head).transpose(0, 1)
                   for p in "qkv")
        scores = q @ k.transpose(1, 2) / head**0.5
        if m["attention"] == "causal":
            scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
        h = (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, m["hidden"])
        x = x + linear(h, f"{block}.attention.out")
        x = norm(x, f"{block}.norm1_out") if after else x
        h = x if after else norm(x, f"{block}.norm2")
        x = x + linear(ACTIVATIONS[m["activation"]](linear(h, f"{block}.mlp.up")), f"{block}.mlp.down")
        x = norm(x, f"{block}.norm2_out") if after else x
    x = x if after else norm(x, "final_norm")
    if task["kind"] == "tokens":
        x = x[list(labels)]
    else:
        x = {"mean": x.mean(0), "first": x[0], "last": x[-1]}[task["pooling"]][None]
    if "head_hidden" in m:
        x = ACTIVATIONS[m["head_activation"]](linear(x, "head_dense"))
    return F.linear(x, w["head.weight"], w["head_bias.bias"])


def train(initial, name, dtype):
    w = {key: value.to(dtype) for key, value in initial.items()}
    learned = [key for key in w if not (key == "positions.weight"
                                        and classes.MODELS[name][0].get("position") == "sinusoidal")]
    for key in learned:
        w[key].requires_grad_(True)
    optimizer = torch.optim.Adam([w[key] for key in learned], lr=classes.LR, betas=(0.9, 0.999),
                                 eps=classes.EPS)
    samples, steps = classes.samples(classes.kind_of(name)), []
    numbers = lambda labels: [classes.LABELS.index(label) for label in labels.values()]
    for step in range(classes.STEPS):
        batch = [samples[(step * classes.BATCH + i) % len(samples)] for i in range(classes.BATCH)]
        optimizer.zero_grad()
        loss = F.cross_entropy(torch.cat([logits(w, name, *sample) for sample in batch]),
                               torch.tensor([n for _, labels in batch for n in numbers(labels)]))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_([w[key] for key in learned], classes.CLIP)
        optimizer.step()
        steps.append([loss.item(), norm.item()])
    confusion = [[0] * len(classes.LABELS) for _ in classes.LABELS]
    for text, labels in samples:
        for label, row in zip(numbers(labels), logits(w, name, text, labels)):
            confusion[label][row.argmax().item()] += 1
    return {"steps": steps, "confusion": confusion}


result = {}
for model in classes.MODELS:
    weights = initial_weights(model)
    result[model] = {kind: train(weights, model, getattr(torch, kind)) for kind in ("float64", "float32")}
    print(model, result[model]["float64"])
(TESTS / "data" / "oracle" / "classifiers.json").write_text(json.dumps(result, indent=1) + "\n")
