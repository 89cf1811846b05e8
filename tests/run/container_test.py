"""tools/packaging/Containerfile builds a container, with podman or buildah, in which a job of two
ranks trains. By name only: it compiles everything, in Debian's image."""

import os
import shutil
import subprocess
import unittest

from tessera import SOURCE, RunTest, metrics, tiny_deck, to_toml

BASE = os.environ.get("TESSERA_CONTAINER_BASE", "docker.io/library/debian:12-slim")
RUN = """. /etc/os-release && echo "$PRETTY_NAME"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMP_NUM_THREADS=1
exec mpirun -n 2 tessera train /work/deck.toml"""


class Container(RunTest):
    def setUp(self):
        super().setUp()
        self.tool = next(filter(None, map(shutil.which, ("podman", "buildah"))), None)
        if self.tool is None:
            self.skipTest("neither podman nor buildah is here")
        self.podman = self.tool.endswith("podman")
        if self.run_tool("images", "-q", BASE).stdout.strip():
            return
        job = self.run_tool("pull", BASE)
        if job.returncode != 0:
            self.skipTest(f"{self.tool} pull {BASE}: {job.stderr.strip().splitlines()[-1]}")

    def run_tool(self, *words):
        # Without a runtime of containers, which wants more of the machine than a test should.
        environment = {"BUILDAH_ISOLATION": "chroot", **os.environ}
        return subprocess.run([self.tool, *map(str, words)], capture_output=True, text=True,
                              env=environment)

    def command(self, *words):
        job = self.run_tool(*words)
        self.assertEqual(job.returncode, 0, job.stdout[-3000:] + job.stderr[-3000:])
        return job.stdout

    def run_inside(self, image, *words):
        mount = f"{self.dir}:/work"
        if self.podman:
            return self.command("run", "--rm", "--network=host", "-v", mount, image, *words)
        container = self.command("from", image).strip()
        self.addCleanup(self.run_tool, "rm", container)
        return self.command("run", "--network=host", "-v", mount, container, "--", *words)

    def test_is_built_and_trains(self):
        image = "localhost/tessera-test"
        self.command("build", "--build-arg", f"BASE={BASE}", "-t", image, "-f",
                     SOURCE / "tools" / "packaging" / "Containerfile", SOURCE)
        self.addCleanup(self.run_tool, "rmi", image)
        deck = tiny_deck("/work/tokens", run__dir="/work/run", zero__stage=3)
        (self.dir / "deck.toml").write_text(to_toml(deck))
        self.assertIn("Debian", self.run_inside(image, "sh", "-c", RUN))
        steps = metrics.last_steps(metrics.read_events(self.dir / "run"))
        self.assertEqual(list(steps), list(range(1, 13)))


if __name__ == "__main__":
    unittest.main(verbosity=2)
