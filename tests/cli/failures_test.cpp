// SPDX-License-Identifier: Apache-2.0
// Runs that cannot continue: every rank ends, with one error, the documented code and no half-written file.

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "engine/checkpoint/weights.h"
#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

/// Process ids of programs whose command line contains `part`, except mpirun itself.
std::vector<pid_t> ranks_running(const std::string& part) {
  std::vector<pid_t> found;
  for (const fs::directory_entry& entry : fs::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream file(entry.path() / "cmdline", std::ios::binary);
    std::string line;  // getline sets a bit where an iterator would throw: the process may end meanwhile
    std::getline(file, line, '\xff');
    if (line.rfind(exe() + '\0', 0) == 0 && contains(line, part)) found.push_back(std::stoi(name));
  }
  return found;
}

/// The kernels' instruction set if the environment selects no lower one.
std::string best_instructions() {
  Folder folder;
  const Result trained = call("train " + run_file(folder, "") + " --set train.steps=1");
  REQUIRE(trained.code == 0);
  const std::string text = read(folder.path("run") + "/run.json"), key = "\"isa\": \"";
  REQUIRE(contains(text, key));
  const size_t at = text.find(key) + key.size();
  return text.substr(at, text.find('"', at) - at);
}

}  // namespace

TEST_CASE("ranks that cannot train together print one error", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder);
  const auto once = [](const Result& result, int code, const std::vector<std::string>& parts) {
    check_refused(result, code, parts);
    CHECK(count(result.text, "slipstream: ") == 1);
  };
  check_refused(call("train " + run + " --set parallel.data=2"), 2,
                {"1 were started", "or start 2 ranks with mpirun."});
  once(on_ranks(3, "train " + run), 2, {"on all ranks: ", "2 x 3 = 6"});
  once(on_ranks(2, "train " + run + " --set parallel.data=4"), 2, {"on all ranks: ", "4", "2 were started"});
  for (const std::string& line : {"tokenize " + folder.path("text.txt") + " " + folder.path("t"), "plan " + run,
                                  "check " + run, std::string("bench kernels"), "bench products " + run})
    once(on_ranks(2, line), 2, {"on all ranks: ", "runs in one process, but 2 were started. Start it without mpirun."});
  once(on_ranks(2, "generate " + folder.path("none")), 4, {"on all ranks: ", "none"});
  // One rank of a launcher is one process, and starts MPI once.
  for (const std::string& line : {"plan " + run, "check " + run}) CHECK(on_ranks(1, line).code == 0);
  const Result products = on_ranks(1, "bench products " + run);
  CHECK(products.code == 2);
  CHECK(contains(products.text, "slipstream: [bench] products needs a GPU"));
  for (const std::string& line : {std::string("trian"), "train " + run + " --fast",
                                  "train " + run + " --inject-delays x", std::string("convert")})
    once(on_ranks(2, line), 2, {"on all ranks: "});
  once(on_ranks(2, "train " + folder.path("none.toml")), 2, {"on all ranks: ", "none.toml"});
  once(on_ranks(2, "train " + run + " --set data.train=" + folder.path("none.txt")), 3, {"on all ranks: ", "none.txt"});
  once(on_ranks(2, "train " + run + " --set output.dir=" + folder.path("text.txt") + "/run"), 7, {"on rank 0: "});
  const std::string program = exe() + " train " + run;
  once(shell(mpirun() + "-np 1 " + program + " : -np 1 " + program + " --fast"), 2, {"on rank 1: ", "'--fast'"});
  once(shell(mpirun() + "-np 1 " + program + " : -np 1 " + program + " --set train.seed=2"), 2,
       {"on all ranks: ", "rank 1", "configuration", "(train.seed = 2 and train.seed = "});
  once(shell(mpirun() + "-np 1 " + program + " : -np 1 " + program + " --dry-run"), 2,
       {"on all ranks: ", "rank 1", "(--dry-run true and --dry-run false)"});
  // Hosts that do not share a disk have different files at the same path, which are as long or longer.
  for (const char* host : {"a", "b"}) fs::create_directories(folder.path(host));
  const std::string text = english();
  folder.write("a/text.txt", text);
  for (const std::string& other : {text.substr(1) + text[0], text + text}) {
    folder.write("b/text.txt", other);
    const std::string relative = program + " --set data.train=text.txt --set zero.stage=3";
    once(shell(mpirun() + "-np 1 -wdir " + folder.path("a") + " " + relative + " : -np 1 -wdir " + folder.path("b") +
               " " + relative),
         2, {"on all ranks: ", "rank 1 and rank 0 disagree on the data", "Give all hosts the same files"});
  }
  const std::string piped = run + " --set parallel.pipeline=2 --set pipeline.schedule";
  for (const auto& [host, schedule] : {std::pair{"a", "1f1b"}, {"b", "gpipe"}})
    REQUIRE(call("plan " + piped + "=" + schedule + " --ranks 2 --schedule-csv " + folder.path(host) + "/s.csv").code ==
            0);
  const std::string imported = exe() + " train " + piped + "_file=s.csv";
  once(shell(mpirun() + "-np 1 -wdir " + folder.path("a") + " " + imported + " : -np 1 -wdir " + folder.path("b") +
             " " + imported),
       2,
       {"on all ranks: ", "rank 1 and rank 0 disagree on the plan (", " of train on stage ", " and ",
        "Give all hosts the same files, such as pipeline.schedule_file"});
  if (const std::string set = best_instructions(); set != "baseline")
    once(shell(mpirun() + "-np 1 " + program + " : -np 1 env SLIPSTREAM_ISA=baseline " + program), 2,
         {"on all ranks: ", "rank 1 and rank 0 disagree on the instruction set (baseline and " + set + ")"});
  once(shell(mpirun() + "-np 1 " + program + " : -np 1 " + program + " --set train.stepz=2"), 2,
       {"on rank 1: ", "stepz"});
  CHECK(!fs::exists(folder.path("run")));
}

