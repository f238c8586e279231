// The Python module grace._native: host hot paths, all with the interpreter lock released.

#include <nanobind/nanobind.h>

#include "ancestor_attention.h"
#include "exact.h"
#include "filter.h"
#include "intern.h"
#include "logsumexp.h"
#include "match_children.h"
#include "rms_norm.h"
#include "select.h"
#include "sort.h"
#include "splice.h"
#include "tables.h"
#include "trie.h"
#include "unions.h"
#include "visited.h"

NB_MODULE(_native, module) {
    module.doc() = "Host hot paths of Grace (C++20): reading, building, matching, selecting and filtering.";
    bind_ancestor_attention(module);
    bind_exact(module);
    bind_filter(module);
    bind_intern(module);
    bind_logsumexp(module);
    bind_match_children(module);
    bind_rms_norm(module);
    bind_select(module);
    bind_sort(module);
    bind_splice(module);
    bind_tables(module);
    bind_trie(module);
    bind_unions(module);
    bind_visited(module);
}
