#include "sim/uncertainty/published/step_errors.hpp"

#include "sim/uncertainty/steps/step_distance.hpp"

#include <fmt/format.h>

#include <cmath>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/random.hpp"
#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::uncertainty;

namespace {

// Two kinds of software on four machines with three models each, four configurations of each; every
// term drawn with its own standard deviation.
std::vector<Observation> drawn(std::uint32_t run, double software, double machine, double model,
                               double scatter) {
  Stream stream({11, Purpose::test_data, run, 0, 0});
  std::vector<Observation> found;
  for (int kind = 0; kind < 2; ++kind) {
    const double of_software = software * stream.normal();
    for (int place = 0; place < 4; ++place) {
      const double of_machine = of_software + machine * stream.normal();
      for (int name = 0; name < 3; ++name) {
        const double of_model = of_machine + model * stream.normal();
        for (int row = 0; row < 4; ++row) {
          Observation each;
          each.subject = {fmt::format("software {}", kind), fmt::format("machine {}", place),
                          fmt::format("model {}", name), false};
          each.configuration = fmt::format("layout {}", row);
          each.log_ratio = 0.2 + of_model + scatter * stream.normal();
          found.push_back(each);
        }
      }
    }
  }
  return found;
}

StepErrors errors_of(const std::vector<Observation>& observations) {
  Residuals residuals = summarised(observations);
  residuals.name = "drawn";
  residuals.components = fitted_components(residuals.groups);
  return StepErrors(residuals);
}

Subject subject(const char* software, const char* machine, const char* model) {
  return {software, machine, model, false};
}

}  // namespace

TEST_CASE("what is known of a subject is the basis of its band") {
  const StepErrors errors = errors_of(drawn(1, 0.3, 0.1, 0.1, 0.05));
  CHECK(errors.band(subject("software 0", "machine 0", "model 0")).basis == Basis::model);
  CHECK(errors.band(subject("software 0", "machine 0", "another")).basis == Basis::machine);
  CHECK(errors.band(subject("software 0", "another", "model 0")).basis == Basis::software);
  CHECK(errors.band(subject("", "machine 0", "model 0")).basis == Basis::nothing);
  CHECK(errors.band(subject("another", "machine 0", "model 0")).basis == Basis::nothing);
}

TEST_CASE("a machine with NICs of another rate is another machine") {
  std::vector<Observation> observations = drawn(1, 0.3, 0.1, 0.1, 0.05);
  for (Observation& each : observations) each.subject.nic_gbit_per_s = 400;
  const StepErrors errors = errors_of(observations);
  const auto with_nics = [&](double rate) {
    Subject asked = subject("software 0", "machine 0", "model 0");
    asked.nic_gbit_per_s = rate;
    return errors.band(asked);
  };
  CHECK(with_nics(400).basis == Basis::model);
  CHECK(with_nics(390).basis == Basis::model);  // as measured
  CHECK(with_nics(0).basis == Basis::model);    // none is used
  CHECK(with_nics(800).basis == Basis::software);
  CHECK(with_nics(200).basis == Basis::software);
  // Its own steps say no more of it than those of any other machine.
  Subject elsewhere = subject("software 0", "another", "another");
  elsewhere.nic_gbit_per_s = 800;
  Subject faster = subject("software 0", "machine 0", "another");
  faster.nic_gbit_per_s = 800;
  CHECK(errors.band(faster).expected.mean == Approx(errors.band(elsewhere).expected.mean));
}

