// A libcupti that refuses as FAKE_CUPTI says: "privileges", "subscriber", "version" (of another
// major number); else it agrees to everything and records nothing. FAKE_CUPTI_LOG names a file that
// gets a line per kind of activity switched on or off, and for each subscriber.
#include <cupti.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

std::string mode() {
  const char* text = std::getenv("FAKE_CUPTI");
  return text != nullptr ? text : "";
}

void log(const char* what, int kind) {
  const char* path = std::getenv("FAKE_CUPTI_LOG");
  if (path == nullptr) return;
  std::FILE* file = std::fopen(path, "a");
  std::fprintf(file, "%s %d\n", what, kind);
  std::fclose(file);
}

}  // namespace

extern "C" {

CUptiResult cuptiGetVersion(std::uint32_t* version) {
  constexpr std::uint32_t own = CUPTI_API_VERSION + FAKE_CUPTI_NEWER;
  *version = mode() == "version" ? own - 10000 : own;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiGetResultString(CUptiResult result, const char** text) {
  *text = result == CUPTI_ERROR_INSUFFICIENT_PRIVILEGES ? "CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
                                                        : "CUPTI_ERROR_UNKNOWN";
  return CUPTI_SUCCESS;
}
CUptiResult cuptiSubscribe(CUpti_SubscriberHandle*, CUpti_CallbackFunc, void*) {
  log("subscriber", 0);
  return mode() == "subscriber" ? CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED : CUPTI_SUCCESS;
}
CUptiResult cuptiUnsubscribe(CUpti_SubscriberHandle) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityRegisterCallbacks(CUpti_BuffersCallbackRequestFunc,
                                           CUpti_BuffersCallbackCompleteFunc) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityEnable(CUpti_ActivityKind kind) {
  // Not the first kind that is asked for: those before it are then on.
  if (mode() == "privileges" && kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    return CUPTI_ERROR_INSUFFICIENT_PRIVILEGES;
  }
  log("on", kind);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityDisable(CUpti_ActivityKind kind) {
  log("off", kind);
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityFlushAll(std::uint32_t) { return CUPTI_SUCCESS; }
CUptiResult cuptiActivityGetNextRecord(std::uint8_t*, std::size_t, CUpti_Activity**) {
  return CUPTI_ERROR_MAX_LIMIT_REACHED;
}
CUptiResult cuptiActivityGetNumDroppedRecords(CUcontext, std::uint32_t, std::size_t* dropped) {
  *dropped = 0;
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPushExternalCorrelationId(CUpti_ExternalCorrelationKind, std::uint64_t) {
  return CUPTI_SUCCESS;
}
CUptiResult cuptiActivityPopExternalCorrelationId(CUpti_ExternalCorrelationKind,
                                                  std::uint64_t* range) {
  *range = 1;
  return CUPTI_SUCCESS;
}
}
