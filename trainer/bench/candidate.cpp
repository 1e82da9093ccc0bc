// SPDX-License-Identifier: Apache-2.0
// Issues steps, collects their spans, and transfers times from one plan to another.

#include "trainer/bench/candidate.h"

#include <algorithm>
#include <iterator>
#include <numeric>

#include "engine/base/philox.h"
#include "engine/plan/keeping.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"
#include "trainer/runtime/rank/memory_check.h"

namespace slipstream::bench {
namespace {

double bytes_of_item(const SpineItem& item) { return static_cast<double>(item.cost.bytes); }

/// Returns the total time of the spine items of every step on this rank.
std::vector<int64_t> work_ns_of_steps(const Candidate& candidate) {
  std::vector<int64_t> steps_ns;
  for (const StepTimes& t : candidate.times) {
    steps_ns.push_back(0);
    for (const auto& [item, ns] : t.work_ns)
      if (item < candidate.job->train().spine.size()) steps_ns.back() += ns;
  }
  return steps_ns;
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0 : n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

void load_random(const Job& job, int rank, const runtime::StagedBatch& staged) {
  const int64_t rows = 2 * job.model.batch * job.model.tokens;
  // Stages and tensor ranks compute on the same sequences. Ranks whose jobs have one rank are not in each other's mesh.
  const bool alone = job.mesh.world() == 1;
  const int64_t replica = alone ? rank : job.mesh.index_in_group(Axis::replica, rank),
                data = alone ? rank : job.mesh.index_in_group(Axis::data, rank);
  const Philox random(static_cast<uint64_t>(replica) + 1, "bench");
  for (int64_t m = 0; m < job.buffers.micro_batches; ++m) {
    auto* ids = reinterpret_cast<int32_t*>(staged.batch + m * staged.stride_bytes);
    for (int64_t i = 0; i < rows; ++i)
      ids[i] = static_cast<int32_t>(
          random.zipf(static_cast<uint64_t>(m * rows + i), static_cast<uint64_t>(job.model.vocab)));
    if (job.model.documents) std::fill_n(ids + rows, rows / 2, 0);  // makes the batch one document
    runtime::number_sequences(job.model, staged.batch + m * staged.stride_bytes, 1,
                              (data * job.buffers.micro_batches + m) * job.model.batch);
  }
  write_scalars(job, {}, 1e-5, 1, staged.scalars);
}

Machine bench_machine(runtime::World& world, const runtime::DeviceAssignment& assignment, const RunConfig& config,
                      int threads) {
  return runtime::agreed_machine(world, runtime::machine_at(assignment, config, threads, world.ranks_on_host()));
}

ResolvedConfig resolve_bench(const RunConfig& config, int world, bool on_gpus) {
  return resolve(config, {.world = world, .on_gpus = on_gpus, .vocab = config.model.vocab_size > 0 ? 0 : 256});
}

planner::FinishedJob build_bench_job(const runtime::DeviceAssignment& assignment, const Machine& machine,
                                     const RunConfig& config, int world, int rank,
                                     std::function<std::vector<int64_t>(const Job&)> spine_ns) {
  planner::JobRequest request =
      runtime::request_at(assignment, resolve_bench(config, world, assignment.kind == DeviceKind::cuda), machine, rank);
  request.spine_ns = std::move(spine_ns);
  return planner::build_finished_job(request);
}

Candidate::Candidate(std::string named, runtime::World& world, const runtime::DeviceAssignment& assignment,
                     const RunConfig& config, planner::FinishedJob finished, double bytes_per_second,
                     const std::vector<int64_t>& paced_item_ns, bool imitated)
    : name(std::move(named)),
      job(finished.job),
      replayed(finished.replay.taken),
      keep_interval(config.checkpoint.peer_interval) {
  world.limit({.start_seconds = static_cast<double>(config.comm.start_timeout_seconds),
               .step_seconds = static_cast<double>(config.comm.timeout_seconds),
               .save_seconds = static_cast<double>(config.comm.save_timeout_seconds)});
  // The device is made before the communicators, because they connect the current GPU.
  std::unique_ptr<Device> device = assignment.make_device();
  runtime::WireOptions wire = assignment.wire(config, *device);
  wire.nccl = finished.engines.nccl;
  wire.imitated = job->mesh.world() > 1 && (imitated || world.size() == 1);
  auto communicators = world.communicators(*job, bytes_per_second, config.comm.emulate.latency_ns,
                                           config.comm.timeout_seconds, assignment.kind, wire);
  const runtime::RankOptions options{
      .threads = planner::threads_of(config, world.ranks_on_host()),
      .update = {.grad_clip = std::max(config.optimizer.grad_clip, 1e-3)},
      .graph = replayed,
      .all_agree = [&world](bool mine, const std::string& awaited) { return world.all_agree(mine, awaited); },
      .timeout_seconds = static_cast<double>(config.comm.timeout_seconds),
      .monitor = world.monitor(),
      .leave = [&world](const std::string& sentence, ExitCode code) { world.leave(sentence, code); },
      .paced_item_ns = paced_item_ns};
  rank = std::make_unique<runtime::Rank>(
      std::move(finished.job), std::move(device), std::move(communicators), options,
      [measured = job.get(), world_rank = world.rank()](const runtime::StagedBatch& staged) {
        load_random(*measured, world_rank, staged);
      });
  rank->initialise(1);
  rank->prime();
  if (world.monitor()) world.monitor()->enter(comm::RunPhase::step);
  meter = std::make_unique<OverlapMeter>(rank->channel_kinds());
}

void Candidate::run(int steps, bool counted) {
  compute(steps);
  measure(steps, counted);
}

void Candidate::compute(int steps) {
  for (int i = 0; i < steps; ++i) {
    rank->wait_for_all_but(1);  // as training does
    std::vector<runtime::Asked> asked;
    if (keep_interval > 0 && step % keep_interval == 0)
      asked.push_back({PlanKind::keep, kept_slot(job->keeping, keep_interval, step)});
    rank->issue(step + 1, asked);
    ++step;
  }
  rank->synchronize();
}

void Candidate::measure(int steps, bool counted) {
  const std::vector<std::vector<Span>> spans = rank->drain();
  for (ChannelId channel = 0; channel < spans.size(); ++channel) {
    std::vector<Span> of_steps;
    std::copy_if(spans[channel].begin(), spans[channel].end(), std::back_inserter(of_steps),
                 [&](const Span& s) { return job->is_in_step(s.item); });
    meter->add(channel, of_steps);
  }
  for (uint32_t s = step - static_cast<uint32_t>(steps) + 1; s <= step; ++s) {
    StepTimes taken = meter->take(s, s < step);
    if (counted && s + static_cast<uint32_t>(std::min(steps, 2)) == step + 1) times.push_back(std::move(taken));
  }
}

double Candidate::median_of(double runtime::StepMeans::*member) const {
  std::vector<double> values;
  for (const runtime::StepMeans& m : means) values.push_back(m.*member);
  return median(std::move(values));
}

std::vector<int64_t> Candidate::spine_ns() const {
  std::vector<std::vector<double>> seen(job->train().spine.size());
  for (const StepTimes& t : times)
    for (const auto& [item, ns] : t.work_ns)
      if (item < seen.size()) seen[item].push_back(static_cast<double>(ns));
  std::vector<int64_t> result;
  for (const std::vector<double>& values : seen) result.push_back(static_cast<int64_t>(median(values)));
  return result;
}

std::vector<int64_t> adding_up_to_a_step(std::vector<int64_t> items_ns, const std::vector<int64_t>& steps_ns) {
  const double sum_ns = std::accumulate(items_ns.begin(), items_ns.end(), 0.0),
               step_ns = median({steps_ns.begin(), steps_ns.end()});
  for (int64_t& ns : items_ns)
    if (sum_ns > 0) ns = static_cast<int64_t>(static_cast<double>(ns) * step_ns / sum_ns);
  return items_ns;
}

std::vector<int64_t> spine_ns_of_slowest(runtime::World& world, const Candidate& candidate) {
  return adding_up_to_a_step(runtime::largest_over_ranks(world, candidate.spine_ns()),
                             runtime::largest_over_ranks(world, work_ns_of_steps(candidate)));
}

std::vector<std::vector<int64_t>> spine_ns_of_stages(runtime::World& world, const Candidate& candidate) {
  return runtime::largest_of_stages(world, candidate.job->mesh,
                                    adding_up_to_a_step(candidate.spine_ns(), work_ns_of_steps(candidate)));
}

ItemTimes::ItemTimes(const Plan& measured, const std::vector<int64_t>& spine_ns) {
  SLIP_ASSERT(spine_ns.size() == measured.spine.size());
  double update_ns = 0, update_bytes = 0, sum_ns = 0, sum_bytes = 0;
  for (size_t i = 0; i < spine_ns.size(); ++i) {
    const SpineItem& item = measured.spine[i];
    if (item.op == Op::update)
      update_ns += static_cast<double>(spine_ns[i]), update_bytes += bytes_of_item(item);
    else if (item.op == Op::sum_squares)
      sum_ns += static_cast<double>(spine_ns[i]), sum_bytes += bytes_of_item(item);
    else
      by_name_[item.name] = spine_ns[i];
  }
  if (update_bytes > 0) update_ns_per_byte_ = update_ns / update_bytes;
  if (sum_bytes > 0) sum_squares_ns_per_byte_ = sum_ns / sum_bytes;
}

std::vector<int64_t> ItemTimes::of(const Plan& plan) const {
  std::vector<int64_t> ns;
  for (const SpineItem& item : plan.spine) {
    const auto found = by_name_.find(item.name);
    ns.push_back(item.op == Op::update        ? static_cast<int64_t>(update_ns_per_byte_ * bytes_of_item(item))
                 : item.op == Op::sum_squares ? static_cast<int64_t>(sum_squares_ns_per_byte_ * bytes_of_item(item))
                 : found == by_name_.end()    ? 0
                                              : found->second);
  }
  return ns;
}

}  // namespace slipstream::bench