TEST_CASE("a question about which less is known gets a band at least as wide") {
  for (std::uint32_t run = 0; run < 20; ++run) {
    const StepErrors errors = errors_of(drawn(run, 0.3, 0.1, 0.1, 0.05));
    const auto level = [&](const Subject& asked, double nominal) {
      for (const BandLevel& each : errors.band(asked).levels) {
        if (each.level == nominal) return each.log_ratios.width();
      }
      return 1e9;  // wider than what can be said
    };
    const double machine = level(subject("software 0", "machine 0", "another"), 0.8);
    const double software = level(subject("software 0", "another", "another"), 0.8);
    CHECK(machine <= software);
    CHECK(level(subject("software 0", "another", "another"), 0.5) <=
          level(subject("", "another", "another"), 0.5));
    double inner = 0;
    const auto all = errors.band(subject("software 0", "machine 0", "another")).levels;
    CHECK(all.size() == 3);
    for (auto each = all.rbegin(); each != all.rend(); ++each) {
      CHECK(each->log_ratios.width() >= inner);
      inner = each->log_ratios.width();
    }
  }
}

TEST_CASE("the band of a known model is no wider than that of one that is not") {
  for (std::uint32_t run = 0; run < 20; ++run) {
    // Configurations scatter more than models differ. What is expected of a known model differs
    // more from one group left out to another, by which its band is some per cent wider.
    const StepErrors errors = errors_of(drawn(run, 0.3, 0.1, 0.01, 0.2));
    const Subject known = subject("software 0", "machine 0", "model 0");
    Subject unknown = known;
    unknown.model = "another";
    const std::vector<BandLevel> levels = errors.band(known).levels;
    const std::vector<BandLevel> wider = errors.band(unknown).levels;
    REQUIRE(levels.size() == wider.size());
    for (std::size_t at = 0; at < levels.size(); ++at) {
      CHECK(levels[at].level == wider[at].level);
      CHECK(levels[at].log_ratios.width() < 1.05 * wider[at].log_ratios.width());
    }
  }
}

TEST_CASE("bands of new models hold at least their share when errors are drawn") {
  int inside = 0;
  int points = 0;
  for (std::uint32_t run = 0; run < 60; ++run) {
    std::vector<Observation> known;
    std::vector<Observation> kept;
    for (const Observation& each : drawn(run, 0.3, 0.1, 0.15, 0.05)) {
      (each.subject.model == "model 2" ? kept : known).push_back(each);
    }
    const StepErrors errors = errors_of(known);
    for (const Observation& each : kept) {
      const Band band = errors.band(each.subject);
      REQUIRE(band.widest().level == 0.9);
      if (band.widest().log_ratios.contains(each.log_ratio)) ++inside;
      ++points;
    }
  }
  const double share = static_cast<double>(inside) / points;
  CHECK(share > 0.88);
  CHECK(share < 0.99);
}

TEST_CASE("bands of new configurations of known models hold their share, and are narrower") {
  int inside = 0;
  int points = 0;
  double width = 0;
  double of_models = 0;
  for (std::uint32_t run = 0; run < 60; ++run) {
    std::vector<Observation> known;
    std::vector<Observation> kept;
    for (const Observation& each : drawn(run, 0.3, 0.1, 0.15, 0.05)) {
      (each.configuration == "layout 3" ? kept : known).push_back(each);
    }
    const StepErrors errors = errors_of(known);
    for (const Observation& each : kept) {
      const Band band = errors.band(each.subject);
      REQUIRE(band.basis == Basis::model);
      REQUIRE(band.held_out == 24);
      if (band.widest().log_ratios.contains(each.log_ratio)) ++inside;
      ++points;
      width += band.widest().log_ratios.width();
      Subject other = each.subject;
      other.model = "another";
      of_models += errors.band(other).widest().log_ratios.width();
    }
  }
  const double share = static_cast<double>(inside) / points;
  CHECK(share > 0.87);
  CHECK(share < 0.96);
  CHECK(width < 0.7 * of_models);
}

