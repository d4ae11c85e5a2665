/* Devices: how many there are, what they can do, and the errors that outlast a call. */
#define _GNU_SOURCE
#include "runtime.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { NUM_MULTIPROCESSORS = 132, SHARED_BYTES_OPTIN = 232448, L2_BYTES = 50 << 20 };

struct device devices[MAX_DEVICES];

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static _Thread_local int chosen_device;
static _Thread_local cudaError_t last_error;

int current_device(void) { return chosen_device; }

cudaError_t failed(cudaError_t error) {
  if (error) last_error = error;
  return error;
}

void fail_device(int device, cudaError_t error, const char *why) {
  if (devices[device].error) return;
  fake_cuda_log("device failed\t%d\t%s\t%s", device, cudaGetErrorName(error), why);
  count("device failures", NULL, NULL);
  devices[device].error = error;
  for (struct CUstream_st *stream = all_streams(); stream; stream = stream->next)
    if (stream->device == device) discard(&stream->queue);
}

/* Why the runtime cannot work at all here, if so. */
static cudaError_t obstacle(void) {
  if (settings.num_devices < 1) return cudaErrorNoDevice;
  return settings.driver < CUDART_VERSION / 1000 * 1000 ? cudaErrorInsufficientDriver : cudaSuccess;
}

struct call begin_call(const char *name, enum safety safety) {
  pthread_mutex_lock(&lock);
  count("calls", name, NULL);
  cudaError_t error = obstacle();
  if (!error && settings.fail_call && --settings.fail_call == 0) fail_device(chosen_device, cudaErrorIllegalAddress, name);
  if (!error && safety != ANSWERS_ALWAYS) error = devices[chosen_device].error;
  if (!error && safety == UNSAFE_IN_CAPTURE && is_prohibited(name)) error = cudaErrorStreamCaptureUnsupported;
  if (error) fake_cuda_log("refused\t%s\t%s", name, cudaGetErrorName(error));
  return (struct call){failed(error)};
}

void end_call(struct call *call) {
  (void)call;
  pthread_mutex_unlock(&lock);
}

/* For tests: the n-th call of the API from now on fails, and everything after it. 0: none does. */
void fake_cuda_fail_call(long nth) {
  pthread_mutex_lock(&lock);
  settings.fail_call = nth;
  pthread_mutex_unlock(&lock);
}

/* For tests: the n-th kernel or product that is executed from now on fails, and everything after it. 0: none does. */
void fake_cuda_fail_launch(long nth) {
  pthread_mutex_lock(&lock);
  settings.fail_launch = nth;
  pthread_mutex_unlock(&lock);
}

/* For tests: counters at 0, devices sound again. Memory and streams stay as they are. */
void fake_cuda_reset(void) {
  pthread_mutex_lock(&lock);
  reset_counters();
  for (int device = 0; device < MAX_DEVICES; device++) devices[device].error = cudaSuccess;
  last_error = cudaSuccess;
  settings.fail_call = settings.fail_launch = 0;
  pthread_mutex_unlock(&lock);
}

cudaError_t cudaGetDeviceCount(int *num_devices) {
  *num_devices = 0;
  API_CALL(ANSWERS_ALWAYS);
  *num_devices = settings.num_devices;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  API_CALL(ANSWERS_ALWAYS);
  if (device < 0 || device >= settings.num_devices) return failed(cudaErrorInvalidDevice);
  chosen_device = device;
  return devices[device].error;
}

