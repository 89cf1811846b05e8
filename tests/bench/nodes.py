"""Two nodes of a real Slurm on one machine, whose links can be limited, for benchmarks."""

import array
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
os.environ.setdefault("TESSERA_BINARY", str(ROOT / "build" / "tessera"))
os.environ.setdefault("TESSERA_MPIEXEC", "mpiexec -n")
os.environ.setdefault("TESSERA_SOURCE_DIR", str(ROOT))
# Two nodes share the cores: ranks have a thread each and give way to one another.
os.environ |= {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1"}
sys.path += [str(ROOT / "tests" / "run"), str(ROOT / "tests" / "cluster")]

import slurm  # noqa: E402
from tessera import BINARY, to_toml, write_megatron  # noqa: E402

NODES, RANKS = 2, 4
FREE = 100  # Gbit/s: more than these links carry
PREFETCH = (1, 3)  # of which each has the better
ZERO_3 = {"zero.stage": 3}
ZERO_PP = ZERO_3 | {"zero.secondary": "node", "zero.quantize.weights": "int8",
                    "zero.quantize.gradients": "int4"}
# As gradients travel, where they are not quantised.
WIRE = {"precision.gradients": "bf16"}
# Of both nodes, which are one machine's cores: where each rank runs is left to the kernel.
CORES = min(2, os.cpu_count())


@contextlib.contextmanager
def cluster():
    """A directory and the Slurm in it; what enter() of slurm.py makes ends it all."""
    with tempfile.TemporaryDirectory(prefix="tessera_slurm_") as held:
        nodes = slurm.Slurm(pathlib.Path(held) / "cluster", nodes=NODES)
        try:
            yield pathlib.Path(held), nodes
        finally:
            nodes.down()


def srun(ranks=NODES):
    """What starts so many ranks, as many on each node, which share all of its cores. With
    --overcommit Slurm gives them one alone, so it is asked for only where they outnumber the cores."""
    each = ranks // NODES
    return ["srun", f"--nodes={NODES}", f"--ntasks={ranks}", f"--ntasks-per-node={each}",
            f"--cpus-per-task={max(1, CORES // each)}", "--mpi=pmix", "--cpu-bind=none",
            *(["--overcommit"] if each > CORES else [])]


def tessera(*arguments, launch=()):
    """Stdout of a run that succeeds."""
    job = subprocess.run([*launch, BINARY, *map(str, arguments)], capture_output=True, text=True)
    if job.returncode != 0:
        raise SystemExit(f"{arguments} gave {job.returncode}:\n{job.stdout}{job.stderr}")
    return job.stdout


def write_deck(directory, tokens, vocabulary, deck):
    """A deck that trains on so many tokens, made up here."""
    write_megatron(directory / "tokens", array.array("H", (i * 7919 % vocabulary
                                                           for i in range(tokens))))
    path = directory / "deck.toml"
    path.write_text(to_toml(deck | {"data": {"train": [str(directory / "tokens")]}}))
    return path


def sets(keys):
    return [word for key, value in keys.items() for word in ("--set", f"{key}={value}")]
