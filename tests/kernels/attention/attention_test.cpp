// SPDX-License-Identifier: Apache-2.0
// Attention of whole sequences against the whole matrix in double: the CPU, the general path of the GPU and its tensor
// cores.

#include "kernels/attention/attention.h"

#include "engine/base/check.h"
#include "tests/kernels/common/backend.h"
#include "tests/reference/masked_attention.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
using reference::add_head, reference::columns, reference::head_of, reference::Matrix;

namespace {

struct Shape : reference::AttentionShape {
  int64_t window = 0;
  int64_t longest = 0;  // document; 0: none
  double rate = 0;      // of dropout

  int64_t at_k() const { return out_width(); }
  int64_t at_v() const { return at_k() + kv_heads * head_dim; }
  reference::Masks masks() const { return reference::masks_of(*this, window, longest, rate); }
};

/// The results of forward and backward for packed rows x and the gradient d of the output.
struct Attended {
  OnDevice out, lse, dqkv;
  bool intact;

  Attended(LaunchContext& context, const Shape& s, DType dtype, float scale, const OnDevice& x, const OnDevice& d,
           const reference::Masks& masks)
      : out(s.batch * s.tokens * s.out_width(), dtype, "out"),
        lse(s.batch * s.tokens * s.heads, DType::f32, "lse"),
        dqkv(s.batch * s.tokens * s.width(), dtype, "dqkv") {
    std::vector<int32_t> pairs;  // DropoutSample
    for (uint32_t sequence : masks.sequences)
      pairs.insert(pairs.end(), {static_cast<int32_t>(masks.step), static_cast<int32_t>(sequence)});
    const OnDevice samples(pairs, "samples");
    const OnDevice begins(masks.begins.empty() ? std::vector<int32_t>{0} : masks.begins, "begins");
    // A rank's first head is the third of the model.
    const AttentionDropout dropout{
        .samples = samples.data<DropoutSample>(), .key = masks.key - 2, .rate = masks.rate, .first_head = 2};
    const auto set = [&](auto& all) {
      all.q = x.data(), all.k = x.data(s.at_k()), all.v = x.data(s.at_v());
      all.out = out.data(), all.lse = lse.data<float>(), all.scale = scale, all.dtype = dtype,
      all.window = masks.window;
      all.batch = s.batch, all.tokens = s.tokens;
      all.heads = s.heads, all.kv_heads = s.kv_heads, all.head_dim = s.head_dim;
      all.q_stride = all.kv_stride = s.width(), all.out_stride = s.out_width();
      if (!masks.begins.empty()) all.document_begins = begins.data<int32_t>();
      if (masks.rate > 0) all.dropout = &dropout;
    };
    AttentionForward forward;
    set(forward);
    attention_forward(context, forward);
    AttentionBackward backward;
    set(backward);
    backward.dout = d.data();
    backward.dq = dqkv.data(), backward.dk = dqkv.data(s.at_k()), backward.dv = dqkv.data(s.at_v());
    backward.dq_stride = backward.dkv_stride = s.width();
    const OnDevice workspace(attention_backward_workspace_elems(backward), DType::f32, "workspace");
    backward.workspace = workspace.data<float>();
    attention_backward(context, backward);
    intact = out.intact() && lse.intact() && dqkv.intact() && workspace.intact() && x.intact();
  }
};

/// `shift` elements before q, k and v exclude the tensor cores, which need rows aligned to 16 bytes.
void check(const Shape& s, DType dtype, double spread = 1.0, float scale = 0.0f, int64_t shift = 0) {
  const int64_t width = s.width(), rows = s.batch * s.tokens;
  const uint32_t seed = static_cast<uint32_t>(s.tokens * 1000 + s.head_dim);
  CAPTURE(seed, name_of(dtype), s.batch, s.tokens, s.heads, s.kv_heads, s.head_dim, s.window, s.longest, s.rate, shift);
  const Doubles qkv = random_doubles(rows * width, dtype, seed, spread),
                dout = random_doubles(rows * s.out_width(), dtype, seed + 1);
  if (scale == 0.0f) scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
  const reference::Masks masks = s.masks();
  const reference::PackedAttention e = s.rate > 0 ? reference::masked_attention(s, qkv, dout, scale, masks)
                                       : s.longest > 0
                                           ? reference::packed_documents(s, qkv, dout, scale, s.window, masks.begins)
                                           : reference::packed_attention(s, qkv, dout, scale, s.window);
  const OnDevice x(qkv, dtype, "qkv", shift), d(dout, dtype, "dout");
  SameBits same_out, same_dqkv;
  for_machines([&](LaunchContext& context) {
    const Attended got(context, s, dtype, scale, x, d, masks);
    // Detects a missing 1/sqrt(E), a mask off by one and a wrong key-value head: each is above 1e-2. bf16: out is
    // rounded before dout . out is taken, and the result is rounded; a GPU rounds weights and slopes before they are
    // multiplied, too.
    const int roundings = on_cpu() ? 1 : 2;
    CHECK(error_of(got.out.doubles(), e.out) < forward_tolerance(dtype, s.head_dim + s.tokens, roundings));
    CHECK(error_of(got.lse.doubles(), e.lse) < forward_tolerance(DType::f32, s.head_dim));
    const double tolerance = gradient_tolerance(dtype, s.head_dim + s.tokens, 1 + roundings);
    const Doubles gradients = got.dqkv.doubles();
    // Each of q, k and v separately, so that a small one is not hidden by a large one.
    for (const auto& [begin, end] :
         {std::pair(int64_t{0}, s.at_k()), std::pair(s.at_k(), s.at_v()), std::pair(s.at_v(), width)})
      CHECK(error_of(columns(gradients, width, begin, end), columns(e.dqkv, width, begin, end)) < tolerance);
    CHECK(got.intact);
    CHECK(same_out(got.out));
    CHECK(same_dqkv(got.dqkv));
  });
}

}  // namespace

