// Megatron-Core's router tracer (megatron/core/transformer/moe/router_trace.py) writes one line for
// each call of a router. Loggers of vLLM differ in details: topk_ids of one token, or of several.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "sim/base/error.hpp"
#include "sim/base/formats/gzip.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/routing/traces/trace_import.hpp"

namespace moesim::routing {

namespace {

using Json = nlohmann::json;

// The routes of one rank and layer, in the order of the log.
struct Routes {
  std::vector<std::uint16_t> experts;  // [token, choice]
  std::vector<float> weights;          // the same; empty where none are logged
  std::vector<std::int64_t> records;   // tokens of each record that is a step
};

class RouteLog {
 public:
  explicit RouteLog(const RouteLogQuery& query) : query_(query), top_k_(query.top_k) {}

  void read(const std::string& file, std::int64_t file_rank) {
    file_ = file;
    line_ = 0;
    const std::string text = read_gzip(file);
    for (std::size_t start = 0; start < text.size();) {
      const std::size_t end = std::min(text.find('\n', start), text.size());
      ++line_;
      const std::string one = text.substr(start, end - start);
      start = end + 1;
      if (one.find_first_not_of(" \t\r") == std::string::npos) continue;
      const Json record = parse_json_or_null(one);
      if (!record.is_object()) refuse("no JSON object: a route log has one a line");
      take(record, file_rank);
    }
  }

  ImportedTrace trace();

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    throw UsageError(fmt::format("{}, line {}: {}", file_, line_, reason));
  }

  std::int64_t whole(const Json& value, const char* key) const {
    if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
        value.get<std::int64_t>() > std::int64_t{1} << 40) {
      refuse(fmt::format("\"{}\" is no whole number from 0 on", key));
    }
    return value.get<std::int64_t>();
  }

  std::int64_t number(const Json& record, std::initializer_list<const char*> keys,
                      std::optional<std::int64_t> otherwise) const {
    for (const char* key : keys) {
      if (const auto found = record.find(key); found != record.end()) return whole(*found, key);
    }
    if (otherwise) return *otherwise;
    refuse(fmt::format("\"{}\" is missing", *keys.begin()));
  }

  void take(const Json& record, std::int64_t file_rank) {
    if (const auto found = record.find("top_indices"); found != record.end()) {
      const auto block = record.find("block");
      if (block != record.end() && *block != "decoder") {
        ++left_out_;
        return;
      }
      megatron_ = true;
      Routes& routes = at(number(record, {"rank"}, file_rank), number(record, {"layer"}, {}));
      routes.records.push_back(take_tokens(*found, nullptr, "top_indices", routes));
      return;
    }
    const auto ids = record.find("topk_ids");
    if (ids == record.end()) {
      // Loggers of vLLM begin with a line on the run.
      const auto type = record.find("type");
      if (type != record.end() && *type != "route") return;
      refuse("neither \"top_indices\" (Megatron-Core) nor \"topk_ids\" (vLLM)");
    }
    Routes& routes = at(file_rank, number(record, {"layer", "layer_id", "layer_idx"}, {}));
    const auto weights = record.find("topk_weights");
    take_tokens(*ids, weights == record.end() ? nullptr : &*weights, "topk_ids", routes);
  }

  Routes& at(std::int64_t rank, std::int64_t layer) { return routes_[layer][rank]; }

  // Returns how many tokens there are.
  std::int64_t take_tokens(const Json& ids, const Json* weights, const char* key, Routes& routes) {
    if (!ids.is_array()) refuse(fmt::format("\"{}\" is no list", key));
    const bool one_token = !ids.empty() && !ids.front().is_array();
    if (one_token) {
      take_token(ids, weights, key, routes);
      return 1;
    }
    if (weights != nullptr && (!weights->is_array() || weights->size() != ids.size())) {
      refuse("\"topk_weights\" has not the tokens of \"topk_ids\"");
    }
    for (std::size_t token = 0; token < ids.size(); ++token) {
      take_token(ids[token], weights == nullptr ? nullptr : &(*weights)[token], key, routes);
    }
    return static_cast<std::int64_t>(ids.size());
  }

