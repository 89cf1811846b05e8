"""tessera doctor: what it finds on this machine, in poor and in broken surroundings, and its exit
code."""

import os
import re
import struct
import subprocess
import unittest

from tessera import BINARY, TIMEOUT, RunTest, tiny_deck

LINE = re.compile(r"^(good|poor|broken) +(.{20})(.*)$")


class Doctor(RunTest):
    def rows(self, output):
        """{name: (health, what it says, how to mend it)}; of several of a name the worst."""
        found, order = {}, ["good", "poor", "broken"]
        last = None
        for line in output.splitlines():
            row = LINE.match(line)
            if row:
                last = row[2].strip()
                new = [row[1], row[3], ""]
                if last not in found or order.index(found[last][0]) < order.index(row[1]):
                    found[last] = new
                last = new
            elif line.strip().startswith("fix: ") and last:
                last[2] = line.strip()[5:]
        return found

    def test_this_machine(self):
        job = self.run_job(0, "doctor", "--dir", self.dir)
        self.assertEqual(job.code, 0, job.output)
        rows = self.rows(job.output)
        for name in ("MPI", "launcher", "fabric", "GPUs", "HDF5", "cores", "locked memory",
                     "open files", "huge pages", "asynchronous I/O", "run directory", "directory",
                     "device"):
            self.assertIn(name, rows, job.output)
        self.assertRegex(rows["MPI"][1], r"(Open MPI|MPICH).*[0-9]+\.[0-9]+.*/libmpi")
        self.assertRegex(rows["HDF5"][1], r"^1\.[0-9]+\.[0-9]+, in /")
        self.assertIn(str(self.dir), rows["directory"][1])
        self.assertRegex(rows["directory"][1], "free, .*writes [0-9.]+ GB/s, reads [0-9.]+ GB/s")
        self.assertEqual(list(self.dir.glob("**/tessera_doctor_*")), [], "nothing is left behind")
        self.assertNotIn("broken ", job.output)
        self.assertRegex(job.output, "[0-9]+ good, [0-9]+ poor, 0 broken\n$")
        for health, _, fix in rows.values():
            self.assertEqual(health == "poor", fix != "", job.output)

    def test_a_low_limit_is_poor_and_says_what_mends_it(self):
        job = subprocess.run(["sh", "-c", 'ulimit -S -n 200; exec "$0" doctor', BINARY],
                             capture_output=True, text=True, timeout=TIMEOUT, cwd=self.dir)
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        health, what, fix = self.rows(job.stdout)["open files"]
        self.assertEqual(health, "poor", what)
        self.assertTrue(what.startswith("200 for each process"), what)
        self.assertRegex(fix, "^ulimit -n [0-9]+ before the launcher$")
        job = subprocess.run(["sh", "-c", 'ulimit -n 200; exec "$0" doctor', BINARY],
                             capture_output=True, text=True, timeout=TIMEOUT, cwd=self.dir)
        self.assertIn("administrator", self.rows(job.stdout)["open files"][2])

    def test_ranks_measure_their_links(self):
        job = self.run_job(3, "doctor", each=True, env={"OMP_NUM_THREADS": str(os.cpu_count())})
        self.assertEqual(job.codes, [0, 0, 0], job.output)
        rows = self.rows(job.output)
        self.assertRegex(rows["links within nodes"][1], r"^3 pairs of ranks: [0-9.]+ GB/s each way")
        self.assertIn("3 ranks on 1 node", rows["launcher"][1])
        self.assertNotIn("none: this process is alone", rows["launcher"][1])
        self.assertEqual(job.output.count("open files"), 1, "nodes and ranks that are alike")
        health, what, fix = rows["cores"]
        self.assertEqual(health, "poor", what)
        self.assertIn("take turns on", fix)

    def test_what_is_broken_gives_the_exit_code_of_a_run(self):
        good = self.deck("good", tiny_deck(self.corpus, offload__optimizer="nvme",
                                           offload__nvme=[str(self.dir)]))
        job = self.run_job(0, "doctor", "--deck", good)
        self.assertEqual(job.code, 0, job.output)
        rows = self.rows(job.output)
        self.assertIn("tokens.bin", rows["data"][1])
        self.assertIn(str(self.dir), rows["offload.nvme"][1])

        job = self.run_job(2, "doctor", "--deck", good, "--set",
                           f"data.train=['{self.dir}/none']", each=True)
        self.assertEqual(job.codes, [3, 3], job.output)
        health, what, fix = self.rows(job.output)["data"]
        self.assertEqual(health, "broken", job.output)
        self.assertIn(f"{self.dir}/none", what)
        self.assertIn("token files", fix)
        self.assertIn("a run would end with exit code 3", job.output)

        # A glob names files that are there; a prefix without .idx does not.
        (self.dir / "tokens.bin").rename(self.dir / "alone.bin")
        job = self.run_job(0, "doctor", "--deck", good, "--set",
                           f"data.train=['{self.dir}/alone']")
        self.assertEqual(job.code, 3, job.output)
        self.assertIn("alone.idx", self.rows(job.output)["data"][1])
        shard = struct.pack("<3i1012x", 20240520, 1, 2000) + bytes(4000)
        for name in ("one", "two"):
            (self.dir / f"shard_{name}.bin").write_bytes(shard)
        job = self.run_job(0, "doctor", "--deck", good, "--dir", self.dir / "later", "--set",
                           f"data.train=['{self.dir}/shard_*.bin']")
        self.assertEqual(job.code, 0, job.output)
        rows = self.rows(job.output)
        self.assertIn("the largest of 2 files", rows["data"][1])
        self.assertIn(f"{self.dir} (where {self.dir}/later will be made)", rows["directory"][1])

        job = self.run_job(0, "doctor", "--dir", "")
        self.assertEqual(job.code, 7, job.output)
        self.assertEqual(self.rows(job.output)["directory"][0], "broken")
        job = self.run_job(0, "doctor", "--set", "run.steps=1")
        self.assertEqual(job.code, 2, job.output)
        job = self.run_job(0, "doctor", "--dir", "/proc/self")
        self.assertEqual(job.code, 7, job.output)
        self.assertEqual(self.rows(job.output)["directory"][0], "broken")
        job = self.run_job(0, "doctor", "--deck", self.dir / "none.toml")
        self.assertEqual(job.code, 2, job.output)


if __name__ == "__main__":
    unittest.main(verbosity=2)
