#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace moesim::routing {

// What a LayerRouting counts by GPU: a row of numbers of each GPU of the job, or of each of one
// expert-parallel group, which then stands for all groups. Refers to the numbers.
class GpuRows {
 public:
  GpuRows(const std::vector<std::int32_t>& numbers, int columns)
      : numbers_(numbers), columns_(static_cast<std::size_t>(columns)) {}

  // GPUs that have a row of their own.
  std::size_t gpus() const { return numbers_.size() / columns_; }
  const std::int32_t* of(int gpu) const {
    return numbers_.data() + static_cast<std::size_t>(gpu) * columns_ % numbers_.size();
  }

 private:
  const std::vector<std::int32_t>& numbers_;
  std::size_t columns_;
};

// [gpu], from the values of the GPUs that have a row.
template <typename Value>
std::vector<Value> for_all_gpus(std::vector<Value> values, int gpus) {
  const std::size_t given = values.size();
  values.reserve(static_cast<std::size_t>(gpus));
  while (values.size() < static_cast<std::size_t>(gpus)) {
    values.push_back(values[values.size() - given]);
  }
  return values;
}

}  // namespace moesim::routing
