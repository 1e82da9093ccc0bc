// SPDX-License-Identifier: Apache-2.0
// Every kernel of a GPT-2 124M step on a GPU (and those of Llama), at sizes beyond the cache, with the GPU's own copy
// and product for comparison.
//
// Data is random: products of zeros run faster. A causal attention counts half the operations, backward 2.5 times
// forward, as its papers do.
//
// usage: gpu_kernels_bench [CSV [trial | OP]]. Rows "op,shape,us,spread,tflops,gbytes" go to the file CSV:
// scripts/bench_gpu_pytorch.py prints PyTorch's next to them. With OP, only ops whose names contain this text are
// measured.

#include <cuda_runtime_api.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/device/cuda/cuda_check.h"
#include "kernels/adamw/adamw.h"
#include "kernels/attention/attention.h"
#include "kernels/cast/cast.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gelu/gelu.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/matmul/matmul.h"
#include "kernels/residual/residual.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/sum_squares/sum_squares.h"
#include "kernels/swiglu/swiglu.h"
#include "tests/gpu/cuda/card.h"
#include "tests/gpu/cuda/card_stopwatch.h"

using namespace slipstream;
using namespace slipstream::kernels;
using slipstream::test::CardStopwatch;

namespace {

/// Sizes of GPT-2 124M, or of a trial in which a kernel takes the host's time (tests/fake_gpu).
struct Sizes {
  int turns = 7;
  double turn_ms = 20;
  int64_t batch = 32, tokens = 1024, width = 768, hidden = 3072, vocab = 50304, ids = 50257, heads = 12;
  int64_t copy_bytes = int64_t{1} << 30, square = 8192, parameters = 124'475'904;  // with a table of `vocab` rows
};
constexpr Sizes kTrial{.turns = 1,
                       .turn_ms = 1e-3,
                       .batch = 4,
                       .tokens = 8,
                       .width = 64,
                       .hidden = 64,
                       .vocab = 64,
                       .ids = 61,
                       .heads = 1,
                       .copy_bytes = 4096,
                       .square = 32,
                       .parameters = 4099};

class CardBench : private CardStopwatch {
 public:
  CardBench(const char* csv, const Sizes& sizes, const std::string& only)
      : CardStopwatch(csv, sizes.turns, sizes.turn_ms, only), sizes_(sizes) {}

  void run() {
    // By importance, because a call may end early; attention, whose kernels wait for each other, after the ops that
    // cannot hang.
    ceilings();
    norms();
    embedding_and_loss();
    update();
    elementwise();
    attention_of(sizes_.heads, sizes_.heads, 64, sizes_.batch, sizes_.tokens);
    attention_of(4 * sizes_.heads, sizes_.heads, 64, sizes_.batch / 4, sizes_.tokens);
    products();
    attention_of(sizes_.heads, sizes_.heads, 128, sizes_.batch / 4, 2 * sizes_.tokens);
  }

