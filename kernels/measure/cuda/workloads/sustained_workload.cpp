#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "kernels/measure/cuda/libraries/nvml.hpp"
#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "sim/base/statistics.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// A product without a rest. Details beside the product's: power_w, its median over the later half
// of the samples, and throttled_by as of the last one, where NVML tells.
class SustainedWorkload : public Workload {
 public:
  SustainedWorkload(Context& context, const PointSpec& spec, std::uint64_t seed)
      : context_(context),
        product_(gemm_workload(context, spec, seed)),
        queued_(dynamic_cast<Queueable&>(*product_)),
        calls_(spec.calls) {}

  std::string verify() override { return product_->verify(); }
  Run cold() override {
    return translated([this] {
      return context_.timer->back_to_back(
          calls_, [this](std::size_t) { queued_.queue(context_.timer->stream()); },
          [this] { states_.push_back(device_state(context_.facts.uuid)); });
    });
  }
  double hot(std::size_t) override { throw NotMeasurable("it has no rest to be hot after"); }
  bool has_hot() const override { return false; }
  std::string timer() const override { return "cuda-events, back to back"; }
  std::optional<Activity> trace() override { return product_->trace(); }
  Params details() override {
    Params details = product_->details();
    std::vector<double> watts;
    for (std::size_t at = states_.size() / 2; at < states_.size(); ++at) {
      if (states_[at].power_w > 0) watts.push_back(states_[at].power_w);
    }
    if (watts.empty()) return details;
    details["power_w"] = median(watts);
    details["throttled_by"] = fmt::format("{}", fmt::join(states_.back().throttled_by, " + "));
    return details;
  }

 private:
  Context& context_;
  std::unique_ptr<Workload> product_;
  Queueable& queued_;
  std::size_t calls_;
  std::vector<DeviceState> states_;
};

}  // namespace

std::unique_ptr<Workload> sustained_workload(Context& context, const PointSpec& spec,
                                             std::uint64_t seed) {
  return std::make_unique<SustainedWorkload>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
