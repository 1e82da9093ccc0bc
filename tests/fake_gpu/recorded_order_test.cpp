// SPDX-License-Identifier: Apache-2.0
// A recorded step keeps the order of its plan: between any two works that the plan orders there is a path of edges, so
// no run of the graph can reverse them. Steps are recorded as a rank records them, with kernels and NCCL communicators;
// nothing runs.

#include <cstdio>
#include <map>

#include "comm/nccl/nccl.h"
#include "comm/scheduler.h"
#include "comm/wiring.h"
#include "kernels/cuda/workspace.h"
#include "tests/equivalence/trained.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;
using fake_cuda::GraphNode;

namespace {

using Communicators = std::vector<std::vector<std::unique_ptr<comm::Communicator>>>;  // [rank][channel]

/// The communicators of all ranks, in this process: they connect, and no operation runs.
Communicators connect(const std::vector<std::unique_ptr<Job>>& jobs) {
  Communicators communicators(jobs.size()), connections(jobs.size());
  const auto axes = comm::wire_up(*jobs[0]).connections;
  for (auto& of_rank : connections) of_rank.resize(axes.size());
  for (size_t c = 0; c < axes.size(); ++c)
    for (size_t r = 0; r < jobs.size(); ++r) {
      const std::vector<int> group = jobs[0]->mesh.group(axes[c], static_cast<int>(r));
      if (group.size() == 1 || group[0] != static_cast<int>(r)) continue;
      std::string of_first;
      for (size_t i = 0; i < group.size(); ++i)
        connections[static_cast<size_t>(group[i])][c] = comm::make_nccl_communicator(
            static_cast<int>(i), static_cast<int>(group.size()),
            [&](const std::string& bytes) { return i == 0 ? of_first = bytes : of_first; });
    }
  for (size_t r = 0; r < jobs.size(); ++r)
    for (int connection : comm::wire_up(*jobs[r]).connection_of)
      communicators[r].push_back(connection < 0 ? nullptr : std::move(connections[r][static_cast<size_t>(connection)]));
  return communicators;
}

/// The commands of `work` belong to the item that it is launched for.
void name_commands_of(Work& work) {
  if (!work.fn) return;
  work.fn = [fn = std::move(work.fn)](LaunchContext& c) {
    fake_cuda::name_commands(std::to_string(c.frame->item));
    fn(c);
    fake_cuda::name_commands("");
  };
}

/// The connections that a rank needs to record a step.
class Recorder {
 public:
  Recorder(const Layout& layout, Job& job, const std::vector<std::unique_ptr<comm::Communicator>>& communicators)
      : job_(job) {
    assignment();
    reports_ = device_->allocate_host(16 * kReportSlots, "reports");
    std::vector<comm::Communicator*> verbs;
    for (const auto& communicator : communicators) verbs.push_back(communicator.get());
    const auto r = static_cast<size_t>(job.options.rank);
    const Coordinates at = job.mesh.coordinates(job.options.rank);
    works_ = runtime::bind_works(job, job.train(), equivalence::detail::rank_options(layout, r).update, verbs,
                                 equivalence::detail::loader(layout, at.data, staged_, at.context), reports_->data());
    for (Work& work : works_) name_commands_of(work);
    for (Piece& piece : job.model.pieces)
      for (Work& work : piece.works) name_commands_of(work);
    std::vector<Stream*> streams;
    for (const Channel& channel : job.channels) {
      streams_.push_back(device_->make_stream({.name = channel.name, .high_priority = channel.axis != Axis::self}));
      streams.push_back(streams_.back().get());
      if (channel.axis == Axis::self) on_stream(*streams_.back(), kernels::prepare_stream);
    }
    scheduler_ = std::make_unique<comm::Scheduler>(job, *device_, streams);
    step_ = std::make_unique<Step>(job, memory_, *streams_[kComputeChannel], *scheduler_);
  }
  ~Recorder() {
    for (const auto& stream : streams_) on_stream(*stream, kernels::release_stream);
  }