TEST_CASE("attention: the reference's gradients are its central differences", "[.][cpu]") {
  const int64_t tokens = 5, dim = 3;
  const Doubles packed = random_doubles(3 * tokens * dim, DType::f32, 7),
                dout = random_doubles(tokens * dim, DType::f32, 8);
  const Matrix d = head_of(dout, dim, 0, tokens, 0, dim);
  const auto part = [&](const Doubles& x, int64_t i) { return head_of(x, dim, i * tokens, tokens, 0, dim); };
  const auto loss = [&](const Doubles& x) {
    return reference::attention(part(x, 0), part(x, 1), part(x, 2), 0.7).out.cwiseProduct(d).sum();
  };
  const auto gradients = reference::attention_gradients(d, part(packed, 0), part(packed, 1), part(packed, 2), 0.7);
  Doubles analytic(packed.size());
  add_head(analytic, gradients.dq, dim, 0, 0);
  add_head(analytic, gradients.dk, dim, tokens, 0);
  add_head(analytic, gradients.dv, dim, 2 * tokens, 0);
  CHECK(error_of(central_differences(loss, packed), analytic) < 1e-6);
}

TEST_CASE("attention: every head_dim equals the whole matrix in double", "[.][cpu]") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t head_dim : {8, 16, 20, 32, 64, 80, 128}) check({1, 37, 2, 2, head_dim}, dtype);
}

TEST_CASE("attention: every length around a block equals the whole matrix in double", "[.][cpu]") {
  for (int64_t tokens : {1, 2, 5, 6, 7, 15, 16, 17, 31, 61, 63, 64, 65, 127, 128, 129, 200})
    check({2, tokens, 2, 2, 16}, tokens % 2 ? DType::f32 : DType::bf16);
  for (int64_t tokens : {16, 64, 128}) check({2, tokens, 2, 2, 16}, DType::f32);
}

TEST_CASE("attention: heads share key-value heads, and dk and dv sum over them", "[.][cpu]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    check({2, 67, 6, 2, 20}, dtype);
    check({1, 70, 4, 1, 1}, dtype);
    check({3, 9, 3, 3, 7}, dtype);
  }
  check({1, 5, 1, 1, 256}, DType::f32);
}

