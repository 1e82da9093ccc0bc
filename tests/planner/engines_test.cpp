// SPDX-License-Identifier: Apache-2.0
// Engines of channels: the table of GPU models, settings that override it, and the price of multiprocessors that
// transfers occupy.

#include "trainer/planner/options/engines.h"

#include <cstdlib>
#include <filesystem>

#include <fmt/core.h>

#include "comm/nccl/card_table.h"
#include "engine/config/load.h"
#include "engine/config/machine.h"
#include "tests/defaults.h"
#include "tests/paths.h"
#include "tests/test.hpp"
#include "trainer/planner/planner.h"

using namespace slipstream;
using namespace slipstream::planner;
using comm::CardLink;
using comm::NcclPolicy;
using comm::NcclTable;

namespace {

Machine machine_named(const std::string& name) {
  return load_machine(source_dir() + "/configs/machines/" + name + ".toml");
}

JobRequest request(const std::vector<std::string>& more, int ranks = 8, const std::string& table = "",
                   const std::string& machine = "h100x8", bool on_gpus = true) {
  std::vector<std::string> sets{"model.layers=12",           "model.heads=12",       "model.width=768",
                                "model.vocab_size=50257",    "train.dtype=bfloat16", "train.micro_batch_size=4",
                                "train.global_batch_size=64"};
  sets.insert(sets.end(), more.begin(), more.end());
  return {.config = resolve(default_run_config(sets), {.world = ranks, .on_gpus = on_gpus}),
          .machine = machine_named(machine),
          .nccl = NcclTable::parse(table.empty() ? "" : "{\"channels\": {\"*\": " + table + "}}", "table")};
}

const ChannelEngine& engine_of(const FinishedJob& finished, const std::string& channel) {
  for (const ChannelEngine& chosen : finished.engines.channels)
    if (chosen.name == channel) return chosen;
  FAIL("no channel " << channel);
  return finished.engines.channels.front();
}

int64_t step_ns(const JobRequest& asked) { return step_period_ns(asked, build_finished_job(asked), false); }

}  // namespace

TEST_CASE("engines: the table has rows for the GPU model of every machine file with GPUs, wide enough for its links",
          "[nccl]") {
  int cards = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/configs/machines")) {
    const Machine machine = load_machine(entry.path().string());
    CAPTURE(machine.name);
    CHECK((machine.multiprocessors > 0) == (machine.device == MachineDevice::cuda));
    if (machine.device != MachineDevice::cuda) CHECK(machine.card == Card::other);
    if (machine.card == Card::other) continue;  // NCCL chooses by itself
    ++cards;
    // The LL128 rate of a block, from NCCL's source.
    const double block_rate = machine.card == Card::a100 ? 20e9 : 36.7e9;
    for (const auto& [link, rate] : {std::pair{CardLink::node, machine.intra_bytes_per_second},
                                     {CardLink::network, machine.inter_bytes_per_second}}) {
      const comm::CardShare* share = comm::card_share(machine.card, link);
      REQUIRE(share);
      const double need = 1.25 * static_cast<double>(rate) / block_rate;
      CHECK(share->max_ctas >= need);
      CHECK(share->max_ctas - 4 < need);
      CHECK(share->max_ctas % std::max(4, share->cluster_size) == 0);
      CHECK((share->cluster_size > 0) == (machine.card != Card::a100));
    }
    REQUIRE(comm::card_share(machine.card, CardLink::both));
    CHECK(comm::card_share(machine.card, CardLink::both)->max_ctas == 2 * machine.ranks_per_node);
  }
  CHECK(cards >= 4);
  CHECK(comm::card_share(Card::other, CardLink::node) == nullptr);
  CHECK(card_of("NVIDIA H100 80GB HBM3") == Card::h100);
  CHECK(card_of("NVIDIA H200") == Card::h200);
  CHECK(card_of("NVIDIA A100-SXM4-80GB") == Card::a100);
  CHECK(card_of("NVIDIA A10") == Card::other);
}

