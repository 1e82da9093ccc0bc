// SPDX-License-Identifier: Apache-2.0
// Flight records as JSON.

#include "comm/flight.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "engine/base/check.h"
#include "engine/base/files.h"

namespace slipstream::comm {
namespace {

constexpr int64_t kMostRanks = 1 << 20;
constexpr int64_t kMostWorks = int64_t{1} << 53;
constexpr int64_t kLargestRecordBytes = int64_t{64} << 20;

Json work_json(const FlightWork& work) {
  Json json;
  json["name"] = work.name;
  json["op"] = work.op;
  json["bytes"] = work.bytes;
  json["bucket"] = work.bucket;
  json["step"] = work.step;
  json["seconds_ago"] = work.seconds_ago;
  return json;
}

FlightWork work_of(const Json& json) {
  const FlightWork work{.name = json.at("name").as_string("name"),
                        .op = json.at("op").as_string("op"),
                        .bytes = json.at("bytes").as_int("bytes"),
                        .bucket = static_cast<int32_t>(json.at("bucket").as_int("bucket")),
                        .step = json.at("step").as_int("step"),
                        .seconds_ago = json.at("seconds_ago").as_double("seconds_ago")};
  if (const int64_t bucket = json.at("bucket").as_int("bucket"); work.bytes < 0 || bucket < -1 || bucket != work.bucket)
    throw DataError("the work {} has {} bytes and bucket {}, need at least 0 and -1 to {}.", files::shown(work.name),
                    work.bytes, bucket, std::numeric_limits<int32_t>::max());
  return work;
}

Json record_json(const FlightRecord& record) {
  Json json;
  json["run"] = record.run;
  json["rank"] = record.rank;
  json["size"] = record.size;
  json["host"] = record.host;
  json["process"] = record.process;
  json["written_ms"] = record.written_ms;
  json["phase"] = name_of(record.phase);
  json["step"] = record.step;
  json["limit_seconds"] = record.limit_seconds;
  json["limit_key"] = record.limit_key;
  json["alarm"] = record.alarm;
  json["silent_seconds"] = record.silent_seconds;
  json["connection_ended"] = record.connection_ended;
  json["channels"] = Json::array();
  for (const FlightChannel& channel : record.channels) {
    Json part;
    part["name"] = channel.name;
    part["group"] = channel.group;
    part["ended"] = channel.ended;
    part["begun"] = channel.begun;
    part["held_by"] = channel.held_by;
    part["held_group"] = channel.held_group;
    part["next"] = channel.next ? work_json(*channel.next) : Json();
    part["latest"] = Json::array();
    for (const FlightWork& work : channel.latest) part["latest"].push_back(work_json(work));
    json["channels"].push_back(std::move(part));
  }
  json["last_heard"] = Json::array();
  for (const FlightRecord& other : record.last_heard) json["last_heard"].push_back(record_json(other));
  return json;
}

RunPhase phase_of(const std::string& name, const std::string& source) {
  for (const RunPhase phase : {RunPhase::start, RunPhase::step, RunPhase::evaluation, RunPhase::save})
    if (name == name_of(phase)) return phase;
  throw DataError("[flight] {}: phase is {}, need start, step, evaluation or save.", source, files::shown(name));
}

FlightRecord record_of(const Json& json, const std::string& source) {
  FlightRecord record{.run = json.at("run").as_string("run")};
  const int64_t rank = json.at("rank").as_int("rank"), size = json.at("size").as_int("size");
  if (size < 1 || size > kMostRanks || rank < 0 || rank >= size)
    throw DataError("[flight] {}: rank {} of {}, need a rank from 0 to size - 1 and at most {} ranks.", source, rank,
                    size, kMostRanks);
  record.rank = static_cast<int>(rank);
  record.size = static_cast<int>(size);
  record.host = json.at("host").as_string("host");
  record.process = json.at("process").as_int("process");
  record.written_ms = json.at("written_ms").as_int("written_ms");
  record.phase = phase_of(json.at("phase").as_string("phase"), source);
  record.step = json.at("step").as_int("step");
  record.limit_seconds = json.at("limit_seconds").as_double("limit_seconds");
  record.limit_key = json.at("limit_key").as_string("limit_key");
  record.alarm = json.at("alarm").as_string("alarm");
  record.silent_seconds = json.at("silent_seconds").as_double("silent_seconds");
  record.connection_ended = json.at("connection_ended").as_bool("connection_ended");
  for (const Json& part : json.at("channels").as_array("channels")) {
    FlightChannel channel{.name = part.at("name").as_string("name"), .group = part.at("group").as_string("group")};
    channel.ended = part.at("ended").as_int("ended");
    channel.begun = part.at("begun").as_bool("begun");
    channel.held_by = part.at("held_by").as_string("held_by");
    channel.held_group = part.at("held_group").as_string("held_group");
    if (const Json& next = part.at("next"); !next.is_null()) channel.next = work_of(next);
    if (channel.ended < 0 || channel.ended > kMostWorks || (channel.begun && !channel.next))
      throw DataError("[flight] {}: channel {} has {} ended works and {}.", source, files::shown(channel.name),
                      channel.ended, channel.begun ? "has begun a work without a name" : "none begun");
    for (const Json& work : part.at("latest").as_array("latest")) channel.latest.push_back(work_of(work));
    record.channels.push_back(std::move(channel));
  }
  for (const Json& other : json.at("last_heard").as_array("last_heard")) {
    record.last_heard.push_back(record_of(other, source));
    if (record.last_heard.back().size != record.size)
      throw DataError("[flight] {}: the record of {} ranks has an entry of {} ranks.", source, record.size,
                      record.last_heard.back().size);
  }
  return record;
}

}  // namespace

const char* name_of(RunPhase phase) {
  switch (phase) {
    case RunPhase::start:
      return "start";
    case RunPhase::step:
      return "step";
    case RunPhase::evaluation:
      return "evaluation";
    case RunPhase::save:
      return "save";
  }
  return "";
}

const char* limit_key_of(RunPhase phase) {
  return phase == RunPhase::start  ? "comm.start_timeout_seconds"
         : phase == RunPhase::save ? "comm.save_timeout_seconds"
                                   : "comm.timeout_seconds";
}

std::string flight_json(const FlightRecord& record) { return record_json(record).dump(); }

FlightRecord flight_record(std::string_view text, const std::string& source) {
  try {
    return record_of(Json::parse(text, source), source);
  } catch (const DataError& error) {
    const std::string_view what = error.what();
    if (what.starts_with("[flight] ")) throw;
    throw DataError("[flight] {} is not a flight record: {}", source, what);
  }
}

std::string flight_path(const std::string& folder, int rank) { return fmt::format("{}/rank{:04}.json", folder, rank); }

std::vector<FlightRecord> read_flight(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (const std::string name = at->path().filename(); name.starts_with("rank") && name.ends_with(".json"))
      paths.push_back(at->path());
  std::sort(paths.begin(), paths.end());
  std::vector<FlightRecord> records;
  for (const std::string& path : paths)
    records.push_back(flight_record(files::read_file(path, files::Owner::data, kLargestRecordBytes), path));
  if (records.empty())
    throw DataError(
        "[flight] {} has no flight records: the watchdog did not end this run. Look for the first error among the "
        "ranks.",
        folder);
  // Records of an earlier run may be in the same folder.
  const std::string run = std::max_element(records.begin(), records.end(), [](const auto& a, const auto& b) {
                            return a.written_ms < b.written_ms;
                          })->run;
  std::erase_if(records, [&](const FlightRecord& record) { return record.run != run; });
  std::sort(records.begin(), records.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  for (size_t i = 0; i < records.size(); ++i)
    if (records[i].size != records[0].size)
      throw DataError("[flight] {} has records of runs of different sizes: rank {} of {} and rank {} of {}.", folder,
                      records[0].rank, records[0].size, records[i].rank, records[i].size);
    else if (i > 0 && records[i].rank == records[i - 1].rank)
      throw DataError("[flight] {} has two records of rank {}.", folder, records[i].rank);
  return records;
}

}  // namespace slipstream::comm
