// SPDX-License-Identifier: Apache-2.0
// The flags of slipstream bench and its benchmarks.

#include <memory>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "trainer/bench/bench.h"
#include "trainer/cli/command_line.h"

namespace slipstream::cli {
namespace {

void add_bench_flags(CLI::App* command, bench::BenchOptions& options) {
  add_run_source(command, options);
  command->add_option("--steps", options.steps, "number of measured steps");
  command->add_option("--csv", options.csv, "write the table to this file");
}

/// Adds a flag with a comma-separated list of values.
template <typename T>
CLI::Option* add_list(CLI::App* command, const std::string& name, std::vector<T>& values, const std::string& help) {
  return command->add_option(name, values, help)->delimiter(',')->allow_extra_args(false);
}

void add_overlap(CLI::App& bench, Run& chosen) {
  const auto options = std::make_shared<bench::OverlapOptions>();
  CLI::App* command = bench.add_subcommand("overlap", "measure the four gradient reduce modes and their bounds");
  add_bench_flags(command, *options);
  command->add_option("--compute", options->compute, "real: run the kernels; paced: sleep for their measured time")
      ->check(CLI::IsMember({"real", "paced"}));
  add_list(command, "--ratios", options->ratios,
           "communication / compute of the emulated links, for instance 0.5,1; default: the link of the run file, with "
           "--zero 0.2,0.4,0.6,0.8,1")
      ->check(positive())
      ->type_name("RATIO,...");
  command->add_option("--ratio-of", options->ratio_of, "denominator of --ratios: compute, or the backward pass alone")
      ->check(CLI::IsMember({"compute", "backward"}));
  add_list(
      command, "--zero", options->zero,
      "measure these ZeRO stages instead, for instance 1,3; paced; --ratios are a layer's gather / its forward pass")
      ->check(CLI::Range(0, 3))
      ->type_name("STAGE,...")
      ->excludes("--ratio-of");
  add_list(command, "--prefetch", options->prefetch,
           "with --zero: values of zero.prefetch_depth for stage 3, for instance 1,2")
      ->check(CLI::Range(0, 65536))
      ->type_name("DEPTH,...");
  command->add_option("--layer-ms", options->layer_ms, "with --zero and --ablate: time of the forward pass of a layer")
      ->check(positive());
  command
      ->add_flag("--ablate", options->ablate,
                 "compare the run file with one changed overlap setting at a time; paced; ratios as with --zero")
      ->excludes("--zero")
      ->excludes("--ratio-of");
  command
      ->add_option("--ranks", options->ranks,
                   "ranks of the plan: one process runs one rank on an emulated link and imitates the others; 0: the "
                   "ranks of the launcher")
      ->check(CLI::Range(2, 65536));
  add_list(command, "--forms", options->forms,
           "forms of the emulated link, for instance gate,copies,blocks; default: comm.emulate.form")
      ->check(CLI::IsMember({"gate", "copies", "blocks"}))
      ->type_name("FORM,...");
  command->callback([&chosen, options] { chosen = [options] { return bench::bench_overlap(*options); }; });
}

void add_pipeline(CLI::App& bench, Run& chosen) {
  const auto options = std::make_shared<bench::PipelineOptions>();
  CLI::App* command = bench.add_subcommand(
      "pipeline",
      "compare the bubble of every schedule with its closed form, on stages that sleep instead of computing");
  add_bench_flags(command, *options);
  command
      ->add_option("--compute", options->compute,
                   "paced: stages sleep for equal times; real: run the kernels, rehearsed with their measured times")
      ->check(CLI::IsMember({"real", "paced"}));
  const CLI::Option* forward_ms = command
                                      ->add_option("--forward-ms", options->forward_ms,
                                                   "paced: time of the forward pass of a stage, per micro-batch")
                                      ->check(CLI::Range(0.1, 1e4));
  add_list(command, "--ratios", options->ratios,
           "transfer between stages / forward pass, for instance 0.25,0.5; a link that takes no time is always "
           "measured first")
      ->check(positive())
      ->type_name("RATIO,...");
  command->callback([&chosen, options, forward_ms] {
    chosen = [options, paces = forward_ms->count() > 0] {
      if (paces && options->compute == "real")
        throw ConfigError(
            "[bench] --forward-ms {} sets the time of sleeping stages, but --compute real runs the kernels. Leave one "
            "of them out.",
            options->forward_ms);
      return bench::bench_pipeline(*options);
    };
  });
}

void add_layers(CLI::App& bench, Run& chosen) {
  const auto options = std::make_shared<bench::LayersOptions>();
  CLI::App* command = bench.add_subcommand("layers",
                                           "measure communication inside layers whose compute sleeps: tensor "
                                           "parallelism in chunks, the ring of context parallelism");
  add_bench_flags(command, *options);
  command->add_option("--layer-ms", options->layer_ms, "time of the forward pass of a layer")->check(positive());
  add_list(command, "--ratios", options->ratios,
           "communication / compute, for instance 0.3,1; with context parallelism alone: transfer / attention block; "
           "default: 0.3, or 0.25,0.5,0.9")
      ->check(positive())
      ->type_name("RATIO,...");
  add_list(command, "--chunks", options->chunks, "values of overlap.tensor_chunks")
      ->check(CLI::Range(1, 4096))
      ->type_name("CHUNKS,...");
  command->callback([&chosen, options] { chosen = [options] { return bench::bench_layers(*options); }; });
}

void add_kernels(CLI::App& bench, Run& chosen) {
  const auto options = std::make_shared<bench::KernelsOptions>();
  CLI::App* command = bench.add_subcommand("kernels", "measure every op at the sizes of three models and its bound");
  command->add_option("--only", options->only,
                      "rows of 'op dtype size' that contain this text, for instance matmul or 'float32 gpt2'");
  add_list(command, "--threads", options->threads,
           "threads of the compute stream, for instance 1,2; one table per value")
      ->check(CLI::Range(1, 1024))
      ->type_name("N,...");
  command->add_option("--rounds", options->rounds, "number of measured rounds");
  command->add_option("--csv", options->csv, "write the table to this file");
  command->callback([&chosen, options] {
    chosen = [options] { return alone("bench kernels", [&] { return bench::bench_kernels(*options); }); };
  });
}

void add_products(CLI::App& bench, Run& chosen) {
  const auto options = std::make_shared<bench::ProductsOptions>();
  const auto rotate = std::make_shared<std::string>("256MiB");
  CLI::App* command =
      bench.add_subcommand("products", "time cuBLASLt's algorithms for every product of a run and save the table");
  add_bench_flags(command, *options);
  command->add_option("--ranks", options->ranks, "ranks of the layout whose products are timed; 0: one")
      ->check(CLI::Range(1, 65536));
  command->add_option("--rotate", *rotate, "operands rotate through this much memory; use more than the caches hold");
  command
      ->add_option("--seconds", options->seconds,
                   "time limit: no product starts after it, and the next call continues; 0: none")
      ->check(positive());
  command->add_flag("--again", options->again, "time the products of the table again");
  command->callback([&chosen, options, rotate] {
    chosen = [options, rotate] {
      options->rotate_bytes = parse_bytes(*rotate);
      return bench::bench_products(*options);
    };
  });
}

void add_step(CLI::App& bench, Run& chosen) {
  const auto options = std::make_shared<bench::StepOptions>();
  const auto line_rate = std::make_shared<std::string>();
  CLI::App* command = bench.add_subcommand("step", "measure whole training steps by the host's clock");
  add_bench_flags(command, *options);
  command->add_option("--export", options->export_dir, "write the first weights and each rank's batch to this folder");
  command
      ->add_option("--in-a-row", options->in_a_row,
                   "issue so many steps one after the other, as training does; a time is their mean")
      ->check(CLI::Range(1, 1000));
  command
      ->add_flag("--plain-loop", options->plain_loop,
                 "issue eight steps in a row, then time eight plain loops of the same works (one rank)")
      ->excludes("--in-a-row");
  command->add_option("--line-rate", *line_rate, "print the lower bound for a link of this rate, for instance 1Gbit/s");
  command->add_option("--ranks", options->ranks, "ranks that the link connects; 0: the ranks of the launcher");
  command->callback([&chosen, options, line_rate] {
    chosen = [options, line_rate] {
      if (!line_rate->empty()) options->line_rate = static_cast<double>(parse_bytes_per_second(*line_rate));
      return bench::bench_step(*options);
    };
  });
}

void add_comm(CLI::App& bench, Run& chosen) {
  const auto options = std::make_shared<bench::CommBenchOptions>();
  CLI::App* command =
      bench.add_subcommand("comm", "measure every verb and algorithm by size, and fit latency and bandwidth");
  add_run_source(command, *options);
  command->get_option("run")->required(false);
  command->add_option("--min", options->smallest, "smallest operation; each size is four times the one before");
  command->add_option("--max", options->largest, "largest operation; a rank allocates about five times as much");
  add_list(command, "--verbs", options->verbs, "for instance all_reduce,all_gather; default: all")
      ->check(CLI::IsMember(
          {"all_reduce", "reduce_scatter", "all_gather", "all_to_all", "all_to_all_v", "exchange", "send"}))
      ->type_name("VERB,...");
  add_list(command, "--algorithms", options->algorithms,
           "on CPUs: direct,ring,library; default: all; library: the verbs of the MPI library")
      ->check(CLI::IsMember({"direct", "ring", "library"}))
      ->type_name("ALGORITHM,...");
  command->add_option("--seconds", options->seconds, "time of a row, but at least three measurements")
      ->check(positive());
  command->add_option("--line-rate", options->line_rate, "compare bus bandwidth with this rate, for instance 1Gbit/s");
  command->add_option("--machine", options->machine, "write a machine file with the fitted link of all_reduce");
  command->add_option("--csv", options->csv, "write the table to this file");
  command->callback([&chosen, options] { chosen = [options] { return bench::bench_comm(*options); }; });
}

}  // namespace

void add_bench(CLI::App& app, Run& chosen) {
  CLI::App* bench = app.add_subcommand("bench", "measure: overlap, pipeline, layers, kernels, products, step, comm");
  bench->require_subcommand(1);
  for (const auto add : {add_overlap, add_pipeline, add_layers, add_kernels, add_products, add_step, add_comm})
    add(*bench, chosen);
}

}  // namespace slipstream::cli
