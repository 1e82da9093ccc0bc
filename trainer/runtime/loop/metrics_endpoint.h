// SPDX-License-Identifier: Apache-2.0
#pragma once
// An HTTP server on 127.0.0.1 that answers GET /metrics with a text.

#include <mutex>
#include <string>
#include <thread>

namespace slipstream::runtime {

class MetricsEndpoint {
 public:
  /// Listens. A thread answers one client at a time, each for at most two seconds. Throws: ResourceError if the port is
  /// taken or reserved.
  explicit MetricsEndpoint(int port);
  ~MetricsEndpoint();
  MetricsEndpoint(const MetricsEndpoint&) = delete;
  MetricsEndpoint& operator=(const MetricsEndpoint&) = delete;

  /// Sets the text of later answers.
  void set(std::string text);

 private:
  void serve();
  void answer(int client);

  int listener_ = -1, stop_ = -1;  // stop_ becomes readable when the server must end
  std::mutex mutex_;
  std::string text_;
  std::thread thread_;
};

}  // namespace slipstream::runtime
