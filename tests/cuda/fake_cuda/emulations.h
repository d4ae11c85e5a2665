/* The functions that emulate kernels. Each is described where it is defined, beginning with the kernel's arguments in their
 * order. */
#ifndef FAKE_CUDA_EMULATIONS_H
#define FAKE_CUDA_EMULATIONS_H

#include "kernels.h"

#define KERNEL(name, run, ...) void run(void *const *arguments, dim3 grid, dim3 block, const char *mangled_name);
#include "kernels_list.h"
#undef KERNEL

#endif
