#include "sim/model/megatron/megatron_yaml.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>
#include <sstream>
#include <string_view>

#include "sim/base/text.hpp"
#include "sim/model/megatron/megatron_keys.hpp"
#include "sim/model/megatron/megatron_words.hpp"
#include "sim/model/megatron/script_call.hpp"

namespace moesim::model {
namespace {

std::string without_comment(const std::string& line) {
  char quote = 0;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const char letter = line[at];
    if (quote != 0) {
      if (letter == quote) quote = 0;
    } else if (letter == '"' || letter == '\'') {
      quote = letter;
    } else if (letter == '#' &&
               (at == 0 || std::isspace(static_cast<unsigned char>(line[at - 1])) != 0)) {
      return line.substr(0, at);
    }
  }
  return line;
}

// Whether a section describes a tower before the language model, or a model that is not trained.
bool is_of_another_model(const std::string& section) {
  for (const std::string_view begin : {"vision", "image", "audio", "speech", "encoder", "draft"}) {
    if (section.rfind(begin, 0) == 0) return true;
  }
  return false;
}

bool is_open_list(const std::string& value) {
  return !value.empty() && value.front() == '[' &&
         std::count(value.begin(), value.end(), '[') > std::count(value.begin(), value.end(), ']');
}

class Reader {
 public:
  YamlKeys read(const std::string& text) {
    std::istringstream lines(text);
    for (std::string raw; std::getline(lines, raw);) {
      ++line_;
      const std::string written = without_comment(raw);
      const std::string line(trimmed(written));
      if (line.empty() || line == "---") continue;
      if (is_in_list_) {
        add_to_list(line);
      } else if (line == "-" || line.rfind("- ", 0) == 0) {
        take_item(line);
      } else {
        take_key(line, written.find_first_not_of(" \t"));
      }
    }
    note_left_out();
    return std::move(made_);
  }

 private:
  struct Open {
    std::size_t indent;
    std::string name;
    std::size_t key;  // its place among the keys; `none`: it is not there
  };
  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  void add_to_list(const std::string& line) {
    std::string& value = made_.keys.back().value;
    value += " " + line;
    is_in_list_ = is_open_list(value);
  }

  // "- a", "- - a".
  void take_item(std::string line) {
    bool begins_list = false;
    line = trimmed(line.substr(1));
    while (line == "-" || line.rfind("- ", 0) == 0) {
      begins_list = true;
      line = trimmed(line.substr(1));
    }
    if (is_key_open_) made_.keys.back().items.push_back((begins_list ? "[" : "") + unquoted(line));
  }

  void take_key(const std::string& line, std::size_t indent) {
    const auto colon = line.find(':');
    is_key_open_ = false;
    if (colon == std::string::npos) return;
    while (!open_.empty() && open_.back().indent >= indent) open_.pop_back();
    if (skipped_ && indent <= skipped_indent_) note_left_out();
    const std::string written = unquoted(std::string(trimmed(line.substr(0, colon))));
    if (!open_.empty() && open_.back().key != none) made_.keys[open_.back().key].is_section = true;
    YamlKey key;
    key.name = argument_name(written);
    key.value = trimmed(line.substr(colon + 1));
    key.section = open_.empty() ? "" : open_.front().name;
    key.parent = open_.empty() ? "" : open_.back().name;
    key.is_argument = written.rfind("--", 0) == 0;
    key.line = line_;
    if (skipped_) {
      ++skipped_count_;
    } else if (key.value.empty() && is_of_another_model(written)) {
      skipped_ = true;
      skipped_indent_ = indent;
      skipped_name_ = fmt::format("{} (line {})", written, line_);
    } else if (!written.empty() && written.front() == '_') {
      take_object(written, key.value);
    } else if (has_small(key.name)) {
      open_.push_back({indent, key.name, made_.keys.size()});
      is_in_list_ = is_open_list(key.value);
      made_.keys.push_back(std::move(key));
      is_key_open_ = true;
    } else {
      open_.push_back({indent, key.name, none});
    }
  }

  // Gives the key above the value that an object names: a dtype, or an enum.
  void take_object(const std::string& name, const std::string& value) {
    if (open_.empty() || open_.back().key == none) return;
    YamlKey& owner = made_.keys[open_.back().key];
    const bool is_dtype = name == "_target_" && value.rfind("torch.", 0) == 0 &&
                          owner.name.rfind("dtype") != std::string::npos;
    if (is_dtype || name == "_name_") owner.value = value;
  }

  static bool has_small(const std::string& name) {
    return std::any_of(name.begin(), name.end(),
                       [](unsigned char letter) { return std::islower(letter) != 0; });
  }

  void note_left_out() {
    if (skipped_count_ > 0) {
      made_.left_out.push_back(fmt::format("{} of {}", skipped_count_, skipped_name_));
    }
    skipped_ = false;
    skipped_count_ = 0;
  }

  YamlKeys made_;
  std::vector<Open> open_;
  int line_ = 0;
  bool is_in_list_ = false;   // of one that goes on over lines
  bool is_key_open_ = false;  // items are of the last key
  bool skipped_ = false;
  std::size_t skipped_indent_ = 0;
  std::size_t skipped_count_ = 0;
  std::string skipped_name_;
};

// What "data.seq_length", ".seq_length" or "TP" is at a key; nothing where it is not there.
std::optional<std::string> referred(const std::string& name, const YamlKey& at,
                                    const std::vector<YamlKey>& keys, const ScriptCall& call) {
  for (const auto& [variable, value] : call.assignments) {
    if (variable == name) return value;
  }
  std::string path = name;
  std::replace(path.begin(), path.end(), '_', '-');
  const std::vector<std::string_view> parts = split(path, '.');
  const bool is_beside = parts.size() == 2 && parts.front().empty();
  const std::string section =
      is_beside ? at.section : std::string(parts.size() > 1 ? parts.front() : "");
  const std::string parent =
      is_beside ? at.parent : std::string(parts.size() > 1 ? parts[parts.size() - 2] : "");
  for (const YamlKey& key : keys) {
    const bool is_one = key.name == parts.back() && key.section == section &&
                        key.parent == parent && !key.is_section;
    if (is_one && !key.value.empty()) return unquoted(key.value);
  }
  return std::nullopt;
}

// The text with the first reference from `at` on that is known put in; false: there is none.
bool put_in_one(std::string& text, const YamlKey& owner, const std::vector<YamlKey>& keys,
                const ScriptCall& call) {
  for (auto at = text.find("${"); at != std::string::npos; at = text.find("${", at + 1)) {
    const auto end = text.find('}', at);
    if (end == std::string::npos) return false;
    const auto value = referred(text.substr(at + 2, end - at - 2), owner, keys, call);
    if (!value) continue;
    text.replace(at, end + 1 - at, *value);
    return true;
  }
  return false;
}

}  // namespace

YamlKeys yaml_keys(const std::string& text) { return Reader().read(text); }

void put_in_references(std::vector<YamlKey>& keys, const ScriptCall& call) {
  constexpr int most = 16;              // references of references, which may be a ring
  constexpr std::size_t longest = 512;  // a value of an argument
  const std::vector<YamlKey> written = keys;
  for (YamlKey& key : keys) {
    const auto put_in = [&](std::string& text) {
      const std::string before = text;
      text = unquoted(text);
      int count = 0;
      while (count < most && text.size() < longest && put_in_one(text, key, written, call)) {
        ++count;
      }
      if (count == 0) text = before;
    };
    put_in(key.value);
    for (std::string& item : key.items) put_in(item);
  }
}

}  // namespace moesim::model
