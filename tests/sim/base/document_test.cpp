#include "sim/base/formats/document.hpp"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;

namespace {

const char* const text = R"({
  "name": "x", "size": 4, "share": 0.25, "on": true, "gone": null, "big": 18446744073709551615,
  "curves": [{"knots": [1, 2]}, {"knots": [1, "two"]}]
})";

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

std::string parse_error(const std::string& content) {
  return message_of([&] { Document::parse(content, "x.json"); });
}

}  // namespace

TEST_CASE("values are read by key") {
  const Document document = Document::parse(text, "x.json");
  const Node root = document.root();
  CHECK(root.text("name") == "x");
  CHECK(root.integer("size") == 4);
  CHECK(root.number("size") == 4);
  CHECK(root.positive("share") == 0.25);
  CHECK(root.boolean("on"));
  CHECK_FALSE(root.has("gone"));
  CHECK_FALSE(root.has("absent"));
  CHECK(root.number_or("absent", 3) == 3);
  CHECK(root.integer_or("gone", 5) == 5);
  CHECK(root.text_or("absent", "none") == "none");
  CHECK(root.items("curves").size() == 2);
  CHECK(root.items("curves")[0].numbers("knots") == std::vector<double>{1, 2});
  CHECK(root.keys().size() == 7);
}

TEST_CASE("a node outlives the document variable it came from") {
  const Node node = [] { return Document::parse(text, "x.json").root().at("curves"); }();
  CHECK(node.items().size() == 2);
}

TEST_CASE("every wrong value names file, key and what was expected") {
  const Node root = Document::parse(text, "x.json").root();
  CHECK(message_of([&] { root.number("absent"); }) == "x.json: /absent: this key is missing");
  CHECK(message_of([&] { root.number("gone"); }) == "x.json: /gone: this key is missing");
  CHECK(message_of([&] { root.number("name"); }) ==
        "x.json: /name: expected a number, found string \"x\"");
  CHECK(message_of([&] { root.text("size"); }) ==
        "x.json: /size: expected a string, found number 4");
  CHECK(message_of([&] { root.integer("share"); }) ==
        "x.json: /share: expected a whole number, found number 0.25");
  CHECK(message_of([&] { root.boolean("size"); }) ==
        "x.json: /size: expected true or false, found number 4");
  CHECK(message_of([&] { root.items("name"); }) ==
        "x.json: /name: expected an array, found string \"x\"");
  CHECK(message_of([&] { root.items("curves")[1].numbers("knots"); }) ==
        "x.json: /curves/1/knots/1: expected a number, found string \"two\"");
  CHECK(message_of([&] { root.at("size").at("deeper"); }) ==
        "x.json: /size: expected an object, found number 4");
  CHECK_THAT(message_of([&] { root.integer("big"); }),
             ContainsSubstring("x.json: /big: ") && ContainsSubstring("out of range"));
  CHECK(message_of([&] { root.fail("no", "curves"); }) == "x.json: /curves: no");
  CHECK(message_of([&] { root.fail("no"); }) == "x.json: /: no");
}

TEST_CASE("positive values are above zero and finite") {
  const Node root = Document::parse(R"({"zero": 0, "less": -1, "one": 1})", "y.json").root();
  CHECK(root.positive_integer("one") == 1);
  CHECK_THAT(message_of([&] { root.positive("zero"); }),
             ContainsSubstring("y.json: /zero: expected a number above 0"));
  CHECK_THAT(message_of([&] { root.positive_integer("less"); }),
             ContainsSubstring("y.json: /less: expected a whole number above 0, found -1"));
}

TEST_CASE("text that is not JSON names the line and column") {
  CHECK_THAT(parse_error("{\n  \"a\": 1,\n  \"b\" 2\n}"),
             ContainsSubstring("x.json: line 3, column 7: not valid JSON"));
  CHECK_THAT(parse_error(""), ContainsSubstring("x.json: line 1, column 1: not valid JSON"));
  CHECK_THAT(parse_error("{} {}"), ContainsSubstring("x.json: line 1, column 4"));
  for (const char* word : {"nan", "NaN", "Infinity", "-Infinity", "inf"}) {
    CHECK_THAT(
        parse_error(fmt::format("{{\n \"a\": {}}}", word)),
        ContainsSubstring("x.json: line 2, column ") && ContainsSubstring("expected a number"));
  }
  CHECK_THAT(parse_error("{\"a: b\": [1: 2]}"), ContainsSubstring("not valid JSON: syntax error") &&
                                                    ContainsSubstring("expected ']'"));
  CHECK(parse_error("{\"1e999\":\n  1e999}") ==
        "x.json: line 2, column 3: 1e999 is beyond the largest number, about 1.8e308");
  CHECK_THAT(message_of([] { Document::load("/nonexistent/x.json"); }),
             ContainsSubstring("/nonexistent/x.json: cannot read: No such file or directory"));
}

