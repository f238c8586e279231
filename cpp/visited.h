#pragma once

#include "arrays.h"

void bind_visited(nb::module_& module);
