// SPDX-License-Identifier: Apache-2.0
// Host collectives between processes on one machine: time per size, and the cost of a transfer to a computing thread.
// mpirun -np 2 --bind-to none mpi_bench; over links of a given rate: scripts/bench_collectives.sh

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <numeric>
#include <thread>
#include <vector>

#include "comm/mpi/mpi_world.h"
#include "engine/device/clock.h"
#include "engine/device/device.h"

using namespace slipstream;

namespace {

struct Rig {
  explicit Rig(comm::MpiWorld& joined) : world(joined) {
    std::vector<int> ranks(static_cast<size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    communicator = comm::make_mpi_communicator(world, ranks, 1);
  }
  Work all_reduce(int64_t elems, Algorithm algorithm) {
    bytes.resize(static_cast<size_t>(elems) * 4);
    memory = Memory({{bytes.data(), 0, Instances::one}});
    frame.memory = &memory;
    const Slice whole{0, 0, elems * 4};
    return communicator->all_reduce({.from = whole, .to = whole, .elems = elems, .algorithm = algorithm});
  }
  template <typename Body>
  double median_us(int rounds, Body body) {
    std::vector<double> times;
    for (int i = 0; i < rounds; ++i) {
      world.barrier();
      const int64_t begin = monotonic_ns();
      body();
      times.push_back(static_cast<double>(monotonic_ns() - begin) * 1e-3);
    }
    std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
    return times[static_cast<size_t>(rounds / 2)];
  }

  comm::MpiWorld& world;
  std::unique_ptr<comm::Communicator> communicator;
  std::unique_ptr<Device> device = make_cpu_device();
  std::unique_ptr<Stream> stream = device->make_stream({.name = "comm"});
  std::vector<std::byte> bytes;
  Memory memory;
  Frame frame;
};

/// Steps of a loop that lives in registers, per second.
double compute(const std::atomic<bool>& stop) {
  double x = 1;
  int64_t steps = 0;
  const int64_t begin = monotonic_ns();
  while (!stop.load(std::memory_order_relaxed)) {
    for (int i = 0; i < 1000; ++i) x = x * 1.0000001 + 1e-9;
    ++steps;
  }
  return static_cast<double>(steps) * 1e9 / static_cast<double>(monotonic_ns() - begin) + (x == 0 ? 1 : 0);
}

}  // namespace

int main() {
  comm::MpiWorld world;
  Rig rig(world);
  const bool print = world.rank() == 0;
  for (int64_t kib : {1, 64, 1024, 25600}) {
    const int64_t elems = kib * 256;
    const int rounds = kib > 10000 ? 7 : 21;
    double own[2];
    for (Algorithm algorithm : {Algorithm::direct, Algorithm::ring}) {
      const Work work = rig.all_reduce(elems, algorithm);
      own[static_cast<int>(algorithm)] = rig.median_us(rounds, [&] {
        rig.stream->launch(work, rig.frame);
        rig.stream->synchronize();
      });
    }
    const double theirs = rig.median_us(rounds, [&] {
      MPI_Allreduce(MPI_IN_PLACE, rig.bytes.data(), static_cast<int>(elems), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
    if (print)
      std::printf("%6ld KiB: direct %.0f us, ring %.0f us, MPI_Allreduce %.0f us\n", static_cast<long>(kib), own[0],
                  own[1], theirs);
  }
  // A waiting transfer: rank 0 enters, the others 300 ms later; the measured value is rank 0's remaining compute speed.
  const Work work = rig.all_reduce(1000, Algorithm::direct);
  for (bool waiting : {false, true}) {
    world.barrier();
    std::atomic<bool> stop{false};
    double rate = 0;
    std::thread computing([&] { rate = compute(stop); });
    if (waiting && world.rank() == 0) rig.stream->launch(work, rig.frame);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    stop = true;
    computing.join();
    if (waiting && world.rank() != 0) rig.stream->launch(work, rig.frame);
    rig.stream->synchronize();
    if (print) std::printf("compute %s: %.0f steps/s\n", waiting ? "beside a waiting transfer" : "alone", rate);
  }
}
