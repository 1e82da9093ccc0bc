// SPDX-License-Identifier: Apache-2.0
// One row per key of a run file: name, member, range or words, meaning. Defaults are the members' own (config.h).

#include "engine/config/fields.h"

namespace slipstream {
namespace {

using F = FieldKinds<RunConfig>;
using R = RunConfig;

constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxSteps = 1'000'000'000'000;  // sums and products of step counts stay far from the ends of int64
constexpr int64_t kMaxSizeBytes = 1024 * 1024 * kGiB;

std::vector<Field<R>> make_fields() {
  const auto& at = [](auto... members) { return F::at(members...); };
  const auto& size = detail::size_quantity();
  return {
      F::word("model.family", at(&R::model, &Model::family), {"gpt2", "llama"},
              "The kind of transformer: gpt2 (learned positions, LayerNorm, GELU) or llama (RoPE, RMSNorm, SwiGLU)."),
      F::integer("model.layers", at(&R::model, &Model::layers), {1, 65536}, "Transformer blocks."),
      F::integer("model.heads", at(&R::model, &Model::heads), {1, 65536}, "Attention heads; they divide model.width."),
      F::integer("model.kv_heads", at(&R::model, &Model::kv_heads), {0, 65536},
                 "Key and value heads; they divide model.heads. 0: as many as model.heads."),
      F::integer("model.width", at(&R::model, &Model::width), {1, 1 << 20}, "Elements of a token's hidden state."),
      F::integer("model.ffn_width", at(&R::model, &Model::ffn_width), {0, 1 << 24},
                 "Elements of the feed-forward hidden layer. 0: 4 x width for gpt2; 8/3 x width rounded up to a "
                 "multiple of 256 for llama."),
      F::integer("model.context", at(&R::model, &Model::context), {1, 1 << 24}, "The longest sequence in tokens."),
      F::integer("model.vocab_size", at(&R::model, &Model::vocab_size), {0, 1 << 24},
                 "Tokens of the model: rows of the embedding and of the head. 0: the vocabulary of the tokenizer or of "
                 "the token shards. Memory holds a multiple of 128 rows; the rows behind the last token stay zero, and "
                 "no loss, norm, count or file contains them."),
      F::choice("model.tie_embeddings", at(&R::model, &Model::tie_embeddings),
                "The output head is the embedding's matrix. auto: true for gpt2, false for llama."),
      F::real("model.rope_theta", at(&R::model, &Model::rope_theta), {1, 1e12},
              "llama: base of the rotary frequencies."),
      F::real("model.norm_eps", at(&R::model, &Model::norm_eps), {0, 1, true}, "Added to the variance in every norm."),
      F::text("model.init", at(&R::model, &Model::init),
              "A Hugging Face folder with the first weights. Empty: random weights from train.seed."),

      F::text("data.train", at(&R::data, &Data::train), "The training data: a text file or token shards."),
      F::text("data.validation", at(&R::data, &Data::validation),
              "The validation data. Empty: the last data.validation_fraction of the training data."),
      F::real("data.validation_fraction", at(&R::data, &Data::validation_fraction), {0, 1, true, true},
              "The share of the training data that is held out when data.validation is empty."),
      F::text("data.tokenizer", at(&R::data, &Data::tokenizer),
              "Of a text: bytes (256 tokens) or chars (its sorted characters). Token shards bring their own."),

      F::integer("train.steps", at(&R::train, &Train::steps), {1, kMaxSteps}, "Optimizer steps; the first is step 1."),
      F::integer("train.sequence_length", at(&R::train, &Train::sequence_length), {0, 1 << 24},
                 "Tokens of a training sequence. 0: model.context."),
      F::integer("train.micro_batch_size", at(&R::train, &Train::micro_batch_size), {1, 1 << 24},
                 "Sequences that one data rank computes at a time."),
      F::integer("train.global_batch_size", at(&R::train, &Train::global_batch_size), {0, 1 << 30},
                 "Sequences of one step over all ranks, a multiple of micro_batch_size x data ranks. 0: exactly that."),
      F::integer("train.seed", at(&R::train, &Train::seed), {0, kMaxInt},
                 "Names the random numbers of the weights and of the order of the samples."),
      F::dtype("train.dtype", at(&R::train, &Train::dtype),
               "Storage of weights and activations in compute; master weights and sums are float32."),
      F::integer("train.eval_interval", at(&R::train, &Train::eval_interval), {0, kMaxSteps},
                 "Steps between validations; the last step is always validated. 0: only the last."),
      F::integer("train.eval_batches", at(&R::train, &Train::eval_batches), {0, kMaxSteps},
                 "Global batches of one validation. 0: the whole split."),
      F::integer("train.log_interval", at(&R::train, &Train::log_interval), {1, kMaxSteps},
                 "Steps between lines on the terminal; metrics.jsonl has every step."),
      F::integer("train.hash_interval", at(&R::train, &Train::hash_interval), {0, kMaxSteps},
                 "Steps between hashes of all parameters. 0: at validations and at the last step."),
      F::word("train.recompute", at(&R::train, &Train::recompute), {"none", "selective", "full"},
              "What backward computes again instead of keeping: nothing, outputs of norms and of SwiGLU, or all but "
              "each layer's input."),

      F::word("optimizer.name", at(&R::optimizer, &Optimizer::name), {"adamw"}, "The update rule."),
      F::real("optimizer.learning_rate", at(&R::optimizer, &Optimizer::learning_rate), {0, 1e3},
              "Learning rate at the end of the warm-up."),
      F::real("optimizer.min_learning_rate", at(&R::optimizer, &Optimizer::min_learning_rate), {0, 1e3},
              "Learning rate at the end of the cosine decay and after it."),
      F::integer("optimizer.warmup_steps", at(&R::optimizer, &Optimizer::warmup_steps), {0, kMaxSteps},
                 "Steps of linear warm-up from 0."),
      F::integer("optimizer.decay_steps", at(&R::optimizer, &Optimizer::decay_steps), {0, kMaxSteps},
                 "The step at which the cosine decay ends. 0: train.steps."),
      F::real("optimizer.beta1", at(&R::optimizer, &Optimizer::beta1), {0, 1, false, true},
              "Decay of the first moment."),
      F::real("optimizer.beta2", at(&R::optimizer, &Optimizer::beta2), {0, 1, false, true},
              "Decay of the second moment."),
      F::real("optimizer.eps", at(&R::optimizer, &Optimizer::eps), {0, 1, true},
              "Added to the root of the second moment."),
      F::real("optimizer.weight_decay", at(&R::optimizer, &Optimizer::weight_decay), {0, 1e3},
              "Decoupled decay of tensors of rank 2 and more."),
      F::real("optimizer.grad_clip", at(&R::optimizer, &Optimizer::grad_clip), {0, 1e9},
              "Gradients are scaled so that their norm is at most this. 0: no clipping."),
      F::choice("optimizer.double_buffer", at(&R::optimizer, &Optimizer::double_buffer),
                "Two copies of the weights that change places: the update runs beside compute and need not wait for "
                "readers. auto: on a GPU, if "
                "they fit and the step rehearses faster; plan prints what they gain and take."),

      F::integer("parallel.data", at(&R::parallel, &Parallel::data), {-1, 1 << 24},
                 "Data ranks. -1: all ranks that the other axes leave."),
      F::integer("parallel.tensor", at(&R::parallel, &Parallel::tensor), {1, 65536}, "Ranks that share each matrix."),
      F::boolean("parallel.sequence_parallel", at(&R::parallel, &Parallel::sequence_parallel),
                 "Tensor ranks share the tokens of norms and residuals."),
      F::integer("parallel.pipeline", at(&R::parallel, &Parallel::pipeline), {1, 65536}, "Pipeline stages."),
      F::integer("parallel.context", at(&R::parallel, &Parallel::context), {1, 65536},
                 "Ranks that share the tokens of a sequence."),
      F::text("parallel.order", at(&R::parallel, &Parallel::order),
              "Any order of the axes tp, cp, pp and dp in rank numbers, the fastest first. Ranks are numbered node by "
              "node: what comes first "
              "stays inside a node."),

      F::integer("zero.stage", at(&R::zero, &Zero::stage), {0, 3},
                 "What data ranks share out: 1 optimizer states, 2 and gradients, 3 and parameters. 0: nothing. A "
                 "table that embedding and head share is always in use: "
                 "2 and 3 share out its optimizer states."),
      F::integer("zero.prefetch_depth", at(&R::zero, &Zero::prefetch_depth), {0, 65536},
                 "Layers whose parameters are gathered ahead of use."),
      F::boolean("zero.reshard_after_forward", at(&R::zero, &Zero::reshard_after_forward),
                 "Stage 3 drops gathered parameters after forward and gathers them again for backward."),
      F::quantity(
          "zero.persistence_threshold", at(&R::zero, &Zero::persistence_threshold_bytes), size, {0, kMaxSizeBytes},
          "Stage 3 keeps parameters of layers up to this size whole on every rank, gathered once after the update."),
      F::integer("zero.shard_size", at(&R::zero, &Zero::shard_size), {0, 1 << 24},
                 "Hybrid sharding: ranks that share; across such groups states are replicated. 0: all data ranks."),
      F::word("zero.gather_dtype", at(&R::zero, &Zero::gather_dtype), {"auto", "float32", "bfloat16", "int8"},
              "Sharded parameters on the wire; every rank, the owner too, computes with what was sent. auto: "
              "train.dtype; int8: in blocks of 128 with a "
              "scale each."),

      F::word(
          "overlap.grad_reduce", at(&R::overlap, &Overlap::grad_reduce), {"bucketed", "per_parameter", "flat", "naive"},
          "How gradients are reduced: bucketed (asynchronous, per bucket), per_parameter (asynchronous, one by one), "
          "flat (once, after backward) or naive (one by one, after backward)."),
      F::quantity(
          "overlap.bucket_size", at(&R::overlap, &Overlap::bucket_size_bytes), size, {1, kMaxSizeBytes},
          "Gradient bytes that fill a bucket. It closes with the parameter that fills it, so that it may have more, by "
          "less than that parameter; towards the end of the backward pass what comes nearest to a quarter of what is "
          "left fills it, and with zero.stage = 1 a fortieth of all, both down to first_bucket_size. With zero.stage 2 "
          "and 3 a layer is one bucket, whatever its size. Pipelines with zero.stage = 0 and float32 on the wire have "
          "buckets only where another stage waits: what is encoded and what is sharded is bucketed on every stage."),
      F::quantity("overlap.first_bucket_size", at(&R::overlap, &Overlap::first_bucket_size_bytes), size,
                  {1, kMaxSizeBytes},
                  "Gradient bytes that fill the first bucket, which starts the wire early, and the last one, which "
                  "nothing hides; never more than bucket_size."),
      F::integer("overlap.max_inflight_buckets", at(&R::overlap, &Overlap::max_inflight_buckets), {0, 1 << 24},
                 "Buckets on the wire at a time, at most. 0: no bound. Channels are in order, so it is one, with "
                 "zero.shard_size two."),
      F::boolean("overlap.param_gather", at(&R::overlap, &Overlap::param_gather),
                 "ZeRO gathers parameters under compute; false: only when compute needs them, to see what hiding them "
                 "is worth."),
      F::boolean(
          "overlap.optimizer_per_bucket", at(&R::overlap, &Overlap::optimizer_per_bucket),
          "Each bucket is updated as soon as its gradients (and the clip factor) are known; else all at the end, as is "
          "done in any case behind a clip factor where nothing is gathered then."),
      F::boolean("overlap.p2p", at(&R::overlap, &Overlap::p2p),
                 "1f1b and zb_h1 keep one more micro-batch alive per stage behind where sends take long enough to be "
                 "worth hiding."),
      F::integer("overlap.tensor_chunks", at(&R::overlap, &Overlap::tensor_chunks), {1, 1024},
                 "Token chunks of tensor parallelism: one travels under the product of the next."),
      F::boolean("overlap.split_tied_embedding", at(&R::overlap, &Overlap::split_tied_embedding),
                 "The head's part of a tied embedding's gradient is reduced early, apart from the embedding's part."),
      F::boolean("overlap.align_grad_reduce", at(&R::overlap, &Overlap::align_grad_reduce),
                 "Pipelines: no stage reduces gradients before all of them can, so that what communication takes from "
                 "compute is taken from all at once."),

      F::word("pipeline.schedule", at(&R::pipeline, &Pipeline::schedule),
              {"gpipe", "1f1b", "interleaved_1f1b", "zb_h1"},
              "Order of micro-batches in the stages; beside a schedule_file it is refused. With one stage no key of "
              "this table has an effect."),
      F::integer("pipeline.virtual_stages", at(&R::pipeline, &Pipeline::virtual_stages), {1, 65536},
                 "Pieces of the model per stage (interleaved_1f1b, or a schedule_file). Layers divide by pipeline x "
                 "virtual_stages, "
                 "or layers says how many each has."),
      F::integers(
          "pipeline.layers", at(&R::pipeline, &Pipeline::layers), {0, 65536},
          "Blocks of each part of the model, in order. Empty: balanced by modelled cost, embedding and head counted."),
      F::text("pipeline.schedule_file", at(&R::pipeline, &Pipeline::schedule_file),
              "A schedule of one's own, as plan --schedule-csv writes it. Empty: pipeline.schedule."),

      F::word("comm.backend", at(&R::comm, &Comm::backend), {"auto", "nccl", "mpi", "thread"},
              "What carries the bytes. auto: nccl on cuda, else mpi."),
      F::dtype("comm.grad_dtype", at(&R::comm, &Comm::grad_dtype),
               "Gradients on the wire. Sums are float32 or wider; with NCCL those of bfloat16 over ranks that all get "
               "the whole (zero.stage 0, groups of "
               "zero.shard_size among each other) round as NCCL does, unless comm.deterministic = true."),
      F::word("comm.quantize", at(&R::comm, &Comm::quantize), {"none", "int8"},
              "Compression of gradients on the wire: int8 in blocks of 128 with a scale each, summed in float32 in "
              "rank order. ZeRO's parameters: "
              "zero.gather_dtype."),
      F::boolean("comm.error_feedback", at(&R::comm, &Comm::error_feedback),
                 "comm.quantize: what rounding takes from a gradient is added to the next one; 4 bytes per parameter "
                 "on every rank."),
      F::choice("comm.deterministic", at(&R::comm, &Comm::deterministic),
                "cpu: always, sums in rank order, the same bits for every way of reducing. NCCL: true pins algorithm "
                "and protocol, which gives the same bits run "
                "after run, and adds bfloat16 in float32 and rank order; auto is false."),
      F::integer("comm.timeout_seconds", at(&R::comm, &Comm::timeout_seconds), {1, 1'000'000'000},
                 "On hosts a transfer that moves nothing for so long, on GPUs a wait of the host that takes longer, "
                 "and an exchange of ranks between steps that does, ends the run with exit code 6."),
      F::text("comm.nccl", at(&R::comm, &Comm::nccl),
              "JSON table of blocks, clusters, traffic class, algorithm and protocol by channel (docs/how-to/gpu.md). "
              "Empty: NCCL's choices."),
      F::quantity("comm.emulate.bandwidth", at(&R::comm, &Comm::emulate, &Emulate::bandwidth_bytes_per_second),
                  detail::optional_rate_quantity(), {1, int64_t{1} << 50},
                  "Every rank sends through an emulated port of this rate. Empty: no emulated link."),
      F::quantity("comm.emulate.latency", at(&R::comm, &Comm::emulate, &Emulate::latency_ns),
                  detail::duration_quantity(), {0, 60 * kSecond},
                  "Latency of one hop of the emulated link; without a bandwidth it has no effect."),
      F::word("comm.emulate.form", at(&R::comm, &Comm::emulate, &Emulate::form), {"gate", "copies", "blocks"},
              "What a busy emulated link takes of the device. gate: nothing; copies: memory bandwidth, by copies out "
              "and in (cuda); blocks: "
              "multiprocessors, held as a collective's kernel does (cuda)."),
      F::integer("comm.emulate.blocks", at(&R::comm, &Comm::emulate, &Emulate::blocks), {1, 1024},
                 "comm.emulate.form = \"blocks\": how many, each a multiprocessor."),

      F::word("device.kind", at(&R::device, &DeviceConfig::kind), {"auto", "cpu", "cuda"},
              "Where the mathematics runs. auto: cuda where this build and this machine have it."),
      F::integer(
          "device.threads", at(&R::device, &DeviceConfig::threads), {0, 4096},
          "cpu: threads of the compute stream. 0: cores of the affinity mask / ranks that share it, at least 1."),
      F::text("device.machine", at(&R::device, &DeviceConfig::machine),
              "Machine file for predictions, such as configs/machines/h100x8.toml. Empty: this host; a run takes its "
              "nodes from "
              "the ranks that were started on each."),
      F::choice("device.graph", at(&R::device, &DeviceConfig::graph),
                "cuda: record a whole step as a CUDA graph and replay it with one launch; a graph is a barrier behind "
                "each step. auto: unless the barrier "
                "is rehearsed to cost more than launching a step task by task; plan says."),
      F::text("device.algorithms", at(&R::device, &DeviceConfig::algorithms),
              "cuda: table of timed cuBLASLt algorithms, made by slipstream bench products. auto: of this card, in "
              "~/.cache/slipstream. Empty: none."),

      F::text("checkpoint.dir", at(&R::checkpoint, &Checkpoint::dir),
              "Where weights go. Empty: output.dir/checkpoints."),
      F::integer("checkpoint.interval", at(&R::checkpoint, &Checkpoint::interval), {0, kMaxSteps},
                 "Steps between checkpoints. 0: only the final weights."),
      F::integer("checkpoint.keep", at(&R::checkpoint, &Checkpoint::keep), {1, 1 << 24}, "Checkpoints that are kept."),
      F::boolean("checkpoint.async", at(&R::checkpoint, &Checkpoint::async),
                 "Checkpoints are written while training goes on."),

      F::integers("trace.steps", at(&R::trace, &Trace::steps), {1, kMaxSteps},
                  "The first and the last step of the timeline, such as [10, 12]. Empty: no timeline."),

      F::text("output.dir", at(&R::output, &Output::dir), "The run's folder."),
  };
}

}  // namespace

const std::vector<Field<RunConfig>>& run_fields() {
  static const std::vector<Field<RunConfig>> fields = make_fields();
  return fields;
}

}  // namespace slipstream
