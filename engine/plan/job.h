// SPDX-License-Identifier: Apache-2.0
#pragma once
// One rank's view of a job: the model, the layout of memory, the channels and the plans.

#include <deque>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/base/update_multipliers.h"
#include "engine/plan/calendar.h"
#include "engine/plan/layout.h"
#include "engine/plan/mesh.h"
#include "engine/plan/model_spec.h"
#include "engine/plan/optimizer.h"
#include "engine/plan/placement.h"
#include "engine/plan/plan.h"
#include "engine/plan/recompute.h"
#include "engine/plan/stages.h"

namespace slipstream {

/// Which parameters form a group: those that no rule before it takes and that it holds (null: all).
struct GroupRule {
  std::string name;
  const OptimizerSpec* optimizer = nullptr;
  bool (*holds)(const ModelSpec& model, const ParameterSpec& parameter) = nullptr;
  double rate_factor = 1;  // on the learning rate of a step
};

/// Parameters that are placed and updated alike. A bucket holds parameters of one group.
struct ParameterGroup {
  std::string name;
  std::vector<uint32_t> parameters;  // indices into ModelSpec::parameters
  Placement placement;
  const OptimizerSpec* optimizer = nullptr;
  double rate_factor = 1;
  int64_t first_scalar = 0;  // its scalars among those of a step
};

/// The planner's input, derived from the run file.
struct PlanOptions {
  MeshSizes sizes;
  std::string mesh_order = "tp-cp-pp-dp";
  int rank = 0;
  ReduceMode reduce_mode = ReduceMode::bucketed;
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  int64_t max_inflight_buckets = 0;  // being reduced at a time; 0: no limit
  Format reduce_wire;                // of reduced gradients while they travel
  bool error_feedback = false;       // wire int8: a later gradient receives what rounding removed from this one
  Algorithm algorithm = Algorithm::direct;
  bool sums_by_exchange = false;  // wire bf16: sums of whole gradients are computed from exchanged parts, in float
                                  // and rank order; otherwise by the collective
  std::vector<GroupRule> groups = {{"all", &optimizers().front()}};
  std::vector<UpdateMultipliers> multipliers;
  bool clip = true;    // the update waits for the norm of the whole gradient
  bool skips = false;  // needs clip: a norm or a loss that is not finite or exceeds its limit in the staged scalars
                       // makes the update keep weights and states
  bool optimizer_per_bucket = true;
  DType update_product_dtype = DType::f32;  // of products of matrices in updates
  Sharding sharding;
  int prefetch_depth = 1;             // sharded parameters: layers gathered ahead of the one in use
  std::optional<Format> gather_wire;  // of sharded parameters while they travel; none: the model's type
  int64_t persistent_elems = 0;       // sharded parameters: those of layers up to this size are whole on every rank
  PipelineSchedule schedule;          // empty: 1F1B over sizes.pipeline stages
  int spare_slots = 0;                // more slots for every transfer between stages than size_rings() gives
  std::vector<int> layers;            // of each part of the model; empty: only with one part
  bool param_gather = true;  // ZeRO gathers parameters during compute; false: when compute needs them, for ablation
  bool reshard_after_forward = true;  // sharded parameters: false: a slot for every layer, gathered once in a step
  bool accumulate_unsharded = false;  // sharded gradients, whole parameters: gradients are whole in all micro-batches
  bool double_buffer = false;   // whole parameters: the update, on its own stream, writes a second copy of the weights;
                                // each step exchanges the copies
  bool update_on_spine = true;  // cpu: the update needs the computing core; cuda: its own stream
  Recomputation recompute = Recomputation::none;
  int recompute_layers = 0;        // of each part of the model, its first ones; 0: all
  bool align_grad_reduce = false;  // pipelines, whole gradients: those of a chunk travel when all stages have some
  std::vector<char>
      reduced_at_once;     // by chunk of this stage: buckets for its gradients would not shorten a step; empty: none
  bool snapshots = false;  // PlanKind::save copies what a checkpoint needs to host memory, while a step runs
  bool snapshots_beside = false;  // that memory is not the device's: Buffers::snapshots_beside
};

/// Location of a bucket on this rank. This rank updates the shard: part Placement::shard_of of the bucket, or all of
/// it. Absent slices are empty.
struct BucketStorage {
  Slice values;                  // whole bucket, training dtype; empty when only the shard is resident
  Slice gradients;               // whole bucket, float; empty when gradients pass through a slot
  Slice master;                  // shard, float: the weights that the optimizer updates
  Slice working;                 // shard, in the travelling type: the rounded master; == master if both types are float
  Slice gradient;                // shard, float: the sum over ranks
  std::vector<Slice> states;     // shard: OptimizerSpec::states
  Slice residual;                // whole bucket, float: the part of gradients that encoding held back (error feedback)
  Slice sum_residual;            // shard, float: the same for the sum, if that is encoded too (not sharded)
  std::vector<Slice> snapshots;  // of saved_arrays(), in their order; with PlanOptions::snapshots
  std::vector<Slice> kept;       // the same in the first slot of Keeping::own
  int64_t shard_offset_elems = 0;  // of the shard in the flat order
  int64_t shard_elems = 0;
};

/// Snapshots in memory that outlives the process, of this rank and of the rank whose second copy it holds. Each has
/// `slots` slots of `slot_bytes`, a header and the saved arrays; see checkpoint::SlotHeader.
struct Keeping {
  static constexpr int64_t kHeaderBytes = 4096;
  int slots = 0;      // 2: the last complete one, and the next; 0: no snapshots are kept
  int to_holder = 0;  // rank r sends to rank r + to_holder, modulo the number of ranks; 0: one rank
  int64_t slot_bytes = 0;
  int64_t arrays_bytes = 0;    // of this rank's arrays, behind the header
  BufferId own = 0, peer = 0;  // of Owner::kept
};

/// Buffers that every plan of the job shares.
struct JobBuffers {
  BufferId values = 0;       // of resident buckets; only with double_buffer
  BufferId values_next = 0;  // written by the update instead
  BufferId wire_out = 0;     // encoded gradients of one bucket, by receiver; only when reduce_wire is not float
  BufferId wire_in =
      0;  // of one bucket: every rank's contribution to this rank's part; == wire_out if the collective sums them
  BufferId wire_across = 0;       // hybrid sharding: an encoded shard
  BufferId wire_across_in = 0;    // sums_by_exchange: every group's contribution to this rank's part of it
  BufferId gather_wire = 0;       // encoded parameters of one bucket, as gathered
  BufferId aligned = 0;           // with align_grad_reduce: exchanged by stages to synchronize
  BufferId norm_sums = 0;         // norm_parts summed over ranks; == norm_parts if a rank has them all
  BufferId loss_sum = 0;          // of the losses of all ranks; == ModelSpec::loss on one rank
  BufferId tied_share = 0;        // first stage: the head's share of a tied table's gradient
  BufferId value_slots = 0;       // sharded parameters: prefetch_depth + 1 layers
  BufferId end_values = 0;        // the same: one slot for the parameters before the first layer and after the last
  BufferId gradient_slots = 0;    // sharded gradients: two layers
  BufferId end_gradients = 0;     // the same: one slot as end_values
  BufferId gradient_part = 0;     // the same: a reduced shard before it is added
  BufferId scalars_next = 0;      // OptimizerSpec::scalars of the next step, staged with its batch
  BufferId scalars = 0;           // those of this step
  BufferId update_workspace = 0;  // of one matrix; updates take turns
  BufferId norm_parts = 0;  // double per part of the whole model: sum of squares; zero where another stage has the part
  BufferId norm = 0;        // kNormDoubles: the gradient's norm before clipping and the verdict on it
  BufferId batch_next = 0;
  BufferId report = 0;  // kReportSlots x {double loss sum, kNormDoubles}
};
constexpr int kReportSlots = 4;
constexpr int kNormDoubles = 3;  // see kernels::Clip
constexpr int kLimits = 2;       // with PlanOptions::skips, behind the scalars of a step: of the norm and the loss

/// Location of transfers between stages on this rank: the buffer that pieces name passes through slots of another.
struct Ring {
  BufferId buffer = 0;
  BufferId storage = 0;
  int slots = 0;
};

/// A plan and when it runs. Plans of one kind have the same items; they differ in the memory that these name.
struct PlanRow {
  PlanKind kind = PlanKind::train;
  Cadence cadence;
  Plan plan;
};

struct Job {
  PlanOptions options;  // as given; members of the job hold the derived settings
  Mesh mesh;
  bool aligns_grad_reduce = false;  // options.align_grad_reduce, if several stages of several ranks reduce
  bool update_on_spine = true;      // options.update_on_spine; false with double_buffer
  PipelineSchedule schedule;        // options.schedule, else 1F1B
  std::vector<int> layers;          // of each part of the model
  ModelSpec model;                  // of this rank's stage
  std::vector<Chunk> chunks;        // its parts
  std::vector<Action> actions;      // its compute order
  Recomputed recomputed;            // recomputed by its backward passes
  bool takes_batch = false;         // model.forward begins with the piece that takes the staged batch
  std::vector<Ring> rings;
  int64_t parameter_elems = 0;   // of the whole model
  int norm_parts = 0;            // of the whole model
  bool has_tied_copies = false;  // embedding and head are on different stages and share a table
  std::string tied_name;         // of that table
  Buffers buffers;
  std::vector<ParameterGroup> groups;
  ParameterLayout layout;
  std::vector<BucketStorage> storage;  // by bucket
  std::vector<Channel> channels;       // 0 is compute
  JobBuffers ids;
  Keeping keeping;
  std::deque<PlanRow> plans = std::deque<PlanRow>(1);  // the first one trains; adding a row moves no other

