// SPDX-License-Identifier: Apache-2.0
#pragma once
// The configuration of a run: one struct per table and one member per key, in the program's units.
//
// The rows of engine/config/fields.cpp define every key, its range and its meaning. A RunConfig that comes from
// load_run_config (engine/config/load.h) is valid. resolve() (engine/config/resolve.h) turns it into the configuration
// that a run computes with.

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/data_format.h"
#include "engine/base/dtype.h"
#include "engine/base/expert_options.h"
#include "engine/base/mesh_axes.h"
#include "engine/base/modes.h"
#include "engine/base/sharding.h"
#include "engine/base/units.h"
#include "engine/base/update_options.h"

namespace slipstream {

enum class Backend : uint8_t { automatic, nccl, mpi, thread };
enum class EmulateForm : uint8_t { gate, copies, blocks };
enum class Quantize : uint8_t { none, int8 };
enum class DeviceChoice : uint8_t { automatic, cpu, cuda };
enum class Choice : uint8_t { automatic, no, yes };  // true | false | "auto"
enum class DTypeChoice : uint8_t { automatic, float32, bfloat16, int8 };

struct Model {
  Family family = Family::gpt2;
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t kv_heads = 0;  // after resolution: heads if it was 0
  int64_t width = 768;
  int64_t head_dim = 0;   // after resolution: width / heads, if heads divide the width
  int64_t ffn_width = 0;  // after resolution: 4 x width for gpt2, else 8/3 x width rounded up to a multiple of 256
  int64_t context = 1024;
  int64_t vocab_size = 0;                     // 0: from the tokenizer or the token shards
  Choice tie_embeddings = Choice::automatic;  // after resolution: yes for gpt2, no for the others
  double rope_theta = 10000;
  RopeScalingKind rope_scaling = RopeScalingKind::none;
  double rope_scaling_factor = 8;
  double rope_low_freq_factor = 1;
  double rope_high_freq_factor = 4;
  int64_t rope_original_context = 8192;
  int64_t sliding_window = 0;          // 0: none
  std::vector<int64_t> window_layers;  // the layers with the window; empty: all
  ExpertOptions experts;
  double norm_eps = 1e-5;
  double embd_pdrop = 0;
  double resid_pdrop = 0;
  double attn_pdrop = 0;
  std::string init;  // a Hugging Face folder; empty: random weights from train.seed

  auto operator<=>(const Model&) const = default;
};

struct Data {
  std::string train;
  std::string validation;  // empty: the last validation_fraction of train
  double validation_fraction = 0.1;
  DataFormat format = DataFormat::automatic;
  std::vector<DataFormat> formats;  // the formats of `sources`; empty: `format` for all
  std::string text_key = "text";    // for JSON lines
  std::string tokenizer = "bytes";
  std::vector<std::string> sources;  // the sources of a mixture, instead of `train`
  std::vector<double> weights;       // the weights of `sources`; empty: equal
  bool document_mask = false;

  auto operator<=>(const Data&) const = default;
};

struct Train {
  int64_t steps = 1000;
  int64_t sequence_length = 0;    // after resolution: model.context if it was 0
  int64_t micro_batch_size = 8;   // sequences per data rank
  int64_t global_batch_size = 0;  // sequences per step; 0: micro_batch_size x data ranks (resolve_batch)
  int64_t seed = 1337;
  DType dtype = DType::f32;
  int64_t eval_interval = 0;  // 0: only after the last step
  int64_t eval_batches = 0;   // 0: the whole validation split
  int64_t log_interval = 10;
  int64_t hash_interval = 0;
  Recomputation recompute = Recomputation::none;
  int64_t recompute_layers = 0;  // the first layers of each part of the model; 0: all
  int64_t head_tokens = 16384;   // the most tokens whose logits are in memory at once; 0: all of a micro-batch
  OnNan on_nan = OnNan::abort;
  int64_t max_skips = 10;
  double spike_zscore = 0;  // 0: no detection

  auto operator<=>(const Train&) const = default;
};

struct Optimizer : UpdateOptions {
  OptimizerName name = OptimizerName::adamw;
  double learning_rate = 6e-4;
  double min_learning_rate = 0;
  int64_t warmup_steps = 0;
  int64_t decay_steps = 0;  // after resolution: train.steps if it was 0
  RateSchedule schedule = RateSchedule::cosine;
  std::vector<std::string> multipliers;  // "PATTERN learning_rate=X weight_decay=Y"
  int64_t cooldown_steps = 0;            // for warmup_stable_decay; 0: a tenth of decay_steps
  Choice double_buffer =
      Choice::automatic;  // automatic: yes on cuda if two copies fit and the rehearsed step is shorter

  auto operator<=>(const Optimizer&) const = default;
};

struct Parallel {
  int64_t data = -1;  // -1: all ranks that the other axes leave (resolve_layout)
  int64_t tensor = 1;
  bool sequence_parallel = false;
  int64_t pipeline = 1;
  int64_t context = 1;
  int64_t expert = 1;  // of the data and context ranks: those that divide the experts
  ExpertExchange expert_exchange = ExpertExchange::automatic;
  std::string order = "tp-cp-pp-dp";

