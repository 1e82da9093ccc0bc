// SPDX-License-Identifier: Apache-2.0
// Costs of a layer and of the ends of a model, from a job of three layers, and the sums over a layout.

#include "planner/layout_bounds.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include <fmt/core.h>

#include "engine/base/check.h"
#include "engine/plan/build_job.h"
#include "engine/plan/memory.h"
#include "engine/plan/stages.h"
#include "planner/plan_options.h"

namespace slipstream::planner {
namespace {

/// Parts of a model with costs of their own.
enum Place : size_t { kEmbedding, kLayer, kHead, kPlaces };

struct PlaceWorks {
  std::array<int64_t, 3> pass_ns{};  // by Pass
  double seconds = 0;                // of both passes without launches, by which layers are divided
  int64_t elems = 0;                 // of parameters
  std::vector<Communication> communications;

  int64_t ns() const { return pass_ns[0] + pass_ns[1] + pass_ns[2]; }
};

constexpr int kFewLayers = 3;  // one of them is neither first nor last

/// The largest part of a transfer's time that grows with its bytes: the rate of a large one.
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
  sizes.ranks = 1;
  sizes.micro_batches = 1;
  sizes.split_backward = splits;
  PlanOptions options = plan_options(request);
  options.sizes = {
      .data = 1, .context = request.config.layout().context, .pipeline = 1, .tensor = request.config.layout().tensor};
  options.zero_stage = 0;
  options.snapshots = false;
  options.wire_dtype = DType::f32;
  options.error_feedback = options.sums_by_exchange = false;
  options.layers = {layers};
  options.schedule = make_schedule(splits ? ScheduleKind::zb_h1 : ScheduleKind::one_f_one_b, {});
  Buffers buffers;
  ModelSpec model = models::build_model(sizes, buffers);
  return build_job(std::move(model), std::move(buffers), options);
}

Place place_of(int layer, int layers) { return layer < 0 ? kEmbedding : layer >= layers ? kHead : kLayer; }

}  // namespace

