"""What tools/pack makes runs on a node that has glibc, a shell and nothing else, wherever it is."""

import os
import pathlib
import re
import shutil
import subprocess
import unittest

from tessera import BINARY, SOURCE, RunTest, change, metrics, tiny_deck, to_toml

GLIBC = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2")
# A root of its own: glibc's libraries and a shell, all else of it is the kernel's.
ENTER = """set -e
for part in proc sys dev; do
  mkdir -p "$1/$part"
  mount --rbind "/$part" "$1/$part"
done
exec chroot "$@"
"""
RUN = """. {folder}/tools/mpi_environment
export OMP_NUM_THREADS=1
exec {folder}/mpirun -n 2 {folder}/tessera train /work/{name}.toml
"""


class Pack(RunTest):
    def setUp(self):
        super().setUp()
        self.root = self.dir / "root"
        enter = ["unshare", "--mount", "--map-root-user", "true"]
        if subprocess.run(enter, capture_output=True).returncode != 0:
            self.skipTest("no mount namespace can be made here, which an empty root takes")

    def pack(self, *arguments):
        command = [SOURCE / "tools" / "pack", "--build", pathlib.Path(BINARY).parent, *arguments]
        job = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if "only Open MPI can be packed" in job.stderr:
            self.skipTest(job.stderr.strip())
        return job

    def make_root(self):
        for place in ("bin", "lib64", "tmp", "work", "opt", "srv"):
            (self.root / place).mkdir(parents=True)
        words = subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True,
                               check=True).stdout.split()
        loader = next(w for w in words if "/ld-linux" in w)
        libc = next(w for w in words if w.startswith("/") and "/libc.so" in w)
        place = self.root / pathlib.Path(libc).parent.relative_to("/")
        place.mkdir(parents=True, exist_ok=True)
        for name in GLIBC:
            shutil.copy(pathlib.Path(libc).parent / name, place)
        (self.root / loader.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(loader, self.root / loader.lstrip("/"))
        shutil.copy("/bin/sh", self.root / "bin" / "sh")

    def train_inside(self, name, folder, settings=None):
        """Losses of a run of two ranks in the empty root, packed in `folder` there."""
        shutil.copy(f"{self.corpus}.bin", self.root / "work")
        shutil.copy(f"{self.corpus}.idx", self.root / "work")
        deck = change(tiny_deck("/work/tokens", run__dir=f"/work/{name}", zero__stage=3))
        (self.root / "work" / f"{name}.toml").write_text(to_toml(deck))
        job = subprocess.run(
            ["unshare", "--mount", "--map-root-user", "sh", "-c", ENTER, "sh", str(self.root),
             "/bin/sh", "-c", RUN.format(folder=folder, name=name)],
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **(settings or {})},
            capture_output=True, text=True, timeout=60)
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        steps = metrics.last_steps(metrics.read_events(self.root / "work" / name))
        return [e["loss"] for e in steps.values()]

    def test_runs_in_an_empty_root_and_after_it_was_moved(self):
        self.make_root()
        archive = self.dir / "packed.tar.zst"
        job = self.pack("--out", archive)
        self.assertEqual(job.returncode, 0, job.stderr)
        mib = archive.stat().st_size / 2 ** 20
        self.assertLessEqual(mib, 60)
        self.assertRegex(job.stdout, rf"^{archive}: [\d.]+ MiB, {mib:.1f} as an archive\n$")
        subprocess.run(["cmake", "-E", "tar", "xf", archive], cwd=self.root / "opt", check=True)
        [folder] = (self.root / "opt").iterdir()
        self.assertRegex(folder.name, r"^tessera-\d")
        self.find_libraries_as_the_readme_says(folder)
        first = self.train_inside("first", f"/opt/{folder.name}")
        folder.rename(self.root / "srv" / "moved")
        self.assertEqual(self.train_inside("second", "/srv/moved"), first)
        want = self.train(2, self.deck("here", tiny_deck(self.corpus, zero__stage=3)))
        self.assertEqual(first, [loss for loss, _ in want.values()])

    def test_ships_ucx_and_libfabric_and_runs_by_the_sites_mpi(self):
        """Both networks' libraries work over TCP in the empty root, where nothing else is."""
        self.make_root()
        job = self.pack("--out", self.root / "opt", "--with-fabric")
        if "install an Open MPI" in job.stderr:
            self.skipTest(job.stderr.strip())
        self.assertEqual(job.returncode, 0, job.stderr)
        [folder] = (self.root / "opt").iterdir()
        inside = f"/opt/{folder.name}"
        plain = self.train_inside("plain", inside)
        ucx = {"OMPI_MCA_pml": "ucx", "OMPI_MCA_opal_common_ucx_tls": "any",
               "OMPI_MCA_opal_common_ucx_devices": "any", "UCX_TLS": "tcp,self"}
        ofi = {"OMPI_MCA_pml": "cm", "OMPI_MCA_mtl": "ofi",
               "OMPI_MCA_opal_common_ofi_provider_include": "tcp;ofi_rxm"}
        for name, settings, way in (("ucx", ucx, ": ucx"), ("ofi", ofi, ": cm over ofi")):
            self.assertEqual(self.train_inside(name, inside, settings), plain, name)
            log = (self.root / "work" / name / "log.txt").read_text()
            self.assertRegex(log, rf"messages +by Open MPI v[\d.]+{way}\n")
        self.runs_by_the_sites_mpi(folder, plain)

    def runs_by_the_sites_mpi(self, folder, losses):
        """Without the folder's own libraries of MPI; an older one is refused."""
        [number] = re.findall(r"\[ \"\$number\" -ge (\d+) \]", (folder / "tessera").read_text())
        shutil.rmtree(folder / "lib" / "mpi")
        deck = self.deck("site", tiny_deck(self.corpus, zero__stage=3))
        environment = dict(os.environ, TESSERA_MPI="site", OMP_NUM_THREADS="1")
        job = subprocess.run([folder / "mpirun", "-n", "2", folder / "tessera", "train", deck],
                             capture_output=True, text=True, env=environment)
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        self.assertEqual([loss for loss, _ in self.numbers("site").values()], losses)
        ldd = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True)
        [libmpi] = re.findall(r"libmpi\.so\S* => (\S+)", ldd.stdout)
        site = self.dir / "old"
        site.mkdir()
        older = site / f"libmpi.so.40.{int(number) - 1}.0"
        shutil.copy(libmpi, older)
        (site / pathlib.Path(libmpi).name).symlink_to(older.name)
        for change_, text in (({"LD_LIBRARY_PATH": str(site)}, "is older than the Open MPI"),
                              ({"TESSERA_MPI": "mine"}, "it is pack (the default) or site")):
            job = subprocess.run([folder / "tessera", "--version"], capture_output=True, text=True,
                                 env={**environment, **change_})
            self.assertEqual(job.returncode, 2, job.stdout)
            self.assertIn(text, job.stderr)

    def find_libraries_as_the_readme_says(self, folder):
        """The tests' commands come after one that lets the loader find CUDA's libraries."""
        readme = (folder / "README.md").read_text()
        [export] = re.findall(r"^ +(export LD_LIBRARY_PATH=.*)$", readme, re.MULTILINE)
        for command in ("./test_kernels_gpu", "python3 tests/run/gpu_test.py"):
            self.assertLess(readme.index(export), readme.index(command))
        library = self.dir / "site" / "nvidia" / "cublas" / "lib"
        library.mkdir(parents=True)
        job = subprocess.run(
            ["sh", "-c", f"{export}; echo $LD_LIBRARY_PATH"], cwd=folder, capture_output=True,
            text=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LD_LIBRARY_PATH": "/before",
                            "PYTHONPATH": str(self.dir / "site")})
        paths = job.stdout.strip().split(":")
        self.assertEqual(paths[0], "/before", job.stderr)
        self.assertIn(str(library), paths)

    def test_is_refused_when_it_is_too_large_or_there_is_nothing_to_pack(self):
        job = self.pack("--out", self.dir, "--limit", 1)
        self.assertEqual(job.returncode, 1)
        self.assertRegex(job.stderr, r"an archive of [\d.]+ MiB, more than --limit 1; the largest "
                                     r"of what is in it: \w+/")
        job = self.pack("--build", self.dir, "--out", self.dir)
        self.assertEqual(job.returncode, 1)
        self.assertIn("build it first", job.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
