// SPDX-License-Identifier: Apache-2.0
// Whole runs of the built program: training on one and several ranks, its files, and text from its weights.

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

TEST_CASE("train, then generate, then train again", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder), dir = folder.path("run");
  const Result first = call("train " + run + " --set data.tokenizer=chars --set trace.steps=[2,3]");
  INFO(first.text);
  REQUIRE(first.code == 0);
  CHECK(contains(first.text, "step 6/6 | loss "));
  CHECK(contains(first.text, "val "));
  check_complete(dir, 6);
  const Json trace = Json::parse(read(dir + "/trace/rank0000.json"));
  CHECK(trace.at("distributedInfo").at("rank").as_int() == 0);
  CHECK(trace.at("traceEvents").as_array().size() > 50);

  const std::string generate = "generate " + dir + " --prompt \"the wind\" --tokens 40 --seed 3";
  const Result text = call(generate);
  INFO(text.text);
  REQUIRE(text.code == 0);
  CHECK(text.text.rfind("the wind", 0) == 0);
  CHECK(text.text.size() == 8 + 40 + 1);
  CHECK(call(generate).text == text.text);
  CHECK(call(generate + "1").text != text.text);
  CHECK(call("generate " + dir + "/checkpoints/final --prompt \"the wind\" --tokens 40 --seed 3").text == text.text);
  const std::string likeliest = call("generate " + dir + " --prompt the --tokens 20 --temperature 0").text;
  CHECK(call("generate " + dir + " --prompt the --tokens 20 --top-k 1").text == likeliest);
  CHECK(call("generate " + dir + " --tokens 3").code == 0);  // without a prompt
  check_refused(call("generate " + dir + " --prompt \"WIND\""), 3, {"W"});

  const std::string hash = metrics(dir).back().at("params_hash").as_string();
  const Result second = call("train " + run + " --set data.tokenizer=chars");
  REQUIRE(second.code == 0);
  CHECK(contains(second.text, dir + ".old-1"));
  check_complete(dir, 6);
  check_complete(dir + ".old-1", 6);
  CHECK(metrics(dir).back().at("params_hash").as_string() == hash);  // every run has the same bits
  REQUIRE(call("train " + run).code == 0);
  CHECK(fs::exists(dir + ".old-2"));
  // A refusal before training leaves older runs unchanged.
  check_refused(shell("SLIPSTREAM_ISA=avx3 " + exe() + " train " + run), 2, {"avx3", "baseline, avx2 or avx512"});
  check_refused(shell("SLIPSTREAM_ATTENTION=flash " + exe() + " train " + run), 2,
                {"SLIPSTREAM_ATTENTION=flash is unknown, need hopper, mma or plain"});
  check_refused(shell("SLIPSTREAM_ATTENTION_QUERIES=96 " + exe() + " train " + run), 2,
                {"SLIPSTREAM_ATTENTION_QUERIES=96 is unknown, need 64 or 128"});
  check_refused(shell("SLIPSTREAM_EARLY_LAUNCH=1 " + exe() + " train " + run), 2,
                {"SLIPSTREAM_EARLY_LAUNCH=1 is unknown, need on or off"});
  CHECK(!fs::exists(dir + ".old-3"));

  // The resolved run file trains the same weights.
  const Result again = call("train " + dir + ".old-1/config.resolved.toml --set output.dir=" + folder.path("again") +
                            " --set checkpoint.dir=" + folder.path("again") + "/checkpoints");
  INFO(again.text);
  REQUIRE(again.code == 0);
  CHECK(metrics(folder.path("again")).back().at("params_hash").as_string() == hash);
}

TEST_CASE("a run moves the files of an older run and no others", "[cli]") {
  Folder folder;
  const std::string dir = folder.path("run");
  fs::create_directories(folder.path("disk"));
  fs::create_directory_symlink(folder.path("disk"), dir);
  folder.write("text.txt", english());
  folder.write("run/data.txt", english());
  fs::rename(run_file(folder), dir + "/run.toml");
  const std::string train = "train " + dir + "/run.toml --set train.steps=1 --set data.train=" + dir + "/data.txt";
  for (int time = 0; time < 3; ++time) {
    const Result result = call(train);
    INFO(result.text);
    REQUIRE(result.code == 0);
  }
  CHECK(fs::is_symlink(dir));
  check_complete(dir, 1);
  for (const char* old : {"disk.old-1", "disk.old-2"}) {
    check_complete(folder.path(old), 1);
    CHECK(!fs::exists(folder.path(old) + "/data.txt"));
  }
  CHECK(!fs::exists(dir + ".old-1"));
}

