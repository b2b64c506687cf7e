#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>

#include "sim/study/sweep/result_row.hpp"

namespace moesim::study {

// Where the journal of a sweep lies whose results go to the file `out`: beside it, and of a link
// beside the file that it leads to, so that no two sweeps write one file. "" for results that go to
// stdout (out is "") or to a device, which have no place for one. Throws Error for a link that
// cannot be followed.
std::string journal_path(const std::string& out);

// The finished rows of a sweep under way, kept in a file so that a kill loses none of them: a line
// that names the sweep, then one line of JSON per row, each written whole, with the number of its
// cells and a checksum, and checked on reading. The file is locked while the sweep runs. A kill
// loses no row, a power failure those of the last second.
class Journal {
 public:
  // Starts a new file, or, with `resume`, takes over its rows. Throws UsageError if they belong
  // to another sweep, if an editor saved them with a byte order mark or CR LF, if another process
  // is writing them, or, without `resume`, if there are any; Error if the file cannot be written.
  Journal(const std::string& path, const std::string& fingerprint, bool resume);
  ~Journal();
  Journal(const Journal&) = delete;  // a second owner would close the file twice
  Journal& operator=(const Journal&) = delete;

  const std::map<std::size_t, Row>& rows() const { return rows_; }
  // Throws Error if the row cannot be saved.
  void add(std::size_t index, const Row& row);

 private:
  void open_and_lock();
  // Where the rows that read back whole end.
  std::size_t take_over(const std::string& content, const std::string& first_line);
  void append(const std::string& line);

  std::string path_;
  int descriptor_ = -1;
  std::chrono::steady_clock::time_point synced_;
  std::map<std::size_t, Row> rows_;
};

}  // namespace moesim::study
