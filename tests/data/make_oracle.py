"""Makes oracle/: what PyTorch computes when it trains a tiny model of each of some families, in fp64
(the truth) and fp32 (how far honest single precision strays from it). For each family: config.json and
model.safetensors to start from, tokens.bin and .idx to learn, losses.json with the loss and the
gradient norm of each step. tests/run/oracle_test.py compares.

    pip install torch transformers && python make_oracle.py [FAMILY...]
"""

import json
import pathlib
import shutil
import struct
import sys

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from transformers import (Gemma2Config, Gemma2ForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig,
                          GPT2Config, GPT2LMHeadModel, GPTNeoXConfig, GPTNeoXForCausalLM,
                          LlamaConfig, LlamaForCausalLM, Olmo2Config, Olmo2ForCausalLM)

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
# Eager attention knows caps of scores; a token for padding would have no gradient.
SMALL = {"vocab_size": 151, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 3,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 40,
         "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "attn_implementation": "eager"}
GEMMA2 = Gemma2Config(**SMALL, head_dim=8, sliding_window=7, query_pre_attn_scalar=11,
                      attn_logit_softcapping=3.0, final_logit_softcapping=4.0)
GEMMA3 = Gemma3TextConfig(
    **SMALL, head_dim=8, sliding_window=6, query_pre_attn_scalar=9,
    layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}})
OLMO2 = Olmo2Config(**{**SMALL, "num_hidden_layers": 2})
NEOX = GPTNeoXConfig(**{**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"},
                        "num_hidden_layers": 2, "hidden_size": 32}, rotary_pct=0.5)
# Configuration, class, length of sequences, seed, and the deviation that is added to initial weights:
# away from the special values of biases and norms, and so that caps, windows and norms matter.
FAMILIES = {"gpt2": (GPT2, GPT2LMHeadModel, 24, 7, 0.03),
            "llama": (LLAMA, LlamaForCausalLM, 17, 8, 0.03),
            "gemma2": (GEMMA2, Gemma2ForCausalLM, 18, 9, 0.3),
            "gemma3": (GEMMA3, Gemma3ForCausalLM, 18, 10, 0.3),
            "olmo2": (OLMO2, Olmo2ForCausalLM, 18, 11, 0.3),
            "gpt_neox": (NEOX, GPTNeoXForCausalLM, 18, 12, 0.2)}


class AllInDouble(TorchFunctionMode):
    """transformers computes norms, softmax and angles in f32 whatever the model's type: here in f64."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        def wider(x):
            return torch.float64 if x is torch.float32 else x
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        return function(*map(wider, args), **{k: wider(v) for k, v in (kwargs or {}).items()})


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


def losses(kind, directory, tokens, length, batch):
    def start():
        return kind.from_pretrained(directory, dtype=torch.float32,
                                    attn_implementation=FAMILIES[directory.name][0]._attn_implementation)
    with AllInDouble():
        double = train(start().double(), tokens, length, batch)
    return {"float64": double, "float32": train(start(), tokens, length, batch)}


for family in sys.argv[1:] or FAMILIES:
    config, kind, length, seed, deviation = FAMILIES[family]
    directory = HERE / family
    shutil.rmtree(directory, ignore_errors=True)
    torch.manual_seed(seed)
    model = kind(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * deviation)
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    tokens = make_tokens(directory / "tokens", config.vocab_size, seed)
    result = {"recipe": RECIPE, "sequence": length, "steps": STEPS, "batches": {}}
    for batch in BATCHES:
        result["batches"][str(batch)] = losses(kind, directory, tokens, length, batch)
    (directory / "losses.json").write_text(json.dumps(result, indent=1) + "\n")
    print(family, sum(p.numel() for p in model.parameters()), "parameters")
