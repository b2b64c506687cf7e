#include "kernels/measure/timing/stopping.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "sim/base/random.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
using measure::Stop;

namespace {

// Feeds `time_of(n)` every `pace_s` seconds until the warm-up ends; the number of runs it took.
template <typename TimeOf>
std::size_t warm(measure::WarmUp& warm_up, double pace_s, TimeOf time_of) {
  for (int run = 0; run < 100'000; ++run) {
    if (warm_up.add(time_of(run), pace_s * (run + 1))) break;
  }
  return warm_up.runs();
}

template <typename TimeOf>
Stop sample(measure::Sampling& sampling, double pace_s, TimeOf time_of) {
  Stop stop = Stop::no;
  for (int run = 0; run < 100'000 && stop == Stop::no; ++run) {
    stop = sampling.add(time_of(run), pace_s * (run + 1));
  }
  return stop;
}

}  // namespace

TEST_CASE("a steady kernel is warm after 5 runs and 100 ms, whichever is later") {
  measure::WarmUp slow;
  CHECK(warm(slow, 0.05, [](int) { return 50'000.0; }) == 5);
  CHECK(slow.settled());
  measure::WarmUp fast;
  CHECK(warm(fast, 0.001, [](int) { return 10.0; }) == 100);
  CHECK(fast.settled());
}

TEST_CASE("a kernel whose time still falls is not warm") {
  // 2 % faster with every run until run 60, steady from there; runs of 10 ms.
  measure::WarmUp warm_up;
  const auto runs =
      warm(warm_up, 0.01, [](int run) { return 100 * std::pow(0.98, std::min(run, 60)); });
  CHECK(warm_up.settled());
  CHECK(runs > 80);  // the later window lies whole in the steady part, so does half the earlier
  CHECK(runs < 200);
}

TEST_CASE("a warm-up that never settles is given up after 3 s") {
  measure::WarmUp warm_up;
  CHECK(warm(warm_up, 0.01, [](int run) { return 100 + run; }) == 300);
  CHECK_FALSE(warm_up.settled());
}

TEST_CASE("steady samples stop at the fewest") {
  measure::Sampling sampling(measure::StoppingRule::for_kernels());
  CHECK(sample(sampling, 1e-4, [](int) { return 12.0; }) == Stop::precise);
  CHECK(sampling.samples().size() == 30);
}

TEST_CASE("noisy samples go on until the median is known to half a per cent") {
  moesim::Stream stream({3, moesim::Purpose::test_data});
  measure::Sampling sampling(measure::StoppingRule::for_kernels());
  CHECK(sample(sampling, 1e-4, [&](int) { return 100 + 3 * stream.normal(); }) == Stop::precise);
  // The median of normal samples has the standard error 1.2533 sigma / sqrt(n): a half-width of
  // 0.5 = 1.96 x 1.2533 x 3 / sqrt(n) at n = 217.
  CHECK(sampling.samples().size() > 100);
  CHECK(sampling.samples().size() < 450);
}

TEST_CASE("collectives are content with two per cent") {
  moesim::Stream stream({3, moesim::Purpose::test_data});
  measure::Sampling sampling(measure::StoppingRule::for_collectives());
  CHECK(sample(sampling, 1e-4, [&](int) { return 100 + 3 * stream.normal(); }) == Stop::precise);
  CHECK(sampling.samples().size() <= 62);
}

TEST_CASE("a median between two modes is a plateau") {
  // Two modes 10 % apart, in turn: the interval of the median spans both, for any number of
  // samples.
  measure::Sampling sampling(measure::StoppingRule::for_kernels());
  CHECK(sample(sampling, 1e-4, [](int run) { return run % 2 == 0 ? 10.0 : 11.0; }) ==
        Stop::plateau);
  CHECK(sampling.samples().size() >= 256);
  CHECK(sampling.samples().size() < 256 + 16);
}

TEST_CASE("samples and time are limited") {
  measure::StoppingRule rule;
  rule.half_width = 0;       // never precise
  rule.plateau_fall = -1e9;  // never a plateau
  moesim::Stream stream({4, moesim::Purpose::test_data});
  measure::Sampling many(rule);
  CHECK(sample(many, 1e-6, [&](int) { return stream.uniform(); }) == Stop::most_samples);
  CHECK(many.samples().size() == 10'000);
  measure::Sampling slow(rule);
  CHECK(sample(slow, 1.0, [&](int) { return stream.uniform(); }) == Stop::time);
  CHECK(slow.samples().size() == 15);
}

TEST_CASE("the order of a sweep is a permutation that its seed decides") {
  const auto first = measure::shuffled_order(200, 1);
  CHECK(first == measure::shuffled_order(200, 1));
  CHECK(first != measure::shuffled_order(200, 2));
  CHECK(std::set<std::size_t>(first.begin(), first.end()).size() == 200);
  CHECK(*std::max_element(first.begin(), first.end()) == 199);
  CHECK_FALSE(std::is_sorted(first.begin(), first.end()));
  CHECK(measure::shuffled_order(0, 1).empty());
}
