// SPDX-License-Identifier: Apache-2.0
// Checks and dispatch of encoding for the wire.

#include "kernels/wire/wire.h"

#include "engine/base/check.h"
#include "kernels/common/checks.h"

namespace slipstream::kernels {
namespace {

/// Throws on invalid arguments; returns false if there is nothing to do.
bool checked(const char* op, const LaunchContext& context, int64_t elems, int64_t parts, const Format& wire) {
  if (context.kind == DeviceKind::sim) no_kernel(op, context.kind);
  require_at_least(op, "elems", elems, 0);
  require_at_least(op, "parts", parts, 0);
  if (elems % kWirePartElems != 0)
    throw ShapeError("[{}] elems {} is not a multiple of {}. Pad the part.", op, elems, kWirePartElems);
  if (wire != DType::bf16 && wire != kInt8)
    throw ShapeError("[{}] wire type {} needs no encoding, need bfloat16 or int8.", op, name_of(wire));
  return elems > 0 && parts > 0;
}

}  // namespace

void encode(LaunchContext& context, const Encode& args) {
  if (!checked("encode", context, args.elems, args.parts, args.wire)) return;
  require_pointers("encode", {args.from, args.to});
  if (args.residual && args.wire != kInt8)
    throw ShapeError("[encode] a residual needs int8, got {}. Leave it out.", name_of(args.wire));
  if (context.kind == DeviceKind::cuda) return encode_cuda(context, args);
  SLIP_CALL_ISA(encode_cpu(context, args))
}

void decode(LaunchContext& context, const Decode& args) {
  if (!checked("decode", context, args.elems, args.parts, args.wire)) return;
  require_activation_dtype("decode", args.to_dtype);
  require_pointers("decode", {args.from, args.to});
  if (context.kind == DeviceKind::cuda) return decode_cuda(context, args);
  SLIP_CALL_ISA(decode_cpu(context, args))
}

void sum_parts(LaunchContext& context, const SumParts& args) {
  if (!checked("sum_parts", context, args.elems, args.parts, args.wire)) return;
  require_pointers("sum_parts", {args.from, args.to});
  if (context.kind == DeviceKind::cuda) return sum_parts_cuda(context, args);
  SLIP_CALL_ISA(sum_parts_cpu(context, args))
}

}  // namespace slipstream::kernels