TEST_CASE("steps of other software do not narrow the band of a software with one model") {
  // Models of software 0 differ by nothing, configurations of software 1 by much.
  std::vector<Observation> observations;
  for (const Observation& each : drawn(5, 0.3, 0.1, 0, 0.01)) {
    const bool is_one = each.subject.software == "software 1";
    if (is_one && each.subject.model != "model 0") continue;
    observations.push_back(each);
    if (is_one) observations.back().log_ratio += 0.4 * (observations.size() % 4);
  }
  const StepErrors errors = errors_of(observations);
  const std::size_t configurations = errors.residuals().groups.size();
  CHECK(errors.band(subject("software 1", "machine 0", "model 0")).held_out == configurations);
  for (const char* model : {"model 0", "model 1"}) {
    const Band band = errors.band(subject("software 0", "machine 0", model));
    for (std::size_t at = 1; at < band.levels.size(); ++at) {
      CHECK(band.levels[at - 1].log_ratios.low <= band.levels[at].log_ratios.low);
      CHECK(band.levels[at - 1].log_ratios.high >= band.levels[at].log_ratios.high);
    }
  }
}

TEST_CASE("the error model learns a level that a software has on every machine") {
  std::vector<Observation> observations = drawn(3, 0, 0, 0, 0.05);
  for (Observation& each : observations) {
    if (each.subject.software == "software 1") each.log_ratio += 0.7;
  }
  const StepErrors errors = errors_of(observations);
  const Band one = errors.band(subject("software 1", "another", "another"));
  CHECK(one.expected.mean == Approx(0.9).margin(0.1));
  const Band other = errors.band(subject("software 0", "another", "another"));
  CHECK(other.expected.mean == Approx(0.2).margin(0.1));
  CHECK(errors.band(subject("", "another", "another")).expected.deviation() >
        2 * one.expected.deviation());
}

TEST_CASE("one measured software alone gives no band for another") {
  std::vector<Observation> observations;
  for (const Observation& each : drawn(5, 0.1, 0.1, 0.1, 0.1)) {
    if (each.subject.software == "software 0") observations.push_back(each);
  }
  const StepErrors errors = errors_of(observations);
  CHECK(errors.band(subject("software 0", "machine 0", "new")).levels.size() == 3);
  CHECK_THROWS_AS(errors.band(subject("", "machine 0", "new")), Error);
}

TEST_CASE("machine and software cancel in a ratio") {
  const StepErrors errors = errors_of(drawn(4, 0.5, 0.3, 0.2, 0.05));
  const Band ratio = errors.ratio_band("software 0", true, usual_distance);
  // The difference of two scatters, 0.05 sqrt(2): times 0.67 for half of them. With 12 groups the
  // end of 90 % lies at 97 % of what was measured, 0.05 sqrt(2) times 2.2.
  CHECK(ratio.widest().level == 0.9);
  CHECK(ratio.levels.back().log_ratios.high == Approx(0.048).epsilon(0.35));
  CHECK(ratio.widest().log_ratios.high == Approx(0.155).epsilon(0.35));
  CHECK(ratio.widest().log_ratios.low == Approx(-ratio.widest().log_ratios.high));
  CHECK(errors.ratio_band("software 0", false, usual_distance).widest().log_ratios.high >
        ratio.widest().log_ratios.high);
}

TEST_CASE("steps are as far apart as the work that one of them has alone") {
  CHECK(step_distance({3, 1, 0}, {3, 1, 0}) == 0);
  CHECK(step_distance({4, 0}, {0, 4}) == 2);
  CHECK(step_distance({2, 2}, {2, 4}) == Approx(2.0 / 5));
  CHECK(step_distance({1, 1}, {3, 3}) == 1);
  CHECK(distance_reach(usual_distance) == Approx(1));
  CHECK(distance_reach(0) == Approx(0.743).epsilon(0.001));
  CHECK(distance_reach(far_apart) == Approx(1.933).epsilon(0.001));
}

