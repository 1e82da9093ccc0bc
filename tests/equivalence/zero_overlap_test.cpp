// SPDX-License-Identifier: Apache-2.0
// The share of ZeRO's communication that the plans hide, in virtual time with layers of given durations: no clock is
// read.

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "comm/rehearse/seams.h"
#include "engine/base/format.h"
#include "engine/base/units.h"
#include "engine/config/fields.h"
#include "engine/config/load.h"
#include "engine/config/validate.h"
#include "engine/plan/build_job.h"
#include "engine/report/bounds.h"
#include "tests/defaults.h"
#include "tests/equivalence/trained.h"
#include "tests/test.hpp"
#include "trainer/bench/ablation.h"
#include "trainer/bench/zero.h"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

struct Case {
  int stage = 3, depth = 1, layers = 12;
  int64_t layer_ns = 8 * kMillisecond;  // forward
  double gather = 0.5;                  // of a layer's forward pass
  bool param_gather = true;
  bool clip = true;
  bool update_on_spine = true;
  Format wire = DType::f32;  // of gradients and parameters
  int64_t vocab = 128;       // embedding and head take a seventh of a layer each; no rows are padding
  int micro_batches = 1;
};

struct Seen {
  double step_ms = 0, ideal_ms = 0, compute_ms = 0, gather_ms = 0, exposed_ms = 0;
  std::vector<int> gathered;  // buckets, in the order in which they travel
};

Seen rehearse(const Case& c) {
  models::ModelOptions sizes = tiny_llama();
  sizes.layers = c.layers;
  sizes.width = 64, sizes.ffn_width = 192, sizes.vocab = c.vocab;
  sizes.batch = 1, sizes.ranks = 4, sizes.global_tokens = 36;
  sizes.split_tied_embedding = false;
  sizes.micro_batches = c.micro_batches;
  Buffers buffers;
  ModelSpec model = models::build_model(sizes, buffers);
  Job job = build_job(std::move(model), std::move(buffers),
                      {.sizes = {.data = 4},
                       .bucket_bytes = 64 << 10,
                       .first_bucket_bytes = 16 << 10,
                       .reduce_wire = c.wire,
                       .error_feedback = c.wire == kInt8,
                       .clip = c.clip,
                       .sharding = sharding_of_stage(c.stage),
                       .prefetch_depth = c.depth,
                       .gather_wire = c.wire,
                       .param_gather = c.param_gather,
                       .update_on_spine = c.update_on_spine});
  const std::vector<int64_t> spine_ns = bench::even_spine_ns(job, c.layer_ns);
  const double bandwidth =
      static_cast<double>(bench::layer_gather_bytes(job)) / (c.gather * static_cast<double>(c.layer_ns) * 1e-9);
  constexpr int64_t kLatencyNs = 20 * kMicrosecond;
  // The update is not free: a larger one takes longer.
  const comm::RooflinePrice link({.bytes_per_second = 1e12}, {bandwidth, kLatencyNs});
  const auto finish = [&](Plan& plan, std::vector<int64_t> item_ns) {
    item_ns.resize(plan.size(), -1);
    comm::MeasuredPrice price(link);
    price.set(plan, item_ns);
    const comm::Stage only{&plan, &job.buffers};
    const comm::Proof proof = comm::finish({&only, 1}, job.mesh, job.channels, price);
    REQUIRE(proof.holds());
  };
  finish(job.train(), spine_ns);
  const std::vector<const Plan*> runs(4, &job.train());
  std::vector<int64_t> item_ns = spine_ns;
  item_ns.resize(job.train().size(), -1);
  comm::MeasuredPrice price(link);
  price.set(job.train(), item_ns);
  const std::vector<comm::RankRuns> ranks{{.rank = 0, .runs = runs, .seams = comm::link_all(runs, job.channels)}};
  const comm::Rehearsal played = comm::rehearse(job.mesh, job.channels, ranks, price);
  REQUIRE(played.finished);
  const IdealBound ideal =
      ideal_bound(job, {.bytes_per_second = bandwidth, .latency_ns = kLatencyNs, .ranks = 4, .spine_ns = spine_ns});
  Seen seen{.step_ms = static_cast<double>(played.ranks[0].step_period_ns(2)) / 1e6,
            .ideal_ms = static_cast<double>(ideal.bound_ns) / 1e6,
            .compute_ms = static_cast<double>(ideal.compute_ns) / 1e6};
  for (const Task& task : job.train().tasks)
    if (task.op == Op::all_gather)
      seen.gather_ms +=
          static_cast<double>(comm::wire_bytes(task.op, task.algorithm, 4, task.elems, task.dtype)) / bandwidth * 1e3;
  seen.exposed_ms = seen.step_ms - seen.compute_ms;
  for (ItemId id : job.train().order)
    if (job.train()[id].op == Op::all_gather) seen.gathered.push_back(job.train()[id].bucket);
  return seen;
}

}  // namespace