  auto operator<=>(const Parallel&) const = default;
};
/// The key of each axis, in the order of kMeshAxes.
inline constexpr std::array<int64_t Parallel::*, kMeshAxes.size()> kAxisKeys{&Parallel::data, &Parallel::tensor,
                                                                             &Parallel::pipeline, &Parallel::context};

struct Zero {
  int64_t stage = 0;
  int64_t prefetch_depth = 1;
  bool reshard_after_forward = true;
  int64_t persistence_threshold_bytes = 0;
  int64_t shard_size = 0;                             // ranks; 0: all data ranks
  DTypeChoice gather_dtype = DTypeChoice::automatic;  // after resolution: train.dtype

  Sharding sharding() const { return sharding_of_stage(stage); }
  auto operator<=>(const Zero&) const = default;
};

struct Overlap {
  ReduceMode grad_reduce = ReduceMode::bucketed;
  int64_t bucket_size_bytes = 25 * kMiB;  // 0: auto (trainer/planner/planner.h)
  int64_t first_bucket_size_bytes = 1 * kMiB;
  int64_t max_inflight_buckets = 0;  // 0: no bound
  bool param_gather = true;
  bool optimizer_per_bucket = true;
  bool p2p = true;
  int64_t tensor_chunks = 4;
  bool split_tied_embedding = true;
  bool align_grad_reduce = false;
  bool paired_passes = false;

  auto operator<=>(const Overlap&) const = default;
};

struct Pipeline {
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  int64_t virtual_stages = 1;
  std::vector<int64_t> layers;  // per part; empty: balanced by cost
  std::string schedule_file;

  auto operator<=>(const Pipeline&) const = default;
};

struct Emulate {
  int64_t bandwidth_bytes_per_second = 0;  // 0: no emulated link
  int64_t latency_ns = 0;
  EmulateForm form = EmulateForm::gate;
  int64_t blocks = 4;  // for the form "blocks"

  auto operator<=>(const Emulate&) const = default;
};

struct Comm {
  Backend backend = Backend::automatic;
  DTypeChoice grad_dtype = DTypeChoice::automatic;  // after resolution: bfloat16 for a bfloat16 model without int8
  Quantize quantize = Quantize::none;
  bool error_feedback = false;
  Choice deterministic = Choice::automatic;  // automatic: yes on cpu, no on NCCL
  int64_t timeout_seconds = 600;
  int64_t start_timeout_seconds = 1800;
  int64_t save_timeout_seconds = 1800;
  double straggler_threshold = 0.1;  // share of a step; 0: no report
  Emulate emulate;
  std::string nccl;  // the path of a table; empty: NCCL's own choices

  auto operator<=>(const Comm&) const = default;
};

struct DeviceConfig {
  DeviceChoice kind = DeviceChoice::automatic;
  int64_t threads = 0;               // 0: the cores in the affinity mask / the ranks that share it, at least 1
  std::string machine;               // the path of a machine file; empty: this host
  Choice graph = Choice::automatic;  // automatic: on cuda the rehearsal decides
  std::string algorithms = "auto";   // the path of a table; empty: none

  auto operator<=>(const DeviceConfig&) const = default;
};

struct Checkpoint {
  std::string dir;               // after resolution: output.dir/checkpoints if it was empty
  int64_t interval = 0;          // steps; 0: only after the last step
  int64_t interval_minutes = 0;  // 0: no limit
  int64_t keep = 2;
  bool async = true;
  int64_t bandwidth_bytes_per_second = 0;            // the rate of one rank's writer; 0: no limit
  int64_t peer_interval = 0;                         // steps between snapshots in a peer's memory; 0: none
  DTypeChoice final_dtype = DTypeChoice::automatic;  // the type of the final weights; automatic: that of model.init

  auto operator<=>(const Checkpoint&) const = default;
};

struct Trace {
  std::vector<int64_t> steps;  // empty, or {first, last}

  auto operator<=>(const Trace&) const = default;
};

struct Output {
  std::string dir = "runs/default";
  bool csv = false;
  bool tensorboard = false;
  int64_t prometheus_port = 0;

  auto operator<=>(const Output&) const = default;
};

struct RunConfig {
  Model model;
  Data data;
  Train train;
  Optimizer optimizer;
  Parallel parallel;
  Zero zero;
  Overlap overlap;
  Pipeline pipeline;
  Comm comm;
  DeviceConfig device;
  Checkpoint checkpoint;
  Trace trace;
  Output output;

  auto operator<=>(const RunConfig&) const = default;
};

/// The batch of one step, divided among the data ranks.
struct Batch {
  int64_t global_batch_size = 0;  // sequences of one step
  int64_t micro_batches = 0;      // the micro-batches that each data rank computes in one step
};

}  // namespace slipstream