TEST_CASE("attention: documents of a sequence are attention of their own", "[.][cpu]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    for (int64_t longest : {1, 2, 9, 63, 64, 65, 130}) check({2, 200, 2, 1, 16, 0, longest}, dtype);
    check({2, 33, 4, 2, 20, 7, 12}, dtype);     // a window within documents
    check({1, 70, 1, 1, 128, 0, 1000}, dtype);  // one
  }
}

TEST_CASE("attention: tokens see the last ones of a window", "[.][cpu]") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    // Around the blocks of 64 and the vectors of a softmax.
    for (int64_t window : {1, 2, 5, 16, 63, 64, 65, 130}) check({1, 200, 2, 1, 16, window}, dtype);
    check({2, 33, 4, 2, 20, 32}, dtype);
    check({2, 33, 4, 2, 20, 33}, dtype);  // hides nothing
    check({1, 300, 1, 1, 128, 100}, dtype);
  }
  check({1, 260, 1, 1, 8, 70}, DType::f32, 6.0, 1.0f);
}

TEST_CASE("attention: scores far apart neither overflow nor lose the largest") {
  check({1, on_cpu() ? 130 : 70, 1, 1, 8}, DType::f32, 6.0, 1.0f);  // scores up to several hundred
}

TEST_CASE("attention: NaN reaches the rows that see it and no others") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t e : {4, 64}) {
      const Shape s = {1, 3, 1, 1, e};
      Doubles qkv = random_doubles(3 * s.width(), dtype, 3);
      qkv[static_cast<size_t>(s.width() + e)] = NAN;  // k of token 1
      const OnDevice x(qkv, dtype, "qkv"), d(random_doubles(3 * e, dtype, 4), dtype, "dout");
      LaunchContext context = a_context();
      const Attended got(context, s, dtype, 0.125f, x, d, {});
      CHECK(std::isnan(got.out.doubles()[static_cast<size_t>(e)]));
      CHECK(std::isnan(got.lse.doubles()[2]));
      CHECK_FALSE(std::isnan(got.lse.doubles()[0]));
      CHECK_FALSE(std::isnan(got.out.doubles()[0]));
    }
}

TEST_CASE("attention: dropout of the weights") {
  for (DType dtype : {DType::f32, DType::bf16}) {
    check({1, 1, 1, 1, 8, 0, 0, 0.3}, dtype);
    check({1, 7, 2, 2, 12, 0, 0, 0.3}, dtype);
    check({2, 37, 2, 1, 16, 0, 0, 0.3}, dtype);
    // Every size of tile of the general path.
    check({2, 9, 1, 1, 64, 0, 0, 0.3}, dtype, 1.0, 0.0f, dtype == DType::bf16);
    check({2, 9, 2, 2, 72, 0, 0, 0.3}, dtype);
    check({2, 19, 1, 1, 136, 0, 0, 0.3}, dtype);
    if (!on_cpu()) continue;
    check({1, 64, 2, 1, 16, 0, 0, 0.3}, dtype);
    check({1, 130, 4, 2, 20, 0, 0, 0.3}, dtype);
  }
}

TEST_CASE("attention: impossible shapes are refused", "[.][cpu]") {
  ThreadPool pool(1);
  LaunchContext context;
  context.pool = &pool;
  AttentionForward args;
  args.batch = 1, args.tokens = 2, args.heads = 3, args.kv_heads = 2, args.head_dim = 4;
  args.q_stride = args.out_stride = 12, args.kv_stride = 8;
  CHECK_THROWS_WITH(attention_forward(context, args),
                    "[attention_forward] 3 heads cannot share 2 key-value heads: need a divisor of heads.");
  args.kv_heads = 1;
  CHECK_THROWS_AS(attention_forward(context, args), ShapeError);  // null operands
  args.dtype = DType::i32;
  CHECK_THROWS_WITH(attention_forward(context, args),
                    "[attention_forward] the element type is int32, need float32 or bfloat16.");
  args.dtype = DType::f32, args.head_dim = 257;
  CHECK_THROWS_AS(attention_forward(context, args), ShapeError);
  args.head_dim = 4, args.q_stride = 11;
  CHECK_THROWS_AS(attention_forward(context, args), ShapeError);
  args.q_stride = 12, args.tokens = 0;
  CHECK_NOTHROW(attention_forward(context, args));
  float dummy[64] = {};
  args.tokens = 2, args.q = args.k = args.v = dummy, args.out = args.lse = dummy;
  context.kind = DeviceKind::sim;
  CHECK_THROWS_AS(attention_forward(context, args), ResourceError);
}

