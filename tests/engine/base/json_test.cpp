// SPDX-License-Identifier: Apache-2.0
// Laws of JSON values: written values read back the same, malformed text is refused with its position.

#include "engine/base/json.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "engine/base/check.h"
#include "tests/test.hpp"

using slipstream::DataError;
using slipstream::Json;
using slipstream::JsonNumbers;

namespace {

std::string refusal(const std::string& text) {
  try {
    Json::parse(text, "a.json");
  } catch (const DataError& error) {
    CHECK(static_cast<int>(error.code()) == 3);
    return error.what();
  }
  return "accepted";
}

Json random_value(std::mt19937_64& random, int depth) {
  switch (random() % (depth > 0 ? 7 : 5)) {
    case 0:
      return Json();
    case 1:
      return Json(random() % 2 == 0);
    case 2:
      return Json(static_cast<int64_t>(random()));
    case 3: {
      const uint64_t bits = random();
      double real = 0;
      std::memcpy(&real, &bits, sizeof real);
      return std::isfinite(real) ? Json(real) : Json(0.1);
    }
    case 4: {
      std::string text;
      for (uint64_t i = random() % 9; i > 0; --i) text += static_cast<char>(random() % 0x80);
      return Json(text + "\xE2\x82\xAC\xF0\x9F\x8C\x8A");
    }
    case 5: {
      Json items = Json::array();
      for (uint64_t i = random() % 5; i > 0; --i) items.push_back(random_value(random, depth - 1));
      return items;
    }
    default: {
      Json members = Json::object();
      for (uint64_t i = random() % 5; i > 0; --i)
        members[std::to_string(random() % 100)] = random_value(random, depth - 1);
      return members;
    }
  }
}

}  // namespace

TEST_CASE("json: what is dumped parses to the same value, on one line or indented", "[base]") {
  const uint64_t seed = 20261121;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    const Json value = random_value(random, 4);
    REQUIRE(Json::parse(value.dump()) == value);
    REQUIRE(Json::parse(value.dump(2)) == value);
    REQUIRE(value.dump().find('\n') == std::string::npos);
  }
}

TEST_CASE("json: members keep their order and reals look like reals", "[base]") {
  Json line;
  line["step"] = 1;
  line["loss"] = 0.1;
  line["lr"] = 1.0;
  line["hidden"] = std::numeric_limits<double>::quiet_NaN();
  line["exposed"] = -std::numeric_limits<double>::infinity();
  line["tiny"] = 5e-324;
  line["zero"] = -0.0;
  line["text"] = "a\"b\\\n\x01";
  line["bytes"] = std::string("\xff") + "x";
  line["list"].push_back(true);
  line["list"].push_back(false);
  CHECK(line.dump() ==
        R"({"step": 1, "loss": 0.1, "lr": 1.0, "hidden": null, "exposed": null, "tiny": 5e-324, "zero": -0.0, )"
        "\"text\": \"a\\\"b\\\\\\n\\u0001\", \"bytes\": \"\xEF\xBF\xBDx\", \"list\": [true, false]}");
  CHECK(Json::object().dump(2) == "{}");
  CHECK(Json(Json::Array{1, 2}).dump(2) == "[\n  1,\n  2\n]");
  CHECK(Json::parse(R"({"b":1,"a":2})").dump() == R"({"b": 1, "a": 2})");
}

TEST_CASE("json: the whole range of int64 is exact, and beyond it is refused", "[base]") {
  CHECK(Json::parse("9223372036854775807").as_int() == std::numeric_limits<int64_t>::max());
  CHECK(Json::parse("-9223372036854775808").as_int() == std::numeric_limits<int64_t>::min());
  CHECK(refusal("9223372036854775808") ==
        "a.json:1:19 the integer 9223372036854775808 does not fit into 64 signed bits.");
  CHECK(refusal("-9223372036854775809") ==
        "a.json:1:20 the integer -9223372036854775809 does not fit into 64 signed bits.");
  CHECK(refusal("[99999999999999999999999]") ==
        "a.json:1:25 the integer 99999999999999999999999 does not fit into 64 signed bits.");
  CHECK_THROWS_WITH(
      Json(uint64_t{1} << 63),
      "the integer 9223372036854775808 does not fit into 64 signed bits, the range of JSON integers here.");
}

