// SPDX-License-Identifier: Apache-2.0
// Every verb is one or more NCCL calls on the stream of the launch.

#include "comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <set>
#include <thread>
#include <utility>

#include "comm/nccl/card_table.h"
#include "comm/nccl/tuner.h"
#include "engine/base/check.h"
#include "engine/base/log.h"

namespace slipstream::comm {
namespace {

using Clock = std::chrono::steady_clock;
// NCCL's own thread accepts a call within some tens of microseconds. A longer wait is a wait for a peer.
constexpr int kQuickLooks = 2000;
constexpr auto kPollPause = std::chrono::microseconds(100);
// At the end of a run a rank should not wait long for a peer that left without notice.
constexpr double kLongestEndSeconds = 30;

ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f64:
      return ncclFloat64;
    case DType::i32:
      return ncclInt32;
    case DType::u8:
      return ncclUint8;
  }
  throw InternalError("[nccl] type {} has no NCCL type.", static_cast<int>(dtype));
}

const char* what_to_do(ncclResult_t result) {
  switch (result) {
    case ncclRemoteError:
      return "Another rank has failed or left. Look for the first error among the ranks.";
    case ncclSystemError:
      return "Check the network (NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO) and the limits of the system.";
    case ncclUnhandledCudaError:
      return "Check nvidia-smi and the kernel log: a GPU may be lost or out of memory.";
    case ncclInvalidUsage:
      return "Two ranks may be on one GPU: set SLIPSTREAM_SHARE_GPU=1 to test that, otherwise set NCCL_DEBUG=WARN.";
    default:
      return "Set NCCL_DEBUG=WARN and start again to see NCCL's own message.";
  }
}

[[noreturn]] void fail_with(ncclComm_t comm, const std::string& name, ncclResult_t result, const std::string& what) {
  const char* last = ncclGetLastError(comm);
  throw CommError("[nccl] {}: {} failed: {}{}. {}", name, what, ncclGetErrorString(result),
                  last && *last ? fmt::format(" (NCCL's last error, possibly unrelated: {})", last) : "",
                  what_to_do(result));
}

/// Polls until NCCL has finished what it began on `comm`. Calls `pause(look)` between two polls. Returns ncclInProgress
/// at the deadline.
template <typename Pause>
ncclResult_t settle(ncclComm_t comm, ncclResult_t result, double timeout_seconds, const Pause& pause) {
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_seconds));
  for (int look = 0; result == ncclInProgress; ++look) {
    if (Clock::now() >= deadline) return ncclInProgress;
    pause(look);
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
    if (asked != ncclSuccess) return asked;
  }
  return result;
}

void rest(int look) {
  if (look < kQuickLooks)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(kPollPause);
}

/// NCCL keeps the pointer as long as the communicator exists.
const char* kept_name(const std::string& name) {
  static std::mutex& mutex = *new std::mutex;
  static std::set<std::string>& names = *new std::set<std::string>;
  const std::lock_guard lock(mutex);
  return names.insert(name).first->c_str();
}

ncclConfig_t config_of(const NcclOptions& options) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const NcclChannel& channel = options.channel;
  if (channel.min_ctas > 0) config.minCTAs = channel.min_ctas;
  if (channel.max_ctas > 0) config.maxCTAs = channel.max_ctas;
  if (channel.cluster_size >= 0) config.cgaClusterSize = channel.cluster_size;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  config.commName = kept_name(options.name);
  if (channel.traffic_class >= 0) config.trafficClass = channel.traffic_class;
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  // The library may be older than the header.
  if (channel.policy != NcclPolicy::unset && nccl_version() >= kNcclWithPolicies)
    config.CTAPolicy = std::array{NCCL_CTA_POLICY_DEFAULT, NCCL_CTA_POLICY_EFFICIENCY,
                                  NCCL_CTA_POLICY_ZERO}[static_cast<size_t>(channel.policy)];
#endif
  return config;
}

void set_if_unset(const char* name, const std::string& value) { setenv(name, value.c_str(), 0); }

}  // namespace

NcclCommunicator::NcclCommunicator(ncclComm_t comm, const NcclOptions& options) : comm_(comm), options_(options) {
  ncclResult_t result = ncclCommUserRank(comm_, &rank_);
  if (result == ncclSuccess) result = ncclCommCount(comm_, &size_);
  if (result != ncclSuccess) fail_with(comm_, options_.name, result, "asking for rank and size");
}

