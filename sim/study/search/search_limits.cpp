#include "sim/study/search/search_limits.hpp"

#include "sim/base/check_range.hpp"

namespace moesim::study {

void check_limits(std::size_t best, double memory_share, double max_loss, double min_speed) {
  check_range("--best", best, 1, most_best);
  check_range("--memory-share", memory_share, least_memory_share, 1);
  check_range("--max-loss", max_loss, 0, 1);
  check_range("--min-speed", min_speed, 0, most_min_speed);
}

}  // namespace moesim::study
