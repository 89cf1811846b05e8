"""tools/from_deepspeed: what DeepSpeed configurations become is a deck that `check` accepts, every
documented key is known, and what DeepSpeed would refuse is refused."""

import importlib.machinery
import importlib.util
import json
import subprocess
import sys
import tomllib
import unittest

from tessera import SOURCE, RunTest

sys.path.insert(0, str(SOURCE / "tools"))
import deepspeed_keys  # noqa: E402

TOOL = SOURCE / "tools" / "from_deepspeed"
ADAM = {"type": "Adam", "params": {"lr": 1e-4, "betas": [0.8, 0.999], "eps": 1e-7,
                                   "weight_decay": 3e-7}}
BATCH = {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2}


def zero(stage, **keys):
    return {**BATCH, "optimizer": ADAM, "zero_optimization": {"stage": stage, **keys}}


def curriculum(kind, low, high, **config):
    return {"enabled": True, "curriculum_type": "seqlen", "min_difficulty": low,
            "max_difficulty": high, "schedule_type": kind, "schedule_config": config}


def sampling(metric, **keys):
    metric = {metric: {"difficulty_type": "value", "clustering_type": "single_cluster", **keys}}
    return {"enabled": True, "seed": 5, "data_sampling": {
        "enabled": True, "num_workers": 2, "curriculum_learning": {
            "enabled": True, "curriculum_metrics": metric}}}


LINEAR = {"total_curriculum_step": 15000, "difficulty_step": 8}

