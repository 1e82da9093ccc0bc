// SPDX-License-Identifier: Apache-2.0
// Puts the data of the runs, the style and the scripts into one HTML file.

#include "trainer/report/page.h"

#include <deque>

#include "engine/base/check.h"
#include "trainer/report/page_data.h"
#include "trainer/report/page_files.h"
#include "trainer/report/sweep.h"

namespace slipstream::report {
namespace {

/// Returns text that is safe between tags.
std::string html_safe(const std::string& text) {
  std::string safe;
  for (char c : Json(text).dump()) {  // valid UTF-8
    if (c == '<' || c == '>' || c == '&' || c == '"')
      safe += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : "";
    else
      safe += c;
  }
  return safe;
}

}  // namespace

std::string script_safe(const std::string& json) {
  std::string safe;
  safe.reserve(json.size() + json.size() / 64);
  bool in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_text && c == '\\' && i + 1 < json.size()) {
      safe += c;
      safe += json[++i];
      continue;
    }
    if (c == '"') in_text = !in_text;
    if (c == '<' || c == '>' || c == '&')
      safe += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else if (c != ' ' || in_text)  // spaces between values
      safe += c;
  }
  return safe;
}

namespace {

Page page_of(const std::string& title, const Json& data, Missing missing) {
  Page page;
  page.missing = std::move(missing);
  page.html = fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
      "script-src 'unsafe-inline'; img-src data:\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<link rel=\"icon\" href=\"data:,\">\n"
      "<title>{} - Slipstream</title>\n<style>\n{}</style>\n</head>\n{}"
      "<script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{}</script>\n</html>\n",
      html_safe(title), kPageStyle, kPageBody, script_safe(data.dump()), kPageScript);
  return page;
}

Page page_of_sweep(const std::string& folder) {
  Missing missing;
  Json sweep = sweep_data(folder, missing);
  sweep["missing"] = Json::array();
  for (const std::string& sentence : missing) sweep["missing"].push_back(sentence);
  const std::string title = sweep.at("name").as_string();
  Json data = Json::object();
  data["runs"] = Json::array();
  data["sweep"] = std::move(sweep);
  return page_of(title, data, std::move(missing));
}

}  // namespace

Page make_page(const std::vector<std::string>& folders) {
  for (const std::string& folder : folders)
    if (is_sweep(folder)) {
      if (folders.size() > 1)
        throw ConfigError("[report] {} is the folder of a sweep, which has a page of its own. Give it alone.", folder);
      return page_of_sweep(folder);
    }
  if (folders.size() > kMostRuns)
    throw ConfigError("[report] {} runs are too many for one page. Give at most {}.", folders.size(), kMostRuns);
  Missing missing;
  Json runs = Json::array();
  std::string title;
  std::deque<RunFolder> read;  // a deque, so that references stay valid
  for (const std::string& folder : folders) {
    RunFolder& run = read.emplace_back(read_run(folder, kMostSpans / folders.size()));
    runs.push_back(page_data(run));
    title += (title.empty() ? "" : ", ") + run.name;
    for (const std::string& sentence : run.missing)
      missing.push_back(folders.size() > 1 ? fmt::format("{}: {}", run.name, sentence) : sentence);
  }
  Json data = Json::object();
  data["runs"] = std::move(runs);
  if (read.size() > 1) {
    std::vector<const RunFolder*> compared;
    for (const RunFolder& run : read) compared.push_back(&run);
    add_comparison(compared, data);
  }
  return page_of(title, data, std::move(missing));
}

}  // namespace slipstream::report
