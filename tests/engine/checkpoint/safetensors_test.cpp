// SPDX-License-Identifier: Apache-2.0
// Safetensors: the canonical bytes, and one refusal for every kind of invalid file.

#include "engine/checkpoint/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include <fmt/core.h>

#include "engine/base/hash.h"
#include "tests/engine/data/disk.h"
#include "tests/test.hpp"

using namespace slipstream;
using namespace slipstream::checkpoint;
using namespace slipstream::tests;

namespace {

std::string size_prefix(uint64_t size) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &size, 8);
  return bytes;
}

std::string file_of(const std::string& header, size_t buffer_bytes) {
  return size_prefix(header.size()) + header + std::string(buffer_bytes, '\0');
}

TensorToSave saved(const std::string& name, DType dtype, std::vector<int64_t> shape, const std::string& bytes) {
  return {.name = name, .dtype = dtype, .shape = std::move(shape), .write = [bytes](const TensorSink& sink) {
            const auto half = static_cast<int64_t>(bytes.size() / 2);
            sink(bytes.data(), half);
            sink(bytes.data() + half, static_cast<int64_t>(bytes.size()) - half);
          }};
}

std::string bytes_of_tensor(const SafetensorsFile& file, const std::string& name) {
  const TensorInfo& tensor = file.get(name);
  std::string bytes(static_cast<size_t>(tensor.size_bytes), '\0');
  file.read(tensor, 0, bytes.data(), tensor.size_bytes);
  return bytes;
}

}  // namespace

TEST_CASE("safetensors: the writer's bytes are those written by hand", "[checkpoint]") {
  const TempFolder folder;
  const WrittenFile written = write_safetensors(
      folder / "m", {saved("b", DType::bf16, {3}, "uvwxyz"), saved("z", DType::f32, {}, "ABCD"),
                     saved("a\"", DType::f32, {1, 2}, "12345678"), saved("none", DType::f32, {2, 0}, "")});
  std::string header = R"({"__metadata__":{"format":"pt"},"a\"":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                       R"("none":{"dtype":"F32","shape":[2,0],"data_offsets":[8,8]},)"
                       R"("z":{"dtype":"F32","shape":[],"data_offsets":[8,12]},)"
                       R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[12,18]}})";
  while (header.size() % 8 != 0) header += ' ';
  const std::string expected = size_prefix(header.size()) + header + "12345678ABCDuvwxyz";
  CHECK(bytes_in(folder / "m") == expected);
  CHECK(written.size_bytes == static_cast<int64_t>(expected.size()));
  CHECK(written.hash == data::xxh3_128_hex(expected.data(), std::ssize(expected)));
  CHECK(folder.entries() == 1);

  const SafetensorsFile file(folder / "m");
  REQUIRE(file.tensors().size() == 4);
  CHECK(file.metadata() == std::vector<std::pair<std::string, std::string>>{{"format", "pt"}});
  CHECK(bytes_of_tensor(file, "a\"") == "12345678");
  CHECK(bytes_of_tensor(file, "b") == "uvwxyz");
  CHECK(file.get("z").shape.empty());
  CHECK(file.get("z").elems() == 1);
  CHECK(file.get("none").elems() == 0);
  CHECK(file.find("c") == nullptr);
  CHECK_REFUSED(CheckpointError, file.get("c"), "4 tensors", "\"c\"");
}

TEST_CASE("safetensors: every F16 value is widened as its bits say", "[checkpoint]") {
  const TempFolder folder;
  std::string bytes;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    bytes += static_cast<char>(bits & 0xff);
    bytes += static_cast<char>(bits >> 8);
  }
  put(folder / "m", file_of(R"({"h":{"dtype":"F16","shape":[65536],"data_offsets":[0,131072]}})", 0) + bytes);
  const SafetensorsFile file(folder / "m");
  std::vector<float> values(65536);
  file.read_floats(file.get("h"), values);
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 31), fraction = static_cast<int>(bits & 1023);
    const float value = values[bits];
    bool right = std::signbit(value) == (bits >> 15 != 0);
    if (exponent == 31)
      right = fraction == 0 ? right && std::isinf(value) : std::isnan(value);
    else
      right =
          right && std::fabs(value) == (exponent == 0 ? std::ldexp(static_cast<float>(fraction), -24)
                                                      : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25));
    if (!right) FAIL("bits " << bits << ": " << value);
  }
}

