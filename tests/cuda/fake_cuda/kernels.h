/* The emulated kernels: what a launch of a named kernel computes on the host.

   A launch looks for the first entry of KERNELS whose `name` occurs in the kernel's mangled name. Its arguments are copied at the
   launch by `sizes`; `run` is called later, when the stream executes, with pointers to the copies (CUDA's own convention:
   *(float **)arguments[0] is the first argument when that is a float *). Device memory is host memory, so a device pointer can
   be read and written as it is. `run` must not call the CUDA runtime.

   A kernel that is not in the table is logged and counted as not emulated, and computes nothing. */
#ifndef FAKE_CUDA_KERNELS_H
#define FAKE_CUDA_KERNELS_H

#include <stddef.h>

#include "driver_types.h"
#include "vector_types.h"

struct kernel {
  const char *name; /* a substring of the mangled kernel name */
  void (*run)(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name);
  const size_t *sizes; /* bytes of each argument, 0-terminated */
};

/* Ends with an entry whose name is NULL. Defined in kernels_table.c. */
extern const struct kernel KERNELS[];

#endif
