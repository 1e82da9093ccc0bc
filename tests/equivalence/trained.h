// SPDX-License-Identifier: Apache-2.0
#pragma once
// Trains a tiny model for a few steps under one layout, ranks as threads, and returns all comparable results.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/rehearse/finish.h"
#include "engine/base/hash.h"
#include "models/model.h"
#include "trainer/runtime/rank/rank.h"

namespace slipstream::equivalence {

/// A model that takes milliseconds; 97 rows so that nothing is a multiple of a block.
models::ModelOptions tiny_gpt2();
models::ModelOptions tiny_llama();

/// One row of an equivalence table.
struct Layout {
  std::string name;
  models::ModelOptions model;
  int ranks = 1;             // data ranks
  int64_t micro_batch = 12;  // sequences; ranks x micro_batch x micro_batches is the global batch
  int context = 1;           // ranks that share a sequence; model.tokens are those of a whole one
  int stages = 1;            // of a pipeline: the world has ranks x context x stages ranks
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  PipelineSchedule order;  // not empty: instead of `schedule`
  int virtual_stages = 1;
  bool hides_transfers = false;
  std::vector<int> lags;    // of weight gradients under zb_h1, for each stage; empty: as published
  std::vector<int> layers;  // of each part; empty: balanced
  int tensor = 1;           // ranks that share layers
  int expert = 1;           // data and context ranks that divide experts
  bool sequence_parallel = false;
  int tensor_chunks = 1;
  int micro_batches = 1;
  ReduceMode reduce_mode = ReduceMode::bucketed;
  int64_t bucket_bytes = 8 << 10;
  int64_t first_bucket_bytes = 2 << 10;
  int64_t max_inflight_buckets = 0;
  int64_t head_chunk_bytes = 8 << 10;
  int64_t head_tokens = 0;
  Format wire_dtype = DType::f32;
  bool error_feedback = false;
  bool double_buffer = false;
  Algorithm algorithm = Algorithm::direct;
  bool sums_by_exchange = false;
  float max_norm = 0.5f;  // 0: no clipping
  bool skips = false;     // updates of steps that are not finite or exceed their limits
  std::function<std::array<float, kLimits>(int64_t step)>
      limits;  // with `skips`: the limits of the norm and the loss; empty: none
  std::vector<GroupRule> groups = PlanOptions{}.groups;
  std::vector<UpdateMultipliers> multipliers;
  MuonScaling muon_scaling = MuonScaling::match_rms_adamw;
  bool optimizer_per_bucket = true;
  bool update_on_spine = true;
  int threads = 1;
  uint64_t delay_seed = 0;
  bool reverse_ranks = false;  // the communicator adds ranks n-1, ..., 0
  bool evaluate_between = false;
  int save_interval = 0;         // every so many steps, the state before the step is copied to the snapshot; 0: never
  bool keeps = false;            // PlanKind::keep copies the state before every step to the slots of Job::keeping
  int to_holder = 1;             // with keeps and several ranks: Keeping::to_holder
  int64_t mean_over_tokens = 0;  // a wrong divisor of the gradient, for mutations; 0: the right one
  float learning_rate = 1e-2f;
  // eps is large against the gradients, so that a rounding error moves a weight by a rounding error: with the usual
  // 1e-8, AdamW turns the noise of a gradient that is zero in exact arithmetic (of key biases) into whole steps.
  float eps = 1e-2f;
  int64_t document_tokens = 0;  // with model.documents: the longest document
  bool same_batch = false;      // every step trains on the batch of step 1, with its masks
  std::function<void(int64_t& step, int64_t& first)> renumbers;  // a mutation: wrong numbers for the masks of dropout
  int zero_stage = 0;
  int prefetch_depth = 1;
  int shard_size = 0;
  std::optional<Format> gather_dtype;
  int64_t persistent_elems = 0;
  bool reshard_after_forward = true;
  bool accumulate_unsharded = false;
  Recomputation recompute = Recomputation::none;
  int recompute_layers = 0;
  bool align_grad_reduce = false;
  bool reduced_at_once = false;  // in pipelines, all stages but the first reduce all their chunks at once
  bool check_hazards = true;
  bool graph = true;        // if the device has graphs
  bool as_reached = false;  // trains in the order in which passes append tasks; each is issued when its points are
                            // reached, and the plan is unproved
  std::function<std::unique_ptr<Device>(const Job&)> device;  // makes the device of a rank; empty: a cpu device
  std::function<void(ModelSpec&)> change_model;               // called before the model is planned
  std::function<void(runtime::Rank&)> inspect;  // called with every rank after the last step, on its thread
  /// Called on every rank, with step 0 before the first step. It is called while step + 1 runs and the snapshot of the
  /// state after `step` is done, or after every step when nothing runs.
  std::function<void(runtime::Rank&, int step)> saved, at_rest;
  /// Called on every rank, when nothing runs any more, with a slot that holds the state after `step`.
  std::function<void(runtime::Rank&, int step, int slot)> kept;
  std::function<void(const comm::Proof&)> proved;  // called with the proof of every plan that is made
  std::function<void(Job&)> mutate;                // a mutation test's change to the finished plans of every rank

