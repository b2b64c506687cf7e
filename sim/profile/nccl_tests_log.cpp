#include "sim/profile/nccl_tests_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "sim/base/document.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/text.hpp"

namespace moesim::profile {
namespace {

// std::regex recurses by the character: a line of megabytes would be the end of the stack. It is
// also slow: it runs on lines that have the words it looks for.
constexpr std::size_t longest_line = 1024;
constexpr std::size_t most_doubts = 3;  // of each kind

struct Program {
  const char* name;
  const char* operation;
};
constexpr std::array<Program, 5> programs{{{"alltoall_perf", "all-to-all"},
                                           {"all_reduce_perf", "all-reduce"},
                                           {"all_gather_perf", "all-gather"},
                                           {"reduce_scatter_perf", "reduce-scatter"},
                                           {"sendrecv_perf", "send-receive"}}};

std::string operation_of(const std::string& program) {
  for (const Program& known : programs) {
    if (program == known.name) return known.operation;
  }
  return "";
}

// NCCL_VERSION_CODE: 2708 is 2.7.8, and from 2.9 on 22703 is 2.27.3.
std::string version_of(int code) {
  const int major = code >= 10000 ? code / 10000 : code / 1000;
  const int rest = code >= 10000 ? code % 10000 : code % 1000;
  return fmt::format("{}.{}.{}", major, rest / 100, rest % 100);
}

// The ranks of a run as its table of devices lists them.
struct Ranks {
  std::map<std::string, int> on_host;
  std::set<std::string> devices, groups, numbers;
  int count = 0;

