// SPDX-License-Identifier: Apache-2.0
// Errors that only the fake NCCL detects: ranks that launch or record operations in different orders, or different
// operations.

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_nccl.h"
#include "tests/fake_cuda/shared_group.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// An operation of a rank: its communicator, one of two, its number of elements, and its verb.
struct Operation {
  size_t comm = 0, count = 4;
  bool passes = false;  // rank 0 sends and rank 1 receives; otherwise a sum
};
using Operations = std::vector<Operation>;

/// The program of a rank: it records these operations, one graph for each list, and runs the graphs in this order; -1
/// runs the first operations without a graph.
struct Program {
  std::vector<Operations> recordings;
  std::vector<int> runs;
};

/// One rank: two communicators, a stream for each. Its values are ones; sums of two ranks and received values are twos.
class Rank {
 public:
  Rank(int rank, const std::vector<ncclUniqueId>& ids) : rank_(rank) {
    fake_nccl::between_processes();
    cudaStreamCreateWithFlags(&origin_, cudaStreamNonBlocking);
    for (size_t c : {0u, 1u}) {
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      config.commName = c == 0 ? "first" : "second";
      ncclCommInitRankConfig(&comms_[c], 2, ids[c], rank, &config);
      cudaStreamCreateWithFlags(&streams_[c], cudaStreamNonBlocking);
      cudaEventCreateWithFlags(&events_[c], cudaEventDisableTiming);
    }
    cudaEventCreateWithFlags(&begin_, cudaEventDisableTiming);
  }

  /// From now on both ranks have arrived.
  void wait_no_longer_than(std::chrono::milliseconds patience) {
    issue({{}});
    cudaStreamSynchronize(streams_[0]);
    fake_nccl::between_processes(patience);
  }

  /// The exit code of the process.
  int run(const Program& program) {
    std::vector<cudaGraphExec_t> graphs;
    std::vector<std::pair<size_t, size_t>> results;  // of each graph
    for (const Operations& operations : program.recordings) {
      const size_t begin = results_.size();
      graphs.push_back(record(operations));
      results.push_back({begin, results_.size()});
    }
    for (int run : program.runs) {
      size_t begin = results_.size(), end = begin + program.recordings[0].size();
      if (run < 0) {
        issue(program.recordings[0]);
      } else {
        const auto graph = static_cast<size_t>(run);
        cudaGraphLaunch(graphs[graph], origin_);
        std::tie(begin, end) = results[graph];
      }
      for (cudaStream_t stream : {origin_, streams_[0], streams_[1]}) cudaStreamSynchronize(stream);
      for (; begin < end; ++begin)
        for (float& value : results_[begin])
          if (std::exchange(value, rank_ == 0 ? 2.0f : 0.0f) != 2) return 1;
    }
    return 0;
  }

