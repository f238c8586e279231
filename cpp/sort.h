#pragma once

#include "arrays.h"

void bind_sort(nb::module_& module);
