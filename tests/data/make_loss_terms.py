"""Makes oracle/*/loss_terms.json: what PyTorch computes when it trains the models of make_oracle.py
with smoothed labels and a z-loss, in fp64 and fp32: of each step the loss that is minimised and the
gradient norm, and at the end the plain negative log likelihood of the sequences of the first step.
tests/run/loss_test.py compares.

    pip install torch transformers && python make_loss_terms.py
"""

import json
import pathlib

import numpy as np
import torch
from transformers import GPT2LMHeadModel, LlamaForCausalLM

HERE = pathlib.Path(__file__).resolve().parent / "oracle"
KINDS = {"gpt2": GPT2LMHeadModel, "llama": LlamaForCausalLM}
STEPS, BATCH, SMOOTHING, Z_LOSS = 6, 8, 0.1, 0.01


def logits_and_targets(model, tokens, first, length):
    rows = [(first + i) % ((len(tokens) - 1) // length) * length for i in range(BATCH)]
    inputs, targets = (torch.stack([tokens[r + s:r + s + length] for r in rows]) for s in (0, 1))
    return model(inputs).logits.flatten(0, 1), targets.flatten()


def train(model, tokens, recipe, length):
    parameters = list(model.parameters())
    matrices, vectors = ([p for p in parameters if (p.dim() >= 2) == w] for w in (True, False))
    groups = [{"params": matrices, "weight_decay": recipe["weight_decay"]},
              {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe["lr"], betas=recipe["betas"], eps=recipe["eps"])
    steps = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = recipe["lr"] * min(1.0, (step + 1) / recipe["warmup_steps"])
        optimizer.zero_grad()
        logits, targets = logits_and_targets(model, tokens, step * BATCH, length)
        loss = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=SMOOTHING)
        loss = loss + Z_LOSS * logits.logsumexp(-1).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, recipe["clip_norm"])
        optimizer.step()
        steps.append([loss.item(), norm.item()])
    with torch.no_grad():
        plain = torch.nn.functional.cross_entropy(*logits_and_targets(model, tokens, 0, length))
    return {"steps": steps, "evaluation": plain.item()}


for family, kind in KINDS.items():
    directory = HERE / family
    truth = json.loads((directory / "losses.json").read_text())
    tokens = torch.from_numpy(np.fromfile(directory / "tokens.bin", np.uint16).astype(np.int64))
    result = {name: train(kind.from_pretrained(directory, dtype=torch.float32).to(dtype), tokens,
                          truth["recipe"], truth["sequence"])
              for name, dtype in (("float64", torch.float64), ("float32", torch.float32))}
    result = {"label_smoothing": SMOOTHING, "z_loss": Z_LOSS, **result}
    (directory / "loss_terms.json").write_text(json.dumps(result, indent=1) + "\n")
    print(family, result["float64"])
