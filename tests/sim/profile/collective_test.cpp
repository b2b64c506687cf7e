#include <cmath>
#include <string>
#include <vector>

#include "sim/base/error.hpp"
#include "sim/profile/collective_curve.hpp"
#include "sim/profile/gpu_count_law.hpp"
#include "sim/profile/profile.hpp"
#include "tests/sim/profile/written_residual.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::profile;

namespace {

const std::string shipped = std::string(MOESIM_SOURCE_DIR) + "/profiles/hardware/";
constexpr double mebibyte = 1024.0 * 1024.0;

// Two GPUs: 10 us and 1 byte per us beyond 100 bytes; four: 20 us and as steep. +-10 %.
CollectiveCurve simple(const std::string& more = "", const NodeLinks& links = {}) {
  const std::string text = R"({
    "op": "all-to-all", "params": {"nccl": "2.0"}, "default": true,
    "branches": [
      {"gpus": 2, "origin": "published", "bytes": [100, 200], "time_us": [10, 110]},
      {"gpus": 4, "origin": "published", "bytes": [100, 200], "time_us": [20, 120]}],
    "measured_bytes": [100, 200], )" +
                           written_residual("residual", "0.1") + more + "}";
  return CollectiveCurve(Document::parse(text, "x.json").root(), links);
}

}  // namespace

TEST_CASE("a GPU count between two is interpolated at equal bytes sent") {
  // Three GPUs and 300 bytes: each sends 200. Two GPUs send 200 of 400: 10 + 300 us. Four send 200
  // of 266.67: 20 + 166.67 us. Latencies lie half way, 15 us; the rest two thirds of it, as 2/3
  // lies between 1/2 and 3/4 of a GPU's bytes that leave it.
  const Estimate estimate = simple().estimate(3, 300);
  CHECK(estimate.time_us == Approx(15 + 300.0 / 3 + (800.0 / 3 - 100) * 2 / 3));
  CHECK(estimate.origin == Origin::derived);
}

TEST_CASE("an exchange says whether its size was measured") {
  const CollectiveCurve curve = simple();
  CHECK(curve.estimate(2, 100).support == Support::measured_point);
  CHECK(curve.estimate(2, 150).support == Support::interpolated);
  CHECK(curve.estimate(2, 201).support == Support::extrapolated);
  CHECK(curve.estimate(2, 99).support == Support::extrapolated);
  CHECK(curve.estimate(2, 99).time_us == 10);      // the latency floor
  CHECK(curve.estimate(2, 1100).time_us == 1010);  // constant bandwidth
  // Wider than the +-10 % of the measured range: two octaves beyond it.
  const Estimate far = curve.estimate(2, 800);
  CHECK(far.time_us_p95 == Approx(far.time_us * 1.2));
}

TEST_CASE("the error bar grows with the distance to the next measured size") {
  // Fitted sizes are +-2 %, a size one octave from any is +-10 %.
  const CollectiveCurve curve = simple(", " + written_residual("residual_at_measured", "0.02"));
  const auto bar = [&curve](double bytes) {
    const Estimate estimate = curve.estimate(2, bytes);
    return estimate.time_us_p95 / estimate.time_us - 1;
  };
  CHECK(bar(100) == Approx(0.02));
  CHECK(bar(200) == Approx(0.02));
  CHECK(bar(100 * std::sqrt(2.0)) == Approx(0.06));  // half an octave from both
  CHECK(bar(400) == Approx(0.15));                   // one octave beyond: 10 % half as wide again
}

TEST_CASE("one GPU does not communicate, and more than the node has were not measured") {
  CHECK_THROWS_AS(simple().estimate(1, 100), UsageError);
  CHECK_THROWS_WITH(simple().estimate(1, 100), ContainsSubstring("not communication"));
  CHECK_THROWS_WITH(simple().estimate(8, 100),
                    ContainsSubstring("knows 2, 4 GPUs") && ContainsSubstring("cluster"));
  CHECK_THROWS_AS(simple().estimate(2, 0), UsageError);
  CHECK_THROWS_AS(simple().estimate(2, -1), UsageError);
}

