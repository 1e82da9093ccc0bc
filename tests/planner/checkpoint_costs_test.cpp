// SPDX-License-Identifier: Apache-2.0
// Costs of a checkpoint: the bytes are those of the model, however ranks share them, and the rehearsed time of a
// snapshot is what no step hides.

#include <cmath>

#include "comm/rehearse/rehearse.h"
#include "engine/base/units.h"
#include "engine/config/load.h"
#include "engine/config/machine.h"
#include "engine/plan/memory.h"
#include "tests/defaults.h"
#include "tests/paths.h"
#include "tests/test.hpp"
#include "trainer/planner/forecast/checkpoint_costs.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

using namespace slipstream;
using namespace slipstream::planner;

namespace {

JobRequest request(int world, const std::vector<std::string>& more, bool on_gpus = false) {
  std::vector<std::string> sets{"model.layers=4",           "model.heads=4",
                                "model.width=32",           "model.vocab_size=256",
                                "model.context=16",         "train.sequence_length=16",
                                "train.micro_batch_size=1", "train.global_batch_size=8",
                                "checkpoint.interval=10",   "checkpoint.async=true"};
  sets.insert(sets.end(), more.begin(), more.end());
  return {.config = resolve(default_run_config(sets), {.world = world, .on_gpus = on_gpus}), .machine = this_host(1)};
}

struct Case {
  int world = 1;
  std::vector<std::string> sets;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {{1, {}},
                                        {4, {}},
                                        {4, {"zero.stage=1"}},
                                        {4, {"zero.stage=2"}},
                                        {4, {"zero.stage=3"}},
                                        {4, {"zero.stage=1", "zero.shard_size=2"}},
                                        {4, {"parallel.tensor=2"}},
                                        {4, {"parallel.pipeline=2"}},
                                        {8, {"parallel.pipeline=2", "parallel.tensor=2", "zero.stage=1"}},
                                        {4, {"parallel.context=2"}},
                                        {2, {"train.dtype=bfloat16"}},
                                        {2, {"optimizer.double_buffer=true"}}};
  return all;
}

}  // namespace

TEST_CASE("a checkpoint has master and moments of every element once, on every layout", "[checkpoint]") {
  for (const Case& c : cases()) {
    CAPTURE(c.world, c.sets);
    const JobRequest asked = request(c.world, c.sets);
    const FinishedJob finished = build_finished_job(asked);
    const comm::RooflinePrice price = price_of(*asked.config, asked.machine, finished.job->mesh);
    const int64_t elem_bytes = 3 * 4;  // AdamW has three arrays of float32
    const CheckpointCosts costs = checkpoint_costs(finished, 2, price, asked.config->checkpoint);
    CHECK(costs.disk_bytes == finished.job->parameter_elems * elem_bytes);
    // Snapshots hold padding, too, and on every tensor rank the parameters that these ranks share.
    CHECK(costs.rank_bytes * c.world >= costs.disk_bytes);
    CHECK(costs.host_bytes <= 2 * costs.rank_bytes);
    CHECK(costs.host_bytes >= (c.world > 1 ? costs.rank_bytes + 1 : costs.rank_bytes));
    int64_t all = 0;
    for (int rank = 0; rank < c.world; ++rank) {
      JobRequest of_rank = asked;
      of_rank.rank = rank;
      of_rank.proves = false;
      all += build_finished_job(of_rank).job->buffers.bytes(Owner::snapshot);
    }
    CHECK(checkpoint_costs(finished, c.world, price, asked.config->checkpoint).host_bytes == all);
    REQUIRE(costs.added_ns);
    CHECK(*costs.added_ns >= 0);
  }
}

TEST_CASE("a checkpoint has the residuals of error feedback, which differ on all ranks", "[checkpoint]") {
  constexpr int kRanks = 4;
  const JobRequest asked = request(kRanks, {"comm.quantize=int8", "comm.error_feedback=true"});
  const FinishedJob finished = build_finished_job(asked);
  const CheckpointCosts costs = checkpoint_costs(
      finished, kRanks, price_of(*asked.config, asked.machine, finished.job->mesh), asked.config->checkpoint);
  // Every rank has residuals of whole gradients, and of the sums of which it encodes its part.
  const int64_t residual_bytes = 4 * finished.job->layout.flat_elems;
  CHECK(costs.disk_bytes == finished.job->parameter_elems * 12 + (kRanks + 1) * residual_bytes);
  CHECK(costs.host_bytes >= costs.disk_bytes);
  CHECK(costs.writer_ns == static_cast<int64_t>(0.4 * static_cast<double>(costs.rank_bytes)));
}