 private:
  void issue(const Operations& operations) {
    for (const Operation& o : operations) {
      // Memory that a graph uses stays in place.
      const std::vector<float>& ones = *ones_.emplace_back(std::make_unique<std::vector<float>>(o.count, 1.0f));
      std::vector<float>& result = results_.emplace_back(o.count, rank_ == 0 ? 2.0f : 0.0f);
      if (!o.passes)
        ncclAllReduce(ones.data(), result.data(), o.count, ncclFloat32, ncclSum, comms_[o.comm], streams_[o.comm]);
      else if (rank_ == 0)
        ncclSend(result.data(), o.count, ncclFloat32, 1, comms_[o.comm], streams_[o.comm]);
      else
        ncclRecv(result.data(), o.count, ncclFloat32, 0, comms_[o.comm], streams_[o.comm]);
    }
  }
  cudaGraphExec_t record(const Operations& operations) {
    cudaStreamBeginCapture(origin_, cudaStreamCaptureModeThreadLocal);
    cudaEventRecord(begin_, origin_);
    for (cudaStream_t stream : streams_) cudaStreamWaitEvent(stream, begin_, 0);
    issue(operations);
    for (size_t c : {0u, 1u}) {
      cudaEventRecord(events_[c], streams_[c]);
      cudaStreamWaitEvent(origin_, events_[c], 0);
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    if (cudaStreamEndCapture(origin_, &graph) != cudaSuccess ||
        cudaGraphInstantiate(&exec, graph, cudaGraphInstantiateFlagUseNodePriority) != cudaSuccess)
      std::_Exit(2);
    return exec;
  }

  int rank_;
  ncclComm_t comms_[2] = {};
  cudaStream_t origin_ = nullptr, streams_[2] = {};
  cudaEvent_t begin_ = nullptr, events_[2] = {};
  std::deque<std::unique_ptr<std::vector<float>>> ones_;
  std::deque<std::vector<float>> results_;  // their memory stays in place as well
};

struct Ended {
  int codes[2] = {};
  std::string text;  // of both processes
  bool caught() const { return codes[0] == fake_nccl::kOrdersDiffer || codes[1] == fake_nccl::kOrdersDiffer; }
};

/// Runs two processes. `hangs`: the ranks are expected not to end.
Ended end_of(const Program& rank_0, const Program& rank_1, bool hangs) {
  std::vector<ncclUniqueId> ids(2);
  for (ncclUniqueId& id : ids) {
    const std::string name = fake_nccl::SharedGroup::make();
    std::memset(id.internal, 0, sizeof id.internal);
    std::memcpy(id.internal, name.data(), name.size());
  }
  std::FILE* output = std::tmpfile();
  pid_t children[2];
  for (int rank : {0, 1}) {
    children[rank] = fork();
    if (children[rank] != 0) continue;
    dup2(fileno(output), STDERR_FILENO);
    Rank running(rank, ids);
    if (hangs) running.wait_no_longer_than(std::chrono::milliseconds(1500));
    std::_Exit(running.run(rank == 0 ? rank_0 : rank_1));
  }
  Ended ended;
  for (int rank : {0, 1}) {
    int status = 0;
    waitpid(children[rank], &status, 0);
    ended.codes[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::rewind(output);
  char text[4096];
  ended.text.assign(text, std::fread(text, 1, sizeof text, output));
  std::fclose(output);
  return ended;
}

/// Both ranks run to their end.
void check_ends(const Program& rank_0, const Program& rank_1) {
  const Ended ended = end_of(rank_0, rank_1, false);
  INFO(ended.text);
  CHECK((ended.codes[0] == 0 && ended.codes[1] == 0));
}
void check_caught(const Program& rank_0, const Program& rank_1, const std::vector<std::string>& sentence,
                  bool hangs = false) {
  const Ended ended = end_of(rank_0, rank_1, hangs);
  INFO(ended.text);
  CHECK(ended.caught());
  for (const std::string& part : sentence) CHECK(ended.text.find(part) != std::string::npos);
}

const Operation first{0, 4}, second{1, 4}, larger{0, 6}, pass{0, 4, true}, larger_pass{0, 6, true};

}  // namespace

TEST_CASE("operations launched in one order on all ranks end, in different orders they are caught") {
  const Program eager{{{first, second}}, {-1, -1}};
  check_ends(eager, eager);
  check_caught(eager, {{{second, first}}, {-1, -1}}, {"rank 0 of first", "all_reduce 4 f32"}, true);
  check_caught({{{first, larger}}, {-1}}, {{{larger, first}}, {-1}},
               {"of first brings all_reduce 6 f32 where rank", "of first brings all_reduce 4 f32"});
  check_caught({{{pass, larger_pass}}, {-1}}, {{{larger_pass, pass}}, {-1}},
               {"rank 1 of first receives 6 f32 from rank 0, which sends 4 f32"});
}

TEST_CASE("operations recorded in one order on all ranks are replayed, in different orders they are caught") {
  const std::vector<int> runs = {0, 0};
  const Program program{{{first, second, larger, pass, larger_pass}}, {0, 0, -1, 0}};
  check_ends(program, program);
  // The operations are on two communicators, on unordered streams.
  check_caught({{{first, second}}, runs}, {{{second, first}}, runs},
               {"rank 1 of", "all_reduce 4 f32, number 1 of recording 1"}, true);
  // The operations are on one communicator.
  check_caught({{{first, larger}}, runs}, {{{larger, first}}, runs},
               {"brings all_reduce 4 f32, number 1 of recording 1", "brings all_reduce 6 f32, number 1 of recording 1",
                "ranks launch or record in different orders"});
  check_caught({{{pass, larger_pass}}, runs}, {{{larger_pass, pass}}, runs},
               {"rank 1 of first receives 6 f32, number 1 of recording 1 from rank 0, which sends 4 f32, number 1"});
}

TEST_CASE("an operation that one rank does not record is reported, also the last one") {
  check_caught({{{first, first}}, {0, 0}}, {{{first}}, {0, 0}},
               {"rank 0 of first brings all_reduce 4 f32, number 2 of recording 1"});
  check_caught({{{first, second}}, {0}}, {{{first}}, {0}},
               {"rank 0 of second brings all_reduce 4 f32, number 1 of recording 1", "waits forever"}, true);
  check_caught({{{pass}}, {0}}, {{{pass, pass}}, {0}},
               {"rank 1 of first receives 4 f32, number 2 of recording 1 from rank 0", "waits forever"}, true);
}

TEST_CASE("a replay pairs with replays of the same recording, and with no eager step") {
  const std::vector<Operations> two = {{first}, {first}};
  check_ends({two, {0, 1, 0}}, {two, {0, 1, 0}});
  check_caught({two, {0, 1}}, {two, {1, 0}}, {"number 1 of recording 1", "number 1 of recording 2"});
  check_caught({two, {0}}, {two, {-1}},
               {"rank 0 of first brings all_reduce 4 f32, number 1 of recording 1", "brings all_reduce 4 f32 where"});
}
