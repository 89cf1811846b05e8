"""Makes oracle/policy.json: the answers that the models of policy_models.py drew in a run, and what PyTorch computes, in
fp64 and fp32, when it learns from these answers and their rewards: of each step the loss, the gradient's norm, mean -log p
of a token when it was drawn, how much larger log p is than under the reference model, and the share of ratios that are
clipped; of a critic its loss and its gradient's norm. tests/run/policy_test.py compares.

    pip install torch transformers h5py && python make_policy.py TESSERA [KIND...]

The program is asked for the answers, and for what it draws at random: the matrices A that adapters begin with, and the
vector that a critic's values begin as products with.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import h5py
import torch

import policy_models as models
from make_preferences import CLASSES, adapt


def run(name, directory):
    """The answers of a run, and the weights when it begins that are in no directory."""
    deck = models.deck(name, directory)
    drawn = {}
    for key, changes in (("first", {"steps": 1}), ("run", {})):
        one = {**deck, "run": {**deck["run"], **changes, "dir": str(directory / key)},
               "optimizer": {**deck["optimizer"], **({"lr": 1e-30} if changes else {})},
               "task": {**deck["task"], **({"critic_lr": 1e-30} if changes and "critic" in deck["task"] else {})}}
        (directory / "deck.toml").write_text(to_toml(one))
        subprocess.run([sys.argv[1], "train", directory / "deck.toml"], check=True, stdout=subprocess.DEVNULL)
    (path,) = (directory / "first").glob("checkpoints/*/model.h5")
    with h5py.File(path) as file:
        drawn = {k: torch.tensor(v[()]) for k, v in file["master"].items()
                 if ".lora_" in k or k == "critic.head.weight"}
    return models.rollouts(directory / "run"), drawn


def advantages(rewards, scale):
    groups = torch.tensor(rewards, dtype=torch.float64).view(-1, models.SAMPLES)
    centred = groups - groups.mean(1, keepdim=True)
    return (centred / (groups.std(1, keepdim=True) + 1e-4) if scale else centred).flatten()


def generalised_advantages(rewards, values, gamma, lam):
    """Schulman et al. 2016, equation 16, as it is written: sums over all later tokens."""
    deltas = rewards + gamma * torch.cat([values[1:], values.new_zeros(1)]) - values
    return torch.stack([sum((gamma * lam) ** l * deltas[t + l] for l in range(len(deltas) - t))
                        for t in range(len(deltas))])


def log_p_and_values(model, answer, head, critic=None):
    """Of its tokens, each behind the prompt and those before it; and the values there, where there is a head, of the
    same model or of another."""
    prompt = list(answer["line"]["prompt"].encode())
    ids = prompt + answer["token_ids"]
    out = model(torch.tensor([ids]), output_hidden_states=True)
    each = out.logits[0, :-1].log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[len(prompt) - 1:, 0]
    if head is None:
        return each, torch.zeros_like(each)
    read = out if critic is None else critic(torch.tensor([ids]), output_hidden_states=True)
    return each, read.hidden_states[-1][0, len(prompt) - 1:-1] @ head[0] + head[1]


def log_p(model, answer):
    return log_p_and_values(model, answer, None)[0]


def judged(of_round, drawn, reference, task, dtype):
    """By step of a round and answer, the advantages of its tokens and what came of each."""
    scale, ppo = task.get("scale_rewards", True), task.get("kind") == "ppo"
    result = []
    for answers, then, apart in zip(of_round, drawn, reference, strict=True):
        if not ppo:
            each = advantages([a["reward"] for a in answers], scale).to(dtype)
            result.append([(a.expand(len(p)), None) for a, (p, _) in zip(each, then, strict=True)])
            continue
        step = []
        for answer, (now, values), before in zip(answers, then, apart, strict=True):
            rewards = -task.get("kl", 0.0) * (now - before)
            rewards[-1] += answer["reward"]
            better = generalised_advantages(rewards, values, task.get("gamma", 1.0), task.get("lambda", 0.95))
            step.append((better, better + values))
        result.append(step)
    if ppo and scale:
        all_of_round = torch.cat([a for step in result for a, _ in step])
        shift, by = all_of_round.mean(), all_of_round.std() + 1e-4
        result = [[((a - shift) / by, r) for a, r in step] for step in result]
    return result


def explained(better, drawn):
    returns = torch.cat([r for step in better for _, r in step])
    left = returns - torch.cat([v for step in drawn for _, v in step])
    return (1 - left.var() / returns.var()).item()


def train(name, dtype, steps, weights):
    directory, task, of_round, adapter = models.KINDS[name]
    by_token, (low, high), kl = task.get("mean") == "tokens", task.get("clip", (0.2, 0.2)), task.get("kl", 0.0)
    model = CLASSES[directory].from_pretrained(models.ORACLE / directory, dtype=torch.float32,
                                               attn_implementation="eager").to(dtype)
    if adapter:
        adapt(model, adapter, {k: v.to(dtype) for k, v in weights.items()})
    trained = [p for p in model.parameters() if p.requires_grad]
    ppo, head, critic = task.get("kind") == "ppo", None, None
    if "critic" in task:
        critic = CLASSES[task["critic"]].from_pretrained(models.ORACLE / task["critic"], dtype=torch.float32,
                                                         attn_implementation="eager").to(dtype)
        weight = weights["critic.head.weight"].to(dtype).flatten().requires_grad_()
        head = [weight, torch.zeros((), dtype=dtype)]
        of_critic = [*critic.parameters(), weight]
        critics_optimizer = torch.optim.Adam(of_critic, lr=task["critic_lr"] if "critic_lr" in task else models.LR,
                                             betas=(0.9, 0.99), eps=models.EPS)
    elif ppo:
        head = [torch.zeros(model.config.hidden_size, dtype=dtype, requires_grad=True),
                torch.zeros((), dtype=dtype, requires_grad=True)]
        trained += head
    optimizer = torch.optim.Adam(trained, lr=models.LR, betas=(0.9, 0.99), eps=models.EPS)
    reference = [[log_p(model, a).detach() for a in answers] for answers in steps]
    said = []
    for number, answers in enumerate(steps):
        if number % of_round == 0:
            drawn = [[[x.detach() for x in log_p_and_values(model, a, head, critic)] for a in step]
                     for step in steps[number : number + of_round]]
            better = judged(steps[number : number + of_round], drawn, reference[number : number + of_round],
                            task, dtype)
        losses, clipped, tokens, values_clipped, moved, of_values = [], 0, 0, 0, 0, []
        for i, (answer, (advantage, returns)) in enumerate(zip(answers, better[number % of_round], strict=True)):
            now, values = log_p_and_values(model, answer, head, critic)
            then, values_then = drawn[number % of_round][i]
            ratio = torch.exp(now - then)
            loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)
            # Where the clip has the last word, so that there is no gradient.
            clipped += (ratio.clamp(1 - low, 1 + high) * advantage < ratio * advantage).sum().item()
            moved += (then - now).sum().item()
            tokens += len(now)
            less = reference[number][i] - now
            if ppo:
                clip = task.get("value_clip", 0.2)
                near = torch.maximum(torch.minimum(values, values_then + clip), values_then - clip)
                values_clipped += (near != values).sum().item()
                off = torch.maximum((values - returns) ** 2, (near - returns) ** 2)
                losses.append(loss if critic else loss + task.get("value_loss", 0.1) / 2 * off)
                of_values.append(off / 2)
            else:
                losses.append(loss + kl * (torch.exp(less) - less - 1))
        mean = lambda all: torch.cat(all).mean() if by_token else torch.stack([l.mean() for l in all]).mean()  # noqa: E731
        loss, of_step = mean(losses), {}
        if critic:
            critics_loss = mean(of_values)
            critics_optimizer.zero_grad()
            critics_loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(of_critic, models.CLIP)
            critics_optimizer.step()
            of_step = {"critic_loss": critics_loss.item(), "critic_grad_norm": norm.item()}
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(trained, models.CLIP)
        optimizer.step()
        of_round_drawn = torch.cat([p for step in drawn for p, _ in step])
        of_round_reference = torch.cat([p for step in reference[number - number % of_round :][:of_round] for p in step])
        said.append({"loss": loss.item(), "grad_norm": norm.item(), "entropy": -of_round_drawn.mean().item(),
                     "kl": (of_round_drawn - of_round_reference).mean().item() if kl else 0.0,
                     "clipped": clipped / tokens, "moved": moved / tokens, "values_clipped": values_clipped / tokens,
                     "explained": explained(better, drawn) if ppo else 0.0, **of_step})
    return said


if __name__ == "__main__":
    tests = pathlib.Path(__file__).resolve().parents[1]
    os.environ.update(TESSERA_SOURCE_DIR=str(tests.parent), TESSERA_BINARY=sys.argv[1], TESSERA_MPIEXEC="none")
    sys.path.insert(0, str(tests / "run"))
    from tessera import to_toml  # noqa: E402

    path = models.ORACLE / "policy.json"
    result = json.loads(path.read_text()) if sys.argv[2:] else {}
    for name in sys.argv[2:] or models.KINDS:
        with tempfile.TemporaryDirectory() as directory:
            directory = pathlib.Path(directory)
            (directory / "text.txt").write_text("text")
            subprocess.run([sys.argv[1], "tokenize", directory / "text.txt", "--out", directory / "bytes"], check=True,
                           stdout=subprocess.DEVNULL)
            models.write(directory, directory / "bytes.tokenizer.json")
            steps, drawn = run(name, directory)
        result[name] = {kind: train(name, getattr(torch, kind), steps, drawn) for kind in ("float64", "float32")}
        result[name]["token_ids"] = [[a["token_ids"] for a in answers] for answers in steps]
        print(name, [{k: round(v, 5) for k, v in s.items()} for s in result[name]["float64"]])
    path.write_text(json.dumps(result) + "\n")
