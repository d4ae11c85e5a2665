/* Memory of the devices and pinned memory of the host: who may hold how much, and which addresses are whose.

   Both are memory of this process. What is new, and what has been freed, is filled with bytes that are no plausible number. */
#include "runtime.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 512, GARBAGE = 0x7f }; /* of a device's allocations; as float16 and float32 a NaN and 3.4e38 */

struct allocation {
  struct allocation *next;
  uintptr_t start;
  size_t bytes;
  enum place place;
  int device;
};

static struct allocation *allocations;

static struct allocation **find(const void *address) {
  struct allocation **link = &allocations;
  while (*link && ((uintptr_t)address < (*link)->start || (uintptr_t)address >= (*link)->start + (*link)->bytes))
    link = &(*link)->next;
  return link;
}

enum place place_of(const void *address, int *device) {
  const struct allocation *found = *find(address);
  if (found && device) *device = found->device;
  return found ? found->place : PAGEABLE;
}

bool lies_in_allocation(const void *address, size_t bytes) {
  const struct allocation *found = *find(address);
  return found && bytes <= found->start + found->bytes - (uintptr_t)address;
}

static void register_memory(void *address, size_t bytes, enum place place) {
  struct allocation *allocation = malloc(sizeof *allocation);
  *allocation = (struct allocation){allocations, (uintptr_t)address, bytes, place, current_device()};
  allocations = allocation;
  if (place == DEVICE) devices[allocation->device].used_bytes += bytes;
}

static cudaError_t allocate(void **address, size_t bytes, enum place place, const char *name) {
  *address = NULL;
  if (!bytes) return cudaSuccess;
  const bool fits = place != DEVICE || bytes <= settings.memory_bytes - devices[current_device()].used_bytes;
  if (!fits || posix_memalign(address, ALIGNMENT, bytes)) {
    fake_cuda_log("out of memory\t%s\t%zu bytes", name, bytes);
    return failed(cudaErrorMemoryAllocation);
  }
  memset(*address, GARBAGE, bytes);
  register_memory(*address, bytes, place);
  count("allocations", name, NULL);
  fake_cuda_log("%s\t%zu bytes\t%p", name, bytes, *address);
  return cudaSuccess;
}

static cudaError_t unregister(void *address, enum place place, struct allocation *removed) {
  struct allocation **link = find(address), *found = *link;
  if (!found || found->start != (uintptr_t)address || found->place != place) return failed(cudaErrorInvalidValue);
  *link = found->next;
  *removed = *found;
  free(found);
  if (place == DEVICE) devices[removed->device].used_bytes -= removed->bytes;
  return cudaSuccess;
}

static cudaError_t release(void *address, enum place place, const char *name) {
  struct allocation removed;
  const cudaError_t error = unregister(address, place, &removed);
  if (error) return error;
  count("frees", name, NULL);
  fake_cuda_log("%s\t%p", name, address);
  memset(address, GARBAGE, removed.bytes);
  free(address);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **address, size_t bytes) {
  API_CALL(UNSAFE_IN_CAPTURE);
  return allocate(address, bytes, DEVICE, __func__);
}

/* Waits for the device, as the real one does. */
cudaError_t cudaFree(void *address) {
  API_CALL(UNSAFE_IN_CAPTURE);
  if (!address) return cudaSuccess;
  count("blocking", __func__, NULL);
  const cudaError_t error = execute_device(current_device());
  return error ? error : release(address, DEVICE, __func__);
}

cudaError_t cudaHostAlloc(void **address, size_t bytes, unsigned flags) {
  (void)flags;
  API_CALL(UNSAFE_IN_CAPTURE);
  return allocate(address, bytes, PINNED, __func__);
}

cudaError_t cudaMallocHost(void **address, size_t bytes) { return cudaHostAlloc(address, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *address) {
  API_CALL(UNSAFE_IN_CAPTURE);
  if (!address) return cudaSuccess;
  count("blocking", __func__, NULL);
  const cudaError_t error = execute_device(current_device());
  return error ? error : release(address, PINNED, __func__);
}

cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags) {
  (void)flags;
  API_CALL(UNSAFE_IN_CAPTURE);
  register_memory(address, bytes, PINNED);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *address) {
  API_CALL(UNSAFE_IN_CAPTURE);
  struct allocation removed;
  const cudaError_t error = execute_device(current_device());
  return error ? error : unregister(address, PINNED, &removed);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  API_CALL(SAFE);
  *total_bytes = settings.memory_bytes;
  *free_bytes = settings.memory_bytes - devices[current_device()].used_bytes;
  return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address) {
  API_CALL(SAFE);
  int device = current_device();
  const enum place place = place_of(address, &device);
  *attributes = (struct cudaPointerAttributes){
      .type = place == DEVICE   ? cudaMemoryTypeDevice
              : place == PINNED ? cudaMemoryTypeHost
                                : cudaMemoryTypeUnregistered,
      .device = place == PAGEABLE ? cudaInvalidDeviceId : device,
      .devicePointer = place == PAGEABLE ? NULL : (void *)address,
      .hostPointer = place == DEVICE ? NULL : (void *)address,
  };
  return cudaSuccess;
}

/* ---- pools, in the order of a stream; not recorded by captures ---- */

static void run_free(const void *arguments) { release(*(void *const *)arguments, DEVICE, "cudaFreeAsync"); }

cudaError_t cudaMallocFromPoolAsync(void **address, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  (void)pool, (void)stream;
  API_CALL(UNSAFE_IN_CAPTURE);
  return allocate(address, bytes, DEVICE, __func__);
}

cudaError_t cudaMallocAsync(void **address, size_t bytes, cudaStream_t stream) {
  return cudaMallocFromPoolAsync(address, bytes, NULL, stream);
}

cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
  API_CALL(UNSAFE_IN_CAPTURE);
  return address ? append_call(stream, run_free, &address, sizeof address) : cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const struct cudaMemPoolProps *properties) {
  (void)properties;
  API_CALL(SAFE);
  *pool = malloc(1); /* a handle: no pool has a state */
  return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  API_CALL(SAFE);
  free(pool);
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  (void)pool, (void)attribute;
  API_CALL(SAFE);
  memset(value, 0, attribute <= cudaMemPoolReuseAllowInternalDependencies ? sizeof(int) : sizeof(uint64_t));
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  (void)pool, (void)attribute, (void)value;
  API_CALL(SAFE);
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) {
  (void)pool, (void)bytes;
  API_CALL(SAFE);
  return cudaSuccess;
}
