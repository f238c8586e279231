// The Python module grace._native: host hot paths, all with the interpreter lock released.

#include <nanobind/nanobind.h>

#include "filter.h"
#include "intern.h"
#include "logsumexp.h"
#include "select.h"

NB_MODULE(_native, module) {
    module.doc() =
        "Host hot paths of Grace (C++20): dictionaries of catalogues, the last filter, the selection.";
    bind_filter(module);
    bind_intern(module);
    bind_logsumexp(module);
    bind_select(module);
}
