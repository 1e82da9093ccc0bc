// SPDX-License-Identifier: Apache-2.0
// Runs slipstream bench products. One step lists the products of a run. Each product is timed with every algorithm of
// cuBLASLt, and the table is written after each product.

#include "trainer/bench/bench.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/log.h"
#include "engine/base/print.h"
#include "kernels/cuda/algorithms.h"
#include "kernels/cuda/workspace.h"
#include "trainer/bench/harness.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/planner/planner.h"

namespace slipstream::bench {
namespace {

/// Returns the products of one training step, those with the largest total work first: fused gradients and their
/// replacements.
std::vector<kernels::ProductShape> products_of_a_step(const Setting& setting, int ranks) {
  const auto& [world, assignment, config] = setting;
  kernels::use_algorithms({});  // a table would hide the products that it replaces
  Candidate step("one step", world, assignment, config,
                 build_bench_job(assignment, bench_machine(world, assignment, config, planner::threads_of(config, 1)),
                                 config, ranks, 0),
                 0);
  step.run(1, false);
  return kernels::by_flops(kernels::chosen_algorithms());
}

}  // namespace

int bench_products(const ProductsOptions& options) {
  return on_world(options, [&](const Setting& setting) {
    const auto& [world, assignment, config] = setting;
    world.together([&] {
      if (world.size() > 1)
        throw ConfigError(
            "[bench products] runs in one process, but {} were started. Start it without mpirun. --ranks sets the "
            "layout.",
            world.size());
    });
    if (assignment.kind != DeviceKind::cuda)
      throw ConfigError(
          "[bench] products needs a GPU, but this run is on the CPU. Set device.kind = \"cuda\" on a machine "
          "with a GPU.");
    const kernels::GemmLibrary library = kernels::gemm_library();
    const std::string path = kernels::algorithms_path(config.device.algorithms, library);
    if (path.empty()) throw ConfigError("[bench] the table has no path. Set device.algorithms to a path, or set HOME.");
    const std::vector<kernels::ProductShape> products = products_of_a_step(setting, std::max(1, options.ranks));
    const std::unique_ptr<Device> device = assignment.make_device();
    const std::unique_ptr<Stream> stream = device->make_stream({.name = "products"});
    std::string warning;
    kernels::AlgorithmTable table = kernels::read_algorithms(path, library, warning);
    if (!warning.empty()) log_warn("{}", warning);
    if (options.again) {
      for (const kernels::ProductShape& product : products) table.erase(product);
      kernels::write_algorithms(path, table);
    }
    const auto timed_before = std::count_if(products.begin(), products.end(),
                                            [&](const kernels::ProductShape& p) { return table.find(p) != nullptr; });
    print_result("{}, cuBLASLt {}: {} products, {} timed before\n{:>10}{:>10}{:>7}{:>10}  product\n", library.card,
                 library.version, products.size(), timed_before, "first us", "best us", "gain", "apart us");
    flush_printed();
    size_t added = 0, left = 0;
    const auto keep = [&](const kernels::ProductShape& product, const kernels::TimedAlgorithm& timed) {
      kernels::write_algorithms(path, table);
      ++added;
      print_result("{:>10.2f}{:>10.2f}{:>7.2f}{:>10}  {}{}\n", timed.first_us, timed.us, timed.first_us / timed.us,
                   timed.apart_us > 0 ? fmt::format("{:.2f}", timed.apart_us) : "", kernels::text_of(product),
                   timed.apart_us == 0 ? ""
                   : timed.wins()      ? ": fused"
                                       : ": apart");
      flush_printed();
    };
    const Work search{"search", {}, {}, {}, [&](LaunchContext& context) {
                        kernels::prepare_stream(context.native_stream);
                        left = kernels::search_algorithms(context, products,
                                                          {.rounds = std::clamp(options.steps, 1, 9),
                                                           .rotate_bytes = options.rotate_bytes,
                                                           .seconds = options.seconds},
                                                          table, keep);
                        kernels::release_stream(context.native_stream);
                      }};
    stream->launch(search, {});
    stream->synchronize();
    print_result("{} of {} products timed: {}\n", static_cast<size_t>(timed_before) + added, products.size(), path);
    if (left > 0)
      print_result("{} products left after {} s. Run the same command again to continue with them.\n", left,
                   options.seconds);
  });
}

}  // namespace slipstream::bench
