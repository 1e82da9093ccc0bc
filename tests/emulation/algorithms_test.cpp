// SPDX-License-Identifier: Apache-2.0
// Choice of a product's algorithm: the search's measurements, the file's contents, and the treatment of files for
// another GPU.

#include "kernels/cuda/algorithms.h"

#include <cublasLt.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "engine/base/check.h"
#include "kernels/matmul/matmul.h"
#include "tests/emulation/fake_cublaslt.h"
#include "tests/kernels/common/backend.h"

using namespace slipstream;
using namespace slipstream::kernels;
using namespace slipstream::test;
namespace fs = std::filesystem;

namespace {

using From = ChosenAlgorithm::From;
using Calls = std::map<uint64_t, int>;
constexpr int64_t kRows = 48, kIn = 16, kOut = 24;
constexpr uint32_t kGradients[] = {CUBLASLT_EPILOGUE_DGELU, CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADB};
const SearchOptions kSearch{.candidates = 8, .rounds = 1, .rotate_bytes = 1 << 16};

/// One linear layer with GELU before it, on the device: gradients of input, weight and bias, in two micro-batches.
struct Layer {
  explicit Layer(DType type, bool with_sums = true) : dtype(type), summed(with_sums) {}
  struct Result {
    Doubles dx, sums, dweight, dbias;
    int64_t kernels = 0;
    bool operator==(const Result&) const = default;
  };
  Result run(int32_t multiprocessors = 0) const {
    OnDevice x(random_doubles(kRows * kIn, dtype, 1), dtype, "x"),
        dy(random_doubles(kRows * kOut, dtype, 2), dtype, "dy"),
        weight(random_doubles(kOut * kIn, dtype, 3), dtype, "weight"),
        pre(random_doubles(kRows * kIn, dtype, 4), dtype, "pre"), dx(kRows * kIn, dtype, "dx"),
        dweight(kOut * kIn, DType::f32, "dweight"), dbias(kOut, DType::f32, "dbias"), sums(kIn, DType::f32, "sums");
    LaunchContext context = a_context();
    const Frame frame{.multiprocessors = multiprocessors};
    context.frame = &frame;
    const int64_t before = emulation::launches();
    for (bool accumulate : {false, true})
      matmul_backward_weight(context, {x.data(), dy.data(), dweight.data<float>(), dbias.data<float>(), kRows, kIn,
                                       kOut, dtype, accumulate});
    for (bool accumulate : {false, true})
      matmul_backward_input(context, {.dy = dy.data(),
                                      .weight = weight.data(),
                                      .dx = dx.data(),
                                      .rows = kRows,
                                      .in = kIn,
                                      .out = kOut,
                                      .dtype = dtype,
                                      .pre_activation = pre.data(),
                                      .dbias = summed ? sums.data<float>() : nullptr,
                                      .accumulate_bias = accumulate});
    CHECK((dx.intact() && sums.intact() && dweight.intact() && dbias.intact()));
    return {dx.doubles(), summed ? sums.doubles() : Doubles{}, dweight.doubles(), dbias.doubles(),
            emulation::launches() - before};
  }
  DType dtype;
  bool summed = true;  // the sums over the rows of dx, too
};

std::vector<ProductShape> products_of_the_run() { return by_flops(chosen_algorithms()); }

int count(From from) {
  int found = 0;
  for (const auto& [product, chosen] : chosen_algorithms()) found += chosen.from == from;
  return found;
}

AlgorithmTable searched() {
  LaunchContext context = a_context();
  AlgorithmTable table(gemm_library());
  CHECK(search_algorithms(context, products_of_the_run(), kSearch, table, {}) == 0);
  return table;
}

struct Folder {
  Folder() : path(fs::temp_directory_path() / fmt::format("slipstream-algorithms-{}", ::getpid())) {
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string file(const std::string& name) const { return (path / name).string(); }
  fs::path path;
};

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

double error_between(const Doubles& a, const Doubles& b) {
  double error = 0;
  for (size_t i = 0; i < a.size(); ++i) error = std::max(error, std::abs(a[i] - b[i]) / std::max(1.0, std::abs(b[i])));
  return error;
}

/// The reference is the unfused path, which matmul_test holds against double. When fused, GELU's gradient is rounded
/// once less and its sums once more.
void check_equal(DType dtype, const Layer::Result& fused, const Layer::Result& apart) {
  CHECK(error_between(fused.dweight, apart.dweight) == 0);
  CHECK(error_between(fused.dbias, apart.dbias) <= 1e-6);
  CHECK(error_between(fused.dx, apart.dx) <= (dtype == DType::f32 ? 1e-6 : 0x1p-7));
  for (size_t i = 0; i < fused.sums.size(); ++i) {  // twice the sum, of elements with the error of dx
    double size = 0;
    for (size_t at = i; at < apart.dx.size(); at += fused.sums.size()) size += 2 * std::abs(apart.dx[at]);
    CHECK(std::abs(fused.sums[i] - apart.sums[i]) <= (dtype == DType::f32 ? 1e-6 : 0x1p-7) * size);
  }
}

}  // namespace

TEST_CASE("without a table products take the library's first choice and gradients are not fused") {
  use_algorithms({});
  emulation::fake_cublaslt() = {};
  Layer(DType::f32).run();
  CHECK(count(From::table) == 0);
  CHECK(count(From::kernel) == 4);  // two sums of a bias gradient, the gradient of GELU with its sums and before them
  CHECK(count(From::library) == 3);
  CHECK(emulation::fake_cublaslt().calls == std::map<uint64_t, int>{{emulation::kSplitCandidate, 4}});
}

TEST_CASE("a fused gradient is used if the table has it as faster, and equals the kernels") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (bool summed : {true, false})
      for (bool wins : {true, false}) {
        CAPTURE(name_of(dtype), summed, wins);
        use_algorithms({});
        emulation::fake_cublaslt() = {};
        const Layer layer(dtype, summed);
        const Layer::Result apart = layer.run();
        if (!wins)
          for (uint32_t epilogue : kGradients) emulation::fake_cublaslt().more_ns[epilogue] = 1'000'000;
        AlgorithmTable table = searched();
        CHECK(table.size() == (summed ? 7 : 6));
        use_algorithms(table);
        emulation::fake_cublaslt().calls.clear();
        const Layer::Result tabled = layer.run();
        // Two weight gradients, float in both; two gradients of the input, split only if they are float, too.
        CHECK(emulation::fake_cublaslt().calls ==
              (dtype == DType::f32 ? Calls{{emulation::kSplitCandidate, 4}}
                                   : Calls{{emulation::kFastestCandidate, 2}, {emulation::kSplitCandidate, 2}}));
        CHECK(count(From::kernel) == (wins ? 0 : summed ? 4 : 3));
        CHECK(count(From::table) == 3);
        CHECK((tabled.kernels < apart.kernels) == wins);
        check_equal(dtype, tabled, apart);
        CHECK(layer.run() == tabled);
      }
}

