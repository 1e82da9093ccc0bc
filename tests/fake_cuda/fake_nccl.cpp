// SPDX-License-Identifier: Apache-2.0
// A collective is a rendezvous on the host: every rank's stream brings its pointers, the last one to arrive moves the
// bytes.

#include "tests/fake_cuda/fake_nccl.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/base/dtype.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_nccl_abort.h"
#include "tests/fake_cuda/fake_nccl_tuner.h"
#include "tests/fake_cuda/shared_group.h"

using slipstream::bfloat16;
using slipstream::fake_nccl::end_because;
using slipstream::fake_nccl::operation;
using slipstream::fake_nccl::SharedGroup;

namespace {

struct Call {
  std::string verb;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  size_t count = 0;
  ncclDataType_t type = ncclFloat32;
  int peer = -1;
  std::string words = {};  // its name at the rendezvous
};

struct Group {
  int size = 0;
  std::map<uint64_t, std::vector<std::pair<int, Call>>> all_rendezvous;  // by the number of the collective
  uint64_t done = 0;                                                     // collectives that have moved their bytes
  // Messages that are sent and not yet received, and receives without a message yet, in order.
  std::map<std::pair<int, int>, std::vector<std::pair<std::string, std::vector<std::byte>>>> mail;
  std::unique_ptr<SharedGroup> processes;  // null: the ranks are threads
};

std::mutex mutex;
std::condition_variable changed;
std::map<std::string, std::shared_ptr<Group>> groups;
std::map<int, std::vector<std::string>> calls;
std::map<int, ncclResult_t> broken;
bool connects_never = false, ranks_are_processes = false;
int fake_version = NCCL_VERSION_CODE;
int ids_made = 0;

/// Plays the worst GPU: one operation fills it, so the operations of a process run one after the other as they were
/// launched, on any stream and communicator. Ranks that launch in the same order see no difference; others wait for
/// each other.
class Turns {
 public:
  /// The turns of one operation: one for each of its unfinished launches.
  struct Of {
    std::string label;
    std::deque<uint64_t> turns = {};
  };
  void take(const std::shared_ptr<Of>& of) {
    const std::lock_guard lock(mutex_);
    of->turns.push_back(taken_++);
    waiting_.push_back(of);
  }
  void wait_for(const Of& of) {
    std::unique_lock lock(mutex_);
    while (served_ < of.turns.front()) {
      const uint64_t before = served_;
      if (changed_.wait_for(lock, patience, [&] { return served_ != before; })) continue;
      end_because(waiting_.front()->label + ": not over, and " + of.label +
                  ", launched or recorded after it, waits for it: ranks launch or record in different orders.");
    }
  }
  void serve(Of& of) {
    const std::lock_guard lock(mutex_);
    of.turns.pop_front();
    waiting_.pop_front();
    ++served_;
    changed_.notify_all();
  }

