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

/// Selects the parameters of a group: those that `holds` accepts (null: all) and that no earlier rule has taken.
struct GroupRule {
  std::string name;
  const OptimizerSpec* optimizer = nullptr;
  bool (*holds)(const ModelSpec& model, const ParameterSpec& parameter) = nullptr;
  double rate_factor = 1;  // multiplies the learning rate of a step
};

/// Parameters that are placed and updated in the same way. A bucket holds parameters of one group.
struct ParameterGroup {
  std::string name;
  std::vector<uint32_t> parameters;  // indices into ModelSpec::parameters
  Placement placement;
  const OptimizerSpec* optimizer = nullptr;
  double rate_factor = 1;
  int64_t first_scalar = 0;  // the index of its first scalar among those of a step
};

/// The planner's input, which is derived from the run file.
struct PlanOptions {
  MeshSizes sizes;
  std::string mesh_order = "tp-cp-pp-dp";
  int rank = 0;
  ReduceMode reduce_mode = ReduceMode::bucketed;
  int64_t bucket_bytes = 25 << 20;
  int64_t first_bucket_bytes = 1 << 20;
  int64_t max_inflight_buckets = 0;  // the buckets that are reduced at a time; 0: no limit
  Format reduce_wire;                // for reduced gradients while they travel
  bool error_feedback = false;       // for wire int8: a later gradient receives what rounding removed from this one
  Algorithm algorithm = Algorithm::direct;
  /// For wire bf16: sums of whole gradients are computed from exchanged parts, in float and rank order; otherwise the
  /// collective computes them.
  bool sums_by_exchange = false;
  std::vector<GroupRule> groups = {{"all", &optimizers().front()}};
  std::vector<UpdateMultipliers> multipliers;
  bool clip = true;  // the update waits for the norm of the whole gradient
  /// Needs clip: the update keeps weights and states if a norm or a loss is not finite or exceeds its limit in the
  /// staged scalars.
  bool skips = false;
  bool optimizer_per_bucket = true;
  DType update_product_dtype = DType::f32;  // for products of matrices in updates
  Sharding sharding;
  int prefetch_depth = 1;             // for sharded parameters: the layers gathered ahead of the one in use
  std::optional<Format> gather_wire;  // for sharded parameters while they travel; none: the model's type
  int64_t persistent_elems = 0;       // for sharded parameters: layers up to this size are whole on every rank
  PipelineSchedule schedule;          // empty: 1F1B over sizes.pipeline stages
  int spare_slots = 0;                // the slots that every transfer between stages has beyond those of size_rings()
  std::vector<int> layers;            // the layers of each part of the model; empty: only with one part
  bool param_gather = true;  // ZeRO gathers parameters during compute; false, for ablation: when compute needs them
  /// For sharded parameters; false: every layer has a slot and is gathered once in a step.
  bool reshard_after_forward = true;
  /// For sharded gradients and whole parameters: gradients are whole in all micro-batches.
  bool accumulate_unsharded = false;
  /// For whole parameters: the update, on its own stream, writes a second copy of the weights, and each step exchanges
  /// the copies.
  bool double_buffer = false;
  /// True on cpu, where the update needs the computing core; false on cuda: the update has its own stream.
  bool update_on_spine = true;
  Recomputation recompute = Recomputation::none;
  int recompute_layers = 0;  // the first layers of each part of the model; 0: all
  /// For pipelines with whole gradients: those of a chunk travel when all stages have some.
  bool align_grad_reduce = false;
  /// By chunk of this stage: true if buckets for its gradients would not shorten a step; empty: none is.
  std::vector<char> reduced_at_once;
  bool snapshots = false;         // PlanKind::save copies what a checkpoint needs to host memory while a step runs
  bool snapshots_beside = false;  // that memory is separate from the device's: Buffers::snapshots_beside
};

/// The location of a bucket on this rank. This rank updates the shard: part Placement::shard_of of the bucket, or all
/// of it. Absent slices are empty.
struct BucketStorage {
  Slice values;               // the whole bucket in the training dtype; empty if only the shard is resident
  Slice gradients;            // the whole bucket in float; empty if gradients pass through a slot
  Slice master;               // the shard in float: the weights that the optimizer updates
  Slice working;              // the shard in the travelling type: the rounded master; == master if both types are float
  Slice gradient;             // the shard in float: the sum over ranks
  std::vector<Slice> states;  // the shard of each of OptimizerSpec::states
  Slice residual;      // the whole bucket in float: the part of gradients that encoding held back (error feedback)
  Slice sum_residual;  // the shard in float: the same for the sum, if that is encoded too (not sharded)
  std::vector<Slice> snapshots;    // the copies of saved_arrays(), in their order; with PlanOptions::snapshots
  std::vector<Slice> kept;         // the same in the first slot of Keeping::own
  int64_t shard_offset_elems = 0;  // the offset of the shard in the flat order
  int64_t shard_elems = 0;
};

