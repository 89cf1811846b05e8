"""Small language models of experts, for make_experts.py and the test that compares with what it has made."""

from small_decks import deck_of

COMMON = {"family": "llama", "layers": 2, "heads": 4, "kv_heads": 2, "hidden": 32, "ffn_hidden": 40,
          "vocab": 97, "context": 10, "init_std": 0.2}
# By name: [model] and [moe]. Every kind of router, of layer and of term is in one of them.
MODELS = {
    "switch": ({**COMMON, "activation": "relu"},
               {"experts": 4, "top_k": 1, "every": 2, "aux_loss": 0.5}),
    "mixtral": (COMMON, {"experts": 4, "top_k": 2, "aux_loss": 0.2, "z_loss": 0.05}),
    "dropping": (COMMON, {"experts": 4, "top_k": 2, "capacity": 1.1, "z_loss": 0.05}),
    "jittered": (COMMON, {"experts": 4, "top_k": 2, "aux_loss": 0.2, "z_loss": 0.05, "jitter": 0.25}),
    # Of 12 experts in 3 groups two of each of two groups.
    "levels": (COMMON, {"experts": 12, "top_k": 4, "groups": 3, "group_top": 2, "gates": "two_levels",
                        "ffn_hidden": 24, "scale": 1.5, "aux_loss": 0.3}),
    "global": (COMMON, {"experts": 4, "top_k": 2, "aux_loss": 0.5, "aux_over": "global_batch",
                        "z_loss": 0.05}),
    "qwen": ({**COMMON, "qk_norm": "head"},
             {"experts": 8, "top_k": 3, "ffn_hidden": 24, "normalize": False, "groups": 4,
              "group_top": 2, "aux_loss": 0, "z_loss": 0.1}),
    "deepseek": ({**COMMON, "layers": 3, "tied_embeddings": True},
                 {"experts": 6, "top_k": 2, "ffn_hidden": 24, "shared_ffn_hidden": 20,
                  "first_dense": 1, "scores": "sigmoid", "scale": 1.5, "groups": 3, "group_top": 2,
                  "group_score": "two_largest", "aux_loss": 0.3}),
    "balanced": ({**COMMON, "layers": 3, "qk_norm": "head"},
                 {"experts": 6, "top_k": 2, "ffn_hidden": 24, "shared_ffn_hidden": 20,
                  "first_dense": 1, "scores": "sigmoid", "groups": 3, "group_top": 2,
                  "group_score": "two_largest", "bias": True, "bias_update": 0.02}),
    # DeepSeek-V3 and V2: keys and values of latents, with queries of one or without.
    "latent": ({**COMMON, "layers": 3, "kv_heads": 4, "head_dim": 14, "value_dim": 10, "kv_latent": 12,
                "q_latent": 20, "rope_dim": 8},
               {"experts": 6, "top_k": 2, "ffn_hidden": 24, "shared_ffn_hidden": 20,
                "first_dense": 1, "scores": "sigmoid", "groups": 3, "group_top": 2,
                "group_score": "two_largest", "bias": True, "bias_update": 0.02}),
    "latent_keys": ({**COMMON, "kv_heads": 4, "head_dim": 14, "kv_latent": 12, "rope_dim": 8},
                    {"experts": 4, "top_k": 2, "ffn_hidden": 24, "aux_loss": 0.2}),
}
LR = 3e-3


def deck(name, tokens):
    model, moe = MODELS[name]
    return deck_of(tokens, LR, model=dict(model), moe=dict(moe))
