// SPDX-License-Identifier: Apache-2.0
// Writes the completion scripts of bash, zsh and fish.

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "engine/config/fields.h"
#include "trainer/cli/shell_files.h"

namespace slipstream::cli {
namespace {

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

/// Quotes one word for bash or zsh.
std::string shell_word(const std::string& text) { return "'" + replaced(text, "'", R"('\'')") + "'"; }

std::string joined(const std::vector<std::string>& words, const char* between = " ") {
  return fmt::format("{}", fmt::join(words, between));
}

std::vector<std::string> names_of(const std::vector<Flag>& flags) {
  std::vector<std::string> names;
  for (const Flag& flag : flags) names.insert(names.end(), flag.names.begin(), flag.names.end());
  return names;
}

std::vector<std::string> names_of(const std::vector<const CLI::App*>& commands) {
  std::vector<std::string> names;
  for (const CLI::App* command : commands) names.push_back(command->get_name());
  return names;
}

/// Returns the keys of a run file.
std::vector<std::string> keys() {
  std::vector<std::string> keys;
  for (const Field<RunConfig>& field : run_fields()) keys.push_back(field.key);
  return keys;
}

// ---- bash ----------------------------------------------------------------------------------------------------------

std::string bash_arm(const std::string& pattern, const Values& values) {
  const char* kind = values.keys            ? "keys"
                     : values.files         ? "files"
                     : values.words.empty() ? "none"
                     : values.lists         ? "lists"
                                            : "words";
  return fmt::format("    {}) kind={} words={} ;;\n", pattern, kind,
                     shell_word(joined(values.keys ? keys() : values.words)));
}

std::string bash(const std::vector<Command>& commands) {
  std::string paths, values, places;
  for (const Command& command : commands) {
    const std::string path = joined(command.path);
    if (!command.path.empty()) {
      const std::vector<std::string> above(command.path.begin(), command.path.end() - 1);
      paths += fmt::format("      {}) path={} ;;\n", shell_word(joined(above) + " " + command.path.back()),
                           shell_word(path));
    }
    for (const Flag& flag : command.flags)
      if (flag.values_needed > 0)
        for (const std::string& name : flag.names) values += bash_arm(shell_word(path + "|" + name), flag.values);
    places += bash_arm(shell_word(path + "|-"), {.words = names_of(command.flags)});
    if (!command.subcommands.empty())
      places += bash_arm(shell_word(path + "|") + "*", {.words = names_of(command.subcommands)});
    else if (!command.positions.empty())
      places += bash_arm(shell_word(path + "|") + "*", command.positions.front().values);
  }
  return R"sh(# Completes slipstream in bash. Written by slipstream --completion bash.
_slipstream() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} path='' kind='' words='' i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$path ${COMP_WORDS[i]}" in
)sh" + paths +
         R"sh(    esac
  done
  case "$path|$prev" in
)sh" + values +
         R"sh(  esac
  [[ $kind ]] || case "$path|${cur:0:1}" in
)sh" + places +
         R"sh(  esac
  case $kind in
    words) mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur") ;;
    lists) mapfile -t COMPREPLY < <(compgen -P "${cur%"${cur##*,}"}" -W "$words" -- "${cur##*,}") ;;
    keys)
      compopt -o nospace
      mapfile -t COMPREPLY < <(compgen -S = -W "$words" -- "$cur")
      ;;
    files)
      compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur"; compgen -f -- "$cur")
      ;;
    *) COMPREPLY=() ;;
  esac
  [[ $kind != none ]] || compopt +o default
}
complete -o default -F _slipstream slipstream
)sh";
}

// ---- zsh -----------------------------------------------------------------------------------------------------------

std::string zsh_action(const Values& values) {
  if (values.keys) return " _slipstream_keys";
  if (values.files && values.words.empty()) return "_files";
  if (values.files) return " _slipstream_names_or_files " + joined(values.words);
  if (values.lists && !values.words.empty()) return " _values -s , value " + joined(values.words);
  return values.words.empty() ? " " : "(" + joined(values.words) + ")";
}

