"""Memory that is predicted is what a run uses, over layouts: the arenas of check, of the run's start,
and how far operations reached into them; and what check says of layouts that do not fit or waste
something."""

import re
import unittest

from tessera import SOURCE, RunTest, metrics, tiny_deck

ARENAS = ("state", "step", "host", "disk")
# Of buffers: the last one's bytes end that much before its arena's at most. With disks: sectors.
ALIGNMENT, DISK_ALIGNMENT = 256, 4096

# Each with what makes its ranks differ: tensor shards of 3 heads over 2 ranks, stages with the
# embedding and with the head, data shards.
LAYOUTS = {
    "one": (1, {}),
    "tensor": (2, {"parallel__tensor": 2}),
    "tensor_whole_sequences": (2, {"parallel__tensor": 2, "parallel__sequence": False}),
    "pipeline": (2, {"parallel__pipeline": 2}),
    "gpipe": (2, {"parallel__pipeline": 2, "parallel__schedule": "gpipe"}),
    "zero_bubble": (2, {"parallel__pipeline": 2, "parallel__schedule": "zero_bubble"}),
    "data": (2, {"zero__stage": 3}),
    "data_bf16": (2, {"zero__stage": 2, "precision__compute": "bf16",
                      "precision__accumulate": "bf16"}),
    "recompute": (2, {"zero__stage": 1, "recompute__policy": "full"}),
    "ends_bf16": (4, {"parallel__pipeline": 2, "zero__stage": 1, "precision__compute": "bf16",
                      "precision__accumulate": "bf16", "precision__gradients": "bf16"}),
    "fp8": (2, {"parallel__tensor": 2, "precision__matmul": "fp8", "model__heads": 4,
                "model__hidden": 64, "recompute__policy": "full"}),
    "activations_on_host": (2, {"parallel__pipeline": 2, "model__layers": 6, "batch__micro": 1,
                                "offload__activations": "host", "offload__ahead": 1}),
    "all_on_disks": (2, {"zero__stage": 1, "offload__parameters": "nvme",
                         "offload__gradients": "nvme", "offload__optimizer": "nvme",
                         "offload__activations": "nvme", "offload__ahead": 1,
                         "offload__nvme": ["DISK"]}),
    "all": (8, {"parallel__tensor": 2, "parallel__pipeline": 2, "zero__stage": 3}),
}


def on_device(arenas):
    """Bytes that memory.device limits: snapshots and what is offloaded are the host's."""
    return arenas["state"] + arenas["step"]


def size_of(text):
    """Of bytes as people read them, "1.50 MiB"."""
    number, unit = text.split()
    return float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]