TEST_CASE("json: numbers of Python's json module are read where the reader allows them", "[base]") {
  CHECK(refusal("[1.5, NaN]") == "a.json:1:7 is not JSON: NaN is not a number of JSON.");
  CHECK(refusal("{\"a\":\n Infinity}") == "a.json:2:2 is not JSON: Infinity is not a number of JSON.");
  CHECK(refusal("[-Infinity]").find("a.json:1:3 is not JSON: Infinity is not a number of JSON.") == 0);
  const auto python = [](const std::string& text) { return Json::parse(text, "a.json", JsonNumbers::python); };
  // The default of transformers for a tokenizer without a limit: int(1e30).
  const Json config = python(R"({"model_max_length": 1000000000000000019884624838656, "exact": 9223372036854775807})");
  CHECK(config.at("model_max_length").as_double() == 1e30);
  CHECK(config.at("exact").as_int() == std::numeric_limits<int64_t>::max());
  CHECK_THROWS_WITH(config.at("model_max_length").as_int("model_max_length"),
                    "model_max_length needs an integer, got a real.");
  CHECK(python("9223372036854775808").as_double() == 0x1p63);
  CHECK(python("18446744073709551616").as_double() == 0x1p64);
  CHECK(python("-9223372036854775809").as_double() == -0x1p63);
  for (const std::string_view space : {"", " ", "\n"}) {
    const auto read = [&](std::string_view name) { return python(fmt::format("{}{}{}", space, name, space)); };
    for (const std::string_view name : {"NaN", "Infinity", "-Infinity"}) CHECK(read(name).is_null());
    CHECK(read("-1.0").as_double() == -1);
    CHECK(read("\"\\\\\"").as_string() == "\\");
  }
  const Json mixed =
      python(R"({"NaN": [NaN, 1.0, -Infinity,2.5], "a\\": Infinity, "\"NaN": "-Infinity \" NaN", "b": 1})");
  CHECK(mixed.dump() == R"({"NaN": [null, 1.0, null, 2.5], "a\\": null, "\"NaN": "-Infinity \" NaN", "b": 1})");
  CHECK(mixed.at("NaN").as_array()[2].is_null());
  for (const std::string text : {"NaNx", "Infinit", "[-NaN]", "+Infinity", "[NaN NaN]", "1NaN", "1.5Infinity", "NaN5",
                                 "[Infinitye5]", "nan", "\"a\"NaN", "\"\\"}) {
    INFO(text);
    CHECK_THROWS_AS(python(text), DataError);
  }
}

TEST_CASE("json: duplicate keys and deep nesting are refused with their place", "[base]") {
  CHECK(refusal("{\"a\": 1,\n \"b\": {\"a\": 2},\n \"a\": 3}") == "a.json:3:4 duplicate key 'a'.");
  const auto nested = [](int depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  CHECK(refusal(nested(64)) == "accepted");
  CHECK(refusal(nested(65)) == "a.json:1:65 nests deeper than 64 levels.");
  CHECK(refusal(std::string(1000000, '[')) == "a.json:1:65 nests deeper than 64 levels.");
}

TEST_CASE("json: the duplicate of any key of an object is refused, whatever its number of keys", "[base]") {
  for (int keys = 1; keys <= 40; ++keys) {
    std::string text = "{";
    for (int i = 0; i < keys; ++i) text += fmt::format("\"k{}\": {{\"k{}\": 1}}, ", i, i);
    CHECK(refusal(text + "\"last\": 1}") == "accepted");
    for (int i = 0; i < keys; ++i) {
      INFO("keys " << keys << ", duplicate " << i);
      CHECK(refusal(fmt::format("{}\"k{}\": 1}}", text, i)).ends_with(fmt::format(" duplicate key 'k{}'.", i)));
    }
  }
}

TEST_CASE("json: malformed text is refused with its place", "[base]") {
  CHECK(refusal("") == "a.json is empty, a JSON text needs a value.");
  CHECK(refusal("{\"a\": }") == "a.json:1:7 is not JSON: unexpected '}'; expected '[', '{', or a literal.");
  CHECK(refusal("[1, 2") == "a.json:1:5 is not JSON: unexpected end of input; expected ']'.");
  CHECK(refusal("[1] x").find("a.json:1:5 is not JSON: invalid literal") == 0);
  CHECK(refusal("nul").find("a.json:1:3 is not JSON: invalid literal") == 0);
  CHECK(refusal("\"\xff\"").find("a.json:1:2 is not JSON: ") == 0);
  CHECK(refusal("1e999").find("a.json:1:5 is not JSON: ") == 0);
}

TEST_CASE("json: truncating or flipping any byte of a text never crashes", "[base]") {
  const std::string text =
      R"({"model_type": "gpt2", "sizes": [1, 2.5, -3e4, null, true], "n": {"a": {"b": "\u20ac"}}})";
  for (size_t cut = 0; cut < text.size(); ++cut) CHECK(refusal(text.substr(0, cut)) != "accepted");
  std::mt19937_64 random(7);
  for (int i = 0; i < 3000; ++i) {
    std::string broken = text;
    broken[random() % text.size()] = static_cast<char>(random());
    refusal(broken);
  }
}

TEST_CASE("json: accessors name the type that they require", "[base]") {
  const Json value = Json::parse(R"({"dtype": 5, "shape": [1, 2], "x": 1.5})");
  CHECK(value.at("dtype").as_int() == 5);
  CHECK(value.at("dtype").as_double() == 5.0);
  CHECK(value.at("shape").as_array()[1] == Json(2));
  CHECK(value.find("y") == nullptr);
  CHECK_THROWS_WITH(value.at("dtype").as_string("dtype of wte"), "dtype of wte needs a string, got an integer.");
  CHECK_THROWS_WITH(value.at("x").as_int("x"), "x needs an integer, got a real.");
  CHECK_THROWS_WITH(value.at("x").as_bool("x"), "x needs a boolean, got a real.");
  CHECK_THROWS_WITH(value.at("x").as_array("x"), "x needs an array, got a real.");
  CHECK_THROWS_WITH(value.at("x").as_object("x"), "x needs an object, got a real.");
  CHECK_THROWS_WITH(value.at("shape").as_double("shape"), "shape needs a number, got an array.");
  CHECK_THROWS_WITH(value.at("y"), "a JSON object has no member 'y'. Its members: dtype, shape, x.");
  CHECK_THROWS_WITH(Json::object().at("y"), "a JSON object has no member 'y'. Its members: (none).");
  CHECK_THROWS_WITH(Json(3).find("y"), "a JSON value needs an object, got an integer.");
}
