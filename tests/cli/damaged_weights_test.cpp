// SPDX-License-Identifier: Apache-2.0
// Every reader of weights compares their hashes: one flipped bit is exit code 4 with the name of its file.

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

/// Flips an exponent bit of the first value of a tensor, so that all values stay finite.
void flip_bit(const std::string& path, const std::string& tensor) {
  std::string bytes = read(path);
  const size_t header = 8 + static_cast<size_t>(*reinterpret_cast<const uint64_t*>(bytes.data()));
  const Json entries = Json::parse(bytes.substr(8, header - 8));
  for (const auto& [name, entry] : entries.as_object()) {
    if (name == "__metadata__" || !contains(name, tensor)) continue;
    bytes[header + static_cast<size_t>(entry.at("data_offsets").as_array()[0].as_int()) + 3] ^= 0x40;
    std::ofstream(path, std::ios::binary) << bytes;
    return;
  }
  FAIL("no tensor " << tensor << " in " << path);
}

struct Trained {
  Trained() {
    const Result result = call("train " + run_file(folder) + " --set checkpoint.interval=3");
    INFO(result.text);
    REQUIRE(result.code == 0);
  }

  Folder folder;
  std::string run = folder.path("run"), final = run + "/checkpoints/final",
              checkpoint = run + "/checkpoints/step-00000006";

  std::vector<std::string> readers(const std::string& weights) const {
    const std::string again = "train " + run_file(folder) + " --set train.steps=1 --set output.dir=";
    return {"eval " + weights + " --text " + folder.path("text.txt"), "generate " + weights + " --prompt a --tokens 3",
            "convert " + weights + " " + folder.path("converted"),
            again + folder.path("second") + " --set model.init=" + weights};
  }
};

}  // namespace

TEST_CASE("weights: a flipped bit of a checkpoint or of final weights is refused by every reader", "[cli]") {
  const Trained trained;
  for (const std::string& command : trained.readers(trained.run)) CHECK(call(command).code == 0);
  CHECK(call("checkpoint verify " + trained.run).code == 0);
  fs::remove_all(trained.folder.path("converted"));
  fs::remove_all(trained.folder.path("second"));

  flip_bit(trained.final + "/model.safetensors", "c_fc.weight");
  flip_bit(trained.checkpoint + "/rank-0000.safetensors", "weight:transformer.h.0.mlp.c_fc.weight");
  for (const auto& [weights, file] :
       {std::pair(trained.checkpoint, "rank-0000.safetensors"), std::pair(trained.final, "model.safetensors"),
        std::pair(trained.run, "model.safetensors")})
    for (const std::string& command : trained.readers(weights)) {
      INFO(command);
      check_refused(call(command), 4, {file, "is damaged: it has the hash "});
    }
  CHECK(!fs::exists(trained.folder.path("converted")));
  CHECK(!fs::exists(trained.folder.path("second") + "/checkpoints"));
  const Result verified = call("checkpoint verify " + trained.run);
  check_refused(verified, 4, {"the weights in \"" + trained.final + "\" are damaged", "1 of 2 checkpoints"});
  CHECK(contains(verified.text, trained.final + "  damaged: "));
  CHECK(contains(verified.text, trained.checkpoint + "  damaged: "));
  CHECK(contains(verified.text, "step-00000003  ok"));
  check_refused(call("checkpoint verify " + trained.final), 4, {trained.final});
}

TEST_CASE("weights: ranks share the comparison of hashes, and all of them end", "[cli]") {
  if (!has_mpirun()) return;
  const Trained trained;
  REQUIRE(call("convert " + trained.run + " " + trained.folder.path("shards") + " --file-size 20KiB").code == 0);
  const std::string shards = trained.folder.path("shards"), shard = "model-00002-of-";
  const std::vector<std::string> commands = {
      "generate " + shards + " --prompt a --tokens 3",
      "train " + run_file(trained.folder) + " --set train.steps=1 --set output.dir=" + trained.folder.path("second") +
          " --set model.init=" + shards};
  for (const std::string& command : commands) CHECK(on_ranks(2, command).code == 0);
  for (const fs::directory_entry& entry : fs::directory_iterator(shards))
    if (contains(entry.path(), shard)) flip_bit(entry.path(), "");
  for (const std::string& command : commands) {
    const Result result = on_ranks(2, command);
    INFO(command << "\n" << result.text);
    CHECK(result.code == 4);
    CHECK(contains(result.text, shard));
    CHECK(contains(result.text, "is damaged: it has the hash "));
  }
}

TEST_CASE("weights: a folder without hashes is accepted, one with damaged hashes is not", "[cli]") {
  const Trained trained;
  const std::string hashes = trained.final + "/hashes.xxh128", text = read(hashes);
  const std::string generate = "generate " + trained.final + " --prompt a --tokens 3";
  // Every file of the folder has a line.
  for (const fs::directory_entry& entry : fs::directory_iterator(trained.final))
    CHECK(contains(text, "  " + entry.path().filename().string() + "\n") == (entry.path() != hashes));
  if (std::system("command -v xxhsum > /dev/null") == 0)
    CHECK(shell("cd " + trained.final + " && xxhsum -H2 -c hashes.xxh128").code == 0);

  // A changed text is a warning, because users set ids and templates there.
  std::ofstream(trained.final + "/generation_config.json") << "{}";
  const Result changed = call(generate);
  CHECK(changed.code == 0);
  CHECK(contains(changed.text, "generation_config.json\" was changed after it was saved"));

  for (const std::string& damaged : {std::string(), std::string("junk\n"), text.substr(0, text.size() / 2),
                                     "0" + text.substr(1), text.substr(text.find("config.json") + 12)}) {
    std::ofstream(hashes, std::ios::binary) << damaged;
    const Result result = call(generate);
    INFO(damaged << "\n" << result.text);
    if (damaged == text) continue;  // the first digit was a 0
    CHECK((result.code == 4 || contains(damaged, "model.safetensors")));
    CHECK(contains(result.text, "hashes.xxh128"));
  }
  flip_bit(trained.final + "/model.safetensors", "c_fc.weight");
  std::ofstream(hashes, std::ios::binary) << text;
  check_refused(call(generate), 4, {"delete hashes.xxh128"});
  fs::remove(hashes);
  CHECK(call(generate).code == 0);
  const Result verified = call("checkpoint verify " + trained.final);
  CHECK(verified.code == 0);
  CHECK(contains(verified.text, "not verified: 1 file of weights without hashes.xxh128"));
}
