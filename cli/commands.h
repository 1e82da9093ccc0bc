// SPDX-License-Identifier: Apache-2.0
#pragma once
// One function per subcommand. Each returns an exit code or throws an Error that carries one.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace slipstream::cli {

/// What train, plan, check and bench overlap share.
struct RunOptions {
  std::string run_file;
  std::vector<std::string> sets;  // --set key=value
};

struct TrainCommand : RunOptions {
  bool resume = false;
  bool dry_run = false;
  std::optional<int64_t> delay_seed;  // --inject-delays; at least 0
  bool check_hazards = false;
};
int train(const TrainCommand& command);

struct PlanCommand : RunOptions {
  int ranks = 0;        // 0: the launcher's
  std::string machine;  // path; empty: device.machine of the run file, else this host
  bool json = false;
  bool search = false;
  std::string schedule_csv;  // path to write the pipeline's schedule to; empty: none
};
int plan(const PlanCommand& command);
int check(const PlanCommand& command);

struct BenchCommand : RunOptions {
  int steps = 30;                // interleaved, counted
  std::string csv;               // path; empty: none
  std::string compute = "real";  // overlap, pipeline: real | paced
  std::vector<double>
      ratios;  // overlap: communication / compute; empty: the link of the run file; pipeline: hop / forward pass
  std::vector<int> zero;  // overlap: stages to measure instead of the ways of reducing; then a ratio is a layer's
                          // gather / its forward pass
  std::vector<int> prefetch = {1, 2};      // overlap: depths of stage 3
  bool ablate = false;                     // overlap: one knob at a time instead, paced as with --zero
  double layer_ms = 8;                     // overlap: forward, of a paced layer of ZeRO; layers: of every layer
  std::vector<int> chunks = {1, 2, 4, 8};  // layers: overlap.tensor_chunks
  double forward_ms = 20;                  // pipeline, paced: of a stage and micro-batch
  std::string export_dir;                  // step: where weights and batch are written; empty: nowhere
  bool plain_loop = false;                 // step: the same works in a plain loop
  double line_rate = 0;                    // step: bytes per second of the link whose bound is printed; 0: none
  int ranks = 0;  // step: on so many ranks; overlap, products: that one process imitates, 0: those started
  std::vector<std::string> forms;             // overlap: of the emulated link, one table each; empty: the run file's
  int64_t rotate_bytes = int64_t{256} << 20;  // products: operands come from so much memory in turn
  double seconds = 0;                         // products: after so long no product begins; 0: no limit
  bool again = false;                         // products: time those of the table again
  std::string only;                           // kernels: rows of "op dtype size" that hold this text; empty: all
  std::vector<int> threads;                   // kernels: one table each
};
int bench_overlap(const BenchCommand& command);
int bench_pipeline(const BenchCommand& command);
int bench_layers(const BenchCommand& command);
int bench_kernels(const BenchCommand& command);
int bench_step(const BenchCommand& command);
int bench_products(const BenchCommand& command);

struct GenerateCommand {
  std::string checkpoint;
  std::string prompt;
  std::vector<int32_t> prompt_ids;  // instead of a prompt; then ids are printed, too
  int tokens = 200;
  double temperature = 0.8;
  int top_k = 0;  // 0: all
  uint64_t seed = 1;
  std::string device = "auto";  // auto | cpu | cuda
};
int generate(const GenerateCommand& command);

struct TokenizeCommand {
  std::string text;
  std::string out;
  std::string tokenizer = "bytes";
};
int tokenize(const TokenizeCommand& command);

}  // namespace slipstream::cli
