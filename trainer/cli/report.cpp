// SPDX-License-Identifier: Apache-2.0
// Runs slipstream report: writes one HTML page about a run or a sweep, or a comparison of several runs.

#include <filesystem>
#include <memory>

#include "engine/base/files.h"
#include "engine/base/print.h"
#include "engine/base/units.h"
#include "trainer/cli/command_line.h"
#include "trainer/report/page.h"

namespace slipstream::cli {
namespace {

struct ReportOptions {
  std::vector<std::string> folders;
  std::string output;  // empty: default_path()
};

/// Returns a path in the first folder: its own page, or, for a comparison, a page with another name.
std::string default_path(const std::vector<std::string>& folders) {
  constexpr size_t kLongest = 200;
  std::string others;
  for (size_t i = 1; i < folders.size(); ++i) {
    std::error_code error;
    others += "-" + std::filesystem::weakly_canonical(folders[i], error).filename().string();
  }
  if (others.size() > kLongest) others = fmt::format("-{}-runs", folders.size() - 1);
  return folders.front() + (others.empty() ? "/report.html" : "/report-with" + others + ".html");
}

int report(const ReportOptions& options) {
  const report::Page page = report::make_page(options.folders);
  const std::string path = options.output.empty() ? default_path(options.folders) : options.output;
  files::write_file(path, page.html);
  for (const std::string& sentence : page.missing) print_result("{}\n", sentence);
  print_result("{} ({})\n", path, format_bytes(static_cast<int64_t>(page.html.size())));
  return 0;
}

}  // namespace

void add_report(CLI::App& app, Run& chosen) {
  const auto options = std::make_shared<ReportOptions>();
  CLI::App* command =
      app.add_subcommand("report", "write one HTML page about a run or a sweep, or a comparison of several runs");
  command->add_option("runs", options->folders, "folders of runs (output.dir), or of one sweep")->required();
  command->add_option(
      "--output", options->output,
      "path of the page; default: report.html in the first folder; for a comparison, report-with-OTHERS.html");
  command->callback(
      [&chosen, options] { chosen = [options] { return alone("report", [&] { return report(*options); }); }; });
}

}  // namespace slipstream::cli
