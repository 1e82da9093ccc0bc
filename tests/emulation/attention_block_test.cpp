// SPDX-License-Identifier: Apache-2.0
// Attention block by block on the emulated device against the CPU's blocks, whose reference is the whole matrix in
// double (tests/kernels/norms/attention_block_test.cpp).

#include <memory>

#include "engine/base/context_chunks.h"
#include "kernels/attention/attention.h"
#include "kernels/columns/columns.h"
#include "tests/emulation/on_device.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

struct Shape {
  int64_t batch, tokens, heads, kv_heads, head_dim;  // tokens of a rank
  int ranks;

  int64_t rows() const { return batch * tokens; }
  int64_t width() const { return (heads + 2 * kv_heads) * head_dim; }
  int64_t out_width() const { return heads * head_dim; }
  int64_t kv_width() const { return 2 * kv_heads * head_dim; }
};

/// All that the blocks of one rank write, in memory of either kind.
template <typename Place>
struct Results {
  std::unique_ptr<Place> out, lse, dq, carried, maximum, sum, dq_sum;
  std::vector<Doubles> dkv;
};

std::unique_ptr<Tensor> make(const Doubles& values, DType dtype, Tensor*) {
  return std::make_unique<Tensor>(values, dtype);
}
std::unique_ptr<OnDevice> make(const Doubles& values, DType dtype, OnDevice*) {
  return std::make_unique<OnDevice>(values, dtype, "operand");
}

template <typename Place>
Results<Place> run(LaunchContext& context, const Shape& s, DType dtype, int rank, const std::vector<Doubles>& qkv,
                   const Doubles& dout) {
  const auto place = [](const Doubles& values, DType type) { return make(values, type, static_cast<Place*>(nullptr)); };
  const auto zeros = [&](int64_t elems, DType type) { return place(Doubles(static_cast<size_t>(elems)), type); };
  const ContextChunks chunks{.tokens = s.tokens * s.ranks, .ranks = s.ranks, .rank = rank};
  const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  Results<Place> r{zeros(s.rows() * s.out_width(), dtype),      zeros(s.rows() * s.heads, DType::f32),
                   zeros(s.rows() * s.out_width(), dtype),      zeros(s.rows() * s.out_width(), DType::f32),
                   zeros(s.rows() * s.heads, DType::f32),       zeros(s.rows() * s.heads, DType::f32),
                   zeros(s.rows() * s.out_width(), DType::f32), {}};
  const auto q = place(qkv[static_cast<size_t>(rank)], dtype), d = place(dout, dtype);
  const auto keys_of = [&](int owner) {
    const auto from = place(qkv[static_cast<size_t>(owner)], dtype);
    auto kv = zeros(s.rows() * s.kv_width(), dtype);
    columns_take(context, {from->data(s.out_width()), kv->data(), s.rows(), s.kv_width(), s.width(), dtype});
    return kv;
  };
  for (int step = 0; step < s.ranks; ++step) {
    const auto kv = keys_of(chunks.owner(step));
    AttentionBlockForward args = {.all = {q->data(), kv->data(), kv->data(s.kv_width() / 2), r.out->data(),
                                          r.lse->template data<float>(), s.batch, s.tokens, s.heads, s.kv_heads,
                                          s.head_dim, s.width(), s.kv_width(), s.out_width(), scale, dtype},
                                  .block = chunks.block(chunks.owner(step)),
                                  .carried = {r.carried->template data<float>(), r.maximum->template data<float>(),
                                              r.sum->template data<float>()},
                                  .first = step == 0,
                                  .last = step + 1 == s.ranks};
    attention_block_forward(context, args);
    if (!args.last || args.block.first_query == 0) continue;
    args.block = {.first_query = 0, .queries = args.block.first_query, .first_key = 0, .keys = 0, .causal = false};
    attention_block_forward(context, args);
  }
  for (int turn = 0; turn < s.ranks; ++turn) {
    const int owner = chunks.owner((turn + 1) % s.ranks);
    const auto kv = keys_of(owner), dkv = place(Doubles(static_cast<size_t>(s.rows() * s.kv_width()), 7.0), DType::f32);
    AttentionBlockBackward args = {.all = {d->data(),     q->data(),
                                           kv->data(),    kv->data(s.kv_width() / 2),
                                           r.out->data(), r.lse->template data<float>(),
                                           r.dq->data(),  nullptr,
                                           nullptr,       nullptr,
                                           s.batch,       s.tokens,
                                           s.heads,       s.kv_heads,
                                           s.head_dim,    s.width(),
                                           s.kv_width(),  s.out_width(),
                                           s.out_width(), 0,
                                           scale,         dtype},
                                   .block = chunks.block(owner),
                                   .dq_sum = r.dq_sum->template data<float>(),
                                   .dkv = dkv->template data<float>(),
                                   .first = false,
                                   .last = turn + 1 == s.ranks};
    const auto workspace = zeros(attention_backward_workspace_elems(args.all), DType::f32);
    args.all.workspace = workspace->template data<float>();
    attention_block_backward(context, args);
    r.dkv.push_back(dkv->doubles());
    if constexpr (std::is_same_v<Place, OnDevice>) CHECK((dkv->intact() && workspace->intact() && kv->intact()));
  }
  if constexpr (std::is_same_v<Place, OnDevice>)
    CHECK((r.out->intact() && r.lse->intact() && r.dq->intact() && r.carried->intact() && r.maximum->intact() &&
           r.sum->intact() && r.dq_sum->intact()));
  return r;
}

