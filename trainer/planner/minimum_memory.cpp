// SPDX-License-Identifier: Apache-2.0
// Extrapolates the parameter count from two small models.

#include "trainer/planner/minimum_memory.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/plan/memory.h"

namespace slipstream::planner {
namespace {

/// Counts in floating point, because a run file may request more bytes than 64 bits can count.
struct Parameters {
  double of_layer = 0, besides = 0;
  double of_own_experts = 0;  // in a layer: those of this rank, if ranks divide the experts
};

Parameters count_parameters(const models::ModelOptions& sizes) {
  const auto model = [&](int64_t layers) {
    models::ModelOptions few = sizes;
    few.layers = layers;
    few.cuts.clear();
    few.ends_apart = false;
    Buffers buffers;
    return models::build_model(few, buffers);
  };
  const auto elems = [&](int64_t layers) { return static_cast<double>(model(layers).parameter_elems()); };
  if (sizes.experts.count > 0) {  // layers with experts and without differ
    const ModelSpec all = model(sizes.layers);
    int64_t own = 0;
    for (const ParameterSpec& parameter : all.parameters)
      if (parameter.is_of_experts()) own += parameter.elems;
    const auto layers = static_cast<double>(sizes.layers);
    return {.of_layer = static_cast<double>(all.parameter_elems() - own) / layers,
            .of_own_experts = static_cast<double>(own) / layers};
  }
  const double one = elems(1), layer = elems(2) - one;
  return {.of_layer = layer, .besides = one - layer};
}

/// Returns the bytes on the mean pipeline stage, which are at most those of the largest stage.
int64_t least_bytes_of(const Parameters& parameters, const models::ModelOptions& sizes, const PlanOptions& options) {
  const Mesh mesh(options.sizes, options.mesh_order);
  // How the parameters divide among groups is not known yet, so the bound takes the optimizer that keeps least.
  const auto bytes_of_elem = [&](bool experts) {
    const Placement placement =
        place(options.sharding, mesh, experts, {sizes.dtype, options.reduce_wire, options.gather_wire});
    double least = 9e18;
    for (const GroupRule& group : options.groups) {
      const StateBytes states = state_bytes(sizes.dtype, placement.sharding, *group.optimizer);
      least = std::min(least,
                       static_cast<double>(states.whole) + static_cast<double>(states.shared) / placement.shards(mesh));
    }
    return least;
  };
  const auto layers = static_cast<double>(sizes.layers);
  const double bytes = (parameters.besides + layers * parameters.of_layer) * bytes_of_elem(false) +
                       layers * parameters.of_own_experts * bytes_of_elem(true);
  return static_cast<int64_t>(std::min(9e18, bytes / mesh.stages()));
}

}  // namespace

int64_t minimum_bytes(const models::ModelOptions& sizes, const PlanOptions& options) {
  return least_bytes_of(count_parameters(sizes), sizes, options);
}

void check_minimum_memory(const models::ModelOptions& sizes, const PlanOptions& options, const Machine& machine) {
  // Ranks of several hosts plan with the smallest memory of any host, and other hosts may have more.
  constexpr double kHopeless = 4;
  if (machine.memory_bytes <= 0) return;
  const Parameters parameters = count_parameters(sizes);
  const int64_t need = least_bytes_of(parameters, sizes, options);
  const double times = static_cast<double>(need) / static_cast<double>(machine.memory_bytes);
  if (times <= kHopeless) return;
  throw ResourceError(
      "[plan] {} layers of {} parameters and {} other parameters need at least {} per rank with their gradients and "
      "optimizer states, {:.0f} times the {} of {}. No plan was made. Use {}more ranks with parallel.pipeline or "
      "parallel.tensor, or a smaller model.",
      sizes.layers, format_count(parameters.of_layer + parameters.of_own_experts), format_count(parameters.besides),
      format_bytes(need), times, format_bytes(machine.memory_bytes), machine.name,
      options.sharding.parameters ? "" : "zero.stage = 3, ");
}

}  // namespace slipstream::planner
