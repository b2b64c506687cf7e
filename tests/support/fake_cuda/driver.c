// A libcuda.so.1 that answers the CUDA runtime as a broken machine's driver does:
// FAKE_DRIVER_VERSION is what it knows (13000), FAKE_INIT what cuInit returns (100: no device;
// -1: it ends the process).
// FAKE_DRIVER_LOG is a file that gets the environment's CUDA_MODULE_LOADING at cuInit. Nothing else
// works.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int figure(const char* name, int usual) {
  const char* text = getenv(name);
  return text != NULL ? atoi(text) : usual;
}

static int refuse(void) { return 999; }  // CUDA_ERROR_UNKNOWN

static void log_loading(void) {
  const char* path = getenv("FAKE_DRIVER_LOG");
  const char* loading = getenv("CUDA_MODULE_LOADING");
  if (path == NULL) return;
  FILE* file = fopen(path, "w");
  fputs(loading != NULL ? loading : "not set", file);
  fclose(file);
}

int cuInit(unsigned flags) {
  (void)flags;
  log_loading();
  if (figure("FAKE_INIT", 100) < 0) abort();
  return figure("FAKE_INIT", 100);
}

int cuDriverGetVersion(int* version) {
  *version = figure("FAKE_DRIVER_VERSION", 13000);
  return 0;
}

int cuGetExportTable(const void** table, const void* id) {
  (void)table;
  (void)id;
  return 1;
}

int cuGetProcAddress_v2(const char* symbol, void** function, int version, unsigned long long flags,
                        void* status) {
  (void)version;
  (void)flags;
  (void)status;
  *function = (void*)refuse;
  if (strcmp(symbol, "cuInit") == 0) *function = (void*)cuInit;
  if (strcmp(symbol, "cuDriverGetVersion") == 0) *function = (void*)cuDriverGetVersion;
  if (strcmp(symbol, "cuGetExportTable") == 0) *function = (void*)cuGetExportTable;
  if (strcmp(symbol, "cuGetProcAddress") == 0) *function = (void*)cuGetProcAddress_v2;
  return 0;
}

int cuGetProcAddress(const char* symbol, void** function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(symbol, function, version, flags, NULL);
}
