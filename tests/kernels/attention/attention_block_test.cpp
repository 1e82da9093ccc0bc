// SPDX-License-Identifier: Apache-2.0
// Attention block by block, as a ring of ranks computes it, against the whole matrix of the whole sequence in double.

#include "engine/base/check.h"
#include "engine/base/context_chunks.h"
#include "kernels/attention/attention.h"
#include "kernels/columns/columns.h"
#include "tests/kernels/common/op_test.h"
#include "tests/reference/elementwise.h"
#include "tests/reference/masked_attention.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::columns;

namespace {

struct Shape : reference::AttentionShape {  // tokens of the whole sequence
  int ranks;
  int64_t window = 0;
  int64_t longest = 0;  // document; 0: none
  double rate = 0;      // of dropout

  reference::Masks masks() const { return reference::masks_of(*this, window, longest, rate); }
  ContextChunks chunks(int rank) const { return {.tokens = tokens, .ranks = ranks, .rank = rank}; }
  reference::Share share(int rank) const { return {.tokens = tokens, .ranks = ranks, .rank = rank}; }
};

/// One rank's rows, from rows of whole sequences.
Doubles rows_of(const Doubles& whole, const Shape& s, int rank, int64_t width) {
  return reference::rows_of_rank(whole, s.batch, s.share(rank), width);
}

struct Functions {
  CpuFunction<AttentionBlockForward> forward;
  CpuFunction<AttentionBlockBackward> backward;
  CpuFunction<ColumnsTake> take;
};

/// One rank's results in a ring, and its contribution to the gradients of every owner's keys.
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
  const reference::Masks masks = s.masks();
  const std::vector<int32_t> begins = reference::begins_of_rank(masks, s.batch, s.share(rank));
  std::vector<DropoutSample> samples;
  for (uint32_t sequence : masks.sequences) samples.push_back({.step = masks.step, .sequence = sequence});
  const AttentionDropout dropout{.samples = samples.data(), .key = masks.key, .rate = s.rate};
  const auto mask = [&](auto& all, int owner) {
    all.window = s.window;
    if (!begins.empty()) all.document_begins = begins.data();
    if (s.rate > 0) all.dropout = &dropout;
    all.queries = chunks;
    all.keys = s.chunks(owner);
  };
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
    mask(args.all, chunks.owner(step));
    run.forward(context, args);
    if (args.last && args.block.first_query > 0 && early_last) {
      args.block = {.first_query = 0, .queries = args.block.first_query, .first_key = 0, .keys = 0, .causal = false};
      run.forward(context, args);
    }
  }
  // In backward the own keys come last.
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
                                   .first = turn == 0 && chunks.block(owner).queries == local,
                                   .last = turn + 1 == s.ranks};
    Tensor workspace(attention_backward_workspace_elems(args.all), DType::f32);
    args.all.workspace = workspace.data<float>();
    mask(args.all, owner);
    // A first block of the late queries alone leaves the early ones: a sum that starts from zero serves both.
    if (turn == 0 && !args.first) dq_sum = Tensor(Doubles(static_cast<size_t>(rows * s.out_width())), DType::f32);
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
  INFO(fmt::format("seed {} {} B{} T{} H{}/{} E{} over {} ranks, window {}, documents of {}, dropout {}", seed,
                   name_of(dtype), s.batch, s.tokens, s.heads, s.kv_heads, s.head_dim, s.ranks, s.window, s.longest,
                   s.rate));
  const Doubles qkv = random_doubles(s.batch * s.tokens * s.width(), dtype, seed, spread),
                dout = random_doubles(s.batch * s.tokens * s.out_width(), dtype, seed + 1);
  if (scale == 0.0f) scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  const bool masked = s.window > 0 || s.longest > 0 || s.rate > 0;
  const reference::PackedAttention e = masked ? reference::masked_attention(s, qkv, dout, scale, s.masks())
                                              : reference::packed_attention(s, qkv, dout, scale);
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
      for (int part : {0, 1})  // dk and dv separately, so that a small one is not hidden by a large one
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

