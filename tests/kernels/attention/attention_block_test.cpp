// SPDX-License-Identifier: Apache-2.0
// Attention block by block, as a ring of ranks computes it, against the whole matrix of the whole sequence in double.

#include "engine/base/check.h"
#include "engine/base/context_chunks.h"
#include "kernels/attention/attention.h"
#include "kernels/columns/columns.h"
#include "tests/kernels/common/op_test.h"
#include "tests/reference/elementwise.h"
#include "tests/reference/packed_attention.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::columns;

namespace {

struct Shape : reference::AttentionShape {  // tokens of the whole sequence
  int ranks;

  ContextChunks chunks(int rank) const { return {.tokens = tokens, .ranks = ranks, .rank = rank}; }
  reference::Share share(int rank) const { return {.tokens = tokens, .ranks = ranks, .rank = rank}; }
};

/// The rows of one rank of rows of whole sequences.
Doubles rows_of(const Doubles& whole, const Shape& s, int rank, int64_t width) {
  return reference::rows_of_rank(whole, s.batch, s.share(rank), width);
}

struct Functions {
  CpuFunction<AttentionBlockForward> forward;
  CpuFunction<AttentionBlockBackward> backward;
  CpuFunction<ColumnsTake> take;
};

/// What one rank computes of a ring, and what it adds to the gradients of every owner's keys.
struct RankResult {
  Tensor out, lse, dq;
  std::vector<Doubles> dkv;  // by owner
};

RankResult run_rank(LaunchContext& context, const Functions& run, const Shape& s, DType dtype, int rank,
                    const std::vector<Tensor>& qkv, const Doubles& dout, float scale, bool early_last = true) {
  const ContextChunks chunks = s.chunks(rank);
  const int64_t local = chunks.local_tokens(), rows = s.batch * local, kv_width = 2 * s.kv_heads * s.head_dim;
  RankResult result{Tensor(rows * s.out_width(), dtype), Tensor(rows * s.heads, DType::f32),
                    Tensor(rows * s.out_width(), dtype), std::vector<Doubles>(static_cast<size_t>(s.ranks))};
  Tensor carried(rows * s.out_width(), DType::f32), maximum(rows * s.heads, DType::f32),
      sum(rows * s.heads, DType::f32);
  Tensor q = qkv[static_cast<size_t>(rank)], d(dout, dtype);
  const auto keys_of = [&](int owner) {
    Tensor from = qkv[static_cast<size_t>(owner)], kv(rows * kv_width, dtype);
    run.take(context, {from.data(s.out_width()), kv.data(), rows, kv_width, s.width(), dtype});
    CHECK(kv.guard_intact());
    return kv;
  };
  for (int step = 0; step < s.ranks; ++step) {
    Tensor kv = keys_of(chunks.owner(step));
    AttentionBlockForward args = {
        .all = {q.data(), kv.data(), kv.data(kv_width / 2), result.out.data(), result.lse.data<float>(), s.batch, local,
                s.heads, s.kv_heads, s.head_dim, s.width(), kv_width, s.out_width(), scale, dtype},
        .block = chunks.block(chunks.owner(step)),
        .carried = {carried.data<float>(), maximum.data<float>(), sum.data<float>()},
        .first = step == 0,
        .last = step + 1 == s.ranks};
    run.forward(context, args);
    if (args.last && args.block.first_query > 0 && early_last) {
      args.block = {.first_query = 0, .queries = args.block.first_query, .first_key = 0, .keys = 0, .causal = false};
      run.forward(context, args);
    }
  }
  // Backward the own keys come last.
  Tensor dq_sum(rows * s.out_width(), DType::f32);
  for (int turn = 0; turn < s.ranks; ++turn) {
    const int owner = chunks.owner((turn + 1) % s.ranks);
    Tensor kv = keys_of(owner), dkv(rows * kv_width, DType::f32);
    AttentionBlockBackward args = {.all = {d.data(),
                                           q.data(),
                                           kv.data(),
                                           kv.data(kv_width / 2),
                                           result.out.data(),
                                           result.lse.data<float>(),
                                           result.dq.data(),
                                           nullptr,
                                           nullptr,
                                           nullptr,
                                           s.batch,
                                           local,
                                           s.heads,
                                           s.kv_heads,
                                           s.head_dim,
                                           s.width(),
                                           kv_width,
                                           s.out_width(),
                                           s.out_width(),
                                           0,
                                           scale,
                                           dtype},
                                   .block = chunks.block(owner),
                                   .dq_sum = dq_sum.data<float>(),
                                   .dkv = dkv.data<float>(),
                                   .first = false,
                                   .last = turn + 1 == s.ranks};
    Tensor workspace(attention_backward_workspace_elems(args.all), DType::f32);
    args.all.workspace = workspace.data<float>();
    // A first block of the late queries alone leaves the early ones: a sum that starts from zero serves both.
    if (turn == 0) dq_sum = Tensor(Doubles(static_cast<size_t>(rows * s.out_width())), DType::f32);
    args.dq_sum = dq_sum.data<float>();
    run.backward(context, args);
    CHECK((dkv.guard_intact() && workspace.guard_intact() && dq_sum.guard_intact()));
    result.dkv[static_cast<size_t>(owner)] = dkv.doubles();
  }
  CHECK((result.out.guard_intact() && result.lse.guard_intact() && result.dq.guard_intact() && carried.guard_intact() &&
         maximum.guard_intact() && sum.guard_intact()));
  return result;
}

void check(const Shape& s, DType dtype, double spread = 1.0, float scale = 0.0f) {
  const auto seed = static_cast<uint32_t>(s.tokens * 1000 + s.head_dim + s.ranks);
  INFO(fmt::format("seed {} {} B{} T{} H{}/{} E{} over {} ranks", seed, name_of(dtype), s.batch, s.tokens, s.heads,
                   s.kv_heads, s.head_dim, s.ranks));
  const Doubles qkv = random_doubles(s.batch * s.tokens * s.width(), dtype, seed, spread),
                dout = random_doubles(s.batch * s.tokens * s.out_width(), dtype, seed + 1);
  if (scale == 0.0f) scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  const reference::PackedAttention e = reference::packed_attention(s, qkv, dout, scale);
  std::vector<Tensor> parts;
  for (int rank = 0; rank < s.ranks; ++rank) parts.emplace_back(rows_of(qkv, s, rank, s.width()), dtype);
  const int64_t local = s.tokens / s.ranks, kv_width = 2 * s.kv_heads * s.head_dim;
  std::vector<RankResult> first;
  std::string first_isa;
  const auto run = [&](LaunchContext& context, const Functions& functions, const std::string& label) {
    INFO(label);
    std::vector<Doubles> dkv(static_cast<size_t>(s.ranks), Doubles(static_cast<size_t>(s.batch * local * kv_width)));
    std::vector<RankResult> results;
    // bf16: out is rounded before dout . out is taken, and the result is rounded: two roundings.
    const double tolerance = gradient_tolerance(dtype, s.head_dim + s.tokens, 2);
    for (int rank = 0; rank < s.ranks; ++rank) {
      results.push_back(
          run_rank(context, functions, s, dtype, rank, parts, rows_of(dout, s, rank, s.out_width()), scale));
      const RankResult& r = results.back();
      CHECK(error_of(r.out.doubles(), rows_of(e.out, s, rank, s.out_width())) <
            forward_tolerance(dtype, s.head_dim + s.tokens));
      const Doubles lse = reference::rows_of_rank(e.lse, s.batch * s.heads, s.share(rank), 1);
      CHECK(error_of(r.lse.doubles(), lse) < forward_tolerance(DType::f32, s.head_dim));
      CHECK(error_of(r.dq.doubles(), columns(rows_of(e.dqkv, s, rank, s.width()), s.width(), 0, s.out_width())) <
            tolerance);
      for (int owner = 0; owner < s.ranks; ++owner)
        for (size_t i = 0; i < r.dkv[static_cast<size_t>(owner)].size(); ++i)
          dkv[static_cast<size_t>(owner)][i] += r.dkv[static_cast<size_t>(owner)][i];
    }
    for (int owner = 0; owner < s.ranks; ++owner) {
      const Doubles expected = columns(rows_of(e.dqkv, s, owner, s.width()), s.width(), s.out_width(), s.width());
      for (int part : {0, 1})  // dk and dv apart, so that a small one is not hidden by a large one
        CHECK(
            error_of(columns(dkv[static_cast<size_t>(owner)], kv_width, part * kv_width / 2, (part + 1) * kv_width / 2),
                     columns(expected, kv_width, part * kv_width / 2, (part + 1) * kv_width / 2)) < tolerance);
    }
    if (label.substr(0, 5) != first_isa) first_isa = label.substr(0, 5), first = results;
    for (size_t r = 0; r < results.size(); ++r) {  // bits do not depend on threads
      CHECK((results[r].out == first[r].out && results[r].lse == first[r].lse && results[r].dq == first[r].dq));
      CHECK(results[r].dkv == first[r].dkv);
    }
  };
  for_isas_and_threads<AttentionBlockForward>(
      SLIP_EVERY_ISA(attention_block_forward_cpu),
      [&](LaunchContext& context, auto function, const std::string& label) {
        const Functions of_isa =
            function == isa_baseline::attention_block_forward_cpu
                ? Functions{function, isa_baseline::attention_block_backward_cpu, isa_baseline::columns_take_cpu}
            : function == isa_avx2::attention_block_forward_cpu
                ? Functions{function, isa_avx2::attention_block_backward_cpu, isa_avx2::columns_take_cpu}
                : Functions{function, isa_avx512::attention_block_backward_cpu, isa_avx512::columns_take_cpu};
        run(context, of_isa, label);
      });
}

}  // namespace

