#include <algorithm>
#include <cmath>

#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/measure/suites/overlap.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// One sample lasts at least this long, so that the microseconds by which the other side begins
// later are nothing; of several ranks longer, since one may still begin after another.
constexpr double least_us = 500;
constexpr double least_us_of_ranks = 2000;
// The most calls of each side: a stream that is held takes about a thousand launches, and NCCL
// fewer.
constexpr double most_calls = 128;
// How much longer than the timed side, at its usual pace, the other one goes on: both may slow
// down.
constexpr double margin = 3;

// Back-to-back calls of one side while the other side's run on a second stream, or none.
class Overlap : public Workload {
 public:
  Overlap(Context& context, const PointSpec& spec, std::uint64_t seed) : context_(context) {
    const OverlapParts parts = overlap_parts(spec);
    // First of all: a rank that has no memory must have joined the others.
    if (parts.exchange.collective) context.nccl();
    product_ = gemm_workload(context, parts.product, seed);
    exchange_ = parts.exchange.collective ? collective_workload(context, parts.exchange, seed)
                                          : memory_workload(context, parts.exchange, seed);
    exchanges_ = parts.exchange.collective;
    synthetic_ = !parts.exchange.collective || context.shared_gpu;
    timed_ = &side(parts.timed);
    if (!parts.beside.empty()) beside_ = &side(parts.beside);
    MOESIM_CUDA(cudaStreamCreateWithFlags(&second_, cudaStreamNonBlocking));
    MOESIM_CUDA(cudaEventCreateWithFlags(&begun_, cudaEventDisableTiming));
    MOESIM_CUDA(cudaEventCreateWithFlags(&ended_, cudaEventDisableTiming));
  }
  ~Overlap() override {
    cudaStreamSynchronize(second_);
    cudaEventDestroy(ended_);
    cudaEventDestroy(begun_);
    cudaStreamDestroy(second_);
  }
  Overlap(const Overlap&) = delete;  // it owns a stream and events
  Overlap& operator=(const Overlap&) = delete;

  // Each side by itself; both results are then checked again after all runs side by side.
  std::string verify() override {
    const std::string product = product_->verify(), exchange = exchange_->verify();
    return product.empty() ? exchange : product;
  }

  // Sample again, all ranks together, while the other side ends before the timed one.
  Run cold() override {
    return translated([this] {
      // Not while it is made: the ranks meet here, and one may have had no memory for it.
      if (calls_ == 0) choose_calls();
      while (true) {
        const Run run = once();
        if (beside_ == nullptr || !any_rank(covered_ ? 0 : 1)) return run;
        if (beside_calls_ >= most_calls) {
          throw NotMeasurable("the other side cannot be made to last as long as the timed one");
        }
        beside_calls_ = std::min(2 * beside_calls_, most_calls);
      }
    });
  }
  double hot(std::size_t) override { throw NotMeasurable("overlaps have no hot figure"); }
  bool has_hot() const override { return false; }
  std::string timer() const override { return "cuda-events"; }
  bool synthetic() const override { return synthetic_; }

 private:
  Queueable& side(const std::string& name) {
    return dynamic_cast<Queueable&>(name == "gemm" ? *product_ : *exchange_);
  }
  double slowest(double value) {
    const std::vector<double> all = context_.group.gather(value);
    return *std::max_element(all.begin(), all.end());
  }
  bool any_rank(double flag) { return slowest(flag) > 0; }

  // Ranks are released apart; behind an exchange that is not timed they go on together.
  Run aligned(const std::function<void()>& work) {
    return context_.timer->cold(
        work, [this] { context_.group.barrier(); },
        [this] {
          if (exchanges_) dynamic_cast<Queueable&>(*exchange_).queue(context_.timer->stream());
        });
  }
  // The time of one call alone, on the slowest rank: all ranks then queue as many.
  double alone_us(Queueable& which) {
    return slowest(aligned([&] { which.queue(context_.timer->stream()); }).time_us);
  }
  void choose_calls() {
    const double timed_us = std::max(1.0, alone_us(*timed_));
    const double least = exchanges_ ? least_us_of_ranks : least_us;
    calls_ = std::clamp(std::ceil(least / timed_us), 1.0, most_calls / 4);
    if (beside_ == nullptr) return;
    const double beside_us = std::max(1.0, alone_us(*beside_));
    beside_calls_ = std::clamp(std::ceil(margin * calls_ * timed_us / beside_us), 2.0, most_calls);
  }

  static void queue_calls(Queueable& which, double calls, cudaStream_t stream) {
    const auto count = static_cast<int>(calls);  // whole
    for (int call = 0; call < count; ++call) which.queue(stream);
  }

  Run once() {
    const cudaStream_t stream = context_.timer->stream();
    Run run = aligned([&] {
      if (beside_ != nullptr) {
        // Behind the hold, so that both begin together.
        MOESIM_CUDA(cudaEventRecord(begun_, stream));
        MOESIM_CUDA(cudaStreamWaitEvent(second_, begun_));
        queue_calls(*beside_, beside_calls_, second_);
        MOESIM_CUDA(cudaEventRecord(ended_, second_));
      }
      queue_calls(*timed_, calls_, stream);
    });
    run.time_us /= calls_;
    if (beside_ == nullptr) return run;
    // The timed side is over; the other must not be.
    const cudaError_t state = cudaEventQuery(ended_);
    covered_ = !worked(state);
    if (state != cudaErrorNotReady) check_cuda(state, "cudaEventQuery");
    MOESIM_CUDA(cudaStreamSynchronize(second_));
    return run;
  }

  Context& context_;
  std::unique_ptr<Workload> product_, exchange_;
  Queueable* timed_ = nullptr;
  Queueable* beside_ = nullptr;
  bool exchanges_ = false;  // of several ranks; else a copy stands for the exchange
  bool synthetic_ = false;
  bool covered_ = true;
  double calls_ = 0;  // of the timed side; 0: not chosen yet
  double beside_calls_ = 0;
  cudaStream_t second_ = nullptr;
  cudaEvent_t begun_ = nullptr;
  cudaEvent_t ended_ = nullptr;
};

}  // namespace

std::unique_ptr<Workload> overlap_workload(Context& context, const PointSpec& spec,
                                           std::uint64_t seed) {
  return std::make_unique<Overlap>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
