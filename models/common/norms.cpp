// SPDX-License-Identifier: Apache-2.0
// Norms of heads; layer norm and RMS norm, with or without the residual sum before them; their gradients; dropout.

#include "kernels/dropout/dropout.h"
#include "kernels/head_norm/head_norm.h"
#include "kernels/layer_norm/layer_norm.h"
#include "kernels/residual/residual.h"
#include "kernels/rms_norm/rms_norm.h"
#include "models/common/blocks.h"

namespace slipstream::models {
namespace {

Meaning norm_of(const std::vector<Slice>& writes) {
  return {.rule = Rule::rows, .results = static_cast<uint8_t>(writes.size()), .whole_rows = true};
}

/// If `is_share` is true, the sums go to memory of their own, to which all chunks of tokens except the first add.
Meaning gradient_of_norm(uint8_t sums, bool first, bool is_share) {
  return {.rule = Rule::rows,
          .sums = sums,
          .rows_of = 1,
          .adds = !first     ? Adds::always
                  : is_share ? Adds::never
                             : Adds::as_planned,
          .whole_rows = true};
}

}  // namespace

void SpecBuilder::residual_sum(Slice x, Slice delta, Slice sum) {
  const kernels::Residual shape{.elems = sum.size_bytes / size_of(options_.dtype), .dtype = options_.dtype};
  work("residual_sum", kernels::residual_cost(shape), {x, delta}, {sum}, {.rule = Rule::rows}, [=](LaunchContext& c) {
    kernels::Residual args = shape;
    args.a = c.at(x);
    args.b = c.at(delta);
    args.y = c.at(sum);
    kernels::residual(c, args);
  });
}

void SpecBuilder::dropout(const std::string& place, double rate, Slice x, Slice d, Slice y, int64_t first_row) {
  const bool adds = x.size_bytes > 0;
  const kernels::Dropout shape{.rows = rows_of(y, options_.width),
                               .width = options_.width,
                               .first_row = first_row,
                               .chunks = options_.chunks(),
                               .key = kernels::dropout_key(options_.dropout.seed, "dropout." + place),
                               .rate = rate,
                               .dtype = options_.dtype};
  work(adds ? "dropout_sum" : "dropout", kernels::dropout_cost(shape, adds), with({d, sequence_numbers_}, x), {y},
       {.rule = Rule::rows, .first_row = first_row, .rows = shape.rows},
       [=, samples = sequence_numbers_](LaunchContext& c) {
         kernels::Dropout args = shape;
         args.x = adds ? c.at(x) : nullptr;
         args.d = c.at(d);
         args.y = c.at(y);
         args.samples = c.as<kernels::DropoutSample>(samples);
         kernels::dropout(c, args);
       });
}

void SpecBuilder::head_norm(Slice raw, const HeadNorms& n, Slice qkv) {
  const Slice q_weight = value(static_cast<uint32_t>(n.q_weight)), k_weight = value(static_cast<uint32_t>(n.k_weight)),
              inv_rms = n.inv_rms;
  const kernels::HeadNormForward shape{.rows = rows(),
                                       .heads = heads(),
                                       .kv_heads = kv_heads(),
                                       .head_dim = head_dim(),
                                       .eps = options_.norm_eps,
                                       .dtype = options_.dtype};
  work("head_norm", kernels::head_norm_forward_cost(shape), {raw, q_weight, k_weight}, {qkv, inv_rms},
       {.rule = Rule::rows, .results = 2}, [=](LaunchContext& c) {
         kernels::HeadNormForward args = shape;
         args.x = c.at(raw);
         args.q_weight = c.at(q_weight);
         args.k_weight = c.at(k_weight);
         args.y = c.at(qkv);
         args.inv_rms = c.as<float>(inv_rms);
         kernels::head_norm_forward(c, args);
       });
}

void SpecBuilder::head_norm_gradient(Slice d, Slice raw, const HeadNorms& n) {
  const bool is_share = n.partial.size_bytes > 0;
  const auto parameters = n.parameters();
  const Slice q_weight = value(parameters[0]), k_weight = value(parameters[1]), inv_rms = n.inv_rms,
              workspace =
                  scratch("head_norm.workspace",
                          bytes_of(kernels::head_norm_backward_workspace_elems(rows(), head_dim()), DType::f32));
  const Slice dq_weight = is_share ? chunk(n.partial, {0, 2}) : gradient(parameters[0]),
              dk_weight = is_share ? chunk(n.partial, {1, 2}) : gradient(parameters[1]);
  const kernels::HeadNormBackward shape{
      .rows = rows(), .heads = heads(), .kv_heads = kv_heads(), .head_dim = head_dim(), .dtype = options_.dtype};
  const Meaning meaning{.rule = Rule::rows,
                        .sums = 2,
                        .rows_of = 1,
                        .adds = is_share ? Adds::never : Adds::as_planned,
                        .over_heads = true};
  std::vector<Slice> reads{d, raw, q_weight, k_weight, inv_rms};
  if (!is_share) reads.insert(reads.end(), {dq_weight, dk_weight});
  work("head_norm_gradient", kernels::head_norm_backward_cost(shape), reads, {d, dq_weight, dk_weight, workspace},
       meaning, [=](LaunchContext& c) {
         kernels::HeadNormBackward args = shape;
         args.d = c.at(d);
         args.x = c.at(raw);
         args.q_weight = c.at(q_weight);
         args.k_weight = c.at(k_weight);
         args.inv_rms = c.as<float>(inv_rms);
         args.dq_weight = c.as<float>(dq_weight);
         args.dk_weight = c.as<float>(dk_weight);
         args.workspace = c.as<float>(workspace);
         args.accumulate = adds(meaning, c);
         kernels::head_norm_backward(c, args);
       });
  if (is_share) return sum_partial(n.partial);
  for (uint32_t parameter : parameters) ready(parameter);
}

void SpecBuilder::norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y) {
  n.bias < 0 ? rms_norm(x, delta, sum, n, y) : layer_norm(x, delta, sum, n, y);
  if (delta.size_bytes > 0) replay([&] { norm(sum, {}, {}, n, y); });
}