TEST_CASE("engines: settings of comm.nccl win, and the table completes the others as a whole", "[nccl]") {
  const auto with = [](const comm::NcclChannel& written, bool gathers = false, int version = 0, int ranks = 8) {
    return comm::completed(written, {Card::h100, CardLink::node, ranks, gathers}, version);
  };
  CHECK((with({}).max_ctas == 16 && with({}).cluster_size == 2 && with({}).policy == NcclPolicy::unset));
  CHECK((with({.max_ctas = 3}).max_ctas == 3 && with({.max_ctas = 3}).cluster_size == 2));
  CHECK(with({.max_ctas = 1}).cluster_size == 1);
  CHECK(with({.min_ctas = 24}).max_ctas == 24);
  CHECK((with({.cluster_size = 0}).cluster_size == 0 && with({.cluster_size = 0}).max_ctas == 16));
  CHECK(with({}, true).policy == NcclPolicy::zero);
  CHECK(with({.policy = NcclPolicy::standard}, true).policy == NcclPolicy::standard);
  CHECK(with({}, true, 22800).policy == NcclPolicy::zero);
  CHECK(with({}, true, 22799).policy == NcclPolicy::unset);
  CHECK(comm::completed({}, {Card::h100, CardLink::both, 16, true}, 0).policy == NcclPolicy::unset);
  CHECK(comm::completed({}, {Card::other, CardLink::node, 8, true}, 0).max_ctas == 0);
  // NCCL issue 2241: versions 2.29 to 2.31.1 can hang in the first copy between two ranks.
  for (int version : {22900, 22907, 23004, 23101}) {
    CHECK(with({}, true, version, 2).policy == NcclPolicy::unset);
    CHECK(with({}, true, version, 3).policy == NcclPolicy::zero);
    CHECK(with({.policy = NcclPolicy::zero}, true, version, 2).policy == NcclPolicy::zero);
  }
  for (int version : {0, 22809, 23102, 23200}) CHECK(with({}, true, version, 2).policy == NcclPolicy::zero);
}

TEST_CASE("engines: two ranks gather by blocks where NCCL can hang in copies, and the plan names the reason",
          "[nccl]") {
  const auto gather = [](int version, int ranks, const std::string& table = "") {
    JobRequest asked = request({"zero.stage=2"}, ranks, table);
    asked.nccl_version = version;
    return engine_of(build_finished_job(asked), "gather");
  };
  const std::string hang = "copies between two ranks can hang in NCCL 2.30.7, fixed in 2.31.2";
  CHECK(gather(23007, 2).engine == Engine::sm);
  CHECK(gather(23007, 2).why == "H100, NVLink; " + hang);
  CHECK(gather(23007, 4).why == "H100, NVLink");
  CHECK(gather(23102, 2).engine == Engine::copy);
  CHECK(gather(23007, 2, R"({"policy": "zero"})").engine == Engine::copy);
  CHECK(gather(23007, 2, R"({"policy": "zero"})").why == "comm.nccl; " + hang);
}

TEST_CASE("engines: every channel of a job on GPUs has an engine with its origin, and none on CPUs", "[nccl]") {
  const FinishedJob inside = build_finished_job(request({"zero.stage=2"}));
  CHECK(engine_lines(inside.engines, machine_named("h100x8")).size() == inside.engines.channels.size() + 1);
  CHECK(engine_of(inside, "reduce").engine == Engine::sm);
  CHECK(engine_of(inside, "reduce").blocks == 16);
  CHECK(engine_of(inside, "reduce").why == "H100, NVLink");
  CHECK(engine_of(inside, "gather").engine == Engine::copy);
  CHECK(engine_of(inside, "gather").blocks == 0);
  CHECK(inside.engines.nccl.of("gather").policy == NcclPolicy::zero);
  for (const ChannelEngine& chosen : inside.engines.channels) {
    CHECK(inside.job->channels[chosen.channel].engine == chosen.engine);
    CHECK(inside.job->channels[chosen.channel].blocks == chosen.blocks);
  }
  const FinishedJob across = build_finished_job(request({"zero.stage=2"}, 16));
  CHECK(engine_of(across, "gather").engine == Engine::sm);
  CHECK(engine_of(across, "gather").why == "H100, NVLink and network");
  const FinishedJob hybrid = build_finished_job(request({"zero.stage=2", "zero.shard_size=8"}, 16));
  CHECK(engine_of(hybrid, "reduce_across").blocks == 4);
  CHECK(engine_of(hybrid, "reduce_across").why == "H100, network");

  const FinishedJob asked = build_finished_job(request({"zero.stage=2"}, 8, R"({"max_ctas": 6, "policy": "default"})"));
  CHECK((engine_of(asked, "gather").engine == Engine::sm && engine_of(asked, "gather").blocks == 6));
  CHECK(engine_of(asked, "reduce").why == "comm.nccl");
  setenv("NCCL_MAX_CTAS", "2", 1);
  CHECK(engine_of(build_finished_job(request({})), "reduce").blocks == 2);
  CHECK(engine_of(build_finished_job(request({})), "reduce").why == "NCCL_MAX_CTAS or NCCL_MAX_NCHANNELS");
  unsetenv("NCCL_MAX_CTAS");

  for (const auto& [form, engine, blocks] :
       {std::tuple{"gate", Engine::nic, 0}, {"copies", Engine::copy, 0}, {"blocks", Engine::sm, 4}}) {
    const FinishedJob emulated =
        build_finished_job(request({"comm.emulate.bandwidth=100Gbit/s", std::string("comm.emulate.form=") + form}));
    CHECK((engine_of(emulated, "reduce").engine == engine && engine_of(emulated, "reduce").blocks == blocks));
  }
  CHECK(build_finished_job(request({}, 8, "", "laptop", false)).engines.channels.empty());
  CHECK(build_finished_job(request({}, 1)).engines.channels.empty());
}