  void add(const std::string& number, const std::string& group, const std::string& host,
           const std::string& device) {
    ++count;
    ++on_host[host];
    devices.insert(device);
    groups.insert(group);
    if (!numbers.insert(number).second) ++repeated;
  }
  int repeated = 0;
};

// Whether time and algbw (GB/s) of a row say the same, within the digits that are printed: two
// decimals, fewer of long times. A single cell that was garbled would bend a whole curve.
bool agree(double bytes, double time_us, double algorithm_gb_s) {
  constexpr double digits = 0.02;
  constexpr double last_decimal = 0.006;
  const double rate = bytes / (1e3 * time_us);
  const double from_time = rate * last_decimal / time_us;
  return std::abs(algorithm_gb_s - rate) <= digits * rate + last_decimal + from_time;
}

// By what share a time may fall from one size to a larger one before a row is in doubt. Of 403
// public curves inside a node (tests/data/nccl_intranode.csv.gz) none falls from 2 MiB on by even
// 5 %; from 256 KiB on 8 fall by 15 % or more, below 4 by half: NCCL changes its protocol there.
double usual_fall(double bytes) {
  constexpr double kib = 1024;
  return bytes >= 2048 * kib ? 0.1 : bytes >= 256 * kib ? 0.15 : 0.5;
}

std::string place_of(const NcclTestsRow& row) {
  const std::string line = row.line == 0 ? "" : fmt::format(" (line {})", row.line);
  return fmt::format("{:.0f} bytes{}", row.bytes, line);
}

// Names rows from which, with more bytes, the time falls by more than noise and protocols explain:
// those that lose most of it.
void doubt_falls(NcclTestsRun& run) {
  struct Fall {
    const NcclTestsRow* smaller;
    const NcclTestsRow* larger;
    double lost_us() const { return smaller->time_us - larger->time_us; }
  };
  std::map<std::pair<std::string, std::string>, std::map<double, const NcclTestsRow*>> curves;
  for (const NcclTestsRow& row : run.rows)
    curves[{row.dtype, row.redop}].try_emplace(row.bytes, &row);
  std::vector<Fall> falls;
  for (const auto& [type, curve] : curves) {
    const NcclTestsRow* before = nullptr;
    for (const auto& [bytes, row] : curve) {
      const NcclTestsRow* const smaller = std::exchange(before, row);
      if (smaller == nullptr) continue;
      const double fall = 1 - row->time_us / smaller->time_us;
      if (fall >= usual_fall(smaller->bytes)) falls.push_back({smaller, row});
    }
  }
  std::stable_sort(falls.begin(), falls.end(),
                   [](const Fall& a, const Fall& b) { return a.lost_us() > b.lost_us(); });
  const std::size_t told = std::min(falls.size(), most_doubts);
  for (std::size_t fall = 0; fall < told; ++fall) {
    const auto& [smaller, larger] = falls[fall];
    run.doubts.push_back(fmt::format(
        "warning: {}: {} in {:.2f} us, but {} in {:.2f} us, {:.0f} % less: one of the two was "
        "disturbed, or NCCL changes its protocol there: look at the lines, run "
        "nccl-tests again with more iterations (-n)",
        run.file, place_of(*smaller), smaller->time_us, place_of(*larger), larger->time_us,
        100 * falls[fall].lost_us() / smaller->time_us));
  }
  if (falls.size() > told) {
    run.doubts.back() += fmt::format("; and {} more that lose less time", falls.size() - told);
  }
}

constexpr const char* decimal_digits = "0123456789";

// Of "[1,0]<stdout>:" or "[1,0]:" before a line; 0: there is none.
std::size_t tag_length(std::string_view line) {
  std::size_t at = 1;
  for (const char end : {',', ']'}) {
    const std::size_t stop = line.find_first_not_of(decimal_digits, at);
    if (stop == at || stop == std::string_view::npos || line[stop] != end) return 0;
    at = stop + 1;
  }
  const std::string_view stream = line.substr(at, std::string_view("<stdout>").size());
  if (stream == "<stdout>" || stream == "<stderr>") at += stream.size();
  return line.substr(at).starts_with(':') ? at + 1 : 0;
}

// Of "0: ", and spaces before it.
std::size_t label_length(std::string_view line) {
  const std::size_t from = std::min(line.find_first_not_of(" \t\v\f\r"), line.size());
  const std::size_t end = std::min(line.find_first_not_of(decimal_digits, from), line.size());
  return end > from && line.substr(end).starts_with(": ") ? end + 2 : 0;
}

[[noreturn]] void refuse(const NcclTestsRun& run, std::size_t line, const std::string& why) {
  throw UsageError(line > 0 ? fmt::format("{}: line {}: {}", run.file, line, why)
                            : fmt::format("{}: {}", run.file, why));
}

// One without a size or time says nothing.
void add_row(NcclTestsRun& run, NcclTestsRow row) {
  constexpr double most_bytes = std::int64_t{1} << 53;  // a whole number as double and in documents
  if (row.bytes > most_bytes) {
    refuse(run, row.line, fmt::format("a size of {:g} bytes is none of an exchange", row.bytes));
  }
  if (row.bytes > 0 && row.time_us > 0) run.rows.push_back(std::move(row));
}

void check_ranks(const NcclTestsRun& run, const Ranks& ranks) {
  if (ranks.repeated > 0) {
    refuse(run, run.line,
           fmt::format("rank {} is listed several times: nccl-tests built without MPI ran alone in "
                       "each process; build it with MPI=1",
                       *ranks.numbers.begin()));
  }
  if (ranks.groups.size() > 1) {
    refuse(run, run.line,
           fmt::format("{} groups at once (NCCL_TESTS_SPLIT): run one, which has the links to "
                       "itself",
                       ranks.groups.size()));
  }
  if (ranks.devices.size() > 1) refuse(run, run.line, "different GPUs in one run");
  const int each = ranks.on_host.begin()->second;
  for (const auto& [host, gpus] : ranks.on_host) {
    if (gpus == each) continue;
    refuse(run, run.line,
           fmt::format("{} GPUs on {}, {} on {}: run with the same number on each host", each,
                       ranks.on_host.begin()->first, gpus, host));
  }
}

// Several operations in one group or graph (-m, -G) take less than as many alone; "": neither.
std::string settings_of(const std::string& group, const std::string& graph) {
  if (group != "1") return fmt::format("{} operations in one group (-m)", group);
  return graph == "0" ? "" : fmt::format("{} operations in one CUDA graph (-G)", graph);
}

std::string doubt_settings(const std::string& where, const std::string& settings) {
  return fmt::format(
      "warning: {}: {}: times of small sizes are shorter than those of exchanges one by one, which "
      "layers wait for",
      where, settings);
}

// Reads the printed output line by line.
class PrintedOutput {
 public:
  explicit PrintedOutput(std::string file) : file_(std::move(file)) { run_.file = file_; }

