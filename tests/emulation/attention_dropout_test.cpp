// SPDX-License-Identifier: Apache-2.0
// Dropout of attention's weights on the emulated device, of whole sequences and in a ring, against the CPU's kernels,
// whose reference is in double (tests/kernels/attention).

#include "kernels/attention/attention.h"
#include "tests/emulation/on_device.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

struct Shape {
  int64_t tokens, heads, kv_heads, head_dim;  // tokens of a rank
  int ranks = 1;

  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t out_width() const { return heads * head_dim; }
};

/// One operand in both places.
class Both {
 public:
  Both(const Doubles& values, DType dtype) : host_(values, dtype), device_(values, dtype, "operand") {}
  Both(int64_t elems, DType dtype) : Both(Doubles(static_cast<size_t>(elems)), dtype) {}
  template <typename T = void>
  T* at(bool device, int64_t elems = 0) {
    return device ? device_.data<T>(elems) : host_.data<T>(elems);
  }
  double error() const { return error_of(device_.doubles(), host_.doubles()); }
  bool intact() const { return device_.intact() && host_.guard_intact(); }

 private:
  Tensor host_;
  OnDevice device_;
};

void check(const Shape& s, DType dtype) {
  CAPTURE(s.tokens, s.heads, s.head_dim, s.ranks, name_of(dtype));
  constexpr int64_t kBatch = 2;
  const int64_t rows = kBatch * s.tokens, kv_width = 2 * s.kv_heads * s.head_dim;
  const int64_t at_k = s.out_width(), at_v = at_k + s.kv_heads * s.head_dim;
  const ContextChunks mine{.tokens = s.tokens * s.ranks, .ranks = s.ranks, .rank = 0};
  const ContextChunks others{.tokens = s.tokens * s.ranks, .ranks = s.ranks, .rank = s.ranks - 1};
  Both qkv(random_doubles(rows * s.width(), dtype, 1), dtype), other(random_doubles(rows * s.width(), dtype, 2), dtype),
      dout(random_doubles(rows * s.out_width(), dtype, 3), dtype), out(rows * s.out_width(), dtype),
      lse(rows * s.heads, DType::f32), dqkv(rows * s.width(), dtype),
      carried(rows * s.heads * (s.head_dim + 2), DType::f32), dq_sum(rows * s.out_width(), DType::f32),
      dkv(rows * kv_width, DType::f32);
  const std::vector<DropoutSample> samples{{3, 8}, {3, 9}};
  const OnDevice on_device(std::vector<int32_t>{3, 8, 3, 9}, "samples");
  ThreadPool pool(1);
  for (bool device : {false, true}) {
    LaunchContext context;
    context.pool = &pool;
    if (device) context.kind = DeviceKind::cuda;
    AttentionDropout dropout{.samples = device ? on_device.data<DropoutSample>() : samples.data(),
                             .key = dropout_key(4, "weights"),
                             .rate = 0.3,
                             .first_head = 2};
    AttentionForward forward{.q = qkv.at(device),
                             .k = qkv.at(device, at_k),
                             .v = qkv.at(device, at_v),
                             .out = out.at(device),
                             .lse = lse.at<float>(device),
                             .batch = kBatch,
                             .tokens = s.tokens,
                             .heads = s.heads,
                             .kv_heads = s.kv_heads,
                             .head_dim = s.head_dim,
                             .q_stride = s.width(),
                             .kv_stride = s.width(),
                             .out_stride = s.out_width(),
                             .scale = 1 / std::sqrt(static_cast<float>(s.head_dim)),
                             .dtype = dtype,
                             .dropout = &dropout,
                             .queries = mine,
                             .keys = mine};
    AttentionBackward backward{.dout = dout.at(device),
                               .q = forward.q,
                               .k = forward.k,
                               .v = forward.v,
                               .out = forward.out,
                               .lse = forward.lse,
                               .dq = dqkv.at(device),
                               .dk = dqkv.at(device, at_k),
                               .dv = dqkv.at(device, at_v),
                               .batch = kBatch,
                               .tokens = s.tokens,
                               .heads = s.heads,
                               .kv_heads = s.kv_heads,
                               .head_dim = s.head_dim,
                               .q_stride = s.width(),
                               .kv_stride = s.width(),
                               .out_stride = s.out_width(),
                               .dq_stride = s.width(),
                               .dkv_stride = s.width(),
                               .scale = forward.scale,
                               .dtype = dtype,
                               .dropout = &dropout,
                               .queries = mine,
                               .keys = mine};
    Both workspace(attention_backward_workspace_elems(backward), DType::f32);
    backward.workspace = workspace.at<float>(device);
    if (s.ranks == 1) {
      attention_forward(context, forward);
      attention_backward(context, backward);
      continue;
    }
    // The own keys, then those of a later rank, which all late queries see.
    float* const state = carried.at<float>(device);
    AttentionBlockForward block{.all = forward,
                                .block = mine.block(0),
                                .carried = {.out = state,
                                            .maximum = state + rows * s.out_width(),
                                            .sum = state + rows * s.out_width() + rows * s.heads},
                                .last = false};
    attention_block_forward(context, block);
    block.all.keys = others;
    block.all.k = other.at(device, at_k);
    block.all.v = other.at(device, at_v);
    block.block = mine.block(s.ranks - 1);
    block.first = false;
    block.last = true;
    attention_block_forward(context, block);
    block.block = {.first_query = 0, .queries = block.block.first_query, .first_key = 0, .keys = 0, .causal = false};
    attention_block_forward(context, block);
    AttentionBlockBackward gradient{.all = backward,
                                    .block = mine.block(s.ranks - 1),
                                    .dq_sum = dq_sum.at<float>(device),
                                    .dkv = dkv.at<float>(device),
                                    .first = false,
                                    .last = false};
    gradient.all.keys = others;
    gradient.all.k = block.all.k;
    gradient.all.v = block.all.v;
    attention_block_backward(context, gradient);
  }
  const double tolerance = gradient_tolerance(dtype, s.head_dim + s.tokens, 2);
  for (const Both* result : {&out, &lse, &dqkv, &dq_sum, &dkv}) {
    CHECK(result->error() < tolerance);
    CHECK(result->intact());
  }
}

}  // namespace

