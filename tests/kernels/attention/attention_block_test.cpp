// SPDX-License-Identifier: Apache-2.0
// One block of attention: its cost, its bits, blocks without keys or queries, and blocks that are refused.

#include "engine/base/check.h"
#include "engine/base/context_chunks.h"
#include "kernels/attention/attention.h"
#include "tests/kernels/common/backend.h"
#include "tests/reference/masked_attention.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

TEST_CASE("attention in a ring: a block costs the pairs that its window leaves", "[.][cpu]") {
  for (const int ranks : {1, 2, 3, 4})
    for (const int64_t window : {1, 2, 5, 6, 7, 11, 12, 13, 30, 48, 60}) {
      const int64_t tokens = 48;
      for (int rank = 0; rank < ranks; ++rank)
        for (int owner = 0; owner < ranks; ++owner) {
          CAPTURE(ranks, window, rank, owner);
          const ContextChunks queries{.tokens = tokens, .ranks = ranks, .rank = rank},
              keys{.tokens = tokens, .ranks = ranks, .rank = owner};
          int64_t pairs = 0;  // counted one by one
          for (int64_t q = 0; q < queries.local_tokens(); ++q)
            for (int64_t k = 0; k < keys.local_tokens(); ++k) {
              const int64_t apart = queries.position(q) - keys.position(k);
              pairs += apart >= 0 && apart < window;
            }
          AttentionBlockForward forward = {.all = {.batch = 2,
                                                   .tokens = tokens / ranks,
                                                   .heads = 4,
                                                   .kv_heads = 2,
                                                   .head_dim = 5,
                                                   .window = window,
                                                   .queries = queries,
                                                   .keys = keys},
                                           .block = queries.block(owner),
                                           .carried = {},
                                           .first = owner == rank,
                                           .last = false};
          CHECK(attention_block_forward_cost(forward).flops == 4 * 2 * 4 * 5 * pairs);
          if (pairs == 0) CHECK(attention_block_forward_cost(forward).bytes == 0);
          const AttentionBlockBackward backward = {.all = {.batch = 2,
                                                           .tokens = tokens / ranks,
                                                           .heads = 4,
                                                           .kv_heads = 2,
                                                           .head_dim = 5,
                                                           .window = window,
                                                           .queries = queries,
                                                           .keys = keys},
                                                   .block = queries.block(owner),
                                                   .first = false,
                                                   .last = owner == rank};
          CHECK(attention_block_backward_cost(backward).flops == 10 * 2 * 4 * 5 * pairs);
        }
    }
}

TEST_CASE("attention in a ring: one rank gives the bits of attention", "[.][cpu]") {
  const reference::AttentionShape s = {2, 70, 2, 2, 8};
  const Doubles qkv = random_doubles(s.batch * s.tokens * s.width(), DType::f32, 5);
  Tensor x(qkv, DType::f32), whole(s.batch * s.tokens * s.out_width(), DType::f32),
      lse(s.batch * s.tokens * s.heads, DType::f32);
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  const AttentionForward args = {x.data(), x.data(16), x.data(32), whole.data(), lse.data<float>(), 2, 70, 2, 2, 8,
                                 48,       48,         16,         0.5f,         DType::f32};
  attention_forward(context, args);
  // Divided at a tile of the kernel, the same additions follow each other; the first tile is carried in float.
  Tensor out(whole.doubles(), DType::f32), carried(whole.doubles(), DType::f32), maximum(lse.doubles(), DType::f32),
      sum(lse.doubles(), DType::f32);
  AttentionBlockForward block = {.all = args,
                                 .block = {0, 64, 0, 64, true},
                                 .carried = {carried.data<float>(), maximum.data<float>(), sum.data<float>()}};
  block.all.out = out.data();
  attention_block_forward(context, block);
  block.block = {64, 6, 0, 64, false}, block.last = false;
  attention_block_forward(context, block);
  block.block = {64, 6, 64, 6, true}, block.first = false, block.last = true;
  attention_block_forward(context, block);
  CHECK(out == whole);
}

TEST_CASE("attention in a ring: impossible blocks are refused", "[.][cpu]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  float dummy[64] = {};
  AttentionBlockForward args = {.all = {dummy, dummy, dummy, dummy, dummy, 1, 4, 1, 1, 2, 2, 2, 2, 1.0f, DType::f32},
                                .block = {2, 3, 0, 3, true},
                                .carried = {}};
  CHECK_THROWS_WITH(attention_block_forward(context, args),
                    "[attention_block_forward] the block's rows 2 to 5 exceed 4 tokens.");
  args.block = {0, 2, 0, 3, true};
  CHECK_THROWS_WITH(attention_block_forward(context, args),
                    "[attention_block_forward] a causal block needs as many keys as queries: got 3 and 2.");
  args.block = {0, 2, 0, 0, false};
  CHECK_THROWS_AS(attention_block_forward(context, args), ShapeError);  // a first block without keys has no softmax
  args.block = {0, 2, 0, 2, true}, args.last = false;
  CHECK_THROWS_AS(attention_block_forward(context, args), ShapeError);  // nowhere to carry to
  context.kind = DeviceKind::cuda, args.last = true;
  CHECK_THROWS_AS(attention_block_forward(context, args), ResourceError);
  CHECK(attention_block_forward_cost(args).flops == 4 * 2 * 3);
  CHECK(attention_block_forward_cost(args).bytes == 2 * 4 * (2 * 2 + 2 * 2) + 4 * 2);
}

TEST_CASE("attention in a ring: a block without keys or without queries still writes its outputs") {
  constexpr int64_t kTokens = 3;
  for (int64_t head_dim : {32, 64})  // the general path and the tensor cores
    for (const AttentionBlock& block :
         {AttentionBlock{0, kTokens, 0, 0, false}, AttentionBlock{0, 0, 0, kTokens, false}}) {
      CAPTURE(head_dim, block.queries, block.keys);
      LaunchContext context = a_context();
      const int64_t elems = kTokens * head_dim;
      const Doubles before = random_doubles(elems, DType::bf16, 1);
      OnDevice x(before, DType::bf16, "rows"), lse(Doubles(kTokens), DType::f32, "lse"), dq(before, DType::bf16, "dq"),
          dq_sum(before, DType::f32, "dq_sum"), dkv(2 * elems, DType::f32, "dkv");
      AttentionBlockBackward args = {.all = {.dout = x.data(),
                                             .q = x.data(),
                                             .k = x.data(),
                                             .v = x.data(),
                                             .out = x.data(),
                                             .lse = lse.data<float>(),
                                             .dq = dq.data(),
                                             .batch = 1,
                                             .tokens = kTokens,
                                             .heads = 1,
                                             .kv_heads = 1,
                                             .head_dim = head_dim,
                                             .q_stride = head_dim,
                                             .kv_stride = head_dim,
                                             .out_stride = head_dim,
                                             .dq_stride = head_dim,
                                             .scale = 0.5f,
                                             .dtype = DType::bf16},
                                     .block = block,
                                     .dq_sum = dq_sum.data<float>(),
                                     .dkv = dkv.data<float>(),
                                     .first = false};
      const OnDevice workspace(attention_backward_workspace_elems(args.all), DType::f32, "workspace");
      args.all.workspace = workspace.data<float>();
      attention_block_backward(context, args);
      CHECK(dkv.doubles() == Doubles(static_cast<size_t>(2 * elems)));
      Doubles expected = before;
      if (block.queries > 0)
        for (double& value : expected) value *= 0.5;
      CHECK(dq.doubles() == expected);
    }
}
