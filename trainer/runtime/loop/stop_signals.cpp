// SPDX-License-Identifier: Apache-2.0
// Handlers only set a flag or write prepared bytes, because a signal may interrupt any function.

#include "trainer/runtime/loop/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <string_view>

#include "engine/base/check.h"

namespace slipstream::runtime {
namespace {

constexpr int kSignals[] = {SIGUSR1, SIGINT, SIGHUP, SIGTERM};
std::atomic<const std::string*> line_of_handler{nullptr};
std::atomic<bool> asked_to_save{false};

void print(std::string_view line) {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

extern "C" void end_now(int) { ::_exit(static_cast<int>(ExitCode::preempted)); }

extern "C" void print_and_end_now(int signal) {
  print("slipstream: a signal ended the run before its first step: nothing new to save.\n");
  end_now(signal);
}

extern "C" void ask_to_save(int signal) {
  asked_to_save = true;
  // SA_RESETHAND has restored the default action of the other signals, so that a second one ends the process.
  const std::string* line = line_of_handler.load();
  if (signal != SIGUSR1 && line) print(*line);
}

/// An ignored signal stays ignored.
void handle(int signal, void (*handler)(int), int flags) {
  struct sigaction action {};
  struct sigaction former {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(signal, nullptr, &former);
  if (former.sa_handler != SIG_IGN) ::sigaction(signal, &action, nullptr);
}

}  // namespace

void StopSignals::end_until_then(bool prints, bool launched) {
  for (const int signal : kSignals)
    handle(signal, prints && !(launched && signal == SIGTERM) ? print_and_end_now : end_now, 0);
}

bool StopSignals::asked() { return asked_to_save; }

StopSignals::StopSignals(bool prints) : prints_(prints) {
  asked_to_save = false;
  for (const int signal : kSignals)
    // A second SIGUSR1 changes nothing.
    handle(signal, ask_to_save, static_cast<int>(signal == SIGUSR1 ? SA_RESTART : SA_RESTART | SA_RESETHAND));
}

StopSignals::~StopSignals() {
  // The run has ended, and its exit code tells how. Another request to save must not replace that code.
  for (const int signal : kSignals) handle(signal, signal == SIGUSR1 ? SIG_IGN : SIG_DFL, 0);
  line_of_handler = nullptr;
}

void StopSignals::set_sentence(const std::string& sentence) {
  if (!prints_) return;
  lines_.push_back(std::make_unique<std::string>("slipstream: " + sentence + "\n"));
  line_of_handler = lines_.back().get();
}

}  // namespace slipstream::runtime
