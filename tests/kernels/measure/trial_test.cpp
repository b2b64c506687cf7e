#include "kernels/measure/sessions/trial.hpp"

#include <algorithm>
#include <thread>

#include "kernels/measure/sessions/plan.hpp"
#include "kernels/measure/suites/suites.hpp"
#include "tests/kernels/measure/fake_device.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
using measure::testing::FakeDevice;

namespace {

measure::PointSpec some_point() {
  measure::PointSpec spec;
  spec.op = "memory";
  spec.params = {{"kernel", "streaming"}, {"bytes", 1 << 20}};
  return spec;
}

measure::Point measure_alone(FakeDevice& device) {
  measure::SoloGroup group;
  return measure::measure_point(device, group, some_point(), "memory", 1);
}

}  // namespace

TEST_CASE("a steady kernel gets its cold and its hot figure") {
  FakeDevice device([](const auto&) { return 50.0; });
  device.cold_extra_us = 4;
  const measure::Point point = measure_alone(device);
  REQUIRE(point.valid());
  CHECK(point.quality == measure::Quality::good);
  CHECK(point.cold->summary.median == Approx(54).epsilon(0.002));
  CHECK(point.hot->summary.median == Approx(50).epsilon(0.002));
  // At least 1 ms of hot calls: 1000 / 54 = 18.5.
  CHECK(point.hot->calls >= 19);
  CHECK(point.cold->samples.size() >= 30);
  CHECK(point.clock_mhz == 1980);
  CHECK(point.timer == "fake");
  CHECK(*point.time_us() == point.cold->summary.median);
}

TEST_CASE("a trace stands beside the times; a void one costs nothing else") {
  FakeDevice device([](const auto&) { return 50.0; });
  const measure::Point traced = measure_alone(device);
  REQUIRE(traced.activity);
  CHECK(traced.activity->launches == 2);
  CHECK(traced.activity->busy_us == 49);
  device.trace_error = "the tracer dropped 3 records";
  const measure::Point untraced = measure_alone(device);
  CHECK_FALSE(untraced.activity);
  CHECK(untraced.activity_trouble == device.trace_error);
  CHECK(untraced.cold->summary.median == Approx(50).epsilon(0.002));
}

TEST_CASE("under 20 us the headline is the hot figure") {
  FakeDevice device([](const auto&) { return 6.0; });
  device.cold_extra_us = 3;
  const measure::Point point = measure_alone(device);
  CHECK(*point.time_us() == point.hot->summary.median);
}

TEST_CASE("a wrong result before or after voids the point, and it has no figures") {
  const std::string label = some_point().label();
  for (const bool after : {false, true}) {
    CAPTURE(after);
    FakeDevice device([](const auto&) { return 50.0; });
    (after ? device.wrong_after : device.wrong_before)[label] = "element 7: 1.5, expected 2";
    const measure::Point point = measure_alone(device);
    CHECK_FALSE(point.valid());
    CHECK(point.verify == "element 7: 1.5, expected 2");
    CHECK_FALSE(point.cold);
    CHECK_FALSE(point.hot);
    CHECK_FALSE(point.time_us());
  }
}

TEST_CASE("runs at a fallen clock are dropped, a throttled device is marked") {
  FakeDevice device([](const auto&) { return 50.0; });
  device.clock_of_run = [](std::size_t run) { return run % 10 == 0 ? 1200.0 : 1980.0; };
  const measure::Point some = measure_alone(device);
  CHECK(some.quality == measure::Quality::good);
  CHECK(some.cold->dropped >= some.cold->samples.size() / 11);
  CHECK(some.cold->summary.n + some.cold->dropped == some.cold->samples.size());
  CHECK(some.cold->summary.p95 < 51);

  device.clock_of_run = [](std::size_t run) { return run % 3 == 0 ? 1200.0 : 1980.0; };
  CHECK(measure_alone(device).quality == measure::Quality::throttled);
}