TEST_CASE("engines: transfers by blocks make a step slower, the more blocks the slower, and leave its order",
          "[nccl]") {
  for (const std::vector<std::string>& sets : {std::vector<std::string>{},
                                               {"zero.stage=1"},
                                               {"zero.stage=3"},
                                               {"parallel.tensor=2"},
                                               {"parallel.pipeline=2"}}) {
    CAPTURE(sets);
    JobRequest asked = request(sets, 8, R"({"max_ctas": 4, "policy": "default"})");
    asked.machine.intra_bytes_per_second = 20'000'000'000;  // so that transfers accompany much of the step
    asked.machine.attention_efficiency = 0;  // prices by shape would depend on the number of multiprocessors
    // The update stays at one place, whatever the price.
    const auto rehearsed = [](const JobRequest& one, const FinishedJob& job) {
      return step_period_ns(one, job, false);
    };
    JobRequest unpriced = asked;
    unpriced.machine.multiprocessors = 0;
    const FinishedJob unslowed = build_job_with_update(unpriced, {});
    const int64_t free_ns = rehearsed(unpriced, unslowed);
    int64_t last_ns = free_ns;
    for (int blocks : {4, 16, 48}) {
      asked.nccl = request({}, 8, fmt::format(R"({{"max_ctas": {}, "policy": "default"}})", blocks)).nccl;
      const FinishedJob slowed = build_job_with_update(asked, {});
      const int64_t priced_ns = rehearsed(asked, slowed);
      CAPTURE(blocks, last_ns, priced_ns);
      CHECK(priced_ns > last_ns);
      for (size_t s = 0; s < slowed.stages.size(); ++s)
        CHECK(slowed.stages[s]->train().order == unslowed.stages[s]->train().order);
      last_ns = priced_ns;
    }
    // The whole card cannot be slower by more than the share that 48 blocks take.
    CHECK(last_ns <= free_ns * 132 / (132 - 48) + 1000);
  }
}

TEST_CASE("engines: transfers without blocks leave the rehearsed step as it is", "[nccl]") {
  for (const char* form : {"gate", "copies"}) {
    JobRequest asked = request({"comm.emulate.bandwidth=100Gbit/s", std::string("comm.emulate.form=") + form});
    asked.machine.attention_efficiency = 0;  // prices by shape would depend on the number of multiprocessors
    const int64_t priced_ns = step_ns(asked);
    CHECK(build_finished_job(asked).engines.products == 0);
    asked.machine.multiprocessors = 0;
    CHECK(step_ns(asked) == priced_ns);
  }
  // A CPU has no card, whatever its machine file names.
  JobRequest cpu = request({}, 8, "", "laptop", false);
  const int64_t plain_ns = step_ns(cpu);
  cpu.machine.multiprocessors = 132;
  cpu.machine.card = Card::h100;
  CHECK(step_ns(cpu) == plain_ns);
}

TEST_CASE("engines: products beside transfers are planned for the other multiprocessors, others for all of them",
          "[cuda]") {
  JobRequest asked = request({"zero.stage=0"});
  asked.machine.intra_bytes_per_second = 50'000'000'000;
  const FinishedJob finished = build_finished_job(asked);
  const Job& job = *finished.job;
  int64_t planned = 0, forward = 0;
  for (const SpineItem& item : job.train().spine) {
    CHECK((item.multiprocessors == 0 || item.multiprocessors == 132 - 16));
    planned += item.multiprocessors > 0;
  }
  // Under the forward pass of the first micro-batch nothing travels but the end of the step before.
  for (const SpineItem& item : job.plan(PlanKind::evaluate).spine) forward += item.multiprocessors;
  CHECK(forward == 0);
  CHECK(planned > 0);
  CHECK(planned < std::ssize(job.train().spine));
  CHECK(finished.engines.products_planned == planned);
  CHECK(finished.engines.products == 116);
  for (size_t i = 0; i < job.plan(PlanKind::train, 1).spine.size(); ++i)
    CHECK(job.plan(PlanKind::train, 1).spine[i].multiprocessors == job.train().spine[i].multiprocessors);
  CHECK(build_finished_job(request({}, 1)).engines.products == 0);
}
