// SPDX-License-Identifier: Apache-2.0
// The whole program without a GPU: the same run files on the CPU and on fake GPUs train the same model, and every
// failure of a GPU is one error. A host that reads the fake's device memory directly faults here, as on a GPU.

#include <fmt/core.h>

#include <cmath>
#include <map>

#include "engine/checkpoint/weights.h"
#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

const std::string& kFake = fake_gpu_program();

/// Emulated kernels take most of the time, so these runs have half the tokens of the runs on a CPU.
std::string small_run_file(const Folder& folder) {
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
Run train(const Folder& folder, const std::string& exe, int ranks, const std::string& name, const std::string& more) {
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

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(a[i] - b[i]) / std::max(1.0, std::abs(b[i])));
  return largest;
}

/// Over all weights, relative to the largest.
double largest_difference(const Run& a, const Run& b) {
  REQUIRE(a.weights.size() == b.weights.size());
  double largest = 0, difference = 0;
  for (const auto& [name, values] : b.weights) {
    REQUIRE(a.weights.count(name) == 1);
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(static_cast<double>(values[i])));
      difference =
          std::max(difference, std::abs(static_cast<double>(a.weights.at(name)[i]) - static_cast<double>(values[i])));
    }
  }
  return difference / largest;
}

/// The largest differences from the CPU: sums in another order move a loss of about 5.5 by a few rounding errors. AdamW
/// divides by the root of the variance: where a gradient is all noise, noise moves a weight.
struct Tolerance {
  double loss;
  double weights;
};
constexpr Tolerance kFloat32{1e-7, 2e-6}, kBfloat16{1e-4, 1e-3}, kBfloat16Wire{1e-7, 1e-4};
// The device multiplies in bfloat16, which moves an update by a few hundredths of its largest element.
constexpr Tolerance kMuon{1e-4, 2e-3};

struct Row {
  std::string name;
  int ranks;
  std::string sets;
  Tolerance tolerance;
  bool sampled = true;  // false: it runs only with scripts/test.sh --all
};

}  // namespace

