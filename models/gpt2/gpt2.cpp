// SPDX-License-Identifier: Apache-2.0
// The pieces of GPT-2, forward and backward, in the order in which they run.

#include "models/gpt2/gpt2.h"

#include <cmath>

#include "engine/base/check.h"
#include "kernels/layer_norm/layer_norm.h"
#include "models/common/blocks.h"
#include "models/common/ring.h"

namespace slipstream::models {
namespace {

struct Layer {
  uint32_t ln_1_weight, ln_1_bias, qkv_weight, qkv_bias, proj_weight, proj_bias;
  uint32_t ln_2_weight, ln_2_bias, fc_weight, fc_bias, out_weight, out_bias;
  Slice residual_in, ln_1, mean_1, inv_std_1, qkv, lse, attended;  // activations kept for backward
  Slice residual_mid, ln_2, mean_2, inv_std_2, fc, fc_gelu;
  Slice d_in, d_qkv, d_mid, d_fc, d_out;  // gradients of residual_in, qkv, residual_mid, fc and the layer's output
};

struct Norm {
  uint32_t weight, bias;
  Slice mean, inv_std;
};

class Gpt2 {
 public:
  Gpt2(const ModelOptions& options, Buffers& buffers) : o_(options), b_(options, buffers), ring_(b_) {}

  ModelSpec build() {
    declare();
    b_.take_batch();
    b_.spec().forward.push_back(b_.current());
    forward();
    backward();
    return b_.finish(fmt::format("gpt2, {} layers, {} heads, width {}, context {}, vocabulary {}, {} head", o_.layers,
                                 o_.heads, o_.width, o_.context, o_.vocab, o_.tie_embeddings ? "tied" : "untied"));
  }

 private:
  void declare() {
    const int64_t D = o_.width, F = o_.ffn_width, R = b_.rows();
    const Init normal{Init::Kind::normal, 0.02f};
    const Init residual{Init::Kind::normal, 0.02f / std::sqrt(2.0f * static_cast<float>(o_.layers))};
    const Init ones{Init::Kind::ones, 0}, zeros{};
    table_ = b_.parameter("transformer.wte.weight", {o_.vocab, D}, -1, normal);
    positions_ = b_.parameter("transformer.wpe.weight", {o_.context, D}, -1, normal);
    embedded_ = b_.activation("embedded", D);
    for (int l = 0; l < o_.layers; ++l) {
      const std::string p = fmt::format("transformer.h.{}.", l), a = fmt::format("layer{}.", l);
      layers_.push_back({
          .ln_1_weight = b_.parameter(p + "ln_1.weight", {D}, l, ones),
          .ln_1_bias = b_.parameter(p + "ln_1.bias", {D}, l, zeros),
          .qkv_weight = b_.parameter(p + "attn.c_attn.weight", {3 * D, D}, l, normal, true),
          .qkv_bias = b_.parameter(p + "attn.c_attn.bias", {3 * D}, l, zeros),
          .proj_weight = b_.parameter(p + "attn.c_proj.weight", {D, D}, l, residual, true),
          .proj_bias = b_.parameter(p + "attn.c_proj.bias", {D}, l, zeros),
          .ln_2_weight = b_.parameter(p + "ln_2.weight", {D}, l, ones),
          .ln_2_bias = b_.parameter(p + "ln_2.bias", {D}, l, zeros),
          .fc_weight = b_.parameter(p + "mlp.c_fc.weight", {F, D}, l, normal, true),
          .fc_bias = b_.parameter(p + "mlp.c_fc.bias", {F}, l, zeros),
          .out_weight = b_.parameter(p + "mlp.c_proj.weight", {D, F}, l, residual, true),
          .out_bias = b_.parameter(p + "mlp.c_proj.bias", {D}, l, zeros),
          // The first layer reads the embedding itself; the others store the sum that their first norm forms.
          .residual_in = l == 0 ? embedded_ : b_.activation(a + "residual_in", D),
          .ln_1 = b_.activation(a + "ln_1", D),
          .mean_1 = b_.statistics(a + "mean_1", R),
          .inv_std_1 = b_.statistics(a + "inv_std_1", R),
          .qkv = b_.activation(a + "qkv", 3 * D),
          .lse = b_.statistics(a + "lse", o_.heads * R),
          .attended = b_.activation(a + "attended", D),
          .residual_mid = b_.activation(a + "residual_mid", D),
          .ln_2 = b_.activation(a + "ln_2", D),
          .mean_2 = b_.statistics(a + "mean_2", R),
          .inv_std_2 = b_.statistics(a + "inv_std_2", R),
          .fc = b_.activation(a + "fc", F),
          .fc_gelu = b_.activation(a + "fc_gelu", F),
      });
    }
    final_ = {b_.parameter("transformer.ln_f.weight", {D}, static_cast<int>(o_.layers), ones),
              b_.parameter("transformer.ln_f.bias", {D}, static_cast<int>(o_.layers), zeros),
              b_.statistics("mean_f", R), b_.statistics("inv_std_f", R)};
    head_ = b_.head_table(table_, "lm_head.weight", normal);
    residual_out_ = b_.activation("residual_out", D);
    hidden_ = b_.activation("hidden", D);
    const int64_t width_bytes = bytes_of(R * D, o_.dtype);
    delta_ = b_.scratch("delta", width_bytes);
    d_residual_ = b_.scratch("d_residual", width_bytes);
    d_norm_ = b_.scratch("d_norm", width_bytes);
    d_wide_ = b_.scratch("d_wide", bytes_of(R * std::max(F, 3 * D), o_.dtype));
    for (int l = 0; l < o_.layers; ++l) {
      Layer& y = layers_[static_cast<size_t>(l)];
      const std::string a = fmt::format("layer{}.", l);
      y.d_in = l == 0 ? b_.output_gradient("d_embedded", D, d_residual_) : layers_[static_cast<size_t>(l) - 1].d_out;
      y.d_qkv = b_.output_gradient(a + "d_qkv", 3 * D, d_wide_);
      y.d_mid = b_.output_gradient(a + "d_mid", D, d_residual_);
      y.d_fc = b_.output_gradient(a + "d_fc", F, d_wide_);
      y.d_out = b_.output_gradient(a + "d_out", D, d_residual_);
    }
  }

