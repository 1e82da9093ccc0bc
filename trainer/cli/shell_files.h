// SPDX-License-Identifier: Apache-2.0
#pragma once
// The manual page and the completion of shells, written from the declared commands.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace slipstream::cli {

/// What may follow an option, or stand at a position.
struct Values {
  std::vector<std::string> words;
  bool files = false;
  bool keys = false;   // of a run file, as KEY=VALUE
  bool lists = false;  // several words with commas between them
};

struct Flag {
  std::vector<std::string> names;  // "-h", "--help"; of a position: its name
  std::string about;
  int values_needed = 0;  // of one use; 0: it takes none
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

/// The program and every command that --help shows, a command before its subcommands. Pure.
std::vector<Command> commands_of(const CLI::App& app);

/// Names of shells for completion().
const std::vector<std::string>& shells();
/// The script that completes the program's command line in a shell of shells(). Reads the shipped folders.
std::string completion(const CLI::App& app, const std::string& shell);

/// slipstream(1) in the macros of man(7). Pure.
std::string manual(const CLI::App& app, const std::string& version);

}  // namespace slipstream::cli
