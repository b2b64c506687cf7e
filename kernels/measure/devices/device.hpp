#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/measure/points/point.hpp"
#include "kernels/measure/timing/activity.hpp"
#include "sim/base/error.hpp"

namespace moesim::kernels::measure {

// One timed run: how long, and the mean SM clock while it ran (0: not known).
struct Run {
  double time_us = 0;  // of one call
  double clock_mhz = 0;
  std::size_t calls = 1;  // back to back in this run
  // Whether the device began only when all was queued: if not, gaps of the host are in the time.
  bool held = true;
};

// A point made ready on a device: inputs drawn at random, outputs poisoned, buffers enough to be
// rotated past twice the L2.
class Workload {
 public:
  virtual ~Workload() = default;
  // Runs once and compares with a reference, outside any timed region. "" if all is right, else
  // what is wrong.
  virtual std::string verify() = 0;
  // One run alone: the L2 flushed, the clock of the device read around it.
  virtual Run cold() = 0;
  // `calls` runs in one go, back to back, the buffers rotated; microseconds of all of them.
  virtual double hot(std::size_t calls) = 0;
  virtual bool has_hot() const { return true; }
  virtual std::string timer() const = 0;
  // What one call does on the device, from a few traced ones; nothing where nothing traces. Throws
  // Error if the trace is void.
  virtual std::optional<Activity> trace() { return std::nullopt; }
  // What it found out beside its times, once verified: written with the point.
  virtual Params details() { return Params::object(); }
  // Ranks share a GPU: a test of the path, whose times calibrate nothing.
  virtual bool synthetic() const { return false; }
};

// What a device says of itself; figures it does not tell are 0 or "".
struct DeviceFacts {
  std::string name;  // "NVIDIA H200"
  std::string uuid;
  int compute_major = 0;
  int compute_minor = 0;
  std::int64_t sms = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t l2_bytes = 0;
  double memory_bytes_per_second = 0;  // from its memory clock and bus width
  double peak_bf16_flops = 0;
  int gpus_in_node = 1;
};

// Versions, each from a call of its own, "" if there is none.
struct Versions {
  std::string driver;
  std::string cuda_runtime;
  std::string cublas;
  std::string nccl;
  std::string cupti;
};

// How a device stands when it is asked; what it does not tell is 0, "" or nothing.
struct DeviceState {
  std::string driver;        // the driver's own version, "580.65.06"
  double power_limit_w = 0;  // enforced
  double power_w = 0;
  std::vector<std::string> throttled_by;  // what keeps its clock down: "power limit", ...
  std::optional<bool> ecc, mig;
  std::string trouble;  // why nothing is known
};

// Not enough device memory for a point; the next may fit.
class OutOfDeviceMemory : public Error {
 public:
  using Error::Error;
};
// A point that this device, or this build, cannot measure.
class NotMeasurable : public Error {
 public:
  using Error::Error;
};

// The device is lost to this process; every later call would fail too.
class DeviceFailed : public Error {
 public:
  using Error::Error;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual DeviceFacts facts() const = 0;
  virtual Versions versions() const = 0;
  virtual DeviceState state() const { return {"", 0, 0, {}, {}, {}, "this device does not tell"}; }
  // Why launches are not traced here; "" if they are.
  virtual std::string trace_trouble() const { return ""; }
  // Seconds on a steady clock.
  virtual double now_s() const = 0;
  // Throws OutOfDeviceMemory, NotMeasurable or DeviceFailed.
  virtual std::unique_ptr<Workload> prepare(const PointSpec& spec, std::uint64_t seed) = 0;
};

}  // namespace moesim::kernels::measure
