// SPDX-License-Identifier: Apache-2.0
// The stages of attention: the product that computes q, k and v, the attention of all tokens, and the product of its
// output.

#include "models/layers/layer.h"

namespace slipstream::models {
namespace {

class Attention final : public Layer {
 public:
  Attention(SpecBuilder& builder, const AttentionKind& kind, const std::string& prefix, int layer)
      : b_(builder), layer_(layer), window_(kind.window), rotary_(kind.rotary) {
    const ModelOptions& o = b_.options();
    const int64_t D = o.width, q = o.heads * b_.head_dim(), kv = o.kv_heads * b_.head_dim();
    const std::vector<std::string>& names = kind.qkv.names;
    std::vector<Outputs> products{{names, {q, kv, kv}}};
    if (b_.shares_kv()) products = {{{names[0]}, {q}}, {{names[1], names[2]}, {kv, kv}, true}};
    const std::vector<Linear> declared = declare_split_outputs(b_, prefix, layer, kind.qkv, D, products);
    qkv_ = projection_ = declared.front();
    if (!kind.head_norms.empty()) {
      const auto head_norm = [&](size_t i) {
        return b_.parameter(prefix + kind.head_norms[i] + ".weight", {b_.head_dim()}, layer, {Init::Kind::ones, 0});
      };
      head_norms_.q_weight = head_norm(0);
      head_norms_.k_weight = head_norm(1);
    }
    out_ = declare_split_input(b_, prefix, layer, kind.out, q, D);
    if (!b_.shares_kv()) return;
    kv_ = declared.back();
    projection_ = b_.joined_qkv(qkv_, kv_);
    kv_partial_ = b_.kv_partial(kv_);
  }

  void declare_activations() override {
    const auto activation = [&](const char* name, int64_t width) {
      return b_.activation(b_.of_layer(layer_, name), width);
    };
    raw_ = qkv_out_ = activation("qkv", b_.qkv_width());
    if (head_norms_.exist()) {
      raw_ = activation("qkv_raw", b_.qkv_width());
      head_norms_.inv_rms =
          b_.statistics(b_.of_layer(layer_, "head_norms.inv_rms"), (b_.heads() + b_.kv_heads()) * b_.rows());
      head_norms_.partial = b_.head_norm_partial(b_.of_layer(layer_, "head_norms.gradient"));
    }
    lse_ = b_.statistics(b_.of_layer(layer_, "lse"), b_.heads() * b_.rows());
    attended_ = activation("attended", b_.attention_width());
  }

  void declare_gradients() override {
    const int64_t width = b_.qkv_width();
    d_qkv_ = b_.output_gradient(b_.of_layer(layer_, "d_qkv"), width, b_.scratch_rows("d_wide", width));
    // With chunks in flight, dx still holds chunks of the last norm while the first chunks of attention are computed.
    if (b_.shared() || b_.attention_width() != b_.options().width)
      d_attended_ = b_.scratch_rows("d_attended", b_.attention_width());
  }

  std::vector<Stage> forward(Ops& ops, const DropoutRates& dropout, Slice x, Slice y) const override {
    const auto qkv = [=, this, &ops](TokenChunk c) {
      if (b_.shares_kv() && c.index == 0) ops.assemble_qkv(qkv_, kv_, projection_);
      ops.linear(b_.chunk(x, c), projection_, b_.chunk(raw_, c));
    };
    const auto attend = [=, this, &ops, rate = dropout.attention](TokenChunk) {
      if (head_norms_.exist()) ops.head_norm(raw_, head_norms_, qkv_out_);
      if (rotary_) ops.rotate(qkv_out_, false);
      ops.attention({layer_, window_}, rate, qkv_out_, attended_, lse_);
    };
    const auto out = [=, this, &ops](TokenChunk c) {
      ops.partial_linear(b_.chunk(attended_, c), out_, b_.chunk(y, c));
      ops.reduce(y, c);
    };
    return {
        {"attention", "qkv", layer_, qkv}, {"attention", "", layer_, attend, true}, {"attention", "out", layer_, out}};
  }

  std::vector<GradientStep> backward(Slice x, Slice dy, Slice dx) const override {
    const Slice d_attended = d_attended_.size_bytes > 0 ? d_attended_ : dx;
    const auto of_out = [=, this](TokenChunk c) {
      b_.linear_input_gradient(b_.chunk(dy, c), out_, b_.chunk(d_attended, c));
    };
    const auto attend = [=, this](TokenChunk) {
      b_.attention_gradient({layer_, window_}, d_attended, qkv_out_, attended_, lse_, d_qkv_);
      // d_qkv becomes the gradient of what the product has written.
      if (rotary_) b_.rotate(d_qkv_, true);
      if (head_norms_.exist()) b_.head_norm_gradient(d_qkv_, raw_, head_norms_);
    };
    const auto of_qkv = [=, this](TokenChunk c) {
      if (b_.shares_kv() && c.index == 0) b_.assemble_qkv(qkv_, kv_, projection_);
      b_.linear_input_gradient(b_.chunk(d_qkv_, c), projection_, b_.chunk(dx, c));
      b_.reduce(dx, c);
    };
    const auto qkv_weights = [=, this] {
      b_.shares_kv() ? b_.qkv_weight_gradient(x, d_qkv_, qkv_, kv_, kv_partial_)
                     : b_.linear_weight_gradient(x, d_qkv_, qkv_);
    };
    // A ring has pieces of its own.
    const char* const one_piece = b_.options().context_ranks == 1 ? "attention_gradient" : "";
    std::vector<GradientStep> steps{
        {"attention_out_gradient",
         [=, this] { b_.linear_weight_gradient(attended_, dy, out_); },
         {"attention_input_gradient", "out", layer_, of_out}},
        {.input = {one_piece, "", layer_, attend, true}},
        {"attention_qkv_gradient", qkv_weights, {"attention_input_gradient", "qkv", layer_, of_qkv}}};
    if (b_.shared() && head_norms_.exist())
      steps.push_back(
          {"head_norms_share", [=, this] { b_.add_partial(head_norms_.partial, head_norms_.parameters()); }});
    return steps;
  }

  void fetch() const override { b_.fetch_keys(layer_, qkv_out_); }

  void complete_gradients() const override {
    if (!b_.shares_kv()) return;
    b_.begin("kv_share", layer_);
    b_.add_kv_partial(kv_, kv_partial_);
  }

  Linear* last_product() override { return &out_; }

 private:
  SpecBuilder& b_;
  int layer_;
  int64_t window_;
  bool rotary_;
  HeadNorms head_norms_;
  Linear qkv_, out_;   // D -> q, k and v next to each other; attention's output -> D
  Linear kv_ = {};     // with SpecBuilder::shares_kv(): D -> all k and v; then qkv_ is D -> q
  Linear projection_;  // D -> q, k and v of this rank
  Slice kv_partial_;
  Slice raw_, qkv_out_, lse_, attended_;  // activations; raw_ is before the norms of heads
  Slice d_qkv_;                           // the gradient of qkv_out_
  Slice d_attended_;                      // empty: it uses the memory of dx
};

}  // namespace

LayerKind attention(AttentionKind kind) {
  return {"attention", "", [kind = std::move(kind)](SpecBuilder& b, const std::string& prefix, int layer) {
            return std::make_unique<Attention>(b, kind, prefix, layer);
          }};
}

}  // namespace slipstream::models
