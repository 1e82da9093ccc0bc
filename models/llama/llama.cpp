// SPDX-License-Identifier: Apache-2.0
// The pieces of Llama, forward and backward, in the order in which they run.

#include "models/llama/llama.h"

#include "engine/base/check.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"
#include "models/common/blocks.h"
#include "models/common/ring.h"

namespace slipstream::models {
namespace {

struct Norm {
  uint32_t weight;
  Slice inv_rms;
  Slice partial = {};  // the weight's gradient, when it is this rank's share of a sum
};

struct Layer {
  uint32_t qkv_weight, out_weight, gate_up_weight, down_weight;
  Norm norm_1, norm_2;
  Slice residual_in, normed_1, qkv, lse, attended;  // activations kept for backward
  Slice residual_mid, normed_2, gate_up, gated;
  Slice d_in, d_qkv, d_mid, d_gate_up, d_out;  // gradients of residual_in, qkv, residual_mid, gate_up and the layer's output
};

class Llama {
 public:
  Llama(const ModelOptions& options, Buffers& buffers) : o_(options), b_(options, buffers), ring_(b_) {}

  ModelSpec build() {
    declare();
    b_.take_batch();
    b_.spec().forward.push_back(b_.current());
    forward();
    backward();
    return b_.finish(fmt::format("llama, {} layers, {} heads ({} key-value), width {}, ffn {}, context {}, vocabulary {}, {} head",
                                 o_.layers, o_.heads, o_.kv_heads, o_.width, o_.ffn_width, o_.context, o_.vocab,
                                 o_.tie_embeddings ? "tied" : "untied"));
  }