/// Snapshots in memory that outlives the process: those of this rank, and those of the rank whose second copy it holds.
/// Each has `slots` slots of `slot_bytes`. A slot has a header and the saved arrays; see checkpoint::SlotHeader.
struct Keeping {
  static constexpr int64_t kHeaderBytes = 4096;
  int slots = 0;      // 2: the last complete snapshot and the next one; 0: no snapshots are kept
  int to_holder = 0;  // rank r sends to rank r + to_holder, modulo the number of ranks; 0: there is one rank
  int64_t slot_bytes = 0;
  int64_t arrays_bytes = 0;    // the bytes of this rank's arrays, which follow the header
  BufferId own = 0, peer = 0;  // buffers of Owner::kept
};

/// Buffers that every plan of the job shares.
struct JobBuffers {
  BufferId values = 0;       // the values of resident buckets; only with double_buffer
  BufferId values_next = 0;  // the update writes these instead
  BufferId wire_out = 0;     // encoded gradients of one bucket, by receiver; only if reduce_wire is not float
  BufferId wire_in =
      0;  // for one bucket: every rank's contribution to this rank's part; == wire_out if the collective sums them
  BufferId wire_across = 0;     // hybrid sharding: an encoded shard
  BufferId wire_across_in = 0;  // sums_by_exchange: every group's contribution to this rank's part of the shard
  BufferId gather_wire = 0;     // the encoded parameters of one bucket, as gathered
  BufferId aligned = 0;         // with align_grad_reduce: the bytes that stages exchange to synchronize
  BufferId norm_sums = 0;       // norm_parts summed over ranks; == norm_parts if a rank has them all
  BufferId loss_sum = 0;        // the sum of the losses of all ranks; == ModelSpec::loss on one rank
  BufferId tied_share = 0;      // on the first stage: the head's share of a tied table's gradient
  BufferId value_slots = 0;     // sharded parameters: slots for the layers in use and those ahead
  BufferId end_values = 0;  // sharded parameters: one slot for the parameters before the first layer and after the last
  BufferId end_gradients = 0;  // sharded gradients: one slot, as end_values
  /// Sharded gradients, by group: slots for two layers, and a reduced shard before it is added.
  std::vector<BufferId> gradient_slots, gradient_parts;
  BufferId scalars_next = 0;      // OptimizerSpec::scalars of the next step, staged with its batch
  BufferId scalars = 0;           // the scalars of this step
  BufferId update_workspace = 0;  // for one matrix; updates take turns
  /// A double per part of the whole model: its sum of squares; zero if another stage has the part.
  BufferId norm_parts = 0;
  BufferId norm = 0;  // kNormDoubles: the gradient's norm before clipping, and the verdict on it
  BufferId batch_next = 0;
  BufferId report = 0;  // kReportSlots x {double loss sum, kNormDoubles}
};
constexpr int kReportSlots = 4;
constexpr int kNormDoubles = 3;  // see kernels::Clip
/// With PlanOptions::skips: the limits of the norm and of the loss, after the scalars of a step.
constexpr int kLimits = 2;

/// The location of transfers between stages on this rank: the buffer that pieces name passes through the slots of
/// another buffer.
struct Ring {
  BufferId buffer = 0;
  BufferId storage = 0;
  int slots = 0;
};

/// A plan and when it runs. Plans of one kind have the same items, which differ only in the memory that they name.
struct PlanRow {
  PlanKind kind = PlanKind::train;
  Cadence cadence;
  Plan plan;
};

struct Job {
  PlanOptions options;  // the options as given; members of the job hold the derived settings
  Mesh mesh;
  bool aligns_grad_reduce = false;  // options.align_grad_reduce, if several stages with several ranks reduce
  bool update_on_spine = true;      // options.update_on_spine; false with double_buffer
  PipelineSchedule schedule;        // options.schedule, or else 1F1B
  std::vector<int> layers;          // the layers of each part of the model
  ModelSpec model;                  // the model of this rank's stage
  std::vector<Chunk> chunks;        // the stage's parts of the model
  std::vector<Action> actions;      // the stage's compute order
  Recomputed recomputed;            // what its backward passes recompute
  bool takes_batch = false;         // model.forward begins with the piece that takes the staged batch
  std::vector<Ring> rings;
  int64_t parameter_elems = 0;   // the elements of the whole model
  int norm_parts = 0;            // the parts of the whole model
  bool has_tied_copies = false;  // embedding and head share a table and are on different stages
  std::string tied_name;         // the name of that table
  Buffers buffers;
  std::vector<ParameterGroup> groups;
  ParameterLayout layout;
  std::vector<BucketStorage> storage;  // by bucket
  std::vector<Channel> channels;       // channel 0 is compute
  JobBuffers ids;
  Keeping keeping;
  /// The first one trains; a deque, so that adding a row moves no other row.
  std::deque<PlanRow> plans = std::deque<PlanRow>(1);