TEST_CASE("a kernel that never settles is marked") {
  FakeDevice device([](const auto&) { return 50'000.0; });
  double clock = 1980;
  device.clock_of_run = [&clock](std::size_t) { return clock *= 0.98; };
  CHECK(measure_alone(device).quality != measure::Quality::good);
}

TEST_CASE("a point that heats the device first counts no sample before") {
  FakeDevice device([](const auto&) { return 50'000.0; });
  // The clock falls to 0.8 of what it was in the first two seconds, as at a power limit.
  device.clock_of_run = [&device](std::size_t) { return device.now_s() < 2 ? 1980 : 1584; };
  measure::PointSpec spec = some_point();
  spec.heat_s = 2.5;
  measure::SoloGroup group;
  const measure::Point point = measure::measure_point(device, group, spec, "sustained", 1);
  CHECK(point.cold->summary.median == Approx(50'000.0 / 0.8).epsilon(0.005));
  CHECK(point.clock_mhz == 1584);
  CHECK(point.quality == measure::Quality::good);
  CHECK(measure::estimate_seconds(spec, {}, {}) > 2.5);
}

TEST_CASE("a collective takes the slowest rank's time, and rank 0 says when it is enough") {
  constexpr int ranks = 4;
  measure::ThreadGroups groups(ranks);
  measure::PointSpec spec = some_point();
  spec.collective = true;
  std::vector<measure::Point> points(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      FakeDevice device([rank](const auto&) { return 100.0 + 10 * rank; });
      device.noise = rank == 2 ? 0.05 : 0.001;  // each rank alone would stop at another time
      points[static_cast<std::size_t>(rank)] =
          measure::measure_point(device, groups.member(rank), spec, "collectives", 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const measure::Point& point : points) {
    REQUIRE(point.valid());
    CHECK(point.cold->samples == points[0].cold->samples);
    CHECK(point.cold->summary.median == Approx(130).epsilon(0.02));
    CHECK(point.skew->median == Approx(30).margin(3));
    CHECK_FALSE(point.hot);
  }
}

TEST_CASE("a collective on one throttled GPU is marked, whichever rank has it") {
  constexpr int ranks = 2;
  measure::PointSpec spec = some_point();
  spec.collective = true;
  std::vector<measure::Point> points(ranks);
  measure::run_in_threads(ranks, [&](measure::Group& group) {
    FakeDevice device([](const auto&) { return 100.0; });
    if (group.rank() == 1) {
      device.clock_of_run = [](std::size_t run) { return run % 3 == 0 ? 1200.0 : 1980.0; };
    }
    points[static_cast<std::size_t>(group.rank())] =
        measure::measure_point(device, group, spec, "collectives", 1);
  });
  for (const measure::Point& point : points) {
    CHECK(point.quality == measure::Quality::throttled);
    CHECK(point.clock_mhz == points[0].clock_mhz);
  }
}

namespace {

// Exchanges of `each_us`, `calls` in a sample; this rank is released `early_us` before the last one
// and waits for it in the first call.
class ManyCalls : public measure::Workload {
 public:
  ManyCalls(double each_us, std::size_t calls, double early_us)
      : run_{each_us + early_us / static_cast<double>(calls), 0, calls, true} {}
  std::string verify() override { return ""; }
  measure::Run cold() override { return run_; }
  double hot(std::size_t) override { return 0; }
  bool has_hot() const override { return false; }
  std::string timer() const override { return "fake"; }

 private:
  measure::Run run_;
};

class ManyCallsDevice : public FakeDevice {
 public:
  ManyCallsDevice(std::size_t calls, double early_us)
      : FakeDevice([](const auto&) { return 1.0; }), calls_(calls), early_us_(early_us) {}
  double now_s() const override { return 1e-3 * static_cast<double>(++asked_); }
  std::unique_ptr<measure::Workload> prepare(const measure::PointSpec&, std::uint64_t) override {
    return std::make_unique<ManyCalls>(12, calls_, early_us_);
  }

 private:
  std::size_t calls_;
  double early_us_;
  mutable int asked_ = 0;
};

}  // namespace

TEST_CASE("many exchanges in a sample share out how far apart the ranks began") {
  for (const std::size_t calls : {std::size_t{1}, std::size_t{20}, std::size_t{100}}) {
    CAPTURE(calls);
    measure::ThreadGroups groups(2);
    measure::PointSpec spec = some_point();
    spec.collective = true;
    std::vector<measure::Point> points(2);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        ManyCallsDevice device(calls, rank == 0 ? 8 : 0);
        points[static_cast<std::size_t>(rank)] =
            measure::measure_point(device, groups.member(rank), spec, "collectives", 1);
      });
    }
    for (std::thread& thread : threads) thread.join();
    // 12 us each; rank 0 waits 8 us more in the first.
    CHECK(points[0].cold->summary.median == Approx(12 + 8.0 / static_cast<double>(calls)));
    CHECK(points[0].cold->calls == calls);
    CHECK(points[0].skew->least == Approx(12));
    CHECK(points[0].skew->median == Approx(8));
  }
}

TEST_CASE("runs whose stream freed itself do not count, and too many of them are no measurement") {
  FakeDevice device([](const auto&) { return 50.0; });
  std::size_t runs = 0, unheld = 0;
  device.held = [&](std::size_t run) {
    runs = run + 1;
    // Some 1,400 runs are the warm-up's: one of them, and some samples.
    const bool bad = run == 3 || (run > 1400 && run % 10 == 3 && unheld < 9);
    unheld += bad ? 1 : 0;
    return !bad;
  };
  device.noise = 0.02;
  const auto start = measure_alone(device);
  CHECK(start.cold->summary.median == Approx(50).epsilon(0.02));
  CHECK(*std::max_element(start.cold->samples.begin(), start.cold->samples.end()) < 60);
  CHECK(runs > 1430);
  CHECK(unheld >= 4);
  device.held = [](std::size_t run) { return run % 2 == 0; };
  CHECK_THROWS_AS(measure_alone(device), measure::NotMeasurable);
  CHECK_THROWS_WITH(measure_alone(device), ContainsSubstring("is the machine busy?"));
}

TEST_CASE("exchanges of ranks that share a GPU are not measured for long") {
  measure::PointSpec spec = some_point();
  spec.collective = true;
  const auto seconds = [&spec](bool shared) {
    FakeDevice device([](const auto&) { return 20'000.0; });
    device.noise = 0.3;  // never precise
    device.shared = shared;
    measure::SoloGroup group;
    const auto point = measure::measure_point(device, group, spec, "collectives", 1);
    CHECK(point.valid());
    CHECK(point.synthetic == shared);
    return device.now_s();
  };
  CHECK(seconds(true) < 2.1);  // a second each of warm-up and samples
  CHECK(seconds(false) > 5);
}

TEST_CASE("a rank that fails in an exchange says so before its memory is freed") {
  // Freeing waits for the exchange, in which the other rank waits for this one.
  measure::ThreadGroups groups(2);
  measure::PointSpec spec = some_point();
  spec.collective = true;
  std::string heard_at_end;
  class Failing : public measure::Workload {
   public:
    Failing(measure::Group& group, std::string& heard) : group_(group), heard_(heard) {}
    ~Failing() override { heard_ = group_.lost(); }
    std::string verify() override { return ""; }
    measure::Run cold() override { throw measure::OutOfDeviceMemory("12 MiB are free"); }
    double hot(std::size_t) override { return 0; }
    std::string timer() const override { return "fake"; }

   private:
    measure::Group& group_;
    std::string& heard_;
  };
  class FailingDevice : public FakeDevice {
   public:
    FailingDevice(measure::Group& group, std::string& heard)
        : FakeDevice([](const auto&) { return 1.0; }), group_(group), heard_(heard) {}
    std::unique_ptr<measure::Workload> prepare(const measure::PointSpec&, std::uint64_t) override {
      return std::make_unique<Failing>(group_, heard_);
    }

   private:
    measure::Group& group_;
    std::string& heard_;
  };
  std::string heard_by_other;
  std::thread other([&] {
    FakeDevice device([](const auto&) { return 1.0; });
    try {
      measure::measure_point(device, groups.member(0), spec, "collectives", 1);
    } catch (const moesim::Error& error) {
      heard_by_other = error.what();
    }
  });
  FailingDevice device(groups.member(0), heard_at_end);
  CHECK_THROWS_AS(measure::measure_point(device, groups.member(1), spec, "collectives", 1),
                  measure::DeviceFailed);
  groups.abandon(1, "without a word");  // so that the other ends in any case
  other.join();
  CHECK(heard_at_end == "rank 1 is gone: in the middle of an exchange: 12 MiB are free");
  CHECK(heard_by_other == heard_at_end);
}

TEST_CASE("if one rank cannot prepare a collective, all ranks hear of it") {
  measure::ThreadGroups groups(2);
  measure::PointSpec spec = some_point();
  spec.collective = true;
  std::vector<std::string> heard(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      FakeDevice device([](const auto&) { return 1.0; });
      if (rank == 1) device.no_memory[spec.label()] = "2 GiB asked, 1 GiB free";
      try {
        measure::measure_point(device, groups.member(rank), spec, "collectives", 1);
      } catch (const measure::OutOfDeviceMemory& error) {
        heard[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(heard[0] == "2 GiB asked, 1 GiB free");
  CHECK(heard[1] == heard[0]);
}

TEST_CASE("a rank that leaves ends the others' waiting") {
  measure::ThreadGroups groups(2);
  std::string heard;
  std::thread waiting([&] {
    try {
      groups.member(0).barrier();
    } catch (const moesim::Error& error) {
      heard = error.what();
    }
  });
  groups.abandon(1, "an illegal address was read");
  waiting.join();
  CHECK(heard == "rank 1 is gone: an illegal address was read");
}
