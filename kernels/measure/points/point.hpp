#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/measure/timing/activity.hpp"
#include "kernels/measure/timing/samples.hpp"
#include "kernels/measure/timing/stopping.hpp"

namespace moesim::kernels::measure {

// Every setting that changes a result, in the order in which it is written: whole numbers, numbers,
// texts and booleans.
using Params = nlohmann::ordered_json;

// What is to be measured at one point of a suite.
struct PointSpec {
  std::string op;
  Params params = Params::object();
  // What it takes at least, for estimates and for refusing what does not fit: floating-point
  // operations on tensor cores, bytes moved to and from memory, bytes sent to other GPUs, bytes of
  // device memory held.
  double flops = 0;
  double bytes = 0;
  double sent_bytes = 0;
  double held_bytes = 0;
  // All ranks take part, not the first alone.
  bool collective = false;
  // What making it ready takes beside filling memory: a kernel that is compiled, say.
  double prepare_s = 0;
  // Calls back to back in one sample, whose time is divided by it.
  std::size_t calls = 1;
  // The device works so many seconds without a rest before samples count.
  double heat_s = 0;

  // "gemm {"dtype":"bf16","k":4096,...}": one text per tuple of independent variables.
  std::string key() const;
  // "gemm dtype=bf16 m=128 n=4096 k=4096".
  std::string label() const;
};

// One way of timing, over all its samples, in microseconds.
struct Figures {
  std::vector<double> samples;  // all of them, in the order they were taken
  Summary summary;              // of those that count
  Stop stop = Stop::no;
  std::size_t dropped = 0;  // at a fallen clock
  std::size_t calls = 1;    // of one sample, whose time is divided by it
};

// The two figures of collectives that say how far the ranks were apart, in microseconds.
struct Skew {
  double least = 0;   // median over samples of the fastest rank's time, of one call
  double median = 0;  // of slowest minus fastest, of a whole sample: its calls end together, so
                      // that this is how far apart the ranks began, however many calls there are
};

enum class Quality { good, unsettled, throttled, unstable };
const char* name_of(Quality quality);

// One measured point.
struct Point {
  std::string op;
  Params params = Params::object();
  std::string suite;
  std::string timer;
  std::optional<Figures> cold;
  std::optional<Figures> hot;
  std::optional<Skew> skew;
  std::optional<Activity> activity;  // of one call, from a pass of its own
  std::string activity_trouble;      // why a trace is void
  double clock_mhz = 0;              // 0: not known
  Quality quality = Quality::good;
  std::string verify;                 // "passed", or why the point is void
  Params details = Params::object();  // what the workload found out beside its times
  bool synthetic = false;

  bool valid() const { return verify == "passed"; }
  std::string key() const;
  // The headline figure: of kernels under 20 us the hot one, since events resolve about 0.5 us,
  // else the cold one. Nothing for a void point.
  std::optional<double> time_us() const;
};

// As the profile document carries it: summaries, no samples.
nlohmann::ordered_json to_json(const Point& point);
// As the raw document carries it: with every sample.
nlohmann::ordered_json to_raw_json(const Point& point);
// Throws UsageError naming `where` and the key that is not as `to_raw_json` writes it.
Point point_from_json(const nlohmann::json& json, const std::string& where);

}  // namespace moesim::kernels::measure
