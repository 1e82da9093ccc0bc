// SPDX-License-Identifier: Apache-2.0
// The stages of a mixture of experts.
//
// The weight of a choice multiplies the activation of its expert instead of the expert's output. Then the output need
// not be kept, and the gradient of the weight comes from values that the backward pass has anyway.
//
// If ranks divide the experts, something travels. Exact: a row travels with its weight to the rank of its expert, and
// the output travels back. Gather: every rank receives the tokens of all ranks with their choices, computes the rows of
// its experts, and adds them up for each token; the ranks sum these, and each receives the sums of its own tokens.

#include <algorithm>

#include "engine/base/check.h"
#include "models/layers/layer.h"

namespace slipstream::models {
namespace {

class Experts final : public Layer {
 public:
  Experts(SpecBuilder& builder, const ExpertsKind& kind, const std::string& prefix, int layer)
      : b_(builder), o_(b_.options()), layer_(layer) {
    SLIP_ASSERT(o_.tensor == 1 && o_.experts.count % o_.expert_ranks == 0);  // the run file guarantees it
    router_.options = o_.experts;
    route_.experts = o_.experts.count / o_.expert_ranks;
    route_.expected = b_.rows() * o_.experts.top_k;
    // The most rows that can arrive: a token chooses an expert once.
    route_.bound = b_.rows() * o_.expert_ranks * std::min(o_.experts.top_k, route_.experts);
    if (!travels()) route_.bound = route_.expected;
    route_.gathers = gathers();
    if (gathers()) route_.first = o_.expert_rank * route_.experts;
    const int64_t D = o_.width, F = o_.experts.ffn_width;
    router_.weight = b_.parameter(prefix + kind.router + ".weight", {o_.experts.count, D}, layer, Weights{}.init);
    up_ = declare(prefix + kind.prefix, {kind.gate, kind.up}, D, F);
    down_ = declare(prefix + kind.prefix, {kind.down}, F, D);
    if (o_.experts.shared == 0) return;
    const int64_t shared = o_.experts.shared * F;
    const std::vector<std::string> up{kind.shared + kind.gate, kind.shared + kind.up};
    shared_up_ = declare_split_outputs(b_, prefix, layer, {.names = up}, D, {{up, {shared, shared}}})[0];
    shared_down_ = declare_split_input(b_, prefix, layer, {.names = {kind.shared + kind.down}}, shared, D);
  }

  void declare_activations() override {
    const int64_t tokens = b_.rows(), E = o_.experts.count;
    router_.logits = o_.experts.z_loss > 0 ? kept_numbers("router.logits", tokens * E)
                                           : scratch_numbers("router.logits", tokens * E);
    router_.scores = kept_numbers("router.scores", tokens * E);
    // A rank that gathers writes its choices and weights where those of all ranks will be.
    const int64_t sources = gathers() ? o_.expert_ranks : 1;
    all_ = router_;
    all_.chosen = kept_numbers("router.chosen", sources * route_.expected);
    all_.weights = scratch_numbers("router.weights", sources * route_.expected);
    router_.chosen = own(all_.chosen), router_.weights = own(all_.weights);
    gathers() ? declare_gathered() : declare_route();
    up_out_ = kept_rows("experts.up", up_.out);
    active_ = kept_rows("experts.active", down_.in);
    b_.cheap(active_);
    if (!shares()) return;
    shared_up_out_ = b_.activation(b_.of_layer(layer_, "shared.up"), shared_up_.out);
    shared_active_ = b_.activation(b_.of_layer(layer_, "shared.active"), shared_down_.in);
    b_.cheap(shared_active_);
    shared_out_ = b_.scratch_rows("shared.out", o_.width);
  }

