#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <thread>

#include "kernels/base/shared_library.hpp"
#include "kernels/measure/devices/machine.hpp"
#include "kernels/measure/sessions/offers.hpp"
#include "kernels/measure/timing/watchdog.hpp"
#include "sim/base/formats/json_text.hpp"
#include "sim/base/shipped.hpp"
#include "sim/base/simd.hpp"
#include "sim/base/units.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/model/model.hpp"
#include "sim/profile/profile.hpp"
#include "tools/moesim/base/command.hpp"
#include "tools/moesim/base/host_memory.hpp"
#include "tools/moesim/base/output.hpp"
#include "tools/moesim/base/process.hpp"

namespace moesim::tool {
namespace {

namespace measure = kernels::measure;

struct Finding {
  std::string name;
  bool found = false;
  std::string detail;
  std::string without;  // what its absence disables, and what to do
};

std::string first_line_with(const std::string& path, const std::string& start) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(start)) return line;
  }
  return "";
}

std::string after_colon(const std::string& line) {
  const std::size_t colon = line.find(':');
  if (colon == std::string::npos) return line;
  const std::size_t text = line.find_first_not_of(" \t", colon + 1);
  return text == std::string::npos ? "" : line.substr(text);
}

Finding processor() {
  const std::string name = after_colon(first_line_with("/proc/cpuinfo", "model name"));
  return {"CPU", true,
          fmt::format("{}, {} threads, {:.0f} GiB memory", name.empty() ? "unnamed" : name,
                      std::thread::hardware_concurrency(), host_memory_bytes() / bytes_per_gib),
          ""};
}

Finding simd() {
  const SimdLevel level = best_simd_level();
  return {"SIMD", level != SimdLevel::baseline, name_of(level),
          "routing runs several times slower, with the same results"};
}

Finding compiler() { return {"compiler", true, "built with " __VERSION__, ""}; }

// The first of `names` that loads, searched for as `moesim profile` does. Nothing in it is called.
std::string loadable(const std::vector<std::string>& names, const char* variable) {
  for (const std::string& name : names) {
    const kernels::SharedLibrary library = kernels::open_shared_library(name, variable);
    if (library.handle == nullptr) continue;
    ::dlclose(library.handle);
    return name;
  }
  return "";
}

// `variable` of the environment may name the file.
Finding library(const std::string& name, const char* variable,
                const std::vector<std::string>& files, const std::string& without) {
  const std::string found = loadable(files, variable);
  return {name, !found.empty(), found.empty() ? "not found" : found, without};
}

// "libcublas.so.13" for each major version of CUDA that this build takes.
std::vector<std::string> files_of_cuda(const std::string& stem) {
  const std::string version = measure::cuda_of_build();
  if (!version.empty()) return {stem + ".so." + version.substr(0, version.find('.'))};
  return {stem + ".so.13", stem + ".so.12"};
}

Finding cuda() {
  const std::string version = measure::cuda_of_build();
  return {"CUDA", !version.empty(),
          version.empty() ? "this build has none" : "built with CUDA " + version,
          "kernels cannot be run or timed: build with a CUDA toolkit (nvcc)"};
}

Finding driver() {
  const std::string version = first_line_with("/proc/driver/nvidia/version", "NVRM version");
  void* library = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library != nullptr) ::dlclose(library);
  const bool there = !version.empty() && library != nullptr;
  return {"NVIDIA driver", there,
          there             ? after_colon(version)
          : version.empty() ? "not loaded"
                            : "no libcuda.so.1",
          "this machine cannot be measured; simulation uses the shipped profiles"};
}

std::string on_or_off(const std::string& name, const std::optional<bool>& on) {
  return on ? fmt::format(", {} {}", name, *on ? "on" : "off") : "";
}

std::string described(const measure::Device& device) {
  const measure::DeviceFacts facts = device.facts();
  const measure::DeviceState state = device.state();
  std::string text = fmt::format("{}, compute capability {}.{}, {} SMs, {:.0f} GiB", facts.name,
                                 facts.compute_major, facts.compute_minor, facts.sms,
                                 static_cast<double>(facts.memory_bytes) / bytes_per_gib);
  if (!state.driver.empty()) text += ", driver " + state.driver;
  if (state.power_limit_w > 0) text += fmt::format(", power limit {:.0f} W", state.power_limit_w);
  return text + on_or_off("ECC", state.ecc) + on_or_off("MIG", state.mig);
}

