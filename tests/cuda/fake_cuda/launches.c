/* Launches: which kernel a function is, and the operation that emulates it. */
#include "kernels.h"
#include "runtime.h"

#include <stdlib.h>
#include <string.h>

enum { NUM_PLACES = 1 << 17, MAX_ARGUMENTS = 256 }; /* ONNX Runtime registers some 40,000 kernels */

/* A kernel of the program, by the address that stands for it on the host. Its place in the table is its cudaKernel_t. */
struct CUkern_st {
  const void *host;
  const char *name; /* mangled */
  const struct kernel *emulation;
  bool is_looked_up;
};

static struct CUkern_st functions[NUM_PLACES]; /* a hash table with open addressing, less than half full */

static struct CUkern_st *place_for(const void *host) {
  size_t place = ((size_t)host >> 4) % NUM_PLACES;
  while (functions[place].host && functions[place].host != host) place = (place + 1) % NUM_PLACES;
  return &functions[place];
}

static struct CUkern_st *find_function(const void *handle) {
  const char *const start = (const char *)functions, *const address = handle;
  if (address >= start && address < start + sizeof functions) return (struct CUkern_st *)handle;
  struct CUkern_st *function = place_for(handle);
  return function->host ? function : NULL;
}

static const struct kernel *emulation_of(struct CUkern_st *function) {
  if (!function->is_looked_up) {
    const struct kernel *kernel = KERNELS;
    while (kernel->name && !strstr(function->name, kernel->name)) kernel++;
    function->emulation = kernel->name ? kernel : NULL;
    function->is_looked_up = true;
  }
  return function->emulation;
}

/* ---- the operation ---- */

struct launch {
  const struct kernel *kernel;
  const char *name;
  dim3 grid, block;
  /* The arguments follow, each aligned for any type. */
};

static size_t aligned(size_t bytes) {
  const size_t alignment = _Alignof(max_align_t);
  return (bytes + alignment - 1) / alignment * alignment;
}

static void run_launch(const void *arguments) {
  const struct launch *launch = arguments;
  const char *next = (const char *)arguments + aligned(sizeof *launch);
  void *pointers[MAX_ARGUMENTS] = {0};
  for (int i = 0; launch->kernel->sizes[i]; next += aligned(launch->kernel->sizes[i++])) pointers[i] = (void *)next;
  launch->kernel->run(pointers, launch->grid, launch->block, launch->name);
}

static struct operation *new_launch(struct launch launch, void *const *arguments) {
  const size_t *sizes = launch.kernel->sizes;
  size_t bytes = aligned(sizeof launch);
  for (int i = 0; sizes[i]; i++) bytes += aligned(sizes[i]);
  char *const copy = calloc(1, bytes), *next = copy + aligned(sizeof launch);
  memcpy(copy, &launch, sizeof launch);
  for (int i = 0; sizes[i]; next += aligned(sizes[i++])) memcpy(next, arguments[i], sizes[i]);
  struct operation *operation = new_operation(run_launch, copy, bytes);
  free(copy);
  return operation;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t handle, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                               cudaStream_t stream) {
  API_CALL(SAFE);
  struct CUkern_st *function = find_function(handle);
  if (!function) return failed(cudaErrorInvalidDeviceFunction);
  const struct kernel *kernel = emulation_of(function);
  count("launches", NULL, NULL);
  fake_cuda_log("kernel\t%s\tgrid %u,%u,%u\tblock %u,%u,%u\tshared %zu\tstream %p%s", function->name, grid.x, grid.y, grid.z,
                block.x, block.y, block.z, shared_bytes, (void *)stream, kernel ? "" : "\tnot emulated");
  if (!kernel) {
    count("not emulated", function->name, NULL);
    if (settings.strict) return failed(cudaErrorInvalidDeviceFunction);
  }
  struct operation *operation = kernel ? new_launch((struct launch){kernel, function->name, grid, block}, arguments)
                                       : new_operation(NULL, NULL, 0);
  operation->is_launch = true;
  return append(stream, operation);
}

cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  return __cudaLaunchKernel((cudaKernel_t)function, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block, void **arguments, size_t shared_bytes,
                                        cudaStream_t stream) {
  return __cudaLaunchKernel((cudaKernel_t)function, grid, block, arguments, shared_bytes, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments) {
  return __cudaLaunchKernel((cudaKernel_t)function, config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                            config->stream);
}

cudaError_t enqueue(cudaStream_t stream, void (*run)(const void *arguments), const void *arguments, size_t bytes) {
  API_CALL(SAFE);
  count("products", NULL, NULL);
  fake_cuda_log("product\tstream %p", (void *)stream);
  struct operation *operation = new_operation(run, arguments, bytes);
  operation->is_launch = true;
  return append(stream, operation);
}

struct host_call {
  cudaHostFn_t function;
  void *data;
};

static void run_host_call(const void *arguments) {
  const struct host_call *call = arguments;
  call->function(call->data);
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  API_CALL(SAFE);
  count("host functions", NULL, NULL);
  const struct host_call call = {function, data};
  return append_call(stream, run_host_call, &call, sizeof call);
}

/* ---- what the compiler's code registers and calls ---- */

static void *module; /* the handle of every binary */

void **__cudaRegisterFatBinary(void *binary) {
  (void)binary;
  return &module;
}

void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }

void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

void __cudaRegisterFunction(void **handle, const char *host, char *device_function, const char *name, int thread_limit,
                            void *thread, void *block, void *block_size, void *grid_size, int *warp_size) {
  (void)handle, (void)device_function, (void)thread_limit, (void)thread, (void)block, (void)block_size, (void)grid_size;
  (void)warp_size;
  *place_for(host) = (struct CUkern_st){.host = host, .name = name};
}

void __cudaRegisterVar(void **handle, char *host, char *device_address, const char *name, int external, size_t bytes,
                       int constant, int global) {
  (void)handle, (void)host, (void)device_address, (void)name, (void)external, (void)bytes, (void)constant, (void)global;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  API_CALL(SAFE);
  *kernel = find_function(host);
  return *kernel ? cudaSuccess : failed(cudaErrorInvalidDeviceFunction);
}

struct configuration {
  dim3 grid, block;
  size_t shared_bytes;
  void *stream;
};

static _Thread_local struct configuration configurations[16];
static _Thread_local int num_configurations;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void *stream) {
  configurations[num_configurations++] = (struct configuration){grid, block, shared_bytes, stream};
  return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared_bytes, void *stream) {
  const struct configuration *last = &configurations[--num_configurations];
  *grid = last->grid;
  *block = last->block;
  *shared_bytes = last->shared_bytes;
  *(void **)stream = last->stream;
  return cudaSuccess;
}

/* ---- kernels that are loaded by name, and their attributes ---- */

cudaError_t cudaLibraryLoadData(cudaLibrary_t *library, const void *code, enum cudaJitOption *jit_options, void **jit_values,
                                unsigned num_jit_options, enum cudaLibraryOption *options, void **values,
                                unsigned num_options) {
  (void)code, (void)jit_options, (void)jit_values, (void)num_jit_options, (void)options, (void)values, (void)num_options;
  API_CALL(SAFE);
  *library = malloc(1); /* a handle */
  return cudaSuccess;
}

cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
  API_CALL(SAFE);
  free(library);
  return cudaSuccess;
}

cudaError_t cudaLibraryGetKernel(cudaKernel_t *kernel, cudaLibrary_t library, const char *name) {
  (void)library;
  API_CALL(SAFE);
  const char *copy = strdup(name); /* its address stands for the kernel */
  *kernel = place_for(copy);
  **kernel = (struct CUkern_st){.host = copy, .name = copy};
  return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function) {
  (void)function;
  API_CALL(SAFE);
  *attributes = (struct cudaFuncAttributes){
      .maxThreadsPerBlock = 1024,
      .numRegs = 32,
      .ptxVersion = settings.capability,
      .binaryVersion = settings.capability,
      .maxDynamicSharedSizeBytes = 232448,
  };
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value) {
  (void)function, (void)attribute, (void)value;
  API_CALL(SAFE);
  return cudaSuccess;
}

cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel, enum cudaFuncAttribute attribute, int value, int device) {
  (void)kernel, (void)attribute, (void)value, (void)device;
  API_CALL(SAFE);
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *num_blocks, const void *function, int block_size,
                                                                   size_t shared_bytes, unsigned flags) {
  (void)function, (void)block_size, (void)shared_bytes, (void)flags;
  API_CALL(SAFE);
  *num_blocks = 2;
  return cudaSuccess;
}

static int do_nothing(void) { return 0; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *result) {
  (void)symbol, (void)version, (void)flags;
  API_CALL(SAFE);
  *function = (void *)do_nothing;
  if (result) *result = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}