TEST_CASE("safetensors: floats come back from F32 bit for bit and from BF16 widened", "[checkpoint]") {
  const TempFolder folder;
  const uint64_t seed = 41;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (const int64_t elems : {1, 2, 4097, 700001}) {
    std::vector<float> values(static_cast<size_t>(elems));
    for (float& value : values) value = static_cast<float>(static_cast<double>(random() % 2000001) / 1e6 - 1);
    std::vector<bfloat16> halves;
    for (const float value : values) halves.emplace_back(value);
    write_safetensors(folder / "m",
                      {{.name = "w",
                        .dtype = DType::f32,
                        .shape = {elems},
                        .write = [&](const TensorSink& sink) { sink(values.data(), 4 * elems); }},
                       {.name = "h", .dtype = DType::bf16, .shape = {elems}, .write = [&](const TensorSink& sink) {
                          sink(halves.data(), 2 * elems);
                        }}});
    const SafetensorsFile file(folder / "m");
    std::vector<float> back(values.size());
    file.read_floats(file.get("w"), back);
    CHECK(back == values);
    file.read_floats(file.get("h"), back);
    bool same = true;
    for (size_t i = 0; i < back.size(); ++i) same = same && back[i] == static_cast<float>(halves[i]);
    CHECK(same);
    const auto first = static_cast<size_t>(elems / 3);
    std::vector<float> part(back.size() - first);
    for (const char* name : {"w", "h"}) {
      file.read_floats(file.get(name), back);
      file.read_floats(file.get(name), static_cast<int64_t>(first), part);
      CHECK(std::equal(part.begin(), part.end(), back.begin() + static_cast<std::ptrdiff_t>(first)));
    }
  }
  put(folder / "i", file_of(R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}})", 16));
  const SafetensorsFile file(folder / "i");
  std::vector<float> out(4);
  CHECK_REFUSED(CheckpointError, file.read_floats(file.get("test"), out), "type I32");
}

TEST_CASE("safetensors: a failed write leaves the older file and nothing else", "[checkpoint]") {
  const TempFolder folder;
  put(folder / "m", "older");
  const auto fails = [&](std::vector<TensorToSave> tensors) { write_safetensors(folder / "m", std::move(tensors)); };
  CHECK_REFUSED(InternalError, fails({saved("a", DType::f32, {2}, "1234")}), "4 bytes too few");
  CHECK_REFUSED(InternalError, fails({saved("a", DType::f32, {1}, "12345678")}), "assertion failed");
  CHECK_REFUSED(InternalError, fails({saved("a", DType::f32, {1}, "1234"), saved("a", DType::bf16, {1}, "12")}),
                "assertion failed");
  CHECK_REFUSED(InternalError, fails({saved("a\n", DType::f32, {1}, "1234")}), "assertion failed");
  CHECK_REFUSED(DataError,
                fails({{.name = "a",
                        .dtype = DType::f32,
                        .shape = {1},
                        .write =
                            [](const TensorSink& sink) {
                              sink("12", 2);
                              throw DataError("[data] in the middle.");
                            }}}),
                "in the middle");
  CHECK(bytes_in(folder / "m") == "older");
  CHECK(folder.entries() == 1);
  CHECK_REFUSED(ResourceError, write_safetensors(folder / "no/m", {}), "cannot be written");
  if (std::filesystem::exists("/dev/full")) {
    std::filesystem::create_symlink("/dev/full", folder / ("full.tmp-" + std::to_string(::getpid())));
    CHECK_REFUSED(ResourceError, write_safetensors(folder / "full", {saved("a", DType::f32, {1}, "1234")}),
                  "No space left");
  }
}