  /// Records steps 1, 2, ..., `steps`, each of the next plan in `plans`, and returns the recordings.
  std::vector<std::vector<GraphNode>> record(const std::vector<const Plan*>& plans, uint32_t steps) {
    std::vector<std::vector<GraphNode>> nodes;
    std::vector<std::unique_ptr<Graph>> graphs;
    for (const Plan* plan : plans) scheduler_->bind(*plan, works_), step_->bind(*plan, works_);
    for (uint32_t step = 1; step <= steps; ++step) {
      const Frame frame{.memory = &memory_, .step = step};
      LaunchContext host{.kind = DeviceKind::cuda, .frame = &frame};
      for (const Work& work : works_)
        if (work.prepare) work.prepare(host);
      const Plan& plan = *plans[(step - 1) % plans.size()];
      graphs.push_back(device_->capture(
          *streams_[kComputeChannel], [&] { step_->run(plan, step); }, GraphSpans::of_items));
      nodes.push_back(fake_cuda::captured_nodes());
    }
    return nodes;
  }

 private:
  void assignment() {
    int64_t size_bytes = 0;
    for (BufferId id = 0; id < job_.buffers.size(); ++id)
      if (!job_.buffers[id].is_view) size_bytes += job_.buffers.instances(id) * job_.buffers.stride_bytes(id);
    arena_ = device_->allocate(size_bytes, "everything");
    std::vector<Memory::Entry> entries(job_.buffers.size());
    std::byte* at = arena_->data();
    for (BufferId id = 0; id < job_.buffers.size(); ++id) {
      if (job_.buffers[id].is_view) continue;
      entries[id] = {at, job_.buffers.stride_bytes(id), job_.buffers[id].instances};
      at += job_.buffers.instances(id) * job_.buffers.stride_bytes(id);
    }
    for (BufferId id = 0; id < job_.buffers.size(); ++id)
      if (const Slice& view = job_.buffers[id].view; job_.buffers[id].is_view)
        entries[id] = {entries[view.buffer].base + view.begin_bytes, 0, Instances::one};
    memory_ = Memory(std::move(entries));
  }
  static void on_stream(Stream& stream, void (*what)(void*)) {
    const Work work{"once", {}, {}, {}, [what](LaunchContext& c) { what(c.native_stream); }};
    stream.launch(work, {});
    stream.synchronize();
  }

  Job& job_;
  std::unique_ptr<Device> device_ = make_cuda_device(0);
  std::unique_ptr<Allocation> arena_, reports_;
  Memory memory_;
  BoundWorks works_;
  int64_t staged_ = 0;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::unique_ptr<comm::Scheduler> scheduler_;
  std::unique_ptr<Step> step_;
};

/// Order between numbered objects whose direct predecessors have lower numbers.
class Before {
 public:
  explicit Before(size_t size) : size_(size), words_((size + 63) / 64), bits_(size * words_) {}
  /// Call with ascending `later`, after all its predecessors.
  void add(size_t earlier, size_t later) {
    for (size_t w = 0; w < words_; ++w) bits_[later * words_ + w] |= bits_[earlier * words_ + w];
    bits_[later * words_ + earlier / 64] |= uint64_t{1} << earlier % 64;
  }
  bool operator()(size_t earlier, size_t later) const {
    return bits_[later * words_ + earlier / 64] >> earlier % 64 & 1;
  }
  size_t size() const { return size_; }