TEST_CASE("a run keeps the weights of an older run in checkpoint.dir, and a file of that name", "[cli]") {
  Folder folder;
  const std::string weights = folder.path("weights"), file = "/model.safetensors";
  const auto train = [&](const std::string& more) {
    const Result result = call("train " + run_file(folder) + " --set train.steps=1 --set checkpoint.dir=" + weights +
                               " --set output.dir=" + folder.path("run") + more);
    INFO(result.text);
    REQUIRE(result.code == 0);
  };
  train("");
  const std::string first = read(weights + "/final" + file);
  folder.write("weights/final/notes.txt", "mine");
  train(" --set train.seed=2");
  CHECK(read(weights + "/final.old-1" + file) == first);
  CHECK(read(weights + "/final.old-1/notes.txt") == "mine");
  CHECK(read(weights + "/final" + file) != first);
  fs::rename(weights + "/final", weights + "/second");
  folder.write("weights/final", "mine");
  train("");
  CHECK(read(weights + "/final.old-2") == "mine");
  CHECK(read(weights + "/final" + file) == first);
}

TEST_CASE("evaluations and hashes between steps change no step", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder), dir = folder.path("run");
  std::string expected;
  for (const char* more :
       {"", " --set train.eval_interval=1", " --set train.eval_interval=4", " --set train.hash_interval=3",
        " --set train.eval_interval=4 --set train.hash_interval=3 --set train.log_interval=2 --set "
        "trace.steps=[3,9]"}) {
    const Result result = call("train " + run + " --set train.steps=11 " + more);
    INFO(more << "\n" << result.text);
    REQUIRE(result.code == 0);
    check_complete(dir, 11);
    const std::vector<Json> lines = metrics(dir);
    if (expected.empty()) expected = lines.back().at("params_hash").as_string();
    CHECK(lines.back().at("params_hash").as_string() == expected);
    for (const Json& line : lines) {
      const int64_t step = line.at("step").as_int();
      const bool evaluated =
          step == 11 || (contains(more, "eval_interval=4") && step % 4 == 0) || contains(more, "eval_interval=1");
      CHECK((line.find("val_loss") != nullptr) == evaluated);
      CHECK((line.find("params_hash") != nullptr) ==
            (evaluated || (contains(more, "hash_interval=3") && step % 3 == 0)));
      CHECK(line.at("step_ms").as_double() >= line.at("compute_ms").as_double());
    }
  }
}

TEST_CASE("a text without a line break generates too", "[cli]") {
  Folder folder;
  std::string text = english();
  for (char& c : text)
    if (c == '\n') c = ' ';
  folder.write("text.txt", text);
  REQUIRE(call("train " + run_file(folder) + " --set data.tokenizer=chars").code == 0);
  const Result result = call("generate " + folder.path("run") + " --tokens 5");
  INFO(result.text);
  CHECK(result.code == 0);
}

