"""The packages that `cpack` makes of this build run in an empty root: the .deb with what it says it
needs and nothing else, and what the archive holds is the same program."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

from tessera import BINARY, RunTest, metrics, tiny_deck, to_toml

ENTER = """set -e
for part in proc sys dev; do
  mount --rbind "/$part" "$1/$part"
done
exec chroot "$@"
"""
# Debian's alternatives are links that installing makes, so the launcher goes by its own name.
RUN = "exec orterun -n 2 tessera train /work/deck.toml"


def installed_packages():
    """{package: what it needs} of this machine."""
    form = "${db:Status-Abbrev}\t${Package}\t${Pre-Depends},${Depends}\n"
    job = subprocess.run(["dpkg-query", "-W", "-f", form], capture_output=True, text=True,
                         check=True)
    rows = (line.split("\t") for line in job.stdout.splitlines())
    return {name: needs for status, name, needs in rows if status.startswith("ii")}


def closure(dependencies, installed):
    """Packages that these need, and what those need. Of alternatives the first that is installed
    is taken; what is not is virtual, and some other package is there for it."""
    found, todo = set(), [dependencies]
    while todo:
        for alternatives in todo.pop().split(","):
            names = [re.sub(r"[\s(:].*", "", a.strip()) for a in alternatives.split("|")]
            package = next((n for n in names if n in installed), None)
            if package and package not in found:
                found.add(package)
                todo.append(installed[package])
    return found


class Packages(RunTest):
    def setUp(self):
        super().setUp()
        for tool in ("cpack", "dpkg-deb", "dpkg-query", "dpkg-shlibdeps"):
            if not shutil.which(tool):
                self.skipTest(f"no {tool} here, with which packages are made")
        enter = ["unshare", "--mount", "--map-root-user", "true"]
        if subprocess.run(enter, capture_output=True).returncode != 0:
            self.skipTest("no mount namespace can be made here, which an empty root takes")
        self.root = self.dir / "root"

    def command(self, *words, **options):
        job = subprocess.run(list(map(str, words)), capture_output=True, text=True, **options)
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        return job.stdout

    def make_root(self):
        for place in ("bin", "sbin", "lib", "lib64"):
            (self.root / "usr" / place).mkdir(parents=True)
            (self.root / place).symlink_to(f"usr/{place}")
        for place in ("proc", "sys", "dev", "tmp", "work"):
            (self.root / place).mkdir()
        shutil.copy("/bin/sh", self.root / "bin" / "sh")

    def add_packages(self, names):
        """The files of installed packages, as installing them would unpack them."""
        for line in self.command("dpkg-query", "-L", *sorted(names)).splitlines():
            if not line.startswith("/"):
                continue
            path = pathlib.Path(line)
            to = self.root / path.relative_to("/")
            documents = (path.is_relative_to("/usr/share")
                         and not path.is_relative_to("/usr/share/openmpi"))
            if (path.is_dir() and not path.is_symlink()) or documents or os.path.lexists(to):
                continue
            if os.path.lexists(path):  # some systems leave documents out
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to, follow_symlinks=False)

    def test_run_in_an_empty_root(self):
        made = self.dir / "packages"
        self.command("cpack", "--config", pathlib.Path(BINARY).parent / "CPackConfig.cmake", "-B",
                     made)
        [deb], [archive] = made.glob("tessera_*.deb"), made.glob("tessera-*.tar.zst")
        self.make_root()
        self.command("dpkg-deb", "-x", deb, self.root)
        needed = self.command("dpkg-deb", "-f", deb, "Depends")
        self.assertIn("openmpi-bin", needed)
        self.add_packages(closure(needed, installed_packages()))
        for end in ("bin", "idx"):
            shutil.copy(f"{self.corpus}.{end}", self.root / "work")
        deck = tiny_deck("/work/tokens", run__dir="/work/run", zero__stage=3)
        (self.root / "work" / "deck.toml").write_text(to_toml(deck))
        self.command("unshare", "--mount", "--map-root-user", "sh", "-c", ENTER, "sh", self.root,
                     "/bin/sh", "-c", RUN, timeout=60,
                     env={**os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                          "OMPI_MCA_plm": "^rsh", "HOME": "/"})
        steps = metrics.last_steps(metrics.read_events(self.root / "work" / "run"))
        want = self.train(2, self.deck("here", tiny_deck(self.corpus, zero__stage=3)))
        self.assertEqual([e["loss"] for e in steps.values()], [loss for loss, _ in want.values()])
        self.command("cmake", "-E", "tar", "xf", archive, cwd=self.dir)
        [folder] = self.dir.glob("tessera-*")
        self.assertEqual((folder / "bin" / "tessera").read_bytes(),
                         (self.root / "usr" / "bin" / "tessera").read_bytes())


if __name__ == "__main__":
    unittest.main(verbosity=2)
