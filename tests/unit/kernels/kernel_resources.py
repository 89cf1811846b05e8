#!/usr/bin/env python3
"""What each CUDA kernel takes of a multiprocessor, from the built library: a table for people, and a
test. Every architecture must have every kernel, and none may keep anything in local memory (spilled
registers, arrays that are indexed at run time) but those named here, with the reason.

usage: kernel_resources.py CUOBJDUMP LIBRARY TABLE ARCHITECTURES..."""

import re
import subprocess
import sys

LOCAL_MEMORY = {
    "turns_kernel": "sine and cosine in double reduce large arguments with an array; it runs once "
    "for a position and column, not for an element",
}


def usage(cuobjdump, library):
    """{architecture: {kernel: (registers, shared, stack, local)}}"""
    text = subprocess.run([cuobjdump, "-res-usage", library], capture_output=True, text=True,
                          check=True).stdout
    kernels, architecture, name = {}, None, None
    for line in text.splitlines():
        if match := re.match(r"arch = (\w+)", line):
            architecture = kernels.setdefault(match[1], {})
        elif match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
        elif match := re.search(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)", line):
            registers, stack, shared, local = map(int, match.groups())
            architecture[name] = (registers, shared, stack, local)
    return kernels


def demangled(names):
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True,
                          check=True).stdout
    short = (re.sub(r"tessera::(kernels::(cuda::)?)?", "", line) for line in text.splitlines())
    return dict(zip(names, short))


def main():
    cuobjdump, library, table, *architectures = sys.argv[1:]
    kernels = usage(cuobjdump, library)
    every = sorted(set().union(*kernels.values()))
    names = demangled(every)
    wrong = [] if every else ["no kernels"]
    with open(table, "w", encoding="utf-8") as out:
        print("arch    registers  shared  stack  local  kernel", file=out)
        for architecture in architectures:
            found = kernels.get(architecture, {})
            for kernel in every:
                if kernel not in found:
                    wrong.append(f"{architecture} lacks {names[kernel]}")
                    continue
                registers, shared, stack, local = found[kernel]
                print(f"{architecture:7} {registers:9} {shared:7} {stack:6} {local:6}  "
                      f"{names[kernel]}", file=out)
                if stack + local and not any(known in names[kernel] for known in LOCAL_MEMORY):
                    wrong.append(f"{architecture}: {stack + local} bytes of local memory in "
                                 f"{names[kernel]}")
    print(f"{len(every)} kernels, table in {table}")
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
