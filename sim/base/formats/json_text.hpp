#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace moesim {

// JSON from elsewhere and back, without what nlohmann::json does to a program that trusts the text.

// The most arrays and objects inside each other: its functions recurse, and shipped documents have
// at most 14.
inline constexpr std::size_t deepest_json = 128;

// Throws UsageError "NAME: line L, column C: ..." for text that is no JSON, a number that no double
// holds (1e400), NaN and Infinity, and nesting deeper than `deepest_json`.
nlohmann::json parse_json(const std::string& text, const std::string& name);
// The same; `repeated` becomes the path of the first key that an object has twice ("/domain/gpus"),
// or "". Its last value is taken.
nlohmann::json parse_json(const std::string& text, const std::string& name, std::string& repeated);
// As parse_json(), but null for such text; an empty array, say, is what a reader then refuses by
// itself.
nlohmann::json parse_json_or_null(const std::string& text);

// The text of a value; bytes that are no UTF-8, such as those of a file's name, as U+FFFD.
// `indent` -1: on one line.
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

}  // namespace moesim
