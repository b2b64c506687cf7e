#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/study/sweep/sweep.hpp"

namespace moesim::tool {

// A sweep in parts, for many processes: every row depends on its scenario alone, so that parts put
// together have the bits of the whole. Scenarios that route the same logits stay together where
// there are enough others, at most `rows_of_chunk` of them; which these are depends on the sweep
// alone.
constexpr std::size_t rows_of_chunk = 4;
using Chunk = std::vector<std::size_t>;  // indices of points, in grid order
std::vector<Chunk> chunks_of(const std::vector<study::SweepPoint>& points);

// "--shard 2/8": of N shards the second.
struct Shard {
  std::size_t number = 1;  // 1 to count
  std::size_t count = 1;
};
// Throws UsageError.
Shard parse_shard(const std::string& text);
// Chunks number, number + count, ... in grid order.
std::vector<std::size_t> rows_of(const Shard& shard, const std::vector<Chunk>& chunks);

// Names of rows in the files of parts: a last column, of cells such as 17/96:00f3..., which row of
// how many of which sweep this is.
class RowNames {
 public:
  static constexpr const char* column = "grid_row";
  // `fingerprint`: study::fingerprint() of all points.
  RowNames(const std::vector<study::SweepPoint>& points, const std::string& fingerprint);
  std::string name(std::size_t point) const;
  std::size_t total() const { return total_; }
  // A CSV of these points, whose rows are given.
  std::string csv(const std::vector<std::size_t>& points,
                  const std::vector<study::Row>& rows) const;
  // The rows of such a CSV by point. Throws UsageError if it is of another sweep.
  std::size_t rows_in(const std::string& path) const;

 private:
  std::vector<std::size_t> number_;  // [point], 1 to total; 0: repeats another
  std::size_t total_ = 0;
  std::string sweep_;
};

// Files of parts as one: the CSV of the whole sweep, as one process would have written it.
struct MergedParts {
  std::string csv;
  std::size_t rows = 0;
  std::size_t refused = 0;
  std::vector<std::size_t> missing;  // numbers of rows that no file has
};
// Throws UsageError naming the file (and line): no part of a sweep, of another sweep than the first
// one, a row that differs from the same row in another file.
MergedParts merge_parts(const std::vector<std::string>& files);

}  // namespace moesim::tool