class Memory(RunTest):
    def check(self, deck, ranks, *options, code=0):
        job = self.run_job(0, "check", deck, "--ranks", ranks, *options)
        self.assertEqual(job.code, code, job.output)
        return job.output

    def arenas(self, output):
        """[{arena: bytes}] of the stages, as check prints them."""
        rows = [re.search(rf"arena {a}, bytes +(.+)", output)[1].split() for a in ARENAS]
        return [dict(zip(ARENAS, map(int, stage), strict=True)) for stage in zip(*rows)]

    def test_predicted_is_measured(self):
        for name, (ranks, changes) in LAYOUTS.items():
            with self.subTest(name):
                if "offload__nvme" in changes:
                    changes = {**changes, "offload__nvme": [str(self.dir)]}
                deck = self.deck(name, tiny_deck(self.corpus, run__steps=2, checkpoint__every=0,
                                                 **changes))
                predicted = self.arenas(self.check(deck, ranks))
                self.train(ranks, deck)
                events = {e["event"]: e for e in metrics.read_events(self.dir / name)}
                self.assertEqual(events["start"]["arena_bytes"], predicted)
                if name == "activations_on_host":
                    self.assertGreater(min(arenas["host"] for arenas in predicted), 0)
                alignment = DISK_ALIGNMENT if predicted[0]["disk"] > 0 else ALIGNMENT
                self.assertEqual(alignment == DISK_ALIGNMENT, name == "all_on_disks")
                for used, had in zip(events["end"]["arena_high_water"], predicted, strict=True):
                    for arena in ARENAS:
                        self.assertIn(had[arena] - used[arena], range(alignment), arena)

    def test_bf16_sums_of_gradients_over_stages(self):
        """The same bits at every stage, and near f32 sums: in the first step, before any update, a
        rank's 4 sums and that over ranks round by 2^-9 of partial sums, which are taken to be less
        than twice the whole."""
        fixed = {"precision__compute": "bf16", "run__steps": 3}
        want = self.train(2, self.deck("f32", tiny_deck(self.corpus, **fixed)))
        for reduce in ("step", "micro"):
            got = {s: self.train(2, self.deck(f"{reduce}_{s}", tiny_deck(
                self.corpus, precision__accumulate="bf16", zero__stage=s, zero__reduce=reduce,
                **fixed))) for s in range(4)}
            for stage in (1, 2, 3):
                self.assertEqual(got[stage], got[0], f"stage {stage}, {reduce}")
            loss, norm = got[0][1]
            self.assertEqual(loss, want[1][0])
            self.assertNotEqual(norm, want[1][1], "sums were rounded")
            self.assertLess(abs(norm / want[1][1] - 1), 2 * 5 * 2**-9)

    def test_bf16_sums_need_bf16_products(self):
        deck = self.deck("bad", tiny_deck(self.corpus, precision__accumulate="bf16"))
        self.assertIn("precision.compute", self.check(deck, 2, code=2))

    def test_the_rank_map(self):
        deck = self.deck("map", tiny_deck(self.corpus, parallel__tensor=2, parallel__pipeline=2,
                                          batch__global=64))
        output = self.check(deck, 16, "--nodes", 2)
        for line in ("ranks: 4 data x 2 pipeline x 2 tensor = 16, ZeRO-0",
                     r"tensor groups +8 of 2, each in a node: 0-1 \| 2-3 \| 4-5 \| .. \| 14-15",
                     r"data groups +4 of 4, each in a node: 0, 2, .. 6 \| 1, 3, .. 7 \| 8, 10, .. "
                     r"14 \| 9, 11, .. 15",
                     r"pipelines +8 of 2, over up to 2 nodes: 0, 8 \| 1, 9 \| 2, 10 \| .. \| 7, 15",
                     r"nodes +2: 0-7 \| 8-15", "stage 0 +embedding, blocks? 0"):
            self.assertRegex(output, line)

    def test_16384_ranks(self):
        """No more is planned than one rank of each kind."""
        deck = self.deck("many", tiny_deck(self.corpus, parallel__tensor=3, parallel__pipeline=1,
                                           parallel__sequence=False, batch__global=2**14))
        self.assertIn("good for 12288 ranks", self.check(deck, 12288, "--nodes", 1536))
        deck = self.deck("more", tiny_deck(self.corpus, zero__stage=3, batch__global=2**14))
        self.assertIn("good for 16384 ranks", self.check(deck, 16384, "--nodes", 2048))

    def test_advice(self):
        """(ranks, options, changes, what is said)"""
        cases = [
            (1, [], {"zero__stage": 3}, "divides nothing over one data rank"),
            (6, [], {"parallel__ranks_per_node": 4, "zero.quantize__gradients": "int4",
                     "batch__global": 12}, "gradients cross nodes before they are added"),
            (4, ["--nodes", 4], {"parallel__tensor": 2},
             "tensor ranks 0-1 are on 2 nodes"),  # trap 3
            (2, [], {"parallel__pipeline": 2, "batch__global": 2},
             "2 micro-batches keep 2 stages busy 67 % of the time"),
            (2, [], {"parallel__pipeline": 2, "parallel__schedule": "gpipe"},
             "keeps activations of 8 micro-batches"),
            (2, [], {"parallel__tensor": 2, "parallel__sequence": False},
             "parallel.sequence = true"),
            (2, ["--device-memory", "1GB"], {"recompute__policy": "full"},
             'recompute.policy = "none" fits too'),
            (2, ["--device-memory", "1GB"], {"zero__stage": 3, "zero__reduce": "micro"},
             "zero.stage = 1 fits too"),
        ]
        for ranks, options, changes, text in cases:
            with self.subTest(text):
                deck = self.deck("deck", tiny_deck(self.corpus, **changes))
                self.assertIn(text, self.check(deck, ranks, *options))
        quiet = self.deck("quiet", tiny_deck(self.corpus, zero__stage=1))
        self.assertNotIn("advice", self.check(quiet, 2))

    def test_quantised_traffic_where_nothing_travels_is_refused(self):
        """By check and by train alike; who only reads the model does not mind."""
        int8 = {"zero.quantize__weights": "int8"}
        for ranks, changes, text in (
                (2, {"zero__stage": 2, **int8}, "zero.stage = 2 (set zero.stage = 3"),
                (2, {"zero__stage": 3, "parallel__pipeline": 2, **int8}, "leave one data rank"),
                (1, {"zero__stage": 3, **int8}, "leave one data rank"),
                (1, {"zero.quantize__gradients": "int4"}, "leave one data rank")):
            with self.subTest(ranks=ranks, **changes):
                deck = self.deck("silent", tiny_deck(self.corpus, **changes))
                key = next(k for k in changes if k.startswith("zero.quantize")).replace("__", ".")
                for options in ([], ["--fit", "--device-memory", "1GB"]):
                    output = self.check(deck, ranks, *options, code=2)
                    self.assertIn(f"{key} = ", output)
                    self.assertIn(text, output)
                self.check(deck, ranks, "--options")  # all stages, whatever the deck's
                job = self.run_job(ranks, "train", deck, each=True)
                self.assertEqual(job.codes, ranks * [2], job.output)
                self.assertIn(f"{key} = ", job.output)
        deck = self.deck("run", tiny_deck(self.corpus, zero__stage=3, checkpoint__every=12, **int8))
        self.train(2, deck)
        run = self.dir / "run"
        for ranks, arguments in (
                (1, ("evaluate", run, "--set", f"data.validation=['{self.corpus}']")),
                (2, ("evaluate", run, "--set", f"data.validation=['{self.corpus}']", "--set",
                     "zero.stage=2")),
                (0, ("export", run, "--to", self.dir / "hf"))):
            job = self.run_job(ranks, *arguments)
            self.assertEqual(job.code, 0, job.output)

    def test_how_blocks_travel_is_said(self):
        deck = self.deck("deck", tiny_deck(self.corpus, zero__stage=3, batch__global=12,
                                           **{"zero.quantize__weights": "int8",
                                              "zero.quantize__gradients": "int4"}))
        text = "parameters int8 in blocks of 256; gradients int4 in blocks of 256, added"
        for nodes, way in ((1, "over 6 ranks at once"), (2, "in nodes of 3 ranks, then over 2 nodes")):
            output = self.check(deck, 6, "--nodes", nodes)
            self.assertIn(f"{text} {way}", output)
            self.assertNotIn("advice", output)
        self.check(deck, 6, "--options")  # which has stages that gather nothing

    def test_a_gpu_is_planned_where_there_is_none(self):
        deck = self.deck("deck", tiny_deck(self.corpus, checkpoint__every=2))
        for backend, where in ("cpu", "on a CPU:"), ("cuda", "on an NVIDIA GPU:"):
            output = self.check(deck, 2, "--set", f"run.backend={backend}")
            self.assertIn(f"memory a rank, {where}", output)
            self.assertEqual("NCCL" in output, backend == "cuda", output)
            arenas = self.arenas(output)[0]
            self.assertGreater(arenas["host"], 0)
            for row, expected in (("on the device", on_device(arenas)),
                                  ("device and host", sum(arenas.values()))):
                shown = re.search(rf"{row} +([\d.]+) MiB", output)[1]
                self.assertAlmostEqual(float(shown), expected / 2**20, delta=0.005)
        # Attention's backward in a fixed order keeps gradients of all scores: here 100 MB, more than
        # products have for their work.
        long = tiny_deck(self.corpus, model__context=2048, batch__sequence=2048, batch__micro=4,
                         batch__global=4, precision__compute="bf16")
        sizes = [on_device(self.arenas(self.check(self.deck("long", long), 1, "--set", "run.backend=cuda",
                                                  "--set", f"run.reproducible={word}"))[0])
                 for word in ("off", "run", "layout")]
        self.assertLess(sizes[0], sizes[1])
        wide = self.deck("wide", tiny_deck(self.corpus, model__head_dim=264, model__heads=1))
        self.check(wide, 1, "--set", "run.backend=cpu")
        output = self.check(wide, 1, "--set", "run.backend=cuda", code=2)
        refusal = "model.head_dim = 264: attention on a GPU takes heads of at most 256"
        self.assertIn(refusal, output)
        for option in ("--options",), ("--fit", "--device-memory", "1GiB"):
            output = self.check(wide, 1, "--set", "run.backend=cuda", *option, code=2)
            self.assertIn(refusal, output)
            self.assertNotIn("batch.micro", output)

    def test_what_does_not_fit(self):
        deck = self.deck("deck", tiny_deck(self.corpus, batch__micro=4))
        total = on_device(self.arenas(self.check(deck, 2))[0])
        output = self.check(deck, 2, "--device-memory", f"{total - 1}B", code=4)
        for text in ("a rank needs", "which fits", "arena state", "arena step",
                     "recompute.policy", "zero.stage = 1 to 3"):
            self.assertIn(text, output)
        self.assertIn("good for", self.check(deck, 2, "--device-memory", f"{total}B"))
        output = self.check(deck, 2, "--device-memory", "1KiB", code=4)
        self.assertIn("too much by itself", output)
        self.assertIn("offload.optimizer", output)

    def test_models_of_the_papers_fit_their_devices(self):
        """1.5 and 10 billion parameters on devices of 32 GB by data ranks alone (ZeRO); a trillion
        where state lives on the host (ZeRO-Infinity), and not without that."""
        def fits(name, ranks, nodes, *sets, code=0):
            options = [o for s in (*sets, "memory.device=32GB") for o in ("--set", s)]
            return self.check(SOURCE / "inputs" / f"{name}.toml", ranks, "--nodes", nodes,
                              *options, code=code)
        fits("gpt2_1.5b", 8, 1, "zero.stage=1")
        fits("gpt_10b", 32, 4)
        # That gpt_1t fits as it is, the test of all decks shows (run.verbs).
        output = fits("gpt_1t", 512, 32, "offload.optimizer=none", "offload.gradients=none", code=4)
        self.assertIn("and offload.optimizer = \"host\"", output)

    def test_the_hosts_budget(self):
        """Snapshots for checkpoints and what is offloaded to the host are what memory.host limits."""
        deck = self.deck("deck", tiny_deck(self.corpus, offload__optimizer="host",
                                           checkpoint__every=2))
        host = self.arenas(self.check(deck, 2))[0]["host"]
        self.check(deck, 2, "--set", f"memory.host={host}")
        output = self.check(deck, 2, "--set", f"memory.host={host - 1024}", code=4)
        for text in ("arena host", "1.0 KiB more than memory.host", "checkpoint.async = false", "nvme"):
            self.assertIn(text, output)
        job = self.run_job(2, "train", deck, "--set", f"memory.host={host - 1024}", each=True)
        self.assertEqual(job.codes, [4, 4])
        self.assertIn("more than memory.host", job.output)

    def test_options(self):
        """The states are ZeRO's 16 bytes a parameter: 2 + 2 + 12."""
        changes = {"model__hidden": 96, "model__vocab": 128}  # nothing is padded but shards
        deck = self.deck("deck", tiny_deck(self.corpus, precision__compute="bf16",
                                           precision__accumulate="bf16", **changes))
        output = self.check(deck, 4, "--options", "--device-memory", "1GB")
        parameters = int(re.match(r"\d+", output)[0])
        rows = [line.split() for line in output.splitlines() if re.match(r"[0-3] ", line)]
        self.assertEqual(len(rows), 4 * 6)
        self.assertEqual({(r[0], *r[1:4]) for r in rows if r[1] == "device"},
                         {(str(s), "device", "device", "device") for s in range(4)})
        plain = {int(r[0]): size_of(f"{r[4]} {r[5]}") for r in rows if r[1] == "device"}
        for stage, share in ((0, 16), (1, 4 + 12 / 4), (2, 2 + 14 / 4), (3, 16 / 4)):
            # Each of 6 units is padded to a multiple of 4 x 16; figures have two decimals of a MiB.
            slack = share * 6 * 64 + 0.005 * 2**20
            self.assertLess(abs(plain[stage] - share * parameters), slack)
        # What lives elsewhere is not on the device: of all that a plan has there, less is left.
        on = {(*r[:4],): [size_of(f"{n} {u}") for n, u in zip(r[10:16:2], r[11:16:2])] for r in rows}
        for stage in "0123":
            device, host, disk = on[stage, "device", "device", "device"]
            self.assertEqual(disk, 0)
            self.assertLess(on[stage, "host", "device", "device"][0], device)
            self.assertGreater(on[stage, "host", "device", "device"][1], host)
            self.assertGreater(on[stage, "host", "host", "host"][1],
                               on[stage, "host", "device", "device"][1])
            self.assertGreater(on[stage, "nvme", "host", "nvme"][2], 0)

    def generation(self, deck, *options, machine=SOURCE / "slurm/machines/epyc-2core.toml", ranks=1):
        """Of check --generation: {sequences: (ms a pass, tokens/s, share computed, bytes of the device)}
        and what is said of the most."""
        output = self.check(deck, ranks, "--generation", machine, *options)
        rows = re.findall(r"^ +(\d+) +([\d.]+) +([\d.e+]+) +(\d+)% +([\d.]+ \w+) +[\d.]+ \w+$", output, re.M)
        return {int(n): (float(ms), float(rate), int(share) / 100, size_of(bytes_))
                for n, ms, rate, share, bytes_ in rows}, output.splitlines()[-1]

    def test_how_many_sequences_to_generate_at_once(self):
        """What a pass takes on paper: parameters from a disk in the time of their bytes, products of many
        sequences in that of their flop. The batch at which the one passes the other is what is told."""
        sizes = {"model__family": "llama", "model__layers": 4, "model__heads": 4, "model__hidden": 512,
                 "model__ffn_hidden": 2048, "model__vocab": 512, "model__context": 64}
        deck = self.deck("gen", tiny_deck(self.corpus, precision__compute="bf16", **sizes))
        layers = 4 * (4 * 512**2 + 3 * 512 * 2048)
        rate = 2e11  # of products of bf16, as the machine file has it to a tenth
        for disk in (1e8, 4e8):
            machine = self.dir / "machine.toml"
            text = (SOURCE / "slurm/machines/epyc-2core.toml").read_text()
            machine.write_text(re.sub(r"(?m)^read = .*", f"read = {disk}", text))
            rows, said = self.generation(deck, "--set", "offload.parameters=nvme", "--set",
                                         f"offload.nvme=['{self.dir}']", machine=machine)
            ms, tokens, share, _ = rows[1]
            self.assertAlmostEqual(ms / (2 * layers / disk * 1e3), 1, delta=0.1)
            self.assertLess(share, 0.2)
            for n, (ms, tokens, _, _) in rows.items():
                self.assertAlmostEqual(tokens * ms / 1e3 / n, 1, delta=0.01)
            bound = int(re.search(r"from --batch (\d+) on a pass is bound by computing", said)[1])
            even = 2 / disk / (2 / rate)  # sequences whose products take as long as the disk
            self.assertTrue(even / 4 < bound < even * 4, f"{bound}, by hand {even}")
            self.assertGreater(rows[bound][2], 0.5)
        # Of shards on two nodes each rank sends its half.
        machine.write_text(re.sub(r"(?m)^rate = 1.46e.09", "rate = 1e8", text))
        gathered, _ = self.generation(deck, "--nodes", 2, "--set", "zero.stage=3", machine=machine, ranks=2)
        self.assertAlmostEqual(gathered[1][0] / (layers / 1e8 * 1e3), 1, delta=0.1)
        self.assertAlmostEqual(gathered[1][1] * gathered[1][0] / 2e3, 1, delta=0.01)
        in_memory, said = self.generation(deck)
        self.assertLess(in_memory[1][0], rows[1][0] / 10)
        least, most = in_memory[1][3], max(in_memory)
        self.assertGreater(in_memory[most][3], least)
        _, said = self.generation(deck, "--device-memory", f"{int(least + in_memory[8][3]) // 2}B")
        self.assertRegex(said, r"^[248] sequences would need .*: up to what fits")
        _, said = self.generation(deck, "--device-memory", "1MB")
        self.assertRegex(said, r"^1 sequence would need .*: nothing fits")
        # Keys and values of 64 tokens of 4 layers in the host's memory, which a GPU reads over its bus.
        gpu = {"machine": SOURCE / "slurm/machines/h100-dgx.toml"}
        here, _ = self.generation(deck, "--set", "run.backend=cuda", **gpu)
        there, said = self.generation(deck, "--set", "run.backend=cuda", "--set", "offload.cache=host", **gpu)
        self.assertRegex(said, "bound by computing, keys and values that come from the host included")
        n = max(there)
        cache = n * 4 * 2 * 512 * 64 * 2
        self.assertAlmostEqual((here[n][3] - there[n][3]) / cache, 1, delta=0.05)
        bus = float(re.search(r"(?ms)^\[link.host\].*?^rate = (\S+)", gpu["machine"].read_text())[1])
        self.assertAlmostEqual((there[n][0] - there[n // 2][0]) / (cache / 2 / bus * 1e3), 1, delta=0.2)
        self.assertIn("which draws nothing", self.check(deck, 1, "--set", "offload.cache=host", code=2))
        output = self.check(deck, 1, "--generation", self.dir / "none.toml", code=2)
        self.assertIn("none.toml", output)
        self.check(deck, 1, "--generation", machine, "--fit", code=2)
        both_ways = self.deck("both", tiny_deck(self.corpus, model__attention="bidirectional", task__kind="mlm",
                                                task__mask_token=1))
        self.assertIn("not to continue a text", self.check(both_ways, 1, "--generation", machine, code=2))

    def test_fit(self):
        deck = self.deck("deck", tiny_deck(self.corpus, batch__global=16))
        totals = {m: on_device(self.arenas(self.check(deck, 2, "--set", f"batch.micro={m}"))[0])
                  for m in (1, 2, 4, 8)}
        for micro in (1, 4, 8):
            output = self.check(deck, 2, "--fit", "--device-memory", f"{totals[micro]}B")
            self.assertRegex(output, rf"batch.micro = {micro} .*the largest that fits")
        self.assertIn("memory.device", self.check(deck, 2, "--fit", "--device-memory",
                                                  f"{totals[1] - 1}B", code=4))
        self.assertIn("--device-memory", self.check(deck, 2, "--fit", code=2))

    def test_fit_says_what_no_plan_can_hold(self):
        """One buffer holds less than 2^40 bytes, which logits of 2^24 tokens and 2^14 words are."""
        many = {"model__vocab": 2**14, "batch__global": 2**20, "memory__logits": 2**24}
        output = self.check(self.deck("many", tiny_deck(self.corpus, **many)), 1, "--fit",
                            "--device-memory", "1000TB")
        refused, fitting = output.splitlines()
        self.assertRegex(refused, r"^batch.micro = 1048576: .*one buffer at most")
        self.assertRegex(fitting, r"^batch.micro = 524288 .*the largest that fits")
        huge = {"model__context": 2**20, "model__vocab": 2**20, "batch__global": 2,
                "memory__logits": 2**21}
        output = self.check(self.deck("huge", tiny_deck(self.corpus, **huge)), 1, "--fit",
                            "--device-memory", "1000TB", code=2)
        self.assertRegex(output, r"no batch.micro(.|\n)*batch.micro = 1: .*one buffer at most")

    def test_impossible_grids(self):
        for ranks, changes, text in (
                (3, {"parallel__tensor": 2}, "does not divide 3 ranks"),
                (2, {"parallel__pipeline": 4}, "parallel.pipeline"),
                (2, {"parallel__tensor": 4}, "model.heads"),
                (4, {"batch__global": 2}, "nearest: 4"),
                (4, {"batch__global": 6}, "nearest: 4 or 8")):
            with self.subTest(text):
                deck = self.deck("deck", tiny_deck(self.corpus, **changes))
                self.assertIn(text, self.check(deck, ranks, code=2))


if __name__ == "__main__":
    unittest.main(verbosity=2)
