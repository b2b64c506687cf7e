#pragma once

#include <string>
#include <vector>

namespace moesim::study {

// What a file of measurements is, by its content.
enum class LogKind { nccl_tests, perftest, nvbandwidth, deepep };
// Throws UsageError naming the file where it is none of these.
LogKind kind_of_log(const std::string& file);

// One run of linux-rdma/perftest (ib_write_bw, ib_send_lat, ...), between two NICs.
struct PerftestRun {
  std::string test;       // "RDMA_Write BW"
  std::string nic = "";   // "mlx5_0"; "": not stated
  double gbit_per_s = 0;  // of a bandwidth test: the largest average of all sizes, one direction
  double latency_us = 0;  // of a latency test: t_typical (else t_avg) of the smallest size, one way
  double largest_bytes = 0;  // of a message of a bandwidth test
  double latency_bytes = 0;  // of the message that took latency_us
  std::size_t cut_line = 0;  // a last row with fewer columns than those before it; 0: none
  std::string doubt(const std::string& file) const;  // the warning of such a row
};
// Throws UsageError naming file and line: no table, rows cut off before others, cells that are no
// numbers.
std::vector<PerftestRun> read_perftest_log(const std::string& file);

// One test of nvbandwidth that copies from GPU to GPU in one direction, pair by pair.
struct CopyMatrix {
  std::string test;              // "device_to_device_memcpy_write_ce"
  std::string device;            // "NVIDIA H200"; "": not stated
  std::vector<double> gb_per_s;  // of each pair
};
// Printed output or that of --json. Throws UsageError naming the file where no such test passed.
std::vector<CopyMatrix> read_nvbandwidth_log(const std::string& file);

// What DeepEP's tests found to be the fastest setting of a stage.
struct DeepEpBest {
  std::string stage;           // "dispatch" or "combine"
  std::string row_format;      // "bf16" or "fp8"
  int sms = 0;                 // of its kernels
  double time_us = 0;          // of the transfer, without the notify phase; 0: not printed
  double rdma_gb_per_s = 0;    // bytes for every node, its own included; 0: inside one node
  double nvlink_gb_per_s = 0;  // bytes that a GPU receives of every one, itself included
  int tokens = 0;              // of each GPU
  int hidden = 0;
  int top_k = 0;
  int node_groups = 0;  // nodes that a token goes to at most (num_topk_groups); 0: not printed
};
// The results of test_internode.py and test_intranode.py; empty for test_low_latency.py alone.
// Throws UsageError naming the file where nothing of these is in it.
std::vector<DeepEpBest> read_deepep_log(const std::string& file);

}  // namespace moesim::study
