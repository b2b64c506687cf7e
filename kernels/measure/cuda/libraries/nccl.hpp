#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/layer/run.hpp"
#include "kernels/measure/cuda/device/device_kernels.hpp"
#include "kernels/measure/ranks/group.hpp"
#include "kernels/measure/suites/hierarchical.hpp"

namespace moesim::kernels::measure::cuda {

// The ranks' NCCL communicator on the current device. The library is loaded when it is first asked
// for, so that a program without it still starts and says what is missing.
class NcclCommunicator {
 public:
  // Collective. Null if a rank has no NCCL, or this build none, or the ranks cannot be joined;
  // `trouble` then says why, on all ranks.
  static std::unique_ptr<NcclCommunicator> join(Group& group, std::string& trouble);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;  // it owns a communicator
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  std::string version() const;  // "2.28.3"
  int rank() const;
  int size() const;
  // Collective: the ranks that give the same `part` together, in the order of their ranks here.
  // Throws NotMeasurable if this NCCL cannot (before 2.18).
  std::unique_ptr<NcclCommunicator> split(int part);
  // Each rank's buffer is nccl-tests' size column, in bytes; elements are bf16. All queue on the
  // stream. Throw Error with NCCL's words and its rank.
  void all_to_all(const void* from, void* to, std::size_t bytes, Stream stream);
  void all_to_all(const void* from, const std::vector<std::int64_t>& sent, void* to,
                  const std::vector<std::int64_t>& received, Stream stream);
  // A message for each block, so that each lands where the experts read it.
  void all_to_all(const layer::BlockExchange& blocks, Stream stream);
  // Chunks of `chunk_bytes` as one rank's part of a plan says, all at once.
  void transfer(const Transfers& transfers, std::size_t chunk_bytes, const void* from, void* to,
                Stream stream);
  void all_reduce(const void* from, void* to, std::size_t bytes, Stream stream);
  void all_gather(const void* from, void* to, std::size_t bytes, Stream stream);
  void reduce_scatter(const void* from, void* to, std::size_t bytes, Stream stream);

 private:
  struct State;
  explicit NcclCommunicator(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace moesim::kernels::measure::cuda
