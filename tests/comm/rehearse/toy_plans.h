// SPDX-License-Identifier: Apache-2.0
#pragma once
// The strategies in miniature: data parallel, ZeRO-1, ZeRO-3 and pipelines as toy plans with known closed forms.

#include "tests/comm/rehearse/toy.h"

namespace slipstream::comm {

/// Fills in a format with one or two numbers: named("F{}", 3).
template <typename... Numbers>
std::string named(const char* format, Numbers... numbers) {
  return fmt::format(fmt::runtime(format), numbers...);
}

struct DdpShape {
  int layers = 8;
  int layers_per_bucket = 2;
  int64_t forward_ns = 100, backward_ns = 200, reduce_ns = 150;
};

inline Plan& toy_ddp(ToyJob& job, const DdpShape& shape) {
  ToyPlan plan(job);
  const int layers = shape.layers;
  for (int l = 0; l < layers; ++l)
    plan.compute(named("F{}", l), shape.forward_ns, {named("param{}", l), named("act{}", l - 1)}, {named("act{}", l)});
  for (int l = layers - 1; l >= 0; --l)
    plan.compute(named("B{}", l), shape.backward_ns,
                 {named("param{}", l), named("act{}", l), named("act{}", l - 1), named("dy{}", l)},
                 {named("grad{}", l), named("dy{}", l - 1)});
  const int buckets = layers / shape.layers_per_bucket;
  for (int b = 0; b < buckets; ++b) {
    Names grads, params, after;
    for (int i = 0; i < shape.layers_per_bucket; ++i) {
      const int l = layers - 1 - b * shape.layers_per_bucket - i;
      after.push_back(named("B{}", l));
      grads.push_back(named("grad{}", l));
      params.push_back(named("param{}", l));
    }
    plan.compute(named("opt{}", b), 1, grads, params);
    plan.task({.name = named("ar{}", b),
               .channel = "reduce",
               .axis = Axis::data,
               .op = Op::all_reduce,
               .time_ns = shape.reduce_ns,
               .after = after,
               .before = named("opt{}", b),
               .reads = grads,
               .writes = grads});
  }
  return plan.build();
}

struct Zero1Shape {
  int layers = 8;
  int64_t forward_ns = 100, backward_ns = 200, scatter_ns = 60, update_ns = 10, gather_ns = 80, norm_ns = 20,
          squares_ns = 2;
  bool clip = false;
};

/// Gathers are for the next step: nothing in this plan waits for them.
inline Plan& toy_zero1(ToyJob& job, const Zero1Shape& z) {
  ToyPlan plan(job);
  for (int l = 0; l < z.layers; ++l)
    plan.compute(named("F{}", l), z.forward_ns, {named("param{}", l), named("act{}", l - 1)}, {named("act{}", l)});
  for (int l = z.layers - 1; l >= 0; --l)
    plan.compute(named("B{}", l), z.backward_ns, {named("param{}", l), named("act{}", l), named("act{}", l - 1)},
                 {named("grad{}", l)});
  Names parts, squares;
  for (int l = z.layers - 1; l >= 0; --l) {
    plan.task({.name = named("rs{}", l),
               .channel = "reduce",
               .axis = Axis::data,
               .op = Op::reduce_scatter,
               .time_ns = z.scatter_ns,
               .after = {named("B{}", l)},
               .reads = {named("grad{}", l)},
               .writes = {named("gshard{}", l)}});
    if (!z.clip) continue;
    plan.task({.name = named("sq{}", l),
               .channel = "update",
               .op = Op::sum_squares,
               .time_ns = z.squares_ns,
               .after = {named("rs{}", l)},
               .reads = {named("gshard{}", l)},
               .writes = {named("part{}", l)}});
    parts.push_back(named("part{}", l));
    squares.push_back(named("sq{}", l));
  }
  if (z.clip)
    plan.task({.name = "norm",
               .channel = "norm",
               .axis = Axis::data,
               .op = Op::all_reduce,
               .time_ns = z.norm_ns,
               .after = squares,
               .reads = parts,
               .writes = {"clip"}});
  for (int i = 0; i < z.layers; ++i) {
    const int l = z.clip ? i : z.layers - 1 - i;
    Names update_reads{named("gshard{}", l)};
    if (z.clip) update_reads.push_back("clip");
    plan.task({.name = named("opt{}", l),
               .channel = "update",
               .op = Op::update,
               .time_ns = z.update_ns,
               .after = {z.clip ? std::string("norm") : named("rs{}", l)},
               .reads = update_reads,
               .writes = {named("pshard{}", l)}});
    plan.task({.name = named("ag{}", l),
               .channel = "gather",
               .axis = Axis::data,
               .op = Op::all_gather,
               .time_ns = z.gather_ns,
               .after = {named("opt{}", l)},
               .reads = {named("pshard{}", l)},
               .writes = {named("param{}", l)}});
  }
  return plan.build();
}

struct Zero3Shape {
  int layers = 8, slots = 2;
  int64_t forward_ns = 100, backward_ns = 200, gather_ns = 80, scatter_ns = 60, update_ns = 5;
  bool staged_gradients = false;  // two staging buffers: a scatter must end before the backward of two layers later
};

inline Plan& toy_zero3(ToyJob& job, const Zero3Shape& z) {
  ToyPlan plan(job);
  Names actions;
  std::vector<int> layer_of;
  for (int l = 0; l < z.layers; ++l) actions.push_back(named("F{}", l)), layer_of.push_back(l);
  for (int l = z.layers - 1; l >= 0; --l) actions.push_back(named("B{}", l)), layer_of.push_back(l);
  auto gradient = [&](int l) { return z.staged_gradients ? named("staged{}", l % 2) : named("grad{}", l); };
  for (size_t i = 0; i < actions.size(); ++i) {
    const int l = layer_of[i];
    const std::string slot = named("slot{}", static_cast<int>(i) % z.slots);
    if (i < static_cast<size_t>(z.layers))
      plan.compute(actions[i], z.forward_ns, {slot, named("act{}", l - 1)}, {named("act{}", l)});
    else
      plan.compute(actions[i], z.backward_ns, {slot, named("act{}", l), named("act{}", l - 1)}, {gradient(l)});
  }
  for (size_t i = 0; i < actions.size(); ++i) {
    const size_t slots = static_cast<size_t>(z.slots);
    plan.task({.name = named("ag{}", i),
               .channel = "gather",
               .axis = Axis::data,
               .op = Op::all_gather,
               .time_ns = z.gather_ns,
               .after = i >= slots ? Names{actions[i - slots]} : Names{},
               .before = actions[i],
               .reads = {named("pshard{}", layer_of[i])},
               .writes = {named("slot{}", i % slots)}});
  }
  for (int l = z.layers - 1; l >= 0; --l) {
    plan.task({.name = named("rs{}", l),
               .channel = "reduce",
               .axis = Axis::data,
               .op = Op::reduce_scatter,
               .time_ns = z.scatter_ns,
               .after = {named("B{}", l)},
               .before = z.staged_gradients && l >= 2 ? named("B{}", l - 2) : std::string(),
               .reads = {gradient(l)},
               .writes = {named("gshard{}", l)}});
    plan.task({.name = named("opt{}", l),
               .channel = "update",
               .op = Op::update,
               .time_ns = z.update_ns,
               .after = {named("rs{}", l)},
               .reads = {named("gshard{}", l)},
               .writes = {named("pshard{}", l)}});
  }
  return plan.build();
}

struct PipelineShape {
  int stages = 4, micro_batches = 8, chunks = 1;  // more than one chunk: interleaved
  int layers_per_chunk = 2;
  int64_t forward_ns = 10, backward_ns = 20, transfer_ns = 3;
  int channels = 4;  // 1: all on one; 2: one for each direction; 4: in and out of each direction
  int receive_buffers = 2;
  int64_t reduce_ns = 0;  // > 0: a data-parallel reduction and a norm over the world
};

struct PipelineUse {
  bool is_forward;
  int chunk, micro_batch;
};

/// 1F1B (chunks = 1) or interleaved 1F1B (Narayanan et al. 2021): warm-up, one forward one backward, drain.
inline std::vector<PipelineUse> pipeline_schedule(const PipelineShape& shape, int stage) {
  const int total = shape.micro_batches * shape.chunks;
  const int round = shape.stages * shape.chunks;
  std::vector<PipelineUse> forward, backward, actions;
  for (int k = 0; k < total; ++k) {
    const int chunk = k % round / shape.stages;
    const int micro_batch = k / round * shape.stages + k % shape.stages;
    forward.push_back({true, chunk, micro_batch});
    backward.push_back({false, shape.chunks - 1 - chunk, micro_batch});
  }
  const int warm_up =
      std::min(total, shape.chunks == 1 ? shape.stages - 1 - stage
                                        : (shape.stages - stage - 1) * 2 + (shape.chunks - 1) * shape.stages);
  size_t f = 0, b = 0;
  while (f < static_cast<size_t>(warm_up)) actions.push_back(forward[f++]);
  while (f < forward.size()) actions.push_back(forward[f++]), actions.push_back(backward[b++]);
  while (b < backward.size()) actions.push_back(backward[b++]);
  return actions;
}

inline std::string pipeline_channel(const PipelineShape& shape, bool is_forward, bool is_in) {
  if (shape.channels == 1) return "pipe";
  const std::string direction = is_forward ? "pipe_fwd" : "pipe_bwd";
  return shape.channels == 2 ? direction : direction + (is_in ? "_in" : "_out");
}

inline Plan& toy_pipeline_stage(ToyJob& job, const PipelineShape& shape, int stage) {
  ToyPlan plan(job);
  std::vector<ToyTask> tasks;
  Names readers[2];  // first items that read a received activation or gradient, in order
  std::string last;
  for (const PipelineUse& use : pipeline_schedule(shape, stage)) {
    const bool at_begin = stage == 0 && use.chunk == 0;
    const bool at_end = stage == shape.stages - 1 && use.chunk == shape.chunks - 1;
    const bool receives = use.is_forward ? !at_begin : !at_end;
    const bool sends = use.is_forward ? !at_end : !at_begin;
    const char* kind = use.is_forward ? "F" : "B";
    const std::string tag = named("{}.{}.{}", kind, use.chunk, use.micro_batch);
    Names& seen = readers[use.is_forward];
    const std::string in = named("{}in{}", kind, seen.size() % static_cast<size_t>(shape.receive_buffers));
    const std::string out = "out" + tag;
    const std::string first = named("{}.0", tag);
    for (int l = 0; l < shape.layers_per_chunk; ++l) {
      const int layer = use.chunk * shape.layers_per_chunk + (use.is_forward ? l : shape.layers_per_chunk - 1 - l);
      const std::string act = named("act{}.{}", layer, use.micro_batch);
      Names reads, writes{use.is_forward ? act : named("grad{}", layer)};
      if (!use.is_forward) reads.push_back(act);
      if (l == 0 && receives) reads.push_back(in);
      if (l == shape.layers_per_chunk - 1 && sends) writes.push_back(out);
      last = named("{}.{}", tag, l);
      plan.compute(last, use.is_forward ? shape.forward_ns : shape.backward_ns, reads, writes);
    }
    if (receives) {
      Names after;
      if (seen.size() >= static_cast<size_t>(shape.receive_buffers))
        after = {seen[seen.size() - static_cast<size_t>(shape.receive_buffers)]};
      tasks.push_back({.name = "recv" + tag,
                       .channel = pipeline_channel(shape, use.is_forward, true),
                       .axis = Axis::pipeline,
                       .op = Op::recv,
                       .time_ns = shape.transfer_ns,
                       .after = after,
                       .before = first,
                       .writes = {in},
                       .peer = use.is_forward ? -1 : 1});
      seen.push_back(first);
    }
    if (sends)
      tasks.push_back({.name = "send" + tag,
                       .channel = pipeline_channel(shape, use.is_forward, false),
                       .axis = Axis::pipeline,
                       .op = Op::send,
                       .time_ns = shape.transfer_ns,
                       .after = {last},
                       .reads = {out},
                       .peer = use.is_forward ? 1 : -1});
  }
  Names grads;
  for (int l = 0; l < shape.chunks * shape.layers_per_chunk; ++l) grads.push_back(named("grad{}", l));
  plan.compute("opt", 1, grads, grads);
  for (const ToyTask& task : tasks) plan.task(task);
  if (shape.reduce_ns > 0) {
    plan.task({.name = "rs",
               .channel = "reduce",
               .axis = Axis::data,
               .op = Op::all_reduce,
               .time_ns = shape.reduce_ns,
               .after = {last},
               .before = "opt",
               .reads = grads,
               .writes = grads});
    plan.task({.name = "norm",
               .channel = "norm",
               .axis = Axis::world,
               .op = Op::all_reduce,
               .time_ns = 2,
               .after = {"rs"},
               .before = "opt",
               .reads = grads,
               .writes = {"clip"}});
  }
  return plan.build();
}

inline std::vector<Plan*> toy_pipeline(ToyJob& job, const PipelineShape& shape) {
  std::vector<Plan*> plans;
  for (int stage = 0; stage < shape.stages; ++stage) plans.push_back(&toy_pipeline_stage(job, shape, stage));
  return plans;
}

}  // namespace slipstream::comm