TEST_CASE("sums that the library refuses come from a kernel, after the part that it has") {
  for (DType dtype : {DType::f32, DType::bf16})
    for (uint32_t refused : kGradients) {
      CAPTURE(name_of(dtype), refused);
      use_algorithms({});
      emulation::fake_cublaslt() = {};
      emulation::fake_cublaslt().more_ns[CUBLASLT_EPILOGUE_DEFAULT] = 2000;
      emulation::fake_cublaslt().refused = {refused};
      const Layer layer(dtype);
      const Layer::Result apart = layer.run();
      AlgorithmTable table = searched();
      use_algorithms(table);
      const Layer::Result tabled = layer.run();
      std::set<Epilogue> used;
      for (const auto& [product, chosen] : chosen_algorithms())
        if (chosen.from == From::table) used.insert(product.epilogue);
      CHECK(used == (refused == CUBLASLT_EPILOGUE_DGELU_BGRAD
                         ? std::set{Epilogue::bias_gradient, Epilogue::summed_gelu_gradient}
                     : refused == CUBLASLT_EPILOGUE_BGRADB
                         ? std::set{Epilogue::none, Epilogue::gelu_bias_gradient}
                         : std::set{Epilogue::bias_gradient, Epilogue::gelu_bias_gradient}));
      check_equal(dtype, tabled, apart);
      CHECK(layer.run() == tabled);
    }
}

