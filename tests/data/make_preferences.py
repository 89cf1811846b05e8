"""Makes oracle/preferences.json: what PyTorch computes when it trains the models of preference_models.py on its pairs of
answers, in fp64 and fp32: log p of each document under the reference model, and of each step the loss, the
gradient's norm, and what is said of the pairs beside; and how reward models score them. tests/run/preference_test.py
compares.

    pip install torch transformers h5py && python make_preferences.py TESSERA

The program is asked for nothing but the matrices A that its adapters begin with, and fresh heads.
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
from transformers import (GPT2ForSequenceClassification, GPT2LMHeadModel, LlamaForCausalLM,
                          LlamaForSequenceClassification)

import preference_models as models

CLASSES = {"gpt2": GPT2LMHeadModel, "llama": LlamaForCausalLM}
SCORERS = {"gpt2": GPT2ForSequenceClassification, "llama": LlamaForSequenceClassification}
MODULES = {"attention.q": "self_attn.q_proj", "attention.k": "self_attn.k_proj",
           "attention.v": "self_attn.v_proj", "attention.out": "self_attn.o_proj",
           "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj"}


def drawn_weights(name):
    """By our name, the A and B, and the head, that a run begins with."""
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        models.write(directory / "pairs")
        deck = models.deck(name, directory / "pairs", directory / "reference.json")
        deck["run"].update(steps=1, dir=str(directory / "run"))
        deck["optimizer"]["lr"] = 1e-30
        (directory / "deck.toml").write_text(to_toml(deck))
        refer = [["evaluate", directory / "deck.toml", "--reference"]]
        for command in (*(refer if not models.scores(name) else []), ["train", directory / "deck.toml"]):
            subprocess.run([sys.argv[1], *command], check=True, stdout=subprocess.DEVNULL)
        (path,) = (directory / "run").glob("checkpoints/*/model.h5")
        with h5py.File(path) as file:
            return {key: torch.tensor(item[()]) for key, item in file["master"].items()
                    if ".lora_" in key or key == "head.weight"}


class Adapted(torch.nn.Module):
    def __init__(self, linear, a, b, scale):
        super().__init__()
        self.linear, self.a, self.b, self.scale = linear, torch.nn.Parameter(a), torch.nn.Parameter(b), scale

    def forward(self, x):
        return self.linear(x) + self.scale * (x @ self.a.T @ self.b.T)


def adapt(model, adapter, weights):
    for p in model.parameters():
        p.requires_grad_(False)
    for key in sorted(k for k in weights if k.endswith(".lora_a")):
        _, layer, rest = key[: -len(".lora_a")].split(".", 2)
        parent = model.model.layers[int(layer)]
        *path, last = MODULES[rest.removesuffix(".weight")].split(".")
        for part in path:
            parent = getattr(parent, part)
        b = weights[key.replace("lora_a", "lora_b")]
        setattr(parent, last, Adapted(getattr(parent, last), weights[key], b, adapter["alpha"] / adapter["rank"]))


def log_p(model, tokens, of_prompt):
    """Of the tokens behind the prompt, in sum."""
    logits = model(torch.tensor([tokens])).logits[0, :-1]
    each = logits.log_softmax(-1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    return each[of_prompt - 1:].sum()


def scorer(directory, dtype, head):
    """A reward model with this head, and how it scores documents."""
    model = SCORERS[directory].from_pretrained(models.ORACLE / directory, num_labels=1, dtype=torch.float32,
                                               attn_implementation="eager")
    with torch.no_grad():
        model.score.weight.copy_(head)
    model = model.eval().to(dtype)
    return model, lambda tokens, _: model(torch.tensor([tokens])).logits[0, 0]


def train(name, dtype, drawn):
    directory, task, adapter = models.KINDS[name]
    documents = models.pairs()
    if models.scores(name):
        model, says = scorer(directory, dtype, drawn["head.weight"])
        reference = torch.zeros(len(documents), dtype=dtype)
    else:
        model = CLASSES[directory].from_pretrained(models.ORACLE / directory, dtype=torch.float32,
                                                   attn_implementation="eager").to(dtype)
        says = lambda *document: log_p(model, *document)
        with torch.no_grad():
            reference = torch.stack([says(*d) for d in documents])
    if adapter:
        adapt(model, adapter, {k: v.to(dtype) for k, v in drawn.items()})
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=models.LR, betas=(0.9, 0.99), eps=models.EPS)
    beta, smoothing, steps = task.get("beta", 1.0), task.get("label_smoothing", 0.0), []
    for step in range(models.STEPS):
        at = [(step * models.GLOBAL + i) % len(documents) for i in range(models.GLOBAL)]
        ratios = torch.stack([says(*documents[i]) - reference[i] for i in at])
        chosen, rejected = ratios[0::2], ratios[1::2]
        h = chosen - rejected
        if task["kind"] == "ipo":
            losses = (h - 1 / (2 * beta)) ** 2
        else:
            losses = -F.logsigmoid(beta * h) * (1 - smoothing) - F.logsigmoid(-beta * h) * smoothing
        loss = losses.mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, models.CLIP)
        optimizer.step()
        steps.append({"loss": loss.item(), "grad_norm": norm.item(),
                      "accuracy": (chosen > rejected).double().mean().item(),
                      "margin": beta * h.mean().item(), "reward_chosen": beta * chosen.mean().item(),
                      "reward_rejected": beta * rejected.mean().item(), "log_ratio": ratios.mean().item()})
    return {"steps": steps} if models.scores(name) else {"reference": reference.tolist(), "steps": steps}


if __name__ == "__main__":
    tests = pathlib.Path(__file__).resolve().parents[1]
    os.environ.update(TESSERA_SOURCE_DIR=str(tests.parent), TESSERA_BINARY=sys.argv[1], TESSERA_MPIEXEC="none")
    sys.path.insert(0, str(tests / "run"))
    from tessera import to_toml  # noqa: E402

    result = {}
    for name, (_, _, adapter) in models.KINDS.items():
        drawn = drawn_weights(name) if adapter or models.scores(name) else {}
        result[name] = {kind: train(name, getattr(torch, kind), drawn) for kind in ("float64", "float32")}
        print(name, [(round(s["loss"], 4), round(s["grad_norm"], 4)) for s in result[name]["float64"]["steps"]])
    (models.ORACLE / "preferences.json").write_text(json.dumps(result, indent=1) + "\n")
