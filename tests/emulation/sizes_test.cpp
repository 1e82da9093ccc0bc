// SPDX-License-Identifier: Apache-2.0
// The ops at the sizes of GPT-2 124M on a GPU, against the CPU's kernels, whose references are in double: full grids,
// many waves of blocks, rows of a whole vocabulary, and cuBLASLt's algorithms for such products. On the emulated device
// the same at small sizes.

#include <thread>

#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/cast/cast.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gelu/gelu.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/residual/residual.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/sum_squares/sum_squares.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/kernels/common/backend.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;

namespace {

int64_t size(int64_t on_a_card, int64_t emulated) { return on_gpu() ? on_a_card : emulated; }

/// Random values that repeat after a prime number of them: making them all would take longer than the tests.
Doubles repeated_doubles(int64_t elems, DType dtype, uint32_t seed, double scale) {
  constexpr int64_t kPeriod = 1'048'583;
  Doubles values = random_doubles(std::min(elems, kPeriod), dtype, seed, scale);
  values.reserve(static_cast<size_t>(elems));
  while (std::ssize(values) < elems) values.push_back(values[values.size() - kPeriod]);
  return values;
}

/// One operand in both places.
class Both {
 public:
  Both(const Doubles& values, DType dtype, const char* name) : host_(values, dtype), device_(values, dtype, name) {}
  Both(int64_t elems, DType dtype, uint32_t seed, double scale = 1.0)
      : Both(repeated_doubles(elems, dtype, seed, scale), dtype, "operand") {}

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

/// Calls body(context, device) for the CPU, then for the device.
template <typename Body>
void on_both(const Body& body) {
  static ThreadPool pool(on_gpu() ? static_cast<int>(std::max(1u, std::thread::hardware_concurrency())) : 1);
  LaunchContext cpu, device = a_context();
  cpu.pool = &pool;
  body(cpu, false);
  body(device, true);
}

constexpr DType kBf16 = DType::bf16, kF32 = DType::f32;
constexpr double kRounding = 0x1p-7;

}  // namespace

TEST_CASE("sizes: attention") {
  struct Shape {
    int64_t batch, tokens, heads, kv_heads, head;
  };
  for (const Shape& s :
       {Shape{size(4, 1), size(1024, 70), size(12, 1), size(12, 1), 64},
        Shape{1, size(2000, 66), size(8, 2), size(2, 1), 128}, Shape{1, size(515, 35), size(3, 1), size(3, 1), 80}}) {
    CAPTURE(s.batch, s.tokens, s.heads, s.kv_heads, s.head);
    const int64_t rows = s.batch * s.tokens, width = (s.heads + 2 * s.kv_heads) * s.head, out_width = s.heads * s.head;
    const int64_t at_k = out_width, at_v = at_k + s.kv_heads * s.head;
    Both qkv(rows * width, kBf16, 1), out(rows * out_width, kBf16, 2), dout(rows * out_width, kBf16, 3),
        dqkv(rows * width, kBf16, 4), lse(rows * s.heads, kF32, 5);
    AttentionBackward shape{.batch = s.batch,
                            .tokens = s.tokens,
                            .heads = s.heads,
                            .kv_heads = s.kv_heads,
                            .head_dim = s.head,
                            .q_stride = width,
                            .kv_stride = width,
                            .out_stride = out_width,
                            .dq_stride = width,
                            .dkv_stride = width,
                            .scale = 1.0f / std::sqrt(static_cast<float>(s.head)),
                            .dtype = kBf16};
    Both workspace(attention_backward_workspace_elems(shape), kF32, 6);
    on_both([&](LaunchContext& context, bool device) {
      const auto part = [&](Both& packed, int64_t begin) { return packed.at(device, begin); };
      attention_forward(context, {.q = part(qkv, 0),
                                  .k = part(qkv, at_k),
                                  .v = part(qkv, at_v),
                                  .out = out.at(device),
                                  .lse = lse.at<float>(device),
                                  .batch = s.batch,
                                  .tokens = s.tokens,
                                  .heads = s.heads,
                                  .kv_heads = s.kv_heads,
                                  .head_dim = s.head,
                                  .q_stride = width,
                                  .kv_stride = width,
                                  .out_stride = out_width,
                                  .scale = shape.scale,
                                  .dtype = kBf16});
      AttentionBackward args = shape;
      args.dout = dout.at(device), args.q = part(qkv, 0), args.k = part(qkv, at_k), args.v = part(qkv, at_v),
      args.out = out.at(device);
      args.lse = lse.at<float>(device), args.dq = part(dqkv, 0), args.dk = part(dqkv, at_k), args.dv = part(dqkv, at_v),
      args.workspace = workspace.at<float>(device);
      attention_backward(context, args);
    });
    CHECK(out.error() < 2 * kRounding);
    CHECK(lse.error() < 1e-4);
    CHECK(dqkv.error() < 3 * kRounding);
    CHECK((out.intact() && lse.intact() && dqkv.intact()));
  }
}

TEST_CASE("sizes: products of a layer and of the vocabulary") {
  struct Shape {
    int64_t rows, in, out;
    bool gelu, after_gelu;
  };
  for (const Shape& s : {Shape{size(2048, 19), size(768, 24), size(3072, 64), true, false},
                         Shape{size(2048, 19), size(3072, 64), size(768, 24), false, true},
                         Shape{size(512, 9), size(768, 24), size(50304, 160), false, false}}) {
    CAPTURE(s.rows, s.in, s.out, s.gelu, s.after_gelu);
    Both x(s.rows * s.in, kBf16, 1), w(s.out * s.in, kBf16, 2, 0.05), bias(s.out, kBf16, 3),
        y(s.rows * s.out, kBf16, 4), pre(s.rows * s.out, kBf16, 5);
    Both dy(s.rows * s.out, kBf16, 6), dx(s.rows * s.in, kBf16, 7), dw(s.out * s.in, kF32, 8), db(s.out, kF32, 9),
        sums(s.in, kF32, 10);
    on_both([&](LaunchContext& context, bool device) {
      matmul_forward(context, {.x = x.at(device),
                               .weight = w.at(device),
                               .bias = bias.at(device),
                               .y = y.at(device),
                               .pre_activation = s.gelu ? pre.at(device) : nullptr,
                               .rows = s.rows,
                               .in = s.in,
                               .out = s.out,
                               .dtype = kBf16});
      matmul_backward_input(context, {.dy = dy.at(device),
                                      .weight = w.at(device),
                                      .dx = dx.at(device),
                                      .rows = s.rows,
                                      .in = s.in,
                                      .out = s.out,
                                      .dtype = kBf16,
                                      .pre_activation = s.after_gelu ? x.at(device) : nullptr,
                                      .dbias = s.after_gelu ? sums.at<float>(device) : nullptr});
      matmul_backward_weight(context, {.x = x.at(device),
                                       .dy = dy.at(device),
                                       .dweight = dw.at<float>(device),
                                       .dbias = db.at<float>(device),
                                       .rows = s.rows,
                                       .in = s.in,
                                       .out = s.out,
                                       .dtype = kBf16,
                                       .accumulate = true});
    });
    CHECK(y.error() < 2 * kRounding);
    if (s.gelu) CHECK(pre.error() < kRounding);
    CHECK(dx.error() < (s.after_gelu ? 2 : 1) * kRounding);
    if (s.after_gelu) CHECK(sums.error() < 2 * kRounding);
    CHECK(dw.error() < 1e-4);
    CHECK(db.error() < 1e-4);
    CHECK((y.intact() && dx.intact() && sums.intact() && dw.intact() && db.intact()));
  }
}

TEST_CASE("sizes: norms") {
  const int64_t rows = size(16385, 33), width = size(768, 40);
  for (bool layer : {true, false}) {
    CAPTURE(layer, rows, width);
    Both x(rows * width, kBf16, 1), delta(rows * width, kBf16, 2), sum(rows * width, kBf16, 3),
        y(rows * width, kBf16, 4), dx(rows * width, kBf16, 5), dy(rows * width, kBf16, 6);
    Both weight(width, kBf16, 7), bias(width, kBf16, 8), mean(rows, kF32, 9), inv(rows, kF32, 10),
        dweight(width, kF32, 11), dbias(width, kF32, 12), sums(width, kF32, 14);
    Both workspace(
        std::max(layer_norm_backward_workspace_elems(rows, width), rms_norm_backward_workspace_elems(rows, width)),
        kF32, 13);
    on_both([&](LaunchContext& context, bool device) {
      if (layer) {
        layer_norm_forward(context, {.x = x.at(device),
                                     .delta = delta.at(device),
                                     .sum = sum.at(device),
                                     .weight = weight.at(device),
                                     .bias = bias.at(device),
                                     .y = y.at(device),
                                     .mean = mean.at<float>(device),
                                     .inv_std = inv.at<float>(device),
                                     .rows = rows,
                                     .width = width,
                                     .dtype = kBf16});
        layer_norm_backward(context, {.dy = dy.at(device),
                                      .x = sum.at(device),
                                      .weight = weight.at(device),
                                      .mean = mean.at<float>(device),
                                      .inv_std = inv.at<float>(device),
                                      .residual = delta.at(device),
                                      .dx = dx.at(device),
                                      .dweight = dweight.at<float>(device),
                                      .dbias = dbias.at<float>(device),
                                      .workspace = workspace.at<float>(device),
                                      .rows = rows,
                                      .width = width,
                                      .dtype = kBf16,
                                      .dx_sums = sums.at<float>(device)});
      } else {
        rms_norm_forward(context, {.x = x.at(device),
                                   .delta = delta.at(device),
                                   .sum = sum.at(device),
                                   .weight = weight.at(device),
                                   .y = y.at(device),
                                   .inv_rms = inv.at<float>(device),
                                   .rows = rows,
                                   .width = width,
                                   .dtype = kBf16});
        rms_norm_backward(context, {.dy = dy.at(device),
                                    .x = sum.at(device),
                                    .weight = weight.at(device),
                                    .inv_rms = inv.at<float>(device),
                                    .residual = delta.at(device),
                                    .dx = dx.at(device),
                                    .dweight = dweight.at<float>(device),
                                    .workspace = workspace.at<float>(device),
                                    .rows = rows,
                                    .width = width,
                                    .dtype = kBf16});
      }
    });
    CHECK(sum.error() == 0);
    CHECK(y.error() < kRounding);
    CHECK(dx.error() < kRounding);
    CHECK(dweight.error() < 1e-4);
    if (layer) CHECK(dbias.error() < 1e-4);
    if (layer) CHECK(sums.error() < kRounding);  // of dx, rounded on the CPU
    CHECK((y.intact() && dx.intact() && dweight.intact() && sums.intact()));
  }
}

TEST_CASE("sizes: activations, residual and rope") {
  const int64_t rows = size(2047, 17), width = size(3072, 40), elems = rows * width;
  Both x(2 * elems, kBf16, 1), y(elems, kBf16, 2), dy(elems, kBf16, 3), dx(2 * elems, kBf16, 4), gelu(elems, kBf16, 5),
      dgelu(elems, kBf16, 6), sum(elems, kBf16, 7);
  const int64_t tokens = size(1023, 9), heads = size(32, 2);
  std::vector<float> angles(static_cast<size_t>(tokens * 64));
  rope_table(angles.data(), tokens, 64, 10000.0f);
  Both table(Doubles(angles.begin(), angles.end()), kF32, "table"), turned(size(4, 1) * tokens * heads * 64, kBf16, 8);
  on_both([&](LaunchContext& context, bool device) {
    swiglu_forward(context, {.gate_up = x.at(device), .y = y.at(device), .rows = rows, .width = width, .dtype = kBf16});
    swiglu_backward(context, {.dy = dy.at(device),
                              .gate_up = x.at(device),
                              .dgate_up = dx.at(device),
                              .rows = rows,
                              .width = width,
                              .dtype = kBf16});
    gelu_forward(context, {.x = x.at(device), .y = gelu.at(device), .elems = elems, .dtype = kBf16});
    gelu_backward(context,
                  {.dy = dy.at(device), .x = x.at(device), .dx = dgelu.at(device), .elems = elems, .dtype = kBf16});
    residual(context, {.a = x.at(device), .b = dy.at(device), .y = sum.at(device), .elems = elems, .dtype = kBf16});
    rope(context, {.x = turned.at(device),
                   .batch = size(4, 1),
                   .tokens = tokens,
                   .heads = heads,
                   .head_dim = 64,
                   .row_stride = heads * 64,
                   .dtype = kBf16,
                   .table = table.at<float>(device)});
  });
  for (const Both* result : {&y, &dx, &gelu, &dgelu, &turned}) {
    CHECK(result->error() < kRounding);
    CHECK(result->intact());
  }
  CHECK(sum.error() == 0);
}

TEST_CASE("sizes: embedding and the loss over a vocabulary") {
  const int64_t batch = size(8, 2), tokens = size(1024, 9), width = size(768, 24), vocab = size(50257, 61),
                stride = size(50304, 64), rows = batch * tokens, some = size(256, 3);
  std::vector<int32_t> ids;
  std::mt19937 generator(7);
  for (int64_t i = 0; i < rows; ++i)
    ids.push_back(
        static_cast<int32_t>(i % 5 == 0 ? 11 : static_cast<int64_t>(generator()) % vocab));  // one id is everywhere
  OnDevice on_ids(ids, "ids");
  Both table(vocab * width, kBf16, 1), positions(tokens * width, kBf16, 2), y(rows * width, kBf16, 3),
      dy(rows * width, kBf16, 4), dtable(vocab * width, kF32, 5), dpositions(tokens * width, kF32, 6);
  Both logits(some * stride, kBf16, 7, 3.0), losses(some, kF32, 8),
      sum(Doubles(2), kF32, "sum");  // a double's eight bytes
  on_both([&](LaunchContext& context, bool device) {
    const int32_t* at = device ? on_ids.data<int32_t>() : ids.data();
    embedding_forward(context, {.ids = at,
                                .table = table.at(device),
                                .positions = positions.at(device),
                                .y = y.at(device),
                                .batch = batch,
                                .tokens = tokens,
                                .width = width,
                                .dtype = kBf16,
                                .vocab = vocab});
    embedding_backward(context, {.ids = at,
                                 .dy = dy.at(device),
                                 .dtable = dtable.at<float>(device),
                                 .rows = rows,
                                 .width = width,
                                 .vocab = vocab,
                                 .dtype = kBf16,
                                 .accumulate = true});
    position_backward(context, {.dy = dy.at(device),
                                .dpositions = dpositions.at<float>(device),
                                .batch = batch,
                                .tokens = tokens,
                                .width = width,
                                .positions = tokens,
                                .dtype = kBf16});
    cross_entropy(context, {.logits = logits.at(device),
                            .targets = at,
                            .loss_sum = sum.at<double>(device),
                            .row_losses = losses.at<float>(device),
                            .rows = some,
                            .vocab = vocab,
                            .stride = stride,
                            .gradient_scale = 1.0f / static_cast<float>(some),
                            .dtype = kBf16,
                            .backward = true});
  });
  CHECK(y.error() < kRounding);
  CHECK(dtable.error() < 1e-4);
  CHECK(dpositions.error() < 1e-4);
  CHECK(losses.error() < 1e-4);
  CHECK(logits.error() < kRounding);
  CHECK((y.intact() && dtable.intact() && logits.intact()));
}

TEST_CASE("sizes: the update of a whole model's share") {
  const int64_t elems = size(30'000'001, 1025);
  const Doubles gradient = random_doubles(elems, kF32, 2);
  Doubles second(gradient.size());
  for (size_t i = 0; i < second.size(); ++i) second[i] = static_cast<float>(gradient[i] * gradient[i]);
  Both p(elems, kF32, 1), m(elems, kF32, 3, 0.1), v(second, kF32, "v"), g(gradient, kF32, "gradient"),
      working(elems, kBf16, 4), rounded(elems, kBf16, 5);
  Both scalars(Doubles{1e-3, 1.5, 1.2, 0.5}, kF32, "scalars");
  double on_cpu = 0;
  const SumSquaresPart whole{.begin = 0, .elems = elems, .result = 0};
  Both sum(Doubles(2), kF32, "sum");
  on_both([&](LaunchContext& context, bool device) {
    sum_squares(context, {.x = g.at<float>(device),
                          .parts = &whole,
                          .part_count = 1,
                          .results = device ? sum.at<double>(true) : &on_cpu});
    cast(context,
         {.from = g.at(device), .to = rounded.at(device), .elems = elems, .from_dtype = kF32, .to_dtype = kBf16});
    adamw(context, {.parameters = p.at<float>(device),
                    .m = m.at<float>(device),
                    .v = v.at<float>(device),
                    .gradient = g.at<float>(device),
                    .working = working.at<bfloat16>(device),
                    .elems = elems,
                    .scalars = scalars.at<AdamwScalars>(device),
                    .weight_decay = 0.1f});
  });
  double on_device = 0;
  read_device(&on_device, sum.at<double>(true), sizeof on_device);
  CHECK(on_device == on_cpu);
  CHECK(rounded.error() == 0);
  CHECK(p.error() < 1e-6);
  CHECK(working.error() < kRounding);
  CHECK((p.intact() && working.intact()));
}
