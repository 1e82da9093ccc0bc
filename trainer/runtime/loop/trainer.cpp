// SPDX-License-Identifier: Apache-2.0
// Runs the training loop. The host issues step k + 1 while step k runs, and reads step k - 1.

#include "trainer/runtime/loop/trainer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "engine/base/delay_point.h"
#include "engine/base/fail_point.h"
#include "engine/base/finite.h"
#include "engine/base/hash.h"
#include "engine/base/log.h"
#include "engine/checkpoint/state_file.h"
#include "engine/checkpoint/weights.h"
#include "engine/config/learning_rate.h"
#include "engine/config/validate.h"
#include "engine/device/clock.h"
#include "engine/report/utilization.h"
#include "trainer/planner/forecast/plan_facts.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"
#include "trainer/runtime/durability/resume_memory.h"
#include "trainer/runtime/durability/saved_state.h"
#include "trainer/runtime/loop/replicas.h"
#include "trainer/runtime/loop/step_means.h"
#include "trainer/runtime/weights/model_folder.h"
#include "trainer/runtime/weights/shared_weights.h"

namespace slipstream::runtime {
namespace {

// The first steps, whose op times are not counted, because they touch memory and caches for the first time.
constexpr int64_t kWarmSteps = 2;
// After this many steps, the run's own op times give the bound in the step line.
constexpr int64_t kBoundStep = 8;
// The largest number of steps between two exchanges of times, even with a larger train.log_interval, so that a killed
// run loses no more lines.
constexpr size_t kMostPending = 100;

}  // namespace

Trainer::Trainer(World& world, const TrainOptions& options, const PlannedRun& run, const StartPoint& start)
    : world_(world),
      resolved_(run.config),
      dataset_(run.dataset),
      machine_(run.machine),
      stages_(run.finished.stages),
      replayed_(run.finished.replay.taken),
      paced_(options.paced),
      resumed_(start.step()),
      resumed_results_(start.state ? start.state->results : std::nullopt),
      skipped_batches_(start.state ? start.state->manifest.skipped_batches : 0),
      global_batch_(run.finished.global_batch),
      guard_(config_, global_batch_ * config_.train.sequence_length, stages_) {
  const Job& job = *run.finished.job;
  loader_ = make_loader(run);
  // The device is made before the communicators, because they connect the current GPU.
  std::unique_ptr<Device> device = run.assignment.make_device();
  auto communicators = world.communicators(job, static_cast<double>(config_.comm.emulate.bandwidth_bytes_per_second),
                                           config_.comm.emulate.latency_ns, config_.comm.timeout_seconds,
                                           run.assignment.kind, run.assignment.wire(config_, *device));
  if (!config_.device.machine.empty()) {
    model_flops_ = model_flops(stages_);
    peak_flops_per_second_ = peak_flops_per_second(machine_, job.model.dtype);
  }
  items_.emplace(world_, job);
  item_ns_.assign(items_->names[static_cast<size_t>(world_.rank())].size(), -1);
  const RunIdentity identity = identity_of(run);
  if (job.keeping.slots > 0 && !options.replayed_step)
    peers_ = std::make_unique<PeerMemory>(world_, job, manifest_of(world_.size(), stages_, identity, skipped_batches_),
                                          start.name, config_.checkpoint.peer_interval);
  rank_ =
      std::make_unique<Rank>(run.finished.job, std::move(device), std::move(communicators), rank_options(options, run),
                             [this, &job](const StagedBatch& staged) { load_batch(job, staged); });
  if (start.state) guard_.resume(resumed_, start.state->manifest.numerics);
  if (start.state)
    restore(*start.state);
  else if (!config_.model.init.empty())
    world_.together([&] { load_initial(); });
  else
    rank_->initialise(static_cast<uint64_t>(config_.train.seed));
  if (peers_) peers_->begin(resumed_);
  checkpoints_ = std::make_unique<Checkpoints>(world_, *rank_, stages_, config_.checkpoint, identity);
  meter_ = std::make_unique<OverlapMeter>(rank_->channel_kinds());
}

std::unique_ptr<data::Loader> Trainer::make_loader(const PlannedRun& run) const {
  const Job& job = *run.finished.job;
  const Train& train = config_.train;
  const Job::Share share = job.share();
  const data::TrainSampler sampler(dataset_.counts, dataset_.mixture,
                                   {.sequence_length = train.sequence_length,
                                    .micro_batch_size = train.micro_batch_size,
                                    .global_batch_size = global_batch_,
                                    .seed = static_cast<uint64_t>(train.seed)});
  const data::BatchShape shape{.micro_batches = run.finished.micro_batches,
                               .rows = train.micro_batch_size,
                               .sequence_length = job.model.tokens,
                               .documents = job.model.documents};
  const data::BatchFiller fill =
      data::training_filler(dataset_.train, sampler, share.rank, share.ranks, share.context_rank, share.context_ranks);
  // Each step stages the next step's batch, and so does the last step, which replay() runs twice.
  return std::make_unique<data::Loader>(
      [fill, skipped = skipped_batches_](int64_t step, data::Batch& batch) {
        delay_point("input", step);
        fill(step + skipped, batch);
      },
      data::LoaderOptions{.shape = shape, .first = resumed_ + 1, .last = train.steps + 2});
}

void Trainer::load_batch(const Job& job, const StagedBatch& staged) {
  const data::Batch& batch = loader_->next();
  const auto half = static_cast<size_t>(batch.shape.rows * batch.shape.sequence_length) * sizeof(int32_t);
  for (int64_t m = 0; m < batch.shape.micro_batches; ++m) {
    std::byte* const to = staged.batch + m * staged.stride_bytes;
    std::memcpy(to, batch.inputs_of(m), half);
    std::memcpy(to + half, batch.targets_of(m), half);
    if (batch.shape.documents) std::memcpy(to + 2 * half, batch.document_begins_of(m), half);
    number_sequences(job.model, to, batch.index, batch.first_rows[static_cast<size_t>(m)]);
  }
  write_scalars(job, config_.optimizer, learning_rate(config_.optimizer, batch.index), batch.index, staged.scalars);
  if (job.options.skips) guard_.write_limits(batch.index, staged.scalars.last(kLimits));
}

RankOptions Trainer::rank_options(const TrainOptions& options, const PlannedRun& run) {
  const Job& job = *run.finished.job;
  std::vector<int64_t> paced_item_ns;
  if (paced_) {
    const comm::RooflinePrice price = planner::price_of(config_, machine_, job.mesh);
    for (ItemId i = 0; i < job.train().spine.size(); ++i) paced_item_ns.push_back(price.local_ns(job.train(), i));
  }
  World& world = world_;
  return {.threads = planner::threads_of(config_, world.ranks_on_host()),
          .update = config_.optimizer,
          .delay_seed = static_cast<uint64_t>(options.delay_seed.value_or(0)),
          .delay_max_ns = options.delay_seed ? 2 * kMillisecond : 0,
          .check_hazards = options.check_hazards,
          .graph = replayed_,
          .times_works = !config_.trace.steps.empty(),
          .all_agree = [&world](bool mine, const std::string& awaited) { return world.all_agree(mine, awaited); },
          .timeout_seconds = static_cast<double>(config_.comm.timeout_seconds),
          .monitor = world.monitor(),
          .leave = [&world](const std::string& sentence, ExitCode code) { world.leave(sentence, code); },
          .kept = peers_ ? peers_->slots() : std::array<std::byte*, 2>{},
          .paced_item_ns = std::move(paced_item_ns)};
}

Trainer::~Trainer() = default;

void Trainer::restore(const ResumePoint& point) {
  const bool same_layout = point.manifest.memory_layout == memory_layout_of(stages_);
  Restoring restoring(*rank_, same_layout);
  if (!point.verified) {
    std::string problem;
    world_.together([&] { problem = restoring.take(point.path, own_files(world_, point.manifest)); });
    problem = first_problem(world_, std::move(problem));
    if (!problem.empty()) throw DamagedCheckpoint(problem);
  }
  std::optional<checkpoint::StateReader> reader;
  if (point.memory)
    reader.emplace(point.memory->reader(world_, wanted_boxes(rank_->job(), same_layout), point.manifest, point.path));
  world_.together([&] {
    if (!reader) reader.emplace(point.path, point.manifest);
    if (!restoring.finish(*reader))
      log_warn("[checkpoint] {} has rounding errors of int8 gradients (comm.error_feedback, {}), which {} drops.",
               point.path, point.manifest.layout, same_layout ? "this run" : "another layout");
  });
  log_info("resumed from {} (step {}, {})", point.path, point.manifest.step, point.manifest.layout);
}

void Trainer::load_initial() {
  const ModelFolder folder(config_.model.init, {.count = 0});  // train() has compared the hashes
  require_initial(folder, planner::model_options({.config = resolved_, .machine = machine_}), stages_);
  load_weights(*rank_, folder);
  log_info("weights:  from {}", folder.dir());
}

bool Trainer::due(int64_t interval, int64_t step) const {
  return step == config_.train.steps || (interval > 0 && step % interval == 0);
}

std::optional<checkpoint::KeptMark> Trainer::mark_of(int64_t step) const {
  const Rank::Report report = rank_->report(static_cast<uint32_t>(step));
  const std::optional<checkpoint::NumericsHistory> history =
      step == seen_ ? guard_.history() : guard_.history_after(step, report);
  if (!history) return {};
  return checkpoint::KeptMark{.history = *history,
                              .results = {report.loss_sum, report.norm, report.first_not_finite, report.skipped}};
}

void Trainer::write_lost_line() {
  if (world_.rank() != 0 || !resumed_results_ || run_dir_->last_metrics_step() != resumed_ - 1) return;
  const double lost = std::numeric_limits<double>::quiet_NaN();
  const auto& [loss_sum, norm, first_not_finite, skipped] = *resumed_results_;
  write_line(resumed_, {.report = {loss_sum, norm, first_not_finite, skipped}},
             {.step_ms = lost,
              .compute_ms = lost,
              .comm_ms = lost,
              .exposed_ms = lost,
              .bubble_ms = lost,
              .exposed_ms_max = lost,
              .input_ms = lost,
              .other_ms = lost,
              .skew_ms = lost,
              .hidden_ms = lost},
             false);
}

ExitCode Trainer::run(RunDir& run_dir, MetricSinks* sinks, StopSignals& signals, const std::function<void()>& chosen) {
  const Train& train = config_.train;
  begin(run_dir, sinks, signals);
  const int64_t allocations = rank_->allocation_count();
  const PhaseMark stepping = world_.phase(comm::RunPhase::step);
  stragglers_ = std::make_unique<StragglerReport>(world_, *items_, config_.comm.straggler_threshold, run_dir);
  bool stopped = false;
  std::vector<Asked> asks_next;
  for (int64_t step = resumed_ + 1; step <= train.steps && !stopped; ++step) {
    fail_point("step");
    delay_point("host", step);
    const std::vector<Asked> asked = std::exchange(asks_next, {});
    const bool kept =
        std::any_of(asked.begin(), asked.end(), [](const Asked& each) { return each.kind == PlanKind::keep; });
    rank_->issue(static_cast<uint32_t>(step), asked);
    stragglers_->issued(step);
    rank_->wait_for_all_but(1);
    if (step == resumed_ + 1) chosen();
    if (step - 2 > seen_) look_back(step - 2, true);
    // The works of the last traced step have ended, and so have those that its end has started elsewhere.
    if (trace_ && seen_ > config_.trace.steps[1]) trace_->finish();
    // Step - 1 has ended, and its snapshot is in flight.
    const auto mark = kept ? mark_of(step - 1) : std::nullopt;
    const Due checkpoint = checkpoint_due(step);
    // A save in flight ends before the next one begins, and before a rank may end.
    if (checkpoint.written || (checkpoint.save && checkpoints_->in_flight() > 0)) end_save_in_flight(step, checkpoint);
    const bool at_rest = checkpoint.stop || step == train.steps || !rank_->job().options.snapshots;
    const bool evaluates = due(train.eval_interval, step);
    const bool hashes = evaluates || (train.hash_interval > 0 && step % train.hash_interval == 0);
    if (hashes || (checkpoint.save && at_rest)) come_to_rest(step);
    if (hashes) check_weights(step, evaluates);
    if (due(train.log_interval, step) || hashes)
      flush(true);
    else if (pending_.size() >= kMostPending)
      flush(false);
    if (mark) {
      flush(false);
      peers_->mark(step - 1, *mark);
    }
    if (peers_ && peers_->is_due(step)) asks_next.push_back({PlanKind::keep, peers_->slot_of(step)});
    if (checkpoint.save && at_rest) save(step, !checkpoint.stop && step < train.steps);
    if (checkpoint.save && !at_rest && save_beside(step)) asks_next.push_back({PlanKind::save});
    stopped = checkpoint.stop;
  }
  SLIP_ASSERT(rank_->allocation_count() == allocations);
  return end(stopped, chosen);
}

void Trainer::begin(RunDir& run_dir, MetricSinks* sinks, StopSignals& signals) {
  run_dir_ = &run_dir;
  sinks_ = sinks;
  save_model_files();
  if (!config_.trace.steps.empty())
    trace_ = std::make_unique<TraceWriter>(rank_->job(), world_.rank(), config_.trace.steps[0], config_.trace.steps[1],
                                           run_dir.place(fmt::format("trace/rank{:04}.json", world_.rank())));
  signals_ = &signals;
  signals.set_sentence(sentence_of_signal(
      resumed_ > 0
          ? fmt::format("the newest state is that of step {}", resumed_)
          : fmt::format("it has no checkpoint, and {} ends at the last printed step", run_dir.path("metrics.jsonl"))));
  write_lost_line();
  checkpoints_->begin(run_dir.checkpoint_place(), resumed_, skipped_batches_);
  saved_ns_ = monotonic_ns();
  rank_->prime();
  sent_before_ = rank_->sent_bytes();
  started_ns_ = rank_->device().now_ns();
  seen_ = resumed_;
}

void Trainer::end_save_in_flight(int64_t step, const Due& checkpoint) {
  if (!checkpoint.written && !checkpoint.stop && step < config_.train.steps) checkpoints_->warn_of_wait(step);
  if (checkpoints_->in_flight() > seen_) {  // its line of metrics comes before its checkpoint
    rank_->synchronize();
    look_back(step - 1, true);
  }
  finish_save();
}

void Trainer::come_to_rest(int64_t step) {
  rank_->synchronize();
  if (step - 1 > seen_) look_back(step - 1, true);
  look_back(step, false);
}

void Trainer::check_weights(int64_t step, bool evaluates) {
  Pending& last = pending_.back();
  if (evaluates) last.val_loss = evaluate();
  std::string not_finite;
  last.params_hash = params_hash(not_finite);
  if (!not_finite.empty()) diverged(step, fmt::format("{} has weights that are not finite", not_finite));
  if (const std::string drift = drifted_replicas(world_, *rank_, stages_); !drift.empty()) {
    if (checkpoints_->in_flight() > 0) finish_save();
    flush(true);
    throw NumericsError("[train] step {}: {}", step, drift);
  }
  if (last.val_loss && !std::isfinite(*last.val_loss))
    diverged(step, fmt::format("the validation loss is {}", std::abs(*last.val_loss)));  // nan, not -nan
}

ExitCode Trainer::end(bool stopped, const std::function<void()>& chosen) {
  const std::optional<int64_t> sent = rank_->sent_bytes();  // the weights are sent next
  if (!stopped && !paced_) save_final();
  if (peers_) peers_->end();
  signals_ = nullptr;
  stragglers_->finish();
  chosen();
  if (trace_) trace_->finish();
  if (stopped) {
    log_info("a signal ended the run after step {}, which is saved: continue with --resume",
             checkpoints_->newest_step());
    return ExitCode::preempted;
  }
  print_summary(sent);
  return ExitCode::ok;
}

void Trainer::print_summary(std::optional<int64_t> sent) const {
  if (world_.rank() != 0) return;
  if (totals_.steps > 0 && totals_.comm_ms > 0) {
    const double n = static_cast<double>(totals_.steps);
    log_info("overlap:  {:.1f} ms of communication per step, {:.1f} ms exposed, {:.0f}% hidden", totals_.comm_ms / n,
             totals_.exposed_ms / n, 100 * share_of(totals_.hidden_ms, totals_.comm_ms));
    log_info("step:     {:.1f} ms, of which compute {:.1f} ms{}{}", totals_.step_ms / n, totals_.compute_ms / n,
             shows_bubble(totals_.bubble_ms, totals_.step_ms) ? fmt::format(", bubble {:.1f} ms", totals_.bubble_ms / n)
                                                              : "",
             bound_ms_ ? fmt::format("; rehearsed bound {:.1f} ms", *bound_ms_) : "");
    if (const std::string tasks = waited_for(totals_.exposed_by, n); !tasks.empty())
      log_info("waits:    compute waited for {}", tasks);
  }
  if (const Job& job = rank_->job(); job.reduces() && config_.train.steps > resumed_) {
    const planner::WireBytes planned = planner::wire_bytes_of_step(job);
    log_info("wire:     rank 0 sends {} bytes per step as planned, {} counted; theory {}", planned.sent,
             sent ? fmt::format("{}", (*sent - *sent_before_) / (config_.train.steps - resumed_)) : "not",
             planned.theory);
  }
  if (!paced_) log_info("weights:  {}/final", config_.checkpoint.dir);
}

void Trainer::look_back(int64_t step, bool next_begins) {
  seen_ = step;
  std::vector<std::vector<Span>> spans = rank_->drain();
  for (ChannelId c = 0; c < spans.size(); ++c) {
    if (trace_) trace_->add(c, spans[c]);
    std::erase_if(spans[c], [&](const Span& span) { return !rank_->job().is_in_step(span.item); });
    meter_->add(c, spans[c]);
  }
  const Rank::Report report = rank_->report(static_cast<uint32_t>(step));
  if (const std::string reason = guard_.judge(step, report); !reason.empty()) diverged(step, reason);
  if (step <= checkpoints_->in_flight()) history_in_flight_ = guard_.history();
  pending_.push_back({.times = meter_->take(static_cast<uint32_t>(step), next_begins), .own = {}, .report = report});
  pending_.back().own = stragglers_->own(pending_.back().times, item_ns_);
  if (step - resumed_ > kWarmSteps)
    for (const auto& [item, ns] : pending_.back().times.work_ns)
      item_ns_[item] = item_ns_[item] < 0 ? ns : std::min(item_ns_[item], ns);
  if (!bound_ms_ && step - resumed_ == kBoundStep) rehearse_bound();
}

void Trainer::diverged(int64_t step, const std::string& what) {
  // The step alone decides this, so that the speed of the writers does not decide which checkpoint is the newest.
  if (checkpoints_->in_flight() > 0 && checkpoints_->in_flight() < step) finish_save();
  if (trace_) trace_->finish();
  flush(true);
  throw Diverged(
      step,
      fmt::format("[train] step {}: {}. Lower optimizer.learning_rate or raise optimizer.warmup_steps.", step, what));
}

void Trainer::rehearse_bound() {
  const Job& job = rank_->job();
  const comm::RooflinePrice machine = planner::price_of(config_, machine_, job.mesh);
  // Without an emulated link, the rate of the wire is unknown, and there is no bound.
  if (job.mesh.world() > 1 && config_.comm.emulate.bandwidth_bytes_per_second == 0) return;
  // These are equal on all ranks: for every item of a stage, the fastest time on the stage's slowest rank.
  const std::vector<std::vector<int64_t>> item_ns = largest_of_stages(world_, job.mesh, item_ns_);
  bound_ms_ = planner::rehearsed_step_ms(stages_, item_ns, machine, replayed_);
}

void Trainer::flush(bool print) {
  std::vector<StepTimes> times;
  std::vector<OwnTimes> own;
  for (Pending& p : pending_) {
    times.push_back(std::move(p.times));
    if (p.own) own.push_back(std::move(*p.own));
  }
  const auto [means, samples] = gather_steps(world_, times, own, *items_);
  for (size_t i = 0; i < pending_.size() && world_.rank() == 0; ++i)
    write_line(times[i].step, pending_[i], means[i], print && i + 1 == pending_.size());
  stragglers_->add(samples, resumed_ + kWarmSteps);
  pending_.clear();
}

void Trainer::write_line(int64_t step, const Pending& p, const StepMeans& t, bool print) {
  const int64_t tokens = global_batch_ * config_.train.sequence_length;
  StepMetrics m{.step = step,
                .loss = p.report.loss_sum / static_cast<double>(tokens),
                .val_loss = p.val_loss,
                .learning_rate = learning_rate(config_.optimizer, step),
                .grad_norm = {},
                .tokens = tokens,
                .step_ms = t.step_ms,
                .compute_ms = t.compute_ms,
                .comm_ms = t.comm_ms,
                .exposed_ms = t.exposed_ms,
                .hidden_ms = t.hidden_ms,
                .bubble_ms = t.bubble_ms,
                .exposed_ms_max = t.exposed_ms_max,
                .exposed_by = by_size(t.exposed_by),
                .input_ms = t.input_ms,
                .other_ms = t.other_ms,
                .skew_ms = t.skew_ms,
                .bound_ms = {},
                .mfu = {},
                .params_hash = p.params_hash};
  fastest_ms_ = std::min(fastest_ms_, m.step_ms);
  if (bound_ms_) m.bound_ms = bound_ms_ = std::min(*bound_ms_, fastest_ms_);
  if (rank_->job().options.clip) m.grad_norm = p.report.norm;
  m.skipped = p.report.skipped != 0;
  if (peak_flops_per_second_ > 0 && m.step_ms > 0)
    m.mfu = utilization(model_flops_, m.step_ms, world_.size(), peak_flops_per_second_);
  run_dir_->append_metrics(metrics_json(m));
  if (sinks_) sinks_->add(m);
  if (step - resumed_ > kWarmSteps) {
    totals_.step_ms += m.step_ms;
    totals_.compute_ms += m.compute_ms;
    totals_.comm_ms += m.comm_ms;
    totals_.exposed_ms += m.exposed_ms;
    totals_.hidden_ms += m.hidden_ms;
    totals_.bubble_ms += m.bubble_ms;
    for (const auto& [task, ms] : m.exposed_by) totals_.exposed_by[task] += ms;
    ++totals_.steps;
  }
  if (!print) return;
  const double elapsed_s = static_cast<double>(rank_->device().now_ns() - started_ns_) / 1e9;
  const double eta_s =
      elapsed_s / static_cast<double>(step - resumed_) * static_cast<double>(config_.train.steps - step);
  const int64_t saving = checkpoints_->in_flight();
  log_info("{}{}", metrics_line(m, config_.train.steps, eta_s),
           saving > 0 ? fmt::format(" | saving step {}", saving) : "");
}

}  // namespace slipstream::runtime
