#include "sim/base/error.hpp"
#include "sim/scenario/options.hpp"
#include "sim/study/sweep/evaluate.hpp"
#include "tests/support/catch.hpp"

namespace moesim::study {
namespace {

scenario::OptionValues small(scenario::OptionValues more) {
  more.insert(
      {{"gpus", "16"}, {"sequence-length", "512"}, {"micro-batch", "1"}, {"replicas", "3"}});
  return more;
}

Outcome outcome_of(const scenario::OptionValues& more) {
  scenario::DocumentCache documents;
  routing::RoutingCache cache;
  return evaluate(scenario::resolve(small(more), documents), cache);
}

}  // namespace

TEST_CASE("conditions are read, or refused with a reason") {
  const scenario::GpuFactors factors = scenario::parse_gpu_factors("3:1.5+7:2", "--slow-gpu");
  CHECK(factors == scenario::GpuFactors{{3, 1.5}, {7, 2}});
  CHECK(scenario::parse_gpu_factors("none", "--slow-gpu").empty());
  for (const char* text :
       {"3", "3:", ":2", "x:2", "3:0.5", "-1:2", "3:1.5,7:2", "3:2+3:4", "3:2+"}) {
    CHECK_THROWS_AS(scenario::parse_gpu_factors(text, "--slow-gpu"), UsageError);
  }
  CHECK(scenario::parse_slowdowns("1.1:1.25", "--overlap-slowdown").exchange == 1.25);
  for (const char* text : {"1.1", "0.9:1", "1:", "a:b"}) {
    CHECK_THROWS_AS(scenario::parse_slowdowns(text, "--overlap-slowdown"), UsageError);
  }
  scenario::DocumentCache documents;
  CHECK(scenario::resolve(small({{"jitter", "0.05"}}), documents).conditions.jitter == 0.05);
  for (const char* text : {"-0.1", "1.5", "x"}) {
    CHECK_THROWS_AS(scenario::check_value("jitter", text, documents), UsageError);
  }
  CHECK_THROWS_AS(scenario::resolve(small({{"slow-link", "16:2"}}), documents), UsageError);
}

TEST_CASE("the parts of a disturbed step sum to it, on every network") {
  for (const scenario::OptionValues& options :
       {scenario::OptionValues{{"slow-gpu", "3:1.5+9:2"}, {"jitter", "0.05"}},
        scenario::OptionValues{{"slow-link", "4:3"}, {"network", "flows"}},
        scenario::OptionValues{{"network", "flows"}, {"expert-parallel", "16"}, {"experts", "16"}},
        scenario::OptionValues{{"overlap", "gradient"}, {"overlap-slowdown", "1.2:1.3"}},
        scenario::OptionValues{{"router", "top2+ir"},
                               {"ir-compute", "overlap"},
                               {"jitter", "0.1"},
                               {"overlap-slowdown", "1.5:1.1"}}}) {
    const Outcome outcome = outcome_of(options);
    double sum = 0;
    for (const double part : outcome.parts_ms) sum += part;
    CHECK(sum == Approx(outcome.step_ms).epsilon(1e-9));
  }
}

TEST_CASE("what disturbs a step makes it slower, and what is neutral changes nothing") {
  const double calm = outcome_of({}).step_ms;
  CHECK(outcome_of({{"slow-gpu", "0:1"}, {"slow-link", "3:1"}, {"jitter", "0"}}).step_ms == calm);
  CHECK(outcome_of({{"network", "fast"}}).step_ms == calm);
  CHECK(outcome_of({{"slow-gpu", "5:1.2"}}).step_ms > calm);
  CHECK(outcome_of({{"slow-link", "5:2"}}).step_ms > calm);
  CHECK(outcome_of({{"jitter", "0.05"}}).step_ms > calm);
  const double overlapped = outcome_of({{"overlap", "gradient"}}).step_ms;
  CHECK(outcome_of({{"overlap", "gradient"}, {"overlap-slowdown", "1:1"}}).step_ms == overlapped);
  CHECK(outcome_of({{"overlap", "gradient"}, {"overlap-slowdown", "1.2:1.2"}}).step_ms >
        overlapped);
}

TEST_CASE("where all wait for a slow GPU its work counts, and no exchange") {
  const auto exposed = static_cast<std::size_t>(StepPart::exposed_exchange);
  const auto expert = static_cast<std::size_t>(StepPart::expert);
  for (const char* network : {"fast", "flows"}) {
    const Outcome calm = outcome_of({{"network", network}});
    const Outcome slow = outcome_of({{"network", network}, {"slow-gpu", "3:1.5"}});
    CHECK(slow.exchange_ms == Approx(calm.exchange_ms).epsilon(0.01));
    CHECK(slow.parts_ms[exposed] == Approx(calm.parts_ms[exposed]).epsilon(0.01));
    CHECK(slow.parts_ms[expert] > 1.3 * calm.parts_ms[expert]);
    CHECK(slow.exchange_and_waiting_ms > 2 * calm.exchange_and_waiting_ms);
  }
}

TEST_CASE("the report says when exact flows were used") {
  CHECK(outcome_of({{"network", "flows"}}).provenance.find("exact flows") != std::string::npos);
  CHECK(outcome_of({{"network", "auto"}}).provenance.find("exact flows") == std::string::npos);
  CHECK(outcome_of({{"network", "auto"}}).network_used == "fast");
  CHECK(outcome_of({{"network", "auto"}}).network_why == "equal blocks, exact alone");
  // Groups of 6 on nodes of 8 lie differently.
  const scenario::OptionValues six{{"gpus", "24"}, {"expert-parallel", "6"}, {"experts", "6"}};
  const auto on = [&](const char* network) {
    scenario::OptionValues options = six;
    options.insert({"network", network});
    return outcome_of(options);
  };
  CHECK(on("auto").network_used == "flows");
  CHECK(on("auto").step_ms == on("flows").step_ms);
  CHECK(on("fast").network_used == "fast");
  CHECK(on("fast").provenance.find("not certified") != std::string::npos);
  // Nothing to share: a model whose experts are all on each GPU has no all-to-all.
  CHECK(
      outcome_of({{"network", "flows"}, {"expert-parallel", "1"}}).provenance.find("exact flows") ==
      std::string::npos);
}

}  // namespace moesim::study
