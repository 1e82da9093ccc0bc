// SPDX-License-Identifier: Apache-2.0
// Converts spans to trace events: works as slices, waits as slices named <waiter>_wait_<awaited>.

#include "engine/report/trace.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/disk.h"
#include "engine/base/folder.h"
#include "engine/base/json.h"

namespace slipstream {

TraceWriter::TraceWriter(const Job& job, int rank, int64_t first_step, int64_t last_step, std::string path)
    : job_(job),
      rank_(rank),
      first_(first_step),
      last_(last_step),
      path_(std::move(path)),
      spans_(job.channels.size()) {}

void TraceWriter::add(ChannelId channel, const std::vector<Span>& spans) {
  for (const Span& span : spans)
    if (wants(span.step) && !finished_) spans_[channel].push_back(span);
}

/// `item` is the item of the plan. `bytes` is what a kernel moves from and to memory, or what a task's elements occupy.
void TraceWriter::write_event(std::FILE* file, ChannelId c, const Span& span) const {
  const auto [row, id] = job_.of_timeline(span.item);
  const Item& item = row->plan[id];
  const bool is_work = span.kind == Span::Kind::work;
  const auto awaited_channel = static_cast<ChannelId>(span.awaited >> 32);
  const auto [awaited_row, awaited_id] = job_.of_timeline(is_work ? 0 : static_cast<uint32_t>(span.awaited));
  const std::string awaited = is_work ? "" : awaited_row->plan[awaited_id].name;
  const std::string name = !is_work                       ? item.name + "_wait_" + awaited
                           : span.work->name == item.name ? item.name
                                                          : item.name + "/" + span.work->name;
  const int64_t duration_ns = span.end_ns - span.begin_ns;
  fmt::print(file,
             ",\n{{\"ph\": \"X\", \"cat\": \"{}\", \"name\": {}, \"pid\": {}, \"tid\": {}, \"ts\": {}.{:03}, \"dur\": "
             "{}.{:03}, \"args\": {{\"step\": {}, \"stream\": {}, \"item\": {}",
             !is_work                              ? "wait"
             : job_.channels[c].axis == Axis::self ? "kernel"
                                                   : "communication",
             Json(name).dump(), rank_, c, span.begin_ns / 1000, span.begin_ns % 1000, duration_ns / 1000,
             duration_ns % 1000, span.step, c, Json(item.name).dump());
  if (!is_work) {
    fmt::print(file, ", \"awaited\": {}, \"awaited stream\": {}", Json(awaited).dump(), awaited_channel);
  } else if (is_communication(item.op)) {
    const Task& task = row->plan.task(id);
    fmt::print(file,
               ", \"Collective name\": \"{}\", \"In msg nelems\": {}, \"Out msg nelems\": {}, \"Group size\": {}, "
               "\"dtype\": \"{}\", \"bytes\": {}",
               name_of(task.op), task.elems, task.elems, job_.mesh.group_size(job_.channels[c].axis),
               name_of(task.dtype), task.elems * size_of(task.dtype));
  } else {
    fmt::print(file, ", \"flops\": {}, \"bytes\": {}", span.work->cost.flops, span.work->cost.bytes);
  }
  fmt::print(file, "}}}}");
}

void TraceWriter::finish() {
  if (std::exchange(finished_, true)) return;
  std::error_code error;
  const bool is_empty = std::all_of(spans_.begin(), spans_.end(), [](const auto& spans) { return spans.empty(); });
  if (is_empty && std::filesystem::exists(path_, error)) return;
  const std::string temporary = path_ + ".tmp";
  std::FILE* file = std::fopen(temporary.c_str(), "w");
  if (!file)
    throw ResourceError("[trace] {} cannot be written: {}. {}", files::real_name(temporary), std::strerror(errno),
                        files::disk_remedy(errno, "set output.dir to another folder"));
  // Trace tools find the rank by the text "rank": N, including the space.
  fmt::print(file,
             "{{\"displayTimeUnit\": \"ns\", \"distributedInfo\": {{\"rank\": {}, \"backend\": \"mpi\", "
             "\"world_size\": {}}},\n\"traceEvents\": [\n",
             rank_, job_.mesh.world());
  fmt::print(
      file,
      "{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {}, \"tid\": 0, \"args\": {{\"name\": \"rank {}\"}}}}",
      rank_, rank_);
  // These names come before all events, so that a reader knows the channel of every awaited task.
  for (ChannelId c = 0; c < spans_.size(); ++c) {
    fmt::print(
        file,
        ",\n{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \"args\": {{\"name\": \"{}\"}}}}",
        rank_, c, job_.channels[c].name);
    fmt::print(file,
               ",\n{{\"ph\": \"M\", \"name\": \"thread_sort_index\", \"pid\": {}, \"tid\": {}, \"args\": "
               "{{\"sort_index\": {}}}}}",
               rank_, c, c);
  }
  for (ChannelId c = 0; c < spans_.size(); ++c)
    for (const Span& span : spans_[c]) write_event(file, c, span);
  spans_.assign(spans_.size(), {});
  fmt::print(file, "\n]}}\n");
  const bool failed = std::ferror(file) != 0;
  if (std::fclose(file) != 0 || failed || std::rename(temporary.c_str(), path_.c_str()) != 0) {
    const int number = errno;
    std::remove(temporary.c_str());
    throw ResourceError("[trace] {} cannot be written: {}. {}", files::real_name(path_), std::strerror(number),
                        files::disk_remedy(number, "set output.dir to another folder"));
  }
}

}  // namespace slipstream
