#pragma once

#include <memory>

#include "kernels/measure/cuda/workloads/context.hpp"
#include "kernels/measure/devices/device.hpp"

namespace moesim::kernels::measure::cuda {

// A point's workload on a device; inputs from `seed`. They throw OutOfDeviceMemory, NotMeasurable
// or Error.
std::unique_ptr<Workload> gemm_workload(Context& context, const PointSpec& spec,
                                        std::uint64_t seed);
// op "gemm" too, of other data types than bf16 (suites/gemm_fp8.hpp).
std::unique_ptr<Workload> fp8_workload(Context& context, const PointSpec& spec, std::uint64_t seed);
// op "sustained-gemm": either of them without a rest, with what NVML says meanwhile.
std::unique_ptr<Workload> sustained_workload(Context& context, const PointSpec& spec,
                                             std::uint64_t seed);
std::unique_ptr<Workload> memory_workload(Context& context, const PointSpec& spec,
                                          std::uint64_t seed);
std::unique_ptr<Workload> collective_workload(Context& context, const PointSpec& spec,
                                              std::uint64_t seed);

// op "route": from logits to slots and weights; op "gate": from bf16 x and router weights.
std::unique_ptr<Workload> routing_workload(Context& context, const PointSpec& spec,
                                           std::uint64_t seed);
// One launch of it: op "choose" (softmax and top-k'), "assign" (capacity) or "router-backward".
std::unique_ptr<Workload> stage_workload(Context& context, const PointSpec& spec,
                                         std::uint64_t seed);
// op "overlap": a product or an exchange, alone or while the other one runs.
std::unique_ptr<Workload> overlap_workload(Context& context, const PointSpec& spec,
                                           std::uint64_t seed);
// op "expert-ffn": the FFNs of a GPU's local experts.
std::unique_ptr<Workload> expert_workload(Context& context, const PointSpec& spec,
                                          std::uint64_t seed);
// op "attention": causal attention forward by cuDNN.
std::unique_ptr<Workload> attention_workload(Context& context, const PointSpec& spec,
                                             std::uint64_t seed);
// op "attention-backward": the backward pass of that.
std::unique_ptr<Workload> attention_backward_workload(Context& context, const PointSpec& spec,
                                                      std::uint64_t seed);
// op "permute" or "combine", or the backward of one ("combine-backward").
std::unique_ptr<Workload> row_workload(Context& context, const PointSpec& spec, std::uint64_t seed);
// op "dispatch": gate, capacity, weights and permute of a layer, in three launches.
std::unique_ptr<Workload> dispatch_workload(Context& context, const PointSpec& spec,
                                            std::uint64_t seed);

// op "launch": what programs pay beside kernels; op "host-copy": to or from pinned memory.
std::unique_ptr<Workload> launch_workload(Context& context, const PointSpec& spec,
                                          std::uint64_t seed);
std::unique_ptr<Workload> host_copy_workload(Context& context, const PointSpec& spec,
                                             std::uint64_t seed);

// op "layer": a whole MoE layer (kernels/layer), one pass of it; params as layer_point() sets them.
std::unique_ptr<Workload> layer_workload(Context& context, const PointSpec& spec,
                                         std::uint64_t seed);

// The workload of the point's op, by the list in workloads.cpp. Throws NotMeasurable for an op
// without one.
std::unique_ptr<Workload> make_workload(Context& context, const PointSpec& spec,
                                        std::uint64_t seed);

}  // namespace moesim::kernels::measure::cuda
