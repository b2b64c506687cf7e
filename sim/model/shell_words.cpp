#include "sim/model/shell_words.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"

namespace moesim::model {
namespace {

constexpr const char* batch_line = "#SBATCH";

bool is_name(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
}

using Variables = std::map<std::string, std::string>;

// One operator of a shell; nothing where the result is no number of 64 bits.
std::optional<std::int64_t> applied(char by, std::int64_t one, std::int64_t other) {
  std::int64_t result = 0;
  switch (by) {
    case '+':
      return __builtin_add_overflow(one, other, &result) ? std::nullopt : std::optional(result);
    case '-':
      return __builtin_sub_overflow(one, other, &result) ? std::nullopt : std::optional(result);
    case '*':
      return __builtin_mul_overflow(one, other, &result) ? std::nullopt : std::optional(result);
    case '/': {
      const bool too_large = other == -1 && one == std::numeric_limits<std::int64_t>::min();
      return other == 0 || too_large ? std::nullopt : std::optional(one / other);
    }
    default:
      return std::nullopt;
  }
}

// A sum of products of whole numbers, variables and such sums in brackets; nothing for another.
class Arithmetic {
 public:
  Arithmetic(std::string text, const Variables& variables)
      : text_(std::move(text)), variables_(variables) {}

  std::optional<std::int64_t> value() {
    const std::optional<std::int64_t> all = sum();
    return at_ == text_.size() ? all : std::nullopt;
  }

 private:
  // Up to the end or a closing bracket.
  std::optional<std::int64_t> sum() {
    std::optional<std::int64_t> sum = 0;
    char sign = '+';
    while (true) {
      const std::optional<std::int64_t> term = product();
      if (!term) return std::nullopt;
      sum = applied(sign, *sum, *term);
      skip();
      if (!sum || at_ == text_.size() || text_[at_] == ')') return sum;
      sign = text_[at_++];
      if (sign != '+' && sign != '-') return std::nullopt;
    }
  }

  void skip() {
    while (at_ < text_.size() && (std::isspace(static_cast<unsigned char>(text_[at_])) != 0)) ++at_;
  }

  std::optional<std::int64_t> product() {
    std::optional<std::int64_t> value = operand();
    while (value) {
      skip();
      if (at_ == text_.size() || (text_[at_] != '*' && text_[at_] != '/')) return value;
      const char by = text_[at_++];
      const std::optional<std::int64_t> next = operand();
      if (!next) return std::nullopt;
      value = applied(by, *value, *next);
    }
    return value;
  }

  std::optional<std::int64_t> operand() {
    skip();
    if (at_ < text_.size() && text_[at_] == '(') {
      constexpr int deepest = 50;
      if (++depth_ > deepest) return std::nullopt;
      ++at_;
      const std::optional<std::int64_t> inner = sum();
      if (!inner || at_ == text_.size()) return std::nullopt;
      ++at_;
      --depth_;
      return inner;
    }
    std::string word;
    while (at_ < text_.size() &&
           (is_name(text_[at_]) || text_[at_] == '$' || text_[at_] == '{' || text_[at_] == '}')) {
      if (is_name(text_[at_])) word += text_[at_];
      ++at_;
    }
    const auto known = variables_.find(word);
    const auto number =
        parse_number<std::int64_t>(known == variables_.end() ? word : known->second);
    return number && *number < (std::int64_t{1} << 31) ? number : std::nullopt;
  }

  std::string text_;
  const Variables& variables_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// The words of a list of arguments in a text, quotes taken off; as letters where one has no end.
std::vector<std::string> words_in(const std::string& text, bool with_quotes = true) {
  std::vector<std::string> words;
  std::string word;
  bool is_word = false;
  char quote = 0;
  for (const char letter : text) {
    const bool is_quote =
        with_quotes && (quote == 0 ? letter == '"' || letter == '\'' : letter == quote);
    if (is_quote) {
      quote = quote == 0 ? letter : '\0';
      is_word = true;
    } else if (quote != 0 || std::isspace(static_cast<unsigned char>(letter)) == 0) {
      word += letter;
      is_word = true;
    } else if (is_word) {
      words.push_back(std::exchange(word, ""));
      is_word = false;
    }
  }
  if (quote != 0) return words_in(text, false);
  if (is_word) words.push_back(word);
  return words;
}

struct OpenQuote : UsageError {
  using UsageError::UsageError;
};

class Reader {
 public:
  // `put_in`: bytes of the values of variables so far, of the whole script.
  Reader(const std::string& script, const std::string& name, std::size_t& put_in,
         std::shared_ptr<Variables> variables = std::make_shared<Variables>())
      : script_(script), name_(name), put_in_(put_in), variables_(std::move(variables)) {}