# name: (configuration, what the deck says, words of its comments)
CONFIGS = {
    "stage_1": (zero(1, overlap_comm=True, reduce_bucket_size=5e8),
                {"zero.stage": 1, "optimizer.name": "adamw", "optimizer.betas": [0.8, 0.999],
                 "optimizer.eps": 1e-7, "optimizer.clip_norm": 0, "batch.micro": 2,
                 "batch.global": 16, "schedule.kind": "constant", "precision.compute": "f32"},
                ["zero_optimization.overlap_comm = true: always so", "there are no buckets"]),
    "stage_2_cpu": ({**zero(2, offload_optimizer={"device": "cpu", "pin_memory": True}),
                     "gradient_clipping": 0.5, "bf16": {"enabled": True},
                     "data_types": {"grad_accum_dtype": "bf16"}},
                    {"zero.stage": 2, "offload.optimizer": "host", "offload.gradients": "host",
                     "optimizer.clip_norm": 0.5, "precision.compute": "bf16",
                     "precision.gradients": "bf16", "precision.accumulate": "bf16"},
                    ["pin_memory = true"]),
    "stage_3_nvme": ({**zero(3, offload_optimizer={"device": "nvme", "nvme_path": "/nvme0",
                                                   "ratio": 0.25},
                             offload_param={"device": "nvme", "nvme_path": "/nvme1"}),
                      "aio": {"block_size": 1048576, "queue_depth": 16, "thread_count": 2},
                      "bf16": {"enabled": True, "bf16_master_weights_and_grads": True,
                               "bf16_optimizer_states": True},
                      "activation_checkpointing": {"cpu_checkpointing": True}},
                     {"zero.stage": 3, "offload.optimizer": "nvme", "offload.parameters": "nvme",
                      "offload.optimizer_share": 0.25, "offload.nvme": ["/nvme0", "/nvme1"],
                      "offload.block": 1048576, "offload.depth": 16, "optimizer.moments": "bf16",
                      "offload.activations": "host", "recompute.policy": "full"},
                     ["aio.thread_count = 2", "bf16_master_weights_and_grads = true: master"]),
    "zero_plus_plus": ({**zero(3, zero_hpz_partition_size=4, zero_quantized_weights=True,
                               zero_quantized_gradients=True), "bf16": {"enabled": True}},
                       {"zero.secondary": 4, "zero.quantize.weights": "int8",
                        "zero.quantize.gradients": "int4", "precision.gradients": None}, []),
    "fp16": ({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
              "fp16": {"enabled": True, "initial_scale_power": 12, "loss_scale_window": 500,
                       "hysteresis": 3, "min_loss_scale": 2, "auto_cast": False},
              "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
              "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 2e-4,
                                                           "warmup_num_steps": 50}}},
             {"batch.global": 64, "precision.compute": "f16", "precision.loss_scale": "dynamic",
              "precision.loss_scale_power": 12, "precision.loss_scale_window": 500,
              "precision.loss_scale_hysteresis": 3, "precision.loss_scale_min": 2,
              "optimizer.lr": 2e-4, "schedule.kind": "constant", "schedule.warmup": "log",
              "schedule.warmup_steps": 50}, ["gradients travel as f32"]),
    "fixed_scale": ({**BATCH, "optimizer": {"type": "Adam", "params": {"adam_w_mode": False}},
                     "fp16": {"enabled": True, "loss_scale": 128},
                     "scheduler": {"type": "WarmupDecayLR", "params": {
                         "total_num_steps": 200, "warmup_num_steps": 20, "warmup_min_lr": 1e-6,
                         "warmup_type": "linear"}}},
                    {"optimizer.name": "adam", "precision.loss_scale": 128, "run.steps": 200,
                     "schedule.kind": "linear", "schedule.decay_steps": 180,
                     "schedule.warmup_start_lr": 1e-6, "schedule.warmup": "linear"},
                    ["one update ahead"]),
    "cosine": ({**BATCH, "optimizer": ADAM, "scheduler": {"type": "WarmupCosineLR", "params": {
        "total_num_steps": 100, "warmup_num_steps": 10, "cos_min_ratio": 0.1,
        "warmup_min_ratio": 0.5}}},
        {"schedule.kind": "cosine", "schedule.min_lr": 1e-5, "schedule.warmup_start_lr": 5e-5,
         "schedule.decay_steps": 90, "run.steps": 100}, []),
    "lion": ({**BATCH, "optimizer": {"type": "Lion", "params": {"lr": 1e-4, "eps": 1e-6}}},
             {"optimizer.name": "lion", "optimizer.betas": [0.9, 0.99]},
             ["optimizer.params.eps = 1e-06: lion does not use it"]),
    "sgd": ({**BATCH, "optimizer": {"type": "SGD", "params": {
        "lr": 0.1, "momentum": 0.8, "nesterov": True}}},
        {"optimizer.name": "sgd", "optimizer.momentum": 0.8, "optimizer.nesterov": True}, []),
    "sgd_auto": ({**BATCH, "optimizer": {"type": "SGD", "params": {
        key: "auto" for key in ("lr", "momentum", "nesterov")}}},
        {"optimizer.lr": 5e-5, "optimizer.momentum": 0, "optimizer.nesterov": False},
        ["the Trainer's --learning_rate, 5e-05 by default",
         'optimizer.params.momentum = "auto": the deck has DeepSpeed\'s default',
         'optimizer.params.nesterov = "auto": the deck has DeepSpeed\'s default']),
    "lamb": ({**BATCH, "optimizer": {"type": "Lamb", "params": {"lr": 1e-3}}},
             {"optimizer.name": "adamw"},
             ['PLACEHOLDER: "Lamb" is another rule than Tessera\'s of that name; these settings are']),
    "curriculum": ({**zero(1), "curriculum_learning": curriculum("fixed_linear", 8, 504, **LINEAR)},
                   {"batch.sequence": 504, "batch.curriculum": {
                       "start": 8, "end": 504, "steps": 15000, "round": 8}}, []),
    "curriculum_root": (
        {**zero(1), "curriculum_learning": curriculum("fixed_root", 64, 2048, root_degree=2,
                                                      **LINEAR)},
        {"batch.sequence": 2048, "model.context": 2048, "batch.curriculum": {
            "start": 64, "end": 2048, "steps": 15000, "round": 32, "kind": "root", "degree": 2}},
        ["at most 64 lengths", "round = 32"]),
    "curriculum_discrete": (
        {**zero(1), "data_efficiency": sampling("seqlen_reshape", **curriculum(
            "fixed_discrete", 64, 256, difficulty=[64, 128, 256], max_step=[5, 10]))},
        {"batch.sequence": 256, "batch.curriculum": {
            "table": [[0, 64], [6, 128], [11, 256]], "cut": "anew"}},
        ["Tessera keeps batch.global", "data_efficiency.seed = 5"]),
    "curriculum_of_words": ({**zero(1), "data_efficiency": sampling(
        "vocabularyrarity", **curriculum("fixed_root", 1, 100, root_degree=2, **LINEAR))},
        {"batch.curriculum": None}, ["a curriculum of Tessera is of sequence lengths"]),
    "one_bit": ({**BATCH, "optimizer": {"type": "OneBitAdam", "params": {
        "lr": 4e-4, "freeze_step": 23000, "comm_backend_name": "nccl"}}},
        {"optimizer.name": "onebit_adam", "optimizer.lr": 4e-4, "optimizer.betas": [0.9, 0.999],
         "optimizer.compress_after": 23000, "optimizer.clip_norm": 0.0},
        ["comm_backend_name"]),
    "one_bit_lamb": ({**BATCH, "optimizer": {"type": "OneBitLamb", "params": {
        "lr": 4e-4, "coeff_beta": 0.9}}},
        {"optimizer.name": "adamw", "optimizer.lr": 4e-4},
        ['PLACEHOLDER: "OneBitLamb" is another rule', "second moments, not their roots",
         "coeff_beta = 0.9"]),
    "trainer": ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
                 "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
                 "fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"},
                 "optimizer": {"type": "AdamW", "params": {k: "auto" for k in (
                     "lr", "betas", "eps", "weight_decay")}},
                 "scheduler": {"type": "WarmupDecayLR", "params": {k: "auto" for k in (
                     "warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps")}},
                 "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto",
                                       "stage3_param_persistence_threshold": "auto"},
                 "steps_per_print": 20, "wandb": {"enabled": False, "project": "p"},
                 "tensorboard": {"enabled": True, "job_name": "j"}, "zero_optimisation": {}},
                {"batch.micro": 8, "batch.global": 64, "optimizer.lr": 5e-5,
                 "optimizer.clip_norm": 1, "schedule.warmup_steps": 0, "log.every": 20,
                 "precision.compute": "bf16"},
                ["--learning_rate, 5e-05 by default", "PLACEHOLDER: fp16.enabled and bf16.enabled",
                 "scheduler.params.total_num_steps = \"auto\": the decay ends with the run",
                 "tools/follow RUN_DIR --tensorboard", "Off in the configuration: wandb",
                 "(is it zero_optimization?)"]),
    "tensor": ({"train_micro_batch_size_per_gpu": 2, "tensor_parallel": {
        "autotp_size": 2, "preset_model": "llama"}, "flops_profiler": {
            "enabled": True, "profile_step": 7}, "pipeline": {"stages": 2}},
        {"parallel.tensor": 2, "batch.global": 8, "log.profile": [7, 7]},
        ["PLACEHOLDER: as the script has it", "give parallel.pipeline"]),
}