TEST_CASE("safetensors: unusual files that the format allows are read", "[checkpoint]") {
  const TempFolder folder;
  const auto count = [&](const std::string& header, size_t buffer_bytes) {
    put(folder / "m", file_of(header, buffer_bytes));
    return SafetensorsFile(folder / "m").tensors().size();
  };
  CHECK(count("{}", 0) == 0);
  CHECK(count("  \n{} \t ", 0) == 0);
  CHECK(count(R"({"__metadata__":{}})", 0) == 0);
  CHECK(count(R"({"a":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]}})", 0) == 1);
  CHECK(count(R"({"a":{"shape":[],"data_offsets":[0,8],"dtype":"F64"}})", 8) == 1);
  CHECK(count(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},)"
              R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
              7) == 2);
  CHECK(count(R"({"a":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}})", 3) == 1);
  CHECK(count(R"({"../../etc/passwd":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]}})", 3) == 1);
  std::string dims = "1";
  for (int i = 1; i < 64; ++i) dims += ",1";
  CHECK(count(R"({"a":{"dtype":"BOOL","shape":[)" + dims + R"(],"data_offsets":[0,1]}})", 1) == 1);
}

TEST_CASE("safetensors: a tensor of more than 2^32 elements, its end and the tensor after it", "[checkpoint]") {
  const TempFolder folder;
  const int64_t elems = (int64_t{1} << 32) + 8;  // nearly all of the file is a hole
  const std::string header = fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}},)"
                                         R"("b":{{"dtype":"F32","shape":[2],"data_offsets":[{},{}]}}}})",
                                         elems, elems, elems, elems + 8);
  const std::string head = file_of(header, 0);
  put(folder / "m", head);
  const int64_t end = std::ssize(head) + elems + 8;
  std::filesystem::resize_file(folder / "m", static_cast<uintmax_t>(end));
  const float behind[] = {1.5f, -2};
  const int descriptor = ::open((folder / "m").c_str(), O_WRONLY);
  REQUIRE(::pwrite(descriptor, "last", 4, end - 12) == 4);
  REQUIRE(::pwrite(descriptor, behind, sizeof behind, end - 8) == sizeof behind);
  ::close(descriptor);
  const SafetensorsFile file(folder / "m");
  CHECK(file.get("a").elems() == elems);
  char last[4];
  file.read(file.get("a"), elems - 4, last, 4);
  CHECK(std::string(last, 4) == "last");
  std::vector<float> read(2);
  file.read_floats(file.get("b"), read);
  CHECK(read == std::vector<float>{1.5f, -2});
}