TEST_CASE("the cuda device trains the model of the cpu device", "[cuda]") {
  // eps is large against the gradients, so that AdamW does not turn the noise of a zero gradient into whole steps.
  // Seven steps: the last one is the first that is replayed.
  const std::string same = " --set optimizer.eps=1e-3 --set train.steps=7";
  const std::string llama =
      " --set model.family=llama --set model.heads=4 --set model.kv_heads=2 --set model.width=32 --set "
      "model.ffn_width=40";
  const Row rows[] = {
      {"gpt2, two micro-batches", 1, "", kFloat32},
      {"gpt2, bfloat16", 1, " --set train.dtype=bfloat16", kBfloat16, false},
      {"gpt2, bfloat16 on the wire, two ranks", 2, " --set comm.grad_dtype=bfloat16", kBfloat16Wire, false},
      {"gpt2, ZeRO-2, two ranks", 2, " --set zero.stage=2", kFloat32, false},
      {"gpt2, ZeRO-1, two copies of the weights, no clipping, two ranks, hazards checked", 2,
       " --set zero.stage=1 --set optimizer.double_buffer=true --set optimizer.grad_clip=0 --check-hazards", kFloat32},
      {"gpt2, a sequence on two ranks", 2, " --set parallel.context=2", kFloat32, false},
      {"llama, bfloat16, a sequence on two ranks, ZeRO-1", 2,
       llama + " --set train.dtype=bfloat16 --set parallel.context=2 --set zero.stage=1", kBfloat16},
      {"gpt2, two stages, a tied table", 2, " --set parallel.pipeline=2", kFloat32, false},
      {"llama, two stages, a split backward, delays, hazards checked", 2,
       llama + " --set parallel.pipeline=2 --set pipeline.schedule=zb_h1 --inject-delays 5 --check-hazards", kFloat32},
      {"gpt2, dropout, two stages, hazards checked", 2,
       " --set model.embd_pdrop=0.1 --set model.resid_pdrop=0.2 --set parallel.pipeline=2 --check-hazards", kFloat32},
      {"llama, bfloat16, dropout, layers and tokens on two ranks", 2,
       llama + " --set train.dtype=bfloat16 --set parallel.tensor=2 --set parallel.sequence_parallel=true --set "
               "model.embd_pdrop=0.1 --set model.resid_pdrop=0.2",
       kBfloat16, false},
      {"gpt2, two stages of two chunks", 2,
       " --set model.layers=4 --set parallel.pipeline=2 --set pipeline.schedule=interleaved_1f1b --set "
       "pipeline.virtual_stages=2",
       kFloat32, false},
      {"gpt2, layers on two ranks", 2, " --set parallel.tensor=2", kFloat32, false},
      {"llama, bfloat16, layers and tokens on two ranks", 2,
       llama + " --set train.dtype=bfloat16 --set parallel.tensor=2 --set parallel.sequence_parallel=true", kBfloat16},
      {"llama, layers on two ranks of two stages", 4,
       llama + " --set parallel.tensor=2 --set parallel.pipeline=2 --set parallel.sequence_parallel=true", kFloat32,
       false},
      {"gpt2, two copies of the weights, a link that copies, two ranks", 2,
       " --set optimizer.double_buffer=true --set optimizer.grad_clip=0 --set comm.emulate.bandwidth=1Gbit/s --set "
       "comm.emulate.form=copies",
       kFloat32, false},
      {"gpt2, a link that holds blocks, two ranks", 2,
       " --set comm.emulate.bandwidth=1Gbit/s --set comm.emulate.form=blocks --set comm.emulate.blocks=2", kFloat32,
       false},
      {"llama, grouped heads, ZeRO-3, two ranks, delays", 2, llama + " --set zero.stage=3 --inject-delays 7", kFloat32},
      {"gpt2, naive, no clipping, no graph, a slow link, two ranks", 2,
       " --set overlap.grad_reduce=naive --set optimizer.grad_clip=0 --set device.graph=false --set "
       "comm.emulate.bandwidth=1Gbit/s --set comm.emulate.latency=1ms",
       kFloat32},
      {"gpt2, updates may be skipped, ZeRO-2, two ranks", 2, " --set train.on_nan=skip --set zero.stage=2", kFloat32,
       false},
      {"gpt2, updates may be skipped, two copies of the weights, no clipping, two ranks, hazards checked", 2,
       " --set train.on_nan=skip --set optimizer.double_buffer=true --set optimizer.grad_clip=0 --check-hazards",
       kFloat32, false},
      {"gpt2, Muon", 1, " --set optimizer.name=muon", kMuon, false},
      {"llama, bfloat16, Muon, ZeRO-1, two ranks, hazards checked", 2,
       llama + " --set optimizer.name=muon --set train.dtype=bfloat16 --set zero.stage=1 --check-hazards", kMuon},
      {"gpt2, Muon, ZeRO-1, two copies of the weights, no clipping, two ranks, delays", 2,
       " --set optimizer.name=muon --set zero.stage=1 --set optimizer.double_buffer=true --set optimizer.grad_clip=0 "
       "--inject-delays 3",
       kMuon, false},
  };
  if (!has_mpirun()) return;
  Folder folder;
  small_run_file(folder);
  std::string left;
  for (const Row& row : rows) {
    if (!row.sampled && !test_everything()) {
      left += (left.empty() ? "" : "; ") + row.name;
      continue;
    }
    INFO(row.name);
    const Run cpu =
        train(folder, exe(), row.ranks, "cpu", same + row.sets + " --set comm.emulate.form=gate --set device.kind=cpu");
    const std::string shared = row.ranks > 2 ? "env SLIPSTREAM_SHARE_GPU=1 " : "";  // the machine has two GPUs
    const Run gpu = train(folder, shared + kFake, row.ranks, "gpu",
                          same + row.sets + " --set device.kind=cuda --set trace.steps=[2,3]");
    const Json about = Json::parse(read(folder.path("gpu") + "/run.json"));
    CHECK(about.at("device").as_string() == "cuda");
    check_documented(about);
    const double loss = largest_difference(gpu.all("loss"), cpu.all("loss"));
    const bool clips = row.sets.find("grad_clip=0") == std::string::npos;
    const double norms = clips ? largest_difference(gpu.all("grad_norm"), cpu.all("grad_norm")) : 0;
    const double weights = largest_difference(gpu, cpu);
    const double validation =
        std::abs(gpu.lines.back().at("val_loss").as_double() - cpu.lines.back().at("val_loss").as_double());
    std::printf("%-60s loss %.1e, norm %.1e, validation %.1e, weights %.1e\n", row.name.c_str(), loss, norms,
                validation, weights);
    CHECK(loss <= row.tolerance.loss);
    // Rounding on the wire sometimes turns the last bit of a float into 2^-8 of an element, in the norm as in the
    // weights.
    CHECK(norms <= std::max(10 * row.tolerance.loss, row.tolerance.weights));
    CHECK(validation <= 6 * row.tolerance.loss);
    CHECK(weights <= row.tolerance.weights);
    // The tolerance detects one step of training: the comparison can fail.
    CHECK(std::abs(gpu.all("loss")[0] - cpu.all("loss")[1]) > 2 * row.tolerance.loss);
    // A timeline on the host's clock: spans of compute, and of communication where there are ranks.
    const std::string trace = read(folder.path("gpu") + "/trace/rank0000.json");
    CHECK(Json::parse(trace).at("traceEvents").as_array().size() > 50);
  }
  if (!left.empty())
    std::printf("  COUNTED a sample of the rows; scripts/test.sh --all trains also: %s\n", left.c_str());
}

