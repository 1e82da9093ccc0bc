// SPDX-License-Identifier: Apache-2.0
#pragma once
// The laws of streams and events, for every device. A test file instantiates them once for each device and passes a
// function that makes the device; laws that need works to run on the host ask `device->kind()`.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "engine/base/check.h"
#include "engine/device/device.h"
#include "tests/test.hpp"

namespace slipstream::contract {

/// Runs `body` on the host when the stream reaches it. On cpu, works run there in any case; on cuda, the test file
/// passes the body to the stream as a host function.
using RunInOrder = std::function<void(LaunchContext&, std::function<void()> body)>;
inline void run_at_once(LaunchContext&, const std::function<void()>& body) { body(); }

/// A device, its works, and the order in which they ran.
struct StreamFixture {
  StreamFixture(std::unique_ptr<Device> made, RunInOrder in_order)
      : device(std::move(made)), kind(device->kind()), run_in_order(std::move(in_order)), works(256) {}
  bool runs() const { return kind != DeviceKind::sim; }

  /// Work `index`: appends its index to `ran`, after sleeping `sleep_us`.
  const Work& work(int index, int sleep_us = 0, int64_t flops = 1000000) {
    Work& made = works[static_cast<size_t>(index)];
    made.name = "work " + std::to_string(index);
    made.cost.flops = flops;
    made.fn = [this, index, sleep_us](LaunchContext& context) {
      run_in_order(context, [this, index, sleep_us] {
        if (sleep_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(sleep_us));
        const size_t at = count.fetch_add(1);
        ran[at % ran.size()] = index;
      });
    };
    return made;
  }
  const Work& failing(int index, const std::string& text) {
    Work& made = works[static_cast<size_t>(index)];
    made.name = "failing";
    made.fn = [text](LaunchContext&) { throw CommError("{}", text); };
    return made;
  }
  int position(int index) const {
    const auto end = ran.begin() + static_cast<long>(std::min(count.load(), ran.size()));
    const auto found = std::find(ran.begin(), end, index);
    return found == end ? -1 : static_cast<int>(found - ran.begin());
  }
  static std::vector<Span> spans_of(Stream& stream, Span::Kind kind) {
    std::vector<Span> all, kept;
    stream.drain(all);
    for (const Span& span : all)
      if (span.kind == kind) kept.push_back(span);
    return kept;
  }

