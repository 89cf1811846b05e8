"""Makes hf/: tiny random models of each family as transformers saves them, and beside each directory
NAME the parameters as Tessera names and shapes them, NAME.ours.safetensors: the oracle of
tests/unit/io/hugging_face_test.cpp. Beside the newer ones, for tests/unit/train/hf_logits_test.cpp,
NAME.logits.safetensors: tokens, the logits that transformers computes of them in fp64, and how far
these move, for each unit of relative change, when all weights change by random signs of a small
relative amount. Where frequencies of rotary positions follow the length seen so far, also the logits
after each part where tokens come in parts, as in generation: one by one, and cut as the test cuts.

    pip install torch transformers safetensors && python make_hf.py
"""

import pathlib
import shutil

import torch
from safetensors.torch import save_file
from transformers import (BertConfig, BertForMaskedLM, BertForSequenceClassification,
                          BertForTokenClassification, DeepseekV2Config, DeepseekV2ForCausalLM,
                          DeepseekV3Config, DeepseekV3ForCausalLM, Gemma2Config, Gemma2ForCausalLM,
                          Gemma3ForCausalLM, Gemma3TextConfig, Glm4MoeConfig, Glm4MoeForCausalLM,
                          GPT2Config, GPT2LMHeadModel,
                          GPTJConfig, GPTJForCausalLM, GPTNeoXConfig, GPTNeoXForCausalLM,
                          GPTNeoXForSequenceClassification, LlamaConfig, LlamaForCausalLM,
                          LlamaForSequenceClassification, MistralConfig, MistralForCausalLM,
                          MixtralConfig, MixtralForCausalLM, Olmo2Config, Olmo2ForCausalLM,
                          Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, RobertaConfig,
                          RobertaForMaskedLM,
                          RobertaForSequenceClassification, RobertaForTokenClassification)

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


NORMS_BEFORE = (("norm1", "input_layernorm"), ("norm2", "post_attention_layernorm"))
NORMS_AFTER = (("norm1_out", "post_attention_layernorm"),
               ("norm2_out", "post_feedforward_layernorm"))
NORMS_BOTH = (("norm1", "input_layernorm"), ("norm2", "pre_feedforward_layernorm"), *NORMS_AFTER)
QK_NORMS = (("attention.q_norm", "self_attn.q_norm"), ("attention.k_norm", "self_attn.k_norm"))
QKV = (("attention.q", "self_attn.q_proj"), ("attention.k", "self_attn.k_proj"),
       ("attention.v", "self_attn.v_proj"))
GATE_UP = (("mlp.gate", "mlp.gate_proj"), ("mlp.up", "mlp.up_proj"))


DOWN = ("mlp.down", "mlp.down_proj")


OUT = ("attention.out", "self_attn.o_proj")


def llama_ours(state, layers, tied, modules=(*NORMS_BEFORE, *QKV, *GATE_UP), biases=(), norm=0,
               dense=None):
    """`norm` is what the family adds to the weights of its norms. Layers that are not `dense` have no
    feed-forward layer."""
    ours = {"vocabulary.weight": state["model.embed_tokens.weight"],
            "final_norm.weight": norm + state["model.norm.weight"]}
    if not tied:
        ours["head.weight"] = state["lm_head.weight"]
    for i in range(layers):
        theirs, block = f"model.layers.{i}.", f"block.{i}."
        for mine, name in (*modules, OUT, DOWN):
            if dense is not None and i not in dense and mine.startswith("mlp."):
                continue
            weight = state[f"{theirs}{name}.weight"]
            ours[f"{block}{mine}.weight"] = norm + weight if "norm" in name else weight
        for mine, name in biases:
            ours[f"{block}{mine}.bias"] = state[f"{theirs}{name}.bias"]
    return ours


