// SPDX-License-Identifier: Apache-2.0
// Communication between pieces: its instances, the items that wait for it, and that the declared waits are sufficient.

#include <algorithm>

#include "comm/rehearse/finish.h"
#include "comm/rehearse/hazards.h"
#include "comm/rehearse/seams.h"
#include "engine/plan/passes/passes.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

constexpr int64_t kBytes = 64;

/// A ring of two exchanges under three pieces that read the arriving data, and a sum in place over their output: these
/// are the two kinds of strategy that need such communication.
struct Example {
  Job job;
  Slice own, theirs, sum;

  explicit Example(int micro_batches) {
    job.mesh = Mesh({.tensor = 2});
    job.channels = {{Role::compute, Axis::self}, {Role::ring, Axis::tensor}, {Role::tensor_reduce, Axis::tensor}};
    job.buffers.micro_batches = micro_batches;
    own = add("own", Instances::per_slot, 2);
    theirs = add("theirs", Instances::one, 1);
    sum = add("sum", Instances::per_micro_batch, 1);
    piece("make", {}, {own}).communications = {exchange(own, theirs)};
    piece("first", {own}, {sum}).communications = {exchange(theirs, own)};
    piece("second", {theirs, sum}, {sum});
    piece("third", {own, sum}, {sum}).communications = {{.name = "all_reduce",
                                                         .channel = Role::tensor_reduce,
                                                         .from = sum,
                                                         .to = sum,
                                                         .dtype = DType::bf16,
                                                         .elems = kBytes / 2}};
    piece("other", {own}, {});
    piece("end", {sum}, {});
  }

  Plan plan(const std::vector<uint32_t>& pieces) const {
    Plan result;
    result.kind = "train";
    for (int m = 0; m < job.buffers.micro_batches; ++m)
      for (uint32_t p : pieces) {
        SpineItem item;
        item.name = job.model.pieces[p].name;
        item.piece = p;
        item.micro_batch = m;
        item.slot = m % 2;
        item.cost = {1000, 0};
        for (const Work& work : job.model.pieces[p].works) {
          for (const Slice& slice : work.reads) item.reads.push_back(job.buffers.resolve(slice, {}, m, item.slot));
          for (const Slice& slice : work.writes) item.writes.push_back(job.buffers.resolve(slice, {}, m, item.slot));
        }
        result.spine.push_back(item);
      }
    sublayer_pass(job, result);
    seal(result);
    return result;
  }

  comm::Proof finish(Plan& plan) const {
    const comm::RooflinePrice price({.flops_per_second = 1e9, .bytes_per_second = 0, .launch_ns = 0}, {1e9, 100});
    const std::vector<comm::Stage> stages{{&plan, &job.buffers}};
    return comm::finish(stages, job.mesh, job.channels, price);
  }

 protected:
  Slice add(const std::string& name, Instances instances, int slots) {
    return job.buffers.whole(job.buffers.add(
        {.name = name, .size_bytes = kBytes, .owner = Owner::activations, .instances = instances, .slots = slots}));
  }
  Piece& piece(const std::string& name, std::vector<Slice> reads, std::vector<Slice> writes) {
    job.model.pieces.push_back(
        {.name = name, .layer = 7, .works = {{name, {1000, 0}, std::move(reads), std::move(writes), {}}}, .ready = {}});
    return job.model.pieces.back();
  }
  static Communication exchange(const Slice& from, const Slice& to) {
    return {.name = "exchange",
            .channel = Role::ring,
            .op = Op::exchange,
            .peer = 1,
            .from = from,
            .to = to,
            .elems = kBytes / 4};
  }
};

const std::vector<uint32_t> kAll{0, 1, 2, 3, 4, 5};

}  // namespace

TEST_CASE("communication follows its piece in every instance, and the next access to the same memory waits for it",
          "[sublayer]") {
  const Example ring(2);
  const Plan plan = ring.plan(kAll);
  REQUIRE(plan.tasks.size() == 6);
  const auto spine = static_cast<ItemId>(plan.spine.size());
  for (ItemId m = 0; m < 2; ++m) {
    const Task &hop = plan.tasks[3 * m], &next = plan.tasks[3 * m + 1], &sum = plan.tasks[3 * m + 2];
    CHECK(hop.name == "exchange.7/" + std::to_string(m));
    CHECK(hop.after == std::vector<Point>{{6 * m}});
    CHECK(hop.before == Point{6 * m + 2});  // `first` does not read what the task writes
    CHECK(next.after ==
          std::vector<Point>{{6 * m + 1},
                             {spine + 3 * m}});  // it sends the data of the first exchange before any piece reads it
    CHECK(next.before == Point{6 * m + 3});
    CHECK(sum.after == std::vector<Point>{{6 * m + 3}});
    CHECK(sum.before == Point{6 * m + 5});
    CHECK(sum.reads == sum.writes);
    CHECK(hop.reads[0].begin_bytes == static_cast<int64_t>(m) * kBytes);  // the copy of the slot
    CHECK(sum.reads[0].begin_bytes == static_cast<int64_t>(m) * kBytes);  // the copy of the micro-batch
    CHECK((hop.channel == 1 && next.channel == 1 && sum.channel == 2));
    CHECK((hop.op == Op::exchange && hop.peer == 1 && hop.elems == kBytes / 4 && hop.dtype == DType::f32));
    CHECK((sum.op == Op::all_reduce && sum.dtype == DType::bf16 && sum.elems == kBytes / 2));
  }
}

