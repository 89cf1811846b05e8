"""Jobs on a real Slurm: the shipped batch scripts, runs over several nodes, and everything that
ends a job early. Whatever ended it, it goes on with the very numbers of a run that nothing ended.

Each test starts a Slurm of its own; see slurm.py. Several tests that are named to this program run
beside each other, for they wait for Slurm most of their time."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import unittest

import slurm
from tessera import (BINARY, NO_LARGER_FILES, SOURCE, TIMES_SLOWER, RunTest, change, fill, metrics,
                     tiny_deck, to_toml)

ENDLESS = 1_000_000
TOLERANCE = 1e-5  # between numbers of ranks: see run/equivalence_test.py
FRAME_HEADERS = 66 / 1448  # Ethernet's, IP's and TCP's, of what a full frame carries

# A model of seconds in place of the shipped decks' own.
SMALL = {"model.layers": 2, "model.heads": 3, "model.kv_heads": 3, "model.hidden": 24,
         "model.ffn_hidden": 48, "model.vocab": 97, "model.context": 16, "batch.sequence": 16,
         "batch.micro": 1, "batch.global": 8, "evaluate.batches": 1, "run.steps": 12}


class Cluster(RunTest):
    def setUp(self):
        super().setUp()
        os.environ.update(TESSERA=BINARY, TESSERA_MARGIN="5", SLURM_WAIT="5")
        (self.dir / "slurm").symlink_to(SOURCE / "slurm")  # where jobs are submitted from
        self.slurm = slurm.Slurm(self.dir / "cluster", nodes=3)
        self.addCleanup(self.slurm.down)

    def sbatch(self, *arguments):
        """Submits; returns the job's number."""
        return int(slurm.run("sbatch", "--parsable", *arguments, cwd=self.dir))

    def log(self, job):
        path = self.dir / f"slurm-{job}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_job(self, job, condition, what):
        """Until condition(what scontrol shows of the job) holds."""
        def report():
            return f"job {job}: {what}\n{self.slurm.job(job)}\n{self.log(job)[-3000:]}"
        return slurm.wait_until(lambda: condition(self.slurm.job(job)), report)

    def finish(self, job, state="COMPLETED"):
        """Waits for the job's end; returns its log."""
        self.wait_for_job(job, lambda j: j["JobState"] not in ("PENDING", "RUNNING", "COMPLETING"),
                          "ends")
        self.assertEqual(self.slurm.job(job)["JobState"], state, self.log(job)[-3000:])
        return self.log(job)

    def srun(self, nodes, ranks, name, *options, **changes):
        """Trains interactively; returns {step: (loss, grad_norm)}."""
        deck = self.deck(name, tiny_deck(self.corpus, **changes))
        slurm.run("srun", f"--nodes={nodes}", f"--ntasks={ranks}", "--mpi=pmix", "--overcommit",
                  *options, BINARY, "train", deck, cwd=self.dir)
        return self.numbers(name)

    # Jobs that are disturbed ------------------------------------------------------------------

    CHANGES = {"schedule__kind": "constant", "zero__stage": 3}  # numbers do not depend on the end

    def write_deck(self, steps, **changes):
        """The deck that slurm/gpt2_124m.sbatch trains. It evaluates after every step: that takes
        its time and changes no number."""
        deck = tiny_deck(self.corpus, run__steps=steps, run__dir=str(self.dir / "run"),
                         data__validation=[str(self.corpus)], evaluate__every=1,
                         evaluate__batches=50 // TIMES_SLOWER, **self.CHANGES)
        (self.dir / "inputs").mkdir(exist_ok=True)
        (self.dir / "inputs" / "gpt2_124m.toml").write_text(to_toml(change(deck, **changes)))

    def submit_endless(self, *options, **changes):
        self.write_deck(ENDLESS, **changes)
        job = self.sbatch("--nodes=2", "--ntasks-per-node=1", *options, "slurm/gpt2_124m.sbatch")
        self.wait_for_job(job, lambda _: self.newest_step("run") >= 12, "trains")
        return job

    def check_restart(self, job, ranks=2, more=10, **changes):
        """The disturbed job starts again, and ends with the numbers of an undisturbed run. Returns
        (its log, the step that it resumed from)."""
        self.wait_for_job(job, lambda j: int(j["Restarts"]) > 0, "starts again")
        last = self.newest_step("run") + more
        self.write_deck(last, **changes)  # what the second start finds
        log = self.finish(job)
        want = self.srun(ranks, ranks, "undisturbed", run__steps=last, **self.CHANGES)
        self.assertEqual(self.numbers("run"), want)
        resumed = [e["step"] for e in metrics.read_events(self.dir / "run")
                   if e["event"] == "resume"]
        self.assertEqual(len(resumed), 1, log)
        return log, resumed[0]

    def assert_requeued(self, log, step, exit_code, stopped_by=None):
        """What the log of a job says that the script requeued once."""
        self.assertRegex(log, rf"requeued: exit {exit_code} \([^)]*\), "
                              rf"newest checkpoint step {step} \(was 0\)\n")
        if stopped_by:
            self.assertIn(f"stopped on request: {stopped_by} after step {step} ", log)

    def test_time_limit(self):
        """Slurm looks at time limits every 30 s, and sends the signal up to 30 s early."""
        job = self.submit_endless("--time=1", "--signal=B:USR1@20")
        self.assert_requeued(*self.check_restart(job), 85, "signal SIGUSR1")

    def test_deadline(self):
        """Without a signal that anybody heeds."""
        os.environ["TESSERA_MARGIN"] = "40"
        job = self.submit_endless("--time=1", "--signal=B:CONT@1")
        self.assert_requeued(*self.check_restart(job), 85, "run.deadline")

    def test_signal_by_hand(self):
        job = self.submit_endless()
        slurm.run("scancel", "--signal=USR1", job)
        self.assert_requeued(*self.check_restart(job), 85, "signal SIGUSR1")

    def test_killed_rank(self):
        job = self.submit_endless(checkpoint__every=5)
        self.kill_rank(self.nodes_of(job)[-1])
        self.assert_requeued(*self.check_restart(job, checkpoint__every=5), 137)

    def test_requeue_by_hand(self):
        job = self.submit_endless()
        slurm.run("scontrol", "requeue", job)
        log, step = self.check_restart(job)
        self.assertIn(f"stopped on request: signal SIGTERM after step {step} ", log)
        self.assertNotIn("requeued: ", log)  # Slurm did it, not the script
        self.assertIn(f"newest checkpoint step {step}\n", log)

    def test_node_failure(self):
        """Slurm itself requeues the job, on the nodes that are left."""
        job = self.submit_endless(checkpoint__every=5)
        self.slurm.kill_node(self.nodes_of(job)[-1])
        log, step = self.check_restart(job, checkpoint__every=5)
        self.assertGreaterEqual(step, 5)
        self.assertIn(f"newest checkpoint step {step}\n", log)

    def test_lost_daemon(self):
        """Slurm loses the only node of a job, whose rank works on there: the next start asks it to
        stop, and loses no step. The first start is slow, so that it does not get too far meanwhile."""
        self.write_deck(ENDLESS, fault__inject=["slow rank=0 step=1 ms=1000"])
        job = self.sbatch("--nodes=1", "--ntasks-per-node=1", "slurm/gpt2_124m.sbatch")
        self.wait_for_job(job, lambda _: self.newest_step("run") >= 3, "trains")
        self.slurm.kill_slurmd(self.nodes_of(job)[0])
        log, step = self.check_restart(job, ranks=1, more=60)
        self.assertIn("stopped: Slurm has lost a node of this start", log)
        self.assertRegex(log, r"an earlier start is still at work \(process \d+ on node\d, Slurm job "
                              rf"{job}\): asked to stop")
        self.assertIn(f"newest checkpoint step {step}\n", log)
        self.assertIn("; 0 steps are done again", log)

    def test_preemption(self):
        """A job of more urgent a partition wants the nodes."""
        job = self.submit_endless()
        other = self.sbatch("--partition=urgent", "--nodes=3", "--exclusive", "--wrap=true")
        log, step = self.check_restart(job)
        self.assertEqual(self.slurm.job(other)["JobState"], "COMPLETED")
        self.assertIn(f"stopped on request: signal SIGTERM after step {step} ", log)
        self.assertIn("; 0 steps are done again", log)

    def test_stop_file(self):
        """Whoever makes one wants the end of the run, not of a start."""
        job = self.submit_endless()
        (self.dir / "run" / "stop").touch()
        log = self.finish(job, "FAILED")
        step = self.newest_step("run")
        self.assertIn(f"stopped: exit 85 (stopped on request): stopped on request: the file stop, "
                      f"newest checkpoint step {step} (was 0)\n", log)
        self.assertEqual(self.slurm.job(job)["ExitCode"], "85:0")

    def test_code_of_the_rank_that_failed(self):
        """Rank 0 cannot write its log, and no watchdog lets the other leave by itself: srun shows
        the signal that ended that one."""
        self.write_deck(ENDLESS, guard__hang_timeout=0)
        (self.dir / "run").mkdir()
        fill(self.dir / "run" / "log.txt")
        limited = self.dir / "limited"
        limited.write_text(f'#!/bin/sh\nexec sh -c {shlex.quote(NO_LARGER_FILES)} {BINARY} "$@"\n')
        limited.chmod(0o755)
        os.environ["TESSERA"] = str(limited)
        job = self.sbatch("--nodes=2", "--ntasks-per-node=1", "slurm/gpt2_124m.sbatch")
        log = self.finish(job, "FAILED")
        self.assertRegex(log, r"task 1: (Killed|Terminated)")
        self.assertRegex(log, r"stopped: exit 7 \(I/O\): rank 0 on node\d: .*log.txt: File too large")

    def nodes_of(self, job):
        return slurm.run("scontrol", "show", "hostnames", self.slurm.job(job)["NodeList"]).split()

    def kill_rank(self, node):
        """kill -9 of the rank on a node."""
        init = slurm.children(self.slurm.processes[node].pid)[0]
        ranks = [p for p in slurm.descendants(init) if slurm.command(p)[:2] == [BINARY, "train"]]
        self.assertEqual(len(ranks), 1)
        os.kill(ranks[0], 9)

    def test_no_requeue(self):
        """Faults that starting again would not mend, and jobs that somebody ended."""
        self.write_deck(ENDLESS, data__train=["no_such_tokens"])
        job = self.sbatch("--nodes=1", "--ntasks-per-node=1", "slurm/gpt2_124m.sbatch")
        self.assertRegex(self.finish(job, "FAILED"), "stopped: tessera check refuses .*toml\n")

        self.write_deck(ENDLESS, model__vocab=50)  # of which tokens of the corpus are not
        job = self.sbatch("--nodes=1", "--ntasks-per-node=1", "slurm/gpt2_124m.sbatch")
        log = self.finish(job, "FAILED")
        self.assertRegex(log, r"stopped: exit 3 \(data or checkpoint unusable\), ")

        self.write_deck(ENDLESS)
        job = self.sbatch("--nodes=1", "--ntasks-per-node=1",
                          "--export=ALL,TESSERA_MACHINE=unknown", "slurm/gpt2_124m.sbatch")
        self.assertIn("stopped: TESSERA_MACHINE=unknown has no ", self.finish(job, "FAILED"))

        job = self.sbatch("--nodes=1", "--ntasks-per-node=1", "slurm/gpt2_124m.sbatch",
                          "--set", "model.layer=3")
        log = self.finish(job, "FAILED")
        self.assertRegex(log, "stopped: tessera check refuses .*layer=3\n")
        self.assertIn("model.layers", log)

        job = self.submit_endless()
        slurm.run("scontrol", "update", f"JobId={job}", "Requeue=0")
        slurm.run("scancel", "--signal=USR1", job)
        self.assertIn("stopped: cannot requeue", self.finish(job, "FAILED"))
        self.assertEqual(self.slurm.job(job)["ExitCode"], "85:0")

        shutil.rmtree(self.dir / "run")
        job = self.submit_endless()
        slurm.run("scancel", job)
        log = self.finish(job, "CANCELLED")
        self.assertRegex(log, r"stopped: exit 85 .*Slurm ended the job before its time\n")

    def test_fruitless_starts_end(self):
        """A rank that dies before every first checkpoint: four starts, then the job gives up."""
        self.write_deck(ENDLESS)
        job = self.sbatch("--nodes=1", "--ntasks-per-node=1", "slurm/gpt2_124m.sbatch")
        for start in range(4):
            self.wait_for_job(job, lambda _: self.log(job).count("step 1/") > start, "trains")
            self.kill_rank(self.nodes_of(job)[0])
        log = self.finish(job, "FAILED")
        self.assertEqual(log.count("requeued: exit 137"), 3, log)
        self.assertIn("4 starts in a row without a new one", log)

    # Jobs that are not ------------------------------------------------------------------------

    def test_shipped_scripts(self):
        """Each with its own deck, but a small model."""
        (self.dir / "inputs").symlink_to(SOURCE / "inputs")
        corpus = f'["{self.corpus}"]'
        small = {**SMALL, "data.train": corpus, "data.validation": corpus,
                 "run.dir": self.dir / "{name}"}
        sets = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]

        jobs = {script.stem: self.sbatch("--nodes=2", "--ntasks-per-node=1",
                                         script.relative_to(SOURCE), *sets)
                for script in sorted((SOURCE / "slurm").glob("*.sbatch"))}
        self.assertGreaterEqual(len(jobs), 6)
        for name, job in jobs.items():
            self.assertRegex(self.finish(job), "done, newest checkpoint step 12\n")
            self.assertEqual(list(self.numbers(name)), list(range(1, 13)))

        one_rank = ("--nodes=1", "--ntasks-per-node=1")
        del os.environ["OMP_NUM_THREADS"]
        job = self.sbatch(*one_rank, "--gpus-per-node=1", "slurm/gpt2_124m.sbatch", *sets,
                          "--set", "run.name=alone", "--set", "run.steps=2")
        self.assertIn(f"each on {slurm.Slurm.CPUS} CPU thread", self.finish(job),
                      "a rank has the cores of its socket")
        job = self.sbatch(*one_rank, "--gpus-per-node=2", "slurm/gpt2_124m.sbatch", *sets)
        self.assertIn("stopped: GPUs a node: 2, ranks a node: 1: sbatch --ntasks-per-node=2",
                      self.finish(job, "FAILED"))

    def test_nothing_is_left(self):
        """Whoever kills a test's process, its cluster goes with it."""
        def processes():
            found = []
            for pid in os.listdir("/proc"):
                try:
                    words = slurm.command(pid) if pid.isdigit() else []
                except OSError:
                    continue  # it has just ended
                found += [words[0]] if words and "slurm" in words[0] else []
            return sorted(found)

        before = processes()
        process = subprocess.Popen(
            [sys.executable, slurm.__file__, "2", "sh", "-c", "echo up; sleep 1000"],
            stdout=subprocess.PIPE)
        self.assertEqual(process.stdout.readline(), b"up\n")
        self.assertGreater(len(processes()), len(before))
        process.kill()
        process.communicate()
        slurm.wait_until(lambda: processes() == before, processes)

    def test_several_nodes(self):
        """Where the ranks are changes no bit; another number of ranks only the order of sums."""
        two = self.srun(2, 2, "two_nodes", zero__stage=3)
        self.assertEqual(two, self.srun(1, 2, "one_node", zero__stage=3))
        self.assert_close(two, self.srun(1, 1, "one_rank", zero__stage=3), TOLERANCE,
                          "two nodes against one rank")

    def test_benchmark_of_links(self):
        """Each collective, and the MPI library's where there is one, as a share of the link."""
        text = slurm.run("srun", "--nodes=2", "--ntasks=4", "--mpi=pmix", "--overcommit", BINARY,
                         "bench", "collectives", "--repeats", 1)
        self.assertIn("4 ranks on 2 nodes", text)
        rows = [(line[:28].strip(), float(line.split()[-2])) for line in text.splitlines()
                if line.endswith(" %")]
        names = {name for name, share in rows}
        self.assertEqual(rows[0], ("link, one way", 100))
        for ours, library in (("all_gather", "MPI_Allgather"), ("all_to_all", "MPI_Alltoall"),
                              ("reduce_scatter", "MPI_Reduce_scatter")):
            self.assertLessEqual({ours, library}, names)
        self.assertLessEqual({"all_gather, int8", "reduce_scatter, int8", "reduce_scatter, int4"},
                             names)
        self.assertTrue(all(share > 0 for _, share in rows), text)

    def test_doctor(self):
        """What concerns several nodes at once is looked at, and nodes that are alike are one line."""
        text = slurm.run("srun", "--nodes=2", "--ntasks=4", "--mpi=pmix", "--overcommit",
                         BINARY, "doctor", cwd=self.dir)
        for words in ("PMI: PMIx; 4 ranks on 2 nodes", "all nodes see what rank 0 writes",
                      "no other is further away", " 0 broken"):
            self.assertIn(words, text)
        self.assertRegex(text, r"good +Slurm +slurm.*: .*pmix")
        self.assertRegex(text, r"links between nodes +4 pairs of ranks: [0-9.]+ GB/s each way")
        self.assertRegex(text, r"links within nodes +2 pairs of ranks: [0-9.]+ GB/s each way")
        for row in ("open files", "run directory +/.* free"):
            self.assertEqual(len(re.findall(f"^[a-z]+ +{row}", text, re.M)), 1, text)

    def test_auto_where_links_are_slow(self):
        self.slurm.limit(0.02)
        auto = {"zero.quantize__weights": "auto", "zero.quantize__gradients": "auto",
                "zero__secondary": "auto"}
        self.srun(2, 4, "auto", zero__stage=3, run__steps=2, model__hidden=96, **auto)
        log = (self.dir / "auto" / "log.txt").read_text()
        self.assertIn('"auto" makes zero.secondary = "node", zero.quantize.weights = "int8", '
                      'zero.quantize.gradients = "int4"', log)
        rate = float(re.search(r"([0-9.e-]+) GB/s a rank between nodes", log)[1])
        self.assertLess(rate, 0.02 / 8, "all that a node may send")

    def test_singletons(self):
        """A step whose tasks know nothing of each other is refused; one process of a job is not."""
        deck = self.deck("alone", tiny_deck(self.corpus, run__steps=1))
        def step(*verb):
            return subprocess.run(["srun", "--nodes=2", "--ntasks=2", "--mpi=none", "--overcommit",
                                   BINARY, *verb], capture_output=True, text=True, cwd=self.dir)

        refusal = "2 separate programs were started by srun"
        generate, train = step("generate", self.dir, "--prompt", "a"), step("train", deck)
        self.assertEqual(generate.returncode, 2, generate.stderr)
        self.assertIn(refusal, generate.stderr)
        # Open MPI 4 refuses by itself, in MPI_Init.
        self.assertNotEqual(train.returncode, 0, train.stderr)
        self.assertRegex(train.stderr, f"{refusal}|direct launched using")
        self.assertFalse((self.dir / "alone").exists(), "a run was begun")
        job = self.sbatch("--nodes=2", "--ntasks-per-node=1", "--overcommit",
                          f"--wrap={BINARY} check {deck} --ranks 1 && {BINARY} train {deck}")
        self.finish(job)
        self.assertEqual(list(self.numbers("alone")), [1])

    def test_networks_of_the_watchdog(self):
        """Neighbours on another node come by the way between the nodes, unless a deck knows one."""
        self.srun(2, 2, "chosen", guard__interface="10.77.0.0/16", run__steps=1)
        deck = self.deck("none", tiny_deck(self.corpus, guard__interface="nowhere0"))
        job = subprocess.run(["srun", "--nodes=2", "--ntasks=2", "--mpi=pmix", BINARY, "train", deck],
                             capture_output=True, text=True, cwd=self.dir)
        self.assertEqual(job.returncode, 2, job.stderr)
        self.assertRegex(job.stderr, r'guard.interface = "nowhere0" names no network .*10\.77\.0\.')

    def test_3_tensor_ranks_on_several_nodes(self):
        """Trap 3: a run says so, whatever srun made of the ranks, and computes the same."""
        numbers, logs = {}, {}
        for order in ("block", "cyclic"):
            numbers[order] = self.srun(2, 4, order, f"--distribution={order}", parallel__tensor=2)
            logs[order] = (self.dir / order / "log.txt").read_text()
        self.assertIn("tensor ranks 0-1 are on 2 nodes", logs["cyclic"])
        self.assertNotIn("tensor ranks", logs["block"])
        self.assertEqual(numbers["cyclic"], numbers["block"])

    def sent_a_step(self, name, ranks=2, short=20, long=220, **changes):
        """(bytes that one node's kernel counts, those that the run reports for its ranks), of a
        step; of two nodes. The difference of two runs leaves out how they start."""
        counted, reported = {}, {}
        for steps in (short, long):
            before = self.slurm.sent_bytes("node2")
            # Any two that are idle would do for Slurm, and others than those whose bytes count.
            self.srun(2, ranks, f"{name}_{steps}", "--nodelist=node1,node2",
                      **{"zero__stage": 3, "run__steps": steps, **changes})
            counted[steps] = self.slurm.sent_bytes("node2") - before
            events = metrics.last_steps(metrics.read_events(self.dir / f"{name}_{steps}"))
            reported[steps] = sum(e["wire_bytes"]["inter"] * ranks / 2 for e in events.values())
        return [(of[long] - of[short]) / (long - short) for of in (counted, reported)]

    def test_wire_bytes(self):
        """What a run reports to send is what the kernel counts, but for headers."""
        counted, reported = self.sent_a_step("bytes", model__hidden=96)
        self.assertGreaterEqual(counted / reported, 1)
        self.assertLessEqual(counted / reported, 1 + FRAME_HEADERS)

    def test_quantized_bytes(self):
        """ZeRO++ on two nodes of two ranks, as the kernel counts it, against ZeRO-3 in bf16: that
        sends 3 M a step (Wang et al. 2023, table 1), half of it from each of two nodes. int8 and a
        scale for 256 elements are 0.508 of bf16, int4 are 0.258; secondary shards spare a gather.
        Some numbers travel as they are, and blocks are padded: 3 %."""
        hidden, layers, vocab, context = 256, 2, 2048, 16
        block = 12 * hidden ** 2 + 13 * hidden
        m = 2 * (layers * block + (vocab + context + 2) * hidden)
        weights = {"zero.quantize__weights": "int8"}
        gradients = {"zero.quantize__gradients": "int4"}
        secondary = {"zero__secondary": "node"}
        for name, parts, changes in (
                ("base", 1 + 1 + 1, {}),
                ("weights", 0.508 + 0.508 + 1, weights),
                ("secondary", 1 + 0 + 1, secondary),
                ("gradients", 1 + 1 + 0.258, gradients),
                ("all", 0.508 + 0 + 0.258, {**weights, **gradients, **secondary})):
            with self.subTest(name):
                sums = "f32" if "zero.quantize__gradients" in changes else "bf16"
                counted, reported = self.sent_a_step(
                    name, ranks=4, short=4, long=16, model__hidden=hidden, model__layers=layers,
                    model__heads=4, model__vocab=vocab, model__context=context, batch__micro=2,
                    precision__compute="bf16", precision__gradients=sums, zero__prefetch=0,
                    **changes)
                self.assertGreaterEqual(counted / reported, 1)
                self.assertLessEqual(counted / reported, 1 + FRAME_HEADERS)
                self.assertLessEqual(counted, parts * m / 2 * (1 + FRAME_HEADERS) * 1.03)

    def test_expert_bytes(self):
        """Experts on two nodes, to all of which each token goes: half of its copies cross over and come
        back, forward and backward. Rounded ones are codes and a scale for 128 of them, on multiples of 16.
        By node each token goes once and comes back once, and beside it its choices and weights do, and a
        gradient of each weight, in slots that have room for all tokens; in place of where rows of each
        expert begin one says how many tokens there are."""
        hidden, layers, context, micro, experts = 256, 2, 64, 2, 4
        sent = {}
        for name, way in (("exact", {}), ("int8", {"moe__dispatch": "int8"}),
                          ("by_node", {"parallel__expert_exchange": "by_node"})):
            with self.subTest(name):
                counted, reported = self.sent_a_step(
                    name, short=4, long=24, zero__stage=0, model__hidden=hidden,
                    model__layers=layers, model__heads=4, model__context=context, model__bias=False,
                    batch__micro=micro, batch__global=2 * micro, parallel__experts=2,
                    moe__experts=experts, moe__top_k=experts, moe__ffn_hidden=32, **way)
                self.assertGreaterEqual(counted / reported, 1)
                self.assertLessEqual(counted / reported, 1 + FRAME_HEADERS)
                sent[name] = reported
        rows = layers * micro * context * experts / 2
        self.assertGreater(sent["exact"], rows * 4 * 4 * hidden)
        self.assertEqual(sent["exact"] - sent["int8"], rows * (4 * hidden - (hidden + 16)))
        tokens = micro * context
        slot = tokens + 16  # on multiples of 16, with room for one expert's padding
        self.assertEqual(sent["exact"] - sent["by_node"], layers * (
            4 * (experts / 2 - 1) * tokens * 4 * hidden - 3 * slot * experts * 4
            + 4 * (experts / 2 + 1 - 2)))

    def test_onebit_bytes(self):
        """Momentum as signs on two nodes of two ranks, at ZeRO-0, where nothing else travels: one bit
        and a bf16 for 256 elements are 0.0664 of f16. Each node sends the other its sums of the half
        that the other owns, then the means of its own. Vectors are summed in f32, and padding of
        blocks is 2 %. Many steps, for what TCP sends twice of the first one counts too."""
        hidden, layers, vocab, context = 256, 2, 2048, 16
        matrices = layers * 12 * hidden ** 2 + (vocab + context) * hidden
        vectors = layers * 13 * hidden + 2 * hidden
        for name in ("onebit_adam", "onebit_lamb"):
            with self.subTest(name):
                counted, reported = self.sent_a_step(
                    name, ranks=4, short=4, long=104, model__hidden=hidden, model__layers=layers,
                    model__heads=4, model__vocab=vocab, model__context=context, batch__micro=2,
                    zero__stage=0, optimizer__name=name, optimizer__compress_after=1,
                    optimizer__clip_norm=0.0, optimizer__lr=1e-6)
                self.assertGreaterEqual(counted / reported, 1)
                self.assertLessEqual(counted / reported, 1 + FRAME_HEADERS)
                self.assertLessEqual(counted, (0.0664 * 2 * matrices * 1.02 + 4 * vectors)
                                     * (1 + FRAME_HEADERS))


def beside_each_other(tests):
    """Each test in a process and in namespaces of its own, which end with this process. Prints what
    they said, one after another; returns the exit code for all."""
    mine = ["setpriv", "--pdeathsig", "KILL", sys.executable, __file__]
    processes = [subprocess.Popen([*mine, test], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, errors="replace") for test in tests]
    for process in processes:
        print(process.communicate()[0], flush=True)
    codes = {process.returncode for process in processes}
    if codes - {0, slurm.SKIPPED}:
        return 1
    return slurm.SKIPPED if slurm.SKIPPED in codes else 0


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(beside_each_other(sys.argv[1:]))
    slurm.enter()
    unittest.main(verbosity=2)
