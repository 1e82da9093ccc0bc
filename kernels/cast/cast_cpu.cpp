// SPDX-License-Identifier: Apache-2.0
// Conversions and sums, one range per thread.

#include "kernels/cast/cast.h"

#include "kernels/common/simd.h"

namespace slipstream::kernels::SLIP_ISA {
namespace {

// Below this many elements, waking a thread costs more than it saves.
constexpr int64_t kGrain = 1 << 14;

template <typename From, typename To>
void convert(LaunchContext& context, const Cast& args) {
  const auto* from = static_cast<const From*>(args.from);
  auto* to = static_cast<To*>(args.to);
  context.parallel_for(args.elems, kGrain, [=](int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) store(to + i, load(from + i));
    if (i < end) store_part(to + i, load_part(from + i, end - i), end - i);
  });
}

void copy(LaunchContext& context, const Cast& args) {
  const int64_t size = size_of(args.from_dtype);
  context.parallel_for(args.elems, kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(args.to) + begin * size, static_cast<const char*>(args.from) + begin * size,
                static_cast<size_t>((end - begin) * size));
  });
}

}  // namespace

void cast_cpu(LaunchContext& context, const Cast& args) {
  if (args.from_dtype == args.to_dtype) return copy(context, args);
  if (args.from_dtype == DType::f32) return convert<float, bfloat16>(context, args);
  convert<bfloat16, float>(context, args);
}

void add_cpu(LaunchContext& context, const Add& args) {
  context.parallel_for(args.elems, kGrain, [&](int64_t begin, int64_t end) {
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) store(args.y + i, load(args.y + i) + load(args.x + i));
    for (; i < end; ++i) args.y[i] += args.x[i];
  });
}

}  // namespace slipstream::kernels::SLIP_ISA