def experts_ours(state, layers, modules, dense=()):
    """Layers that are not `dense` have experts: a module holds the matrices of all, as a file does
    not."""
    ours = llama_ours(state, layers, False, modules, dense=dense)
    for i in set(range(layers)) - set(dense):
        theirs, block = f"model.layers.{i}.mlp.", f"block.{i}.mlp."
        ours[f"{block}router.weight"] = state[f"{theirs}gate.weight"]
        for j, both in enumerate(state[f"{theirs}experts.gate_up_proj"]):
            for name, part in zip(("gate", "up"), both.chunk(2)):
                ours[f"{block}expert.{j}.{name}.weight"] = part
        for j, down in enumerate(state[f"{theirs}experts.down_proj"]):
            ours[f"{block}expert.{j}.down.weight"] = down
    return ours


def glm_ours(state, layers, modules, biases=()):
    """Its first layer has no experts; one expert of the others is of all tokens."""
    ours = experts_ours(state, layers, modules, dense=[0])
    for i in range(layers):
        theirs, block = f"model.layers.{i}.", f"block.{i}."
        for name in biases:
            ours[f"{block}attention.{name}.bias"] = state[f"{theirs}self_attn.{name}_proj.bias"]
        if i == 0:
            continue
        if f"{theirs}mlp.gate.e_score_correction_bias" in state:
            ours[f"{block}mlp.router.bias"] = state[f"{theirs}mlp.gate.e_score_correction_bias"]
        for name in ("gate", "up", "down"):
            ours[f"{block}mlp.shared.{name}.weight"] = state[
                f"{theirs}mlp.shared_experts.{name}_proj.weight"]
    return ours


def deepseek_ours(state, layers, config):
    """Keys and values are made of latents, and queries where it says so."""
    modules = [*NORMS_BEFORE, *GATE_UP, ("attention.kv_latent_norm", "self_attn.kv_a_layernorm")]
    if config.q_lora_rank is None:
        modules.append(("attention.q", "self_attn.q_proj"))
    else:
        modules += [("attention.q_latent", "self_attn.q_a_proj"),
                    ("attention.q_latent_norm", "self_attn.q_a_layernorm"),
                    ("attention.q", "self_attn.q_b_proj")]
    ours = glm_ours(state, layers, tuple(modules))
    for i in range(layers):
        theirs, attention = f"model.layers.{i}.self_attn.", f"block.{i}.attention."
        latent, rope = state[f"{theirs}kv_a_proj_with_mqa.weight"].split(
            [config.kv_lora_rank, config.qk_rope_head_dim])
        ours[f"{attention}kv_latent.weight"], ours[f"{attention}k_rope.weight"] = latent, rope
        heads = state[f"{theirs}kv_b_proj.weight"].unflatten(0, (config.num_attention_heads, -1))
        for name, part in zip("kv", heads.split([config.qk_nope_head_dim, config.v_head_dim], 1)):
            ours[f"{attention}{name}.weight"] = part.flatten(0, 1)
    return ours


def phi3_ours(state, layers, q, kv):
    ours = llama_ours(state, layers, False, NORMS_BEFORE)
    for i in range(layers):
        theirs, block = f"model.layers.{i}.", f"block.{i}."
        parts = state[f"{theirs}self_attn.qkv_proj.weight"].split([q, kv, kv])
        for name, part in zip("qkv", parts):
            ours[f"{block}attention.{name}.weight"] = part
        parts = state[f"{theirs}mlp.gate_up_proj.weight"].chunk(2)
        for name, part in zip(("gate", "up"), parts):
            ours[f"{block}mlp.{name}.weight"] = part
    return ours


def neox_ours(state, layers, heads):
    ours = {"vocabulary.weight": state["gpt_neox.embed_in.weight"],
            "head.weight": state["lm_head.weight"]}
    for kind in ("weight", "bias"):
        ours[f"final_norm.{kind}"] = state[f"gpt_neox.final_layer_norm.{kind}"]
        for i in range(layers):
            theirs, block = f"gpt_neox.layers.{i}.", f"block.{i}."
            for mine, name in (("norm1", "input_layernorm"), ("norm2", "post_attention_layernorm"),
                               ("attention.out", "attention.dense"),
                               ("mlp.up", "mlp.dense_h_to_4h"), ("mlp.down", "mlp.dense_4h_to_h")):
                ours[f"{block}{mine}.{kind}"] = state[f"{theirs}{name}.{kind}"]
            qkv = state[f"{theirs}attention.query_key_value.{kind}"]
            for j, name in enumerate("qkv"):  # of each head in turn
                part = qkv.unflatten(0, (heads, 3, -1))[:, j].flatten(0, 1)
                ours[f"{block}attention.{name}.{kind}"] = part
    return ours


