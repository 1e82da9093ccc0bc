// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where a rank computes: the CPU, or which GPU.

#include <memory>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/machine.h"
#include "engine/device/device.h"
#include "runtime/library_tables.h"
#include "runtime/world.h"

namespace slipstream::runtime {

/// The device of this rank and the tables of its libraries. All ranks of a run have the same kind.
struct DeviceAssignment : LibraryTables {
  DeviceKind kind = DeviceKind::cpu;
  int gpu = 0;                    // index among those that this process sees
  int ranks = 1;                  // of the run
  std::vector<int> ranks_on_gpu;  // of the world, this one among them; more than one only where GPUs are shared
  std::string name = "cpu";       // for run.json and people: "cpu" or the GPU's own name
  int driver = 0;                 // the oldest of all ranks, as CudaGpu has it

  /// Its memory is NCCL's where several ranks talk through it. Throws: ResourceError when the GPU does not start.
  std::unique_ptr<Device> make_device() const;
  /// How the channels of a run on `device` are wired.
  WireOptions wire(const RunConfig& config, Device& device) const;
};

/// Blocks. Collective. The device that device.kind asks for. With "auto" it is a GPU where every rank has one, and one
/// line says why it is not; nothing is said when the run file itself rules the GPU out. Before the first communicator
/// it also sets what NCCL reads from the environment.
/// Throws: AgreedFailure: no GPU where "cuda" was asked for, more ranks than GPUs, no NCCL for several ranks, unequal
/// ones.
DeviceAssignment assign_device(World& world, const RunConfig& config);

/// Blocks. The same for a command of one process that no launcher started; says nothing when "auto" takes the CPU.
/// Throws: ResourceError: no GPU where "cuda" was asked for.
DeviceAssignment assign_device_alone(DeviceChoice kind);

/// The machine file of the run, else what is believed of the chosen GPU or of this host with `threads` threads, with a
/// node of the `ranks_on_host` ranks that were started here. Blocks. Throws: ConfigError.
Machine machine_at(const DeviceAssignment& assignment, const RunConfig& config, int threads, int ranks_on_host);

/// Blocks. Collective. The machine that all ranks have in common: what plans are made for must be the same everywhere.
Machine agreed_machine(World& world, const Machine& machine);

}  // namespace slipstream::runtime
