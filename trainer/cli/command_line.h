// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared parts of the commands: registration on the command line, and checks of arguments.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "engine/base/data_format.h"
#include "engine/config/load.h"

namespace slipstream::cli {

/// Runs the chosen command. Returns its exit code, or throws an Error that has one.
using Run = std::function<int()>;

// One function per command, in the file with its name, declares the command and its flags. The parser sets `chosen`.
// `app` and `chosen` must outlive the parse.
void add_train(CLI::App& app, Run& chosen);
void add_plan(CLI::App& app, Run& chosen);
void add_check(CLI::App& app, Run& chosen);
void add_bench(CLI::App& app, Run& chosen);
void add_calibrate(CLI::App& app, Run& chosen);
void add_generate(CLI::App& app, Run& chosen);
void add_eval(CLI::App& app, Run& chosen);
void add_checkpoint(CLI::App& app, Run& chosen);
void add_keeper(CLI::App& app, Run& chosen);
void add_tokenize(CLI::App& app, Run& chosen);
void add_why(CLI::App& app, Run& chosen);
void add_report(CLI::App& app, Run& chosen);
void add_convert(CLI::App& app, Run& chosen);

/// Prints the type and the default of an option, without suggesting several values per flag.
std::shared_ptr<CLI::FormatterBase> help_format();

/// Adds the run file and --set.
void add_run_source(CLI::App* command, RunSource& source);

/// Adds --format of a text: auto or text, and jsonl if the command reads documents.
void add_text_format(CLI::App& command, DataFormat& format, bool reads_documents = false);

/// Accepts the text of a number that satisfies `good`. `need` completes "needs ...". `type` is its name in --help.
CLI::Validator number(const std::string& need, const std::string& type, const std::function<bool(double)>& good);
/// Accepts a finite number above 0.
CLI::Validator positive();
/// Accepts whole numbers from 0 to `most`, separated by commas.
CLI::Validator whole_numbers(int64_t most);

/// Blocks. Collective. Runs `stage` on every rank and prints its error once. Returns the exit code, which is 0 without
/// an error.
int in_agreement(const std::function<void(int ranks)>& stage);
/// Runs a command of one process. Refuses several ranks, because they would write the same files.
int alone(const std::string& command, const Run& run);

}  // namespace slipstream::cli
