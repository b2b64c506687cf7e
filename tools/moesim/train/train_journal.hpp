#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "sim/study/sweep/journal.hpp"
#include "tools/moesim/train/train_grid.hpp"
#include "tools/moesim/train/train_point.hpp"

namespace moesim::tool {

// A point as a row of a journal, and back: nothing for a row of another form.
study::Row saved_row(const TrainPoint& point);
std::optional<TrainPoint> point_of(const study::Row& row);

// A text that differs whenever the options of a point, the files that they name, the shipped
// documents or the build of the program do. A file that cannot be read counts as none.
std::string fingerprint(const TrainGrid& grid);

// The finished points of a run of `train` under way, in the journal of `sweep` beside its --out:
// nowhere where that is not a file.
class TrainJournal {
 public:
  // With --resume, `points` takes the rows that there are. Throws UsageError as study::Journal
  // does, and for --resume without --out.
  TrainJournal(const CommandLine& line, const TrainGrid& grid, std::vector<TrainPoint>& points);

  std::size_t resumed() const { return resumed_; }
  // --resume of a run whose --out is finished: that file is compared, never written.
  bool is_finished() const { return finished_; }
  // Throws UsageError where the file has another text.
  void compare(const std::string& path, const std::string& text) const;
  bool keeps() const { return journal_ != nullptr; }
  // Safe to call from threads. Throws Error if the point cannot be saved.
  void add(std::size_t at, const TrainPoint& point);
  // The run is at its end: its result needs no journal any more.
  void remove();

 private:
  std::string path_;
  std::mutex adding_;
  std::unique_ptr<study::Journal> journal_;
  std::size_t resumed_ = 0;
  bool finished_ = false;
};

Flag train_resume_flag();

}  // namespace moesim::tool
