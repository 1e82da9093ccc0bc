// SPDX-License-Identifier: Apache-2.0
// Computes the costs of a layer and of the ends of a model from a job of three layers, and their sums over a layout.

#include "trainer/planner/search/layout_bounds.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/plan/build_job.h"
#include "engine/plan/memory.h"
#include "engine/plan/stages.h"
#include "trainer/planner/options/plan_options.h"

namespace slipstream::planner {
namespace {

/// The parts of a model with costs of their own. kAgain is a layer that recomputes, beside others that do not
/// (train.recompute_layers).
enum Place : size_t { kEmbedding, kLayer, kHead, kAgain, kPlaces };

struct PlaceWorks {
  std::array<int64_t, 3> pass_ns{};  // by Pass
  double seconds = 0;                // of both passes without launches; the division of layers uses it
  int64_t elems = 0;                 // the elements of parameters
  std::vector<Communication> communications;

  int64_t ns() const { return pass_ns[0] + pass_ns[1] + pass_ns[2]; }
};

constexpr int kFewLayers = 3;  // one of them is neither first nor last

/// Returns the rate of a large transfer: the largest part of a transfer's time that grows with its bytes.
double ns_per_elem(const comm::RooflinePrice& price, Op op, Axis axis, int ranks, DType dtype) {
  constexpr int64_t kMany = int64_t{1} << 34;
  if (ranks <= 1) return 0;
  const comm::WireCost cost = price.wire(op, Algorithm::direct, axis, ranks, kMany, dtype);
  return cost.wire_ns >= comm::kLongestTransferNs ? 0 : static_cast<double>(cost.wire_ns) / static_cast<double>(kMany);
}

}  // namespace

const char* name_of(Limit limit) {
  switch (limit) {
    case Limit::compute:
      return "compute";
    case Limit::bubble:
      return "compute and the bubble of the pipeline";
    case Limit::tensor:
      return "messages inside layers";
    case Limit::states:
      return "gradients and parameters on the wire";
  }
  return "?";
}

struct LayoutBounds::Works {
  std::array<PlaceWorks, kPlaces> places;
  int64_t activation_bytes = 0;  // of a layer and micro-batch
  DType dtype = DType::f32;
};

LayoutBounds::LayoutBounds(Machine machine) : machine_(std::move(machine)) {}
LayoutBounds::~LayoutBounds() = default;

namespace {

Job few_layers(const JobRequest& request, int layers, bool splits) {
  models::ModelOptions sizes = model_options(request);
  sizes.layers = layers;
  sizes.window_layers.clear();  // the cheapest layers, because a bound must hold for each one
  sizes.ranks = 1;
  sizes.micro_batches = 1;
  sizes.split_backward = splits;
  PlanOptions options = plan_options(request);
  options.sizes = {
      .data = 1, .context = request.config.layout().context, .pipeline = 1, .tensor = request.config.layout().tensor};
  options.sharding = {};
  options.snapshots = false;
  options.reduce_wire = DType::f32;
  options.error_feedback = options.sums_by_exchange = false;
  options.layers = {layers};
  options.schedule = make_schedule(splits ? ScheduleKind::zb_h1 : ScheduleKind::one_f_one_b, {});
  Buffers buffers;
  ModelSpec model = models::build_model(sizes, buffers);
  return build_job(std::move(model), std::move(buffers), options);
}

Place place_of(int layer, int layers) { return layer < 0 ? kEmbedding : layer >= layers ? kHead : kLayer; }

}  // namespace

namespace {

bool splits_backward(const RunConfig& run) {
  return slipstream::splits_backward(run.pipeline.schedule) && run.parallel.pipeline > 1;
}

/// Returns all keys of the run file except those that few_layers() sets itself and differences that it does not read. A
/// key that is not named here costs one more job of three layers where it varies, and never gives a wrong bound.
RunConfig key_of(const RunConfig& run) {
  RunConfig read = run;
  read.model.layers = std::min<int64_t>(kFewLayers, run.model.layers);
  read.model.window_layers.clear();
  read.train.global_batch_size = 0;
  read.parallel.data = read.parallel.pipeline = 1;
  read.zero = {.stage = std::min<int64_t>(run.zero.stage, 2)};
  read.pipeline = {.schedule = splits_backward(run) ? ScheduleKind::zb_h1 : ScheduleKind::one_f_one_b};
  return read;
}

}  // namespace

const LayoutBounds::Works& LayoutBounds::works_of(const ResolvedConfig& config) {
  const RunConfig& run = *config;
  const bool splits = splits_backward(run);
  std::unique_ptr<Works>& known = known_[key_of(run)];
  if (known) return *known;
  const JobRequest request{.config = config, .machine = machine_};
  const int layers = static_cast<int>(std::min<int64_t>(kFewLayers, run.model.layers));
  const Job job = few_layers(request, layers, splits);
  const comm::RooflinePrice price = price_of(run, machine_, job.mesh);
  auto works = std::make_unique<Works>();
  works->dtype = job.model.dtype;
  std::vector<int> pass_of(job.model.pieces.size(), -1);
  for (const Chunk& chunk : job.chunks)
    for (Pass pass : {Pass::forward, Pass::backward, Pass::weight})
      for (uint32_t piece : chunk.pieces(pass)) pass_of[piece] = static_cast<int>(pass);
  // The cheapest of the layers stands for all of them.
  std::vector<PlaceWorks> of_layer(static_cast<size_t>(layers));
  const auto at = [&](int layer) -> PlaceWorks& {
    const Place place = place_of(layer, layers);
    return place == kLayer ? of_layer[static_cast<size_t>(layer)] : works->places[place];
  };
  for (ItemId i = 0; i < job.train().spine.size(); ++i) {
    const uint32_t index = job.train().spine[i].piece;
    if (job.train().spine[i].op != Op::compute || index >= pass_of.size() || pass_of[index] < 0) continue;
    const Piece& piece = job.model.pieces[index];
    PlaceWorks& place = at(piece.layer);
    place.pass_ns[static_cast<size_t>(pass_of[index])] += price.local_ns(job.train(), i);
    for (const Work& work : piece.works) place.seconds += price.seconds(work.cost);
    place.communications.insert(place.communications.end(), piece.communications.begin(), piece.communications.end());
  }
  for (const ParameterSpec& parameter : job.model.parameters) at(parameter.layer).elems += parameter.elems;
  works->places[kLayer] = of_layer[of_layer.size() / 2];
  for (size_t pass = 0; pass < 3; ++pass)
    for (const PlaceWorks& each : of_layer)
      works->places[kLayer].pass_ns[pass] = std::min(works->places[kLayer].pass_ns[pass], each.pass_ns[pass]);
  if (layers == kFewLayers)
    works->activation_bytes = job.buffers.bytes(Owner::activations) -
                              few_layers(request, layers - 1, splits).buffers.bytes(Owner::activations);
  known = std::move(works);
  return *known;
}

namespace {

/// Returns the division of layers by partition_layers(), from the costs of one layer and of the ends.
std::vector<int> layers_of_parts(const RunConfig& run, const std::array<PlaceWorks, kPlaces>& places) {
  const int parts = static_cast<int>(run.parallel.pipeline * run.pipeline.virtual_stages);
  if (!run.pipeline.layers.empty()) return {run.pipeline.layers.begin(), run.pipeline.layers.end()};
  if (parts == 1) return {static_cast<int>(run.model.layers)};
  ModelSpec outline;
  outline.layers = static_cast<int>(run.model.layers);
  const auto add = [&](int layer, Place place) {
    Work work;
    work.cost.flops = static_cast<int64_t>(places[place].seconds * 1e12);
    outline.forward.push_back(static_cast<uint32_t>(outline.pieces.size()));
    outline.pieces.push_back({.name = "", .layer = layer, .works = {work}, .ready = {}});
  };
  add(-1, kEmbedding);
  for (int layer = 0; layer < outline.layers; ++layer) add(layer, kLayer);
  add(outline.layers, kHead);
  return balanced_layers(outline, parts, [](const Cost& cost) { return static_cast<double>(cost.flops); });
}

}  // namespace

namespace {

using Places = std::array<PlaceWorks, kPlaces>;
using PerPort = std::array<double, 2>;  // in ns, for links inside a node and between nodes

ResolvedConfig without_recomputation(const ResolvedConfig& config) {
  if (config->train.recompute == Recomputation::none) return config;
  RunConfig plain = *config;
  plain.train.recompute = Recomputation::none;
  return resolve(plain, config.facts());
}

ResolvedConfig with_all_layers(const ResolvedConfig& config) {
  RunConfig all = *config;
  all.train.recompute_layers = 0;
  return resolve(all, config.facts());
}

/// A stage's works of one micro-batch, and its parameters.
struct StageSum {
  std::array<int64_t, kPlaces> times{};  // the layers, and 0 or 1 of each end
  int64_t ns = 0, elems = 0;

