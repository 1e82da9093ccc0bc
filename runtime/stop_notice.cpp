// SPDX-License-Identifier: Apache-2.0
// The handler only writes prepared bytes, because a signal may interrupt any function.

#include "runtime/stop_notice.h"

#include <unistd.h>

#include <atomic>
#include <utility>

namespace slipstream::runtime {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};
std::atomic<const std::string*> line_of_handler{nullptr};

extern "C" void print_and_end(int signal) {
  const std::string* line = line_of_handler.load();
  [[maybe_unused]] const ssize_t written = line ? ::write(STDERR_FILENO, line->data(), line->size()) : 0;
  ::raise(signal);  // SA_RESETHAND restored the default action, which follows the return
}

}  // namespace

StopNotice::StopNotice(std::string sentence) : line_("slipstream: " + std::move(sentence) + "\n") {
  line_of_handler = &line_;
  struct sigaction action {};
  action.sa_handler = print_and_end;
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (int i = 0; i < 2; ++i) {
    ::sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

StopNotice::~StopNotice() {
  for (int i = 0; i < 2; ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  line_of_handler = nullptr;
}

}  // namespace slipstream::runtime
