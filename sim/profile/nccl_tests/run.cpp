#include "sim/profile/nccl_tests/run.hpp"

#include <fmt/format.h>

#include <cstdint>
#include <utility>

#include "sim/base/error.hpp"

namespace moesim::profile {
namespace {

std::string place_of(const std::string& file, std::size_t line) {
  return line > 0 ? fmt::format("{}: line {}", file, line) : file;
}

}  // namespace

std::string place_of(const NcclTestsRun& run) { return place_of(run.file, run.line); }

std::string place_of(const NcclTestsRun& run, const NcclTestsRow& row) {
  return place_of(run.file, row.line);
}

void add_row(NcclTestsRun& run, NcclTestsRow row) {
  constexpr double most_bytes = std::int64_t{1} << 53;  // a whole number as double and in documents
  if (row.bytes > most_bytes) {
    refuse(run, row.line, fmt::format("a size of {:g} bytes is none of an exchange", row.bytes));
  }
  if (row.bytes > 0 && row.time_us > 0) run.rows.push_back(std::move(row));
}

// 2708 is 2.7.8, and from 2.9 on 22703 is 2.27.3.
std::string nccl_version(int code) {
  const int major = code >= 10000 ? code / 10000 : code / 1000;
  const int rest = code >= 10000 ? code % 10000 : code % 1000;
  return fmt::format("{}.{}.{}", major, rest / 100, rest % 100);
}

void refuse(const NcclTestsRun& run, std::size_t line, const std::string& why) {
  throw UsageError(fmt::format("{}: {}", place_of(run.file, line), why));
}

}  // namespace moesim::profile