  void take_token(const Json& ids, const Json* weights, const char* key, Routes& routes) {
    if (!ids.is_array() || ids.empty()) refuse(fmt::format("\"{}\" is no list of experts", key));
    if (top_k_ == 0) top_k_ = static_cast<int>(ids.size());
    if (static_cast<int>(ids.size()) != top_k_) {
      refuse(fmt::format("{} experts of a token, elsewhere {}", ids.size(), top_k_));
    }
    for (const Json& id : ids) {
      const std::int64_t expert = whole(id, key);
      if (expert >= query_.experts) {
        refuse(fmt::format("no expert {}: --experts {} are 0 to {}", expert, query_.experts,
                           query_.experts - 1));
      }
      routes.experts.push_back(static_cast<std::uint16_t>(expert));
    }
    if (weights == nullptr) return;
    if (!weights->is_array() || weights->size() != ids.size()) {
      refuse("\"topk_weights\" has not the experts of \"topk_ids\"");
    }
    for (const Json& weight : *weights) {
      if (!weight.is_number()) refuse("\"topk_weights\" holds something else than numbers");
      routes.weights.push_back(weight.get<float>());
    }
  }

  std::int64_t step_tokens() const;
  bool weights_are_probabilities() const;
  static void sort_by_weight(std::size_t top_k, Routes& routes);
  void check_all_logged(int ranks_of_first, std::size_t experts_of_first) const;
  template <typename Value>
  std::vector<Value> in_order(const TraceShape& shape, std::vector<Value> Routes::*values) const;

  const RouteLogQuery& query_;
  std::string file_;
  std::size_t line_ = 0;
  int top_k_ = 0;
  bool megatron_ = false;
  std::size_t left_out_ = 0;
  std::map<std::int64_t, std::map<std::int64_t, Routes>> routes_;  // by layer, rank
};

// Tokens of a step: as asked for, of each record where these are alike, or all.
std::int64_t RouteLog::step_tokens() const {
  if (query_.tokens > 0) return query_.tokens;
  const Routes& first = routes_.begin()->second.begin()->second;
  if (!megatron_) return static_cast<std::int64_t>(first.experts.size()) / top_k_;
  std::int64_t least = first.records.front();
  std::int64_t most = least;
  for (const auto& [layer, ranks] : routes_) {
    for (const auto& [rank, routes] : ranks) {
      for (const std::int64_t tokens : routes.records) {
        least = std::min(least, tokens);
        most = std::max(most, tokens);
      }
    }
  }
  if (least == most && most > 0) return most;
  throw UsageError(fmt::format(
      "{}: records of {} to {} tokens: --tokens N is missing: tokens are then taken in order, N of "
      "a layer and rank for each step",
      query_.files.front(), least, most));
}

bool RouteLog::weights_are_probabilities() const {
  bool below = false;
  for (const auto& [layer, ranks] : routes_) {
    for (const auto& [rank, routes] : ranks) {
      if (routes.weights.size() != routes.experts.size()) return false;
      for (std::size_t at = 0; at < routes.weights.size(); at += static_cast<std::size_t>(top_k_)) {
        const auto first = routes.weights.begin() + static_cast<std::ptrdiff_t>(at);
        const float sum = std::accumulate(first, first + top_k_, 0.0F);
        // Sums of weights that were rounded to bf16 are off by up to k / 512.
        const float rounding = static_cast<float>(top_k_) / 512;
        if (sum > 1 + rounding) return false;
        if (sum < 1 - rounding) below = true;
      }
    }
  }
  return below;
}

void RouteLog::sort_by_weight(std::size_t top_k, Routes& routes) {
  std::vector<std::pair<float, std::uint16_t>> token(top_k);
  for (std::size_t at = 0; at < routes.weights.size(); at += top_k) {
    for (std::size_t choice = 0; choice < top_k; ++choice) {
      token[choice] = {routes.weights[at + choice], routes.experts[at + choice]};
    }
    std::stable_sort(token.begin(), token.end(),
                     [](const auto& one, const auto& other) { return one.first > other.first; });
    for (std::size_t choice = 0; choice < top_k; ++choice) {
      routes.weights[at + choice] = token[choice].first;
      routes.experts[at + choice] = token[choice].second;
    }
  }
}

