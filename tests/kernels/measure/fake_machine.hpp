#pragma once

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>

#include "kernels/measure/sessions/session.hpp"
#include "tests/kernels/measure/fake_device.hpp"

namespace moesim::kernels::measure::testing {

// Fake GPUs; `prepare` may set up what goes wrong on one of them.
class FakeMachine : public Machine {
 public:
  explicit FakeMachine(int gpus) : gpus_(gpus) {}
  int gpus() const override { return gpus_; }
  std::unique_ptr<Device> open(int index, Group&) override {
    auto device = std::make_unique<FakeDevice>(
        [law = law, index](const PointSpec& spec) { return law(index, spec); });
    if (prepare) prepare(index, *device);
    return device;
  }
  std::function<void(int, FakeDevice&)> prepare;
  std::function<double(int, const PointSpec&)> law = [](int, const PointSpec& spec) {
    return simple_law(spec);
  };

 private:
  int gpus_;
};

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "moesim-session-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;  // a second owner would remove it early
  Folder& operator=(const Folder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline SessionOptions quick(const std::string& out) {
  SessionOptions options;
  options.out = out;
  options.tool_version = "0.1.0";
  options.trial.warm_up.least_s = 0;
  return options;
}

}  // namespace moesim::kernels::measure::testing
