// SPDX-License-Identifier: Apache-2.0
// Starts scripts/import_config, writes the run file that it prints to a place where the planner can read it, and
// forecasts it.

#include "trainer/cli/plan_modes.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/json.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "engine/config/machine.h"
#include "engine/config/shipped.h"
#include "trainer/planner/forecast/forecast.h"

extern char** environ;

namespace slipstream::cli {
namespace {

/// A file in a new folder. The destructor removes both.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    std::string pattern = (std::filesystem::temp_directory_path() / "slipstream-import-XXXXXX").string();
    if (!mkdtemp(pattern.data()))
      throw ResourceError("[import] no folder can be made in {}. Set TMPDIR to a writable folder.", pattern);
    folder_ = pattern;
    files::write_file(path(), text);
  }
  ~TemporaryFile() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  std::string path() const { return folder_ + "/run.toml"; }

 private:
  std::string folder_;
};

/// Returns the folder of the script, which lies beside the shipped files.
std::string script_path() {
  const std::filesystem::path script = std::filesystem::path(shipped_folder()) / "scripts" / "import_config";
  std::error_code ignored;
  // Without a folder of shipped files, the path would be inside the current folder.
  if (!shipped_folder().empty() && std::filesystem::exists(script / "__main__.py", ignored)) return script.string();
  throw ResourceError(
      "[import] the script import_config is missing{}. Install the program with meson install, or keep its build "
      "folder "
      "in the source.",
      shipped_folder().empty() ? "" : " in " + script.parent_path().string());
}

struct Output {
  std::string printed, errors;
  int code = 0;  // the exit code; 128 and more: a signal
};

/// Runs a program from PATH without a shell and with an empty input. Blocks. Throws: ResourceError if it does not
/// start.
Output output_of(const std::vector<std::string>& command, const std::string& purpose) {
  std::array<int, 2> out{}, err{};
  if (pipe2(out.data(), O_CLOEXEC) != 0 || pipe2(err.data(), O_CLOEXEC) != 0)
    throw ResourceError("[import] no pipe can be made: {}.", std::strerror(errno));
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&files, err[1], STDERR_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t child = -1;
  const int failure = posix_spawnp(&child, arguments[0], &files, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  close(out[1]);
  close(err[1]);
  Output output;
  // The script prints its errors in one piece that fits into a pipe, so that it is enough to read one output after the
  // other.
  for (const auto& [from, to] : {std::pair{out[0], &output.printed}, std::pair{err[0], &output.errors}}) {
    std::array<char, 4096> buffer{};
    for (ssize_t size = 0; failure == 0 && (size = read(from, buffer.data(), buffer.size())) != 0;) {
      if (size < 0 && errno != EINTR) break;
      if (size > 0) to->append(buffer.data(), static_cast<size_t>(size));
    }
    close(from);
  }
  if (failure != 0)
    throw ResourceError("[import] {} cannot be started, which {}: {}. Install it, for example with scripts/setup.sh.",
                        command[0], purpose, std::strerror(failure));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  output.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return output;
}

/// Returns the answer of scripts/import_config. Throws: ConfigError, DataError, ResourceError.
Json read_import(const ImportOptions& options, int ranks) {
  std::vector<std::string> command = {"python3", "-B", script_path(), "--ranks", std::to_string(ranks)};
  command.insert(command.end(), {"--", options.format, options.path});
  const Output output = output_of(command, "reads configurations of other programs");
  Json answer;
  try {
    answer = Json::parse(output.printed, "import_config");
  } catch (const DataError&) {
    std::string last = output.errors.substr(0, output.errors.find_last_not_of('\n') + 1);
    last = last.substr(last.rfind('\n') + 1);
    throw InternalError("[import] the script import_config failed with exit code {} and: {}. Please report it with {}.",
                        output.code, files::printable(last, 200), files::shown(options.path));
  }
  if (const Json* refused = answer.find("refused")) {
    const std::string& reason = refused->as_string();
    if (output.code == static_cast<int>(ExitCode::data)) throw DataError("[import] {}", reason);
    if (output.code == static_cast<int>(ExitCode::resources)) throw ResourceError("[import] {}", reason);
    throw ConfigError("[import] {}", reason);
  }
  return answer;
}

std::string shown_value(const Json& value) {
  const std::string text = value.is_string() ? value.as_string() : value.dump();
  return text.empty() ? "" : " " + text;
}

void print_import(const Json& answer) {
  print_result("{}\n", answer.at("run_file").as_string());
  for (const Json& note : answer.at("notes").as_array()) print_result("note: {}\n", note.as_string());
  std::string defaulted, neutral;
  for (const auto& [name, value] : answer.at("defaulted").as_object())
    defaulted += (defaulted.empty() ? "" : ", ") + name + shown_value(value);
  for (const Json& option : answer.at("unused").as_array()) {
    const std::string name = option.at("name").as_string() + shown_value(option.at("value"));
    if (option.at("neutral").as_bool())
      neutral += (neutral.empty() ? "" : ", ") + name;
    else
      print_result("not used: {} ({}): {}\n", name, option.at("where").as_string(), option.at("reason").as_string());
  }
  if (!defaulted.empty()) print_result("defaults of {}: {}\n", answer.at("program").as_string(), defaulted);
  if (!neutral.empty()) print_result("not used, because they change no step time: {}\n", neutral);
}

/// Throws: ResourceError if a rank's memory does not hold the run, as check does.
void require_fits(const planner::Forecast& made, const std::string& machine_path) {
  const Machine machine = load_machine(machine_path);
  const int64_t need = made.software_bytes > 0 ? made.software_bytes : made.memory_bytes;
  if (machine.memory_bytes == 0 || need <= machine.memory_bytes) return;
  throw ResourceError(
      "[import] a rank{} needs {} but {} has {}. Use more ranks with --ranks, a smaller micro-batch or more "
      "recomputation, "
      "for example with --set train.recompute=full.",
      made.software_bytes > 0 ? "" : " of this program", format_bytes(need), machine.name,
      format_bytes(machine.memory_bytes));
}

}  // namespace

