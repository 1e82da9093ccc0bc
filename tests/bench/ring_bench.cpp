// SPDX-License-Identifier: Apache-2.0
// How much of a ring hides under blocks of attention by the host's clock: ranks are threads, compute sleeps in proportion to its operations and the
// link is emulated, so that the schedule is measured and not the cores.
//
// Arguments: ratios of a hop to a block (0.25 0.5 0.9 1 2).

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <thread>

#include "cli/contestant.h"
#include "comm/emulate/emulate.h"
#include "engine/base/units.h"
#include "tests/equivalence/trained.h"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

constexpr int kContext = 4, kSteps = 4;
constexpr int64_t kBlockNs = 8 * kMillisecond;

/// Long enough that attention is the work; the kernels never run.
Layout long_sequence() {
  Layout layout{.name = "ring", .model = tiny_llama(), .micro_batch = 1, .context = kContext};
  layout.model.heads = layout.model.kv_heads = 4;
  layout.model.width = 128;
  layout.model.ffn_width = 512;
  layout.model.tokens = layout.model.context = 4096;
  layout.bucket_bytes = layout.first_bucket_bytes = 25 << 20;
  return layout;
}

struct Shares {
  double ring_ms = 0, exposed_ms = 0, step_ms = 0;
};

/// Mean over the steps of one rank.
Shares run(const Layout& layout, int rank_index, std::vector<std::unique_ptr<comm::Communicator>> communicators, std::vector<int64_t> paced_item_ns) {
  std::shared_ptr<Job> job = make_job(layout, rank_index);
  cli::Rank rank(job, make_cpu_device(), std::move(communicators), {.paced_item_ns = std::move(paced_item_ns)},
                 [&](const cli::StagedBatch& staged) { cli::load_random(*job, rank_index, staged); });
  rank.initialise(1);
  rank.prime();
  for (uint32_t step = 1; step <= kSteps + 2; ++step) rank.issue(step);
  rank.synchronize();
  OverlapMeter meter(rank.channel_kinds());
  const std::vector<std::vector<Span>> spans = rank.drain();
  for (ChannelId c = 0; c < spans.size(); ++c) {
    std::vector<Span> of_steps;
    std::copy_if(spans[c].begin(), spans[c].end(), std::back_inserter(of_steps), [](const Span& s) { return s.step > 0; });
    meter.add(c, of_steps);
  }
  const auto is_ring = [&](uint32_t channel) { return job->channels[channel].axis == Axis::context; };
  Shares mean;
  for (uint32_t step = 1; step <= kSteps + 1; ++step) {
    const StepTimes times = meter.take(step, true);
    if (step == 1) continue;
    for (const TaskTime& task : times.tasks)
      if (is_ring(task.channel)) mean.ring_ms += static_cast<double>(task.end_ns - task.begin_ns) / (1e6 * kSteps);
    for (const Exposure& exposure : times.exposures)
      if (is_ring(static_cast<uint32_t>(exposure.awaited >> 32))) mean.exposed_ms += static_cast<double>(exposure.end_ns - exposure.begin_ns) / (1e6 * kSteps);
    mean.step_ms += static_cast<double>(times.step_ns) / (1e6 * kSteps);
  }
  return mean;
}

void bench(double ratio) {
  const Layout layout = long_sequence();
  const std::unique_ptr<Job> job = make_job(layout, 0);
  const Plan& plan = job->train;
  const auto block = std::find_if(plan.spine.begin(), plan.spine.end(), [](const SpineItem& item) { return item.name == "attention_block.1.0"; });
  const auto hop = std::find_if(plan.tasks.begin(), plan.tasks.end(), [](const Task& task) { return task.op == Op::exchange; });
  std::vector<int64_t> paced;
  for (const SpineItem& item : plan.spine) paced.push_back(static_cast<int64_t>(static_cast<double>(kBlockNs) * static_cast<double>(item.cost.flops) / static_cast<double>(block->cost.flops)));
  const comm::Link link{static_cast<double>(bytes_of(hop->elems, hop->dtype)) * 1e9 / (ratio * static_cast<double>(kBlockNs)), 20 * kMicrosecond};
  std::vector<std::shared_ptr<comm::LinkPort>> ports;
  for (int r = 0; r < kContext; ++r) ports.push_back(std::make_shared<comm::LinkPort>(link));
  const comm::Wiring wiring = comm::wire_up(*job);
  std::vector<std::vector<std::unique_ptr<comm::Communicator>>> communicators(kContext);
  for (auto& of_rank : communicators) of_rank.resize(job->channels.size());
  for (ChannelId c = 0; c < job->channels.size(); ++c) {
    if (wiring.connection_of[c] < 0) continue;
    auto world = comm::make_thread_world(kContext, {.timeout_seconds = 60});
    for (size_t r = 0; r < kContext; ++r)
      communicators[r][c] = job->channels[c].axis == Axis::context ? comm::emulate(std::move(world[r]), ports[r]) : std::move(world[r]);
  }
  std::vector<Shares> shares(kContext);
  std::vector<std::thread> threads;
  for (int r = 0; r < kContext; ++r)
    threads.emplace_back([&, r] { shares[static_cast<size_t>(r)] = run(layout, r, std::move(communicators[static_cast<size_t>(r)]), paced); });
  for (std::thread& thread : threads) thread.join();
  Shares mean;
  for (const Shares& s : shares) mean.ring_ms += s.ring_ms / kContext, mean.exposed_ms += s.exposed_ms / kContext, mean.step_ms += s.step_ms / kContext;
  fmt::print("{:>8.2f}{:>12.2f}{:>12.2f}{:>12.2f}{:>9.0f}%\n", ratio, mean.step_ms, mean.ring_ms, mean.exposed_ms, 100 * (1 - mean.exposed_ms / mean.ring_ms));
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<double> ratios;
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    double ratio = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), ratio).ec != std::errc{} || !(ratio > 0)) {
      fmt::print(stderr, "ring_bench: {} is no positive ratio of a hop to a block.\n", text);
      return 2;
    }
    ratios.push_back(ratio);
  }
  if (ratios.empty()) ratios = {0.25, 0.5, 0.9, 1, 2};
  fmt::print("ring attention, {} ranks as threads, paced compute, a block takes {} ms; means of {} steps\n{:>8}{:>12}{:>12}{:>12}{:>10}\n", kContext,
             kBlockNs / kMillisecond, kSteps, "ratio", "step ms", "ring ms", "exposed ms", "hidden");
  for (double ratio : ratios) bench(ratio);
}
