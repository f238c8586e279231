#pragma once

#include "arrays.h"

void bind_match_children(nb::module_& module);
