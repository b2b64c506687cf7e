#include "sim/parallel/dual_pipe.hpp"

#include <array>
#include <cstddef>
#include <deque>

namespace moesim::parallel {
namespace {

// The eight phases of deepseek-ai/DualPipe (dualpipe/dualpipe.py), in terms of the stream of
// micro-batches that reaches a rank first (0) and that which comes back (1). DualPipe's ranks in
// the second half mirror those in the first; DualPipeV is that half alone: rank r of it is as far
// from the turning point as rank r of a DualPipe of twice the ranks, and all micro-batches pass it.
class DualPipe {
 public:
  DualPipe(const ScheduleShape& shape, int rank)
      : shape_(shape),
        rank_(rank),
        folded_(shape.kind == ScheduleKind::dualpipe_v),
        half_ranks_(folded_ ? shape.ranks : shape.ranks / 2),
        half_rank_(folded_ || rank < half_ranks_ ? rank : shape.ranks - 1 - rank),
        per_stream_(folded_ ? shape.micro_batches : shape.micro_batches / 2) {}

  std::vector<PipelineOperation> operations() {
    const int outer = half_ranks_ - half_rank_ - 1;
    const int inner = half_rank_ + 1;
    const int main = per_stream_ - 2 * half_ranks_ + inner;
    for (int turn = 0; turn < 2 * outer; ++turn) forward(0);
    for (int turn = 0; turn < inner; ++turn) forward(0), forward(1);
    for (int turn = 0; turn < outer; ++turn) input_gradient(1), weight_gradient(), forward(1);
    for (int turn = 0; turn < main; ++turn) {
      // At the turning point the first two are not overlapped, which shortens the bubble.
      if (turn == 0 && outer == 0) {
        forward(0), backward(1);
      } else {
        pair(0, 1);
      }
      pair(1, 0);
    }
    for (int turn = 0; turn < outer; ++turn) backward(1), pair(1, 0);
    drain(inner);
    for (int turn = 0; turn < outer; ++turn) weight_gradient(), input_gradient(0);
    for (int turn = 0; turn < inner; ++turn) weight_gradient();
    return operations_;
  }

 private:
  // 2 x `turns` backward passes by turns; weight gradients of the second half of them wait.
  void drain(int turns) {
    for (int at = 0; at < 2 * turns; ++at) {
      const int stream = 1 - at % 2;
      at < turns ? backward(stream) : input_gradient(stream);
    }
  }

  ChunkPass next(std::array<int, 2>& counts, int stream) {
    const int micro_batch = counts[static_cast<std::size_t>(stream)]++;
    if (folded_) return {micro_batch, stream == 0 ? rank_ : 2 * shape_.ranks - 1 - rank_};
    const bool turned = (stream == 1) != (rank_ >= half_ranks_);
    return {micro_batch + (turned ? per_stream_ : 0), turned ? shape_.ranks - 1 - rank_ : rank_};
  }

  void forward(int stream) { add(OperationKind::forward, next(forward_, stream)); }
  void backward(int stream) { add(OperationKind::backward, next(backward_, stream)); }
  void input_gradient(int stream) {
    waiting_.push_back(next(backward_, stream));
    add(OperationKind::input_gradient, waiting_.back());
  }
  void weight_gradient() {  // the one that waits longest
    add(OperationKind::weight_gradient, waiting_.front());
    waiting_.pop_front();
  }
  void pair(int forward_stream, int backward_stream) {
    const ChunkPass pass = next(forward_, forward_stream);
    add(OperationKind::forward_backward, pass, next(backward_, backward_stream));
  }
  void add(OperationKind kind, ChunkPass pass, ChunkPass paired = {}) {
    operations_.push_back({kind, pass, paired});
  }

  const ScheduleShape& shape_;
  int rank_;
  bool folded_;
  int half_ranks_;
  int half_rank_;
  int per_stream_;
  std::array<int, 2> forward_{};
  std::array<int, 2> backward_{};
  std::deque<ChunkPass> waiting_;
  std::vector<PipelineOperation> operations_;
};

}  // namespace

std::vector<PipelineOperation> dual_pipe_operations(const ScheduleShape& shape, int rank) {
  return DualPipe(shape, rank).operations();
}

}  // namespace moesim::parallel