cudaError_t cudaGetDevice(int *device) {
  API_CALL(ANSWERS_ALWAYS);
  *device = chosen_device;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
  *version = settings.driver;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
  API_CALL(SAFE);
  if (device < 0 || device >= settings.num_devices) return failed(cudaErrorInvalidDevice);
  *properties = (struct cudaDeviceProp){
      .name = "Fake CUDA device",
      .totalGlobalMem = settings.memory_bytes,
      .sharedMemPerBlock = 48 << 10,
      .regsPerBlock = 64 << 10,
      .warpSize = 32,
      .memPitch = 0x7fffffff,
      .maxThreadsPerBlock = 1024,
      .maxThreadsDim = {1024, 1024, 64},
      .maxGridSize = {0x7fffffff, 65535, 65535},
      .totalConstMem = 64 << 10,
      .major = settings.capability / 10,
      .minor = settings.capability % 10,
      .textureAlignment = 512,
      .multiProcessorCount = NUM_MULTIPROCESSORS,
      .canMapHostMemory = 1,
      .concurrentKernels = 1,
      .asyncEngineCount = 3,
      .unifiedAddressing = 1,
      .l2CacheSize = L2_BYTES,
      .maxThreadsPerMultiProcessor = 2048,
      .sharedMemPerMultiprocessor = SHARED_BYTES_OPTIN + 1024,
      .regsPerMultiprocessor = 64 << 10,
      .managedMemory = 1,
      .cooperativeLaunch = 1,
      .sharedMemPerBlockOptin = SHARED_BYTES_OPTIN,
      .maxBlocksPerMultiProcessor = 32,
      .memoryPoolsSupported = 1,
      .clusterLaunch = 1,
  };
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  API_CALL(SAFE);
  if (device < 0 || device >= settings.num_devices) return failed(cudaErrorInvalidDevice);
  switch ((int)attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxRegistersPerBlock: *value = 64 << 10; break;
    case cudaDevAttrMultiProcessorCount: *value = NUM_MULTIPROCESSORS; break;
    case cudaDevAttrL2CacheSize: *value = L2_BYTES; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = 2048; break;
    case cudaDevAttrComputeCapabilityMajor: *value = settings.capability / 10; break;
    case cudaDevAttrComputeCapabilityMinor: *value = settings.capability % 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = SHARED_BYTES_OPTIN + 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = SHARED_BYTES_OPTIN; break;
    default: *value = 1; /* a capability that the device has */
  }
  return cudaSuccess;
}

#define ERRORS(NAME)                                                                                         \
  NAME(cudaSuccess) NAME(cudaErrorInvalidValue) NAME(cudaErrorMemoryAllocation)                              \
  NAME(cudaErrorInsufficientDriver) NAME(cudaErrorInvalidPitchValue) NAME(cudaErrorInvalidDeviceFunction)    \
  NAME(cudaErrorNoDevice) NAME(cudaErrorInvalidDevice) NAME(cudaErrorInvalidResourceHandle)                  \
  NAME(cudaErrorNotReady) NAME(cudaErrorIllegalAddress) NAME(cudaErrorHostMemoryNotRegistered)               \
  NAME(cudaErrorNotSupported) NAME(cudaErrorIllegalState) NAME(cudaErrorStreamCaptureUnsupported)            \
  NAME(cudaErrorStreamCaptureInvalidated) NAME(cudaErrorStreamCaptureUnmatched)                              \
  NAME(cudaErrorStreamCaptureImplicit) NAME(cudaErrorStreamCaptureIsolation) NAME(cudaErrorCapturedEvent)    \
  NAME(cudaErrorStreamCaptureWrongThread) NAME(cudaErrorSymbolNotFound)

const char *cudaGetErrorName(cudaError_t error) {
  switch ((int)error) {
#define NAME(error) \
  case error: return #error;
    ERRORS(NAME)
#undef NAME
    default: return "an error that the fake does not know";
  }
}

const char *cudaGetErrorString(cudaError_t error) {
  switch ((int)error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    default: return cudaGetErrorName(error);
  }
}

/* The error of the thread's last failed call, or of its device. */
static cudaError_t latest_error(void) {
  const cudaError_t sticky = devices[chosen_device].error;
  return sticky ? sticky : last_error;
}

cudaError_t cudaPeekAtLastError(void) { return latest_error(); }

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = latest_error();
  last_error = cudaSuccess;
  return error;
}
