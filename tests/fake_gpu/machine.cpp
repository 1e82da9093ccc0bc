// SPDX-License-Identifier: Apache-2.0
// The machine of the program on fake GPUs: kernels become commands of the fake runtime's streams; environment variables
// define the machine and its failures.
//
//   FAKE_GPU_COUNT         GPUs of this host (default 2)
//   FAKE_GPU_DRIVER        version of the driver, 0 for none (default 13000)
//   FAKE_GPU_CAPABILITY    compute capability (default 80; 90 has the instructions of sm_90a)
//   FAKE_GPU_MEMORY        bytes of a GPU
//   FAKE_GPU_LOST_AFTER    kernels until the GPU is gone
//   FAKE_GPU_RUNTIME       version of the runtime (default: that of the toolkit)
//   FAKE_GPU_CAPTURES      graphs that rank 0 may record until recording is refused
//   FAKE_GPU_LOST_AT_CAPTURE  captures of this rank that begin; with the next one its GPU is lost
//   FAKE_GPU_STUCK_AFTER   captures of this rank that begin; the next one never returns
//   FAKE_GPU_DROPS_CAPTURED_WAITS  whether graphs lose the order between their streams
//   FAKE_CUBLASLT_VERSION  of this rank's library
//   FAKE_NCCL_VERSION      of this rank's NCCL
//   FAKE_GPU_QUEUE         commands that a stream takes before the host blocks
//   FAKE_NCCL_NO_MEMORY    whether ncclMemAlloc fails on this rank
//   FAKE_NCCL_NO_REGISTER  whether the memory of this rank cannot be registered
//   FAKE_NCCL_BREAKS_AFTER operations of this rank that end; later ones hang, and its communicators see an error
//   FAKE_NCCL_SILENT_AFTER the same, but its communicators see no error

#include <cstdlib>
#include <string>
#include <utility>

#include "tests/emulation/emulator.h"
#include "tests/emulation/fake_cublaslt.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_nccl.h"
#include "tests/fake_cuda/fake_nccl_abort.h"
#include "tests/fake_cuda/fake_nccl_tuner.h"

namespace slipstream::fake_cuda {
namespace {

int64_t variable(const char* name, int64_t otherwise) {
  const char* value = std::getenv(name);
  return value ? std::stoll(value) : otherwise;
}

const bool made = [] {
  Settings& machine = settings();
  machine.devices = static_cast<int>(variable("FAKE_GPU_COUNT", machine.devices));
  machine.driver = static_cast<int>(variable("FAKE_GPU_DRIVER", machine.driver));
  machine.runtime = static_cast<int>(variable("FAKE_GPU_RUNTIME", machine.runtime));
  machine.captures_until_lost = variable("FAKE_GPU_LOST_AT_CAPTURE", machine.captures_until_lost);
  machine.captures_until_stuck = variable("FAKE_GPU_STUCK_AFTER", machine.captures_until_stuck);
  machine.drop_captured_waits = variable("FAKE_GPU_DROPS_CAPTURED_WAITS", 0) != 0;
  machine.capability = static_cast<int>(variable("FAKE_GPU_CAPABILITY", 80));
  emulation::set_compute_capability(machine.capability);
  emulation::FakeCublasLt& products = emulation::fake_cublaslt();
  products.version = static_cast<size_t>(variable("FAKE_CUBLASLT_VERSION", static_cast<int64_t>(products.version)));
  machine.memory_bytes = variable("FAKE_GPU_MEMORY", machine.memory_bytes);
  machine.queue_limit = static_cast<size_t>(variable("FAKE_GPU_QUEUE", INT64_MAX));
  machine.lost_after = variable("FAKE_GPU_LOST_AFTER", machine.lost_after);
  if (variable("OMPI_COMM_WORLD_RANK", 0) == 0) machine.captures = variable("FAKE_GPU_CAPTURES", machine.captures);
  machine.guard_memory = true;
  if (const int64_t version = variable("FAKE_NCCL_VERSION", 0)) fake_nccl::set_version(static_cast<int>(version));
  if (variable("FAKE_NCCL_NO_REGISTER", 0) != 0) fake_nccl::set_registration(ncclInternalError, false);
  if (variable("FAKE_NCCL_NO_MEMORY", 0) != 0) fake_nccl::memory_says(ncclUnhandledCudaError);
  fake_nccl::end_when_freed_while_registered();
  fake_nccl::break_after(variable("FAKE_NCCL_BREAKS_AFTER", INT64_MAX));
  fake_nccl::silent_after(variable("FAKE_NCCL_SILENT_AFTER", INT64_MAX));
  fake_nccl::between_processes();
  emulation::set_streams([](void* stream, std::function<void()> command) {
    enqueue(static_cast<cudaStream_t>(stream), std::move(command));
  });
  emulation::set_wait_for_streams(wait_for_all);
  return true;
}();

}  // namespace
}  // namespace slipstream::fake_cuda
