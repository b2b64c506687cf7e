#include "sim/study/validation/exchanges/dispatcher_fit.hpp"

#include <vector>

#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::study;
using profile::DispatcherStage;
using profile::StageCost;

// Times made with known figures give these figures back, whatever the form was filled with.
TEST_CASE("a fit finds the figures that made its samples") {
  StageCost truth;
  truth.fixed_us = 31;
  truth.token_ns = 350;
  truth.copy_ns = 80;
  truth.sm_bytes_per_us = 30e3;
  truth.link_efficiency = {0.7, 0.6, 0.8};
  std::vector<DispatchSample> samples;
  for (const int sms : {4, 12, 24}) {
    for (const std::int64_t top_k : {1, 4, 8}) {
      for (const double tokens : {1.0, 64.0, 1024.0, 16384.0}) {
        for (const double hidden : {2048.0, 7168.0}) {
          DispatchSample sample;
          sample.load =
              profile::balanced_load(profile::SentOnce::per_node, DispatcherStage::dispatch,
                                     {256, top_k, 0}, sample.group, tokens);
          sample.row_bytes = hidden * 1.03125;
          sample.sms = sms;
          sample.rates = {450e3, 50e3};
          sample.time_us = fitted_us(truth, sample, 1);
          samples.push_back(sample);
        }
      }
    }
  }
  std::vector<const DispatchSample*> chosen;
  for (const DispatchSample& sample : samples) chosen.push_back(&sample);
  StageCost like;
  like.fixed_us = like.token_ns = like.copy_ns = like.sm_bytes_per_us = 1;
  like.link_efficiency = {0.5, 0.4, 0.6};
  const StageCost found = fit_stage(like, chosen, 1, true);
  CHECK(found.fixed_us == Approx(31).epsilon(0.01));
  CHECK(found.token_ns == Approx(350).epsilon(0.01));
  CHECK(found.copy_ns == Approx(80).epsilon(0.01));
  CHECK(found.sm_bytes_per_us == Approx(30e3).epsilon(0.01));
  CHECK(found.link_efficiency.value == Approx(0.7).epsilon(0.01));
  CHECK(found.fill_us == 0);  // no part of the form
  CHECK(found.factor.low > 0.99);
}
