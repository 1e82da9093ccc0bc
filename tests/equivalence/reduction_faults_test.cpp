// SPDX-License-Identifier: Apache-2.0
// Faults that the hazard proof accepts: the proof of reductions refuses each with the tensor and its fault.

#include <algorithm>
#include <cstdio>
#include <functional>

#include "tests/equivalence/reductions.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

/// A fault in the plans of every stage.
struct Fault {
  const char* what;
  const char* row;  // a layout of strategies()
  std::function<void(Job&)> make;
  const char* tensor;    // that the sentence names; empty: any
  const char* fragment;  // that the sentence contains
};

void for_tasks(Job& job, const std::string& prefix, const std::function<void(Task&)>& change) {
  for (Task& task : job.train().tasks)
    if (task.name.starts_with(prefix)) change(task);
}

std::function<void(Job&)> without(const std::string& prefix) {
  return [prefix](Job& job) { for_tasks(job, prefix, make_nothing); };
}

std::function<void(Job&)> over(Role role, Axis axis) {
  return [=](Job& job) {
    for (Channel& channel : job.channels)
      if (channel.role == role) channel.axis = axis;
  };
}

/// Reduces over another axis what the channel of `from` reduces.
std::function<void(Job&)> moved(Axis from, Axis to) {
  return [=](Job& job) {
    for (Channel& channel : job.channels)
      if (channel.role == Role::reduce && channel.axis == from) channel.axis = to;
  };
}

std::function<void(Job&)> declared(const std::string& work, const std::function<void(Meaning&)>& change) {
  return [=](Job& job) {
    for (Piece& piece : job.model.pieces)
      for (Work& each : piece.works)
        if (each.name == work) change(each.meaning);
  };
}

/// Reduces the sum of every micro-batch of a bucket over groups, as if it were the last.
void reduce_across_always(Job& job) {
  Plan& plan = job.train();
  for (ItemId id = static_cast<ItemId>(plan.spine.size()), end = static_cast<ItemId>(plan.size()); id < end; ++id)
    if (const Task task = plan.task(id); task.name.starts_with("reduce_across"))
      for (ItemId other = static_cast<ItemId>(plan.spine.size()); other < end; ++other)
        if (plan.task(other).bucket == task.bucket && plan.task(other).op == Op::reduce_scatter &&
            plan.task(other).name.ends_with("/0"))
          return repeat(plan, id, other);
}

/// Copies bytes of the size of the first saved array inside a step, right before a task whose name begins with
/// `prefix`.
std::function<void(Job&)> saved_before(const std::string& prefix,
                                       const std::function<Slice(const BucketStorage&)>& from) {
  return [=](Job& job) {
    Plan& plan = job.train();
    Task copy = job.plan(PlanKind::save).tasks.at(0);
    const Slice slice = from(job.storage[static_cast<size_t>(copy.bucket)]);
    copy.reads = {{slice.buffer, slice.begin_bytes, copy.writes[0].size_bytes}};
    const auto at = std::find_if(plan.order.begin(), plan.order.end(),
                                 [&](ItemId id) { return plan[id].name.starts_with(prefix); });
    REQUIRE(at != plan.order.end());
    plan.tasks.push_back(std::move(copy));
    plan.order.insert(at, static_cast<ItemId>(plan.size() - 1));
  };
}

std::function<void(Job&)> placed(const std::function<void(Placement&)>& change) {
  return [=](Job& job) {
    for (ParameterGroup& group : job.groups) change(group.placement);
  };
}

/// Of the plan that keeps: exchanges the sources of two tasks of one bucket.
void keep_exchanged(Job& job, const std::string& one, const std::string& other) {
  Plan& plan = job.plan(PlanKind::keep);
  const auto task = [&](const std::string& name) {
    return std::find_if(plan.tasks.begin(), plan.tasks.end(), [&](const Task& each) { return each.name == name; });
  };
  REQUIRE((task(one) != plan.tasks.end() && task(other) != plan.tasks.end()));
  std::swap(task(one)->reads, task(other)->reads);
}

void header_before_a_piece(Job& job) {
  std::vector<ItemId>& order = job.plan(PlanKind::keep).order;
  const auto find = [&](const char* prefix) {
    return std::find_if(order.begin(), order.end(),
                        [&](ItemId id) { return job.plan(PlanKind::keep)[id].name.starts_with(prefix); });
  };
  std::rotate(find("keep.piece"), find("keep.piece") + 1, find("keep.header") + 1);
}

