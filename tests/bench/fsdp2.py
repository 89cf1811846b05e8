"""The GPT of slow_network in PyTorch, sharded by FSDP2 (fully_shard) over gloo, gradients in bf16 on
the wire: started by srun with a Python that has PyTorch. Takes a JSON object of settings; rank 0
prints the milliseconds of each step."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Layer(torch.nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.before, self.between = torch.nn.LayerNorm(hidden), torch.nn.LayerNorm(hidden)
        self.qkv, self.out = torch.nn.Linear(hidden, 3 * hidden), torch.nn.Linear(hidden, hidden)
        self.up = torch.nn.Linear(hidden, 4 * hidden)
        self.down = torch.nn.Linear(4 * hidden, hidden)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2)
                   for t in self.qkv(self.before(x)).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))


class Gpt(torch.nn.Module):
    def __init__(self, s):
        super().__init__()
        self.tokens = torch.nn.Embedding(s["vocab"], s["hidden"])
        self.positions = torch.nn.Embedding(s["sequence"], s["hidden"])
        self.layers = torch.nn.ModuleList(Layer(s["hidden"], s["heads"]) for _ in range(s["layers"]))
        self.norm = torch.nn.LayerNorm(s["hidden"])

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.tokens.weight).float()


def main(s):
    torch.set_num_threads(s["threads"])
    ranks = int(os.environ["SLURM_NTASKS"])
    dist.init_process_group("gloo", init_method=f"tcp://{s['first']}:29511",
                            rank=int(os.environ["SLURM_PROCID"]), world_size=ranks)
    torch.manual_seed(0)
    model = Gpt(s)
    compute = {"f32": torch.float32, "bf16": torch.bfloat16}[s["compute"]]
    policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.bfloat16)
    mesh = init_device_mesh("cpu", (ranks,))
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    for _ in range(s["steps"]):
        batch = torch.randint(s["vocab"], (s["micro"], s["sequence"] + 1))
        dist.barrier()
        begin = time.monotonic()
        z = model(batch[:, :-1])
        F.cross_entropy(z.flatten(0, 1), batch[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        if dist.get_rank() == 0:
            print((time.monotonic() - begin) * 1e3, flush=True)
    dist.destroy_process_group()


main(json.loads(sys.argv[1]))
