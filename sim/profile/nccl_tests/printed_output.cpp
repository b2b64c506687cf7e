#include "sim/profile/nccl_tests/printed_output.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <regex>
#include <sstream>
#include <utility>

#include "sim/base/file.hpp"
#include "sim/base/launcher_prefix.hpp"
#include "sim/base/text.hpp"
#include "sim/profile/nccl_tests/doubts.hpp"
#include "sim/profile/nccl_tests/ranks.hpp"

namespace moesim::profile {
namespace {

// std::regex recurses by the character: a line of megabytes would be the end of the stack. It is
// also slow: it runs on lines that have the words it looks for.
constexpr std::size_t longest_line = 1024;

// Reads the printed output line by line.
class PrintedOutput {
 public:
  explicit PrintedOutput(std::string file) : file_(std::move(file)) { run_.file = file_; }

  std::vector<NcclTestsRun> read() {
    std::istringstream text(read_file(file_));
    for (std::string line; std::getline(text, line);) {
      ++line_;
      take(without_launcher_prefix(line));
    }
    finish();
    return std::move(runs_);
  }

 private:
  void take(const std::string& line) {
    if (line.size() <= longest_line) {
      take_version(line);
      take_program(line);
      take_failure(line);
    }
    const std::size_t start = line.find_first_not_of(" \t");
    if (start == std::string::npos) return;
    if (line[start] == '#' || line[start] == 'O') {
      take_comment(line.substr(start));
    } else if (line[start] >= '0' && line[start] <= '9') {
      take_row(line);
    }
  }

  void take_version(const std::string& line) {
    static const std::regex library(R"(nccl-library=(\d+))");
    static const std::regex printed(R"(NCCL version (\d+\.\d+\.\d+))");
    std::smatch match;
    if (line.find("nccl-library=") != std::string::npos &&
        std::regex_search(line, match, library)) {
      begin();
      nccl_ = nccl_version(static_cast<int>(parse_whole(where(), match[1].str(), 1, 999999)));
    } else if (line.find("NCCL version ") != std::string::npos &&
               std::regex_search(line, match, printed)) {
      nccl_ = match[1];
    }
  }