 private:
  void declare() {
    const int64_t D = o_.width, F = b_.ffn_width(), A = b_.attention_width(), R = b_.rows(), own = b_.own_rows(), hd = b_.head_dim();
    const auto matrix = [&](NamedTensor tensor, int layer, Init init) {
      return b_.parameter(ParameterSpec{.tensors = {std::move(tensor)}, .layer = layer, .init = init, .decay = true});
    };
    const Init normal{Init::Kind::normal, 0.02f}, ones{Init::Kind::ones, 0};
    table_ = b_.vocab_parameter("model.embed_tokens.weight", -1, normal);
    embedded_ = b_.own_activation("embedded", D);
    for (int l = 0; l < o_.layers; ++l) {
      const std::string p = fmt::format("model.layers.{}.", l), a = fmt::format("layer{}.", l);
      Layer y{};
      y.norm_1 = {b_.parameter(p + "input_layernorm.weight", {D}, l, ones), b_.statistics(a + "inv_rms_1", own), b_.norm_partial(a + "d_norm_1", D)};
      const int64_t q = b_.heads() * hd * D, kv = b_.kv_heads() * hd * D;
      y.qkv_weight = b_.parameter(ParameterSpec{
          .tensors = {b_.held({p + "self_attn.q_proj.weight", {o_.heads * hd, D}, 0}, 0),
                      b_.held({p + "self_attn.k_proj.weight", {o_.kv_heads * hd, D}, q}, 0),
                      b_.held({p + "self_attn.v_proj.weight", {o_.kv_heads * hd, D}, q + kv}, 0)},
          .layer = l, .init = normal, .decay = true});
      y.out_weight = matrix(b_.held({p + "self_attn.o_proj.weight", {D, o_.heads * hd}}, 1), l, normal);
      y.norm_2 = {b_.parameter(p + "post_attention_layernorm.weight", {D}, l, ones), b_.statistics(a + "inv_rms_2", own), b_.norm_partial(a + "d_norm_2", D)};
      y.gate_up_weight = b_.parameter(ParameterSpec{.tensors = {b_.held({p + "mlp.gate_proj.weight", {o_.ffn_width, D}, 0}, 0),
                                                                b_.held({p + "mlp.up_proj.weight", {o_.ffn_width, D}, F * D}, 0)},
                                                    .layer = l, .init = normal, .decay = true});
      y.down_weight = matrix(b_.held({p + "mlp.down_proj.weight", {D, o_.ffn_width}}, 1), l, normal);
      y.residual_in = l == 0 ? embedded_ : b_.own_activation(a + "residual_in", D);
      y.normed_1 = b_.activation(a + "normed_1", D);
      y.qkv = b_.activation(a + "qkv", b_.qkv_width());
      y.lse = b_.statistics(a + "lse", b_.heads() * R);
      y.attended = b_.activation(a + "attended", A);
      y.residual_mid = b_.own_activation(a + "residual_mid", D);
      y.normed_2 = b_.activation(a + "normed_2", D);
      y.gate_up = b_.activation(a + "gate_up", 2 * F);
      y.gated = b_.activation(a + "gated", F);
      for (Slice made : {y.normed_1, y.norm_1.inv_rms, y.normed_2, y.norm_2.inv_rms, y.gated}) b_.cheap(made);
      layers_.push_back(y);
    }
    final_ = {b_.parameter("model.norm.weight", {D}, static_cast<int>(o_.layers), ones), b_.statistics("inv_rms_f", own), b_.norm_partial("d_norm_f", D)};
    head_ = b_.head_table(table_, "lm_head.weight", normal);
    residual_out_ = b_.own_activation("residual_out", D);
    hidden_ = b_.activation("hidden", D);
    const int64_t width_bytes = bytes_of(R * D, o_.dtype);
    delta_ = b_.scratch("delta", width_bytes);
    d_residual_ = b_.scratch("d_residual", width_bytes);
    d_norm_ = b_.scratch("d_norm", width_bytes);
    // With chunks in flight d_norm still has chunks of the last norm while the first of the attention's are made.
    if (b_.shared()) d_attended_ = b_.scratch("d_attended", bytes_of(R * A, o_.dtype));
    d_gated_ = b_.scratch("d_gated", bytes_of(R * F, o_.dtype));
    d_wide_ = b_.scratch("d_wide", bytes_of(R * std::max(2 * F, b_.qkv_width()), o_.dtype));
    for (int l = 0; l < o_.layers; ++l) {
      Layer& y = layers_[static_cast<size_t>(l)];
      const std::string a = fmt::format("layer{}.", l);
      y.d_in = l == 0 ? b_.output_gradient("d_embedded", D, d_residual_) : layers_[static_cast<size_t>(l) - 1].d_out;
      y.d_qkv = b_.output_gradient(a + "d_qkv", b_.qkv_width(), b_.first_columns(d_wide_, b_.qkv_width()));
      y.d_mid = b_.output_gradient(a + "d_mid", D, d_residual_);
      y.d_gate_up = b_.output_gradient(a + "d_gate_up", 2 * F, b_.first_columns(d_wide_, 2 * F));
      y.d_out = b_.output_gradient(a + "d_out", D, d_residual_);
    }
    rotary_ = b_.scratch("rotary_table", bytes_of((o_.context_ranks > 1 ? o_.tokens : o_.context) * hd, DType::f32));
    b_.spec().constants.push_back({rotary_.buffer, [o = o_, hd](std::byte* host) {
                                     auto* const table = reinterpret_cast<float*>(host);
                                     if (o.context_ranks == 1) return kernels::rope_table(table, o.context, hd, o.rope_theta);
                                     // Row t of the table turns token t, which has another position in its sequence.
                                     std::vector<float> whole(static_cast<size_t>(o.context * hd));
                                     kernels::rope_table(whole.data(), o.context, hd, o.rope_theta);
                                     for (int64_t t = 0; t < o.tokens; ++t) std::copy_n(whole.data() + o.chunks().position(t) * hd, hd, table + t * hd);
                                   }});
  }

  void norm(Slice x, Slice delta, Slice sum, const Norm& n, Slice y) {
    const Slice weight = b_.value(n.weight), inv_rms = n.inv_rms;
    const bool fused = delta.size_bytes > 0;
    const kernels::RmsNormForward shape{.rows = b_.rows_of(x, o_.width), .width = o_.width, .eps = o_.norm_eps, .dtype = o_.dtype};
    std::vector<Slice> reads{x, weight}, writes{y, inv_rms};
    if (fused) {
      reads.push_back(delta);
      writes.push_back(sum);
    }
    b_.work("rms_norm", kernels::rms_norm_forward_cost(shape), reads, writes, [=](LaunchContext& c) {
      kernels::RmsNormForward args = shape;
      args.x = c.at(x);
      args.delta = fused ? c.at(delta) : nullptr;
      args.sum = fused ? c.at(sum) : nullptr;
      args.weight = c.at(weight);
      args.y = c.at(y);
      args.inv_rms = c.as<float>(inv_rms);
      kernels::rms_norm_forward(c, args);
    });
    if (fused) b_.replay([&] { norm(sum, {}, {}, n, y); });
  }

