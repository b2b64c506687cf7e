#include "tools/moesim/output.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/file.hpp"
#include "sim/base/text.hpp"
#include "sim/routing/simulation/routing_cache.hpp"
#include "tools/moesim/progress.hpp"

namespace moesim::tool {

void note(const std::string& text) {
  const std::string line = printable(text) + "\n";
  // Nothing is left to tell it to if stderr is gone.
  static_cast<void>(std::fwrite(line.data(), 1, line.size(), stderr));
}

void note_idle_options(const scenario::OptionValues& typed,
                       std::span<const scenario::Scenario* const> scenarios,
                       scenario::Asker asker) {
  for (const scenario::IdleOption& idle : scenario::idle_options(typed, scenarios, asker)) {
    note(fmt::format("note: --{} has no effect: {}", idle.option, idle.why));
  }
}

void note_trace(const scenario::OptionValues& typed, const scenario::Scenario& scenario) {
  if (scenario.scores.trace == nullptr || !scenario.has_moe()) return;
  const routing::TraceShape& shape = scenario.scores.trace->shape();
  std::string taken;
  const auto take = [&](const char* option, std::int64_t value) {
    if (typed.count(option) == 0) taken += fmt::format(" --{} {}", option, value);
  };
  take("experts", scenario.experts);
  if (shape.ranks > 1) take("gpus", scenario.gpus);
  if (scenario.tokens_per_gpu == shape.tokens && typed.count("micro-batch") == 0 &&
      typed.count("sequence-length") == 0) {
    take("tokens-per-gpu", scenario.tokens_per_gpu);
  }
  if (!taken.empty()) note(fmt::format("note: from {}:{}", scenario.scores.name(), taken));
  std::string repeats;
  if (scenario.replicas > shape.steps) {
    repeats =
        fmt::format("{} replicas go through its {} steps again", scenario.replicas, shape.steps);
  }
  const int layers = scenario.moe_layers();
  if (layers > shape.layers) {
    repeats += fmt::format("{}{} MoE layers of {} through its {}", repeats.empty() ? "" : ", ",
                           layers, scenario.model_name, shape.layers);
  }
  if (!repeats.empty()) note(fmt::format("note: {}: {}", scenario.scores.name(), repeats));
}

void note_costly_routing(const scenario::Scenario& scenario) {
  if (!scenario.has_moe()) return;
  const routing::RoutingJob job = scenario.routing_job();
  const auto bytes = static_cast<double>(routing::result_bytes(job));
  const double memory = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
                        static_cast<double>(::sysconf(_SC_PAGE_SIZE));
  constexpr double gib = 1 << 30;
  if (bytes > memory) {
    throw UsageError(fmt::format(
        "the routing of one replica, {} GPUs x {} experts x {} layers, takes {:.0f} GiB, and this "
        "machine has {:.0f}: use fewer --gpus or --experts",
        job.gpus, job.experts, job.layers, bytes / gib, memory / gib));
  }
  // CPU time on one core with AVX-512 (tests/bench/README.md): top-k draws and routes a logit in 2
  // ns, other routers in up to 5; a count takes about 50.
  constexpr double logit_s = 3e-9;
  constexpr double count_s = 50e-9;
  const bool by_tokens = job.fidelity == routing::Fidelity::tokens;
  const double units = by_tokens ? routing::token_logits(job)
                                 : static_cast<double>(job.gpus) * job.experts * job.layers;
  const double seconds = units * (by_tokens ? logit_s : count_s) * scenario.replicas;
  constexpr double long_s = 60;
  if (seconds < long_s) return;
  const bool counts_are_less = by_tokens && routing::counts_refusal(job).empty();
  note(fmt::format(
      "note: {:.1f}e9 {} in each of {} replicas: routing takes about {} of CPU time{}; --replicas "
      "3, fewer GPUs{} take less",
      units * 1e-9, by_tokens ? "logits" : "counts", scenario.replicas, duration(seconds),
      bytes > gib ? fmt::format(" and {:.0f} GiB", bytes / gib) : "",
      counts_are_less ? " or --fidelity counts"
      : by_tokens     ? " or --router dropless"
                      : ""));
}

Output::Output(std::string path) : path_(std::move(path)) {
  if (!path_.empty()) check_writable(path_);
}

void Output::write(const std::string& content) const {
  if (!path_.empty()) {
    write_file_atomically(path_, content);
    return;
  }
  const bool terminal = ::isatty(STDOUT_FILENO) != 0;
  const std::string escaped = terminal ? printable(content) : "";
  const std::string& shown = terminal ? escaped : content;
  const std::size_t written = std::fwrite(shown.data(), 1, shown.size(), stdout);
  if (written != shown.size() || std::fflush(stdout) != 0) {
    throw Error(
        fmt::format("stdout: cannot write the result: {}; try --out FILE", std::strerror(errno)));
  }
}

report::Format chosen_format(const CommandLine& line, report::Format fallback) {
  if (line.has("format")) return report::parse_format(line.get("format"));
  const std::string out = line.get("out");
  for (const char* picture : {".png", ".svg", ".pdf", ".html", ".jpg"}) {
    if (!out.ends_with(picture)) continue;
    throw UsageError(fmt::format(
        "--out {}: the result is a table, not a chart: write a .csv and draw it with moesim plot",
        out));
  }
  if (out.ends_with(".csv")) return report::Format::csv;
  if (out.ends_with(".json")) return report::Format::json;
  return fallback;
}

Flag format_flag() {
  return {"format", "NAME", "table; csv or json if --out says so", "table, csv or json"};
}

Flag out_flag() { return {"out", "FILE", "stdout", "where the result goes"}; }

Flag jobs_flag() { return {"jobs", "N", "all cores", "threads; the result does not depend on it"}; }

int chosen_jobs(const CommandLine& line) {
  if (line.has("jobs")) {
    return static_cast<int>(parse_whole("--jobs", line.get("jobs"), 1, 4096));
  }
  return static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

}  // namespace moesim::tool