void check(const Shape& s, DType dtype) {
  const auto seed = static_cast<uint32_t>(s.tokens * 1000 + s.head_dim + s.ranks);
  CAPTURE(seed, name_of(dtype), s.batch, s.tokens, s.heads, s.kv_heads, s.head_dim, s.ranks);
  std::vector<Doubles> qkv;
  for (int rank = 0; rank < s.ranks; ++rank)
    qkv.push_back(random_doubles(s.rows() * s.width(), dtype, seed + static_cast<uint32_t>(rank)));
  const Doubles dout = random_doubles(s.rows() * s.out_width(), dtype, seed + 100);
  ThreadPool pool(1);
  LaunchContext cpu;
  cpu.pool = &pool;
  for (int rank = 0; rank < s.ranks; ++rank) {
    CAPTURE(rank);
    const Results<Tensor> expected = run<Tensor>(cpu, s, dtype, rank, qkv, dout);
    const int64_t tokens = s.tokens * s.ranks;
    const double tolerance = gradient_tolerance(dtype, s.head_dim + tokens, 2);
    for_orders([&](LaunchContext& context) {
      const Results<OnDevice> got = run<OnDevice>(context, s, dtype, rank, qkv, dout);
      CHECK(error_of(got.out->doubles(), expected.out->doubles()) < forward_tolerance(dtype, s.head_dim + tokens));
      CHECK(error_of(got.lse->doubles(), expected.lse->doubles()) < forward_tolerance(DType::f32, s.head_dim));
      CHECK(error_of(got.dq->doubles(), expected.dq->doubles()) < tolerance);
      for (size_t turn = 0; turn < expected.dkv.size(); ++turn)
        CHECK(error_of(got.dkv[turn], expected.dkv[turn]) < tolerance);
    });
  }
}

}  // namespace

TEST_CASE("attention in a ring: the device computes the CPU's blocks") {
  check({1, 8, 1, 1, 4, 2}, DType::f32);
  check({2, 66, 2, 1, 20, 2}, DType::f32);  // chunks of 33: a tile and a row
  check({1, 64, 4, 2, 8, 3}, DType::bf16);
  check({1, 10, 2, 2, 72, 2}, DType::bf16);
  check({1, 34, 2, 1, 136, 2}, DType::f32);  // chunks of 17: one of the tiles for wide heads, and a row
}

TEST_CASE("columns: the device moves and rounds as the CPU does") {
  ThreadPool pool(1);
  LaunchContext cpu;
  cpu.pool = &pool;
  for (DType dtype : {DType::f32, DType::bf16}) {
    const int64_t rows = 5, width = 67, stride = 71;
    const Doubles packed = random_doubles(rows * stride, dtype, 1), a = random_doubles(rows * width, DType::f32, 2),
                  b = random_doubles(rows * width, DType::f32, 3);
    Tensor from(packed, dtype), taken(rows * width, dtype), left(a, DType::f32), right(b, DType::f32),
        to(packed, dtype);
    columns_take(cpu, {from.data(4), taken.data(), rows, width, stride, dtype});
    columns_sum(cpu, {left.data<float>(), right.data<float>(), to.data(4), rows, width, stride, dtype});
    for_orders([&](LaunchContext& context) {
      OnDevice x(packed, dtype, "from"), y(rows * width, dtype, "taken"), l(a, DType::f32, "a"), r(b, DType::f32, "b"),
          z(packed, dtype, "to");
      columns_take(context, {x.data(4), y.data(), rows, width, stride, dtype});
      columns_sum(context, {l.data<float>(), r.data<float>(), z.data(4), rows, width, stride, dtype});
      CHECK(y.doubles() == taken.doubles());
      CHECK(z.doubles() == to.doubles());
      CHECK((y.intact() && z.intact()));
    });
  }
}
