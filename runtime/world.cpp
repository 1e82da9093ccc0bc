// SPDX-License-Identifier: Apache-2.0
// Agreement between ranks. Ranks exchange failures before they end, so that each message is printed once.

#include "runtime/world.h"

#include <algorithm>
#include <cstdio>
#include <map>

#include "comm/imitated_communicator.h"
#include "comm/mpi/mpi_world.h"
#include "comm/nccl/nccl.h"
#include "comm/wiring.h"
#include "kernels/hold/hold.h"

namespace slipstream::runtime {

World::World() : mpi_(std::make_unique<comm::MpiWorld>()) {}
World::~World() = default;

int World::rank() const { return mpi_->rank(); }
int World::size() const { return mpi_->size(); }
int World::ranks_on_host() const { return mpi_->local_size(); }
int World::rank_on_host() const { return mpi_->local_rank(); }
int World::host() const { return mpi_->host(); }
std::vector<std::string> World::all_gather(const std::string& bytes, const std::string& awaited) {
  if (!limit_ || awaited.empty()) return mpi_->all_gather(bytes);
  std::vector<std::string> all;
  limit_->watch(awaited, [&] { all = mpi_->all_gather(bytes); });
  return all;
}
void World::limit_waits(double seconds) {
  limit_.reset();
  if (seconds <= 0 || size() == 1) return;
  limit_ = std::make_unique<comm::WaitLimit>(seconds, [this, seconds](const std::string& awaited) {
    leave(
        fmt::format("[mpi] not all ranks joined within {} s to exchange {}. A rank may be gone, stuck or late. Look "
                    "for the first error among the ranks, or raise comm.timeout_seconds.",
                    seconds, awaited));
  });
}
bool World::all_agree(bool mine, const std::string& awaited) {
  const std::vector<std::string> answers = all_gather(mine ? "yes" : "no", awaited);
  return std::count(answers.begin(), answers.end(), "no") == 0;
}
uint64_t World::vote(uint64_t bits) {
  uint64_t joined = 0;
  const auto join = [&] { joined = mpi_->vote(bits); };
  limit_ ? limit_->watch("their requests to save or stop", join) : join();
  return joined;
}
void World::barrier() { mpi_->barrier(); }
int64_t World::clock_offset_ns() {
  int64_t offset_ns = 0;
  const auto ask = [&] { offset_ns = mpi_->clock_offset_ns(); };
  limit_ ? limit_->watch("the times of their clocks", ask) : ask();
  return offset_ns;
}
void World::abort(ExitCode code) { mpi_->abort(static_cast<int>(code)); }
void World::leave(const std::string& sentence, ExitCode code) {
  std::fprintf(stderr, "slipstream: on rank %d: %s\n", rank(), sentence.c_str());
  std::_Exit(static_cast<int>(code));
}

void World::together(const std::function<void()>& stage) {
  // "CODE sentence", or nothing when the stage succeeded here.
  std::string failure;
  try {
    stage();
  } catch (const Error& error) {
    failure = fmt::format("{} {}", static_cast<int>(error.code()), error.what());
  }
  const std::vector<std::string> failures = all_gather(failure);
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
    const std::vector<int> group = job.mesh.group(wiring.connections[i], self);
    const auto mine = static_cast<int>(std::find(group.begin(), group.end(), self) - group.begin());
    if (wire.imitated) {
      connections[i] = comm::make_imitated_communicator(mine, static_cast<int>(group.size()), kernels::copy_on_device);
    } else if (kind == DeviceKind::cuda) {
      if (group.size() == 1) continue;  // its plan has no task here and needs no NCCL
      const std::string name = comm::name_of_connection(job, wiring, i);
      // All ranks create all connections in the same order, so they share them immediately.
      const auto share = [&](const std::string& bytes) { return all_gather(bytes)[static_cast<size_t>(group[0])]; };
      connections[i] =
          comm::make_nccl_communicator(mine, static_cast<int>(group.size()), share,
                                       {.name = name, .channel = wire.nccl.of(name), .timeout_seconds = timeout});
    } else {
      connections[i] = comm::make_mpi_communicator(*mpi_, group, static_cast<int>(i), {.timeout_seconds = timeout});
    }
    if (port) connections[i] = comm::emulate(std::move(connections[i]), port, wire.traffic);
  }
  for (ChannelId c = 0; c < job.channels.size(); ++c)
    if (wiring.connection_of[c] >= 0)
      communicators[c] = std::move(connections[static_cast<size_t>(wiring.connection_of[c])]);
  return communicators;
}

}  // namespace slipstream::runtime
