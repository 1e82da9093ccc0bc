// SPDX-License-Identifier: Apache-2.0
// Handlers only set a flag or write prepared bytes, because a signal may interrupt any function.

#include "runtime/stop_signals.h"

#include <unistd.h>

#include <atomic>

namespace slipstream::runtime {
namespace {

constexpr int kSignals[] = {SIGUSR1, SIGINT, SIGTERM};
std::atomic<const std::string*> line_of_handler{nullptr};
std::atomic<bool> asked_to_save{false};

extern "C" void ask_to_save(int) { asked_to_save = true; }

extern "C" void print_and_end(int signal) {
  const std::string* line = line_of_handler.load();
  [[maybe_unused]] const ssize_t written = line ? ::write(STDERR_FILENO, line->data(), line->size()) : 0;
  ::raise(signal);  // SA_RESETHAND restored the default action, which follows the return
}

}  // namespace

bool StopSignals::asked() { return asked_to_save; }

StopSignals::StopSignals(bool saves_at_term, bool prints) : prints_(prints) {
  asked_to_save = false;
  for (int i = 0; i < 3; ++i) {
    struct sigaction action {};
    const bool saves = kSignals[i] == SIGUSR1 || saves_at_term;
    action.sa_handler = saves ? ask_to_save : print_and_end;
    // A second SIGUSR1 changes nothing. A second SIGINT or SIGTERM has the default action.
    action.sa_flags = static_cast<int>(kSignals[i] == SIGUSR1 ? SA_RESTART : SA_RESTART | SA_RESETHAND);
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (int i = 0; i < 3; ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  line_of_handler = nullptr;
}

void StopSignals::set_sentence(const std::string& sentence) {
  if (!prints_) return;
  lines_.push_back(std::make_unique<std::string>("slipstream: " + sentence + "\n"));
  line_of_handler = lines_.back().get();
}

}  // namespace slipstream::runtime
