#include "sim/base/formats/document.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <valijson/adapters/nlohmann_json_adapter.hpp>
#include <valijson/schema.hpp>
#include <valijson/schema_parser.hpp>
#include <valijson/validation_results.hpp>
#include <valijson/validator.hpp>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/no_answer.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/text.hpp"

namespace moesim {

using Json = nlohmann::json;

struct Document::Content {
  std::string name;
  Json value;
  std::string repeated;  // path of a key that is there twice, "" if none is
};

namespace {

std::string shown(const Json& value) {
  std::string text = json_text(value);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return fmt::format("{} {}", value.type_name(), text);
}

// The value at `path`, or null.
const Json* value_at(const Json& root, const std::vector<std::string>& path) {
  const Json* value = &root;
  for (const std::string& key : path) {
    if (value->is_object() && value->contains(key)) {
      value = &(*value)[key];
    } else if (value->is_array() && std::stoul(key) < value->size()) {
      value = &(*value)[std::stoul(key)];
    } else {
      return nullptr;
    }
  }
  return value;
}

bool holds(const Json& rules, const Json& value) {
  valijson::Schema compiled;
  valijson::SchemaParser(valijson::SchemaParser::kDraft7)
      .populateSchema(valijson::adapters::NlohmannJsonAdapter(rules), compiled);
  return valijson::Validator().validate(compiled, valijson::adapters::NlohmannJsonAdapter(value),
                                        nullptr);
}

// Appends `part` of the schema `root` and what it takes in for `value`: $ref, allOf, if.
void add_parts(const Json& root, const Json& part, const Json& value,
               std::vector<const Json*>& parts) {
  parts.push_back(&part);
  if (!part.is_object()) return;
  if (const auto reference = part.find("$ref"); reference != part.end()) {
    const Json::json_pointer place(reference->get<std::string>().substr(1));
    return add_parts(root, root.at(place), value, parts);
  }
  if (const auto all = part.find("allOf"); all != part.end()) {
    for (const Json& each : *all) add_parts(root, each, value, parts);
  }
  if (const auto condition = part.find("if"); condition != part.end()) {
    const auto taken = part.find(holds(*condition, value) ? "then" : "else");
    if (taken != part.end()) add_parts(root, *taken, value, parts);
  }
}

// The parts of a schema that speak of the value at `path` of a document.
std::vector<const Json*> schema_at(const Json& root, const Json& document,
                                   const std::vector<std::string>& path) {
  std::vector<const Json*> parts;
  add_parts(root, root, document, parts);
  std::vector<std::string> walked;
  for (const std::string& key : path) {
    walked.push_back(key);
    const Json* value = value_at(document, walked);
    if (value == nullptr) return {};
    std::vector<const Json*> inner;
    for (const Json* part : parts) {
      if (const auto properties = part->find("properties"); properties != part->end()) {
        const auto found = properties->find(key);
        if (found != properties->end()) add_parts(root, *found, *value, inner);
      } else if (const auto items = part->find("items"); items != part->end()) {
        add_parts(root, *items, *value, inner);
      }
    }
    parts = std::move(inner);
  }
  return parts;
}

// "type number, exclusiveMinimum 0: what the value means", of all parts of a schema.
std::string rules_of(const std::vector<const Json*>& schema) {
  std::vector<std::string> rules;
  for (const char* rule : {"type", "enum", "const", "minimum", "exclusiveMinimum", "maximum",
                           "exclusiveMaximum", "minLength", "minItems", "pattern"}) {
    for (const Json* part : schema) {
      const auto found = part->find(rule);
      if (found == part->end()) continue;
      std::string text = fmt::format(
          "{} {}", rule, found->is_string() ? found->get<std::string>() : json_text(*found));
      if (std::find(rules.begin(), rules.end(), text) == rules.end()) rules.push_back(text);
    }
  }
  if (rules.empty()) return "";
  std::string text = fmt::format("{}", fmt::join(rules, ", "));
  for (const Json* part : schema) {
    if (const auto meaning = part->find("description"); meaning != part->end()) {
      return text + ": " + meaning->get<std::string>();
    }
  }
  return text;
}

// What the validator says in its own words ("... 'type' constraint"), in the reader's.
std::string in_plain_words(const std::string& message, const std::vector<const Json*>& schema,
                           const Json* value) {
  const auto quoted = [&] {
    const std::size_t last = message.rfind('\'');
    const std::size_t first = last == std::string::npos ? last : message.rfind('\'', last - 1);
    return first == std::string::npos ? std::string() : message.substr(first + 1, last - first - 1);
  };
  if (message.starts_with("Missing required")) {
    return fmt::format("the key '{}' is missing", quoted());
  }
  if (message.starts_with("Object contains a property")) {
    std::vector<std::string> known;
    for (const Json* part : schema) {
      const auto properties = part->find("properties");
      if (properties == part->end()) continue;
      for (const auto& item : properties->items()) known.push_back(item.key());
    }
    return fmt::format("unknown key '{}'{}", quoted(), suggestion(quoted(), known));
  }
  const std::string expected = rules_of(schema);
  if (expected.empty() || value == nullptr) return message;
  return fmt::format("found {}; expected {}", shown(*value), expected);
}

// Whether a message says no more than that the messages before it make a whole invalid.
bool only_sums_up(const std::string& message) {
  return message.starts_with("Failed to validate against");
}

// The library that checks patterns recurses by the character (std::regex), with the address
// sanitizer by up to 2.7 KiB of stack each, of 8 MiB. Texts of documents come to terminals.
constexpr std::size_t longest_text = 2048;

// What is wrong with a text; "" for nothing.
std::string fault_of(const std::string& text) {
  if (text.size() > longest_text) {
    return fmt::format("a text of {} bytes: at most {}", text.size(), longest_text);
  }
  const bool plain = std::all_of(text.begin(), text.end(), [](char letter) {
    return letter >= ' ' && letter < 0x7F;  // most texts
  });
  if (plain) return "";
  const std::string shown = printable(text);
  return shown == text ? "" : fmt::format("a control character in \"{}\": leave it out", shown);
}

// "/path: fault" of the first text or key with one, "" where there is none. Of a text itself, or a
// key of the value itself, ": fault".
std::string fault_within(const Json& value) {
  if (value.is_string()) {
    const std::string fault = fault_of(value.get_ref<const std::string&>());
    return fault.empty() ? "" : ": " + fault;
  }
  if (!value.is_structured()) return "";
  std::size_t index = 0;
  for (const auto& item : value.items()) {
    if (value.is_object()) {
      const std::string fault = fault_of(item.key());
      if (!fault.empty()) return ": " + fault;
    }
    if (item.value().is_string() || item.value().is_structured()) {
      const std::string fault = fault_within(item.value());
      if (!fault.empty()) {
        return fmt::format("/{}{}", value.is_object() ? item.key() : std::to_string(index), fault);
      }
    }
    ++index;
  }
  return "";
}

std::string find_fault(const Json& document) {
  std::string fault = fault_within(document);
  return document.is_object() && fault.starts_with(':') ? "/" + fault : fault;
}

// Whether a number is whole and written as another one: 8.0, 1e3.
bool is_whole_float(const Json& value) {
  if (!value.is_number_float()) return false;
  constexpr double most = 9007199254740992;  // 2^53: beyond it a double skips whole numbers
  const double number = value.get<double>();
  return std::trunc(number) == number && std::abs(number) <= most;
}

// Writes 8.0 as 8, which are the same to a schema but not to the validator.
void write_whole_numbers(Json& value) {
  if (is_whole_float(value)) value = value.get<std::int64_t>();
  if (!value.is_structured()) return;
  for (Json& part : value) write_whole_numbers(part);
}

}  // namespace

// A schema as the validator takes it.
struct Document::Schema {
  explicit Schema(std::shared_ptr<const Content> read) : content(std::move(read)) {
    valijson::SchemaParser parser(valijson::SchemaParser::kDraft7);
    parser.populateSchema(valijson::adapters::NlohmannJsonAdapter(content->value), rules);
  }
  std::shared_ptr<const Content> content;
  valijson::Schema rules;
  valijson::Validator validator;  // with the patterns that it compiled
};

void Document::check(const Content& content, Schema& schema) {
  if (const std::string fault = find_fault(content.value); !fault.empty()) {
    throw BrokenDocument(fmt::format("{}: {}", content.name, fault));
  }
  if (!content.repeated.empty()) {
    throw BrokenDocument(fmt::format("{}: {}: this key is there twice: leave one out", content.name,
                                     content.repeated));
  }
  valijson::ValidationResults results;
  const auto is_valid = [&](const Json& value) {
    const valijson::adapters::NlohmannJsonAdapter target(value);
    return schema.validator.validate(schema.rules, target, &results);
  };
  if (is_valid(content.value)) return;
  Json written = content.value;
  write_whole_numbers(written);
  results = {};
  if (is_valid(written)) return;
  // The deepest path, and there what is wrong rather than which combination of schemas it fails.
  const auto rank = [](const valijson::ValidationResults::Error& error) {
    return std::pair(error.context.size(), !only_sums_up(error.description));
  };
  valijson::ValidationResults::Error error;
  valijson::ValidationResults::Error deepest;
  while (results.popError(error)) {
    if (rank(error) >= rank(deepest)) deepest = error;
  }
  std::string path;
  std::vector<std::string> keys;
  for (std::size_t part = 1; part < deepest.context.size(); ++part) {
    std::string name = deepest.context[part];
    if (name.size() > 2 && name.front() == '[') name = name.substr(1, name.size() - 2);
    path += "/" + name;
    keys.push_back(std::move(name));
  }
  const std::string reason =
      in_plain_words(deepest.description, schema_at(schema.content->value, content.value, keys),
                     value_at(content.value, keys));
  throw BrokenDocument(fmt::format("{}: {}: {} (schema {})", content.name,
                                   path.empty() ? "/" : path, reason, schema.content->name));
}

Document Document::load(const std::string& path) { return parse(read_file(path), path); }

Document Document::parse(const std::string& text, const std::string& name) {
  Document document;
  std::string repeated;
  Json value = parse_json(text, name, repeated);
  document.content_ =
      std::make_shared<const Content>(Content{name, std::move(value), std::move(repeated)});
  return document;
}

const std::string& Document::name() const { return content_->name; }

Node Document::root() const { return Node(content_, &content_->value, ""); }

void Document::validate(const Document& schema) const {
  Schema compiled(schema.content_);
  check(*content_, compiled);
}

void Document::validate(const std::string& schema) const {
  // Each thread has its own: the validator adds to the patterns that it keeps.
  thread_local std::map<std::string, Schema> compiled;  // by file
  const std::string file = find_document("schema", schema);
  auto found = compiled.find(file);
  if (found == compiled.end()) found = compiled.try_emplace(file, load(file).content_).first;
  check(*content_, found->second);
}

Node::Node(std::shared_ptr<const Document::Content> content, const Json* value, std::string path)
    : content_(std::move(content)), value_(value), path_(std::move(path)) {}

const std::string& Node::file() const { return content_->name; }

void Node::fail(const std::string& message, const std::string& key) const {
  const std::string path = key.empty() ? path_ : path_ + "/" + key;
  throw BrokenDocument(fmt::format("{}: {}: {}", file(), path.empty() ? "/" : path, message));
}

std::optional<Node> Node::find(const std::string& key) const {
  if (!value_->is_object()) fail(fmt::format("expected an object, found {}", shown(*value_)));
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return Node(content_, &*found, path_ + "/" + key);
}

Node Node::at(const std::string& key) const {
  std::optional<Node> found = find(key);
  if (!found) fail("this key is missing", key);
  return std::move(*found);
}

double Node::as_number() const {
  if (!value_->is_number()) fail(fmt::format("expected a number, found {}", shown(*value_)));
  return value_->get<double>();
}

std::string Node::as_text() const {
  if (!value_->is_string()) fail(fmt::format("expected a string, found {}", shown(*value_)));
  return value_->get<std::string>();
}

double Node::number(const std::string& key) const { return at(key).as_number(); }

double Node::number_or(const std::string& key, double fallback) const {
  const std::optional<Node> found = find(key);
  return found ? found->as_number() : fallback;
}

double Node::positive(const std::string& key) const {
  const double value = number(key);
  if (!(value > 0) || !std::isfinite(value)) {
    fail(fmt::format("expected a number above 0, found {}", shown(at(key).json())), key);
  }
  return value;
}

std::int64_t Node::integer(const std::string& key) const {
  const Node value = at(key);
  if (is_whole_float(value.json())) return value.json().get<std::int64_t>();
  if (!value.json().is_number_integer()) {
    value.fail(fmt::format("expected a whole number, found {}", shown(value.json())));
  }
  if (value.json().is_number_unsigned() &&
      value.json().get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
    value.fail(fmt::format("{} is out of range", shown(value.json())));
  }
  return value.json().get<std::int64_t>();
}

std::int64_t Node::integer_or(const std::string& key, std::int64_t fallback) const {
  return has(key) ? integer(key) : fallback;
}

std::int64_t Node::positive_integer(const std::string& key) const {
  const std::int64_t value = integer(key);
  if (value <= 0) fail(fmt::format("expected a whole number above 0, found {}", value), key);
  return value;
}

int Node::count(const std::string& key) const {
  return static_cast<int>(check_range(key, integer(key), 1));
}

int Node::count_or(const std::string& key, int fallback, int least) const {
  return static_cast<int>(check_range(key, integer_or(key, fallback), least));
}

std::int64_t Node::check_range(const std::string& key, std::int64_t value, int least) const {
  constexpr int most = std::numeric_limits<int>::max();
  if (value < least || value > most) {
    fail(fmt::format("expected a whole number from {} to {}, found {}", least, most, value), key);
  }
  return value;
}

bool Node::boolean(const std::string& key) const {
  const Node value = at(key);
  if (!value.json().is_boolean()) {
    value.fail(fmt::format("expected true or false, found {}", shown(value.json())));
  }
  return value.json().get<bool>();
}

bool Node::boolean_or(const std::string& key, bool fallback) const {
  return has(key) ? boolean(key) : fallback;
}

std::string Node::text(const std::string& key) const { return at(key).as_text(); }

std::string Node::text_or(const std::string& key, const std::string& fallback) const {
  return has(key) ? text(key) : fallback;
}

std::string Node::document(const std::string& key, const std::string& kind) const {
  std::string name = text(key);
  try {
    find_document(kind, name);
  } catch (const UnknownDocument& error) {
    fail(error.what(), key);
  }
  return name;
}

std::vector<double> Node::numbers(const std::string& key) const {
  const Node list = at(key);
  std::vector<double> values;
  values.reserve(list.elements().size());
  // Lists may be long: only an element that is wrong needs its path.
  for (const Json& item : list.elements()) {
    values.push_back(item.is_number() ? item.get<double>()
                                      : list.element(item, values.size()).as_number());
  }
  return values;
}

std::vector<std::string> Node::texts(const std::string& key) const {
  std::vector<std::string> values;
  for (const Node& item : items(key)) values.push_back(item.as_text());
  return values;
}

std::vector<Node> Node::items(const std::string& key) const { return at(key).items(); }

std::vector<Node> Node::items() const {
  std::vector<Node> nodes;
  nodes.reserve(elements().size());
  for (const Json& item : elements()) nodes.push_back(element(item, nodes.size()));
  return nodes;
}

const Json& Node::elements() const {
  if (!value_->is_array()) fail(fmt::format("expected an array, found {}", shown(*value_)));
  return *value_;
}

Node Node::element(const Json& item, std::size_t index) const {
  return Node(content_, &item, fmt::format("{}/{}", path_, index));
}

std::vector<std::string> Node::keys() const {
  if (!value_->is_object()) fail(fmt::format("expected an object, found {}", shown(*value_)));
  std::vector<std::string> names;
  for (const auto& item : value_->items()) names.push_back(item.key());
  return names;
}

}  // namespace moesim