TEST_CASE("without a snapshot a checkpoint costs bytes on disk only", "[checkpoint]") {
  const JobRequest asked = request(2, {"checkpoint.async=false"});
  const FinishedJob finished = build_finished_job(asked);
  const CheckpointCosts costs = checkpoint_costs(
      finished, 2, price_of(*asked.config, asked.machine, finished.job->mesh), asked.config->checkpoint);
  CHECK(costs.disk_bytes == finished.job->parameter_elems * 12);
  CHECK(costs.rank_bytes == 0);
  CHECK(costs.host_bytes == 0);
  CHECK(!costs.added_ns);
  CHECK(!finished.job->has(PlanKind::save));
  const FinishedJob saving = build_finished_job(request(2, {}));
  CHECK(saving.job->buffers.total_bytes() ==
        finished.job->buffers.total_bytes() + saving.job->buffers.bytes(Owner::snapshot));
  CHECK(saving.job->channels.size() == finished.job->channels.size() + 1);
}

TEST_CASE("the line of plan has the bytes, and the time if a snapshot is copied", "[checkpoint]") {
  CHECK(text_of({.disk_bytes = 1536 * kMiB}) == "1.50 GiB on disk");
  CHECK(
      text_of({.disk_bytes = 1536 * kMiB, .rank_bytes = 192 * kMiB, .host_bytes = 1536 * kMiB, .added_ns = 260'000}) ==
      "1.50 GiB on disk, 192.0 MiB of host memory per rank (1.50 GiB per host); copying it adds 0.3 ms to a step");
}

TEST_CASE("a limited rate gives the time of a write, and a remark if an interval is shorter", "[checkpoint]") {
  const JobRequest asked = request(4, {"zero.stage=1", "checkpoint.bandwidth=1MB/s"});
  const FinishedJob finished = build_finished_job(asked);
  const Checkpoint& options = asked.config->checkpoint;
  const CheckpointCosts costs =
      checkpoint_costs(finished, 2, price_of(*asked.config, asked.machine, finished.job->mesh), options);
  REQUIRE(costs.write_seconds);
  CHECK(*costs.write_seconds == static_cast<double>(costs.rank_bytes) / 1e6);
  CHECK(text_of({.disk_bytes = kMiB, .write_seconds = 9.87}) ==
        "1.0 MiB on disk; writing it takes 9.9 s at checkpoint.bandwidth");
  CHECK(!write_seconds(finished, {}));
  CHECK(!write_seconds(build_finished_job(request(4, {"checkpoint.async=false"})), options));

  CHECK(short_interval({.interval = 10}, 60, 6.1).empty());
  CHECK(short_interval({.interval = 10}, 60, 5.9)
            .find("takes 60.0 s at checkpoint.bandwidth, longer than the 59.0 s of "
                  "checkpoint.interval = 10 steps") != std::string::npos);
  CHECK(short_interval({.interval = 10}, 60, 0).empty());  // the step is unknown
  CHECK(short_interval({.interval = 10}, {}, 1).empty());
  CHECK(short_interval({.interval_minutes = 1}, 61, 0).find("checkpoint.interval_minutes = 1,") != std::string::npos);
  CHECK(short_interval({.interval_minutes = 1}, 59, 0).empty());
  const ResolvedConfig waiting = request(1, {"checkpoint.async=false", "checkpoint.bandwidth=1MB/s"}).config;
  REQUIRE(waiting.without_effect().size() == 1);
  CHECK(waiting.without_effect()[0].find("has no effect with checkpoint.async = false") != std::string::npos);
}

TEST_CASE("a GPU's memory holds no snapshot", "[checkpoint]") {
  const FinishedJob saving = build_finished_job(request(1, {}, true)),
                    finished = build_finished_job(request(1, {"checkpoint.async=false"}, true));
  CHECK(saving.job->buffers.bytes(Owner::snapshot) > 0);
  CHECK(saving.job->buffers.total_bytes() == finished.job->buffers.total_bytes());
  CHECK(memory_table(*saving.job).find("snapshot") == std::string::npos);
}

TEST_CASE("the rehearsal charges a snapshot for what the step does not hide", "[checkpoint]") {
  for (const Case& c : cases()) {
    CAPTURE(c.world, c.sets);
    const JobRequest asked = request(c.world, c.sets);
    const FinishedJob finished = build_finished_job(asked);
    const comm::Rates rates{.flops_per_second = 1e10, .bytes_per_second = 1e10};
    const auto added_ns = [&](double snapshot_bytes_per_second) {
      comm::Rates with = rates;
      with.snapshot_bytes_per_second = snapshot_bytes_per_second;
      return static_cast<double>(*checkpoint_costs(finished, 2, comm::RooflinePrice(with, {1e9, 20000}), {}).added_ns);
    };
    const comm::Rehearsal steps =
        comm::rehearse(finished.job->mesh, finished.job->channels, runs_of(finished.stages, 3),
                       comm::RooflinePrice(rates, {1e9, 20000}), {.gate = comm::Gate::launch_order});
    const auto step_ns = static_cast<double>(steps.ranks[0].step_period_ns(1));
    double most_bytes = 0;  // that the copies of a stage move
    for (const auto& stage : finished.stages) {
      double bytes = 0;
      for (const Task& task : stage->plan(PlanKind::save).tasks) bytes += static_cast<double>(task.cost.bytes);
      most_bytes = std::max(most_bytes, bytes);
    }
    // Copies of a thousandth of the step are hidden, and of copies of three steps at least one is not.
    CHECK(added_ns(most_bytes / (step_ns / 1e9 / 1000)) < step_ns / 100);
    const double copies_ns = 3 * step_ns, added = added_ns(most_bytes / (copies_ns / 1e9));
    CHECK(added > copies_ns - 2 * step_ns);
    CHECK(added < copies_ns + step_ns / 100);
  }
}

TEST_CASE("snapshots in memory: two copies of every slot, and each rank sends one slot", "[keeping]") {
  for (const Case& c : cases()) {
    CAPTURE(c.world, c.sets);
    for (const int64_t interval : {1, 3}) {
      JobRequest asked = request(c.world, c.sets);
      std::vector<std::string> sets = c.sets;
      sets.push_back("checkpoint.peer_interval=" + std::to_string(interval));
      asked = request(c.world, sets);
      asked.machine.ranks_per_node = 2;
      const FinishedJob finished = build_finished_job(asked);
      const KeepingCosts costs =
          keeping_costs(finished, interval, 2, price_of(*asked.config, asked.machine, finished.job->mesh));
      const int64_t slots = 2, copies = c.world > 1 ? 2 : 1;
      CHECK(costs.rank_bytes == slots * copies * finished.job->keeping.slot_bytes);
      CHECK(costs.host_bytes == std::min(2, c.world) * costs.rank_bytes);
      CHECK(costs.sent_bytes == (c.world > 1 ? finished.job->keeping.slot_bytes : 0));
      // All slots together hold the whole state. A slot is larger than the largest part of a stage by at most a header
      // and padding.
      CHECK(c.world * finished.job->keeping.slot_bytes >= finished.job->parameter_elems * 3 * 4);
      CHECK(costs.holder_is_elsewhere == (c.world > 2));
      REQUIRE(costs.added_ns);
      CHECK(*costs.added_ns >= 0);
    }
  }
}

TEST_CASE("a snapshot that a link cannot carry beside a step delays the next one by the difference", "[keeping]") {
  const JobRequest asked = request(4, {"checkpoint.peer_interval=1"});
  const FinishedJob finished = build_finished_job(asked);
  const double slot_bytes = static_cast<double>(finished.job->keeping.slot_bytes);
  const auto added_ns = [&](double bytes_per_second) {
    const comm::RooflinePrice price({.flops_per_second = 1e9}, {bytes_per_second, 0});
    return *keeping_costs(finished, 1, 1, price).added_ns;
  };
  CHECK(added_ns(1e15) == 0);
  // The copies travel after the reductions of a step, which need their part of the link: a step lasts at least as long
  // as the slot.
  const double slow = 1e6;
  const auto plain = comm::rehearse(finished.job->mesh, finished.job->channels, runs_of(finished.stages, 4),
                                    comm::RooflinePrice({.flops_per_second = 1e9}, {slow, 0}), {});
  const double step_ns = static_cast<double>(plain.ranks[0].step_period_ns(1));
  CHECK(static_cast<double>(added_ns(slow)) >= slot_bytes / slow * 1e9 - step_ns);
  CHECK(static_cast<double>(added_ns(slow)) <= 1.05 * slot_bytes / slow * 1e9);
}

TEST_CASE("the line of plan about snapshots in memory", "[keeping]") {
  KeepingCosts costs{.interval = 1,
                     .to_holder = 8,
                     .rank_bytes = 6 * kMiB,
                     .host_bytes = 48 * kMiB,
                     .sent_bytes = kMiB,
                     .added_ns = 250'000};
  CHECK(text_of(costs) ==
        "every step, 1.0 MiB from rank r to rank r + 8; 6.0 MiB of host memory per rank (48.0 MiB per host); adds "
        "0.2 ms to such a step");
  costs = {.interval = 5, .holder_is_elsewhere = false, .rank_bytes = 6 * kMiB, .host_bytes = 6 * kMiB};
  CHECK(text_of(costs) ==
        "every 5 steps; 6.0 MiB of host memory per rank (6.0 MiB per host); both copies of some ranks are on one "
        "host, whose loss loses them");
}

TEST_CASE("snapshots of GPUs are in host memory and travel between hosts", "[keeping]") {
  for (const Case& c : cases())
    for (const int64_t ranks_per_node : {2, 8}) {
      CAPTURE(c.world, c.sets, ranks_per_node);
      std::vector<std::string> sets = c.sets;
      sets.push_back("overlap.bucket_size=8KiB");
      sets.push_back("overlap.first_bucket_size=8KiB");
      JobRequest asked = request(c.world, sets, true);
      asked.machine = load_machine(source_dir() + "/configs/machines/h100x8.toml");
      asked.machine.ranks_per_node = ranks_per_node;
      const FinishedJob without = build_finished_job(asked);
      sets.push_back("checkpoint.peer_interval=1");
      asked.config = request(c.world, sets, true).config;
      const FinishedJob finished = build_finished_job(asked);
      const Job& job = *finished.job;
      CHECK(job.buffers.total_bytes() == without.job->buffers.total_bytes());
      CHECK(memory_table(job).find("kept") == std::string::npos);
      CHECK(finished.engines.channels.size() == without.engines.channels.size());
      const comm::RooflinePrice price = price_of(*asked.config, asked.machine, job.mesh);
      const KeepingCosts costs = keeping_costs(finished, 1, ranks_per_node, price);
      CHECK(costs.rank_bytes == 2 * (c.world > 1 ? 2 : 1) * job.keeping.slot_bytes);
      CHECK(costs.host_bytes == std::min<int64_t>(ranks_per_node, c.world) * costs.rank_bytes);
      REQUIRE(costs.added_ns);
      CHECK(*costs.added_ns >= 0);
      // Copies by PCIe have 20 GB/s. A host hashes at 10 GB/s and copies twice at 5; its adapter has the machine's
      // rate.
      const bool crosses = c.world > ranks_per_node;
      const double sent = crosses ? static_cast<double>(asked.machine.inter_bytes_per_second) : 5e9;
      int64_t exchanged = 0;
      const Plan& keep = job.plan(PlanKind::keep);
      for (ItemId i = 0; i < keep.size(); ++i) {
        const Task& task = keep.task(i);
        const auto ns_at = [&](int64_t bytes, double rate) {
          return static_cast<int64_t>(std::ceil(static_cast<double>(bytes) * 1e9 / rate));
        };
        if (task.op == Op::snapshot)
          CHECK(price.local_ns(keep, i) == asked.machine.launch_ns + ns_at(task.cost.bytes / 2, 20e9));
        if (task.op == Op::seal)
          CHECK(price.local_ns(keep, i) == asked.machine.launch_ns + ns_at(job.keeping.arrays_bytes, 10e9));
        if (task.op != Op::exchange) continue;
        exchanged += 4 * task.elems;
        CHECK(price.wire(keep, i, job.channels[task.channel].axis, c.world).wire_ns == ns_at(4 * task.elems, sent));
      }
      CHECK(exchanged == costs.sent_bytes);
    }
}
