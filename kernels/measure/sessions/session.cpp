#include "kernels/measure/sessions/session.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kernels/measure/documents/profile_document.hpp"
#include "kernels/measure/ranks/tcp_group.hpp"
#include "kernels/measure/sessions/session_watchdog.hpp"
#include "sim/base/error.hpp"
#include "sim/base/file.hpp"

namespace moesim::kernels::measure {
namespace {

std::string host() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

Rates rates_of(const DeviceFacts& facts) {
  Rates rates;
  if (facts.peak_bf16_flops > 0) rates.peak_flops = facts.peak_bf16_flops;
  if (facts.memory_bytes_per_second > 0) {
    rates.memory_bytes_per_second = facts.memory_bytes_per_second;
  }
  if (facts.l2_bytes > 0) rates.l2_bytes = static_cast<double>(facts.l2_bytes);
  return rates;
}

// What one rank does.
class Member {
 public:
  Member(Machine& machine, const SessionOptions& options, int index, Group& group)
      : machine_(machine), options_(options), index_(index), group_(group) {}

  SessionReport run() {
    Watchdog dog(watchdog_options());
    dog.phase("opening the device");
    const std::unique_ptr<Device> device = machine_.open(index_, group_);
    try {
      return measure(*device, dog);
    } catch (const std::exception& error) {
      // Before the device ends: the end of its communicator waits for ranks that wait for this one.
      group_.abandon(error.what());
      dog.phase("leaving the other ranks", true);
      throw;
    }
  }

 private:
  // That the group is on, if it has equally many ranks on each; else 1. From what all ranks say, so
  // that their plans are equal.
  int nodes(const DeviceFacts& facts) {
    const std::vector<double> each = group_.gather(facts.gpus_in_node);
    const bool equal =
        std::all_of(each.begin(), each.end(), [&](double ranks) { return ranks == each.front(); });
    return equal ? std::max(1, group_.size() / std::max(1, facts.gpus_in_node)) : 1;
  }

  SessionReport measure(Device& device, Watchdog& dog) {
    Selection selection = options_.selection;
    selection.gpus = group_.size();
    const DeviceFacts facts = device.facts();
    selection.nodes = nodes(facts);
    const Plan plan = make_plan(selection, options_.seed, rates_of(facts));
    RunOptions how;
    how.seed = options_.seed;
    how.trial = options_.trial;
    how.timeout_s = options_.timeout_s;
    how.interrupted = options_.interrupted;
    how.on_phase = [&dog](const std::string& phase) { dog.phase(phase, phase == waiting_phase); };
    how.on_note = options_.on_note;
    if (group_.rank() != 0) {
      run_plan(device, group_, plan, nullptr, how);
      together_ = false;
      return {};
    }
    how.on_progress = options_.on_progress;
    SessionReport report;
    report.raw_path = raw_path_of(options_.out);
    RawDocument raw(report.raw_path, {options_.tool_version, facts.name, group_.size()},
                    options_.resume);
    try {
      report.run = run_plan(device, group_, plan, &raw, how);
    } catch (const Error& error) {
      group_.abandon(error.what());
      dog.phase("writing what was measured", true);
      salvage(device, plan, raw, error.what());
      throw;
    }
    together_ = false;
    dog.phase("fitting curves", true);
    finish(device, plan, raw, report);
    return report;
  }

  WatchdogOptions watchdog_options() const {
    WatchdogOptions options = session_watchdog(
        options_, group_, together_,
        group_.size() == 1
            ? "moesim profile"
            : fmt::format("rank {} of {} on {}", group_.rank(), group_.size(), host()));
    options.timeout_s = options_.timeout_s > 0 ? options_.timeout_s + options_.grace_s : 0;
    return options;
  }

  // Suites without a valid point that no other entry says to be missing.
  static void name_unmeasured(const RawDocument& raw, SessionReport& report) {
    for (const Suite& suite : all_suites()) {
      bool tried = false, valid = false, real = false;
      for (const Point& point : raw.points()) {
        if (point.suite != suite.name) continue;
        tried = true;
        valid = valid || point.valid();
        real = real || (point.valid() && !point.synthetic);
      }
      const bool said = std::any_of(report.missing.begin(), report.missing.end(),
                                    [&](const Missing& gap) { return gap.suite == suite.name; });
      if (real || said) continue;
      report.missing.push_back(
          valid
              ? Missing{suite.name,
                        "its points are synthetic, since ranks share a GPU or a copy stands for an "
                        "exchange: they calibrate nothing",
                        "run it on a node with at least 2 GPUs"}
          : tried ? Missing{suite.name, "results of all its points were wrong",
                            "see the points' verify"}
          : report.run.end != RunEnd::complete
              ? Missing{suite.name, "the run ended before its first point",
                        "moesim profile --resume measures it"}
              : Missing{suite.name, "it was not asked for (--suite, --only)",
                        "moesim profile --resume without them measures it"});
    }
  }