// Throws UsageError where a layer is not logged by all ranks, or a rank has not all its tokens.
void RouteLog::check_all_logged(int ranks_of_first, std::size_t experts_of_first) const {
  const std::string& file = query_.files.front();
  const auto top_k = static_cast<std::size_t>(top_k_);
  for (const auto& [layer, ranks] : routes_) {
    if (ranks.size() != static_cast<std::size_t>(ranks_of_first)) {
      throw UsageError(
          fmt::format("{}: layer {} is logged by {} ranks, layer {} by {}: give the "
                      "files of all ranks",
                      file, layer, ranks.size(), routes_.begin()->first, ranks_of_first));
    }
    for (const auto& [rank, routes] : ranks) {
      if (routes.experts.size() == experts_of_first) continue;
      throw UsageError(fmt::format(
          "{}: layer {}, rank {} has {} tokens, the first layer and rank {}: the log is cut short, "
          "or of several runs",
          file, layer, rank, routes.experts.size() / top_k, experts_of_first / top_k));
    }
  }
}

// The experts, or the weights, of all routes in the order of a trace: [step, rank, layer, token,
// choice].
template <typename Value>
std::vector<Value> RouteLog::in_order(const TraceShape& shape,
                                      std::vector<Value> Routes::*values) const {
  const auto each = static_cast<std::ptrdiff_t>(shape.tokens) * top_k_;
  std::vector<Value> all;
  for (int step = 0; step < shape.steps; ++step) {
    for (int rank = 0; rank < shape.ranks; ++rank) {
      for (const auto& [layer, ranks] : routes_) {
        const auto begin = (std::next(ranks.begin(), rank)->second.*values).begin() + step * each;
        all.insert(all.end(), begin, begin + each);
      }
    }
  }
  return all;
}

ImportedTrace RouteLog::trace() {
  const std::string& file = query_.files.front();
  if (routes_.empty()) throw UsageError(fmt::format("{}: no routes", file));
  TraceShape shape;
  shape.layers = static_cast<int>(routes_.size());
  shape.ranks = static_cast<int>(routes_.begin()->second.size());
  shape.experts = query_.experts;
  shape.top_k = top_k_;
  shape.tokens = step_tokens();
  const bool with_weights = weights_are_probabilities();
  const std::size_t all = routes_.begin()->second.begin()->second.experts.size();
  const std::size_t each =
      static_cast<std::size_t>(shape.tokens) * static_cast<std::size_t>(top_k_);
  if (all < each) {
    throw UsageError(fmt::format("{}: --tokens: {} of a step, but a layer has {}", file,
                                 shape.tokens, all / static_cast<std::size_t>(top_k_)));
  }
  shape.steps = static_cast<int>(all / each);
  check_all_logged(shape.ranks, all);
  std::vector<std::int64_t> layers;
  for (auto& [layer, ranks] : routes_) {
    layers.push_back(layer);
    for (auto& [rank, routes] : ranks) {
      if (with_weights) sort_by_weight(static_cast<std::size_t>(top_k_), routes);
    }
  }
  std::vector<std::uint16_t> choices = in_order(shape, &Routes::experts);
  std::vector<float> probabilities;
  if (with_weights) probabilities = in_order(shape, &Routes::weights);
  std::string what = fmt::format("a route log of {}", megatron_ ? "Megatron-Core" : "vLLM");
  if (all % each != 0) {
    what +=
        fmt::format(", its last {} tokens left out", all % each / static_cast<std::size_t>(top_k_));
  }
  if (left_out_ > 0) {
    what += fmt::format(", {} records of prediction depths left out", left_out_);
  }
  what += with_weights ? ", with probabilities" : ", without probabilities";
  return {Trace::of_choices(file, shape, std::move(choices), std::move(probabilities)),
          {},
          std::move(layers),
          what};
}

}  // namespace

ImportedTrace import_route_logs(const RouteLogQuery& query) {
  RouteLog log(query);
  for (std::size_t rank = 0; rank < query.files.size(); ++rank) {
    log.read(query.files[rank], static_cast<std::int64_t>(rank));
  }
  return log.trace();
}

}  // namespace moesim::routing
