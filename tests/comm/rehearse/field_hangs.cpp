// SPDX-License-Identifier: Apache-2.0
// The reports. docs/benchmarks/field-hangs.md has the same rows.

#include "tests/comm/rehearse/field_hangs.h"

namespace slipstream::comm::field {
namespace {

Call to_next(const std::string& label, int64_t elems = 16) {
  return {.name = "send." + label, .channel = "pipe_fwd_out", .op = Op::send, .peer = 1, .elems = elems};
}
Call from_previous(const std::string& label, int64_t elems = 16) {
  return {.name = "recv." + label, .channel = "pipe_fwd_in", .op = Op::recv, .peer = -1, .elems = elems};
}
Call to_previous(const std::string& label, int64_t elems = 16) {
  return {.name = "send." + label, .channel = "pipe_bwd_out", .op = Op::send, .peer = -1, .elems = elems};
}
Call from_next(const std::string& label, int64_t elems = 16) {
  return {.name = "recv." + label, .channel = "pipe_bwd_in", .op = Op::recv, .peer = 1, .elems = elems};
}
Call experts(const std::string& name, int64_t elems = 16) {
  return {.name = name, .channel = "ring", .op = Op::all_to_all, .elems = elems};
}
Call gradients(const std::string& name, int64_t elems = 16) {
  return {.name = name, .channel = "reduce", .op = Op::reduce_scatter, .elems = elems};
}
Call parameters(const std::string& name) { return {.name = name, .channel = "gather", .op = Op::all_gather}; }
Call sum(const std::string& name, int64_t elems = 16) {
  return {.name = name, .channel = "norm", .op = Op::all_reduce, .elems = elems};
}

/// Every stage tells its neighbours the shape of what follows. In the report, it first sends to the previous stage and
/// then receives from it.
std::vector<Program> shapes(bool even_odd) {
  constexpr int kStages = 4;
  const auto label = [](const char* way, int from) { return std::string(way) + std::to_string(from); };
  std::vector<Program> programs;
  for (int s = 0; s < kStages; ++s) {
    const bool first = s == 0, last = s + 1 == kStages;
    Program send_previous, recv_previous, send_next, recv_next;
    if (!first) send_previous = {to_previous(label("gradient", s))};
    if (!first) recv_previous = {from_previous(label("activation", s - 1))};
    if (!last) send_next = {to_next(label("activation", s))};
    if (!last) recv_next = {from_next(label("gradient", s + 1))};
    Program program;
    const auto add = [&](const Program& calls) { program.insert(program.end(), calls.begin(), calls.end()); };
    if (!even_odd)
      add(send_previous), add(recv_previous), add(send_next), add(recv_next);
    else if (s % 2 == 0)
      add(send_next), add(recv_previous), add(send_previous), add(recv_next);
    else
      add(recv_previous), add(send_next), add(recv_next), add(send_previous);
    programs.push_back(program);
  }
  return programs;
}

/// The grouped send and receive of a stage with its only neighbour, on one communicator.
Call to_peer(const std::string& label) {
  return {.name = "send." + label, .channel = "tied", .op = Op::send, .peer = 1};
}
Call from_peer(const std::string& label) {
  return {.name = "recv." + label, .channel = "tied", .op = Op::recv, .peer = 1};
}

}  // namespace

std::vector<Report> reports() {
  using Kind = Verdict::Kind;
  const Call dispatch = experts("dispatch"), combine = experts("combine"), bucket = gradients("bucket");
  return {
      {.source = "NVIDIA/Megatron-LM#1810",
       .mechanism = "one event releases two all-to-alls of a communicator, in another order on each rank",
       .hangs = {{dispatch, combine}, {combine, dispatch}},
       .works = {{dispatch, combine}, {dispatch, combine}},
       .words = {"on channel ring", "rank 0 issues dispatch", "rank 1 issues combine"},
       .kind = Kind::mismatched,
       .ranks = {0, 1}},
      {.source = "NVIDIA/Megatron-LM#5749",
       .mechanism = "expert all-to-all and gradient reduce-scatter share a stream, in another order on each rank",
       .hangs = {{dispatch, bucket}, {bucket, dispatch}},
       .works = {{dispatch, bucket}, {dispatch, bucket}},
       .words = {"rank 0 run 0 bucket", "waits for rank 0 run 0 dispatch", "meets rank 1 run 0 dispatch"},
       .kind = Kind::circular,
       .ranks = {0, 1}},
      {.source = "NVIDIA/Megatron-LM#5749, on FSDP",
       .mechanism = "a rank issues its reduce-scatter between two all-to-alls, the others after both",
       .hangs = {{dispatch, bucket, combine}, {dispatch, combine, bucket}, {dispatch, combine, bucket}},
       .works = {{dispatch, combine, bucket}, {dispatch, combine, bucket}, {dispatch, combine, bucket}},
       .words = {"rank 0 run 0 combine", "rank 1 run 0 bucket", "rank 1 run 0 combine"},
       .kind = Kind::circular,
       .ranks = {0, 1}},
      {.source = "NVIDIA/Megatron-LM#5100",
       .mechanism = "shapes travel in the fixed order previous, next, so neighbours send to each other first",
       .hangs = shapes(false),
       .works = shapes(true),
       .words = {"rank 0 run 0 recv.gradient1", "send.activation0", "meets"},
       .kind = Kind::circular,
       .ranks = {0, 1}},
      {.source = "NVIDIA/Megatron-LM#5271",
       .mechanism = "two stages: previous and next are one rank, and two messages of one size are taken for each other",
       .hangs = {{to_peer("activation"), to_peer("gradient")}, {from_peer("gradient"), from_peer("activation")}},
       .works = {{to_peer("activation"), to_peer("gradient")}, {from_peer("activation"), from_peer("gradient")}},
       .words = {"rank 0 issues send.activation", "rank 1 issues recv.gradient"},
       .kind = Kind::mismatched,
       .ranks = {0, 1}},
      {.source = "NVIDIA/Megatron-LM#2218",
       .mechanism = "gradients in an unordered set: buckets of different sizes are reduced in another order",
       .hangs = {{gradients("bucket0", 64), gradients("bucket1", 32)},
                 {gradients("bucket1", 32), gradients("bucket0", 64)}},
       .works = {{gradients("bucket0", 64), gradients("bucket1", 32)},
                 {gradients("bucket0", 64), gradients("bucket1", 32)}},
       .words = {"rank 0 issues bucket0 (reduce_scatter of 64", "rank 1 issues bucket1 (reduce_scatter of 32"},
       .kind = Kind::mismatched,
       .ranks = {0, 1}},
      {.source = "NVIDIA/Megatron-LM#4910",
       .mechanism = "during a save, some ranks are in an all-gather and others in an all-reduce of one number",
       .hangs = {{sum("steps"), {.name = "shapes", .channel = "norm", .op = Op::all_gather}},
                 {sum("steps"), sum("ready")}},
       .works = {{sum("steps"), {.name = "shapes", .channel = "norm", .op = Op::all_gather}, sum("ready")},
                 {sum("steps"), {.name = "shapes", .channel = "norm", .op = Op::all_gather}, sum("ready")}},
       .words = {"rank 0 issues shapes (all_gather", "rank 1 issues ready (all_reduce"},
       .kind = Kind::mismatched,
       .ranks = {0, 1}},
      {.source = "NVIDIA/nccl#296",
       .mechanism = "the ranks sum tensors of different sizes",
       .hangs = {{sum("loss", 40)}, {sum("loss", 40)}, {sum("loss", 39)}},
       .works = {{sum("loss", 40)}, {sum("loss", 40)}, {sum("loss", 40)}},
       .words = {"rank 0 issues loss (all_reduce of 40", "rank 2 issues loss (all_reduce of 39"},
       .kind = Kind::mismatched,
       .ranks = {0, 2}},
      {.source = "NVIDIA/nccl#479",
       .mechanism = "two ranks send to each other before they receive, outside a group",
       .hangs = {{to_next("x0"), from_next("x1")}, {to_previous("x1"), from_previous("x0")}},
       .works = {{{.name = "x", .channel = "ring", .op = Op::exchange, .peer = 1}},
                 {{.name = "x", .channel = "ring", .op = Op::exchange, .peer = 1}}},
       .words = {"rank 0 run 0 recv.x1", "rank 0 run 0 send.x0", "rank 1 run 0 send.x1"},
       .kind = Kind::circular,
       .ranks = {0, 1}},
      {.source = "pytorch/pytorch#33148",
       .mechanism = "a rank has one batch less, and the others reduce without it",
       .hangs = {{gradients("batch0"), gradients("batch1")}, {gradients("batch0")}},
       .works = {{gradients("batch0")}, {gradients("batch0")}},
       .words = {"rank 0 run 0 batch1", "waits for rank 1, which never issues it"},
       .kind = Kind::behind,
       .ranks = {1}},
      {.source = "pytorch/pytorch#72843",
       .mechanism = "a parameter that a rank does not use shifts its buckets: all-reduce meets all-to-all",
       .hangs = {{{.name = "bucket0", .channel = "ring"}, dispatch},
                 {dispatch, {.name = "bucket0", .channel = "ring"}}},
       .works = {{dispatch, {.name = "bucket0", .channel = "ring"}},
                 {dispatch, {.name = "bucket0", .channel = "ring"}}},
       .words = {"rank 0 issues bucket0 (all_reduce", "rank 1 issues dispatch (all_to_all"},
       .kind = Kind::mismatched,
       .ranks = {0, 1}},
      {.source = "pytorch/pytorch#172668",
       .mechanism = "interleaved stages: a send waits for a receive that comes after the opposite send",
       .hangs = {{to_next("F1.stage2"), to_next("F2.stage0"), from_next("B0.stage3")},
                 {from_previous("F1.stage2"), to_previous("B0.stage3"), from_previous("F2.stage0")}},
       .works = {{to_next("F1.stage2"), from_next("B0.stage3"), to_next("F2.stage0")},
                 {from_previous("F1.stage2"), to_previous("B0.stage3"), from_previous("F2.stage0")}},
       .words = {"rank 0 run 0 send.F2.stage0", "rank 1 run 0 send.B0.stage3", "recv.B0.stage3"},
       .kind = Kind::circular,
       .ranks = {0, 1}},
      {.source = "pytorch/torchtitan#1618",
       .mechanism =
           "a rank has fewer validation batches and is in the sum of the losses while others gather parameters",
       .hangs = {{parameters("batch0"), parameters("batch1"), sum("val_loss")},
                 {parameters("batch0"), sum("val_loss")}},
       .works = {{parameters("batch0"), sum("val_loss")}, {parameters("batch0"), sum("val_loss")}},
       .words = {"rank 0 run 0 batch1", "waits for rank 1, which never issues it"},
       .kind = Kind::behind,
       .ranks = {1}},
      {.source = "deepspeedai/DeepSpeed#4808",
       .mechanism = "ZeRO-3 reduces the gradients of an expert only on the ranks that used it",
       .hangs = {{gradients("expert0"), gradients("expert1"), sum("norm")},
                 {gradients("expert0"), gradients("expert1"), sum("norm")},
                 {gradients("expert1"), sum("norm")}},
       .works = {{gradients("expert0"), gradients("expert1"), sum("norm")},
                 {gradients("expert0"), gradients("expert1"), sum("norm")},
                 {gradients("expert0"), gradients("expert1"), sum("norm")}},
       .words = {"rank 0 issues expert0", "rank 2 issues expert1"},
       .kind = Kind::mismatched,
       .ranks = {0, 2}},
      {.source = "deepspeedai/DeepSpeed#5518",
       .mechanism = "a stage receives a gradient for each output, but its neighbour sends only those that exist",
       .hangs = {{to_next("hidden"), from_next("hidden"), from_next("rotary")},
                 {from_previous("hidden"), to_previous("hidden")}},
       .works = {{to_next("hidden"), from_next("hidden")}, {from_previous("hidden"), to_previous("hidden")}},
       .words = {"rank 0 run 0 recv.rotary", "waits for rank 1, which never issues it"},
       .kind = Kind::behind,
       .ranks = {1}},
  };
}

}  // namespace slipstream::comm::field
