#include <fmt/format.h>

#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "kernels/layer/device_layer.hpp"
#include "kernels/layer/reference.hpp"
#include "kernels/measure/cuda/libraries/nccl.hpp"
#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/measure/suites/layer_points.hpp"
#include "kernels/routing/compare.hpp"
#include "sim/base/statistics.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

using layer::Buffer;
using layer::Pass;
using Values = std::vector<double>;

// Stages timed in a pass of their own, so many times.
constexpr int staged_runs = 7;

// Events around the stages of one pass.
class StageEvents {
 public:
  explicit StageEvents(std::size_t stages) : events_(stages + 1) {
    for (cudaEvent_t& event : events_) MOESIM_CUDA(cudaEventCreate(&event));
  }
  ~StageEvents() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  StageEvents(const StageEvents&) = delete;  // it owns events
  StageEvents& operator=(const StageEvents&) = delete;

  void restart(cudaStream_t stream) {
    next_ = 0;
    mark(stream);
  }
  void mark(cudaStream_t stream) { MOESIM_CUDA(cudaEventRecord(events_.at(next_++), stream)); }
  double stage_us(std::size_t stage) const {
    float milliseconds = 0;
    MOESIM_CUDA(cudaEventElapsedTime(&milliseconds, events_[stage], events_[stage + 1]));
    return 1e3 * static_cast<double>(milliseconds);
  }

 private:
  std::vector<cudaEvent_t> events_;
  std::size_t next_ = 0;
};

// |got - wanted| over |wanted|. Rounded to bf16 about six times on its way, each by 0.0016 of its
// root-mean-square size, a right result is off by 0.004; a wrong row or factor by about 1.
double error_of(const Values& got, const Values& wanted) {
  double off = 0, size = 0;
  for (std::size_t at = 0; at < wanted.size(); ++at) {
    off += std::pow(got[at] - wanted[at], 2);
    size += wanted[at] * wanted[at];
  }
  return std::sqrt(off / size);
}
constexpr double most_error = 0.02;

class Layer : public Workload {
 public:
  Layer(Context& context, const PointSpec& spec, std::uint64_t seed)
      : context_(context),
        pass_(pass_of(spec)),
        plan_(layer::plan_layer(problem_on(context, spec))),
        memory_(plan_.memory_bytes()),
        run_(plan_, layer::carve(memory_.data(), plan_)),
        backend_(context.cublas(), context.timer->stream(), exchanger()) {
    fill(seed);
  }

  // The first time against the fp64 reference; later against the bits of the first.
  std::string verify() override {
    return translated([this]() -> std::string {
      const std::vector<Buffer> results = pass_ == Pass::forward
                                              ? std::vector{Buffer::out}
                                              : std::vector{Buffer::out, Buffer::x_gradient};
      for (const Buffer result : results) {
        MOESIM_CUDA(cudaMemsetAsync(run_.memory()[result], 0xff, plan_.bytes_of(result), stream()));
      }
      run_verified();
      MOESIM_CUDA(cudaStreamSynchronize(stream()));
      const std::vector<std::uint16_t> got = elements(results.back(), 0, tokens() * hidden());
      if (!first_.empty()) return got == first_ ? "" : "the same inputs gave other bits";
      first_ = got;
      std::string wrong = check_routes();
      return wrong.empty() ? check_token() : wrong;
    });
  }

  Run cold() override {
    return translated([this] {
      const auto work = [this] { run_pass(); };
      const auto meet = [this] {
        if (context_.group.size() > 1) context_.group.barrier();
      };
      return waits() ? context_.timer->cold_unheld(work, meet) : context_.timer->cold(work, meet);
    });
  }
  // Far longer than 20 us and larger than any L2: nothing would differ.
  double hot(std::size_t) override { throw NotMeasurable("layers have no hot figure"); }
  bool has_hot() const override { return false; }
  std::string timer() const override { return "cuda-events"; }
  bool synthetic() const override { return context_.shared_gpu && plan_.problem.router.ranks > 1; }

  Params details() override {
    return translated([this] {
      Params out = {{"capacity", plan_.problem.router.capacity()},
                    {"kept_rows", kept_rows()},
                    {"ir_rows", run_.ir_rows()},
                    {"stages", Params::array()}};
      const std::vector<layer::Stage>& stages = plan_.stages(pass_);
      const std::vector<Values> times = time_stages(stages.size());
      for (std::size_t at = 0; at < stages.size(); ++at) {
        out["stages"].push_back({{"name", stages[at].name}, {"time_us", median(times[at])}});
      }
      return out;
    });
  }

