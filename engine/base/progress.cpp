// SPDX-License-Identifier: Apache-2.0
// Writes the progress line of long work to stderr.

#include "engine/base/progress.h"

#include <unistd.h>

#include <atomic>
#include <utility>

#include <fmt/core.h>

namespace slipstream {
namespace {

std::atomic<bool> interrupted{false};

extern "C" void note_interrupt(int) { interrupted = true; }

constexpr auto kOnTerminal = std::chrono::milliseconds(200), kInLog = std::chrono::milliseconds(10'000);

}  // namespace

Progress::Progress(std::string name)
    : name_(std::move(name)),
      on_terminal_(::isatty(STDERR_FILENO) == 1),
      next_(Clock::now() + (on_terminal_ ? kOnTerminal : kInLog)) {}

Progress::~Progress() {
  if (is_shown_ && on_terminal_) fmt::print(stderr, "\r\033[K");
}

void Progress::show(const std::function<std::string()>& text) {
  const std::lock_guard lock(mutex_);
  const auto now = Clock::now();
  if (now < next_) return;
  next_ = now + (on_terminal_ ? kOnTerminal : kInLog);
  if (on_terminal_)
    fmt::print(stderr, "\r\033[K{}: {}", name_, text());
  else
    fmt::print(stderr, "{}: {}\n", name_, text());
  is_shown_ = true;
}

Interrupt::Interrupt() {
  interrupted = false;
  struct sigaction action {};
  action.sa_handler = note_interrupt;
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  ::sigaction(SIGINT, nullptr, &before_);
  if (before_.sa_handler != SIG_IGN) ::sigaction(SIGINT, &action, nullptr);
}

Interrupt::~Interrupt() { ::sigaction(SIGINT, &before_, nullptr); }

bool Interrupt::asked() { return interrupted; }

}  // namespace slipstream
