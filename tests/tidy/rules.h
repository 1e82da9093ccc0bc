// SPDX-License-Identifier: Apache-2.0
#pragma once
// The rules that a machine can check, as functions of a file's path and text.

#include <string>
#include <vector>

#include "tests/tidy/code.h"

namespace slipstream::tidy {

/// "path:line: what is wrong. What to do."
using Findings = std::vector<std::string>;

/// Pure. Checks one file at a time.
Findings check_licence(const File& file);
Findings check_header(const File& file);
Findings check_arrows(const File& file);
Findings check_vendors(const File& file);
Findings check_calls(const File& file);
Findings check_leftovers(const File& file);
Findings check_width(const File& file);
/// Markdown: tables, code and lines without a space to break at may be wider.
Findings check_markdown_width(const File& file);
/// Doxygen reads commands and elements of HTML in `///` comments.
Findings check_doxygen(const File& file);
Findings check_card(const File& file);

/// Pure. Rules about all files together.
Findings check_cycles(const std::vector<File>& files);
Findings check_single_includes(const std::vector<File>& files);
Findings check_built(const std::vector<File>& files);

/// A function that is longer than functions may be.
struct LongFunction {
  std::string path, name;
  int lines = 0;
};
/// Pure. A function has at most 70 lines, or exactly those of its row in `listed`: rows only shrink and disappear.
Findings check_function_lengths(const std::vector<File>& files, const std::vector<LongFunction>& listed);

/// Pure. Lengths of files are reported, not judged.
Findings long_files(const std::vector<File>& files, int lines_max);

}  // namespace slipstream::tidy