TEST_CASE("a GPU count that no machine has is refused") {
  // Beyond 2^31 it was cut to a negative one, from which a law counted up.
  for (const std::string count : {"1048577", "2147483647", "2147483649"}) {
    CHECK_THROWS_WITH(simple(R"(, "branches": [{"gpus": )" + count +
                             R"(, "origin": "published", "bytes": [1, 2], "time_us": [1, 2]}])"),
                      ContainsSubstring("/branches/0/gpus: " + count + " GPUs: at most 1048576"));
  }
}

TEST_CASE("a tail has knots and errors of its own") {
  // Twice as fast beyond 200 bytes, up to 400.
  const std::string text = R"({
    "op": "all-to-all", "params": {"nccl": "2.0"}, "default": true, "measured_bytes": [100, 200],
    "branches": [{"gpus": 2, "origin": "published", "bytes": [100, 200, 400],
                  "time_us": [10, 110, 210]}], )" +
                           written_residual("residual", "0.1") + R"(, "tail": {"note": "test", )" +
                           written_residual("residual", "0.3") + "}}";
  const CollectiveCurve curve(Document::parse(text, "x.json").root());
  const Estimate inside = curve.estimate(2, 200);
  CHECK(inside.time_us_p95 == Approx(1.1 * 110));
  const Estimate tail = curve.estimate(2, 400);
  CHECK(tail.time_us == Approx(210));
  CHECK(tail.time_us_p95 == Approx(1.3 * 210));
  CHECK(tail.support == Support::extrapolated);
  // An octave behind the last knot: half as wide again.
  CHECK(curve.estimate(2, 800).time_us_p95 == Approx((1 + 0.3 * 1.5) * 410));
}

TEST_CASE("scatter between runs adds in squares, and a switch covers both sides") {
  const std::string scatter = R"(, "scatter": {)" + written_residual("any_version", "0.2") + "," +
                              written_residual("same_version", "0.1") + "}";
  const CollectiveCurve curve = simple(scatter);
  // At 150 bytes 60 us, the errors of the curve 10 % and of another specimen 10 %.
  const Estimate same = curve.estimate(2, 150, true);
  CHECK(same.time_us_p95 == Approx(60 * std::exp(std::sqrt(2.0) * std::log(1.1))));
  CHECK(same.time_us_p05 == Approx(60 * std::exp(std::sqrt(2.0) * std::log(0.9))));
  // Under another version 20 %; the curve lies above the line in log-log from 75 to 300 bytes, 10
  // and 210 us: 60 / sqrt(10 * 210) = 1.309. The bar reaches down to that line, no further up.
  const Estimate any = curve.estimate(2, 150);
  const double up = std::hypot(std::log(1.1), std::log(1.2));
  const double down = std::hypot(std::log(0.9), std::log(0.8));
  CHECK(any.time_us_p95 == Approx(60 * std::exp(up)));
  CHECK(any.time_us_p05 == Approx(60 * std::exp(-down) / (60 / std::sqrt(10.0 * 210))));
  // At 100 bytes it lies below: 10 us against the line from 10 to 110.
  CHECK(curve.estimate(2, 100).time_us_p95 ==
        Approx(10 * std::exp(up) * std::sqrt(10.0 * 110) / 10));
}

