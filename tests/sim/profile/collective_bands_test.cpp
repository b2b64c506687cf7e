#include "sim/profile/collective_curve.hpp"

#include <cmath>
#include <string>

#include "sim/profile/gpu_count_law.hpp"
#include "sim/profile/profile.hpp"
#include "tests/sim/profile/written_residual.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

const std::string shipped = std::string(MOESIM_SOURCE_DIR) + "/profiles/hardware/";
constexpr double mebibyte = 1024.0 * 1024.0;

}  // namespace

TEST_CASE("times and both ends of every band rise with size") {
  // Of measured counts, of those between them and of those by the law: a message takes no less than
  // a smaller one, whatever the errors of its region of sizes are.
  for (const std::string name : {"a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "b300-sxm",
                                 "gb200", "gb300", "l40s", "rtx-pro-6000"}) {
    const Profile profile = Profile::load(shipped + name + ".json");
    for (const auto& kind : collective_names) {
      for (const int gpus : {2, 3, 4, 6, 8, 12, 32, 72}) {
        if ((name == "l40s" && gpus > 4) || (name.front() != 'g' && gpus > 8)) continue;
        Estimate before;
        for (double bytes = 1; bytes < 4e10; bytes *= 1.15) {
          INFO(name << " " << kind.name << " gpus " << gpus << " bytes " << bytes);
          const Estimate estimate = profile.collective(kind.value, gpus, bytes);
          constexpr double rounding = 1e-12;
          CHECK(estimate.time_us >= before.time_us * (1 - rounding));
          CHECK(estimate.time_us_p05 >= before.time_us_p05 * (1 - rounding));
          CHECK(estimate.time_us_p95 >= before.time_us_p95 * (1 - rounding));
          CHECK(estimate.time_us_p05 <= estimate.time_us);
          CHECK(estimate.time_us_p95 >= estimate.time_us);
          before = estimate;
        }
      }
    }
  }
}

TEST_CASE("an end that would fall at a border of sizes stays, on its wider side") {
  const auto regions = [](const std::string& small, const std::string& large) {
    return R"({"by": "bytes", "median_abs": 0, "p90_abs": 0, "regions": [
      {"region": "a", "from": 0, "below": 1001, "median_abs": 0, "p90_abs": 0, "q05": -)" +
           small + R"(, "q95": )" + small + R"(},
      {"region": "b", "from": 1001, "below": null, "median_abs": 0, "p90_abs": 0, "q05": -)" +
           large + R"(, "q95": )" + large + "}]}";
  };
  const auto curve = [&](const std::string& small, const std::string& large) {
    return CollectiveCurve(Document::parse(R"({"op": "all-to-all", "params": {"nccl": "2.0"},
      "branches": [{"gpus": 2, "origin": "published", "bytes": [500, 1000, 2000, 4000],
                    "time_us": [99, 100, 101, 102]}],
      "measured_bytes": [500, 1000, 2000, 4000], "residual": )" +
                                               regions(small, large) + "}",
                                           "x.json")
                               .root());
  };
  // 50 % to 1000 bytes, 10 % above: 2000 bytes may take the 150 us of 1000.
  const CollectiveCurve narrowing = curve("0.5", "0.1");
  CHECK(narrowing.estimate(2, 1000).time_us_p95 == Approx(150));
  CHECK(narrowing.estimate(2, 1500).time_us_p95 == Approx(150));
  CHECK(narrowing.estimate(2, 4000).time_us_p95 == Approx(150));
  CHECK(narrowing.estimate(2, 8000).time_us_p95 == Approx(150));
  CHECK(narrowing.estimate(2, 4000).time_us_p05 == Approx(0.9 * 102));
  // 10 %, then 50 %: smaller messages may take as little as 2000 bytes do, 50.5 us.
  const CollectiveCurve widening = curve("0.1", "0.5");
  for (const double bytes : {500.0, 1000.0, 1500.0, 2000.0}) {
    CHECK(widening.estimate(2, bytes).time_us_p05 == Approx(0.5 * 101));
  }
  CHECK(widening.estimate(2, 1000).time_us_p95 == Approx(110));
}

