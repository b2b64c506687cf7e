#include "sim/training/step/pair_spans.hpp"

#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

PairSpan span(TrainingPart part, bool is_beside, double from_us, double to_us) {
  return {part, is_beside, 0, Picoseconds::from_us(from_us), Picoseconds::from_us(to_us), ""};
}

}  // namespace

TEST_CASE("each moment of a pair counts once, as computation where anything computes") {
  //       0         4    6    8              14        20   24
  // own   attention           tensor         experts        host
  //                                          (15 to 17)
  // beside  combine (1 to 6)       dispatch (10 to 20)
  const PartTimes parts = exposed_parts(
      {span(TrainingPart::attention, false, 0, 4), span(TrainingPart::combine, true, 1, 6),
       span(TrainingPart::tensor, false, 8, 14), span(TrainingPart::dispatch, true, 10, 20),
       span(TrainingPart::experts, false, 15, 17), span(TrainingPart::host, false, 20, 24)});
  PartTimes expected{};
  const auto set = [&](TrainingPart part, double us) {
    expected[static_cast<std::size_t>(part)] = us;
  };
  set(TrainingPart::attention, 4);
  set(TrainingPart::combine, 2);
  set(TrainingPart::tensor, 6);    // began before the dispatch
  set(TrainingPart::dispatch, 4);  // 14 to 15, 17 to 20
  set(TrainingPart::experts, 2);
  set(TrainingPart::host, 4);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    CHECK(parts[part] == Approx(expected[part]));
  }
}

TEST_CASE("of two exchanges at once the one that began first counts, then the one beside") {
  for (const double begins : {1.0, 2.0}) {
    const PartTimes parts = exposed_parts({span(TrainingPart::combine, true, begins, 5),
                                           span(TrainingPart::parameters, false, 2, 6)});
    CHECK(parts[static_cast<std::size_t>(TrainingPart::combine)] == Approx(5 - begins));
    CHECK(parts[static_cast<std::size_t>(TrainingPart::parameters)] == Approx(1));
  }
}
