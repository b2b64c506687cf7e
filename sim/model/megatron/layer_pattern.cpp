#include "sim/model/megatron/layer_pattern.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <limits>
#include <string>

#include "sim/base/text.hpp"

namespace moesim::model {
namespace {

constexpr std::int64_t largest = std::numeric_limits<std::int64_t>::max();
constexpr int deepest = 100;  // of brackets in brackets

class Reader {
 public:
  Reader(std::string_view text, std::int64_t most) : text_(text), most_(most) {}

  std::optional<LayerPattern> read() {
    std::optional<LayerPattern> found = sum();
    if (at_ < text_.size() && text_[at_] != ' ') return std::nullopt;
    return found;
  }

 private:
  // The next letter that is no space, if it is that one.
  bool takes(char letter) {
    std::size_t next = at_;
    while (next < text_.size() && text_[next] == ' ') ++next;
    if (next == text_.size() || text_[next] != letter) return false;
    at_ = next + 1;
    return true;
  }

  std::optional<std::int64_t> number() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    return parse_number<std::int64_t>(std::string(text_.substr(begin, at_ - begin)));
  }

  void append(LayerPattern& all, const LayerPattern& more) const {
    all.count = more.count > largest - all.count ? largest : all.count + more.count;
    const std::ptrdiff_t room = std::max<std::ptrdiff_t>(0, most_ + 1 - std::ssize(all.layers));
    const std::ptrdiff_t taken = std::min(room, std::ssize(more.layers));
    all.layers.insert(all.layers.end(), more.layers.begin(), more.layers.begin() + taken);
  }

  LayerPattern multiple(const LayerPattern& each, std::int64_t times) const {
    LayerPattern all;
    if (each.layers.empty()) return all;
    for (std::int64_t done = 0; done < times && std::ssize(all.layers) <= most_; ++done) {
      append(all, each);
    }
    all.count = times > largest / each.count ? largest : each.count * times;
    return all;
  }

  // A digit between commas each: "01" is no number of Python, "00" one 0.
  std::optional<LayerPattern> list() {
    LayerPattern found;
    while (!takes(']')) {
      const bool is_one = takes('1');
      if (!is_one && !takes('0')) return std::nullopt;
      append(found, {{is_one}, 1});
      if (takes(',')) continue;
      if (!takes(']')) return std::nullopt;
      break;
    }
    return found;
  }

  std::optional<LayerPattern> factor() {
    if (takes('[')) return list();
    if (!takes('(') || ++depth_ > deepest) return std::nullopt;
    std::optional<LayerPattern> found = sum();
    --depth_;
    if (!takes(')')) return std::nullopt;
    return found;
  }

  std::optional<LayerPattern> product() {
    std::optional<LayerPattern> found = factor();
    while (found && takes('*')) {
      const std::optional<std::int64_t> times = number();
      if (!times) return std::nullopt;
      found = multiple(*found, *times);
    }
    return found;
  }

  std::optional<LayerPattern> sum() {
    std::optional<LayerPattern> found = product();
    while (found && takes('+')) {
      const std::optional<LayerPattern> more = product();
      if (!more) return std::nullopt;
      append(*found, *more);
    }
    return found;
  }

  std::string_view text_;
  std::int64_t most_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::optional<LayerPattern> layer_pattern(std::string_view text, std::int64_t most) {
  return Reader(text, most).read();
}

std::string layer_words(const MegatronArguments& arguments, const char* name) {
  const std::vector<std::string> values = arguments.texts(name);
  if (values.size() < 2) return arguments.text(name).value_or("1");
  const bool is_digits = std::all_of(values.begin(), values.end(), [](const std::string& each) {
    return each == "0" || each == "1";
  });
  if (is_digits) return fmt::format("[{}]", fmt::join(values, ","));
  const bool is_list = values.front().find_first_of("([") != std::string::npos;
  return is_list ? fmt::format("{}", fmt::join(values, " ")) : values.front();
}

std::vector<bool> listed_layers(const MegatronArguments& arguments, const char* name,
                                const std::string& text, std::int64_t layers) {
  const std::optional<LayerPattern> pattern = layer_pattern(text, layers);
  if (!pattern) {
    arguments.fail(name, fmt::format("'{}' is no list of 0 and 1 for layers, such as "
                                     "[0,0,1,1] or ([0]*3+[1]*58)",
                                     text));
  }
  if (pattern->count != layers) {
    arguments.fail(name, fmt::format("'{}' has {} layers of {}", text, pattern->count, layers));
  }
  return pattern->layers;
}

}  // namespace moesim::model