  int64_t layers() const { return times[kLayer] + times[kAgain]; }
};

/// `again` has the layers of every part in place kAgain.
std::vector<StageSum> sums_of_stages(const Places& places, const std::vector<int>& layers,
                                     const StagePlacement& placement, size_t stages, int64_t again) {
  std::vector<StageSum> sums(stages);
  const auto sum_of = [&](size_t part) -> StageSum& {
    return sums[static_cast<size_t>(placement.stage_of(static_cast<int>(part)))];
  };
  for (size_t part = 0; part < layers.size(); ++part) {
    const int64_t own_again = std::min<int64_t>(again, layers[part]);
    sum_of(part).times[kAgain] += own_again;
    sum_of(part).times[kLayer] += layers[part] - own_again;
  }
  sum_of(0).times[kEmbedding] = sum_of(layers.size() - 1).times[kHead] = 1;
  for (StageSum& sum : sums)
    for (size_t place = 0; place < kPlaces; ++place) {
      sum.ns += sum.times[place] * places[place].ns();
      sum.elems += sum.times[place] * places[place].elems;
    }
  return sums;
}

/// Returns the fill of the last stage, whose first part is `first`, with its first works, and the drain of its last
/// works. Weight gradients of a split backward pass may run after the input gradients have left, and recomputation
/// before the output gradients arrive, so `awaiting` has neither.
int64_t outside_ns(const Places& places, const Places& awaiting, const std::vector<int>& layers, int first) {
  const auto both_ns = [&](Place place) { return places[place].pass_ns[0] + awaiting[place].pass_ns[1]; };
  int64_t ns = first > 0 ? both_ns(kEmbedding) : 0;
  for (int part = 0; part < first; ++part) ns += layers[static_cast<size_t>(part)] * both_ns(kLayer);
  return ns;
}

PerPort sent_in_layers(const StageSum& sum, const Places& places, const comm::RooflinePrice& price, const Mesh& mesh) {
  PerPort sent{};
  for (size_t place = 0; place < kPlaces; ++place)
    for (const Communication& c : places[place].communications) {
      const comm::WireCost cost =
          price.wire(c.op, Algorithm::direct, c.axis, mesh.group_size(c.axis), c.elems, c.dtype);
      sent[price.port(c.axis) % sent.size()] += static_cast<double>(sum.times[place] * cost.wire_ns);
    }
  return sent;
}

/// Returns the gradients and parameters of a step at the rate of large messages.
PerPort sent_states(const RunConfig& run, const StageSum& sum, const Places& places, const comm::RooflinePrice& price,
                    const Mesh& mesh, int64_t micro_batches) {
  PerPort sent{};
  const Placement placement = placement_of(run, mesh);
  const auto elems = static_cast<double>(sum.elems);
  for (const Transfer& transfer : placement.transfers(mesh, 1)) {
    if (transfer.of_shard) continue;  // a bound needs not all of them
    const int ranks = mesh.group_size(transfer.axis);
    double times = 1;
    if (transfer.op == Op::all_gather && placement.sharding.parameters && run.zero.reshard_after_forward &&
        run.zero.persistence_threshold_bytes == 0) {
      // Layers pass through slots in both passes of every micro-batch. Those that are still in a slot are not gathered
      // again.
      const auto layers = static_cast<double>(std::max<int64_t>(1, sum.layers()));
      const double kept = std::min(1.0, static_cast<double>(run.zero.prefetch_depth + 2) / layers);
      // The share of the layers in the parameters.
      const double share = static_cast<double>(sum.layers() * places[kLayer].elems) / std::max(1.0, elems);
      times = std::max(1.0, 2 * static_cast<double>(micro_batches) * (1 - kept) * share);
    }
    const double part = transfer.op == Op::all_reduce ? elems : elems / ranks;  // what one rank sends
    sent[price.port(transfer.axis) % sent.size()] +=
        times * part * ns_per_elem(price, transfer.op, transfer.axis, ranks, transfer.wire.element);
  }
  return sent;
}

/// Returns the bytes of a parameter with its gradient and states, for the optimizer that keeps least.
double bytes_of_elem(const ResolvedConfig& config, const Machine& machine, const Mesh& mesh) {
  const Placement placement = placement_of(*config, mesh);
  double least = 9e18;
  for (const GroupRule& group : plan_options({.config = config, .machine = machine}).groups) {
    const StateBytes states = state_bytes(config->train.dtype, placement.sharding, *group.optimizer);
    least = std::min(least,
                     static_cast<double>(states.whole) + static_cast<double>(states.shared) / placement.shards(mesh));
  }
  return least;
}

}  // namespace

LayoutBound LayoutBounds::bound(const ResolvedConfig& config) {
  constexpr double kRounding = 0.999;  // buckets and chunks round their transfers to nanoseconds
  const RunConfig& run = *config;
  // Layers with experts and without differ, and ranks may hold some of the experts: such layouts have no bound.
  if (run.model.experts.count > 0) return {};
  // The works of layers that recompute, and those of the others.
  const bool some = run.train.recompute != Recomputation::none && run.train.recompute_layers > 0;
  const Works& again = works_of(some ? with_all_layers(config) : config);
  const Works& works = some ? works_of(without_recomputation(config)) : again;
  const Works& awaiting = run.parallel.pipeline > 1 ? works_of(without_recomputation(config)) : works;
  Places places = works.places;
  places[kAgain] = again.places[kLayer];
  const MeshSizes& layout = config.layout();
  const Mesh mesh(layout, run.parallel.order);
  const comm::RooflinePrice price = price_of(run, machine_, mesh);
  const int64_t micro_batches = config.batch().micro_batches;
  const std::vector<int> layers = layers_of_parts(run, places);
  const auto stages = static_cast<size_t>(layout.pipeline);
  const StagePlacement placement = stage_placement(config);
  const std::vector<StageSum> sums = sums_of_stages(places, layers, placement, stages, run.train.recompute_layers);
  LayoutBound bound;
  const auto consider = [&](double ns, Limit limit) {
    if (static_cast<int64_t>(ns) <= bound.step_ns) return;
    bound.step_ns = static_cast<int64_t>(ns);
    bound.limit = limit;
  };
  for (const StageSum& sum : sums) consider(static_cast<double>(micro_batches * sum.ns), Limit::compute);
  if (stages > 1) {
    const int64_t hop_elems = run.train.micro_batch_size * (run.train.sequence_length / layout.context) *
                              run.model.width / (run.parallel.sequence_parallel ? layout.tensor : 1);
    const comm::WireCost hop =
        price.wire(Op::send, Algorithm::direct, Axis::pipeline, layout.pipeline, hop_elems, works.dtype);
    // The last works of a stage may be weight gradients of a split backward pass, for which no other stage waits.
    int64_t last_ns = sums.back().ns;
    for (size_t place = 0; place < kPlaces; ++place) last_ns -= sums.back().times[place] * places[place].pass_ns[2];
    consider(static_cast<double>(outside_ns(places, awaiting.places, layers, placement.part(layout.pipeline - 1, 0)) +
                                 2 * static_cast<int64_t>(stages - 1) * (hop.latency_ns + hop.wire_ns) +
                                 micro_batches * last_ns),
             Limit::bubble);
  }
  const double bytes_each = bytes_of_elem(config, machine_, mesh), computed_ns = static_cast<double>(bound.step_ns);
  double exposed_ns = 0;
  for (size_t stage = 0; stage < stages; ++stage) {
    const StageSum& sum = sums[stage];
    const PerPort in_layers = sent_in_layers(sum, places, price, mesh),
                  states = sent_states(run, sum, places, price, mesh, micro_batches);
    for (size_t port = 0; port < in_layers.size(); ++port) {
      const double layers_ns = static_cast<double>(micro_batches) * in_layers[port];
      if (layout.tensor > 1)
        exposed_ns = std::max(exposed_ns, layers_ns / static_cast<double>(run.overlap.tensor_chunks));
      consider(kRounding * layers_ns, Limit::tensor);
      consider(kRounding * (layers_ns + states[port]), Limit::states);
    }
    const int64_t alive = least_in_flight(run.pipeline.schedule,
                                          {.stages = layout.pipeline, .micro_batches = static_cast<int>(micro_batches)},
                                          static_cast<int>(stage));
    const auto states_bytes = static_cast<int64_t>(static_cast<double>(sum.elems) * bytes_each);
    const int64_t kept_bytes = sum.times[kLayer] * works.activation_bytes + sum.times[kAgain] * again.activation_bytes;
    bound.memory_bytes = std::max(bound.memory_bytes, states_bytes + alive * kept_bytes);
  }
  bound.expected_ns = std::max(bound.step_ns, static_cast<int64_t>(computed_ns + exposed_ns));
  return bound;
}

}  // namespace slipstream::planner
