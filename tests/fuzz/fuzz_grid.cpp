#include "sim/study/sweep/grid.hpp"

#include <algorithm>
#include <cstdlib>

#include "sim/base/error.hpp"
#include "sim/base/text.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

// Values that a list names, about.
static double count_values(std::string_view list) {
  double count = 0;
  for (const std::string_view item : split(list, ',')) {
    double ends[3] = {0, 0, 1};
    const auto parts = split(item, ':');
    for (std::size_t part = 0; part < parts.size() && parts.size() == 3; ++part) {
      ends[part] = std::atof(std::string(parts[part]).c_str());
    }
    count += ends[2] > 0 ? 1 + std::max(0.0, (ends[1] - ends[0]) / ends[2]) : 1;
  }
  return count;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    // Lists and ranges of two numbers, an option of names, a decimal.
    // Grids of many points take seconds here and show nothing that a few do not.
    double points = 1;
    std::string_view rest = fuzz::text_of(data, size);
    scenario::OptionValues lists;
    for (const char* option : {"gpus", "capacity-factor", "router", "seed"}) {
      const std::string_view list = fuzz::take_part(rest);
      if (!list.empty()) lists[option] = std::string(list);
      points *= count_values(list);
    }
    if (points > 5'000) return 0;
    static_cast<void>(study::grid(lists));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
