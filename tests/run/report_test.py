"""tools/gpu_report: what it reads, what it writes, and all of it on the CPU."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

from tessera import BINARY, SOURCE, TIMES_SLOWER, RunTest

TOOL = SOURCE / "tools" / "gpu_report"
ROWS = (("copy", "268435456", 0.512, 4194.3, "GB/s", 100),
        ("linear bf16", "8192 x 8192 x 8192", 1.409, 780123.4, "GFLOP/s", 100),
        ("add_norm f32", "8 x 1024 x 1600", 0.1, 2000, "GB/s", 47.7))
BENCH = "# an NVIDIA H200; as a share\n" + "".join(
    f"{name:<28}{shape:<30}{ms:>12.3f} ms{rate:>12.1f} {unit:<9}{share:>7.1f} %\n"
    for name, shape, ms, rate, unit, share in ROWS)


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

    def run_tool(self, seconds):
        """(what it printed, report.json, report.md) of a run on the CPU."""
        seconds *= TIMES_SLOWER
        out = self.dir / "report"
        job = subprocess.run(
            [sys.executable, TOOL, "--backend", "cpu", "--tiny", "--build",
             pathlib.Path(BINARY).parent, "--out", out, "--seconds", str(seconds), "--python",
             sys.executable], capture_output=True, text=True, env=dict(os.environ),
            timeout=seconds + 60)
        self.assertEqual(job.returncode, 0, job.stdout + job.stderr)
        return (job.stdout, json.loads((out / "report.json").read_text()),
                (out / "report.md").read_text())

    def test_all_of_it_on_the_cpu(self):
        printed, found, page = self.run_tool(400)  # far more than it takes
        for name in ("tiny GPT", "tiny Llama", "tiny GPT, fp8"):
            self.assertEqual(found["models"][name]["tessera"].get("steps"), 25, printed)
            self.assertGreater(found["models"][name]["tessera"]["tokens_per_s"], 0)
        if TIMES_SLOWER == 1:  # a row of kernels with sanitizers takes minutes
            self.assertTrue(found["bench"], printed)
        self.assertRegex(found["tests"]["said"], "^Kernel tests: (not built|skipped|[0-9]+)")
        self.assertIn("| tiny GPT |", page)
        self.assertTrue(printed.endswith(page + "\n"), printed)

    def test_what_takes_too_long_is_left_out_and_said(self):
        printed, found, _ = self.run_tool(0.2)
        self.assertIn("time was over", printed)
        self.assertEqual(found["bench"], [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