  /// y = norm(x + delta), the sum stored; without delta y = norm(x).
  void norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y) {
    const Slice weight = b_.value(n.weight), bias = b_.value(n.bias), mean = n.mean, inv_std = n.inv_std;
    const bool fused = delta.size_bytes > 0;
    const kernels::LayerNormForward shape{.rows = b_.rows(), .width = o_.width, .eps = o_.norm_eps, .dtype = o_.dtype};
    std::vector<Slice> reads{x, weight, bias}, writes{y, mean, inv_std};
    if (fused) {
      reads.push_back(delta);
      writes.push_back(sum);
    }
    b_.work("layer_norm", kernels::layer_norm_forward_cost(shape), reads, writes, [=](LaunchContext& c) {
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

  /// dx = (residual) + d norm(x); the parameters of the norm are ready after the piece.
  void norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx) {
    const Slice weight = b_.value(n.weight), dweight = b_.gradient(n.weight), dbias = b_.gradient(n.bias);
    const Slice mean = n.mean, inv_std = n.inv_std, workspace = b_.norm_workspace();
    const bool with_residual = residual.size_bytes > 0;
    const kernels::LayerNormBackward shape{.rows = b_.rows(), .width = o_.width, .dtype = o_.dtype};
    std::vector<Slice> reads{dy, x, weight, mean, inv_std, dweight, dbias};
    if (with_residual) reads.push_back(residual);
    b_.work("layer_norm_gradient", kernels::layer_norm_backward_cost(shape), reads, {dx, dweight, dbias, workspace},
            [=](LaunchContext& c) {
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
              args.accumulate = c.frame->accumulate;
              kernels::layer_norm_backward(c, args);
            });
    b_.ready(n.weight);
    b_.ready(n.bias);
  }

  void forward() {
    auto add = [&](uint32_t piece) {
      b_.spec().forward.push_back(piece);
      b_.spec().evaluate.push_back(piece);
    };
    add(b_.begin("embedding", -1));
    b_.embed(table_, positions_, embedded_);
    const int64_t D = o_.width, F = o_.ffn_width;
    for (int l = 0; l < o_.layers; ++l) {
      const Layer& y = layers_[static_cast<size_t>(l)];
      add(b_.begin("attention", l));
      if (l == 0 || b_.cut_before(l))
        norm(y.residual_in, {}, {}, {y.ln_1_weight, y.ln_1_bias, y.mean_1, y.inv_std_1}, y.ln_1);
      else
        norm(layers_[static_cast<size_t>(l) - 1].residual_mid, delta_, y.residual_in,
             {y.ln_1_weight, y.ln_1_bias, y.mean_1, y.inv_std_1}, y.ln_1);
      b_.linear(y.ln_1, y.qkv_weight, y.qkv_bias, y.qkv, D, 3 * D);
      ring_.forward(l, y.qkv, y.attended, y.lse, add);
      b_.linear(y.attended, y.proj_weight, y.proj_bias, delta_, D, D);
      add(b_.begin("mlp", l));
      norm(y.residual_in, delta_, y.residual_mid, {y.ln_2_weight, y.ln_2_bias, y.mean_2, y.inv_std_2}, y.ln_2);
      b_.linear(y.ln_2, y.fc_weight, y.fc_bias, y.fc_gelu, D, F, y.fc);
      b_.linear(y.fc_gelu, y.out_weight, y.out_bias, delta_, F, D);
      const bool last = l + 1 == o_.layers;
      if (b_.cut_before(l + 1)) add(b_.residual_sum(l, y.residual_mid, delta_, last ? residual_out_ : layers_[static_cast<size_t>(l) + 1].residual_in));
    }
    add(b_.begin("final_norm", static_cast<int>(o_.layers)));
    if (b_.cut_before(o_.layers))
      norm(residual_out_, {}, {}, final_, hidden_);
    else
      norm(layers_.back().residual_mid, delta_, residual_out_, final_, hidden_);
    b_.spec().forward.push_back(b_.begin("head", static_cast<int>(o_.layers)));
    b_.head_losses(hidden_, head_, true);
    b_.spec().evaluate.push_back(b_.begin("head_evaluate", static_cast<int>(o_.layers)));
    b_.head_losses(hidden_, head_, false);
  }

  void backward() {
    std::vector<uint32_t>& order = b_.spec().backward;
    const int64_t D = o_.width, F = o_.ffn_width;
    b_.head_gradient(hidden_, head_, d_norm_, order);
    order.push_back(b_.begin("final_norm_gradient", static_cast<int>(o_.layers)));
    norm_gradient(d_norm_, residual_out_, final_, {}, layers_.back().d_out);
    for (int l = static_cast<int>(o_.layers) - 1; l >= 0; --l) {
      const Layer& y = layers_[static_cast<size_t>(l)];
      order.push_back(b_.begin("mlp_out_gradient", l));
      b_.linear_weight_gradient(y.fc_gelu, y.d_out, y.out_weight, y.out_bias, F, D);
      order.push_back(b_.begin("mlp_fc_gradient", l));
      b_.linear_input_gradient(y.d_out, y.out_weight, y.d_fc, F, D);
      b_.gelu_gradient(y.d_fc, y.fc, y.d_fc, F);
      b_.linear_weight_gradient(y.ln_2, y.d_fc, y.fc_weight, y.fc_bias, D, F);
      order.push_back(b_.begin("ln_2_gradient", l));
      b_.linear_input_gradient(y.d_fc, y.fc_weight, d_norm_, D, F);
      norm_gradient(d_norm_, y.residual_mid, {y.ln_2_weight, y.ln_2_bias, y.mean_2, y.inv_std_2}, y.d_out, y.d_mid);
      ring_.fetch(l, y.qkv, order);
      order.push_back(b_.begin("attention_proj_gradient", l));
      b_.linear_weight_gradient(y.attended, y.d_mid, y.proj_weight, y.proj_bias, D, D);
      order.push_back(b_.begin("attention_qkv_gradient", l));
      b_.linear_input_gradient(y.d_mid, y.proj_weight, d_norm_, D, D);
      ring_.backward(l, d_norm_, y.qkv, y.attended, y.lse, y.d_qkv, order);
      b_.linear_weight_gradient(y.ln_1, y.d_qkv, y.qkv_weight, y.qkv_bias, D, 3 * D);
      order.push_back(b_.begin("ln_1_gradient", l));
      b_.linear_input_gradient(y.d_qkv, y.qkv_weight, d_norm_, D, 3 * D);
      norm_gradient(d_norm_, y.residual_in, {y.ln_1_weight, y.ln_1_bias, y.mean_1, y.inv_std_1}, y.d_mid, y.d_in);
    }
    order.push_back(b_.begin("embedding_gradient", -1));
    b_.embed_gradient(table_, positions_, layers_.front().d_in);
  }

  ModelOptions o_;
  SpecBuilder b_;
  Ring ring_;
  std::vector<Layer> layers_;
  Norm final_{};
  uint32_t table_ = 0, positions_ = 0, head_ = 0;
  Slice embedded_, residual_out_, hidden_, delta_, d_residual_, d_norm_, d_wide_;
};

}  // namespace

ModelSpec build_gpt2(const ModelOptions& options, Buffers& buffers) {
  if (options.kv_heads != options.heads)
    throw ConfigError("[model] gpt2 has as many key-value heads as heads: got kv_heads {} and heads {}. Remove "
                      "model.kv_heads, or set family = \"llama\".", options.kv_heads, options.heads);
  return Gpt2(options, buffers).build();
}

}  // namespace slipstream::models