  void declare_gradients() override {
    const bool apart = o_.split_backward;
    if (gathers()) d_tokens_ = scratch_rows("experts.d_tokens", all_rows(), o_.width);
    if (!gathers() || shares())
      d_rows_ = scratch_rows("experts.d_rows", gathers() ? b_.rows() : route_.expected, o_.width);
    d_arrived_ = !travels() ? d_rows_
                 : apart    ? kept_rows("experts.d_arrived", o_.width)
                            : scratch_rows("experts.d_arrived", route_.bound, o_.width);
    d_back_ = scratch_rows("experts.d_back", route_.bound, o_.width);
    d_active_ = scratch_rows("experts.d_active", route_.bound, down_.in);
    d_up_ = apart ? kept_rows("experts.d_up", up_.out) : scratch_rows("experts.d_up", route_.bound, up_.out);
    d_own_weights_ = scratch_numbers("experts.d_own_weights", route_.bound);
    d_weights_ = travels() ? scratch_numbers("experts.d_weights", (gathers() ? o_.expert_ranks : 1) * route_.expected)
                           : d_own_weights_;
    d_choices_ = scratch_numbers("router.d_weights", route_.expected);
    const int64_t logits = b_.rows() * o_.experts.count;
    d_logits_ = apart ? b_.statistics(b_.of_layer(layer_, "router.d_logits"), logits)
                      : scratch_numbers("router.d_logits", logits);
    if (!shares()) return;
    d_shared_active_ = b_.scratch_rows("shared.d_active", shared_down_.in);
    d_shared_up_ = b_.output_gradient(b_.of_layer(layer_, "shared.d_up"), shared_up_.out,
                                      b_.scratch_rows("shared.d_up", shared_up_.out));
    d_shared_x_ = b_.scratch_rows("shared.d_x", o_.width);
  }

  std::vector<Stage> forward(Ops& ops, const DropoutRates&, Slice x, Slice y) const override {
    // What travels is complete at the end of a piece. If nothing travels, all stages are one piece.
    const auto stage = [&](const char* piece, std::function<void()> body) {
      return Stage{travels() ? piece : "mlp", "", layer_, [body = std::move(body)](TokenChunk) { body(); }, true};
    };
    std::vector<Stage> stages{stage("router", [=, this, &ops] {
      ops.route(x, router_);
      if (gathers()) return gather(x);
      ops.take_rows(x, router_, route_, rows_);
      ops.send_rows(rows_, route_, arrived_);
    })};
    if (shares())  // shared experts compute while rows travel
      stages.push_back(stage("shared_experts", [=, this, &ops] {
        ops.linear(x, shared_up_, shared_up_out_);
        ops.swiglu(shared_up_out_, shared_active_, shared_down_.in);
        ops.linear(shared_active_, shared_down_, shared_out_);
      }));
    stages.push_back(stage("experts", [=, this, &ops] {
      gathers() ? ops.take_rows(tokens_, all_, route_, arrived_) : ops.find_own_rows(route_);
      ops.expert_linear(arrived_, up_, route_, up_out_);
      ops.expert_swiglu(up_out_, route_, active_, down_.in);
      ops.expert_linear(active_, down_, route_, out_);
      if (!gathers()) return ops.send_back(out_, route_, rows_);
      ops.return_rows(out_, all_, route_, {}, tokens_);
      b_.sum_tokens("sums", tokens_, shares() ? rows_ : y, o_.dtype);
    }));
    if (!gathers())
      stages.push_back(stage("mlp", [=, this, &ops] { ops.return_rows(rows_, router_, route_, shared_out_, y); }));
    else if (shares())
      stages.push_back(stage("mlp", [=, this] { b_.residual_sum(rows_, shared_out_, y); }));
    return stages;
  }

