// SPDX-License-Identifier: Apache-2.0
// What the training loop does with whole weights: evaluation, their hash, and the final weights.

#include <cstring>
#include <filesystem>
#include <numeric>

#include "engine/base/finite.h"
#include "engine/base/hash.h"
#include "engine/checkpoint/weights.h"
#include "engine/checkpoint/weights_folder.h"
#include "models/hugging_face.h"
#include "trainer/planner/options/plan_options.h"
#include "trainer/runtime/loop/trainer.h"
#include "trainer/runtime/weights/shared_weights.h"
#include "trainer/runtime/weights/text_files.h"

namespace slipstream::runtime {

double Trainer::evaluate() {
  if (!dataset_.validation) return 0;
  const PhaseMark evaluating = world_.phase(comm::RunPhase::evaluation);
  const std::optional<int64_t> before = rank_->sent_bytes();
  const Job& job = rank_->job();
  const Job::Share share = job.share();
  const int64_t tokens = job.model.tokens;  // the tokens of a sequence on this rank
  const data::EvalSampler sampler(dataset_.validation->count(),
                                  {.sequence_length = config_.train.sequence_length,
                                   .micro_batch_size = config_.train.micro_batch_size,
                                   .global_batch_size = global_batch_,
                                   .seed = static_cast<uint64_t>(config_.train.seed)},
                                  config_.train.eval_batches);
  const data::BatchFiller fill = data::evaluation_filler(dataset_.validation, sampler, share.rank, share.ranks,
                                                         share.context_rank, share.context_ranks);
  data::Batch batch = data::make_batch({.micro_batches = 1,
                                        .rows = config_.train.micro_batch_size,
                                        .sequence_length = tokens,
                                        .documents = job.model.documents});
  std::vector<double> sums;
  for (int64_t round = 0; round < sampler.rounds(share.ranks); ++round) {
    fill(round, batch);
    const std::vector<float> losses = rank_->evaluate(batch.inputs, batch.targets, batch.document_begins);
    double sum = 0;
    for (int64_t i = 0; i < batch.valid_rows[0] * tokens && share.counts && !losses.empty(); ++i)
      sum += losses[static_cast<size_t>(i)];
    sums.push_back(sum);
  }
  const std::string bytes(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(double));
  double total = 0;
  for (const std::string& theirs : world_.all_gather(bytes, "the losses of an evaluation")) {
    SLIP_ASSERT(theirs.size() == bytes.size());  // all ranks have the same data, because train compared its hash
    std::memcpy(sums.data(), theirs.data(), theirs.size());
    total = std::accumulate(sums.begin(), sums.end(), total);
  }
  rank_->drain();
  if (before) *sent_before_ += *rank_->sent_bytes() - *before;  // evaluations do not count as steps
  return total / static_cast<double>(sampler.target_count());
}

std::string Trainer::params_hash(std::string& not_finite) {
  const PhaseMark saving = world_.phase(comm::RunPhase::save);
  std::string hex;
  with_weights(world_, *rank_, stages_, [&](const std::vector<ReadWeights>& reads) {
    data::Xxh3 hash;
    for (const auto& [name, at] : tensors_of(stages_))
      for_pieces(*stages_[at.stage], reads[at.stage], at.parameter, at.tensor, [&](std::span<const float> piece) {
        hash.update(piece.data(), static_cast<int64_t>(piece.size_bytes()));
        if (not_finite.empty() && !all_finite(piece)) not_finite = name;
      });
    hex = hash.hex();
  });
  not_finite = world_.all_gather(not_finite, "a test of the weights")[0];
  return hex;
}

std::string Trainer::hugging_face_config() const {
  models::ModelOptions options = planner::model_options({.config = resolved_, .machine = machine_});
  options.dtype = texts_.dtype;
  return models::hugging_face_config(options, texts_.ids);
}

void Trainer::save_model_files() {
  world_.together([&] {
    if (world_.rank() > 0) return;
    run_dir_->require_in_place();
    const std::string dir = run_dir_->checkpoint_place(checkpoint::kModelDir);
    if (resumed_ > 0) texts_ = read_text_files(dir);
    const bool is_new = texts_.files.empty();
    if (is_new) texts_ = text_files_of(*dataset_.tokenizer, config_.model.init);
    if (config_.checkpoint.final_dtype != DTypeChoice::automatic)
      texts_.dtype = config_.checkpoint.final_dtype == DTypeChoice::bfloat16 ? DType::bf16 : DType::f32;
    if (!is_new) return;
    std::error_code error;
    std::filesystem::create_directories(dir, error);
    for (const auto& [name, bytes] : texts_.files) files::write_file(dir + "/" + name, bytes);
    files::write_file(dir + "/" + checkpoint::kConfigFile, hugging_face_config());
  });
}

void Trainer::save_final() {
  const PhaseMark saving = world_.phase(comm::RunPhase::save);
  require_in_place();
  world_.together([&] {
    with_weights(world_, *rank_, stages_, [&](const std::vector<ReadWeights>& reads) {
      checkpoint::write_final(run_dir_->checkpoint_place("final"), tensors_to_save(stages_, reads, texts_.dtype),
                              hugging_face_config(), texts_.files);
    });
  });
}

}  // namespace slipstream::runtime