TEST_CASE("the sums of GELU's gradient come from the faster of the library and a kernel") {
  use_algorithms({});
  emulation::fake_cublaslt() = {};
  emulation::fake_cublaslt().more_ns = {{CUBLASLT_EPILOGUE_DEFAULT, 2000}, {CUBLASLT_EPILOGUE_DGELU_BGRAD, 1500}};
  const Layer layer(DType::bf16);
  const Layer::Result apart = layer.run();
  use_algorithms(searched());
  check_equal(DType::bf16, layer.run(), apart);
  for (const auto& [product, chosen] : chosen_algorithms())
    if (product.n == kRows) CHECK((chosen.from == From::table) == (product.epilogue == Epilogue::summed_gelu_gradient));
}

TEST_CASE("products of a frame are planned for its multiprocessors, and use the table's algorithms") {
  use_algorithms({});
  emulation::fake_cublaslt() = {};
  const Layer layer(DType::bf16);
  const Layer::Result whole = layer.run();
  using Targets = std::map<int, int>;
  CHECK(emulation::fake_cublaslt().targets == Targets{{0, 4}});
  CHECK(layer.run(116) == whole);
  CHECK(emulation::fake_cublaslt().targets == Targets{{0, 4}, {116, 4}});
  // Both are choices of their own; the search times each shape once, on the whole card.
  CHECK(products_of_the_run().size() == 14);
  const AlgorithmTable table = searched();
  CHECK(table.size() == 7);
  use_algorithms(table);
  emulation::fake_cublaslt() = {};
  const Layer::Result timed = layer.run();
  CHECK(layer.run(116) == timed);
  CHECK(emulation::fake_cublaslt().targets == Targets{{0, 4}, {116, 4}});
  CHECK(emulation::fake_cublaslt().calls ==
        (Calls{{emulation::kFastestCandidate, 4}, {emulation::kSplitCandidate, 4}}));
  CHECK(count(From::table) == 6);
}

TEST_CASE("the search takes the fastest candidate that runs, and reports the time of the first one") {
  use_algorithms({});
  emulation::fake_cublaslt() = {};
  Layer(DType::bf16).run();
  const AlgorithmTable table = searched();
  for (const ProductShape& product : products_of_the_run()) {
    const TimedAlgorithm* timed = table.find(product);
    REQUIRE(timed);
    CAPTURE(text_of(product));
    // The library's first choice splits the sums of a product in float and is the fastest. For bfloat16 it is not
    // asked.
    const bool split = product.out == DType::f32;
    CHECK(timed->algorithm[1] == (split ? emulation::kSplitCandidate : emulation::kFastestCandidate));
    CHECK((timed->us < timed->first_us) == !split);
    CHECK((timed->apart_us > 0) == is_gradient(product.epilogue));
  }
  // If the library fuses no gradients, the table has only the plain products, and nothing is fused.
  emulation::fake_cublaslt().refused = {std::begin(kGradients), std::end(kGradients)};
  const AlgorithmTable plain = searched();
  CHECK(plain.size() == 3);
}