  /// Gradients of weights come after the rows have left for the ranks of their tokens, and hide that. Shared experts
  /// compute while rows travel to experts.
  std::vector<GradientStep> backward(Slice x, Slice dy, Slice dx) const override {
    const auto rows_to_experts = [=, this] {
      if (gathers()) return b_.gather_tokens("tokens", dy, d_tokens_, o_.dtype);
      b_.take_rows_again(dy, router_, route_, d_rows_);
      b_.send_rows_again(d_rows_, route_, d_arrived_);
    };
    const auto of_shared = [=, this] {
      b_.linear_input_gradient(dy, shared_down_, d_shared_active_);
      b_.swiglu_gradient(d_shared_active_, shared_up_out_, d_shared_up_, shared_down_.in);
      b_.linear_input_gradient(d_shared_up_, shared_up_, d_shared_x_);
      b_.linear_weight_gradient(shared_active_, dy, shared_down_);
      b_.linear_weight_gradient(x, d_shared_up_, shared_up_);
    };
    const auto of_inputs = [=, this] {
      if (gathers()) b_.take_rows_again(d_tokens_, all_, route_, d_arrived_);
      b_.expert_input_gradient(d_arrived_, down_, route_, d_active_);
      b_.expert_swiglu_gradient(d_active_, up_out_, route_, d_up_, d_own_weights_, down_.in);
      b_.expert_input_gradient(d_up_, up_, route_, d_back_);
      if (!gathers()) return b_.send_back(d_back_, d_own_weights_, route_, d_rows_, d_weights_);
      b_.return_rows(d_back_, d_own_weights_, all_, route_, {}, d_tokens_, d_weights_);
      b_.sum_tokens("sums", d_tokens_, shares() ? d_rows_ : dx, o_.dtype);
      b_.sum_tokens("weight_sums", d_weights_, d_choices_, DType::f32);
    };
    const auto of_down = [=, this] {
      if (!travels()) b_.take_rows_again(dy, router_, route_, rows_);
      b_.expert_weight_gradient(active_, travels() ? d_arrived_ : rows_, down_, route_);
    };
    const auto of_up = [=, this] {
      if (!travels()) b_.take_rows_again(x, router_, route_, rows_);
      b_.expert_weight_gradient(arrived_, d_up_, up_, route_);
    };
    const auto of_router = [=, this] {
      if (!gathers())
        b_.return_rows(travels() ? d_rows_ : d_back_, d_weights_, router_, route_, d_shared_x_, dx, d_choices_);
      else if (shares())
        b_.residual_sum(d_rows_, d_shared_x_, dx);
      b_.route_gradient(router_, d_choices_, d_logits_);
      b_.router_weight_gradient(x, d_logits_, router_);
    };
    const auto to_input = [=, this](TokenChunk) { b_.router_input_gradient(d_logits_, router_, dx); };
    std::vector<GradientStep> steps;
    // If dy needs no more works, it is gathered after the piece that computes it.
    if (gathers() && o_.dropout.residual == 0 && !b_.cut_before(layer_ + 1))
      rows_to_experts();
    else
      steps.push_back({"experts_rows_gradient", rows_to_experts});
    if (shares()) steps.push_back({"shared_experts_gradient", of_shared});
    steps.insert(steps.end(), {{"experts_input_gradient", of_inputs},
                               {"experts_down_gradient", of_down},
                               {"experts_up_gradient", of_up},
                               {"router_gradient", of_router, {"router_input_gradient", "", layer_, to_input, true}}});
    return steps;
  }

 private:
  /// Returns true if ranks divide the experts.
  bool travels() const { return o_.expert_ranks > 1; }
  bool gathers() const { return travels() && o_.expert_exchange == ExpertExchange::gather; }
  bool shares() const { return o_.experts.shared > 0; }
  /// Returns this rank's part of what ranks gather.
  Slice own(const Slice& all) const { return gathers() ? b_.chunk(all, {o_.expert_rank, o_.expert_ranks}) : all; }
  int64_t all_rows() const { return o_.expert_ranks * b_.rows(); }
  Slice kept_numbers(const char* name, int64_t elems) { return b_.statistics(b_.of_layer(layer_, name), elems); }
  Slice scratch_numbers(const char* name, int64_t elems) { return b_.scratch(name, bytes_of(elems, DType::f32)); }