void SpecBuilder::layer_norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y) {
  const Slice weight = value(n.weight), bias = value(static_cast<uint32_t>(n.bias)), mean = n.mean, inv_std = n.inv_std;
  const bool fused = delta.size_bytes > 0;
  const kernels::LayerNormForward shape{
      .rows = rows_of(x, options_.width), .width = options_.width, .eps = options_.norm_eps, .dtype = options_.dtype};
  std::vector<Slice> reads{x, weight, bias}, writes{y, mean, inv_std};
  if (fused) reads.push_back(delta), writes.push_back(sum);
  work("layer_norm", kernels::layer_norm_forward_cost(shape), reads, writes, norm_of(writes), [=](LaunchContext& c) {
    kernels::LayerNormForward args = shape;
    args.x = c.at(x);
    args.delta = fused ? c.at(delta) : nullptr;
    args.sum = fused ? c.at(sum) : nullptr;
    args.weight = c.at(weight);
    args.bias = c.at(bias);
    args.y = c.at(y);
    args.mean = c.as<float>(mean);
    args.inv_std = c.as<float>(inv_std);
    kernels::layer_norm_forward(c, args);
  });
}

void SpecBuilder::rms_norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y) {
  const Slice weight = value(n.weight), inv_rms = n.inv_std;
  const bool fused = delta.size_bytes > 0;
  const kernels::RmsNormForward shape{
      .rows = rows_of(x, options_.width), .width = options_.width, .eps = options_.norm_eps, .dtype = options_.dtype};
  std::vector<Slice> reads{x, weight}, writes{y, inv_rms};
  if (fused) reads.push_back(delta), writes.push_back(sum);
  work("rms_norm", kernels::rms_norm_forward_cost(shape), reads, writes, norm_of(writes), [=](LaunchContext& c) {
    kernels::RmsNormForward args = shape;
    args.x = c.at(x);
    args.delta = fused ? c.at(delta) : nullptr;
    args.sum = fused ? c.at(sum) : nullptr;
    args.weight = c.at(weight);
    args.y = c.at(y);
    args.inv_rms = c.as<float>(inv_rms);
    kernels::rms_norm_forward(c, args);
  });
}