TEST_CASE("products come in the order of operations x calls, and a plain product before its fused gradient") {
  const ProductShape large{.m = 100, .n = 10, .k = 10}, often{.m = 10, .n = 10, .k = 10},
      rare{.m = 20, .n = 10, .k = 10};
  ProductShape fused = large;
  fused.epilogue = Epilogue::gelu_gradient;
  const auto ordered =
      by_flops({{often, {.calls = 12}}, {rare, {.calls = 4}}, {fused, {.calls = 1}}, {large, {.calls = 1}}});
  CHECK(ordered == std::vector<ProductShape>{often, large, fused, rare});

  // Every product of the run is counted: two micro-batches, whose first does not accumulate, and two input gradients.
  use_algorithms({});
  emulation::fake_cublaslt() = {};
  Layer(DType::f32).run();
  Layer(DType::f32).run();
  for (const auto& [product, chosen] : chosen_algorithms()) {
    CAPTURE(text_of(product));
    CHECK(chosen.calls == (product.n == kRows ? 4 : 2));
  }
}

TEST_CASE("a search that ends early leaves a table that the next one continues from") {
  use_algorithms({});
  emulation::fake_cublaslt() = {};
  Layer(DType::bf16).run();
  LaunchContext context = a_context();
  const std::vector<ProductShape> products = products_of_the_run();
  AlgorithmTable table(gemm_library());

  // No time at all: the first product is begun, the others are left.
  SearchOptions short_of_time = kSearch;
  short_of_time.seconds = 1e-9;
  std::vector<ProductShape> added;
  const auto note = [&](const ProductShape& product, const TimedAlgorithm&) {
    CHECK(table.find(product));
    CHECK(table.size() == added.size() + 1);
    added.push_back(product);
  };
  CHECK(search_algorithms(context, products, short_of_time, table, note) >= products.size() - 1);

  // It stops after the third product: the table has three, and the next search times only the others.
  struct CutOff {};
  CHECK_THROWS_AS(search_algorithms(context, products, kSearch, table,
                                    [&](const ProductShape& product, const TimedAlgorithm& timed) {
                                      note(product, timed);
                                      if (added.size() == 3) throw CutOff();
                                    }),
                  CutOff);
  CHECK(table.size() == 3);
  CHECK(search_algorithms(context, products, kSearch, table, note) == 0);
  CHECK(added == products);
  const std::string done = table.text();
  CHECK(search_algorithms(context, products, kSearch, table, note) == 0);
  CHECK(table.text() == done);

  // Only erased entries are timed again.
  table.erase(products[1]);
  added = {};
  const std::vector<ProductShape> one = {products[1]};
  CHECK(search_algorithms(context, products, kSearch, table,
                          [&](const ProductShape& product, const TimedAlgorithm&) { added.push_back(product); }) == 0);
  CHECK(added == one);
}

TEST_CASE("a plain product that the table has is not timed again for its fused gradient") {
  use_algorithms({});
  emulation::fake_cublaslt() = {};
  Layer(DType::f32).run();
  LaunchContext context = a_context();
  AlgorithmTable table = searched();
  for (const ProductShape& product : products_of_the_run()) {
    if (product.epilogue == Epilogue::none) continue;
    ProductShape plain = product;
    plain.epilogue = Epilogue::none;
    CAPTURE(text_of(product));
    table.set(plain, {.us = 5e6, .first_us = 5e6});  // no measurement of this size takes so long
    if (product.epilogue == Epilogue::gelu_bias_gradient) {
      ProductShape before_sums = product;
      before_sums.epilogue = Epilogue::summed_gelu_gradient;
      table.set(before_sums, {.us = 5e6, .first_us = 5e6});
    }
    table.erase(product);
    CHECK(search_algorithms(context, {product}, kSearch, table, {}) == 0);
    CHECK(table.find(product)->apart_us > 4e6);
  }
}