  std::vector<NcclTestsRun> read() {
    std::istringstream text(read_file(file_));
    for (std::string line; std::getline(text, line);) {
      ++line_;
      take(without_prefix(line));
    }
    finish();
    return std::move(runs_);
  }

 private:
  // mpirun --tag-output: "[1,0]<stdout>:# ..."; srun --label: "0: # ...".
  static std::string without_prefix(const std::string& line) {
    constexpr std::size_t longest = 40;
    const std::string_view head = std::string_view(line).substr(0, longest);
    return line.substr(head.starts_with('[') ? tag_length(head) : label_length(head));
  }

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
      nccl_ = version_of(static_cast<int>(parse_whole(where(), match[1].str(), 1, 999999)));
    } else if (line.find("NCCL version ") != std::string::npos &&
               std::regex_search(line, match, printed)) {
      nccl_ = match[1];
    }
  }

  // From "# Collective test starting: alltoall_perf" or a command line among the output.
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
      take_settings(line);
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

  void take_settings(const std::string& line) {
    static const std::regex grouped(R"(agg iters: (\d+))");
    static const std::regex graph(R"(graph: (\d+))");
    std::smatch match;
    const std::string group = std::regex_search(line, match, grouped) ? match[1].str() : "1";
    const std::string launches = std::regex_search(line, match, graph) ? match[1].str() : "0";
    settings_ = settings_of(group, launches);
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
    if (!whole) {
      refuse(run_, line_,
             fmt::format("{} columns instead of size, count, type, redop, root, and time, algbw, "
                         "busbw, #wrong out of place and in place: the output is cut off",
                         words.size()));
    }
    next += figures % half_;  // root
    row.time_us = number(words[next]);
    const double algorithm = number(words[next + 1]), bus = number(words[next + 2]);
    if (row.bytes > 0 && row.time_us > 0 && run_.doubts.size() < most_doubts &&
        !agree(row.bytes, row.time_us, algorithm)) {
      run_.doubts.push_back(fmt::format(
          "{}: {} bytes in {} us are {:.2f} GB/s, but algbw says {}: one of the cells is wrong; "
          "the "
          "time is taken, look at the line",
          where(), words[0], words[next], row.bytes / (1e3 * row.time_us), words[next + 1]));
    }
    // Two decimals: a ratio of less than 1 GB/s says little.
    row.bus_over_algorithm = algorithm >= 1 ? bus / algorithm : 0;
    const std::string& wrong = words[next + 3];
    if (checked_ && wrong != "0" && wrong != "N/A") {
      refuse(run_, line_,
             fmt::format("{} wrong values: this run measured nothing that counts", wrong));
    }
    add_row(run_, std::move(row));
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
    run_.program = std::exchange(program_, "");
    run_.nccl = nccl_;
    run_.gpus = ranks_.count;
    const std::string settings = std::exchange(settings_, "");
    const bool ended = std::exchange(ended_, false);
    const std::string failure = std::exchange(failure_, "");
    if (ranks_.count > 0) {
      doubt_run(ended, failure, settings);
      check_ranks(run_, ranks_);
      run_.hosts = static_cast<int>(ranks_.on_host.size());
      run_.device = *ranks_.devices.begin();
      runs_.push_back(std::move(run_));
    }
    run_ = {};
    run_.file = file_;
    ranks_ = {};
    half_ = 4;
    checked_ = true;
    in_table_ = false;
  }