  std::unique_ptr<Device> device;
  DeviceKind kind;
  RunInOrder run_in_order;
  std::vector<Work> works;
  std::vector<int> ran = std::vector<int>(4096, -1);
  std::atomic<size_t> count{0};
  Frame frame;
};

inline void stream_is_first_in_first_out(StreamFixture& f) {
  const auto stream = f.device->make_stream({.name = "a"});
  for (int i = 0; i < 100; ++i) stream->launch(f.work(i), f.frame);
  stream->synchronize();
  const std::vector<Span> spans = StreamFixture::spans_of(*stream, Span::Kind::work);
  REQUIRE(spans.size() == 100);
  for (size_t i = 0; i < 100; ++i) {
    CHECK(spans[i].work == &f.works[i]);
    CHECK(spans[i].begin_ns <= spans[i].end_ns);
    if (i > 0) CHECK(spans[i - 1].end_ns <= spans[i].begin_ns);
    if (f.runs()) CHECK(f.ran[i] == static_cast<int>(i));
  }
}

inline void wait_orders_streams(StreamFixture& f) {
  const auto a = f.device->make_stream({.name = "a"});
  const auto b = f.device->make_stream({.name = "b"});
  const auto c = f.device->make_stream({.name = "c"});
  const auto event = f.device->make_event(7);
  f.frame.step = 3;
  f.frame.item = 11;
  a->launch(f.work(0, 20000, 1000000000), f.frame);
  a->record(*event);
  for (Stream* stream : {b.get(), c.get()}) {
    stream->wait(*event, f.frame);
    stream->launch(f.work(stream == b.get() ? 1 : 2), f.frame);
  }
  for (Stream* stream : {a.get(), b.get(), c.get()}) stream->synchronize();
  const Span first = StreamFixture::spans_of(*a, Span::Kind::work).at(0);
  for (Stream* stream : {b.get(), c.get()}) {
    std::vector<Span> spans;
    stream->drain(spans);
    REQUIRE(spans.size() == 2);
    CHECK(spans[0].kind == Span::Kind::wait);
    CHECK(spans[0].awaited == 7);
    CHECK(spans[0].step == 3);
    CHECK(spans[0].item == 11);
    CHECK(spans[1].kind == Span::Kind::work);
    CHECK(spans[1].step == 3);
    CHECK(spans[1].begin_ns >= first.end_ns);
    CHECK(spans[1].begin_ns >= spans[0].end_ns);
  }
  CHECK(event->completed_ns() >= first.end_ns);
}

inline void wait_captures_the_latest_record_at_its_call(StreamFixture& f) {
  const auto a = f.device->make_stream({.name = "a"});
  const auto b = f.device->make_stream({.name = "b"});
  const auto event = f.device->make_event(1);
  a->launch(f.work(0), f.frame);
  a->record(*event);
  b->wait(*event, f.frame);  // captures the record after work 0
  b->launch(f.work(1), f.frame);
  if (f.runs()) b->synchronize();  // this must not need the later commands on a
  a->launch(f.work(2, 1000, 500000000), f.frame);
  a->record(*event);  // recorded again
  b->wait(*event, f.frame);
  b->launch(f.work(3), f.frame);
  a->synchronize();
  b->synchronize();
  const std::vector<Span> on_a = StreamFixture::spans_of(*a, Span::Kind::work);
  const std::vector<Span> on_b = StreamFixture::spans_of(*b, Span::Kind::work);
  REQUIRE(on_a.size() == 2);
  REQUIRE(on_b.size() == 2);
  CHECK(on_b[0].begin_ns >= on_a[0].end_ns);
  CHECK(on_b[0].end_ns <= on_a[1].end_ns);
  CHECK(on_b[1].begin_ns >= on_a[1].end_ns);
}

/// The record captured first is on a slow stream; the event is recorded again on a fast one before the wait resolves.
inline void a_later_record_elsewhere_does_not_release_a_wait(StreamFixture& f) {
  const auto slow = f.device->make_stream({.name = "slow"});
  const auto fast = f.device->make_stream({.name = "fast"});
  const auto waiter = f.device->make_stream({.name = "waiter"});
  const auto event = f.device->make_event(1);
  slow->launch(f.work(0, 20000, 1000000000), f.frame);
  slow->record(*event);
  waiter->wait(*event, f.frame);
  waiter->launch(f.work(1), f.frame);
  fast->record(*event);
  event->synchronize();
  CHECK(event->query());
  waiter->synchronize();
  CHECK(StreamFixture::spans_of(*waiter, Span::Kind::work).at(0).begin_ns >=
        StreamFixture::spans_of(*slow, Span::Kind::work).at(0).end_ns);
}

inline void no_record_no_wait(StreamFixture& f) {
  const auto stream = f.device->make_stream({.name = "a"});
  const auto event = f.device->make_event(1);
  CHECK(event->query());
  event->synchronize();
  stream->wait(*event, f.frame);
  stream->launch(f.work(0), f.frame);
  stream->synchronize();
  CHECK(StreamFixture::spans_of(*stream, Span::Kind::work).size() == 1);
}

inline void event_chain_of_ten(StreamFixture& f) {
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  for (int i = 0; i < 10; ++i) {
    streams.push_back(f.device->make_stream({.name = "s" + std::to_string(i)}));
    events.push_back(f.device->make_event(static_cast<uint64_t>(i)));
  }
  for (int round = 0; round < 3; ++round)
    for (int i = 0; i < 10; ++i) {
      if (i > 0) streams[static_cast<size_t>(i)]->wait(*events[static_cast<size_t>(i - 1)], f.frame);
      if (i == 0 && round > 0) streams[0]->wait(*events[9], f.frame);
      streams[static_cast<size_t>(i)]->launch(f.work(round * 10 + i, i % 3 * 100), f.frame);
      streams[static_cast<size_t>(i)]->record(*events[static_cast<size_t>(i)]);
    }
  events[9]->synchronize();
  CHECK(events[9]->query());
  std::vector<Span> works(30);
  for (size_t i = 0; i < 10; ++i) {
    streams[i]->synchronize();
    const auto spans = StreamFixture::spans_of(*streams[i], Span::Kind::work);
    REQUIRE(spans.size() == 3);
    for (size_t round = 0; round < 3; ++round) works[round * 10 + i] = spans[round];
  }
  for (size_t i = 1; i < works.size(); ++i) CHECK(works[i].begin_ns >= works[i - 1].end_ns);
  if (f.runs())
    for (size_t i = 0; i < works.size(); ++i) CHECK(f.ran[i] == static_cast<int>(i));
}

inline void query_follows_the_work(StreamFixture& f) {
  if (!f.runs()) return;  // in virtual time works are complete when they are launched
  const auto stream = f.device->make_stream({.name = "a"});
  const auto event = f.device->make_event(1);
  std::atomic<bool> go{false};
  Work held{.name = "held", .fn = [&](LaunchContext& context) { f.run_in_order(context, [&go] { go.wait(false); }); }};
  stream->launch(held, f.frame);
  stream->record(*event);
  CHECK_FALSE(event->query());
  go = true;
  go.notify_all();
  event->synchronize();
  CHECK(event->query());
}

inline void first_error_stops_all_streams(StreamFixture& f) {
  if (!f.runs()) return;
  const auto a = f.device->make_stream({.name = "a"});
  const auto b = f.device->make_stream({.name = "b"});
  const auto event = f.device->make_event(1);
  a->launch(f.failing(0, "the first"), f.frame);
  a->record(*event);
  b->wait(*event, f.frame);
  b->launch(f.failing(1, "the second"), f.frame);
  for (int i = 2; i < 12; ++i) {
    b->record(*event);
    a->wait(*event, f.frame);
    a->launch(f.work(i), f.frame);
    a->record(*event);
    b->wait(*event, f.frame);
    b->launch(f.work(i), f.frame);
  }
  CHECK_THROWS_WITH(a->synchronize(), "the first");
  CHECK_THROWS_WITH(b->synchronize(), "the first");
  CHECK_THROWS_AS(event->synchronize(), CommError);
  CHECK(f.count == 0);
  CHECK(event->query());
  a->launch(f.work(20), f.frame);
  CHECK_THROWS_AS(a->synchronize(), CommError);
  CHECK(f.count == 0);
}

inline void delays_keep_results(StreamFixture& f) {
  f.device->inject_delays(42, 200000);
  event_chain_of_ten(f);
}

inline void destruction_with_pending_work_is_safe(StreamFixture& f) {
  const auto b = f.device->make_stream({.name = "b"});
  {
    const auto a = f.device->make_stream({.name = "a"});
    const auto event = f.device->make_event(1);
    for (int i = 0; i < 20; ++i) a->launch(f.work(i, 100), f.frame);
    a->record(*event);
    b->wait(*event, f.frame);
    b->launch(f.work(20), f.frame);
  }
  f.device.reset();
  b->synchronize();
  if (f.runs()) CHECK(f.position(20) == 20);
}

inline void waits_of_the_host_are_counted(StreamFixture& f) {
  const auto a = f.device->make_stream({.name = "a"}), b = f.device->make_stream({.name = "b"});
  const auto event = f.device->make_event();
  const auto memory = f.device->allocate(64, "memory");
  const int64_t before = f.device->host_wait_count();
  a->record(*event);
  b->wait(*event, {});
  CHECK(f.device->host_wait_count() == before);
  const int64_t each = f.runs() ? 1 : 0;  // virtual time needs no waits
  event->synchronize();
  CHECK(f.device->host_wait_count() == before + each);
  b->synchronize();
  CHECK(f.device->host_wait_count() == before + 2 * each);
  int value = 0;
  f.device->copy_from_host(memory->data(), &value, sizeof value);
  CHECK(f.device->host_wait_count() == before + 3 * each);
  if (f.runs()) f.device->copy_to_host(&value, memory->data(), sizeof value);
  CHECK(f.device->host_wait_count() == before + 4 * each);
}

inline void allocations_are_counted(StreamFixture& f) {
  const int64_t before = f.device->allocation_count();
  const auto empty = f.device->allocate(0, "empty");
  const auto memory = f.device->allocate(5000, "five thousand");
  CHECK(f.device->allocation_count() == before + 2);
  CHECK(memory->size_bytes() == 5000);
  CHECK(empty->size_bytes() == 0);
  REQUIRE(memory->data() != nullptr);
  CHECK(reinterpret_cast<uintptr_t>(memory->data()) % 4096 == 0);
  if (!f.runs()) return;
  std::vector<std::byte> bytes(5000, std::byte{1});
  f.device->copy_to_host(bytes.data(), memory->data(), 5000);
  CHECK(std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
  const int values[] = {1, 2, 3};
  int back[3] = {};
  f.device->copy_from_host(memory->data(), values, sizeof values);
  f.device->copy_to_host(back, memory->data(), sizeof back);
  CHECK(back[2] == 3);
  CHECK_THROWS_AS(f.device->allocate(int64_t{1} << 50, "a petabyte"), ResourceError);
}

inline void drain_hands_each_span_out_once(StreamFixture& f) {
  const auto stream = f.device->make_stream({.name = "a"});
  for (int i = 0; i < 5; ++i) stream->launch(f.work(i), f.frame);
  stream->synchronize();
  std::vector<Span> spans(1);
  stream->drain(spans);
  CHECK(spans.size() == 6);
  stream->drain(spans);
  CHECK(spans.size() == 6);
}

/// Every law, each on a fresh device.
template <typename MakeDevice>
void check_stream_contract(MakeDevice make_device, const RunInOrder& in_order = run_at_once) {
  using Law = void (*)(StreamFixture&);
  const std::pair<const char*, Law> laws[] = {
      {"a stream is first in, first out", stream_is_first_in_first_out},
      {"after a wait for one stream, two streams have its order", wait_orders_streams},
      {"a wait captures the latest record at its call", wait_captures_the_latest_record_at_its_call},
      {"a later record elsewhere does not release a wait", a_later_record_elsewhere_does_not_release_a_wait},
      {"no record, no wait", no_record_no_wait},
      {"a chain of ten events keeps its order", event_chain_of_ten},
      {"query follows the work", query_follows_the_work},
      {"the first error stops all streams without a hang", first_error_stops_all_streams},
      {"delays keep results", delays_keep_results},
      {"destruction with pending work is safe", destruction_with_pending_work_is_safe},
      {"allocations are counted, aligned and zeroed", allocations_are_counted},
      {"waits of the host are counted", waits_of_the_host_are_counted},
      {"drain hands each span out once", drain_hands_each_span_out_once},
  };
  for (const auto& [name, law] : laws) DYNAMIC_SECTION(name) {
      StreamFixture fixture(make_device(), in_order);
      law(fixture);
    }
}

}  // namespace slipstream::contract
