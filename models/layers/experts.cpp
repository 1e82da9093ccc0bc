// SPDX-License-Identifier: Apache-2.0
// The stages of a mixture of experts.
//
// The weight of a choice multiplies the activation of its expert instead of the expert's output. Then the output need
// not be kept, and the gradient of the weight comes from values that the backward pass has anyway.

#include "models/layers/layer.h"

namespace slipstream::models {
namespace {

class Experts final : public Layer {
 public:
  Experts(SpecBuilder& builder, const ExpertsKind& kind, const std::string& prefix, int layer)
      : b_(builder), layer_(layer) {
    const ModelOptions& o = b_.options();
    router_.options = o.experts;
    const int64_t D = o.width, E = o.experts.count, F = o.experts.ffn_width;
    router_.weight = b_.parameter(prefix + kind.router + ".weight", {E, D}, layer, Weights{}.init);
    up_ = declare(prefix + kind.prefix, {kind.gate, kind.up}, D, F);
    down_ = declare(prefix + kind.prefix, {kind.down}, F, D);
  }

  void declare_activations() override {
    const ExpertOptions& o = router_.options;
    const int64_t tokens = b_.rows();
    const auto kept = [&](const char* name, int64_t elems) { return b_.statistics(b_.of_layer(layer_, name), elems); };
    router_.logits = o.z_loss > 0 ? kept("router.logits", tokens * o.count)
                                  : b_.scratch("router.logits", bytes_of(tokens * o.count, DType::f32));
    router_.scores = kept("router.scores", tokens * o.count);
    router_.chosen = kept("router.chosen", choices());
    router_.weights = kept("router.weights", choices());
    order_ = {.offsets = kept("experts.offsets", o.count + 1),
              .choices = kept("experts.choices", choices()),
              .places = kept("experts.places", choices()),
              .weights = kept("experts.weights", choices())};
    rows_ = rows("experts.rows", b_.options().width);
    up_out_ = kept_rows("experts.up", up_.out);
    active_ = kept_rows("experts.active", down_.in);
    b_.cheap(active_);
  }

  void declare_gradients() override {
    d_rows_ = rows("experts.d_rows", b_.options().width);
    // If weight gradients do not come before the gradients of inputs, they order the rows again.
    d_rows_again_ = b_.options().split_backward || b_.shared() ? rows("experts.d_rows_again", b_.options().width) : d_rows_;
    d_active_ = rows("experts.d_active", down_.in);
    d_up_ = b_.options().split_backward ? kept_rows("experts.d_up", up_.out) : rows("experts.d_up", up_.out);
    d_weights_ = b_.scratch("experts.d_weights", bytes_of(choices(), DType::f32));
    d_choices_ = b_.scratch("router.d_weights", bytes_of(choices(), DType::f32));
    const int64_t logits = b_.rows() * router_.options.count;
    d_logits_ = b_.options().split_backward ? b_.statistics(b_.of_layer(layer_, "router.d_logits"), logits)
                                            : b_.scratch("router.d_logits", bytes_of(logits, DType::f32));
  }

  std::vector<Stage> forward(Ops& ops, const DropoutRates&, Slice x, Slice y) const override {
    return {{"mlp", "experts", layer_,
             [=, this, &ops](TokenChunk) {
               ops.route(x, router_);
               ops.take_rows(x, router_, order_, rows_);
               ops.expert_linear(rows_, up_, order_, up_out_);
               ops.expert_swiglu(up_out_, order_, active_, down_.in);
               ops.expert_linear(active_, down_, order_, rows_);
               ops.return_rows(rows_, router_, order_, y);
             },
             true}};
  }

  std::vector<GradientStep> backward(Slice x, Slice dy, Slice dx) const override {
    const auto of_down = [=, this](TokenChunk) {
      if (d_rows_again_ != d_rows_) b_.take_rows_again(dy, router_, order_, d_rows_again_);
      b_.expert_input_gradient(d_rows_again_, down_, order_, d_active_);
      b_.expert_swiglu_gradient(d_active_, up_out_, order_, d_up_, d_weights_, down_.in);
    };
    const auto of_up = [=, this](TokenChunk) {
      b_.expert_input_gradient(d_up_, up_, order_, d_rows_again_);
      b_.return_rows(d_rows_again_, d_weights_, router_, order_, dx, d_choices_);
      b_.route_gradient(router_, d_choices_, d_logits_);
    };
    const auto of_router = [=, this](TokenChunk) { b_.router_input_gradient(d_logits_, router_, dx); };
    return {{"experts_down_gradient",
             [=, this] {
               b_.take_rows_again(dy, router_, order_, d_rows_);
               b_.expert_weight_gradient(active_, d_rows_, down_, order_);
             },
             {"experts_input_gradient", "experts", layer_, of_down, true}},
            {"experts_up_gradient",
             [=, this] {
               b_.take_rows_again(x, router_, order_, rows_);
               b_.expert_weight_gradient(rows_, d_up_, up_, order_);
             },
             {"experts_input_gradient", "experts", layer_, of_up, true}},
            {"router_gradient",
             [=, this] { b_.router_weight_gradient(x, d_logits_, router_); },
             {"router_input_gradient", "experts", layer_, of_router, true}}};
  }

 private:
  int64_t choices() const { return b_.rows() * router_.options.top_k; }
  /// Returns memory for a row of each choice, which layers share.
  Slice rows(const std::string& name, int64_t width) {
    return b_.scratch(name, bytes_of(choices() * width, b_.options().dtype));
  }
  /// Returns the same, which the forward pass keeps.
  Slice kept_rows(const std::string& name, int64_t width) {
    return b_.activation(b_.of_layer(layer_, name), width * router_.options.top_k);
  }
  /// Declares a product of all experts, whose weights are those of `names` next to each other.
  ExpertLinear declare(const std::string& prefix, const std::vector<std::string>& names, int64_t in, int64_t out) {
    const int64_t experts = router_.options.count;
    ParameterSpec parameter{.layer = layer_, .init = Weights{}.init, .decay = true};
    for (int64_t e = 0; e < experts; ++e)
      for (const std::string& name : names) {
        const auto begin_elems = static_cast<int64_t>(parameter.tensors.size()) * out * in;
        parameter.tensors.push_back(
            {.name = fmt::format("{}{}.{}.weight", prefix, e, name), .shape = {out, in}, .begin_elems = begin_elems});
      }
    return {.weight = b_.parameter(std::move(parameter)),
            .experts = experts,
            .in = in,
            .out = out * static_cast<int64_t>(names.size())};
  }

  SpecBuilder& b_;
  int layer_;
  Router router_;
  ExpertRows order_;
  ExpertLinear up_, down_;  // D -> gate and up next to each other: 2 F; F -> D
  Slice rows_;              // rows of the layer's input in the order of the experts, then the experts' outputs
  Slice up_out_, active_;   // activations
  Slice d_rows_, d_rows_again_;  // the gradient of the layer's output in that order
  Slice d_active_, d_up_, d_weights_, d_choices_, d_logits_;
};

}  // namespace

LayerKind experts(ExpertsKind kind) {
  return {"mlp", "SwiGLU experts", [kind = std::move(kind)](SpecBuilder& b, const std::string& prefix, int layer) {
            return std::make_unique<Experts>(b, kind, prefix, layer);
          }};
}

}  // namespace slipstream::models