  // The run broke: the profile of what was measured until then, if it can be had.
  void salvage(const Device& device, const Plan& plan, const RawDocument& raw,
               const std::string& reason) const {
    SessionReport report;
    report.run.end = RunEnd::failed;
    try {
      finish(device, plan, raw, report, reason);
    } catch (const Error& error) {  // the disk is full, say: the run's own error tells
      if (options_.on_note) options_.on_note(error.what());
    }
    if (report.points > 0 && !report.profile_path.empty() && options_.on_note) {
      options_.on_note(fmt::format("{} points measured before are in {}; --resume continues",
                                   report.points, report.profile_path));
    }
  }

  void finish(const Device& device, const Plan& plan, const RawDocument& raw, SessionReport& report,
              const std::string& broken = "") const {
    report.missing = plan.missing;
    report.missing.insert(report.missing.end(), report.run.missing.begin(),
                          report.run.missing.end());
    name_unmeasured(raw, report);
    report.missing.insert(report.missing.end(), always_missing().begin(), always_missing().end());
    if (!device.trace_trouble().empty()) {
      report.missing.push_back({"activity", device.trace_trouble(),
                                "times come from CUDA events and graphs all the same"});
    }
    if (report.run.end != RunEnd::complete) {
      report.missing.push_back({"points",
                                broken.empty() ? "the run ended before all were measured" : broken,
                                "moesim profile --resume measures the rest"});
    }
    for (const Point& point : raw.points()) report.points += point.valid() ? 1 : 0;
    if (report.points == 0) return;
    RunFacts facts;
    facts.device = device.facts();
    facts.name = options_.name.empty() ? as_name(facts.device.name) : options_.name;
    facts.tool_version = options_.tool_version;
    facts.commit = options_.commit;
    facts.seed = options_.seed;
    facts.arguments = options_.arguments;
    facts.versions = device.versions();
    facts.state = device.state();
    facts.base = options_.base;
    write_file_atomically(options_.out,
                          profile_document(facts, raw.points(), report.missing).dump(1) + "\n");
    report.profile_path = options_.out;
  }

  Machine& machine_;
  const SessionOptions& options_;
  int index_;
  Group& group_;
  std::atomic<bool> together_{true};  // afterwards ranks may leave
};

SessionReport in_threads(Machine& machine, const SessionOptions& options, int gpus) {
  SessionReport report;
  run_in_threads(gpus, [&](Group& group) {
    SessionReport own = Member(machine, options, group.rank(), group).run();
    if (group.rank() == 0) report = std::move(own);
  });
  return report;
}

SessionReport among_processes(Machine& machine, const SessionOptions& options) {
  const Launch& launch = options.launch;
  const int index = device_of(launch, machine.gpus());
  TcpGroup group(launch, options.tool_version);
  try {
    std::vector<bool> narrowed;
    for (const std::string& each : group.all_gather(index == launch.local_rank ? "" : "narrowed")) {
      narrowed.push_back(!each.empty());
    }
    check_own_devices(group.all_gather(machine.identity(index)), narrowed);
    return Member(machine, options, index, group).run();
  } catch (const std::exception& error) {
    group.abandon(error.what());
    throw;
  }
}

}  // namespace

std::string raw_path_of(const std::string& out) {
  const std::string stem = out.ends_with(".json") ? out.substr(0, out.size() - 5) : out;
  return stem + ".raw.json";
}

SessionReport profile_node(Machine& machine, const SessionOptions& options) {
  if (options.launch.rank == 0) check_writable(options.out);
  if (options.launch.ranks > 1) return among_processes(machine, options);
  const int gpus = options.gpus.value_or(machine.gpus());
  if (gpus < 1 || gpus > machine.gpus()) {
    throw UsageError(fmt::format("--gpus {}: this machine has {} GPU(s)", gpus, machine.gpus()));
  }
  if (gpus > 1) return in_threads(machine, options, gpus);
  SoloGroup alone;
  return Member(machine, options, 0, alone).run();
}

}  // namespace moesim::kernels::measure
