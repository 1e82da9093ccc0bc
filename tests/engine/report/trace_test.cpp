// SPDX-License-Identifier: Apache-2.0
// The timeline file is strict JSON with one row for each stream, and waits are named <waiter>_wait_<awaited>.

#include "engine/report/trace.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <unistd.h>

#include "engine/base/check.h"
#include "engine/base/json.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

/// Two spine items, and an all-reduce on a stream of its own, for which the second item waits.
Job tiny_job() {
  Job job;
  job.mesh = Mesh({.data = 2});
  job.channels = {{Role::compute, Axis::self}, {Role::h2d, Axis::self}, {Role::reduce, Axis::data}};
  SpineItem backward, update;
  backward.name = "mlp_out_gradient.3";
  update.name = "adamw.bucket0";
  update.op = Op::update;
  job.train().spine = {backward, update};
  Task reduce;
  reduce.name = "all_reduce.bucket0";
  reduce.op = Op::all_reduce;
  reduce.channel = 2;
  reduce.elems = 256;
  reduce.dtype = DType::f32;
  job.train().tasks = {reduce};
  return job;
}

std::string folder() {
  std::string path = (std::filesystem::temp_directory_path() / "slipstream_trace_XXXXXX").string();
  REQUIRE(mkdtemp(path.data()) != nullptr);
  return path;
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

}  // namespace

TEST_CASE("a timeline parses and names its rows, works and waits", "[trace]") {
  const Job job = tiny_job();
  const std::string dir = folder(), path = dir + "/rank0001.json";
  const Work matmul{.name = "matmul \"wide\""}, reduce{.name = "all_reduce.bucket0"}, adamw{.name = "adamw.bucket0"};
  TraceWriter writer(job, 1, 10, 11, path);
  CHECK(!writer.wants(9));
  CHECK(writer.wants(10));
  CHECK(!writer.wants(12));
  writer.add(
      0,
      {{.kind = Span::Kind::work, .work = &matmul, .item = 0, .step = 9, .begin_ns = 100, .end_ns = 200},
       {.kind = Span::Kind::work, .work = &matmul, .item = 0, .step = 10, .begin_ns = 1'000'005, .end_ns = 2'000'004},
       {.kind = Span::Kind::wait,
        .awaited = uint64_t{2} << 32 | 2,
        .item = 1,
        .step = 10,
        .begin_ns = 2'000'004,
        .end_ns = 2'500'000},
       {.kind = Span::Kind::work, .work = &adamw, .item = 1, .step = 10, .begin_ns = 2'500'000, .end_ns = 2'600'000}});
  writer.add(
      2,
      {{.kind = Span::Kind::wait, .awaited = 0, .item = 2, .step = 11, .begin_ns = 1, .end_ns = 2},
       {.kind = Span::Kind::work, .work = &reduce, .item = 2, .step = 11, .begin_ns = 1'500'000, .end_ns = 2'500'000}});
  CHECK(!std::filesystem::exists(path));
  writer.finish();

  const std::string text = text_of(path);
  CHECK(text.find("\"distributedInfo\": {\"rank\": 1") != std::string::npos);
  const Json trace = Json::parse(text, path);
  CHECK(trace.at("distributedInfo").at("rank").as_int() == 1);
  CHECK(trace.at("distributedInfo").at("world_size").as_int() == 2);
  std::vector<std::string> rows, names;
  double end_of_wait = 0;
  for (const Json& event : trace.at("traceEvents").as_array()) {
    CHECK(event.at("pid").as_int() == 1);
    if (event.at("ph").as_string() == "M") {
      if (event.at("name").as_string() == "thread_name") rows.push_back(event.at("args").at("name").as_string());
      continue;
    }
    REQUIRE(event.at("ph").as_string() == "X");
    names.push_back(event.at("name").as_string());
    CHECK(event.at("ts").as_double() >= 0);
    CHECK(event.at("dur").as_double() >= 0);
    CHECK(event.at("args").at("step").as_int() >= 10);
    if (names.back() == "adamw.bucket0_wait_all_reduce.bucket0") {
      CHECK(event.at("cat").as_string() == "wait");
      CHECK(event.at("tid").as_int() == 0);
      CHECK(event.at("ts").as_double() == 2000.004);  // in microseconds
      end_of_wait = event.at("ts").as_double() + event.at("dur").as_double();
    }
  }
  CHECK(rows == std::vector<std::string>{"compute", "h2d", "reduce"});
  CHECK(names == std::vector<std::string>{"mlp_out_gradient.3/matmul \"wide\"", "adamw.bucket0_wait_all_reduce.bucket0",
                                          "adamw.bucket0", "all_reduce.bucket0_wait_mlp_out_gradient.3",
                                          "all_reduce.bucket0"});
  CHECK(end_of_wait == Approx(2500.0));
  CHECK(std::distance(std::filesystem::directory_iterator(dir), {}) == 1);  // no temporary is left
  std::filesystem::remove_all(dir);
}

TEST_CASE("a timeline without spans is a valid file", "[trace]") {
  const Job job = tiny_job();
  const std::string dir = folder();
  TraceWriter(job, 0, 1, 1, dir + "/rank0000.json").finish();
  CHECK(Json::parse(text_of(dir + "/rank0000.json")).at("traceEvents").as_array().size() == 7);
  std::filesystem::remove_all(dir);
}

TEST_CASE("a timeline that cannot be written gives an error", "[trace]") {
  const Job job = tiny_job();
  TraceWriter writer(job, 0, 1, 1, "/dev/null/trace/rank0000.json");
  CHECK_THROWS_AS(writer.finish(), ResourceError);
}
