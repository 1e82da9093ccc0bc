// SPDX-License-Identifier: Apache-2.0
// Finds the functions of sources that clang-format has formatted, and of Python scripts, and judges their lengths.

#include <algorithm>
#include <cctype>
#include <map>
#include <regex>
#include <set>

#include <fmt/core.h>

#include "tests/tidy/rules.h"

namespace slipstream::tidy {
namespace {

constexpr int kFunctionLines = 70;

/// Replaces lines of the preprocessor, with those that continue them, by blanks.
std::string without_directives(std::string code) {
  bool directive = false;
  for (size_t at = 0; at < code.size();) {
    const size_t end = std::min(code.find('\n', at), code.size());
    const size_t first = code.find_first_not_of(" \t", at);
    directive = directive || (first < end && code[first] == '#');
    const bool continues = directive && end > at && code[end - 1] == '\\';
    if (directive) code.replace(at, end - at, end - at, ' ');
    directive = continues;
    at = end + 1;
  }
  return code;
}

/// The position of the brace or parenthesis that closes the one at `open`; the end of the code if none does.
size_t closing(std::string_view code, size_t open) {
  const char opens = code[open], closes = opens == '(' ? ')' : opens == '<' ? '>' : '}';
  int depth = 0;
  for (size_t at = open; at < code.size(); ++at) {
    if (code[at] == opens) ++depth;
    if (code[at] == closes && --depth == 0) return at;
  }
  return code.size();
}

/// A declaration without what may stand before its name: templates, attributes and launch bounds.
std::string bare(std::string declaration) {
  for (const char* word : {"template", "alignas", "__launch_bounds__", "__attribute__", "__align__", "requires"})
    for (const size_t at : words_in(declaration, word)) {
      const size_t open = declaration.find_first_not_of(" \n", at + std::string_view(word).size());
      if (open == std::string::npos || (declaration[open] != '(' && declaration[open] != '<')) continue;
      const size_t end = std::min(closing(declaration, open) + 1, declaration.size());
      declaration.replace(at, end - at, end - at, ' ');
    }
  return declaration;
}

/// The declaration with the contents of its parentheses and braces removed.
std::string outside_of_brackets(const std::string& declaration) {
  std::string outside;
  int depth = 0;
  for (const char c : declaration) {
    if (c == ')' || c == '}') --depth;
    if (depth == 0) outside += c;
    if (c == '(' || c == '{') ++depth;
  }
  return outside;
}

enum class Opens { scope, function, value };

/// What the brace after a declaration opens: a namespace or a class, a function, or the value of a variable or member.
Opens opened_by(const std::string& declaration) {
  static const std::regex scope("\\b(namespace|class|struct|enum|union|extern)\\b[^()]*$"),
      operators("operator *[-+*/%&|^<>=!]+"), initialisers("\\)\\s*(noexcept\\s*)?:[^:]");
  const std::string outside = std::regex_replace(outside_of_brackets(bare(declaration)), operators, "operator");
  if (outside.find('=') != std::string::npos) return Opens::value;
  if (std::regex_search(outside, scope)) return Opens::scope;
  if (outside.find('(') == std::string::npos) return Opens::value;
  const size_t last = outside.find_last_not_of(" \n");
  const bool after_name = is_word(outside[last]) || outside[last] == '>';
  return after_name && std::regex_search(outside, initialisers) ? Opens::value : Opens::function;
}

/// The name in the declaration of a function; of a test, its title. `text` has the literals that the code has not.
std::string name_in(const std::string& declaration, std::string_view text) {
  const std::string code = bare(declaration);
  if (const std::vector<size_t> operators = words_in(code, "operator"); !operators.empty())
    return code.substr(operators[0], code.find('(', operators[0]) - operators[0]);
  const size_t open = code.find('('), last = code.find_last_not_of(" \n", open - 1);
  size_t first = last;
  while (first > 0 && (is_word(code[first - 1]) || code[first - 1] == ':' || code[first - 1] == '~')) --first;
  const std::string name = code.substr(first, last + 1 - first);
  if (!name.starts_with("TEST_CASE")) return name;
  const size_t quote = text.find('"');
  return std::string(text.substr(quote + 1, text.find('"', quote + 1) - quote - 1));
}

std::vector<Function> functions_of_cpp(const File& file) {
  static const std::regex access("^\\s*(public|protected|private):");
  const std::string code = without_directives(code_only(file.text));
  std::vector<Function> functions;
  size_t begin = 0;  // of the declaration
  for (size_t at = 0; at < code.size(); ++at) {
    if (code[at] == ';' || code[at] == '}') begin = at + 1;
    if (code[at] == '(') at = closing(code, at);
    if (at >= code.size() || code[at] != '{') continue;
    std::smatch label;
    const auto from = code.cbegin() + static_cast<std::ptrdiff_t>(begin),
               to = code.cbegin() + static_cast<std::ptrdiff_t>(at);
    if (std::regex_search(from, to, label, access)) begin += static_cast<size_t>(label.length());
    begin = std::min(code.find_first_not_of(" \n", begin), at);
    const std::string declaration = code.substr(begin, at - begin);
    const Opens opens = opened_by(declaration);
    if (opens != Opens::scope) at = closing(code, at);
    if (opens == Opens::function) {
      const int line = line_at(code, begin);
      functions.push_back({name_in(declaration, std::string_view(file.text).substr(begin)), line,
                           line_at(code, std::min(at, code.size())) + 1 - line});
    }
    if (opens != Opens::value) begin = at + 1;
  }
  return functions;
}

/// By indentation. Lines of a string, and those that begin with a closing bracket, end no function.
std::vector<Function> functions_of_python(const File& file) {
  static const std::regex define("^( *)def (\\w+)\\(");
  const std::vector<std::string> lines = lines_of(file.text);
  std::vector<size_t> indents(lines.size(), std::string::npos);  // npos: the line ends nothing
  bool in_string = false;
  for (size_t i = 0; i < lines.size(); ++i) {
    const size_t first = lines[i].find_first_not_of(' ');
    if (!in_string && first != std::string::npos && lines[i][first] != ')') indents[i] = first;
    for (size_t at = lines[i].find("\"\"\""); at != std::string::npos; at = lines[i].find("\"\"\"", at + 3))
      in_string = !in_string;
  }
  std::vector<Function> functions;
  for (size_t i = 0; i < lines.size(); ++i) {
    std::smatch match;
    if (indents[i] == std::string::npos || !std::regex_search(lines[i], match, define)) continue;
    size_t end = i + 1;
    while (end < lines.size() && (indents[end] == std::string::npos || indents[end] > indents[i])) ++end;
    while (lines[end - 1].find_first_not_of(' ') == std::string::npos) --end;
    functions.push_back({match[2], static_cast<int>(i) + 1, static_cast<int>(end - i)});
  }
  return functions;
}

}  // namespace

std::vector<Function> functions_of(const File& file) {
  if (is_source(file.path)) return functions_of_cpp(file);
  return file.path.ends_with(".py") ? functions_of_python(file) : std::vector<Function>();
}

Findings check_function_lengths(const std::vector<File>& files, const std::vector<LongFunction>& listed) {
  std::map<std::string, int> rows;
  for (const LongFunction& row : listed) rows[fmt::format("{}: {}", row.path, row.name)] = row.lines;
  std::set<std::string> found;
  Findings findings;
  for (const File& file : files)
    for (const Function& function : functions_of(file)) {
      if (function.lines <= kFunctionLines) continue;
      const std::string key = fmt::format("{}: {}", file.path, function.name);
      const auto row = rows.find(key);
      found.insert(key);
      if (row == rows.end())
        findings.push_back(at_line(file, function.line) +
                           fmt::format("{} has {} lines of at most {}. Give its steps names of their own.",
                                       function.name, function.lines, kFunctionLines));
      else if (function.lines > row->second)
        findings.push_back(at_line(file, function.line) +
                           fmt::format("{} grew from {} lines to {}. It may only become shorter.", function.name,
                                       row->second, function.lines));
      else if (function.lines < row->second)
        findings.push_back(at_line(file, function.line) +
                           fmt::format("{} has {} lines now. Write that into tests/tidy/long_functions.h.",
                                       function.name, function.lines));
    }
  for (const auto& [key, lines] : rows)
    if (!found.contains(key))
      findings.push_back(
          fmt::format("{} has at most {} lines now, or another name. Remove its row from "
                      "tests/tidy/long_functions.h.",
                      key, kFunctionLines));
  return findings;
}

}  // namespace slipstream::tidy
