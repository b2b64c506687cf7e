#pragma once

#include <string>
#include <vector>

#include "sim/engine/timeline.hpp"
#include "tools/moesim/base/command.hpp"

namespace moesim::tool {

// --timeline FILE and --timeline-gpus LIST.
Flag timeline_flag(const std::string& what);
Flag timeline_gpus_flag();

// The text of a Chrome trace, packed where the name ends in .gz. Throws Error where it cannot be
// written.
void write_timeline(const std::string& path, const std::string& text);

// Where a timeline goes, checked before the work that makes it.
class TimelineFiles {
 public:
  // Reads both flags; `gpus`: how many there are. Throws UsageError for GPUs that are not among
  // them, Error for a file that cannot be written.
  TimelineFiles(const CommandLine& line, int gpus);
  bool wanted() const { return !path_.empty(); }
  // One file of all chosen GPUs or, where the name has {rank}, one of each; packed where it ends in
  // .gz. Says on stderr which.
  void write(const engine::Timeline& timeline, const std::string& title,
             const std::string& what) const;

 private:
  std::string path_of(int rank) const;
  bool is_chosen(int rank) const;

  std::string path_;
  int gpus_ = 0;
  std::vector<int> chosen_;  // none: all
};

}  // namespace moesim::tool
