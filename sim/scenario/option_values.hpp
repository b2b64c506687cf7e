#pragma once

#include <cstdint>
#include <string>

#include "sim/base/decimal.hpp"
#include "sim/scenario/scenario.hpp"

namespace moesim::scenario {

// Defaults that do not depend on other options.
constexpr const char* default_profile = "a100-sxm-80gb";
constexpr const char* default_model = "llama2-7b-moe8";
constexpr const char* default_routing = "gaussian:0.1";
constexpr int default_gpus = 32;
constexpr int default_micro_batch = 8;
constexpr int default_replicas = 16;

// One value of an option; each throws UsageError that names the flag, the value and the choices or
// the bounds.
std::int64_t parse_whole_option(const std::string& option, const std::string& text);
// The same under bounds of the caller's own.
std::int64_t parse_whole(const std::string& flag, const std::string& text, std::int64_t low,
                         std::int64_t high);
std::uint64_t parse_seed(const std::string& text);
Decimal parse_capacity_factor(const std::string& text);  // > 0
Mode parse_mode(const std::string& text);
Dispatch parse_dispatch(const std::string& text);
Checkpointing parse_checkpointing(const std::string& text);
Overlap parse_overlap(const std::string& text);
Network parse_network(const std::string& text);
Deduplication parse_deduplication(const std::string& text);
// "3:1.5+7:2": factors of at least 1, each GPU once.
GpuFactors parse_gpu_factors(const std::string& flag, const std::string& text);
Decimal parse_jitter(const std::string& text);                      // 0 to 1
engine::Slowdowns parse_overlap_slowdown(const std::string& text);  // "1.1:1.3", at least 1 each

}  // namespace moesim::scenario
