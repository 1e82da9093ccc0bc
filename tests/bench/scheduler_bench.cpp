// SPDX-License-Identifier: Apache-2.0
// Cost of streams, events and the scheduler on the cpu device: per call on the host, and per task with two
// predecessors.

#include <fmt/core.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "comm/scheduler.h"
#include "engine/base/philox.h"
#include "engine/device/clock.h"

using namespace slipstream;

namespace {

constexpr int kRounds = 7;
const Frame kFrame;
const Work kNothing{.name = "nothing", .fn = [](LaunchContext&) {}};

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

void bench_calls(int count) {
  const auto device = make_cpu_device();
  const auto a = device->make_stream({.name = "a"});
  const auto b = device->make_stream({.name = "b"});
  const auto event = device->make_event(1);
  const auto per_call_ns = [&](Stream& stream, const std::function<void()>& call) {
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      const int64_t begin = monotonic_ns();
      for (int i = 0; i < count; ++i) call();
      times.push_back(static_cast<double>(monotonic_ns() - begin) / count);
      stream.synchronize();
    }
    return median(std::move(times));
  };
  const double launch = per_call_ns(*a, [&] { a->launch(kNothing, kFrame); });
  const double record = per_call_ns(*a, [&] { a->record(*event); });
  const double wait = per_call_ns(*b, [&] { b->wait(*event, kFrame); });
  fmt::print("host, ns per call: launch {:.0f}, record {:.0f}, wait {:.0f}\n", launch, record, wait);
}

/// A plan of `tasks` empty tasks, task i on channel 1 + i mod `channels`, each after two earlier tasks.
void bench_tasks(const char* name, uint32_t tasks, uint32_t channels,
                 const std::function<uint32_t(uint32_t, int)>& back) {
  Job job;
  job.channels = {{.role = Role::compute}};
  for (uint32_t c = 0; c < channels; ++c)
    job.channels.push_back({.role = Role::reduce, .name = fmt::format("channel{}", c)});
  Plan& plan = job.train();
  plan.kind = "train";
  plan.spine.resize(1);
  plan.tasks.resize(tasks);
  uint32_t hand_overs = 0;
  for (uint32_t i = 0; i < tasks; ++i) {
    Task& task = plan.tasks[i];
    task.op = Op::copy;
    task.channel = 1 + i % channels;
    for (int k = 0; k < 2; ++k) {
      const uint32_t distance = back(i, k);
      if (distance > i) continue;
      task.after.push_back({1 + i - distance});
      hand_overs += distance % channels != 0;
    }
    plan.order.push_back(1 + i);
  }
  plan.order.push_back(0);
  for (uint32_t c = 0; c < channels; ++c) plan.spine[0].after.push_back({tasks - c});

  const auto device = make_cpu_device();
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<Stream*> borrowed;
  for (ChannelId c = 0; c < job.channels.size(); ++c)
    borrowed.push_back((streams.emplace_back(
                            device->make_stream({.name = job.channels[c].name, .high_priority = c != kComputeChannel})))
                           .get());
  BoundWorks works(plan.size(), kNothing);
  comm::Scheduler scheduler(job, *device, borrowed);
  scheduler.bind(plan, works);
  std::vector<double> issue, whole;
  std::vector<Span> spans;
  for (int round = 0; round < kRounds; ++round) {
    const int64_t begin = monotonic_ns();
    scheduler.begin(plan, kFrame);
    const int64_t issued = monotonic_ns();
    scheduler.before(0, *borrowed[0], kFrame);
    borrowed[0]->launch(works[0], kFrame);
    scheduler.reached(0, *borrowed[0], kFrame);
    scheduler.end_of(plan).synchronize();
    whole.push_back(static_cast<double>(monotonic_ns() - begin) / tasks * 1e-3);
    issue.push_back(static_cast<double>(issued - begin) / tasks * 1e-3);
    spans.clear();
    for (Stream* stream : borrowed) stream->drain(spans);
  }
  fmt::print(
      "{} tasks on {} channels, {}: {:.2f} us per task, {:.2f} us of them to issue; {:.2f} waits per task on other "
      "channels\n",
      tasks, channels, name, median(whole), median(issue), static_cast<double>(hand_overs) / tasks);
}

}  // namespace

int main() {
  bench_calls(100000);
  const Philox random(1, "scheduler_bench");
  bench_tasks("two of the 64 before", 10000, 4, [&](uint32_t i, int k) {
    return 1 + static_cast<uint32_t>(random.below(2 * i + static_cast<uint32_t>(k), 64));
  });
  bench_tasks("the 5th and 7th before", 10000, 4, [](uint32_t, int k) { return k == 0 ? 5u : 7u; });
  // A chain: nothing may overlap, so every task is a hand-over from one thread to another.
  bench_tasks("the two before", 10000, 4, [](uint32_t, int k) { return k == 0 ? 1u : 2u; });
}
