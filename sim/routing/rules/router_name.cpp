#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/routing/rules/router_config.hpp"

namespace moesim::routing {

namespace {

constexpr const char* default_update_speed = "0.001";
constexpr int default_update_steps = 1000;

using Parts = std::vector<std::string_view>;

Parts split(std::string_view text, char separator) {
  Parts parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

[[noreturn]] void refuse(std::string_view name, const std::string& reason) {
  throw UsageError(fmt::format("--router '{}': {}", name, reason));
}

[[noreturn]] void refuse_unknown(std::string_view name, std::string_view head) {
  refuse(name, fmt::format("'{}' is not a router; choose from {}", head, router_names()));
}

int parse_count(std::string_view name, std::string_view text, const char* what) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, code] = std::from_chars(text.data(), end, value);
  if (code != std::errc() || stopped != end || value < 1 || value > 65536) {
    refuse(name,
           fmt::format("'{}' is no number of {}: give a whole number from 1 to 65536", text, what));
  }
  return value;
}

Decimal parse_number(std::string_view name, std::string_view text) {
  return Decimal::parse(text, fmt::format("--router '{}'", name));
}

// What a name is being read into.
struct Reading {
  std::string_view name;  // all of it, for messages
  Parts parts;            // between the colons, without suffixes; the first is the kind
  int top_k = 0;          // typed beside it
  int usual_k = 0;

  // The form says how many parameters there may be.
  void expect(std::size_t least, std::size_t most, const char* form) const {
    const std::size_t given = parts.size() - 1;
    if (given < least || given > most) refuse(name, fmt::format("write it as {}", form));
  }

  int k_beside() const {
    const int k = top_k > 0 ? top_k : usual_k;
    if (k < 1) refuse(name, "it needs --top-k, the number of experts per token");
    return k;
  }