def gptj_ours(state, layers):
    ours = {"vocabulary.weight": state["transformer.wte.weight"],
            "head.weight": state["lm_head.weight"], "head_bias.bias": state["lm_head.bias"]}
    for kind in ("weight", "bias"):
        ours[f"final_norm.{kind}"] = state[f"transformer.ln_f.{kind}"]
        for i in range(layers):
            for mine, name in (("norm1", "ln_1"), ("mlp.up", "mlp.fc_in"), ("mlp.down", "mlp.fc_out")):
                ours[f"block.{i}.{mine}.{kind}"] = state[f"transformer.h.{i}.{name}.{kind}"]
    for i in range(layers):
        for mine in ("q", "k", "v", "out"):
            ours[f"block.{i}.attention.{mine}.weight"] = (
                state[f"transformer.h.{i}.attn.{mine}_proj.weight"])
    return ours


def bert_ours(state, layers, prefix, unused, head, bias, output=None):
    """`head`: the names of the dense layer and its norm, where there is one."""
    at = f"{prefix}embeddings."
    ours = {"vocabulary.weight": state[f"{at}word_embeddings.weight"],
            "positions.weight": (state[f"{at}position_embeddings.weight"][unused:] +
                                 state[f"{at}token_type_embeddings.weight"][0]),
            "head_bias.bias": state[bias]}
    if output is not None:
        ours["head.weight"] = state[output]
    for kind in ("weight", "bias"):
        ours[f"embedding_norm.{kind}"] = state[f"{at}LayerNorm.{kind}"]
        for mine, name in zip(("head_dense", "head_dense.norm"), head):
            ours[f"{mine}.{kind}"] = state[f"{name}.{kind}"]
        for i in range(layers):
            for mine, name in (*((f"attention.{x[0]}", f"attention.self.{x}")
                                 for x in ("query", "key", "value")),
                               ("attention.out", "attention.output.dense"),
                               ("norm1_out", "attention.output.LayerNorm"),
                               ("mlp.up", "intermediate.dense"), ("mlp.down", "output.dense"),
                               ("norm2_out", "output.LayerNorm")):
                ours[f"block.{i}.{mine}.{kind}"] = state[f"{prefix}encoder.layer.{i}.{name}.{kind}"]
    return ours


def randomise(model, deviation):
    with torch.no_grad():
        for parameter in model.parameters():  # no two alike, none at a special value
            parameter.copy_(deviation * torch.randn_like(parameter.float()))


def save(name, model, to_ours, **options):
    randomise(model, 1)
    store(name, model, to_ours, **options)


def store(name, model, to_ours, **options):
    model.save_pretrained(HERE / name, **options)
    ours = to_ours(model.state_dict())
    save_file({k: v.detach().float().contiguous() for k, v in ours.items()},
              HERE / f"{name}.ours.safetensors")


def logits_of(model, tokens):
    with torch.no_grad():
        return model(tokens[None]).logits[0].clone()


def logits_in_parts(model, tokens, cuts):
    """After each part, with a cache of the keys and values of those before."""
    cache, rows, at = None, [], 0
    with torch.no_grad():
        for count in cuts:
            out = model(tokens[None, at : at + count], past_key_values=cache, use_cache=True)
            cache, at = out.past_key_values, at + count
            rows.append(out.logits[0, -1].clone())
    return torch.stack(rows)


def sensitivity(model, tokens, logits, logits_of=logits_of):
    """How far logits move for each unit by which all weights change relatively."""
    step, most = 2.0 ** -20, 0.0
    weights = [(p, p.detach().clone()) for p in model.parameters()]
    for _ in range(16):
        with torch.no_grad():
            for parameter, before in weights:
                parameter.copy_(before * (1 + step * torch.randn_like(before).sign()))
        most = max(most, (logits_of(model, tokens) - logits).abs().max().item() / step)
    with torch.no_grad():
        for parameter, before in weights:
            parameter.copy_(before)
    return torch.tensor([most])


