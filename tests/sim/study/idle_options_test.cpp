#include "sim/scenario/options.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "sim/base/error.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using scenario::Asker;
using scenario::IdleOption;
using scenario::OptionValues;

namespace {

scenario::DocumentCache& documents() {
  static scenario::DocumentCache cache;
  return cache;
}

OptionValues small(const std::string& router, const std::string& mode) {
  return {{"router", router},
          {"model", "switch-base-8"},
          {"mode", mode},
          {"gpus", "8"},
          {"expert-parallel", "4"},
          {"experts", "16"},
          {"sequence-length", "128"},
          {"micro-batch", "1"},
          {"replicas", "1"},
          {"overlap-slowdown", "1:1"},
          {"capacity-factor", "1.25"}};
}

std::vector<IdleOption> idle_in(const OptionValues& typed, const scenario::Scenario& scenario,
                                Asker asker) {
  const scenario::Scenario* const only = &scenario;
  return scenario::idle_options(typed, {&only, 1}, asker);
}

bool is_idle(const std::string& option, const OptionValues& typed,
             const scenario::Scenario& scenario, Asker asker) {
  const auto idle = idle_in(typed, scenario, asker);
  return std::any_of(idle.begin(), idle.end(),
                     [&](const IdleOption& each) { return each.option == option; });
}

std::vector<double> losses(const routing::TokenLoss& loss) {
  return {loss.failed,
          loss.partial,
          loss.lost_mass,
          loss.residual_loss,
          loss.padded,
          loss.unrouted,
          loss.fill_failed.value_or(-1),
          loss.failed_attempted.value_or(-1),
          loss.duplicate_ir.value_or(-1)};
}

// All figures of a scenario's result, as far as they may depend on an option.
std::vector<double> figures(const scenario::Scenario& scenario, Asker asker) {
  static routing::RoutingCache cache;
  if (asker == Asker::step) {
    const study::Outcome outcome = study::evaluate(scenario, cache);
    std::vector<double> all = losses(outcome.loss);
    all.insert(all.end(), outcome.parts_ms.begin(), outcome.parts_ms.end());
    for (const double figure :
         {outcome.step_ms, outcome.memory_gib, outcome.tokens_per_s_per_gpu, outcome.exchange_ms}) {
      all.push_back(figure);
    }
    return all;
  }
  const auto replica = cache.get(scenario.routing_job(), 0);
  std::vector<double> all = losses(replica->loss);
  for (const routing::LayerRouting& layer : replica->layers) {
    all.insert(all.end(), layer.kept_rows.begin(), layer.kept_rows.end());
    all.insert(all.end(), layer.ir_rows.begin(), layer.ir_rows.end());
  }
  return all;
}

struct Pair {
  const char* option;
  const char* one;
  const char* other;
};

constexpr Pair pairs[] = {{"capacity-factor", "1", "1.5"},
                          {"capacity-convention", "paper", "library"},
                          {"capacity-scope", "source", "group"},
                          {"min-capacity", "0", "100"},
                          {"capacity-alignment", "1", "64"},
                          {"group-score", "max", "top2"},
                          {"score-function", "softmax", "sigmoid"},
                          {"second-expert", "best", "sampled"},
                          {"router-dtype", "fp32", "bf16"},
                          {"weight-scale", "1", "2.5"},
                          {"router-dialect", "paper", "megatron"},
                          {"padding", "capacity", "none"},
                          {"expert-placement", "contiguous", "round-robin"},
                          {"priority", "token-max", "random"},
                          {"weights", "kept", "raw"},
                          {"fill-order", "nominee-score", "priority"},
                          {"ir-compute", "separate", "overlap"},
                          {"ir-duplicates", "allow", "exclude"},
                          {"dispatch", "index", "einsum"},
                          {"dedup", "none", "gpu"},
                          {"global-batch", "8", "16"},
                          {"checkpointing", "none", "full"},
                          {"zero", "0", "3"},
                          {"overlap", "none", "gradient"},
                          {"network", "fast", "flows"},
                          {"overlap-slowdown", "1:1", "2:2"},
                          {"jitter", "0", "0.1"},
                          {"slow-gpu", "none", "1:2"},
                          {"slow-link", "none", "1:9"},
                          {"mode", "train", "prefill"},
                          {"routing", "gaussian:0.1", "zipf:1"}};

constexpr const char* routers[] = {"dense",
                                   "top1",
                                   "top2+fr",
                                   "top2+fr+ir",
                                   "dropless",
                                   "expert-choice",
                                   "base",
                                   "random",
                                   "hash:1",
                                   "soft",
                                   "scomoe:0.3:0.3",
                                   "gating-dropout:0.5+ir",
                                   "group-limited:4:2",
                                   "bias-balanced:0.01:5"};

std::optional<scenario::Scenario> scenario_of(const OptionValues& values, Asker asker) {
  try {
    scenario::Scenario scenario = scenario::resolve(
        values, documents(), asker == Asker::step ? scenario::Use::step : scenario::Use::routing);
    if (asker == Asker::routing) routing::check(scenario.routing_job());
    return scenario;
  } catch (const UsageError&) {
    return std::nullopt;  // refused with a reason: cannot be taken for an effect
  }
}

void check_pairs(Asker asker, const std::string& mode, std::map<std::string, int>& effects) {
  for (const char* router : routers) {
    if (asker == Asker::routing && router == std::string("dense")) continue;
    for (const Pair& pair : pairs) {
      OptionValues values = small(router, mode);
      if (pair.option == std::string("capacity-convention")) values.erase("router-dialect");
      const std::string option = pair.option;
      if ((option == "dedup" || option == "second-expert") && router == std::string("dropless")) {
        values["top-k"] = "2";  // a model of one expert a token has no second
      }
      if (option == "overlap-slowdown" && router == std::string("top2+fr")) {
        values["overlap"] = "gradient";
      }
      values[pair.option] = pair.one;
      const auto one = scenario_of(values, asker);
      const bool idle = one && is_idle(pair.option, values, *one, asker);
      values[pair.option] = pair.other;
      const auto other = scenario_of(values, asker);
      if (!one || !other) continue;
      CAPTURE(router, pair.option, mode);
      CHECK(is_idle(pair.option, values, *other, asker) == idle);
      const bool same = figures(*one, asker) == figures(*other, asker);
      if (idle) CHECK(same);
      if (!same) ++effects[pair.option];
    }
  }
}

}  // namespace

