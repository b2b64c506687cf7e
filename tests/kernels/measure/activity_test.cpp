#include "kernels/measure/timing/activity.hpp"

#include "sim/base/error.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
using measure::Trace;

// Two kernels that overlap by 2 us and one after a gap of 5 us: busy 10 + 8 + 4, sum 24, span 27.
TEST_CASE("a range's busy time is the union of its records") {
  Trace trace;
  trace.records = {{1000, 11'000, 1}, {9000, 19'000, 2}, {24'000, 28'000, 3}};
  trace.links = {{7, 1}, {7, 2}, {7, 3}};
  const auto activity = measure::join_activity(trace).at(7);
  CHECK(activity.launches == 3);
  CHECK(activity.busy_us == Approx(22));
  CHECK(activity.sum_us == Approx(24));
  CHECK(activity.span_us == Approx(27));
}

TEST_CASE("a record inside another adds nothing to the busy time") {
  Trace trace;
  trace.records = {{2000, 3000, 2}, {1000, 9000, 1}, {4000, 5000, 3}};
  trace.links = {{1, 1}, {1, 2}, {1, 3}};
  const auto activity = measure::join_activity(trace).at(1);
  CHECK(activity.busy_us == Approx(8));
  CHECK(activity.span_us == Approx(8));
  CHECK(activity.sum_us == Approx(10));
}

TEST_CASE("records go to the range of the call that launched them, whatever the order") {
  Trace trace;
  // A graph launches two kernels by one call (30); call 40 is in no range; call 50 launched
  // nothing.
  trace.records = {{5000, 6000, 30}, {1000, 2000, 20}, {7000, 9000, 30}, {100, 200, 40}};
  trace.links = {{2, 30}, {1, 20}, {2, 30}, {3, 50}};  // reported twice: runtime and driver
  const auto activities = measure::join_activity(trace);
  REQUIRE(activities.size() == 2);
  CHECK(activities.at(1).launches == 1);
  CHECK(activities.at(2).launches == 2);
  CHECK(activities.at(2).busy_us == Approx(3));
  CHECK(activities.at(2).span_us == Approx(4));
}

TEST_CASE("nested ranges both have their calls") {
  Trace trace;
  trace.records = {{0, 1000, 1}, {1000, 3000, 2}};
  trace.links = {{10, 1}, {10, 2}, {11, 2}};
  const auto activities = measure::join_activity(trace);
  CHECK(activities.at(10).sum_us == Approx(3));
  CHECK(activities.at(11).sum_us == Approx(2));
}

TEST_CASE("dropped or impossible records void the trace") {
  Trace trace;
  trace.records = {{0, 1000, 1}};
  trace.links = {{1, 1}};
  trace.dropped = 4;
  CHECK_THROWS_WITH(measure::join_activity(trace), ContainsSubstring("dropped 4 records"));
  trace.dropped = 0;
  trace.records[0].start_ns = 2000;
  CHECK_THROWS_WITH(measure::join_activity(trace), ContainsSubstring("ends before it starts"));
}

TEST_CASE("an empty trace has no ranges") { CHECK(measure::join_activity({}).empty()); }
