// SPDX-License-Identifier: Apache-2.0
// AdamW on CUDA: one flat launch over the range, 16 bytes per thread and operand.

#include "kernels/adamw/adamw.h"
#include "kernels/cuda/common.cuh"

namespace slipstream::kernels {
namespace {

constexpr int kThreads = 256;
// The number of elements in a pack of the bf16 copy.
constexpr int kElems = 8;

/// Spans of a range. They are launch parameters, so that a recorded step needs no memory for them.
struct Spans {
  static constexpr int kMost = 128;  // 2 KiB of a launch's 4
  int count = 0;
  UpdateSpan at[kMost];
};

template <bool kAligned>
__global__ void __launch_bounds__(kThreads) adamw_kernel(Adamw args, Spans spans) {
  ptx::after_earlier_kernels();
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kElems, count = args.elems - first;
  if (count <= 0) return;
  const AdamwScalars scalars = *args.scalars;
  float p[kElems], m[kElems], v[kElems], g[kElems];
  load_floats<kAligned>(args.gradient + first, count, g);
  load_floats<kAligned>(args.parameters + first, count, p);
  load_floats<kAligned>(args.m + first, count, m);
  load_floats<kAligned>(args.v + first, count, v);
  int passed = 0;  // the number of spans that begin at or before an element
  for (int beyond = spans.count; passed < beyond;) {
    const int middle = (passed + beyond) / 2;
    if (spans.at[middle].begin <= first)
      passed = middle + 1;
    else
      beyond = middle;
  }
  if (scalars.clip >= 0.0f) {  // otherwise the step is skipped and stores what it has loaded
#pragma unroll
    for (int i = 0; i < kElems; ++i) {
      while (passed < spans.count && spans.at[passed].begin <= first + i) ++passed;
      const float rate = scalars.learning_rate * (passed > 0 ? spans.at[passed - 1].learning_rate : 1.0f);
      const float decay = args.weight_decay * (passed > 0 ? spans.at[passed - 1].weight_decay : 1.0f);
      const float gradient = scalars.clip * g[i];
      p[i] -= rate * decay * p[i];
      m[i] = args.beta1 * m[i] + (1.0f - args.beta1) * gradient;
      v[i] = args.beta2 * v[i] + (1.0f - args.beta2) * gradient * gradient;
      p[i] -= rate * (m[i] * scalars.inv_bias1) / (sqrtf(v[i] * scalars.inv_bias2) + args.eps);
    }
  }
  store_floats<kAligned>((args.updated ? args.updated : args.parameters) + first, count, p);
  store_floats<kAligned>(args.m + first, count, m);
  store_floats<kAligned>(args.v + first, count, v);
  if (args.working) store_floats<kAligned>(args.working + first, count, p);
}

/// The elements [begin, end) as a range of their own.
Adamw part_of(Adamw args, int64_t begin, int64_t end) {
  args.parameters += begin;
  args.m += begin;
  args.v += begin;
  args.gradient += begin;
  if (args.working) args.working += begin;
  if (args.updated) args.updated += begin;
  args.elems = end - begin;
  return args;
}

}  // namespace

void adamw_cuda(LaunchContext& context, const Adamw& args) {
  int64_t next = 0;  // the index of a span
  for (int64_t begin = 0; begin < args.elems;) {
    Spans spans;
    const auto add = [&](UpdateSpan span) {
      span.begin -= begin;
      spans.at[spans.count++] = span;
    };
    // There are more spans than one launch can carry. The next launch begins with the last span of this one.
    if (next > 0) add({begin, args.spans[next - 1].learning_rate, args.spans[next - 1].weight_decay});
    while (spans.count < Spans::kMost && next < args.span_count) add(args.spans[next++]);
    const Adamw part = part_of(args, begin, next < args.span_count ? args.spans[next].begin : args.elems);
    begin += part.elems;
    if (part.elems == 0) continue;
    for_flag(all_aligned(part.parameters, part.updated, part.m, part.v, part.gradient, part.working),
             [&](auto aligned) {
               launch(stream_of(context), adamw_kernel<aligned.value>,
                      dim3(static_cast<unsigned>(blocks_for(part.elems, kThreads * kElems))), dim3(kThreads), 0, part,
                      spans);
             });
  }
}

}  // namespace slipstream::kernels
