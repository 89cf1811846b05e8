"""What decks of small models have in common that PyTorch trains beside Tessera."""

STEPS, BATCH, MICRO, LENGTH, EPS, CLIP, SEED = 10, 8, 2, 10, 1e-6, 1.0, 8


def deck_of(tokens, lr, **sections):
    """Of a run of Adam on `tokens`; `sections`: [model], and what else it has."""
    return {"run": {"steps": STEPS, "seed": SEED, "backend": "debug"}, **sections,
            "data": {"train": [str(tokens)], "shuffle": False},
            "batch": {"micro": MICRO, "global": BATCH},
            "optimizer": {"name": "adam", "lr": lr, "betas": [0.9, 0.99], "eps": EPS,
                          "clip_norm": CLIP},
            "schedule": {"kind": "constant"},
            "precision": {"compute": "f32"}}