TEST_CASE("ranks of different builds are refused before anything else; copies are the same build", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string program = read(exe()), sets = " train " + run_file(folder) + " --set train.steps=1";
  const auto copy = [&](const std::string& name, const std::string& content) {
    const std::string path = folder.write(name, content);
    fs::permissions(path, fs::perms::owner_all);
    return path;
  };
  const auto train_with = [&](const std::string& other, const std::string& more) {
    return shell(mpirun() + "-np 1 " + exe() + sets + " : -np 1 " + other + sets + more);
  };
  const std::string same = copy("same", program);
  std::string patched_bytes = program;
  const size_t at = patched_bytes.find("not all ranks joined within");
  REQUIRE(at != std::string::npos);
  patched_bytes[at] = 'N';
  const std::string patched = copy("patched", patched_bytes);
  // The other seed would be refused as well, but other builds may disagree about every later question.
  const Result result = train_with(patched, " --set train.seed=2");
  check_refused(result, 2, {"on all ranks: ", "rank 1 and rank 0 disagree on the build (", "Install the same build"});
  CHECK(count(result.text, "slipstream: ") == 1);
  CHECK(!fs::exists(folder.path("run")));
  for (const std::string& path : {exe(), patched}) {
    const std::string id = shell(path + " --version").text;
    CHECK(contains(result.text, id.substr(id.find("build ") + 6, 16)));
  }
  if (shell("strip -o " + folder.path("stripped") + " " + exe()).code == 0)
    CHECK(train_with(folder.path("stripped"), "").code == 0);
  CHECK(train_with(same, "").code == 0);
  const std::string recorded = Json::parse(read(folder.path("run") + "/run.json")).at("build").as_string();
  CHECK(contains(call("--version").text, "(build " + recorded + ")"));
}

TEST_CASE("a rank that runs out of memory ends the job", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder);
  // This rank may map less than its 820 MiB of the model.
  const std::string sets =
      " --set model.layers=16 --set model.width=512 --set model.heads=8 --set model.context=64 --set "
      "train.micro_batch_size=2";
  const Result result = shell(mpirun() + "-np 1 " + exe() + " train " + run + sets +
                              " : -np 1 sh -c \"ulimit -v 800000; exec " + exe() + " train " + run + sets + "\"");
  INFO(result.text);
  CHECK(result.code == 7);
  CHECK(contains(result.text, "slipstream: "));
  CHECK(!contains(result.text, "terminate called"));
  CHECK(!fs::exists(folder.path("run") + "/checkpoints/final"));
}

TEST_CASE("a text may be larger than memory", "[cli]") {
  Folder folder;
  const std::string text = folder.write("large.txt", ""), run = run_file(folder);
  fs::resize_file(text, int64_t{2} << 30);  // a hole: zeros that take no disk
  const Result result = shell("ulimit -v 1800000; " + exe() + " train " + run +
                              " --set train.steps=1 --set data.format=text --set data.train=" + text);
  INFO(result.text);
  CHECK(result.code == 0);
}

