/* The table of emulated kernels. */
#include "emulations.h"

#define KERNEL(name, run, ...) {name, run, (const size_t[]){__VA_ARGS__, 0}},

const struct kernel KERNELS[] = {
#include "kernels_list.h"
    {0},
};