TEST_CASE("attention: the cost equals the formula in its header", "[.][cpu]") {
  AttentionForward args;
  args.batch = 2, args.tokens = 3, args.heads = 4, args.kv_heads = 2, args.head_dim = 5;
  CHECK(attention_forward_cost(args).flops == 4 * 2 * 4 * 5 * 6);
  args.window = 2;  // three tokens see 1, 2 and 2
  CHECK(attention_forward_cost(args).flops == 4 * 2 * 4 * 5 * 5);
  args.window = 0;
  CHECK(attention_forward_cost(args).bytes == (2 * 4 + 2 * 2) * 2 * 3 * 5 * 4 + 4 * 2 * 4 * 3);
}

TEST_CASE("attention, general path: every head size", "[cuda]") {
  for (int64_t head_dim : {1, 5, 8, 20, 64, 80, 128, 130}) check({1, 37, 2, 1, head_dim}, DType::f32);
  for (int64_t head_dim : {7, 72, 131}) check({1, 35, 2, 2, head_dim}, DType::bf16);
  for (int64_t head_dim : {192, 256})
    for (DType dtype : {DType::f32, DType::bf16}) check({1, 17, 2, 1, head_dim}, dtype);
  check({1, 33, 1, 1, 64}, DType::bf16, 1.0, 0.0f, 1);
}

TEST_CASE("attention, general path: lengths around a tile, batches, shared heads", "[cuda]") {
  for (int64_t tokens : {1, 31, 32, 33, 65}) check({2, tokens, 2, 2, 12}, DType::f32);
  check({2, 34, 6, 2, 20}, DType::f32);
  check({1, 40, 4, 1, 4}, DType::bf16);
  for (int64_t tokens : {1, 15, 16, 33}) check({2, tokens, 2, 2, 132}, DType::f32);  // tiles of 16
  check({2, 18, 4, 2, 136}, DType::bf16);
}

TEST_CASE("attention, general path: documents of a sequence are attention of their own", "[cuda]") {
  for (int64_t longest : {1, 3, 31, 32, 33, 64}) check({2, 100, 2, 1, 12, 0, longest}, DType::f32);
  check({2, 66, 4, 2, 64, 0, 20}, DType::bf16, 1.0, 0.0f, 1);
  check({1, 50, 2, 1, 132, 9, 17}, DType::f32);  // a window within documents, tiles of 16
}

TEST_CASE("attention, general path: tokens see the last ones of a window", "[cuda]") {
  for (int64_t window : {1, 3, 31, 32, 33, 64, 99}) check({1, 100, 2, 1, 12, window}, DType::f32);
  check({2, 66, 4, 2, 64, 20}, DType::bf16, 1.0, 0.0f, 1);
  check({1, 50, 2, 1, 132, 17}, DType::f32);  // tiles of 16
}

TEST_CASE("attention, tensor cores: lengths around a tile, batches, shared heads", "[cuda]") {
  // Blocks have 128 rows, warps 32, and 64 or 32 rows of the other side pass at a time.
  for (int64_t tokens : {1, 15, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129}) check({1, tokens, 1, 1, 64}, DType::bf16);
  check({2, 66, 4, 2, 64}, DType::bf16);
  check({1, 130, 3, 1, 64}, DType::bf16);
  for (int64_t tokens : {33, 64, 70, 129}) check({1, tokens, 2, 1, 128}, DType::bf16);
}

TEST_CASE("attention, tensor cores: several steps through the keys", "[cuda]") {
  check({1, 161, 1, 1, 64}, DType::bf16);
}

