// SPDX-License-Identifier: Apache-2.0
// When the training loop saves, and what follows from the end of a save.

#include "engine/base/log.h"
#include "engine/device/clock.h"
#include "trainer/runtime/loop/trainer.h"

namespace slipstream::runtime {

std::string Trainer::sentence_of_signal(const std::string& saved) {
  return fmt::format(
      "a signal asks the run to end. It saves after this step, and ends then; a second signal ends it at once. Until "
      "it has saved, {}.",
      saved);
}

Trainer::Due Trainer::checkpoint_due(int64_t step) {
  constexpr uint64_t time = 1, signal = 2, writing = 4;
  const int64_t minutes = config_.checkpoint.interval_minutes;
  uint64_t mine = (StopSignals::asked() ? signal : 0) | (checkpoints_->is_writing() ? writing : 0);
  if (minutes > 0 && world_.rank() == 0 && monotonic_ns() - saved_ns_ >= minutes * 60 * kSecond) {
    mine |= time;
    saved_ns_ = monotonic_ns();  // the other ranks learn of it at the next step
  }
  const uint64_t votes = world_.vote(mine);
  const bool last = step == config_.train.steps;
  // The votes are those of the previous step, before which a save that begins now had not begun.
  const bool voted = checkpoints_->in_flight() > 0 && step > checkpoints_->in_flight() + 1;
  return {.save = last || (votes & (time | signal)) != 0 ||
                  (config_.checkpoint.interval > 0 && step % config_.checkpoint.interval == 0),
          .stop = !last && (votes & signal) != 0,
          .written = voted && (votes & writing) == 0};
}

void Trainer::require_in_place() {
  world_.together([&] { run_dir_->require_in_place(); });
}

void Trainer::save(int64_t step, bool goes_on) {
  end_save(step, goes_on,
           [&](const std::string& hindrance) { return checkpoints_->save(step, guard_.history(), hindrance); });
}

bool Trainer::save_beside(int64_t step) {
  require_in_place();
  const std::string failure = checkpoints_->begin_async(step);
  history_in_flight_ = guard_.history();
  if (!failure.empty()) saved(step, failure, true);
  return failure.empty();
}

void Trainer::finish_save() {
  end_save(checkpoints_->in_flight(), true,
           [&](const std::string& hindrance) { return checkpoints_->finish(history_in_flight_, hindrance); });
}

void Trainer::end_save(int64_t step, bool goes_on, const std::function<std::string(const std::string&)>& commit) {
  const PhaseMark saving = world_.phase(comm::RunPhase::save);
  require_in_place();
  flush(false);
  std::string failure;
  try {
    failure = commit(run_dir_->sync_metrics());
  } catch (const NumericsError& error) {
    diverged(step, error.what());
  }
  saved(step, failure, goes_on);
}

void Trainer::saved(int64_t step, const std::string& failure, bool goes_on) {
  if (failure.empty()) {
    signals_->set_sentence(sentence_of_signal(fmt::format("the newest checkpoint is that of step {}", step)));
    return;
  }
  if (goes_on) {
    log_warn("[checkpoint] step {} is not saved: {} Training goes on; the newest checkpoint is that of step {}.", step,
             failure, checkpoints_->newest_step());
    return;
  }
  if (step < config_.train.steps)
    world_.together([&] { throw ResourceError("[checkpoint] step {} is not saved: {}", step, failure); });
  log_warn("[checkpoint] step {} is not saved: {}", step, failure);
  save_final();  // these take less space than the checkpoint
  world_.together([&] {
    throw ResourceError(
        "[checkpoint] the last step, {}, has its weights in {}/final, but no checkpoint: see the warning above.", step,
        config_.checkpoint.dir);
  });
}

}  // namespace slipstream::runtime