// A GPU that hangs would keep this command for ever.
measure::WatchdogOptions watch_over(const std::string& gpu) {
  measure::WatchdogOptions options;
  options.who = gpu;
  options.stall_s = 120;
  options.tell = [](const std::string& text) { note(text); };
  options.give_up = [](const std::string& where, ExitCode code) {
    note(fmt::format("moesim: error: {}: reset or restart the GPU", where));
    ::_exit(static_cast<int>(code));
  };
  return options;
}

// What the GPU is, and which points of `moesim profile` it measures: the smallest of each kind runs
// on it and is verified. GPUs of a name in `examined` are only described.
std::vector<Finding> gpu(measure::Machine& machine, int index, std::set<std::string>& examined) {
  const std::string name = fmt::format("GPU {}", index);
  const std::string without = "it cannot be measured; simulation uses the shipped profiles";
  measure::Watchdog dog(watch_over(name));
  dog.phase("opening the device");
  try {
    measure::SoloGroup alone;
    const auto device = machine.open(index, alone);
    std::vector<Finding> findings{{name, true, described(*device), ""}};
    if (!examined.insert(device->facts().name).second) return findings;
    std::vector<std::string> measured;
    for (const measure::Offer& offer :
         measure::examine(*device, 1, [&](const std::string& kind) { dog.phase(kind); })) {
      if (offer.trouble.empty()) {
        measured.push_back(offer.kind);
      } else {
        findings.push_back({name + ": " + offer.kind, false, offer.trouble,
                            "a profile measured here has no such points; where it has a curve of "
                            "them, it is the base profile's"});
      }
    }
    if (!measured.empty()) {
      std::sort(measured.begin(), measured.end());
      measured.erase(std::unique(measured.begin(), measured.end()), measured.end());
      findings.push_back(
          {name + " measures", true, fmt::format("{}", fmt::join(measured, ", ")), ""});
    }
    return findings;
  } catch (const Error& error) {
    return {{name, false, error.what(), without}};
  }
}

using OnFound = std::function<void(const std::vector<Finding>&)>;

std::string machine_trouble() {
  measure::Watchdog dog(watch_over("CUDA"));
  dog.phase("starting the driver");
  return measure::machine_trouble();
}

// Tells of each GPU as soon as it was examined.
void examine_gpus(const OnFound& on_found) {
  const std::string trouble = machine_trouble();
  if (!trouble.empty()) {
    return on_found(
        {{"GPU", false, trouble, "nothing can be measured; simulation uses the shipped profiles"}});
  }
  const auto machine = measure::open_machine();
  std::set<std::string> examined;
  for (int index = 0; index < machine->gpus(); ++index) {
    on_found(gpu(*machine, index, examined));
  }
}

std::vector<Finding> python() {
  const std::string found = plotting_python();
  const bool has_plotly = !found.empty() && python_has(found, "plotly");
  return {{"Python with matplotlib", !found.empty(), found.empty() ? "not found" : found,
           "moesim plot: install python3-matplotlib or set MOESIM_PYTHON"},
          {"Python with plotly", has_plotly, has_plotly ? found : "not found (optional)",
           "no pages of moesim plot (--out FILE.html): pip install plotly"}};
}

Finding documents(const std::string& what, const std::string& kind,
                  const std::function<void(const std::string&)>& load) {
  const std::vector<std::string> names = shipped_names(kind);
  std::string good;
  std::string bad;
  for (const std::string& name : names) {
    try {
      load(name);
      good += (good.empty() ? "" : ", ") + name;
    } catch (const Error& error) {
      bad += fmt::format("{}{}", bad.empty() ? "" : "; ", error.what());
    }
  }
  if (names.empty()) bad = "none in " + searched_places(kind);
  return {what, bad.empty(), bad.empty() ? good : bad,
          "set MOESIM_PROFILES to the folder of shipped documents, or give files of your own"};
}

