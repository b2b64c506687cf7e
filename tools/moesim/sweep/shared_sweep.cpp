#include "tools/moesim/sweep/shared_sweep.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/text.hpp"
#include "tools/moesim/base/kept_result.hpp"
#include "tools/moesim/base/progress.hpp"

namespace moesim::tool {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto pause_between_looks = std::chrono::milliseconds(100);
// A process that has not begun by then is taken to be dead.
constexpr auto longest_start = std::chrono::seconds(120);
constexpr auto unmentioned_wait = std::chrono::seconds(5);

std::optional<std::size_t> number_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? std::nullopt : parse_number<std::size_t>(text);
}

std::string text_of(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? "" : text;
}

// An exclusive lock on a file; the kernel releases it when the process ends in any way.
class FileLock {
 public:
  // `folder_gone` is set if there is no such folder any more.
  FileLock(const fs::path& path, bool wait, bool& folder_gone) {
    descriptor_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0666);
    if (descriptor_ < 0) {
      folder_gone = errno == ENOENT;
      if (!folder_gone) {
        throw Error(fmt::format("{}: cannot be written: {}", path.string(), std::strerror(errno)));
      }
      return;
    }
    held_ = ::flock(descriptor_, LOCK_EX | (wait ? 0 : LOCK_NB)) == 0;
    if (!held_ && errno != EWOULDBLOCK && errno != EINTR) {
      throw Error(
          fmt::format("{}: cannot be locked: {}: choose an --out on a file system that has "
                      "locks, or use --shard",
                      path.string(), std::strerror(errno)));
    }
  }
  ~FileLock() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FileLock(const FileLock&) = delete;  // a second owner would release the lock twice
  FileLock& operator=(const FileLock&) = delete;
  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

class Member {
 public:
  Member(const SharedSweep& sweep, const Launched& process)
      : sweep_(sweep),
        process_(process),
        folder_(parts_folder(sweep.out)),
        chunks_(chunks_of(sweep.points)),
        finished_(chunks_.size(), false) {}

  ExitCode run() {
    begin();
    try {
      return work();
    } catch (const Error&) {
      // Files vanish under a process that looks at them while another one puts all together.
      std::error_code ignored;
      if (!fs::exists(folder_ / "job", ignored)) return ExitCode::ok;
      throw;
    }
  }

 private:
  ExitCode work() {
    ProgressLine progress("scenarios");
    while (!folder_gone_ && done_ < chunks_.size()) {
      const std::size_t before = done_;
      for (std::size_t chunk = 0; chunk < chunks_.size() && !folder_gone_; ++chunk) {
        if (stopped()) return interrupted();
        if (!finished_[chunk]) look_at(chunk);
        if (process_.rank == 0) progress.show(rows_done_, sweep_.names.total());
      }
      if (done_ == before) std::this_thread::sleep_for(pause_between_looks);
    }
    progress.finish();
    return folder_gone_ ? ExitCode::ok : put_together();
  }

  bool stopped() const { return sweep_.settings.stop != nullptr && *sweep_.settings.stop; }

  ExitCode interrupted() const {
    note(
        fmt::format("interrupted: {} of {} scenarios are in {}; the same command with --resume "
                    "continues",
                    rows_done_, sweep_.names.total(), folder_.string()));
    return ExitCode::interrupted;
  }

  fs::path part(std::size_t chunk) const { return folder_ / fmt::format("{}.csv", chunk); }
  fs::path arrival(std::size_t rank) const { return folder_ / fmt::format("rank-{}", rank); }

