#include "tools/moesim/base/timeline.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>

#include "sim/base/file.hpp"
#include "sim/base/formats/gzip.hpp"
#include "sim/base/text.hpp"
#include "sim/report/chrome_trace.hpp"
#include "tools/moesim/base/output.hpp"

namespace moesim::tool {
namespace {

constexpr std::string_view rank_mark = "{rank}";

// Many files want a folder of their own: it is made. Where it cannot be, writing says so.
void make_folder_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code ignored;
  if (!folder.empty()) std::filesystem::create_directories(folder, ignored);
}

}  // namespace

void write_timeline(const std::string& path, const std::string& text) {
  write_file_atomically(path, path.ends_with(".gz") ? packed(text) : text);
}

Flag timeline_flag(const std::string& what) {
  return {"timeline", "FILE", "none",
          "Chrome trace of " + what +
              "; a name with {rank} makes a file for each GPU, as torch.profiler does, in a "
              "folder that need not be there; .gz packs it"};
}

Flag timeline_gpus_flag() {
  return {"timeline-gpus", "LIST", "all", "of the timeline: GPUs to take, such as 0,8"};
}

TimelineFiles::TimelineFiles(const CommandLine& line, int gpus)
    : path_(line.get("timeline")), gpus_(gpus) {
  if (line.has("timeline-gpus")) {
    if (path_.empty()) throw UsageError("--timeline-gpus: give --timeline FILE too");
    const std::string list = line.get("timeline-gpus");
    for (const std::string_view part : split(list, ',')) {
      chosen_.push_back(
          static_cast<int>(parse_whole("--timeline-gpus", std::string(part), 0, gpus - 1)));
    }
  }
  if (path_.empty()) return;
  const std::string first = path_of(chosen_.empty() ? 0 : chosen_.front());
  if (first != path_) make_folder_of(first);
  check_writable(first);
}

std::string TimelineFiles::path_of(int rank) const {
  const std::size_t mark = path_.find(rank_mark);
  if (mark == std::string::npos) return path_;
  return path_.substr(0, mark) + std::to_string(rank) + path_.substr(mark + rank_mark.size());
}

bool TimelineFiles::is_chosen(int rank) const {
  return chosen_.empty() || std::find(chosen_.begin(), chosen_.end(), rank) != chosen_.end();
}

void TimelineFiles::write(const engine::Timeline& timeline, const std::string& title,
                          const std::string& what) const {
  engine::Timeline kept;
  std::set<int> ranks;
  for (const engine::TimelineEvent& event : timeline) {
    if (!is_chosen(event.rank)) continue;
    kept.push_back(event);
    ranks.insert(event.rank);
  }
  if (ranks.empty()) {
    throw UsageError(
        "--timeline-gpus: none of these is in the timeline, which has one GPU of each "
        "pipeline rank: leave it out");
  }
  if (path_.find(rank_mark) == std::string::npos) {
    write_timeline(path_, report::chrome_trace(kept, title));
    note(fmt::format("timeline of {}: {} (open it in ui.perfetto.dev)", what, path_));
    return;
  }
  for (const int rank : ranks) {
    make_folder_of(path_of(rank));
    write_timeline(path_of(rank), report::rank_trace(kept, title, rank, gpus_));
  }
  note(
      fmt::format("timeline of {}: {} files, {} to {} (for Holistic Trace Analysis, or "
                  "ui.perfetto.dev)",
                  what, ranks.size(), path_of(*ranks.begin()), path_of(*ranks.rbegin())));
}

}  // namespace moesim::tool