  std::vector<ShellWord> read() {
    while (at_ < script_.size()) {
      const char letter = script_[at_];
      if (letter == '\\' && at_ + 1 < script_.size() && script_[at_ + 1] == '\n') {
        at_ += 2;
        ++line_;
      } else if (letter == '\n' || letter == ';' || letter == '&' || letter == '|') {
        // Inside the brackets of an array a new line is a space.
        if (letter != '\n' || depth_ == 0) end_command();
        if (letter == '\n') ++line_;
        ++at_;
        if (letter == '\n' && !document_end_.empty()) take_document();
      } else if (std::isspace(static_cast<unsigned char>(letter)) != 0) {
        ++at_;
      } else if (letter == '(' || letter == ')') {
        depth_ = letter == '(' ? depth_ + 1 : depth_ > 0 ? depth_ - 1 : 0;
        if (letter == ')') end_command();
        ++at_;
      } else if (letter == '#') {
        skip_comment();
      } else if (letter == '<' && script_.compare(at_, 2, "<<") == 0) {
        begin_document();
      } else {
        take_word();
      }
    }
    end_command();
    return std::move(words_);
  }

 private:
  Variables& variables() {
    if (variables_.use_count() > 1) variables_ = std::make_shared<Variables>(*variables_);
    return *variables_;
  }

  void end_command() {
    if (words_.size() > begin_) {
      const std::string& program = words_[begin_].text;
      if (is_batch_ || program == "srun" || program == "sbatch") spell_out_short_options();
      if (is_batch_) set_batch_variables();
    }
    is_batch_ = false;
    if (!words_.empty() && !words_.back().text.empty()) words_.push_back({"", line_});
    begin_ = words_.size();
  }

  // Slurm's "-N 16" as "--nodes 16", "-N16" as "--nodes=16", "-n" as "--ntasks".
  void spell_out_short_options() {
    for (std::size_t at = begin_; at < words_.size(); ++at) {
      std::string& word = words_[at].text;
      if (word.rfind("-N", 0) != 0 && word.rfind("-n", 0) != 0) continue;
      const std::string value = word.substr(2);
      word = word[1] == 'N' ? "--nodes" : "--ntasks";
      if (!value.empty()) word.append("=").append(value);
    }
  }

  // The value of one of the job's own options, "": it is not there.
  std::string batch_value(const std::string& option) const {
    for (std::size_t at = begin_; at < words_.size(); ++at) {
      const std::string& word = words_[at].text;
      if (word.rfind(option + "=", 0) == 0) return word.substr(option.size() + 1);
      if (word == option && at + 1 < words_.size()) return words_[at + 1].text;
    }
    return "";
  }