TEST_CASE("attention in a ring: every rank's share equals the whole matrix in double", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    check({2, 24, 2, 2, 8, 2}, dtype);
    check({1, 36, 2, 1, 20, 3}, dtype);
    check({1, 16, 1, 1, 4, 4}, dtype);
  }
}

TEST_CASE("attention in a ring: chunks around a tile, and heads that share keys", "[kernels]") {
  check({1, 4 * 63, 2, 2, 16, 2}, DType::f32);
  check({1, 4 * 64, 1, 1, 16, 2}, DType::bf16);
  check({1, 4 * 65, 4, 2, 16, 2}, DType::f32);
  check({1, 6 * 67, 2, 1, 7, 3}, DType::f32);
  check({3, 8, 6, 2, 5, 4}, DType::bf16);
}

TEST_CASE("attention in a ring: scores far apart neither overflow nor lose the largest", "[kernels]") {
  check({1, 132, 1, 1, 8, 2}, DType::f32, 6.0, 1.0f);  // scores up to several hundred
}

TEST_CASE("attention in a ring: one rank gives the bits of attention", "[kernels]") {
  const Shape s = {2, 70, 2, 2, 8, 1};
  const Doubles qkv = random_doubles(s.batch * s.tokens * s.width(), DType::f32, 5);
  Tensor x(qkv, DType::f32), whole(s.batch * s.tokens * s.out_width(), DType::f32),
      lse(s.batch * s.tokens * s.heads, DType::f32);
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  const AttentionForward args = {x.data(), x.data(16), x.data(32), whole.data(), lse.data<float>(), 2, 70, 2, 2, 8,
                                 48,       48,         16,         0.5f,         DType::f32};
  attention_forward(context, args);
  // Cut at a tile of the kernel the same additions follow each other; the first tile is carried in float.
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

TEST_CASE("attention in a ring: the controls are seen", "[kernels]") {
  // What would go wrong silently: the mask of another owner, and queries that are never finished.
  const Shape s = {1, 24, 1, 1, 8, 3};
  const Doubles qkv = random_doubles(s.tokens * s.width(), DType::f32, 9),
                dout = random_doubles(s.tokens * s.out_width(), DType::f32, 10);
  const reference::PackedAttention e = reference::packed_attention(s, qkv, dout, 0.5);
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  const Functions functions{isa_baseline::attention_block_forward_cpu, isa_baseline::attention_block_backward_cpu,
                            isa_baseline::columns_take_cpu};
  std::vector<Tensor> parts, turned;
  for (int rank = 0; rank < s.ranks; ++rank) parts.emplace_back(rows_of(qkv, s, rank, s.width()), DType::f32);
  turned = {parts[0], parts[2], parts[1]};
  const auto error = [&](const std::vector<Tensor>& from, bool early_last) {
    const RankResult r =
        run_rank(context, functions, s, DType::f32, 0, from, rows_of(dout, s, 0, s.out_width()), 0.5f, early_last);
    return error_of(r.out.doubles(), rows_of(e.out, s, 0, s.out_width()));
  };
  CHECK(error(parts, true) < 1e-5);
  CHECK(error(turned, true) < 1e-5);  // the late queries of rank 0 see all keys of the others, in any order
  CHECK(error(parts, false) > 1e-2);
  const RankResult r = run_rank(context, functions, s, DType::f32, 1, turned, rows_of(dout, s, 1, s.out_width()), 0.5f);
  CHECK(error_of(r.out.doubles(), rows_of(e.out, s, 1, s.out_width())) > 1e-2);
}

TEST_CASE("attention in a ring: blocks that cannot be are sentences", "[kernels]") {
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

TEST_CASE("columns: taken as they are, summed in float and rounded once", "[kernels]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    const int64_t rows = 5, width = 19, stride = 23;
    Tensor packed(random_doubles(rows * stride, dtype, 1), dtype), taken(rows * width, dtype);
    Tensor a(random_doubles(rows * width, DType::f32, 2), DType::f32),
        b(random_doubles(rows * width, DType::f32, 3), DType::f32);
    for_isas_and_threads<ColumnsSum>(
        SLIP_EVERY_ISA(columns_sum_cpu), [&](LaunchContext& context, auto sum, const std::string&) {
          columns_take(context, {packed.data(4), taken.data(), rows, width, stride, dtype});
          CHECK(taken.doubles() == columns(packed.doubles(), stride, 4, stride));
          Tensor to = packed;
          sum(context, {a.data<float>(), b.data<float>(), to.data(4), rows, width, stride, dtype});
          Doubles expected = reference::sum(a.doubles(), b.doubles(), reference::kFloatBits);
          for (double& value : expected)
            value = dtype == DType::f32 ? value : reference::rounded(value, reference::kBfloat16Bits);
          CHECK(columns(to.doubles(), stride, 4, stride) == expected);
          CHECK(columns(to.doubles(), stride, 0, 4) == columns(packed.doubles(), stride, 0, 4));
          CHECK((to.guard_intact() && taken.guard_intact()));
        });
  }
}
