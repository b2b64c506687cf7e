#include "sim/study/sweep/evaluate.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "sim/scenario/options.hpp"
#include "sim/study/sweep/step_band.hpp"
#include "tests/support/catch.hpp"

namespace moesim::study {
namespace {

scenario::OptionValues small(const scenario::OptionValues& more) {
  scenario::OptionValues values = {
      {"gpus", "16"},    {"sequence-length", "512"}, {"micro-batch", "2"}, {"mode", "prefill"},
      {"replicas", "5"}, {"capacity-factor", "1"},   {"router", "top2+ir"}};
  for (const auto& [name, text] : more) values[name] = text;
  return values;
}

Outcome outcome_of(const scenario::OptionValues& values, engine::Timeline* timeline = nullptr) {
  scenario::DocumentCache documents;
  routing::RoutingCache cache;
  return evaluate(scenario::resolve(values, documents), cache, timeline);
}

}  // namespace

TEST_CASE("the ten parts sum to the step") {
  for (const scenario::OptionValues& more :
       {scenario::OptionValues{},
        scenario::OptionValues{{"mode", "train"}, {"checkpointing", "full"}},
        scenario::OptionValues{{"mode", "train"}, {"overlap", "gradient"}, {"zero", "2"}},
        scenario::OptionValues{{"ir-compute", "overlap"}},
        scenario::OptionValues{{"router", "dense"}},
        scenario::OptionValues{{"dispatch", "einsum"}, {"router", "top1+fr+ir"}},
        scenario::OptionValues{{"router", "dropless"}, {"mode", "train"}},
        scenario::OptionValues{{"router", "expert-choice"}},
        scenario::OptionValues{{"router", "random"}},
        scenario::OptionValues{{"router", "base"}, {"mode", "train"}},
        scenario::OptionValues{{"router", "hash:1"}},
        scenario::OptionValues{{"router", "soft"}, {"mode", "train"}},
        scenario::OptionValues{{"router", "scomoe:0.2:0.3"}},
        scenario::OptionValues{{"router", "group-limited:4:2"}},
        scenario::OptionValues{{"router", "gating-dropout:0.5+ir"}, {"mode", "train"}},
        scenario::OptionValues{{"router", "bias-balanced"}, {"network", "fast"}},
        scenario::OptionValues{{"routing", "ragged-source:4"}, {"mode", "train"}},
        scenario::OptionValues{{"routing", "ragged-source:4"}, {"network", "flows"}},
        scenario::OptionValues{{"routing", "empty-rank"}, {"dispatch", "einsum"}},
        scenario::OptionValues{
            {"routing", "empty-rank"}, {"router", "dropless"}, {"mode", "train"}}}) {
    scenario::OptionValues values = small(more);
    const std::string& router = values["router"];
    const bool unlimited = router == "dense" || router == "dropless" || router == "base" ||
                           router == "bias-balanced" || router.starts_with("group-limited");
    if (unlimited) values.erase("capacity-factor");
    const Outcome outcome = outcome_of(values);
    const double sum = std::accumulate(outcome.parts_ms.begin(), outcome.parts_ms.end(), 0.0);
    // Whole picoseconds on both sides; what is left is the rounding of ten doubles.
    CHECK(sum == Approx(outcome.step_ms).epsilon(1e-12));
    CHECK(outcome.step_ms > 0);
  }
}

TEST_CASE("nothing exposes more exchange than there is") {
  struct Case {
    scenario::OptionValues options;
    bool hides = false;  // exchanges run beside computation, or give way to those of gradients
  };
  std::vector<Case> cases;
  for (const char* routing :
       {"gaussian:0.1", "hot-expert:8", "hot-rank:8", "zipf:1", "ragged-source:4"}) {
    for (const char* router : {"dropless", "top2", "top2+fr+ir"}) {
      cases.push_back({{{"routing", routing}, {"router", router}, {"top-k", "2"}}});
    }
  }
  const scenario::OptionValues hot = {{"router", "dropless"}, {"routing", "hot-rank:8"}};
  const auto add = [&](const scenario::OptionValues& more, bool hides) {
    cases.push_back({hot, hides});
    for (const auto& [name, text] : more) cases.back().options[name] = text;
  };
  add({{"expert-parallel", "4"}}, false);
  add({{"slow-gpu", "3:2"}}, false);
  add({{"jitter", "0.1"}}, false);
  add({{"network", "flows"}, {"expert-parallel", "4"}}, false);
  add({{"mode", "train"}, {"overlap", "none"}}, false);
  add({{"mode", "train"}, {"overlap", "gradient"}, {"expert-parallel", "4"}}, true);
  add({{"router", "scomoe:0.2:0.3"}, {"capacity-factor", "1"}}, true);
  add({{"mode", "train"},
       {"router", "top2"},
       {"network", "fast"},
       {"overlap", "gradient"},
       {"overlap-slowdown", "1.5:2"}},
      true);
  for (const Case& each : cases) {
    scenario::OptionValues values = small(each.options);
    if (values["router"] == "dropless") values.erase("capacity-factor");
    if (values["router"] != "dropless") values.erase("top-k");
    values["replicas"] = "2";
    std::string name;
    for (const auto& [option, text] : each.options) name.append(" " + option).append(" " + text);
    CAPTURE(name);
    const Outcome outcome = outcome_of(values);
    const double exposed = outcome.parts_ms[static_cast<std::size_t>(StepPart::exposed_exchange)];
    CHECK(exposed > 0);
    CHECK(exposed < outcome.step_ms);
    if (each.hides) {
      CHECK(exposed <= outcome.exchange_ms);
    } else {
      // What no computation runs beside is all on the critical path: whole picoseconds.
      CHECK(outcome.exchange_ms == Approx(exposed).epsilon(1e-12));
    }
  }
}

TEST_CASE("gating dropout skips its share of the exchanges, all GPUs at once") {
  // 32 layers of which half are MoE, 5 replicas: 80 coins. Four equal all-to-alls a layer.
  const Outcome none = outcome_of(small({{"router", "gating-dropout:0"}, {"mode", "train"}}));
  const Outcome some = outcome_of(small({{"router", "gating-dropout:0.5"}, {"mode", "train"}}));
  REQUIRE(none.exchange_ms > 0);
  const double share = some.exchange_ms / none.exchange_ms;
  // The median replica's 16 coins: 0.5 with a standard deviation of 0.125, and its curve's error.
  CHECK(share > 0.1);
  CHECK(share < 0.9);
  CHECK(some.step_ms < none.step_ms);
}

TEST_CASE("the same scenario gives the same bits, whatever is in the cache") {
  scenario::DocumentCache documents;
  const scenario::Scenario scenario = scenario::resolve(small({}), documents);
  routing::RoutingCache empty;
  routing::RoutingCache used;
  evaluate(scenario::resolve(small({{"capacity-factor", "2"}}), documents), used);
  const Outcome first = evaluate(scenario, empty);
  const Outcome second = evaluate(scenario, used);
  const Outcome again = evaluate(scenario, used);
  CHECK(first.replica_step_ms == second.replica_step_ms);
  CHECK(first.replica_step_ms == again.replica_step_ms);
  CHECK(first.loss.residual_loss == second.loss.residual_loss);
}

TEST_CASE("the median replica is one that was, and lies inside the band") {
  for (const char* replicas : {"1", "2", "3", "4", "5"}) {
    const Outcome outcome = outcome_of(small({{"replicas", replicas}}));
    const uncertainty::SimulatedBand& band = outcome.band;
    CHECK(std::count(outcome.replica_step_ms.begin(), outcome.replica_step_ms.end(),
                     outcome.step_ms) >= 1);
    // Two sides, with however few replicas.
    CHECK(band.same_p05_ms < 0.99 * outcome.step_ms);
    CHECK(1.01 * outcome.step_ms < band.same_p95_ms);
    CHECK(band.p05_ms < band.p50_ms);
    CHECK(band.p50_ms < band.p95_ms);
    CHECK(band.p95_ms / band.p05_ms > band.same_p95_ms / band.same_p05_ms);
  }
}

TEST_CASE("software that was never calibrated makes a band wide, and its multipliers narrow") {
  const uncertainty::SimulatedBand blind = outcome_of(small({})).band;
  CHECK_THAT(blind.terms.front().name, ContainsSubstring("never calibrated"));
  CHECK(blind.p95_ms / blind.p05_ms > 2);
  const Outcome known = outcome_of(small({{"profile", "a100-sxm-80gb-deepspeed"}}));
  CHECK(known.band.p95_ms / known.band.p05_ms < 1.5);
  CHECK(known.band.p05_ms < known.step_ms);
  CHECK(known.step_ms < known.band.p95_ms);
}

TEST_CASE("exchanges count to the NICs where their group leaves a domain") {
  scenario::DocumentCache documents;
  std::array<double, part_count> parts{};
  parts[static_cast<std::size_t>(StepPart::exposed_exchange)] = 1;
  parts[static_cast<std::size_t>(StepPart::gradient)] = 3;
  const auto shares = [&](const char* group) {
    return work_shares(
        scenario::resolve(small({{"gpus", "16"}, {"expert-parallel", group}, {"experts", "16"}}),
                          documents),
        parts);
  };
  CHECK(shares("8") == uncertainty::WorkShares{0, 0, 0.25, 0.75});
  CHECK(shares("16") == uncertainty::WorkShares{0, 0, 0, 1});
}

TEST_CASE("speed is the tokens of the step over its time") {
  const Outcome prefill = outcome_of(small({}));
  CHECK(prefill.tokens_per_s_per_gpu == Approx(1024 / (prefill.step_ms * 1e-3)));
  const Outcome train =
      outcome_of(small({{"mode", "train"}, {"global-batch", "64"}}));  // two micro-steps
  CHECK(train.tokens_per_s_per_gpu == Approx(2048 / (train.step_ms * 1e-3)));
}

TEST_CASE("ragged sources: speed of the tokens there are, padding to the largest block") {
  // 1,024 - 109.71 r tokens on rank r of 8: 1024, 914, 805, 695, 585, 475, 366 and 256, 640 in the
  // mean.
  const scenario::OptionValues values = small({{"routing", "ragged-source:4"}, {"router", "top2"}});
  const Outcome ragged = outcome_of(values);
  CHECK(ragged.tokens_per_gpu_mean == 640);
  CHECK(ragged.tokens_per_s_per_gpu == Approx(640 / (ragged.step_ms * 1e-3)));
  // Each GPU sends 8 x 128 rows; those of its 2 x 640 routes that were kept hold a token.
  CHECK(ragged.empty_rows_sent ==
        Approx(1 - (1 - ragged.loss.failed) * 2 * 640 / (8 * 128)).epsilon(1e-9));
  // The fullest GPU decides on the memory and, as all wait for it, on the step.
  const Outcome plain = outcome_of(small({{"routing", "balanced"}, {"router", "top2"}}));
  CHECK(plain.empty_rows_sent == 0);
  CHECK(ragged.memory_gib == plain.memory_gib);
  CHECK(ragged.capacity == plain.capacity);
  CHECK(ragged.step_ms == Approx(plain.step_ms).epsilon(0.02));
  CHECK(ragged.step_ms > plain.step_ms);  // by the all-reduces
  // Sources that are ragged in name only are balanced, to the bit.
  const Outcome equal =
      outcome_of(small({{"routing", "ragged-source:1.0001"}, {"router", "top2"}}));
  CHECK(equal.replica_step_ms == plain.replica_step_ms);
  CHECK(equal.loss.failed == plain.loss.failed);
}

TEST_CASE("without curve errors replicas differ by their rectified rows alone") {
  scenario::DocumentCache documents;
  routing::RoutingCache cache;
  EvaluateSettings settings;
  settings.curve_errors = false;
  const Outcome plain =
      evaluate(scenario::resolve(small({{"router", "top2"}}), documents), settings, cache);
  for (const double step : plain.replica_step_ms) CHECK(step == plain.step_ms);
  const Outcome rectified = evaluate(scenario::resolve(small({}), documents), settings, cache);
  CHECK(rectified.replica_step_ms.front() != rectified.replica_step_ms.back());
  CHECK(rectified.ir_rows_mean > 0);
  CHECK(rectified.loss.unrouted == 0);
}

TEST_CASE("a lower capacity factor is faster and loses more; IR costs time and loses less") {
  const Outcome narrow = outcome_of(small({{"router", "top2"}, {"capacity-factor", "1"}}));
  const Outcome wide = outcome_of(small({{"router", "top2"}, {"capacity-factor", "2"}}));
  const Outcome rectified = outcome_of(small({{"router", "top2+ir"}, {"capacity-factor", "1"}}));
  CHECK(narrow.step_ms < wide.step_ms);
  CHECK(narrow.loss.residual_loss > wide.loss.residual_loss);
  CHECK(rectified.step_ms > narrow.step_ms);
  CHECK(rectified.loss.residual_loss < narrow.loss.residual_loss);
  CHECK(rectified.loss.failed == Approx(narrow.loss.failed));
}

TEST_CASE("a timeline has every operation of every rank, none overlapping on its stream") {
  engine::Timeline bars;
  const Outcome outcome = outcome_of(small({}), &bars);
  REQUIRE_FALSE(bars.empty());
  Picoseconds end;
  for (std::size_t index = 0; index < bars.size(); ++index) {
    end = std::max(end, bars[index].start + bars[index].duration);
    for (std::size_t later = index + 1; later < bars.size(); ++later) {
      if (bars[later].rank != bars[index].rank) break;
      if (bars[later].stream != bars[index].stream) continue;
      CHECK(bars[later].start >= bars[index].start + bars[index].duration);
      break;
    }
  }
  CHECK(end.ms() == Approx(outcome.step_ms).epsilon(1e-12));
}

TEST_CASE("the paper's model does not fit without checkpointing, as its authors' setting implies") {
  const auto memory = [](const std::string& checkpointing) {
    return outcome_of({{"mode", "train"},
                       {"dispatch", "einsum"},
                       {"router", "top2"},
                       {"checkpointing", checkpointing},
                       {"replicas", "1"}});
  };
  const Outcome none = memory("none");
  const Outcome full = memory("full");
  CHECK_FALSE(none.fits_memory);
  CHECK(full.fits_memory);
  double sum = 0;
  for (const auto& [name, gib] : full.memory_parts_gib) sum += gib;
  CHECK(sum == Approx(full.memory_gib));
}

}  // namespace moesim::study