  void doubt_run(bool ended, const std::string& failure, const std::string& settings) {
    if (run_.rows.empty()) return;
    if (!ended) {
      run_.doubts.push_back(fmt::format(
          "warning: {}: line {}: no 'Avg bus bandwidth' line below this row, the last of its run: "
          "{}, and larger sizes may be missing",
          file_, run_.rows.back().line,
          failure.empty() ? "the run failed or its output is cut off"
                          : fmt::format("the run failed ({})", failure)));
    }
    if (!settings.empty()) {
      run_.doubts.push_back(doubt_settings(fmt::format("{}: line {}", file_, run_.line), settings));
    }
  }

  std::string file_;
  std::size_t line_ = 0;
  std::string program_, nccl_;
  std::string settings_;  // of the run: what makes its times shorter
  bool ended_ = false;    // the footer of the run was seen
  std::string failure_;   // the first line that says so
  NcclTestsRun run_;
  Ranks ranks_;
  std::size_t half_ = 4;
  bool checked_ =
      true;  // the last column counts wrong values; "error" in old versions: a difference
  bool in_table_ = false;
  std::vector<NcclTestsRun> runs_;
};

void check_values(const Node& half) {
  if (half.number_or("nwrong", 0) != 0) {
    half.fail("wrong values: this run measured nothing that counts", "nwrong");
  }
}

// Of a file of -J. A run that fails leaves one, too, without what follows the results.
void doubt_json(const Node& root, NcclTestsRun& run) {
  const Node config = root.at("config");
  const std::string settings =
      settings_of(std::to_string(config.count_or("aggregated_iterations", 1)),
                  std::to_string(config.count_or("graph", 0)));
  if (!settings.empty()) run.doubts.push_back(doubt_settings(run.file, settings));
  if (!root.has("out_of_bounds")) {
    run.doubts.push_back(
        fmt::format("warning: {}: no \"out_of_bounds\" after the results: the run failed, and "
                    "larger sizes may be missing",
                    run.file));
  }
  if (!root.has("errors")) return;
  for (const std::string& error : root.texts("errors")) {
    if (error.empty()) continue;
    run.doubts.push_back(
        fmt::format("warning: {}: NCCL's last error: {}", run.file, printable(error)));
  }
}

// The file of option -J (nccl-tests 2.17 and later).
NcclTestsRun read_json(const std::string& file) {
  const Document document = Document::load(file);
  const Node root = document.root();
  NcclTestsRun run;
  run.file = file;
  if (root.has("args")) {
    const std::vector<std::string> words = root.texts("args");
    if (!words.empty()) run.program = words.front().substr(words.front().find_last_of('/') + 1);
  }
  if (root.has("nccl_version")) {
    run.nccl = version_of(root.count("nccl_version"));
  }
  const Node config = root.at("config");
  Ranks ranks;
  std::int64_t last_rank = 0;
  for (const Node& device : config.items("devices")) {
    last_rank = std::max(last_rank, device.integer("rank"));
    ranks.add(std::to_string(device.integer("rank")), std::to_string(device.integer_or("group", 0)),
              device.text("hostname"), device.text("device_info"));
  }
  if (ranks.count == 0) config.fail("no GPU", "devices");
  check_ranks(run, ranks);
  run.device = *ranks.devices.begin();
  run.hosts = static_cast<int>(ranks.on_host.size());
  run.gpus = ranks.count;
  // A process of several GPUs may list its first one alone: then the ranks are as far apart.
  const std::int64_t threads = config.count_or("nthreads", 1, 1);
  const std::int64_t own = threads * config.count_or("ngpus", 1, 1);
  const bool fits = own <= std::numeric_limits<int>::max() / ranks.count;
  if (fits && last_rank == (ranks.count - 1) * own) run.gpus = static_cast<int>(ranks.count * own);
  if (const auto bounds = root.find("out_of_bounds")) {
    if (const std::int64_t count = bounds->integer_or("count", 0); count != 0) {
      bounds->fail(
          fmt::format("{} values out of bounds: this run measured nothing that counts", count),
          "count");
    }
  }
  for (const Node& node : root.items("results")) {
    if (const auto in_place = node.find("in_place")) check_values(*in_place);
    const auto half = node.find("out_of_place");
    if (!half) continue;
    if (half->has("cpu_time")) half->fail("these are CPU times (-C 1): run without it", "cpu_time");
    check_values(*half);
    const double algorithm = half->number("alg_bw");
    NcclTestsRow row{0,
                     node.number("size"),
                     node.text("type"),
                     node.text_or("redop", ""),
                     half->number("time"),
                     algorithm >= 1 ? half->number("bus_bw") / algorithm : 0};
    add_row(run, std::move(row));
  }
  doubt_json(root, run);
  return run;
}

