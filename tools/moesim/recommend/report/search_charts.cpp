#include "tools/moesim/recommend/report/search_charts.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/shipped.hpp"
#include "tools/moesim/base/drawn_chart.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/process.hpp"
#include "tools/moesim/base/temporary_file.hpp"
#include "tools/moesim/train/all_options.hpp"

namespace moesim::tool {

void check_chart(const std::string& path) {
  if (!path.ends_with(".png") && !path.ends_with(".pdf") && !path.ends_with(".svg")) {
    throw UsageError(fmt::format("--chart: {}: the name must end in .png, .pdf or .svg", path));
  }
  check_writable(path);
}

namespace {

// `script` with the words before and behind the name of a file of these rows.
void draw(const std::string& csv, const char* script_name, const std::vector<std::string>& before,
          const std::vector<std::string>& behind, const std::string& path) {
  const std::optional<std::string> script = find_shipped(script_name);
  const std::string python = plotting_python();
  if (!script || python.empty()) {
    throw Error(
        "--chart: needs Python with matplotlib (package python3-matplotlib, or an interpreter in "
        "MOESIM_PYTHON) and moesim's plotter: leave --chart out, and draw the CSV of --out",
        ExitCode::missing_hardware);
  }
  const TemporaryFile rows(csv);
  std::vector<std::string> words = {python, *script};
  words.insert(words.end(), before.begin(), before.end());
  words.push_back(rows.path());
  words.insert(words.end(), behind.begin(), behind.end());
  const int code = draw_chart(std::move(words), path);
  if (code != 0) throw Error(fmt::format("--chart {}: the plotter failed", path));
  note(fmt::format("chart: {}", path));
}

}  // namespace

void draw_front(const std::string& csv, const OrderNoise& noise, const std::string& path) {
  const TemporaryFile options(all_options().dump());
  draw(csv, "plot/front_chart.py", {},
       {"--noise", fmt::format("{}", noise.of_others.value_or(0)), "--capacity-noise",
        fmt::format("{}", noise.of_capacity.value_or(0)), "--options", options.path()},
       path);
}

void draw_scaling(const std::string& csv, const std::string& path) {
  const TemporaryFile options(all_options().dump());
  draw(csv, "plot/plot.py", {"scaling"}, {"--options", options.path()}, path);
}

void draw_machines(const std::string& csv, const std::string& path) {
  const TemporaryFile options(all_options().dump());
  draw(csv, "plot/plot.py", {"sweep"}, {"--options", options.path()}, path);
}

}  // namespace moesim::tool