 private:
  size_t size_, words_;
  std::vector<uint64_t> bits_;
};

Before paths_of(const std::vector<GraphNode>& nodes) {
  Before before(nodes.size());
  for (size_t n = 0; n < nodes.size(); ++n)
    for (size_t earlier : nodes[n].behind) before.add(earlier, n);
  return before;
}

/// The order by place in the host order: the declared waits, the order of every channel, and their consequences.
Before order_of(const Plan& plan) {
  Before before(plan.size());
  std::vector<size_t> assignment(plan.size());
  std::map<ChannelId, size_t> last;
  for (size_t i = 0; i < plan.size(); ++i) {
    const Item& item = plan[plan.order[i]];
    assignment[plan.order[i]] = i;
    if (const auto found = last.find(item.channel); found != last.end()) before.add(found->second, i);
    last[item.channel] = i;
    for (const Point& point : item.after) before.add(assignment[point.item], i);
  }
  return before;
}

bool conflict(const Item& a, const Item& b) {
  const auto meet = [](const std::vector<Slice>& some, const std::vector<Slice>& others) {
    return std::any_of(some.begin(), some.end(), [&](const Slice& slice) {
      return std::any_of(others.begin(), others.end(), [&](const Slice& other) { return slice.overlaps(other); });
    });
  };
  return meet(a.writes, b.writes) || meet(a.writes, b.reads) || meet(a.reads, b.writes);
}

/// Requirements of a plan on its graph, all computed before the graph is read.
struct Required {
  explicit Required(const Plan& plan_) : plan(plan_), declared(order_of(plan_)), conflicts(plan_.size()) {
    for (size_t later = 0; later < plan.size(); ++later)
      for (size_t earlier = 0; earlier < later; ++earlier)
        if (conflict(plan[plan.order[earlier]], plan[plan.order[later]])) conflicts[later].push_back(earlier);
  }
  const Plan& plan;
  Before declared;
  std::vector<std::vector<size_t>> conflicts;  // by place: earlier ones that use the same bytes, in any declared order
};

/// Finds the pairs that the plan orders and the graph does not. Returns the first one and their number; empty if there
/// are none.
std::string unordered(const Required& required, const std::vector<GraphNode>& nodes, const Before& paths) {
  const Plan& plan = required.plan;
  std::vector<std::vector<size_t>> of_item(plan.size());
  for (size_t n = 0; n < nodes.size(); ++n)
    if (!nodes[n].work.empty()) of_item[std::stoul(nodes[n].work)].push_back(n);
  std::string first;
  int64_t count = 0;
  const auto expect = [&](size_t earlier, size_t later, const auto& what) {
    if (paths(earlier, later)) return;
    if (count++ == 0) first = what();
  };
  for (size_t later = 0; later < plan.size(); ++later) {
    const Item& item = plan[plan.order[later]];
    const std::vector<size_t>& commands = of_item[plan.order[later]];
    for (size_t c = 1; c < commands.size(); ++c)
      expect(commands[c - 1], commands[c], [&] { return "the commands of " + item.name + " are not in order"; });
    const auto expect_item = [&](size_t earlier, const char* why) {
      const auto what = [&] { return item.name + " is not after " + plan[plan.order[earlier]].name + why; };
      for (size_t a : of_item[plan.order[earlier]])
        for (size_t b : commands) expect(a, b, what);
    };
    for (size_t earlier = 0; earlier < later; ++earlier)
      if (required.declared(earlier, later)) expect_item(earlier, "");
    for (size_t earlier : required.conflicts[later]) expect_item(earlier, ", which touches the same bytes");
  }
  return count == 0 ? "" : fmt::format("{} ({} pairs of commands)", first, count);
}

std::vector<Layout> layouts() {
  std::vector<Layout> rows;
  const auto add = [&](const char* name, bool llama, auto change) {
    Layout layout{.name = name, .model = llama ? tiny_llama() : tiny_gpt2(), .micro_batch = 2};
    layout.model.vocab = 61;
    layout.model.split_tied_embedding = false;
    change(layout);
    rows.push_back(layout);
  };
  add("one rank", false, [](Layout& l) { l.micro_batches = 2; });
  add("one rank, update beside the spine", true, [](Layout& l) { l.update_on_spine = false; });
  add("2 ranks, bucketed", false, [](Layout& l) { l.ranks = 2, l.micro_batches = 2, l.model.dtype = DType::bf16; });
  add("2 ranks, int8 on the wire, tied embedding in two copies", false, [](Layout& l) {
    l.ranks = 2, l.wire_dtype = kInt8, l.error_feedback = true, l.model.split_tied_embedding = true;
  });
  add("2 ranks, ZeRO-1 with two copies of the weights", true,
      [](Layout& l) { l.ranks = 2, l.zero_stage = 1, l.double_buffer = true; });
  add("2 ranks, ZeRO-3", true, [](Layout& l) { l.ranks = 2, l.zero_stage = 3, l.micro_batches = 2; });
  add("2 stages, 1f1b", false, [](Layout& l) { l.stages = 2, l.micro_batches = 4; });
  add("2 stages x 2 data ranks, zb_h1, ZeRO-1", true, [](Layout& l) {
    l.stages = 2, l.ranks = 2, l.schedule = ScheduleKind::zb_h1, l.zero_stage = 1, l.micro_batches = 4;
  });
  add("2 ranks share layers, sequence parallel", true,
      [](Layout& l) { l.tensor = 2, l.sequence_parallel = true, l.tensor_chunks = 2; });
  return rows;
}

/// Calls check(plan, nodes) for every step that a rank of `layout` records, or for one of each of its plans.
template <typename Check>
void for_recorded(const Layout& layout, bool all_steps, const Check& check) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (int rank = 0; rank < layout.world(); ++rank) jobs.push_back(make_job(layout, rank));
  const Communicators communicators = connect(jobs);
  for (int rank = 0; rank < layout.world(); ++rank) {
    INFO(layout.name << ", rank " << rank);
    Job& job = *jobs[static_cast<size_t>(rank)];
    std::vector<const Plan*> plans = {&job.train()};
    if (layout.double_buffer) plans.push_back(&job.plan(PlanKind::train, 1));
    const auto recorded = Recorder(layout, job, communicators[static_cast<size_t>(rank)])
                              .record(plans, all_steps ? kStepPeriod : static_cast<uint32_t>(plans.size()));
    for (size_t i = 0; i < recorded.size(); ++i) check(*plans[i % plans.size()], recorded[i]);
  }
}

}  // namespace

