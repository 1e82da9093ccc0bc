// SPDX-License-Identifier: Apache-2.0
// The commands and the run file of docs/how-to/pretrained.md, on a small model in place of GPT-2.

#include <sstream>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

/// The texts between the fences of a page, without their indentation.
std::vector<std::string> blocks_of(const std::string& page) {
  std::vector<std::string> blocks;
  bool inside = false;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    const size_t at = line.find_first_not_of(' ');
    if (at != std::string::npos) line.erase(0, at);
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) blocks.emplace_back();
    } else if (inside) {
      blocks.back() += line + "\n";
    }
  }
  return blocks;
}

void replace(std::string& text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  INFO(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
}

double first_loss(const std::string& run) {
  for (const Json& line : metrics(run))
    if (const Json* loss = line.find("loss")) return loss->as_double();
  FAIL("no loss in " << run);
  return 0;
}

}  // namespace

TEST_CASE("the how-to on pre-trained models works as printed", "[cli]") {
  if (!has_mpirun()) return;
  const Folder folder;
  const std::string tokenizer = source_dir() + "/tests/golden/tokenizers/gpt2.tokenizer.json";
  const Result before = call("train " + run_file(folder) + " --set train.steps=60 --set data.tokenizer=" + tokenizer);
  INFO(before.text);
  REQUIRE(before.code == 0);
  fs::copy(folder.path("run") + "/checkpoints/final", folder.path("gpt2"));
  fs::copy(folder.path("text.txt"), folder.path("mine.txt"));

  std::vector<std::string> blocks = blocks_of(read(source_dir() + "/docs/how-to/pretrained.md"));
  REQUIRE(blocks.size() == 5);
  folder.write("prompts.txt", "the\nevery\n");
  folder.write("mine.toml", blocks[1]);
  for (const size_t i : {0, 2, 3, 4}) {
    std::string& command = blocks[i];
    command.pop_back();
    replace(command, "build/slipstream", exe());
    if (i == 2) {
      replace(command, "mpirun ", mpirun());
      command += " --set train.steps=4 --set train.micro_batch_size=2 --set device.threads=1";
    }
    const Result result = shell("cd " + folder.path("") + " && " + command);
    INFO(command << "\n" << result.text);
    REQUIRE(result.code == 0);
    if (i == 0) CHECK(contains(result.text, "gpt2, 2 layers, 2 heads, width 16, context 16"));
  }
  // It goes on where the first training ended.
  CHECK(first_loss(folder.path("runs/mine")) < 0.8 * first_loss(folder.path("run")));
  const std::string mine = folder.path("weights/mine");
  CHECK(contains(read(mine + "/config.json"), "bfloat16"));
  CHECK(read(mine + "/tokenizer.json") == read(tokenizer));
  CHECK(call("generate " + mine + " --prompt the --tokens 3").code == 0);
}
