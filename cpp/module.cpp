// The Python module grace._native: host hot paths, all with the interpreter lock released.

#include <nanobind/nanobind.h>

#include "filter.h"
#include "logsumexp.h"
#include "match_children.h"
#include "select.h"
#include "unions.h"

NB_MODULE(_native, module) {
    module.doc() = "Host hot paths of Grace (C++20): building, matching, selecting and filtering.";
    bind_filter(module);
    bind_logsumexp(module);
    bind_match_children(module);
    bind_select(module);
    bind_unions(module);
}
