"""tools/gpu_report: what it reads, what it writes, and all of it on the CPU."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import types
import unittest

from tessera import BINARY, SOURCE, TIMES_SLOWER, RunTest

TOOL = SOURCE / "tools" / "gpu_report"
ROWS = (("copy", "268435456", 0.512, 4194.3, "GB/s", 100),
        ("linear bf16", "8192 x 8192 x 8192", 1.409, 780123.4, "GFLOP/s", 100),
        ("add_norm f32", "8 x 1024 x 1600", 0.1, 2000, "GB/s", 47.7))
BENCH = "# an NVIDIA H200; as a share\n" + "".join(
    f"{name:<28}{shape:<30}{ms:>12.3f} ms{rate:>12.1f} {unit:<9}{share:>7.1f} %\n"
    for name, shape, ms, rate, unit, share in ROWS)


NSYS = """Processing [captured.sqlite] with [cuda_gpu_kern_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
60.0,3000000,12,250000.0,250000.0,249000,251000,700.0,"nvjet_tst_256x128(a, b)"
40.0,2000000,4,500000.0,500000.0,499000,501000,700.0,add_norm_kernel

"""
NCU = """==PROF== Connected to process 7
"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","add","GPU Speed Of Light Throughput","Duration","us","100.5"
"0","add","GPU Speed Of Light Throughput","Compute (SM) Throughput","%","20"
"0","add","GPU Speed Of Light Throughput","Memory Throughput","%","90"
"1","product","GPU Speed Of Light Throughput","Duration","ns","1,500,000"
"1","product","GPU Speed Of Light Throughput","Compute (SM) Throughput","%","80"
"1","product","GPU Speed Of Light Throughput","Memory Throughput","%","30"
"2","add","GPU Speed Of Light Throughput","Duration","us","99.5"
"2","add","GPU Speed Of Light Throughput","Compute (SM) Throughput","%","40"
"2","add","GPU Speed Of Light Throughput","Memory Throughput","%","70"
"""


def load_tool():
    loader = importlib.machinery.SourceFileLoader("gpu_report", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_report", loader))
    loader.exec_module(module)
    return module


class Report(RunTest):
    def setUp(self):
        super().setUp()
        self.tool = load_tool()

    def test_rows_of_bench(self):
        rows = self.tool.bench_rows(BENCH)
        self.assertEqual([r["name"] for r in rows], ["copy", "linear bf16", "add_norm f32"])
        self.assertEqual(rows[1], {"name": "linear bf16", "shape": "8192 x 8192 x 8192",
                                   "ms": 1.409, "rate": 780123.4, "unit": "GFLOP/s", "share": 1})
        table = self.tool.kernel_table(rows)
        self.assertIn("| copy | 268435456 | 0.512 | 4,194 GB/s | 100 % |", table)
        self.assertIn("| linear bf16 |", table)
        self.assertNotIn("f32 |", table)

    def test_verdicts_of_tests(self):
        verdict = self.tool.verdict_of_tests({"testsuites": [{"name": "AddNorm", "testsuite": [
            {"name": "Adds", "result": "COMPLETED", "largest_error": "0.25"},
            {"name": "Fails", "result": "COMPLETED", "failures": [{"failure": "x"}]},
            {"name": "Skips", "result": "SKIPPED"}]}]})
        self.assertEqual(verdict, {"tests": 3, "failed": ["AddNorm.Fails"], "skipped": 1,
                                   "largest_error": {"AddNorm.Adds": 0.25}})
        self.assertIn("| AddNorm.Adds | 25 % |", self.tool.error_table(verdict))

    def test_speeds_are_medians_after_the_first_steps(self):
        def step(n, rate, mfu):
            return {"event": "step", "step": n, "loss": 1.0, "tokens_per_s": rate, "mfu": mfu,
                    "step_ms": 1e6 / rate}

        events = [{"event": "start", "predicted_bytes": 2 ** 31}]
        events += [step(n, 1.0, 0.01) for n in range(1, 6)]
        self.assertIn("only 5 steps", self.tool.speed_of(events)["error"])
        events += [step(6, 1000.0, 0.4), step(7, 2000.0, 0.5), step(8, 10.0, 0.1)]
        speed = self.tool.speed_of(events)
        self.assertEqual((speed["tokens_per_s"], speed["mfu"], speed["steps"]), (1000.0, 0.4, 3))
        table = self.tool.training_table({"GPT-2 124M": {"tessera": speed,
                                                         "pytorch": {"tokens_per_s": 800.0}},
                                          "broken": {"tessera": {"error": "no step"}}})
        self.assertIn("| GPT-2 124M | 1,000 | 40.0 % | 2.0 | 800 | 1.25 |", table)
        self.assertIn("| broken |  |  |  |  |  |", table)

    def test_kernels_of_nsys_and_ncu(self):
        self.assertEqual(self.tool.nsys_kernels(NSYS), [
            {"name": "nvjet_tst_256x128(a, b)", "calls": 12, "ms": 3.0},
            {"name": "add_norm_kernel", "calls": 4, "ms": 2.0}])
        product, add = self.tool.ncu_kernels(NCU)
        self.assertEqual((product["name"], product["calls"], product["ms"]), ("product", 1, 1.5))
        self.assertEqual((add["name"], add["calls"]), ("add", 2))
        for key, want in (("ms", 0.2), ("sm", 0.3), ("memory", 0.8)):
            self.assertAlmostEqual(add[key], want)
        self.assertIn("| add | 2 | 0.200 | 30% | 80% |", self.tool.captured_table([product, add]))
        for parse in (self.tool.nsys_kernels, self.tool.ncu_kernels):
            self.assertEqual(parse("ERR_NVGPUCTRPERM\n"), [])

    def test_the_largest_models_ratio_comes_first(self):
        report = types.SimpleNamespace(args=types.SimpleNamespace(python="python3"), machine=None)
        for has_torch in (True, False):
            parts = self.tool.parts_of(report, self.tool.MODELS, has_torch, 1)
            names = [name for name, _, _ in parts]
            self.assertEqual(names[:4], ["machine", "GPT-2 1.5B, Tessera", "GPT-2 1.5B, PyTorch",
                                         "kernel tests"])
            self.assertEqual(len(set(names)), len(names))
            for name, _, why in parts:
                self.assertEqual("PyTorch" in name and not has_torch, "PyTorch" in (why or ""))

    def command(self, seconds):
        return [sys.executable, TOOL, "--backend", "cpu", "--tiny", "--build",
                pathlib.Path(BINARY).parent, "--out", self.dir / "report", "--seconds",
                str(seconds), "--python", sys.executable]

    def run_tool(self, seconds):
        """(what it printed, report.json, report.md) of a run on the CPU."""
        seconds *= TIMES_SLOWER
        out = self.dir / "report"
        job = subprocess.run(self.command(seconds), capture_output=True, text=True,
                             env=dict(os.environ), timeout=seconds + 60)
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        return (job.stdout, json.loads((out / "report.json").read_text()),
                (out / "report.md").read_text())

    def test_all_of_it_on_the_cpu(self):
        printed, found, page = self.run_tool(400)  # far more than it takes
        for name in ("tiny GPT", "tiny Llama", "tiny GPT, fp8"):
            self.assertEqual(found["models"][name]["tessera"].get("steps"), 25, printed)
            self.assertGreater(found["models"][name]["tessera"]["tokens_per_s"], 0)
            profile = found["models"][name]["profile"]
            self.assertEqual(profile["profiled_steps"], self.tool.PROFILED)
            measured = {row["name"]: row["measured_ms"] for row in profile["operations"]}
            self.assertGreater(measured["linear"], 0)
            self.assertIn(f"A step of {name}, timed by operation, took", page)
        for name in ("bf16", "CPU", "f32"):
            self.assertEqual(len(found["losses"][name]), 50, printed)
        self.assertEqual(found["losses"]["CPU"], found["losses"]["f32"], "both are the CPU's here")
        self.assertRegex(page, r"\| f32 \| [0-9.]+ \| 0.0e\+00 \| 0.0e\+00 \| 3.0e-03")
        if TIMES_SLOWER == 1:  # a row of kernels with sanitizers takes minutes
            self.assertTrue(found["bench"], printed)
        self.assertRegex(found["tests"]["said"], "^Kernel tests: (not built|skipped|[0-9]+)")
        self.assertIn("| tiny GPT |", page)
        self.assertTrue(printed.endswith(page + "\n"), printed)

    def test_what_takes_too_long_is_left_out_and_said(self):
        printed, found, page = self.run_tool(0.2)
        states = {part["part"]: part["state"] for part in found["parts"]}
        self.assertEqual(states.pop("bench kernels"), "not reached", printed)
        self.assertIn("bench kernels: not reached", printed)
        self.assertIn("| bench kernels | not reached |  |", page)
        self.assertNotIn("bench", found)

    def test_a_report_that_is_stopped_says_how_far_it_came(self):
        job = subprocess.Popen(self.command(400), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, env=dict(os.environ))
        file = self.dir / "report" / "report.json"
        self.assertTrue(self.wait_for(
            lambda: file.exists() and all(f'"state": "{state}"' in file.read_text()
                                          for state in ("ran", "cut")), job))
        job.terminate()
        self.assertEqual(job.wait(timeout=60), 1)
        states = [part["state"] for part in json.loads(file.read_text())["parts"]]
        reached = [s for s in states if s != "not reached" and not s.startswith("left out")]
        self.assertEqual(reached, ["ran"] * (len(reached) - 1) + ["cut"])
        self.assertIn("not reached", states)


if __name__ == "__main__":
    unittest.main(verbosity=2)