# configuration, words of the message
REFUSED = (
    (zero(4), "zero_optimization.stage = 4: allowed: an integer, 0 to 3"),
    (zero("2"), 'zero_optimization.stage = "2": allowed'),
    (zero(1, overlap_comm="yes"), 'zero_optimization.overlap_comm = "yes": allowed: true or false'),
    (zero(3, offload_param={"device": "disk"}), 'offload_param.device = "disk": allowed: one of'),
    (zero(2, offload_optimizer={"device": "cpu", "ratio": 0.5}), "ratio = 0.5: DeepSpeed shares"),
    ({**zero(1), "fp16": {"enabled": True}, "bf16": {"enabled": True}}, "fp16 and bf16 are both"),
    ({**zero(1), "optimizer": {"type": "OneBitAdam"}}, "does not combine it with zero"),
    ({**BATCH, "optimizer": {"type": "Adam", "params": {"betas": [0.9]}}}, "params.betas = [0.9]:"),
    ({**BATCH, "optimizer": {"params": {}}}, "optimizer = {\"params\": {}}: has no type"),
    ({**BATCH, "scheduler": {"type": "WarmupDecayLR", "params": {}}}, "total_num_steps: is miss"),
    ({"gradient_accumulation_steps": 4}, "train_batch_size: is missing"),
    ({**BATCH, "gradient_accumulation_steps": 3}, "is not micro-batch x accumulation x data ranks"),
    ({**BATCH, "tensor_parallel": {"autotp_size": 3}}, "does not divide the 8 ranks"),
    ({**zero(1), "curriculum_learning": curriculum("fixed_root", 8, 64, **LINEAR)},
     "has no schedule_config.root_degree"),
    ({**zero(1), "curriculum_learning": curriculum("fixed_discrete", 8, 64, difficulty=[8, 64],
                                                   max_step=[5, 9])}, "wants one less"),
    ({**BATCH, "checkpoint": {"tag_validation": 3}}, "checkpoint.tag_validation = 3: allowed"),
)


