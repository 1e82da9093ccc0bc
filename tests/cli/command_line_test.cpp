// SPDX-License-Identifier: Apache-2.0
// The frozen command line, the shipped run files, and bad input: every case ends in one error and a documented code.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/base/hash.h"
#include "engine/checkpoint/weights.h"
#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

/// First words of the lines of a help text: subcommands, positional arguments and options, the latter as `-h,--help`.
std::set<std::string> names_in(const std::string& help) {
  std::set<std::string> names;
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) {
    std::string first;
    std::istringstream(line) >> first;
    std::istringstream spellings(first);
    for (std::string name; line.starts_with(' ') && std::getline(spellings, name, ',');) names.insert(name);
  }
  return names;
}

/// Appends the help texts of a command and its subcommands as sections of Markdown.
void append_help(const std::string& command, std::string& page) {
  const std::string help = call(command + " --help").text;
  if (!command.empty())
    page += "\n## " + command + "\n\n```\n" + help.substr(0, help.find_last_not_of('\n') + 1) + "\n```\n";
  std::istringstream lines(help);
  bool in_list = false;
  for (std::string line; std::getline(lines, line);) {
    if (in_list && line.empty()) break;
    if (in_list && line[2] != ' ') {
      std::string name;
      std::istringstream(line) >> name;
      append_help(command.empty() ? name : command + " " + name, page);
    }
    in_list = in_list || line == "Subcommands:";
  }
}

}  // namespace

TEST_CASE("docs/reference/commands.md is current", "[cli]") {
  std::string page =
      "<!-- SPDX-License-Identifier: Apache-2.0 -->\n# Commands\n\n"
      "Generated from `slipstream COMMAND --help`; a test compares this page with the program. `slipstream` is\n"
      "`build/slipstream`, or [installed](../how-to/install.md).\n";
  append_help("", page);
  const std::string path = source_dir() + "/docs/reference/commands.md";
  if (std::getenv("SLIPSTREAM_UPDATE_DOCS")) std::ofstream(path, std::ios::binary) << page;
  INFO("run this test with SLIPSTREAM_UPDATE_DOCS=1 to write the page");
  CHECK(read(path) == page);
}

TEST_CASE("subcommands and flags may be added but not removed", "[cli]") {
  const struct {
    const char* command;
    std::vector<std::string> words;
  } rows[] = {
      {"", {"train", "plan", "check", "bench", "generate", "tokenize", "--version", "--help"}},
      {"train", {"run", "--set", "--dry-run", "--inject-delays", "--check-hazards"}},
      {"plan", {"run", "--set", "--ranks", "--machine", "--json", "--schedule-csv"}},
      {"check", {"run", "--set", "--ranks", "--machine", "--json"}},
      {"generate",
       {"checkpoint", "--prompt", "--prompt-ids", "--tokens", "--temperature", "--top-k", "--seed", "--device",
        "--top-p", "--min-p", "--repetition-penalty", "--stop"}},
      {"tokenize",
       {"text", "out", "--tokenizer", "--shard-tokens", "--separator", "--no-end-of-text", "--threads", "--resume"}},
      {"convert", {"from", "to", "--dtype", "--file-size"}},
      {"bench", {"overlap", "pipeline", "layers", "kernels", "products", "step"}},
      {"bench pipeline", {"run", "--set", "--steps", "--csv", "--compute", "--forward-ms", "--ratios"}},
      {"bench overlap",
       {"run", "--set", "--steps", "--csv", "--compute", "--ratios", "--zero", "--prefetch", "--layer-ms", "--ablate",
        "--ranks", "--forms", "--ratio-of"}},
      {"bench layers", {"run", "--set", "--steps", "--csv", "--layer-ms", "--ratios", "--chunks"}},
      {"bench products", {"run", "--set", "--steps", "--csv", "--ranks", "--rotate", "--seconds", "--again"}},
      {"bench kernels", {"--only", "--threads", "--rounds", "--csv"}},
      {"bench step", {"run", "--set", "--steps", "--csv", "--export", "--plain-loop", "--line-rate", "--ranks"}},
  };
  for (const auto& row : rows) {
    const Result help = call(std::string(row.command) + " --help");
    INFO(row.command << "\n" << help.text);
    CHECK(help.code == 0);
    const std::set<std::string> names = names_in(help.text);
    for (const std::string& word : row.words) CHECK(names.count(word) == 1);
  }
  const Result version = call("--version");
  CHECK(version.code == 0);
  const std::string words = "slipstream " + project_version() + " (build ";
  CHECK(version.text.size() == words.size() + 16 + std::string(")\n").size());
  CHECK(version.text.starts_with(words));
}

