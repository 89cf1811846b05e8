"""Where the program is: built in this checkout, installed with these tools, or on the PATH."""

import pathlib
import shutil


def find():
    root = pathlib.Path(__file__).resolve().parent.parent
    # share/tessera/tools of an installation lies beside its bin
    for place in (root / "build" / "tessera", root.parent.parent / "bin" / "tessera"):
        if place.exists():
            return str(place)
    return shutil.which("tessera") or str(root / "build" / "tessera")