def check_choices(model, tokens):
    """That no rounding in f32 changes which experts a token goes to. A logit of a router, of 1 or so,
    is off by some 2^-20 there: the last that is chosen is ahead of the first that is not by far
    more."""
    if hasattr(model.config, "n_group"):
        return check_biased_choices(model, tokens)
    with torch.no_grad():
        routers = model(tokens[None], output_router_logits=True).router_logits
    chosen = model.config.num_experts_per_tok
    for logits in routers:
        best = logits.sort(descending=True).values
        margin = (best[:, chosen - 1] - best[:, chosen]).min().item()
        print("  a router's least margin", margin)
        assert margin > 2 ** -8, "take another seed"


def check_biased_choices(model, tokens):
    """The same of scores with a bias, and of groups, which are compared by their two largest;
    of DeepSeek-V2's without a bias, and by the largest."""
    keys, c = [], model.config
    of_v2 = c.model_type == "deepseek_v2"

    def take(gate, _, out):
        keys.append(out[0].softmax(-1) if of_v2 else
                    out[0].sigmoid() + gate.e_score_correction_bias)

    groups, open_groups = c.n_group or 1, c.topk_group or 1
    hooks = [layer.mlp.gate.register_forward_hook(take)
             for layer in model.model.layers if hasattr(layer.mlp, "gate")]
    with torch.no_grad():
        model(tokens[None])
    for hook in hooks:
        hook.remove()
    for of_layer in keys:
        of_groups = of_layer.unflatten(-1, (groups, -1))
        best = of_groups.topk(1 if of_v2 else 2, -1).values.sum(-1).sort(descending=True)
        may = torch.zeros_like(best.values, dtype=torch.bool).scatter(
            -1, best.indices[:, :open_groups], True)
        ordered = of_groups.masked_fill(~may[..., None], -torch.inf).flatten(-2).sort(
            descending=True).values
        margins = [ordered[:, c.num_experts_per_tok - 1] - ordered[:, c.num_experts_per_tok]]
        if open_groups < groups:
            margins.append(best.values[:, open_groups - 1] - best.values[:, open_groups])
        margin = min(m.min().item() for m in margins)
        print("  a router's least margin", margin)
        assert margin > 2 ** -8, "take another seed"


def save_with_logits(name, model, to_ours, length=13, least=0, parts={}):
    """Weights of 1/2 and norms about 1, so that no layer drowns the others. Tokens are `least` or more."""
    randomise(model, 0.5)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            offset = "gemma" not in name and "norm" in key.lower() and key.endswith("weight")
            parameter.add_(1.0 if offset else 0.0)
    store(name, model, to_ours)
    tokens = torch.randint(least, model.config.vocab_size, (length,))
    exact = model.double().eval()
    logits = logits_of(exact, tokens)
    if hasattr(model.config, "num_experts_per_tok"):
        check_choices(exact, tokens)
    moved, of_parts = sensitivity(exact, tokens, logits), {}
    for kind, cuts in parts.items():
        def run(model, tokens, cuts=cuts):
            return logits_in_parts(model, tokens, cuts)
        of_parts[kind] = run(exact, tokens)
        moved = torch.maximum(moved, sensitivity(exact, tokens, of_parts[kind], run))
    save_file({"tokens": tokens.float(), "logits": logits.float().contiguous(),
               "sensitivity": moved.float(), **{k: v.float() for k, v in of_parts.items()}},
              HERE / f"{name}.logits.safetensors")
    print(name, "logits up to", logits.abs().max().item())


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

# What all of the following have, but where they say otherwise. Eager attention is the one that knows
# caps of scores.
SMALL = {"vocab_size": 13, "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16,
         "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "attn_implementation": "eager"}
HEADS = {**SMALL, "head_dim": 6}
save_with_logits("llama3", LlamaForCausalLM(LlamaConfig(
    **HEADS, rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0,
                              "low_freq_factor": 0.5, "high_freq_factor": 2.0,
                              "original_max_position_embeddings": 8})),
    lambda state: llama_ours(state, 2, tied=False))