TEST_CASE("an algorithm that the library does not take is not used") {
  use_algorithms({});
  emulation::fake_cublaslt() = {};
  const Layer layer(DType::f32);
  const Layer::Result first = layer.run();
  AlgorithmTable table;
  for (const ProductShape& product : products_of_the_run())
    table.set(product, {.algorithm = {1, 2, 3}, .us = 1, .first_us = 1});
  use_algorithms(table);
  CHECK(layer.run() == first);
  CHECK(count(From::table) == 0);
}

TEST_CASE("the file reads back as it was written") {
  const Folder folder;
  use_algorithms({});
  Layer(DType::bf16).run();
  const AlgorithmTable table = searched();
  const GemmLibrary library = gemm_library();
  const std::string path = folder.file("deep/er/table.json");
  write_algorithms(path, table);
  std::string warning;
  const AlgorithmTable read = read_algorithms(path, library, warning);
  CHECK(warning == "");
  CHECK(read.text() == table.text());
  CHECK(read.size() == table.size());
  // Nothing but the file is left in the folder.
  CHECK(std::distance(fs::directory_iterator(folder.path / "deep/er"), {}) == 1);
  CHECK(read_algorithms(folder.file("none.json"), library, warning).size() == 0);
  CHECK(read_algorithms("", library, warning).size() == 0);
  CHECK(warning == "");
}

TEST_CASE("a broken file or one of another GPU or version is not used, with one warning") {
  const Folder folder;
  use_algorithms({});
  Layer(DType::f32).run();
  const GemmLibrary library = gemm_library();
  const std::string good = searched().text(), path = folder.file("table.json");
  const auto error_of = [&](const std::string& text, const GemmLibrary& here) {
    write(path, text);
    std::string warning;
    CHECK(read_algorithms(path, here, warning).size() == 0);
    CHECK(std::count(warning.begin(), warning.end(), '\n') == 0);
    CHECK(warning.find("[cuda] device.algorithms is ignored: ") == 0);
    CHECK(warning.find("slipstream bench products") != std::string::npos);
    std::ifstream file(path);
    CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == text);
    return warning;
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    REQUIRE(text.find(from) != std::string::npos);
    return text.replace(text.find(from), from.size(), to);
  };
  CHECK(error_of(good, {"Another card", library.version})
            .find("is for the GPU \"Emulated card\", this one is Another card") != std::string::npos);
  CHECK(error_of(good, {library.card, 120100}).find("is for cuBLASLt 130100, this one is 120100") != std::string::npos);
  CHECK(error_of(replaced("\"format\": 1", "\"format\": 2"), library).find("has format 2, this program reads 1") !=
        std::string::npos);
  CHECK(error_of(replaced("736c6970", "736c69"), library).find("an algorithm has 126 digits, need 128") !=
        std::string::npos);
  CHECK(error_of(replaced("736c6970", "x36c6970"), library).find("not hexadecimal") != std::string::npos);
  CHECK(error_of(replaced("\"us\": ", "\"us\": -"), library).find("times must be positive") != std::string::npos);
  error_of(replaced("\"us\"", "\"time\""), library);
  error_of("", library);
  error_of("not JSON", library);
  error_of("[]", library);
  // A truncated file is refused at every length, and never half read.
  for (size_t size = 0; size + 2 < good.size(); size += 97) error_of(good.substr(0, size), library);
}

TEST_CASE("the default file is named by GPU and version, in the user's cache") {
  const GemmLibrary library{"NVIDIA H100 80GB", 130101};
  setenv("XDG_CACHE_HOME", "/cache", 1);
  CHECK(algorithms_path("auto", library) == "/cache/slipstream/nvidia-h100-80gb-cublaslt-130101.json");
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/me", 1);
  CHECK(algorithms_path("auto", library) == "/home/me/.cache/slipstream/nvidia-h100-80gb-cublaslt-130101.json");
  unsetenv("HOME");
  CHECK(algorithms_path("auto", library) == "");
  CHECK(algorithms_path("table.json", library) == "table.json");
  CHECK(algorithms_path("", library) == "");
}
