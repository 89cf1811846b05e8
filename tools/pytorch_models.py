"""GPT-2 and Llama in PyTorch, trained as Tessera trains them; tools/compare_pytorch and
tools/gpu_report run it in an environment that has PyTorch. Takes a JSON object of settings; writes
GPT-2's initial weights as a Hugging Face directory (init), trains from them and writes
metrics.jsonl (train), or trains either model on random tokens as fast as PyTorch can (speed)."""

import json
import pathlib
import struct
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F


def write_hugging_face(directory, s, tensors):
    """config.json and model.safetensors: a JSON header behind its length, then the bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": s["vocab"],
              "n_positions": s["sequence"], "n_embd": s["hidden"], "n_layer": s["layers"],
              "n_head": s["heads"], "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
              "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0, "tie_word_embeddings": True}
    (directory / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, t in tensors.items():
        end = at + 4 * t.numel()
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(directory / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for t in tensors.values():
            f.write(t.numpy().tobytes())


def initial_weights(s):
    """Radford et al. 2019: normal(0.02), residual projections divided by sqrt(2 layers)."""
    torch.manual_seed(s["seed"])
    c, std, residual = s["hidden"], 0.02, 0.02 / (2 * s["layers"]) ** 0.5
    tensors = {"wte.weight": torch.randn(s["vocab"], c) * std,
               "wpe.weight": torch.randn(s["sequence"], c) * std}
    for layer in range(s["layers"]):
        h = f"h.{layer}."
        for norm in ("ln_1", "ln_2"):
            tensors[f"{h}{norm}.weight"], tensors[f"{h}{norm}.bias"] = torch.ones(c), torch.zeros(c)
        matrices = (("attn.c_attn", c, 3 * c, std), ("attn.c_proj", c, c, residual),
                    ("mlp.c_fc", c, 4 * c, std), ("mlp.c_proj", 4 * c, c, residual))
        for name, rows, columns, scale in matrices:
            tensors[f"{h}{name}.weight"] = torch.randn(rows, columns) * scale
            tensors[f"{h}{name}.bias"] = torch.zeros(columns)
    tensors["ln_f.weight"], tensors["ln_f.bias"] = torch.ones(c), torch.zeros(c)
    return {f"transformer.{k}": v for k, v in tensors.items()}


def logits(w, tokens, s):
    """(B, T) -> (B, T, V); w maps Hugging Face's names to tensors, matrices are (in, out)."""
    batch, length = tokens.shape
    linear = lambda x, name: x @ w[f"{name}.weight"] + w[f"{name}.bias"]
    norm = lambda x, name: F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])
    x = w["wte.weight"][tokens] + w["wpe.weight"][:length]
    for layer in range(s["layers"]):
        h = f"h.{layer}."
        heads = [t.view(batch, length, s["heads"], -1).transpose(1, 2)
                 for t in linear(norm(x, h + "ln_1"), h + "attn.c_attn").chunk(3, dim=-1)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + linear(mixed.transpose(1, 2).reshape(x.shape), h + "attn.c_proj")
        inner = F.gelu(linear(norm(x, h + "ln_2"), h + "mlp.c_fc"), approximate="tanh")
        x = x + linear(inner, h + "mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def train(s, tensors, out):
    torch.set_num_threads(s["threads"])
    w = {k.removeprefix("transformer."): t.requires_grad_() for k, t in tensors.items()}
    matrices, vectors = ([t for t in w.values() if (t.dim() >= 2) == wide] for wide in (True, False))
    groups = [{"params": matrices, "weight_decay": s["weight_decay"]},
              {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=s["lr"], betas=(0.9, 0.95), eps=1e-8, fused=True)
    tokens = np.memmap(f"{s['data']}.bin", np.uint16, "r")
    length, sequences = s["sequence"], (len(tokens) - 1) // s["sequence"]
    with open(out, "w") as metrics:
        for step in range(1, s["steps"] + 1):
            begin = time.monotonic()
            lr = s["lr"] * min(1.0, step / s["warmup"])
            for group in optimizer.param_groups:
                group["lr"] = lr
            first = (step - 1) * s["global"]
            rows = [(first + i) % sequences * length for i in range(s["global"])]
            batch = np.stack([tokens[r : r + length + 1] for r in rows]).astype(np.int64)
            optimizer.zero_grad()
            loss = 0.0
            for part in torch.from_numpy(batch).split(s["micro"]):
                with torch.autocast("cpu", torch.bfloat16, enabled=s["compute"] == "bf16"):
                    z = logits(w, part[:, :-1], s)
                error = F.cross_entropy(z.float().flatten(0, 1), part[:, 1:].flatten())
                error = error * len(part) / s["global"]
                error.backward()
                loss += error.item()
            grad_norm = torch.nn.utils.clip_grad_norm_(w.values(), s["clip_norm"]).item()
            optimizer.step()
            seconds = time.monotonic() - begin
            event = {"event": "step", "step": step, "loss": loss, "grad_norm": grad_norm, "lr": lr,
                     "tokens_per_s": s["global"] * length / seconds}
            metrics.write(json.dumps(event) + "\n")
            if step % 10 == 0:
                print(f"step {step}/{s['steps']} | loss {loss:.6f} | {seconds * 1e3:.1f} ms",
                      flush=True)


def gpt2_block(x, w, heads, _):
    """One layer; w are its tensors in the order of initial_weights()."""
    n1, b1, n2, b2, w_qkv, b_qkv, w_out, b_out, w_up, b_up, w_down, b_down = w
    batch, length, columns = x.shape
    h = F.linear(F.layer_norm(x, (columns,), n1, b1), w_qkv.T, b_qkv)
    q, k, v = (t.view(batch, length, heads, -1).transpose(1, 2) for t in h.chunk(3, dim=-1))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + F.linear(mixed.transpose(1, 2).reshape(x.shape), w_out.T, b_out)
    h = F.linear(F.layer_norm(x, (columns,), n2, b2), w_up.T, b_up)
    return x + F.linear(F.gelu(h, approximate="tanh"), w_down.T, b_down)


def llama_block(x, w, heads, turns):
    """One layer; turns are cosines and sines of the positions (Su et al. 2021), halves of a head
    being pairs."""
    n1, n2, w_q, w_k, w_v, w_out, w_gate, w_up, w_down = w
    batch, length, columns = x.shape
    cosine, sine = turns

    def split(h, matrix):
        return F.linear(h, matrix).view(batch, length, -1, columns // heads).transpose(1, 2)

    def turned(t):
        a, b = t.float().chunk(2, dim=-1)
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1).to(t.dtype)

    h = F.rms_norm(x, (columns,), n1, 1e-5)
    mixed = F.scaled_dot_product_attention(turned(split(h, w_q)), turned(split(h, w_k)),
                                           split(h, w_v), is_causal=True, enable_gqa=True)
    x = x + F.linear(mixed.transpose(1, 2).reshape(x.shape), w_out)
    h = F.rms_norm(x, (columns,), n2, 1e-5)
    return x + F.linear(F.silu(F.linear(h, w_gate)) * F.linear(h, w_up), w_down)


def head_loss(x, norm, bias, table, targets):
    columns = x.shape[-1:]
    h = F.rms_norm(x, columns, norm, 1e-5) if bias is None else F.layer_norm(x, columns, norm, bias)
    return F.cross_entropy(F.linear(h, table).float().flatten(0, 1), targets.flatten())


def gpt2_on(device, s):
    """(embedding(tokens), block, layers, what else a block takes, head's norm, bias and matrix)"""
    table, positions, *layers, norm, bias = (
        t.to(device).requires_grad_() for t in initial_weights(s).values())
    layers = [layers[i : i + 12] for i in range(0, len(layers), 12)]
    return (lambda tokens: F.embedding(tokens, table) + positions, gpt2_block, layers, None,
            (norm, bias, table), [table, positions])


def llama_on(device, s):
    """The same of Llama (Touvron et al. 2023), with a matrix of its own in the head."""
    c, f, kv = s["hidden"], s["ffn"], s["hidden"] // s["heads"] * s["kv_heads"]

    def matrix(rows, columns):
        return (torch.randn(rows, columns, device=device) * 0.02).requires_grad_()

    def ones():
        return torch.ones(c, device=device).requires_grad_()

    shapes = ((c, c), (kv, c), (kv, c), (c, c), (f, c), (f, c), (c, f))
    layers = [[ones(), ones(), *(matrix(*shape) for shape in shapes)] for _ in range(s["layers"])]
    table, norm, last = matrix(s["vocab"], c), ones(), matrix(s["vocab"], c)
    half = c // s["heads"] // 2
    angles = torch.outer(torch.arange(s["sequence"], device=device),
                         5e5 ** (-torch.arange(half, device=device) / half))
    return (lambda tokens: F.embedding(tokens, table), llama_block, layers,
            (angles.cos(), angles.sin()), (norm, None, last), [table])


def speed(s, out):
    """f32 weights and bf16 autocast, fused AdamW; block and head are compiled, so that compiling
    takes no longer for many layers."""
    device = torch.device(s["device"])
    torch.manual_seed(s["seed"])
    torch.set_float32_matmul_precision("high")
    embed, block, layers, beside, head, tables = {"gpt2": gpt2_on, "llama": llama_on}[s["family"]](
        device, s)
    every = list({id(t): t for t in (*tables, *(t for layer in layers for t in layer), *head)
                  if t is not None}.values())
    optimizer = torch.optim.AdamW(every, lr=s["lr"], betas=(0.9, 0.95), eps=1e-8,
                                  weight_decay=s["weight_decay"], fused=True)
    fast_block, fast_head = torch.compile(block), torch.compile(head_loss)
    shape = (s["micro"], s["sequence"] + 1)
    parts = s["global"] // s["micro"]
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    with open(out, "w", buffering=1) as metrics:
        for step in range(1, s["steps"] + 1):
            begin = time.monotonic()
            loss = 0.0
            for _ in range(parts):
                tokens = torch.randint(s["vocab"], shape, device=device)
                with torch.autocast(device.type, torch.bfloat16):
                    x = embed(tokens[:, :-1])
                    for w in layers:
                        x = fast_block(x, w, s["heads"], beside)
                    part = fast_head(x, *head, tokens[:, 1:]) / parts
                part.backward()
                loss += part.detach()
            torch.nn.utils.clip_grad_norm_(every, s["clip_norm"])
            optimizer.step()
            optimizer.zero_grad()
            wait()
            seconds = time.monotonic() - begin
            metrics.write(json.dumps({
                "event": "step", "step": step, "loss": float(loss), "step_ms": seconds * 1e3,
                "tokens_per_s": s["global"] * s["sequence"] / seconds}) + "\n")


def main():
    verb, settings, out = sys.argv[1:]
    s = json.loads(settings)
    if verb == "init":
        write_hugging_face(pathlib.Path(out), s, initial_weights(s))
    elif verb == "speed":
        speed(s, out)
    else:
        train(s, initial_weights(s), out)


main()
