"""The keys of DeepSpeed's configuration (ds_config.json) as one table: what each may be, and which
rule of tools/from_deepspeed uses it, or why a deck has nothing for it. It has those of DeepSpeed's
page "Configuration JSON", and others that its code reads."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Allowed:
    text: str
    holds: object  # value -> bool


@dataclasses.dataclass(frozen=True)
class Key:
    allowed: Allowed
    rule: str = ""  # of tools/from_deepspeed
    why: str = ""  # without a rule: why the deck has nothing for it
    off: object = None  # a value with which nothing is asked for


def _number(v):
    return isinstance(v, (int, float)) and not isinstance(v, bool) and abs(v) < 1e300


BOOLEAN = Allowed("true or false", lambda v: isinstance(v, bool))
TEXT = Allowed("a string", lambda v: isinstance(v, str))
NAMES = Allowed("a list of strings",
                lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v))
NUMBERS = Allowed("a list of numbers", lambda v: isinstance(v, list) and all(map(_number, v)))
LIST = Allowed("a list", lambda v: isinstance(v, list))
OBJECT = Allowed("an object", lambda v: isinstance(v, dict))
ANY = Allowed("anything", lambda v: True)
BETAS = Allowed("two numbers, 0 or more and below 1",
                lambda v: isinstance(v, list) and len(v) == 2
                and all(_number(x) and 0 <= x < 1 for x in v))


def integer(least, most=None):
    text = f"an integer, {least} " + ("or more" if most is None else f"to {most}")
    return Allowed(text, lambda v: _number(v) and float(v).is_integer() and v >= least
                   and (most is None or v <= most))


def number(least=None, most=None):
    text = "a number" + ("" if least is None else f", {least} or more" if most is None
                         else f", {least} to {most}")
    return Allowed(text, lambda v: _number(v) and (least is None or v >= least)
                   and (most is None or v <= most))


def one_of(*words):
    return Allowed("one of " + ", ".join(map(str, words)), lambda v: v in words)


def either(*allowed):
    return Allowed(" or ".join(a.text for a in allowed), lambda v: any(a.holds(v) for a in allowed))


def or_null(allowed):
    return Allowed(allowed.text + ", or null", lambda v: v is None or allowed.holds(v))


COUNT, SIZE = integer(1), integer(0)
DTYPE = or_null(one_of("fp32", "fp16", "bf16", "float32", "float16", "bfloat16", "float", "half"))

KEYS = {}


def uses(rule, prefix="", **keys):
    """Keys that a rule uses."""
    for name, allowed in keys.items():
        KEYS[prefix + name.replace("__", ".")] = Key(allowed, rule=rule)


def lacks(why, prefix="", off=None, **keys):
    """Keys for which a deck has nothing, with the reason; `off` asks for nothing."""
    for name, allowed in keys.items():
        KEYS[prefix + name.replace("__", ".")] = Key(allowed, why=why, off=off)


def group(name, why, **keys):
    """An object for which a deck has nothing; "enabled": false asks for nothing."""
    KEYS[name] = Key(or_null(either(OBJECT, BOOLEAN)), why=why)
    lacks(why, name + ".", **keys)


# Batches
uses("batch", train_batch_size=COUNT, train_micro_batch_size_per_gpu=COUNT,
     gradient_accumulation_steps=COUNT)
lacks("a step of Tessera is the whole global batch; no call marks its end", off=True,
      managed_gradient_accumulation=BOOLEAN)

# Optimizer
uses("optimizer", optimizer=or_null(OBJECT), gradient_clipping=number(0))
uses("optimizer", "optimizer.", type=TEXT, params=OBJECT)
uses("optimizer", "optimizer.params.", lr=number(0), betas=BETAS, eps=number(0),
     weight_decay=number(0), adam_w_mode=BOOLEAN, amsgrad=BOOLEAN, bias_correction=BOOLEAN,
     momentum=number(0), nesterov=BOOLEAN, freeze_step=SIZE)
lacks("momentum travels over whatever carries gradients", "optimizer.params.", cuda_aware=BOOLEAN,
      comm_backend_name=TEXT)
lacks("there is one implementation, fused, for each device", "optimizer.params.",
      torch_adam=BOOLEAN, fused=BOOLEAN, foreach=BOOLEAN, set_grad_none=BOOLEAN,
      capturable=BOOLEAN, differentiable=BOOLEAN)
lacks("optimizer.moments is the type in which Tessera keeps Adam's moments", "optimizer.params.",
      fp32_optimizer_states=BOOLEAN)
lacks("Tessera minimises the loss", "optimizer.params.", off=False, maximize=BOOLEAN)
lacks("optimizer.trust is for Tessera's lamb, which does not correct the moments' bias",
      "optimizer.params.", max_coeff=number(0), min_coeff=number(0))
lacks("no optimizer of Tessera uses it", "optimizer.params.",
      muon_lr=number(0), adam_lr=number(0), per_head_muon=BOOLEAN,
      ns_method=one_of("gram", "standard"), coeff_beta=number(0),
      factor_max=number(0), factor_min=number(0), factor_threshold=number(0),
      var_freeze_step=SIZE, var_update_scaler=SIZE, local_step_scaler=SIZE,
      local_step_clipper=SIZE, max_grad_norm=number(0), eps_inside_sqrt=BOOLEAN,
      dampening=number())
lacks("every ZeRO stage has been tested with every optimizer", off=False,
      zero_allow_untested_optimizer=BOOLEAN)
lacks("where optimizer state lives on the host, the host updates it",
      zero_force_ds_cpu_optimizer=BOOLEAN)

# Learning rate
uses("schedule", scheduler=or_null(OBJECT))
uses("schedule", "scheduler.", type=TEXT, params=OBJECT)
uses("schedule", "scheduler.params.", warmup_min_lr=number(0), warmup_max_lr=number(0),
     warmup_num_steps=SIZE, warmup_type=one_of("log", "linear"), total_num_steps=SIZE,
     warmup_min_ratio=number(0), cos_min_ratio=number(0))
lacks("a run that goes on knows its step", "scheduler.params.", last_batch_iteration=integer(-1))
lacks("Tessera's schedules are constant, linear, cosine, wsd, step and inverse_sqrt, without a "
      "momentum",
      "scheduler.params.", lr_range_test_min_lr=number(0), lr_range_test_step_size=COUNT,
      lr_range_test_step_rate=number(0), lr_range_test_staircase=BOOLEAN, cycle_min_lr=number(0),
      cycle_max_lr=number(0), decay_lr_rate=number(0), cycle_first_step_size=SIZE,
      cycle_second_step_size=or_null(SIZE), cycle_first_stair_count=SIZE,
      cycle_second_stair_count=or_null(SIZE), decay_step_size=SIZE, cycle_momentum=BOOLEAN,
      cycle_min_mom=number(0), cycle_max_mom=number(0), decay_mom_rate=number(0))

# Communication
uses("precision", communication_data_type=DTYPE)
KEYS["gradient_allreduce_op"] = Key(
    one_of("mean", "sum"), off="mean",
    why="gradients are those of the mean over the global batch: divide optimizer.lr or the loss "
        "as the sum needs it")
lacks("gradients are summed in f32, where no order of scaling and adding can overflow",
      prescale_gradients=BOOLEAN, gradient_predivide_factor=number(0), fp32_allreduce=BOOLEAN)
lacks("embedding gradients travel whole", off=False, sparse_gradients=BOOLEAN)
lacks("updated parameters are always gathered", off=False, disable_allgather=BOOLEAN)
lacks("parallel.sequence has no type of its own on the wire",
      seq_parallel_communication_data_type=DTYPE)

# Precision
uses("precision", fp16=or_null(OBJECT), bf16=or_null(OBJECT), torch_autocast=or_null(OBJECT),
     data_types=or_null(OBJECT))
KEYS["bfloat16"] = Key(or_null(OBJECT), rule="precision")
uses("precision", enabled=BOOLEAN, prefix="bfloat16.")
uses("precision", "fp16.", enabled=BOOLEAN, loss_scale=number(0), initial_scale_power=SIZE,
     loss_scale_window=COUNT, hysteresis=COUNT, min_loss_scale=COUNT)
lacks("a model of Tessera computes in precision.compute throughout", "fp16.", off=False,
      auto_cast=BOOLEAN)
lacks("an overflow counts against the hysteresis until the scale has doubled, as false means",
      "fp16.", off=False, consecutive_hysteresis=BOOLEAN)
lacks("master weights and sums of gradients are f32", "fp16.", off=False,
      fp16_master_weights_and_grads=BOOLEAN)
uses("precision", "bf16.", enabled=BOOLEAN, bf16_optimizer_states=BOOLEAN)
lacks("master weights are f32", "bf16.", off=False, bf16_master_weights_and_grads=BOOLEAN)
lacks("a step whose gradients are not finite is always found (guard.non_finite)", "bf16.",
      check_grad_overflow=BOOLEAN)
lacks("the plan says when gradients are added", "bf16.", immediate_grad_update=BOOLEAN)
uses("precision", "torch_autocast.", enabled=BOOLEAN,
     dtype=one_of("bfloat16", "float16", "torch.bfloat16", "torch.float16"))
lacks("precision.compute is of all modules", "torch_autocast.", lower_precision_safe_modules=NAMES)
uses("precision", "data_types.", grad_accum_dtype=DTYPE)
group("amp", "Apex is a library of PyTorch's: give precision.compute = \"bf16\" or \"f16\"",
      enabled=BOOLEAN, opt_level=TEXT, min_loss_scale=number(0), max_loss_scale=number(0),
      loss_scale=ANY, keep_batchnorm_fp32=ANY, master_weights=ANY)

# ZeRO
ZERO = "zero_optimization."
uses("zero", zero_optimization=or_null(either(OBJECT, BOOLEAN)))
uses("zero", ZERO, stage=integer(0, 3), zero_hpz_partition_size=COUNT,
     zero_quantized_weights=BOOLEAN, zero_quantized_gradients=BOOLEAN)
lacks("a plan made before the first step says when everything travels, and reserves its room: "
      "there are no buckets (zero.prefetch is how many layers ahead parameters are gathered)",
      ZERO, allgather_bucket_size=SIZE, reduce_bucket_size=SIZE, stage3_prefetch_bucket_size=SIZE,
      prefetch_bucket_size=SIZE, stage3_max_live_parameters=SIZE, max_live_parameters=SIZE,
      stage3_max_reuse_distance=SIZE, max_reuse_distance=SIZE,
      stage3_module_granularity_threshold=SIZE, stage3_layer_granularity_threshold=SIZE)
lacks("always so: collectives run beside the computation, over contiguous memory", ZERO,
      allgather_partitions=BOOLEAN, overlap_comm=or_null(BOOLEAN), reduce_scatter=BOOLEAN,
      contiguous_gradients=BOOLEAN, round_robin_gradients=BOOLEAN, parameter_alignment=BOOLEAN,
      use_multi_rank_bucket_allreduce=BOOLEAN, allgather_sequential=BOOLEAN,
      stage3_use_all_reduce_for_fetch_params=BOOLEAN, use_all_reduce_for_fetch_params=BOOLEAN)
lacks("every step has its gradient norm", ZERO, off=True, compute_grad_norm=BOOLEAN)
lacks("every parameter is divided: layers are gathered whole, so small ones cost no message",
      ZERO, stage3_param_persistence_threshold=SIZE, param_persistence_threshold=SIZE,
      stage3_model_persistence_threshold=SIZE, model_persistence_threshold=SIZE)
lacks("updates go in tiles beside the next step's forward, as the plan reserves room for them",
      ZERO, sub_group_size=SIZE)
lacks("a checkpoint always has f32 master weights, and model.h5 with whole tensors; `tessera "
      "export` writes a Hugging Face directory", ZERO,
      stage3_gather_16bit_weights_on_model_save=BOOLEAN, load_from_fp32_weights=BOOLEAN,
      stage3_gather_fp16_weights_on_model_save=BOOLEAN, gather_16bit_weights_on_model_save=BOOLEAN)
lacks("checkpoints go on under any layout and number of ranks", ZERO, elastic_checkpoint=BOOLEAN,
      pipeline_loading_checkpoint=BOOLEAN)
lacks("every parameter of a model is used, and the plan is proved before the first step", ZERO,
      ignore_unused_parameters=BOOLEAN, log_trace_cache_warnings=BOOLEAN,
      enable_sanity_checks=BOOLEAN)
lacks("the moments of muon lie where offload.optimizer says", ZERO, off=False,
      save_muon_momentum_buffer_in_memory=BOOLEAN)
lacks("zero.tiles cuts the matrices of a layer, of whatever kind", ZERO,
      memory_efficient_linear=BOOLEAN, override_module_apply=BOOLEAN, leaf_module=OBJECT)
lacks("frozen parameters are not available in this version", ZERO, off=False,
      zero_quantized_nontrainable_weights=BOOLEAN)
lacks("the nearest is zero.secondary, which keeps copies of parameters within a node", ZERO,
      mics_shard_size=integer(-1), mics_hierarchical_params_gather=BOOLEAN)
lacks("the nearest is zero.quantize.error_feedback, without a decay", ZERO,
      zeropp_loco_param=or_null(OBJECT))
for name in ("err_beta", "reset_T"):
    lacks("the nearest is zero.quantize.error_feedback, without a decay",
          ZERO + "zeropp_loco_param.", **{name: number(0)})
lacks("ZeRO-1 is what stage 1 says", ZERO, legacy_stage1=BOOLEAN)

# Offloading
uses("offload", ZERO, offload_param=or_null(OBJECT), offload_optimizer=or_null(OBJECT),
     cpu_offload=or_null(BOOLEAN), cpu_offload_param=or_null(BOOLEAN))
for name in ("offload_param.", "offload_optimizer."):
    uses("offload", ZERO + name, device=one_of("cpu", "nvme", "none"), nvme_path=or_null(TEXT))
    lacks("on GPUs the host's part is always page-locked", ZERO + name, pin_memory=BOOLEAN)
    lacks("the plan reserves what passes through the host (offload.ahead, memory.host)",
          ZERO + name, buffer_count=COUNT, buffer_size=COUNT, max_in_cpu=SIZE)
uses("offload", ZERO + "offload_optimizer.", ratio=number(0, 1))
lacks("files are taken before the first step", ZERO + "offload_optimizer.", fast_init=BOOLEAN)
lacks("disks read and write beside the computation, as offload.ahead says",
      ZERO + "offload_optimizer.", pipeline_read=BOOLEAN, pipeline_write=BOOLEAN, pipeline=BOOLEAN)
lacks("updates on the host use all threads of a rank (run.threads)", ZERO + "offload_optimizer.",
      super_offload=BOOLEAN, cpuadam_cores_perc=number(0, 1))
lacks("on GPUs the host's part is always page-locked", ZERO, cpu_offload_use_pin_memory=BOOLEAN)
uses("offload", aio=or_null(OBJECT), aio__block_size=COUNT, aio__queue_depth=COUNT)
lacks("all requests to a disk are under way at once, from one thread", "aio.", thread_count=COUNT,
      intra_op_parallelism=COUNT, single_submit=BOOLEAN, overlap_events=BOOLEAN, use_gds=BOOLEAN)

# Layouts
TENSOR = "tensor_parallel."
uses("parallel", tensor_parallel=or_null(OBJECT), tensor_parallel__autotp_size=SIZE)
lacks("Tessera knows how the matrices of its families are cut", TENSOR, preset_model=or_null(TEXT),
      partition_config=or_null(OBJECT), tp_size=ANY, tp_grain_size=ANY)
lacks("Tessera knows how the matrices of its families are cut", TENSOR + "partition_config.",
      use_default_specs=BOOLEAN, layer_specs=LIST)
lacks("Tessera knows how the matrices of its families are cut",
      TENSOR + "partition_config.layer_specs.*.", patterns=NAMES,
      partition_type=one_of("row", "column", "skip"), shape=or_null(LIST),
      partition_dim=or_null(SIZE), model_types=or_null(NAMES))
lacks("always so: the vocabulary and its loss are divided over tensor ranks", TENSOR,
      vocab_parallel_lm_head=BOOLEAN)
lacks("the plan puts every message beside what it may run beside", TENSOR, tp_overlap_comm=BOOLEAN)
group("pipeline", "give parallel.pipeline, the number of stages, and parallel.schedule; "
      "DeepSpeed's PipelineModule says the first in Python", stages=ANY, partition=ANY,
      seed_layers=BOOLEAN, activation_checkpoint_interval=SIZE, pipe_partitioned=BOOLEAN,
      grad_partitioned=BOOLEAN, use_reentrant=BOOLEAN)
group("expert_parallel", "experts are not available in this version", enabled=BOOLEAN,
      autoep_size=COUNT, expert_tensor_parallel_size=COUNT, async_split_plan=BOOLEAN,
      preset_model=or_null(TEXT), use_grouped_mm=BOOLEAN, disable_triton_grouped_mm=BOOLEAN,
      moe_layer_pattern=or_null(TEXT), router_pattern=or_null(TEXT), expert_pattern=or_null(TEXT),
      score_func=one_of("softmax", "sigmoid", "auto"), score_apply=one_of("pre", "post", "auto"),
      combine_impl=one_of("auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm"),
      route_norm=or_null(BOOLEAN), route_scale=number(), top_k=COUNT,
      routed_scaling_factor=number(), num_expert_groups=or_null(COUNT),
      num_limited_groups=or_null(COUNT), load_balance_coeff=or_null(number()),
      expert_w1=or_null(TEXT), expert_w2=or_null(TEXT), expert_w3=or_null(TEXT),
      num_experts_attr=or_null(TEXT), top_k_attr=or_null(TEXT),
      has_shared_experts=or_null(BOOLEAN), shared_experts_pattern=or_null(TEXT))
lacks("data ranks come last in Tessera's mesh, tensor ranks are neighbours",
      use_data_before_expert_parallelism=BOOLEAN)
group("hybrid_engine", "task.kind = \"ppo\" and \"grpo\" draw answers with the weights that are "
      "trained, and need no keys for it", enabled=BOOLEAN, max_out_tokens=COUNT,
      inference_tp_size=COUNT, release_inference_cache=BOOLEAN, pin_parameters=BOOLEAN,
      tp_gather_partition_size=COUNT, enable_cuda_graph=BOOLEAN)
group("compile", "Tessera is compiled ahead of time; on GPUs a step is recorded as a CUDA graph",
      deepcompile=BOOLEAN, passes=or_null(NAMES), offload_activation=BOOLEAN,
      offload_activation_pin_memory=BOOLEAN, free_activation=BOOLEAN, backend=ANY, enabled=BOOLEAN,
      kwargs=ANY, double_buffer=BOOLEAN, symmetric_memory=BOOLEAN, debug_log=BOOLEAN,
      offload_parameters=BOOLEAN, sync_before_reduce=BOOLEAN, sync_after_reduce=BOOLEAN,
      sync_before_allgather=BOOLEAN, sync_after_allgather=BOOLEAN, offload_opt_states=BOOLEAN)
lacks("there is no Python in a step", off=False, disable_python_gc=BOOLEAN)

# Activations
ACTIVATIONS = "activation_checkpointing."
uses("recompute", activation_checkpointing=or_null(OBJECT))
uses("recompute", ACTIVATIONS, partition_activations=BOOLEAN, cpu_checkpointing=BOOLEAN,
     contiguous_memory_optimization=BOOLEAN)
lacks("every block is a checkpoint, in memory that was reserved for it", ACTIVATIONS,
      number_checkpoints=or_null(SIZE))
lacks("no boundary needs the device to stop", ACTIVATIONS, off=False,
      synchronize_checkpoint_boundary=BOOLEAN)
lacks("log.profile times each operation of the steps that it names", ACTIVATIONS, off=False,
      profile=BOOLEAN)

# Logs
uses("log", steps_per_print=or_null(COUNT), flops_profiler=or_null(OBJECT),
     wall_clock_breakdown=BOOLEAN, flops_profiler__enabled=BOOLEAN,
     flops_profiler__profile_step=COUNT)
lacks("`tessera plan --profile` shows every operation of the profiled steps", "flops_profiler.",
      module_depth=integer(-1), top_modules=COUNT, detailed=BOOLEAN, output_file=or_null(TEXT),
      recompute_fwd_factor=number(0))
lacks("every start prints the mesh and predicted memory, and keeps resolved.toml and plan.txt",
      off=False, dump_state=BOOLEAN)
lacks("memory is reserved before the first step: `tessera check` and every start print it",
      off=False, memory_breakdown=BOOLEAN)
group("tensorboard", "beside the run: tools/follow RUN_DIR --tensorboard DIR", enabled=BOOLEAN,
      output_path=or_null(TEXT), job_name=TEXT)
group("wandb", "beside the run: tools/follow RUN_DIR --wandb PROJECT", enabled=BOOLEAN,
      group=or_null(TEXT), team=or_null(TEXT), project=TEXT)
group("comet", "tools/follow writes for TensorBoard and Weights & Biases, not for Comet",
      enabled=BOOLEAN, workspace=or_null(TEXT), project=or_null(TEXT), samples_log_interval=COUNT,
      experiment_name=or_null(TEXT), api_key=or_null(TEXT), experiment_key=or_null(TEXT),
      online=or_null(BOOLEAN), mode=or_null(one_of("get", "create", "get_or_create")))
group("csv_monitor", "every run writes metrics.jsonl", enabled=BOOLEAN, output_path=or_null(TEXT),
      job_name=TEXT)
group("monitor_config", "beside the run: tools/follow", enabled=BOOLEAN)
group("comms_logger", "`tessera check` and the plan say what every collective sends, "
      "metrics.jsonl has a step's wire_bytes, log.profile times each", enabled=BOOLEAN,
      verbose=BOOLEAN, prof_all=BOOLEAN, debug=BOOLEAN, prof_ops=NAMES)
group("timers", "log.profile times each operation of the steps that it names", throughput=OBJECT)
lacks("log.profile times each operation of the steps that it names", "timers.throughput.",
      enabled=BOOLEAN, synchronized=BOOLEAN)

# Checkpoints
group("checkpoint", "[checkpoint] says how often; every rank writes its own file, a manifest "
      "written last proves that all belong together, and any layout goes on from it",
      tag_validation=one_of("Ignore", "Warn", "Fail", "ignore", "warn", "fail", "IGNORE", "WARN",
                            "FAIL"),
      load_universal=BOOLEAN, use_node_local_storage=BOOLEAN, parallel_write=OBJECT,
      writer=or_null(OBJECT))
lacks(KEYS["checkpoint"].why, "checkpoint.parallel_write.", pipeline_stage=BOOLEAN)
group("nebula", "checkpoints are written beside training (checkpoint.async)", enabled=BOOLEAN,
      persistent_storage_path=or_null(TEXT), persistent_time_interval=COUNT,
      num_of_version_in_retention=COUNT, enable_nebula_load=BOOLEAN, load_path=or_null(TEXT))

# Data
ROUTING = "dropped tokens (random-LTD) are not available in this version"
SAMPLING = "a curriculum of Tessera is of sequence lengths, which need no analysis of the data"
LTD = "data_efficiency.data_routing.random_ltd."
uses("curriculum", data_efficiency=OBJECT)
uses("curriculum", "data_efficiency.", enabled=BOOLEAN, data_sampling=OBJECT)
lacks("run.seed is of the data's order too", "data_efficiency.", seed=SIZE)
group("data_efficiency.data_routing", ROUTING, enabled=BOOLEAN, random_ltd=OBJECT)
lacks(ROUTING, LTD, enabled=BOOLEAN, total_layer_num=COUNT,
      random_ltd_layer_num=SIZE, random_ltd_layer_id=NUMBERS, model_mask_name=or_null(TEXT),
      model_type=one_of("decoder", "encoder"),
      hidden_state_order=one_of("batch_seq_dim", "seq_batch_dim"), random_ltd_schedule=OBJECT)
lacks(ROUTING, LTD + "random_ltd_schedule.", min_value=COUNT,
      max_value=COUNT, schedule_type=TEXT, schedule_config=OBJECT)
lacks(ROUTING, LTD + "random_ltd_schedule.schedule_config.",
      require_steps=COUNT, seq_per_step=COUNT)
uses("curriculum", "data_efficiency.data_sampling.", enabled=BOOLEAN, curriculum_learning=OBJECT)
lacks("the run's length is the deck's (run.epochs), and one thread reads ahead",
      "data_efficiency.data_sampling.", num_epochs=COUNT, num_workers=SIZE, pin_memory=BOOLEAN)
CURRICULUM = "data_efficiency.data_sampling.curriculum_learning."
uses("curriculum", CURRICULUM, enabled=BOOLEAN, curriculum_metrics=OBJECT)
lacks(SAMPLING, CURRICULUM, data_cluster_path=TEXT)
SCHEDULES = one_of("fixed_linear", "fixed_root", "fixed_discrete", "custom")
# Whatever their names, of which Megatron-DeepSpeed gives some to sequence lengths.
METRIC = CURRICULUM + "curriculum_metrics.*"
KEYS[METRIC] = Key(OBJECT, rule="curriculum")
lacks(SAMPLING, METRIC + ".", index_to_sample_path=TEXT, index_to_metric_path=TEXT,
      clustering_type=one_of("schedule_based", "single_cluster"))
uses("curriculum", METRIC + ".", difficulty_type=one_of("value", "percentile"))
uses("curriculum", curriculum_learning=OBJECT)
uses("curriculum", "curriculum_learning.", enabled=BOOLEAN, curriculum_type=TEXT)
for path in (METRIC + ".", "curriculum_learning."):
    uses("curriculum", path, min_difficulty=number(), max_difficulty=number(),
         schedule_type=SCHEDULES, schedule_config=OBJECT)
    uses("curriculum", path + "schedule_config.", total_curriculum_step=COUNT,
         difficulty_step=COUNT, root_degree=COUNT, difficulty=NUMBERS, max_step=NUMBERS)
lacks("the corpus is one row of tokens; a run's samples do not end with an epoch",
      dataloader_drop_last=BOOLEAN)

# Others
AUTOTUNING = ("`tessera simulate --search` finds layouts for a machine file, `tessera check --fit` "
              "the largest micro-batch: neither needs the machine")
group("autotuning", AUTOTUNING, enabled=BOOLEAN, results_dir=or_null(TEXT), exps_dir=or_null(TEXT),
      overwrite=BOOLEAN, metric=one_of("latency", "throughput", "flops", "FLOPS"),
      start_profile_step=COUNT, end_profile_step=COUNT, fast=BOOLEAN,
      max_train_batch_size=or_null(COUNT), mp_size=COUNT, num_tuning_micro_batch_sizes=COUNT,
      tuner_type=one_of("model_based", "random", "gridsearch"), tuner_early_stopping=COUNT,
      tuner_num_trials=COUNT, arg_mappings=or_null(OBJECT), min_train_batch_size=COUNT,
      max_train_micro_batch_size_per_gpu=COUNT, min_train_micro_batch_size_per_gpu=COUNT,
      model_info=or_null(OBJECT), model_info_path=or_null(TEXT), metric_path=or_null(TEXT))
KEYS["autotuning.arg_mappings.*"] = Key(ANY, why=AUTOTUNING)
KEYS["autotuning.model_info.*"] = Key(ANY, why=AUTOTUNING)
group("elasticity", "a job goes on from its newest checkpoint on any number of ranks that divides "
      "the batch", enabled=BOOLEAN, max_train_batch_size=COUNT, micro_batch_sizes=NUMBERS,
      min_gpus=COUNT, max_gpus=COUNT, min_time=SIZE, version=number(0),
      ignore_non_elastic_batch_info=BOOLEAN, prefer_larger_batch=BOOLEAN, num_gpus_per_node=COUNT,
      model_parallel_size=COUNT)
for name, reason in (
        ("compression_training", "pruning and quantisation of a model are not available"),
        ("quantize_training", "quantisation of a model is not available"),
        ("sparse_attention", "sparse attention is not available"),
        ("progressive_layer_drop", "dropping layers is not available"),
        ("eigenvalue", "an eigenvalue of the loss is not available"),
        ("weight_quantization", "quantisation of a saved model is not available"),
        ("zero_optimization.zenflow", "an update by stale gradients is not available")):
    group(name, reason + " in this version")
    KEYS[name + ".**"] = Key(ANY, why=KEYS[name].why)
lacks("ranks are an MPI program's, whose launcher numbers them", sequence_parallel_size=COUNT,
      data_parallel_size=COUNT)
lacks("on GPUs a step is always recorded as a CUDA graph", graph_harvesting=BOOLEAN)


def find(path):
    """The row of a key, given as a tuple of names, or None. "*" stands for any one name, "**" for
    any names from there on."""
    def fits(pattern):
        names = pattern.split(".")
        if names[-1] == "**":
            return len(path) >= len(names) and _same(names[:-1], path)
        return len(path) == len(names) and _same(names, path)

    exact = KEYS.get(".".join(path))
    return exact or next((row for pattern, row in KEYS.items() if "*" in pattern and fits(pattern)),
                         None)


def _same(pattern, path):
    return all(p in ("*", name) for p, name in zip(pattern, path))