TEST_CASE("attention, tensor cores: documents of a sequence are attention of their own", "[cuda]") {
  for (int64_t longest : {1, 31, 32, 33, 64, 65, 130}) check({1, 161, 1, 1, 64, 0, longest}, DType::bf16);
  check({2, 66, 4, 2, 64, 0, 20}, DType::bf16);
  for (int64_t longest : {5, 33, 70}) check({1, 130, 2, 1, 128, 0, longest}, DType::bf16);
  check({2, 140, 2, 1, 64, 50, 90}, DType::bf16);  // a window within documents
}

TEST_CASE("attention, tensor cores: tokens see the last ones of a window", "[cuda]") {
  for (int64_t window : {1, 31, 32, 33, 64, 65, 129, 160}) check({1, 161, 1, 1, 64, window}, DType::bf16);
  check({2, 66, 4, 2, 64, 20}, DType::bf16);
  for (int64_t window : {1, 33, 70}) check({1, 130, 2, 1, 128, window}, DType::bf16);
}

TEST_CASE("attention, tensor cores: no tile of another document is read", "[cuda]") {
  // Documents of whole tiles. 0 times NaN is NaN, so a hidden weight of 0 would not be enough.
  for (int64_t head_dim : {64, 128}) {
    constexpr int64_t kDocument = 128, kTokens = 3 * kDocument;
    const Shape s = {1, kTokens, 1, 1, head_dim};
    const Doubles qkv = random_doubles(kTokens * s.width(), DType::bf16, 1),
                  dout = random_doubles(kTokens * head_dim, DType::bf16, 2);
    reference::Masks masks;
    for (int32_t t = 0; t < kTokens; ++t) masks.begins.push_back(static_cast<int32_t>(t / kDocument * kDocument));
    const auto attend = [&](bool nan) {
      const auto with_nan = [&](Doubles values, int64_t of_token) {
        for (int64_t i = kDocument * of_token; nan && i < 2 * kDocument * of_token; ++i)
          values[static_cast<size_t>(i)] = NAN;
        return values;
      };
      const OnDevice x(with_nan(qkv, s.width()), DType::bf16, "qkv"), d(with_nan(dout, head_dim), DType::bf16, "dout");
      LaunchContext context = a_context();
      const Attended got(context, s, DType::bf16, 0.125f, x, d, masks);
      Doubles seen;  // by the first and the last document
      const auto take = [&](const Doubles& values, int64_t of_token) {
        for (int64_t i = 0; i < kTokens * of_token; ++i)
          if (i / of_token / kDocument != 1) seen.push_back(values[static_cast<size_t>(i)]);
      };
      take(got.out.doubles(), head_dim);
      take(got.lse.doubles(), 1);
      take(got.dqkv.doubles(), s.width());
      return seen;
    };
    CAPTURE(head_dim);
    CHECK(attend(true) == attend(false));
  }
}

TEST_CASE("attention, sm_90a: lengths around a block of queries and a tile of keys, heads of 64", "[cuda]") {
  const emulation::Capability hopper(90);
  // Blocks have 192 queries, 64 for each warpgroup, and 128 keys pass at a time.
  for (int64_t tokens : {1, 15, 63, 64, 65, 127, 128, 129, 191, 192, 193, 257})
    check({1, tokens, 1, 1, 64}, DType::bf16);
  check({2, 66, 4, 2, 64}, DType::bf16);
  check({1, 130, 3, 1, 64}, DType::bf16);
}

TEST_CASE("attention, sm_90a: lengths around a block of queries and a tile of keys, heads of 128", "[cuda]") {
  const emulation::Capability hopper(90);
  for (int64_t tokens : {1, 64, 65, 127, 128, 129, 257}) check({1, tokens, 1, 1, 128}, DType::bf16);
  check({2, 70, 4, 2, 128}, DType::bf16);
}

TEST_CASE("attention, sm_90a: several rounds through all stages", "[cuda]") {
  const emulation::Capability hopper(90);
  check({1, 650, 2, 1, 64}, DType::bf16);
  check({1, 300, 3, 3, 128}, DType::bf16);
}

