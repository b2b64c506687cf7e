#include "tools/moesim/recommend/recommend_chart.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "tools/moesim/output.hpp"
#include "tools/moesim/process.hpp"

namespace moesim::tool {
namespace {

// A file of rows that goes when it goes out of scope.
class Rows {
 public:
  explicit Rows(const std::string& csv) {
    std::error_code ignored;
    path_ = (std::filesystem::temp_directory_path(ignored) / "moesim-front-XXXXXX").string();
    const int descriptor = ::mkstemp(path_.data());
    if (descriptor < 0) throw Error(fmt::format("{}: cannot make a temporary file", path_));
    ::close(descriptor);
    write_file_atomically(path_, csv);
  }
  ~Rows() { ::unlink(path_.c_str()); }
  Rows(const Rows&) = delete;  // a second owner would remove the file early
  Rows& operator=(const Rows&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

void check_chart(const std::string& path) {
  if (!path.ends_with(".png") && !path.ends_with(".pdf") && !path.ends_with(".svg")) {
    throw UsageError(fmt::format("--chart: {}: the name must end in .png, .pdf or .svg", path));
  }
  check_writable(path);
}

void draw_front(const std::string& csv, double noise, const std::string& path) {
  const std::optional<std::string> script = find_shipped("plot/front_chart.py");
  const std::string python = plotting_python();
  if (!script || python.empty()) {
    throw Error(
        "--chart: needs Python with matplotlib (package python3-matplotlib, or an interpreter in "
        "MOESIM_PYTHON) and moesim's plotter: leave --chart out, and draw the CSV of --out",
        ExitCode::missing_hardware);
  }
  const Rows rows(csv);
  const int code = run_process(
      {python, *script, rows.path(), "--noise", fmt::format("{}", noise), "--out", path}, false);
  if (code != 0) throw Error(fmt::format("--chart {}: the plotter failed", path));
  note(fmt::format("chart: {}", path));
}

}  // namespace moesim::tool
