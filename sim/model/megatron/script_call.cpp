#include "sim/model/megatron/script_call.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

namespace moesim::model {
namespace {

bool is_of_name(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

bool is_digit(char letter) { return std::isdigit(static_cast<unsigned char>(letter)) != 0; }

// How many letters of a name a text begins with: NAME, or the number of an argument.
std::size_t name_length(std::string_view text) {
  if (text.empty()) return 0;
  const bool is_number = is_digit(text.front());
  const auto end = std::find_if(text.begin(), text.end(), [&](char letter) {
    return is_number ? !is_digit(letter) : !is_of_name(letter);
  });
  return static_cast<std::size_t>(end - text.begin());
}

// Words as a shell divides them, without their quotes.
std::vector<std::string> shell_words_of(const std::string& text) {
  std::vector<std::string> words;
  std::string word;
  bool is_open = false;
  char quote = 0;
  for (const char letter : text) {
    if (quote != 0) {
      if (letter == quote) {
        quote = 0;
      } else {
        word += letter;
      }
    } else if (letter == '\'' || letter == '"') {
      quote = letter;
      is_open = true;
    } else if (letter == ' ' || letter == '\t') {
      if (is_open) words.push_back(std::exchange(word, ""));
      is_open = false;
    } else {
      word += letter;
      is_open = true;
    }
  }
  if (is_open) words.push_back(word);
  return words;
}

bool is_file(const std::string& path) {
  std::error_code none;
  return std::filesystem::is_regular_file(path, none);
}

}  // namespace

std::string ending_of(const std::string& path) {
  const auto dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(dot + 1);
}

bool is_yaml_file(const std::string& path) {
  const std::string ending = ending_of(path);
  return ending == "yaml" || ending == "yml";
}

bool is_launch_file(const std::string& path) {
  const std::string ending = ending_of(path);
  return is_yaml_file(path) || ending == "sh" || ending == "bash" || ending == "slurm" ||
         ending == "sbatch";
}

ScriptCall script_call(const std::string& text) {
  ScriptCall call;
  call.path = text;
  if (text.find(' ') == std::string::npos || is_file(text)) return call;
  std::vector<ScriptCall::Assignment> assignments;
  const std::vector<std::string> words = shell_words_of(text);
  for (std::size_t at = 0; at < words.size(); ++at) {
    const std::string& word = words[at];
    const std::size_t name = name_length(word);
    const bool is_assignment =
        name > 0 && !is_digit(word.front()) && name < word.size() && word[name] == '=';
    if (!is_assignment) {
      if (!is_launch_file(word)) return call;
      call.path = word;
      call.assignments = std::move(assignments);
      call.words.assign(words.begin() + static_cast<std::ptrdiff_t>(at) + 1, words.end());
      return call;
    }
    assignments.push_back({word.substr(0, name), word.substr(name + 1)});
  }
  return call;
}

std::string quoted_for_shell(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? "'\\''" : std::string(1, letter);
  return quoted + "'";
}

std::string script_as_called(const std::string& script, const ScriptCall& call) {
  std::string set;
  for (const auto& [name, value] : call.assignments) {
    set += fmt::format("export {}={}; ", name, quoted_for_shell(value));
  }
  if (!call.words.empty()) {
    set += "set --";
    for (const std::string& word : call.words) set += " " + quoted_for_shell(word);
    set += "; ";
  }
  std::size_t at = 0;  // behind the first comments, which may be Slurm's
  while (!set.empty() && at < script.size() && (script[at] == '#' || script[at] == '\n')) {
    const std::size_t end = script.find('\n', at);
    at = end == std::string::npos ? script.size() : end + 1;
  }
  std::string called = script;
  return called.insert(at, set);
}

std::vector<std::string> variables_in(const std::string& value) {
  const bool is_arithmetic = value.find("$((") != std::string::npos;
  std::vector<std::string> found;
  for (std::size_t at = value.find('$'); at != std::string::npos; at = value.find('$', at + 1)) {
    const bool has_brace = at + 1 < value.size() && value[at + 1] == '{';
    const std::size_t begin = at + (has_brace ? 2 : 1);
    const std::size_t length = name_length(std::string_view(value).substr(begin));
    const bool is_closed =
        !has_brace || (begin + length < value.size() && value[begin + length] == '}');
    if (length > 0 && is_closed) {
      found.push_back(value.substr(begin, length));
    } else if (!is_arithmetic || value.compare(at, 3, "$((") != 0) {
      return {};
    }
  }
  return found;
}

std::string call_with(const std::vector<std::string>& variables, const std::string& path) {
  std::vector<std::string> words;
  bool has_arguments = false;
  for (const std::string& each : variables) {
    if (is_digit(each.front())) {
      has_arguments = true;
    } else if (const std::string word = each + "=VALUE";
               std::find(words.begin(), words.end(), word) == words.end()) {
      words.push_back(word);
    }
  }
  words.push_back(path);
  if (has_arguments) words.emplace_back("ARGUMENTS");
  return fmt::format("{}", fmt::join(words, " "));
}

}  // namespace moesim::model