TEST_CASE("attention, sm_90a: documents of a sequence are attention of their own", "[cuda]") {
  const emulation::Capability hopper(90);
  // Documents of one token, and with edges at and around those of tiles of 64 and 128 rows.
  for (int64_t longest : {1, 5, 63, 64, 65, 128, 129}) check({1, 270, 1, 1, 64, 0, longest}, DType::bf16);
  for (int64_t longest : {1, 40, 128}) check({1, 200, 2, 1, 128, 0, longest}, DType::bf16);
  check({2, 90, 4, 2, 64, 0, 30}, DType::bf16);
  check({1, 700, 1, 1, 64, 0, 70}, DType::bf16);  // many documents, and blocks of keys that few queries see
}

TEST_CASE("attention, sm_90a: tokens see the last ones of a window", "[cuda]") {
  const emulation::Capability hopper(90);
  for (int64_t window : {1, 63, 64, 65, 128, 129, 200}) check({1, 270, 1, 1, 64, window}, DType::bf16);
  for (int64_t window : {1, 100, 130}) check({1, 200, 2, 1, 128, window}, DType::bf16);
  check({2, 150, 4, 2, 64, 20}, DType::bf16);
  check({1, 400, 1, 1, 64, 200, 390}, DType::bf16);  // a window within documents; steps with both, one or no edge
}

TEST_CASE("attention, sm_90a: scores far apart neither overflow nor lose the largest", "[cuda]") {
  const emulation::Capability hopper(90);
  check({1, 200, 1, 1, 64}, DType::bf16, 3.0, 1.0f);
}

TEST_CASE("attention, sm_90a: heads of 128 reuse every stage in short sequences", "[cuda]") {
  const emulation::Capability hopper(90);
  check({1, 140, 3, 1, 128}, DType::bf16);
}

TEST_CASE("attention, sm_90a: dq is a sum over several blocks of keys, and heads of a group share dk and dv",
          "[cuda]") {
  const emulation::Capability hopper(90);
  check({1, 330, 2, 1, 64}, DType::bf16);
  check({1, 260, 2, 1, 128}, DType::bf16);
}

TEST_CASE("attention, sm_90a: backward by 128 queries, lengths around a tile and several rounds through all stages",
          "[cuda]") {
  const emulation::Capability hopper(90);
  const Queries128 queries;
  for (int64_t tokens : {1, 64, 65, 127, 128, 129, 193, 257}) check({1, tokens, 1, 1, 64}, DType::bf16);
  check({2, 130, 4, 2, 64}, DType::bf16);
  check({1, 650, 2, 1, 64}, DType::bf16);
  check({1, 200, 1, 1, 64}, DType::bf16, 3.0, 1.0f);
  check({1, 140, 1, 1, 128}, DType::bf16);  // heads of 128 stay as they are
}

TEST_CASE("attention, sm_90a: backward by 128 queries with documents and windows", "[cuda]") {
  const emulation::Capability hopper(90);
  const Queries128 queries;
  for (int64_t longest : {1, 65, 129}) check({1, 270, 1, 1, 64, 0, longest}, DType::bf16);
  for (int64_t window : {1, 64, 129, 200}) check({1, 270, 1, 1, 64, window}, DType::bf16);
  check({2, 150, 4, 2, 64, 20}, DType::bf16);
  check({1, 400, 1, 1, 64, 200, 390}, DType::bf16);
}

TEST_CASE("attention, tensor cores: dropout of the weights", "[cuda]") {
  for (int64_t tokens : {33, 132}) check({1, tokens, 2, 1, 64, 0, 0, 0.3}, DType::bf16);
  for (int64_t head_dim : {64, 128}) check({2, 70, 1, 1, head_dim, 0, 0, 0.3}, DType::bf16);
}

