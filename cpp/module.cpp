// The Python module grace._native: host hot paths, all with the interpreter lock released.

#include <nanobind/nanobind.h>

#include "exact.h"
#include "filter.h"
#include "logsumexp.h"
#include "select.h"
#include "visited.h"

NB_MODULE(_native, module) {
    module.doc() = "Host hot paths of Grace (C++20): the last filter and the constrained selection.";
    bind_exact(module);
    bind_filter(module);
    bind_logsumexp(module);
    bind_select(module);
    bind_visited(module);
}
