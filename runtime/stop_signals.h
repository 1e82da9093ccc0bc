// SPDX-License-Identifier: Apache-2.0
#pragma once
// Signals that end a run: some ask for a checkpoint first, others end it with a sentence.

#include <csignal>
#include <memory>
#include <string>
#include <vector>

namespace slipstream::runtime {

/// While it exists, SIGUSR1 asks for a checkpoint, and so do SIGINT and SIGTERM where `saves_at_term`: the training
/// loop reads asked(). Otherwise these print the sentence and end the process as usual: a launcher kills all ranks a
/// second after it passes them on, and sends them when another rank is dead. A second SIGINT or SIGTERM always ends the
/// process. An ignored signal stays ignored. One object at a time.
class StopSignals {
 public:
  /// `prints`: this rank prints sentences.
  StopSignals(bool saves_at_term, bool prints);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// The sentence from now on: what is saved.
  void set_sentence(const std::string& sentence);
  static bool asked();

 private:
  std::vector<std::unique_ptr<std::string>> lines_;  // kept: a handler may be printing one
  bool prints_;
  struct sigaction before_[3] = {};
};

}  // namespace slipstream::runtime
