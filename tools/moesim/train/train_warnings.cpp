#include "tools/moesim/train/train_warnings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "sim/study/search/memory_share.hpp"

namespace moesim::tool {

bool host_limits(double host, double step) { return host > 0.1 * step; }

MemoryRoom room_of(const training::TrainingJob& job, const training::TrainingStep& step) {
  const Bytes room = job.profile->device().hbm_bytes;
  if (step.peak_memory() > room) return MemoryRoom::none;
  const double usual = study::usual_memory_share * static_cast<double>(room.count);
  return static_cast<double>(step.peak_memory().count) > usual ? MemoryRoom::tight
                                                               : MemoryRoom::enough;
}

std::string warning_words(MemoryRoom room, double host, double step) {
  std::vector<std::string> words;
  if (room != MemoryRoom::enough) {
    words.emplace_back(room == MemoryRoom::tight ? "TIGHT" : "does not fit");
  }
  if (host_limits(host, step)) words.emplace_back("host limits");
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace moesim::tool
