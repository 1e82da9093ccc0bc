// SPDX-License-Identifier: Apache-2.0
// The stages of a mixture of experts.
//
// The weight of a choice multiplies the activation of its expert instead of the expert's output. Then the output need
// not be kept, and the gradient of the weight comes from values that the backward pass has anyway.
//
// If ranks divide the experts, something travels. Exact: a row travels with its weight to the rank of its expert, and
// the output travels back. Gather: every rank receives the tokens of all ranks with their choices, computes the rows of
// its experts, and adds them up for each token; the ranks sum these, and each receives the sums of its own tokens.
//
// Exact: a layer keeps as many rows of its experts as the capacity allows. Rows beyond that travel in later rounds,
// through memory that all layers share. The backward pass fetches them again and computes their activations again. At
// balanced load, later rounds have no rows, and cost neither messages nor products. They are computed before the first
// round, so that no transfer of theirs waits for one that has rows.

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "models/layers/layer.h"

namespace slipstream::models {
namespace {

/// The memory of a later round, which all layers share, holds at most so many times the rows that a layer keeps.
constexpr int64_t kLateCapacities = 4;

class Experts final : public Layer {
 public:
  Experts(SpecBuilder& builder, const ExpertsKind& kind, const std::string& prefix, int layer)
      : b_(builder), o_(b_.options()), layer_(layer) {
    SLIP_ASSERT(o_.tensor == 1 && o_.experts.count % o_.expert_ranks == 0);  // the run file guarantees it
    router_.options = o_.experts;
    route_.experts = o_.experts.count / o_.expert_ranks;
    route_.expected = b_.rows() * o_.experts.top_k;
    route_.gathers = gathers();
    if (gathers()) route_.first = o_.expert_rank * route_.experts;
    divide_into_rounds();
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
    kept_.up = kept_rows("experts.up", up_.out);
    kept_.active = kept_rows("experts.active", down_.in);
    b_.cheap(kept_.active);
    declare_late_rows();
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
      d_rows_ = d_returned_ = scratch_rows("experts.d_rows", gathers() ? b_.rows() : route_.expected, o_.width);
    if (late_rows_ > 0) d_returned_ = scratch_rows("experts.d_returned", route_.expected, o_.width);
    kept_.d_arrived = !travels() ? d_rows_
                      : apart    ? kept_rows("experts.d_arrived", o_.width)
                                 : scratch_rows("experts.d_arrived", route_.bound, o_.width);
    kept_.d_back = scratch_rows("experts.d_back", route_.bound, o_.width);
    kept_.d_active = scratch_rows("experts.d_active", route_.bound, down_.in);
    kept_.d_up = apart ? kept_rows("experts.d_up", up_.out) : scratch_rows("experts.d_up", route_.bound, up_.out);
    kept_.d_weights = scratch_numbers("experts.d_own_weights", route_.bound);
    d_weights_ = travels() ? scratch_numbers("experts.d_weights", (gathers() ? o_.expert_ranks : 1) * route_.expected)
                           : kept_.d_weights;
    d_choices_ = scratch_numbers("router.d_weights", route_.expected);
    declare_late_gradients();
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
    const auto stage = [&](const std::string& piece, std::function<void()> body) {
      return Stage{travels() ? piece : "mlp", "", layer_, [body = std::move(body)](TokenChunk) { body(); }, true};
    };
    std::vector<Stage> stages{stage("router", [=, this, &ops] {
      ops.route(x, router_);
      if (gathers()) return gather(x);
      ops.take_rows(x, router_, route_, rows_);
      ops.send_rows(rows_, route_, kept_.arrived);
      if (!rounds_.empty()) ops.send_rows(rows_, rounds_[0], late_.arrived);
    })};
    if (shares())  // shared experts compute while rows travel
      stages.push_back(stage("shared_experts", [=, this, &ops] {
        ops.linear(x, shared_up_, shared_up_out_);
        ops.swiglu(shared_up_out_, shared_active_, shared_down_.in);
        ops.linear(shared_active_, shared_down_, shared_out_);
      }));
    for (const ExpertRoute& round : rounds_)
      stages.push_back(stage(fmt::format("late_experts.{}", round.round), [=, this, &ops, &round] {
        activate(ops, round, late_);
        ops.expert_linear(late_.active, down_, round, late_.out);
        ops.send_back(late_.out, round, returned_);
        if (const ExpertRoute* next = after(round, rounds_)) ops.send_rows(rows_, *next, late_.arrived);
      }));
    stages.push_back(stage("experts", [=, this, &ops] {
      if (gathers()) ops.take_rows(tokens_, all_, route_, kept_.arrived);
      activate(ops, route_, kept_);
      ops.expert_linear(kept_.active, down_, route_, kept_.out);
      if (!gathers()) return ops.send_back(kept_.out, route_, returned_);
      ops.return_rows(kept_.out, all_, route_, {}, tokens_);
      b_.sum_tokens("sums", tokens_, shares() ? rows_ : y, o_.dtype);
    }));
    if (!gathers())
      stages.push_back(stage("mlp", [=, this, &ops] { ops.return_rows(returned_, router_, route_, shared_out_, y); }));
    else if (shares())
      stages.push_back(stage("mlp", [=, this] { b_.residual_sum(rows_, shared_out_, y); }));
    return stages;
  }

