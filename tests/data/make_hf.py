"""Makes hf/: tiny random GPT-2 and Llama models as transformers saves them, and beside each
directory NAME the parameters as Tessera names and shapes them, NAME.ours.safetensors: the oracle of
tests/unit/io/hugging_face_test.cpp.

    pip install torch transformers safetensors && python make_hf.py
"""

import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

HERE = pathlib.Path(__file__).resolve().parent / "hf"


def gpt2_ours(state, layers):
    ours = {"vocabulary.weight": state["transformer.wte.weight"],
            "positions.weight": state["transformer.wpe.weight"],
            "final_norm.weight": state["transformer.ln_f.weight"],
            "final_norm.bias": state["transformer.ln_f.bias"]}
    for i in range(layers):
        theirs, block = f"transformer.h.{i}.", f"block.{i}."
        for kind in ("weight", "bias"):
            qkv = state[f"{theirs}attn.c_attn.{kind}"].chunk(3, dim=-1)
            for name, part in zip("qkv", qkv):
                ours[f"{block}attention.{name}.{kind}"] = part
            for mine, name in (("norm1", "ln_1"), ("norm2", "ln_2"),
                               ("attention.out", "attn.c_proj"), ("mlp.up", "mlp.c_fc"),
                               ("mlp.down", "mlp.c_proj")):
                ours[f"{block}{mine}.{kind}"] = state[f"{theirs}{name}.{kind}"]
    for name in ours:  # Conv1D is (in, out)
        if name.startswith("block.") and ours[name].dim() == 2:
            ours[name] = ours[name].T
    return ours


def llama_ours(state, layers, tied):
    ours = {"vocabulary.weight": state["model.embed_tokens.weight"],
            "final_norm.weight": state["model.norm.weight"]}
    if not tied:
        ours["head.weight"] = state["lm_head.weight"]
    for i in range(layers):
        theirs, block = f"model.layers.{i}.", f"block.{i}."
        for mine, name in (("norm1", "input_layernorm"), ("norm2", "post_attention_layernorm"),
                           ("attention.q", "self_attn.q_proj"), ("attention.k", "self_attn.k_proj"),
                           ("attention.v", "self_attn.v_proj"),
                           ("attention.out", "self_attn.o_proj"),
                           ("mlp.gate", "mlp.gate_proj"), ("mlp.up", "mlp.up_proj"),
                           ("mlp.down", "mlp.down_proj")):
            ours[f"{block}{mine}.weight"] = state[f"{theirs}{name}.weight"]
    return ours


def save(name, model, to_ours, **options):
    with torch.no_grad():
        for parameter in model.parameters():  # no two alike, none at a special value
            parameter.copy_(torch.randn_like(parameter.float()))
    model.save_pretrained(HERE / name, **options)
    ours = to_ours(model.state_dict())
    save_file({k: v.detach().float().contiguous() for k, v in ours.items()},
              HERE / f"{name}.ours.safetensors")


shutil.rmtree(HERE, ignore_errors=True)
HERE.mkdir()
torch.manual_seed(5)
save("gpt2", GPT2LMHeadModel(GPT2Config(
    vocab_size=11, n_positions=6, n_embd=8, n_layer=2, n_head=2, n_inner=12, bos_token_id=0,
    eos_token_id=0)), lambda state: gpt2_ours(state, 2))
save("llama", LlamaForCausalLM(LlamaConfig(
    vocab_size=13, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=6, max_position_embeddings=16, rope_theta=50000.0,
    tie_word_embeddings=False, bos_token_id=0, eos_token_id=0)),
    lambda state: llama_ours(state, 2, tied=False))
save("llama_sharded", LlamaForCausalLM(LlamaConfig(
    vocab_size=13, hidden_size=8, intermediate_size=12, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, max_position_embeddings=16, rms_norm_eps=1e-5, tie_word_embeddings=True,
    bos_token_id=0, eos_token_id=0)).to(torch.bfloat16),
    lambda state: llama_ours(state, 2, tied=True), max_shard_size="1KB")
for extra in HERE.glob("*/generation_config.json"):
    extra.unlink()