// What is found without a call of the driver.
std::vector<Finding> examine_host() {
  std::vector<Finding> findings{processor(), simd(), compiler(), driver()};
  findings.push_back(cuda());
  findings.push_back(library("cuBLAS", "MOESIM_CUBLAS_LIBRARY", files_of_cuda("libcublas"),
                             "matrix products, experts and layers cannot be measured here"));
  findings.push_back(library("cuBLASLt", "MOESIM_CUBLASLT_LIBRARY", files_of_cuda("libcublasLt"),
                             "FP8 products cannot be measured here"));
  findings.push_back(library("NCCL", "MOESIM_NCCL_LIBRARY", {"libnccl.so.2"},
                             "exchanges cannot be measured here; curves come from profiles"));
  findings.push_back(library("cuDNN", "MOESIM_CUDNN_LIBRARY", {"libcudnn.so.9"},
                             "attention cannot be measured here; its curve comes from profiles"));
  findings.push_back(library("CUPTI", "MOESIM_CUPTI_LIBRARY", files_of_cuda("libcupti"),
                             "kernel timing would fall back to CUDA events"));
  const std::vector<Finding> of_python = python();
  findings.insert(findings.end(), of_python.begin(), of_python.end());
  findings.push_back(documents("profiles", "hardware",
                               [](const std::string& name) { profile::Profile::load(name); }));
  findings.push_back(
      documents("models", "models", [](const std::string& name) { model::Model::load(name); }));
  findings.push_back(documents("clusters", "clusters",
                               [](const std::string& name) { cluster::Cluster::load(name); }));
  return findings;
}

// Columns of tables that are written one after another, for names up to "Python with matplotlib".
std::string as_table(const std::vector<Finding>& findings) {
  std::vector<std::vector<std::string>> lines;
  for (const Finding& finding : findings) {
    lines.push_back(
        {finding.found ? "yes" : "no ", fmt::format("{:22}", finding.name), finding.detail});
    if (!finding.found) lines.push_back({"", "", "without it: " + finding.without});
  }
  return report::align(lines, {false, false, false});
}

const std::vector<std::string> csv_columns{"name", "found", "detail", "without_it"};

// The findings as CSV, without the line of the columns' names.
std::string as_csv(const std::vector<Finding>& findings) {
  std::vector<report::CellRow> rows;
  for (const Finding& finding : findings) {
    rows.push_back(
        {finding.name, finding.found, finding.detail, finding.found ? "" : finding.without});
  }
  return report::to_csv(csv_columns, rows).substr(report::to_csv(csv_columns, {}).size());
}

std::string as_json(const std::vector<Finding>& findings) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& finding : findings) {
    nlohmann::ordered_json entry = {
        {"name", finding.name}, {"found", finding.found}, {"detail", finding.detail}};
    entry["without_it"] = nullptr;
    if (!finding.found) entry["without_it"] = finding.without;
    list.push_back(entry);
  }
  return json_text(nlohmann::ordered_json{{"version", MOESIM_VERSION}, {"findings", list}}, 2) +
         "\n";
}

ExitCode run(const CommandLine& line) {
  const report::Format format = chosen_format(line, report::Format::table);
  const Output out(line.get("out"));
  if (format == report::Format::json) {
    std::vector<Finding> all = examine_host();
    examine_gpus([&all](const auto& found) { all.insert(all.end(), found.begin(), found.end()); });
    out.write(as_json(all));
    return ExitCode::ok;
  }
  const bool csv = format == report::Format::csv;
  std::string text = csv ? report::to_csv(csv_columns, {}) : "moesim " MOESIM_VERSION "\n\n";
  const bool at_once = out.path().empty();  // a file is written whole
  const auto write = [&](const std::vector<Finding>& found) {
    text += csv ? as_csv(found) : as_table(found);
    if (!at_once) return;
    out.write(text);
    text.clear();
  };
  write(examine_host());
  // A GPU may hang, or end the process: what was found before is out by then.
  examine_gpus(write);
  if (!at_once) out.write(text);
  return ExitCode::ok;
}

}  // namespace

Command doctor_command() {
  return {"doctor",
          "what this machine has, and what each missing piece disables",
          "[options]",
          "moesim doctor",
          {format_flag(), out_flag()},
          false,
          0,
          run};
}

}  // namespace moesim::tool