TEST_CASE("attention dropout: whole sequences, every size of tile") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    check({37, 2, 1, 16}, dtype);
    check({9, 1, 1, 64}, dtype);
    check({9, 2, 2, 72}, dtype);
    check({19, 1, 1, 136}, dtype);
  }
}

TEST_CASE("attention dropout: tensor cores drop the same weights") {
  for (int64_t tokens : {33, 70, 132}) check({tokens, 2, 1, 64}, DType::bf16);
  check({70, 2, 1, 128}, DType::bf16);
  for (int ranks : {2, 3}) check({72, 2, 1, 64, ranks}, DType::bf16);
}

TEST_CASE("attention dropout: blocks of a ring") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int ranks : {2, 3}) check({36, 2, 1, 16, ranks}, dtype);
}

TEST_CASE("attention dropout, sm_90a: whole sequences and blocks of a ring") {
  const emulation::Capability hopper(90);
  check({1, 1, 1, 64}, DType::bf16);
  check({200, 2, 1, 64}, DType::bf16);
  check({140, 2, 2, 128}, DType::bf16);
  for (int ranks : {2, 3}) check({152, 2, 1, 64, ranks}, DType::bf16);
  check({264, 1, 1, 128, 2}, DType::bf16);
  {
    const Queries128 queries;
    check({200, 2, 1, 64}, DType::bf16);
    check({152, 2, 1, 64, 3}, DType::bf16);
  }
  if (!on_card) CHECK(attention_fallbacks().empty());
  check({36 + 2, 2, 1, 64, 2}, DType::bf16);  // chunks of 19: fours of keys are not fours of positions
  if (!on_card) CHECK(attention_fallbacks().size() == 2);
}