TEST_CASE("safetensors: every malformed file is refused by a CheckpointError", "[checkpoint]") {
  const TempFolder folder;
  const auto refused = [&](const std::string& bytes, const std::string& part) {
    put(folder / "m", bytes);
    INFO("file: " << bytes.substr(0, 200));
    CHECK_REFUSED(CheckpointError, SafetensorsFile(folder / "m"), part, "/m\"");
  };
  const auto header = [&](const std::string& text, const std::string& part, size_t buffer_bytes = 16) {
    refused(file_of(text, buffer_bytes), part);
  };
  const auto tensor = [&](const std::string& fields, const std::string& part, size_t buffer_bytes = 16) {
    header("{\"t\":{" + fields + "}}", part, buffer_bytes);
  };
  CHECK_REFUSED(CheckpointError, SafetensorsFile(folder / "none"), "does not exist");
  CHECK_REFUSED(CheckpointError, SafetensorsFile(folder.path()), "is a folder");

  // The header's size is wrong.
  refused("", "0 bytes, need at least 8");
  refused("1234567", "7 bytes, need at least 8");
  refused(size_prefix(3) + "{}", "header would have 3 bytes, need at most 2");
  refused(size_prefix(~uint64_t{0}) + "{}", "18446744073709551615 bytes");
  refused(size_prefix(~uint64_t{0} - 7) + "{}", "header would have");
  refused(size_prefix(0), "is empty");
  put(folder / "m", size_prefix(100'000'001));
  std::filesystem::resize_file(folder / "m", 100'000'101);
  CHECK_REFUSED(CheckpointError, SafetensorsFile(folder / "m"), "100000001 bytes, need at most 100000000");

  // The header is not one JSON object of objects.
  header("[]", "does not begin with {");
  header("7", "does not begin with {");
  header("\xef\xbb\xbf{}", "does not begin with {", 0);
  header("{", "not JSON");
  header("{}x", "not JSON");
  header("{}{}", "not JSON");
  header(std::string("{}\0\0", 4), "is not JSON", 0);
  header("{\"t\xff\":{}}", "not JSON");
  header("{'t':{}}", "not JSON");
  header("{\"t\":{},}", "not JSON");
  header("{/**/}", "not JSON");
  header(R"({"t":7})", "has an integer as the value of \"t\", need an object");
  header(R"({"t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},)"
         R"("t":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
         "duplicate key");
  tensor(R"("dtype":"F32","dtype":"F32","shape":[4],"data_offsets":[0,16])", "duplicate key");
  header(R"({"__metadata__":{"format":7}})", "need a string", 0);
  header(R"({"__metadata__":{"format":{"a":"b"}}})", "need a string", 0);
  header(R"({"__metadata__":"pt"})", "need an object", 0);
  header(R"({"__metadata__":{"a":"b","a":"b"}})", "duplicate key", 0);
  header("{\"a\":" + std::string(1'000'000, '['), "deeper than 64");
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  header(deep, "deeper than 64");

  // Fields are missing, unknown or of a wrong type.
  tensor("", "lacks the key");
  tensor(R"("shape":[4],"data_offsets":[0,16])", "lacks the key \"dtype\"");
  tensor(R"("dtype":"F32","data_offsets":[0,16])", "lacks the key \"shape\"");
  tensor(R"("dtype":"F32","shape":[4])", "lacks the key \"data_offsets\"");
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16],"x":1)", "unknown key \"x\"");
  tensor(R"("dtype":"F33","shape":[4],"data_offsets":[0,16])", "unknown type \"F33\"");
  tensor(R"("dtype":"f32","shape":[4],"data_offsets":[0,16])", "unknown type \"f32\"");
  tensor(R"("dtype":7,"shape":[4],"data_offsets":[0,16])", "need a string");
  tensor(R"("dtype":"F32","shape":4,"data_offsets":[0,16])", "need an array");
  tensor(R"("dtype":"F32","shape":["4"],"data_offsets":[0,16])", "need a natural number");
  tensor(R"("dtype":"F32","shape":[-4],"data_offsets":[0,16])", "has -4 in \"shape\"");
  tensor(R"("dtype":"F32","shape":[4.0],"data_offsets":[0,16])", "has a real in \"shape\"");
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0])", "1 data_offsets");
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16,16])", "3 data_offsets");
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":{})", "need an array");
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":[-1,16])", "need a natural number");
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,1.6e1])", "a real");
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16.0])", "a real");
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551616])", "does not fit into 64 signed bits");

  // Places and sizes do not fit.
  tensor(R"("dtype":"F32","shape":[3],"data_offsets":[4,16])", "begins at byte 4, need 0");
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":[16,0])", "begins at byte 16, need 0");
  tensor(R"("dtype":"F32","shape":[5],"data_offsets":[0,20])", "0 to 20 of a buffer of 16");
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,9223372036854775807])", "of a buffer of 16");
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])", "cover 16 bytes, but 17", 17);
  tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])", "of a buffer of 15", 15);
  tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,16])", "16 bytes, need 12");
  tensor(R"("dtype":"F64","shape":[4],"data_offsets":[0,16])", "16 bytes, need 32");
  tensor(R"("dtype":"F32","shape":[],"data_offsets":[0,16])", "16 bytes, need 4");
  tensor(R"("dtype":"F32","shape":[2,18446744073709551614],"data_offsets":[0,16])", "does not fit into 64 signed bits");
  tensor(R"("dtype":"F32","shape":[2,9223372036854775807],"data_offsets":[0,16])", "more elements than 64 bits");
  tensor(R"("dtype":"F32","shape":[4611686018427387905,4],"data_offsets":[0,16])", "more elements than 64 bits");
  tensor(R"("dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0])", "does not fit into 64 signed bits",
         0);
  tensor(R"("dtype":"F4","shape":[3],"data_offsets":[0,2])", "12 bits does not fill whole bytes", 2);
  tensor(R"("dtype":"F6_E3M2","shape":[3],"data_offsets":[0,3])", "18 bits", 3);
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)";
  header("{" + a + R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", "begins at byte 4, need 8");
  header("{" + a + R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "begins at byte 0, need 8");
  header("{" + a + R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", "begins at byte 12, need 8");
  header("{}", "cover 0 bytes, but 16");

  // Names are not valid, or there is too much of something.
  const std::string good = R"(":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})";
  header("{\"" + good, "name has 0 bytes");
  header("{\"a\\u0000b" + good, "\"a\\x00b\" has a control character");
  header("{\"a\\nb" + good, "\"a\\x0ab\" has a control character");
  header("{\"" + std::string(1025, 'n') + good, "name has 1025 bytes");
  header("{\"" + std::string(10'000'000, 'n') + good, "name has 10000000 bytes");
  std::string dims = "1";
  for (int i = 1; i < 65; ++i) dims += ",1";
  tensor(R"("dtype":"BOOL","shape":[)" + dims + R"(],"data_offsets":[0,1])", "65 dimensions", 1);
  std::string many = "{";
  for (int i = 0; i < 100'000; ++i)
    many += (i > 0 ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[16],"data_offsets":[0,16]})";
  header(many + "}", "begins at byte 0, need 16");
  std::string values = "{\"a\":[0";
  for (int i = 0; i < 5'000'000; ++i) values += ",0";
  header(values + "]}", "more than 4000000 values");
}

