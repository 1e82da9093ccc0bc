// SPDX-License-Identifier: Apache-2.0
// Mixtures of experts from the user's view: ranks that divide experts, and runs that continue on other ranks.

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

std::string experts_run(const Folder& folder) {
  folder.write("text.txt", english());
  return folder.write("run.toml", R"([model]
family = "qwen3_moe"
layers = 2
heads = 2
width = 16
ffn_width = 32
context = 16
[model.experts]
count = 4
top_k = 2
shared = 1
ffn_width = 12
layers = [1]
[data]
train = ")" + folder.path("text.txt") +
                                      R"("
[train]
steps = 8
micro_batch_size = 1
global_batch_size = 8
[optimizer]
learning_rate = 3e-3
[checkpoint]
interval = 4
[device]
threads = 1
)");
}

/// The loss of the last step.
double last_loss(const std::string& folder) {
  std::ifstream file(folder + "/metrics.jsonl");
  double loss = 0;
  for (std::string line; std::getline(file, line);)
    if (const Json record = Json::parse(line); record.find("loss") != nullptr) loss = record.at("loss").as_double();
  REQUIRE(loss > 0);
  return loss;
}

}  // namespace

TEST_CASE("ranks that divide experts train the model of one rank, and another number of them continues", "[cli]") {
  if (!has_mpirun()) return;
  const Folder folder;
  const std::string run = experts_run(folder);
  const auto train = [&](int ranks, const std::string& name, const std::string& more) {
    const Result result = on_ranks(ranks, "train " + run + " --set output.dir=" + folder.path(name) + more);
    INFO(result.text);
    REQUIRE(result.code == 0);
    return last_loss(folder.path(name));
  };
  const double expected = train(1, "one", "");
  CHECK(train(2, "two", " --set parallel.expert=2") == Approx(expected).epsilon(1e-5));
  CHECK(train(4, "four", " --set parallel.expert=2 --set zero.stage=1 --set overlap.paired_passes=true") ==
        Approx(expected).epsilon(1e-5));
  CHECK(train(4, "sharded", " --set parallel.expert=2 --set zero.stage=3 --set overlap.paired_passes=true") ==
        Approx(expected).epsilon(1e-5));
  CHECK(train(4, "groups", " --set parallel.expert=2 --set zero.stage=3 --set zero.shard_size=2") ==
        Approx(expected).epsilon(1e-5));
  for (const char* step : {"step-00000008", "final"}) fs::remove_all(folder.path("two/checkpoints/") + step);
  for (const int ranks : {1, 4}) {
    const std::string name = "from_two_on_" + std::to_string(ranks);
    fs::copy(folder.path("two"), folder.path(name), fs::copy_options::recursive);
    CHECK(train(ranks, name, " --resume --set parallel.expert=" + std::to_string(ranks)) ==
          Approx(expected).epsilon(1e-5));
  }
}

TEST_CASE("experts that ranks cannot divide are refused with the numbers", "[cli]") {
  const Folder folder;
  const std::string run = experts_run(folder);
  const auto refused = [&](const std::string& sets, const char* words) {
    const Result result = call("plan " + run + " --ranks 4" + sets);
    INFO(result.text);
    CHECK(result.code == 2);
    CHECK(contains(result.text, words));
  };
  refused(" --set parallel.expert=3", "parallel.expert = 3 does not divide model.experts.count = 4");
  refused(" --set parallel.expert=4 --set parallel.pipeline=2", "expert 4 does not divide the 2 ranks");
  refused(" --set parallel.tensor=2", "parallel.tensor = 2 with experts is not supported yet");
  refused(" --set parallel.expert=2 --set zero.stage=1 --set zero.shard_size=3 --set parallel.data=6",
          "zero.shard_size = 3 is neither a multiple nor a divisor of parallel.expert = 2");
  refused(" --set model.experts.top_k=5", "model.experts.top_k = 5 is above model.experts.count = 4");
  if (!has_mpirun()) return;
  const Result paced = on_ranks(2, "train " + run + " --paced --set checkpoint.interval=0 --set parallel.expert=2");
  INFO(paced.text);
  CHECK(paced.code == 2);
  CHECK(contains(paced.text, "no routes to the experts of parallel.expert = 2"));
}