std::string zsh_option(const Flag& flag, const std::string& name) {
  std::string spec =
      (flag.repeats ? "*" : "") + name + "[" + replaced(replaced(flag.about, "[", "\\["), "]", "\\]") + "]";
  for (int i = 0; i < flag.values_needed; ++i) spec += ":value:" + zsh_action(flag.values);
  return shell_word(spec);
}

std::string zsh(const std::vector<Command>& commands) {
  std::string text = R"sh(#compdef slipstream
# Completes slipstream in zsh. Written by slipstream --completion zsh.
_slipstream_names_or_files() { _alternative "names:shipped name:($*)" 'files:file:_files' }
_slipstream_keys() {
  if compset -P '*='; then _files; else compadd -S = -- )sh" +
                     joined(keys()) + R"sh(; fi
}
)sh";
  for (size_t i = commands.size(); i-- > 0;) {  // a function must come before its callers
    const Command& command = commands[i];
    std::string specs, listed;
    for (const Flag& flag : command.flags)
      for (const std::string& name : flag.names) specs += " \\\n    " + zsh_option(flag, name);
    for (const Flag& flag : command.positions)
      specs +=
          " \\\n    " + shell_word((flag.repeats ? "*:" : ":") + flag.names.back() + ":" + zsh_action(flag.values));
    const std::string name = "_slipstream" + (command.path.empty() ? "" : "_" + joined(command.path, "_"));
    if (command.subcommands.empty()) {
      text += name + "() {\n  _arguments" + specs + "\n}\n";
      continue;
    }
    for (const CLI::App* each : command.subcommands)
      listed += "\n      " + shell_word(each->get_name() + ":" + each->get_description());
    text += name +
            "() {\n  if ((CURRENT > 2)); then\n    local command=$words[2]\n    shift words\n    ((CURRENT--))\n" +
            "    (($+functions[" + name + "_$command])) && " + name + "_$command\n    return\n  fi\n" +
            "  local -a commands=(" + listed + "\n  )\n  _describe command commands\n  _arguments" + specs + "\n}\n";
  }
  return text + "_slipstream \"$@\"\n";
}

// ---- fish ----------------------------------------------------------------------------------------------------------

std::string fish_word(const std::string& text) {
  return "'" + replaced(replaced(text, "\\", "\\\\"), "'", "\\'") + "'";
}

std::string fish(const std::vector<Command>& commands) {
  std::string text = "# Completes slipstream in fish. Written by slipstream --completion fish.\n";
  for (const Command& command : commands) {
    std::string where = command.path.empty() ? "__fish_use_subcommand" : "";
    for (const std::string& name : command.path)
      where += (where.empty() ? "" : "; and ") + ("__fish_seen_subcommand_from " + name);
    const std::string begin = "complete -c slipstream -n ";
    for (const CLI::App* each : command.subcommands) {
      const std::string none = command.path.empty() ? where
                                                    : where + "; and not __fish_seen_subcommand_from " +
                                                          joined(names_of(command.subcommands));
      text +=
          begin + fish_word(none) + " -f -a " + each->get_name() + " -d " + fish_word(each->get_description()) + "\n";
    }
    for (const Flag& flag : command.flags) {
      text += begin + fish_word(where);
      for (const std::string& name : flag.names)
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      std::vector<std::string> words = flag.values.words;
      if (flag.values.keys)
        for (const std::string& key : keys()) words.push_back(key + "=");
      if (flag.values_needed > 0) text += flag.values.files ? " -r" : " -x";
      if (!words.empty()) text += " -a " + fish_word(joined(words));
      text += " -d " + fish_word(flag.about) + "\n";
    }
    for (const Flag& flag : command.positions)
      if (!flag.values.words.empty())
        text += begin + fish_word(where) + " -a " + fish_word(joined(flag.values.words)) + "\n";
  }
  return text;
}

}  // namespace

const std::vector<std::string>& shells() {
  static const std::vector<std::string> names = {"bash", "zsh", "fish"};
  return names;
}

std::string completion(const CLI::App& app, const std::string& shell) {
  const std::vector<Command> commands = commands_of(app);
  if (shell == "bash") return bash(commands);
  if (shell == "zsh") return zsh(commands);
  SLIP_ASSERT(shell == "fish");
  return fish(commands);
}

}  // namespace slipstream::cli