NcclCommunicator::~NcclCommunicator() {
  std::lock_guard lock(mutex_);
  if (!comm_) return;
  deregister_all();
  const double limit_seconds = std::min(options_.timeout_seconds, kLongestEndSeconds);
  ncclResult_t result = settle(comm_, ncclCommFinalize(comm_), limit_seconds, rest);
  if (result == ncclSuccess) result = ncclCommDestroy(comm_);
  if (result == ncclSuccess || result == ncclInProgress) return;
  log_warn("[nccl] {}: rank {} could not end its connection: {}", options_.name, rank_, ncclGetErrorString(result));
  ncclCommAbort(comm_);
}

Work NcclCommunicator::all_reduce(const Transfer& t) { return bind_verb({.op = Op::all_reduce, .transfer = t}); }
Work NcclCommunicator::reduce_scatter(const Transfer& t) {
  return bind_verb({.op = Op::reduce_scatter, .transfer = t});
}
Work NcclCommunicator::all_gather(const Transfer& t) { return bind_verb({.op = Op::all_gather, .transfer = t}); }
Work NcclCommunicator::all_to_all(const Transfer& t) { return bind_verb({.op = Op::all_to_all, .transfer = t}); }
Work NcclCommunicator::all_to_all_v(const RoutedTransfer& t) {
  throw CommError(
      "[nccl] {}: {} is not available, because NCCL takes the sizes of messages from the host, and the counts are in "
      "device memory. Use all_gather and reduce_scatter (parallel.expert_exchange = \"gather\").",
      options_.name, describe(verb_of(t, size_)));
}
Work NcclCommunicator::send(const Transfer& t, int peer) {
  return bind_verb({.op = Op::send, .transfer = t, .to_peer = peer});
}
Work NcclCommunicator::recv(const Transfer& t, int peer) {
  return bind_verb({.op = Op::recv, .transfer = t, .from_peer = peer});
}
Work NcclCommunicator::exchange(const Transfer& t, int to_peer, int from_peer) {
  return bind_verb({.op = Op::exchange, .transfer = t, .to_peer = to_peer, .from_peer = from_peer});
}

Work NcclCommunicator::bind_verb(const Verb& verb) {
  return bind(verb, rank_, size_, [this, verb](LaunchContext& context, BoundState&) { run(verb, context); });
}

void NcclCommunicator::run(const Verb& verb, LaunchContext& context) {
  std::unique_lock lock(mutex_);
  const std::string what = describe(verb);
  require_alive(what);
  if (verb.transfer.elems == 0) return;
  finish(lock, enqueue(verb, context), what);
}

ncclResult_t NcclCommunicator::enqueue(const Verb& verb, LaunchContext& context) {
  const Transfer& transfer = verb.transfer;
  const auto stream = static_cast<cudaStream_t>(context.native_stream);
  const auto count = static_cast<size_t>(transfer.elems);
  const ncclDataType_t type = type_of(transfer.dtype);
  const int64_t part_bytes = bytes_of(transfer.elems, transfer.dtype);
  const auto from = [&] { return context.at(transfer.from); };
  const auto to = [&] { return context.at(transfer.to); };
  switch (verb.op) {
    case Op::all_reduce:
      return ncclAllReduce(from(), to(), count, type, ncclSum, comm_, stream);
    case Op::reduce_scatter:
      return ncclReduceScatter(from(), to(), count, type, ncclSum, comm_, stream);
    case Op::all_gather:
      return ncclAllGather(from(), to(), count, type, comm_, stream);
    case Op::send:
      return ncclSend(from(), count, type, verb.to_peer, comm_, stream);
    case Op::recv:
      return ncclRecv(to(), count, type, verb.from_peer, comm_, stream);
    default:
      break;
  }
  // The two are one group, because a ring in which all ranks send first would wait forever.
  ncclResult_t worst = ncclGroupStart();
  const auto call = [&](ncclResult_t result) {
    if (worst == ncclSuccess || worst == ncclInProgress) worst = result;
  };
  if (verb.op == Op::exchange) {
    call(ncclSend(from(), count, type, verb.to_peer, comm_, stream));
    call(ncclRecv(to(), count, type, verb.from_peer, comm_, stream));
  } else {
    for (int peer = 0; peer < size_; ++peer) {
      call(ncclSend(from() + peer * part_bytes, count, type, peer, comm_, stream));
      call(ncclRecv(to() + peer * part_bytes, count, type, peer, comm_, stream));
    }
  }
  call(ncclGroupEnd());
  return worst;
}