TEST_CASE("a GPU count derived from a sibling has its own errors, by version") {
  const auto branch = [](int gpus, const std::string& more) {
    return R"({"gpus": )" + std::to_string(gpus) +
           R"(, "origin": "derived", "bytes": [100, 200], "time_us": [30, 130])" + more + "}";
  };
  const std::string own = ", " + written_residual("residual", "0.4") + ", " +
                          written_residual("residual_same_version", "0.3");
  const std::string text =
      R"({"op": "all-to-all", "params": {"nccl": "2.0"}, "measured_bytes": [100, 200],
          "branches": [)" +
      branch(4, "") + "," + branch(8, own) + "," + branch(16, own) + "], " +
      written_residual("residual", "0.1") + R"(, "scatter": {)" +
      written_residual("any_version", "0.2") + "," + written_residual("same_version", "0.1") + "}}";
  const CollectiveCurve curve(Document::parse(text, "x.json").root());
  CHECK(curve.estimate(8, 200, true).time_us_p95 == Approx(1.3 * 130));
  // 80 us lie below the line from 30 at 75 bytes to 230 at 300: the bar starts there.
  CHECK(curve.estimate(8, 150).time_us_p95 == Approx(1.4 * std::max(80.0, std::sqrt(30.0 * 230))));
  CHECK(curve.estimate(8, 200).support == Support::interpolated);
  CHECK(curve.estimate(16, 200).support == Support::extrapolated);
}

TEST_CASE("between two derived GPU counts the band lies between theirs") {
  const auto branch = [](const std::string& gpus, const std::string& times,
                         const std::string& bar) {
    return R"({"gpus": )" + gpus + R"(, "origin": "derived", "bytes": [100, 200], "time_us": )" +
           times + ", " + written_residual("residual", bar) + "}";
  };
  const std::string text =
      R"({"op": "all-gather", "params": {"nccl": "2.0"}, "measured_bytes": [100, 200],
          "branches": [)" +
      branch("8", "[70, 90]", "0.1") + "," + branch("16", "[150, 190]", "0.2") + "], " +
      written_residual("residual", "0.1") + "}";
  const CollectiveCurve curve(Document::parse(text, "x.json").root());
  // 12 GPUs at 100 bytes send as much as 8 at 104.76 bytes and 16 at 97.78, half way between: 70.95
  // +- 7.095 us and, below the first knot, 150 +- 30 us. The neighbours' hull would be 64 to 180
  // us.
  const double few = 70 + 20 * (100.0 * 11 / 12 * 8 / 7 - 100) / 100;
  const Estimate twelve = curve.estimate(12, 100, true);
  // What the bytes take by the share that is sent: 11/12 is two thirds of the way from 7/8 to
  // 15/16.
  CHECK(twelve.time_us == Approx(0.5 * (70 + 150) + (few - 70) / 3));
  // Outside the measured sizes bars widen with the distance: by less than 2 % here.
  CHECK(twelve.time_us_p05 == Approx(0.5 * (0.9 * few + 0.8 * 150)).epsilon(0.02));
  CHECK(twelve.time_us_p95 == Approx(0.5 * (1.1 * few + 1.2 * 150)).epsilon(0.02));
}