TEST_CASE("threads that the system refuses give one error", "[cli]") {
  Folder folder;
  // The stacks of 1000 threads need about 8 GB.
  check_refused(shell("ulimit -v 3000000; " + exe() + " train " + run_file(folder) + " --set device.threads=1000"), 7,
                {"a pool of 1000 threads could not start a thread", "lower device.threads"});
}

TEST_CASE("a NaN loss ends every rank", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  const std::string sets =
      " --set optimizer.learning_rate=1000 --set optimizer.min_learning_rate=1000 --set optimizer.warmup_steps=0"
      " --set optimizer.grad_clip=0 --set optimizer.weight_decay=1000 --set train.steps=60";
  const Result one = call("train " + run + sets);
  check_refused(one, 5,
                {"loss is nan. ",
                 "learning_rate"});  // the norm is not in the message, because it is not computed without clipping
  CHECK(!fs::exists(folder.path("run") + "/checkpoints/final"));
  if (!has_mpirun()) return;
  const Result two = on_ranks(2, "train " + run + sets);
  check_refused(two, 5, {"on all ranks: ", "loss"});
  const Result one_of_launcher = on_ranks(1, "train " + run + sets);
  CHECK(one_of_launcher.code == 5);
  CHECK(contains(one_of_launcher.text, "slipstream: "));
  CHECK(contains(one_of_launcher.text, "loss is nan. "));
  CHECK(count(two.text, "slipstream: ") == 1);
  check_refused(call("train " + run + sets + " --set optimizer.grad_clip=1 --set optimizer.eps=1"), 5,
                {"and the gradient norm ", "; the first gradient that is not finite is that of "});
  check_refused(call("train " + run + sets + " --set train.on_nan=rollback"), 2,
                {"train.on_nan = \"rollback\" needs checkpoints", "checkpoint.interval = 0", "\"skip\""});
}

TEST_CASE("a changed bit in one rank's weights ends the run with the rank and the tensor", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  // A rate of 0 keeps the weights, so that they can be found in the memory of a rank.
  const std::string train = "train " + run_file(folder) +
                            " --set optimizer.learning_rate=0 --set optimizer.min_learning_rate=0 --set "
                            "train.hash_interval=1 --set train.eval_batches=1 --set train.log_interval=100000 ";
  REQUIRE(call(train + "--set train.steps=1").code == 0);
  const checkpoint::FinalWeights weights = checkpoint::read_final(folder.path("run") + "/checkpoints/final");
  std::vector<float> table;
  std::string name;
  for (const checkpoint::TensorInfo& tensor : weights.weights.tensors())
    if (contains(tensor.name, "wte.weight")) {
      table.resize(static_cast<size_t>(tensor.elems()));
      weights.weights.read_floats(tensor, table);
      name = tensor.name;
    }
  REQUIRE(!table.empty());
  const std::string pattern(reinterpret_cast<const char*>(table.data()), 64);
  const auto flip = [&](pid_t rank) {
    int found = 0;
    std::ifstream maps("/proc/" + std::to_string(rank) + "/maps");
    std::fstream memory("/proc/" + std::to_string(rank) + "/mem", std::ios::in | std::ios::out | std::ios::binary);
    for (std::string line; std::getline(maps, line);) {
      unsigned long begin = 0, end = 0;
      char mode[5] = "";
      if (std::sscanf(line.c_str(), "%lx-%lx %4s", &begin, &end, mode) != 3 || std::string(mode) != "rw-p") continue;
      std::string bytes(end - begin, '\0');
      memory.clear();
      memory.seekg(static_cast<std::streamoff>(begin));
      if (!memory.read(bytes.data(), static_cast<std::streamsize>(bytes.size()))) continue;
      for (size_t at = bytes.find(pattern); at != std::string::npos; at = bytes.find(pattern, at + 1)) {
        memory.seekp(static_cast<std::streamoff>(begin + at));
        memory.put(static_cast<char>(pattern[0] ^ 1)).flush();
        ++found;
      }
    }
    return found;
  };
  for (const int ranks : {2, 3}) {
    const std::string dir = folder.path("ranks" + std::to_string(ranks));
    Result result;
    std::thread running([&] {
      result = shell(mpirun() + "-np " + std::to_string(ranks) + " " + exe() + " " + train +
                         "--set train.steps=1000000 --set train.global_batch_size=" + std::to_string(2 * ranks) +
                         " --set output.dir=" + dir,
                     120);
    });
    std::vector<pid_t> pids;
    for (int tries = 0; tries < 600 && static_cast<int>(pids.size()) < ranks; ++tries) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      std::error_code absent;  // the first line follows the initial weights
      const auto written = fs::file_size(dir + "/metrics.jsonl", absent);
      pids = !absent && written > 0 ? ranks_running(dir) : std::vector<pid_t>{};
    }
    int found = 0;
    if (static_cast<int>(pids.size()) == ranks) found = flip(*std::max_element(pids.begin(), pids.end()));
    if (found == 0)
      for (pid_t pid : pids) ::kill(pid, SIGKILL);
    running.join();
    REQUIRE(found > 0);
    check_refused(result, 5,
                  {"on all ranks: [train] step ", name + " is the first such tensor",
                   ranks == 2 ? "the parameters of ranks 0 and 1 differ from each other"
                              : " differ from those of most ranks, which must hold the same bits"});
    CHECK(!fs::exists(dir + "/checkpoints/final"));
  }
}