TEST_CASE("the waits of the pass are complete, and each of them is needed", "[sublayer][mutation]") {
  for (int micro_batches : {1, 2, 3, 5})
    for (const std::vector<uint32_t>& pieces :
         {kAll, std::vector<uint32_t>{0, 1, 2, 3, 5}, std::vector<uint32_t>{0, 4, 1, 2, 3}}) {
      CAPTURE(micro_batches, pieces);
      const Example ring(micro_batches);
      Plan plan = ring.plan(pieces);
      const comm::Proof proof = ring.finish(plan);
      CAPTURE(proof.deadlock, proof.hazards.empty() ? "" : proof.hazards[0].sentence());
      CHECK(proof.holds());
      const std::vector<const Plan*> runs{&plan, &plan, &plan};
      const auto seams = comm::link_all(runs, ring.job.channels);
      const comm::Mutations mutations = comm::mutate_waits({runs, seams}, ring.job.channels, &ring.job.buffers);
      CAPTURE(mutations.redundant_names, mutations.missed_names);
      CHECK(mutations.waits > 0);
      CHECK(mutations.caught == mutations.waits);
    }
}

namespace {

/// Rows go to experts by counts that are gathered first, and come back by the same counts.
struct ExpertsExample : Example {
  Slice rows, counts;
  static constexpr Route kRoute{.experts = 1, .row_elems = 1, .source_rows = 8, .bound_rows = 16};

  explicit ExpertsExample(int micro_batches) : Example(micro_batches) {
    job.model.pieces.clear();
    job.channels[1] = {Role::experts, Axis::tensor};
    rows = add("rows", Instances::one, 1);
    counts = add("counts", Instances::per_micro_batch, 1);
    const Slice own_counts{counts.buffer, counts.begin_bytes, counts.size_bytes / 2};
    Route back = kRoute;
    back.reverse = true;
    piece("router", {own}, {own_counts, sum}).communications = {{.name = "counts",
                                                                 .channel = Role::experts,
                                                                 .op = Op::all_gather,
                                                                 .from = own_counts,
                                                                 .to = counts,
                                                                 .dtype = DType::i32,
                                                                 .elems = kBytes / 8},
                                                                routed("dispatch", sum, rows, kRoute)};
    piece("experts", {rows, counts}, {theirs}).communications = {routed("return", theirs, sum, back)};
    piece("combine", {sum}, {own});
  }
  Communication routed(const std::string& name, const Slice& from, const Slice& to, const Route& route) const {
    return {.name = name,
            .channel = Role::experts,
            .op = Op::all_to_all_v,
            .from = from,
            .to = to,
            .elems = balanced_elems(route, 2),
            .counts = counts,
            .route = route};
  }
};

}  // namespace

TEST_CASE("rows that travel by counts wait for the counts, and every wait of a layer of experts is needed",
          "[sublayer][mutation]") {
  for (int micro_batches : {1, 2, 3}) {
    CAPTURE(micro_batches);
    const ExpertsExample example(micro_batches);
    Plan plan = example.plan({0, 1, 2});
    const auto spine = static_cast<ItemId>(plan.spine.size());
    REQUIRE(plan.tasks.size() == static_cast<size_t>(3 * micro_batches));
    for (int m = 0; m < micro_batches; ++m) {
      const auto first = static_cast<size_t>(3 * m);
      const Task &dispatch = plan.tasks[first + 1], &back = plan.tasks[first + 2];
      const Slice of_micro_batch{example.counts.buffer, m * kBytes, kBytes};
      CHECK((dispatch.op == Op::all_to_all_v && is_communication(dispatch.op)));
      CHECK((dispatch.route == ExpertsExample::kRoute && dispatch.elems == 4));
      CHECK((dispatch.reads.size() == 2 && dispatch.reads[1] == of_micro_batch));
      CHECK((back.route.reverse && back.reads.size() == 2 && back.reads[1] == of_micro_batch));
      const Point counts{spine + static_cast<ItemId>(first)};
      CHECK(std::find(dispatch.after.begin(), dispatch.after.end(), counts) != dispatch.after.end());
    }
    const comm::Proof proof = example.finish(plan);
    CAPTURE(proof.deadlock, proof.hazards.empty() ? "" : proof.hazards[0].sentence());
    CHECK(proof.holds());
    const std::vector<const Plan*> runs{&plan, &plan, &plan};
    const auto seams = comm::link_all(runs, example.job.channels);
    const comm::Mutations mutations = comm::mutate_waits({runs, seams}, example.job.channels, &example.job.buffers);
    CAPTURE(mutations.redundant_names, mutations.missed_names);
    CHECK(mutations.waits > 0);
    CHECK(mutations.caught == mutations.waits);
  }
}

TEST_CASE("a plan gets the communication of the pieces that it runs and no other", "[sublayer]") {
  const Example ring(1);
  CHECK(ring.plan({0, 4}).tasks.size() == 1);
  CHECK_FALSE(ring.plan({0, 4})
                  .tasks[0]
                  .before.has_value());  // no item of this plan waits: the first use in the next plan waits at the seam
  CHECK(ring.plan({4, 5}).tasks.empty());
  Plan forward = ring.plan({0, 1, 2, 3}), check = ring.plan({0, 4});
  ring.finish(forward);
  ring.finish(check);
  const std::vector<const Plan*> runs{&check, &forward, &check};
  const std::vector<std::vector<SeamWait>> seams = comm::link_all(runs, ring.job.channels), none(3);
  CHECK(comm::find_hazards({runs, seams}, ring.job.channels, &ring.job.buffers).count == 0);
  CHECK(comm::find_hazards({runs, none}, ring.job.channels, &ring.job.buffers).count > 0);
}