TEST_CASE("--help shows the range and the default of a number once", "[cli]") {
  CHECK(contains(call("plan --help").text, "--ranks INT in [1 - 16777216]=1"));
  CHECK(contains(call("generate --help").text, "--temperature FLOAT in [0 - 10]=0.8"));
  CHECK(contains(call("bench overlap --help").text, "--compute {real,paced}=real"));
  const std::string layers = call("bench layers --help").text;
  CHECK(contains(layers, "--layer-ms POSITIVE=8"));
  CHECK(contains(layers, "--ratios RATIO,... "));
  CHECK(contains(layers, "--chunks CHUNKS,... in [1 - 4096]=[1,2,4,8]"));
  CHECK(contains(layers, "--set KEY=VALUE "));
  CHECK(contains(call("train --help").text, "--inject-delays SEED "));
  CHECK(contains(call("tokenize --help").text, "--threads WHOLE=0 "));
}

TEST_CASE("a wrong command line exits with code 2", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  for (const std::string& line :
       {std::string(""), std::string("trian x.toml"), std::string("train"), "train " + run + " --fast",
        "plan " + run + " --ranks -3", "plan " + run + " --ranks two", "plan " + run + " --need mfu=0.5",
        "plan " + run + " --search --over zero.stge=1", "train " + run + " --inject-delays -1",
        "train " + run + " --inject-delays 1.5", std::string("generate x --tokens 0"),
        std::string("generate x --temperature nan"), std::string("generate x --top-k -1"),
        "tokenize " + folder.path("text.txt") + " \"\"", "train " + folder.path("none.toml"),
        "train " + folder.path(""), "train " + run + " --set nonsense", "train " + run + " --set =1"}) {
    const Result result = call(line);
    INFO(line << "\n" << result.text);
    CHECK(result.code == 2);
    CHECK(!result.text.empty());
    CHECK(!contains(result.text, "[bug]"));
    CHECK(result.text.starts_with("slipstream: "));
    CHECK(count(result.text, "\n") == 1);
  }
  CHECK(!fs::exists(folder.path("run")));
  // The error names the unknown word and the nearest known one.
  check_refused(call("trian x.toml"), 2, {"'trian'", "did you mean 'train'?", "slipstream --help"});
  check_refused(call("bench overlp x.toml"), 2, {"'overlp'", "did you mean 'overlap'?", "slipstream bench --help"});
  check_refused(call("train " + run + " --dry-rn"), 2, {"'--dry-rn'", "did you mean '--dry-run'?"});
  check_refused(call("train " + run + " twice.toml"), 2, {"'twice.toml'", "slipstream train --help"});
  for (const std::string number : {"0", "-1", "nan", "inf", "1x", "\"\""})
    check_refused(call("bench overlap " + run + " --ratios " + number), 2, {"--ratios", "a number above 0, got"});
  for (const char* ids : {"1,-2", "1,,2", "1,2,", ",", "2147483648", "99999999999999999999", "1.5"})
    check_refused(call(std::string("generate x --prompt-ids ") + ids), 2,
                  {"--prompt-ids", "whole numbers from 0 to 2147483647, got '" + std::string(ids) + "'"});
  check_refused(call("train x --inject-delays 9223372036854775808"), 2,
                {"--inject-delays", "9223372036854775807, got"});
  // The word after an option is its value, and the word after that is not.
  for (const std::string options : {"--set train.steps=3 ", "--set train.steps=2 --set model.layers=1 "})
    CHECK(call("train --dry-run " + options + run).code == 0);
  CHECK(call("plan --ranks 2 --set model.layers=1 " + run).code == 0);
  check_refused(call("bench overlap --ratios 0.5,1 " + run + " --steps 0"), 2, {"--steps 0"});
  check_refused(call("generate --prompt-ids 1,2 " + folder.path("none")), 4, {"none"});
  check_refused(call("train " + run + " --set train.steps=3 model.layers=1"), 2, {"'model.layers=1'"});
  check_refused(call("bench kernels --only nothing --rounds 1"), 2, {"'nothing'"});
}

