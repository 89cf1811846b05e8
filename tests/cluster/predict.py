"""How well `tessera simulate` predicts this machine: two nodes of a real Slurm with a core each,
their links limited; measured steps beside those that a machine file of the same minutes predicts.
    tests/cluster/predict.py [GBIT_PER_S...]
Times of a busy machine say nothing: let nothing else run. Needs what tests need (README.md)."""

import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("TESSERA_BINARY", str(ROOT / "build" / "tessera"))
os.environ.setdefault("TESSERA_MPIEXEC", "mpiexec -n")
os.environ.setdefault("TESSERA_SOURCE_DIR", str(ROOT))
sys.path.append(str(ROOT / "tests" / "run"))

import slurm  # noqa: E402
from tessera import BINARY, metrics, to_toml, write_megatron  # noqa: E402

import array  # noqa: E402

STEPS = 6
SEQUENCE, VOCABULARY, GLOBAL = 512, 8192, 8
# Of both nodes, which are one machine's two cores: where each runs is left to the kernel.
CORES = 2
LAYOUTS = {
    "data 2, ZeRO-0": {"zero.stage": 0},
    "data 2, ZeRO-2": {"zero.stage": 2},
    "data 2, ZeRO-3": {"zero.stage": 3},
    "tensor 2": {"parallel.tensor": 2},
    "pipeline 2, 1f1b": {"parallel.pipeline": 2},
    "pipeline 2, zero_bubble": {"parallel.pipeline": 2, "parallel.schedule": "zero_bubble"},
}


def deck(directory):
    tokens = array.array("H", (i * 7919 % VOCABULARY for i in range(STEPS * GLOBAL * SEQUENCE + 1)))
    write_megatron(directory / "tokens", tokens)
    path = directory / "deck.toml"
    path.write_text(to_toml({
        "run": {"steps": STEPS, "threads": 1, "resume": "never"},
        "model": {"layers": 4, "heads": 8, "hidden": 512, "vocab": VOCABULARY,
                  "context": SEQUENCE},
        "data": {"train": [str(directory / "tokens")]},
        "batch": {"micro": 1, "global": GLOBAL},
        "optimizer": {"lr": 1e-3},
        "schedule": {"warmup_steps": 0},
        "checkpoint": {"every": 0},
    }))
    return path


def tessera(*arguments, launch=()):
    job = subprocess.run([*launch, BINARY, *map(str, arguments)], capture_output=True, text=True)
    if job.returncode != 0:
        raise SystemExit(f"{arguments} gave {job.returncode}:\n{job.stdout}{job.stderr}")
    return job.stdout


def compare(directory, gbit):
    srun = ["srun", "--nodes=2", "--ntasks=2", f"--cpus-per-task={CORES}", "--mpi=pmix",
            "--cpu-bind=none"]
    path = deck(directory)
    machine = directory / f"limited_{gbit}.toml"
    machine.write_text(tessera("bench", "machine", "--repeats", 3, "--dir", directory,
                               launch=srun))
    for i, (name, keys) in enumerate(LAYOUTS.items()):
        run = directory / f"run_{gbit}_{i}"
        sets = [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
        tessera("train", path, *sets, "--set", f'run.dir="{run}"', launch=srun)
        steps = [e["step_ms"] for e in metrics.read_events(run) if e["event"] == "step"]
        measured = statistics.median(steps[1:])
        told = tessera("simulate", path, "--ranks", 2, "--nodes", 2, "--machine", machine, *sets)
        predicted = float(re.search(r"^step +([\d.]+) ms", told, re.M)[1])
        print(f"| {gbit} Gbit/s | {name} | {measured:.0f} | {predicted:.0f} "
              f"| {100 * (predicted / measured - 1):+.0f} % |", flush=True)


if __name__ == "__main__":
    slurm.enter()
    print("| links | layout | measured (ms) | predicted (ms) | error |\n|---|---|---|---|---|",
          flush=True)
    with tempfile.TemporaryDirectory(prefix="tessera_slurm_") as held:
        cluster = slurm.Slurm(pathlib.Path(held) / "cluster", nodes=2)
        try:
            for rate in [float(word) for word in sys.argv[1:]] or [10, 1, 0.2]:
                cluster.limit(rate)
                compare(pathlib.Path(held), rate)
        finally:
            cluster.down()