  void norm_gradient(Slice dy, Slice x, const Norm& n, Slice residual, Slice dx, TokenChunk chunk = {}) {
    const bool is_share = n.partial.size_bytes > 0, first = chunk.index == 0;
    const Slice weight = b_.value(n.weight), dweight = is_share ? n.partial : b_.gradient(n.weight), inv_rms = n.inv_rms;
    const Slice workspace = b_.norm_workspace();
    const bool with_residual = residual.size_bytes > 0;
    const kernels::RmsNormBackward shape{.rows = b_.rows_of(x, o_.width), .width = o_.width, .dtype = o_.dtype};
    std::vector<Slice> reads{dy, x, weight, inv_rms};
    if (!is_share || !first) reads.push_back(dweight);
    if (with_residual) reads.push_back(residual);
    b_.work("rms_norm_gradient", kernels::rms_norm_backward_cost(shape), reads, {dx, dweight, workspace},
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
              args.accumulate = !first || (!is_share && c.frame->accumulate);
              kernels::rms_norm_backward(c, args);
            });
    if (chunk.index + 1 < chunk.count) return;
    is_share ? b_.sum_partial(n.partial) : b_.ready(n.weight);
  }

  Norm chunk_of(const Norm& n, TokenChunk c) const { return {n.weight, b_.chunk(n.inv_rms, c), n.partial}; }

  /// Rotates q and k inside packed qkv, in place; `inverse` is the backward.
  void rotate(Slice qkv, bool inverse) {
    const int64_t hd = b_.head_dim(), k_bytes = b_.heads() * hd * size_of(o_.dtype);
    const Slice table = rotary_;
    const kernels::Rope q{.batch = o_.batch, .tokens = o_.tokens, .heads = b_.heads(), .head_dim = hd,
                          .row_stride = b_.qkv_width(), .theta = o_.rope_theta, .inverse = inverse, .dtype = o_.dtype};
    kernels::Rope k = q;
    k.heads = b_.kv_heads();
    Cost cost = kernels::rope_cost(q);
    cost += kernels::rope_cost(k);
    b_.work(inverse ? "rope_inverse" : "rope", cost, {qkv, table}, {qkv}, [=](LaunchContext& c) {
      kernels::Rope args = q;
      args.x = c.at(qkv);
      args.table = c.as<float>(table);
      kernels::rope(c, args);
      args = k;
      args.x = c.at(qkv) + k_bytes;
      args.table = c.as<float>(table);
      kernels::rope(c, args);
    });
  }

  void swiglu(Slice gate_up, Slice y) {
    const kernels::SwigluForward shape{.rows = b_.rows_of(y, b_.ffn_width()), .width = b_.ffn_width(), .dtype = o_.dtype};
    b_.work("swiglu", kernels::swiglu_forward_cost(shape), {gate_up}, {y}, [=](LaunchContext& c) {
      kernels::SwigluForward args = shape;
      args.gate_up = c.at(gate_up);
      args.y = c.at(y);
      kernels::swiglu_forward(c, args);
    });
  }

  void swiglu_gradient(Slice dy, Slice gate_up, Slice dgate_up) {
    const kernels::SwigluBackward shape{.rows = b_.rows_of(dy, b_.ffn_width()), .width = b_.ffn_width(), .dtype = o_.dtype};
    b_.work("swiglu_gradient", kernels::swiglu_backward_cost(shape), {dy, gate_up}, {dgate_up}, [=](LaunchContext& c) {
      kernels::SwigluBackward args = shape;
      args.dy = c.at(dy);
      args.gate_up = c.at(gate_up);
      args.dgate_up = c.at(dgate_up);
      kernels::swiglu_backward(c, args);
    });
  }