 private:
  void ceilings() {
    const int64_t bytes = sizes_.copy_bytes, n = sizes_.square;
    const double moved = 2.0 * static_cast<double>(bytes);
    auto *from = values(bytes / 2), *to = values(bytes / 2);
    const double us = measure("copy", fmt::format("{} MiB", bytes >> 20), 0, moved, [&] {
      SLIP_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream_));
    });
    if (us > 0) copy_gbytes_ = moved / us / 1e3;
    free_all();
    const MatmulForward square{.x = values(n * n),
                               .weight = values(n * n),
                               .y = take(2 * n * n),
                               .rows = n,
                               .in = n,
                               .out = n,
                               .dtype = DType::bf16};
    measure("matmul_forward", fmt::format("{} x {} x {}", n, n, n), matmul_forward_cost(square),
            [&] { matmul_forward(context_, square); });
    free_all();
  }

  void products() {
    const int64_t rows = sizes_.batch * sizes_.tokens;
    const struct {
      const char* name;
      int64_t in, out, rows;
      bool gelu;
    } layers[] = {{"qkv", sizes_.width, 3 * sizes_.width, rows, false},
                  {"projection", sizes_.width, sizes_.width, rows, false},
                  {"up", sizes_.width, sizes_.hidden, rows, true},
                  {"down", sizes_.hidden, sizes_.width, rows, false},
                  {"head", sizes_.width, sizes_.vocab, rows / 4, false}};
    for (const auto& l : layers) {
      const std::string shape = fmt::format("{} {} x {} x {}", l.name, l.rows, l.in, l.out);
      auto *x = values(l.rows * l.in), *w = values(l.out * l.in, 0.02f), *y = values(l.rows * l.out),
           *dx = values(l.rows * l.in), *bias = values(l.out);
      auto *dw = values<float>(l.out * l.in), *db = values<float>(l.out);
      void* pre = l.gelu ? take(2 * l.rows * l.out) : nullptr;
      const bool head = std::string(l.name) == "head";
      const MatmulForward forward{.x = x,
                                  .weight = w,
                                  .bias = head ? nullptr : bias,
                                  .y = y,
                                  .pre_activation = pre,
                                  .rows = l.rows,
                                  .in = l.in,
                                  .out = l.out,
                                  .dtype = DType::bf16};
      measure("matmul_forward", shape, matmul_forward_cost(forward), [&] { matmul_forward(context_, forward); });
      const MatmulBackwardInput input{
          .dy = y, .weight = w, .dx = dx, .rows = l.rows, .in = l.in, .out = l.out, .dtype = DType::bf16};
      measure("matmul_backward_input", shape, matmul_backward_input_cost(input),
              [&] { matmul_backward_input(context_, input); });
      const MatmulBackwardWeight weight{.x = x,
                                        .dy = y,
                                        .dweight = dw,
                                        .dbias = head ? nullptr : db,
                                        .rows = l.rows,
                                        .in = l.in,
                                        .out = l.out,
                                        .dtype = DType::bf16,
                                        .accumulate = true};
      measure("matmul_backward_weight", shape, matmul_backward_weight_cost(weight),
              [&] { matmul_backward_weight(context_, weight); });
      free_all();
    }
  }

  void attention_of(int64_t heads, int64_t kv_heads, int64_t head, int64_t batch, int64_t tokens) {
    const int64_t rows = batch * tokens, width = (heads + 2 * kv_heads) * head, out_width = heads * head;
    const std::string shape = fmt::format("B{} T{} H{}/{} x {}", batch, tokens, heads, kv_heads, head);
    const double flops =
        2.0 * static_cast<double>(batch * heads * tokens) * static_cast<double>(tokens * head);  // causal: half of 4
    auto *qkv = values(rows * width), *dqkv = values(rows * width), *out = values(rows * out_width),
         *dout = values(rows * out_width);
    auto* lse = values<float>(rows * heads);
    const float scale = 1.0f / std::sqrt(static_cast<float>(head));
    const AttentionForward forward{.q = qkv,
                                   .k = qkv + out_width,
                                   .v = qkv + out_width + kv_heads * head,
                                   .out = out,
                                   .lse = lse,
                                   .batch = batch,
                                   .tokens = tokens,
                                   .heads = heads,
                                   .kv_heads = kv_heads,
                                   .head_dim = head,
                                   .q_stride = width,
                                   .kv_stride = width,
                                   .out_stride = out_width,
                                   .scale = scale,
                                   .dtype = DType::bf16};
    measure("attention_forward", shape, flops, static_cast<double>(attention_forward_cost(forward).bytes),
            [&] { attention_forward(context_, forward); });
    AttentionBackward backward{.dout = dout,
                               .q = forward.q,
                               .k = forward.k,
                               .v = forward.v,
                               .out = out,
                               .lse = lse,
                               .dq = dqkv,
                               .dk = dqkv + out_width,
                               .dv = dqkv + out_width + kv_heads * head,
                               .batch = batch,
                               .tokens = tokens,
                               .heads = heads,
                               .kv_heads = kv_heads,
                               .head_dim = head,
                               .q_stride = width,
                               .kv_stride = width,
                               .out_stride = out_width,
                               .dq_stride = width,
                               .dkv_stride = width,
                               .scale = scale,
                               .dtype = DType::bf16};
    backward.workspace = values<float>(attention_backward_workspace_elems(backward));
    measure("attention_backward", shape, 2.5 * flops, static_cast<double>(attention_backward_cost(backward).bytes),
            [&] { attention_backward(context_, backward); });
    // In the middle of a ring: all queries see half of the keys, as many pairs as above, and all state is carried.
    const AttentionBlock block{0, tokens, 0, tokens / 2, false};
    const AttentionBlockForward block_forward{
        .all = forward,
        .block = block,
        .carried = {values<float>(rows * out_width), values<float>(rows * heads), values<float>(rows * heads)},
        .first = false,
        .last = false};
    measure("attention_block_forward", shape, flops,
            static_cast<double>(attention_block_forward_cost(block_forward).bytes),
            [&] { attention_block_forward(context_, block_forward); });
    const AttentionBlockBackward block_backward{.all = backward,
                                                .block = block,
                                                .dq_sum = values<float>(rows * out_width),
                                                .dkv = values<float>(rows * 2 * kv_heads * head),
                                                .first = false,
                                                .last = false};
    measure("attention_block_backward", shape, 2.5 * flops,
            static_cast<double>(attention_block_backward_cost(block_backward).bytes),
            [&] { attention_block_backward(context_, block_backward); });
    free_all();
  }

  void norms() {
    for (bool layer : {true, false}) {
      const int64_t width = layer ? sizes_.width : 2 * sizes_.width;
      const int64_t rows = sizes_.batch * sizes_.tokens;
      const std::string shape = fmt::format("{} x {}", rows, width);
      auto *x = values(rows * width), *delta = values(rows * width), *sum = values(rows * width),
           *y = values(rows * width), *weight = values(width), *bias = values(width);
      auto *mean = values<float>(rows), *inv = values<float>(rows), *dweight = values<float>(width),
           *dbias = values<float>(width);
      auto* workspace = values<float>(
          std::max(layer_norm_backward_workspace_elems(rows, width), rms_norm_backward_workspace_elems(rows, width)));
      if (layer) {
        const LayerNormForward forward{.x = x,
                                       .delta = delta,
                                       .sum = sum,
                                       .weight = weight,
                                       .bias = bias,
                                       .y = y,
                                       .mean = mean,
                                       .inv_std = inv,
                                       .rows = rows,
                                       .width = width,
                                       .dtype = DType::bf16};
        measure("layer_norm_forward", shape, layer_norm_forward_cost(forward),
                [&] { layer_norm_forward(context_, forward); });
        const LayerNormBackward backward{.dy = y,
                                         .x = sum,
                                         .weight = weight,
                                         .mean = mean,
                                         .inv_std = inv,
                                         .residual = delta,
                                         .dx = x,
                                         .dweight = dweight,
                                         .dbias = dbias,
                                         .workspace = workspace,
                                         .rows = rows,
                                         .width = width,
                                         .dtype = DType::bf16};
        measure("layer_norm_backward", shape, layer_norm_backward_cost(backward),
                [&] { layer_norm_backward(context_, backward); });
      } else {
        const RmsNormForward forward{.x = x,
                                     .delta = delta,
                                     .sum = sum,
                                     .weight = weight,
                                     .y = y,
                                     .inv_rms = inv,
                                     .rows = rows,
                                     .width = width,
                                     .dtype = DType::bf16};
        measure("rms_norm_forward", shape, rms_norm_forward_cost(forward),
                [&] { rms_norm_forward(context_, forward); });
        const RmsNormBackward backward{.dy = y,
                                       .x = sum,
                                       .weight = weight,
                                       .inv_rms = inv,
                                       .residual = delta,
                                       .dx = x,
                                       .dweight = dweight,
                                       .workspace = workspace,
                                       .rows = rows,
                                       .width = width,
                                       .dtype = DType::bf16};
        measure("rms_norm_backward", shape, rms_norm_backward_cost(backward),
                [&] { rms_norm_backward(context_, backward); });
      }
      free_all();
    }
  }

  void elementwise() {
    const int64_t rows = sizes_.batch * sizes_.tokens, elems = rows * sizes_.hidden;
    const std::string shape = fmt::format("{} x {}", rows, sizes_.hidden);
    auto *x = values(2 * elems), *y = values(elems), *d = values(2 * elems);
    const GeluForward gelu_f{.x = x, .y = y, .elems = elems, .dtype = DType::bf16};
    measure("gelu_forward", shape, gelu_forward_cost(gelu_f), [&] { gelu_forward(context_, gelu_f); });
    const GeluBackward gelu_b{.dy = y, .x = x, .dx = d, .elems = elems, .dtype = DType::bf16};
    measure("gelu_backward", shape, gelu_backward_cost(gelu_b), [&] { gelu_backward(context_, gelu_b); });
    const SwigluForward swiglu_f{.gate_up = x, .y = y, .rows = rows, .width = sizes_.hidden, .dtype = DType::bf16};
    measure("swiglu_forward", shape, swiglu_forward_cost(swiglu_f), [&] { swiglu_forward(context_, swiglu_f); });
    const SwigluBackward swiglu_b{
        .dy = y, .gate_up = x, .dgate_up = d, .rows = rows, .width = sizes_.hidden, .dtype = DType::bf16};
    measure("swiglu_backward", shape, swiglu_backward_cost(swiglu_b), [&] { swiglu_backward(context_, swiglu_b); });
    const Residual residual_args{.a = x, .b = y, .y = d, .elems = elems, .dtype = DType::bf16};
    measure("residual", shape, residual_cost(residual_args), [&] { residual(context_, residual_args); });
    const std::vector<DropoutSample> numbers(static_cast<size_t>(sizes_.batch), {.step = 1, .sequence = 1});
    auto* samples = static_cast<DropoutSample*>(take(std::ssize(numbers) * int64_t{sizeof numbers[0]}));
    upload(samples, numbers.data(), std::ssize(numbers) * int64_t{sizeof numbers[0]});
    for (bool adds : {true, false}) {
      const Dropout dropped{.x = adds ? x : nullptr,
                            .d = y,
                            .y = d,
                            .samples = samples,
                            .rows = rows,
                            .width = sizes_.hidden,
                            .chunks = {.tokens = sizes_.tokens},
                            .key = 1,
                            .rate = 0.1,
                            .dtype = DType::bf16};
      measure(adds ? "dropout_sum" : "dropout", shape, dropout_cost(dropped, adds),
              [&] { dropout(context_, dropped); });
    }
    std::vector<float> table(static_cast<size_t>(sizes_.tokens * 64));
    rope_table(table.data(), sizes_.tokens, 64, 10000.0f);
    auto* on_card = static_cast<float*>(take(4 * sizes_.tokens * 64));
    upload(on_card, table.data(), 4 * std::ssize(table));
    const Rope rope_args{.x = x,
                         .batch = sizes_.batch,
                         .tokens = sizes_.tokens,
                         .heads = sizes_.hidden / 64,
                         .head_dim = 64,
                         .row_stride = sizes_.hidden,
                         .dtype = DType::bf16,
                         .table = on_card};
    measure("rope", fmt::format("{} x {} x 64", rows, sizes_.hidden / 64), rope_cost(rope_args),
            [&] { rope(context_, rope_args); });
    free_all();
  }

  void embedding_and_loss() {
    const int64_t rows = sizes_.batch * sizes_.tokens;
    auto* tokens = ids(rows, sizes_.ids);
    auto* y = values(rows * sizes_.width);
    const std::string shape = fmt::format("{} x {} of {}", rows, sizes_.width, sizes_.vocab);
    const EmbeddingForward forward{.ids = tokens,
                                   .table = values(sizes_.vocab * sizes_.width),
                                   .positions = values(sizes_.tokens * sizes_.width),
                                   .y = y,
                                   .batch = sizes_.batch,
                                   .tokens = sizes_.tokens,
                                   .width = sizes_.width,
                                   .dtype = DType::bf16,
                                   .vocab = sizes_.vocab};
    measure("embedding_forward", shape, embedding_forward_cost(forward), [&] { embedding_forward(context_, forward); });
    const EmbeddingBackward backward{.ids = tokens,
                                     .dy = y,
                                     .dtable = values<float>(sizes_.vocab * sizes_.width),
                                     .rows = rows,
                                     .width = sizes_.width,
                                     .vocab = sizes_.vocab,
                                     .dtype = DType::bf16,
                                     .accumulate = true};
    measure("embedding_backward", shape, embedding_backward_cost(backward),
            [&] { embedding_backward(context_, backward); });
    const PositionBackward position{.dy = y,
                                    .dpositions = values<float>(sizes_.tokens * sizes_.width),
                                    .batch = sizes_.batch,
                                    .tokens = sizes_.tokens,
                                    .width = sizes_.width,
                                    .positions = sizes_.tokens,
                                    .dtype = DType::bf16};
    measure("position_backward", shape, position_backward_cost(position),
            [&] { position_backward(context_, position); });
    free_all();
    const int64_t some = rows / 4;
    const CrossEntropy loss{.logits = values(some * sizes_.vocab),
                            .targets = ids(some, sizes_.ids),
                            .loss_sum = static_cast<double*>(take(8)),
                            .row_losses = values<float>(some),
                            .rows = some,
                            .vocab = sizes_.ids,
                            .stride = sizes_.vocab,
                            .gradient_scale = 1.0f / static_cast<float>(rows),
                            .dtype = DType::bf16,
                            .backward = true};
    measure("cross_entropy", fmt::format("{} x {}", some, sizes_.vocab), cross_entropy_cost(loss),
            [&] { cross_entropy(context_, loss); });
    free_all();
  }

  void update() {
    const int64_t elems = sizes_.parameters;
    const std::string shape = fmt::format("{}", elems);
    auto *p = values<float>(elems), *m = values<float>(elems, 1e-3f), *g = values<float>(elems);
    auto* v = static_cast<float*>(take(4 * elems));
    SLIP_CUDA(cudaMemset(v, 0x3c, static_cast<size_t>(4 * elems)));  // 0.0115, positive
    auto* narrow = values(elems);
    const AdamwScalars scalars{.learning_rate = 1e-5f, .inv_bias1 = 1, .inv_bias2 = 1, .clip = 1};
    auto* on_card = static_cast<AdamwScalars*>(take(sizeof scalars));
    upload(on_card, &scalars, sizeof scalars);
    const Adamw args{.parameters = p,
                     .m = m,
                     .v = v,
                     .gradient = g,
                     .working = narrow,
                     .elems = elems,
                     .scalars = on_card,
                     .weight_decay = 0.1f};
    measure("adamw", shape, adamw_cost(args), [&] { adamw(context_, args); });
    const SumSquaresPart whole{.begin = 0, .elems = elems, .result = 0};
    const SumSquares squares{.x = g, .parts = &whole, .part_count = 1, .results = static_cast<double*>(take(8))};
    measure("sum_squares", shape, sum_squares_cost(squares), [&] { sum_squares(context_, squares); });
    const Cast down{.from = g, .to = narrow, .elems = elems, .from_dtype = DType::f32, .to_dtype = DType::bf16};
    measure("cast to bfloat16", shape, cast_cost(down), [&] { cast(context_, down); });
    const Add sums{.x = m, .y = g, .elems = elems};
    measure("add", shape, add_cost(sums), [&] { add(context_, sums); });
    free_all();
  }

  const Sizes sizes_;
};

}  // namespace

int main(int argc, char** argv) {
  test::require_card();
  try {
    const std::string how = argc > 2 ? argv[2] : "";
    const bool trial = how == "trial";
    CardBench(argc > 1 ? argv[1] : nullptr, trial ? kTrial : Sizes{}, trial ? "" : how).run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