  // Takes the program from "# Collective test starting: alltoall_perf" or a command line among the
  // output.
  void take_program(const std::string& line) {
    // A folder may be named so, too: the last part of a path counts.
    static const std::regex named(R"((^|[/\s"'])([a-z_0-9]+_perf)(?![\w/.-]))");
    std::smatch match;
    if (line.find("_perf") == std::string::npos || !std::regex_search(line, match, named)) return;
    if (line.find("concluded") != std::string::npos) return;
    if (line.find("starting:") != std::string::npos || !run_.rows.empty()) begin();
    program_ = match[2];
  }

  // "node0: Test NCCL failure common.cu:954 '...'", " .. node0 pid 4100: Test failure
  // common.cu:844"
  void take_failure(const std::string& line) {
    if (!failure_.empty()) return;
    for (const char* words : {": Test NCCL failure ", ": Test CUDA failure ", ": Test failure "}) {
      if (line.find(words) == std::string::npos) continue;
      failure_ = fmt::format("line {}: {}", line_, printable(line));
    }
  }

  void take_comment(const std::string& line) {
    // "#  Rank  0 Group  0 Pid  12345 on  host device  0 [0x07] NVIDIA H200"; once without Group
    static const std::regex rank(
        R"(^#\s*Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.*\S)\s*$)");
    static const std::regex bounds(R"(^#?\s*Out of bounds values\s*:\s*(\d+))");
    if (line.size() > longest_line) return;
    std::smatch match;
    if (line.starts_with("# nThread ")) {
      begin();
      take_grouping(line);
    }
    if (line.find("Rank") != std::string::npos && std::regex_match(line, match, rank)) {
      if (!run_.rows.empty()) begin();
      if (run_.line == 0) run_.line = line_;
      ranks_.add(match[1], match[2], match[3], match[4]);
    } else if (line.find("Out of bounds") != std::string::npos &&
               std::regex_search(line, match, bounds)) {
      ended_ = true;
      if (match[1] != "0") {
        refuse(run_, line_,
               fmt::format("{} values out of bounds: this run measured nothing that counts",
                           match[1].str()));
      }
    } else if (line.find("Avg bus bandwidth") != std::string::npos) {
      ended_ = true;
    } else if (line.find("algbw") != std::string::npos) {
      if (line.find("cputime") != std::string::npos) {
        refuse(run_, line_, "these are CPU times (-C 1): run without it");
      }
      half_ = line.find("i_min") != std::string::npos ? 8 : 4;
      checked_ = line.find("#wrong") != std::string::npos;
      in_table_ = true;
    }
  }

  void take_grouping(const std::string& line) {
    static const std::regex grouped(R"(agg iters: (\d+))");
    static const std::regex graph(R"(graph: (\d+))");
    std::smatch match;
    const std::string group = std::regex_search(line, match, grouped) ? match[1].str() : "1";
    const std::string launches = std::regex_search(line, match, graph) ? match[1].str() : "0";
    grouping_ = grouping_of(group, launches);
  }

  // Columns: size count type [redop] [root], then out of place and in place each time, algbw,
  // busbw, #wrong and, by iteration, four more; last perhaps date and time.
  void take_row(const std::string& line) {
    const std::vector<std::string> words = words_of(line);
    if (words[0].find_first_not_of("0123456789") != std::string::npos) return;
    if (ranks_.count == 0) {
      if (!in_table_) return;
      refuse(run_, line_, "a table of times without '# Rank' lines before it");
    }
    refuse_cut();
    // Rows of one table have as many columns: with fewer the last figure may be cut, too.
    if (!run_.rows.empty() && words.size() < columns_) {
      cut_ = {line_, words.size()};
      return;
    }
    columns_ = words.size();
    NcclTestsRow row;
    row.line = line_;
    row.bytes = number(words[0]);
    if (words.size() > 1) number(words[1]);
    std::size_t next = 2;
    if (words.size() > next) row.dtype = words[next++];
    const auto is_name = [&](const std::string& word) {
      return word.find_first_of("0123456789") == std::string::npos && word != "N/A";
    };
    if (words.size() > next && is_name(words[next])) row.redop = words[next++];
    std::size_t end = words.size();
    if (end > next + 2 && words[end - 1].find(':') != std::string::npos) end -= 2;
    const std::size_t figures = end - std::min(next, end);
    const bool whole = figures % half_ <= 1 && figures >= half_ && figures <= 2 * half_ + 1;
    if (!whole) refuse_columns(line_, words.size());
    next += figures % half_;  // root
    row.time_us = number(words[next]);
    const double algorithm = number(words[next + 1]), bus = number(words[next + 2]);
    doubt_rate(run_, where(), row, algorithm);
    // Two decimals: a ratio of less than 1 GB/s says little.
    row.bus_over_algorithm = algorithm >= 1 ? bus / algorithm : 0;
    const std::string& wrong = words[next + 3];
    if (checked_ && wrong != "0" && wrong != "N/A") {
      refuse(run_, line_,
             fmt::format("{} wrong values: this run measured nothing that counts", wrong));
    }
    add_row(run_, std::move(row));
  }

  [[noreturn]] void refuse_columns(std::size_t line, std::size_t columns) const {
    refuse(run_, line,
           fmt::format("{} columns instead of size, count, type, redop, root, and time, algbw, "
                       "busbw, #wrong out of place and in place: the output is cut off",
                       columns));
  }

  // A row that is cut off is that of a job that was killed: its last. Another one is none.
  void refuse_cut() const {
    if (cut_.line > 0) refuse_columns(cut_.line, cut_.columns);
  }

  double number(const std::string& text) const {
    const std::optional<double> value = parse_number<double>(text);
    if (value && *value >= 0 && std::isfinite(*value)) return *value;
    refuse(run_, line_, fmt::format("'{}' is not a number", text));
  }

  std::string where() const { return fmt::format("{}: line {}", file_, line_); }

  // The lines before a table belong to its run.
  void begin() {
    if (ranks_.count > 0 || !run_.rows.empty()) finish();
  }

  void finish() {
    if (ended_) refuse_cut();
    run_.program = std::exchange(program_, "");
    run_.nccl = nccl_;
    run_.gpus = ranks_.count;
    const std::string grouping = std::exchange(grouping_, "");
    const bool ended = std::exchange(ended_, false);
    const std::string failure = std::exchange(failure_, "");
    if (ranks_.count > 0) {
      doubt_run(ended, failure, grouping);
      take_ranks(run_, ranks_);
      runs_.push_back(std::move(run_));
    }
    run_ = {};
    run_.file = file_;
    ranks_ = {};
    half_ = 4;
    checked_ = true;
    in_table_ = false;
    columns_ = 0;
    cut_ = {};
  }

  void doubt_run(bool ended, const std::string& failure, const std::string& grouping) {
    if (run_.rows.empty()) return;
    if (cut_.line > 0) {
      run_.doubts.push_back(fmt::format(
          "warning: {}: line {}: this row is cut off, and is left out", file_, cut_.line));
    }
    if (!ended) {
      run_.doubts.push_back(fmt::format(
          "warning: {}: line {}: no 'Avg bus bandwidth' line below this row, the last of its run: "
          "{}, and larger sizes may be missing",
          file_, run_.rows.back().line,
          failure.empty() ? "the run failed or its output is cut off"
                          : fmt::format("the run failed ({})", failure)));
    }
    if (!grouping.empty()) {
      run_.doubts.push_back(grouping_doubt(fmt::format("{}: line {}", file_, run_.line), grouping));
    }
  }

  std::string file_;
  std::size_t line_ = 0;
  std::string program_, nccl_;
  std::string grouping_;  // of the run: what makes its times shorter
  bool ended_ = false;    // the footer of the run was seen
  std::string failure_;   // the first line that says so
  NcclTestsRun run_;
  ListedRanks ranks_;
  std::size_t half_ = 4;
  bool checked_ =
      true;  // the last column counts wrong values; "error" in old versions: a difference
  bool in_table_ = false;
  std::size_t columns_ = 0;  // of the row before
  struct {
    std::size_t line = 0;
    std::size_t columns = 0;
  } cut_;  // a row with fewer columns than those before it; line 0: none
  std::vector<NcclTestsRun> runs_;
};

}  // namespace

std::vector<NcclTestsRun> read_printed_output(const std::string& file) {
  return PrintedOutput(file).read();
}

std::string prefix_of_ranks(const std::string& file) {
  static const std::regex ranks(R"(^(.+?)#\s+Rank\s+\d+\s.*\bdevice\s)");
  std::istringstream text(read_file(file));
  for (std::string line; std::getline(text, line);) {
    std::smatch match;
    if (line.size() > longest_line || line.find(" Rank ") == std::string::npos) continue;
    if (std::regex_search(line, match, ranks)) return match[1];
  }
  return "";
}

}  // namespace moesim::profile