TEST_CASE("between measured sizes a band lies between those beside it") {
  const CollectiveCurve curve(Document::parse(R"({"op": "all-to-all", "params": {"nccl": "2.0"},
      "branches": [{"gpus": 2, "origin": "published", "bytes": [500, 4000],
                    "time_us": [100, 101]}], "measured_bytes": [500, 4000], )" +
                                                  written_residual("residual", "0.5") + "," +
                                                  written_residual("residual_at_measured", "0.1") +
                                                  "}",
                                              "x.json")
                                  .root());
  // More than an octave from both sizes, where the fit is off by 50 %, a time lies between theirs.
  CHECK(curve.estimate(2, 1414).time_us_p95 == Approx(1.1 * 101).epsilon(0.006));
  CHECK(curve.estimate(2, 1414).time_us_p05 == Approx(0.9 * 100).epsilon(0.006));
}

TEST_CASE("sizes below a log of large ones do not widen its law's band") {
  NodeLinks links;
  links.kind = NodeLinks::Kind::nvlink_switch;
  links.port_bytes_per_us = 4.5e5;
  links.gpus = 8;
  const CollectiveCurve curve(Document::parse(R"({"op": "all-to-all", "params": {"nccl": "2.0"},
      "branches": [{"gpus": 4, "origin": "measured", "bytes": [1073741824, 2147483648],
                    "time_us": [2500, 5000]}], "measured_bytes": [1073741824, 2147483648], )" +
                                                  written_residual("residual", "0.02") + "}",
                                              "x.json")
                                  .root(),
                              links);
  // At 64 KiB, 14 octaves below, it would take 8 times the error of such sizes: up to 3.7 times as
  // long as 1 GiB.
  const Estimate estimate = curve.estimate(8, 1024 * mebibyte, true);
  CHECK(estimate.time_us_p95 ==
        Approx(estimate.time_us *
               (1 + errors_of_law(Collective::all_to_all, links.kind).regions().back().q95)));
}

TEST_CASE("latencies between GPU counts go by the count, bytes by the share that leaves a GPU") {
  // n GPUs: 10 us and 2 us a GPU; size (n - 1) / n at 1e3 B/us, so that as many bytes sent take as
  // long among any number.
  const auto branch = [](int gpus, const std::string& more) {
    std::string bytes, times;
    for (double size = 1024; size <= 1024 * mebibyte; size *= 4) {
      bytes += (bytes.empty() ? "" : ", ") + std::to_string(size);
      const double us = 10 + 2 * gpus + (size - 1024) * (gpus - 1) / gpus / 1e3;
      times += (times.empty() ? "" : ", ") + std::to_string(us);
    }
    return R"({"gpus": )" + std::to_string(gpus) + R"(, "origin": "published", "bytes": [)" +
           bytes + R"(], "time_us": [)" + times + "]" + more + "}";
  };
  const auto curve = [&](const std::string& eight) {
    return CollectiveCurve(Document::parse(R"({"op": "all-gather", "params": {"nccl": "2.0"},
      "branches": [)" + branch(4, "") + "," + branch(8, eight) +
                                               R"(], "measured_bytes": [1024, 1073741824], )" +
                                               written_residual("residual", "0.1") + "}",
                                           "x.json")
                               .root());
  };
  const CollectiveCurve measured = curve("");
  CHECK(measured.estimate(6, 512).time_us == Approx(10 + 2 * 6));
  // Half of the latency above 4 GPUs'; the bytes of both take as long, whatever their weights.
  CHECK(measured.estimate(6, 256 * mebibyte).time_us ==
        Approx(10 + 2 * 6 + 256 * mebibyte * 5 / 6 / 1e3).epsilon(1e-4));
  // Between measured counts the band is the hull of both.
  const double sent = 512 * 5.0 / 6;
  CHECK(measured.estimate(6, 512).time_us_p05 == measured.estimate(4, sent * 4 / 3).time_us_p05);
  CHECK(measured.estimate(6, 512).time_us_p95 == measured.estimate(8, sent * 8 / 7).time_us_p95);
  // Below a count by the law it grows from the one to the other: 10 and 40 %, by the count.
  const CollectiveCurve by_law = curve("," + written_residual("residual", "0.4"));
  const Estimate six = by_law.estimate(6, 1024);
  CHECK(six.time_us == Approx(22).epsilon(0.01));
  CHECK(six.time_us_p95 == Approx(0.5 * (1.1 * 18 + 1.4 * 26)).epsilon(0.02));
  CHECK(by_law.estimate(5, 1024).time_us_p95 < six.time_us_p95);
}
