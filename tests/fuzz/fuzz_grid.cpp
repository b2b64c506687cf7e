#include "sim/study/sweep/grid.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    // Lists and ranges of two numbers, an option of names, a decimal.
    std::string_view rest = fuzz::text_of(data, size);
    scenario::OptionValues lists;
    for (const char* option : {"gpus", "capacity-factor", "router", "seed"}) {
      const std::string_view list = fuzz::take_part(rest);
      if (!list.empty()) lists[option] = std::string(list);
    }
    static_cast<void>(study::grid(lists));
  } catch (const Error&) {  // an answer
  }
  return 0;
}