  MeshSizes sizes() const {
    return {.data = ranks,
            .context = context,
            .pipeline = stages,
            .tensor = tensor,
            .data_inner = shard_size,
            .expert = expert};
  }
  int world() const { return ranks * context * stages * tensor; }
  ContextChunks chunks(int context_rank) const {
    return {.tokens = model.tokens, .ranks = context, .rank = context_rank};
  }
};

/// The layout that `change` makes of `layout`.
template <typename Change>
Layout with(Layout layout, Change change) {
  change(layout);
  return layout;
}

struct Trained {
  std::vector<std::string> names;             // of tensors, sorted
  std::vector<std::vector<float>> weights;    // by tensor
  std::vector<std::vector<float>> gradients;  // of the last step, summed over ranks
  std::vector<double> losses;                 // mean over the global batch, by step
  std::vector<double> norms;
  std::vector<int> skipped;               // by step: was its update skipped?
  std::vector<int64_t> first_not_finite;  // by step: number of the first gradient part that is not finite, or 0
  std::string hash;                       // of all weights
  // The hash of every replica. It is `hash` if the masters of the replica are equal to those of the replicas before it,
  // and if every weight that its ranks computed with is too, in every step and in an evaluation after the last one. The
  // masters of ZeRO are made of shards and do not show differences between replicas.
  std::vector<std::string> rank_hashes;
  std::vector<double> evaluations;
};

/// The tokens of sequence `index` of the global batch of `step`: a function of these two only.
int32_t token_of(int64_t step, int64_t index, int64_t position, int64_t vocab);

/// The position at which the document of a token begins; the lengths of documents differ. 0 without document_tokens.
int32_t document_begin_of(const Layout& layout, int64_t index, int64_t position);

/// The jobs of all stages, finished together; the job of the stage of `rank` is this rank's own.
std::vector<std::unique_ptr<Job>> make_jobs(const Layout& layout, int rank);

/// The job of one rank.
std::unique_ptr<Job> make_job(const Layout& layout, int rank);

using Communicators = std::vector<std::unique_ptr<comm::Communicator>>;  // of a rank, by channel

/// The communicators of all ranks of a layout, whose jobs are in the order of the ranks. With `reverse_ranks`, they add
/// in the order of ranks n-1, ..., 0.
std::vector<Communicators> make_communicators(std::span<const std::unique_ptr<Job>> jobs, bool reverse_ranks = false);

namespace detail {

/// One rank's part of the weights and of the last gradients.
struct Held {
  std::vector<float> weights, gradients;
};

/// For every slice of the weights that works of a rank read, {buffer, begin, size}: the bytes of the slice at each
/// read. Ranks that share sequences read other rows of the positions.
using UsedWeights = std::map<std::array<int64_t, 3>, data::Xxh3>;

/// Results of one rank: losses, norms and evaluations, its part of the model, and the weights that it computed with.
struct Outcome {
  Trained seen;
  Held held;
  UsedWeights used;  // empty if they were not recorded
};

runtime::LoadBatch loader(const Layout& layout, int rank, int64_t& step, int context_rank = 0);

runtime::RankOptions rank_options(const Layout& layout, size_t r);

/// Blocks. Runs `steps` steps of a new rank.
Outcome run_steps(runtime::Rank& rank, const Layout& layout, const Coordinates& at, int steps);

/// The whole model from the outcomes of all ranks. Throws if ranks report different losses or norms.
Trained combine(const Layout& layout, std::vector<Outcome> outcomes);

}  // namespace detail

/// Blocks. Runs `steps` steps on one thread for each rank of the layout. Throws the error of the first failing rank.
Trained train(const Layout& layout, int steps);

/// The largest difference of two tensors, relative to the largest element of `b`.
double difference(const std::vector<float>& a, const std::vector<float>& b);

/// The largest such difference over all tensors of `a` and `b`. Each is relative to its tensor's own largest element,
/// but at least to `floor` of the largest element of all: a gradient that is zero in exact arithmetic has no scale of
/// its own.
double difference(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b,
                  double floor = 1e-3);

}  // namespace slipstream::equivalence