TEST_CASE("ratios of steps that differ little have a narrower band") {
  // Pairs whose errors grow with their distance as distance_reach() says: every one fits.
  std::vector<Observation> observations;
  for (const Observation& each : drawn(4, 0.5, 0.3, 0.2, 0.05)) {
    observations.push_back(each);
    observations.back().parts = {10, static_cast<double>(observations.size() % 4)};
  }
  const StepErrors errors = errors_of(observations);
  const auto width = [&](double distance, bool same_model = true) {
    return errors.ratio_band("software 0", same_model, distance).widest().log_ratios.high;
  };
  CHECK(width(0) == Approx(distance_reach(0) * width(usual_distance)));
  CHECK(width(1.5) == Approx(distance_reach(1.5) * width(usual_distance)));
  CHECK(width(0, false) == width(1.5, false));  // of two models it says nothing
  for (const RatioGroup& group : errors.residuals().ratios) {
    CHECK(group.by_distance == !group.model.empty());
  }
}

TEST_CASE("a residuals document reads back as it was written") {
  Residuals written = summarised(drawn(2, 0.3, 0.1, 0.1, 0.05));
  written.name = "drawn";
  written.source = "a test";
  written.regenerate = "none";
  written.components = fitted_components(written.groups);
  const std::string path = "residuals_test.json";
  write_file_atomically(path, written.text());
  const Residuals read = Residuals::load("./" + path);
  CHECK(read.components.software == Approx(written.components.software).margin(1e-4));
  REQUIRE(read.groups.size() == written.groups.size());
  for (std::size_t group = 0; group < read.groups.size(); ++group) {
    CHECK(read.groups[group].subject == written.groups[group].subject);
    CHECK(read.groups[group].median() == Approx(written.groups[group].median()).margin(1e-4));
    CHECK(read.groups[group].most == Approx(written.groups[group].most).margin(1e-3));
  }
  CHECK(read.ratios.size() == written.ratios.size());
  CHECK(read.groups.size() == 24);
  CHECK(read.groups.front().rows == 4);
  CHECK(read.software() == std::vector<std::string>{"software 0", "software 1"});
  std::remove(path.c_str());
}

TEST_CASE("shipped residuals answer for every software they name") {
  const StepErrors errors(Residuals::load("training"));
  for (const std::string& name : errors.residuals().software()) {
    CHECK(errors.band(subject(name.c_str(), "NVIDIA H100 80GB HBM3", "a new one")).basis !=
          Basis::nothing);
  }
}

TEST_CASE("pairs that differ in capacity alone are a group of their own") {
  const Subject same = subject("software", "machine", "model");
  std::vector<Observation> observations = {{same, "CF 1", "padded", 0.5},
                                           {same, "CF 2", "padded", 0.52},
                                           {same, "unpadded", "", 0.8},
                                           {same, "another batch", "", 0.3}};
  observations.push_back({subject("software", "machine", "another"), "CF 3", "padded", 0.4});
  Residuals residuals = summarised(observations);
  residuals.name = "pairs";
  residuals.source = "a test";
  residuals.regenerate = "none";
  residuals.components = {0.2, 0.3, 0.1, 0.2, 0.1};
  const auto groups = [&](const Residuals& in) {
    std::vector<std::tuple<std::string, bool, int>> found;
    for (const RatioGroup& group : in.ratios) {
      found.emplace_back(group.model, group.of_capacity, group.pairs);
    }
    return found;
  };
  const std::vector<std::tuple<std::string, bool, int>> expected = {
      {"", false, 4}, {"model", false, 5}, {"model", true, 1}};
  CHECK(groups(residuals) == expected);
  const std::string path = "pairs_test.json";
  write_file_atomically(path, residuals.text());
  CHECK(groups(Residuals::load("./" + path)) == expected);
  std::string text = residuals.text();
  text.replace(text.find("\"capacity\""), 10, "\"batches\"");
  write_file_atomically(path, text);
  CHECK_THROWS_WITH(Residuals::load("./" + path), ContainsSubstring("expected const capacity"));
  std::remove(path.c_str());
}
