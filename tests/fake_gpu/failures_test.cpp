// SPDX-License-Identifier: Apache-2.0
// Machines without a usable GPU or NCCL, and GPUs and connections that fail during a run: each is one error.

#include "tests/fake_gpu/runs.h"

using namespace slipstream;
using namespace slipstream::program;

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