  /// Declares the order of the rows of this rank's tokens and, if they travel, that of the rows of its experts.
  void declare_route() {
    const int64_t E = o_.experts.count;
    // Only the forward pass reads these if own rows have their own.
    route_.offsets = travels() ? scratch_numbers("experts.offsets", E + 1) : kept_numbers("experts.offsets", E + 1);
    route_.choices = kept_numbers("experts.choices", route_.expected);
    route_.places = kept_numbers("experts.places", route_.expected);
    route_.weights = travels() ? scratch_numbers("experts.weights", route_.expected)
                               : kept_numbers("experts.weights", route_.expected);
    rows_ = scratch_rows("experts.rows", route_.expected, o_.width);
    route_.own_offsets = route_.offsets;
    route_.own_weights = route_.weights;
    arrived_ = out_ = rows_;
    if (!travels()) return;
    route_.counts = kept_numbers("experts.counts", o_.expert_ranks * E);
    route_.own_offsets = kept_numbers("experts.own_offsets", route_.experts + 1);
    route_.own_weights = kept_numbers("experts.own_weights", route_.bound);
    arrived_ = kept_rows("experts.arrived", o_.width);
    out_ = scratch_rows("experts.out", route_.bound, o_.width);
  }
  /// Declares the tokens of all ranks, and the order of the rows of this rank's experts among them.
  void declare_gathered() {
    const int64_t choices = o_.expert_ranks * route_.expected;
    tokens_ = scratch_rows("experts.tokens", all_rows(), o_.width);
    route_.own_offsets = route_.offsets = kept_numbers("experts.offsets", route_.experts + 1);
    route_.choices = kept_numbers("experts.choices", route_.bound);
    route_.places = kept_numbers("experts.places", choices);
    route_.own_weights = route_.weights = kept_numbers("experts.weights", route_.bound);
    arrived_ = kept_rows("experts.arrived", o_.width);
    out_ = scratch_rows("experts.out", route_.bound, o_.width);
    if (shares()) rows_ = scratch_rows("experts.rows", b_.rows(), o_.width);
  }
  /// Gathers what experts need to know of the tokens of all ranks.
  void gather(Slice x) const {
    b_.gather_tokens("choices", router_.chosen, all_.chosen, DType::i32);
    b_.gather_tokens("weights", router_.weights, all_.weights, DType::f32);
    b_.gather_tokens("tokens", x, tokens_, o_.dtype);
  }
  /// Returns memory that layers share.
  Slice scratch_rows(const std::string& name, int64_t count, int64_t width) {
    return b_.scratch(name, bytes_of(count * width, o_.dtype));
  }
  /// Returns memory of rows of experts that the forward pass keeps.
  Slice kept_rows(const std::string& name, int64_t width) {
    return b_.kept(b_.of_layer(layer_, name), bytes_of(route_.bound * width, o_.dtype));
  }
  /// Declares a product of all experts, whose weights are those of `names` next to each other.
  ExpertLinear declare(const std::string& prefix, const std::vector<std::string>& names, int64_t in, int64_t out) {
    ParameterSpec parameter{.layer = layer_, .init = Weights{}.init, .decay = true};
    for (int64_t e = 0; e < o_.experts.count; ++e)
      for (size_t i = 0; i < names.size(); ++i) {
        const int64_t place = e % route_.experts * static_cast<int64_t>(names.size()) + static_cast<int64_t>(i);
        NamedTensor tensor{.name = fmt::format("{}{}.{}.weight", prefix, e, names[i]),
                           .shape = {out, in},
                           .begin_elems = place * out * in};
        if (travels()) tensor.expert_rank = static_cast<int>(e / route_.experts);
        const bool here = !travels() || tensor.expert_rank == o_.expert_rank;
        (here ? parameter.tensors : parameter.elsewhere).push_back(std::move(tensor));
      }
    return {.weight = b_.parameter(std::move(parameter)),
            .experts = route_.experts,
            .in = in,
            .out = out * static_cast<int64_t>(names.size())};
  }

  SpecBuilder& b_;
  const ModelOptions& o_;
  int layer_;
  Router router_, all_;  // all_: with the choices of the tokens of all ranks
  ExpertRoute route_;
  ExpertLinear up_, down_;  // D -> gate and up next to each other: 2 F; F -> D
  // The rows of this rank's choices: those of the layer's input, then the experts' outputs. The rows of its experts:
  // those that have arrived, and their outputs.
  Slice rows_, arrived_, out_;
  Slice tokens_, d_tokens_;            // rows of the tokens of all ranks, and their gradients
  Slice up_out_, active_;              // activations of experts
  Slice d_rows_, d_arrived_, d_back_;  // gradients of the outputs, and of the inputs of experts
  Slice d_active_, d_up_;              // those of activations
  Slice d_own_weights_, d_weights_, d_choices_, d_logits_;
  Linear shared_up_, shared_down_;  // of shared experts, as above
  Slice shared_up_out_, shared_active_, shared_out_, d_shared_active_, d_shared_up_, d_shared_x_;
};

}  // namespace

LayerKind experts(ExpertsKind kind) {
  return {"mlp", "SwiGLU experts", [kind = std::move(kind)](SpecBuilder& b, const std::string& prefix, int layer) {
            return std::make_unique<Experts>(b, kind, prefix, layer);
          }};
}

}  // namespace slipstream::models
