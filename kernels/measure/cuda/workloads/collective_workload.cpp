#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "kernels/measure/cuda/libraries/nccl.hpp"
#include "kernels/measure/cuda/workloads/rotated_workload.hpp"
#include "kernels/measure/cuda/workloads/workloads.hpp"
#include "kernels/measure/suites/collectives.hpp"
#include "sim/base/numbers.hpp"

namespace moesim::kernels::measure::cuda {
namespace {

// Chunk `chunk` of rank `rank` begins with this salt, so that a swapped chunk shows.
std::uint32_t salt_of(int rank, int chunk) {
  return static_cast<std::uint32_t>(rank * 7919 + chunk * 104729);
}

// One exchange of the group. Data movements are verified word by word, against patterns that name
// rank, chunk and offset; reductions of bf16 by sums of small whole numbers, which are exact (of
// large ones slices: checked_slices()).
class Exchange : public Workload, public Queueable {
 public:
  Exchange(Context& context, const PointSpec& spec)
      : context_(context),
        nccl_(context.nccl()),
        op_(spec.op),
        ranks_(context.group.size()),
        rank_(context.group.rank()),
        bytes_(spec.params.at("bytes").get<std::size_t>()),
        // On a shared GPU the ranks take turns, each for milliseconds, and a call takes several.
        calls_(context.shared_gpu ? std::min<std::size_t>(spec.calls, 2) : spec.calls) {
    const bool uneven = spec.params.at("pattern") == "uneven";
    const auto total = static_cast<std::int64_t>(bytes_);
    for (int peer = 0; peer < ranks_; ++peer) {
      const std::int64_t equal = total / ranks_;
      sent_.push_back(uneven ? uneven_row(ranks_, rank_, total)[index_of(peer)] : equal);
      received_.push_back(uneven ? uneven_row(ranks_, peer, total)[index_of(rank_)] : equal);
    }
    uneven_ = uneven;
    if (spec.params.at("pattern") == "hierarchical") {
      // First of all: a rank that has no memory must have made them with the others.
      tiers_ = &context.tiers();
      plan_ = hierarchical_plan(tiers_->across->size(), tiers_->inside->size());
      staging_ = DeviceBuffer<std::uint8_t>(bytes_);
    }
    const auto in = static_cast<std::size_t>(
        std::accumulate(received_.begin(), received_.end(), std::int64_t{0}));
    from_ = DeviceBuffer<std::uint8_t>(bytes_);
    to_ = DeviceBuffer<std::uint8_t>(std::max(in, bytes_));
    wrong_ = DeviceBuffer<unsigned long long>(1);
  }

  std::string verify() override {
    return translated([this] { return reduces() ? verify_sums() : verify_moves(); });
  }

  Run cold() override {
    return translated([this] {
      // All ranks have queued theirs before any is released. The barrier releases them some time
      // apart; the first exchange, which is not timed, takes that.
      Run run = context_.timer->cold(
          [this] {
            for (std::size_t call = 0; call < calls_; ++call) launch(stream());
          },
          [this] { context_.group.barrier(); }, [this] { launch(stream()); });
      run.time_us /= static_cast<double>(calls_);
      run.calls = calls_;
      return run;
    });
  }
  double hot(std::size_t) override { throw NotMeasurable("exchanges have no hot figure"); }
  bool has_hot() const override { return false; }
  std::string timer() const override { return "cuda-events"; }
  bool synthetic() const override { return context_.shared_gpu; }

  void queue(cudaStream_t on) override { launch(on); }

 private:
  static constexpr std::size_t period = 4;  // of verify_sums()'s elements
  bool reduces() const { return op_ == "all-reduce" || op_ == "reduce-scatter"; }
  cudaStream_t stream() const { return context_.timer->stream(); }

  void launch(cudaStream_t on) {
    if (op_ == "all-reduce") return nccl_.all_reduce(from_.data(), to_.data(), bytes_, on);
    if (op_ == "all-gather") return nccl_.all_gather(from_.data(), to_.data(), bytes_, on);
    if (op_ == "reduce-scatter") {
      return nccl_.reduce_scatter(from_.data(), to_.data(), bytes_, on);
    }
    if (tiers_ != nullptr) {
      const std::size_t chunk = bytes_ / index_of(ranks_);
      tiers_->inside->transfer(plan_.inside, chunk, from_.data(), staging_.data(), on);
      tiers_->across->transfer(plan_.across, chunk, staging_.data(), to_.data(), on);
      return;
    }
    if (!uneven_) return nccl_.all_to_all(from_.data(), to_.data(), bytes_, on);
    nccl_.all_to_all(from_.data(), sent_, to_.data(), received_, on);
  }

  void run_poisoned() {
    MOESIM_CUDA(cudaMemsetAsync(to_.data(), 0xff, to_.size(), stream()));
    MOESIM_CUDA(cudaMemsetAsync(wrong_.data(), 0, sizeof(unsigned long long), stream()));
    // Where buffers were allocated just before, and what compares is launched just behind.
    context_.queue_together([this] { launch(stream()); });
  }

