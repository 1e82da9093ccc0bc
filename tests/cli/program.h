// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs the built program as a user would, in a separate folder, and returns its output.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "tests/paths.h"
#include "tests/sample.h"
#include "tests/test.hpp"

namespace slipstream::program {

namespace fs = std::filesystem;

struct Result {
  int code = -1;     // 124: the time was over
  std::string text;  // standard output and standard error
};

/// Blocks. Runs one shell command, at most a minute unless stated otherwise.
inline Result shell(const std::string& command, int seconds = 60) {
  std::FILE* pipe = popen(("timeout -k 5 " + std::to_string(seconds) + " sh -c '" + command + "' 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  Result result;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) result.text.append(buffer, n);
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

/// A folder that is removed after the test.
class Folder {
 public:
  Folder() {
    std::string path = (fs::temp_directory_path() / "slipstream_cli_XXXXXX").string();
    REQUIRE(mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& content) const {
    std::ofstream(path(name), std::ios::binary) << content;
    return path(name);
  }

 private:
  std::string path_;
};

inline std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The JSON of a file with one member replaced.
inline std::string json_with(const std::string& path, const std::string& key, Json value) {
  Json config = Json::parse(read(path));
  config[key] = std::move(value);
  return config.dump(2);
}

/// About 20 kB of English-like text over 30 characters.
inline std::string english() {
  const char* words[] = {"the",   "wind",    "carries", "every", "sail", "before", "a",
                         "quiet", "harbour", "of",      "grain", "and",  "salt"};
  std::string text;
  uint32_t state = 1;
  while (text.size() < 20'000) {
    state = state * 1664525u + 1013904223u;
    text += words[(state >> 16) % 13];
    text += (state >> 24) % 9 == 0 ? ".\n" : " ";
  }
  return text;
}

/// A run that takes a second. `more` is appended as TOML.
inline std::string run_file(const Folder& folder, const std::string& more = "") {
  if (!fs::exists(folder.path("text.txt"))) folder.write("text.txt", english());
  return folder.write("run.toml",
                      "[model]\nfamily = \"gpt2\"\nlayers = 2\nheads = 2\nwidth = 16\ncontext = 16\n"
                      "[data]\ntrain = \"" +
                          folder.path("text.txt") +
                          "\"\n"
                          "[train]\nsteps = 6\nmicro_batch_size = 2\nglobal_batch_size = 4\neval_batches = 2\n"
                          "[optimizer]\nlearning_rate = 3e-3\nmin_learning_rate = 1e-3\nwarmup_steps = 2\n"
                          "[overlap]\nbucket_size = \"8KiB\"\nfirst_bucket_size = \"2KiB\"\n"
                          "[device]\nthreads = 1\n"
                          "[output]\ndir = \"" +
                          folder.path("run") + "\"\n" + more);
}

inline const std::string& exe() { return slipstream_program(); }
inline Result call(const std::string& arguments) { return shell(exe() + " " + arguments); }

inline std::string mpirun() {
  return "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 " + mpirun_program() +
         " --oversubscribe --bind-to none ";
}
inline Result on_ranks(int ranks, const std::string& arguments) {
  return shell(mpirun() + "-np " + std::to_string(ranks) + " " + exe() + " " + arguments);
}
inline bool has_mpirun() {
  if (mpirun_program().empty()) WARN("SKIPPED more than one rank: no mpirun in this build");
  return !mpirun_program().empty();
}

inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}
inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// The number printed after `words`.
inline double number_after(const std::string& text, const std::string& words, size_t* end = nullptr) {
  const size_t at = text.find(words);
  REQUIRE(at != std::string::npos);
  size_t used = 0;
  const double value = std::stod(text.substr(at + words.size()), &used);
  if (end) *end = at + words.size() + used;
  return value;
}

/// The size printed after `words`, in bytes.
inline double bytes_after(const std::string& text, const std::string& words) {
  size_t end = 0;
  const double value = number_after(text, words, &end);
  const std::string unit = text.substr(end + 1, 3);
  return value * (unit == "GiB" ? 0x1p30 : unit == "MiB" ? 0x1p20 : unit == "KiB" ? 0x1p10 : 1);
}

/// Checks that the program failed with this code and one error that contains all these parts, and that no exception
/// escaped as a bug.
inline void check_refused(const Result& result, int code, const std::vector<std::string>& parts) {
  INFO(result.text);
  CHECK(result.code == code);
  for (const std::string& part : parts) CHECK(contains(result.text, part));
  CHECK(contains(result.text, "slipstream: "));
  CHECK(!contains(result.text, "[bug]"));
  CHECK(!contains(result.text, "terminate called"));
}

inline std::vector<Json> metrics(const std::string& run) {
  std::vector<Json> lines;
  std::ifstream file(run + "/metrics.jsonl");
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

/// What a run has computed, by step.
inline std::vector<std::string> trajectory(const std::string& run) {
  std::vector<std::string> lines;
  for (const Json& line : metrics(run)) {
    std::string text;
    for (const char* key : {"step", "loss", "lr", "grad_norm", "val_loss", "params_hash"})
      if (const Json* value = line.find(key)) text += std::string(key) + " " + value->dump() + " ";
    lines.push_back(text);
  }
  return lines;
}

/// docs/reference/metrics.md has a row or a line for every field of this object.
inline void check_documented(const Json& about) {
  const std::string page = read(source_dir() + "/docs/reference/metrics.md");
  for (const auto& [key, value] : about.as_object()) {
    INFO(key);
    CHECK((contains(page, "\n| `" + key + "` |") || contains(page, "\n- `" + key + "`: ")));
  }
}

/// Checks that the run has a line for every step, and all its files, and that no file is half-written.
inline void check_complete(const std::string& run, int64_t steps) {
  const std::vector<Json> lines = metrics(run);
  REQUIRE(static_cast<int64_t>(lines.size()) == steps);
  for (int64_t step = 1; step <= steps; ++step) CHECK(lines[static_cast<size_t>(step) - 1].at("step").as_int() == step);
  CHECK(lines.back().at("val_loss").as_double() > 0);
  CHECK(lines.back().at("params_hash").as_string().size() == 32);
  const Json about = Json::parse(read(run + "/run.json"));
  CHECK(about.at("plan_hash").as_string().size() == 16);
  CHECK(about.at("version").as_string() == project_version());
  for (const char* key : {"host", "build", "compiler", "products_library"}) CHECK(!about.at(key).as_string().empty());
  check_documented(about);
  CHECK(fs::exists(run + "/config.resolved.toml"));
  CHECK(fs::exists(run + "/checkpoints/final/model.safetensors"));
  CHECK(Json::parse(read(run + "/checkpoints/final/config.json")).at("model_type").as_string() == "gpt2");
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(run))
    CHECK(!contains(entry.path().string(), ".tmp"));
}

}  // namespace slipstream::program
