// Marks a function to be compiled for several vector widths, the widest that runs chosen at load.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define GRACE_WIDEST_VECTORS \
    __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define GRACE_WIDEST_VECTORS
#endif
