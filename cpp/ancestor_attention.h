#pragma once

#include "arrays.h"

void bind_ancestor_attention(nb::module_& module);
