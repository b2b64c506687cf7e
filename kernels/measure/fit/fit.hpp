#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/measure/points/point.hpp"

namespace moesim::kernels::measure {

// Curves of a profile document, fitted to measured points. Each takes the points of its op out of
// `points` (void and synthetic ones never count) and returns nothing where they are too few.
// `source` is what the curve says of its origin.

// The prior's tile kernels, corrected in log time on the prior's own grid over (m, n, k): its
// physics carries where nothing was measured. The residual is from 5 seeded folds by shape.
// `prior` is a gemm curve of model "tile-kernels"; `sms` those of the measured device.
std::optional<nlohmann::ordered_json> fit_gemm(const std::vector<Point>& points,
                                               const nlohmann::ordered_json& prior,
                                               std::int64_t sms, const std::string& source);

// The same of FP8 products, whose points are the product alone. Two priors are corrected, and the
// one that predicts held-out points better is taken: the prior's tile kernels without its cast of
// A, and those of `bf16` (the profile's curve of bf16) with steps of twice as many elements.
std::optional<nlohmann::ordered_json> fit_gemm_fp8(const std::vector<Point>& points,
                                                   const nlohmann::ordered_json& prior,
                                                   const nlohmann::ordered_json& bf16,
                                                   std::int64_t sms, const std::string& source);

// Attention of the prior's head size: the prior's tiles (a curve of model "flash-tiles") and one
// more smooth correction in log time over length and footprint. The residual is from 5 seeded
// folds.
std::optional<nlohmann::ordered_json> fit_attention(const std::vector<Point>& points,
                                                    const nlohmann::ordered_json& prior,
                                                    std::int64_t sms, const std::string& source);

// Straight pieces through the measured sizes of one family of memory-bound kernels ("streaming",
// "activation", "normalization"), made to never fall; the residual leaves out each size in turn.
std::optional<nlohmann::ordered_json> fit_memory(const std::vector<Point>& points,
                                                 const std::string& kernel,
                                                 const std::string& source);

// The same for one kind of exchange among the GPUs of one node, equal counts, one branch per GPU
// count; GPU counts of `prior` (a curve of the same op, or null) that were not measured keep its
// branches, with its version, errors and measured sizes. `nccl` is the version measured.
std::optional<nlohmann::ordered_json> fit_collective(const std::vector<Point>& points,
                                                     const std::string& op, const std::string& nccl,
                                                     const nlohmann::ordered_json& prior,
                                                     const std::string& source);

// permute or combine as a share of the bandwidth of `streaming` (a memory curve): the median share
// over the points.
std::optional<nlohmann::ordered_json> fit_row_moves(const std::vector<Point>& points,
                                                    const std::string& op,
                                                    const nlohmann::ordered_json& streaming,
                                                    const std::string& source);

// The profile's "overlap": by how much each side of an overlap point (suites/overlap.hpp) takes
// longer beside the other, the medians over all measured pairs (at least 1) and their ranges.
std::optional<nlohmann::ordered_json> fit_overlap(const std::vector<Point>& points,
                                                  const std::string& source);

// Fewer points than this make no curve; fewer pairs say nothing of another pair.
constexpr std::size_t fewest_overlap_pairs = 3;
constexpr std::size_t fewest_gemm_points = 20;
constexpr std::size_t fewest_attention_points = 15;
constexpr std::size_t fewest_sizes = 5;

}  // namespace moesim::kernels::measure