TEST_CASE("ZeRO-3: a plan is within 8 % of the lower bound, for gathers of a fifth of a layer up to a whole layer",
          "[zero][overlap]") {
  for (bool clip : {true, false})
    for (int depth : {1, 2})
      for (double gather : {0.2, 0.4, 0.6, 0.8, 1.0}) {
        CAPTURE(clip, depth, gather);
        const Seen seen = rehearse({.depth = depth, .gather = gather, .clip = clip});
        std::printf("  clip %d, depth %d, gather %.1f of a layer: step %.1f ms, ideal %.1f, compute %.1f: %.3f\n", clip,
                    depth, gather, seen.step_ms, seen.ideal_ms, seen.compute_ms, seen.step_ms / seen.ideal_ms);
        CHECK(seen.step_ms <= 1.08 * seen.ideal_ms);
        CHECK(seen.step_ms >= seen.ideal_ms * (1 - 1e-9));
        // The control: gathers that begin when compute needs them are exposed, except for the part that hides the
        // first.
        CHECK(rehearse({.depth = depth, .gather = gather, .param_gather = false, .clip = clip}).step_ms >
              seen.step_ms + 0.8 * seen.gather_ms);
      }
}

TEST_CASE("embedding and head as large as two layers travel under layers, in every micro-batch", "[zero][overlap]") {
  for (int micro_batches : {1, 3})
    for (double gather : {0.2, 0.5}) {
      CAPTURE(micro_batches, gather);
      const Case large{.gather = gather, .vocab = 1800, .micro_batches = micro_batches};
      const Seen seen = rehearse(large);
      std::printf(
          "  %d micro-batches, gather %.1f of a layer: step %.1f ms, ideal %.1f, compute %.1f, %.1f ms of gathers\n",
          micro_batches, gather, seen.step_ms, seen.ideal_ms, seen.compute_ms, seen.gather_ms);
      CHECK(seen.step_ms <= 1.08 * seen.ideal_ms);
      // Every plan exposes two transfers once in a step: the sum of the embedding's gradients at its end, and the
      // gather of the embedding before the next step. Each is worth two layers.
      CHECK(seen.exposed_ms < 2 * 2 * gather * 8 + 4);
      Case open = large;
      open.param_gather = false;
      CHECK(rehearse(open).step_ms > seen.step_ms + 0.8 * (seen.gather_ms - 2 * gather * 8));
    }
}

TEST_CASE("int8 on a quarter of the bandwidth is hidden as well as float", "[zero][overlap]") {
  for (int stage : {1, 3})
    for (double gather : {0.2, 0.6, 1.0}) {
      CAPTURE(stage, gather);
      const Seen seen = rehearse({.stage = stage, .gather = gather, .wire = kInt8});
      const Seen in_the_open = rehearse({.stage = stage, .gather = gather, .param_gather = false, .wire = kInt8});
      // Floats on the same link take longer in proportion to their width.
      const double wider =
          4.0 * int64_t{kInt8.block_elems} / static_cast<double>(encoded_bytes(int64_t{kInt8.block_elems}, kInt8));
      const Seen floats = rehearse({.stage = stage, .gather = gather * wider});
      std::printf(
          "  ZeRO-%d, gather %.1f of a layer as int8: step %.1f ms, ideal %.1f, compute %.1f; gathers in the open "
          "%.1f, floats %.1f\n",
          stage, gather, seen.step_ms, seen.ideal_ms, seen.compute_ms, in_the_open.step_ms, floats.step_ms);
      CHECK(seen.step_ms <= 1.08 * seen.ideal_ms);
      CHECK(in_the_open.step_ms > seen.step_ms + 0.8 * seen.gather_ms);
      if (gather * wider > 2) CHECK(floats.step_ms > seen.step_ms + 0.5 * seen.gather_ms);
    }
}

TEST_CASE("24 layers with 2 ms gathers under 8 ms layers: depth 1 hides all but the first", "[zero][overlap]") {
  const Case c{.depth = 1, .layers = 24, .gather = 0.25};
  const Seen seen = rehearse(c);
  std::printf("  step %.2f ms, compute %.2f: %.2f ms exposed of %.2f ms of gathers\n", seen.step_ms, seen.compute_ms,
              seen.exposed_ms, seen.gather_ms);
  // The first gather is the embedding's, a sixth of a layer's: less than one gather of 2 ms is left.
  CHECK(seen.exposed_ms < 2.0);
  // The control: with depth 0 the gather of a layer waits for the slot of the previous one.
  Case none = c;
  none.depth = 0;
  const Seen exposed = rehearse(none);
  std::printf("  depth 0: %.2f ms exposed\n", exposed.exposed_ms);
  CHECK(exposed.exposed_ms > 0.8 * exposed.gather_ms);
}