TEST_CASE("missing or damaged weights exit with code 4", "[cli]") {
  Folder folder;
  REQUIRE(call("train " + run_file(folder)).code == 0);
  const std::string final = folder.path("run") + "/checkpoints/final";
  const std::string weights = read(final + "/model.safetensors"), config = read(final + "/config.json");
  check_refused(call("generate " + folder.path("none")), 4, {"none"});
  const auto with = [&](const std::string& name, const std::string& content) {
    folder.write("run/checkpoints/final/" + name, content);
    return call("generate " + folder.path("run") + " --tokens 2");
  };
  check_refused(with("model.safetensors", weights.substr(0, weights.size() / 2)), 4, {"model.safetensors"});
  check_refused(with("model.safetensors", "junk"), 4, {"model.safetensors"});
  fs::remove(final + "/hashes.xxh128");  // the hashes would refuse these weights, too
  // First there is one NaN, then finite weights that overflow.
  std::string broken = weights;
  const float nan = std::nanf(""), large = 1e38f;
  std::memcpy(broken.data() + broken.size() - sizeof nan, &nan, sizeof nan);
  check_refused(with("model.safetensors", broken), 4, {"model.safetensors\" has weights that are not finite"});
  const size_t header = 8 + *reinterpret_cast<const uint64_t*>(weights.data());
  for (size_t at = header; at < broken.size(); at += sizeof large)
    std::memcpy(broken.data() + at, &large, sizeof large);
  check_refused(with("model.safetensors", broken), 5, {"logits of token 1 are not finite"});
  CHECK(with("model.safetensors", weights).code == 0);
  check_refused(with("config.json", "{}"), 4, {"config.json"});
  std::string wide = config;
  wide.replace(wide.find("\"n_embd\": 16"), 12, "\"n_embd\": 32");
  check_refused(with("config.json", wide), 4, {});
  std::string uneven = config;
  uneven.replace(uneven.find("\"n_head\": 2"), 11, "\"n_head\": 3");
  check_refused(with("config.json", uneven), 4, {"3", "16"});
  std::string none = config;
  none.replace(none.find("\"n_head\": 2"), 11, "\"n_head\": 0");
  check_refused(with("config.json", none), 4, {});
  CHECK(with("config.json", config).code == 0);
}

TEST_CASE("two ranks train the model of one", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder);
  const auto dir = [&](const std::string& name) { return " --set output.dir=" + folder.path(name); };
  REQUIRE(call("train " + run + dir("one")).code == 0);
  const Result two = on_ranks(2, "train " + run + dir("two") + " --set trace.steps=[3,4]");
  INFO(two.text);
  REQUIRE(two.code == 0);
  CHECK(contains(two.text, "overlap: "));
  CHECK(count(two.text, "step 6/6") == 1);
  check_complete(folder.path("two"), 6);
  CHECK(fs::exists(folder.path("two") + "/trace/rank0001.json"));
  CHECK(Json::parse(read(folder.path("two") + "/trace/rank0001.json")).at("distributedInfo").at("rank").as_int() == 1);
  const auto a = metrics(folder.path("one")), b = metrics(folder.path("two"));
  for (size_t i = 0; i < a.size(); ++i)
    CHECK(a[i].at("loss").as_double() == Approx(b[i].at("loss").as_double()).epsilon(1e-4));
  CHECK(a.back().at("val_loss").as_double() == Approx(b.back().at("val_loss").as_double()).epsilon(1e-4));
  CHECK(b.back().at("comm_ms").as_double() > 0);
  CHECK(a.back().at("hidden").is_null());
  // The plan that `plan` prints is the plan that runs.
  CHECK(Json::parse(call("plan " + run + " --ranks 2 --json").text).at("plan_hash").as_string() ==
        Json::parse(read(folder.path("two") + "/run.json")).at("plan_hash").as_string());
}

TEST_CASE(
    "mfu is the model's operations over the step and the peak of the machine that the run names, and absent without "
    "one",
    "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder);
  for (int ranks : {1, 2}) {
    const Result trained =
        on_ranks(ranks, "train " + run + " --set device.machine=" + source_dir() + "/configs/machines/laptop.toml");
    INFO(trained.text);
    REQUIRE(trained.code == 0);
    for (const Json& line : metrics(folder.path("run"))) {
      const double flops = line.at("mfu").as_double() * line.at("step_ms").as_double() / 1e3 * ranks * 96e9;
      // The products have 2 layers of 12 x 16 x 16 weights and a head of 256 x 16, and attention has 2 heads of 8; in
      // such a small model the rest counts.
      const double weights = 2 * 12 * 16 * 16 + 256 * 16,
                   closed = 6 * weights * 4 * 16 + 2 * 4 * 14.0 * 16 * 16 * 17 / 2;
      CHECK(flops > closed);
      CHECK(flops < 1.5 * closed);
    }
  }
  REQUIRE(call("train " + run).code == 0);
  CHECK(metrics(folder.path("run")).back().find("mfu") == nullptr);
}