 private:
  static layer::LayerProblem problem_on(const Context& context, const PointSpec& spec) {
    layer::LayerProblem problem = layer_of(spec, context.group.rank());
    problem.grouped = has_grouped_gemm();
    return problem;
  }
  layer::Exchanger exchanger() {
    if (context_.group.size() == 1) return {};
    return [this](const layer::BlockExchange& in, cudaStream_t stream) {
      const auto queue = [&] { context_.nccl().all_to_all(in, stream); };
      verifying_ ? context_.queue_together(queue) : queue();
    };
  }

  cudaStream_t stream() const { return context_.timer->stream(); }
  std::size_t tokens() const { return static_cast<std::size_t>(plan_.problem.router.tokens); }
  std::size_t hidden() const { return static_cast<std::size_t>(plan_.problem.hidden); }
  // With IR the forward waits for the number of its rows, and what grouped products are told comes
  // from pageable memory, for which the runtime may wait: neither goes with a stream that is held.
  bool waits() const { return plan_.problem.rectified(); }
  // Sets a flag while it lives.
  class Verifying {
   public:
    explicit Verifying(bool& flag) : flag_(flag) { flag_ = true; }
    ~Verifying() { flag_ = false; }
    Verifying(const Verifying&) = delete;
    Verifying& operator=(const Verifying&) = delete;

   private:
    bool& flag_;
  };
  // Kernels are launched for the first time between its exchanges.
  void run_verified() {
    const Verifying verifying(verifying_);
    run_.forward(backend_);
    if (pass_ == Pass::backward) run_.backward(backend_);
  }
  void run_pass() { pass_ == Pass::forward ? run_.forward(backend_) : run_.backward(backend_); }

  // Logits and hidden units of variance 1, as normalised activations and usual weights make them.
  void fill(std::uint64_t seed) {
    const auto own = static_cast<std::uint64_t>(context_.group.rank() + 1) * 16;
    const auto unit = [](int terms) { return 3.0F / std::sqrt(static_cast<float>(terms)); };
    const auto draw = [&](Buffer buffer, float scale, std::uint64_t salt) {
      launch_random_bf16(static_cast<std::uint16_t*>(run_.memory()[buffer]),
                         plan_.bytes_of(buffer) / 2, seed + salt, scale, stream());
    };
    draw(Buffer::gate_weight, unit(plan_.problem.hidden), 0);  // the same on all ranks
    draw(Buffer::x, 1, own);
    draw(Buffer::up_weight, unit(plan_.problem.hidden), own + 1);
    draw(Buffer::down_weight, unit(plan_.problem.ffn), own + 2);
    draw(Buffer::out_gradient, 1, own + 3);
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
  }

  std::vector<std::uint16_t> elements(Buffer buffer, std::size_t first, std::size_t count) const {
    return download(static_cast<const std::uint16_t*>(run_.memory()[buffer]) + first, count);
  }
  Values values(Buffer buffer, std::size_t row) const {
    Values row_values;
    for (const std::uint16_t bits : elements(buffer, row * hidden(), hidden())) {
      row_values.push_back(bf16_value(bits));
    }
    return row_values;
  }

  std::int64_t kept_rows() const {
    const auto each =
        download(run_.router().kept_rows, static_cast<std::size_t>(plan_.problem.router.experts));
    return std::accumulate(each.begin(), each.end(), std::int64_t{0});
  }

  std::string check_routes() {
    const routing::RouterProblem& problem = plan_.problem.router;
    router_host_ = download(static_cast<const unsigned char*>(run_.memory()[Buffer::router]),
                            plan_.bytes_of(Buffer::router));
    const routing::RouterBuffers at = carve(router_host_.data(), problem);
    const std::vector<float> logits =
        download(static_cast<const float*>(run_.memory()[Buffer::logits]),
                 tokens() * static_cast<std::size_t>(problem.experts));
    // The other ranks' tokens change nothing for this one's.
    std::vector<::moesim::routing::RankLogits> ranks(static_cast<std::size_t>(problem.ranks));
    ranks[static_cast<std::size_t>(problem.rank)] = {logits, problem.tokens};
    const auto expected =
        ::moesim::routing::route_group(problem.config, problem.experts, ranks, problem.context);
    std::string wrong = routing::difference(routing::listed(problem, at), expected.routes());
    return wrong.empty() ? routing::wrong_ir_rows(problem, at) : wrong;
  }

  bool is_local(int expert) const {
    const routing::RouterProblem& problem = plan_.problem.router;
    return expert / plan_.problem.local_experts() == problem.rank;
  }

