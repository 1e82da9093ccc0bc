// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files of the tree as the rules read them: lines, words and #include lines.

#include <string>
#include <string_view>
#include <vector>

namespace slipstream::tidy {

/// A file of the tree: its path from the root with forward slashes, and its text.
struct File {
  std::string path;
  std::string text;
};

struct Include {
  std::string name;
  int line = 0;
};

/// A function with its declaration and all lambdas in it.
struct Function {
  std::string name;  // as declared: "Trainer::run", but "run" within its class; of a test, its title
  int line = 0;
  int lines = 0;
};

// All functions are pure.

bool is_source(const std::string& path);
bool is_header(const std::string& path);
/// The first folder of a path; for a path in trainer/, the folder and its room.
std::string folder_of(const std::string& path);
std::vector<std::string> lines_of(const std::string& text);
std::vector<Include> includes_of(const File& file);
/// The functions of a C++ or CUDA source, not those that a variable holds, and of a Python script.
std::vector<Function> functions_of(const File& file);
/// The text with comments, and the contents of string and character literals, replaced by blanks; lines stay
/// lines. The names in #include lines are kept.
std::string code_only(std::string_view text);
/// May the character be part of an identifier?
bool is_word(char c);
/// The position of `word` as a whole word in `code`, not after '.' or "->", because that is a member of another class.
std::vector<size_t> words_in(const std::string& code, std::string_view word);
/// The number of the line at a position, counted from 1.
int line_at(const std::string& text, size_t at);
/// "path:line: ", the start of a finding.
std::string at_line(const File& file, int line);

}  // namespace slipstream::tidy