TEST_CASE("every shipped run file passes --dry-run, and fits its machine where it is planned for one", "[cli]") {
  Folder folder;
  folder.write("text.txt", english());
  int files = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(source_dir() + "/configs/runs")) {
    if (entry.path().extension() != ".toml") continue;
    ++files;
    const std::string path = entry.path().string();
    // The character tokenizer needs a text; the others have a fixed vocabulary.
    const std::string data = contains(path, "shakespeare_char") ? " --set data.train=" + folder.path("text.txt") : "";
    INFO(path);
    const Result dry = call("train " + path + " --dry-run --set output.dir=" + folder.path("run") + data);
    if (contains(path, "llama_8b") || contains(path, "mixtral_8x7b") || contains(path, "qwen3_30b_a3b")) {
      check_refused(dry, 2, {"shard_size ", "1 data-parallel"});  // one process is not enough, whatever its memory
    } else if (contains(path, "llama_70b")) {
      check_refused(dry, 2, {"start 32 ranks"});
    } else if (contains(path, "deepseek_v3_shape")) {
      check_refused(dry, 2, {"start 128 ranks"});
    } else {
      INFO(dry.text);
      CHECK(dry.code == 0);
      CHECK(contains(dry.text, "parameters"));
      CHECK(contains(dry.text, "total"));
      // The whole step, in the order in which it is issued.
      CHECK(contains(dry.text, "adamw"));
      CHECK(dry.text.find("load") < dry.text.find("parameters\n"));
    }
    // There is a plan, and nothing else that a run would have made.
    CHECK(fs::exists(folder.path("run/plan.json")) == (dry.code == 0));
    if (dry.code == 0) CHECK(std::distance(fs::directory_iterator(folder.path("run")), fs::directory_iterator()) == 1);
    fs::remove_all(folder.path("run"));
    // The header of the file names the number of ranks and the machine; the plan fits on these.
    const std::string text = read(path), begin = "# Rehearsed: slipstream plan configs/runs/" +
                                                 entry.path().filename().string() + " --ranks ";
    const size_t at = text.find(begin);
    REQUIRE(at != std::string::npos);
    std::istringstream words(text.substr(at + begin.size(), text.find('\n', at) - at - begin.size()));
    std::string ranks, flag, machine;
    words >> ranks >> flag >> machine;
    CHECK(flag == "--machine");
    // A plan for GPUs compares three jobs of 512 ranks.
    const std::string one_job =
        contains(path, "llama_70b") && !test_everything() ? " --set device.kind=cpu" : std::string();
    const Result plan = shell(
        exe() + " plan " + path + " --ranks " + ranks + " --machine " + source_dir() + "/" + machine + data + one_job,
        240);
    INFO(plan.text);
    CHECK(plan.code == 0);
    CHECK(plan.text.rfind("machine: ", 0) == 0);  // the first line names it
  }
  CHECK(files >= 7);
}

TEST_CASE("gpt2_xl is legal on 1 to 128 data ranks", "[cli]") {
  for (int ranks : {2, 16, 128}) {  // 1 is what --dry-run above plans
    const Result result = call("plan " + source_dir() + "/configs/runs/gpt2_xl.toml --json --ranks " +
                               std::to_string(ranks) + " --machine " + source_dir() + "/configs/machines/h200x8.toml");
    INFO(ranks << " ranks");
    REQUIRE((result.code == 0 || result.code == 7));
    const Json plan = Json::parse(result.text.substr(0, result.text.find("\n}\n") + 3));
    CHECK(plan.at("layout").at("data").as_int() == ranks);
    CHECK(plan.at("micro_batches").as_int() * ranks * 4 == 512);
  }
  check_refused(call("plan " + source_dir() + "/configs/runs/gpt2_xl.toml --ranks 256"), 2, {"512", "4 x 256", "1024"});
}