TEST_CASE("a run takes the GPU memory that its memory table lists", "[cuda]") {
  // A fake loads no code, and its kernels keep their scratch and workspaces on the host: the plan's buffers are left.
  // Blocks are rounded up to pages.
  Folder folder;
  small_run_file(folder);
  for (const char* sets : {"", " --set train.dtype=bfloat16 --set model.width=128"}) {
    const Run run =
        train(folder, kFake, 1, "memory", " --set device.kind=cuda --set train.steps=1" + std::string(sets));
    const double taken = bytes_after(run.result.text, "GPU:      "),
                 planned = bytes_after(run.result.text, "memory of a rank: "),
                 beside = bytes_after(run.result.text, "kernels' scratch ") +
                          bytes_after(run.result.text, "cuBLASLt workspaces "),
                 table = bytes_after(run.result.text, " taken, ");
    INFO(run.result.text);
    CHECK(taken >= planned * 0.98);  // printed with one decimal
    CHECK(taken <= planned * 1.02 + 16 * 4096);
    CHECK(std::abs(table - planned - beside) < 0.1 * 0x1p20);
  }
}

TEST_CASE("a run on the cuda device repeats its bits, with and without delays", "[cuda]") {
  Folder folder;
  small_run_file(folder);
  // Of the ten steps two are eager, four recorded and four replayed. An evaluation and hashes come between them.
  const std::string ten =
      " --set train.steps=10 --set train.eval_interval=7 --set train.hash_interval=3 --set device.kind=cuda";
  const Run first = train(folder, kFake, 1, "a", ten);
  const auto same = [&](const std::string& more) {
    const Run other = train(folder, kFake, 1, "b", ten + more);
    CHECK(other.hash() == first.hash());
    CHECK(other.all("loss") == first.all("loss"));
    CHECK(other.all("grad_norm") == first.all("grad_norm"));
  };
  same("");
  same(" --inject-delays 5");
  if (test_everything()) same(" --set device.graph=false");
  if (test_everything()) same(" --check-hazards");  // every launch of the cuda device, none replayed
  // A model trained on one device continues text on the other.
  const std::string generate = " generate " + folder.path("a") + " --prompt the --tokens 12 --temperature 0 --device ";
  const Result on_gpu = shell(kFake + generate + "cuda");
  CHECK(on_gpu.code == 0);
  CHECK(on_gpu.text == shell(kFake + generate + "cpu").text);
}

TEST_CASE("the cuda device skips updates of steps that are not finite, replayed steps too", "[cuda]") {
  Folder folder;
  const std::string train = " train " + small_run_file(folder) +
                            " --set train.on_nan=skip --set train.max_skips=8 --set optimizer.learning_rate=1000 --set "
                            "optimizer.min_learning_rate=1000 --set optimizer.warmup_steps=0 --set "
                            "optimizer.weight_decay=1000 --set optimizer.grad_clip=0 --set train.steps=60 "
                            "--set device.kind=cuda";
  check_refused(shell(kFake + train), 5,
                {"9 updates in a row were skipped, more than train.max_skips = 8; the loss is "});
  int64_t skipped = 0;
  for (const Json& line : metrics(folder.path("run"))) skipped += line.find("skipped") != nullptr;
  CHECK(skipped == 8);
}

