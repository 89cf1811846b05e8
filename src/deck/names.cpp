#include "deck/names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "deck/schema.hpp"

namespace tessera::deck {

namespace {

struct ForeignName {
  std::string_view theirs;
  std::string_view ours;
};

// Keys of DeepSpeed, Megatron-LM, Hugging Face, torchtitan and nanoGPT.
constexpr ForeignName kForeignKeys[] = {
    {"learning_rate", "optimizer.lr"},
    {"max_lr", "optimizer.lr"},
    {"adam_beta1", "optimizer.betas"},
    {"adam_beta2", "optimizer.betas"},
    {"beta1", "optimizer.betas"},
    {"beta2", "optimizer.betas"},
    {"adam_eps", "optimizer.eps"},
    {"adam_epsilon", "optimizer.eps"},
    {"epsilon", "optimizer.eps"},
    {"wd", "optimizer.weight_decay"},
    {"decay", "optimizer.weight_decay"},
    {"clip_grad", "optimizer.clip_norm"},
    {"grad_clip", "optimizer.clip_norm"},
    {"gradient_clipping", "optimizer.clip_norm"},
    {"max_grad_norm", "optimizer.clip_norm"},
    {"max_norm", "optimizer.clip_norm"},
    {"optim", "optimizer.name"},
    {"optimizer_type", "optimizer.name"},
    {"lr_scheduler_type", "schedule.kind"},
    {"lr_decay_style", "schedule.kind"},
    {"scheduler", "schedule.kind"},
    {"decay_type", "schedule.kind"},
    {"warmup_iters", "schedule.warmup_steps"},
    {"warmup_num_steps", "schedule.warmup_steps"},
    {"num_warmup_steps", "schedule.warmup_steps"},
    {"lr_warmup_iters", "schedule.warmup_steps"},
    {"lr_warmup_samples", "schedule.warmup_tokens"},
    {"warmup_ratio", "schedule.warmup_steps"},
    {"warmup_min_lr", "schedule.warmup_start_lr"},
    {"warmup_type", "schedule.warmup"},
    {"lr_decay_iters", "schedule.decay_steps"},
    {"total_num_steps", "schedule.decay_steps"},
    {"lr_wsd_decay_iters", "schedule.decay_steps"},
    {"lr_decay_samples", "schedule.decay_tokens"},
    {"minimum_lr", "schedule.min_lr"},
    {"lr_min", "schedule.min_lr"},
    {"max_steps", "run.steps"},
    {"num_steps", "run.steps"},
    {"train_steps", "run.steps"},
    {"train_iters", "run.steps"},
    {"max_iters", "run.steps"},
    {"iterations", "run.steps"},
    {"train_tokens", "run.tokens"},
    {"max_tokens", "run.tokens"},
    {"train_samples", "run.tokens"},
    {"num_train_epochs", "run.epochs"},
    {"num_epochs", "run.epochs"},
    {"max_epochs", "run.epochs"},
    {"random_seed", "run.seed"},
    {"output_dir", "run.dir"},
    {"out_dir", "run.dir"},
    {"run_name", "run.name"},
    {"exp_name", "run.name"},
    {"device", "run.backend"},
    {"distributed_backend", "run.backend"},
    {"deterministic", "run.reproducible"},
    {"deterministic_mode", "run.reproducible"},
    {"resume_from_checkpoint", "run.resume"},
    {"load", "run.resume"},
    {"init_from_checkpoint", "run.resume"},
    {"exit_duration_in_mins", "run.time_limit"},
    {"max_time", "run.time_limit"},
    {"num_threads", "run.threads"},
    {"omp_num_threads", "run.threads"},
    {"n_layer", "model.layers"},
    {"n_layers", "model.layers"},
    {"num_layers", "model.layers"},
    {"num_hidden_layers", "model.layers"},
    {"n_head", "model.heads"},
    {"n_heads", "model.heads"},
    {"num_heads", "model.heads"},
    {"num_attention_heads", "model.heads"},
    {"n_kv_heads", "model.kv_heads"},
    {"num_key_value_heads", "model.kv_heads"},
    {"num_query_groups", "model.kv_heads"},
    {"n_embd", "model.hidden"},
    {"d_model", "model.hidden"},
    {"dim", "model.hidden"},
    {"hidden_size", "model.hidden"},
    {"embedding_size", "model.hidden"},
    {"kv_channels", "model.head_dim"},
    {"head_size", "model.head_dim"},
    {"v_head_dim", "model.value_dim"},
    {"kv_lora_rank", "model.kv_latent"},
    {"q_lora_rank", "model.q_latent"},
    {"qk_rope_head_dim", "model.rope_dim"},
    {"qk_nope_head_dim", "model.head_dim"},
    {"n_inner", "model.ffn_hidden"},
    {"d_ff", "model.ffn_hidden"},
    {"ffn_dim", "model.ffn_hidden"},
    {"ffn_hidden_size", "model.ffn_hidden"},
    {"intermediate_size", "model.ffn_hidden"},
    {"vocab_size", "model.vocab"},
    {"n_positions", "model.context"},
    {"n_ctx", "model.context"},
    {"block_size", "model.context"},
    {"max_position_embeddings", "model.context"},
    {"model_type", "model.family"},
    {"architecture", "model.family"},
    {"flavor", "model.preset"},
    {"normalization", "model.norm"},
    {"norm_type", "model.norm"},
    {"layer_norm_eps", "model.norm_eps"},
    {"layer_norm_epsilon", "model.norm_eps"},
    {"layernorm_epsilon", "model.norm_eps"},
    {"rms_norm_eps", "model.norm_eps"},
    {"position_embedding_type", "model.position"},
    {"rotary_base", "model.rope_theta"},
    {"activation_function", "model.activation"},
    {"hidden_act", "model.activation"},
    {"tie_word_embeddings", "model.tied_embeddings"},
    {"tied", "model.tied_embeddings"},
    {"untie_embeddings_and_output_weights", "model.tied_embeddings"},
    {"add_bias_linear", "model.bias"},
    {"disable_bias_linear", "model.bias"},
    {"attention_dropout", "model.dropout_attention"},
    {"attn_pdrop", "model.dropout_attention"},
    {"hidden_dropout", "model.dropout_residual"},
    {"resid_pdrop", "model.dropout_residual"},
    {"embd_pdrop", "model.dropout_embedding"},
    {"embedding_dropout", "model.dropout_embedding"},
    {"initializer_range", "model.init_std"},
    {"init_method_std", "model.init_std"},
    {"num_experts", "moe.experts"},
    {"num_local_experts", "moe.experts"},
    {"n_routed_experts", "moe.experts"},
    {"num_experts_per_tok", "moe.top_k"},
    {"moe_router_topk", "moe.top_k"},
    {"moe_intermediate_size", "moe.ffn_hidden"},
    {"moe_ffn_hidden_size", "moe.ffn_hidden"},
    {"shared_expert_intermediate_size", "moe.shared_ffn_hidden"},
    {"moe_shared_expert_intermediate_size", "moe.shared_ffn_hidden"},
    {"decoder_sparse_step", "moe.every"},
    {"first_k_dense_replace", "moe.first_dense"},
    {"scoring_func", "moe.scores"},
    {"moe_router_score_function", "moe.scores"},
    {"norm_topk_prob", "moe.normalize"},
    {"routed_scaling_factor", "moe.scale"},
    {"moe_router_topk_scaling_factor", "moe.scale"},
    {"n_group", "moe.groups"},
    {"moe_router_num_groups", "moe.groups"},
    {"topk_group", "moe.group_top"},
    {"moe_router_group_topk", "moe.group_top"},
    {"moe_router_load_balancing_type", "moe.aux_over"},
    {"moe_expert_capacity_factor", "moe.capacity"},
    {"capacity_factor", "moe.capacity"},
    {"router_jitter_noise", "moe.jitter"},
    {"moe_input_jitter_eps", "moe.jitter"},
    {"router_aux_loss_coef", "moe.aux_loss"},
    {"moe_aux_loss_coeff", "moe.aux_loss"},
    {"moe_z_loss_coeff", "moe.z_loss"},
    {"moe_router_enable_expert_bias", "moe.bias"},
    {"moe_router_bias_update_rate", "moe.bias_update"},
    {"label_smoothing_factor", "task.label_smoothing"},
    {"z_loss_weight", "task.z_loss"},
    {"auxiliary_loss_multiplier", "task.z_loss"},
    {"softmax_auxiliary_loss", "task.z_loss"},
    {"pretrained", "model.init_from"},
    {"model_name_or_path", "model.init_from"},
    {"data_path", "data.train"},
    {"train_data_path", "data.train"},
    {"train_file", "data.train"},
    {"dataset", "data.train"},
    {"dataset_path", "data.train"},
    {"valid_data_path", "data.validation"},
    {"validation_file", "data.validation"},
    {"val", "data.validation"},
    {"valid", "data.validation"},
    {"seq_length", "batch.sequence"},
    {"seq_len", "batch.sequence"},
    {"sequence_length", "batch.sequence"},
    {"max_seq_length", "batch.sequence"},
    {"max_length", "batch.sequence"},
    {"micro_batch_size", "batch.micro"},
    {"micro_batch", "batch.micro"},
    {"local_batch_size", "batch.micro"},
    {"train_micro_batch_size_per_gpu", "batch.micro"},
    {"per_device_train_batch_size", "batch.micro"},
    {"batch_size", "batch.global"},
    {"global_batch_size", "batch.global"},
    {"train_batch_size", "batch.global"},
    {"gradient_accumulation_steps", "batch.global"},
    {"accumulation_steps", "batch.global"},
    {"rampup_batch_size", "batch.ramp"},
    {"curriculum_learning", "batch.curriculum"},
    {"lr_scaling_method", "batch.lr_scaling"},
    {"dtype", "precision.compute"},
    {"param_dtype", "precision.compute"},
    {"params_dtype", "precision.compute"},
    {"mixed_precision", "precision.compute"},
    {"mixed_precision_param", "precision.compute"},
    {"bf16", "precision.compute"},
    {"fp16", "precision.compute"},
    {"fp8", "precision.matmul"},
    {"tf32", "precision.matmul"},
    {"grad_accum_dtype", "precision.accumulate"},
    {"accumulate_allreduce_grads_in_fp32", "precision.accumulate"},
    {"communication_data_type", "precision.gradients"},
    {"mixed_precision_reduce", "precision.gradients"},
    {"initial_scale_power", "precision.loss_scale_power"},
    {"initial_loss_scale", "precision.loss_scale_power"},
    {"loss_scale_window_size", "precision.loss_scale_window"},
    {"hysteresis", "precision.loss_scale_hysteresis"},
    {"min_loss_scale", "precision.loss_scale_min"},
    {"tp", "parallel.tensor"},
    {"tensor_parallel", "parallel.tensor"},
    {"tensor_parallel_degree", "parallel.tensor"},
    {"tensor_parallel_size", "parallel.tensor"},
    {"tensor_model_parallel_size", "parallel.tensor"},
    {"pp", "parallel.pipeline"},
    {"pipeline_parallel", "parallel.pipeline"},
    {"pipeline_parallel_degree", "parallel.pipeline"},
    {"pipeline_parallel_size", "parallel.pipeline"},
    {"pipeline_model_parallel_size", "parallel.pipeline"},
    {"dp", "parallel.data"},
    {"data_parallel", "parallel.data"},
    {"data_parallel_size", "parallel.data"},
    {"data_parallel_shard_degree", "parallel.data"},
    {"data_parallel_replicate_degree", "parallel.data"},
    {"sp", "parallel.sequence"},
    {"sequence_parallel", "parallel.sequence"},
    {"pipeline_parallel_schedule", "parallel.schedule"},
    {"num_layers_per_virtual_pipeline_stage", "parallel.virtual_stages"},
    {"gpus_per_node", "parallel.ranks_per_node"},
    {"gradient_checkpointing", "recompute.policy"},
    {"activation_checkpointing", "recompute.policy"},
    {"activation_checkpoint", "recompute.policy"},
    {"recompute_granularity", "recompute.policy"},
    {"zero_stage", "zero.stage"},
    {"zero_optimization", "zero.stage"},
    {"use_distributed_optimizer", "zero.stage"},
    {"sharding_strategy", "zero.stage"},
    {"stage3_prefetch_bucket_size", "zero.prefetch"},
    {"zero_hpz_partition_size", "zero.secondary"},
    {"zero_quantized_weights", "zero.quantize.weights"},
    {"zero_quantized_gradients", "zero.quantize.gradients"},
    {"offload_param", "offload.parameters"},
    {"offload_optimizer", "offload.optimizer"},
    {"cpu_offload", "offload.optimizer"},
    {"nvme_path", "offload.nvme"},
    {"optimizer_offload_fraction", "offload.optimizer_share"},
    {"save_interval", "checkpoint.every"},
    {"save_steps", "checkpoint.every"},
    {"save_every", "checkpoint.every"},
    {"checkpoint_interval", "checkpoint.every"},
    {"save_total_limit", "checkpoint.keep"},
    {"keep_latest_k", "checkpoint.keep"},
    {"async_save", "checkpoint.async"},
    {"async_mode", "checkpoint.async"},
    {"eval_interval", "evaluate.every"},
    {"eval_steps", "evaluate.every"},
    {"eval_iters", "evaluate.batches"},
    {"log_interval", "log.every"},
    {"log_freq", "log.every"},
    {"logging_steps", "log.every"},
    {"steps_per_print", "log.every"},
    {"distributed_timeout_minutes", "guard.hang_timeout"},
};

constexpr ForeignName kForeignSections[] = {
    {"training", "run"},
    {"trainer", "run"},
    {"job", "run"},
    {"dataset", "data"},
    {"datasets", "data"},
    {"scheduler", "schedule"},
    {"lr_scheduler", "schedule"},
    {"zero_optimization", "zero"},
    {"fsdp", "zero"},
    {"fp16", "precision"},
    {"bf16", "precision"},
    {"amp", "precision"},
    {"mixed_precision", "precision"},
    {"parallelism", "parallel"},
    {"mesh", "parallel"},
    {"activation_checkpoint", "recompute"},
    {"activation_checkpointing", "recompute"},
    {"quantize", "zero.quantize"},
    {"eval", "evaluate"},
    {"validation", "evaluate"},
    {"metrics", "log"},
    {"logging", "log"},
};

/// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> d(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = d[i - 1][j - 1] + (a[i - 1] != b[j - 1] ? 1 : 0);
      d[i][j] = std::min({replaced, d[i - 1][j] + 1, d[i][j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

/// Lower case, with '_' for '-': "Learning-Rate" is "learning_rate".
std::string normal_form(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    if (c == '-') c = '_';
  }
  return out;
}

std::string_view foreign(std::span<const ForeignName> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const ForeignName& row) { return row.theirs == name; });
  return found == table.end() ? std::string_view{} : found->ours;
}

std::string did_you_mean(std::string_view name) { return fmt::format(" (did you mean {}?)", name); }

std::string join(std::span<const std::string_view> names) {
  std::string out;
  for (const std::string_view name : names) out += (out.empty() ? "" : ", ") + std::string(name);
  return out;
}

}  // namespace

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  constexpr std::size_t kLongest = 64;  // of a name worth comparing
  if (name.size() > kLongest) return {};
  const std::string wanted = normal_form(name);
  std::size_t best = std::max<std::size_t>(1, wanted.size() / 3) + 1;
  std::string_view nearest;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = edit_distance(wanted, candidate);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string key_hint(std::string_view section, std::string_view key) {
  const std::string name = normal_form(key);
  std::vector<std::string_view> own;
  std::vector<std::string_view> all;
  for (const SchemaRow& row : schema_rows()) {
    if (row.section == section) own.push_back(row.key);
    all.push_back(row.key);
  }
  const auto in_section = [&](std::string_view own_key) {
    return did_you_mean(fmt::format("{}.{}", section, own_key));
  };
  if (std::count(own.begin(), own.end(), name) > 0) return in_section(name);
  if (const auto ours = foreign(kForeignKeys, name); !ours.empty()) return did_you_mean(ours);
  if (const auto nearest = nearest_name(name, own); !nearest.empty()) return in_section(nearest);
  if (const auto nearest = nearest_name(name, all); !nearest.empty()) {
    std::vector<std::string> places;
    for (const SchemaRow& row : schema_rows()) {
      if (row.key == nearest) places.emplace_back(row.name);
    }
    return did_you_mean(fmt::format("{}", fmt::join(places, " or ")));
  }
  return own.empty() ? "" : fmt::format(" (keys of [{}]: {})", section, join(own));
}

std::string section_hint(std::string_view section) {
  const std::string name = normal_form(section);
  std::vector<std::string_view> all;
  for (const SchemaSection& known : schema_sections()) all.push_back(known.name);
  if (const auto ours = foreign(kForeignSections, name); !ours.empty()) {
    return did_you_mean(fmt::format("[{}]", ours));
  }
  if (const auto nearest = nearest_name(name, all); !nearest.empty()) {
    return did_you_mean(fmt::format("[{}]", nearest));
  }
  return fmt::format(" (sections: {})", join(all));
}

}  // namespace tessera::deck
