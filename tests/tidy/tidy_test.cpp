// SPDX-License-Identifier: Apache-2.0
// Every file of the tree keeps the rules, and every rule detects its violation.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <fmt/core.h>

#include "tests/paths.h"
#include "tests/test.hpp"
#include "tests/tidy/long_functions.h"
#include "tests/tidy/rules.h"

using namespace slipstream::tidy;

namespace {

const std::vector<File>& tree() {
  static const std::vector<File> files = [] {
    namespace fs = std::filesystem;
    const fs::path root = slipstream::source_dir();
    std::vector<File> found;
    const auto add = [&](const fs::path& path) {
      std::ifstream stream(path, std::ios::binary);
      std::ostringstream text;
      text << stream.rdbuf();
      found.push_back({fs::relative(path, root).generic_string(), text.str()});
    };
    for (const char* folder :
         {".ci", ".github", "comm", "configs", "engine", "kernels", "models", "trainer", "scripts", "tests", "docs"}) {
      if (!fs::exists(root / folder)) continue;
      for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
        static const std::set<std::string> kinds = {".cpp", ".h",  ".hpp",  ".cu",    ".cuh",
                                                    ".sh",  ".py", ".toml", ".build", ".md"};
        const bool wanted = kinds.contains(entry.path().extension().string()) || entry.path().filename() == "run";
        if (entry.is_regular_file() && wanted) add(entry.path());
      }
    }
    for (const char* file : {"meson.build", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"}) add(root / file);
    return found;
  }();
  return files;
}

template <typename Rule>
std::string all_findings(Rule rule) {
  std::string list;
  for (const File& file : tree())
    for (const std::string& finding : rule(file)) list += finding + "\n";
  return list;
}

std::string joined(const Findings& findings) {
  std::string list;
  for (const std::string& finding : findings) list += finding + "\n";
  return list;
}

}  // namespace

TEST_CASE("the tree has the expected files", "[tidy]") {
  CHECK(tree().size() > 200);
  for (const char* path : {"trainer/cli/main.cpp", "engine/plan/plan.h", "kernels/matmul/matmul.h",
                           "comm/scheduler.cpp", "scripts/test.sh", ".ci/run"}) {
    INFO(path);
    CHECK(std::any_of(tree().begin(), tree().end(), [&](const File& file) { return file.path == path; }));
  }
}

TEST_CASE("every file begins with its licence", "[tidy]") { CHECK(all_findings(check_licence) == ""); }
TEST_CASE("every header begins with #pragma once and its purpose", "[tidy]") {
  CHECK(all_findings(check_header) == "");
}
TEST_CASE("include arrows point down", "[tidy]") { CHECK(all_findings(check_arrows) == ""); }
TEST_CASE("includes form no cycle", "[tidy]") { CHECK(joined(check_cycles(tree())) == ""); }
TEST_CASE("every vendor stays in its folder", "[tidy]") { CHECK(all_findings(check_vendors) == ""); }
TEST_CASE("no banned call", "[tidy]") { CHECK(all_findings(check_calls) == ""); }
TEST_CASE("every note of later work has an issue number", "[tidy]") { CHECK(all_findings(check_leftovers) == ""); }
TEST_CASE("no line of a source is wider than 120 columns", "[tidy]") { CHECK(all_findings(check_width) == ""); }
TEST_CASE("no line of Markdown is wider than 120 columns", "[tidy]") {
  CHECK(all_findings(check_markdown_width) == "");
}
TEST_CASE("no comment of a header has a command of Doxygen", "[tidy]") { CHECK(all_findings(check_doxygen) == ""); }
TEST_CASE("scripts/format.sh changes no source", "[tidy]") {
  CHECK(std::system((slipstream::source_dir() + "/scripts/format.sh --check").c_str()) == 0);
}
TEST_CASE("every op documents shapes, cost and source", "[tidy]") { CHECK(all_findings(check_card) == ""); }
TEST_CASE("header-heavy libraries have one user", "[tidy]") { CHECK(joined(check_single_includes(tree())) == ""); }
TEST_CASE("every source is built", "[tidy]") { CHECK(joined(check_built(tree())) == ""); }

TEST_CASE("release notes can be made of the fragments", "[tidy]") {
  CHECK(std::system((slipstream::source_dir() + "/scripts/release_notes.sh 0 --print >/dev/null").c_str()) == 0);
}

TEST_CASE("no function has more than 70 lines, except those of a list that shrinks", "[tidy]") {
  CHECK(joined(check_function_lengths(tree(), kLongFunctions)) == "");
}

TEST_CASE("lengths of files are reported", "[tidy]") {
  std::printf("%s", joined(long_files(tree(), 500)).c_str());
  CHECK(long_files({{"a.cpp", "1\n2\n3\n"}}, 3).empty());
  CHECK(joined(long_files({{"a.cpp", "1\n2\n3\n4"}}, 3)) == "a.cpp: 4 lines; a file aims at 250\n");
}

TEST_CASE("rule: comments and literals are not code", "[tidy]") {
  CHECK(code_only("a // b\nc") == "a     \nc");
  CHECK(code_only("a /* b\nc */ d") == "a     \n     d");
  CHECK(code_only("f(\"x \\\" y\", 'z')") == "f(\"      \", ' ')");
  CHECK(code_only("1'000'000 + x") == "1'000'000 + x");
  CHECK(code_only("f(R\"(a \" {\n)\", 'z')") == "f(        \n  , ' ')");
  CHECK(code_only("f(R\"m(a)\")m\") + R\"x\"") == "f(          ) + R\" \"");
  CHECK(code_only("#include \"a/b.h\"") == "#include \"a/b.h\"");
}

TEST_CASE("rule: licence", "[tidy]") {
  CHECK(check_licence({"a.cpp", "// SPDX-License-Identifier: Apache-2.0\n"}).empty());
  CHECK(check_licence({"a.sh", "#!/bin/sh\n# SPDX-License-Identifier: Apache-2.0\n"}).empty());
  CHECK(check_licence({"a.cpp", "\n// SPDX-License-Identifier: Apache-2.0\n"}).size() == 1);
  CHECK(check_licence({"a.cpp", "// SPDX-License-Identifier: MIT\n"}).size() == 1);
  CHECK(check_licence({"a.toml", ""}).size() == 1);
  CHECK(check_licence({".gitignore", "/build/"}).size() == 1);
  CHECK(check_licence({"a.md", "<!-- SPDX-License-Identifier: Apache-2.0 -->\n"}).empty());
  CHECK(check_licence({"a.md", "text"}).size() == 1);
  CHECK(check_licence({"LICENSE", "text"}).empty());
}

TEST_CASE("rule: header", "[tidy]") {
  CHECK(check_header({"a.h", "// SPDX\n#pragma once\n// What it is.\n"}).empty());
  CHECK(check_header({"a.h", "// SPDX\n// What it is.\n#pragma once\n"}).size() == 1);
  CHECK(check_header({"a.h", "// SPDX\n#pragma once\n\n#include <a>\n"}).size() == 1);
}

TEST_CASE("rule: width", "[tidy]") {
  const std::string page(120, 'x');
  CHECK(check_width({"a.cpp", page + "\n" + page}).empty());
  CHECK(check_width({"a.cpp", "x\n" + page + "y\n"}) ==
        Findings{"a.cpp:2: 121 columns of at most 120. scripts/format.sh breaks the line."});
  CHECK(check_width({"a.cpp", std::string(119, 'x') + "·\n"}).empty());
  CHECK(check_width({"a.md", page + "y"}).empty());
}

TEST_CASE("rule: width of Markdown", "[tidy]") {
  const auto one = [](const std::string& text) { return check_markdown_width({"a.md", text}).size(); };
  const std::string wide = std::string(60, 'x') + " " + std::string(60, 'x'), word(121, 'x');
  CHECK(check_markdown_width({"a.md", "x\n" + wide + "\n"}) ==
        Findings{"a.md:2: 121 columns of at most 120. Break the line at a space."});
  CHECK(one(wide.substr(1)) == 0);
  CHECK(check_markdown_width({"a.txt", wide}).empty());
  CHECK(one("| " + wide + " |") == 0);
  CHECK(one("```\n" + wide + "\n```\n") == 0);
  CHECK(one("```\n```\n" + wide) == 1);
  CHECK(one("x\n\n    " + wide + "\n\n    " + wide) == 0);
  CHECK(one("- x\n    " + wide) == 1);
  CHECK(one("x\n\n    y\n" + wide) == 1);
  CHECK(one(word) == 0);
  CHECK(one("- " + word) == 0);
  CHECK(one("- y " + word) == 1);
}

TEST_CASE("rule: commands of Doxygen") {
  CHECK(check_doxygen({"a.h", "/// PLACE@RANK\n  /// \\s\n// @ \\s\n/// plain\n"}).size() == 2);
  CHECK(check_doxygen({"a.cpp", "/// PLACE@RANK\n"}).empty());
}

TEST_CASE("rule: arrows", "[tidy]") {
  const auto one = [](const char* path, const char* include) {
    return check_arrows({path, std::string("#include \"") + include + "\"\n"}).size();
  };
  CHECK(one("engine/plan/a.cpp", "kernels/matmul/matmul.h") == 1);
  CHECK(one("engine/plan/a.cpp", "engine/base/check.h") == 0);
  CHECK(one("engine/base/a.cpp", "engine/device/device.h") == 1);
  CHECK(one("engine/plan/a.cpp", "engine/config/config.h") == 1);
  CHECK(one("engine/new/a.cpp", "engine/base/check.h") == 1);
  CHECK(one("kernels/adamw/a.cpp", "comm/scheduler.h") == 1);
  CHECK(one("comm/a.cpp", "kernels/adamw/adamw.h") == 1);
  CHECK(one("models/a.cpp", "comm/scheduler.h") == 1);
  CHECK(one("models/a.cpp", "kernels/adamw/adamw.h") == 0);
  CHECK(one("trainer/cli/a.cpp", "comm/scheduler.h") == 0);
  CHECK(one("trainer/cli/a.cpp", "tests/test.hpp") == 1);
  CHECK(one("tests/a.cpp", "comm/scheduler.h") == 0);
  CHECK(one("comm/mpi/a.cpp", "comm/host/transport.h") == 0);
  CHECK(one("comm/host/a.cpp", "comm/mpi/mpi_world.h") == 1);
  CHECK(one("comm/mpi/a.cpp", "comm/nccl/nccl.h") == 1);
  CHECK(one("comm/link.cpp", "comm/link.h") == 0);
  CHECK(one("comm/link.cpp", "comm/scheduler.h") == 1);
  CHECK(one("comm/new.cpp", "comm/link.h") == 1);
  CHECK(one("kernels/cuda/a.h", "kernels/gelu/gelu.h") == 1);
  CHECK(one("kernels/gelu/gelu.cu", "kernels/cuda/common.cuh") == 0);
  CHECK(one("kernels/gelu/gelu.cpp", "kernels/rope/rope.h") == 1);
  CHECK(one("kernels/new/new.cpp", "kernels/common/checks.h") == 0);
  CHECK(one("models/layers/a.cpp", "models/generation.h") == 1);
  CHECK(one("models/registry.cpp", "models/generation.h") == 0);
  CHECK(one("engine/data/tokenizers/a.cpp", "engine/data/datasets/shards.h") == 1);
  CHECK(one("engine/data/datasets/a.cpp", "engine/data/tokenizers/bpe.h") == 0);
  CHECK(one("trainer/planner/options/a.cpp", "trainer/planner/planner.h") == 1);
  CHECK(one("trainer/planner/planner.cpp", "trainer/planner/steady_state.h") == 0);
  CHECK(one("trainer/planner/planner.cpp", "trainer/planner/search/search.h") == 1);
  CHECK(one("trainer/runtime/rank/a.cpp", "trainer/runtime/loop/trainer.h") == 1);
  CHECK(one("trainer/runtime/loop/a.cpp", "trainer/report/page.h") == 1);
  CHECK(check_arrows({"engine/plan/a.cpp", "// #include \"comm/scheduler.h\"\n"}).empty());
}

TEST_CASE("rule: cycles", "[tidy]") {
  const auto including = [](const char* path, const char* include) {
    return File{path, std::string("\n#include \"") + include + "\"\n"};
  };
  const File a = including("trainer/runtime/a.h", "trainer/runtime/b.h"),
             b = including("trainer/runtime/b.cpp", "trainer/runtime/c.h"),
             c = including("trainer/runtime/c.h", "trainer/runtime/a.h");
  CHECK(check_cycles({a, b}).empty());
  CHECK(check_cycles({a, b, c}) ==
        Findings{"includes form a cycle. Move what both ends need into a header of its own.\n"
                 "  trainer/runtime/a.h:2: includes trainer/runtime/b.h\n  trainer/runtime/b.cpp:2: includes "
                 "trainer/runtime/c.h\n"
                 "  trainer/runtime/c.h:2: includes trainer/runtime/a.h"});
  CHECK(check_cycles({including("trainer/runtime/a.cpp", "trainer/runtime/a.h"), a, b}).empty());
  CHECK(check_cycles({including("kernels/gelu/gelu.cpp", "kernels/gelu/gelu_cpu.h"),
                      including("kernels/gelu/gelu_cpu.h", "kernels/gelu/gelu.h")})
            .empty());
  CHECK(check_cycles({including("kernels/gelu/gelu.cpp", "kernels/rope/rope.h"),
                      including("kernels/rope/rope_cpu.h", "kernels/gelu/gelu.h")})
            .size() == 1);
}

TEST_CASE("rule: vendors", "[tidy]") {
  const auto one = [](const char* path, const char* include) {
    return check_vendors({path, std::string("#include <") + include + ">\n"}).size();
  };
  CHECK(one("comm/mpi/a.cpp", "mpi.h") == 0);
  CHECK(one("comm/host/a.cpp", "mpi.h") == 1);
  CHECK(one("comm/nccl/a.cpp", "nccl.h") == 0);
  CHECK(one("comm/mpi/a.cpp", "nccl.h") == 1);
  CHECK(one("engine/device/cuda/a.cpp", "cuda_runtime.h") == 0);
  CHECK(one("kernels/gelu/gelu.cu", "cuda_bf16.h") == 0);
  CHECK(one("kernels/gelu/gelu.cpp", "cuda_bf16.h") == 1);
  CHECK(one("engine/data/a.cpp", "toml++/toml.h") == 1);
  CHECK(one("trainer/cli/train.cpp", "CLI/CLI.hpp") == 0);
  CHECK(one("trainer/runtime/loop/train.cpp", "CLI/CLI.hpp") == 1);
  CHECK(one("tests/a.cpp", "catch2/catch.hpp") == 1);
  CHECK(one("engine/a.cpp", "Eigen/Core") == 1);
}

TEST_CASE("rule: banned calls, with the replacement", "[tidy]") {
  const auto found = [](const char* path, const char* code) { return joined(check_calls({path, code})); };
  CHECK(found("engine/a.cpp", "\nsprintf(b, x);") == "engine/a.cpp:2: sprintf is banned. Use fmt::format.\n");
  CHECK(found("engine/a.cpp", "std::sprintf(b, x);").find("fmt::format") != std::string::npos);
  CHECK(found("engine/a.cpp", "// sprintf(b, x);\nf(\"rand()\");") == "");
  CHECK(found("tests/a.cpp", "int x = rand();").find("Philox") != std::string::npos);
  CHECK(found("engine/a.cpp", "int strand(); brand(1);") == "");
  CHECK(found("engine/a.cpp", "std::exit(1);").find("typed Error") != std::string::npos);
  CHECK(found("engine/a.cpp", "if (x) exit(1);").find("typed Error") != std::string::npos);
  CHECK(found("trainer/cli/main.cpp", "exit(1); app.exit(1);") == "");
  CHECK(found("engine/a.cpp", "app.exit(1); p->exit(1);") == "");
  CHECK(found("comm/a.cpp", "void abort();\nvoid A::abort() {}\nworld.abort(1);") == "");
  CHECK(found("comm/a.cpp", "std::abort();\n").find("SLIP_ASSERT") != std::string::npos);
  CHECK(found("engine/a.cpp", "std::cout << 1;").find("log_info") != std::string::npos);
  CHECK(found("tests/a.cpp", "std::cout << 1;") == "");
  CHECK(found("engine/a.cpp", "static_assert(x); SLIP_ASSERT(x);") == "");
}

TEST_CASE("rule: leftovers", "[tidy]") {
  const std::string todo = std::string("TO") + "DO", fix = std::string("FIX") + "ME";
  CHECK(check_leftovers({"a.cpp", "// " + todo + ": later"}).size() == 1);
  CHECK(check_leftovers({"a.cpp", "// " + todo + "(#12): later"}).empty());
  CHECK(check_leftovers({"a.cpp", "// " + todo + "(#x): later"}).size() == 1);
  CHECK(check_leftovers({"a.md", fix}).size() == 1);
}

TEST_CASE("rule: cards", "[tidy]") {
  CHECK(check_card({"kernels/gelu/gelu.h", "/// Shapes: x\n/// Cost: 1\n/// Source: paper\n"}).empty());
  CHECK(check_card({"kernels/gelu/gelu.h", "/// Shapes: x\n/// Cost: 1\n"}).size() == 1);
  CHECK(check_card({"kernels/gelu/tile.h", ""}).empty());
}

TEST_CASE("rule: functions of C++", "[tidy]") {
  const auto found = [](const std::string& code) {
    std::string list;
    for (const Function& each : functions_of({"a.cu", code}))
      list += fmt::format("{} {}+{}\n", each.name, each.line, each.lines);
    return list;
  };
  CHECK(found("int f() {\n  return 1;\n}\n") == "f 1+3\n");
  CHECK(found("namespace a {\n\nint f(int x,\n      int y) {\n  return [] { return 1; }();\n}\n\n}\n") == "f 3+4\n");
  CHECK(found("void A::f() const {\n}\nA::~A() {}\nbool operator==(A a, A b) {\n}\n") ==
        "A::f 1+2\nA::~A 3+1\noperator== 4+2\n");
  CHECK(found("class A : public B {\n public:\n  int f() override {\n  }\n  int x{3};\n};\nvoid g() {\n}\n") ==
        "f 3+2\ng 7+2\n");
  CHECK(found("A::A(int x)\n    : a_{.y = x}, b_(x) {\n  f();\n}\n") == "A::A 1+4\n");
  CHECK(found("int f();\nconst int a[] = {\n    1, 2};\nconst auto g = [](int x) {\n};\nint h() {\n}\n") == "h 6+2\n");
  CHECK(found("template <int kN = 3, typename T>\n__global__ void __launch_bounds__(S<kN>::k, 1)\n    f(T x = {}) "
              "{\n}\n") == "f 1+4\n");
  CHECK(found("struct alignas(16) A {\n  int f() {\n  }\n};\nenum class B { c, d };\nstruct A g() {\n}\n") ==
        "f 2+2\ng 6+2\n");
  CHECK(found("#define F(x) \\\n  void x() {\nint f() {  // }\n  g(\"}\");\n#if A {\n}\n") == "f 3+4\n");
  CHECK(found("TEST_CASE(\"a law (of b)\", \"[x]\") {\n}\n") == "a law (of b) 1+2\n");
  CHECK(found("auto f(int x) -> A {\n}\n") == "f 1+2\n");
}

TEST_CASE("rule: functions of Python", "[tidy]") {
  const auto found = [](const std::string& code) {
    std::string list;
    for (const Function& each : functions_of({"a.py", code}))
      list += fmt::format("{} {}+{}\n", each.name, each.line, each.lines);
    return list;
  };
  CHECK(found("def f():\n    return 1\n\n\nx = 2\n") == "f 1+2\n");
  CHECK(found("def f(\n    x,\n):\n    pass\n\n    pass\ny = 1\n") == "f 1+6\n");
  CHECK(found("class A:\n    def f(self):\n        def g():\n            pass\n        g()\n") == "f 2+4\ng 3+2\n");
  CHECK(found("def f():\n    x = \"\"\"\ndef g():\n\"\"\"\n    return x\n") == "f 1+5\n");
}

TEST_CASE("rule: lengths of functions", "[tidy]") {
  const auto of_lines = [](int lines) {
    File file{"a.cpp", "int f() {\n"};
    for (int i = 2; i < lines; ++i) file.text += "  g();\n";
    file.text += "}\n";
    return file;
  };
  CHECK(check_function_lengths({of_lines(70)}, {}).empty());
  CHECK(check_function_lengths({of_lines(71)}, {}) ==
        Findings{"a.cpp:1: f has 71 lines of at most 70. Give its steps names of their own."});
  CHECK(check_function_lengths({of_lines(75)}, {{"a.cpp", "f", 75}}).empty());
  CHECK(check_function_lengths({of_lines(76)}, {{"a.cpp", "f", 75}}) ==
        Findings{"a.cpp:1: f grew from 75 lines to 76. It may only become shorter."});
  CHECK(check_function_lengths({of_lines(74)}, {{"a.cpp", "f", 75}}) ==
        Findings{"a.cpp:1: f has 74 lines now. Write that into tests/tidy/long_functions.h."});
  const Findings gone{
      "a.cpp: f has at most 70 lines now, or another name. Remove its row from tests/tidy/long_functions.h."};
  CHECK(check_function_lengths({of_lines(70)}, {{"a.cpp", "f", 75}}) == gone);
  CHECK(check_function_lengths({}, {{"a.cpp", "f", 75}}) == gone);
}

TEST_CASE("rule: one user, one build", "[tidy]") {
  const File a{"engine/a.cpp", "#include <spdlog/logger.h>\n#include <spdlog/sinks/a.h>\n"},
      b{"trainer/cli/b.cpp", "#include <spdlog/logger.h>\n"};
  CHECK(check_single_includes({a}).empty());
  CHECK(check_single_includes({a, b}).size() == 1);
  CHECK(check_single_includes({{"engine/a.h", "#include <spdlog/logger.h>\n"}}).size() == 1);
  CHECK(check_built({a, {"engine/meson.build", "files('a.cpp')"}}).empty());
  CHECK(check_built({a, b, {"engine/meson.build", "files('a.cpp')"}}).size() == 1);
}