save_with_logits("mistral", MistralForCausalLM(MistralConfig(**HEADS, sliding_window=5)),
                 lambda state: llama_ours(state, 2, tied=False))
save_with_logits("qwen2", Qwen2ForCausalLM(Qwen2Config(**SMALL)),
                 lambda state: llama_ours(state, 2, tied=False, biases=QKV))
save_with_logits("qwen3", Qwen3ForCausalLM(Qwen3Config(**HEADS, tie_word_embeddings=True)),
                 lambda state: llama_ours(state, 2, True,
                                          (*NORMS_BEFORE, *QKV, *QK_NORMS, *GATE_UP)))
save_with_logits("phi3", Phi3ForCausalLM(Phi3Config(**{**SMALL, "hidden_size": 24},
                                                    partial_rotary_factor=0.67)),
                 lambda state: phi3_ours(state, 2, 24, 12))
save_with_logits("olmo2", Olmo2ForCausalLM(Olmo2Config(**SMALL)),
                 lambda state: llama_ours(state, 2, False,
                                          (*QKV, *QK_NORMS, *GATE_UP, *NORMS_AFTER)))
NEOX = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
save_with_logits("gpt_neox", GPTNeoXForCausalLM(GPTNeoXConfig(
    **{**NEOX, "hidden_size": 16, "num_attention_heads": 2}, rotary_pct=0.5)),
    lambda state: neox_ours(state, 2, 2))
save_with_logits("gemma2", Gemma2ForCausalLM(Gemma2Config(
    **{**HEADS, "num_hidden_layers": 3}, sliding_window=5, query_pre_attn_scalar=9,
    attn_logit_softcapping=2.0, final_logit_softcapping=3.0)),
    lambda state: llama_ours(state, 3, True, (*NORMS_BOTH, *QKV, *GATE_UP), norm=1))
save_with_logits("gemma3", Gemma3ForCausalLM(Gemma3TextConfig(
    **{**HEADS, "num_hidden_layers": 3}, sliding_window=5, sliding_window_pattern=2,
    query_pre_attn_scalar=9, rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}})),
    lambda state: llama_ours(state, 3, True, (*NORMS_BOTH, *QKV, *QK_NORMS, *GATE_UP), norm=1))
torch.manual_seed(6)
save_with_logits("llama_yarn", LlamaForCausalLM(LlamaConfig(
    **HEADS, rope_parameters={"rope_type": "yarn", "rope_theta": 10.0, "factor": 4.0,
                              "beta_fast": 4.0, "beta_slow": 0.5,
                              "original_max_position_embeddings": 8})),
    lambda state: llama_ours(state, 2, tied=False))
save_with_logits("gpt_neox_sequential", GPTNeoXForCausalLM(GPTNeoXConfig(
    **{**NEOX, "hidden_size": 16, "num_attention_heads": 2}, rotary_pct=0.5,
    use_parallel_residual=False)),
    lambda state: neox_ours(state, 2, 2))
WINDOWS = {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 5}
save_with_logits("qwen2_windows", Qwen2ForCausalLM(Qwen2Config(
    **{**SMALL, **WINDOWS}, max_window_layers=0)),
    lambda state: llama_ours(state, 3, tied=False, biases=QKV))