TEST_CASE("ranks that were started on one host are planned as one node, though it has fewer cores or more", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder, "[zero]\nstage = 2\n");
  for (int ranks : {1, 2, 5}) {
    const Result trained = on_ranks(
        ranks, "train " + run + " --set train.steps=1 --set train.global_batch_size=" + std::to_string(4 * ranks));
    INFO(trained.text);
    REQUIRE(trained.code == 0);
    CHECK(Json::parse(read(folder.path("run") + "/run.json")).at("ranks_per_node").as_int() == ranks);
  }
}

TEST_CASE("more threads than cores are a warning and a note", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  const unsigned cores = std::thread::hardware_concurrency();
  for (unsigned threads : {1u, cores + 1}) {
    const Result result = call("train " + run + " --set train.steps=1 --set device.threads=" + std::to_string(threads) +
                               " --set output.dir=" + folder.path("run"));
    INFO(result.text);
    CHECK(result.code == 0);
    const std::string sentence = "device.threads = " + std::to_string(threads) + " on " + std::to_string(cores);
    CHECK(contains(result.text, sentence) == (threads > cores));
    CHECK(contains(read(folder.path("run") + "/run.json"), sentence) == (threads > cores));
  }
}

TEST_CASE("a slow link is seen in the metrics and the timeline, not in the weights", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), dir = folder.path("run");
  REQUIRE(on_ranks(2, "train " + run).code == 0);
  const std::string hash = metrics(dir).back().at("params_hash").as_string();
  // 60 kB at 16 Mbit/s are 30 ms; the model computes for less than one of them.
  const Result result = on_ranks(2, "train " + run + " --set comm.emulate.bandwidth=16Mbit/s --set trace.steps=[4,5]");
  INFO(result.text);
  REQUIRE(result.code == 0);
  const std::vector<Json> lines = metrics(dir);
  CHECK(lines.back().at("params_hash").as_string() == hash);
  // Exposed time is charged to the tasks that compute waited for, the largest first.
  CHECK(contains(result.text, "\nwaits:    compute waited for "));
  for (const Json& line : lines) {
    REQUIRE(line.at("exposed_ms").as_double() > 0);
    double sum = 0, before = line.at("exposed_ms").as_double() + 1;
    for (const auto& [task, ms] : line.at("exposed_by").as_object()) {
      CHECK(ms.as_double() <= before);
      sum += before = ms.as_double();
    }
    CHECK(sum == Approx(line.at("exposed_ms").as_double()));
  }
  const Json& last = lines[4];
  CHECK(last.at("comm_ms").as_double() > 20);
  CHECK(last.at("exposed_ms").as_double() > 0.5 * last.at("comm_ms").as_double());
  CHECK(last.at("hidden").as_double() < 0.5);
  CHECK(last.at("exposed_ms_max").as_double() >= last.at("exposed_ms").as_double());
  const Json* bubble = last.find("bubble_ms");  // not null if a rank was late
  const double parts = last.at("compute_ms").as_double() + last.at("exposed_ms").as_double() +
                       (bubble ? bubble->as_double() : 0) + last.at("input_ms").as_double() +
                       last.at("other_ms").as_double();
  CHECK(parts == Approx(last.at("step_ms").as_double()));
  int waits = 0, collectives = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const Json trace = Json::parse(read(dir + "/trace/rank000" + std::to_string(rank) + ".json"));
    for (const Json& event : trace.at("traceEvents").as_array()) {
      if (event.at("ph").as_string() != "X") continue;
      const std::string name = event.at("name").as_string(), category = event.at("cat").as_string();
      const int64_t step = event.at("args").at("step").as_int();
      CHECK((step == 4 || step == 5));
      CHECK(contains(name, "_wait_") == (category == "wait"));
      waits += event.at("tid").as_int() == 0 &&
               (contains(name, "_wait_all_reduce.bucket") || contains(name, "_wait_all_gather.embedding"));
      collectives += category == "communication" && contains(name, "all_reduce.bucket");
    }
  }
  CHECK(waits >= 4);  // at least one per step and rank
  CHECK(collectives >= 4);
}