TEST_CASE("attention in a ring: the reference with masks is that without, and its gradients are central differences",
          "[kernels]") {
  const Shape s = {2, 12, 2, 1, 3, 1, 4, 5, 0.3};
  const Doubles qkv = random_doubles(s.batch * s.tokens * s.width(), DType::f32, 1),
                dout = random_doubles(s.batch * s.tokens * s.out_width(), DType::f32, 2);
  const auto close = [&](const reference::PackedAttention& a, const reference::PackedAttention& b) {
    CHECK(error_of(a.out, b.out) < 1e-12);
    CHECK(error_of(a.lse, b.lse) < 1e-12);
    CHECK(error_of(a.dqkv, b.dqkv) < 1e-12);
  };
  for (const int64_t window : {0, 1, 4, 12}) {
    reference::Masks masks = reference::masks_of(s, window, 0, 0);
    close(reference::masked_attention(s, qkv, dout, 0.7, masks),
          reference::packed_attention(s, qkv, dout, 0.7, window));
    masks.begins = reference::document_begins(s, 5);
    close(reference::masked_attention(s, qkv, dout, 0.7, masks),
          reference::packed_documents(s, qkv, dout, 0.7, window, masks.begins));
  }
  const auto loss = [&](const Doubles& x) {
    return dot(dout, reference::masked_attention(s, x, dout, 0.7, s.masks()).out);
  };
  CHECK(error_of(reference::masked_attention(s, qkv, dout, 0.7, s.masks()).dqkv, central_differences(loss, qkv)) <
        1e-7);
}

TEST_CASE("attention in a ring: tokens see the last ones of a window", "[kernels]") {
  for (const int ranks : {1, 2, 4})
    for (const int64_t window : {1, 2, 5, 8, 9, 16, 17, 24, 39, 40, 100}) {  // chunks of 20, 10 and 5 tokens
      check({1, 40, 2, 1, 8, ranks, window}, DType::f32);
      if (window % 2 == 1) check({2, 40, 4, 2, 12, ranks, window}, DType::bf16);
    }
  // Around tiles of 64: chunks of 65, 63 and 75 tokens.
  for (const int64_t window : {1, 60, 64, 65, 66, 130, 200}) check({1, 4 * 65, 2, 1, 16, 2, window}, DType::f32);
  for (const int64_t window : {63, 190}) check({1, 4 * 63, 2, 2, 16, 2, window}, DType::bf16);
  for (const int64_t window : {20, 149}) check({1, 6 * 75, 2, 1, 7, 3, window}, DType::f32);
}

TEST_CASE("attention in a ring: windows, documents and dropout together", "[kernels]") {
  for (const int ranks : {1, 2, 4})
    for (const int64_t window : {0, 3, 7, 16})
      for (const double rate : {0.0, 0.3}) {
        check({2, 48, 4, 2, 8, ranks, window, 11, rate}, DType::f32);
        check({1, 48, 2, 1, 20, ranks, window, 0, rate}, DType::bf16);
      }
  check({1, 4 * 65, 2, 1, 16, 2, 80, 100, 0.2}, DType::f32);
}

TEST_CASE("attention in a ring: the check detects a window that is one token off", "[kernels]") {
  const Shape s = {1, 24, 1, 1, 8, 3, 7};
  const Doubles qkv = random_doubles(s.tokens * s.width(), DType::f32, 9),
                dout = random_doubles(s.tokens * s.out_width(), DType::f32, 10);
  const auto out = [&](int64_t window) {
    return reference::masked_attention(s, qkv, dout, 0.5, reference::masks_of(s, window, 0, 0)).out;
  };
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  const Functions functions{isa_baseline::attention_block_forward_cpu, isa_baseline::attention_block_backward_cpu,
                            isa_baseline::columns_take_cpu};
  std::vector<Tensor> parts;
  for (int rank = 0; rank < s.ranks; ++rank) parts.emplace_back(rows_of(qkv, s, rank, s.width()), DType::f32);
  for (int rank = 0; rank < s.ranks; ++rank) {
    const RankResult r =
        run_rank(context, functions, s, DType::f32, rank, parts, rows_of(dout, s, rank, s.out_width()), 0.5f);
    const auto error = [&](int64_t window) {
      return error_of(r.out.doubles(), rows_of(out(window), s, rank, s.out_width()));
    };
    CHECK(error(7) < 1e-5);
    CHECK(error(6) > 1e-3);
    CHECK(error(8) > 1e-3);
  }
}

TEST_CASE("attention in a ring: a block costs the pairs that its window leaves", "[kernels]") {
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

TEST_CASE("attention in a ring: the checks detect every wrong control", "[kernels]") {
  // Silent mistakes: the mask of another owner, and queries that are never finished.
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

TEST_CASE("attention in a ring: impossible blocks are refused", "[kernels]") {
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

TEST_CASE("columns: copied bit for bit, summed in float and rounded once", "[kernels]") {
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
