// SPDX-License-Identifier: Apache-2.0
// Reads trace files event by event, so that a file that ends early still gives its events.

#include "trainer/report/trace_spans.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "engine/base/check.h"
#include "engine/base/files.h"
#include "engine/base/plural.h"

namespace slipstream::report {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostSteps = 5;
constexpr size_t kMostFiles = kMostTraceFiles;
constexpr int64_t kMostChannels = 256;
constexpr double kLatestUs = 9e15 / 1e3;

struct TraceFile {
  std::string path, name;
};

/// Returns trace/rank*.json in the order of their names.
std::vector<TraceFile> files_of(const std::string& folder) {
  std::vector<TraceFile> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder + "/trace", error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank") && name.ends_with(".json")) files.push_back({entry.path().string(), "trace/" + name});
    if (files.size() == kMostFiles) break;
  }
  std::sort(files.begin(), files.end(), [](const TraceFile& a, const TraceFile& b) { return a.name < b.name; });
  return files;
}

/// Returns the text of an event without the comma after it, or an empty text if the line is none.
std::string_view event_of(std::string_view line) {
  while (!line.empty() && (line.back() == ',' || std::isspace(static_cast<unsigned char>(line.back()))))
    line.remove_suffix(1);
  return line.starts_with("{\"ph\"") ? line : std::string_view();
}

/// Returns the step of an event by its text alone, because most events belong to steps that are not read.
std::optional<int64_t> step_of(std::string_view event) {
  constexpr std::string_view key = "\"step\": ";
  const size_t at = event.find(key);
  if (at == std::string_view::npos) return {};
  return std::strtoll(std::string(event.substr(at + key.size(), 20)).c_str(), nullptr, 10);
}

/// Returns steps from the middle of those in the files, because the first and the last step are cut off.
std::vector<int64_t> middle_steps(const std::set<int64_t>& all) {
  std::vector<int64_t> steps(all.begin(), all.end());
  if (steps.size() <= kMostSteps) return steps;
  const auto first = static_cast<std::ptrdiff_t>((steps.size() - kMostSteps) / 2);
  return {steps.begin() + first, steps.begin() + first + static_cast<std::ptrdiff_t>(kMostSteps)};
}

int64_t int_or(const Json& args, std::string_view key, int64_t otherwise) {
  const Json* const value = args.find(key);
  return value && value->is_int() ? value->as_int() : otherwise;
}
std::string text_or(const Json& args, std::string_view key) {
  const Json* const value = args.find(key);
  return value && value->is_string() ? value->as_string() : "";
}

/// Converts a value in microseconds to nanoseconds.
int64_t ns_of(const Json& value) {
  const double us = value.as_double();
  if (!(std::abs(us) <= kLatestUs)) throw DataError("a time of {} us is out of range.", us);
  return std::llround(us * 1e3);
}

class Reader {
 public:
  Reader(Trace& trace, const std::set<int64_t>& steps) : trace_(trace), steps_(steps) {}

  void read(const TraceFile& file, Missing& missing) {
    RankTrace rank;
    std::optional<int64_t> pid;
    int64_t damaged = 0;
    bool ended = false;
    each_line(file.path, [&](std::string_view line, bool) {
      if (line.starts_with("]}")) ended = true;
      const std::string_view text = event_of(line);
      if (text.empty()) return;
      const std::optional<int64_t> step = step_of(text);
      if (step && !steps_.contains(*step)) return;
      try {
        const Json event = Json::parse(text, file.name);
        if (!pid) pid = event.at("pid").as_int();
        event.at("ph").as_string() == "M" ? add_name(event, rank) : add_span(event, rank);
      } catch (const DataError&) {
        ++damaged;
      }
    });
    const auto report = [&](const std::string& sentence, const char* remark) {
      if (trace_.damage.empty()) trace_.damage = sentence;
      missing.push_back(sentence + remark);
    };
    if (damaged > 0)
      report(fmt::format("{} has {} that cannot be read.", file.name, counted(damaged, "event")),
             " The report leaves them out.");
    if (!ended) report(fmt::format("{} ends early: its last events are missing.", file.name), "");
    if (rank.spans.empty()) return;
    rank.rank = static_cast<int>(std::clamp<int64_t>(pid.value_or(0), 0, 1 << 20));
    std::stable_sort(rank.spans.begin(), rank.spans.end(),
                     [](const TraceSpan& a, const TraceSpan& b) { return a.begin_ns < b.begin_ns; });
    trace_.ranks.push_back(std::move(rank));
  }

 private:
  static void add_name(const Json& event, RankTrace& rank) {
    if (event.at("name").as_string() != "thread_name") return;
    const int64_t id = event.at("tid").as_int();
    if (id < 0 || id >= kMostChannels) throw DataError("channel {} is out of range.", id);
    rank.channels.resize(std::max(rank.channels.size(), static_cast<size_t>(id) + 1));
    rank.channels[static_cast<size_t>(id)] = event.at("args").at("name").as_string();
  }