TEST_CASE("an impossible run file is refused with its numbers", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  const struct {
    std::string set;
    std::vector<std::string> parts;
  } rows[] = {
      {"model.widht=16", {"widht", "width"}},
      {"trian.steps=16", {"trian", "train"}},
      {"train.steps=many", {"train.steps", "many"}},
      {"train.steps=1.5", {"train.steps", "1.5"}},
      {"train.steps=0", {"train.steps", "0", "1"}},
      {"train.steps=99999999999999999999", {"train.steps"}},
      {"optimizer.beta1=1", {"optimizer.beta1", "1"}},
      {"optimizer.learning_rate=nan", {"optimizer.learning_rate"}},
      {"overlap.grad_reduce=quick", {"quick", "bucketed"}},
      {"overlap.bucket_size=12parsecs", {"overlap.bucket_size", "12parsecs"}},
      {"model.heads=3", {"16", "3"}},
      {"model.kv_heads=1", {"kv_heads", "1"}},
      {"train.sequence_length=17", {"17", "16"}},
      {"train.global_batch_size=5", {"5", "2", "4 or 6"}},
      {"parallel.data=3", {"3", "1"}},
      {"parallel.tensor=2", {"tensor 2", "1"}},
      {"parallel.order=tp-pp-dp", {"tp-pp-dp", "not a permutation"}},
      {"zero.stage=4", {"zero.stage", "4", "3"}},
      {"zero.prefetch_depth=2\" --set \"zero.stage=3", {"zero.prefetch_depth = 2", "at most 1"}},
      {"comm.quantize=int8\" --set \"comm.grad_dtype=bfloat16", {"int8", "bfloat16"}},
      {"zero.shard_size=2", {"zero.shard_size = 2", "no effect", "zero.stage = 0"}},
      {"model.vocab_size=100", {"100", "256"}},
      {"trace.steps=[5,3]", {"5", "3"}},
      {"parallel.pipeline=2\" --set \"pipeline.schedule=gpipe\" --set \"pipeline.schedule_file=a.csv",
       {"gpipe", "no effect", "a.csv"}},
      {"comm.deterministic=false\" --set \"device.kind=cpu", {"comm.deterministic = false", "no effect", "CPU"}},
      {"output.dir=.", {"output.dir", "no folder name"}},
      {"device.machine=" + source_dir() + "/configs/machines/none.toml", {"none.toml"}},
  };
  for (const auto& row : rows) {
    INFO(row.set);
    check_refused(call("train " + run + " --set \"" + row.set + "\""), 2, row.parts);
    CHECK(!fs::exists(folder.path("run")));
  }
  // In the file itself, with the line.
  folder.write("typo.toml", read(run) + "[model2]\nx = 1\n");
  check_refused(call("train " + folder.path("typo.toml")), 2, {"typo.toml", "model2"});
  folder.write("broken.toml", "[model\nlayers = 2\n");
  check_refused(call("train " + folder.path("broken.toml")), 2, {"broken.toml:1"});
  folder.write("binary.toml", std::string("\xff\xfe\0\1", 4));
  check_refused(call("train " + folder.path("binary.toml")), 2, {"binary.toml"});
}

