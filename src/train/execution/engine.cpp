#include "train/execution/engine.hpp"

#include <algorithm>
#include <thread>

#include "core/hash.hpp"
#include "core/thread.hpp"
#include "core/version.hpp"
#include "plan/ir/print.hpp"
#include "setup/budget.hpp"
#include "setup/inputs.hpp"
#include "setup/threads.hpp"
#include "train/execution/agreement.hpp"

namespace tessera::train {

Hardware::Hardware(const deck::Deck& deck, const Job& job, bool few_rows) {
  job.control.together([&] {
    threads = setup::thread_count(deck.run, job.mpi.cores());
    setup::use_threads(threads);
  });
  const backend::Ranks ranks{job.mpi, job.control};
  backend = backend::make_backend({.kind = deck.run.backend,
                                   .threads = threads,
                                   .matmul = deck.precision.matmul,
                                   .few_rows = few_rows,
                                   .memory = deck.memory.device},
                                  &ranks);
}

setup::ComputesOn computes_on(const backend::Backend& backend) {
  return {.device = *backend.device,
          .nccl = backend.kind == deck::Backend::cuda,
          .device_is_host = backend.device_is_host};
}

Engine::Engine(const deck::LoadedDeck& loaded, const Job& job,
               std::span<const plan::PlanShape> shapes, Hardware hardware)
    : loaded_(loaded),
      control_(job.control),
      threads_(hardware.threads),
      backend_(std::move(hardware.backend)) {
  const comm::MpiSession& mpi = job.mpi;
  inputs_ = setup::plan_inputs(loaded.deck, shapes, mpi.node_of(), computes_on(backend_));
  place_ = inputs_.layout.mesh.place_of(mpi.rank());
  device_memory_before_ = tier().device_memory().in_use;
  groups_ = make_groups(inputs_, mpi.rank(), backend_.make_group);
  if (backend_.connect) backend_.connect();
  start_times_.ended(StartStage::groups);
  make_plans(shapes);
  start_times_.ended(StartStage::plans);
  allocate(mpi);
  state_.emplace(inputs_, place_, arenas_);
  start_times_.ended(StartStage::memory);
  streams_ = backend_.make_streams();
  control_.together([&] { start_host_team(); });
  executor_.emplace(
      *backend_.device,
      Executor::StartKernels{.on_device = backend_.start_beside, .on_host = backend_.start_on_host},
      tiers(), groups_, *streams_, inputs_, job.whereabouts);
  start_times_.ended(StartStage::device);
}

/// A step's plan, that with a snapshot, those of the next phase, of evaluation and flush; some
/// more; and all those of the rounds in which a model answers.
static std::size_t plans_to_keep(std::span<const plan::PlanShape> shapes) {
  constexpr std::size_t kOfSteps = 8;
  const auto of_rounds = [](const plan::PlanShape& shape) {
    return shape.purpose == plan::PlanPurpose::generate || shape.scores != plan::Scores::none;
  };
  return kOfSteps + static_cast<std::size_t>(std::ranges::count_if(shapes, of_rounds));
}

void Engine::make_plans(std::span<const plan::PlanShape> shapes) {
  // Ranks that were started with different decks or binaries would deadlock later; they learn it
  // here.
  Hasher hash;
  hash.add(std::string_view(to_toml(loaded_.deck))).add(std::string_view(kVersion));
  hash.add(std::string_view(kCommit));
  control_.must_agree(hash.value(), kDifferentPlans);
  most_kept_ = plans_to_keep(shapes);
  for (const plan::PlanShape& shape : shapes) {
    Plans made;
    control_.together([&] { made.emplace(shape, plan::make_plan(inputs_, shape, place_)); });
    needs_.meetings += prove_together(made, inputs_, control_);
    const plan::Plan& plan = made.begin()->second;
    const plan::Ledger ledger = plan::make_ledger(plan);
    needs_.ledger = needs_.wire.empty() ? ledger : plan::of_both(needs_.ledger, ledger);
    const auto by_host = [](const plan::Op& op) { return op.stream == Stream::host; };
    if (std::ranges::any_of(plan.ops, by_host)) needs_.host_work = true;
    const auto mine = total_wire_bytes(plan);
    needs_.wire[shape] = {.intra = control_.max(mine.intra), .inter = control_.max(mine.inter)};
    if (plans_.size() < most_kept_) plans_.merge(made);
  }
}

/// Binds the plan of a shape to memory, in place of the one that was not asked for longest.
void Engine::keep(const plan::PlanShape& shape) const {
  if (kept_.size() >= most_kept_) {
    const plan::PlanShape oldest = kept_.front();
    kept_.erase(kept_.begin());
    streams_->forget(&prepared_.at(oldest).bound);
    prepared_.erase(oldest);
    plans_.erase(oldest);
  }
  PlanMemory memory{};
  for (std::size_t i = 0; i < plan::kArenas; ++i) memory[i] = arenas_[i]->base();
  auto plan = plans_.find(shape);
  if (plan == plans_.end())
    plan = plans_.emplace(shape, plan::make_plan(inputs_, shape, place_)).first;
  prepared_.try_emplace(
      shape, PreparedPlan{.bound = BoundPlan(plan->second, memory), .wire = needs_.wire.at(shape)});
  kept_.push_back(shape);
}

const PreparedPlan& Engine::prepared(const plan::PlanShape& shape) const {
  const auto at = std::ranges::find(kept_, shape);
  if (at == kept_.end()) {
    keep(shape);
  } else {
    std::rotate(at, at + 1, kept_.end());
  }
  return prepared_.at(shape);
}

/// Where the host computes beside the device it does so with a team of threads of its own, which is
/// made now: OpenMP ends the process where there are none to be had.
void Engine::start_host_team() {
  if (!needs_.host_work) return;
  check_threads(threads_);
  std::vector<std::byte> bytes(std::size_t{1} << 20);  // for all of the team
  const auto task = backend_.start_on_host(
      kernels::Fill{.out = View(bytes.data(), DType::u8, {std::ssize(bytes)})});
  while (task->advance() != streams::Progress::done) std::this_thread::yield();
}

void Engine::allocate(const comm::MpiSession& mpi) {
  const plan::ArenaBytes& bytes = needs_.ledger.arenas;
  const deck::OffloadSection& offload = loaded_.deck.offload;
  control_.together([&] {
    if (bytes[plan::ArenaId::disk] == 0) return;
    try {
      disk_tier_ = std::make_unique<memory::DiskTier>(
          memory::DiskTierOptions{.directories = {offload.nvme.begin(), offload.nvme.end()},
                                  .block = offload.block.count,
                                  .depth = static_cast<int>(offload.depth),
                                  .keep = offload.keep});
    } catch (Error& e) {
      e.add_context("offload.nvme");
      throw;
    }
  });
  const auto tier_of = [&](plan::ArenaId id) {
    memory::Tier* tier = tiers()[plan::location_of(id)];
    return tier == nullptr ? backend_.host_tier.get() : tier;  // of nothing
  };
  std::int64_t of_host = 0;
  for (const auto& [id, word] : EnumWords<plan::ArenaId>::table)
    of_host += tier_of(id)->of_host() ? bytes[id] : 0;
  const std::int64_t most = control_.max(of_host);  // pipeline stages differ
  control_.together([&] {
    setup::check_budget(loaded_, inputs_.layout.mesh, bytes);
    setup::check_gpu(loaded_.deck, inputs_.layout.mesh, bytes, tier().device_memory());
    // All ranks of the node allocate after this, so what each sees free must be enough for all of
    // them.
    memory::check_available(most, mpi.job().local);
  });
  control_.together([&] {  // once all have looked at what is free
    resident_before_ = memory::resident_bytes();
    in_use_before_ = memory_in_use();
    for (const auto& [id, word] : EnumWords<plan::ArenaId>::table) {
      arenas_[id] = std::make_unique<memory::Arena>(std::string(word), *tier_of(id), bytes[id]);
    }
  });
  for (const auto& [shape, plan] : plans_) keep(shape);
}

void Engine::tune(const std::filesystem::path& directory, bool timed,
                  const std::function<void(const std::string&)>& say) {
  if (!backend_.tune) return;
  std::vector<kernels::KernelCall> calls;
  for (const auto& [shape, wire] : needs_.wire) {
    for (const auto& op : prepared(shape).bound.ops()) {
      if (const auto* call = std::get_if<kernels::KernelCall>(&op.call)) calls.push_back(*call);
    }
  }
  const memory::Arena& step = *arenas_[plan::ArenaId::step];
  backend_.tune(calls, {.file = directory / "matmul_algorithms.txt",
                        .timed = timed && !inputs_.numerics.layout_mode,
                        .memory = View(step.base(), DType::u8, {step.bytes()}),
                        .say = say});
}

data::BatchShare Engine::share(const plan::PlanShape& shape) const {
  const Mesh& mesh = inputs_.layout.mesh;
  return {.data_ranks = mesh.batch_ranks(),
          .data_rank = place_.data / mesh.context,
          .context_ranks = mesh.context,
          .context_rank = place_.data % mesh.context,
          .context_shares = inputs_.layout.context.shares,
          .sequence = shape.sequence,
          .micro = shape.micro,
          .micro_batches = shape.micro_batches,
          .reduce = inputs_.sharding.reduce};
}

StepOutput Engine::run(const PreparedPlan& prepared, StepInput input,
                       const data::StepTokens& tokens, const Executor::Hooks& hooks,
                       StepProfile* profile) {
  const std::int64_t tallies = prepared.plan().shape.tallies;
  input.targets = counts_targets() ? tokens.count() : 0;
  input.tally_targets = counts_targets()
                            ? tokens.count_by_tally(tallies)
                            : std::vector<std::int64_t>(static_cast<std::size_t>(tallies));
  const bool trains = prepared.plan().shape.purpose >= plan::PlanPurpose::train;
  if (!trains && inputs_.offload.updates()) settle();
  high_water_ = plan::most_of(high_water_, prepared.bound.reach());
  const auto load = [&](std::int64_t k, const plan::LoadBatch& views) { tokens.load(k, views); };
  const StepOutput output = executor_->run(prepared.bound, input, load, hooks, profile);
  if (trains && plan::leaves_work(inputs_))
    work_left_ = plan::flush_after(prepared.plan().shape.compression);
  return output;
}

void Engine::generate(const PreparedPlan& prepared, const Executor::Loader& load,
                      std::vector<float>& logits) {
  if (inputs_.offload.updates()) settle();
  high_water_ = plan::most_of(high_water_, prepared.bound.reach());
  executor_->run(prepared.bound, {}, load);
  const plan::Plan& plan = prepared.plan();
  const std::int64_t chunks = inputs_.layout.tensor_chunks, micro = plan.shape.micro,
                     samples = micro * plan.shape.micro_batches, room = plan.logits.cols(),
                     all = inputs_.model.config.padded_outputs(),
                     outputs = inputs_.model.config.outputs();
  std::vector<float>& made = parts_of_logits_;
  made.resize(static_cast<std::size_t>(plan.logits.elements()));
  tier().read(prepared.bound.real(plan.logits).data, std::as_writable_bytes(std::span(made)));
  logits.resize(static_cast<std::size_t>(samples * outputs));
  for (std::int64_t row = 0; row < plan.logits.rows(); ++row) {  // (micro-batch, chunk, sample)
    const std::int64_t chunk = row / micro % chunks,
                       sample = row / (chunks * micro) * micro + row % micro;
    const Range columns = intersect(even_part(all, chunk, chunks), {0, outputs});
    std::copy_n(made.begin() + row * room, std::max<std::int64_t>(0, columns.count()),
                logits.begin() + sample * outputs + columns.begin);
  }
}

std::span<const float> Engine::score(const PreparedPlan& prepared, const data::StepTokens& tokens) {
  run(prepared, {}, tokens);
  if (place_.tensor != 0 || place_.pipeline + 1 != inputs_.layout.mesh.pipeline) return {};
  const View scores = prepared.bound.real(prepared.plan().scores);
  scores_.resize(static_cast<std::size_t>(scores.elements()));
  tier().read(scores.data, std::as_writable_bytes(std::span(scores_)));
  return scores_;
}

void Engine::settle() {
  if (beside_ != nullptr) beside_->settle();
  const auto left = std::exchange(work_left_, std::nullopt);
  if (!left) return;
  const PreparedPlan& flush = prepared(*left);
  high_water_ = plan::most_of(high_water_, flush.bound.reach());
  executor_->run(flush.bound, {}, {});
}

double Engine::peak_rate() const {
  return inputs_.numerics.compute == DType::f32 ? 0 : backend_.peak_rate;
}

std::int64_t Engine::memory_in_use() const {
  return memory::resident_bytes() + backend_.device_tier->device_memory().in_use;
}

std::int64_t Engine::library_bytes() const {
  const auto [in_use, total] = backend_.device_tier->device_memory();
  return total == 0 ? 0
                    : std::max<std::int64_t>(0, in_use - device_memory_before_ - device_bytes());
}

plan::ArenaBytes Engine::arenas() const {
  plan::ArenaBytes bytes{};
  for (std::size_t i = 0; i < plan::kArenas; ++i) bytes[i] = arenas_[i]->bytes();
  return bytes;
}

std::int64_t Engine::bytes() const {
  const plan::ArenaBytes all = arenas();
  return plan::device_bytes(all) + plan::host_bytes(all);
}

std::int64_t Engine::device_bytes() const {
  return backend_.device_tier->of_host() ? bytes() : plan::device_bytes(arenas());
}

std::vector<plan::ArenaBytes> Engine::of_largest_ranks(const plan::ArenaBytes& own) const {
  const auto stages = static_cast<std::size_t>(inputs_.layout.mesh.pipeline);
  std::vector<std::uint64_t> largest(stages);
  auto& of_stage = largest[static_cast<std::size_t>(place_.pipeline)];
  const auto mine = static_cast<std::uint64_t>(bytes());
  of_stage = mine;
  control_.max(largest);
  constexpr std::size_t n = plan::kArenas;
  std::vector<std::uint64_t> words(n * stages);
  if (mine == of_stage)
    std::ranges::copy(own, words.begin() + static_cast<std::ptrdiff_t>(n) * place_.pipeline);
  control_.max(words);
  std::vector<plan::ArenaBytes> all(words.size() / n);
  for (std::size_t i = 0; i < words.size(); ++i)
    all[i / n][i % n] = static_cast<std::int64_t>(words[i]);
  return all;
}

}  // namespace tessera::train
