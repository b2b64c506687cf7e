#include "sim/routing/scores/score_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "sim/base/digest.hpp"
#include "sim/base/error.hpp"
#include "sim/base/formats/document.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/random.hpp"

namespace moesim::routing {

namespace {

// Streams of Purpose::score_model are distinguished by the rank: terms without a GPU have the ranks
// before the GPUs.
enum class Term : std::uint32_t { order, drift, step, gpu };

// Replicas are below 2^24, so the last number is used for terms that are the same in all replicas:
// terms of a GPU and, in the place of `drift`, terms of the types of tokens.
constexpr std::uint32_t lasting = (1U << 24) - 1;

Stream stream_of(std::uint64_t seed, std::uint32_t replica, std::uint32_t layer, Term term,
                 std::uint32_t gpu = 0) {
  return Stream(StreamKey{seed, Purpose::score_model, replica, layer,
                          static_cast<std::uint32_t>(term) + gpu});
}

std::vector<double> normals(Stream stream, std::size_t count) {
  std::vector<double> values(count);
  for (double& value : values) value = stream.normal();
  return values;
}

// Step `replica` of a stationary AR(1) process of unit variance, independent for each expert. Steps
// whose contribution is below 1e-6 are left out, so that a late step costs no more than an early
// one.
std::vector<double> drifted(std::uint64_t seed, std::uint32_t replica, std::uint32_t layer,
                            double autocorrelation, std::size_t experts) {
  std::uint32_t steps = 0;
  if (autocorrelation > 0) {
    steps = static_cast<std::uint32_t>(
        std::min(1e6, std::ceil(std::log(1e-6) / std::log(autocorrelation))));
  }
  steps = std::min(steps, replica);
  const std::uint32_t first = replica - steps;
  const double fresh = std::sqrt(1 - autocorrelation * autocorrelation);
  std::vector<double> state = normals(stream_of(seed, first, layer, Term::drift), experts);
  for (std::uint32_t at = first + 1; at <= replica; ++at) {
    const std::vector<double> news = normals(stream_of(seed, at, layer, Term::drift), experts);
    for (std::size_t expert = 0; expert < experts; ++expert) {
      state[expert] = autocorrelation * state[expert] + fresh * news[expert];
    }
  }
  return state;
}

std::optional<FittedValue> read_estimate(const Node& parent, const std::string& key) {
  const std::optional<Node> node = parent.find(key);
  if (!node) return std::nullopt;
  return FittedValue{node->number("value"), node->number("error")};
}

std::vector<double> read_layer(const Node& node, std::size_t experts) {
  std::vector<double> shares;
  for (const Node& item : node.items()) shares.push_back(item.as_number());
  if (shares.size() != experts) {
    node.fail(fmt::format("{} shares for {} experts", shares.size(), experts));
  }
  const double whole = std::accumulate(shares.begin(), shares.end(), 0.0);
  if (std::abs(whole - 1) > 1e-3) node.fail(fmt::format("the shares sum to {}, not 1", whole));
  for (double& share : shares) share /= whole;
  return shares;
}

}  // namespace

std::shared_ptr<const ScoreModel> ScoreModel::load(const std::string& path) {
  const Document document = Document::load(path);
  document.validate("scores.schema");
  const Node root = document.root();
  const Node trace = root.at("trace");
  auto model = std::make_shared<ScoreModel>();
  model->name = path;
  model->source = trace.text("source");
  model->steps = trace.count("steps");
  model->ranks = trace.count("ranks");
  model->tokens = trace.positive_integer("tokens");
  model->experts = root.count("experts");
  model->top_k = root.count("top_k");
  if (model->top_k > model->experts) {
    root.fail(fmt::format("{} of {} experts cannot be chosen", model->top_k, model->experts),
              "top_k");
  }
  const Node variance = root.at("variance");
  model->spread = *read_estimate(variance, "spread");
  model->drift = read_estimate(variance, "drift");
  model->step = read_estimate(variance, "step");
  model->rank = read_estimate(variance, "rank");
  model->rank_step = read_estimate(variance, "rank_step");
  model->token_type = read_estimate(variance, "kind");
  model->autocorrelation = read_estimate(root, "autocorrelation");
  for (const Node& layer : root.items("popularity")) {
    model->popularity.push_back(read_layer(layer, static_cast<std::size_t>(model->experts)));
  }
  if (const std::optional<Node> scale = root.find("layer_scale")) {
    for (const Node& layer : scale->items()) model->layer_scale.push_back(layer.as_number());
    if (model->layer_scale.size() != model->popularity.size()) {
      scale->fail(fmt::format("{} scales for the {} layers of popularity",
                              model->layer_scale.size(), model->popularity.size()));
    }
  }
  return model;
}

std::string ScoreModel::text() const {
  const auto estimate = [](const std::optional<FittedValue>& figure) {
    if (!figure) return std::string("null");
    return fmt::format(R"({{ "value": {:.5g}, "error": {:.3g} }})", figure->value, figure->error);
  };
  std::string layers;
  for (const std::vector<double>& layer : popularity) {
    std::string shares;
    for (const double share : layer) {
      shares += fmt::format("{}{:.6g}", shares.empty() ? "" : ", ", share);
    }
    layers += fmt::format("{}    [{}]", layers.empty() ? "" : ",\n", shares);
  }
  std::string scales;
  for (const double scale : layer_scale) {
    scales += fmt::format("{}{:.4g}", scales.empty() ? "" : ", ", scale);
  }
  if (!scales.empty()) scales = fmt::format("\n  \"layer_scale\": [{}],", scales);
  return fmt::format(R"({{
  "format": "moesim scores 1",
  "trace": {{ "source": {}, "steps": {}, "ranks": {}, "tokens": {} }},
  "experts": {},
  "top_k": {},
  "variance": {{
    "spread": {},
    "drift": {},
    "step": {},
    "rank": {},
    "rank_step": {},
    "kind": {}
  }},
  "autocorrelation": {},{}
  "popularity": [
{}
  ]
}}
)",
                     json_text(nlohmann::json(source)), steps, ranks, tokens, experts, top_k,
                     estimate(spread), estimate(drift), estimate(step), estimate(rank),
                     estimate(rank_step), estimate(token_type), estimate(autocorrelation), scales,
                     layers);
}