  void add_span(const Json& event, RankTrace& rank) {
    if (event.at("ph").as_string() != "X") return;
    const Json& args = event.at("args");
    TraceSpan span{.name = 0,
                   .channel = static_cast<int32_t>(event.at("tid").as_int()),
                   .step = args.at("step").as_int(),
                   .begin_ns = ns_of(event.at("ts")),
                   .duration_ns = std::max<int64_t>(0, ns_of(event.at("dur")))};
    if (span.channel < 0 || span.channel >= static_cast<int32_t>(rank.channels.size()))
      throw DataError("an event of channel {}, which has no name.", span.channel);
    span.name = name_of(event, args, rank);
    rank.spans.push_back(span);
  }

  uint32_t name_of(const Json& event, const Json& args, const RankTrace& rank) {
    SpanName name;
    name.name = event.at("name").as_string();
    const std::string& kind = event.at("cat").as_string();
    name.kind = kind == "wait"            ? SpanName::Kind::wait
                : kind == "communication" ? SpanName::Kind::communication
                                          : SpanName::Kind::kernel;
    name.item = text_or(args, "item");
    name.awaited = text_or(args, "awaited");
    if (const int64_t id = int_or(args, "awaited stream", -1); id >= 0 && id < std::ssize(rank.channels))
      name.awaited_channel = rank.channels[static_cast<size_t>(id)];
    name.op = text_or(args, "Collective name");
    name.dtype = text_or(args, "dtype");
    name.flops = int_or(args, "flops", -1);
    name.bytes = int_or(args, "bytes", -1);
    name.group_size = int_or(args, "Group size", 0);
    std::vector<uint32_t>& same = by_name_[name.name];
    for (uint32_t known : same)
      if (trace_.names[known] == name) return known;
    trace_.names.push_back(name);
    same.push_back(static_cast<uint32_t>(trace_.names.size() - 1));
    return same.back();
  }

  Trace& trace_;
  const std::set<int64_t>& steps_;
  std::unordered_map<std::string, std::vector<uint32_t>> by_name_;
};

size_t spans_of(const Trace& trace) {
  size_t count = 0;
  for (const RankTrace& rank : trace.ranks) count += rank.spans.size();
  return count;
}

/// Leaves out steps, and then ranks, until at most `spans_max` spans are left.
void shorten(Trace& trace, size_t spans_max, Missing& missing) {
  const size_t traced = trace.steps.size();
  while (trace.steps.size() > 1 && spans_of(trace) > spans_max) {
    const int64_t last = trace.steps.back();
    trace.steps.pop_back();
    for (RankTrace& rank : trace.ranks) std::erase_if(rank.spans, [&](const TraceSpan& s) { return s.step == last; });
  }
  const size_t ranks = trace.ranks.size();
  while (trace.ranks.size() > 1 && spans_of(trace) > spans_max) trace.ranks.pop_back();
  if (trace.ranks.size() == 1 && trace.ranks[0].spans.size() > spans_max) {
    trace.ranks[0].spans.resize(spans_max);
    missing.push_back(fmt::format("The timeline has the first {} events of a step.", spans_max));
  }
  if (trace.steps.size() < traced || trace.ranks.size() < ranks)
    missing.push_back(fmt::format("The timeline has {} of {} and the first {} of {}: a page holds {} events.",
                                  trace.steps.size(), counted(trace.traced_steps, "traced step"), trace.ranks.size(),
                                  counted(static_cast<int64_t>(ranks), "rank"), spans_max));
}

}  // namespace

std::string SpanName::work() const {
  const size_t slash = name.rfind('/');
  return slash == std::string::npos ? name : name.substr(slash + 1);
}

Trace read_trace(const std::string& folder, size_t spans_max, Missing& missing) {
  Trace trace;
  const std::vector<TraceFile> files = files_of(folder);
  trace.files = std::ssize(files);
  if (files.empty()) {
    missing.push_back("trace/ has no file: there is no timeline. Set trace.steps in the run file.");
    return trace;
  }
  std::set<int64_t> all;
  each_line(files[0].path, [&](std::string_view line, bool) {
    if (const std::string_view event = event_of(line); !event.empty())
      if (const std::optional<int64_t> step = step_of(event); step && all.size() < 1'000'000) all.insert(*step);
  });
  trace.traced_steps = static_cast<int64_t>(all.size());
  trace.steps = middle_steps(all);
  const std::set<int64_t> chosen(trace.steps.begin(), trace.steps.end());
  Reader reader(trace, chosen);
  for (const TraceFile& file : files) {
    reader.read(file, missing);
    if (spans_of(trace) > 50 * spans_max) break;  // shorten() leaves the rest out
  }
  if (trace.ranks.empty()) missing.push_back("trace/ has no event that can be read: there is no timeline.");
  shorten(trace, spans_max, missing);
  return trace;
}

}  // namespace slipstream::report
