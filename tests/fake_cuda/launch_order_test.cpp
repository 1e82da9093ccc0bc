// SPDX-License-Identifier: Apache-2.0
// What the fake NCCL sees that its threads do not: ranks that launch two communicators' operations in different orders.

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_nccl.h"
#include "tests/fake_cuda/shared_group.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// One rank: two communicators, a stream for each, one operation on each, `first` first. Ends the process.
[[noreturn]] void run_rank(int rank, const std::vector<ncclUniqueId>& ids, size_t first) {
  fake_nccl::between_processes(std::chrono::milliseconds(1500));
  ncclComm_t comms[2] = {};
  cudaStream_t streams[2] = {};
  std::vector<float> values(8, static_cast<float>(rank + 1));
  for (size_t c : {0u, 1u}) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclCommInitRankConfig(&comms[c], 2, ids[c], rank, &config);
    cudaStreamCreateWithFlags(&streams[c], cudaStreamNonBlocking);
  }
  for (size_t c : {first, 1 - first})
    ncclAllReduce(&values[4 * c], &values[4 * c], 4, ncclFloat32, ncclSum, comms[c], streams[c]);
  for (cudaStream_t stream : streams) cudaStreamSynchronize(stream);
  for (float value : values)
    if (value != 3) std::_Exit(1);
  std::_Exit(0);
}

std::vector<int> codes_of(size_t first_of_rank_1) {
  std::vector<ncclUniqueId> ids(2);
  for (ncclUniqueId& id : ids) {
    const std::string name = fake_nccl::SharedGroup::make();
    std::memset(id.internal, 0, sizeof id.internal);
    std::memcpy(id.internal, name.data(), name.size());
  }
  std::vector<pid_t> ranks;
  for (int rank : {0, 1}) {
    const pid_t child = fork();
    if (child == 0) run_rank(rank, ids, rank == 0 ? 0 : first_of_rank_1);
    ranks.push_back(child);
  }
  std::vector<int> codes;
  for (pid_t rank : ranks) {
    int status = 0;
    waitpid(rank, &status, 0);
    codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : -1);
  }
  return codes;
}

}  // namespace

TEST_CASE("operations launched in one order on all ranks end, in different orders they are caught") {
  CHECK(codes_of(0) == std::vector{0, 0});
  const std::vector<int> codes = codes_of(1);
  CHECK(std::count(codes.begin(), codes.end(), fake_nccl::kOrdersDiffer) > 0);
}