TEST_CASE("steps that cannot be recorded are issued task by task, with the same bits and one warning", "[cuda]") {
  Folder folder;
  small_run_file(folder);
  const int ranks = has_mpirun() ? 2 : 1;
  const std::string steps =
      " --set train.steps=10 --set train.eval_interval=7 --set train.hash_interval=3 --set device.kind=cuda";
  const Run recorded = train(folder, kFake, ranks, "a", steps);
  CHECK(count(recorded.result.text, "could not be recorded") == 0);
  for (const char* captures : {"0", "2"}) {
    // The memory is that of rank 0: the recordings of the other rank would succeed, and are freed too.
    const Run refused =
        train(folder, "env FAKE_GPU_CAPTURES=" + std::string(captures) + " " + kFake, ranks, "b", steps);
    CHECK(count(refused.result.text, "could not be recorded") == 1);
    CHECK(refused.hash() == recorded.hash());
    CHECK(refused.all("loss") == recorded.all("loss"));
  }
}

TEST_CASE("recorded steps have the bits of steps that run as they are, and others where a graph loses its waits",
          "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  small_run_file(folder);
  const std::string steps = " --set train.steps=10 --set device.kind=cuda";
  for (const std::string more : {" --set zero.stage=2", " --set parallel.pipeline=2"}) {
    if (contains(more, "pipeline") && !test_everything()) continue;
    INFO(more);
    const Run recorded = train(folder, kFake, 2, "a", steps + more);
    CHECK(train(folder, kFake, 2, "b", steps + more + " --set device.graph=false").hash() == recorded.hash());
    fs::remove_all(folder.path("c"));
    const Result broken = shell("env FAKE_GPU_DROPS_CAPTURED_WAITS=1 " + mpirun() + "-np 2 " + kFake + " train " +
                                folder.path("run.toml") + " --set output.dir=" + folder.path("c") +
                                " --set checkpoint.dir=" + folder.path("c") + "/checkpoints" + steps + more);
    const bool noticed =
        broken.code != 0 || metrics(folder.path("c")).back().at("params_hash").as_string() != recorded.hash();
    CHECK(noticed);
  }
}

TEST_CASE("one process measures the overlap of several ranks on every form of a link", "[cuda]") {
  Folder folder;
  const std::string run = small_run_file(folder),
                    bench = kFake + " bench overlap " + run + " --steps 1 --set device.kind=cuda ";
  const Result result = shell(bench +
                                  "--ranks 4 --set train.global_batch_size=0 --forms copies,blocks --set "
                                  "comm.emulate.bandwidth=1Gbit/s --set model.layers=1 --csv " +
                                  folder.path("table.csv"),
                              240);
  INFO(result.text);
  CHECK(result.code == 0);
  CHECK(contains(result.text, "4 ranks"));
  for (const char* form : {"Gbit/s copies", "Gbit/s blocks"}) CHECK(count(result.text, form) >= 4);
  CHECK(count(read(folder.path("table.csv")), "\nbucketed,") == 2);
  check_refused(shell(bench + "--ranks 4 --set train.global_batch_size=0"), 2,
                {"need an emulated link", "comm.emulate.bandwidth"});
  check_refused(shell(kFake + " bench overlap " + run + " --ranks 2 --forms blocks --ratios 1 --set device.kind=cpu"),
                2, {"--forms gate"});
  check_refused(shell(kFake + " train " + run + " --set comm.emulate.form=copies --set device.kind=cpu"), 2,
                {"comm.emulate.form", "on the CPU"});
}

