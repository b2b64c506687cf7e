// A libcuda.so.1 without devices that takes every module it is given: what cuDNN compiles for a GPU
// that is not here it loads into the driver before it calls the plan done.
namespace {

constexpr int success = 0, no_device = 100, not_found = 500;

int something;
int give(void** out) {
  *out = &something;
  return success;
}

}  // namespace

extern "C" {

int cuInit(unsigned) { return no_device; }
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return success;
}
int cuGetExportTable(const void**, const void*) { return not_found; }
int cuGetErrorName(int, const char** text) {
  *text = "an error of the stand-in";
  return success;
}
int cuGetErrorString(int code, const char** text) { return cuGetErrorName(code, text); }

int cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*, unsigned) {
  return give(library);
}
int cuLibraryUnload(void*) { return success; }
int cuLibraryGetKernel(void** kernel, void*, const char*) { return give(kernel); }
int cuLibraryGetModule(void** module, void*) { return give(module); }
int cuKernelGetFunction(void** function, void*) { return give(function); }
int cuKernelGetAttribute(int* value, int, void*, int) {
  *value = 0;
  return success;
}
int cuKernelSetAttribute(int, int, void*, int) { return success; }
int cuModuleLoadData(void** module, const void*) { return give(module); }
int cuModuleLoadDataEx(void** module, const void* code, unsigned, void*, void*) {
  return cuModuleLoadData(module, code);
}
int cuModuleUnload(void*) { return success; }
int cuModuleGetFunction(void** function, void*, const char*) { return give(function); }
int cuFuncGetAttribute(int* value, int, void*) {
  *value = 0;
  return success;
}
int cuFuncSetAttribute(void*, int, int) { return success; }

// What is looked up, but never called here; nothing of it works.
#define REFUSE(name) \
  int name() { return not_found; }
REFUSE(cuCtxGetCurrent)
REFUSE(cuCtxGetLimit)
REFUSE(cuCtxPopCurrent)
REFUSE(cuCtxPushCurrent)
REFUSE(cuDeviceGet)
REFUSE(cuDeviceGetCount)
REFUSE(cuLaunchCooperativeKernel)
REFUSE(cuLaunchKernel)
REFUSE(cuLaunchKernelEx)
REFUSE(cuLibraryLoadFromFile)
REFUSE(cuLinkAddData)
REFUSE(cuLinkComplete)
REFUSE(cuLinkCreate)
REFUSE(cuLinkDestroy)
REFUSE(cuOccupancyMaxPotentialClusterSize)
REFUSE(cuStreamGetCtx)
}