TEST_CASE("a run that ends with a NaN has the lines of all steps before", "[cli]") {
  Folder folder;
  const std::string train = "train " + run_file(folder) +
                            " --set optimizer.learning_rate=1000 --set optimizer.min_learning_rate=1000 --set "
                            "optimizer.warmup_steps=0 --set train.log_interval=1000 --set train.steps=60";
  for (const int ranks : {1, 2}) {
    if (ranks > 1 && !has_mpirun()) return;
    const Result result = ranks == 1 ? call(train) : on_ranks(ranks, train);
    check_refused(result, 5, {"[train] step "});
    const auto failed = static_cast<size_t>(number_after(result.text, "[train] step "));
    CHECK(failed > 1);
    CHECK(metrics(folder.path("run")).size() == failed - 1);
  }
}

TEST_CASE("the last update is tested: weights and a validation loss that are not finite are not saved", "[cli]") {
  Folder folder;
  const std::string train = "train " + run_file(folder) + " --set optimizer.warmup_steps=0 --set optimizer.grad_clip=0";
  const auto rate = [](const std::string& value) {
    return " --set optimizer.learning_rate=" + value + " --set optimizer.min_learning_rate=" + value;
  };
  const std::string overflowing = train + rate("1000") + " --set train.steps=1";
  // Gradients of tokens that occur in step 1 and not in step 2 are 0, and their moments are divided by eps alone.
  const std::string infinite = train + rate("100") +
                               " --set train.steps=2 --set train.sequence_length=2 --set model.family=llama --set "
                               "optimizer.beta2=0 --set optimizer.eps=1.2e-38 --set optimizer.weight_decay=0";
  for (const int ranks : {1, 2}) {
    if (ranks > 1 && !has_mpirun()) return;
    const auto start = [&](const std::string& line) { return ranks == 1 ? call(line) : on_ranks(ranks, line); };
    for (const Result& result : {start(overflowing), start(infinite)}) {
      check_refused(result, 5, {"learning_rate"});
      CHECK(count(result.text, "slipstream: ") == 1);
      CHECK((contains(result.text, "[train] step 1: the validation loss is nan. ") ||
             contains(result.text, "weight has weights that are not finite. ")));
      CHECK(!fs::exists(folder.path("run") + "/checkpoints/final"));
    }
  }
}

TEST_CASE("a killed rank ends the job, and no file is half-written", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), dir = folder.path("run");
  Result result;
  std::jthread job(
      [&] { result = on_ranks(2, "train " + run + " --set train.steps=1000000 --set train.log_interval=1"); });
  // It is killed in the middle of training, once it has written some steps.
  std::vector<pid_t> ranks;
  for (int tries = 0; tries < 300; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    ranks = ranks_running(run);
    std::error_code error;
    if (ranks.size() == 2 && fs::exists(dir + "/metrics.jsonl") && fs::file_size(dir + "/metrics.jsonl", error) > 2000)
      break;
  }
  REQUIRE(ranks.size() == 2);
  kill(ranks.back(), SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  job.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("  the job ended %.1f s after the kill\n", seconds);
  INFO(result.text);
  if (contains(shell(mpirun_program() + " --version").text, "(Open MPI) 4.1")) CHECK(result.code == 128 + SIGKILL);
  CHECK(result.code != 0);
  CHECK(seconds < 20);  // one second on a quiet machine; a job that hangs is stopped much later
  CHECK(ranks_running(run).empty());
  CHECK(!fs::exists(dir + "/checkpoints/final/model.safetensors"));
  CHECK_NOTHROW(Json::parse(read(dir + "/run.json")));
  CHECK(metrics(dir).size() > 1);  // whole lines only
}

