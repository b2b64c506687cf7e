#include "kernels/measure/sessions/layer_session.hpp"

#include <fmt/format.h>

#include <atomic>
#include <utility>

#include "kernels/measure/sessions/session_watchdog.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"

namespace moesim::kernels::measure {
namespace {

using nlohmann::ordered_json;

// What every rank measures, in order.
std::vector<PointSpec> specs_of(const LayerSessionOptions& options) {
  std::vector<PointSpec> specs;
  for (const LayerCase& layer : options.cases) {
    for (const layer::Pass pass : {layer::Pass::forward, layer::Pass::backward}) {
      specs.push_back(layer_point(layer, options.size, pass));
    }
  }
  return specs;
}

ordered_json head_of(const LayerSessionOptions& options, const Device& device) {
  const DeviceFacts facts = device.facts();
  const Versions versions = device.versions();
  return {{"format", "moesim measured layer 1"},
          {"date", options.now()},
          {"device", facts.name},
          {"uuid", facts.uuid},
          {"driver", versions.driver},
          {"cuda_runtime", versions.cuda_runtime},
          {"cublas", versions.cublas},
          {"nccl", versions.nccl},
          {"model", options.model},
          {"gpus", options.size.gpus},
          {"tokens", options.size.tokens},
          {"seed", options.seed},
          {"points", ordered_json::array()},
          {"missing", ordered_json::array()}};
}

// One rank's run; rank 0 keeps the report.
class Member {
 public:
  Member(Machine& machine, const LayerSessionOptions& options, int index, Group& group)
      : machine_(machine), options_(options), index_(index), group_(group) {}

  LayerSessionReport run() {
    Watchdog dog(session_watchdog(
        options_, group_, together_,
        group_.size() == 1 ? "the GPU"
                           : fmt::format("rank {} of {}", group_.rank(), group_.size())));
    dog_ = &dog;
    dog.phase("opening the device");
    device_ = machine_.open(index_, group_);
    try {
      LayerSessionReport report = measure_all();
      together_ = false;
      dog.phase("closing the device");
      device_.reset();
      return report;
    } catch (const std::exception& error) {
      // Before the device ends, which waits for the others.
      group_.abandon(error.what());
      dog.phase("leaving the other ranks", true);
      device_.reset();
      throw;
    }
  }

 private:
  LayerSessionReport measure_all() {
    LayerSessionReport report;
    report.document = head_of(options_, *device_);
    const double start = device_->now_s();
    for (const PointSpec& spec : specs_of(options_)) {
      const bool late = options_.timeout_s > 0 && device_->now_s() - start > options_.timeout_s;
      // Rank 0 decides: a rank that stopped for itself would leave the others waiting.
      if (group_.from_root(late ? "1" : "0") == "1") {
        ++report.late;
        miss(report, spec, fmt::format("the time limit of {} s was over", options_.timeout_s));
        continue;
      }
      measure(report, spec);
    }
    return report;
  }

  void note(const std::string& text) const {
    if (group_.rank() == 0 && options_.on_note) options_.on_note(text);
  }

  void measure(LayerSessionReport& report, const PointSpec& spec) {
    note(spec.label());
    try {
      const Point point = measure_point(
          *device_, group_, spec, "layer", options_.seed, options_.trial,
          [&](const std::string& phase) { dog_->phase(spec.label() + ": " + phase); });
      if (!point.valid()) {
        ++report.voided;
        note(fmt::format("{}: void: {}", spec.label(), point.verify));
      }
      report.document["nccl"] = device_->versions().nccl;  // known once there was an exchange
      report.document["points"].push_back(to_raw_json(point));
      write(report);
    } catch (const OutOfDeviceMemory& error) {
      miss(report, spec, error.what());
    } catch (const NotMeasurable& error) {
      miss(report, spec, error.what());
    }
  }

  void miss(LayerSessionReport& report, const PointSpec& spec, const std::string& reason) {
    ++report.missing;
    note(fmt::format("{}: {}", spec.label(), reason));
    report.document["missing"].push_back({{"layer", spec.label()}, {"reason", reason}});
    write(report);
  }

  void write(const LayerSessionReport& report) const {
    if (group_.rank() != 0 || options_.out.empty()) return;
    write_file_atomically(options_.out, report.document.dump(1) + "\n");
  }

  Machine& machine_;
  const LayerSessionOptions& options_;
  int index_;
  Group& group_;
  std::atomic<bool> together_{true};  // afterwards ranks may leave
  Watchdog* dog_ = nullptr;           // of run()
  std::unique_ptr<Device> device_;
};

LayerSessionReport in_threads(Machine& machine, const LayerSessionOptions& options) {
  LayerSessionReport report;
  run_in_threads(options.size.gpus, [&](Group& group) {
    LayerSessionReport own = Member(machine, options, group.rank(), group).run();
    if (group.rank() == 0) report = std::move(own);
  });
  return report;
}

}  // namespace

LayerSessionReport measure_layers(Machine& machine, const LayerSessionOptions& options) {
  specs_of(options);  // what cannot be is refused before anything is measured
  if (options.size.gpus > machine.gpus()) {
    throw UsageError(
        fmt::format("--gpus {}: this process has {}", options.size.gpus, machine.gpus()));
  }
  if (options.size.gpus > 1) return in_threads(machine, options);
  SoloGroup alone;
  return Member(machine, options, 0, alone).run();
}

}  // namespace moesim::kernels::measure