void NcclCommunicator::finish(std::unique_lock<std::mutex>& lock, ncclResult_t result, const std::string& what) {
  // Between two polls the lock is open, so that abort can take it.
  result = settle(comm_, result, options_.timeout_seconds, [&](int look) {
    lock.unlock();
    rest(look);
    lock.lock();
    require_alive(what);
  });
  if (result == ncclInProgress)
    throw CommError(
        "[nccl] {}: {} was not accepted within {} s. A rank may be gone or late. Look for the first error among "
        "the ranks, or raise comm.timeout_seconds.",
        options_.name, what, options_.timeout_seconds);
  if (result != ncclSuccess) fail_with(comm_, options_.name, result, what);
}

void NcclCommunicator::require_alive(const std::string& what) const {
  if (!comm_)
    throw CommError(
        "[nccl] {}: {} was cancelled, because the connection of rank {} was aborted. Look for the first error "
        "among the ranks.",
        options_.name, what, rank_);
}

void NcclCommunicator::abort() {
  ncclComm_t comm = nullptr;
  {
    std::lock_guard lock(mutex_);
    comm = std::exchange(comm_, nullptr);
  }
  // The mutex is open here: until NCCL has released the communicator, other threads get an error that it is gone.
  if (comm) ncclCommAbort(comm);
}

std::string NcclCommunicator::register_memory(std::byte* base, int64_t size_bytes) {
  std::unique_lock lock(mutex_);
  require_alive("registering memory");
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  // Copy engines reach the memory of other ranks only through windows, which all ranks make together.
  if (options_.channel.policy == NcclPolicy::zero && nccl_version() >= kNcclWithPolicies) {
    ncclWindow_t window = nullptr;
    const ncclResult_t made = settle(
        comm_, ncclCommWindowRegister(comm_, base, static_cast<size_t>(size_bytes), &window, NCCL_WIN_COLL_SYMMETRIC),
        options_.timeout_seconds, rest);
    if (made != ncclSuccess) return fmt::format("NCCL cannot make a window here: {}", ncclGetErrorString(made));
    if (window) {
      windows_.push_back(window);
      return {};
    }
    if (rank_ == 0) log_info("[nccl] {}: NCCL makes no windows on these links, so transfers use blocks", options_.name);
  }
#endif
  void* handle = nullptr;
  const ncclResult_t result = settle(comm_, ncclCommRegister(comm_, base, static_cast<size_t>(size_bytes), &handle),
                                     options_.timeout_seconds, rest);
  if (result != ncclSuccess) return fmt::format("NCCL cannot register memory here: {}", ncclGetErrorString(result));
  // Success without a handle means that this transport does not use registered memory.
  if (!handle) return "NCCL does not use registered memory on these links";
  registered_.push_back(handle);
  return {};
}

void NcclCommunicator::forget_memory() {
  std::lock_guard lock(mutex_);
  if (comm_) deregister_all();
}

void NcclCommunicator::deregister_all() {
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  for (void* window : std::exchange(windows_, {}))
    if (const ncclResult_t result =
            settle(comm_, ncclCommWindowDeregister(comm_, static_cast<ncclWindow_t>(window)), kLongestEndSeconds, rest);
        result != ncclSuccess)
      log_warn("[nccl] {}: rank {} could not end a window: {}", options_.name, rank_, ncclGetErrorString(result));
#endif
  for (void* handle : std::exchange(registered_, {}))
    if (const ncclResult_t result = ncclCommDeregister(comm_, handle); result != ncclSuccess)
      log_warn("[nccl] {}: rank {} could not deregister memory: {}", options_.name, rank_, ncclGetErrorString(result));
}

