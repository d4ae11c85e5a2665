/* What the parts of the fake runtime share: the lock around every call, the devices, the streams and their operations.

   A call of the API starts with API_CALL. It takes the lock, which is held until the call returns, and ends the call with an
   error if the device has failed, if a test asked for a failure, or if a capture prohibits the call. */
#ifndef FAKE_CUDA_RUNTIME_H
#define FAKE_CUDA_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_runtime_api.h"
#include "streams.h"

enum { MAX_DEVICES = 16 };

typedef unsigned long long ticket; /* numbers operations in the order in which they were enqueued, on any stream */

/* ---- settings.c: what a test chooses through the environment ---- */

struct settings {
  bool eager;          /* FAKE_CUDA_EAGER=1: an operation is executed when it is enqueued */
  bool strict;         /* FAKE_CUDA_STRICT=1: a launch of a kernel that is not emulated fails */
  int num_devices;     /* FAKE_CUDA_DEVICES=1, less those that CUDA_VISIBLE_DEVICES hides */
  int driver;          /* FAKE_CUDA_DRIVER=13000, as CUDA numbers versions; below 13000 the runtime refuses it */
  int capability;      /* FAKE_CUDA_CAPABILITY=90: major and minor as one number */
  size_t memory_bytes; /* FAKE_CUDA_MEMORY_BYTES: of each device, 139 GiB unless set */
  const char *log;     /* FAKE_CUDA_LOG: a file to append to */
  long fail_launch;    /* FAKE_CUDA_FAIL_LAUNCH=n: the n-th kernel or product that is executed fails; counts down */
  long fail_call;      /* FAKE_CUDA_FAIL_CALL=n: the n-th call fails; counts down */
  int numbers[MAX_DEVICES]; /* of the devices, before any was hidden */
  const char *broken;  /* FAKE_CUDA_BROKEN: a folder; device n fails at its next kernel or product once it has a file n */
};

extern struct settings settings;

/* ---- log.c: what happened ---- */

/* Adds one to the counter that is named by these words; NULL ends them early. */
void count(const char *what, const char *of, const char *detail);
void reset_counters(void);

/* ---- devices.c: devices and their errors ---- */

struct device {
  cudaError_t error; /* sticky: what every later call returns */
  size_t used_bytes;
  struct CUstream_st *null_stream;
};

extern struct device devices[MAX_DEVICES];

int current_device(void); /* of the calling thread */

enum safety {
  ANSWERS_ALWAYS,    /* also when the device has failed */
  SAFE,              /* while a stream is captured, too */
  UNSAFE_IN_CAPTURE, /* prohibited by a capture of this thread, or a global one of any thread */
};

struct call {
  cudaError_t error;
};

struct call begin_call(const char *name, enum safety safety);
void end_call(struct call *call);

#define API_CALL(safety)                                                                  \
  __attribute__((cleanup(end_call))) struct call api_call = begin_call(__func__, safety); \
  if (api_call.error) return api_call.error

/* Makes the error the thread's last one and returns it. */
cudaError_t failed(cudaError_t error);
/* Makes the device fail for good, and drops what its streams have not executed yet. */
void fail_device(int device, cudaError_t error, const char *why);

/* ---- streams.c: queues of operations, executed late ---- */

struct operation {
  struct operation *next;
  ticket ticket;
  struct CUstream_st *awaited; /* NULL, or a stream that must have executed awaited_ticket before */
  unsigned long long awaited_ticket; /* of its operations */
  bool is_launch;                     /* a kernel or a product */
  void (*run)(const void *arguments); /* NULL: nothing to compute */
  size_t bytes;
  max_align_t arguments[];
};

struct queue {
  struct operation *first, *last;
};

struct CUstream_st {
  struct CUstream_st *next; /* of all streams; none is freed before the process ends, as events may refer to it */
  int device;
  bool is_blocking; /* waits for the null stream, and the null stream for it */
  bool is_destroyed;
  ticket newest, executed;
  struct queue queue;
  struct capture *capture; /* the one that it takes part in, or NULL */
};

struct operation *new_operation(void (*run)(const void *), const void *arguments, size_t bytes);
void push(struct queue *queue, struct operation *operation);
struct operation *pop(struct queue *queue);
void discard(struct queue *queue);

/* The stream of a handle of the API, also of the null stream's; NULL if there is none. */
struct CUstream_st *find_stream(cudaStream_t handle);
struct CUstream_st *all_streams(void);

/* Appends an operation to a stream, or to the graph that it records; the operation is freed in either case. */
cudaError_t append(cudaStream_t stream, struct operation *operation);
/* The same of a function with a copy of its arguments. */
cudaError_t append_call(cudaStream_t stream, void (*run)(const void *), const void *arguments, size_t bytes);

/* Executes a stream up to a ticket, with everything that this waits for. Returns the device's error. */
cudaError_t execute(struct CUstream_st *stream, ticket last);
cudaError_t execute_stream(struct CUstream_st *stream);
cudaError_t execute_device(int device);

/* ---- captures.c: streams that record a graph ---- */

bool is_valid(const struct capture *capture);
void record(struct capture *capture, struct operation *operation);
/* Whether captures prohibit the unsafe call `name` to this thread; the captures concerned become invalid. */
bool is_prohibited(const char *name);
void invalidate(struct capture *capture, const char *why);
/* Invalidates the captures of blocking streams of a device, on which its null stream would depend; whether there were any. */
bool invalidate_blocking_captures(int device, const char *why);

/* ---- memory.c: allocations ---- */

enum place { PAGEABLE, PINNED, DEVICE };

/* Where an address lies; `device` is set unless it is NULL and the address pageable. */
enum place place_of(const void *address, int *device);
/* Whether a range lies inside one live allocation of a device, or of pinned memory. */
bool lies_in_allocation(const void *address, size_t bytes);

#endif
