#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>

#include "kernels/measure/devices/device.hpp"
#include "sim/base/random.hpp"

namespace moesim::kernels::measure::testing {

// A device whose kernels take what a law says, plus noise; its clock advances only by what it runs.
// Everything that can go wrong with a real one can be asked for.
class FakeDevice : public Device {
 public:
  using Law = std::function<double(const PointSpec&)>;  // microseconds

  explicit FakeDevice(Law law) : law_(std::move(law)) {
    device_facts.name = "NVIDIA H200";
    device_facts.uuid = "GPU-00000000-0000-0000-0000-000000000000";
    device_facts.compute_major = 9;
    device_facts.sms = 132;
    device_facts.memory_bytes = std::int64_t{141} << 30;
    device_facts.l2_bytes = std::int64_t{60} << 20;
    device_facts.memory_bytes_per_second = 4.9e12;
    device_facts.gpus_in_node = 8;
  }

  ~FakeDevice() override {
    if (at_end) at_end();
  }
  FakeDevice(const FakeDevice&) = delete;  // it would end twice
  FakeDevice& operator=(const FakeDevice&) = delete;

  DeviceFacts facts() const override { return device_facts; }
  Versions versions() const override { return {"13.0", "13.0", "13.1", nccl_version, ""}; }
  DeviceState state() const override {
    return {"580.65.06", 700, 300, {"power limit"}, true, false, ""};
  }
  double now_s() const override { return now_s_; }
  std::unique_ptr<Workload> prepare(const PointSpec& spec, std::uint64_t seed) override;

  double noise = 0.002;      // relative standard deviation of a run
  double cold_extra_us = 0;  // what a cold run takes longer
  double clock_mhz = 1980;
  std::function<double(std::size_t)> clock_of_run;  // overrides clock_mhz
  std::map<std::string, std::string> wrong_before;  // by label: what verification says
  std::map<std::string, std::string> wrong_after;
  std::map<std::string, std::string> no_memory;  // by label
  std::string trace_error;                       // why a trace is void
  // The prepare() call that fails for good, or whose first run never ends, counted from 1; 0: none.
  std::size_t dies_at = 0;
  std::size_t hangs_at = 0;
  std::size_t out_of_memory_at = 0;  // the prepare() call whose first run finds no memory
  std::string not_measurable;        // why collectives are not
  bool shared = false;               // ranks share it
  std::size_t prepared = 0;
  std::function<bool(std::size_t)> held = [](std::size_t) { return true; };  // by run
  std::function<void()> at_end;  // when it is destroyed, as communicators are
  std::string nccl_version = "2.28.3";
  DeviceFacts device_facts;

  void pass(double time_us) { now_s_ += (time_us + 20) * 1e-6; }
  double draw(double time_us) {
    return time_us * (1 + noise * std::clamp(stream_.normal(), -3.0, 3.0));
  }

 private:
  friend class FakeWorkload;
  Law law_;
  double now_s_ = 0;
  Stream stream_{{1, Purpose::test_data}};
};

class FakeWorkload : public Workload {
 public:
  FakeWorkload(FakeDevice& device, const PointSpec& spec, double time_us)
      : device_(device), label_(spec.label()), time_us_(time_us) {}

  std::string verify() override {
    const auto& wrong = verified_++ == 0 ? device_.wrong_before : device_.wrong_after;
    const auto found = wrong.find(label_);
    return found == wrong.end() ? "" : found->second;
  }
  Run cold() override {
    if (device_.prepared == device_.hangs_at) {
      while (true) std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    if (device_.prepared == device_.out_of_memory_at) {
      throw OutOfDeviceMemory("out of device memory: 12 MiB of 143771 are free");
    }
    Run run{device_.draw(time_us_ + device_.cold_extra_us), device_.clock_mhz};
    if (device_.clock_of_run) run.clock_mhz = device_.clock_of_run(runs_);
    if (run.clock_mhz > 0) run.time_us *= device_.clock_mhz / run.clock_mhz;
    run.held = device_.held(runs_);
    if (!run.held) run.time_us *= 100;
    ++runs_;
    device_.pass(run.time_us);
    return run;
  }
  double hot(std::size_t calls) override {
    const double time_us = device_.draw(time_us_) * static_cast<double>(calls);
    device_.pass(time_us);
    return time_us;
  }
  std::optional<Activity> trace() override {
    if (!device_.trace_error.empty()) throw Error(device_.trace_error);
    return Activity{2, time_us_ - 1, time_us_ - 1, time_us_};
  }
  std::string timer() const override { return "fake"; }
  bool synthetic() const override { return device_.shared; }

 private:
  FakeDevice& device_;
  std::string label_;
  double time_us_;
  std::size_t verified_ = 0;
  std::size_t runs_ = 0;
};

inline std::unique_ptr<Workload> FakeDevice::prepare(const PointSpec& spec, std::uint64_t) {
  if (++prepared == dies_at) {
    throw DeviceFailed("an illegal address was read: the device is lost");
  }
  if (spec.collective && !not_measurable.empty()) throw NotMeasurable(not_measurable);
  const auto found = no_memory.find(spec.label());
  if (found != no_memory.end()) throw OutOfDeviceMemory(found->second);
  return std::make_unique<FakeWorkload>(*this, spec, law_(spec));
}

// The laws of a machine that is easily reckoned: a launch, then whichever is slower of arithmetic,
// memory and links.
inline double simple_law(const PointSpec& spec) {
  const double arithmetic = spec.flops / 700e6;  // 700 TFLOP/s
  const double memory = spec.bytes / (spec.sent_bytes > 0 ? 4e6 : 4.2e6);
  const double links = spec.sent_bytes / 0.38e6;  // 380 GB/s
  return (spec.sent_bytes > 0 ? 12 : 3) + std::max({arithmetic, memory, links});
}

}  // namespace moesim::kernels::measure::testing
