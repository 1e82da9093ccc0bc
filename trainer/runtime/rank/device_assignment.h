// SPDX-License-Identifier: Apache-2.0
#pragma once
// The device of a rank: the CPU or one GPU.

#include <memory>
#include <string>
#include <vector>

#include "engine/config/config.h"
#include "engine/config/machine.h"
#include "engine/device/device.h"
#include "trainer/runtime/rank/library_tables.h"
#include "trainer/runtime/rank/world.h"

namespace slipstream::runtime {

/// The device of this rank and the tables of its libraries. All ranks of a run have the same kind of device.
struct DeviceAssignment : LibraryTables {
  DeviceKind kind = DeviceKind::cpu;
  int gpu = 0;                    // its index among the GPUs visible to this process
  int ranks = 1;                  // the ranks of the run
  std::vector<int> ranks_on_gpu;  // ranks of the world, including this one; more than one only on shared GPUs
  std::string name = "cpu";       // for run.json and messages: "cpu" or the GPU's name
  int capability = 0;             // the compute capability of this rank's GPU: 90 is 9.0
  int driver = 0;                 // the oldest of all ranks, see CudaGpu

  /// If several ranks communicate through the device, NCCL allocates its memory. Throws: ResourceError if the GPU does
  /// not start.
  std::unique_ptr<Device> make_device() const;
  /// Returns the wires of a run's channels on `device`.
  WireOptions wire(const RunConfig& config, Device& device) const;
};

/// Blocks. Collective. Returns the device for device.kind. "auto" chooses GPUs if every rank has one. Otherwise one
/// line prints the reason, unless the run file itself excludes GPUs. Also sets NCCL's environment variables before the
/// first communicator.
/// Throws: AgreedFailure if there is no GPU for "cuda", if there are more ranks than GPUs, if several ranks have no
/// NCCL, or if NCCL versions differ.
DeviceAssignment assign_device(World& world, const RunConfig& config);

/// Blocks. Does the same for a command of one process without a launcher. Prints nothing when "auto" chooses the CPU.
/// Throws: ResourceError if there is no GPU for "cuda".
DeviceAssignment assign_device_alone(DeviceChoice kind);

/// Returns the machine file of the run, or else built-in rates of the chosen GPU or of this host with `threads`
/// threads. A node has the `ranks_on_host` ranks of this host. Blocks. Throws: ConfigError.
Machine machine_at(const DeviceAssignment& assignment, const RunConfig& config, int threads, int ranks_on_host);

/// Blocks. Collective. Returns the common machine of all ranks, because all ranks must plan for the same one.
Machine agreed_machine(World& world, const Machine& machine);

}  // namespace slipstream::runtime