TEST_CASE("products are timed once and kept in a file, and every run prints the table that it uses", "[cuda]") {
  Folder folder;
  const std::string run = run_file(folder), table = folder.path("algorithms.json");
  const std::string more = " --set device.kind=cuda --set train.steps=1 --set device.algorithms=" + table;
  const auto products = [&](const std::string& name) {
    return Json::parse(read(folder.path(name) + "/run.json")).at("products");
  };
  train(folder, kFake, 1, "before", more);
  CHECK(products("before").at("table").as_string().empty());
  const Result timed = shell(kFake + " bench products " + run + " --steps 1 --rotate 4KiB" + more);
  INFO(timed.text);
  REQUIRE(timed.code == 0);
  CHECK(contains(timed.text, "Emulated card, cuBLASLt 130100"));
  CHECK(contains(timed.text, "products timed: " + table));
  // A second call finds every product timed. A table that lacks some is completed, and --again times all.
  const std::string bench = kFake + " bench products " + run + " --steps 1 --rotate 4KiB" + more, whole = read(table);
  const auto entries = [&] { return Json::parse(read(table)).at("products").as_object().size(); };
  const size_t all = entries();
  CHECK(contains(shell(bench).text, fmt::format("{0} products, {0} timed before", all)));
  CHECK(read(table) == whole);
  Json some = Json::parse(whole);
  const Json::Object every = Json::parse(whole).at("products").as_object();
  some["products"] = Json::Object(every.begin() + 1, every.end());
  folder.write("algorithms.json", some.dump(1));
  CHECK(contains(shell(bench).text, fmt::format("{} products, {} timed before", all, all - 1)));
  CHECK(entries() == all);
  const Result limited = shell(bench + " --again --seconds 1e-9");
  CHECK(contains(limited.text, fmt::format("{} products, 0 timed before", all)));
  CHECK(contains(limited.text, "products left after 1e-09 s"));
  CHECK(entries() < all);
  CHECK(shell(bench).code == 0);
  CHECK(entries() == all);
  const Run first = train(folder, kFake, 1, "after", more);
  const Json taken = products("after").at("taken");
  CHECK(products("after").at("table").as_string() == table);
  CHECK(contains(taken.dump(), "gelu and bias gradient"));
  for (const auto& [product, from] : taken.as_object())
    if (contains(product, "gradient")) CHECK(from.as_string() == "table");
  CHECK(train(folder, kFake, 1, "again", more).hash() == first.hash());
  // A foreign file gives one warning and stays unchanged; the run continues without it.
  folder.write("algorithms.json", "{\"format\": 1, \"card\": \"Another\", \"cublaslt\": 1, \"products\": {}}");
  const Run without = train(folder, kFake, 1, "foreign", more);
  CHECK(count(without.result.text, "device.algorithms is ignored") == 1);
  CHECK(without.result.text.find("is for the GPU") != std::string::npos);
  CHECK(products("foreign").at("table").as_string().empty());
  check_refused(shell(kFake + " bench products " + run + " --set device.kind=cpu"), 2, {"on the CPU"});
}

TEST_CASE("NCCL's choices per channel and size are in run.json, and a table changes them", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  small_run_file(folder);
  folder.write("nccl.json",
               "{\"channels\": {\"*\": {\"max_ctas\": 2, \"choices\": [{\"verb\": \"all_reduce\", \"algorithm\": "
               "\"ring\", \"protocol\": \"ll\"}]}}}");
  const auto channels = [&](const std::string& name) {
    return Json::parse(read(folder.path(name) + "/run.json")).at("channels").dump();
  };
  const Run own = train(folder, kFake, 2, "own", " --set device.kind=cuda --set train.steps=2");
  CHECK(contains(channels("own"), "\"from\": \"NCCL\""));
  CHECK(contains(channels("own"), "\"registered\": \"yes\""));
  // Either all ranks have the memory or none uses it: run.json describes the first rank, and the second one cannot get
  // it.
  const std::string alone = kFake + " train " + folder.path("run.toml") +
                            " --set device.kind=cuda --set train.steps=1 --set output.dir=" + folder.path("alone");
  CHECK(shell(mpirun() + "-np 1 " + alone + " : -np 1 -x FAKE_NCCL_NO_REGISTER=1 " + alone, 60).code == 0);
  CHECK(contains(channels("alone"), "no: NCCL needs all ranks to register"));
  CHECK(!contains(channels("alone"), "\"registered\": \"yes\""));
  // NCCL reads arenas in place only from its own memory; with one rank there is no reader.
  const std::string without = "env FAKE_NCCL_NO_MEMORY=1 " + kFake;
  check_refused(shell(mpirun() + "-np 2 " + without + " train " + folder.path("run.toml") + " --set device.kind=cuda"),
                7, {"[memory] parameters needs ", "but NCCL cannot allocate it", "NCCL_CUMEM_ENABLE=0"});
  train(folder, without, 1, "one", " --set device.kind=cuda --set train.steps=1");
  const Run tabled = train(folder, kFake, 2, "tabled",
                           " --set device.kind=cuda --set train.steps=2 --set comm.nccl=" + folder.path("nccl.json"));
  CHECK(contains(channels("tabled"), "\"algorithm\": \"ring\", \"protocol\": \"ll\", \"from\": \"table\""));
  CHECK(tabled.hash() == own.hash());  // the fake adds in one order, whatever the choice
  folder.write("nccl.json", "{\"channels\": {\"*\": {\"ctas\": 2}}}");
  check_refused(shell(kFake + " train " + folder.path("run.toml") +
                      " --set device.kind=cuda --set comm.nccl=" + folder.path("nccl.json")),
                2, {"unknown key", "min_ctas"});
}

