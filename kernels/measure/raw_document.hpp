#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/measure/point.hpp"
#include "kernels/measure/suites.hpp"

namespace moesim::kernels::measure {

// Who measured, and on what: points of one document must be comparable.
struct RunIdentity {
  std::string tool_version;
  std::string device;
  int gpus = 1;
};

// All points of a run with all their samples, in a file that is written whole after every point
// (to a temporary file, then renamed): a crash loses one point.
class RawDocument {
 public:
  // Starts anew, or with `resume` takes over the points of an existing file. Throws UsageError if
  // they were measured on another device, by another version, or the file is no such document.
  RawDocument(std::string path, const RunIdentity& identity, bool resume);

  // Throws Error if the file cannot be written; all earlier points are still in it.
  void add(const Point& point);
  bool has(const std::string& key) const { return places_.count(key) != 0; }
  const std::vector<Point>& points() const { return points_; }
  const std::string& path() const { return path_; }

 private:
  void take_over(const RunIdentity& identity);
  void remember(const Point& point);

  std::string path_;
  std::string head_;
  std::vector<Point> points_;
  std::vector<std::string> texts_;  // each point as it stands in the file
  std::map<std::string, std::size_t> places_;
};

}  // namespace moesim::kernels::measure
