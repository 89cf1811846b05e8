"""Python packages for tests that want real ones: each set is installed once, into an environment of
its own in the cache that tools/install_packages uses too."""

import os
import pathlib
import shutil
import subprocess
import sys

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")


def python_with(*packages, dependencies=True):
    """(the Python that has these, ""), or (None, why there is none); packages are NAME==VERSION."""
    place = CACHE / "tessera" / "-".join(["python", *(p.replace("==", "-") for p in packages)])
    python, complete = place / "bin" / "python", place / "complete"
    if complete.exists():
        return str(python), ""
    shutil.rmtree(place, ignore_errors=True)
    install = [python, "-m", "pip", "install", "-q", "--only-binary=:all:", *packages]
    for command in ([sys.executable, "-m", "venv", place],
                    install + ([] if dependencies else ["--no-deps"])):
        job = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if job.returncode != 0:
            last = (job.stderr or job.stdout).strip().splitlines()[-1:]
            return None, f"{' and '.join(packages)} cannot be installed: {' '.join(last)}"
    complete.touch()
    return str(python), ""
