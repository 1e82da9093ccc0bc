// SPDX-License-Identifier: Apache-2.0
// Agreement between ranks. They exchange failures before they end, so that each message is printed once.

#include "trainer/runtime/rank/world.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <sstream>

#include "comm/imitated_communicator.h"
#include "comm/mpi/launcher.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl.h"
#include "comm/wiring.h"
#include "engine/base/fail_point.h"
#include "engine/device/clock.h"
#include "kernels/hold/hold.h"

namespace slipstream::runtime {

World::World(const comm::WaitLimits& limits) {
  if (comm::announced_ranks() > 1) make_monitor(comm::announced_rank());
  limit(limits);
  exchange("the start of MPI", [&] { mpi_ = std::make_unique<comm::MpiWorld>(); });
  if (size() == 1) {
    monitor_.reset();
    return;
  }
  if (!monitor_) make_monitor(rank());
  uint64_t drawn = 0;
  if (::getrandom(&drawn, sizeof drawn, 0) != sizeof drawn) drawn = static_cast<uint64_t>(monotonic_ns());
  std::string token = fmt::format("{:016x}", drawn);
  std::unique_ptr<comm::SideChannel> listening;
  if (rank() == 0) listening = comm::SideChannel::listen(size(), ranks_on_host() == size(), token);
  // The text is "TOKEN MILLISECONDS PORT ADDRESS ..", or "TOKEN MILLISECONDS ".
  const std::string of_rank_0 =
      all_gather(fmt::format("{} {} {}", token, comm::unix_ms(), listening ? listening->addresses() : ""),
                 "the address of rank 0")[0];
  int64_t now_ms = 0;
  std::istringstream words(of_rank_0);
  std::string addresses;
  std::getline(words >> token >> now_ms >> std::ws, addresses);
  monitor_->connect(rank(), size(), token, now_ms, addresses, host() == 0, std::move(listening));
}
World::~World() {
  if (!monitor_) {
    fail_point("end.left");
    return;
  }
  monitor_->enter(comm::RunPhase::save);
  monitor_->begin("the end of MPI");
  mpi_.reset();
  fail_point("end.mpi");
  monitor_->end_together();
  fail_point("end.left");
}

void World::make_monitor(int rank) {
  monitor_ = std::make_unique<comm::Monitor>(rank, [] { std::_Exit(static_cast<int>(ExitCode::communication)); });
}

int World::rank() const { return mpi_->rank(); }
int World::size() const { return mpi_->size(); }
int World::ranks_on_host() const { return mpi_->local_size(); }
int World::rank_on_host() const { return mpi_->local_rank(); }
int World::host() const { return mpi_->host(); }
std::vector<std::string> World::all_gather(const std::string& bytes, const std::string& exchanged) {
  std::vector<std::string> all;
  exchange(exchanged, [&] { all = mpi_->all_gather(bytes); });
  return all;
}
void World::limit(const comm::WaitLimits& limits) {
  if (monitor_) monitor_->limit(limits);
}
void World::record_in(const std::string& folder) {
  if (monitor_) monitor_->write_to(folder);
}
bool World::all_agree(bool mine, const std::string& exchanged) {
  const std::vector<std::string> answers = all_gather(mine ? "yes" : "no", exchanged);
  return std::count(answers.begin(), answers.end(), "no") == 0;
}
uint64_t World::vote(uint64_t bits) {
  uint64_t joined = 0;
  exchange("their requests to save or stop", [&] { joined = mpi_->vote(bits); });
  return joined;
}
void World::barrier() {
  exchange("a barrier", [&] { mpi_->barrier(); });
}
int64_t World::clock_offset_ns() {
  int64_t offset_ns = 0;
  exchange("the times of their clocks", [&] { offset_ns = mpi_->clock_offset_ns(); });
  return offset_ns;
}
void World::abort(ExitCode code) { mpi_->abort(static_cast<int>(code)); }
void World::leave(const std::string& sentence, ExitCode code) {
  std::fprintf(stderr, "slipstream: on rank %d: %s\n", rank(), sentence.c_str());
  std::_Exit(static_cast<int>(code));
}

void World::together(const std::function<void()>& stage) {
  // The text is "CODE sentence", or empty if the stage succeeded here.
  std::string failure;
  try {
    stage();
  } catch (const Error& error) {
    failure = fmt::format("{} {}", static_cast<int>(error.code()), error.what());
  }
  const std::vector<std::string> failures = all_gather(failure, "the outcome of a stage");
  std::map<std::string, std::vector<int>> ranks_of;
  for (int r = 0; r < size(); ++r)
    if (!failures[static_cast<size_t>(r)].empty()) ranks_of[failures[static_cast<size_t>(r)]].push_back(r);
  if (ranks_of.empty()) return;
  int code = 0, lowest = size();
  for (const auto& [text, ranks] : ranks_of) {
    if (ranks.front() < lowest) {
      lowest = ranks.front();
      code = std::stoi(text);
    }
    if (ranks.front() != rank()) continue;
    std::string where;
    if (size() > 1) {
      where = static_cast<int>(ranks.size()) == size() ? "on all ranks: " : fmt::format("on rank {}", ranks.front());
      if (where.back() != ' ') {
        for (size_t i = 1; i < ranks.size(); ++i) where += fmt::format(", {}", ranks[i]);
        where += ": ";
      }
    }
    std::fprintf(stderr, "slipstream: %s%s\n", where.c_str(), text.substr(text.find(' ') + 1).c_str());
  }
  throw AgreedFailure(static_cast<ExitCode>(code), "");
}

std::unique_ptr<comm::Communicator> World::connect(const std::vector<int>& group, int mine, int index,
                                                   const std::string& name, double timeout_seconds, DeviceKind kind,
                                                   const WireOptions& wire) {
  if (kind == DeviceKind::cuda) {
    if (group.size() == 1) return nullptr;  // its plan has no task here and needs no NCCL
    // All ranks create all connections in the same order, so that they share them immediately.
    const auto share = [&](const std::string& bytes) {
      return all_gather(bytes, "the identifiers of NCCL's connections")[static_cast<size_t>(group[0])];
    };
    return comm::make_nccl_communicator(
        mine, static_cast<int>(group.size()), share,
        {.name = name, .channel = wire.nccl.of(name), .timeout_seconds = timeout_seconds});
  }
  comm::CommOptions options{.timeout_seconds = timeout_seconds, .sockets = wire.sockets};
  if (monitor_) options.late = [monitor = monitor_.get()](const std::string& late) { monitor->alarm(late); };
  return comm::make_mpi_communicator(*mpi_, group, index, options);
}

std::unique_ptr<comm::Communicator> World::communicator(double bytes_per_second, int64_t latency_ns,
                                                        int64_t timeout_seconds, DeviceKind kind,
                                                        const WireOptions& wire) {
  std::vector<int> all(static_cast<size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  auto connection = connect(all, rank(), 0, "reduce", static_cast<double>(timeout_seconds), kind, wire);
  if (bytes_per_second <= 0) return connection;
  return comm::emulate(std::move(connection),
                       std::make_shared<comm::LinkPort>(comm::Link{bytes_per_second, latency_ns}), wire.traffic);
}

std::unique_ptr<comm::Communicator> World::library_communicator() { return comm::make_library_communicator(*mpi_); }

std::vector<std::unique_ptr<comm::Communicator>> World::communicators(const Job& job, double bytes_per_second,
                                                                      int64_t latency_ns, int64_t timeout_seconds,
                                                                      DeviceKind kind, const WireOptions& wire) {
  std::vector<std::unique_ptr<comm::Communicator>> communicators(job.channels.size());
  std::shared_ptr<comm::LinkPort> port;
  if (bytes_per_second > 0) port = std::make_shared<comm::LinkPort>(comm::Link{bytes_per_second, latency_ns});
  const comm::Wiring wiring = comm::wire_up(job);
  std::vector<std::unique_ptr<comm::Communicator>> connections(wiring.connections.size());
  const auto timeout = static_cast<double>(timeout_seconds);
  for (size_t i = 0; i < connections.size(); ++i) {
    const int self = wire.imitated ? job.options.rank : rank();
    const bool of_hosts = wiring.connections[i] == Axis::hosts;
    const std::vector<int> group = job.mesh.group(wiring.connections[i], self);
    const auto mine = static_cast<int>(std::find(group.begin(), group.end(), self) - group.begin());
    if (wire.imitated) {
      connections[i] = comm::make_imitated_communicator(mine, static_cast<int>(group.size()), kernels::copy_on_device);
    } else {
      connections[i] = connect(group, mine, static_cast<int>(i), comm::name_of_connection(job, wiring, i), timeout,
                               of_hosts ? DeviceKind::cpu : kind, wire);
      if (!connections[i]) continue;
    }
    if (port)
      connections[i] = comm::emulate(std::move(connections[i]), port, of_hosts ? comm::LinkTraffic{} : wire.traffic);
  }
  for (ChannelId c = 0; c < job.channels.size(); ++c)
    if (wiring.connection_of[c] >= 0)
      communicators[c] = std::move(connections[static_cast<size_t>(wiring.connection_of[c])]);
  return communicators;
}

}  // namespace slipstream::runtime
