"""DeepSpeed's curricula of sequence lengths as batch.curriculum, a rule of tools/from_deepspeed."""

import deepspeed_keys

# Metrics of the data's sampling that are sequence lengths in Megatron-DeepSpeed.
LENGTH_METRICS = {"seqlen": "truncate", "seqlen_truncate": "truncate", "seqlen_reshape": "anew"}
MOST_LENGTHS = 64  # of a curriculum


def curriculum_rule(c):
    """The section curriculum_learning, or a metric of lengths in data_efficiency."""
    if c.get("curriculum_learning.enabled"):
        path = "curriculum_learning"
        if c.get(path + ".curriculum_type", "seqlen") == "seqlen":
            return lengths(c, path, "truncate")
        return c.note(path + ".curriculum_type", deepspeed_keys.SAMPLING)
    sampling = "data_efficiency.data_sampling"
    parts = ("data_efficiency", sampling, sampling + ".curriculum_learning")
    if not all(c.get(part + ".enabled") for part in parts):
        return None
    metrics = parts[-1] + ".curriculum_metrics"
    for metric in c.get(metrics, {}):
        path = f"{metrics}.{metric}"
        if metric not in LENGTH_METRICS:
            c.note(path, deepspeed_keys.SAMPLING)
        elif c.get(path + ".difficulty_type", "value") != "value":
            c.note(path + ".difficulty_type", "lengths of Tessera's sequences are tokens")
        elif "curriculum" not in c.deck.get("batch", {}):
            lengths(c, path, LENGTH_METRICS[metric])
            if metric == "seqlen_reshape":
                c.note(path, "DeepSpeed makes more sequences of a step's tokens, Tessera keeps "
                       "batch.global; no token is lost in either")
    return None


def lengths(c, path, cut):
    """A schedule of DeepSpeed's as a curriculum of Tessera's; both count steps from 1."""
    kind = c.get(path + ".schedule_type")
    wanted = {"fixed_linear": ("total_curriculum_step", "difficulty_step"),
              "fixed_root": ("total_curriculum_step", "difficulty_step", "root_degree"),
              "fixed_discrete": ("difficulty", "max_step")}.get(kind, ())
    config = {key: c.get(f"{path}.schedule_config.{key}") for key in wanted}
    missing = [key for key in ("min_difficulty", "max_difficulty", "schedule_type")
               if c.get(f"{path}.{key}") is None]
    missing += [f"schedule_config.{key}" for key in wanted if config[key] is None]
    if missing:
        return c.fail(path, f"has no {' and no '.join(missing)}")
    if kind == "custom":
        return c.note(path + ".schedule_type", "the schedule is a function of the script: give "
                      "its lengths as batch.curriculum = {table = [[step, length], ...]}")
    if c.get(path + ".min_difficulty") < 1:
        return c.fail(path + ".min_difficulty", "a sequence has a token or more")
    most = int(c.get(path + ".max_difficulty"))
    if kind == "fixed_discrete":
        values, steps = config["difficulty"], config["max_step"]
        if not values or len(steps) != len(values) - 1:
            return c.fail(path + ".schedule_config.max_step", "DeepSpeed wants one less than of "
                          "difficulty, which is the last length's without end")
        table = [[int(step), int(value)]
                 for step, value in zip([0, *(s + 1 for s in steps)], values)]
        most = max(most, *(length for _, length in table))
        curriculum = {"table": table}
    else:
        curriculum = growing(c, path, config)
    c.put("batch.sequence", most, "at least max_difficulty; the script's sequence length")
    c.put("batch.curriculum", {**curriculum, **({"cut": cut} if cut != "truncate" else {})})
    return None


def growing(c, path, config):
    start, end = (int(c.get(f"{path}.{key}")) for key in ("min_difficulty", "max_difficulty"))
    step = int(config["difficulty_step"])
    rounded = step * max(1, -(-(end - start) // ((MOST_LENGTHS - 2) * step)))
    if rounded != step:
        c.note(path + ".schedule_config.difficulty_step", f"a curriculum has at most "
               f"{MOST_LENGTHS} lengths, each with plans of its own: round = {rounded}")
    curriculum = {"start": start, "end": end, "steps": int(config["total_curriculum_step"]),
                  "round": rounded}
    if "root_degree" in config:
        curriculum.update(kind="root", degree=int(config["root_degree"]))
    return curriculum
