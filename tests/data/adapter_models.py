"""Small language models with adapters, for make_adapters.py and the test that compares with what it has made."""

from small_decks import deck_of

# By name: [model] and [adapter]. Fused and separate matrices, few kv heads, gated and other layers.
MODELS = {
    "gpt2": ({"family": "gpt2", "layers": 2, "heads": 4, "hidden": 32, "vocab": 97, "context": 10,
              "init_std": 0.2},
             {"kind": "lora", "rank": 4, "alpha": 6.0}),
    "llama": ({"family": "llama", "layers": 3, "heads": 4, "kv_heads": 1, "hidden": 32,
               "ffn_hidden": 40, "vocab": 97, "context": 10, "init_std": 0.2},
              {"kind": "rslora", "rank": 3, "alpha": 5.0, "targets": ["*"]}),
    "lengths": ({"family": "gpt2", "layers": 2, "heads": 4, "hidden": 32, "vocab": 97, "context": 10,
                 "init_std": 0.2},
                {"kind": "dora", "rank": 4, "alpha": 6.0, "targets": ["*.q.*", "*.v.*", "*.mlp.*"]}),
    "llama_lengths": ({"family": "llama", "layers": 2, "heads": 4, "kv_heads": 1, "hidden": 32,
                       "ffn_hidden": 40, "vocab": 97, "context": 10, "init_std": 0.2},
                      {"kind": "dora", "rank": 3, "alpha": 3.0, "targets": ["*"]}),
    "some": ({"family": "gpt2", "layers": 3, "heads": 4, "hidden": 32, "vocab": 97, "context": 10,
              "init_std": 0.2},
             {"kind": "lora", "rank": 2, "alpha": 2.0,
              "targets": ["block.1.attention.k.weight", "block.2.mlp.*", "*.out.weight"]}),
}
LR = 2e-2


def deck(name, tokens):
    model, adapter = MODELS[name]
    return deck_of(tokens, LR, model={"dropout": 0.0, **model}, adapter=dict(adapter))