TEST_CASE("an option that is said to have no effect on a step has none", "[slow]") {
  std::map<std::string, int> effects;
  for (const char* mode : {"train", "prefill"}) check_pairs(Asker::step, mode, effects);
  for (const Pair& pair : pairs) {
    CAPTURE(pair.option);
    // Every option is seen at work; but weights, which no figure of a step depends on.
    const std::string option = pair.option;
    CHECK((effects[option] > 0) == (option != "weights" && option != "weight-scale"));
  }
}

TEST_CASE("an option that is said to have no effect on routing has none") {
  std::map<std::string, int> effects;
  check_pairs(Asker::routing, "train", effects);
  for (const char* option :
       {"capacity-factor", "capacity-convention", "capacity-scope", "min-capacity",
        "router-dialect", "capacity-alignment", "group-score", "score-function", "router-dtype",
        "priority", "fill-order", "ir-duplicates", "mode", "routing"}) {
    CAPTURE(option);
    CHECK(effects[option] > 0);
  }
}

// Fill-in gives tokens of a top-1 router a second expert, which may be on the same GPU.
TEST_CASE("a top-1 router that fills in has tokens of two experts") {
  OptionValues typed = small("top1+fr", "train");
  typed.insert({{"padding", "none"}, {"dedup", "gpu"}});
  CHECK(!is_idle("dedup", typed, scenario::resolve(typed, documents()), Asker::step));
  typed["router"] = "top1";
  CHECK(is_idle("dedup", typed, scenario::resolve(typed, documents()), Asker::step));
}

TEST_CASE("a slowdown beside exchanges needs computation beside them") {
  OptionValues typed = small("top2", "train");
  typed["overlap-slowdown"] = "2:2";
  const auto idle = [&] {
    return is_idle("overlap-slowdown", typed, scenario::resolve(typed, documents()), Asker::step);
  };
  CHECK(idle());
  typed["overlap"] = "gradient";
  CHECK_FALSE(idle());
  typed["overlap"] = "none";
  typed["router"] = "top2+ir";
  CHECK(idle());
  typed["ir-compute"] = "overlap";
  CHECK_FALSE(idle());
}

TEST_CASE("without an exchange of experts networks are alike") {
  OptionValues typed = small("top2", "train");
  typed["network"] = "flows";
  const auto idle = [&] {
    return is_idle("network", typed, scenario::resolve(typed, documents()), Asker::step);
  };
  CHECK_FALSE(idle());
  typed["expert-parallel"] = "1";
  const scenario::Scenario flows = scenario::resolve(typed, documents());
  CHECK(idle());
  typed["network"] = "fast";
  CHECK(figures(flows, Asker::step) == figures(scenario::resolve(typed, documents()), Asker::step));
  typed["router"] = "dense";
  CHECK(idle());
}

TEST_CASE("a dispatcher that says what it sends leaves no choice of it") {
  OptionValues typed = small("top2", "train");
  typed.insert({{"padding", "none"}, {"dispatcher", "deepep"}, {"dedup", "node"}});
  typed.insert({"profile", "h100-sxm"});
  CHECK(is_idle("dedup", typed, scenario::resolve(typed, documents()), Asker::step));
  typed.erase("dispatcher");
  CHECK_FALSE(is_idle("dedup", typed, scenario::resolve(typed, documents()), Asker::step));
}

TEST_CASE("an option that one scenario of a run uses is not idle") {
  OptionValues typed = small("top2", "train");
  typed.erase("overlap-slowdown");  // idle too
  typed["fill-order"] = "priority";
  const scenario::Scenario without = scenario::resolve(typed, documents());
  const auto idle = idle_in(typed, without, Asker::step);
  REQUIRE(idle.size() == 1);
  CHECK(idle[0].option == "fill-order");
  CHECK(idle[0].why == "no router of this run fills in (+fr)");

  typed["router"] = "top2+fr";
  const scenario::Scenario with = scenario::resolve(typed, documents());
  const std::vector<const scenario::Scenario*> both{&without, &with};
  CHECK(scenario::idle_options(typed, both, Asker::step).empty());
  CHECK(scenario::idle_options(typed, {}, Asker::step).empty());
  typed.erase("fill-order");  // a default is never called idle
  CHECK(idle_in(typed, without, Asker::step).empty());
}