TEST_CASE("ZeRO-1: at most 5 % of the parameter gather is exposed where compute is long enough to hide it",
          "[zero][overlap]") {
  for (auto [clip, on_spine] : {std::pair{true, true}, {true, false}, {false, true}})
    for (double gather : {0.2, 0.5, 0.8, 1.0}) {
      CAPTURE(clip, on_spine, gather);
      Case c{.stage = 1, .gather = gather, .clip = clip, .update_on_spine = on_spine};
      const Seen seen = rehearse(c);
      c.param_gather = false;
      const Seen exposed = rehearse(c);
      c.stage = 0;
      const Seen without = rehearse(c);
      // Compared with stage 0, a step of stage 1 is longer by the exposed part of its gathers, but shorter by half of
      // its reductions.
      std::printf(
          "  clip %d, update on spine %d, gather %.1f: step %.1f ms (stage 0 %.1f, gathers exposed %.1f), ideal %.1f, "
          "%.1f ms of gathers\n",
          clip, on_spine, gather, seen.step_ms, without.step_ms, exposed.step_ms, seen.ideal_ms, seen.gather_ms);
      CHECK(seen.step_ms - seen.ideal_ms <= 0.05 * seen.gather_ms);
      // The last bucket holds the first parameters. The smallest bucket is not updated first, although its update takes
      // the shortest time.
      CHECK(std::is_sorted(seen.gathered.rbegin(), seen.gathered.rend()));
      CHECK(exposed.step_ms > seen.step_ms + 0.8 * seen.gather_ms);
    }
}

TEST_CASE("bench overlap --ablate changes every key of [overlap] that has more than one value", "[overlap]") {
  std::set<std::string> turned;
  for (const bench::Ablation& knob : bench::ablations()) {
    INFO(knob.key << " = " << knob.value);
    const bool of_stages =
        !knob.has_effect(default_run_config({})) && knob.has_effect(default_run_config({"parallel.pipeline=2"}));
    CHECK_NOTHROW(
        default_run_config({knob.key + "=" + knob.value, of_stages ? "parallel.pipeline=2" : "parallel.pipeline=1"}));
    turned.insert(knob.key);
  }
  for (const Field<RunConfig>& field : run_fields()) {
    if (field.key.rfind("overlap.", 0) != 0) continue;
    INFO(field.key);
    // A link of its own carries rows of experts, which this bench does not measure.
    if (field.key == "overlap.paired_passes") continue;
    const bool has_one_value = std::any_of(supported_rows().begin(), supported_rows().end(),
                                           [&](const SupportedRow& row) { return row.key == field.key; });
    CHECK((turned.count(field.key) > 0) != has_one_value);
  }
}

namespace {

/// The largest number of buckets whose reductions, from the first task to the last, overlap in virtual time.
int buckets_at_once(const Job& job) {
  const comm::RooflinePrice price({.flops_per_second = 5e9, .bytes_per_second = 1e10}, {1e8, 20 * kMicrosecond});
  const std::vector<const Plan*> runs(2, &job.train());
  const std::vector<comm::RankRuns> ranks{{.rank = 0, .runs = runs, .seams = comm::link_all(runs, job.channels)}};
  const comm::Rehearsal played = comm::rehearse(job.mesh, job.channels, ranks, price);
  REQUIRE(played.finished);
  std::map<int32_t, comm::Span> reductions;
  for (ItemId id = 0; id < job.train().size(); ++id) {
    const Item& item = job.train()[id];
    const Role role = job.channels[item.channel].role;
    if (role != Role::reduce && role != Role::reduce_across) continue;
    const comm::Span& span = played.ranks[0].runs[0][id];
    comm::Span& all = reductions.try_emplace(item.bucket, span).first->second;
    all = {std::min(all.start_ns, span.start_ns), std::max(all.end_ns, span.end_ns)};
  }
  int most = 0;
  for (const auto& [bucket, one] : reductions)
    most = std::max(most, static_cast<int>(std::count_if(reductions.begin(), reductions.end(), [&](const auto& other) {
                      return other.second.start_ns <= one.start_ns && one.start_ns < other.second.end_ns;
                    })));
  return most;
}

}  // namespace

TEST_CASE("max_inflight_buckets bounds the buckets that are being reduced", "[zero][overlap]") {
  for (int stage : {1, 2, 3})
    for (const Format& wire : {Format(DType::f32), Format(kInt8)}) {
      CAPTURE(stage, wire.is_scaled());
      Layout layout{.name = "llama", .model = tiny_llama(), .ranks = 4, .zero_stage = stage, .shard_size = 2};
      layout.model.layers = 6, layout.model.split_tied_embedding = false;
      layout.wire_dtype = wire, layout.max_norm = 0;
      const auto at_once = [&](int64_t most) {
        return buckets_at_once(*make_job(with(layout, [&](Layout& l) { l.max_inflight_buckets = most; }), 0));
      };
      CHECK(at_once(0) == 2);  // one inside its group, another across groups
      CHECK(at_once(2) == 2);
      CHECK(at_once(1) == 1);
    }
}
