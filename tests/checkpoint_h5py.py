#!/usr/bin/env python3
"""Prints every tensor of a checkpoint: name, type, shape, sum.

    checkpoint_h5py.py CHECKPOINT [EXPECTED]

EXPECTED is a directory with the raw elements of each tensor in STATE/NAME, to be compared.
"""
import pathlib
import sys

import h5py
import numpy


def elements(dataset):
    """As stored; bf16, which HDF5 and NumPy do not know, as the f32 with the same value."""
    values = dataset[...]
    if dataset.attrs["dtype"].decode() == "bf16":
        return (values.astype(numpy.uint32) << 16).view(numpy.float32)
    return values


with h5py.File(pathlib.Path(sys.argv[1]) / "model.h5") as model:
    for state, tensors in model.items():
        for name, dataset in tensors.items():
            values = elements(dataset)
            print(f"{state}/{name} {dataset.attrs['dtype'].decode()} {values.shape} "
                  f"{values.sum(dtype=numpy.float64):.17g}")
            if len(sys.argv) > 2:
                raw = (pathlib.Path(sys.argv[2]) / state / name).read_bytes()
                assert dataset[...].tobytes() == raw, f"{dataset.name} differs"
