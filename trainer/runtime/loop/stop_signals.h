// SPDX-License-Identifier: Apache-2.0
#pragma once
// Signals that end a run: some ask for a checkpoint first, others end it with a sentence.

#include <memory>
#include <string>
#include <vector>

namespace slipstream::runtime {

/// While it exists, SIGUSR1, SIGINT, SIGHUP and SIGTERM ask for a checkpoint and for the end of the run: the training
/// loop reads asked(). The first SIGINT, SIGHUP or SIGTERM prints the sentence, because a launcher may kill all ranks a
/// second after it passes such a signal on; a second one ends the process. Afterwards SIGUSR1 has no effect, and the
/// others have the default action. An ignored signal stays ignored. One object at a time.
class StopSignals {
 public:
  /// Until an object exists, each of these signals ends the process with code 75 and the sentence that nothing is new
  /// to save. Call it first of all. `prints`: this rank prints sentences. `launched`: others beside it belong to the
  /// run, so that SIGTERM, which a launcher also sends when one of them has failed, prints nothing.
  static void end_until_then(bool prints, bool launched);

  /// `prints`: this rank prints sentences.
  explicit StopSignals(bool prints);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The sentence from now on: what is saved, and what follows.
  void set_sentence(const std::string& sentence);
  static bool asked();

 private:
  std::vector<std::unique_ptr<std::string>> lines_;  // kept: a handler may be printing one
  bool prints_;
};

}  // namespace slipstream::runtime