int plan_import(const ImportOptions& options, planner::PlanRequest request) {
  Json answer = read_import(options, request.ranks);
  const std::string& run_file = answer.at("run_file").as_string();
  if (!options.write.empty()) files::write_file(options.write, run_file);
  const TemporaryFile file(run_file);
  request.run_file = file.path();
  if (request.ranks == 0) request.ranks = static_cast<int>(answer.at("ranks").as_int());
  if (request.as.empty()) request.as = answer.at("as").as_string();
  if (!options.json) print_import(answer);
  if (request.machine.empty()) {
    if (options.json)
      print_result("{}\n", answer.dump(2));
    else
      print_result("A forecast needs --machine, such as configs/machines/h100x8.toml.\n");
    return 0;
  }
  if (request.ranks == 0)
    throw ConfigError("[import] {} does not tell the number of GPUs. Give --ranks.", files::shown(options.path));
  const planner::Forecast made = planner::forecast(request);
  require_fits(made, request.machine);
  const double rate = static_cast<double>(made.tokens) / made.step_ms * 1e3 / request.ranks;
  if (options.json) {
    answer["ranks"] = request.ranks;
    answer["as"] = request.as;
    answer["step_ms"] = made.step_ms;
    answer["tokens_per_s_per_rank"] = rate;
    answer["memory_bytes"] = made.memory_bytes;
    print_result("{}\n", answer.dump(2));
    return 0;
  }
  print_result("{} ranks as {}: {:.1f} ms a step ({:.1f} to {:.1f}), {:.0f} tokens/s per rank, {} of memory\n",
               request.ranks, request.as, made.step_ms, made.low_ms, made.high_ms, rate,
               format_bytes(made.memory_bytes));
  return 0;
}

}  // namespace slipstream::cli