  /// Returns the plan that trains. If there are several, it is the one after an even number of steps.
  const Plan& train() const { return plans.front().plan; }
  Plan& train() { return plans.front().plan; }
  /// Returns the plan of a kind that runs after `steps` steps. Throws: InternalError if there is none.
  const Plan& plan(PlanKind kind, int64_t steps = 0) const;
  Plan& plan(PlanKind kind, int64_t steps = 0);
  bool has(PlanKind kind) const;
  /// Appends an empty plan that may run after any number of steps.
  Plan& add_plan(PlanKind kind, When when);
  Calendar calendar() const;
  /// Timelines number the items of all kinds of plans consecutively. Returns the number of the first item of the kind.
  uint32_t first_item(PlanKind kind) const;
  /// Returns the row that has an item of a timeline, and the item in the plan of that row.
  std::pair<const PlanRow*, ItemId> of_timeline(uint32_t item) const;
  /// Returns true if an item of a timeline belongs to a plan inside the steps, and therefore to their times.
  bool is_in_step(uint32_t item) const { return of_timeline(item).first->cadence.when == When::step; }

  /// Returns the positions of the pieces of `chunk` in ModelSpec::backward: [first, last).
  std::pair<uint32_t, uint32_t> backward_positions(int chunk) const;
  int stage() const { return mesh.coordinates(options.rank).pipeline; }
  const ParameterGroup& group_of(size_t bucket) const { return groups[layout.buckets[bucket].group]; }
  /// Returns the number of scalars of a step, of all groups.
  int64_t scalars() const {
    return groups.back().first_scalar + static_cast<int64_t>(groups.back().optimizer->scalars.size());
  }
  /// Returns the number of these scalars and of the limits after them.
  int64_t staged_scalars() const { return scalars() + (options.skips ? kLimits : 0); }
  const Placement& placement_of(size_t bucket) const { return group_of(bucket).placement; }
  /// Returns true if the gradients of any group are summed over several ranks.
  bool reduces() const;
  /// Returns the ranks that add up both shares of a split tied table.
  Axis tied_axis() const;
  /// The part of the batch that this rank computes. Data ranks divide the sequences, and context ranks divide their
  /// tokens.
  struct Share {
    int rank = 0, ranks = 1, context_rank = 0, context_ranks = 1;
    /// This rank counts the losses of its share, and no other rank with the same share does (all tensor ranks have
    /// them).
    bool counts = true;
  };
  Share share() const;
  /// Returns what the ranks divide in any group.
  Sharding sharding() const;
  ChannelId channel(Role role) const;  // throws PlanError if there is none
  /// Returns the channel of the role that connects the groups of `axis`. Throws: PlanError if there is none.
  ChannelId channel(Role role, Axis axis) const;
  /// Returns the ranks that add up the loss of a step: the data ranks if only data is distributed, otherwise also ranks
  /// without a part of it.
  Axis scalars_axis() const;
  /// Returns the ranks that add up the squares of gradients. self: each rank has them all.
  Axis norm_axis() const;
  /// Returns true if this rank counts the squares of this parameter's gradient. Among the ranks of norm_axis() with the
  /// same gradient, only one does.
  bool counts_squares_of(const ParameterGroup& group, const ParameterSpec& parameter, int rank) const;
  /// Returns the number of parts into which the ranks of the tensor and of the expert axis divide a parameter.
  int parts_of(const ParameterSpec& parameter) const;
  /// Returns the index of the part that a rank holds.
  int part_of(const ParameterSpec& parameter, int rank) const;
};

/// Returns the bytes of the flat range [offset, offset + elems) of a buffer.
Slice flat_slice(BufferId buffer, int64_t offset_elems, int64_t elems, DType dtype);

/// Fills in the scalars of all groups for `step`, counted from 1, and infinite limits. `scalars` has
/// Job::staged_scalars() elements. Pure.
void write_scalars(const Job& job, const UpdateOptions& update, double learning_rate, int64_t step,
                   std::span<float> scalars);

}  // namespace slipstream