  static std::uint32_t* words(DeviceBuffer<std::uint8_t>& buffer, std::int64_t offset) {
    return reinterpret_cast<std::uint32_t*>(buffer.data() + offset);
  }

  std::string verify_moves() {
    const bool gathers = op_ == "all-gather";
    std::int64_t offset = 0;
    for (int peer = 0; peer < ranks_; ++peer) {
      const std::int64_t size = sent_[index_of(peer)];
      if (gathers && peer > 0) break;  // one chunk, the same for all
      launch_pattern(words(from_, offset), static_cast<std::size_t>(size / 4),
                     static_cast<std::uint32_t>(rank_), salt_of(rank_, gathers ? 0 : peer),
                     stream());
      offset += size;
    }
    run_poisoned();
    offset = 0;
    for (int peer = 0; peer < ranks_; ++peer) {
      const std::int64_t size = received_[index_of(peer)];
      launch_compare_pattern(words(to_, offset), static_cast<std::size_t>(size / 4),
                             static_cast<std::uint32_t>(peer), salt_of(peer, gathers ? 0 : rank_),
                             wrong_.data(), stream());
      offset += size;
    }
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
    const unsigned long long wrong = download(wrong_.data(), 1)[0];
    return wrong == 0 ? "" : fmt::format("{} of {} words are wrong", wrong, offset / 4);
  }

  // Element e of rank r is (r + e) % 4: the sums over ranks are whole numbers that bf16 holds.
  std::string verify_sums() {
    const std::size_t elements = bytes_ / 2;
    fill_summands(elements);
    run_poisoned();
    MOESIM_CUDA(cudaStreamSynchronize(stream()));
    const std::size_t own = op_ == "all-reduce" ? elements : elements / index_of(ranks_);
    const std::size_t first = op_ == "all-reduce" ? 0 : own * index_of(rank_);
    double wanted[period] = {};
    for (std::size_t element = 0; element < period; ++element) {
      for (int rank = 0; rank < ranks_; ++rank) {
        wanted[element] += static_cast<double>((element + index_of(rank)) % period);
      }
    }
    for (const Slice& slice : checked_slices(own)) {
      const auto got =
          download(reinterpret_cast<const std::uint16_t*>(to_.data()) + slice.first, slice.count);
      for (std::size_t place = 0; place < got.size(); ++place) {
        const std::size_t element = first + slice.first + place;
        // Beyond 256 a sum of bf16 is rounded, more than once on the way.
        if (close(bf16_value(got[place]), wanted[element % period], 0)) continue;
        return fmt::format("element {} is {}, expected {}", element, bf16_value(got[place]),
                           wanted[element % period]);
      }
    }
    return "";
  }

  // A block from the host, then copies of it on the device.
  void fill_summands(std::size_t elements) {
    constexpr std::size_t block = std::size_t{1} << 20;  // elements, a multiple of the period
    std::vector<std::uint16_t> mine(std::min(elements, block));
    for (std::size_t element = 0; element < mine.size(); ++element) {
      constexpr std::uint16_t bits[period] = {0x0000, 0x3f80, 0x4000, 0x4040};  // 0, 1, 2, 3
      mine[element] = bits[(element + index_of(rank_)) % period];
    }
    auto* to = reinterpret_cast<std::uint16_t*>(from_.data());
    MOESIM_CUDA(
        cudaMemcpyAsync(to, mine.data(), 2 * mine.size(), cudaMemcpyHostToDevice, stream()));
    for (std::size_t done = block; done < elements; done += block) {
      MOESIM_CUDA(cudaMemcpyAsync(to + done, to, 2 * std::min(block, elements - done),
                                  cudaMemcpyDeviceToDevice, stream()));
    }
    MOESIM_CUDA(cudaStreamSynchronize(stream()));  // `mine` ends here
  }

  Context& context_;
  NcclCommunicator& nccl_;
  std::string op_;
  int ranks_;
  int rank_;
  std::size_t bytes_;
  std::size_t calls_;  // of a sample
  bool uneven_ = false;
  Context::Tiers* tiers_ = nullptr;  // of a hierarchical exchange only
  HierarchicalPlan plan_;
  DeviceBuffer<std::uint8_t> staging_;
  std::vector<std::int64_t> sent_;      // bytes to each rank
  std::vector<std::int64_t> received_;  // bytes from each rank
  DeviceBuffer<std::uint8_t> from_, to_;
  DeviceBuffer<unsigned long long> wrong_;
};

}  // namespace

std::unique_ptr<Workload> collective_workload(Context& context, const PointSpec& spec,
                                              std::uint64_t) {
  return std::make_unique<Exchange>(context, spec);
}

}  // namespace moesim::kernels::measure::cuda
