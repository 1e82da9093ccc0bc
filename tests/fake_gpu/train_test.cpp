// SPDX-License-Identifier: Apache-2.0
// The whole program without a GPU: the same run files on the CPU and on fake GPUs train the same model. A host that
// reads the fake's device memory directly faults here, as on a GPU.

#include <fmt/core.h>

#include <cmath>
#include <map>

#include "tests/fake_gpu/runs.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

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

TEST_CASE("experts that two fake GPUs divide train the model of one rank on the CPU, which has all experts", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  small_run_file(folder);
  const std::string same =
      " --set optimizer.eps=1e-3 --set train.steps=7 --set model.family=qwen3_moe --set model.heads=4 --set "
      "model.kv_heads=2 --set model.width=32 --set model.ffn_width=40 --set model.experts.count=4 --set "
      "model.experts.top_k=3 --set model.experts.ffn_width=12 --set model.experts.shared=1";
  const std::string gpu = same + " --set device.kind=cuda --set parallel.expert=2";
  for (const auto& [dtype, tolerance] : {std::pair{"float32", kFloat32}, {"bfloat16", kBfloat16}}) {
    const std::string of_dtype = std::string(" --set comm.grad_dtype=float32 --set train.dtype=") + dtype;
    if (dtype == std::string("bfloat16") && !test_everything()) continue;
    const Run cpu = train(folder, exe(), 1, "cpu", same + of_dtype + " --set device.kind=cpu");
    for (const std::string more : {" --check-hazards", " --set overlap.paired_passes=true --set zero.stage=1"}) {
      if (contains(more, "paired") && !test_everything()) continue;
      INFO(dtype << more);
      const Run divided = train(folder, kFake, 2, "gpu", gpu + of_dtype + more);
      const double loss = largest_difference(divided.all("loss"), cpu.all("loss")),
                   norms = largest_difference(divided.all("grad_norm"), cpu.all("grad_norm")),
                   weights = largest_difference(divided, cpu);
      std::printf("%-60s loss %.1e, norm %.1e, weights %.1e\n", (dtype + more).c_str(), loss, norms, weights);
      CHECK(loss <= tolerance.loss);
      CHECK(norms <= std::max(10 * tolerance.loss, tolerance.weights));
      CHECK(weights <= tolerance.weights);
      CHECK(std::abs(divided.all("loss")[0] - cpu.all("loss")[1]) > 2 * tolerance.loss);
    }
  }
  check_refused(shell(mpirun() + "-np 2 " + kFake + " train " + folder.path("run.toml") + gpu +
                      " --set parallel.expert_exchange=exact"),
                2, {"parallel.expert_exchange = \"exact\" does not run on GPUs", "\"gather\" or \"auto\""});
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
