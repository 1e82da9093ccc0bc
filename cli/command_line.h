// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the commands share: how they join the command line, and checks of their arguments.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "engine/config/load.h"

namespace slipstream::cli {

/// Runs the command that the user chose; returns its exit code or throws an Error that carries one.
using Run = std::function<int()>;

// One function per command, each in the file of its name: declares the command and its flags. When the parser meets the
// command, `chosen` is set. `app` and `chosen` outlive the parse.
void add_train(CLI::App& app, Run& chosen);
void add_plan(CLI::App& app, Run& chosen);
void add_check(CLI::App& app, Run& chosen);
void add_bench(CLI::App& app, Run& chosen);
void add_generate(CLI::App& app, Run& chosen);
void add_tokenize(CLI::App& app, Run& chosen);
void add_later(CLI::App& app, Run& chosen);

/// Prints the type and the default of an option, and nothing that suggests several values behind one flag.
std::shared_ptr<CLI::FormatterBase> help_format();

/// The run file and --set.
void add_run_source(CLI::App* command, RunSource& source);

/// Accepts the text of a number for which `good` holds; `need` completes "needs ...". `type` is its name in --help.
CLI::Validator number(const std::string& need, const std::string& type, const std::function<bool(double)>& good);
/// A finite number above 0.
CLI::Validator positive();
/// Whole numbers from 0 to `most`, separated by commas.
CLI::Validator whole_numbers(int64_t most);

/// Blocks. Collective. Runs `stage` on every rank; its error is printed once. The exit code, 0 without an error.
int in_agreement(const std::function<void(int ranks)>& stage);
/// A command of one process: refuses several ranks, which would all write the same files.
int alone(const std::string& command, const Run& run);
/// A command of the design that this version does not have: refuses with `instead`, whatever its arguments.
void add_missing(CLI::App& parent, Run& chosen, const std::string& name, const std::string& what,
                 const std::string& instead);

}  // namespace slipstream::cli