TEST_CASE("ranks that get SIGTERM print what a kill would lose, and save", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), lines = folder.path("run") + "/metrics.jsonl";
  std::jthread signal([&] {
    std::error_code error;
    for (int tries = 0; tries < 300 && !(fs::file_size(lines, error) > 0 && !error); ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (const pid_t process : ranks_running(run)) kill(process, SIGTERM);
  });
  const Result result = on_ranks(2, "train " + run + " --set train.steps=1000000 --set train.log_interval=1");
  check_refused(result, 75, {"a signal asks the run to end", "it has no checkpoint", lines, "which is saved"});
}

TEST_CASE("a full disk or a file size limit ends the run with one error, and every line of metrics is complete",
          "[cli]") {
  Folder folder;
  const std::string run = run_file(folder) + " --set train.steps=4000 --set train.eval_batches=0";
  // The limit is in blocks of 512 bytes; the shell's limit raises a signal, which must not end the process.
  const Result trained = shell("ulimit -f 64; " + exe() + " train " + run);
  check_refused(trained, 7, {"metrics.jsonl", "cannot be written", "The file exceeds a size limit"});
  const std::string lines = read(folder.path("run") + "/metrics.jsonl");
  REQUIRE(!lines.empty());
  CHECK(lines.back() == '\n');
  for (const Json& line : metrics(folder.path("run"))) CHECK(line.at("step").as_int() > 0);
  folder.write("long.txt", english() + english() + english());
  check_refused(shell("ulimit -f 64; " + exe() + " tokenize " + folder.path("long.txt") + " " + folder.path("long")), 7,
                {"long"});
  for (const fs::directory_entry& entry : fs::directory_iterator(folder.path("")))
    CHECK(entry.path().filename().string().find(".tmp") == std::string::npos);
}

TEST_CASE("a second job in a folder is refused, and a folder whose job was killed is taken over", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder), dir = folder.path("run");
  const std::string train = "train " + run + " --set checkpoint.dir=" + folder.path("weights");
  std::jthread first([&] { call(train + " --set train.steps=1000000 --set train.log_interval=1"); });
  for (int tries = 0; tries < 300 && !fs::exists(dir + "/run.json"); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const std::vector<pid_t> owner = ranks_running(run);
  for (const std::string& other : {std::string(), " --set output.dir=" + folder.path("other")}) {
    const Result second = call(train + other);
    check_refused(second, 4, {" is in use by process ", " on host ", other.empty() ? "output.dir" : "checkpoint.dir"});
    CHECK(owner == std::vector<pid_t>{static_cast<pid_t>(number_after(second.text, "in use by process "))});
  }
  for (const pid_t process : owner) kill(process, SIGKILL);
  first.join();
  CHECK(!fs::exists(dir + ".old-1"));
  CHECK(fs::exists(dir + "/lock"));
  const Result next = call(train);
  INFO(next.text);
  CHECK(next.code == 0);
  CHECK(fs::exists(dir + ".old-1/metrics.jsonl"));
  CHECK(fs::exists(folder.path("weights") + "/final/model.safetensors"));
  for (const char* lock : {"run/lock", "weights/lock"}) CHECK(!fs::exists(folder.path(lock)));
  // Another host's processes cannot be seen from here.
  folder.write("run/lock", "elsewhere 12 2026-01-01T00:00:00Z\n");
  check_refused(call(train), 4, {"process 12 on host elsewhere, started at 2026-01-01", "delete " + dir + "/lock"});
}

