// SPDX-License-Identifier: Apache-2.0
// Reads C++ without a compiler.

#include "tests/tidy/code.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include <fmt/core.h>

namespace slipstream::tidy {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool is_source(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  return extension == ".cpp" || extension == ".h" || extension == ".hpp" || extension == ".cu" || extension == ".cuh";
}

bool is_header(const std::string& path) {
  return path.ends_with(".h") || path.ends_with(".hpp") || path.ends_with(".cuh");
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::string folder_of(const std::string& path) {
  const size_t from = path.starts_with("trainer/") ? std::string_view("trainer/").size() : 0;
  return path.substr(0, path.find('/', from));
}

std::vector<Include> includes_of(const File& file) {
  std::vector<Include> includes;
  int line = 0;
  for (const std::string& text : lines_of(code_only(file.text))) {
    ++line;
    const size_t hash = text.find_first_not_of(" \t");
    if (hash == std::string::npos || text[hash] != '#') continue;
    const size_t word = text.find_first_not_of(" \t", hash + 1);
    if (word == std::string::npos || text.compare(word, 7, "include") != 0) continue;
    const size_t open = text.find_first_of("\"<", word);
    if (open == std::string::npos) continue;
    const size_t close = text.find_first_of("\">", open + 1);
    if (close != std::string::npos) includes.push_back({text.substr(open + 1, close - open - 1), line});
  }
  return includes;
}

std::vector<size_t> words_in(const std::string& code, std::string_view word) {
  std::vector<size_t> found;
  for (size_t at = code.find(word); at != std::string::npos; at = code.find(word, at + 1)) {
    if (at > 0 &&
        (is_word(code[at - 1]) || code[at - 1] == '.' || (at > 1 && code[at - 1] == '>' && code[at - 2] == '-')))
      continue;
    if (at + word.size() < code.size() && is_word(code[at + word.size()])) continue;
    found.push_back(at);
  }
  return found;
}

int line_at(const std::string& text, size_t at) {
  return 1 + static_cast<int>(std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'));
}

std::string at_line(const File& file, int line) { return fmt::format("{}:{}: ", file.path, line); }

namespace {

/// The end of the literal R"MARK(...)MARK" at `begin`; `begin` if there is none.
size_t end_of_raw_string(std::string_view text, size_t begin) {
  if (!text.substr(begin).starts_with("R\"") || (begin > 0 && is_word(text[begin - 1]))) return begin;
  const size_t open = text.find('(', begin);
  if (open == std::string_view::npos) return begin;
  const std::string close = fmt::format("){}\"", text.substr(begin + 2, open - begin - 2));
  const size_t end = text.find(close, open);
  return end == std::string_view::npos ? text.size() : end + close.size();
}

}  // namespace

std::string code_only(std::string_view text) {
  std::string code(text);
  enum class In { plain, line_comment, comment, string, character } in = In::plain;
  bool include_line = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (c == '\n') {
      if (in != In::comment) in = In::plain;
      include_line = false;
      continue;
    }
    switch (in) {
      case In::plain:
        if (const size_t end = end_of_raw_string(text, i); end > i) {
          for (; i < end; ++i)
            if (text[i] != '\n') code[i] = ' ';
          --i;
          break;
        }
        if (c == '#') include_line = text.substr(i, 20).find("include") != std::string_view::npos;
        if (c == '/' && next == '/') in = In::line_comment;
        if (c == '/' && next == '*') in = In::comment;
        if (c == '"' && !include_line) in = In::string;
        // A quote between digits separates thousands.
        if (c == '\'' && !(i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1])))) in = In::character;
        if (in == In::line_comment || in == In::comment) {
          code[i] = code[i + 1] = ' ';
          ++i;
        }
        break;
      case In::comment:
        code[i] = ' ';
        if (c == '*' && next == '/') {
          code[++i] = ' ';
          in = In::plain;
        }
        break;
      case In::line_comment:
        code[i] = ' ';
        break;
      case In::string:
      case In::character:
        if (c == (in == In::string ? '"' : '\'')) {
          in = In::plain;
          break;
        }
        code[i] = ' ';
        if (c == '\\' && next != '\n' && i + 1 < text.size()) code[++i] = ' ';
        break;
    }
  }
  return code;
}

}  // namespace slipstream::tidy
