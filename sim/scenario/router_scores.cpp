// Options of how scores of experts, and of groups of them, are found.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string_view>
#include <system_error>

#include "sim/base/digest.hpp"
#include "sim/base/error.hpp"
#include "sim/base/shipped.hpp"
#include "sim/routing/jobs/routing_job.hpp"
#include "sim/routing/rules/expert_bias.hpp"
#include "sim/routing/scores/score_source.hpp"
#include "sim/scenario/idle_rules.hpp"
#include "sim/scenario/router_options.hpp"

namespace moesim::scenario {
namespace {

using routing::RouterConfig;

constexpr auto name_of = [](auto value) { return routing::name_of(value); };

// The router's kind and the dialect have set it.
void leave_as_set(Resolution&) {}

// A sigmoid plus a bias has no logits to add.
void check_group_score(Resolution& at) {
  const RouterConfig& router = at.scenario.router;
  if (router.groups < 2 || router.group_score != routing::GroupScore::topk_logits ||
      !router.kind->scores_by_sigmoid) {
    return;
  }
  throw UsageError(fmt::format(
      "--group-score topk-logits: {} selects by a score with a bias, not by logits: use topk",
      router.asked_name()));
}

void declare_groups(OptionTable& table) {
  table
      .choice("group-score",
              {{"max", "its best score"},
               {"top2", "the sum of its two best"},
               {"topk", "the sum of its k / KEPT best"},
               {"topk-logits", "the same of logits"}},
              routing::parse_group_score, name_of, &RouterConfig::group_score)
      .by_default("the router's: max, with a bias top2; of megatron topk-logits, with a bias topk",
                  leave_as_set)
      .help("what a group of experts is worth to a token:")
      .affects(Affects::routing)
      .after({"router-dialect"})
      .then(check_group_score)
      .applies(has_groups)
      .idle(without_groups);
}

void check_variant_of(Resolution& at, const char* flag, bool set) {
  const RouterConfig& router = at.scenario.router;
  if (!set || router.is_dense() || router.kind->takes_best) return;
  throw UsageError(
      fmt::format("--{}: router {} has a rule of its own: it is of top1, topk and "
                  "dropless",
                  flag, router.asked_name()));
}

// A kind that scores by sigmoid alone has that as its rule, not as a variant of it.
void check_score_function(Resolution& at) {
  RouterConfig& router = at.scenario.router;
  if (router.kind->scores_by_sigmoid && router.score_function == routing::ScoreFunction::sigmoid) {
    router.score_function = routing::ScoreFunction::softmax;
  }
  check_variant_of(at, "score-function", router.score_function != routing::ScoreFunction::softmax);
}

std::string score_function_used(const Scenario& scenario) {
  const RouterConfig& router = scenario.router;
  return routing::name_of(router.kind->scores_by_sigmoid ? routing::ScoreFunction::sigmoid
                                                         : router.score_function);
}

void check_second_expert(Resolution& at) {
  const RouterConfig& router = at.scenario.router;
  check_variant_of(at, "second-expert", router.second_expert != routing::SecondExpert::best);
}

constexpr std::string_view zeros = "zeros";
constexpr std::string_view trained = "trained:";

routing::ScoreSource training_scores(const std::string& text) {
  return routing::parse_score_source(std::string_view(text).substr(trained.size()),
                                     fmt::format("--expert-bias {}", trained));
}

// Throws UsageError for a word that is no file but nearly one that --expert-bias takes.
void refuse_slip(const std::string& text) {
  std::error_code ignored;
  if (std::filesystem::exists(text, ignored)) return;
  const std::size_t colon = text.find(':');
  const std::string meant = nearest(text.substr(0, colon), {"none", std::string(zeros), "trained"});
  if (meant.empty()) return;
  const std::string value = colon == std::string::npos ? ":SCENARIO" : text.substr(colon);
  throw UsageError(fmt::format(
      "--expert-bias '{}': no such file, and none of none, zeros and trained:SCENARIO (did you "
      "mean '{}'?)",
      text, meant == "trained" ? meant + value : meant));
}

routing::ExpertBias file_of_biases(const std::string& text) {
  refuse_slip(text);
  return routing::ExpertBias::load(text);
}

// "trained:SCENARIO": what the biases are trained on, as --routing takes it.
void train_expert_bias(const std::string& text, Resolution& at) {
  RouterConfig& router = at.scenario.router;
  if (router.kind->trains_biases == nullptr) {
    throw UsageError(
        fmt::format("--expert-bias {}: router {} trains no biases: it is of bias-balanced", text,
                    router.asked_name()));
  }
  const auto scores = std::make_shared<const routing::ScoreSource>(training_scores(text));
  const std::uint64_t digest = Digest().add(routing::scores_key(*scores)).value();
  router.expert_bias = std::make_shared<const routing::ExpertBias>(routing::ExpertBias::trained(
      std::string(trained) + scores->name(), scores, digest, at.scenario.experts));
}

void load_expert_bias(const std::string& text, Resolution& at) {
  RouterConfig& router = at.scenario.router;
  if (router.is_dense()) return;
  if (text.starts_with(trained)) return train_expert_bias(text, at);
  router.expert_bias = std::make_shared<const routing::ExpertBias>(
      text == zeros ? routing::ExpertBias::zeros(at.scenario.experts) : file_of_biases(text));
  if (router.kind->takes_best || router.kind->scores_by_sigmoid) return;
  throw UsageError(fmt::format(
      "--expert-bias: router {} has no bias: it is of top1, topk, dropless and bias-balanced",
      router.asked_name()));
}

std::string expert_bias_name(const Scenario& scenario) {
  const RouterConfig& router = scenario.router;
  return router.expert_bias ? router.expert_bias->name() : "none";
}

std::uint64_t expert_bias_contents(const Scenario& scenario) {
  return scenario.router.expert_bias ? scenario.router.expert_bias->digest() : 0;
}

void declare_variants(OptionTable& table) {
  table
      .choice("score-function",
              {{"softmax", "over all experts"}, {"sigmoid", "of each logit by itself"}},
              routing::parse_score_function, name_of, &RouterConfig::score_function)
      .shown_as(score_function_used)
      .by_default("softmax", leave_as_set)
      .help("of top1, topk and dropless, the score of an expert:")
      .affects(Affects::routing)
      .after({"router-dialect"})
      .then(check_score_function)
      .applies(scores_experts)
      .idle(without_variants);
  table
      .choice("second-expert",
              {{"best", "the second best"}, {"sampled", "the best by logit plus Gumbel noise"}},
              routing::parse_second_expert, name_of, &RouterConfig::second_expert)
      .by_default("best; sampled of deepspeed with k = 2", leave_as_set)
      .help("of two experts of a token, the second:")
      .affects(Affects::routing)
      .after({"router-dialect"})
      .then(check_second_expert)
      .applies(scores_experts)
      .idle(without_variants);
  table
      .text(
          "expert-bias", "FILE",
          [](const std::string& text, DocumentCache&) {
            if (text.starts_with(trained)) {
              training_scores(text);
            } else if (text != "none" && text != zeros) {
              file_of_biases(text);
            }
          },
          [](const std::string& text, Resolution& at) {
            if (text != "none") load_expert_bias(text, at);
          },
          expert_bias_name)
      .by_default("none")
      .help(
          "a bias per expert, added to scores for the choice: .npy of float32, [experts] or "
          "[layers, experts]; zeros: of no expert, where the router would train its own; "
          "trained:SCENARIO: trained on this popularity, one of --routing, instead of the one that "
          "is routed")
      .affects(Affects::routing)
      .after({"router-dialect", "experts"})
      .applies(scores_experts)
      .idle(without_scores_of_experts)
      .contents(expert_bias_contents);
  table
      .choice("router-dtype", {{"fp32", "exact"}, {"bf16", "rounded to 8 bits"}},
              routing::parse_router_dtype, name_of, &RouterConfig::router_dtype)
      .by_default("fp32")
      .help("what the router's product writes logits in:")
      .affects(Affects::routing)
      .after({"router"})
      .applies(scores_experts)
      .idle(without_scores_of_experts);
}

}  // namespace

void declare_router_scores(OptionTable& table) {
  declare_groups(table);
  declare_variants(table);
}

}  // namespace moesim::scenario
