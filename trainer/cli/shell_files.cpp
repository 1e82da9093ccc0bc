// SPDX-License-Identifier: Apache-2.0
// Lists the declared commands.

#include "trainer/cli/shell_files.h"

#include <algorithm>
#include <sstream>

#include "engine/config/shipped.h"

namespace slipstream::cli {
namespace {

/// Returns the words of CLI::IsMember, which describes itself as "{auto,cpu,cuda}".
std::vector<std::string> words_in(const std::string& type) {
  std::vector<std::string> words;
  const size_t open = type.find('{'), close = type.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return words;
  std::istringstream text(type.substr(open + 1, close - open - 1));
  for (std::string word; std::getline(text, word, ',');) words.push_back(word);
  return words;
}

Flag flag_of(const CLI::Option& option) {
  const int needed = option.get_type_size() == 0 ? 0 : std::max(1, std::min(option.get_expected_min(), 2));
  Flag flag{.names = {},
            .about = option.get_description(),
            .values_needed = needed,
            .repeats = option.get_expected_max() == CLI::detail::expected_max_vector_size,
            .values = {}};
  if (option.get_positional()) flag.names.push_back(option.get_name(true, false));
  for (const std::string& name : option.get_snames()) flag.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) flag.names.push_back("--" + name);
  if (needed == 0) return flag;
  const std::string type = option.get_type_name(), name = flag.names.back();
  flag.values = {.words = words_in(type), .lists = option.get_delimiter() == ','};
  // Numbers, and texts with a list of words, name no files.
  flag.values.files = flag.values.words.empty() && type == "TEXT";
  flag.values.keys = name == "--set";
  const char* shipped = name == "--machine" ? "machines"
                        : name == "--as"    ? "software"
                        : name == "run"     ? "runs"
                                            : nullptr;
  if (shipped) flag.values.words = shipped_names(shipped);
  return flag;
}

void append(const CLI::App& app, std::vector<std::string> path, std::vector<Command>& commands) {
  Command command{
      .path = path, .about = app.get_description(), .app = &app, .flags = {}, .positions = {}, .subcommands = {}};
  for (const CLI::Option* option : app.get_options())
    if (!option->get_group().empty())
      (option->get_positional() ? command.positions : command.flags).push_back(flag_of(*option));
  for (const CLI::App* each : app.get_subcommands([](const CLI::App* sub) { return !sub->get_group().empty(); }))
    command.subcommands.push_back(each);
  const std::vector<const CLI::App*> subcommands = command.subcommands;
  commands.push_back(std::move(command));
  for (const CLI::App* each : subcommands) {
    path.push_back(each->get_name());
    append(*each, path, commands);
    path.pop_back();
  }
}

}  // namespace

std::vector<Command> commands_of(const CLI::App& app) {
  std::vector<Command> commands;
  append(app, {}, commands);
  return commands;
}

}  // namespace slipstream::cli
