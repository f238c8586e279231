#pragma once

#include "arrays.h"

void bind_trie(nb::module_& module);