TEST_CASE("run.json notes why attention does not use the instructions of sm_90a", "[cuda]") {
  Folder folder;
  run_file(folder);
  const std::string refused = "attention does not use the instructions of sm_90a. ";
  const auto notes_of = [&](const std::string& name, const std::string& capability, const std::string& more) {
    train(folder, "env FAKE_GPU_CAPABILITY=" + capability + " " + kFake, 1, name,
          " --set device.kind=cuda --set train.steps=1 --set train.eval_batches=1 --set train.dtype=bfloat16" + more);
    return Json::parse(read(folder.path(name) + "/run.json")).at("notes").dump();
  };
  const std::string narrow = notes_of("narrow", "90", "");  // heads of 8 elements
  INFO(narrow);
  for (const std::string op : {"attention_forward", "attention_backward"})
    CHECK(count(narrow, refused + op + ": heads of 8, need 64 or 128") == 1);
  CHECK(!contains(notes_of("older", "80", ""), refused));
  CHECK(!contains(notes_of("taken", "90", " --set model.width=128"), refused));
}

TEST_CASE("SLIPSTREAM_ATTENTION and SLIPSTREAM_EARLY_LAUNCH choose, and run.json has the choices", "[cuda]") {
  Folder folder;
  run_file(folder);
  const auto run = [&](const std::string& capability, const std::string& more) {
    return shell("env FAKE_GPU_CAPABILITY=" + capability + " " + more + kFake + " train " + folder.path("run.toml") +
                 " --set device.kind=cuda --set train.steps=1 --set train.eval_batches=1 --set output.dir=" +
                 folder.path("run"));
  };
  const auto choice = [&](const std::string& capability, const std::string& more) {
    const Result result = run(capability, more);
    INFO(result.text);
    REQUIRE(result.code == 0);
    CHECK(count(result.text, "attention uses mma.sync") == (capability == "120" ? 1 : 0));
    const Json written = Json::parse(read(folder.path("run") + "/run.json"));
    CHECK(written.at("early_launch").as_bool() ==
          (std::stoi(capability) >= 90 && more.find("LAUNCH=off") == more.npos));
    return written.at("attention").as_string();
  };
  CHECK(choice("90", "") == "hopper");
  CHECK(choice("90", "SLIPSTREAM_ATTENTION=mma SLIPSTREAM_EARLY_LAUNCH=off ") == "mma");
  CHECK(choice("80", "") == "mma");
  CHECK(choice("120", "") == "mma");
  CHECK(choice("80", "SLIPSTREAM_ATTENTION=plain ") == "plain");
  check_refused(run("89", "SLIPSTREAM_ATTENTION=hopper "), 2, {"needs compute capability 9.0, and this GPU has 8.9"});
  check_refused(run("90", "SLIPSTREAM_ATTENTION=MMA "), 2, {"=MMA is unknown, need hopper, mma or plain"});
}

TEST_CASE("bench overlap measures the cuda device", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = small_run_file(folder);
  const Result result =
      shell(mpirun() + "-np 2 " + kFake + " bench overlap " + run + " --steps 1 --set device.kind=cuda");
  INFO(result.text);
  CHECK(result.code == 0);
  CHECK(contains(result.text, "bucketed"));
  check_refused(
      shell(mpirun() + "-np 2 " + kFake + " bench overlap " + run + " --compute paced --set device.kind=cuda"), 2,
      {"--compute real"});
}

