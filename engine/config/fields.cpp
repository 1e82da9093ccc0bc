// SPDX-License-Identifier: Apache-2.0
// One row per key of a run file: name, member, range or words, and meaning. config.h holds the defaults.

#include "engine/config/fields.h"

namespace slipstream {
namespace {

using F = FieldKinds<RunConfig>;
using R = RunConfig;

constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr int64_t kMaxSteps = 1'000'000'000'000;  // sums and products of step counts fit in int64
constexpr int64_t kMaxSizeBytes = 1024 * 1024 * kGiB;

/// The words of data.format, in the order of DataFormat.
detail::Words data_formats() {
  return {"auto", "slipstream", "llm.c", "nanogpt", "nanogpt-uint32", "megatron", "jsonl", "text"};
}

constexpr auto at = [](auto... members) { return F::at(members...); };

std::vector<Field<R>> model_fields() {
  return {
      F::mode(
          "model.family", at(&R::model, &Model::family),
          "Model architecture: gpt2 (learned positions, LayerNorm, GELU), llama (RoPE, RMSNorm, SwiGLU), or a variant "
          "of llama: mistral, qwen2 (biases of queries, keys and values), qwen3 (norms of query and key heads), and "
          "mixtral (mistral) and qwen3_moe (qwen3) with the experts of [model.experts]."),
      F::integer("model.layers", at(&R::model, &Model::layers), {1, 65536}, "Number of transformer blocks."),
      F::integer("model.heads", at(&R::model, &Model::heads), {1, 65536},
                 "Number of attention heads. Must divide model.width if model.head_dim = 0."),
      F::integer("model.kv_heads", at(&R::model, &Model::kv_heads), {0, 65536},
                 "Number of key and value heads. Must divide model.heads. 0: model.heads."),
      F::integer("model.head_dim", at(&R::model, &Model::head_dim), {0, kHeadDimMost},
                 "Elements of a head. 0: model.width / model.heads, the only value for gpt2."),
      F::integer("model.width", at(&R::model, &Model::width), {1, 1 << 20}, "Elements of a token's hidden state."),
      F::integer("model.ffn_width", at(&R::model, &Model::ffn_width), {0, 1 << 24},
                 "Elements of the feed-forward hidden layer. 0: 4 x width for gpt2; 8/3 x width rounded up to a "
                 "multiple of 256 for the others."),
      F::integer("model.context", at(&R::model, &Model::context), {1, 1 << 24}, "Longest sequence, in tokens."),
      F::integer("model.vocab_size", at(&R::model, &Model::vocab_size), {0, 1 << 24},
                 "Vocabulary size, in tokens: rows of the embedding and of the head. 0: the vocabulary of the "
                 "tokenizer or of the token shards. Memory holds a multiple of 128 rows. The added rows stay zero; "
                 "losses, norms, counts and files exclude them."),
      F::choice("model.tie_embeddings", at(&R::model, &Model::tie_embeddings),
                "Use the embedding matrix as the output head. auto: true for gpt2, false for the others."),
      F::real("model.rope_theta", at(&R::model, &Model::rope_theta), in_float32({1, 1e12}),
              "Base of the rotary frequencies. Not for gpt2."),
      F::mode("model.rope_scaling", at(&R::model, &Model::rope_scaling),
              "Change of the rotary frequencies for long sequences: none, or llama3. With llama3, waves longer than "
              "rope_original_context / rope_low_freq_factor are stretched by rope_scaling_factor, waves shorter than "
              "rope_original_context / rope_high_freq_factor stay, and those between are interpolated."),
      F::real("model.rope_scaling_factor", at(&R::model, &Model::rope_scaling_factor), in_float32({1, 1e6}),
              "Factor by which rope_scaling stretches long waves."),
      F::real("model.rope_low_freq_factor", at(&R::model, &Model::rope_low_freq_factor), in_float32({0, 1e6, true}),
              "Limit of long waves; see model.rope_scaling."),
      F::real("model.rope_high_freq_factor", at(&R::model, &Model::rope_high_freq_factor), in_float32({0, 1e6, true}),
              "Limit of short waves; see model.rope_scaling. Must be above rope_low_freq_factor."),
      F::integer("model.rope_original_context", at(&R::model, &Model::rope_original_context), {1, 1 << 24},
                 "Longest sequence of the pretraining without rope_scaling, in tokens."),
      F::integer(
          "model.sliding_window", at(&R::model, &Model::sliding_window), {0, 1 << 24},
          "Number of tokens that a token attends to, including itself. 0: all tokens before it. Not for gpt2 and "
          "llama."),
      F::integers("model.window_layers", at(&R::model, &Model::window_layers), {0, 65535},
                  "Numbers of the layers that use sliding_window, from 0 and ascending. The other layers attend to all "
                  "earlier tokens. Empty: all layers use it. For mistral, qwen2 and qwen3."),
      F::real("model.norm_eps", at(&R::model, &Model::norm_eps), in_float32({0, 1, true}),
              "Constant added to the variance in every norm."),
      F::real(
          "model.embd_pdrop", at(&R::model, &Model::embd_pdrop), {0, 1, false, true},
          "Probability in training that an element of the embedded tokens becomes zero. The others are divided by 1 "
          "- embd_pdrop. Masks depend on train.seed, the step and the sequence, not on the layout. Validation has "
          "none."),
      F::real("model.resid_pdrop", at(&R::model, &Model::resid_pdrop), {0, 1, false, true},
              "The same as embd_pdrop for the outputs of attention and of the feed-forward network before they are "
              "added to the hidden state."),
      F::real("model.attn_pdrop", at(&R::model, &Model::attn_pdrop), {0, 1, false, true},
              "The same as embd_pdrop for attention probabilities."),
      F::text(
          "model.init", at(&R::model, &Model::init),
          "Hugging Face folder, run folder or checkpoint with the initial weights. It decides the keys of this table "
          "that the run file lacks; keys that the run file has must describe its model. Rows that its vocabulary lacks "
          "become the mean of its rows. A run that resumes does not read it. Empty: random weights from train.seed."),
  };
}

std::vector<Field<R>> expert_fields() {
  constexpr int64_t kMostExperts = 65536, kMostGroups = 32;  // as many groups as kernels/experts/route.h
  const auto of = [](auto member) { return at(&R::model, &Model::experts, member); };
  using E = ExpertOptions;
  return {
      F::integer("model.experts.count", of(&E::count), {0, kMostExperts},
                 "Number of experts of a layer. A router sends each token to top_k of them. 0: the model has no "
                 "experts. mixtral and qwen3_moe need experts, and no other family has them."),
      F::integer("model.experts.top_k", of(&E::top_k), {1, kMostExperts},
                 "Number of experts that compute each token. At most count."),
      F::integer("model.experts.shared", of(&E::shared), {0, kMostExperts},
                 "Number of further experts that compute every token. They are one SwiGLU network of width shared x "
                 "ffn_width. mixtral has none."),
      F::integer("model.experts.ffn_width", of(&E::ffn_width), {0, 1 << 24},
                 "Elements of an expert's hidden layer. 0: model.ffn_width, the only value for mixtral."),
      F::integers("model.experts.layers", of(&E::layers), {0, 65535},
                  "Numbers of the layers that have experts, from 0 and ascending. The other layers have a feed-forward "
                  "network of model.ffn_width. Empty: all layers have experts, as always in mixtral."),
      F::mode("model.experts.router", of(&E::router),
              "Function that turns the router's logits into scores, from which the experts of a token are chosen and "
              "their outputs are weighted: softmax over all experts, or the sigmoid of each logit. mixtral has "
              "softmax."),
      F::integer("model.experts.groups", of(&E::groups), {1, kMostGroups},
                 "Number of equal groups of consecutive experts. A token chooses experts only in its best group_top_k "
                 "groups. The score of a group is the sum of its two best scores. Must divide count. Needs router = "
                 "\"sigmoid\"."),
      F::integer("model.experts.group_top_k", of(&E::group_top_k), {1, kMostExperts},
                 "Number of groups in which a token chooses experts. At most groups."),
      F::boolean("model.experts.normalize", of(&E::normalize),
                 "Divide the scores of a token's experts by their sum, so that the weights of the outputs add up to "
                 "scale. mixtral always does."),
      F::real("model.experts.scale", of(&E::scale), in_float32({0, 1e6, true}),
              "Factor of the weights of the experts' outputs. 1 for mixtral."),
      F::mode(
          "model.experts.balance", of(&E::balance),
          "Method that keeps the loads of experts equal: none, auxiliary (a loss for each sequence and layer: count "
          "x the sum over the experts of their share of the choices x their mean score) or bias (a number for each "
          "expert that is added to its score for the choice only and moves against its load after every step)."),
      F::real("model.experts.balance_rate", of(&E::balance_rate), in_float32({0, 1}),
              "Factor of the auxiliary loss, or the step of a bias."),
      F::real("model.experts.z_loss", of(&E::z_loss), in_float32({0, 1}),
              "Factor of another loss, which keeps logits of the router small: the mean over the tokens of the squared "
              "logarithm of the sum of the exponentials of a token's logits."),
      F::real("model.experts.capacity_factor", of(&E::capacity_factor), {1, kMostExperts},
              "Rows that a rank keeps for its experts of a layer, relative to equal loads of all ranks that share the "
              "experts. A row is one token of one expert. Schedules that delay gradients of weights keep the most rows "
              "that can arrive."),
      F::mode("model.experts.capacity", of(&E::capacity),
              "Reaction to more rows than capacity_factor allows. repeat: the exchange of rows is repeated in further "
              "rounds, through memory that all layers share, and no row is dropped. drop: the rows with the smallest "
              "weights are dropped and counted."),
  };
}

std::vector<Field<R>> data_fields() {
  return {
      F::text("data.train", at(&R::data, &Data::train),
              "Path of the training data, or - for standard input of a run of one rank. A pattern with * or ? names "
              "several files, read in the order of their names; every text among them is a document. Gzip and "
              "Zstandard files are unpacked."),
      F::texts("data.sources", at(&R::data, &Data::sources),
               "Paths of the sources of a mixture, as in data.train, which must be empty. Every source has a "
               "permutation of its own, and data.validation_fraction of each source is held out."),
      F::reals("data.weights", at(&R::data, &Data::weights), {0, 1e6},
               "Shares of the sources in the samples, with at most 6 digits after the decimal point. The smallest "
               "whole numbers with these ratios must add up to at most 1048576. After any number of samples a source "
               "has less than 1 more or fewer than its share. Empty: equal shares."),
      F::text("data.validation", at(&R::data, &Data::validation),
              "Path of the validation data. Empty: the last data.validation_fraction of the training data."),
      F::real("data.validation_fraction", at(&R::data, &Data::validation_fraction), {0, 1, true, true},
              "Fraction of the training data held out for validation when data.validation is empty."),
      F::word("data.format", at(&R::data, &Data::format), data_formats(),
              "Format of the data: token files of slipstream tokenize, llm.c, nanoGPT (ids of 2 bytes, or of 4 with "
              "nanogpt-uint32) or Megatron-LM, JSON lines with a document in data.text_key, or text. auto: by the "
              "name, the "
              "files beside it and the first bytes of every path. Text is then UTF-8 without NUL, and JSON if it "
              "begins with "
              "{ and a quote; text by name takes any bytes. nanoGPT files must be named. They and those of Megatron-LM "
              "need "
              "model.vocab_size or a tokenizer file."),
      F::words("data.formats", at(&R::data, &Data::formats), data_formats(),
               "Formats of data.sources, one for each, as in data.format. Empty: data.format for all."),
      F::text(
          "data.text_key", at(&R::data, &Data::text_key),
          "Key of the document in a JSON line. A line without it is skipped and counted, at most 1 % of the lines."),
      F::boolean("data.document_mask", at(&R::data, &Data::document_mask),
                 "Keep attention inside each document of a packed sequence, and count positions from the beginning of "
                 "the document. The last token of a document still predicts the first of the next. Documents come from "
                 "the index of the data. Without one they end with the end-of-text token; those of llm.c files begin "
                 "with it, or with the begin-of-text token of Llama 3."),
      F::text("data.tokenizer", at(&R::data, &Data::tokenizer),
              "Tokenizer of texts: bytes (256 tokens), chars (its sorted characters), or the path of a Hugging Face "
              "folder, of its tokenizer.json (the files beside it name more tokens), or of a tiktoken file "
              "NAME.tiktoken. Token shards bring their own."),
  };
}

std::vector<Field<R>> train_fields() {
  return {
      F::integer("train.steps", at(&R::train, &Train::steps), {1, kMaxSteps},
                 "Number of optimizer steps. The first is step 1."),
      F::integer("train.sequence_length", at(&R::train, &Train::sequence_length), {0, 1 << 24},
                 "Length of a training sequence, in tokens. 0: model.context."),
      F::integer("train.micro_batch_size", at(&R::train, &Train::micro_batch_size), {1, 1 << 24},
                 "Sequences that one data rank computes at a time."),
      F::integer(
          "train.global_batch_size", at(&R::train, &Train::global_batch_size), {0, 1 << 30},
          "Sequences per step over all ranks. Must be a multiple of micro_batch_size x data ranks. 0: that product."),
      F::integer("train.seed", at(&R::train, &Train::seed), {0, kMaxInt},
                 "Seed of the random initial weights, of the sample order and of the masks of dropout."),
      F::dtype("train.dtype", at(&R::train, &Train::dtype),
               "Storage type of weights and activations in compute. Master weights and sums are float32."),
      F::integer("train.eval_interval", at(&R::train, &Train::eval_interval), {0, kMaxSteps},
                 "Steps between validations. The last step is always validated. 0: only the last step."),
      F::integer("train.eval_batches", at(&R::train, &Train::eval_batches), {0, kMaxSteps},
                 "Number of global batches per validation. 0: the whole validation split."),
      F::integer("train.log_interval", at(&R::train, &Train::log_interval), {1, kMaxSteps},
                 "Steps between printed step lines. metrics.jsonl has every step."),
      F::integer("train.hash_interval", at(&R::train, &Train::hash_interval), {0, kMaxSteps},
                 "Steps between hashes of all parameters. 0: at validations and at the last step."),
      F::mode("train.recompute", at(&R::train, &Train::recompute),
              "Activations that the backward pass recomputes instead of keeping: none, selective (outputs of norms and "
              "of SwiGLU) or full (everything but each layer's input)."),
      F::integer("train.recompute_layers", at(&R::train, &Train::recompute_layers), {0, kMaxInt},
                 "Layers that recompute: the first ones of each pipeline stage, or of each part of it with "
                 "pipeline.virtual_stages. 0: all."),
      F::integer(
          "train.head_tokens", at(&R::train, &Train::head_tokens), {0, kMaxInt},
          "Largest number of tokens of a micro-batch whose logits are in memory at once: the head computes the logits, "
          "the losses and all gradients of some tokens, then those of the next. 0: the whole micro-batch. It has no "
          "effect with parallel.tensor > 1 and with schedules that delay gradients of weights, such as zb_h1."),
      F::mode("train.on_nan", at(&R::train, &Train::on_nan),
              "Reaction to a loss or a gradient norm that is NaN or infinite. abort: the run ends with exit code 5. "
              "skip: in that step the device leaves weights and optimizer states unchanged, on all ranks; the step "
              "still counts for the learning rate and the bias correction. rollback: the run goes back to its newest "
              "checkpoint and leaves out the batches from there to the failure. With skip, every step computes the "
              "gradient norm, also with optimizer.grad_clip = 0."),
      F::integer("train.max_skips", at(&R::train, &Train::max_skips), {0, kMaxSteps},
                 "Largest number of consecutive updates that train.on_nan = \"skip\" leaves out, and of returns to one "
                 "checkpoint with \"rollback\". One more ends the run with exit code 5."),
      F::real("train.spike_zscore", at(&R::train, &Train::spike_zscore), {0, 1e6},
              "Standard deviations by which a loss or a gradient norm may exceed its mean over 128 earlier steps. A "
              "larger value prints a warning. With train.on_nan = \"skip\" the update is also skipped, with "
              "\"rollback\" the run goes back to its newest checkpoint. The 128 steps end four steps earlier, so that "
              "the host never waits, and need 64 finite values. 0: no limit."),
  };
}

std::vector<Field<R>> optimizer_fields() {
  return {
      F::mode("optimizer.name", at(&R::optimizer, &Optimizer::name),
              "Update rule. muon orthogonalizes the momentum of the weight matrices in the blocks. A matrix is one "
              "tensor of a Hugging Face file. AdamW updates all other parameters."),
      F::real("optimizer.learning_rate", at(&R::optimizer, &Optimizer::learning_rate), in_float32({0, 1e3}),
              "Learning rate at the end of the warm-up."),
      F::real("optimizer.min_learning_rate", at(&R::optimizer, &Optimizer::min_learning_rate), in_float32({0, 1e3}),
              "Learning rate from the end of the decay on. At most learning_rate."),
      F::real(
          "optimizer.adamw_learning_rate", at(&R::optimizer, &Optimizer::adamw_learning_rate), in_float32({0, 1e3}),
          "Learning rate of the parameters that muon leaves to AdamW: embedding, head, norms and biases. It follows "
          "the schedule of learning_rate. 0: learning_rate."),
      F::texts(
          "optimizer.multipliers", at(&R::optimizer, &Optimizer::multipliers),
          "Multipliers of learning_rate and weight_decay for tensors by their Hugging Face names, such as "
          "[\"*.bias learning_rate=2\", \"*embed* learning_rate=0.1 weight_decay=0\"]. * matches any characters, ? "
          "one. The first row whose pattern matches a tensor holds. Without weight_decay=, matrices decay and "
          "norms and biases do not. Matrices that muon updates take no multipliers."),
      F::integer("optimizer.warmup_steps", at(&R::optimizer, &Optimizer::warmup_steps), {0, kMaxSteps},
                 "Steps of linear warm-up from 0."),
      F::integer("optimizer.decay_steps", at(&R::optimizer, &Optimizer::decay_steps), {0, kMaxSteps},
                 "Step at which the decay ends. 0: train.steps."),
      F::mode(
          "optimizer.schedule", at(&R::optimizer, &Optimizer::schedule),
          "Learning rate after the warm-up: cosine or linear (from learning_rate to min_learning_rate at decay_steps), "
          "warmup_stable_decay (learning_rate, then linear over the last cooldown_steps) or constant."),
      F::integer(
          "optimizer.cooldown_steps", at(&R::optimizer, &Optimizer::cooldown_steps), {0, kMaxSteps},
          "Steps of the decay of warmup_stable_decay, up to decay_steps. At most decay_steps - warmup_steps. 0: a "
          "tenth of decay_steps."),
      F::real("optimizer.beta1", at(&R::optimizer, &Optimizer::beta1), in_float32({0, 1, false, true}),
              "Decay of the first moment."),
      F::real("optimizer.beta2", at(&R::optimizer, &Optimizer::beta2), in_float32({0, 1, false, true}),
              "Decay of the second moment."),
      F::real("optimizer.eps", at(&R::optimizer, &Optimizer::eps), in_float32({0, 1, true}),
              "Constant added to the square root of the second moment."),
      F::real("optimizer.weight_decay", at(&R::optimizer, &Optimizer::weight_decay), in_float32({0, 1e3}),
              "Decoupled weight decay of tensors with two or more dimensions."),
      F::real("optimizer.grad_clip", at(&R::optimizer, &Optimizer::grad_clip), in_float32({0, 1e9}),
              "Largest norm of all gradients. Larger gradients are scaled down to it. 0: no clipping."),
      F::real("optimizer.momentum", at(&R::optimizer, &Optimizer::momentum), in_float32({0, 1, false, true}),
              "Decay rate of muon's Nesterov momentum."),
      F::mode("optimizer.muon_scaling", at(&R::optimizer, &Optimizer::muon_scaling),
              "Factor on muon's learning rate for a matrix of rows x cols. Rows are its outputs and cols its inputs, "
              "as in torch.nn.Linear; files of GPT-2 hold transposes. match_rms_adamw: 0.2 max(rows, cols)^0.5, which "
              "makes steps as large as AdamW's, so that a learning rate of AdamW can be kept. original: max(1, rows / "
              "cols)^0.5, as in Jordan 2024."),
      F::choice("optimizer.double_buffer", at(&R::optimizer, &Optimizer::double_buffer),
                "Keep two copies of the weights and swap them after each update. The update then runs while compute "
                "runs, without waiting for the readers of the old copy. auto: true on a GPU if both copies fit and the "
                "rehearsed step is faster. plan prints the gain and the memory."),
  };
}

std::vector<Field<R>> parallel_fields() {
  return {
      F::integer("parallel.data", at(&R::parallel, &Parallel::data), {-1, 1 << 24},
                 "Number of data ranks. -1: all ranks that the other axes leave."),
      F::integer("parallel.tensor", at(&R::parallel, &Parallel::tensor), {1, 65536},
                 "Ranks that share each matrix (tensor parallelism)."),
      F::boolean("parallel.sequence_parallel", at(&R::parallel, &Parallel::sequence_parallel),
                 "Divide the tokens of norms and residuals among the tensor ranks."),
      F::integer("parallel.pipeline", at(&R::parallel, &Parallel::pipeline), {1, 65536}, "Number of pipeline stages."),
      F::integer("parallel.context", at(&R::parallel, &Parallel::context), {1, 65536},
                 "Ranks that share the tokens of a sequence (context parallelism)."),
      F::integer("parallel.expert", at(&R::parallel, &Parallel::expert), {1, 65536},
                 "Ranks that divide the experts of a layer (expert parallelism). They are some of the data and context "
                 "ranks, whose number it divides."),
      F::mode("parallel.expert_exchange", at(&R::parallel, &Parallel::expert_exchange),
              "Exchange of rows between ranks that divide experts. exact: each rank sends the rows of each expert to "
              "its owner, by counts that NCCL cannot read. gather: each rank receives all tokens of these ranks and "
              "computes the rows of its own experts, and each token's outputs are summed over the ranks. auto: gather "
              "on NCCL, exact otherwise."),
      F::text("parallel.order", at(&R::parallel, &Parallel::order),
              "Order of the axes tp, cp, pp and dp in rank numbers, the fastest-changing first. Ranks are numbered "
              "node by node, so the first axes stay inside a node."),
  };
}

std::vector<Field<R>> zero_fields() {
  const auto& size = detail::size_quantity();
  return {
      F::integer("zero.stage", at(&R::zero, &Zero::stage), {0, 3},
                 "State divided among data ranks. 0: nothing; 1: optimizer states; 2: also gradients; 3: also "
                 "parameters. Stages 2 and 3 keep a tied embedding whole and divide only its optimizer states, because "
                 "compute uses the table throughout the step. Ranks with the same experts divide the state of these."),
      F::integer("zero.prefetch_depth", at(&R::zero, &Zero::prefetch_depth), {0, 65536},
                 "Number of layers whose parameters are gathered ahead of compute. Stage 3 only."),
      F::boolean(
          "zero.reshard_after_forward", at(&R::zero, &Zero::reshard_after_forward),
          "Free gathered parameters after the forward pass and gather them again for the backward pass. Stage 3 only."),
      F::quantity("zero.persistence_threshold", at(&R::zero, &Zero::persistence_threshold_bytes), size,
                  {0, kMaxSizeBytes},
                  "Largest size of a layer whose parameters stay whole on every rank. They are gathered once, after "
                  "the update. "
                  "Stage 3 only."),
      F::integer("zero.shard_size", at(&R::zero, &Zero::shard_size), {0, 1 << 24},
                 "Ranks that divide the state among them (hybrid sharding). Groups of this size hold replicas of each "
                 "other. 0: all data ranks. With divided experts, a multiple or a divisor of parallel.expert."),
      F::word("zero.gather_dtype", at(&R::zero, &Zero::gather_dtype), {"auto", "float32", "bfloat16", "int8"},
              "Type of sharded parameters on the wire. All ranks, the owner included, compute with the sent values. "
              "auto: train.dtype; int8: blocks of 128 values with one scale each."),
  };
}

std::vector<Field<R>> overlap_fields() {
  const auto& size = detail::size_quantity();
  return {
      F::mode("overlap.grad_reduce", at(&R::overlap, &Overlap::grad_reduce),
              "Gradient reduction: bucketed (asynchronous, per bucket), per_parameter (asynchronous, one by one), flat "
              "(once, after backward) or naive (one by one, after backward)."),
      F::quantity(
          "overlap.bucket_size", at(&R::overlap, &Overlap::bucket_size_bytes), detail::size_or_auto_quantity(),
          {0, kMaxSizeBytes},
          "Target bucket size. auto: the one of 4, 25, 100 and 400 MiB with the shortest rehearsed step. A bucket may "
          "exceed it by less than one parameter. Toward the end of the backward pass, "
          "buckets shrink to a quarter of the remaining bytes, but not below first_bucket_size. With zero.stage = 1 "
          "the target is at most a fortieth of all gradient bytes, but not below first_bucket_size. With zero.stage = "
          "2 or 3, each layer is one bucket of any size. With zero.stage = 0 and float32 on the wire, a pipeline stage "
          "uses several buckets only if another stage waits for it."),
      F::quantity("overlap.first_bucket_size", at(&R::overlap, &Overlap::first_bucket_size_bytes), size,
                  {1, kMaxSizeBytes},
                  "Target size of the first and the last bucket. A small first bucket starts communication early; a "
                  "small last one shortens the transfer that no compute hides. bucket_size is its upper limit."),
      F::integer(
          "overlap.max_inflight_buckets", at(&R::overlap, &Overlap::max_inflight_buckets), {0, 1 << 24},
          "Largest number of buckets that are being reduced at a time: the next one waits for the end of the "
          "oldest. 0: no limit. A channel carries one bucket at a time, so a limit has an effect only if buckets "
          "have several channels: with zero.shard_size, 1 keeps the sum inside groups of one bucket from running "
          "beside the sum across groups of another."),
      F::boolean("overlap.param_gather", at(&R::overlap, &Overlap::param_gather),
                 "Gather ZeRO parameters while compute runs. false: gather them when compute needs them, to measure "
                 "the benefit of prefetching."),
      F::boolean("overlap.optimizer_per_bucket", at(&R::overlap, &Overlap::optimizer_per_bucket),
                 "Update each bucket as soon as its gradients and the clip factor are known. false: update all buckets "
                 "at the end. With gradient clipping and without ZeRO gathers, all buckets are always updated together "
                 "after the clip factor."),
      F::boolean(
          "overlap.p2p", at(&R::overlap, &Overlap::p2p),
          "Keep one more micro-batch in flight per stage with 1f1b and zb_h1 if the rehearsed step is then shorter "
          "and the memory suffices."),
      F::integer("overlap.tensor_chunks", at(&R::overlap, &Overlap::tensor_chunks), {1, 1024},
                 "Token chunks of tensor parallelism. One chunk travels while the next one's matrix product runs."),
      F::boolean("overlap.split_tied_embedding", at(&R::overlap, &Overlap::split_tied_embedding),
                 "Reduce the head's part of a tied embedding's gradient early, separately from the embedding's part."),
      F::boolean("overlap.paired_passes", at(&R::overlap, &Overlap::paired_passes),
                 "With divided experts and several micro-batches: the backward pass of a micro-batch takes turns with "
                 "the forward pass of the next one, so that one computes while rows of the other travel. Two "
                 "micro-batches of activations are in memory."),
      F::boolean("overlap.align_grad_reduce", at(&R::overlap, &Overlap::align_grad_reduce),
                 "Delay each pipeline stage's gradient reduction until all stages can begin theirs, so that "
                 "communication slows all stages at the same time."),
  };
}

std::vector<Field<R>> pipeline_fields() {
  return {
      F::mode("pipeline.schedule", at(&R::pipeline, &Pipeline::schedule),
              "Order of micro-batches in the stages. Must be left out if schedule_file is set. With one stage, no key "
              "of this table has an effect."),
      F::integer(
          "pipeline.virtual_stages", at(&R::pipeline, &Pipeline::virtual_stages), {1, 65536},
          "Model parts per stage, for interleaved_1f1b or a schedule_file; zb_v has 2. pipeline x virtual_stages "
          "must divide the layers, unless pipeline.layers lists the blocks of each part."),
      F::integers("pipeline.layers", at(&R::pipeline, &Pipeline::layers), {0, 65536},
                  "Number of blocks in each part of the model, in order. Empty: balanced by modelled cost, embedding "
                  "and head included."),
      F::text("pipeline.schedule_file", at(&R::pipeline, &Pipeline::schedule_file),
              "Path of a custom schedule in the format of plan --schedule-csv. Empty: pipeline.schedule."),
  };
}

std::vector<Field<R>> comm_fields() {
  return {
      F::word("comm.backend", at(&R::comm, &Comm::backend), {"auto", "nccl", "mpi", "thread"},
              "Communication library. auto: nccl on cuda, else mpi, with TCP connections of its own between machines "
              "that have no faster network. mpi: MPI carries every message between machines."),
      F::word("comm.grad_dtype", at(&R::comm, &Comm::grad_dtype), {"auto", "float32", "bfloat16"},
              "Type of gradients on the wire. Sums are float32 or wider. auto: bfloat16 for a bfloat16 model, else "
              "float32; with comm.quantize float32."),
      F::word("comm.quantize", at(&R::comm, &Comm::quantize), {"none", "int8"},
              "Compression of gradients on the wire. int8: blocks of 128 values with one scale each, summed in float32 "
              "in rank order. zero.gather_dtype compresses ZeRO's parameters."),
      F::boolean("comm.error_feedback", at(&R::comm, &Comm::error_feedback),
                 "Add the rounding error of a compressed gradient to the next gradient. Takes 4 bytes per parameter on "
                 "every rank. Needs comm.quantize."),
      F::choice("comm.deterministic", at(&R::comm, &Comm::deterministic),
                "Make sums bitwise reproducible. On the CPU they always are: sums are in rank order, with the same "
                "bits for every overlap.grad_reduce. With NCCL, true fixes algorithm and protocol, which gives the "
                "same bits in every run. auto: false with NCCL."),
      F::integer("comm.timeout_seconds", at(&R::comm, &Comm::timeout_seconds), {1, 1'000'000'000},
                 "Time limit of communication, in seconds. The run ends with exit code 6 when a transfer between hosts "
                 "moves nothing for this long, when the host waits longer for a GPU, or when ranks exchange data "
                 "between steps for longer."),
      F::integer("comm.start_timeout_seconds", at(&R::comm, &Comm::start_timeout_seconds), {1, 1'000'000'000},
                 "Time limit of one wait for other ranks before the first step, in seconds. It is longer than "
                 "comm.timeout_seconds, because one rank of a host reads and checks all data: 1800 s suffice for 1.8 "
                 "TB at 1 GB/s."),
      F::integer("comm.save_timeout_seconds", at(&R::comm, &Comm::save_timeout_seconds), {1, 1'000'000'000},
                 "Time limit of one wait for other ranks while weights are hashed or saved, in seconds. Rank 0 writes "
                 "while the others wait: 1800 s suffice for 360 GB at 200 MB/s."),
      F::real("comm.straggler_threshold", at(&R::comm, &Comm::straggler_threshold), {0, 1},
              "Share of a step by which a rank must be late for a cause of its own to count as a straggler. It is "
              "reported once it has lost five times this share of a second, or of a longer step "
              "(docs/how-to/stuck-run.md). 0: no report."),
      F::text(
          "comm.nccl", at(&R::comm, &Comm::nccl),
          "Path of a JSON table of blocks, clusters, policy, traffic class, algorithm and protocol by channel "
          "(docs/how-to/gpu.md). Values that it lacks come from the program's table of GPU models, or else from NCCL."),
      F::quantity("comm.emulate.bandwidth", at(&R::comm, &Comm::emulate, &Emulate::bandwidth_bytes_per_second),
                  detail::optional_rate_quantity(), {1, int64_t{1} << 50},
                  "Rate of the emulated port through which every rank sends. Empty: no emulated link."),
      F::quantity("comm.emulate.latency", at(&R::comm, &Comm::emulate, &Emulate::latency_ns),
                  detail::duration_quantity(), {0, 60 * kSecond},
                  "Latency of one message on the emulated link. Needs comm.emulate.bandwidth."),
      F::word("comm.emulate.form", at(&R::comm, &Comm::emulate, &Emulate::form), {"gate", "copies", "blocks"},
              "Device resources that a busy emulated link occupies. gate: none; copies: memory bandwidth, by copies "
              "out and in (cuda); blocks: multiprocessors, as a collective's kernel does (cuda)."),
      F::integer("comm.emulate.blocks", at(&R::comm, &Comm::emulate, &Emulate::blocks), {1, 1024},
                 "Thread blocks that the emulated link occupies, one multiprocessor each. Needs comm.emulate.form = "
                 "\"blocks\"."),
  };
}

std::vector<Field<R>> device_fields() {
  return {
      F::word("device.kind", at(&R::device, &DeviceConfig::kind), {"auto", "cpu", "cuda"},
              "Device that computes. auto: cuda if this build and this machine have it, else cpu. plan and check: the "
              "device that the machine file declares."),
      F::integer("device.threads", at(&R::device, &DeviceConfig::threads), {0, 4096},
                 "Threads of the compute stream. cpu only. 0: the cores of the affinity mask divided by the ranks that "
                 "share it, at least 1."),
      F::text("device.machine", at(&R::device, &DeviceConfig::machine),
              "Machine file for predictions: its path, or the name of a shipped one, such as h100x8. Empty: this "
              "host. In a run, the number of ranks on each host replaces the file's nodes."),
      F::choice("device.graph", at(&R::device, &DeviceConfig::graph),
                "Record a whole step as a CUDA graph and replay it with one launch. cuda only. A graph adds a barrier "
                "after each step. auto: true unless the rehearsed barrier costs more than launching the step task by "
                "task. plan prints the decision."),
      F::text("device.algorithms", at(&R::device, &DeviceConfig::algorithms),
              "Path of the table of timed cuBLASLt algorithms that slipstream bench products writes. cuda only. auto: "
              "this GPU's table in ~/.cache/slipstream. Empty: no table."),
  };
}

std::vector<Field<R>> checkpoint_fields() {
  return {
      F::text("checkpoint.dir", at(&R::checkpoint, &Checkpoint::dir),
              "Folder of checkpoints and final weights. Empty: output.dir/checkpoints."),
      F::integer("checkpoint.interval", at(&R::checkpoint, &Checkpoint::interval), {0, kMaxSteps},
                 "Steps between checkpoints. 0: only after the last step, and on SIGUSR1."),
      F::integer("checkpoint.interval_minutes", at(&R::checkpoint, &Checkpoint::interval_minutes), {0, 1 << 20},
                 "Minutes between checkpoints, in addition to checkpoint.interval. 0: steps only."),
      F::integer("checkpoint.keep", at(&R::checkpoint, &Checkpoint::keep), {1, 1 << 24},
                 "Number of checkpoints to keep, besides the one that the run resumed from."),
      F::boolean("checkpoint.async", at(&R::checkpoint, &Checkpoint::async),
                 "Copy the state to host memory beside the next step, and write it while training continues. false: "
                 "training waits."),
      F::quantity("checkpoint.bandwidth", at(&R::checkpoint, &Checkpoint::bandwidth_bytes_per_second),
                  detail::optional_rate_quantity(), {1, int64_t{1} << 50},
                  "Highest rate at which one rank writes a checkpoint beside training. It does not apply while "
                  "training waits for the file. Empty: no limit."),
      F::integer("checkpoint.peer_interval", at(&R::checkpoint, &Checkpoint::peer_interval), {0, kMaxSteps},
                 "Steps between snapshots of each rank's state in the memory of its host and of another host. --resume "
                 "continues from them after the loss of ranks or of a host. A run of one rank has one copy, on its "
                 "host. plan prints bytes and cost. 0: none."),
      F::word(
          "checkpoint.final_dtype", at(&R::checkpoint, &Checkpoint::final_dtype), {"auto", "float32", "bfloat16"},
          "Type of the final weights; bfloat16 rounds to the nearest value. Checkpoints keep float32. auto: bfloat16 "
          "for a run that began with a folder of bfloat16 weights (model.init), else float32."),
  };
}

std::vector<Field<R>> trace_fields() {
  return {
      F::integers("trace.steps", at(&R::trace, &Trace::steps), {1, kMaxSteps},
                  "First and last step of the recorded timeline, such as [10, 12], shortened to train.steps. Empty: no "
                  "timeline."),
  };
}

std::vector<Field<R>> output_fields() {
  return {
      F::text("output.dir", at(&R::output, &Output::dir), "Folder of the run's files."),
      F::boolean("output.csv", at(&R::output, &Output::csv),
                 "Write metrics.csv beside metrics.jsonl: one column per field."),
      F::boolean("output.tensorboard", at(&R::output, &Output::tensorboard),
                 "Write TensorBoard event files into output.dir/tensorboard."),
      F::integer("output.prometheus_port", at(&R::output, &Output::prometheus_port), {0, 65535},
                 "TCP port on 127.0.0.1 of rank 0's host with the latest metrics in the text format of Prometheus. 0: "
                 "none."),
  };
}

}  // namespace

const std::vector<Field<RunConfig>>& run_fields() {
  static const std::vector<Field<RunConfig>> fields = [] {
    std::vector<Field<RunConfig>> all;
    for (const auto& section :
         {model_fields, expert_fields, data_fields, train_fields, optimizer_fields, parallel_fields, zero_fields,
          overlap_fields, pipeline_fields, comm_fields, device_fields, checkpoint_fields, trace_fields, output_fields})
      for (Field<RunConfig>& field : section()) all.push_back(std::move(field));
    return all;
  }();
  return fields;
}

}  // namespace slipstream
