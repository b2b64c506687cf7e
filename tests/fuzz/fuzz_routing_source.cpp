#include "sim/routing/scores/score_source.hpp"

#include "sim/base/error.hpp"
#include "tests/fuzz/input.hpp"

using namespace moesim;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const std::string_view text = fuzz::text_of(data, size);
    // Files are read by targets of their own.
    if (text.find('/') != std::string_view::npos) return 0;
    static_cast<void>(routing::parse_score_source(text, "--routing").name());
  } catch (const Error&) {  // an answer
  }
  return 0;
}