TEST_CASE("a machine without GPU or NCCL gives one error and an exit code", "[cuda]") {
  Folder folder;
  const std::string run = small_run_file(folder),
                    train = kFake + " train " + run + " --set train.steps=1 --set device.kind=";
  const auto on = [&](const std::string& machine, const std::string& rest) { return shell(machine + " " + rest); };
  check_refused(on("FAKE_GPU_DRIVER=0", train + "cuda"), 7, {"no NVIDIA driver", "device.kind = \"cpu\""});
  check_refused(on("FAKE_GPU_DRIVER=12000", train + "cuda"), 7, {"supports CUDA 12.0", "needs 13.0"});
  check_refused(on("FAKE_GPU_COUNT=0 CUDA_VISIBLE_DEVICES=", train + "cuda"), 7,
                {"no GPU is visible with CUDA_VISIBLE_DEVICES="});
  // The plan reports it before anything is allocated, with the table.
  const Result small = on("FAKE_GPU_MEMORY=100000", train + "cuda");
  check_refused(small, 7, {"a rank needs ", "Fake GPU has 97.7 KiB free of 97.7 KiB", "  total "});
  CHECK(!fs::exists(folder.path("run")));

  const Result automatic = on("FAKE_GPU_DRIVER=0", train + "auto");
  INFO(automatic.text);
  CHECK(automatic.code == 0);
  CHECK(contains(automatic.text, "device.kind = \"auto\" uses the CPU: this machine has no NVIDIA driver\n"));
  CHECK(contains(on("", train + "auto").text, "1 rank x Fake GPU"));
  CHECK(!contains(on("", train + "auto --set comm.backend=mpi").text, "Fake GPU"));
  check_refused(on("FAKE_GPU_DRIVER=0", train + "auto --set comm.backend=nccl"), 7, {"no NVIDIA driver"});
}

TEST_CASE("a lost GPU ends the run with one error", "[cuda]") {
  Folder folder;
  const std::string run = small_run_file(folder);
  // The GPU may also be lost while a step is recorded: no warning about the recording precedes the error.
  for (const char* when : {"FAKE_GPU_LOST_AFTER=300 ", "FAKE_GPU_LOST_AT_CAPTURE=0 "}) {
    const Result lost = shell(when + kFake + " train " + run + " --set device.kind=cuda --set device.graph=true");
    check_refused(lost, 7, {"The GPU may be lost"});
    CHECK(count(lost.text, "[cuda]") == 1);
  }
  if (!has_mpirun()) return;
  // If the GPU of one rank fails, the other rank is inside a collective that nothing else ends. Some failures occur
  // while a step is recorded: its recording holds the communicators, and no abort ends.
  for (const int after : {300, 330, 360, 370, 380}) {
    INFO("lost after " << after);
    const Result one =
        shell(mpirun() + "-np 1 -x FAKE_GPU_LOST_AFTER=" + std::to_string(after) + " " + kFake + " train " + run +
              " --set device.kind=cuda : -np 1 " + kFake + " train " + run + " --set device.kind=cuda");
    check_refused(one, 7, {"on rank 0", "The GPU may be lost"});
  }
}

TEST_CASE("a connection that breaks on all ranks ends the run, also when graphs hold its operations", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = small_run_file(folder);
  // Gathers and reductions are on separate channels; the operations of either hang until both are aborted.
  const std::string train =
      kFake + " train " + run +
      " --set train.steps=1000 --set train.log_interval=1 --set zero.stage=2 --set device.kind=cuda";
  const std::string emulated = " --set comm.emulate.bandwidth=1Gbit/s";
  for (const std::string& more : {std::string(), std::string(" --set device.graph=false"), emulated}) {
    const Result broken = shell("FAKE_NCCL_BREAKS_AFTER=200 " + mpirun() + "-np 2 " + train + more, 60);
    check_refused(broken, 6, {"remote process exited"});
    CHECK(contains(broken.text, "step 10/1000 "));  // step 10 is replayed, unlike the first steps
  }
}

TEST_CASE("ranks share GPUs only when asked, and have one NCCL", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = small_run_file(folder),
                    train = kFake + " train " + run + " --set train.steps=1 --set device.kind=cuda ";
  check_refused(shell("FAKE_GPU_COUNT=1 " + mpirun() + "-np 2 " + train), 7,
                {"2 ranks on this host have 1 GPU", "SLIPSTREAM_SHARE_GPU=1"});
  CHECK(shell("FAKE_GPU_COUNT=1 SLIPSTREAM_SHARE_GPU=1 " + mpirun() + "-np 2 " + train).code == 0);
  check_refused(shell(mpirun() + "-np 1 " + train + ": -np 1 -x FAKE_NCCL_VERSION=22800 " + train), 6,
                {"on all ranks", "rank 1 has NCCL 22800, but rank 0 has "});
}