const std::vector<Fault>& faults() {
  static const std::vector<Fault> kFaults{
      {"no sum across groups", "gpt2 ZeRO-1 in groups of 2 of 4, 2 micro-batches", without("reduce_across"), "",
       "summed over data_inner but not over data_outer"},
      {"a sum across groups in every micro-batch", "gpt2 ZeRO-3 in groups of 2 of 4, 2 micro-batches",
       reduce_across_always, "", "summed over replica"},
      {"gradient slots accumulate", "llama ZeRO-2, 2 micro-batches, update beside the spine",
       [](Job& job) {
         for (SpineItem& item : job.train().spine) item.accumulate = item.micro_batch > 0;
       },
       "", "different elements"},
      {"a shard is not added to the sum", "llama ZeRO-2, 2 micro-batches, update beside the spine",
       [](Job& job) { for_tasks(job, "add.", [](Task& task) { task.writes = {task.reads[0]}; }); }, "",
       "micro-batch 1 twice"},
      {"the last micro-batch replaces", "gpt2 tensor 2, 2 chunks, 2 micro-batches",
       [](Job& job) {
         for (SpineItem& item : job.train().spine) item.accumulate = false;
       },
       "", "without all rows of micro-batch 0"},
      {"the embedding's share is not summed", "gpt2 bucketed", without("all_gather.embedding_rows"), "embedding.rows",
       "nothing complete was written"},
      {"a tied copy does not get the sum", "gpt2 1f1b 2 x data 2, stages reduce together",
       [](Job& job) {
         for (Task& task : job.train().tasks)
           if (task.name.find("tied_sum") != std::string::npos) make_nothing(task);
       },
       "transformer.wte.weight", "without its use as the embedding"},
      {"reduced over data, not over replicas", "gpt2 context 2 x data 2, ZeRO-3, 2 micro-batches",
       over(Role::reduce, Axis::data), "", "context"},
      {"the norm of groups is summed over all replicas", "gpt2 ZeRO-1 in groups of 2 of 4, 2 micro-batches",
       [](Job& job) {
         for_tasks(job, "all_reduce.norm", [&](Task& task) { job.channels[task.channel].axis = Axis::replica; });
       },
       "", "counted 2 times in the norm"},
      {"updated weights are not gathered", "gpt2 ZeRO-1, update beside the spine", without("all_gather.bucket"), "",
       "is not that of the next step"},
      {"norms of heads are not summed over tensor", "qwen tensor 2",
       [](Job& job) {
         for (Task& task : job.train().tasks)
           if (!task.writes.empty() && job.buffers[task.writes[0].buffer].name == "head_norm.partial")
             make_nothing(task);
       },
       "q_norm", "over tensor"},
      {"every rank adds the bias", "gpt2 tensor 2, 2 chunks, 2 micro-batches",
       declared("matmul", [](Meaning& meaning) { meaning.once = -1; }), "attn.c_proj.bias", "by every rank"},
      {"every rank adds the positions", "gpt2 tensor 2, 2 chunks, 2 micro-batches",
       declared("embedding", [](Meaning& meaning) { meaning.once = -1; }), "transformer.wpe.weight", "by every rank"},
      {"every rank counts the losses", "gpt2 tensor 2, 2 chunks, 2 micro-batches",
       declared("add_loss", [](Meaning& meaning) { meaning.once = -1; }), "", "count 2 times"},
      {"the loss is a mean over a rank's own tokens", "gpt2 bucketed",
       [](Job& job) {
         declared("cross_entropy",
                  [&](Meaning& meaning) { meaning.mean_over /= job.mesh.group_size(Axis::replica); })(job);
       },
       "", "mean over"},
      {"the loss of ranks that share a vocabulary has another factor", "gpt2 tensor 2, 2 chunks, 2 micro-batches",
       declared("cross_entropy_merge", [](Meaning& meaning) { meaning.mean_over *= 2; }), "", "mean over"},
      {"rounding is not fed back", "gpt2 int8 gradients fed back",
       [](Job& job) { for_tasks(job, "encode.", [](Task& task) { task.reads.resize(1), task.writes.resize(1); }); }, "",
       "rounding"},
      {"norm weights of own tokens are not summed over tensor",
       "gpt2 tensor 2, sequence parallel, recompute full, 2 chunks, 2 micro-batches",
       without("all_reduce.norm_1_gradient"), "ln_1", "over tensor"},
      {"later chunks of tokens replace the gradient of a norm",
       "gpt2 tensor 2, sequence parallel, recompute full, 2 chunks, 2 micro-batches",
       declared("layer_norm_gradient", [](Meaning& meaning) { meaning.adds = Adds::never; }), "", "without all rows"},
      {"a work does not declare what it computes", "gpt2 bucketed",
       declared("layer_norm", [](Meaning& meaning) { meaning = {}; }), "", "nothing complete was written"},
  };
  return kFaults;
}