  /// The plan that trains, after an even number of steps if there are several.
  const Plan& train() const { return plans.front().plan; }
  Plan& train() { return plans.front().plan; }
  /// The plan of a kind that runs after `steps` steps. Throws: InternalError if there is none.
  const Plan& plan(PlanKind kind, int64_t steps = 0) const;
  Plan& plan(PlanKind kind, int64_t steps = 0);
  bool has(PlanKind kind) const;
  /// Appends an empty plan that may run after any number of steps.
  Plan& add_plan(PlanKind kind, When when);
  Calendar calendar() const;
  /// Timelines number the items of all kinds of plans in a row: the number of the first item of the kind.
  uint32_t first_item(PlanKind kind) const;
  /// The row that has an item of a timeline, and the item in its plan.
  std::pair<const PlanRow*, ItemId> of_timeline(uint32_t item) const;
  /// Does an item of a timeline belong to a plan in the steps, and so to their times?
  bool is_in_step(uint32_t item) const { return of_timeline(item).first->cadence.when == When::step; }

  /// Positions of the pieces of `chunk` in ModelSpec::backward: [first, last).
  std::pair<uint32_t, uint32_t> backward_positions(int chunk) const;
  int stage() const { return mesh.coordinates(options.rank).pipeline; }
  const ParameterGroup& group_of(size_t bucket) const { return groups[layout.buckets[bucket].group]; }
  /// Scalars of a step, of all groups.
  int64_t scalars() const {
    return groups.back().first_scalar + static_cast<int64_t>(groups.back().optimizer->scalars.size());
  }
  /// The same and the limits behind them.
  int64_t staged_scalars() const { return scalars() + (options.skips ? kLimits : 0); }
  const Placement& placement_of(size_t bucket) const { return group_of(bucket).placement; }
  /// Are the gradients of any group summed over several ranks?
  bool reduces() const;
  /// The ranks that add up both shares of a split tied table.
  Axis tied_axis() const;
  /// The part of the batch that this rank computes: sequences are dealt to data ranks, their tokens to context ranks.
  struct Share {
    int rank = 0, ranks = 1, context_rank = 0, context_ranks = 1;
    bool counts = true;  // no other rank of this share counts its losses, which all tensor ranks have
  };
  Share share() const;
  /// What the ranks divide of any group.
  Sharding sharding() const;
  ChannelId channel(Role role) const;  // Throws PlanError if there is none.
  /// The channel of the role that connects the groups of `axis`. Throws PlanError if there is none.
  ChannelId channel(Role role, Axis axis) const;
  /// Ranks that add up the loss of a step: the data ranks if only data is distributed, otherwise also ranks without a
  /// part of it.
  Axis scalars_axis() const;
  /// Ranks that add up the squares of gradients; self: each rank has them all.
  Axis norm_axis() const;
  /// Does this rank count the squares of this parameter's gradient, and no other rank of norm_axis() that has the same?
  bool counts_squares_of(const ParameterGroup& group, const ParameterSpec& parameter, int rank) const;
};

/// Bytes of the flat range [offset, offset + elems) of a buffer.
Slice flat_slice(BufferId buffer, int64_t offset_elems, int64_t elems, DType dtype);

/// Fills in the scalars of all groups for `step`, counted from 1, and infinite limits; `scalars` has
/// Job::staged_scalars(). Pure.
void write_scalars(const Job& job, const UpdateOptions& update, double learning_rate, int64_t step,
                   std::span<float> scalars);

}  // namespace slipstream