def load_tool():
    loader = importlib.machinery.SourceFileLoader("from_deepspeed", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class FromDeepSpeed(RunTest):
    def convert(self, config, *arguments, code=0):
        path = self.dir / "ds_config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        job = subprocess.run([sys.executable, TOOL, path, *map(str, arguments)],
                             capture_output=True, text=True)
        self.assertEqual(job.returncode, code, job.stderr)
        if code:
            self.assertNotIn("Traceback", job.stderr)
            self.assertEqual(job.stdout, "")
        return job.stdout if code == 0 else job.stderr

    def check(self, deck):
        path = self.dir / "deck.toml"
        path.write_text(deck)
        job = self.run_job(0, "check", path, "--ranks", 8)
        self.assertEqual(job.code, 0, job.output + deck)

    def test_configurations_become_decks_that_check_accepts(self):
        for name, (config, keys, comments) in CONFIGS.items():
            with self.subTest(name):
                deck = self.convert(config, "--ranks", 8)
                found = tomllib.loads(deck)
                said = " ".join(deck.replace("\n#  ", "").split())
                for key, value in keys.items():
                    place = found
                    for part in key.split("."):
                        place = place.get(part) if isinstance(place, dict) else None
                    self.assertEqual(place, value, key)
                for text in comments:
                    self.assertIn(text, said)
                for line in deck.splitlines():
                    if line.startswith(("preset", "train =")):
                        self.assertIn("PLACEHOLDER", line)
                self.check(deck)

    def test_with_a_deck_that_has_model_and_data(self):
        (self.dir / "mine.toml").write_text(
            f'[run]\nsteps = 5\n[model]\npreset = "llama_1b"\n[data]\ntrain = ["{self.corpus}"]\n'
            "[batch]\nsequence = 64\n")
        deck = self.convert(zero(2), "--ranks", 8, "--base", "mine.toml", "--steps", 7)
        self.assertNotIn("PLACEHOLDER", deck)
        self.assertEqual(tomllib.loads(deck)["run"]["steps"], 7)
        self.check(deck)

    def test_the_launcher_and_its_hostfile(self):
        hosts = self.dir / "hosts"
        hosts.write_text("# two nodes\nworker-1 slots=4\n\nworker-2 slots=4  # of 8\n")
        deck = self.convert(zero(1), "--hostfile", hosts, "--deck", "run.toml")
        self.assertIn(f"mpirun -n 8 --hostfile {hosts} tessera train run.toml", deck)
        deck = self.convert(zero(1), "--hostfile", hosts, "--launcher", "srun")
        self.assertIn("srun -N 2 --ntasks-per-node=4 -w worker-1,worker-2 --mpi=pmix tessera train "
                      "deck.toml", deck)
        self.assertIn("srun -n 8 --mpi=pmix", self.convert(zero(1), "--ranks", 8, "--launcher",
                                                           "srun"))
        for text, message in (("worker-1 slots=4\nworker-2 slots=2\n", "different numbers"),
                              ("worker-1 slot=4\n", "hosts:1: \"worker-1 slot=4\": expected"),
                              ("a slots=1\na slots=2\n", "hosts:2:"), ("\n", "no host")):
            hosts.write_text(text)
            self.assertIn(message, self.convert({"train_micro_batch_size_per_gpu": 1},
                                                "--hostfile", hosts, "--launcher", "srun", code=2))

    def test_what_toml_does_not_hold_as_it_is(self):
        """Control characters, and integers that JSON writes with a fraction."""
        text = self.convert({
            **zero(3, offload_optimizer={"device": "nvme", "nvme_path": "/a\x7f"}), "a\x01\x7f": 1,
            "fp16": {"enabled": True, "initial_scale_power": 16.0}}, "--ranks", 8)
        deck = tomllib.loads(text)
        self.assertEqual(deck["offload"]["nvme"], ["/a\x7f"])
        self.assertIsInstance(deck["precision"]["loss_scale_power"], int)
        self.assertIn("\\x01", text)

    def test_what_deepspeed_refuses(self):
        tool = load_tool()
        for config, message in REFUSED:
            with self.subTest(message), self.assertRaises(tool.ConfigError) as refused:
                tool.convert(config, 8)
            self.assertIn(message, str(refused.exception))
        self.assertIn("stage = 4: allowed", self.convert(zero(4), "--ranks", 8, code=2))
        self.assertIn("give --ranks N", self.convert({"train_micro_batch_size_per_gpu": 1}, code=2))
        for text, message in (('{"a": 1,\n "a": 2}', "appears twice"), ("[]", "is an object"),
                              ('{"a": 1,\n}', "ds_config.json:2:1: not valid JSON"),
                              ('{"a": NaN}', "NaN is no number of JSON"),
                              ("[" * 10 ** 5, "nested too deeply"),
                              ('{"a": "\\ud800"}', "half of a surrogate pair"),
                              ('{"steps_per_print": 1' + "0" * 400 + "}", "steps_per_print = 1")):
            self.assertIn(message, self.convert(text, code=2))

    def test_every_documented_key_is_in_the_table(self):
        lines = (SOURCE / "tests/data/deepspeed/documented_keys.txt").read_text().splitlines()
        paths = [line for line in lines if not line.startswith("#")]
        self.assertGreater(len(paths), 250)
        unknown = [p for p in paths if deepspeed_keys.find(tuple(p.split("."))) is None]
        self.assertEqual(unknown, [])
        for path, row in deepspeed_keys.KEYS.items():
            self.assertEqual(bool(row.rule), not row.why, path)
        self.assertIsNone(deepspeed_keys.find(("zero_optimization", "stages")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
