"""Prompts, a program that rewards answers to them, and the decks of runs that learn from these, for make_policy.py and
the test that compares with what it has made."""

import json
import pathlib
import shutil
import sys

ORACLE = pathlib.Path(__file__).resolve().parent / "oracle"
STEPS, GLOBAL, SAMPLES, TOKENS, LENGTH = 4, 16, 4, 7, 16
LR, EPS, CLIP = 4e-3, 1e-6, 2.0
# By name: the model directory, of [task] what is not its kind, the steps of a round, and [adapter].
KINDS = {
    "answers": ("gpt2", {}, 1, None),
    "tokens": ("llama", {"mean": "tokens", "scale_rewards": False}, 1, None),
    "reference": ("gpt2", {"kl": 0.5}, 1, None),
    "rounds": ("llama", {"kl": 0.25, "clip": [0.1, 0.2]}, 2, None),
    "values": ("gpt2", {"kind": "ppo", "kl": 0.2, "gamma": 0.9, "lambda": 0.8, "value_loss": 0.5}, 1, None),
    "value_rounds": ("llama", {"kind": "ppo", "mean": "tokens", "scale_rewards": False, "clip": [0.1, 0.2],
                               "value_clip": 0.02, "value_loss": 1.0}, 2, None),
    "value_lora": ("llama", {"kind": "ppo", "kl": 0.1}, 2,
                   {"kind": "lora", "rank": 3, "alpha": 6.0, "targets": ["*.attention.?.weight", "*.mlp.*"]}),
    "critic": ("gpt2", {"kind": "ppo", "kl": 0.2, "gamma": 0.9, "lambda": 0.8, "critic": "gpt2",
                        "critic_lr": 2e-3}, 1, None),
    "critic_rounds": ("llama", {"kind": "ppo", "mean": "tokens", "scale_rewards": False, "clip": [0.1, 0.2],
                                "value_clip": 0.06, "critic": "gpt2", "critic_lr": 2e-4}, 2, None),
    "lora": ("llama", {"kl": 0.5, "mean": "tokens"}, 2,
             {"kind": "lora", "rank": 3, "alpha": 6.0, "targets": ["*.attention.?.weight", "*.mlp.*"]}),
}
# Bytes are the models' tokens. An answer ends with a k, where it has seven, or where the sequence is full.
JUDGE = '''import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    text = asked["completion"]
    print(json.dumps({"reward": (sum(map(ord, text)) % 13 + len(asked["prompt"]) % 3) / 7}))
'''


def prompts():
    return ["abcdefghijklm"[: 1 + (5 * i) % 12] for i in range(9)]


def write(directory, bytes_tokenizer):
    """What the decks name, below a directory; the tokenizer.json is one of bytes."""
    for model in {model for model, *_ in KINDS.values()}:
        shutil.copytree(ORACLE / model, directory / model)
        shutil.copy(bytes_tokenizer, directory / model / "tokenizer.json")
        (directory / model / "tokenizer_config.json").write_text('{"eos_token": "k"}')
    (directory / "prompts.jsonl").write_text("".join(json.dumps({"prompt": p}) + "\n" for p in prompts()))
    (directory / "judge.py").write_text(JUDGE)


def deck(name, directory):
    model, task, steps, adapter = KINDS[name]
    if "critic" in task:
        task = {**task, "critic": str(directory / task["critic"])}
    made = {"run": {"steps": STEPS, "seed": 8, "backend": "debug"},
            "model": {"init_from": str(directory / model), "dropout": 0.0},
            "task": {"kind": "grpo", **task},
            "rollout": {"samples": SAMPLES, "steps": steps, "tokens": TOKENS, "slots": 5, "keep_every": 1},
            "reward": {"kind": "command", "command": [sys.executable, str(directory / "judge.py")]},
            "data": {"train": [str(directory / "prompts.jsonl")]},
            "batch": {"sequence": LENGTH, "micro": 2, "global": GLOBAL},
            "optimizer": {"name": "adam", "lr": LR, "betas": [0.9, 0.99], "eps": EPS,
                          "clip_norm": CLIP},
            "schedule": {"kind": "constant"},
            "precision": {"compute": "f32"}}
    return {**made, "adapter": dict(adapter)} if adapter else made


def rollouts(run):
    """By step, the answers of a run."""
    return [[json.loads(line) for line in path.read_text().splitlines()]
            for path in sorted((pathlib.Path(run) / "rollouts").glob("step_*.jsonl"))]
