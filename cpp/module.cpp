// The Python module grace._native: host hot paths, with the interpreter lock released wherever no Python
// object is read.

#include <nanobind/nanobind.h>

#include "ancestor_attention.h"
#include "answers.h"
#include "exact.h"
#include "features.h"
#include "filter.h"
#include "intern.h"
#include "json_check.h"
#include "logsumexp.h"
#include "match_children.h"
#include "request_texts.h"
#include "requests.h"
#include "rms_norm.h"
#include "select.h"
#include "sort.h"
#include "splice.h"
#include "tables.h"
#include "targeting.h"
#include "trie.h"
#include "unions.h"
#include "visited.h"

NB_MODULE(_native, module) {
    // Whatever still serves when the interpreter ends is no leak.
    nb::set_leak_warnings(false);
    module.doc() =
        "Host hot paths of Grace (C++20): reading, building, matching, selecting, filtering and "
        "answering.";
    bind_ancestor_attention(module);
    bind_answers(module);
    bind_exact(module);
    bind_features(module);
    bind_filter(module);
    bind_intern(module);
    bind_json_check(module);
    bind_logsumexp(module);
    bind_match_children(module);
    bind_request_texts(module);
    bind_requests(module);
    bind_rms_norm(module);
    bind_select(module);
    bind_sort(module);
    bind_splice(module);
    bind_tables(module);
    bind_targeting(module);
    bind_trie(module);
    bind_unions(module);
    bind_visited(module);
}