TEST_CASE("delays and the reduce mode do not change the weights of three processes", "[cli]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder);
  std::string expected;
  for (const char* more : {"", " --inject-delays 7", " --inject-delays 0", " --set overlap.grad_reduce=naive",
                           " --set overlap.bucket_size=1MiB"}) {
    const Result result = on_ranks(3, "train " + run + " --set train.global_batch_size=6" + more);
    INFO(more << "\n" << result.text);
    REQUIRE(result.code == 0);
    const std::string hash = metrics(folder.path("run")).back().at("params_hash").as_string();
    if (expected.empty()) expected = hash;
    CHECK(hash == expected);
    // Every seed is a seed, including 0.
    CHECK(contains(result.text, "random pauses before works") == contains(more, "--inject-delays"));
  }
}

TEST_CASE("delays do not change the weights of processes that gather layers ahead, alone or in groups", "[cli][zero]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder) +
                          " --set model.layers=4 --set train.steps=4 --set train.global_batch_size=8 --set "
                          "overlap.split_tied_embedding=false --set train.eval_interval=2";
  for (const char* shards : {"", " --set zero.shard_size=2"}) {
    std::string expected;
    for (const char* more : {" --set zero.stage=1", " --set zero.stage=3", " --set zero.stage=3 --inject-delays 7",
                             " --set zero.stage=3 --set zero.prefetch_depth=2 --inject-delays 8"}) {
      const Result result = on_ranks(4, "train " + run + shards + more);
      INFO(shards << more << "\n" << result.text);
      REQUIRE(result.code == 0);
      const std::string hash = metrics(folder.path("run")).back().at("params_hash").as_string();
      if (expected.empty()) expected = hash;
      CHECK(hash == expected);
      CHECK(contains(result.text, "random pauses before works") == contains(more, "--inject-delays"));
    }
  }
}

TEST_CASE("weights that no rank has whole are hashed and saved piece by piece, the same bytes", "[cli][zero]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), dir = folder.path("run");
  std::string hash, weights;
  // Tensors have more than one piece, and shards end inside them; there are two copies of the weights after an odd and
  // an even number of steps.
  for (const char* more :
       {" --set zero.stage=0", " --set zero.stage=1", " --set zero.stage=3 --set zero.persistence_threshold=1KiB",
        " --set zero.stage=1 --set optimizer.double_buffer=true",
        " --set zero.stage=2 --set optimizer.double_buffer=true --set train.hash_interval=1"}) {
    const Result result = on_ranks(
        3, "train " + run + " --set train.global_batch_size=6 --set overlap.split_tied_embedding=false" + more);
    INFO(more << "\n" << result.text);
    REQUIRE(result.code == 0);
    const std::string got = metrics(dir).back().at("params_hash").as_string(),
                      saved = read(dir + "/checkpoints/final/model.safetensors");
    CHECK(!saved.empty());
    CHECK((hash.empty() || hash == got));
    CHECK((weights.empty() || weights == saved));
    hash = got, weights = saved;
  }
}

TEST_CASE("gradients and parameters that travel as int8 and bfloat16 train nearly the same model", "[cli][zero]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), dir = folder.path("run");
  const auto losses = [&](const std::string& more) {
    const Result result = on_ranks(
        2, "train " + run + " --check-hazards --set overlap.split_tied_embedding=false --set zero.stage=1" + more);
    INFO(more << "\n" << result.text);
    REQUIRE(result.code == 0);
    return std::pair(metrics(dir).back().at("loss").as_double(), metrics(dir).back().at("params_hash").as_string());
  };
  const auto exact = losses(""), rounded = losses(" --set comm.grad_dtype=bfloat16 --set zero.gather_dtype=bfloat16"),
             quantised =
                 losses(" --set comm.quantize=int8 --set comm.error_feedback=true --set zero.gather_dtype=int8");
  CHECK(rounded.second != exact.second);
  CHECK(rounded.first == Approx(exact.first).epsilon(1e-3));
  CHECK(quantised.first == Approx(exact.first).epsilon(1e-2));
}

TEST_CASE("a pipeline prints the memory of its largest stage, and at the end that of rank 0", "[cli][pipeline]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string sets =
      run_file(folder) + " --set train.micro_batch_size=1 --set parallel.pipeline=2 --set pipeline.layers=[0,2]";
  const Result plan = call("plan --ranks 2 " + sets), run = on_ranks(2, "train --set train.steps=1 " + sets);
  INFO(plan.text << run.text);
  REQUIRE(plan.code == 0);
  REQUIRE(run.code == 0);
  const std::string row = plan.text.substr(plan.text.find("  stage 1: ") + 11);
  CHECK(contains(run.text, "memory of a rank (stage 1, which needs most): " + row.substr(0, row.find(" of memory"))));
  CHECK(contains(run.text, " resident at most on rank 0, "));
}