TEST_CASE(
    "in a recorded step there is a path between any two works that the plan orders, and any two that touch the "
    "same bytes") {
  for (const Layout& layout : layouts())
    for_recorded(layout, true, [](const Plan& plan, const std::vector<GraphNode>& nodes) {
      const Required required(plan);
      CHECK(unordered(required, nodes, paths_of(nodes)) == "");
      size_t named = 0;
      for (const GraphNode& node : nodes) named += !node.work.empty();
      CHECK(named >= plan.size());
    });
}

TEST_CASE("any dropped edge of a recorded step is reported unless another path replaces it") {
  for (const Layout& layout : layouts()) {
    int64_t edges = 0, noticed = 0;
    for_recorded(layout, false, [&](const Plan& plan, const std::vector<GraphNode>& nodes) {
      const Required required(plan);
      const Before whole = paths_of(nodes);
      std::vector<size_t> named;
      for (size_t n = 0; n < nodes.size(); ++n)
        if (!nodes[n].work.empty()) named.push_back(n);
      std::vector<GraphNode> mutant = nodes;
      for (size_t later = 0; later < nodes.size(); ++later)
        for (size_t earlier : nodes[later].behind) {
          ++edges;
          mutant[later].behind.erase(earlier);
          const Before paths = paths_of(mutant);
          const bool lost = std::any_of(named.begin(), named.end(), [&](size_t b) {
            return std::any_of(named.begin(), named.end(), [&](size_t a) { return whole(a, b) && !paths(a, b); });
          });
          if (lost) {
            ++noticed;
            INFO("from node " << earlier << " (item " << nodes[earlier].work << ") to " << later << " (item "
                              << nodes[later].work << ")");
            CHECK_FALSE(unordered(required, mutant, paths).empty());
          }
          mutant[later].behind.insert(earlier);
        }
    });
    CHECK(noticed > 0);
    std::printf("  COUNTED %lld edges, %lld dropped and noticed, %lld without which no work is ordered less: %s\n",
                static_cast<long long>(edges), static_cast<long long>(noticed), static_cast<long long>(edges - noticed),
                layout.name.c_str());
  }
}

TEST_CASE("a graph that loses the order between its streams is reported without a run") {
  fake_cuda::settings().drop_captured_waits = true;
  for (const Layout& layout : layouts())
    for_recorded(layout, true, [](const Plan& plan, const std::vector<GraphNode>& nodes) {
      CHECK_FALSE(unordered(Required(plan), nodes, paths_of(nodes)).empty());
    });
  fake_cuda::settings().drop_captured_waits = false;
}
