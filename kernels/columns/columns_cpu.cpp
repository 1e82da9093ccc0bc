// SPDX-License-Identifier: Apache-2.0
// Columns on the CPU. Threads share the rows.

#include <cstring>

#include "kernels/columns/columns.h"
#include "kernels/common/vectors.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

constexpr int64_t kGrainElems = 1 << 14;

template <typename T>
void sum(LaunchContext& context, const ColumnsSum& args) {
  context.parallel_for(args.rows, 1 + kGrainElems / args.width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* const a = args.a + row * args.width;
      const float* const b = args.b + row * args.width;
      T* const to = static_cast<T*>(args.to) + row * args.to_stride;
      for_vectors(0, args.width,
                  [&](auto lanes, int64_t j) { lanes.store(to + j, lanes.load(a + j) + lanes.load(b + j)); });
    }
  });
}

}  // namespace

void columns_take_cpu(LaunchContext& context, const ColumnsTake& args) {
  const int64_t elem_bytes = size_of(args.dtype), row_bytes = args.width * elem_bytes;
  context.parallel_for(args.rows, 1 + kGrainElems / args.width, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      std::memcpy(static_cast<char*>(args.to) + row * row_bytes,
                  static_cast<const char*>(args.from) + row * args.from_stride * elem_bytes,
                  static_cast<size_t>(row_bytes));
  });
}

void columns_sum_cpu(LaunchContext& context, const ColumnsSum& args) {
  if (args.dtype == DType::f32) return sum<float>(context, args);
  sum<bfloat16>(context, args);
}

}  // namespace slipstream::kernels::SLIP_ISA