void SpecBuilder::norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, TokenChunk c,
                                const Linear& before) {
  const bool first = c.index == 0;
  n.bias < 0 ? rms_norm_gradient(dy, x, n, residual, dx, first)
             : layer_norm_gradient(dy, x, n, residual, dx, first, summed_bias(before));
  if (c.index + 1 < c.count) return;
  if (n.partial.size_bytes > 0) return sum_partial(n.partial);
  for (uint32_t parameter : n.parameters()) ready(parameter);
}

void SpecBuilder::layer_norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, bool first,
                                      Slice dx_sums) {
  const bool is_share = n.partial.size_bytes > 0, with_residual = residual.size_bytes > 0;
  const Slice weight = value(n.weight), mean = n.mean, inv_std = n.inv_std, workspace = norm_workspace_;
  const Slice dweight = is_share ? chunk(n.partial, {0, 2}) : gradient(n.weight);
  const Slice dbias = is_share ? chunk(n.partial, {1, 2}) : gradient(static_cast<uint32_t>(n.bias));
  const kernels::LayerNormBackward shape{
      .rows = rows_of(x, options_.width), .width = options_.width, .dtype = options_.dtype};
  std::vector<Slice> reads{dy, x, weight, mean, inv_std};
  if (!is_share || !first) reads.insert(reads.end(), {dweight, dbias});
  if (with_residual) reads.push_back(residual);
  const Meaning meaning = gradient_of_norm(dx_sums.size_bytes > 0 ? 3 : 2, first, is_share);
  work("layer_norm_gradient", kernels::layer_norm_backward_cost(shape), with(reads, dx_sums),
       with(with({dx, dweight, dbias}, dx_sums), workspace), meaning, [=](LaunchContext& c) {
         kernels::LayerNormBackward args = shape;
         args.dy = c.at(dy);
         args.x = c.at(x);
         args.weight = c.at(weight);
         args.mean = c.as<float>(mean);
         args.inv_std = c.as<float>(inv_std);
         args.residual = with_residual ? c.at(residual) : nullptr;
         args.dx = c.at(dx);
         args.dweight = c.as<float>(dweight);
         args.dbias = c.as<float>(dbias);
         args.workspace = c.as<float>(workspace);
         args.accumulate = adds(meaning, c);
         args.dx_sums = dx_sums.size_bytes > 0 ? c.as<float>(dx_sums) : nullptr;
         kernels::layer_norm_backward(c, args);
       });
}

void SpecBuilder::rms_norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, bool first) {
  const bool is_share = n.partial.size_bytes > 0, with_residual = residual.size_bytes > 0;
  const Slice weight = value(n.weight), inv_rms = n.inv_std, workspace = norm_workspace_;
  const Slice dweight = is_share ? n.partial : gradient(n.weight);
  const kernels::RmsNormBackward shape{
      .rows = rows_of(x, options_.width), .width = options_.width, .dtype = options_.dtype};
  std::vector<Slice> reads{dy, x, weight, inv_rms};
  if (!is_share || !first) reads.push_back(dweight);
  if (with_residual) reads.push_back(residual);
  const Meaning meaning = gradient_of_norm(1, first, is_share);
  work("rms_norm_gradient", kernels::rms_norm_backward_cost(shape), reads, {dx, dweight, workspace}, meaning,
       [=](LaunchContext& c) {
         kernels::RmsNormBackward args = shape;
         args.dy = c.at(dy);
         args.x = c.at(x);
         args.weight = c.at(weight);
         args.inv_rms = c.as<float>(inv_rms);
         args.residual = with_residual ? c.at(residual) : nullptr;
         args.dx = c.at(dx);
         args.dweight = c.as<float>(dweight);
         args.workspace = c.as<float>(workspace);
         args.accumulate = adds(meaning, c);
         kernels::rms_norm_backward(c, args);
       });
}

}  // namespace slipstream::models
