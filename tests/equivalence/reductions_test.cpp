// SPDX-License-Identifier: Apache-2.0
// The proof of reductions accepts every layout that trains as one rank does, and refuses every plan with a faulty sum.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>

#include <fmt/core.h>

#include "comm/rehearse/finish.h"
#include "comm/rehearse/reductions.h"
#include "tests/equivalence/table.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::equivalence;

namespace {

comm::ReductionReport checked(const std::vector<std::unique_ptr<Job>>& jobs) {
  std::vector<const Job*> stages;
  for (const auto& job : jobs) stages.push_back(job.get());
  return comm::find_incomplete(stages);
}

models::ModelOptions with_tokens(models::ModelOptions model, int64_t tokens) {
  model.tokens = model.context = tokens;
  return model;
}

/// Norms of heads, and key-value heads that several tensor ranks use, are in no row of the table, so these rows have
/// them.
std::vector<Layout> layouts() {
  std::vector<Layout> rows = strategies(true);
  for (int tensor : {2, 4})
    for (bool sequence : {false, true})
      rows.push_back({.name = "qwen tensor " + std::to_string(tensor) + (sequence ? ", sequence parallel" : ""),
                      .model = with_tokens(smallest(Family::qwen3), 8),
                      .ranks = 2,
                      .micro_batch = 2,
                      .tensor = tensor,
                      .sequence_parallel = sequence,
                      .micro_batches = 2});
  return rows;
}

/// The same with plans that save and keep.
Layout with_copies(Layout layout) {
  layout.save_interval = 2;
  layout.keeps = true;
  return layout;
}

std::string first_fault(const comm::ReductionReport& report) {
  return report.found.empty() ? "" : report.found[0].sentence();
}

}  // namespace

TEST_CASE("reductions: every layout of the tables is accepted, as every rank plans it", "[reductions]") {
  std::vector<Layout> rows = layouts();
  for (const ZeroRow& row : zero_rows(true)) rows.push_back(row.layout());
  int64_t ranks = 0, works = 0, arrays = 0;
  for (const Layout& row : rows)
    for (int rank = 0; rank < row.world(); ++rank) {
      INFO(row.name << ", rank " << rank);
      const comm::ReductionReport report = checked(make_jobs(with_copies(row), rank));
      CHECK(first_fault(report) == "");
      ++ranks, works += report.works, arrays += report.saved_arrays;
    }
  std::printf("  COUNTED %zu layouts, plans of %lld ranks, %lld works, %lld saved arrays\n", rows.size(),
              static_cast<long long>(ranks), static_cast<long long>(works), static_cast<long long>(arrays));
}

