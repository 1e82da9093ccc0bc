// SPDX-License-Identifier: Apache-2.0
#pragma once
// Signals that end a run. Some ask for a checkpoint first, and others end the run with a sentence.

#include <memory>
#include <string>
#include <vector>

namespace slipstream::runtime {

/// While this object exists, SIGUSR1, SIGINT, SIGHUP and SIGTERM ask for a checkpoint and for the end of the run, which
/// the training loop reads in asked(). The first SIGINT, SIGHUP or SIGTERM prints the sentence, because a launcher may
/// kill all ranks a second after it passes such a signal on. A second one ends the process. Afterwards SIGUSR1 has no
/// effect, and the others have their default action. An ignored signal stays ignored. Only one object may exist at a
/// time.
class StopSignals {
 public:
  /// Until an object exists, each of these signals ends the process with code 75 and the sentence that nothing is new
  /// to save. Must be called before anything else. `prints`: this rank prints sentences. `launched`: other processes
  /// beside this one belong to the run. A launcher also sends SIGTERM when one of them has failed, so SIGTERM then
  /// prints nothing.
  static void end_until_then(bool prints, bool launched);

  /// `prints`: this rank prints sentences.
  explicit StopSignals(bool prints);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Sets the sentence from now on: what is saved, and what follows.
  void set_sentence(const std::string& sentence);
  static bool asked();

 private:
  std::vector<std::unique_ptr<std::string>> lines_;  // kept, because a handler may be printing one
  bool prints_;
};

}  // namespace slipstream::runtime
