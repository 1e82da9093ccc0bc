// SPDX-License-Identifier: Apache-2.0
// Assembles one rank: one arena per owner, one stream per channel, and works that are bound once.

#include "trainer/runtime/rank/rank.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "comm/rehearse/checked_device.h"
#include "engine/base/check.h"
#include "engine/base/fail_point.h"
#include "engine/base/log.h"
#include "engine/device/clock.h"
#include "engine/device/cpu/resident.h"
#include "kernels/cuda/workspace.h"
#include "trainer/runtime/rank/host_works.h"

namespace slipstream::runtime {
namespace {

/// Makes one arena per owner, with views resolved to addresses. The entries of kept buffers have addresses already, or
/// none.
Memory assignment(const Buffers& buffers, Device& device, std::vector<Memory::Entry> entries,
                  std::vector<std::unique_ptr<Allocation>>& arenas, std::vector<Owner>& owners) {
  const bool kept_elsewhere =
      std::any_of(entries.begin(), entries.end(), [](const auto& e) { return e.base != nullptr; });
  for (int owner = 0; owner < kOwners; ++owner) {
    const int64_t size_bytes = buffers.bytes(static_cast<Owner>(owner));
    if (size_bytes == 0 || (static_cast<Owner>(owner) == Owner::kept && kept_elsewhere)) continue;
    const bool on_host = static_cast<Owner>(owner) == Owner::snapshot || static_cast<Owner>(owner) == Owner::kept;
    const auto allocate = on_host ? &Device::allocate_host : &Device::allocate;
    arenas.push_back((device.*allocate)(size_bytes, name_of(static_cast<Owner>(owner))));
    owners.push_back(static_cast<Owner>(owner));
    std::byte* at = arenas.back()->data();
    for (BufferId id = 0; id < buffers.size(); ++id) {
      if (buffers[id].is_view || buffers[id].owner != static_cast<Owner>(owner)) continue;
      entries[id] = {at, buffers.stride_bytes(id), buffers[id].instances};
      at += buffers.instances(id) * buffers.stride_bytes(id);
    }
  }
  for (BufferId id = 0; id < buffers.size(); ++id)
    if (buffers[id].is_view) {
      entries[id] = entries[buffers[id].view.buffer];
      entries[id].base += buffers[id].view.begin_bytes;
    }
  return Memory(std::move(entries));
}

/// Returns true for memory that initial weights or a checkpoint fill, or that a step late in the run would write first.
/// Other memory is left to the first step, whose threads write it from their own NUMA node.
bool is_set_by_host(Owner owner) {
  return owner == Owner::parameters || owner == Owner::optimizer || owner == Owner::snapshot || owner == Owner::kept;
}

/// Returns `memory` with the kept buffers moved to a slot.
Memory at_slot(const Memory& memory, const Keeping& keeping, int slot) {
  std::vector<Memory::Entry> entries;
  for (BufferId id = 0; id < memory.size(); ++id) {
    entries.push_back(memory.entry(id));
    if (id == keeping.own || (keeping.to_holder != 0 && id == keeping.peer))
      entries.back().base += slot * keeping.slot_bytes;
  }
  return Memory(std::move(entries));
}

/// Makes each kind of work of PlanKind::keep a place at which a test may kill the process.
void add_fail_points(const Plan& plan, BoundWorks& works) {
  for (ItemId i = 0; i < plan.size(); ++i)
    works[i].fn = [name = fmt::format("keep.{}", name_of(plan[i].op)), fn = std::move(works[i].fn)](LaunchContext& c) {
      fn(c);
      fail_point(name.c_str());
    };
}

/// Scratch memory of kernels belongs to their stream. It is allocated before the first step and freed after the last
/// one. Both are works, because only works have access to the device's stream.
Work stream_work(const char* name, void (*of_stream)(void* native_stream)) {
  return {name, {}, {}, {}, [of_stream](LaunchContext& c) {
            if (c.kind == DeviceKind::cuda) of_stream(c.native_stream);
          }};
}

/// Sleeps for `ns` minus the previous excess. Waking up takes 50 to 450 us, which a real computation does not add. The
/// last twentieth, at most 300 us, therefore polls and yields the core, because stages that share cores end their
/// passes at the same time.
void pace(int64_t ns, int64_t& late_ns) {
  constexpr int64_t kMostMadeUpNs = 500'000, kMostAwakeNs = 300'000;
  const int64_t end_ns = monotonic_ns() - late_ns + ns;
  std::this_thread::sleep_until(
      std::chrono::steady_clock::time_point(std::chrono::nanoseconds(end_ns - std::min(ns / 20, kMostAwakeNs))));
  while (monotonic_ns() < end_ns) std::this_thread::yield();
  late_ns = std::clamp<int64_t>(monotonic_ns() - end_ns, 0, kMostMadeUpNs);
}

}  // namespace

Rank::Rank(std::shared_ptr<const Job> job, std::unique_ptr<Device> device,
           std::vector<std::unique_ptr<comm::Communicator>> communicators, const RankOptions& options, LoadBatch load)
    : job_(std::move(job)),
      device_(std::move(device)),
      communicators_(std::move(communicators)),
      threads_(options.threads),
      prepare_stream_(stream_work("prepare_stream", kernels::prepare_stream)),
      release_stream_(stream_work("release_stream", kernels::release_stream)) {
  SLIP_ASSERT(communicators_.size() == job_->channels.size());
  if (options.check_hazards) device_ = comm::make_checked_device(std::move(device_), job_->buffers);
  const Keeping& keeping = job_->keeping;
  std::vector<Memory::Entry> kept(job_->buffers.size());
  if (keeping.slots > 0) kept[keeping.own].base = options.kept[0];
  if (keeping.to_holder != 0) kept[keeping.peer].base = options.kept[1];
  for (size_t copy = 0; copy < options.kept.size(); ++copy)
    if (options.kept[copy]) pinned_.push_back(device_->pin(options.kept[copy], keeping.slots * keeping.slot_bytes));
  memory_ = assignment(job_->buffers, *device_, std::move(kept), arenas_, arena_owners_);
  for (size_t a = 0; a < arenas_.size() && device_->kind() == DeviceKind::cpu; ++a)
    if (is_set_by_host(arena_owners_[a]))
      cpu::make_resident({arenas_[a]->data(), static_cast<size_t>(arenas_[a]->size_bytes())}, threads_);
  for (int slot = 0; slot < std::max(1, keeping.slots); ++slot) memories_.push_back(at_slot(memory_, keeping, slot));
  for (const Constant& constant : job_->model.constants) {
    std::vector<std::byte> host(static_cast<size_t>(job_->buffers[constant.buffer].size_bytes));
    constant.fill(host.data());
    device_->copy_from_host(address(constant.buffer), host.data(), static_cast<int64_t>(host.size()));
  }
  std::vector<comm::Communicator*> verbs;
  for (const auto& communicator : communicators_) verbs.push_back(communicator.get());
  reports_ = device_->allocate_host(static_cast<int64_t>(sizeof(Report)) * kReportSlots, "reports");
  // A replayed graph bypasses the streams that the checker observes.
  all_agree_ = options.all_agree;
  times_works_ = options.times_works;
  graph_ = options.graph && !options.check_hazards && device_->kind() == DeviceKind::cuda;
  for (const auto& [kind, cadence, plan] : job_->plans) {
    const auto [bound, is_new] = works_.try_emplace(kind);
    if (!is_new) continue;
    bound->second = bind_works(*job_, plan, options.update, verbs, load, reports_->data());
    if (kind == PlanKind::keep) add_fail_points(plan, bound->second);
    run_on_host(plan, bound->second);
  }
  const auto late_ns = std::make_shared<int64_t>(0);
  for (size_t i = 0; i < options.paced_item_ns.size(); ++i) {
    const SpineItem& item = job_->train().spine[i];
    works_[PlanKind::train][i] = {item.name, item.cost, item.reads, item.writes,
                                  [ns = options.paced_item_ns[i], late_ns](LaunchContext&) { pace(ns, *late_ns); }};
  }
  if (options.delay_max_ns > 0) device_->inject_delays(options.delay_seed, options.delay_max_ns);
  std::vector<Stream*> streams;
  for (ChannelId c = 0; c < job_->channels.size(); ++c) {
    streams_.push_back(device_->make_stream({.name = job_->channels[c].name,
                                             .threads = c == kComputeChannel ? options.threads : 1,
                                             .high_priority = job_->channels[c].axis != Axis::self}));
    streams.push_back(streams_.back().get());
    if (job_->channels[c].runs_kernels()) streams_.back()->launch(prepare_stream_, {});
  }
  synchronize();
  scheduler_ = std::make_unique<comm::Scheduler>(*job_, *device_, streams);
  for (const Memory& memory : memories_) steps_.emplace_back(*job_, memory, *streams_[kComputeChannel], *scheduler_);
  for (const auto& [kind, cadence, plan] : job_->plans) {
    const uint32_t first_item = job_->first_item(kind);
    scheduler_->bind(plan, works_[kind], first_item);
    for (Step& step : steps_) step.bind(plan, works_[kind], first_item);
  }
  monitor_ = options.monitor;
  if (monitor_) monitor_->show([this] { return flight(); });
  if (device_->kind() != DeviceKind::cuda ||
      std::all_of(verbs.begin(), verbs.end(), [](auto* v) { return v == nullptr; }))
    return;
  register_arenas();
  watchdog_ = std::make_unique<comm::Watchdog>(
      verbs, [this] { return scheduler_->in_flight(); },
      comm::WatchdogOptions{.timeout_seconds = options.timeout_seconds,
                            .late = monitor_ ? [this](const std::string& sentence) { monitor_->alarm(sentence); }
                                             : std::function<void(const std::string&)>(),
                            .leave = options.leave});
}

void Rank::run_on_host(const Plan& plan, BoundWorks& works) {
  if (device_->kind() != DeviceKind::cuda) return;
  std::map<ChannelId, std::shared_ptr<HostWorks>> of_channel;
  for (ItemId i = 0; i < plan.size(); ++i) {
    const Channel& channel = job_->channels[plan[i].channel];
    if (plan[i].op != Op::seal && channel.axis != Axis::hosts) continue;
    std::shared_ptr<HostWorks>& host = of_channel[plan[i].channel];
    if (!host) host = std::make_shared<HostWorks>(channel.name, *device_);
    works[i] = host->on_stream(std::move(works[i]));
  }
}

void Rank::register_arenas() {
  for (ChannelId c = 0; c < communicators_.size(); ++c) {
    if (!communicators_[c] || job_->channels[c].axis == Axis::hosts) continue;
    std::string& reason = unregistered_[job_->channels[c].name];
    for (const auto& arena : arenas_) {
      const auto holds = [&](const Slice& slice) {
        return address(slice.buffer) >= arena->data() && address(slice.buffer) < arena->data() + arena->size_bytes();
      };
      const std::vector<Task>& tasks = job_->train().tasks;
      const bool named = std::any_of(tasks.begin(), tasks.end(), [&](const Task& task) {
        return task.channel == c && is_communication(task.op) &&
               (std::any_of(task.reads.begin(), task.reads.end(), holds) ||
                std::any_of(task.writes.begin(), task.writes.end(), holds));
      });
      if (named && reason.empty()) reason = communicators_[c]->register_memory(arena->data(), arena->size_bytes());
    }
  }
  // NCCL does not define what happens with memory that only some ranks registered.
  const bool known = std::all_of(unregistered_.begin(), unregistered_.end(),
                                 [](const auto& channel) { return channel.second.empty(); });
  if (all_agree_(known, "whether their memory is registered")) return;
  for (const auto& communicator : communicators_)
    if (communicator) communicator->forget_memory();
  for (auto& [channel, reason] : unregistered_)
    if (reason.empty()) reason = "NCCL needs all ranks to register, and one rank or another channel could not";
}

void Rank::watch(const std::function<void()>& wait) {
  if (!watchdog_) return wait();
  const auto set = [&](bool waits) {
    const std::lock_guard lock(look_);
    waits_ = waits;
  };
  watchdog_->watch([&] {
    set(true);
    try {
      wait();
    } catch (...) {
      set(false);
      throw;
    }
    set(false);
  });
}

comm::FlightState Rank::flight() {
  const bool on_gpu = device_->kind() == DeviceKind::cuda;
  const std::lock_guard lock(look_);
  // A query of an event would spoil a graph that the host records.
  if (on_gpu && !waits_) return {.step = latest_step_};
  return scheduler_->flight(!on_gpu);
}

void Rank::watch_issue(const std::function<void()>& issue) { watchdog_ ? watchdog_->watch_issue(issue) : issue(); }

std::byte* Rank::weights_at(const Slice& slice) const {
  const bool second = job_->options.double_buffer && issued_ % 2 == 1;
  return address(second && slice.buffer == job_->ids.values ? job_->ids.values_next : slice.buffer) + slice.begin_bytes;
}

Rank::~Rank() {
  if (monitor_) monitor_->show({});
  try {
    synchronize();
  } catch (const std::exception& error) {
    // A stream has failed. The thread that waited for it reports the error.
    const auto* known = dynamic_cast<const Error*>(&error);
    abort(error.what(), known != nullptr ? known->code() : ExitCode::bug);
    // An abort ends a running graph, and completes when no graph holds its communicator.
    if (watchdog_) watchdog_->watch_to_the_end([&] { graphs_ = {}; });
  }
  watchdog_.reset();
  graphs_ = {};
  try {
    for (const auto& stream : streams_) stream->launch(release_stream_, {});
  } catch (...) {
    // As above, the end of the process frees the memory of a failed stream.
  }
  streams_.clear();
  works_.clear();          // ends threads of HostWorks, which may be in a transfer if the GPU is lost
  communicators_.clear();  // releases registered memory, which is freed next
}

std::optional<int64_t> Rank::sent_bytes() const {
  int64_t bytes = 0;
  for (ChannelId c = 0; c < communicators_.size(); ++c) {
    if (!communicators_[c] || !carries_states(job_->channels[c].role)) continue;
    const std::optional<int64_t> sent = communicators_[c]->sent_bytes();
    if (!sent) return {};
    bytes += *sent;
  }
  return bytes;
}

void Rank::prime() {
  for (const auto& [kind, cadence, plan] : job_->plans) {
    if (cadence.when != When::start) continue;
    prepare(kind, 0);
    watch_issue([&] { steps_[0].run(plan, 0); });
  }
  synchronize();
}

void Rank::prepare(PlanKind kind, uint32_t step) {
  const Frame frame{.memory = &memory_, .step = step};
  LaunchContext host{.kind = device_->kind(), .frame = &frame};
  for (const Work& work : works_[kind])
    if (work.prepare) work.prepare(host);
}

void Rank::issue(uint32_t step, std::span<const Asked> asked) {
  const auto asked_for = [&](PlanKind kind) {
    return std::find_if(asked.begin(), asked.end(), [&](const Asked& each) { return each.kind == kind; });
  };
  SLIP_ASSERT(std::all_of(asked.begin(), asked.end(), [&](const Asked& each) { return job_->has(each.kind); }));
  SLIP_ASSERT(asked_for(PlanKind::save) == asked.end() || snapshot_done());
  const Plan& plan = job_->plan(PlanKind::train, issued_);
  std::unique_ptr<Graph>& graph = graphs_[step % kStepPeriod];
  // A replay copies from the pinned memory that prepare() fills.
  if (graph && !graph->ended())
    throw InternalError(
        "[rank] step {} would overwrite the pinned batch and scalars of step {}, which has not ended. Steps may be "
        "issued at most {} ahead of the device: call wait_for_all_but() before issue().",
        step, step - kStepPeriod, kStepPeriod - 1);
  const Calendar::Runs runs =
      job_->calendar().step(issued_, [&](size_t row) { return asked_for(job_->plans[row].kind) != asked.end(); });
  for (size_t row : runs) prepare(job_->plans[row].kind, step);  // allocates the memory that a graph records
  // A graph would begin after the other runs. Since the host must not wait for them, all ranks issue this step task by
  // task.
  const bool eager = runs.size() > 1 || !graph_ || issued_ < kEagerSteps;
  if (!eager && graph) scheduler_->replayed(plan, step);
  if (!eager && !graph) graph = record(plan, step);
  const int64_t host_waits = device_->host_wait_count();
  // A stream queues a few thousand commands. If a rank is gone, the host blocks here, too.
  watch_issue([&] {
    if (!eager && graph) return graph->launch(step);
    for (size_t row : runs) {
      const auto found = asked_for(job_->plans[row].kind);
      steps_[found == asked.end() ? 0 : static_cast<size_t>(found->slot)].run(job_->plans[row].plan, step);
    }
  });
  SLIP_ASSERT(device_->host_wait_count() == host_waits);
  ++issued_;
  latest_step_.store(step, std::memory_order_relaxed);
  ends_.push_back(&scheduler_->end_of(plan));
  if (ends_.size() > 2) ends_.erase(ends_.begin());
}

std::unique_ptr<Graph> Rank::record(const Plan& plan, uint32_t step) {
  std::unique_ptr<Graph> graph;
  std::string refusal;
  try {
    graph = device_->capture(
        *streams_[kComputeChannel], [&] { steps_[0].run(plan, step); },
        times_works_ ? GraphSpans::of_works : GraphSpans::of_items);
  } catch (const Error& error) {
    refusal = error.what();
  }
  // NCCL needs the same mode on all ranks: every operation is recorded, or none is.
  if (all_agree_(graph != nullptr, fmt::format("whether step {} was recorded as a graph", step))) return graph;
  // The scheduler issued a step that did not run. All earlier work is complete, so no wait for that step is needed. If
  // the GPU is lost, the refusal is only a consequence, and this throws the error.
  synchronize();
  if (!refusal.empty())
    log_warn(
        "{} The step could not be recorded as a graph, so all ranks issue every step task by task, which costs more "
        "host time. device.graph = false avoids the attempt.",
        refusal);
  graph_ = false;
  graphs_ = {};
  return nullptr;
}

void Rank::run_plainly(ThreadPool& pool) {
  const Plan& plan = job_->train();
  const BoundWorks& works = works_[PlanKind::train];
  for (ItemId i : plan.order) {
    Frame frame{.memory = &memory_, .item = i};
    if (plan.is_spine(i)) {
      const SpineItem& item = plan.spine[i];
      frame.micro_batch = item.micro_batch;
      frame.slot = item.slot;
      frame.accumulate = item.accumulate;
      frame.rebinds = item.rebinds.data();
      frame.rebind_count = static_cast<uint32_t>(item.rebinds.size());
    }
    LaunchContext context{.kind = device_->kind(), .pool = &pool, .frame = &frame};
    if (works[i].fn)
      works[i].fn(context);
    else
      for (const Work& work : job_->model.pieces[plan.spine[i].piece].works) work.fn(context);
  }
}

void Rank::wait_for_all_but(int latest) {
  const auto index = static_cast<int>(ends_.size()) - 1 - latest;
  if (index >= 0) watch([&] { ends_[static_cast<size_t>(index)]->synchronize(); });
}

Rank::Report Rank::report(uint32_t step) const {
  SLIP_ASSERT(latest_step_ < step + kReportSlots);  // a later step overwrites the slot
  Report report;
  std::memcpy(&report, reports_->data() + sizeof report * (step % kReportSlots), sizeof report);
  return report;
}

std::vector<float> Rank::evaluate(std::span<const int32_t> ids, std::span<const int32_t> targets,
                                  std::span<const int32_t> document_begins) {
  const int64_t rows = job_->model.batch * job_->model.tokens;
  SLIP_ASSERT(static_cast<int64_t>(ids.size()) == rows && static_cast<int64_t>(targets.size()) == rows);
  synchronize();
  device_->copy_from_host(address(job_->model.ids), ids.data(), 4 * rows);
  device_->copy_from_host(address(job_->model.ids) + 4 * rows, targets.data(), 4 * rows);
  if (job_->model.documents) {
    const std::vector<int32_t> none(document_begins.empty() ? static_cast<size_t>(rows) : 0);
    SLIP_ASSERT(document_begins.empty() || std::ssize(document_begins) == rows);
    device_->copy_from_host(address(job_->model.ids) + 8 * rows,
                            document_begins.empty() ? none.data() : document_begins.data(), 4 * rows);
  }
  watch_issue([&] { steps_[0].run(job_->plan(PlanKind::evaluate, issued_), 0); });
  synchronize();
  if (job_->buffers[job_->model.row_losses].size_bytes == 0) return {};
  std::vector<float> losses(static_cast<size_t>(rows));
  device_->copy_to_host(losses.data(), address(job_->model.row_losses), 4 * rows);
  return losses;
}

std::vector<float> Rank::logits(int64_t row) {
  synchronize();
  const int64_t vocab = job_->model.vocab;
  SLIP_ASSERT((row + 1) * bytes_of(job_->model.logits_stride, job_->model.dtype) <=
              job_->buffers[job_->model.logits].size_bytes);  // for one chunk of tokens
  std::vector<float> values(static_cast<size_t>(vocab));
  const std::byte* from = address(job_->model.logits) + bytes_of(row * job_->model.logits_stride, job_->model.dtype);
  if (job_->model.dtype == DType::f32) {
    device_->copy_to_host(values.data(), from, 4 * vocab);
    return values;
  }
  std::vector<bfloat16> rounded(static_cast<size_t>(vocab));
  device_->copy_to_host(rounded.data(), from, 2 * vocab);
  std::transform(rounded.begin(), rounded.end(), values.begin(), [](bfloat16 v) { return static_cast<float>(v); });
  return values;
}

void Rank::synchronize() {
  watch([&] {
    for (const auto& stream : streams_) stream->synchronize();
  });
}

void Rank::abort(const std::string& reason, ExitCode code) {
  if (watchdog_) return watchdog_->give_up(reason, code);
  for (const auto& communicator : communicators_)
    if (communicator) communicator->abort();
}

std::vector<std::vector<Span>> Rank::drain() {
  std::vector<std::vector<Span>> spans(streams_.size());
  for (size_t c = 0; c < streams_.size(); ++c) streams_[c]->drain(spans[c]);
  return spans;
}

std::vector<ChannelKind> Rank::channel_kinds() const {
  std::vector<ChannelKind> kinds;
  for (const Channel& channel : job_->channels)
    kinds.push_back(channel.role == Role::compute ? ChannelKind::compute
                    : channel.role == Role::h2d   ? ChannelKind::input
                    : channel.axis == Axis::self  ? ChannelKind::local
                    : channel.axis != Axis::hosts && job_->mesh.joins_stages(channel.axis)
                        ? ChannelKind::stages
                        : ChannelKind::communication);
  return kinds;
}

}  // namespace slipstream::runtime
