// SPDX-License-Identifier: Apache-2.0
#pragma once
// A sentence for a run that a signal ends.

#include <csignal>
#include <string>

namespace slipstream::runtime {

/// While it exists, SIGINT and SIGTERM print `sentence` before they end the process as usual. An ignored signal stays
/// ignored. One object at a time.
class StopNotice {
 public:
  explicit StopNotice(std::string sentence);
  ~StopNotice();
  StopNotice(const StopNotice&) = delete;
  StopNotice& operator=(const StopNotice&) = delete;

 private:
  std::string line_;
  struct sigaction before_[2] = {};
};

}  // namespace slipstream::runtime