  // The token with the most rows, all of them of experts here, as one token costs a second.
  std::optional<int> checked_token(const routing::RouterBuffers& at) const {
    const routing::RouterProblem& problem = plan_.problem.router;
    std::optional<int> best;
    std::size_t most = 0;
    for (int token = 0; token < problem.tokens; ++token) {
      const auto rows = layer::rows_of_token(problem, at, token);
      bool here = true;
      for (const layer::ReferenceRow& row : rows) here = here && is_local(row.expert);
      if (!here || rows.size() <= most) continue;
      most = rows.size();
      best = token;
    }
    return best;
  }

  std::string check_token() {
    const routing::RouterBuffers at = carve(router_host_.data(), plan_.problem.router);
    const std::optional<int> token = checked_token(at);
    if (!token) return "";  // none has all its experts here: other ranks check theirs
    const auto row = static_cast<std::size_t>(*token);
    const layer::ReferenceToken in{values(Buffer::x, row), values(Buffer::out_gradient, row),
                                   layer::rows_of_token(plan_.problem.router, at, *token)};
    std::vector<std::vector<std::uint16_t>> held;
    const layer::ReferenceWeights weights = fetch_weights(in, held);
    const layer::ReferenceResult expected =
        layer::reference_token(weights, in, plan_.problem.residual, plan_.problem.normaliser);
    const double off = error_of(values(Buffer::out, row), expected.out);
    if (!(off <= most_error)) {
      return fmt::format("token {}: the result is {:.3g} of its size off", *token, off);
    }
    if (pass_ == Pass::forward) return "";
    const double gradient_off = error_of(values(Buffer::x_gradient, row), expected.x_gradient);
    if (gradient_off <= most_error) return "";
    return fmt::format("token {}: the gradient is {:.3g} of its size off", *token, gradient_off);
  }

  // Fetches the weights of the experts that the token needs.
  layer::ReferenceWeights fetch_weights(const layer::ReferenceToken& token,
                                        std::vector<std::vector<std::uint16_t>>& held) const {
    static_assert(sizeof(Bfloat16) == sizeof(std::uint16_t));
    const layer::LayerProblem& problem = plan_.problem;
    const auto experts = static_cast<std::size_t>(problem.router.experts);
    const std::size_t one = hidden() * static_cast<std::size_t>(problem.ffn);
    const auto keep = [&](std::vector<std::uint16_t> fetched) {
      held.push_back(std::move(fetched));
      return reinterpret_cast<const Bfloat16*>(held.back().data());
    };
    layer::ReferenceWeights weights;
    weights.hidden = problem.hidden;
    weights.ffn = problem.ffn;
    weights.up.resize(experts);
    weights.down.resize(experts);
    weights.gate = keep(elements(Buffer::gate_weight, 0, experts * hidden()));
    std::set<int> needed;
    for (const layer::ReferenceRow& row : token.rows) needed.insert(row.expert);
    for (const int expert : needed) {
      const auto place = static_cast<std::size_t>(expert);
      const auto local = static_cast<std::size_t>(expert % problem.local_experts());
      weights.up[place] = keep(elements(Buffer::up_weight, local * 2 * one, 2 * one));
      weights.down[place] = keep(elements(Buffer::down_weight, local * one, one));
    }
    return weights;
  }

  // [stage][run], microseconds.
  std::vector<Values> time_stages(std::size_t stages) {
    StageEvents events(stages);
    std::vector<Values> times(stages);
    backend_.on_end = [&](const layer::Stage&) { events.mark(stream()); };
    for (int run = 0; run < staged_runs; ++run) {
      const auto work = [&] {
        events.restart(stream());
        run_pass();
      };
      // Ranks begin together, or the first exchange would be timed with the wait for the last.
      const auto meet = [this] { context_.group.barrier(); };
      try {
        if (waits()) {
          context_.timer->cold_unheld(work, meet);
        } else {
          context_.timer->cold(work, meet);
        }
      } catch (...) {
        backend_.on_end = {};
        throw;
      }
      for (std::size_t stage = 0; stage < stages; ++stage) {
        times[stage].push_back(events.stage_us(stage));
      }
    }
    backend_.on_end = {};
    return times;
  }

  Context& context_;
  Pass pass_;
  layer::LayerPlan plan_;
  DeviceBuffer<unsigned char> memory_;
  layer::LayerRun run_;
  bool verifying_ = false;
  layer::DeviceLayer backend_;
  std::vector<std::uint16_t> first_;
  std::vector<unsigned char> router_host_;
};

}  // namespace

std::unique_ptr<Workload> layer_workload(Context& context, const PointSpec& spec,
                                         std::uint64_t seed) {
  // First of all: a rank that has no memory must have joined the others.
  if (context.group.size() > 1) context.nccl();
  return std::make_unique<Layer>(context, spec, seed);
}

}  // namespace moesim::kernels::measure::cuda
