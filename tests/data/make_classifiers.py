"""Makes oracle/classifiers.json: what PyTorch computes when it trains the classifiers of classes.py from
the initial weights that Tessera gives them, in fp64 and fp32: the loss and the gradient's norm of each
step, and then how many of each label it takes for each. Of those that begin with a directory and a fresh
head, what transformers makes of the directory, with that head. tests/run/classify_test.py compares.

    pip install torch transformers h5py && python make_classifiers.py TESSERA
"""

import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import h5py
import torch
from torch.nn import functional as F
from transformers import (BertForSequenceClassification, BertForTokenClassification,
                          GPT2ForSequenceClassification)

import classes

TESTS = pathlib.Path(__file__).resolve().parents[1]
os.environ.update(TESSERA_SOURCE_DIR=str(TESTS.parent), TESSERA_BINARY=sys.argv[1],
                  TESSERA_MPIEXEC="none")
sys.path.insert(0, str(TESTS / "run"))
from tessera import to_toml  # noqa: E402

ACTIVATIONS = {"relu": F.relu, "tanh": torch.tanh, "gelu_erf": F.gelu,
               "gelu": lambda x: F.gelu(x, approximate="tanh")}


def tessera(*arguments):
    subprocess.run([sys.argv[1], *arguments], check=True, stdout=subprocess.DEVNULL)


def run(directory, name, deck):
    deck["run"]["dir"] = str(directory / name)
    (directory / f"{name}.toml").write_text(to_toml(deck))
    tessera("train", directory / f"{name}.toml")
    return directory / name


def write_tokens(directory, kind):
    classes.write_samples(directory / "all.jsonl", kind)
    tessera("tokenize", directory / "all.jsonl", *classes.TOLD[kind], "--out", directory / "all")
    return directory / "all"


def initial_weights(name, directory):
    """Those of a run whose only step moves nothing."""
    prefix = write_tokens(directory, classes.kind_of(name))
    if name in classes.FRESH:
        of = classes.FRESH[name][0]
        made = run(directory, f"{of}_run", classes.pretraining(of, prefix))
        tessera("export", made, "--to", directory / of)
    deck = classes.deck(name, prefix, directory)
    deck["run"]["steps"] = 1
    deck["optimizer"]["lr"] = 1e-30
    (path,) = run(directory, "run", deck).glob("checkpoints/*/model.h5")
    with h5py.File(path) as file:
        return {key: torch.tensor(item[()]) for key, item in file["master"].items()}


# By name: the class of transformers, and where its head has which of Tessera's parameters.
THEIRS = {
    "bert_texts": (BertForSequenceClassification, {
        "bert.pooler.dense.weight": "head_dense.weight", "bert.pooler.dense.bias": "head_dense.bias",
        "classifier.weight": "head.weight", "classifier.bias": "head_bias.bias"}),
    "bert_words": (BertForTokenClassification, {
        "classifier.weight": "head.weight", "classifier.bias": "head_bias.bias"}),
    "gpt2_texts": (GPT2ForSequenceClassification, {"score.weight": "head.weight"}),
}


def theirs(name, directory, ours):
    """The model that transformers makes of a directory, with our head. A type of tokens that all have is
    part of their positions, of which it is no parameter of its own."""
    made, head = THEIRS[name]
    model = made.from_pretrained(directory / classes.FRESH[name][0], num_labels=len(classes.LABELS)).eval()
    with torch.no_grad():
        for key, of in head.items():
            model.get_parameter(key).copy_(ours[of])
    for key, parameter in model.named_parameters():
        parameter.requires_grad_("token_type" not in key)
    return model


def logits_of(model, kind, text, labels):
    found = model(torch.tensor([list(text.encode())])).logits[0]
    return found[list(labels)] if kind == "tokens" else found[None]


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


def train_ours(initial, name, dtype):
    w = {key: value.to(dtype) for key, value in initial.items()}
    learned = [key for key in w if not (key == "positions.weight"
                                        and classes.MODELS[name][0].get("position") == "sinusoidal")]
    for key in learned:
        w[key].requires_grad_(True)
    return train(name, [w[key] for key in learned], lambda *sample: logits(w, name, *sample))


def train_theirs(model, name, dtype):
    model = copy.deepcopy(model).to(dtype)
    return train(name, [p for p in model.parameters() if p.requires_grad],
                 lambda *sample: logits_of(model, classes.kind_of(name), *sample))


def train(name, learned, logits):
    optimizer = torch.optim.Adam(learned, lr=classes.LR, betas=(0.9, 0.999), eps=classes.EPS)
    samples, steps = classes.samples(classes.kind_of(name)), []
    numbers = lambda labels: [classes.LABELS.index(label) for label in labels.values()]
    for step in range(classes.STEPS):
        batch = [samples[(step * classes.BATCH + i) % len(samples)] for i in range(classes.BATCH)]
        optimizer.zero_grad()
        loss = F.cross_entropy(torch.cat([logits(*sample) for sample in batch]),
                               torch.tensor([n for _, labels in batch for n in numbers(labels)]))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(learned, classes.CLIP)
        optimizer.step()
        steps.append([loss.item(), norm.item()])
    confusion = [[0] * len(classes.LABELS) for _ in classes.LABELS]
    for text, labels in samples:
        for label, row in zip(numbers(labels), logits(text, labels)):
            confusion[label][row.argmax().item()] += 1
    return {"steps": steps, "confusion": confusion}


result = {}
for name in (*classes.MODELS, *classes.FRESH):
    with tempfile.TemporaryDirectory() as temporary:
        weights = initial_weights(name, pathlib.Path(temporary))
        trained, of = train_ours, weights
        if name in classes.FRESH:
            trained, of = train_theirs, theirs(name, pathlib.Path(temporary), weights)
    result[name] = {kind: trained(of, name, getattr(torch, kind)) for kind in ("float64", "float32")}
    print(name, result[name]["float64"])
(TESTS / "data" / "oracle" / "classifiers.json").write_text(json.dumps(result, indent=1) + "\n")
