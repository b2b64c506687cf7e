#include "kernels/measure/sessions/runner.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "sim/base/error.hpp"

namespace moesim::kernels::measure {
namespace {

constexpr const char* run_over = "end";

class Runner {
 public:
  Runner(Device& device, Group& group, const Plan& plan, RawDocument* raw,
         const RunOptions& options)
      : device_(device), group_(group), plan_(plan), raw_(raw), options_(options) {
    start_s_ = device.now_s();
    left_s_ = plan.seconds();
  }

  RunReport lead() {
    for (std::size_t index = 0; index < plan_.points.size(); ++index) {
      const Planned& planned = plan_.points[index];
      if (planned.spec.key() == raw_->fatal_key() && !raw_->has(planned.spec.key())) {
        add_void(planned,
                 "the process ended while it was measured (a crash, a kernel that never ends, or "
                 "kill); without --resume it is measured again");
      }
      if (raw_->has(planned.spec.key())) {
        ++report_.resumed;
        left_s_ -= planned.seconds;
        continue;
      }
      if (must_stop(planned)) break;
      progress(planned.spec.label());
      // The others wait for points that concern them only.
      if (planned.spec.collective) group_.from_root(call_of(index));
      measure(planned);
      spent_estimate_s_ += planned.seconds;
      left_s_ -= planned.seconds;
    }
    if (any_collective()) group_.from_root(run_over);
    progress("");
    for (const auto& [suite, failed] : failed_) report_.missing.push_back(failed);
    return report_;
  }

  void follow() {
    while (any_collective()) {
      say(waiting_phase);
      const std::string next = group_.from_root("");
      if (next == run_over) return;
      const Planned& planned = called(next);
      try {
        measure_point(device_, group_, planned.spec, planned.suite, options_.seed, options_.trial,
                      phase_of(planned));
      } catch (const OutOfDeviceMemory&) {  // rank 0 hears of it, and says it
      } catch (const NotMeasurable&) {
      }
    }
  }

 private:
  // How rank 0 calls a point: by its place in the plan and what it is.
  std::string call_of(std::size_t index) const {
    return fmt::format("{} {}", index, plan_.points[index].spec.key());
  }
  // What rank 0 called. An exchange in which ranks do different things would hang or worse.
  const Planned& called(const std::string& call) const {
    const std::size_t index = std::stoul(call);
    if (index < plan_.points.size() && call_of(index) == call) return plan_.points[index];
    throw Error(fmt::format(
        "rank 0 measures point {}, which the plan of rank {} does not have there: start all ranks "
        "with the same options",
        call, group_.rank()));
  }
  bool any_collective() const {
    return std::any_of(plan_.points.begin(), plan_.points.end(),
                       [](const Planned& planned) { return planned.spec.collective; });
  }
  OnPhase phase_of(const Planned& planned) const {
    return [this, label = planned.spec.label()](const std::string& phase) {
      say(label + ": " + phase);
    };
  }
  void say(const std::string& phase) const {
    if (options_.on_phase) options_.on_phase(phase);
  }
  void tell(const std::string& text) const {
    if (options_.on_note) options_.on_note(text);
  }

  bool must_stop(const Planned& next) {
    if (options_.interrupted != nullptr && options_.interrupted->load()) {
      report_.end = RunEnd::interrupted;
      return true;
    }
    const double elapsed = device_.now_s() - start_s_;
    if (options_.timeout_s > 0 && elapsed + next.seconds > options_.timeout_s) {
      report_.end = RunEnd::timeout;
      return true;
    }
    return false;
  }

  // The estimates are scaled by how this run kept to them so far.
  void progress(const std::string& label) const {
    if (!options_.on_progress) return;
    const double elapsed = device_.now_s() - start_s_;
    const double pace = spent_estimate_s_ > 0 ? elapsed / spent_estimate_s_ : 1;
    options_.on_progress({report_.measured + report_.resumed, plan_.points.size(), report_.resumed,
                          label, std::max(0.0, left_s_ * pace)});
  }

  void fail(const Planned& planned, const std::string& reason, const std::string& hint) {
    tell(fmt::format("{}: {}", planned.spec.label(), reason));
    auto [entry, fresh] = failed_.emplace(
        planned.suite,
        Missing{planned.suite, fmt::format("{}: {}", planned.spec.label(), reason), hint});
    if (!fresh && !entry->second.reason.ends_with("and others")) {
      entry->second.reason += ", and others";
    }
  }

  void add_void(const Planned& planned, const std::string& reason) {
    Point point;
    point.op = planned.spec.op;
    point.params = planned.spec.params;
    point.suite = planned.suite;
    point.timer = "none";
    point.verify = reason;
    report_.voided.push_back(fmt::format("{}: {}", planned.spec.label(), reason));
    raw_->add(point);
  }

  void measure(const Planned& planned) {
    raw_->begin(planned.spec.key());
    try {
      attempt(planned);
    } catch (const DeviceFailed& error) {
      // Its results are lost, and it would fail again: --resume passes over it.
      add_void(planned, std::string("the device failed: ") + error.what());
      raw_->end();
      throw;
    } catch (...) {
      raw_->end();
      throw;
    }
    raw_->end();
  }

  void attempt(const Planned& planned) {
    try {
      const Point point = measure_point(device_, group_, planned.spec, planned.suite, options_.seed,
                                        options_.trial, phase_of(planned));
      if (!point.valid()) {
        report_.voided.push_back(fmt::format("{}: {}", planned.spec.label(), point.verify));
        tell(fmt::format("{}: void, its result is wrong: {}", planned.spec.label(), point.verify));
      }
      raw_->add(point);
      ++report_.measured;
    } catch (const OutOfDeviceMemory& error) {
      fail(planned, error.what(), "free the GPU of other programs, or take a larger one");
    } catch (const NotMeasurable& error) {
      fail(planned, error.what(), "see moesim doctor");
    }
  }

  Device& device_;
  Group& group_;
  const Plan& plan_;
  RawDocument* raw_;
  const RunOptions& options_;
  double start_s_ = 0;
  double left_s_ = 0;
  double spent_estimate_s_ = 0;
  RunReport report_;
  std::map<std::string, Missing> failed_;
};

}  // namespace

RunReport run_plan(Device& device, Group& group, const Plan& plan, RawDocument* raw,
                   const RunOptions& options) {
  Runner runner(device, group, plan, raw, options);
  if (group.rank() == 0) return runner.lead();
  runner.follow();
  return {};
}

}  // namespace moesim::kernels::measure