const std::vector<Fault>& faults_of_experts() {
  static const std::vector<Fault> kFaults{
      {"tokens are gathered from the ranks that hold the same experts",
       "qwen3_moe experts over 2 of 4, gathered tokens, a shared expert, ZeRO-1, recompute full",
       over(Role::experts, Axis::expert_data), "", "of expert_data, of micro-batch 0, but the weight is"},
      {"a rank's outputs of all tokens are taken for sums", "mixtral experts over 2, gathered tokens, 2 micro-batches",
       declared("return_rows", [](Meaning& meaning) { meaning.rule = Rule::rows; }), "",
       "which has no terms on the ranks of expert"},
      {"gathered tokens are taken for rows of experts", "mixtral experts over 2, gathered tokens, 2 micro-batches",
       declared("arrange_rows", [](Meaning& meaning) { meaning.rule = Rule::rows; }), "",
       "of the tokens of all ranks of expert, of micro-batch 0, but"},
      {"sums of outputs do not reach their tokens", "mixtral experts over 2, gathered tokens, 2 micro-batches",
       without("sums.experts"), "experts.tokens", "which no task has summed"},
      {"experts are summed over all replicas", "mixtral experts over 2 of 4, ZeRO-3, 2 micro-batches",
       moved(Axis::expert_data, Axis::replica), "experts", "summed over expert but not over expert_data"},
      {"other parameters are summed over the ranks with the same experts",
       "mixtral experts over 2 of 4, ZeRO-2, 2 micro-batches", moved(Axis::replica, Axis::expert_data), "",
       "summed over expert_data but not over expert"},
      {"shards of experts are not summed across groups",
       "mixtral experts over 2 of 8, ZeRO-3 in groups of 4, 2 micro-batches", without("reduce_across"), "",
       "but not over data_outer"},
      {"all ranks with the same shard of experts save it",
       "mixtral experts over 2 of 8, ZeRO-3 in groups of 4, 2 micro-batches", placed([](Placement& placement) {
         if (placement.sums_over == Axis::expert_data) placement.copied_over = Axis::self;
       }),
       "experts", "saved by two ranks"},
  };
  return kFaults;
}

const std::vector<Fault>& faults_of_checkpoints() {
  static const std::vector<Fault> kFaults{
      {"a checkpoint has a partial sum", "gpt2 bucketed",
       saved_before("all_reduce.bucket0", [](const BucketStorage& storage) { return storage.gradients; }), "",
       "but its memory has a gradient, not summed over replica"},
      {"a checkpoint has weights of the step before", "gpt2 bucketed",
       saved_before("adamw", [](const BucketStorage& storage) { return storage.master; }), "",
       "is weights, of the next step, but its memory has weights"},
      {"a checkpoint has another rank's part of the weights, before it is gathered",
       "gpt2 ZeRO-1, update beside the spine",
       saved_before(
           "all_gather",
           [](const BucketStorage& storage) {
             return Slice{storage.values.buffer, storage.values.begin_bytes + storage.values.size_bytes / 2, 0};
           }),
       "", "is saved as master"},
      {"a kept slot has the states in each other's place", "gpt2 ZeRO-1, update beside the spine",
       [](Job& job) { keep_exchanged(job, "keep.momentum.bucket0", "keep.variance.bucket0"); }, "",
       "is optimizer state 0, one part over replica, but its memory has optimizer state 1"},
      {"a checkpoint has rounded weights", "gpt2 bfloat16, on the wire too, 2 micro-batches",
       [](Job& job) {
         for (Task& task : job.plan(PlanKind::save).tasks)
           if (task.name.starts_with("save.master")) {
             const Slice& values = job.storage[static_cast<size_t>(task.bucket)].values;
             task.reads = {{values.buffer, values.begin_bytes, task.writes[0].size_bytes}};
           }
       },
       "", "of 2 bytes"},
      {"all ranks with the same weights save them", "gpt2 bucketed",
       placed([](Placement& placement) { placement.copied_over = Axis::self; }), "", "saved by two ranks"},
      {"tensor ranks save halves of different parts", "gpt2 tensor 2, 2 chunks, 2 micro-batches",
       placed([](Placement& placement) { placement.copied_over = Axis::tensor; }), "", "no rank"},
      {"ranks are copies in a checkpoint, but not in the sum", "gpt2 context 2 x data 2, ZeRO-3, 2 micro-batches",
       placed([](Placement& placement) {
         placement.sums_over = placement.sharded_over = Axis::data, placement.copied_over = Axis::context;
       }),
       "", "not summed together"},
      {"a slot is called complete before it is", "gpt2 bucketed", header_before_a_piece, "",
       "nothing complete was written"},
  };
  return kFaults;
}

}  // namespace

TEST_CASE("reductions: faults that the hazard proof accepts are refused with the tensor and its fault",
          "[reductions]") {
  const std::vector<Layout> rows = layouts();

  std::vector<Fault> all = faults();
  for (const std::vector<Fault>* more : {&faults_of_experts(), &faults_of_checkpoints()})
    all.insert(all.end(), more->begin(), more->end());
  for (const Fault& fault : all) {
    INFO(fault.what);
    const auto row = std::find_if(rows.begin(), rows.end(), [&](const Layout& each) { return each.name == fault.row; });
    REQUIRE(row != rows.end());
    Jobs jobs = make_jobs(with_copies(*row), 0);
    REQUIRE(first_fault(checked(jobs)) == "");
    for (const auto& job : jobs) fault.make(*job);
    const std::string sentence = first_fault(checked(jobs));
    std::printf("  %s: %s\n", fault.what, sentence.c_str());
    CHECK(sentence != "");
    CHECK(sentence.find(fault.tensor) != std::string::npos);
    CHECK(sentence.find(fault.fragment) != std::string::npos);
  }
}