TEST_CASE("attention, sm_90a: dropout of the weights", "[cuda]") {
  const emulation::Capability hopper(90);
  check({2, 1, 1, 1, 64, 0, 0, 0.3}, DType::bf16);
  check({1, 200, 2, 1, 64, 0, 0, 0.3}, DType::bf16);
  check({1, 140, 2, 2, 128, 0, 0, 0.3}, DType::bf16);
  const Queries128 queries;
  check({1, 200, 1, 1, 64, 0, 0, 0.3}, DType::bf16);
}

TEST_CASE("attention, general path: rows that are no multiple of 16 bytes are read by element, with the same bits",
          "[cuda]") {
  constexpr int64_t kTokens = 18;
  enum Odd { none, q, k, v, out, dout, q_stride, kv_stride, out_stride, only_head, all_odd };
  const auto attend = [&](int64_t head_dim, DType dtype, Odd odd) {
    const auto shift_of = [&](Odd operand) { return int64_t{odd == operand}; };
    // Rows of 8 elements are whole 16 bytes in both types, and heads of 18 elements are not.
    const auto stride_of = [&](Odd operand) {
      return odd == only_head ? (head_dim + 7) / 8 * 8 : head_dim + int64_t{odd == operand};
    };
    const auto rows_of = [&](uint32_t seed, int64_t stride, Odd operand) {
      const Doubles values = random_doubles(kTokens * head_dim, dtype, seed);
      Doubles rows(static_cast<size_t>(kTokens * stride));
      for (int64_t i = 0; i < kTokens * head_dim; ++i)
        rows[static_cast<size_t>(i / head_dim * stride + i % head_dim)] = values[static_cast<size_t>(i)];
      return OnDevice(rows, dtype, "operand", shift_of(operand));
    };
    const int64_t of_q = stride_of(q_stride), of_kv = stride_of(kv_stride), of_out = stride_of(out_stride);
    const OnDevice on_q = rows_of(1, of_q, q), on_k = rows_of(2, of_kv, k), on_v = rows_of(3, of_kv, v),
                   on_dout = rows_of(4, of_out, dout);
    OnDevice on_out(kTokens * of_out, dtype, "out", shift_of(out)), lse(kTokens, DType::f32, "lse"),
        dq(kTokens * head_dim, dtype, "dq"), dk(kTokens * head_dim, dtype, "dk"), dv(kTokens * head_dim, dtype, "dv");
    LaunchContext context = a_context();
    const auto set = [&](auto& all) {
      all.q = on_q.data(), all.k = on_k.data(), all.v = on_v.data();
      all.out = on_out.data(), all.lse = lse.data<float>(), all.scale = 0.25f, all.dtype = dtype;
      all.batch = all.heads = all.kv_heads = 1, all.tokens = kTokens, all.head_dim = head_dim;
      all.q_stride = of_q, all.kv_stride = of_kv, all.out_stride = of_out;
    };
    AttentionForward forward;
    set(forward);
    attention_forward(context, forward);
    AttentionBackward args;
    set(args);
    args.dout = on_dout.data(), args.dq = dq.data(), args.dk = dk.data(), args.dv = dv.data();
    args.dq_stride = args.dkv_stride = head_dim;
    OnDevice workspace(attention_backward_workspace_elems(args), DType::f32, "workspace");
    args.workspace = workspace.data<float>();
    attention_backward(context, args);
    CHECK((on_out.intact() && dq.intact() && dk.intact() && dv.intact()));
    Doubles all = lse.doubles();
    for (const OnDevice* gradient : {&dq, &dk, &dv})
      for (double value : gradient->doubles()) all.push_back(value);
    const Doubles rows = on_out.doubles();
    for (int64_t i = 0; i < kTokens * head_dim; ++i)
      all.push_back(rows[static_cast<size_t>(i / head_dim * of_out + i % head_dim)]);
    return all;
  };
  for (DType dtype : {DType::f32, DType::bf16})
    for (int64_t head_dim : {8, 18, 136}) {
      const Doubles expected = attend(head_dim, dtype, none);
      for (int odd = q; odd < all_odd; ++odd) {
        CAPTURE(name_of(dtype), head_dim, odd);
        CHECK(attend(head_dim, dtype, static_cast<Odd>(odd)) == expected);
      }
    }
}