  std::chrono::milliseconds patience{60000};

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t taken_ = 0, served_ = 0;
  std::deque<std::shared_ptr<Of>> waiting_;  // in the order of their turns
};
Turns& turns = *new Turns;  // threads of lost streams wait for it even at exit

struct Grouped {
  cudaStream_t stream = nullptr;
  std::string label;
  std::function<void()> body;
};
thread_local bool in_group = false;
thread_local std::vector<Grouped> grouped;

size_t size_of_type(ncclDataType_t type) {
  switch (type) {
    case ncclFloat64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
      return 4;
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

template <typename T, typename Sum>
void sum_as(const std::vector<const std::byte*>& from, std::byte* to, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    Sum sum = static_cast<Sum>(reinterpret_cast<const T*>(from[0])[i]);
    for (size_t r = 1; r < from.size(); ++r) sum += static_cast<Sum>(reinterpret_cast<const T*>(from[r])[i]);
    reinterpret_cast<T*>(to)[i] = static_cast<T>(sum);
  }
}

void sum(ncclDataType_t type, const std::vector<const std::byte*>& from, std::byte* to, size_t count) {
  if (type == ncclFloat64) return sum_as<double, double>(from, to, count);
  if (type == ncclFloat32) return sum_as<float, float>(from, to, count);
  return sum_as<bfloat16, float>(from, to, count);
}

/// The result of `rank` in a collective, from the contributions of all ranks, by rank.
std::vector<std::byte> result_of(const Call& call, int rank, std::vector<const std::byte*> from) {
  const size_t bytes = call.count * size_of_type(call.type);
  std::vector<std::byte> result;
  if (call.verb == "all_gather") {
    for (const std::byte* part : from) result.insert(result.end(), part, part + bytes);
  } else {
    if (call.verb == "reduce_scatter")
      for (const std::byte*& part : from) part += static_cast<size_t>(rank) * bytes;
    result.resize(bytes);
    sum(call.type, from, result.data(), call.count);
  }
  return result;
}

/// All members are here: moves the bytes. Results are computed before any is written, so that operations in place work.
void move_bytes(const std::vector<std::pair<int, Call>>& members) {
  std::vector<const std::byte*> from;
  for (const auto& [rank, call] : members) from.push_back(call.from);
  std::vector<std::vector<std::byte>> results;
  for (const auto& [rank, call] : members) results.push_back(result_of(call, rank, from));
  for (size_t m = 0; m < members.size(); ++m) std::memcpy(members[m].second.to, results[m].data(), results[m].size());
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Group> group;
  int rank = 0;
  uint64_t collectives = 0;
  int looks_until_ready = 3;
  bool aborted = false;
  std::string name = "a communicator";
  uint64_t capture = 0, recordings = 0;  // the latest one with an operation of this communicator, and how many
  std::map<std::string, int> recorded;   // operations in it: "" of collectives, "to 1", "from 1"
};

namespace {

/// The body of a collective on its stream.
void meet(const std::shared_ptr<Group>& group, const std::string& name, int rank, uint64_t number, const Call& call) {
  if (group->processes) {
    const size_t parts = call.verb == "reduce_scatter" ? static_cast<size_t>(group->size) : 1;
    return group->processes->meet(rank, group->size, call.words, name, call.from,
                                  parts * call.count * size_of_type(call.type),
                                  [&](const std::vector<const std::byte*>& from) {
                                    const std::vector<std::byte> result = result_of(call, rank, from);
                                    std::memcpy(call.to, result.data(), result.size());
                                  });
  }
  std::unique_lock lock(mutex);
  auto& members = group->all_rendezvous[number];
  members.push_back({rank, call});
  if (static_cast<int>(members.size()) == group->size) {
    std::sort(members.begin(), members.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [other, its] : members)
      if (its.words != call.words)
        end_because("rank " + std::to_string(rank) + " of " + name + " brings " + call.words + " where rank " +
                    std::to_string(other) + " brings " + its.words + ": ranks launch or record in different orders.");
    move_bytes(members);
    group->done = number;
    changed.notify_all();
  } else {
    changed.wait(lock, [&] { return group->done >= number; });
  }
}

void launch(cudaStream_t stream, std::string label, std::function<void()> body) {
  const auto of = std::make_shared<Turns::Of>(Turns::Of{std::move(label)});
  // A turn is of one run, and a graph runs often.
  if (ranks_are_processes && slipstream::fake_cuda::capture_of(stream) != 0)
    slipstream::fake_cuda::with_every_launch(stream, [of] { turns.take(of); });
  else if (ranks_are_processes)
    turns.take(of);
  // Outside the operation: a lost GPU runs no operations any more, and no operation may then wait for its turn.
  if (ranks_are_processes) slipstream::fake_cuda::enqueue_always(stream, [of] { turns.wait_for(*of); });
  // A communicator that does not block launches from a separate thread.
  slipstream::fake_cuda::enqueue_from_elsewhere(stream, std::move(body));
  if (ranks_are_processes) slipstream::fake_cuda::enqueue_always(stream, [of] { turns.serve(*of); });
}

/// The position of an operation in a recording, if `stream` is recorded. Collectives are counted by themselves, sends
/// and receives by pair.
std::string in_recording(ncclComm_t comm, const std::string& line, cudaStream_t stream) {
  const uint64_t capture = slipstream::fake_cuda::capture_of(stream);
  if (capture == 0) return "";
  if (std::exchange(comm->capture, capture) != capture) ++comm->recordings, comm->recorded.clear();
  return ", number " + std::to_string(++comm->recorded[line]) + " of recording " + std::to_string(comm->recordings);
}

const char* name_of_type(ncclDataType_t type) {
  return type == ncclFloat32    ? "f32"
         : type == ncclFloat64  ? "f64"
         : type == ncclBfloat16 ? "bf16"
         : type == ncclInt32    ? "i32"
                                : "u8";
}

ncclResult_t collective(ncclComm_t comm, Call call, cudaStream_t stream) {
  std::lock_guard lock(mutex);
  calls[comm->rank].push_back(call.verb + " " + std::to_string(call.count) + " " + name_of_type(call.type));
  call.words = calls[comm->rank].back() + in_recording(comm, "", stream);
  comm->looks_until_ready = 2;
  const bool whole = call.verb == "all_gather" || call.verb == "reduce_scatter";
  slipstream::fake_nccl::tune(
      comm, call.verb, call.count * size_of_type(call.type) * static_cast<size_t>(whole ? comm->group->size : 1));
  launch(stream, "rank " + std::to_string(comm->rank) + " of " + comm->name + ", " + call.words,
         operation(comm, [group = comm->group, name = comm->name, rank = comm->rank, number = ++comm->collectives,
                          call] { meet(group, name, rank, number, call); }));
  return ncclInProgress;
}

ncclResult_t point_to_point(ncclComm_t comm, const Call& call, cudaStream_t stream) {
  std::lock_guard lock(mutex);
  calls[comm->rank].push_back(call.verb + " " + std::to_string(call.count) + (call.verb == "send" ? " to " : " from ") +
                              std::to_string(call.peer));
  const size_t bytes = call.count * size_of_type(call.type);
  const auto group = comm->group;
  const std::string line = (call.verb == "send" ? "to " : "from ") + std::to_string(call.peer);
  const std::string words =
      std::to_string(call.count) + " " + name_of_type(call.type) + in_recording(comm, line, stream);
  const std::string label =
      "rank " + std::to_string(comm->rank) + " of " + comm->name + ", " + call.verb + " " + line + ", " + words;
  std::function<void()> body;
  if (group->processes)
    body = [=, rank = comm->rank, name = comm->name] {
      if (call.verb == "send")
        group->processes->send(rank, call.peer, words, name, call.from, bytes);
      else
        group->processes->receive(rank, call.peer, words, name, call.to, bytes);
    };
  else if (call.verb == "send")
    body = [=, rank = comm->rank] {
      std::lock_guard inner(mutex);
      group->mail[{rank, call.peer}].emplace_back(words, std::vector<std::byte>(call.from, call.from + bytes));
      changed.notify_all();
    };
  else
    body = [=, rank = comm->rank] {
      std::unique_lock inner(mutex);
      auto& mail = group->mail[{call.peer, rank}];
      changed.wait(inner, [&] { return !mail.empty(); });
      if (mail.front().first != words)
        end_because(label + ": rank " + std::to_string(call.peer) + " sends " + mail.front().first + ".");
      std::memcpy(call.to, mail.front().second.data(), bytes);
      mail.erase(mail.begin());
    };
  body = operation(comm, std::move(body));
  comm->looks_until_ready = 2;
  if (!in_group) {
    launch(stream, label, body);
    return ncclInProgress;
  }
  // Within a group the order of the calls does not matter: sends go first.
  grouped.insert(call.verb == "send" ? grouped.begin() : grouped.end(), {stream, label, body});
  return ncclSuccess;
}

const std::byte* in(const void* p) { return static_cast<const std::byte*>(p); }
std::byte* out(void* p) { return static_cast<std::byte*>(p); }

}  // namespace

namespace slipstream::fake_nccl {

std::vector<std::string> calls_of(int rank) {
  std::lock_guard lock(mutex);
  return calls[rank];
}
void reset() {
  std::lock_guard lock(mutex);
  calls.clear();
  broken.clear();
  groups.clear();
  connects_never = false;
  fake_version = NCCL_VERSION_CODE;
}
void break_rank(int rank, ncclResult_t error) {
  std::lock_guard lock(mutex);
  broken[rank] = error;
}
void never_connect(bool never) { connects_never = never; }
void between_processes(std::chrono::milliseconds patience) {
  ranks_are_processes = true;
  turns.patience = SharedGroup::patience = patience;
}
void set_version(int version) { fake_version = version; }

}  // namespace slipstream::fake_nccl

extern "C" {

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "an error of the fake";
}
const char* ncclGetLastError(ncclComm_t) { return "socket closed"; }
ncclResult_t ncclGetVersion(int* version) {
  *version = fake_version;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::lock_guard lock(mutex);
  std::memset(id->internal, 0, sizeof id->internal);
  const std::string name = ranks_are_processes ? SharedGroup::make() : "group " + std::to_string(++ids_made);
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  std::lock_guard lock(mutex);
  if (config->blocking != 0) return ncclInvalidArgument;
  auto& group = groups[id.internal];
  if (!group) group = std::make_shared<Group>();
  if (ranks_are_processes && !group->processes) group->processes = std::make_unique<SharedGroup>(id.internal);
  group->size = size;
  *comm = new ncclComm{.group = group, .rank = rank};
  if (config->commName) (*comm)->name = config->commName;
  slipstream::fake_nccl::began(*comm, rank, size, config);
  return ncclInProgress;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  std::lock_guard lock(mutex);
  *error = ncclSuccess;
  if (const auto found = broken.find(comm->rank); found != broken.end())
    *error = found->second;
  else if (connects_never || comm->looks_until_ready-- > 0)
    *error = ncclInProgress;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->group->size;
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  std::lock_guard lock(mutex);
  comm->looks_until_ready = 1;
  return ncclInProgress;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  slipstream::fake_nccl::ended(comm);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const auto& processes = comm->group->processes;
  slipstream::fake_nccl::end_operations(
      comm,
      [&] {
        if (processes) processes->abort();
      },
      ranks_are_processes);
  slipstream::fake_nccl::ended(comm);
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return collective(comm, {.verb = "all_reduce", .from = in(from), .to = out(to), .count = count, .type = type},
                    stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  if (op != ncclSum) return ncclInvalidArgument;
  return collective(comm, {.verb = "reduce_scatter", .from = in(from), .to = out(to), .count = count, .type = type},
                    stream);
}
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return collective(comm, {.verb = "all_gather", .from = in(from), .to = out(to), .count = count, .type = type},
                    stream);
}
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return point_to_point(comm, {.verb = "send", .from = in(from), .count = count, .type = type, .peer = peer}, stream);
}
ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return point_to_point(comm, {.verb = "recv", .to = out(to), .count = count, .type = type, .peer = peer}, stream);
}
ncclResult_t ncclGroupStart() {
  in_group = true;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  in_group = false;
  for (const Grouped& call : grouped) launch(call.stream, call.label, call.body);
  grouped.clear();
  return ncclInProgress;
}

}  // extern "C"
