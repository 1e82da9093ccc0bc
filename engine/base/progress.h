// SPDX-License-Identifier: Apache-2.0
#pragma once
// The progress that long work shows on stderr, and how Ctrl-C ends it early with a partial answer.

#include <chrono>
#include <csignal>
#include <functional>
#include <mutex>
#include <string>

namespace slipstream {

/// One line that is rewritten on a terminal. Elsewhere it prints a line every ten seconds. Any thread may call the
/// functions.
class Progress {
 public:
  /// `name` begins the line.
  explicit Progress(std::string name);
  ~Progress();  // removes the line from a terminal
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Calls `text` only if the line is due.
  void show(const std::function<std::string()>& text);

 private:
  using Clock = std::chrono::steady_clock;

  const std::string name_;
  const bool on_terminal_;
  std::mutex mutex_;
  Clock::time_point next_;
  bool is_shown_ = false;
};

/// While this object exists, the first SIGINT only sets a flag, and the second one ends the process.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  static bool asked();

 private:
  struct sigaction before_ {};
};

}  // namespace slipstream
