// The events are Kineto's: libkineto/src/output_json.cpp. Kernels, copies and fills have a
// "correlation" with the cuda_runtime or cuda_driver event that launched them; times are in
// microseconds.
#include "sim/study/explain/measured_trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include "sim/base/error.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/formats/kineto.hpp"

namespace moesim::study {
namespace {

using Json = nlohmann::json;
using Lane = std::pair<std::string, std::string>;  // pid, tid

struct Range {
  double start_us = 0;
  double end_us = 0;
  KernelKind kind = KernelKind::unknown;
};

struct Kernel {
  KernelName name;
  Lane lane;
  double start_us = 0;
  double end_us = 0;
  std::int64_t correlation = -1;
};

struct Launch {
  Lane lane;
  double start_us = 0;
};

struct Mark {
  double start_us = 0;
  double end_us = 0;
};

// What one file says.
struct Contents {
  std::map<std::string, std::vector<Kernel>> devices;
  std::map<Lane, std::vector<Range>> ranges;
  std::map<std::int64_t, Launch> launches;
  std::map<std::string, Mark> marks;  // of the host
};

std::string text(const Json& event, const char* key) { return argument_text(event, key); }

std::optional<double> number(const Json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end() || !found->is_number()) return std::nullopt;
  const double value = found->get<double>();
  constexpr double most_us = 1e18;  // 30,000 years
  if (!(std::abs(value) <= most_us)) return std::nullopt;
  return value;
}

std::int64_t correlation_of(const Json& arguments) {
  if (!arguments.is_object()) return -1;
  const auto found = arguments.find("correlation");
  if (found == arguments.end() || !found->is_number_integer()) return -1;
  return found->get<std::int64_t>();
}

void take(const Json& event, Contents& contents) {
  if (!event.is_object() || text(event, "ph") != "X") return;
  const std::string category = text(event, "cat");
  const std::optional<double> start = number(event, "ts");
  const std::optional<double> duration = number(event, "dur");
  if (!start || !duration || *duration < 0) return;
  const Lane lane{text(event, "pid"), text(event, "tid")};
  const std::string name = text(event, "name");
  const auto found = event.find("args");
  static const Json none = Json::object();
  const Json& arguments = found == event.end() ? none : *found;
  const double end = *start + *duration;
  if (category == "kernel" || category == "gpu_memcpy" || category == "gpu_memset") {
    std::string group = argument_text(arguments, "Process Group Description");
    if (group.empty()) group = argument_text(arguments, "Process Group Name");
    contents.devices[lane.first].push_back(
        {{name, argument_text(arguments, "Collective name"), std::move(group)},
         lane,
         *start,
         end,
         correlation_of(arguments)});
  } else if (category == "cuda_runtime" || category == "cuda_driver") {
    const std::int64_t correlation = correlation_of(arguments);
    if (correlation >= 0) contents.launches[correlation] = {lane, *start};
  } else if (name.starts_with("ProfilerStep#")) {
    if (category != "gpu_user_annotation") contents.marks[name] = {*start, end};
  } else if (category == "user_annotation" || category == "gpu_user_annotation" ||
             (category == "python_function" && name.starts_with("nn.Module: "))) {
    const KernelKind kind = classify_range(name);
    if (kind != KernelKind::unknown) contents.ranges[lane].push_back({*start, end, kind});
  }
}

// The innermost range of a lane around a moment. Ranges of one lane are nested, so that the latest
// start is the innermost.
KernelKind range_at(const std::map<Lane, std::vector<Range>>& ranges, const Lane& lane,
                    double time) {
  const auto found = ranges.find(lane);
  if (found == ranges.end()) return KernelKind::unknown;
  const std::vector<Range>& all = found->second;
  auto at = std::upper_bound(all.begin(), all.end(), time, [](double moment, const Range& range) {
    return moment < range.start_us;
  });
  constexpr int most_back = 4096;  // siblings before it
  for (int steps = 0; at != all.begin() && steps < most_back; ++steps) {
    --at;
    if (time < at->end_us) return at->kind;
  }
  return KernelKind::unknown;
}

KernelClass class_of(const Kernel& kernel, const Contents& contents) {
  KernelClass kernel_class = classify_kernel(kernel.name);
  if (kernel_class.is_exchange) return kernel_class;
  KernelKind kind = range_at(contents.ranges, kernel.lane, kernel.start_us);
  const auto launch = contents.launches.find(kernel.correlation);
  if (kind == KernelKind::unknown && launch != contents.launches.end()) {
    kind = range_at(contents.ranges, launch->second.lane, launch->second.start_us);
  }
  if (kind != KernelKind::unknown) kernel_class.kind = kind;
  return kernel_class;
}

Contents read(const std::string& file) {
  Contents contents;
  const Json events = trace_events(file);
  if (!events.is_array()) throw UsageError(fmt::format("{}: \"traceEvents\" is no array", file));
  for (const Json& event : events) take(event, contents);
  if (contents.devices.empty()) {
    throw UsageError(
        fmt::format("{}: no kernels of a GPU: record with activities=[ProfilerActivity.CPU, "
                    "ProfilerActivity.CUDA]",
                    file));
  }
  for (auto& [lane, ranges] : contents.ranges) {
    std::stable_sort(ranges.begin(), ranges.end(), [](const Range& one, const Range& other) {
      return one.start_us != other.start_us ? one.start_us < other.start_us
                                            : one.end_us > other.end_us;
    });
  }
  return contents;
}

// Index of the mark in which a kernel was launched, or starts; -1: before the first.
std::ptrdiff_t step_of(const Kernel& kernel, const Contents& contents,
                       const std::vector<Mark>& marks) {
  const auto launch = contents.launches.find(kernel.correlation);
  const double time = launch == contents.launches.end() ? kernel.start_us : launch->second.start_us;
  const auto after =
      std::upper_bound(marks.begin(), marks.end(), time,
                       [](double moment, const Mark& mark) { return moment < mark.start_us; });
  return after - marks.begin() - 1;
}

std::vector<KernelSum> sums(const std::vector<Kernel>& kernels, const Contents& contents) {
  std::map<std::pair<std::string, KernelKind>, KernelSum> found;
  for (const Kernel& kernel : kernels) {
    const KernelKind kind = class_of(kernel, contents).kind;
    KernelSum& sum = found[{kernel.name.name, kind}];
    sum.name = kernel.name.name;
    sum.kind = kind;
    ++sum.calls;
    sum.sum_ms += (kernel.end_us - kernel.start_us) / 1e3;
  }
  std::vector<KernelSum> result;
  for (auto& [key, sum] : found) result.push_back(std::move(sum));
  std::stable_sort(result.begin(), result.end(), [](const KernelSum& one, const KernelSum& other) {
    return one.sum_ms > other.sum_ms;
  });
  return result;
}

struct Step {
  double begin_us = 0;
  double end_us = 0;
  std::vector<Kernel> kernels;
};

std::vector<Step> steps_of(const std::vector<Kernel>& kernels, const Contents& contents) {
  std::vector<Mark> marks;
  for (const auto& [name, mark] : contents.marks) marks.push_back(mark);
  std::sort(marks.begin(), marks.end(),
            [](const Mark& one, const Mark& other) { return one.start_us < other.start_us; });
  std::vector<Step> all(std::max<std::size_t>(1, marks.size()));
  for (const Kernel& kernel : kernels) {
    const std::ptrdiff_t step = marks.empty() ? 0 : step_of(kernel, contents, marks);
    if (step < 0) continue;
    Step& mine = all[static_cast<std::size_t>(step)];
    const bool is_first = mine.kernels.empty();
    mine.begin_us = is_first ? kernel.start_us : std::min(mine.begin_us, kernel.start_us);
    mine.end_us = is_first ? kernel.end_us : std::max(mine.end_us, kernel.end_us);
    mine.kernels.push_back(kernel);
  }
  std::erase_if(all, [](const Step& step) { return step.kernels.empty(); });
  for (std::size_t step = 0; step + 1 < all.size(); ++step) {
    all[step].end_us = std::max(all[step].begin_us, all[step + 1].begin_us);
  }
  return all;
}

TracedStep measured(const std::string& file, const std::string& device,
                    const std::vector<Kernel>& kernels, const Contents& contents) {
  const std::vector<Step> steps = steps_of(kernels, contents);
  if (steps.empty()) {
    throw UsageError(
        fmt::format("{}: no kernel of GPU {} was launched inside a ProfilerStep#", file, device));
  }
  TracedStep result;
  result.file = file;
  result.device = device;
  result.has_marks = !contents.marks.empty();
  std::vector<std::size_t> order;
  for (const Step& step : steps) {
    order.push_back(order.size());
    result.steps_ms.push_back((step.end_us - step.begin_us) / 1e3);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t one, std::size_t other) {
    return result.steps_ms[one] < result.steps_ms[other];
  });
  const Step& median = steps[order[(order.size() - 1) / 2]];
  std::vector<Bar> bars;
  for (const Kernel& kernel : median.kernels) {
    bars.push_back({kernel.start_us, kernel.end_us, class_of(kernel, contents)});
  }
  result.exchanges = static_cast<std::int64_t>(large_exchanges(bars));
  result.expert_us = expert_times(bars);
  result.exposed = exposed_time(std::move(bars), median.begin_us, median.end_us);
  result.kernels = sums(median.kernels, contents);
  return result;
}