const LayoutBounds::Works& LayoutBounds::works_of(const ResolvedConfig& config) {
  const RunConfig& run = *config;
  const bool splits = run.pipeline.schedule == ScheduleKind::zb_h1 && run.parallel.pipeline > 1;
  const std::string key = fmt::format("{} {} {} {} {} {} {} {} {} {}", run.parallel.tensor, run.parallel.context,
                                      run.train.micro_batch_size, static_cast<int>(run.train.recompute),
                                      run.parallel.sequence_parallel, run.overlap.tensor_chunks, splits,
                                      run.zero.stage >= 2, run.overlap.bucket_size_bytes, run.zero.stage > 0);
  std::unique_ptr<Works>& known = known_[key];
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
  // The cheapest of the layers stands for all.
  std::vector<PlaceWorks> of_layer(static_cast<size_t>(layers));
  const auto at = [&](int layer) -> PlaceWorks& {
    const Place place = place_of(layer, layers);
    return place == kLayer ? of_layer[static_cast<size_t>(layer)] : works->places[place];
  };
  for (ItemId i = 0; i < job.train.spine.size(); ++i) {
    const uint32_t index = job.train.spine[i].piece;
    if (job.train.spine[i].op != Op::compute || index >= pass_of.size() || pass_of[index] < 0) continue;
    const Piece& piece = job.model.pieces[index];
    PlaceWorks& place = at(piece.layer);
    place.pass_ns[static_cast<size_t>(pass_of[index])] += price.local_ns(job.train, i);
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

/// The division of layers by partition_layers(), from the costs of one layer and of the ends.
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

ResolvedConfig without_recomputation(const ResolvedConfig& config) {
  if (config->train.recompute == Recomputation::none) return config;
  RunConfig plain = *config;
  plain.train.recompute = Recomputation::none;
  return resolve(plain, config.facts());
}

}  // namespace

LayoutBound LayoutBounds::bound(const ResolvedConfig& config) {
  const RunConfig& run = *config;
  const Works& works = works_of(config);
  const Works& awaiting = run.parallel.pipeline > 1 ? works_of(without_recomputation(config)) : works;
  const Layout& layout = config.layout();
  const Mesh mesh({.data = layout.data,
                   .context = layout.context,
                   .pipeline = layout.pipeline,
                   .tensor = layout.tensor,
                   .data_inner = static_cast<int>(run.zero.shard_size)},
                  run.parallel.order);
  const comm::RooflinePrice price = price_of(run, machine_, mesh);
  const int64_t micro_batches = config.batch().micro_batches;
  const bool splits = run.pipeline.schedule == ScheduleKind::zb_h1 && layout.pipeline > 1;
  const std::vector<int> layers = layers_of_parts(run, works.places);
  const size_t stages = static_cast<size_t>(layout.pipeline), parts = layers.size();

  struct StageSum {
    int64_t ns = 0, elems = 0, layers = 0;
    bool has_embedding = false, has_head = false;
  };
  std::vector<StageSum> sums(stages);
  int64_t outside_ns = 0;  // fill and drain of the last stage
  for (size_t part = 0; part < parts; ++part) {
    StageSum& sum = sums[part % stages];
    std::array<int64_t, 3> pass_ns{};
    const auto add = [&](Place place, int64_t times) {
      for (size_t pass = 0; pass < 3; ++pass) pass_ns[pass] += times * works.places[place].pass_ns[pass];
      sum.elems += times * works.places[place].elems;
    };
    add(kLayer, layers[part]);
    sum.layers += layers[part];
    if (part == 0) add(kEmbedding, 1), sum.has_embedding = true;
    if (part + 1 == parts) add(kHead, 1), sum.has_head = true;
    sum.ns += pass_ns[0] + pass_ns[1] + pass_ns[2];
    // Weight gradients of a split backward pass may run after the input gradients have left, and recomputation before
    // the output gradients arrive.
    if (part + 1 < stages)
      outside_ns += pass_ns[0] + layers[part] * awaiting.places[kLayer].pass_ns[1] +
                    (part == 0 ? awaiting.places[kEmbedding].pass_ns[1] : 0);
  }
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
    const int64_t hops_ns = 2 * static_cast<int64_t>(stages - 1) * (hop.latency_ns + hop.wire_ns);
    // The last works of a stage with a split backward pass may be weight gradients, which no other stage awaits.
    int64_t last_ns = micro_batches * sums.back().ns;
    if (splits) {
      const PlaceWorks &layer = works.places[kLayer], &head = works.places[kHead];
      last_ns -= micro_batches * (sums.back().layers * layer.pass_ns[2] + head.pass_ns[2]);
    }
    consider(static_cast<double>(outside_ns + hops_ns + last_ns), Limit::bubble);
  }

  std::array<double, 2> tensor_ns{}, states_ns{};  // by port, of the stage that sends most
  const size_t ports = tensor_ns.size();
  const std::vector<GroupRule> groups = plan_options({.config = config, .machine = machine_}).groups;
  for (const StageSum& sum : sums) {
    std::array<double, 2> sent_ns{};
    for (size_t place = 0; place < kPlaces; ++place) {
      const int64_t times = place == kLayer ? sum.layers : place == kEmbedding ? sum.has_embedding : sum.has_head;
      for (const Communication& c : works.places[place].communications)
        sent_ns[price.port(c.axis) % ports] += static_cast<double>(
            times * micro_batches *
            price.wire(c.op, Algorithm::direct, c.axis, mesh.group_size(c.axis), c.elems, c.dtype).wire_ns);
    }
    const int zero = static_cast<int>(run.zero.stage), replicas = mesh.group_size(Axis::replica);
    const bool hybrid = zero > 0 && mesh.group_size(Axis::data_outer) > 1;
    const Axis shard = hybrid ? Axis::data_inner : Axis::replica;
    const int sharing = mesh.group_size(shard);
    const DType gradients = run.comm.quantize == Quantize::int8            ? DType::u8
                            : run.comm.grad_dtype == DTypeChoice::bfloat16 ? DType::bf16
                                                                           : DType::f32;
    const DType values = run.zero.gather_dtype == DTypeChoice::int8 ? DType::u8 : works.dtype;
    const auto elems = static_cast<double>(sum.elems);
    std::array<double, 2> step_ns{};
    if (replicas > 1 && zero == 0)
      step_ns[price.port(Axis::replica) % ports] +=
          elems * ns_per_elem(price, Op::all_reduce, Axis::replica, replicas, gradients);
    if (replicas > 1 && zero > 0) {
      const double reduce = elems / sharing * ns_per_elem(price, Op::reduce_scatter, shard, sharing, gradients);
      const double gather = elems / sharing * ns_per_elem(price, Op::all_gather, shard, sharing, values);
      // Layers of ZeRO-3 pass through slots in both passes of every micro-batch; those still in a slot are not gathered
      // again.
      const double kept = std::min<double>(
          1, static_cast<double>(run.zero.prefetch_depth + 2) / static_cast<double>(std::max<int64_t>(1, sum.layers)));
      const double layer_share = static_cast<double>(sum.layers * works.places[kLayer].elems) / std::max(1.0, elems);
      const bool slots = zero == 3 && run.zero.reshard_after_forward && run.zero.persistence_threshold_bytes == 0;
      const double times = slots ? 2 * static_cast<double>(micro_batches) * (1 - kept) * layer_share : 1;
      step_ns[price.port(shard) % ports] += reduce + std::max(1.0, times) * gather;
    }
    for (size_t port = 0; port < ports; ++port) {
      tensor_ns[port] = std::max(tensor_ns[port], sent_ns[port]);
      states_ns[port] = std::max(states_ns[port], step_ns[port] + sent_ns[port]);
    }
    // Memory: states, and the activations of the micro-batches in flight.
    double each = 9e18;
    for (const GroupRule& group : groups) {
      const StateBytes states = state_bytes(works.dtype, replicas > 1 ? zero : 0, *group.optimizer);
      each = std::min(
          each, static_cast<double>(states.whole) + static_cast<double>(states.shared) / (zero > 0 ? sharing : 1));
    }
    const auto stage = static_cast<int64_t>(&sum - sums.data());
    const int64_t alive = std::min<int64_t>(micro_batches, static_cast<int64_t>(stages) - stage);
    bound.memory_bytes =
        std::max(bound.memory_bytes, static_cast<int64_t>(elems * each) + alive * sum.layers * works.activation_bytes);
  }
  constexpr double kRounding = 0.999;  // buckets and chunks round their transfers in nanoseconds
  for (size_t port = 0; port < ports; ++port) {
    consider(kRounding * tensor_ns[port], Limit::tensor);
    consider(kRounding * states_ns[port], Limit::states);
  }
  return bound;
}

}  // namespace slipstream::planner
