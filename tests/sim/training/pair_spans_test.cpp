#include "sim/training/step/pair_spans.hpp"

#include "tests/support/catch.hpp"

using namespace moesim;
using namespace moesim::training;

namespace {

PairSpan span(Part part, bool is_beside, double from_us, double to_us) {
  return {part, is_beside, 0, Picoseconds::from_us(from_us), Picoseconds::from_us(to_us), ""};
}

}  // namespace

TEST_CASE("each moment of a pair counts once, as computation where anything computes") {
  //       0         4    6    8              14        20   24
  // own   attention           tensor         experts        host
  //                                          (15 to 17)
  // beside  combine (1 to 6)       dispatch (10 to 20)
  const PartTimes parts =
      exposed_parts({span(Part::attention, false, 0, 4), span(Part::combine, true, 1, 6),
                     span(Part::tensor, false, 8, 14), span(Part::dispatch, true, 10, 20),
                     span(Part::experts, false, 15, 17), span(Part::host, false, 20, 24)});
  PartTimes expected{};
  const auto set = [&](Part part, double us) { expected[static_cast<std::size_t>(part)] = us; };
  set(Part::attention, 4);
  set(Part::combine, 2);
  set(Part::tensor, 6);    // began before the dispatch
  set(Part::dispatch, 4);  // 14 to 15, 17 to 20
  set(Part::experts, 2);
  set(Part::host, 4);
  for (std::size_t part = 0; part < parts.size(); ++part) {
    CHECK(parts[part] == Approx(expected[part]));
  }
}

TEST_CASE("of two exchanges at once the one that began first counts, then the one beside") {
  for (const double begins : {1.0, 2.0}) {
    const PartTimes parts =
        exposed_parts({span(Part::combine, true, begins, 5), span(Part::parameters, false, 2, 6)});
    CHECK(parts[static_cast<std::size_t>(Part::combine)] == Approx(5 - begins));
    CHECK(parts[static_cast<std::size_t>(Part::parameters)] == Approx(1));
  }
}