void NcclCommunicator::check_for_errors() {
  // This does not wait for a call that blocks in NCCL, because the watchdog supervises such calls, too.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return;
  require_alive("the run");
  ncclResult_t result = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &result);
  if (asked != ncclSuccess) result = asked;
  if (result != ncclSuccess && result != ncclInProgress) fail_with(comm_, options_.name, result, "work in flight");
}

int nccl_version() {
  int version = 0;
  return ncclGetVersion(&version) == ncclSuccess ? version : 0;
}

void prepare_nccl_environment(const NcclEnvironment& environment) {
  set_if_unset("NCCL_LAUNCH_ORDER_IMPLICIT", "1");
  set_if_unset("NCCL_TUNER_PLUGIN", "STATIC_PLUGIN");  // comm/nccl/tuner.cpp
  if (environment.deterministic) {
    set_if_unset("NCCL_ALGO", "Ring");
    set_if_unset("NCCL_PROTO", "Simple");
  }
  if (!environment.shares_gpu) return;
  // NCCL refuses two ranks of one host on one GPU, so each rank claims another host. Then only sockets remain.
  set_if_unset("NCCL_HOSTID", fmt::format("slipstream-rank-{}", environment.world_rank));
  for (const auto& [name, value] : {std::pair{"NCCL_NET", "Socket"},
                                    {"NCCL_IB_DISABLE", "1"},
                                    {"NCCL_SOCKET_IFNAME", "lo"},
                                    {"NCCL_MNNVL_ENABLE", "0"},
                                    {"NCCL_NVLS_ENABLE", "0"},
                                    {"NCCL_RAS_ENABLE", "0"},
                                    {"NCCL_CUMEM_HOST_ENABLE", "0"},
                                    {"NCCL_MIN_CTAS", "1"},
                                    {"NCCL_MAX_CTAS", "2"},
                                    {"NCCL_CGA_CLUSTER_SIZE", "0"},
                                    {"NCCL_BUFFSIZE", "1048576"},
                                    {"NCCL_ALGO", "Ring"},
                                    {"NCCL_PROTO", "Simple"}})
    set_if_unset(name, value);
}

std::unique_ptr<Communicator> make_nccl_communicator(int rank, int size, const ShareBytes& share,
                                                     const NcclOptions& options) {
  if (size < 1 || rank < 0 || rank >= size)
    throw CommError("[nccl] {}: rank {} of a group of {} was requested, need a rank from 0 to size - 1.", options.name,
                    rank, size);
  ncclUniqueId id{};
  ncclResult_t made = rank == 0 ? ncclGetUniqueId(&id) : ncclSuccess;
  // Rank 0 shares its failure, too, because otherwise the others would wait.
  const std::string version = fmt::format("{:>8}", nccl_version());
  const std::string shared =
      share(rank == 0 ? version + (made == ncclSuccess ? std::string(id.internal, sizeof id.internal) : "") : "");
  if (made != ncclSuccess) fail_with(nullptr, options.name, made, "making an identifier");
  if (shared.size() != version.size() + sizeof id.internal)
    throw CommError("[nccl] {}: rank 0 of the group could not make an identifier. Look at its error.", options.name);
  if (shared.compare(0, version.size(), version) != 0)
    throw CommError(
        "[nccl] {}: rank {} has NCCL {}, rank 0 of its group has {}. Install the same version on all machines.",
        options.name, rank, nccl_version(), std::stoi(shared.substr(0, version.size())));
  std::copy_n(shared.data() + version.size(), sizeof id.internal, id.internal);
  const TunedChannel tuned(options.name, options.channel);
  ncclConfig_t config = config_of(options);
  ncclComm_t comm = nullptr;
  made = ncclCommInitRankConfig(&comm, size, id, rank, &config);
  if (made == ncclInProgress || made == ncclSuccess) made = settle(comm, ncclInProgress, options.timeout_seconds, rest);
  const std::string what = fmt::format("connecting rank {} of {}", rank, size);
  if (made == ncclInProgress) {
    ncclCommAbort(comm);
    throw CommError(
        "[nccl] {}: {} took more than {} s. Check that all ranks have started and reach each other "
        "(NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO).",
        options.name, what, options.timeout_seconds);
  }
  if (made != ncclSuccess) fail_with(comm, options.name, made, what);
  return std::make_unique<NcclCommunicator>(comm, options);
}

}  // namespace slipstream::comm
