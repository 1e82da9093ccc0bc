// SPDX-License-Identifier: Apache-2.0
// Parses the command line, runs one command, and prints one sentence if it fails. Only this file exits.

#include <csignal>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "comm/mpi/launcher.h"
#include "engine/base/check.h"
#include "engine/base/print.h"
#include "engine/config/nearest.h"
#include "trainer/cli/command_line.h"
#include "trainer/cli/shell_files.h"
#include "trainer/runtime/loop/stop_signals.h"
#include "trainer/runtime/run_folder/version.h"

namespace slipstream::cli {
namespace {

/// Returns the error of a command line as one sentence, with the unknown word and the nearest known one.
std::string refusal(const CLI::App* app, const CLI::Error& error) {
  const std::vector<std::string> unknown = app->remaining(true);
  std::string command = "slipstream";
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    command += " " + app->get_name();
  }
  std::string problem = error.what();
  constexpr std::string_view kValueOfFlag = " was given a disallowed flag override";
  if (problem.ends_with(kValueOfFlag))
    problem = fmt::format("--{} takes no value: give it, or leave it out",
                          problem.substr(0, problem.size() - kValueOfFlag.size()));
  if (!unknown.empty()) {
    std::vector<std::string> names;
    for (const CLI::App* subcommand : app->get_subcommands({})) names.push_back(subcommand->get_name());
    for (const CLI::Option* option : app->get_options())
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    const std::string& word = unknown.front();
    const std::string near = nearest(word, {names.begin(), names.end()});
    const char* kind = word.starts_with("-") ? "option" : app->get_subcommands({}).empty() ? "argument" : "command";
    problem = fmt::format("unknown {} '{}'{}{}", kind, word, command == "slipstream" ? "" : " of " + command,
                          near.empty() ? "" : fmt::format("; did you mean '{}'?", near));
  }
  return fmt::format("{}{} See {} --help.", problem, problem.ends_with('?') ? "" : ".", command);
}

/// Refuses a value of a flag, because --resume=no would otherwise mean --resume.
void refuse_values_of_flags(CLI::App& app) {
  for (CLI::Option* option : app.get_options())
    if (option->get_items_expected_max() == 0) option->disable_flag_override();
  for (CLI::App* subcommand : app.get_subcommands({})) refuse_values_of_flags(*subcommand);
}

int run(int argc, char** argv) {
  CLI::App app{"Slipstream trains transformers with communication hidden behind compute.", "slipstream"};
  app.option_defaults()->always_capture_default();
  app.formatter(help_format());
  app.set_version_flag("--version",
                       [] { return fmt::format("slipstream {} (build {})", runtime::version(), runtime::build_id()); });
  // Like --version, these options end the command line, and one line end follows the text.
  const auto end_with = [](const std::string& text) {
    throw CLI::CallForVersion(text.substr(0, text.size() - 1), static_cast<int>(CLI::ExitCodes::Success));
  };
  app.add_option_function<std::string>(
         "--completion", [&](const std::string& shell) { end_with(completion(app, shell)); },
         "print the completion of the command line for a shell; in bash: source <(slipstream --completion bash)")
      ->check(CLI::IsMember(shells()));
  app.add_flag_callback(
      "--manual", [&] { end_with(manual(app, runtime::version())); }, "print the manual page; man -l shows it");
  app.require_subcommand(1);
  Run chosen;
  for (const auto add : {add_train, add_plan, add_check, add_bench, add_generate, add_eval, add_tokenize,
                         add_checkpoint, add_report, add_why, add_keeper, add_convert, add_calibrate})
    add(app, chosen);
  refuse_values_of_flags(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return in_agreement([&](int) { throw ConfigError("{}", refusal(&app, error)); });
  }
  return chosen();
}

int run_and_flush(int argc, char** argv) {
  const int code = run(argc, argv);
  if (code == 0) flush_printed();  // the last output may still be in a buffer
  return code;
}

}  // namespace
}  // namespace slipstream::cli

int main(int argc, char** argv) {
  using slipstream::ExitCode;
  // A write beyond a file limit or into a pipe without a reader then returns an error, which has a message.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  if (argc > 1 && std::string_view(argv[1]) == "train")
    slipstream::runtime::StopSignals::end_until_then(slipstream::comm::announced_rank() == 0,
                                                     slipstream::comm::announced_ranks() > 1);
  try {
    return slipstream::cli::run_and_flush(argc, argv);
  } catch (const slipstream::Error& error) {
    std::fflush(stdout);  // prints earlier output before the error
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