  void forward() {
    auto add = [&](uint32_t piece) {
      b_.spec().forward.push_back(piece);
      b_.spec().evaluate.push_back(piece);
    };
    const int64_t D = o_.width, F = b_.ffn_width(), A = b_.attention_width();
    add(b_.begin("embedding", -1));
    b_.embed(table_, -1, embedded_, delta_);
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
      stages.push_back({"attention", "norm", l, plain ? norm_stage(y.norm_1, y.residual_in, {}, {}, y.normed_1)
                                                     : norm_stage(y.norm_1, layers_[static_cast<size_t>(l) - 1].residual_mid, delta_, y.residual_in, y.normed_1)});
      stages.push_back({"attention", "qkv", l, [this, D, &y](TokenChunk c) { b_.linear(b_.chunk(y.normed_1, c), y.qkv_weight, -1, b_.chunk(y.qkv, c), D, b_.qkv_width()); }});
      b_.in_chunks(stages, b_.chunks(), add);
      stages.clear();
      if (b_.shared()) add(b_.begin("attention", l));
      rotate(y.qkv, false);
      ring_.forward(l, y.qkv, y.attended, y.lse, add);
      const auto out = [this, D, A, &y](TokenChunk c) {
        b_.partial_linear(b_.chunk(y.attended, c), y.out_weight, -1, b_.chunk(delta_, c), A, D);
        b_.reduce(delta_, c);
      };
      if (b_.shared())
        stages.push_back({"attention", "out", l, out});
      else
        out({});
      stages.push_back({"mlp", "norm", l, norm_stage(y.norm_2, y.residual_in, delta_, y.residual_mid, y.normed_2)});
      stages.push_back({"mlp", "products", l, [this, D, F, &y](TokenChunk c) {
        b_.linear(b_.chunk(y.normed_2, c), y.gate_up_weight, -1, b_.chunk(y.gate_up, c), D, 2 * F);
        swiglu(b_.chunk(y.gate_up, c), b_.chunk(y.gated, c));
        b_.partial_linear(b_.chunk(y.gated, c), y.down_weight, -1, b_.chunk(delta_, c), F, D);
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
      order.push_back(b_.begin("mlp_down_gradient", l));
      b_.linear_weight_gradient(y.gated, y.d_out, y.down_weight, -1, F, D);
      order.push_back(b_.begin("mlp_gate_up_gradient", l));
      b_.linear_input_gradient(y.d_out, y.down_weight, d_gated_, F, D);
      swiglu_gradient(d_gated_, y.gate_up, y.d_gate_up);
      b_.linear_weight_gradient(y.normed_2, y.d_gate_up, y.gate_up_weight, -1, D, 2 * F);
      order.push_back(b_.begin("norm_2_gradient", l));
      b_.linear_input_gradient(y.d_gate_up, y.gate_up_weight, d_norm_, D, 2 * F);
      norm_gradient(d_norm_, y.residual_mid, y.norm_2, y.d_out, y.d_mid);
      ring_.fetch(l, y.qkv, order);
      order.push_back(b_.begin("attention_out_gradient", l));
      b_.linear_weight_gradient(y.attended, y.d_mid, y.out_weight, -1, D, D);
      order.push_back(b_.begin("attention_qkv_gradient", l));
      b_.linear_input_gradient(y.d_mid, y.out_weight, d_norm_, D, D);
      ring_.backward(l, d_norm_, y.qkv, y.attended, y.lse, y.d_qkv, order);
      rotate(y.d_qkv, true);
      b_.linear_weight_gradient(y.normed_1, y.d_qkv, y.qkv_weight, -1, D, b_.qkv_width());
      order.push_back(b_.begin("norm_1_gradient", l));
      b_.linear_input_gradient(y.d_qkv, y.qkv_weight, d_norm_, D, b_.qkv_width());
      norm_gradient(d_norm_, y.residual_in, y.norm_1, y.d_mid, y.d_in);
    }
    order.push_back(b_.begin("embedding_gradient", -1));
    b_.embed_gradient(table_, -1, layers_.front().d_in);
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
      b_.add_partial(n.partial, {n.weight});
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
        b_.linear_input_gradient(b_.chunk(y.d_out, c), y.down_weight, b_.chunk(d_gated_, c), F, D);
        swiglu_gradient(b_.chunk(d_gated_, c), b_.chunk(y.gate_up, c), b_.chunk(y.d_gate_up, c));
        b_.linear_input_gradient(b_.chunk(y.d_gate_up, c), y.gate_up_weight, b_.chunk(d_norm_, c), D, 2 * F);
        b_.reduce(d_norm_, c);
      }});
      b_.in_chunks(stages, count, add);
      add(b_.begin("mlp_down_gradient", l));
      b_.linear_weight_gradient(y.gated, y.d_out, y.down_weight, -1, F, D);
      add(b_.begin("mlp_gate_up_gradient", l));
      b_.linear_weight_gradient(y.normed_2, y.d_gate_up, y.gate_up_weight, -1, D, 2 * F);
      if (l + 1 == end && !o_.whole_layers) add_share("final_norm_share", end, final_);
      if (l + 1 < end && !o_.whole_layers) add_share("norm_1_share", l + 1, layers_[static_cast<size_t>(l) + 1].norm_1);
      ring_.fetch(l, y.qkv, order);
      b_.in_chunks({norm_stage("norm_2_gradient", l, y.norm_2, y.residual_mid, y.d_out, y.d_mid),
                    {"attention_input_gradient", "out", l, [&](TokenChunk c) {
                       b_.linear_input_gradient(b_.chunk(y.d_mid, c), y.out_weight, b_.chunk(d_attended_, c), A, D);
                     }}}, count, add);
      if (o_.context_ranks == 1) add(b_.begin("attention_gradient", l));
      ring_.backward(l, d_attended_, y.qkv, y.attended, y.lse, y.d_qkv, order);
      rotate(y.d_qkv, true);
      b_.in_chunks({{"attention_input_gradient", "qkv", l, [&](TokenChunk c) {
        b_.linear_input_gradient(b_.chunk(y.d_qkv, c), y.qkv_weight, b_.chunk(d_norm_, c), D, b_.qkv_width());
        b_.reduce(d_norm_, c);
      }}}, count, add);
      add(b_.begin("attention_out_gradient", l));
      b_.linear_weight_gradient(y.attended, y.d_mid, y.out_weight, -1, A, D);
      add(b_.begin("attention_qkv_gradient", l));
      b_.linear_weight_gradient(y.normed_1, y.d_qkv, y.qkv_weight, -1, D, b_.qkv_width());
      add_share("norm_2_share", l, y.norm_2);
      stages = {norm_stage("norm_1_gradient", l, y.norm_1, y.residual_in, y.d_mid, y.d_in)};
      if (!o_.whole_layers || l == 0) continue;
      b_.in_chunks(stages, count, add);
      stages.clear();
      add_share("norm_1_share", l, y.norm_1);
    }
    b_.in_chunks(stages, count, add);
    add_share("norm_1_share", 0, layers_.front().norm_1);
    add(b_.begin("embedding_gradient", -1));
    b_.embed_gradient(table_, -1, layers_.front().d_in);
  }

  ModelOptions o_;
  SpecBuilder b_;
  Ring ring_;
  std::vector<Layer> layers_;
  Norm final_{};
  uint32_t table_ = 0, head_ = 0;
  Slice embedded_, residual_out_, hidden_, delta_, d_residual_, d_norm_, d_gated_, d_wide_, d_attended_, rotary_;
};

}  // namespace

ModelSpec build_llama(const ModelOptions& options, Buffers& buffers) {
  if (options.heads % options.kv_heads != 0)
    throw ConfigError("[model] kv_heads {} must divide heads {}.", options.kv_heads, options.heads);
  if ((options.width / options.heads) % 2 != 0)
    throw ConfigError("[model] rotary positions need an even head size: width {} / heads {} is {}.", options.width,
                      options.heads, options.width / options.heads);
  return Llama(options, buffers).build();
}

}  // namespace slipstream::models