namespace {

using Jobs = std::vector<std::unique_ptr<Job>>;

void make_nothing(Task& task) {
  task.op = Op::copy;
  task.reads.clear();
  task.writes.clear();
}

/// Issues a copy of item `id` right after item `earlier`.
void repeat(Plan& plan, ItemId id, ItemId earlier) {
  Task again = plan.task(id);
  again.name += ".again";
  plan.tasks.push_back(std::move(again));
  plan.order.insert(std::find(plan.order.begin(), plan.order.end(), earlier) + 1, static_cast<ItemId>(plan.size() - 1));
}

bool is_in_place(const Task& task) {
  return std::any_of(task.reads.begin(), task.reads.end(), [&](const Slice& read) {
    return std::any_of(task.writes.begin(), task.writes.end(),
                       [&](const Slice& write) { return read.overlaps(write); });
  });
}

/// Does the work add values of several ranks or micro-batches? A barrier adds none.
bool adds_up(const Job& job, const Task& task) {
  if (job.channels[task.channel].role == Role::align) return false;
  return task.op == Op::all_reduce || task.op == Op::reduce_scatter || task.op == Op::sum_parts || task.op == Op::add ||
         task.op == Op::add_rows;
}

/// Does the work move values that a sum or the next step needs?
bool carries_terms(const Job& job, const Task& task) {
  if (adds_up(job, task) || task.op == Op::all_to_all || task.op == Op::exchange) return true;
  // Weights that are gathered into a slot once more may still be there.
  if (job.sharding().parameters && job.channels[task.channel].role == Role::gather) return false;
  return task.op == Op::all_gather || task.op == Op::encode || task.op == Op::decode;
}

/// Axes that connect other ranks than `axis`.
std::vector<Axis> other_axes(const Job& job, Axis axis) {
  std::vector<Axis> others;
  const int rank = job.options.rank;
  for (Axis other : {Axis::data, Axis::context, Axis::tensor, Axis::pipeline, Axis::replica, Axis::data_inner,
                     Axis::data_outer, Axis::world})
    if (job.mesh.group_size(other) > 1 && job.mesh.group(other, rank) != job.mesh.group(axis, rank))
      others.push_back(other);
  return others;
}

struct Counts {
  int64_t mutants = 0, refused = 0;
};

/// The mutant must be refused by a sentence that names a tensor, an axis and an item.
void refuses(const Jobs& jobs, const std::string& mutation, Counts& counts) {
  INFO(mutation);
  const comm::ReductionReport report = checked(jobs);
  ++counts.mutants;
  CHECK(!report.found.empty());
  if (report.found.empty()) return;
  ++counts.refused;
  const comm::Incomplete& first = report.found[0];
  for (const std::string& name : {first.tensor, first.axis, first.item}) {
    CHECK(!name.empty());
    CHECK(first.sentence().find(name) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("reductions: every reduction that is deleted, doubled or moved to another group is refused", "[reductions]") {
  Counts deleted, doubled, moved;
  for (const Layout& row : strategies(test_everything())) {
    INFO(row.name);
    Jobs jobs = make_jobs(row, 0);
    for (const auto& job : jobs)
      for (ItemId id = static_cast<ItemId>(job->train().spine.size()); id < job->train().size(); ++id) {
        const Plan whole = job->train();
        const Task& task = whole.task(id);
        if (carries_terms(*job, task)) {
          make_nothing(job->train().task(id));
          refuses(jobs, "without " + task.name, deleted);
          job->train() = whole;
        }
        if (!adds_up(*job, task)) continue;
        if (is_in_place(task)) {
          repeat(job->train(), id, id);
          refuses(jobs, "twice " + task.name, doubled);
          job->train() = whole;
        }
        const Channel channel = job->channels[task.channel];
        if (!is_communication(task.op)) continue;
        for (Axis axis : other_axes(*job, channel.axis)) {
          job->channels.push_back(channel);
          job->channels.back().axis = axis;
          job->train().task(id).channel = static_cast<ChannelId>(job->channels.size() - 1);
          refuses(jobs, std::string(name_of(axis)) + " for " + name_of(channel.axis) + " in " + task.name, moved);
          job->channels.pop_back();
          job->train() = whole;
        }
      }
  }
  const auto print = [](const char* what, const Counts& counts) {
    std::printf("  COUNTED %s: %lld of %lld refused\n", what, static_cast<long long>(counts.refused),
                static_cast<long long>(counts.mutants));
  };
  print("deleted", deleted);
  print("doubled", doubled);
  print("moved", moved);
}

namespace {

/// Every fault of one task of a plan that saves or keeps.
void check_copies(const Jobs& jobs, Plan& plan, const Keeping& keeping, Counts& deleted, Counts& misread) {
  const Plan whole = plan;
  std::vector<ItemId> copies;
  for (ItemId id = static_cast<ItemId>(plan.spine.size()); id < plan.size(); ++id)
    if (whole.task(id).op == Op::snapshot && whole.task(id).reads[0].size_bytes > 0) copies.push_back(id);
  for (ItemId id = static_cast<ItemId>(plan.spine.size()); id < plan.size(); ++id) {
    const Task& task = whole.task(id);
    const bool carries =
        task.op == Op::exchange && task.reads[0].begin_bytes < Keeping::kHeaderBytes + keeping.arrays_bytes;
    if (task.op == Op::seal || carries || std::find(copies.begin(), copies.end(), id) != copies.end()) {
      make_nothing(plan.task(id));
      refuses(jobs, "without " + task.name, deleted);
      plan = whole;
    }
    if (task.op != Op::exchange) continue;
    plan.task(id).peer = static_cast<int16_t>(task.peer + 1);
    refuses(jobs, "to another rank: " + task.name, misread);
    plan = whole;
  }
  // Other arrays of the same bucket, and of the next one.
  for (size_t i = 0; i < copies.size(); ++i)
    for (size_t further : {1, 2, 3}) {
      const ItemId id = copies[i], other = copies[(i + further) % copies.size()];
      const Slice& from = whole.task(other).reads[0];
      if (id == other || from.size_bytes < whole.task(id).reads[0].size_bytes) continue;
      plan.task(id).reads[0] = {from.buffer, from.begin_bytes, whole.task(id).reads[0].size_bytes};
      refuses(jobs, whole.task(id).name + " of what belongs to " + whole.task(other).name, misread);
      plan = whole;
    }
}

}  // namespace

TEST_CASE("reductions: a checkpoint without an array, or with another one in its place, is refused", "[reductions]") {
  Counts deleted, misread;
  for (const Layout& row : strategies(test_everything())) {
    INFO(row.name);
    Jobs jobs = make_jobs(with_copies(row), 0);
    for (const auto& job : jobs)
      for (PlanRow& plan : job->plans)
        if (plan.kind == PlanKind::save || plan.kind == PlanKind::keep)
          check_copies(jobs, plan.plan, job->keeping, deleted, misread);
  }
  std::printf("  COUNTED deleted: %lld of %lld refused, misread: %lld of %lld\n",
              static_cast<long long>(deleted.refused), static_cast<long long>(deleted.mutants),
              static_cast<long long>(misread.refused), static_cast<long long>(misread.mutants));
}

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
  all.insert(all.end(), faults_of_checkpoints().begin(), faults_of_checkpoints().end());
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

namespace {

std::string text_of(const Job& job) {
  std::string text = text_of(job.mesh.sizes());
  for (const ParameterGroup& group : job.groups) {
    const Placement& p = group.placement;
    text += fmt::format(", sums over {}, shards over {}, copies over {}, divides {}{}{}, formats {} {} {}",
                        name_of(p.sums_over), name_of(p.sharded_over), name_of(p.copied_over), p.sharding.states,
                        p.sharding.gradients, p.sharding.parameters, name_of(p.value), name_of(p.reduce_wire),
                        name_of(p.gather_wire));
  }
  return text;
}

uint64_t hash_of(const Job& job) {
  std::vector<const Plan*> plans;
  for (const PlanRow& row : job.plans) plans.push_back(&row.plan);
  return comm::order_hash(plans);
}

}  // namespace

// Before step 0, ranks compare this hash. The types at the end of a plan follow from the placement, and so do its
// tasks.
TEST_CASE("reductions: plans of ranks with different placements have different hashes", "[reductions]") {
  std::map<std::string, uint64_t> placements;
  std::map<uint64_t, std::string> hashes;
  for (int context : {1, 2})
    for (int stage : {0, 1, 2, 3})
      for (int shard_size : {0, 2})
        for (Format reduce : {Format(DType::f32), Format(DType::bf16), kInt8})
          for (std::optional<Format> gather : {std::optional<Format>(), {DType::bf16}, {kInt8}}) {
            if (stage == 0 && (shard_size > 0 || gather)) continue;
            Layout layout{.name = "placement", .model = with_tokens(smallest(Family::gpt2), 8), .micro_batch = 2};
            layout.model.split_tied_embedding = false;
            layout.ranks = 4 / context, layout.context = context, layout.zero_stage = stage;
            layout.shard_size = shard_size, layout.wire_dtype = reduce, layout.gather_dtype = gather;
            const Jobs jobs = make_jobs(layout, 0);
            const std::string text = text_of(*jobs[0]);
            const uint64_t hash = hash_of(*jobs[0]);
            CAPTURE(text);
            CHECK(hashes.try_emplace(hash, text).first->second == text);
            CHECK(placements.try_emplace(text, hash).first->second == hash);
          }
  CHECK(placements.size() == 2 * (3 + 3 * 2 * 9));
}
