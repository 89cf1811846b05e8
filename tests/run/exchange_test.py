"""ZeRO++'s exchanges, and that of 1-bit Adam, against a simulation of the whole in NumPy: the same bits, for several numbers
of nodes and of ranks on them (Wang et al. 2023, sections 3.1 and 3.3), with error feedback and
rounding at random."""

import os
import sys
import unittest

import numpy as np

from tessera import SOURCE, RunTest

sys.path.insert(0, str(SOURCE / "tests" / "data"))
from philox import ROUNDING, random_bits  # noqa: E402

PROGRAM = os.environ["TESSERA_EXCHANGE"]
F32 = np.float32
MOST = {"int8": F32(127), "int4": F32(7)}
NODES = {"2x2": [0, 0, 1, 1], "2x3": [0, 0, 0, 1, 1, 1], "4x2": [0, 0, 1, 1, 2, 2, 3, 3],
         "3x1": [0, 1, 2], "2x2 dealt": [0, 1, 0, 1], "1x4": [0, 0, 0, 0],
         "uneven": [0, 0, 0, 1, 1]}
ELEMENTS, BLOCK = 3 * 64 + 26, 64


def to_bf16(x):
    """Rounded to nearest even, as f32."""
    bits = x.astype(F32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7fff + (bits >> np.uint64(16) & np.uint64(1))) & np.uint64(0xffff0000)
    return bits.astype(np.uint32).view(F32)


def offsets(seed, site, sample, elements):
    """What chance adds to these elements, in (-1/2, 1/2)."""
    if seed == 0:
        return np.zeros(len(elements), F32)
    bits = random_bits(seed, ROUNDING, site, sample, elements).astype(np.uint32)
    return ((bits.view(np.int32) >> 8).astype(F32) + F32(0.5)) * F32(2.0 ** -24)


def rounded(x, kind, chance):
    """The values that x (n) has in blocks."""
    out = np.empty_like(x)
    for first in range(0, len(x), BLOCK):
        part = slice(first, min(first + BLOCK, len(x)))
        most = np.max(np.abs(x[part]))
        if kind == "sign":  # magnitudes as integers, whose sum has no order
            whole = np.rint(np.abs(x[part]) * F32(F32(32768) / most)).astype(np.int64).sum()
            mean = F32(whole) / F32(len(x[part])) * F32(most / F32(32768))
            out[part] = np.copysign(to_bf16(mean[None])[0], x[part])
            continue
        scale, inverse = F32(most / MOST[kind]), F32(MOST[kind] / most)
        q = x[part] * inverse + chance[part]
        code = np.rint(np.clip(q, -MOST[kind], MOST[kind])) + F32(0)  # codes have no -0
        out[part] = code * scale
    return out


def tree_sum(parts):
    """((0 + 1) + (2 + 3)) + ..., each sum in f32."""
    parts = list(parts)
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2])]
        parts = pairs + ([parts[-1]] if len(parts) % 2 else [])
    return parts[0]


