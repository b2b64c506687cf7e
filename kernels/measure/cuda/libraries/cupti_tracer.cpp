#include "kernels/measure/cuda/libraries/cupti_tracer.hpp"

#include <fmt/format.h>

#include "kernels/base/shared_library.hpp"
#include "sim/base/error.hpp"

#ifdef MOESIM_HAVE_CUPTI
#include <cupti.h>

#include <array>
#include <cstdlib>
#include <mutex>
#endif

namespace moesim::kernels::measure::cuda {

#ifdef MOESIM_HAVE_CUPTI
namespace {

constexpr std::size_t buffer_bytes = std::size_t{1} << 20;
constexpr std::size_t buffer_alignment = 8;  // CUPTI's rule

struct Library {
  decltype(&::cuptiGetVersion) get_version = nullptr;
  decltype(&::cuptiGetResultString) result_string = nullptr;
  decltype(&::cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&::cuptiActivityEnable) enable = nullptr;
  decltype(&::cuptiActivityDisable) disable = nullptr;
  decltype(&::cuptiActivityFlushAll) flush_all = nullptr;
  decltype(&::cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&::cuptiActivityGetNumDroppedRecords) dropped_records = nullptr;
  decltype(&::cuptiActivityPushExternalCorrelationId) push_range = nullptr;
  decltype(&::cuptiActivityPopExternalCorrelationId) pop_range = nullptr;
  decltype(&::cuptiSubscribe) subscribe = nullptr;
  decltype(&::cuptiUnsubscribe) unsubscribe = nullptr;
  std::uint32_t version = 0;
  std::string trouble;

  std::string text(CUptiResult result) const {
    const char* words = nullptr;
    result_string(result, &words);
    return words != nullptr ? words : "unknown error";
  }
};

// The numbers since CUDA 13 carry its major version, 130001; before they only count, 18 for 12.0.
std::uint32_t major_of(std::uint32_t version) { return version / 10000; }

std::uint32_t version_of(const SharedLibrary& file) {
  std::uint32_t version = 0;
  const auto get = find_function<decltype(&::cuptiGetVersion)>(file, "cuptiGetVersion");
  return get != nullptr && get(&version) == CUPTI_SUCCESS ? version : 0;
}

// The newest, since one that is older than the driver may refuse it: the linker may find a Python
// package's before the toolkit's.
Library load() {
  Library library;
  const std::string name = fmt::format("libcupti.so.{}", CUDA_VERSION / 1000);
  constexpr const char* variable = "MOESIM_CUPTI_LIBRARY";
  const SharedLibrary file =
      open_newest_library(library_candidates(name, variable),
                          [](const SharedLibrary& each) { return version_of(each); });
  if (file.handle == nullptr) {
    library.trouble =
        fmt::format("CUPTI is missing ({}; {} may name the file)", file.trouble, variable);
    return library;
  }
  const NeededFunctions needed(file, library.trouble, name + " has no ");
  needed.find(library.get_version, "cuptiGetVersion");
  needed.find(library.result_string, "cuptiGetResultString");
  needed.find(library.register_callbacks, "cuptiActivityRegisterCallbacks");
  needed.find(library.enable, "cuptiActivityEnable");
  needed.find(library.disable, "cuptiActivityDisable");
  needed.find(library.flush_all, "cuptiActivityFlushAll");
  needed.find(library.next_record, "cuptiActivityGetNextRecord");
  needed.find(library.dropped_records, "cuptiActivityGetNumDroppedRecords");
  needed.find(library.push_range, "cuptiActivityPushExternalCorrelationId");
  needed.find(library.pop_range, "cuptiActivityPopExternalCorrelationId");
  needed.find(library.subscribe, "cuptiSubscribe");
  needed.find(library.unsubscribe, "cuptiUnsubscribe");
  if (!library.trouble.empty()) return library;
  // Within a major version records only grow at their end: what is read of them stays where it is.
  library.version = version_of(file);
  if (library.version == 0 || major_of(library.version) != major_of(CUPTI_API_VERSION)) {
    library.trouble = fmt::format("CUPTI has interface version {}, this build was made for {}",
                                  library.version, CUPTI_API_VERSION);
  }
  return library;
}

const Library& cupti() {
  static const Library library = load();
  return library;
}

// CUPTI's callbacks carry no pointer of the caller's: what they fill lives as long as the process.
struct Collected {
  std::mutex mutex;
  Trace trace;
};
Collected& collected() {
  static Collected content;
  return content;
}

void check(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  throw Error(fmt::format("{}: {}", what, cupti().text(result)));
}

void CUPTIAPI buffer_requested(std::uint8_t** buffer, std::size_t* size, std::size_t* most) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(buffer_alignment, buffer_bytes));
  *size = *buffer == nullptr ? 0 : buffer_bytes;
  *most = 0;
}