// What stands before "#  Rank  0 ..." where that does not begin its line, as log collectors write
// times and hosts; empty: no such line.
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

void name_operation(NcclTestsRun& run) {
  run.operation = operation_of(run.program);
  if (!run.program.empty() && run.operation.empty()) {
    refuse(run, run.line,
           fmt::format("{}: known are alltoall_perf, all_reduce_perf, all_gather_perf, "
                       "reduce_scatter_perf, sendrecv_perf",
                       run.program));
  }
}

}  // namespace

double bus_factor(const std::string& operation, double ranks) {
  if (operation == "all-reduce") return 2 * (ranks - 1) / ranks;
  if (operation == "send-receive") return 1;
  return (ranks - 1) / ranks;
}

std::vector<NcclTestsRun> read_nccl_tests_log(const std::string& file) {
  std::vector<NcclTestsRun> runs;
  if (file.ends_with(".json")) {
    runs.push_back(read_json(file));
  } else {
    runs = PrintedOutput(file).read();
  }
  int ranks = 0;
  std::size_t rows = 0;
  for (NcclTestsRun& run : runs) {
    ranks = std::max(ranks, run.gpus);
    rows += run.rows.size();
    name_operation(run);
    doubt_falls(run);
    if (run.gpus > 1 && run.rows.empty() && runs.size() > 1) {
      refuse(run, run.line, "this run has no rows of times: it failed or is cut off");
    }
  }
  if (ranks < 2 || rows == 0) {
    if (const std::string prefix = prefix_of_ranks(file); ranks == 0 && !prefix.empty()) {
      throw UsageError(
          fmt::format("{}: lines have '{}' before what nccl-tests printed: take such prefixes off "
                      "(sed, cut -c{}-); those of mpirun --tag-output and srun --label may stay",
                      file, printable(prefix), prefix.size() + 1));
    }
    throw UsageError(
        fmt::format("{}: {} '# Rank' lines and {} rows of times below a heading: this is no "
                    "output of nccl-tests on 2 or more GPUs, or its lines with # are missing: give "
                    "all of it",
                    file, ranks, rows));
  }
  return runs;
}

void check_operation(const NcclTestsRun& run, const std::string& operation) {
  if (!run.operation.empty() && run.operation != operation) {
    refuse(run, run.line, fmt::format("{} is {}, not {}", run.program, run.operation, operation));
  }
  const double expected = bus_factor(operation, run.gpus);
  for (const NcclTestsRow& row : run.rows) {
    // Of two bandwidths of two decimals, at least 1.
    const auto fits = [&](double factor) {
      return std::abs(row.bus_over_algorithm - factor) < 0.02;
    };
    if (row.bus_over_algorithm == 0 || fits(expected)) continue;
    for (const Program& other : programs) {
      if (!fits(bus_factor(other.operation, run.gpus))) continue;
      refuse(
          run, row.line,
          fmt::format("busbw is {:.2f} of algbw as of {} among {} GPUs; of {} it is {:.2f}: this "
                      "is another operation",
                      row.bus_over_algorithm, other.operation, run.gpus, operation, expected));
    }
  }
}

}  // namespace moesim::profile
