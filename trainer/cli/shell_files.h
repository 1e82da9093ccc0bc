// SPDX-License-Identifier: Apache-2.0
#pragma once
// The manual page and the completion scripts of shells. Both are written from the declared commands.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace slipstream::cli {

/// The values that may follow an option, or stand at a position.
struct Values {
  std::vector<std::string> words;
  bool files = false;
  bool keys = false;   // keys of a run file, as KEY=VALUE
  bool lists = false;  // several words, separated by commas
};

struct Flag {
  std::vector<std::string> names;  // "-h", "--help"; for a position: its name
  std::string about;
  int values_needed = 0;  // the values of one use; 0: it takes none
  bool repeats = false;
  Values values;
};

struct Command {
  std::vector<std::string> path;  // {"bench", "overlap"}; empty: the program itself
  std::string about;
  const CLI::App* app = nullptr;
  std::vector<Flag> flags;
  std::vector<Flag> positions;
  std::vector<const CLI::App*> subcommands;
};

/// Returns the program and every command that --help shows. A command comes before its subcommands. Pure.
std::vector<Command> commands_of(const CLI::App& app);

/// Returns the names of shells for completion().
const std::vector<std::string>& shells();
/// Returns the script that completes the program's command line in a shell of shells(). Reads the shipped folders.
std::string completion(const CLI::App& app, const std::string& shell);

/// Returns slipstream(1) in the macros of man(7). Pure.
std::string manual(const CLI::App& app, const std::string& version);

}  // namespace slipstream::cli