  // All ranks say that they are there, so that none begins anew after the others have ended.
  void begin() {
    std::error_code ignored;
    fs::create_directories(folder_, ignored);
    const fs::path job = folder_ / "job";
    FileLock lock(folder_ / "job.lock", true, folder_gone_);
    if (folder_gone_) throw Error(fmt::format("{}: cannot be made", folder_.string()));
    if (fs::exists(job) && is_of_another_run(job)) {
      if (!sweep_.resume) {
        throw UsageError(
            fmt::format("{} has parts of an interrupted sweep: --resume continues it; "
                        "to begin anew remove the folder",
                        folder_.string()));
      }
      for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
        if (entry.path().filename().string().starts_with("rank-"))
          fs::remove(entry.path(), ignored);
      }
    }
    write_file_atomically(job.string(), process_.job);
    write_file_atomically(arrival(process_.rank).string(), "");
  }

  // Launchers that give their jobs no name: this rank was there before.
  bool is_of_another_run(const fs::path& job) const {
    if (process_.job.empty()) return fs::exists(arrival(process_.rank));
    return read_file(job.string()) != process_.job;
  }

  void look_at(std::size_t chunk) {
    if (take_finished(chunk)) return;
    const FileLock lock(folder_ / fmt::format("{}.lock", chunk), false, folder_gone_);
    if (!lock.held() || take_finished(chunk)) return;
    std::vector<study::SweepPoint> own;
    for (const std::size_t point : chunks_[chunk]) own.push_back(sweep_.points[point]);
    const study::SweepResult result = study::sweep(own, sweep_.settings);
    if (!result.complete()) return;
    std::vector<study::Row> rows;
    for (const auto& row : result.rows) rows.push_back(*row);
    write_file_atomically(part(chunk).string(), sweep_.names.csv(chunks_[chunk], rows));
    take_finished(chunk);
  }

  bool take_finished(std::size_t chunk) {
    std::error_code ignored;
    if (!fs::exists(part(chunk), ignored)) return false;
    if (sweep_.names.rows_in(part(chunk).string()) != chunks_[chunk].size()) return false;
    finished_[chunk] = true;
    ++done_;
    rows_done_ += chunks_[chunk].size();
    return true;
  }

  void await_others() const {
    const Clock::time_point start = Clock::now();
    bool mentioned = process_.rank != 0;
    for (std::size_t rank = 0; rank < process_.size; ++rank) {
      while (fs::exists(folder_) && !fs::exists(arrival(rank)) && !stopped() &&
             Clock::now() - start < longest_start) {
        if (!mentioned && Clock::now() - start > unmentioned_wait) {
          note(
              fmt::format("every scenario is finished; process {} of {} has not begun: waiting for "
                          "it for at most {} s",
                          rank, process_.size, longest_start.count()));
          mentioned = true;
        }
        std::this_thread::sleep_for(pause_between_looks);
      }
    }
  }

  ExitCode put_together() {
    await_others();
    const FileLock lock(folder_ / "merge.lock", true, folder_gone_);
    std::error_code ignored;
    if (folder_gone_ || !fs::exists(folder_ / "job", ignored)) return ExitCode::ok;
    std::vector<std::string> files;
    for (std::size_t chunk = 0; chunk < chunks_.size(); ++chunk) {
      files.push_back(part(chunk).string());
    }
    const MergedParts merged = merge_parts(files);
    write_keeping(Output(sweep_.out), merged.csv, report::Format::csv, sweep_option_columns());
    fs::remove(folder_ / "job", ignored);
    // At once, so that nobody makes a file in it meanwhile.
    const fs::path done = folder_.string() + "-done";
    fs::rename(folder_, done, ignored);
    fs::remove_all(done, ignored);
    if (merged.refused > 0) {
      note(fmt::format("warning: {} of {} scenarios were refused (columns status and reason)",
                       merged.refused, merged.rows));
    }
    note(fmt::format("{} scenarios by {} processes: {}", merged.rows, process_.size, sweep_.out));
    return merged.refused == merged.rows ? ExitCode::failure : ExitCode::ok;
  }

  const SharedSweep& sweep_;
  const Launched& process_;
  fs::path folder_;
  std::vector<Chunk> chunks_;
  std::vector<bool> finished_;  // [chunk]
  std::size_t done_ = 0;
  std::size_t rows_done_ = 0;
  bool folder_gone_ = false;  // another process has put all together
};

}  // namespace

std::string parts_folder(const std::string& out) { return written_path(out) + ".parts"; }

std::optional<Launched> launched() {
  struct Launcher {
    const char* size;
    const char* rank;
    const char* job;
  };
  constexpr Launcher launchers[] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"},
      {"PMI_SIZE", "PMI_RANK", "PMI_JOBID"},
      {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_JOB_ID"}};
  for (const Launcher& launcher : launchers) {
    const auto size = number_of(launcher.size);
    const auto rank = number_of(launcher.rank);
    if (!size || !rank || *size < 2 || *rank >= *size) continue;
    std::string job = text_of(launcher.job);
    if (launcher.job == std::string_view("SLURM_JOB_ID")) job += "." + text_of("SLURM_STEP_ID");
    // Hydra (MPICH, Intel MPI) sets no PMI_JOBID; some versions set where it listens.
    if (launcher.job == std::string_view("PMI_JOBID") && job.empty()) job = text_of("PMI_PORT");
    return Launched{*rank, *size, job};
  }
  return std::nullopt;
}

ExitCode run_shared(const SharedSweep& sweep, const Launched& process) {
  return Member(sweep, process).run();
}

}  // namespace moesim::tool