  int k_of_one() const {
    if (top_k > 1) {
      refuse(name, fmt::format("a token has one expert, --top-k says {}: leave it out", top_k));
    }
    return 1;
  }
};

// "top2" is 2, "topk" what --top-k or else the model says.
void read_top(const Reading& in, RouterConfig& config) {
  in.expect(0, 0, "top1, top2, ... or topk with --top-k");
  const std::string_view digits = in.parts[0].substr(3);
  config.kind = RouterKind::top_k;
  if (digits == "k") {
    config.top_k = in.k_beside();
    return;
  }
  if (digits.empty() || digits.size() > 4 ||
      digits.find_first_not_of("0123456789") != std::string_view::npos) {
    refuse_unknown(in.name, in.parts[0]);
  }
  const int value = std::stoi(std::string(digits));
  if (value < 1) refuse(in.name, "a token needs at least one expert");
  if (in.top_k > 0 && in.top_k != value) {
    refuse(in.name,
           fmt::format("it says {} experts per token, --top-k says {}: give one of the two", value,
                       in.top_k));
  }
  config.top_k = value;
}

void read_dense(const Reading& in, RouterConfig& config) {
  in.expect(0, 0, "dense");
  config.kind = RouterKind::dense;
  config.top_k = 1;
}

void read_dropless(const Reading& in, RouterConfig& config) {
  in.expect(0, 0, "dropless");
  config.kind = RouterKind::dropless;
  config.top_k = in.k_beside();
  config.drops = false;
}

void read_expert_choice(const Reading& in, RouterConfig& config) {
  in.expect(0, 0, "expert-choice");
  config.kind = RouterKind::expert_choice;
  config.top_k = in.k_beside();
  config.weights = Weights::raw;
}

void read_base(const Reading& in, RouterConfig& config) {
  in.expect(0, 1, "base or base:greedy");
  if (in.parts.size() == 2 && in.parts[1] != "greedy") in.expect(0, 0, "base or base:greedy");
  config.kind = RouterKind::base;
  config.top_k = in.k_of_one();
  config.greedy = in.parts.size() == 2;
  config.drops = false;
}

void read_random(const Reading& in, RouterConfig& config) {
  in.expect(0, 1, "random or random:balanced");
  if (in.parts.size() == 2 && in.parts[1] != "balanced") {
    in.expect(0, 0, "random or random:balanced");
  }
  config.kind = RouterKind::random;
  config.top_k = in.k_of_one();
  config.balanced = in.parts.size() == 2;
}

void read_hash(const Reading& in, RouterConfig& config) {
  in.expect(0, 1, "hash:EXPONENT, such as hash:1");
  config.kind = RouterKind::hash;
  config.top_k = in.k_of_one();
  if (in.parts.size() == 2) config.hash_exponent = parse_number(in.name, in.parts[1]);
  if (config.hash_exponent > Decimal(10)) refuse(in.name, "an exponent above 10: give 0 to 10");
}

void read_soft(const Reading& in, RouterConfig& config) {
  in.expect(0, 0, "soft");
  config.kind = RouterKind::soft;
  config.top_k = in.k_of_one();
}

void read_scomoe(const Reading& in, RouterConfig& config) {
  in.expect(2, 2, "scomoe:LOCAL:NODE, shares of the tokens such as scomoe:0.4:0.3");
  config.kind = RouterKind::scomoe;
  config.top_k = in.k_beside();
  config.local_share = parse_number(in.name, in.parts[1]);
  config.node_share = parse_number(in.name, in.parts[2]);
  if (config.local_share + config.node_share > Decimal(1)) {
    refuse(in.name, "the shares that stay on the GPU and in the node exceed 1 together");
  }
}

void read_gating_dropout(const Reading& in, RouterConfig& config) {
  in.expect(1, 1, "gating-dropout:P, such as gating-dropout:0.3");
  config.kind = RouterKind::gating_dropout;
  config.top_k = in.k_beside();
  config.dropout = parse_number(in.name, in.parts[1]);
  if (config.dropout >= Decimal(1)) {
    refuse(in.name, "a probability of 1 or more would never exchange a token: give 0 to below 1");
  }
}

void read_groups(std::string_view name, const Parts& parts, RouterConfig& config) {
  config.groups = parse_count(name, parts[1], "groups");
  config.kept_groups = parse_count(name, parts[2], "groups");
  if (config.kept_groups <= config.groups) return;
  refuse(name, fmt::format("it keeps {} of {} groups: keep at most all", config.kept_groups,
                           config.groups));
}

void read_group_limited(const Reading& in, RouterConfig& config) {
  in.expect(2, 2, "group-limited:GROUPS:KEPT, such as group-limited:8:4");
  config.kind = RouterKind::group_limited;
  config.top_k = in.k_beside();
  read_groups(in.name, in.parts, config);
  config.drops = false;
}

void read_bias_balanced(const Reading& in, RouterConfig& config) {
  in.expect(0, 2, "bias-balanced:SPEED:STEPS, such as bias-balanced:0.001:1000");
  config.kind = RouterKind::bias_balanced;
  config.top_k = in.k_beside();
  config.update_speed =
      parse_number(in.name, in.parts.size() > 1 ? in.parts[1] : default_update_speed);
  config.update_steps = default_update_steps;
  if (in.parts.size() > 2) {
    config.update_steps = in.parts[2] == "0" ? 0 : parse_count(in.name, in.parts[2], "steps");
  }
  config.drops = false;
}

struct Kind {
  const char* name;
  void (*read)(const Reading&, RouterConfig&);
};

constexpr Kind kinds[] = {{"dense", read_dense},
                          {"dropless", read_dropless},
                          {"expert-choice", read_expert_choice},
                          {"base", read_base},
                          {"random", read_random},
                          {"hash", read_hash},
                          {"soft", read_soft},
                          {"scomoe", read_scomoe},
                          {"gating-dropout", read_gating_dropout},
                          {"group-limited", read_group_limited},
                          {"bias-balanced", read_bias_balanced}};

void limit_to_groups(std::string_view name, std::string_view suffix, RouterConfig& config) {
  const Parts parts = split(suffix, ':');
  if (config.kind != RouterKind::bias_balanced) {
    refuse(name, "+groups goes with bias-balanced alone: group-limited:GROUPS:KEPT limits top-k");
  }
  if (parts.size() != 3) refuse(name, "write the groups as +groups:GROUPS:KEPT, as +groups:8:4");
  if (config.groups > 1) refuse(name, "+groups is there twice");
  read_groups(name, parts, config);
}

void apply_suffix(std::string_view name, std::string_view suffix, RouterConfig& config) {
  if (suffix.substr(0, suffix.find(':')) == "groups") return limit_to_groups(name, suffix, config);
  if (suffix != "fr" && suffix != "ir" && suffix != "ir@node") {
    refuse(name, fmt::format("the suffix '+{}' is not known: choose +fr, +ir or +ir@node{}", suffix,
                             config.kind == RouterKind::bias_balanced ? ", or +groups" : ""));
  }
  if (!config.can_rectify()) {
    refuse(name, fmt::format("+{} rectifies routes that fail at a full expert, and goes with top1, "
                             "top2, ... and gating-dropout alone",
                             suffix));
  }
  if (suffix == "fr") {
    if (config.fill_in) refuse(name, "+fr is there twice");
    config.fill_in = true;
    return;
  }
  if (config.rectification != Rectification::none) refuse(name, "+ir is there twice");
  config.rectification = suffix == "ir@node" ? Rectification::node : Rectification::gpu;
}

std::string head_of(const RouterConfig& config) {
  switch (config.kind) {
    case RouterKind::dense:
      return "dense";
    case RouterKind::top_k:
      return fmt::format("top{}", config.top_k);
    case RouterKind::dropless:
      return "dropless";
    case RouterKind::expert_choice:
      return "expert-choice";
    case RouterKind::base:
      return config.greedy ? "base:greedy" : "base";
    case RouterKind::random:
      return config.balanced ? "random:balanced" : "random";
    case RouterKind::hash:
      return "hash:" + config.hash_exponent.text();
    case RouterKind::soft:
      return "soft";
    case RouterKind::scomoe:
      return fmt::format("scomoe:{}:{}", config.local_share.text(), config.node_share.text());
    case RouterKind::gating_dropout:
      return "gating-dropout:" + config.dropout.text();
    case RouterKind::group_limited:
      return fmt::format("group-limited:{}:{}", config.groups, config.kept_groups);
    case RouterKind::bias_balanced:
      return fmt::format("bias-balanced:{}:{}", config.update_speed.text(), config.update_steps);
  }
  return {};
}

}  // namespace

