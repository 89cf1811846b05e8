"""Makes oracle/: what PyTorch computes when it trains a tiny GPT-2 and a tiny Llama, in fp64 (the
truth) and fp32 (how far honest single precision strays from it). For each family: config.json and
model.safetensors to start from, tokens.bin and .idx to learn, losses.json with the loss and the
gradient norm of each step. tests/run/oracle_test.py compares.

    pip install torch transformers && python make_oracle.py
"""

import json
import pathlib
import shutil
import struct

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).resolve().parent / "oracle"
STEPS = 10
RECIPE = {"lr": 2e-3, "betas": [0.9, 0.98], "eps": 1e-8, "weight_decay": 0.05, "clip_norm": 0.7,
          "warmup_steps": 3}
BATCHES = (8, 12)  # sequences a step; 12 divides over 3 ranks
GPT2 = GPT2Config(vocab_size=211, n_positions=24, n_embd=30, n_layer=3, n_head=5, resid_pdrop=0,
                  embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
LLAMA = LlamaConfig(vocab_size=197, hidden_size=48, intermediate_size=76, num_hidden_layers=2,
                    num_attention_heads=6, num_key_value_heads=3, max_position_embeddings=40,
                    rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)
FAMILIES = {"gpt2": (GPT2, GPT2LMHeadModel, 24, 7), "llama": (LLAMA, LlamaForCausalLM, 17, 8)}


def make_tokens(prefix, vocab, seed, count=2500):
    """A second-order chain with noise, cut into documents; Megatron's pair of files."""
    rng = np.random.default_rng(seed)
    follows = rng.integers(0, vocab, (vocab, 3))
    tokens = [0]
    while len(tokens) < count:
        noise = rng.random() < 0.15
        tokens.append(int(rng.integers(vocab) if noise else follows[tokens[-1], rng.integers(3)]))
    tokens = np.array(tokens, np.uint16)
    cuts = np.unique(np.concatenate([[0, count], rng.integers(1, count, 11)]))
    lengths = np.diff(cuts)
    tokens.tofile(f"{prefix}.bin")
    with open(f"{prefix}.idx", "wb") as f:
        f.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1))
        lengths.astype("<i4").tofile(f)
        (cuts[:-1] * 2).astype("<i8").tofile(f)
        np.arange(len(lengths) + 1, dtype="<i8").tofile(f)
    return torch.from_numpy(tokens.astype(np.int64))


def train(model, tokens, length, batch):
    parameters = list(model.parameters())
    matrices, vectors = ([p for p in parameters if (p.dim() >= 2) == w] for w in (True, False))
    groups = [{"params": matrices, "weight_decay": RECIPE["weight_decay"]},
              {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=RECIPE["lr"], betas=RECIPE["betas"], eps=RECIPE["eps"])
    sequences = (len(tokens) - 1) // length
    steps = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = RECIPE["lr"] * min(1.0, (step + 1) / RECIPE["warmup_steps"])
        at = [(step * batch + i) % sequences * length for i in range(batch)]
        inputs = torch.stack([tokens[a : a + length] for a in at])
        targets = torch.stack([tokens[a + 1 : a + length + 1] for a in at])
        optimizer.zero_grad()
        logits = model(inputs).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, RECIPE["clip_norm"])
        optimizer.step()
        steps.append([loss.item(), norm.item()])
    return steps


for family, (config, kind, length, seed) in FAMILIES.items():
    directory = HERE / family
    shutil.rmtree(directory, ignore_errors=True)
    torch.manual_seed(seed)
    model = kind(config)
    with torch.no_grad():
        for p in model.parameters():  # away from the special values of biases and norms
            p.add_(torch.randn_like(p) * 0.03)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    tokens = make_tokens(directory / "tokens", config.vocab_size, seed)
    result = {"recipe": RECIPE, "sequence": length, "steps": STEPS, "batches": {}}
    for batch in BATCHES:
        result["batches"][str(batch)] = {
            name: train(kind.from_pretrained(directory, dtype=torch.float32).to(dtype), tokens,
                        length, batch)
            for name, dtype in (("float64", torch.float64), ("float32", torch.float32))}
    (directory / "losses.json").write_text(json.dumps(result, indent=1) + "\n")
    print(family, sum(p.numel() for p in model.parameters()), "parameters")