TEST_CASE("large rings of a rack have one bandwidth, whatever the number of GPUs") {
  // At 16 GiB the slowest link decides: latencies of 71 steps are below 1 % of 20 ms. Where the
  // switch reduces, an all-reduce takes as long among any number.
  for (const std::string name : {"gb200", "gb300"}) {
    const Profile profile = Profile::load(shipped + name + ".json");
    const auto rate = [&](Collective kind, int gpus) {
      const double size = 16384 * mebibyte;
      return size * sent_share(kind, gpus, true) / profile.collective(kind, gpus, size).time_us;
    };
    for (const Collective kind :
         {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
      for (const int gpus : {12, 16, 24, 32, 36, 48, 64, 72}) {
        INFO(name << " " << name_of(kind) << " gpus " << gpus);
        CHECK(rate(kind, gpus) == Approx(rate(kind, 8)).epsilon(0.035));
      }
    }
  }
}

TEST_CASE("bands of a rack widen with the distance from the measured GPU counts") {
  const Profile profile = Profile::load(shipped + "gb200.json");
  for (const Collective kind :
       {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce}) {
    for (const double size : {mebibyte / 256, 128 * mebibyte, 2048 * mebibyte, 16384 * mebibyte}) {
      double before = 0;
      for (const int gpus : {8, 12, 16, 24, 32, 36, 48, 64, 72}) {
        INFO(name_of(kind) << " gpus " << gpus << " bytes " << size);
        const Estimate estimate = profile.collective(kind, gpus, size, "2.29.2");
        const double width = std::log(estimate.time_us_p95 / estimate.time_us_p05);
        CHECK(width > before);
        before = 0.98 * width;  // the low end of each is raised to what fewer GPUs take
      }
    }
  }
}

TEST_CASE("fewer GPUs that take longer do not raise the low end of more") {
  // Eight GPUs of an H200 reduce in the switch, four did not when they were measured.
  const Profile h200 = Profile::load("h200-sxm");
  const auto at = [&](int gpus) {
    return h200.collective(Collective::all_reduce, gpus, 256 * mebibyte);
  };
  REQUIRE(at(4).time_us > at(8).time_us);
  CHECK(at(8).time_us_p05 < 0.99 * at(8).time_us);
}

TEST_CASE("a law answers for more GPUs, marked derived, with its own error bar") {
  NodeLinks links;
  links.kind = NodeLinks::Kind::nvlink_switch;
  links.port_bytes_per_us = 1e5;
  const auto law = [](const std::string& up_to) {
    return R"(, "law": {"up_to": )" + up_to + R"(, "note": "test", )" +
           written_residual("residual", "0.2") + "}";
  };
  const CollectiveCurve curve = simple(law("16"), links);
  CHECK(curve.gpu_counts() == std::vector<int>{2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
  // 200 B among 8: 25 B per peer, as of 100 B among 4: 20 us, and 4 more peers at 0.075 us.
  const Estimate eight = curve.estimate(8, 200);
  CHECK(eight.time_us == Approx(20.3));
  CHECK(eight.origin == Origin::derived);
  CHECK(eight.support == Support::interpolated);
  CHECK(eight.time_us_p95 == Approx(20.3 * 1.2));
  // Another doubling of the count was not checked: half as wide again.
  const Estimate sixteen = curve.estimate(16, 200);
  CHECK(sixteen.support == Support::extrapolated);
  CHECK(sixteen.time_us_p95 == Approx(sixteen.time_us * 1.3));
  CHECK_THROWS_WITH(curve.estimate(17, 200), ContainsSubstring("cluster"));
  CHECK_THROWS_WITH(simple(law("4"), links), ContainsSubstring("up_to"));
  CHECK_THROWS_WITH(simple(law("8")), ContainsSubstring("topology"));
}

TEST_CASE("without a law of its own a curve goes as far as its GPUs are joined") {
  NodeLinks links;
  links.kind = NodeLinks::Kind::nvlink_switch;
  links.port_bytes_per_us = 1e5;
  links.gpus = 8;
  const CollectiveCurve curve = simple("", links);
  const Estimate eight = curve.estimate(8, 200);
  CHECK(eight.time_us == Approx(20.3));  // as above
  CHECK(eight.origin == Origin::derived);
  const Residual law = errors_of_law(Collective::all_to_all, NodeLinks::Kind::nvlink_switch);
  CHECK(eight.time_us_p95 == Approx(20.3 * (1 + law.regions().front().q95)));
  CHECK_THROWS_WITH(curve.estimate(9, 200), ContainsSubstring("cluster"));
  // Over PCIe not past the measured GPUs, unless the link between groups of them is known.
  links.kind = NodeLinks::Kind::pcie;
  CHECK(simple("", links).gpu_counts().back() == 4);
  links.group = 4;
  links.group_bytes_per_us = 1e4;
  CHECK(simple("", links).gpu_counts().back() == 8);
}

TEST_CASE("shipped exchanges grow with size and stay below the links' bandwidth") {
  for (const std::string name : {"a100-sxm-80gb", "h100-sxm", "h200-sxm", "b200-sxm", "gb200"}) {
    const Profile profile = Profile::load(shipped + name + ".json");
    const double link = profile.device().nvlink_bandwidth.bytes_per_second;
    for (const Collective kind : {Collective::all_to_all, Collective::all_gather}) {
      for (const int gpus : {2, 3, 4, 5, 6, 7, 8}) {
        double before = 0;
        for (double bytes = 128; bytes < 4e9; bytes *= 1.37) {
          INFO(name << " " << name_of(kind) << " gpus " << gpus << " bytes " << bytes);
          const Estimate estimate = profile.collective(kind, gpus, bytes);
          CHECK(estimate.time_us >= before);
          CHECK(estimate.time_us_p05 <= estimate.time_us);
          CHECK(estimate.time_us_p95 >= estimate.time_us);
          // Each rank sends bytes (n - 1) / n over its links.
          CHECK(bytes * (gpus - 1) / gpus / (estimate.time_us * 1e-6) < link);
          before = estimate.time_us;
        }
      }
    }
  }
}

TEST_CASE("what was not measured is marked") {
  const Profile h200 = Profile::load(shipped + "h200-sxm.json");
  CHECK(h200.collective(Collective::all_to_all, 4, 64 * mebibyte).origin == Origin::published);
  CHECK(h200.collective(Collective::all_to_all, 8, 64 * mebibyte).origin == Origin::derived);
  const Profile h100 = Profile::load(shipped + "h100-sxm.json");
  CHECK(h100.collective(Collective::all_to_all, 8, 64 * mebibyte).origin == Origin::published);
  CHECK(h100.collective(Collective::all_to_all, 8, 64 * mebibyte).support ==
        Support::measured_point);
  // The derived curve is lent by a sibling: its bar is as wide as the scatter of a measured
  // machine, less the error of the fit at measured points (0.02 %).
  const Estimate derived = h200.collective(Collective::all_to_all, 8, 64 * mebibyte);
  const Estimate known = h100.collective(Collective::all_to_all, 8, 64 * mebibyte);
  CHECK(derived.time_us_p95 / derived.time_us > 0.999 * known.time_us_p95 / known.time_us);
}

// No narrower than other runs of a measured count under the same NCCL lie apart: that has the error
// of its fit besides, up to 2 % here.
TEST_CASE("with the version named a sibling lends no narrower band than a measured count has") {
  const Profile h200 = Profile::load(shipped + "h200-sxm.json");
  for (const auto& [kind, bytes] : {std::pair(Collective::all_to_all, 4096.0),
                                    std::pair(Collective::all_reduce, 64.0 * mebibyte)}) {
    CAPTURE(name_of(kind), bytes);
    const Estimate lent = h200.collective(kind, 8, bytes, "2.29.2");
    const Estimate measured = h200.collective(kind, 4, bytes, "2.29.2");
    CHECK(lent.time_us_p95 / lent.time_us > 0.98 * measured.time_us_p95 / measured.time_us);
    CHECK(lent.time_us_p05 / lent.time_us < 1.02 * measured.time_us_p05 / measured.time_us);
  }
}

TEST_CASE("a profile of exchanges alone answers them, and says what it lacks") {
  const Profile gb200 = Profile::load(shipped + "gb200.json");
  CHECK(gb200.device().gpus_per_node == 72);
  CHECK(gb200.collective(Collective::all_to_all, 4, mebibyte).origin == Origin::published);
  CHECK(gb200.collective(Collective::all_to_all, 8, mebibyte).support == Support::interpolated);
  CHECK(gb200.collective(Collective::all_gather, 72, mebibyte).support == Support::extrapolated);
  // Over PCIe nothing is said of more GPUs than the measured box has.
  const Profile l40s = Profile::load(shipped + "l40s.json");
  CHECK_THROWS_WITH(l40s.gemm(1024, 1024, 1024), ContainsSubstring("l40s") &&
                                                     ContainsSubstring("gemm") &&
                                                     ContainsSubstring("exchanges alone"));
  CHECK_THROWS_WITH(l40s.attention({1, 1024, 8, 8, 128}, false), ContainsSubstring("attention"));
  CHECK_THROWS_WITH(l40s.memory(1e6), ContainsSubstring("exchanges alone"));
  CHECK_THROWS_WITH(l40s.permute(1, 1, 1), ContainsSubstring("exchanges alone"));
  CHECK(l40s.device().nvlink_bandwidth.bytes_per_second == 0);
  CHECK_THROWS_WITH(l40s.collective(Collective::all_to_all, 8, mebibyte),
                    ContainsSubstring("knows 2, 4 GPUs") && ContainsSubstring("over PCIe") &&
                        ContainsSubstring("moesim import"));
}

TEST_CASE("another NCCL version is another curve") {
  const Profile profile = Profile::load(shipped + "h100-sxm.json");
  const Estimate usual = profile.collective(Collective::all_to_all, 4, 512 * mebibyte);
  const Estimate named = profile.collective(Collective::all_to_all, 4, 512 * mebibyte, "2.27.3");
  CHECK(usual.time_us == named.time_us);
  // 4 GPUs, 512 MiB: 1212 us under 2.27.3, 1395 us under 2.29.2 (nccl-tests).
  CHECK(usual.time_us == Approx(1212).epsilon(0.03));
  CHECK(profile.collective(Collective::all_to_all, 4, 512 * mebibyte, "2.29.2").time_us ==
        Approx(1395).epsilon(0.03));
  CHECK_THROWS_WITH(
      profile.collective(Collective::all_to_all, 4, mebibyte, "1.0"),
      ContainsSubstring("2.23") && ContainsSubstring("2.27.3") && ContainsSubstring("2.29.2"));
}

// Two GPUs kept from a curve of another version, with 10 %, scatter, a tail and sizes of its own;
// four measured, without. What holds for one does not hold for the other.
TEST_CASE("a branch kept from another curve has the errors, sizes and version of that one") {
  const std::string from =
      R"("from_curve": {"nccl": "1.9", )" + written_residual("residual", "0.1") + "," +
      written_residual("residual_at_measured", "0.02") + R"(, "scatter": {)" +
      written_residual("any_version", "0.2") + "," + written_residual("same_version", "0.01") +
      R"(}, "tail": {"note": "test", )" + written_residual("residual", "0.3") + "}}";
  const std::string text =
      R"({"op": "all-to-all", "params": {"nccl": "2.0"}, "measured_bytes": [100, 200, 400],
          "branches": [
            {"gpus": 2, "origin": "published", "bytes": [100, 200, 800],
             "time_us": [10, 110, 710], "measured_bytes": [100, 200], )" +
      from + R"(},
            {"gpus": 4, "origin": "measured", "bytes": [100, 400], "time_us": [20, 320],
             "measured_bytes": [100, 400]}], )" +
      written_residual("residual", "0.08") + "," + written_residual("residual_at_measured", "0") +
      "}";
  const CollectiveCurve curve(Document::parse(text, "x.json").root());
  const auto up = [&](int gpus, double bytes, bool same) {
    const Estimate estimate = curve.estimate(gpus, bytes, same);
    return std::log(estimate.time_us_p95 / estimate.time_us);
  };
  // At 200 bytes 2 % and 20 % of another version, which that of the curve is, too.
  const double bar = std::hypot(std::log(1.02), std::log(1.2));
  CHECK(up(2, 200, false) == Approx(bar));
  CHECK(up(2, 200, true) == Approx(bar));
  CHECK(curve.estimate(2, 200).support == Support::measured_point);
  CHECK(curve.estimate(2, 200).origin == Origin::published);
  CHECK(curve.estimate(2, 200, true).support == Support::interpolated);
  CHECK(curve.estimate(2, 200, true).origin == Origin::derived);
  // 400 bytes are in the tail of the one and a measured size of the other.
  CHECK(curve.estimate(2, 400).support == Support::extrapolated);
  CHECK(up(2, 400, false) > std::hypot(std::log(1.3), std::log(1.2)) - 1e-9);
  CHECK(curve.estimate(4, 400, true).support == Support::measured_point);
  CHECK(up(4, 400, false) == Approx(std::log(1 + another_day)));
  CHECK(curve.estimate(4, 200).support == Support::interpolated);
  CHECK(up(4, 200, false) == Approx(std::log(1.08)));
}

TEST_CASE("outside the measured sizes a band reaches to both readings of what was carried over") {
  const auto with = [](const std::string& beyond) {
    const std::string text = R"({
      "op": "all-to-all", "params": {"nccl": "2.0"}, "default": true,
      "branches": [{"gpus": 2, "origin": "derived", "bytes": [100, 200, 400, 800],
                    "time_us": [10, 20, 40, 80], "measured_bytes": [100, 200], "beyond": )" +
                             beyond + R"(}],
      "measured_bytes": [100, 200], )" +
                             written_residual("residual", "0.1") + "}";
    return CollectiveCurve(Document::parse(text, "x.json").root());
  };
  const CollectiveCurve curve =
      with(R"({"bytes": [400, 800], "low_us": [40, 20], "high_us": [60, 160]})");
  // Inside nothing changes, nor at the edge.
  CHECK(curve.estimate(2, 200).time_us_p95 == Approx(22));
  CHECK(curve.estimate(2, 200.001).time_us_p95 == Approx(22).epsilon(1e-4));
  // An octave beyond 15 % to either side, and readings from 1 to 1.5 times 40 us.
  const Estimate twice = curve.estimate(2, 400);
  CHECK(twice.time_us == Approx(40));
  CHECK(twice.time_us_p95 == Approx(40 * std::exp(std::hypot(std::log(1.15), std::log(1.5)))));
  CHECK(twice.time_us_p05 == Approx(40 * std::pow(0.9, 1.5)));
  // Two octaves: 20 % to either side, a quarter to twice. Beyond the last knot as there.
  const Estimate most = curve.estimate(2, 800);
  CHECK(most.time_us_p95 == Approx(80 * std::exp(std::hypot(std::log(1.2), std::log(2.0)))));
  CHECK(most.time_us_p05 == Approx(80 * std::exp(-std::hypot(std::log(0.81), std::log(4.0)))));
  CHECK(curve.estimate(2, 1600).time_us_p95 / 160 >= most.time_us_p95 / 80);
  CHECK_THROWS_WITH(with(R"({"bytes": [400], "low_us": [41], "high_us": [60]})"),
                    ContainsSubstring("must enclose 40 us"));
  CHECK_THROWS_WITH(with(R"({"bytes": [400], "low_us": [40, 40], "high_us": [60]})"),
                    ContainsSubstring("as many times as there are sizes"));
}

TEST_CASE("a branch without measured sizes, or from a curve without errors, is refused") {
  const auto wrong = [](const std::string& more) {
    return simple(R"(, "branches": [{"gpus": 2, "origin": "published", "bytes": [100, 200],
                                     "time_us": [10, 110], )" +
                  more + "}]");
  };
  CHECK_THROWS_WITH(wrong(R"("measured_bytes": [])"),
                    ContainsSubstring("/branches/0/measured_bytes: expected at least one size"));
  const std::string sizes = R"("measured_bytes": [100, 200], "measured_time_us": )";
  CHECK_THROWS_WITH(
      wrong(sizes + "[30]"),
      ContainsSubstring("/branches/0/measured_time_us: expected as many times as there are sizes"));
  CHECK_THROWS_WITH(wrong(sizes + "[30, 0]"), ContainsSubstring("times must be positive"));
  CHECK_THROWS_WITH(wrong(R"("from_curve": {"nccl": "1"})"),
                    ContainsSubstring("/branches/0/from_curve") && ContainsSubstring("residual"));
}