std::vector<std::pair<std::string, std::string>> router_forms() {
  return {
      {"dense", "one FFN instead of experts"},
      {"top1, ..., topk", "the k best experts of each token; topk: k is --top-k"},
      {"dropless", "the same without capacity: every route kept"},
      {"expert-choice", "each expert takes its C best tokens"},
      {"base[:greedy]",
       "as many tokens to each expert, for the largest sum of scores; greedy, and "
       "in prefill: the best expert"},
      {"random[:balanced]", "any expert; balanced: all experts equally often"},
      {"hash[:EXPONENT]", "by the token's id; ids are Zipf-distributed [1]"},
      {"soft", "experts compute mixes of all tokens"},
      {"scomoe:LOCAL:NODE", "shares of the tokens that choose on their GPU, and in their node"},
      {"gating-dropout:P", "topk; in training layers skip the exchange with probability P"},
      {"group-limited:GROUPS:KEPT", "the k best experts of the KEPT best groups"},
      {"bias-balanced[:SPEED[:STEPS]]",
       "the k best by score + bias, after STEPS steps in which the bias moved by SPEED against the "
       "load [0.001:1000]"},
      {"+groups:GROUPS:KEPT", "behind bias-balanced: inside the best groups, as DeepSeek-V3"},
      {"+fr",
       "behind topK and gating-dropout: choice k + 1 fills free slots (Fill-in "
       "Rectification)"},
      {"+ir, +ir@node",
       "the same: a token that lost a route goes to the best expert on its own "
       "GPU, or in its node (Intra-GPU Rectification); top2+fr+ir has both"},
  };
}

std::string router_names() {
  std::string names;
  for (const auto& [form, rule] : router_forms()) {
    if (form.starts_with("+")) continue;
    names += (names.empty() ? "" : ", ") + form;
  }
  return names +
         "; behind topK and gating-dropout any of +fr and +ir or +ir@node, as in top2+fr+ir; "
         "behind "
         "bias-balanced +groups:GROUPS:KEPT";
}

std::string RouterConfig::name() const {
  std::string text = head_of(*this);
  if (kind == RouterKind::bias_balanced && groups > 1) {
    text += fmt::format("+groups:{}:{}", groups, kept_groups);
  }
  if (fill_in) text += "+fr";
  if (rectification == Rectification::gpu) text += "+ir";
  if (rectification == Rectification::node) text += "+ir@node";
  return text;
}

RouterConfig parse_router(std::string_view name, int top_k, int usual_k) {
  const Parts with_suffixes = split(name, '+');
  const Reading in{name, split(with_suffixes[0], ':'), top_k, usual_k};
  RouterConfig config;
  const auto kind = std::find_if(std::begin(kinds), std::end(kinds),
                                 [&](const Kind& known) { return in.parts[0] == known.name; });
  if (kind != std::end(kinds)) {
    kind->read(in, config);
  } else if (in.parts[0].starts_with("top")) {
    read_top(in, config);
  } else {
    refuse_unknown(name, in.parts[0]);
  }
  if (config.is_dense() && with_suffixes.size() > 1) {
    refuse(name, "a dense model has nothing to rectify");
  }
  for (std::size_t part = 1; part < with_suffixes.size(); ++part) {
    apply_suffix(name, with_suffixes[part], config);
  }
  config.capacity_factor = Decimal(config.top_k);
  return config;
}

}  // namespace moesim::routing
