// SPDX-License-Identifier: Apache-2.0
#pragma once
// The benchmarks and their options.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/config/load.h"

namespace slipstream::bench {

/// Options of every benchmark of a run file.
struct BenchOptions : RunSource {
  int steps = 30;   // interleaved, counted steps
  std::string csv;  // the path of the table; empty: none
};

/// slipstream bench overlap: times the gradient reduce modes with their bounds.
struct OverlapOptions : BenchOptions {
  std::string compute = "real";      // real | paced
  std::vector<double> ratios;        // communication / compute; empty: the link of the run file
  std::string ratio_of = "compute";  // compute or backward: the denominator of `ratios`
  /// ZeRO stages to measure instead; a ratio is then a layer's gather / its forward pass.
  std::vector<int> zero;
  std::vector<int> prefetch = {1, 2};  // values of zero.prefetch_depth, for stage 3
  bool ablate = false;                 // measure one changed setting at a time instead, paced as with `zero`
  double layer_ms = 8;                 // with `zero` and `ablate`: the forward pass of a paced layer
  int ranks = 0;                       // the ranks that one process imitates; 0: the ranks of the launcher
  std::vector<std::string> forms;      // forms of the emulated link, one table each; empty: that of the run file
};
/// Blocks. Collective. Returns the exit code. Throws: Error in a world of one rank.
int bench_overlap(const OverlapOptions& options);

/// slipstream bench pipeline: compares the bubble of every schedule with its closed form.
struct PipelineOptions : BenchOptions {
  std::string compute = "paced";  // real | paced
  std::vector<double> ratios;     // the transfer between stages / the forward pass; empty: the link of the run file
  double forward_ms = 20;         // paced: the time of a stage and micro-batch
};
/// Blocks. Collective. Returns the exit code. Throws: Error in a world of one rank.
int bench_pipeline(const PipelineOptions& options);

/// slipstream bench layers: measures communication inside layers, for tensor and context parallelism.
struct LayersOptions : BenchOptions {
  std::vector<double> ratios;              // communication / compute
  double layer_ms = 8;                     // the forward pass of a layer
  std::vector<int> chunks = {1, 2, 4, 8};  // values of overlap.tensor_chunks
};
/// Blocks. Collective. Returns the exit code. Throws: Error in a world of one rank.
int bench_layers(const LayersOptions& options);

/// slipstream bench kernels: times every op with its bound.
struct KernelsOptions {
  int rounds = 30;                 // measured rounds
  std::string csv;                 // the path of the table; empty: none
  std::string only;                // text that rows of "op dtype size" contain; empty: all rows
  std::vector<int> threads = {1};  // one table for each value
};
/// Blocks. Returns the exit code. Throws: ConfigError, ResourceError.
int bench_kernels(const KernelsOptions& options);

/// slipstream bench products: times the algorithms of cuBLASLt for every product of a run.
struct ProductsOptions : BenchOptions {
  int ranks = 0;                              // the ranks of the layout; 0: one
  int64_t rotate_bytes = int64_t{256} << 20;  // operands rotate through this much memory
  double seconds = 0;                         // no product starts after this time; 0: no limit
  bool again = false;                         // time the products of the table again
};
/// Blocks. Returns the exit code. Throws: ConfigError, ResourceError.
int bench_products(const ProductsOptions& options);

/// slipstream bench step: times whole training steps by the host's clock.
struct StepOptions : BenchOptions {
  std::string export_dir;   // the folder of the exported initial weights and batches; empty: no export
  int in_a_row = 1;         // the steps that are issued one after the other; a time is their mean
  bool plain_loop = false;  // also time the same works in a plain loop
  double line_rate = 0;     // bytes per second of the link for the printed bound; 0: no bound
  int ranks = 0;            // the ranks that this link connects; 0: the ranks of the launcher
};
/// Blocks. Collective. Returns the exit code. Throws: Error in a world of one rank.
int bench_step(const StepOptions& options);

/// slipstream bench comm: measures every verb and algorithm of the run's communicator by size, and the link that
/// explains the times.
struct CommBenchOptions : BenchOptions {
  std::string smallest = "1KiB", largest = "256MiB";  // sizes of operations
  std::vector<std::string> verbs, algorithms;         // empty: all
  double seconds = 1;                                 // the time limit of a row
  std::string line_rate;                              // the rate of the link, for instance 1Gbit/s; empty: not compared
  std::string machine;                                // the path of the machine file to write; empty: none
};
/// Blocks. Collective. Returns the exit code, which is 6 if a result is wrong. Throws: Error in a world of one rank.
int bench_comm(const CommBenchOptions& options);

}  // namespace slipstream::bench
