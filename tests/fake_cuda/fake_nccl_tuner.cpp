// SPDX-License-Identifier: Apache-2.0
// Invented costs: small messages use trees with LL, large ones rings with Simple, the rest is excluded.

#include "tests/fake_cuda/fake_nccl_tuner.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>

#include "comm/nccl/tuner.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace slipstream::fake_nccl {
namespace {

constexpr int kAlgorithms = 7, kProtocols = 3;

struct Range {
  ncclComm_t comm;
  const std::byte* begin;
  size_t bytes;
};

std::mutex mutex;
std::map<ncclComm_t, void*> contexts;
std::map<int, std::vector<std::string>> configs;
std::map<int, const char*> names;
std::map<uintptr_t, Range> ranges;
std::set<uintptr_t> windows;  // handles in `ranges` that are windows
uintptr_t next_handle = 1;
std::map<const std::byte*, size_t> own_memory;  // memory of ncclMemAlloc, with its size
ncclResult_t registration_result = ncclSuccess, memory_result = ncclSuccess;
bool handles = true, ends_process = false;
Registered counts;

bool has_tuner() {
  const char* plugin = std::getenv("NCCL_TUNER_PLUGIN");
  return plugin && std::string(plugin) == "STATIC_PLUGIN";
}

std::string number(int value) { return value == NCCL_CONFIG_UNDEF_INT ? "-" : std::to_string(value); }

const bool hooked = [] {
  fake_cuda::before_free() = [](const void* block, int64_t bytes) {
    const std::lock_guard lock(mutex);
    for (const auto& [handle, range] : ranges)
      if (range.begin < static_cast<const std::byte*>(block) + bytes &&
          static_cast<const std::byte*>(block) < range.begin + range.bytes)
        ++counts.freed_while_registered;
    if (!ends_process || counts.freed_while_registered == 0) return;
    std::fputs("[fake nccl] memory was freed that a communicator still knew.\n", stderr);
    std::_Exit(kFreedWhileRegistered);
  };
  return true;
}();

}  // namespace

void began(ncclComm_t comm, int rank, int size, const ncclConfig_t* config) {
  const std::lock_guard lock(mutex);
  names[rank] = config->commName;
  configs[rank].push_back(std::string(config->commName ? config->commName : "?") + ": ctas " + number(config->minCTAs) +
                          " to " + number(config->maxCTAs) + ", cluster " + number(config->cgaClusterSize) +
                          ", class " + number(config->trafficClass) +
                          (config->CTAPolicy == NCCL_CONFIG_UNDEF_INT ? "" : ", policy " + number(config->CTAPolicy)));
  if (has_tuner()) ncclTunerPlugin_v4.init(static_cast<size_t>(size), 1, nullptr, &contexts[comm]);
}

void ended(ncclComm_t comm) {
  const std::lock_guard lock(mutex);
  for (const auto& [handle, range] : ranges) counts.ended_with_registered += range.comm == comm;
  std::erase_if(ranges, [&](const auto& entry) { return entry.second.comm == comm; });
  counts.now = static_cast<int>(ranges.size());
  if (const auto found = contexts.find(comm); found != contexts.end()) {
    ncclTunerPlugin_v4.destroy(found->second);
    contexts.erase(found);
  }
}

void tune(ncclComm_t comm, const std::string& verb, size_t bytes) {
  const std::lock_guard lock(mutex);
  const auto context = contexts.find(comm);
  if (context == contexts.end()) return;
  std::array<float, kAlgorithms * kProtocols> costs;
  costs.fill(-1.0f);
  const bool small = bytes < 65536;
  const char* algorithm = std::getenv("NCCL_ALGO");
  if (!algorithm || std::string(algorithm) == "Tree") costs[0 * kProtocols + 0] = small ? 1.0f : 9.0f;
  costs[1 * kProtocols + 0] = small ? 2.0f : 8.0f;
  costs[1 * kProtocols + 2] = algorithm ? 0.5f : small ? 3.0f : 1.0f;
  const int function = verb == "all_gather" ? 2 : verb == "reduce_scatter" ? 3 : 4;
  int channels = 0;
  ncclTunerPlugin_v4.get_coll_info(context->second, function, bytes, 1, reinterpret_cast<float**>(costs.data()),
                                   kAlgorithms, kProtocols, 0, &channels);
}