TEST_CASE("a lack of memory or an unwritable output exits with code 7", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  std::string small = read(source_dir() + "/configs/machines/laptop.toml");
  const size_t at = small.find("memory = \"");
  REQUIRE(at != std::string::npos);
  small.replace(at, small.find('\n', at) - at, "memory = \"100KiB\"");
  const std::string machine = folder.write("small.toml", small);
  check_refused(call("plan " + run + " --machine " + machine), 7, {"100.0 KiB"});
  check_refused(call("check " + run + " --machine " + machine), 7, {"100.0 KiB"});
  check_refused(call("train " + run + " --set device.machine=" + machine), 7, {"100.0 KiB"});
  check_refused(call("plan " + run + " --set device.machine=" + machine), 7, {"100.0 KiB"});
  // Hopeless models are not planned first.
  for (const char* command : {"plan ", "check ", "train "})
    check_refused(call(command + run + " --set model.layers=60000 --set model.width=512"), 7,
                  {"60000 layers of", "at least"});
  // The memory is between what two layers ahead and one layer ahead need: the error has the depth that fits.
  const auto total = [&](int depth) {
    const Result plan =
        call("plan " + run + " --ranks 2 --json --set model.layers=4 --set zero.stage=3 --set zero.prefetch_depth=" +
             std::to_string(depth));
    REQUIRE(plan.code == 0);
    return Json::parse(plan.text).at("memory_bytes").at("total").as_int();
  };
  const auto on_memory = [&](int64_t bytes, int depth) {
    std::string of_bytes = small;
    of_bytes.replace(of_bytes.find("memory = \"100KiB\""), 17, "memory = \"" + std::to_string(bytes) + "B\"");
    return call("plan " + run + " --ranks 2 --set model.layers=4 --set zero.stage=3 --set zero.prefetch_depth=" +
                std::to_string(depth) + " --machine " + folder.write("memory.toml", of_bytes));
  };
  check_refused(on_memory((total(1) + total(2)) / 2, 2), 7,
                {"3 slots for gathered layers", "zero.prefetch_depth = 1 is the most that fits"});
  // The limit is exact to the byte: depth 0 fits in what it needs, and in one byte less nothing fits.
  const int64_t least = total(0);
  CHECK(on_memory(least, 0).code == 0);
  check_refused(on_memory(least, 2), 7,
                {"3 slots for gathered layers", "zero.prefetch_depth = 0 is the most that fits"});
  check_refused(on_memory(least - 1, 2), 7,
                {"3 slots for gathered layers", "not even zero.prefetch_depth = 0 fits. Use more ranks"});
  check_refused(on_memory(least - 1, 0), 7,
                {"1 slot for gathered layers takes ", "not even zero.prefetch_depth = 0 fits. Use more ranks"});
  // Without gathered layers the message has no slots. The error and the table are about the stage that needs most.
  const std::string sharded = "check " + run + " --machine " + machine + " --set zero.stage=3 ";
  const Result persistent = call(sharded + "--ranks 2 --set zero.persistence_threshold=1GiB");
  check_refused(persistent, 7, {"100.0 KiB", "\n  optimizer ", "\n  total "});
  CHECK(!contains(persistent.text, "slots"));
  const std::string uneven =
      "--ranks 6 --set model.layers=4 --set parallel.pipeline=3 --set pipeline.layers=[0,4,0] --set "
      "zero.prefetch_depth=2";
  const Result middle = call(sharded + uneven);
  check_refused(middle, 7, {"a rank of stage 1 needs", "3 slots for gathered layers"});
  const size_t needs = middle.text.find("stage 1 needs ") + 14;
  const std::string need = middle.text.substr(needs, middle.text.find(" but", needs) - needs);
  CHECK(contains(middle.text, "memory:    " + need));
  CHECK(contains(middle.text.substr(middle.text.find("\n  total ")), need));
  const Result printed = call("plan " + run + " --set zero.stage=3 " + uneven);
  INFO(printed.text);
  CHECK(contains(printed.text, "memory of a rank (stage 1, which needs most):"));
  CHECK(contains(printed.text.substr(printed.text.find("\n  total ")), need));
  CHECK(!fs::exists(folder.path("run")));
  // Under a regular file nothing can be created, even by root.
  const std::string nowhere = folder.path("text.txt") + "/run";
  check_refused(call("train " + run + " --set output.dir=" + nowhere), 7, {nowhere});
  const Result unsaved = call("train " + run + " --set checkpoint.dir=" + nowhere);
  check_refused(unsaved, 7, {nowhere, "checkpoint.dir"});
  CHECK(!contains(unsaved.text, "step 6/6"));  // the run is refused before the first step, not after the last
}

