// SPDX-License-Identifier: Apache-2.0
// Writes the manual page.

#include <fmt/ranges.h>

#include "engine/base/check.h"
#include "trainer/cli/shell_files.h"

namespace slipstream::cli {
namespace {

/// Returns text for man(7): "-" is a minus, a backslash is no escape, and no line begins with a macro.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    out += c == '-' ? "\\-" : c == '\\' ? "\\e" : std::string(1, c);
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + roff(text) + "\\fR"; }

/// Returns the type and the default of an option, as --help shows them.
std::string type_of(const CLI::App& app, const CLI::Option& option) {
  const auto* format = dynamic_cast<const CLI::Formatter*>(app.get_formatter().get());
  return format ? format->make_option_opts(&option) : "";
}

std::string options_of(const Command& command, bool positional) {
  std::string text;
  for (const CLI::Option* option : command.app->get_options()) {
    if (option->get_group().empty() || option->get_positional() != positional) continue;
    text += ".TP\n" + bold(positional ? option->get_name(true, false) : option->get_name(false, true)) +
            roff(type_of(*command.app, *option)) + "\n" + roff(option->get_description()) + "\n";
  }
  return text;
}

}  // namespace

std::string manual(const CLI::App& app, const std::string& version) {
  const std::vector<Command> commands = commands_of(app);
  std::string text =
      ".\\\" Written by slipstream --manual.\n.TH SLIPSTREAM 1 \"\" \"slipstream " + roff(version) +
      "\" \"User Commands\"\n.SH NAME\nslipstream \\- train transformers with communication hidden behind "
      "compute\n.SH SYNOPSIS\n" +
      bold("slipstream") + " \\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n.br\n" + bold("mpirun -np") + " \\fIRANKS\\fR " +
      bold("slipstream train") + " \\fIRUN.toml\\fR\n.SH DESCRIPTION\n" + roff(app.get_description()) +
      "\n.SH OPTIONS\n" + options_of(commands.front(), false) + ".SH COMMANDS\n";
  for (size_t i = 1; i < commands.size(); ++i) {
    const Command& command = commands[i];
    text += ".SS " + roff(fmt::format("slipstream {}", fmt::join(command.path, " ")));
    for (const Flag& flag : command.positions) text += " " + roff(flag.names.back());
    text += "\n" + roff(command.about) + "\n" + options_of(command, true) + options_of(command, false);
  }
  return text + R"(.SH EXIT STATUS
.TP
0
The command is complete.
.TP
2
The command line, the run file or the layout is wrong.
.TP
3
Texts, token shards or the vocabulary are wrong.
.TP
4
A checkpoint or weights on disk are wrong, or another job uses the folder.
.TP
5
Loss, gradient norm or weights are not finite.
.TP
6
A peer or a link fails, or a collective does not end.
.TP
7
Memory, disk or devices do not suffice.
.TP
70
The program has a defect.
.TP
75
A signal ended the run after a checkpoint; \-\-resume continues it.
.SH ENVIRONMENT
.TP
\fBSLIPSTREAM_DATA\fR
The folder with the shipped machine files, run files and sweeps. Default: the data folder beside the program.
.SH SEE ALSO
\fBslipstream\-run\fR starts a run again after faults, and \fBslipstream\-sweep\fR measures one run file at many
settings; both describe themselves with \-\-help. \fBmpirun\fR(1) starts several ranks.
)";
}

}  // namespace slipstream::cli
