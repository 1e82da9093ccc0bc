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
  CHECK(train(2, "gathered", " --set parallel.expert=2 --set parallel.expert_exchange=gather") ==
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
  refused(" --set parallel.expert=2 --set overlap.paired_passes=true --set train.recompute=full",
          "overlap.paired_passes = true and train.recompute = \"full\" with experts is not supported yet");
  refused(" --set model.experts.top_k=5", "model.experts.top_k = 5 is above model.experts.count = 4");
  if (!has_mpirun()) return;
  const std::string paced = "train " + run + " --paced --set checkpoint.interval=0 --set parallel.expert=2";
  check_refused(on_ranks(2, paced), 2, {"no counts of the rows that 2 ranks exchange", "\"gather\""});
  const Result gathered = on_ranks(2, paced + " --set parallel.expert_exchange=gather");
  INFO(gathered.text);
  CHECK(gathered.code == 0);
}

TEST_CASE("the exchange of experts is gather on GPUs and exact on CPUs, and the plan prints the reason", "[cli]") {
  const Folder folder;
  const std::string plan = "plan " + experts_run(folder) + " --ranks 4 --set parallel.expert=2";
  const auto printed = [&](const std::string& sets, const std::string& words) {
    const Result result = call(plan + sets);
    INFO(result.text);
    CHECK(result.code == 0);
    CHECK(contains(result.text, "experts: 2 ranks with 2 of 4 experts each; parallel.expert_exchange = " + words));
  };
  printed("", "\"exact\": rows travel to the ranks of their experts by counts that the transport reads");
  printed(" --set parallel.expert_exchange=gather", "\"gather\": every rank gathers the tokens of all of them\n");
  printed(" --set device.kind=cuda",
          "\"gather\": every rank gathers the tokens of all of them, because NCCL cannot read the counts of rows");
  printed(" --set device.kind=cuda --set parallel.expert_exchange=exact",
          "\"exact\": rows travel to the ranks of their experts by counts that NCCL cannot read");
  // Bytes that a rank sends in a step: 2 micro-batches of 16 tokens of width 16 with 2 choices, in one layer.
  const auto sent = [&](const std::string& exchange) {
    const Result result = call(plan + " --json --set parallel.expert_exchange=" + exchange);
    REQUIRE(result.code == 0);
    const Json planned = Json::parse(result.text);
    int64_t bytes = 0;
    for (const Json& task : planned.at("tasks").as_array())
      if (task.at("channel").as_string() == "experts") bytes += task.at("wire_bytes").as_int();
    return bytes;
  };
  const int64_t tokens = 16 * 16 * 4, choices = 16 * 2 * 4;
  CHECK(sent("gather") == 2 * (2 * tokens + 2 * choices + 2 * tokens + choices));
  // Half of the rows of 2 choices leave, with their weights, and the number of rows of each of 4 experts.
  CHECK(sent("exact") == 2 * (4 * tokens + 2 * choices / 2 + 4 * 4));
  const Result one = call("plan " + experts_run(folder) + " --ranks 4 --set parallel.expert_exchange=gather");
  CHECK(contains(one.text, "parallel.expert_exchange = \"gather\" has no effect with parallel.expert = 1"));
}
