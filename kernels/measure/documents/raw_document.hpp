#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/measure/points/point.hpp"
#include "kernels/measure/suites/suites.hpp"

namespace moesim::kernels::measure {

// Who measured, and on what: points of one document must be comparable.
struct RunIdentity {
  std::string tool_version;
  std::string device;
  int gpus = 1;
};

// All points of a run with all their samples, in a file that is written whole after every point
// (to a temporary file, then renamed): a crash loses one point. Beside it, while a point is under
// way, FILE.under-way names it: a point that takes the process down (a crash, a kernel that never
// ends) is then known to --resume, which would else run into it again and again.
class RawDocument {
 public:
  // Starts anew, or with `resume` takes over the points of an existing file. Throws UsageError if
  // they were measured on another device, by another version, or the file is no such document.
  RawDocument(std::string path, const RunIdentity& identity, bool resume);

  // Throws Error if the file cannot be written; all earlier points are still in it.
  void add(const Point& point);
  // Around each attempt at a point, whatever comes of it.
  void begin(const std::string& key);
  void end();
  // With `resume`: the key of the point during which an earlier process ended; "" if there is none.
  const std::string& fatal_key() const { return fatal_key_; }
  bool has(const std::string& key) const { return places_.count(key) != 0; }
  const std::vector<Point>& points() const { return points_; }
  const std::string& path() const { return path_; }

 private:
  void take_over(const RunIdentity& identity);
  std::string under_way() const { return path_ + ".under-way"; }
  void remember(const Point& point);

  std::string path_;
  std::string head_;
  std::string fatal_key_;
  std::vector<Point> points_;
  std::vector<std::string> texts_;  // each point as it stands in the file
  std::map<std::string, std::size_t> places_;
};

}  // namespace moesim::kernels::measure
