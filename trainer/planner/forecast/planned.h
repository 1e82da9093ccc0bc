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
#include "trainer/planner/forecast/checkpoint_costs.h"
#include "trainer/planner/forecast/plan_facts.h"
#include "trainer/planner/planner.h"
#include "trainer/planner/steady_state.h"

namespace slipstream::planner {

struct PlanRequest : RunSource {
  int ranks = 1;        // the world size
  std::string machine;  // a path; empty: device.machine of the run file, else this host
  bool proves = true;   // false: the plan is only compared
  bool whole = false;   // true: all micro-batches of a long step are planned
  std::string as;       // a software profile (trainer/planner/forecast/software.h); empty: this program
};

/// The inputs of a plan, before anything is built.
struct Drawn {
  ResolvedConfig config;
  Machine machine;  // has the software that request.as names
  std::string machine_source;
  comm::NcclTable nccl;
  std::string nccl_table;
};
/// Reads files. Throws: ConfigError, DataError.
Drawn draw(const PlanRequest& request);

struct ChannelLoad {
  int64_t tasks = 0;
  int64_t bytes = 0;  // what one rank sends in a step
  // Rehearsed times of a mean step: how long the channel was busy, and how long compute waited for this channel's
  // communication alone.
  double busy_ms = 0;
  double exposed_ms = 0;
};

/// Rehearsed times of a mean step on the first stage.
struct StepTotals {
  double step_ms = 0;
  double communication_ms = 0;
  double exposed_ms = 0;
  double bubble_ms = 0;
  int64_t memory_bytes = 0;                     // for the largest stage, including memory outside of the plan
  WireBytes wire;                               // for gradients and parameters
  std::map<std::string, ChannelLoad> channels;  // by name
};

/// A step of many micro-batches whose plan has only a few. In the steady state, every further round of micro-batches
/// adds the same to StepTotals, so that a plan with one more round gives the times of the others.
struct Steady {
  int64_t planned = 0;  // the micro-batches of the plan; 0: all of the run's
  int64_t round = 0;    // the micro-batches of a round
  double rounds = 0;    // the rounds beyond the plan
  StepTotals one_more;
  // The memory of the largest stage with all micro-batches, if no line gives it; 0 bytes: a line does.
  int64_t memory_bytes = 0;
  size_t largest = 0;
};

struct Planned {
  PlanRequest request;
  ResolvedConfig config;
  Machine machine;
  FinishedJob finished;
  std::string machine_source;
  comm::NcclTable nccl;            // the table of comm.nccl, if the run is on GPUs
  std::string nccl_table;          // the name and hash of the table; empty: none
  Steady steady;                   // for a long step, whose few micro-batches `config` and `finished` then have
  bool chose_bucket_size = false;  // for "auto"; `config` has the choice
  int64_t micro_batches = 0;
  int64_t global_batch = 0;  // the sequences of the run's step
};

/// Makes a plan. Steps whose plans would take many seconds are planned with few micro-batches, unless request.whole is
/// set. Reads files. Blocks. Throws: ConfigError, DataError, PlanError.
Planned make_plan(const PlanRequest& request);

/// Returns the inputs of the plan, from which variants of it can be planned. Pure.
JobRequest request_of(const Planned& planned);

/// Returns the stage that needs the most memory in a step of all micro-batches, as planned. Pure.
const Job& largest_stage(const Planned& planned);

/// Returns the GPU memory of the largest stage outside of the plan. Pure.
std::vector<ExtraMemory> extra_memory_of_largest(const Planned& planned);

/// Returns the memory of the largest stage, including memory outside of the plan. Pure.
int64_t most_bytes(const Planned& planned);

/// Returns true if the plan fits into the memory that one rank may use. Ranks of one node share a host's memory, and
/// every GPU has its own. Pure.
bool fits(const Planned& planned);

/// Throws: ResourceError with the table of memory unless the plan fits.
void require_fits(const Planned& planned);

/// Returns the costs of a checkpoint at the machine's rates. Pure.
CheckpointCosts checkpoint_costs_of(const Planned& planned);
KeepingCosts keeping_costs_of(const Planned& planned);

/// Rehearses three steps in a row in virtual time, in launch order. Pure.
comm::Rehearsal rehearse_step(const Planned& planned);
/// Returns the milliseconds per step for a sum over the rehearsed steps. Pure.
double ms_of_a_step(int64_t total_ns);

/// Returns the totals of the run's step. Pure.
StepTotals totals_of(const Planned& planned, const comm::Rehearsal& rehearsal);

/// Returns remarks(), and remarks on arguments of --set that change nothing. Reads files.
std::vector<std::string> notes_of(const Planned& planned);

/// These print to stdout.
void print_plan(const Planned& planned, const comm::Rehearsal& rehearsal);
void print_plan_json(const Planned& planned, const comm::Rehearsal& rehearsal);
void print_proof(const Planned& planned);
void print_proof_json(const Planned& planned);

}  // namespace slipstream::planner