  // What Slurm sets in a job from its #SBATCH lines.
  void set_batch_variables() {
    const auto set = [&](const std::string& value, std::initializer_list<const char*> names) {
      if (value.empty()) return;
      for (const char* name : names) variables()[name] = value;
    };
    const auto number = [](const std::string& text) { return text.substr(text.rfind(':') + 1); };
    set(batch_value("--nodes"), {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"});
    set(batch_value("--ntasks"), {"SLURM_NTASKS", "SLURM_NPROCS"});
    set(batch_value("--ntasks-per-node"), {"SLURM_NTASKS_PER_NODE"});
    set(number(batch_value("--gres")), {"SLURM_GPUS_ON_NODE"});
    set(number(batch_value("--gpus-per-node")), {"SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"});
  }

  void skip_comment() {
    const std::string batch = batch_line;
    if (script_.compare(at_, batch.size(), batch) == 0) {
      at_ += batch.size();
      is_batch_ = true;
      return;
    }
    while (at_ < script_.size() && script_[at_] != '\n') ++at_;
  }

  // "<<EOF", "<<-'EOF'": a text begins on the next line. "<<<" is a word.
  void begin_document() {
    at_ += 2;
    if (at_ < script_.size() && script_[at_] == '<') {
      ++at_;
      return;
    }
    if (at_ < script_.size() && script_[at_] == '-') ++at_;
    while (at_ < script_.size() && (script_[at_] == ' ' || script_[at_] == '\t')) ++at_;
    document_is_quoted_ = false;
    while (at_ < script_.size() && (is_name(script_[at_]) || script_[at_] == '"' ||
                                    script_[at_] == '\'' || script_[at_] == '\\')) {
      if (is_name(script_[at_])) {
        document_end_ += script_[at_];
      } else {
        document_is_quoted_ = true;
      }
      ++at_;
    }
  }

  // Its words, up to the line that ends it: often it is the script of a job. A text for people may
  // have apostrophes: then its quotes are letters. Without the words of texts deep in texts, each
  // of which is read anew.
  void take_document() {
    const std::string end = std::move(document_end_);
    document_end_.clear();
    std::string body;
    const int first = line_;
    while (at_ < script_.size()) {
      const std::size_t stop = std::min(script_.find('\n', at_), script_.size());
      const std::string text = script_.substr(at_, stop - at_);
      at_ = std::min(stop + 1, script_.size());
      ++line_;
      const auto begin = text.find_first_not_of('\t');
      if (begin != std::string::npos && text.substr(begin) == end) break;
      body += text + "\n";
    }
    if (nesting_ == deepest) return;
    if (!document_is_quoted_) take_off_backslashes(body);
    std::vector<ShellWord> words;
    try {
      words = words_of_document(body);
    } catch (const OpenQuote&) {
      std::erase_if(body, [](char letter) { return letter == '"' || letter == '\''; });
      words = words_of_document(body);
    }
    for (ShellWord& word : words) {
      word.line += first - 1;
      words_.push_back(std::move(word));
    }
  }

  std::vector<ShellWord> words_of_document(const std::string& body) {
    Reader inner(body, name_, put_in_, variables_);
    inner.nesting_ = nesting_ + 1;
    inner.fills_quotes_ = !document_is_quoted_;
    return inner.read();
  }

  // Those that keep a "$" from the shell that puts variables into the document.
  static void take_off_backslashes(std::string& body) {
    std::size_t to = 0;
    for (std::size_t from = 0; from < body.size(); ++from) {
      const char next = from + 1 < body.size() ? body[from + 1] : '\0';
      if (body[from] == '\\' && (next == '$' || next == '`' || next == '\\')) ++from;
      body[to++] = body[from];
    }
    body.resize(to);
  }

  // Of a text in a script, which is no command: quotes taken off, variables put in.
  std::string expanded() {
    std::string text;
    while (at_ < script_.size()) {
      const char letter = script_[at_];
      if (letter == '"' || letter == '\'') {
        text += quoted_text(letter);
      } else if (letter == '$') {
        text += dollar().text;
      } else {
        text += letter;
        ++at_;
      }
    }
    return text;
  }

  // Where the bracket that is open at `from` closes; npos: nowhere near.
  std::size_t closing(std::size_t from, char open, char close) const {
    constexpr std::size_t longest = 4096;
    int depth = 1;
    for (std::size_t at = from; at < std::min(script_.size(), from + longest); ++at) {
      if (script_[at] == open) ++depth;
      if (script_[at] == close && --depth == 0) return at;
    }
    return std::string::npos;
  }

  // A word, or an assignment.
  void take_word() {
    const int line = line_;
    std::string word;
    bool quoted = false;
    std::vector<std::string> before;  // words of the same word, which an expansion divides
    while (at_ < script_.size()) {
      const char letter = script_[at_];
      if (letter == '"' || letter == '\'') {
        quoted = true;
        word += quoted_text(letter);
      } else if (letter == '$') {
        const auto [text, is_known] = dollar();
        const bool divides =
            is_known && text.find('$') == std::string::npos && !is_assignment(word, word.find('='));
        if (divides) {
          add_divided(text, before, word);
        } else {
          word += text;
        }
      } else if (letter == '\\' && at_ + 1 < script_.size()) {
        if (script_[at_ + 1] == '\n') break;
        word += script_[at_ + 1];
        at_ += 2;
      } else if (std::isspace(static_cast<unsigned char>(letter)) != 0 || letter == ';' ||
                 letter == '&' || letter == '|' || letter == '(' || letter == ')') {
        break;
      } else {
        word += letter;
        ++at_;
      }
    }
    for (const std::string& each : before) words_.push_back({each, line});
    const auto equals = word.find('=');
    if (before.empty() && is_assignment(word, equals)) {
      variables()[word.substr(0, equals)] = word.substr(equals + 1);
      // A list of arguments in a text.
      const std::string value = word.substr(equals + 1);
      if (value.find("--") != std::string::npos) add_words(value, line);
      return;
    }
    if (word.rfind("--", 0) != 0 && word.find(" --") != std::string::npos) {
      add_words(word, line);
    } else if (!word.empty() || quoted) {
      words_.push_back({word, line});
    }
  }

  // Of an expansion without quotes its spaces end words.
  static void add_divided(const std::string& text, std::vector<std::string>& before,
                          std::string& word) {
    for (const char letter : text) {
      if (std::isspace(static_cast<unsigned char>(letter)) == 0) {
        word += letter;
      } else if (!word.empty()) {
        before.push_back(std::move(word));
        word.clear();
      }
    }
  }

  bool is_assignment(const std::string& word, std::size_t equals) const {
    if (equals == std::string::npos || equals == 0) return false;
    std::size_t name = 0;
    while (name < equals && is_name(word[name])) ++name;
    return name == equals || (name + 1 == equals && word[name] == '+');
  }

  void add_words(const std::string& text, int line) {
    end_command();
    for (const std::string& part : words_in(text)) {
      if (part != "\\") words_.push_back({part, line});
    }
    words_.push_back({"", line});
  }

  std::string quoted_text(char quote) {
    const int line = line_;
    std::string text;
    for (++at_; at_ < script_.size() && script_[at_] != quote;) {
      if ((quote == '"' || fills_quotes_) && script_[at_] == '$') {
        text += dollar().text;
        continue;
      }
      if (quote == '"' && script_[at_] == '\\' && at_ + 1 < script_.size()) {
        ++at_;
        if (script_[at_] == '\n') {
          ++line_;
          ++at_;
          text += ' ';
          continue;
        }
      }
      if (script_[at_] == '\n') ++line_;
      text += script_[at_++];
    }
    if (at_ == script_.size()) {
      throw OpenQuote(fmt::format("{}:{}: the quote {} has no end", name_, line, quote));
    }
    ++at_;
    return text;
  }

  // What stands for a "$..."; as it is written where it is not known.
  struct Expansion {
    std::string text;
    bool is_known = true;
  };

  Expansion dollar() {
    const std::size_t begin = at_++;
    if (script_.compare(at_, 2, "((") == 0) {
      const auto end = closing(at_ + 2, '(', ')');
      if (end == std::string::npos) return {"$", false};
      const std::string expression = script_.substr(at_ + 2, end - at_ - 2);
      at_ = std::min(end + 2, script_.size());
      const auto value = Arithmetic(expression, *variables_).value();
      return value ? Expansion{fmt::format("{}", *value)} : unknown(begin);
    }
    if (at_ < script_.size() && script_[at_] == '(') {  // the output of a command
      for (int open = 0; at_ < script_.size();) {
        const char letter = script_[at_++];
        if (letter == '\n') ++line_;
        if (letter == '(') ++open;
        if (letter == ')' && --open == 0) break;
      }
      return unknown(begin);
    }
    const bool braced = at_ < script_.size() && script_[at_] == '{';
    if (braced) ++at_;
    std::string name;
    while (at_ < script_.size() && is_name(script_[at_])) name += script_[at_++];
    std::string operation;
    if (braced) {
      const auto end = closing(at_, '{', '}');
      if (end == std::string::npos) return {"$", false};
      operation = script_.substr(at_, end - at_);
      at_ = end + 1;
    }
    const std::optional<std::string> text = operated(name, operation);
    return text ? Expansion{*text} : unknown(begin);
  }

  Expansion unknown(std::size_t begin) const { return {script_.substr(begin, at_ - begin), false}; }

  // The value of "${NAME OPERATION}"; nothing where it or the operation is not known.
  std::optional<std::string> operated(const std::string& name, const std::string& operation) {
    // An array's words stand where it is set.
    if (operation.rfind("[@]", 0) == 0 || operation.rfind("[*]", 0) == 0) return "";
    const auto known = variables_->find(name);
    if (operation.empty()) return value_of(known);
    const std::size_t sign = operation.front() == ':' ? 1 : 0;
    const bool is_set = known != variables_->end() && (sign == 0 || !known->second.empty());
    const std::string text = operation.substr(std::min(sign + 1, operation.size()));
    switch (sign < operation.size() ? operation[sign] : '\0') {
      case '?':
        return value_of(known);
      case '-':
        return is_set ? value_of(known) : inner_text(text);
      case '+':
        return is_set ? inner_text(text) : "";
      case '=':
        if (is_set) return value_of(known);
        return variables()[name] = inner_text(text);
      default:
        return sign == 1 ? part_of(known, operation.substr(1)) : std::nullopt;
    }
  }

  // Of "OFFSET" and "OFFSET:LENGTH"; below 0 they count from the end.
  std::optional<std::string> part_of(Variables::const_iterator known, const std::string& range) {
    const std::optional<std::string> whole = value_of(known);
    if (!whole) return std::nullopt;
    const auto size = static_cast<std::int64_t>(whole->size());
    const auto colon = range.find(':');
    const auto number = [&](const std::string& text) {
      return Arithmetic(text, *variables_).value();
    };
    const auto offset = number(signed_number(range.substr(0, colon)));
    if (!offset) return std::nullopt;
    const std::int64_t begin = *offset < 0 ? size + *offset : *offset;
    if (begin < 0 || begin > size) return "";
    std::int64_t end = size;
    if (colon != std::string::npos) {
      const auto length = number(signed_number(range.substr(colon + 1)));
      if (!length) return std::nullopt;
      end = *length < 0 ? size + *length : std::min(size, begin + std::min(size, *length));
    }
    if (end < begin) return std::nullopt;
    return whole->substr(begin, end - begin);
  }

  // With a 0 before a sign, which Arithmetic has between operands alone.
  static std::string signed_number(const std::string& text) {
    const auto first = text.find_first_not_of(' ');
    return first != std::string::npos && text[first] == '-' ? "0" + text.substr(first) : text;
  }

  std::string inner_text(const std::string& text) {
    if (nesting_ >= deepest) return text;
    Reader inner(text, name_, put_in_, variables_);
    inner.nesting_ = nesting_ + 1;
    return inner.expanded();
  }

  std::optional<std::string> value_of(Variables::const_iterator known) {
    if (known == variables_->end()) return std::nullopt;
    // Lists of arguments were read where they are set.
    if (known->second.find("--") != std::string::npos) return "";
    // Each line A=$A$A makes A twice as long.
    constexpr std::size_t most = 1 << 22;
    put_in_ += known->second.size();
    if (put_in_ > most) {
      throw UsageError(fmt::format("{}:{}: variables have more than {} MiB where they are used",
                                   name_, line_, most >> 20));
    }
    return known->second;
  }

  static constexpr int deepest = 20;

  const std::string& script_;
  const std::string& name_;
  std::size_t& put_in_;
  std::size_t at_ = 0;
  int line_ = 1;
  std::size_t begin_ = 0;            // the first word of the command
  bool is_batch_ = false;            // the command is a line of #SBATCH
  int depth_ = 0;                    // of the brackets of an array
  int nesting_ = 0;                  // of texts in texts
  std::string document_end_;         // the word that ends the text which begins on the next line
  bool document_is_quoted_ = false;  // no variables are put in, but by the shell that reads it
  bool fills_quotes_ = false;        // variables are put in single quotes too
  std::shared_ptr<Variables> variables_;  // shared with texts in texts until one sets some
  std::vector<ShellWord> words_;
};

}  // namespace

std::vector<ShellWord> shell_words(const std::string& script, const std::string& name) {
  std::size_t put_in = 0;
  return Reader(script, name, put_in).read();
}

}  // namespace moesim::model
