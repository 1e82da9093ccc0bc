// SPDX-License-Identifier: Apache-2.0
// Attention block by block, as a ring of ranks computes it, against the whole matrix of the whole sequence in double:
// the CPU, the general path of the GPU, its tensor cores, and rings that mix both.

#include <memory>
#include <set>
#include <string>

#include "engine/base/context_chunks.h"
#include "kernels/attention/attention.h"
#include "kernels/columns/columns.h"
#include "tests/kernels/common/backend.h"
#include "tests/reference/masked_attention.h"
#include "tests/sample.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::columns, reference::rows_of_rank;

namespace {

struct Shape : reference::AttentionShape {  // tokens of the whole sequence
  int ranks;
  int64_t window = 0;
  int64_t longest = 0;  // document; 0: none
  double rate = 0;      // of dropout

  reference::Masks masks() const { return reference::masks_of(*this, window, longest, rate); }
  ContextChunks chunks(int rank) const { return {.tokens = tokens, .ranks = ranks, .rank = rank}; }
  reference::Share share(int rank) const { return {.tokens = tokens, .ranks = ranks, .rank = rank}; }
  int64_t rows() const { return batch * tokens / ranks; }  // of a rank
  int64_t kv_width() const { return 2 * kv_heads * head_dim; }
};

/// One rank's results in a ring, and its contribution to the gradients of every owner's keys.
struct RankResult {
  Doubles out, lse, dq;
  std::vector<Doubles> dkv;  // by owner
};

/// Silent mistakes of a ring of three ranks.
struct Mistakes {
  bool owners_1_and_2_changed = false;  // the keys of one with the mask of the other
  bool early_queries_left = false;      // never finished
};

/// Keys of odd owners are `shift` elements further, which excludes their blocks from the tensor cores.
RankResult run_rank(LaunchContext& context, const Shape& s, DType dtype, int rank, const Doubles& qkv,
                    const Doubles& dout, float scale, int64_t shift = 0, const Mistakes& mistakes = {}) {
  const ContextChunks chunks = s.chunks(rank);
  const int64_t local = chunks.local_tokens(), sums = s.rows() * s.out_width(), heads = s.rows() * s.heads;
  const auto packed_of = [&](int owner) {
    return OnDevice(rows_of_rank(qkv, s.batch, s.share(owner), s.width()), dtype, "packed");
  };
  const auto keys_of = [&](int owner) {
    const OnDevice from = packed_of(mistakes.owners_1_and_2_changed && owner > 0 ? 3 - owner : owner);
    auto kv = std::make_unique<OnDevice>(s.rows() * s.kv_width(), dtype, "keys and values", owner % 2 * shift);
    columns_take(context, {from.data(s.out_width()), kv->data(), s.rows(), s.kv_width(), s.width(), dtype});
    return kv;
  };
  const reference::Masks masks = s.masks();
  const std::vector<int32_t> begins = reference::begins_of_rank(masks, s.batch, s.share(rank));
  std::vector<int32_t> samples;  // DropoutSample
  for (uint32_t sequence : masks.sequences)
    samples.insert(samples.end(), {static_cast<int32_t>(masks.step), static_cast<int32_t>(sequence)});
  const OnDevice begins_there(begins.empty() ? std::vector<int32_t>{0} : begins, "begins"),
      samples_there(samples, "samples");
  // A rank's first head is the third of the model.
  const AttentionDropout dropout{
      .samples = samples_there.data<DropoutSample>(), .key = masks.key - 2, .rate = s.rate, .first_head = 2};
  const auto mask = [&](auto& all, int owner) {
    all.window = s.window;
    if (!begins.empty()) all.document_begins = begins_there.data<int32_t>();
    if (s.rate > 0) all.dropout = &dropout;
    all.queries = chunks;
    all.keys = s.chunks(owner);
  };
  const OnDevice q = packed_of(rank), d(rows_of_rank(dout, s.batch, s.share(rank), s.out_width()), dtype, "dout");
  OnDevice out(sums, dtype, "out"), lse(heads, DType::f32, "lse"), carried(sums, DType::f32, "carried"),
      maximum(heads, DType::f32, "maximum"), sum(heads, DType::f32, "sum");
  for (int step = 0; step < s.ranks; ++step) {
    const auto kv = keys_of(chunks.owner(step));
    AttentionBlockForward args = {
        .all = {q.data(), kv->data(), kv->data(s.kv_width() / 2), out.data(), lse.data<float>(), s.batch, local,
                s.heads, s.kv_heads, s.head_dim, s.width(), s.kv_width(), s.out_width(), scale, dtype},
        .block = chunks.block(chunks.owner(step)),
        .carried = {carried.data<float>(), maximum.data<float>(), sum.data<float>()},
        .first = step == 0,
        .last = step + 1 == s.ranks};
    mask(args.all, chunks.owner(step));
    attention_block_forward(context, args);
    if (!args.last || args.block.first_query == 0 || mistakes.early_queries_left) continue;
    args.block = {.first_query = 0, .queries = args.block.first_query, .first_key = 0, .keys = 0, .causal = false};
    attention_block_forward(context, args);
  }
  RankResult r{out.doubles(), lse.doubles(), {}, std::vector<Doubles>(static_cast<size_t>(s.ranks))};
  // In backward the own keys come last. A first block of the late queries alone leaves the early ones: a sum that
  // starts from zero serves both.
  OnDevice dq(sums, dtype, "dq"), dq_sum(Doubles(static_cast<size_t>(sums)), DType::f32, "dq_sum");
  for (int turn = 0; turn < s.ranks; ++turn) {
    const int owner = chunks.owner((turn + 1) % s.ranks);
    const AttentionBlock block = chunks.block(owner);
    const auto kv = keys_of(owner);
    const OnDevice dkv(Doubles(static_cast<size_t>(s.rows() * s.kv_width()), 7.0), DType::f32, "dkv");
    AttentionBlockBackward args = {.all = {d.data(),      q.data(),
                                           kv->data(),    kv->data(s.kv_width() / 2),
                                           out.data(),    lse.data<float>(),
                                           dq.data(),     nullptr,
                                           nullptr,       nullptr,
                                           s.batch,       local,
                                           s.heads,       s.kv_heads,
                                           s.head_dim,    s.width(),
                                           s.kv_width(),  s.out_width(),
                                           s.out_width(), 0,
                                           scale,         dtype},
                                   .block = block,
                                   .dq_sum = s.ranks > 1 ? dq_sum.data<float>() : nullptr,
                                   .dkv = dkv.data<float>(),
                                   .first = turn == 0 && block.queries == local,
                                   .last = turn + 1 == s.ranks};
    const OnDevice workspace(attention_backward_workspace_elems(args.all), DType::f32, "workspace");
    args.all.workspace = workspace.data<float>();
    mask(args.all, owner);
    attention_block_backward(context, args);
    r.dkv[static_cast<size_t>(owner)] = dkv.doubles();
    CHECK((dkv.intact() && workspace.intact() && kv->intact()));
  }
  r.dq = dq.doubles();
  CHECK((out.intact() && lse.intact() && dq.intact() && carried.intact() && maximum.intact() && sum.intact() &&
         dq_sum.intact()));
  return r;
}

void check(const Shape& s, DType dtype, int64_t shift = 0, double spread = 1.0, float scale = 0.0f) {
  const auto seed = static_cast<uint32_t>(s.tokens * 1000 + s.head_dim + s.ranks);
  CAPTURE(seed, name_of(dtype), s.batch, s.tokens, s.heads, s.kv_heads, s.head_dim, s.ranks, shift, s.window, s.longest,
          s.rate);
  const Doubles qkv = random_doubles(s.batch * s.tokens * s.width(), dtype, seed, spread),
                dout = random_doubles(s.batch * s.tokens * s.out_width(), dtype, seed + 1);
  if (scale == 0.0f) scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  const bool masked = s.window > 0 || s.longest > 0 || s.rate > 0;
  const reference::PackedAttention e = masked ? reference::masked_attention(s, qkv, dout, scale, s.masks())
                                              : reference::packed_attention(s, qkv, dout, scale);
  // bf16: out is rounded before dout . out is taken, and the result is rounded; a GPU rounds weights and slopes before
  // they are multiplied, too.
  const int roundings = on_cpu() ? 1 : 2;
  const double forward = forward_tolerance(dtype, s.head_dim + s.tokens, roundings),
               backward = gradient_tolerance(dtype, s.head_dim + s.tokens, 1 + roundings);
  Same<std::vector<Doubles>> same;
  for_machines([&](LaunchContext& context) {
    std::vector<Doubles> dkv(static_cast<size_t>(s.ranks), Doubles(static_cast<size_t>(s.rows() * s.kv_width())));
    std::vector<Doubles> results;
    for (int rank = 0; rank < s.ranks; ++rank) {
      CAPTURE(rank);
      const reference::Share share = s.share(rank);
      const RankResult r = run_rank(context, s, dtype, rank, qkv, dout, scale, shift);
      CHECK(error_of(r.out, rows_of_rank(e.out, s.batch, share, s.out_width())) < forward);
      CHECK(error_of(r.lse, rows_of_rank(e.lse, s.batch * s.heads, share, 1)) <
            forward_tolerance(DType::f32, s.head_dim));
      CHECK(error_of(r.dq, columns(rows_of_rank(e.dqkv, s.batch, share, s.width()), s.width(), 0, s.out_width())) <
            backward);
      results.insert(results.end(), {r.out, r.lse, r.dq});
      results.insert(results.end(), r.dkv.begin(), r.dkv.end());
      for (size_t owner = 0; owner < dkv.size(); ++owner)
        for (size_t i = 0; i < dkv[owner].size(); ++i) dkv[owner][i] += r.dkv[owner][i];
    }
    for (int owner = 0; owner < s.ranks; ++owner)
      for (int64_t part : {0, 1}) {  // dk and dv separately, so that a small one is not hidden by a large one
        CAPTURE(owner, part);
        const int64_t half = s.kv_width() / 2, begin = s.out_width() + part * half;
        CHECK(error_of(columns(dkv[static_cast<size_t>(owner)], s.kv_width(), part * half, (part + 1) * half),
                       columns(rows_of_rank(e.dqkv, s.batch, s.share(owner), s.width()), s.width(), begin,
                               begin + half)) < backward);
      }
    CHECK(same(results));
  });
}

}  // namespace