// Takes minutes and needs the text: run it by hand or with all tests, `cli_runs_test [slow]`.
TEST_CASE("the published recipe reaches its validation loss on 1, 2 and 4 ranks", "[.slow]") {
  if (!has_mpirun()) return;
  const char* given = std::getenv("SLIPSTREAM_SHAKESPEARE");
  const std::string text = given ? given : source_dir() + "/../shared/data/tinyshakespeare.txt";
  if (!fs::exists(text)) {
    WARN("SKIPPED the recipe: no " + text + "; SLIPSTREAM_SHAKESPEARE names another place");
    return;
  }
  Folder folder;
  double first_val = 0;
  std::vector<Json> first;
  for (int ranks : {1, 2, 4}) {
    const std::string dir = folder.path("ranks" + std::to_string(ranks));
    const Result result =
        shell(mpirun() + "-np " + std::to_string(ranks) + " " + exe() + " train " + source_dir() +
                  "/configs/runs/shakespeare_char.toml" + " --set data.train=" + text + " --set output.dir=" + dir,
              1800);
    INFO(result.text);
    REQUIRE(result.code == 0);
    const std::vector<Json> lines = metrics(dir);
    const double val = lines.back().at("val_loss").as_double();
    std::printf("  %d ranks: validation loss %.4f\n", ranks, val);
    CHECK(val <= 1.92);
    if (first.empty()) {
      first = lines;
      first_val = val;
    }
    CHECK(std::abs(val - first_val) < 0.02);
    for (size_t i = 0; i < 20; ++i)
      CHECK(std::abs(lines[i].at("loss").as_double() - first[i].at("loss").as_double()) < 1e-4);
  }
}

TEST_CASE("memory grows by the planned bytes and little more", "[cli]") {
  Folder folder;
  const std::string run = run_file(folder);
  struct Memory {
    double resident = 0, planned = 0;  // bytes
  };
  // Masters, gradients and both moments dominate; a step of a few tokens touches all of them.
  const char* models[] = {"--set model.layers=1 --set model.width=8",
                          "--set model.layers=2 --set model.width=384 --set model.vocab_size=50257",
                          "--set model.layers=16 --set model.width=384"};
  for (int ranks : {1, 2}) {
    if (ranks > 1 && !has_mpirun()) return;
    Memory smallest;
    for (const char* model : models) {
      // The sample has each of the large models once.
      if (!test_everything() && model == models[3 - ranks]) continue;
      const std::string arguments =
          "train " + run +
          " --set train.steps=2 --set train.eval_batches=1 --set train.global_batch_size=4 --set "
          "overlap.bucket_size=1MiB " +
          "--set overlap.first_bucket_size=256KiB --set device.threads=" + std::to_string(3 - ranks) + " " + model;
      const Result result = ranks == 1 ? call(arguments) : on_ranks(ranks, arguments);
      INFO(result.text);
      REQUIRE(result.code == 0);
      const Memory used{bytes_after(result.text, "\nmemory:   "), bytes_after(result.text, "at most, ")};
      INFO(ranks << " ranks, " << model << ": " << used.resident / 0x1p20 << " MiB resident, " << used.planned / 0x1p20
                 << " MiB planned");
      if (smallest.resident == 0) {
        smallest = used;
        WARN(ranks << " ranks: " << (used.resident - used.planned) / 0x1p20 << " MiB of a process are not in the plan");
        CHECK(used.resident - used.planned < 200 * 0x1p20);
        continue;
      }
      const double grown = used.resident - smallest.resident, planned = used.planned - smallest.planned;
      CHECK(planned > 200 * 0x1p20);  // the law holds for models that are large compared with a page of scratch
      // Beside other programs, threads of a process touched up to 2 MiB more of their stacks and scratch.
      CHECK(std::abs(grown - planned) < 0.02 * planned + 2 * 0x1p20);
    }
  }
}
