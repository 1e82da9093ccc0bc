// SPDX-License-Identifier: Apache-2.0
// The checks, cost, workspace, and order of passes and products of Muon, which are the same on every device; and the
// update of a plan.

#include "kernels/muon/muon.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/plan/update_shards.h"
#include "kernels/cast/cast.h"
#include "kernels/common/checks.h"
#include "kernels/matmul/matmul.h"
#include "kernels/muon/muon_passes.h"
#include "kernels/sum_squares/sum_squares.h"

namespace slipstream::kernels {
namespace {

void run(LaunchContext& context, const MuonMomentum& pass) {
  if (context.kind == DeviceKind::cuda) return muon_momentum_cuda(context, pass);
  SLIP_CALL_ISA(muon_momentum_cpu(context, pass))
}
void run(LaunchContext& context, const MuonNormalize& pass) {
  if (context.kind == DeviceKind::cuda) return muon_normalize_cuda(context, pass);
  SLIP_CALL_ISA(muon_normalize_cpu(context, pass))
}
void run(LaunchContext& context, const MuonPolynomial& pass) {
  if (context.kind == DeviceKind::cuda) return muon_polynomial_cuda(context, pass);
  SLIP_CALL_ISA(muon_polynomial_cpu(context, pass))
}
void run(LaunchContext& context, const MuonStep& pass) {
  if (context.kind == DeviceKind::cuda) return muon_step_cuda(context, pass);
  SLIP_CALL_ISA(muon_step_cpu(context, pass))
}

/// The bytes from the start of the workspace at which its areas begin.
struct Areas {
  int64_t sum = 0;
  int64_t direction = 0;  // float, and every second X
  int64_t x = 0;
  int64_t gram = 0, square = 0;
  int64_t float_gram = 0;  // for products in bf16 of a tall X, whose gram matrix is computed in float
  int64_t end = 0;
};

bool is_tall(const Muon& args) { return args.rows > args.cols; }
bool casts_gram(const Muon& args) { return is_tall(args) && args.product_dtype != DType::f32; }

Areas areas_of(const Muon& args) {
  const int64_t elems = args.rows * args.cols, k = std::min(args.rows, args.cols);
  Areas areas;
  const auto take = [&](int64_t size_bytes) { return std::exchange(areas.end, areas.end + round_up(size_bytes, 256)); };
  areas.sum = take(size_of(DType::f64));
  areas.direction = take(bytes_of(elems, DType::f32));
  areas.x = take(bytes_of(elems, args.product_dtype));
  areas.gram = take(bytes_of(k * k, args.product_dtype));
  areas.square = take(bytes_of(k * k, args.product_dtype));
  areas.float_gram = take(casts_gram(args) ? bytes_of(k * k, DType::f32) : 0);
  return areas;
}

void require_shape(const Muon& args) {
  require_at_least("muon", "rows", args.rows, 0);
  require_at_least("muon", "cols", args.cols, 0);
  require_at_least("muon", "steps", args.steps, 0);
  require_activation_dtype("muon", args.product_dtype);
}

/// gram = X Xᵀ, or XᵀX if X is tall.
void multiply_gram(LaunchContext& context, const Muon& args, const void* x, std::byte* gram, float* float_gram) {
  if (!is_tall(args))
    return matmul_forward(context, {.x = x,
                                    .weight = x,
                                    .y = gram,
                                    .rows = args.rows,
                                    .in = args.cols,
                                    .out = args.rows,
                                    .dtype = args.product_dtype});
  matmul_backward_weight(context, {.x = x,
                                   .dy = x,
                                   .dweight = casts_gram(args) ? float_gram : reinterpret_cast<float*>(gram),
                                   .rows = args.rows,
                                   .in = args.cols,
                                   .out = args.cols,
                                   .dtype = args.product_dtype});
  if (casts_gram(args))
    cast(context, {.from = float_gram,
                   .to = gram,
                   .elems = args.cols * args.cols,
                   .from_dtype = DType::f32,
                   .to_dtype = args.product_dtype});
}

/// next = P X, or X P if X is tall; P is symmetric.
void multiply_polynomial(LaunchContext& context, const Muon& args, const void* polynomial, const void* x, void* next) {
  if (is_tall(args))
    matmul_forward(context, {.x = x,
                             .weight = polynomial,
                             .y = next,
                             .rows = args.rows,
                             .in = args.cols,
                             .out = args.cols,
                             .dtype = args.product_dtype});
  else
    matmul_backward_input(context, {.dy = polynomial,
                                    .weight = x,
                                    .dx = next,
                                    .rows = args.rows,
                                    .in = args.cols,
                                    .out = args.rows,
                                    .dtype = args.product_dtype});
}

}  // namespace

void muon(LaunchContext& context, const Muon& args) {
  if (context.kind == DeviceKind::sim) no_kernel("muon", context.kind);
  require_shape(args);
  const int64_t elems = args.rows * args.cols, k = std::min(args.rows, args.cols);
  if (elems == 0) return;
  require_pointers("muon", {args.parameters, args.momentum, args.gradient, args.scalars, args.workspace});
  const Areas areas = areas_of(args);
  if (args.workspace_bytes < areas.end)
    throw ShapeError(
        "[muon] the workspace is too small: got {} bytes, need {} for {} x {}. Take "
        "muon_workspace_bytes().",
        args.workspace_bytes, areas.end, args.rows, args.cols);
  auto* workspace = static_cast<std::byte*>(args.workspace);
  auto* sum = reinterpret_cast<double*>(workspace + areas.sum);
  auto* direction = reinterpret_cast<float*>(workspace + areas.direction);
  std::byte *x = workspace + areas.x, *next = workspace + areas.direction;
  std::byte *gram = workspace + areas.gram, *square = workspace + areas.square;

  run(context, MuonMomentum{args.gradient, args.momentum, direction, elems, args.scalars, args.mu, args.nesterov});
  const SumSquaresPart whole{0, elems, 0};
  sum_squares(context, {direction, &whole, 1, sum});
  run(context, MuonNormalize{direction, sum, x, elems, args.eps, args.product_dtype});
  for (int step = 0; step < args.steps; ++step) {
    multiply_gram(context, args, x, gram, reinterpret_cast<float*>(workspace + areas.float_gram));
    matmul_forward(context,
                   {.x = gram, .weight = gram, .y = square, .rows = k, .in = k, .out = k, .dtype = args.product_dtype});
    run(context, MuonPolynomial{gram, square, k, args.a, args.b, args.c, args.product_dtype});
    multiply_polynomial(context, args, square, x, next);
    std::swap(x, next);
  }
  run(context,
      MuonStep{args.parameters, args.updated ? args.updated : args.parameters, args.working, x, elems, args.scalars,
               static_cast<float>(muon_scale(args.scaling, args.rows, args.cols)), args.product_dtype});
}

std::function<void(LaunchContext&)> muon_update(const Job& job, const Item& item, const UpdateOptions& update) {
  return [matrices = update_shards(job, item),
          rounds = job.groups[static_cast<size_t>(item.group)].placement.rounds_updates(),
          scalars = scalars_of(job, job.groups[static_cast<size_t>(item.group)]),
          workspace = job.buffers.whole(job.ids.update_workspace), product_dtype = job.options.update_product_dtype,
          mu = static_cast<float>(update.momentum), scaling = update.muon_scaling](LaunchContext& c) {
    for (const UpdateShard& matrix : matrices) {
      Muon args{.parameters = c.as<float>(matrix.master),
                .momentum = c.as<float>(matrix.states[0]),
                .gradient = c.as<float>(matrix.gradient),
                .rows = matrix.rows,
                .cols = matrix.cols,
                .scalars = c.as<MuonScalars>(scalars),
                .workspace = c.at(workspace),
                .workspace_bytes = workspace.size_bytes,
                .scaling = scaling,
                .product_dtype = product_dtype,
                .mu = mu};
      if (!(matrix.updated == matrix.master)) args.updated = c.as<float>(matrix.updated);
      if (rounds) args.working = c.as<bfloat16>(matrix.working);
      muon(c, args);
    }
  };
}

int64_t muon_workspace_bytes(const Muon& args) {
  require_shape(args);
  return areas_of(args).end;
}

Cost muon_cost(const Muon& args) {
  const int64_t elems = args.rows * args.cols, k = std::min(args.rows, args.cols);
  const int64_t size = size_of(args.product_dtype);
  return {11 * elems + args.steps * (4 * k * elems + 2 * k * k * k + 3 * k * k),
          (32 + 2 * size + (args.working ? 2 : 0)) * elems +
              args.steps * (size * (3 * elems + 7 * k * k) + (casts_gram(args) ? 8 * k * k : 0))};
}

double muon_scale(MuonScaling scaling, int64_t rows, int64_t cols) {
  const auto height = static_cast<double>(rows), width = static_cast<double>(cols);
  return scaling == MuonScaling::original ? std::sqrt(std::max(1.0, height / width))
                                          : 0.2 * std::sqrt(std::max(height, width));
}

}  // namespace slipstream::kernels
