// SPDX-License-Identifier: Apache-2.0
// The works of a mixture of experts: the router, rows in the order of the experts, and products of experts.

#include "kernels/experts/counts.h"
#include "kernels/experts/grouped.h"
#include "kernels/experts/route.h"
#include "kernels/experts/router_linear.h"
#include "kernels/experts/rows.h"
#include "kernels/experts/weighted_swiglu.h"
#include "models/common/blocks.h"

namespace slipstream::models {
namespace {

constexpr Meaning kRows{.rule = Rule::rows};
constexpr Meaning kReorder{.rule = Rule::reorder};

/// The cost of a kernel is that of equal loads, and its memory that of the bound.
template <typename Shape>
Cost expected_cost(Cost (*cost)(const Shape&), Shape shape, const ExpertRoute& route) {
  shape.max_rows = std::clamp<int64_t>(route.expected - route.begin, 0, shape.max_rows);
  return shape.max_rows == 0 && route.round > 0 ? Cost{} : cost(shape);  // a kernel without rows touches no weights
}

kernels::RouteForward route_shape(const Router& router, int64_t tokens) {
  const ExpertOptions& o = router.options;
  return {.tokens = tokens,
          .experts = o.count,
          .top_k = o.top_k,
          .groups = o.groups,
          .group_top_k = o.group_top_k,
          .router = o.router,
          .normalize = o.normalize,
          .scale = static_cast<float>(o.scale)};
}

}  // namespace

void SpecBuilder::route(Slice x, const Router& router) {
  const Slice weight = value(router.weight);
  const kernels::RouteForward shape = route_shape(router, rows_of(x, options_.width));
  const kernels::RouterLinear linear{
      .tokens = shape.tokens, .width = options_.width, .experts = shape.experts, .dtype = options_.dtype};
  Cost cost = kernels::router_linear_cost(linear);
  cost += kernels::route_forward_cost(shape);
  work("route", cost, {x, weight}, {router.logits, router.scores, router.chosen, router.weights},
       {.rule = Rule::product, .results = 4}, [=](LaunchContext& c) {
         kernels::RouterLinear of_logits = linear;
         of_logits.x = c.at(x);
         of_logits.weight = c.at(weight);
         of_logits.logits = c.as<float>(router.logits);
         kernels::router_linear(c, of_logits);
         kernels::RouteForward args = shape;
         args.logits = of_logits.logits;
         args.scores = c.as<float>(router.scores);
         args.chosen = c.as<int32_t>(router.chosen);
         args.weights = c.as<float>(router.weights);
         kernels::route_forward(c, args);
       });
}

void SpecBuilder::count_choices(const Router& router) {
  const ExpertOptions& o = router.options;
  if (o.balance != ExpertBalance::auxiliary) return;
  const Slice load = load_of(o);
  const kernels::RouteLoad counts{.tokens = rows(), .sequence = options_.tokens, .experts = o.count, .top_k = o.top_k};
  work("router_load", kernels::route_load_cost(counts), {router.chosen}, {load}, {.rule = Rule::tally},
       [=](LaunchContext& c) {
         kernels::RouteLoad args = counts;
         args.chosen = c.as<int32_t>(router.chosen);
         args.load = c.as<float>(load);
         kernels::route_load(c, args);
       });
  if (options_.context_ranks == 1) return;
  communicate({.name = "all_reduce.router_load",
               .channel = Role::ring,
               .axis = Axis::context,
               .op = Op::all_reduce,
               .from = load,
               .to = load,
               .dtype = DType::f32,
               .elems = load.size_bytes / size_of(DType::f32)});
}

Slice SpecBuilder::load_of(const ExpertOptions& o) {
  if (o.balance != ExpertBalance::auxiliary) return {};
  return scratch("router.load", bytes_of(options_.batch * o.count, DType::f32));
}

void SpecBuilder::route_gradient(const Router& router, Slice d_weights, Slice d_logits) {
  const ExpertOptions& o = router.options;
  const int64_t tokens = rows();
  const auto of_step = [&](double rate) {
    return static_cast<float>(rate / static_cast<double>(options_.global_tokens));
  };
  const kernels::RouteBackward shape{
      .tokens = tokens,
      .sequence = options_.tokens,
      .experts = o.count,
      .top_k = o.top_k,
      .router = o.router,
      .normalize = o.normalize,
      .scale = static_cast<float>(o.scale),
      // The load is that of all tokens, which are context_ranks x options_.tokens.
      .auxiliary = of_step(o.balance == ExpertBalance::auxiliary ? o.balance_rate / options_.context_ranks : 0),
      .z_loss = of_step(o.z_loss)};
  const Slice load = load_of(o);
  std::vector<Slice> reads{d_weights, router.scores, router.chosen};
  if (shape.z_loss > 0) reads.push_back(router.logits);
  work("route_gradient", kernels::route_backward_cost(shape), with(reads, load), {d_logits}, kRows,
       [=](LaunchContext& c) {
         kernels::RouteBackward args = shape;
         args.dweights = c.as<float>(d_weights);
         args.scores = c.as<float>(router.scores);
         args.chosen = c.as<int32_t>(router.chosen);
         if (shape.z_loss > 0) args.logits = c.as<float>(router.logits);
         if (load.size_bytes > 0) args.load = c.as<float>(load);
         args.dlogits = c.as<float>(d_logits);
         kernels::route_backward(c, args);
       });
}

void SpecBuilder::router_input_gradient(Slice d_logits, const Router& router, Slice dx) {
  const Slice weight = value(router.weight);
  const kernels::RouterLinearBackwardInput shape{.tokens = rows(),
                                                 .width = options_.width,
                                                 .experts = router.options.count,
                                                 .dtype = options_.dtype,
                                                 .accumulate = true};
  work("router_input_gradient", kernels::router_linear_backward_input_cost(shape), {d_logits, weight, dx}, {dx},
       {.rule = Rule::input_gradient}, [=](LaunchContext& c) {
         kernels::RouterLinearBackwardInput args = shape;
         args.dlogits = c.as<float>(d_logits);
         args.weight = c.at(weight);
         args.dx = c.at(dx);
         kernels::router_linear_backward_input(c, args);
       });
}

void SpecBuilder::router_weight_gradient(Slice x, Slice d_logits, const Router& router) {
  const Slice dw = gradient(router.weight);
  const kernels::RouterLinearBackwardWeight shape{
      .tokens = rows(), .width = options_.width, .experts = router.options.count, .dtype = options_.dtype};
  const Meaning meaning{.rule = Rule::weight_gradient, .results = 0, .sums = 1, .adds = Adds::as_planned};
  work("router_weight_gradient", kernels::router_linear_backward_weight_cost(shape), {x, d_logits, dw}, {dw}, meaning,
       [=](LaunchContext& c) {
         kernels::RouterLinearBackwardWeight args = shape;
         args.x = c.at(x);
         args.dlogits = c.as<float>(d_logits);
         args.dweight = c.as<float>(dw);
         args.accumulate = adds(meaning, c);
         kernels::router_linear_backward_weight(c, args);
       });
  ready(router.weight);
}

void SpecBuilder::take_rows(Slice x, const Router& router, const ExpertRoute& route, Slice rows) {
  const kernels::ArrangeRows shape{.tokens = rows_of(x, options_.width),
                                   .experts = route.offsets.size_bytes / 4 - 1,
                                   .top_k = router.options.top_k,
                                   .first = route.first};
  work("arrange_rows", kernels::arrange_rows_cost(shape), {router.chosen}, {route.offsets, route.choices, route.places},
       {.rule = Rule::order, .results = 3}, [=](LaunchContext& c) {
         kernels::ArrangeRows args = shape;
         args.chosen = c.as<int32_t>(router.chosen);
         args.offsets = c.as<int32_t>(route.offsets);
         args.rows = c.as<int32_t>(route.choices);
         args.places = c.as<int32_t>(route.places);
         kernels::arrange_rows(c, args);
       });
  copy_rows(x, router.weights, router, route, rows);
}

void SpecBuilder::take_rows_again(Slice x, const Router& router, const ExpertRoute& route, Slice rows) {
  copy_rows(x, {}, router, route, rows);
}

void SpecBuilder::take_late_rows(Slice x, const Router& router, const ExpertRoute& route, Slice rows) {
  const kernels::LateRows shape{
      .ranks = options_.expert_ranks, .rank = options_.expert_rank, .experts = route.experts, .bound = route.bound};
  work("late_rows", kernels::late_rows_cost(shape), {route.counts}, {route.late}, {.rule = Rule::late_rows},
       [=](LaunchContext& c) {
         kernels::LateRows args = shape;
         args.counts = c.as<int32_t>(route.counts);
         args.late = c.as<int32_t>(route.late);
         kernels::late_rows(c, args);
       });
  copy_rows(x, {}, router, route, rows, route.late);
}

void SpecBuilder::copy_rows(Slice x, Slice weights, const Router& router, const ExpertRoute& route, Slice rows,
                            Slice count) {
  const kernels::TakeRows shape{.top_k = router.options.top_k,
                                .max_rows = rows_of(rows, options_.width),
                                .width = options_.width,
                                .dtype = options_.dtype};
  const bool with_weights = weights.size_bytes > 0;
  Meaning meaning = kReorder;
  if (with_weights) meaning.results = 2;
  // Otherwise all rows exist.
  const bool late = count.size_bytes > 0, counted = late || route.gathers;
  if (!late && route.gathers) count = route.offsets;
  const Cost cost = late ? Cost{} : expected_cost(kernels::take_rows_cost, shape, route);
  work("take_rows", cost, with(with({x, route.choices}, weights), counted ? count : Slice{}),
       with({rows}, with_weights ? route.weights : Slice{}), meaning, [=](LaunchContext& c) {
         kernels::TakeRows args = shape;
         args.from = c.at(x);
         args.rows = c.as<int32_t>(route.choices);
         if (counted) args.count = c.as<int32_t>(count) + (late ? 0 : route.experts);
         args.to = c.at(rows);
         if (with_weights) args.weights = c.as<float>(weights), args.row_weights = c.as<float>(route.weights);
         kernels::take_rows(c, args);
       });
}

void SpecBuilder::communicate_rows(const char* name, Slice from, Slice to, const ExpertRoute& route, bool back,
                                   bool numbers) {
  const Route bounds{.experts = static_cast<int32_t>(route.experts),
                     .row_elems = numbers ? 1 : options_.width,
                     .source_rows = route.expected,
                     .bound_rows = route.bound,
                     .begin_rows = route.begin,
                     .round = route.round,
                     .rounds = route.rounds,
                     .reverse = back};
  const std::string round = route.round > 0 ? fmt::format(".{}", route.round) : "";
  communicate({.name = fmt::format("{}{}.{}", name, round, spec_.pieces.back().name),
               .channel = Role::experts,
               .axis = Axis::expert,
               .op = Op::all_to_all_v,
               .from = from,
               .to = to,
               .dtype = numbers ? DType::f32 : options_.dtype,
               .elems = balanced_elems(bounds, options_.expert_ranks),
               .counts = route.counts,
               .route = bounds});
}

void SpecBuilder::send_rows(Slice rows, const ExpertRoute& route, Slice arrived) {
  if (route.counts.size_bytes == 0) return;
  if (route.round == 0) gather_counts(route);
  communicate_rows("weights", route.weights, route.own_weights, route, false, true);
  communicate_rows("rows", rows, arrived, route, false);
}

void SpecBuilder::gather_counts(const ExpertRoute& route) {
  const Slice own = chunk(route.counts, {options_.expert_rank, options_.expert_ranks});
  const kernels::CountRows shape{.experts = own.size_bytes / 4};
  work("count_rows", kernels::count_rows_cost(shape), {route.offsets}, {own}, kRows, [=](LaunchContext& c) {
    kernels::CountRows args = shape;
    args.offsets = c.as<int32_t>(route.offsets);
    args.counts = c.as<int32_t>(own);
    kernels::count_rows(c, args);
  });
  gather_tokens("counts", own, route.counts, DType::i32);
}

void SpecBuilder::send_rows_again(const char* name, Slice rows, const ExpertRoute& route, Slice arrived) {
  if (route.counts.size_bytes > 0) communicate_rows(name, rows, arrived, route, false);
}

void SpecBuilder::send_back(Slice rows_of_experts, const ExpertRoute& route, Slice rows) {
  if (route.counts.size_bytes > 0) communicate_rows("rows_back", rows_of_experts, rows, route, true);
}

void SpecBuilder::send_back(Slice rows_of_experts, Slice numbers_of_experts, const ExpertRoute& route, Slice rows,
                            Slice numbers) {
  send_back(rows_of_experts, route, rows);
  if (route.counts.size_bytes > 0) communicate_rows("numbers_back", numbers_of_experts, numbers, route, true, true);
}

void SpecBuilder::gather_tokens(const char* name, Slice own, Slice all, DType dtype) {
  communicate({.name = fmt::format("{}.{}", name, spec_.pieces.back().name),
               .channel = Role::experts,
               .axis = Axis::expert,
               .op = Op::all_gather,
               .from = own,
               .to = all,
               .dtype = dtype,
               .elems = own.size_bytes / size_of(dtype)});
}

void SpecBuilder::sum_tokens(const char* name, Slice partial, Slice sum, DType dtype) {
  communicate({.name = fmt::format("{}.{}", name, spec_.pieces.back().name),
               .channel = Role::experts,
               .axis = Axis::expert,
               .op = Op::reduce_scatter,
               .from = partial,
               .to = sum,
               .dtype = dtype,
               .elems = sum.size_bytes / size_of(dtype)});
}

void SpecBuilder::find_own_rows(const ExpertRoute& route) {
  if (route.counts.size_bytes == 0) return;
  const kernels::OwnRows shape{.ranks = options_.expert_ranks,
                               .rank = options_.expert_rank,
                               .experts = route.experts,
                               .bound = route.bound,
                               .begin = route.begin};
  const Meaning meaning{.rule = Rule::order, .step = static_cast<int16_t>(route.round)};
  work("own_rows", kernels::own_rows_cost(shape), {route.counts}, {route.own_offsets}, meaning, [=](LaunchContext& c) {
    kernels::OwnRows args = shape;
    args.counts = c.as<int32_t>(route.counts);
    args.offsets = c.as<int32_t>(route.own_offsets);
    kernels::own_rows(c, args);
  });
}

void SpecBuilder::expert_linear(Slice x, const ExpertLinear& w, const ExpertRoute& route, Slice y) {
  const Slice weight = value(w.weight);
  const kernels::GroupedForward shape{
      .max_rows = route.bound, .experts = w.experts, .in = w.in, .out = w.out, .dtype = options_.dtype};
  work("expert_matmul", expected_cost(kernels::grouped_forward_cost, shape, route), {x, weight, route.own_offsets}, {y},
       {.rule = Rule::product}, [=](LaunchContext& c) {
         kernels::GroupedForward args = shape;
         args.x = c.at(x);
         args.weight = c.at(weight);
         args.offsets = c.as<int32_t>(route.own_offsets);
         args.y = c.at(y);
         kernels::grouped_forward(c, args);
       });
}

void SpecBuilder::expert_input_gradient(Slice dy, const ExpertLinear& w, const ExpertRoute& route, Slice dx) {
  const Slice weight = value(w.weight);
  const kernels::GroupedBackwardInput shape{
      .max_rows = route.bound, .experts = w.experts, .in = w.in, .out = w.out, .dtype = options_.dtype};
  work("expert_matmul_input_gradient", expected_cost(kernels::grouped_backward_input_cost, shape, route),
       {dy, weight, route.own_offsets}, {dx}, {.rule = Rule::input_gradient}, [=](LaunchContext& c) {
         kernels::GroupedBackwardInput args = shape;
         args.dy = c.at(dy);
         args.weight = c.at(weight);
         args.offsets = c.as<int32_t>(route.own_offsets);
         args.dx = c.at(dx);
         kernels::grouped_backward_input(c, args);
       });
}

void SpecBuilder::expert_weight_gradient(Slice x, Slice dy, const ExpertLinear& w, const ExpertRoute& route) {
  const Slice dw = gradient(w.weight);
  const kernels::GroupedBackwardWeight shape{
      .max_rows = route.bound, .experts = w.experts, .in = w.in, .out = w.out, .dtype = options_.dtype};
  const bool is_first = route.round == (route.rounds > 1 ? 1 : 0), is_last = route.round == 0;
  const Meaning meaning{
      .rule = Rule::weight_gradient, .results = 0, .sums = 1, .adds = is_first ? Adds::as_planned : Adds::always};
  work("expert_matmul_weight_gradient", expected_cost(kernels::grouped_backward_weight_cost, shape, route),
       {x, dy, dw, route.own_offsets}, {dw}, meaning, [=](LaunchContext& c) {
         kernels::GroupedBackwardWeight args = shape;
         args.x = c.at(x);
         args.dy = c.at(dy);
         args.offsets = c.as<int32_t>(route.own_offsets);
         args.dweight = c.as<float>(dw);
         args.accumulate = adds(meaning, c);
         kernels::grouped_backward_weight(c, args);
       });
  if (is_last) ready(w.weight);
}

void SpecBuilder::expert_swiglu(Slice gate_up, const ExpertRoute& route, Slice y, int64_t width) {
  const kernels::WeightedSwigluForward shape{.max_rows = route.bound, .width = width, .dtype = options_.dtype};
  work("expert_swiglu", expected_cost(kernels::weighted_swiglu_forward_cost, shape, route),
       {gate_up, route.own_weights, route.own_offsets}, {y}, kRows, [=](LaunchContext& c) {
         kernels::WeightedSwigluForward args = shape;
         args.gate_up = c.at(gate_up);
         args.weights = c.as<float>(route.own_weights);
         args.y = c.at(y);
         args.count = c.as<int32_t>(route.own_offsets) + route.experts;
         kernels::weighted_swiglu_forward(c, args);
       });
}

void SpecBuilder::expert_swiglu_gradient(Slice dy, Slice gate_up, const ExpertRoute& route, Slice dgate_up,
                                         Slice d_weights, int64_t width) {
  const kernels::WeightedSwigluBackward shape{.max_rows = route.bound, .width = width, .dtype = options_.dtype};
  work("expert_swiglu_gradient", expected_cost(kernels::weighted_swiglu_backward_cost, shape, route),
       {dy, gate_up, route.own_weights, route.own_offsets}, {dgate_up, d_weights}, {.rule = Rule::rows, .results = 2},
       [=](LaunchContext& c) {
         kernels::WeightedSwigluBackward args = shape;
         args.dy = c.at(dy);
         args.gate_up = c.at(gate_up);
         args.weights = c.as<float>(route.own_weights);
         args.dgate_up = c.at(dgate_up);
         args.dweights = c.as<float>(d_weights);
         args.count = c.as<int32_t>(route.own_offsets) + route.experts;
         kernels::weighted_swiglu_backward(c, args);
       });
}

void SpecBuilder::return_rows(Slice rows, const Router& router, const ExpertRoute& route, Slice more, Slice y) {
  return_rows(rows, {}, router, route, more, y, {});
}

void SpecBuilder::return_rows(Slice rows, Slice of_rows, const Router& router, const ExpertRoute& route, Slice more,
                              Slice y, Slice of_choices) {
  const kernels::ReturnRows shape{.tokens = rows_of(y, options_.width),
                                  .top_k = router.options.top_k,
                                  .width = options_.width,
                                  .dtype = options_.dtype,
                                  .max_rows = route.expected};
  const bool with_numbers = of_rows.size_bytes > 0, adds = more.size_bytes > 0;
  Cost cost = kernels::return_rows_cost(shape);
  if (adds) cost.bytes += more.size_bytes;
  Meaning meaning = kReorder;
  if (with_numbers) meaning.results = 2;
  work("return_rows", cost, with(with({rows, route.places}, of_rows), more), with({y}, of_choices), meaning,
       [=](LaunchContext& c) {
         kernels::ReturnRows args = shape;
         args.from = c.at(rows);
         args.places = c.as<int32_t>(route.places);
         args.add = adds ? c.at(more) : nullptr;
         args.to = c.at(y);
         if (with_numbers) args.row_weights = c.as<float>(of_rows), args.weights = c.as<float>(of_choices);
         kernels::return_rows(c, args);
       });
}

}  // namespace slipstream::models
