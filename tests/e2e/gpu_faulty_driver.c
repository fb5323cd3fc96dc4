// A driver in front of NVIDIA's (libcuda.so.1), with the faults that a healthy machine does not have. tests/run_gpu.sh
// compiles it and puts it where a worker looks first; whatever is not here is found in the real one, which it is linked to.
//   FAULTY_DRIVER_REAL=PATH      the real one
//   FAULTY_DRIVER_VERSION=12020  the version of CUDA that it says to support
//   FAULTY_DRIVER_CAPABILITY=80  the compute capability that GPUs have
//   FAULTY_DRIVER_FAILS=PATH     once this file exists, every launch fails as after an illegal address

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { kIllegalAddress = 700, kCapabilityMajor = 75, kCapabilityMinor = 76 };

static void* Real(const char* name) {
  static void* library = NULL;
  if (library == NULL) library = dlopen(getenv("FAULTY_DRIVER_REAL"), RTLD_NOW);
  void* found = library == NULL ? NULL : dlsym(library, name);
  if (found == NULL) {
    fprintf(stderr, "faulty driver: the real one has no %s: %s\n", name, dlerror());
    abort();
  }
  return found;
}

static int Fails(void) {
  const char* path = getenv("FAULTY_DRIVER_FAILS");
  return path != NULL && access(path, F_OK) == 0;
}

int cuDriverGetVersion(int* version) {
  const char* wanted = getenv("FAULTY_DRIVER_VERSION");
  if (wanted == NULL) return ((int (*)(int*))Real("cuDriverGetVersion"))(version);
  *version = atoi(wanted);
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  const char* wanted = getenv("FAULTY_DRIVER_CAPABILITY");
  if (wanted != NULL && (attribute == kCapabilityMajor || attribute == kCapabilityMinor)) {
    *value = attribute == kCapabilityMajor ? atoi(wanted) / 10 : atoi(wanted) % 10;
    return 0;
  }
  return ((int (*)(int*, int, int))Real("cuDeviceGetAttribute"))(value, attribute, device);
}

int cuLaunchKernelEx(const void* config, void* function, void** params, void** extra) {
  if (Fails()) return kIllegalAddress;
  return ((int (*)(const void*, void*, void**, void**))Real("cuLaunchKernelEx"))(config, function, params, extra);
}

int cuGraphLaunch(void* graph, void* stream) {
  if (Fails()) return kIllegalAddress;
  return ((int (*)(void*, void*))Real("cuGraphLaunch"))(graph, stream);
}

int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, void* result);

// What stands in for a function of the real driver; NULL: nothing.
static void* StandIn(const char* name) {
  if (strcmp(name, "cuDriverGetVersion") == 0) return (void*)cuDriverGetVersion;
  if (strcmp(name, "cuDeviceGetAttribute") == 0) return (void*)cuDeviceGetAttribute;
  if (strcmp(name, "cuLaunchKernelEx") == 0) return (void*)cuLaunchKernelEx;
  if (strcmp(name, "cuGraphLaunch") == 0) return (void*)cuGraphLaunch;
  // As which the runtime asks for everything else.
  if (strcmp(name, "cuGetProcAddress") == 0) return (void*)cuGetProcAddress_v2;
  return NULL;
}

int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, void* result) {
  const int error = ((int (*)(const char*, void**, int, uint64_t, void*))Real("cuGetProcAddress_v2"))(
      name, function, version, flags, result);
  if (error == 0 && *function != NULL && StandIn(name) != NULL) *function = StandIn(name);
  return error;
}

int cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
