// SPDX-License-Identifier: Apache-2.0
// The texts of a step's metrics: a line of JSON that reads back exactly, and the line for users.

#include "engine/report/metrics.h"

#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>

#include "engine/base/json.h"
#include "tests/paths.h"
#include "tests/test.hpp"

using namespace slipstream;

namespace {

StepMetrics example() {
  return {.step = 120,
          .loss = 2.3141592653589793,
          .learning_rate = 1e-3,
          .grad_norm = 0.1 + 0.2,
          .tokens = 768,
          .step_ms = 45.2,
          .compute_ms = 40.0,
          .comm_ms = 12.3,
          .exposed_ms = 0.8,
          .hidden_ms = 11.5,
          .exposed_ms_max = 1.1,
          .input_ms = 0.25,
          .other_ms = 4.15,
          .skew_ms = 0.5,
          .bound_ms = 43.4};
}

}  // namespace

TEST_CASE("the step line as printed", "[metrics]") {
  CHECK(metrics_line(example(), 2000, 92) ==
        "step 120/2000 | loss 2.314 | lr 1.0e-03 | norm 0.30 | 45.2 ms | 17.0k tok/s | comm 12.3 ms, exposed 0.8 (93% "
        "hidden) | 96% of bound | eta 1m32s");
  StepMetrics alone = example();
  alone.comm_ms = alone.exposed_ms = 0;
  alone.bound_ms.reset();
  alone.val_loss = 1.9;
  alone.grad_norm.reset();
  CHECK(metrics_line(alone, 120, 0) ==
        "step 120/120 | loss 2.314 | val 1.900 | lr 1.0e-03 | 45.2 ms | 17.0k tok/s | eta 0s");
}

TEST_CASE("the remaining time", "[metrics]") {
  CHECK(format_eta(0) == "0s");
  CHECK(format_eta(59.4) == "59s");
  CHECK(format_eta(59.6) == "1m00s");
  CHECK(format_eta(92) == "1m32s");
  CHECK(format_eta(3599.6) == "1h00m");
  CHECK(format_eta(3 * 3600 + 5 * 60) == "3h05m");
  CHECK(format_eta(100 * 3600.0) == "100h00m");
}

TEST_CASE("a line of metrics.jsonl has the documented keys and reads back exactly", "[metrics]") {
  StepMetrics m = example();
  m.val_loss = 1.0 / 3;
  m.mfu = 0.41;
  m.exposed_by = {{"reduce.3", 0.7}, {"gather.0", 0.1}};
  m.params_hash = "0123456789abcdef0123456789abcdef";
  const std::string line = metrics_json(m);
  CHECK(line.find('\n') == std::string::npos);
  const Json json = Json::parse(line);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.as_object()) keys.push_back(key);
  CHECK(keys == std::vector<std::string>{"step",       "loss",     "val_loss",     "lr",         "grad_norm",
                                         "tokens",     "step_ms",  "tokens_per_s", "compute_ms", "comm_ms",
                                         "exposed_ms", "hidden",   "exposed_by",   "mfu",        "exposed_ms_max",
                                         "input_ms",   "other_ms", "skew_ms",      "bound_ms",   "params_hash"});
  CHECK(json.at("step").as_int() == 120);
  CHECK(json.at("tokens").as_int() == 768);
  CHECK(json.at("loss").as_double() == m.loss);
  CHECK(json.at("val_loss").as_double() == *m.val_loss);
  CHECK(json.at("grad_norm").as_double() == 0.1 + 0.2);
  CHECK(json.at("exposed_by").at("reduce.3").as_double() == 0.7);
  CHECK(json.at("exposed_by").at("gather.0").as_double() == 0.1);
  CHECK(json.at("hidden").as_double() == 1.0 - 0.8 / 12.3);
  CHECK(json.at("tokens_per_s").as_double() == 1e3 * 768 / 45.2);
  CHECK(json.at("params_hash").as_string() == m.params_hash);
}

TEST_CASE("values for other sinks are the numbers of the line", "[metrics]") {
  StepMetrics m = example();
  m.val_loss = m.mfu = m.bubble_ms = 1;
  m.skipped = true;
  m.exposed_by = {{"reduce.3", 0.7}};
  m.params_hash = "0123456789abcdef0123456789abcdef";
  const Json json = Json::parse(metrics_json(m));
  size_t numbers = 0;
  for (const auto& [key, value] : json.as_object()) numbers += key != "step" && (value.is_number() || value.is_bool());
  const auto values = metric_values(m);
  CHECK(values.size() == numbers);
  for (const auto& [name, value] : values) {
    INFO(name);
    REQUIRE(value.has_value());
    const Json& there = json.at(name);
    CHECK(*value == (there.is_bool() ? 1 : there.as_double()));
  }
  m.loss = std::numeric_limits<double>::quiet_NaN();
  m.val_loss.reset();
  CHECK(!metric_values(m)[0].second.has_value());
  CHECK(!metric_values(m)[1].second.has_value());
}

TEST_CASE("docs/reference/metrics.md names every field of a line, in its order, and no other", "[metrics]") {
  std::ifstream file(source_dir() + "/docs/reference/metrics.md", std::ios::binary);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  std::istringstream section(page.substr(page.find("## metrics.jsonl"), page.find("## Live metrics")));
  std::vector<std::string> listed, written;
  for (std::string line; std::getline(section, line);)
    if (line.starts_with("| `")) listed.push_back(line.substr(3, line.find('`', 3) - 3));
  for (const MetricField& field : metric_fields()) written.emplace_back(field.name);
  CHECK(listed == written);
  StepMetrics m = example();
  m.val_loss = m.mfu = m.bubble_ms = 1;
  m.exposed_by = {{"reduce.3", 0.7}};
  m.params_hash = "0123456789abcdef0123456789abcdef";
  const Json json = Json::parse(metrics_json(m));
  CHECK(json.as_object().size() == 21);  // a new field must be added here and on the page
  for (const auto& [key, value] : json.as_object()) {
    INFO(key);
    CHECK(page.find("| `" + key + "` |") != std::string::npos);
  }
}

TEST_CASE("unknown values are null or absent, never a number", "[metrics]") {
  StepMetrics m = example();
  m.grad_norm.reset();
  m.bound_ms.reset();
  m.comm_ms = m.exposed_ms = 0;
  const Json json = Json::parse(metrics_json(m));
  CHECK(json.at("grad_norm").is_null());
  CHECK(json.at("hidden").is_null());
  for (const char* key : {"val_loss", "mfu", "bound_ms", "params_hash"}) CHECK(json.find(key) == nullptr);
  CHECK(!m.hidden().has_value());
  StepMetrics zero;
  CHECK(zero.tokens_per_s() == 0);
  CHECK(Json::parse(metrics_json(zero)).at("tokens_per_s").as_double() == 0);
}

TEST_CASE("hidden is the share of communication while compute runs, whatever is exposed", "[metrics]") {
  StepMetrics m;
  m.comm_ms = 120;
  for (double exposed_ms : {0.0, 60.0, 150.0}) {
    m.exposed_ms = exposed_ms;
    for (double hidden_ms : {0.0, 30.0, 60.0, 120.0}) {
      m.hidden_ms = hidden_ms;
      CHECK(*m.hidden() == Approx(hidden_ms / 120));
    }
  }
}
