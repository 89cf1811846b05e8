"""Makes oracle/*/documents.json: what PyTorch computes when it trains the models of make_oracle.py on
the same tokens, but with their documents kept apart and some targets left out, in fp64 and fp32. A
token is a target where `counts` says so and the token before is of its document; losses are means
over the targets of the whole batch. tests/run/documents_test.py compares.

    pip install torch transformers && python make_documents.py
"""

import json
import pathlib
import struct

import numpy as np
import torch
from transformers import GPT2LMHeadModel, LlamaForCausalLM

HERE = pathlib.Path(__file__).resolve().parent / "oracle"
KINDS = {"gpt2": GPT2LMHeadModel, "llama": LlamaForCausalLM}
STEPS = 6


def counts(place):
    """Whether the token at this place of the corpus is a target: in stretches of 40, of which some
    have all, some a fifth, some one and some none."""
    of_stretch = (place // 40) % 4
    return (of_stretch == 0 or (of_stretch == 1 and place % 5 == 0)
            or (of_stretch == 2 and place % 40 == 7))


def read(directory):
    tokens = np.fromfile(directory / "tokens.bin", np.uint16).astype(np.int64)
    index = (directory / "tokens.idx").read_bytes()
    (sequences,) = struct.unpack_from("<Q", index, 18)
    lengths = np.frombuffer(index, "<i4", sequences, 34)
    return tokens, np.repeat(np.arange(sequences), lengths)


def sample(tokens, documents, first, length):
    """Tokens, targets (-100: none), which tokens see which, and positions of a sequence."""
    place = np.arange(first, first + length)
    own = documents[place]
    targets = [int(tokens[p + 1]) if documents[p + 1] == documents[p] and counts(p + 1) else -100
               for p in place]
    sees = (own[:, None] == own[None, :]) & (place[:, None] >= place[None, :])
    begins = np.array([place[own == d][0] for d in own])
    return tokens[place], targets, sees, place - begins


def train(model, tokens, documents, recipe, length, batch):
    parameters = list(model.parameters())
    matrices, vectors = ([p for p in parameters if (p.dim() >= 2) == w] for w in (True, False))
    groups = [{"params": matrices, "weight_decay": recipe["weight_decay"]},
              {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=recipe["lr"], betas=recipe["betas"], eps=recipe["eps"])
    sequences = (len(tokens) - 1) // length
    steps = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = recipe["lr"] * min(1.0, (step + 1) / recipe["warmup_steps"])
        rows = [sample(tokens, documents, (step * batch + i) % sequences * length, length)
                for i in range(batch)]
        inputs, targets, sees, positions = (torch.from_numpy(np.stack(x)) for x in zip(*rows))
        dtype = parameters[0].dtype
        mask = torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)
        optimizer.zero_grad()
        logits = model(inputs, attention_mask=mask[:, None], position_ids=positions).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, recipe["clip_norm"])
        optimizer.step()
        steps.append([loss.item(), norm.item(), int((targets >= 0).sum())])
    return steps


for family, kind in KINDS.items():
    directory = HERE / family
    truth = json.loads((directory / "losses.json").read_text())
    tokens, documents = read(directory)
    result = {name: train(kind.from_pretrained(directory, dtype=torch.float32).to(dtype), tokens,
                          documents, truth["recipe"], truth["sequence"], 8)
              for name, dtype in (("float64", torch.float64), ("float32", torch.float32))}
    (directory / "documents.json").write_text(json.dumps(result, indent=1) + "\n")
    print(family, result["float64"])
