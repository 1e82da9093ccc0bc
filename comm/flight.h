// SPDX-License-Identifier: Apache-2.0
#pragma once
// Flight records: the state of one rank when a run is stuck, in memory and as a file.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/json.h"

namespace slipstream::comm {

/// The part of a run, which determines the limit of a wait.
enum class RunPhase : uint8_t { start, step, evaluation, save };
const char* name_of(RunPhase phase);
/// The key that sets the limit. Pure.
const char* limit_key_of(RunPhase phase);

/// A work in which ranks meet: a communication task, or an exchange of their hosts.
struct FlightWork {
  std::string name;  // "reduce.3"
  std::string op;    // "all_reduce"; "exchange" for an exchange of hosts
  int64_t bytes = 0;
  int32_t bucket = -1;      // -1: none
  int64_t step = 0;         // 0: it belongs to no training step
  double seconds_ago = -1;  // since it ended or, for the next work, since it began; -1: not known
  bool operator==(const FlightWork&) const = default;
};

/// The works of one channel of one rank. They run in one order, so the number of a work identifies it on all members.
struct FlightChannel {
  std::string name;
  std::string group;               // the same text on all ranks that meet on this channel
  int64_t ended = 0;               // works that have ended since the start
  bool begun = false;              // this rank has begun `next` and waits for the others
  std::optional<FlightWork> next;  // the work with number ended + 1, if it is known
  std::string held_by;             // if not begun: the work or wait of this rank that keeps `next` from beginning
  std::string held_group;          // the group that `held_by` waits for; empty: the rank itself is at work
  std::vector<FlightWork> latest;  // the last ended works, the oldest first
  bool operator==(const FlightChannel&) const = default;
};

/// The name and the group of the exchanges between hosts, in which all ranks take part.
inline constexpr std::string_view kHosts = "hosts";

/// The works of a rank's channels, and what holds up its compute stream.
struct FlightState {
  std::vector<FlightChannel> channels;
  int64_t step = 0;                 // the last step that was issued
  std::string held_by, held_group;  // as in FlightChannel
};

struct FlightRecord {
  std::string run;  // equal on all ranks of a run
  int rank = 0;
  int size = 1;
  std::string host;
  int64_t process = 0;
  int64_t written_ms = 0;  // since 1970
  RunPhase phase = RunPhase::start;
  int64_t step = 0;  // the last step that was issued
  double limit_seconds = 0;
  std::string limit_key;
  std::string alarm;  // the reason for which this rank asked for a verdict; empty: another rank asked
  std::vector<FlightChannel> channels;

  // Only in the entries of last_heard.
  double silent_seconds = 0;
  bool connection_ended = false;
  /// Written by rank 0: the last message of every rank that did not answer.
  std::vector<FlightRecord> last_heard;
  bool operator==(const FlightRecord&) const = default;
};

/// Pure. One line of JSON.
std::string flight_json(const FlightRecord& record);
/// Pure. Throws: DataError that names `source` if the text is not a flight record.
FlightRecord flight_record(std::string_view text, const std::string& source);

/// Pure. FOLDER/rank0000.json.
std::string flight_path(const std::string& folder, int rank);
/// Blocks. The records of the newest run in the folder, by rank.
/// Throws: DataError if there are none, or if one is damaged.
std::vector<FlightRecord> read_flight(const std::string& folder);

}  // namespace slipstream::comm