TEST_CASE("jobs with different output folders do not share a checkpoint folder", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder), inside = folder.path("run") + "/checkpoints", link = folder.path("link");
  REQUIRE(call("train " + run + " --set train.steps=1").code == 0);
  fs::create_directory_symlink(inside, link);
  // The folder inside an output folder without a job is in use, too: it must not move with an older run.
  for (const auto& [first, second] :
       {std::pair<std::string, std::string>{"", " --set output.dir=" + folder.path("other") + " --set checkpoint.dir="},
        {" --set output.dir=" + folder.path("other") + " --set checkpoint.dir=" + inside, ""}}) {
    fs::remove_all(folder.path("other"));
    const std::string started = (first.empty() ? folder.path("run") : folder.path("other")) + "/run.json";
    fs::remove(started);
    std::jthread job(
        [&, more = first] { call("train " + run + more + " --set train.steps=1000000 --set train.log_interval=1"); });
    for (int tries = 0; tries < 300 && !fs::exists(started); ++tries)
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    for (const std::string& way :
         second.empty() ? std::vector<std::string>{""} : std::vector<std::string>{inside, link})
      check_refused(call("train " + run + second + way), 4,
                    {" is in use by process ", "set checkpoint.dir to another"});
    for (const pid_t process : ranks_running(run)) kill(process, SIGKILL);
    job.join();
  }
  CHECK(fs::exists(inside + "/lock"));
  for (int time = 0; time < 2; ++time) CHECK(call("train " + run).code == 0);
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder.path("")))
    CHECK((entry.path().filename() != "lock" || contains(entry.path().string(), "/other/")));
  CHECK(call("train " + run + " --set checkpoint.dir=" + folder.path("run")).code == 0);  // one folder, one lock
}

TEST_CASE("a lock whose owner cannot be seen is taken over only if the owner has ended for certain", "[cli]") {
  Folder folder;
  const std::string train = "train " + run_file(folder) + " --set train.steps=1", lock = folder.path("run") + "/lock";
  REQUIRE(call(train).code == 0);
  const auto left_by = [&](const std::string& owner) { folder.write("run/lock", owner + "\n"); };
  const auto refused = [&](const std::string& environment) {
    check_refused(shell(environment + exe() + " " + train), 4, {"in use by process 12 on host ", "delete " + lock});
    CHECK(fs::exists(lock));
  };
  const std::string elsewhere = "elsewhere 12 2026-01-01T00:00:00Z boot:1 ";
  // Slurm counts the starts of a job, and ends each start before the next one.
  left_by(elsewhere + "east:77 1");
  for (const char* other : {"", "SLURM_JOB_ID=77 SLURM_CLUSTER_NAME=east SLURM_RESTART_COUNT=1 ",
                            "SLURM_JOB_ID=77 SLURM_CLUSTER_NAME=west SLURM_RESTART_COUNT=2 ",
                            "SLURM_JOB_ID=78 SLURM_CLUSTER_NAME=east SLURM_RESTART_COUNT=2 "})
    refused(other);
  CHECK(shell("SLURM_JOB_ID=77 SLURM_CLUSTER_NAME=east SLURM_RESTART_COUNT=2 " + exe() + " " + train).code == 0);
  CHECK(!fs::exists(lock));
  left_by(elsewhere + "- 0");
  refused("");
  // Where the file system has no locks, a process of this host that is gone has ended; a process of another boot may be
  // elsewhere.
  const std::string no_locks = "SLIPSTREAM_FAIL_POINT=lock.unsupported ";
  char host[256] = {};
  REQUIRE(gethostname(host, sizeof host - 1) == 0);
  std::string boot = read("/proc/sys/kernel/random/boot_id");
  boot.pop_back();
  const std::string processes = shell("stat -Lc %i /proc/self/ns/pid").text;
  const auto of_this_host = [&](const std::string& process, const std::string& sight) {
    left_by(std::string(host) + " " + process + " 2026-01-01T00:00:00Z " + sight + " - 0");
  };
  const std::string here = boot + ":" + processes.substr(0, processes.size() - 1);
  of_this_host(std::to_string(getpid()), here);
  check_refused(shell(no_locks + exe() + " " + train), 4, {"in use by process ", "delete " + lock});
  of_this_host("12", "another:1");
  refused(no_locks);
  of_this_host("4194305", here);  // above the highest process id of Linux
  CHECK(shell(no_locks + exe() + " " + train).code == 0);
}

TEST_CASE("too little space for the final weights is refused before the first step", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder), disk = folder.path("disk");
  fs::create_directories(disk);
  const std::string mount = "mount -t tmpfs -o size=64k none " + disk;
  if (shell("unshare -rm sh -c \"" + mount + "\"").code != 0) {
    WARN("SKIPPED the full disk: this machine cannot mount one");
    return;
  }
  const Result full = shell("unshare -rm sh -c \"" + mount + " && " + exe() + " train " + run +
                            " --set model.layers=8 --set checkpoint.dir=" + disk + "\"");
  check_refused(full, 7, {"the final weights need 1", "has 6", "checkpoint.dir"});
  CHECK(!contains(full.text, "step 1/"));
}