  /// Gradients of weights come after the rows have left for the ranks of their tokens, and hide that. Shared experts
  /// compute while rows travel to experts.
  std::vector<GradientStep> backward(Slice x, Slice dy, Slice dx) const override {
    const auto rows_to_experts = [=, this] {
      if (gathers()) return b_.gather_tokens("tokens", dy, d_tokens_, o_.dtype);
      b_.count_choices(router_);
      b_.take_rows_again(dy, router_, route_, d_rows_);
      b_.send_rows_again("rows", d_rows_, route_, kept_.d_arrived);
      if (rounds_.empty()) return;
      b_.take_late_rows(x, router_, route_, rows_again_);
      send_late(rounds_again_[0]);
    };
    const auto of_shared = [=, this] {
      b_.linear_input_gradient(dy, shared_down_, d_shared_active_);
      b_.swiglu_gradient(d_shared_active_, shared_up_out_, d_shared_up_, shared_down_.in);
      b_.linear_input_gradient(d_shared_up_, shared_up_, d_shared_x_);
      b_.linear_weight_gradient(shared_active_, dy, shared_down_);
      b_.linear_weight_gradient(x, d_shared_up_, shared_up_);
    };
    const auto of_inputs = [=, this] {
      if (gathers()) b_.count_choices(router_);
      if (gathers()) b_.take_rows_again(d_tokens_, all_, route_, kept_.d_arrived);
      input_gradient(route_, kept_);
      if (!gathers()) return b_.send_back(kept_.d_back, kept_.d_weights, route_, d_returned_, d_weights_);
      b_.return_rows(kept_.d_back, kept_.d_weights, all_, route_, {}, d_tokens_, d_weights_);
      b_.sum_tokens("sums", d_tokens_, shares() ? d_rows_ : dx, o_.dtype);
      b_.sum_tokens("weight_sums", d_weights_, d_choices_, DType::f32);
    };
    const auto of_down = [=, this] {
      if (!travels()) b_.take_rows_again(dy, router_, route_, rows_);
      b_.expert_weight_gradient(kept_.active, travels() ? kept_.d_arrived : rows_, down_, route_);
    };
    const auto of_up = [=, this] {
      if (!travels()) b_.take_rows_again(x, router_, route_, rows_);
      b_.expert_weight_gradient(kept_.arrived, kept_.d_up, up_, route_);
    };
    const auto of_round = [=, this](const ExpertRoute& round) {
      activate(b_, round, late_again_);
      input_gradient(round, late_again_);
      b_.send_back(late_again_.d_back, late_again_.d_weights, round, d_returned_, d_weights_);
      b_.expert_weight_gradient(late_again_.active, late_again_.d_arrived, down_, round);
      b_.expert_weight_gradient(late_again_.arrived, late_again_.d_up, up_, round);
      if (const ExpertRoute* next = after(round, rounds_again_)) send_late(*next);
    };
    const auto of_router = [=, this] {
      if (!gathers())
        b_.return_rows(travels() ? d_returned_ : kept_.d_back, d_weights_, router_, route_, d_shared_x_, dx,
                       d_choices_);
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
    for (const ExpertRoute& round : rounds_again_)
      steps.push_back({"late_experts_gradient", [=, &round] { of_round(round); }});
    steps.insert(steps.end(), {{"experts_input_gradient", of_inputs},
                               {"experts_down_gradient", of_down},
                               {"experts_up_gradient", of_up},
                               {"router_gradient", of_router, {"router_input_gradient", "", layer_, to_input, true}}});
    return steps;
  }

 private:
  /// The memory of the rows of this rank's experts in a round.
  struct Memory {
    Slice arrived, up, active, out;           // the inputs, the activations and the outputs
    Slice d_arrived, d_active, d_up, d_back;  // gradients of the outputs, activations and inputs
    Slice d_weights;                          // float: the gradients of the rows' weights
  };

  /// Sets the rounds and their rows.
  void divide_into_rounds() {
    route_.bound = route_.expected;
    if (!travels()) return;
    // The most rows that can arrive: a token chooses an expert once.
    const int64_t most = b_.rows() * o_.expert_ranks * std::min(o_.experts.top_k, route_.experts);
    const double capacity = std::ceil(o_.experts.capacity_factor * static_cast<double>(route_.expected));
    // Delayed gradients of weights would need the rows of later rounds for longer than these are in memory. A rank that
    // gathers tokens has no rounds.
    const bool all = gathers() || o_.split_backward || capacity >= static_cast<double>(most);
    route_.bound = all ? most : static_cast<int64_t>(capacity);
    late_rows_ = std::min(most - route_.bound, kLateCapacities * route_.bound);
    for (int64_t begin = route_.bound; begin < most; begin += late_rows_) {
      rounds_.push_back(route_);
      rounds_.back().begin = begin;
      rounds_.back().bound = late_rows_;
      rounds_.back().round = static_cast<int32_t>(rounds_.size());
    }
    route_.rounds = static_cast<int32_t>(rounds_.size()) + 1;
    for (ExpertRoute& round : rounds_) round.rounds = route_.rounds;
  }

  void declare_late_rows() {
    if (late_rows_ == 0) return;
    returned_ = scratch_rows("experts.returned", route_.expected, o_.width);
    late_ = {.arrived = scratch_rows("late.arrived", late_rows_, o_.width),
             .up = scratch_rows("late.up", late_rows_, up_.out),
             .active = scratch_rows("late.active", late_rows_, down_.in),
             .out = scratch_rows("late.out", late_rows_, o_.width)};
    for (ExpertRoute& round : rounds_) {
      const int64_t begin = round.begin, bound = round.bound;
      const int32_t index = round.round;
      round = route_;
      round.begin = begin, round.bound = bound, round.round = index;
      round.own_offsets = b_.scratch("late.own_offsets", bytes_of(route_.experts + 1, DType::f32));
      round.own_weights = b_.statistics(b_.of_layer(layer_, fmt::format("late.own_weights.{}", index)), bound);
    }
  }

  /// Passes that take turns have memory of their own for what both compute.
  void declare_late_gradients() {
    if (late_rows_ == 0) return;
    const auto own = [&](const std::string& name) { return o_.takes_turns ? name + ".again" : name; };
    rows_again_ = scratch_rows(own("experts.rows"), route_.expected, o_.width);
    route_.late = b_.scratch("late.rows", bytes_of(1, DType::f32));
    late_again_ = {.arrived = scratch_rows(own("late.arrived"), late_rows_, o_.width),
                   .up = scratch_rows(own("late.up"), late_rows_, up_.out),
                   .active = scratch_rows(own("late.active"), late_rows_, down_.in),
                   .d_arrived = scratch_rows("late.d_arrived", late_rows_, o_.width),
                   .d_active = scratch_rows("late.d_active", late_rows_, down_.in),
                   .d_up = scratch_rows("late.d_up", late_rows_, up_.out),
                   .d_back = scratch_rows(own("late.out"), late_rows_, o_.width),
                   .d_weights = b_.scratch("late.d_weights", bytes_of(late_rows_, DType::f32))};
    rounds_again_ = rounds_;
    for (ExpertRoute& round : rounds_again_)
      round.own_offsets = b_.scratch(own("late.own_offsets"), bytes_of(route_.experts + 1, DType::f32));
  }

  /// Returns the round after this one, or null.
  static const ExpertRoute* after(const ExpertRoute& round, const std::vector<ExpertRoute>& rounds) {
    return round.round + 1 == round.rounds ? nullptr : &rounds[static_cast<size_t>(round.round)];
  }

  /// Computes the activations of the rows that have arrived.
  void activate(Ops& ops, const ExpertRoute& round, const Memory& m) const {
    ops.find_own_rows(round);
    ops.expert_linear(m.arrived, up_, round, m.up);
    ops.expert_swiglu(m.up, round, m.active, down_.in);
  }
  void input_gradient(const ExpertRoute& round, const Memory& m) const {
    b_.expert_input_gradient(m.d_arrived, down_, round, m.d_active);
    b_.expert_swiglu_gradient(m.d_active, m.up, round, m.d_up, m.d_weights, down_.in);
    b_.expert_input_gradient(m.d_up, up_, round, m.d_back);
  }
  /// Sends the rows of a later round and their gradients to their experts.
  void send_late(const ExpertRoute& round) const {
    b_.send_rows_again("rows", d_rows_, round, late_again_.d_arrived);
    b_.send_rows_again("rows_again", rows_again_, round, late_again_.arrived);
  }

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
    rows_ = returned_ = scratch_rows("experts.rows", route_.expected, o_.width);
    route_.own_offsets = route_.offsets;
    route_.own_weights = route_.weights;
    kept_.arrived = kept_.out = rows_;
    if (!travels()) return;
    route_.counts = kept_numbers("experts.counts", o_.expert_ranks * E);
    route_.own_offsets = kept_numbers("experts.own_offsets", route_.experts + 1);
    route_.own_weights = kept_numbers("experts.own_weights", route_.bound);
    kept_.arrived = kept_rows("experts.arrived", o_.width);
    kept_.out = scratch_rows("experts.out", route_.bound, o_.width);
  }
  /// Declares the tokens of all ranks, and the order of the rows of this rank's experts among them.
  void declare_gathered() {
    const int64_t choices = o_.expert_ranks * route_.expected;
    tokens_ = scratch_rows("experts.tokens", all_rows(), o_.width);
    route_.own_offsets = route_.offsets = kept_numbers("experts.offsets", route_.experts + 1);
    route_.choices = kept_numbers("experts.choices", route_.bound);
    route_.places = kept_numbers("experts.places", choices);
    route_.own_weights = route_.weights = kept_numbers("experts.weights", route_.bound);
    kept_.arrived = kept_rows("experts.arrived", o_.width);
    kept_.out = scratch_rows("experts.out", route_.bound, o_.width);
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
  Router router_, all_;                             // all_: with the choices of the tokens of all ranks
  ExpertRoute route_;                               // of the first round
  std::vector<ExpertRoute> rounds_, rounds_again_;  // the later ones, in the forward and in the backward pass
  int64_t late_rows_ = 0;                           // that memory holds in a later round
  ExpertLinear up_, down_;                          // D -> gate and up next to each other: 2 F; F -> D
  // The rows of this rank's choices: those of the layer's input, and the experts' outputs. With one round, both have
  // the same memory.
  Slice rows_, returned_, d_rows_, d_returned_;
  Slice rows_again_;                 // the rows of the input, if some of them travel in later rounds
  Slice tokens_, d_tokens_;          // rows of the tokens of all ranks, and their gradients
  Memory kept_, late_, late_again_;  // of the first round, and of later ones in the forward and in the backward pass
  Slice d_weights_, d_choices_, d_logits_;
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
