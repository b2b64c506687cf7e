#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace moesim {

class Node;

// A JSON file, parsed once. Copies share the parsed text; a Node stays valid as long as any copy
// of its Document lives.
class Document {
 public:
  // Throws Error (usage) naming the file, and for malformed JSON the line and column.
  static Document load(const std::string& path);
  // The same from text; `name` stands for the file in messages.
  static Document parse(const std::string& text, const std::string& name);

  // Throws UsageError naming file, key and what the schema (JSON Schema, draft 7) asks for, or a
  // key that is there twice. 8.0 is a whole number, as it is to the schema.
  void validate(const Document& schema) const;
  // The same by a shipped schema, "cluster.schema" say, that each thread reads and compiles once.
  void validate(const std::string& schema) const;

  const std::string& name() const;
  Node root() const;

 private:
  friend class Node;
  struct Content;
  struct Schema;
  static void check(const Content& content, Schema& schema);

  std::shared_ptr<const Content> content_;
};

// One value of a Document and the path that leads to it. Every accessor throws UsageError with the
// file, the path of the key and what was expected there: "x.json: /curves/2/knots: expected ...".
class Node {
 public:
  Node at(const std::string& key) const;
  std::optional<Node> find(const std::string& key) const;  // absent or null: nothing
  bool has(const std::string& key) const { return find(key).has_value(); }

  double number(const std::string& key) const;
  double number_or(const std::string& key, double fallback) const;
  double positive(const std::string& key) const;  // finite and > 0
  std::int64_t integer(const std::string& key) const;
  std::int64_t integer_or(const std::string& key, std::int64_t fallback) const;
  std::int64_t positive_integer(const std::string& key) const;
  int count(const std::string& key) const;  // a whole number >= 1 that an int holds
  int count_or(const std::string& key, int fallback, int least = 0) const;  // >= least
  bool boolean(const std::string& key) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string text(const std::string& key) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;
  // The name or path of another document, of the kind that find_document() takes.
  std::string document(const std::string& key, const std::string& kind) const;
  std::vector<double> numbers(const std::string& key) const;
  std::vector<std::string> texts(const std::string& key) const;
  std::vector<Node> items(const std::string& key) const;  // the elements of an array
  std::vector<Node> items() const;                        // the elements of this array
  std::vector<std::string> keys() const;                  // the keys of this object, sorted
  double as_number() const;
  std::string as_text() const;

  const nlohmann::json& json() const { return *value_; }
  const std::string& file() const;
  const std::string& path() const { return path_; }
  // For a check of the caller's own: throws UsageError "file: path/key: message".
  [[noreturn]] void fail(const std::string& message, const std::string& key = "") const;

 private:
  friend class Document;
  std::int64_t check_range(const std::string& key, std::int64_t value, int least) const;
  const nlohmann::json& elements() const;  // an array
  Node element(const nlohmann::json& item, std::size_t index) const;
  Node(std::shared_ptr<const Document::Content> content, const nlohmann::json* value,
       std::string path);

  std::shared_ptr<const Document::Content> content_;
  const nlohmann::json* value_;
  std::string path_;
};

}  // namespace moesim
