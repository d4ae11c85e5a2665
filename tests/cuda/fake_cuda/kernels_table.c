/* The table of emulated kernels. */
#include "kernels.h"

const struct kernel KERNELS[] = {
    {0},
};
