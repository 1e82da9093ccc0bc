// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs on fake GPUs: the program, a small run file, and what a training run leaves.

#include <map>
#include <string>
#include <vector>

#include "engine/checkpoint/weights.h"
#include "tests/cli/program.h"

namespace slipstream::program {

inline const std::string& kFake = fake_gpu_program();

/// Emulated kernels take most of the time, so these runs have half the tokens of the runs on a CPU.
inline std::string small_run_file(const Folder& folder) {
  std::string run = read(run_file(folder));
  const size_t tokens = run.find("context = 16\n");
  REQUIRE(tokens != std::string::npos);
  return folder.write("run.toml", run.replace(tokens, 12, "context = 8"));
}

struct Run {
  Result result;
  std::vector<Json> lines;
  std::map<std::string, std::vector<float>> weights;

  std::vector<double> all(const std::string& key) const {
    std::vector<double> values;
    for (const Json& line : lines) values.push_back(line.at(key).as_double());
    return values;
  }
  std::string hash() const { return lines.back().at("params_hash").as_string(); }
};

/// Trains `run` into the folder `name` and reads its results.
inline Run train(const Folder& folder, const std::string& exe, int ranks, const std::string& name,
                 const std::string& more) {
  const std::string dir = folder.path(name);
  const std::string launcher = ranks > 1 ? mpirun() + "-np " + std::to_string(ranks) + " " : "";
  Run run;
  run.result = shell(launcher + exe + " train " + folder.path("run.toml") + " --set output.dir=" + dir +
                     " --set checkpoint.dir=" + dir + "/checkpoints " + more);
  INFO(run.result.text);
  REQUIRE(run.result.code == 0);
  run.lines = metrics(dir);
  const checkpoint::FinalWeights final_weights = checkpoint::read_final(dir + "/checkpoints/final");
  for (const checkpoint::TensorInfo& tensor : final_weights.weights.tensors()) {
    std::vector<float>& values = run.weights[tensor.name];
    values.resize(static_cast<size_t>(tensor.elems()));
    final_weights.weights.read_floats(tensor, values);
  }
  return run;
}

}  // namespace slipstream::program