std::uint64_t ScoreModel::digest() const {
  Digest digest;
  for (const std::vector<double>& layer : popularity) digest.add(std::span(layer));
  for (const std::optional<FittedValue>* figure :
       {&drift, &autocorrelation, &step, &rank, &rank_step, &token_type}) {
    digest.add(value_of(*figure));
  }
  digest.add(std::span(layer_scale));
  return digest.add(static_cast<double>(top_k)).value();
}

std::vector<double> ScoreModel::layer_popularity(std::uint32_t layer, int wanted,
                                                 std::uint64_t seed) const {
  const std::vector<double>& shares = popularity[layer % popularity.size()];
  if (wanted == experts) return shares;
  std::vector<double> logs;
  for (const double share : shares) logs.push_back(std::log(share));
  std::sort(logs.begin(), logs.end());
  // Expert i of n represents the quantile (i + 1/2) / n.
  std::vector<double> result;
  for (int expert = 0; expert < wanted; ++expert) {
    const double place = (expert + 0.5) / wanted * experts - 0.5;
    const double inside = std::clamp(place, 0.0, static_cast<double>(experts - 1));
    const auto below = static_cast<std::size_t>(inside);
    const std::size_t above = std::min(below + 1, logs.size() - 1);
    const double weight = inside - static_cast<double>(below);
    result.push_back(std::exp((1 - weight) * logs[below] + weight * logs[above]));
  }
  const double whole = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& share : result) share /= whole;
  Stream stream = stream_of(seed, 0, layer, Term::order);
  for (std::size_t left = result.size(); left > 1; --left) {  // Fisher and Yates
    const auto drawn = static_cast<std::size_t>(stream.uniform() * static_cast<double>(left));
    std::swap(result[left - 1], result[std::min(drawn, left - 1)]);
  }
  return result;
}

ScoreDraw::ScoreDraw(const ScoreModel& model, int experts, std::uint64_t seed,
                     std::uint32_t replica, std::uint32_t layer)
    : model_(model), seed_(seed), replica_(replica), layer_(layer) {
  if (experts < model.top_k) {
    throw UsageError(
        fmt::format("{} is of tokens that choose {} experts each, and the job has {}: choose "
                    "--experts {} or more",
                    model.name, model.top_k, experts, model.top_k));
  }
  std::vector<double> shares = model.layer_popularity(layer, experts, seed);
  const std::size_t count = shares.size();
  const double scale = model.scale_of(layer);
  if (value_of(model.drift) > 0) {
    const double deviation = std::sqrt(model.drift->value * scale);
    const std::vector<double> state =
        drifted(seed, replica, layer, value_of(model.autocorrelation), count);
    for (std::size_t expert = 0; expert < count; ++expert) {
      shares[expert] *= std::exp(deviation * state[expert]);
    }
  }
  if (value_of(model.step) > 0) {
    const double deviation = std::sqrt(model.step->value * scale);
    const std::vector<double> fresh = normals(stream_of(seed, replica, layer, Term::step), count);
    for (std::size_t expert = 0; expert < count; ++expert) {
      shares[expert] *= std::exp(deviation * fresh[expert]);
    }
  }
  inclusions_ = capped_inclusions(shares, model.top_k);
}

std::vector<double> ScoreDraw::gpu_inclusions(std::uint32_t gpu) const {
  std::vector<double> shares = inclusions_;
  const auto disturb = [&](double variance, std::uint32_t replica) {
    if (variance <= 0) return;
    const std::vector<double> term =
        normals(stream_of(seed_, replica, layer_, Term::gpu, gpu), shares.size());
    const double deviation = std::sqrt(variance);
    for (std::size_t expert = 0; expert < shares.size(); ++expert) {
      shares[expert] *= std::exp(deviation * term[expert]);
    }
  };
  const double scale = model_.scale_of(layer_);
  disturb(value_of(model_.rank) * scale, lasting);
  disturb(value_of(model_.rank_step) * scale, replica_);
  return capped_inclusions(shares, model_.top_k);
}

std::vector<std::vector<double>> ScoreDraw::type_terms() const {
  const double deviation = std::sqrt(value_of(model_.token_type));
  Stream stream = stream_of(seed_, lasting, layer_, Term::drift);
  std::vector<std::vector<double>> terms(token_types);
  for (std::vector<double>& of_type : terms) {
    for (std::size_t expert = 0; expert < inclusions_.size(); ++expert) {
      of_type.push_back(deviation * stream.normal());
    }
  }
  return terms;
}

}  // namespace moesim::routing
