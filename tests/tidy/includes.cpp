// SPDX-License-Identifier: Apache-2.0
// The rules about #include lines: which folder may know which, cycles, and vendors.

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include <fmt/core.h>

#include "tests/tidy/rules.h"

namespace slipstream::tidy {
namespace {

/// The parts of a folder from the bottom up, a part being a sub-folder or the files of one stem. `others` is the
/// height of parts that have none of their own: ops and models, of which there may be any number.
struct Parts {
  std::map<std::string, int> heights;
  std::optional<int> others;
  const char* order;
};

/// The folders that each folder may include.
const std::map<std::string, std::set<std::string>>& floors() {
  static const std::map<std::string, std::set<std::string>> all = {
      {"engine", {"engine"}},
      {"kernels", {"engine", "kernels"}},
      {"comm", {"engine", "comm"}},
      {"models", {"engine", "kernels", "models"}},
      {"trainer/planner", {"engine", "kernels", "comm", "models", "trainer/planner"}},
      {"trainer/report", {"engine", "comm", "trainer/report"}},
      {"trainer/runtime", {"engine", "kernels", "comm", "models", "trainer/planner", "trainer/runtime"}},
      {"trainer/bench", {"engine", "kernels", "comm", "models", "trainer/planner", "trainer/runtime", "trainer/bench"}},
      {"trainer/cli",
       {"engine", "comm", "trainer/planner", "trainer/report", "trainer/runtime", "trainer/bench", "trainer/cli"}}};
  return all;
}

const std::map<std::string, Parts>& parts() {
  static const std::map<std::string, Parts> all = {
      {"engine",
       {{{"base", 0},
         {"device", 1},
         {"config", 2},
         {"plan", 2},
         {"step", 3},
         {"data", 3},
         {"checkpoint", 4},
         {"report", 3}},
        {},
        "base <- device <- config, plan <- step, data, report <- checkpoint"}},
      {"kernels",
       {{{"common", 0},
         {"cuda", 1},
         {"matmul", 3},
         {"step_scalars", 3},
         {"experts", 4},
         {"layer_norm", 4},
         {"muon", 4},
         {"no_cuda", 5},
         {"updates", 5}},
        2,
        "common <- cuda <- ops <- matmul, step_scalars <- experts, layer_norm, muon <- no_cuda, updates"}},
      {"comm",
       {{{"communicator", 0},
         {"link", 0},
         {"flight", 0},
         {"side_channel", 1},
         {"sockets", 0},
         {"verdict", 1},
         {"monitor", 2},
         {"watchdog", 1},
         {"host", 1},
         {"rehearse", 1},
         {"imitated_communicator", 2},
         {"emulate", 2},
         {"mpi", 2},
         {"nccl", 2},
         {"sim", 2},
         {"thread", 2},
         {"wiring", 3},
         {"scheduler", 4}},
        {},
        "communicator, flight, link, sockets <- host, rehearse, side_channel, verdict, watchdog <- emulate, "
        "imitated_communicator, monitor, mpi, nccl, sim, thread <- wiring <- scheduler"}},
      {"models",
       {{{"model", 0}, {"common", 1}, {"layers", 2}, {"registry", 4}},
        3,
        "model <- common <- layers <- generation, hugging_face <- registry"}},
      {"engine/data", {{{"sidecar", 0}, {"tokenizers", 1}, {"datasets", 2}}, {}, "sidecar <- tokenizers <- datasets"}},
      {"trainer/planner",
       {{{"options", 0}, {"forecast", 2}, {"search", 3}}, 1, "options <- the job's files <- forecast <- search"}},
      {"trainer/runtime",
       {{{"rank", 0}, {"run_folder", 1}, {"weights", 1}, {"durability", 2}, {"text", 2}, {"loop", 3}},
        {},
        "rank <- run_folder, weights <- durability, text <- loop"}}};
  return all;
}

/// Both files lie in the folder `whole`.
Findings check_parts(const File& file, const Include& include, const std::string& whole, const Parts& within) {
  const auto part_of = [&](const std::string& path) {
    const size_t from = whole.size() + 1;
    return path.substr(from, path.find_first_of("/.", from) - from);
  };
  const auto height_of = [&](const std::string& part) {
    const auto found = within.heights.find(part);
    return found == within.heights.end() ? within.others : std::optional(found->second);
  };
  const std::string from = part_of(file.path), to = part_of(include.name);
  const std::optional<int> from_height = height_of(from), to_height = height_of(to);
  const bool files_of_the_whole = from_height == within.others && to_height == within.others;
  if (!from_height || !to_height)
    return {at_line(file, include.line) + fmt::format("{}/{} has no height. Give it one in tests/tidy/includes.cpp.",
                                                      whole, from_height ? to : from)};
  if (from != to && *to_height >= *from_height && !(whole.starts_with("trainer/") && files_of_the_whole))
    return {at_line(file, include.line) +
            fmt::format("{0}/{1} may not know {0}/{2}: {3}.", whole, from, to, within.order)};
  return {};
}

}  // namespace

Findings check_arrows(const File& file) {
  const std::string folder = folder_of(file.path);
  const auto floor = floors().find(folder);
  if (floor == floors().end() || !is_source(file.path)) return {};
  Findings findings;
  for (const Include& include : includes_of(file)) {
    const std::string target = folder_of(include.name);
    if (target == "tests")
      findings.push_back(at_line(file, include.line) + "the program includes a test. Move what it needs.");
    if (!floors().contains(target)) continue;
    if (!floor->second.contains(target))
      findings.push_back(at_line(file, include.line) +
                         fmt::format("{} may not know {}. Arrows point down: cli -> bench -> runtime -> planner -> "
                                     "models -> kernels -> engine and planner, report -> comm -> engine.",
                                     folder, target));
    for (const auto& [whole, within] : parts())
      if (file.path.starts_with(whole + "/") && include.name.starts_with(whole + "/"))
        for (const std::string& finding : check_parts(file, include, whole, within)) findings.push_back(finding);
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
    fence(name == "mpi.h", below("comm/mpi/"), "in comm/mpi/");
    fence(name == "nccl.h", below("comm/nccl/") || below("tests/fake_cuda/"), "in comm/nccl/");
    fence(name.starts_with("cuda") || name.starts_with("cublas") || name.starts_with("cub/") ||
              name.starts_with("nvtx") || name == "mma.h",
          cuda_place, "under a cuda/ folder or in .cu files");
    fence(name.starts_with("toml++/"), below("engine/config/"), "in engine/config/");
    fence(name.starts_with("oneapi/") || name.starts_with("dnnl"), below("kernels/matmul/") || below("tests/"),
          "in kernels/matmul/");
    fence(name.starts_with("Eigen/"), below("kernels/") || below("tests/"), "in kernels/ and tests/");
    fence(name.starts_with("CLI/"), below("trainer/cli/"), "in trainer/cli/");
    fence(name.starts_with("catch2/"), file.path == "tests/test.hpp" || file.path == "tests/catch_main.cpp",
          "by tests/test.hpp");
  }
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

}  // namespace slipstream::tidy