class Exchange(RunTest):
    def simulate(self, nodes, kind, gradients, errors, seed, node_errors=None):
        """(sums by rank, errors by rank) of gradients[rank][micro-batch]. `node_errors`, by owner and
        node, become those that sums of nodes lose."""
        size = len(nodes)
        local = size // len(set(nodes))
        hops = len(set(nodes)) > 1 and local > 1 and \
            all(nodes.count(node) == local for node in nodes)
        sums, lost = [None] * size, list(errors)
        for k in range(len(gradients[0])):
            values = []  # of each rank's slots
            for rank in range(size):
                elements = np.arange(size * ELEMENTS)
                y = gradients[rank][k] + (0 if errors[0] is None else lost[rank])
                chance = offsets(seed, 10, 1000 * rank + k, elements)
                value = np.concatenate([
                    rounded(y[s * ELEMENTS:][:ELEMENTS], kind, chance[s * ELEMENTS:][:ELEMENTS])
                    for s in range(size)])
                values.append(value.reshape(size, ELEMENTS))
                if errors[0] is not None:
                    lost[rank] = to_bf16(y - value)
            for owner in range(size):
                if hops:
                    parts = []
                    # In the node's rank that has the owner's place: it rounds the node's sum again.
                    place = [r for r in range(size) if nodes[r] == nodes[owner]].index(owner)
                    for node in sorted(set(nodes), key=nodes.index):
                        ranks = [r for r in range(size) if nodes[r] == node]
                        total = tree_sum(values[r][owner] for r in ranks)
                        at = np.arange(ELEMENTS) + owner * ELEMENTS
                        chance = offsets(seed, 11, 1000 * ranks[place] + k, at)
                        if node_errors is not None:
                            total = total + node_errors[owner, node]
                        parts.append(rounded(total, kind, chance))
                        if node_errors is not None:
                            node_errors[owner, node] = to_bf16(total - parts[-1])
                else:
                    parts = [values[r][owner] for r in range(size)]
                total = tree_sum(parts)
                sums[owner] = total if k == 0 else sums[owner] + total
        return sums, lost

    def exchange(self, name, nodes, kind, micro_batches, seed, feedback, of_nodes=False):
        size, random = len(nodes), np.random.default_rng(len(nodes))
        directory = self.dir / name.replace(" ", "_")
        directory.mkdir()
        scales = np.exp2(random.integers(-8, 8, size * ELEMENTS)).astype(F32)
        gradients = [[random.standard_normal(size * ELEMENTS).astype(F32) * scales
                      for _ in range(micro_batches)] for _ in range(size)]
        weights = [random.standard_normal(ELEMENTS).astype(F32) for _ in range(size)]
        errors = [None] * size
        for rank in range(size):
            for k, gradient in enumerate(gradients[rank]):
                gradient.tofile(directory / f"gradient.{rank}.{k}")
            weights[rank].tofile(directory / f"weights.{rank}")
            if feedback:
                errors[rank] = to_bf16(random.standard_normal(size * ELEMENTS) * scales / 20)
                (errors[rank].view(np.uint32) >> 16).astype(np.uint16).tofile(
                    directory / f"error.{rank}")
        node_errors, held = None, {}
        if of_nodes:  # rank: (owner, node) in the order in which sums leave it
            order = sorted(set(nodes), key=nodes.index)
            ranks = {node: [r for r in range(size) if nodes[r] == node] for node in order}
            held = {r: [(ranks[node][ranks[nodes[r]].index(r)], nodes[r]) for node in order]
                    for r in range(size)}
            node_errors = {key: to_bf16(random.standard_normal(ELEMENTS) / 20)
                           for keys in held.values() for key in keys}
            for rank, keys in held.items():
                (np.concatenate([node_errors[key] for key in keys]).view(np.uint32) >> 16).astype(
                    np.uint16).tofile(directory / f"node_error.{rank}")
        job = self.run_job(size, directory, ",".join(map(str, nodes)), kind, BLOCK, ELEMENTS,
                           micro_batches, seed, program=PROGRAM)
        self.assertEqual(job.code, 0, job.output)
        sums, lost = self.simulate(nodes, kind, gradients, errors, seed, node_errors)
        whole = np.concatenate([rounded(w, kind, np.zeros(ELEMENTS, F32)) for w in weights])
        for rank in range(size):
            def got(what, dtype=F32):
                return np.fromfile(directory / f"{what}.{rank}", dtype)
            np.testing.assert_array_equal(got("sum").view(np.uint32), sums[rank].view(np.uint32))
            np.testing.assert_array_equal(got("gathered").view(np.uint32), whole.view(np.uint32))
            if feedback:
                np.testing.assert_array_equal(got("lost", np.uint16),
                                              lost[rank].view(np.uint32) >> 16)
            if of_nodes:
                want = np.concatenate([node_errors[key] for key in held[rank]])
                np.testing.assert_array_equal(got("node_lost", np.uint16),
                                              want.view(np.uint32) >> 16)

    def test_sums_and_gathers_are_those_of_the_simulation(self):
        for name, nodes in NODES.items():
            for kind in (*MOST, "sign"):
                with self.subTest(nodes=name, kind=kind):
                    self.exchange(f"{name} {kind}", nodes, kind, 2, 0, False)

    def test_errors_of_sums_of_nodes_are_too(self):
        """As momentum has them, which travels as signs."""
        for name in ("2x2", "2x3", "4x2"):
            for kind in ("sign", "int4"):
                with self.subTest(nodes=name, kind=kind):
                    self.exchange(f"{name} {kind} nodes", NODES[name], kind, 2, 0, True, True)

    def test_errors_and_chance_are_too(self):
        for name in ("2x2", "2x3", "2x2 dealt", "3x1"):
            for seed, feedback in ((0, True), (77, False), ((1 << 40) + 3, True)):
                with self.subTest(nodes=name, seed=seed, feedback=feedback):
                    self.exchange(f"{name} {seed} {feedback}", NODES[name], "int4", 3, seed,
                                  feedback)


if __name__ == "__main__":
    unittest.main(verbosity=2)
