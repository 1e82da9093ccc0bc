// SPDX-License-Identifier: Apache-2.0
#pragma once
// The habits that a machine can judge, as functions of a file's path and text.

#include <string>
#include <string_view>
#include <vector>

namespace slipstream::tidy {

/// A file of the tree: its path from the root with forward slashes, and its text.
struct File {
  std::string path;
  std::string text;
};

/// "path:line: what is wrong. What to do."
using Findings = std::vector<std::string>;

/// The text with comments, and what is inside string and character literals, replaced by blanks; lines stay lines.
/// The names in #include lines are kept. Pure.
std::string code_only(std::string_view text);

/// One file at a time. Pure.
Findings check_licence(const File& file);
Findings check_header(const File& file);
Findings check_arrows(const File& file);
Findings check_vendors(const File& file);
Findings check_calls(const File& file);
Findings check_leftovers(const File& file);
Findings check_width(const File& file);
/// Markdown: tables, code and lines without a space to break at may be wider.
Findings check_markdown_width(const File& file);
Findings check_card(const File& file);

/// Rules about all files together. Pure.
Findings check_cycles(const std::vector<File>& files);
Findings check_single_includes(const std::vector<File>& files);
Findings check_built(const std::vector<File>& files);

/// Lengths are reported, not judged. Pure.
Findings long_files(const std::vector<File>& files, int lines_max);

}  // namespace slipstream::tidy