// The order of GPUs, whatever that of the files: by number, as far as devices have one.
bool is_before(const TracedStep& one, const TracedStep& other) {
  const auto key = [](const TracedStep& step) {
    return std::tuple<std::size_t, const std::string&, const std::string&>(step.device.size(),
                                                                           step.device, step.file);
  };
  return key(one) < key(other);
}

void check_different(const std::vector<std::string>& files) {
  std::set<std::filesystem::path> seen;
  for (const std::string& file : files) {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::weakly_canonical(file, error);
    if (error || seen.insert(path).second) continue;  // a file that cannot be read is refused then
    throw UsageError(fmt::format("{}: given twice: its GPU would count as two", file));
  }
}

}  // namespace

TracedStep read_traced_step(const std::vector<std::string>& files) {
  check_different(files);
  std::vector<TracedStep> gpus;
  for (const std::string& file : files) {
    const Contents contents = read(file);
    for (const auto& [device, kernels] : contents.devices) {
      gpus.push_back(measured(file, device, kernels, contents));
    }
  }
  std::sort(gpus.begin(), gpus.end(), is_before);
  std::vector<ExposedTime> times;
  for (const TracedStep& gpu : gpus) times.push_back(gpu.exposed);
  const auto takes_time = [](const ExposedTime& time) { return time.total_ms > 0; };
  if (std::none_of(times.begin(), times.end(), takes_time)) {
    throw UsageError("no step that takes time: all kernels have \"dur\" 0");
  }
  const CriticalGpu critical = critical_gpu(times);
  std::vector<TracedGpu> all;
  for (const TracedStep& gpu : gpus) {
    all.push_back({gpu.file, gpu.device, gpu.exposed, gpu.expert_us});
  }
  TracedStep result = std::move(gpus[critical.index]);
  result.exposed = extended(result.exposed, critical.shorter_ms);
  result.gpus = gpus.size();
  result.all = std::move(all);
  return result;
}

}  // namespace moesim::study