TEST_CASE("nesting beyond any document is refused") {
  const auto nested = [](std::size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  CHECK(parse_error(nested(128)) == "no error");
  CHECK(parse_error("{\"a\": \"" + nested(200) + "\"}") == "no error");  // a text
  CHECK_THAT(parse_error(nested(129)), ContainsSubstring("x.json: line 1, column 129: more than "));
  // The depth at which its printing used to end the process.
  CHECK_THAT(parse_error(nested(100'000)), ContainsSubstring("x.json: line 1, column 129"));
}

TEST_CASE("texts of a validated document are short and fit for a terminal") {
  const Document schema =
      Document::parse(R"({"properties": {"name": {"pattern": "^(a|b)*$"}}})", "s.json");
  const auto violation = [&](const std::string& content) {
    return message_of([&] { Document::parse(content, "x.json").validate(schema); });
  };
  CHECK(violation("{\"name\": \"" + std::string(2048, 'a') + "\"}") == "no error");
  // std::regex recurses by the character: this was the end of the stack.
  CHECK(violation("{\"name\": \"" + std::string(1'000'000, 'a') + "\"}") ==
        "x.json: /name: a text of 1000000 bytes: at most 2048");
  CHECK(violation(R"({"note": "a\n\tb \u00e9"})") == "no error");
  CHECK(violation(R"({"notes": ["a", "\u001b[2J"]})") ==
        "x.json: /notes/1: a control character in \"\\x1b[2J\": leave it out");
  CHECK(violation(R"({"a\u009bb": 1})") ==
        "x.json: /: a control character in \"a\\xc2\\x9bb\": leave it out");
  CHECK(violation(R"({"a": [{"b\u001b": 1}]})") ==
        "x.json: /a/0: a control character in \"b\\x1b\": leave it out");
  CHECK(violation("\"\\u001b\"") == "x.json: : a control character in \"\\x1b\": leave it out");
}

TEST_CASE("documents are validated by a shipped schema, read once or not") {
  const auto violation = [](const std::string& content, const std::string& schema) {
    return message_of([&] { Document::parse(content, "x.json").validate(schema); });
  };
  for (int time = 0; time < 2; ++time) {
    CHECK_THAT(violation(R"({"format": 1})", "cluster.schema"),
               ContainsSubstring("x.json: /format: ") && ContainsSubstring("cluster.schema.json)"));
    CHECK_THAT(violation("{}", "profile.schema"), ContainsSubstring("profile.schema.json)"));
  }
  CHECK_THAT(violation("{}", "cluste.schema"), ContainsSubstring("did you mean 'cluster.schema'?"));
}

TEST_CASE("an element that is no number is named by its place in the list") {
  const Document document = Document::parse(R"({"a": [1, 2.5, "3"], "b": 4})", "x.json");
  CHECK(Document::parse(R"({"a": [1, 2.5]})", "x.json").root().numbers("a") ==
        std::vector<double>{1, 2.5});
  CHECK(message_of([&] { document.root().numbers("a"); }) ==
        "x.json: /a/2: expected a number, found string \"3\"");
  CHECK(message_of([&] { document.root().numbers("b"); }) ==
        "x.json: /b: expected an array, found number 4");
}

TEST_CASE("a schema violation names the key and the schema") {
  const Document schema = Document::parse(R"({
    "type": "object", "required": ["name"], "additionalProperties": false,
    "properties": {
      "name": {"type": "string"},
      "curves": {"type": "array", "items": {
        "type": "object", "required": ["op"],
        "properties": {"op": {"enum": ["gemm", "attention"]}, "n": {"minimum": 1}}}}}
  })",
                                          "s.json");
  const auto violation = [&](const std::string& content) {
    return message_of([&] { Document::parse(content, "x.json").validate(schema); });
  };
  CHECK(violation(R"({"name": "x", "curves": [{"op": "gemm", "n": 1}]})") == "no error");
  CHECK_THAT(violation("{}"), ContainsSubstring("x.json: /:") && ContainsSubstring("'name'") &&
                                  ContainsSubstring("(schema s.json)"));
  CHECK_THAT(violation(R"({"name": 3})"), ContainsSubstring("x.json: /name:"));
  CHECK_THAT(violation(R"({"name": "x", "curves": [{"op": "gemm"}, {"op": "conv"}]})"),
             ContainsSubstring("x.json: /curves/1/op:"));
  CHECK_THAT(violation(R"({"name": "x", "curves": [{"op": "gemm", "n": 0}]})"),
             ContainsSubstring("x.json: /curves/0/n:"));
  CHECK_THAT(violation(R"({"name": "x", "nome": 1})"),
             ContainsSubstring("unknown key 'nome' (did you mean 'name'?)"));
  CHECK_THAT(violation(R"({"name": "x", "curves": [{"op": "conv"}]})"),
             ContainsSubstring(R"(found string "conv"; expected enum ["gemm","attention"])"));
  CHECK_THAT(violation(R"({"name": "x", "curves": [{"n": 2}]})"),
             ContainsSubstring("x.json: /curves/0: the key 'op' is missing"));
}

TEST_CASE("a violation of combined schemas names what is wrong within them") {
  const Document schema = Document::parse(R"({
    "definitions": {
      "size": {"type": "integer", "minimum": 2, "description": "of a group"},
      "branch": {"required": ["gpus"], "additionalProperties": false,
                 "properties": {"gpus": {"$ref": "#/definitions/size"}, "note": {}}}
    },
    "required": ["op"],
    "properties": {"op": {"enum": ["sum", "copy"]},
                   "spread": {"allOf": [{"$ref": "#/definitions/size"}, {"type": "integer"}]}},
    "allOf": [
      {"if": {"required": ["op"], "properties": {"op": {"const": "sum"}}},
       "then": {"required": ["branches"], "properties": {
         "model": {"const": "tree"}, "branches": {"items": {"$ref": "#/definitions/branch"}}}},
       "else": {"required": ["rate"]}},
      {"if": {"required": ["op"], "properties": {"op": {"const": "copy"}}},
       "then": {"properties": {"model": {"const": "straight"}}}}
    ]
  })",
                                          "s.json");
  const auto violation = [&](const std::string& content) {
    return message_of([&] { Document::parse(content, "x.json").validate(schema); });
  };
  CHECK(violation(R"({"op": "sum", "model": "tree", "branches": [{"gpus": 2}]})") == "no error");
  CHECK(violation(R"({"op": "sum"})") ==
        "x.json: /: the key 'branches' is missing (schema s.json)");
  CHECK(violation(R"({"op": "copy"})") == "x.json: /: the key 'rate' is missing (schema s.json)");
  CHECK(violation(R"({"rate": 1})") == "x.json: /: the key 'op' is missing (schema s.json)");
  CHECK(
      violation(R"({"op": "sum", "branches": [{"gpus": "4"}]})") ==
      "x.json: /branches/0/gpus: found string \"4\"; expected type integer, minimum 2: of a group "
      "(schema s.json)");
  CHECK(violation(R"({"op": "sum", "branches": [{"gpus": 4, "nota": 1}]})") ==
        "x.json: /branches/0: unknown key 'nota' (did you mean 'note'?) (schema s.json)");
  CHECK(violation(R"({"op": "sum", "model": "straight", "branches": []})") ==
        "x.json: /model: found string \"straight\"; expected const tree (schema s.json)");
  CHECK(violation(R"({"op": "copy", "rate": 1, "spread": 1})") ==
        "x.json: /spread: found number 1; expected type integer, minimum 2: of a group "
        "(schema s.json)");
}

TEST_CASE("a key that is there twice is refused where a schema is asked") {
  const Document schema = Document::parse("{}", "s.json");
  const auto violation = [&](const std::string& content) {
    return message_of([&] { Document::parse(content, "x.json").validate(schema); });
  };
  CHECK(violation(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 1}, {"a": 2}], "d": "\"a\": 1"})") ==
        "no error");
  CHECK(violation(R"({"a": 1, "b": 2, "a": 1})") ==
        "x.json: /a: this key is there twice: leave one out");
  CHECK(violation(R"({"a": [[0], 1, {"b": [2, {}], "c": 3, "b": 4}], "a": 1})") ==
        "x.json: /a/2/b: this key is there twice: leave one out");
  // Logs of other programs are read as they are.
  CHECK(Document::parse(R"({"a": 1, "a": 2})", "x.json").root().integer("a") == 2);
}

TEST_CASE("a whole number may be written with a fraction of zero or an exponent") {
  const Document schema = Document::parse(
      R"({"properties": {"n": {"type": "integer", "minimum": 1}, "v": {"const": 1},
                         "x": {"type": "number"}, "s": {"type": "string"}}})",
      "s.json");
  const Document document = Document::parse(R"({"n": 8.0, "v": 1.0, "x": 2.5})", "x.json");
  document.validate(schema);
  CHECK(document.root().integer("n") == 8);
  CHECK(Document::parse(R"({"n": 1e3})", "x.json").root().count("n") == 1000);
  const auto violation = [&](const std::string& content) {
    return message_of([&] { Document::parse(content, "x.json").validate(schema); });
  };
  CHECK_THAT(violation(R"({"n": 8.5})"), ContainsSubstring("x.json: /n: found number 8.5"));
  CHECK_THAT(violation(R"({"n": 0.0})"), ContainsSubstring("x.json: /n: found number 0.0"));
  CHECK_THAT(violation(R"({"n": 8.0, "s": 2.0})"), ContainsSubstring("x.json: /s: found number"));
  CHECK_THAT(violation(R"({"n": 1e300})"), ContainsSubstring("x.json: /n: found number 1e+300"));
}
