#include "sim/study/validation/routing/unknown_loss.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include "sim/routing/scores/score_source.hpp"
#include "sim/routing/simulation/routing_simulation.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;

namespace {

constexpr int layers = 150;

// Layers that are drawn from `source` itself, with another seed.
RecordedLayers drawn(const std::string& source) {
  RecordedLayers found{"drawn", 16, 2, true, {}};
  for (int replica = 0; replica < layers; ++replica) {
    std::vector<double>& lost = found.lost.emplace_back();
    for (const char* factor : {"1", "1.25"}) {
      routing::RoutingJob job;
      job.seed = 17;
      job.router.top_k = found.top_k;
      job.router.capacity_factor = Decimal::parse(factor, "capacity_factor");
      job.router.capacity_convention = routing::CapacityConvention::library;
      job.scores = routing::parse_score_source(source, "--routing");
      job.experts = found.experts;
      job.gpus = 1;
      job.expert_parallel = 1;
      job.gpus_per_domain = 1;
      job.tokens_per_gpu = 2048;
      job.layers = 1;
      lost.push_back(routing::simulate_routing(job, replica).loss.failed);
    }
  }
  return found;
}

// Inside the 50, 80 and 90 % bands, as a verdict says.
std::array<int, 3> inside(const Verdict& verdict) {
  std::array<int, 3> found{};
  const std::size_t colon = verdict.text.find("): ");
  REQUIRE(colon != std::string::npos);
  REQUIRE(std::sscanf(verdict.text.c_str() + colon, "): %d, %d, %d of", &found[0], &found[1],
                      &found[2]) == 3);
  return found;
}

}  // namespace

TEST_CASE("bands of unknown routing hold their share of layers of their own population") {
  Validation validation;
  report_unknown_loss({drawn("unknown")}, validation);
  REQUIRE(validation.verdicts.size() == 4);
  constexpr std::array nominal = {0.5, 0.8, 0.9};
  for (const std::size_t factor : {0, 1}) {
    const auto own = inside(validation.verdicts[factor]);
    const auto others = inside(validation.verdicts[factor + 2]);
    for (std::size_t level = 0; level < nominal.size(); ++level) {
      const double deviation = std::sqrt(layers * nominal[level] * (1 - nominal[level]));
      CHECK(std::abs(own[level] - layers * nominal[level]) < 3.5 * deviation);
      CHECK(others[level] < own[level] / 2);  // trainings without a balance loss lose far more
    }
  }
  for (const Verdict& verdict : validation.verdicts) CHECK_FALSE(verdict.met.has_value());
}

TEST_CASE("layers of a router that has collapsed lie outside the bands") {
  RecordedLayers collapsed{"collapsed", 16, 2, true, {{0.875, 0.844}, {0.875, 0.844}}};
  Validation validation;
  report_unknown_loss({collapsed}, validation);
  for (const Verdict& verdict : {validation.verdicts[0], validation.verdicts[1]}) {
    CHECK(inside(verdict) == std::array{0, 0, 0});
    CHECK_THAT(verdict.text, ContainsSubstring("of 2 layers"));
  }
}
