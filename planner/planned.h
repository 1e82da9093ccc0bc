// SPDX-License-Identifier: Apache-2.0
#pragma once
// What slipstream plan and slipstream check print: the plan of a run file, its memory and its rehearsed step.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "comm/nccl/nccl_table.h"
#include "comm/rehearse/rehearse.h"
#include "engine/config/load.h"
#include "engine/plan/memory.h"
#include "planner/checkpoint_costs.h"
#include "planner/planner.h"

namespace slipstream::planner {

struct PlanRequest : RunSource {
  int ranks = 1;        // world size
  std::string machine;  // path; empty: device.machine of the run file, else this host
  bool proves = true;   // false: a plan that is only compared
  std::string as;       // software profile (planner/software.h); empty: this program
};

/// The inputs of a plan, before anything is built.
struct Drawn {
  ResolvedConfig config;
  Machine machine;  // with the software that request.as names
  std::string machine_source;
  comm::NcclTable nccl;
  std::string nccl_table;
};
/// Reads files. Throws: ConfigError, DataError.
Drawn draw(const PlanRequest& request);

struct Planned {
  PlanRequest request;
  ResolvedConfig config;
  Machine machine;
  FinishedJob finished;
  std::string machine_source;
  comm::NcclTable nccl;    // of comm.nccl, where the run is on GPUs
  std::string nccl_table;  // its name and hash; empty: none
};

/// Reads files, blocks. Throws: ConfigError, DataError, PlanError.
Planned make_plan(const PlanRequest& request);

/// The inputs of the plan, to plan variants of it. Pure.
JobRequest request_of(const Planned& planned);

/// GPU memory outside the plan of the largest stage. Pure.
std::vector<ExtraMemory> extra_memory_of_largest(const Planned& planned);

/// Memory of the largest stage, including memory outside the plan. Pure.
int64_t most_bytes(const Planned& planned);

/// Memory that one rank may use. Ranks of one node share a host's memory; every GPU has its own. Pure.
bool fits(const Planned& planned);

/// Throws: ResourceError with the table of memory unless it fits.
void require_fits(const Planned& planned);

/// The costs of a checkpoint at the machine's rates. Pure.
CheckpointCosts checkpoint_costs_of(const Planned& planned);
KeepingCosts keeping_costs_of(const Planned& planned);

/// Three steps in a row in virtual time, in launch order. Pure.
comm::Rehearsal rehearse_step(const Planned& planned);
/// Milliseconds per step, from a sum over the rehearsed steps. Pure.
double ms_of_a_step(int64_t total_ns);

struct ChannelLoad {
  int64_t tasks = 0;
  int64_t bytes = 0;  // sent by one rank in a step
  // Rehearsed times of a mean step: the channel was busy, and compute waited for this channel's communication alone.
  double busy_ms = 0;
  double exposed_ms = 0;
};
/// Keyed by the channel's name. Pure.
std::map<std::string, ChannelLoad> channel_loads(const Job& job, const comm::Rehearsal& rehearsal);

/// To stdout.
void print_plan(const Planned& planned, const comm::Rehearsal& rehearsal);
void print_plan_json(const Planned& planned, const comm::Rehearsal& rehearsal);
void print_proof(const Planned& planned);
void print_proof_json(const Planned& planned);

}  // namespace slipstream::planner