TEST_CASE("trailing slashes do not change an output folder: an earlier run in it is moved aside", "[cli]") {
  Folder folder;
  const std::string train = "train " + run_file(folder) + " --set train.steps=1 --set output.dir=" + folder.path("run");
  for (const char* slashes : {"", "/", "//"}) {
    const Result result = call(train + slashes);
    INFO(result.text);
    CHECK(result.code == 0);
    CHECK(contains(result.text, "memory of a rank: "));
    CHECK(!contains(result.text, " in the text"));  // every byte is an id
  }
  for (const char* name : {"run", "run.old-1", "run.old-2"}) CHECK(fs::exists(folder.path(name) + "/run.json"));
}

TEST_CASE("processes of one launcher that cannot reach each other are refused", "[cli]") {
  Folder folder;
  const std::string train = exe() + " train " + run_file(folder) + " --set train.steps=1";
  check_refused(shell("SLURM_STEP_NUM_TASKS=2 " + train), 6,
                {"the launcher started 2 processes", "sees only one", "srun --mpi=pmix"});
  CHECK(shell("SLURM_STEP_NUM_TASKS=1 " + train).code == 0);
  for (const std::string& variable : {std::string("WORLD_SIZE"), std::string("SLURM_NTASKS")}) {
    const std::string two = variable + "=2 ";
    check_refused(
        shell(two + train), 2,
        {variable + " = 2 announces 2 processes", "mpirun -np 2", "srun --mpi=pmix -n 2", "env -u " + variable});
    check_refused(shell(two + exe() + " bench step " + folder.path("run.toml") + " --steps 1"), 2,
                  {variable, "mpirun"});
    // The shell of a Slurm job has the variable, and runs commands of one process.
    for (const char* command : {" plan ", " check "})
      CHECK(shell(two + exe() + command + folder.path("run.toml") + " --ranks 2").code == 0);
    CHECK(shell(two + exe() + " generate " + folder.path("run") + " --tokens 1").code == 0);
    CHECK(shell(variable + "=1 " + train).code == 0);
    if (has_mpirun())
      for (const char* ranks : {"1", "2"}) {
        const Result launched = shell(two + mpirun() + "-np " + ranks + " " + train);
        INFO(launched.text);
        CHECK(launched.code == 0);
      }
  }
}

TEST_CASE("progress and results are on standard output, warnings and errors on standard error", "[cli]") {
  Folder folder;
  const std::string train = exe() + " train " + run_file(folder) + " --set train.steps=2";
  const Result results = shell(train + " 2>/dev/null");
  INFO(results.text);
  CHECK(results.code == 0);
  for (const char* line : {"step 2/2 | loss ", "\nweights:  ", "\nmemory:   ", "\nmetrics:  "})
    CHECK(contains(results.text, line));
  const Result rest = shell(train + " >/dev/null");
  INFO(rest.text);
  CHECK(rest.text.empty());
  CHECK(contains(shell(train + "x >/dev/null").text, "slipstream: "));
}

TEST_CASE("a failed write to standard output exits with code 7 on a full disk and in a closed pipe", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  REQUIRE(call("train " + run).code == 0);
  const std::string one = run + " --set train.steps=1";
  for (const std::string& command :
       {"train " + one, "train " + one + " --dry-run", "plan " + one, "plan " + one + " --json", "check " + one,
        "generate " + folder.path("run") + " --tokens 2", "bench step " + one + " --steps 1",
        "tokenize " + folder.path("text.txt") + " " + folder.path("shard"), std::string("--help")}) {
    INFO(command);
    check_refused(call(command + " >/dev/full"), 7, {"[output] standard output cannot be written"});
    const Result closed = shell("{ sleep 0.2; " + exe() + " " + command + "; echo code $? >&2; } | true");
    check_refused(closed, 0, {"[output] standard output cannot be written", "code 7"});
  }
  check_refused(call("bench step " + one + " --steps 1 --csv /dev/full"), 7, {"/dev/full cannot be written", "--csv"});
}