TEST_CASE("attention in a ring: every rank's share equals the whole matrix in double", "[.][cpu]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    check({2, 24, 2, 2, 8, 2}, dtype);
    check({1, 36, 2, 1, 20, 3}, dtype);
    check({1, 16, 1, 1, 4, 4}, dtype);
  }
}

TEST_CASE("attention in a ring: chunks around a tile, and heads that share keys", "[.][cpu]") {
  check({1, 4 * 63, 2, 2, 16, 2}, DType::f32);
  check({1, 4 * 64, 1, 1, 16, 2}, DType::bf16);
  check({1, 4 * 65, 4, 2, 16, 2}, DType::f32);
  check({1, 6 * 67, 2, 1, 7, 3}, DType::f32);
  check({3, 8, 6, 2, 5, 4}, DType::bf16);
}

TEST_CASE("attention in a ring: the reference with masks is that without, and its gradients are central differences",
          "[.][cpu]") {
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

TEST_CASE("attention in a ring: tokens see the last ones of a window", "[.][cpu]") {
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

TEST_CASE("attention in a ring: windows, documents and dropout together", "[.][cpu]") {
  for (const int ranks : {1, 2, 4})
    for (const int64_t window : {0, 3, 7, 16})
      for (const double rate : {0.0, 0.3}) {
        check({2, 48, 4, 2, 8, ranks, window, 11, rate}, DType::f32);
        check({1, 48, 2, 1, 20, ranks, window, 0, rate}, DType::bf16);
      }
  check({1, 4 * 65, 2, 1, 16, 2, 80, 100, 0.2}, DType::f32);
}

TEST_CASE("attention in a ring: scores far apart neither overflow nor lose the largest") {
  check({1, 132, 1, 1, 8, 2}, DType::f32, 0, 6.0, 1.0f);  // scores up to several hundred
}

TEST_CASE("attention in a ring: the check detects a window that is one token off") {
  const Shape s = {1, 24, 1, 1, 8, 3, 7};
  const Doubles qkv = random_doubles(s.tokens * s.width(), DType::f32, 9),
                dout = random_doubles(s.tokens * s.out_width(), DType::f32, 10);
  LaunchContext context = a_context();
  for (int rank = 0; rank < s.ranks; ++rank) {
    const RankResult r = run_rank(context, s, DType::f32, rank, qkv, dout, 0.5f);
    const auto error = [&](int64_t window) {
      const reference::Masks masks = reference::masks_of(s, window, 0, 0);
      return error_of(r.out, rows_of_rank(reference::masked_attention(s, qkv, dout, 0.5, masks).out, s.batch,
                                          s.share(rank), s.out_width()));
    };
    CHECK(error(7) < 1e-5);
    CHECK(error(6) > 1e-3);
    CHECK(error(8) > 1e-3);
  }
}

TEST_CASE("attention in a ring: the checks detect every wrong control") {
  const Shape s = {1, 24, 1, 1, 8, 3};
  const Doubles qkv = random_doubles(s.tokens * s.width(), DType::f32, 9),
                dout = random_doubles(s.tokens * s.out_width(), DType::f32, 10);
  const reference::PackedAttention e = reference::packed_attention(s, qkv, dout, 0.5);
  LaunchContext context = a_context();
  const auto error = [&](int rank, const Mistakes& mistakes) {
    return error_of(run_rank(context, s, DType::f32, rank, qkv, dout, 0.5f, 0, mistakes).out,
                    rows_of_rank(e.out, s.batch, s.share(rank), s.out_width()));
  };
  CHECK(error(0, {}) < 1e-5);
  // The late queries of rank 0 see all keys of the others, in any order.
  CHECK(error(0, {.owners_1_and_2_changed = true}) < 1e-5);
  CHECK(error(0, {.early_queries_left = true}) > 1e-2);
  CHECK(error(1, {.owners_1_and_2_changed = true}) > 1e-2);
}

TEST_CASE("attention in a ring, general path: every rank's share equals the whole matrix in double", "[cuda]") {
  check({1, 16, 1, 1, 4, 2}, DType::f32);
  check({2, 132, 2, 1, 20, 2}, DType::f32);  // chunks of 33: a tile and a row
  check({1, 192, 4, 2, 8, 3}, DType::bf16);
  check({1, 20, 2, 2, 72, 2}, DType::bf16);
  check({1, 68, 2, 1, 136, 2}, DType::f32);  // chunks of 17: one of the tiles for wide heads, and a row
}

TEST_CASE("attention in a ring, general path: tokens see the last ones of a window", "[cuda]") {
  for (const int ranks : {1, 2, 4})
    for (const int64_t window : {1, 4, 10, 11, 25, 40}) check({1, 40, 2, 1, 4, ranks, window}, DType::f32);
  // Around tiles of 32: chunks of 33 tokens; tiles of 16 and chunks of 17.
  for (const int64_t window : {1, 30, 33, 70}) check({1, 132, 1, 1, 8, 2, window}, DType::f32);
  check({1, 68, 2, 1, 136, 2, 20}, DType::f32);
  check({1, 36, 2, 1, 72, 3, 7}, DType::bf16);
}

TEST_CASE("attention in a ring, general path: windows, documents and dropout together", "[cuda]") {
  for (const int ranks : {1, 2, 4})
    for (const int64_t window : {0, 3, 10}) {
      check({2, 32, 2, 1, 8, ranks, window, 11, 0.3}, DType::f32);
      check({1, 32, 2, 1, 8, ranks, window, 11}, DType::bf16);
    }
  check({1, 132, 2, 1, 8, 2, 40, 60, 0.2}, DType::f32);
}

TEST_CASE("attention in a ring, tensor cores: every rank's share equals the whole matrix in double", "[cuda]") {
  check({1, 4, 1, 1, 64, 2}, DType::bf16);       // chunks of one token
  check({2, 36, 4, 2, 64, 3}, DType::bf16);      // one tile; a block in the middle
  check({1, 4 * 64, 1, 1, 64, 2}, DType::bf16);  // whole tiles
  check({1, 4 * 63, 1, 1, 64, 2}, DType::bf16);  // a tile except for its last key
  check({1, 4 * 65, 1, 1, 64, 2}, DType::bf16);  // chunks of a tile and a row, three tiles of keys
  check({1, 6 * 33, 2, 1, 128, 3}, DType::bf16);
  check({2, 70, 2, 2, 64, 1}, DType::bf16);  // one block that is first and last, with gradients that travel
}

TEST_CASE("attention in a ring, tensor cores: windows, documents and dropout together", "[cuda]") {
  for (const int ranks : {1, 2, 4})
    for (const int64_t window : {0, 3, 10}) {
      check({2, 32, 2, 1, 64, ranks, window, 11, 0.3}, DType::bf16);
      check({1, 32, 2, 1, 64, ranks, window, 11}, DType::bf16);
    }
  // Around tiles of 32 and 64: chunks of 68 and 36 tokens.
  check({1, 4 * 68, 1, 1, 64, 2, 90, 150, 0.2}, DType::bf16);
  for (const int64_t window : {1, 64, 130}) check({1, 4 * 68, 1, 1, 64, 2, window}, DType::bf16);
  check({1, 4 * 68, 1, 1, 64, 2, 0, 150}, DType::bf16);
  check({1, 6 * 36, 2, 1, 128, 3, 50, 100, 0.2}, DType::bf16);
  check({1, 4 * 18, 2, 1, 64, 2, 20, 40, 0.2}, DType::bf16);  // chunks that are no whole fours: the general path
}

TEST_CASE("attention in a ring, sm_90a: every rank's share equals the whole matrix in double", "[cuda]") {
  const emulation::Capability hopper(90);
  check({1, 4, 1, 1, 64, 2}, DType::bf16);        // chunks of one token
  check({2, 36, 4, 2, 64, 3}, DType::bf16);       // one tile; a block in the middle
  check({1, 4 * 128, 1, 1, 64, 2}, DType::bf16);  // whole tiles of keys
  check({1, 4 * 97, 2, 1, 64, 2}, DType::bf16);   // blocks of queries that begin before the first one
  check({1, 6 * 33, 2, 1, 128, 3}, DType::bf16);
  check({1, 4 * 65, 1, 1, 128, 2}, DType::bf16);  // a tile of keys and two rows
  check({2, 70, 2, 2, 64, 1}, DType::bf16);       // one block that is first and last, with gradients that travel
}

TEST_CASE("attention in a ring, sm_90a: windows, documents and dropout", "[cuda]") {
  const emulation::Capability hopper(90);
  // With a window of 50 no query sees the first block of the other keys.
  for (const int64_t window : {1, 50, 97, 300}) check({1, 4 * 97, 1, 1, 64, 2, window}, DType::bf16);
  for (const int64_t longest : {1, 200}) check({1, 4 * 97, 2, 1, 64, 2, 0, longest}, DType::bf16);
  check({1, 8 * 36, 2, 1, 128, 4, 90, 100}, DType::bf16);
  check({2, 4 * 76, 2, 1, 64, 2, 0, 110, 0.3}, DType::bf16);
  check({1, 4 * 132, 1, 1, 128, 2, 70, 0, 0.2}, DType::bf16);
  check({1, 300, 2, 1, 64, 1, 40, 150, 0.3}, DType::bf16);  // one block that is first and last
  check({1, 270, 2, 2, 128, 1, 0, 0, 0.5}, DType::bf16);
}

TEST_CASE("attention in a ring, sm_90a: backward by 128 queries", "[cuda]") {
  const emulation::Capability hopper(90);
  const Queries128 queries;
  check({2, 36, 4, 2, 64, 3}, DType::bf16);
  check({1, 4 * 97, 2, 1, 64, 2}, DType::bf16);
  check({1, 4 * 97, 1, 1, 64, 2, 97}, DType::bf16);
  check({2, 4 * 76, 2, 1, 64, 2, 0, 110, 0.3}, DType::bf16);
}

TEST_CASE("attention in a ring: the carried state is the same for the general path and the tensor cores", "[cuda]") {
  for (int capability : {80, 90})
    for (int64_t head_dim : {64, 128}) {
      if (!test_everything() && (capability == 90) != (head_dim == 128)) continue;
      const emulation::Capability emulated(capability);
      check({1, 4 * 18, 2, 1, head_dim, 4}, DType::bf16, 1);
      check({1, 8 * 12, 2, 1, head_dim, 4, 40, 50, 0.2}, DType::bf16, 1);
    }
}

TEST_CASE("attention in a ring, general path: dropout of the weights", "[cuda]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int ranks : {2, 3}) check({1, 36 * ranks, 2, 1, 16, ranks, 0, 0, 0.3}, dtype);
}

TEST_CASE("attention in a ring, tensor cores: dropout of the weights", "[cuda]") {
  for (int ranks : {2, 3}) check({1, 72 * ranks, 1, 1, 64, ranks, 0, 0, 0.3}, DType::bf16);
}

TEST_CASE("attention in a ring, sm_90a: dropout of the weights, and chunks that take another path", "[cuda]") {
  const emulation::Capability hopper(90);
  const std::set<std::string> before = attention_fallbacks();
  check({1, 152 * 3, 1, 1, 64, 3, 0, 0, 0.3}, DType::bf16);
  check({1, 264 * 2, 1, 1, 128, 2, 0, 0, 0.3}, DType::bf16);
  {
    const Queries128 queries;
    check({1, 152 * 3, 1, 1, 64, 3, 0, 0, 0.3}, DType::bf16);
  }
  if (on_gpu()) return;
  CHECK(attention_fallbacks() == before);
  check({1, 38 * 2, 1, 1, 64, 2, 0, 0, 0.3}, DType::bf16);  // chunks of 19: fours of keys are not fours of positions
  CHECK(attention_fallbacks().size() == before.size() + 2);
}