save_with_logits("qwen3_windows", Qwen3ForCausalLM(Qwen3Config(
    **{**HEADS, **WINDOWS},
    layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
    lambda state: llama_ours(state, 3, False, (*NORMS_BEFORE, *QKV, *QK_NORMS, *GATE_UP)))
torch.manual_seed(7)
ENCODER = {**NEOX, "mask_token_id": 3}
save_with_logits("bert", BertForMaskedLM(BertConfig(**ENCODER)),
                 lambda state: bert_ours(state, 2, "bert.", 0,
                                         ("cls.predictions.transform.dense",
                                          "cls.predictions.transform.LayerNorm"),
                                         "cls.predictions.bias"))
save_with_logits("roberta", RobertaForMaskedLM(RobertaConfig(
    **{**ENCODER, "pad_token_id": 1, "max_position_embeddings": 18}, type_vocab_size=1,
    layer_norm_eps=1e-5, hidden_act="gelu_new")),
    lambda state: bert_ours(state, 2, "roberta.", 2, ("lm_head.dense", "lm_head.layer_norm"),
                            "lm_head.bias"), least=2)  # 1 is padding
CLASSES = {"id2label": {0: "warm", 1: "cold", 2: "hot"}}
save_with_logits("bert_classes", BertForSequenceClassification(BertConfig(**NEOX, **CLASSES)),
                 lambda state: bert_ours(state, 2, "bert.", 0, ["bert.pooler.dense"],
                                         "classifier.bias", "classifier.weight"))
save_with_logits("roberta_classes", RobertaForSequenceClassification(RobertaConfig(
    **{**NEOX, **CLASSES, "pad_token_id": 1, "max_position_embeddings": 18}, type_vocab_size=1)),
    lambda state: bert_ours(state, 2, "roberta.", 2, ["classifier.dense"],
                            "classifier.out_proj.bias", "classifier.out_proj.weight"), least=2)
torch.manual_seed(8)
save_with_logits("gptj", GPTJForCausalLM(GPTJConfig(
    vocab_size=13, n_embd=16, n_inner=12, n_layer=2, n_head=2, n_positions=16, rotary_dim=4,
    bos_token_id=0, eos_token_id=0, attn_implementation="eager")), lambda state: gptj_ours(state, 2))
torch.manual_seed(9)
PARTS = {"one_by_one": [1] * 13, "cut": [5, 1, 7]}
save_with_logits("llama_dynamic", LlamaForCausalLM(LlamaConfig(
    **{**HEADS, "max_position_embeddings": 8},
    rope_parameters={"rope_type": "dynamic", "rope_theta": 10.0, "factor": 2.0})),
    lambda state: llama_ours(state, 2, tied=False), parts=PARTS)
torch.manual_seed(9)
save_with_logits("bert_tokens", BertForTokenClassification(BertConfig(**NEOX, **CLASSES)),
                 lambda state: bert_ours(state, 2, "bert.", 0, [], "classifier.bias",
                                         "classifier.weight"))
save_with_logits("roberta_tokens", RobertaForTokenClassification(RobertaConfig(
    **{**NEOX, **CLASSES, "pad_token_id": 1, "max_position_embeddings": 18}, type_vocab_size=1)),
    lambda state: bert_ours(state, 2, "roberta.", 2, [], "classifier.bias", "classifier.weight"),
    least=2)
EXPERTS = {**HEADS, "experts_implementation": "eager"}  # the one that computes in fp64
torch.manual_seed(10)
save_with_logits("mixtral", MixtralForCausalLM(MixtralConfig(
    **EXPERTS, num_local_experts=4, num_experts_per_tok=2, sliding_window=5,
    router_aux_loss_coef=0.02)),
    lambda state: experts_ours(state, 2, (*NORMS_BEFORE, *QKV)))
# One whose first layer has no experts, and one whose every second layer has them.
QWEN3_MOE = {**EXPERTS, "num_hidden_layers": 3, "num_experts": 5, "moe_intermediate_size": 7}
QWEN3_MODULES = (*NORMS_BEFORE, *QKV, *QK_NORMS, *GATE_UP)
torch.manual_seed(10)
save_with_logits("qwen3_moe", Qwen3MoeForCausalLM(Qwen3MoeConfig(
    **QWEN3_MOE, num_experts_per_tok=2, norm_topk_prob=True, mlp_only_layers=[0])),
    lambda state: experts_ours(state, 3, QWEN3_MODULES, dense=[0]))
torch.manual_seed(11)
save_with_logits("qwen3_moe_sparse", Qwen3MoeForCausalLM(Qwen3MoeConfig(
    **{**QWEN3_MOE, "num_hidden_layers": 4}, num_experts_per_tok=3, decoder_sparse_step=2,
    use_sliding_window=True, sliding_window=5, router_aux_loss_coef=0.0)),
    lambda state: experts_ours(state, 4, QWEN3_MODULES, dense=[0, 2]))
# With all that may be, and with nothing of it; biases are large enough to change what is chosen.
GLM = {**EXPERTS, "num_hidden_layers": 3, "n_routed_experts": 6, "moe_intermediate_size": 7,
       "num_experts_per_tok": 2, "num_nextn_predict_layers": 0, "head_dim": 8}


def with_biases(model):
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            layer.mlp.gate.e_score_correction_bias.normal_(std=0.3)
    return model


torch.manual_seed(12)
save_with_logits("glm4_moe", with_biases(Glm4MoeForCausalLM(Glm4MoeConfig(
    **GLM, n_group=3, topk_group=2, n_shared_experts=2, routed_scaling_factor=1.5,
    use_qk_norm=True, attention_bias=True))),
    lambda state: glm_ours(state, 3, (*NORMS_BEFORE, *QKV, *QK_NORMS, *GATE_UP), "qkv"))
torch.manual_seed(13)
save_with_logits("glm4_moe_plain", with_biases(Glm4MoeForCausalLM(Glm4MoeConfig(**GLM))),
                 lambda state: glm_ours(state, 3, (*NORMS_BEFORE, *QKV, *GATE_UP)))
# Keys and values of latents; queries too, or not; groups of experts, or none.
DEEPSEEK = {**SMALL, "num_hidden_layers": 3, "num_key_value_heads": 4, "kv_lora_rank": 6,
            "q_lora_rank": None, "qk_nope_head_dim": 2, "qk_rope_head_dim": 4, "v_head_dim": 5,
            "n_routed_experts": 6, "moe_intermediate_size": 7, "num_experts_per_tok": 2,
            "n_shared_experts": 1, "first_k_dense_replace": 1,
            "experts_implementation": "eager"}


def save_deepseek(name, model, seed):
    torch.manual_seed(seed)
    save_with_logits(name, model, lambda state: deepseek_ours(state, 3, model.config))


save_deepseek("deepseek_v2", DeepseekV2ForCausalLM(DeepseekV2Config(**DEEPSEEK)), 15)
save_deepseek("deepseek_v2_groups", DeepseekV2ForCausalLM(DeepseekV2Config(
    **{**DEEPSEEK, "q_lora_rank": 10, "n_shared_experts": 2}, topk_method="group_limited_greedy",
    n_group=3, topk_group=2, routed_scaling_factor=2.0)), 16)
save_deepseek("deepseek_v3", with_biases(DeepseekV3ForCausalLM(DeepseekV3Config(
    **{**DEEPSEEK, "q_lora_rank": 10}, n_group=3, topk_group=2, routed_scaling_factor=1.5,
    num_nextn_predict_layers=0,
    rope_parameters={"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "beta_fast": 2.0,
                     "beta_slow": 0.5, "mscale": 1.0, "mscale_all_dim": 0.7,
                     "original_max_position_embeddings": 8}))), 16)
save_deepseek("deepseek_v3_plain", with_biases(DeepseekV3ForCausalLM(DeepseekV3Config(
    **DEEPSEEK, n_group=1, topk_group=1, rope_interleave=False, norm_topk_prob=False,
    num_nextn_predict_layers=0))), 14)
# Reward models: one output, of the last token.
def with_score(state):
    return {**state, "lm_head.weight": state["score.weight"]}


torch.manual_seed(12)
save_with_logits("llama_reward", LlamaForSequenceClassification(LlamaConfig(**HEADS, num_labels=1)),
                 lambda state: llama_ours(with_score(state), 2, tied=False))
torch.manual_seed(13)
save_with_logits("gpt_neox_reward", GPTNeoXForSequenceClassification(GPTNeoXConfig(
    **{**NEOX, "hidden_size": 16, "num_attention_heads": 2}, rotary_pct=0.5, num_labels=1,
    problem_type="regression")), lambda state: neox_ours(with_score(state), 2, 2))
for extra in HERE.glob("*/generation_config.json"):
    extra.unlink()
