// SPDX-License-Identifier: Apache-2.0
// Required agreement between the ranks of a run on GPUs, memory limits, and bounded waits for a rank that is gone: the
// whole program on fake GPUs.

#include <chrono>

#include "tests/cli/program.h"

using namespace slipstream;
using namespace slipstream::program;

namespace {

const std::string& kFake = fake_gpu_program();

std::string train(const Folder& folder, const std::string& more = "") {
  return kFake + " train " + folder.path("run.toml") + " --set device.kind=cuda " + more;
}
Json run_json(const Folder& folder) { return Json::parse(read(folder.path("run") + "/run.json")); }

/// Memory that a rank of the last run takes on its GPU.
int64_t need_of(const Folder& folder) {
  const Json run = run_json(folder);
  int64_t bytes = run.at("memory_bytes").as_int();
  for (const auto& [owner, size] : run.at("beside_plan_bytes").as_object()) bytes += size.as_int();
  return bytes;
}

double seconds_of(const std::function<void()>& what) {
  const auto begin = std::chrono::steady_clock::now();
  what();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

TEST_CASE("the memory of the GPU must also hold the buffers of kernels and cuBLASLt", "[cuda]") {
  Folder folder;
  run_file(folder);
  CHECK(shell(train(folder, "--set train.steps=1")).code == 0);
  const int64_t need = need_of(folder), planned = run_json(folder).at("memory_bytes").as_int();
  REQUIRE(need > 2 * planned);
  const Result refused =
      shell("FAKE_GPU_MEMORY=" + std::to_string(need - 1) + " " + train(folder, "--set train.steps=1"));
  check_refused(
      refused, 7,
      {"a rank needs ", "of it beside the plan", "Use more ranks", "  cuBLASLt workspaces", "  kernels", "  total "});
  CHECK(!contains(refused.text, "NCCL"));
}

TEST_CASE("ranks that share a GPU must fit on it together, with NCCL's buffers", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  run_file(folder);
  const std::string shared = "FAKE_GPU_COUNT=1 SLIPSTREAM_SHARE_GPU=1 ",
                    two = mpirun() + "-np 2 " + train(folder, "--set train.steps=1");
  CHECK(shell(shared + two).code == 0);
  const int64_t need = need_of(folder);
  const Result refused = shell(shared + "FAKE_GPU_MEMORY=" + std::to_string(need + need / 2) + " " + two);
  check_refused(
      refused, 7,
      {"2 ranks on one GPU need ", "this one ", "Use fewer ranks on it", "max_ctas", "  NCCL buffers (estimate)"});
  // The same memory is enough for each rank alone.
  CHECK(shell("FAKE_GPU_MEMORY=" + std::to_string(16 * need) + " " + two).code == 0);
}

TEST_CASE("ranks that read other tables than rank 0 are refused by name", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  run_file(folder);
  for (const char* host : {"a", "b", "c"}) fs::create_directory(folder.path(host));
  folder.write("a/nccl.json", "{\"channels\": {\"*\": {\"max_ctas\": 2}}}");
  folder.write("b/nccl.json", "{\"channels\": {\"*\": {\"max_ctas\": 4}}}");
  const auto ranks = [&](const std::string& second, const std::string& more, const std::string& export_second = "") {
    return shell(mpirun() + "-np 1 -wdir " + folder.path("a") + " " + train(folder, more) + " : -np 1 -wdir " +
                 folder.path(second) + " " + export_second + " " + train(folder, more));
  };
  const std::string steps = " --set train.steps=1 ", nccl = steps + "--set comm.nccl=nccl.json";
  check_refused(ranks("b", nccl), 2,
                {"rank 1 finds a different comm.nccl = nccl.json than rank 0", "xxh3 ", "Copy rank 0"});
  // A host without the file uses that of rank 0.
  CHECK(ranks("c", nccl).code == 0);
  CHECK(contains(run_json(folder).at("nccl_table").as_string(), "nccl.json (xxh3 "));
  folder.write("a/products.json", "{\"format\": 1, \"card\": \"Another\", \"cublaslt\": 1, \"products\": {}}");
  folder.write("b/products.json", "{\"format\": 1, \"card\": \"A third\", \"cublaslt\": 1, \"products\": {}}");
  check_refused(ranks("b", steps + "--set device.algorithms=products.json"), 2,
                {"rank 1 finds a different device.algorithms = products.json than rank 0"});
  // Such a difference comes from settings that a launcher passes to some ranks only.
  check_refused(ranks("a", steps, "-x NCCL_ALGO=Tree"), 2,
                {"rank 1 has NCCL_ALGO=Tree, but rank 0 has NCCL_ALGO not set", "mpirun -x NCCL_ALGO"});
}

TEST_CASE("ranks with another library than the table's are refused; if no run file names the table, no rank uses it",
          "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  const std::string run = run_file(folder), table = folder.path("algorithms.json"),
                    cache = "XDG_CACHE_HOME=" + folder.path("cache") + " ";
  const std::string products =
      kFake + " bench products " + run + " --steps 1 --rotate 4KiB --ranks 2 --set device.kind=cuda";
  REQUIRE(shell(products + " --set device.algorithms=" + table).code == 0);
  REQUIRE(shell(cache + products).code == 0);
  const auto ranks = [&](const std::string& more) {
    const std::string each = train(folder, "--set train.steps=1 " + more);
    return shell(cache + mpirun() + "-np 1 " + each + " : -np 1 -x FAKE_CUBLASLT_VERSION=120100 " + each);
  };
  check_refused(ranks("--set device.algorithms=" + table), 2,
                {"rank 1 cannot use rank 0", "device.algorithms = " + table,
                 "is for cuBLASLt 130100, this one is 120100", "device.algorithms = \"\""});
  const Result without = ranks("");
  INFO(without.text);
  CHECK(without.code == 0);
  CHECK(count(without.text, "rank 1 cannot use rank 0") == 1);
  CHECK(contains(without.text, "The products of all ranks use cuBLASLt"));
  CHECK(run_json(folder).at("products").at("table").as_string().empty());
}

TEST_CASE("a driver with which NCCL serialises operations of graphs is reported once, and in run.json", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  run_file(folder);
  const std::string two = mpirun() + "-np 2 " + train(folder, "--set train.steps=1 --set zero.stage=2 ");
  const auto with = [&](const std::string& driver, const std::string& more) {
    const Result result = shell("FAKE_GPU_RUNTIME=12000 FAKE_GPU_DRIVER=" + driver + " " + two + more);
    INFO(result.text);
    CHECK(result.code == 0);
    bool noted = false;
    const Json run = run_json(folder);
    for (const Json& note : run.at("notes").as_array())
      noted |= contains(note.as_string(), "NCCL runs the collectives of different channels");
    CHECK(count(result.text, "NCCL runs the collectives of different channels") == (noted ? 1 : 0));
    return noted ? result.text : std::string();
  };
  CHECK(contains(with("12080", "--set device.graph=true"), "this driver supports CUDA 12.8; with drivers before 12.9"));
  CHECK(contains(with("12080", "--set device.graph=true"), "set device.graph = false"));
  CHECK(with("12090", "--set device.graph=true").empty());
  CHECK(contains(with("12020", "--set device.graph=false"), "and with drivers before 12.3 in all steps"));
  CHECK(with("12080", "--set device.graph=false").empty());
}

TEST_CASE("a rank that hangs during an agreement ends the run with an error that names the agreement", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  run_file(folder);
  const std::string each = train(folder, "--set train.steps=20 --set device.graph=true --set comm.timeout_seconds=5");
  Result stuck;
  const double seconds = seconds_of(
      [&] { stuck = shell(mpirun() + "-np 1 " + each + " : -np 1 -x FAKE_GPU_STUCK_AFTER=1 " + each, 120); });
  check_refused(stuck, 6,
                {"[watchdog] rank 1 ", "has not begun the exchange of whether step 4 was recorded as a graph",
                 "the limit is 5 s (comm.timeout_seconds)"});
  CHECK(seconds < 60);
}

TEST_CASE("a rank that stops answering ends the run, also when the other GPUs accept no more commands", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  run_file(folder);
  const std::string each =
      train(folder, "--set train.steps=1000 --set device.graph=false --set comm.timeout_seconds=4");
  // A short queue alone does not end a run.
  CHECK(shell("FAKE_GPU_QUEUE=16 " + mpirun() + "-np 2 " + each + " --set train.steps=5", 60).code == 0);
  // The host of the first waits after a step, that of the second for room in a queue.
  for (const char* commands : {"100000", "16"}) {
    INFO(commands << " commands");
    Result silent;
    const double seconds = seconds_of([&] {
      silent = shell("FAKE_GPU_QUEUE=" + std::string(commands) + " " + mpirun() + "-np 1 " + each +
                         " : -np 1 -x FAKE_NCCL_SILENT_AFTER=60 " + each,
                     120);
    });
    check_refused(silent, 6, {"[watchdog] rank", "the limit is 4 s (comm.timeout_seconds)"});
    CHECK(seconds < 30);
  }
}

TEST_CASE("a rank that fails during an agreement ends the other ranks within seconds", "[cuda]") {
  if (!has_mpirun()) return;
  Folder folder;
  run_file(folder);
  const std::string each = train(folder, "--set train.steps=20 --set device.graph=true --set comm.timeout_seconds=600");
  Result failed;
  const double seconds = seconds_of(
      [&] { failed = shell(mpirun() + "-np 1 " + each + " : -np 1 -x FAKE_GPU_LOST_AT_CAPTURE=1 " + each, 120); });
  check_refused(failed, 7, {"on rank 1", "The GPU may be lost"});
  CHECK(seconds < 30);
}