std::vector<std::string> configs_of(int rank) {
  const std::lock_guard lock(mutex);
  return configs[rank];
}
std::string name_of_latest(int rank) {
  const std::lock_guard lock(mutex);
  return names[rank];
}
void memory_says(ncclResult_t result) {
  const std::lock_guard lock(mutex);
  memory_result = result;
}
void end_when_freed_while_registered() { ends_process = true; }
void set_registration(ncclResult_t result, bool gives_handle) {
  const std::lock_guard lock(mutex);
  registration_result = result;
  handles = gives_handle;
}
Registered registered() {
  const std::lock_guard lock(mutex);
  return counts;
}
void reset_tuner() {
  const std::lock_guard lock(mutex);
  configs.clear();
  ranges.clear();
  windows.clear();
  counts = {};
  registration_result = memory_result = ncclSuccess;
  handles = true;
}

}  // namespace slipstream::fake_nccl

using namespace slipstream::fake_nccl;

extern "C" {

ncclResult_t ncclMemAlloc(void** block, size_t bytes) {
  {
    const std::lock_guard lock(mutex);
    if (memory_result != ncclSuccess) return memory_result;
  }
  // It runs without the lock, because before_free takes that under the machine's.
  if (slipstream::fake_cuda::take_of_driver(block, bytes) != cudaSuccess) return ncclUnhandledCudaError;
  const std::lock_guard lock(mutex);
  own_memory[static_cast<const std::byte*>(*block)] = bytes;
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* block) {
  {
    const std::lock_guard lock(mutex);
    own_memory.erase(static_cast<const std::byte*>(block));
  }
  return slipstream::fake_cuda::give_back_to_driver(block) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, size_t bytes, void** handle) {
  const std::lock_guard lock(mutex);
  *handle = nullptr;
  if (registration_result != ncclSuccess || !handles) return registration_result;
  const auto* const begin = static_cast<const std::byte*>(buffer);
  const bool in_place = std::any_of(own_memory.begin(), own_memory.end(), [&](const auto& own) {
    return own.first <= begin && begin + bytes <= own.first + own.second;
  });
  if (!in_place) return ncclSuccess;
  *handle = reinterpret_cast<void*>(next_handle);
  ranges[next_handle++] = {comm, static_cast<const std::byte*>(buffer), bytes};
  ++counts.ever;
  counts.now = static_cast<int>(ranges.size());
  return ncclSuccess;
}
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, size_t bytes, ncclWindow_t* window, int flags) {
  *window = nullptr;
  if (flags != NCCL_WIN_COLL_SYMMETRIC || reinterpret_cast<uintptr_t>(buffer) % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
    return ncclInvalidArgument;
  void* handle = nullptr;
  const ncclResult_t result = ncclCommRegister(comm, buffer, bytes, &handle);
  const std::lock_guard lock(mutex);
  if (handle) windows.insert(reinterpret_cast<uintptr_t>(handle));
  counts.windows = static_cast<int>(windows.size());
  *window = static_cast<ncclWindow_t>(handle);
  return result;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  {
    const std::lock_guard lock(mutex);
    if (windows.erase(reinterpret_cast<uintptr_t>(window)) == 0) return ncclInvalidArgument;
    counts.windows = static_cast<int>(windows.size());
  }
  return ncclCommDeregister(comm, window);
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void* handle) {
  const std::lock_guard lock(mutex);
  if (ranges.erase(reinterpret_cast<uintptr_t>(handle)) == 0) return ncclInvalidArgument;
  counts.now = static_cast<int>(ranges.size());
  return ncclSuccess;
}

}  // extern "C"
