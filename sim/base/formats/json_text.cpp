#include "sim/base/formats/json_text.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/base/no_answer.hpp"

namespace moesim {

namespace {

using Json = nlohmann::json;

// People look for a line, not for a byte.
std::string line_and_column(std::string_view text, std::size_t byte) {
  std::size_t line = 1;
  std::size_t column = 1;
  for (std::size_t at = 0; at < byte && at < text.size(); ++at) {
    column = text[at] == '\n' ? 1 : column + 1;
    line += text[at] == '\n' ? 1 : 0;
  }
  return fmt::format("line {}, column {}", line, column);
}

[[noreturn]] void refuse(const std::string& name, std::string_view text, std::size_t byte,
                         const std::string& reason) {
  throw BrokenDocument(fmt::format("{}: {}: {}", name, line_and_column(text, byte), reason));
}

// Calls visit(byte, depth) for each character outside of strings until it returns true; where that
// was.
template <typename Visit>
std::optional<std::size_t> find_outside_strings(std::string_view text, const Visit& visit) {
  std::size_t depth = 0;
  bool quoted = false;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char letter = text[at];
    if (quoted) {
      if (letter == '\\') ++at;
      quoted = letter != '"';
      continue;
    }
    if (letter == '"') quoted = true;
    if (letter == '[' || letter == '{') ++depth;
    if ((letter == ']' || letter == '}') && depth > 0) --depth;
    if (visit(at, depth)) return at;
  }
  return std::nullopt;
}

std::optional<std::size_t> find_too_deep(std::string_view text) {
  return find_outside_strings(text,
                              [](std::size_t, std::size_t depth) { return depth > deepest_json; });
}

// The parser's message without its own name, place and the text before the mistake: "[json...]
// parse error at line 3, column 9: syntax error while parsing value - invalid literal; last read:
// '...'".
std::string reason_of(const Json::parse_error& error) {
  std::string what = error.what();
  if (const std::size_t at = what.find("parse error"); at != std::string::npos) {
    if (const std::size_t colon = what.find(": ", at); colon != std::string::npos) {
      what.erase(0, colon + 2);
    }
  }
  constexpr std::size_t most = 200;
  if (what.size() > most) what = what.substr(0, most) + "...";
  return what;
}

// NaN, Infinity and -Infinity, as Python's json module writes them, end at the byte where the
// parser gives up or a few later.
bool is_not_finite(std::string_view text, std::size_t byte) {
  constexpr std::size_t longest = 10;
  const std::size_t from = byte > longest ? byte - longest : 0;
  const std::string_view around = text.substr(from, 2 * longest);
  for (const std::string_view word : {"NaN", "Infinity", "nan", "inf"}) {
    const std::size_t found = around.find(word);
    if (found != std::string_view::npos && from + found <= byte &&
        byte <= from + found + word.size()) {
      return true;
    }
  }
  return false;
}

// Finds the first key that an object has twice, of which the parser keeps the last. The parser
// calls it for each part of a text.
class RepeatedKey {
 public:
  explicit RepeatedKey(std::string& found) : found_(found) {}

  bool operator()(int, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    if (event == Event::key) {
      take_key(parsed.get_ref<const std::string&>());
    } else if (event == Event::object_end || event == Event::array_end) {
      open_.pop_back();
    } else {
      if (!open_.empty() && open_.back().is_array) ++open_.back().elements;
      if (event != Event::value) open_.push_back({event == Event::array_start, 0, {}, {}});
    }
    return true;
  }

 private:
  struct Part {
    bool is_array;
    std::size_t elements;
    std::string key;  // the last one
    std::set<std::string> keys;
  };

  void take_key(const std::string& key) {
    open_.back().key = key;
    if (open_.back().keys.insert(key).second || !found_.empty()) return;
    for (const Part& part : open_) {
      found_ += "/" + (part.is_array ? std::to_string(part.elements - 1) : part.key);
    }
  }

  std::string& found_;
  std::vector<Part> open_;  // outermost first
};

Json parse(const std::string& text, const std::string& name,
           const Json::parser_callback_t& callback) {
  if (const auto deep = find_too_deep(text)) {
    refuse(name, text, *deep,
           fmt::format("more than {} arrays and objects inside each other", deepest_json));
  }
  try {
    return Json::parse(text, callback);
  } catch (const Json::parse_error& error) {
    const std::size_t byte = error.byte == 0 ? 0 : error.byte - 1;
    if (is_not_finite(text, byte)) {
      refuse(name, text, byte,
             "not valid JSON: expected a number; JSON has no NaN and no infinity");
    }
    refuse(name, text, byte, "not valid JSON: " + reason_of(error));
  } catch (const Json::out_of_range& error) {  // 1e999: a number no double can hold
    const std::string_view what = error.what();
    const std::size_t first = what.find('\'');
    const std::size_t last = what.rfind('\'');
    if (first == last) throw BrokenDocument(fmt::format("{}: not usable JSON: {}", name, what));
    const std::string_view number = what.substr(first + 1, last - first - 1);
    const auto place = find_outside_strings(text, [&](std::size_t at, std::size_t) {
      return std::string_view(text).substr(at).starts_with(number);
    });
    refuse(name, text, place.value_or(0),
           fmt::format("{} is beyond the largest number, about 1.8e308", number));
  }
}

}  // namespace

Json parse_json(const std::string& text, const std::string& name) {
  return parse(text, name, nullptr);
}

Json parse_json(const std::string& text, const std::string& name, std::string& repeated) {
  repeated.clear();
  return parse(text, name, RepeatedKey(repeated));
}

Json parse_json_or_null(const std::string& text) {
  if (find_too_deep(text)) return {};
  Json value = Json::parse(text, nullptr, false);
  return value.is_discarded() ? Json() : value;
}

std::string json_text(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
  return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace moesim
