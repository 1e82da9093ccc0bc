// SPDX-License-Identifier: Apache-2.0
// The rules of tidy, except those about #include lines. A message names the remedy.

#include "tests/tidy/rules.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <set>
#include <sstream>

#include <fmt/core.h>

namespace slipstream::tidy {
namespace {

constexpr int kColumns = 120;  // as in .clang-format

/// Bytes of UTF-8 that continue a character take no column.
int columns_of(const std::string& line) {
  return static_cast<int>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

Findings check_licence(const File& file) {
  static const std::set<std::string> kinds = {".cpp", ".h",  ".hpp",  ".cu",    ".cuh",
                                              ".sh",  ".py", ".toml", ".build", ".md"};
  static const std::set<std::string> others = {".ci/run", "meson_options.txt", ".clang-format", ".gitignore",
                                               ".git-blame-ignore-revs"};
  if (!kinds.contains(std::filesystem::path(file.path).extension().string()) && !others.contains(file.path)) return {};
  static const std::string licence = "SPDX-License-Identifier: Apache-2.0";
  const auto lines = lines_of(file.text);
  const size_t first = !lines.empty() && lines[0].starts_with("#!") ? 1 : 0;
  if (lines.size() > first)
    for (const std::string& line : {"// " + licence, "# " + licence, "<!-- " + licence + " -->"})
      if (lines[first] == line) return {};
  return {at_line(file, 1) +
          "the first line is no licence. Begin with \"SPDX-License-Identifier: Apache-2.0\" in a comment."};
}

Findings check_header(const File& file) {
  if (!is_header(file.path) || file.path.ends_with("/pch.h")) return {};  // GCC refuses `once` in a precompiled header
  const auto lines = lines_of(file.text);
  if (lines.size() < 3 || lines[1] != "#pragma once")
    return {at_line(file, 2) + "#pragma once is missing after the licence. Add it."};
  if (!lines[2].starts_with("// "))
    return {at_line(file, 3) + "a header states its purpose in one sentence after #pragma once."};
  return {};
}

Findings check_calls(const File& file) {
  if (!is_source(file.path)) return {};
  struct Ban {
    const char* word;
    bool call;            // banned only where '(' follows
    bool in_tests;        // tests must not use it either
    const char* allowed;  // a file that may use it
    const char* instead;
  };
  static const Ban bans[] = {
      {"sprintf", true, true, "", "fmt::format"},
      {"vsprintf", true, true, "", "fmt::format"},
      {"strcpy", true, true, "", "std::string"},
      {"strcat", true, true, "", "std::string"},
      {"atoi", true, true, "comm/mpi/no_mpi.cpp", "std::from_chars, which reports errors"},
      {"atof", true, true, "", "std::from_chars, which reports errors"},
      {"strtok", true, true, "", "std::string_view::find"},
      {"rand", true, true, "", "Philox(seed, name), whose numbers do not depend on the order of calls"},
      {"srand", true, true, "", "Philox(seed, name)"},
      {"random_device", false, true, "", "a seed that the run file or the test prints"},
      {"exit", true, false, "trainer/cli/main.cpp", "a typed Error (engine/base/check.h); only main exits"},
      {"std::abort", true, false, "", "SLIP_ASSERT or a typed Error"},
      {"assert", true, false, "", "SLIP_ASSERT, which stays on"},
      {"cout", false, false, "", "log_info for people, print_result for results"},
      {"cerr", false, false, "", "log_info; only main prints errors"},
      {"endl", false, false, "", "'\\n'"},
      {"system", true, false, "", "the library call; no shell that the user does not see"},
      {"cudaDeviceSynchronize", true, false, "engine/device/cuda/cuda_device.cpp",
       "an event: the host never waits for the whole device"},
  };
  Findings findings;
  const std::string code = code_only(file.text);
  for (const Ban& ban : bans) {
    if ((!ban.in_tests && folder_of(file.path) == "tests") || file.path == ban.allowed) continue;
    for (const size_t at : words_in(code, ban.word)) {
      const size_t next = code.find_first_not_of(" \t\n", at + std::string_view(ban.word).size());
      if (ban.call && (next == std::string::npos || code[next] != '(')) continue;
      // A declaration or a qualified member of ours: `void abort()`, `Rank::abort()`.
      const size_t previous = at == 0 ? std::string::npos : code.find_last_not_of(" \t\n", at - 1);
      if (ban.call && previous != std::string::npos) {
        const bool qualified = code[previous] == ':';
        const bool of_std = qualified && previous >= 4 && code.compare(previous - 4, 5, "std::") == 0;
        if (qualified && !of_std) continue;
        size_t begin = previous + 1;
        while (begin > 0 && is_word(code[begin - 1])) --begin;
        const std::string before = code.substr(begin, previous + 1 - begin);
        if (!before.empty() && before != "return" && before != "else" && before != "do" && before != "case") continue;
      }
      findings.push_back(at_line(file, line_at(code, at)) +
                         fmt::format("{} is banned. Use {}.", ban.word, ban.instead));
    }
  }
  return findings;
}

Findings check_leftovers(const File& file) {
  Findings findings;
  // The word is spelt in two parts, so that this file keeps its own rule.
  static const std::string fix = std::string("FIX") + "ME", todo = std::string("TO") + "DO";
  const auto words = [&](const std::string& word) { return words_in(file.text, word); };
  for (const size_t at : words(fix))
    findings.push_back(at_line(file, line_at(file.text, at)) + fix +
                       " is banned. Fix it, or say what is known to be missing in the docs.");
  for (const size_t at : words(todo))
    if (file.text.compare(at + todo.size(), 2, "(#") != 0 ||
        !std::isdigit(static_cast<unsigned char>(file.text[std::min(at + todo.size() + 2, file.text.size() - 1)])))
      findings.push_back(at_line(file, line_at(file.text, at)) +
                         fmt::format("{0} without a number. Write {0}(#12), or do it.", todo));
  return findings;
}

Findings check_width(const File& file) {
  if (!is_source(file.path)) return {};
  Findings findings;
  int number = 0;
  for (const std::string& line : lines_of(file.text)) {
    ++number;
    const auto columns = columns_of(line);
    if (columns > kColumns)
      findings.push_back(
          at_line(file, number) +
          fmt::format("{} columns of at most {}. scripts/format.sh breaks the line.", columns, kColumns));
  }
  return findings;
}

Findings check_markdown_width(const File& file) {
  if (!file.path.ends_with(".md")) return {};
  Findings findings;
  int number = 0;
  bool fenced = false, indented = false, after_blank = true;
  for (const std::string& line : lines_of(file.text)) {
    ++number;
    const size_t begin = line.find_first_not_of(' ');
    const bool blank = begin == std::string::npos;
    // An indented block begins after a blank line; elsewhere indentation continues an item of a list.
    if (!blank) indented = begin >= 4 && (indented || after_blank);
    after_blank = blank;
    const bool fence = !blank && line.compare(begin, 3, "```") == 0;
    if (fence) fenced = !fenced;
    if (blank || fence || fenced || indented || line[begin] == '|' || columns_of(line) <= kColumns) continue;
    const bool item = line.compare(begin, 2, "- ") == 0 || line.compare(begin, 2, "* ") == 0;
    if (line.find(' ', begin + (item ? 2 : 0)) > kColumns) continue;  // a long link
    findings.push_back(at_line(file, number) +
                       fmt::format("{} columns of at most {}. Break the line at a space.", columns_of(line), kColumns));
  }
  return findings;
}

Findings check_doxygen(const File& file) {
  if (!is_header(file.path) || file.path.starts_with("tests/")) return {};
  Findings findings;
  int number = 0;
  for (const std::string& line : lines_of(file.text)) {
    ++number;
    const size_t begin = line.find_first_not_of(' ');
    if (begin == std::string::npos || line.compare(begin, 3, "///") != 0) continue;
    if (line.find_first_of("\\@") != std::string::npos || line.find("<script") != std::string::npos)
      findings.push_back(at_line(file, number) +
                         "Doxygen reads \\, @ and HTML as commands. Use words, or // for the line.");
  }
  return findings;
}

Findings check_card(const File& file) {
  const std::filesystem::path path(file.path);
  if (!file.path.starts_with("kernels/") || path.parent_path().filename() != path.stem() || path.extension() != ".h")
    return {};
  // These op cards are older than the rule and have other headings. This list only gets shorter.
  static const std::set<std::string> older = {"adamw",  "cast",         "cross_entropy", "embedding",
                                              "matmul", "step_scalars", "sum_squares"};
  if (older.contains(path.stem().string())) return {};
  Findings findings;
  for (const char* line : {"Shapes:", "Cost:", "Source:"})
    if (file.text.find(std::string("/// ") + line) == std::string::npos &&
        file.text.find(std::string("// ") + line) == std::string::npos)
      findings.push_back(at_line(file, 1) +
                         fmt::format("the card of {} has no line \"{}\". See kernels/rms_norm/rms_norm.h.",
                                     path.stem().string(), line));
  return findings;
}

Findings check_built(const std::vector<File>& files) {
  Findings findings;
  std::string builds;
  for (const File& file : files)
    if (file.path.ends_with("meson.build")) builds += file.text;
  for (const File& file : files) {
    if (!file.path.ends_with(".cpp") && !file.path.ends_with(".cu")) continue;
    if (folder_of(file.path) == "tests") continue;
    const std::filesystem::path path(file.path);
    // The build names a .cu by its folder and stem, in the list of CUDA kernels.
    const std::string name = path.extension() == ".cu"
                                 ? "'" + path.parent_path().filename().string() + "/" + path.stem().string() + "'"
                                 : path.filename().string();
    if (builds.find(name) == std::string::npos)
      findings.push_back(file.path + ": no meson.build names this file. Add it, or delete it.");
  }
  return findings;
}

Findings long_files(const std::vector<File>& files, int lines_max) {
  Findings findings;
  for (const File& file : files) {
    const auto lines = static_cast<int>(lines_of(file.text).size());
    if (is_source(file.path) && lines > lines_max)
      findings.push_back(fmt::format("{}: {} lines; a file aims at 250", file.path, lines));
  }
  return findings;
}

}  // namespace slipstream::tidy
