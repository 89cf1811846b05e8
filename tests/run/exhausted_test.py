"""Memory and threads that the system does not give: exit code 4 with a message, whatever asks."""

import os
import shutil
import signal
import unittest

from tessera import BINARY, RunTest, tiny_deck

MEMORY = 4
PEER = 5
FEW = {"run__steps": 2, "checkpoint__every": 1, "data__validation": None}


def preloaded(**refusals):
    return {"LD_PRELOAD": os.environ["TESSERA_FAILING_CALLS"],
            **{f"TESSERA_REFUSE_{kind.upper()}": str(n) for kind, n in refusals.items()}}


class Exhausted(RunTest):
    def last_refused(self, codes_of, first, step):
        """Refuses the n-th call for n = first, first + step(first), ... until nothing is refused any
        more; every time before, the code is MEMORY. Returns n."""
        n = first
        while True:
            code, output = codes_of(n)
            if code == 0:
                return n
            self.assertEqual(code, MEMORY, f"call {n}:\n{output}")
            n = step(n)

    def outcome(self, *arguments, **refusals):
        job = self.run_job(0, *arguments, env=preloaded(**refusals))
        return job.code, job.output

    def test_memory_of_single_verbs(self):
        """Each early allocation, then ever fewer: those of the plan are many and alike."""
        deck = self.deck("check", tiny_deck(self.corpus))
        for arguments in (["check", deck, "--ranks", "2"], ["plan", deck, "--ranks", "2"]):
            with self.subTest(arguments[0]):
                last = self.last_refused(lambda n: self.outcome(*arguments, new=n), 0,
                                         lambda n: n + 13 + n // 6)
                self.assertGreater(last, 1000)

    def test_memory_of_a_run(self):
        deck = self.deck("train", tiny_deck(self.corpus, **FEW))

        def train(n):
            shutil.rmtree(self.dir / "train", ignore_errors=True)
            code, output = self.outcome("train", deck, new=n)
            if code == 0:
                self.assertEqual(len(self.numbers("train")), 2, f"{n}: {output}")
            else:
                self.assertIn("memory", output)
            return code, output

        last = self.last_refused(train, 0, lambda n: n + 101 + n // 5)
        self.assertGreater(last, 5000)

    def test_threads_of_a_run(self):
        deck = self.deck("train", tiny_deck(self.corpus, **FEW))

        def train(n):
            shutil.rmtree(self.dir / "train", ignore_errors=True)
            code, output = self.outcome("train", deck, thread=n)
            if code != 0:
                for word in ("cannot start the thread", "ulimit -u", "Resource temporarily"):
                    self.assertIn(word, output)
            return code, output

        self.assertGreaterEqual(self.last_refused(train, 0, lambda n: n + 1), 4)

    def test_threads_of_one_rank_of_several(self):
        """Whatever the others are doing, they learn of it: by agreement or by the watchdog."""
        deck = self.deck("train", tiny_deck(self.corpus, **FEW))
        one = 'if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then export LD_PRELOAD=$LIBRARY; fi'
        for n in range(20):
            with self.subTest(n=n):
                shutil.rmtree(self.dir / "train", ignore_errors=True)
                job = self.run_job(2, "-c", f'{one}; exec "$@"', "sh", BINARY, "train", deck,
                                   program="sh", each=True,
                                   env={"LIBRARY": os.environ["TESSERA_FAILING_CALLS"],
                                        "TESSERA_REFUSE_THREAD": str(n)})
                if job.codes == [0, 0]:
                    break
                self.assert_codes(job.codes, [[MEMORY, PEER], [MEMORY]], job.output)
                self.assertIn("cannot start the thread", job.output)
        self.assertGreaterEqual(n, 5)

    def test_a_team_that_openmp_cannot_have(self):
        """OpenMP itself would end the process with a code of its own."""
        deck = self.deck("team", tiny_deck(self.corpus, run__threads=64, **FEW))
        code, output = self.outcome("train", deck, thread=20)
        self.assertEqual(code, MEMORY, output)
        self.assertIn("run.threads", output)

    def test_a_limit_on_addresses(self):
        """From far too little to plenty. Libraries have ends of their own where they find no memory:
        the dynamic loader (exit code 127), libgomp and libnuma where they start (1); and those that
        these verbs do not call, Open MPI in MPI_Init (1) and HDF5 where it starts or makes a dataset
        (SIGSEGV, 255)."""
        deck = self.deck("small", tiny_deck(self.corpus))

        def limited(mebibytes, verb):
            return self.run_job(0, "-c", f'ulimit -v {mebibytes * 1024}; exec "$@"', "sh", BINARY,
                                verb, deck, "--ranks", "2", program="sh")

        for verb in ("check", "plan"):
            loaded = next(m for m in range(40, 140, 5) if limited(m, verb).code != 127)
            codes = []
            for mebibytes in (*range(loaded - 10, loaded + 15), *range(loaded + 15, 140, 5), 4000):
                job = limited(mebibytes, verb)
                codes.append(job.code)
                if job.code == MEMORY:  # where there is no memory for more, in three words
                    self.assertRegex(job.output, "ulimit -v|out of memory")
                if job.code == 1:
                    self.assertRegex(job.output, "libgomp: Out of memory|Out of memory allocating bitmask")
            self.assertLessEqual(set(codes), {127, 1, -signal.SIGSEGV, MEMORY, 0}, codes)
            self.assertEqual(codes[-1], 0)
            self.assertIn(MEMORY, codes)


if __name__ == "__main__":
    unittest.main(verbosity=2)
