// SPDX-License-Identifier: Apache-2.0
// The command line: parses, calls one subcommand, prints one sentence when it fails. The only place that exits.

#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "cli/version.h"
#include "cli/world.h"
#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/config/nearest.h"

namespace slipstream::cli {
namespace {

/// CLI11's own write the largest number that there is, in 309 digits, when they refuse one.
CLI::Validator number(const std::string& need, const std::string& type, const std::function<bool(double)>& good) {
  return {[=](std::string& text) {
            char* end = nullptr;
            const double value = std::strtod(text.c_str(), &end);
            const bool whole = !text.empty() && *end == '\0';
            return whole && good(value) ? std::string() : fmt::format("needs {}, got {}", need, text);
          },
          type};
}

/// A wrong command line in a sentence like any other refusal, with the word that nothing takes and what was meant.
std::string refusal(const CLI::App* app, const CLI::Error& error) {
  const std::vector<std::string> unknown = app->remaining(true);
  std::string command = "slipstream";
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    command += " " + app->get_name();
  }
  std::string problem = error.what();
  if (!unknown.empty()) {
    std::vector<std::string> names;
    for (const CLI::App* subcommand : app->get_subcommands({})) names.push_back(subcommand->get_name());
    for (const CLI::Option* option : app->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    const std::string near = nearest(unknown.front(), {names.begin(), names.end()});
    problem = fmt::format("'{}' is nothing that {} takes{}", unknown.front(), command,
                          near.empty() ? "" : fmt::format(", did you mean '{}'?", near));
  }
  return fmt::format("{}{} {} --help says what there is.", problem, problem.ends_with('?') ? "" : ".", command);
}

/// CLI11's own takes the nearest number for one that is too large, and none for nothing between two commas.
CLI::Validator whole_numbers(int64_t most) {
  return {[=](std::string& text) {
            for (size_t at = 0; at <= text.size();) {
              const size_t end = std::min(text.find(',', at), text.size());
              int64_t value = -1;
              const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, value);
              if (error != std::errc() || stop != text.data() + end || value < 0 || value > most)
                return fmt::format("needs whole numbers from 0 to {}, got '{}'", most, text);
              at = end + 1;
            }
            return std::string();
          },
          "WHOLE"};
}

/// Blocks. Collective. Runs `stage` on every rank; what it throws is printed once. The exit code, 0 if it throws
/// nothing.
int in_agreement(const std::function<void(const World&)>& stage) {
  World world;
  try {
    world.together([&] { stage(world); });
    return 0;
  } catch (const AgreedFailure& failure) {
    return static_cast<int>(failure.code());
  }
}

/// Runs what one process does: as several ranks all would do the same, and write the same files. MPI starts once in a
/// process, so that what has a World of its own refuses by itself.
int alone(const std::string& command, const std::function<int()>& run) {
  const int code = in_agreement([&](const World& world) {
    if (world.size() > 1)
      throw ConfigError("[{}] runs in one process, and {} were started. Start it without mpirun.", command,
                        world.size());
  });
  return code != 0 ? code : run();
}

int run(int argc, char** argv) {
  CLI::App app{"Slipstream trains transformers with communication hidden behind compute.", "slipstream"};
  app.set_version_flag("--version", std::string("slipstream ") + version());
  app.require_subcommand(1);
  std::function<int()> chosen;
  const CLI::Validator positive =
      number("a number above 0", "POSITIVE", [](double n) { return n > 0 && std::isfinite(n); });
  const CLI::Validator natural =
      number("numbers of at least 0", "NONNEGATIVE", [](double n) { return n >= 0 && std::isfinite(n); });

  const auto run_file = [](CLI::App* command, RunOptions& options) {
    command->add_option("run", options.run_file, "run file (TOML); docs/reference/config.md lists its keys")
        ->required();
    command->add_option("--set", options.sets, "KEY=VALUE: overrides one key, for instance overlap.bucket_size=10MiB")
        ->take_all()
        ->allow_extra_args(false)  // so that the run file may stand behind it
        ->type_name("KEY=VALUE");
  };

  TrainCommand train_options;
  CLI::App* train_command = app.add_subcommand("train", "train the model of a run file; mpirun starts more ranks");
  run_file(train_command, train_options);
  train_command->add_flag("--resume", train_options.resume, "continue from the newest checkpoint that verifies");
  train_command->add_flag("--dry-run", train_options.dry_run, "print the plan and the memory table, train nothing");
  train_command
      ->add_option("--inject-delays", train_options.delay_seed,
                   "SEED: random pauses before works; results must not change")
      ->check(whole_numbers(INT64_MAX))
      ->type_name("SEED");
  train_command->add_flag("--check-hazards", train_options.check_hazards,
                          "stop at the first work that no event orders behind one whose bytes it touches");
  train_command->callback([&] { chosen = [&] { return train(train_options); }; });

  PlanCommand plan_options, check_options;
  const auto plan_flags = [&](CLI::App* command, PlanCommand& options) {
    run_file(command, options);
    command->add_option("--ranks", options.ranks, "world size; default: 1")->check(CLI::Range(1, 1 << 24));
    command->add_option("--machine", options.machine,
                        "machine file; default: device.machine of the run file, else this host");
    command->add_flag("--json", options.json, "print JSON");
  };
  CLI::App* plan_command = app.add_subcommand("plan", "print layout, memory, tasks and the rehearsed step");
  plan_flags(plan_command, plan_options);
  plan_command->add_flag("--search", plan_options.search, "search for a faster layout");
  plan_command->add_option("--schedule-csv", plan_options.schedule_csv,
                           "write the pipeline's schedule to this file, as pipeline.schedule_file reads it");
  plan_command->callback([&] { chosen = [&] { return alone("plan", [&] { return plan(plan_options); }); }; });
  CLI::App* check_command = app.add_subcommand("check", "prove the plan: no deadlock, no hazard, fits in memory");
  plan_flags(check_command, check_options);
  check_command->callback([&] { chosen = [&] { return alone("check", [&] { return check(check_options); }); }; });

  BenchCommand bench_options;
  CLI::App* bench_command = app.add_subcommand("bench", "measure: overlap, pipeline, layers, kernels, products, step");
  bench_command->require_subcommand(1);
  const auto bench_flags = [&](CLI::App* command) {
    run_file(command, bench_options);
    command->add_option("--steps", bench_options.steps, "steps that are counted");
    command->add_option("--csv", bench_options.csv, "write the table to this file");
  };
  CLI::App* overlap =
      bench_command->add_subcommand("overlap", "the four ways of reducing gradients beside their bounds");
  bench_flags(overlap);
  overlap->add_option("--compute", bench_options.compute, "real: run the kernels; paced: sleep for their measured time")
      ->check(CLI::IsMember({"real", "paced"}));
  overlap->add_option("--ratios", bench_options.ratios, "communication / compute of the emulated links")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(positive);
  overlap
      ->add_option("--zero", bench_options.zero,
                   "stages to measure instead, for instance 1,3: paced, a ratio is a layer's gather / its forward pass")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 3));
  overlap->add_option("--prefetch", bench_options.prefetch, "with --zero: depths of stage 3, for instance 1,2")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(0, 65536));
  overlap->add_option("--layer-ms", bench_options.layer_ms, "with --zero and --ablate: what a layer takes forward")
      ->check(positive);
  overlap
      ->add_flag(
          "--ablate", bench_options.ablate,
          "the run file as it is, and with one knob of the overlap turned at a time: paced, ratios as with --zero")
      ->excludes("--zero");
  overlap
      ->add_option("--ranks", bench_options.ranks,
                   "of the plan: one process measures it on an emulated link, the other ranks imitated")
      ->check(CLI::Range(2, 65536));
  overlap->add_option("--forms", bench_options.forms, "of the emulated link, for instance gate,copies,blocks")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember({"gate", "copies", "blocks"}));
  overlap->callback([&] { chosen = [&] { return bench_overlap(bench_options); }; });
  CLI::App* pipeline = bench_command->add_subcommand(
      "pipeline", "the bubble of every schedule on stages that sleep, beside its closed form");
  bench_flags(pipeline);
  std::string pipeline_compute = "paced";
  pipeline
      ->add_option("--compute", pipeline_compute,
                   "paced: stages sleep for equal times; real: run the kernels, rehearsed with what they took")
      ->check(CLI::IsMember({"real", "paced"}));
  pipeline->add_option("--forward-ms", bench_options.forward_ms, "paced: of a stage's forward pass of one micro-batch")
      ->check(CLI::Range(0.1, 1e4));
  pipeline->add_option("--ratios", bench_options.ratios, "hop / forward pass of the emulated links")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(positive);
  pipeline->callback([&] {
    bench_options.compute = pipeline_compute;
    chosen = [&, paces = pipeline->count("--forward-ms") > 0] {
      if (paces && bench_options.compute == "real")
        throw ConfigError(
            "[bench] --forward-ms {} is of stages that sleep, and with --compute real they compute. Leave one of them "
            "out.",
            bench_options.forward_ms);
      return bench_pipeline(bench_options);
    };
  });
  CLI::App* layers = bench_command->add_subcommand(
      "layers", "what travels inside layers that sleep: sums of tensor parallelism by chunks, the ring");
  bench_flags(layers);
  layers->add_option("--layer-ms", bench_options.layer_ms, "what a layer takes forward")->check(positive);
  layers->add_option("--ratios", bench_options.ratios, "communication / compute; of a ring alone: hop / block")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(positive);
  layers->add_option("--chunks", bench_options.chunks, "overlap.tensor_chunks, for instance 1,2,4,8")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 4096));
  layers->callback([&] { chosen = [&] { return bench_layers(bench_options); }; });
  CLI::App* kernels_command =
      bench_command->add_subcommand("kernels", "every op at the sizes of three models beside its bound");
  kernels_command->add_option("--only", bench_options.only,
                              "rows of 'op dtype size' that hold this text, for instance matmul or 'float32 gpt2'");
  kernels_command->add_option("--threads", bench_options.threads, "of the compute stream, for instance 1,2")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, 1024));
  kernels_command->add_option("--rounds", bench_options.steps, "turns that are counted");
  kernels_command->add_option("--csv", bench_options.csv, "write the table to this file");
  kernels_command->callback(
      [&] { chosen = [&] { return alone("bench kernels", [&] { return bench_kernels(bench_options); }); }; });
  CLI::App* products = bench_command->add_subcommand(
      "products", "time cuBLASLt's algorithms for every product of a run, and keep the table");
  bench_flags(products);
  products->add_option("--ranks", bench_options.ranks, "of the layout whose products they are; default: 1")
      ->check(CLI::Range(1, 65536));
  std::string rotate;
  products->add_option("--rotate", rotate,
                       "memory that the operands come from in turn, more than the caches hold; default: 256MiB");
  products
      ->add_option("--seconds", bench_options.seconds,
                   "time limit: after so long no product begins, and the next call continues; default: none")
      ->check(positive);
  products->add_flag("--again", bench_options.again, "time the products again that the table has");
  products->callback([&] {
    chosen = [&] {
      if (!rotate.empty()) bench_options.rotate_bytes = parse_bytes(rotate);
      return bench_products(bench_options);
    };
  });
  CLI::App* bench_step_command = bench_command->add_subcommand("step", "whole training steps by the host's clock");
  bench_flags(bench_step_command);
  std::string line_rate;
  bench_step_command->add_option("--export", bench_options.export_dir,
                                 "write the first weights and each rank's batch to this folder");
  bench_step_command->add_flag(
      "--plain-loop", bench_options.plain_loop,
      "issue eight steps in a row, and time as many plain loops of the same works beside them (one rank)");
  bench_step_command->add_option("--line-rate", line_rate,
                                 "print the least time on a link of this rate, for instance 1Gbit/s");
  bench_step_command->add_option("--ranks", bench_options.ranks, "that the link joins; default: those started");
  bench_step_command->callback([&] {
    chosen = [&] {
      if (!line_rate.empty()) bench_options.line_rate = static_cast<double>(parse_bytes_per_second(line_rate));
      return bench_step(bench_options);
    };
  });
  GenerateCommand generate_options;
  CLI::App* generate_command = app.add_subcommand("generate", "continue a prompt with trained weights");
  generate_command->add_option("checkpoint", generate_options.checkpoint, "folder of weights, or a run folder")
      ->required();
  generate_command->add_option("--prompt", generate_options.prompt, "text to continue");
  std::string prompt_ids;
  generate_command->add_option("--prompt-ids", prompt_ids, "ids to continue, for instance 15496,995; prints ids")
      ->check(whole_numbers(INT32_MAX))
      ->type_name("ID,...")
      ->excludes("--prompt");
  generate_command->add_option("--tokens", generate_options.tokens, "tokens to add")->check(CLI::Range(1, 1000000));
  generate_command->add_option("--temperature", generate_options.temperature, "0: always the likeliest")
      ->check(CLI::Range(0.0, 10.0));
  generate_command->add_option("--top-k", generate_options.top_k, "sample among the K likeliest; 0: among all");
  generate_command->add_option("--seed", generate_options.seed, "of the sampling")->check(whole_numbers(INT64_MAX));
  generate_command->add_option("--device", generate_options.device, "auto: a GPU if there is one")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}));
  generate_command->callback([&] {
    chosen = [&] {
      std::istringstream ids(prompt_ids);
      for (std::string id; std::getline(ids, id, ',');) generate_options.prompt_ids.push_back(std::stoi(id));
      return alone("generate", [&] { return generate(generate_options); });
    };
  });

  TokenizeCommand tokenize_options;
  CLI::App* tokenize_command = app.add_subcommand("tokenize", "text to token shards");
  tokenize_command->add_option("text", tokenize_options.text, "text file")->required();
  tokenize_command->add_option("out", tokenize_options.out, "path of the shards, without .bin")->required();
  tokenize_command->add_option("--tokenizer", tokenize_options.tokenizer, "bytes or chars");
  tokenize_command->callback(
      [&] { chosen = [&] { return alone("tokenize", [&] { return tokenize(tokenize_options); }); }; });

  // Named in the design, written later: whoever calls one is told so, whatever else is on the line.
  const auto later = [&](CLI::App* parent, const std::string& name, const std::string& what,
                         const std::string& instead) {
    CLI::App* command = parent->add_subcommand(name, "a later version: " + what);
    command->allow_extras();
    command->callback([&chosen, name = parent == &app ? name : parent->get_name() + " " + name, instead] {
      chosen = [name, instead] {
        return in_agreement([&](const World&) { throw ConfigError("[{}] is not in this version. {}", name, instead); });
      };
    });
  };
  later(bench_command, "comm", "collectives beside their bounds",
        "scripts/bench_collectives.sh measures sums over links of a given rate.");
  later(&app, "report", "a run as a page of HTML",
        "Read metrics.jsonl of the run folder, and open its trace/*.json in Perfetto.");
  later(&app, "convert", "weights from and to Hugging Face",
        "Final weights are safetensors with Hugging Face names already, in checkpoints/final of the run folder.");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return in_agreement([&](const World&) { throw ConfigError("{}", refusal(&app, error)); });
  }
  return chosen();
}

}  // namespace
}  // namespace slipstream::cli

int main(int argc, char** argv) {
  using slipstream::ExitCode;
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of its write, which has a sentence
  try {
    return slipstream::cli::run(argc, argv);
  } catch (const slipstream::Error& error) {
    std::fflush(stdout);  // what has been said comes before why it ends
    std::fprintf(stderr, "slipstream: %s\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "slipstream: [host] out of memory. Use a smaller model, micro-batch or more ranks.\n");
    return static_cast<int>(ExitCode::resources);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "slipstream: [bug] %s. Please report it with the run file.\n", error.what());
    return static_cast<int>(ExitCode::bug);
  }
}
