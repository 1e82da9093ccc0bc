// SPDX-License-Identifier: Apache-2.0
// The rules of tidy. A message names the remedy.

#include "tests/tidy/rules.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include <fmt/core.h>

namespace slipstream::tidy {
namespace {

struct Include {
  std::string name;
  int line = 0;
};

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

std::string folder_of(const std::string& path) { return path.substr(0, path.find('/')); }

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

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

/// Position of `word` as a whole word in `code`, not after '.' or "->" (a member of another class).
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

constexpr int kColumns = 120;  // as in .clang-format

/// Bytes of UTF-8 that continue a character take no column.
int columns_of(const std::string& line) {
  return static_cast<int>(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string at_line(const File& file, int line) { return fmt::format("{}:{}: ", file.path, line); }

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
    return {at_line(file, 2) + "#pragma once is missing behind the licence. Add it."};
  if (!lines[2].starts_with("// "))
    return {at_line(file, 3) + "a header states its purpose in one sentence after #pragma once."};
  return {};
}

Findings check_arrows(const File& file) {
  // The folders that each folder may include.
  static const std::map<std::string, std::set<std::string>> floors = {
      {"engine", {"engine"}},
      {"kernels", {"engine", "kernels"}},
      {"comm", {"engine", "comm"}},
      {"models", {"engine", "kernels", "models"}},
      {"planner", {"engine", "kernels", "comm", "models", "planner"}},
      {"runtime", {"engine", "kernels", "comm", "models", "planner", "runtime"}},
      {"bench", {"engine", "kernels", "comm", "models", "planner", "runtime", "bench"}},
      {"cli", {"engine", "comm", "planner", "runtime", "bench", "cli"}}};
  // The parts of a folder from the bottom up, a part being a sub-folder or the files of one stem. `others` is the
  // height of parts that have none of their own: ops and models, of which there may be any number.
  struct Parts {
    std::map<std::string, int> heights;
    std::optional<int> others;
    const char* order;
  };
  static const std::map<std::string, Parts> parts = {
      {"engine",
       {{{"base", 0},
         {"device", 1},
         {"config", 2},
         {"plan", 2},
         {"step", 3},
         {"data", 3},
         {"checkpoint", 3},
         {"report", 3}},
        {},
        "base <- device <- config, plan <- step, data, checkpoint, report"}},
      {"kernels",
       {{{"common", 0}, {"cuda", 1}, {"matmul", 3}, {"step_scalars", 3}, {"muon", 4}, {"no_cuda", 5}, {"updates", 5}},
        2,
        "common <- cuda <- ops <- matmul, step_scalars <- muon <- no_cuda, updates"}},
      {"comm",
       {{{"communicator", 0},
         {"link", 0},
         {"wait_limit", 0},
         {"watchdog", 1},
         {"host", 1},
         {"rehearse", 1},
         {"imitated_communicator", 2},
         {"emulate", 2},
         {"mpi", 2},
         {"nccl", 2},
         {"sim", 2},
         {"thread", 2},
         {"scheduler", 3},
         {"wiring", 3}},
        {},
        "communicator, link, wait_limit <- host, rehearse, watchdog <- emulate, imitated_communicator, mpi, nccl, sim, "
        "thread <- scheduler, wiring"}},
      {"models", {{{"model", 0}, {"common", 1}, {"registry", 3}}, 2, "model <- common <- families <- registry"}}};
  const std::string folder = folder_of(file.path);
  const auto floor = floors.find(folder);
  if (floor == floors.end() || !is_source(file.path)) return {};
  Findings findings;
  const auto part_of = [](const std::string& path) {
    const size_t slash = path.find('/');
    return path.substr(slash + 1, path.find_first_of("/.", slash + 1) - slash - 1);
  };
  const auto within = parts.find(folder);
  const auto height_of = [&](const std::string& part) {
    const auto found = within->second.heights.find(part);
    return found == within->second.heights.end() ? within->second.others : std::optional(found->second);
  };
  for (const Include& include : includes_of(file)) {
    const std::string target = folder_of(include.name);
    if (target == "tests")
      findings.push_back(at_line(file, include.line) + "the program includes a test. Move what it needs.");
    if (!floors.contains(target)) continue;
    if (!floor->second.contains(target))
      findings.push_back(at_line(file, include.line) +
                         fmt::format("{} may not know {}. Arrows point down: cli -> bench -> runtime -> planner -> "
                                     "models -> kernels -> engine and planner -> comm -> engine.",
                                     folder, target));
    if (target != folder || within == parts.end()) continue;
    const std::string from = part_of(file.path), to = part_of(include.name);
    const std::optional<int> from_height = height_of(from), to_height = height_of(to);
    if (!from_height || !to_height)
      findings.push_back(
          at_line(file, include.line) +
          fmt::format("{}/{} has no height. Give it one in tests/tidy/rules.cpp.", folder, from_height ? to : from));
    else if (from != to && *to_height >= *from_height)
      findings.push_back(at_line(file, include.line) +
                         fmt::format("{0}/{1} may not know {0}/{2}: {3}.", folder, from, to, within->second.order));
  }
  return findings;
}

Findings check_cycles(const std::vector<File>& files) {
  // A header and the sources of its stem are one unit; an op of kernels/ is one with its backends.
  const auto unit_of = [](const std::string& path) {
    const std::string parent = std::filesystem::path(path).parent_path().string();
    const bool is_op = path.starts_with("kernels/") && parent.size() > std::string_view("kernels/").size() &&
                       parent != "kernels/common" && parent != "kernels/cuda";
    return is_op ? parent : path.substr(0, path.rfind('.'));
  };
  std::map<std::string, std::map<std::string, std::string>> includes;  // "file:line: includes target" by unit and unit
  for (const File& file : files) {
    if (!is_source(file.path) || folder_of(file.path) == "tests") continue;
    for (const Include& include : includes_of(file))
      if (unit_of(include.name) != unit_of(file.path))
        includes[unit_of(file.path)].try_emplace(unit_of(include.name),
                                                 at_line(file, include.line) + "includes " + include.name);
  }
  Findings findings;
  std::set<std::string> done;
  std::vector<std::string> trail;
  const std::function<void(const std::string&)> follow = [&](const std::string& unit) {
    const auto open = std::find(trail.begin(), trail.end(), unit);
    if (open != trail.end()) {
      std::string cycle = "includes form a cycle. Move what both ends need into a header of its own.";
      for (auto at = open; at != trail.end(); ++at)
        cycle += "\n  " + includes[*at][at + 1 == trail.end() ? unit : *(at + 1)];
      findings.push_back(cycle);
      return;
    }
    if (done.contains(unit) || !includes.contains(unit)) return;
    trail.push_back(unit);
    for (const auto& [target, where] : includes[unit]) follow(target);
    trail.pop_back();
    done.insert(unit);
  };
  std::vector<std::string> units;
  for (const auto& [unit, targets] : includes) units.push_back(unit);
  for (const std::string& unit : units) follow(unit);
  return findings;
}

Findings check_vendors(const File& file) {
  if (!is_source(file.path)) return {};
  const auto below = [&](std::string_view folder) { return file.path.starts_with(folder); };
  const bool cuda_place = file.path.find("/cuda/") != std::string::npos || file.path.ends_with(".cu") ||
                          file.path.ends_with(".cuh") || below("tests/fake_cuda/") || below("tests/emulation/");
  Findings findings;
  for (const Include& include : includes_of(file)) {
    const std::string& name = include.name;
    const auto fence = [&](bool matches, bool inside, const char* where) {
      if (matches && !inside)
        findings.push_back(at_line(file, include.line) +
                           fmt::format("{} is included only {}. Use what that folder offers.", name, where));
    };
    fence(name == "mpi.h", below("comm/mpi/") || file.path == "tests/bench/mpi_bench.cpp", "in comm/mpi/");
    fence(name == "nccl.h", below("comm/nccl/") || below("tests/fake_cuda/"), "in comm/nccl/");
    fence(name.starts_with("cuda") || name.starts_with("cublas") || name.starts_with("cub/") ||
              name.starts_with("nvtx") || name == "mma.h",
          cuda_place, "under a cuda/ folder or in .cu files");
    fence(name.starts_with("toml++/"), below("engine/config/"), "in engine/config/");
    fence(name.starts_with("oneapi/") || name.starts_with("dnnl"), below("kernels/matmul/") || below("tests/"),
          "in kernels/matmul/");
    fence(name.starts_with("Eigen/"), below("kernels/") || below("tests/"), "in kernels/ and tests/");
    fence(name.starts_with("CLI/"), below("cli/"), "in cli/");
    fence(name.starts_with("catch2/"), file.path == "tests/test.hpp" || file.path == "tests/catch_main.cpp",
          "by tests/test.hpp");
  }
  return findings;
}

Findings check_calls(const File& file) {
  if (!is_source(file.path)) return {};
  struct Ban {
    const char* word;
    bool call;            // only where '(' follows
    bool in_tests;        // tests keep to it too
    const char* allowed;  // a file that may
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
      {"exit", true, false, "cli/main.cpp", "a typed Error (engine/base/check.h); only main exits"},
      {"std::abort", true, false, "", "SLIP_ASSERT or a typed Error"},
      {"assert", true, false, "", "SLIP_ASSERT, which stays on"},
      {"cout", false, false, "", "log_info for people, print_result for results"},
      {"cerr", false, false, "", "log_info; only main prints errors"},
      {"endl", false, false, "", "'\\n'"},
      {"system", true, false, "", "the library call; no shell behind the user's back"},
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
  // Spelt in two parts, so that this file keeps its own rule.
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

Findings check_card(const File& file) {
  const std::filesystem::path path(file.path);
  if (!file.path.starts_with("kernels/") || path.parent_path().filename() != path.stem() || path.extension() != ".h")
    return {};
  // Op cards from before this rule, with other headings. This list only gets shorter.
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

Findings check_single_includes(const std::vector<File>& files) {
  // Header-heavy libraries: each costs a second or more of compile time per file that includes it.
  static const std::vector<std::pair<std::string, size_t>> libraries = {
      {"toml++/", 1}, {"nlohmann/", 1}, {"spdlog/", 1}, {"xxhash.h", 1}, {"oneapi/dnnl/", 1}};
  Findings findings;
  for (const auto& [library, files_max] : libraries) {
    std::vector<std::string> users;
    for (const File& file : files)
      if (is_source(file.path) && folder_of(file.path) != "tests") {
        const auto includes = includes_of(file);
        if (std::any_of(includes.begin(), includes.end(),
                        [&](const Include& i) { return i.name.starts_with(library); }))
          users.push_back(file.path + (is_header(file.path) ? " (a header)" : ""));
      }
    const bool in_header =
        std::any_of(users.begin(), users.end(), [](const std::string& u) { return u.ends_with("(a header)"); });
    if (users.size() <= files_max && !in_header) continue;
    std::string list;
    for (const std::string& user : users) list += (list.empty() ? "" : ", ") + user;
    findings.push_back(
        fmt::format("{} is included by {}; at most {} .cpp may. Go through its functions.", library, list, files_max));
  }
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
