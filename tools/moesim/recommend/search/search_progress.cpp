#include "tools/moesim/recommend/search/search_progress.hpp"

#include <fmt/format.h>

#include "tools/moesim/recommend/tables/search_texts.hpp"

namespace moesim::tool {

std::string search_text(const study::SearchProgress& done) {
  const std::string candidates =
      count_text(done.candidates) +
      (done.is_of_lossless ? " candidates that drop nothing" : " candidates");
  if (done.is_ending) {
    return fmt::format("{}, {} simulated, stopped: {}", candidates, count_text(done.simulated),
                       done.tokens_per_second_per_gpu > 0 ? "drawing the best so far"
                                                          : "looking for an acceptable one");
  }
  if (done.simulated == 0) {
    return fmt::format("{}: bounding them, {:.0f} %", candidates, 100 * done.bounded);
  }
  std::string text = fmt::format("{}, {} simulated", candidates, count_text(done.simulated));
  if (done.tokens_per_second_per_gpu == 0) return text;
  text += fmt::format(", best so far {:.0f} tokens/s/GPU, ", done.tokens_per_second_per_gpu);
  if (done.found > 0) return text + fmt::format("{} proven", done.found);
  return text + fmt::format("{} may be faster", count_text(done.may_be_faster));
}

}  // namespace moesim::tool
