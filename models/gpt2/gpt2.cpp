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
  Slice d_norm_1, d_norm_2;  // gradients of the norms' parameters while they are this rank's share of a sum
  Slice d_in, d_qkv, d_mid, d_fc, d_out;  // gradients of residual_in, qkv, residual_mid, fc and the layer's output
};

struct Norm {
  uint32_t weight, bias;
  Slice mean, inv_std;
  Slice partial = {};  // weight's and bias's gradients, when they are this rank's share of a sum
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
    const int64_t D = o_.width, F = b_.ffn_width(), A = b_.attention_width(), R = b_.rows(), own = b_.own_rows();
    const auto parameter = [&](NamedTensor tensor, int layer, Init init) {
      const bool decay = tensor.shape.size() >= 2;
      return b_.parameter(ParameterSpec{.tensors = {std::move(tensor)}, .layer = layer, .init = init, .decay = decay});
    };
    const Init normal{Init::Kind::normal, 0.02f};
    const Init residual{Init::Kind::normal, 0.02f / std::sqrt(2.0f * static_cast<float>(o_.layers))};
    const Init ones{Init::Kind::ones, 0}, zeros{};
    table_ = b_.vocab_parameter("transformer.wte.weight", -1, normal);
    positions_ = b_.parameter("transformer.wpe.weight", {o_.context, D}, -1, normal);
    embedded_ = b_.own_activation("embedded", D);
    for (int l = 0; l < o_.layers; ++l) {
      const std::string p = fmt::format("transformer.h.{}.", l), a = fmt::format("layer{}.", l);
      layers_.push_back({
          .ln_1_weight = b_.parameter(p + "ln_1.weight", {D}, l, ones),
          .ln_1_bias = b_.parameter(p + "ln_1.bias", {D}, l, zeros),
          .qkv_weight = parameter(b_.held({p + "attn.c_attn.weight", {3 * D, D}, 0, true}, 0, 3), l, normal),
          .qkv_bias = parameter(b_.held({p + "attn.c_attn.bias", {3 * D}}, 0, 3), l, zeros),
          .proj_weight = parameter(b_.held({p + "attn.c_proj.weight", {D, D}, 0, true}, 1), l, residual),
          .proj_bias = b_.parameter(p + "attn.c_proj.bias", {D}, l, zeros),
          .ln_2_weight = b_.parameter(p + "ln_2.weight", {D}, l, ones),
          .ln_2_bias = b_.parameter(p + "ln_2.bias", {D}, l, zeros),
          .fc_weight = parameter(b_.held({p + "mlp.c_fc.weight", {o_.ffn_width, D}, 0, true}, 0), l, normal),
          .fc_bias = parameter(b_.held({p + "mlp.c_fc.bias", {o_.ffn_width}}, 0), l, zeros),
          .out_weight = parameter(b_.held({p + "mlp.c_proj.weight", {D, o_.ffn_width}, 0, true}, 1), l, residual),
          .out_bias = b_.parameter(p + "mlp.c_proj.bias", {D}, l, zeros),
          // The first layer reads the embedding itself; the others store the sum that their first norm forms.
          .residual_in = l == 0 ? embedded_ : b_.own_activation(a + "residual_in", D),
          .ln_1 = b_.activation(a + "ln_1", D),
          .mean_1 = b_.statistics(a + "mean_1", own),
          .inv_std_1 = b_.statistics(a + "inv_std_1", own),
          .qkv = b_.activation(a + "qkv", 3 * A),
          .lse = b_.statistics(a + "lse", b_.heads() * R),
          .attended = b_.activation(a + "attended", A),
          .residual_mid = b_.own_activation(a + "residual_mid", D),
          .ln_2 = b_.activation(a + "ln_2", D),
          .mean_2 = b_.statistics(a + "mean_2", own),
          .inv_std_2 = b_.statistics(a + "inv_std_2", own),
          .fc = b_.activation(a + "fc", F),
          .fc_gelu = b_.activation(a + "fc_gelu", F),
      });
    }
    // Not fc_gelu: the product that makes it rounds fc only afterwards, so that GELU of the kept fc would have other bits.
    for (const Layer& y : layers_)
      for (Slice made : {y.ln_1, y.mean_1, y.inv_std_1, y.ln_2, y.mean_2, y.inv_std_2}) b_.cheap(made);
    final_ = {b_.parameter("transformer.ln_f.weight", {D}, static_cast<int>(o_.layers), ones),
              b_.parameter("transformer.ln_f.bias", {D}, static_cast<int>(o_.layers), zeros),
              b_.statistics("mean_f", own), b_.statistics("inv_std_f", own), b_.norm_partial("d_norm_f", 2 * D)};
    head_ = b_.head_table(table_, "lm_head.weight", normal);
    residual_out_ = b_.own_activation("residual_out", D);
    hidden_ = b_.activation("hidden", D);
    const int64_t width_bytes = bytes_of(R * D, o_.dtype);
    delta_ = b_.scratch("delta", width_bytes);
    d_residual_ = b_.scratch("d_residual", width_bytes);
    d_norm_ = b_.scratch("d_norm", width_bytes);
    // With chunks in flight d_norm still has chunks of the last norm while the first of the attention's are made.
    if (b_.shared()) d_attended_ = b_.scratch("d_attended", bytes_of(R * A, o_.dtype));
    d_wide_ = b_.scratch("d_wide", bytes_of(R * std::max(F, 3 * A), o_.dtype));
    for (int l = 0; l < o_.layers; ++l) {
      Layer& y = layers_[static_cast<size_t>(l)];
      const std::string a = fmt::format("layer{}.", l);
      y.d_norm_1 = b_.norm_partial(a + "d_norm_1", 2 * D);
      y.d_norm_2 = b_.norm_partial(a + "d_norm_2", 2 * D);
      y.d_in = l == 0 ? b_.output_gradient("d_embedded", D, d_residual_) : layers_[static_cast<size_t>(l) - 1].d_out;
      y.d_qkv = b_.output_gradient(a + "d_qkv", 3 * A, b_.first_columns(d_wide_, 3 * A));
      y.d_mid = b_.output_gradient(a + "d_mid", D, d_residual_);
      y.d_fc = b_.output_gradient(a + "d_fc", F, b_.first_columns(d_wide_, F));
      y.d_out = b_.output_gradient(a + "d_out", D, d_residual_);
    }
  }

  /// y = norm(x + delta), the sum stored; without delta y = norm(x).
  void norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y) {
    const Slice weight = b_.value(n.weight), bias = b_.value(n.bias), mean = n.mean, inv_std = n.inv_std;
    const bool fused = delta.size_bytes > 0;
    const kernels::LayerNormForward shape{.rows = b_.rows_of(x, o_.width), .width = o_.width, .eps = o_.norm_eps, .dtype = o_.dtype};
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
    if (fused) b_.replay([&] { norm(sum, {}, {}, n, y); });
  }

  /// dx = (residual) + d norm(x); the parameters of the norm are ready after the piece.
  void norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, TokenChunk chunk = {}) {
    const bool is_share = n.partial.size_bytes > 0, first = chunk.index == 0;
    const Slice weight = b_.value(n.weight), dweight = is_share ? b_.chunk(n.partial, {0, 2}) : b_.gradient(n.weight);
    const Slice dbias = is_share ? b_.chunk(n.partial, {1, 2}) : b_.gradient(n.bias);
    const Slice mean = n.mean, inv_std = n.inv_std, workspace = b_.norm_workspace();
    const bool with_residual = residual.size_bytes > 0;
    const kernels::LayerNormBackward shape{.rows = b_.rows_of(x, o_.width), .width = o_.width, .dtype = o_.dtype};
    std::vector<Slice> reads{dy, x, weight, mean, inv_std};
    if (!is_share || !first) reads.insert(reads.end(), {dweight, dbias});
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
              args.accumulate = !first || (!is_share && c.frame->accumulate);
              kernels::layer_norm_backward(c, args);
            });
    if (chunk.index + 1 < chunk.count) return;
    if (is_share) return b_.sum_partial(n.partial);
    b_.ready(n.weight);
    b_.ready(n.bias);
  }

  Norm chunk_of(const Norm& n, TokenChunk c) const { return {n.weight, n.bias, b_.chunk(n.mean, c), b_.chunk(n.inv_std, c), n.partial}; }
  static Norm norm_1(const Layer& y) { return {y.ln_1_weight, y.ln_1_bias, y.mean_1, y.inv_std_1, y.d_norm_1}; }
  static Norm norm_2(const Layer& y) { return {y.ln_2_weight, y.ln_2_bias, y.mean_2, y.inv_std_2, y.d_norm_2}; }

  void forward() {
    auto add = [&](uint32_t piece) {
      b_.spec().forward.push_back(piece);
      b_.spec().evaluate.push_back(piece);
    };
    add(b_.begin("embedding", -1));
    b_.embed(table_, positions_, embedded_, delta_);
    const int64_t D = o_.width, F = b_.ffn_width(), A = b_.attention_width();
    // x: own rows; delta, out: all rows, of which the norm sees and makes the rank's own.
    const auto norm_stage = [&](const Norm& n, Slice x, Slice delta, Slice sum, Slice out) {
      return [=, this](TokenChunk c) {
        norm(b_.chunk(x, c), delta.size_bytes > 0 ? b_.own(delta, c) : Slice{}, b_.chunk(sum, c), chunk_of(n, c), b_.own(out, c));
        b_.gather(out, c);
      };
    };
    std::vector<SpecBuilder::Stage> stages;  // since the last attention: token by token
    const auto end_of = [&](int l) { return l + 1 == o_.layers ? residual_out_ : layers_[static_cast<size_t>(l) + 1].residual_in; };
    for (int l = 0; l < o_.layers; ++l) {
      const Layer& y = layers_[static_cast<size_t>(l)];
      const bool plain = l == 0 || b_.cut_before(l);
      stages.push_back({"attention", "norm", l, plain ? norm_stage(norm_1(y), y.residual_in, {}, {}, y.ln_1)
                                                     : norm_stage(norm_1(y), layers_[static_cast<size_t>(l) - 1].residual_mid, delta_, y.residual_in, y.ln_1)});
      stages.push_back({"attention", "qkv", l, [this, D, A, &y](TokenChunk c) { b_.linear(b_.chunk(y.ln_1, c), y.qkv_weight, y.qkv_bias, b_.chunk(y.qkv, c), D, 3 * A); }});
      b_.in_chunks(stages, b_.chunks(), add);
      stages.clear();
      if (b_.shared()) add(b_.begin("attention", l));
      ring_.forward(l, y.qkv, y.attended, y.lse, add);
      const auto proj = [this, D, A, &y](TokenChunk c) {
        b_.partial_linear(b_.chunk(y.attended, c), y.proj_weight, y.proj_bias, b_.chunk(delta_, c), A, D);
        b_.reduce(delta_, c);
      };
      if (b_.shared())
        stages.push_back({"attention", "proj", l, proj});
      else
        proj({});
      stages.push_back({"mlp", "norm", l, norm_stage(norm_2(y), y.residual_in, delta_, y.residual_mid, y.ln_2)});
      stages.push_back({"mlp", "products", l, [this, D, F, &y](TokenChunk c) {
        b_.linear(b_.chunk(y.ln_2, c), y.fc_weight, y.fc_bias, b_.chunk(y.fc_gelu, c), D, F, b_.chunk(y.fc, c));
        b_.partial_linear(b_.chunk(y.fc_gelu, c), y.out_weight, y.out_bias, b_.chunk(delta_, c), F, D);
        b_.reduce(delta_, c);
      }});
      if (b_.cut_before(l + 1))
        stages.push_back({"residual_sum", "own", l, [this, sum = end_of(l), &y](TokenChunk c) { b_.residual_sum(b_.chunk(y.residual_mid, c), b_.own(delta_, c), b_.chunk(sum, c)); }});
      if (!o_.whole_layers || !b_.shared()) continue;
      b_.in_chunks(stages, b_.chunks(), add);
      stages.clear();
    }
    const int end = static_cast<int>(o_.layers);
    stages.push_back({"final_norm", "own", end, b_.cut_before(end) ? norm_stage(final_, residual_out_, {}, {}, hidden_)
                                                                  : norm_stage(final_, layers_.back().residual_mid, delta_, residual_out_, hidden_)});
    if (b_.shared()) stages.push_back({"head", "products", end, [this](TokenChunk c) { b_.head_part(hidden_, head_, c); }});
    b_.in_chunks(stages, b_.chunks(), add);
    b_.losses(hidden_, head_);
  }

  void backward() {
    std::vector<uint32_t>& order = b_.spec().backward;
    if (b_.shared()) return shared_backward(order);
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
      norm_gradient(d_norm_, y.residual_mid, norm_2(y), y.d_out, y.d_mid);
      ring_.fetch(l, y.qkv, order);
      order.push_back(b_.begin("attention_proj_gradient", l));
      b_.linear_weight_gradient(y.attended, y.d_mid, y.proj_weight, y.proj_bias, D, D);
      order.push_back(b_.begin("attention_qkv_gradient", l));
      b_.linear_input_gradient(y.d_mid, y.proj_weight, d_norm_, D, D);
      ring_.backward(l, d_norm_, y.qkv, y.attended, y.lse, y.d_qkv, order);
      b_.linear_weight_gradient(y.ln_1, y.d_qkv, y.qkv_weight, y.qkv_bias, D, 3 * D);
      order.push_back(b_.begin("ln_1_gradient", l));
      b_.linear_input_gradient(y.d_qkv, y.qkv_weight, d_norm_, D, 3 * D);
      norm_gradient(d_norm_, y.residual_in, norm_1(y), y.d_mid, y.d_in);
    }
    order.push_back(b_.begin("embedding_gradient", -1));
    b_.embed_gradient(table_, positions_, layers_.front().d_in);
  }

  /// Where ranks share layers: the gradient of an input is summed over them while gradients of weights are computed.
  void shared_backward(std::vector<uint32_t>& order) {
    const int64_t D = o_.width, F = b_.ffn_width(), A = b_.attention_width();
    const auto add = [&](uint32_t piece) { order.push_back(piece); };
    const int end = static_cast<int>(o_.layers), count = b_.chunks();
    const auto norm_stage = [&](const char* name, int l, const Norm& n, Slice x, Slice residual, Slice dx) {
      return SpecBuilder::Stage{name, "own", l, [=, this](TokenChunk c) {
        norm_gradient(b_.own(d_norm_, c), b_.chunk(x, c), chunk_of(n, c), residual.size_bytes > 0 ? b_.own(residual, c) : Slice{}, b_.own(dx, c), c);
        b_.gather(dx, c);
      }};
    };
    const auto add_share = [&](const char* name, int l, const Norm& n) {
      if (!b_.own_tokens()) return;
      add(b_.begin(name, l));
      b_.add_partial(n.partial, {n.weight, n.bias});
    };
    b_.in_chunks({{"head_input_gradient", "products", end, [&](TokenChunk c) {
      b_.head_input_gradient(head_, d_norm_, c);
      b_.reduce(d_norm_, c);
    }}}, count, add);
    b_.head_weight_gradient(hidden_, head_, order);
    std::vector<SpecBuilder::Stage> stages{norm_stage("final_norm_gradient", end, final_, residual_out_, {}, layers_.back().d_out)};
    if (o_.whole_layers) {
      b_.in_chunks(stages, count, add);
      stages.clear();
      add_share("final_norm_share", end, final_);
    }
    for (int l = end - 1; l >= 0; --l) {
      const Layer& y = layers_[static_cast<size_t>(l)];
      stages.push_back({"mlp_input_gradient", "products", l, [&](TokenChunk c) {
        b_.linear_input_gradient(b_.chunk(y.d_out, c), y.out_weight, b_.chunk(y.d_fc, c), F, D);
        b_.gelu_gradient(b_.chunk(y.d_fc, c), b_.chunk(y.fc, c), b_.chunk(y.d_fc, c), F);
        b_.linear_input_gradient(b_.chunk(y.d_fc, c), y.fc_weight, b_.chunk(d_norm_, c), D, F);
        b_.reduce(d_norm_, c);
      }});
      b_.in_chunks(stages, count, add);
      add(b_.begin("mlp_out_gradient", l));
      b_.linear_weight_gradient(y.fc_gelu, y.d_out, y.out_weight, y.out_bias, F, D);
      add(b_.begin("mlp_fc_gradient", l));
      b_.linear_weight_gradient(y.ln_2, y.d_fc, y.fc_weight, y.fc_bias, D, F);
      if (l + 1 == end && !o_.whole_layers) add_share("final_norm_share", end, final_);
      if (l + 1 < end && !o_.whole_layers) add_share("ln_1_share", l + 1, norm_1(layers_[static_cast<size_t>(l) + 1]));
      ring_.fetch(l, y.qkv, order);
      b_.in_chunks({norm_stage("ln_2_gradient", l, norm_2(y), y.residual_mid, y.d_out, y.d_mid),
                    {"attention_input_gradient", "proj", l, [&](TokenChunk c) {
                       b_.linear_input_gradient(b_.chunk(y.d_mid, c), y.proj_weight, b_.chunk(d_attended_, c), A, D);
                     }}}, count, add);
      if (o_.context_ranks == 1) add(b_.begin("attention_gradient", l));
      ring_.backward(l, d_attended_, y.qkv, y.attended, y.lse, y.d_qkv, order);
      b_.in_chunks({{"attention_input_gradient", "qkv", l, [&](TokenChunk c) {
        b_.linear_input_gradient(b_.chunk(y.d_qkv, c), y.qkv_weight, b_.chunk(d_norm_, c), D, 3 * A);
        b_.reduce(d_norm_, c);
      }}}, count, add);
      add(b_.begin("attention_proj_gradient", l));
      b_.linear_weight_gradient(y.attended, y.d_mid, y.proj_weight, y.proj_bias, A, D);
      add(b_.begin("attention_qkv_gradient", l));
      b_.linear_weight_gradient(y.ln_1, y.d_qkv, y.qkv_weight, y.qkv_bias, D, 3 * A);
      add_share("ln_2_share", l, norm_2(y));
      stages = {norm_stage("ln_1_gradient", l, norm_1(y), y.residual_in, y.d_mid, y.d_in)};
      if (!o_.whole_layers || l == 0) continue;
      b_.in_chunks(stages, count, add);
      stages.clear();
      add_share("ln_1_share", l, norm_1(y));
    }
    b_.in_chunks(stages, count, add);
    add_share("ln_1_share", 0, norm_1(layers_.front()));
    add(b_.begin("embedding_gradient", -1));
    b_.embed_gradient(table_, positions_, layers_.front().d_in);
  }

  ModelOptions o_;
  SpecBuilder b_;
  Ring ring_;
  std::vector<Layer> layers_;
  Norm final_{};
  uint32_t table_ = 0, positions_ = 0, head_ = 0;
  Slice embedded_, residual_out_, hidden_, delta_, d_residual_, d_norm_, d_wide_, d_attended_;
};

}  // namespace

ModelSpec build_gpt2(const ModelOptions& options, Buffers& buffers) {
  if (options.kv_heads != options.heads)
    throw ConfigError("[model] gpt2 has as many key-value heads as heads: got kv_heads {} and heads {}. Remove "
                      "model.kv_heads, or set family = \"llama\".", options.kv_heads, options.heads);
  return Gpt2(options, buffers).build();
}

}  // namespace slipstream::models
