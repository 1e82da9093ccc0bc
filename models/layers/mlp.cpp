// SPDX-License-Identifier: Apache-2.0
// The stages of an MLP.

#include "models/layers/layer.h"

namespace slipstream::models {
namespace {

class Mlp final : public Layer {
 public:
  Mlp(SpecBuilder& builder, const MlpKind& kind, bool gated, const std::string& prefix, int layer)
      : b_(builder), layer_(layer), gated_(gated) {
    const int64_t D = b_.options().width, F = b_.options().ffn_width;
    const auto sizes = gated ? std::vector{F, F} : std::vector{F};
    up_ = declare_split_outputs(b_, prefix, layer, kind.up, D, {{kind.up.names, sizes}})[0];
    down_ = declare_split_input(b_, prefix, layer, kind.down, F, D);
    // The work that writes d_up computes the gradient of the bias if it sees all rows and weight gradients are not
    // delayed.
    up_.sums_dy = gated || !b_.sums_biases();
  }

  void declare_activations() override {
    up_out_ = b_.activation(b_.of_layer(layer_, "up"), up_.out);
    active_ = b_.activation(b_.of_layer(layer_, "active"), down_.in);
    // GELU's output is not cheap to recompute, because the product rounds GELU's input only afterwards: from the kept
    // value, GELU would give other bits.
    if (gated_) b_.cheap(active_);
  }

  void declare_gradients() override {
    if (gated_) d_active_ = b_.scratch_rows("d_active", down_.in);
    d_up_ = b_.output_gradient(b_.of_layer(layer_, "d_up"), up_.out, b_.scratch_rows("d_wide", up_.out));
  }

  std::vector<Stage> forward(Ops& ops, const DropoutRates&, Slice x, Slice y) const override {
    return {{"mlp", "products", layer_, [=, this, &ops](TokenChunk c) {
               const Slice up = b_.chunk(up_out_, c), active = b_.chunk(active_, c);
               if (gated_) {
                 ops.linear(b_.chunk(x, c), up_, up);
                 ops.swiglu(up, active, down_.in);
               } else {
                 ops.linear_gelu(b_.chunk(x, c), up_, up, active);
               }
               ops.partial_linear(active, down_, b_.chunk(y, c));
               ops.reduce(y, c);
             }}};
  }

  std::vector<GradientStep> backward(Slice x, Slice dy, Slice dx) const override {
    const auto of_down = [=, this](TokenChunk c) {
      const Slice up = b_.chunk(up_out_, c), d_up = b_.chunk(d_up_, c),
                  d_active = gated_ ? b_.chunk(d_active_, c) : d_up;
      b_.linear_input_gradient(b_.chunk(dy, c), down_, d_active, gated_ ? Slice{} : up, up_);
      if (gated_) b_.swiglu_gradient(d_active, up, d_up, down_.in);
    };
    const auto of_up = [=, this](TokenChunk c) {
      b_.linear_input_gradient(b_.chunk(d_up_, c), up_, b_.chunk(dx, c));
      b_.reduce(dx, c);
    };
    return {{"mlp_down_gradient",
             [=, this] { b_.linear_weight_gradient(active_, dy, down_); },
             {"mlp_input_gradient", "products", layer_, of_down}},
            {"mlp_up_gradient",
             [=, this] { b_.linear_weight_gradient(x, d_up_, up_); },
             {"mlp_input_gradient", "products", layer_, of_up}}};
  }

  Linear* last_product() override { return &down_; }

 private:
  SpecBuilder& b_;
  int layer_;
  bool gated_;
  Linear up_, down_;       // D -> F (gate and up next to each other: 2 F) -> D
  Slice up_out_, active_;  // activations
  Slice d_up_, d_active_;  // the gradients of up_out_ and, with SwiGLU, of active_
};

LayerKind mlp(const char* form, MlpKind kind, bool gated) {
  return {"mlp", form, [kind = std::move(kind), gated](SpecBuilder& b, const std::string& prefix, int layer) {
            return std::make_unique<Mlp>(b, kind, gated, prefix, layer);
          }};
}

}  // namespace

LayerKind gelu_mlp(MlpKind kind) { return mlp("GELU (tanh)", std::move(kind), false); }
LayerKind swiglu_mlp(MlpKind kind) { return mlp("SwiGLU", std::move(kind), true); }

}  // namespace slipstream::models