TEST_CASE("safetensors: random bytes and flipped bits never do worse than a CheckpointError", "[checkpoint]") {
  const TempFolder folder;
  write_safetensors(folder / "good",
                    {saved("layer.weight", DType::f32, {2, 3}, std::string(24, 'w')),
                     saved("layer.bias", DType::bf16, {3}, "bbbbbb"), saved("empty", DType::f32, {0}, "")});
  const std::string good = bytes_in(folder / "good");
  const uint64_t seed = 42;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  int accepted = 0;
  for (int trial = 0; trial < 6000; ++trial) {
    std::string bytes = good;
    switch (trial % 6) {
      case 0:
        bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 8);
        break;
      case 1:
        bytes[8 + random() % (bytes.size() - 8)] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(random() % bytes.size());
        break;
      case 3:
        bytes.insert(random() % bytes.size(), 1, static_cast<char>(random()));
        break;
      case 4:  // digits, the likeliest errors in a header
        for (int i = 0; i < 3; ++i) {
          const size_t at = bytes.find_first_of("0123456789", 8 + random() % (bytes.size() - 40));
          if (at != std::string::npos) bytes[at] = static_cast<char>('0' + random() % 10);
        }
        break;
      default:
        bytes.resize(random() % 200);
        for (char& byte : bytes) byte = static_cast<char>(random());
        if (bytes.size() > 9) bytes.replace(0, 9, size_prefix(bytes.size() - 8) + "{");
        break;
    }
    put(folder / "m", bytes);
    try {
      const SafetensorsFile file(folder / "m");
      ++accepted;
      int64_t total_bytes = 0;
      for (const TensorInfo& tensor : file.tensors())
        total_bytes += static_cast<int64_t>(bytes_of_tensor(file, tensor.name).size());
      uint64_t header_bytes = 0;
      std::memcpy(&header_bytes, bytes.data(), 8);
      if (8 + header_bytes + static_cast<uint64_t>(total_bytes) != bytes.size()) FAIL("trial " << trial);
    } catch (const CheckpointError&) {
    }
  }
  CHECK(accepted > 0);  // flips inside data and names cannot be seen
  CHECK(accepted < 3000);
}