void keep(const CUpti_Activity& record, Trace& trace) {
  const auto add = [&trace](const auto& each) {
    trace.records.push_back({each.start, each.end, each.correlationId});
  };
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL:
      return add(reinterpret_cast<const CUpti_ActivityKernel10&>(record));
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return add(reinterpret_cast<const CUpti_ActivityMemcpy6&>(record));
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return add(reinterpret_cast<const CUpti_ActivityMemset4&>(record));
    case CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION: {
      const auto& link = reinterpret_cast<const CUpti_ActivityExternalCorrelation&>(record);
      trace.links.push_back({link.externalId, link.correlationId});
      return;
    }
    default:
      return;
  }
}

void CUPTIAPI buffer_completed(CUcontext context, std::uint32_t stream, std::uint8_t* buffer,
                               std::size_t, std::size_t valid) {
  {
    const std::lock_guard lock(collected().mutex);
    CUpti_Activity* record = nullptr;
    while (valid > 0 && cupti().next_record(buffer, valid, &record) == CUPTI_SUCCESS) {
      keep(*record, collected().trace);
    }
    std::size_t dropped = 0;
    if (cupti().dropped_records(context, stream, &dropped) == CUPTI_SUCCESS) {
      collected().trace.dropped += dropped;
    }
  }
  std::free(buffer);
}

// CONCURRENT_KERNEL: the plain KERNEL kind runs kernels one after another. The API records carry
// the correlations that the ranges are tied to: the driver's too, since cuDNN and cuBLAS launch
// through it and no runtime call stands for their kernels.
constexpr std::array kinds{CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                           CUPTI_ACTIVITY_KIND_MEMCPY,
                           CUPTI_ACTIVITY_KIND_MEMSET,
                           CUPTI_ACTIVITY_KIND_RUNTIME,
                           CUPTI_ACTIVITY_KIND_DRIVER,
                           CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION};

void disable_all() {
  for (const CUpti_ActivityKind kind : kinds) cupti().disable(kind);
}

// All or none: a kind that stayed on would slow what is timed afterwards.
CUptiResult enable_all() {
  for (const CUpti_ActivityKind kind : kinds) {
    const CUptiResult result = cupti().enable(kind);
    if (result == CUPTI_SUCCESS) continue;
    disable_all();
    return result;
  }
  return CUPTI_SUCCESS;
}

void CUPTIAPI nothing(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {}

// "" if this process may trace.
std::string first_use() {
  if (!cupti().trouble.empty()) return cupti().trouble;
  CUpti_SubscriberHandle handle = nullptr;
  const CUptiResult subscribed = cupti().subscribe(&handle, nothing, nullptr);
  if (subscribed == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED) {
    return "another tool (a profiler or debugger) is attached to this process";
  }
  if (subscribed != CUPTI_SUCCESS) return "CUPTI refuses: " + cupti().text(subscribed);
  cupti().unsubscribe(handle);
  const CUptiResult registered = cupti().register_callbacks(buffer_requested, buffer_completed);
  if (registered != CUPTI_SUCCESS) return "CUPTI refuses: " + cupti().text(registered);
  const CUptiResult enabled = enable_all();
  disable_all();
  if (enabled == CUPTI_SUCCESS) return "";
  std::string trouble = "CUPTI refuses: " + cupti().text(enabled);
  if (enabled == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES) {
    trouble += "; the driver lets only root trace (NVreg_RestrictProfilingToAdminUsers)";
  }
  return trouble;
}

}  // namespace

std::string CuptiTracer::missing() { return cupti().trouble; }
std::string CuptiTracer::version() {
  return cupti().trouble.empty() ? std::to_string(cupti().version) : "";
}

CuptiTracer* CuptiTracer::get(std::string& trouble) {
  static CuptiTracer tracer;
  static const std::string reason = first_use();
  trouble = reason;
  return reason.empty() ? &tracer : nullptr;
}

void CuptiTracer::start() {
  {
    const std::lock_guard lock(collected().mutex);
    collected().trace = {};
  }
  check(enable_all(), "cuptiActivityEnable");
}

void CuptiTracer::begin_range(std::uint64_t range) {
  check(cupti().push_range(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, range),
        "cuptiActivityPushExternalCorrelationId");
}

void CuptiTracer::end_range() {
  std::uint64_t range = 0;
  check(cupti().pop_range(CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0, &range),
        "cuptiActivityPopExternalCorrelationId");
}

Trace CuptiTracer::stop() {
  const CUptiResult flushed = cupti().flush_all(1);
  disable_all();
  check(flushed, "cuptiActivityFlushAll");
  const std::lock_guard lock(collected().mutex);
  return std::move(collected().trace);
}

#else

std::string CuptiTracer::missing() {
  return "this build has no CUPTI: its headers come with the CUDA toolkit";
}
std::string CuptiTracer::version() { return ""; }
CuptiTracer* CuptiTracer::get(std::string& trouble) {
  trouble = missing();
  return nullptr;
}
void CuptiTracer::start() {}
void CuptiTracer::begin_range(std::uint64_t) {}
void CuptiTracer::end_range() {}
Trace CuptiTracer::stop() { return {}; }

#endif

}  // namespace moesim::kernels::measure::cuda
