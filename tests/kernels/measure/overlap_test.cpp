#include "kernels/measure/suites/overlap.hpp"
#include "kernels/measure/fit/fit.hpp"
#include "kernels/measure/suites/experts.hpp"

#include "kernels/measure/documents/profile_document.hpp"
#include "kernels/measure/sessions/trial.hpp"
#include "sim/base/file.hpp"
#include "sim/profile/profile.hpp"
#include "sim/scenario/options.hpp"
#include "tests/kernels/measure/fake_machine.hpp"
#include "tests/support/catch.hpp"

namespace measure = moesim::kernels::measure;
using measure::testing::FakeDevice;
using measure::testing::Folder;
using measure::testing::simple_law;

namespace {

// A machine on which products take 1.2 times as long beside an exchange, exchanges 1.5 times; the
// largest pair 1.4 and 1.9 times.
double contended(const measure::PointSpec& spec) {
  const double alone = simple_law(spec);
  if (spec.op != "overlap" || spec.params.at("beside") == "nothing") return alone;
  const bool large = spec.params.at("m") == 4096 && spec.params.at("bytes") > 100'000'000;
  if (spec.params.at("timed") == "gemm") return alone * (large ? 1.4 : 1.2);
  return alone * (large ? 1.9 : 1.5);
}

std::vector<measure::Point> measured(FakeDevice& device, int gpus) {
  measure::TrialOptions quick;
  quick.warm_up.least_s = 0;
  std::vector<measure::Point> points;
  measure::SoloGroup group;
  for (measure::PointSpec spec : measure::overlap_points(gpus)) {
    spec.collective = false;  // one thread stands for all ranks
    points.push_back(measure::measure_point(device, group, spec, "overlap", 1, quick));
  }
  return points;
}

}  // namespace

TEST_CASE("a pair is four points: each side alone and beside the other, of the same sizes") {
  const auto points = measure::overlap_points(8);
  CHECK(points.size() == 16);  // two products, two sizes
  int beside = 0;
  for (const auto& spec : points) {
    const measure::OverlapParts parts = measure::overlap_parts(spec);
    CHECK(parts.product.params.at("m") == spec.params.at("m"));
    CHECK(parts.exchange.op == "all-to-all");
    CHECK(parts.exchange.params.at("bytes") == spec.params.at("bytes"));
    CHECK(spec.collective);
    CHECK((parts.timed == "gemm" || parts.timed == "exchange"));
    CHECK(parts.beside != parts.timed);
    beside += parts.beside.empty() ? 0 : 1;
  }
  CHECK(beside == 8);
  // On one GPU a copy stands for the exchange: as many bytes read and as many written.
  const auto alone = measure::overlap_points(1).front();
  CHECK_FALSE(alone.collective);
  const auto copy = measure::overlap_parts(alone).exchange;
  CHECK(copy.op == "memory");
  CHECK(copy.params.at("bytes") == 2 * alone.params.at("bytes").get<std::int64_t>());
}

TEST_CASE("slowdowns under overlap come from the pairs, and a scenario takes them") {
  FakeDevice device(contended);
  device.noise = 0.0005;
  auto points = measured(device, 8);
  const auto fit = measure::fit_overlap(points, "test");
  REQUIRE(fit);
  CHECK(fit->at("compute").at("slowdown").get<double>() == Approx(1.2).epsilon(0.005));
  CHECK(fit->at("exchange").at("slowdown").get<double>() == Approx(1.5).epsilon(0.005));
  CHECK(fit->at("compute").at("range").at(1).get<double>() == Approx(1.4).epsilon(0.005));
  CHECK(fit->at("exchange").at("pairs") == 4);

  const Folder folder;
  measure::RunFacts facts;
  facts.name = "contended";
  facts.tool_version = "0.1.0";
  facts.device = device.facts();
  facts.versions = device.versions();
  moesim::write_file_atomically(folder.file("node.json"),
                                measure::profile_document(facts, points, {}).dump(1));
  moesim::scenario::DocumentCache documents;
  moesim::scenario::OptionValues options{{"profile", folder.file("node.json")}};
  const auto scenario = moesim::scenario::resolve(options, documents);
  CHECK(scenario.conditions.slowdowns.compute == fit->at("compute").at("slowdown").get<double>());
  CHECK(scenario.conditions.slowdowns.exchange == fit->at("exchange").at("slowdown").get<double>());
  options["overlap-slowdown"] = "1:1.1";  // what is typed counts
  CHECK(moesim::scenario::resolve(options, documents).conditions.slowdowns.exchange == 1.1);
}

TEST_CASE("synthetic, void and lone points give no slowdown; none is below 1") {
  FakeDevice device(contended);
  auto points = measured(device, 8);
  auto synthetic = points;
  for (auto& point : synthetic) point.synthetic = true;
  CHECK_FALSE(measure::fit_overlap(synthetic, "test"));
  auto few = points;
  for (std::size_t at = 0; at < few.size(); ++at) {
    if (at < 8) few[at].verify = "wrong";  // two pairs are left
  }
  CHECK_FALSE(measure::fit_overlap(few, "test"));

  FakeDevice faster([](const measure::PointSpec& spec) {
    return simple_law(spec) * (spec.params.at("beside") == "nothing" ? 1.0 : 0.9);
  });
  const auto fit = measure::fit_overlap(measured(faster, 8), "test");
  REQUIRE(fit);
  CHECK(fit->at("compute").at("slowdown") == 1.0);
  CHECK(fit->at("compute").at("range").at(0).get<double>() < 0.95);  // but it is shown
}

TEST_CASE("rows of uneven experts add up, and each has some") {
  for (const int experts : {1, 8, 32}) {
    const auto rows = measure::ragged_rows(experts, 512);
    REQUIRE(rows.size() == static_cast<std::size_t>(experts));
    std::int64_t sum = 0;
    for (const std::int64_t each : rows) {
      CHECK(each >= 1);
      sum += each;
    }
    CHECK(sum == 512);
    CHECK(rows.front() >= rows.back());
  }
}
